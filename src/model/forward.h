/* The scratch memory of model_forward(), and the choice of its backend. */
#ifndef TUTTI_MODEL_FORWARD_H
#define TUTTI_MODEL_FORWARD_H

#include "model/model.h"

struct workspace;
void workspace_free(struct workspace *workspace, struct backend *be); /* NULL is allowed */

/* Fills model->rope_freqs. False: out of memory. */
bool model_alloc_rope_freqs(struct model *model);

#endif
