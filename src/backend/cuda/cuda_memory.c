/* Memory of the card, and copies between it and the host. */
#include "backend/cuda/cuda_state.h"
#include "backend/cuda/ranks/cuda_cluster.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ARGUMENTS = 4096 }; /* bytes of a kernel's parameters */

void *cuda_memory_new(struct cuda_backend *cuda, size_t n_bytes)
{
    const struct cuda_driver *d = cuda->driver;
    struct cuda_state *s = cuda->state;
    cuda_address memory = NULL;
    n_bytes = n_bytes > 0 ? n_bytes : 1;
    cuda_enter(cuda);
    if (d->memory_new(&memory, n_bytes) != CUDA_OK)
        return NULL;
    if (d->fill(memory, 0, n_bytes, s->stream) == CUDA_OK)
        return memory;
    (void)d->memory_free(memory);
    return NULL;
}

void cuda_memory_free(struct cuda_backend *cuda, void *memory)
{
    if (!memory)
        return;
    cuda_enter(cuda);
    (void)cuda_wait_stream(cuda, cuda->state->stream); /* what was launched may use it */
    (void)cuda->driver->memory_free(memory);
}

void *cuda_pinned_new(struct cuda_backend *cuda, size_t n_bytes)
{
    void *memory = NULL;
    cuda_enter(cuda);
    return cuda->driver->pinned_new(&memory, n_bytes > 0 ? n_bytes : 1, 0) == CUDA_OK ? memory : NULL;
}

void cuda_pinned_free(struct cuda_backend *cuda, void *memory)
{
    if (!memory)
        return;
    cuda_enter(cuda);
    (void)cuda->driver->pinned_free(memory);
}

void cuda_copy_in(struct cuda_backend *cuda, void *to, const void *host, size_t n_bytes)
{
    struct cuda_state *s = cuda->state;
    cuda_enter(cuda);
    if (s->failure != TUTTI_OK || n_bytes == 0)
        return;
    if (cuda_is_ok(cuda, cuda->driver->copy_in(to, host, n_bytes, s->stream), "copying to the card"))
        (void)cuda_is_ok(cuda, cuda_wait_stream(cuda, s->stream), "copying to the card");
}

void cuda_copy_out(struct cuda_backend *cuda, void *host, const void *from, size_t n_bytes)
{
    struct cuda_state *s = cuda->state;
    cuda_enter(cuda);
    if (s->in_step)
        cuda_list_run(cuda, false);
    /* The driver itself would wait in a copy to memory that is not pinned. */
    if (cuda->nccl && s->failure == TUTTI_OK)
        (void)cuda_is_ok(cuda, cuda_wait_stream(cuda, s->stream), "copying from the card");
    if (s->failure == TUTTI_OK && n_bytes > 0 &&
        cuda_is_ok(cuda, cuda->driver->copy_out(host, (void *)(uintptr_t)from, n_bytes, s->stream),
                   "copying from the card") &&
        cuda_is_ok(cuda, cuda_wait_stream(cuda, s->stream), "copying from the card"))
        return;
    memset(host, 0, n_bytes); /* not used after a failure, but defined */
}

void cuda_copy_out_later(struct cuda_backend *cuda, void *pinned, const void *from, size_t n_bytes)
{
    struct cuda_state *s = cuda->state;
    cuda_enter(cuda);
    assert(!s->in_step);
    if (s->failure == TUTTI_OK && n_bytes > 0)
        (void)cuda_is_ok(cuda, cuda->driver->copy_out(pinned, (void *)(uintptr_t)from, n_bytes, s->stream),
                         "copying from the card");
}

void cuda_mark_samples(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    s->n_marked = s->n_in_flight;
    if (s->failure == TUTTI_OK)
        (void)cuda_is_ok(cuda, cuda->driver->event_record(s->marks[MARK_SAMPLES], s->stream),
                         "marking the end of sampling");
}

void cuda_wait_samples(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    cuda_enter(cuda);
    if (s->failure == TUTTI_OK)
        (void)cuda_is_ok(cuda, cuda_wait_event(cuda, s->marks[MARK_SAMPLES]), "sampling");
    s->n_in_flight -= s->n_marked;
    s->n_marked = 0;
}

static void add_or_run(struct cuda_backend *cuda, const struct item *item, const void *args)
{
    if (cuda->state->in_step) {
        cuda_list_add(cuda, item, args);
        return;
    }
    cuda_enter(cuda);
    cuda_item_run(cuda, item, args);
}

void cuda_copy_within(struct cuda_backend *cuda, void *to, const void *from, size_t n_bytes)
{
    struct item item = { .kind = ITEM_COPY };
    item.copy.to = to;
    item.copy.from = from;
    item.copy.n_bytes = n_bytes;
    if (n_bytes > 0)
        add_or_run(cuda, &item, NULL);
}

void cuda_fill_zero(struct cuda_backend *cuda, void *to, size_t n_bytes)
{
    struct item item = { .kind = ITEM_ZERO };
    item.copy.to = to;
    item.copy.n_bytes = n_bytes;
    if (n_bytes > 0)
        add_or_run(cuda, &item, NULL);
}

