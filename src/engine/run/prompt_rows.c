/* After a step: takes log-probabilities and hidden states of prompt rows. Engine thread. */
#include "base/system/clock.h"
#include "engine/run/engine_state.h"

/* Log-probabilities of prompt tokens, from the rows of the tokens before them. */
static void score_rows(struct tutti_engine *e)
{
    struct backend *be = e->model->backend;
    for (int i = 0; i < e->n_scores; i++) {
        const struct score *score = &e->scores[i];
        const struct request *r = score->entry->seq->request;
        e->inputs[i] = (struct sample_input){ .kind = SAMPLE_SCORE,
                                              .row = score->output,
                                              .n_usable = e->model->desc.n_usable_vocab,
                                              .n_top = r->spec.top_logprobs,
                                              .token = r->prompt[score->pos],
                                              .out = &r->results->scores[score->pos] };
    }
    be->ops->sample(be, e->logits, e->model->desc.n_vocab, e->inputs, e->n_scores);
    for (int i = 0; i < e->n_scores; i++)
        e->scores[i].is_finite = e->inputs[i].is_finite;
}

void prompt_rows_take(struct tutti_engine *e)
{
    struct scheduler *s = e->scheduler;
    e->n_scores = 0;
    for (int i = 0; i < s->n_entries; i++) {
        struct plan_entry *entry = &s->entries[i];
        struct request *r = entry->seq->request;
        if (entry->n_scores + entry->n_hidden == 0)
            continue;
        for (int k = 0; k < entry->n_scores; k++) /* a row gives the logits of the token after it */
            e->scores[e->n_scores++] = (struct score){ .entry = entry,
                                                       .pos = entry->first_pos + k + 1,
                                                       .output = entry->first_score + k };
        if (entry->n_hidden > 0)
            prompt_results_add(r->results,
                               e->hidden + (size_t)entry->first_hidden * (size_t)r->results->n_embedding,
                               entry->n_hidden);
        r->n_seen = entry->first_pos + entry->n_scores + entry->n_hidden;
    }
    if (e->n_scores > 0)
        score_rows(e);
}

const struct score *prompt_rows_bad_score(const struct tutti_engine *e)
{
    for (int i = 0; i < e->n_scores; i++)
        if (!e->scores[i].is_finite && e->scores[i].entry->seq->state != SEQUENCE_FREE)
            return &e->scores[i];
    return NULL;
}
