/* Plans the next step: which requests start, which rows are computed, the pages they are written to, and
 * which rows have outputs. */
#include "base/system/clock.h"
#include "engine/schedule/lifecycle.h"

#include <assert.h>
#include <math.h>

/* Tokens that prompt lookup enters in one step, of all sequences; each is entered once, and this
 * takes less than a millisecond. */
enum { LOOKUP_TOKENS = 8192 };

/* How long a large request, which needs more than its owner's equal part, lets others pass. */
enum { PASSING_US = 10 * 1000 * 1000 };

/* ---- admission ---- */

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

/* Starts a request from the queue. False: not now. */
static bool begin_request(struct scheduler *s, struct request *r)
{
    bool is_first = r->n_started == 0;
    const struct sequence *seq = lifecycle_start(s, r);
    if (!seq)
        return false;
    s->n_begun += is_first;
    if (is_first)
        forecast_begin(&s->forecast, r);
    bool is_restoring = seq->state == SEQUENCE_RESTORING;
    int n_known = is_restoring ? seq->n_restorable * s->page_tokens : seq->n_computed;
    request_queue_start(&s->queue, r, seq->n_ids - n_known, s->now_us);
    return true;
}

/* Prefill rows of a sequence that come before those of a request that starts now. Not counted are a
 * prompt that does not end within its turn, because the others' turns come in between, and a request
 * that recomputes all tokens for each new one. */
static int64_t rows_before_others(const struct sequence *seq)
{
    const struct tutti_request *spec = &seq->request->spec;
    int n = sequence_n_pending(seq);
    bool ends = n <= PREFILL_TURN * spec->weight - seq->n_turn && !seq->recomputes;
    return seq->state == SEQUENCE_PREFILL && (seq->is_fresh || ends) ? n : 0;
}

/* True: if the request started now, the next step would have rows for it. */
static bool has_rows_next(const struct scheduler *s, const struct request *r)
{
    int64_t n_before = 0;
    int n_decoding = 0;
    for (int i = 0; i < s->options.max_seqs; i++) {
        const struct sequence *seq = &s->seqs[i];
        if (!sequence_is_running(seq))
            continue;
        n_decoding += sequence_n_pending(seq) == 1;
        n_before += seq->request->spec.priority <= r->spec.priority ? rows_before_others(seq) : 0;
    }
    return n_before < s->options.max_batch_tokens && n_before < pace_usual_rows(&s->pace, n_decoding);
}

static bool may_start(const void *user, const struct request *r)
{
    return lifecycle_may_start(user, r);
}

/* Owners with sequences or waiting requests. */
static int count_owners(const struct scheduler *s)
{
    int n = 0;
    for (const struct lane *lane = s->queue.first; lane; lane = lane->next)
        n += lane == lane->share->lanes;
    for (int i = 0; i < s->options.max_seqs; i++) {
        const struct sequence *seq = &s->seqs[i];
        n += seq->state != SEQUENCE_FREE && seq->rank == 0 && !seq->request->share->lanes;
    }
    return n;
}

/* A request or preempted sequence that waits because it does not fit. */
struct blocker {
    const struct scheduler *scheduler;
    struct share *share;
    int n_slots, n_pages;
    uint64_t since_us;
};

/* Whether a waiting request fits together with the running ones and may be admitted before older ones. */
static bool may_pass(const void *user, const struct request *r)
{
    const struct blocker *b = user;
    const struct scheduler *s = b->scheduler;
    struct kv_counts counts = kv_pool_counts(s->pool);
    return r->share != b->share && lifecycle_may_start(s, r) && lifecycle_has_slots(s, r) &&
           scheduler_pages(s, r->n_prompt) + s->n_running <= counts.n_free + counts.n_cached;
}

/* A large request or sequence, which needs more slots or pages than its owner's equal part of all, lets requests of other owners pass
 * for PASSING_US. Then the slots stay free for it, and its owner is charged for the tokens that they could have computed. False: no
 * request passed. */
