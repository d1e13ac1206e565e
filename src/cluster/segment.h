/* Memory of one rank that the others of its machine read: vectors are summed there without being sent.
 *
 * It is a memory file without a name in any folder, so nothing is left of it whatever a process ends with. Others find it through
 * /proc, by process and descriptor; a random number at its head tells that it is the one that was meant. */
#ifndef TUTTI_CLUSTER_SEGMENT_H
#define TUTTI_CLUSTER_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the others must know to find one: plain memory that is sent to them. */
struct segment_card {
    uint8_t nonce[16];
    uint64_t n_bytes;
    int32_t pid, fd; /* fd -1: there is none */
};

struct segment {
    void *memory; /* NULL: none. Aligned to 64 bytes; of one's own zeroed */
    size_t n_bytes;
    int fd; /* -1: closed */
};

/* One's own. False: the system has none to give, *segment and *card then say so, too. */
bool segment_new(struct segment *segment, struct segment_card *card, size_t n_bytes);
/* Another rank's, to be read. False: it cannot be found here. */
bool segment_find(struct segment *segment, const struct segment_card *card);
/* When all have found it: the memory stays. */
void segment_hide(struct segment *segment);
void segment_free(
    struct segment *segment); /* one that was never made is {NULL, 0, -1} or zeroed with fd -1 */

#endif
