/* Opens and closes an engine; calls from other threads: submit, cancel, statistics. */
#include "engine/run/engine.h"

#include "base/limits.h"
#include "base/rng.h"
#include "base/system/clock.h"
#include "base/system/thread.h"
#include "engine/run/engine_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    DEFAULT_SEQS = 256,
    DEFAULT_QUEUE = 1024,
    DEFAULT_DRAFT_TOKENS = 8,
    MAX_BATCH_TOKENS = 65536,
    MAX_QUEUE = 1 << 20,
    RECORDS_PER_SEQ = 64, /* tokens of each sequence by which the text thread may lag */
    MIN_RECORDS = 4096,
    SHARE_OF_FREE =
        8, /* most choices of an owner / free places in the queue: some are always left for others */
    LEAST_REQUEST_BYTES = 1 << 30,
    SCORE_ROWS = 32, /* rows of a step with logits of prompt tokens, in addition to one of each sequence */
};
static const double DEFAULT_SLOWDOWN = 2;

/* ---- opening ---- */

static enum tutti_status set_option(const char *name, int value, int fallback, int high, int *out,
                                    struct tutti_error *err)
{
    if (value < 0 || value > high)
        return error_set_param(err, TUTTI_E_ARGUMENT, name, "%s is %d, expected 0 to %d", name, value, high);
    *out = value > 0 ? value : fallback;
    return TUTTI_OK;
}

static enum tutti_status set_options(struct tutti_engine *e, const struct tutti_engine_options *options,
                                     struct tutti_error *err)
{
    if (options)
        e->options = *options;
    struct tutti_engine_options *o = &e->options;
    int n_ctx = e->model->desc.n_ctx;
    enum tutti_status st = set_option("max_batch_tokens", o->max_batch_tokens, MODEL_STEP_TOKENS,
                                      MAX_BATCH_TOKENS, &o->max_batch_tokens, err);
    if (st == TUTTI_OK)
        st = set_option("max_seqs", o->max_seqs, DEFAULT_SEQS, LIMIT_SEQS, &o->max_seqs, err);
    if (st == TUTTI_OK)
        st = set_option("max_queue", o->max_queue, DEFAULT_QUEUE, MAX_QUEUE, &o->max_queue, err);
    if (st == TUTTI_OK)
        st = set_option("max_queue_ms", o->max_queue_ms, 0, INT32_MAX, &o->max_queue_ms, err);
    if (st == TUTTI_OK)
        st = set_option("max_lookup_tokens", o->max_lookup_tokens, 0, MAX_DRAFT_TOKENS, &o->max_lookup_tokens,
                        err);
    if (st == TUTTI_OK)
        st = set_option("max_draft_tokens", o->max_draft_tokens, DEFAULT_DRAFT_TOKENS, MAX_DRAFT_TOKENS,
                        &o->max_draft_tokens, err);
    if (!o->draft && !e->model->desc.uses_mtp)
        o->max_draft_tokens = 0;
    if (st == TUTTI_OK && o->draft && e->model->desc.uses_mtp)
        st = error_set_param(
            err, TUTTI_E_ARGUMENT, "draft",
            "model %s was loaded with its layer for multi-token prediction, expected that or "
            "a draft model, not both",
            e->model->name);
    if (st == TUTTI_OK && o->max_slowdown != 0 && !(o->max_slowdown > 1 && o->max_slowdown <= 1000))
        st = error_set_param(err, TUTTI_E_ARGUMENT, "max_slowdown",
                             "max_slowdown is %g, expected above 1 to 1000", o->max_slowdown);
    if (o->max_slowdown == 0)
        o->max_slowdown = DEFAULT_SLOWDOWN;
    if (st == TUTTI_OK)
        st = spill_check_options(e, err);
    if (st == TUTTI_OK && o->max_context != 0 &&
        (o->max_context < LIMIT_LEAST_CONTEXT || o->max_context > n_ctx))
        st = error_set_param(err, TUTTI_E_ARGUMENT, "max_context",
                             "max_context is %d, but model %s was made for %d to %d tokens", o->max_context,
                             e->model->name, LIMIT_LEAST_CONTEXT, n_ctx);
    if (st == TUTTI_OK &&
        e->model->desc.has_prefix) { /* a prompt is prefilled in one step, together with all decoding rows */
        int n_rows = (o->max_context > 0 ? o->max_context : n_ctx) + o->max_seqs;
        o->max_batch_tokens = n_rows > o->max_batch_tokens ? n_rows : o->max_batch_tokens;
    }
    return st;
}

