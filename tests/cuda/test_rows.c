/* The row-wise operations of the CUDA backend on the emulator, against the reference kernels and doubles. */
#include "backend/cuda/adapters/cuda_lora.h"
#include "cuda/launches.h"

#include "base/rng.h"
#include "cuda/emulator.h"
#include "kernels/cuda/rows_args.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = 8, MAX_N = 9000 };

static struct cuda_backend *cuda;
static struct backend *be;
static uint64_t n_drawn;

static float random_value(float limit)
{
    return (float)(rng_uniform(3, 1, n_drawn++) * 2 - 1) * limit;
}

static float *random_rows(int n_rows, int n, float limit)
{
    float *x = malloc(sizeof *x * (size_t)n_rows * (size_t)n);
    for (int i = 0; i < n_rows * n; i++)
        x[i] = random_value(limit);
    return x;
}

/* Rows on the card, with room for padding, whose values are NaNs. */
static struct floats rows_on_card(const float *x, int n_rows, int n)
{
    struct floats floats = launches_floats(NULL, (size_t)MAX_ROWS * (size_t)n);
    if (x)
        memcpy(floats.buffer->data, x, sizeof *x * (size_t)n_rows * (size_t)n);
    return floats;
}

static bool is_same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

static void check_norm(int n, int n_rows, bool has_mean, bool has_add)
{
    float *x = random_rows(n_rows, n, 3), *add = random_rows(n_rows, n, 2), *w = random_rows(1, n, 1),
          *b = random_rows(1, n, 1);
    const float eps = 1e-5f;
    struct floats card_x = rows_on_card(x, n_rows, n),
                  card_add = has_add ? rows_on_card(add, n_rows, n) : NO_FLOATS;
    struct floats y = rows_on_card(NULL, 0, n), card_w = launches_floats(w, (size_t)n),
                  card_b = launches_floats(b, (size_t)n);
    if (has_mean)
        cuda_layernorm(be, y, card_x, card_add, card_w, card_b, n_rows, n, eps);
    else
        cuda_rmsnorm(be, y, card_x, card_add, card_w, n_rows, n, eps);
    for (int r = 0; r < n_rows; r++) {
        float *row = x + (size_t)r * (size_t)n, *got = y.buffer->data + (size_t)r * (size_t)n;
        if (has_add)
            add_ref(row, add + (size_t)r * (size_t)n, n);
        assert_memory_equal(card_x.buffer->data + (size_t)r * (size_t)n, row, sizeof *row * (size_t)n);
        double mean = 0, squares = 0;
        for (int i = 0; i < n; i++)
            mean += has_mean ? (double)row[i] / n : 0;
        for (int i = 0; i < n; i++)
            squares += ((double)row[i] - mean) * ((double)row[i] - mean);
        double scale = 1 / sqrt(squares / n + (double)eps);
        for (int i = 0; i < n; i++) {
            double want = ((double)row[i] - mean) * scale * (double)w[i] + (has_mean ? (double)b[i] : 0);
            assert_true(fabs((double)got[i] - want) <= 2e-6 * (fabs(want) + 1));
        }
        /* The row by itself: the same bits. y may be add. */
        struct floats single = rows_on_card(x, 0, n), other = rows_on_card(row, 1, n);
        if (has_add) {
            memset(single.buffer->data, 0, sizeof(float) * (size_t)n);
            cuda_norm_adapted(be, single, other, single, card_w, has_mean ? card_b : NO_FLOATS, 1, n, eps,
                              NULL, NULL);
        } else {
            cuda_norm_adapted(be, single, other, NO_FLOATS, card_w, has_mean ? card_b : NO_FLOATS, 1, n, eps,
                              NULL, NULL);
        }
        assert_memory_equal(single.buffer->data, got, sizeof(float) * (size_t)n);
    }
    free(x);
    free(add);
    free(w);
    free(b);
}

