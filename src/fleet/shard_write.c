/* Writes the folders of all ranks simultaneously: each tensor is read once, and every rank gets
 * its part. */
#include "base/files/new_folder.h"
#include "base/json/json_list.h"
#include "base/text.h"
#include "checkpoint/shards/tensor_writer.h"
#include "fleet/shard_plan.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One rank's folder. */
struct target {
    struct new_folder *folder;
    int rank, fd;
    char prefix[32]; /* "rank_1/"; "" with a single rank */
    char file[64];   /* of the tensors, without the prefix */
    struct tensor_writer *writer;
    struct digest *digest;   /* of the file */
    int64_t n_bytes;         /* of the file */
    uint64_t tensor_bytes;   /* of its tensors */
    json_t *files, *tensors; /* of the manifest */
};

struct shard_output {
    struct shard_plan *plan;
    struct new_folder *folder;
    struct target *targets; /* [n_ranks] */
};

/* ---- one rank's file of tensors ---- */

static enum tutti_status sink(void *user, const void *bytes, size_t n_bytes, struct tutti_error *err)
{
    struct target *t = user;
    digest_add(t->digest, bytes, n_bytes);
    t->n_bytes += (int64_t)n_bytes;
    return new_folder_write(t->folder, t->fd, bytes, n_bytes, err);
}

static enum tutti_status target_put(struct target *t, const void *bytes, size_t n_bytes,
                                    struct tutti_error *err)
{
    t->tensor_bytes += n_bytes;
    return tensor_writer_data(t->writer, bytes, n_bytes, err);
}

static bool is_mindspore(const struct shard_plan *p)
{
    return p->n_items > 0 && text_ends_with(p->items[0].tensor->file, ".ckpt");
}

/* The part of an item that a rank holds, as a tensor without data. */
static struct tensor part_tensor(const struct shard_plan *p, const struct shard_item *item, int rank)
{
    struct tensor t = *item->tensor;
    if (item->dim >= 0)
        t.shape[item->dim] = shard_part(p, item, rank).n;
    return t;
}

static enum tutti_status declare_all(struct shard_output *o, struct target *t, struct tutti_error *err)
{
    const struct shard_plan *p = o->plan;
    char rank[16], n_ranks[16];
    snprintf(rank, sizeof rank, "%d", t->rank);
    snprintf(n_ranks, sizeof n_ranks, "%d", p->n_ranks);
    /* transformers requires a format */
    enum tutti_status st = tensor_writer_metadata(t->writer, "format", "pt", err);
    if (st == TUTTI_OK)
        st = tensor_writer_metadata(t->writer, "fingerprint", p->fingerprint, err);
    if (st == TUTTI_OK)
        st = tensor_writer_metadata(t->writer, "rank", rank, err);
    if (st == TUTTI_OK)
        st = tensor_writer_metadata(t->writer, "n_ranks", n_ranks, err);
    for (size_t i = 0; i < p->n_items && st == TUTTI_OK; i++) {
        struct tensor part = part_tensor(p, &p->items[i], t->rank);
        st = tensor_writer_declare(t->writer, &part, err);
    }
    return st;
}

static enum tutti_status open_target(struct shard_output *o, int rank, struct tutti_error *err)
{
    struct target *t = &o->targets[rank];
    bool is_whole = o->plan->n_ranks == 1;
    char path[128];
    enum tutti_status st = TUTTI_OK;
    t->folder = o->folder;
    t->rank = rank;
    if (!is_whole) {
        char name[32];
        snprintf(name, sizeof name, "rank_%d", rank);
        snprintf(t->prefix, sizeof t->prefix, "rank_%d/", rank);
        st = new_folder_make(o->folder, name, err);
    }
    if (!is_mindspore(o->plan))
        snprintf(t->file, sizeof t->file, "model.safetensors");
    else if (is_whole)
        snprintf(t->file, sizeof t->file, "checkpoint.ckpt");
    else
        snprintf(t->file, sizeof t->file, "checkpoint_%d.ckpt", rank);
    snprintf(path, sizeof path, "%s%s", t->prefix, t->file);
    t->files = json_array();
    t->tensors = json_array();
    t->digest = digest_new(DIGEST_SHA256);
    if (!t->files || !t->tensors || !t->digest)
        return error_out_of_memory(checkpoint_path(o->plan->ck), err);
    if (st == TUTTI_OK)
        st = new_folder_create(o->folder, path, &t->fd, err);
    if (st == TUTTI_OK)
        st = tensor_writer_new(&t->writer,
                               is_mindspore(o->plan) ? TENSOR_FORMAT_MINDSPORE : TENSOR_FORMAT_SAFETENSORS,
                               path, sink, t, err);
    return st == TUTTI_OK ? declare_all(o, t, err) : st;
}

