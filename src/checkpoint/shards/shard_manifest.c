#include "checkpoint/shards/shard_manifest.h"

#include "base/json/json_type.h"
#include "checkpoint/json_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The current field, for messages. */
struct field {
    const struct shard_manifest *manifest;
    char path[96]; /* "tensors[3]." */
    struct tutti_error *err;
};

static enum tutti_status wrong(const struct field *f, const char *key, const char *expected,
                               const json_t *found)
{
    char text[32];
    if (json_is_integer(found))
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(found));
    else if (json_is_array(found))
        snprintf(text, sizeof text, "a list of %zu", json_array_size(found));
    else
        snprintf(text, sizeof text, "%s", json_type_name(found));
    return error_set(f->err, TUTTI_E_FORMAT, "%s: %s%s: %s, expected %s", f->manifest->path, f->path, key,
                     text, expected);
}

static enum tutti_status wrong_value(const struct field *f, const char *key, const char *what)
{
    return error_set(f->err, TUTTI_E_FORMAT, "%s: %s%s: %s", f->manifest->path, f->path, key, what);
}

static enum tutti_status get_string(const struct field *f, const json_t *object, const char *key,
                                    const char **out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_string_value(value);
    return *out ? TUTTI_OK : wrong(f, key, "a string", value);
}

static enum tutti_status get_int(const struct field *f, const json_t *object, const char *key, int64_t min,
                                 int64_t max, int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    char text[96];
    if (!json_is_integer(value))
        return wrong(f, key, "a whole number", value);
    *out = json_integer_value(value);
    if (*out >= min && *out <= max)
        return TUTTI_OK;
    snprintf(text, sizeof text, "%" PRId64 ", expected %" PRId64 " to %" PRId64, *out, min, max);
    return wrong_value(f, key, text);
}

static enum tutti_status get_digest(const struct field *f, const json_t *object, const char *key,
                                    const char **out)
{
    enum tutti_status st = get_string(f, object, key, out);
    if (st != TUTTI_OK || !*out)
        return st;
    if (strlen(*out) != SHARD_DIGEST_CHARS || strspn(*out, "0123456789abcdef") != SHARD_DIGEST_CHARS)
        return wrong_value(f, key, "expected 64 hexadecimal digits");
    return TUTTI_OK;
}

static enum tutti_status read_runs(const struct field *f, const json_t *object, struct shard_tensor *t)
{
    const json_t *runs = json_object_get(object, "runs");
    int64_t dim = 0, last = 0;
    enum tutti_status st = get_int(f, object, "dim", 0, t->n_dims - 1, &dim);
    if (st != TUTTI_OK)
        return st;
    t->dim = (int)dim;
    size_t n = json_array_size(runs);
    if (!json_is_array(runs) || n < 1 || n > SHARD_MAX_RUNS)
        return wrong(f, "runs", "a list of 1 to 8 runs", runs);
    for (size_t i = 0; i < n; i++) {
        const json_t *run = json_array_get(runs, i);
        const json_t *begin = json_array_get(run, 0), *end = json_array_get(run, 1);
        if (json_array_size(run) != 2 || !json_is_integer(begin) || !json_is_integer(end))
            return wrong(f, "runs", "pairs of whole numbers", run);
        t->runs[i][0] = json_integer_value(begin);
        t->runs[i][1] = json_integer_value(end);
        if (t->runs[i][0] < last || t->runs[i][1] <= t->runs[i][0] || t->runs[i][1] > t->shape[dim])
            return wrong_value(f, "runs", "expected rising runs within the tensor's shape");
        last = t->runs[i][1];
        t->n_part += t->runs[i][1] - t->runs[i][0];
    }
    t->n_runs = (int)n;
    return TUTTI_OK;
}

static enum tutti_status read_tensor(struct field *f, const json_t *object, struct shard_tensor *t)
{
    const char *type;
    const json_t *shape = json_object_get(object, "shape");
    enum tutti_status st = get_string(f, object, "name", &t->name);
    if (st == TUTTI_OK && (t->name[0] == '\0' || strlen(t->name) >= LIMIT_TENSOR_NAME_BYTES))
        st = wrong_value(f, "name", "expected 1 to 511 bytes");
    if (st == TUTTI_OK)
        st = get_string(f, object, "dtype", &type);
    if (st == TUTTI_OK && (!dtype_find(type, &t->dtype) || dtype_block_elems(t->dtype) != 1))
        st = wrong_value(f, "dtype", "expected a plain type, such as f32, f16 or bf16");
    if (st == TUTTI_OK && (!json_is_array(shape) || json_array_size(shape) > LIMIT_TENSOR_DIMS))
        st = wrong(f, "shape", "a list of at most 4 numbers", shape);
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(shape); i++) {
        const json_t *n = json_array_get(shape, i);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            st = wrong(f, "shape", "numbers of elements", n);
        t->shape[t->n_dims++] = json_integer_value(n);
    }
    t->dim = -1;
    return st == TUTTI_OK && json_object_get(object, "dim") ? read_runs(f, object, t) : st;
}

