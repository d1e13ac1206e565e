/* Mixtures of experts on the CPU: the routers of transformers, the products of the experts that rows use against float64,
 * and the contract that a row's bits depend on that row alone. */
#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "device.h"
#include "kernels/quantize/quantize.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- routers ---- */

static void fill(float *out, const json_t *numbers)
{
    for (size_t i = 0; i < json_array_size(numbers); i++)
        out[i] = (float)json_number_value(json_array_get(numbers, i));
}

static int number(const json_t *object, const char *key)
{
    return (int)json_integer_value(json_object_get(object, key));
}

static struct routing routing_of(const json_t *c)
{
    return (struct routing){
        .n_experts = number(c, "n_experts"),
        .n_chosen = number(c, "n_chosen"),
        .kind = strcmp(json_string_value(json_object_get(c, "kind")), "sigmoid") == 0 ? ROUTE_SIGMOID
                                                                                      : ROUTE_SOFTMAX,
        .is_normed = json_is_true(json_object_get(c, "is_normed")),
        .scale = (float)json_number_value(json_object_get(c, "scale")),
        .n_groups = number(c, "n_groups"),
        .n_chosen_groups = number(c, "n_chosen_groups"),
        .group_best = number(c, "group_best"),
    };
}

static void check_rows(const struct kernels *k, const json_t *c, int n_rows)
{
    struct routing r = routing_of(c);
    const json_t *want_ids = json_object_get(c, "ids"), *want = json_object_get(c, "weights");
    float logits[LIMIT_EXPERTS * 8], bias[LIMIT_EXPERTS], weights[LIMIT_EXPERTS];
    int32_t ids[LIMIT_EXPERTS];
    assert_true(n_rows <= 8);
    fill(logits, json_object_get(c, "logits"));
    fill(bias, json_object_get(c, "bias"));
    for (int row = 0; row < n_rows; row++) {
        float again[LIMIT_EXPERTS], scaled[LIMIT_EXPERTS], factors[LIMIT_EXPERTS];
        memcpy(again, logits + row * r.n_experts, (size_t)r.n_experts * sizeof *again);
        for (int i = 0; i < r.n_experts; i++)
            factors[i] = 0.25f + (float)i;
        const float *own_bias = json_object_get(c, "bias") ? bias : NULL;
        route_row(k, &r, own_bias, NULL, logits + row * r.n_experts, ids, weights);
        route_row(k, &r, own_bias, factors, again, ids, scaled);
        for (int i = 0; i < r.n_chosen; i++) {
            assert_true(scaled[i] == weights[i] * factors[ids[i]]);
            size_t at = (size_t)(row * r.n_chosen + i);
            double w = json_number_value(json_array_get(want, at));
            assert_int_equal(ids[i], json_integer_value(json_array_get(want_ids, at)));
            assert_true(fabs((double)weights[i] - w) <= 1e-6 * w + 1e-9);
        }
    }
}

static void routers_choose_what_those_of_transformers_choose(void **state)
{
    (void)state;
    json_t *root = json_load_file(TEST_FIXTURES "/route.json", 0, NULL);
    const json_t *cases = json_object_get(root, "cases");
    assert_int_equal(json_array_size(cases), 12);
    for (unsigned cpu = 0; cpu <= 2; cpu++) {
        struct kernels k;
        kernels_init(&k, cpu_detect() & (cpu == 0 ? CPU_REF : cpu == 1 ? CPU_AVX2 | CPU_NEON : ~0u));
        for (size_t i = 0; i < json_array_size(cases); i++)
            check_rows(&k, json_array_get(cases, i), number(root, "n_rows"));
    }
    json_decref(root);
}

/* Ties go to the lower id, and what is no number to some experts, each once. */
static void ties_and_what_is_no_number_have_an_answer(void **state)
{
    (void)state;
    struct kernels k;
    kernels_init(&k, cpu_detect());
    struct routing r = { .n_experts = 12,
                         .n_chosen = 4,
                         .is_normed = true,
                         .n_groups = 4,
                         .n_chosen_groups = 2,
                         .group_best = 2 };
    for (int kind = 0; kind < 2; kind++) {
        float equal[12], broken[12], weights[4];
        int32_t ids[4];
        r.kind = kind == 0 ? ROUTE_SOFTMAX : ROUTE_SIGMOID;
        for (int i = 0; i < 12; i++) {
            equal[i] = 1;
            broken[i] = (float)NAN;
        }
        route_row(&k, &r, NULL, NULL, equal, ids, weights);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(ids[i], i);
            assert_true(weights[i] == 0.25f);
        }
        route_row(&k, &r, NULL, NULL, broken, ids, weights);
        for (int i = 0; i < 4; i++)
            assert_true(ids[i] >= 0 && ids[i] < 12 && (i == 0 || ids[i] > ids[i - 1]));
    }
}

