#include "checkpoint/shards/shards.h"

#include "checkpoint/mindspore/mindspore.h"
#include "checkpoint/safetensors.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A run of dimension dim of the whole, from one rank's part. */
struct piece {
    const struct tensor *from;
    int64_t at, n, from_begin; /* in the whole; elements; in the part */
};

/* A tensor of several pieces. */
struct joined {
    struct tensor_source source;
    struct tensor tensor;
    const struct tensor **from;
    struct piece *pieces; /* [n_pieces], by offset: they cover the whole exactly */
    size_t n_pieces;
    int dim;
};

struct rank {
    struct shard_manifest *manifest;
    struct safetensors *safetensors; /* or */
    struct mindspore *mindspore;
    const struct tensor **parts; /* [n_tensors of the manifest] */
};

struct shards {
    char *folder;
    struct rank *ranks; /* [n_ranks] */
    int n_ranks, first; /* first: the number of ranks[0] */
    struct joined *joined;
    const struct tensor **tensors; /* [n_tensors] */
    size_t n_tensors;
};

static enum tutti_status out_of_memory(const char *folder, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", folder);
}

void shards_rank_folder(char *out, size_t size, const char *folder, int rank)
{
    snprintf(out, size, "%s/rank_%d", folder, rank);
}

bool shards_is(const char *folder)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/rank_0/%s", folder, SHARD_MANIFEST_FILE);
    return n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

/* ---- one rank ---- */

static size_t count_tensors(const struct rank *r)
{
    return r->safetensors ? safetensors_n_tensors(r->safetensors) : mindspore_n_tensors(r->mindspore);
}

static const struct tensor *get_tensor(const struct rank *r, size_t i)
{
    return r->safetensors ? safetensors_tensor(r->safetensors, i) : mindspore_tensor(r->mindspore, i);
}

/* Checks the rank and model in the file's metadata, if its format has metadata. */
static enum tutti_status check_owner(const struct rank *r, const char *path, struct tutti_error *err)
{
    const json_t *metadata = r->safetensors ? safetensors_metadata(r->safetensors) : NULL;
    const char *fingerprint = json_string_value(json_object_get(metadata, "fingerprint"));
    const char *rank = json_string_value(json_object_get(metadata, "rank"));
    char expected[16];
    snprintf(expected, sizeof expected, "%d", r->manifest->rank);
    if (fingerprint && strcmp(fingerprint, r->manifest->fingerprint) != 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: of model %.16s, but the folder is of model %.16s", path,
                         fingerprint, r->manifest->fingerprint);
    if (rank && strcmp(rank, expected) != 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: the tensors of rank %.16s, but the folder is rank %s",
                         path, rank, expected);
    return TUTTI_OK;
}

static enum tutti_status open_file(struct rank *r, const char *folder, struct tutti_error *err)
{
    char path[PATH_MAX];
    struct stat info;
    const struct shard_file *file = &r->manifest->files[0];
    int n = snprintf(path, sizeof path, "%s/%s", folder, file->name);
    if (n < 0 || (size_t)n >= sizeof path)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: the path is too long", folder);
    if (stat(path, &info) != 0)
        return error_set(err, errno == ENOENT ? TUTTI_E_NOT_FOUND : TUTTI_E_IO, "%s: %s", path,
                         strerror(errno));
    if (info.st_size != file->n_bytes)
        return error_set(err, TUTTI_E_FORMAT, "%s: %lld bytes, but %s says %" PRId64, path,
                         (long long)info.st_size, r->manifest->path, file->n_bytes);
    size_t length = strlen(path);
    bool is_mindspore = length > 5 && strcmp(path + length - 5, ".ckpt") == 0;
    enum tutti_status st = is_mindspore ? mindspore_open(&r->mindspore, path, err)
                                        : safetensors_open(&r->safetensors, path, err);
    return st == TUTTI_OK ? check_owner(r, path, err) : st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct tensor *const *)a)->name, (*(const struct tensor *const *)b)->name);
}

