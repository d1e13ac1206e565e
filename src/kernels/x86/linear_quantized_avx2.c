/* Linear layers of quantized weights with AVX2: the twin of linear_quantized() in ref/linear.c.
 *
 * Q4_0: vpmaddubsw multiplies unsigned weights (0..15) by signed activations (-127..127) and adds pairs in 16 bits. The
 * eight pairs of a lane in a block stay within 8 * 2 * 15 * 127 = 30480, so that nothing saturates and one widening
 * addition a block is enough. Q8_0: 255 * 127 * 2 would saturate; weights and activations are widened and go through vpmaddwd. */
#include "kernels/pack.h"
#include "kernels/x86/x86.h"

#include <immintrin.h>

enum {
    MOST_ROWS = 4, /* totals of two registers each */
    AHEAD = 8192,  /* bytes ahead of the weights being read that are asked for where they come from memory */
};

struct block {
    const uint8_t *quants;
    const int32_t *q, *start; /* of the first row */
    const float *d;
    __m256 scale[2];
};

/* Adds the sums of a block, as whole numbers, to the totals. */
INLINE void add_sums(const struct block *b, __m256 total[2], int r, __m256i sum0, __m256i sum1)
{
    __m256 d = _mm256_set1_ps(b->d[r]);
    total[0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum0), _mm256_mul_ps(b->scale[0], d), total[0]);
    total[1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum1), _mm256_mul_ps(b->scale[1], d), total[1]);
}

INLINE void block_q4_0(const struct block *b, __m256 total[][2], const int n_rows)
{
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i sum[MOST_ROWS][2];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    UNROLL
    for (int g = 0; g < 4; g++)
        UNROLL
    for (int half = 0; half < 2; half++) {
        __m256i two = _mm256_load_si256((const __m256i *)(b->quants + 64 * g + 32 * half));
        __m256i w0 = _mm256_and_si256(two, low), w1 = _mm256_and_si256(_mm256_srli_epi16(two, 4), low);
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            __m256i p0 = _mm256_maddubs_epi16(w0, _mm256_set1_epi32(b->q[r * 8 + g]));
            __m256i p1 = _mm256_maddubs_epi16(w1, _mm256_set1_epi32(b->q[r * 8 + g + 4]));
            sum[r][half] = _mm256_add_epi16(sum[r][half], _mm256_add_epi16(p0, p1));
        }
    }
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        __m256i start = _mm256_set1_epi32(b->start[r]);
        add_sums(b, total[r], r, _mm256_add_epi32(start, _mm256_madd_epi16(sum[r][0], ones)),
                 _mm256_add_epi32(start, _mm256_madd_epi16(sum[r][1], ones)));
    }
}

/* Even and odd columns apart: bytes 0 and 2 of each four, then 1 and 3, stand in the 16-bit halves of a lane. */
INLINE void block_q8_0(const struct block *b, __m256 total[][2], const int n_rows)
{
    const __m256i low = _mm256_set1_epi16(255);
    __m256i sum[MOST_ROWS][2];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        sum[r][0] = sum[r][1] = _mm256_set1_epi32(b->start[r]);
    UNROLL
    for (int g = 0; g < 8; g++) {
        __m256i w[2][2];
        UNROLL
        for (int half = 0; half < 2; half++) {
            __m256i four = _mm256_load_si256((const __m256i *)(b->quants + 64 * g + 32 * half));
            w[half][0] = _mm256_and_si256(four, low);
            w[half][1] = _mm256_srli_epi16(four, 8);
        }
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            __m256i q = _mm256_set1_epi32(b->q[r * 8 + g]);
            __m256i q0 = _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8), q1 = _mm256_srai_epi16(q, 8);
            UNROLL
            for (int half = 0; half < 2; half++) {
                __m256i p0 = _mm256_madd_epi16(w[half][0], q0), p1 = _mm256_madd_epi16(w[half][1], q1);
                sum[r][half] = _mm256_add_epi32(sum[r][half], _mm256_add_epi32(p0, p1));
            }
        }
    }
    UNROLL
    for (int r = 0; r < n_rows; r++)
        add_sums(b, total[r], r, sum[r][0], sum[r][1]);
}

/* One panel with n_rows of the tile's all_rows rows, from row first; n_rows and is_q4 are known when it is compiled. */
INLINE void quantized_panel(float *out, const uint8_t *panel, const bool is_q4, const uint8_t *x,
                            int all_rows, int first, const int n_rows, int n_blocks, bool is_cold)
{
    const size_t packed = is_q4 ? PACK_Q4_0_BLOCK : PACK_Q8_0_BLOCK, group = PACK_SCALE_BYTES + 2 * packed;
    __m256 total[MOST_ROWS][2];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        total[r][0] = total[r][1] = _mm256_setzero_ps();
    for (int i = 0; i < n_blocks; i++, x += all_rows * (BLOCK + 8)) {
        const uint8_t *at = panel + (size_t)(i / 2) * group;
        const __m128i *scales = (const __m128i *)(at + i % 2 * 32);
        struct block b = { .quants = at + PACK_SCALE_BYTES + (size_t)(i % 2) * packed,
                           .q = (const int32_t *)x + first * 8,
                           .d = (const float *)x + all_rows * 8 + first,
                           .start = (const int32_t *)x + all_rows * 9 + first,
                           .scale = { _mm256_cvtph_ps(scales[0]), _mm256_cvtph_ps(scales[1]) } };
        if (is_cold)
            for (size_t line = 0; line < packed + 32; line += 64)
                _mm_prefetch((const char *)b.quants + AHEAD + line, _MM_HINT_T0);
        if (is_q4)
            block_q4_0(&b, total, n_rows);
        else
            block_q8_0(&b, total, n_rows);
    }
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        _mm256_storeu_ps(out + (first + r) * PANEL_ROWS, total[r][0]);
        _mm256_storeu_ps(out + (first + r) * PANEL_ROWS + 8, total[r][1]);
    }
}

#define CASE(n)                                                                                              \
    case n:                                                                                                  \
        quantized_panel(out, panels, is_q4, x, n_rows, r, n, n_in / BLOCK, is_cold && r == 0);               \
        break;

INLINE void linear_quantized(float *out, const uint8_t *panels, const bool is_q4, int n_panels, const void *x,
                             int n_rows, int n_in, bool is_cold)
{
    size_t stride = 0;
    panel_bytes(is_q4 ? DTYPE_Q4_0 : DTYPE_Q8_0, n_in, &stride);
    for (int p = 0; p < n_panels; p++, panels += stride, out += n_rows * PANEL_ROWS)
        for (int r = 0; r < n_rows; r += MOST_ROWS)
            switch (n_rows - r < MOST_ROWS ? n_rows - r : MOST_ROWS) {
                CASE(1)
                CASE(2)
                CASE(3)
                CASE(4)
            }
}

void linear_q8_0_avx2(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows, int n_in,
                      bool is_cold)
{
    linear_quantized(out, panels, false, n_panels, x, n_rows, n_in, is_cold);
}

void linear_q4_0_avx2(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows, int n_in,
                      bool is_cold)
{
    linear_quantized(out, panels, true, n_panels, x, n_rows, n_in, is_cold);
}