/* Pages of the draft model for as many positions as n_pages of the model have. */
static int draft_pages(const struct tutti_engine *e, int n_pages)
{
    return (int)kv_pages_of((int64_t)n_pages * model_page_tokens(e->model),
                            model_page_tokens(model_of(e->options.draft)));
}

/* For each page of the model. */
static size_t draft_page_bytes(const struct tutti_engine *e)
{
    const struct model *draft = model_of(e->options.draft);
    return draft ? (size_t)draft_pages(e, 1) *
                       draft->backend->ops->kv_page_bytes(draft->backend, draft->kv_type)
                 : 0;
}

/* slots_per_page: of the layers with a window. */
static size_t page_bytes(const struct tutti_engine *e, enum dtype kv_type, double slots_per_page)
{
    struct backend *be = e->model->backend;
    size_t all = be->ops->kv_page_bytes(be, kv_type), windowed = be->ops->kv_window_bytes(be, kv_type);
    return all - windowed + (size_t)((double)windowed * slots_per_page);
}

static struct kv_page_size page_size(const struct tutti_engine *e, double slots_per_page)
{
    const struct model *model = e->model;
    size_t drafts = draft_page_bytes(e);
    bool can_shrink = model->kv_type != DTYPE_I8 && model->backend->caps->kv_types >> DTYPE_I8 & 1;
    return (struct kv_page_size){
        .bytes = page_bytes(e, model->kv_type, slots_per_page) + drafts,
        .tokens = model_page_tokens(model),
        .int8_bytes = can_shrink && drafts == 0 ? page_bytes(e, DTYPE_I8, slots_per_page) : 0,
    };
}

/* The numbers that reserve_kv() chose. */
struct kv_room {
    int n_pages, n_slots;
};

/* Allocates the KV cache, and sets the largest context of a sequence. */
static enum tutti_status reserve_kv(struct tutti_engine *e, struct kv_room *room, struct tutti_error *err)
{
    struct tutti_engine_options *o = &e->options;
    int n_ctx = o->max_context > 0 ? o->max_context : e->model->desc.n_ctx, *n_pages = &room->n_pages;
    struct window_room windows = { 1, 1 };
    if (!o->kv_spill_dir && o->kv_spill_host_bytes == 0) /* copies are of whole pages */
        windows = engine_window_room(model_page_tokens(e->model), model_window(&e->model->desc),
                                     o->max_batch_tokens, n_ctx);
    uint64_t bytes_left = model_memory_left(e->model);
    const struct model *draft = model_of(o->draft);
    if (draft && e->model->memory_bytes > 0) /* measured memory is already without it */
        bytes_left -= draft->weight_bytes < bytes_left ? draft->weight_bytes : bytes_left;
    struct kv_page_size page = page_size(e, windows.slots_per_page);
    if (o->kv_bytes > bytes_left)
        return engine_kv_too_large(page, o->kv_bytes, bytes_left, n_ctx, err);
    enum tutti_status st = engine_kv_pages(n_pages, page, o->kv_bytes, bytes_left, o->max_seqs, n_ctx, err);
    if (windows.slots_per_page < 1 && (st != TUTTI_OK || *n_pages < windows.n_least_pages)) {
        windows.slots_per_page = 1;
        page = page_size(e, 1);
        st = engine_kv_pages(n_pages, page, o->kv_bytes, bytes_left, o->max_seqs, n_ctx, err);
    }
    if (st != TUTTI_OK)
        return st;
    int64_t n_tokens = (int64_t)*n_pages * page.tokens;
    if (n_tokens < n_ctx && o->max_context > 0)
        return engine_kv_too_small(page, o->kv_bytes > 0 ? o->kv_bytes : (uint64_t)*n_pages * page.bytes,
                                   o->kv_bytes > 0, *n_pages, n_ctx, err);
    o->max_context = n_tokens < n_ctx ? (int)n_tokens : n_ctx;
    st = model_reserve_tables(e->model, o->max_batch_tokens, o->max_seqs,
                              model_pages_of(e->model, o->max_context) + 1, err);
    room->n_slots = windows.slots_per_page < 1 ? (int)(*n_pages * windows.slots_per_page) + 1 : *n_pages;
    return st == TUTTI_OK ? model_kv_new(e->model, &e->kv, room->n_pages, room->n_slots, err) : st;
}

