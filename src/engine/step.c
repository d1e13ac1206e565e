/* The engine thread: takes in what came, plans a step, computes it, draws tokens, hands them to the text thread. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_state.h"

#include <assert.h>
#include <sched.h>

enum {
    MOVE_US = 1000, /* for moving pages between two steps, at least */
    LOOK_AGAIN_US = 500000,
    FLUSH_US = 10 * 1000 * 1000, /* for writing what is cached when the engine closes */
};

static void enter_phase(struct tutti_engine *e, const char *phase)
{
    atomic_store_explicit(&e->phase, phase, memory_order_relaxed);
}

void run_on_team(struct tutti_engine *e, team_fn *fn, void *arg)
{
    const struct backend_ops *ops = e->model->backend->ops;
    if (ops->run)
        ops->run(e->model->backend, fn, arg);
    else
        fn(arg, 0, 1);
}

/* ---- to the text thread ---- */

/* The ring holds many steps of tokens; where the text thread is that far behind, the engine waits, and says so. */
static void send(struct tutti_engine *e, const struct record *record)
{
    if (queue_push(e->records, record))
        return;
    e->stats.now.n_text_waits++;
    for (;;) {
        unsigned ticket = bell_ticket(&e->engine_bell);
        atomic_store(&e->wants_room, true);
        queue_publish(e->records);
        bell_ring(&e->text_bell);
        if (queue_push(e->records, record))
            break;
        bell_wait(&e->engine_bell, ticket);
    }
    atomic_store(&e->wants_room, false);
}

static void flush(struct tutti_engine *e)
{
    queue_publish(e->records);
    bell_ring(&e->text_bell);
}

static int slot_of(const struct tutti_engine *e, const struct sequence *seq)
{
    return (int)(seq - e->scheduler->seqs);
}

static void end_slot(struct tutti_engine *e, struct sequence *seq)
{
    if (seq->request->grammar)
        constraint_end(e->constraints, slot_of(e, seq));
    if (seq->n_ids > seq->n_prompt && !seq->request->beams)
        forecast_answer(&e->scheduler->forecast, seq->n_ids - seq->n_prompt);
    scheduler_end(e->scheduler, seq);
}

static struct record record_of(const struct sequence *seq)
{
    return (struct record){ .request = seq->request,
                            .choice = seq->choice,
                            .n_cached = (size_t)seq->n_cached,
                            .queue_us = seq->queue_us,
                            .ttft_us = seq->ttft_us,
                            .n_accepted = seq->n_accepted,
                            .n_rejected = seq->n_rejected };
}

/* With all choices of a request that ends as one. sample: what ended it, or was wrong with it; NULL: no token. After this the request may
 * be gone. */
static void end_sequence(struct tutti_engine *e, struct sequence *seq, enum tutti_finish finish,
                         enum tutti_status status, const struct sample *sample)
{
    struct record record = record_of(seq);
    int n_choices = request_ends_as_one(seq->request) ? seq->request->spec.n_choices : 1;
    record.finish = finish;
    record.status = status;
    record.is_over = !sample;
    if (sample)
        record.sample = *sample;
    record.has_stop_token = sample && finish == TUTTI_FINISH_STOP;
    end_slot(e, seq);
    for (; n_choices > 0; n_choices--, record.choice++)
        send(e, &record);
}

/* ---- what came ---- */

static void take_ready(struct tutti_engine *e)
{
    for (struct request *const *item; (item = queue_front(e->ready));) {
        /* A cancel that came before the hand-over was looked for in vain. */
        if (atomic_load(&(*item)->is_cancelled))
            atomic_store(&e->has_ends, true);
        scheduler_add(e->scheduler, *item);
        queue_pop(e->ready);
    }
}

/* Choices that have not begun need their end too. record: of one of them. */
static void end_unstarted(struct tutti_engine *e, struct request *r, struct record record)
{
    scheduler_remove(e->scheduler, r);
    if (r->n_started == 0)
        e->stats.n_begun++;
    int n_choices = r->spec.n_choices;
    record.request = r;
    record.choice = r->n_started;
    r->n_started = n_choices;
    for (; record.choice < n_choices; record.choice++)
        send(e, &record);
}