static enum tutti_status check_part(const struct shard_manifest *m, const struct shard_tensor *want,
                                    const struct tensor *found, struct tutti_error *err)
{
    int64_t shape[LIMIT_TENSOR_DIMS];
    memcpy(shape, want->shape, sizeof shape);
    if (want->dim >= 0)
        shape[want->dim] = want->n_part;
    if (found && found->dtype == want->dtype && found->n_dims == want->n_dims &&
        memcmp(found->shape, shape, (size_t)want->n_dims * sizeof *shape) == 0)
        return TUTTI_OK;
    char text[96], found_text[96];
    tensor_shape_text(text, sizeof text, shape, want->n_dims);
    if (!found)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s is not in %s", m->path, want->name,
                         m->files[0].name);
    tensor_shape_text(found_text, sizeof found_text, found->shape, found->n_dims);
    return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %s %s, but %s says %s %s", found->file, want->name,
                     dtype_name(found->dtype), found_text, m->path, dtype_name(want->dtype), text);
}

/* The file's tensors in the manifest's order. */
static enum tutti_status find_parts(struct rank *r, struct tutti_error *err)
{
    const struct shard_manifest *m = r->manifest;
    size_t n = count_tensors(r);
    if (n != m->n_tensors)
        return error_set(err, TUTTI_E_FORMAT, "%s: %zu tensors, but %s holds %zu", m->path, m->n_tensors,
                         m->files[0].name, n);
    const struct tensor **sorted = malloc((n + 1) * sizeof *sorted);
    r->parts = calloc(n + 1, sizeof *r->parts);
    enum tutti_status st = sorted && r->parts ? TUTTI_OK : out_of_memory(m->path, err);
    for (size_t i = 0; i < n && st == TUTTI_OK; i++)
        sorted[i] = get_tensor(r, i);
    if (st == TUTTI_OK)
        qsort((void *)sorted, n, sizeof *sorted, by_name);
    for (size_t i = 0; i < n && st == TUTTI_OK; i++) {
        const struct tensor key = { .name = m->tensors[i].name }, *like = &key;
        const struct tensor **found = bsearch(&like, (void *)sorted, n, sizeof *sorted, by_name);
        r->parts[i] = found ? *found : NULL;
        st = check_part(m, &m->tensors[i], r->parts[i], err);
    }
    free((void *)sorted);
    return st;
}

static enum tutti_status open_rank(struct shards *s, int index, struct tutti_error *err)
{
    char folder[PATH_MAX];
    struct rank *r = &s->ranks[index];
    int rank = s->first + index;
    struct stat info;
    shards_rank_folder(folder, sizeof folder, s->folder, rank);
    if (stat(folder, &info) != 0 && errno == ENOENT)
        return error_set(err, TUTTI_E_NOT_FOUND, "%s: rank_%d is missing", s->folder, rank);
    enum tutti_status st = shard_manifest_read(&r->manifest, folder, err);
    if (st == TUTTI_OK && !r->manifest)
        return error_set(err, TUTTI_E_NOT_FOUND,
                         "%s: there is no %s, so it is no rank of a sharded checkpoint", folder,
                         SHARD_MANIFEST_FILE);
    if (st == TUTTI_OK && r->manifest->rank != rank)
        return error_set(err, TUTTI_E_FORMAT, "%s: it holds rank %d of %d; is it in the place of another?",
                         folder, r->manifest->rank, r->manifest->n_ranks);
    if (st == TUTTI_OK)
        st = open_file(r, folder, err);
    return st == TUTTI_OK ? find_parts(r, err) : st;
}

/* ---- the whole ---- */

/* Views the whole as [before][dim][after]. */
static void sizes_around(const struct tensor *t, int dim, size_t *before, size_t *after_bytes)
{
    *before = 1;
    *after_bytes = (size_t)dtype_block_bytes(t->dtype);
    for (int i = 0; i < t->n_dims; i++) {
        if (i < dim)
            *before *= (size_t)t->shape[i];
        else if (i > dim)
            *after_bytes *= (size_t)t->shape[i];
    }
}

