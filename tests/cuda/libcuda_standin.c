/* A stand-in for NVIDIA's driver, whose card is the emulator of kernels (emulator.h).
 *
 * Memory of the card may only be touched while the card works: the host faults at its pointers. It has guard pages at its
 * end, and NaNs at first. What a stream is given is carried out as late as the driver may: when somebody waits for it, or for
 * an event after it, or has queried such an event often enough. Streams wait for each other by events only. So pinned memory
 * that is changed too early, or read too early, or work of two streams without an event in between, changes results. At the
 * end of the last context nothing may be left of what was allocated; else the program ends, as at any misuse. */
#include "cuda/emulator.h"
#include "cuda/standin_failures.h"
#include "cuda/standin_memory.h"
#include "cuda/standin_objects.h"
#include "cuda/standin_order.h"

#include "backend/cuda/driver.h"
#include "base/system/clock.h"
#include "kernels/cuda/attention/kv_args.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STATIC_SHARED = 48 << 10, MOST_SHARED = 227 << 10 };
enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    IN_CAPTURE = 901,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- memory ---- */

static struct block *card_blocks, *pinned_blocks;
static size_t card_bytes;
static bool is_working; /* the card's memory may be touched */

EXPORT standin_bytes_fn standin_bytes;
EXPORT standin_called_fn standin_called;
EXPORT standin_enqueue_fn standin_enqueue;
EXPORT standin_is_in_use_fn standin_is_in_use;
EXPORT standin_move_fn standin_move;

size_t standin_bytes(void)
{
    return card_bytes;
}

static void card_work(bool begins)
{
    is_working = begins;
    for (struct block *b = card_blocks; b; b = b->next)
        block_open(b, begins);
}

/* Zeros in all of a block that was never touched: its pages are zeros as they come from the system. */
static bool is_clearing_new(const struct operation *op)
{
    struct block *b = op->kind == FILL && op->byte == 0 ? block_find(card_blocks, op->to) : NULL;
    if (!b || !b->is_new || op->to != b->data || op->n_bytes != b->n_bytes)
        return false;
    b->is_new = false;
    order_writes(op->to, op->n_bytes);
    return true;
}

/* A copy or a fill opens only what it touches, which is faster. */
static void open_ends(const struct operation *op, bool opens)
{
    struct block *to = block_find(card_blocks, op->to),
                 *from = op->kind == COPY ? block_find(card_blocks, op->from) : NULL;
    if (to)
        block_open(to, opens);
    if (from && from != to)
        block_open(from, opens);
}

void standin_move(void *to, const void *from, size_t n_bytes)
{
    const struct operation op = { .kind = COPY, .to = to, .from = from };
    if (!is_working)
        open_ends(&op, true);
    memcpy(to, from, n_bytes);
    if (!is_working)
        open_ends(&op, false);
}

/* Of kernels, only this one uses memory that another stream uses too. */
static void declare_launch(const struct operation *op)
{
    const struct copy_page_args *a = op->args;
    if (strcmp(op->kernel->name, "copy_page") != 0)
        return;
    for (int i = 0; i < op->grid.x; i++) {
        const struct kv_layer_pages *layer = &a->layers[i];
        if (a->from_image)
            order_reads(a->from_image + layer->offset, layer->page_bytes);
        if (a->to_image)
            order_writes(a->to_image + layer->offset, layer->page_bytes);
    }
}

static void carry_out(const struct operation *op)
{
    if (op->kind == LAUNCH) {
        declare_launch(op);
        emulate(op->kernel, &op->grid, op->args);
    } else if (op->kind == FILL) {
        order_writes(op->to, op->n_bytes);
        memset(op->to, op->byte, op->n_bytes);
    } else {
        if (op->from)
            order_reads(op->from, op->n_bytes);
        order_writes(op->to, op->n_bytes);
        memmove(op->to, op->from ? op->from : op->args, op->n_bytes);
    }
}

static bool work_until(struct object *stream, const struct object *event, long n_record);

