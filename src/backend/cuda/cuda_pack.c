/* Packs rows of weights into the tiles of linear_args.h. Every output gets a power of two by which its scales are
 * multiplied, such that the largest is about 2^14: its factors then are float16 without loss, whatever the type's are. */
#include "backend/cuda/cuda_matrix.h"
#include "base/half.h"
#include "kernels/quantize/quantize.h"
#include "kernels/stored.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    UNIT_COLUMNS = 256, /* at most */
    HALF_TOP = 14,      /* the exponent of the largest scale */
    DENORMAL = 24,      /* numbers in mantissas are multiplied by 2^-24 */
};

enum linear_format cuda_format(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return LINEAR_F32;
    case DTYPE_Q4_0:
    case DTYPE_G4_64:
    case DTYPE_G4_128:
        return LINEAR_Q4_0;
    case DTYPE_Q4_1:
    case DTYPE_G4Z_32:
    case DTYPE_G4Z_64:
    case DTYPE_G4Z_128:
        return LINEAR_Q4_1;
    case DTYPE_Q5_0:
        return LINEAR_Q5_0;
    case DTYPE_Q5_1:
        return LINEAR_Q5_1;
    case DTYPE_Q8_0:
    case DTYPE_G8_64:
    case DTYPE_G8_128:
        return LINEAR_Q8_0;
    case DTYPE_Q2_K:
        return LINEAR_Q2_K;
    case DTYPE_Q3_K:
        return LINEAR_Q3_K;
    case DTYPE_Q4_K:
        return LINEAR_Q4_K;
    case DTYPE_Q5_K:
        return LINEAR_Q5_K;
    case DTYPE_Q6_K:
        return LINEAR_Q6_K;
    case DTYPE_MXFP4:
        return LINEAR_MXFP4;
    default:
        return LINEAR_F16;
    }
}

static int unit_columns(enum linear_format format)
{
    return linear_unit_steps(format) * LINEAR_STEP;
}

size_t cuda_tile_bytes(enum linear_format format, int n_in)
{
    int columns = unit_columns(format);
    return (size_t)((n_in + columns - 1) / columns) * (size_t)linear_unit_bytes(format);
}

/* ---- what a unit of a row stores, in terms that all types have ---- */

struct unit_row {
    uint8_t numbers[UNIT_COLUMNS];
    /* Of each run: scale * (number - zero), or scale * number - min. */
    float scales[2],
        mins[2]; /* of super-blocks only the first; they have integers for each run of 32 or 16 */
    uint8_t subs[16], sub_mins[16];
    int n_runs;
};

/* Columns under one scale of the unit, for the packed format. */
static int run_columns(enum linear_format format)
{
    return format == LINEAR_Q2_K || format == LINEAR_Q3_K || format == LINEAR_Q6_K ? 16 : BLOCK;
}

/* Unit number u of a row. Columns after the row's last, and rows that are NULL, are zeros. */
static void unit_read(struct unit_row *to, const uint8_t *row, enum dtype dtype, int n_in, int u)
{
    enum linear_format format = cuda_format(dtype);
    struct quant_format q = quant_format(dtype);
    int columns = unit_columns(format), block_columns = dtype_block_elems(dtype);
    struct stored_unit stored;
    memset(to, 0, sizeof *to);
    to->n_runs = columns / run_columns(format);
    for (int b = 0; row && b < columns / BLOCK && u * columns + b * BLOCK < n_in; b++) {
        int column = u * columns + b * BLOCK, block = column / block_columns,
            in_block = column % block_columns / BLOCK;
        if (b == 0 || !q.is_super)
            stored_read(&stored, row + (size_t)block * (size_t)dtype_block_bytes(dtype), dtype);
        memcpy(to->numbers + b * BLOCK, stored.words[in_block], BLOCK);
        if (q.is_exponent) {
            to->scales[b] = stored.scale;
        } else if (!q.is_super) {
            to->scales[b] = half_to_float(stored.scale);
            to->mins[b] = q.has_zero  ? to->scales[b] * (float)(8 + stored.zero)
                          : q.has_min ? half_to_float(stored.min)
                                      : 0;
        } else if (b == 0) {
            to->scales[0] = half_to_float(stored.scale);
            to->mins[0] = q.has_min ? half_to_float(stored.min) : 0;
            for (int s = 0; s < to->n_runs; s++) {
                to->subs[s] = q.is_joint ? (uint8_t)stored.subs[s] & 15 : (uint8_t)stored.subs[s];
                to->sub_mins[s] = q.is_joint  ? (uint8_t)stored.subs[s] >> 4
                                  : q.has_min ? (uint8_t)stored.sub_mins[s]
                                              : 0;
            }
        }
    }
}

