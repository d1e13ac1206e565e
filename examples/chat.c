/* Asks a chat model one question and prints the answer as it is generated: chat MODEL QUESTION */
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <tutti.h>

struct answer {
    sem_t done;
    struct tutti_error error;
};

/* Called on the engine's text thread, for each part of the answer. */
static void show(void *user, const struct tutti_event *event)
{
    struct answer *answer = user;
    fwrite(event->text, 1, event->n_text_bytes, stdout);
    fflush(stdout);
    answer->error = event->error;
    if (event->is_last)
        sem_post(&answer->done);
}

static enum tutti_status ask(tutti_engine *engine, const tutti_model *model, const char *question,
                             struct tutti_error *err)
{
    struct answer answer = { 0 };
    struct tutti_message message = { .role = "user", .content = question, .n_bytes = strlen(question) };
    struct tutti_request request = { .messages = &message, .n_messages = 1 };
    tutti_sampling_init(&request.sampling, model);
    request.sampling.temperature = 0;
    sem_init(&answer.done, 0, 0);
    enum tutti_status st = tutti_engine_submit(engine, &request, show, &answer, NULL, err);
    if (st == TUTTI_OK) {
        sem_wait(&answer.done); /* posted at the last event */
        putchar('\n');
        *err = answer.error;
        st = answer.error.status;
    }
    sem_destroy(&answer.done);
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
        st = ask(engine, model, argc > 2 ? argv[2] : "What is the capital of France?", &err);
    if (st != TUTTI_OK)
        fprintf(stderr, "%s: %s\n", argv[0], err.text);
    tutti_engine_close(engine);
    tutti_model_close(model);
    return st != TUTTI_OK;
}
