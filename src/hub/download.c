#include "hub/download.h"

#include "base/system/clock.h"
#include "hub/part.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_POLL_MS = 200, MAX_WRONG = 2 };

/* A file. */
struct entry {
    const struct hub_file *file;
    struct part *part; /* NULL: not begun, or complete */
    char *url;
    uint64_t n_done;
    uint64_t n_most; /* of n_done: only more is progress, because starting over takes bytes away */
    int n_running;   /* transfers */
    int n_restarts;  /* for a server that ignores ranges */
    int n_wrong;     /* times that the complete file had another checksum */
    bool is_complete;
    bool ignores_ranges; /* start over with the whole file when no transfer runs */
};

/* A request for the rest of a segment. */
struct transfer {
    struct download *download;
    struct entry *entry; /* NULL: free */
    CURL *easy;
    int segment;
    uint64_t at, end; /* of the file */
    struct hub_answer answer;
    bool is_checked;
    bool
        is_doubtful; /* the answer to a range is status 200 without a length: the whole file, or a proxy's page */
};

struct download {
    struct hub_session *session;
    struct entry *entries;
    size_t n_entries, n_complete, first; /* first: entries before it are complete */
    struct transfer *transfers;
    int n_running;
    const char *folder;
    enum tutti_status status; /* of a callback */
    struct tutti_error *err;
};

/* ---- answers ---- */

static size_t reject(struct download *d, enum tutti_status st)
{
    d->status = st;
    return 0;
}

/* What the hub says of the file must be what it said in the listing. */
static enum tutti_status check_linked(const struct transfer *t, struct tutti_error *err)
{
    const struct hub_file *file = t->entry->file;
    const struct hub_answer *a = &t->answer;
    struct hub_checksum etag;
    if (a->linked_bytes >= 0 && (uint64_t)a->linked_bytes != file->n_bytes)
        return error_set(err, TUTTI_E_IO, "%s: X-Linked-Size is %" PRId64 ", expected %" PRIu64 " as listed",
                         t->entry->url, a->linked_bytes, file->n_bytes);
    if (hub_checksum_read(&etag, a->linked_etag) && etag.kind == file->checksum.kind &&
        !hub_checksum_equal(&etag, &file->checksum))
        return error_set(err, TUTTI_E_IO,
                         "%s: X-Linked-ETag is %.16s..., expected the checksum %.16s... as listed",
                         t->entry->url, etag.text, file->checksum.text);
    return TUTTI_OK;
}

/* Checks the headers when the first bytes of a good response arrive. */
static enum tutti_status check_answer(struct transfer *t, struct tutti_error *err)
{
    const struct hub_answer *a = &t->answer;
    uint64_t n_bytes = t->entry->file->n_bytes;
    curl_off_t length = -1;
    enum tutti_status st = check_linked(t, err);
    curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    if (st != TUTTI_OK)
        return st;
    if (a->status == 200 && length >= 0 && (uint64_t)length != n_bytes)
        return error_set(err, TUTTI_E_IO, "%s: %" PRId64 " bytes, expected %" PRIu64 " as listed",
                         t->entry->url, (int64_t)length, n_bytes);
    bool has_range = t->at > 0 || !part_is_whole(t->entry->part);
    if (a->status == 200 && has_range && length < 0 && t->entry->n_done > 0)
        t->is_doubtful = true; /* starting over would discard what has arrived */
    else if (a->status == 200)
        t->entry->ignores_ranges |= has_range;
    else if (a->range_begin != (int64_t)t->at || (a->range_total >= 0 && (uint64_t)a->range_total != n_bytes))
        st = error_set(err, TUTTI_E_IO,
                       "%s: bytes from %" PRId64 " of %" PRId64 ", expected those from %" PRIu64
                       " of %" PRIu64,
                       t->entry->url, a->range_begin, a->range_total, t->at, n_bytes);
    t->is_checked = true;
    return st;
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *user)
{
    struct transfer *t = user;
    struct download *d = t->download;
    n *= size;
    if (t->answer.status != 200 && t->answer.status != 206)
        return n; /* the text of an error */
    enum tutti_status st = t->is_checked ? TUTTI_OK : check_answer(t, d->err);
    if (st != TUTTI_OK)
        return reject(d, st);
    if (t->entry->ignores_ranges || t->is_doubtful)
        return 0;
    if (n > t->end - t->at)
        return reject(d, error_set(d->err, TUTTI_E_IO, "%s: more bytes than the %" PRIu64 " requested",
                                   t->entry->url, t->end - t->at));
    st = part_write(t->entry->part, t->segment, bytes, n, d->err);
    if (st != TUTTI_OK)
        return reject(d, st);
    t->at += n;
    t->entry->n_done += n;
    if (t->entry->n_done > t->entry->n_most) {
        t->entry->n_most = t->entry->n_done;
        d->session->n_failures = 0;
    }
    return n;
}

