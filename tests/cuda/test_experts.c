/* Mixtures of experts on the card, by the emulator: against the router of kernels/route.c and products in double, for rows
 * by itself and among others. */
#include "cuda/launches.h"

#include "backend/cuda/cuda_matrix.h"
#include "backend/cuda/experts/cuda_experts.h"
#include "kernels/quantize/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = 72, MAX_EXPERTS = 10, MAX_CHOSEN = 3, MAX_WIDTH = 512 };

static int level;

static uint64_t random_state = 11;

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

/* A layer of experts on the card, and its values. */
struct mixture {
    enum dtype type;
    int d_model, d_ff, n_scores;
    struct routing routing;
    enum activation activation;
    bool has_base, gates_base, has_order;
    float *gate_up, *down,
        *bias; /* [experts][2 d_ff][d_model], [experts][d_model][d_ff], [experts][2 d_ff] or NULL */
    uint8_t *stored_gate_up, *stored_down;
    float *x, *scores, *base; /* [MAX_ROWS][...] */
    uint16_t *order;          /* [experts][d_model]: of gate and up; NULL: none */
};

static uint8_t *store(float *values, enum dtype type, size_t n)
{
    size_t n_bytes;
    assert_true(dtype_bytes(type, (int64_t)n, &n_bytes));
    uint8_t *stored = malloc(n_bytes);
    assert_non_null(stored);
    quantize(stored, values, type, (int64_t)n);
    dequantize(values, stored, type, (int64_t)n);
    return stored;
}

/* The stored column c is that of element order[c] of a row. */
static void put_in_order(struct mixture *m)
{
    int d = m->d_model, n_rows = 2 * m->d_ff;
    float row[MAX_WIDTH];
    m->order = malloc((size_t)(m->routing.n_experts * d) * sizeof *m->order);
    for (int e = 0; e < m->routing.n_experts; e++) {
        uint16_t *order = m->order + e * d;
        for (int c = 0; c < d; c++)
            order[c] = (uint16_t)((c * 5 + e) % d); /* d is no multiple of 5 */
        for (int r = 0; r < n_rows; r++) {
            float *at = m->gate_up + ((size_t)e * (size_t)n_rows + (size_t)r) * (size_t)d;
            memcpy(row, at, (size_t)d * sizeof *row);
            for (int c = 0; c < d; c++)
                at[order[c]] = row[c];
        }
    }
}

static void fill(struct mixture *m)
{
    size_t n_experts = (size_t)m->routing.n_experts, d = (size_t)m->d_model, f = (size_t)m->d_ff;
    m->n_scores = m->routing.n_experts + m->gates_base;
    m->gate_up = draw_floats(n_experts * 2 * f * d);
    m->down = draw_floats(n_experts * d * f);
    m->stored_gate_up = store(m->gate_up, m->type, n_experts * 2 * f * d);
    m->stored_down = store(m->down, m->type, n_experts * d * f);
    m->bias = m->activation == ACT_SILU_CLAMPED ? draw_floats(n_experts * 2 * f) : NULL;
    if (m->has_order)
        put_in_order(m);
    m->x = draw_floats(MAX_ROWS * d);
    m->base = draw_floats(MAX_ROWS * d);
    m->scores = draw_floats((size_t)(MAX_ROWS * m->n_scores));
    for (int r = 0; r < MAX_ROWS; r++) { /* no row uses expert 1; few use the last */
        m->scores[r * m->n_scores + 1] = -9;
        m->scores[r * m->n_scores + m->routing.n_experts - 1] -= r % 8 == 7 ? 0 : 3;
    }
}

static void clear(struct mixture *m)
{
    free(m->gate_up);
    free(m->down);
    free(m->bias);
    free(m->stored_gate_up);
    free(m->stored_down);
    free(m->x);
    free(m->scores);
    free(m->base);
    free(m->order);
}

