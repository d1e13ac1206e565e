#include "kernels/pack.h"
#include "kernels/input_block.h"

#include "base/half.h"
#include "base/transpose.h"
#include "kernels/float8.h"
#include "kernels/formats.h"

#include <string.h>

#define PACK_INLINE static inline __attribute__((always_inline))

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

bool panel_bytes(enum dtype dtype, int n_in, size_t *out)
{
    if (n_in <= 0 || !dtype_is_weight(dtype) || n_in % dtype_block_elems(dtype) != 0)
        return false;
    if (dtype_is_float8(dtype)) {
        size_t n_runs = ((size_t)n_in + FLOAT8_RUN - 1) / FLOAT8_RUN;
        *out = float8_head_bytes(dtype) + n_runs * float8_run_scale_bytes(dtype) + (size_t)n_in * PANEL_ROWS;
        return true;
    }
    if (dtype_is_integers(dtype)) {
        struct quant_format f = quant_format(dtype);
        size_t columns = (size_t)format_unit_columns(f), n = ((size_t)n_in + columns - 1) / columns;
        *out = n * format_param_bytes(f) + (size_t)n_in / BLOCK * 2 * format_half_bytes(f);
        return true; /* at most 36 bytes for a column */
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
    if (dtype_is_integers(dtype))
        row = (size_t)n_in / BLOCK * (BLOCK + sizeof(struct input_row));
    return align64((size_t)n_rows * row);
}

/* Transposes 32 rows of n_bytes each to [n_bytes / size, rounded up][32] elements; a missing end is zero. A cache line
 * of each row at a time, so that every line is read and written once. */
PACK_INLINE void pack_transposed(uint8_t *to, const uint8_t *const rows[PANEL_ROWS], size_t at,
                                 size_t n_bytes, size_t size)
{
    static const uint8_t ZEROS[TRANSPOSE_LINE];
    const uint8_t *lines[PANEL_ROWS];
    size_t stride = PANEL_ROWS * size, end = 0;
    for (; end + TRANSPOSE_LINE <= n_bytes; end += TRANSPOSE_LINE, to += TRANSPOSE_LINE / size * stride) {
        for (int r = 0; r < PANEL_ROWS; r++)
            lines[r] = rows[r] ? rows[r] + at + end : ZEROS;
        transpose_lines(to, stride, lines, PANEL_ROWS, size);
    }
    if (end == n_bytes)
        return;
    uint8_t in[PANEL_ROWS][TRANSPOSE_LINE] = { 0 }, out[TRANSPOSE_LINE * PANEL_ROWS];
    for (int r = 0; r < PANEL_ROWS; r++) {
        lines[r] = in[r];
        if (rows[r])
            memcpy(in[r], rows[r] + at + end, n_bytes - end);
    }
    transpose_lines(out, stride, lines, PANEL_ROWS, size);
    memcpy(to, out, (n_bytes - end + size - 1) / size * stride);
}

/* The offset of column c of row r. */
static size_t place16(enum dtype dtype, int c, int r)
{
    size_t column = (size_t)c, row = (size_t)r;
    return dtype == DTYPE_BF16 ? (column / 2 * PANEL_ROWS + row) * 2 + column % 2 : column * PANEL_ROWS + row;
}

/* ---- 8-bit floats ---- */

/* The scale of a row's block, multiplied for the halves that the kernels read. */
static float float8_scale(const uint8_t *row, enum dtype dtype, int column)
{
    float scale;
    memcpy(&scale, row + float8_block_at(dtype, column), sizeof scale);
    return scale * FLOAT8_SCALE;
}

static bool has_scales_of(const uint8_t *a, const uint8_t *b, enum dtype dtype, int n_in)
{
    for (int c = 0; c < n_in; c += FLOAT8_RUN)
        if (memcmp(a + float8_block_at(dtype, c), b + float8_block_at(dtype, c), sizeof(float)) != 0)
            return false;
    return true;
}

/* Finds rows whose lists of scales are all that occur among the 16 rows of a half, and writes the place in
 * found of each row. False: more than FLOAT8_SCALES. */
static bool pick_scales(const uint8_t *found[FLOAT8_SCALES], uint8_t *places, const uint8_t *const *rows,
                        enum dtype dtype, int n_in)
{
    int n = 0;
    for (int r = 0; r < LANES; r++) {
        int i = 0;
        while (rows[r] && i < n && !has_scales_of(found[i], rows[r], dtype, n_in))
            i++;
        if (i == FLOAT8_SCALES)
            return false;
        if (rows[r] && i == n)
            found[n++] = rows[r];
        places[r] = (uint8_t)i;
    }
    return true;
}

static bool pack_float8_scales(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], enum dtype dtype,
                               int n_in)
{
    float *scales = (float *)panel;
    if (dtype == DTYPE_F8_ROW) {
        for (int r = 0; r < PANEL_ROWS; r++)
            scales[r] = rows[r] ? float8_scale(rows[r], dtype, 0) : 0;
        return true;
    }
    memset(panel, 0, float8_head_bytes(dtype));
    for (int h = 0; h < 2; h++) {
        const uint8_t *found[FLOAT8_SCALES] = { NULL };
        if (!pick_scales(found, panel + h * LANES, rows + h * LANES, dtype, n_in))
            return false;
        for (int c = 0; c < n_in; c += FLOAT8_RUN) {
            scales = (float *)(panel + float8_run_at(dtype, c)) + h * FLOAT8_SCALES;
            for (int i = 0; i < FLOAT8_SCALES; i++)
                scales[i] = found[i] ? float8_scale(found[i], dtype, c) : 0;
        }
    }
    return true;
}

