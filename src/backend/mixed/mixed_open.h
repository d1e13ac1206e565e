/* Opens a card and the CPU as one backend. */
#ifndef TUTTI_BACKEND_MIXED_MIXED_OPEN_H
#define TUTTI_BACKEND_MIXED_MIXED_OPEN_H

#include "backend/backend.h"

/* options->placement says which weights the card has. ordinal: of the card, as in backend_cuda_new(). See backend_open().
 * TUTTI_E_UNSUPPORTED with param device: as backend_cuda_new(), or there are several ranks. */
MUST_CHECK enum tutti_status backend_mixed_new(struct backend **out, int ordinal,
                                               const struct backend_options *options,
                                               struct tutti_error *err);

#endif
