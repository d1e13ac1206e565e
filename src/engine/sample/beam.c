#include "engine/sample/beam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory: one allocation for all ---- */

struct pool {
    uint8_t *at;
    size_t n_bytes;
    bool is_too_large;
};

static void *take(struct pool *pool, size_t n_items, size_t item_bytes)
{
    size_t n, end;
    if (__builtin_mul_overflow(n_items, item_bytes, &n) ||
        __builtin_add_overflow(pool->n_bytes, (n + 15) & ~(size_t)15, &end) || n > SIZE_MAX - 15) {
        pool->is_too_large = true;
        return NULL;
    }
    void *memory = pool->at ? pool->at + pool->n_bytes : NULL;
    pool->n_bytes = end;
    return memory;
}

/* Divides the allocation; only measures if pool->at is NULL. */
static void lay_out(struct beam_search *b, struct pool *pool)
{
    size_t n_beams = (size_t)b->n_beams, max_new = (size_t)b->max_new;
    take(pool, 1, sizeof *b);
    struct beam *beams = take(pool, n_beams, sizeof *beams);
    struct beam_answer *answers = take(pool, n_beams, sizeof *answers);
    b->beams = beams;
    b->answers = answers;
    b->reordered = take(pool, n_beams, sizeof *b->reordered);
    b->next = take(pool, n_beams, sizeof *b->next);
    b->heads = take(pool, n_beams, sizeof *b->heads);
    for (size_t i = 0; i < n_beams; i++) {
        struct beam beam = { .logprobs = take(pool, max_new, sizeof(float)) };
        beam.candidates = take(pool, (size_t)b->n_candidates, sizeof *beam.candidates);
        struct beam_answer answer = { .ids = take(pool, max_new, sizeof *answer.ids) };
        answer.logprobs = take(pool, max_new, sizeof(float));
        if (pool->at) {
            beams[i] = beam;
            answers[i] = answer;
        }
    }
}

size_t beam_search_bytes(int n_beams, int n_candidates, int max_new)
{
    struct beam_search shape = { .n_beams = n_beams, .n_candidates = n_candidates, .max_new = max_new };
    struct pool pool = { 0 };
    lay_out(&shape, &pool);
    return pool.is_too_large ? SIZE_MAX : pool.n_bytes;
}

enum tutti_status beam_search_new(struct beam_search **out, int n_beams, int n_candidates, int max_new,
                                  struct tutti_error *err)
{
    struct beam_search shape = {
        .n_beams = n_beams, .n_candidates = n_candidates, .max_new = max_new, .n_live = 1
    };
    size_t n_bytes = beam_search_bytes(n_beams, n_candidates, max_new);
    struct beam_search *b = n_bytes == SIZE_MAX ? NULL : calloc(1, n_bytes);
    if (!b)
        return error_set(err, TUTTI_E_MEMORY, "%d beams of %d tokens: out of memory", n_beams, max_new);
    *b = shape;
    struct pool pool = { .at = (uint8_t *)b };
    lay_out(b, &pool);
    *out = b;
    return TUTTI_OK;
}

void beam_search_free(struct beam_search *search)
{
    free(search);
}

/* ---- choosing ---- */

/* The best unused candidate of all live beams, whose candidates are sorted. -1: there is none. */
static int best_head(const struct beam_search *b, float *score)
{
    int best = -1;
    for (int i = 0; i < b->n_live; i++) {
        if (b->heads[i] == b->n_candidates)
            continue;
        float sum = b->beams[i].score + b->beams[i].candidates[b->heads[i]].score;
        if (best < 0 || sum > *score) {
            best = i;
            *score = sum;
        }
    }
    return best;
}

/* Keeps the n_beams best answers; the older one of equals. */
static void add_answer(struct beam_search *b, int parent, const struct sample_candidate *last, float score,
                       int n_new, const int32_t *ids, bool has_stop)
{
    if (b->n_answers == b->n_beams && !(score > b->answers[b->n_beams - 1].score))
        return;
    int at = b->n_answers < b->n_beams ? b->n_answers++ : b->n_beams - 1;
    struct beam_answer answer = b->answers[at]; /* its memory is reused for the new one */
    for (; at > 0 && score > b->answers[at - 1].score; at--)
        b->answers[at] = b->answers[at - 1];
    answer.score = score;
    answer.has_stop = has_stop;
    answer.n = has_stop ? n_new - 1 : n_new;
    memcpy(answer.ids, ids, (size_t)(n_new - 1) * sizeof *ids);
    memcpy(answer.logprobs, b->beams[parent].logprobs, (size_t)(n_new - 1) * sizeof *answer.logprobs);
    answer.ids[n_new - 1] = last->id;
    answer.logprobs[n_new - 1] = last->logprob;
    b->answers[at] = answer;
}

static bool goes_on(const struct beam_search *b, int n_new)
{
    if (b->n_next == 0)
        return false;
    if (b->n_answers < b->n_beams)
        return true;
    if (b->early_stopping == TUTTI_EARLY_STOPPING_TRUE)
        return false;
    bool is_never = b->early_stopping == TUTTI_EARLY_STOPPING_NEVER;
    int n_most = is_never && b->length_penalty > 0 ? b->max_new : n_new;
    float best = b->next[0].score / (float)pow(n_most, b->length_penalty);
    return best > b->answers[b->n_beams - 1].score;
}

bool beam_search_choose(struct beam_search *b, int n_new, const int32_t *const *ids,
                        bool (*is_stop)(const void *user, int32_t id), const void *user)
{
    float divisor = (float)pow(n_new, b->length_penalty), score = 0;
    bool is_last = n_new == b->max_new;
    b->n_next = 0;
    memset(b->heads, 0, (size_t)b->n_beams * sizeof *b->heads);
    /* Only the n_beams best candidates may end an answer; further ones are there to replace them as
     * live beams. */
    for (int rank = 0, i; b->n_next < b->n_beams && (rank < b->n_beams || !is_last); rank++) {
        i = best_head(b, &score);
        if (i < 0)
            break;
        const struct sample_candidate *c = &b->beams[i].candidates[b->heads[i]++];
        bool ends = is_stop(user, c->id);
        if (!ends && !is_last)
            b->next[b->n_next++] = (struct beam_next){ i, c->id, score, c->logprob };
        else if (rank < b->n_beams)
            add_answer(b, i, c, score / divisor, n_new, ids[i], ends);
    }
    return goes_on(b, n_new);
}
