/* The engine thread's loop: takes in requests, plans a step, computes it, draws tokens, passes them
 * to the text thread. */
#include "base/log.h"
#include "base/system/clock.h"
#include "base/system/os.h"
#include "engine/run/engine_state.h"

enum {
    MOVE_US = 1000, /* least time for moving pages between two steps */
    LOOK_AGAIN_US = 500000,
    FLUSH_US = 10 * 1000 * 1000, /* for spilling cached pages when the engine closes */
};

static void enter_phase(struct tutti_engine *e, const char *phase)
{
    atomic_store_explicit(&e->phase, phase, memory_order_relaxed);
}

/* Calls fn(arg, thread, n_threads) on the compute threads; if there are none, on the calling thread. */
static void run_on_team(struct tutti_engine *e, team_fn *fn, void *arg)
{
    const struct backend_ops *ops = e->model->backend->ops;
    if (ops->run)
        ops->run(e->model->backend, fn, arg);
    else
        fn(arg, 0, 1);
}

/* ---- new and cancelled requests ---- */

static void take_ready(struct tutti_engine *e)
{
    for (struct request *const *item; (item = queue_front(e->ready));) {
        /* A cancel before the hand-over did not find the request here. */
        if (atomic_load(&(*item)->is_cancelled))
            atomic_store(&e->has_ends, true);
        scheduler_add(e->scheduler, *item);
        queue_pop(e->ready);
    }
}

/* The request's time in the queue is over. */
static void time_out(void *user, struct request *r)
{
    struct tutti_engine *e = user;
    atomic_fetch_add(&e->stats.n_timed_out, 1);
    answers_end_unstarted(e, r, (struct record){ .finish = TUTTI_FINISH_ERROR, .status = TUTTI_E_TIMEOUT });
}

/* Ends every choice of the requests for which all is true or that were cancelled, and every choice whose
 * text has reached a stop string. */
static void end_requests(struct tutti_engine *e, const struct record *end, bool all)
{
    struct scheduler *s = e->scheduler;
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->state == SEQUENCE_FREE)
            continue;
        struct request *r = seq->request;
        bool ends = all || atomic_load(&r->is_cancelled);
        if (!ends && !atomic_load(&r->choices[seq->choice].is_ended))
            continue;
        if (ends && r->n_started < r->spec.n_choices)
            answers_end_unstarted(e, r, *end); /* r is still valid: this sequence has not ended yet */
        answers_end(e, seq, end->finish, end->status, NULL);
    }
    for (struct request *r = request_queue_first(&s->queue), *next; r; r = next) {
        next = request_queue_next(r);
        if (all || atomic_load(&r->is_cancelled))
            answers_end_unstarted(e, r, *end);
    }
}

static void take_ends(struct tutti_engine *e)
{
    if (atomic_exchange(&e->has_ends, false))
        end_requests(e, &(struct record){ .finish = TUTTI_FINISH_CANCELLED }, false);
}

/* A rank was lost, or the device failed: nothing can be computed any more, so all requests end. */
static void fail_all(struct tutti_engine *e)
{
    const struct record end = { .finish = TUTTI_FINISH_ERROR, .status = TUTTI_E_CLOSED, .is_over = true };
    enter_phase(e, NULL);
    end_requests(e, &end, true);
    e->scheduler->is_in_flight = false;
    struct tutti_error why = { 0 };
    if (!e->has_failed && model_check(e->model, &why) != TUTTI_OK && e->options.failed)
        e->options.failed(e->options.user, &why);
    e->has_failed = true;
}

/* ---- results of prompts ---- */

/* A request with a NaN or infinite prompt log-probability ends with all its choices, even those
 * that have not started. */
static void end_unscorable(struct tutti_engine *e)
{
    for (const struct score *bad; (bad = prompt_rows_bad_score(e));) {
        struct sequence *seq = bad->entry->seq;
        struct request *r = seq->request;
        struct sample sample = r->results->scores[bad->pos];
        bad->entry->output = -1;
        answers_end_unstarted(
            e, r,
            (struct record){ .finish = TUTTI_FINISH_ERROR, .status = TUTTI_E_NUMERIC, .sample = sample });
        answers_end(e, seq, TUTTI_FINISH_ERROR, TUTTI_E_NUMERIC, &sample);
    }
}

