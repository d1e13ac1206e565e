/* Matrices with permuted columns: each result has the same bits as the plain matrix with inputs that the test gathers, at
 * every processor level, batch size and number of threads. Adapters get the inputs in their original order. */
#include "backend/backend.h"
#include "device.h"
#include "kernels/quantize/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_ROWS = 150, N_IN = 288, N_OUT = 70, RANK = 3 };

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_float();
}

/* A matrix as stored, its order, and the inputs in their original order and gathered. */
static struct {
    uint8_t stored[N_OUT * N_IN * 4];
    float values[N_OUT * N_IN]; /* of the stored columns */
    uint16_t order[N_IN];
    float x[N_ROWS * N_IN], gathered[N_ROWS * N_IN];
    enum dtype type;
} made;

static void make(enum dtype type)
{
    made.type = type;
    fill(made.values, N_OUT * N_IN);
    quantize(made.stored, made.values, type, N_OUT * N_IN);
    dequantize(made.values, made.stored, type, N_OUT * N_IN);
    for (int c = 0; c < N_IN; c++)
        made.order[c] = (uint16_t)((c * 101 + 7) % N_IN); /* 101 and 288 have no common divisor */
    fill(made.x, N_ROWS * N_IN);
    for (int r = 0; r < N_ROWS; r++)
        for (int c = 0; c < N_IN; c++)
            made.gathered[r * N_IN + c] = made.x[r * N_IN + made.order[c]];
}