/* Most draft tokens in a step. */
static int max_draft_rows(const struct tutti_engine *e)
{
    const struct tutti_engine_options *o = &e->options;
    int most = o->max_lookup_tokens > o->max_draft_tokens ? o->max_lookup_tokens : o->max_draft_tokens;
    int64_t n = (int64_t)o->max_seqs * most;
    return n < MAX_DRAFT_ROWS ? (int)n : MAX_DRAFT_ROWS;
}

/* Most rows of logits in a step. */
static int max_outputs(const struct tutti_engine *e)
{
    const struct tutti_engine_options *o = &e->options;
    int n = o->max_seqs + max_draft_rows(e) + SCORE_ROWS;
    return n < o->max_batch_tokens ? n : o->max_batch_tokens;
}

static enum tutti_status reserve_queues(struct tutti_engine *e, struct tutti_error *err)
{
    const struct tutti_engine_options *o = &e->options;
    e->n_slots = o->max_seqs + o->max_queue;
    e->slots = calloc((size_t)e->n_slots, sizeof(struct request *));
    e->free_slots = calloc((size_t)e->n_slots, sizeof *e->free_slots);
    size_t n_draws = (size_t)o->max_seqs + (size_t)max_draft_rows(e), n_outputs = (size_t)max_outputs(e);
    e->draws = calloc(n_draws, sizeof *e->draws);
    e->samples = calloc(n_draws, sizeof *e->samples);
    e->inputs = calloc(n_draws > n_outputs ? n_draws : n_outputs, sizeof *e->inputs);
    if (e->hooks.logits)
        e->host_row = calloc((size_t)e->model->desc.n_vocab, sizeof *e->host_row);
    e->scores = calloc((size_t)max_outputs(e), sizeof *e->scores);
    e->kept_rows = calloc((size_t)o->max_batch_tokens, 2 * sizeof *e->kept_rows);
    e->hidden = calloc((size_t)o->max_batch_tokens, (size_t)e->model->desc.d_model * sizeof *e->hidden);
    if (!e->slots || !e->free_slots || !e->draws || !e->samples || !e->inputs || !e->scores || !e->hidden ||
        !e->kept_rows)
        return error_set(err, TUTTI_E_MEMORY,
                         "logits of %d sequences and a queue of %d requests: out of memory", max_outputs(e),
                         e->n_slots);
    for (; e->n_free_slots < e->n_slots; e->n_free_slots++)
        e->free_slots[e->n_free_slots] = e->n_slots - 1 - e->n_free_slots;
    size_t n_records = (size_t)o->max_seqs * RECORDS_PER_SEQ;
    enum tutti_status st = queue_new(&e->ready, (size_t)e->n_slots, sizeof(struct request *), err);
    if (st == TUTTI_OK)
        st = queue_new(&e->records, n_records > MIN_RECORDS ? n_records : MIN_RECORDS, sizeof(struct record),
                       err);
    return st;
}

/* Estimate until passes are measured, by bytes: each pass reads all weights once. That of the MTP layer
 * reads a layer and the output matrix, which counts as one. */
static double draft_share(const struct tutti_engine *e)
{
    if (e->model->desc.uses_mtp)
        return 2 / (1 + (double)model_n_loaded(&e->model->desc));
    const struct model *draft = model_of(e->options.draft);
    return draft && e->model->weight_bytes > 0 ? (double)draft->weight_bytes / (double)e->model->weight_bytes
                                               : 0;
}

static enum tutti_status reserve_draft(struct tutti_engine *e, int n_pages, uint64_t hash_seed,
                                       struct tutti_error *err)
{
    const struct tutti_engine_options *o = &e->options;
    bool is_mtp = e->model->desc.uses_mtp;
    struct draft_options options = { .model = is_mtp ? e->model : model_of(o->draft),
                                     .target = &e->model->desc,
                                     .target_pool = is_mtp ? e->scheduler->pool : NULL,
                                     .target_kv = is_mtp ? e->kv : NULL,
                                     .submit = e->hooks.submit,
                                     .wait = e->hooks.wait,
                                     .max_seqs = o->max_seqs,
                                     .max_context = o->max_context,
                                     .n_pages = o->draft ? draft_pages(e, n_pages) : 0,
                                     .no_prefix_cache = o->no_prefix_cache,
                                     .hash_seed = hash_seed };
    return options.model ? draft_new(&e->draft, &options, err) : TUTTI_OK;
}

