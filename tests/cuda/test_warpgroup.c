/* Products of warpgroups in the emulator against plain sums, with operands laid out as the tables of the PTX ISA say; and kernels
 * with one mistake each, which the emulator must refuse or give wrong numbers. */
#include "cuda/emulator.h"
#include "kernels/cuda/warpgroup.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/half.h"

enum { N_K = 32, MAX_N = 128, B_BYTES = MAX_N * N_K * 2, SHARED_BYTES = 2 * B_BYTES };

enum mistake {
    NONE,
    NO_WAIT,
    EARLY, /* waits for all but the last group */
    NO_COMMIT,
    NO_FENCE,
    NO_KEEP,
    A_WRITTEN, /* while the product runs */
    ACC_WRITTEN,
    B_WRITTEN,
    NO_PHASE,       /* b is used without waiting for the copy */
    OLD_PHASE,      /* waits with the parity of the phase before */
    STORED,         /* b comes from threads, without async_fence() */
    WRONG_DISTANCE, /* in the descriptor */
    UNEQUAL,        /* descriptors of the warps */
    NOT_ALIGNED,
    TOO_FEW_BYTES, /* fewer are copied than expected */
    NO_INIT,
};

struct product_args {
    const uint16_t *a; /* [64][N_K] */
    const uint8_t *b;  /* B_BYTES */
    float *y;          /* [64][n] */
    int32_t n, k_bytes, mistake;
};

/* Matrix fragments for wgmma.mma_async.m64nNk16: a lane's registers, as the figures of the ISA have them. */
static half2 a_register(const struct product_args *a, int k, int i)
{
    int row = thread_id() / 32 * 16 + thread_id() % 32 / 4 + (i == 1 || i == 3 ? 8 : 0);
    int column = k + thread_id() % 4 * 2 + (i >= 2 ? 8 : 0);
    const uint16_t *at = a->a + row * N_K + column;
    return (half2)at[0] | (half2)at[1] << 16;
}

KERNEL(multiply, struct product_args, WARPGROUP)
{
    DYNAMIC_SHARED(uint8_t, b);
    SHARED(uint64_t, full, 1);
    half2 x[2][4];
    float acc[64];
    for (int i = 0; i < 4; i++) {
        x[0][i] = a_register(&a, 0, i);
        x[1][i] = a_register(&a, 16, i);
    }
    for (int i = 0; i < a.n / 2; i++)
        acc[i] = 0;
    if (thread_id() == 0 && a.mistake != NO_INIT)
        barrier_init(full);
    block_sync();
    if (thread_id() == 0) {
        barrier_expect(full, B_BYTES);
        copy_bulk(b, a.b, B_BYTES / 2, full);
        copy_bulk(b + B_BYTES / 2 + (a.mistake == NOT_ALIGNED ? 8 : 0), a.b + B_BYTES / 2,
                  B_BYTES / 2 - (a.mistake == TOO_FEW_BYTES ? 16 : 0), full);
    }
    if (a.mistake != NO_PHASE)
        barrier_wait(full, a.mistake == OLD_PHASE ? 1 : 0);
    if (a.mistake == STORED) {
        for (int i = thread_id(); i < B_BYTES; i += WARPGROUP)
            b[B_BYTES + i] = b[i];
        block_sync();
    }
    uint8_t *start = b + (a.mistake == STORED ? B_BYTES : 0);
    uint32_t matrix = shared_matrix(start, (uint32_t)a.k_bytes + (a.mistake == WRONG_DISTANCE ? 16 : 0));
    if (a.mistake == UNEQUAL && warp_id() == 2)
        matrix++;
    if (a.mistake != NO_KEEP)
        wgmma_keep(acc, a.n / 2);
    if (a.mistake != NO_FENCE)
        wgmma_fence(x[0], 8);
    wgmma(a.n, acc, x[0], matrix);
    if (a.mistake == EARLY)
        wgmma_commit();
    wgmma(a.n, acc, x[1], matrix + (uint32_t)(2 * a.k_bytes / 16));
    if (a.mistake != NO_COMMIT)
        wgmma_commit();
    if (a.mistake == A_WRITTEN)
        x[1][2] ^= 1;
    if (a.mistake == ACC_WRITTEN)
        acc[1] = 0;
    if (a.mistake == B_WRITTEN && thread_id() == 127)
        b[a.k_bytes] ^= 1;
    if (a.mistake != NO_WAIT)
        wgmma_wait(a.mistake == EARLY ? 1 : 0);
    if (a.mistake != NO_WAIT && a.mistake != NO_COMMIT)
        wgmma_keep(acc, a.n / 2);
    for (int i = 0; i < a.n / 2; i++) {
        int row = thread_id() / 32 * 16 + thread_id() % 32 / 4 + i / 2 % 2 * 8;
        a.y[row * a.n + i / 4 * 8 + thread_id() % 4 * 2 + i % 2] = acc[i];
    }
}

/* Small numbers, whose sums are exact in any order. */
static float number(int i, int k)
{
    return (float)((i * 7 + k * 5) % 13 - 6);
}

/* A block of the kernel: whether its numbers are right. k_bytes: the ISA's leading dimension byte offset, where 128 is the stride
 * dimension byte offset; its canonical layout of K-major without swizzling is ((8, m), (8, 2k)) : ((8, stride), (1, leading)), in
 * elements. */
