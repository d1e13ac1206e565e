/* Cuts a checkpoint over ranks, puts one together that is cut, or cuts it in another way. docs/sharding.md
 *
 * Every element is read twice: once for the checksums of whole tensors, which make the model's fingerprint and are held against the
 * source's manifest where it has one, then to be written. Neither the model nor a tensor of it is ever wholly in memory, but for
 * sources that put tensors in another order as they read them (PyTorch's views). */
#ifndef TUTTI_FLEET_SHARD_H
#define TUTTI_FLEET_SHARD_H

#include "fleet/digest.h"

struct shard_options {
    int n_ranks;                                                 /* 1: a checkpoint that is whole */
    void (*progress)(void *user, uint64_t done, uint64_t total); /* NULL: none */
    void *user;
};

struct shard_report {
    char fingerprint[DIGEST_TEXT_BYTES];
    size_t n_tensors;
    uint64_t model_bytes;    /* of the whole tensors */
    uint64_t rank_bytes_min; /* of the tensors of the rank with the fewest, and with the most */
    uint64_t rank_bytes_max;
    int n_source_ranks, n_ranks;
};

/* Writes dst, a folder that appears when it is complete. src: any checkpoint of plain types. TUTTI_E_ARGUMENT: the model cannot be dealt
 * out over so many ranks, or dst is there already. TUTTI_E_UNSUPPORTED: a GGUF file, or quantized weights. TUTTI_E_FORMAT: the source's
 * bytes are not those that its manifest tells of; file and tensor are named. */
MUST_CHECK enum tutti_status shard_write(struct shard_report *report, const char *src, const char *dst,
                                         const struct shard_options *options, struct tutti_error *err);

/* Holds every byte of a checkpoint that has a manifest against it. */
MUST_CHECK enum tutti_status shard_check(struct shard_report *report, const char *path,
                                         const struct shard_options *options, struct tutti_error *err);

#endif
