/* Updates of adapters on the card: the sums against double arithmetic, the updates against kernels/ref/lora bit for bit, rows
 * of several adapters together and of one by itself, and the embedding. */
#include "backend/cuda/adapters/lora_pack.h"
#include "cuda/emulator.h"
#include "kernels/kernels.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

extern const struct emulated_kernel lora_down_1_kernel, lora_down_8_kernel, lora_up_1_kernel,
    lora_up_8_kernel, lora_up_glu_1_kernel, lora_up_glu_8_kernel, lora_rows_kernel, embed_change_kernel;

static uint64_t random_state = 3;

static float draw(void)
{
    random_state = random_state * 6364136223846793005 + 1442695040888963407;
    return (float)((int32_t)(random_state >> 32)) / 2147483648.0f;
}

static float *draw_floats(size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = draw();
    return x;
}

/* An adapter's change, and what it was made of. */
struct change {
    struct lora_source source;
    struct lora_part parts[2];
    uint8_t *memory;
    size_t n_bytes;
};

enum { N_CHANGES = 4 }; /* of the adapters 0 to 3; adapter 4 changes nothing */

static struct change change_new(int n_in, int n_out, int index)
{
    struct change c = { .source = {
                            .n_in = n_in, .n_out = n_out, .type = index % 2 ? DTYPE_F16 : DTYPE_F32 } };
    static const int ranks[N_CHANGES][2] = { { 3, 0 }, { 16, 5 }, { 70, 8 }, { 0, 0 } };
    int middle = n_out / 2 - 1;
    for (int p = 0; p < 2 && ranks[index][p] > 0; p++) {
        int begin = p == 0 ? 1 : middle + 1, end = p == 0 ? middle : n_out - 1, rank = ranks[index][p];
        c.parts[p] = (struct lora_part){ .out_begin = begin,
                                         .n_out = end - begin,
                                         .rank = rank,
                                         .scale = 0.5f + (float)p,
                                         .a = draw_floats((size_t)(rank * n_in)),
                                         .b = draw_floats((size_t)(rank * (end - begin))) };
        c.source.n_parts = p + 1;
    }
    if (index >= 2) {
        c.source.factors = draw_floats((size_t)n_out);
        c.source.shifts = index == 3 ? draw_floats((size_t)n_out) : NULL;
    }
    return c;
}

static void change_pack(struct change *c)
{
    c->source.parts = c->parts;
    c->n_bytes = lora_pack(NULL, NULL, &c->source);
    c->memory = aligned_alloc(16, c->n_bytes);
    assert_non_null(c->memory);
    memset(c->memory, 0, c->n_bytes);
    assert_int_equal(lora_pack(c->memory, c->memory, &c->source), c->n_bytes);
}

static void change_clear(struct change *c)
{
    for (int p = 0; p < c->source.n_parts; p++) {
        free((void *)c->parts[p].a);
        free((void *)c->parts[p].b);
    }
    free((void *)c->source.factors);
    free((void *)c->source.shifts);
    free(c->memory);
}

/* Rows of a step with adapters, and what comes out. */
struct step_of {
    int n_rows, n_in, n_out, max_rank;
    int32_t *adapters;
    float *x, *before, *sums, *after, *joined; /* [n_rows][n_in], [n_out], [max_rank], [n_out], [n_out / 2] */
};

static void run(const struct step_of *s, const struct lora_change *const *changes, int n_tile)
{
    struct lora_down_args down = { .changes = changes,
                                   .adapters = s->adapters,
                                   .x = s->x,
                                   .sums = s->sums,
                                   .n_rows = s->n_rows,
                                   .n_in = s->n_in,
                                   .max_rank = s->max_rank };
    struct lora_up_args up = { .changes = changes,
                               .adapters = s->adapters,
                               .sums = s->sums,
                               .y = s->after,
                               .n_rows = s->n_rows,
                               .n_out = s->n_out,
                               .max_rank = s->max_rank };
    int n_tiles = (s->n_rows + n_tile - 1) / n_tile;
    struct emulated_grid grid = { .x = 3, .y = n_tiles, .z = 1, .n_threads = 256 };
    memset(s->sums, 0xff, (size_t)(s->n_rows * s->max_rank) * sizeof *s->sums);
    memcpy(s->after, s->before, (size_t)(s->n_rows * s->n_out) * sizeof *s->after);
    emulate(n_tile == 1 ? &lora_down_1_kernel : &lora_down_8_kernel, &grid, &down);
    grid.x = (s->n_out + 255) / 256;
    emulate(n_tile == 1 ? &lora_up_1_kernel : &lora_up_8_kernel, &grid, &up);
    up.raw = s->before;
    up.y = s->joined;
    grid.x = (s->n_out / 2 + 255) / 256;
    emulate(n_tile == 1 ? &lora_up_glu_1_kernel : &lora_up_glu_8_kernel, &grid, &up);
}