static void cancel_unstarted(struct tutti_engine *e, struct request *r)
{
    end_unstarted(e, r, (struct record){ .finish = TUTTI_FINISH_CANCELLED });
}

/* The request's time in the queue is over. */
static void time_out(void *user, struct request *r)
{
    struct tutti_engine *e = user;
    atomic_fetch_add(&e->stats.n_timed_out, 1);
    end_unstarted(e, r, (struct record){ .finish = TUTTI_FINISH_ERROR, .status = TUTTI_E_TIMEOUT });
}

/* Requests that were cancelled, choices whose text came to a stop string. */
static void take_ends(struct tutti_engine *e)
{
    if (!atomic_exchange(&e->has_ends, false))
        return;
    struct scheduler *s = e->scheduler;
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->state == SEQUENCE_FREE)
            continue;
        struct request *r = seq->request;
        bool is_cancelled = atomic_load(&r->is_cancelled);
        if (!is_cancelled && !atomic_load(&r->choices[seq->choice].is_ended))
            continue;
        if (is_cancelled && r->n_started < r->spec.n_choices)
            cancel_unstarted(e, r); /* r lives on: this sequence has not ended yet */
        end_sequence(e, seq, TUTTI_FINISH_CANCELLED, TUTTI_OK, NULL);
    }
    for (struct request *r = line_first(&s->line), *next; r; r = next) {
        next = line_next(r);
        if (atomic_load(&r->is_cancelled))
            cancel_unstarted(e, r);
    }
}

/* A rank was lost: nothing can be computed any more. */
static void fail_all(struct tutti_engine *e)
{
    struct scheduler *s = e->scheduler;
    const struct record end = { .finish = TUTTI_FINISH_ERROR, .status = TUTTI_E_CLOSED, .is_over = true };
    enter_phase(e, NULL);
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->state == SEQUENCE_FREE)
            continue;
        if (seq->request->n_started < seq->request->spec.n_choices)
            end_unstarted(e, seq->request, end);
        end_sequence(e, seq, TUTTI_FINISH_ERROR, TUTTI_E_CLOSED, NULL);
    }
    for (struct request *r = line_first(&s->line), *next; r; r = next) {
        next = line_next(r);
        end_unstarted(e, r, end);
    }
    struct tutti_error why = { 0 };
    if (!e->has_failed && model_check(e->model, &why) != TUTTI_OK && e->options.failed)
        e->options.failed(e->options.user, &why);
    e->has_failed = true;
}

/* ---- drawing ---- */

/* Leaves the tokens that the grammar allows. Where it allows none, the end does not need a stop token. */
static void constrain(struct sample_input *in, struct draw *draw, const struct request *r,
                      const struct model_desc *desc)
{
    in->allowed = draw->mask.bits;
    in->stop_is_allowed = draw->mask.can_end;
    in->stops[0] = (struct sample_stops){ desc->stop_ids, r->spec.ignore_eos ? 0 : (size_t)desc->n_stop_ids };
    in->stops[1] = (struct sample_stops){ r->spec.stop_ids, r->spec.n_stop_ids };
    bool has_stop = false;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < in->stops[k].n; i++)
            has_stop |= in->stops[k].ids[i] < in->n_usable;
    draw->is_over = draw->mask.is_empty && !has_stop;
}

