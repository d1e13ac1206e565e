/* Tests of src/backend on the CPU: each operation against float64, and the contract that a row's bits depend on that
 * row alone: not on its neighbours or the number of threads. Attention has a test of its own. */
#include "backend/backend.h"
#include "base/half.h"
#include "device.h"
#include "kernels/kernels.h"
#include "kernels/quantize/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum dtype TYPES[] = { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0 };
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

static struct attention_shape shape_of(int n_heads, int n_kv_heads, int head_dim, enum rope_kind rope,
                                       const float *freqs)
{
    return (struct attention_shape){ .n_heads = n_heads,
                                     .n_kv_heads = n_kv_heads,
                                     .head_dim = head_dim,
                                     .rotary_dim = head_dim / 2,
                                     .rope = rope,
                                     .rope_freqs = freqs,
                                     .rope_scale = 1,
                                     .scale = 1 / sqrtf((float)head_dim) };
}

static struct backend *backend_make(int n_threads, const char *cpu, struct attention_shape shape)
{
    struct backend_options options = {
        .n_threads = n_threads, .cpu = cpu, .n_layers = 2, .n_kinds = 1, .attention = &shape
    };
    return device_open(&options);
}

/* A matrix in the stored type, and the float32 values that the stored bytes stand for. */
struct stored {
    void *data;
    float *values;
};

static struct stored stored_make(enum dtype dtype, int n_out, int n_in)
{
    size_t n = (size_t)n_out * (size_t)n_in, n_bytes = 0;
    assert_true(dtype_bytes(dtype, (int64_t)n, &n_bytes));
    struct stored s = { malloc(n_bytes), random_floats(n, 1) };
    assert_non_null(s.data);
    quantize(s.data, s.values, dtype, (int64_t)n);
    dequantize(s.values, s.data, dtype, (int64_t)n);
    return s;
}

static void stored_clear(struct stored *s)
{
    free(s->data);
    free(s->values);
}

