#include "engine/schedule/scheduler.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static bool reserve_lookups(struct scheduler *s)
{
    size_t n_seqs = (size_t)s->options.max_seqs,
           n_places = (size_t)prompt_lookup_n_places(s->options.max_context);
    s->lookup_memory = calloc(n_seqs, PROMPT_LOOKUP_KINDS * n_places * sizeof *s->lookup_memory);
    for (size_t i = 0; s->lookup_memory && i < n_seqs; i++) {
        struct prompt_lookup *g = &s->lookups[i];
        g->mask = (uint32_t)n_places - 1;
        for (size_t kind = 0; kind < PROMPT_LOOKUP_KINDS; kind++)
            g->places[kind] = s->lookup_memory + (i * PROMPT_LOOKUP_KINDS + kind) * n_places;
    }
    return s->lookup_memory;
}

static bool scheduler_reserve(struct scheduler *s)
{
    size_t n_seqs = (size_t)s->options.max_seqs, n_rows = (size_t)s->options.max_batch_tokens;
    size_t n_ids = (size_t)s->options.max_context,
           n_pages = (size_t)scheduler_pages(s, s->options.max_context);
    s->seqs = calloc(n_seqs, sizeof *s->seqs);
    s->lookups = calloc(n_seqs, sizeof *s->lookups);
    s->entries = calloc(n_seqs, sizeof *s->entries);
    s->copies = calloc(n_seqs, sizeof *s->copies);
    s->proposals = calloc(2 * n_seqs, sizeof *s->proposals);
    s->page_tables = calloc(n_seqs, sizeof *s->page_tables);
    s->window_tables = calloc(n_seqs, sizeof *s->window_tables);
    s->token_ids = calloc(n_rows, sizeof *s->token_ids);
    s->token_sources = calloc(n_rows, sizeof *s->token_sources);
    s->positions = calloc(n_rows, sizeof *s->positions);
    s->row_seqs = calloc(n_rows, sizeof *s->row_seqs);
    s->output_rows = calloc(n_rows, sizeof *s->output_rows);
    s->rope_positions = calloc(n_rows, sizeof *s->rope_positions);
    s->block_positions = calloc(n_rows, sizeof *s->block_positions);
    s->slots = calloc(n_seqs, sizeof *s->slots);
    s->adapters = calloc(n_seqs, sizeof *s->adapters);
    s->prefix_lens = calloc(n_seqs, sizeof *s->prefix_lens);
    s->n_holders = calloc((size_t)s->options.n_pages, sizeof *s->n_holders);
    bool has_viewers = kv_pool_has_viewers(s->pool);
    if (has_viewers)
        s->n_viewers = calloc((size_t)s->options.n_pages, sizeof *s->n_viewers);
    s->ids_memory = calloc(n_seqs, n_ids * sizeof *s->ids_memory);
    s->page_table_memory = calloc(n_seqs, n_pages * sizeof *s->page_table_memory);
    s->window_table_memory = calloc(n_seqs, n_pages * sizeof *s->window_table_memory);
    if (!s->seqs || !s->lookups || !s->entries || !s->copies || !s->proposals || !s->page_tables ||
        !s->token_ids || !s->token_sources || !s->positions || !s->row_seqs || !s->output_rows ||
        !s->rope_positions || !s->block_positions || !s->prefix_lens || !s->slots || !s->adapters ||
        !s->n_holders || (has_viewers && !s->n_viewers) || !s->ids_memory || !s->page_table_memory ||
        !s->window_tables || !s->window_table_memory)
        return false;
    for (size_t i = 0; i < n_seqs; i++) {
        s->seqs[i].ids = s->ids_memory + i * n_ids;
        s->seqs[i].page_table = s->page_table_memory + i * n_pages;
        s->seqs[i].window_table = s->window_table_memory + i * n_pages;
    }
    return s->options.max_lookup_tokens == 0 || reserve_lookups(s);
}

enum tutti_status scheduler_new(struct scheduler **out, const struct scheduler_options *options,
                                struct tutti_error *err)
{
    assert(options->n_pages >= kv_pages_of(options->max_context, options->page_tokens));
    assert(!options->desc || options->max_batch_tokens >= options->max_context + options->max_seqs);
    struct scheduler *s = calloc(1, sizeof *s);
    if (s) {
        s->options = *options;
        s->page_tokens = options->page_tokens;
        s->pace.max_slowdown = options->max_slowdown;
        speculation_init(&s->speculation, options->draft_share, options->forces_drafts);
    }
    enum tutti_status st = s ? TUTTI_OK : TUTTI_E_MEMORY;
    if (st == TUTTI_OK)
        st = request_queue_init(&s->queue, options->max_requests, err);
    if (st == TUTTI_OK)
        st = kv_pool_new(&s->pool,
                         &(struct kv_pool_options){ .n_pages = options->n_pages,
                                                    .page_tokens = options->page_tokens,
                                                    .n_slots = options->n_slots,
                                                    .window = options->window,
                                                    .hash_seed = options->hash_seed },
                         err);
    if (!s || (st == TUTTI_OK && !scheduler_reserve(s)))
        st = error_set(err, TUTTI_E_MEMORY, "%d sequences of %d tokens: out of memory", options->max_seqs,
                       options->max_context);
    if (st != TUTTI_OK) {
        scheduler_free(s);
        return st;
    }
    *out = s;
    return TUTTI_OK;
}

