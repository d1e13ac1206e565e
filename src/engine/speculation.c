#include "engine/speculation.h"

#include <string.h>

enum {
    GUESSING_STEPS = 64, /* then one without guesses, to know what that takes by now */
    KNOWN_STEPS = 2048,  /* what a step of a size took is known for so many */
    FIRST_CREDIT = 2,    /* steps that the account begins with */
    DRAFT_CREDIT = 16,   /* the same with a draft model, which must read a prompt before it can be judged */
    MOST_CREDIT = 64,    /* steps that it holds at most: what can be lost of what was won before */
    PROBE_TOKENS = 2,    /* of a draft model that is tried again */
    FIRST_WAIT = 16,     /* steps before that, doubled each time in vain */
    LAST_WAIT = 4096,
};
static const double CREDIT_SHARE = 0.02; /* of each step's time */
static const double MARGIN = 1.02;       /* of the gain: durations vary */
static const double LEAST_CHANCE = 0.05; /* of a token to be worth a row */
static const float FIRST_DRAFT_CHANCE = 0.6f;
static const float DRAFT_WEIGHT = 0.02f, SEQUENCE_WEIGHT = 0.1f; /* of each token that is judged */

void speculation_init(struct speculation *sp, double draft_share, bool is_forced)
{
    memset(sp, 0, sizeof *sp);
    sp->draft_share = draft_share;
    sp->is_forced = is_forced;
    sp->draft_chance = FIRST_DRAFT_CHANCE;
    sp->wait = FIRST_WAIT;
}

/* ---- durations ---- */

static bool is_known(const struct step_times *t, int n)
{
    return t->us[n] > 0 && t->n_noted - t->noted_at[n] < KNOWN_STEPS;
}

static double follow(double mean, double value)
{
    double capped = value > 4 * mean ? 4 * mean : value;
    return mean + (capped - mean) / 4;
}

static void times_note(struct step_times *t, int n_rows, uint64_t us)
{
    if (n_rows < 1 || n_rows > SPECULATION_ROWS)
        return;
    t->us[n_rows] = is_known(t, n_rows) ? follow(t->us[n_rows], (double)us) : (double)us;
    t->noted_at[n_rows] = t->n_noted++;
}

static int next_known(const struct step_times *t, int n)
{
    while (n <= SPECULATION_ROWS && !is_known(t, n))
        n++;
    return n;
}

/* What steps of each number of rows take, us [SPECULATION_ROWS + 1]. Between known numbers of rows on a parabola, since the first
 * rows cost less; behind them on a straight line; where one number alone is known, further rows cost nothing, or (is_worst) as much
 * as those. Before the first known number: 0, not known. row_us: the least that a row costs where there are many. */
static void estimate(const struct step_times *t, double row_us, bool is_worst, double *us)
{
    double slope = 0;
    for (int n = 1, below = 0, above = next_known(t, 1); n <= SPECULATION_ROWS; n++) {
        us[n] = 0;
        if (n == above) {
            us[n] = t->us[n];
            slope = below > 0 ? (us[n] - us[below]) / (n - below) : is_worst && row_us <= 0 ? us[n] / n : 0;
            below = n;
            above = next_known(t, n + 1);
        } else if (below > 0 && above <= SPECULATION_ROWS) {
            double part = (double)(n - below) / (above - below);
            us[n] = us[below] + (t->us[above] - us[below]) * part * part;
        } else if (below > 0) {
            us[n] = us[below] + (slope > 0 ? slope * (n - below) : 0);
            us[n] = us[n] > n * row_us ? us[n] : n * row_us;
        }
    }
}

/* ---- plans ---- */

/* What rows cost, by their number. */
struct prices {
    double steps[SPECULATION_ROWS + 1], worst[SPECULATION_ROWS + 1], passes[SPECULATION_ROWS + 1];
};

