#include "engine/schedule/lifecycle.h"

#include "engine/schedule/spiller.h"

#include <assert.h>
#include <string.h>

enum { MOST_SKIPS = 32 }; /* attempts to get pages that are left out while no room was given back */

/* ---- states ---- */

#define TO(name) (1u << SEQUENCE_##name)
static const unsigned NEXT[SEQUENCE_STATES] = {
    [SEQUENCE_FREE] = TO(RESERVED) | TO(RESTORING) | TO(PREFILL) | TO(DECODE) | TO(COMPUTED),
    [SEQUENCE_RESERVED] = TO(COMPUTED) | TO(FREE),
    [SEQUENCE_PREEMPTED] = TO(RESTORING) | TO(PREFILL) | TO(DECODE) | TO(FREE),
    [SEQUENCE_RESTORING] = TO(PREFILL) | TO(DECODE) | TO(PREEMPTED) | TO(FREE),
    [SEQUENCE_PREFILL] = TO(PREFILL) | TO(DECODE) | TO(MASK_WAIT) | TO(COMPUTED) | TO(PREEMPTED) | TO(FREE),
    [SEQUENCE_DECODE] = TO(PREFILL) | TO(MASK_WAIT) | TO(COMPUTED) | TO(PREEMPTED) | TO(FREE),
    [SEQUENCE_MASK_WAIT] = TO(DECODE) | TO(PREEMPTED) | TO(FREE),
    [SEQUENCE_COMPUTED] = TO(DECODE) | TO(COMPUTED) | TO(PREEMPTED) | TO(FREE),
};
#undef TO

/* Relaxed: each figure is of use by itself. */
static void note_progress(const struct sequence *seq)
{
    struct request_progress *progress = &seq->request->progress;
    bool is_prefill = seq->state == SEQUENCE_RESTORING || seq->state == SEQUENCE_PREFILL;
    enum tutti_phase phase = seq->state == SEQUENCE_PREEMPTED ? TUTTI_PHASE_PREEMPTED
                             : is_prefill                     ? TUTTI_PHASE_PREFILL
                                                              : TUTTI_PHASE_DECODE;
    int n_virtual = seq->request->virtual.n;
    int n_own = seq->n_computed > n_virtual ? seq->n_computed - n_virtual : 0;
    atomic_store_explicit(&progress->phase, (int)phase, memory_order_relaxed);
    atomic_store_explicit(&progress->n_cached, sequence_n_cached(seq), memory_order_relaxed);
    atomic_store_explicit(&progress->n_computed, n_own, memory_order_relaxed);
}

static void enter(struct scheduler *s, struct sequence *seq, enum sequence_state state)
{
    assert(NEXT[seq->state] >> state & 1);
    int n_more = (state != SEQUENCE_FREE) - (seq->state != SEQUENCE_FREE);
    s->n_taken += n_more;
    seq->request->share->n_slots += n_more;
    s->n_running -= sequence_is_running(seq);
    s->n_preempted -= seq->state == SEQUENCE_PREEMPTED;
    s->n_restoring -= seq->state == SEQUENCE_RESTORING;
    seq->state = state;
    s->n_running += sequence_is_running(seq);
    s->n_preempted += state == SEQUENCE_PREEMPTED;
    s->n_restoring += state == SEQUENCE_RESTORING;
    if (state != SEQUENCE_FREE && state != SEQUENCE_RESERVED)
        note_progress(seq);
}

/* Enters the state that follows from the number of tokens to compute. */
static void settle(struct scheduler *s, struct sequence *seq)
{
    int n = sequence_n_pending(seq);
    enter(s, seq, n > 1 ? SEQUENCE_PREFILL : n == 1 ? SEQUENCE_DECODE : SEQUENCE_COMPUTED);
}

/* ---- pages ---- */

static void drop_pages(struct scheduler *s, struct sequence *seq)
{
    kv_pool_drop(s->pool, seq->page_table, seq->n_pages, seq->n_passed);
    seq->n_pages = seq->n_computed = seq->n_published = seq->n_passed = 0;
}