static bool join(const struct tensor *t, void *bytes)
{
    const struct joined *j = (const struct joined *)t->source;
    size_t before, after;
    sizes_around(t, j->dim, &before, &after);
    for (size_t i = 0; i < j->n_pieces; i++) {
        const struct piece *p = &j->pieces[i];
        void *owned;
        const uint8_t *part = tensor_bytes(p->from, &owned);
        size_t n = (size_t)p->n * after, stride = (size_t)t->shape[j->dim] * after;
        size_t part_stride = (size_t)p->from->shape[j->dim] * after;
        if (!part)
            return false;
        for (size_t b = 0; b < before; b++)
            memcpy((uint8_t *)bytes + b * stride + (size_t)p->at * after,
                   part + b * part_stride + (size_t)p->from_begin * after, n);
        free(owned);
    }
    return true;
}

/* A piece of part [row, …) x [column, …): along dimension 0: rows; otherwise columns, in units of
 * the dimensions after 1. */
static bool join_part(const struct tensor *t, const struct tensor_part *part, void *bytes)
{
    const struct joined *j = (const struct joined *)t->source;
    size_t out_stride = tensor_columns_bytes(t, part->n_columns);
    int64_t begin = j->dim == 0 ? part->row : part->column;
    int64_t end = begin + (j->dim == 0 ? part->n_rows : part->n_columns);
    for (size_t i = 0; i < j->n_pieces; i++) {
        const struct piece *p = &j->pieces[i];
        int64_t from = p->at > begin ? p->at : begin, to = p->at + p->n < end ? p->at + p->n : end;
        if (from >= to)
            continue;
        struct tensor_view view;
        struct tensor_part wanted = *part;
        int64_t shift = p->from_begin - p->at;
        uint8_t *out = bytes;
        bool ok = tensor_view_init(&view, p->from);
        if (j->dim == 0) {
            wanted.row = from + shift;
            wanted.n_rows = to - from;
            out += (size_t)(from - part->row) * out_stride;
            ok = ok && tensor_view_copy(&view, &wanted, out);
        } else {
            out += tensor_columns_bytes(t, from - part->column);
            for (int64_t r = 0; ok && r < part->n_rows; r++, out += out_stride) {
                const struct tensor_part line = { part->row + r, 1, from + shift, to - from };
                ok = tensor_view_copy(&view, &line, out);
            }
        }
        tensor_view_clear(&view);
        if (!ok)
            return false;
    }
    return true;
}

static int by_place(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->n < y->n ? -1 : x->n > y->n;
}

/* Several ranks may have equal parts; otherwise every element must be present exactly once. */
static enum tutti_status check_cover(const struct shards *s, struct joined *j, struct tutti_error *err)
{
    size_t n = 0;
    int64_t end = 0;
    qsort(j->pieces, j->n_pieces, sizeof *j->pieces, by_place);
    for (size_t i = 0; i < j->n_pieces; i++) {
        const struct piece *p = &j->pieces[i];
        if (n > 0 && p->at == j->pieces[n - 1].at && p->n == j->pieces[n - 1].n)
            continue;
        if (p->at != end)
            break;
        end += p->n;
        j->pieces[n++] = *p;
    }
    if (end != j->tensor.shape[j->dim])
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: the ranks' parts do not follow each other at %" PRId64
                         " of %" PRId64,
                         s->folder, j->tensor.name, end, j->tensor.shape[j->dim]);
    j->n_pieces = n;
    for (size_t i = 0; i < n; i++)
        j->from[i] = j->pieces[i].from;
    j->source.n_from = n;
    return TUTTI_OK;
}

