/* Tests of the CUDA backend's pages: their layout, what is stored in them, and copies of them. */
#include "backend/cuda/attention/cuda_kv.h"
#include "backend/kv_type.h"
#include "cuda/launches.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_ROWS = 5, PADDED = 8, N_PAGES = 7, N_SLOTS = 5, PAGE_FLOATS = 10, N_LAYERS = 3 };
enum { N_HEADS = 6, N_KV = 2, DIM = 24, LATENT = 40, LATENT_DIM = 56 };

static const float FREQS[64] = { 1, 0.5f, 0.25f };
/* Layers 0 and 2 have a window; layer 1 has latents. */
static const struct attention_shape SHAPES[] = {
    { .n_heads = N_HEADS,
      .n_kv_heads = N_KV,
      .head_dim = DIM,
      .scale = 1,
      .window = 20,
      .qk_norm_eps = 1e-6f },
    { .n_heads = 3,
      .n_kv_heads = 1,
      .head_dim = LATENT_DIM,
      .n_latent = LATENT,
      .rotary_dim = LATENT_DIM - LATENT,
      .rope = ROPE_INTERLEAVED,
      .rope_freqs = FREQS,
      .rope_scale = 1,
      .scale = 1,
      .qk_norm_eps = 1e-6f },
};
static const uint8_t KINDS[N_LAYERS] = { 0, 1, 0 };

/* Rows 0 to 2 are positions 15 to 17 of sequence 0, rows 3 and 4 positions 3 and 4 of sequence 1. */
static const int32_t POSITIONS[PADDED] = { 15, 16, 17, 3, 4 }, SEQS[PADDED] = { 0, 0, 0, 1, 1, 2, 2, 2 },
                     SLOTS[] = { 1, 0, 1 << 20 };
static const int32_t PAGES[][2] = { { 3, -1 }, { 5, 2 } }, WINDOWS[][2] = { { 4, -1 }, { 0, 3 } };
static const struct step_counts COUNTS = { .n_rows = N_ROWS, .n_seqs = 2 };
static const struct step STEP = { .n_rows = N_ROWS, .n_seqs = 2, .positions = POSITIONS, .seqs = SEQS };

static uint64_t n_drawn;

static float random_value(void)
{
    n_drawn = n_drawn * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(n_drawn >> 32) * 0x1p-30f;
}

static struct floats random_rows(int n_rows, int n)
{
    struct floats x = launches_floats(NULL, (size_t)PADDED * (size_t)n);
    for (int i = 0; i < n_rows * n; i++)
        x.buffer->data[i] = random_value();
    return x;
}

static struct cuda_backend *backend_new(void)
{
    struct cuda_backend *cuda = launches_new(PADDED);
    cuda->n_layers = N_LAYERS;
    cuda->n_kinds = 2;
    cuda->page_floats = PAGE_FLOATS;
    cuda->kinds = calloc(2, sizeof *cuda->kinds);
    cuda->layer_kinds = malloc(N_LAYERS);
    memcpy(cuda->layer_kinds, KINDS, N_LAYERS);
    for (int i = 0; i < 2; i++) {
        size_t n = (size_t)SHAPES[i].rotary_dim;
        cuda->kinds[i].shape = SHAPES[i];
        cuda->kinds[i].cos_sin = random_rows(PADDED, (int)n).buffer->data;
    }
    cuda->step = &STEP;
    cuda->n_padded_rows = PADDED;
    cuda->rows = (struct step_rows){ .positions = POSITIONS,
                                     .seqs = SEQS,
                                     .slots = SLOTS,
                                     .page_tables = &PAGES[0][0],
                                     .window_tables = &WINDOWS[0][0],
                                     .counts = &COUNTS,
                                     .max_pages = 2 };
    assert_true(cuda_attention_reserve(cuda, PADDED));
    return cuda;
}