/* ---- powers of two ---- */

/* The exponent of the largest factor, as ilogb(); factors that are not finite do not count. */
static int exponent_of(float largest)
{
    return largest > 0 ? ilogbf(largest) : -100;
}

static float finite_max(float x, float y)
{
    y = fabsf(y);
    return isfinite(y) && y > x ? y : x;
}

/* The power of two for a row: scales and mins become as large as their places allow. */
static int row_exponent(const uint8_t *row, enum dtype dtype, int n_in)
{
    enum linear_format format = cuda_format(dtype);
    const struct linear_layout l = linear_layout(format);
    float scale = 0, min = 0;
    for (int u = 0; u * unit_columns(format) < n_in; u++) {
        struct unit_row unit;
        unit_read(&unit, row, dtype, n_in, u);
        for (int s = 0; s < unit.n_runs; s++) {
            int sub = format == LINEAR_Q3_K || format == LINEAR_Q6_K ? abs((int8_t)unit.subs[s])
                                                                     : unit.subs[s];
            scale = finite_max(scale, unit.scales[l.is_super ? 0 : s] * (l.is_super ? (float)sub : 1));
        }
        for (int s = 0; s < (l.is_super ? 1 : unit.n_runs); s++)
            min = finite_max(min, unit.mins[s]);
        if (l.is_super) /* the factor itself must be a half, too, where it has small integers */
            scale = finite_max(scale, unit.scales[0] * 0x1p-1f);
    }
    if (scale == 0 && min == 0)
        return 0;
    int up = HALF_TOP - exponent_of(scale) - (format == LINEAR_Q8_0 ? 7 : 0);
    int of_min = (l.is_super ? HALF_TOP + (format == LINEAR_Q2_K ? 4 : 0) : HALF_TOP + DENORMAL) -
                 exponent_of(min);
    return l.has_min && of_min < up ? of_min : up;
}

static uint16_t scaled_half(float x, int exponent)
{
    return float_to_half(ldexpf(x, exponent));
}

/* ---- places ---- */

static void add_bits(uint8_t *at, uint32_t bits)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    word |= bits;
    memcpy(at, &word, sizeof word);
}

static void put_half(uint8_t *at, uint16_t half)
{
    memcpy(at, &half, sizeof half);
}

/* The columns of pair i of lane t in a step: 16t + 2i and the next. */
static void put_numbers(uint8_t *unit, enum linear_format format, const uint8_t *numbers, int step, int place)
{
    const struct linear_layout l = linear_layout(format);
    int r = place / 8;
    for (int t = 0; t < 4; t++) {
        int lane = place % 8 * 4 + t;
        uint8_t *high = unit + linear_high_at(format) + step * l.high * 128 + lane * l.high * 4;
        for (int i = 0; i < 8; i++) {
            const uint8_t *pair = numbers + step * LINEAR_STEP + 16 * t + 2 * i;
            uint8_t *low = unit + linear_low_at(format, step, lane, linear_low_word(l.low, r, i));
            uint32_t two = pair[0] | (uint32_t)pair[1] << 16, mask = ((1u << l.low) - 1) * 0x10001u;
            if (format == LINEAR_Q3_K) {
                int number = linear_three_number(r, i);
                for (int bit = 0; bit < l.low + l.high; bit++) {
                    int word = linear_three_word(number, bit);
                    add_bits(word < l.low ? unit + linear_low_at(format, step, lane, word) : high,
                             (two >> bit & 0x10001u) << linear_three_shift(number, bit));
                }
                continue;
            }
            if (format == LINEAR_MXFP4) {
                add_bits(low, (two & 0x70007u) << linear_e2m1_shift(i) | (two >> 3 & 0x10001u)
                                                                             << linear_e2m1_sign(i));
                continue;
            }
            add_bits(low, (two & mask) << linear_low_shift(l.low, i));
            if (l.high > 0)
                add_bits(high + 4 * linear_high_word(l.high, r),
                         (two >> l.low & ((1u << l.high) - 1) * 0x10001u) << linear_high_shift(l.high, r, i));
        }
    }
}

