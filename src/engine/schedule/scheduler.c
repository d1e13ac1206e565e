#include "engine/schedule/scheduler.h"

#include "engine/schedule/plan_step.h"
#include "engine/schedule/spiller.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Most prompts are shorter and are prefilled in one turn: alternating between two would only delay
 * the first. */
enum { READ_TURN = 1024 };

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

static bool reserve(struct scheduler *s)
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
    s->token_ids = calloc(n_rows, sizeof *s->token_ids);
    s->positions = calloc(n_rows, sizeof *s->positions);
    s->row_seqs = calloc(n_rows, sizeof *s->row_seqs);
    s->output_rows = calloc(n_rows, sizeof *s->output_rows);
    s->rope_positions = calloc(n_rows, sizeof *s->rope_positions);
    s->block_positions = calloc(n_rows, sizeof *s->block_positions);
    s->adapters = calloc(n_seqs, sizeof *s->adapters);
    s->prefix_lens = calloc(n_seqs, sizeof *s->prefix_lens);
    s->n_holders = calloc((size_t)s->options.n_pages, sizeof *s->n_holders);
    s->ids_memory = calloc(n_seqs, n_ids * sizeof *s->ids_memory);
    s->page_table_memory = calloc(n_seqs, n_pages * sizeof *s->page_table_memory);
    if (!s->seqs || !s->lookups || !s->entries || !s->copies || !s->proposals || !s->page_tables ||
        !s->token_ids || !s->positions || !s->row_seqs || !s->output_rows || !s->rope_positions ||
        !s->block_positions || !s->prefix_lens || !s->adapters || !s->n_holders || !s->ids_memory ||
        !s->page_table_memory)
        return false;
    for (size_t i = 0; i < n_seqs; i++) {
        s->seqs[i].ids = s->ids_memory + i * n_ids;
        s->seqs[i].page_table = s->page_table_memory + i * n_pages;
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
    enum tutti_status st = TUTTI_OK;
    if (!s || !reserve(s))
        st = error_set(err, TUTTI_E_MEMORY, "%d sequences of %d tokens: out of memory", options->max_seqs,
                       options->max_context);
    if (st == TUTTI_OK)
        st = request_queue_init(&s->queue, options->max_requests, err);
    if (st == TUTTI_OK)
        st = kv_pool_new(&s->pool, options->n_pages, options->page_tokens, options->hash_seed, err);
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
    free(s->page_table_memory);
    free(s->ids_memory);
    free(s->n_holders);
    free(s->output_rows);
    free(s->rope_positions);
    free(s->block_positions);
    free(s->adapters);
    free(s->prefix_lens);
    free(s->row_seqs);
    free(s->positions);
    free(s->token_ids);
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
    forecast_leave(&s->forecast, r);
}

/* ---- sequences ---- */

static bool uses_cache(const struct scheduler *s, const struct sequence *seq)
{
    return !s->options.no_prefix_cache && !s->options.desc && !seq->request->spec.no_kv_cache;
}

static void drop_pages(struct scheduler *s, struct sequence *seq)
{
    if (s->spiller)
        spiller_end(s->spiller, seq);
    kv_pool_drop(s->pool, seq->page_table, seq->n_pages);
    seq->n_pages = seq->n_computed = seq->n_published = 0;
}

static void preempt_one(struct scheduler *s, struct sequence *seq)
{
    drop_pages(s, seq);
    seq->state = SEQUENCE_PREEMPTED;
    seq->n_planned = seq->n_drafts = 0;
    s->n_running--;
    s->n_preempted++;
    s->n_preemptions++;
}

/* Preempts a sequence, with all beams of its search: they share pages and wait for each other, so
 * one of them would free little and stop all. */
static void preempt(struct scheduler *s, struct sequence *seq)
{
    struct beam_search *search = seq->request->beams;
    for (int i = 0; search && i < search->n_beams; i++) {
        search->beams[i].has_candidates = false; /* they are computed again */
        if (search->beams[i].seq->state == SEQUENCE_RUNNING)
            preempt_one(s, search->beams[i].seq);
    }
    if (!search)
        preempt_one(s, seq);
}

void scheduler_preempt_last(struct scheduler *s)
{
    struct sequence *last = NULL;
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->state == SEQUENCE_RUNNING && (!last || seq->order > last->order))
            last = seq;
    }
    assert(last); /* a sequence that lacks pages is running */
    preempt(s, last);
}

