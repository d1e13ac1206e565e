#include "offline/merge.h"

#include "kernels/quantize/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_layer_and_slot(const void *a, const void *b)
{
    const struct adapter_update *x = a, *y = b;
    return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer)
                                : (x->slot > y->slot) - (x->slot < y->slot);
}

/* Appends the updates of a file. */
static enum tutti_status add_updates(struct merge *merge, struct adapter_file *file, double scale,
                                     const char *path, struct tutti_error *err)
{
    size_t n = (size_t)merge->n + (size_t)file->n;
    struct adapter_update *more = realloc(merge->updates, (n + 1) * sizeof *more);
    if (!more)
        return error_out_of_memory(path, err);
    merge->updates = more;
    for (int i = 0; i < file->n; i++) {
        more[merge->n] = file->updates[i];
        more[merge->n++].scale *= (float)scale;
    }
    file->n = 0; /* merge owns their memory now */
    return TUTTI_OK;
}

static bool are_equal(const struct adapter_tokens *a, const struct adapter_tokens *b, int width)
{
    size_t n = (size_t)a->n;
    return a->n == b->n && (n == 0 || (memcmp(a->ids, b->ids, n * sizeof *a->ids) == 0 &&
                                       memcmp(a->rows, b->rows, n * (size_t)width * sizeof *a->rows) == 0));
}

/* Whether a tied output stays equal to the embedding. */
static bool stays_tied(const struct adapter_file *file, const struct model_desc *desc)
{
    const struct adapter_module *embedding = NULL, *output = NULL;
    size_t n_bytes = 0;
    for (int i = 0; i < file->n; i++)
        if (file->updates[i].slot == SLOT_OUTPUT)
            return false;
    for (int i = 0; i < file->n_modules; i++) {
        const struct adapter_module *m = &file->modules[i];
        embedding = m->slot == SLOT_EMBEDDING ? m : embedding;
        output = m->slot == SLOT_OUTPUT ? m : output;
    }
    if (file->embedding.rank > 0 || !are_equal(&file->tokens, &file->output_tokens, desc->d_model))
        return false;
    if (!embedding && !output)
        return true;
    return embedding && output && embedding->dtype == output->dtype && embedding->n_out == output->n_out &&
           dtype_bytes(embedding->dtype, (int64_t)embedding->n_out * embedding->n_in, &n_bytes) &&
           memcmp(embedding->rows, output->rows, n_bytes) == 0;
}

static enum tutti_status check_file(const struct adapter_file *file, const struct merge_source *source,
                                    int n_sources, const struct model_desc *desc, struct tutti_error *err)
{
    bool is_plain = adapter_file_is_plain(file);
    if (file->virtual.n > 0)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: virtual tokens cannot be merged into weights: give the folder to --lora when "
                         "the model runs",
                         source->path);
    if (!is_plain && (n_sources > 1 || source->scale != 1))
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: an adapter that is more than low-rank updates (DoRA, biases, whole weights, "
                         "tokens) can only be merged without others and with scale 1",
                         source->path);
    if (desc->tied_output && !stays_tied(file, desc))
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: it updates the output or the embedding, which are one weight in this model: "
                         "the two cannot become one",
                         source->path);
    for (int i = 0; i < file->n_biases; i++) {
        const struct adapter_bias *b = &file->biases[i];
        if (!slot_shape(desc, b->slot, b->layer).has_bias)
            return error_set(err, TUTTI_E_UNSUPPORTED,
                             "%s: layer %d: it adds a bias to %s, which the model's file format has no place "
                             "for",
                             source->path, b->layer, slot_info(b->slot)->name);
    }
    return TUTTI_OK;
}

enum tutti_status merge_open(struct merge *out, const struct merge_source *sources, int n_sources,
                             const struct model_desc *desc, const struct family *family, bool is_gguf,
                             struct tutti_error *err)
{
    struct merge merge = { 0 };
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < n_sources && st == TUTTI_OK; i++) {
        struct adapter_file file = { 0 };
        st = adapter_file_open(&file, sources[i].path, desc, family, is_gguf, err);
        if (st == TUTTI_OK)
            st = check_file(&file, &sources[i], n_sources, desc, err);
        if (st == TUTTI_OK)
            st = add_updates(&merge, &file, sources[i].scale, sources[i].path, err);
        if (st == TUTTI_OK && !adapter_file_is_plain(&file)) /* then it is the only one */
            merge.rest = file;
        else
            adapter_file_clear(&file);
    }
    if (st != TUTTI_OK) {
        merge_clear(&merge);
        return st;
    }
    if (merge.n > 0)
        qsort(merge.updates, (size_t)merge.n, sizeof *merge.updates, by_layer_and_slot);
    *out = merge;
    return TUTTI_OK;
}

void merge_clear(struct merge *merge)
{
    struct adapter_file file = { .updates = merge->updates, .n = merge->n };
    adapter_file_clear(&file);
    adapter_file_clear(&merge->rest);
    *merge = (struct merge){ 0 };
}