/* False: it is not done yet. */
static bool work_one(const struct operation *op)
{
    order_after(op->args);
    if (op->kind == RECORD) {
        order_before(op->event);
        if (op->event->n_done < op->n_record)
            op->event->n_done = op->n_record;
        op->event->done_ns = clock_now_ns();
        return true;
    }
    if (op->kind == WAIT) {
        bool is_done = work_until(op->stream, op->event, op->n_record);
        order_after(op->event);
        return is_done;
    }
    if (op->kind == CALL)
        return op->call(op->args);
    if (op->kind == LAUNCH && !is_working)
        card_work(true);
    if (is_clearing_new(op))
        return true;
    if (!is_working)
        open_ends(op, true);
    carry_out(op);
    if (!is_working)
        open_ends(op, false);
    return true;
}

/* Carries out what the stream has, up to this record of the event; event NULL: all of it. False: it has come to work of another library that
 * is not done yet. */
static bool work_until(struct object *stream, const struct object *event, long n_record)
{
    if (!stream)
        return true;
    struct operations *queue = &stream->queue;
    bool is_done = true;
    void *before = order_enter(stream->fiber);
    while (queue->n_done < queue->n && !(event && event->n_done >= n_record) && is_done) {
        const struct operation *op = &queue->items[queue->n_done];
        order_operation_begin(op->caller);
        is_done = work_one(op);
        order_operation_end();
        queue->n_done += is_done;
    }
    order_before(stream);
    order_leave(before);
    return is_done;
}

/* The same, and forgets what was carried out. */
static bool advance(struct object *stream, const struct object *event, long n_record)
{
    bool is_done = work_until(stream, event, n_record);
    if (is_working)
        card_work(false);
    if (stream)
        operations_drop_done(&stream->queue);
    return is_done;
}

/* Other threads may call the driver meanwhile. */
static void yield(void)
{
    order_unlock(&lock);
    sched_yield();
    order_lock(&lock);
}

/* Waits for it. */
static void finish(struct object *stream, const struct object *event, long n_record)
{
    while (!advance(stream, event, n_record))
        yield();
}

/* ---- the context ---- */

enum { MAX_CARDS = 16 };
static int n_contexts;           /* how often primary contexts were retained */
static char contexts[MAX_CARDS]; /* their addresses are handles */
/* Of the model that needs no function to find its variables: the leak detector fails in that of a library opened late. */
#define THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
static THREAD_LOCAL void *current;
static const void *caller_now; /* of the driver's function that runs */

/* A call's begin. Returns nonzero, which the call returns, with the lock released. */
static int begin(const char *name, const void *caller, bool needs_context)
{
    order_lock(&lock);
    caller_now = caller;
    int error = failure_next(name, caller);
    if (error == 0 && needs_context && (n_contexts == 0 || !current))
        error = INVALID_CONTEXT;
    if (error != 0)
        order_unlock(&lock);
    return error;
}

/* Finishes the streams of the current card, which may wait for each other. */
static void work(void)
{
    for (bool is_done = false; !is_done;) {
        is_done = true;
        for (struct object *o = objects; o; o = o->next)
            if (o->kind == STREAM && o->context == current)
                is_done = advance(o, NULL, 0) && is_done;
        if (!is_done)
            yield();
    }
}

int standin_called(const char *name)
{
    order_lock(&lock);
    int error = failure_next(name, __builtin_return_address(0));
    order_unlock(&lock);
    return error;
}

static int end(int result)
{
    order_unlock(&lock);
    return result;
}

#define BEGIN(needs_context)                                                                                 \
    do {                                                                                                     \
        int begin_error = begin(__func__, __builtin_return_address(0), needs_context);                       \
        if (begin_error != 0)                                                                                \
            return begin_error;                                                                              \
    } while (0)

/* Of a call that frees: it does so whatever happens. */
#define BEGIN_FREE()                                                                                         \
    order_lock(&lock);                                                                                       \
    int free_error = failure_next(__func__, __builtin_return_address(0))

EXPORT int cuInit(unsigned flags)
{
    BEGIN(false);
    return end(flags != 0 ? INVALID_VALUE : setting("TUTTI_STANDIN_CARDS", 1) == 0 ? NO_DEVICE : 0);
}

EXPORT int cuDriverGetVersion(int *version)
{
    BEGIN(false);
    *version = (int)setting("TUTTI_STANDIN_VERSION", 12040);
    return end(0);
}

