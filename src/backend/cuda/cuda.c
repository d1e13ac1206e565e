/* The CUDA backend: a card of NVIDIA's. Opening and closing, and its failures. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_state.h"
#include "backend/cuda/ranks/cuda_cluster.h"
#include "kernels/cuda/texts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Graphs keep the overlap of their launches from CUDA 12.3 on. */
enum { LEAST_OVERLAP_VERSION = 12030 };

#define LISTS_BYTES ((size_t)(1 + N_GRAPHS) * LIST_BYTES) /* the step's list, and those of the graphs */

bool cuda_is_ok(struct cuda_backend *cuda, cuda_result result, const char *doing)
{
    struct cuda_state *s = cuda->state;
    if (result == CUDA_OK)
        return true;
    if (s->failure == TUTTI_OK) {
        enum tutti_status st = cuda_driver_error(cuda->driver, result, doing, &s->error);
        s->failure = st; /* other threads read the error after it */
    }
    return false;
}

void cuda_keep_error(struct cuda_backend *cuda, const struct tutti_error *err)
{
    struct cuda_state *s = cuda->state;
    if (s->failure == TUTTI_OK) {
        s->error = *err;
        s->failure = err->status;
    }
}

void cuda_fail(struct cuda_backend *cuda, enum tutti_status status, const char *text)
{
    struct tutti_error err;
    (void)error_set(&err, status, "%s", text);
    cuda_keep_error(cuda, &err);
}

enum tutti_status cuda_check(const struct cuda_backend *cuda, struct tutti_error *err)
{
    const struct cuda_state *s = cuda->state;
    enum tutti_status st = s->failure;
    if (st != TUTTI_OK && err)
        *err = s->error;
    return st;
}

enum tutti_status cuda_check_operation(const struct backend *be, struct tutti_error *err)
{
    return cuda_check((const struct cuda_backend *)be, err);
}

void cuda_enter(struct cuda_backend *cuda)
{
    (void)cuda_is_ok(cuda, cuda->driver->context_set(cuda->state->context), "selecting the card");
}

static void free_kinds(struct cuda_backend *cuda)
{
    for (int i = 0; cuda->kinds && i < cuda->n_kinds; i++) {
        struct cuda_kind *kind = &cuda->kinds[i];
        cuda_memory_free(cuda, (void *)(uintptr_t)kind->shape.rope_freqs);
        cuda_memory_free(cuda, (void *)(uintptr_t)kind->shape.alibi_slopes);
        cuda_memory_free(cuda, kind->cos_sin);
    }
    free(cuda->kinds);
    free(cuda->layer_kinds);
}

void cuda_free(struct backend *be)
{
    struct cuda_backend *cuda = cuda_of(be);
    const struct cuda_driver *d = cuda->driver;
    struct cuda_state *s = cuda->state;
    if (s->has_context) {
        cuda_enter(cuda);
        if (s->stream)
            (void)cuda_wait_stream(cuda, s->stream);
        cuda_graphs_clear(cuda);
        cuda_parts_release(cuda);
        cuda_step_close(cuda);
        cuda_cluster_close(cuda);
        free_kinds(cuda);
        cuda_modules_unload(cuda);
        cuda_busy_close(cuda);
        for (int i = 0; i < N_MARKS; i++)
            if (s->marks[i])
                (void)d->event_free(s->marks[i]);
        if (s->stream)
            (void)d->stream_free(s->stream);
        (void)d->context_set(NULL);
        (void)d->context_release(s->card.device);
    }
    munmap(s->list.bytes, LISTS_BYTES);
    team_free(cuda->team);
    free(s);
    free(cuda);
}

enum tutti_status cuda_reserve(struct backend *be, int max_rows, struct tutti_error *err)
{
    struct cuda_backend *cuda = cuda_of(be);
    bool ok = true;
    cuda_graphs_clear(cuda);
    cuda->max_rows = 0;
    for (int i = 0; i < cuda->n_kinds && ok; i++) {
        struct cuda_kind *kind = &cuda->kinds[i];
        cuda_memory_free(cuda, kind->cos_sin);
        kind->cos_sin = cuda_memory_new(cuda,
                                        (size_t)max_rows * (size_t)kind->shape.rotary_dim * sizeof(float));
        ok = kind->cos_sin != NULL;
    }
    enum tutti_status st = ok ? cuda_step_reserve(cuda, max_rows, err) : TUTTI_OK;
    if (st == TUTTI_OK && !(ok && cuda_parts_reserve(cuda, max_rows)))
        st = error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory for steps of %d rows", max_rows);
    if (st == TUTTI_OK)
        cuda->max_rows = max_rows;
    return st == TUTTI_OK ? cuda_check(cuda, err) : st;
}

