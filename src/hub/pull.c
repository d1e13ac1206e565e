#include "hub/pull.h"

#include "base/limits.h"
#include "hub/download.h"
#include "hub/part.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <ftw.h>

/* What a pull has open. */
struct pull {
    struct hub_session session;
    struct hub_places places;
    struct hub_listing listing;
    struct hub_choice choice;
    struct hub_record record;
    bool has_record;
    int lock;
};

static void on_wait(void *user)
{
    const struct hub_pull_options *options = user;
    options->note(options->user, "another process is downloading this model; waiting for it");
}

static enum tutti_status read_listing(struct pull *p, struct tutti_error *err)
{
    struct buf url = { 0 }, body = { 0 };
    const struct hub_name *name = p->session.name;
    enum tutti_status st = hub_add_listing_url(&url, name)
                               ? hub_http_get(&p->session, url.bytes, HUB_MAX_LISTING_BYTES, &body, err)
                               : error_out_of_memory(name->model, err);
    if (st == TUTTI_OK)
        st = hub_listing_read(&p->listing, name->layout, body.bytes ? body.bytes : "", body.n_bytes,
                              url.bytes, err);
    buf_clear(&body);
    buf_clear(&url);
    return st;
}

/* ---- the index of weights ---- */

static enum tutti_status check_index(const struct hub_file *file, const struct buf *body, const char *url,
                                     struct tutti_error *err)
{
    struct digest *digest = digest_new(file->checksum.kind);
    char found[DIGEST_TEXT_BYTES], head[48];
    if (!digest)
        return error_out_of_memory(url, err);
    int n = snprintf(head, sizeof head, "blob %zu", body->n_bytes);
    if (file->checksum.kind == DIGEST_SHA1)
        digest_add(digest, head, (size_t)n + 1);
    digest_add(digest, body->bytes ? body->bytes : "", body->n_bytes);
    bool ok = digest_end(digest, found);
    digest_free(digest);
    if (!ok)
        return error_set(err, TUTTI_E_INTERNAL, "%s: libcrypto cannot compute the checksum", url);
    return strcmp(found, file->checksum.text) == 0
               ? TUTTI_OK
               : error_set(err, TUTTI_E_IO, "%s: the checksum is %.16s..., expected %.16s...", url, found,
                           file->checksum.text);
}

/* Reads the index that the choice needs, and adds the files that it names. */
static enum tutti_status read_index(struct pull *p, struct tutti_error *err)
{
    struct buf url = { 0 }, body = { 0 };
    const struct hub_file *file = p->choice.index;
    const char *commit = *p->listing.commit ? p->listing.commit : NULL;
    enum tutti_status st = hub_add_file_url(&url, p->session.name, commit, file->path)
                               ? hub_http_get(&p->session, url.bytes, LIMIT_JSON_FILE_BYTES, &body, err)
                               : error_out_of_memory(file->path, err);
    if (st == TUTTI_OK)
        st = check_index(file, &body, url.bytes, err);
    if (st == TUTTI_OK)
        st = hub_choose_indexed(&p->choice, &p->listing, body.bytes ? body.bytes : "", body.n_bytes, err);
    buf_clear(&body);
    buf_clear(&url);
    return st;
}

/* ---- what is there ---- */

/* The file of the complete model with the same content; NULL: none. */
static const struct hub_file *find_same(const struct pull *p, const struct hub_file *file)
{
    const struct hub_file *same = p->has_record ? hub_listing_find(&p->record.listing, file->path) : NULL;
    return same && same->n_bytes == file->n_bytes && hub_checksum_equal(&same->checksum, &file->checksum)
               ? same
               : NULL;
}

/* Whether a file of the complete model is on disk. */
static bool is_on_disk(const struct pull *p, const struct hub_file *file)
{
    char *path = NULL;
    struct stat info;
    if (asprintf(&path, "%s/%s", p->places.complete, file->path) < 0)
        return false;
    bool is_there = stat(path, &info) == 0 && (uint64_t)info.st_size == file->n_bytes;
    free(path);
    return is_there;
}

/* The complete model is what the hub has now. */
static bool is_current(const struct pull *p)
{
    if (!p->has_record || p->record.listing.n_files != p->choice.n_files)
        return false;
    for (size_t i = 0; i < p->choice.n_files; i++)
        if (!find_same(p, p->choice.files[i]) || !is_on_disk(p, p->choice.files[i]))
            return false;
    return true;
}

/* Takes the unchanged files of the complete model as they are. */
static void adopt_files(const struct pull *p)
{
    for (size_t i = 0; i < p->choice.n_files; i++) {
        const struct hub_file *file = p->choice.files[i];
        char *path = NULL;
        if (!find_same(p, file) || asprintf(&path, "%s/%s", p->places.complete, file->path) < 0)
            continue;
        (void)part_adopt(p->places.partial, file, path); /* if not, it is downloaded */
        free(path);
    }
}

/* Leftovers of an earlier state of the hub, for nftw(), which passes nothing to its function. */
static const struct pull *sweeping;

