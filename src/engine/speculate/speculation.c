#include "engine/speculate/speculation.h"

#include <math.h>
#include <string.h>

enum {
    SPECULATING_STEPS = 64, /* then one step without draft tokens, to measure its duration again */
    KNOWN_STEPS = 512,      /* a measured duration is valid for so many steps, */
    KNOWN_CHANGE = 2,       /* and until the whole machine has changed by this factor */
    FIRST_BUDGET = 2,       /* initial budget, in steps */
    DRAFT_BUDGET =
        16,          /* the same with a draft model, which must prefill a prompt before it can be measured */
    MOST_SAVED = 4,  /* steps that the budget saves of its share */
    MAX_BUDGET = 16, /* largest budget in steps: how much of earlier gains can be lost, */
    FORGET_STEPS = 16, /* which are forgotten in about so many steps */
    MOST_REST = 64,    /* most steps between two decisions */
    PROBE_TOKENS = 2,  /* draft tokens of a draft model that is tried again */
    FIRST_WAIT = 16,   /* steps before that, doubled after each failure */
    LAST_WAIT = 4096,
};
static const double BUDGET_SHARE = 0.01; /* share of each step's time that is added to the budget */
static const double PLAN_SHARE = 0.003;  /* share of a step's time that deciding in vain may take */
static const double COMMON_PART = 0.9;   /* part of a change of a duration that is due to the whole machine */
static const double MARGIN = 1.02;       /* smallest gain to speculate for: durations vary */
static const double LEAST_ACCEPTANCE = 0.05; /* smallest acceptance probability that is worth a row */
static const float FIRST_MODEL_ACCEPTANCE = 0.6f;
static const float DRAFT_WEIGHT = 0.02f, SEQUENCE_WEIGHT = 0.1f; /* of each token in the moving averages */

void speculation_init(struct speculation *sp, double draft_share, bool is_forced)
{
    memset(sp, 0, sizeof *sp);
    sp->draft_share = draft_share;
    sp->steps.scale = sp->passes.scale = 1;
    sp->is_forced = is_forced;
    sp->model_acceptance = FIRST_MODEL_ACCEPTANCE;
    sp->wait = FIRST_WAIT;
}

/* ---- durations ---- */

static bool is_known(const struct step_times *t, int n)
{
    return t->us[n] > 0 && t->n_noted - t->noted_at[n] < KNOWN_STEPS &&
           t->scale < KNOWN_CHANGE * t->scale_at[n] && t->scale_at[n] < KNOWN_CHANGE * t->scale;
}

/* A duration far above the mean is capped, because something else may have delayed the step; if it
 * lasts, the mean follows. */
static double capped(double us, double mean_us)
{
    double most_us = 1.5 * mean_us;
    return mean_us > 0 && us > most_us ? most_us : us;
}

static double moving_mean(double mean_us, double us)
{
    return mean_us + (capped(us, mean_us) - mean_us) / 4;
}

static double known_us(const struct step_times *t, int n)
{
    return t->us[n] * t->scale;
}

static void times_note(struct step_times *t, int n_rows, uint64_t us)
{
    if (n_rows < 1 || n_rows > SPECULATION_ROWS)
        return;
    double now_us = is_known(t, n_rows) ? moving_mean(known_us(t, n_rows), (double)us) : (double)us;
    t->us[n_rows] = now_us / t->scale;
    t->scale_at[n_rows] = t->scale;
    t->noted_at[n_rows] = t->n_noted++;
}

/* Records a step without draft tokens. Where its duration changed, all other durations are scaled
 * by most of the change. */
static void note_plain(struct speculation *sp, int n_rows, uint64_t us)
{
    struct step_times *t = &sp->steps;
    bool is_followed = n_rows >= 1 && n_rows <= SPECULATION_ROWS && is_known(t, n_rows) && us > 0;
    double before_us = is_followed ? known_us(t, n_rows) : 0;
    times_note(t, n_rows, us);
    if (!is_followed)
        return;
    double now_us = known_us(t, n_rows);
    t->scale *= pow(now_us / before_us, COMMON_PART);
    t->us[n_rows] = now_us / t->scale;
    t->scale_at[n_rows] = t->scale;
    sp->passes.scale = t->scale;
}

