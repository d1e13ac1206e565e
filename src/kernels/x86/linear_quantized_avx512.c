/* Linear layers of quantized weights with VNNI: the twin of ref/linear_quantized.c.
 *
 * vpdpbusd adds to each of 16 lanes (output rows) the products of four unsigned weights and four signed activations,
 * which are the same for all lanes. The weights of a block and panel, unpacked, fill 16 registers; then the input rows
 * pass by, a few at a time: what is broadcast of a row serves both halves of the panel. A block's sum starts where the
 * zero point is already taken out. So a half costs ten multiplies for each block and input row: eight
 * dot products, the product with the scale added to the sum of the group, and one more addition a group. The sums of
 * the groups and the totals wait in the first cache. */
#include "kernels/pack.h"
#include "kernels/x86/x86.h"

#include <immintrin.h>
#include <string.h>

enum {
    AHEAD = 9216, /* bytes ahead of the weights being read that are asked for: few rows are bound by memory */
    BLOCKS_AHEAD =
        12, /* blocks ahead of the input rows: a tile comes from the third cache where there are many */
};

/* One block of a panel, ready to be multiplied. [half], then [group of columns] or [run of sub columns]. */
struct weights {
    __m512i w[2][8];
    __m512 scale[2][2], min[2][2];
};

/* The input rows of one block, and where their sums wait. */
struct input {
    const int32_t *q;     /* [n_rows][8] times four bytes */
    const int32_t *sums;  /* [n_rows][2] */
    const float *d;       /* [n_rows]; at the end of a group */
    float *group, *total; /* [2][n_rows][16] */
    int n_rows;
};

INLINE __m512i dot(__m512i sum, __m512i w, __m512i q)
{
    return _mm512_dpbusd_epi32(sum, w, q);
}

INLINE void unpack_low(__m512i w[8], const uint8_t *plane, const struct quant_format f)
{
    if (f.low_bits == 8) {
        UNROLL
        for (int g = 0; g < 8; g++)
            w[g] = _mm512_load_si512(plane + 64 * g);
        return;
    }
    const int n = f.low_bits; /* vectors: 4 or 2, of two or four numbers a byte */
    const __m512i mask = _mm512_set1_epi8(f.low_bits == 4 ? 15 : 3);
    UNROLL
    for (int v = 0; v < n; v++) {
        __m512i bytes = _mm512_load_si512(plane + 64 * v);
        UNROLL
        for (int k = 0; k < 8 / n; k++)
            w[v + k * n] = _mm512_and_si512(
                k == 0 ? bytes : _mm512_srli_epi16(bytes, (unsigned)(k * f.low_bits)), mask);
    }
}

/* Puts the bits of the high plane above those of the low one. */
INLINE void unpack_high(__m512i w[8], const uint8_t *plane, const struct quant_format f)
{
    const int n = f.high_bits;
    const __m512i mask = _mm512_set1_epi8((char)(((1 << n) - 1) << f.low_bits));
    UNROLL
    for (int v = 0; v < n; v++) {
        __m512i bytes = _mm512_load_si512(plane + 64 * v);
        UNROLL
        for (int k = 0; k < 8 / n; k++) {
            int up = f.low_bits - k * n;
            __m512i moved = up >= 0 ? _mm512_slli_epi16(bytes, (unsigned)(up >= 0 ? up : 0))
                                    : _mm512_srli_epi16(bytes, (unsigned)(up < 0 ? -up : 0));
            w[v + k * n] = _mm512_ternarylogic_epi32(w[v + k * n], moved, mask, 0xF8); /* a | (b & c) */
        }
    }
}

INLINE __m512 load_halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)p));
}

INLINE __m512 load_bytes(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)p)));
}