static struct matrix *matrix_make(struct backend *be, const struct stored *s, enum dtype stored,
                                  enum dtype type, int n_out, int n_in, const float *bias, bool is_gate_up)
{
    /* Two parts of unequal length, as q, k and v are. */
    size_t first = 0;
    int n_first = n_out > 1 ? n_out / 3 + 1 : 1;
    assert_true(dtype_bytes(stored, (int64_t)n_first * n_in, &first));
    struct matrix_part parts[2] = { { s->data, stored, n_first },
                                    { (uint8_t *)s->data + first, stored, n_out - n_first } };
    const float *biases[2] = { bias, bias ? bias + n_first : NULL };
    struct matrix_source source = { .name = "m",
                                    .parts = parts,
                                    .n_parts = n_out > 1 ? 2 : 1,
                                    .n_in = n_in,
                                    .type = type,
                                    .is_gate_up = is_gate_up,
                                    .biases = bias ? biases : NULL };
    struct matrix *m = NULL;
    struct tutti_error err;
    if (be->ops->matrix_new(be, &m, &source, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return m;
}

static void reserve(struct backend *be, int n_rows)
{
    struct tutti_error err;
    if (be->ops->reserve(be, n_rows, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
}

/* What quantizing an activation row to 8 bits may add: half a step of each group, times the weights. What rounding it
 * to bf16 may add: 2^-9 of each product. */
static double allowed_error(enum dtype type, const float *x, const float *w, int n_in)
{
    double rounding = 0, steps = 0;
    for (int begin = 0; begin < n_in; begin += 256) {
        double max = 0, sum = 0;
        for (int i = begin; i < begin + 256 && i < n_in; i++) {
            max = fmax(max, fabs((double)x[i]));
            sum += fabs((double)w[i]);
            rounding += fabs((double)x[i] * (double)w[i]);
        }
        steps += max / 254 * sum;
    }
    return rounding * (type == DTYPE_BF16 ? 0x1p-9 + 1e-5 : 1e-5) +
           (dtype_block_elems(type) > 1 ? steps * 1.001 : 0);
}

static void linear_is_near_float64(void **state)
{
    (void)state;
    static const int SHAPES[][2] = { { 1, 32 }, { 16, 64 }, { 17, 96 }, { 100, 1056 }, { 31, 640 } };
    struct backend *be = device_open_small(2, NULL);
    for (size_t c = 0; c < N_TYPES * sizeof SHAPES / sizeof *SHAPES; c++) {
        enum dtype type = TYPES[c % N_TYPES];
        int n_out = SHAPES[c / N_TYPES][0], n_in = SHAPES[c / N_TYPES][1], n_rows = 19;
        struct stored s = stored_make(type, n_out, n_in);
        float *bias = random_floats((size_t)n_out, 1), *x = random_floats((size_t)(n_rows * n_in), 1);
        float *y = random_floats((size_t)(n_rows * n_out), 1);
        struct matrix *m = matrix_make(be, &s, type, type, n_out, n_in, bias, false);
        reserve(be, n_rows);
        struct floats in = device_new(be, x, (size_t)(n_rows * n_in));
        struct floats out = device_new(be, y, (size_t)(n_rows * n_out));
        be->ops->linear(be, out, m, in, n_rows);
        device_get(be, y, out, (size_t)(n_rows * n_out));
        for (int r = 0; r < n_rows; r++)
            for (int o = 0; o < n_out; o++) {
                const float *w = s.values + o * n_in;
                double want = (double)bias[o];
                for (int i = 0; i < n_in; i++)
                    want += (double)w[i] * (double)x[r * n_in + i];
                double error = fabs(want - (double)y[r * n_out + o]);
                if (!(error <= allowed_error(type, x + r * n_in, w, n_in) + 1e-6))
                    fail_msg("%s %dx%d row %d out %d: error %g", dtype_name(type), n_out, n_in, r, o, error);
            }
        be->ops->dealloc(be, in);
        be->ops->dealloc(be, out);
        be->ops->matrix_free(be, m);
        stored_clear(&s);
        free(bias);
        free(x);
        free(y);
    }
    be->ops->free(be);
}

static void a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(void **state)
{
    (void)state;
    enum { ROWS = 64, N_OUT = 100, N_IN = 1056 };
    float *x = random_floats(ROWS * N_IN, 1), *want = random_floats(ROWS * N_OUT, 1),
          *y = random_floats(ROWS * N_OUT, 1);
    for (int t = 0; t < 2 * N_TYPES; t++) {
        enum dtype type = TYPES[t / 2];
        bool is_glu = t % 2 != 0;
        int n_y = is_glu ? N_OUT / 2 : N_OUT;
        struct stored s = stored_make(type, N_OUT, N_IN);
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            struct backend *be = device_open_small(n_threads, NULL);
            struct matrix *m = matrix_make(be, &s, type, type, N_OUT, N_IN, NULL, is_glu);
            struct floats in = device_new(be, x, ROWS * N_IN), out = device_new(be, y, ROWS * N_OUT);
            reserve(be, ROWS);
            for (int n_rows = ROWS; n_rows > 0; n_rows = n_rows == ROWS ? 21 : n_rows - 1) {
                int first = (n_rows * 5) % (ROWS - n_rows + 1);
                float *to = n_threads == 1 && n_rows == ROWS ? want : y;
                struct floats from = floats_at(in, (size_t)(first * N_IN));
                if (is_glu)
                    be->ops->linear_glu(be, out, m, from, n_rows, ACT_SILU);
                else
                    be->ops->linear(be, out, m, from, n_rows);
                device_get(be, to, out, (size_t)(n_rows * n_y));
                assert_memory_equal(to, want + first * n_y, (size_t)(n_rows * n_y) * sizeof *y);
            }
            be->ops->dealloc(be, in);
            be->ops->dealloc(be, out);
            be->ops->matrix_free(be, m);
            be->ops->free(be);
        }
        stored_clear(&s);
    }
    free(x);
    free(y);
    free(want);
}

static void join_gate_and_up(enum activation act)
{
    enum { ROWS = 5, N_OUT = 74, N_IN = 64 };
    struct backend *be = device_open_small(2, NULL);
    struct stored s = stored_make(DTYPE_F32, N_OUT, N_IN);
    float *x = random_floats(ROWS * N_IN, 1), *y = random_floats(ROWS * N_OUT, 1),
          *bias = random_floats(N_OUT, 1);
    struct matrix *m = matrix_make(be, &s, DTYPE_F32, DTYPE_F32, N_OUT, N_IN, bias, true);
    reserve(be, ROWS);
    struct floats in = device_new(be, x, ROWS * N_IN), out = device_new(be, NULL, ROWS * N_OUT / 2);
    be->ops->linear_glu(be, out, m, in, ROWS, act);
    device_get(be, y, out, ROWS * N_OUT / 2);
    be->ops->dealloc(be, in);
    be->ops->dealloc(be, out);
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < N_OUT / 2; o++) {
            double gate = (double)bias[o], up = (double)bias[o + N_OUT / 2];
            for (int i = 0; i < N_IN; i++) {
                gate += (double)s.values[o * N_IN + i] * (double)x[r * N_IN + i];
                up += (double)s.values[(o + N_OUT / 2) * N_IN + i] * (double)x[r * N_IN + i];
            }
            double u = sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
            double want = act == ACT_SILU ? gate / (1 + exp(-gate)) : 0.5 * gate * (1 + tanh(u));
            assert_float_equal(y[r * (N_OUT / 2) + o], want * up, 1e-4);
        }
    be->ops->matrix_free(be, m);
    be->ops->free(be);
    stored_clear(&s);
    free(x);
    free(y);
    free(bias);
}

static void gate_and_up_are_joined(void **state)
{
    (void)state;
    join_gate_and_up(ACT_SILU);
    join_gate_and_up(ACT_GELU_TANH);
}

static void an_embedding_is_the_stored_row(void **state)
{
    (void)state;
    enum { N_VOCAB = 37, N_IN = 96 };
    static const int32_t ids[] = { 0, 36, 15, 16, 17, 5 };
    static const int32_t positions[] = { 0, 1, 2, 3, 4, 5 }, seqs[6];
    static const int32_t pages[] = { 0 }, *const tables[] = { pages };
    struct step step = { .n_rows = 6,
                         .n_seqs = 1,
                         .token_ids = ids,
                         .positions = positions,
                         .seqs = seqs,
                         .page_tables = tables };
    for (int t = 0; t < N_TYPES; t++) {
        struct backend *be = device_open_small(2, NULL);
        struct stored s = stored_make(TYPES[t], N_VOCAB, N_IN);
        struct matrix *m = matrix_make(be, &s, TYPES[t], TYPES[t], N_VOCAB, N_IN, NULL, false);
        reserve(be, 6);
        float x[6 * N_IN];
        struct floats out = device_new(be, NULL, 6 * N_IN);
        be->ops->step_begin(be, &step);
        be->ops->embed(be, out, m, 0);
        device_end(be, out, x, 6 * N_IN);
        be->ops->dealloc(be, out);
        for (int r = 0; r < 6; r++)
            assert_memory_equal(x + r * N_IN, s.values + ids[r] * N_IN, N_IN * sizeof *x);
        be->ops->matrix_free(be, m);
        be->ops->free(be);
        stored_clear(&s);
    }
}

static void weights_are_converted_as_the_quantizers_do_it(void **state)
{
    (void)state;
    enum { N_OUT = 40, N_IN = 64, ROWS = 3 };
    struct backend *be = device_open_small(2, NULL);
    float *x = random_floats(ROWS * N_IN, 1), want[ROWS * N_OUT], got[ROWS * N_OUT];
    struct floats in = device_new(be, x, ROWS * N_IN), out = device_new(be, NULL, ROWS * N_OUT);
    for (int c = 0; c < N_TYPES * N_TYPES; c++) {
        enum dtype from = TYPES[c / N_TYPES], to = TYPES[c % N_TYPES];
        struct stored s = stored_make(from, N_OUT, N_IN), converted = stored_make(to, N_OUT, N_IN);
        quantize(converted.data, s.values, to, N_OUT * N_IN);
        struct matrix *a = matrix_make(be, &s, from, to, N_OUT, N_IN, NULL, false);
        struct matrix *b = matrix_make(be, &converted, to, to, N_OUT, N_IN, NULL, false);
        reserve(be, ROWS);
        be->ops->linear(be, out, a, in, ROWS);
        device_get(be, got, out, ROWS * N_OUT);
        be->ops->linear(be, out, b, in, ROWS);
        device_get(be, want, out, ROWS * N_OUT);
        if (from == to ||
            dtype_block_elems(from) == 1) /* a second quantization of blocks may differ by a rounding */
            assert_memory_equal(got, want, sizeof want);
        be->ops->matrix_free(be, a);
        be->ops->matrix_free(be, b);
        stored_clear(&s);
        stored_clear(&converted);
    }
    be->ops->dealloc(be, in);
    be->ops->dealloc(be, out);
    be->ops->free(be);
    free(x);
}

static void a_matrix_that_does_not_fit_its_type_is_refused(void **state)
{
    (void)state;
    struct backend *be = device_open_small(1, NULL);
    float *w = random_floats(3 * 40, 1);
    static const struct {
        int n_in, n_rows;
        enum dtype type;
        bool is_gate_up;
        const char *words[2];
    } CASES[] = {
        { 40, 3, DTYPE_Q8_0, false, { "layers.7.down: 40 input columns", "multiple of 32" } },
        { 40, 3, DTYPE_Q4_0, false, { "layers.7.down: 40 input columns", "q4_0" } },
        { 40, 3, DTYPE_F32, true, { "layers.7.down: 3 rows", "two equal halves" } },
        { 40, 3, DTYPE_I8, false, { "layers.7.down: the CPU has no weights", "type i8" } },
        { 40, 0, DTYPE_F32, false, { "layers.7.down: part of 0 rows", "at least 1" } },
        { 256, 3, DTYPE_IQ4_XS, false, { "rows stored as f32 cannot become iq4_xs", "only read" } },
    };
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        struct matrix_part part = { w, DTYPE_F32, CASES[c].n_rows };
        struct matrix_source source = { .name = "layers.7.down",
                                        .parts = &part,
                                        .n_parts = 1,
                                        .n_in = CASES[c].n_in,
                                        .type = CASES[c].type,
                                        .is_gate_up = CASES[c].is_gate_up };
        struct matrix *m = NULL;
        struct tutti_error err;
        assert_int_equal(be->ops->matrix_new(be, &m, &source, &err), TUTTI_E_UNSUPPORTED);
        assert_null(m);
        for (int i = 0; i < 2; i++)
            assert_non_null(strstr(err.text, CASES[c].words[i]));
    }
    free(w);
    be->ops->free(be);
}

/* As blocks of one row would have them: the backend cannot keep them apart. */
static void rows_of_too_many_scales_are_refused(void **state)
{
    (void)state;
    struct backend *be = device_open_small(1, NULL);
    uint8_t rows[20][132] = { { 0 } };
    for (int r = 0; r < 20; r++) {
        float scale = (float)(1 + r);
        memcpy(rows[r], &scale, sizeof scale);
    }
    struct matrix_part part = { rows, DTYPE_F8_BLOCK, 20 };
    struct matrix_source source = {
        .name = "layers.7.down", .parts = &part, .n_parts = 1, .n_in = 128, .type = DTYPE_F8_BLOCK
    };
    struct matrix *m = NULL;
    struct tutti_error err;
    assert_int_equal(be->ops->matrix_new(be, &m, &source, &err), TUTTI_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "layers.7.down: among 16 rows there are more than 8 different scales"));
    source.type = DTYPE_BF16;
    assert_int_equal(be->ops->matrix_new(be, &m, &source, &err), TUTTI_OK);
    be->ops->matrix_free(be, m);
    be->ops->free(be);
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

static void rmsnorm_adds_first_and_gather_picks_rows(void **state)
{
    (void)state;
    enum { ROWS = 6, N = 37 };
    struct backend *be = device_open_small(2, NULL);
    reserve(be, ROWS);
    float *x = random_floats(ROWS * N, 1), *add = random_floats(ROWS * N, 1), *w = random_floats(N, 1);
    float before[ROWS * N], y[ROWS * N];
    memcpy(before, x, sizeof before);
    struct floats stream = device_new(be, x, ROWS * N), pending = device_new(be, add, ROWS * N);
    struct floats norm = device_new(be, w, N), normed = device_new(be, NULL, ROWS * N);
    be->ops->rmsnorm(be, normed, stream, pending, norm, ROWS, N, 1e-5f);
    device_get(be, x, stream, ROWS * N);
    device_get(be, y, normed, ROWS * N);
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int i = 0; i < N; i++) {
            assert_true(x[r * N + i] == before[r * N + i] + add[r * N + i]);
            sum += (double)x[r * N + i] * (double)x[r * N + i];
        }
        for (int i = 0; i < N; i++)
            assert_float_equal(y[r * N + i], (double)x[r * N + i] * (double)w[i] / sqrt(sum / N + 1e-5),
                               1e-5);
    }
    static const int32_t positions[ROWS], seqs[ROWS], rows[] = { 1, 4 }, page[] = { 0 };
    static const int32_t *const tables[] = { page };
    struct step step = { .n_rows = ROWS,
                         .n_seqs = 1,
                         .positions = positions,
                         .seqs = seqs,
                         .page_tables = tables,
                         .n_outputs = 2,
                         .output_rows = rows };
    be->ops->step_begin(be, &step);
    be->ops->gather(be, normed, stream, pending, N);
    float host[2 * N];
    device_end(be, normed, host, 2 * N);
    for (int i = 0; i < N; i++) {
        assert_true(host[i] == x[N + i] + add[N + i]);
        assert_true(host[N + i] == x[4 * N + i] + add[4 * N + i]);
    }
    const struct floats all[] = { stream, pending, norm, normed };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        be->ops->dealloc(be, all[i]);
    free(x);
    free(add);
    free(w);
    be->ops->free(be);
}

