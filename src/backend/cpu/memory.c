#include "backend/cpu/memory.h"

#include "base/log.h"
#include "base/system/os.h"
#include "base/system/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)OS_HUGE_PAGE)

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Maps one huge page more than needed, and unmaps what is before and after an aligned part. */
static void *map_aligned(size_t n_bytes)
{
    size_t size = round_up(n_bytes, os_page_bytes());
    char *base = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    size_t before = round_up((uintptr_t)base, HUGE_PAGE) - (uintptr_t)base;
    if (before > 0)
        munmap(base, before);
    if (before < HUGE_PAGE)
        munmap(base + before + size, HUGE_PAGE - before);
    os_prefer_huge(base + before, size);
    return base + before;
}

bool memory_is_mapped(size_t n_bytes)
{
    return n_bytes >= HUGE_PAGE;
}

void *memory_new(size_t n_bytes)
{
    if (n_bytes > SIZE_MAX / 2)
        return NULL;
    if (memory_is_mapped(n_bytes))
        return map_aligned(n_bytes);
    size_t size = round_up(n_bytes > 0 ? n_bytes : 1, 64);
    void *memory = aligned_alloc(64, size);
    if (memory)
        memset(memory, 0, size);
    return memory;
}

void memory_free(void *memory, size_t n_bytes)
{
    if (memory && memory_is_mapped(n_bytes))
        munmap(memory, round_up(n_bytes, os_page_bytes()));
    else
        free(memory);
}

/* ---- backing ---- */

enum { BACK_AT_ONCE_BYTES = 64 << 20, BACK_PIECE_BYTES = HUGE_PAGE };

struct memory_backing {
    uint8_t *memory;
    size_t n_bytes;
    atomic_size_t next; /* the first byte that no thread has taken */
    atomic_bool stop;
    int n_threads;
    pthread_t threads[];
};

/* Atomically adds 0 to each page, so that concurrent writes are kept. */
static void touch(uint8_t *memory, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i += 4096)
        atomic_fetch_add_explicit((_Atomic uint8_t *)(memory + i), 0, memory_order_relaxed);
}

/* False: the system has no more memory. */
static bool back_piece(uint8_t *memory, size_t n_bytes)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(memory, n_bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL && errno != EAGAIN) /* EINVAL: Linux before 5.14 */
        return false;
#endif
    touch(memory, n_bytes);
    return true;
}

static void *back_all(void *arg)
{
    struct memory_backing *b = arg;
    for (;;) {
        os_idle_thread(true);
        size_t at = atomic_load(&b->stop) ? b->n_bytes : atomic_fetch_add(&b->next, BACK_PIECE_BYTES);
        if (at >= b->n_bytes)
            break;
        size_t n = b->n_bytes - at < BACK_PIECE_BYTES ? b->n_bytes - at : BACK_PIECE_BYTES;
        os_idle_thread(false); /* the kernel holds a lock that every thread needs which maps memory */
        if (!back_piece(b->memory + at, n) && !atomic_exchange(&b->stop, true))
            log_warn("the system has memory for %zu of the %zu MiB that were reserved: it may kill processes",
                     at >> 20, b->n_bytes >> 20);
    }
    return NULL;
}

struct memory_backing *memory_back(void *memory, size_t n_bytes, int n_threads)
{
    size_t size = sizeof(struct memory_backing) + (size_t)n_threads * sizeof(pthread_t);
    struct memory_backing *b = n_bytes > BACK_AT_ONCE_BYTES ? calloc(1, size) : NULL;
    if (b) {
        b->memory = memory;
        b->n_bytes = round_up(n_bytes, os_page_bytes());
        while (b->n_threads < n_threads && thread_start(&b->threads[b->n_threads], back_all, b) == 0)
            b->n_threads++;
        if (b->n_threads > 0)
            return b;
        free(b);
    }
    touch(memory, n_bytes);
    return NULL;
}

void memory_back_stop(struct memory_backing *backing)
{
    if (!backing)
        return;
    atomic_store(&backing->stop, true);
    for (int i = 0; i < backing->n_threads; i++)
        pthread_join(backing->threads[i], NULL);
    free(backing);
}
