#include "cuda/emulator.h"

#include <string.h>

#define CUDA_FILE(file)
#define CUDA_KERNEL(name) extern const struct emulated_kernel name##_kernel;
#include "kernels/cuda/list.h"
#undef CUDA_KERNEL

static const struct emulated_kernel *const KERNELS[] = {
#define CUDA_KERNEL(name) &name##_kernel,
#include "kernels/cuda/list.h"
    NULL
};

const struct emulated_kernel *emulated_find(const char *name)
{
    for (int i = 0; KERNELS[i]; i++)
        if (strcmp(KERNELS[i]->name, name) == 0)
            return KERNELS[i];
    return NULL;
}