/* By their definitions in double precision, and each row alone with the same bits. */
static void operations_on_rows_do_what_they_say(void **state)
{
    (void)state;
    enum { ROWS = 5, N = 37, N_TABLE = 9 };
    struct backend *be = device_open_small(3, NULL);
    const struct backend_ops *op = be->ops;
    reserve(be, ROWS);
    float *x = random_floats(ROWS * N, 1), *add = random_floats(ROWS * N, 1), *w = random_floats(N, 1),
          *b = random_floats(N, 1), *table = random_floats(N_TABLE * N, 1);
    float stream[ROWS * N], y[ROWS * N], one[N];
    struct floats d_x = device_new(be, x, ROWS * N), d_add = device_new(be, add, ROWS * N);
    struct floats d_w = device_new(be, w, N), d_b = device_new(be, b, N);
    struct floats d_table = device_new(be, table, N_TABLE * N), d_stream = device_new(be, x, ROWS * N);
    struct floats d_y = device_new(be, NULL, ROWS * (N + 7));
    op->layernorm(be, d_y, d_stream, d_add, d_w, d_b, ROWS, N, 1e-5f);
    device_get(be, stream, d_stream, ROWS * N);
    device_get(be, y, d_y, ROWS * N);
    for (int r = 0; r < ROWS; r++) {
        double mean = 0, variance = 0;
        for (int i = 0; i < N; i++) {
            assert_true(stream[r * N + i] == x[r * N + i] + add[r * N + i]);
            mean += (double)stream[r * N + i] / N;
        }
        for (int i = 0; i < N; i++)
            variance += pow((double)stream[r * N + i] - mean, 2) / N;
        for (int i = 0; i < N; i++)
            assert_float_equal(y[r * N + i],
                               ((double)stream[r * N + i] - mean) / sqrt(variance + 1e-5) * (double)w[i] +
                                   (double)b[i],
                               1e-5);
        size_t at = (size_t)(r * N);
        op->upload(be, d_stream, x + at, N);
        op->layernorm(be, d_y, d_stream, floats_at(d_add, at), d_w, d_b, 1, N, 1e-5f);
        device_get(be, one, d_y, N);
        assert_memory_equal(one, y + at, N * sizeof *one);
    }
    op->scale_add(be, d_y, d_x, 2.5f, d_add, ROWS, N);
    device_get(be, y, d_y, ROWS * N);
    for (int i = 0; i < ROWS * N; i++)
        assert_true(y[i] == fmaf(2.5f, x[i], add[i]));
    op->upload(be, d_y, x, ROWS * N);
    op->activate(be, d_y, ROWS, N, ACT_GELU_SIGMOID);
    device_get(be, y, d_y, ROWS * N);
    for (int i = 0; i < ROWS * N; i++)
        assert_float_equal(y[i], (double)x[i] / (1 + exp(-1.702 * (double)x[i])), 1e-6);
    op->upload(be, d_y, x, ROWS * N);
    op->activate(be, d_y, ROWS, N, ACT_GELU_TANH);
    device_get(be, y, d_y, ROWS * N);
    for (int i = 0; i < ROWS * N; i++) {
        double v = (double)x[i], u = sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
        assert_float_equal(y[i], 0.5 * v * (1 + tanh(u)), 1e-6);
    }
    static const int32_t positions[ROWS] = { 8, 0, 3, 3, 1 }, seqs[ROWS], page[] = { 0 };
    static const int32_t *const tables[] = { page };
    struct step step = {
        .n_rows = ROWS, .n_seqs = 1, .positions = positions, .seqs = seqs, .page_tables = tables
    };
    op->upload(be, d_y, x, ROWS * N);
    op->step_begin(be, &step);
    op->positions(be, d_y, d_table, 0, step.n_rows, N, POSITIONS_ADD);
    device_end(be, d_y, y, ROWS * N);
    for (int i = 0; i < ROWS * N; i++)
        assert_true(y[i] == x[i] + table[positions[i / N] * N + i % N]);
    op->step_begin(be, &step);
    op->positions(be, d_y, d_table, 0, step.n_rows, N, POSITIONS_REPLACE);
    device_end(be, d_y, y, ROWS * N);
    for (int i = 0; i < ROWS * N; i++)
        assert_true(y[i] == table[positions[i / N] * N + i % N]);
    float both[ROWS * (N + 7)];
    op->concat(be, d_y, d_x, N, d_add, 7, ROWS);
    device_get(be, both, d_y, ROWS * (N + 7));
    for (int r = 0; r < ROWS; r++) {
        assert_memory_equal(both + r * (N + 7), x + r * N, N * sizeof *x);
        assert_memory_equal(both + r * (N + 7) + N, add + r * 7, 7 * sizeof *x);
    }
    free(x);
    free(add);
    free(w);
    free(b);
    free(table);
    const struct floats all[] = { d_x, d_add, d_w, d_b, d_table, d_stream, d_y };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        op->dealloc(be, all[i]);
    op->free(be);
}