EXPORT int cuGetErrorName(int error, const char **text)
{
    static THREAD_LOCAL char name[32];
    BEGIN(false);
    snprintf(name, sizeof name, "CUDA_ERROR_%d", error);
    *text = name;
    return end(0);
}

EXPORT int cuGetErrorString(int error, const char **text)
{
    BEGIN(false);
    *text = error == OUT_OF_MEMORY ? "out of memory" : "an error of the stand-in";
    return end(0);
}

EXPORT int cuDeviceGetCount(int *n)
{
    BEGIN(false);
    *n = (int)setting("TUTTI_STANDIN_CARDS", 1);
    return end(0);
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    BEGIN(false);
    *device = ordinal;
    return end(ordinal >= 0 && ordinal < setting("TUTTI_STANDIN_CARDS", 1) ? 0 : INVALID_DEVICE);
}

EXPORT int cuDeviceGetName(char *name, int n_bytes, int device)
{
    BEGIN(false);
    snprintf(name, (size_t)n_bytes, "Emulator %d", device);
    return end(0);
}

static size_t total_bytes(void)
{
    return (size_t)setting("TUTTI_STANDIN_MEMORY", 2L << 30);
}

EXPORT int cuDeviceTotalMem_v2(size_t *n_bytes, int device)
{
    BEGIN(false);
    *n_bytes = total_bytes() + (size_t)device; /* the last card has most */
    return end(0);
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    BEGIN(false);
    int level = (int)setting("TUTTI_STANDIN_LEVEL", 80);
    switch (attribute) {
    case CUDA_MULTIPROCESSORS:
        *value = 8;
        break;
    case CUDA_CLOCK_KHZ:
        *value = 1500000;
        break;
    case CUDA_MEMORY_CLOCK_KHZ:
        *value = 2000000;
        break;
    case CUDA_MEMORY_BUS_BITS:
        *value = 512;
        break;
    case CUDA_LEVEL_MAJOR:
        *value = level / 10;
        break;
    case CUDA_LEVEL_MINOR:
        *value = level % 10;
        break;
    case CUDA_SHARED_BYTES_OPTIN:
        *value = level == 90 ? 227 << 10 : level == 80 ? 163 << 10 : level >= 80 ? 99 << 10 : 64 << 10;
        break;
    default:
        return end(INVALID_VALUE);
    }
    return end(0);
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    BEGIN(false);
    if (device < 0 || device >= MAX_CARDS)
        return end(INVALID_DEVICE);
    n_contexts++;
    *context = &contexts[device];
    return end(0);
}

static void check_leaks(void)
{
    size_t n = 0;
    for (struct block *b = card_blocks; b; b = b->next)
        n++;
    if (n > 0) {
        fprintf(stderr, "stand-in for libcuda: %zu allocations of %zu bytes in the card's memory are left\n",
                n, card_bytes);
        misuse("cuDevicePrimaryCtxRelease_v2", "memory leak");
    }
    if (pinned_blocks)
        misuse("cuDevicePrimaryCtxRelease_v2", "pinned memory is left");
    for (struct object *o = objects; o; o = o->next)
        if (o->kind != FUNCTION)
            misuse("cuDevicePrimaryCtxRelease_v2", o->kind == MODULE   ? "a module is left"
                                                   : o->kind == STREAM ? "a stream is left"
                                                   : o->kind == EVENT  ? "an event is left"
                                                                       : "a graph is left");
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    BEGIN_FREE();
    if (n_contexts == 0)
        misuse(__func__, "released too often");
    if (--n_contexts == 0) {
        for (struct object *o = objects; o; o = o->next)
            if (o->kind == STREAM)
                (void)advance(o, NULL, 0);
        check_leaks();
        while (objects)
            object_free(objects);
    }
    return end(free_error);
}

EXPORT int cuCtxSetCurrent(void *context)
{
    BEGIN(false);
    const char *c = context;
    if (c && (n_contexts == 0 || c < contexts || c >= contexts + MAX_CARDS))
        return end(INVALID_CONTEXT);
    current = context;
    return end(0);
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *all_bytes)
{
    BEGIN(true);
    *all_bytes = total_bytes();
    *free_bytes = *all_bytes - card_bytes;
    return end(0);
}

