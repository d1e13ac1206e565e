/* Reads a checkpoint that MindSpore saved from several devices: FOLDER/rank_0/NAME.ckpt,
 * FOLDER/rank_1/NAME.ckpt, ... If a folder has several files, the last by name is used. Strategy
 * files in FOLDER, FOLDER/strategy or FOLDER/../strategy describe how tensors are split; a single
 * device needs none. A tensor is assembled from its parts when it is read. */
#ifndef TUTTI_CHECKPOINT_MINDSPORE_MINDSPORE_RANKS_H
#define TUTTI_CHECKPOINT_MINDSPORE_MINDSPORE_RANKS_H

#include "checkpoint/checkpoint.h"

struct mindspore_ranks;

/* Whether a folder has a subfolder rank_0. */
bool mindspore_ranks_is(const char *folder);

/* On success *out is the caller's. TUTTI_E_NOT_FOUND: a rank is missing, or the strategy.
 * TUTTI_E_FORMAT: ranks and strategy do not match; the error names files and tensors. */
MUST_CHECK enum tutti_status mindspore_ranks_open(struct mindspore_ranks **out, const char *folder,
                                                  struct tutti_error *err);
void mindspore_ranks_close(struct mindspore_ranks *ranks); /* NULL is allowed */

size_t mindspore_ranks_n_tensors(const struct mindspore_ranks *ranks);
const struct tensor *mindspore_ranks_tensor(const struct mindspore_ranks *ranks, size_t index);

#endif