/* Whether steps may be submitted before the tokens of the last one are known. With draft tokens they are not; tests'
 * hooks see steps one by one. */
static bool runs_ahead(const struct tutti_engine *e)
{
    const struct backend *be = e->model->backend;
    return be->ops->feeds_tokens && be->ops->feeds_tokens(be) && !e->model->desc.uses_mtp &&
           !e->options.draft && e->options.max_lookup_tokens == 0 && !e->hooks.logits &&
           e->hooks.wait == model_wait && !e->hooks.never_ahead;
}

/* The limit of struct request_memory. */
static int64_t request_bytes(const struct tutti_engine *e)
{
    int64_t least = 4 * request_most_memory(&e->limits);
    if (e->hooks.request_bytes > 0)
        return e->hooks.request_bytes;
    return least > LEAST_REQUEST_BYTES ? least : LEAST_REQUEST_BYTES;
}

static enum tutti_status engine_reserve(struct tutti_engine *e, struct tutti_error *err)
{
    uint64_t hash_seed;
    if (getentropy(&hash_seed, sizeof hash_seed) != 0)
        return error_set(err, TUTTI_E_IO, "the system provides no random numbers");
    e->seed = e->options.default_seed > 0 ? e->options.default_seed : mix64(hash_seed);
    struct kv_room room = { 0 };
    enum tutti_status st = e->hooks.reserve(e->model, e->options.max_batch_tokens, max_outputs(e), err);
    if (st == TUTTI_OK && e->options.draft)
        st = e->hooks.reserve(model_of(e->options.draft), draft_max_rows(e->options.max_seqs),
                              draft_max_outputs(e->options.max_seqs), err);
    if (st == TUTTI_OK)
        st = reserve_queues(e, err);
    if (st == TUTTI_OK)
        st = e->model->backend->ops->reserve_sampling(e->model->backend, e->model->desc.n_vocab, err);
    if (st == TUTTI_OK)
        st = reserve_kv(e, &room, err); /* last of the large allocations: it takes a part of the rest */
    if (st != TUTTI_OK)
        return st;
    const struct tutti_engine_options *o = &e->options;
    int window = model_window(&e->model->desc);
    bool has_windows = room.n_slots < room.n_pages;
    struct request_limits limits = { .max_context = o->max_context,
                                     .max_seqs = o->max_seqs,
                                     .n_pages = room.n_pages,
                                     .page_tokens = model_page_tokens(e->model),
                                     .max_queue_ms = o->max_queue_ms };
    struct scheduler_options options = { .max_seqs = o->max_seqs,
                                         .max_requests = e->n_slots,
                                         .max_batch_tokens = o->max_batch_tokens,
                                         .max_outputs = max_outputs(e),
                                         .max_slowdown = o->max_slowdown,
                                         .max_lookup_tokens = o->max_lookup_tokens,
                                         .max_draft_tokens = o->max_draft_tokens,
                                         .draft_share = draft_share(e),
                                         .forces_drafts = e->hooks.forces_drafts,
                                         .max_context = o->max_context,
                                         .n_pages = room.n_pages,
                                         .n_slots = room.n_slots,
                                         .window = has_windows ? window : 0,
                                         .page_tokens = model_page_tokens(e->model),
                                         .no_prefix_cache = o->no_prefix_cache,
                                         .hash_seed = hash_seed,
                                         .runs_ahead = runs_ahead(e),
                                         .has_shifts = model_shifts_positions(e->model),
                                         .desc = e->model->desc.has_prefix ? &e->model->desc : NULL };
    if (has_windows) {
        limits.n_slots = room.n_slots;
        limits.window_slots = model_pages_of(e->model, window) + 1;
        limits.step_slots = model_pages_of(e->model, o->max_batch_tokens) + 1;
    }
    limits.memory = &e->request_memory;
    e->limits = limits;
    e->request_memory.limit = request_bytes(e);
    st = scheduler_new(&e->scheduler, &options, err);
    if (st == TUTTI_OK)
        st = reserve_draft(e, room.n_pages, hash_seed, err);
    if (st == TUTTI_OK)
        e->scheduler->draft = e->draft;
    return st == TUTTI_OK ? spill_start(e, mix64(hash_seed), err) : st;
}

