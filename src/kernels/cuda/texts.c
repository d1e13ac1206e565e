#include "kernels/cuda/texts.h"

#include <stddef.h>
#include <string.h>

#if TUTTI_HAS_CUDA_TEXTS

#define CUDA_KERNEL(name)
#define CUDA_FILE(file) extern const char cuda_##file##_75[], cuda_##file##_80[], cuda_##file##_90[];
#include "kernels/cuda/list.h"
#undef CUDA_FILE

static const struct text {
    const char *file;
    int level;
    const char *text;
} TEXTS[] = {
#define CUDA_FILE(file)                                                                                      \
    { #file, 75, cuda_##file##_75 }, { #file, 80, cuda_##file##_80 }, { #file, 90, cuda_##file##_90 },
#include "kernels/cuda/list.h"
};

const char *cuda_text(const char *file, int level)
{
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++)
        if (TEXTS[i].level == level && strcmp(TEXTS[i].file, file) == 0)
            return TEXTS[i].text;
    return NULL;
}

bool cuda_text_has_any(void)
{
    return true;
}

#else

const char *cuda_text(const char *file, int level)
{
    (void)file;
    (void)level;
    return NULL;
}

bool cuda_text_has_any(void)
{
    return false;
}

#endif