EXPORT int cuMemAlloc_v2(void **memory, size_t n_bytes)
{
    BEGIN(true);
    if (n_bytes == 0 || is_any_capturing())
        return end(INVALID_VALUE);
    struct block *b = n_bytes <= total_bytes() - card_bytes ? block_new(n_bytes, true) : NULL;
    if (!b)
        return end(OUT_OF_MEMORY);
    b->next = card_blocks;
    card_blocks = b;
    card_bytes += n_bytes;
    *memory = b->data;
    return end(0);
}

EXPORT int cuMemFree_v2(void *memory)
{
    BEGIN_FREE();
    work();
    struct block *b = block_find(card_blocks, memory);
    size_t n_bytes = b ? b->n_bytes : 0;
    if (!block_free(&card_blocks, memory))
        misuse(__func__, "no such memory");
    card_bytes -= n_bytes;
    return end(free_error);
}

EXPORT int cuMemHostAlloc(void **memory, size_t n_bytes, unsigned flags)
{
    (void)flags;
    BEGIN(true);
    struct block *b = n_bytes > 0 ? block_new(n_bytes, false) : NULL;
    if (!b)
        return end(n_bytes > 0 ? OUT_OF_MEMORY : INVALID_VALUE);
    b->next = pinned_blocks;
    pinned_blocks = b;
    *memory = b->data;
    return end(0);
}

EXPORT int cuMemFreeHost(void *memory)
{
    BEGIN_FREE();
    work();
    if (!block_free(&pinned_blocks, memory))
        misuse(__func__, "no such memory");
    return end(free_error);
}

/* ---- streams ---- */

EXPORT int cuStreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    BEGIN(true);
    struct object *o = object_new(STREAM);
    o->fiber = order_stream_new();
    o->context = current;
    *stream = o;
    return end(0);
}

EXPORT int cuStreamDestroy_v2(void *stream)
{
    BEGIN_FREE();
    struct object *o = object_of(stream, STREAM);
    if (!o)
        misuse(__func__, "no such stream");
    work();
    object_free(o);
    return end(free_error);
}

EXPORT int cuStreamSynchronize(void *stream)
{
    BEGIN(true);
    struct object *o = object_of(stream, STREAM);
    if (!o || o->is_capturing)
        return end(o ? IN_CAPTURE : INVALID_HANDLE);
    finish(o, NULL, 0);
    order_after(o);
    return end(0);
}

EXPORT int cuStreamQuery(void *stream)
{
    BEGIN(true);
    struct object *o = object_of(stream, STREAM);
    if (!o || o->is_capturing)
        return end(o ? IN_CAPTURE : INVALID_HANDLE);
    if (o->queue.n > 0 && o->n_queries++ < setting("TUTTI_STANDIN_QUERIES", 1))
        return end(NOT_READY);
    if (!advance(o, NULL, 0))
        return end(NOT_READY);
    order_after(o);
    return end(0);
}

static int enqueue(void *stream, const struct operation *op, const void *args, size_t args_bytes)
{
    struct object *o = object_of(stream, STREAM);
    if (!o)
        return INVALID_HANDLE;
    struct operation with_caller = *op;
    with_caller.caller = caller_now;
    o->n_queries = 0;
    operations_add(o->is_capturing ? &o->operations : &o->queue, &with_caller, args, args_bytes);
    return 0;
}

int standin_enqueue(void *stream, standin_call_fn *call, const void *args, size_t n_bytes)
{
    order_lock(&lock);
    caller_now = __builtin_return_address(0);
    struct operation op = { .kind = CALL, .call = call, .n_bytes = n_bytes };
    return end(enqueue(stream, &op, args, n_bytes));
}

