/* The scheduler under random use, with a virtual clock: owners, tenants, adapters, priorities and deadlines, choices, beams,
 * drafts, steps that are planned ahead, late token masks, draws that the device leaves, and cancels at any moment. Each position
 * of a page holds a hash of all tokens up to it, so that a page that is lost, lent twice or not copied shows at once. In
 * the end nothing is held or counted any more. */
#include "base/rng.h"
#include "engine/schedule/lifecycle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    PAGE = 16,
    MAX_CONTEXT = 96,
    N_PAGES = 26,
    WINDOW = 24,  /* positions that a row attends to in layers with a window */
    N_SLOTS = 16, /* of these layers: three beams, and the rows of a step */
    MAX_SEQS = 8,
    MAX_ROWS = 48,
    MAX_LIVE = 24,
    N_OWNERS = 5,
    MAX_DRAFTS = 3,
    N_CALLS = 10000,
    QUEUED = SEQUENCE_STATES, /* a cancelled request was in the queue */
    IN_FLIGHT,                /* a step with it was submitted */
    N_MOMENTS,
};

/* A row of the submitted step. */
struct written {
    struct sequence *seq;
    int pos, source;
    int32_t token, page, page_before, slot;
    uint64_t salt;
};

struct crowd {
    struct scheduler *s;
    struct share shares[N_OWNERS];
    struct request *live[MAX_LIVE];
    uint64_t content[N_PAGES][PAGE], windows[N_PAGES][PAGE]; /* windows: by slot */
    struct written rows[MAX_ROWS];
    int n_rows;
    uint64_t random, serial, now_us;
    int n_cancelled[N_MOMENTS], n_late, n_redrawn, n_late_masks, n_copied, n_ahead, n_accepted;
};

static uint64_t pick(struct crowd *c, uint64_t n)
{
    c->random = mix64(c->random + 1);
    return c->random % n;
}

static uint64_t salt_of(const struct request *r)
{
    return mix64(r->spec.tenant * 16 + (uint64_t)(r->adapter + 1));
}

static uint64_t hash_of(uint64_t before, int32_t token)
{
    return mix64(before ^ (uint32_t)token);
}

/* ---- requests ---- */

static void add_request(struct crowd *c)
{
    int place = 0;
    while (place < MAX_LIVE && c->live[place])
        place++;
    if (place == MAX_LIVE)
        return;
    bool has_beams = pick(c, 4) == 0;
    int n_choices = has_beams ? 2 : pick(c, 3) == 0 ? 1 + (int)pick(c, 4) : 1;
    int n_prompt = 1 + (int)pick(c, 50);
    struct request *r = calloc(1, sizeof *r + (size_t)n_choices * sizeof(struct choice));
    int32_t *prompt = calloc(MAX_CONTEXT, sizeof *prompt);
    assert_true(r && prompt);
    uint64_t family = pick(c, 3);
    for (int i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)(mix64(family << 32 | (uint64_t)i) % 3);
    r->serial = ++c->serial;
    r->adapter = (int)pick(c, 3) - 1;
    r->prompt = prompt;
    r->n_prompt = n_prompt;
    r->submit_us = c->now_us;
    r->deadline_us = pick(c, 8) == 0 ? c->now_us + pick(c, 4000000) : 0;
    r->share = &c->shares[pick(c, N_OWNERS)];
    r->spec = (struct tutti_request){ .n_choices = n_choices,
                                      .max_tokens = 1 + (int)pick(c, 60),
                                      .tenant = pick(c, 2),
                                      .priority = (int)pick(c, 3) - 1,
                                      .weight = 1,
                                      .no_kv_cache = !has_beams && pick(c, 10) == 0 };
    r->n_unfinished = n_choices;
    if (has_beams)
        assert_int_equal(beam_search_new(&r->beams, 2 + (int)pick(c, 2), 4, r->spec.max_tokens, NULL),
                         TUTTI_OK);
    c->live[place] = r;
    forecast_enter(&c->s->forecast, r);
    scheduler_add(c->s, r);
}