/* A step, as it is put together. */
struct cost {
    const struct speculation *sp;
    const struct prices *prices;
    int n_seqs;
    double plain_us;                /* without guesses */
    double draft_us;                /* of all passes */
    int pass_rows[MAX_GUESSES + 1]; /* of each pass of the draft model; from 1 */
    int n_rows;                     /* of guesses */
};

static void price_passes(const struct speculation *sp, double row_us, struct prices *prices)
{
    estimate(&sp->passes, sp->draft_share * row_us, false, prices->passes);
    bool has_passes = prices->passes[SPECULATION_ROWS] > 0;
    for (int n = SPECULATION_ROWS; n > 0; n--) {
        if (!has_passes)
            prices->passes[n] = sp->draft_share * prices->steps[n];
        if (n < SPECULATION_ROWS && prices->passes[n] <= 0)
            prices->passes[n] = prices->passes[n + 1];
    }
    prices->passes[0] = 0;
}

static double pass_us(const struct cost *cost, int n_rows)
{
    return cost->prices->passes[n_rows < SPECULATION_ROWS ? n_rows : SPECULATION_ROWS];
}

static void add_pass_rows(struct cost *cost, int pass, int n)
{
    cost->draft_us -= pass_us(cost, cost->pass_rows[pass]);
    cost->pass_rows[pass] += n;
    cost->draft_us += pass_us(cost, cost->pass_rows[pass]);
}

static double step_us(const struct cost *cost)
{
    return cost->draft_us + cost->prices->steps[cost->n_seqs + cost->n_rows];
}

/* What is lost if no guess is right, at worst. */
static double risk_us(const struct cost *cost)
{
    return cost->draft_us + cost->prices->worst[cost->n_seqs + cost->n_rows] - cost->plain_us;
}

/* A further token of an offer. Rows that the draft model is far behind are paid when they are read. */
static void add_token(struct cost *cost, struct guess_offer *offer)
{
    int pass = ++offer->n;
    cost->n_rows++;
    if (offer->is_draft)
        add_pass_rows(cost, pass, pass == 1 && offer->n_behind <= NEAR_ROWS ? offer->n_behind : 1);
}

static int most_promising(const struct guess_offer *offers, int n_offers)
{
    int best = -1;
    for (int i = 0; i < n_offers; i++)
        if (!offers[i].is_out && offers[i].n < offers[i].most && offers[i].next >= LEAST_CHANCE &&
            (best < 0 || offers[i].next > offers[best].next))
            best = i;
    return best;
}

/* Sets n of the offers that are not out, to what promises the most tokens in a second and can be risked. Returns that rate, or the
 * one without guesses. */
static double plan(struct cost *cost, int max_rows, struct guess_offer *offers, int n_offers)
{
    int chosen[MAX_GUESS_ROWS], n_best = 0;
    double tokens = cost->n_seqs, plain = tokens / cost->plain_us, best = MARGIN * plain;
    for (int i = 0; i < n_offers; i++) {
        offers[i].n = 0;
        offers[i].next = (double)offers[i].chance;
    }
    for (int i; cost->n_rows < max_rows && (i = most_promising(offers, n_offers)) >= 0;) {
        chosen[cost->n_rows] = i;
        add_token(cost, &offers[i]);
        tokens += offers[i].next;
        offers[i].next *= (double)offers[i].chance;
        double rate = tokens / step_us(cost);
        if (rate > best && risk_us(cost) <= cost->sp->credit_us) {
            best = rate;
            n_best = cost->n_rows;
        }
    }
    for (int i = cost->n_rows; i > n_best;)
        offers[chosen[--i]].n--;
    return n_best > 0 ? best : plain;
}

static bool has_two(const struct guess_offer *offers, int n_offers, int i)
{
    return i + 1 < n_offers && offers[i + 1].seq == offers[i].seq;
}

