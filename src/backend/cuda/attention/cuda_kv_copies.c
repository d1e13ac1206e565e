/* Copies of pages between the card and pinned memory of the host, on a stream of their own, so that steps go on.
 *
 * A page is not copied itself but an image of it, which holds all layers in order. The launches that make an image of a page,
 * or a page of an image, are on the stream of the steps, where they take as long as a small kernel. So a page needs no
 * protection: it is read after the launches before, and may be written by the launches after. Only the images go back and
 * forth between the two streams:
 *
 *   read:  steps | page to image | made            copies: made -> | image to host | copied
 *   write: copies: made -> | host to image | copied    then, after the host has seen copied: steps | image to page | made
 *
 * The launch of a write waits for no event: otherwise steps would wait for the bus. */
#include "backend/cuda/attention/cuda_kv.h"
#include "backend/cuda/cuda_state.h"
#include "backend/cuda/ranks/cuda_cluster.h"

#include <stdlib.h>

enum { IMAGE_ALIGNMENT = 256 /* bytes */ };

struct cuda_kv_copies {
    cuda_stream stream;
    void *host;      /* pinned */
    uint8_t *images; /* on the card, [n][stride_bytes] */
    size_t stride_bytes;
    int n;
    struct cuda_kv_copy {
        cuda_event made;   /* on the stream of the steps: nothing before uses the image */
        cuda_event copied; /* on this stream */
    } copies[];
};

static const char DOING[] = "copying KV pages";

static uint8_t *image_of(const struct cuda_kv_copies *c, int copy)
{
    return c->images + (size_t)copy * c->stride_bytes;
}

static bool is_ok(struct cuda_backend *cuda, cuda_result result)
{
    return cuda_is_ok(cuda, result, DOING);
}

static bool has_failed(const struct cuda_backend *cuda)
{
    return cuda->state->failure != TUTTI_OK;
}

void cuda_kv_copies_free(struct cuda_backend *cuda, struct cuda_kv_copies *c)
{
    const struct cuda_driver *d = cuda->driver;
    if (!c)
        return;
    cuda_enter(cuda);
    if (c->stream)
        (void)cuda_wait_stream(cuda, c->stream);
    cuda_memory_free(cuda, c->images); /* waits for the stream of the steps */
    cuda_pinned_free(cuda, c->host);
    for (int i = 0; i < c->n; i++) {
        if (c->copies[i].made)
            (void)d->event_free(c->copies[i].made);
        if (c->copies[i].copied)
            (void)d->event_free(c->copies[i].copied);
    }
    if (c->stream)
        (void)d->stream_free(c->stream);
    free(c);
}

static bool make_events(struct cuda_backend *cuda, struct cuda_kv_copy *copy)
{
    const struct cuda_driver *d = cuda->driver;
    if (!is_ok(cuda, d->event_new(&copy->made, CUDA_EVENT_DISABLE_TIMING))) {
        copy->made = NULL;
        return false;
    }
    if (is_ok(cuda, d->event_new(&copy->copied, CUDA_EVENT_DISABLE_TIMING)))
        return true;
    copy->copied = NULL;
    return false;
}

enum tutti_status cuda_kv_reserve_host(struct backend *be, struct kv_memory *kv, size_t n_bytes, int n_copies,
                                       void **out, struct tutti_error *err)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_kv_copies *c = calloc(1, sizeof *c + (size_t)n_copies * sizeof *c->copies);
    if (!c)
        return error_set(err, TUTTI_E_MEMORY, "spilled KV pages: out of memory");
    c->n = n_copies;
    c->stride_bytes = (kv->image_bytes + IMAGE_ALIGNMENT - 1) / IMAGE_ALIGNMENT * IMAGE_ALIGNMENT;
    cuda_enter(cuda);
    bool ok = is_ok(cuda, cuda->driver->stream_new(&c->stream, CUDA_STREAM_NON_BLOCKING));
    if (!ok)
        c->stream = NULL;
    for (int i = 0; i < n_copies && ok; i++)
        ok = make_events(cuda, &c->copies[i]);
    enum tutti_status st = cuda_check(cuda, err);
    if (st == TUTTI_OK && !(c->host = cuda_pinned_new(cuda, n_bytes)))
        st = error_set(err, TUTTI_E_MEMORY,
                       "spilled KV pages: the system gives no %zu bytes of pinned memory", n_bytes);
    if (st == TUTTI_OK && !(c->images = cuda_memory_new(cuda, (size_t)n_copies * c->stride_bytes)))
        st = error_set(
            err, TUTTI_E_MEMORY,
            "spilled KV pages: the card is out of memory for %d pages on their way; lower --kv-memory",
            n_copies);
    /* The images are cleared on the other stream. */
    if (st == TUTTI_OK && !is_ok(cuda, cuda_wait_stream(cuda, cuda->state->stream)))
        st = cuda_check(cuda, err);
    if (st != TUTTI_OK) {
        cuda_kv_copies_free(cuda, c);
        return st;
    }
    kv->copies = c;
    *out = c->host;
    return TUTTI_OK;
}

void cuda_kv_read_begin(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, void *host)
{
    struct cuda_backend *cuda = cuda_of(be);
    const struct cuda_driver *d = cuda->driver;
    struct cuda_kv_copies *c = kv->copies;
    const struct cuda_kv_copy *events = &c->copies[copy];
    cuda_enter(cuda);
    cuda_kv_to_image(cuda, kv, page_id, image_of(c, copy));
    if (!has_failed(cuda) && is_ok(cuda, d->event_record(events->made, cuda->state->stream)) &&
        is_ok(cuda, d->stream_follow(c->stream, events->made, 0)) &&
        is_ok(cuda, d->copy_out(host, image_of(c, copy), kv->image_bytes, c->stream)))
        (void)is_ok(cuda, d->event_record(events->copied, c->stream));
}

void cuda_kv_write_begin(struct backend *be, struct kv_memory *kv, int copy, const void *host)
{
    struct cuda_backend *cuda = cuda_of(be);
    const struct cuda_driver *d = cuda->driver;
    struct cuda_kv_copies *c = kv->copies;
    const struct cuda_kv_copy *events = &c->copies[copy];
    cuda_enter(cuda);
    /* The page of an earlier write may still have to be made of this image. */
    if (!has_failed(cuda) && is_ok(cuda, d->stream_follow(c->stream, events->made, 0)) &&
        is_ok(cuda, d->copy_in(image_of(c, copy), host, kv->image_bytes, c->stream)))
        (void)is_ok(cuda, d->event_record(events->copied, c->stream));
}

bool cuda_kv_is_copied(struct backend *be, struct kv_memory *kv, int copy, bool waits)
{
    struct cuda_backend *cuda = cuda_of(be);
    cuda_event copied = kv->copies->copies[copy].copied;
    cuda_enter(cuda);
    if (has_failed(cuda))
        return true;
    cuda_result result = waits ? cuda_wait_event(cuda, copied) : cuda->driver->event_query(copied);
    if (result == CUDA_ERROR_NOT_READY)
        return false;
    (void)is_ok(cuda, result);
    return true;
}

void cuda_kv_write_end(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, const void *host)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_kv_copies *c = kv->copies;
    (void)host;
    if (page_id < 0)
        return;
    cuda_enter(cuda);
    cuda_kv_from_image(cuda, kv, page_id, image_of(c, copy));
    if (!has_failed(cuda))
        (void)is_ok(cuda, cuda->driver->event_record(c->copies[copy].made, cuda->state->stream));
}
