/* The kernels of this build, and how the driver gets them.
 *
 * A build has the text of each file of kernels/cuda for three levels of cards, in PTX, from which the driver makes machine
 * code once for a card (it keeps it in its cache). A card uses the highest level that is not above its own. A file is
 * loaded when something that needs one of its kernels is created, such as a matrix of a format: the driver compiles what
 * the model needs, and nothing in a step. */
#include "backend/cuda/cuda_state.h"
#include "base/system/clock.h"
#include "kernels/cuda/texts.h"

#include <stdio.h>
#include <stdlib.h>
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

/* Has the driver compile a text, or take it from its cache. name: of the file or kernel. */
static enum tutti_status load_text(struct cuda_backend *cuda, cuda_module *module, const char *text,
                                   const char *name, struct tutti_error *err)
{
    char log[512] = "", doing[640];
    int options[] = { CUDA_JIT_ERROR_LOG_BUFFER, CUDA_JIT_ERROR_LOG_BUFFER_BYTES };
    void *values[] = { log, (void *)(uintptr_t)sizeof log };
    cuda_result result = cuda->driver->module_load(module, text, 2, options, values);
    if (result == CUDA_OK)
        return TUTTI_OK;
    *module = NULL;
    log[sizeof log - 1] = '\0';
    snprintf(doing, sizeof doing, "compiling kernels \"%s\" for level %d%s%s", name, cuda->level,
             log[0] ? ": " : "", log);
    return cuda_driver_error(cuda->driver, result, doing, err);
}

/* What a file's text has before its kernels, and one of them. An entry ends with the first brace at the begin of a line
 * (embed.py of kernels/cuda). NULL: out of memory, or not found. */
static char *cut_kernel(const char *text, const char *name)
{
    static const char ENTRY[] = ".visible .entry ", END[] = "\n}\n";
    char begin[128];
    snprintf(begin, sizeof begin, "%s%s(", ENTRY, name);
    const char *first = strstr(text, ENTRY), *own = strstr(text, begin), *end = own ? strstr(own, END) : NULL;
    if (!end)
        return NULL;
    size_t n_head = (size_t)(first - text), n_own = (size_t)(end - own) + sizeof END - 1;
    char *cut = malloc(n_head + n_own + 1);
    if (!cut)
        return NULL;
    memcpy(cut, text, n_head);
    memcpy(cut + n_head, own, n_own);
    cut[n_head + n_own] = '\0';
    return cut;
}

/* A kernel may use as much dynamic shared memory as the card has besides the kernel's static memory: a launch says how
 * much. Up to LEAST_SHARED a driver always allows it. */
static cuda_result allow_shared(struct cuda_backend *cuda, cuda_function function)
{
    enum { LEAST_SHARED = 48 << 10 };
    int n_static = 0, n_card = (int)cuda->shared_bytes;
    cuda_result result = cuda->driver->function_get(&n_static, CUDA_FUNCTION_STATIC_SHARED_BYTES, function);
    if (result != CUDA_OK || n_card - n_static <= LEAST_SHARED)
        return result;
    return cuda->driver->function_set(function, CUDA_FUNCTION_DYNAMIC_SHARED_BYTES, n_card - n_static);
}

static enum tutti_status find_kernel(struct cuda_backend *cuda, int kernel, const char *name,
                                     cuda_module module, struct tutti_error *err)
{
    struct cuda_state *s = cuda->state;
    char doing[128];
    cuda_result result = cuda->driver->module_function(&s->functions[kernel], module, name);
    if (result == CUDA_OK)
        result = allow_shared(cuda, s->functions[kernel]);
    if (result == CUDA_OK)
        return TUTTI_OK;
    snprintf(doing, sizeof doing, "finding kernel %s", name);
    return cuda_driver_error(cuda->driver, result, doing, err);
}

/* The entry of KERNELS of a kernel, and its file. */
static size_t find_place(enum cuda_kernel kernel, int *file)
{
    size_t i = 0;
    *file = -1;
    for (int n = -1; n < (int)kernel;) {
        i++;
        *file += KERNELS[i].file;
        n += KERNELS[i].name != NULL;
    }
    return i;
}

static enum tutti_status load_file(struct cuda_backend *cuda, const char *text, int file,
                                   struct tutti_error *err)
{
    struct cuda_state *s = cuda->state;
    enum tutti_status st = load_text(cuda, &s->modules[file], text, FILES[file], err);
    int at = -1, kernel = 0;
    for (size_t i = 1; i < sizeof KERNELS / sizeof *KERNELS && st == TUTTI_OK; i++) {
        at += KERNELS[i].file;
        if (KERNELS[i].name && at == file)
            st = find_kernel(cuda, kernel, KERNELS[i].name, s->modules[file], err);
        kernel += KERNELS[i].name != NULL;
    }
    return st;
}

static enum tutti_status load_kernel(struct cuda_backend *cuda, const char *text, enum cuda_kernel kernel,
                                     const char *name, struct tutti_error *err)
{
    struct cuda_state *s = cuda->state;
    char *cut = cut_kernel(text, name);
    if (!cut)
        return error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory for the text of kernel %s", name);
    enum tutti_status st = load_text(cuda, &s->cut_modules[kernel], cut, name, err);
    free(cut);
    return st == TUTTI_OK ? find_kernel(cuda, (int)kernel, name, s->cut_modules[kernel], err) : st;
}

bool cuda_need(struct cuda_backend *cuda, enum cuda_kernel kernel, enum cuda_need what)
{
    struct cuda_state *s = cuda->state;
    struct tutti_error err = { 0 };
    enum tutti_status st;
    int file;
    assert(!s->in_step && kernel < N_CUDA_KERNELS);
    const char *name = KERNELS[find_place(kernel, &file)].name;
    assert(file >= 0);
    const char *text = cuda_text(FILES[file], cuda->level);
    cuda_enter(cuda);
    if (s->failure != TUTTI_OK)
        return false;
    if (s->modules[file] || (what == CUDA_NEED_KERNEL && s->functions[kernel]))
        return true;
    uint64_t begin_ns = clock_now_ns();
    if (!text)
        st = error_set_param(&err, TUTTI_E_UNSUPPORTED, "device", "device cuda: " CUDA_NO_TEXTS);
    else if (what == CUDA_NEED_KERNEL)
        st = load_kernel(cuda, text, kernel, name, &err);
    else
        st = load_file(cuda, text, file, &err);
    s->loading_ns += clock_now_ns() - begin_ns;
    if (st != TUTTI_OK)
        cuda_keep_error(cuda, &err);
    return st == TUTTI_OK;
}

void cuda_modules_unload(struct cuda_backend *cuda)
{
    struct cuda_state *s = cuda->state;
    for (int i = 0; i < N_CUDA_FILES; i++)
        if (s->modules[i])
            (void)cuda->driver->module_unload(s->modules[i]);
    for (int i = 0; i < N_CUDA_KERNELS; i++)
        if (s->cut_modules[i])
            (void)cuda->driver->module_unload(s->cut_modules[i]);
    memset(s->modules, 0, sizeof s->modules);
    memset(s->cut_modules, 0, sizeof s->cut_modules);
}