static void check_sums(const struct step_of *s, const struct change *c, int row)
{
    int i = 0;
    for (int p = 0; p < c->source.n_parts; p++) {
        const struct lora_part *part = &c->parts[p];
        for (int k = 0; k < part->rank; k++, i++) {
            double sum = 0, most = 0;
            for (int j = 0; j < s->n_in; j++) {
                double product = (double)part->a[k * s->n_in + j] * (double)s->x[row * s->n_in + j];
                sum += product;
                most += fabs(product);
            }
            const struct lora_change *packed = (const struct lora_change *)c->memory;
            double got = (double)s->sums[row * s->max_rank + i] / (double)packed->scales[i] *
                         (double)part->scale;
            /* The exponents of halves are in the scale: undo that of a by comparing ratios. */
            if (packed->is_half) {
                float first = half_to_float(((const uint16_t *)packed->a)[i * packed->n_padded]);
                got *= (double)ldexpf(1, (int)lrint(log2((double)part->a[k * s->n_in] / (double)first))) /
                       (double)part->scale;
            } else {
                got /= (double)part->scale;
            }
            assert_true(fabs(got - sum) <= most * (packed->is_half ? 1e-3 : 1e-6));
        }
    }
}

/* The update of kernels/ref/lora from the card's sums. */
static void check_outputs(const struct step_of *s, const struct change *c, int row)
{
    float want[600];
    const struct lora_change *packed = c ? (const struct lora_change *)c->memory : NULL;
    memcpy(want, s->before + row * s->n_out, (size_t)s->n_out * sizeof *want);
    for (int j = 0; packed && j < s->n_out; j++) {
        want[j] = packed->factors ? want[j] * packed->factors[j] : want[j];
        want[j] = packed->shifts ? want[j] + packed->shifts[j] : want[j];
    }
    for (int p = 0; packed && p < packed->n_pieces; p++) {
        const struct lora_update *piece = &packed->pieces[p];
        for (int begin = 0; begin < piece->rank; begin += LORA_SUMS) {
            int n = piece->rank - begin < LORA_SUMS ? piece->rank - begin : LORA_SUMS;
            const float *t = s->sums + row * s->max_rank + piece->rank_begin + begin;
            float *y = want + piece->out_begin;
            size_t at = (size_t)(begin * piece->n_padded), stride = (size_t)piece->n_padded;
            if (packed->is_half)
                lora_up_half_ref(&y, (const uint16_t *)piece->b + at, stride, &t, 1, n, piece->n_out);
            else
                lora_up_ref(&y, (const float *)piece->b + at, stride, &t, 1, n, piece->n_out);
        }
    }
    assert_memory_equal(want, s->after + row * s->n_out, (size_t)s->n_out * sizeof *want);
    silu_mul_ref(want, want, want + s->n_out / 2, s->n_out / 2);
    assert_memory_equal(want, s->joined + row * (s->n_out / 2), (size_t)(s->n_out / 2) * sizeof *want);
}

