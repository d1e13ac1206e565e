#include "checkpoint/shards/shards.h"

#include "checkpoint/mindspore/mindspore.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_join.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A run of dimension dim of the whole, from one rank's part. */
struct shard_piece {
    const struct tensor *from;
    int64_t at, n, from_begin; /* in the whole; elements; in the part */
};

struct rank {
    struct shard_manifest *manifest;
    struct tensor_set *file;
    const struct tensor **parts; /* [n_tensors of the manifest] */
};

struct shards {
    struct tensor_set set;
    const char *folder; /* the set's name */
    struct rank *ranks; /* [n_ranks] */
    int n_ranks, first; /* first: the number of ranks[0] */
    bool is_one;        /* only the rank first is open */
    struct tensor_join *joins;
};

void shards_rank_folder(char *out, size_t size, const char *folder, int rank)
{
    snprintf(out, size, "%s/rank_%d", folder, rank);
}

/* Whether a folder has rank_0 with a manifest. */
static bool shards_is(const char *folder)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/rank_0/%s", folder, SHARD_MANIFEST_FILE);
    return n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

/* ---- one rank ---- */

/* Checks the rank and model in the file's metadata, if its format has metadata. */
static enum tutti_status check_owner(const struct rank *r, const char *path, struct tutti_error *err)
{
    const json_t *metadata = safetensors_metadata(r->file);
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
    bool is_mindspore = checkpoint_format_has_ending(&MINDSPORE_FORMAT, path);
    enum tutti_status st = tensor_set_open_as(
        &r->file, is_mindspore ? &MINDSPORE_FORMAT : &SAFETENSORS_FORMAT, path, err);
    return st == TUTTI_OK ? check_owner(r, path, err) : st;
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
static enum tutti_status shards_find_parts(struct rank *r, struct tutti_error *err)
{
    const struct shard_manifest *m = r->manifest;
    size_t n = r->file->n;
    if (n != m->n_tensors)
        return error_set(err, TUTTI_E_FORMAT, "%s: %zu tensors, but %s holds %zu", m->path, m->n_tensors,
                         m->files[0].name, n);
    const struct tensor **sorted = tensors_sorted(r->file->tensors, n);
    r->parts = calloc(n + 1, sizeof *r->parts);
    enum tutti_status st = sorted && r->parts ? TUTTI_OK : error_out_of_memory(m->path, err);
    for (size_t i = 0; i < n && st == TUTTI_OK; i++) {
        r->parts[i] = tensors_find(sorted, n, m->tensors[i].name);
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
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: it holds rank %d of %d: the folders of two ranks may have been swapped", folder,
                         r->manifest->rank, r->manifest->n_ranks);
    if (st == TUTTI_OK)
        st = open_file(r, folder, err);
    return st == TUTTI_OK ? shards_find_parts(r, err) : st;
}

/* ---- the whole ---- */

static int by_place(const void *a, const void *b)
{
    const struct shard_piece *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->n < y->n ? -1 : x->n > y->n;
}

/* Adds the pieces of t, which is cut along dim. Several ranks may have equal parts; otherwise every
 * element must be present exactly once. */
static enum tutti_status add_pieces(const struct shards *s, struct tensor_join *join, const struct tensor *t,
                                    int dim, struct shard_piece *pieces, size_t n_pieces,
                                    struct tutti_error *err)
{
    int64_t from_at[LIMIT_TENSOR_DIMS] = { 0 }, at[LIMIT_TENSOR_DIMS] = { 0 }, n[LIMIT_TENSOR_DIMS];
    int64_t end = 0;
    memcpy(n, t->shape, sizeof n);
    qsort(pieces, n_pieces, sizeof *pieces, by_place);
    for (size_t i = 0; i < n_pieces; i++) {
        const struct shard_piece *p = &pieces[i];
        if (i > 0 && p->at == pieces[i - 1].at && p->n == pieces[i - 1].n)
            continue;
        if (p->at != end)
            break;
        end += p->n;
        from_at[dim] = p->from_begin;
        at[dim] = p->at;
        n[dim] = p->n;
        if (!tensor_join_add(join, t->n_dims, p->from, from_at, at, n))
            return error_out_of_memory(s->folder, err);
    }
    if (end == t->shape[dim])
        return TUTTI_OK;
    return error_set(err, TUTTI_E_FORMAT,
                     "%s: tensor %s: the ranks' parts do not follow each other at %" PRId64 " of %" PRId64,
                     s->folder, t->name, end, t->shape[dim]);
}

/* Makes t, a copy of rank_0's part, the whole tensor. */
static enum tutti_status join_tensor(struct shards *s, struct tensor *t, size_t index,
                                     struct tutti_error *err)
{
    const struct shard_tensor *first = &s->ranks[0].manifest->tensors[index];
    memcpy(t->shape, first->shape, sizeof first->shape);
    if (!tensor_measure(t))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the whole's size overflows",
                         s->ranks[0].manifest->path, first->name);
    struct shard_piece *pieces = calloc((size_t)s->n_ranks * SHARD_MAX_RUNS, sizeof *pieces);
    struct tensor_join *join = tensor_join_new(&s->joins, t, false);
    size_t n_pieces = 0;
    enum tutti_status st = pieces && join ? TUTTI_OK : error_out_of_memory(s->folder, err);
    for (int rank = 0; rank < s->n_ranks && st == TUTTI_OK; rank++) {
        const struct shard_tensor *part = &s->ranks[rank].manifest->tensors[index];
        int64_t at = 0;
        for (int i = 0; i < part->n_runs; i++) {
            int64_t n = part->runs[i][1] - part->runs[i][0];
            pieces[n_pieces++] = (struct shard_piece){ s->ranks[rank].parts[index], part->runs[i][0], n, at };
            at += n;
        }
    }
    if (st == TUTTI_OK)
        st = add_pieces(s, join, t, first->dim, pieces, n_pieces, err);
    free(pieces);
    return st;
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
    for (size_t i = 0; i < s->set.n && st == TUTTI_OK; i++) {
        if (s->ranks[0].manifest->tensors[i].dim >= 0)
            st = join_tensor(s, &s->set.tensors[i], i, err);
    }
    return st;
}

