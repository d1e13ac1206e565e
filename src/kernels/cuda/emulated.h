/* The meaning of device.h on the host: each function of device.h, computed by an emulator (tests/cuda/emulator.c).
 * Included by device.h, with the same contracts. */
#ifndef TUTTI_KERNELS_CUDA_DEVICE_H
#include "kernels/cuda/device.h" /* which includes this file */
#elif !defined(TUTTI_KERNELS_CUDA_EMULATED_H)
#define TUTTI_KERNELS_CUDA_EMULATED_H

#include "base/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE static inline __attribute__((unused))
#define UNROLL
#define UNROLL_4
#define NO_UNROLL
/* Kernels are compiled for level 80, and those that differ on level 90 again for that. */
#ifdef TUTTI_CUDA_LEVEL
#define LEVEL                 TUTTI_CUDA_LEVEL
#define EMULATED_KERNEL(name) name##_90_kernel
#else
#define LEVEL                 80
#define EMULATED_KERNEL(name) name##_kernel
#endif

struct emulated_kernel {
    const char *name;
    size_t args_bytes;
    int n_threads;
    void (*run)(const void *args); /* one thread */
};

#define KERNEL(name, type, threads)                                                                          \
    static void name##_body(const type a);                                                                   \
    static void name##_run(const void *args)                                                                 \
    {                                                                                                        \
        name##_body(*(const type *)args);                                                                    \
    }                                                                                                        \
    extern const struct emulated_kernel EMULATED_KERNEL(name);                                               \
    const struct emulated_kernel EMULATED_KERNEL(name) = { #name, sizeof(type), threads, name##_run };       \
    static void name##_body(const type a)

#define KERNEL_FOR_BLOCKS(name, type, threads, blocks) KERNEL(name, type, threads)

#define SHARED(type, name, n)                                                                                \
    static char name##_key;                                                                                  \
    type *const name = (type *)emulated_shared(&name##_key, sizeof(type) * (n))
#define DYNAMIC_SHARED(type, name) type *const name = (type *)emulated_dynamic_shared()

/* A block's shared memory of this key: the same for all its threads, aligned to 16 bytes, full of NaNs at first. */
void *emulated_shared(const void *key, size_t n_bytes);
void *emulated_dynamic_shared(void);

/* Waits until all lanes of the warp called it, and returns what each gave: [32][n_bytes], valid until the lane's
 * call after the next. n_bytes: at most EMULATED_EXCHANGE. name: of the operation, which must be the same in all. */
enum { EMULATED_EXCHANGE = 64 };
const void *emulated_exchange(const char *name, const void *mine, size_t n_bytes);

extern int emulated_thread; /* of the block */

static inline int thread_id(void)
{
    return emulated_thread;
}

int block_id(void);
int block_id_y(void);
int block_id_z(void);
int n_blocks(void);
void block_sync(void);
void grid_wait(void);

static inline int emulated_lane(void)
{
    return thread_id() % WARP;
}

DEVICE void warp_sync(void)
{
    (void)emulated_exchange("warp_sync", "", 1);
}

DEVICE float shuffle_f32(float v, int lane)
{
    return ((const float *)emulated_exchange("shuffle_f32", &v, sizeof v))[lane & 31];
}

DEVICE float shuffle_xor_f32(float v, int mask)
{
    return ((const float *)emulated_exchange("shuffle_xor_f32", &v, sizeof v))[(emulated_lane() ^ mask) & 31];
}

DEVICE uint32_t shuffle_u32(uint32_t v, int lane)
{
    return ((const uint32_t *)emulated_exchange("shuffle_u32", &v, sizeof v))[lane & 31];
}

DEVICE uint32_t shuffle_xor_u32(uint32_t v, int mask)
{
    return (
        (const uint32_t *)emulated_exchange("shuffle_xor_u32", &v, sizeof v))[(emulated_lane() ^ mask) & 31];
}

DEVICE int same_in_warp(int x)
{
    const int *all = emulated_exchange("same_in_warp", &x, sizeof x);
    for (int i = 0; i < WARP; i++)
        if (all[i] != x)
            abort();
    return x;
}

DEVICE uint32_t ballot(bool p)
{
    uint8_t mine = p;
    const uint8_t *all = emulated_exchange("ballot", &mine, 1);
    uint32_t bits = 0;
    for (int i = 0; i < WARP; i++)
        bits |= (uint32_t)(all[i] != 0) << i;
    return bits;
}

DEVICE uint32_t atomic_add_u32(uint32_t *p, uint32_t v)
{
    uint32_t before = *p;
    *p = before + v;
    return before;
}

DEVICE uint64_t atomic_add_u64(uint64_t *p, uint64_t v)
{
    uint64_t before = *p;
    *p = before + v;
    return before;
}

DEVICE void memory_fence(void)
{
}

DEVICE u32x4 load_once_16(const void *p)
{
    return *(const u32x4 *)p;
}

DEVICE u32x2 load_once_8(const void *p)
{
    return *(const u32x2 *)p;
}

DEVICE u32x4 load_16(const void *p)
{
    return *(const u32x4 *)p;
}

DEVICE u32x2 load_8(const void *p)
{
    return *(const u32x2 *)p;
}

DEVICE uint32_t load_4(const void *p)
{
    return *(const uint32_t *)p;
}

DEVICE uint32_t load_2(const void *p)
{
    return *(const uint16_t *)p;
}

/* Copies are carried out by copy_wait(), as late as the card may: an earlier read finds NaNs or old values. */
void copy_16(void *shared, const void *from, bool is_there);
void copy_commit(void);
void copy_wait(int n);

DEVICE float half_float(uint16_t h)
{
    return half_to_float(h);
}

DEVICE uint16_t float_half(float f)
{
    return float_to_half(f);
}

DEVICE half2 half2_of(float low, float high)
{
    return (half2)float_to_half(low) | (half2)float_to_half(high) << 16;
}

DEVICE uint16_t emulated_half_fma(uint16_t x, uint16_t y, uint16_t z)
{
    /* The product is exact in float; the sum in double is, unless one of the two does not count. */
    double v = (double)(half_to_float(x) * half_to_float(y)) + (double)half_to_float(z);
    float f = (float)v;
    /* Round once: where the double was between two floats, keep it off the halves' ties. */
    if ((double)f != v && (float_bits(f) & 0xfff) == 0 && isfinite(f))
        f = nextafterf(f, v > (double)f ? INFINITY : -INFINITY);
    return float_to_half(f);
}

DEVICE half2 half2_fma(half2 x, half2 y, half2 z)
{
    return (half2)emulated_half_fma((uint16_t)x, (uint16_t)y, (uint16_t)z) |
           (half2)emulated_half_fma((uint16_t)(x >> 16), (uint16_t)(y >> 16), (uint16_t)(z >> 16)) << 16;
}

DEVICE half2 half2_mul(half2 x, half2 y)
{
    return half2_of(half_to_float((uint16_t)x) * half_to_float((uint16_t)y),
                    half_to_float((uint16_t)(x >> 16)) * half_to_float((uint16_t)(y >> 16)));
}

DEVICE half2 half2_sub(half2 x, half2 y)
{
    return half2_of(half_to_float((uint16_t)x) - half_to_float((uint16_t)y),
                    half_to_float((uint16_t)(x >> 16)) - half_to_float((uint16_t)(y >> 16)));
}

DEVICE half2 half2_twice(half2 x, int which)
{
    return (which ? x >> 16 : x & 0xffff) * 0x10001u;
}

DEVICE int forget(int x)
{
    return x;
}

DEVICE uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits)
{
    return (x & mask) | bits;
}

DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector)
{
    uint64_t bytes = (uint64_t)high << 32 | low;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t s = selector >> 4 * i & 15, byte = (uint32_t)(bytes >> 8 * (s & 7)) & 255;
        v |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return v;
}

