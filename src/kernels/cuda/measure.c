/* What a card can do at most: streaming reads, matrix instructions and float32 multiply-adds without anything else. */
#include "kernels/cuda/measure_args.h"

#include "kernels/cuda/warpgroup.h"

/* Every thread reads 16 bytes after those of the thread before it, so that a warp reads whole lines, and eight loads are
 * on their way at a time. The sum is stored only if it has one value of 2^32, so that no read can be left out. */
KERNEL(measure_read, struct measure_read_args, MEASURE_THREADS)
{
    int64_t stride = (int64_t)n_blocks() * MEASURE_THREADS;
    u32x4 sum = { 0 };
    for (int64_t at = (int64_t)block_id() * MEASURE_THREADS + thread_id(); at < a.n;
         at += MEASURE_UNROLL * stride) {
        u32x4 v[MEASURE_UNROLL];
        UNROLL for (int i = 0; i < MEASURE_UNROLL; i++)
            v[i] = at + i * stride < a.n ? load_once_16(a.words + 4 * (at + i * stride)) : (u32x4){ 0 };
        UNROLL for (int i = 0; i < MEASURE_UNROLL; i++) sum ^= v[i];
    }
    uint32_t all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
    if (all == a.rare)
        a.out[0] = all;
}

#if LEVEL >= 90
/* A warpgroup's products follow each other in its accumulators without waiting. */
KERNEL(measure_half, struct measure_arithmetic_args, MEASURE_THREADS)
{
    DYNAMIC_SHARED(uint32_t, y);
    float acc[64] = { 0 }, sum = 0;
    half2 x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = (half2)a.bits + (half2)(4 * thread_id() + i);
    for (int i = thread_id(); i < MEASURE_SHARED / 4; i += MEASURE_THREADS)
        y[i] = a.bits;
    async_fence();
    block_sync();
    uint32_t matrix = shared_matrix(y, MEASURE_SHARED / 2);
    wgmma_keep(acc, 64);
    for (int n = 0; n < a.n; n++) {
        wgmma_fence(x, 4);
        UNROLL for (int i = 0; i < MEASURE_WGMMA; i++) wgmma(128, acc, x, matrix);
        wgmma_commit();
        wgmma_wait(1);
    }
    wgmma_wait(0);
    wgmma_keep(acc, 64);
    UNROLL for (int i = 0; i < 64; i++) sum += acc[i];
    if (f32_bits(sum) == a.rare)
        a.out[0] = sum;
}
#else
/* Eight independent accumulators hide the latency of one. */
KERNEL(measure_half, struct measure_arithmetic_args, MEASURE_THREADS)
{
    float acc[8][4] = { { 0 } };
    half2 x[4], y[2];
    UNROLL for (int i = 0; i < 4; i++) x[i] = (half2)a.bits + (half2)thread_id();
    y[0] = y[1] = (half2)a.bits;
    for (int n = 0; n < a.n; n++) {
        UNROLL for (int i = 0; i < 8; i++) mma_half(acc[i], x, y);
    }
    float sum = 0;
    UNROLL for (int i = 0; i < 8; i++) sum += acc[i][0] + acc[i][1] + acc[i][2] + acc[i][3];
    if (f32_bits(sum) == a.rare)
        a.out[0] = sum;
}
#endif

KERNEL(measure_float, struct measure_arithmetic_args, MEASURE_THREADS)
{
    float acc[8], x = bits_f32(a.bits), y = (float)thread_id();
    UNROLL for (int i = 0; i < 8; i++) acc[i] = (float)i;
    for (int n = 0; n < a.n; n++) {
        UNROLL for (int i = 0; i < 8; i++) acc[i] = fma_f32(acc[i], x, y);
    }
    float sum = 0;
    UNROLL for (int i = 0; i < 8; i++) sum += acc[i];
    if (f32_bits(sum) == a.rare)
        a.out[0] = sum;
}
