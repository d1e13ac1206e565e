#include "offline/imatrix.h"

#include "base/bytes.h"
#include "base/files/mapping.h"
#include "base/text.h"
#include "checkpoint/gguf/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 255, MAX_ENTRIES = LIMIT_TENSORS };

struct imatrix {
    char *name;
    struct imatrix_entry *entries; /* [n], sorted by name */
    size_t n;
};

void imatrix_close(struct imatrix *m)
{
    for (size_t i = 0; m && i < m->n; i++) {
        free((char *)(uintptr_t)m->entries[i].name);
        free(m->entries[i].values);
    }
    if (m) {
        free(m->entries);
        free(m->name);
    }
    free(m);
}

/* Takes values over, on failure too. */
static enum tutti_status add_entry(struct imatrix *m, const char *name, size_t n_name, float *values,
                                   int64_t n, struct tutti_error *err)
{
    struct imatrix_entry *e = &m->entries[m->n];
    char *copy = strndup(name, n_name);
    if (!copy || !values) {
        free(copy);
        free(values);
        return error_out_of_memory(m->name, err);
    }
    *e = (struct imatrix_entry){ copy, values, n };
    m->n++;
    for (int64_t i = 0; i < n; i++) {
        if (!(values[i] >= 0) || !isfinite(values[i]))
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: %s: value %" PRId64 " is %g, expected a mean of squares, at least 0",
                             m->name, copy, i, (double)values[i]);
    }
    return TUTTI_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct imatrix_entry *)a)->name, ((const struct imatrix_entry *)b)->name);
}

static enum tutti_status sort_entries(struct imatrix *m, struct tutti_error *err)
{
    qsort(m->entries, m->n, sizeof *m->entries, by_name);
    for (size_t i = 1; i < m->n; i++) {
        if (by_name(&m->entries[i], &m->entries[i - 1]) == 0)
            return error_set(err, TUTTI_E_FORMAT, "%s: duplicate entry %s", m->name, m->entries[i].name);
    }
    return TUTTI_OK;
}

/* ---- the older form ---- */

/* A number of the file; -1: it ends before. */
static int64_t take_i32(const uint8_t **at, const uint8_t *end)
{
    if (end - *at < 4)
        return -1;
    int32_t value = (int32_t)bytes_load_le(*at, 4);
    *at += 4;
    return value;
}

static enum tutti_status not_an_imatrix(const struct imatrix *m, const char *why, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_FORMAT,
                     "%s: %s; expected an importance matrix of llama-imatrix (.dat or GGUF)", m->name, why);
}

/* { i32 n; { i32 n_name; name; i32 n_calls; i32 n_values; f32 values[] }[n]; ... }. The values are
 * sums over the calls. What follows (the number of chunks, the text's name) is not used. */
static enum tutti_status read_dat(struct imatrix *m, const uint8_t *at, const uint8_t *end,
                                  struct tutti_error *err)
{
    int64_t n = take_i32(&at, end);
    enum tutti_status st = TUTTI_OK;
    if (n < 1 || n > MAX_ENTRIES || n > (end - at) / 16)
        return not_an_imatrix(m, "it begins with no number of entries", err);
    m->entries = calloc((size_t)n, sizeof *m->entries);
    if (!m->entries)
        return error_out_of_memory(m->name, err);
    for (int64_t i = 0; i < n && st == TUTTI_OK; i++) {
        int64_t n_name = take_i32(&at, end);
        if (n_name < 1 || n_name > MAX_NAME || n_name > end - at)
            return not_an_imatrix(m, "an entry has no name", err);
        const char *name = (const char *)at;
        at += n_name;
        int64_t n_calls = take_i32(&at, end), n_values = take_i32(&at, end);
        if (n_calls < 0 || n_values < 1 || n_values > (end - at) / 4)
            return not_an_imatrix(m, "the values of an entry are not all there", err);
        float *values = malloc((size_t)n_values * sizeof *values);
        for (int64_t k = 0; values && k < n_values; k++, at += 4) {
            memcpy(&values[k], at, 4);
            values[k] = n_calls > 0 ? values[k] / (float)n_calls : values[k];
        }
        st = add_entry(m, name, (size_t)n_name, values, n_values, err);
    }
    return st;
}

/* ---- the GGUF form ---- */