/* ---- matrix instructions ---- */

/* As half_to_float(), without branches, so that loops become vectors. */
static inline float emulated_half_float(uint16_t h)
{
    uint32_t a = h & 0x7fff, sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t special = (a >= 0x7c00 ? 0x7f800000 : 0) | (a > 0x7c00 ? 0x400000 : 0);
    return bits_float(float_bits(bits_float(a << 13) * 0x1p112f) | special | sign);
}

/* Sums in the order of the columns of a, each product and each sum rounded. Products of halves and, but for underflow, of
 * bfloat16s are exact in float. name: of the operation. */
void emulated_mma(const char *name, bool is_bf16, float acc[4], const uint32_t a[4], const uint32_t b[2]);

DEVICE void mma_half(float acc[4], const half2 a[4], const half2 b[2])
{
    emulated_mma("mma_half", false, acc, a, b);
}

DEVICE void mma_bf16(float acc[4], const uint32_t a[4], const uint32_t b[2])
{
    emulated_mma("mma_bf16", true, acc, a, b);
}

static inline void emulated_load_matrices(const char *name, uint32_t to[4], const void *row,
                                          bool is_transposed)
{
    uint16_t mine[8];
    memcpy(mine, row, sizeof mine);
    const uint16_t *all = emulated_exchange(name, mine, sizeof mine);
    int g = emulated_lane() / 4, t = emulated_lane() % 4;
    for (int i = 0; i < 4; i++) {
        const uint16_t *matrix = all + 64 * i;
        to[i] = is_transposed ? (uint32_t)matrix[16 * t + g] | (uint32_t)matrix[16 * t + 8 + g] << 16
                              : (uint32_t)matrix[8 * g + 2 * t] | (uint32_t)matrix[8 * g + 2 * t + 1] << 16;
    }
}

DEVICE void load_matrices(uint32_t to[4], const void *row)
{
    emulated_load_matrices("load_matrices", to, row, false);
}

DEVICE void load_matrices_transposed(uint32_t to[4], const void *row)
{
    emulated_load_matrices("load_matrices_transposed", to, row, true);
}

DEVICE float max_f32(float x, float y)
{
    return x > y || y != y ? x : y;
}

/* The steps of all lanes at once, by the lane that comes first. */
float emulated_warp_sum_f32(float v, int n);
float emulated_warp_max_f32(float v, int n);
uint32_t emulated_warp_max_u32(uint32_t v, int n);

DEVICE float warp_sum_f32(float v, const int n)
{
    return emulated_warp_sum_f32(v, n);
}

DEVICE float warp_max_f32(float v, const int n)
{
    return emulated_warp_max_f32(v, n);
}

DEVICE uint32_t warp_max_u32(uint32_t v, const int n)
{
    return emulated_warp_max_u32(v, n);
}

DEVICE float at_least_f32(float x, float least)
{
    return x < least ? least : x;
}

DEVICE float sqrt_exact(float x)
{
    return sqrtf(x);
}

DEVICE float divide_exact(float x, float y)
{
    return x / y;
}

#endif