static struct matrix *pack(struct cuda_backend *cuda, const struct mixture *m, bool is_gate_up)
{
    const float *biases[MAX_EXPERTS];
    const uint16_t *orders[MAX_EXPERTS];
    struct matrix_part parts[MAX_EXPERTS];
    int n_experts = m->routing.n_experts, n_in = is_gate_up ? m->d_model : m->d_ff;
    int n_out = is_gate_up ? 2 * m->d_ff : m->d_model;
    size_t n_bytes;
    assert_true(dtype_bytes(m->type, (int64_t)n_in * n_out, &n_bytes));
    for (int e = 0; e < n_experts; e++) {
        const uint8_t *stored = is_gate_up ? m->stored_gate_up : m->stored_down;
        parts[e] = (struct matrix_part){ stored + (size_t)e * n_bytes, m->type, n_out, 0 };
        biases[e] = m->bias ? m->bias + e * n_out : NULL;
        orders[e] = m->order ? m->order + e * n_in : NULL;
    }
    struct matrix_source source = { .name = "experts",
                                    .parts = parts,
                                    .n_parts = n_experts,
                                    .n_in = n_in,
                                    .type = m->type,
                                    .is_gate_up = is_gate_up,
                                    .n_experts = n_experts,
                                    .n_chosen = m->routing.n_chosen,
                                    .biases = is_gate_up && m->bias ? biases : NULL,
                                    .orders = is_gate_up && m->order ? orders : NULL };
    struct matrix *packed = NULL;
    struct tutti_error err;
    if (cuda_matrix_new(&cuda->backend, &packed, &source, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return packed;
}

/* ---- in double ---- */

static double join(enum activation activation, double gate, double up)
{
    if (activation == ACT_SILU)
        return gate / (1 + exp(-gate)) * up;
    gate = fmin(gate, 7);
    return gate / (1 + exp(-1.702 * gate)) * (fmin(fmax(up, -7), 7) + 1);
}

static double dot(const float *w, const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)w[i] * x[i];
    return sum;
}

/* used [experts]: is set for the experts of the row. */
static void compute(const struct mixture *m, int row, double *y, bool *used)
{
    int d = m->d_model, f = m->d_ff;
    struct kernels k;
    float scores[MAX_EXPERTS + 1], weights[MAX_CHOSEN];
    int32_t ids[MAX_CHOSEN];
    double x[MAX_WIDTH], hidden[MAX_WIDTH];
    memcpy(scores, m->scores + row * m->n_scores, (size_t)m->n_scores * sizeof *scores);
    kernels_init(&k, CPU_REF);
    route_row(&k, &m->routing, NULL, NULL, scores, ids, weights);
    for (int i = 0; i < d; i++) {
        x[i] = (double)m->x[row * d + i];
        y[i] = m->has_base ? (double)m->base[row * d + i] : 0;
        if (m->gates_base)
            y[i] /= 1 + exp(-(double)m->scores[row * m->n_scores + m->routing.n_experts]);
    }
    for (int c = 0; c < m->routing.n_chosen; c++) {
        const float *gate_up = m->gate_up + (size_t)ids[c] * 2 * (size_t)(f * d);
        const float *down = m->down + (size_t)ids[c] * (size_t)(f * d);
        const float *bias = m->bias ? m->bias + ids[c] * 2 * f : NULL;
        used[ids[c]] = true;
        for (int j = 0; j < f; j++) {
            double gate = dot(gate_up + j * d, x, d) + (bias ? (double)bias[j] : 0);
            double up = dot(gate_up + (f + j) * d, x, d) + (bias ? (double)bias[f + j] : 0);
            hidden[j] = join(m->activation, gate, up);
        }
        for (int i = 0; i < d; i++)
            y[i] += (double)weights[c] * dot(down + i * f, hidden, f);
    }
}

/* ---- on the card ---- */

struct layer {
    struct cuda_backend *cuda;
    struct matrix *gate_up, *down;
};

static struct floats on_card(const float *values, int n_rows, int n)
{
    struct floats floats = launches_floats(NULL, (size_t)(MAX_ROWS * n));
    memcpy(floats.buffer->data, values, (size_t)(n_rows * n) * sizeof *values);
    return floats;
}

/* Rows first to first + n - 1 as one step; y: [n][d_model]. */
static void run(const struct layer *l, const struct mixture *m, int first, int n, float *y)
{
    static struct step_counts counts;
    const struct expert_layer layer = { .gate_up = l->gate_up,
                                        .down = l->down,
                                        .routing = &m->routing,
                                        .activation = m->activation,
                                        .has_base = m->has_base,
                                        .gates_base = m->gates_base };
    int d = m->d_model;
    struct floats x = on_card(m->x + first * d, n, d), out = on_card(m->base + first * d, n, d);
    struct floats scores = on_card(m->scores + first * m->n_scores, n, m->n_scores);
    counts.n_rows = n;
    l->cuda->rows.counts = &counts;
    cuda_experts(&l->cuda->backend, out, &layer, x, scores, n);
    memcpy(y, out.buffer->data, (size_t)(n * d) * sizeof *y);
}

static void check_rows(const struct layer *l, const struct mixture *m, int n_rows, double tolerance)
{
    int d = m->d_model, n_used = 0;
    bool used[MAX_EXPERTS] = { false };
    float *y = malloc((size_t)(n_rows * d) * sizeof *y), single[MAX_WIDTH];
    uint64_t before = cuda_expert_bytes_read(&l->cuda->backend);
    assert_non_null(y);
    run(l, m, 0, n_rows, y);
    uint64_t n_read = cuda_expert_bytes_read(&l->cuda->backend) - before;
    for (int r = 0; r < n_rows; r++) {
        double want[MAX_WIDTH], most = 0;
        compute(m, r, want, used);
        for (int i = 0; i < d; i++)
            most = fmax(most, fabs(want[i]));
        for (int i = 0; i < d; i++)
            if (!(fabs((double)y[r * d + i] - want[i]) <= tolerance * most))
                fail_msg("%s, %d rows, row %d, column %d: %g, expected %g", dtype_name(m->type), n_rows, r, i,
                         (double)y[r * d + i], want[i]);
    }
    for (int e = 0; e < m->routing.n_experts; e++)
        n_used += used[e];
    assert_int_equal(n_read, (uint64_t)n_used * (cuda_expert_bytes(l->gate_up) + cuda_expert_bytes(l->down)));
    for (int r = 0; r < n_rows && n_rows > 1; r += 1 + n_rows / 4) {
        run(l, m, r, 1, single);
        assert_memory_equal(single, y + r * d, (size_t)d * sizeof *single);
    }
    free(y);
}

static void check(struct mixture m, double tolerance, const int *rows, int n)
{
    struct layer l = { .cuda = launches_new(MAX_ROWS) };
    l.cuda->level = l.cuda->capability = level;
    assert_int_equal(team_new(&l.cuda->team, &(struct team_options){ .n_threads = 1 }, NULL), TUTTI_OK);
    fill(&m);
    l.gate_up = pack(l.cuda, &m, true);
    l.down = pack(l.cuda, &m, false);
    assert_true(cuda_linear_reserve(l.cuda, MAX_ROWS));
    assert_true(cuda_experts_reserve(l.cuda, MAX_ROWS));
    for (int i = 0; i < n; i++)
        check_rows(&l, &m, rows[i], tolerance);
    cuda_experts_release(l.cuda);
    cuda_linear_release(l.cuda);
    cuda_matrix_free(&l.cuda->backend, l.gate_up);
    cuda_matrix_free(&l.cuda->backend, l.down);
    team_free(l.cuda->team);
    clear(&m);
}

static const struct routing TOP_2 = { .n_experts = 3, .n_chosen = 2, .is_normed = true };
static const struct routing GROUPS = { .n_experts = 10,
                                       .n_chosen = 3,
                                       .kind = ROUTE_SIGMOID,
                                       .is_normed = true,
                                       .scale = 2.5f,
                                       .n_groups = 5,
                                       .n_chosen_groups = 3,
                                       .group_best = 2 };

static void experts_of_every_type_are_near_double(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        double tolerance;
    } types[] = { { DTYPE_F32, 1e-5 },  { DTYPE_F16, 4e-3 },  { DTYPE_BF16, 3e-2 },
                  { DTYPE_Q8_0, 4e-3 }, { DTYPE_Q4_0, 4e-3 }, { DTYPE_MXFP4, 4e-3 } };
    static const int rows[] = { 1, 9 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        check(
            (struct mixture){
                .type = types[i].type, .d_model = 96, .d_ff = 32, .routing = TOP_2, .has_base = true },
            types[i].tolerance, rows, 2);
}

static void few_and_many_rows_have_equal_bits(void **state)
{
    (void)state;
    static const int rows[] = { 1, 2, 5, 17, 70 };
    check((struct mixture){ .type = DTYPE_Q8_0,
                            .d_model = 96,
                            .d_ff = 64,
                            .routing = GROUPS,
                            .has_base = true,
                            .gates_base = true },
          4e-3, rows, 5);
    check((struct mixture){ .type = DTYPE_Q4_0, .d_model = 32, .d_ff = 96, .routing = TOP_2 }, 4e-3, rows, 5);
    check((struct mixture){ .type = DTYPE_F32, .d_model = 32, .d_ff = 32, .routing = TOP_2 }, 1e-5, rows, 5);
}

static void biases_and_clamped_gates_are_those_of_the_expert(void **state)
{
    (void)state;
    static const int rows[] = { 3 };
    check((struct mixture){ .type = DTYPE_BF16,
                            .d_model = 64,
                            .d_ff = 32,
                            .routing = GROUPS,
                            .activation = ACT_SILU_CLAMPED },
          3e-2, rows, 1);
}

static void orders_and_odd_widths_are_those_of_the_matrix(void **state)
{
    (void)state;
    static const int rows[] = { 1, 13 };
    check(
        (struct mixture){
            .type = DTYPE_Q4_0, .d_model = 96, .d_ff = 32, .routing = GROUPS, .has_order = true },
        4e-3, rows, 2);
    check((struct mixture){ .type = DTYPE_F16, .d_model = 33, .d_ff = 17, .routing = TOP_2 }, 4e-3, rows, 2);
    check((struct mixture){ .type = DTYPE_F32, .d_model = 37, .d_ff = 7, .routing = GROUPS }, 1e-5, rows, 2);
}

/* Argument: the level of the kernels. */
int main(int argc, char **argv)
{
    level = argc > 1 ? atoi(argv[1]) : 80;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_of_every_type_are_near_double),
        cmocka_unit_test(few_and_many_rows_have_equal_bits),
        cmocka_unit_test(biases_and_clamped_gates_are_those_of_the_expert),
        cmocka_unit_test(orders_and_odd_widths_are_those_of_the_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, launches_clear);
}
