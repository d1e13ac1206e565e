/* Opens a checkpoint of any supported format: named tensors in mapped files, and the
 * configuration.
 *
 * checkpoint_open() detects the format at the path: a GGUF file; a folder with config.json and
 * weights in safetensors, PyTorch or MindSpore files (single, or several with an index); a folder
 * of ranks, by MindSpore or by tutti shard; or a single weights file with config.json in the same
 * folder. Little is copied: tensors point into the mappings, or describe how they are assembled.
 * Every size and offset is checked against the file when a checkpoint is opened. */
#ifndef TUTTI_CHECKPOINT_H
#define TUTTI_CHECKPOINT_H

#include "checkpoint/tensor.h"

#include <jansson.h>

struct checkpoint;
struct gguf;
struct shards;         /* checkpoint/shards/shards.h */
struct shard_manifest; /* checkpoint/shards/shard_manifest.h */

/* On success *out is the caller's, for checkpoint_close(). Errors name file, tensor or key, found
 * and expected. */
MUST_CHECK enum tutti_status checkpoint_open(struct checkpoint **out, const char *path,
                                             struct tutti_error *err);
void checkpoint_close(struct checkpoint *ck); /* NULL is allowed */

/* Opens what one of n_ranks ranks needs. A checkpoint that tutti shard wrote for as many ranks:
 * only that rank's folder, with the rank's parts as tensors (checkpoint_shard() is not NULL). Any
 * other: the whole, as in checkpoint_open(). Ranks on different machines may have different
 * folders: the caller compares the manifests' fingerprints. */
MUST_CHECK enum tutti_status checkpoint_open_rank(struct checkpoint **out, const char *path, int rank,
                                                  int n_ranks, struct tutti_error *err);

/* Everything below is borrowed, and lives as long as the checkpoint. */

const char *checkpoint_path(const struct checkpoint *ck);
const char *checkpoint_folder(const struct checkpoint *ck); /* NULL: a GGUF file */
size_t checkpoint_n_tensors(const struct checkpoint *ck);
const struct tensor *checkpoint_tensor(const struct checkpoint *ck, size_t index);   /* in the files' order */
const struct tensor *checkpoint_find(const struct checkpoint *ck, const char *name); /* NULL: not found */

/* The same, and marks the tensor as used, so that unused tensors can be reported. One thread at a
 * time. */
const struct tensor *checkpoint_take(const struct checkpoint *ck, const char *name);
bool checkpoint_is_taken(const struct checkpoint *ck, size_t index);

/* Whether another process prints the warnings: it was opened for a rank other than the first. */
bool checkpoint_is_quiet(const struct checkpoint *ck);

/* Whether tensors are named as in a model that was saved without its head (text_part.h). */
bool checkpoint_is_bare(const struct checkpoint *ck);

/* config.json; for GGUF an object with every scalar of the metadata under its full key, for
 * example "llama.embedding_length" (for arrays see gguf.h). Never NULL. */
const json_t *checkpoint_config(const struct checkpoint *ck);
const char *checkpoint_config_path(const struct checkpoint *ck); /* of its file, for messages */

/* NULL: not a GGUF file. Arrays such as the vocabulary are read through gguf.h. */
const struct gguf *checkpoint_gguf(const struct checkpoint *ck);

/* The manifest of the rank whose part this is. NULL: the checkpoint is whole. */
const struct shard_manifest *checkpoint_shard(const struct checkpoint *ck);

/* The sharded checkpoint, if all its ranks are opened as a whole. NULL: another format, or one
 * rank's part. */
const struct shards *checkpoint_shards(const struct checkpoint *ck);

/* Loads another JSON file of the folder ("tokenizer_config.json"). *out: the caller's reference;
 * NULL with TUTTI_OK if there is no such file (or the checkpoint is a GGUF file). */
MUST_CHECK enum tutti_status checkpoint_json(const struct checkpoint *ck, const char *file, json_t **out,
                                             struct tutti_error *err);
/* The same for a file that contains a list ("modules.json"). */
MUST_CHECK enum tutti_status checkpoint_json_list(const struct checkpoint *ck, const char *file, json_t **out,
                                                  struct tutti_error *err);

#endif
