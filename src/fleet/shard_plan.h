/* Shared by shard.c and shard_write.c: the source, and the parts of each rank. */
#ifndef TUTTI_FLEET_SHARD_PLAN_H
#define TUTTI_FLEET_SHARD_PLAN_H

#include "checkpoint/shards/shards.h"
#include "fleet/shard.h"
#include "model/description/family.h"
#include "model/ranks/split.h"

enum { SHARD_CHUNK_BYTES = 4 << 20 }; /* read, hashed and written at a time; at least one row */

struct shard_item {
    const struct tensor *tensor;
    struct split_tensor split;
    int dim; /* -1: every rank has all of it */
};

struct shard_plan {
    struct checkpoint *ck;
    const struct family *family;
    struct model_desc desc;
    struct split *splits; /* [n_ranks] */
    int n_ranks;
    struct shard_item *items; /* [n_items] */
    size_t n_items;
    char fingerprint[DIGEST_TEXT_BYTES];
    struct shard_manifest *own_manifest;   /* owned: of a whole source */
    const struct shard_manifest *manifest; /* the expected content of the source; NULL: unknown */
    struct digest *digest;
    uint8_t *chunk; /* [chunk_bytes] */
    size_t chunk_bytes;
    const struct shard_options *options;
    uint64_t model_bytes; /* of the whole tensors */
    uint64_t done, total; /* bytes, for progress */
};

/* Rows of a tensor that fit into the chunk, at least 1. */
int64_t shard_chunk_rows(const struct shard_plan *plan, size_t row_bytes);

void shard_progress(struct shard_plan *plan, uint64_t n_bytes);

/* A rank's part of an item: runs of item->dim, which is not -1. */
struct split_part shard_part(const struct shard_plan *plan, const struct shard_item *item, int rank);

/* Writes everything of all ranks to dst. */
MUST_CHECK enum tutti_status shard_write_all(struct shard_plan *plan, struct shard_report *report,
                                             const char *dst, struct tutti_error *err);

#endif
