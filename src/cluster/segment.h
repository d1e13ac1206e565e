/* Shared memory of one rank that other ranks on its machine read: vectors are summed there without
 * being sent.
 *
 * It is a memory file (memfd) without a name in any folder, so nothing is left of it however the
 * process ends. Others open it through /proc, by process and descriptor; a random number at its
 * head shows that it is the right one. */
#ifndef TUTTI_CLUSTER_SEGMENT_H
#define TUTTI_CLUSTER_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What other ranks need to open a segment: plain memory that is sent to them. */
struct segment_card {
    uint8_t nonce[16];
    uint64_t n_bytes;
    int32_t pid, fd; /* fd -1: there is no segment */
};

struct segment {
    void *memory; /* NULL: none. Aligned to 64 bytes; zeroed when created */
    size_t n_bytes;
    int fd; /* -1: closed */
};

/* Creates a segment. False: the system has no memory; *segment and *card are then marked as none. */
bool segment_new(struct segment *segment, struct segment_card *card, size_t n_bytes);
/* Maps another rank's segment for reading. False: it cannot be opened from here. */
bool segment_find(struct segment *segment, const struct segment_card *card);
/* Closes the descriptor after all ranks have mapped the segment; the memory stays. */
void segment_hide(struct segment *segment);
/* A segment that was never created is {NULL, 0, -1} or zeroed with fd -1. */
void segment_free(struct segment *segment);

#endif