/* n choices of a request have ended. */
static void count_ended(struct crowd *c, struct request *r, int n)
{
    r->n_unfinished -= n;
    assert_true(r->n_unfinished >= 0);
    if (r->n_unfinished > 0)
        return;
    assert_null(r->lane);
    for (int i = 0; i < MAX_SEQS; i++)
        assert_ptr_not_equal(c->s->seqs[i].request, r);
    for (int i = 0; i < MAX_LIVE; i++)
        if (c->live[i] == r)
            c->live[i] = NULL;
    beam_search_free(r->beams);
    free((void *)(uintptr_t)r->prompt);
    free(r);
}

static void end_sequence(struct crowd *c, struct sequence *seq)
{
    struct request *r = seq->request;
    scheduler_finish(c->s, seq);
    count_ended(c, r, request_ends_as_one(r) ? r->spec.n_choices : 1);
}

static void end_unstarted(struct crowd *c, struct request *r)
{
    int n = r->spec.n_choices - r->n_started;
    scheduler_remove(c->s, r);
    r->n_started = r->spec.n_choices;
    count_ended(c, r, n);
}

static bool is_in_flight(const struct crowd *c, const struct sequence *seq)
{
    bool is_found = false;
    for (int i = 0; c->s->is_in_flight && i < c->s->n_entries; i++)
        is_found = is_found || c->s->entries[i].seq == seq;
    return is_found;
}

static void cancel(struct crowd *c, struct request *r)
{
    struct sequence *own[MAX_SEQS];
    int n_own = 0;
    for (int i = 0; i < MAX_SEQS; i++) {
        struct sequence *seq = &c->s->seqs[i];
        if (seq->request != r)
            continue;
        own[n_own++] = seq;
        c->n_cancelled[seq->state]++;
        c->n_cancelled[IN_FLIGHT] += is_in_flight(c, seq);
    }
    c->n_cancelled[QUEUED] += r->lane != NULL;
    if (r->n_started < r->spec.n_choices)
        end_unstarted(c, r); /* frees it if none had started */
    for (int i = 0; i < n_own; i++)
        if (own[i]->state != SEQUENCE_FREE) /* else it ended with its sibling */
            end_sequence(c, own[i]);
}

/* Any request, or one with a sequence in a random state: some states are rare. */
static void cancel_some(struct crowd *c)
{
    struct request *r = c->live[pick(c, MAX_LIVE)];
    uint64_t rare = pick(c, 2 * SEQUENCE_STATES);
    for (int i = 0; i < MAX_SEQS && rare != SEQUENCE_FREE; i++)
        if (c->s->seqs[i].state == rare)
            r = c->s->seqs[i].request;
    if (r)
        cancel(c, r);
}

static void time_out(void *user, struct request *r)
{
    struct crowd *c = user;
    assert_int_equal(r->n_started, 0);
    c->n_late++;
    end_unstarted(c, r);
}

/* ---- pages ---- */

/* Where a step writes and reads a position in layers with a window. */
static int32_t slot_of(const struct crowd *c, const struct sequence *seq, int pos)
{
    int32_t slot = c->s->options.window > 0 ? seq->window_table[pos / PAGE]
                                            : kv_pool_slot(c->s->pool, seq->page_table[pos / PAGE]);
    assert_in_range(slot, 0, c->s->options.n_slots - 1);
    return slot;
}

/* What rows from position n on read of the positions before it. */
static void check_reads(const struct crowd *c, const struct sequence *seq, int n)
{
    uint64_t hash = salt_of(seq->request);
    for (int pos = 0; pos < n; pos++) {
        hash = hash_of(hash, seq->ids[pos]);
        if (c->content[seq->page_table[pos / PAGE]][pos % PAGE] != hash)
            fail_msg("position %d of %d has other keys and values", pos, n);
        if (pos > n - WINDOW && c->windows[slot_of(c, seq, pos)][pos % PAGE] != hash)
            fail_msg("position %d of %d has other keys and values in layers with a window", pos, n);
    }
}