EXPORT int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t n_bytes, void *stream)
{
    BEGIN(true);
    if (!block_has(card_blocks, to, n_bytes))
        misuse(__func__, "the target is not in the card's memory");
    bool is_pinned = block_has(pinned_blocks, from, n_bytes);
    if (!is_pinned)
        order_reads(from, n_bytes);
    struct operation op = { .kind = COPY, .to = to, .from = is_pinned ? from : NULL, .n_bytes = n_bytes };
    return end(enqueue(stream, &op, from, is_pinned ? 0 : n_bytes));
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, void *from, size_t n_bytes, void *stream)
{
    BEGIN(true);
    if (!block_has(card_blocks, from, n_bytes))
        misuse(__func__, "the source is not in the card's memory");
    struct object *o = object_of(stream, STREAM);
    bool is_pinned = block_has(pinned_blocks, to, n_bytes);
    struct operation op = { .kind = COPY, .to = to, .from = from, .n_bytes = n_bytes };
    if (!is_pinned && o && o->is_capturing)
        return end(IN_CAPTURE);
    int result = enqueue(stream, &op, NULL, 0);
    if (result == 0 && !is_pinned) {
        finish(o, NULL, 0);
        order_after(o);
    }
    return end(result);
}

EXPORT int cuMemcpyDtoDAsync_v2(void *to, void *from, size_t n_bytes, void *stream)
{
    BEGIN(true);
    if (!block_has(card_blocks, from, n_bytes) || !block_has(card_blocks, to, n_bytes))
        misuse(__func__, "an end is not in the card's memory");
    struct operation op = { .kind = COPY, .to = to, .from = from, .n_bytes = n_bytes };
    return end(enqueue(stream, &op, NULL, 0));
}

EXPORT int cuMemsetD8Async(void *to, unsigned char byte, size_t n_bytes, void *stream)
{
    BEGIN(true);
    if (!block_has(card_blocks, to, n_bytes))
        misuse(__func__, "the target is not in the card's memory");
    struct operation op = { .kind = FILL, .to = to, .n_bytes = n_bytes, .byte = byte };
    return end(enqueue(stream, &op, NULL, 0));
}

/* ---- events ---- */

EXPORT int cuEventCreate(void **event, unsigned flags)
{
    BEGIN(true);
    struct object *e = object_new(EVENT);
    e->has_time = (flags & CUDA_EVENT_DISABLE_TIMING) == 0;
    *event = e;
    return end(0);
}

EXPORT int cuEventDestroy_v2(void *event)
{
    BEGIN_FREE();
    if (!object_of(event, EVENT))
        misuse(__func__, "no such event");
    work(); /* streams may still wait for it */
    object_free(event);
    return end(free_error);
}

EXPORT int cuEventRecord(void *event, void *stream)
{
    BEGIN(true);
    struct object *e = object_of(event, EVENT), *o = object_of(stream, STREAM);
    if (!e || !o)
        return end(INVALID_HANDLE);
    e->stream = o;
    e->n_queries = 0;
    struct operation op = { .kind = RECORD, .event = e, .stream = o, .n_record = ++e->n_records };
    return end(enqueue(stream, &op, NULL, 0));
}

EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    BEGIN(true);
    struct object *e = object_of(event, EVENT);
    if (!e || flags != 0)
        return end(INVALID_HANDLE);
    struct operation op = { .kind = WAIT, .event = e, .stream = e->stream, .n_record = e->n_records };
    return end(enqueue(stream, &op, NULL, 0));
}

EXPORT int cuEventQuery(void *event)
{
    BEGIN(true);
    struct object *e = object_of(event, EVENT);
    if (!e)
        return end(INVALID_HANDLE);
    if (e->n_done < e->n_records && e->n_queries++ < setting("TUTTI_STANDIN_QUERIES", 1))
        return end(NOT_READY);
    if (!advance(e->stream, e, e->n_records))
        return end(NOT_READY);
    order_after(e);
    return end(0);
}

EXPORT int cuEventElapsedTime(float *milliseconds, void *begin_event, void *end_event)
{
    BEGIN(true);
    struct object *from = object_of(begin_event, EVENT), *to = object_of(end_event, EVENT);
    if (!from || !to || !from->has_time || !to->has_time || from->n_records == 0 || to->n_records == 0)
        return end(INVALID_HANDLE);
    if (from->n_done < from->n_records || to->n_done < to->n_records)
        return end(NOT_READY);
    *milliseconds = (float)((double)(to->done_ns - from->done_ns) * 1e-6);
    return end(0);
}

