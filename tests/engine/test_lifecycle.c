/* The states of a sequence: the state after each operation of lifecycle.h, and that no other transition is possible. */
#include "engine/schedule/lifecycle.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE = 16, MAX_CONTEXT = 128, MAX_REQUESTS = 8, VOCAB = 4 };

struct bench {
    struct scheduler *s;
    struct share share, other;
    struct request *requests[MAX_REQUESTS];
    int32_t *prompts[MAX_REQUESTS];
    int n_requests;
};

static struct bench bench_new(struct scheduler_options options)
{
    struct bench b = { 0 };
    options.max_requests = MAX_REQUESTS;
    options.page_tokens = PAGE;
    options.max_context = MAX_CONTEXT;
    options.max_batch_tokens = options.max_outputs = 64;
    if (options.n_slots == 0)
        options.n_slots = options.n_pages;
    assert_int_equal(scheduler_new(&b.s, &options, NULL), TUTTI_OK);
    return b;
}

/* All requests have ended: no slot and no page is in use. */
static void bench_free(struct bench *b)
{
    assert_int_equal(b->s->n_running + b->s->n_preempted, 0);
    assert_int_equal(kv_pool_counts(b->s->pool).n_used, 0);
    for (int i = 0; i < b->s->options.max_seqs; i++)
        assert_int_equal(b->s->seqs[i].state, SEQUENCE_FREE);
    scheduler_free(b->s);
    for (int i = 0; i < b->n_requests; i++) {
        beam_search_free(b->requests[i]->beams);
        free(b->requests[i]);
        free(b->prompts[i]);
    }
}

/* Queues a request whose prompt repeats the same VOCAB tokens. */
static struct request *add_for(struct bench *b, struct share *share, int priority, int n_prompt,
                               int n_choices, int n_beams)
{
    int i = b->n_requests++;
    struct request *r = calloc(1, sizeof *r + (size_t)n_choices * sizeof(struct choice));
    int32_t *prompt = calloc((size_t)n_prompt, sizeof *prompt);
    assert_true(r && prompt && i < MAX_REQUESTS);
    for (int k = 0; k < n_prompt; k++)
        prompt[k] = 100 * i + k % VOCAB;
    r->serial = (uint64_t)i + 1;
    r->adapter = -1;
    r->prompt = prompt;
    r->n_prompt = n_prompt;
    r->spec.n_choices = n_choices;
    r->spec.weight = 1;
    r->spec.priority = priority;
    r->share = share;
    if (n_beams > 0)
        assert_int_equal(beam_search_new(&r->beams, n_beams, n_beams, 10, NULL), TUTTI_OK);
    b->requests[i] = r;
    b->prompts[i] = prompt;
    scheduler_add(b->s, r);
    return r;
}

static struct request *add(struct bench *b, int n_prompt, int n_choices, int n_beams)
{
    return add_for(b, &b->share, 0, n_prompt, n_choices, n_beams);
}

static void audit(struct bench *b)
{
    const char *complaint = scheduler_audit(b->s);
    if (complaint)
        fail_msg("%s", complaint);
}

static void compute(struct bench *b, int n_rows)
{
    assert_true(scheduler_plan(b->s, 1));
    assert_int_equal(b->s->step.n_rows, n_rows);
    scheduler_advance(b->s);
}

static void commit_one(struct bench *b, struct sequence *seq, int32_t token)
{
    assert_int_equal(seq->state, SEQUENCE_COMPUTED);
    scheduler_commit(b->s, seq, &token, 1);
    assert_int_equal(seq->state, SEQUENCE_DECODE);
}

