/* The packed layout of weights: panels of 32 output rows, as two halves of 16.
 *
 * F32, F16: [n_in][32] elements. BF16: [n_in / 2, rounded up][32][2 columns]; an odd last column
 * is paired with zero. Quantized types (formats.h): units of 32 columns, or of 256 if the type
 * is_super, or 64 if it is_exponent, or of n_groups groups (the last unit may lack its second half),
 * one after the other. A unit:
 *     half scale[32]; half min[32] if has_min; or, if is_exponent, u8 scale[2 blocks][32];
 *     or, with groups, half scale[n_groups][32], and in 64 bytes int8 zero[n_groups][32] if has_zero;
 *     if is_super: int8 sub_scale[256 / sub][32], and int8 sub_min of that shape unless is_joint; if is_six
 *     instead 12 bytes for each row (format_widen());
 *     for each block of 32 columns and each half of the rows: the low plane, then the high plane.
 * In a plane the columns 4g..4g+3 of the 16 rows lie together, as [16][4]: the group g of eight.
 *     8 bits: [8 groups][16][4]. 4 bits: [4][16][4], group g in the low nibbles, g + 4 in the high ones.
 *     2 bits: [2][16][4], group g in byte row g % 2 at bit 2 (g / 2).
 *     1 bit (high plane): [16][4], group g at bit g.
 * 8-bit floats: float8.h.
 * A panel's size is a multiple of 64 bytes, and so is every part of it: each load is aligned. */
#ifndef TUTTI_KERNELS_PACK_H
#define TUTTI_KERNELS_PACK_H

#include "kernels/formats.h"

/* Bytes of one panel. False: n_in does not fit the type's block, or the product overflows. */
bool panel_bytes(enum dtype dtype, int n_in, size_t *out);

/* Packs 32 rows of n_in elements of the type; a row that is NULL is packed as zeros. panel: 64-byte
 * aligned. False: 16 rows of F8_BLOCK have more than FLOAT8_SCALES different lists of scales. */
MUST_CHECK bool pack_panel(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], enum dtype dtype, int n_in);

/* Row 0..31 of a panel as float32. */
void unpack_row(float *dst, const uint8_t *panel, int row, enum dtype dtype, int n_in);

/* ---- pack_blocks.c: the same for the quantized types ---- */
void pack_blocks(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], enum dtype dtype, int n_in);
void unpack_blocks(float *dst, const uint8_t *panel, int row, enum dtype dtype, int n_in);

/* One stored number of a block, zero point not subtracted. half: the 16 rows of a block; row:
 * 0..15; column: 0..31. */
int packed_number(const uint8_t *half, struct quant_format f, int row, int column);
/* Scale and min of run sub of a unit (a run's is its group's); row: 0..31. */
float packed_scale(const uint8_t *unit, struct quant_format f, int row, int sub);
float packed_min(const uint8_t *unit, struct quant_format f, int row, int sub);

#endif