void scheduler_free(struct scheduler *s)
{
    if (!s)
        return;
    kv_pool_free(s->pool);
    request_queue_clear(&s->queue);
    free(s->lookup_memory);
    free(s->window_table_memory);
    free(s->page_table_memory);
    free(s->ids_memory);
    free(s->n_viewers);
    free(s->n_holders);
    free(s->output_rows);
    free(s->rope_positions);
    free(s->block_positions);
    free(s->adapters);
    free(s->slots);
    free(s->prefix_lens);
    free(s->row_seqs);
    free(s->positions);
    free(s->token_sources);
    free(s->token_ids);
    free((void *)s->window_tables);
    free(s->page_tables);
    free(s->proposals);
    free(s->copies);
    free(s->entries);
    free(s->lookups);
    free(s->seqs);
    free(s);
}

/* ---- the queue ---- */

void scheduler_add(struct scheduler *s, struct request *r)
{
    request_queue_add(&s->queue, r);
}

void scheduler_remove(struct scheduler *s, struct request *r)
{
    request_queue_remove(&s->queue, r);
    s->n_begun += r->n_started == 0;
    forecast_leave(&s->forecast, r);
}

/* ---- audit ---- */

/* True: between two steps, state, rank, tokens and pages agree. Only a sequence that waits for a sibling
 * stays COMPUTED. */
static bool is_consistent(const struct scheduler *s, const struct sequence *seq)
{
    int n = sequence_n_pending(seq);
    if (seq->state != SEQUENCE_FREE &&
        (seq->rank < 0 || seq->rank + request_n_slots(seq->request) > seq->request->share->n_slots))
        return false;
    if (!sequence_is_running(seq))
        return seq->n_pages == 0;
    if (seq->n_ids > seq->max_ids || seq->source >= 0 || seq->n_pages < scheduler_pages(s, seq->n_computed))
        return false;
    if (seq->state == SEQUENCE_RESTORING || seq->state == SEQUENCE_PREFILL)
        return n > 1;
    if (seq->state == SEQUENCE_DECODE || seq->state == SEQUENCE_MASK_WAIT)
        return n == 1;
    const struct sequence *other = seq->sibling;
    while (other != seq && other->state == SEQUENCE_COMPUTED)
        other = other->sibling;
    return n == 0 && other != seq;
}

const char *scheduler_audit(struct scheduler *s)
{
    static _Thread_local char text[160];
    int n_running = 0, n_preempted = 0, n_queued = 0, n_restoring = 0, n_taken = 0;
    memset(s->n_holders, 0, (size_t)s->options.n_pages * sizeof *s->n_holders);
    if (s->n_viewers)
        memset(s->n_viewers, 0, (size_t)s->options.n_pages * sizeof *s->n_viewers);
    for (int i = 0; i < s->options.max_seqs; i++) {
        const struct sequence *seq = &s->seqs[i];
        n_running += sequence_is_running(seq);
        n_preempted += seq->state == SEQUENCE_PREEMPTED;
        n_restoring += seq->state == SEQUENCE_RESTORING;
        n_taken += seq->state != SEQUENCE_FREE;
        if (!is_consistent(s, seq)) {
            snprintf(text, sizeof text, "sequence %d: state %d, rank %d, %d pages, %d of %d tokens computed",
                     i, (int)seq->state, seq->rank, seq->n_pages, seq->n_computed, seq->n_ids);
            return text;
        }
        for (int k = 0; k < seq->n_pages; k++) {
            int32_t page_id = seq->page_table[k];
            if (page_id < 0 || page_id >= s->options.n_pages) {
                snprintf(text, sizeof text, "sequence %d: page %d is %d", i, k, page_id);
                return text;
            }
            s->n_holders[page_id]++;
            if (s->n_viewers)
                s->n_viewers[page_id] += k >= seq->n_passed && kv_pool_slot(s->pool, page_id) >= 0;
        }
    }
    for (const struct request *r = request_queue_first(&s->queue); r; r = request_queue_next(r))
        n_queued++;
    if (n_running != s->n_running || n_preempted != s->n_preempted || n_queued != s->queue.n ||
        n_restoring != s->n_restoring || n_taken != s->n_taken) {
        snprintf(
            text, sizeof text,
            "%d running, %d preempted, %d queued, %d restoring, %d slots taken; counted %d, %d, %d, %d, %d",
            s->n_running, s->n_preempted, s->queue.n, s->n_restoring, s->n_taken, n_running, n_preempted,
            n_queued, n_restoring, n_taken);
        return text;
    }
    return kv_pool_audit(s->pool, s->n_holders, s->n_viewers);
}