static void end_one(struct scheduler *s, struct sequence *seq)
{
    drop_pages(s, seq);
    if (seq->state == SEQUENCE_RUNNING)
        s->n_running--;
    else if (seq->state == SEQUENCE_PREEMPTED)
        s->n_preempted--;
    seq->state = SEQUENCE_FREE;
    seq->request = NULL;
    seq->n_planned = seq->n_drafts = 0;
}

void scheduler_end(struct scheduler *s, struct sequence *seq)
{
    struct beam_search *search = seq->request->beams;
    for (int i = 0; search && i < search->n_beams; i++)
        end_one(s, search->beams[i].seq);
    if (!search)
        end_one(s, seq);
}

static struct sequence *free_slot(struct scheduler *s)
{
    for (int i = 0; i < s->options.max_seqs; i++)
        if (s->seqs[i].state == SEQUENCE_FREE)
            return &s->seqs[i];
    return NULL;
}

static int32_t previous_page(const struct sequence *seq, int page)
{
    return page > 0 ? seq->page_table[page - 1] : KV_NO_PAGE;
}

/* Finds free slots for the beams of a request, all or none. */
static bool find_slots(struct scheduler *s, struct beam_search *search)
{
    int n = 0;
    for (int i = 0; i < s->options.max_seqs && n < search->n_beams; i++)
        if (s->seqs[i].state == SEQUENCE_FREE)
            search->beams[n++].seq = &s->seqs[i];
    return n == search->n_beams;
}

/* The first preempted sequence by order; NULL: none. */
static struct sequence *first_preempted(struct scheduler *s)
{
    struct sequence *first = NULL;
    for (int i = 0; i < s->options.max_seqs && s->n_preempted > 0; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->state == SEQUENCE_PREEMPTED && (!first || seq->order < first->order))
            first = seq;
    }
    return first;
}

/* Number of tokens that may come from the prefix cache. At least one remains to be computed,
 * because its logits are needed. */
static int n_cacheable(const struct sequence *seq)
{
    const struct request *r = seq->request;
    int n = request_wants_rows(r) && r->n_seen < r->n_prompt - 1 ? r->n_seen : seq->n_ids - 1;
    return n < seq->n_ids - 1 ? n : seq->n_ids - 1;
}

/* Takes the pages of n_ids tokens, including the cached prefix. In addition each running sequence
 * must be able to grow by a page, or the new one would soon be preempted. False: not now. */
static bool take_prompt_pages(struct scheduler *s, struct sequence *seq)
{
    int n_need = scheduler_pages(s, seq->n_ids), n_matched = 0;
    if (uses_cache(s, seq))
        n_matched = kv_pool_match(s->pool, sequence_chain(seq), seq->ids, n_cacheable(seq), seq->page_table);
    struct kv_counts counts = kv_pool_counts(s->pool);
    if (n_need - n_matched + s->n_running > counts.n_free + counts.n_cached ||
        !kv_pool_take(s->pool, n_need - n_matched, seq->page_table + n_matched)) {
        kv_pool_drop(s->pool, seq->page_table, n_matched);
        return false;
    }
    seq->n_pages = n_need;
    seq->n_published = n_matched;
    seq->n_computed = n_matched * s->page_tokens;
    if (s->spiller && uses_cache(s, seq))
        spiller_begin(s->spiller, seq, n_matched, n_cacheable(seq) / s->page_tokens);
    return true;
}

/* Priority, then the 49 bits of the serial. */
static uint64_t order_of(const struct request *r)
{
    uint64_t class = (uint64_t)(r->spec.priority - TUTTI_PRIORITY_FIRST);
    return class << 56 | (r->serial * LIMIT_CHOICES + (uint64_t)r->n_started);
}

static void set_up(struct scheduler *s, struct sequence *seq, struct request *r)
{
    int room = s->options.max_context - r->n_prompt;
    int n_answer = r->spec.max_tokens > 0 && r->spec.max_tokens < room ? r->spec.max_tokens : room;
    seq->request = r;
    seq->choice = r->n_started;
    seq->beam = 0;
    seq->order = order_of(r);
    memcpy(seq->ids, r->prompt, (size_t)r->n_prompt * sizeof *seq->ids);
    seq->n_ids = seq->n_prompt = r->n_prompt;
    if (s->options.desc)
        seq->prefix = model_find_prefix(s->options.desc, r->prompt, r->n_prompt);
    seq->max_ids = r->n_prompt + (r->spec.no_answer ? 0 : n_answer);
    seq->n_pages = seq->n_computed = seq->n_published = seq->n_cached = seq->n_planned = 0;
    seq->queue_us = seq->ttft_us = seq->last_token_us = 0;
    seq->is_waiting = false;
    seq->n_drafts = 0;
    seq->n_accepted = seq->n_rejected = 0;
    prompt_lookup_reset(&s->lookups[seq - s->seqs]);
}

