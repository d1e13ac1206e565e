/* Packed weights: panels of 16 output rows.
 *
 * Float types: [n_in][16] elements.
 * Quantized types: groups of two blocks of 32 columns, { half scale[2][16]; u8 quants[2][block] }, so that every
 * vector is aligned and one matrix is one stream. Of an odd number of blocks the last has no partner and its place is
 * zero. In a block the four columns 4g..4g+3 of the 16 rows lie together:
 *   Q8_0: [8 groups of columns][16 rows][4 columns], value + 128;
 *   Q4_0: [4][16][4], the low nibble of column c, the high one of column c + 16.
 * A panel's size is a multiple of 64 bytes. */
#ifndef TUTTI_KERNELS_PACK_H
#define TUTTI_KERNELS_PACK_H

#include "kernels/kernels.h"

enum {
    PACK_SCALE_BYTES = 64, /* of a group of two blocks */
    PACK_Q8_0_BLOCK = 512,
    PACK_Q4_0_BLOCK = 256,
    PACK_Q8_0_GROUP = PACK_SCALE_BYTES + 2 * PACK_Q8_0_BLOCK,
    PACK_Q4_0_GROUP = PACK_SCALE_BYTES + 2 * PACK_Q4_0_BLOCK,
};

/* Bytes of one panel. False: n_in does not fit the type's block, or the product overflows. */
bool panel_bytes(enum dtype dtype, int n_in, size_t *out);

/* Packs 16 rows of n_in elements of the type; a row that is NULL is packed as zeros. panel: 64-byte aligned. */
void pack_panel(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], enum dtype dtype, int n_in);

/* Row 0..15 of a panel as float32. */
void unpack_row(float *dst, const uint8_t *panel, int row, enum dtype dtype, int n_in);

#endif