static int32_t previous_page(const struct sequence *seq, int page)
{
    return page > 0 ? seq->page_table[page - 1] : KV_NO_PAGE;
}

static void publish_pages(struct scheduler *s, struct sequence *seq)
{
    int n_full = seq->uses_cache ? seq->n_computed / s->page_tokens : 0;
    for (int page = seq->n_published; page < n_full; page++) {
        seq->page_table[page] = kv_pool_publish(s->pool, seq->page_table[page], sequence_chain(seq),
                                                previous_page(seq, page), seq->ids + page * s->page_tokens);
        seq->n_published = page + 1;
    }
}

/* Releases the window slots of pages that none of the sequence's further rows attends to. */
static void pass_pages(struct scheduler *s, struct sequence *seq)
{
    int n = kv_pool_passable(s->pool, seq->n_computed);
    if (n <= seq->n_passed)
        return;
    kv_pool_pass(s->pool, seq->page_table + seq->n_passed, n - seq->n_passed);
    seq->n_passed = n;
}

/* Number of tokens that may come from the prefix cache. At least one remains to be computed,
 * because its logits are needed. */
static int n_cacheable(const struct sequence *seq)
{
    const struct request *r = seq->request;
    int n = request_wants_rows(r) && r->n_seen < r->n_prompt - 1 ? r->n_seen : seq->n_ids - 1;
    return n < seq->n_ids - 1 ? n : seq->n_ids - 1;
}

/* Counts a page as computed that came from the prefix cache. */
static void count_cached_page(const struct scheduler *s, struct sequence *seq)
{
    seq->n_computed += s->page_tokens;
    if (seq->n_ids == seq->n_prompt && !seq->was_preempted)
        seq->n_cached += s->page_tokens;
}

/* ---- starting ---- */

static void begin_turn(struct scheduler *s, struct sequence *seq)
{
    seq->turn = ++s->n_turns;
    seq->n_turn = 0;
    seq->turn_us = s->now_us;
}

/* False: the last attempt failed, and there is no more room than then. The prefix cache may have changed, so that not all
 * attempts are left out. */
static bool may_have_room(const struct scheduler *s, struct room *room)
{
    struct kv_counts counts = kv_pool_counts(s->pool);
    return room->n_wanted + s->n_running <= counts.n_free + counts.n_cached || ++room->n_skips > MOST_SKIPS;
}

/* Besides the pages of all tokens, each running sequence must be able to grow by a page, or the new
 * one would soon be preempted. */
static bool run(struct scheduler *s, struct sequence *seq, struct room *room)
{
    struct kv_counts before = kv_pool_counts(s->pool);
    *room = (struct room){ 0 };
    int n_need = scheduler_pages(s, seq->n_ids), n_matched = 0, n_passed = 0;
    if (seq->uses_cache)
        n_matched = kv_pool_match(s->pool, sequence_chain(seq), seq->ids, n_cacheable(seq), seq->page_table,
                                  &n_passed);
    struct kv_counts counts = kv_pool_counts(s->pool);
    int n_first = scheduler_pages(s, s->options.max_batch_tokens);
    n_first = n_need - n_matched < n_first ? n_need - n_matched : n_first;
    if (n_need - n_matched + s->n_running > counts.n_free + counts.n_cached ||
        (s->n_running > 0 && n_first + s->n_running > kv_pool_slots_left(s->pool)) ||
        !kv_pool_take(s->pool, n_need - n_matched, seq->page_table + n_matched)) {
        kv_pool_drop(s->pool, seq->page_table, n_matched, n_passed);
        /* Matched pages that no sequence had count as cached again. */
        if (n_need - n_matched + s->n_running > counts.n_free + counts.n_cached)
            room->n_wanted = n_need - n_matched + before.n_cached - counts.n_cached;
        return false;
    }
    seq->n_pages = n_need;
    seq->n_published = n_matched;
    seq->n_passed = n_passed;
    seq->n_computed = n_matched * s->page_tokens;
    seq->is_fresh = true;
    begin_turn(s, seq);
    if (s->spiller && seq->uses_cache &&
        spiller_begin(s->spiller, seq, n_matched, n_cacheable(seq) / s->page_tokens))
        enter(s, seq, SEQUENCE_RESTORING);
    else
        settle(s, seq);
    return true;
}

