/* What kernels for NVIDIA cards are written in: C with lanes, warps, blocks and matrix instructions, in two meanings.
 *
 * clang compiles a kernel to PTX, where each of these functions is an instruction or a few. The tests compile the same
 * source for the host (emulated.h): every thread of a block becomes a fiber, a warp's fibers meet at each function that
 * is marked "warp" below, and a block's at block_sync(). Warps run in random order between two barriers, so a race
 * between barriers changes results.
 *
 * A kernel takes one structure, which host and device lay out alike (args.h):
 *
 *     KERNEL(scale_rows, struct scale_args, 256)
 *     {
 *         int i = block_id() * 256 + thread_id();
 *         if (i < a.n)
 *             a.x[i] *= a.scale;
 *     }
 *
 * The number is that of the threads of a block: at most 1,024, a multiple of 32. The compiler sees no bound of loops over
 * registers unless they are unrolled (UNROLL), and an array that is indexed by a variable goes to local memory.
 *
 * Sums are fused multiply-adds in an order that is written down with each kernel: nothing here is contracted,
 * approximated or reordered (-ffp-contract=off). exp, sin and cos are ours (math.h of this folder). */
#ifndef TUTTI_KERNELS_CUDA_DEVICE_H
#define TUTTI_KERNELS_CUDA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WARP = 32 };

typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x2 __attribute__((vector_size(8)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x2 __attribute__((vector_size(8)));
/* Two float16 in a register: the first in the low half. */
typedef uint32_t half2;

#ifdef __NVPTX__

#define DEVICE    static inline __attribute__((always_inline))
#define UNROLL    _Pragma("unroll")
#define UNROLL_4  _Pragma("unroll 4")
#define NO_UNROLL _Pragma("nounroll")
/* embed.py moves the number of threads into the text of the kernel. */
#define KERNEL(name, type, threads)                                                                          \
    extern const int name##_threads;                                                                         \
    const int name##_threads = (threads);                                                                    \
    __attribute__((nvptx_kernel)) void name(const type a);                                                   \
    __attribute__((nvptx_kernel)) void name(const type a)

/* The same with room for so many blocks on a multiprocessor: ptxas may otherwise spill a few registers to make room for
 * one more. */
#define KERNEL_FOR_BLOCKS(name, type, threads, blocks)                                                       \
    extern const int name##_blocks;                                                                          \
    const int name##_blocks = (blocks);                                                                      \
    KERNEL(name, type, threads)

/* A static array in the block's shared memory, and the shared memory whose size the launch states. */
#define SHARED(type, name, n)                                                                                \
    static __attribute__((address_space(3))) type name##_shared[n];                                          \
    type *const name = (type *)name##_shared
#define DYNAMIC_SHARED(type, name) type *const name = (type *)dynamic_shared
extern __attribute__((address_space(3), aligned(16))) uint8_t dynamic_shared[];

/* The level of instructions that the kernels are compiled for: 75, 80 or 90 (meson.build of this folder). */
#define LEVEL TUTTI_CUDA_LEVEL

DEVICE int thread_id(void)
{
    return __nvvm_read_ptx_sreg_tid_x();
}

DEVICE int block_id(void)
{
    return __nvvm_read_ptx_sreg_ctaid_x();
}

DEVICE int block_id_y(void)
{
    return __nvvm_read_ptx_sreg_ctaid_y();
}

DEVICE int block_id_z(void)
{
    return __nvvm_read_ptx_sreg_ctaid_z();
}

DEVICE int n_blocks(void)
{
    return __nvvm_read_ptx_sreg_nctaid_x();
}

/* Block: all threads of the block meet; what they stored in shared or global memory is seen by all after it. */
DEVICE void block_sync(void)
{
    __syncthreads();
}

/* On level 90 a block may begin while the launch before it is still running (griddepcontrol). The thread waits for the end of that launch,
 * and sees all that it stored. A kernel that does not call it waits at its start: embed.py adds that. Before it, a kernel may read what
 * no launch stores: weights. */
DEVICE void grid_wait(void)
{
#if LEVEL >= 90
    __asm__ volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Warp: as block_sync(), of the 32 threads of a warp. */
DEVICE void warp_sync(void)
{
    __nvvm_bar_warp_sync(0xffffffffu);
}

/* Warp: v of the lane whose number differs from this lane's in the bits of mask. */
DEVICE float shuffle_xor_f32(float v, int mask)
{
    return __nvvm_shfl_sync_bfly_f32(0xffffffffu, v, mask, 31);
}

DEVICE uint32_t shuffle_xor_u32(uint32_t v, int mask)
{
    return (uint32_t)__nvvm_shfl_sync_bfly_i32(0xffffffffu, (int)v, mask, 31);
}

/* Warp: v of lane number lane. */
DEVICE float shuffle_f32(float v, int lane)
{
    return __nvvm_shfl_sync_idx_f32(0xffffffffu, v, lane, 31);
}

DEVICE uint32_t shuffle_u32(uint32_t v, int lane)
{
    return (uint32_t)__nvvm_shfl_sync_idx_i32(0xffffffffu, (int)v, lane, 31);
}

/* Warp: bit i is set if p of lane i is true. */
DEVICE uint32_t ballot(bool p)
{
    return (uint32_t)__nvvm_vote_ballot_sync(0xffffffffu, p);
}

/* Warp: x, which all lanes have. The compiler knows it after this, and computes what follows from it once for the warp instead of in each
 * lane: descriptors of matrix instructions need that. */
DEVICE int same_in_warp(int x)
{
    return __nvvm_shfl_sync_idx_i32(0xffffffffu, x, 0, 31);
}

/* Returns the value before. In global or shared memory. */
DEVICE uint32_t atomic_add_u32(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

DEVICE uint64_t atomic_add_u64(uint64_t *p, uint64_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

/* Stores before it are seen by other blocks before stores after it. */
DEVICE void memory_fence(void)
{
    __nvvm_membar_gl();
}

/* 16 or 8 aligned bytes of global memory that are read once: past the L1 cache. */
DEVICE u32x4 load_once_16(const void *p)
{
    u32x4 v;
    __asm__ volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "l"(p));
    return v;
}

DEVICE u32x2 load_once_8(const void *p)
{
    u32x2 v;
    __asm__ volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(p));
    return v;
}

/* Aligned bytes of global memory that no thread of the kernel writes, through the L1 cache. */
DEVICE u32x4 load_16(const void *p)
{
    u32x4 v;
    __asm__ volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "l"(p));
    return v;
}

DEVICE u32x2 load_8(const void *p)
{
    u32x2 v;
    __asm__ volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(p));
    return v;
}

DEVICE uint32_t load_4(const void *p)
{
    uint32_t v;
    __asm__ volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

DEVICE uint32_t load_2(const void *p)
{
    uint16_t v;
    __asm__ volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}

/* Copies 16 bytes from global to shared memory while the thread goes on; is_there false: zeros instead, and from is not
 * read. Complete after copy_wait(n): all but the last n groups, each closed by copy_commit(). Then block_sync(), for the
 * other threads. */
DEVICE void copy_16(void *shared, const void *from, bool is_there)
{
    uint32_t to = (uint32_t)(uintptr_t)(__attribute__((address_space(3))) void *)shared;
#if LEVEL >= 80
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(is_there ? 16 : 0)
                     : "memory");
#else
    u32x4 v = { 0 };
    (void)to;
    if (is_there)
        v = *(const u32x4 *)from;
    *(u32x4 *)shared = v;
#endif
}

DEVICE void copy_commit(void)
{
#if LEVEL >= 80
    __asm__ volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* n: a constant. */
#if LEVEL >= 80
#define copy_wait(n) __asm__ volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#else
#define copy_wait(n) ((void)(n))
#endif

/* ---- halves ---- */

/* Rounds to nearest even. */
DEVICE half2 half2_of(float low, float high)
{
    half2 v;
#if LEVEL >= 80
    __asm__("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
#else
    __asm__(
        "{\n\t.reg .f16 l, h;\n\tcvt.rn.f16.f32 l, %2;\n\tcvt.rn.f16.f32 h, %1;\n\tmov.b32 %0, {l, h};\n\t}"
        : "=r"(v)
        : "f"(high), "f"(low));
#endif
    return v;
}

DEVICE float half_float(uint16_t h)
{
    float v;
    __asm__("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
}

DEVICE uint16_t float_half(float f)
{
    uint16_t v;
    __asm__("cvt.rn.f16.f32 %0, %1;" : "=h"(v) : "f"(f));
    return v;
}

/* Each half by itself, rounded to nearest even; denormals are kept. */
DEVICE half2 half2_fma(half2 x, half2 y, half2 z)
{
    half2 v;
    __asm__("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(x), "r"(y), "r"(z));
    return v;
}

DEVICE half2 half2_mul(half2 x, half2 y)
{
    half2 v;
    __asm__("mul.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(x), "r"(y));
    return v;
}

DEVICE half2 half2_sub(half2 x, half2 y)
{
    half2 v;
    __asm__("sub.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(x), "r"(y));
    return v;
}

/* The low half (which: 0) or the high half (1) of x in both halves. which: a constant; then this is no instruction, but a mark of
 * the operand of the next. */
DEVICE half2 half2_twice(half2 x, int which)
{
    half2 v;
    if (which)
        __asm__("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h}; }" : "=r"(v) : "r"(x));
    else
        __asm__("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l}; }" : "=r"(v) : "r"(x));
    return v;
}

/* x, of which the compiler does not know that it is: what is computed from it again after a loop takes no registers in the
 * loop. */
DEVICE int forget(int x)
{
    __asm__ volatile("" : "+r"(x));
    return x;
}

/* (x & mask) | bits in one instruction. */
DEVICE uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits)
{
    uint32_t v;
    __asm__("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(x), "r"(mask), "r"(bits));
    return v;
}

/* Four bytes of the eight of low and high; each nibble of selector is the number of a byte (prmt). */
DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector)
{
    uint32_t v;
    __asm__("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(low), "r"(high), "r"(selector));
    return v;
}

/* ---- matrix instructions (warp) ----
 *
 * acc [16][8] += a [16][16] . b [16][8]. With lane = 4 g + t:
 *   a[0]: row g,     columns 2t, 2t + 1      a[2]: row g,     columns 2t + 8, 2t + 9
 *   a[1]: row g + 8, columns 2t, 2t + 1      a[3]: row g + 8, columns 2t + 8, 2t + 9
 *   b[0]: rows 2t, 2t + 1 of column g        b[1]: rows 2t + 8, 2t + 9 of column g
 *   acc[0], acc[1]: row g, columns 2t, 2t + 1;    acc[2], acc[3]: row g + 8, the same
 * The products are exact; how the card rounds their sum is its own, and does not depend on other rows or columns. */
DEVICE void mma_half(float acc[4], const half2 a[4], const half2 b[2])
{
#if LEVEL >= 80
    __asm__ volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __asm__ volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    __asm__ volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}

/* The same of pairs of bfloat16. Not of level 75. */
DEVICE void mma_bf16(float acc[4], const uint32_t a[4], const uint32_t b[2])
{
#if LEVEL >= 80
    __asm__ volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    (void)acc, (void)a, (void)b;
    __builtin_trap();
#endif
}

/* Warp: four 8 x 8 matrices of halves from shared memory. row: in lanes 8 i to 8 i + 7 the addresses of the rows of
 * matrix i, 16 bytes each. Lane 4 g + t gets of matrix i elements 2t and 2t + 1 of row g; transposed: of column g. */
DEVICE void load_matrices(uint32_t to[4], const void *row)
{
    uint32_t from = (uint32_t)(uintptr_t)(const __attribute__((address_space(3))) void *)row;
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from)
                     : "memory");
}

DEVICE void load_matrices_transposed(uint32_t to[4], const void *row)
{
    uint32_t from = (uint32_t)(uintptr_t)(const __attribute__((address_space(3))) void *)row;
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from)
                     : "memory");
}

/* The larger of two floats; the other one if one is a NaN. */
DEVICE float max_f32(float x, float y)
{
    return __builtin_fmaxf(x, y);
}

/* Warp: of each group of n consecutive lanes, a power of two, the sum, in all of its lanes: v and that of the lane n / 2 away
 * first, then so of their sums by halves of the distance down to 1. */
DEVICE float warp_sum_f32(float v, const int n)
{
    UNROLL for (int mask = n / 2; mask > 0; mask /= 2) v += shuffle_xor_f32(v, mask);
    return v;
}

/* The largest of them by max_f32(). */
DEVICE float warp_max_f32(float v, const int n)
{
    UNROLL for (int mask = n / 2; mask > 0; mask /= 2) v = max_f32(v, shuffle_xor_f32(v, mask));
    return v;
}

DEVICE uint32_t warp_max_u32(uint32_t v, const int n)
{
    UNROLL for (int mask = n / 2; mask > 0; mask /= 2)
    {
        uint32_t other = shuffle_xor_u32(v, mask);
        v = other > v ? other : v;
    }
    return v;
}

/* x, but at least this number; NaN stays NaN. */
DEVICE float at_least_f32(float x, float least)
{
#if LEVEL >= 80
    float v;
    __asm__("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(x), "f"(least));
    return v;
#else
    return x < least ? least : x;
#endif
}

/* Round to nearest even, as IEEE 754 says: not the approximations. */
DEVICE float sqrt_exact(float x)
{
    float v;
    __asm__("sqrt.rn.f32 %0, %1;" : "=f"(v) : "f"(x));
    return v;
}

DEVICE float divide_exact(float x, float y)
{
    float v;
    __asm__("div.rn.f32 %0, %1, %2;" : "=f"(v) : "f"(x), "f"(y));
    return v;
}

#else
#include "kernels/cuda/emulated.h"
#endif

/* x * y + z, rounded once. */
DEVICE float fma_f32(float x, float y, float z)
{
    return __builtin_fmaf(x, y, z);
}

DEVICE int lane_id(void)
{
    return thread_id() % WARP;
}

DEVICE int warp_id(void)
{
    return thread_id() / WARP;
}

DEVICE float bits_f32(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } v = { .u = u };
    return v.f;
}

DEVICE uint32_t f32_bits(float f)
{
    union {
        float f;
        uint32_t u;
    } v = { .f = f };
    return v.u;
}

#endif
