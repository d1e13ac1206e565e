#include "kernels/pack.h"
#include "kernels/input_block.h"

#include "base/half.h"
#include "kernels/formats.h"

#include <string.h>

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static bool is_quantized(enum dtype dtype)
{
    return dtype_block_elems(dtype) > 1;
}

bool panel_bytes(enum dtype dtype, int n_in, size_t *out)
{
    if (n_in <= 0 || !dtype_is_weight(dtype) || n_in % dtype_block_elems(dtype) != 0)
        return false;
    if (is_quantized(dtype)) {
        struct quant_format f = quant_format(dtype);
        size_t columns = (size_t)format_unit_columns(f), n = ((size_t)n_in + columns - 1) / columns;
        return !__builtin_mul_overflow(n, format_unit_bytes(f), out);
    }
    size_t columns = dtype == DTYPE_BF16 ? ((size_t)n_in + 1) / 2 * 2 : (size_t)n_in, n_bytes;
    if (__builtin_mul_overflow(columns, (size_t)dtype_block_bytes(dtype) * PANEL_ROWS, &n_bytes))
        return false;
    *out = n_bytes; /* a column has at least 64 bytes */
    return true;
}

size_t tile_bytes(enum dtype dtype, int n_rows, int n_in)
{
    if (n_in % dtype_block_elems(dtype) != 0)
        return 0;
    size_t row = (size_t)n_in * sizeof(float);
    if (is_quantized(dtype))
        row = (size_t)n_in / BLOCK * (BLOCK + sizeof(struct input_row));
    return align64((size_t)n_rows * row);
}

/* Processes columns in strips that stay in the L1 cache while the rows are read one by one. */
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

/* The offset of column c of row r. */
static size_t place16(enum dtype dtype, int c, int r)
{
    size_t column = (size_t)c, row = (size_t)r;
    return dtype == DTYPE_BF16 ? (column / 2 * PANEL_ROWS + row) * 2 + column % 2 : column * PANEL_ROWS + row;
}

static void pack_16bit(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], enum dtype dtype, int n_in)
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
                dst[place16(dtype, begin + i, r)] = strip[i];
        }
    }
    for (int r = 0; dtype == DTYPE_BF16 && n_in % 2 != 0 && r < PANEL_ROWS; r++)
        dst[place16(dtype, n_in, r)] = 0;
}

void pack_panel(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], enum dtype dtype, int n_in)
{
    if (is_quantized(dtype))
        pack_blocks(panel, rows, dtype, n_in);
    else if (dtype == DTYPE_F32)
        pack_32bit(panel, rows, n_in);
    else
        pack_16bit(panel, rows, dtype, n_in);
}

void unpack_row(float *dst, const uint8_t *panel, int row, enum dtype dtype, int n_in)
{
    const uint16_t *halves = (const uint16_t *)panel;
    if (is_quantized(dtype)) {
        unpack_blocks(dst, panel, row, dtype, n_in);
        return;
    }
    for (int c = 0; c < n_in; c++)
        dst[c] = dtype == DTYPE_F32   ? ((const float *)panel)[(size_t)c * PANEL_ROWS + (size_t)row]
                 : dtype == DTYPE_F16 ? half_to_float(halves[place16(dtype, c, row)])
                                      : bf16_to_float(halves[place16(dtype, c, row)]);
}