static void a_commit_keeps_the_accepted_drafts_and_drops_the_others(void **state)
{
    (void)state;
    enum { PROMPT = 14, DRAFTS = 20 };
    for (int n_accepted = 0; n_accepted <= DRAFTS; n_accepted++) {
        struct bench b = bench_new((struct scheduler_options){
            .max_seqs = 1, .n_pages = 8, .max_lookup_tokens = DRAFTS, .forces_drafts = true });
        add(&b, PROMPT, 1, 0);
        compute(&b, PROMPT);
        struct sequence *seq = b.s->entries[0].seq;
        commit_one(&b, seq, PROMPT % VOCAB);
        compute(&b, 1 + DRAFTS);
        assert_int_equal(seq->n_drafts, DRAFTS);
        assert_int_equal(seq->n_pages, 3);
        int32_t tokens[DRAFTS + 1];
        memcpy(tokens, seq->ids + seq->n_ids, DRAFTS * sizeof *tokens);
        tokens[n_accepted] = 77; /* differs from its draft, or follows the last one */
        scheduler_commit(b.s, seq, tokens, n_accepted + 1);
        assert_int_equal(seq->state, SEQUENCE_DECODE);
        assert_int_equal(seq->n_ids, PROMPT + 1 + n_accepted + 1);
        assert_int_equal(seq->n_computed, PROMPT + 1 + n_accepted);
        assert_int_equal(seq->n_pages, (seq->n_ids + PAGE - 1) / PAGE);
        assert_int_equal(seq->n_published, seq->n_computed / PAGE);
        assert_int_equal(seq->n_drafts, 0);
        assert_int_equal(seq->ids[seq->n_ids - 1], 77);
        audit(&b);
        scheduler_finish(b.s, seq);
        bench_free(&b);
    }
}

static void an_answer_may_end_with_accepted_drafts_alone(void **state)
{
    (void)state;
    struct bench b = bench_new((struct scheduler_options){
        .max_seqs = 1, .n_pages = 8, .max_lookup_tokens = 4, .forces_drafts = true });
    add(&b, 14, 1, 0);
    compute(&b, 14);
    struct sequence *seq = b.s->entries[0].seq;
    commit_one(&b, seq, 14 % VOCAB);
    compute(&b, 5);
    scheduler_commit(b.s, seq, &(int32_t){ 15 % VOCAB }, 1); /* then a stop token */
    assert_int_equal(seq->state, SEQUENCE_COMPUTED);
    assert_int_equal(seq->n_computed, 16);
    assert_int_equal(seq->n_published, 1);
    scheduler_finish(b.s, seq);
    bench_free(&b);
}

static void choices_share_the_prompt_and_those_without_a_slot_return_to_the_queue(void **state)
{
    (void)state;
    struct bench b = bench_new((struct scheduler_options){ .max_seqs = 2, .n_pages = 20 });
    struct request *r = add(&b, 20, 3, 0);
    compute(&b, 20);
    struct sequence *first = b.s->entries[0].seq, *second = scheduler_fork(b.s, first);
    assert_non_null(second);
    assert_int_equal(second->state, SEQUENCE_COMPUTED);
    assert_int_equal(second->choice, 1);
    assert_memory_equal(second->ids, first->ids, 20 * sizeof *first->ids);
    assert_int_equal(kv_pool_counts(b.s->pool).n_used, 2);
    assert_int_equal(b.s->queue.n, 0);
    assert_null(scheduler_fork(b.s, first));
    assert_int_equal(b.s->queue.n, 1);
    commit_one(&b, first, 5);
    commit_one(&b, second, 6);
    audit(&b);
    compute(&b, 2); /* the last page is copied: each writes its own token there */
    assert_int_equal(b.s->n_copies, 1);
    commit_one(&b, first, 5);
    scheduler_finish(b.s, second);
    audit(&b);
    compute(&b, 1 + 4); /* the third choice: a page of the prompt is in the prefix cache */
    struct sequence *third = b.s->entries[b.s->entries[0].seq == first].seq;
    assert_int_equal(third->choice, 2);
    assert_int_equal(r->n_started, 3);
    assert_null(scheduler_fork(b.s, third));
    assert_null(scheduler_fork(b.s, first)); /* past its prompt */
    assert_int_equal(b.s->queue.n, 0);
    scheduler_finish(b.s, first);
    scheduler_finish(b.s, third);
    bench_free(&b);
}

