/* Prepares sharding: opens the source, verifies its files, and plans the parts of each rank. */
#include "fleet/shard.h"

#include "base/buf.h"
#include "fleet/shard_plan.h"
#include "model/weights/mtp.h"
#include "model/weights/weights.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int64_t shard_chunk_rows(const struct shard_plan *p, size_t row_bytes)
{
    return row_bytes > 0 && row_bytes < p->chunk_bytes ? (int64_t)(p->chunk_bytes / row_bytes) : 1;
}

void shard_progress(struct shard_plan *p, uint64_t n_bytes)
{
    p->done += n_bytes;
    if (p->options->progress)
        p->options->progress(p->options->user, p->done, p->total);
}

struct split_part shard_part(const struct shard_plan *p, const struct shard_item *item, int rank)
{
    return split_part(&p->splits[rank], &p->desc, &item->split.target);
}

/* ---- the source ---- */

/* Checks that all tensors of the model exist, with the expected shapes. */
static enum tutti_status check_weights(const struct shard_plan *p, const struct tensor_names *names,
                                       struct tutti_error *err)
{
    assert(names);
    if (p->desc.is_untied) /* a rank cannot detect this from its part */
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: tie_word_embeddings: true, but %s is not the embedding; set it to false first",
                         checkpoint_config_path(p->ck), names->of[SLOT_OUTPUT][0]);
    return weights_check_all(&p->desc, p->family, names, p->ck, err);
}

/* Tensors that the model does not use may have any shape: those that do not fit stay whole. */
static int find_dim(const struct shard_plan *p, const struct shard_item *item)
{
    int dim = p->n_ranks > 1 ? split_dim(&item->split) : -1;
    bool is_vector = item->split.is_bias || split_kind(item->split.target.slot) == SPLIT_ELEMENTS;
    bool fits = dim >= 0 && item->tensor->n_dims == (is_vector ? 1 : 2) + item->split.is_merged &&
                item->tensor->shape[dim] == split_n_whole(&p->desc, &item->split.target);
    return fits ? dim : -1;
}

static enum tutti_status list_items(struct shard_plan *p, const struct tensor_names *names,
                                    struct tutti_error *err)
{
    p->n_items = checkpoint_n_tensors(p->ck);
    p->items = calloc(p->n_items + 1, sizeof *p->items);
    if (!p->items)
        return error_out_of_memory(checkpoint_path(p->ck), err);
    size_t widest = 0;
    for (size_t i = 0; i < p->n_items; i++) {
        struct shard_item *item = &p->items[i];
        const struct tensor *t = item->tensor = checkpoint_tensor(p->ck, i);
        if (dtype_block_elems(t->dtype) != 1)
            return error_set(err, TUTTI_E_UNSUPPORTED,
                             "%s: tensor %s: quantized weights (%s) are not cut into shards; they run on "
                             "several ranks as they are, by --tp",
                             t->file, t->name, dtype_name(t->dtype));
        item->split = split_find(&p->desc, names, t->name);
        item->dim = find_dim(p, item);
        size_t row = t->n_dims > 0 && t->shape[0] > 0 ? t->n_bytes / (size_t)t->shape[0] : t->n_bytes;
        widest = row > widest ? row : widest;
        p->model_bytes += t->n_bytes;
    }
    p->chunk_bytes = widest > SHARD_CHUNK_BYTES ? widest : SHARD_CHUNK_BYTES;
    p->chunk = malloc(p->chunk_bytes);
    p->digest = digest_new(DIGEST_SHA256);
    return p->chunk && p->digest ? TUTTI_OK : error_out_of_memory(checkpoint_path(p->ck), err);
}

static enum tutti_status make_splits(struct shard_plan *p, struct tutti_error *err)
{
    static const struct split_blocks PLAIN = { 1, 1 };
    enum tutti_status st = split_make(&(struct split){ 0 }, &p->desc, &PLAIN, p->n_ranks, 0, err);
    if (st != TUTTI_OK) {
        error_prefix(err, "%s", checkpoint_path(p->ck));
        return st;
    }
    p->splits = calloc((size_t)p->n_ranks, sizeof *p->splits);
    if (!p->splits)
        return error_out_of_memory(checkpoint_path(p->ck), err);
    for (int rank = 0; rank < p->n_ranks && st == TUTTI_OK; rank++)
        st = split_make(&p->splits[rank], &p->desc, &PLAIN, p->n_ranks, rank, err);
    return st;
}

/* The manifest of a whole checkpoint must be that of the tensors that were opened, which may be in
 * other files. */
static enum tutti_status check_own_manifest(const struct shard_plan *p, struct tutti_error *err)
{
    const struct shard_manifest *m = p->manifest;
    if (m->n_tensors != p->n_items)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: %zu tensors, but the checkpoint in the same folder has %zu", m->path,
                         m->n_tensors, p->n_items);
    for (size_t i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensors[i].name, p->items[i].tensor->name) != 0)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: tensors[%zu].name: %s, but the checkpoint in the same folder has %s",
                             m->path, i, m->tensors[i].name, p->items[i].tensor->name);
    return TUTTI_OK;
}