/* ---- products ---- */

/* Sizes that are no multiple of a panel, nor the plain types' widths of a block. */
enum { N_EXPERTS = 9, N_CHOSEN = 3, N_ROWS = 150 };

struct sizes {
    int d_model, d_ff;
};

/* The experts of a layer, stored as type, and what their bytes mean. */
struct mixture {
    struct sizes sizes;
    enum dtype type;
    enum activation activation;
    float *gate_up, *down;           /* [N_EXPERTS][2 d_ff][d_model], [N_EXPERTS][d_model][d_ff] */
    float *gate_up_bias, *down_bias; /* [N_EXPERTS][2 d_ff], [N_EXPERTS][d_model]; NULL: none */
    uint8_t *stored_gate_up, *stored_down;
    uint16_t *gate_up_order, *down_order; /* [N_EXPERTS][n_in] of the stored columns; NULL: none */
    float *x, *scores, *base;             /* [N_ROWS][d_model], [N_ROWS][N_EXPERTS + 1], [N_ROWS][d_model] */
};

static uint8_t *store(float *values, enum dtype type, int64_t n)
{
    size_t n_bytes;
    assert_true(dtype_bytes(type, n, &n_bytes));
    uint8_t *stored = malloc(n_bytes);
    assert_non_null(stored);
    quantize(stored, values, type, n);
    dequantize(values, stored, type, n);
    return stored;
}

enum orders { ORDERS_NONE, ORDERS_EQUAL, ORDERS_OWN };

/* Orders for the experts' matrices of n_out rows; the second expert's is 0, 1, ... if each has its own. The
 * values of the stored columns go to their places. */
static uint16_t *put_in_order(enum orders orders, float *values, int n_out, int n_in)
{
    uint16_t *order = malloc((size_t)(N_EXPERTS * n_in) * sizeof *order);
    float row[512];
    assert_true(order && n_in <= 512);
    for (int e = 0; e < N_EXPERTS; e++) {
        uint16_t *own = order + e * n_in;
        for (int c = 0; c < n_in; c++)
            own[c] = orders == ORDERS_EQUAL && e > 0 ? order[c] : (uint16_t)c;
        for (int c = n_in - 1; c > 0 && (e == 0 || (orders == ORDERS_OWN && e > 1)); c--) {
            float *x = random_floats(1, 1);
            int other = (int)((*x + 1) / 2 * (float)c);
            uint16_t swapped = own[c];
            own[c] = own[other];
            own[other] = swapped;
            free(x);
        }
        for (float *at = values + (size_t)(e * n_out * n_in), *end = at + n_out * n_in; at < end;
             at += n_in) {
            memcpy(row, at, (size_t)n_in * sizeof *row);
            for (int c = 0; c < n_in; c++)
                at[own[c]] = row[c];
        }
    }
    return order;
}

