/* Linear layers of quantized weights with VNNI: the twin of linear_quantized() in ref/linear.c.
 *
 * vpdpbusd adds to each of 16 lanes (output rows) the products of four unsigned weights and four signed activations,
 * which are the same for all lanes and come broadcast from memory. The sum of a block starts where the weights' offset
 * is already taken out, so that a tile of 16 rows costs ten multiplies a block and input row: eight dot products, the
 * product of the scales, and the addition to the total. The sums of different rows are independent and hide each
 * other's latency. */
#include "kernels/pack.h"
#include "kernels/x86/x86.h"

#include <immintrin.h>

/* Bytes ahead of the weights being read that are asked for: one row is bound by memory. */
enum { AHEAD = 9216 };

/* sum += w . q, where the four signed bytes at q stand for every lane. GCC 12 cannot be brought to use the broadcast
 * memory operand, which saves an instruction and a register. */
INLINE __m512i add_dot(__m512i sum, __m512i w, const int32_t *q)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*q));
    return sum;
}

INLINE void load_q8_0(__m512i w[8], const uint8_t *quants)
{
    for (int g = 0; g < 8; g++)
        w[g] = _mm512_load_si512(quants + 64 * g);
}

INLINE void load_q4_0(__m512i w[8], const uint8_t *quants)
{
    const __m512i low = _mm512_set1_epi8(15);
    for (int g = 0; g < 4; g++) {
        __m512i two = _mm512_load_si512(quants + 64 * g);
        w[g] = _mm512_and_si512(two, low);
        w[g + 4] = _mm512_and_si512(_mm512_srli_epi16(two, 4), low);
    }
}

/* One panel; n_rows and is_q4 are known when it is compiled. */
INLINE void quantized_panel(float *out, const uint8_t *panel, const bool is_q4, const uint8_t *x,
                            const int n_rows, int n_blocks, bool is_cold)
{
    const size_t packed = is_q4 ? PACK_Q4_0_BLOCK : PACK_Q8_0_BLOCK, group = PACK_SCALE_BYTES + 2 * packed;
    __m512 total[TILE_ROWS];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        total[r] = _mm512_setzero_ps();
    for (int b = 0; b < n_blocks; b++, x += n_rows * (BLOCK + 8)) {
        const uint8_t *at = panel + (size_t)(b / 2) * group,
                      *quants = at + PACK_SCALE_BYTES + (size_t)(b % 2) * packed;
        __m512i w[8];
        if (is_q4)
            load_q4_0(w, quants);
        else
            load_q8_0(w, quants);
        if (is_cold)
            for (size_t line = 0; line < packed + 32; line += 64)
                _mm_prefetch((const char *)quants + AHEAD + line, _MM_HINT_T0);
        __m512 scale = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(at + b % 2 * 32)));
        const int32_t *q = (const int32_t *)x, *start = q + n_rows * 9;
        const float *d = (const float *)x + n_rows * 8;
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            __m512i sum = _mm512_set1_epi32(start[r]);
            __m512i second =
                _mm512_setzero_si512(); /* two short chains fit the scheduler better than one long */
            UNROLL
            for (int g = 0; g < 4; g++) {
                sum = add_dot(sum, w[g], q + r * 8 + g);
                second = add_dot(second, w[g + 4], q + r * 8 + g + 4);
            }
            sum = _mm512_add_epi32(sum, second);
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(d[r])),
                                       total[r]);
        }
    }
    UNROLL
    for (int r = 0; r < n_rows; r++)
        _mm512_storeu_ps(out + r * PANEL_ROWS, total[r]);
}

#define CASE(n)                                                                                              \
    case n:                                                                                                  \
        for (int p = 0; p < n_panels; p++)                                                                   \
            quantized_panel(out + p * (n)*PANEL_ROWS, panels + (size_t)p * stride, is_q4, x, n,              \
                            n_in / BLOCK, is_cold);                                                          \
        break;

INLINE void linear_quantized(float *out, const uint8_t *panels, const bool is_q4, int n_panels, const void *x,
                             int n_rows, int n_in, bool is_cold)
{
    size_t stride = 0;
    panel_bytes(is_q4 ? DTYPE_Q4_0 : DTYPE_Q8_0, n_in, &stride);
    switch (n_rows) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
        CASE(12)
        CASE(13)
        CASE(14)
        CASE(15)
        CASE(16)
    }
}

void linear_q8_0_avx512(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows, int n_in,
                        bool is_cold)
{
    linear_quantized(out, panels, false, n_panels, x, n_rows, n_in, is_cold);
}

void linear_q4_0_avx512(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows, int n_in,
                        bool is_cold)
{
    linear_quantized(out, panels, true, n_panels, x, n_rows, n_in, is_cold);
}