struct merge_rows merge_find(const struct merge *merge, enum weight_slot slot, int layer, int first_row,
                             bool is_bias)
{
    struct merge_rows rows = { .slot = slot, .first_row = first_row, .is_bias = is_bias };
    const struct adapter_file *rest = &merge->rest;
    for (int i = 0; !is_bias && i < merge->n; i++)
        if (merge->updates[i].slot == slot && merge->updates[i].layer == layer && rows.n++ == 0)
            rows.updates = &merge->updates[i];
    for (int i = 0; is_bias && i < rest->n_biases; i++)
        if (rest->biases[i].slot == slot && rest->biases[i].layer == layer && rows.n_biases++ == 0)
            rows.biases = &rest->biases[i];
    for (int i = 0; i < rest->n_modules; i++)
        if (rest->modules[i].slot == slot && rest->modules[i].layer == layer && rows.n_modules++ == 0)
            rows.modules = &rest->modules[i];
    bool has_tokens = (slot == SLOT_EMBEDDING && (rest->tokens.n > 0 || rest->embedding.rank > 0)) ||
                      (slot == SLOT_OUTPUT && rest->output_tokens.n > 0);
    if (rows.n + rows.n_biases + rows.n_modules > 0 || (has_tokens && !is_bias))
        rows.merge = merge;
    return rows;
}

static void replace_row(const struct merge_rows *rows, int64_t row, float *x, int64_t n_columns)
{
    for (int i = 0; i < rows->n_modules; i++) {
        const struct adapter_module *m = &rows->modules[i];
        int64_t at = row - m->out_begin;
        size_t row_bytes = 0;
        if (m->rows && at >= 0 && at < m->n_out && dtype_bytes(m->dtype, m->n_in, &row_bytes))
            dequantize(x, m->rows + (size_t)at * row_bytes, m->dtype, n_columns);
    }
}

static void replace_token(const struct adapter_tokens *tokens, int64_t row, float *x, int64_t n_columns)
{
    for (int i = 0; i < tokens->n; i++)
        if (tokens->ids[i] == row)
            memcpy(x, tokens->rows + (size_t)i * (size_t)n_columns, (size_t)n_columns * sizeof *x);
}

/* x [n_in] += factor * a [rank][n_in] . b [rank] */
static void add_product(float *x, float factor, const float *a, const float *b, int rank, int n_in)
{
    for (int r = 0; r < rank; r++)
        for (int k = 0; k < n_in; k++)
            x[k] += factor * b[r] * a[(size_t)r * (size_t)n_in + (size_t)k];
}

static void add_update(const struct adapter_update *u, int64_t row, float *x)
{
    int64_t at = row - u->out_begin;
    double square = 0;
    if (at < 0 || at >= u->n_out)
        return;
    add_product(x, u->scale, u->a, u->b + at * u->rank, u->rank, u->n_in);
    if (!u->magnitudes)
        return;
    for (int k = 0; k < u->n_in; k++)
        square += (double)x[k] * (double)x[k];
    float factor = (float)((double)u->magnitudes[at] / sqrt(square));
    for (int k = 0; k < u->n_in; k++)
        x[k] *= factor;
}

/* The low-rank update of the embedding: its factors are stored the other way round. */
static void add_embedding(const struct adapter_file *rest, int64_t id, float *x, int64_t n_columns,
                          int64_t n_vocab)
{
    int rank = rest->embedding.rank;
    for (int64_t k = 0; k < n_columns; k++) {
        float sum = 0;
        for (int r = 0; r < rank; r++)
            sum += rest->embedding.b[k * rank + r] * rest->embedding.a[r * n_vocab + id];
        x[k] += rest->embedding.scale * sum;
    }
}

static void change_bias(const struct merge_rows *rows, int64_t row, float *x, int64_t n)
{
    for (int i = 0; i < rows->n_modules; i++) /* of a norm */
        if (rows->modules[i].bias)
            memcpy(x, rows->modules[i].bias, (size_t)n * sizeof *x);
    for (int i = 0; i < rows->n_biases; i++) {
        const struct adapter_bias *b = &rows->biases[i];
        for (int64_t k = 0; k < n; k++) {
            int64_t at = row + k - b->out_begin;
            if (at >= 0 && at < b->n_out)
                x[k] = b->is_added ? x[k] + b->values[at] : b->values[at];
        }
    }
}

void merge_change(const struct merge_rows *rows, int64_t row, float *x, int64_t n_columns)
{
    if (!rows->merge)
        return;
    row += rows->first_row;
    if (rows->is_bias) {
        change_bias(rows, row, x, n_columns);
        return;
    }
    const struct adapter_file *rest = &rows->merge->rest;
    replace_row(rows, row, x, n_columns);
    if (rows->slot == SLOT_EMBEDDING)
        replace_token(&rest->tokens, row, x, n_columns);
    if (rows->slot == SLOT_OUTPUT)
        replace_token(&rest->output_tokens, row, x, n_columns);
    for (int i = 0; i < rows->n; i++)
        add_update(&rows->updates[i], row, x);
    if (rows->slot == SLOT_EMBEDDING && rest->embedding.rank > 0)
        add_embedding(rest, row, x, n_columns, rest->embedding.n_vocab);
}