static void the_checksum_of_a_matrix_is_that_of_its_weights_and_bias(void **state)
{
    (void)state;
    enum { N_OUT = 4099, N_IN = 320 }; /* more than one piece */
    struct stored s = stored_make(DTYPE_F32, N_OUT, N_IN);
    float *bias = random_floats(N_OUT, 1);
    uint64_t sums[2];
    for (int n_threads = 1; n_threads <= 2; n_threads++) {
        struct backend *be = backend_make(n_threads, n_threads == 1 ? "ref" : NULL,
                                          shape_of(1, 1, 8, ROPE_NONE, NULL));
        struct matrix *m = matrix_make(be, &s, DTYPE_F32, DTYPE_F32, N_OUT, N_IN, bias, false);
        sums[n_threads - 1] = be->ops->matrix_checksum(be, m);
        be->ops->matrix_free(be, m);
        struct floats floats = device_new(be, s.values, N_IN);
        uint64_t sum = be->ops->checksum(be, floats, N_IN);
        assert_true(sum != be->ops->checksum(be, floats, N_IN - 1));
        float changed = s.values[N_IN - 1] + 1;
        be->ops->upload(be, floats_at(floats, N_IN - 1), &changed, 1);
        assert_true(sum != be->ops->checksum(be, floats, N_IN));
        be->ops->dealloc(be, floats);
        if (n_threads == 2) {
            float *last = (float *)s.data + (size_t)N_OUT * N_IN - 1;
            *last = -*last;
            m = matrix_make(be, &s, DTYPE_F32, DTYPE_F32, N_OUT, N_IN, bias, false);
            assert_true(be->ops->matrix_checksum(be, m) != sums[0]);
            be->ops->matrix_free(be, m);
            *last = -*last;
            bias[N_OUT - 1] += 1;
            m = matrix_make(be, &s, DTYPE_F32, DTYPE_F32, N_OUT, N_IN, bias, false);
            assert_true(be->ops->matrix_checksum(be, m) != sums[0]);
            be->ops->matrix_free(be, m);
        }
        be->ops->free(be);
    }
    assert_true(sums[0] == sums[1]);
    free(bias);
    stored_clear(&s);
}

