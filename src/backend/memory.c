#include "backend/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Maps one huge page more than asked, and gives back what lies before and behind an aligned part of it. */
static void *map_aligned(size_t n_bytes)
{
    size_t size = round_up(n_bytes, 4096);
    char *base = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    size_t before = round_up((uintptr_t)base, HUGE_PAGE) - (uintptr_t)base;
    if (before > 0)
        munmap(base, before);
    if (before < HUGE_PAGE)
        munmap(base + before + size, HUGE_PAGE - before);
#ifdef MADV_HUGEPAGE
    (void)madvise(base + before, size, MADV_HUGEPAGE); /* a wish: small pages work too */
#endif
    return base + before;
}

void *memory_new(size_t n_bytes)
{
    if (n_bytes > SIZE_MAX / 2)
        return NULL;
    if (n_bytes >= HUGE_PAGE)
        return map_aligned(n_bytes);
    size_t size = round_up(n_bytes > 0 ? n_bytes : 1, 64);
    void *memory = aligned_alloc(64, size);
    if (memory)
        memset(memory, 0, size);
    return memory;
}

void memory_free(void *memory, size_t n_bytes)
{
    if (memory && n_bytes >= HUGE_PAGE)
        munmap(memory, round_up(n_bytes, 4096));
    else
        free(memory);
}
