#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_blocks.h"
#include "kernels/stored.h"

#include "base/half.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { BLOCK_ELEMS = 32, SUPER_ELEMS = 256 };

/* d is stored as float16, but the quants are computed with the unrounded d, as in ggml. The
 * content of a block with a NaN or an infinity is undefined; its quants are clamped to their
 * range. */
static int clamped(float x, int low, int high)
{
    return x >= (float)high ? high : x > (float)low ? (int)x : low; /* NaN: low */
}

static float load_half(const uint8_t *src)
{
    uint16_t half;
    memcpy(&half, src, 2);
    return half_to_float(half);
}

static void quantize_q8_0(uint8_t *dst, const float *x, int64_t n_blocks)
{
    for (int64_t b = 0; b < n_blocks; b++, dst += 34, x += BLOCK_ELEMS) {
        float max = 0;
        for (int i = 0; i < BLOCK_ELEMS; i++)
            max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
        float d = max / 127, id = d != 0 ? 1 / d : 0;
        store_half(dst, float_to_half(d));
        for (int i = 0; i < BLOCK_ELEMS; i++)
            dst[2 + i] = (uint8_t)(int8_t)clamped(roundf(x[i] * id), -128, 127);
    }
}

bool quantize_can(enum dtype dtype)
{
    return dtype <= DTYPE_MXFP4;
}

void quantize(void *dst, const float *src, enum dtype dtype, int64_t n)
{
    quantize_weighted(dst, src, dtype, n, NULL);
}

void quantize_weighted(void *dst, const float *src, enum dtype dtype, int64_t n, const float *weights)
{
    assert(quantize_can(dtype));
    uint8_t *to = dst;
    switch (dtype) {
    case DTYPE_Q8_0:
        quantize_q8_0(to, src, n / BLOCK_ELEMS);
        break;
    case DTYPE_F32:
        memcpy(dst, src, (size_t)n * sizeof *src);
        break;
    case DTYPE_F16:
    case DTYPE_BF16:
        for (int64_t i = 0; i < n; i++) {
            uint16_t half = dtype == DTYPE_F16 ? float_to_half(src[i]) : float_to_bf16(src[i]);
            memcpy(to + 2 * i, &half, 2);
        }
        break;
    case DTYPE_MXFP4:
        for (int64_t i = 0; i < n; i += BLOCK_ELEMS, to += dtype_block_bytes(dtype))
            quantize_mxfp4(to, src + i, weights ? weights + i : NULL);
        break;
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
        for (int64_t i = 0; i < n; i += BLOCK_ELEMS, to += dtype_block_bytes(dtype))
            quantize_small(to, src + i, dtype, weights ? weights + i : NULL);
        break;
    default:
        for (int64_t i = 0; i < n; i += SUPER_ELEMS, to += dtype_block_bytes(dtype))
            quantize_k(to, src + i, dtype, weights ? weights + i : NULL);
    }
}

static void dequantize_blocks(float *dst, const uint8_t *src, enum dtype dtype, int64_t n)
{
    const struct quant_format f = quant_format(dtype);
    int n_elems = dtype_block_elems(dtype);
    struct stored_unit unit = { 0 };
    for (; n > 0; n -= n_elems, src += dtype_block_bytes(dtype)) {
        stored_read(&unit, src, dtype);
        for (int begin = 0; begin < n_elems; begin += f.sub) {
            float scale = stored_scale(&unit, f, begin / f.sub);
            float min = f.has_min ? stored_min(&unit, f, begin / f.sub) : 0;
            for (int i = begin; i < begin + f.sub; i++) {
                int number = (int)(unit.words[i / BLOCK][i % BLOCK / 4] >> (i % 4 * 8) & 255);
                if (f.table != NUMBERS_PLAIN)
                    number = number_tables[f.table][number];
                float value = scale * (float)(number - f.zero);
                *dst++ = f.has_min ? value - min : value;
            }
        }
    }
}

static void dequantize_float8(float *dst, const uint8_t *src, enum dtype dtype, int64_t n)
{
    int n_elems = dtype_block_elems(dtype);
    for (; n > 0; n -= n_elems, src += dtype_block_bytes(dtype)) {
        float scale;
        memcpy(&scale, src, sizeof scale);
        for (int i = 0; i < n_elems; i++)
            *dst++ = float8_to_float(src[4 + i]) * scale;
    }
}

static int64_t find_nan_float8(const void *src, enum dtype dtype, int64_t n)
{
    int n_elems = dtype_block_elems(dtype);
    const uint8_t *from = src;
    for (int64_t begin = 0; begin < n; begin += n_elems, from += dtype_block_bytes(dtype)) {
        int in_block = n - begin < n_elems ? (int)(n - begin) : n_elems;
        uint8_t has_nan = 0;
        float scale;
        memcpy(&scale, from, sizeof scale);
        if (!(fabsf(scale) < 0x1p100f))
            return begin;
        for (int i = 0; i < in_block; i++)
            has_nan |= float8_is_nan(from[4 + i]);
        for (int i = 0; has_nan && i < in_block; i++)
            if (float8_is_nan(from[4 + i]))
                return begin + i;
    }
    return -1;
}

void dequantize(float *dst, const void *src, enum dtype dtype, int64_t n)
{
    const uint8_t *from = src;
    switch (dtype) {
    case DTYPE_F32:
        memcpy(dst, src, (size_t)n * sizeof *dst);
        break;
    case DTYPE_F16:
        for (int64_t i = 0; i < n; i++, from += 2)
            dst[i] = load_half(from);
        break;
    case DTYPE_BF16:
        for (int64_t i = 0; i < n; i++, from += 2) {
            uint16_t b;
            memcpy(&b, from, 2);
            dst[i] = bf16_to_float(b);
        }
        break;
    case DTYPE_F8_BLOCK:
    case DTYPE_F8_ROW:
        dequantize_float8(dst, from, dtype, n);
        break;
    default:
        dequantize_blocks(dst, from, dtype, n);
    }
}

int64_t dequantize_find_nan(const void *src, enum dtype dtype, int64_t n)
{
    enum { PIECE = 256 };
    float piece[PIECE];
    size_t piece_bytes = (size_t)(PIECE / dtype_block_elems(dtype)) * (size_t)dtype_block_bytes(dtype);
    const uint8_t *from = src;
    if (dtype_is_float8(dtype))
        return find_nan_float8(src, dtype, n);
    for (int64_t at = 0; at < n; at += PIECE, from += piece_bytes) {
        int in_piece = n - at < PIECE ? (int)(n - at) : PIECE;
        dequantize(piece, from, dtype, in_piece);
        for (int i = 0; i < in_piece; i++)
            if (!isfinite(piece[i]))
                return at + i;
    }
    return -1;
}
