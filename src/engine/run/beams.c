/* Beam search: chooses among the candidates of all beams, and lets their sequences continue the
 * chosen ones. Beams are siblings (lifecycle.h), so the scheduler knows nothing of the search. */
#include "engine/run/engine_state.h"

#include <string.h>

void beams_attach(struct sequence *first)
{
    struct beam_search *b = first->request->beams;
    struct sequence *seq = first;
    for (int i = 0; i < b->n_beams; i++, seq = seq->sibling)
        b->beams[i].seq = seq;
}

/* Sends the best answers, each in one record, which the text thread reads in parts (text.c): records of
 * single tokens would delay the tokens of other sequences. The answers live until the text thread has read the last of them. */
static void send_answers(struct tutti_engine *e, struct sequence *seq)
{
    struct request *r = seq->request;
    struct record record = answers_last_record(seq);
    const struct beam_answer *answers = r->beams->answers;
    int n_choices = r->spec.n_choices;
    scheduler_finish(e->scheduler, seq);
    for (record.choice = 0; record.choice < n_choices; record.choice++, record.n_searched = 0) {
        record.answer = &answers[record.choice];
        record.finish = record.answer->has_stop ? TUTTI_FINISH_STOP : TUTTI_FINISH_LENGTH;
        answers_send(e, &record);
    }
}

/* Replaces the beams by those that the search has chosen, one token longer. The first that continues
 * a beam keeps its sequence; the others take sequences that no beam continues. n_old: tokens of each
 * answer before. */
static void continue_beams(struct tutti_engine *e, struct beam_search *b, int n_old)
{
    for (int i = 0; i < b->n_beams; i++)
        b->reordered[i].seq = NULL;
    for (int i = 0; i < b->n_next; i++) {
        struct beam *parent = &b->beams[b->next[i].parent];
        if (!parent->seq)
            continue;
        b->reordered[i] = *parent;
        parent->seq = NULL;
    }
    for (int i = 0, spare = 0; i < b->n_next; i++) {
        int first = 0;
        if (b->reordered[i].seq)
            continue;
        while (!b->beams[spare].seq)
            spare++;
        while (b->next[first].parent != b->next[i].parent)
            first++;
        b->reordered[i] = b->beams[spare];
        b->beams[spare].seq = NULL;
        scheduler_copy(e->scheduler, b->reordered[i].seq, b->reordered[first].seq);
        memcpy(b->reordered[i].logprobs, b->reordered[first].logprobs, (size_t)n_old * sizeof(float));
    }
    struct beam *old = b->beams;
    b->beams = b->reordered;
    b->reordered = old;
    b->n_live = b->n_next;
    for (int i = 0; i < b->n_next; i++) {
        struct beam *beam = &b->beams[i];
        beam->score = b->next[i].score;
        beam->has_candidates = false;
        beam->logprobs[n_old] = b->next[i].logprob;
        answers_append(e, beam->seq, &b->next[i].token, 1);
    }
}

struct stop_test {
    const struct request *request;
    const struct model_desc *desc;
};

static bool is_stop(const void *user, int32_t id)
{
    const struct stop_test *test = user;
    return request_is_stop_id(test->request, test->desc, id);
}

void beams_commit(struct tutti_engine *e, struct sequence *seq, uint64_t now_us)
{
    struct request *r = seq->request;
    struct beam_search *b = r->beams;
    const int32_t *ids[LIMIT_BEAMS];
    for (int i = 0; i < b->n_live; i++) {
        /* A beam that was preempted since is not COMPUTED: its candidates are computed again. */
        if (b->beams[i].seq->state != SEQUENCE_COMPUTED || !b->beams[i].has_candidates)
            return;
        ids[i] = b->beams[i].seq->ids + r->n_prompt;
    }
    answers_note_times(e, b->beams[0].seq, now_us);
    for (int i = 1; i < b->n_live; i++)
        b->beams[i].seq->last_token_us = now_us;
    struct stop_test test = { r, &e->model->desc };
    int n_old = seq->n_ids - r->n_prompt;
    if (beam_search_choose(b, n_old + 1, ids, is_stop, &test))
        continue_beams(e, b, n_old);
    else
        send_answers(e, seq);
}
