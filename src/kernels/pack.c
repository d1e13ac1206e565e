#include "kernels/pack.h"

#include "base/half.h"

#include <string.h>

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

bool panel_bytes(enum dtype dtype, int n_in, size_t *out)
{
    if (n_in <= 0 || !dtype_is_weight(dtype) || n_in % dtype_block_elems(dtype) != 0)
        return false;
    size_t n_groups = ((size_t)n_in / BLOCK + 1) / 2, n_bytes;
    switch (dtype) {
    case DTYPE_Q8_0:
        return !__builtin_mul_overflow(n_groups, (size_t)PACK_Q8_0_GROUP, out);
    case DTYPE_Q4_0:
        return !__builtin_mul_overflow(n_groups, (size_t)PACK_Q4_0_GROUP, out);
    default:
        if (__builtin_mul_overflow((size_t)n_in, (size_t)dtype_block_bytes(dtype) * PANEL_ROWS, &n_bytes) ||
            n_bytes > SIZE_MAX - 63)
            return false;
        *out = align64(n_bytes);
        return true;
    }
}

size_t tile_bytes(enum dtype dtype, int n_rows, int n_in)
{
    int block = dtype_block_elems(dtype);
    if (n_in % block != 0)
        return 0;
    size_t row = block == 1 ? (size_t)n_in * sizeof(float)
                            : (size_t)n_in / BLOCK * (BLOCK + 2 * sizeof(float));
    return align64((size_t)n_rows * row);
}

/* Columns in strips that stay in the first cache while the 16 rows are read one after the other. */
static void pack_32bit(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], int n_in)
{
    enum { STRIP = 16 };
    uint32_t *dst = (uint32_t *)panel;
    for (int begin = 0; begin < n_in; begin += STRIP) {
        int n = n_in - begin < STRIP ? n_in - begin : STRIP;
        for (int r = 0; r < PANEL_ROWS; r++) {
            uint32_t strip[STRIP] = { 0 };
            if (rows[r])
                memcpy(strip, rows[r] + (size_t)begin * 4, (size_t)n * 4);
            for (int i = 0; i < n; i++)
                dst[(size_t)(begin + i) * PANEL_ROWS + (size_t)r] = strip[i];
        }
    }
}

static void pack_16bit(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], int n_in)
{
    enum { STRIP = 32 };
    uint16_t *dst = (uint16_t *)panel;
    for (int begin = 0; begin < n_in; begin += STRIP) {
        int n = n_in - begin < STRIP ? n_in - begin : STRIP;
        for (int r = 0; r < PANEL_ROWS; r++) {
            uint16_t strip[STRIP] = { 0 };
            if (rows[r])
                memcpy(strip, rows[r] + (size_t)begin * 2, (size_t)n * 2);
            for (int i = 0; i < n; i++)
                dst[(size_t)(begin + i) * PANEL_ROWS + (size_t)r] = strip[i];
        }
    }
}

/* A block of either type: its half scale, then n_words groups of four bytes, each of which moves as a whole; flip
 * makes signed bytes unsigned. */
static void pack_block(uint8_t *scales, uint8_t *quants, const uint8_t *const rows[PANEL_ROWS], size_t offset,
                       int n_words, uint32_t flip)
{
    for (int r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *src = rows[r] ? rows[r] + offset : NULL;
        if (src)
            memcpy(scales + 2 * r, src, 2);
        else
            memset(scales + 2 * r, 0, 2);
        for (int word = 0; word < n_words; word++) {
            uint32_t four = 0;
            if (src)
                memcpy(&four, src + 2 + 4 * word, 4);
            four ^= flip;
            memcpy(quants + (size_t)(word * PANEL_ROWS + r) * 4, &four, 4);
        }
    }
}

