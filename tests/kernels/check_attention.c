/* Attention over blocks of pages: shapes, views, all types, pages full of what must not be seen. */
#include "check.h"
#include "kernels/ref/ref.h"

#include <stdlib.h>
#include <string.h>

enum { N_PAGES = 40, N_BLOCKS = (N_PAGES * ATTENTION_KEYS + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK };
enum kind { F16, BF16, F32, INT8, N_KINDS };

/* Query i sees the positions up to first_length + i * step - 1: from 0 on, or the last `window` of them. */
struct shape {
    int n_queries, head_dim, first_length, step, window;
    bool has_slopes;
    int n_latent; /* 0: keys and values apart */
    float softcap;
};

/* The pages of one head, and what reads them. */
struct pages {
    enum kind kind;
    int head_dim, n_latent;
    size_t head_bytes;   /* keys of a page; values have the same size; latent pages: of a page */
    int n_heads_of_page; /* such pieces of a page */
    uint8_t *bytes;
    int32_t table[N_PAGES];
};

static attention_fn *variant_of(const struct kernels *k, enum kind kind)
{
    return kind == F16    ? k->attention_f16
           : kind == BF16 ? k->attention_bf16
           : kind == F32  ? k->attention_f32
                          : k->attention_int8;
}

static size_t bytes_of_head(enum kind kind, const struct shape *s)
{
    size_t n = ATTENTION_KEYS * (size_t)s->head_dim, n_scales = s->n_latent > 0 ? 2 : 1;
    return kind == F32 ? 4 * n : kind == INT8 ? n + n_scales * ATTENTION_KEYS * sizeof(float) : 2 * n;
}

/* x: [16][head_dim], rows of positions. */
static void put_int8(uint8_t *to, const float *x, int head_dim, bool is_values)
{
    int8_t *row = malloc((size_t)head_dim);
    for (int key = 0; key < ATTENTION_KEYS; key++) {
        float *scales = (float *)(to + ATTENTION_KEYS * head_dim);
        scales[key] = to_int8_ref(row, x + key * head_dim, head_dim);
        for (int d = 0; d < head_dim; d++)
            to[is_values ? (key / 2 * head_dim + d) * 2 + key % 2
                         : (d / 2 * ATTENTION_KEYS + key) * 2 + d % 2] = (uint8_t)row[d];
    }
    free(row);
}

/* x: [16][head_dim], rows of positions. */
static void put_latent_int8(uint8_t *to, const float *x, const struct pages *p)
{
    float *scales = (float *)(to + ATTENTION_KEYS * p->head_dim);
    for (int key = 0; key < ATTENTION_KEYS; key++, x += p->head_dim, to += p->head_dim) {
        scales[key] = to_int8_ref((int8_t *)to, x, p->n_latent);
        scales[ATTENTION_KEYS + key] = to_int8_ref((int8_t *)to + p->n_latent, x + p->n_latent,
                                                   p->head_dim - p->n_latent);
    }
}

static void fill_pages(struct check *c, const struct pages *p)
{
    size_t n = (size_t)ATTENTION_KEYS * (size_t)p->head_dim;
    float *x = check_floats(c, n);
    for (int i = 0; i < p->n_heads_of_page * N_PAGES; i++) {
        uint8_t *to = p->bytes + (size_t)i * p->head_bytes;
        check_fill(c, x, n);
        if (p->kind == F16)
            to_half_ref((uint16_t *)to, x, (int)n);
        else if (p->kind == BF16)
            for (size_t k = 0; k < n; k++)
                ((uint16_t *)to)[k] = float_to_bf16(x[k]);
        else if (p->kind == F32)
            memcpy(to, x, n * sizeof *x);
        else if (p->n_latent > 0)
            put_latent_int8(to, x, p);
        else
            put_int8(to, x, p->head_dim, i % 2 == 1);
    }
}

static void spoil_latent_pages(const struct pages *p, const struct attention_view *view)
{
    for (int pos = 0; pos < N_PAGES * ATTENTION_KEYS; pos++) {
        int key = pos % ATTENTION_KEYS;
        uint8_t *page = p->bytes + (size_t)p->table[pos / ATTENTION_KEYS] * p->head_bytes;
        if (pos >= view->begin && pos < view->end)
            continue;
        for (int d = key * p->head_dim; d < (key + 1) * p->head_dim; d++) {
            if (p->kind == F16 || p->kind == BF16)
                ((uint16_t *)page)[d] = 0x7FC0; /* a NaN of both */
            else if (p->kind == F32)
                ((float *)page)[d] = (float)NAN;
            else
                page[d] = 127;
        }
        float *scales = (float *)(page + ATTENTION_KEYS * p->head_dim);
        if (p->kind == INT8)
            scales[key] = scales[ATTENTION_KEYS + key] = (float)NAN;
    }
}

/* What can do the most harm wherever the view does not look. */
static void spoil_pages(const struct pages *p, const struct attention_view *view)
{
    int n = ATTENTION_KEYS * p->head_dim;
    if (p->n_latent > 0) {
        spoil_latent_pages(p, view);
        return;
    }
    for (int i = 0; i < 2 * N_PAGES * n; i++) {
        bool is_values = i / n % 2 == 1;
        int element = i % n, page = i / n / 2,
            d = is_values ? element % p->head_dim : element / ATTENTION_KEYS;
        int key = is_values ? element / p->head_dim : element % ATTENTION_KEYS;
        int pos = page * ATTENTION_KEYS + key;
        uint8_t *to = p->bytes + (size_t)(2 * p->table[page] + is_values) * p->head_bytes;
        if (pos >= view->begin && pos < view->end)
            continue;
        if (p->kind == F16 || p->kind == BF16)
            ((uint16_t *)to)[element] = 0x7FC0; /* a NaN of both */
        else if (p->kind == F32)
            ((float *)to)[element] = (float)NAN;
        else {
            to[is_values ? (key / 2 * p->head_dim + d) * 2 + key % 2
                         : (d / 2 * ATTENTION_KEYS + key) * 2 + d % 2] = 127;
            ((float *)(to + n))[key] = (float)NAN;
        }
    }
}

/* All blocks one after the other, as the backend does it. out: [n_queries][value_dim]. */
static void run(struct check *c, float *out, attention_fn *attention, attention_merge_fn *merge,
                divide_fn *divide, const struct attention_work *work)
{
    int value_dim = attention_value_dim(work), n = work->n_queries * value_dim;
    float max[2][ATTENTION_QUERIES], total[2][ATTENTION_QUERIES] = { { 0 } };
    struct attention_sums all = { max[0], total[0], out },
                          one = { max[1], total[1], check_floats(c, (size_t)n) };
    for (int block = 0; block < N_BLOCKS; block++) {
        attention(&one, work, block);
        merge(&all, &one, work->n_queries, value_dim);
    }
    for (int i = 0; i < work->n_queries; i++)
        divide(out + i * value_dim, out + i * value_dim, total[0][i], value_dim);
}

static void check_shape(struct check *c, const struct shape *s, enum kind kind)
{
    static attention_fn *const REF[] = { attention_f16_ref, attention_bf16_ref, attention_f32_ref,
                                         attention_int8_ref };
    static const char *const NAMES[] = { "f16", "bf16", "f32", "int8" };
    attention_fn *variant = variant_of(c->k, kind);
    if (!check_next(c, (any_fn *)variant, "attention_%s_%dx%d_%d+%d_w%d%s%s_l%d_%d", NAMES[kind],
                    s->n_queries, s->head_dim, s->first_length, s->step, s->window,
                    s->has_slopes ? "_alibi" : "", s->softcap > 0 ? "_cap" : "", s->n_latent, (int)c->fill))
        return;
    struct pages pages = { .kind = kind,
                           .head_dim = s->head_dim,
                           .n_latent = s->n_latent,
                           .head_bytes = bytes_of_head(kind, s),
                           .n_heads_of_page = s->n_latent > 0 ? 1 : 2 };
    int value_dim = s->n_latent > 0 ? s->n_latent : s->head_dim;
    size_t n = (size_t)s->n_queries * (size_t)s->head_dim, n_out = (size_t)(s->n_queries * value_dim);
    size_t page_bytes = (size_t)pages.n_heads_of_page * pages.head_bytes, n_bytes = N_PAGES * page_bytes;
    pages.bytes = check_bytes(c, n_bytes);
    for (int i = 0; i < N_PAGES; i++)
        pages.table[i] = (i * 7 + 3) % N_PAGES;
    float *q = check_floats(c, n), *want = check_floats(c, n_out), *got = check_floats(c, n_out);
    struct attention_view *views = check_bytes(c, (size_t)s->n_queries * sizeof *views);
    for (int i = 0; i < s->n_queries; i++) {
        int end = s->first_length + i * s->step;
        int begin = s->window > 0 && end > s->window ? end - s->window : 0;
        views[i] = (struct attention_view){ begin, end, end - 1, s->has_slopes ? 0.3f / (float)(i + 1) : 0 };
    }
    struct attention_view seen = { .begin = views[0].begin, .end = views[s->n_queries - 1].end };
    fill_pages(c, &pages);
    spoil_pages(&pages, &seen);
    check_fill(c, q, n);
    if (c->fill == FILL_RANDOM)
        for (size_t i = 0; i < n; i++)
            q[i] *= 4;
    const uint8_t *next[ATTENTION_PREFETCH_PAGES] = { pages.bytes, pages.bytes, pages.bytes, pages.bytes };
    struct attention_work work = { .q = q,
                                   .views = views,
                                   .n_queries = s->n_queries,
                                   .head_dim = s->head_dim,
                                   .n_latent = s->n_latent,
                                   .softcap = s->softcap,
                                   .base = pages.bytes,
                                   .page_bytes = page_bytes,
                                   .values_offset = s->n_latent > 0 ? 0 : pages.head_bytes,
                                   .page_table = pages.table,
                                   .next = next };
    run(c, want, REF[kind], attention_merge_ref, divide_ref, &work);
    run(c, got, variant, c->k->attention_merge, c->k->divide, &work);
    check_bits(c, want, got, n_out);
    if (c->fill == FILL_RANDOM)
        for (size_t i = 0; i < n_out; i++)
            check_true(c, isfinite(want[i]), "a position that must not be seen was seen");
    uint8_t *unspoiled = pages.bytes;
    pages.bytes = check_bytes(c, n_bytes);
    work.base = pages.bytes;
    for (int i = s->n_queries - 1; i >= 0;
         i -= 5) { /* one row in a batch whose other rows see more: the same bits */
        memcpy(pages.bytes, unspoiled, n_bytes);
        spoil_pages(&pages, &views[i]);
        work.q = q + i * s->head_dim;
        work.views = &views[i];
        work.n_queries = 1;
        run(c, got, variant, c->k->attention_merge, c->k->divide, &work);
        check_bits(c, want + i * value_dim, got, (size_t)value_dim);
    }
    check_done(c);
}

static void check_to_int8(struct check *c, int n)
{
    if (!check_next(c, (any_fn *)c->k->to_int8, "to_int8_%d_%d", n, (int)c->fill))
        return;
    float *x = check_floats(c, (size_t)n);
    int8_t *want = check_bytes(c, (size_t)n), *got = check_bytes(c, (size_t)n);
    check_fill(c, x, (size_t)n);
    float want_scale = to_int8_ref(want, x, n), got_scale = c->k->to_int8(got, x, n);
    check_same(c, want, got, (size_t)n);
    check_bits(c, &want_scale, &got_scale, 1);
    for (int i = 0; i < n && isfinite(want_scale); i++)
        check_true(c, fabsf((float)want[i] * want_scale - x[i]) <= 0.50001f * want_scale + 0x1p-100f,
                   "farther than half a step");
    check_done(c);
}

void check_attention(struct check *c)
{
    static const struct shape SHAPES[] = {
        { 1, 8, 1, 0, 0, false },
        { 1, 128, 1, 0, 0, false },
        { 1, 128, 600, 0, 0, false },
        { 16, 128, 277, 0, 0, false },
        { 16, 32, 250, 1, 0, false },
        { 5, 80, 240, 30, 0, false },
        { 9, 64, 16, 1, 0, false },
        { 2, 256, 531, 1, 0, false },
        { 3, 24, 15, 1, 0, false },
        { 8, 16, 256, 0, 0, false },
        { 7, 40, 1, 90, 0, false },
        { 16, 96, 513, 0, 0, false },
        { 4, 8, 17, 160, 0, false },
        { 12, 128, 64, 2, 0, false },
        { 1, 64, 90, 0, 1, false },
        { 16, 128, 250, 1, 33, false },
        { 16, 64, 60, 1, 5, false },
        { 5, 80, 10, 99, 20, false },
        { 9, 24, 500, 1, 300, false },
        { 16, 128, 281, 1, 0, true },
        { 3, 80, 33, 90, 0, true },
        { 16, 64, 50, 0, 0, true },
        { 11, 40, 270, 2, 218, true },
        { 3, 512, 40, 0, 0, false },
        /* Latent pages: DeepSeek's, and parts that are odd multiples of 8. */
        { 1, 576, 300, 0, 0, false, 512 },
        { 16, 576, 40, 1, 0, false, 512 },
        { 7, 40, 250, 3, 0, false, 24 },
        { 16, 16, 1, 40, 0, false, 8 },
        { 3, 72, 530, 1, 33, false, 40 },
        { 6, 56, 30, 1, 0, true, 48 },
        { 2, 24, 17, 250, 0, false, 16 },
        { 12, 104, 64, 2, 5, false, 64 },
        { 1, 8, 1, 0, 0, false },
        { 1, 128, 1, 0, 0, false },
        { 1, 128, 600, 0, 0, false },
        { 16, 128, 277, 0, 0, false },
        { 16, 32, 250, 1, 0, false },
        { 5, 80, 240, 30, 0, false },
        { 9, 64, 16, 1, 0, false },
        { 2, 256, 531, 1, 0, false },
        { 3, 24, 15, 1, 0, false },
        { 8, 16, 256, 0, 0, false },
        { 7, 40, 1, 90, 0, false },
        { 16, 96, 513, 0, 0, false },
        { 4, 8, 17, 160, 0, false },
        { 12, 128, 64, 2, 0, false },
        { 1, 64, 90, 0, 1, false },
        { 16, 128, 250, 1, 33, false },
        { 16, 64, 60, 1, 5, false },
        { 5, 80, 10, 99, 20, false },
        { 9, 24, 500, 1, 300, false },
        { 16, 128, 281, 1, 0, true },
        { 3, 80, 33, 90, 0, true },
        { 16, 64, 50, 0, 0, true },
        { 11, 40, 270, 2, 218, true },
        { 3, 512, 40, 0, 0, false },
        { 9, 24, 500, 1, 300, false, 0, 2 },
        { 16, 128, 281, 1, 0, false, 0, 50 },
    };
    for (int fill = 0; fill < FILL_COUNT; fill++) {
        c->fill = (enum fill)fill;
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES;
             i++) /* brief: a third for each fill, another one */
            for (int kind = 0; kind < N_KINDS && (!c->is_brief || i % 3 == c->fill % 3); kind++)
                check_shape(c, &SHAPES[i], (enum kind)kind);
        for (int n = 8; n <= 264; n += 8)
            check_to_int8(c, n);
    }
}