static enum tutti_status read_tensors(struct shard_manifest *m, struct field *f)
{
    const json_t *list = json_object_get(m->root, "tensors");
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n < 1 || n > LIMIT_TENSORS)
        return wrong(f, "tensors", "a list of tensors", list);
    m->tensors = calloc(n, sizeof *m->tensors);
    if (!m->tensors)
        return error_out_of_memory(m->path, f->err);
    enum tutti_status st = TUTTI_OK;
    for (; m->n_tensors < n && st == TUTTI_OK; m->n_tensors++) {
        snprintf(f->path, sizeof f->path, "tensors[%zu].", m->n_tensors);
        st = read_tensor(f, json_array_get(list, m->n_tensors), &m->tensors[m->n_tensors]);
    }
    f->path[0] = '\0';
    return st;
}

/* A name from an untrusted file must not lead out of the rank's folder. */
static bool is_inside(const char *name)
{
    return name[0] != '\0' && name[0] != '/' && !strstr(name, "..") && strlen(name) < 256;
}

static enum tutti_status read_files(struct shard_manifest *m, struct field *f)
{
    const json_t *list = json_object_get(m->root, "files");
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n < 1 || n > LIMIT_SHARDS)
        return wrong(f, "files", "a list of files", list);
    m->files = calloc(n, sizeof *m->files);
    if (!m->files)
        return error_out_of_memory(m->path, f->err);
    enum tutti_status st = TUTTI_OK;
    for (; m->n_files < n && st == TUTTI_OK; m->n_files++) {
        const json_t *object = json_array_get(list, m->n_files);
        struct shard_file *file = &m->files[m->n_files];
        snprintf(f->path, sizeof f->path, "files[%zu].", m->n_files);
        st = get_string(f, object, "name", &file->name);
        if (st == TUTTI_OK && !is_inside(file->name))
            st = wrong_value(f, "name", "expected the name of a file in the same folder");
        if (st == TUTTI_OK)
            st = get_int(f, object, "bytes", 0, INT64_MAX, &file->n_bytes);
        if (st == TUTTI_OK)
            st = get_digest(f, object, "sha256", &file->sha256);
    }
    f->path[0] = '\0';
    return st;
}

static enum tutti_status read_head(struct shard_manifest *m, struct field *f)
{
    const char *format;
    int64_t n = 0;
    enum tutti_status st = get_string(f, m->root, "format", &format);
    if (st == TUTTI_OK && strcmp(format, SHARD_MANIFEST_FORMAT) != 0)
        st = wrong_value(f, "format", "expected \"" SHARD_MANIFEST_FORMAT "\"");
    if (st == TUTTI_OK)
        st = get_int(f, m->root, "version", 1, INT32_MAX, &n);
    if (st == TUTTI_OK && n > SHARD_MANIFEST_VERSION)
        return error_set(f->err, TUTTI_E_UNSUPPORTED,
                         "%s: version %" PRId64 ", expected at most %d; a newer tutti wrote it", m->path, n,
                         SHARD_MANIFEST_VERSION);
    m->version = (int)n;
    if (st == TUTTI_OK)
        st = get_digest(f, m->root, "fingerprint", &m->fingerprint);
    if (st == TUTTI_OK)
        st = get_string(f, m->root, "family", &m->family);
    if (st == TUTTI_OK)
        st = get_int(f, m->root, "n_ranks", 1, LIMIT_RANKS, &n);
    m->n_ranks = (int)n;
    if (st == TUTTI_OK)
        st = get_int(f, m->root, "rank", 0, m->n_ranks - 1, &n);
    m->rank = (int)n;
    m->strategy = json_object_get(m->root, "strategy");
    if (st == TUTTI_OK && !json_is_object(m->strategy))
        st = wrong(f, "strategy", "an object", m->strategy);
    return st;
}

enum tutti_status shard_manifest_read(struct shard_manifest **out, const char *folder,
                                      struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    struct shard_manifest *m = calloc(1, sizeof *m);
    struct field f = { .manifest = m, .err = err };
    *out = NULL;
    if (!m || asprintf(&m->path, "%s/%s", folder, SHARD_MANIFEST_FILE) < 0) {
        free(m);
        return error_out_of_memory(folder, err);
    }
    st = json_file_load(m->path, &m->root, err);
    if (st != TUTTI_OK || !m->root)
        goto done;
    st = read_head(m, &f);
    if (st == TUTTI_OK)
        st = read_files(m, &f);
    if (st == TUTTI_OK)
        st = read_tensors(m, &f);
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