/* Bytes of each run, in the order of its lane's bytes: see linear_factors() of linear.h. */
static void put_scales(uint8_t *unit, enum linear_format format, const struct unit_row *from, int place,
                       int exponent)
{
    uint8_t *scales = unit + linear_scales_at(format);
    int g = place % 8, r = place / 8;
    const struct linear_layout l = linear_layout(format);
    if (!l.is_super) {
        for (int b = 0; b < 2; b++) {
            int run = b * 8 + g;
            if (format == LINEAR_MXFP4) {
                int e = (int)from->scales[b] + exponent;
                scales[run * 2 + r] = (uint8_t)(e > 0 ? e << 2 : 0);
                continue;
            }
            put_half(scales + run * (l.has_min ? 8 : 4) + 2 * r, scaled_half(from->scales[b], exponent));
            if (l.has_min)
                put_half(scales + run * 8 + 4 + 2 * r, scaled_half(-from->mins[b], exponent - DENORMAL));
        }
        return;
    }
    assert(from->n_runs >= 4);
    for (int s = 0; s < from->n_runs; s++) {
        int step = s * 4 / from->n_runs, in_step = s % (from->n_runs / 4), lane = g * 4 + in_step,
            run = in_step * 8 + g;
        if (format == LINEAR_Q4_K || format == LINEAR_Q5_K) {
            scales[run * 16 + step * 4 + r] = from->subs[s];
            scales[run * 16 + step * 4 + 2 + r] = from->sub_mins[s];
        } else if (format == LINEAR_Q2_K) {
            scales[lane * 8 + step * 2 + r] = (uint8_t)(from->subs[s] | from->sub_mins[s] << 4);
        } else if (format == LINEAR_Q6_K) {
            scales[lane * 8 + step * 2 + r] = from->subs[s] ^ 0x80;
        } else { /* Q3_K: six bits, of which the low four of a step's two outputs are 16 bits apart, the others 8 */
            unsigned sub = (unsigned)(from->subs[s] + 32) & 63;
            add_bits(scales + lane * 4, (sub & 15) << (16 * r + 4 * step));
            scales[128 + lane * 2 + r] |= (uint8_t)(sub >> 4 << 2 * step);
        }
    }
    if (l.has_min) {
        put_half(scales + 256 + g * 8 + 2 * r, scaled_half(from->scales[0], exponent));
        put_half(scales + 256 + g * 8 + 4 + 2 * r,
                 scaled_half(-from->mins[0], exponent - (format == LINEAR_Q2_K ? 4 : 0)));
    } else {
        put_half(scales + (format == LINEAR_Q3_K ? 192 : 256) + g * 4 + 2 * r,
                 scaled_half(from->scales[0], exponent));
    }
}

/* ---- rows ---- */

/* MXFP4: exponents of a row are moved so that the largest is 30, which is that of 2^15 in float16. A block that is smaller by
 * 2^-30 becomes zero. Returns the row's scale. */
