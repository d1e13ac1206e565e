#include "engine/speculate/prompt_lookup.h"

#include "base/hash.h"

#include <string.h>

/* Lengths of the n-grams, by kind; the longer one is tried first. */
static const int LENGTHS[PROMPT_LOOKUP_KINDS] = { 4, 2 };
static const float FIRST_ACCEPTANCE = 0.3f, WEIGHT = 0.2f; /* WEIGHT: of a token in the moving average */

int prompt_lookup_n_places(int max_ids)
{
    int n = 16;
    while (n < max_ids)
        n *= 2;
    return n;
}

void prompt_lookup_reset(struct prompt_lookup *lookup)
{
    lookup->n_entered = 0;
    lookup->from = -1;
    for (int kind = 0; kind < PROMPT_LOOKUP_KINDS; kind++)
        lookup->acceptance[kind] = FIRST_ACCEPTANCE;
}

/* Updates the acceptance rate: compares the proposal for position at with the tokens that are known
 * there now. The proposal may overlap with the tokens that it is compared with: as long as it was
 * right, ids has the same tokens. */
static void note_acceptance(struct prompt_lookup *lookup, const int32_t *ids, int n_ids)
{
    float *acceptance = &lookup->acceptance[lookup->kind];
    bool is_right = true;
    for (int pos = lookup->at, from = lookup->from; is_right && pos < n_ids; pos++, from++) {
        is_right = ids[pos] == ids[from];
        *acceptance += WEIGHT * ((is_right ? 1.0f : 0.0f) - *acceptance);
    }
}

static int32_t *lookup_place_of(const struct prompt_lookup *lookup, int kind, const int32_t *tokens)
{
    uint64_t hash = hash64(0, tokens, (size_t)LENGTHS[kind] * sizeof *tokens);
    return &lookup->places[kind][hash & lookup->mask];
}

int prompt_lookup_update(struct prompt_lookup *lookup, const int32_t *ids, int n_ids, int most_tokens)
{
    if (lookup->from >= 0 && lookup->at == n_ids)
        return 0; /* no new token: the proposal remains valid */
    if (lookup->from >= 0)
        note_acceptance(lookup, ids, n_ids);
    lookup->from = -1;
    int begin = lookup->n_entered;
    int end = n_ids - begin > most_tokens ? begin + most_tokens : n_ids;
    for (int pos = begin + 1; pos <= end; pos++) {
        for (int kind = 0; kind < PROMPT_LOOKUP_KINDS; kind++) {
            int n = LENGTHS[kind];
            if (pos < n)
                continue;
            int32_t *place = lookup_place_of(lookup, kind, ids + pos - n);
            int last = *place;
            *place = pos;
            if (pos == n_ids && lookup->from < 0 && last >= n && last < pos &&
                memcmp(ids + last - n, ids + pos - n, (size_t)n * sizeof *ids) == 0) {
                lookup->from = last;
                lookup->at = pos;
                lookup->kind = kind;
            }
        }
    }
    lookup->n_entered = end;
    return end - begin;
}

float prompt_lookup_acceptance(const struct prompt_lookup *lookup)
{
    return lookup->from < 0 ? 0 : lookup->acceptance[lookup->kind];
}

void prompt_lookup_copy(const struct prompt_lookup *lookup, int32_t *ids, int n_ids, int n)
{
    for (int i = 0; i < n; i++)
        ids[n_ids + i] = ids[lookup->from + i];
}