/* Requests without an answer end after their prefill. */
static void end_prefills(struct tutti_engine *e)
{
    struct scheduler *s = e->scheduler;
    for (int i = 0; i < s->n_entries; i++) {
        struct sequence *seq = s->entries[i].seq;
        if (seq->state != SEQUENCE_COMPUTED || !seq->request->spec.no_answer)
            continue;
        struct request *r = seq->request;
        bool is_mean = r->spec.embedding == TUTTI_EMBEDDING_MEAN, is_finite = true;
        if (r->spec.embedding != TUTTI_EMBEDDING_NONE)
            is_finite = prompt_results_finish(r->results, is_mean ? request_n_own(r) : 1);
        histogram_add(&e->stats.now.queue, seq->queue_us);
        e->stats.now.n_prompt_tokens += (uint64_t)request_n_own(r);
        e->stats.now.n_cached_tokens += (uint64_t)sequence_n_cached(seq);
        answers_end(e, seq, is_finite ? TUTTI_FINISH_LENGTH : TUTTI_FINISH_ERROR,
                    is_finite ? TUTTI_OK : TUTTI_E_NUMERIC, NULL);
    }
}

/* ---- the step ---- */

static void note_spill_counts(struct tutti_stats *now, const struct tutti_engine *e,
                              const struct kv_counts *pool)
{
    struct spill_counts copies = spill_counts(e->spill);
    struct spiller_counts pages = spiller_counts(e->spiller);
    struct backend *be = e->model->backend;
    uint64_t page_bytes = be->ops->kv_page_bytes(be, e->model->kv_type);
    now->kv_spill_pages = copies.n_pages;
    now->kv_spill_host_pages = copies.n_host_pages;
    now->kv_spill_host_bytes = copies.n_host_pages * page_bytes;
    now->n_spilled_pages = copies.n_written;
    now->n_spilled_bytes = copies.n_written * page_bytes;
    now->n_restored_pages = pages.n_restored_pages;
    now->n_restored_bytes = pages.n_restored_pages * page_bytes;
    now->n_host_restored_pages = pages.n_host_restored_pages;
    now->n_spill_looked_up_pages = pages.n_looked_up_pages;
    now->n_spill_found_pages = pages.n_found_pages;
    now->n_spill_evictions = copies.n_evictions;
    now->n_spill_host_evictions = copies.n_host_evictions;
    now->n_spill_lost_pages = pool->n_lost;
    now->n_spill_write_errors = copies.n_write_errors;
    now->n_spill_read_errors = copies.n_read_errors;
}

static void note_counts(struct tutti_engine *e, bool is_busy)
{
    struct kv_counts counts = kv_pool_counts(e->scheduler->pool);
    struct tutti_stats *now = &e->stats.now;
    now->kv_pages_used = (uint64_t)counts.n_used;
    now->kv_pages_cached = (uint64_t)counts.n_cached;
    now->kv_pages_free = (uint64_t)counts.n_free;
    now->n_evictions = counts.n_evictions;
    if (e->spiller)
        note_spill_counts(now, e, &counts);
    now->n_running = (uint64_t)e->scheduler->n_running;
    now->n_waiting = (uint64_t)e->scheduler->n_preempted;
    now->n_preemptions = e->scheduler->n_preemptions;
    e->stats.n_begun = e->scheduler->n_begun;
    request_queue_count(&e->scheduler->queue, now->waiting, clock_now_us());
    now->waiting_tokens_per_s = atomic_load_explicit(&e->scheduler->forecast.rate, memory_order_relaxed);
    if (e->draft) {
        draft_follow(e->draft, e->scheduler->seqs);
        struct draft_counts draft = draft_counts(e->draft);
        now->n_draft_passes = draft.n_passes;
        now->n_draft_rows = draft.n_rows;
        now->draft_pages_used = (uint64_t)draft.pages.n_used;
        now->draft_pages_cached = (uint64_t)draft.pages.n_cached;
    }
    stats_publish(&e->stats, !is_busy);
}

/* Plans a step and hands it to the device. False: there is nothing to compute now. *is_any_waiting: a sequence waits for
 * its token mask. */
