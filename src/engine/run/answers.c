/* Commits the tokens drawn in a step: appends them to their sequences, ends sequences, and notifies
 * the text thread. */
#include "base/system/clock.h"
#include "engine/requests/reasoning.h"
#include "engine/run/engine_state.h"

/* ---- to the text thread ---- */

/* The queue holds many steps of tokens. If the text thread lags so far, the engine waits, and
 * counts it. */
void answers_send(struct tutti_engine *e, const struct record *record)
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

static void release_slot(struct tutti_engine *e, struct sequence *seq)
{
    if (seq->request->grammar)
        constraint_end(e->constraints, slot_of(e, seq));
    if (seq->n_ids > seq->n_prompt && !seq->request->beams)
        forecast_answer(&e->scheduler->forecast, seq->n_ids - seq->n_prompt);
    scheduler_finish(e->scheduler, seq);
}

struct record answers_record(const struct sequence *seq)
{
    return (struct record){ .request = seq->request,
                            .choice = seq->choice,
                            .n_cached = (size_t)sequence_n_cached(seq),
                            .queue_us = seq->queue_us,
                            .ttft_us = seq->ttft_us,
                            .n_accepted = seq->n_accepted,
                            .n_rejected = seq->n_rejected };
}

struct record answers_last_record(const struct sequence *seq)
{
    const struct beam_search *beams = seq->request->beams;
    struct record record = answers_record(seq);
    record.n_searched = beams ? (size_t)(seq->n_ids - seq->n_prompt) * (size_t)beams->n_beams : 0;
    return record;
}

void answers_end(struct tutti_engine *e, struct sequence *seq, enum tutti_finish finish,
                 enum tutti_status status, const struct sample *sample)
{
    struct record record = answers_last_record(seq);
    int n_choices = request_ends_as_one(seq->request) ? seq->request->spec.n_choices : 1;
    record.finish = finish;
    record.status = status;
    record.is_over = !sample;
    if (sample)
        record.sample = *sample;
    record.has_stop_token = sample && finish == TUTTI_FINISH_STOP;
    release_slot(e, seq);
    for (; n_choices > 0; n_choices--, record.choice++, record.n_searched = 0)
        answers_send(e, &record);
}

void answers_end_unstarted(struct tutti_engine *e, struct request *r, struct record record)
{
    scheduler_remove(e->scheduler, r);
    int n_choices = r->spec.n_choices;
    record.request = r;
    record.choice = r->n_started;
    r->n_started = n_choices;
    for (; record.choice < n_choices; record.choice++)
        answers_send(e, &record);
}

/* ---- tokens ---- */

void answers_note_times(struct tutti_engine *e, struct sequence *seq, uint64_t now_us)
{
    const struct request *r = seq->request;
    if (seq->last_token_us == 0) {
        seq->ttft_us = now_us - r->submit_us;
        histogram_add(&e->stats.now.ttft, seq->ttft_us);
        histogram_add(&e->stats.now.queue, seq->queue_us);
        if (seq->choice == 0) {
            e->stats.now.n_prompt_tokens += (uint64_t)request_n_own(r);
            e->stats.now.n_cached_tokens += (uint64_t)sequence_n_cached(seq);
        }
    } else {
        histogram_add(&e->stats.now.inter_token, now_us - seq->last_token_us);
    }
    seq->last_token_us = now_us;
}

/* ---- committing draws ---- */

void answers_append(struct tutti_engine *e, struct sequence *seq, const int32_t *tokens, int n)
{
    scheduler_commit(e->scheduler, seq, tokens, n);
    if (seq->recomputes)
        scheduler_recompute(e->scheduler, seq);
}

/* How the last draw of a sequence ends it; TUTTI_FINISH_NONE: it does not. *status: the error. */
static enum tutti_finish finish_of(const struct tutti_engine *e, const struct draw *draw,
                                   enum tutti_status *status)
{
    const struct constraint_mask *mask = &draw->mask;
    *status = TUTTI_OK;
    if (draw->is_stuck)
        *status = mask->status != TUTTI_OK ? mask->status : TUTTI_E_UNSUPPORTED;
    else if (!draw->is_over && !draw->is_finite)
        *status = TUTTI_E_NUMERIC;
    if (*status != TUTTI_OK)
        return TUTTI_FINISH_ERROR;
    bool is_stop = draw->is_over ||
                   request_is_stop_id(draw->seq->request, &e->model->desc, draw->sample.token);
    return is_stop ? TUTTI_FINISH_STOP : TUTTI_FINISH_NONE;
}

/* Commits n tokens, of which draw was drawn last, and sends that one. */
static void commit_last(struct tutti_engine *e, const struct draw *draw, const int32_t *tokens, int n)
{
    struct sequence *seq = draw->seq;
    answers_append(e, seq, tokens, n);
    reasoning_take(seq, &e->model->marks);
    struct record record = answers_record(seq);
    record.has_token = true;
    record.sample = draw->sample;
    if (seq->n_ids == seq->max_ids) {
        record.finish = TUTTI_FINISH_LENGTH;
        release_slot(e, seq);
    } else if (seq->request->grammar && reasoning_has_grammar(seq) && seq->n_ids > seq->answer_begin) {
        constraint_advance(e->constraints, slot_of(e, seq), seq->request, draw->sample.token,
                           seq->n_ids == seq->answer_begin + 1);
    }
    answers_send(e, &record);
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
    int32_t tokens[MAX_DRAFT_TOKENS + 1];
    int n_draws = 1, n = 0;
    if (draws->is_left) {
        scheduler_redraw(e->scheduler, seq);
        return n_draws;
    }
    while (draws[n_draws - 1].draft_token >= 0)
        n_draws++;
    while (draws[n].is_accepted)
        n++;
    note_drafts(e, seq, n_draws - 1, n, step);
    const struct draw *last = &draws[n];
    if (seq->state == SEQUENCE_FREE) /* finished together with a sibling */
        return n_draws;
    if (seq->request->beams && last->is_finite) {
        beams_commit(e, seq, now_us);
        return n_draws;
    }
    for (int i = 0; i < n; i++) { /* an accepted draft token never ends the answer */
        struct record record = answers_record(seq);
        record.has_token = true;
        record.sample = draws[i].sample;
        tokens[i] = draws[i].sample.token;
        answers_note_times(e, seq, now_us);
        answers_send(e, &record);
    }
    enum tutti_status status;
    enum tutti_finish finish = finish_of(e, last, &status);
    if (finish != TUTTI_FINISH_ERROR)
        answers_note_times(e, seq, now_us);
    if (finish == TUTTI_FINISH_NONE) {
        tokens[n] = last->sample.token;
        commit_last(e, last, tokens, n + 1);
        return n_draws;
    }
    scheduler_commit(e->scheduler, seq, tokens, n);
    bool has_sample = !last->is_over && !last->is_stuck;
    answers_end(e, seq, finish, status, has_sample ? &last->sample : NULL);
    return n_draws;
}
