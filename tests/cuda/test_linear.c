/* Matrices and linear layers of the CUDA backend on the emulator, against doubles. */
#include "cuda/launches.h"

#include "backend/cuda/cuda_matrix.h"
#include "backend/cuda/experts/cuda_experts.h"
#include "base/half.h"
#include "base/rng.h"
#include "cuda/emulator.h"
#include "kernels/cuda/math.h"
#include "kernels/quantize/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = 132, FEW_SMS = 1, MANY_SMS = 1000 };

static struct cuda_backend *cuda;
static struct backend *be;
static uint64_t n_drawn;

static float random_value(void)
{
    return (float)(rng_uniform(7, 1, n_drawn++) * 2 - 1);
}

static int random_below(int n)
{
    return (int)(rng_uniform(7, 2, n_drawn++) * n);
}

/* ---- matrices ---- */

/* A stored matrix and its weights as doubles. */
struct stored {
    enum dtype dtype;
    int n_in, n_out;
    size_t row_bytes;
    uint8_t *bytes;
    float *weights; /* [n_out][n_in] */
};

/* Types that cannot be quantized are made of random bytes with sensible scales. */
static void fill_read_only(uint8_t *row, enum dtype dtype, int n_in)
{
    size_t block = (size_t)dtype_block_bytes(dtype);
    float d = 0.01f * (1.5f + random_value());
    uint16_t half = float_to_half(d);
    for (int b = 0; b < n_in / dtype_block_elems(dtype); b++, row += block) {
        for (size_t i = 0; i < block; i++)
            row[i] = (uint8_t)random_below(256);
        if (dtype_is_float8(dtype)) {
            float scale = dtype == DTYPE_F8_ROW ? d : d * (1.5f + random_value());
            memcpy(row, &scale, sizeof scale);
            for (size_t i = sizeof scale; i < block; i++)
                row[i] = float8_is_nan(row[i]) ? 0x3c : row[i];
        } else if (dtype == DTYPE_IQ1_M) {
            for (int i = 0; i < 4; i++)
                row[49 + 2 * i] = (uint8_t)((row[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
        } else {
            memcpy(row, &half, sizeof half);
        }
    }
}

/* Rows differ in scale by up to 2^12; one is zero. */
static struct stored stored_new(enum dtype dtype, int n_in, int n_out)
{
    struct stored s = { .dtype = dtype, .n_in = n_in, .n_out = n_out };
    assert_true(dtype_bytes(dtype, n_in, &s.row_bytes));
    s.bytes = calloc((size_t)n_out, s.row_bytes);
    s.weights = malloc((size_t)n_out * (size_t)n_in * sizeof *s.weights);
    for (int o = 0; o < n_out; o++) {
        float *w = s.weights + (size_t)o * (size_t)n_in,
              scale = o % 5 == 4 ? 0 : ldexpf(0.1f, random_below(12) - 6);
        uint8_t *row = s.bytes + (size_t)o * s.row_bytes;
        for (int c = 0; c < n_in; c++)
            w[c] = random_value() * scale + (o % 3 == 0 ? 0.5f * scale : 0);
        if (dtype < DTYPE_Q8_0 || quantize_can(dtype))
            quantize(row, w, dtype, n_in);
        else
            fill_read_only(row, dtype, n_in);
        dequantize(w, row, dtype, n_in);
    }
    return s;
}

static void stored_free(struct stored *s)
{
    free(s->bytes);
    free(s->weights);
}

/* Of two parts. */
static struct matrix *matrix_of(const struct stored *s, bool is_gate_up, int n_experts,
                                const float *const *biases, const uint16_t *const *orders)
{
    struct matrix_part parts[16];
    struct matrix *m = NULL;
    struct tutti_error err;
    int n_parts = n_experts > 0  ? n_experts
                  : s->n_out > 1 ? 2
                                 : 1,
        first = n_experts > 0 ? s->n_out / n_experts : (s->n_out + 2) / 3;
    for (int p = 0; p < n_parts; p++)
        parts[p] = (struct matrix_part){ .data = s->bytes + (size_t)p * (size_t)first * s->row_bytes,
                                         .dtype = s->dtype,
                                         .n_rows = n_experts == 0 && p == n_parts - 1 ? s->n_out - p * first
                                                                                      : first };
    struct matrix_source source = { .name = "test",
                                    .parts = parts,
                                    .n_parts = n_parts,
                                    .n_in = s->n_in,
                                    .type = s->dtype,
                                    .is_gate_up = is_gate_up,
                                    .n_experts = n_experts,
                                    .n_chosen = n_experts > 0 ? 2 : 0,
                                    .biases = biases,
                                    .orders = orders };
    if (cuda_matrix_new(be, &m, &source, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    assert_true(cuda_linear_reserve(cuda, MAX_ROWS));
    return m;
}

/* The weights that the card multiplies by. */
static float *card_weights(const struct matrix *m)
{
    float *w = malloc((size_t)m->n_out * (size_t)m->n_in * sizeof *w);
    for (int o = 0; o < m->n_out; o++)
        cuda_matrix_read(be, w + (size_t)o * (size_t)m->n_in, m, o);
    return w;
}

/* ---- rows ---- */

/* Row 3 is zero; 5 has a NaN, 6 an infinity. Rows differ in scale. */
static float *random_rows(int n_rows, int n_in, bool has_bad)
{
    float *x = malloc((size_t)n_rows * (size_t)n_in * sizeof *x);
    for (int r = 0; r < n_rows; r++) {
        float scale = r == 3 ? 0 : r == 2 ? 1e5f : ldexpf(1, random_below(20) - 10);
        for (int c = 0; c < n_in; c++)
            x[r * n_in + c] = random_value() * scale * (random_below(50) == 0 ? 20 : 1);
    }
    if (has_bad && n_rows > 6) {
        x[5 * n_in + n_in / 2] = NAN;
        x[6 * n_in + n_in - 1] = INFINITY;
    }
    return x;
}

static bool is_bad(int row)
{
    return row == 5 || row == 6;
}

/* A product of rows begin to begin + n - 1, of which as many floats belong to a row of y. Freed by the caller. */
static float *product(const struct matrix *m, const float *x, int begin, int n, int n_columns, int activation)
{
    struct floats in = launches_floats(NULL, (size_t)MAX_ROWS * (size_t)m->n_in);
    struct floats out = launches_floats(NULL, (size_t)MAX_ROWS * (size_t)n_columns);
    memcpy(in.buffer->data, x + (size_t)begin * (size_t)m->n_in, (size_t)n * (size_t)m->n_in * sizeof *x);
    if (activation >= 0)
        cuda_linear_glu(be, out, m, in, n, (enum activation)activation);
    else if (m->is_gate_up)
        cuda_linear_raw(cuda, out.buffer->data, m, in.buffer->data, cuda_padded_rows(cuda, n));
    else
        cuda_linear(be, out, m, in, n);
    launches_floats_free(in);
    float *y = malloc((size_t)MAX_ROWS * (size_t)n_columns * sizeof *y);
    assert_non_null(y);
    memcpy(y, out.buffer->data, (size_t)MAX_ROWS * (size_t)n_columns * sizeof *y);
    launches_floats_free(out);
    return y;
}

/* Bits of numbers; NaNs are equal. */
static void assert_same_row(const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("column %d: %a, and among others %a", i, (double)a[i], (double)b[i]);
}

/* Inputs are rounded once, to 11 bits where they are not 2^-28 times smaller than the row's largest; the sum of n
 * products to 24 bits n times, at most. With float32 there is no first error. */
static void check_row(const float *y, const float *w, const struct matrix *m, const float *x,
                      const float *bias)
{
    double largest = 0, unit = m->format == LINEAR_F32 ? 0 : 0x1p-11;
    for (int c = 0; c < m->n_in; c++)
        largest = fmax(largest, fabs((double)x[c]));
    for (int o = 0; o < m->n_out; o++) {
        double sum = 0, size = 0, of_small = 0;
        for (int c = 0; c < m->n_in; c++) {
            double product = (double)w[(size_t)o * (size_t)m->n_in + (size_t)c] * (double)x[c];
            sum += product;
            size += fabs(product);
            of_small += fabs((double)w[(size_t)o * (size_t)m->n_in + (size_t)c]);
        }
        sum += bias ? (double)bias[o] : 0;
        double bound = size * (unit + (m->n_in + 8) * 0x1p-24) + of_small * largest * unit * 0x1p-26 +
                       (bias ? fabs((double)bias[o]) * 0x1p-23 : 0);
        if (!(fabs((double)y[o] - sum) <= bound))
            fail_msg("%s, n_in %d, output %d: %.9g, expected %.9g, bound %g", dtype_name(m->dtype), m->n_in,
                     o, (double)y[o], sum, bound);
    }
}

/* ---- tests ---- */

/* Weights of types with float16 scales are rounded once, to 11 bits: of numbers, but also of scales and mins where both
 * have integers, or where a min is computed. */
static void check_weights(const struct stored *s, const float *w)
{
    bool is_exact = s->dtype < DTYPE_Q8_0 || s->dtype == DTYPE_MXFP4 || s->dtype == DTYPE_F8_ROW;
    bool rounds_factors = (s->dtype >= DTYPE_Q2_K && s->dtype <= DTYPE_Q6_K) || s->dtype >= DTYPE_G4Z_32;
    for (int o = 0; o < s->n_out; o++) {
        const float *want = s->weights + (size_t)o * (size_t)s->n_in, *got = w + (size_t)o * (size_t)s->n_in;
        double largest = 0;
        for (int c = 0; c < s->n_in; c++)
            largest = fmax(largest, fabs((double)want[c]));
        for (int c = 0; c < s->n_in; c++) {
            double error = fabs((double)got[c] - (double)want[c]), bound = fabs((double)want[c]) * 0x1p-11;
            /* what is below 2^-14 in the row's scale is a multiple of 2^-24; its largest is 2^-8 at least */
            bound += largest * 0x1p-15;
            if (rounds_factors)
                bound += largest * 0x1p-10;
            if (is_exact ? error != 0 : error > bound)
                fail_msg("%s, row %d, column %d: %.9g, expected %.9g", dtype_name(s->dtype), o, c,
                         (double)got[c], (double)want[c]);
        }
    }
}

static void check_companies(const struct matrix *m, const float *x, const float *all, int n_columns,
                            int activation)
{
    static const int SIZES[] = { 1, 2, 7, 8, 9, 16, 31, 64, 65, 130 };
    /* the three activations differ in nothing that depends on the rows */
    for (size_t i = 0; i<sizeof SIZES / sizeof *SIZES; i += activation> ACT_SILU ? 4 : 1) {
        int n = SIZES[i], begin = n > 8 ? 0 : random_below(10);
        for (int many = 0; many < (n > 16 ? 2 : 1); many++) {
            cuda->n_sms = many ? MANY_SMS : FEW_SMS;
            float *some = product(m, x, begin, n, n_columns, activation);
            for (int r = 0; r < n; r++)
                assert_same_row(some + (size_t)r * (size_t)n_columns,
                                all + (size_t)(begin + r) * (size_t)n_columns, n_columns);
            free(some);
        }
    }
    cuda->n_sms = FEW_SMS;
}

static void check_linear(enum dtype dtype, int n_in, int n_out, bool is_gate_up)
{
    enum { N_ROWS = 130 };
    struct stored s = stored_new(dtype, n_in, n_out);
    float *bias = malloc((size_t)n_out * sizeof *bias);
    for (int o = 0; o < n_out; o++)
        bias[o] = random_value();
    const float *biases[2] = { bias, bias + (n_out + 2) / 3 };
    struct matrix *m = matrix_of(&s, is_gate_up, 0, n_out % 3 == 0 ? NULL : biases, NULL);
    const float *has_bias = n_out % 3 == 0 ? NULL : bias;
    float *w = card_weights(m), *x = random_rows(N_ROWS, n_in, true);
    check_weights(&s, w);
    assert_int_equal(cuda_matrix_bytes(m) -
                         (has_bias ? (size_t)(m->n_tiles * LINEAR_TILE * 4 + 255) / 256 * 256 : 0),
                     cuda_packed_bytes(dtype, n_in, n_out, is_gate_up));
    for (int o = 0; o < n_out; o++)
        assert_true(cuda_matrix_read(be, NULL, m, o) == (has_bias ? bias[o] : 0));
    float *all = product(m, x, 0, N_ROWS, n_out, -1);
    for (int r = 0; r < N_ROWS; r++) {
        float *y = all + (size_t)r * (size_t)n_out;
        for (int o = 0; is_bad(r) && o < n_out; o++)
            assert_true(isnan(y[o]) || (dtype == DTYPE_F32 && isinf(y[o])));
        if (!is_bad(r))
            check_row(y, w, m, x + (size_t)r * (size_t)n_in, has_bias);
    }
    check_companies(m, x, all, n_out, -1);
    for (int act = 0; is_gate_up && act <= ACT_SILU_CLAMPED; act++) {
        if (act != ACT_SILU && act != ACT_GELU_TANH && act != ACT_SILU_CLAMPED)
            continue;
        int half = n_out / 2;
        float *gated = malloc((size_t)N_ROWS * (size_t)half * sizeof *gated);
        for (int r = 0; r < N_ROWS; r++)
            for (int o = 0; o < half; o++)
                gated[r * half + o] = glu_f32(all[r * n_out + o], all[r * n_out + half + o], act);
        check_companies(m, x, gated, half, act);
        free(gated);
    }
    cuda_matrix_free(be, m);
    stored_free(&s);
    free(bias);
    free(w);
    free(x);
    free(all);
}

static void check_type(enum dtype dtype)
{
    static const int WIDTHS[] = { 1, 7, 32, 64, 96, 256, 512, 1280 }, OUTPUTS[] = { 1, 15, 16, 17, 33, 100 };
    for (size_t i = 0, k = 0; i < sizeof WIDTHS / sizeof *WIDTHS; i++) {
        if (WIDTHS[i] % dtype_block_elems(dtype) != 0)
            continue;
        check_linear(dtype, WIDTHS[i], OUTPUTS[k++ % 6], false);
        if (WIDTHS[i] == 512 || WIDTHS[i] == 96)
            check_linear(dtype, WIDTHS[i], 2 * OUTPUTS[k++ % 6], true);
    }
}

static void float_types(void **state)
{
    (void)state;
    check_type(DTYPE_F32);
    check_type(DTYPE_F16);
    check_type(DTYPE_BF16);
}

static void block_types(void **state)
{
    (void)state;
    check_type(DTYPE_Q4_0);
    check_type(DTYPE_Q4_1);
    check_type(DTYPE_Q5_0);
    check_type(DTYPE_Q5_1);
    check_type(DTYPE_Q8_0);
    check_type(DTYPE_MXFP4);
}

static void super_block_types(void **state)
{
    (void)state;
    check_type(DTYPE_Q2_K);
    check_type(DTYPE_Q3_K);
    check_type(DTYPE_Q4_K);
    check_type(DTYPE_Q5_K);
    check_type(DTYPE_Q6_K);
}

static void other_types(void **state)
{
    (void)state;
    for (enum dtype dtype = DTYPE_IQ4_NL; dtype < DTYPE_F64; dtype++)
        check_linear(dtype, 256, 33, false);
}

/* ---- orders, heads, experts, tables ---- */

static uint16_t *random_order(int n)
{
    uint16_t *order = malloc((size_t)n * sizeof *order);
    for (int c = 0; c < n; c++)
        order[c] = (uint16_t)c;
    for (int c = n - 1; c > 0; c--) {
        int k = random_below(c + 1);
        uint16_t other = order[k];
        order[k] = order[c];
        order[c] = other;
    }
    return order;
}

/* The bits of a matrix whose columns are in their places, with inputs that are. */
static void orders_are_gathered(void **state)
{
    enum { N_IN = 256, N_OUT = 40, N_ROWS = 20 };
    (void)state;
    struct stored s = stored_new(DTYPE_Q4_K, N_IN, N_OUT);
    uint16_t *order = random_order(N_IN);
    struct matrix *m = matrix_of(&s, false, 0, NULL, (const uint16_t *const[]){ order, order }),
                  *plain = matrix_of(&s, false, 0, NULL, NULL);
    float *x = random_rows(N_ROWS, N_IN, false), *gathered = malloc(N_ROWS * N_IN * sizeof *x),
          *row = malloc(N_IN * sizeof *row);
    for (int i = 0; i < N_ROWS * N_IN; i++)
        gathered[i] = x[i / N_IN * N_IN + order[i % N_IN]];
    float *y = product(m, x, 0, N_ROWS, N_OUT, -1), *want = product(plain, gathered, 0, N_ROWS, N_OUT, -1);
    assert_memory_equal(y, want, N_ROWS * N_OUT * sizeof *y);
    for (int o = 0; o < N_OUT; o++) {
        float in_places[N_IN];
        cuda_matrix_read(be, row, m, o);
        cuda_matrix_read(be, in_places, plain, o);
        for (int c = 0; c < N_IN; c++)
            assert_true(row[order[c]] == in_places[c]);
    }
    cuda_matrix_free(be, m);
    cuda_matrix_free(be, plain);
    stored_free(&s);
    free(order);
    free(x);
    free(gathered);
    free(row);
    free(y);
    free(want);
}

/* Heads whose outputs begin inside of tiles, and rows with gaps between heads, which nobody reads or writes. */
static void check_heads(enum dtype dtype, int n_in, int n_heads, int n_out, int n_rows)
{
    struct stored s = stored_new(dtype, n_in, n_heads * n_out);
    struct matrix *m = matrix_of(&s, false, 0, NULL, NULL);
    struct head_rows heads = { n_heads, n_heads * (n_in + 8), n_in + 8, n_heads * (n_out + 3), n_out + 3 };
    struct attention_shape shape = { .n_heads = n_heads, .n_latent = n_in, .head_dim = n_in };
    struct cuda_kind kind = { .shape = shape };
    cuda->kinds = &kind;
    cuda->n_kinds = 1;
    assert_true(cuda_linear_reserve(cuda, MAX_ROWS));
    float *rows = random_rows(n_rows * n_heads, n_in, false);
    struct floats x = launches_floats(NULL, (size_t)MAX_ROWS * (size_t)heads.x_row),
                  y = launches_floats(NULL, (size_t)MAX_ROWS * (size_t)heads.y_row);
    for (int i = 0; i < n_rows * n_heads; i++)
        memcpy(x.buffer->data + i / n_heads * heads.x_row + i % n_heads * heads.x_head, rows + i * n_in,
               (size_t)n_in * sizeof *rows);
    cuda_linear_heads(be, y, m, x, n_rows, &heads);
    float *w = card_weights(m);
    for (int i = 0; i < n_rows * n_heads; i++) {
        int h = i % n_heads;
        struct matrix part = { .dtype = dtype, .format = m->format, .n_in = n_in, .n_out = n_out };
        const float *got = y.buffer->data + i / n_heads * heads.y_row + h * heads.y_head;
        check_row(got, w + (size_t)h * (size_t)n_out * (size_t)n_in, &part, rows + i * n_in, NULL);
        assert_true(isnan(got[n_out]) && isnan(got[n_out + 2]));
    }
    cuda->n_kinds = 0;
    cuda_matrix_free(be, m);
    stored_free(&s);
    free(rows);
    free(w);
}

static void heads_have_their_own_rows(void **state)
{
    (void)state;
    check_heads(DTYPE_Q8_0, 64, 3, 32, 5);
    check_heads(DTYPE_BF16, 40, 5, 24, 9);
    check_heads(DTYPE_Q4_0, 128, 2, 40, 40);
    check_heads(DTYPE_F32, 24, 3, 20, 11);
}

/* Lists of entries with experts, as the card makes them; rows of y that no list has stay as they are. */
static void check_experts(enum dtype dtype, bool is_gate_up, int list_rows)
{
    enum { N_IN = 256, N_OUT = 48, N_EXPERTS = 3, N_ROWS = 10, N_ENTRIES = 70 };
    struct stored s = stored_new(dtype, N_IN, N_EXPERTS * N_OUT);
    float *bias = malloc(N_EXPERTS * N_OUT * sizeof *bias);
    const float *biases[N_EXPERTS];
    for (int k = 0; k < N_EXPERTS * N_OUT; k++)
        bias[k] = random_value();
    for (int e = 0; e < N_EXPERTS; e++)
        biases[e] = bias + e * N_OUT;
    uint16_t *orders[N_EXPERTS] = { random_order(N_IN), NULL, random_order(N_IN) };
    bool has_orders = dtype_is_integers(dtype);
    struct matrix *m = matrix_of(&s, is_gate_up, N_EXPERTS, biases,
                                 has_orders ? (const uint16_t *const *)orders : NULL);
    float *x = random_rows(N_ROWS, N_IN, false);
    int n_columns = is_gate_up ? N_OUT / 2 : N_OUT, act = is_gate_up ? ACT_SILU : -1;
    static int32_t rows[N_ENTRIES];
    static struct linear_rows lists[N_ENTRIES];
    int32_t n_lists = 0, n_entries = 0;
    for (int e = 0; e < N_EXPERTS; e++) {
        for (int n_left = e == 1 ? 3 : 20; n_left > 0;) {
            int n = n_left < list_rows ? n_left : list_rows;
            lists[n_lists++] = (struct linear_rows){ .expert = e, .begin = n_entries, .n = n };
            for (int i = 0; i < n; i++)
                rows[n_entries++] = random_below(N_ROWS);
            n_left -= n;
        }
    }
    struct cuda_entries entries = { .rows = rows,
                                    .lists = lists,
                                    .n_lists = &n_lists,
                                    .most_lists = n_lists + 2,
                                    .list_rows = list_rows,
                                    .n_entries = N_ENTRIES };
    void *halves = cuda_memory_new(cuda, cuda_converted_bytes(m->format, N_ENTRIES, N_IN));
    float *scales = cuda_memory_new(cuda, N_ENTRIES * sizeof *scales);
    struct floats y = launches_floats(NULL, (size_t)N_ENTRIES * (size_t)n_columns);
    struct cuda_input input = cuda_convert(cuda, halves, scales, m, x, N_IN, 0, &entries);
    cuda_product(cuda, y.buffer->data, n_columns, m, &input, 0, act, &entries);
    for (int e = 0, i = 0; e < N_EXPERTS; e++) {
        struct stored part = s;
        part.n_out = N_OUT;
        part.bytes = s.bytes + (size_t)(e * N_OUT) * s.row_bytes;
        const float *two[2] = { biases[e], biases[e] + (N_OUT + 2) / 3 };
        const uint16_t *two_orders[2] = { orders[e], orders[e] };
        struct matrix *plain = matrix_of(&part, is_gate_up, 0, two, has_orders ? two_orders : NULL);
        for (; i < n_entries && lists[n_lists - 1].begin >= 0; i++) {
            int expert = 0;
            for (int l = 0; l < n_lists; l++)
                expert = i >= lists[l].begin ? lists[l].expert : expert;
            if (expert != e)
                break;
            float *want = product(plain, x, rows[i], 1, n_columns, act);
            assert_same_row(y.buffer->data + (size_t)i * (size_t)n_columns, want, n_columns);
            free(want);
        }
        cuda_matrix_free(be, plain);
    }
    for (size_t i = (size_t)n_entries * (size_t)n_columns; i < (size_t)N_ENTRIES * (size_t)n_columns; i++)
        assert_true(isnan(y.buffer->data[i]));
    cuda_matrix_free(be, m);
    stored_free(&s);
    free(bias);
    free(orders[0]);
    free(orders[2]);
    free(x);
    cuda_memory_free(cuda, halves);
    cuda_memory_free(cuda, scales);
}

static void experts_have_the_bits_of_matrices(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof LINEAR_LIST_ROWS / sizeof *LINEAR_LIST_ROWS; i++) {
        check_experts(DTYPE_Q4_K, i % 2 == 0, LINEAR_LIST_ROWS[i]);
        check_experts(DTYPE_MXFP4, i % 2 == 1, LINEAR_LIST_ROWS[i]);
        check_experts(DTYPE_F32, i % 2 == 0, LINEAR_LIST_ROWS[i]);
    }
}

static void tables_give_rows(void **state)
{
    enum { N_IN = 96, N_OUT = 50, N_ROWS = 6, FIRST = 100 };
    int32_t ids[N_ROWS] = { 100, 149, 99, 150, 117, 0 };
    (void)state;
    struct stored s = stored_new(DTYPE_Q5_1, N_IN, N_OUT);
    struct matrix *m = matrix_of(&s, false, 0, NULL, NULL);
    struct floats x = launches_floats(NULL, MAX_ROWS * N_IN);
    float row[N_IN];
    cuda->n_padded_rows = N_ROWS;
    cuda->rows.token_ids = ids;
    cuda_embed(be, x, m, FIRST);
    for (int r = 0; r < N_ROWS; r++) {
        int id = ids[r] - FIRST;
        memset(row, 0, sizeof row);
        if (id >= 0 && id < N_OUT)
            cuda_matrix_read(be, row, m, id);
        assert_memory_equal(x.buffer->data + r * N_IN, row, sizeof row);
    }
    cuda_matrix_free(be, m);
    stored_free(&s);
}

/* In a step, where a launch waits until the next: rows are converted once, unless something may have written them. */
static void rows_are_converted_once(void **state)
{
    enum { N_IN = 64, N_OUT = 32, N_ROWS = 4 };
    (void)state;
    struct stored s = stored_new(DTYPE_Q4_0, N_IN, N_OUT);
    struct matrix *m = matrix_of(&s, false, 0, NULL, NULL);
    float *rows = random_rows(2 * N_ROWS, N_IN, false);
    struct floats x = launches_floats(rows, N_ROWS * N_IN),
                  other = launches_floats(rows + N_ROWS * N_IN, N_ROWS * N_IN),
                  y = launches_floats(NULL, N_ROWS * N_OUT), z = launches_floats(NULL, N_ROWS * N_OUT),
                  w = launches_floats(rows, N_IN), normed = launches_floats(NULL, N_ROWS * N_IN);
    launches_wait(true);
    n_launches = 0;
    cuda_linear(be, y, m, x, N_ROWS);
    cuda_linear(be, z, m, x, N_ROWS);
    assert_int_equal(n_launches, 3);
    cuda_scale(be, x, 2, N_ROWS, N_IN);
    cuda_linear(be, z, m, x, N_ROWS);
    assert_int_equal(n_launches, 6);
    cuda_linear(be, z, m, other, N_ROWS);
    cuda_linear(be, z, m, x, N_ROWS);
    assert_int_equal(n_launches, 10);
    launches_wait(true);
    for (int i = 0; i < N_ROWS * N_OUT; i++)
        assert_true(z.buffer->data[i] == 2 * y.buffer->data[i]);
    n_launches = 0;
    cuda_rmsnorm(be, normed, x, NO_FLOATS, w, N_ROWS, N_IN, 1e-5f); /* the norm converts */
    cuda_linear(be, y, m, normed, N_ROWS);
    cuda_linear(be, z, m, normed, N_ROWS);
    assert_int_equal(n_launches, 3);
    launches_wait(false);
    assert_memory_equal(y.buffer->data, z.buffer->data, N_ROWS * N_OUT * sizeof(float));
    cuda_linear(be, z, m, normed, N_ROWS);
    assert_memory_equal(y.buffer->data, z.buffer->data, N_ROWS * N_OUT * sizeof(float));
    cuda_matrix_free(be, m);
    stored_free(&s);
    free(rows);
}

static void lengths_are_of_updated_rows(void **state)
{
    enum { N_IN = 64, N_OUT = 30, BEGIN = 4, N = 20, RANK = 3 };
    (void)state;
    struct stored s = stored_new(DTYPE_Q8_0, N_IN, N_OUT);
    struct matrix *m = matrix_of(&s, false, 0, NULL, NULL);
    float a[RANK * N_IN], b[N * RANK], lengths[N], *w = card_weights(m);
    for (int i = 0; i < RANK * N_IN; i++)
        a[i] = random_value();
    for (int i = 0; i < N * RANK; i++)
        b[i] = random_value();
    struct lora_part part = { .out_begin = BEGIN, .n_out = N, .rank = RANK, .scale = 0.5f, .a = a, .b = b };
    assert_true(cuda_matrix_lengths(be, lengths, m, &part));
    for (int o = 0; o < N; o++) {
        double sum = 0;
        for (int c = 0; c < N_IN; c++) {
            double v = (double)w[(BEGIN + o) * N_IN + c];
            for (int k = 0; k < RANK; k++)
                v += 0.5 * (double)b[o * RANK + k] * (double)a[k * N_IN + c];
            sum += v * v;
        }
        assert_true(fabs((double)lengths[o] - sqrt(sum)) <= 1e-6 * sqrt(sum));
    }
    cuda_matrix_free(be, m);
    stored_free(&s);
    free(w);
}

static void checksums_tell_matrices_apart(void **state)
{
    (void)state;
    struct stored s = stored_new(DTYPE_Q4_0, 64, 20);
    struct matrix *m = matrix_of(&s, false, 0, NULL, NULL), *same = matrix_of(&s, false, 0, NULL, NULL);
    s.bytes[7] ^= 1;
    struct matrix *other = matrix_of(&s, false, 0, NULL, NULL);
    assert_true(cuda_matrix_checksum(be, m) == cuda_matrix_checksum(be, same));
    assert_true(cuda_matrix_checksum(be, m) != cuda_matrix_checksum(be, other));
    cuda_matrix_free(be, m);
    cuda_matrix_free(be, same);
    cuda_matrix_free(be, other);
    stored_free(&s);
}

/* test_cuda_linear LEVEL */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_types),
        cmocka_unit_test(block_types),
        cmocka_unit_test(super_block_types),
        cmocka_unit_test(other_types),
        cmocka_unit_test(orders_are_gathered),
        cmocka_unit_test(heads_have_their_own_rows),
        cmocka_unit_test(experts_have_the_bits_of_matrices),
        cmocka_unit_test(tables_give_rows),
        cmocka_unit_test(rows_are_converted_once),
        cmocka_unit_test(lengths_are_of_updated_rows),
        cmocka_unit_test(checksums_tell_matrices_apart),
    };
    struct tutti_error err;
    cuda = launches_new(MAX_ROWS);
    cuda->level = cuda->capability = argc > 1 ? atoi(argv[1]) : 80;
    be = &cuda->backend;
    if (team_new(&cuda->team, &(struct team_options){ .n_threads = 2 }, &err) != TUTTI_OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cuda_experts_release(cuda);
    cuda_linear_release(cuda);
    team_free(cuda->team);
    (void)launches_clear(NULL);
    return failed;
}
