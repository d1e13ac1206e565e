#include "cluster/module.h"

#include "cluster/module_dir.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE_NAME "tutti-mpi.so"

/* The folder of the program, in text of size bytes; "" if it is unknown. */
static void program_folder(char *folder, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", folder, size - 1);
    folder[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
}

/* Looks in the program's folder, as after a build, then in the install path. False: not found. */
static bool find_module(char *path, size_t size)
{
    char folder[PATH_MAX];
    program_folder(folder, sizeof folder);
    const char *const folders[] = { folder, TUTTI_MODULE_DIR };
    for (int i = 0; i < 2; i++)
        if (folders[i][0] == '/' && (size_t)snprintf(path, size, "%s/%s", folders[i], MODULE_NAME) < size &&
            access(path, R_OK) == 0)
            return true;
    return false;
}

/* Environment variables of launchers: Open MPI's mpirun, and those with PMIx or PMI, such as
 * Slurm's srun. */
static bool was_launched(void)
{
    static const char *const NAMES[] = { "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK" };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (getenv(NAMES[i]))
            return true;
    return false;
}

enum tutti_status module_open(struct transport **out, struct tutti_error *err)
{
    char path[PATH_MAX], why[256] = "";
    if (!find_module(path, sizeof path))
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "tp",
                               "this tutti was built without MPI (no %s next to the program or in %s), which "
                               "several ranks need",
                               MODULE_NAME, TUTTI_MODULE_DIR);
    if (!was_launched())
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "tp",
            "several ranks were requested, but this process was not started by a launcher: use mpirun "
            "-n RANKS, or srun");
    /* Global: the MPI library's own plug-ins look for its symbols. */
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!module)
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "tp", "%s", dlerror());
    transport_open_fn *open;
    void *symbol = dlsym(module, TRANSPORT_OPEN_SYMBOL);
    memcpy(&open, &symbol, sizeof open);
    if (!symbol || !open(out, why, sizeof why)) {
        enum tutti_status st = error_set_param(err, TUTTI_E_UNSUPPORTED, "tp", "%s: %s", path,
                                               symbol ? why : "it is not a module of tutti");
        /* Stays loaded: an MPI library that was initialized cannot be unloaded. */
        return st;
    }
    return TUTTI_OK;
}