/* ---- transfers ---- */

static void end_transfer(struct transfer *t)
{
    curl_multi_remove_handle(t->download->session->multi, t->easy);
    curl_easy_cleanup(t->easy);
    part_release(t->entry->part, t->segment);
    t->entry->n_running--;
    t->download->n_running--;
    t->entry = NULL;
    t->easy = NULL;
}

/* Those of a file: before its part is freed or starts over, because a transfer holds a segment of it. */
static void end_transfers(struct download *d, const struct entry *entry)
{
    int n = d->session->options->n_connections;
    for (int i = 0; i < n; i++)
        if (d->transfers[i].entry == entry)
            end_transfer(&d->transfers[i]);
}

/* Begins a transfer of a segment that the caller has taken. */
static enum tutti_status begin_transfer(struct download *d, struct transfer *t, struct entry *entry,
                                        int segment, uint64_t begin, uint64_t end)
{
    *t = (struct transfer){ .download = d, .segment = segment, .at = begin, .end = end };
    t->easy = hub_http_request(d->session, entry->url, &t->answer, on_bytes, t);
    bool ok = t->easy;
    if (ok && (begin > 0 || end < entry->file->n_bytes)) {
        char range[64];
        snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, begin, end - 1);
        ok = curl_easy_setopt(t->easy, CURLOPT_RANGE, range) == CURLE_OK;
    }
    ok = ok && curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t) == CURLE_OK &&
         curl_multi_add_handle(d->session->multi, t->easy) == CURLM_OK;
    if (!ok) {
        curl_easy_cleanup(t->easy);
        part_release(entry->part, segment);
        return error_out_of_memory(entry->url, d->err);
    }
    t->entry = entry;
    entry->n_running++;
    d->n_running++;
    return TUTTI_OK;
}

static enum tutti_status open_entry(struct download *d, struct entry *entry)
{
    enum tutti_status st = part_open(&entry->part, d->folder, entry->file, d->err);
    if (st == TUTTI_OK)
        entry->n_done = entry->n_most = part_n_done(entry->part);
    return st;
}

/* Begins transfers on free connections: of files in their order, of segments in theirs. */
static enum tutti_status begin_transfers(struct download *d)
{
    enum tutti_status st = TUTTI_OK;
    int n = d->session->options->n_connections;
    size_t at = d->first;
    if (clock_now_us() < d->session->not_before_us)
        return TUTTI_OK;
    for (int i = 0; i < n && st == TUTTI_OK; i++) {
        if (d->transfers[i].entry)
            continue;
        for (; at < d->n_entries && st == TUTTI_OK; at++) {
            struct entry *entry = &d->entries[at];
            uint64_t begin, end;
            if (entry->is_complete || entry->ignores_ranges)
                continue;
            if (!entry->part)
                st = open_entry(d, entry);
            int segment = st == TUTTI_OK ? part_take(entry->part, &begin, &end) : -1;
            if (segment < 0)
                continue;
            st = begin_transfer(d, &d->transfers[i], entry, segment, begin, end);
            break;
        }
    }
    return st;
}

