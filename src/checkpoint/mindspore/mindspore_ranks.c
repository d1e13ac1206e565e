#include "checkpoint/mindspore/mindspore_ranks.h"

#include "base/containers/array.h"
#include "checkpoint/mindspore/mindspore.h"
#include "checkpoint/mindspore/mindspore_strategy.h"
#include "checkpoint/tensor_join.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_RANKS = 4096 };

struct mindspore_ranks {
    struct tensor_set set;
    const char *folder;             /* the set's name */
    struct tensor_set **files;      /* [n_ranks] */
    const struct tensor ***by_name; /* [n_ranks]: a file's tensors, sorted */
    int n_ranks;
    struct strategy strategy;
    struct tensor_join *joins;
};

static bool is_folder(const char *parent, const char *name)
{
    char path[PATH_MAX];
    struct stat info;
    int n = snprintf(path, sizeof path, "%s/%s", parent, name);
    return n > 0 && (size_t)n < sizeof path && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Whether a folder has a subfolder rank_0. */
static bool mindspore_ranks_is(const char *folder)
{
    return is_folder(folder, "rank_0");
}

/* ---- one rank ---- */

/* The last checkpoint of a folder by name; "": none. */
static enum tutti_status find_last(char *name, size_t size, const char *folder, struct tutti_error *err)
{
    DIR *dir = opendir(folder);
    name[0] = '\0';
    if (!dir)
        return error_set(err, TUTTI_E_IO, "%s: %s", folder, strerror(errno));
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (checkpoint_format_has_file(&MINDSPORE_FORMAT, entry->d_name) && strcmp(entry->d_name, name) > 0)
            snprintf(name, size, "%s", entry->d_name);
    }
    closedir(dir);
    return name[0] ? TUTTI_OK : error_set(err, TUTTI_E_NOT_FOUND, "%s: there is no .ckpt file", folder);
}

static enum tutti_status open_rank(struct mindspore_ranks *r, int rank, struct tutti_error *err)
{
    char folder[PATH_MAX], path[PATH_MAX], name[NAME_MAX + 1];
    int n = snprintf(folder, sizeof folder, "%s/rank_%d", r->folder, rank);
    if (n < 0 || (size_t)n >= sizeof folder)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: the path is too long", r->folder);
    enum tutti_status st = find_last(name, sizeof name, folder, err);
    if (st != TUTTI_OK)
        return st;
    n = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: the path is too long", folder);
    st = tensor_set_open_as(&r->files[rank], &MINDSPORE_FORMAT, path, err);
    if (st != TUTTI_OK)
        return st;
    r->by_name[rank] = tensors_sorted(r->files[rank]->tensors, r->files[rank]->n);
    return r->by_name[rank] ? TUTTI_OK : error_out_of_memory(r->folder, err);
}

/* Ranks are counted from 0 without a gap. */
static enum tutti_status open_files(struct mindspore_ranks *r, struct tutti_error *err)
{
    long last;
    enum tutti_status st = rank_folders_last(r->folder, &last, err);
    if (st != TUTTI_OK)
        return st;
    if (last >= MAX_RANKS)
        return error_set(err, TUTTI_E_FORMAT, "%s: rank_%ld, expected less than %d ranks", r->folder, last,
                         MAX_RANKS);
    r->files = calloc((size_t)last + 1, sizeof(struct tensor_set *));
    r->by_name = calloc((size_t)last + 1, sizeof(const struct tensor **));
    if (!r->files || !r->by_name)
        return error_out_of_memory(r->folder, err);
    r->n_ranks = (int)last + 1;
    for (int rank = 0; rank <= last && st == TUTTI_OK; rank++) {
        char name[32];
        snprintf(name, sizeof name, "rank_%d", rank);
        st = is_folder(r->folder, name)
                 ? open_rank(r, rank, err)
                 : error_set(err, TUTTI_E_NOT_FOUND, "%s: %s is missing, but rank_%ld is there", r->folder,
                             name, last);
    }
    return st;
}

