/* Operations that take one pass over the elements of rows, tables of rotary embeddings, and checksums. */
#include "base/rng.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/rows_args.h"

enum element_op { OP_SCALE_ADD, OP_SCALE, OP_SOFTCAP, OP_ACTIVATE };

DEVICE float element(const struct elements_args *a, enum element_op op, float x, float base, float add)
{
    switch (op) {
    case OP_SCALE_ADD:
        return fma_f32(a->factor, base, add);
    case OP_SCALE:
        return x * a->factor;
    case OP_SOFTCAP:
        return softcap_f32(x, a->factor);
    default:
        return activate_f32(x, a->activation);
    }
}

DEVICE void all_elements(const struct elements_args *a, enum element_op op)
{
    int64_t i = (int64_t)block_id() * ROWS_THREADS + thread_id();
    if (i < a->n)
        a->x[i] = element(a, op, op == OP_SCALE_ADD ? 0 : a->x[i], op == OP_SCALE_ADD ? a->base[i] : 0,
                          op == OP_SCALE_ADD ? a->add[i] : 0);
}

DEVICE void all_vectors(const struct elements_args *a, enum element_op op)
{
    int64_t i = (int64_t)block_id() * ROWS_THREADS + thread_id();
    f32x4 x = { 0 }, base = x, add = x;
    if (i >= a->n / 4)
        return;
    if (op == OP_SCALE_ADD) {
        base = ((const f32x4 *)a->base)[i];
        add = ((const f32x4 *)a->add)[i];
    } else {
        x = ((const f32x4 *)a->x)[i];
    }
    UNROLL for (int k = 0; k < 4; k++) x[k] = element(a, op, x[k], base[k], add[k]);
    ((f32x4 *)a->x)[i] = x;
}

#define ELEMENTS(name, op)                                                                                   \
    KERNEL(name, struct elements_args, ROWS_THREADS)                                                         \
    {                                                                                                        \
        all_elements(&a, op);                                                                                \
    }                                                                                                        \
    KERNEL(name##_vectors, struct elements_args, ROWS_THREADS)                                               \
    {                                                                                                        \
        all_vectors(&a, op);                                                                                 \
    }

ELEMENTS(scale_add, OP_SCALE_ADD)
ELEMENTS(scale, OP_SCALE)
ELEMENTS(softcap, OP_SOFTCAP)
ELEMENTS(activate, OP_ACTIVATE)

KERNEL(positions, struct positions_args, ROWS_THREADS)
{
    float *x = a.x + (size_t)block_id() * (size_t)a.n;
    const float *from = a.table + (size_t)a.positions[block_id()] * (size_t)a.n;
    for (int i = thread_id(); i < a.n; i += ROWS_THREADS)
        x[i] = a.adds ? x[i] + from[i] : from[i];
}

KERNEL(concat, struct concat_args, ROWS_THREADS)
{
    size_t row = (size_t)block_id(), n_a = (size_t)a.n_a, n_b = (size_t)a.n_b;
    float *y = a.y + row * (n_a + n_b);
    for (int i = thread_id(); i < a.n_a; i += ROWS_THREADS)
        y[i] = a.a[row * n_a + (size_t)i];
    for (int i = thread_id(); i < a.n_b; i += ROWS_THREADS)
        y[a.n_a + i] = a.b[row * n_b + (size_t)i];
}

KERNEL(gather, struct gather_args, ROWS_THREADS)
{
    size_t n = (size_t)a.n, from = (size_t)a.output_rows[block_id()] * n, to = (size_t)block_id() * n;
    for (int i = thread_id(); i < a.n; i += ROWS_THREADS)
        a.y[to + (size_t)i] = a.add ? a.x[from + (size_t)i] + a.add[from + (size_t)i] : a.x[from + (size_t)i];
}

KERNEL(rope_tables, struct rope_tables_args, ROWS_THREADS)
{
    int64_t i = (int64_t)block_id() * ROWS_THREADS + thread_id();
    int in_row = a.n_parts * a.n_pairs, row = (int)(i / in_row), part = (int)(i % in_row) / a.n_pairs,
        pair = (int)(i % in_row) % a.n_pairs;
    if (row >= a.n_rows)
        return;
    float sin, cos, *to = a.cos_sin + (size_t)row * (size_t)(2 * in_row) + part * 2 * a.n_pairs + pair;
    sin_cos_f32((float)(part == 0 ? a.positions[0] : a.positions[1])[row] * a.freqs[pair], &sin, &cos);
    to[0] = cos * a.scale;
    to[a.n_pairs] = sin * a.scale;
}

/* Each word is mixed with its index, and all are added: in any order. */
KERNEL(checksum, struct checksum_args, ROWS_THREADS)
{
    SHARED(uint64_t, of_warps, ROWS_THREADS / WARP);
    uint64_t sum = 0, first = (uint64_t)block_id() * ROWS_THREADS + (uint64_t)thread_id();
    for (uint64_t i = first; i < a.n_words; i += (uint64_t)n_blocks() * ROWS_THREADS)
        sum += mix64(a.words[i] ^ mix64(i));
    if (first == 0 && a.n_tail > 0) {
        uint64_t word = 0;
        for (int i = 0; i < a.n_tail; i++)
            word |= (uint64_t)((const uint8_t *)(a.words + a.n_words))[i] << 8 * i;
        sum += mix64(word ^ mix64(a.n_words));
    }
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2)
        sum += shuffle_xor_u32((uint32_t)sum, mask) | (uint64_t)shuffle_xor_u32((uint32_t)(sum >> 32), mask)
                                                          << 32;
    if (lane_id() == 0)
        of_warps[warp_id()] = sum;
    block_sync();
    if (thread_id() != 0)
        return;
    for (int i = 1; i < ROWS_THREADS / WARP; i++)
        sum += of_warps[i];
    __atomic_fetch_add(a.sum, sum, __ATOMIC_RELAXED);
}