static int next_known(const struct step_times *t, int n)
{
    while (n <= SPECULATION_ROWS && !is_known(t, n))
        n++;
    return n;
}

/* Estimates durations of steps with [first, last] rows in us [SPECULATION_ROWS + 1]; first is
 * known. Between two known numbers of rows: a parabola, because the first rows cost less. After the
 * last known one: a straight line. If only first is known, further rows cost nothing, or (is_worst)
 * as much per row as first. row_us: lower bound of the cost per row, for many rows. */
static void estimate_times(const struct step_times *t, double row_us, bool is_worst, int first, int last,
                           double *us)
{
    int below = first - 1;
    while (below > 0 && !is_known(t, below))
        below--;
    double slope = is_worst && row_us <= 0 ? known_us(t, first) / first : 0;
    if (below > 0)
        slope = (known_us(t, first) - known_us(t, below)) / (first - below);
    us[first] = known_us(t, first);
    below = first;
    for (int n = first + 1, above = next_known(t, n); n <= last; n++) {
        if (n == above) {
            us[n] = known_us(t, n);
            slope = (us[n] - us[below]) / (n - below);
            below = n;
            above = next_known(t, n + 1);
            continue;
        }
        double part = above <= SPECULATION_ROWS ? (double)(n - below) / (above - below) : 0;
        us[n] = us[below] + (part > 0    ? (known_us(t, above) - us[below]) * part * part
                             : slope > 0 ? slope * (n - below)
                                         : 0);
        us[n] = us[n] > n * row_us ? us[n] : n * row_us;
    }
}

/* ---- plans ---- */

/* Durations by number of rows; steps: from the number of sequences on. */
struct prices {
    double steps[SPECULATION_ROWS + 1], worst[SPECULATION_ROWS + 1], passes[SPECULATION_ROWS + 1];
};

/* Cost of the step that is being composed. */
struct cost {
    const struct speculation *sp;
    const struct prices *prices;
    int n_seqs;
    double plain_us;                     /* without draft tokens */
    double draft_us;                     /* of all passes of the draft model */
    int pass_rows[MAX_DRAFT_TOKENS + 1]; /* of each pass of the draft model; from 1 */
    int n_rows;                          /* draft tokens */
};

/* Makes durations monotonic: a step with more rows takes no less time. If a larger step was
 * measured later and took less than the one without draft tokens, the latter is lowered to it. */
static void make_monotonic(const struct step_times *t, int n_seqs, int last, double *us)
{
    for (int n = n_seqs + 1; n <= last; n++)
        if (us[n] < us[n_seqs] && is_known(t, n) && t->noted_at[n] > t->noted_at[n_seqs])
            us[n_seqs] = us[n];
    for (int n = n_seqs + 1; n <= last; n++)
        us[n] = us[n] > us[n_seqs] ? us[n] : us[n_seqs];
}

static void price_steps(const struct speculation *sp, double row_us, int n_seqs, int last,
                        struct prices *prices)
{
    estimate_times(&sp->steps, row_us, false, n_seqs, last, prices->steps);
    estimate_times(&sp->steps, row_us, true, n_seqs, last, prices->worst);
    make_monotonic(&sp->steps, n_seqs, last, prices->steps);
    make_monotonic(&sp->steps, n_seqs, last, prices->worst);
}