static void norms_are_near_double_and_do_not_depend_on_other_rows(void **state)
{
    static const int sizes[] = { 1, 3, 4, 31, 64, 1000, 1023, 1024, 2048, 2052, 4096, 5120, 8192, 8196 };
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < 4; kind++)
            check_norm(sizes[i], i % 3 == 0 ? 5 : i % 3 == 1 ? 1 : 3, kind & 1, kind & 2);
}

static void all_variants_of_the_norm_give_the_same_bits(void **state)
{
    (void)state;
    const int n = 2048;
    float *x = random_rows(2, n, 3), *w = random_rows(1, n, 1);
    struct floats from = rows_on_card(x, 2, n), card_w = launches_floats(w, (size_t)n), y[4];
    static const char *const names[] = { "norm_2048", "norm_4096", "norm_8192", "norm_any" };
    for (int i = 0; i < 4; i++) {
        y[i] = rows_on_card(NULL, 0, n);
        struct norm_args args = { .y = y[i].buffer->data,
                                  .x = from.buffer->data,
                                  .weights = { card_w.buffer->data, NULL },
                                  .n = n,
                                  .eps = 1e-6f };
        emulate(emulated_find(names[i]), &(struct emulated_grid){ 2, 1, 1, NORM_THREADS, 0 }, &args);
        assert_memory_equal(y[i].buffer->data, y[0].buffer->data, sizeof(float) * 2 * (size_t)n);
    }
    free(x);
    free(w);
}

/* What linear_convert makes of a row. */
static void check_halves(const uint16_t *half, int stride, float scale, const float *y, int n)
{
    float most = 0;
    bool is_bad = false;
    for (int i = 0; i < n; i++) {
        is_bad = is_bad || !isfinite(y[i]);
        most = fabsf(y[i]) > most ? fabsf(y[i]) : most;
    }
    int exponent = 15; /* of a scale of 1 */
    if (most > 0 && !is_bad)
        (void)frexpf(most, &exponent);
    float factor = most == 0 ? 1 : ldexpf(1, 15 - exponent);
    assert_true(is_bad ? isnan(scale) : scale == 1 / factor);
    for (int i = 0; i < stride && !is_bad; i++) {
        float v = i < n ? y[i] * factor : 0;
        assert_int_equal(half[i], float_to_half(v));
    }
}

static void a_norm_also_gives_the_rows_of_a_linear_layer(void **state)
{
    static const int sizes[] = { 64, 4096, 37 };
    (void)state;
    for (int k = 0; k < 3; k++) {
        int n = sizes[k], stride = (n + 127) / 128 * 128;
        float *x = random_rows(4, n, 3), *w = random_rows(1, n, 1), scales[4],
              *y = malloc(sizeof(float) * 4 * (size_t)n);
        uint16_t *half = malloc(sizeof *half * 4 * (size_t)stride);
        memset(half, 0xff, sizeof *half * 4 * (size_t)stride);
        for (int i = 0; i < n; i++) {
            x[n + i] = 0;                           /* row 1 */
            x[2 * n + i] = i == n - 1 ? NAN : x[i]; /* row 2 */
            x[3 * n + i] = x[i] * 1e-30f;           /* row 3: eps decides, so y is tiny */
        }
        struct norm_args args = { .y = y,
                                  .x = x,
                                  .weights = { w, NULL },
                                  .half = half,
                                  .scales = scales,
                                  .half_stride = stride,
                                  .n = n,
                                  .eps = 1e-5f };
        emulate(emulated_find(n % 4 ? "norm_any" : "norm_4096"),
                &(struct emulated_grid){ 4, 1, 1, NORM_THREADS, 0 }, &args);
        for (int r = 0; r < 4; r++)
            check_halves(half + r * stride, stride, scales[r], y + r * n, n);
        free(x);
        free(w);
        free(y);
        free(half);
    }
}

