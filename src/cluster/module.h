/* Finds and loads the shared module with the MPI library, so that a single process does not load
 * MPI. */
#ifndef TUTTI_CLUSTER_MODULE_H
#define TUTTI_CLUSTER_MODULE_H

#include "base/error.h"
#include "cluster/transport.h"

/* On success *out is the caller's, for its close(). TUTTI_E_UNSUPPORTED: the module was not found,
 * or it does not fit the machine. TUTTI_E_ARGUMENT: the process was not started by a launcher. */
MUST_CHECK enum tutti_status module_open(struct transport **out, struct tutti_error *err);

#endif
