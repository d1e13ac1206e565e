/* The spill file: stores evicted KV pages on disk. A folder has one, "kv-pages", for one engine at
 * a time.
 *
 *   header                      4096 bytes: model, kernels and format that made the pages
 *   segment: 32 records         describes each slot of the segment; 4096 bytes for pages of 16 tokens
 *            32 slots           slot_bytes each: the pages, rounded up to 4096 bytes
 *   segment ...
 *
 * The file grows as needed, up to the size it was opened with, and may be opened with another size
 * later. A record is valid if its own checksum matches, a page if the checksum in its record
 * matches. A page is written before its record, and the slot's old record is erased first; so after
 * a crash at any moment incomplete pages are invalid. Nothing is synced to disk: after a failure of
 * the system, checksums show which pages arrived.
 *
 * One thread at a time calls these functions, with SIGXFSZ blocked or ignored: exceeding the
 * process' file size limit is then an error like a full disk. Numbers are in the machine's byte
 * order: the header's magic number reveals another order. */
#ifndef TUTTI_SPILL_FILE_H
#define TUTTI_SPILL_FILE_H

#include "backend/backend.h"
#include "base/error.h"

/* What must be equal for a page to be usable. */
struct spill_identity {
    uint64_t weights; /* of the model */
    uint64_t shape;   /* checksum of the model's description, which decides the forward pass */
    /* Checksum of pages and logits of a fixed text: depends on kernels, math library, page format. */
    uint64_t arithmetic;
    uint64_t kv_type;
    uint64_t page_bytes, page_tokens;
};

struct spill_record {
    uint64_t id; /* counts the records of a file from 1; 0: there is none */
    /* Id of the parent page's record; SPILL_ROOT or larger: the root of an adapter, so this is a
     * first page. */
    uint64_t parent;
    const int32_t *ids; /* [page_tokens] */
};
#define SPILL_ROOT (UINT64_C(1) << 63)

struct spill_file;

enum { SPILL_MAX_SLOTS = 1 << 24 };

/* Opens or creates the file in folder dir, which is created if it does not exist (but not its
 * parents). n_bytes: largest size of the file; it must hold a page. *started_anew, [size bytes]:
 * why the existing content is unusable; "" if it is usable or there was none. On success *out is
 * the caller's, for spill_file_close(). TUTTI_E_BUSY: another process has it open.
 * TUTTI_E_ARGUMENT, TUTTI_E_LIMIT: n_bytes. TUTTI_E_IO: also if the file is a symbolic link, not a
 * regular file, or not owned by this user. */
MUST_CHECK enum tutti_status spill_file_open(struct spill_file **out, const char *dir, uint64_t n_bytes,
                                             const struct spill_identity *identity, char *started_anew,
                                             size_t size, struct tutti_error *err);
void spill_file_close(struct spill_file *file); /* NULL is allowed */

int32_t spill_file_n_slots(const struct spill_file *file);

/* Loads the records of slots first..first + n - 1; invalid ones get id 0. n: up to
 * SPILL_SEGMENT_SLOTS, first a multiple of that. ids: [n][page_tokens], which the records then
 * have. *is_end: the file ends there. */
enum { SPILL_SEGMENT_SLOTS = 32 };
MUST_CHECK enum tutti_status spill_file_load(struct spill_file *file, int32_t first, int n,
                                             struct spill_record *records, int32_t *ids, bool *is_end,
                                             struct tutti_error *err);

/* page: page_bytes long. If writing fails the slot is empty. */
MUST_CHECK enum tutti_status spill_file_write(struct spill_file *file, int32_t slot,
                                              const struct spill_record *record, const void *page,
                                              struct tutti_error *err);
/* TUTTI_E_FORMAT: the slot does not have this record, or its page is damaged; the slot is then
 * empty. */
MUST_CHECK enum tutti_status spill_file_read(struct spill_file *file, int32_t slot,
                                             const struct spill_record *record, void *page,
                                             struct tutti_error *err);

#endif