static struct kv_memory *kv_new(struct cuda_backend *cuda, enum dtype type)
{
    struct kv_memory *kv = NULL;
    struct tutti_error err;
    if (cuda_kv_new(&cuda->backend, &kv, N_PAGES, N_SLOTS, type, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return kv;
}

static void backend_free(struct cuda_backend *cuda, struct kv_memory *kv)
{
    cuda_kv_free(&cuda->backend, kv);
    cuda_attention_release(cuda);
    free(cuda->kinds);
    free(cuda->layer_kinds);
}

static const enum dtype TYPES[] = { DTYPE_F16, DTYPE_F32, DTYPE_I8, DTYPE_BF16 };
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

/* ---- tests ---- */

static void pages_have_the_bytes_of_kv_type(void **state)
{
    (void)state;
    struct cuda_backend *cuda = backend_new();
    for (int i = 0; i < N_TYPES; i++) {
        size_t head = kv_type_bytes(TYPES[i], DIM), latent = kv_type_latent_bytes(TYPES[i], LATENT_DIM);
        size_t windows = 2 * 16 * (size_t)N_KV * 2 * head;
        assert_int_equal(cuda_kv_window_bytes(&cuda->backend, TYPES[i]), windows);
        assert_int_equal(cuda_kv_page_bytes(&cuda->backend, TYPES[i]),
                         windows + 16 * latent + PAGE_FLOATS * sizeof(float));
    }
    backend_free(cuda, NULL);
}

/* An element that was stored, and what it was stored from. */
static void check_element(const uint8_t *part, enum dtype type, int n_part, int index, int at,
                          const float *row, int n, int d)
{
    if (type == DTYPE_F32) {
        assert_true(((const float *)part)[index] == row[d]);
    } else if (type == DTYPE_F16) {
        assert_int_equal(((const uint16_t *)part)[index], float_to_half(row[d]));
    } else if (type == DTYPE_BF16) {
        assert_int_equal(((const uint16_t *)part)[index], float_to_bf16(row[d]));
    } else {
        int8_t want[CUDA_MAX_HEAD_DIM];
        float scale = to_int8_ref(want, row, n);
        assert_int_equal(((const int8_t *)part)[index], want[d]);
        assert_true(((const float *)(part + 16 * n_part))[at] == scale);
    }
}

/* A row's keys and values in a layer with a window. */
static void check_row(const struct kv_memory *kv, int layer, int row, const float *keys, const float *values)
{
    int pos = POSITIONS[row], at = pos % 16, slot = WINDOWS[SLOTS[SEQS[row]]][pos / 16];
    const struct kv_layer_pages *pages = &kv->layers[layer];
    size_t bytes = cuda_kv_head_bytes(cuda_kv_type_of(kv->dtype), DIM);
    for (int h = 0; h < N_KV; h++) {
        const uint8_t *part = pages->pages + (size_t)slot * pages->page_bytes + (size_t)h * 2 * bytes;
        for (int d = 0; d < DIM; d++) {
            check_element(part, kv->dtype, DIM, at * DIM + d, at, keys + h * DIM, DIM, d);
            check_element(part + bytes, kv->dtype, DIM, d * 16 + at, at, values + h * DIM, DIM, d);
        }
    }
}

static void rows_are_stored_as_on_the_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < N_TYPES; i++) {
        struct cuda_backend *cuda = backend_new();
        struct kv_memory *kv = kv_new(cuda, TYPES[i]);
        enum { ROW = (N_HEADS + 2 * N_KV) * DIM };
        struct floats qkv = random_rows(N_ROWS, ROW), norm = random_rows(PADDED, DIM);
        float want[N_ROWS * ROW];
        memcpy(want, qkv.buffer->data, sizeof want);
        want[ROW + 20 * 0 + N_HEADS * DIM] = qkv.buffer
                                                 ->data[ROW + N_HEADS * DIM] = 7e4f; /* too large for F16 */
        for (int d = 0; d < DIM; d++) /* zeros, and values that are not finite */
            want[2 * ROW + (N_HEADS + N_KV) * DIM + d] = qkv.buffer
                                                             ->data[2 * ROW + (N_HEADS + N_KV) * DIM + d] = 0;
        cuda_rope_store(&cuda->backend, qkv, norm, i == 1 ? norm : NO_FLOATS, kv, 2);
        for (int r = 0; r < N_ROWS; r++) {
            float *row = want + r * ROW;
            rmsnorm_ref(row, row, norm.buffer->data, N_HEADS, DIM, 1e-6f);
            if (i == 1)
                rmsnorm_ref(row + N_HEADS * DIM, row + N_HEADS * DIM, norm.buffer->data, N_KV, DIM, 1e-6f);
            assert_memory_equal(qkv.buffer->data + r * ROW, row, sizeof(float) * (N_HEADS + N_KV) * DIM);
            check_row(kv, 2, r, row + N_HEADS * DIM, row + (N_HEADS + N_KV) * DIM);
        }
        backend_free(cuda, kv);
    }
}