static struct mixture mixture_make(enum dtype type, struct sizes s, enum activation activation,
                                   enum orders orders)
{
    size_t n = (size_t)N_EXPERTS * (size_t)s.d_model * (size_t)s.d_ff;
    struct mixture m = {
        .sizes = s,
        .type = type,
        .activation = activation,
        .gate_up = random_floats(2 * n, 1),
        .down = random_floats(n, 1),
    };
    if (activation == ACT_SILU_CLAMPED) { /* gpt-oss */
        m.gate_up_bias = random_floats((size_t)N_EXPERTS * 2 * (size_t)s.d_ff, 1);
        m.down_bias = random_floats((size_t)N_EXPERTS * (size_t)s.d_model, 1);
        for (int i = 0; i < N_EXPERTS * 2 * s.d_ff; i++) /* beyond both limits */
            m.gate_up_bias[i] *= 12;
    }
    m.stored_gate_up = store(m.gate_up, type, (int64_t)(2 * n));
    m.stored_down = store(m.down, type, (int64_t)n);
    if (orders != ORDERS_NONE) {
        m.gate_up_order = put_in_order(orders, m.gate_up, 2 * s.d_ff, s.d_model);
        m.down_order = put_in_order(orders, m.down, s.d_model, s.d_ff);
    }
    m.x = random_floats((size_t)N_ROWS * (size_t)s.d_model, 1);
    m.base = random_floats((size_t)N_ROWS * (size_t)s.d_model, 1);
    m.scores = random_floats((size_t)N_ROWS * (N_EXPERTS + 1), 1);
    for (int r = 0; r < N_ROWS; r++) { /* few rows use the later experts, and none the last but one */
        for (int e = 0; e < N_EXPERTS; e++)
            m.scores[r * (N_EXPERTS + 1) + e] += (float)(N_EXPERTS - e) * 0.2f;
        m.scores[r * (N_EXPERTS + 1) + N_EXPERTS - 2] = -9;
    }
    m.scores[7 * (N_EXPERTS + 1) + N_EXPERTS - 1] = 9; /* one uses the last */
    return m;
}

static void mixture_clear(struct mixture *m)
{
    free(m->gate_up);
    free(m->down);
    free(m->gate_up_bias);
    free(m->down_bias);
    free(m->stored_gate_up);
    free(m->stored_down);
    free(m->gate_up_order);
    free(m->down_order);
    free(m->x);
    free(m->base);
    free(m->scores);
}

static const struct routing ROUTING = { .n_experts = N_EXPERTS, .n_chosen = N_CHOSEN, .is_normed = true };

