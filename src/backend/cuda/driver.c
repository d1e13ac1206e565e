#include "backend/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The kernels are PTX of version 7.4 at least, which CUDA 11.4 was the first to read. */
enum { LEAST_VERSION = 11040 };

static const char LIBRARY[] = "libcuda.so.1";

#define ADVICE                                                                                               \
    "install NVIDIA's driver; a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility and the card, a " \
    "systemd unit "                                                                                          \
    "DeviceAllow=/dev/nvidia*"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_driver opened;
static bool is_open;

/* Fills the table. Returns the symbol that the library lacks; NULL: none. */
static const char *find_functions(struct cuda_driver *driver, void *library)
{
#define CUDA_DRIVER_FIND(field, symbol, arguments)                                                           \
    *(void **)&driver->field = dlsym(library, symbol);                                                       \
    if (!driver->field)                                                                                      \
        return symbol;
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_FIND)
#undef CUDA_DRIVER_FIND
#define CUDA_DRIVER_FIND(field, symbol, arguments) *(void **)&driver->field = dlsym(library, symbol);
    CUDA_LATER_FUNCTIONS(CUDA_DRIVER_FIND)
#undef CUDA_DRIVER_FIND
    return NULL;
}

/* Whether path is a folder, made if it is not there, that no other user may write: its machine code is executed. */
static bool is_own_folder(const char *path)
{
    struct stat info;
    (void)mkdir(path, 0700);
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == getuid() &&
           (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* The driver stores compiled kernels in its user's home, or in the folder of CUDA_CACHE_PATH: without either it would
 * compile them at each start. A system service often has neither. */
static void set_cache_folder(void)
{
    const char *home = getenv("HOME");
    if (getenv("CUDA_CACHE_PATH") || (home && access(home, W_OK) == 0))
        return;
    const char *cache = getenv("CACHE_DIRECTORY"),
               *temporary = getenv("TMPDIR"); /* CacheDirectory= of a systemd unit */
    char path[4096];
    int n = cache && access(cache, W_OK) == 0
                ? snprintf(path, sizeof path, "%s/cuda", cache)
                : snprintf(path, sizeof path, "%s/tutti-cuda-%u", temporary ? temporary : "/var/tmp",
                           (unsigned)getuid());
    if (n > 0 && (size_t)n < sizeof path && is_own_folder(path))
        (void)setenv("CUDA_CACHE_PATH", path, 0);
}

/* Before the first call of the driver: later, another thread of it may be reading the environment.
 * CUDA_MODULE_LOADING: otherwise a driver may put off compiling until a kernel is launched for the first time, which is in a step.
 * NCCL_GRAPH_REGISTER: ranks may record the graph of a step at different times, so NCCL must not make an agreement of it. */
static void set_environment(void)
{
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    (void)setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

static enum tutti_status open_driver(struct cuda_driver *driver, struct tutti_error *err)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "device", "device cuda: %s; " ADVICE, dlerror());
    const char *missing = find_functions(driver, library);
    if (missing) {
        dlclose(library);
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, "device",
            "device cuda: %s has no %s: the driver is too old, expected one for CUDA %d.%d or later; "
            "update NVIDIA's driver",
            LIBRARY, missing, LEAST_VERSION / 1000, LEAST_VERSION % 1000 / 10);
    }
    set_cache_folder();
    set_environment();
    cuda_result result = driver->init(0);
    if (result == CUDA_ERROR_NO_DEVICE) {
        dlclose(library);
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "device",
                               "device cuda: the driver finds no card; " ADVICE);
    }
    if (result == CUDA_OK)
        result = driver->driver_version(&driver->version);
    if (result != CUDA_OK) {
        struct tutti_error why = { 0 };
        (void)cuda_driver_error(driver, result, "starting the driver", &why);
        dlclose(library); /* the error's texts are the library's */
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "device",
                               "%s; check nvidia-smi; a container needs the card, a "
                               "systemd unit DeviceAllow=/dev/nvidia*",
                               why.text);
    }
    if (driver->version >= LEAST_VERSION)
        return TUTTI_OK;
    int version = driver->version;
    dlclose(library);
    return error_set_param(
        err, TUTTI_E_UNSUPPORTED, "device",
        "device cuda: the driver is for CUDA %d.%d, expected %d.%d or later; update NVIDIA's driver",
        version / 1000, version % 1000 / 10, LEAST_VERSION / 1000, LEAST_VERSION % 1000 / 10);
}

enum tutti_status cuda_driver_open(const struct cuda_driver **out, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    pthread_mutex_lock(&lock);
    if (!is_open)
        st = open_driver(&opened, err);
    is_open = st == TUTTI_OK;
    pthread_mutex_unlock(&lock);
    if (st == TUTTI_OK)
        *out = &opened;
    return st;
}

static bool is_too_old(cuda_result result)
{
    return result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
           result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
}

enum tutti_status cuda_driver_error(const struct cuda_driver *driver, cuda_result result, const char *doing,
                                    struct tutti_error *err)
{
    const char *name = NULL, *text = NULL;
    if (driver->error_name(result, &name) != CUDA_OK || !name)
        name = "unknown error";
    if (driver->error_string(result, &text) != CUDA_OK || !text)
        text = "the driver has no text for it";
    if (is_too_old(result))
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, "device",
            "device cuda: %s: %s (%d): the driver is too old for the kernels of this build, or does not "
            "fit the kernel's module; update NVIDIA's driver (this one is for CUDA %d.%d)",
            doing, name, result, driver->version / 1000, driver->version % 1000 / 10);
    if (result == CUDA_ERROR_NO_PTX_COMPILER)
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, "device",
            "device cuda: %s: %s (%d): the driver's libnvidia-ptxjitcompiler.so.1 is missing; a container "
            "needs NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            doing, name, result);
    enum tutti_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? TUTTI_E_MEMORY : TUTTI_E_IO;
    return error_set(err, status, "device cuda: %s: %s (%d): %s", doing, name, result, text);
}
