/* A backend for a test, and copies of the test's host arrays, of random numbers too, in its memory. */
#ifndef TEST_DEVICE_H
#define TEST_DEVICE_H

#include "backend/backend.h"

#include <stdio.h>
#include <stdlib.h>

/* xorshift64: every run of a test program has the same numbers. */
static uint64_t random_state = 88172645463325252u;

/* Uniform in [-1, 1]. */
static inline float random_float(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

/* n numbers in [-scale, scale], for free(). */
static inline float *random_floats(size_t n, float scale)
{
    float *x = malloc(n * sizeof *x);
    if (!x) {
        fprintf(stderr, "%zu floats: out of memory\n", n);
        abort();
    }
    for (size_t i = 0; i < n; i++)
        x[i] = random_float() * scale;
    return x;
}

/* Opens the default device. */
static inline struct backend *device_open(const struct backend_options *options)
{
    struct backend *be = NULL;
    struct tutti_error err;
    if (backend_open(&be, NULL, options, &err) != TUTTI_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return be;
}

/* A backend of one layer with one head of 8, for tests that need no attention. */
static inline struct backend *device_open_small(int n_threads, const char *cpu)
{
    static const struct attention_shape SHAPE = { .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .scale = 1 };
    const struct backend_options options = {
        .n_threads = n_threads, .cpu = cpu, .n_layers = 1, .n_kinds = 1, .attention = &SHAPE
    };
    return device_open(&options);
}

/* host NULL: zeros. */
static inline struct floats device_new(struct backend *be, const float *host, size_t n)
{
    struct floats floats = be->ops->alloc(be, n);
    if (!floats.buffer) {
        fprintf(stderr, "%zu floats: out of memory\n", n);
        abort();
    }
    if (host)
        be->ops->upload(be, floats, host, n);
    return floats;
}

/* Between steps. */
static inline void device_get(struct backend *be, float *host, struct floats floats, size_t n)
{
    be->ops->download(be, host, floats, n);
}

/* Submits the step and waits for it. */
static inline void device_finish(struct backend *be)
{
    be->ops->step_submit(be);
    be->ops->step_wait(be);
}

static inline void device_end(struct backend *be, struct floats floats, float *host, size_t n)
{
    device_finish(be);
    be->ops->download(be, host, floats, n);
}

#endif