/* bias: [N_EXPERTS][n_out]; NULL: none. order: [N_EXPERTS][n_in]; NULL: none. */
static struct matrix *pack(struct backend *be, enum dtype type, const uint8_t *stored, const float *bias,
                           const uint16_t *order, int n_out, int n_in, bool is_gate_up)
{
    const uint16_t *orders[N_EXPERTS];
    struct matrix_part parts[2 * N_EXPERTS];
    const float *biases[2 * N_EXPERTS];
    size_t n_bytes;
    int n_parts = is_gate_up ? 2 : 1; /* gate and up are stored one after the other */
    assert_true(dtype_bytes(type, (int64_t)n_out / n_parts * n_in, &n_bytes));
    for (int i = 0; i < n_parts * N_EXPERTS; i++) {
        parts[i] = (struct matrix_part){ stored + (size_t)i * n_bytes, type, n_out / n_parts };
        biases[i] = bias ? bias + i * (n_out / n_parts) : NULL;
    }
    for (int e = 0; e < N_EXPERTS; e++) /* NULL: 0, 1, ... */
        orders[e] = order && !(e == 1 && memcmp(order, order + n_in, (size_t)n_in * sizeof *order) != 0)
                        ? order + e * n_in
                        : NULL;
    struct matrix_source source = { .name = "experts",
                                    .parts = parts,
                                    .n_parts = n_parts * N_EXPERTS,
                                    .n_in = n_in,
                                    .type = type,
                                    .is_gate_up = is_gate_up,
                                    .n_experts = N_EXPERTS,
                                    .n_chosen = N_CHOSEN,
                                    .biases = bias ? biases : NULL,
                                    .orders = order ? orders : NULL };
    struct matrix *m = NULL;
    struct tutti_error err;
    if (be->ops->matrix_new(be, &m, &source, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return m;
}

/* Rows first to first + n - 1, in steps of at most n_step rows; y: [n][d_model]. Returns the bytes of weights that
 * were read. */
static uint64_t run(const struct mixture *m, int n_threads, const char *cpu, int first, int n, int n_step,
                    float *y)
{
    struct sizes s = m->sizes;
    struct backend *be = device_open_small(n_threads, cpu);
    struct matrix *gate_up = pack(be, m->type, m->stored_gate_up, m->gate_up_bias, m->gate_up_order,
                                  2 * s.d_ff, s.d_model, true);
    struct matrix *down = pack(be, m->type, m->stored_down, m->down_bias, m->down_order, s.d_model, s.d_ff,
                               false);
    const struct expert_layer layer = { .gate_up = gate_up,
                                        .down = down,
                                        .routing = &ROUTING,
                                        .activation = m->activation,
                                        .has_base = true,
                                        .gates_base = true };
    assert_int_equal(be->ops->reserve(be, n_step, NULL), TUTTI_OK);
    for (int begin = 0; begin < n; begin += n_step) {
        int k = n - begin < n_step ? n - begin : n_step, row = first + begin;
        struct floats x = device_new(be, m->x + row * s.d_model, (size_t)(k * s.d_model));
        struct floats scores = device_new(be, m->scores + row * (N_EXPERTS + 1),
                                          (size_t)(k * (N_EXPERTS + 1)));
        struct floats out = device_new(be, m->base + row * s.d_model, (size_t)(k * s.d_model));
        be->ops->experts(be, out, &layer, x, scores, k);
        device_get(be, y + begin * s.d_model, out, (size_t)(k * s.d_model));
        be->ops->dealloc(be, x);
        be->ops->dealloc(be, scores);
        be->ops->dealloc(be, out);
    }
    uint64_t n_read = be->ops->expert_bytes(be);
    be->ops->matrix_free(be, gate_up);
    be->ops->matrix_free(be, down);
    be->ops->free(be);
    return n_read;
}

static double dot(const float *w, const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)w[i] * x[i];
    return sum;
}

static double join(enum activation activation, double gate, double up)
{
    if (activation == ACT_SILU)
        return gate / (1 + exp(-gate)) * up;
    gate = fmin(gate, 7);
    return gate / (1 + exp(-1.702 * gate)) * (fmin(fmax(up, -7), 7) + 1);
}

/* A row in float64. */
static void compute(const struct mixture *m, int row, double *y)
{
    int d = m->sizes.d_model, f = m->sizes.d_ff;
    struct kernels k;
    float scores[N_EXPERTS + 1], weights[N_CHOSEN];
    int32_t ids[N_CHOSEN];
    double x[512], hidden[512];
    memcpy(scores, m->scores + row * (N_EXPERTS + 1), sizeof scores);
    kernels_init(&k, CPU_REF);
    route_row(&k, &ROUTING, NULL, NULL, scores, ids, weights);
    for (int i = 0; i < d; i++) {
        x[i] = (double)m->x[row * d + i];
        y[i] = (double)m->base[row * d + i] /
               (1 + exp(-(double)m->scores[row * (N_EXPERTS + 1) + N_EXPERTS]));
    }
    for (int c = 0; c < N_CHOSEN; c++) {
        const float *gate = m->gate_up + (size_t)ids[c] * 2 * (size_t)(f * d), *up = gate + f * d;
        const float *bias = m->gate_up_bias ? m->gate_up_bias + ids[c] * 2 * f : NULL;
        for (int j = 0; j < f; j++)
            hidden[j] = join(m->activation, dot(gate + j * d, x, d) + (bias ? (double)bias[j] : 0),
                             dot(up + j * d, x, d) + (bias ? (double)bias[f + j] : 0));
        for (int i = 0; i < d; i++)
            y[i] += (double)weights[c] * (dot(m->down + (size_t)ids[c] * (size_t)(f * d) + i * f, hidden, f) +
                                          (m->down_bias ? (double)m->down_bias[ids[c] * d + i] : 0));
    }
}

static const struct {
    enum dtype type;
    struct sizes sizes;
    double bound;               /* of the root mean square error, relative to that of the outputs */
    enum activation activation; /* clamped: with biases */
    enum orders orders;
} CASES[] = {
    { DTYPE_F32, { 72, 40 }, 1e-6 },
    { DTYPE_F32, { 100, 7 }, 1e-6 },
    { DTYPE_F16, { 33, 17 }, 1e-6 },
    { DTYPE_BF16, { 72, 41 }, 1e-2 },
    { DTYPE_Q8_0, { 96, 64 }, 2e-2 },
    { DTYPE_Q4_0, { 160, 32 }, 2e-2 },
    { DTYPE_Q4_K, { 256, 256 }, 2e-2 },
    { DTYPE_F32, { 72, 41 }, 1e-6, ACT_SILU_CLAMPED },
    { DTYPE_Q4_0, { 160, 96 }, 2e-2, ACT_SILU_CLAMPED },
    { DTYPE_Q4_0, { 160, 96 }, 2e-2, ACT_SILU, ORDERS_OWN },
    { DTYPE_Q5_0, { 192, 32 }, 2e-2, ACT_SILU, ORDERS_EQUAL },
    { DTYPE_Q8_0, { 320, 160 }, 2e-2, ACT_SILU_CLAMPED, ORDERS_OWN },
};
enum { N_CASES = sizeof CASES / sizeof *CASES };

static void outputs_are_near_float64(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        struct mixture m = mixture_make(CASES[i].type, CASES[i].sizes, CASES[i].activation, CASES[i].orders);
        int d = m.sizes.d_model;
        float *y = random_floats((size_t)(N_ROWS * d), 1);
        double want[512], squares = 0, errors = 0;
        run(&m, 2, NULL, 0, N_ROWS, N_ROWS, y);
        for (int r = 0; r < N_ROWS; r++) {
            compute(&m, r, want);
            for (int c = 0; c < d; c++) {
                squares += want[c] * want[c];
                errors += (want[c] - (double)y[r * d + c]) * (want[c] - (double)y[r * d + c]);
            }
        }
        print_message("# %s %d x %d: %.2e\n", dtype_name(m.type), d, m.sizes.d_ff, sqrt(errors / squares));
        assert_true(sqrt(errors / squares) <= CASES[i].bound);
        free(y);
        mixture_clear(&m);
    }
}