/* Reserves slots for the beams that branch off when the first beam has prefilled the prompt. */
static void reserve_beams(struct scheduler *s, struct request *r)
{
    for (int i = 1; i < r->beams->n_beams; i++) {
        struct sequence *seq = r->beams->beams[i].seq;
        set_up(s, seq, r);
        seq->state = SEQUENCE_RESERVED;
        seq->order += (uint64_t)i;
        seq->beam = i;
    }
}

static void let_in(struct scheduler *s, struct sequence *seq)
{
    seq->state = SEQUENCE_RUNNING;
    seq->is_fresh = true;
    seq->turn = ++s->n_turns;
    seq->n_turn = 0;
    seq->turn_us = s->now_us;
    s->n_running++;
}

/* Starts a request from the queue: gives it slots and pages. False: not now. */
static bool begin_request(struct scheduler *s, struct request *r, uint64_t now_us)
{
    if (r->beams && !find_slots(s, r->beams))
        return false;
    struct sequence *seq = r->beams ? r->beams->beams[0].seq : free_slot(s);
    if (!seq)
        return false;
    set_up(s, seq, r);
    if (!take_prompt_pages(s, seq))
        return false;
    if (r->beams)
        reserve_beams(s, r);
    seq->n_cached = seq->n_computed;
    seq->queue_us = now_us > r->submit_us ? now_us - r->submit_us : 1; /* 0 means: has not started */
    let_in(s, seq);
    if (r->n_started == 0)
        forecast_begin(&s->forecast, r);
    int n_known = seq->is_returning ? seq->n_wanted * s->page_tokens : seq->n_computed;
    request_queue_start(&s->queue, r, seq->n_ids - n_known, now_us);
    r->n_started = request_ends_as_one(r) ? r->spec.n_choices : r->n_started + 1;
    r->is_reading = true;
    return true;
}

/* Prefill rows of a sequence that come before those of a request that starts now. A prompt whose
 * turn ends before its own end delays no other. */
static int64_t rows_before_others(const struct sequence *seq)
{
    int n = sequence_n_pending(seq);
    if (n == 1 || seq->is_returning)
        return 0;
    bool ends_in_turn = n <= READ_TURN * seq->request->spec.weight - seq->n_turn;
    return seq->is_fresh || (ends_in_turn && !seq->request->spec.no_kv_cache) ? n : 0;
}

/* True: if the request started now, the next step would have rows for it. */
static bool has_rows_next(const struct scheduler *s, const struct request *r)
{
    int64_t n_before = 0;
    int n_decoding = 0;
    for (int i = 0; i < s->options.max_seqs; i++) {
        const struct sequence *seq = &s->seqs[i];
        if (seq->state != SEQUENCE_RUNNING)
            continue;
        n_decoding += sequence_n_pending(seq) == 1;
        n_before += seq->request->spec.priority <= r->spec.priority ? rows_before_others(seq) : 0;
    }
    return n_before < s->options.max_batch_tokens && n_before < pace_usual_rows(&s->pace, n_decoding);
}

/* Starts requests in queue order until one does not fit: none overtakes it. */
static void admit(struct scheduler *s, uint64_t now_us)
{
    for (struct sequence *seq; (seq = first_preempted(s));) {
        if (!take_prompt_pages(s, seq))
            return;
        s->n_preempted--;
        let_in(s, seq);
    }
    for (struct request *r; (r = request_queue_best(&s->queue, now_us));)
        if (!has_rows_next(s, r) || !begin_request(s, r, now_us))
            return;
}

void scheduler_append(struct scheduler *s, struct sequence *seq, int32_t token)
{
    seq->ids[seq->n_ids++] = token;
    if (seq->request->spec.no_kv_cache)
        drop_pages(s, seq); /* everything is computed again */
}

