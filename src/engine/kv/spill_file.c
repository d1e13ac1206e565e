#include "engine/kv/spill_file.h"

#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    VERSION = 3,        /* of the layout and the checksums */
    BLOCK_BYTES = 4096, /* of file systems: whole blocks can be written without being read first */
    MIN_RECORD_BYTES = BLOCK_BYTES / SPILL_SEGMENT_SLOTS,
    MAX_PAGE_TOKENS = 1 << 16,
};
static const char FILE_NAME[] = "kv-pages";
static const char MAGIC[8] = "tuttikv";

struct header {
    char magic[8];
    uint64_t byte_order; /* BYTE_ORDER_MARK */
    uint64_t version;
    uint64_t salt; /* of all checksums after the header: blocks of another file do not match */
    struct spill_identity identity;
    uint64_t checksum; /* of all bytes before it */
};
#define BYTE_ORDER_MARK UINT64_C(0x0102030405060708)

/* A record in the file: this, the ids, zeros, then the checksum of all bytes before it. */
struct stored_record {
    uint64_t id, parent, slot, page_checksum;
};

_Static_assert(sizeof(struct header) == 11 * sizeof(uint64_t), "no padding");

struct spill_file {
    char *path;
    int fd;
    int32_t n_slots;
    uint64_t salt;
    size_t page_bytes, slot_bytes;
    int page_tokens;
    size_t record_bytes; /* a multiple of MIN_RECORD_BYTES: the records of a segment fill blocks */
    uint8_t *records;    /* [SPILL_SEGMENT_SLOTS][record_bytes] scratch */
    bool was_open;       /* other users could write to it */
};

static size_t spill_file_ids_bytes(const struct spill_file *file)
{
    return (size_t)file->page_tokens * sizeof(int32_t);
}

/* Bytes of the records of a segment. */
static size_t records_bytes(const struct spill_file *file)
{
    return SPILL_SEGMENT_SLOTS * file->record_bytes;
}

/* ---- bytes ---- */

static enum tutti_status failure(const struct spill_file *file, const char *what, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_IO, "%s: %s: %s", file->path, what, strerror(errno));
}