static enum tutti_status join_tensor(const struct shards *s, struct joined *j, size_t index,
                                     struct tutti_error *err)
{
    const struct shard_tensor *first = &s->ranks[0].manifest->tensors[index];
    size_t n_most = (size_t)s->n_ranks * SHARD_MAX_RUNS;
    j->pieces = calloc(n_most, sizeof *j->pieces);
    j->from = calloc(n_most, sizeof *j->from);
    if (!j->pieces || !j->from)
        return out_of_memory(s->folder, err);
    j->dim = first->dim;
    j->source = (struct tensor_source){ .make = join,
                                        .make_part = first->n_dims <= 2 ? join_part : NULL,
                                        .from = j->from };
    j->tensor = *s->ranks[0].parts[index];
    j->tensor.data = NULL;
    j->tensor.map = NULL;
    j->tensor.source = &j->source;
    memcpy(j->tensor.shape, first->shape, sizeof first->shape);
    if (!tensor_measure(&j->tensor))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the whole's size overflows",
                         s->ranks[0].manifest->path, first->name);
    for (int rank = 0; rank < s->n_ranks; rank++) {
        const struct shard_tensor *t = &s->ranks[rank].manifest->tensors[index];
        int64_t at = 0;
        for (int i = 0; i < t->n_runs; i++) {
            int64_t n = t->runs[i][1] - t->runs[i][0];
            j->pieces[j->n_pieces++] = (struct piece){ s->ranks[rank].parts[index], t->runs[i][0], n, at };
            at += n;
        }
    }
    return check_cover(s, j, err);
}

/* Checks that the ranks' manifests agree. */
static enum tutti_status compare_ranks(const struct shards *s, int rank, struct tutti_error *err)
{
    const struct shard_manifest *first = s->ranks[0].manifest, *m = s->ranks[rank].manifest;
    if (m->n_ranks != first->n_ranks)
        return error_set(err, TUTTI_E_FORMAT, "%s/rank_%d: one of %d ranks, but rank_0 is one of %d",
                         s->folder, rank, m->n_ranks, first->n_ranks);
    if (strcmp(m->fingerprint, first->fingerprint) != 0)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s/rank_%d: it belongs to another model (fingerprint %.16s, rank_0 has %.16s)",
                         s->folder, rank, m->fingerprint, first->fingerprint);
    if (m->n_tensors != first->n_tensors)
        return error_set(err, TUTTI_E_FORMAT, "%s: %zu tensors, but %s has %zu", m->path, m->n_tensors,
                         first->path, first->n_tensors);
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct shard_tensor *a = &first->tensors[i], *b = &m->tensors[i];
        if (strcmp(a->name, b->name) != 0 || a->dtype != b->dtype || a->n_dims != b->n_dims ||
            a->dim != b->dim || memcmp(a->shape, b->shape, sizeof a->shape) != 0)
            return error_set(err, TUTTI_E_FORMAT, "%s: tensors[%zu]: it differs from the one in %s", m->path,
                             i, first->path);
    }
    return TUTTI_OK;
}

static enum tutti_status join_all(struct shards *s, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (int rank = 1; rank < s->n_ranks && st == TUTTI_OK; rank++)
        st = compare_ranks(s, rank, err);
    size_t n = s->ranks[0].manifest->n_tensors;
    s->joined = calloc(n, sizeof *s->joined);
    if (st == TUTTI_OK && !s->joined)
        return out_of_memory(s->folder, err);
    for (size_t i = 0; i < n && st == TUTTI_OK; i++) {
        bool is_cut = s->ranks[0].manifest->tensors[i].dim >= 0;
        if (is_cut)
            st = join_tensor(s, &s->joined[i], i, err);
        s->tensors[i] = is_cut ? &s->joined[i].tensor : s->ranks[0].parts[i];
    }
    return st;
}

/* An unexpected rank folder may be left over from another sharding, so it is an error. */
static enum tutti_status check_no_more(const struct shards *s, int n_ranks, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    DIR *dir = opendir(s->folder);
    if (!dir)
        return error_set(err, TUTTI_E_IO, "%s: %s", s->folder, strerror(errno));
    for (const struct dirent *entry; st == TUTTI_OK && (entry = readdir(dir));) {
        char *end = NULL;
        bool is_rank = strncmp(entry->d_name, "rank_", 5) == 0 && isdigit((unsigned char)entry->d_name[5]);
        long rank = is_rank ? strtol(entry->d_name + 5, &end, 10) : 0;
        if (is_rank && *end == '\0' && rank >= n_ranks)
            st = error_set(err, TUTTI_E_FORMAT, "%s: %s is here, but rank_0 is one of %d ranks", s->folder,
                           entry->d_name, n_ranks);
    }
    closedir(dir);
    return st;
}