/* The pool is empty, and the choice that is preempted was the other one that had the page. Then there is nothing to copy. */
static void a_page_is_ones_own_when_its_other_holder_is_preempted(void **state)
{
    (void)state;
    for (int n_slots = 6; n_slots <= 8;
         n_slots += 2) { /* of the layers with a window: fewer than pages, or as many */
        struct bench b = bench_new((struct scheduler_options){
            .max_seqs = 2, .n_pages = 8, .n_slots = n_slots, .window = n_slots < 8 ? 16 : 0 });
        int32_t rest[6];
        add(&b, 20, 2, 0);
        compute(&b, 20);
        struct sequence *first = b.s->entries[0].seq, *second = scheduler_fork(b.s, first);
        commit_one(&b, first, 1);
        commit_one(&b, second, 2);
        assert_true(kv_pool_is_shared(b.s->pool, first->page_table[1]));
        assert_true(kv_pool_take(b.s->pool, 6, rest));
        int32_t page = first->page_table[1], slot = kv_pool_slot(b.s->pool, page);
        compute(&b, 1);
        assert_int_equal(second->state, SEQUENCE_PREEMPTED);
        assert_int_equal(b.s->n_copies, 0);
        assert_int_equal(first->page_table[1], page);
        assert_int_equal(kv_pool_slot(b.s->pool, page), slot);
        commit_one(&b, first, 1);
        kv_pool_drop(b.s->pool, rest, 6, 0);
        audit(&b);
        scheduler_finish(b.s, first);
        scheduler_finish(b.s, second);
        bench_free(&b);
    }
}

static void siblings_take_slots_give_way_and_finish_together(void **state)
{
    (void)state;
    struct bench b = bench_new((struct scheduler_options){ .max_seqs = 4, .n_pages = 8 });
    add(&b, 20, 1, 3);
    compute(&b, 20);
    struct sequence *beams[3] = { b.s->entries[0].seq };
    assert_null(scheduler_fork(b.s, beams[0]));
    for (int i = 1; i < 3; i++) {
        beams[i] = beams[i - 1]->sibling;
        assert_int_equal(beams[i]->state, SEQUENCE_RESERVED);
        scheduler_copy(b.s, beams[i], beams[0]);
    }
    assert_ptr_equal(beams[2]->sibling, beams[0]);
    for (int i = 0; i < 3; i++)
        commit_one(&b, beams[i], i);
    audit(&b);
    assert_int_equal(kv_pool_counts(b.s->pool).n_used, 2);
    assert_true(beams[0]->order < beams[1]->order && beams[1]->order < beams[2]->order);
    lifecycle_preempt_last(b.s);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(beams[i]->state, SEQUENCE_PREEMPTED);
        assert_int_equal(beams[i]->n_ids, 21);
        assert_int_equal(beams[i]->n_pages, 0);
    }
    audit(&b);
    compute(&b, 3 * 5); /* each again, after the page in the prefix cache */
    scheduler_copy(b.s, beams[2], beams[1]);
    assert_int_equal(beams[2]->ids[20], 1);
    commit_one(&b, beams[0], 9);
    commit_one(&b, beams[2], 9);
    audit(&b); /* the middle one waits for its siblings */
    assert_int_equal(beams[1]->state, SEQUENCE_COMPUTED);
    scheduler_finish(b.s, beams[1]);
    bench_free(&b);
}

static void a_late_mask_takes_the_last_row_back(void **state)
{
    (void)state;
    struct bench b = bench_new((struct scheduler_options){ .max_seqs = 2, .n_pages = 20 });
    add(&b, 5, 1, 0);
    compute(&b, 5);
    struct sequence *seq = b.s->entries[0].seq;
    commit_one(&b, seq, 1);
    assert_true(scheduler_plan(b.s, 1));
    b.s->entries[0].is_late = true;
    b.s->entries[0].output = -1;
    double service = b.share.service;
    scheduler_advance(b.s);
    assert_int_equal(seq->state, SEQUENCE_MASK_WAIT);
    assert_int_equal(seq->n_computed, 5);
    assert_true(b.share.service <= service); /* no token, no charge */
    audit(&b);
    assert_false(scheduler_plan(b.s, 1));
    scheduler_wake(b.s, seq);
    compute(&b, 1);
    commit_one(&b, seq, 1);
    scheduler_finish(b.s, seq);
    bench_free(&b);
}