static void check_shape(int n_rows, int n_in, int n_out)
{
    enum { MAX_RANK = 80 };
    struct step_of s = { .n_rows = n_rows, .n_in = n_in, .n_out = n_out, .max_rank = MAX_RANK };
    struct change changes[N_CHANGES];
    const struct lora_change *table[LORA_TABLE] = { 0 };
    size_t n_outputs = (size_t)(n_rows * n_out);
    for (int i = 0; i < N_CHANGES; i++) {
        changes[i] = change_new(n_in, n_out, i);
        change_pack(&changes[i]);
        table[i] = (const struct lora_change *)changes[i].memory;
    }
    s.adapters = malloc((size_t)n_rows * sizeof *s.adapters);
    s.x = aligned_alloc(16, ((size_t)(n_rows * n_in) * sizeof *s.x + 15) / 16 * 16);
    s.before = draw_floats(n_outputs);
    s.sums = draw_floats((size_t)(n_rows * MAX_RANK));
    s.after = draw_floats(n_outputs);
    s.joined = draw_floats(n_outputs / 2);
    for (int i = 0; i < n_rows * n_in; i++)
        s.x[i] = draw();
    for (int r = 0; r < n_rows; r++) /* mixed, then the same for a while */
        s.adapters[r] = r < 12 ? (r + 1) % (N_CHANGES + 2) - 1 : r / 9 % 3;
    float *first = NULL;
    for (int n_tile = 1; n_tile <= LORA_TILE_ROWS; n_tile += LORA_TILE_ROWS - 1) {
        run(&s, table, n_tile);
        for (int r = 0; r < n_rows; r++) {
            const struct change *c = s.adapters[r] >= 0 && s.adapters[r] < N_CHANGES ? &changes[s.adapters[r]]
                                                                                     : NULL;
            if (c)
                check_sums(&s, c, r);
            check_outputs(&s, c, r);
        }
        if (first)
            assert_memory_equal(first, s.after, n_outputs * sizeof *first);
        else
            first = memcpy(draw_floats(n_outputs), s.after, n_outputs * sizeof *first);
    }
    /* The last row by itself. */
    struct step_of single = s;
    single.n_rows = 1;
    single.adapters += n_rows - 1;
    single.x += (size_t)(n_rows - 1) * (size_t)n_in;
    single.before += (size_t)(n_rows - 1) * (size_t)n_out;
    if (n_in % 4 == 0) {
        run(&single, table, 1);
        assert_memory_equal(first + (size_t)(n_rows - 1) * (size_t)n_out, s.after,
                            (size_t)n_out * sizeof *first);
    }
    for (int i = 0; i < N_CHANGES; i++)
        change_clear(&changes[i]);
    free(first);
    free(s.adapters);
    free(s.x);
    free(s.before);
    free(s.sums);
    free(s.after);
    free(s.joined);
}

static void rows_get_the_updates_of_their_adapters(void **state)
{
    (void)state;
    check_shape(1, 32, 64);
    check_shape(5, 96, 32);
    check_shape(19, 264, 96);
    check_shape(70, 32, 40);
}

static void widths_need_be_no_multiple_of_anything(void **state)
{
    (void)state;
    check_shape(9, 37, 50);
    check_shape(3, 300, 522);
}

static void a_hash_is_of_the_factors_only(void **state)
{
    (void)state;
    struct change c = change_new(40, 24, 1);
    change_pack(&c);
    uint64_t sum = lora_hash(c.memory, c.n_bytes, &c.source);
    uint8_t *other = calloc(1, c.n_bytes);
    lora_pack(other, other, &c.source);
    assert_true(lora_hash(other, c.n_bytes, &c.source) == sum);
    ((float *)c.parts[1].b)[3] += 0.125f;
    lora_pack(other, other, &c.source);
    assert_true(lora_hash(other, c.n_bytes, &c.source) != sum);
    free(other);
    change_clear(&c);
}

static void rows_are_gathered_and_scattered(void **state)
{
    (void)state;
    enum { ROWS = 5, N = 300 };
    static const int32_t rows[ROWS] = { 4, 0, -1, 2, -1 };
    float x[ROWS * N], y[ROWS * N], z[ROWS * N];
    for (int i = 0; i < ROWS * N; i++) {
        x[i] = draw();
        y[i] = z[i] = 9;
    }
    struct emulated_grid grid = { .x = ROWS, .y = 2, .z = 1, .n_threads = 256 };
    emulate(&lora_rows_kernel, &grid, &(struct lora_rows_args){ .rows = rows, .x = x, .y = y, .n = N });
    emulate(&lora_rows_kernel, &grid,
            &(struct lora_rows_args){ .rows = rows, .x = y, .y = z, .n = N, .scatters = 1 });
    for (int r = 0; r < ROWS; r++) {
        bool is_there = r == 4 || r == 0 || r == 2;
        for (int i = 0; i < N; i++)
            assert_true(z[r * N + i] == (is_there ? x[r * N + i] : 9));
    }
}

