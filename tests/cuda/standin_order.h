/* What the stand-in's card reports to the thread sanitizer (libcuda_standin.c).
 *
 * To the sanitizer, each stream is a thread of its own, a fiber in its words, whose reads and writes are those of copies, fills and
 * declared launches. It is ordered with the host and with other streams by what orders them on a card, and by nothing else: an
 * operation comes after all that its caller did before; a wait for an event, or for a stream, comes after what the stream did
 * before. The stand-in's own lock and memory do not count. So pinned memory that is changed too early, or memory of the card that
 * two streams use without an event in between, is a data race, whatever the order in which the stand-in carries it out.
 *
 * The stand-in itself is compiled without the sanitizer. Without STANDIN_THREAD_SANITIZER nothing is done. */
#ifndef TUTTI_TESTS_CUDA_STANDIN_ORDER_H
#define TUTTI_TESTS_CUDA_STANDIN_ORDER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef STANDIN_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>

/* Exported by the sanitizer's library, but in none of its headers. */
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_read_range(void *at, size_t n_bytes);
void __tsan_write_range(void *at, size_t n_bytes);

/* What the thread or the stream reads and writes from now on counts or not; at first it does. */
static inline void order_counts(bool counts)
{
    if (counts) {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    } else {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
}

/* Nothing that the thread does until the end of order_unlock() counts. */
static inline void order_lock(pthread_mutex_t *lock)
{
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    pthread_mutex_lock(lock);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    order_counts(false);
}

static inline void order_unlock(pthread_mutex_t *lock)
{
    order_counts(true);
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    pthread_mutex_unlock(lock);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
}

static inline void *order_stream_new(void)
{
    void *fiber = __tsan_create_fiber(0);
    __tsan_set_fiber_name(fiber, "stream of the card");
    return fiber;
}

static inline void order_stream_free(void *fiber)
{
    __tsan_destroy_fiber(fiber);
}

/* Goes on as the stream. Returns what was running, for order_leave(). */
static inline void *order_enter(void *fiber)
{
    void *before = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
    order_counts(false);
    return before;
}

static inline void order_leave(void *before)
{
    order_counts(true);
    __tsan_switch_to_fiber(before, __tsan_switch_to_fiber_no_sync);
}

/* What was done before it comes before what is done after order_after() of the same address. */
static inline void order_before(void *at)
{
    __tsan_release(at);
}

static inline void order_after(void *at)
{
    __tsan_acquire(at);
}

/* A report of what is done in between names the caller of the driver's function. */
static inline void order_operation_begin(const void *caller)
{
    __tsan_func_entry((void *)(uintptr_t)caller);
}

static inline void order_operation_end(void)
{
    __tsan_func_exit();
}

static inline void order_reads(const void *at, size_t n_bytes)
{
    order_counts(true);
    __tsan_read_range((void *)(uintptr_t)at, n_bytes);
    order_counts(false);
}

static inline void order_writes(void *at, size_t n_bytes)
{
    order_counts(true);
    __tsan_write_range(at, n_bytes);
    order_counts(false);
}

#else

static inline void order_lock(pthread_mutex_t *lock)
{
    pthread_mutex_lock(lock);
}

static inline void order_unlock(pthread_mutex_t *lock)
{
    pthread_mutex_unlock(lock);
}

static inline void *order_stream_new(void)
{
    return NULL;
}

static inline void order_stream_free(void *fiber)
{
    (void)fiber;
}

static inline void *order_enter(void *fiber)
{
    return fiber;
}

static inline void order_leave(void *before)
{
    (void)before;
}

static inline void order_before(void *at)
{
    (void)at;
}

static inline void order_after(void *at)
{
    (void)at;
}

static inline void order_operation_begin(const void *caller)
{
    (void)caller;
}

static inline void order_operation_end(void)
{
}

static inline void order_reads(const void *at, size_t n_bytes)
{
    (void)at, (void)n_bytes;
}

static inline void order_writes(void *at, size_t n_bytes)
{
    (void)at, (void)n_bytes;
}

#endif
#endif