static bool submit(struct crowd *c)
{
    struct scheduler *s = c->s;
    request_queue_drop_late(&s->queue, c->now_us, time_out, c);
    if (!scheduler_plan(s, c->now_us))
        return false;
    c->n_copied += s->n_copies;
    for (int i = 0; i < s->n_copies; i++) {
        const struct page_copy *copy = &s->copies[i];
        memcpy(c->content[copy->dst], c->content[copy->src], sizeof c->content[0]);
        memcpy(c->windows[copy->window_dst], c->windows[copy->window_src], sizeof c->windows[0]);
    }
    c->n_rows = s->step.n_rows;
    for (int i = 0, row = 0; i < s->n_entries; i++) {
        struct sequence *seq = s->entries[i].seq;
        check_reads(c, seq, s->step.positions[row]);
        for (int k = 0; k < s->entries[i].n_rows; k++, row++) {
            int pos = s->step.positions[row];
            assert_false(kv_pool_is_shared(s->pool, seq->page_table[pos / PAGE]));
            c->rows[row] = (struct written){ .seq = seq,
                                             .pos = pos,
                                             .source = s->token_sources[row],
                                             .token = s->step.token_ids[row],
                                             .page = seq->page_table[pos / PAGE],
                                             .slot = slot_of(c, seq, pos),
                                             .page_before = pos > 0 ? seq->page_table[(pos - 1) / PAGE] : -1,
                                             .salt = salt_of(seq->request) };
        }
    }
    s->is_in_flight = true;
    return true;
}

/* The device has computed the step: also the rows of sequences that have left it since, whose token may have been none. */
static void compute_rows(struct crowd *c)
{
    for (int i = 0; i < c->n_rows; i++) {
        const struct written *w = &c->rows[i];
        uint64_t before = w->pos > 0 ? c->content[w->page_before][(w->pos - 1) % PAGE] : w->salt;
        bool is_known = w->source < 0 || is_in_flight(c, w->seq);
        int32_t token = w->source < 0 ? w->token : is_known ? w->seq->ids[w->pos] : -7;
        c->content[w->page][w->pos % PAGE] = c->windows[w->slot][w->pos % PAGE] = hash_of(before, token);
    }
    c->n_rows = 0;
}

static void check_pages(const struct crowd *c)
{
    for (int i = 0; i < MAX_SEQS; i++) {
        const struct sequence *seq = &c->s->seqs[i];
        uint64_t hash = sequence_is_running(seq) ? salt_of(seq->request) : 0;
        for (int pos = 0; sequence_is_running(seq) && pos < seq->n_computed; pos++) {
            hash = hash_of(hash, seq->ids[pos]);
            if (c->content[seq->page_table[pos / PAGE]][pos % PAGE] != hash)
                fail_msg("sequence %d: position %d of %d has other keys and values", i, pos, seq->n_computed);
        }
    }
}

/* ---- steps ---- */

static int32_t draw(struct crowd *c)
{
    return (int32_t)pick(c, 3);
}

/* All beams have candidates: some continue another one. */
static void continue_beams(struct crowd *c, struct sequence *first)
{
    struct scheduler *s = c->s;
    bool is_first = first->n_ids == first->n_prompt;
    struct sequence *seq = first;
    do {
        if (!is_first && seq->state != SEQUENCE_COMPUTED)
            return; /* it waits */
        seq = seq->sibling;
    } while (seq != first);
    if (first->n_ids + 1 >= first->max_ids || pick(c, 20) == 0) {
        end_sequence(c, first);
        return;
    }
    for (seq = first->sibling; seq != first; seq = seq->sibling)
        if (is_first || pick(c, 3) == 0)
            scheduler_copy(s, seq, first);
    do {
        scheduler_commit(s, seq, &(int32_t){ draw(c) }, 1);
        seq = seq->sibling;
    } while (seq != first);
}

static void commit_draw(struct crowd *c, struct sequence *seq)
{
    struct scheduler *s = c->s;
    int32_t tokens[MAX_DRAFTS + 1];
    if (seq->state == SEQUENCE_FREE)
        return;
    if (seq->request->beams) {
        continue_beams(c, seq);
        return;
    }
    int n_accepted = (int)pick(c, (uint64_t)seq->n_drafts + 1);
    c->n_accepted += n_accepted;
    memcpy(tokens, seq->ids + seq->n_ids, (size_t)n_accepted * sizeof *tokens);
    tokens[n_accepted] = n_accepted < seq->n_drafts ? seq->ids[seq->n_ids + n_accepted] + 1 : draw(c);
    bool ends = pick(c, 25) == 0;
    scheduler_commit(s, seq, tokens, n_accepted + !ends);
    if (ends || seq->n_ids == seq->max_ids)
        end_sequence(c, seq);
    else if (seq->recomputes)
        scheduler_recompute(s, seq);
}

