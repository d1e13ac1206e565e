/* The engine behind include/tutti.h, and the model handle. */
#ifndef TUTTI_ENGINE_H
#define TUTTI_ENGINE_H

#include "model/model.h"

/* tutti_model is struct model: a handle from model_make() may be given to tutti_engine_open() by this cast. */
static inline tutti_model *model_handle(struct model *model)
{
    return (tutti_model *)model;
}
static inline struct model *model_of(const tutti_model *handle)
{
    return (struct model *)(uintptr_t)handle;
}

/* For tests: what the engine does with the model can be looked at and replaced. */
struct engine_hooks {
    /* NULL: model_reserve(), model_forward() */
    enum tutti_status (*reserve)(struct model *model, int max_rows, int max_outputs, struct tutti_error *err);
    void (*forward)(struct model *model, struct kv_memory *kv, const struct step *step, float *logits);
    /* Sees, and may change, the logits that token number index (from 0) of an answer is chosen from. On the engine
     * thread or on a compute thread. May be NULL. */
    void (*logits)(void *user, uint64_t request_id, int choice, int index, float *logits, int n_vocab);
    void *user;
    bool forces_guesses;   /* every guess is verified, whatever that costs */
    int spill_delay_us;    /* a read of the spill file takes that much longer */
    int spill_patience_us; /* 0: as usual */
};

/* tutti_engine_open() with hooks (NULL: none), which are copied. */
MUST_CHECK enum tutti_status engine_open(tutti_engine **out, struct model *model,
                                         const struct tutti_engine_options *options,
                                         const struct engine_hooks *hooks, struct tutti_error *err);

/* From now on every engine checks its books after every step, and ends the program where they do not agree. Builds
 * with -Daudit=true do so from the start. */
void engine_set_audit(bool is_on);

/* For tests: no step is under way, and no page on its way to or from the spill file. */
bool engine_is_settled(const tutti_engine *engine);

/* Pages of the KV cache that use at most kv_bytes; 0: a good part of the bytes_left of memory, and no more than n_seqs full
 * contexts can use. */
MUST_CHECK enum tutti_status engine_kv_pages(int *n_pages, size_t page_bytes, uint64_t kv_bytes,
                                             uint64_t bytes_left, int n_seqs, int n_ctx,
                                             struct tutti_error *err);

/* Says that n_pages pages do not hold a context of n_ctx tokens, and what would: TUTTI_E_LIMIT. kv_bytes: what there is for them;
 * is_given: by the caller, else by what memory is free. */
enum tutti_status engine_kv_too_small(size_t page_bytes, uint64_t kv_bytes, bool is_given, int n_pages,
                                      int n_ctx, struct tutti_error *err);

#endif