static void draw_one(struct tutti_engine *e, struct sampler *sampler, struct draw *draw)
{
    const struct model_desc *desc = &e->model->desc;
    const struct sequence *seq = draw->seq;
    const struct request *r = seq->request;
    struct sample_input in = { .logits = draw->logits,
                               .n_usable = desc->n_usable_vocab,
                               .sampling = &r->spec.sampling,
                               .ids = seq->ids,
                               .n_prompt = seq->n_prompt,
                               .n_ids = draw->n_ids,
                               .seed = r->seed,
                               .choice = seq->choice,
                               .logprobs = r->spec.logprobs,
                               .n_top = r->spec.top_logprobs };
    if (e->hooks.logits)
        e->hooks.logits(e->hooks.user, r->id, seq->choice, draw->n_ids - seq->n_prompt, draw->logits,
                        desc->n_vocab);
    if (r->beams) {
        struct beam *beam = &r->beams->beams[seq->beam];
        draw->is_finite = sampler_best(sampler, &in, draw->logits, r->beams->n_candidates, beam->candidates,
                                       &draw->sample.token);
        beam->has_candidates = draw->is_finite;
    } else if (draw->mask.bits &&
               (draw->mask.status != TUTTI_OK || (draw->mask.is_empty && !draw->mask.can_end))) {
        return; /* there is nothing to draw from */
    } else {
        if (draw->mask.bits)
            constrain(&in, draw, r, desc);
        if (draw->is_over)
            return;
        draw->is_finite = sampler_draw(sampler, &in, &draw->sample);
        int32_t token = draw->sample.token;
        draw->is_right = draw->is_finite && token == draw->guess && !request_is_stop_id(r, desc, token);
    }
}

/* A sequence's tokens are drawn by one thread, up to the first that was not guessed: no more than will be used. */
static void draw_share(void *arg, int thread, int n_threads)
{
    struct tutti_engine *e = arg;
    for (int i = 0, n_seqs = 0; i < e->n_draws; n_seqs++) {
        bool is_wanted = n_seqs % n_threads == thread;
        do {
            if (is_wanted)
                draw_one(e, e->samplers[thread], &e->draws[i]);
            is_wanted = is_wanted && e->draws[i].is_right;
        } while (e->draws[i++].guess >= 0);
    }
}

static struct constraint_mask mask_of(const struct tutti_engine *e, const struct sequence *seq)
{
    const struct grammar *grammar = seq->request->grammar;
    return grammar ? constraint_get(e->constraints, slot_of(e, seq), grammar, seq->n_ids - seq->n_prompt)
                   : (struct constraint_mask){ 0 };
}

/* Is this the row of a sequence whose mask is not there yet? */
static bool is_late(const struct tutti_engine *e, const struct plan_entry *entry)
{
    const struct sequence *seq = entry->seq;
    return entry->output >= 0 && seq->request->grammar && seq->n_ids > seq->n_prompt &&
           !constraint_is_ready(e->constraints, slot_of(e, seq));
}

/* Masks are mostly there when the step is. For one that is not, a twentieth of the step is waited at most where others
 * would wait too; else its row counts as not computed, and the sequence waits. */
static void drop_late_rows(struct tutti_engine *e, uint64_t step_us)
{
    struct scheduler *s = e->scheduler;
    int n_late = 0, n_outputs = 0;
    for (int i = 0; i < s->n_entries; i++) {
        n_outputs += s->entries[i].output >= 0;
        n_late += is_late(e, &s->entries[i]);
    }
    uint64_t end_us = n_late > 0 ? clock_now_us() + (n_late == n_outputs ? step_us : step_us / 20) : 0;
    for (int i = 0; i < s->n_entries && n_late > 0; i++) {
        struct plan_entry *entry = &s->entries[i];
        while (is_late(e, entry) && clock_now_us() < end_us) {
            constraint_flush(e->constraints);
            sched_yield();
        }
        if (!is_late(e, entry))
            continue;
        entry->output = -1;
        entry->seq->n_planned--;
        entry->seq->is_waiting = true;
        e->stats.now.n_late_masks++;
    }
}

/* Sequences whose mask has come may be planned again. True: one still waits. */
static bool wake_waiting(struct tutti_engine *e)
{
    struct scheduler *s = e->scheduler;
    bool is_any_waiting = false;
    constraint_flush(e->constraints);
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->state != SEQUENCE_FREE && seq->is_waiting)
            seq->is_waiting = !constraint_is_ready(e->constraints, i);
        is_any_waiting |= seq->state == SEQUENCE_RUNNING && seq->is_waiting;
    }
    return is_any_waiting;
}