/* prices->steps must be filled up to SPECULATION_ROWS. */
static void price_passes(const struct speculation *sp, double row_us, int n_seqs, struct prices *prices)
{
    double *us = prices->passes;
    int first = next_known(&sp->passes, 1);
    if (first <= SPECULATION_ROWS) {
        estimate_times(&sp->passes, sp->draft_share * row_us, false, first, SPECULATION_ROWS, us);
    } else {
        first = n_seqs;
        for (int n = first; n <= SPECULATION_ROWS; n++)
            us[n] = sp->draft_share * prices->steps[n];
    }
    for (int n = 1; n < first; n++)
        us[n] = us[first];
    us[0] = 0;
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

/* Worst case loss: no draft token is accepted. */
static double risk_us(const struct cost *cost)
{
    return cost->draft_us + cost->prices->worst[cost->n_seqs + cost->n_rows] - cost->plain_us;
}

/* Adds a draft token to a proposal. Rows by which the draft model lags far are paid for when it
 * catches up. */
static void speculation_add_token(struct cost *cost, struct draft_proposal *proposal)
{
    int pass = ++proposal->n;
    cost->n_rows++;
    if (proposal->is_draft)
        add_pass_rows(cost, pass, pass == 1 && proposal->n_lag <= NEAR_ROWS ? proposal->n_lag : 1);
}

static int most_promising(const struct draft_proposal *proposals, int n_proposals)
{
    int best = -1;
    for (int i = 0; i < n_proposals; i++)
        if (!proposals[i].is_out && proposals[i].n < proposals[i].most &&
            proposals[i].next >= LEAST_ACCEPTANCE && (best < 0 || proposals[i].next > proposals[best].next))
            best = i;
    return best;
}

/* Sets n of the proposals with !is_out to maximize tokens per second, within the budget. Returns that
 * rate, or the rate without draft tokens. */
static double plan_proposals(struct cost *cost, int max_rows, struct draft_proposal *proposals,
                             int n_proposals)
{
    int chosen[MAX_DRAFT_ROWS], n_best = 0;
    double tokens = cost->n_seqs, plain = tokens / cost->plain_us, best = MARGIN * plain;
    for (int i = 0; i < n_proposals; i++) {
        proposals[i].n = 0;
        proposals[i].next = (double)proposals[i].acceptance;
    }
    for (int i; cost->n_rows < max_rows && (i = most_promising(proposals, n_proposals)) >= 0;) {
        chosen[cost->n_rows] = i;
        speculation_add_token(cost, &proposals[i]);
        tokens += proposals[i].next;
        proposals[i].next *= (double)proposals[i].acceptance;
        double rate = tokens / step_us(cost);
        if (rate > best && risk_us(cost) <= cost->sp->budget_us) {
            best = rate;
            n_best = cost->n_rows;
        }
    }
    for (int i = cost->n_rows; i > n_best;)
        proposals[chosen[--i]].n--;
    return n_best > 0 ? best : plain;
}

static bool has_two(const struct draft_proposal *proposals, int n_proposals, int i)
{
    return i + 1 < n_proposals && proposals[i + 1].seq == proposals[i].seq;
}

/* Makes two plans, without the draft model and with it where its acceptance rate is higher, and
 * takes the better one. */
static void choose_plan(const struct cost *empty, int max_rows, struct draft_proposal *proposals,
                        int n_proposals)
{
    struct cost cost = *empty;
    bool has_draft = false;
    for (int i = 0; i < n_proposals; i++) {
        has_draft = has_draft || proposals[i].is_draft;
        proposals[i].is_out = proposals[i].is_draft;
    }
    double without = plan_proposals(&cost, max_rows, proposals, n_proposals);
    if (!has_draft)
        return;
    for (int i = 0; i < n_proposals; i++) {
        proposals[i].n_other = proposals[i].n;
        proposals[i].is_out = has_two(proposals, n_proposals, i) &&
                              proposals[i + 1].acceptance > proposals[i].acceptance;
        if (i > 0 && has_two(proposals, n_proposals, i - 1))
            proposals[i].is_out = !proposals[i - 1].is_out;
    }
    cost = *empty;
    if (plan_proposals(&cost, max_rows, proposals, n_proposals) > without)
        return;
    for (int i = 0; i < n_proposals; i++)
        proposals[i].n = proposals[i].n_other;
}

/* A draft model that no plan uses drafts a few tokens for one sequence from time to time. */
static void choose_probe(const struct speculation *sp, const struct cost *empty, int max_rows,
                         struct draft_proposal *proposals, int n_proposals)
{
    int n = 0, best = -1;
    for (int i = 0; i < n_proposals; i++) {
        n += proposals[i].n;
        if (proposals[i].is_draft && proposals[i].n > 0)
            return;
        bool is_free = proposals[i].is_draft &&
                       (i == 0 || !has_two(proposals, n_proposals, i - 1) || proposals[i - 1].n == 0);
        if (is_free && proposals[i].most > 0 && (best < 0 || proposals[i].n_lag < proposals[best].n_lag))
            best = i;
    }
    if (best < 0 || sp->n_idle < sp->wait || n + PROBE_TOKENS > max_rows)
        return;
    struct cost cost = *empty;
    cost.n_rows = n;
    double before_us = risk_us(&cost);
    while (proposals[best].n < PROBE_TOKENS && proposals[best].n < proposals[best].most)
        speculation_add_token(&cost, &proposals[best]);
    if (risk_us(&cost) - before_us > sp->budget_us)
        proposals[best].n = 0;
}

/* Sequences that the draft model lags far behind are caught up with first, within the budget, and
 * for a step's time at most. */
static void choose_catch_up(const struct speculation *sp, const struct cost *empty,
                            struct draft_proposal *proposals, int n_proposals)
{
    int max_rows = SPECULATION_ROWS;
    double most_us = empty->plain_us < sp->budget_us ? empty->plain_us : sp->budget_us;
    while (max_rows > 0 && pass_us(empty, max_rows) > most_us)
        max_rows /= 2;
    for (int i = 0; i < n_proposals; i++) {
        if (!proposals[i].is_draft || proposals[i].n == 0 || proposals[i].n_lag <= NEAR_ROWS)
            continue;
        proposals[i].n = 0;
        int n_catch_up = proposals[i].n_lag - 1 < max_rows ? proposals[i].n_lag - 1 : max_rows;
        if (n_catch_up < NEAR_ROWS)
            continue; /* too few rows for a pass of their own */
        proposals[i].n_catch_up = n_catch_up;
        max_rows -= n_catch_up;
    }
}

/* For tests: alternates between the two sources, and the draft model catches up completely. */
static int choose_all(struct speculation *sp, struct draft_proposal *proposals, int n_proposals, int max_rows)
{
    int n = 0;
    for (int i = 0; i < n_proposals; i++) {
        struct draft_proposal *proposal = &proposals[i];
        bool is_second = i > 0 && has_two(proposals, n_proposals, i - 1);
        if (has_two(proposals, n_proposals, i) && sp->steps.n_noted % 2)
            continue;
        if (is_second && proposals[i - 1].n > 0)
            continue;
        proposal->n = proposal->most < max_rows - n ? proposal->most : max_rows - n;
        if (proposal->is_draft && proposal->n_lag > NEAR_ROWS) {
            proposal->n = 0;
            proposal->n_catch_up = proposal->n_lag - 1 < SPECULATION_ROWS ? proposal->n_lag - 1
                                                                          : SPECULATION_ROWS;
        }
        n += proposal->n;
    }
    return n;
}

bool speculation_is_due(struct speculation *sp, int n_seqs)
{
    if (sp->is_forced)
        return true;
    if (sp->n_resting > 0) {
        sp->n_resting--;
        return false;
    }
    if (sp->n_speculating >= SPECULATING_STEPS || n_seqs >= SPECULATION_ROWS || !is_known(&sp->steps, n_seqs))
        return false;
    if (!sp->has_budget) {
        sp->has_budget = true;
        sp->budget_us = (sp->draft_share > 0 ? DRAFT_BUDGET : FIRST_BUDGET) * known_us(&sp->steps, n_seqs);
    }
    return sp->budget_us >= sp->plan_us;
}

int speculation_choose(struct speculation *sp, const struct speculation_step *room,
                       struct draft_proposal *proposals, int n_proposals)
{
    int max_rows = room->max_rows < MAX_DRAFT_ROWS ? room->max_rows : MAX_DRAFT_ROWS, n = 0;
    for (int i = 0; i < n_proposals; i++)
        proposals[i].n = proposals[i].n_catch_up = 0;
    if (sp->is_forced)
        return choose_all(sp, proposals, n_proposals, max_rows);
    if (max_rows > SPECULATION_ROWS - room->n_seqs)
        max_rows = SPECULATION_ROWS - room->n_seqs;
    sp->is_in_vain = true;
    if (max_rows <= 0 || n_proposals == 0 || !is_known(&sp->steps, room->n_seqs))
        return 0;
    bool has_draft = false;
    for (int i = 0; i < n_proposals; i++)
        has_draft = has_draft || proposals[i].is_draft;
    struct prices prices;
    price_steps(sp, room->row_us, room->n_seqs, has_draft ? SPECULATION_ROWS : room->n_seqs + max_rows,
                &prices);
    if (has_draft)
        price_passes(sp, room->row_us, room->n_seqs, &prices);
    else
        prices.passes[0] = 0;
    struct cost cost = {
        .sp = sp, .prices = &prices, .n_seqs = room->n_seqs, .plain_us = prices.steps[room->n_seqs]
    };
    sp->plain_us = cost.plain_us;
    choose_plan(&cost, max_rows, proposals, n_proposals);
    if (has_draft) {
        choose_probe(sp, &cost, max_rows, proposals, n_proposals);
        choose_catch_up(sp, &cost, proposals, n_proposals);
    }
    for (int i = 0; i < n_proposals; i++) {
        n += proposals[i].n;
        sp->is_in_vain = sp->is_in_vain && proposals[i].n + proposals[i].n_catch_up == 0;
    }
    return n;
}

/* ---- results ---- */

void speculation_note_acceptance(struct speculation *sp, float *acceptance, int n_drafted, int n_accepted)
{
    for (int i = 0; i < n_drafted && i <= n_accepted; i++) {
        float value = i < n_accepted ? 1.0f : 0.0f;
        *acceptance += SEQUENCE_WEIGHT * (value - *acceptance);
        sp->model_acceptance += DRAFT_WEIGHT * (value - sp->model_acceptance);
    }
}

/* Settles the budget after a step. expected_us: for its number of rows; 0: not known. */
static void settle_budget(struct speculation *sp, const struct speculation_result *step, double expected_us)
{
    double us = (double)step->us, paid_us = us, plain_us = us;
    if (step->n_drafts > 0 && step->n_seqs > 0) {
        plain_us = sp->plain_us;
        paid_us = plain_us * step->n_tokens / step->n_seqs;
        us = capped(us, expected_us);
    }
    sp->budget_us += (1 + BUDGET_SHARE) * paid_us - us - (double)step->draft_us -
                     capped(step->plan_us, sp->plan_us);
    double won_us = sp->budget_us - MOST_SAVED * plain_us;
    if (won_us > 0 && step->n_tokens <= step->n_seqs)
        sp->budget_us -= won_us / FORGET_STEPS;
    if (sp->budget_us > MAX_BUDGET * plain_us)
        sp->budget_us = MAX_BUDGET * plain_us;
}

/* Sets the pause before the next decision, so that deciding in vain takes no more than PLAN_SHARE. */
static void note_plan(struct speculation *sp, const struct speculation_result *step)
{
    if (step->plan_us <= 0)
        return; /* nothing was decided */
    sp->plan_us = sp->plan_us > 0 ? moving_mean(sp->plan_us, step->plan_us) : step->plan_us;
    double n = sp->is_in_vain && step->us > 0 ? sp->plan_us / (PLAN_SHARE * (double)step->us) : 0;
    sp->n_resting = n < MOST_REST ? (int)n : MOST_REST;
}

static void note_model_drafts(struct speculation *sp, const struct speculation_result *step)
{
    if (step->n_model_drafts == 0) {
        sp->n_idle++;
        return;
    }
    sp->n_idle = 0;
    if (step->n_model_accepted > 0)
        sp->wait = FIRST_WAIT;
    else if (sp->wait < LAST_WAIT)
        sp->wait *= 2;
}

void speculation_note(struct speculation *sp, const struct speculation_result *step)
{
    bool is_expected = step->n_rows <= SPECULATION_ROWS && is_known(&sp->steps, step->n_rows);
    double expected_us = is_expected ? known_us(&sp->steps, step->n_rows) : 0;
    if (step->n_drafts > 0)
        times_note(&sp->steps, step->n_rows, step->us);
    else
        note_plain(sp, step->n_rows, step->us);
    sp->n_speculating = step->n_drafts > 0 ? sp->n_speculating + 1 : 0;
    if (!step->may_speculate)
        return;
    if (sp->has_budget)
        settle_budget(sp, step, expected_us);
    note_plan(sp, step);
    note_model_drafts(sp, step);
}

void speculation_note_pass(struct speculation *sp, int n_rows, uint64_t us)
{
    times_note(&sp->passes, n_rows, us);
}
