#include "hub/part.h"

#include "base/system/os.h"
#include "hub/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 256 << 10, CHECK_BYTES = 16 * BUFFER_BYTES };

/* The state file, for this machine only. */
struct part_state {
    char magic[8];
    uint64_t n_bytes, segment_bytes;
    char checksum[DIGEST_TEXT_BYTES];
    uint8_t is_checked; /* the file is complete, and its checksum is right */
    uint64_t n_done[PART_MAX_SEGMENTS];
};
static const char MAGIC[8] = "tuttipt1";

struct part {
    const struct hub_file *file;
    char *path, *state_path;
    int fd, state_fd;
    struct part_state state;
    int n_segments;
    bool is_taken[PART_MAX_SEGMENTS];
    struct digest *digest;
    uint64_t n_checked; /* bytes in the digest */
    uint8_t *buffer;    /* [BUFFER_BYTES] */
};

/* The bytes of a file are in at most PART_MAX_SEGMENTS segments. */
static uint64_t segment_bytes_of(uint64_t n_bytes)
{
    uint64_t least = (n_bytes + PART_MAX_SEGMENTS - 1) / PART_MAX_SEGMENTS;
    return least > PART_MIN_SEGMENT_BYTES ? least : PART_MIN_SEGMENT_BYTES;
}

static int count_segments(const struct part *part)
{
    return (int)((part->state.n_bytes + part->state.segment_bytes - 1) / part->state.segment_bytes);
}

static uint64_t segment_size(const struct part *part, int segment)
{
    uint64_t begin = (uint64_t)segment * part->state.segment_bytes, left = part->state.n_bytes - begin;
    return left < part->state.segment_bytes ? left : part->state.segment_bytes;
}

static void init_state(struct part_state *state, const struct hub_file *file, bool is_whole)
{
    *state = (struct part_state){ .n_bytes = file->n_bytes };
    memcpy(state->magic, MAGIC, sizeof MAGIC);
    state->segment_bytes = is_whole && file->n_bytes > 0 ? file->n_bytes : segment_bytes_of(file->n_bytes);
    snprintf(state->checksum, sizeof state->checksum, "%s", file->checksum.text);
}

/* An error that says that nothing is lost. */
static enum tutti_status no_space(const char *path, uint64_t n_bytes, struct tutti_error *err)
{
    return error_set(
        err, TUTTI_E_IO,
        "%s: %s, expected room for %llu MB; what was downloaded is kept: free some space, or set "
        "TUTTI_CACHE to a folder on another disk, and run the command again",
        path, strerror(errno), (unsigned long long)(n_bytes / 1000000 + 1));
}

static enum tutti_status write_error(const struct part *part, const char *path, struct tutti_error *err)
{
    return errno == ENOSPC || errno == EDQUOT || errno == EFBIG
               ? no_space(path, part->state.n_bytes - part_n_done(part), err)
               : error_from_errno(path, err);
}

