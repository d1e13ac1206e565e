#include "checkpoint/mindspore/mindspore_ranks.h"

#include "checkpoint/mindspore/mindspore.h"
#include "checkpoint/mindspore/mindspore_strategy.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_RANKS = 4096 };

/* A tensor of several parts. */
struct joined {
    struct tensor_source source;
    struct tensor tensor;
    const struct tensor **from;
    int64_t (*offsets)[LIMIT_TENSOR_DIMS]; /* of each part in the whole */
    struct joined *before;
};

struct mindspore_ranks {
    char *folder;
    struct mindspore **files;       /* [n_ranks] */
    const struct tensor ***by_name; /* [n_ranks]: a file's tensors, sorted */
    int n_ranks;
    struct strategy strategy;
    const struct tensor **tensors; /* [n_tensors] */
    size_t n_tensors, capacity;
    struct joined *joined;
};

static enum tutti_status out_of_memory(const char *folder, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", folder);
}

static bool is_folder(const char *parent, const char *name)
{
    char path[PATH_MAX];
    struct stat info;
    int n = snprintf(path, sizeof path, "%s/%s", parent, name);
    return n > 0 && (size_t)n < sizeof path && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool mindspore_ranks_is(const char *folder)
{
    return is_folder(folder, "rank_0");
}

/* ---- one rank ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct tensor *const *)a)->name, (*(const struct tensor *const *)b)->name);
}

static enum tutti_status sort_tensors(struct mindspore_ranks *r, int rank, struct tutti_error *err)
{
    size_t n = mindspore_n_tensors(r->files[rank]);
    const struct tensor **sorted = malloc(n * sizeof *sorted);
    if (!sorted)
        return out_of_memory(r->folder, err);
    for (size_t i = 0; i < n; i++)
        sorted[i] = mindspore_tensor(r->files[rank], i);
    qsort((void *)sorted, n, sizeof *sorted, by_name);
    r->by_name[rank] = sorted;
    return TUTTI_OK;
}

/* The last checkpoint of a folder by name; "": none. */
static enum tutti_status find_last(char *name, size_t size, const char *folder, struct tutti_error *err)
{
    DIR *dir = opendir(folder);
    name[0] = '\0';
    if (!dir)
        return error_set(err, TUTTI_E_IO, "%s: %s", folder, strerror(errno));
    for (const struct dirent *entry; (entry = readdir(dir));) {
        size_t n = strlen(entry->d_name);
        bool is_checkpoint = n > 5 && strcmp(entry->d_name + n - 5, ".ckpt") == 0 &&
                             entry->d_name[0] != '.' && !strstr(entry->d_name, "ckpt_strategy");
        if (is_checkpoint && strcmp(entry->d_name, name) > 0)
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
    st = mindspore_open(&r->files[rank], path, err);
    return st == TUTTI_OK ? sort_tensors(r, rank, err) : st;
}

/* Ranks are counted from 0 without a gap. */
static enum tutti_status open_files(struct mindspore_ranks *r, struct tutti_error *err)
{
    long last = 0;
    DIR *dir = opendir(r->folder);
    if (!dir)
        return error_set(err, TUTTI_E_IO, "%s: %s", r->folder, strerror(errno));
    for (const struct dirent *entry; (entry = readdir(dir));) {
        char *end = NULL;
        bool is_rank = strncmp(entry->d_name, "rank_", 5) == 0 && isdigit((unsigned char)entry->d_name[5]);
        long rank = is_rank ? strtol(entry->d_name + 5, &end, 10) : 0;
        if (is_rank && *end == '\0' && rank > last)
            last = rank;
    }
    closedir(dir);
    if (last >= MAX_RANKS)
        return error_set(err, TUTTI_E_FORMAT, "%s: rank_%ld, expected less than %d ranks", r->folder, last,
                         MAX_RANKS);
    r->files = calloc((size_t)last + 1, sizeof(struct mindspore *));
    r->by_name = calloc((size_t)last + 1, sizeof(const struct tensor **));
    if (!r->files || !r->by_name)
        return out_of_memory(r->folder, err);
    r->n_ranks = (int)last + 1;
    enum tutti_status st = TUTTI_OK;
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
            "in ../strategy, which tells how tensors are cut",
            r->folder, r->n_ranks);
    return TUTTI_OK;
}

/* ---- tensors ---- */

/* Copies part to offset in whole; both are padded to four dimensions with leading ones. */
static void copy_part(uint8_t *to, const uint8_t *from, const struct tensor *whole, const struct tensor *part,
                      const int64_t *offset)
{
    enum { N = LIMIT_TENSOR_DIMS };
    int64_t full[N], shape[N], at[N];
    int n_front = N - whole->n_dims;
    size_t size = (size_t)dtype_block_bytes(whole->dtype);
    for (int i = 0; i < N; i++) {
        full[i] = i < n_front ? 1 : whole->shape[i - n_front];
        shape[i] = i < n_front ? 1 : part->shape[i - n_front];
        at[i] = i < n_front ? 0 : offset[i - n_front];
    }
    size_t run = (size_t)shape[3] * size;
    for (int64_t a = 0; a < shape[0]; a++) {
        for (int64_t b = 0; b < shape[1]; b++) {
            for (int64_t c = 0; c < shape[2]; c++, from += run) {
                int64_t row = ((at[0] + a) * full[1] + at[1] + b) * full[2] + at[2] + c;
                memcpy(to + (size_t)(row * full[3] + at[3]) * size, from, run);
            }
        }
    }
}

static bool join(const struct tensor *t, void *bytes)
{
    const struct joined *j = (const struct joined *)t->source;
    for (size_t i = 0; i < j->source.n_from; i++) {
        void *owned;
        const void *part = tensor_bytes(j->from[i], &owned);
        if (!part)
            return false;
        copy_part(bytes, part, t, j->from[i], j->offsets[i]);
        free(owned);
    }
    return true;
}

/* Assembles a part of a vector or a matrix. */
static bool join_part(const struct tensor *t, const struct tensor_part *part, void *bytes)
{
    const struct joined *j = (const struct joined *)t->source;
    bool ok = true;
    for (size_t i = 0; i < j->source.n_from && ok; i++)
        ok = tensor_copy_piece(j->from[i], j->offsets[i][0], t->n_dims > 1 ? j->offsets[i][1] : 0, part,
                               bytes);
    return ok;
}

static const struct tensor *find_in_rank(const struct mindspore_ranks *r, int rank, const struct tensor *like)
{
    const struct tensor **found = bsearch(&like, (void *)r->by_name[rank],
                                          mindspore_n_tensors(r->files[rank]), sizeof like, by_name);
    return found ? *found : NULL;
}

/* The parts of tensor index of rank first, over the devices from first on. n_parts: of each dimension. */
static enum tutti_status collect(struct mindspore_ranks *r, struct joined *j,
                                 const struct strategy_layout *layout, int first, size_t index,
                                 const int64_t *n_parts, struct tutti_error *err)
{
    const struct tensor *t = mindspore_tensor(r->files[first], index);
    int n_devices = strategy_n_devices(layout);
    for (int device = 0; device < n_devices; device++) {
        int64_t part[LIMIT_TENSOR_DIMS] = { 0 }, slot = 0;
        strategy_part(layout, device, part, NULL);
        for (int d = 0; d < t->n_dims; d++)
            slot = slot * n_parts[d] + part[d];
        if (j->from[slot])
            continue; /* another device has the same part */
        const struct tensor *found = find_in_rank(r, first + device, t);
        if (!found)
            return error_set(err, TUTTI_E_FORMAT, "%s/rank_%d: tensor %s is missing, but rank_%d has it",
                             r->folder, first + device, t->name, first);
        if (found->dtype != t->dtype || found->n_dims != t->n_dims ||
            memcmp(found->shape, t->shape, (size_t)t->n_dims * sizeof *t->shape) != 0)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: tensor %s: its type or shape differs from the one in %s", found->file,
                             t->name, t->file);
        for (int d = 0; d < t->n_dims; d++)
            j->offsets[slot][d] = part[d] * t->shape[d];
        j->from[slot] = found;
    }
    return TUTTI_OK;
}

