/* The engine behind include/tutti.h: opening with test hooks, the size of the KV cache, and the
 * model handle. */
#ifndef TUTTI_ENGINE_H
#define TUTTI_ENGINE_H

#include "model/model.h"

/* tutti_model is struct model: these casts convert a model from model_make() for
 * tutti_engine_open(), and back. */
static inline tutti_model *model_handle(struct model *model)
{
    return (tutti_model *)model;
}
static inline struct model *model_of(const tutti_model *handle)
{
    return (struct model *)(uintptr_t)handle;
}

/* For tests: observes and replaces the engine's calls of the model. */
struct engine_hooks {
    /* NULL: model_reserve(), model_submit(), model_wait() */
    enum tutti_status (*reserve)(struct model *model, int max_rows, int max_outputs, struct tutti_error *err);
    struct floats (*submit)(struct model *model, struct kv_memory *kv, const struct step *step);
    void (*wait)(struct model *model);
    /* Sees, and may change, the logits for token number index (from 0) of an answer. Called on the
     * engine thread; each row is then copied to the host and back, and sampled by itself. May be NULL. */
    void (*logits)(void *user, uint64_t request_id, int choice, int index, float *logits, int n_vocab);
    void *user;
    bool forces_drafts;    /* verify every draft token, whatever it costs */
    bool never_ahead;      /* no step is submitted before the tokens of the last one are known */
    int spill_delay_us;    /* added to each read of the spill file */
    int spill_patience_us; /* struct spiller_options; 0: the default */
    int64_t request_bytes; /* limit of struct request_memory; 0: the default */
};

/* tutti_engine_open() with hooks, which are copied; NULL: none. */
MUST_CHECK enum tutti_status engine_open(tutti_engine **out, struct model *model,
                                         const struct tutti_engine_options *options,
                                         const struct engine_hooks *hooks, struct tutti_error *err);

/* From now on every engine checks its invariants after every step, and aborts the program if one is
 * violated. Builds with -Daudit=true always do. */
void engine_set_audit(bool is_on);

/* For tests: no step is running, and no page is on its way to or from the spill file. */
bool engine_is_settled(const tutti_engine *engine);

/* A KV page: bytes of all layers, and of the draft model's page if there is one; positions. */
struct kv_page_size {
    size_t bytes;
    int tokens;
    size_t int8_bytes; /* with keys and values as int8; 0: they are, or the device has none */
};

/* The number of window slots (window_slots.h) per page; 1: no layer has a window, or the window is too
 * long to save memory. A sequence needs slots for its window and for the rows of a step. The number is
 * right for sequences of four windows, at least 4096 tokens. A pool of fewer than n_least_pages would
 * have too few slots for one sequence: there, use one slot per page. */
struct window_room {
    double slots_per_page;
    int n_least_pages;
};
struct window_room engine_window_room(int page_tokens, int window, int max_batch_tokens, int n_ctx);

/* Chooses the number of KV pages: as many as kv_bytes holds; 0: a good part of bytes_left (free
 * memory), but no more than n_seqs full contexts can use, as beams too. */
MUST_CHECK enum tutti_status engine_kv_pages(int *n_pages, struct kv_page_size page, uint64_t kv_bytes,
                                             uint64_t bytes_left, int n_seqs, int n_ctx,
                                             struct tutti_error *err);

/* Sets the error that n_pages pages do not hold a context of n_ctx tokens, with the settings that
 * would; returns TUTTI_E_LIMIT. kv_bytes: memory for the pages; is_given: the caller set it, else it
 * follows from free memory. */
enum tutti_status engine_kv_too_small(struct kv_page_size page, uint64_t kv_bytes, bool is_given, int n_pages,
                                      int n_ctx, struct tutti_error *err);

/* Sets the error that kv_bytes exceed bytes_left, with the size that fits, and how many users of n_ctx
 * tokens it holds; returns TUTTI_E_LIMIT. */
enum tutti_status engine_kv_too_large(struct kv_page_size page, uint64_t kv_bytes, uint64_t bytes_left,
                                      int n_ctx, struct tutti_error *err);

#endif
