#include "checkpoint/shards/shard_manifest.h"

#include "base/json/json_field.h"
#include "checkpoint/json_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum tutti_status get_digest(const struct json_place *f, const json_t *object, const char *key,
                                    const char **out)
{
    enum tutti_status st = json_get_string(f, object, key, out);
    if (st != TUTTI_OK || !*out)
        return st;
    if (strlen(*out) != SHARD_DIGEST_CHARS || strspn(*out, "0123456789abcdef") != SHARD_DIGEST_CHARS)
        return json_invalid(f, key, "expected 64 hexadecimal digits");
    return TUTTI_OK;
}

static enum tutti_status read_runs(const struct json_place *f, const json_t *object, struct shard_tensor *t)
{
    const json_t *runs = json_object_get(object, "runs");
    int64_t dim = 0, last = 0;
    enum tutti_status st = json_get_int(f, object, "dim", 0, t->n_dims - 1, &dim);
    if (st != TUTTI_OK)
        return st;
    t->dim = (int)dim;
    size_t n = json_array_size(runs);
    if (!json_is_array(runs) || n < 1 || n > SHARD_MAX_RUNS)
        return json_unexpected(f, "runs", runs, "a list of 1 to 8 runs");
    for (size_t i = 0; i < n; i++) {
        const json_t *run = json_array_get(runs, i);
        const json_t *begin = json_array_get(run, 0), *end = json_array_get(run, 1);
        if (json_array_size(run) != 2 || !json_is_integer(begin) || !json_is_integer(end))
            return json_unexpected(f, "runs", run, "pairs of whole numbers");
        t->runs[i][0] = json_integer_value(begin);
        t->runs[i][1] = json_integer_value(end);
        if (t->runs[i][0] < last || t->runs[i][1] <= t->runs[i][0] || t->runs[i][1] > t->shape[dim])
            return json_invalid(f, "runs", "expected rising runs within the tensor's shape");
        last = t->runs[i][1];
        t->n_part += t->runs[i][1] - t->runs[i][0];
    }
    t->n_runs = (int)n;
    return TUTTI_OK;
}

static enum tutti_status read_manifest_tensor(struct json_place *f, const json_t *object,
                                              struct shard_tensor *t)
{
    const char *type;
    const json_t *shape = json_object_get(object, "shape");
    enum tutti_status st = json_get_string(f, object, "name", &t->name);
    if (st == TUTTI_OK && (t->name[0] == '\0' || strlen(t->name) >= LIMIT_TENSOR_NAME_BYTES))
        st = json_invalid(f, "name", "expected 1 to 511 bytes");
    if (st == TUTTI_OK)
        st = json_get_string(f, object, "dtype", &type);
    if (st == TUTTI_OK && (!dtype_find(type, &t->dtype) || dtype_block_elems(t->dtype) != 1))
        st = json_invalid(f, "dtype", "expected a plain type, such as f32, f16 or bf16");
    if (st == TUTTI_OK && (!json_is_array(shape) || json_array_size(shape) > LIMIT_TENSOR_DIMS))
        st = json_unexpected(f, "shape", shape, "a list of at most 5 numbers"); /* LIMIT_TENSOR_DIMS */
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(shape); i++) {
        const json_t *n = json_array_get(shape, i);
        if (!json_is_integer(n))
            st = json_unexpected(f, "shape", n, "numbers of elements");
        else if (json_integer_value(n) < 0)
            st = json_invalid(f, "shape", "%" JSON_INTEGER_FORMAT ", expected numbers of elements",
                              json_integer_value(n));
        t->shape[t->n_dims++] = json_integer_value(n);
    }
    t->dim = -1;
    return st == TUTTI_OK && json_object_get(object, "dim") ? read_runs(f, object, t) : st;
}

static enum tutti_status read_manifest_tensors(struct shard_manifest *m, struct json_place *f)
{
    const json_t *list = json_object_get(m->root, "tensors");
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n < 1 || n > LIMIT_TENSORS)
        return json_unexpected(f, "tensors", list, "a list of tensors");
    m->tensors = calloc(n, sizeof *m->tensors);
    if (!m->tensors)
        return error_out_of_memory(m->path, f->err);
    enum tutti_status st = TUTTI_OK;
    for (; m->n_tensors < n && st == TUTTI_OK; m->n_tensors++) {
        snprintf(f->prefix, sizeof f->prefix, "tensors[%zu].", m->n_tensors);
        st = read_manifest_tensor(f, json_array_get(list, m->n_tensors), &m->tensors[m->n_tensors]);
    }
    f->prefix[0] = '\0';
    return st;
}

