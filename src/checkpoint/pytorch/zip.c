#include "checkpoint/pytorch/zip.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOCAL_BYTES = 30,     /* of a local header, before name and extra field */
    CENTRAL_BYTES = 46,   /* of an entry of the central directory, before the name */
    END_BYTES = 22,       /* of its end record, before the comment */
    LOCATOR64_BYTES = 20, /* of the locator of the 64-bit end record */
    END64_BYTES = 56,
    MAX_COMMENT = 65535,
    EXTRA_ZIP64 = 1,
    FLAG_ENCRYPTED = 1,
};

enum {
    LOCAL_MAGIC = 0x04034B50,
    CENTRAL_MAGIC = 0x02014B50,
    END_MAGIC = 0x06054B50,
    LOCATOR64_MAGIC = 0x07064B50,
    END64_MAGIC = 0x06064B50
};

struct zip {
    const uint8_t *bytes;
    size_t n_bytes;
    const char *file;
    struct zip_entry *entries; /* sorted by name */
    size_t n_entries;
};

/* The content of the end record. */
struct directory {
    uint64_t n_entries, n_bytes, offset;
    uint64_t end; /* offset of the end record: the directory is before it */
};

bool zip_is(const void *bytes, size_t n_bytes)
{
    return n_bytes >= 4 && (bytes_load_le(bytes, 4) == LOCAL_MAGIC || bytes_load_le(bytes, 4) == END_MAGIC);
}

/* The last end record whose comment extends to the end of the file; NULL: none. */
static const uint8_t *find_end(const struct zip *zip)
{
    size_t n = zip->n_bytes;
    for (size_t comment = 0; comment <= MAX_COMMENT && n >= END_BYTES + comment; comment++) {
        const uint8_t *at = zip->bytes + n - END_BYTES - comment;
        if (bytes_load_le(at, 4) == END_MAGIC && bytes_load_le(at + 20, 2) == comment)
            return at;
    }
    return NULL;
}

static enum tutti_status find_directory(const struct zip *zip, struct directory *d, struct tutti_error *err)
{
    const uint8_t *at = find_end(zip);
    if (!at)
        return error_set(err, TUTTI_E_FORMAT, "%s: archive: no end record; the file is cut off", zip->file);
    d->end = (uint64_t)(at - zip->bytes);
    uint64_t disk = bytes_load_le(at + 4, 2), first_disk = bytes_load_le(at + 6, 2);
    d->n_entries = bytes_load_le(at + 10, 2);
    d->n_bytes = bytes_load_le(at + 12, 4);
    d->offset = bytes_load_le(at + 16, 4);
    bool is_64 = d->n_entries == UINT16_MAX || d->n_bytes == UINT32_MAX || d->offset == UINT32_MAX;
    if (d->end >= LOCATOR64_BYTES && bytes_load_le(at - LOCATOR64_BYTES, 4) == LOCATOR64_MAGIC) {
        uint64_t end64 = bytes_load_le(at - LOCATOR64_BYTES + 8, 8);
        if (d->end - LOCATOR64_BYTES < END64_BYTES || end64 > d->end - LOCATOR64_BYTES - END64_BYTES ||
            bytes_load_le(zip->bytes + end64, 4) != END64_MAGIC)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: archive: no 64-bit end record at byte %" PRIu64 ", where it should be",
                             zip->file, end64);
        at = zip->bytes + end64;
        d->end = end64;
        disk = bytes_load_le(at + 16, 4);
        first_disk = bytes_load_le(at + 20, 4);
        d->n_entries = bytes_load_le(at + 32, 8);
        d->n_bytes = bytes_load_le(at + 40, 8);
        d->offset = bytes_load_le(at + 48, 8);
    } else if (is_64) {
        return error_set(err, TUTTI_E_FORMAT, "%s: archive: no 64-bit end record, but its fields need one",
                         zip->file);
    }
    if (disk != 0 || first_disk != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: archive: a part of several", zip->file);
    if (d->offset > d->end || d->n_bytes > d->end - d->offset)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: archive: a directory of %" PRIu64 " bytes at byte %" PRIu64
                         " does not lie before its end record at byte %" PRIu64,
                         zip->file, d->n_bytes, d->offset, d->end);
    if (d->n_entries > d->n_bytes / CENTRAL_BYTES)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: archive: %" PRIu64 " entries do not fit in a directory of %" PRIu64 " bytes",
                         zip->file, d->n_entries, d->n_bytes);
    return TUTTI_OK;
}

/* 32-bit fields with all ones have 64-bit values in the extra field, in this order. */
static bool read_extra(struct zip_entry *entry, const uint8_t *extra, size_t n_extra)
{
    uint64_t *wide[] = { &entry->n_bytes, &entry->n_stored, &entry->offset };
    bool needs = entry->n_bytes == UINT32_MAX || entry->n_stored == UINT32_MAX || entry->offset == UINT32_MAX;
    while (needs && n_extra >= 4) {
        uint64_t id = bytes_load_le(extra, 2), n = bytes_load_le(extra + 2, 2);
        extra += 4;
        n_extra -= 4;
        if (n > n_extra)
            return false;
        if (id == EXTRA_ZIP64) {
            for (int i = 0; i < 3; i++) {
                if (*wide[i] != UINT32_MAX)
                    continue;
                if (n < 8)
                    return false;
                *wide[i] = bytes_load_le(extra, 8);
                extra += 8;
                n -= 8;
            }
            return true;
        }
        extra += n;
        n_extra -= n;
    }
    return !needs;
}

static int compare_zip_entries(const void *a, const void *b)
{
    const struct zip_entry *x = a, *y = b;
    return bytes_compare(x->name, x->n_name, y->name, y->n_name);
}