static const char SUMS_END[] = ".in_sum2";

/* sorted: the tensors of the file. */
static enum tutti_status read_sums(struct imatrix *m, const struct tensor *const *sorted, size_t n_sorted,
                                   const struct tensor *sums, struct tutti_error *err)
{
    char name[LIMIT_TENSOR_NAME_BYTES + 8];
    size_t n_stem = strlen(sums->name) - strlen(SUMS_END);
    snprintf(name, sizeof name, "%.*s.counts", (int)n_stem, sums->name);
    const struct tensor *counts = tensors_find(sorted, n_sorted, name);
    int64_t n = (int64_t)(sums->n_bytes / 4), n_counts = counts ? (int64_t)(counts->n_bytes / 4) : 0;
    if (!counts || sums->dtype != DTYPE_F32 || counts->dtype != DTYPE_F32 || n < 1 || n_counts < 1 ||
        n % n_counts != 0)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: expected f32, and %s with a number for each matrix", m->name,
                         sums->name, name);
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; values && i < n; i++) {
        float count;
        memcpy(&values[i], (const uint8_t *)sums->data + 4 * i, 4);
        memcpy(&count, (const uint8_t *)counts->data + 4 * (i / (n / n_counts)), 4);
        values[i] = count > 0 ? values[i] / count : 0;
    }
    return add_entry(m, sums->name, n_stem, values, n, err);
}

static enum tutti_status imatrix_read_gguf(struct imatrix *m, const struct tensor_set *file,
                                           struct tutti_error *err)
{
    const struct tensor **sorted = tensors_sorted(file->tensors, file->n);
    enum tutti_status st = TUTTI_OK;
    m->entries = calloc(file->n + 1, sizeof *m->entries);
    if (!m->entries || !sorted)
        st = error_out_of_memory(m->name, err);
    for (size_t i = 0; i < file->n && st == TUTTI_OK; i++) {
        const struct tensor *t = &file->tensors[i];
        if (text_ends_with(t->name, SUMS_END))
            st = read_sums(m, sorted, file->n, t, err);
    }
    free((void *)sorted);
    if (st == TUTTI_OK && m->n == 0)
        st = not_an_imatrix(m, "it has no tensor that ends in .in_sum2", err);
    return st;
}

/* ---- both ---- */

static enum tutti_status read_any(struct imatrix *m, const void *bytes, size_t n_bytes,
                                  struct tutti_error *err)
{
    struct tensor_set *file = NULL;
    enum tutti_status st;
    if (n_bytes >= 4 && memcmp(bytes, "GGUF", 4) == 0) {
        st = tensor_set_open_memory(&file, &GGUF_FORMAT, bytes, n_bytes, m->name, err);
        if (st == TUTTI_OK)
            st = imatrix_read_gguf(m, file, err);
        tensor_set_close(file);
    } else {
        st = read_dat(m, bytes, (const uint8_t *)bytes + n_bytes, err);
    }
    return st == TUTTI_OK ? sort_entries(m, err) : st;
}

enum tutti_status imatrix_open_memory(struct imatrix **out, const void *bytes, size_t n_bytes,
                                      const char *name, struct tutti_error *err)
{
    struct imatrix *m = calloc(1, sizeof *m);
    enum tutti_status st = TUTTI_OK;
    *out = NULL;
    if (!m || !(m->name = strdup(name)))
        st = error_out_of_memory(name, err);
    if (st == TUTTI_OK)
        st = read_any(m, bytes, n_bytes, err);
    if (st == TUTTI_OK)
        *out = m;
    else
        imatrix_close(m);
    return st;
}

enum tutti_status imatrix_open(struct imatrix **out, const char *path, struct tutti_error *err)
{
    struct mapping map;
    *out = NULL;
    enum tutti_status st = mapping_open(&map, path, err);
    if (st != TUTTI_OK)
        return st;
    st = imatrix_open_memory(out, map.bytes, map.n_bytes, path, err);
    mapping_close(&map);
    return st;
}

const struct imatrix_entry *imatrix_find(const struct imatrix *m, const char *name)
{
    const struct imatrix_entry key = { .name = name };
    return m->n > 0 ? bsearch(&key, m->entries, m->n, sizeof *m->entries, by_name) : NULL;
}

const char *imatrix_name(const struct imatrix *m)
{
    return m->name;
}
