/* Finds and loads the module that holds the message-passing library, so that a process which is alone carries none of it. */
#ifndef TUTTI_CLUSTER_MODULE_H
#define TUTTI_CLUSTER_MODULE_H

#include "base/error.h"
#include "cluster/transport.h"

/* On success *out is the caller's, for its close(). TUTTI_E_UNSUPPORTED: there is no module, or it does not fit the machine.
 * TUTTI_E_ARGUMENT: no launcher started this process. */
MUST_CHECK enum tutti_status module_open(struct transport **out, struct tutti_error *err);

#endif