/* Alone, in steps of any size, on any number of threads and every processor level. */
static void a_row_has_the_same_bits_whatever_it_runs_with(void **state)
{
    (void)state;
    static const struct {
        int n_threads, n_step;
        const char *cpu;
    } WAYS[] = { { 1, N_ROWS, NULL }, { 3, N_ROWS, NULL }, { 2, 1, NULL },  { 1, 1, NULL },
                 { 2, 7, NULL },      { 4, 64, NULL },     { 2, 33, "ref" } };
    for (int i = 0; i < N_CASES; i++) {
        struct mixture m = mixture_make(CASES[i].type, CASES[i].sizes, CASES[i].activation, CASES[i].orders);
        int d = m.sizes.d_model;
        float *want = random_floats((size_t)(N_ROWS * d), 1), *got = random_floats((size_t)(N_ROWS * d), 1);
        run(&m, 2, NULL, 0, N_ROWS, N_ROWS, want);
        for (size_t w = 0; w < sizeof WAYS / sizeof *WAYS; w++) {
            run(&m, WAYS[w].n_threads, WAYS[w].cpu, 0, N_ROWS, WAYS[w].n_step, got);
            if (memcmp(want, got, (size_t)(N_ROWS * d) * sizeof *want) != 0)
                fail_msg("%s, %d threads, steps of %d: other bits", dtype_name(m.type), WAYS[w].n_threads,
                         WAYS[w].n_step);
        }
        for (int r = 0; r < N_ROWS; r += 50) {
            run(&m, 2, NULL, r, 1, 1, got);
            assert_memory_equal(got, want + r * d, (size_t)d * sizeof *want);
        }
        free(want);
        free(got);
        mixture_clear(&m);
    }
}

/* ---- what is read ---- */

enum { MOST_PANELS = 256 };

/* Panels that the multiplying kernel was given, with the number of its calls. Several threads count. */
static struct {
    linear_fn *real;
    const uint8_t *panels[MOST_PANELS];
    atomic_int n_calls[MOST_PANELS], n_rows[MOST_PANELS];
} counted;

static void count_panel(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)
{
    for (int i = 0; i < MOST_PANELS; i++) {
        if (counted.panels[i] == panel) {
            atomic_fetch_add(&counted.n_calls[i], 1);
            atomic_fetch_add(&counted.n_rows[i], n_rows);
        }
    }
    counted.real(out, panel, x, n_rows, n_in);
}

/* Every panel of an expert that rows use is multiplied once with all of its rows, as they fit one tile; those of other
 * experts never. */