static void pack_blocks(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], int n_blocks, int n_words,
                        uint32_t flip)
{
    size_t stored = 2 + 4 * (size_t)n_words, packed = (size_t)n_words * 4 * PANEL_ROWS;
    size_t group = PACK_SCALE_BYTES + 2 * packed;
    for (int b = 0; b < n_blocks; b++) {
        uint8_t *at = panel + (size_t)(b / 2) * group;
        pack_block(at + (size_t)(b % 2) * 32, at + PACK_SCALE_BYTES + (size_t)(b % 2) * packed, rows,
                   (size_t)b * stored, n_words, flip);
    }
    if (n_blocks % 2 != 0) {
        uint8_t *at = panel + (size_t)(n_blocks / 2) * group;
        memset(at + 32, 0, 32);
        memset(at + PACK_SCALE_BYTES + packed, 0, packed);
    }
}

void pack_panel(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], enum dtype dtype, int n_in)
{
    switch (dtype) {
    case DTYPE_F32:
        pack_32bit(panel, rows, n_in);
        break;
    case DTYPE_Q8_0:
        pack_blocks(panel, rows, n_in / BLOCK, 8, 0x80808080);
        break;
    case DTYPE_Q4_0:
        pack_blocks(panel, rows, n_in / BLOCK, 4, 0);
        break;
    default: {
        pack_16bit(panel, rows, n_in);
        size_t used = (size_t)n_in * 2 * PANEL_ROWS;
        memset(panel + used, 0, align64(used) - used);
    }
    }
}

static void unpack_q8_0(float *dst, const uint8_t *panel, int row, int n_blocks)
{
    for (int b = 0; b < n_blocks; b++, dst += BLOCK) {
        const uint8_t *group = panel + (size_t)(b / 2) * PACK_Q8_0_GROUP;
        const uint8_t *quants = group + PACK_SCALE_BYTES + (size_t)(b % 2) * PACK_Q8_0_BLOCK;
        float d = half_to_float(((const uint16_t *)group)[b % 2 * PANEL_ROWS + row]);
        for (int c = 0; c < BLOCK; c++) {
            int q = quants[(c / 4 * PANEL_ROWS + row) * 4 + c % 4] - 128;
            dst[c] = (float)q * d;
        }
    }
}

static void unpack_q4_0(float *dst, const uint8_t *panel, int row, int n_blocks)
{
    for (int b = 0; b < n_blocks; b++, dst += BLOCK) {
        const uint8_t *group = panel + (size_t)(b / 2) * PACK_Q4_0_GROUP;
        const uint8_t *quants = group + PACK_SCALE_BYTES + (size_t)(b % 2) * PACK_Q4_0_BLOCK;
        float d = half_to_float(((const uint16_t *)group)[b % 2 * PANEL_ROWS + row]);
        for (int c = 0; c < BLOCK / 2; c++) {
            int two = quants[(c / 4 * PANEL_ROWS + row) * 4 + c % 4];
            dst[c] = (float)((two & 15) - 8) * d;
            dst[c + BLOCK / 2] = (float)((two >> 4) - 8) * d;
        }
    }
}

void unpack_row(float *dst, const uint8_t *panel, int row, enum dtype dtype, int n_in)
{
    const uint16_t *halves = (const uint16_t *)panel;
    switch (dtype) {
    case DTYPE_Q8_0:
        unpack_q8_0(dst, panel, row, n_in / BLOCK);
        break;
    case DTYPE_Q4_0:
        unpack_q4_0(dst, panel, row, n_in / BLOCK);
        break;
    case DTYPE_F32:
        for (int c = 0; c < n_in; c++)
            dst[c] = ((const float *)panel)[(size_t)c * PANEL_ROWS + (size_t)row];
        break;
    case DTYPE_F16:
        for (int c = 0; c < n_in; c++)
            dst[c] = half_to_float(halves[(size_t)c * PANEL_ROWS + (size_t)row]);
        break;
    default:
        for (int c = 0; c < n_in; c++)
            dst[c] = bf16_to_float(halves[(size_t)c * PANEL_ROWS + (size_t)row]);
        break;
    }
}