static enum tutti_status read_directory(struct zip *zip, const struct directory *d, struct tutti_error *err)
{
    const uint8_t *at = zip->bytes + d->offset, *end = at + d->n_bytes;
    zip->entries = calloc((size_t)d->n_entries + 1, sizeof *zip->entries);
    if (!zip->entries)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", zip->file);
    for (uint64_t i = 0; i < d->n_entries; i++) {
        struct zip_entry *entry = &zip->entries[zip->n_entries];
        size_t left = (size_t)(end - at);
        size_t n_name = left < CENTRAL_BYTES ? 0 : (size_t)bytes_load_le(at + 28, 2);
        size_t n_extra = left < CENTRAL_BYTES ? 0 : (size_t)bytes_load_le(at + 30, 2);
        size_t n_comment = left < CENTRAL_BYTES ? 0 : (size_t)bytes_load_le(at + 32, 2);
        if (left < CENTRAL_BYTES || bytes_load_le(at, 4) != CENTRAL_MAGIC ||
            n_name + n_extra + n_comment > left - CENTRAL_BYTES)
            return error_set(err, TUTTI_E_FORMAT, "%s: archive: entry %" PRIu64 " of its directory is broken",
                             zip->file, i);
        *entry = (struct zip_entry){ .name = (const char *)at + CENTRAL_BYTES,
                                     .n_name = n_name,
                                     .flags = (uint16_t)bytes_load_le(at + 8, 2),
                                     .method = (uint16_t)bytes_load_le(at + 10, 2),
                                     .n_stored = bytes_load_le(at + 20, 4),
                                     .n_bytes = bytes_load_le(at + 24, 4),
                                     .offset = bytes_load_le(at + 42, 4) };
        if (!read_extra(entry, at + CENTRAL_BYTES + n_name, n_extra))
            return error_set(err, TUTTI_E_FORMAT, "%s: archive: %.*s: its 64-bit sizes are missing",
                             zip->file, (int)n_name, entry->name);
        zip->n_entries++;
        at += CENTRAL_BYTES + n_name + n_extra + n_comment;
    }
    qsort(zip->entries, zip->n_entries, sizeof *zip->entries, compare_zip_entries);
    for (size_t i = 1; i < zip->n_entries; i++) {
        if (compare_zip_entries(&zip->entries[i - 1], &zip->entries[i]) == 0)
            return error_set(err, TUTTI_E_FORMAT, "%s: archive: duplicate entry %.*s", zip->file,
                             (int)zip->entries[i].n_name, zip->entries[i].name);
    }
    return TUTTI_OK;
}

enum tutti_status zip_open(struct zip **out, const void *bytes, size_t n_bytes, const char *file,
                           struct tutti_error *err)
{
    struct directory directory = { 0 };
    struct zip *zip = calloc(1, sizeof *zip);
    if (!zip)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", file);
    *zip = (struct zip){ .bytes = bytes, .n_bytes = n_bytes, .file = file };
    enum tutti_status st = find_directory(zip, &directory, err);
    if (st == TUTTI_OK)
        st = read_directory(zip, &directory, err);
    if (st == TUTTI_OK)
        *out = zip;
    else
        zip_close(zip);
    return st;
}

void zip_close(struct zip *zip)
{
    if (!zip)
        return;
    free(zip->entries);
    free(zip);
}

size_t zip_n_entries(const struct zip *zip)
{
    return zip->n_entries;
}

const struct zip_entry *zip_entry(const struct zip *zip, size_t index)
{
    return &zip->entries[index];
}

const struct zip_entry *zip_find(const struct zip *zip, const char *name, size_t n_name)
{
    const struct zip_entry want = { .name = name, .n_name = n_name };
    if (zip->n_entries == 0)
        return NULL;
    return bsearch(&want, zip->entries, zip->n_entries, sizeof *zip->entries, compare_zip_entries);
}

enum tutti_status zip_data(const struct zip *zip, const struct zip_entry *entry, const void **data,
                           struct tutti_error *err)
{
    int n_name = (int)entry->n_name;
    if (entry->flags & FLAG_ENCRYPTED)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: archive: %.*s is encrypted", zip->file, n_name,
                         entry->name);
    if (entry->method != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: archive: %.*s is compressed (method %d), expected stored", zip->file, n_name,
                         entry->name, entry->method);
    const uint8_t *local = entry->offset < zip->n_bytes ? zip->bytes + entry->offset : NULL;
    uint64_t left = local ? zip->n_bytes - entry->offset : 0;
    if (left < LOCAL_BYTES || bytes_load_le(local, 4) != LOCAL_MAGIC)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: archive: %.*s: no header at byte %" PRIu64 ", where it should be", zip->file,
                         n_name, entry->name, entry->offset);
    uint64_t head = LOCAL_BYTES + bytes_load_le(local + 26, 2) + bytes_load_le(local + 28, 2);
    if (bytes_load_le(local + 26, 2) != entry->n_name || left < head ||
        memcmp(local + LOCAL_BYTES, entry->name, entry->n_name) != 0)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: archive: %.*s: the header at byte %" PRIu64 " is of another entry", zip->file,
                         n_name, entry->name, entry->offset);
    if (entry->n_bytes != entry->n_stored || entry->n_bytes > left - head)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: archive: %.*s: %" PRIu64 " bytes (%" PRIu64 " stored) at byte %" PRIu64
                         " of a file of %zu",
                         zip->file, n_name, entry->name, entry->n_bytes, entry->n_stored,
                         entry->offset + head, zip->n_bytes);
    *data = local + head;
    return TUTTI_OK;
}
