#include "engine/run/alloc_guard.h"

#include <stddef.h>

static _Thread_local alloc_phase *watched;

void alloc_guard_watch(alloc_phase *phase)
{
    watched = phase;
}

const char *alloc_guard_phase(void)
{
    return watched ? atomic_load_explicit(watched, memory_order_relaxed) : NULL;
}