static bool run(int n, int k_bytes, enum mistake mistake)
{
    static uint16_t a[64 * N_K];
    static _Alignas(16) uint8_t b[B_BYTES];
    static float y[64 * MAX_N];
    memset(y, 0xff, sizeof y);
    memset(b, 0x7f, sizeof b); /* NaNs */
    for (int r = 0; r < 64; r++)
        for (int k = 0; k < N_K; k++)
            a[r * N_K + k] = float_to_half(number(r, k));
    for (int c = 0; c < n; c++) {
        for (int k = 0; k < N_K; k++) {
            uint16_t half = float_to_half(number(c + 3, k * 3));
            int element = c % 8 * 8 + c / 8 * (128 / 2) + k % 8 + k / 8 * (k_bytes / 2);
            memcpy(b + element * 2, &half, sizeof half);
        }
    }
    struct product_args args = { a, b, y, n, k_bytes, (int32_t)mistake };
    emulate(&multiply_kernel, &(struct emulated_grid){ 1, 1, 1, WARPGROUP, SHARED_BYTES }, &args);
    for (int r = 0; r < 64; r++) {
        for (int c = 0; c < n; c++) {
            float sum = 0;
            for (int k = 0; k < N_K; k++)
                sum += number(r, k) * number(c + 3, k * 3);
            if (y[r * n + c] != sum)
                return false;
        }
    }
    return true;
}

static void products_are_those_of_the_matrices(void **state)
{
    (void)state;
    for (int n = 8; n <= MAX_N; n = n == 64 ? 128 : n * 2) {
        assert_true(run(n, n * 16, NONE));
        assert_true(run(n, (n == 8 ? 3 : 1) * n * 16 + (n < MAX_N ? 16 : 0), NONE)); /* with gaps */
    }
}

/* 3 columns: what follows them in memory is taken for the other 5, and their sums are not looked at. */
static void columns_that_are_not_there_change_nothing(void **state)
{
    enum { N = 3 };
    static uint16_t a[64 * N_K];
    static _Alignas(16) uint8_t b[B_BYTES];
    static float y[64 * 8];
    (void)state;
    memset(b, 0x7f, sizeof b);
    for (int i = 0; i < 64 * N_K; i++)
        a[i] = float_to_half(number(i / N_K, i % N_K));
    for (int c = 0; c < N; c++) {
        for (int k = 0; k < N_K; k++) {
            uint16_t half = float_to_half(number(c, k));
            memcpy(b + (k / 8 * N + c) * 16 + k % 8 * 2, &half, sizeof half);
        }
    }
    struct product_args args = { a, b, y, 8, N * 16, NONE };
    emulate(&multiply_kernel, &(struct emulated_grid){ 1, 1, 1, WARPGROUP, SHARED_BYTES }, &args);
    for (int r = 0; r < 64; r++) {
        for (int c = 0; c < N; c++) {
            float sum = 0;
            for (int k = 0; k < N_K; k++)
                sum += number(r, k) * number(c, k);
            assert_true(y[r * 8 + c] == sum);
        }
    }
}

/* Runs the kernel in a process of its own. Returns what that said before it ended; "wrong numbers" or "". */
static const char *said(enum mistake mistake, unsigned seed)
{
    static char text[1024];
    int pipes[2], status;
    size_t n = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        emulated_seed(seed);
        if (!run(32, 32 * 16, mistake))
            fprintf(stderr, "wrong numbers");
        _exit(0);
    }
    close(pipes[1]);
    for (ssize_t more; n < sizeof text - 1 && (more = read(pipes[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)more;
    text[n] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WIFSIGNALED(status), n > 0 && strcmp(text, "wrong numbers") != 0);
    return text;
}

static void mistakes_are_found(void **state)
{
    static const struct {
        enum mistake mistake;
        const char *text;
    } CASES[] = {
        { NO_WAIT, "products are on their way at the end of the thread" },
        { EARLY, "accumulators of a product that is not complete" },
        { NO_COMMIT, "products are on their way at the end of the thread" },
        { NO_FENCE, "registers of a were written after the fence" },
        { NO_KEEP, "accumulators without wgmma_keep()" },
        { A_WRITTEN, "registers of a were written before the product was complete" },
        { ACC_WRITTEN, "accumulators were written before the product was complete" },
        { B_WRITTEN, "shared memory was written before the product was complete" },
        { STORED, "wrong numbers" },
        { WRONG_DISTANCE, "wrong numbers" },
        { UNEQUAL, "the warps of the warpgroup have different products" },
        { NOT_ALIGNED, "no multiples of 16" },
        { TOO_FEW_BYTES, "a phase that never ends" },
        { NO_INIT, "a barrier before barrier_init()" },
    };
    (void)state;
    assert_string_equal(said(NONE, 1), "");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        if (!strstr(said(CASES[i].mistake, 1), CASES[i].text))
            fail_msg("mistake %d: \"%s\", expected \"%s\"", (int)CASES[i].mistake, said(CASES[i].mistake, 1),
                     CASES[i].text);
}

/* A copy may be complete when nobody waited for it, but not always. */
static void copies_that_nobody_waits_for_are_found(void **state)
{
    (void)state;
    int n_found[2] = { 0 };
    for (unsigned seed = 1; seed <= 12; seed++) {
        n_found[0] += said(NO_PHASE, seed)[0] != '\0';
        n_found[1] += said(OLD_PHASE, seed)[0] != '\0';
    }
    assert_true(n_found[0] >= 4 && n_found[1] >= 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_the_matrices),
        cmocka_unit_test(columns_that_are_not_there_change_nothing),
        cmocka_unit_test(mistakes_are_found),
        cmocka_unit_test(copies_that_nobody_waits_for_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