/* Plans a step, which stays in flight. */
static void submit(struct bench *b, int n_rows)
{
    assert_true(scheduler_plan(b->s, 1));
    assert_int_equal(b->s->step.n_rows, n_rows);
    b->s->is_in_flight = true;
}

static void a_step_is_planned_while_tokens_are_drawn(void **state)
{
    (void)state;
    struct bench b = bench_new(
        (struct scheduler_options){ .max_seqs = 4, .n_pages = 20, .runs_ahead = true });
    struct sequence *seqs[4];
    for (int i = 0; i < 4; i++)
        add(&b, 15, 1, 0);
    compute(&b, 60);
    assert_null(b.s->step.token_sources); /* all tokens are known */
    for (int i = 0; i < 4; i++) {
        seqs[i] = b.s->entries[i].seq;
        seqs[i]->max_ids = i == 3 ? 16 : 20;
        scheduler_assume(b.s, seqs[i], 3 - i);
        assert_int_equal(seqs[i]->state, SEQUENCE_DECODE);
    }
    submit(&b, 3); /* the last one has all its tokens */
    for (int i = 0; i < 3; i++)
        assert_int_equal(b.s->step.token_sources[i], 3 - i);
    scheduler_commit(b.s, seqs[0], &(int32_t){ 9 }, 1); /* goes on */
    assert_int_equal(seqs[0]->ids[15], 9);
    assert_int_equal(seqs[0]->n_ids, 16);
    scheduler_commit(b.s, seqs[1], NULL, 0); /* its end */
    assert_int_equal(seqs[1]->n_ids, 15);
    scheduler_finish(b.s, seqs[1]);
    scheduler_redraw(b.s, seqs[2]);
    assert_int_equal(seqs[2]->state, SEQUENCE_PREEMPTED);
    assert_int_equal(seqs[2]->n_ids, 15);
    assert_true(seqs[2]->needs_host);
    scheduler_commit(b.s, seqs[3], &(int32_t){ 7 }, 1);
    scheduler_finish(b.s, seqs[3]);
    audit(&b);
    assert_int_equal(b.s->n_entries, 1);
    assert_ptr_equal(b.s->entries[0].seq, seqs[0]);
    scheduler_advance(b.s);
    assert_int_equal(seqs[0]->n_computed, 16); /* with its token: the page is published */
    assert_int_equal(seqs[0]->n_published, 1);
    scheduler_assume(b.s, seqs[0], 0);
    submit(&b, 1 + 15); /* the other one again */
    assert_int_equal(b.s->step.token_ids[0], 0);
    scheduler_commit(b.s, seqs[0], &(int32_t){ 8 }, 1);
    audit(&b);
    scheduler_finish(b.s, seqs[0]);
    scheduler_finish(b.s, seqs[2]);
    assert_int_equal(b.s->n_entries, 0);
    for (int i = 0; i < 4; i++)
        add(&b, 15, 1, 0);
    compute(&b, 60);
    for (int i = 0; i < 4; i++) { /* only the sequence that was redrawn needed the host, not its slot */
        assert_false(b.s->entries[i].seq->needs_host);
        commit_one(&b, b.s->entries[i].seq, 1);
        scheduler_finish(b.s, b.s->entries[i].seq);
    }
    bench_free(&b);
}