/* A transfer has ended, well or not. How does not matter once all its bytes are there. */
static enum tutti_status finish_transfer(struct download *d, struct transfer *t, CURLcode code)
{
    struct entry *entry = t->entry;
    enum tutti_status st = d->status;
    char text[500];
    if (st == TUTTI_OK && t->is_doubtful && !entry->ignores_ranges) {
        snprintf(
            text, sizeof text,
            "%s: the answer to a request for the bytes from %" PRIu64
            " on has status 200 and no length; if the server sends nothing else, 'tutti rm' removes what "
            "was downloaded, and the model can be downloaded from its start",
            entry->url, t->at);
        st = hub_http_try_again(d->session, 0, text, d->err);
    } else if (st == TUTTI_OK && !entry->ignores_ranges && t->at < t->end &&
               hub_http_is_good(d->session, t->easy, code, &t->answer, entry->url, &st, d->err)) {
        /* A response that ended early, as it said it would. */
        snprintf(text, sizeof text, "%s: the answer ended at byte %" PRIu64 " of %" PRIu64, entry->url, t->at,
                 t->end);
        st = hub_http_try_again(d->session, 0, text, d->err);
    }
    end_transfer(t);
    return st;
}

static enum tutti_status read_messages(struct download *d)
{
    enum tutti_status st = TUTTI_OK;
    const CURLMsg *message;
    int n_left;
    while (st == TUTTI_OK && (message = curl_multi_info_read(d->session->multi, &n_left))) {
        struct transfer *t = NULL;
        CURLcode code = message->data.result;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        if (message->msg == CURLMSG_DONE && t)
            st = finish_transfer(d, t, code);
    }
    return st == TUTTI_OK ? d->status : st;
}

/* ---- files ---- */

/* For a server that ignores ranges: when the other transfers of the file have ended, all of it is one. Except
 * for the first time, a break has cost all of the file; such breaks have the limit of failures. */
static enum tutti_status restart_entry(struct download *d, struct entry *entry)
{
    end_transfers(d, entry);
    if (entry->n_restarts++ > d->session->options->n_retries)
        return error_set(d->err, TUTTI_E_IO,
                         "%s: the server ignores ranges, so that each break starts the file over: at most "
                         "%" PRIu64 " of %" PRIu64 " bytes arrived, gave up after %d attempts",
                         entry->url, entry->n_most, entry->file->n_bytes, entry->n_restarts);
    entry->ignores_ranges = false;
    entry->n_done = 0;
    return part_start_over(entry->part, true, d->err);
}

static enum tutti_status wrong_checksum(struct download *d, struct entry *entry, const char *found)
{
    char text[500];
    snprintf(text, sizeof text, "%s: the checksum is %.16s..., expected %.16s...", entry->url, found,
             entry->file->checksum.text);
    end_transfers(d, entry);
    entry->n_done = entry->n_most = 0;
    enum tutti_status st = part_start_over(entry->part, part_is_whole(entry->part), d->err);
    if (st == TUTTI_OK && ++entry->n_wrong == MAX_WRONG)
        return error_set(
            d->err, TUTTI_E_IO,
            "%s; it was downloaded twice and removed. The file on the hub is damaged, or a proxy "
            "changes it",
            text);
    if (st == TUTTI_OK) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "; downloading it again");
        d->session->options->note(d->session->options->user, text);
    }
    return st;
}