/* Each sequence whose logits came, and the choices that now begin from the same logits. */
static void collect_draws(struct tutti_engine *e)
{
    struct scheduler *s = e->scheduler;
    e->n_draws = 0;
    for (int i = 0; i < s->n_entries; i++) {
        const struct plan_entry *entry = &s->entries[i];
        struct sequence *seq = entry->seq;
        if (entry->output < 0)
            continue;
        float *logits = e->logits + (size_t)entry->output * (size_t)e->model->desc.n_vocab;
        for (int k = 0; k <= entry->n_guesses; k++)
            e->draws[e->n_draws++] = (struct draw){
                .seq = seq,
                .logits = logits + (size_t)k * (size_t)e->model->desc.n_vocab,
                .n_ids = seq->n_ids + k,
                .guess = k < entry->n_guesses ? seq->ids[seq->n_ids + k] : -1,
                .mask = mask_of(e, seq)
            };
        if (!seq->request->is_reading || seq->n_ids > seq->n_prompt)
            continue;
        for (struct sequence *fork; (fork = scheduler_fork(s, seq));)
            e->draws[e->n_draws++] = (struct draw){
                .seq = fork, .logits = logits, .n_ids = fork->n_ids, .guess = -1, .mask = mask_of(e, fork)
            };
        scheduler_end_reading(s, seq);
    }
}

static void note_times(struct tutti_engine *e, struct sequence *seq, uint64_t now_us)
{
    const struct request *r = seq->request;
    if (seq->last_token_us == 0) {
        seq->ttft_us = now_us - r->submit_us;
        histogram_add(&e->stats.now.ttft, seq->ttft_us);
        histogram_add(&e->stats.now.queue, seq->queue_us);
        if (seq->choice == 0) {
            e->stats.now.n_prompt_tokens += (uint64_t)seq->n_prompt;
            e->stats.now.n_cached_tokens += (uint64_t)seq->n_cached;
        }
    } else {
        histogram_add(&e->stats.now.inter_token, now_us - seq->last_token_us);
    }
    seq->last_token_us = now_us;
}

/* ---- beams ---- */

struct stop_test {
    const struct request *request;
    const struct model_desc *desc;
};

static bool is_stop(const void *user, int32_t id)
{
    const struct stop_test *test = user;
    return request_is_stop_id(test->request, test->desc, id);
}

/* Sends the best answers, each as a whole. */
static void send_answers(struct tutti_engine *e, struct sequence *seq)
{
    struct request *r = seq->request;
    struct record record = record_of(seq);
    const struct beam_search *b = r->beams;
    scheduler_end(e->scheduler, seq);
    int n_choices = r->spec.n_choices;
    for (int choice = 0; choice < n_choices; choice++) {
        struct beam_answer answer =
            b->answers[choice]; /* a copy: with the last record the request may be gone */
        record.choice = choice;
        record.beam_score = answer.score;
        record.has_token = true;
        record.finish = TUTTI_FINISH_NONE;
        for (int i = 0; i < answer.n; i++) {
            record.sample = (struct sample){ .token = answer.ids[i], .logprob = answer.logprobs[i] };
            if (!answer.has_stop && i == answer.n - 1)
                record.finish = TUTTI_FINISH_LENGTH;
            send(e, &record);
        }
        if (!answer.has_stop)
            continue;
        record.has_token = false;
        record.finish = TUTTI_FINISH_STOP;
        send(e, &record);
    }
}

/* When the last beam has its candidates, all of them go on, or the search ends. */
static void commit_beam(struct tutti_engine *e, struct sequence *seq, uint64_t now_us)
{
    struct request *r = seq->request;
    struct beam_search *b = r->beams;
    const int32_t *ids[LIMIT_BEAMS];
    for (int i = 0; i < b->n_live; i++) {
        if (!b->beams[i].has_candidates)
            return;
        ids[i] = b->beams[i].seq->ids + r->n_prompt;
    }
    note_times(e, b->beams[0].seq, now_us);
    for (int i = 1; i < b->n_live; i++)
        b->beams[i].seq->last_token_us = now_us;
    struct stop_test test = { r, &e->model->desc };
    int n_new = seq->n_ids - r->n_prompt + 1;
    if (beam_search_choose(b, n_new, ids, is_stop, &test))
        scheduler_branch(e->scheduler, r);
    else
        send_answers(e, seq);
}