/* Scales and mins of block `block` of the unit. */
INLINE void load_scales(struct weights *w, const uint8_t *unit, int block, const struct quant_format f)
{
    const int n = BLOCK / f.sub;
    const uint8_t *subs = unit + (f.has_min ? 4 : 2) * PANEL_ROWS + (size_t)(block * n) * PANEL_ROWS;
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m512 scale = load_halves(unit + 32 * h);
        __m512 min = f.has_min ? load_halves(unit + 2 * PANEL_ROWS + 32 * h) : _mm512_setzero_ps();
        UNROLL
        for (int i = 0; i < n; i++) {
            const uint8_t *at = subs + i * PANEL_ROWS + 16 * h;
            if (f.is_joint) {
                __m512i both = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)at));
                w->scale[h][i] = _mm512_mul_ps(
                    scale, _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15))));
                w->min[h][i] = _mm512_mul_ps(min, _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4)));
            } else {
                w->scale[h][i] = f.is_super ? _mm512_mul_ps(scale, load_bytes(at)) : scale;
                w->min[h][i] = f.is_super && f.has_min
                                   ? _mm512_mul_ps(min, load_bytes(at + format_subs_bytes(f)))
                                   : min;
            }
        }
    }
}

/* The sum that takes the zero point out, from -sum(q). */
INLINE __m512i start_of(__m512i sum, const struct quant_format f)
{
    return f.zero == 0 ? _mm512_setzero_si512()
                       : _mm512_slli_epi32(sum, (unsigned)__builtin_ctz((unsigned)f.zero | 256u));
}

/* One block with n input rows from row r on; n and the three flags are known when it is compiled. */
INLINE void block_rows(const struct weights *w, const struct input *x, int r, const int n,
                       const struct quant_format f, const bool is_first, const bool is_last)
{
    const int runs = BLOCK / f.sub, per_run = 8 / runs;
    __m512i sum[4][2][2], negative[4][2];
    UNROLL
    for (int i = 0; i < n; i++) {
        __m512i all = _mm512_set1_epi32(x->sums[2 * (r + i)]);
        if (runs == 1) {
            negative[i][0] = all;
        } else {
            negative[i][0] = _mm512_set1_epi32(x->sums[2 * (r + i) + 1]);
            negative[i][1] = _mm512_sub_epi32(all, negative[i][0]);
        }
        UNROLL
        for (int s = 0; s < runs; s++)
            sum[i][0][s] = sum[i][1][s] = start_of(negative[i][s], f);
    }
    UNROLL
    for (int g = 0; g < 8; g++) {
        UNROLL
        for (int i = 0; i < n; i++) {
            __m512i q;
            /* Kept from being folded into both products: one load serves two. */
            __asm__("vpbroadcastd %1, %0" : "=v"(q) : "m"(x->q[(r + i) * 8 + g]));
            sum[i][0][g / per_run] = dot(sum[i][0][g / per_run], w->w[0][g], q);
            sum[i][1][g / per_run] = dot(sum[i][1][g / per_run], w->w[1][g], q);
        }
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            float *group = x->group + (h * x->n_rows + r + i) * LANES, *total = x->total + (group - x->group);
            __m512 value = _mm512_cvtepi32_ps(sum[i][h][0]);
            __m512 g = is_first ? _mm512_mul_ps(value, w->scale[h][0])
                                : _mm512_fmadd_ps(value, w->scale[h][0], _mm512_load_ps(group));
            if (runs == 2)
                g = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i][h][1]), w->scale[h][1], g);
            if (f.has_min)
                g = _mm512_fmadd_ps(_mm512_cvtepi32_ps(negative[i][0]), w->min[h][0], g);
            if (f.has_min && runs == 2)
                g = _mm512_fmadd_ps(_mm512_cvtepi32_ps(negative[i][1]), w->min[h][1], g);
            if (is_last)
                _mm512_storeu_ps(total,
                                 _mm512_fmadd_ps(g, _mm512_set1_ps(x->d[r + i]), _mm512_loadu_ps(total)));
            else
                _mm512_store_ps(group, g);
        }
    }
}