bool lifecycle_run(struct scheduler *s, struct sequence *seq)
{
    return may_have_room(s, &seq->room) && run(s, seq, &seq->room);
}

static uint64_t rank_bits(int rank)
{
    return (uint64_t)(rank < SEQUENCE_MOST_RANK ? rank : SEQUENCE_MOST_RANK) << SEQUENCE_RANK_SHIFT;
}

/* Priority, then how many sequences the owner has before it, then the 49 bits of the serial. So of owners whose sequences do
 * not all fit into memory, those with few keep theirs. */
static uint64_t order_of(const struct request *r)
{
    uint64_t class = (uint64_t)(r->spec.priority - TUTTI_PRIORITY_FIRST);
    return class << SEQUENCE_PRIORITY_SHIFT | rank_bits(r->share->n_slots) |
           (r->serial * LIMIT_CHOICES + (uint64_t)r->n_started);
}

static void set_order(struct sequence *seq, uint64_t class)
{
    seq->order = class << SEQUENCE_PRIORITY_SHIFT | rank_bits(seq->rank) | sequence_number(seq);
}

/* n sequences of this rank have ended, and the owner's later ones move up. Otherwise an endless stream of first requests of
 * other owners would pass those of them that are preempted. */
static void move_up(struct scheduler *s, const struct share *share, int rank, int n)
{
    for (int i = 0; i < s->options.max_seqs && share->n_slots > 0; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->state == SEQUENCE_FREE || seq->request->share != share || seq->rank < rank)
            continue;
        seq->rank -= n;
        set_order(seq, seq->order >> SEQUENCE_PRIORITY_SHIFT);
    }
}

void lifecycle_age_preempted(struct scheduler *s)
{
    if (s->n_preempted == 0)
        return;
    int best = request_queue_best_priority(&s->queue);
    for (int i = 0; i < s->options.max_seqs; i++)
        if (s->seqs[i].state != SEQUENCE_FREE && s->seqs[i].request->spec.priority < best)
            best = s->seqs[i].request->spec.priority;
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->state != SEQUENCE_PREEMPTED)
            continue;
        int priority = aged_priority(seq->request->spec.priority, best, seq->preempted_us, s->now_us);
        uint64_t class = (uint64_t)(priority - TUTTI_PRIORITY_FIRST);
        if (class >= seq->order >> SEQUENCE_PRIORITY_SHIFT)
            continue;
        struct sequence *sibling = seq;
        do { /* the last of them by order would preempt all */
            set_order(sibling, class);
            sibling = sibling->sibling;
        } while (sibling != seq);
    }
}

static bool leaves_enough(const struct scheduler *s, const struct request *r)
{
    int n = request_n_slots(r), n_left = s->options.max_seqs - s->n_taken - n;
    return r->share->owner == 0 ||
           request_leaves_enough(s->options.max_seqs, n_left, r->share->n_slots + n - 1);
}

bool lifecycle_may_start(const struct scheduler *s, const struct request *r)
{
    return r->share->n_slots == 0 || leaves_enough(s, r);
}

bool lifecycle_has_slots(const struct scheduler *s, const struct request *r)
{
    return request_n_slots(r) <= s->options.max_seqs - s->n_taken &&
           (request_n_slots(r) == 1 || leaves_enough(s, r));
}

bool lifecycle_is_before(const struct request *r, const struct sequence *seq)
{
    return r->share != seq->request->share && order_of(r) < seq->order;
}

