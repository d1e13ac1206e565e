/* Packs quantized weights: converts words of four numbers to planes. */
#include "base/half.h"
#include "kernels/formats.h"
#include "kernels/pack.h"
#include "kernels/stored.h"

#include <string.h>

#define PACK_INLINE static inline __attribute__((always_inline))

/* Fills missing rows and blocks with numbers of weight zero; of a table by the scale, or by the
 * first place. */
PACK_INLINE void empty_unit(struct stored_unit *u, struct quant_format f)
{
    memset(u, 0, sizeof *u);
    memset(u->words, f.table == NUMBERS_PLAIN ? f.zero : 0, sizeof u->words);
}

PACK_INLINE void put_word(uint8_t *plane, int vector, int row, uint32_t word)
{
    memcpy(plane + 64 * vector + 4 * row, &word, 4);
}

/* The planes of one block and row (0..15 of a half). */
PACK_INLINE void put_block(uint8_t *half, struct quant_format f, const uint32_t words[WORDS], int row)
{
    int per_byte = 8 / f.low_bits, n = WORDS / per_byte;
    uint32_t mask = f.low_bits == 8 ? 0xFFFFFFFF : f.low_bits == 4 ? 0x0F0F0F0F : 0x03030303;
    for (int v = 0; v < n; v++) {
        uint32_t low = 0;
        for (int k = 0; k < per_byte; k++)
            low |= (words[v + k * n] & mask) << (k * f.low_bits);
        put_word(half, v, row, low);
    }
    uint8_t *plane = half + format_low_bytes(f);
    for (int v = 0; v < f.high_bits; v++) {
        uint32_t high = 0;
        for (int k = 0; k < WORDS / f.high_bits; k++) {
            uint32_t bits = (words[v + k * f.high_bits] >> f.low_bits) &
                            (f.high_bits == 1 ? 0x01010101 : 0x03030303);
            high |= bits << (k * f.high_bits);
        }
        put_word(plane, v, row, high);
    }
}

/* The opposite of format_widen(), of one row. */
PACK_INLINE void put_six(uint8_t *to, const int8_t subs[MAX_SUBS], int row)
{
    for (int s = 0; s < 8; s++)
        to[s * PANEL_ROWS + row] = (uint8_t)(((subs[s] + 32) & 15) | ((subs[s + 8] + 32) & 15) << 4);
    for (int s = 0; s < 4; s++) {
        int high = 0;
        for (int k = 0; k < 4; k++)
            high |= (subs[s + 4 * k] + 32) >> 4 << (2 * k);
        to[(8 + s) * PANEL_ROWS + row] = (uint8_t)high;
    }
}

/* block: of the unit, the first that the stored one fills with n_blocks. */
PACK_INLINE void put_unit(uint8_t *unit, struct quant_format f, const struct stored_unit *u, int row,
                          int block, int n_blocks)
{
    if (f.is_exponent)
        unit[block * PANEL_ROWS + row] = (uint8_t)u->scale;
    else
        memcpy(unit + format_scale_at(f, block) + 2 * row, &u->scale, 2);
    if (f.has_zero)
        unit[format_zero_at(f, block) + (size_t)row] = (uint8_t)u->zero;
    else if (f.has_min)
        memcpy(unit + 2 * PANEL_ROWS + 2 * row, &u->min, 2);
    uint8_t *subs = unit + (f.has_min ? 4 : 2) * PANEL_ROWS;
    if (f.is_six)
        put_six(subs, u->subs, row);
    for (int s = 0; f.is_super && !f.is_six && s < 256 / f.sub; s++) {
        subs[s * PANEL_ROWS + row] = (uint8_t)u->subs[s];
        if (f.has_min && !f.is_joint)
            subs[format_subs_bytes(f) + (size_t)(s * PANEL_ROWS + row)] = (uint8_t)u->sub_mins[s];
    }
    uint8_t *half = unit + format_param_bytes(f) + (size_t)(row / 16) * format_half_bytes(f);
    half += (size_t)block * 2 * format_half_bytes(f);
    for (int b = 0; b < n_blocks; b++, half += 2 * format_half_bytes(f))
        put_block(half, f, u->words[b], row % 16);
}

PACK_INLINE void pack_as(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], const enum dtype dtype,
                         int n_in)
{
    const struct quant_format f = quant_format(dtype);
    const int columns = format_unit_columns(f);
    const int elems = f.group > 0 ? f.group : f.is_super ? 256 : BLOCK;
    const size_t stored_bytes = (size_t)dtype_block_bytes(dtype);
    struct stored_unit unit = { 0 };
    for (int begin = 0; begin < n_in; begin += columns, panel += format_unit_bytes(f))
        for (int row = 0; row < PANEL_ROWS; row++)
            for (int c = begin; c < begin + columns && c < n_in; c += elems) {
                if (rows[row])
                    stored_read(&unit, rows[row] + (size_t)(c / elems) * stored_bytes, dtype);
                else
                    empty_unit(&unit, f);
                put_unit(panel, f, &unit, row, (c - begin) / BLOCK, elems / BLOCK);
            }
}

