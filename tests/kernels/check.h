/* checkkernels: every kernel variant against its twin in plain C, in the manner of dav1d's checkasm.
 *
 * Each check runs once for each processor level there is; a variant that ran at a lower level already is not run
 * again. Buffers end where a page begins that may not be touched. */
#ifndef TUTTI_TESTS_KERNELS_CHECK_H
#define TUTTI_TESTS_KERNELS_CHECK_H

#include "base/system/team.h"
#include "kernels/kernels.h"

#include <stdio.h>

typedef void any_fn(void);

enum fill {
    FILL_RANDOM,   /* uniform in [-1, 1) */
    FILL_WIDE,     /* random exponents from 2^-40 to 2^40 */
    FILL_HUGE,     /* around the largest float: products and sums overflow */
    FILL_DENORMAL, /* and zeros of both signs */
    FILL_EQUAL,
    FILL_EXTREME, /* of both signs, with magnitudes that become the largest input numbers of quantized types */
    FILL_HOSTILE, /* random with some NaN and infinities */
    FILL_COUNT
};

struct check {
    const struct kernels *k; /* the table of the level that runs */
    unsigned level;
    bool is_bench;
    bool is_brief;    /* fewer shapes, where an emulator makes plain C slow */
    const char *only; /* bench: names that contain it; NULL: all */
    struct team *team;
    struct measure *limits; /* of bench_all() */

    uint64_t random;
    enum fill fill;
    any_fn *seen[32768];
    char seen_name[32768][48];
    int n_seen;
    char name[48];
    bool has_failed; /* the check that runs */
    int n_passed, n_failed;

    struct check_memory {
        void *base;
        size_t n_bytes;
    } memory[64];
    int n_memory;
};

/* n_bytes that end at a guard page, filled with 0xA5. Where they are a multiple of 64 they are aligned to 64.
 * They live until check_done(). */
void *check_bytes(struct check *c, size_t n_bytes);
float *check_floats(struct check *c, size_t n);

uint32_t check_random(struct check *c);
void check_fill(struct check *c, float *x, size_t n); /* as c->fill says */

/* Opens a check: false where this variant ran at a lower level. The plain C variant is not checked against itself. */
bool check_next(struct check *c, any_fn *variant, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Equal bits, or both NaN. */
void check_bits(struct check *c, const float *want, const float *got, size_t n);
void check_same(struct check *c, const void *want, const void *got, size_t n_bytes);
void check_true(struct check *c, bool is_true, const char *what);
/* Ends a check, or one that was not opened: frees its memory. */
void check_done(struct check *c);

void check_linear(struct check *c);
void check_rows(struct check *c);
void check_attention(struct check *c);
void check_lora(struct check *c);
void check_sampling(struct check *c);

/* Packed weights of random numbers of the order of one. */
uint8_t *check_tame_panel(struct check *c, enum dtype dtype, int n_in);
void check_forget(struct check *c); /* frees the memory, outside a check */

void bench_all(struct check *c);
void report_errors(struct check *c);

#endif
