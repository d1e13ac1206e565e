/* A checkpoint, whatever its format: named tensors in mapped files, and its configuration.
 *
 * checkpoint_open() knows a format by what lies at the path: a GGUF file; a folder with config.json and weights in
 * safetensors, PyTorch's or MindSpore's files (single, or sharded by an index); a folder of ranks, by MindSpore or by tutti shard; or
 * such a file with config.json beside it.
 * Little is copied: tensors point into the mappings, or say how they are put together.
 * Every size and offset was checked against the file when a checkpoint is open. */
#ifndef TUTTI_CHECKPOINT_H
#define TUTTI_CHECKPOINT_H

#include "checkpoint/tensor.h"

#include <jansson.h>

struct checkpoint;
struct gguf;
struct shards;         /* checkpoint/shards/shards.h */
struct shard_manifest; /* checkpoint/shards/shard_manifest.h */

/* On success *out is the caller's, for checkpoint_close(). Errors name file, tensor or key, found and expected. */
MUST_CHECK enum tutti_status checkpoint_open(struct checkpoint **out, const char *path,
                                             struct tutti_error *err);
void checkpoint_close(struct checkpoint *ck); /* NULL is allowed */

/* What one of n_ranks ranks needs: of a checkpoint that tutti shard cut for as many, that rank's folder alone, with tensors that are the
 * rank's parts (checkpoint_shard() is not NULL); of any other the whole, as checkpoint_open() opens it. Ranks on different machines
 * may have different folders: who runs them together compares the manifests' fingerprints. */
MUST_CHECK enum tutti_status checkpoint_open_rank(struct checkpoint **out, const char *path, int rank,
                                                  int n_ranks, struct tutti_error *err);

/* Everything below is borrowed, and lives as long as the checkpoint. */

const char *checkpoint_path(const struct checkpoint *ck);
const char *checkpoint_folder(const struct checkpoint *ck); /* NULL: a GGUF file */
size_t checkpoint_n_tensors(const struct checkpoint *ck);
const struct tensor *checkpoint_tensor(const struct checkpoint *ck, size_t index);   /* in the files' order */
const struct tensor *checkpoint_find(const struct checkpoint *ck, const char *name); /* NULL: there is none */

/* The same, and marks the tensor as used, so that unused tensors can be reported. For one thread at a time. */
const struct tensor *checkpoint_take(const struct checkpoint *ck, const char *name);
bool checkpoint_is_taken(const struct checkpoint *ck, size_t index);

/* Whether another process prints the warnings: it was opened for a rank other than the first. */
bool checkpoint_is_quiet(const struct checkpoint *ck);

/* config.json as it is; for GGUF an object that holds every scalar of its metadata under its full key, for example
 * "llama.embedding_length". (Arrays: gguf.h.) Never NULL. */
const json_t *checkpoint_config(const struct checkpoint *ck);
const char *checkpoint_config_path(const struct checkpoint *ck); /* of the file that says it, for messages */

/* NULL: not a GGUF file. Arrays such as the vocabulary are read through gguf.h. */
const struct gguf *checkpoint_gguf(const struct checkpoint *ck);

/* Whose part this is. NULL: it is whole. */
const struct shard_manifest *checkpoint_shard(const struct checkpoint *ck);

/* The sharded checkpoint that is read as a whole here. NULL: another format, or one rank's part. */
const struct shards *checkpoint_shards(const struct checkpoint *ck);

/* Another JSON file of the folder ("tokenizer_config.json"). *out: the caller's reference; NULL with TUTTI_OK where
 * there is no such file (or the checkpoint is a GGUF file). */
MUST_CHECK enum tutti_status checkpoint_json(const struct checkpoint *ck, const char *file, json_t **out,
                                             struct tutti_error *err);

#endif
