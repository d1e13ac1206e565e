/* Opens the CUDA backend: a card of NVIDIA's. */
#ifndef TUTTI_BACKEND_CUDA_CUDA_OPEN_H
#define TUTTI_BACKEND_CUDA_CUDA_OPEN_H

#include "backend/backend.h"

extern const struct backend_caps CUDA_CAPS;

/* Opens the card with the most memory, or with an ordinal the card of this number, in the driver's order: see
 * backend_open(). TUTTI_E_UNSUPPORTED with param device: no driver, no such card, or this build has no kernels. */
enum { CUDA_ANY_CARD = -1 };
MUST_CHECK enum tutti_status backend_cuda_new(struct backend **out, int ordinal,
                                              const struct backend_options *options, struct tutti_error *err);

/* See backend_devices(). */
MUST_CHECK enum tutti_status cuda_devices(struct tutti_device *out, int max, int *n, struct tutti_error *err);

#endif
