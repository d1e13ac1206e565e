#include "cuda/emulator.h"

#include <string.h>

/* Of level 90 are those that are compiled for it again: the others have no such symbol. */
#define CUDA_FILE(file)
#define CUDA_KERNEL(name)                                                                                    \
    extern const struct emulated_kernel name##_kernel;                                                       \
    extern const struct emulated_kernel name##_90_kernel __attribute__((weak));
#include "kernels/cuda/list.h"
#undef CUDA_KERNEL

static const struct emulated_kernel *const KERNELS[] = {
#define CUDA_KERNEL(name) &name##_kernel,
#include "kernels/cuda/list.h"
#undef CUDA_KERNEL
    NULL
};

static const struct emulated_kernel *const KERNELS_90[] = {
#define CUDA_KERNEL(name) &name##_90_kernel,
#include "kernels/cuda/list.h"
    NULL
};

const struct emulated_kernel *emulated_find_level(const char *name, int level)
{
    for (int i = 0; KERNELS[i]; i++)
        if (strcmp(KERNELS[i]->name, name) == 0)
            return level >= 90 && KERNELS_90[i] ? KERNELS_90[i] : KERNELS[i];
    return NULL;
}

const struct emulated_kernel *emulated_find(const char *name)
{
    return emulated_find_level(name, 80);
}
