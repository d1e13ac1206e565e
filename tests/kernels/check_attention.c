/* Attention over pages: shapes, lengths, both types, pages full of what must not be seen. */
#include "check.h"
#include "kernels/ref/ref.h"

#include <string.h>

enum { N_PAGES = 6 };

struct shape {
    int n_queries, head_dim, first_length, step;
};

/* Keys and values of N_PAGES pages; behind the longest length they are NaN. */
static void fill_pages(struct check *c, uint8_t *pages, const int32_t *table, int head_dim, int longest,
                       bool is_half)
{
    size_t n = (size_t)ATTENTION_KEYS * (size_t)head_dim;
    float *x = check_floats(c, n);
    for (int page = 0; page < N_PAGES; page++)
        for (int values = 0; values < 2; values++) {
            check_fill(c, x, n);
            for (size_t i = 0; i < n; i++) {
                int key = values ? (int)i / head_dim : (int)i % ATTENTION_KEYS;
                if (page * ATTENTION_KEYS + key >= longest)
                    x[i] = (float)NAN;
            }
            size_t at = (size_t)(2 * table[page] + values) * n;
            if (is_half)
                to_half_ref((uint16_t *)pages + at, x, (int)n);
            else
                memcpy((float *)pages + at, x, n * sizeof *x);
        }
}

static void check_shape(struct check *c, const struct shape *s, bool is_half)
{
    attention_fn *variant = is_half ? c->k->attention_f16 : c->k->attention_f32;
    attention_fn *ref = is_half ? attention_f16_ref : attention_f32_ref;
    if (!check_next(c, (any_fn *)variant, "attention_%s_%dx%d_%d+%d_%d", is_half ? "f16" : "f32",
                    s->n_queries, s->head_dim, s->first_length, s->step, (int)c->fill))
        return;
    static const int32_t table[N_PAGES] = { 3, 0, 5, 1, 4, 2 };
    size_t n = (size_t)s->n_queries * (size_t)s->head_dim, element = is_half ? 2 : 4;
    size_t head_bytes = ATTENTION_KEYS * (size_t)s->head_dim * element;
    uint8_t *pages = check_bytes(c, 2 * N_PAGES * head_bytes);
    float *q = check_floats(c, n), *want = check_floats(c, n), *got = check_floats(c, n);
    int *lengths = check_bytes(c, (size_t)s->n_queries * sizeof *lengths);
    for (int i = 0; i < s->n_queries; i++)
        lengths[i] = s->first_length + i * s->step;
    int longest = lengths[s->n_queries - 1];
    fill_pages(c, pages, table, s->head_dim, longest, is_half);
    check_fill(c, q, n);
    if (c->fill == FILL_RANDOM)
        for (size_t i = 0; i < n; i++)
            q[i] *= 4;
    struct attention_pages p = { pages, 2 * head_bytes, head_bytes, table };
    ref(want, q, lengths, s->n_queries, s->head_dim, &p);
    variant(got, q, lengths, s->n_queries, s->head_dim, &p);
    check_bits(c, want, got, n);
    if (c->fill == FILL_RANDOM)
        for (size_t i = 0; i < n; i++)
            check_true(c, isfinite(want[i]), "a position that must not be seen was seen");
    int last = s->n_queries - 1; /* alone: the same bits */
    variant(got, q + last * s->head_dim, lengths + last, 1, s->head_dim, &p);
    check_bits(c, want + last * s->head_dim, got, (size_t)s->head_dim);
    check_done(c);
}

void check_attention(struct check *c)
{
    static const struct shape SHAPES[] = {
        { 1, 8, 1, 0 },   { 1, 128, 1, 0 },  { 1, 128, 96, 0 }, { 16, 128, 77, 0 }, { 16, 32, 81, 1 },
        { 5, 80, 40, 3 }, { 9, 64, 16, 1 },  { 2, 256, 31, 1 }, { 3, 24, 15, 1 },   { 8, 16, 48, 0 },
        { 7, 40, 1, 9 },  { 16, 96, 33, 0 }, { 4, 8, 17, 16 },  { 12, 128, 64, 2 },
    };
    for (int fill = 0; fill < FILL_COUNT; fill++) {
        c->fill = (enum fill)fill;
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
            check_shape(c, &SHAPES[i], true);
            check_shape(c, &SHAPES[i], false);
        }
    }
}
