/* Monotonic time. */
#ifndef TUTTI_BASE_SYSTEM_CLOCK_H
#define TUTTI_BASE_SYSTEM_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t clock_now_us(void)
{
    return clock_now_ns() / 1000;
}

#endif