/* The next choice of a request, without tokens and pages. */
static void set_up(struct scheduler *s, struct sequence *seq, struct request *r)
{
    int room = s->options.max_context - r->n_prompt;
    int n_answer = r->spec.max_tokens > 0 && r->spec.max_tokens < room ? r->spec.max_tokens : room;
    seq->request = r;
    seq->sibling = seq;
    seq->choice = r->n_started;
    seq->rank = r->share->n_slots;
    seq->order = order_of(r);
    seq->n_ids = seq->n_prompt = r->n_prompt;
    seq->reasoning = r->reasoning;
    seq->reasoning_begin = seq->answer_begin = r->n_prompt;
    seq->n_forced = 0;
    seq->prefix = (struct prefix){ .has_no_end = true };
    if (s->options.desc)
        seq->prefix = model_find_prefix(s->options.desc, r->prompt + r->virtual.n, request_n_own(r));
    if (r->virtual.is_before_zero)
        model_prefix_shift(&seq->prefix, r->virtual.n);
    if (s->options.desc && s->options.desc->n_segments > 1)
        seq->prefix.second = r->second;
    seq->recomputes = r->spec.no_kv_cache;
    seq->uses_cache = !s->options.no_prefix_cache && !s->options.desc && !seq->recomputes;
    seq->max_ids = r->n_prompt + (r->spec.no_answer ? 0 : n_answer);
    seq->n_pages = seq->n_computed = seq->n_published = seq->n_cached = seq->n_planned = 0;
    seq->n_passed = 0;
    seq->room = (struct room){ 0 };
    seq->queue_us = seq->ttft_us = seq->last_token_us = 0;
    seq->is_fresh = true;
    seq->was_preempted = false;
    seq->n_drafts = 0;
    seq->source = -1;
    seq->needs_host = false;
    seq->n_accepted = seq->n_rejected = 0;
    prompt_lookup_reset(&s->lookups[seq - s->seqs]);
}

/* Finds n free slots, all or none. */
static bool find_slots(struct scheduler *s, struct sequence **slots, int n)
{
    for (int i = 0, n_found = 0; i < s->options.max_seqs; i++) {
        if (s->seqs[i].state != SEQUENCE_FREE)
            continue;
        slots[n_found++] = &s->seqs[i];
        if (n_found == n)
            return true;
    }
    return false;
}

struct sequence *lifecycle_start(struct scheduler *s, struct request *r)
{
    struct sequence *slots[LIMIT_BEAMS];
    int n_slots = request_n_slots(r);
    if (!lifecycle_has_slots(s, r) || !may_have_room(s, &r->room) || !find_slots(s, slots, n_slots))
        return NULL;
    struct sequence *first = slots[0];
    set_up(s, first, r);
    memcpy(first->ids, r->prompt, (size_t)r->n_prompt * sizeof *first->ids);
    if (!run(s, first, &r->room)) {
        first->request = NULL; /* it may be freed while the slot is free */
        return NULL;
    }
    first->n_cached = first->n_computed;
    first->queue_us = s->now_us > r->submit_us ? s->now_us - r->submit_us : 1; /* 0: has not started */
    for (int i = 1; i < n_slots; i++) {
        set_up(s, slots[i], r);
        slots[i]->rank = first->rank;
        slots[i]->order = first->order + (uint64_t)i;
        slots[i]->sibling = first;
        slots[i - 1]->sibling = slots[i];
        enter(s, slots[i], SEQUENCE_RESERVED);
    }
    r->n_started = request_ends_as_one(r) ? r->spec.n_choices : r->n_started + 1;
    return first;
}

/* ---- sharing ---- */

/* Copies the tokens, page table and times of from into to. */
static void continue_from(struct scheduler *s, struct sequence *to, const struct sequence *from)
{
    drop_pages(s, to);
    memcpy(to->ids, from->ids, (size_t)from->n_ids * sizeof *to->ids);
    memcpy(to->page_table, from->page_table, (size_t)from->n_pages * sizeof *to->page_table);
    kv_pool_share(s->pool, to->page_table, from->n_pages, from->n_passed);
    to->n_passed = from->n_passed;
    to->n_ids = from->n_ids;
    to->n_pages = from->n_pages;
    to->n_computed = from->n_computed;
    to->n_published = from->n_published;
    to->n_cached = from->n_cached;
    to->queue_us = from->queue_us;
    to->ttft_us = from->ttft_us;
    to->last_token_us = from->last_token_us;
    settle(s, to);
}

