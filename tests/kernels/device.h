/* Copies of a test's host arrays in a backend's memory. */
#ifndef TEST_DEVICE_H
#define TEST_DEVICE_H

#include "backend/backend.h"

#include <stdio.h>
#include <stdlib.h>

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