static bool let_pass(struct scheduler *s, const struct blocker *b)
{
    int64_t n_owners = count_owners(s);
    bool is_large = n_owners * b->n_slots > s->options.max_seqs || n_owners * b->n_pages > s->options.n_pages;
    if (!is_large || n_owners < 2)
        return false;
    struct request *r = request_queue_best(&s->queue, s->now_us, may_pass, b);
    if (!r || !has_rows_next(s, r))
        return false;
    if (s->now_us - b->since_us < PASSING_US)
        return begin_request(s, r);
    atomic_fetch_add(&b->share->debt, OUTPUT_WORK * (s->options.max_seqs - s->n_taken));
    return false;
}

static struct blocker blocker_of_request(const struct scheduler *s, struct request *r)
{
    r->blocked_us = r->blocked_us > 0 ? r->blocked_us : s->now_us;
    return (struct blocker){ .scheduler = s,
                             .share = r->share,
                             .n_slots = request_n_slots(r),
                             .n_pages = scheduler_pages(s, r->n_prompt),
                             .since_us = r->blocked_us };
}

static struct blocker blocker_of_sequence(const struct scheduler *s, const struct sequence *seq)
{
    return (struct blocker){ .scheduler = s,
                             .share = seq->request->share,
                             .n_pages = scheduler_pages(s, seq->n_ids),
                             .since_us = seq->preempted_us };
}

/* Continues preempted sequences and starts requests, in queue order, until one does not fit: none overtakes it, unless it is
 * large. A request comes before preempted sequences of another owner who has more of them. */
static void admit(struct scheduler *s)
{
    lifecycle_age_preempted(s);
    for (;;) {
        struct sequence *seq = first_preempted(s);
        struct request *r = request_queue_best(&s->queue, s->now_us, may_start, s);
        /* A request that lacks slots gets them only when the sequences that have them end. */
        bool is_request = r && (!seq || (lifecycle_has_slots(s, r) && lifecycle_is_before(r, seq)));
        if ((!seq && !r) || (is_request && !has_rows_next(s, r)))
            return;
        if (is_request ? begin_request(s, r) : lifecycle_run(s, seq))
            continue;
        struct blocker blocker = is_request ? blocker_of_request(s, r) : blocker_of_sequence(s, seq);
        if (!let_pass(s, &blocker))
            return;
    }
}

/* ---- draft tokens ---- */

/* Most draft tokens that a sequence may have; 0 at the end of the prompt, where further choices start
 * from the same logits. max_drafts: the limit of the source. */
static int most_drafts(const struct sequence *seq, int max_drafts)
{
    if (seq->n_ids == seq->n_prompt)
        return 0;
    int room = seq->max_ids - seq->n_ids - 1, most = request_max_drafts(seq->request);
    most = most < max_drafts ? most : max_drafts;
    return most < room ? most : room;
}

static int collect_proposals(struct scheduler *s)
{
    int n = 0, n_to_read = LOOKUP_TOKENS;
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->n_planned != 1)
            continue;
        int most = most_drafts(seq, s->options.max_lookup_tokens);
        if (most > 0) {
            n_to_read -= prompt_lookup_update(&s->lookups[i], seq->ids, seq->n_ids, n_to_read);
            float acceptance = prompt_lookup_acceptance(&s->lookups[i]);
            if (acceptance > 0)
                s->proposals[n++] = (struct draft_proposal){ .acceptance = acceptance,
                                                             .most = most,
                                                             .seq = i };
        }
        most = s->draft ? most_drafts(seq, s->options.max_draft_tokens) : 0;
        s->proposals[n] = (struct draft_proposal){ .most = most, .seq = i };
        if (most > 0 && draft_propose(s->draft, &s->speculation, seq, &s->proposals[n]))
            n++;
    }
    return n;
}

