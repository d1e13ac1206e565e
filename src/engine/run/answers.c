/* Commits the tokens drawn in a step: appends them to their sequences, ends sequences, and notifies
 * the text thread. */
#include "base/system/clock.h"
#include "engine/run/engine_state.h"

#include <assert.h>

/* ---- to the text thread ---- */

/* The queue holds many steps of tokens. If the text thread lags so far, the engine waits, and
 * counts it. */
static void send_record(struct tutti_engine *e, const struct record *record)
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

void answers_flush(struct tutti_engine *e)
{
    queue_publish(e->records);
    bell_ring(&e->text_bell);
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

void answers_end(struct tutti_engine *e, struct sequence *seq, enum tutti_finish finish,
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
        send_record(e, &record);
}

void answers_end_unstarted(struct tutti_engine *e, struct request *r, struct record record)
{
    scheduler_remove(e->scheduler, r);
    if (r->n_started == 0)
        e->stats.n_begun++;
    int n_choices = r->spec.n_choices;
    record.request = r;
    record.choice = r->n_started;
    r->n_started = n_choices;
    for (; record.choice < n_choices; record.choice++)
        send_record(e, &record);
}

/* ---- tokens ---- */

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

/* Sends the best answers, each completely. */
static void send_answers(struct tutti_engine *e, struct sequence *seq)
{
    struct request *r = seq->request;
    struct record record = record_of(seq);
    const struct beam_search *b = r->beams;
    scheduler_end(e->scheduler, seq);
    int n_choices = r->spec.n_choices;
    for (int choice = 0; choice < n_choices; choice++) {
        struct beam_answer answer = b->answers[choice]; /* a copy: the last record may free the request */
        record.choice = choice;
        record.beam_score = answer.score;
        record.has_token = true;
        record.finish = TUTTI_FINISH_NONE;
        for (int i = 0; i < answer.n; i++) {
            record.sample = (struct sample){ .token = answer.ids[i], .logprob = answer.logprobs[i] };
            if (!answer.has_stop && i == answer.n - 1)
                record.finish = TUTTI_FINISH_LENGTH;
            send_record(e, &record);
        }
        if (!answer.has_stop)
            continue;
        record.has_token = false;
        record.finish = TUTTI_FINISH_STOP;
        send_record(e, &record);
    }
}

/* When the last beam has its candidates, the search takes a step for all of them, or ends. */
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

/* ---- committing draws ---- */

/* Appends a drawn token to its sequence, or ends the sequence. */
static void commit_token(struct tutti_engine *e, const struct draw *draw, uint64_t now_us)
{
    struct sequence *seq = draw->seq;
    if (seq->state == SEQUENCE_FREE) /* ended together with another beam of its search */
        return;
    const struct constraint_mask *mask = &draw->mask;
    if (constraint_is_stuck(mask)) {
        answers_end(e, seq, TUTTI_FINISH_ERROR, mask->status != TUTTI_OK ? mask->status : TUTTI_E_UNSUPPORTED,
                    NULL);
        return;
    }
    if (draw->is_over) {
        note_times(e, seq, now_us);
        answers_end(e, seq, TUTTI_FINISH_STOP, TUTTI_OK, NULL);
        return;
    }
    if (!draw->is_finite) {
        answers_end(e, seq, TUTTI_FINISH_ERROR, TUTTI_E_NUMERIC, &draw->sample);
        return;
    }
    if (seq->request->beams) {
        commit_beam(e, seq, now_us);
        return;
    }
    note_times(e, seq, now_us);
    if (request_is_stop_id(seq->request, &e->model->desc, draw->sample.token)) {
        answers_end(e, seq, TUTTI_FINISH_STOP, TUTTI_OK, &draw->sample);
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
        constraint_advance(e->constraints, slot_of(e, seq), seq->request, draw->sample.token,
                           seq->n_ids == seq->n_prompt + 1);
    }
    send_record(e, &record);
}

/* Records acceptance: of n_drafts draft tokens the first n_accepted were accepted. */
static void note_drafts(struct tutti_engine *e, struct sequence *seq, int n_drafts, int n_accepted,
                        struct speculation_result *step)
{
    struct tutti_stats *now = &e->stats.now;
    uint64_t n_wrong = (uint64_t)(n_drafts - n_accepted);
    seq->n_accepted += (size_t)n_accepted;
    seq->n_rejected += n_wrong;
    now->n_accepted_drafts += (uint64_t)n_accepted;
    now->n_rejected_drafts += n_wrong;
    step->n_seqs++;
    step->n_tokens += n_accepted + 1;
    if (n_drafts == 0 || !seq->is_model_draft)
        return;
    now->n_accepted_model_drafts += (uint64_t)n_accepted;
    now->n_rejected_model_drafts += n_wrong;
    step->n_model_drafts += n_drafts;
    step->n_model_accepted += n_accepted;
    draft_note_acceptance(e->draft, &e->scheduler->speculation, slot_of(e, seq), n_drafts, n_accepted);
}

int answers_commit(struct tutti_engine *e, const struct draw *draws, uint64_t now_us,
                   struct speculation_result *step)
{
    struct sequence *seq = draws->seq;
    int n_draws = 1, n_accepted = 0;
    while (draws[n_draws - 1].draft_token >= 0)
        n_draws++;
    while (draws[n_accepted].is_accepted)
        n_accepted++;
    note_drafts(e, seq, n_draws - 1, n_accepted, step);
    for (int i = 0; i < n_accepted; i++) {
        commit_token(e, &draws[i], now_us);
        assert(seq->state == SEQUENCE_RUNNING); /* an accepted draft token never ends the answer */
        scheduler_accept(e->scheduler, seq);
    }
    commit_token(e, &draws[n_accepted], now_us);
    if (n_draws > 1 && seq->state == SEQUENCE_RUNNING)
        scheduler_drop_drafts(e->scheduler, seq);
    return n_draws;
}
