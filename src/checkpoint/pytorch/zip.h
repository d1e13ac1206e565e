/* ZIP archives in memory, of entries that are stored as they are: their data are used where they lie.
 * Format: PKWARE's APPNOTE.TXT 6.3, with the 64-bit extensions of sections 4.3.14, 4.3.15 and 4.5.3.
 *
 * Checksums are left alone: to compute them is to read the whole file, and PyTorch can write archives without. */
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

/* True where bytes begin like an archive. */
bool zip_is(const void *bytes, size_t n_bytes);

/* Reads the central directory; bytes and file (for messages) are borrowed until zip_close(). On success *out is the caller's.
 * TUTTI_E_FORMAT: what it says cannot be true of n_bytes, or a name stands there twice. */
MUST_CHECK enum tutti_status zip_open(struct zip **out, const void *bytes, size_t n_bytes, const char *file,
                                      struct tutti_error *err);
void zip_close(struct zip *zip); /* NULL is allowed */

/* Sorted by name. */
size_t zip_n_entries(const struct zip *zip);
const struct zip_entry *zip_entry(const struct zip *zip, size_t index);

/* NULL: there is none. */
const struct zip_entry *zip_find(const struct zip *zip, const char *name, size_t n_name);

/* Where an entry's content lies. TUTTI_E_UNSUPPORTED: it is compressed or encrypted. TUTTI_E_FORMAT: it does not lie within
 * the archive, or the header before it tells another story than the directory. */
MUST_CHECK enum tutti_status zip_data(const struct zip *zip, const struct zip_entry *entry, const void **data,
                                      struct tutti_error *err);

#endif