static bool can_speculate(const struct scheduler *s)
{
    int max_lookup_tokens = s->options.max_lookup_tokens > s->options.max_draft_tokens
                                ? s->options.max_lookup_tokens
                                : s->options.max_draft_tokens;
    for (int i = 0; i < s->options.max_seqs; i++)
        if (s->seqs[i].n_planned == 1 && most_drafts(&s->seqs[i], max_lookup_tokens) > 0)
            return true;
    return false;
}

static void choose_drafts(struct scheduler *s, int n_seqs, int n_rows)
{
    if (s->draft)
        draft_follow(s->draft, s->seqs);
    int n_proposals = collect_proposals(s);
    struct speculation_step room = { .n_seqs = n_seqs, .max_rows = n_rows, .row_us = s->pace.row_us };
    speculation_choose(&s->speculation, &room, s->proposals, n_proposals);
    if (s->draft)
        s->draft_us = draft_run(s->draft, &s->speculation, s->seqs, s->proposals, n_proposals);
    for (int i = 0; i < n_proposals; i++) {
        const struct draft_proposal *proposal = &s->proposals[i];
        struct sequence *seq = &s->seqs[proposal->seq];
        if (proposal->n == 0)
            continue;
        if (!proposal->is_draft)
            prompt_lookup_copy(&s->lookups[proposal->seq], seq->ids, seq->n_ids, proposal->n);
        seq->is_model_draft = proposal->is_draft;
        seq->n_drafts = proposal->n;
        seq->n_planned += proposal->n;
        s->n_draft_rows += proposal->n;
    }
}

/* Chooses the draft tokens of a step with n_seqs decoding rows and room for n_rows draft tokens: for
 * which sequences, from which source, and how many. Runs the draft model; writes draft tokens after
 * the ids of their sequences. */
static void plan_drafts(struct scheduler *s, int n_seqs, int n_rows)
{
    s->may_speculate = can_speculate(s);
    if (!s->may_speculate || !speculation_is_due(&s->speculation, n_seqs))
        return;
    uint64_t begin_ns = clock_now_ns();
    choose_drafts(s, n_seqs, n_rows);
    double us = (double)(clock_now_ns() - begin_ns) / 1e3 - (double)s->draft_us;
    s->plan_us = us > 0 ? us : 0;
}

/* ---- rows ---- */

/* A sequence with all its tokens, of which the last is being drawn, has no further row. */
static bool can_decode(const struct sequence *seq)
{
    bool is_last_drawn = seq->source >= 0 && seq->n_ids == seq->max_ids;
    return seq->state == SEQUENCE_DECODE && !is_last_drawn;
}

/* Gives each decoding sequence one row, from the cursor on. Returns the number of rows. */
static int choose_decoding(struct scheduler *s, int n_rows)
{
    int n = s->options.max_seqs, given = 0, start = s->cursor;
    for (int i = 0; i < n && given < n_rows; i++) {
        int slot = (start + i) % n;
        struct sequence *seq = &s->seqs[slot];
        if (can_decode(seq)) {
            seq->n_planned = 1;
            given++;
            s->cursor = (slot + 1) % n;
        }
    }
    return given;
}

/* Rows of the next n_rows that a sequence may prefill. *n_spare: logits available in addition to
 * one for each sequence. */
static int prefill_rows(const struct sequence *seq, int n_rows, int *n_spare)
{
    int n = sequence_n_pending(seq) < n_rows ? sequence_n_pending(seq) : n_rows;
    if (!seq->request->spec.prompt_logprobs || seq->request->n_seen >= seq->n_computed + n)
        return n;
    n = n < *n_spare + 1 ? n : *n_spare + 1;
    *n_spare -= n - 1;
    return n;
}

static bool can_prefill(const struct sequence *seq)
{
    return seq->state == SEQUENCE_PREFILL && seq->n_planned == 0;
}