struct sequence *scheduler_fork(struct scheduler *s, const struct sequence *from)
{
    struct request *r = from->request;
    struct sequence *seq = NULL;
    bool is_queued = r->lane; /* the prompt was computed before: the rest starts from the queue */
    if (from->n_ids > from->n_prompt || r->n_started == r->spec.n_choices || is_queued)
        return NULL;
    assert(from->state == SEQUENCE_COMPUTED);
    if (!lifecycle_may_start(s, r) || !find_slots(s, &seq, 1)) {
        request_queue_add(&s->queue, r);
        return NULL;
    }
    set_up(s, seq, r);
    begin_turn(s, seq);
    continue_from(s, seq, from);
    r->n_started++;
    request_queue_charge(r, OUTPUT_WORK); /* of its first token, drawn from the same logits */
    return seq;
}

void scheduler_copy(struct scheduler *s, struct sequence *to, const struct sequence *from)
{
    assert(to != from && to->request == from->request && from->state == SEQUENCE_COMPUTED);
    continue_from(s, to, from);
}

/* ---- in planning ---- */

void lifecycle_adopt(struct scheduler *s, struct sequence *seq)
{
    if (!seq->uses_cache || seq->n_computed % s->page_tokens != 0)
        return;
    while (seq->n_computed + s->page_tokens <= n_cacheable(seq)) {
        int page = seq->n_computed / s->page_tokens;
        int32_t known = kv_pool_take_next(s->pool, sequence_chain(seq), previous_page(seq, page),
                                          seq->ids + seq->n_computed);
        if (known < 0)
            break;
        kv_pool_drop(s->pool, &seq->page_table[page], 1, 0);
        seq->page_table[page] = known;
        seq->n_published = page + 1;
        count_cached_page(s, seq);
    }
    settle(s, seq);
}

/* Drops the pages after the last token. */
static void trim_pages(struct scheduler *s, struct sequence *seq)
{
    int n_keep = scheduler_pages(s, seq->n_ids);
    if (seq->n_pages <= n_keep)
        return;
    kv_pool_drop(s->pool, seq->page_table + n_keep, seq->n_pages - n_keep, 0);
    seq->n_pages = n_keep;
}

void lifecycle_drop_drafts(struct scheduler *s, struct sequence *seq)
{
    seq->n_planned -= seq->n_drafts;
    seq->n_drafts = 0;
    trim_pages(s, seq);
}

/* Takes a sequence out of the step that is in flight: its results are not used. */
static void leave_step(struct scheduler *s, const struct sequence *seq)
{
    for (int i = 0; s->is_in_flight && i < s->n_entries; i++) {
        if (s->entries[i].seq != seq)
            continue;
        memmove(&s->entries[i], &s->entries[i + 1], (size_t)(--s->n_entries - i) * sizeof *s->entries);
        return;
    }
}

static void preempt_one(struct scheduler *s, struct sequence *seq)
{
    leave_step(s, seq);
    drop_pages(s, seq);
    enter(s, seq, SEQUENCE_PREEMPTED);
    seq->preempted_us = s->now_us;
    seq->was_preempted = true;
    seq->n_planned = seq->n_drafts = 0;
    s->n_preemptions++;
}

void lifecycle_preempt_last(struct scheduler *s)
{
    struct sequence *last = NULL;
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (sequence_is_running(seq) && (!last || seq->order > last->order))
            last = seq;
    }
    assert(last); /* a sequence that lacks pages is running */
    struct sequence *seq = last;
    do { /* siblings share pages and wait for each other: one of them would free little and stop all */
        if (sequence_is_running(seq))
            preempt_one(s, seq);
        seq = seq->sibling;
    } while (seq != last);
}

/* ---- after a step ---- */

