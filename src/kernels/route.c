#include "kernels/route.h"

#include "base/limits.h"
#include "kernels/ref/exp.h"

#include <assert.h>
#include <math.h>

/* The sum of the best one or two of n. */
static float group_score(const float *choice, int n, int n_best)
{
    float best = -(float)INFINITY, second = -(float)INFINITY;
    for (int i = 0; i < n; i++) {
        if (choice[i] > best) {
            second = best;
            best = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return n_best > 1 ? best + second : best;
}

/* The best of n that is not marked; of equal ones the first. With NaN some of them, but never one
 * that is marked. */
static int find_best(const float *x, const bool *is_marked, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!is_marked[i] && (best < 0 || x[i] > x[best]))
            best = i;
    return best;
}

/* Marks the experts that are outside of the best groups. */
static void mark_groups(const struct routing *r, const float *choice, bool *is_marked)
{
    float scores[LIMIT_EXPERTS];
    bool is_best[LIMIT_EXPERTS] = { false };
    int n = r->n_experts / r->n_groups;
    assert(n >= 1);
    for (int g = 0; g < r->n_groups; g++)
        scores[g] = group_score(choice + g * n, n, r->group_best);
    for (int i = 0; i < r->n_chosen_groups; i++)
        is_best[find_best(scores, is_best, r->n_groups)] = true;
    for (int i = 0; i < r->n_experts; i++)
        is_marked[i] = !is_best[i / n];
}

float route_sigmoid(float x)
{
    return 1.0f / (1.0f + exp_ref(-x));
}

static void find_scores(const struct kernels *k, const struct routing *r, float *scores)
{
    if (r->kind == ROUTE_SOFTMAX) {
        k->softmax(scores, scores, r->n_experts);
        return;
    }
    for (int i = 0; i < r->n_experts; i++)
        scores[i] = route_sigmoid(scores[i]);
}

static void weigh(const struct routing *r, const float *factors, const float *scores, const int32_t *ids,
                  float *weights)
{
    float sum = 1e-20f;
    for (int c = 0; c < r->n_chosen; c++) {
        weights[c] = scores[ids[c]];
        sum += weights[c];
    }
    for (int c = 0; c < r->n_chosen; c++) {
        weights[c] = r->is_normed ? weights[c] / sum : weights[c];
        weights[c] = r->scale != 0 ? weights[c] * r->scale : weights[c];
        weights[c] = factors ? weights[c] * factors[ids[c]] : weights[c];
    }
}

void route_row(const struct kernels *k, const struct routing *r, const float *bias, const float *factors,
               float *scores, int32_t *ids, float *weights)
{
    float choice[LIMIT_EXPERTS] = { 0 };
    bool is_marked[LIMIT_EXPERTS] = { false };
    assert(r->n_experts >= 1 && r->n_experts <= LIMIT_EXPERTS && r->n_chosen <= r->n_experts);
    find_scores(k, r, scores);
    for (int i = 0; i < r->n_experts; i++)
        choice[i] = bias ? scores[i] + bias[i] : scores[i];
    if (r->n_groups > 1)
        mark_groups(r, choice, is_marked);
    for (int c = 0; c < r->n_chosen; c++) {
        int best = find_best(choice, is_marked, r->n_experts), at = c;
        assert(best >= 0); /* the chosen groups have at least n_chosen experts */
        is_marked[best] = true;
        for (; at > 0 && ids[at - 1] > best; at--)
            ids[at] = ids[at - 1];
        ids[at] = best;
    }
    weigh(r, factors, scores, ids, weights);
}
