/* Tests of attention in the CPU backend: against float64, and the contract that a row's bits depend on what it sees alone:
 * not on chunks, other sequences, the number of threads, or what else lies in the pages. */
#include "backend/backend.h"
#include "base/half.h"
#include "device.h"
#include "support/kv_pages.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SHORT = 77, LONG = 1100, MAX_PAGES = LONG / 16 + 1 };

struct attention_case {
    int n_heads, n_kv_heads, head_dim;
    enum rope_kind rope;
    enum dtype kv_type;
    int window, prefix_len;
    bool has_slopes, has_qk_norm;
    float softcap;
    bool has_sinks;
    bool keys_are_values, norms_values; /* of struct attention_shape */
};

/* What cases share. */
struct fixture {
    float freqs[128], slopes[40], sinks[40], q_norm[512], k_norm[512];
    int32_t rope_positions[LONG],
        block_positions[LONG]; /* of ROPE_2D: from row 50 on what ChatGLM generates */
};

static const struct fixture *fixture_get(void)
{
    static struct fixture f;
    for (int j = 0; j < 128; j++)
        f.freqs[j] = powf(10000, -(float)j / 16);
    for (int h = 0; h < 40; h++)
        f.slopes[h] = powf(2, -(float)(h + 1) / 5);
    for (int h = 0; h < 40;
         h++) /* of some heads so large that nothing is left, or so small that nothing changes */
        f.sinks[h] = h % 6 == 4 ? 300 : h % 6 == 5 ? -300 : (float)(h % 6) * 2 - 1;
    for (int d = 0; d < 512; d++) {
        f.q_norm[d] = 1 + 0.5f * sinf((float)d);
        f.k_norm[d] = 1 + 0.5f * cosf((float)d);
    }
    for (int i = 0; i < LONG; i++) {
        f.rope_positions[i] = i < 50 ? i : 48;
        f.block_positions[i] = i < 50 ? 0 : i - 49;
    }
    return &f;
}

static struct attention_shape shape_of(const struct attention_case *c)
{
    const struct fixture *f = fixture_get();
    return (struct attention_shape){ .n_heads = c->n_heads,
                                     .n_kv_heads = c->n_kv_heads,
                                     .head_dim = c->head_dim,
                                     .rotary_dim = c->head_dim / 2,
                                     .rope = c->rope,
                                     .rope_freqs = f->freqs,
                                     .rope_scale = 1,
                                     .scale = 1 / sqrtf((float)c->head_dim),
                                     .softcap = c->softcap,
                                     .window = c->window,
                                     .alibi_slopes = c->has_slopes ? f->slopes : NULL,
                                     .keys_are_values = c->keys_are_values,
                                     .norms_values = c->norms_values,
                                     .qk_norm_eps = 1e-6f };
}

