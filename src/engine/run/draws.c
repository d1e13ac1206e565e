/* Draws the tokens of a step: which rows, and what happens if a token mask is late. */
#include "base/system/clock.h"
#include "engine/requests/reasoning.h"
#include "engine/run/engine_state.h"

#include <sched.h>

static bool is_stop(const struct sample_input *in, int32_t token)
{
    bool is = false;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < in->stops[k].n; i++)
            is = is || in->stops[k].ids[i] == token;
    return is;
}

/* Whether the mask allows a token that is no stop token. Mostly its first words tell. */
static bool allows_text(const struct sample_input *in)
{
    for (int at = 0; at < in->n_usable; at += 32)
        for (uint32_t word = in->allowed[at / 32]; word != 0; word &= word - 1)
            if (!is_stop(in, at + __builtin_ctz(word)))
                return true;
    return false;
}

/* Applies the token mask. If it allows no token, the answer can end without a stop token. */
static void constrain(struct sample_input *in, struct draw *draw, const struct request *r,
                      const struct model_desc *desc)
{
    in->allowed = draw->mask.bits;
    in->stop_is_allowed = draw->mask.can_end;
    int n_stops = r->spec.ignore_eos ? 0 : model_desc_n_stops(desc, r->spec.n_messages > 0);
    in->stops[0] = (struct sample_stops){ desc->stop_ids, (size_t)n_stops };
    in->stops[1] = (struct sample_stops){ r->spec.stop_ids, r->spec.n_stop_ids };
    bool has_stop = false;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < in->stops[k].n; i++)
            has_stop |= in->stops[k].ids[i] < in->n_usable;
    draw->is_over = draw->mask.is_empty && !has_stop;
    draw->is_stuck = !draw->mask.can_end && !allows_text(in);
}

/* Tokens of the sequence of draws[first]: the first row, then those of its draft tokens. */
static int n_rows_of(const struct draw *first)
{
    int n = 1;
    while (first[n - 1].draft_token >= 0)
        n++;
    return n;
}

/* Fills the sampling input for the first n_rows rows of a sequence, from draw on. False: nothing to do,
 * because no token can be drawn. */
static bool fill_input(struct tutti_engine *e, struct sample_input *in, struct draw *draw, int n_rows)
{
    const struct model_desc *desc = &e->model->desc;
    const struct sequence *seq = draw->seq;
    const struct request *r = seq->request;
    *in = (struct sample_input){ .kind = r->beams ? SAMPLE_BEST : SAMPLE_DRAW,
                                 .row = draw->output,
                                 .n_usable = desc->n_usable_vocab,
                                 .sampling = &r->spec.sampling,
                                 .ids = seq->ids + r->virtual.n,
                                 .n_prompt = request_n_own(r),
                                 .n_ids = draw->n_ids - r->virtual.n,
                                 .n_drafts = n_rows - 1,
                                 .seed = r->seed,
                                 .choice = seq->choice,
                                 .logprobs = r->spec.logprobs,
                                 .n_top = r->spec.top_logprobs,
                                 .out = &e->samples[draw - e->draws] };
    int32_t forced = reasoning_forced_token(seq, &e->model->marks, draw->mask.bits);
    if (forced >= 0) {
        in->kind = SAMPLE_SCORE;
        in->token = forced;
        return true;
    }
    if (r->beams) {
        in->n_best = r->beams->n_candidates;
        in->best = beam_of(r->beams, seq)->candidates;
        return true;
    }
    if (draw->is_stuck)
        return false;
    if (draw->mask.bits)
        constrain(in, draw, r, desc);
    return !draw->is_over && !draw->is_stuck;
}

/* Notes the results of an input in its draws. */
static void note_results(struct tutti_engine *e, const struct sample_input *in)
{
    e->draws[in->out - e->samples].is_left = in->n_out == 0;
    for (int k = 0; k < in->n_out; k++) {
        struct draw *draw = &e->draws[&in->out[k] - e->samples];
        const struct request *r = draw->seq->request;
        draw->sample = in->out[k];
        draw->is_finite = k < in->n_out - 1 || in->is_finite;
        if (r->beams)
            beam_of(r->beams, draw->seq)->has_candidates = draw->is_finite;
        else
            draw->is_accepted = draw->is_finite && draw->sample.token == draw->draft_token &&
                                !request_is_stop_id(r, &e->model->desc, draw->sample.token);
    }
}

/* With hooks.logits: each row by itself, up to the first rejected draft token. */
static void draw_hooked(struct tutti_engine *e, struct draw *draw)
{
    struct backend *be = e->model->backend;
    size_t n_vocab = (size_t)e->model->desc.n_vocab;
    do {
        const struct sequence *seq = draw->seq;
        struct floats row = floats_at(e->logits, (size_t)draw->output * n_vocab);
        struct sample_input in;
        be->ops->download(be, e->host_row, row, n_vocab);
        e->hooks.logits(e->hooks.user, seq->request->id, seq->choice, draw->n_ids - seq->n_prompt,
                        e->host_row, (int)n_vocab);
        be->ops->upload(be, row, e->host_row, n_vocab);
        if (!fill_input(e, &in, draw, 1))
            return;
        be->ops->sample(be, e->logits, (int)n_vocab, &in, 1);
        note_results(e, &in);
    } while ((draw++)->is_accepted);
}

static struct constraint_mask mask_of(const struct tutti_engine *e, const struct sequence *seq)
{
    const struct grammar *grammar = seq->request->grammar;
    if (!grammar)
        return (struct constraint_mask){ 0 };
    if (seq->reasoning == REASONING_OPEN)
        return constraint_any(e->constraints);
    if (seq->reasoning == REASONING_AT_ONE)
        return constraint_first_or(e->constraints, slot_of(e, seq), grammar, e->model->marks.open.ids[0]);
    return constraint_get(e->constraints, slot_of(e, seq), grammar, seq->n_ids - seq->answer_begin);
}