void cuda_bind_caller(struct backend *be)
{
    team_bind_caller(cuda_of(be)->team);
}

void cuda_run(struct backend *be, team_fn *fn, void *arg)
{
    team_run(cuda_of(be)->team, fn, arg);
}

/* The host's threads only pack weights; the card's steps wait for one another by themselves. */
bool cuda_share_threads(struct backend *be, struct backend *other)
{
    (void)be;
    (void)other;
    return true;
}

/* ---- opening ---- */

static void *copy_floats(struct cuda_backend *cuda, const float *host, size_t n)
{
    void *memory = cuda_memory_new(cuda, n * sizeof *host);
    if (memory)
        cuda_copy_in(cuda, memory, host, n * sizeof *host);
    return memory;
}

/* False: out of memory. */
static bool copy_shape(struct cuda_backend *cuda, struct cuda_kind *kind, const struct attention_shape *a)
{
    size_t n_freqs = a->rope == ROPE_NONE ? 0 : (size_t)a->rotary_dim / (a->rope == ROPE_2D ? 4 : 2);
    kind->shape = *a;
    kind->shape.rope_freqs = NULL;
    kind->shape.alibi_slopes = NULL;
    if (n_freqs > 0 && !(kind->shape.rope_freqs = copy_floats(cuda, a->rope_freqs, n_freqs)))
        return false;
    if (a->alibi_slopes)
        kind->shape.alibi_slopes = copy_floats(cuda, a->alibi_slopes, (size_t)a->n_heads);
    return !a->alibi_slopes || kind->shape.alibi_slopes;
}

static enum tutti_status copy_kinds(struct cuda_backend *cuda, const struct backend_options *options,
                                    struct tutti_error *err)
{
    bool ok = true;
    cuda->n_layers = options->n_layers;
    cuda->page_floats = options->page_floats;
    cuda->kinds = calloc((size_t)options->n_kinds, sizeof *cuda->kinds);
    cuda->layer_kinds = calloc((size_t)options->n_layers, sizeof *cuda->layer_kinds);
    if (!cuda->kinds || !cuda->layer_kinds)
        return error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory");
    cuda->n_kinds = options->n_kinds;
    if (options->kinds)
        memcpy(cuda->layer_kinds, options->kinds, (size_t)options->n_layers * sizeof *cuda->layer_kinds);
    for (int i = 0; i < options->n_kinds && ok; i++)
        ok = copy_shape(cuda, &cuda->kinds[i], &options->attention[i]);
    return ok ? cuda_check(cuda, err) : error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory");
}

static enum tutti_status open_context(struct cuda_backend *cuda, const struct cuda_card *card,
                                      struct tutti_error *err)
{
    const struct cuda_driver *d = cuda->driver;
    struct cuda_state *s = cuda->state;
    s->card = *card;
    cuda->level = card->facts.kernel_level;
    cuda->overlaps = cuda->level >= 90 && d->launch_with && d->version >= LEAST_OVERLAP_VERSION;
    cuda->capability = card->facts.capability;
    cuda->n_sms = card->facts.n_multiprocessors;
    cuda->n_bytes = card->facts.memory_bytes;
    cuda->shared_bytes = (size_t)card->shared_bytes;
    cuda_result result = d->context_retain(&s->context, card->device);
    if (result != CUDA_OK)
        return cuda_driver_error(d, result, "opening the card", err);
    s->has_context = true;
    cuda_enter(cuda);
    result = d->stream_new(&s->stream, CUDA_STREAM_NON_BLOCKING);
    if (result != CUDA_OK) {
        s->stream = NULL;
        return cuda_driver_error(d, result, "creating a stream", err);
    }
    for (int i = 0; i < N_MARKS; i++) {
        result = d->event_new(&s->marks[i], CUDA_EVENT_DISABLE_TIMING);
        if (result != CUDA_OK) {
            s->marks[i] = NULL;
            return cuda_driver_error(d, result, "creating an event", err);
        }
    }
    return cuda_check(cuda, err);
}

