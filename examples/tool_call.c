/* Asks a chat model a question that it must answer with a call of a tool, and prints the call as it
 * is generated: tool_call MODEL QUESTION */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tutti.h>

static const char TOOLS[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"The weather of a "
    "city\","
    "  \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}}}}]";

/* What the answer must be: a list of one call. Without a grammar the model chooses between a call
 * and plain text. */
static const char SCHEMA[] =
    "{\"type\": \"array\", \"minItems\": 1, \"maxItems\": 1, \"items\": {\"type\": \"object\","
    "  \"properties\": {\"name\": {\"const\": \"get_weather\"}, \"arguments\": {\"type\": \"object\","
    "    \"properties\": {\"city\": {\"enum\": [\"Paris\", \"Beijing\"]}}, \"required\": [\"city\"],"
    "    \"additionalProperties\": false}},"
    "  \"required\": [\"name\", \"arguments\"], \"additionalProperties\": false}}";

struct answer {
    sem_t done;
    struct tutti_error error;
    tutti_tool_parser *parser;
    char *text; /* the answer so far */
    size_t n_bytes;
    size_t n_calls; /* that are complete */
};

/* Called on the engine's text thread, for each part of the answer. */
static void take(void *user, const struct tutti_event *event)
{
    struct answer *answer = user;
    struct tutti_tool_call_delta delta;
    char *text = realloc(answer->text, answer->n_bytes + event->n_text_bytes + 1);
    if (text) {
        memcpy(text + answer->n_bytes, event->text, event->n_text_bytes);
        answer->text = text;
        answer->n_bytes += event->n_text_bytes;
    }
    while (text && tutti_tool_parser_next(answer->parser, text, answer->n_bytes, &delta)) {
        if (delta.name)
            printf("%.*s ", (int)delta.n_name, delta.name);
        printf("%.*s%s", (int)delta.n_arguments, delta.arguments, delta.is_last ? "\n" : "");
        answer->n_calls += delta.is_last;
    }
    answer->error = event->error;
    if (event->is_last)
        sem_post(&answer->done);
}

static enum tutti_status ask(tutti_engine *engine, const tutti_model *model, const char *question,
                             struct tutti_error *err)
{
    struct answer answer = { 0 };
    struct tutti_message message = { .role = "user", .content = question, .n_bytes = strlen(question) };
    struct tutti_request request = { .messages = &message,
                                     .n_messages = 1,
                                     .tools = TOOLS,
                                     .grammar_kind = TUTTI_GRAMMAR_JSON_SCHEMA,
                                     .grammar = SCHEMA,
                                     .n_grammar_bytes = sizeof SCHEMA - 1 };
    size_t n_prompt;
    tutti_sampling_init(&request.sampling, model);
    request.sampling.temperature = 0;
    enum tutti_status st = tutti_apply_chat_template(model, &request, NULL, 0, &n_prompt, err);
    if (st == TUTTI_OK) {
        printf("prompt of %zu tokens\n", n_prompt);
        st = tutti_tool_parser_new(&answer.parser, NULL, TOOLS, false, err);
    }
    if (st != TUTTI_OK)
        return st;
    sem_init(&answer.done, 0, 0);
    st = tutti_engine_submit(engine, &request, take, &answer, NULL, err);
    if (st == TUTTI_OK) {
        sem_wait(&answer.done); /* posted at the last event */
        *err = answer.error;
        st = answer.error.status;
    }
    if (st == TUTTI_OK && answer.n_calls != 1) {
        snprintf(err->text, sizeof err->text, "the answer is not a call: %.*s", (int)answer.n_bytes,
                 answer.text);
        st = TUTTI_E_INTERNAL;
    }
    sem_destroy(&answer.done);
    tutti_tool_parser_free(answer.parser);
    free(answer.text);
    return st;
}

int main(int argc, char **argv)
{
    struct tutti_error err = { 0 };
    tutti_model *model = NULL;
    tutti_engine *engine = NULL;
    enum tutti_status st = tutti_model_open(&model, argc > 1 ? argv[1] : "models/demo", NULL, &err);
    if (st == TUTTI_OK)
        st = tutti_engine_open(&engine, model, NULL, &err);
    if (st == TUTTI_OK)
        st = ask(engine, model, argc > 2 ? argv[2] : "What is the weather in Paris?", &err);
    if (st != TUTTI_OK)
        fprintf(stderr, "%s: %s\n", argv[0], err.text);
    tutti_engine_close(engine);
    tutti_model_close(model);
    return st != TUTTI_OK;
}