/* Puts a drawn token behind its sequence, or ends it. */
static void commit(struct tutti_engine *e, const struct draw *draw, uint64_t now_us)
{
    struct sequence *seq = draw->seq;
    if (seq->state == SEQUENCE_FREE) /* another beam of its search has ended it */
        return;
    const struct constraint_mask *mask = &draw->mask;
    if (mask->bits && (mask->status != TUTTI_OK || (mask->is_empty && !mask->can_end))) {
        end_sequence(e, seq, TUTTI_FINISH_ERROR,
                     mask->status != TUTTI_OK ? mask->status : TUTTI_E_UNSUPPORTED, NULL);
        return;
    }
    if (draw->is_over) {
        note_times(e, seq, now_us);
        end_sequence(e, seq, TUTTI_FINISH_STOP, TUTTI_OK, NULL);
        return;
    }
    if (!draw->is_finite) {
        end_sequence(e, seq, TUTTI_FINISH_ERROR, TUTTI_E_NUMERIC, &draw->sample);
        return;
    }
    if (seq->request->beams) {
        commit_beam(e, seq, now_us);
        return;
    }
    note_times(e, seq, now_us);
    if (request_is_stop_id(seq->request, &e->model->desc, draw->sample.token)) {
        end_sequence(e, seq, TUTTI_FINISH_STOP, TUTTI_OK, &draw->sample);
        return;
    }
    scheduler_append(e->scheduler, seq, draw->sample.token);
    struct record record = record_of(seq);
    record.has_token = true;
    record.sample = draw->sample;
    if (seq->n_ids == seq->max_ids) {
        record.finish = TUTTI_FINISH_LENGTH;
        end_slot(e, seq);
    } else if (seq->request->grammar) {
        constraint_advance(e->constraints, slot_of(e, seq), seq->request->grammar, draw->sample.token,
                           seq->n_ids == seq->n_prompt + 1);
    }
    send(e, &record);
}

/* Of n_guesses of a sequence the first n_right were drawn. */
static void note_guesses(struct tutti_engine *e, struct sequence *seq, int n_guesses, int n_right,
                         struct guess_step *step)
{
    struct tutti_stats *now = &e->stats.now;
    uint64_t n_wrong = (uint64_t)(n_guesses - n_right);
    seq->n_accepted += (size_t)n_right;
    seq->n_rejected += n_wrong;
    now->n_accepted_guesses += (uint64_t)n_right;
    now->n_rejected_guesses += n_wrong;
    step->n_seqs++;
    step->n_tokens += n_right + 1;
    if (n_guesses == 0 || !seq->is_drafted)
        return;
    now->n_accepted_drafts += (uint64_t)n_right;
    now->n_rejected_drafts += n_wrong;
    step->n_drafted += n_guesses;
    step->n_right += n_right;
    draft_judge(e->draft, &e->scheduler->speculation, slot_of(e, seq), n_guesses, n_right);
}

/* The same for a sequence and its guesses, whose draws follow each other: takes tokens up to the first one that was not guessed.
 * Returns the number of draws. */
static int commit_all(struct tutti_engine *e, const struct draw *draws, uint64_t now_us,
                      struct guess_step *step)
{
    struct sequence *seq = draws->seq;
    int n_draws = 1, n_right = 0;
    while (draws[n_draws - 1].guess >= 0)
        n_draws++;
    while (draws[n_right].is_right)
        n_right++;
    note_guesses(e, seq, n_draws - 1, n_right, step);
    for (int i = 0; i < n_right; i++) {
        commit(e, &draws[i], now_us);
        assert(seq->state == SEQUENCE_RUNNING); /* a guess is never the last token */
        scheduler_accept(e->scheduler, seq);
    }
    commit(e, &draws[n_right], now_us);
    if (n_draws > 1 && seq->state == SEQUENCE_RUNNING)
        scheduler_drop_guesses(e->scheduler, seq);
    return n_draws;
}