/* A prompt whose turn is over goes to the end of the round. */
static void count_turn(struct scheduler *s, struct sequence *seq, int n_rows)
{
    seq->n_turn += n_rows;
    if (seq->n_turn >= PREFILL_TURN * seq->request->spec.weight)
        begin_turn(s, seq);
}

void scheduler_advance(struct scheduler *s)
{
    s->is_in_flight = false;
    for (int i = 0; i < s->n_entries; i++) {
        const struct plan_entry *entry = &s->entries[i];
        struct sequence *seq = entry->seq;
        int n_rows = seq->n_planned - seq->n_drafts - entry->is_late;
        seq->n_computed += n_rows;
        seq->n_planned = 0;
        seq->is_fresh = false;
        if (entry->output >= 0)
            request_queue_charge(seq->request, OUTPUT_WORK);
        count_turn(s, seq, n_rows);
        publish_pages(s, seq);
        pass_pages(s, seq);
        if (entry->is_late)
            enter(s, seq, SEQUENCE_MASK_WAIT);
        else
            settle(s, seq);
    }
}

void scheduler_assume(struct scheduler *s, struct sequence *seq, int source)
{
    assert(seq->state == SEQUENCE_COMPUTED && seq->n_drafts == 0 && seq->n_ids < seq->max_ids);
    seq->ids[seq->n_ids++] = 0;
    seq->source = source;
    settle(s, seq);
}

void scheduler_redraw(struct scheduler *s, struct sequence *seq)
{
    assert(seq->source >= 0);
    seq->n_ids--;
    seq->source = -1;
    seq->needs_host = true;
    if (sequence_is_running(seq))
        preempt_one(s, seq);
}

void scheduler_commit(struct scheduler *s, struct sequence *seq, const int32_t *tokens, int n)
{
    if (seq->source >= 0) {
        assert(n <= 1);
        seq->source = -1;
        seq->n_ids -= 1 - n;
        if (n > 0)
            seq->ids[seq->n_ids - 1] = tokens[0];
        return;
    }
    assert(seq->state == SEQUENCE_COMPUTED);
    int n_drafts = seq->n_drafts;
    for (int i = 0; i < n; i++) {
        if (i < n_drafts && seq->ids[seq->n_ids] != tokens[i])
            n_drafts = i;
        if (i < n_drafts) {
            seq->n_computed++;
            request_queue_charge(seq->request, OUTPUT_WORK);
        }
        seq->ids[seq->n_ids++] = tokens[i];
    }
    publish_pages(s, seq);
    pass_pages(s, seq);
    seq->n_drafts = 0;
    trim_pages(s, seq);
    settle(s, seq);
}

void scheduler_recompute(struct scheduler *s, struct sequence *seq)
{
    assert(seq->state == SEQUENCE_DECODE);
    drop_pages(s, seq);
    settle(s, seq);
}

void scheduler_wake(struct scheduler *s, struct sequence *seq)
{
    assert(seq->state == SEQUENCE_MASK_WAIT);
    enter(s, seq, SEQUENCE_DECODE);
}

void scheduler_finish(struct scheduler *s, struct sequence *seq)
{
    if (seq->state == SEQUENCE_FREE)
        return;
    const struct share *share = seq->request->share;
    int n_before = share->n_slots, rank = seq->rank;
    for (struct sequence *next; seq->state != SEQUENCE_FREE; seq = next) {
        next = seq->sibling;
        leave_step(s, seq);
        drop_pages(s, seq);
        enter(s, seq, SEQUENCE_FREE);
        seq->request = NULL;
        seq->n_planned = seq->n_drafts = 0;
    }
    move_up(s, share, rank, n_before - share->n_slots);
}

/* ---- restoring ---- */

void lifecycle_restored_page(struct scheduler *s, struct sequence *seq)
{
    assert(seq->state == SEQUENCE_RESTORING && seq->n_computed % s->page_tokens == 0 &&
           seq->n_computed + s->page_tokens <= n_cacheable(seq));
    count_cached_page(s, seq);
    publish_pages(s, seq);
}

void lifecycle_restored(struct scheduler *s, struct sequence *seq)
{
    settle(s, seq);
}