EXPORT int cuEventSynchronize(void *event)
{
    BEGIN(true);
    struct object *e = object_of(event, EVENT);
    if (!e)
        return end(INVALID_HANDLE);
    finish(e->stream, e, e->n_records);
    order_after(e);
    return end(0);
}

/* ---- graphs ---- */

EXPORT int cuStreamBeginCapture_v2(void *stream, int mode)
{
    (void)mode;
    BEGIN(true);
    struct object *o = object_of(stream, STREAM);
    if (!o || o->is_capturing)
        return end(INVALID_HANDLE);
    o->is_capturing = true;
    return end(0);
}

/* Ends the capture even if it fails. */
EXPORT int cuStreamEndCapture(void *stream, void **graph)
{
    BEGIN_FREE();
    struct object *o = object_of(stream, STREAM);
    if (!o || !o->is_capturing)
        return end(INVALID_HANDLE);
    o->is_capturing = false;
    *graph = NULL;
    if (free_error != 0) {
        operations_clear(&o->operations);
        return end(free_error);
    }
    struct object *g = object_new(GRAPH);
    g->operations = o->operations;
    o->operations = (struct operations){ 0 };
    *graph = g;
    return end(0);
}

EXPORT int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    (void)flags;
    BEGIN(true);
    struct object *g = object_of(graph, GRAPH);
    if (!g)
        return end(INVALID_HANDLE);
    struct object *e = object_new(EXEC);
    for (size_t i = 0; i < g->operations.n; i++)
        operations_add(&e->operations, &g->operations.items[i], g->operations.items[i].args,
                       args_bytes_of(&g->operations.items[i]));
    *exec = e;
    return end(0);
}

bool standin_is_in_use(const void *user)
{
    bool is_found = false;
    order_lock(&lock);
    for (const struct object *o = objects; o; o = o->next)
        is_found = is_found || operations_have_call(&o->operations, user) ||
                   operations_have_call(&o->queue, user);
    order_unlock(&lock);
    return is_found;
}

EXPORT int cuGraphDestroy(void *graph)
{
    BEGIN_FREE();
    if (!object_of(graph, GRAPH))
        misuse(__func__, "no such graph");
    object_free(graph);
    return end(free_error);
}

EXPORT int cuGraphExecDestroy(void *exec)
{
    BEGIN_FREE();
    if (!object_of(exec, EXEC))
        misuse(__func__, "no such graph");
    for (const struct object *o = objects; o; o = o->next)
        for (size_t i = o->queue.n_done; i < o->queue.n; i++)
            if (o->queue.items[i].exec == exec)
                misuse(__func__, "the graph is still to be carried out");
    object_free(exec);
    return end(free_error);
}

EXPORT int cuGraphLaunch(void *exec, void *stream)
{
    BEGIN(true);
    struct object *e = object_of(exec, EXEC), *o = object_of(stream, STREAM);
    if (!e || !o)
        return end(INVALID_HANDLE);
    o->n_queries = 0;
    for (size_t i = 0; i < e->operations.n; i++) {
        operations_add(&o->queue, &e->operations.items[i], e->operations.items[i].args,
                       args_bytes_of(&e->operations.items[i]));
        o->queue.items[o->queue.n - 1].exec = e;
    }
    return end(0);
}

/* ---- modules ---- */

/* The PTX version that a driver of this CUDA version reads, times 10: 11.4 reads 7.4, 12.0 reads 8.0. */
static int newest_ptx(int version)
{
    int major = version / 1000, minor = version % 1000 / 10;
    return major >= 12 ? 10 * (8 + major - 12) + minor : 70 + minor;
}

