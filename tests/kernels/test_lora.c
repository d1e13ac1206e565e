/* Tests of the CPU backend's low-rank updates: against float64, and a row's bits depend on that row alone. */
#include "backend/backend.h"
#include "kernels/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 21, N_IN = 96, N_OUT = 203, N_ADAPTERS = 3, MAX_PARTS = 2 };

/* Adapter 1 leaves columns 100..149 alone; adapter 2 has no update. */
static const struct lora_part SHAPES[N_ADAPTERS][MAX_PARTS] = {
    { { .out_begin = 0, .n_out = N_OUT, .rank = 8, .scale = 2 } },
    { { .out_begin = 0, .n_out = 100, .rank = 5, .scale = 0.5f },
      { .out_begin = 150, .n_out = 53, .rank = 70, .scale = 1 } },
};
static const int N_PARTS[N_ADAPTERS] = { 1, 2, 0 };

static uint64_t random_state = 88172645463325252u;

static float *random_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        x[i] = (float)(int32_t)(random_state >> 32) * 0x1p-31f;
    }
    return x;
}

struct setup {
    struct lora_part parts[N_ADAPTERS][MAX_PARTS];
    float *x, *y; /* [ROWS][N_IN], [ROWS][N_OUT] */
    int32_t adapters[ROWS];
};

static struct setup setup_make(void)
{
    struct setup s = { .x = random_floats(ROWS * N_IN), .y = random_floats(ROWS * N_OUT) };
    memcpy(s.parts, SHAPES, sizeof SHAPES);
    for (int a = 0; a < N_ADAPTERS; a++) {
        for (int p = 0; p < N_PARTS[a]; p++) {
            struct lora_part *part = &s.parts[a][p];
            part->a = random_floats((size_t)part->rank * N_IN);
            part->b = random_floats((size_t)part->rank * (size_t)part->n_out);
        }
    }
    for (int r = 0; r < ROWS; r++)
        s.adapters[r] = r * 7 % 4 - 1; /* -1..2 */
    return s;
}

static void setup_clear(struct setup *s)
{
    for (int a = 0; a < N_ADAPTERS; a++) {
        for (int p = 0; p < N_PARTS[a]; p++) {
            free((void *)(uintptr_t)s->parts[a][p].a);
            free((void *)(uintptr_t)s->parts[a][p].b);
        }
    }
    free(s->x);
    free(s->y);
}