static void each_used_expert_is_read_once_and_no_other(void **state)
{
    (void)state;
    struct mixture m = mixture_make(DTYPE_Q8_0, (struct sizes){ 96, 64 }, ACT_SILU, ORDERS_NONE);
    int d = m.sizes.d_model, n_rows_of[N_EXPERTS] = { 0 }, n_used = 0;
    struct backend *be = device_open_small(3, NULL);
    struct matrix *gate_up = pack(be, m.type, m.stored_gate_up, NULL, NULL, 2 * m.sizes.d_ff, d, true);
    struct matrix *down = pack(be, m.type, m.stored_down, NULL, NULL, d, m.sizes.d_ff, false);
    struct expert_layer layer = {
        .gate_up = gate_up, .down = down, .routing = &ROUTING, .activation = ACT_SILU
    };
    enum { N = 40 };
    float scores[N * N_EXPERTS], row[N_EXPERTS], weights[N_CHOSEN];
    int32_t ids[N_CHOSEN];
    struct cpu_backend *cpu = cpu_of(be);
    for (int r = 0; r < N; r++) {
        memcpy(scores + r * N_EXPERTS, m.scores + r * (N_EXPERTS + 1), N_EXPERTS * sizeof *scores);
        memcpy(row, scores + r * N_EXPERTS, sizeof row);
        route_row(&cpu->kernels, &ROUTING, NULL, NULL, row, ids, weights);
        for (int c = 0; c < N_CHOSEN; c++)
            n_used += n_rows_of[ids[c]]++ == 0;
    }
    assert_true(n_used > 1 && n_used < N_EXPERTS);
    counted.real = cpu->kernels.linear[m.type];
    cpu->kernels.linear[m.type] = count_panel;
    const struct matrix *const both[] = { gate_up, down };
    int n = 0;
    for (int k = 0; k < 2; k++)
        for (int p = 0; p < N_EXPERTS * both[k]->n_panels; p++)
            counted.panels[n++] = both[k]->panels + (size_t)p * both[k]->panel_bytes;
    assert_true(n <= MOST_PANELS);
    assert_int_equal(be->ops->reserve(be, N, NULL), TUTTI_OK);
    struct floats x = device_new(be, m.x, (size_t)(N * d)), y = device_new(be, NULL, (size_t)(N * d));
    struct floats s = device_new(be, scores, N * N_EXPERTS);
    be->ops->experts(be, y, &layer, x, s, N);
    uint64_t n_bytes = 0;
    for (int k = 0, i = 0; k < 2; k++) {
        for (int p = 0; p < N_EXPERTS * both[k]->n_panels; p++, i++) {
            int used = n_rows_of[p / both[k]->n_panels];
            assert_int_equal(counted.n_calls[i], used > 0);
            assert_int_equal(counted.n_rows[i], used);
            n_bytes += used > 0 ? both[k]->panel_bytes : 0;
        }
    }
    assert_int_equal(be->ops->expert_bytes(be), n_bytes);
    be->ops->dealloc(be, x);
    be->ops->dealloc(be, y);
    be->ops->dealloc(be, s);
    be->ops->matrix_free(be, gate_up);
    be->ops->matrix_free(be, down);
    be->ops->free(be);
    mixture_clear(&m);
}

static void experts_of_unequal_size_are_refused(void **state)
{
    (void)state;
    struct backend *be = device_open_small(1, NULL);
    float values[3 * 8] = { 0 };
    struct matrix_part parts[] = { { values, DTYPE_F32, 2 },
                                   { values, DTYPE_F32, 1 },
                                   { values, DTYPE_F32, 2 } };
    struct matrix_source source = {
        .name = "m", .parts = parts, .n_in = 8, .type = DTYPE_F32, .n_chosen = 1
    };
    struct matrix *m = NULL;
    struct tutti_error err;
    for (int n = 2; n <= 3; n++) { /* of unequal size; two parts for three experts */
        source.n_parts = 2;
        source.n_experts = n;
        assert_int_equal(be->ops->matrix_new(be, &m, &source, &err), TUTTI_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "of each expert"));
    }
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routers_choose_what_those_of_transformers_choose),
        cmocka_unit_test(ties_and_what_is_no_number_have_an_answer),
        cmocka_unit_test(outputs_are_near_float64),
        cmocka_unit_test(a_row_has_the_same_bits_whatever_it_runs_with),
        cmocka_unit_test(each_used_expert_is_read_once_and_no_other),
        cmocka_unit_test(experts_of_unequal_size_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
