/* Reads uncompressed ZIP archives in memory: entries are used in place.
 * Format: PKWARE's APPNOTE.TXT 6.3, with the 64-bit extensions of sections 4.3.14, 4.3.15 and
 * 4.5.3.
 *
 * Checksums are not verified: that would read the whole file, and PyTorch can write archives
 * without them. */
#ifndef TUTTI_CHECKPOINT_PYTORCH_ZIP_H
#define TUTTI_CHECKPOINT_PYTORCH_ZIP_H

#include "base/error.h"

struct zip;

struct zip_entry {
    const char *name; /* not terminated, any bytes */
    size_t n_name;
    uint64_t n_bytes; /* of the content */
    uint64_t n_stored;
    uint64_t offset; /* of the local header */
    uint16_t flags, method;
};

/* Whether bytes begin like an archive. */
bool zip_is(const void *bytes, size_t n_bytes);

/* Reads the central directory; bytes and file (for messages) are borrowed until zip_close(). On
 * success *out is the caller's. TUTTI_E_FORMAT: it does not fit n_bytes, or has a duplicate name. */
MUST_CHECK enum tutti_status zip_open(struct zip **out, const void *bytes, size_t n_bytes, const char *file,
                                      struct tutti_error *err);
void zip_close(struct zip *zip); /* NULL is allowed */

/* Sorted by name. */
size_t zip_n_entries(const struct zip *zip);
const struct zip_entry *zip_entry(const struct zip *zip, size_t index);

/* NULL: not found. */
const struct zip_entry *zip_find(const struct zip *zip, const char *name, size_t n_name);

/* Finds an entry's content. TUTTI_E_UNSUPPORTED: it is compressed or encrypted. TUTTI_E_FORMAT:
 * it is not within the archive, or its local header contradicts the directory. */
MUST_CHECK enum tutti_status zip_data(const struct zip *zip, const struct zip_entry *entry, const void **data,
                                      struct tutti_error *err);

#endif