static void a_device_says_what_it_can_do_before_it_is_opened(void **state)
{
    (void)state;
    const struct backend_caps *caps = backend_caps_of("cpu");
    struct backend *be = device_open_small(1, NULL);
    assert_ptr_equal(caps, be->caps);
    assert_ptr_equal(caps, backend_caps_of(NULL));
    assert_null(backend_caps_of("abacus"));
    assert_int_equal(caps->page_tokens, 16);
    assert_false(caps->can_capture);
    for (enum dtype type = 0; type < DTYPE_COUNT; type++) {
        struct kv_memory *kv = NULL;
        bool is_kv = caps->kv_types >> type & 1;
        assert_int_equal(caps->weight_types >> type & 1, dtype_is_weight(type));
        assert_int_equal(be->ops->kv_new(be, &kv, 1, 1, type, NULL), is_kv ? TUTTI_OK : TUTTI_E_UNSUPPORTED);
        be->ops->kv_free(be, kv);
    }
    be->ops->free(be);
}

/* Odd numbers of rows, so that the last panel is not full. */
static void a_device_knows_the_memory_of_a_matrix_before_it_is_packed(void **state)
{
    (void)state;
    enum { N_OUT = 98, N_IN = 256 };
    const struct backend_caps *caps = backend_caps_of("cpu");
    struct backend *be = device_open_small(1, NULL);
    struct stored s = stored_make(DTYPE_F32, N_OUT, N_IN);
    for (enum dtype type = 0; type < DTYPE_COUNT; type++) {
        for (int is_gate_up = 0; is_gate_up < 2 && dtype_is_weight(type); is_gate_up++) {
            struct matrix *m;
            if (!quantize_can(type)) { /* only packed from its own blocks */
                size_t row = N_IN;     /* of 8-bit floats, which share scales; else as stored */
                assert_true(dtype_is_float8(type) || dtype_bytes(type, N_IN, &row));
                assert_true(caps->packed_bytes(type, N_IN, 128, is_gate_up) >= 128 * row);
                continue;
            }
            m = matrix_make(be, &s, DTYPE_F32, type, N_OUT, N_IN, NULL, is_gate_up);
            uint64_t n_bytes = caps->packed_bytes(type, N_IN, N_OUT, is_gate_up);
            assert_true(n_bytes > 0);
            assert_int_equal(n_bytes, be->ops->matrix_bytes(m));
            be->ops->matrix_free(be, m);
        }
    }
    assert_int_equal(caps->packed_bytes(DTYPE_Q4_0, 48, N_OUT, false), 0);
    stored_clear(&s);
    be->ops->free(be);
}

