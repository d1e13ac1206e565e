/* Splits a checkpoint over ranks, merges a sharded one, or reshards it. See docs/sharding.md.
 *
 * Every element is read twice: first to compare the files with the source's manifests, or without
 * manifests for the model's fingerprint; then to write it. Neither the model nor a whole tensor is
 * ever in memory, except for sources that reorder tensors when reading (PyTorch views). */
#ifndef TUTTI_FLEET_SHARD_H
#define TUTTI_FLEET_SHARD_H

#include "base/files/digest.h"

struct shard_options {
    int n_ranks;                                                 /* 1: write a whole checkpoint */
    void (*progress)(void *user, uint64_t done, uint64_t total); /* NULL: none */
    void *user;
};

struct shard_report {
    char fingerprint[DIGEST_TEXT_BYTES];
    size_t n_tensors;
    uint64_t model_bytes;    /* of the whole tensors */
    uint64_t rank_bytes_min; /* of the tensors of the rank with the fewest, and with the most */
    uint64_t rank_bytes_max;
    int n_ranks;
};

/* Writes dst, a folder that appears when it is complete. src: any checkpoint of plain types.
 * TUTTI_E_ARGUMENT: the model cannot be split over so many ranks, or dst exists.
 * TUTTI_E_UNSUPPORTED: a GGUF file, or quantized weights. TUTTI_E_FORMAT: the source's bytes do
 * not match its manifest; the error names the file. */
MUST_CHECK enum tutti_status shard_write(struct shard_report *report, const char *src, const char *dst,
                                         const struct shard_options *options, struct tutti_error *err);

/* Verifies every byte of a checkpoint against its manifest. */
MUST_CHECK enum tutti_status shard_check(struct shard_report *report, const char *path,
                                         const struct shard_options *options, struct tutti_error *err);

#endif