/* The prompt to prefill next: the best priority after ageing, then the earliest turn. NULL: none. */
static struct sequence *next_prefill(const struct scheduler *s)
{
    struct sequence *first = NULL;
    int best = TUTTI_PRIORITY_LAST, priority_of_first = 0;
    for (int i = 0; i < s->options.max_seqs; i++) {
        const struct sequence *seq = &s->seqs[i];
        if (can_prefill(seq) && seq->request->spec.priority < best)
            best = seq->request->spec.priority;
    }
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (!can_prefill(seq))
            continue;
        int priority = aged_priority(seq->request->spec.priority, best, seq->turn_us, s->now_us);
        if (!first || priority < priority_of_first ||
            (priority == priority_of_first && seq->turn < first->turn)) {
            first = seq;
            priority_of_first = priority;
        }
    }
    return first;
}

/* Plans chunks of prompts, round-robin, within the time budget. */
static void choose_prefill(struct scheduler *s, int n_rows, double budget_us)
{
    int n_spare = s->options.max_outputs - s->n_running;
    n_spare = n_spare > 0 ? n_spare : 0;
    while (n_rows > 0 && budget_us > 0) {
        struct sequence *first = next_prefill(s);
        if (!first)
            return;
        if (first->n_computed < first->prefix.n && first->prefix.n > n_rows)
            return; /* it is first in the next step, which has room for it */
        lifecycle_adopt(s, first);
        int most = pace_rows(&s->pace, budget_us, first->n_computed);
        first->n_planned = prefill_rows(first, most < n_rows ? most : n_rows, &n_spare);
        n_rows -= first->n_planned;
        budget_us = pace_spend(&s->pace, budget_us, first->n_planned, first->n_computed);
    }
}

static void choose_rows(struct scheduler *s)
{
    int n_rows = s->options.max_batch_tokens;
    int64_t n_decoding = 0, n_prefill = 0; /* rows that could be computed */
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        seq->n_planned = seq->n_drafts = 0;
        n_decoding += can_decode(seq);
        n_prefill += seq->state == SEQUENCE_PREFILL ? sequence_n_pending(seq) : 0;
    }
    int n_for_prompts = n_rows >= 8 ? n_rows / 4 : n_rows > 1;
    if (n_prefill < n_for_prompts)
        n_for_prompts = (int)n_prefill;
    if (n_rows == 1 && n_prefill > 0 && n_decoding > 0) {
        n_for_prompts = s->is_prompt_turn;
        s->is_prompt_turn = !s->is_prompt_turn;
    }
    int given = choose_decoding(s, n_rows - n_for_prompts);
    n_rows -= given;
    s->n_decoding_rows = given;
    s->n_draft_rows = 0;
    s->may_speculate = false;
    s->draft_us = 0;
    s->plan_us = 0;
    if ((s->options.max_lookup_tokens > 0 || s->draft) && n_prefill == 0 && given == n_decoding && given > 0)
        plan_drafts(s, given, n_rows);
    bool is_paced = given > 0 && n_prefill > 0 &&
                    !s->options.desc; /* a bidirectional prefix cannot be split */
    choose_prefill(s, n_rows, is_paced ? pace_budget(&s->pace, given) : INFINITY);
}

/* ---- pages ---- */

/* Index of the first page for a planned sequence's rows that is missing or shared, or has no slot; -1:
 * it has all pages. */
static int page_needed(const struct scheduler *s, const struct sequence *seq)
{
    for (int page = seq->n_computed / s->page_tokens;
         page * s->page_tokens < seq->n_computed + seq->n_planned; page++)
        if (page >= seq->n_pages || kv_pool_is_shared(s->pool, seq->page_table[page]) ||
            kv_pool_slot(s->pool, seq->page_table[page]) < 0)
            return page;
    return -1;
}

/* Drops all draft tokens of the step. False: there were none. */
static bool drop_all_drafts(struct scheduler *s)
{
    bool is_any = s->n_draft_rows > 0;
    for (int i = 0; i < s->options.max_seqs && is_any; i++) {
        if (s->seqs[i].n_drafts > 0)
            lifecycle_drop_drafts(s, &s->seqs[i]);
    }
    s->n_draft_rows = 0;
    return is_any;
}

/* Takes a page with a slot, or only a slot if the sequence's page has none, or nothing if the sequence has both since others that
 * shared the page were preempted. False: the pool is empty. */
