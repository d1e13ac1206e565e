/* The kernels of this build, and how the driver gets them.
 *
 * A build has the text of each file of kernels/cuda for three levels of cards, in PTX, from which the driver makes machine
 * code once for a card (it keeps it in its cache). A card uses the highest level that is not above its own. */
#include "backend/cuda/cuda_state.h"
#include "kernels/cuda/texts.h"

#include <stdio.h>
#include <string.h>

static const char *const FILES[] = {
#define CUDA_FILE(file) #file,
#define CUDA_KERNEL(name)
#include "kernels/cuda/list.h"
#undef CUDA_FILE
#undef CUDA_KERNEL
    NULL
};

/* Of each kernel. */
static const struct kernel_place {
    const char *name;
    int file;
} KERNELS[] = {
    { NULL, 0 }, /* so that the table of an empty list is one */
#define CUDA_FILE(file)   { NULL, 1 },
#define CUDA_KERNEL(name) { #name, 0 },
#include "kernels/cuda/list.h"
#undef CUDA_FILE
#undef CUDA_KERNEL
};

static enum tutti_status load_file(struct cuda_backend *cuda, int file, struct tutti_error *err)
{
    struct cuda_state *s = cuda->state;
    const char *text = cuda_text(FILES[file], cuda->level);
    char log[512] = "", doing[640];
    int options[] = { CUDA_JIT_ERROR_LOG_BUFFER, CUDA_JIT_ERROR_LOG_BUFFER_BYTES };
    void *values[] = { log, (void *)(uintptr_t)sizeof log };
    if (!text)
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, "device",
            "device cuda: this build has no kernels for cards; build it where clang 19 is installed "
            "(apt-get install clang-19, then ./run build)");
    cuda_result result = cuda->driver->module_load(&s->modules[file], text, 2, options, values);
    if (result == CUDA_OK)
        return TUTTI_OK;
    s->modules[file] = NULL;
    log[sizeof log - 1] = '\0';
    snprintf(doing, sizeof doing, "compiling kernels \"%s\" for level %d%s%s", FILES[file], cuda->level,
             log[0] ? ": " : "", log);
    return cuda_driver_error(cuda->driver, result, doing, err);
}

/* A kernel may use as much dynamic shared memory as the card has besides the kernel's static memory: a launch says how
 * much. Up to LEAST_SHARED a driver allows it without being asked. */
static cuda_result allow_shared(struct cuda_backend *cuda, cuda_function function)
{
    enum { LEAST_SHARED = 48 << 10 };
    int n_static = 0, n_card = (int)cuda->shared_bytes;
    cuda_result result = cuda->driver->function_get(&n_static, CUDA_FUNCTION_STATIC_SHARED_BYTES, function);
    if (result != CUDA_OK || n_card - n_static <= LEAST_SHARED)
        return result;
    return cuda->driver->function_set(function, CUDA_FUNCTION_DYNAMIC_SHARED_BYTES, n_card - n_static);
}

static enum tutti_status find_kernel(struct cuda_backend *cuda, int kernel, const char *name, int file,
                                     struct tutti_error *err)
{
    struct cuda_state *s = cuda->state;
    char doing[128];
    cuda_result result = cuda->driver->module_function(&s->functions[kernel], s->modules[file], name);
    if (result == CUDA_OK)
        result = allow_shared(cuda, s->functions[kernel]);
    if (result == CUDA_OK)
        return TUTTI_OK;
    snprintf(doing, sizeof doing, "finding kernel %s", name);
    return cuda_driver_error(cuda->driver, result, doing, err);
}

enum tutti_status cuda_modules_load(struct cuda_backend *cuda, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (int file = 0; FILES[file] && st == TUTTI_OK; file++)
        st = load_file(cuda, file, err);
    int file = -1, kernel = 0;
    for (size_t i = 1; i < sizeof KERNELS / sizeof *KERNELS && st == TUTTI_OK; i++) {
        file += KERNELS[i].file;
        if (KERNELS[i].name)
            st = find_kernel(cuda, kernel++, KERNELS[i].name, file, err);
    }
    return st;
}

void cuda_modules_unload(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    for (int i = 0; i < N_CUDA_FILES; i++)
        if (s->modules[i])
            (void)cuda->driver->module_unload(s->modules[i]);
    memset(s->modules, 0, sizeof s->modules);
}