void pack_blocks(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], enum dtype dtype, int n_in)
{
    switch (dtype) {
#define PACK(type)                                                                                           \
    case type:                                                                                               \
        pack_as(panel, rows, type, n_in);                                                                    \
        break;
        PACK(DTYPE_Q4_0)
        PACK(DTYPE_Q4_1)
        PACK(DTYPE_Q5_0)
        PACK(DTYPE_Q5_1)
        PACK(DTYPE_Q2_K)
        PACK(DTYPE_Q3_K)
        PACK(DTYPE_Q4_K)
        PACK(DTYPE_Q5_K)
        PACK(DTYPE_Q6_K)
        PACK(DTYPE_MXFP4)
        PACK(DTYPE_IQ4_NL)
        PACK(DTYPE_IQ4_XS)
        PACK(DTYPE_IQ2_XXS)
        PACK(DTYPE_IQ2_XS)
        PACK(DTYPE_IQ2_S)
        PACK(DTYPE_IQ3_XXS)
        PACK(DTYPE_IQ3_S)
        PACK(DTYPE_IQ1_S)
        PACK(DTYPE_IQ1_M)
        PACK(DTYPE_G4_64)
        PACK(DTYPE_G4_128)
        PACK(DTYPE_G8_64)
        PACK(DTYPE_G8_128)
        PACK(DTYPE_G4Z_32)
        PACK(DTYPE_G4Z_64)
        PACK(DTYPE_G4Z_128)
    default:
        pack_as(panel, rows, DTYPE_Q8_0, n_in);
    }
}

/* The number of a block's column. */
int packed_number(const uint8_t *half, struct quant_format f, int row, int column)
{
    int g = column / 4, at = row * 4 + column % 4;
    int n = WORDS * f.low_bits / 8;
    int number = (half[64 * (g % n) + at] >> (g / n * f.low_bits)) & ((1 << f.low_bits) - 1);
    if (f.high_bits > 0) {
        int v = g % f.high_bits, shift = g / f.high_bits * f.high_bits;
        int high = (half[format_low_bytes(f) + (size_t)(64 * v + at)] >> shift) & ((1 << f.high_bits) - 1);
        number |= high << f.low_bits;
    }
    return f.table == NUMBERS_PLAIN ? number : number_tables[f.table][number];
}

float packed_scale(const uint8_t *unit, struct quant_format f, int row, int sub)
{
    if (f.is_exponent)
        return exponent_scale(unit[sub * PANEL_ROWS + row]);
    float scale = half_to_float(half_at(unit + format_scale_at(f, sub) + 2 * row)) *
                  (f.is_eighth ? 0.125f : 1);
    if (!f.is_super)
        return scale;
    if (f.is_six) {
        uint8_t wide[FORMAT_WIDE];
        format_widen(wide, unit + 2 * PANEL_ROWS);
        return scale * (float)(int8_t)wide[sub * PANEL_ROWS + row];
    }
    int8_t byte = (int8_t)unit[(f.has_min ? 4 : 2) * PANEL_ROWS + sub * PANEL_ROWS + row];
    return scale * (float)(f.is_joint ? byte & 15 : byte);
}

float packed_min(const uint8_t *unit, struct quant_format f, int row, int sub)
{
    if (f.has_zero) /* a run is a block */
        return packed_scale(unit, f, row, sub) * (float)(int8_t)unit[format_zero_at(f, sub) + (size_t)row];
    float min = half_to_float(half_at(unit + 2 * PANEL_ROWS + 2 * row));
    if (!f.is_super)
        return min;
    const uint8_t *subs = unit + 4 * PANEL_ROWS + (f.is_joint ? 0 : format_subs_bytes(f));
    int byte = subs[sub * PANEL_ROWS + row];
    return min * (float)(f.is_joint ? byte >> 4 : byte);
}

void unpack_blocks(float *dst, const uint8_t *panel, int row, enum dtype dtype, int n_in)
{
    const struct quant_format f = quant_format(dtype);
    const int columns = format_unit_columns(f);
    for (int begin = 0; begin < n_in; begin += columns, panel += format_unit_bytes(f))
        for (int c = 0; c < columns && begin + c < n_in; c++) {
            const uint8_t *half = panel + format_param_bytes(f) +
                                  (size_t)(c / BLOCK * 2 + row / 16) * format_half_bytes(f);
            float number = (float)(packed_number(half, f, row % 16, c % BLOCK) - f.zero);
            float value = packed_scale(panel, f, row, c / f.sub) * number;
            dst[begin + c] = f.has_min ? value - packed_min(panel, f, row, c / f.sub) : value;
        }
}
