#include "support/fault.h"

#include "engine/run/alloc_guard.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_long n_calls, fails_at;
static atomic_size_t n_bytes;
static _Atomic(const char *) failed_function = "";

void fault_arm(long n)
{
    atomic_store(&fails_at, 0);
    atomic_store(&n_calls, 0);
    atomic_store(&n_bytes, 0);
    atomic_store(&failed_function, "");
    atomic_store(&fails_at, n);
}

long fault_n_calls(void)
{
    return atomic_load(&n_calls);
}

size_t fault_n_bytes(void)
{
    return atomic_load(&n_bytes);
}

const char *fault_function(void)
{
    return atomic_load(&failed_function);
}

bool fault_has_hit(void)
{
    return fault_function()[0] != '\0';
}

/* Writes without allocating. */
static void say(const char *text)
{
    ssize_t n = write(STDERR_FILENO, text, strlen(text));
    (void)n;
}

static void guard(const char *function)
{
    const char *phase = alloc_guard_phase();
    if (!phase)
        return;
    say("allocation inside a decode step: ");
    say(function);
    say(" while ");
    say(phase);
    say("\n");
    abort();
}

static bool shall_fail(const char *function, size_t n_allocated)
{
    guard(function);
    atomic_fetch_add(&n_bytes, n_allocated);
    long n = atomic_fetch_add(&n_calls, 1) + 1;
    if (n != atomic_load(&fails_at))
        return false;
    atomic_store(&failed_function, function);
    return true;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t n);
void *__real_aligned_alloc(size_t alignment, size_t n);
int __real_posix_memalign(void **out, size_t alignment, size_t n);
void __real_free(void *memory);
void *__real_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*entry)(void *),
                          void *arg);
int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __real_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t n);
void *__wrap_aligned_alloc(size_t alignment, size_t n);
int __wrap_posix_memalign(void **out, size_t alignment, size_t n);
void __wrap_free(void *memory);
void *__wrap_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*entry)(void *),
                          void *arg);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes);

static void *no_memory(void)
{
    errno = ENOMEM;
    return NULL;
}

void *__wrap_malloc(size_t n)
{
    return shall_fail("malloc", n) ? no_memory() : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return shall_fail("calloc", n * size) ? no_memory() : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t n)
{
    return shall_fail("realloc", n) ? no_memory() : __real_realloc(old, n);
}

void *__wrap_aligned_alloc(size_t alignment, size_t n)
{
    return shall_fail("aligned_alloc", n) ? no_memory() : __real_aligned_alloc(alignment, n);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t n)
{
    return shall_fail("posix_memalign", n) ? ENOMEM : __real_posix_memalign(out, alignment, n);
}

void __wrap_free(void *memory)
{
    if (memory)
        guard("free");
    __real_free(memory);
}

void *__wrap_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    if (!shall_fail("mmap", 0))
        return __real_mmap64(at, n, protection, flags, fd, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*entry)(void *),
                          void *arg)
{
    return shall_fail("pthread_create", 0) ? EAGAIN : __real_pthread_create(thread, attributes, entry, arg);
}

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    return shall_fail("pthread_mutex_init", 0) ? ENOMEM : __real_pthread_mutex_init(mutex, attributes);
}

int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes)
{
    return shall_fail("pthread_cond_init", 0) ? ENOMEM : __real_pthread_cond_init(cond, attributes);
}

static void *jansson_malloc(size_t n)
{
    return shall_fail("jansson", 0) ? no_memory() : __real_malloc(n);
}

__attribute__((constructor)) static void wrap_jansson(void)
{
    json_set_alloc_funcs(jansson_malloc, __wrap_free);
}