static enum tutti_status join_tensor(struct mindspore_ranks *r, const struct tensor **out,
                                     const struct strategy_layout *layout, int first, size_t index,
                                     struct tutti_error *err)
{
    const struct tensor *t = mindspore_tensor(r->files[first], index);
    int64_t part[LIMIT_TENSOR_DIMS], n_parts[LIMIT_TENSOR_DIMS] = { 1, 1, 1, 1 };
    if (layout->n_dims != t->n_dims)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %d dimensions, but the strategy has %d",
                         t->file, t->name, t->n_dims, layout->n_dims);
    strategy_part(layout, 0, part, n_parts);
    size_t n = 1; /* at most one per device */
    for (int d = 0; d < t->n_dims; d++)
        n *= (size_t)n_parts[d];
    if (n == 1) {
        *out = t;
        return TUTTI_OK;
    }
    struct joined *j = calloc(1, sizeof *j);
    if (!j)
        return out_of_memory(r->folder, err);
    j->before = r->joined;
    r->joined = j;
    j->from = calloc(n, sizeof *j->from);
    j->offsets = calloc(n, sizeof *j->offsets);
    if (!j->from || !j->offsets)
        return out_of_memory(r->folder, err);
    j->source = (struct tensor_source){
        .make = join, .make_part = t->n_dims <= 2 ? join_part : NULL, .from = j->from, .n_from = n
    };
    j->tensor = *t;
    j->tensor.data = NULL;
    j->tensor.map = NULL;
    j->tensor.source = &j->source;
    bool fits = true;
    for (int d = 0; d < t->n_dims; d++)
        fits = fits && !__builtin_mul_overflow(t->shape[d], n_parts[d], &j->tensor.shape[d]);
    if (!fits || !tensor_measure(&j->tensor))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the whole's size overflows", t->file, t->name);
    *out = &j->tensor;
    return collect(r, j, layout, first, index, n_parts, err);
}