/* ---- results of prompts ---- */

/* A request whose prompt has no log-probabilities ends with all its choices, also those that have not begun. */
static void end_unscorable(struct tutti_engine *e)
{
    for (const struct score *bad; (bad = prompt_rows_bad_score(e));) {
        struct sequence *seq = bad->entry->seq;
        struct request *r = seq->request;
        struct sample sample = r->results->scores[bad->pos];
        bad->entry->output = -1;
        end_unstarted(
            e, r,
            (struct record){ .finish = TUTTI_FINISH_ERROR, .status = TUTTI_E_NUMERIC, .sample = sample });
        end_sequence(e, seq, TUTTI_FINISH_ERROR, TUTTI_E_NUMERIC, &sample);
    }
}

/* Requests without an answer are over when their prompt is read. */
static void end_readings(struct tutti_engine *e)
{
    struct scheduler *s = e->scheduler;
    for (int i = 0; i < s->n_entries; i++) {
        struct sequence *seq = s->entries[i].seq;
        if (seq->state != SEQUENCE_RUNNING || !seq->request->spec.no_answer || seq->n_computed < seq->n_ids)
            continue;
        struct request *r = seq->request;
        bool is_mean = r->spec.embedding == TUTTI_EMBEDDING_MEAN, is_finite = true;
        if (r->spec.embedding != TUTTI_EMBEDDING_NONE)
            is_finite = prompt_results_finish(r->results, is_mean ? r->n_prompt : 1);
        histogram_add(&e->stats.now.queue, seq->queue_us);
        e->stats.now.n_prompt_tokens += (uint64_t)seq->n_prompt;
        e->stats.now.n_cached_tokens += (uint64_t)seq->n_cached;
        end_sequence(e, seq, is_finite ? TUTTI_FINISH_LENGTH : TUTTI_FINISH_ERROR,
                     is_finite ? TUTTI_OK : TUTTI_E_NUMERIC, NULL);
    }
}

/* ---- the step ---- */

static void note_spill_counts(struct tutti_stats *now, const struct tutti_engine *e,
                              const struct kv_counts *pool)
{
    struct spill_counts file = spill_counts(e->spill);
    struct spiller_counts pages = spiller_counts(e->spiller);
    struct backend *be = e->model->backend;
    uint64_t page_bytes = be->ops->kv_page_bytes(be, e->model->kv_type);
    now->kv_spill_pages = file.n_copies;
    now->n_spilled_pages = file.n_written;
    now->n_spilled_bytes = file.n_written * page_bytes;
    now->n_returned_pages = pages.n_returned_pages;
    now->n_returned_bytes = pages.n_returned_pages * page_bytes;
    now->n_spill_asked_pages = pages.n_asked_pages;
    now->n_spill_found_pages = pages.n_found_pages;
    now->n_spill_evictions = file.n_evictions;
    now->n_spill_lost_pages = pool->n_lost;
    now->n_spill_write_errors = file.n_write_errors;
    now->n_spill_read_errors = file.n_read_errors;
}

static void note_counts(struct tutti_engine *e)
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
    line_count(&e->scheduler->line, now->waiting, clock_now_us());
    now->waiting_tokens_per_s = atomic_load_explicit(&e->scheduler->forecast.rate, memory_order_relaxed);
    if (e->draft) {
        draft_follow(e->draft, e->scheduler->seqs);
        struct draft_counts draft = draft_counts(e->draft);
        now->n_draft_passes = draft.n_passes;
        now->n_draft_rows = draft.n_rows;
        now->draft_pages_used = (uint64_t)draft.pages.n_used;
        now->draft_pages_cached = (uint64_t)draft.pages.n_cached;
    }
    stats_publish(&e->stats);
}

/* Sequences that begin in this step were waiting until now. */
static void note_starts(struct tutti_engine *e)
{
    const struct scheduler *s = e->scheduler;
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->state != SEQUENCE_FREE && seq->choice == 0 && !seq->request->is_counted) {
            seq->request->is_counted = true;
            e->stats.n_begun++;
        }
    }
}