static enum tutti_status write_at(const struct part *part, int fd, const char *path, const void *bytes,
                                  size_t n_bytes, uint64_t offset, struct tutti_error *err)
{
    const char *next = bytes;
    while (n_bytes > 0) {
        ssize_t n = pwrite(fd, next, n_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return write_error(part, path, err);
        next += n;
        offset += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return TUTTI_OK;
}

/* Bytes of the state file. */
static size_t state_size(int n_segments)
{
    return offsetof(struct part_state, n_done) + (size_t)n_segments * sizeof(uint64_t);
}

static enum tutti_status write_state(const struct part *part, struct tutti_error *err)
{
    return write_at(part, part->state_fd, part->state_path, &part->state, state_size(part->n_segments), 0,
                    err);
}

/* ---- opening ---- */

static bool state_path_of(struct buf *out, const char *folder, const struct hub_file *file)
{
    return buf_printf(out, "%s/%s/", folder, HUB_STATE_FOLDER) &&
           hub_add_escaped(out, file->path, " +=@:()[],");
}

/* Whether the state belongs to the file, and the file on disk has its size. */
static bool state_fits(const struct part *part, ssize_t n_read)
{
    const struct part_state *s = &part->state;
    struct stat info;
    if (n_read < (ssize_t)state_size(0) || memcmp(s->magic, MAGIC, sizeof MAGIC) != 0 ||
        s->n_bytes != part->file->n_bytes || strcmp(s->checksum, part->file->checksum.text) != 0 ||
        s->segment_bytes == 0 || (s->n_bytes + s->segment_bytes - 1) / s->segment_bytes > PART_MAX_SEGMENTS)
        return false;
    int n = count_segments(part);
    if (n_read < (ssize_t)state_size(n))
        return false;
    for (int i = 0; i < n; i++)
        if (s->n_done[i] > segment_size(part, i))
            return false;
    return fstat(part->fd, &info) == 0 && S_ISREG(info.st_mode) && (uint64_t)info.st_size == s->n_bytes;
}

/* Reserves the file's blocks, so that a full disk is found before bytes are downloaded. */
static enum tutti_status reserve(struct part *part, struct tutti_error *err)
{
    off_t size = (off_t)part->state.n_bytes;
    if (size == 0)
        return TUTTI_OK;
    if (!os_reserve(part->fd, (uint64_t)size) && errno != EOPNOTSUPP && errno != ENOTSUP)
        return write_error(part, part->path, err);
    return ftruncate(part->fd, size) == 0 ? TUTTI_OK : write_error(part, part->path, err);
}

/* A new, empty file: an old one may be a link to a complete model's file, which must not change. */
static enum tutti_status begin_file(struct part *part, bool is_whole, struct tutti_error *err)
{
    if (part->fd >= 0)
        close(part->fd);
    part->fd = -1;
    init_state(&part->state, part->file, is_whole);
    part->n_segments = count_segments(part);
    enum tutti_status st = write_state(part, err); /* first: no old state may describe the new file */
    if (st != TUTTI_OK)
        return st;
    if (unlink(part->path) != 0 && errno != ENOENT)
        return error_from_errno(part->path, err);
    part->fd = open(part->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (part->fd < 0)
        return write_error(part, part->path, err);
    part->n_checked = 0;
    return reserve(part, err);
}

static void begin_digest(struct part *part)
{
    char head[48];
    digest_begin(part->digest);
    part->n_checked = 0;
    if (part->file->checksum.kind != DIGEST_SHA1)
        return;
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)part->state.n_bytes);
    digest_add(part->digest, head, (size_t)n + 1); /* with the terminator */
}

static enum tutti_status open_files(struct part *part, struct tutti_error *err)
{
    enum tutti_status st = hub_make_folders(part->path, true, err);
    if (st == TUTTI_OK)
        st = hub_make_folders(part->state_path, true, err);
    if (st != TUTTI_OK)
        return st;
    part->state_fd = open(part->state_path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (part->state_fd < 0)
        return write_error(part, part->state_path, err);
    /* A checked file may be a link to a complete model's file, and is not written. */
    ssize_t n = pread(part->state_fd, &part->state, sizeof part->state, 0);
    bool is_checked = n >= (ssize_t)state_size(0) && part->state.is_checked;
    part->fd = open(part->path, (is_checked ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_CLOEXEC);
    if (part->fd < 0 || !state_fits(part, n))
        return begin_file(part, false, err);
    part->n_segments = count_segments(part);
    return is_checked ? TUTTI_OK : reserve(part, err);
}

enum tutti_status part_open(struct part **out, const char *folder, const struct hub_file *file,
                            struct tutti_error *err)
{
    struct part *part = calloc(1, sizeof *part);
    struct buf state_path = { 0 };
    if (!part)
        return error_out_of_memory(file->path, err);
    part->file = file;
    part->fd = part->state_fd = -1;
    part->digest = digest_new(file->checksum.kind);
    part->buffer = malloc(BUFFER_BYTES);
    if (asprintf(&part->path, "%s/%s", folder, file->path) < 0)
        part->path = NULL;
    bool ok = state_path_of(&state_path, folder, file);
    part->state_path = state_path.bytes;
    enum tutti_status st = ok && part->path && part->digest && part->buffer
                               ? open_files(part, err)
                               : error_out_of_memory(file->path, err);
    if (st == TUTTI_OK) {
        begin_digest(part);
        *out = part;
    } else {
        part_free(part);
    }
    return st;
}

void part_free(struct part *part)
{
    if (!part)
        return;
    if (part->fd >= 0)
        close(part->fd);
    if (part->state_fd >= 0)
        close(part->state_fd);
    digest_free(part->digest);
    free(part->buffer);
    free(part->state_path);
    free(part->path);
    free(part);
}

static bool remove_file(const char *path)
{
    return unlink(path) == 0 || errno == ENOENT;
}

bool part_adopt(const char *folder, const struct hub_file *file, const char *complete)
{
    struct buf state_path = { 0 };
    struct part_state state;
    char *path = NULL, *new_link = NULL;
    struct stat info;
    int fd = -1;
    if (asprintf(&path, "%s/%s", folder, file->path) < 0)
        path = NULL;
    init_state(&state, file, false);
    state.is_checked = 1;
    size_t n_state = state_size((int)((file->n_bytes + state.segment_bytes - 1) / state.segment_bytes));
    bool ok = path && state_path_of(&state_path, folder, file);
    /* No escaped name of a state contains "%link". */
    if (!ok || asprintf(&new_link, "%s%%link", state_path.bytes) < 0)
        new_link = NULL;
    /* What was downloaded stays if there can be no link. No state of it may describe the linked file, into
     * which the next pull would write. */
    ok = new_link && lstat(complete, &info) == 0 && S_ISREG(info.st_mode) &&
         (uint64_t)info.st_size == file->n_bytes && hub_make_folders(path, true, NULL) == TUTTI_OK &&
         hub_make_folders(state_path.bytes, true, NULL) == TUTTI_OK && remove_file(new_link) &&
         link(complete, new_link) == 0 && remove_file(state_path.bytes) && remove_file(path) &&
         rename(new_link, path) == 0;
    if (ok) {
        fd = open(state_path.bytes, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
        ok = fd >= 0 && write(fd, &state, n_state) == (ssize_t)n_state;
    }
    if (fd >= 0)
        close(fd);
    buf_clear(&state_path);
    free(new_link);
    free(path);
    return ok;
}

/* ---- segments ---- */

uint64_t part_n_done(const struct part *part)
{
    uint64_t n = 0;
    if (part->state.is_checked)
        return part->state.n_bytes;
    for (int i = 0; i < part->n_segments; i++)
        n += part->state.n_done[i];
    return n;
}

static bool part_segment_is_done(const struct part *part, int segment)
{
    return part->state.is_checked || part->state.n_done[segment] == segment_size(part, segment);
}

int part_take(struct part *part, uint64_t *begin, uint64_t *end)
{
    for (int i = 0; i < part->n_segments; i++) {
        if (part->is_taken[i] || part_segment_is_done(part, i))
            continue;
        uint64_t start = (uint64_t)i * part->state.segment_bytes;
        *begin = start + part->state.n_done[i];
        *end = start + segment_size(part, i);
        part->is_taken[i] = true;
        return i;
    }
    return -1;
}

void part_release(struct part *part, int segment)
{
    part->is_taken[segment] = false;
}

enum tutti_status part_write(struct part *part, int segment, const void *bytes, size_t n_bytes,
                             struct tutti_error *err)
{
    uint64_t *n_done = &part->state.n_done[segment];
    uint64_t offset = (uint64_t)segment * part->state.segment_bytes + *n_done;
    enum tutti_status st = write_at(part, part->fd, part->path, bytes, n_bytes, offset, err);
    if (st != TUTTI_OK)
        return st;
    *n_done += n_bytes;
    return write_at(part, part->state_fd, part->state_path, n_done, sizeof *n_done,
                    (uint64_t)((char *)n_done - (char *)&part->state), err);
}

bool part_is_whole(const struct part *part)
{
    return part->n_segments <= 1;
}

enum tutti_status part_start_over(struct part *part, bool is_whole, struct tutti_error *err)
{
    enum tutti_status st = begin_file(part, is_whole, err);
    begin_digest(part);
    return st;
}

/* ---- the checksum ---- */

/* End of the bytes that are there without a gap from the start. */
static uint64_t contiguous_bytes(const struct part *part)
{
    int i = 0;
    while (i < part->n_segments && part_segment_is_done(part, i))
        i++;
    return i == part->n_segments ? part->state.n_bytes
                                 : (uint64_t)i * part->state.segment_bytes + part->state.n_done[i];
}

/* Everything is in the digest. */
static enum tutti_status end_check(struct part *part, enum part_check *out, char found[DIGEST_TEXT_BYTES],
                                   struct tutti_error *err)
{
    if (!digest_end(part->digest, found))
        return error_set(err, TUTTI_E_INTERNAL, "%s: libcrypto cannot compute the checksum", part->path);
    *out = strcmp(found, part->file->checksum.text) == 0 ? PART_COMPLETE : PART_WRONG;
    if (*out == PART_WRONG)
        return TUTTI_OK;
    if (fsync(part->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return write_error(part, part->path, err);
    part->state.is_checked = 1;
    return write_state(part, err);
}

/* Adds the next n bytes of the file to the digest. */
static enum tutti_status check_bytes(struct part *part, uint64_t n, struct tutti_error *err)
{
    while (n > 0) {
        size_t want = n < BUFFER_BYTES ? (size_t)n : BUFFER_BYTES;
        ssize_t got = pread(part->fd, part->buffer, want, (off_t)part->n_checked);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? error_from_errno(part->path, err)
                           : error_set(err, TUTTI_E_IO, "%s: another program has shortened it", part->path);
        digest_add(part->digest, part->buffer, (size_t)got);
        part->n_checked += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return TUTTI_OK;
}

enum tutti_status part_check(struct part *part, enum part_check *out, char found[DIGEST_TEXT_BYTES],
                             struct tutti_error *err)
{
    *out = PART_COMPLETE;
    if (part->state.is_checked)
        return TUTTI_OK;
    uint64_t left = contiguous_bytes(part) - part->n_checked;
    uint64_t n = left < CHECK_BYTES ? left : CHECK_BYTES;
    enum tutti_status st = check_bytes(part, n, err);
    if (st != TUTTI_OK)
        return st;
    if (part->n_checked == part->state.n_bytes)
        return end_check(part, out, found, err);
    *out = left > n ? PART_CHECKING : PART_INCOMPLETE;
    return TUTTI_OK;
}
