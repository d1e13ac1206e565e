/* Tests of latent attention in the CPU backend: products by head and attention over latent pages, against
 * float64; their bits depend neither on chunks, nor on other sequences, nor on threads. */
#include "backend/backend.h"
#include "base/half.h"
#include "device.h"
#include "kernels/quantize/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct latent_case {
    int n_heads, n_latent, n_rotary, q_dim;
    enum rope_kind rope;
    enum dtype kv_type;
};

enum { LONG = 700, MAX_PAGES = LONG / 16 + 1, LAYER = 1 };

static struct backend *backend_make(const struct latent_case *c, int n_threads, const char *cpu, int max_rows)
{
    static float freqs[32];
    struct tutti_error err;
    for (int j = 0; j < 32; j++)
        freqs[j] = powf(10000, -(float)j / 16);
    const struct attention_shape shape = { .n_heads = c->n_heads,
                                           .n_kv_heads = 1,
                                           .head_dim = c->n_latent + c->n_rotary,
                                           .n_latent = c->n_latent,
                                           .rotary_dim = c->n_rotary,
                                           .rope = c->rope,
                                           .rope_freqs = freqs,
                                           .rope_scale = 1,
                                           .scale = 1 / sqrtf((float)c->q_dim),
                                           .qk_norm_eps = 1e-6f };
    struct backend_options options = {
        .n_threads = n_threads, .cpu = cpu, .n_layers = 2, .n_kinds = 1, .attention = &shape
    };
    struct backend *be = device_open(&options);
    if (be->ops->reserve(be, max_rows, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return be;
}

/* Rows of a sequence: queries (the latent part), the rows with their rotary parts, and what is stored. */
struct rows {
    int n;
    float *queries, *q, *kv, *norm;
};

static struct rows rows_make(const struct latent_case *c, int n)
{
    int head_dim = c->n_latent + c->n_rotary;
    struct rows rows = { .n = n,
                         .queries = random_floats((size_t)(n * c->n_heads * head_dim), 2),
                         .q = random_floats((size_t)(n * c->n_heads * c->q_dim), 2),
                         .kv = random_floats((size_t)(n * head_dim), 3),
                         .norm = random_floats((size_t)c->n_latent, 1) };
    for (int i = 0; i < c->n_latent; i++)
        rows.norm[i] += 1.5f;
    return rows;
}

static void rows_free(struct rows *rows)
{
    free(rows->queries);
    free(rows->q);
    free(rows->kv);
    free(rows->norm);
}

/* `first` rows in the first step, then chunk by chunk, each step with a row of another sequence in front
 * where has_other. y: [n][n_heads][n_latent] */
static void attend(struct backend *be, const struct latent_case *c, const struct rows *rows, float *y,
                   int first, int chunk, bool has_other)
{
    int head_dim = c->n_latent + c->n_rotary, n_all = c->n_heads * head_dim, n_q = c->n_heads * c->q_dim;
    int n_y = c->n_heads * c->n_latent, extra = has_other ? 1 : 0, n_other = 0;
    struct tutti_error err;
    struct kv_memory *kv = NULL;
    if (be->ops->kv_new(be, &kv, 2 * MAX_PAGES, 2 * MAX_PAGES, c->kv_type, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    int32_t table[MAX_PAGES], other_table[MAX_PAGES];
    for (int i = 0; i < MAX_PAGES; i++) {
        table[i] = (i * 37 + 5) % (2 * MAX_PAGES);
        other_table[i] = ((i + MAX_PAGES) * 37 + 5) % (2 * MAX_PAGES);
    }
    const int32_t *tables[] = { other_table, table };
    size_t most = (size_t)(rows->n + 1);
    struct floats queries = device_new(be, NULL, most * (size_t)n_all),
                  q = device_new(be, NULL, most * (size_t)n_q);
    struct floats latent = device_new(be, NULL, most * (size_t)head_dim),
                  out = device_new(be, NULL, most * (size_t)n_y);
    struct floats norm = device_new(be, rows->norm, (size_t)c->n_latent);
    int32_t positions[LONG + 1], seqs[LONG + 1];
    for (int begin = 0, n_here = first; begin < rows->n; begin += n_here, n_here = chunk) {
        n_here = rows->n - begin < n_here ? rows->n - begin : n_here;
        seqs[0] = 0;
        positions[0] = n_other;
        n_other += extra;
        for (int i = 0; i < n_here; i++) {
            positions[extra + i] = begin + i;
            seqs[extra + i] = 1;
        }
        struct step step = {
            .n_rows = n_here + extra, .n_seqs = 2, .positions = positions, .seqs = seqs, .page_tables = tables
        };
        be->ops->step_begin(be, &step);
        for (int i = 0; i < n_here + extra; i++) {
            size_t to = (size_t)i, from = (size_t)(begin + (i < extra ? 0 : i - extra));
            be->ops->upload(be, floats_at(queries, to * (size_t)n_all), rows->queries + from * (size_t)n_all,
                            (size_t)n_all);
            be->ops->upload(be, floats_at(q, to * (size_t)n_q), rows->q + from * (size_t)n_q, (size_t)n_q);
            be->ops->upload(be, floats_at(latent, to * (size_t)head_dim), rows->kv + from * (size_t)head_dim,
                            (size_t)head_dim);
        }
        be->ops->latent_store(be, queries, q, c->q_dim, latent, norm, kv, LAYER);
        be->ops->attention(be, out, queries, NO_FLOATS, kv, LAYER);
        device_end(be, floats_at(out, (size_t)(extra * n_y)), y + (size_t)begin * (size_t)n_y,
                   (size_t)(n_here * n_y));
    }
    const struct floats all[] = { queries, q, latent, out, norm };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        be->ops->dealloc(be, all[i]);
    be->ops->kv_free(be, kv);
}

/* ---- the formula, in float64 ---- */

static void rotate(double *x, const float *from, const struct latent_case *c, int pos)
{
    for (int j = 0; j < c->n_rotary / 2; j++) {
        bool is_interleaved = c->rope == ROPE_INTERLEAVED;
        int u = is_interleaved ? 2 * j : j, v = is_interleaved ? u + 1 : u + c->n_rotary / 2;
        double angle = (double)((float)pos * powf(10000, -(float)j / 16));
        x[u] = (double)from[u] * cos(angle) - (double)from[v] * sin(angle);
        x[v] = (double)from[v] * cos(angle) + (double)from[u] * sin(angle);
    }
}

/* What reading a part of a row back gives. */
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

/* Rows from..n-1. */
static void attend_float64(const struct latent_case *c, const struct rows *rows, double *y, int from)
{
    int n_latent = c->n_latent, n_rotary = c->n_rotary, head_dim = n_latent + n_rotary;
    double *keys = calloc((size_t)(rows->n * head_dim), sizeof *keys), *score = calloc(LONG, sizeof *score);
    double q[1024];
    for (int t = 0; t < rows->n; t++) {
        const float *row = rows->kv + t * head_dim;
        double *key = keys + t * head_dim, square = 0;
        for (int d = 0; d < n_latent; d++)
            square += (double)row[d] * (double)row[d];
        for (int d = 0; d < n_latent; d++)
            key[d] = (double)row[d] * (double)rows->norm[d] / sqrt(square / n_latent + 1e-6);
        rotate(key + n_latent, row + n_latent, c, t);
        store(key, n_latent, c->kv_type);
        store(key + n_latent, n_rotary, c->kv_type);
    }
    for (int i = from * c->n_heads; i < rows->n * c->n_heads; i++) {
        int r = i / c->n_heads;
        double *to = y + (size_t)i * (size_t)n_latent, max = -INFINITY, sum = 0;
        for (int d = 0; d < n_latent; d++)
            q[d] = (double)rows->queries[i * head_dim + d];
        rotate(q + n_latent, rows->q + (i + 1) * c->q_dim - n_rotary, c, r);
        for (int t = 0; t <= r; t++) {
            score[t] = 0;
            for (int d = 0; d < head_dim; d++)
                score[t] += q[d] * keys[t * head_dim + d] / sqrt(c->q_dim);
            max = fmax(max, score[t]);
        }
        for (int t = 0; t <= r; t++)
            sum += score[t] = exp(score[t] - max);
        for (int d = 0; d < n_latent; d++)
            to[d] = 0;
        for (int t = 0; t <= r; t++)
            for (int d = 0; d < n_latent; d++)
                to[d] += score[t] / sum * keys[t * head_dim + d];
    }
    free(keys);
    free(score);
}

/* ---- tests ---- */

struct run {
    int first, chunk;
    bool has_other;
};

static void check_case(const struct latent_case *c, int n, int from, const struct run *runs, int n_runs)
{
    struct rows rows = rows_make(c, n);
    size_t n_y = (size_t)(c->n_heads * c->n_latent), n_out = (size_t)n * n_y;
    float *want = random_floats(n_out, 1), *y = random_floats(n_out, 1);
    double *exact = calloc(n_out, sizeof *exact);
    attend_float64(c, &rows, exact, from);
    for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
        struct backend *be = backend_make(c, n_threads, n_threads == 3 ? "ref" : NULL, n + 1);
        for (int k = 0; k < n_runs; k++) {
            bool is_first = n_threads == 1 && k == 0;
            attend(be, c, &rows, is_first ? want : y, runs[k].first, runs[k].chunk, runs[k].has_other);
            if (!is_first)
                assert_memory_equal(y, want, n_out * sizeof *y);
        }
        be->ops->free(be);
    }
    /* A number near the border between two stored ones may be stored one step aside. */
    double bound = c->kv_type == DTYPE_F32 ? 2e-5 : c->kv_type == DTYPE_F16 ? 8e-3 : 6e-2;
    for (size_t i = (size_t)from * n_y; i < n_out; i++)
        if (!(fabs(exact[i] - (double)want[i]) <= bound))
            fail_msg("element %zu: %g, expected %g", i, (double)want[i], exact[i]);
    free(want);
    free(y);
    free(exact);
    rows_free(&rows);
}

static void attention_is_near_float64_and_the_same_in_any_chunks(void **state)
{
    (void)state;
    static const struct latent_case CASES[] = {
        { 16, 64, 16, 40, ROPE_INTERLEAVED, DTYPE_F32 },
        { 20, 40, 24, 56, ROPE_INTERLEAVED, DTYPE_F16 },
        { 3, 48, 8, 16, ROPE_HALF, DTYPE_I8 },
        { 1, 8, 8, 24, ROPE_INTERLEAVED, DTYPE_I8 },
        { 33, 72, 32, 32, ROPE_INTERLEAVED, DTYPE_F32 },
        { 5, 512, 64, 192, ROPE_INTERLEAVED, DTYPE_F16 },
        { 20, 40, 24, 56, ROPE_INTERLEAVED, DTYPE_BF16 },
    };
    static const struct run RUNS[] = { { 77, 77, false }, { 1, 1, true }, { 64, 64, true }, { 7, 7, false } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        check_case(&CASES[i], 77, 0, RUNS, sizeof RUNS / sizeof *RUNS);
}

/* Several blocks of positions, spread over the threads in steps of few rows. */
static void a_long_context_has_the_same_bits_on_any_number_of_threads(void **state)
{
    (void)state;
    static const struct latent_case CASES[] = {
        { 4, 24, 8, 16, ROPE_INTERLEAVED, DTYPE_F16 },
        { 36, 16, 8, 16, ROPE_INTERLEAVED, DTYPE_I8 },
        { 7, 24, 8, 16, ROPE_INTERLEAVED, DTYPE_BF16 },
        { 17, 32, 16, 24, ROPE_INTERLEAVED, DTYPE_F32 },
    };
    static const struct run RUNS[] = {
        { LONG, LONG, false }, { 690, 1, true }, { 250, 250, false }, { 640, 14, true }
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        check_case(&CASES[i], LONG, LONG - 30, RUNS, sizeof RUNS / sizeof *RUNS);
}

struct heads_case {
    int n_heads, n_out, n_in, n_rows, x_gap, y_gap; /* n_out: of a head; gaps: after each head's elements */
    enum dtype type;
};

static struct matrix *pack(struct backend *be, const struct heads_case *c, const float *w)
{
    int n_all = c->n_heads * c->n_out;
    size_t n_bytes = 0;
    assert_true(dtype_bytes(c->type, (int64_t)n_all * c->n_in, &n_bytes));
    uint8_t *stored = malloc(n_bytes);
    quantize(stored, w, c->type, (int64_t)n_all * c->n_in);
    const struct matrix_part part = { .data = stored, .dtype = c->type, .n_rows = n_all };
    const struct matrix_source source = {
        .name = "w", .parts = &part, .n_parts = 1, .n_in = c->n_in, .type = c->type
    };
    struct matrix *m = NULL;
    struct tutti_error err;
    if (be->ops->matrix_new(be, &m, &source, &err) != TUTTI_OK ||
        be->ops->reserve(be, c->n_rows, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    free(stored);
    return m;
}

/* Each head's rows times its own part of the matrix; what lies between the heads is left alone. */
static void check_heads(const struct heads_case *c)
{
    static const struct latent_case SHAPE = { 2, 16, 8, 16, ROPE_INTERLEAVED, DTYPE_F32 };
    struct head_rows heads = { .n_heads = c->n_heads,
                               .x_head = c->n_in + c->x_gap,
                               .y_head = c->n_out + c->y_gap };
    heads.x_row = c->n_heads * heads.x_head;
    heads.y_row = c->n_heads * heads.y_head;
    size_t n_x = (size_t)(c->n_rows * heads.x_row), n_y = (size_t)(c->n_rows * heads.y_row);
    float *w = random_floats((size_t)(c->n_heads * c->n_out * c->n_in), 1), *x = random_floats(n_x, 1);
    float *y = random_floats(n_y, 1), *want = malloc(n_y * sizeof *want),
          *before = malloc(n_y * sizeof *before);
    memcpy(before, y, n_y * sizeof *y);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        struct backend *be = backend_make(&SHAPE, n_threads, n_threads == 3 ? "ref" : NULL, 1);
        struct matrix *m = pack(be, c, w);
        struct floats in = device_new(be, x, n_x), out = device_new(be, before, n_y);
        /* Thread 2: row by row. */
        for (int r = 0; n_threads == 2 && r < c->n_rows; r++)
            be->ops->linear_heads(be, floats_at(out, (size_t)(r * heads.y_row)), m,
                                  floats_at(in, (size_t)(r * heads.x_row)), 1, &heads);
        if (n_threads != 2)
            be->ops->linear_heads(be, out, m, in, c->n_rows, &heads);
        device_get(be, y, out, n_y);
        if (n_threads == 1)
            memcpy(want, y, n_y * sizeof *y);
        assert_memory_equal(y, want, n_y * sizeof *y);
        be->ops->dealloc(be, in);
        be->ops->dealloc(be, out);
        be->ops->matrix_free(be, m);
        be->ops->free(be);
    }
    double bound = c->type == DTYPE_F32 ? 1e-5 : c->type == DTYPE_Q4_K ? 0.1 : 0.03;
    for (int r = 0; r < c->n_rows; r++)
        for (int h = 0; h < c->n_heads; h++)
            for (int i = 0; i < heads.y_head; i++) {
                size_t at = (size_t)(r * heads.y_row + h * heads.y_head + i);
                double sum = 0;
                for (int j = 0; i < c->n_out && j < c->n_in; j++)
                    sum += (double)w[((h * c->n_out) + i) * c->n_in + j] *
                           (double)x[r * heads.x_row + h * heads.x_head + j];
                if (i >= c->n_out)
                    assert_true(want[at] == before[at]);
                else if (!(fabs(sum - (double)want[at]) <= bound * sqrt(c->n_in)))
                    fail_msg("row %d, head %d, element %d: %g, expected %g", r, h, i, (double)want[at], sum);
            }
    free(w);
    free(x);
    free(y);
    free(want);
    free(before);
}

static void products_by_head_are_near_float64(void **state)
{
    (void)state;
    static const struct heads_case CASES[] = {
        { 3, 40, 24, 5, 8, 16, DTYPE_F32 },     { 16, 512, 128, 2, 64, 64, DTYPE_F32 },
        { 5, 7, 96, 3, 0, 1, DTYPE_Q8_0 },      { 1, 33, 32, 1, 0, 0, DTYPE_F16 },
        { 2, 64, 64, 300, 0, 0, DTYPE_F32 },    { 20, 16, 40, 9, 8, 0, DTYPE_BF16 },
        { 4, 100, 256, 130, 3, 5, DTYPE_Q4_K },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        check_heads(&CASES[i]);
}

static void a_page_holds_one_row_for_each_position(void **state)
{
    (void)state;
    struct latent_case c = { 16, 512, 64, 192, ROPE_INTERLEAVED, DTYPE_F16 };
    struct backend *be = backend_make(&c, 1, NULL, 1);
    /* 2 layers, 16 tokens; int8: and the scales of both parts */
    assert_int_equal(be->ops->kv_page_bytes(be, DTYPE_F32), 2 * 16 * 576 * 4);
    assert_int_equal(be->ops->kv_page_bytes(be, DTYPE_F16), 2 * 16 * 576 * 2);
    assert_int_equal(be->ops->kv_page_bytes(be, DTYPE_I8), 2 * 16 * (576 + 8));
    be->ops->free(be);
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct {
        int n_kv_heads, head_dim, n_latent, rotary_dim;
        enum rope_kind rope;
    } BAD[] = {
        { 2, 24, 16, 8, ROPE_INTERLEAVED }, { 1, 32, 16, 8, ROPE_INTERLEAVED },
        { 1, 24, 20, 4, ROPE_INTERLEAVED }, { 1, 16, 16, 0, ROPE_INTERLEAVED },
        { 1, 24, 16, 8, ROPE_2D },          { 1, 24, 16, 8, ROPE_NONE },
    };
    static const float FREQS[8] = { 1 };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct attention_shape shape = { .n_heads = 4,
                                         .n_kv_heads = BAD[i].n_kv_heads,
                                         .head_dim = BAD[i].head_dim,
                                         .n_latent = BAD[i].n_latent,
                                         .rotary_dim = BAD[i].rotary_dim,
                                         .rope = BAD[i].rope,
                                         .rope_freqs = FREQS,
                                         .rope_scale = 1,
                                         .scale = 1 };
        struct backend_options options = { .n_threads = 1, .n_layers = 1, .n_kinds = 1, .attention = &shape };
        struct backend *be = NULL;
        struct tutti_error err;
        assert_int_equal(backend_open(&be, NULL, &options, &err), TUTTI_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "latent attention"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_near_float64_and_the_same_in_any_chunks),
        cmocka_unit_test(a_long_context_has_the_same_bits_on_any_number_of_threads),
        cmocka_unit_test(products_by_head_are_near_float64),
        cmocka_unit_test(a_page_holds_one_row_for_each_position),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