/* All input rows; those of 16-column runs two at a time, for want of registers. */
INLINE void block_all(const struct weights *w, const struct input *x, const struct quant_format f,
                      const bool is_first, const bool is_last)
{
    const int step = f.sub == BLOCK ? 4 : 2;
    int r = 0;
    for (; r + step <= x->n_rows; r += step) {
        const char *ahead = (const char *)(x->q + 8 * r) + BLOCKS_AHEAD * (BLOCK + 8) * x->n_rows;
        _mm_prefetch(ahead, _MM_HINT_T0);
        _mm_prefetch(ahead + 64, _MM_HINT_T0);
        block_rows(w, x, r, step, f, is_first, is_last);
    }
    switch (x->n_rows - r) {
    case 3:
        block_rows(w, x, r, 3, f, is_first, is_last);
        break;
    case 2:
        block_rows(w, x, r, 2, f, is_first, is_last);
        break;
    case 1:
        block_rows(w, x, r, 1, f, is_first, is_last);
        break;
    default:
        break;
    }
}

/* One panel. out: [2][n_rows][16]. */
INLINE void quantized_panel(float *out, const uint8_t *panel, const struct quant_format f,
                            const uint8_t *tile, int n_rows, int n_blocks, bool is_cold)
{
    _Alignas(64) float group[2 * TILE_ROWS * LANES];
    const int per_unit = format_unit_columns(f) / BLOCK;
    const size_t block_bytes = 2 * format_half_bytes(f), unit_bytes = format_unit_bytes(f);
    struct input x = { .group = group, .total = out, .n_rows = n_rows };
    memset(out, 0, (size_t)n_rows * PANEL_ROWS * sizeof *out);
    for (int b = 0; b < n_blocks; b++) {
        const uint8_t *unit = panel + (size_t)(b / per_unit) * unit_bytes;
        const uint8_t *block = unit + format_param_bytes(f) + (size_t)(b % per_unit) * block_bytes;
        struct weights w;
        UNROLL
        for (int h = 0; h < 2; h++) {
            const uint8_t *half = block + (size_t)h * format_half_bytes(f);
            unpack_low(w.w[h], half, f);
            if (f.high_bits > 0)
                unpack_high(w.w[h], half + format_low_bytes(f), f);
        }
        load_scales(&w, unit, b % per_unit, f);
        if (is_cold)
            for (size_t line = 0; line < unit_bytes / (size_t)per_unit; line += 64)
                _mm_prefetch((const char *)block + AHEAD + line, _MM_HINT_T0);
        x.q = (const int32_t *)tile;
        x.sums = x.q + n_rows * 8;
        x.d = (const float *)x.sums + 2 * n_rows;
        tile += n_rows * (BLOCK + 8);
        bool is_last = b % (GROUP / BLOCK) == GROUP / BLOCK - 1 || b == n_blocks - 1;
        if (b % (GROUP / BLOCK) == 0) {
            if (is_last)
                block_all(&w, &x, f, true, true);
            else
                block_all(&w, &x, f, true, false);
        } else if (is_last) {
            block_all(&w, &x, f, false, true);
        } else {
            block_all(&w, &x, f, false, false);
        }
        tile += is_last ? (size_t)n_rows * sizeof(float) : 0;
    }
}

#define LINEAR(name, dtype)                                                                                  \
    void linear_##name##_avx512(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows,  \
                                int n_in, bool is_cold)                                                      \
    {                                                                                                        \
        size_t stride = 0;                                                                                   \
        panel_bytes(dtype, n_in, &stride);                                                                   \
        for (int p = 0; p < n_panels; p++, out += n_rows * PANEL_ROWS, panels += stride)                     \
            quantized_panel(out, panels, quant_format(dtype), x, n_rows, n_in / BLOCK, is_cold);             \
    }
FOR_EACH_QUANTIZED(LINEAR)
