/* The list of a step's launches, and the graphs that carry out lists which came before.
 *
 * A list that is met for the second time is recorded while it is launched on a stream that captures, and carried out as one
 * graph from then on: the card then starts a launch after another without the host. Lists are compared byte by byte, with
 * all arguments, so a graph never does anything but what the operations of this step requested. */
#include "backend/cuda/cuda_state.h"
#include "backend/cuda/ranks/cuda_cluster.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

static size_t args_room(uint32_t n_bytes)
{
    return (n_bytes + 7) / 8 * 8;
}

static const char *const DOING[] = {
    [ITEM_LAUNCH] = "launching a kernel",        [ITEM_COPY] = "copying within the card",
    [ITEM_ZERO] = "clearing memory of the card", [ITEM_UPLOAD] = "copying to the card",
    [ITEM_DOWNLOAD] = "copying from the card",   [ITEM_CALL] = "exchanging data with other cards",
};

static cuda_result launch(struct cuda_backend *cuda, const struct item *item, const void *args)
{
    const struct cuda_state *s = cuda->state;
    void *params[1] = { (void *)(uintptr_t)args };
    if (item->launch.x == 0 || item->launch.y == 0 || item->launch.z == 0)
        return CUDA_OK;
    if (!s->functions[item->launch.kernel])
        return CUDA_ERROR_NOT_FOUND; /* cuda_need() was not called */
    if (!cuda->overlaps)
        return cuda->driver->launch(s->functions[item->launch.kernel], item->launch.x, item->launch.y,
                                    item->launch.z, item->launch.n_threads, 1, 1, item->launch.shared_bytes,
                                    s->stream, params, NULL);
    struct cuda_launch_attribute overlap = { .id = CUDA_MAY_OVERLAP, .value.is_allowed = 1 };
    const struct cuda_launch_config config = { item->launch.x,
                                               item->launch.y,
                                               item->launch.z,
                                               item->launch.n_threads,
                                               1,
                                               1,
                                               item->launch.shared_bytes,
                                               s->stream,
                                               &overlap,
                                               1 };
    return cuda->driver->launch_with(&config, s->functions[item->launch.kernel], params, NULL);
}