static enum tutti_status find_manifest(struct shard_plan *p, struct tutti_error *err)
{
    const struct shards *shards = checkpoint_shards(p->ck);
    if (shards) {
        p->manifest = shards_manifest(shards, 0);
        return TUTTI_OK;
    }
    enum tutti_status st = shard_manifest_read(&p->own_manifest, checkpoint_folder(p->ck), err);
    p->manifest = p->own_manifest;
    return st == TUTTI_OK && p->manifest ? check_own_manifest(p, err) : st;
}

static enum tutti_status open_source(struct shard_plan *p, const char *src, struct tutti_error *err)
{
    enum tutti_status st = checkpoint_open(&p->ck, src, err);
    if (st != TUTTI_OK)
        return st;
    if (checkpoint_gguf(p->ck))
        return error_set(
            err, TUTTI_E_UNSUPPORTED,
            "%s: a GGUF file is not cut into shards; it runs on several ranks as it is, by --tp, "
            "where each reads its own part. Shards are made of safetensors, PyTorch's or "
            "MindSpore's checkpoints",
            src);
    st = model_desc_read(&p->desc, &p->family, p->ck, err);
    const struct tensor_names *names = st == TUTTI_OK ? family_layout(p->family, p->ck) : NULL;
    if (st == TUTTI_OK && !names)
        st = family_no_layout(p->family, p->ck, err);
    if (st == TUTTI_OK)
        st = check_weights(p, names, err);
    if (st == TUTTI_OK && p->desc.n_mtp_layers == 1 && mtp_is_stored(&p->desc, names, p->ck))
        st = mtp_describe(&p->desc, names, p->ck, true, err);
    if (st == TUTTI_OK)
        st = make_splits(p, err);
    if (st == TUTTI_OK)
        st = list_items(p, names, err);
    return st == TUTTI_OK ? find_manifest(p, err) : st;
}

static void close_source(struct shard_plan *p)
{
    shard_manifest_free(p->own_manifest);
    digest_free(p->digest);
    free(p->chunk);
    free(p->items);
    free(p->splits);
    checkpoint_close(p->ck);
}

/* ---- the fingerprint ---- */

static enum tutti_status no_checksum(const char *path, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_INTERNAL, "%s: libcrypto could not calculate a SHA-256", path);
}

/* Adds a tensor's name, type, shape and bytes to the digest. */
static enum tutti_status digest_tensor(struct shard_plan *p, const struct tensor *t, struct tutti_error *err)
{
    struct tensor_view view;
    struct buf line = { 0 };
    char shape[128];
    tensor_shape_text(shape, sizeof shape, t->shape, t->n_dims);
    bool ok = buf_printf(&line, "%s %s %s\n", t->name, dtype_name(t->dtype), shape);
    digest_add(p->digest, line.bytes, line.n_bytes);
    buf_clear(&line);
    ok = tensor_view_init(&view, t) && ok;
    if (ok && view.bytes) {
        digest_add(p->digest, view.bytes, t->n_bytes);
    } else {
        size_t row_bytes = tensor_columns_bytes(t, view.n_columns);
        int64_t n_most = shard_chunk_rows(p, row_bytes);
        for (int64_t row = 0; ok && row < view.n_rows; row += n_most) {
            int64_t n = view.n_rows - row < n_most ? view.n_rows - row : n_most;
            const struct tensor_part part = { row, n, 0, view.n_columns };
            ok = tensor_view_copy(&view, &part, p->chunk);
            digest_add(p->digest, p->chunk, (size_t)n * row_bytes);
        }
    }
    tensor_view_clear(&view);
    tensor_forget(t);
    shard_progress(p, t->n_bytes);
    return ok ? TUTTI_OK : error_out_of_memory(checkpoint_path(p->ck), err);
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp((*(const struct tensor *const *)a)->name, (*(const struct tensor *const *)b)->name);
}

static enum tutti_status make_fingerprint(struct shard_plan *p, struct tutti_error *err)
{
    const struct tensor **sorted = malloc((p->n_items + 1) * sizeof *sorted);
    enum tutti_status st = sorted ? TUTTI_OK : error_out_of_memory(checkpoint_path(p->ck), err);
    for (size_t i = 0; sorted && i < p->n_items; i++)
        sorted[i] = p->items[i].tensor;
    if (sorted)
        qsort((void *)sorted, p->n_items, sizeof *sorted, compare_tensors);
    digest_begin(p->digest);
    for (size_t i = 0; st == TUTTI_OK && i < p->n_items; i++)
        st = digest_tensor(p, sorted[i], err);
    free((void *)sorted);
    return st == TUTTI_OK && !digest_end(p->digest, p->fingerprint) ? no_checksum(checkpoint_path(p->ck), err)
                                                                    : st;
}

/* ---- the files of a source with manifests ---- */

