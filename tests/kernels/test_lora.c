/* Tests of what adapters change of the CPU backend's linear layers: against float64, and a row's bits
 * depend only on that row. */
#include "backend/backend.h"
#include "device.h"
#include "kernels/quantize/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 21, N_IN = 96, N_OUT = 203, N_FF = 91, N_ADAPTERS = 3, MAX_PARTS = 2 };

/* Adapter 1 does not change columns 100..149, and has factors and shifts of all. Adapter 2 has no update,
 * but a matrix of its own, and shifts. */
static const struct lora_part SHAPES[N_ADAPTERS][MAX_PARTS] = {
    { { .out_begin = 0, .n_out = N_OUT, .rank = 8, .scale = 2 } },
    { { .out_begin = 0, .n_out = 100, .rank = 5, .scale = 0.5f },
      { .out_begin = 150, .n_out = 53, .rank = 70, .scale = 1 } },
};
/* Of gate and up; adapter 1 updates the end of one and the beginning of the other. */
static const struct lora_part GATE_UP_SHAPES[N_ADAPTERS][MAX_PARTS] = {
    { { .out_begin = 0, .n_out = N_FF, .rank = 8, .scale = 2 },
      { .out_begin = N_FF, .n_out = N_FF, .rank = 3, .scale = 1 } },
    { { .out_begin = 80, .n_out = 30, .rank = 5, .scale = 0.5f },
      { .out_begin = 120, .n_out = 2 * N_FF - 120, .rank = 66, .scale = 0.1f } },
};
static const int N_PARTS[N_ADAPTERS] = { 1, 2, 0 }, N_GATE_UP_PARTS[N_ADAPTERS] = { 2, 2, 0 };

struct setup {
    struct lora_part parts[N_ADAPTERS][MAX_PARTS];
    int n_parts[N_ADAPTERS], n_out;
    float *x, *w, *bias;             /* [ROWS][N_IN], [n_out][N_IN], [n_out] */
    float *other, *factors, *shifts; /* [n_out][N_IN], [n_out], [n_out] */
    int32_t adapters[ROWS];
};

static struct setup setup_make(bool is_gate_up)
{
    struct setup s = { .n_out = is_gate_up ? 2 * N_FF : N_OUT, .x = random_floats(ROWS * N_IN, 1) };
    s.w = random_floats((size_t)s.n_out * N_IN, 1);
    s.bias = random_floats((size_t)s.n_out, 1);
    s.other = random_floats((size_t)s.n_out * N_IN, 1);
    s.factors = random_floats((size_t)s.n_out, 1);
    s.shifts = random_floats((size_t)s.n_out, 1);
    memcpy(s.parts, is_gate_up ? GATE_UP_SHAPES : SHAPES, sizeof SHAPES);
    memcpy(s.n_parts, is_gate_up ? N_GATE_UP_PARTS : N_PARTS, sizeof N_PARTS);
    for (int a = 0; a < N_ADAPTERS; a++) {
        for (int p = 0; p < s.n_parts[a]; p++) {
            struct lora_part *part = &s.parts[a][p];
            part->a = random_floats((size_t)part->rank * N_IN, 1);
            part->b = random_floats((size_t)part->rank * (size_t)part->n_out, 1);
        }
    }
    for (int r = 0; r < ROWS; r++)
        s.adapters[r] = r * 7 % 4 - 1; /* -1..2 */
    return s;
}

static void setup_clear(struct setup *s)
{
    for (int a = 0; a < N_ADAPTERS; a++) {
        for (int p = 0; p < s->n_parts[a]; p++) {
            free((void *)(uintptr_t)s->parts[a][p].a);
            free((void *)(uintptr_t)s->parts[a][p].b);
        }
    }
    free(s->x);
    free(s->w);
    free(s->bias);
    free(s->other);
    free(s->factors);
    free(s->shifts);
}

