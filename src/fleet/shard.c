/* Prepares sharding: opens the source, verifies its bytes, and plans the parts of each rank. */
#include "fleet/shard.h"

#include "base/buf.h"
#include "fleet/shard_plan.h"
#include "model/weights/weights.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum tutti_status out_of_memory(const struct shard_plan *p, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", checkpoint_path(p->ck));
}

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

/* ---- what the source is ---- */

/* Checks that all tensors of the model exist, with the expected shapes. */
static enum tutti_status check_weights(const struct shard_plan *p, const struct tensor_names *names,
                                       struct tutti_error *err)
{
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
    bool fits = dim >= 0 && item->tensor->n_dims == (item->split.is_bias ? 1 : 2) &&
                item->tensor->shape[dim] == split_n_whole(&p->desc, &item->split.target);
    return fits ? dim : -1;
}

static enum tutti_status list_items(struct shard_plan *p, const struct tensor_names *names,
                                    struct tutti_error *err)
{
    p->n_items = checkpoint_n_tensors(p->ck);
    p->items = calloc(p->n_items + 1, sizeof *p->items);
    if (!p->items)
        return out_of_memory(p, err);
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
        p->total += 2 * (uint64_t)t->n_bytes;
    }
    p->chunk_bytes = widest > SHARD_CHUNK_BYTES ? widest : SHARD_CHUNK_BYTES;
    p->chunk = malloc(p->chunk_bytes);
    p->digest = digest_new();
    return p->chunk && p->digest ? TUTTI_OK : out_of_memory(p, err);
}

static enum tutti_status deal_out(struct shard_plan *p, struct tutti_error *err)
{
    static const struct split_blocks PLAIN = { 1, 1 };
    enum tutti_status st = split_make(&(struct split){ 0 }, &p->desc, &PLAIN, p->n_ranks, 0, err);
    if (st != TUTTI_OK) {
        error_prefix(err, "%s", checkpoint_path(p->ck));
        return st;
    }
    p->splits = calloc((size_t)p->n_ranks, sizeof *p->splits);
    if (!p->splits)
        return out_of_memory(p, err);
    for (int rank = 0; rank < p->n_ranks && st == TUTTI_OK; rank++)
        st = split_make(&p->splits[rank], &p->desc, &PLAIN, p->n_ranks, rank, err);
    return st;
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
    if (st == TUTTI_OK && p->manifest && p->manifest->n_tensors != p->n_items)
        st = error_set(err, TUTTI_E_FORMAT, "%s: %zu tensors, but the checkpoint in the same folder has %zu",
                       p->manifest->path, p->manifest->n_tensors, p->n_items);
    return st;
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
        st = deal_out(p, err);
    if (st == TUTTI_OK)
        st = check_weights(p, names, err);
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

/* ---- checksums ---- */

static enum tutti_status sum_tensor(struct shard_plan *p, const struct tensor *t,
                                    char text[DIGEST_TEXT_BYTES], struct tutti_error *err)
{
    struct tensor_view view;
    bool ok = tensor_view_init(&view, t);
    digest_begin(p->digest);
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
    if (!ok)
        return out_of_memory(p, err);
    return digest_end(p->digest, text)
               ? TUTTI_OK
               : error_set(err, TUTTI_E_INTERNAL, "%s: no checksum could be made", t->file);
}

/* A whole tensor's checksum differs: finds and names the damaged file. */
static enum tutti_status name_fault(struct shard_plan *p, size_t index, struct tutti_error *err)
{
    const struct shards *shards = checkpoint_shards(p->ck);
    const struct shard_item *item = &p->items[index];
    char found[DIGEST_TEXT_BYTES];
    for (int rank = 0; shards && rank < p->manifest->n_ranks; rank++) {
        const struct shard_manifest *m = shards_manifest(shards, rank);
        const struct tensor *part = shards_part(shards, rank, index);
        enum tutti_status st = sum_tensor(p, part, found, err);
        if (st != TUTTI_OK)
            return st;
        if (strcmp(found, m->tensors[index].part_sha256) != 0)
            return error_set(
                err, TUTTI_E_FORMAT,
                "%s: tensor %s: its bytes are not those that were written (SHA-256 %.16s, %s says "
                "%.16s)",
                part->file, part->name, found, m->path, m->tensors[index].part_sha256);
    }
    return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: its bytes have SHA-256 %.16s, but %s says %.16s",
                     item->tensor->file, item->tensor->name, item->sha256, p->manifest->path,
                     p->manifest->tensors[index].sha256);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct shard_item *const *)a)->tensor->name,
                  (*(const struct shard_item *const *)b)->tensor->name);
}