/* The tensors of one pipeline stage; those that an earlier stage also has, such as a tied
 * embedding, are skipped. */
static enum tutti_status add_stage(struct mindspore_ranks *r, int stage, int n_devices,
                                   struct tutti_error *err)
{
    int first = stage * n_devices;
    size_t n = mindspore_n_tensors(r->files[first]), n_before = r->n_tensors;
    const struct tensor **more = realloc((void *)r->tensors, (n_before + n + 1) * sizeof *more);
    if (!more)
        return out_of_memory(r->folder, err);
    r->tensors = more;
    for (size_t i = 0; i < n; i++) {
        const struct tensor *t = mindspore_tensor(r->files[first], i);
        const struct strategy_layout *layout = strategy_find(&r->strategy, stage, t->name);
        if (n_before > 0 && bsearch(&t, r->tensors, n_before, sizeof *more, by_name))
            continue;
        if (layout && strategy_n_devices(layout) != n_devices)
            return error_set(
                err, TUTTI_E_FORMAT,
                "%s: tensor %s: the strategy is for %d devices a stage, but %d ranks in %d stages "
                "are here",
                r->folder, t->name, strategy_n_devices(layout), r->n_ranks, r->strategy.n_stages);
        if (layout) {
            enum tutti_status st = join_tensor(r, &t, layout, first, i, err);
            if (st != TUTTI_OK)
                return st;
        }
        r->tensors[r->n_tensors++] = t;
    }
    if (stage + 1 < r->strategy.n_stages)
        qsort((void *)r->tensors, r->n_tensors, sizeof *r->tensors, by_name);
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

enum tutti_status mindspore_ranks_open(struct mindspore_ranks **out, const char *folder,
                                       struct tutti_error *err)
{
    enum tutti_status st;
    struct mindspore_ranks *r = calloc(1, sizeof *r);
    if (r)
        r->folder = strdup(folder);
    if (!r || !r->folder) {
        st = out_of_memory(folder, err);
        goto done;
    }
    st = open_files(r, err);
    if (st == TUTTI_OK)
        st = read_strategy(r, err);
    if (st == TUTTI_OK)
        st = join_all(r, err);
    if (st != TUTTI_OK)
        goto done;
    *out = r;
    r = NULL;
done:
    mindspore_ranks_close(r);
    return st;
}

void mindspore_ranks_close(struct mindspore_ranks *r)
{
    if (!r)
        return;
    while (r->joined) {
        struct joined *before = r->joined->before;
        free((void *)r->joined->from);
        free(r->joined->offsets);
        free(r->joined);
        r->joined = before;
    }
    for (int i = 0; i < r->n_ranks; i++) {
        mindspore_close(r->files[i]);
        free((void *)r->by_name[i]);
    }
    free(r->files);
    free(r->by_name);
    strategy_clear(&r->strategy);
    free((void *)r->tensors);
    free(r->folder);
    free(r);
}

size_t mindspore_ranks_n_tensors(const struct mindspore_ranks *r)
{
    return r->n_tensors;
}

const struct tensor *mindspore_ranks_tensor(const struct mindspore_ranks *r, size_t index)
{
    return r->tensors[index];
}
