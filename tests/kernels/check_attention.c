/* Attention over pages: shapes, views, both types, pages full of what must not be seen. */
#include "check.h"
#include "kernels/ref/ref.h"

#include <string.h>

enum { N_PAGES = 6 };

/* Query i sees the positions up to first_length + i * step - 1: from 0 on, or the last `window` of them. */
struct shape {
    int n_queries, head_dim, first_length, step, window;
    bool has_slopes;
};

/* Keys and values of N_PAGES pages. */
static void fill_pages(struct check *c, uint8_t *pages, int head_dim, bool is_half)
{
    size_t n = (size_t)ATTENTION_KEYS * (size_t)head_dim;
    float *x = check_floats(c, n);
    for (size_t i = 0; i < 2 * N_PAGES; i++) {
        check_fill(c, x, n);
        if (is_half)
            to_half_ref((uint16_t *)pages + i * n, x, (int)n);
        else
            memcpy((float *)pages + i * n, x, n * sizeof *x);
    }
}

/* NaN wherever the view does not look. */
static void spoil_pages(uint8_t *pages, const int32_t *table, int head_dim, const struct attention_view *view,
                        bool is_half)
{
    int n = ATTENTION_KEYS * head_dim;
    for (int page = 0; page < N_PAGES; page++)
        for (int i = 0; i < 2 * n; i++) {
            int pos = page * ATTENTION_KEYS + (i < n ? i % ATTENTION_KEYS : (i - n) / head_dim);
            if (pos >= view->begin && pos < view->end)
                continue;
            if (is_half)
                ((uint16_t *)pages)[2 * n * table[page] + i] = 0x7E00;
            else
                ((float *)pages)[2 * n * table[page] + i] = (float)NAN;
        }
}

static void check_shape(struct check *c, const struct shape *s, bool is_half)
{
    attention_fn *variant = is_half ? c->k->attention_f16 : c->k->attention_f32;
    attention_fn *ref = is_half ? attention_f16_ref : attention_f32_ref;
    if (!check_next(c, (any_fn *)variant, "attention_%s_%dx%d_%d+%d_w%d%s_%d", is_half ? "f16" : "f32",
                    s->n_queries, s->head_dim, s->first_length, s->step, s->window,
                    s->has_slopes ? "_alibi" : "", (int)c->fill))
        return;
    static const int32_t table[N_PAGES] = { 3, 0, 5, 1, 4, 2 };
    size_t n = (size_t)s->n_queries * (size_t)s->head_dim, element = is_half ? 2 : 4;
    size_t head_bytes = ATTENTION_KEYS * (size_t)s->head_dim * element;
    uint8_t *pages = check_bytes(c, 2 * N_PAGES * head_bytes);
    float *q = check_floats(c, n), *want = check_floats(c, n), *got = check_floats(c, n);
    struct attention_view *views = check_bytes(c, (size_t)s->n_queries * sizeof *views);
    for (int i = 0; i < s->n_queries; i++) {
        int end = s->first_length + i * s->step;
        int begin = s->window > 0 && end > s->window ? end - s->window : 0;
        views[i] = (struct attention_view){ begin, end, end - 1, s->has_slopes ? 0.3f / (float)(i + 1) : 0 };
    }
    int last = s->n_queries - 1;
    struct attention_view seen = { .begin = views[0].begin, .end = views[last].end };
    fill_pages(c, pages, s->head_dim, is_half);
    spoil_pages(pages, table, s->head_dim, &seen, is_half);
    check_fill(c, q, n);
    if (c->fill == FILL_RANDOM)
        for (size_t i = 0; i < n; i++)
            q[i] *= 4;
    struct attention_pages p = { pages, 2 * head_bytes, head_bytes, table };
    ref(want, q, views, s->n_queries, s->head_dim, &p);
    variant(got, q, views, s->n_queries, s->head_dim, &p);
    check_bits(c, want, got, n);
    if (c->fill == FILL_RANDOM)
        for (size_t i = 0; i < n; i++)
            check_true(c, isfinite(want[i]), "a position that must not be seen was seen");
    uint8_t *spoiled = check_bytes(c, 2 * N_PAGES * head_bytes);
    p.base = spoiled;
    for (int i = 0; i < s->n_queries; i++) { /* alone, beside what only others may see: the same bits */
        memcpy(spoiled, pages, 2 * N_PAGES * head_bytes);
        spoil_pages(spoiled, table, s->head_dim, &views[i], is_half);
        variant(got, q + i * s->head_dim, &views[i], 1, s->head_dim, &p);
        check_bits(c, want + i * s->head_dim, got, (size_t)s->head_dim);
    }
    check_done(c);
}

void check_attention(struct check *c)
{
    static const struct shape SHAPES[] = {
        { 1, 8, 1, 0, 0, false },      { 1, 128, 1, 0, 0, false },   { 1, 128, 96, 0, 0, false },
        { 16, 128, 77, 0, 0, false },  { 16, 32, 81, 1, 0, false },  { 5, 80, 40, 3, 0, false },
        { 9, 64, 16, 1, 0, false },    { 2, 256, 31, 1, 0, false },  { 3, 24, 15, 1, 0, false },
        { 8, 16, 48, 0, 0, false },    { 7, 40, 1, 9, 0, false },    { 16, 96, 33, 0, 0, false },
        { 4, 8, 17, 16, 0, false },    { 12, 128, 64, 2, 0, false }, { 1, 64, 90, 0, 1, false },
        { 16, 128, 40, 1, 33, false }, { 16, 64, 60, 1, 5, false },  { 5, 80, 10, 16, 20, false },
        { 9, 24, 80, 1, 64, false },   { 16, 128, 81, 1, 0, true },  { 3, 80, 33, 9, 0, true },
        { 16, 64, 50, 0, 0, true },    { 11, 40, 70, 2, 18, true },
    };
    for (int fill = 0; fill < FILL_COUNT; fill++) {
        c->fill = (enum fill)fill;
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
            check_shape(c, &SHAPES[i], true);
            check_shape(c, &SHAPES[i], false);
        }
    }
}