static enum tutti_status open_constraints(struct tutti_engine *e, struct tutti_error *err)
{
    const struct tokenizer *tok = e->model->tokenizer;
    struct constraint_options options = { .tok = tok,
                                          .n_vocab = e->model->desc.n_usable_vocab,
                                          .max_seqs = e->options.max_seqs,
                                          .engine_bell = &e->engine_bell,
                                          .is_compiled = prompts_add,
                                          .user = e,
                                          .marks = e->model->chat ? &e->model->marks : NULL,
                                          .stop_ids = e->model->desc.stop_ids,
                                          .n_stop_ids = (size_t)model_desc_n_stops(&e->model->desc, true) };
    return tok ? constraints_new(&e->constraints, &options, err) : TUTTI_OK;
}

static enum tutti_status open_locks(struct tutti_engine *e, struct tutti_error *err)
{
    int rc = pthread_mutex_init(&e->lock, NULL);
    if (rc != 0)
        return error_set(err, TUTTI_E_MEMORY, "cannot create a mutex: %s", strerror(rc));
    e->has_lock = true;
    enum tutti_status st = stats_init(&e->stats, err);
    if (st == TUTTI_OK)
        st = bell_init(&e->text_bell, err);
    if (st == TUTTI_OK)
        st = bell_init(&e->engine_bell, err);
    return st;
}

static enum tutti_status start_thread(pthread_t *thread, bool *has_thread, void *(*entry)(void *), void *arg,
                                      const char *name, struct tutti_error *err)
{
    int rc = thread_start(thread, entry, arg);
    if (rc != 0)
        return error_set(err, TUTTI_E_MEMORY, "cannot create the %s thread: %s", name, strerror(rc));
    *has_thread = true;
    return TUTTI_OK;
}

/* Called before any thread starts, so that the first snapshot has the pool. */
static void init_stats(struct tutti_engine *e)
{
    struct tutti_stats *now = &e->stats.now;
    struct kv_counts counts = kv_pool_counts(e->scheduler->pool);
    now->kv_pages_total = (uint64_t)counts.n_pages;
    now->kv_pages_free = (uint64_t)counts.n_free;
    now->kv_page_tokens = (uint64_t)model_page_tokens(e->model);
    struct spill_counts copies = e->spill ? spill_counts(e->spill) : (struct spill_counts){ 0 };
    now->kv_spill_slots = copies.n_slots;
    now->kv_spill_pages = copies.n_pages;
    now->kv_spill_host_slots = copies.n_host_slots;
    now->max_context = e->options.max_context;
    now->has_prefix_cache = !e->options.no_prefix_cache && !e->model->desc.has_prefix;
    stats_publish(&e->stats, true);
}

static void wake_engine(void *user)
{
    struct tutti_engine *e = user;
    bell_ring(&e->engine_bell);
}

/* Marks the model as used by one engine. */
static enum tutti_status use_model(struct model *model, bool *is_ours, struct tutti_error *err)
{
    if (__atomic_exchange_n(&model->in_use, true, __ATOMIC_ACQ_REL))
        return error_set(err, TUTTI_E_ARGUMENT, "model %s: an engine is open on it already", model->name);
    *is_ours = true;
    return TUTTI_OK;
}

/* The draft model computes on the threads of lender, because the two work alternately. lender NULL:
 * on its own again. */
static void share_threads_with(struct model *draft, struct model *lender)
{
    struct backend *be = draft->backend;
    if (be->ops->share_threads)
        (void)be->ops->share_threads(be, lender ? lender->backend : NULL); /* false: keeps its own */
}

