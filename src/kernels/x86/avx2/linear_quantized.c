/* Linear layers of quantized weights with AVX2: the optimized ref/linear_quantized.c.
 *
 * vpmaddubsw multiplies unsigned weights by signed activations (-127..127) and adds pairs in 16
 * bits. As many groups of columns are added in 16 bits as cannot saturate; then the sums are
 * widened. Eight-bit numbers are split into two nibbles. Eight output rows of a block stay in
 * eight registers, and the loop runs over the input rows. */
#include "kernels/input_block.h"
#include "kernels/pack.h"
#include "kernels/x86/x86.h"

#include <immintrin.h>
#include <string.h>

enum {
    STRIP = 8,             /* output rows of a register */
    PREFETCH_BYTES = 8192, /* prefetch distance in bytes, for weights that come from memory */
};

/* Eight output rows of one block. */
struct weights {
    __m256i w[8], high[8]; /* high: the upper nibbles of eight bits */
    __m256 scale[2], min[2];
};

struct input {
    const int32_t *q; /* [n_rows][8] times four bytes */
    const struct input_row *rows;
    float *total; /* [n_rows][16], of the half that the strip lies in */
    int n_rows;
};

/* Whether numbers are split into nibbles: their products would not fit 16 bits. */
INLINE bool is_split(const struct quant_format f)
{
    return format_largest(f) > 127;
}

INLINE __m256i load(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

/* strip: 0 or 1, of the half. */
INLINE void unpack(struct weights *w, const uint8_t *half, int strip, const struct quant_format f)
{
    const int n = f.low_bits, m = f.high_bits;
    const uint8_t *at = half + 32 * strip, *plane = at + format_low_bytes(f);
    const __m256i nibble = _mm256_set1_epi8(15);
    if (n == 8) {
        UNROLL
        for (int g = 0; g < 8; g++) {
            __m256i bytes = load(at + 64 * g);
            w->w[g] = _mm256_and_si256(bytes, nibble);
            w->high[g] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
        }
        return;
    }
    const __m256i mask = n == 4 ? nibble : _mm256_set1_epi8(3);
    UNROLL
    for (int g = 0; g < 8; g++)
        w->w[g] = _mm256_and_si256(_mm256_srli_epi16(load(at + 64 * (g % n)), g / n * n), mask);
    if (f.table != NUMBERS_PLAIN) {
        const __m256i table = _mm256_broadcastsi128_si256(
            _mm_load_si128((const __m128i *)number_tables[f.table]));
        UNROLL
        for (int g = 0; g < 8; g++) {
            __m256i numbers = _mm256_shuffle_epi8(table, w->w[g]);
            w->w[g] = is_split(f) ? _mm256_and_si256(numbers, nibble) : numbers;
            if (is_split(f))
                w->high[g] = _mm256_and_si256(_mm256_srli_epi16(numbers, 4), nibble);
        }
    }
    if (m == 0)
        return;
    const __m256i above = _mm256_set1_epi8((char)(((1 << m) - 1) << n));
    UNROLL
    for (int g = 0; g < 8; g++) {
        int up = n - g / m * m;
        __m256i bytes = load(plane + 64 * (g % m));
        bytes = up >= 0 ? _mm256_slli_epi16(bytes, up >= 0 ? up : 0)
                        : _mm256_srli_epi16(bytes, up < 0 ? -up : 0);
        w->w[g] = _mm256_or_si256(w->w[g], _mm256_and_si256(bytes, above));
    }
}

INLINE __m256 load_halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)p));
}

INLINE __m256 load_bytes(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* 2^(byte - 128) of eight bytes: stored.h. */
INLINE __m256 load_exponents(const uint8_t *p)
{
    __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(bytes, _mm256_set1_epi32(1)), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), bytes);
    return _mm256_castsi256_ps(
        _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), bytes)));
}

/* row: the first of the strip in its panel. */
INLINE void load_scales(struct weights *w, const uint8_t *unit, int row, int block,
                        const struct quant_format f)
{
    const int n = BLOCK / f.sub;
    const uint8_t *subs = unit + (f.has_min ? 4 : 2) * PANEL_ROWS + (size_t)(block * n) * PANEL_ROWS + row;
    __m256 scale = f.is_exponent ? load_exponents(unit + block * PANEL_ROWS + row)
                                 : load_halves(unit + 2 * row);
    if (f.is_eighth)
        scale = _mm256_mul_ps(scale, _mm256_set1_ps(0.125f));
    __m256 min = f.has_min ? load_halves(unit + 2 * PANEL_ROWS + 2 * row) : _mm256_setzero_ps();
    UNROLL
    for (int i = 0; i < n; i++, subs += PANEL_ROWS) {
        if (f.is_joint) {
            __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)subs));
            w->scale[i] = _mm256_mul_ps(scale,
                                        _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15))));
            w->min[i] = _mm256_mul_ps(min, _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4)));
        } else {
            w->scale[i] = f.is_super ? _mm256_mul_ps(scale, load_bytes(subs)) : scale;
            w->min[i] = f.is_super && f.has_min ? _mm256_mul_ps(min, load_bytes(subs + format_subs_bytes(f)))
                                                : min;
        }
    }
}