static enum tutti_status read_strategy(struct mindspore_ranks *r, struct tutti_error *err)
{
    static const char *const PLACES[] = { "", "/strategy", "/../strategy" };
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES && r->strategy.n == 0; i++) {
        char path[PATH_MAX];
        int n = snprintf(path, sizeof path, "%s%s", r->folder, PLACES[i]);
        enum tutti_status st = n > 0 && (size_t)n < sizeof path
                                   ? strategy_read_folder(&r->strategy, path, err)
                                   : TUTTI_OK;
        if (st != TUTTI_OK)
            return st;
    }
    if (r->strategy.n == 0 && r->n_ranks > 1)
        return error_set(
            err, TUTTI_E_NOT_FOUND,
            "%s: %d ranks, but no strategy file (ckpt_strategy*.ckpt or .json) here, in strategy or "
            "in ../strategy, which says how tensors are divided",
            r->folder, r->n_ranks);
    return TUTTI_OK;
}

/* ---- tensors ---- */

/* Adds the parts of t, a tensor of rank first, over the devices from first on. n_parts: of each
 * dimension. has_part: [product of n_parts] */
static enum tutti_status collect_parts(const struct mindspore_ranks *r, struct tensor_join *join,
                                       bool *has_part, const struct strategy_layout *layout, int first,
                                       const struct tensor *t, const int64_t *n_parts,
                                       struct tutti_error *err)
{
    static const int64_t NONE[LIMIT_TENSOR_DIMS] = { 0 };
    int n_devices = strategy_n_devices(layout);
    for (int device = 0; device < n_devices; device++) {
        int64_t part[LIMIT_TENSOR_DIMS] = { 0 }, at[LIMIT_TENSOR_DIMS] = { 0 }, slot = 0;
        strategy_part(layout, device, part, NULL);
        for (int d = 0; d < t->n_dims; d++) {
            slot = slot * n_parts[d] + part[d];
            at[d] = part[d] * t->shape[d];
        }
        if (has_part[slot])
            continue; /* another device has the same part */
        int rank = first + device;
        const struct tensor *found = tensors_find(r->by_name[rank], r->files[rank]->n, t->name);
        if (!found)
            return error_set(err, TUTTI_E_FORMAT, "%s/rank_%d: tensor %s is missing, but rank_%d has it",
                             r->folder, rank, t->name, first);
        if (found->dtype != t->dtype || found->n_dims != t->n_dims ||
            memcmp(found->shape, t->shape, (size_t)t->n_dims * sizeof *t->shape) != 0)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: tensor %s: its type or shape differs from the one in %s", found->file,
                             t->name, t->file);
        if (!tensor_join_add(join, t->n_dims, found, NONE, at, t->shape))
            return error_out_of_memory(r->folder, err);
        has_part[slot] = true;
    }
    return TUTTI_OK;
}

/* Makes whole, a copy of a tensor of rank first, the tensor of all devices. */
static enum tutti_status join_tensor(struct mindspore_ranks *r, struct tensor *whole,
                                     const struct strategy_layout *layout, int first, const struct tensor *t,
                                     struct tutti_error *err)
{
    int64_t part[LIMIT_TENSOR_DIMS], n_parts[LIMIT_TENSOR_DIMS];
    for (int d = 0; d < LIMIT_TENSOR_DIMS; d++)
        n_parts[d] = 1;
    if (layout->n_dims != t->n_dims)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %d dimensions, but the strategy has %d",
                         t->file, t->name, t->n_dims, layout->n_dims);
    strategy_part(layout, 0, part, n_parts);
    size_t n = 1; /* at most one per device */
    bool fits = true;
    for (int d = 0; d < t->n_dims; d++) {
        n *= (size_t)n_parts[d];
        fits = fits && !__builtin_mul_overflow(t->shape[d], n_parts[d], &whole->shape[d]);
    }
    if (n == 1)
        return TUTTI_OK;
    if (!fits || !tensor_measure(whole))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the whole's size overflows", t->file, t->name);
    struct tensor_join *join = tensor_join_new(&r->joins, whole, false);
    bool *has_part = calloc(n, sizeof *has_part);
    enum tutti_status st = join && has_part ? collect_parts(r, join, has_part, layout, first, t, n_parts, err)
                                            : error_out_of_memory(r->folder, err);
    free(has_part);
    return st;
}