static void choices_without_a_slot_are_queued_once_if_the_prompt_is_computed_again(void **state)
{
    (void)state;
    struct bench b = bench_new(
        (struct scheduler_options){ .max_seqs = 1, .n_pages = 20, .runs_ahead = true });
    struct request *r = add(&b, 20, 3, 0);
    compute(&b, 20);
    struct sequence *seq = b.s->entries[0].seq;
    assert_null(scheduler_fork(b.s, seq));
    assert_int_equal(b.s->queue.n, 1);
    scheduler_assume(b.s, seq, 0);
    scheduler_redraw(b.s, seq);
    audit(&b);
    compute(&b, 4); /* its logits again */
    assert_null(scheduler_fork(b.s, seq));
    assert_int_equal(b.s->queue.n, 1);
    for (int choice = 0; choice < 3; choice++) {
        assert_int_equal(r->n_started, choice + 1);
        assert_int_equal(b.s->queue.n, choice < 2);
        commit_one(&b, seq, choice);
        scheduler_finish(b.s, seq);
        audit(&b);
        if (choice == 2)
            break;
        compute(&b, 4);
        assert_int_equal(seq->choice, choice + 1);
        assert_null(scheduler_fork(b.s, seq));
    }
    assert_false(scheduler_plan(b.s, 1));
    bench_free(&b);
}

static void cached_tokens_are_counted_once_if_the_prompt_is_prefilled_again(void **state)
{
    (void)state;
    enum { PROMPT = 5 * PAGE, CACHED = 4 * PAGE }; /* the last token is computed */
    struct bench b = bench_new((struct scheduler_options){ .max_seqs = 2, .n_pages = 20 });
    int32_t pages[20];
    add(&b, PROMPT, 1, 0);
    compute(&b, 64);
    compute(&b, PROMPT - 64);
    scheduler_finish(b.s, b.s->entries[0].seq);
    add(&b, PROMPT, 1, 0);
    memcpy(b.prompts[1], b.prompts[0], PROMPT * sizeof *b.prompts[0]);
    assert_true(scheduler_plan(b.s, 1));
    struct sequence *seq = b.s->entries[0].seq;
    assert_int_equal(seq->n_cached, CACHED);
    lifecycle_preempt_last(b.s);
    assert_true(kv_pool_take(b.s->pool, 20, pages)); /* evicts all */
    kv_pool_drop(b.s->pool, pages, 20, 0);
    /* Another one computes the pages first, and the sequence takes them over. */
    add_for(&b, &b.share, TUTTI_PRIORITY_FIRST, PROMPT, 1, 0);
    memcpy(b.prompts[2], b.prompts[0], PROMPT * sizeof *b.prompts[0]);
    compute(&b, 64);
    assert_ptr_not_equal(b.s->entries[0].seq, seq);
    assert_int_equal(b.s->n_entries, 1);
    compute(&b, 2 * PAGE);
    assert_int_equal(seq->state, SEQUENCE_COMPUTED);
    assert_int_equal(seq->n_cached, CACHED);
    for (int i = 1; i >= 0; i--)
        scheduler_finish(b.s, b.s->entries[i].seq);
    bench_free(&b);
}

/* A request comes before the sequences, but needs slots that only they can free. */
static void preempted_sequences_run_if_the_next_request_lacks_slots(void **state)
{
    (void)state;
    for (int n_beams = 0; n_beams <= 2; n_beams += 2) { /* of one choice, or of two beams */
        struct bench b = bench_new(
            (struct scheduler_options){ .max_seqs = 2, .n_pages = 20, .runs_ahead = true });
        struct sequence *seqs[2];
        for (int i = 0; i < 2; i++)
            add(&b, 15, 1, 0);
        compute(&b, 30);
        for (int i = 0; i < 2; i++) {
            seqs[i] = b.s->entries[i].seq;
            scheduler_assume(b.s, seqs[i], i);
        }
        scheduler_redraw(b.s, seqs[0]);
        scheduler_redraw(b.s, seqs[1]);
        if (n_beams > 0)
            scheduler_finish(b.s, seqs[0]); /* one slot is free, and two are needed */
        add_for(&b, &b.other, TUTTI_PRIORITY_FIRST, 20, 1, n_beams);
        compute(&b, n_beams > 0 ? 15 : 30);
        for (int i = n_beams > 0; i < 2; i++)
            scheduler_finish(b.s, seqs[i]);
        compute(&b, 20);
        scheduler_finish(b.s, b.s->entries[0].seq);
        bench_free(&b);
    }
}

