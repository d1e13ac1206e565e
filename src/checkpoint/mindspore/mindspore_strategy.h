/* Reads MindSpore's strategy files, which describe how a model's tensors are split over devices:
 * ckpt_strategy_rank_N.ckpt (protocol buffers, one for each pipeline stage at least), the same as
 * .json, or the merged_ckpt_strategy.ckpt of all stages. Format:
 * mindspore/ccsrc/utils/node_strategy.proto and
 * mindspore/python/mindspore/parallel/_parallel_serialization.py. */
#ifndef TUTTI_CHECKPOINT_MINDSPORE_MINDSPORE_STRATEGY_H
#define TUTTI_CHECKPOINT_MINDSPORE_MINDSPORE_STRATEGY_H

#include "base/error.h"
#include "base/limits.h"

enum { STRATEGY_AXES = 8 };

/* The devices of a stage form a matrix of n_axes axes, the last varying fastest. Each dimension
 * of a tensor is split along some of these axes. */
struct strategy_layout {
    char *name;
    int stage;
    int n_axes, axes[STRATEGY_AXES]; /* sizes */
    int n_dims;
    struct strategy_cut {
        int n, axes[STRATEGY_AXES]; /* indices into axes, the last varying fastest; none: not split */
    } cuts[LIMIT_TENSOR_DIMS];
    /* Each part is split further along dimension 0, over the devices that would have equal parts;
     * 1: it is not. */
    int n_row_shards;
};

struct strategy {
    struct strategy_layout *layouts; /* [n], sorted by stage and name */
    size_t n, capacity;
    int n_stages; /* 0: nothing was read */
};

/* Reads every strategy file of a folder. The folder may be missing. */
MUST_CHECK enum tutti_status strategy_read_folder(struct strategy *strategy, const char *folder,
                                                  struct tutti_error *err);
void strategy_clear(struct strategy *strategy);

/* NULL: the tensor is not split. */
const struct strategy_layout *strategy_find(const struct strategy *strategy, int stage, const char *name);

int strategy_n_devices(const struct strategy_layout *layout); /* of its stage */

/* The part that a device of the stage holds, in units of its size: [n_dims]. n_parts (may be
 * NULL): of each dimension. */
void strategy_part(const struct strategy_layout *layout, int device, int64_t *part, int64_t *n_parts);

#endif
