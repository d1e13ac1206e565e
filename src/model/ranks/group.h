/* Several ranks that run one model (tensor parallelism): rank 0 leads, the others follow.
 *
 * Each rank holds its own slice of every matrix (split.h) and the KV heads that belong to it, in as many pages as the others. What
 * rank 0 does with the model (steps, KV memory, its sizes) it tells the others in one message each time, and they do the
 * same: so whoever uses a model need not know of ranks. The sums behind attention and the feed-forward layer are made in the
 * middle of a step, by all of them. */
#ifndef TUTTI_MODEL_RANKS_GROUP_H
#define TUTTI_MODEL_RANKS_GROUP_H

#include "cluster/cluster.h"
#include "model/ranks/split.h"

struct group {
    struct cluster *cluster; /* borrowed */
    struct split split;
    int vocab_begins[CLUSTER_MAX_RANKS +
                     1]; /* where each rank's part of the vocabulary begins, then its end */
    int32_t *plan;       /* [n_room] the message */
    size_t n_room;
    const int32_t **tables; /* [n_room / 4] of followers, the page tables in it */
    int32_t *copies;        /* dst, src of pages that were copied since the last step */
    int n_copies;
    bool has_kv;
    bool is_joined, is_over; /* every rank has the model; rank 0 said its last */
};

/* Sets model->group where options->ranks says so. */
MUST_CHECK enum tutti_status group_open(struct model *model, const struct tutti_model_options *options,
                                        struct tutti_error *err);
void group_free(struct group *group); /* NULL is allowed */

/* st: what came of a step that all ranks take, such as loading. A model that one rank cannot have no rank has. */
MUST_CHECK enum tutti_status group_join(struct model *model, enum tutti_status st, struct tutti_error *err);

/* Every rank, whatever came of opening its checkpoint (st): ranks that have parts of a sharded one must have them of the same model. shard:
 * NULL where this one's is whole. */
MUST_CHECK enum tutti_status group_check_shard(const struct model *model, enum tutti_status st,
                                               const struct shard_manifest *shard, struct tutti_error *err);

/* Shares model->desc out, when the blocks of its weights are known: sets model->local. */
MUST_CHECK enum tutti_status group_cut(struct model *model, const struct split_blocks *blocks,
                                       struct tutti_error *err);

/* On rank 0, from model_reserve() and model_forward(): tells the others. False: a rank was lost. */
bool group_lead_reserve(struct group *group, int max_rows, int max_outputs);
bool group_lead_step(struct group *group, const struct step *step);

/* Whether a step's ranks keep the stream of some rows each, and which are this one's; *begin, *end untouched where not. */
bool group_own_rows(const struct group *group, int n_rows, int d_model, int *begin, int *end);

/* Rank 0 has no more to say; the others, if they have not followed, wait for that. Then all have come to an end together. */
void group_end(struct group *group);

#endif