EXPORT int cuModuleLoadDataEx(void **module, const void *image, unsigned n_options, int *options,
                              void **values)
{
    const char *text = image;
    int major, minor, level;
    BEGIN(true);
    for (unsigned i = 0; i < n_options; i++)
        if (options[i] == CUDA_JIT_ERROR_LOG_BUFFER)
            ((char *)values[i])[0] = '\0';
    const char *target = strstr(text, ".target sm_");
    if (sscanf(text, " .version %d.%d", &major, &minor) != 2 || !target ||
        sscanf(target, ".target sm_%d", &level) != 1 || !strstr(text, ".entry"))
        return end(INVALID_IMAGE);
    if (10 * major + minor > newest_ptx((int)setting("TUTTI_STANDIN_VERSION", 12040)))
        return end(UNSUPPORTED_PTX);
    /* Only the card of the level itself has the instructions of a target with an "a". */
    int card = (int)setting("TUTTI_STANDIN_LEVEL", 80);
    bool is_own = target[strcspn(target, "\n") - 1] == 'a';
    if (is_own ? level != card : level > card)
        return end(INVALID_PTX);
    struct object *o = object_new(MODULE);
    o->text = strdup(text);
    o->level = level;
    *module = o;
    return end(0);
}

EXPORT int cuModuleUnload(void *module)
{
    BEGIN_FREE();
    struct object *o = object_of(module, MODULE);
    if (!o)
        misuse(__func__, "no such module");
    work();
    for (struct object *f = objects, *next; f; f = next) {
        next = f->next;
        if (f->kind == FUNCTION && f->module == o)
            object_free(f);
    }
    object_free(o);
    return end(free_error);
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
    char entry[256];
    BEGIN(true);
    struct object *o = object_of(module, MODULE);
    const struct emulated_kernel *kernel = o ? emulated_find_level(name, o->level) : NULL;
    snprintf(entry, sizeof entry, ".entry %s(", name);
    if (!kernel || !strstr(o->text, entry))
        return end(NOT_FOUND);
    struct object *f = object_new(FUNCTION);
    f->kernel = kernel;
    f->module = o;
    f->shared_bytes = MOST_STATIC_SHARED;
    *function = f;
    return end(0);
}

/* The emulator counts static memory when a kernel runs: here it is taken for none. */
EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    BEGIN(true);
    if (!object_of(function, FUNCTION) || attribute != CUDA_FUNCTION_STATIC_SHARED_BYTES)
        return end(INVALID_VALUE);
    *value = 0;
    return end(0);
}

EXPORT int cuFuncSetAttribute(void *function, int attribute, int value)
{
    BEGIN(true);
    struct object *f = object_of(function, FUNCTION);
    if (!f || attribute != CUDA_FUNCTION_DYNAMIC_SHARED_BYTES || value > MOST_SHARED)
        return end(INVALID_VALUE);
    f->shared_bytes = value;
    return end(0);
}

static int launch(const struct cuda_launch_config *c, void *function, void **params, void **extra)
{
    struct object *f = object_of(function, FUNCTION);
    if (!f || extra)
        return INVALID_HANDLE;
    if (c->x == 0 || c->y == 0 || c->z == 0 || c->y > 65535 || c->z > 65535 || c->threads_y != 1 ||
        c->threads_z != 1 || c->threads_x != (unsigned)f->kernel->n_threads ||
        c->shared_bytes > (unsigned)f->shared_bytes) {
        fprintf(stderr, "stand-in for libcuda: a launch of %s that no card can make\n", f->kernel->name);
        return INVALID_VALUE;
    }
    struct operation op = { .kind = LAUNCH,
                            .kernel = f->kernel,
                            .grid = { (int)c->x, (int)c->y, (int)c->z, (int)c->threads_x, c->shared_bytes } };
    return enqueue(c->stream, &op, params[0], f->kernel->args_bytes);
}

EXPORT int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                          unsigned threads_y, unsigned threads_z, unsigned shared_bytes, void *stream,
                          void **params, void **extra)
{
    BEGIN(true);
    const struct cuda_launch_config config = { x,      y,    z, threads_x, threads_y, threads_z, shared_bytes,
                                               stream, NULL, 0 };
    return end(launch(&config, function, params, extra));
}

/* Launches do not overlap here; tests of kernels show what they read before they wait (emulator.h). */
EXPORT int cuLaunchKernelEx(const struct cuda_launch_config *config, void *function, void **params,
                            void **extra)
{
    BEGIN(true);
    for (unsigned i = 0; i < config->n_attributes; i++)
        if (config->attributes[i].id != CUDA_MAY_OVERLAP || setting("TUTTI_STANDIN_LEVEL", 80) < 90)
            return end(INVALID_VALUE);
    return end(launch(config, function, params, extra));
}