static void prefixes_take_the_place_of_rows(void **state)
{
    (void)state;
    for (int i = 0; i < N_TYPES; i++) {
        struct cuda_backend *cuda = backend_new();
        struct kv_memory *kv = kv_new(cuda, TYPES[i]);
        enum { ROW = (N_HEADS + 2 * N_KV) * DIM, N_PREFIX = 17, N_POSITION = 2 * N_KV * DIM };
        struct floats qkv = random_rows(N_ROWS, ROW);
        struct floats rows = launches_floats(NULL, (size_t)N_LAYERS * N_PREFIX * N_POSITION);
        for (int k = 0; k < N_LAYERS * N_PREFIX * N_POSITION; k++)
            rows.buffer->data[k] = random_value();
        const struct kv_prefix prefix = { N_PREFIX, rows };
        const struct kv_prefix *const prefixes[] = { NULL, &prefix };
        const int32_t adapters[] = { 1, 1, 1, 0, -1 };
        cuda_rope_store(&cuda->backend, qkv, NO_FLOATS, NO_FLOATS, kv, 2);
        cuda_prefix_store(&cuda->backend, kv, 2, prefixes, adapters);
        for (int r = 0; r < N_ROWS; r++) {
            const float *keys = qkv.buffer->data + r * ROW + N_HEADS * DIM;
            if (r < 2) /* position 17 is after the prefix */
                keys = rows.buffer->data + ((size_t)2 * N_PREFIX + (size_t)POSITIONS[r]) * N_POSITION;
            check_row(kv, 2, r, keys, keys + N_KV * DIM);
        }
        backend_free(cuda, kv);
    }
}

static void latents_are_stored_as_on_the_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < N_TYPES; i++) {
        struct cuda_backend *cuda = backend_new();
        struct kv_memory *kv = kv_new(cuda, TYPES[i]);
        enum { HEADS = 3, Q_DIM = 30, ROTARY = LATENT_DIM - LATENT };
        struct floats queries = random_rows(N_ROWS, HEADS * LATENT_DIM),
                      q = random_rows(N_ROWS, HEADS * Q_DIM);
        struct floats rows = random_rows(N_ROWS, LATENT_DIM), norm = random_rows(PADDED, LATENT);
        const float *cos_sin = cuda->kinds[1].cos_sin;
        float want[N_ROWS * LATENT_DIM], want_q[N_ROWS * HEADS * LATENT_DIM];
        memcpy(want, rows.buffer->data, sizeof want);
        memcpy(want_q, queries.buffer->data, sizeof want_q);
        cuda_latent_store(&cuda->backend, queries, q, Q_DIM, rows, norm, kv, 1);
        for (int r = 0; r < N_ROWS; r++) {
            float *row = want + r * LATENT_DIM, *to = want_q + r * HEADS * LATENT_DIM;
            for (int h = 0; h < HEADS; h++)
                memcpy(to + h * LATENT_DIM + LATENT, q.buffer->data + (r * HEADS + h + 1) * Q_DIM - ROTARY,
                       ROTARY * sizeof(float));
            rope_interleaved_ref(to + LATENT, cos_sin + r * ROTARY, HEADS, LATENT_DIM, ROTARY);
            assert_memory_equal(queries.buffer->data + r * HEADS * LATENT_DIM, to,
                                HEADS * LATENT_DIM * sizeof(float));
            rmsnorm_ref(row, row, norm.buffer->data, 1, LATENT, 1e-6f);
            rope_interleaved_ref(row + LATENT, cos_sin + r * ROTARY, 1, LATENT_DIM, ROTARY);
            int at = POSITIONS[r] % 16, page_id = PAGES[SLOTS[SEQS[r]]][POSITIONS[r] / 16];
            const uint8_t *page = kv->layers[1].pages + (size_t)page_id * kv->layers[1].page_bytes;
            for (int d = 0; d < LATENT_DIM; d++) {
                bool is_latent = d < LATENT;
                check_element(page, kv->dtype, LATENT_DIM, at * LATENT_DIM + d, is_latent ? at : 16 + at,
                              is_latent ? row : row + LATENT, is_latent ? LATENT : ROTARY,
                              is_latent ? d : d - LATENT);
            }
        }
        backend_free(cuda, kv);
    }
}

static void fill(struct kv_memory *kv, int layer, int page, int value)
{
    memset(kv->layers[layer].pages + (size_t)page * kv->layers[layer].page_bytes, value,
           kv->layers[layer].page_bytes);
}

static void check_fill(const struct kv_memory *kv, int layer, int page, int value)
{
    const uint8_t *bytes = kv->layers[layer].pages + (size_t)page * kv->layers[layer].page_bytes;
    for (size_t i = 0; i < kv->layers[layer].page_bytes; i++)
        assert_int_equal(bytes[i], value);
}