static enum tutti_status open_all(struct shards *s, struct tutti_error *err)
{
    char folder[PATH_MAX];
    struct shard_manifest *first = NULL;
    shards_rank_folder(folder, sizeof folder, s->folder, 0);
    enum tutti_status st = shard_manifest_read(&first, folder, err);
    if (st != TUTTI_OK)
        return st;
    if (!first)
        return error_set(err, TUTTI_E_NOT_FOUND, "%s: rank_0 is missing, or has no %s", s->folder,
                         SHARD_MANIFEST_FILE);
    int n_ranks = first->n_ranks;
    shard_manifest_free(first);
    s->ranks = calloc((size_t)n_ranks, sizeof *s->ranks);
    if (!s->ranks)
        return out_of_memory(s->folder, err);
    s->n_ranks = n_ranks;
    st = check_no_more(s, n_ranks, err);
    for (int i = 0; i < n_ranks && st == TUTTI_OK; i++)
        st = open_rank(s, i, err);
    return st;
}

static enum tutti_status open_one(struct shards *s, int rank, struct tutti_error *err)
{
    s->ranks = calloc(1, sizeof *s->ranks);
    if (!s->ranks)
        return out_of_memory(s->folder, err);
    s->n_ranks = 1;
    s->first = rank;
    return open_rank(s, 0, err);
}

/* rank -1: all. */
static enum tutti_status open_shards(struct shards **out, const char *folder, int rank,
                                     struct tutti_error *err)
{
    struct shards *s = calloc(1, sizeof *s);
    if (!s || !(s->folder = strdup(folder))) {
        free(s);
        return out_of_memory(folder, err);
    }
    enum tutti_status st = rank < 0 ? open_all(s, err) : open_one(s, rank, err);
    if (st != TUTTI_OK)
        goto done;
    assert(s->n_ranks > 0 && s->ranks[0].manifest); /* a manifest counts one rank at least */
    s->n_tensors = s->ranks[0].manifest->n_tensors;
    s->tensors = calloc(s->n_tensors + 1, sizeof *s->tensors);
    if (!s->tensors) {
        st = out_of_memory(folder, err);
        goto done;
    }
    if (rank < 0)
        st = join_all(s, err);
    else
        memcpy((void *)s->tensors, (void *)s->ranks[0].parts, s->n_tensors * sizeof *s->tensors);
    if (st != TUTTI_OK)
        goto done;
    *out = s;
    s = NULL;
done:
    shards_close(s);
    return st;
}

enum tutti_status shards_open(struct shards **out, const char *folder, struct tutti_error *err)
{
    return open_shards(out, folder, -1, err);
}

enum tutti_status shards_open_rank(struct shards **out, const char *folder, int rank, struct tutti_error *err)
{
    return open_shards(out, folder, rank, err);
}

void shards_close(struct shards *s)
{
    if (!s)
        return;
    for (size_t i = 0; s->joined && i < s->ranks[0].manifest->n_tensors; i++) {
        free(s->joined[i].pieces);
        free((void *)s->joined[i].from);
    }
    for (int i = 0; i < s->n_ranks; i++) {
        shard_manifest_free(s->ranks[i].manifest);
        safetensors_close(s->ranks[i].safetensors);
        mindspore_close(s->ranks[i].mindspore);
        free((void *)s->ranks[i].parts);
    }
    free(s->joined);
    free(s->ranks);
    free((void *)s->tensors);
    free(s->folder);
    free(s);
}

size_t shards_n_tensors(const struct shards *s)
{
    return s->n_tensors;
}

const struct tensor *shards_tensor(const struct shards *s, size_t index)
{
    return s->tensors[index];
}

const struct shard_manifest *shards_manifest(const struct shards *s, int rank)
{
    return s->ranks[rank - s->first].manifest;
}