/* Rotary embedding decides what pages hold, so that other frequencies must give another checksum. */
static void the_checksum_of_the_arithmetic_knows_the_frequencies(void **state)
{
    (void)state;
    static const float freqs[2][4] = { { 1, 0.1f, 0.01f, 0.001f }, { 1, 0.1f, 0.01f, 0.002f } };
    uint64_t sums[3];
    for (int i = 0; i < 3; i++) {
        struct backend *be = backend_make(i, i == 2 ? "ref" : NULL,
                                          shape_of(1, 1, 16, ROPE_HALF, freqs[i % 2]));
        sums[i] = be->ops->arithmetic_checksum(be);
        be->ops->free(be);
    }
    assert_true(sums[0] == sums[2] && sums[0] != sums[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_checksum_of_a_matrix_is_that_of_its_weights_and_bias),
        cmocka_unit_test(linear_is_near_float64),
        cmocka_unit_test(a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads),
        cmocka_unit_test(gate_and_up_are_joined),
        cmocka_unit_test(an_embedding_is_the_stored_row),
        cmocka_unit_test(weights_are_converted_as_the_quantizers_do_it),
        cmocka_unit_test(a_matrix_that_does_not_fit_its_type_is_refused),
        cmocka_unit_test(rows_of_too_many_scales_are_refused),
        cmocka_unit_test(rmsnorm_adds_first_and_gather_picks_rows),
        cmocka_unit_test(operations_on_rows_do_what_they_say),
        cmocka_unit_test(a_device_says_what_it_can_do_before_it_is_opened),
        cmocka_unit_test(a_device_knows_the_memory_of_a_matrix_before_it_is_packed),
        cmocka_unit_test(the_checksum_of_the_arithmetic_knows_the_frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