/* sum += w . q over groups begin..begin + n - 1 of columns. */
INLINE __m256i dot_groups(__m256i sum, const struct weights *w, const int32_t *q, const int begin,
                          const int n, const struct quant_format f)
{
    const __m256i ones = _mm256_set1_epi16(1);
    if (is_split(f)) {
        __m256i low = _mm256_setzero_si256(), high = low;
        UNROLL
        for (int g = begin; g < begin + n; g++) {
            __m256i four = _mm256_set1_epi32(q[g]);
            low = _mm256_add_epi16(low, _mm256_maddubs_epi16(w->w[g], four));
            high = _mm256_add_epi16(high, _mm256_maddubs_epi16(w->high[g], four));
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(low, ones));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
    }
    const int most = format_largest(f);
    const int fit = 32767 / (2 * 127 * most) >= 8 ? 8 : 32767 / (2 * 127 * most) >= 4 ? 4 : 2;
    const int step = fit < n ? fit : n;
    UNROLL
    for (int g = begin; g < begin + n; g += step) {
        __m256i short_sum = _mm256_maddubs_epi16(w->w[g], _mm256_set1_epi32(q[g]));
        UNROLL
        for (int k = 1; k < step; k++)
            short_sum = _mm256_add_epi16(short_sum,
                                         _mm256_maddubs_epi16(w->w[g + k], _mm256_set1_epi32(q[g + k])));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(short_sum, ones));
    }
    return sum;
}

INLINE void block_row(const struct weights *w, const struct input *x, int r, const struct quant_format f)
{
    const int runs = BLOCK / f.sub;
    const struct input_row *row = x->rows + r;
    const __m256 magic = _mm256_set1_ps(row->magic), step = _mm256_set1_ps((float)(INPUT_STEPS + row->step));
    float *at = x->total + r * LANES;
    __m256 total = _mm256_loadu_ps(at);
    UNROLL
    for (int s = 0; s < runs; s++) {
        __m256i start = f.zero == 0 ? _mm256_castps_si256(magic) : _mm256_set1_epi32(row->start[s]);
        __m256i sum = dot_groups(start, w, x->q + r * 8, s * 8 / runs, 8 / runs, f);
        total = _mm256_fmadd_ps(_mm256_sub_ps(_mm256_castsi256_ps(sum), magic),
                                _mm256_mul_ps(w->scale[s], step), total);
    }
    const int mins = f.has_min ? runs : 0;
    UNROLL
    for (int s = 0; s < mins; s++) {
        __m256 start = _mm256_castsi256_ps(_mm256_set1_epi32(row->start[s]));
        total = _mm256_fmadd_ps(_mm256_sub_ps(start, magic), _mm256_mul_ps(w->min[s], step), total);
    }
    _mm256_storeu_ps(at, total);
}

/* One panel. out: [2][n_rows][16]. */
INLINE void quantized_panel(float *out, const uint8_t *panel, const struct quant_format f,
                            const uint8_t *tile, int n_rows, int n_blocks)
{
    const int per_unit = format_unit_columns(f) / BLOCK;
    const size_t block_bytes = 2 * format_half_bytes(f), unit_bytes = format_unit_bytes(f);
    memset(out, 0, (size_t)n_rows * PANEL_ROWS * sizeof *out);
    for (int b = 0; b < n_blocks; b++) {
        const uint8_t *unit = panel + (size_t)(b / per_unit) * unit_bytes;
        const uint8_t *block = unit + format_param_bytes(f) + (size_t)(b % per_unit) * block_bytes;
        for (size_t line = 0; line < unit_bytes / (size_t)per_unit; line += 64)
            _mm_prefetch((const char *)block + PREFETCH_BYTES + line, _MM_HINT_T0);
        for (int row = 0; row < PANEL_ROWS; row += STRIP) {
            size_t at = (size_t)(row / LANES * n_rows * LANES + row % LANES);
            struct weights w;
            struct input x = { .q = (const int32_t *)tile,
                               .rows = (const struct input_row *)(tile + n_rows * BLOCK),
                               .total = out + at,
                               .n_rows = n_rows };
            unpack(&w, block + (size_t)(row / LANES) * format_half_bytes(f), row % LANES / STRIP, f);
            load_scales(&w, unit, row, b % per_unit, f);
            for (int r = 0; r < n_rows; r++)
                block_row(&w, &x, r, f);
        }
        tile += (size_t)n_rows * (BLOCK + sizeof(struct input_row));
    }
}

#define LINEAR(name, dtype)                                                                                  \
    void linear_##name##_avx2(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)         \
    {                                                                                                        \
        quantized_panel(out, panel, quant_format(dtype), x, n_rows, n_in / BLOCK);                           \
    }
FOR_EACH_QUANTIZED(LINEAR)
