/* Matrix instructions of a warpgroup (four warps, 128 threads), and bulk copies: level 90 only.
 *
 * acc [64][n] += a [64][16] . b [16][n]. Warp w of the warpgroup has rows 16 w to 16 w + 15 of a and acc, in the fragments of
 * device.h: a as one a of mma_half(), acc[4 i] to acc[4 i + 3] as the acc of columns 8 i to 8 i + 7. b is in shared memory; column c
 * of b is a row of it: 16 bytes have rows 8 k to 8 k + 7 of b (shared_matrix()).
 *
 * The products run while the warps go on. Their order:
 *
 *     wgmma_keep(acc, n / 2);     acc was written
 *     wgmma_fence(a, 4);          products see what was written to a and acc
 *     wgmma(n, acc, a, b); ...    another product may add to the same acc without a fence for it
 *     wgmma_commit();
 *     wgmma_wait(0);              all but the last 0 groups are complete
 *     wgmma_keep(acc, n / 2);     acc is read
 *
 * Until the wait, no thread changes a or the shared memory of b, or touches acc. Shared memory is read as bulk copies wrote it; what
 * threads stored there is seen after async_fence() and block_sync().
 *
 * A bulk copy reports to a barrier in shared memory. A barrier's phase ends when barrier_expect() was called and as many bytes have
 * arrived as it said; its phases have the parities 0, 1, 0, ...
 *
 * PTX ISA 8.0: sections "Asynchronous Warpgroup Level Matrix Instructions", "mbarrier", "cp.async.bulk". */
#ifndef TUTTI_KERNELS_CUDA_WARPGROUP_H
#define TUTTI_KERNELS_CUDA_WARPGROUP_H

#include "kernels/cuda/device.h"

enum { WARPGROUP = 4 * WARP };

#ifdef __NVPTX__

DEVICE uint32_t shared_address(const void *shared)
{
    return (uint32_t)(uintptr_t)(const __attribute__((address_space(3))) void *)shared;
}

/* One thread; then block_sync(). */
DEVICE void barrier_init(uint64_t *barrier)
{
    __asm__ volatile(
        "mbarrier.init.shared.b64 [%0], 1;\n\tfence.proxy.async.shared::cta;" ::"r"(shared_address(barrier))
        : "memory");
}

/* One thread, once in a phase. */
DEVICE void barrier_expect(uint64_t *barrier, uint32_t n_bytes)
{
    __asm__ volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                     "r"(n_bytes)
                     : "memory");
}

/* Warp: waits for the end of the phase of this parity, which is the running one or the one before it. */
DEVICE void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t is_over;
    do {
        __asm__ volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\tselp.u32 "
                         "%0, 1, 0, p;\n\t}"
                         : "=r"(is_over)
                         : "r"(shared_address(barrier)), "r"(parity)
                         : "memory");
    } while (!is_over);
}

/* From global to shared memory. Addresses and n_bytes are multiples of 16. */
DEVICE void copy_bulk(void *shared, const void *from, uint32_t n_bytes, uint64_t *barrier)
{
    __asm__ volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(shared)),
        "l"(from), "r"(n_bytes), "r"(shared_address(barrier))
        : "memory");
}

DEVICE void async_fence(void)
{
    __asm__ volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Between accesses of acc by threads and by products. n: a constant: the compiler moves no access past this. */
DEVICE void wgmma_keep(float *acc, int n)
{
    UNROLL for (int i = 0; i < n; i++) __asm__ volatile("" : "+f"(acc[i])::"memory");
}

/* Warpgroup, as all that follow. a: [n]; n: a constant. */
DEVICE void wgmma_fence(half2 *a, int n)
{
    UNROLL for (int i = 0; i < n; i++) __asm__ volatile("" : "+r"(a[i])::"memory");
    __asm__ volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void wgmma_commit(void)
{
    __asm__ volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* n: a constant. */
#define wgmma_wait(n) __asm__ volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")

/* Lists of 4, 8, ... operands of asm, and their places in its text. */
#define ACC_4(i)  "+f"(acc[i]), "+f"(acc[(i) + 1]), "+f"(acc[(i) + 2]), "+f"(acc[(i) + 3])
#define ACC_8(i)  ACC_4(i), ACC_4((i) + 4)
#define ACC_16(i) ACC_8(i), ACC_8((i) + 8)
#define ACC_32(i) ACC_16(i), ACC_16((i) + 16)
#define ACC_64(i) ACC_32(i), ACC_32((i) + 32)
#define TEXT_4    "%0,%1,%2,%3"
#define TEXT_8    TEXT_4 ",%4,%5,%6,%7"
#define TEXT_16   TEXT_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define TEXT_32   TEXT_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TEXT_64                                                                                              \
    TEXT_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,"  \
            "%55,%56,%57,%58,%59,%60,%61,%62,%63"
/* Operands i to i + 4 of the text are a and b, whose high word says that 8 columns are 128 bytes. The last three numbers: a and b are not negated, b is not transposed. */
#define WGMMA(n, n_acc, a0, a1, a2, a3, b0)                                                                  \
    __asm__ volatile("{\n\t.reg .b64 b;\n\tmov.b64 b, {%" #b0 ", 8};\n\t"                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" TEXT_##n_acc                 \
                     "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, b, 1, 1, 1, 0;\n\t}"                         \
                     : ACC_##n_acc(0)                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b))

/* n: a constant: 8, 16, 32, 64 or 128. acc: [n / 2]. */
DEVICE void wgmma(int n, float *acc, const half2 a[4], uint32_t b)
{
    if (n == 8)
        WGMMA(8, 4, 4, 5, 6, 7, 8);
    else if (n == 16)
        WGMMA(16, 8, 8, 9, 10, 11, 12);
    else if (n == 32)
        WGMMA(32, 16, 16, 17, 18, 19, 20);
    else if (n == 64)
        WGMMA(64, 32, 32, 33, 34, 35, 36);
    else
        WGMMA(128, 64, 64, 65, 66, 67, 68);
}

#else

void barrier_init(uint64_t *barrier);
void barrier_expect(uint64_t *barrier, uint32_t n_bytes);
void barrier_wait(uint64_t *barrier, uint32_t parity);
void copy_bulk(void *shared, const void *from, uint32_t n_bytes, uint64_t *barrier);
void async_fence(void);
uint32_t shared_address(const void *shared); /* from the begin of dynamic shared memory */
void wgmma_keep(float *acc, int n);
void wgmma_fence(half2 *a, int n);
void wgmma_commit(void);
void wgmma_wait(int n);
void wgmma(int n, float *acc, const half2 a[4], uint32_t b);

#endif

/* The low word of the descriptor of a matrix b without swizzling, which is start / 16 and k_bytes / 16 times 2^16. start: a multiple
 * of 16 in dynamic shared memory. Rows 8 k to 8 k + 7 of a column are 16 bytes, those of its columns follow each other; k_bytes:
 * from rows 0 to 7 to rows 8 to 15. Adding n moves the start by 16 n bytes. */
DEVICE uint32_t shared_matrix(const void *start, uint32_t k_bytes)
{
    return (shared_address(start) & 0x3ffff) >> 4 | k_bytes >> 4 << 16;
}

#endif