static void close_target(struct target *t)
{
    if (t->fd >= 0)
        close(t->fd);
    tensor_writer_free(t->writer);
    digest_free(t->digest);
    json_decref(t->files);
    json_decref(t->tensors);
}

/* ---- tensors ---- */

/* Writes rows [begin, end) unchanged. */
static enum tutti_status put_rows(struct shard_output *o, struct target *t, const struct tensor_view *view,
                                  int64_t begin, int64_t end, struct tutti_error *err)
{
    size_t row_bytes = tensor_columns_bytes(view->tensor, view->n_columns);
    if (view->bytes)
        return target_put(t, (const uint8_t *)view->bytes + (size_t)begin * row_bytes,
                          (size_t)(end - begin) * row_bytes, err);
    int64_t n_most = shard_chunk_rows(o->plan, row_bytes);
    enum tutti_status st = TUTTI_OK;
    for (int64_t row = begin; row < end && st == TUTTI_OK; row += n_most) {
        const struct tensor_part part = { row, end - row < n_most ? end - row : n_most, 0, view->n_columns };
        st = tensor_view_copy(view, &part, o->plan->chunk)
                 ? target_put(t, o->plan->chunk, (size_t)part.n_rows * row_bytes, err)
                 : error_out_of_memory(checkpoint_path(o->plan->ck), err);
    }
    return st;
}

/* The runs of one dimension, as columns of the view. A row of the view has n_lines lines: with a
 * tensor of three dimensions, whose rows are whole matrices, one for each dimension in between. */
struct line_part {
    int64_t n_lines, n_columns; /* of a line */
    int64_t n_inner;            /* columns of an element of the dimension */
    const struct split_part *runs;
};

static struct line_part line_part(const struct tensor *t, int dim, const struct split_part *runs)
{
    struct line_part line = { .n_lines = 1, .n_inner = 1, .runs = runs };
    for (int i = 1; i < dim; i++)
        line.n_lines *= t->shape[i];
    for (int i = dim + 1; i < t->n_dims; i++)
        line.n_inner *= t->shape[i];
    line.n_columns = t->shape[dim] * line.n_inner;
    return line;
}

/* Copies the columns of all runs of each line of a row. */
static bool copy_lines(const struct tensor_view *view, const struct line_part *line, int64_t row, uint8_t *to)
{
    for (int64_t k = 0; k < line->n_lines; k++) {
        for (int i = 0; i < line->runs->n_runs; i++) {
            const struct split_range *run = &line->runs->runs[i];
            const struct tensor_part part = { row, 1, k * line->n_columns + run->begin * line->n_inner,
                                              (run->end - run->begin) * line->n_inner };
            if (!tensor_view_copy(view, &part, to))
                return false;
            to += tensor_columns_bytes(view->tensor, part.n_columns);
        }
    }
    return true;
}

