/* Generates answers to a batch of prompts of unequal length, in the ways of MindFormers' text
 * generation: generate MODEL [ADAPTER]
 *
 * All answers of a batch run concurrently, each with its own events. */
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <tutti.h>

enum { N_PROMPTS = 3, MAX_BYTES = 4096 };

static const char *const PROMPTS[N_PROMPTS] = {
    "Hi",
    "What is the capital of France?",
    "Tell me a story about a fox named Mia.",
};

struct answer {
    sem_t done;
    struct tutti_error error;
    char text[MAX_BYTES]; /* of the first choice; truncated */
    size_t n_bytes;
};

/* Called on the engine's text thread, for each part of an answer. A program that prints answers as
 * they arrive would do so here. */
static void take(void *user, const struct tutti_event *event)
{
    struct answer *answer = user;
    if (event->choice == 0 && event->n_text_bytes < MAX_BYTES - answer->n_bytes) {
        memcpy(answer->text + answer->n_bytes, event->text, event->n_text_bytes);
        answer->n_bytes += event->n_text_bytes;
    }
    if (event->finish == TUTTI_FINISH_ERROR)
        answer->error = event->error;
    if (event->is_last)
        sem_post(&answer->done);
}

/* Submits all prompts at once, with the settings in how, and waits for their answers. */
static enum tutti_status ask_all(tutti_engine *engine, const struct tutti_request *how,
                                 struct answer *answers, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    int n = 0;
    for (; n < N_PROMPTS && st == TUTTI_OK; n++) {
        struct tutti_message message = { .role = "user",
                                         .content = PROMPTS[n],
                                         .n_bytes = strlen(PROMPTS[n]) };
        struct tutti_request request = *how;
        request.messages = &message;
        request.n_messages = 1;
        answers[n] = (struct answer){ .n_bytes = 0 };
        sem_init(&answers[n].done, 0, 0);
        st = tutti_engine_submit(engine, &request, take, &answers[n], NULL, err);
        if (st != TUTTI_OK)
            sem_post(&answers[n].done); /* there will be no event */
    }
    for (int i = 0; i < n; i++) {
        sem_wait(&answers[i].done);
        sem_destroy(&answers[i].done);
        if (st == TUTTI_OK && answers[i].error.status != TUTTI_OK) {
            *err = answers[i].error;
            st = err->status;
        }
    }
    return st;
}

static void print_all(const char *title, const struct answer *answers)
{
    printf("%s\n", title);
    for (int i = 0; i < N_PROMPTS; i++)
        printf("  %d. %.*s\n", i + 1, (int)answers[i].n_bytes, answers[i].text);
}

static bool are_equal(const struct answer *a, const struct answer *b)
{
    for (int i = 0; i < N_PROMPTS; i++) {
        if (a[i].n_bytes != b[i].n_bytes || memcmp(a[i].text, b[i].text, a[i].n_bytes) != 0)
            return false;
    }
    return true;
}

static enum tutti_status run(tutti_engine *engine, const tutti_model *model, struct tutti_error *err)
{
    static struct answer answers[N_PROMPTS], again[N_PROMPTS];
    struct tutti_request greedy = { .max_tokens = 24 };
    tutti_sampling_init(&greedy.sampling, model);
    greedy.sampling.temperature = 0;
    enum tutti_status st = ask_all(engine, &greedy, answers, err);
    if (st != TUTTI_OK)
        return st;
    print_all("with the KV cache:", answers);

    struct tutti_request recomputed = greedy;
    recomputed.no_kv_cache = true;
    st = ask_all(engine, &recomputed, again, err);
    if (st != TUTTI_OK)
        return st;
    printf("without the KV cache: %s\n", are_equal(answers, again) ? "the same" : "other answers");

    struct tutti_request beams = greedy;
    beams.n_beams = 4;
    beams.length_penalty = 1;
    beams.early_stopping = TUTTI_EARLY_STOPPING_NEVER;
    st = ask_all(engine, &beams, again, err);
    if (st != TUTTI_OK)
        return st;
    print_all("the best of four beams:", again);

    struct tutti_request adapted = greedy;
    adapted.adapter = tutti_model_adapter_name(model, 0);
    st = adapted.adapter ? ask_all(engine, &adapted, again, err) : TUTTI_OK;
    if (st == TUTTI_OK && adapted.adapter)
        print_all("with the adapter:", again);
    return st;
}

int main(int argc, char **argv)
{
    struct tutti_error err = { 0 };
    tutti_model *model = NULL;
    tutti_engine *engine = NULL;
    enum tutti_status st = tutti_model_open(&model, argc > 1 ? argv[1] : "models/demo", NULL, &err);
    if (st == TUTTI_OK && argc > 2)
        st = tutti_model_add_adapter(model, "adapter", argv[2], &err);
    if (st == TUTTI_OK)
        st = tutti_engine_open(&engine, model, NULL, &err);
    if (st == TUTTI_OK)
        st = run(engine, model, &err);
    if (st != TUTTI_OK)
        fprintf(stderr, "%s: %s\n", argv[0], err.text);
    tutti_engine_close(engine);
    tutti_model_close(model);
    return st != TUTTI_OK;
}
