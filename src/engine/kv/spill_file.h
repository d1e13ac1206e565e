/* The file that pages of the KV cache spill to: a folder holds one, "kv-pages", for one engine at a time.
 *
 *   header                      4096 bytes: what the pages were made with
 *   segment: 32 records         4096 bytes: what stands in each slot of the segment
 *            32 slots           slot_bytes each: the pages, rounded up to 4096 bytes
 *   segment ...
 *
 * The file grows with its use, up to the bytes it was opened with, and may be opened with another number later. A record is
 * believed if its own checksum fits, a page if the one in its record does. A page is written before its record, and the
 * record that stood there is erased first; so whenever the program ends, what is not complete is not believed. Nothing
 * waits for the disk itself: after a failure of the system, checksums tell what came there.
 *
 * One thread at a time calls these functions, with SIGXFSZ blocked or ignored: a file beyond the process' limit is then an error
 * like that of a full disk. Numbers are stored as the machine has them: the header's magic number tells another order. */
#ifndef TUTTI_SPILL_FILE_H
#define TUTTI_SPILL_FILE_H

#include "backend/backend.h"
#include "base/error.h"

/* What must be the same for a page to be of use. */
struct spill_identity {
    uint64_t weights;    /* of the model */
    uint64_t shape;      /* its description: what the forward pass does with them */
    uint64_t arithmetic; /* pages and logits of a fixed text: kernels, mathematical library, page format */
    uint64_t kv_type;
    uint64_t page_bytes;
};

struct spill_record {
    uint64_t id; /* counts the records of a file from 1; 0: there is none */
    /* Id of the record of the page before; SPILL_ROOT and more: it is the first, of an adapter. */
    uint64_t parent;
    int32_t ids[KV_PAGE_TOKENS];
};
#define SPILL_ROOT (UINT64_C(1) << 63)

struct spill_file;

enum { SPILL_MAX_SLOTS = 1 << 24 };

/* Opens or makes the file in folder dir, which is made if it is not there (not its parents). n_bytes: the file's size at most;
 * it must hold a page. *started_anew, [size bytes]: why what the file held is of no use, "" where it is, or there was
 * nothing. On success *out is the caller's, for spill_file_close().
 * TUTTI_E_BUSY: another process has it. TUTTI_E_ARGUMENT, TUTTI_E_LIMIT: n_bytes. TUTTI_E_IO: among others for what is a
 * symbolic link, no regular file, or not this user's. */
MUST_CHECK enum tutti_status spill_file_open(struct spill_file **out, const char *dir, uint64_t n_bytes,
                                             const struct spill_identity *identity, char *started_anew,
                                             size_t size, struct tutti_error *err);
void spill_file_close(struct spill_file *file); /* NULL is allowed */

int32_t spill_file_n_slots(const struct spill_file *file);

/* The records of slots first..first + n - 1 as they stand in the file; those that cannot be believed have id 0. n: up to
 * SPILL_SEGMENT_SLOTS, first a multiple of that. *is_end: the file has nothing behind them. */
enum { SPILL_SEGMENT_SLOTS = 32 };
MUST_CHECK enum tutti_status spill_file_load(struct spill_file *file, int32_t first, int n,
                                             struct spill_record *records, bool *is_end,
                                             struct tutti_error *err);

/* page: page_bytes long. After a failure of writing the slot holds nothing. */
MUST_CHECK enum tutti_status spill_file_write(struct spill_file *file, int32_t slot,
                                              const struct spill_record *record, const void *page,
                                              struct tutti_error *err);
/* TUTTI_E_FORMAT: the slot does not hold this record, or its page is damaged; it holds nothing from then on. */
MUST_CHECK enum tutti_status spill_file_read(struct spill_file *file, int32_t slot,
                                             const struct spill_record *record, void *page,
                                             struct tutti_error *err);

#endif
