/* Reads shard.json, the manifest of one rank's folder in a sharded checkpoint.
 *
 *     { "format": "tutti shard", "version": 3, "fingerprint": "…", "n_ranks": 4, "rank": 1,
 *       "family": "llama",
 *       "strategy": { "kinds": [ { "heads": [8, 16], "kv_heads": [2, 4], "ffn": [2752, 5504] } ],
 *                     "vocab": [8000, 16000] },
 *       "files": [ { "name": "model.safetensors", "bytes": 123, "sha256": "…" }, … ],
 *       "tensors": [ { "name": "…", "dtype": "bf16", "shape": [4096, 4096],
 *                      "dim": 0, "runs": [[1024, 2048]] }, … ] }
 *
 * strategy has the ranges that this rank owns: for each kind of layers, and of the vocabulary. shape
 * is that of the whole tensor. The rank holds the given runs of dimension dim, concatenated, or the
 * whole tensor if there is no dim. The first file has the tensors, the others are configuration and
 * tokenizer. All ranks list the same tensors in the same order. The checksum of each file detects
 * damage. The fingerprint identifies the model: it is the SHA-256 of all whole tensors, sorted by
 * name, each as the line "NAME DTYPE SHAPE\n" followed by its bytes.
 *
 * Older versions are read. Versions 1 and 2 have the members of the only kind directly in strategy.
 * Version 1 also has checksums of tensors, which are ignored, and a fingerprint made of those. */
#ifndef TUTTI_CHECKPOINT_SHARDS_SHARD_MANIFEST_H
#define TUTTI_CHECKPOINT_SHARDS_SHARD_MANIFEST_H

#include "checkpoint/tensor.h"

#include <jansson.h>

#define SHARD_MANIFEST_FILE   "shard.json"
#define SHARD_MANIFEST_FORMAT "tutti shard"
enum {
    SHARD_MANIFEST_VERSION = 3,
    SHARD_FINGERPRINT_VERSION = 2, /* the first version with the fingerprint above */
    SHARD_KINDS_VERSION = 3,       /* the first version whose strategy lists kinds of layers */
    SHARD_MAX_RUNS = 8,
    SHARD_DIGEST_CHARS = 64
};

struct shard_tensor {
    const char *name;
    enum dtype dtype;
    int n_dims;
    int64_t shape[LIMIT_TENSOR_DIMS]; /* of the whole */
    int dim;                          /* -1: not split */
    int n_runs;
    int64_t runs[SHARD_MAX_RUNS][2]; /* begin, end; not empty, ascending, without overlap */
    int64_t n_part;                  /* elements of dim in all runs */
};

struct shard_file {
    const char *name; /* plain, or in a subfolder of the rank's folder */
    int64_t n_bytes;
    const char *sha256;
};

struct shard_manifest {
    json_t *root; /* owns the memory that all pointers here refer to */
    char *path;
    const char *fingerprint, *family;
    int version, n_ranks, rank;
    const json_t *strategy;   /* an object */
    struct shard_file *files; /* [n_files], at least 1 */
    size_t n_files;
    struct shard_tensor *tensors; /* [n_tensors] */
    size_t n_tensors;
};

/* Reads FOLDER/shard.json. *out: the caller's; NULL with TUTTI_OK if there is none.
 * TUTTI_E_FORMAT: the error names file and field. */
MUST_CHECK enum tutti_status shard_manifest_read(struct shard_manifest **out, const char *folder,
                                                 struct tutti_error *err);
void shard_manifest_free(struct shard_manifest *manifest); /* NULL is allowed */

#endif