/* Writes the runs of a dimension after the first. */
static enum tutti_status put_columns(struct shard_output *o, struct target *t, const struct tensor_view *view,
                                     int dim, const struct split_part *runs, struct tutti_error *err)
{
    const struct line_part line = line_part(view->tensor, dim, runs);
    size_t row_bytes = tensor_columns_bytes(view->tensor, line.n_lines * runs->n * line.n_inner);
    int64_t n_most = shard_chunk_rows(o->plan, row_bytes);
    enum tutti_status st = TUTTI_OK;
    for (int64_t row = 0; row < view->n_rows && st == TUTTI_OK; row += n_most) {
        int64_t n = view->n_rows - row < n_most ? view->n_rows - row : n_most;
        bool ok = true;
        if (line.n_lines == 1 && runs->n_runs == 1) {
            const struct tensor_part part = { row, n, runs->runs[0].begin * line.n_inner,
                                              runs->n * line.n_inner };
            ok = tensor_view_copy(view, &part, o->plan->chunk);
        } else {
            for (int64_t r = 0; ok && r < n; r++)
                ok = copy_lines(view, &line, row + r, o->plan->chunk + (size_t)r * row_bytes);
        }
        st = ok ? target_put(t, o->plan->chunk, (size_t)n * row_bytes, err)
                : error_out_of_memory(checkpoint_path(o->plan->ck), err);
    }
    return st;
}

static json_t *run_json(const void *user, size_t index)
{
    const struct split_range *run = (const struct split_range *)user + index;
    return json_pack("[i, i]", run->begin, run->end);
}

static json_t *describe_part(const struct shard_item *item, const struct split_part *part)
{
    const struct tensor *t = item->tensor;
    json_t *object = json_pack("{s:s, s:s, s:o}", "name", t->name, "dtype", dtype_name(t->dtype), "shape",
                               json_integers(t->shape, (size_t)t->n_dims));
    if (item->dim < 0 ||
        (json_object_set_new(object, "dim", json_integer(item->dim)) == 0 &&
         json_object_set_new(object, "runs", json_list((size_t)part->n_runs, run_json, part->runs)) == 0))
        return object;
    json_decref(object);
    return NULL;
}

static enum tutti_status write_part(struct shard_output *o, struct target *t, const struct shard_item *item,
                                    const struct tensor_view *view, struct tutti_error *err)
{
    struct split_part part = { 0 };
    enum tutti_status st = TUTTI_OK;
    if (item->dim >= 0)
        part = shard_part(o->plan, item, t->rank);
    if (item->dim < 0)
        st = put_rows(o, t, view, 0, view->n_rows, err);
    else if (item->dim > 0)
        st = put_columns(o, t, view, item->dim, &part, err);
    for (int i = 0; item->dim == 0 && i < part.n_runs && st == TUTTI_OK; i++)
        st = put_rows(o, t, view, part.runs[i].begin, part.runs[i].end, err);
    if (st == TUTTI_OK && json_array_append_new(t->tensors, describe_part(item, &part)) != 0)
        st = error_out_of_memory(checkpoint_path(o->plan->ck), err);
    return st;
}

static enum tutti_status write_tensors(struct shard_output *o, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; i < o->plan->n_items && st == TUTTI_OK; i++) {
        const struct shard_item *item = &o->plan->items[i];
        struct tensor_view view;
        if (!tensor_view_init(&view, item->tensor))
            st = error_out_of_memory(checkpoint_path(o->plan->ck), err);
        for (int rank = 0; rank < o->plan->n_ranks && st == TUTTI_OK; rank++)
            st = write_part(o, &o->targets[rank], item, &view, err);
        tensor_view_clear(&view);
        tensor_forget(item->tensor);
        shard_progress(o->plan, item->tensor->n_bytes);
    }
    return st;
}

/* Writes a whole file into a rank's folder. */
static enum tutti_status target_put_file(struct target *t, const char *name, const void *bytes,
                                         size_t n_bytes, struct tutti_error *err)
{
    char path[PATH_MAX];
    int fd;
    snprintf(path, sizeof path, "%s%s", t->prefix, name);
    enum tutti_status st = new_folder_create(t->folder, path, &fd, err);
    if (st != TUTTI_OK)
        return st;
    st = new_folder_write(t->folder, fd, bytes, n_bytes, err);
    enum tutti_status closed = new_folder_close_file(t->folder, fd, st == TUTTI_OK ? err : NULL);
    return st == TUTTI_OK ? closed : st;
}

