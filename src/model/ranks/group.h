/* Tensor parallelism: several ranks run one model; rank 0 leads, the others follow.
 *
 * Each rank holds its slice of every matrix (split.h) and its KV heads, in the same number of
 * pages. Rank 0 broadcasts each operation on the model (steps, KV memory, sizes) in one message,
 * and the others repeat it: so users of a model need not know about ranks. Inside a step all
 * ranks take part in the all-reduce after attention and after the feed-forward layer. Where the backend
 * feeds_tokens(), the others submit a step as soon as they have its message, as rank 0 does. */
#ifndef TUTTI_MODEL_RANKS_GROUP_H
#define TUTTI_MODEL_RANKS_GROUP_H

#include "backend/page_tables.h"
#include "cluster/cluster.h"
#include "model/ranks/split.h"

struct group {
    struct cluster *cluster; /* borrowed */
    struct split split;
    int vocab_begins[CLUSTER_MAX_RANKS +
                     1]; /* first id of each rank's part of the vocabulary, then the end */
    int32_t *plan;       /* [n_room] the message that is broadcast */
    size_t n_room;
    struct page_tables page_tables; /* of rank 0: as the other ranks have them; they: of rank 0 */
    const int32_t **tables;         /* [n_room / 4] followers only: the step's, in page_tables */
    int32_t *copies;                /* struct page_copy of the pages copied since the last step */
    int n_copies;
    bool has_kv;
    bool is_in_flight;       /* followers: a step that was submitted may not be computed yet */
    bool is_joined, is_over; /* every rank has loaded the model; rank 0 sent its last message */
};

/* Sets model->group if options->ranks has several ranks. */
MUST_CHECK enum tutti_status group_open(struct model *model, const struct tutti_model_options *options,
                                        struct tutti_error *err);
void group_free(struct group *group); /* NULL is allowed */

/* Agrees on the status of an operation of all ranks, such as loading. st: this rank's status. If
 * loading fails on one rank, all ranks fail. */
MUST_CHECK enum tutti_status group_join(struct model *model, enum tutti_status st, struct tutti_error *err);

/* Checks that all ranks opened parts of the same sharded checkpoint. Every rank must call it,
 * with the status st of opening its own. shard: NULL if this rank's checkpoint is whole.
 * *max_context, an option of the model, becomes rank 0's. */
MUST_CHECK enum tutti_status group_check_shard(const struct model *model, enum tutti_status st,
                                               const struct shard_manifest *shard, int *max_context,
                                               struct tutti_error *err);

/* Splits model->desc over the ranks, once the block sizes of its weights are known: sets
 * model->local. */
MUST_CHECK enum tutti_status group_cut(struct model *model, const struct split_blocks *blocks,
                                       struct tutti_error *err);

/* On rank 0, from model_reserve(), model_submit(), model_submit_mtp() and model_store_hidden(): broadcasts the
 * call. previous: of model_submit_mtp(), else NULL. False: a rank was lost. */
bool group_lead_reserve(struct group *group, int max_rows, int max_outputs);
bool group_lead_step(struct group *group, const struct step *step, const int32_t *previous, int page_tokens);
bool group_lead_hidden(struct group *group, const int32_t *rows, const int32_t *page_ids, int n);

/* Whether each rank keeps the residual stream of only some rows of this step (reduce-scatter and
 * all-gather instead of all-reduce). True: *begin and *end are this rank's rows; false: they are
 * untouched. */
bool group_own_rows(const struct group *group, int n_rows, int d_model, int *begin, int *end);

/* Ends the group. Rank 0 sends its last message; the other ranks, if they did not follow, wait
 * for it. So all ranks end together. */
void group_end(struct group *group);

#endif