/* Adds what has arrived to the checksums. *is_busy: there is more to add. */
static enum tutti_status check_entries(struct download *d, bool *is_busy)
{
    enum tutti_status st = TUTTI_OK;
    *is_busy = false;
    for (size_t i = d->first; i < d->n_entries && st == TUTTI_OK && !*is_busy; i++) {
        struct entry *entry = &d->entries[i];
        enum part_check check = PART_INCOMPLETE;
        char found[DIGEST_TEXT_BYTES];
        if (entry->is_complete)
            continue;
        if (!entry->part)
            break; /* nor are those after it open */
        if (entry->ignores_ranges)
            st = restart_entry(d, entry);
        else
            st = part_check(entry->part, &check, found, d->err);
        if (st != TUTTI_OK)
            break;
        *is_busy = check == PART_CHECKING;
        if (check == PART_WRONG)
            st = wrong_checksum(d, entry, found);
        if (check != PART_COMPLETE)
            continue;
        /* An answer without a length may be open still, although it has no bytes left to send. */
        end_transfers(d, entry);
        part_free(entry->part);
        entry->part = NULL;
        entry->is_complete = true;
        entry->n_done = entry->file->n_bytes;
        d->n_complete++;
    }
    while (d->first < d->n_entries && d->entries[d->first].is_complete)
        d->first++;
    return st;
}

static void report(const struct download *d, uint64_t n_total)
{
    uint64_t n_done = 0;
    for (size_t i = 0; i < d->n_entries; i++)
        n_done += d->entries[i].n_done;
    d->session->options->progress(d->session->options->user, n_done, n_total);
}

/* Milliseconds to wait for something to happen. */
static int poll_ms(const struct download *d, bool is_busy)
{
    uint64_t now = clock_now_us();
    if (is_busy)
        return 0;
    if (d->session->not_before_us <= now)
        return d->n_running > 0 ? MAX_POLL_MS : 0;
    uint64_t ms = (d->session->not_before_us - now) / 1000 + 1;
    return ms < MAX_POLL_MS ? (int)ms : MAX_POLL_MS;
}

static enum tutti_status run_download(struct download *d, uint64_t n_total)
{
    while (d->n_complete < d->n_entries) {
        bool is_busy;
        int n_running;
        enum tutti_status st = begin_transfers(d);
        if (st == TUTTI_OK && curl_multi_perform(d->session->multi, &n_running) != CURLM_OK)
            st = error_set(d->err, TUTTI_E_INTERNAL, "libcurl cannot go on");
        if (st == TUTTI_OK)
            st = read_messages(d);
        if (st == TUTTI_OK)
            st = check_entries(d, &is_busy);
        if (st != TUTTI_OK)
            return st;
        report(d, n_total);
        if (d->n_complete < d->n_entries)
            curl_multi_poll(d->session->multi, NULL, 0, poll_ms(d, is_busy), NULL);
    }
    return TUTTI_OK;
}

/* Makes the entries with their URLs and what is there of them, and reserves the space of all. */
static enum tutti_status make_entries(struct download *d, const struct hub_choice *choice, const char *commit)
{
    for (size_t i = 0; i < choice->n_files; i++) {
        struct entry *entry = &d->entries[i];
        struct buf url = { 0 };
        entry->file = choice->files[i];
        bool ok = hub_add_file_url(&url, d->session->name, *commit ? commit : NULL, entry->file->path);
        entry->url = url.bytes;
        enum tutti_status st = ok ? open_entry(d, entry) : error_out_of_memory(entry->file->path, d->err);
        part_free(entry->part);
        entry->part = NULL;
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

enum tutti_status download_files(struct hub_session *session, const struct hub_choice *choice,
                                 const char *commit, const char *folder, struct tutti_error *err)
{
    struct download d = { .session = session, .n_entries = choice->n_files, .folder = folder, .err = err };
    d.entries = calloc(choice->n_files, sizeof *d.entries);
    d.transfers = calloc((size_t)session->options->n_connections, sizeof *d.transfers);
    enum tutti_status st = d.entries && d.transfers ? make_entries(&d, choice, commit)
                                                    : error_out_of_memory(folder, err);
    if (st == TUTTI_OK)
        st = run_download(&d, choice->n_bytes);
    for (int i = 0; d.transfers && i < session->options->n_connections; i++)
        if (d.transfers[i].entry)
            end_transfer(&d.transfers[i]);
    for (size_t i = 0; d.entries && i < d.n_entries; i++) {
        part_free(d.entries[i].part);
        free(d.entries[i].url);
    }
    free(d.transfers);
    free(d.entries);
    return st;
}
