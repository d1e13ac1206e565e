/* Opens the CPU backend, whose memory is the host's. */
#ifndef TUTTI_BACKEND_CPU_CPU_OPEN_H
#define TUTTI_BACKEND_CPU_CPU_OPEN_H

#include "backend/backend.h"

extern const struct backend_caps CPU_CAPS;

/* See backend_open(). */
MUST_CHECK enum tutti_status backend_cpu_new(struct backend **out, const struct backend_options *options,
                                             struct tutti_error *err);

/* The address of n floats, for other backends. */
float *cpu_host_floats(struct floats floats, size_t n);

#endif
