#include "engine/speculation.h"

enum {
    GUESSING_STEPS = 64, /* then one without guesses, to know what that takes by now */
    KNOWN_STEPS = 2048,  /* what a step of a size took is known for so many */
};
static const double MARGIN = 1.02;       /* of the gain: durations vary */
static const double LEAST_CHANCE = 0.05; /* of a token to be worth a row */

static bool is_known(const struct speculation *sp, int n)
{
    return sp->step_us[n] > 0 && sp->n_noted - sp->noted_at[n] < KNOWN_STEPS;
}

static double follow(double mean, double value)
{
    double capped = value > 4 * mean ? 4 * mean : value;
    return mean + (capped - mean) / 4;
}

void speculation_note(struct speculation *sp, int n_rows, int n_guesses, uint64_t us)
{
    if (n_rows > SPECULATION_ROWS)
        return;
    sp->step_us[n_rows] = is_known(sp, n_rows) ? follow(sp->step_us[n_rows], (double)us) : (double)us;
    sp->noted_at[n_rows] = sp->n_noted++;
    sp->n_guessing = n_guesses > 0 ? sp->n_guessing + 1 : 0;
}

/* What a step of n rows takes. Between known numbers of rows on a parabola, since the first rows cost less; behind them on a
 * straight line. 0: not known. */
static double estimate(const struct speculation *sp, int n, double row_us)
{
    int below = n, above = n + 1;
    while (below > 0 && !is_known(sp, below))
        below--;
    if (below == 0)
        return 0;
    double us = sp->step_us[below];
    if (below == n)
        return us;
    while (above <= SPECULATION_ROWS && !is_known(sp, above))
        above++;
    if (above <= SPECULATION_ROWS) {
        double part = (double)(n - below) / (above - below);
        return us + (sp->step_us[above] - us) * part * part;
    }
    int before = below - 1;
    while (before > 0 && !is_known(sp, before))
        before--;
    double slope = before > 0 ? (us - sp->step_us[before]) / (below - before) : 0;
    double line = us + (slope > 0 ? slope * (n - below) : 0);
    return line > n * row_us ? line : n * row_us;
}

static int most_promising(const struct guess_offer *offers, int n_offers)
{
    int best = -1;
    for (int i = 0; i < n_offers; i++)
        if (offers[i].n < offers[i].most && offers[i].next >= LEAST_CHANCE &&
            (best < 0 || offers[i].next > offers[best].next))
            best = i;
    return best;
}

static int choose_all(struct guess_offer *offers, int n_offers, int max_rows)
{
    int n = 0;
    for (int i = 0; i < n_offers; i++) {
        offers[i].n = offers[i].most < max_rows - n ? offers[i].most : max_rows - n;
        n += offers[i].n;
    }
    return n;
}

int speculation_choose(struct speculation *sp, int n_seqs, int max_rows, double row_us,
                       struct guess_offer *offers, int n_offers)
{
    int chosen[MAX_GUESS_ROWS], n_rows = 0, n_best = 0;
    if (max_rows > MAX_GUESS_ROWS)
        max_rows = MAX_GUESS_ROWS;
    if (sp->is_forced)
        return choose_all(offers, n_offers, max_rows);
    if (max_rows > SPECULATION_ROWS - n_seqs)
        max_rows = SPECULATION_ROWS - n_seqs;
    for (int i = 0; i < n_offers; i++) {
        offers[i].n = 0;
        offers[i].next = (double)offers[i].chance;
    }
    double plain_us = max_rows > 0 ? estimate(sp, n_seqs, row_us) : 0;
    if (plain_us <= 0 || sp->n_guessing >= GUESSING_STEPS)
        return 0;
    double tokens = n_seqs, best = MARGIN * tokens / plain_us;
    for (int i; n_rows < max_rows && (i = most_promising(offers, n_offers)) >= 0;) {
        chosen[n_rows++] = i;
        offers[i].n++;
        tokens += offers[i].next;
        offers[i].next *= (double)offers[i].chance;
        double rate = tokens / estimate(sp, n_seqs + n_rows, row_us);
        if (rate > best) {
            best = rate;
            n_best = n_rows;
        }
    }
    while (n_rows > n_best)
        offers[chosen[--n_rows]].n--;
    return n_best;
}
