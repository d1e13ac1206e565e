#include "engine/schedule/plan_guesses.h"

#include "base/system/clock.h"

/* Tokens that prompt lookup enters in one step, of all sequences; each is entered once, and this
 * takes less than a millisecond. */
enum { GUESS_READ_TOKENS = 8192 };

/* Most draft tokens that a sequence may have; 0 with a grammar or beams, which would need a mask or
 * a beam for each of them, and where further choices start from the first token's logits.
 * max_guesses: the limit of the source. */
static int most_guesses(const struct sequence *seq, int max_guesses)
{
    const struct request *r = seq->request;
    if (r->beams || r->spec.grammar_kind != TUTTI_GRAMMAR_NONE || r->spec.no_kv_cache ||
        r->spec.max_guesses < 0 || seq->n_ids == seq->n_prompt)
        return 0;
    int most = max_guesses, room = seq->max_ids - seq->n_ids - 1;
    if (r->spec.max_guesses > 0 && r->spec.max_guesses < most)
        most = r->spec.max_guesses;
    return most < room ? most : room;
}

static int collect_offers(struct scheduler *s)
{
    int n = 0, n_to_read = GUESS_READ_TOKENS;
    for (int i = 0; i < s->options.max_seqs; i++) {
        struct sequence *seq = &s->seqs[i];
        if (seq->n_planned != 1)
            continue;
        int most = most_guesses(seq, s->options.max_guesses);
        if (most > 0) {
            n_to_read -= guesser_read(&seq->guesser, seq->ids, seq->n_ids, n_to_read);
            float chance = guesser_chance(&seq->guesser);
            if (chance > 0)
                s->offers[n++] = (struct guess_offer){ .chance = chance, .most = most, .seq = i };
        }
        most = s->draft ? most_guesses(seq, s->options.max_drafts) : 0;
        s->offers[n] = (struct guess_offer){ .most = most, .seq = i };
        if (most > 0 && draft_offer(s->draft, &s->speculation, seq, &s->offers[n]))
            n++;
    }
    return n;
}

static bool can_guess(const struct scheduler *s)
{
    int max_guesses = s->options.max_guesses > s->options.max_drafts ? s->options.max_guesses
                                                                     : s->options.max_drafts;
    for (int i = 0; i < s->options.max_seqs; i++)
        if (s->seqs[i].n_planned == 1 && most_guesses(&s->seqs[i], max_guesses) > 0)
            return true;
    return false;
}

static void choose_guesses(struct scheduler *s, int n_seqs, int n_rows)
{
    if (s->draft)
        draft_follow(s->draft, s->seqs);
    int n_offers = collect_offers(s);
    struct guess_room room = { .n_seqs = n_seqs, .max_rows = n_rows, .row_us = s->pace.row_us };
    speculation_choose(&s->speculation, &room, s->offers, n_offers);
    if (s->draft)
        s->draft_us = draft_run(s->draft, &s->speculation, s->seqs, s->offers, n_offers);
    for (int i = 0; i < n_offers; i++) {
        const struct guess_offer *offer = &s->offers[i];
        struct sequence *seq = &s->seqs[offer->seq];
        if (offer->n == 0)
            continue;
        if (!offer->is_draft)
            guesser_write(&seq->guesser, seq->ids, seq->n_ids, offer->n);
        seq->is_drafted = offer->is_draft;
        seq->n_guesses = offer->n;
        seq->n_planned += offer->n;
        s->n_guess_rows += offer->n;
    }
}

void plan_guesses(struct scheduler *s, int n_seqs, int n_rows)
{
    s->may_guess = can_guess(s);
    if (!s->may_guess || !speculation_is_due(&s->speculation, n_seqs))
        return;
    uint64_t begin_ns = clock_now_ns();
    choose_guesses(s, n_seqs, n_rows);
    double us = (double)(clock_now_ns() - begin_ns) / 1e3 - (double)s->draft_us;
    s->plan_us = us > 0 ? us : 0;
}