static enum tutti_status make_fingerprint(struct shard_plan *p, struct tutti_error *err)
{
    const struct shard_item **sorted = malloc((p->n_items + 1) * sizeof *sorted);
    struct buf line = { 0 };
    bool ok = sorted;
    for (size_t i = 0; ok && i < p->n_items; i++)
        sorted[i] = &p->items[i];
    if (ok)
        qsort((void *)sorted, p->n_items, sizeof *sorted, by_name);
    digest_begin(p->digest);
    for (size_t i = 0; ok && i < p->n_items; i++) {
        const struct tensor *t = sorted[i]->tensor;
        char shape[128];
        tensor_shape_text(shape, sizeof shape, t->shape, t->n_dims);
        buf_truncate(&line, 0);
        ok = buf_printf(&line, "%s %s %s %s\n", t->name, dtype_name(t->dtype), shape, sorted[i]->sha256);
        if (ok)
            digest_add(p->digest, line.bytes, line.n_bytes);
    }
    ok = ok && digest_end(p->digest, p->fingerprint);
    free((void *)sorted);
    buf_clear(&line);
    if (!ok)
        return out_of_memory(p, err);
    if (p->manifest && strcmp(p->manifest->fingerprint, p->fingerprint) != 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: fingerprint: %.16s, but the tensors make %.16s",
                         p->manifest->path, p->manifest->fingerprint, p->fingerprint);
    return TUTTI_OK;
}

static enum tutti_status sum_all(struct shard_plan *p, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; i < p->n_items && st == TUTTI_OK; i++) {
        struct shard_item *item = &p->items[i];
        const struct shard_tensor *want = p->manifest ? &p->manifest->tensors[i] : NULL;
        st = sum_tensor(p, item->tensor, item->sha256, err);
        if (st == TUTTI_OK && want && strcmp(want->name, item->tensor->name) != 0)
            st = error_set(err, TUTTI_E_FORMAT,
                           "%s: tensors[%zu].name: %s, but the checkpoint in the same folder has %s",
                           p->manifest->path, i, want->name, item->tensor->name);
        if (st == TUTTI_OK && want && strcmp(want->sha256, item->sha256) != 0)
            st = name_fault(p, i, err);
        shard_progress(p, item->tensor->n_bytes);
    }
    return st == TUTTI_OK ? make_fingerprint(p, err) : st;
}

static void fill_report(struct shard_report *report, const struct shard_plan *p)
{
    *report = (struct shard_report){ .n_tensors = p->n_items,
                                     .n_ranks = p->n_ranks,
                                     .n_source_ranks = p->manifest ? p->manifest->n_ranks : 1 };
    memcpy(report->fingerprint, p->fingerprint, sizeof report->fingerprint);
    for (size_t i = 0; i < p->n_items; i++)
        report->model_bytes += p->items[i].tensor->n_bytes;
}

enum tutti_status shard_write(struct shard_report *report, const char *src, const char *dst,
                              const struct shard_options *options, struct tutti_error *err)
{
    struct shard_plan p = { .options = options, .n_ranks = options->n_ranks };
    enum tutti_status st = open_source(&p, src, err);
    if (st == TUTTI_OK)
        st = sum_all(&p, err);
    if (st == TUTTI_OK) {
        fill_report(report, &p);
        st = shard_write_all(&p, report, dst, err);
    }
    close_source(&p);
    return st;
}

/* ---- checking ---- */

static enum tutti_status check_files(const struct shard_manifest *m, struct tutti_error *err)
{
    char path[PATH_MAX], found[DIGEST_TEXT_BYTES];
    int64_t n_bytes;
    enum tutti_status st = TUTTI_OK;
    int n_folder = (int)(strlen(m->path) - strlen(SHARD_MANIFEST_FILE));
    for (size_t i = 0; i < m->n_files && st == TUTTI_OK; i++) {
        const struct shard_file *file = &m->files[i];
        int n = snprintf(path, sizeof path, "%.*s%s", n_folder, m->path, file->name);
        if (n < 0 || (size_t)n >= sizeof path)
            return error_set(err, TUTTI_E_ARGUMENT, "%s: the path is too long", m->path);
        st = digest_file(path, found, &n_bytes, err);
        if (st == TUTTI_OK && n_bytes != file->n_bytes)
            st = error_set(err, TUTTI_E_FORMAT, "%s: %lld bytes, but %s says %lld", path, (long long)n_bytes,
                           m->path, (long long)file->n_bytes);
        else if (st == TUTTI_OK && strcmp(found, file->sha256) != 0)
            st = error_set(err, TUTTI_E_FORMAT,
                           "%s: its bytes are not those that were written (SHA-256 %.16s, %s says %.16s)",
                           path, found, m->path, file->sha256);
    }
    return st;
}

enum tutti_status shard_check(struct shard_report *report, const char *path,
                              const struct shard_options *options, struct tutti_error *err)
{
    struct shard_plan p = { .options = options, .n_ranks = 1 };
    enum tutti_status st = open_source(&p, path, err);
    p.total /= 2; /* nothing is written */
    if (st == TUTTI_OK && !p.manifest)
        st = error_set(err, TUTTI_E_NOT_FOUND,
                       "%s: there is no " SHARD_MANIFEST_FILE ", so nothing to check it by", path);
    if (st == TUTTI_OK)
        st = sum_all(&p, err);
    const struct shards *shards = p.ck ? checkpoint_shards(p.ck) : NULL;
    if (st == TUTTI_OK && !shards)
        st = check_files(p.manifest, err);
    for (int rank = 0; shards && st == TUTTI_OK && rank < p.manifest->n_ranks; rank++)
        st = check_files(shards_manifest(shards, rank), err);
    if (st == TUTTI_OK) {
        fill_report(report, &p);
        report->n_ranks = p.manifest->n_ranks;
    }
    close_source(&p);
    return st;
}
