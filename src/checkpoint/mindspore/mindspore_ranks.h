/* Reads a checkpoint that MindSpore saved from several devices: FOLDER/rank_0/NAME.ckpt,
 * FOLDER/rank_1/NAME.ckpt, ... If a folder has several files, the last by name is used. Strategy
 * files in FOLDER, FOLDER/strategy or FOLDER/../strategy describe how tensors are split; a single
 * device needs none. A tensor is assembled from its parts when it is read.
 *
 * TUTTI_E_NOT_FOUND: a rank is missing, or the strategy. TUTTI_E_FORMAT: ranks and strategy do not
 * match; the error names files and tensors. */
#ifndef TUTTI_CHECKPOINT_MINDSPORE_MINDSPORE_RANKS_H
#define TUTTI_CHECKPOINT_MINDSPORE_MINDSPORE_RANKS_H

#include "checkpoint/tensor_set.h"

extern const struct checkpoint_format MINDSPORE_RANKS_FORMAT;

#endif