enum tutti_status engine_open(tutti_engine **out, struct model *model,
                              const struct tutti_engine_options *options, const struct engine_hooks *hooks,
                              struct tutti_error *err)
{
    struct tutti_engine *e = calloc(1, sizeof *e);
    if (!e)
        return error_set(err, TUTTI_E_MEMORY, "engine: out of memory");
    e->model = model;
    if (hooks)
        e->hooks = *hooks;
    if (!e->hooks.submit)
        e->hooks.submit = model_submit;
    if (!e->hooks.wait)
        e->hooks.wait = model_wait;
    if (!e->hooks.reserve)
        e->hooks.reserve = model_reserve;
    enum tutti_status st = set_options(e, options, err);
    if (st == TUTTI_OK)
        st = use_model(model, &e->has_model, err);
    struct model *draft = model_of(e->options.draft);
    if (st == TUTTI_OK && draft)
        st = draft_check(draft, model, err);
    if (st == TUTTI_OK && draft)
        st = use_model(draft, &e->has_draft_model, err);
    if (st == TUTTI_OK && draft)
        share_threads_with(draft, model);
    if (st == TUTTI_OK)
        st = open_locks(e, err);
    if (st == TUTTI_OK)
        st = engine_reserve(e, err);
    if (st == TUTTI_OK)
        st = open_constraints(e, err);
    if (st == TUTTI_OK) { /* not before: of a model in use, another engine is woken */
        model_on_loss(model, wake_engine, e);
        init_stats(e);
        st = start_thread(&e->engine_thread, &e->has_engine_thread, step_main, e, "engine", err);
    }
    if (st == TUTTI_OK)
        st = prompts_start(e, err);
    if (st == TUTTI_OK)
        st = start_thread(&e->text_thread, &e->has_text_thread, text_main, e, "text", err);
    if (st != TUTTI_OK) {
        tutti_engine_close(e);
        return st;
    }
    *out = e;
    return TUTTI_OK;
}

enum tutti_status tutti_engine_open(tutti_engine **out, tutti_model *model,
                                    const struct tutti_engine_options *options, struct tutti_error *err)
{
    if (!out || !model)
        return error_set(err, TUTTI_E_ARGUMENT, "tutti_engine_open: out and model must not be NULL");
    return engine_open(out, model_of(model), options, NULL, err);
}

/* ---- closing ---- */

void tutti_engine_drain(tutti_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->is_draining = true;
    pthread_mutex_unlock(&e->lock);
}

static void cancel_all(struct tutti_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->is_draining = e->is_closing = true;
    for (int i = 0; i < e->n_slots; i++)
        if (e->slots[i])
            atomic_store(&e->slots[i]->is_cancelled, true);
    pthread_mutex_unlock(&e->lock);
    atomic_store(&e->has_ends, true);
    bell_ring(&e->engine_bell);
    bell_ring(&e->text_bell);
}

static void join_threads(struct tutti_engine *e)
{
    if (e->has_text_thread) { /* it ends after the last request */
        cancel_all(e);
        pthread_join(e->text_thread, NULL);
    }
    workers_free(e->prompts);
    e->prompts = NULL;
    if (e->has_engine_thread) {
        atomic_store(&e->is_stopping, true);
        bell_ring(&e->engine_bell);
        pthread_join(e->engine_thread, NULL);
    }
}

void tutti_engine_close(tutti_engine *e)
{
    if (!e)
        return;
    join_threads(e);
    if (e->has_model)
        model_on_loss(e->model, NULL, NULL);
    constraints_free(e->constraints);
    spiller_free(e->spiller);
    spill_close(e->spill);
    draft_free(e->draft);
    scheduler_free(e->scheduler);
    if (e->kv)
        model_kv_free(e->model, e->kv);
    queue_free(e->records);
    queue_free(e->ready);
    free(e->draws);
    free(e->scores);
    free(e->hidden);
    free(e->kept_rows);
    free(e->host_row);
    free(e->inputs);
    free(e->samples);
    free(e->free_slots);
    free(e->slots);
    shares_clear(&e->shares);
    free(e->scratch.tokens);
    free(e->scratch.tops);
    buf_clear(&e->scratch.bytes);
    bell_clear(&e->engine_bell);
    bell_clear(&e->text_bell);
    stats_clear(&e->stats);
    if (e->has_lock)
        pthread_mutex_destroy(&e->lock);
    if (e->has_draft_model) {
        share_threads_with(model_of(e->options.draft), NULL);
        __atomic_store_n(&model_of(e->options.draft)->in_use, false, __ATOMIC_RELEASE);
    }
    if (e->has_model)
        __atomic_store_n(&e->model->in_use, false, __ATOMIC_RELEASE);
    free(e);
}

/* ---- callers ---- */

static enum tutti_status refuse_busy(uint64_t retry_after_ms, const char *why, struct tutti_error *err)
{
    error_set(err, TUTTI_E_BUSY, "%s; try again later", why);
    if (err) {
        err->is_overloaded = true;
        err->retry_after_ms = retry_after_ms < UINT32_MAX ? (uint32_t)retry_after_ms : UINT32_MAX;
    }
    return TUTTI_E_BUSY;
}