static void a_recomputed_sequence_is_in_prefill_again(void **state)
{
    (void)state;
    struct bench b = bench_new((struct scheduler_options){ .max_seqs = 1, .n_pages = 8 });
    add(&b, 20, 1, 0)->spec.no_kv_cache = true;
    compute(&b, 20);
    struct sequence *seq = b.s->entries[0].seq;
    for (int n = 21; n < 24; n++) {
        commit_one(&b, seq, 1);
        scheduler_recompute(b.s, seq);
        assert_int_equal(seq->state, SEQUENCE_PREFILL);
        assert_int_equal(kv_pool_counts(b.s->pool).n_free, 8);
        audit(&b);
        compute(&b, n); /* nothing comes from the prefix cache */
    }
    scheduler_finish(b.s, seq);
    bench_free(&b);
}

/* ---- other transitions ---- */

enum fault {
    COMMIT_IN_DECODE,
    COMMIT_IN_PREFILL,
    WAKE_IN_PREFILL,
    RECOMPUTE_IN_PREFILL,
    COPY_TO_ANOTHER_REQUEST,
    FORK_IN_PREFILL
};

static void commit_fault(enum fault fault)
{
    struct bench b = bench_new((struct scheduler_options){ .max_seqs = 3, .n_pages = 20 });
    add(&b, 20, 2, 0);
    add(&b, 60, 2, 0);
    compute(&b, 64); /* the second is computed in part */
    struct sequence *first = b.s->entries[0].seq, *second = b.s->entries[1].seq;
    commit_one(&b, first, 1);
    int32_t token = 1;
    if (fault == COMMIT_IN_DECODE)
        scheduler_commit(b.s, first, &token, 1);
    else if (fault == COMMIT_IN_PREFILL)
        scheduler_commit(b.s, second, &token, 1);
    else if (fault == WAKE_IN_PREFILL)
        scheduler_wake(b.s, second);
    else if (fault == RECOMPUTE_IN_PREFILL)
        scheduler_recompute(b.s, second);
    else if (fault == COPY_TO_ANOTHER_REQUEST)
        scheduler_copy(b.s, second, first);
    else
        (void)scheduler_fork(b.s, second);
}

static void any_other_transition_ends_the_program(void **state)
{
    (void)state;
    for (enum fault fault = COMMIT_IN_DECODE; fault <= FORK_IN_PREFILL; fault++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            signal(SIGABRT, SIG_DFL); /* cmocka catches it */
            (void)close(STDERR_FILENO);
            commit_fault(fault);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
            fail_msg("fault %d: the program went on (status %d)", (int)fault, status);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_commit_keeps_the_accepted_drafts_and_drops_the_others),
        cmocka_unit_test(an_answer_may_end_with_accepted_drafts_alone),
        cmocka_unit_test(choices_share_the_prompt_and_those_without_a_slot_return_to_the_queue),
        cmocka_unit_test(a_page_is_ones_own_when_its_other_holder_is_preempted),
        cmocka_unit_test(siblings_take_slots_give_way_and_finish_together),
        cmocka_unit_test(a_late_mask_takes_the_last_row_back),
        cmocka_unit_test(a_step_is_planned_while_tokens_are_drawn),
        cmocka_unit_test(choices_without_a_slot_are_queued_once_if_the_prompt_is_computed_again),
        cmocka_unit_test(cached_tokens_are_counted_once_if_the_prompt_is_prefilled_again),
        cmocka_unit_test(preempted_sequences_run_if_the_next_request_lacks_slots),
        cmocka_unit_test(a_recomputed_sequence_is_in_prefill_again),
        cmocka_unit_test(any_other_transition_ends_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
