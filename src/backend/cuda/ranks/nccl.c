#include "backend/cuda/ranks/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

static const char LIBRARY[] = "libnccl.so.2";

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct nccl opened;
static bool is_open;

static bool find_functions(struct nccl *nccl, void *library)
{
#define NCCL_FIND(field, symbol, arguments)                                                                  \
    *(void **)&nccl->field = dlsym(library, symbol);                                                         \
    if (!nccl->field)                                                                                        \
        return false;
    NCCL_FUNCTIONS(NCCL_FIND)
#undef NCCL_FIND
    return true;
}

static void open_library(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    is_open = find_functions(&opened, library);
    if (!is_open)
        dlclose(library);
}

const struct nccl *nccl_open(void)
{
    pthread_once(&once, open_library);
    return is_open ? &opened : NULL;
}