/* Checks that the queue has room. A request that could not start in time is refused now, before any
 * work is done for it. */
static enum tutti_status check_queue(struct tutti_engine *e, const struct tutti_request *spec,
                                     const struct share *share, struct tutti_error *err)
{
    const struct forecast *f = &e->scheduler->forecast;
    int64_t n_free = e->n_slots - e->n_live_choices;
    char why[160];
    if (n_free <= 0 || e->n_free_slots == 0) {
        atomic_fetch_add(&e->stats.n_refused_full, 1);
        snprintf(why, sizeof why, "%lld answers are running or waiting, the limit is %d",
                 (long long)e->n_live_choices, e->n_slots);
        return refuse_busy(forecast_half_ms(f), why, err);
    }
    if (spec->owner != 0 && share->n_choices >= SHARE_OF_FREE * n_free) {
        atomic_fetch_add(&e->stats.n_refused_full, 1);
        snprintf(
            why, sizeof why,
            "%lld answers are running or waiting for you, the other %lld places in the queue are for others",
            (long long)share->n_choices, (long long)n_free);
        return refuse_busy(forecast_half_ms(f), why, err);
    }
    uint64_t limit_us = (uint64_t)spec->max_queue_ms * 1000;
    uint64_t wait_us = limit_us > 0 ? forecast_wait_us(f, share, spec->weight, spec->priority) : 0;
    uint64_t sure_us = limit_us - limit_us / 8; /* margin for the error of the prediction */
    if (wait_us <= sure_us)
        return TUTTI_OK;
    atomic_fetch_add(&e->stats.n_refused_early, 1);
    snprintf(why, sizeof why,
             "the request would wait about %.1f s in the queue, too close to its limit of %.1f s",
             (double)wait_us * 1e-6, (double)limit_us * 1e-6);
    return refuse_busy((wait_us - sure_us) / 1000 + 1, why, err);
}

/* Checks that the engine takes requests at all. */
static enum tutti_status check_open(const struct tutti_engine *e, struct tutti_error *err)
{
    if (model_is_lost(e->model)) {
        (void)model_check(e->model, err);
        if (err)
            err->status = TUTTI_E_CLOSED;
        return TUTTI_E_CLOSED;
    }
    return e->is_draining ? error_set(err, TUTTI_E_CLOSED, "the engine takes no new requests") : TUTTI_OK;
}

/* Under the lock: gives the request an id and a place in the queue. */
static enum tutti_status enqueue(struct tutti_engine *e, struct request *r, struct tutti_error *err)
{
    enum tutti_status st = check_open(e, err);
    if (st != TUTTI_OK)
        return st;
    r->share = share_take(&e->shares, r->spec.owner);
    if (!r->share)
        return error_set(err, TUTTI_E_MEMORY, "queueing a request: out of memory");
    st = check_queue(e, &r->spec, r->share, err);
    if (st != TUTTI_OK) {
        share_drop(&e->shares, r->share);
        return st;
    }
    r->own_bytes = &r->share->held_bytes;
    int32_t slot = e->free_slots[--e->n_free_slots];
    r->serial = ++e->serial;
    r->id = r->serial * (uint64_t)e->n_slots + (uint64_t)slot;
    r->seed = r->spec.sampling.has_seed ? r->spec.sampling.seed : mix64(e->seed ^ mix64(r->serial));
    e->slots[slot] = r;
    e->n_live_choices += r->spec.n_choices;
    r->share->n_choices += r->spec.n_choices;
    e->n_alive++;
    forecast_enter(&e->scheduler->forecast, r);
    atomic_fetch_add(&e->stats.n_requests, 1);
    return TUTTI_OK;
}

enum tutti_status tutti_engine_submit(tutti_engine *e, const struct tutti_request *spec,
                                      tutti_callback callback, void *user, uint64_t *request_id,
                                      struct tutti_error *err)
{
    if (!e || !spec || !callback)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "tutti_engine_submit: engine, request and callback must not be NULL");
    struct request *r = NULL;
    enum tutti_status st = request_new(&r, spec, e->model, &e->limits, err);
    if (st == TUTTI_OK) {
        r->callback = callback;
        r->user = user;
        pthread_mutex_lock(&e->lock);
        st = enqueue(e, r, err);
        if (st == TUTTI_OK && request_id)
            *request_id = r->id; /* before unlocking: then the request may be freed */
        pthread_mutex_unlock(&e->lock);
    }
    if (st != TUTTI_OK) {
        request_free(r);
        atomic_fetch_add(&e->stats.n_refused, 1);
        return st;
    }
    if (r->spec.grammar_kind != TUTTI_GRAMMAR_NONE)
        constraint_compile(e->constraints, r); /* calls prompts_add() afterwards */
    else
        prompts_add(e, r);
    return TUTTI_OK;
}