static int sweep_entry(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    const char *inside = path + strlen(sweeping->places.partial);
    (void)info;
    if (at->level == 0 || kind == FTW_D)
        return 0;
    inside++;
    if (strncmp(inside, HUB_STATE_FOLDER "/", sizeof HUB_STATE_FOLDER) == 0)
        return 0;
    const struct hub_file *file = hub_listing_find(&sweeping->listing, inside);
    if (file && sweeping->choice.is_chosen[file - sweeping->listing.files])
        return 0;
    return unlink(path) == 0 || errno == ENOENT ? 0 : -1;
}

/* Removes files that are no longer chosen from the incomplete folder, which becomes the model's. */
static enum tutti_status sweep(const struct pull *p, struct tutti_error *err)
{
    sweeping = p;
    int result = nftw(p->places.partial, sweep_entry, 16, FTW_PHYS);
    return result == 0 ? TUTTI_OK : error_from_errno(p->places.partial, err);
}

/* Bytes of the choice that are on disk, or have their space reserved. */
static uint64_t bytes_reserved(const struct pull *p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->choice.n_files; i++) {
        const struct hub_file *file = p->choice.files[i];
        char *path = NULL;
        struct stat info;
        if (asprintf(&path, "%s/%s", p->places.partial, file->path) < 0)
            return n;
        if (lstat(path, &info) == 0 && S_ISREG(info.st_mode)) {
            uint64_t there = 512 * (uint64_t)info.st_blocks;
            n += there < file->n_bytes ? there : file->n_bytes;
        }
        free(path);
    }
    return n;
}

#define FILE_OVERHEAD_BYTES UINT64_C(8192)

static enum tutti_status check_space(const struct pull *p, struct tutti_error *err)
{
    struct statvfs disk;
    if (statvfs(p->places.partial, &disk) != 0)
        return error_from_errno(p->places.partial, err);
    /* With the blocks of the states, the record and the folders. */
    uint64_t needed = p->choice.n_bytes - bytes_reserved(p) + FILE_OVERHEAD_BYTES * (p->choice.n_files + 1);
    uint64_t free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (needed <= free_bytes)
        return TUTTI_OK;
    return error_set(
        err, TUTTI_E_IO,
        "%s: %.1f MB are needed, but the disk has only %.1f MB left; remove models with tutti rm, or "
        "set TUTTI_CACHE to a folder on another disk",
        p->places.root, (double)needed / 1e6, (double)free_bytes / 1e6);
}

/* ---- the pull ---- */

/* Bytes whose download an earlier pull has begun; exact for whole files only. */
static uint64_t bytes_there(const struct pull *p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->choice.n_files; i++) {
        struct part *part = NULL;
        if (part_open(&part, p->places.partial, p->choice.files[i], NULL) == TUTTI_OK)
            n += part_n_done(part);
        part_free(part);
    }
    return n;
}

static enum tutti_status download(struct pull *p, struct tutti_error *err)
{
    const struct hub_pull_options *options = p->session.options;
    adopt_files(p);
    enum tutti_status st = sweep(p, err);
    if (st == TUTTI_OK)
        st = check_space(p, err);
    /* Now, as the space of the files is reserved before the download: other programs may fill the disk. */
    if (st == TUTTI_OK)
        st = hub_record_write(p->places.partial, &p->listing, &p->choice, err);
    if (st != TUTTI_OK)
        return st;
    options->describe(options->user, p->listing.commit, &p->choice, bytes_there(p));
    st = download_files(&p->session, &p->choice, p->listing.commit, p->places.partial, err);
    if (st == TUTTI_OK)
        st = hub_publish(&p->places, err);
    return st;
}

static enum tutti_status run_pull(struct pull *p, bool *is_new, struct tutti_error *err)
{
    const struct hub_pull_options *options = p->session.options;
    enum tutti_status st = hub_lock(&p->places, on_wait, (void *)(uintptr_t)options, &p->lock, err);
    if (st == TUTTI_OK)
        st = hub_record_read(&p->record, p->places.complete, &p->has_record, err);
    if (st == TUTTI_OK)
        st = read_listing(p, err);
    if (st == TUTTI_OK)
        st = hub_choose(&p->choice, &p->listing, p->session.name, err);
    if (st == TUTTI_OK && p->choice.index)
        st = read_index(p, err);
    if (st != TUTTI_OK)
        return st;
    *is_new = !is_current(p);
    return *is_new ? download(p, err) : hub_remove_leftovers(&p->places, err);
}

enum tutti_status hub_pull(const struct hub_name *name, const struct hub_pull_options *options,
                           struct buf *path, bool *is_new, struct tutti_error *err)
{
    struct pull p = { .lock = -1 };
    bool is_there;
    *is_new = false;
    enum tutti_status st = hub_http_open(&p.session, name, options, err);
    if (st == TUTTI_OK)
        st = hub_places_of(&p.places, name, err);
    if (st == TUTTI_OK)
        st = run_pull(&p, is_new, err);
    if (st == TUTTI_OK)
        st = hub_find(name, path, &is_there, err);
    if (p.lock >= 0) {
        if (rmdir(p.places.partial) == 0 || errno == ENOENT) /* there is nothing to continue */
            hub_remove_empty_parents(p.places.partial, p.places.root);
        close(p.lock);
    }
    hub_choice_clear(&p.choice);
    hub_record_clear(&p.record);
    hub_listing_clear(&p.listing);
    hub_places_clear(&p.places);
    hub_http_close(&p.session);
    return st;
}
