/* Reads a checkpoint that tutti shard split over ranks: FOLDER/rank_0, FOLDER/rank_1, …, each
 * with shard.json (shard_manifest.h), one file of tensors, and the model's configuration and
 * tokenizer.
 *
 * Opened as a whole, a tensor is assembled from its parts when it is read. Opened as one rank, no
 * other folder is used. Opening checks that a folder belongs to this model and this rank; it does
 * not verify checksums, which would read every byte twice. */
#ifndef TUTTI_CHECKPOINT_SHARDS_SHARDS_H
#define TUTTI_CHECKPOINT_SHARDS_SHARDS_H

#include "checkpoint/shards/shard_manifest.h"
#include "checkpoint/tensor_set.h"

struct shards;

/* All ranks. TUTTI_E_NOT_FOUND: a rank's folder or file is missing. TUTTI_E_FORMAT: a folder belongs
 * to another rank or another model; the error names it. */
extern const struct checkpoint_format SHARDS_FORMAT;

/* Opens one rank: its tensors are the parts that it holds. */
MUST_CHECK enum tutti_status shards_open_rank(struct tensor_set **out, const char *folder, int rank,
                                              struct tutti_error *err);

/* NULL: the set has another format. The rest is borrowed, and lives as long as the set. */
const struct shards *shards_of(const struct tensor_set *set);

/* Whether all ranks are open. */
bool shards_is_whole(const struct shards *shards);

/* rank: any of the open ranks. */
const struct shard_manifest *shards_manifest(const struct shards *shards, int rank);

/* FOLDER/rank_N. */
void shards_rank_folder(char *out, size_t size, const char *folder, int rank);

#endif