static struct backend *backend_make(int n_threads, const struct setup *s, enum dtype type,
                                    struct lora **loras)
{
    struct backend *be = NULL;
    struct tutti_error err;
    struct backend_options options = { .n_threads = n_threads,
                                       .attention = { .n_layers = 1,
                                                      .n_heads = 1,
                                                      .n_kv_heads = 1,
                                                      .head_dim = 8,
                                                      .rope = ROPE_NONE,
                                                      .scale = 1 } };
    if (backend_cpu_new(&be, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    for (int a = 0; a < N_ADAPTERS; a++) {
        loras[a] = NULL;
        if (N_PARTS[a] > 0 &&
            be->ops->lora_new(be, &loras[a], s->parts[a], N_PARTS[a], N_IN, N_OUT, type, &err))
            fail_msg("%s", err.text);
    }
    if (be->ops->reserve(be, ROWS, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return be;
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
    for (int p = 0; adapter >= 0 && p < N_PARTS[adapter]; p++) {
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

static void each_row_gets_the_update_of_its_adapter(void **state)
{
    (void)state;
    struct setup s = setup_make();
    struct lora *loras[N_ADAPTERS];
    struct backend *be = NULL;
    for (int turn = 0; turn < 4; turn++) {
        bool is_new = turn % 2 != 0, is_half = turn >= 2;
        if (turn % 2 == 0)
            be = backend_make(2, &s, is_half ? DTYPE_F16 : DTYPE_F32, loras);
        double bound = is_half ? 0.02 : 1e-4; /* of sums of up to 70 * 96 products of the order of one */
        float got[ROWS * N_OUT];
        memcpy(got, s.y, sizeof got);
        be->ops->lora(be, got, (const struct lora *const *)loras, s.adapters, s.x, ROWS, is_new);
        for (int r = 0; r < ROWS; r++) {
            bool has_update = s.adapters[r] == 0 || s.adapters[r] == 1;
            for (int j = 0; j < N_OUT; j++) {
                float before = s.y[r * N_OUT + j], now = got[r * N_OUT + j];
                if (!has_update)
                    assert_memory_equal(&now, &before, sizeof now);
                else
                    assert_true(fabs((double)now - update_of(&s, r, j) - (is_new ? 0 : (double)before)) <=
                                bound);
            }
        }
        if (turn % 2 != 0)
            backend_clear(be, loras);
    }
    setup_clear(&s);
}

static void the_bits_of_a_row_do_not_depend_on_the_others_or_on_threads(void **state)
{
    (void)state;
    struct setup s = setup_make();
    float want[ROWS * N_OUT], got[ROWS * N_OUT];
    for (int turn = 0; turn < 8; turn++) {
        int n_threads = 1 + turn % 4;
        struct lora *loras[N_ADAPTERS];
        struct backend *be = backend_make(n_threads, &s, turn < 4 ? DTYPE_F32 : DTYPE_F16, loras);
        for (int n_rows = ROWS; n_rows > 0; n_rows -= 4) {
            for (int first = 0; first + n_rows <= ROWS; first += 3) {
                float *y = n_threads == 1 && n_rows == ROWS ? want : got;
                memcpy(y, s.y + first * N_OUT, (size_t)(n_rows * N_OUT) * sizeof *y);
                be->ops->lora(be, y, (const struct lora *const *)loras, s.adapters + first,
                              s.x + first * N_IN, n_rows, false);
                assert_memory_equal(y, want + first * N_OUT, (size_t)(n_rows * N_OUT) * sizeof *y);
            }
        }
        backend_clear(be, loras);
    }
    setup_clear(&s);
}

static struct matrix *gate_up_make(struct backend *be, const float *values, const float *bias)
{
    struct matrix *m = NULL;
    struct tutti_error err;
    struct matrix_part part = { .data = values, .dtype = DTYPE_F32, .n_rows = 74 };
    struct matrix_source source = { .name = "m",
                                    .parts = &part,
                                    .n_parts = 1,
                                    .n_in = N_IN,
                                    .type = DTYPE_F32,
                                    .is_gate_up = true,
                                    .biases = &bias };
    if (be->ops->matrix_new(be, &m, &source, &err) != TUTTI_OK ||
        be->ops->reserve(be, ROWS, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return m;
}

static void updates_of_gate_and_up_come_before_the_activation(void **state)
{
    (void)state;
    enum { N_GATE_UP = 74, N_FF = 37 };
    struct setup s = setup_make();
    struct lora *loras[N_ADAPTERS];
    struct backend *be = backend_make(3, &s, DTYPE_F32, loras);
    float *values = random_floats(N_GATE_UP * N_IN), *bias = random_floats(N_GATE_UP);
    float *add = random_floats(ROWS * N_GATE_UP), *shifted = random_floats(N_GATE_UP);
    struct matrix *m = gate_up_make(be, values, bias);
    float plain[ROWS * N_FF], got[ROWS * N_FF], want[N_FF];
    bool adds[ROWS];
    for (int r = 0; r < ROWS; r++)
        adds[r] = r % 3 == 1;
    be->ops->linear_glu(be, plain, m, s.x, ROWS, ACT_SILU);
    be->ops->linear_glu_add(be, got, m, s.x, add, adds, ROWS, ACT_SILU);
    for (int r = 0; r < ROWS; r++) {
        for (int j = 0; j < N_GATE_UP; j++)
            shifted[j] = bias[j] + (adds[r] ? add[r * N_GATE_UP + j] : 0);
        struct matrix *other = gate_up_make(be, values, shifted); /* the same through its bias */
        be->ops->linear_glu(be, want, other, s.x + r * N_IN, 1, ACT_SILU);
        be->ops->matrix_free(be, other);
        for (int j = 0; j < N_FF; j++)
            assert_float_equal(got[r * N_FF + j], want[j], 1e-5);
        if (!adds[r])
            assert_memory_equal(got + r * N_FF, plain + r * N_FF, sizeof want);
    }
    be->ops->matrix_free(be, m);
    backend_clear(be, loras);
    setup_clear(&s);
    free(values);
    free(bias);
    free(add);
    free(shifted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_row_gets_the_update_of_its_adapter),
        cmocka_unit_test(the_bits_of_a_row_do_not_depend_on_the_others_or_on_threads),
        cmocka_unit_test(updates_of_gate_and_up_come_before_the_activation),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