void cuda_launch(struct cuda_backend *cuda, enum cuda_kernel kernel, struct cuda_grid grid, const void *args,
                 size_t n_bytes)
{
    struct item item = { .kind = ITEM_LAUNCH, .n_bytes = (uint32_t)n_bytes };
    item.launch.kernel = kernel;
    item.launch.x = (uint32_t)grid.x;
    item.launch.y = (uint32_t)grid.y;
    item.launch.z = (uint32_t)grid.z;
    item.launch.n_threads = (uint32_t)grid.n_threads;
    item.launch.shared_bytes = (uint32_t)grid.shared_bytes;
    assert(grid.shared_bytes <= cuda->shared_bytes && n_bytes <= MOST_ARGUMENTS);
    add_or_run(cuda, &item, args);
}

struct floats cuda_alloc(struct backend *be, size_t n_floats)
{
    size_t n_bytes;
    struct buffer *buffer = calloc(1, sizeof *buffer);
    if (buffer && !__builtin_mul_overflow(n_floats, sizeof(float), &n_bytes)) {
        buffer->data = cuda_memory_new(cuda_of(be), n_bytes);
        buffer->n_floats = n_floats;
        if (buffer->data)
            return (struct floats){ .buffer = buffer };
    }
    free(buffer);
    return NO_FLOATS;
}

struct floats cuda_alloc_constant(struct backend *be, const float *values, size_t n_floats)
{
    struct floats floats = cuda_alloc(be, n_floats);
    if (floats.buffer)
        cuda_upload(be, floats, values, n_floats);
    return floats;
}

void cuda_dealloc(struct backend *be, struct floats floats)
{
    if (!floats.buffer)
        return;
    assert(floats.offset == 0);
    cuda_memory_free(cuda_of(be), floats.buffer->data);
    free(floats.buffer);
}

/* ---- rows that cross between the card and the host ---- */

bool cuda_crossing_open(struct cuda_backend *cuda)
{
    cuda->state->crossing = cuda_pinned_new(cuda, 2 * (size_t)CROSSING_BYTES);
    return cuda->state->crossing;
}

/* Hands what was requested so far to the card, and waits. What crossed to the card is read then. */
static void wait_in_step(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    cuda_list_run(cuda, true);
    cuda_busy_end(cuda); /* then the host computes */
    if (s->failure == TUTTI_OK)
        (void)cuda_is_ok(cuda, cuda_wait_stream(cuda, s->stream), "computing a piece of a step");
    s->n_crossed = 0;
}

static void add_copy(struct cuda_backend *cuda, enum item_kind kind, void *to, const void *from,
                     size_t n_bytes)
{
    struct item item = { .kind = kind };
    item.copy.to = to;
    item.copy.from = from;
    item.copy.n_bytes = n_bytes;
    cuda_list_add(cuda, &item, NULL);
}

/* Adds copies to the list, from pinned memory: the caller may change src at once. */
static void upload_in_step(struct cuda_backend *cuda, uint8_t *to, const uint8_t *src, size_t n_bytes)
{
    struct cuda_state *s = cuda->state;
    for (size_t at = 0, n; at < n_bytes; at += n) {
        if (s->n_crossed == CROSSING_BYTES)
            wait_in_step(cuda);
        if (s->failure != TUTTI_OK)
            return; /* the card may still read what crossed */
        size_t room = CROSSING_BYTES - s->n_crossed;
        n = n_bytes - at < room ? n_bytes - at : room;
        memcpy(s->crossing + s->n_crossed, src + at, n);
        add_copy(cuda, ITEM_UPLOAD, to + at, s->crossing + s->n_crossed, n);
        s->n_crossed += n;
    }
}

void cuda_upload(struct backend *be, struct floats dst, const float *src, size_t n_floats)
{
    struct cuda_backend *cuda = cuda_of(be);
    float *to = cuda_floats(dst, n_floats);
    if (!cuda->state->in_step || !cuda->state->crossing) {
        cuda_copy_in(cuda, to, src, n_floats * sizeof *src);
        return;
    }
    cuda_enter(cuda);
    upload_in_step(cuda, (uint8_t *)to, (const uint8_t *)src, n_floats * sizeof *src);
}

void cuda_fetch(struct backend *be, float *host, struct floats src, size_t n_floats)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_state *s = cuda->state;
    const float *from = cuda_floats(src, n_floats);
    if (!s->in_step || !s->crossing) {
        cuda_copy_out(cuda, host, from, n_floats * sizeof *host);
        return;
    }
    cuda_enter(cuda);
    uint8_t *pinned = s->crossing + CROSSING_BYTES;
    for (size_t at = 0, n; at < n_floats; at += n) {
        size_t room = CROSSING_BYTES / sizeof *host;
        n = n_floats - at < room ? n_floats - at : room;
        add_copy(cuda, ITEM_DOWNLOAD, pinned, from + at, n * sizeof *host);
        wait_in_step(cuda);
        if (s->failure == TUTTI_OK)
            memcpy(host + at, pinned, n * sizeof *host);
        else
            memset(host + at, 0, n * sizeof *host); /* not used, but defined */
    }
}