static void a_linear_layer_asks_the_norm_before_it_for_halves(void **state)
{
    enum { N = 96, STRIDE = 128 };
    (void)state;
    float *x = random_rows(3, N, 3), *w = random_rows(1, N, 1), scales[MAX_ROWS];
    uint16_t half[MAX_ROWS * STRIDE];
    struct floats y = rows_on_card(NULL, 0, N), from = rows_on_card(x, 3, N), card_w = launches_floats(w, N);
    int n_padded = cuda_padded_rows(cuda, 3);
    assert_false(cuda_norm_halves(cuda, y.buffer->data, n_padded, N, half, STRIDE, 0, scales));
    launches_wait(true);
    cuda_rmsnorm(be, y, from, NO_FLOATS, card_w, 3, N, 1e-5f);
    assert_false(cuda_norm_halves(cuda, from.buffer->data, n_padded, N, half, STRIDE, 0, scales));
    assert_false(cuda_norm_halves(cuda, y.buffer->data, n_padded - 1, N, half, STRIDE, 0, scales));
    assert_true(cuda_norm_halves(cuda, y.buffer->data, n_padded, N, half, STRIDE, 0, scales));
    assert_false(cuda_norm_halves(cuda, y.buffer->data, n_padded, N, half, STRIDE, 0, scales));
    cuda_scale(be, from, 2, 3, N);
    assert_false(cuda_norm_halves(cuda, y.buffer->data, n_padded, N, half, STRIDE, 0, scales));
    launches_wait(false);
    for (int r = 0; r < 3; r++)
        check_halves(half + r * STRIDE, STRIDE, scales[r], y.buffer->data + r * N, N);
    free(x);
    free(w);
}

static void adapted_norms_use_the_weights_of_each_row(void **state)
{
    (void)state;
    const int n = 96, n_rows = 5;
    float *x = random_rows(n_rows, n, 3), *w = random_rows(4, n, 1);
    const int32_t adapters[] = { 2, -1, 0, 1, 3 }; /* 1 and 3 change no norm, as the rows of padding */
    struct floats all[4];
    for (int i = 0; i < 4; i++)
        all[i] = launches_floats(w + i * n, (size_t)n);
    const struct norm_update first = { all[1], NO_FLOATS }, last = { all[3], NO_FLOATS };
    const struct norm_update *const updates[] = { &first, NULL, &last, NULL };
    struct floats y = rows_on_card(NULL, 0, n), want = rows_on_card(NULL, 0, n),
                  from = rows_on_card(x, n_rows, n);
    cuda_norm_adapted(be, y, from, NO_FLOATS, all[0], NO_FLOATS, n_rows, n, 1e-5f, updates, adapters);
    for (int r = 0; r < n_rows; r++) {
        int weights = r == 0 ? 3 : r == 2 ? 1 : 0;
        cuda_rmsnorm(be, want, rows_on_card(x + r * n, 1, n), NO_FLOATS, all[weights], 1, n, 1e-5f);
        assert_memory_equal(y.buffer->data + r * n, want.buffer->data, sizeof(float) * (size_t)n);
    }
    free(x);
    free(w);
}

static void elements_have_the_bits_of_the_reference(void **state)
{
    static const int sizes[] = { 1, 31, 64, 1000 };
    (void)state;
    for (int k = 0; k < 4; k++) {
        int n = sizes[k], n_rows = 3;
        size_t bytes = sizeof(float) * (size_t)n_rows * (size_t)n, count = (size_t)n_rows * (size_t)n;
        float *x = random_rows(n_rows, n, 50), *add = random_rows(n_rows, n, 5), *want = malloc(bytes);
        x[0] = NAN;
        x[n] = INFINITY;
        x[2 * n] = -INFINITY;
        struct floats y = rows_on_card(NULL, 0, n);
        cuda_scale_add(be, y, rows_on_card(x, n_rows, n), 0.3f, rows_on_card(add, n_rows, n), n_rows, n);
        scale_add_ref(want, x, 0.3f, add, (int64_t)count);
        assert_true(is_same(y.buffer->data, want, count));
        y = rows_on_card(x, n_rows, n);
        cuda_scale(be, y, 1.7f, n_rows, n);
        for (size_t i = 0; i < count; i++)
            want[i] = x[i] * 1.7f;
        assert_true(is_same(y.buffer->data, want, count));
        y = rows_on_card(x, n_rows, n);
        cuda_softcap(be, y, 30, n_rows, n);
        memcpy(want, x, bytes);
        softcap_ref(want, 30, (int64_t)count);
        assert_true(is_same(y.buffer->data, want, count));
        y = rows_on_card(x, n_rows, n);
        cuda_activate(be, y, n_rows, n, ACT_GELU_ERF);
        memcpy(want, x, bytes);
        gelu_erf_ref(want, (int64_t)count);
        assert_true(is_same(y.buffer->data, want, count));
        /* Not aligned to vectors: the same. */
        float *moved = malloc(bytes + sizeof(float));
        memcpy(moved, x, bytes);
        struct floats shifted = launches_floats(NULL, (size_t)MAX_ROWS * (size_t)n + 1);
        shifted.offset = 1;
        memcpy(shifted.buffer->data + 1, x, bytes);
        cuda_activate(be, shifted, n_rows, n, ACT_GELU_ERF);
        assert_true(is_same(shifted.buffer->data + 1, want, count));
        free(moved);
        free(x);
        free(add);
        free(want);
    }
}