/* ---- embedding ---- */

static void rows_of_the_embedding_are_replaced_and_updated(void **state)
{
    (void)state;
    enum { VOCAB = 11, N = 270, ROWS = 12, RANK = 3, IDS = 3, VIRTUAL = 2 };
    static const int32_t ids[IDS] = { 0, 4, 10 };
    static const int32_t tokens[ROWS] = { 0, 4, 10, 3, 5, 9, 4, 4, 1, 0, 7, 0 };
    static const int32_t positions[ROWS] = { 0, 1, 2, 3, 4, 5, 6, 7, 0, 9, 1, 0 };
    static const int32_t adapters[ROWS] = { 0, 0, 0, 0, 0, 0, 1, -1, -1, 2, 1, -1 };
    struct embedding_source both = { .n_vocab = VOCAB,
                                     .n_columns = N,
                                     .ids = ids,
                                     .n_ids = IDS,
                                     .rank = RANK,
                                     .n_virtual = VIRTUAL,
                                     .scale = 0.75f,
                                     .rows = draw_floats(IDS * N),
                                     .a = draw_floats(RANK * VOCAB),
                                     .b = draw_floats(N * RANK),
                                     .virtual_rows = draw_floats(VIRTUAL * N) };
    struct embedding_source own = { .n_vocab = VOCAB, .n_columns = N };
    size_t both_bytes = embedding_pack(NULL, NULL, &both, 0), own_bytes = embedding_pack(NULL, NULL, &own, 7);
    uint8_t *packed = calloc(1, both_bytes), *packed_own = calloc(1, own_bytes);
    float *model = draw_floats(ROWS * N), *other = draw_floats(ROWS * N), *x = draw_floats(ROWS * N);
    embedding_pack(packed, packed, &both, 0);
    embedding_pack(packed_own, packed_own, &own, 7);
    const struct embedding_change *table[LORA_TABLE] = { (const void *)packed, (const void *)packed_own,
                                                         NULL };
    memcpy(x, model, ROWS * N * sizeof *x);
    struct embed_change_args args = { .changes = table,
                                      .adapters = adapters,
                                      .token_ids = tokens,
                                      .positions = positions,
                                      .from = x,
                                      .x = x,
                                      .n = N };
    struct emulated_grid grid = { .x = ROWS, .y = 2, .z = 1, .n_threads = 256 };
    int32_t adapters_known[ROWS];
    for (int r = 0; r < ROWS; r++)
        adapters_known[r] = adapters[r] == 2 ? -1 : adapters[r];
    args.adapters = adapters_known;
    emulate(&embed_change_kernel, &grid, &args);
    args.from = other;
    args.table = 7;
    emulate(&embed_change_kernel, &grid, &args);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < N; i++) {
            float want = model[r * N + i];
            int at = tokens[r] == 0 ? 0 : tokens[r] == 4 ? 1 : tokens[r] == 10 ? 2 : -1;
            if (adapters[r] == 1)
                want = other[r * N + i];
            if (adapters[r] == 0) {
                want = at >= 0 ? both.rows[at * N + i] : want;
                for (int k = 0; k < RANK; k++)
                    want += (both.scale * both.a[k * VOCAB + tokens[r]]) * both.b[i * RANK + k];
                want = positions[r] < VIRTUAL ? both.virtual_rows[positions[r] * N + i] : want;
            }
            assert_memory_equal(&want, &x[r * N + i], sizeof want);
        }
    }
    free((void *)both.rows);
    free((void *)both.a);
    free((void *)both.b);
    free((void *)both.virtual_rows);
    free(packed);
    free(packed_own);
    free(model);
    free(other);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_get_the_updates_of_their_adapters),
        cmocka_unit_test(widths_need_be_no_multiple_of_anything),
        cmocka_unit_test(a_hash_is_of_the_factors_only),
        cmocka_unit_test(rows_are_gathered_and_scattered),
        cmocka_unit_test(rows_of_the_embedding_are_replaced_and_updated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
