/* Linear layers whose rows have adapters, as operations of the backend: what adapters change of a product, matrices of their
 * own, and that rows without one are those of the plain operation. */
#include "cuda/launches.h"

#include "backend/cuda/adapters/cuda_lora.h"
#include "backend/cuda/cuda_matrix.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = 72, N_IN = 40, N_OUT = 48, RANK = 5, N_LORAS = 4 };

static uint64_t random_state = 5;

static float draw(void)
{
    random_state = random_state * 6364136223846793005 + 1442695040888963407;
    return (float)((int32_t)(random_state >> 32)) / 2147483648.0f;
}

static float *draw_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = draw();
    return x;
}

/* A matrix, and adapters 0: an update; 1: a matrix of its own and an update; 2: factors and shifts; 3: a matrix only. */
static struct layer {
    struct cuda_backend *cuda;
    bool is_glu;
    float *weights[3]; /* the model's; of adapters 1 and 3 */
    struct matrix *m;
    struct lora_part parts[2];
    float *factors, *shifts, *x;
    struct lora *loras[N_LORAS];
} layer;

/* What the operations call of the table. */
static const struct backend_ops OPS = { .matrix_free = cuda_matrix_free,
                                        .matrix_bytes = cuda_matrix_bytes,
                                        .linear = cuda_linear,
                                        .linear_glu = cuda_linear_glu };

static struct matrix *pack(const float *weights, bool is_glu)
{
    const struct matrix_part part = { weights, DTYPE_F32, N_OUT, 0 };
    const struct matrix_source source = {
        .name = "layer", .parts = &part, .n_parts = 1, .n_in = N_IN, .type = DTYPE_F32, .is_gate_up = is_glu
    };
    struct matrix *m = NULL;
    assert_int_equal(cuda_matrix_new(&layer.cuda->backend, &m, &source, NULL), TUTTI_OK);
    return m;
}

static void add_lora(int i, const struct lora_part *part, const float *factors, const float *shifts,
                     struct matrix *m)
{
    const struct lora_source source = { .n_in = N_IN,
                                        .n_out = N_OUT,
                                        .parts = part,
                                        .n_parts = part ? 1 : 0,
                                        .type = DTYPE_F32,
                                        .factors = factors,
                                        .shifts = shifts,
                                        .matrix = m };
    assert_int_equal(cuda_lora_new(&layer.cuda->backend, &layer.loras[i], &source, NULL), TUTTI_OK);
}

static void open_layer(bool is_glu)
{
    layer = (struct layer){ .cuda = launches_new(MAX_ROWS), .is_glu = is_glu };
    layer.cuda->backend.ops = &OPS;
    assert_int_equal(team_new(&layer.cuda->team, &(struct team_options){ .n_threads = 1 }, NULL), TUTTI_OK);
    for (int i = 0; i < 3; i++)
        layer.weights[i] = draw_floats(N_OUT * N_IN);
    for (int i = 0; i < 2; i++)
        layer.parts[i] = (struct lora_part){ .out_begin = 4 * i,
                                             .n_out = N_OUT - 4 * i,
                                             .rank = RANK - i,
                                             .scale = 0.5f,
                                             .a = draw_floats(RANK * N_IN),
                                             .b = draw_floats(N_OUT * RANK) };
    layer.factors = draw_floats(N_OUT);
    layer.shifts = draw_floats(N_OUT);
    layer.x = draw_floats(MAX_ROWS * N_IN);
    layer.m = pack(layer.weights[0], is_glu);
    add_lora(0, &layer.parts[0], NULL, NULL, NULL);
    add_lora(1, &layer.parts[1], NULL, NULL, pack(layer.weights[1], is_glu));
    add_lora(2, NULL, layer.factors, layer.shifts, NULL);
    add_lora(3, NULL, NULL, NULL, pack(layer.weights[2], is_glu));
    assert_true(cuda_linear_reserve(layer.cuda, MAX_ROWS) && cuda_adapters_reserve(layer.cuda, MAX_ROWS) &&
                cuda_lora_reserve(layer.cuda, MAX_ROWS));
}

static void close_layer(void)
{
    for (int i = 0; i < N_LORAS; i++)
        cuda_lora_free(&layer.cuda->backend, layer.loras[i]);
    cuda_matrix_free(&layer.cuda->backend, layer.m);
    cuda_lora_release(layer.cuda);
    cuda_adapters_release(layer.cuda);
    cuda_linear_release(layer.cuda);
    team_free(layer.cuda->team);
    for (int i = 0; i < 3; i++)
        free(layer.weights[i]);
    for (int i = 0; i < 2; i++) {
        free((void *)layer.parts[i].a);
        free((void *)layer.parts[i].b);
    }
    free(layer.factors);
    free(layer.shifts);
    free(layer.x);
}