/* Makes to a copy of from, except for its position in the order. */
static void copy_sequence(struct scheduler *s, struct sequence *to, const struct sequence *from)
{
    drop_pages(s, to);
    memcpy(to->ids, from->ids, (size_t)from->n_ids * sizeof *to->ids);
    memcpy(to->page_table, from->page_table, (size_t)from->n_pages * sizeof *to->page_table);
    kv_pool_share(s->pool, to->page_table, from->n_pages);
    to->n_ids = from->n_ids;
    to->n_pages = from->n_pages;
    to->n_computed = from->n_computed;
    to->n_published = from->n_published;
    to->n_cached = from->n_cached;
    to->queue_us = from->queue_us;
    to->ttft_us = from->ttft_us;
    to->last_token_us = from->last_token_us;
    if (to->state == SEQUENCE_RESERVED) {
        to->state = SEQUENCE_RUNNING;
        s->n_running++;
    }
}

void scheduler_branch(struct scheduler *s, struct request *r)
{
    struct beam_search *b = r->beams;
    int n_new = b->beams[0].seq->n_ids - r->n_prompt;
    for (int i = 0; i < b->n_beams; i++) /* the first that continues a beam keeps its slot */
        b->reordered[i].seq = NULL;
    for (int i = 0; i < b->n_next; i++) {
        struct beam *parent = &b->beams[b->next[i].parent];
        if (!parent->seq)
            continue;
        b->reordered[i] = *parent;
        parent->seq = NULL;
    }
    for (int i = 0, spare = 0; i < b->n_next; i++) { /* the others take slots that no beam continues */
        int first = 0;
        if (b->reordered[i].seq)
            continue;
        while (!b->beams[spare].seq)
            spare++;
        while (b->next[first].parent != b->next[i].parent)
            first++;
        b->reordered[i] = b->beams[spare];
        b->beams[spare].seq = NULL;
        copy_sequence(s, b->reordered[i].seq, b->reordered[first].seq);
        memcpy(b->reordered[i].logprobs, b->reordered[first].logprobs, (size_t)n_new * sizeof(float));
    }
    for (int i = 0; i < b->n_next; i++) {
        struct beam *beam = &b->reordered[i];
        beam->score = b->next[i].score;
        beam->has_candidates = false;
        beam->logprobs[n_new] = b->next[i].logprob;
        beam->seq->beam = i;
    }
    struct beam *old = b->beams;
    b->beams = b->reordered;
    b->reordered = old;
    b->n_live = b->n_next;
    for (int i = 0; i < b->n_next; i++)
        scheduler_append(s, b->beams[i].seq, b->next[i].token);
}

struct sequence *scheduler_fork(struct scheduler *s, const struct sequence *from)
{
    struct request *r = from->request;
    struct sequence *seq = r->n_started < r->spec.n_choices ? free_slot(s) : NULL;
    if (!seq)
        return NULL;
    set_up(s, seq, r);
    memcpy(seq->page_table, from->page_table, (size_t)from->n_pages * sizeof *seq->page_table);
    kv_pool_share(s->pool, seq->page_table, from->n_pages);
    seq->n_pages = from->n_pages;
    seq->n_computed = from->n_computed;
    seq->n_published = from->n_published;
    seq->n_cached = from->n_cached;
    seq->queue_us = from->queue_us;
    let_in(s, seq);
    r->n_started++;
    return seq;
}

void scheduler_end_reading(struct scheduler *s, struct sequence *seq)
{
    struct request *r = seq->request;
    r->is_reading = false;
    if (r->n_started < r->spec.n_choices && !r->lane)
        request_queue_add(&s->queue, r);
}

/* ---- steps ---- */

bool scheduler_plan(struct scheduler *s, uint64_t now_us)
{
    s->now_us = now_us;
    forecast_look(&s->forecast, now_us);
    admit(s, now_us);
    int n_free = s->options.max_seqs - s->n_running - s->n_preempted;
    forecast_close(&s->forecast, s->queue.weights, s->n_preempted > 0 ? 0 : n_free, now_us);
    plan_step(s);
    return s->step.n_rows > 0;
}

void scheduler_adopt_pages(struct scheduler *s, struct sequence *seq)
{
    if (!uses_cache(s, seq) || seq->n_computed % s->page_tokens != 0)
        return;
    while (seq->n_computed + s->page_tokens <= n_cacheable(seq)) {
        int page = seq->n_computed / s->page_tokens;
        int32_t known = kv_pool_take_next(s->pool, sequence_chain(seq), previous_page(seq, page),
                                          seq->ids + seq->n_computed);
        if (known < 0)
            return;
        kv_pool_drop(s->pool, &seq->page_table[page], 1);
        seq->page_table[page] = known;
        seq->n_published = page + 1;
        seq->n_computed += s->page_tokens;
        if (seq->n_ids == seq->n_prompt)
            seq->n_cached += s->page_tokens;
    }
}