static struct matrix *pack(struct backend *be, const struct setup *s, const float *w, const float *bias)
{
    struct matrix *m = NULL;
    struct tutti_error err;
    struct matrix_part part = { .data = w, .dtype = DTYPE_F32, .n_rows = s->n_out };
    struct matrix_source source = { .name = "m",
                                    .parts = &part,
                                    .n_parts = 1,
                                    .n_in = N_IN,
                                    .type = DTYPE_F32,
                                    .is_gate_up = s->n_out == 2 * N_FF,
                                    .biases = &bias };
    if (be->ops->matrix_new(be, &m, &source, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return m;
}

static struct backend *backend_make(int n_threads, const struct setup *s, enum dtype type,
                                    struct lora **loras)
{
    struct backend *be = device_open_small(n_threads, NULL);
    struct tutti_error err;
    for (int a = 0; a < N_ADAPTERS; a++) {
        struct lora_source source = { .n_in = N_IN,
                                      .n_out = s->n_out,
                                      .parts = s->parts[a],
                                      .n_parts = s->n_parts[a],
                                      .type = type,
                                      .factors = a == 1 ? s->factors : NULL,
                                      .shifts = a >= 1 ? s->shifts : NULL,
                                      .matrix = a == 2 ? pack(be, s, s->other, s->bias) : NULL };
        if (be->ops->lora_new(be, &loras[a], &source, &err))
            fail_msg("%s", err.text);
    }
    return be;
}

/* Sizes the backend's scratch memory, too. */
static struct matrix *matrix_make(struct backend *be, const struct setup *s, const float *bias)
{
    struct matrix *m = pack(be, s, s->w, bias);
    struct tutti_error err;
    if (be->ops->reserve(be, ROWS, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return m;
}

static void backend_clear(struct backend *be, struct lora **loras)
{
    for (int a = 0; a < N_ADAPTERS; a++)
        be->ops->lora_free(be, loras[a]);
    be->ops->free(be);
}

/* The update of one output of one row, in double precision. */
static double update_of(const struct setup *s, int row, int column)
{
    double sum = 0;
    int adapter = s->adapters[row];
    for (int p = 0; adapter >= 0 && p < s->n_parts[adapter]; p++) {
        const struct lora_part *part = &s->parts[adapter][p];
        int j = column - part->out_begin;
        for (int i = 0; j >= 0 && j < part->n_out && i < part->rank; i++) {
            double t = 0;
            for (int k = 0; k < N_IN; k++)
                t += (double)part->a[i * N_IN + k] * (double)s->x[row * N_IN + k];
            sum += (double)part->scale * t * (double)part->b[j * part->rank + i];
        }
    }
    return sum;
}

/* y [n_rows][n_out] of rows from first on. */
static void run_some(struct backend *be, const struct setup *s, const struct matrix *m,
                     struct lora *const *loras, int first, int n_rows, float *y)
{
    const struct lora *const *all = (const struct lora *const *)loras;
    bool is_glu = s->n_out == 2 * N_FF;
    size_t n_y = (size_t)(n_rows * (is_glu ? N_FF : N_OUT));
    struct floats in = device_new(be, s->x, ROWS * N_IN), out = device_new(be, NULL, n_y);
    struct floats x = floats_at(in, (size_t)(first * N_IN));
    if (is_glu)
        be->ops->linear_glu_adapted(be, out, m, x, n_rows, ACT_SILU, all, s->adapters + first);
    else
        be->ops->linear_adapted(be, out, m, x, n_rows, all, s->adapters + first);
    device_get(be, y, out, n_y);
    be->ops->dealloc(be, in);
    be->ops->dealloc(be, out);
}

/* The matrix and bias that give a row what its adapter makes of it. */
static struct matrix *changed_matrix(struct backend *be, const struct setup *s, int row)
{
    int adapter = s->adapters[row];
    float *w = malloc((size_t)s->n_out * N_IN * sizeof *w), *bias = malloc((size_t)s->n_out * sizeof *bias);
    assert_non_null(w);
    assert_non_null(bias);
    for (int j = 0; j < s->n_out; j++) {
        float factor = adapter == 1 ? s->factors[j] : 1, shift = adapter >= 1 ? s->shifts[j] : 0;
        for (int k = 0; k < N_IN; k++)
            w[j * N_IN + k] = adapter == 2 ? s->other[j * N_IN + k] : factor * s->w[j * N_IN + k];
        bias[j] = factor * s->bias[j] + shift + (float)update_of(s, row, j);
    }
    struct matrix *m = pack(be, s, w, bias);
    free(w);
    free(bias);
    return m;
}

static void each_row_gets_the_update_of_its_adapter(void **state)
{
    (void)state;
    struct setup s = setup_make(false);
    float got[ROWS * N_OUT], plain[ROWS * N_OUT];
    for (int turn = 0; turn < 2; turn++) {
        struct lora *loras[N_ADAPTERS];
        struct backend *be = backend_make(2, &s, turn ? DTYPE_F16 : DTYPE_F32, loras);
        struct matrix *m = matrix_make(be, &s, s.bias);
        double bound = turn ? 0.02 : 1e-4; /* of sums of up to 70 * 96 products of the order of one */
        struct floats in = device_new(be, s.x, ROWS * N_IN), out = device_new(be, NULL, ROWS * N_OUT);
        be->ops->linear(be, out, m, in, ROWS);
        device_get(be, plain, out, ROWS * N_OUT);
        be->ops->dealloc(be, in);
        be->ops->dealloc(be, out);
        run_some(be, &s, m, loras, 0, ROWS, got);
        for (int r = 0; r < ROWS; r++) {
            float want[N_OUT];
            struct matrix *changed = changed_matrix(be, &s, r);
            in = device_new(be, s.x + r * N_IN, N_IN);
            out = device_new(be, NULL, N_OUT);
            be->ops->linear(be, out, changed, in, 1);
            device_get(be, want, out, N_OUT);
            be->ops->dealloc(be, in);
            be->ops->dealloc(be, out);
            be->ops->matrix_free(be, changed);
            if (s.adapters[r] < 0)
                assert_memory_equal(got + r * N_OUT, plain + r * N_OUT, sizeof want);
            for (int j = 0; j < N_OUT; j++)
                assert_true(fabs((double)got[r * N_OUT + j] - (double)want[j]) <= bound);
        }
        be->ops->matrix_free(be, m);
        backend_clear(be, loras);
    }
    setup_clear(&s);
}

/* Multiplies each rank's row of A by a power of two, and divides its column of B by it. */
static void move_scales(struct setup *s)
{
    static const int EXPONENTS[] = { 0, 12, -12, 30, -30 };
    for (int a = 0; a < N_ADAPTERS; a++) {
        for (int p = 0; p < s->n_parts[a]; p++) {
            const struct lora_part *part = &s->parts[a][p];
            float *row = (float *)(uintptr_t)part->a, *column = (float *)(uintptr_t)part->b;
            for (int i = 0; i < part->rank; i++, row += N_IN, column++) {
                for (int k = 0; k < N_IN; k++)
                    row[k] = ldexpf(row[k], EXPONENTS[i % 5]);
                for (int j = 0; j < part->n_out; j++)
                    column[j * part->rank] = ldexpf(column[j * part->rank], -EXPONENTS[i % 5]);
            }
        }
    }
}

static void where_a_rank_has_its_scale_changes_no_bit(void **state)
{
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        struct setup s = setup_make(false);
        float want[ROWS * N_OUT], got[ROWS * N_OUT];
        for (int is_moved = 0; is_moved < 2; is_moved++) {
            struct lora *loras[N_ADAPTERS];
            struct backend *be = backend_make(2, &s, turn ? DTYPE_F16 : DTYPE_F32, loras);
            struct matrix *m = matrix_make(be, &s, s.bias);
            run_some(be, &s, m, loras, 0, ROWS, is_moved ? got : want);
            be->ops->matrix_free(be, m);
            backend_clear(be, loras);
            move_scales(&s);
        }
        assert_memory_equal(got, want, sizeof got);
        setup_clear(&s);
    }
}

static void the_bits_of_a_row_do_not_depend_on_the_others_or_on_threads(void **state)
{
    (void)state;
    static float want[ROWS * N_OUT], got[ROWS * N_OUT];
    for (int turn = 0; turn < 16; turn++) {
        bool is_gate_up = turn >= 8;
        struct setup s = setup_make(is_gate_up);
        int width = is_gate_up ? N_FF : N_OUT;
        struct lora *loras[N_ADAPTERS];
        struct backend *one = backend_make(1, &s, turn % 2 ? DTYPE_F32 : DTYPE_F16, loras), *be;
        struct matrix *m = matrix_make(one, &s, s.bias);
        run_some(one, &s, m, loras, 0, ROWS, want);
        one->ops->matrix_free(one, m);
        backend_clear(one, loras);
        be = backend_make(1 + turn % 8 / 2, &s, turn % 2 ? DTYPE_F32 : DTYPE_F16, loras);
        m = matrix_make(be, &s, s.bias);
        for (int n_rows = ROWS; n_rows > 0; n_rows -= 4) {
            for (int first = 0; first + n_rows <= ROWS; first += 3) {
                run_some(be, &s, m, loras, first, n_rows, got);
                assert_memory_equal(got, want + first * width, (size_t)(n_rows * width) * sizeof *got);
            }
        }
        be->ops->matrix_free(be, m);
        backend_clear(be, loras);
        setup_clear(&s);
    }
}

static void updates_of_gate_and_up_come_before_the_activation(void **state)
{
    (void)state;
    struct setup s = setup_make(true);
    struct lora *loras[N_ADAPTERS];
    struct backend *be = backend_make(3, &s, DTYPE_F32, loras);
    struct matrix *m = matrix_make(be, &s, s.bias);
    float plain[ROWS * N_FF], got[ROWS * N_FF], want[N_FF];
    struct floats in = device_new(be, s.x, ROWS * N_IN), out = device_new(be, NULL, ROWS * N_FF);
    be->ops->linear_glu(be, out, m, in, ROWS, ACT_SILU);
    device_get(be, plain, out, ROWS * N_FF);
    run_some(be, &s, m, loras, 0, ROWS, got);
    for (int r = 0; r < ROWS; r++) {
        struct matrix *other = changed_matrix(be, &s, r);
        be->ops->linear_glu(be, out, other, floats_at(in, (size_t)(r * N_IN)), 1, ACT_SILU);
        device_get(be, want, out, N_FF);
        be->ops->matrix_free(be, other);
        for (int j = 0; j < N_FF; j++)
            assert_true(fabs((double)got[r * N_FF + j] - (double)want[j]) <=
                        1e-5 * (1 + fabs((double)want[j])) * 10);
        if (s.adapters[r] < 0)
            assert_memory_equal(got + r * N_FF, plain + r * N_FF, sizeof want);
    }
    be->ops->dealloc(be, in);
    be->ops->dealloc(be, out);
    be->ops->matrix_free(be, m);
    backend_clear(be, loras);
    setup_clear(&s);
}

/* Those of DoRA, of the weights as they are packed. */
static void lengths_of_rows_are_those_of_the_sum(void **state)
{
    (void)state;
    static const enum dtype TYPES[] = { DTYPE_F32, DTYPE_Q8_0 };
    for (int turn = 0; turn < 4; turn++) {
        struct setup s = setup_make(turn >= 2);
        struct lora *loras[N_ADAPTERS];
        struct backend *be = backend_make(1 + turn, &s, DTYPE_F32, loras);
        struct matrix_part rows = { .data = s.w, .dtype = DTYPE_F32, .n_rows = s.n_out };
        struct matrix_source source = { .name = "m",
                                        .parts = &rows,
                                        .n_parts = 1,
                                        .n_in = N_IN,
                                        .type = TYPES[turn % 2],
                                        .is_gate_up = turn >= 2 };
        const struct lora_part *part = &s.parts[1][1];
        struct matrix *m;
        float lengths[N_OUT], row[N_IN];
        assert_int_equal(be->ops->matrix_new(be, &m, &source, NULL), TUTTI_OK);
        assert_true(be->ops->matrix_lengths(be, lengths, m, part));
        for (int j = 0; j < part->n_out; j++) {
            double square = 0, error = 0;
            assert_true(be->ops->matrix_read(be, row, m, part->out_begin + j) == 0);
            for (int k = 0; k < N_IN; k++) {
                double x = (double)row[k];
                error = fmax(error, fabs(x - (double)s.w[(part->out_begin + j) * N_IN + k]));
                for (int i = 0; i < part->rank; i++)
                    x += (double)part->scale * (double)part->b[j * part->rank + i] *
                         (double)part->a[i * N_IN + k];
                square += x * x;
            }
            assert_true(TYPES[turn % 2] == DTYPE_F32 ? error == 0 : error > 0 && error < 0.01);
            assert_true(fabs((double)lengths[j] - sqrt(square)) <= 1e-5 * sqrt(square));
        }
        be->ops->matrix_free(be, m);
        backend_clear(be, loras);
        setup_clear(&s);
    }
}

/* Equal checksums mean equal results: every number of the factors counts, also those of the last, partly filled block. */
static void a_checksum_sees_every_number(void **state)
{
    (void)state;
    static const enum dtype TYPES[] = { DTYPE_F32, DTYPE_F16 };
    for (int t = 0; t < 2; t++) {
        struct setup s = setup_make(false);
        struct lora *loras[N_ADAPTERS];
        struct backend *be = backend_make(1, &s, TYPES[t], loras);
        uint64_t sum = be->ops->lora_checksum(be, loras[0]);
        backend_clear(be, loras);
        struct lora_part *part = &s.parts[0][0];
        for (int i = 0; i < N_OUT * part->rank; i += 7) {
            float *b = (float *)(uintptr_t)part->b + i;
            *b = -*b;
            be = backend_make(1, &s, TYPES[t], loras);
            assert_true(be->ops->lora_checksum(be, loras[0]) != sum);
            backend_clear(be, loras);
            *b = -*b;
        }
        setup_clear(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_row_gets_the_update_of_its_adapter),
        cmocka_unit_test(where_a_rank_has_its_scale_changes_no_bit),
        cmocka_unit_test(the_bits_of_a_row_do_not_depend_on_the_others_or_on_threads),
        cmocka_unit_test(updates_of_gate_and_up_come_before_the_activation),
        cmocka_unit_test(lengths_of_rows_are_those_of_the_sum),
        cmocka_unit_test(a_checksum_sees_every_number),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