static struct matrix *matrix_make(struct backend *be, const uint16_t *order, bool is_gate_up)
{
    const struct matrix_part part = { made.stored, made.type, N_OUT, 0 };
    struct matrix_source source = {
        .name = "m", .parts = &part, .n_parts = 1, .n_in = N_IN, .type = made.type, .is_gate_up = is_gate_up
    };
    if (order)
        source.orders = &order;
    struct matrix *m = NULL;
    struct tutti_error err;
    if (be->ops->matrix_new(be, &m, &source, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return m;
}

/* All rows in steps of n_step; y: [N_ROWS][n_out]. */
static void run(struct backend *be, const struct matrix *m, const float *x, bool is_gate_up, int n_step,
                float *y)
{
    int n_out = is_gate_up ? N_OUT / 2 : N_OUT;
    for (int begin = 0; begin < N_ROWS; begin += n_step) {
        int n = N_ROWS - begin < n_step ? N_ROWS - begin : n_step;
        struct floats in = device_new(be, x + begin * N_IN, (size_t)(n * N_IN));
        struct floats out = device_new(be, NULL, (size_t)(n * n_out));
        if (is_gate_up)
            be->ops->linear_glu(be, out, m, in, n, ACT_SILU);
        else
            be->ops->linear(be, out, m, in, n);
        device_get(be, y + begin * n_out, out, (size_t)(n * n_out));
        be->ops->dealloc(be, in);
        be->ops->dealloc(be, out);
    }
}

static void inputs_are_gathered_by_the_order(void **state)
{
    (void)state;
    static const enum dtype TYPES[] = { DTYPE_Q4_0, DTYPE_Q5_0, DTYPE_Q8_0, DTYPE_Q4_1 };
    static const struct {
        int n_threads, n_step;
        const char *cpu;
    } WAYS[] = { { 1, N_ROWS, NULL }, { 3, N_ROWS, NULL }, { 2, 1, NULL },  { 1, 1, NULL },
                 { 2, 7, NULL },      { 4, 64, NULL },     { 2, 33, "ref" } };
    static float want[N_ROWS * N_OUT], got[N_ROWS * N_OUT];
    for (size_t i = 0; i < 2 * sizeof TYPES / sizeof *TYPES; i++) {
        bool is_gate_up = i % 2 == 1;
        size_t n_bytes = sizeof *want * N_ROWS * (is_gate_up ? N_OUT / 2 : N_OUT);
        make(TYPES[i / 2]);
        for (size_t w = 0; w < sizeof WAYS / sizeof *WAYS; w++) {
            struct backend *be = device_open_small(WAYS[w].n_threads, WAYS[w].cpu);
            struct matrix *plain = matrix_make(be, NULL, is_gate_up),
                          *ordered = matrix_make(be, made.order, is_gate_up);
            assert_int_equal(be->ops->reserve(be, WAYS[w].n_step, NULL), TUTTI_OK);
            if (w == 0)
                run(be, plain, made.gathered, is_gate_up, N_ROWS, want);
            run(be, ordered, made.x, is_gate_up, WAYS[w].n_step, got);
            if (memcmp(want, got, n_bytes) != 0)
                fail_msg("%s, %d threads, steps of %d: other bits", dtype_name(made.type), WAYS[w].n_threads,
                         WAYS[w].n_step);
            run(be, plain, made.x, is_gate_up, WAYS[w].n_step, got);
            assert_memory_not_equal(want, got, n_bytes);
            be->ops->matrix_free(be, plain);
            be->ops->matrix_free(be, ordered);
            be->ops->free(be);
        }
    }
}

/* The product without the adapter, plus B . A . x of the input in its original order. */
static void adapters_see_inputs_as_they_are(void **state)
{
    (void)state;
    static float a[RANK * N_IN], b[N_OUT * RANK], y[N_ROWS * N_OUT], adapted[N_ROWS * N_OUT];
    int32_t adapters[N_ROWS];
    fill(a, RANK * N_IN);
    fill(b, N_OUT * RANK);
    make(DTYPE_Q4_0);
    struct backend *be = device_open_small(2, NULL);
    struct matrix *m = matrix_make(be, made.order, false);
    const struct lora_part part = { .n_out = N_OUT, .rank = RANK, .scale = 0.5f, .a = a, .b = b };
    const struct lora_source source = {
        .n_in = N_IN, .n_out = N_OUT, .parts = &part, .n_parts = 1, .type = DTYPE_F32
    };
    struct lora *lora = NULL;
    assert_int_equal(be->ops->lora_new(be, &lora, &source, NULL), TUTTI_OK);
    assert_int_equal(be->ops->reserve(be, N_ROWS, NULL), TUTTI_OK);
    run(be, m, made.x, false, N_ROWS, y);
    struct floats in = device_new(be, made.x, N_ROWS * N_IN), out = device_new(be, NULL, N_ROWS * N_OUT);
    const struct lora *loras[] = { lora };
    for (int r = 0; r < N_ROWS; r++)
        adapters[r] = r % 3 == 0 ? -1 : 0;
    be->ops->linear_adapted(be, out, m, in, N_ROWS, loras, adapters);
    device_get(be, adapted, out, N_ROWS * N_OUT);
    for (int r = 0; r < N_ROWS; r++) {
        double sums[RANK] = { 0 };
        for (int i = 0; i < RANK && adapters[r] == 0; i++)
            for (int c = 0; c < N_IN; c++)
                sums[i] += (double)a[i * N_IN + c] * (double)made.x[r * N_IN + c];
        for (int j = 0; j < N_OUT; j++) {
            double want = (double)y[r * N_OUT + j];
            for (int i = 0; i < RANK; i++)
                want += 0.5 * (double)b[j * RANK + i] * sums[i];
            assert_true(fabs((double)adapted[r * N_OUT + j] - want) < 1e-4);
        }
    }
    be->ops->dealloc(be, in);
    be->ops->dealloc(be, out);
    be->ops->lora_free(be, lora);
    be->ops->matrix_free(be, m);
    be->ops->free(be);
}

/* Rows are read with each element at its place. The order takes memory, and is part of the checksum. */
static void an_order_is_part_of_the_matrix(void **state)
{
    (void)state;
    float row[N_IN];
    make(DTYPE_Q8_0);
    struct backend *be = device_open_small(1, NULL);
    struct matrix *plain = matrix_make(be, NULL, false), *ordered = matrix_make(be, made.order, false);
    for (int r = 0; r < N_OUT; r += 23) {
        be->ops->matrix_read(be, row, ordered, r);
        for (int c = 0; c < N_IN; c++)
            assert_true(row[made.order[c]] == made.values[r * N_IN + c]);
    }
    assert_int_equal(be->ops->matrix_bytes(ordered),
                     be->ops->matrix_bytes(plain) + N_IN * sizeof *made.order);
    uint64_t sum = be->ops->matrix_checksum(be, ordered);
    assert_true(sum != be->ops->matrix_checksum(be, plain));
    be->ops->matrix_free(be, ordered);
    made.order[0] ^= made.order[1];
    made.order[1] ^= made.order[0];
    made.order[0] ^= made.order[1];
    ordered = matrix_make(be, made.order, false);
    assert_true(sum != be->ops->matrix_checksum(be, ordered));
    be->ops->matrix_free(be, plain);
    be->ops->matrix_free(be, ordered);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_are_gathered_by_the_order),
        cmocka_unit_test(adapters_see_inputs_as_they_are),
        cmocka_unit_test(an_order_is_part_of_the_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