/* As the engine does: only if no sequence of the step needs the host. */
static bool can_run_ahead(struct crowd *c)
{
    if (!c->s->options.runs_ahead || pick(c, 8) == 0)
        return false;
    for (int i = 0; i < c->s->n_entries; i++) {
        const struct sequence *seq = c->s->entries[i].seq;
        if (seq->request->beams || seq->recomputes || seq->needs_host)
            return false;
    }
    return true;
}

static void run_ahead(struct crowd *c, struct sequence **draws, int n_draws)
{
    struct scheduler *s = c->s;
    for (int i = 0; i < n_draws; i++)
        scheduler_assume(s, draws[i], i);
    c->n_ahead += submit(c);
    for (int i = 0; i < n_draws; i++) {
        struct sequence *seq = draws[i];
        if (pick(c, 16) == 0) {
            scheduler_redraw(s, seq);
            c->n_redrawn++;
        } else if (pick(c, 25) == 0) {
            scheduler_commit(s, seq, NULL, 0);
            end_sequence(c, seq);
        } else {
            scheduler_commit(s, seq, &(int32_t){ draw(c) }, 1);
            if (seq->n_ids == seq->max_ids)
                end_sequence(c, seq);
        }
    }
}

static void make_masks_late(struct crowd *c)
{
    for (int i = 0; i < c->s->n_entries; i++) {
        struct plan_entry *entry = &c->s->entries[i];
        const struct sequence *seq = entry->seq;
        if (entry->output < 0 || entry->n_drafts > 0 || seq->request->beams || seq->recomputes ||
            seq->n_ids == seq->n_prompt || pick(c, 10) > 0)
            continue;
        entry->output = -1;
        entry->is_late = true;
        c->n_late_masks++;
    }
}

static void step(struct crowd *c)
{
    struct scheduler *s = c->s;
    struct sequence *draws[MAX_SEQS];
    int n_draws = 0;
    if (s->is_in_flight && s->n_entries == 0) { /* all of its sequences have ended */
        compute_rows(c);
        s->is_in_flight = false;
    }
    if (!s->is_in_flight && !submit(c))
        return;
    bool is_ahead = can_run_ahead(c);
    compute_rows(c);
    if (!is_ahead)
        make_masks_late(c);
    scheduler_advance(s);
    for (int i = 0; i < s->n_entries; i++) {
        struct sequence *seq = s->entries[i].seq;
        if (s->entries[i].output < 0)
            continue;
        draws[n_draws++] = seq;
        for (struct sequence *fork; (fork = scheduler_fork(s, seq));)
            draws[n_draws++] = fork;
    }
    if (is_ahead)
        run_ahead(c, draws, n_draws);
    for (int i = 0; i < n_draws && !is_ahead; i++)
        commit_draw(c, draws[i]);
    const char *complaint = scheduler_audit(s);
    if (complaint)
        fail_msg("%s", complaint);
    check_pages(c);
}

static void wake_some(struct crowd *c, uint64_t one_of)
{
    for (int i = 0; i < MAX_SEQS; i++)
        if (c->s->seqs[i].state == SEQUENCE_MASK_WAIT && pick(c, one_of) == 0)
            scheduler_wake(c->s, &c->s->seqs[i]);
}

/* ---- the end ---- */

static void check_nothing_is_held(struct crowd *c)
{
    const struct scheduler *s = c->s;
    struct kv_counts counts = kv_pool_counts(s->pool);
    assert_int_equal(counts.n_used, 0);
    assert_int_equal(counts.n_cached + counts.n_free, N_PAGES);
    assert_int_equal(s->n_running + s->n_preempted + s->n_restoring + s->n_taken, 0);
    assert_int_equal(s->queue.n, 0);
    assert_null(s->queue.first);
    assert_true(s->queue.weights == 0);
    assert_int_equal(s->n_begun, c->serial); /* each began or ended before */
    for (int i = 0; i < TUTTI_PRIORITIES; i++)
        assert_int_equal(atomic_load(&s->forecast.waiting[i]), 0);
    for (int i = 0; i < N_OWNERS; i++) {
        assert_int_equal(c->shares[i].n_slots, 0);
        assert_int_equal(atomic_load(&c->shares[i].waiting), 0);
        assert_null(c->shares[i].lanes);
    }
    for (int i = 0; i < MAX_LIVE; i++)
        assert_null(c->live[i]);
}