static bool submit_step(struct tutti_engine *e, bool *is_any_waiting)
{
    struct scheduler *s = e->scheduler;
    uint64_t now_us = clock_now_us();
    enter_phase(e, "planning");
    *is_any_waiting = e->constraints && draws_wake(e);
    request_queue_drop_late(&s->queue, now_us, time_out, e);
    if (!scheduler_plan(s, now_us))
        return false;
    enter_phase(e, "copying pages");
    for (int i = 0; i < s->n_copies; i++)
        model_kv_copy_page(e->model, e->kv, &s->copies[i]);
    enter_phase(e, "forward pass");
    s->step.hidden = e->hidden;
    e->submitted = (struct submission){ .n_rows = s->step.n_rows,
                                        .n_decoding_rows = s->n_decoding_rows,
                                        .n_draft_rows = s->n_draft_rows,
                                        .prefill_distance = s->prefill_distance,
                                        .plan_us = s->plan_us,
                                        .may_speculate = s->may_speculate,
                                        .draft_us = s->draft_us,
                                        .submit_us = clock_now_us() };
    e->logits = e->hooks.submit(e->model, e->kv, &s->step);
    s->is_in_flight = true;
    return true;
}

/* The step is computed: notes its duration, which begins when the device had nothing else to do. */
static uint64_t note_duration(struct tutti_engine *e, const struct submission *step)
{
    uint64_t now_us = clock_now_us(),
             begin_us = e->computed_us > step->submit_us ? e->computed_us : step->submit_us;
    if (step->n_draft_rows == 0)
        pace_note(&e->scheduler->pace, step->n_decoding_rows, step->n_rows - step->n_decoding_rows,
                  step->prefill_distance, now_us - begin_us);
    e->computed_us = now_us;
    return now_us - begin_us;
}

/* Waits for the step, and draws what needs no waiting token mask. */
static void finish_step(struct tutti_engine *e, const struct submission *step)
{
    e->hooks.wait(e->model);
    if (model_is_lost(e->model))
        return;
    uint64_t step_us = note_duration(e, step);
    enter_phase(e, "sampling");
    if (e->constraints)
        draws_drop_late(e, step_us);
    prompt_rows_take(e);
    hidden_rows_keep(e);
    scheduler_advance(e->scheduler);
    end_unscorable(e);
    draws_collect(e);
    draws_run(e);
}

/* While the step is computed: submits sampling, assumes that all sequences continue, and submits the next step. Then waits
 * for the tokens. False: a draw needs the host, and only scheduler_advance() and draws_collect() were called. */
static bool run_ahead(struct tutti_engine *e, const struct submission *step)
{
    struct scheduler *s = e->scheduler;
    bool is_any_waiting;
    enter_phase(e, "sampling");
    scheduler_advance(s);
    draws_collect(e);
    if (!draws_submit(e))
        return false;
    for (int i = 0; i < e->n_draws; i++)
        scheduler_assume(s, e->draws[i].seq, i);
    e->stats.now.n_ahead_steps += submit_step(e, &is_any_waiting);
    enter_phase(e, "sampling");
    draws_take(e);
    (void)note_duration(e, step);
    return true;
}

/* Gets the tokens of the submitted step. Returns whether the next one is submitted already, or has nothing to compute. */
static bool complete_step(struct tutti_engine *e, const struct submission *step)
{
    if (!draws_can_submit(e)) {
        finish_step(e, step);
        return false;
    }
    if (run_ahead(e, step))
        return true;
    e->hooks.wait(e->model);
    (void)note_duration(e, step);
    draws_run(e);
    return false;
}

/* Sequences that ended have left the step in flight. If none is left in it, it is only waited for. */
static void drop_empty_step(struct tutti_engine *e)
{
    struct scheduler *s = e->scheduler;
    if (!s->is_in_flight || s->n_entries > 0)
        return;
    e->hooks.wait(e->model);
    e->computed_us = clock_now_us();
    s->is_in_flight = false;
}