/* Rows first to first + n - 1; adapters [n], NULL: the plain operation. */
static void run(float *y, int first, int n, const int32_t *adapters)
{
    struct backend *be = &layer.cuda->backend;
    int n_columns = layer.is_glu ? N_OUT / 2 : N_OUT;
    struct floats x = launches_floats(NULL, MAX_ROWS * N_IN),
                  out = launches_floats(NULL, (size_t)(MAX_ROWS * n_columns));
    const struct lora *const *loras = (const struct lora *const *)layer.loras;
    memcpy(x.buffer->data, layer.x + first * N_IN, (size_t)(n * N_IN) * sizeof *y);
    if (layer.is_glu && adapters)
        cuda_linear_glu_adapted(be, out, layer.m, x, n, ACT_SILU, loras, adapters);
    else if (layer.is_glu)
        cuda_linear_glu(be, out, layer.m, x, n, ACT_SILU);
    else if (adapters)
        cuda_linear_adapted(be, out, layer.m, x, n, loras, adapters);
    else
        cuda_linear(be, out, layer.m, x, n);
    memcpy(y, out.buffer->data, (size_t)(n * n_columns) * sizeof *y);
}

/* Output j of a row, before an activation. */
static double output_of(int row, int adapter, int j)
{
    const float *x = layer.x + row * N_IN, *w = layer.weights[adapter == 1   ? 1
                                                              : adapter == 3 ? 2
                                                                             : 0] +
                                                j * N_IN;
    double y = 0;
    for (int k = 0; k < N_IN; k++)
        y += (double)w[k] * (double)x[k];
    if (adapter == 2)
        y = y * (double)layer.factors[j] + (double)layer.shifts[j];
    if (adapter != 0 && adapter != 1)
        return y;
    const struct lora_part *part = &layer.parts[adapter];
    for (int i = 0; i < part->rank && j >= part->out_begin; i++) {
        double sum = 0;
        for (int k = 0; k < N_IN; k++)
            sum += (double)part->a[i * N_IN + k] * (double)x[k];
        y += (double)part->scale * (double)part->b[(j - part->out_begin) * part->rank + i] * sum;
    }
    return y;
}

static double want_of(int row, int adapter, int j)
{
    double y = output_of(row, adapter, j);
    return layer.is_glu ? y / (1 + exp(-y)) * output_of(row, adapter, N_OUT / 2 + j) : y;
}

static void check(int n, const int32_t *adapters)
{
    enum { MAX_FLOATS = MAX_ROWS * N_OUT };
    float y[MAX_FLOATS], plain[MAX_FLOATS], single[N_OUT];
    int n_columns = layer.is_glu ? N_OUT / 2 : N_OUT;
    size_t n_bytes = (size_t)n_columns * sizeof *y;
    run(y, 0, n, adapters);
    run(plain, 0, n, NULL);
    for (int r = 0; r < n; r++) {
        const float *row = y + r * n_columns;
        for (int j = 0; j < n_columns; j++) {
            double want = want_of(r, adapters[r], j);
            assert_true(fabs((double)row[j] - want) <= 2e-5 * (1 + fabs(want)));
        }
        if (adapters[r] < 0)
            assert_memory_equal(row, plain + r * n_columns, n_bytes);
        run(single, r, 1, adapters + r);
        assert_memory_equal(row, single, n_bytes);
    }
}

static void check_mixtures(bool is_glu)
{
    static const int32_t none[] = { -1, -1, -1 }, same[] = { 1, 1, 1, 1, 1 }, only_matrix[] = { 3, -1, 3 };
    int32_t mixed[MAX_ROWS];
    open_layer(is_glu);
    for (int r = 0; r < MAX_ROWS; r++)
        mixed[r] = r % 7 < 5 ? r % 5 - 1 : 2;
    check(3, none);
    check(5, same);
    check(3, only_matrix);
    check(11, mixed);
    check(70, mixed);
    check(3, none);
    close_layer();
}

static void rows_have_what_their_adapters_change(void **state)
{
    (void)state;
    check_mixtures(false);
}

static void gate_and_up_are_changed_before_the_activation(void **state)
{
    (void)state;
    check_mixtures(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_what_their_adapters_change),
        cmocka_unit_test(gate_and_up_are_changed_before_the_activation),
    };
    return cmocka_run_group_tests(tests, NULL, launches_clear);
}