static bool pack_float8(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], enum dtype dtype, int n_in)
{
    const int block = dtype_block_elems(dtype);
    if (!pack_float8_scales(panel, rows, dtype, n_in))
        return false;
    for (int begin = 0; begin < n_in; begin += block)
        pack_transposed(panel + float8_column_at(dtype, begin), rows,
                        float8_block_at(dtype, begin) + sizeof(float), (size_t)block, 2);
    return true;
}

static void unpack_float8(float *dst, const uint8_t *panel, int row, enum dtype dtype, int n_in)
{
    for (int c = 0; c < n_in; c++) {
        uint8_t byte =
            panel[float8_column_at(dtype, c / FLOAT8_RUN * FLOAT8_RUN) + float8_place(c % FLOAT8_RUN, row)];
        dst[c] = half_to_float(float8_half_bits(byte)) * float8_packed_scale(panel, dtype, c, row);
    }
}

/* ---- all types ---- */

bool pack_panel(uint8_t *panel, const uint8_t *const rows[PANEL_ROWS], enum dtype dtype, int n_in)
{
    if (dtype_is_float8(dtype))
        return pack_float8(panel, rows, dtype, n_in);
    if (dtype_is_integers(dtype))
        pack_blocks(panel, rows, dtype, n_in);
    else if (dtype == DTYPE_F32)
        pack_transposed(panel, rows, 0, (size_t)n_in * 4, 4);
    else /* BF16: pairs of columns */
        pack_transposed(panel, rows, 0, (size_t)n_in * 2, dtype == DTYPE_BF16 ? 4 : 2);
    return true;
}

void unpack_row(float *dst, const uint8_t *panel, int row, enum dtype dtype, int n_in)
{
    const uint16_t *halves = (const uint16_t *)panel;
    if (dtype_is_float8(dtype)) {
        unpack_float8(dst, panel, row, dtype, n_in);
        return;
    }
    if (dtype_is_integers(dtype)) {
        unpack_blocks(dst, panel, row, dtype, n_in);
        return;
    }
    for (int c = 0; c < n_in; c++)
        dst[c] = dtype == DTYPE_F32   ? ((const float *)panel)[(size_t)c * PANEL_ROWS + (size_t)row]
                 : dtype == DTYPE_F16 ? half_to_float(halves[place16(dtype, c, row)])
                                      : bf16_to_float(halves[place16(dtype, c, row)]);
}