static bool add_manifest_file(struct target *t, const char *name, int64_t n_bytes, const char *sha256)
{
    return json_array_append_new(t->files, json_pack("{s:s, s:I, s:s}", "name", name, "bytes",
                                                     (json_int_t)n_bytes, "sha256", sha256)) == 0;
}

static enum tutti_status finish_tensors(struct shard_output *o, struct target *t, struct tutti_error *err)
{
    char sha256[DIGEST_TEXT_BYTES];
    int fd = t->fd;
    enum tutti_status st = tensor_writer_finish(t->writer, err);
    if (st != TUTTI_OK)
        return st;
    t->fd = -1;
    st = new_folder_close_file(o->folder, fd, err);
    if (st == TUTTI_OK && !digest_end(t->digest, sha256))
        st = error_set(err, TUTTI_E_INTERNAL, "%s: no checksum could be made", t->file);
    return st == TUTTI_OK && !add_manifest_file(t, t->file, t->n_bytes, sha256)
               ? error_out_of_memory(checkpoint_path(o->plan->ck), err)
               : st;
}

/* ---- configuration files ---- */

/* Configuration, tokenizer, chat templates, licences; no weights, indices and manifests. */
static int is_config_file(const struct dirent *entry)
{
    const char *name = entry->d_name;
    static const char *const ENDS[] = { ".json",  ".model", ".txt",  ".tiktoken",
                                        ".jinja", ".vocab", ".yaml", ".yml" };
    if (name[0] == '.' || strcmp(name, SHARD_MANIFEST_FILE) == 0 || strstr(name, ".index.json") ||
        strstr(name, "ckpt_strategy"))
        return 0;
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++) {
        if (text_ends_with(name, ENDS[i]))
            return 1;
    }
    return strncmp(name, "LICENSE", 7) == 0 || strncmp(name, "NOTICE", 6) == 0;
}

/* Copies a file to every rank. name: relative to the source's folder. */
static enum tutti_status copy_file(struct shard_output *o, const char *name, struct tutti_error *err)
{
    char path[PATH_MAX], sha256[DIGEST_TEXT_BYTES];
    struct mapping map;
    int n = snprintf(path, sizeof path, "%s/%s", checkpoint_folder(o->plan->ck), name);
    if (n < 0 || (size_t)n >= sizeof path)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: the path is too long", name);
    enum tutti_status st = mapping_open(&map, path, err);
    if (st != TUTTI_OK)
        return st;
    digest_begin(o->plan->digest);
    digest_add(o->plan->digest, map.bytes, map.n_bytes);
    if (!digest_end(o->plan->digest, sha256))
        st = error_set(err, TUTTI_E_INTERNAL, "%s: no checksum could be made", path);
    for (int rank = 0; rank < o->plan->n_ranks && st == TUTTI_OK; rank++) {
        struct target *t = &o->targets[rank];
        st = target_put_file(t, name, map.bytes, map.n_bytes, err);
        if (st == TUTTI_OK && !add_manifest_file(t, name, (int64_t)map.n_bytes, sha256))
            st = error_out_of_memory(checkpoint_path(o->plan->ck), err);
    }
    mapping_close(&map);
    return st;
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Copies the other files, in order of name. */
static enum tutti_status copy_config_files(struct shard_output *o, struct tutti_error *err)
{
    const char *folder = checkpoint_folder(o->plan->ck);
    struct dirent **entries = NULL;
    enum tutti_status st = TUTTI_OK;
    int n = scandir(folder, &entries, is_config_file, by_bytes);
    if (n < 0)
        return error_set(err, TUTTI_E_IO, "%s: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (st == TUTTI_OK && stat(path, &info) == 0 && S_ISREG(info.st_mode))
            st = copy_file(o, entries[i]->d_name, err);
        free(entries[i]);
    }
    free(entries);
    return st;
}

static enum tutti_status make_folder(struct shard_output *o, const char *name, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (int rank = 0; rank < o->plan->n_ranks && st == TUTTI_OK; rank++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s%s", o->targets[rank].prefix, name);
        st = new_folder_make(o->folder, path, err);
    }
    return st;
}

/* Copies PanGu-Alpha's word list, if it is in the model's folder. */
static enum tutti_status copy_words(struct shard_output *o, struct tutti_error *err)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/jieba", checkpoint_folder(o->plan->ck));
    if (n < 0 || (size_t)n >= sizeof path || access(path, F_OK) != 0)
        return TUTTI_OK;
    enum tutti_status st = make_folder(o, "jieba", err);
    if (st == TUTTI_OK)
        st = make_folder(o, "jieba/finalseg", err);
    for (int i = 0; i < N_WORD_FILES && st == TUTTI_OK; i++) {
        snprintf(path, sizeof path, "jieba/%s", WORD_FILES[i]);
        st = copy_file(o, path, err);
    }
    return st;
}