/* Without the draft model, and with it where its tokens are the likelier ones: the better of the two. */
static void choose_plan(const struct cost *empty, int max_rows, struct guess_offer *offers, int n_offers)
{
    struct cost cost = *empty;
    bool has_draft = false;
    for (int i = 0; i < n_offers; i++) {
        has_draft = has_draft || offers[i].is_draft;
        offers[i].is_out = offers[i].is_draft;
    }
    double without = plan(&cost, max_rows, offers, n_offers);
    if (!has_draft)
        return;
    for (int i = 0; i < n_offers; i++) {
        offers[i].n_other = offers[i].n;
        offers[i].is_out = has_two(offers, n_offers, i) && offers[i + 1].chance > offers[i].chance;
        if (i > 0 && has_two(offers, n_offers, i - 1))
            offers[i].is_out = !offers[i - 1].is_out;
    }
    cost = *empty;
    if (plan(&cost, max_rows, offers, n_offers) > without)
        return;
    for (int i = 0; i < n_offers; i++)
        offers[i].n = offers[i].n_other;
}

/* A draft model that no plan has room for is asked for a few tokens of one sequence from time to time. */
static void choose_probe(const struct speculation *sp, const struct cost *empty, int max_rows,
                         struct guess_offer *offers, int n_offers)
{
    int n = 0, best = -1;
    for (int i = 0; i < n_offers; i++) {
        n += offers[i].n;
        if (offers[i].is_draft && offers[i].n > 0)
            return;
        bool is_free = offers[i].is_draft &&
                       (i == 0 || !has_two(offers, n_offers, i - 1) || offers[i - 1].n == 0);
        if (is_free && offers[i].most > 0 && (best < 0 || offers[i].n_behind < offers[best].n_behind))
            best = i;
    }
    if (best < 0 || sp->n_idle < sp->wait || n + PROBE_TOKENS > max_rows)
        return;
    struct cost cost = *empty;
    cost.n_rows = n;
    double before_us = risk_us(&cost);
    while (offers[best].n < PROBE_TOKENS && offers[best].n < offers[best].most)
        add_token(&cost, &offers[best]);
    if (risk_us(&cost) - before_us > sp->credit_us)
        offers[best].n = 0;
}

/* Sequences that the draft model is far behind of are read first, as far as the account goes, and for a step's time at most. */
static void choose_reading(const struct speculation *sp, const struct cost *empty, struct guess_offer *offers,
                           int n_offers)
{
    int max_rows = SPECULATION_ROWS;
    double most_us = empty->plain_us < sp->credit_us ? empty->plain_us : sp->credit_us;
    while (max_rows > 0 && pass_us(empty, max_rows) > most_us)
        max_rows /= 2;
    for (int i = 0; i < n_offers; i++) {
        if (!offers[i].is_draft || offers[i].n == 0 || offers[i].n_behind <= NEAR_ROWS)
            continue;
        offers[i].n = 0;
        int n_read = offers[i].n_behind - 1 < max_rows ? offers[i].n_behind - 1 : max_rows;
        if (n_read < NEAR_ROWS)
            continue; /* too little for a pass of its own */
        offers[i].n_read = n_read;
        max_rows -= n_read;
    }
}

/* For tests: the two kinds in turn, and a draft model reads all that it is behind. */
static int choose_all(struct speculation *sp, struct guess_offer *offers, int n_offers, int max_rows)
{
    int n = 0;
    for (int i = 0; i < n_offers; i++) {
        struct guess_offer *offer = &offers[i];
        bool is_second = i > 0 && has_two(offers, n_offers, i - 1);
        if (has_two(offers, n_offers, i) && sp->steps.n_noted % 2)
            continue;
        if (is_second && offers[i - 1].n > 0)
            continue;
        offer->n = offer->most < max_rows - n ? offer->most : max_rows - n;
        if (offer->is_draft && offer->n_behind > NEAR_ROWS) {
            offer->n = 0;
            offer->n_read = offer->n_behind - 1 < SPECULATION_ROWS ? offer->n_behind - 1 : SPECULATION_ROWS;
        }
        n += offer->n;
    }
    return n;
}