static void crowd_run(uint64_t seed, struct scheduler_options options, struct crowd *c)
{
    *c = (struct crowd){ .random = seed, .now_us = 1000000 };
    options.max_seqs = MAX_SEQS;
    options.max_requests = MAX_LIVE;
    options.max_context = MAX_CONTEXT;
    options.max_batch_tokens = options.max_outputs = MAX_ROWS;
    options.page_tokens = PAGE;
    options.n_pages = N_PAGES;
    options.n_slots = options.window > 0 ? N_SLOTS : N_PAGES;
    assert_int_equal(scheduler_new(&c->s, &options, NULL), TUTTI_OK);
    for (int i = 0; i < N_OWNERS; i++)
        c->shares[i] = (struct share){ .owner = (uint64_t)i, .weight = 1 };
    for (int i = 0; i < N_CALLS; i++) {
        uint64_t what = pick(c, 20);
        c->now_us += pick(c, 40000);
        if (what < 4)
            add_request(c);
        else if (what == 4)
            cancel_some(c);
        else if (what == 5)
            wake_some(c, 2);
        else
            step(c);
    }
    for (int n = 0; c->s->n_taken + c->s->queue.n > 0 || c->s->is_in_flight; n++) {
        c->now_us += 20000;
        wake_some(c, 1);
        step(c);
        assert_true(n < N_CALLS); /* else a sequence starves */
    }
    check_nothing_is_held(c);
    scheduler_free(c->s);
}

static void check_moments(const int *n_cancelled, const int *moments, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (n_cancelled[moments[i]] == 0)
            fail_msg("no request was cancelled in state %d", moments[i]);
}

static void random_use_with_drafts_loses_nothing(void **state)
{
    (void)state;
    enum { FIRST_SEED = 1, LAST_SEED = 20 };
    static const int MOMENTS[] = { QUEUED,           SEQUENCE_RESERVED, SEQUENCE_PREEMPTED,
                                   SEQUENCE_PREFILL, SEQUENCE_DECODE,   SEQUENCE_MASK_WAIT };
    static struct crowd c;
    int n_cancelled[N_MOMENTS] = { 0 };
    for (uint64_t seed = FIRST_SEED; seed <= LAST_SEED; seed++) {
        crowd_run(seed,
                  (struct scheduler_options){ .max_lookup_tokens = MAX_DRAFTS,
                                              .forces_drafts = true,
                                              .window = seed % 4 < 2 ? WINDOW : 0,
                                              .no_prefix_cache = seed % 2 == 0 },
                  &c);
        for (int i = 0; i < N_MOMENTS; i++)
            n_cancelled[i] += c.n_cancelled[i];
        assert_true(c.n_late > 0 && c.n_late_masks > 0 && c.n_copied > 0 && c.n_accepted > 0);
    }
    check_moments(n_cancelled, MOMENTS, sizeof MOMENTS / sizeof *MOMENTS);
}

static void random_use_of_steps_planned_ahead_loses_nothing(void **state)
{
    (void)state;
    enum { FIRST_SEED = 11, LAST_SEED = 30 };
    static const int MOMENTS[] = { QUEUED, IN_FLIGHT, SEQUENCE_PREEMPTED, SEQUENCE_PREFILL, SEQUENCE_DECODE };
    static struct crowd c;
    int n_cancelled[N_MOMENTS] = { 0 };
    for (uint64_t seed = FIRST_SEED; seed <= LAST_SEED; seed++) {
        crowd_run(seed,
                  (struct scheduler_options){ .runs_ahead = true,
                                              .window = seed % 4 < 2 ? WINDOW : 0,
                                              .no_prefix_cache = seed % 2 == 0 },
                  &c);
        for (int i = 0; i < N_MOMENTS; i++)
            n_cancelled[i] += c.n_cancelled[i];
        assert_true(c.n_ahead > 0 && c.n_redrawn > 0 && c.n_copied > 0);
    }
    check_moments(n_cancelled, MOMENTS, sizeof MOMENTS / sizeof *MOMENTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_use_with_drafts_loses_nothing),
        cmocka_unit_test(random_use_of_steps_planned_ahead_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