static bool take_page(struct scheduler *s, const struct sequence *seq, int page, int32_t *page_id)
{
    bool has_page = page < seq->n_pages && !kv_pool_is_shared(s->pool, seq->page_table[page]);
    if (has_page)
        *page_id = seq->page_table[page];
    else if (!kv_pool_take(s->pool, 1, page_id))
        return false;
    if ((has_page && kv_pool_slot(s->pool, *page_id) >= 0) || kv_pool_take_slot(s->pool, *page_id))
        return true;
    if (!has_page)
        kv_pool_drop(s->pool, page_id, 1, 0);
    return false;
}

static void give_page(struct scheduler *s, struct sequence *seq, int page, int32_t page_id)
{
    if (page < seq->n_pages && seq->page_table[page] == page_id)
        return; /* it is its own, and has its slot now */
    if (page >= seq->n_pages) {
        seq->page_table[seq->n_pages++] = page_id;
        return;
    }
    assert(seq->n_computed >
           page * s->page_tokens); /* one copy per sequence: full pages are never written again */
    int32_t src = seq->page_table[page];
    s->copies[s->n_copies++] = (struct page_copy){ .dst = page_id,
                                                   .src = src,
                                                   .window_dst = kv_pool_slot(s->pool, page_id),
                                                   .window_src = kv_pool_slot(s->pool, src) };
    kv_pool_drop(s->pool, &src, 1, 0);
    seq->page_table[page] = page_id;
}

/* Takes pages for the planned sequences, the first by order first; preempts the last one if the
 * pool is empty. A page that is dropped here may be taken again at once, because copies are made in
 * order before anything is written. */
static void find_pages(struct scheduler *s)
{
    s->n_copies = 0;
    for (;;) {
        struct sequence *first = NULL;
        for (int i = 0; i < s->options.max_seqs; i++) {
            struct sequence *seq = &s->seqs[i];
            if (seq->n_planned > 0 && (!first || seq->order < first->order) && page_needed(s, seq) >= 0)
                first = seq;
        }
        if (!first)
            return;
        int32_t page_id;
        int page = page_needed(s, first);
        bool is_taken;
        while (!(is_taken = take_page(s, first, page, &page_id))) {
            if (drop_all_drafts(s))
                break; /* a page may be free now, or none is needed */
            lifecycle_preempt_last(s);
            if (!sequence_is_running(first))
                break;
        }
        if (is_taken)
            give_page(s, first, page, page_id);
    }
}

/* ---- the step ---- */

/* Chooses the outputs of the entry's rows, which begin at row of the step: logits now; rows with
 * hidden states are only noted. */
static void choose_outputs(struct scheduler *s, struct plan_entry *entry, int row)
{
    struct step *step = &s->step;
    const struct sequence *seq = entry->seq;
    const struct request *r = seq->request;
    int begin = seq->n_computed, end = begin + seq->n_planned;
    bool is_end = seq->n_planned - seq->n_drafts == sequence_n_pending(seq);
    entry->first_pos = begin > r->n_seen ? begin : r->n_seen;
    if (r->spec.embedding == TUTTI_EMBEDDING_LAST)
        entry->first_pos = end - 1;
    if (r->spec.embedding == TUTTI_EMBEDDING_FIRST) {
        entry->n_hidden = entry->first_pos == r->virtual.n && entry->first_pos < end;
        return;
    }
    if (r->spec.embedding != TUTTI_EMBEDDING_NONE) {
        bool is_wanted = r->spec.embedding == TUTTI_EMBEDDING_MEAN || is_end;
        entry->n_hidden = is_wanted && entry->first_pos < end ? end - entry->first_pos : 0;
        return;
    }
    /* The last row of a prompt gives the logits of the answer's first token. */
    int end_of_scores = end < r->n_prompt ? end : r->n_prompt - 1;
    if (r->spec.prompt_logprobs && entry->first_pos < end_of_scores) {
        entry->n_scores = end_of_scores - entry->first_pos;
        entry->first_score = step->n_outputs;
        for (int k = 0; k < entry->n_scores; k++)
            s->output_rows[step->n_outputs++] = row + entry->first_pos - begin + k;
    }
    if (!is_end || r->spec.no_answer)
        return;
    entry->output = step->n_outputs;
    for (int k = seq->n_drafts; k >= 0; k--)
        s->output_rows[step->n_outputs++] = row + seq->n_planned - 1 - k;
}