static void rows_are_copied_where_the_step_says(void **state)
{
    enum { N = 37, N_ROWS = 5, N_TABLE = 9 };
    static const int32_t positions[MAX_ROWS] = { 3, 8, 0, 1, 1 }, second[MAX_ROWS] = { 1, 0, 2 },
                         outputs[MAX_ROWS] = { 4, 1, 1 };
    (void)state;
    const struct step step = { .n_rows = N_ROWS, .n_outputs = 3 };
    cuda->step = &step;
    cuda->n_padded_rows = MAX_ROWS;
    cuda->rows = (struct step_rows){ .positions = positions,
                                     .block_positions = second,
                                     .output_rows = outputs };
    float *x = random_rows(N_ROWS, N, 1), *add = random_rows(N_ROWS, N, 1),
          *table = random_rows(N_TABLE, N, 1);
    struct floats card_table = launches_floats(table, N_TABLE * N);
    for (int use = POSITIONS_REPLACE; use <= POSITIONS_ADD_SECOND; use++) {
        struct floats y = rows_on_card(x, N_ROWS, N);
        cuda_positions(be, y, card_table, 0, N_ROWS, N, use);
        for (int i = 0; i < N_ROWS * N; i++) {
            int at = use == POSITIONS_ADD_SECOND ? second[i / N] : positions[i / N];
            float want = table[at * N + i % N] + (use == POSITIONS_REPLACE ? 0 : x[i]);
            assert_true(y.buffer->data[i] == want);
        }
    }
    struct floats y = rows_on_card(NULL, 0, 2 * N), from = rows_on_card(x, N_ROWS, N),
                  more = rows_on_card(add, N_ROWS, N);
    cuda_concat(be, y, from, N, more, N, N_ROWS);
    for (int r = 0; r < N_ROWS; r++) {
        assert_memory_equal(y.buffer->data + r * 2 * N, x + r * N, sizeof(float) * N);
        assert_memory_equal(y.buffer->data + r * 2 * N + N, add + r * N, sizeof(float) * N);
    }
    for (int has_add = 0; has_add < 2; has_add++) {
        y = rows_on_card(NULL, 0, N);
        cuda_gather(be, y, from, has_add ? more : NO_FLOATS, N);
        for (int i = 0; i < 3 * N; i++) {
            int at = outputs[i / N] * N + i % N;
            assert_true(y.buffer->data[i] == (has_add ? x[at] + add[at] : x[at]));
        }
    }
    free(x);
    free(add);
    free(table);
}

