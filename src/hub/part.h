/* A file that is being downloaded: its bytes in segments, which of them are on disk, and its checksum.
 *
 * What is there survives the end of the process at any moment: a state file counts the bytes of each
 * segment after they were written. The checksum is computed from the start while later segments arrive,
 * and decides: bytes that a crash of the machine damaged are downloaded again. */
#ifndef TUTTI_HUB_PART_H
#define TUTTI_HUB_PART_H

#include "hub/listing.h"

enum { PART_MAX_SEGMENTS = 512 };
#define PART_MIN_SEGMENT_BYTES (UINT64_C(8) << 20)

struct part;

/* folder: of the incomplete model; the file and its state are created in it, or continued if the state is
 * of the same size and checksum. Space is reserved for the whole file. On success *out is the caller's,
 * for part_free(). file is borrowed. */
MUST_CHECK enum tutti_status part_open(struct part **out, const char *folder, const struct hub_file *file,
                                       struct tutti_error *err);
void part_free(struct part *part); /* NULL is allowed */

/* Makes the file a link to a complete one with the same content. False: it is to be downloaded; if there
 * cannot be a link, what is there of it stays. */
bool part_adopt(const char *folder, const struct hub_file *file, const char *complete);

uint64_t part_n_done(const struct part *part); /* bytes on disk */

/* Takes the first segment that is incomplete and not taken; -1: none. Its remaining bytes are
 * [*begin, *end). */
int part_take(struct part *part, uint64_t *begin, uint64_t *end);
void part_release(struct part *part, int segment);

/* Appends to the segment. The caller keeps within its end. */
MUST_CHECK enum tutti_status part_write(struct part *part, int segment, const void *bytes, size_t n_bytes,
                                        struct tutti_error *err);

/* Forgets all bytes. No segment may be taken. is_whole: from now on the file is one segment, for a server that
 * ignores ranges. */
MUST_CHECK enum tutti_status part_start_over(struct part *part, bool is_whole, struct tutti_error *err);
bool part_is_whole(const struct part *part);

enum part_check {
    PART_INCOMPLETE, /* bytes are missing, and all before them are checked */
    PART_CHECKING,   /* call again */
    PART_COMPLETE,   /* and on disk */
    PART_WRONG,      /* complete, with another checksum: found */
};

/* Adds up to a few MiB to the checksum. */
MUST_CHECK enum tutti_status part_check(struct part *part, enum part_check *out,
                                        char found[DIGEST_TEXT_BYTES], struct tutti_error *err);

#endif