/* Appends the outputs with hidden states, which follow all others. */
static void choose_hidden(struct scheduler *s)
{
    struct step *step = &s->step;
    for (int i = 0, row = 0; i < s->n_entries; row += s->entries[i++].n_rows) {
        struct plan_entry *entry = &s->entries[i];
        entry->first_hidden = step->n_hidden;
        for (int k = 0; k < entry->n_hidden; k++, step->n_hidden++)
            s->output_rows[step->n_outputs++] = row + entry->first_pos - entry->seq->n_computed + k;
    }
}

static void fill_rows(struct scheduler *s)
{
    struct step *step = &s->step;
    *step = (struct step){ .token_ids = s->token_ids,
                           .positions = s->positions,
                           .seqs = s->row_seqs,
                           .page_tables = s->page_tables,
                           .output_rows = s->output_rows,
                           .slots = s->slots,
                           .window_tables = s->options.window > 0 ? s->window_tables : NULL,
                           .adapters = s->adapters };
    if (s->options.desc) {
        step->prefix_lens = s->prefix_lens;
        step->block_positions = s->block_positions;
    }
    if (s->options.desc || s->options.has_shifts)
        step->rope_positions = s->rope_positions;
    s->n_entries = 0;
    s->prefill_distance = 0;
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->n_planned == 0)
            continue;
        struct plan_entry *entry = &s->entries[s->n_entries++];
        assert(seq->source < 0 || seq->n_planned == 1); /* its last token is being drawn */
        *entry = (struct plan_entry){
            .seq = seq, .n_rows = seq->n_planned, .n_drafts = seq->n_drafts, .output = -1
        };
        if (sequence_n_pending(seq) > 1)
            s->prefill_distance += seq->n_planned * (seq->n_computed + 0.5 * seq->n_planned);
        for (int k = 0; k < seq->n_planned; k++) {
            int pos = seq->n_computed + k;
            s->token_ids[step->n_rows] = seq->ids[pos];
            s->token_sources[step->n_rows] = seq->source;
            if (seq->source >= 0)
                step->token_sources = s->token_sources;
            s->positions[step->n_rows] = pos;
            model_prefix_positions(&seq->prefix, pos, &s->rope_positions[step->n_rows],
                                   &s->block_positions[step->n_rows]);
            s->row_seqs[step->n_rows++] = step->n_seqs;
        }
        s->slots[step->n_seqs] = i;
        s->adapters[step->n_seqs] = seq->request->adapter;
        s->prefix_lens[step->n_seqs] = seq->prefix.n;
        for (int page = seq->n_passed; s->options.window > 0 && page < seq->n_pages; page++)
            seq->window_table[page] = kv_pool_slot(s->pool, seq->page_table[page]);
        s->window_tables[step->n_seqs] = seq->window_table;
        s->page_tables[step->n_seqs++] = seq->page_table;
        choose_outputs(s, entry, step->n_rows - seq->n_planned);
    }
    choose_hidden(s);
    assert(step->n_outputs - step->n_hidden <= s->options.max_outputs);
}

bool scheduler_plan(struct scheduler *s, uint64_t now_us)
{
    s->now_us = now_us;
    forecast_look(&s->forecast, now_us);
    admit(s);
    int n_free = s->options.max_seqs - s->n_running - s->n_preempted;
    forecast_close(&s->forecast, s->queue.weights, s->n_preempted > 0 ? 0 : n_free, now_us);
    choose_rows(s);
    find_pages(s);
    fill_rows(s);
    return s->step.n_rows > 0;
}