/* Layers 0 and 2 are of the first kind, layer 1 of the second, or of the first too where it is NULL. */
static struct backend *backend_make(int n_threads, const struct attention_case *c,
                                    const struct attention_case *second, int max_rows)
{
    static const uint8_t KINDS[] = { 0, 1, 0 };
    struct tutti_error err;
    const struct attention_shape shapes[] = { shape_of(c), shape_of(second ? second : c) };
    struct backend_options options = { .n_threads = n_threads,
                                       .n_layers = 3,
                                       .n_kinds = second ? 2 : 1,
                                       .attention = shapes,
                                       .kinds = second ? KINDS : NULL };
    struct backend *be = device_open(&options);
    if (be->ops->reserve(be, max_rows, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return be;
}

static int row_floats(const struct attention_case *c)
{
    return (c->n_heads + (c->keys_are_values ? 1 : 2) * c->n_kv_heads) * c->head_dim;
}

/* How the rows are divided over steps, and the kind of attention of a layer in between. */
struct run {
    int first, chunk;
    bool has_other;
    const struct attention_case *second; /* NULL: the same */
};

/* ---- running it ------------------------------------------------------------------------------------------------- */

/* n rows of one sequence, `first` of them in the first step and then chunk by chunk, over scattered pages.
 * has_other: each step also has a row of another sequence, in front. Writes y [n][n_heads * head_dim]. */
static void attend(struct backend *be, const struct attention_case *c, const float *qkv, float *y, int n,
                   const struct run *run)
{
    const struct attention_case *second = run->second ? run->second : c;
    int first = run->first, chunk = run->chunk;
    bool has_other = run->has_other;
    const struct fixture *f = fixture_get();
    int n_q = c->n_heads * c->head_dim, n_row = row_floats(c);
    struct tutti_error err;
    struct kv_memory *kv = NULL;
    if (be->ops->kv_new(be, &kv, 2 * MAX_PAGES, 2 * MAX_PAGES, c->kv_type, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    int32_t table[MAX_PAGES], other_table[MAX_PAGES];
    for (int i = 0; i < MAX_PAGES; i++) {
        table[i] = (i * 37 + 5) % (2 * MAX_PAGES); /* 37 has no divisor in common with the number of pages */
        other_table[i] = ((i + MAX_PAGES) * 37 + 5) % (2 * MAX_PAGES);
    }
    const int32_t *tables[] = { other_table, table };
    struct floats rows = device_new(be, NULL, (size_t)((n + 1) * n_row));
    struct floats out = device_new(be, NULL, (size_t)((n + 1) * n_q));
    struct floats q_norm = NO_FLOATS, k_norm = NO_FLOATS, sinks = NO_FLOATS;
    if (c->has_sinks)
        sinks = device_new(be, f->sinks, (size_t)c->n_heads);
    if (c->has_qk_norm) {
        q_norm = device_new(be, f->q_norm, (size_t)c->head_dim);
        k_norm = device_new(be, f->k_norm, (size_t)c->head_dim);
    }
    int32_t positions[LONG + 1], seqs[LONG + 1], rope[LONG + 1] = { 0 }, block[LONG + 1] = { 0 };
    int32_t prefix_lens[] = { 0, c->prefix_len };
    int n_other = 0, extra = has_other ? 1 : 0;
    first = first < c->prefix_len ? c->prefix_len : first; /* a prefix is never cut */
    for (int begin = 0, n_here = first; begin < n; begin += n_here, n_here = chunk) {
        n_here = n - begin < n_here ? n - begin : n_here;
        if (has_other) {
            positions[0] = n_other++;
            seqs[0] = 0;
        }
        for (int i = 0; i < n_here; i++) {
            positions[extra + i] = begin + i;
            rope[extra + i] = f->rope_positions[begin + i];
            block[extra + i] = f->block_positions[begin + i];
            seqs[extra + i] = 1;
        }
        struct step step = {
            .n_rows = n_here + extra, .n_seqs = 2, .positions = positions, .seqs = seqs, .page_tables = tables
        };
        if (c->prefix_len > 0)
            step.prefix_lens = prefix_lens;
        if (c->rope == ROPE_2D) {
            step.rope_positions = rope;
            step.block_positions = block;
        }
        be->ops->step_begin(be, &step);
        for (int layer = 2; layer >= 0;
             layer--) { /* three times the same: no layer leaves anything to the next */
            if (layer == 1) {
                size_t n_floats = (size_t)step.n_rows * (size_t)row_floats(second);
                float *host = malloc(n_floats * sizeof *host);
                for (size_t i = 0; i < n_floats; i++)
                    host[i] = (float)(i % 7);
                struct floats others = device_new(be, host, n_floats),
                              unused = device_new(be, NULL, n_floats);
                be->ops->rope_store(be, others, NO_FLOATS, NO_FLOATS, kv, layer);
                be->ops->attention(be, unused, others, NO_FLOATS, kv, layer);
                be->ops->dealloc(be, others);
                be->ops->dealloc(be, unused);
                free(host);
                continue;
            }
            const float *host = qkv + (size_t)begin * (size_t)n_row;
            if (has_other)
                be->ops->upload(be, rows, host, (size_t)n_row);
            be->ops->upload(be, floats_at(rows, (size_t)(extra * n_row)), host, (size_t)(n_here * n_row));
            be->ops->rope_store(be, rows, q_norm, k_norm, kv, layer);
            be->ops->attention(be, out, rows, sinks, kv, layer);
        }
        device_end(be, floats_at(out, (size_t)(extra * n_q)), y + (size_t)begin * (size_t)n_q,
                   (size_t)(n_here * n_q));
    }
    const struct floats all[] = { rows, out, q_norm, k_norm, sinks };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        be->ops->dealloc(be, all[i]);
    be->ops->kv_free(be, kv);
}

/* ---- the plain formula, in float64 ------------------------------------------------------------------------------ */

/* Turns dimensions first..first + 2 n_pairs - 1. */
static void rotate(double *x, int first, int n_pairs, bool is_interleaved, int pos, const float *freqs)
{
    for (int j = 0; j < n_pairs; j++) {
        int u = first + (is_interleaved ? 2 * j : j), v = is_interleaved ? u + 1 : u + n_pairs;
        double angle = (double)((float)pos * freqs[j]), a = x[u], b = x[v];
        x[u] = a * cos(angle) - b * sin(angle);
        x[v] = b * cos(angle) + a * sin(angle);
    }
}

/* A head of q or k as attention sees it. */
static void prepare(double *to, const float *x, int pos, const struct attention_case *c, const float *norm)
{
    const struct fixture *f = fixture_get();
    double square = 0;
    for (int d = 0; d < c->head_dim; d++)
        square += (double)x[d] * (double)x[d];
    for (int d = 0; d < c->head_dim; d++)
        to[d] = (double)x[d] * (c->has_qk_norm ? (double)norm[d] / sqrt(square / c->head_dim + 1e-6) : 1);
    int quarter = c->head_dim / 4; /* half of the head turns */
    if (c->rope == ROPE_2D) {
        rotate(to, 0, quarter / 2, false, f->rope_positions[pos], f->freqs);
        rotate(to, quarter, quarter / 2, false, f->block_positions[pos], f->freqs);
    } else if (c->rope != ROPE_NONE) {
        rotate(to, 0, quarter, c->rope == ROPE_INTERLEAVED, pos, f->freqs);
    }
}

/* A head of v as attention sees it. */
static void make_value(double *to, const float *x, const struct attention_case *c)
{
    double square = 0;
    for (int d = 0; d < c->head_dim; d++)
        square += (double)x[d] * (double)x[d];
    for (int d = 0; d < c->head_dim; d++)
        to[d] = (double)x[d] / (c->norms_values ? sqrt(square / c->head_dim + 1e-6) : 1);
}

/* What reading a head of k or v back gives. */
static void store(double *x, int n, enum dtype type)
{
    double max = 0;
    for (int d = 0; d < n; d++)
        max = fmax(max, fabs(x[d]));
    for (int d = 0; d < n; d++)
        x[d] = type == DTYPE_F16    ? (double)half_to_float(float_to_half((float)x[d]))
               : type == DTYPE_BF16 ? (double)bf16_to_float(float_to_bf16((float)x[d]))
               : type == DTYPE_I8   ? rint(x[d] * 127 / max) * max / 127
                                    : x[d];
}

/* Rows from..n-1. y: [n][n_heads * head_dim], written from row `from` on. */
static void attend_float64(const struct attention_case *c, const float *qkv, double *y, int n, int from)
{
    const struct fixture *f = fixture_get();
    int hd = c->head_dim, n_row = row_floats(c), group = c->n_heads / c->n_kv_heads;
    double *k = malloc((size_t)(n * hd) * sizeof *k), *v = malloc((size_t)(n * hd) * sizeof *v), score[LONG],
           q[512];
    for (int kv_head = 0; kv_head < c->n_kv_heads; kv_head++) {
        for (int t = 0; t < n; t++) {
            const float *row = qkv + (size_t)t * (size_t)n_row + (c->n_heads + kv_head) * hd;
            prepare(k + t * hd, row, t, c, f->k_norm);
            make_value(v + t * hd, row + (c->keys_are_values ? 0 : c->n_kv_heads * hd), c);
            store(k + t * hd, hd, c->kv_type);
            store(v + t * hd, hd, c->kv_type);
        }
        for (int i = from * group; i < n * group; i++) {
            int r = i / group, h = kv_head * group + i % group;
            int begin = c->window > 0 && r >= c->window ? r - c->window + 1 : 0;
            int end = r < c->prefix_len ? c->prefix_len : r + 1;
            double max = c->has_sinks ? (double)f->sinks[h] : -INFINITY, sum = 0,
                   *to = y + ((size_t)r * (size_t)c->n_heads + (size_t)h) * (size_t)hd;
            prepare(q, qkv + (size_t)r * (size_t)n_row + h * hd, r, c, f->q_norm);
            for (int t = begin; t < end; t++) {
                score[t] = c->has_slopes ? (double)f->slopes[h] * t : 0; /* as transformers writes it */
                for (int d = 0; d < hd; d++)
                    score[t] += q[d] * k[t * hd + d] / sqrt(hd);
                if (c->softcap > 0)
                    score[t] = (double)c->softcap * tanh(score[t] / (double)c->softcap);
                max = fmax(max, score[t]);
            }
            if (c->has_sinks)
                sum = exp((double)f->sinks[h] - max);
            for (int t = begin; t < end; t++)
                sum += score[t] = exp(score[t] - max);
            for (int d = 0; d < hd; d++)
                to[d] = 0;
            for (int t = begin; t < end; t++)
                for (int d = 0; d < hd; d++)
                    to[d] += score[t] / sum * v[t * hd + d];
        }
    }
    free(k);
    free(v);
}

/* ---- the tests -------------------------------------------------------------------------------------------------- */

/* Every run on 1 to 5 threads has the bits of the first on one thread, and from row `from` on they are near float64. */
static void check_case(const struct attention_case *c, int n, int from, const struct run *runs, int n_runs)
{
    int n_q = c->n_heads * c->head_dim;
    size_t n_out = (size_t)n * (size_t)n_q;
    float *qkv = random_floats((size_t)n * (size_t)row_floats(c), 3);
    float *want = random_floats(n_out, 1), *y = random_floats(n_out, 1);
    double *exact = malloc(n_out * sizeof *exact);
    attend_float64(c, qkv, exact, n, from);
    for (int n_threads = 1; n_threads <= 5; n_threads += n_threads == 3 ? 2 : 1) {
        struct backend *be = backend_make(n_threads, c, NULL, n + 1);
        for (int k = 0; k < n_runs; k++) {
            bool is_first = n_threads == 1 && k == 0;
            attend(be, c, qkv, is_first ? want : y, n, &runs[k]);
            if (!is_first)
                assert_memory_equal(y, want, n_out * sizeof *y);
        }
        be->ops->free(be);
    }
    /* A key within a rounding of the border between two stored numbers may be stored one step aside. */
    double bound = c->kv_type == DTYPE_F32 ? 2e-5 : c->kv_type == DTYPE_F16 ? 3e-3 : 2e-2;
    for (size_t i = (size_t)from * (size_t)n_q; i < n_out; i++)
        if (!(fabs(exact[i] - (double)want[i]) <= bound))
            fail_msg("element %zu: %g, expected %g", i, (double)want[i], exact[i]);
    free(qkv);
    free(want);
    free(y);
    free(exact);
}

static void attention_is_near_float64_and_the_same_in_any_chunks(void **state)
{
    (void)state;
    static const struct attention_case CASES[] = {
        { 4, 4, 16, ROPE_HALF, DTYPE_F32, 0, 0, false, false },
        { 8, 2, 32, ROPE_INTERLEAVED, DTYPE_F16, 0, 0, false, false },
        { 3, 1, 80, ROPE_HALF, DTYPE_F16, 0, 0, false, false },
        { 2, 2, 128, ROPE_INTERLEAVED, DTYPE_F32, 0, 0, false, false },
        { 40, 2, 8, ROPE_NONE, DTYPE_F16, 0, 0, false, false },
        { 2, 1, 256, ROPE_HALF, DTYPE_F16, 0, 0, false, false },
        { 32, 2, 24, ROPE_INTERLEAVED, DTYPE_F32, 0, 0, false, false },
        { 32, 2, 128, ROPE_INTERLEAVED, DTYPE_I8, 0, 0, false, false },
        { 5, 5, 40, ROPE_HALF, DTYPE_I8, 0, 0, false, false },
        { 40, 1, 64, ROPE_HALF, DTYPE_I8, 0, 0, false, false },
        { 8, 2, 32, ROPE_HALF, DTYPE_F32, 33, 0, false, false }, /* Mistral */
        { 8, 2, 64, ROPE_HALF, DTYPE_I8, 20, 0, false, false },
        { 4, 4, 16, ROPE_HALF, DTYPE_F16, 1, 0, false, false },
        { 12, 12, 64, ROPE_NONE, DTYPE_F32, 0, 0, true, false }, /* BLOOM */
        { 12, 12, 64, ROPE_NONE, DTYPE_I8, 0, 0, true, false },
        { 6, 3, 40, ROPE_NONE, DTYPE_F16, 20, 0, true, false },
        { 4, 2, 128, ROPE_HALF, DTYPE_F32, 0, 0, false, true },        /* Qwen3 */
        { 4, 2, 24, ROPE_HALF, DTYPE_F32, 33, 0, false, false, 0.5f }, /* Gemma 2 */
        { 4, 2, 64, ROPE_HALF, DTYPE_I8, 0, 0, false, false, 0.5f },
        { 16, 2, 64, ROPE_HALF, DTYPE_F32, 20, 0, false, false, 0, true }, /* gpt-oss */
        { 16, 2, 64, ROPE_HALF, DTYPE_F16, 0, 0, false, false, 0, true },
        { 40, 2, 64, ROPE_HALF, DTYPE_I8, 33, 0, false, false, 0, true },
        { 4, 4, 128, ROPE_2D, DTYPE_F32, 0, 50, false, false }, /* ChatGLM */
        { 4, 4, 128, ROPE_2D, DTYPE_I8, 0, 50, false, false },
        { 3, 3, 64, ROPE_2D, DTYPE_F16, 0, 7, false, false },
        { 4, 1, 64, ROPE_2D, DTYPE_F16, 0, SHORT, false, false },
        { 8, 2, 32, ROPE_INTERLEAVED, DTYPE_BF16, 0, 0, false, false },
        { 3, 1, 80, ROPE_HALF, DTYPE_BF16, 20, 0, true, false },
        { 16, 2, 64, ROPE_2D, DTYPE_BF16, 0, 7, false, false, 0, true },
        { 4, 1, 512, ROPE_HALF, DTYPE_F16, 0, 0, false, true, 0, false, true, true }, /* Gemma 4 */
        { 4, 2, 256, ROPE_HALF, DTYPE_F32, 20, 0, false, true, 0, false, false, true },
        { 20, 4, 24, ROPE_HALF, DTYPE_F32, 0, 0, false, true, 0, false, true, true },
        { 3, 3, 64, ROPE_HALF, DTYPE_I8, 0, 0, false, false, 0, false, true, true },
        { 5, 1, 40, ROPE_NONE, DTYPE_BF16, 0, 0, false, false, 0, false, true, false },
    };
    static const struct run RUNS[] = { { SHORT, SHORT, false, NULL },
                                       { 1, 1, true, NULL },
                                       { 7, 7, false, NULL },
                                       { 64, 64, true, NULL },
                                       { 16, 16, false, NULL } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        check_case(&CASES[i], SHORT, 0, RUNS, sizeof RUNS / sizeof *RUNS);
}

/* Several blocks of positions, spread over the threads where a step has few rows. */
static void a_long_context_has_the_same_bits_on_any_number_of_threads(void **state)
{
    (void)state;
    static const struct attention_case CASES[] = {
        { 32, 2, 16, ROPE_INTERLEAVED, DTYPE_F16, 0, 0, false, false },
        { 32, 2, 16, ROPE_INTERLEAVED, DTYPE_I8, 0, 0, false, false },
        { 4, 4, 32, ROPE_HALF, DTYPE_F32, 300, 0, false, false },
        { 20, 1, 16, ROPE_NONE, DTYPE_F16, 0, 0, true, false },
        { 2, 1, 64, ROPE_2D, DTYPE_F32, 0, 1000, false, false },
        { 16, 2, 16, ROPE_HALF, DTYPE_F32, 0, 0, false, false, 0, true },
        { 16, 2, 16, ROPE_HALF, DTYPE_F16, 0, 0, false, false, 0, true },
        { 32, 2, 16, ROPE_INTERLEAVED, DTYPE_BF16, 0, 0, false, false },
        { 16, 2, 16, ROPE_HALF, DTYPE_I8, 300, 0, false, false, 0, true },
    };
    static const struct run RUNS[] = { { LONG, LONG, false, NULL },
                                       { 1040, 1, true, NULL },
                                       { 250, 250, false, NULL },
                                       { 1030, 14, true, NULL },
                                       { 1090, 1, false, NULL } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        check_case(&CASES[i], LONG, LONG - 30, RUNS, sizeof RUNS / sizeof *RUNS);
}

/* Heads, dimensions, window and rotation of the kinds differ, so that their pages and tiles do too. */
static void layers_of_several_kinds_have_the_bits_of_each_kind_by_itself(void **state)
{
    (void)state;
    static const enum dtype TYPES[] = { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8 };
    for (int t = 0; t < 4; t++) {
        const struct attention_case kinds[] = {
            { 8, 2, 32, ROPE_HALF, TYPES[t], 300, 0, false, false },
            { 4, 4, 64, ROPE_INTERLEAVED, TYPES[t], 0, 0, false, false },
            { 6, 1, 128, ROPE_NONE, TYPES[t], 0, 0, false, false, 0, false, true, true },
        };
        for (int i = 0; i < 3; i++) {
            const struct attention_case *c = &kinds[i], *second = &kinds[(i + 1) % 3];
            const struct run single = { LONG, LONG, false, NULL };
            const struct run runs[] = { { LONG, LONG, false, second }, { 1040, 14, true, second } };
            size_t n_out = (size_t)LONG * (size_t)(c->n_heads * c->head_dim);
            float *qkv = random_floats((size_t)LONG * (size_t)row_floats(c), 3);
            float *want = random_floats(n_out, 1), *y = random_floats(n_out, 1);
            struct backend *be = backend_make(1, c, NULL, LONG + 1);
            attend(be, c, qkv, want, LONG, &single);
            be->ops->free(be);
            be = backend_make(3, c, second, LONG + 1);
            for (int k = 0; k < 2; k++) {
                attend(be, c, qkv, y, LONG, &runs[k]);
                assert_memory_equal(y, want, n_out * sizeof *y);
            }
            be->ops->free(be);
            free(qkv);
            free(want);
            free(y);
        }
    }
}

static void what_a_page_held_before_has_no_influence(void **state)
{
    (void)state;
    static const enum dtype TYPES[] = { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8 };
    for (int type = 0; type < 4; type++) {
        struct attention_case c = { 4, 2, 32, ROPE_NONE, TYPES[type], 0, 0, false, false };
        struct backend *be = backend_make(1, &c, NULL, 16);
        struct tutti_error err;
        struct kv_memory *kv = NULL;
        assert_int_equal(be->ops->kv_new(be, &kv, 2, 2, c.kv_type, &err), TUTTI_OK);
        int n_row = row_floats(&c);
        float *bad = malloc((size_t)(16 * n_row) * sizeof *bad),
              *good = random_floats((size_t)(5 * n_row), 1);
        for (int i = 0; i < 16 * n_row; i++)
            bad[i] = i % 2 ? NAN : INFINITY;
        float y[2][5 * 128], junk[16 * 128];
        struct floats row = device_new(be, NULL, (size_t)(16 * n_row));
        struct floats out = device_new(be, NULL, 16 * 128);
        int32_t positions[16], seqs[16] = { 0 }, tables[2][1] = { { 1 }, { 0 } };
        for (int i = 0; i < 16; i++)
            positions[i] = i;
        for (int run = 0; run < 2; run++) {
            const int32_t *table[] = { tables[run] };
            struct step step = {
                .n_rows = 16, .n_seqs = 1, .positions = positions, .seqs = seqs, .page_tables = table
            };
            if (run == 1) { /* page 0 is filled with what must not be seen */
                be->ops->upload(be, row, bad, (size_t)(16 * n_row));
                be->ops->step_begin(be, &step);
                be->ops->rope_store(be, row, NO_FLOATS, NO_FLOATS, kv, 0);
                be->ops->attention(be, out, row, NO_FLOATS, kv, 0);
                device_end(be, out, junk, 16 * 128);
                assert_true(isnan(junk[0]));
            }
            step.n_rows = 5;
            be->ops->upload(be, row, good, (size_t)(5 * n_row));
            be->ops->step_begin(be, &step);
            be->ops->rope_store(be, row, NO_FLOATS, NO_FLOATS, kv, 0);
            be->ops->attention(be, out, row, NO_FLOATS, kv, 0);
            device_end(be, out, y[run], 5 * 128);
        }
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        be->ops->kv_copy_page(be, kv, &(struct page_copy){ 1, 0, 1, 0 });
        free(bad);
        free(good);
        be->ops->dealloc(be, row);
        be->ops->dealloc(be, out);
        be->ops->kv_free(be, kv);
        be->ops->free(be);
    }
}

/* y of a step of rows begin..15 of the page: [16 - begin][4 heads of 32]. x: rows of qkv, [16][n_row]. */
static void run_page(struct backend *be, struct kv_memory *kv, int32_t page_id, const float *x, int n_row,
                     int begin, float *y)
{
    int32_t positions[16], seqs[16] = { 0 };
    const int32_t *table[] = { &page_id };
    struct floats row = device_new(be, x + begin * n_row, (size_t)((16 - begin) * n_row));
    struct floats out = device_new(be, NULL, 2 * 16 * 128);
    for (int i = begin; i < 16; i++)
        positions[i - begin] = i;
    struct step step = {
        .n_rows = 16 - begin, .n_seqs = 1, .positions = positions, .seqs = seqs, .page_tables = table
    };
    be->ops->step_begin(be, &step);
    for (size_t layer = 0; layer < 2; layer++) {
        be->ops->rope_store(be, row, NO_FLOATS, NO_FLOATS, kv, (int)layer);
        be->ops->attention(be, floats_at(out, layer * 16 * 128), row, NO_FLOATS, kv, (int)layer);
    }
    device_end(be, out, y, 2 * 16 * 128);
    be->ops->dealloc(be, row);
    be->ops->dealloc(be, out);
}

static void a_page_that_went_by_host_memory_has_the_same_bits(void **state)
{
    (void)state;
    static const enum dtype TYPES[] = { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8 };
    for (int type = 0; type < 4; type++) {
        struct attention_case c = { 4, 2, 32, ROPE_NONE, TYPES[type], 0, 0, false, false };
        struct backend *be = backend_make(2, &c, NULL, 16);
        struct kv_memory *kv = NULL;
        struct tutti_error err;
        assert_int_equal(be->ops->kv_new(be, &kv, 3, 3, c.kv_type, &err), TUTTI_OK);
        size_t n_bytes = be->ops->kv_page_bytes(be, c.kv_type);
        uint8_t *host = malloc(n_bytes), *again = malloc(n_bytes);
        int n_row = row_floats(&c);
        float *x = random_floats((size_t)(16 * n_row), 1), *other = random_floats((size_t)(16 * n_row), 1);
        static float y[2][2 * 16 * 128], junk[2 * 16 * 128];
        memset(y, 0, sizeof y);
        run_page(be, kv, 0, other, n_row, 0, junk);
        run_page(be, kv, 1, x, n_row, 0, junk);
        run_page(be, kv, 2, other, n_row, 0, junk);
        run_page(be, kv, 1, x, n_row, 15, y[0]);
        kv_read_now(be, kv, 1, host);
        run_page(be, kv, 1, other, n_row, 0, junk);
        kv_write_now(be, kv, 2, host);
        run_page(be, kv, 2, x, n_row, 15, y[1]);
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        kv_read_now(be, kv, 0, host); /* its neighbours are as they were */
        kv_read_now(be, kv, 1, again);
        assert_memory_equal(host, again, n_bytes);
        free(x);
        free(other);
        free(host);
        free(again);
        be->ops->kv_free(be, kv);
        be->ops->free(be);
    }
}

static void a_page_has_the_size_that_is_promised(void **state)
{
    (void)state;
    struct attention_case c = { 32, 2, 128, ROPE_INTERLEAVED, DTYPE_F16, 0, 0, false, false };
    struct backend *be = backend_make(1, &c, NULL, 1);
    /* 3 layers, 2 KV heads, keys and values, 16 tokens of 128 dimensions; int8: and their scales */
    assert_int_equal(be->ops->kv_page_bytes(be, DTYPE_F32), 12 * 16 * 128 * 4);
    assert_int_equal(be->ops->kv_page_bytes(be, DTYPE_F16), 12 * 16 * 128 * 2);
    assert_int_equal(be->ops->kv_page_bytes(be, DTYPE_BF16), 12 * 16 * 128 * 2);
    assert_int_equal(be->ops->kv_page_bytes(be, DTYPE_I8), 12 * 16 * (128 + 4));
    struct kv_memory *kv = NULL;
    struct tutti_error err;
    assert_int_equal(be->ops->kv_new(be, &kv, 1, 1, DTYPE_Q4_0, &err), TUTTI_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "expected f16, bf16, f32 or int8"));
    assert_null(kv);
    be->ops->free(be);
    struct attention_case narrow = { 8, 1, 64, ROPE_HALF, DTYPE_F16, 0, 0, false, false };
    be = backend_make(1, &c, &narrow, 1); /* two layers of the wide kind, one of the narrow one */
    assert_int_equal(be->ops->kv_page_bytes(be, DTYPE_F16), (8 * 128 + 2 * 64) * 16 * 2);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_near_float64_and_the_same_in_any_chunks),
        cmocka_unit_test(a_long_context_has_the_same_bits_on_any_number_of_threads),
        cmocka_unit_test(layers_of_several_kinds_have_the_bits_of_each_kind_by_itself),
        cmocka_unit_test(what_a_page_held_before_has_no_influence),
        cmocka_unit_test(a_page_that_went_by_host_memory_has_the_same_bits),
        cmocka_unit_test(a_page_has_the_size_that_is_promised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