static enum tutti_status write_at(struct spill_file *file, const void *bytes, size_t n_bytes, int64_t at,
                                  struct tutti_error *err)
{
    const uint8_t *next = bytes;
    while (n_bytes > 0) {
        ssize_t n = pwrite(file->fd, next, n_bytes, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC;
        if (n <= 0)
            return failure(file, "writing", err);
        next += n;
        at += n;
        n_bytes -= (size_t)n;
    }
    return TUTTI_OK;
}

/* *n_read is less than n_bytes only at the end of the file. */
static enum tutti_status read_at(struct spill_file *file, void *bytes, size_t n_bytes, int64_t at,
                                 size_t *n_read, struct tutti_error *err)
{
    uint8_t *next = bytes;
    *n_read = 0;
    while (*n_read < n_bytes) {
        ssize_t n = pread(file->fd, next + *n_read, n_bytes - *n_read, at + (int64_t)*n_read);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failure(file, "reading", err);
        if (n == 0)
            break;
        *n_read += (size_t)n;
    }
    return TUTTI_OK;
}

/* ---- offsets ---- */

static int64_t segment_bytes(const struct spill_file *file)
{
    return (int64_t)records_bytes(file) + SPILL_SEGMENT_SLOTS * (int64_t)file->slot_bytes;
}

static int64_t record_at(const struct spill_file *file, int32_t slot)
{
    return BLOCK_BYTES + slot / SPILL_SEGMENT_SLOTS * segment_bytes(file) +
           slot % SPILL_SEGMENT_SLOTS * (int64_t)file->record_bytes;
}

static int64_t page_at(const struct spill_file *file, int32_t slot)
{
    return BLOCK_BYTES + slot / SPILL_SEGMENT_SLOTS * segment_bytes(file) + (int64_t)records_bytes(file) +
           slot % SPILL_SEGMENT_SLOTS * (int64_t)file->slot_bytes;
}

/* As many slots as fit into n_bytes. */
static enum tutti_status count_slots(struct spill_file *file, uint64_t n_bytes, struct tutti_error *err)
{
    uint64_t segment = (uint64_t)segment_bytes(file), records = records_bytes(file);
    uint64_t least = BLOCK_BYTES + records + file->slot_bytes;
    if (n_bytes < least)
        return error_set_param(err, TUTTI_E_LIMIT, "kv_spill_bytes",
                               "the KV spill file may have %" PRIu64
                               " bytes, but a page of %d tokens needs %" PRIu64,
                               n_bytes, file->page_tokens, least);
    uint64_t n_whole = (n_bytes - BLOCK_BYTES) / segment, rest = (n_bytes - BLOCK_BYTES) % segment;
    if (n_whole > SPILL_MAX_SLOTS / SPILL_SEGMENT_SLOTS)
        n_whole = SPILL_MAX_SLOTS / SPILL_SEGMENT_SLOTS;
    uint64_t n = n_whole * SPILL_SEGMENT_SLOTS + (rest > records ? (rest - records) / file->slot_bytes : 0);
    file->n_slots = n < SPILL_MAX_SLOTS ? (int32_t)n : SPILL_MAX_SLOTS;
    return TUTTI_OK;
}

/* ---- opening ---- */

/* Removes trailing slashes, which would follow a symbolic link. */
static char *clean_path(const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    return strndup(dir, n);
}

/* Protects against redirection by other users: neither folder nor file may be a link, and the file
 * must be private to this user. */
static enum tutti_status open_in(struct spill_file *file, const char *dir, struct tutti_error *err)
{
    struct stat info;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return error_set(err, TUTTI_E_IO, "%s: creating the folder: %s", dir, strerror(errno));
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir_fd < 0)
        return error_set(err, TUTTI_E_IO, "%s: %s", dir,
                         errno == ELOOP || errno == ENOTDIR ? "expected a folder, not a link or a file"
                                                            : strerror(errno));
    file->fd = openat(dir_fd, FILE_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    int failed = errno;
    close(dir_fd);
    if (file->fd < 0)
        return error_set(err, TUTTI_E_IO, "%s: %s", file->path,
                         failed == ELOOP ? "expected a file, not a link" : strerror(failed));
    if (fstat(file->fd, &info) != 0)
        return failure(file, "reading its status", err);
    if (!S_ISREG(info.st_mode) || info.st_nlink != 1 || info.st_uid != geteuid())
        return error_set(err, TUTTI_E_IO, "%s: expected a regular file of this user without further names",
                         file->path);
    if (flock(file->fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK
                   ? error_set(err, TUTTI_E_BUSY, "%s: another process has it open, and only one can",
                               file->path)
                   : failure(file, "locking", err);
    file->was_open = (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    if (fchmod(file->fd, 0600) != 0)
        return failure(file, "making it private", err);
    return TUTTI_OK;
}

/* Why a header is unusable; "": it is usable. */
static const char *header_problem(const struct header *h, const struct spill_identity *own)
{
    const struct spill_identity *is = &h->identity;
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        return "it is not a KV spill file";
    if (h->byte_order != BYTE_ORDER_MARK)
        return "it was written by a machine with another byte order";
    if (h->version != VERSION)
        return "it has another version";
    if (h->checksum != hash64(0, h, offsetof(struct header, checksum)))
        return "its header is damaged";
    if (is->weights != own->weights)
        return "its pages were computed with other weights";
    if (is->shape != own->shape)
        return "its pages were computed by another model";
    if (is->page_tokens != own->page_tokens)
        return "its pages have another number of tokens";
    if (is->kv_type != own->kv_type || is->page_bytes != own->page_bytes)
        return "its pages have another KV type";
    return is->arithmetic != own->arithmetic ? "its pages were computed with other arithmetic" : "";
}

static enum tutti_status start_anew(struct spill_file *file, const struct spill_identity *identity,
                                    struct tutti_error *err)
{
    struct header h = { .byte_order = BYTE_ORDER_MARK, .version = VERSION, .identity = *identity };
    memcpy(h.magic, MAGIC, sizeof h.magic);
    if (getentropy(&h.salt, sizeof h.salt) != 0)
        return error_set(err, TUTTI_E_IO, "the system provides no random numbers");
    h.checksum = hash64(0, &h, offsetof(struct header, checksum));
    file->salt = h.salt;
    if (ftruncate(file->fd, 0) != 0)
        return failure(file, "emptying", err);
    uint8_t block[BLOCK_BYTES] = { 0 };
    memcpy(block, &h, sizeof h);
    return write_at(file, block, sizeof block, 0, err);
}

static enum tutti_status read_header(struct spill_file *file, const struct spill_identity *identity,
                                     char *started_anew, size_t size, struct tutti_error *err)
{
    struct header h;
    size_t n;
    enum tutti_status st = read_at(file, &h, sizeof h, 0, &n, err);
    if (st != TUTTI_OK)
        return st;
    if (n > 0)
        snprintf(started_anew, size, "%s",
                 n < sizeof h     ? "its header is truncated"
                 : file->was_open ? "other users could write to it"
                                  : header_problem(&h, identity));
    if (n == 0 || *started_anew)
        return start_anew(file, identity, err);
    file->salt = h.salt;
    int64_t most = page_at(file, file->n_slots - 1) + (int64_t)file->slot_bytes;
    struct stat info;
    if (fstat(file->fd, &info) != 0)
        return failure(file, "reading its status", err);
    if (info.st_size > most && ftruncate(file->fd, most) != 0) /* it was opened with a larger size before */
        return failure(file, "shortening", err);
    return TUTTI_OK;
}

enum tutti_status spill_file_open(struct spill_file **out, const char *dir, uint64_t n_bytes,
                                  const struct spill_identity *identity, char *started_anew, size_t size,
                                  struct tutti_error *err)
{
    struct spill_file *file = calloc(1, sizeof *file);
    char *folder = clean_path(dir);
    *started_anew = '\0';
    if (file) {
        file->fd = -1;
        char *path = NULL;
        int n = folder ? asprintf(&path, "%s/%s", folder, FILE_NAME) : -1;
        file->path = n < 0 ? NULL : path; /* undefined after a failure */
    }
    enum tutti_status st = TUTTI_OK;
    if (!file || !file->path) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", dir);
        goto done;
    }
    file->page_bytes = (size_t)identity->page_bytes;
    if (identity->page_bytes == 0 || identity->page_bytes > SIZE_MAX / 64 / SPILL_MAX_SLOTS) {
        st = error_set(err, TUTTI_E_LIMIT, "%s: pages of %" PRIu64 " bytes", dir, identity->page_bytes);
        goto done;
    }
    if (identity->page_tokens == 0 || identity->page_tokens > MAX_PAGE_TOKENS) {
        st = error_set(err, TUTTI_E_LIMIT, "%s: pages of %" PRIu64 " tokens, expected 1 to %d", dir,
                       identity->page_tokens, MAX_PAGE_TOKENS);
        goto done;
    }
    file->page_tokens = (int)identity->page_tokens;
    file->record_bytes = sizeof(struct stored_record) + spill_file_ids_bytes(file) + sizeof(uint64_t);
    file->record_bytes = (file->record_bytes + MIN_RECORD_BYTES - 1) / MIN_RECORD_BYTES * MIN_RECORD_BYTES;
    file->records = malloc(records_bytes(file));
    if (!file->records) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", dir);
        goto done;
    }
    file->slot_bytes = (file->page_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    st = count_slots(file, n_bytes, err);
    if (st == TUTTI_OK)
        st = open_in(file, folder, err);
    if (st == TUTTI_OK)
        st = read_header(file, identity, started_anew, size, err);
    if (st != TUTTI_OK)
        goto done;
    *out = file;
    file = NULL;
done:
    free(folder);
    spill_file_close(file);
    return st;
}

void spill_file_close(struct spill_file *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd); /* this releases the lock */
    free(file->records);
    free(file->path);
    free(file);
}

int32_t spill_file_n_slots(const struct spill_file *file)
{
    return file->n_slots;
}

/* ---- records ---- */

/* The checksum of a record, which ends with it. */
static uint64_t checksum_of(const struct spill_file *file, const uint8_t *record)
{
    return hash64(file->salt, record, file->record_bytes - sizeof(uint64_t));
}

/* *out without ids. False: the record is not one of this slot. */
static bool unpack_record(const struct spill_file *file, const uint8_t *record, int32_t slot,
                          struct stored_record *out)
{
    uint64_t checksum;
    memcpy(out, record, sizeof *out);
    memcpy(&checksum, record + file->record_bytes - sizeof checksum, sizeof checksum);
    return out->id != 0 && out->id < SPILL_ROOT && out->slot == (uint64_t)slot &&
           checksum == checksum_of(file, record);
}

enum tutti_status spill_file_load(struct spill_file *file, int32_t first, int n, struct spill_record *records,
                                  int32_t *ids, bool *is_end, struct tutti_error *err)
{
    size_t n_read;
    enum tutti_status st = read_at(file, file->records, records_bytes(file), record_at(file, first), &n_read,
                                   err);
    if (st != TUTTI_OK)
        return st;
    *is_end = n_read < records_bytes(file);
    int n_whole = (int)(n_read / file->record_bytes);
    for (int i = 0; i < n; i++, ids += file->page_tokens) {
        const uint8_t *record = file->records + (size_t)i * file->record_bytes;
        struct stored_record r;
        records[i] = (struct spill_record){ .ids = ids };
        if (i >= n_whole || !unpack_record(file, record, first + i, &r))
            continue;
        records[i].id = r.id;
        records[i].parent = r.parent;
        memcpy(ids, record + sizeof r, spill_file_ids_bytes(file));
    }
    return TUTTI_OK;
}

static enum tutti_status erase(struct spill_file *file, int32_t slot, struct tutti_error *err)
{
    memset(file->records, 0, file->record_bytes);
    return write_at(file, file->records, file->record_bytes, record_at(file, slot), err);
}

enum tutti_status spill_file_write(struct spill_file *file, int32_t slot, const struct spill_record *record,
                                   const void *page, struct tutti_error *err)
{
    enum tutti_status st = erase(file, slot, err);
    if (st == TUTTI_OK)
        st = write_at(file, page, file->page_bytes, page_at(file, slot), err);
    if (st != TUTTI_OK)
        return st;
    struct stored_record r = { record->id, record->parent, (uint64_t)slot,
                               hash64(file->salt ^ record->id, page, file->page_bytes) };
    uint8_t *bytes = file->records;
    memset(bytes, 0, file->record_bytes);
    memcpy(bytes, &r, sizeof r);
    memcpy(bytes + sizeof r, record->ids, spill_file_ids_bytes(file));
    uint64_t checksum = checksum_of(file, bytes);
    memcpy(bytes + file->record_bytes - sizeof checksum, &checksum, sizeof checksum);
    return write_at(file, bytes, file->record_bytes, record_at(file, slot), err);
}

enum tutti_status spill_file_read(struct spill_file *file, int32_t slot, const struct spill_record *record,
                                  void *page, struct tutti_error *err)
{
    struct stored_record r;
    size_t n_record, n_page = 0;
    enum tutti_status st = read_at(file, file->records, file->record_bytes, record_at(file, slot), &n_record,
                                   err);
    if (st == TUTTI_OK)
        st = read_at(file, page, file->page_bytes, page_at(file, slot), &n_page, err);
    if (st != TUTTI_OK)
        return st;
    const char *what = NULL;
    if (n_record < file->record_bytes || n_page < file->page_bytes)
        what = "the file is truncated";
    else if (!unpack_record(file, file->records, slot, &r) || r.id != record->id ||
             r.parent != record->parent ||
             memcmp(file->records + sizeof r, record->ids, spill_file_ids_bytes(file)) != 0)
        what = "its record is damaged";
    else if (r.page_checksum != hash64(file->salt ^ record->id, page, file->page_bytes))
        what = "its page is damaged";
    if (!what)
        return TUTTI_OK;
    (void)erase(file, slot, NULL); /* otherwise the next start would find it again */
    return error_set(err, TUTTI_E_FORMAT, "%s: slot %d: %s", file->path, slot, what);
}