int speculation_choose(struct speculation *sp, const struct guess_room *room, struct guess_offer *offers,
                       int n_offers)
{
    int max_rows = room->max_rows < MAX_GUESS_ROWS ? room->max_rows : MAX_GUESS_ROWS, n = 0;
    for (int i = 0; i < n_offers; i++)
        offers[i].n = offers[i].n_read = 0;
    if (sp->is_forced)
        return choose_all(sp, offers, n_offers, max_rows);
    if (max_rows > SPECULATION_ROWS - room->n_seqs)
        max_rows = SPECULATION_ROWS - room->n_seqs;
    if (max_rows <= 0 || n_offers == 0 || sp->n_guessing >= GUESSING_STEPS)
        return 0;
    struct prices prices;
    estimate(&sp->steps, room->row_us, false, prices.steps);
    estimate(&sp->steps, room->row_us, true, prices.worst);
    price_passes(sp, room->row_us, &prices);
    struct cost cost = {
        .sp = sp, .prices = &prices, .n_seqs = room->n_seqs, .plain_us = prices.steps[room->n_seqs]
    };
    if (cost.plain_us <= 0)
        return 0;
    sp->plain_us = cost.plain_us;
    if (!sp->has_credit) {
        sp->has_credit = true;
        sp->credit_us = (sp->draft_share > 0 ? DRAFT_CREDIT : FIRST_CREDIT) * cost.plain_us;
    }
    choose_plan(&cost, max_rows, offers, n_offers);
    choose_probe(sp, &cost, max_rows, offers, n_offers);
    choose_reading(sp, &cost, offers, n_offers);
    for (int i = 0; i < n_offers; i++)
        n += offers[i].n;
    return n;
}

/* ---- what came of it ---- */

void speculation_judge(struct speculation *sp, float *chance, int n_drafted, int n_right)
{
    for (int i = 0; i < n_drafted && i <= n_right; i++) {
        float value = i < n_right ? 1.0f : 0.0f;
        *chance += SEQUENCE_WEIGHT * (value - *chance);
        sp->draft_chance += DRAFT_WEIGHT * (value - sp->draft_chance);
    }
}

/* expected_us: for a step of so many rows; 0: not known. */
static void settle(struct speculation *sp, const struct guess_step *step, double expected_us)
{
    double us = (double)step->us, paid_us = us, plain_us = us;
    if (step->n_guesses > 0 && step->n_seqs > 0) {
        plain_us = sp->plain_us;
        paid_us = plain_us * step->n_tokens / step->n_seqs;
        if (expected_us > 0 && us > 4 * expected_us)
            us = 4 * expected_us; /* something else held it up */
    }
    sp->credit_us += (1 + CREDIT_SHARE) * paid_us - us - (double)step->draft_us;
    if (sp->credit_us > MOST_CREDIT * plain_us)
        sp->credit_us = MOST_CREDIT * plain_us;
}

static void judge_draft(struct speculation *sp, const struct guess_step *step)
{
    if (step->n_drafted == 0) {
        sp->n_idle++;
        return;
    }
    sp->n_idle = 0;
    if (step->n_right > 0)
        sp->wait = FIRST_WAIT;
    else if (sp->wait < LAST_WAIT)
        sp->wait *= 2;
}

void speculation_note(struct speculation *sp, const struct guess_step *step)
{
    bool is_expected = step->n_rows <= SPECULATION_ROWS && is_known(&sp->steps, step->n_rows);
    double expected_us = is_expected ? sp->steps.us[step->n_rows] : 0;
    times_note(&sp->steps, step->n_rows, step->us);
    sp->n_guessing = step->n_guesses > 0 ? sp->n_guessing + 1 : 0;
    if (sp->has_credit)
        settle(sp, step, expected_us);
    judge_draft(sp, step);
}

void speculation_note_pass(struct speculation *sp, int n_rows, uint64_t us)
{
    times_note(&sp->passes, n_rows, us);
}