/* An unexpected rank folder may be left over from another sharding, so it is an error. */
static enum tutti_status check_no_more(const struct shards *s, int n_ranks, struct tutti_error *err)
{
    long last;
    enum tutti_status st = rank_folders_last(s->folder, &last, err);
    if (st == TUTTI_OK && last >= n_ranks)
        st = error_set(err, TUTTI_E_FORMAT, "%s: rank_%ld is here, but rank_0 is one of %d ranks", s->folder,
                       last, n_ranks);
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
        return error_out_of_memory(s->folder, err);
    s->n_ranks = n_ranks;
    st = check_no_more(s, n_ranks, err);
    for (int i = 0; i < n_ranks && st == TUTTI_OK; i++)
        st = open_rank(s, i, err);
    return st;
}

static enum tutti_status open_one(struct shards *s, struct tutti_error *err)
{
    s->ranks = calloc(1, sizeof *s->ranks);
    if (!s->ranks)
        return error_out_of_memory(s->folder, err);
    s->n_ranks = 1;
    return open_rank(s, 0, err);
}

static void shards_clear(struct tensor_set *set)
{
    struct shards *s = (struct shards *)set;
    tensor_joins_free(s->joins);
    for (int i = 0; i < s->n_ranks; i++) {
        shard_manifest_free(s->ranks[i].manifest);
        tensor_set_close(s->ranks[i].file);
        free((void *)s->ranks[i].parts);
    }
    free(s->ranks);
}

static enum tutti_status shards_read(struct tensor_set **set, struct tutti_error *err)
{
    struct shards *s = (struct shards *)*set;
    s->folder = s->set.name;
    enum tutti_status st = s->is_one ? open_one(s, err) : open_all(s, err);
    if (st != TUTTI_OK)
        return st;
    assert(s->n_ranks > 0 && s->ranks[0].manifest); /* a manifest counts one rank at least */
    size_t n = s->ranks[0].manifest->n_tensors;
    s->set.tensors = calloc(n + 1, sizeof *s->set.tensors);
    if (!s->set.tensors)
        return error_out_of_memory(s->folder, err);
    for (; s->set.n < n; s->set.n++)
        s->set.tensors[s->set.n] = *s->ranks[0].parts[s->set.n];
    return s->is_one ? TUTTI_OK : join_all(s, err);
}

enum tutti_status shards_open_rank(struct tensor_set **out, const char *folder, int rank,
                                   struct tutti_error *err)
{
    struct mapping map;
    enum tutti_status st = mapping_borrow(&map, NULL, 0, folder, err);
    if (st != TUTTI_OK)
        return st;
    struct tensor_set *set = tensor_set_new(&SHARDS_FORMAT, map, err);
    if (set) {
        ((struct shards *)set)->is_one = true;
        ((struct shards *)set)->first = rank;
    }
    return tensor_set_read(out, set, err);
}

const struct checkpoint_format SHARDS_FORMAT = {
    .name = "a sharded checkpoint",
    .is_folder = shards_is,
    .set_bytes = sizeof(struct shards),
    .read = shards_read,
    .clear = shards_clear,
};

const struct shards *shards_of(const struct tensor_set *set)
{
    return set->format == &SHARDS_FORMAT ? (const struct shards *)set : NULL;
}

bool shards_is_whole(const struct shards *s)
{
    return !s->is_one;
}

const struct shard_manifest *shards_manifest(const struct shards *s, int rank)
{
    return s->ranks[rank - s->first].manifest;
}