static int wholes_by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

/* The tensors of one pipeline stage; those that an earlier stage also has, such as a tied
 * embedding, are skipped. */
static enum tutti_status add_stage(struct mindspore_ranks *r, int stage, int n_devices,
                                   struct tutti_error *err)
{
    int first = stage * n_devices;
    const struct tensor_set *file = r->files[first];
    assert(file);
    size_t n_before = r->set.n;
    if (!array_resize(&r->set.tensors, n_before + file->n + 1, sizeof *r->set.tensors))
        return error_out_of_memory(r->folder, err);
    struct tensor *more = r->set.tensors;
    for (size_t i = 0; i < file->n; i++) {
        const struct tensor *t = &file->tensors[i];
        const struct strategy_layout *layout = strategy_find(&r->strategy, stage, t->name);
        if (n_before > 0 && bsearch(t, more, n_before, sizeof *more, wholes_by_name))
            continue;
        if (layout && strategy_n_devices(layout) != n_devices)
            return error_set(
                err, TUTTI_E_FORMAT,
                "%s: tensor %s: the strategy is for %d devices a stage, but %d ranks in %d stages "
                "are here",
                r->folder, t->name, strategy_n_devices(layout), r->n_ranks, r->strategy.n_stages);
        struct tensor *whole = &more[r->set.n];
        *whole = *t;
        enum tutti_status st = layout ? join_tensor(r, whole, layout, first, t, err) : TUTTI_OK;
        if (st != TUTTI_OK)
            return st;
        r->set.n++;
    }
    if (stage + 1 < r->strategy.n_stages)
        qsort(more, r->set.n, sizeof *more, wholes_by_name);
    return TUTTI_OK;
}

static enum tutti_status join_all(struct mindspore_ranks *r, struct tutti_error *err)
{
    int n_stages = r->strategy.n_stages > 0 ? r->strategy.n_stages : 1;
    if (r->n_ranks % n_stages != 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: %d ranks cannot be %d pipeline stages", r->folder,
                         r->n_ranks, n_stages);
    enum tutti_status st = TUTTI_OK;
    for (int stage = 0; stage < n_stages && st == TUTTI_OK; stage++)
        st = add_stage(r, stage, r->n_ranks / n_stages, err);
    return st;
}

static void mindspore_ranks_clear(struct tensor_set *set)
{
    struct mindspore_ranks *r = (struct mindspore_ranks *)set;
    tensor_joins_free(r->joins);
    for (int i = 0; i < r->n_ranks; i++) {
        tensor_set_close(r->files[i]);
        free((void *)r->by_name[i]);
    }
    free(r->files);
    free(r->by_name);
    strategy_clear(&r->strategy);
}

static enum tutti_status mindspore_ranks_read(struct tensor_set **set, struct tutti_error *err)
{
    struct mindspore_ranks *r = (struct mindspore_ranks *)*set;
    r->folder = r->set.name;
    enum tutti_status st = open_files(r, err);
    if (st == TUTTI_OK)
        st = read_strategy(r, err);
    return st == TUTTI_OK ? join_all(r, err) : st;
}

const struct checkpoint_format MINDSPORE_RANKS_FORMAT = {
    .name = "MindSpore's ranks",
    .is_folder = mindspore_ranks_is,
    .set_bytes = sizeof(struct mindspore_ranks),
    .read = mindspore_ranks_read,
    .clear = mindspore_ranks_clear,
};