/* A name from an untrusted file must not lead out of the rank's folder. */
static bool is_inside(const char *name)
{
    return name[0] != '\0' && name[0] != '/' && !strstr(name, "..") && strlen(name) < 256;
}

static enum tutti_status read_files(struct shard_manifest *m, struct json_place *f)
{
    const json_t *list = json_object_get(m->root, "files");
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n < 1 || n > LIMIT_SHARDS)
        return json_unexpected(f, "files", list, "a list of files");
    m->files = calloc(n, sizeof *m->files);
    if (!m->files)
        return error_out_of_memory(m->path, f->err);
    enum tutti_status st = TUTTI_OK;
    for (; m->n_files < n && st == TUTTI_OK; m->n_files++) {
        const json_t *object = json_array_get(list, m->n_files);
        struct shard_file *file = &m->files[m->n_files];
        snprintf(f->prefix, sizeof f->prefix, "files[%zu].", m->n_files);
        st = json_get_string(f, object, "name", &file->name);
        if (st == TUTTI_OK && !is_inside(file->name))
            st = json_invalid(f, "name", "expected the name of a file in the same folder");
        if (st == TUTTI_OK)
            st = json_get_int(f, object, "bytes", 0, INT64_MAX, &file->n_bytes);
        if (st == TUTTI_OK)
            st = get_digest(f, object, "sha256", &file->sha256);
    }
    f->prefix[0] = '\0';
    return st;
}

static enum tutti_status read_manifest_head(struct shard_manifest *m, struct json_place *f)
{
    const char *format;
    int64_t n = 0;
    enum tutti_status st = json_get_string(f, m->root, "format", &format);
    if (st == TUTTI_OK && strcmp(format, SHARD_MANIFEST_FORMAT) != 0)
        st = json_invalid(f, "format", "expected \"" SHARD_MANIFEST_FORMAT "\"");
    if (st == TUTTI_OK)
        st = json_get_int(f, m->root, "version", 1, INT32_MAX, &n);
    if (st == TUTTI_OK && n > SHARD_MANIFEST_VERSION)
        return error_set(f->err, TUTTI_E_UNSUPPORTED,
                         "%s: version %" PRId64 ", expected at most %d; a newer tutti wrote it", m->path, n,
                         SHARD_MANIFEST_VERSION);
    m->version = (int)n;
    if (st == TUTTI_OK)
        st = get_digest(f, m->root, "fingerprint", &m->fingerprint);
    if (st == TUTTI_OK)
        st = json_get_string(f, m->root, "family", &m->family);
    if (st == TUTTI_OK)
        st = json_get_int(f, m->root, "n_ranks", 1, LIMIT_RANKS, &n);
    m->n_ranks = (int)n;
    if (st == TUTTI_OK)
        st = json_get_int(f, m->root, "rank", 0, m->n_ranks - 1, &n);
    m->rank = (int)n;
    m->strategy = json_object_get(m->root, "strategy");
    if (st == TUTTI_OK && !json_is_object(m->strategy))
        st = json_unexpected(f, "strategy", m->strategy, "an object");
    return st;
}

enum tutti_status shard_manifest_read(struct shard_manifest **out, const char *folder,
                                      struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    struct shard_manifest *m = calloc(1, sizeof *m);
    struct json_place f = { .file = m->path, .err = err };
    *out = NULL;
    if (!m || asprintf(&m->path, "%s/%s", folder, SHARD_MANIFEST_FILE) < 0) {
        free(m);
        return error_out_of_memory(folder, err);
    }
    st = json_file_load(m->path, &m->root, err);
    if (st != TUTTI_OK || !m->root)
        goto done;
    st = read_manifest_head(m, &f);
    if (st == TUTTI_OK)
        st = read_files(m, &f);
    if (st == TUTTI_OK)
        st = read_manifest_tensors(m, &f);
    if (st != TUTTI_OK)
        goto done;
    *out = m;
    m = NULL;
done:
    shard_manifest_free(m);
    return st;
}

void shard_manifest_free(struct shard_manifest *m)
{
    if (!m)
        return;
    json_decref(m->root);
    free(m->path);
    free(m->files);
    free(m->tensors);
    free(m);
}