static float pack_exponents(int *exponent, const uint8_t *row, int n_in)
{
    int largest = 0;
    for (int b = 0; b < n_in / BLOCK; b++) {
        int e = row[(size_t)b * 17] < 252 ? row[(size_t)b * 17] : 252;
        largest = e > largest ? e : largest;
    }
    *exponent = 30 - largest;
    return ldexpf(1, largest - 128); /* 2^(e - 127), from 2^-14 * 2^(30 - 15) */
}

static float pack_integers(uint8_t *tile, const uint8_t *row, enum dtype dtype, int n_in, int place)
{
    enum linear_format format = cuda_format(dtype);
    int exponent;
    float scale;
    if (format == LINEAR_MXFP4) {
        scale = pack_exponents(&exponent, row, n_in);
    } else {
        exponent = row_exponent(row, dtype, n_in);
        scale = ldexpf(1, (format == LINEAR_Q8_0 ? 0 : DENORMAL) - exponent);
    }
    for (int u = 0; u * unit_columns(format) < n_in; u++, tile += linear_unit_bytes(format)) {
        struct unit_row unit;
        unit_read(&unit, row, dtype, n_in, u);
        for (int step = 0; step < linear_unit_steps(format); step++)
            put_numbers(tile, format, unit.numbers, step, place);
        put_scales(tile, format, &unit, place, exponent);
    }
    return scale;
}

/* The factor by which a row of a type that a card does not have becomes float16, and its inverse. */
static float expanded_scale(float *inverse, const uint8_t *row, enum dtype dtype, const float *floats,
                            int n_in)
{
    float largest = 0;
    *inverse = 1;
    if (dtype == DTYPE_F16)
        return 1;
    if (dtype == DTYPE_F8_ROW) { /* a scale that is the same in all blocks */
        float scale;
        memcpy(&scale, row, sizeof scale);
        if (isfinite(scale) && scale != 0 && isfinite(1 / scale)) {
            *inverse = scale;
            return 0;
        }
    }
    for (int c = 0; c < n_in; c++)
        largest = finite_max(largest, floats[c]);
    int up = largest > 0 ? HALF_TOP - exponent_of(largest) : 0;
    up = up > 100 ? 100 : up;
    *inverse = ldexpf(1, -up);
    return ldexpf(1, up);
}

static float pack_floats(uint8_t *tile, const uint8_t *row, enum dtype dtype, int n_in, int place,
                         float *floats)
{
    enum linear_format format = cuda_format(dtype);
    float factor = 1, inverse = 1;
    dequantize(floats, row, dtype, n_in);
    if (format == LINEAR_F16)
        factor = expanded_scale(&inverse, row, dtype, floats, n_in);
    for (int c = 0; c < n_in; c++) {
        uint8_t *unit = tile + (size_t)(c / LINEAR_STEP) * (size_t)linear_unit_bytes(format);
        int in_step = c % LINEAR_STEP, lane = place % 8 * 4 + in_step / 16, i = in_step % 16 / 2;
        if (format == LINEAR_F32) {
            memcpy(unit + (size_t)(in_step * LINEAR_TILE + place) * sizeof(float), &floats[c], sizeof(float));
            continue;
        }
        uint8_t *at = unit + linear_low_at(format, 0, lane, linear_low_word(16, place / 8, i)) + 2 * (c % 2);
        float v = factor == 0 ? float8_to_float(row[(size_t)(c / BLOCK) * 36 + 4 + (size_t)(c % BLOCK)])
                              : floats[c] * factor;
        put_half(at, float_to_half(v));
    }
    return inverse;
}

void cuda_pack_tile(uint8_t *tile, float *scales, const uint8_t *const rows[LINEAR_TILE], enum dtype dtype,
                    int n_in, float *floats)
{
    enum linear_format format = cuda_format(dtype);
    bool is_float = format == LINEAR_F32 || format == LINEAR_F16;
    for (int place = 0; place < LINEAR_TILE; place++) {
        scales[place] = 1;
        if (rows[place])
            scales[place] = is_float ? pack_floats(tile, rows[place], dtype, n_in, place, floats)
                                     : pack_integers(tile, rows[place], dtype, n_in, place);
    }
}