static enum tutti_status write_manifest(struct shard_output *o, struct target *t, struct tutti_error *err)
{
    const struct shard_plan *p = o->plan;
    json_t *root = json_pack("{s:s, s:i, s:s, s:i, s:i, s:s, s:o, s:O, s:O}", "format", SHARD_MANIFEST_FORMAT,
                             "version", SHARD_MANIFEST_VERSION, "fingerprint", p->fingerprint, "n_ranks",
                             p->n_ranks, "rank", t->rank, "family", p->desc.family, "strategy",
                             split_to_json(&p->splits[t->rank], &p->desc), "files", t->files, "tensors",
                             t->tensors);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text)
        return error_out_of_memory(checkpoint_path(o->plan->ck), err);
    enum tutti_status st = target_put_file(t, SHARD_MANIFEST_FILE, text, strlen(text), err);
    free(text);
    return st;
}

/* ---- all ---- */

static enum tutti_status write_all(struct shard_output *o, struct shard_report *report,
                                   struct tutti_error *err)
{
    int n_ranks = o->plan->n_ranks;
    enum tutti_status st = TUTTI_OK;
    for (int rank = 0; rank < n_ranks && st == TUTTI_OK; rank++)
        st = open_target(o, rank, err);
    if (st == TUTTI_OK)
        st = write_tensors(o, err);
    for (int rank = 0; rank < n_ranks && st == TUTTI_OK; rank++)
        st = finish_tensors(o, &o->targets[rank], err);
    if (st == TUTTI_OK)
        st = copy_config_files(o, err);
    if (st == TUTTI_OK)
        st = copy_words(o, err);
    for (int rank = 0; rank < n_ranks && st == TUTTI_OK; rank++)
        st = write_manifest(o, &o->targets[rank], err);
    for (int rank = 0; rank < n_ranks; rank++) {
        uint64_t n = o->targets[rank].tensor_bytes;
        report->rank_bytes_max = n > report->rank_bytes_max ? n : report->rank_bytes_max;
        report->rank_bytes_min = rank == 0 || n < report->rank_bytes_min ? n : report->rank_bytes_min;
    }
    return st == TUTTI_OK ? new_folder_finish(o->folder, err) : st;
}

enum tutti_status shard_write_all(struct shard_plan *plan, struct shard_report *report, const char *dst,
                                  struct tutti_error *err)
{
    struct shard_output o = { .plan = plan };
    enum tutti_status st = new_folder_open(&o.folder, dst, err);
    if (st != TUTTI_OK)
        return st;
    o.targets = calloc((size_t)plan->n_ranks, sizeof *o.targets);
    for (int i = 0; o.targets && i < plan->n_ranks; i++)
        o.targets[i].fd = -1;
    st = o.targets ? write_all(&o, report, err) : error_out_of_memory(checkpoint_path(plan->ck), err);
    for (int i = 0; o.targets && i < plan->n_ranks; i++)
        close_target(&o.targets[i]);
    free(o.targets);
    new_folder_free(o.folder);
    return st;
}