/* True: a step was computed, or there may be more to do. */
static bool do_step(struct tutti_engine *e)
{
    struct scheduler *s = e->scheduler;
    uint64_t start_us = clock_now_us();
    if (model_is_lost(e->model)) {
        fail_all(e);
        return false;
    }
    drop_empty_step(e);
    bool is_any_waiting = false;
    if (!s->is_in_flight && !submit_step(e, &is_any_waiting)) {
        enter_phase(e, NULL);
        /* A mask or a page that arrives rings the bell. */
        return !is_any_waiting && s->n_restoring == 0 && s->n_running + s->n_preempted + s->queue.n > 0;
    }
    const struct submission step = e->submitted;
    take_ready(e); /* needs no result of the step */
    bool is_ahead = complete_step(e, &step);
    if (model_is_lost(e->model)) {
        fail_all(e);
        return false;
    }
    struct speculation_result completed = { .n_rows = step.n_rows,
                                            .n_drafts = step.n_draft_rows,
                                            .may_speculate = step.may_speculate,
                                            .draft_us = step.draft_us,
                                            .plan_us = step.plan_us };
    enter_phase(e, "handing over");
    uint64_t now_us = clock_now_us();
    for (int i = 0; i < e->n_draws;)
        i += answers_commit(e, &e->draws[i], now_us, &completed);
    if (!is_ahead) {
        hidden_rows_settle(e);
        end_prefills(e);
    }
    e->stats.now.n_steps++;
    e->step_us = clock_now_us() - start_us;
    uint64_t speculation_us = completed.draft_us + (uint64_t)completed.plan_us;
    completed.us = e->step_us > speculation_us ? e->step_us - speculation_us : 0;
    if (step.n_rows == step.n_decoding_rows + step.n_draft_rows)
        speculation_note(&s->speculation, &completed);
    histogram_add(&e->stats.now.step, e->step_us);
    audit_check(e);
    enter_phase(e, NULL);
    return true;
}

/* Moves pages to and from host memory and the spill file, for up to an eighth of a step's time.
 * True: there is more to do. */
static bool move_pages(struct tutti_engine *e)
{
    if (!e->spiller)
        return false;
    enter_phase(e, "moving pages");
    bool has_more = spiller_work(e->spiller, e->step_us / 8 > MOVE_US ? e->step_us / 8 : MOVE_US);
    enter_phase(e, NULL);
    return has_more;
}

/* Waits for pages on their way to or from the device, which ring no bell; else for the bell, with a timeout if pages are
 * awaited from the spill file, or if requests have a time limit while all sequences wait for their masks or pages. */
static void wait_for_work(struct tutti_engine *e, unsigned ticket)
{
    const struct scheduler *s = e->scheduler;
    if (e->spiller && spiller_wait(e->spiller))
        return;
    uint64_t end_us = s->queue.n > 0 ? s->queue.next_deadline_us : UINT64_MAX;
    uint64_t look_us = s->n_restoring > 0 ? clock_now_us() + LOOK_AGAIN_US : UINT64_MAX;
    end_us = look_us < end_us ? look_us : end_us;
    if (end_us < UINT64_MAX)
        (void)bell_wait_until(&e->engine_bell, ticket, end_us);
    else
        bell_wait(&e->engine_bell, ticket);
}

static void watch_thread(void *arg, int thread, int n_threads)
{
    struct tutti_engine *e = arg;
    (void)thread;
    (void)n_threads;
    alloc_guard_watch(&e->phase);
}

static void unwatch_thread(void *arg, int thread, int n_threads)
{
    (void)arg;
    (void)thread;
    (void)n_threads;
    alloc_guard_watch(NULL);
}

void *step_main(void *arg)
{
    struct tutti_engine *e = arg;
    os_name_thread("tutti-engine");
    if (e->model->backend->ops->bind_caller)
        e->model->backend->ops->bind_caller(e->model->backend);
    run_on_team(e, watch_thread, e);
    for (;;) {
        unsigned ticket = bell_ticket(&e->engine_bell);
        take_ready(e);
        take_ends(e);
        bool is_busy = move_pages(e);
        is_busy |= do_step(e);
        atomic_store(&e->is_settled, !is_busy && !(e->spill && spill_is_busy(e->spill)));
        note_counts(e, is_busy);
        answers_flush(e);
        if (is_busy)
            continue;
        if (atomic_load(&e->is_stopping))
            break;
        wait_for_work(e, ticket);
    }
    if (e->spiller)
        spiller_flush(e->spiller, &e->engine_bell, FLUSH_US);
    run_on_team(e, unwatch_thread, NULL);
    return NULL;
}