/* True: the row's sequence needs a mask that is not ready. */
static bool is_late(const struct tutti_engine *e, const struct plan_entry *entry)
{
    const struct sequence *seq = entry->seq;
    return entry->output >= 0 && seq->request->grammar && reasoning_has_grammar(seq) &&
           seq->n_ids > seq->answer_begin && !constraint_is_ready(e->constraints, slot_of(e, seq));
}

/* Masks are mostly ready when the step is. If the step has rows of other sequences, late ones are awaited for at most a
 * twentieth of it, else for a step's time. Then the row counts as not computed, and its sequence waits. */
void draws_drop_late(struct tutti_engine *e, uint64_t step_us)
{
    struct scheduler *s = e->scheduler;
    int n_late = 0;
    for (int i = 0; i < s->n_entries; i++)
        n_late += is_late(e, &s->entries[i]);
    uint64_t end_us = n_late > 0 ? clock_now_us() + (n_late == s->n_entries ? step_us : step_us / 20) : 0;
    for (int i = 0; i < s->n_entries && n_late > 0; i++) {
        struct plan_entry *entry = &s->entries[i];
        while (is_late(e, entry) && clock_now_us() < end_us) {
            constraint_flush(e->constraints);
            sched_yield();
        }
        if (!is_late(e, entry))
            continue;
        entry->output = -1;
        entry->is_late = true;
        e->stats.now.n_late_masks++;
    }
}

bool draws_wake(struct tutti_engine *e)
{
    struct scheduler *s = e->scheduler;
    bool is_any_waiting = false;
    constraint_flush(e->constraints);
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->state == SEQUENCE_MASK_WAIT && constraint_is_ready(e->constraints, i))
            scheduler_wake(s, seq);
        is_any_waiting |= seq->state == SEQUENCE_MASK_WAIT;
    }
    return is_any_waiting;
}

void draws_collect(struct tutti_engine *e)
{
    struct scheduler *s = e->scheduler;
    e->n_draws = 0;
    for (int i = 0; i < s->n_entries; i++) {
        const struct plan_entry *entry = &s->entries[i];
        struct sequence *seq = entry->seq;
        if (entry->output < 0)
            continue;
        for (int k = 0; k <= entry->n_drafts; k++) {
            struct draw draw = { .seq = seq,
                                 .output = entry->output + k,
                                 .n_ids = seq->n_ids + k,
                                 .draft_token = k < entry->n_drafts ? seq->ids[seq->n_ids + k] : -1,
                                 .mask = mask_of(e, seq) };
            draw.is_stuck = constraint_is_stuck(&draw.mask);
            e->draws[e->n_draws++] = draw;
        }
        if (seq->request->beams && seq->n_ids == seq->n_prompt)
            beams_attach(seq);
        for (struct sequence *fork; (fork = scheduler_fork(s, seq));)
            e->draws[e->n_draws++] = (struct draw){ .seq = fork,
                                                    .output = entry->output,
                                                    .n_ids = fork->n_ids,
                                                    .draft_token = -1,
                                                    .mask = mask_of(e, fork) };
    }
}

/* Results of draft tokens after the first rejected one are not used, and not computed. */
void draws_run(struct tutti_engine *e)
{
    struct backend *be = e->model->backend;
    int n_inputs = 0;
    for (int i = 0, n_rows; i < e->n_draws; i += n_rows) {
        struct draw *draw = &e->draws[i];
        n_rows = n_rows_of(draw);
        if (e->hooks.logits)
            draw_hooked(e, draw);
        else
            n_inputs += fill_input(e, &e->inputs[n_inputs], draw, n_rows);
    }
    if (n_inputs > 0)
        be->ops->sample(be, e->logits, e->model->desc.n_vocab, e->inputs, n_inputs);
    for (int i = 0; i < n_inputs; i++)
        note_results(e, &e->inputs[i]);
}

/* ---- a step that is not waited for ---- */

/* Waits for late masks as long as the step is computed: so one grammar costs the others at most that the next step is not
 * submitted ahead. False: one is still late. */
static bool await_masks(const struct tutti_engine *e)
{
    const struct scheduler *s = e->scheduler;
    struct backend *be = e->model->backend;
    for (int i = 0; i < s->n_entries; i++) {
        while (is_late(e, &s->entries[i])) {
            if (be->ops->step_is_done(be))
                return false;
            constraint_flush(e->constraints);
            sched_yield();
        }
    }
    return true;
}

bool draws_can_submit(struct tutti_engine *e)
{
    const struct scheduler *s = e->scheduler;
    if (!s->options.runs_ahead)
        return false;
    for (int i = 0; i < s->n_entries; i++) {
        const struct plan_entry *entry = &s->entries[i];
        const struct request *r = entry->seq->request;
        if (entry->n_scores + entry->n_hidden > 0 || r->beams || r->spec.no_answer ||
            entry->seq->recomputes || entry->seq->needs_host)
            return false;
    }
    return !e->constraints || await_masks(e);
}

bool draws_submit(struct tutti_engine *e)
{
    struct backend *be = e->model->backend;
    for (int i = 0; i < e->n_draws; i++)
        if (!fill_input(e, &e->inputs[i], &e->draws[i], 1))
            return false;
    return be->ops->sample_submit(be, e->logits, e->model->desc.n_vocab, e->inputs, e->n_draws);
}

void draws_take(struct tutti_engine *e)
{
    struct backend *be = e->model->backend;
    be->ops->sample_wait(be);
    for (int i = 0; i < e->n_draws; i++)
        note_results(e, &e->inputs[i]);
}