static void pages_are_copied_in_all_layers(void **state)
{
    (void)state;
    struct cuda_backend *cuda = backend_new();
    for (int i = 0; i < N_TYPES; i++) {
        struct kv_memory *kv = kv_new(cuda, TYPES[i]);
        size_t n = cuda_kv_page_bytes(&cuda->backend, TYPES[i]);
        uint8_t *image = malloc(n), *again = malloc(n);
        assert_int_equal(kv->n_layers, N_LAYERS + 1);
        for (int layer = 0; layer <= N_LAYERS; layer++)
            for (int page = 0; page < (layer % 2 == 0 && layer < N_LAYERS ? N_SLOTS : N_PAGES); page++)
                fill(kv, layer, page, 16 * layer + page);
        cuda_kv_copy_page(&cuda->backend, kv,
                          &(struct page_copy){ .dst = 6, .src = 2, .window_dst = 1, .window_src = 4 });
        for (int layer = 0; layer <= N_LAYERS; layer++) {
            bool windowed = layer % 2 == 0 && layer < N_LAYERS;
            for (int page = 0; page < (windowed ? N_SLOTS : N_PAGES); page++)
                check_fill(kv, layer, page,
                           16 * layer + (page == (windowed ? 1 : 6) ? (windowed ? 4 : 2) : page));
        }
        cuda_kv_to_image(cuda, kv, 3, image);
        for (size_t at = 0, layer = 0; layer <= N_LAYERS; at += kv->layers[layer++].page_bytes)
            assert_true(image[at] == 16 * layer + 3 &&
                        image[at + kv->layers[layer].page_bytes - 1] == 16 * layer + 3);
        cuda_kv_from_image(cuda, kv, 4, image);
        cuda_kv_to_image(cuda, kv, 4, again);
        assert_memory_equal(image, again, n);
        for (int layer = 0; layer <= N_LAYERS; layer++) {
            check_fill(kv, layer, 4, 16 * layer + 3);
            check_fill(kv, layer, 3, 16 * layer + 3);
        }
        free(image);
        free(again);
        cuda_kv_free(&cuda->backend, kv);
    }
    backend_free(cuda, NULL);
}

static void rows_of_pages_come_back(void **state)
{
    (void)state;
    struct cuda_backend *cuda = backend_new();
    struct kv_memory *kv = kv_new(cuda, DTYPE_F16);
    struct floats x = random_rows(N_ROWS, PAGE_FLOATS), y = launches_floats(NULL, PADDED * PAGE_FLOATS);
    const int32_t rows[] = { 4, 1 }, pages[] = { 5, 3 }, previous[N_ROWS] = { 2, -1, 0, -1, -1 };
    cuda_kv_store_rows(&cuda->backend, kv, x, rows, pages, 2);
    /* Before position 16 of sequence 0 comes page 5, before positions 3 and 4 of sequence 1 page 3. */
    static const int32_t WANT[N_ROWS] = { 2, 4, 0, 1, 1 };
    cuda_previous_rows(&cuda->backend, y, x, previous, kv, PAGE_FLOATS);
    for (int r = 0; r < N_ROWS; r++)
        assert_memory_equal(y.buffer->data + r * PAGE_FLOATS, x.buffer->data + WANT[r] * PAGE_FLOATS,
                            PAGE_FLOATS * sizeof(float));
    static const int32_t AT_START[PADDED] = { 0 };
    cuda->rows.positions = AT_START;
    cuda_previous_rows(&cuda->backend, y, x, previous, kv, PAGE_FLOATS);
    for (int d = 0; d < PAGE_FLOATS; d++)
        assert_true(y.buffer->data[PAGE_FLOATS + d] == 0);
    backend_free(cuda, kv);
}

static void what_cannot_be_had_is_refused(void **state)
{
    (void)state;
    struct cuda_backend *cuda = backend_new();
    struct kv_memory *kv = NULL;
    struct tutti_error err;
    assert_int_equal(cuda_kv_new(&cuda->backend, &kv, 1, 1, DTYPE_Q4_0, &err), TUTTI_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "expected f16, bf16, f32 or int8"));
    assert_int_equal(cuda_kv_new(&cuda->backend, &kv, 0, 1, DTYPE_F16, &err), TUTTI_E_LIMIT);
    assert_null(kv);
    backend_free(cuda, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_have_the_bytes_of_kv_type), cmocka_unit_test(rows_are_stored_as_on_the_cpu),
        cmocka_unit_test(prefixes_take_the_place_of_rows), cmocka_unit_test(latents_are_stored_as_on_the_cpu),
        cmocka_unit_test(pages_are_copied_in_all_layers),  cmocka_unit_test(rows_of_pages_come_back),
        cmocka_unit_test(what_cannot_be_had_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, launches_clear);
}
