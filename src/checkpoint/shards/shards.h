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

struct shards;

/* Whether a folder has rank_0 with a manifest. */
bool shards_is(const char *folder);

/* Opens all ranks. On success *out is the caller's. TUTTI_E_NOT_FOUND: a rank's folder or file is
 * missing. TUTTI_E_FORMAT: a folder belongs to another rank or another model; the error names it. */
MUST_CHECK enum tutti_status shards_open(struct shards **out, const char *folder, struct tutti_error *err);

/* Opens one rank: its tensors are the parts that it holds. */
MUST_CHECK enum tutti_status shards_open_rank(struct shards **out, const char *folder, int rank,
                                              struct tutti_error *err);
void shards_close(struct shards *shards); /* NULL is allowed */

size_t shards_n_tensors(const struct shards *shards);
const struct tensor *shards_tensor(const struct shards *shards, size_t index);

/* Borrowed. rank: any of the open ranks. */
const struct shard_manifest *shards_manifest(const struct shards *shards, int rank);

/* FOLDER/rank_N. */
void shards_rank_folder(char *out, size_t size, const char *folder, int rank);

#endif