static void rotary_tables_are_those_of_the_cpu(void **state)
{
    enum { N_ROWS = 6, DIM = 32 };
    static const int32_t positions[MAX_ROWS] = { 0, 1, 131071, 77, 16777215, 5 },
                         second[MAX_ROWS] = { 4, 3, 2, 1, 0, 9 };
    (void)state;
    float freqs[DIM / 2];
    for (int i = 0; i < DIM / 2; i++)
        freqs[i] = (float)pow(10000, -2.0 * i / DIM);
    cuda->n_padded_rows = N_ROWS;
    cuda->rows = (struct step_rows){ .rope_positions = positions, .block_positions = second };
    struct cuda_kind kinds[2] = { 0 };
    for (int k = 0; k < 2; k++) {
        kinds[k].shape = (struct attention_shape){ .rotary_dim = DIM,
                                                   .rope = k ? ROPE_2D : ROPE_HALF,
                                                   .rope_freqs = freqs,
                                                   .rope_scale = k ? 1 : 1.25f };
        kinds[k].cos_sin = launches_floats(NULL, N_ROWS * DIM).buffer->data;
    }
    cuda->kinds = kinds;
    cuda->n_kinds = 2;
    cuda_rope_tables(cuda);
    for (int k = 0; k < 2; k++) {
        int n_parts = k + 1, n_pairs = DIM / 2 / n_parts;
        for (int i = 0; i < N_ROWS * DIM / 2; i++) {
            int row = i / (DIM / 2), part = i % (DIM / 2) / n_pairs, j = i % n_pairs;
            const float *at = kinds[k].cos_sin + row * DIM + part * 2 * n_pairs;
            float angle = (float)(part ? second : positions)[row] * freqs[j];
            assert_true(at[j] == (float)cos((double)angle) * kinds[k].shape.rope_scale);
            assert_true(at[n_pairs + j] == (float)sin((double)angle) * kinds[k].shape.rope_scale);
        }
    }
    cuda->n_kinds = 0;
}

static void checksums_see_every_byte_and_no_address(void **state)
{
    (void)state;
    enum { N = 5003 };
    uint8_t *bytes = cuda_memory_new(cuda, N + 16), *copy = cuda_memory_new(cuda, N + 16);
    for (int i = 0; i < N; i++)
        bytes[i] = copy[i] = (uint8_t)rng_bits(1, 2, (uint64_t)i);
    bytes[N] = 7; /* does not count */
    uint64_t sum = cuda_checksum_bytes(cuda, bytes, N);
    cuda->n_sms = 1;
    assert_true(cuda_checksum_bytes(cuda, copy, N) == sum);
    assert_true(cuda_checksum_bytes(cuda, copy, N - 1) != sum);
    for (int i = 0; i < N; i += i < N - 20 ? 97 : 1) {
        copy[i] ^= 1;
        assert_true(cuda_checksum_bytes(cuda, copy, N) != sum);
        copy[i] ^= 1;
    }
    uint64_t first[2];
    memcpy(first, copy, sizeof first);
    memcpy(copy, &first[1], 8);
    memcpy(copy + 8, &first[0], 8);
    assert_true(cuda_checksum_bytes(cuda, copy, N) != sum);
    cuda_memory_free(cuda, bytes);
    cuda_memory_free(cuda, copy);
    assert_true(cuda_checksum_bytes(cuda, copy, 0) != 0);
    assert_true(cuda_arithmetic_checksum(be) != 0);
}

static int open_launches(void **state)
{
    (void)state;
    cuda = launches_new(MAX_ROWS);
    be = &cuda->backend;
    return cuda_adapters_reserve(cuda, MAX_ROWS) ? 0 : 1;
}

static int close_launches(void **state)
{
    cuda_checksum_release(cuda);
    cuda_adapters_release(cuda);
    return launches_clear(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_near_double_and_do_not_depend_on_other_rows),
        cmocka_unit_test(all_variants_of_the_norm_give_the_same_bits),
        cmocka_unit_test(a_norm_also_gives_the_rows_of_a_linear_layer),
        cmocka_unit_test(a_linear_layer_asks_the_norm_before_it_for_halves),
        cmocka_unit_test(adapted_norms_use_the_weights_of_each_row),
        cmocka_unit_test(elements_have_the_bits_of_the_reference),
        cmocka_unit_test(rows_are_copied_where_the_step_says),
        cmocka_unit_test(rotary_tables_are_those_of_the_cpu),
        cmocka_unit_test(checksums_see_every_byte_and_no_address),
    };
    return cmocka_run_group_tests(tests, open_launches, close_launches);
}