static struct cuda_backend *alloc_backend(const struct cuda_driver *driver)
{
    struct cuda_backend *cuda = calloc(1, sizeof *cuda);
    struct cuda_state *s = calloc(1, sizeof *s);
    /* Pages that are never written take no memory. */
    uint8_t *lists = mmap(NULL, LISTS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (cuda && s && lists != MAP_FAILED) {
        cuda->backend = (struct backend){ .ops = &CUDA_OPS, .caps = &CUDA_CAPS };
        cuda->driver = driver;
        cuda->state = s;
        s->list.bytes = lists;
        for (int i = 0; i < N_GRAPHS; i++)
            s->graphs[i].bytes = lists + (size_t)(i + 1) * LIST_BYTES;
        return cuda;
    }
    if (lists != MAP_FAILED)
        munmap(lists, LISTS_BYTES);
    free(s);
    free(cuda);
    return NULL;
}

static enum tutti_status open_backend(struct cuda_backend *cuda, const struct cuda_card *card,
                                      const struct backend_options *options, struct tutti_error *err)
{
    enum tutti_status st = team_new(
        &cuda->team, &(struct team_options){ .n_threads = options->n_threads, .pin = options->pin_threads },
        err);
    if (st == TUTTI_OK)
        st = open_context(cuda, card, err);
    if (st == TUTTI_OK)
        st = cuda_busy_open(cuda, err);
    if (st == TUTTI_OK && !(cuda_step_open(cuda) && cuda_cluster_open(cuda, options->cluster)))
        st = error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory");
    /* What every step needs. It fails here if the driver cannot read the kernels of this build. */
    if (st == TUTTI_OK && !(cuda_need(cuda, CUDA_KERNEL_set_pages, CUDA_NEED_FILE) &&
                            cuda_need(cuda, CUDA_KERNEL_gather, CUDA_NEED_FILE) &&
                            cuda_need(cuda, CUDA_KERNEL_norm_any, CUDA_NEED_FILE)))
        st = cuda_check(cuda, err);
    if (st == TUTTI_OK && options->placement && !cuda_crossing_open(cuda))
        st = error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory");
    if (st == TUTTI_OK)
        st = copy_kinds(cuda, options, err);
    return st;
}

enum tutti_status backend_cuda_new(struct backend **out, int ordinal, const struct backend_options *options,
                                   struct tutti_error *err)
{
    const struct cuda_driver *driver = NULL;
    struct cuda_card card = { 0 };
    if (!cuda_text_has_any())
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "device", "device cuda: " CUDA_NO_TEXTS);
    enum tutti_status st = backend_check_attention(options, err);
    if (st == TUTTI_OK)
        st = cuda_driver_open(&driver, err);
    int n_cards = 0;
    if (st == TUTTI_OK && options->cluster && ordinal < 0) {
        cuda_result result = driver->device_count(&n_cards);
        ordinal = cuda_cluster_card(options->cluster, n_cards);
        if (result != CUDA_OK) /* else two ranks might share a card, which NCCL does not expect */
            st = cuda_driver_error(driver, result, "counting the cards", err);
    }
    if (st == TUTTI_OK)
        st = cuda_card_choose(driver, ordinal, &card, err);
    if (st != TUTTI_OK)
        return st;
    struct cuda_backend *cuda = alloc_backend(driver);
    if (!cuda)
        return error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory");
    st = open_backend(cuda, &card, options, err);
    if (st == TUTTI_OK)
        *out = &cuda->backend;
    else
        cuda_free(&cuda->backend);
    return st;
}

uint64_t cuda_memory_left(const struct backend *be)
{
    struct cuda_backend *cuda = cuda_of((struct backend *)(uintptr_t)be);
    size_t free_bytes = 0, n_bytes = 0;
    cuda_enter(cuda);
    return cuda_is_ok(cuda, cuda->driver->memory_info(&free_bytes, &n_bytes),
                      "reading the card's free memory")
               ? free_bytes
               : 0;
}