void scheduler_drop_drafts(struct scheduler *s, struct sequence *seq)
{
    int n_keep = scheduler_pages(s, seq->n_ids);
    seq->n_drafts = 0;
    if (seq->n_pages <= n_keep)
        return;
    kv_pool_drop(s->pool, seq->page_table + n_keep, seq->n_pages - n_keep);
    seq->n_pages = n_keep;
}

static void publish_pages(struct scheduler *s, struct sequence *seq)
{
    int n_full = uses_cache(s, seq) ? seq->n_computed / s->page_tokens : 0;
    for (int page = seq->n_published; page < n_full; page++) {
        seq->page_table[page] = kv_pool_publish(s->pool, seq->page_table[page], sequence_chain(seq),
                                                previous_page(seq, page), seq->ids + page * s->page_tokens);
        seq->n_published = page + 1;
    }
}

/* A prompt whose turn is over goes to the end of the round. */
static void end_turn(struct scheduler *s, struct sequence *seq, int n_read)
{
    seq->n_turn += n_read;
    if (seq->n_turn < READ_TURN * seq->request->spec.weight)
        return;
    seq->turn = ++s->n_turns;
    seq->n_turn = 0;
    seq->turn_us = s->now_us;
}

void scheduler_advance(struct scheduler *s)
{
    for (int i = 0; i < s->n_entries; i++) {
        struct sequence *seq = s->entries[i].seq;
        int n_rows = seq->n_planned - seq->n_drafts;
        seq->n_computed += n_rows;
        seq->n_planned = 0;
        seq->is_fresh = false;
        if (s->entries[i].output >= 0)
            request_queue_charge(seq->request, OUTPUT_WORK);
        end_turn(s, seq, n_rows);
        publish_pages(s, seq);
    }
}

void scheduler_take_back(struct scheduler *s, struct sequence *seq)
{
    assert(seq->n_computed % s->page_tokens == 0 && seq->n_computed + s->page_tokens <= n_cacheable(seq));
    seq->n_computed += s->page_tokens;
    if (seq->n_ids == seq->n_prompt)
        seq->n_cached += s->page_tokens;
    publish_pages(s, seq);
}

void scheduler_accept(struct scheduler *s, struct sequence *seq)
{
    seq->n_computed++;
    request_queue_charge(seq->request, OUTPUT_WORK);
    publish_pages(s, seq);
}

/* ---- audit ---- */

const char *scheduler_audit(struct scheduler *s)
{
    static _Thread_local char text[160];
    int n_running = 0, n_preempted = 0, n_queued = 0, n_returning = 0;
    memset(s->n_holders, 0, (size_t)s->options.n_pages * sizeof *s->n_holders);
    for (int i = 0; i < s->options.max_seqs; i++) {
        const struct sequence *seq = &s->seqs[i];
        n_running += seq->state == SEQUENCE_RUNNING;
        n_preempted += seq->state == SEQUENCE_PREEMPTED;
        n_returning += seq->state == SEQUENCE_RUNNING && seq->is_returning;
        bool is_running = seq->state == SEQUENCE_RUNNING;
        if (seq->n_pages < scheduler_pages(s, seq->n_computed) || (!is_running && seq->n_pages > 0) ||
            (is_running &&
             (seq->n_ids > seq->max_ids || seq->n_computed >= seq->n_ids + !!seq->request->beams))) {
            snprintf(text, sizeof text, "sequence %d: state %d, %d pages, %d of %d tokens computed", i,
                     (int)seq->state, seq->n_pages, seq->n_computed, seq->n_ids);
            return text;
        }
        for (int k = 0; k < seq->n_pages; k++) {
            int32_t page_id = seq->page_table[k];
            if (page_id < 0 || page_id >= s->options.n_pages) {
                snprintf(text, sizeof text, "sequence %d: page %d is %d", i, k, page_id);
                return text;
            }
            s->n_holders[page_id]++;
        }
    }
    for (const struct request *r = request_queue_first(&s->queue); r; r = request_queue_next(r))
        n_queued++;
    if (n_running != s->n_running || n_preempted != s->n_preempted || n_queued != s->queue.n ||
        n_returning != s->n_returning) {
        snprintf(text, sizeof text,
                 "%d running, %d preempted, %d queued, %d returning; counted %d, %d, %d, %d", s->n_running,
                 s->n_preempted, s->queue.n, s->n_returning, n_running, n_preempted, n_queued, n_returning);
        return text;
    }
    return kv_pool_audit(s->pool, s->n_holders);
}
