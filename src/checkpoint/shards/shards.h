/* A checkpoint cut over ranks, as tutti shard writes it: FOLDER/rank_0, FOLDER/rank_1, …, each with shard.json (shard_manifest.h), one file
 * of tensors, and the model's configuration and tokenizer.
 *
 * Read as a whole, parts are put together when their tensor is read; read as one rank, no other folder is looked at. That a folder
 * is of this model and this rank is checked when it is opened; checksums are not: that would read every byte twice. */
#ifndef TUTTI_CHECKPOINT_SHARDS_SHARDS_H
#define TUTTI_CHECKPOINT_SHARDS_SHARDS_H

#include "checkpoint/shards/shard_manifest.h"

struct shards;

/* True where a folder holds rank_0 with a manifest. */
bool shards_is(const char *folder);

/* All ranks. On success *out is the caller's. TUTTI_E_NOT_FOUND: a rank's folder or file is missing. TUTTI_E_FORMAT: a folder is
 * another rank's, or of another model; it is named. */
MUST_CHECK enum tutti_status shards_open(struct shards **out, const char *folder, struct tutti_error *err);

/* One rank: its tensors are the parts that it holds. */
MUST_CHECK enum tutti_status shards_open_rank(struct shards **out, const char *folder, int rank,
                                              struct tutti_error *err);
void shards_close(struct shards *shards); /* NULL is allowed */

size_t shards_n_tensors(const struct shards *shards);
const struct tensor *shards_tensor(const struct shards *shards, size_t index);

/* Borrowed. rank: any of those that are open. */
const struct shard_manifest *shards_manifest(const struct shards *shards, int rank);

/* The stored part of tensor index of the manifest, as it lies in the file of an open rank. */
const struct tensor *shards_part(const struct shards *shards, int rank, size_t index);

/* FOLDER/rank_N. */
void shards_rank_folder(char *out, size_t size, const char *folder, int rank);

#endif
