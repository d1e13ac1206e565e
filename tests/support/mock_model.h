/* A model without arithmetic: its KV pages hold the token ids themselves, and the logits of a position are made from a
 * hash of all ids up to it, read back through the page table. So a page that was lost, lent twice or not copied shows
 * at once as a wrong answer, and the right one is known without any engine. */
#ifndef TEST_MOCK_MODEL_H
#define TEST_MOCK_MODEL_H

#include "engine/run/engine.h"

#include <stdatomic.h>

enum {
    MOCK_VOCAB = 48,
    MOCK_USABLE = 45,
    MOCK_STOP = 1,
    MOCK_WIDTH = 4,
    MOCK_PAGE_TOKENS = 16,
    MOCK_MAX_PAGE_TOKENS = 256
};

/* Positions of a page of the models made from now on. */
extern int mock_page_tokens;

struct mock_model {
    struct model model; /* first */
    struct backend backend;
    struct backend_caps caps;
    struct sampler *sampler;
    struct buffer *logits;
    /* The submitted step: computed when it is waited for, so that an engine that needs a result
     * before, or changes the step, gives wrong answers. */
    const struct step *step;
    struct kv_memory *kv;
    int n_sampled; /* rows that an input of sample() began at, so far */
    uint64_t salt; /* of its logits */
    int step_us;   /* how long a step takes */
    atomic_bool
        is_held;  /* no step ends: for tests in which requests must arrive during one; mock_release() */
    int n_steps;  /* forward passes so far */
    int max_rows; /* most rows of a step so far */
    int n_copies;
    int n_late_copies; /* a copy of a page to or from the host is complete after so many looks at it, or when it is waited for */
    int64_t n_rows;
    /* As a draft model: in so many of a hundred places it says something else than the others. */
    int percent_wrong;
};

/* No stop token unless has_stop. */
struct mock_model *mock_model_new(int n_ctx, bool has_stop);
void mock_model_free(struct mock_model *mock);

/* A sampler with the kernels of this processor; the caller's, for sampler_free(). */
struct sampler;
enum tutti_status mock_sampler(struct sampler **out, int n_vocab, struct tutti_error *err);

/* Lets steps end when all requests have arrived: those that the prompt threads still prepare, too. */
void mock_release(struct mock_model *mock, tutti_engine *engine);

/* Opens an engine on it; hooks: only logits and user are looked at; may be NULL. Fails the test on an error. */
tutti_engine *mock_engine(struct mock_model *mock, const struct tutti_engine_options *options,
                          const struct engine_hooks *hooks);

/* The same, and gives the status; an engine that opened is closed again. */
enum tutti_status mock_engine_try(struct mock_model *mock, const struct tutti_engine_options *options,
                                  struct tutti_error *err);

/* What the engine must say of the ids [n] of a prompt: the hidden state of the last one, [MOCK_WIDTH], and the logits after it,
 * [MOCK_VOCAB]. */
void mock_outputs(const int32_t *ids, int n, float *hidden, float *logits);

/* What the engine must answer: ids [max_ids], returns how many. seed: of the request. */
int mock_answer(const struct tutti_request *request, int choice, int max_context, bool has_stop, int32_t *ids,
                int max_ids);

#endif
