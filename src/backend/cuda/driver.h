/* The functions of NVIDIA's driver that the CUDA backend calls, from libcuda.so.1, which is opened at run time: a build
 * needs nothing of NVIDIA's, and a machine without a card needs no driver.
 *
 * The declarations are those of the driver's binary interface (CUDA Driver API, 11.4 and later), where a name with _v2
 * is the one that cuda.h gives to programs. Every function returns 0 or an error's number. */
#ifndef TUTTI_BACKEND_CUDA_DRIVER_H
#define TUTTI_BACKEND_CUDA_DRIVER_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef int cuda_result;
typedef int cuda_device;
typedef struct CUctx_st *cuda_context;
typedef struct CUmod_st *cuda_module;
typedef struct CUfunc_st *cuda_function;
typedef struct CUstream_st *cuda_stream;
typedef struct CUevent_st *cuda_event;
typedef struct CUgraph_st *cuda_graph;
typedef struct CUgraphExec_st *cuda_graph_exec;
/* Memory of the card. The interface has a 64-bit number; pointers have the same size and are passed alike. */
typedef void *cuda_address;

enum {
    CUDA_OK = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_NO_PTX_COMPILER = 221,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600, /* of a query: the work is not done */
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_UNKNOWN = 999,
};

enum cuda_device_attribute {
    CUDA_CLOCK_KHZ = 13,
    CUDA_MULTIPROCESSORS = 16,
    CUDA_MEMORY_CLOCK_KHZ = 36,
    CUDA_MEMORY_BUS_BITS = 37,
    CUDA_LEVEL_MAJOR = 75,
    CUDA_LEVEL_MINOR = 76,
    CUDA_SHARED_BYTES_OPTIN = 97, /* of a block, if a function requests it */
};

enum {
    CUDA_FUNCTION_STATIC_SHARED_BYTES = 1,
    CUDA_FUNCTION_DYNAMIC_SHARED_BYTES = 8, /* attribute: the most that a launch may request */
    CUDA_STREAM_NON_BLOCKING = 1,           /* does not wait for the legacy default stream */
    CUDA_EVENT_DISABLE_TIMING = 2,
    CUDA_CAPTURE_THREAD_LOCAL = 1,
    CUDA_JIT_ERROR_LOG_BUFFER = 5,
    CUDA_JIT_ERROR_LOG_BUFFER_BYTES = 6,
};

