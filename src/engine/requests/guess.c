#include "engine/requests/guess.h"

#include "base/hash.h"

#include <string.h>

/* Lengths of the n-grams, by kind; the longer one is tried first. */
static const int LENGTHS[GUESS_KINDS] = { 4, 2 };
static const float FIRST_CHANCE = 0.3f, WEIGHT = 0.2f; /* WEIGHT: of a judged token in the mean */

int guesser_n_places(int max_ids)
{
    int n = 16;
    while (n < max_ids)
        n *= 2;
    return n;
}

void guesser_begin(struct guesser *g)
{
    g->n_read = 0;
    g->from = -1;
    for (int kind = 0; kind < GUESS_KINDS; kind++)
        g->chances[kind] = FIRST_CHANCE;
}

/* Judges the proposal for position at: the tokens there are known now. Draft tokens may repeat the
 * proposal itself; while they are right, ids has them. */
static void judge_proposal(struct guesser *g, const int32_t *ids, int n_ids)
{
    float *chance = &g->chances[g->kind];
    bool is_right = true;
    for (int pos = g->at, from = g->from; is_right && pos < n_ids; pos++, from++) {
        is_right = ids[pos] == ids[from];
        *chance += WEIGHT * ((is_right ? 1.0f : 0.0f) - *chance);
    }
}

static int32_t *place_of(const struct guesser *g, int kind, const int32_t *tokens)
{
    uint64_t hash = hash64(0, tokens, (size_t)LENGTHS[kind] * sizeof *tokens);
    return &g->places[kind][hash & g->mask];
}

int guesser_read(struct guesser *g, const int32_t *ids, int n_ids, int most_tokens)
{
    if (g->from >= 0 && g->at == n_ids)
        return 0; /* no new token: the proposal remains valid */
    if (g->from >= 0)
        judge_proposal(g, ids, n_ids);
    g->from = -1;
    int begin = g->n_read;
    int end = n_ids - begin > most_tokens ? begin + most_tokens : n_ids;
    for (int pos = begin + 1; pos <= end; pos++) {
        for (int kind = 0; kind < GUESS_KINDS; kind++) {
            int n = LENGTHS[kind];
            if (pos < n)
                continue;
            int32_t *place = place_of(g, kind, ids + pos - n);
            int last = *place;
            *place = pos;
            if (pos == n_ids && g->from < 0 && last >= n && last < pos &&
                memcmp(ids + last - n, ids + pos - n, (size_t)n * sizeof *ids) == 0) {
                g->from = last;
                g->at = pos;
                g->kind = kind;
            }
        }
    }
    g->n_read = end;
    return end - begin;
}

float guesser_chance(const struct guesser *g)
{
    return g->from < 0 ? 0 : g->chances[g->kind];
}

void guesser_write(const struct guesser *g, int32_t *ids, int n_ids, int n)
{
    for (int i = 0; i < n; i++)
        ids[n_ids + i] = ids[g->from + i];
}