/* True: something was done. */
static bool do_step(struct tutti_engine *e)
{
    struct scheduler *s = e->scheduler;
    uint64_t start_us = clock_now_us();
    if (model_is_lost(e->model)) {
        fail_all(e);
        return false;
    }
    enter_phase(e, "planning");
    bool is_any_waiting = e->constraints && wake_waiting(e);
    line_drop_late(&s->line, start_us, time_out, e);
    bool has_rows = scheduler_plan(s, start_us);
    note_starts(e);
    if (!has_rows) {
        enter_phase(e, NULL);
        /* A mask that comes rings the bell, and so does a page. */
        return !is_any_waiting && s->n_returning == 0 && s->n_running + s->n_preempted + s->line.n > 0;
    }
    enter_phase(e, "copying pages");
    for (int i = 0; i < s->n_copies; i++)
        model_kv_copy_page(e->model, e->kv, s->copies[i].dst, s->copies[i].src);
    enter_phase(e, "forward pass");
    uint64_t forward_us = clock_now_us();
    s->step.hidden = e->hidden;
    e->hooks.forward(e->model, e->kv, &s->step, e->logits);
    uint64_t step_us = clock_now_us() - forward_us;
    if (model_is_lost(e->model)) {
        fail_all(e);
        return false;
    }
    int n_reading = s->step.n_rows - s->n_decoding_rows - s->n_guess_rows;
    if (s->n_guess_rows == 0)
        pace_note(&s->pace, s->n_decoding_rows, n_reading, s->reading_distance, step_us);
    struct guess_step guessed = {
        .n_rows = s->step.n_rows, .n_guesses = s->n_guess_rows, .us = step_us, .draft_us = s->draft_us
    };
    enter_phase(e, "sampling");
    if (e->constraints)
        drop_late_rows(e, step_us);
    prompt_rows_take(e);
    scheduler_advance(s);
    end_unscorable(e);
    collect_draws(e);
    if (e->n_draws == 1)
        draw_share(e, 0, 1);
    else
        run_on_team(e, draw_share, e);
    enter_phase(e, "handing over");
    uint64_t now_us = clock_now_us();
    for (int i = 0; i < e->n_draws;)
        i += commit_all(e, &e->draws[i], now_us, &guessed);
    end_readings(e);
    if (n_reading == 0)
        speculation_note(&s->speculation, &guessed);
    e->stats.now.n_steps++;
    e->step_us = clock_now_us() - start_us;
    histogram_add(&e->stats.now.step, e->step_us);
    audit_check(e);
    enter_phase(e, NULL);
    return true;
}

/* Moves pages from and to the buffers of the spill file: as long as it slows a step by an eighth. True: there is more to do. */
static bool move_pages(struct tutti_engine *e)
{
    if (!e->spiller)
        return false;
    enter_phase(e, "moving pages");
    bool has_more = spiller_work(e->spiller, e->step_us / 8 > MOVE_US ? e->step_us / 8 : MOVE_US);
    enter_phase(e, NULL);
    return has_more;
}

/* Until something comes; where pages are awaited from the file, not for ever. */
static void rest(struct tutti_engine *e, unsigned ticket)
{
    if (e->scheduler->n_returning > 0)
        (void)bell_wait_until(&e->engine_bell, ticket, clock_now_us() + LOOK_AGAIN_US);
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
    pthread_setname_np(pthread_self(), "tutti-engine");
    run_on_team(e, watch_thread, e);
    for (;;) {
        unsigned ticket = bell_ticket(&e->engine_bell);
        take_ready(e);
        take_ends(e);
        bool is_busy = move_pages(e);
        is_busy |= do_step(e);
        atomic_store(&e->is_settled, !is_busy && !(e->spill && spill_is_busy(e->spill)));
        note_counts(e);
        flush(e);
        if (is_busy)
            continue;
        if (atomic_load(&e->is_stopping))
            break;
        rest(e, ticket);
    }
    if (e->spiller)
        spiller_flush(e->spiller, &e->engine_bell, FLUSH_US);
    run_on_team(e, unwatch_thread, NULL);
    return NULL;
}