static cuda_result run_item(struct cuda_backend *cuda, const struct item *item, const void *args)
{
    const struct cuda_driver *d = cuda->driver;
    cuda_stream stream = cuda->state->stream;
    switch ((enum item_kind)item->kind) {
    case ITEM_LAUNCH:
        return launch(cuda, item, args);
    case ITEM_COPY:
        return d->copy_within(item->copy.to, (void *)(uintptr_t)item->copy.from, item->copy.n_bytes, stream);
    case ITEM_ZERO:
        return d->fill(item->copy.to, 0, item->copy.n_bytes, stream);
    case ITEM_UPLOAD:
        return d->copy_in(item->copy.to, item->copy.from, item->copy.n_bytes, stream);
    case ITEM_DOWNLOAD:
        return d->copy_out(item->copy.to, (void *)(uintptr_t)item->copy.from, item->copy.n_bytes, stream);
    case ITEM_CALL:
        return item->call(cuda, args) ? CUDA_OK : CUDA_ERROR_UNKNOWN;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static const char *doing_of(const struct item *item)
{
    static const char *const NAMES[] = {
#define CUDA_FILE(file)
#define CUDA_KERNEL(name) "launching kernel " #name,
#include "kernels/cuda/list.h"
#undef CUDA_FILE
#undef CUDA_KERNEL
        ""
    };
    return item->kind == ITEM_LAUNCH ? NAMES[item->launch.kernel] : DOING[item->kind];
}

void cuda_item_run(struct cuda_backend *cuda, const struct item *item, const void *args)
{
    if (cuda->state->failure == TUTTI_OK)
        (void)cuda_is_ok(cuda, run_item(cuda, item, args), doing_of(item));
}

void cuda_list_add(struct cuda_backend *cuda, const struct item *item, const void *args)
{
    struct cuda_state *s = cuda->state;
    size_t n = sizeof *item + args_room(item->n_bytes);
    assert(n <= LIST_BYTES);
    if (s->failure != TUTTI_OK)
        return;
    if (n > LIST_BYTES - s->list.n_bytes)
        cuda_list_run(cuda, false);
    uint8_t *at = s->list.bytes + s->list.n_bytes;
    s->list.last = s->list.n_bytes;
    memcpy(at, item, sizeof *item);
    memset(at + sizeof *item, 0, args_room(item->n_bytes));
    if (item->n_bytes > 0)
        memcpy(at + sizeof *item, args, item->n_bytes);
    s->list.n_bytes += n;
}

void *cuda_last_launch(struct cuda_backend *cuda, enum cuda_kernel *kernel, struct cuda_grid *grid)
{
    const struct list *list = &cuda->state->list;
    struct item *item = (void *)(list->bytes + list->last);
    if (!cuda->state->in_step || list->n_bytes == 0 || item->kind != ITEM_LAUNCH)
        return NULL;
    *kernel = (enum cuda_kernel)item->launch.kernel;
    *grid = (struct cuda_grid){ (int)item->launch.x, (int)item->launch.y, (int)item->launch.z,
                                (int)item->launch.n_threads, item->launch.shared_bytes };
    return item + 1;
}

void cuda_list_call(struct cuda_backend *cuda, cuda_call_fn *call, const void *args, size_t n_bytes)
{
    struct item item = { .kind = ITEM_CALL, .n_bytes = (uint32_t)n_bytes };
    item.call = call;
    if (cuda->state->in_step) {
        cuda_list_add(cuda, &item, args);
        return;
    }
    cuda_enter(cuda);
    cuda_item_run(cuda, &item, args);
}

/* Each item by itself. Returns the first failure, and the item that failed. */
static cuda_result run_items(struct cuda_backend *cuda, const struct item **failed)
{
    const struct list *list = &cuda->state->list;
    cuda_result result = CUDA_OK;
    for (size_t at = 0; at < list->n_bytes && result == CUDA_OK;) {
        const struct item *item = (const void *)(list->bytes + at);
        result = run_item(cuda, item, list->bytes + at + sizeof *item);
        at += sizeof *item + args_room(item->n_bytes);
        *failed = item;
    }
    return result;
}

static void free_exec(struct cuda_backend *cuda, struct graph *g)
{
    if (g->exec) {
        (void)cuda_wait_stream(cuda, cuda->state->stream); /* it may be running */
        (void)cuda->driver->graph_exec_free(g->exec);
    }
    g->exec = NULL;
}

void cuda_graphs_clear(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    for (int i = 0; i < N_GRAPHS; i++) {
        free_exec(cuda, &s->graphs[i]);
        s->graphs[i].n_bytes = 0;
        s->graphs[i].is_hopeless = false;
    }
}

/* The entry of the list, or the one to be used for it: *is_known says which. */
static struct graph *find_graph(struct cuda_state *s, uint64_t hash, bool *is_known)
{
    struct graph *oldest = &s->graphs[0];
    *is_known = true;
    for (int i = 0; i < N_GRAPHS; i++) {
        struct graph *g = &s->graphs[i];
        if (g->n_bytes == s->list.n_bytes && g->hash == hash &&
            memcmp(g->bytes, s->list.bytes, s->list.n_bytes) == 0)
            return g;
        oldest = g->last_use < oldest->last_use ? g : oldest;
    }
    *is_known = false;
    return oldest;
}

/* Records the list as a graph. A driver that cannot is no failure: the list is launched item by item. */
static void capture(struct cuda_backend *cuda, struct graph *g)
{
    const struct cuda_driver *d = cuda->driver;
    struct cuda_state *s = cuda->state;
    const struct item *failed = NULL;
    cuda_graph graph = NULL;
    g->is_hopeless = true;
    if (d->capture_begin(s->stream, CUDA_CAPTURE_THREAD_LOCAL) != CUDA_OK)
        return;
    cuda_result result = run_items(cuda, &failed), end = d->capture_end(s->stream, &graph);
    if (result == CUDA_OK && end == CUDA_OK && graph && d->graph_instantiate(&g->exec, graph, 0) == CUDA_OK)
        g->is_hopeless = false;
    else
        g->exec = NULL;
    if (graph)
        (void)d->graph_free(graph);
}

/* Carries out the list by its graph. False: there is none, and nothing was done. */
static bool run_graph(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    bool is_known;
    uint64_t hash = hash64(0, s->list.bytes, s->list.n_bytes);
    struct graph *g = find_graph(s, hash, &is_known);
    g->last_use = ++s->n_uses;
    if (!is_known) {
        free_exec(cuda, g);
        memcpy(g->bytes, s->list.bytes, s->list.n_bytes);
        g->n_bytes = s->list.n_bytes;
        g->hash = hash;
        g->is_hopeless = false;
        return false;
    }
    if (!g->exec && !g->is_hopeless)
        capture(cuda, g);
    if (!g->exec)
        return false;
    s->n_replays++;
    (void)cuda_is_ok(cuda, cuda->driver->graph_launch(g->exec, s->stream), "launching the graph of a step");
    return true;
}

void cuda_list_run(struct cuda_backend *cuda, bool is_whole)
{
    struct cuda_state *s = cuda->state;
    bool is_step = is_whole && !s->is_cut;
    s->is_cut = !is_whole;
    cuda_busy_begin(cuda);
    if (s->failure == TUTTI_OK)
        cuda_step_send(cuda);
    if (s->failure == TUTTI_OK && s->list.n_bytes > 0 && !(is_step && run_graph(cuda))) {
        const struct item *failed = NULL;
        cuda_result result = run_items(cuda, &failed);
        if (result != CUDA_OK)
            (void)cuda_is_ok(cuda, result, doing_of(failed));
    }
    s->list.n_bytes = 0;
}