/* F(field, symbol, arguments) */
#define CUDA_DRIVER_FUNCTIONS(F)                                                                             \
    F(init, "cuInit", (unsigned flags))                                                                      \
    F(driver_version, "cuDriverGetVersion", (int *version))                                                  \
    F(error_name, "cuGetErrorName", (cuda_result error, const char **text))                                  \
    F(error_string, "cuGetErrorString", (cuda_result error, const char **text))                              \
    F(device_count, "cuDeviceGetCount", (int *n))                                                            \
    F(device_get, "cuDeviceGet", (cuda_device * device, int ordinal))                                        \
    F(device_name, "cuDeviceGetName", (char *name, int n_bytes, cuda_device device))                         \
    F(device_memory, "cuDeviceTotalMem_v2", (size_t * n_bytes, cuda_device device))                          \
    F(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, cuda_device device))             \
    F(context_retain, "cuDevicePrimaryCtxRetain", (cuda_context * context, cuda_device device))              \
    F(context_release, "cuDevicePrimaryCtxRelease_v2", (cuda_device device))                                 \
    F(context_set, "cuCtxSetCurrent", (cuda_context context))                                                \
    F(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))                           \
    F(memory_new, "cuMemAlloc_v2", (cuda_address * memory, size_t n_bytes))                                  \
    F(memory_free, "cuMemFree_v2", (cuda_address memory))                                                    \
    F(pinned_new, "cuMemHostAlloc", (void **memory, size_t n_bytes, unsigned flags))                         \
    F(pinned_free, "cuMemFreeHost", (void *memory))                                                          \
    F(copy_in, "cuMemcpyHtoDAsync_v2",                                                                       \
      (cuda_address to, const void *from, size_t n_bytes, cuda_stream stream))                               \
    F(copy_out, "cuMemcpyDtoHAsync_v2", (void *to, cuda_address from, size_t n_bytes, cuda_stream stream))   \
    F(copy_within, "cuMemcpyDtoDAsync_v2",                                                                   \
      (cuda_address to, cuda_address from, size_t n_bytes, cuda_stream stream))                              \
    F(fill, "cuMemsetD8Async", (cuda_address to, unsigned char byte, size_t n_bytes, cuda_stream stream))    \
    F(stream_new, "cuStreamCreate", (cuda_stream * stream, unsigned flags))                                  \
    F(stream_free, "cuStreamDestroy_v2", (cuda_stream stream))                                               \
    F(stream_wait, "cuStreamSynchronize", (cuda_stream stream))                                              \
    F(stream_query, "cuStreamQuery", (cuda_stream stream))                                                   \
    F(event_new, "cuEventCreate", (cuda_event * event, unsigned flags))                                      \
    F(event_free, "cuEventDestroy_v2", (cuda_event event))                                                   \
    F(event_record, "cuEventRecord", (cuda_event event, cuda_stream stream))                                 \
    F(event_wait, "cuEventSynchronize", (cuda_event event))                                                  \
    F(event_query, "cuEventQuery", (cuda_event event))                                                       \
    F(event_elapsed, "cuEventElapsedTime", (float *milliseconds, cuda_event begin, cuda_event end))          \
    F(stream_follow, "cuStreamWaitEvent", (cuda_stream stream, cuda_event event, unsigned flags))            \
    F(capture_begin, "cuStreamBeginCapture_v2", (cuda_stream stream, int mode))                              \
    F(capture_end, "cuStreamEndCapture", (cuda_stream stream, cuda_graph * graph))                           \
    F(graph_instantiate, "cuGraphInstantiateWithFlags",                                                      \
      (cuda_graph_exec * exec, cuda_graph graph, unsigned long long flags))                                  \
    F(graph_free, "cuGraphDestroy", (cuda_graph graph))                                                      \
    F(graph_exec_free, "cuGraphExecDestroy", (cuda_graph_exec exec))                                         \
    F(graph_launch, "cuGraphLaunch", (cuda_graph_exec exec, cuda_stream stream))                             \
    F(module_load, "cuModuleLoadDataEx",                                                                     \
      (cuda_module * module, const void *image, unsigned n_options, int *options, void **values))            \
    F(module_unload, "cuModuleUnload", (cuda_module module))                                                 \
    F(module_function, "cuModuleGetFunction",                                                                \
      (cuda_function * function, cuda_module module, const char *name))                                      \
    F(function_get, "cuFuncGetAttribute", (int *value, int attribute, cuda_function function))               \
    F(function_set, "cuFuncSetAttribute", (cuda_function function, int attribute, int value))                \
    F(launch, "cuLaunchKernel",                                                                              \
      (cuda_function function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,   \
       unsigned threads_z, unsigned shared_bytes, cuda_stream stream, void **params, void **extra))

/* A launch with attributes, as in cuda.h. CUDA_MAY_OVERLAP: the kernel may begin while the one before it still runs, and waits for that
 * itself. */
enum { CUDA_MAY_OVERLAP = 6 };
struct cuda_launch_attribute {
    int id;
    char unused[4];
    union {
        int is_allowed;
        char bytes[64];
    } value;
};
struct cuda_launch_config {
    unsigned x, y, z, threads_x, threads_y, threads_z, shared_bytes;
    cuda_stream stream;
    struct cuda_launch_attribute *attributes;
    unsigned n_attributes;
};

/* Functions of later drivers: NULL in earlier ones. */
#define CUDA_LATER_FUNCTIONS(F)                                                                              \
    F(launch_with, "cuLaunchKernelEx",                                                                       \
      (const struct cuda_launch_config *config, cuda_function function, void **params, void **extra))

struct cuda_driver {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): arguments has its own */
#define CUDA_DRIVER_FIELD(field, symbol, arguments) cuda_result(*field) arguments;
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_FIELD)
    CUDA_LATER_FUNCTIONS(CUDA_DRIVER_FIELD)
#undef CUDA_DRIVER_FIELD
    int version; /* of CUDA: 1000 * major + 10 * minor */
};

/* Opens the driver once for the process: *out is valid until the process ends. A failure is not remembered.
 * TUTTI_E_UNSUPPORTED with param device: there is no driver, or it is too old. */
MUST_CHECK enum tutti_status cuda_driver_open(const struct cuda_driver **out, struct tutti_error *err);

/* Sets the error of a failed call. doing: what was tried, such as "loading the kernels". TUTTI_E_MEMORY: the card is out
 * of memory; TUTTI_E_UNSUPPORTED: the driver cannot do it; else TUTTI_E_IO. */
enum tutti_status cuda_driver_error(const struct cuda_driver *driver, cuda_result result, const char *doing,
                                    struct tutti_error *err);

#endif
