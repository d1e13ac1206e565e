/* The functions of standin.h, in the library that the backend opens too. */
#ifndef TUTTI_TESTS_CUDA_STANDIN_FIND_H
#define TUTTI_TESTS_CUDA_STANDIN_FIND_H

#include "cuda/standin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct standin_functions {
    standin_fail_fn *fail_call;
    standin_calls_fn *calls;
    standin_failed_fn *failed;
    standin_bytes_fn *bytes;
    standin_trace_fn *trace;
};

static inline const struct standin_functions *standin_functions(void)
{
    static struct standin_functions found;
    void *library = found.fail_call ? NULL : dlopen("libcuda.so.1", RTLD_NOW);
    if (library) {
        *(void **)&found.fail_call = dlsym(library, "standin_fail");
        *(void **)&found.calls = dlsym(library, "standin_calls");
        *(void **)&found.failed = dlsym(library, "standin_failed");
        *(void **)&found.bytes = dlsym(library, "standin_bytes");
        *(void **)&found.trace = dlsym(library, "standin_trace");
    }
    if (found.fail_call && found.calls && found.failed && found.bytes && found.trace)
        return &found;
    fprintf(stderr, "libcuda.so.1 is not the stand-in: set LD_LIBRARY_PATH to its folder\n");
    abort();
}

#endif