static enum tutti_status digest_file(struct shard_plan *p, const char *path, char text[DIGEST_TEXT_BYTES],
                                     int64_t *n_bytes, struct tutti_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = 0;
    *n_bytes = 0;
    if (fd < 0)
        return error_from_errno(path, err);
    digest_begin(p->digest);
    while ((n = read(fd, p->chunk, p->chunk_bytes)) > 0 || (n < 0 && errno == EINTR)) {
        if (n < 0)
            continue;
        digest_add(p->digest, p->chunk, (size_t)n);
        shard_progress(p, (uint64_t)n);
        *n_bytes += n;
    }
    enum tutti_status st = n < 0 ? error_set(err, TUTTI_E_IO, "%s: %s", path, strerror(errno)) : TUTTI_OK;
    close(fd);
    return st == TUTTI_OK && !digest_end(p->digest, text) ? no_checksum(path, err) : st;
}

static enum tutti_status check_file(struct shard_plan *p, const struct shard_manifest *m,
                                    const struct shard_file *file, struct tutti_error *err)
{
    char path[PATH_MAX], found[DIGEST_TEXT_BYTES];
    int64_t n_bytes;
    int n_folder = (int)(strlen(m->path) - strlen(SHARD_MANIFEST_FILE));
    int n = snprintf(path, sizeof path, "%.*s%s", n_folder, m->path, file->name);
    if (n < 0 || (size_t)n >= sizeof path)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: the path is too long", m->path);
    enum tutti_status st = digest_file(p, path, found, &n_bytes, err);
    if (st == TUTTI_OK && n_bytes != file->n_bytes)
        return error_set(err, TUTTI_E_FORMAT, "%s: %lld bytes, but %s says %lld", path, (long long)n_bytes,
                         m->path, (long long)file->n_bytes);
    if (st == TUTTI_OK && strcmp(found, file->sha256) != 0)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: its SHA-256 is %.16s, but %s says %.16s: it is damaged or was replaced; "
                         "copy it again, or write the shards again",
                         path, found, m->path, file->sha256);
    return st;
}

/* The manifest of the folder number rank. */
static const struct shard_manifest *manifest_of(const struct shard_plan *p, int rank)
{
    const struct shards *shards = checkpoint_shards(p->ck);
    return shards ? shards_manifest(shards, rank) : p->manifest;
}

/* Checks every file that the manifests list. */
static enum tutti_status check_files(struct shard_plan *p, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    int n_ranks = p->manifest ? p->manifest->n_ranks : 0;
    for (int rank = 0; rank < n_ranks; rank++)
        for (size_t i = 0; i < manifest_of(p, rank)->n_files; i++)
            p->total += (uint64_t)manifest_of(p, rank)->files[i].n_bytes;
    for (int rank = 0; rank < n_ranks && st == TUTTI_OK; rank++)
        for (size_t i = 0; i < manifest_of(p, rank)->n_files && st == TUTTI_OK; i++)
            st = check_file(p, manifest_of(p, rank), &manifest_of(p, rank)->files[i], err);
    return st;
}

static void fill_report(struct shard_report *report, const struct shard_plan *p)
{
    *report = (struct shard_report){ .n_tensors = p->n_items,
                                     .n_ranks = p->n_ranks,
                                     .model_bytes = p->model_bytes };
    memcpy(report->fingerprint, p->fingerprint, sizeof report->fingerprint);
}

enum tutti_status shard_write(struct shard_report *report, const char *src, const char *dst,
                              const struct shard_options *options, struct tutti_error *err)
{
    struct shard_plan p = { .options = options, .n_ranks = options->n_ranks };
    enum tutti_status st = open_source(&p, src, err);
    bool has_fingerprint = p.manifest && p.manifest->version >= SHARD_FINGERPRINT_VERSION;
    p.total = has_fingerprint ? p.model_bytes : 2 * p.model_bytes;
    if (st == TUTTI_OK)
        st = check_files(&p, err);
    if (st == TUTTI_OK && !has_fingerprint)
        st = make_fingerprint(&p, err);
    else if (st == TUTTI_OK)
        memcpy(p.fingerprint, p.manifest->fingerprint, sizeof p.fingerprint);
    if (st == TUTTI_OK) {
        fill_report(report, &p);
        st = shard_write_all(&p, report, dst, err);
    }
    close_source(&p);
    return st;
}

enum tutti_status shard_check(struct shard_report *report, const char *path,
                              const struct shard_options *options, struct tutti_error *err)
{
    struct shard_plan p = { .options = options, .n_ranks = 1 };
    enum tutti_status st = open_source(&p, path, err);
    if (st == TUTTI_OK && !p.manifest)
        st = error_set(err, TUTTI_E_NOT_FOUND,
                       "%s: there is no " SHARD_MANIFEST_FILE ", so nothing to check it by", path);
    if (st == TUTTI_OK)
        st = check_files(&p, err);
    if (st == TUTTI_OK) {
        memcpy(p.fingerprint, p.manifest->fingerprint, sizeof p.fingerprint);
        fill_report(report, &p);
        report->n_ranks = p.manifest->n_ranks;
    }
    close_source(&p);
    return st;
}
