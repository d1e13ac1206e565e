/* Draws the tokens of a step: which rows, on which thread, and what happens if a token mask is late. */
#include "base/system/clock.h"
#include "engine/run/engine_state.h"

#include <sched.h>

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
        struct beam *beam = beam_of(r->beams, seq);
        draw->is_finite = sampler_best(sampler, &in, draw->logits, r->beams->n_candidates, beam->candidates,
                                       &draw->sample.token);
        beam->has_candidates = draw->is_finite;
    } else if (constraint_is_stuck(&draw->mask)) {
        return; /* no token can be drawn */
    } else {
        if (draw->mask.bits)
            constrain(&in, draw, r, desc);
        if (draw->is_over)
            return;
        draw->is_finite = sampler_draw(sampler, &in, &draw->sample);
        int32_t token = draw->sample.token;
        draw->is_accepted = draw->is_finite && token == draw->draft_token &&
                            !request_is_stop_id(r, desc, token);
    }
}

/* One thread draws all tokens of a sequence, up to the first rejected draft token: no more will be
 * used. */
static void draw_share(void *arg, int thread, int n_threads)
{
    struct tutti_engine *e = arg;
    for (int i = 0, n_seqs = 0; i < e->n_draws; n_seqs++) {
        bool is_wanted = n_seqs % n_threads == thread;
        do {
            if (is_wanted)
                draw_one(e, e->samplers[thread], &e->draws[i]);
            is_wanted = is_wanted && e->draws[i].is_accepted;
        } while (e->draws[i++].draft_token >= 0);
    }
}

static struct constraint_mask mask_of(const struct tutti_engine *e, const struct sequence *seq)
{
    const struct grammar *grammar = seq->request->grammar;
    return grammar ? constraint_get(e->constraints, slot_of(e, seq), grammar, seq->n_ids - seq->n_prompt)
                   : (struct constraint_mask){ 0 };
}

/* True: the row's sequence needs a mask that is not ready. */
static bool is_late(const struct tutti_engine *e, const struct plan_entry *entry)
{
    const struct sequence *seq = entry->seq;
    return entry->output >= 0 && seq->request->grammar && seq->n_ids > seq->n_prompt &&
           !constraint_is_ready(e->constraints, slot_of(e, seq));
}

/* Masks are mostly ready when the step is. If only some are late, they are awaited for at most a
 * twentieth of the step, because others wait too. If all are late, for a step's time. Then the row
 * counts as not computed, and its sequence waits. */
void draws_drop_late(struct tutti_engine *e, uint64_t step_us)
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
        float *logits = e->logits + (size_t)entry->output * (size_t)e->model->desc.n_vocab;
        for (int k = 0; k <= entry->n_drafts; k++)
            e->draws[e->n_draws++] = (struct draw){
                .seq = seq,
                .logits = logits + (size_t)k * (size_t)e->model->desc.n_vocab,
                .n_ids = seq->n_ids + k,
                .draft_token = k < entry->n_drafts ? seq->ids[seq->n_ids + k] : -1,
                .mask = mask_of(e, seq)
            };
        if (seq->request->beams && seq->n_ids == seq->n_prompt)
            beams_attach(seq);
        for (struct sequence *fork; (fork = scheduler_fork(s, seq));)
            e->draws[e->n_draws++] = (struct draw){ .seq = fork,
                                                    .logits = logits,
                                                    .n_ids = fork->n_ids,
                                                    .draft_token = -1,
                                                    .mask = mask_of(e, fork) };
    }
}

void draws_run(struct tutti_engine *e)
{
    if (e->n_draws == 1)
        draw_share(e, 0, 1);
    else
        run_on_team(e, draw_share, e);
}