enum tutti_status tutti_engine_check_queue(tutti_engine *e, uint64_t owner, double weight, int priority,
                                           struct tutti_error *err)
{
    static const struct share STRANGER;
    const struct tutti_request spec = { .owner = owner,
                                        .weight = weight != 0 ? weight : 1,
                                        .priority = priority,
                                        .max_queue_ms = e->limits.max_queue_ms };
    enum tutti_status st = request_check_place(&spec, err);
    pthread_mutex_lock(&e->lock);
    const struct share *share = share_find(&e->shares, owner);
    if (st == TUTTI_OK)
        st = check_open(e, err);
    if (st == TUTTI_OK)
        st = check_queue(e, &spec, share ? share : &STRANGER, err);
    pthread_mutex_unlock(&e->lock);
    if (st != TUTTI_OK)
        atomic_fetch_add(&e->stats.n_refused, 1);
    return st;
}

void tutti_engine_charge(tutti_engine *e, uint64_t owner, int64_t n_tokens)
{
    pthread_mutex_lock(&e->lock);
    struct share *share = share_find(&e->shares, owner);
    if (share)
        atomic_fetch_add(&share->debt, n_tokens);
    pthread_mutex_unlock(&e->lock);
}

void tutti_engine_cancel(tutti_engine *e, uint64_t request_id)
{
    pthread_mutex_lock(&e->lock);
    struct request *r = e->slots[request_id % (uint64_t)e->n_slots];
    bool is_found = r && r->id == request_id;
    if (is_found)
        atomic_store(&r->is_cancelled, true);
    pthread_mutex_unlock(&e->lock);
    if (is_found) {
        atomic_store(&e->has_ends, true);
        bell_ring(&e->engine_bell);
    }
}

bool tutti_engine_progress(tutti_engine *e, uint64_t request_id, struct tutti_progress *out)
{
    pthread_mutex_lock(&e->lock);
    struct request *r = e->slots[request_id % (uint64_t)e->n_slots];
    bool is_found = r && r->id == request_id;
    if (is_found)
        *out = (struct tutti_progress){
            .phase = (enum tutti_phase)atomic_load_explicit(&r->progress.phase, memory_order_relaxed),
            .n_prompt_tokens = atomic_load_explicit(&r->progress.n_prompt, memory_order_relaxed),
            .n_cached_tokens = atomic_load_explicit(&r->progress.n_cached, memory_order_relaxed),
            .n_computed_tokens = atomic_load_explicit(&r->progress.n_computed, memory_order_relaxed),
        };
    pthread_mutex_unlock(&e->lock);
    return is_found;
}

bool engine_is_settled(const tutti_engine *e)
{
    return atomic_load(&e->is_settled);
}

void tutti_engine_device(tutti_engine *e, struct tutti_device *out)
{
    const struct backend *be = e->model->backend;
    const struct model *draft = model_of(e->options.draft);
    *out = (struct tutti_device){ 0 };
    if (be->ops->describe)
        be->ops->describe(be, out);
    if (be->ops->describe && draft && draft->backend->ops->describe) {
        struct tutti_device more;
        draft->backend->ops->describe(draft->backend, &more);
        out->busy_seconds += more.busy_seconds;
        out->loading_seconds += more.loading_seconds;
    }
}

enum tutti_status tutti_devices(struct tutti_device *out, int max, int *n, struct tutti_error *err)
{
    if (!out || !n || max < 1)
        return error_set(err, TUTTI_E_ARGUMENT, "tutti_devices: expected room for one device or more");
    return backend_devices(out, max, n, err);
}

void tutti_engine_stats(tutti_engine *e, struct tutti_stats *out)
{
    stats_read(&e->stats, out);
    pthread_mutex_lock(&e->lock);
    out->is_full = e->n_live_choices >= e->n_slots || e->n_free_slots == 0;
    pthread_mutex_unlock(&e->lock);
    out->waiting_tokens = forecast_waiting(&e->scheduler->forecast);
}
