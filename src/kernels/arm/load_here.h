/* A load that the compiler leaves where it is. */
#ifndef TUTTI_KERNELS_ARM_LOAD_HERE_H
#define TUTTI_KERNELS_ARM_LOAD_HERE_H

#include "kernels/arm/arm.h"

#include <arm_neon.h>

/* A load for each use. The compiler would keep what all strips load in registers, of which there are too few, and
 * copy it where a multiply-add overwrites it: a copy takes a vector pipe, a load does not. */
INLINE float32x4_t load_here(const void *p)
{
    float32x4_t x;
    __asm__ volatile("ldr %q0, %1" : "=w"(x) : "m"(*(const float32x4_t *)p));
    return x;
}

#endif
