/* Reads the tensors of an adapter: which weights of the model they change, and in which order of rows. */
#include "model/adapters/adapter_reader.h"

#include "base/log.h"
#include "checkpoint/text_part.h"
#include "kernels/quantize/quantize.h"
#include "model/weights/weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_entries(const void *a, const void *b)
{
    const struct adapter_entry *x = a, *y = b;
    return strcmp(x->path, y->path);
}

/* One value that is no number would make all answers fail. */
static enum tutti_status check_finite(const struct tensor *t, struct tutti_error *err)
{
    void *owned;
    const void *bytes = tensor_bytes(t, &owned);
    int64_t n_columns = t->shape[t->n_dims - 1], n = n_columns * (t->n_dims == 2 ? t->shape[0] : 1);
    int64_t at = bytes ? dequantize_find_nan(bytes, t->dtype, n) : -1;
    free(owned);
    if (!bytes)
        return error_out_of_memory(t->file, err);
    if (at < 0)
        return TUTTI_OK;
    return error_set(err, TUTTI_E_FORMAT,
                     "%s: tensor %s: element %" PRId64
                     " is NaN or infinite, expected finite numbers: training "
                     "failed, or the file is damaged; use an earlier checkpoint of the adapter",
                     t->file, t->name, at);
}

enum tutti_status adapter_check_tensor(const struct tensor *t, int64_t n_rows, int64_t n_columns,
                                       const char *what, struct tutti_error *err)
{
    int n_dims = n_columns > 0 ? 2 : 1;
    if (t->n_dims != n_dims)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %d dimensions, expected %d", t->file, t->name,
                         t->n_dims, n_dims);
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: type %s, expected f32, f16 or bf16", t->file,
                         t->name, dtype_name(t->dtype));
    if (n_dims == 1 && t->shape[0] != n_rows)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: shape [%" PRId64 "], expected [%" PRId64 "] (%s)", t->file, t->name,
                         t->shape[0], n_rows, what);
    if (n_dims == 2 && (t->shape[0] != n_rows || t->shape[1] != n_columns))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: shape [%" PRId64 ", %" PRId64 "], expected [%" PRId64 ", %" PRId64
                         "] (%s)",
                         t->file, t->name, t->shape[0], t->shape[1], n_rows, n_columns, what);
    return check_finite(t, err);
}

/* Copies rows of row_bytes in the order of the loaded model. */
static void order_rows(void *to, const void *from, const struct adapter_place *place, size_t row_bytes)
{
    int head_dim = place->head_dim;
    for (int row = 0; row < place->n_out; row++) {
        int64_t source = row;
        if (row < place->n_permuted) {
            int j = row % head_dim;
            source = row - j + j / 2 + j % 2 * (head_dim / 2);
        }
        if (place->order.head_dim > 0)
            source = weights_stored_row(&place->order, place->n_out, source);
        memcpy((uint8_t *)to + (size_t)row * row_bytes, (const uint8_t *)from + (size_t)source * row_bytes,
               row_bytes);
    }
}

/* The rows of a tensor as float32 in the order of the loaded model, freed by the caller. NULL: out of
 * memory. */
static float *ordered_floats(const struct tensor *t, const struct adapter_place *place, int n_columns)
{
    float *stored = weights_to_floats(t, t->n_dims == 1 ? 1 : place->n_out);
    size_t row_bytes = (size_t)n_columns * sizeof(float);
    float *rows = malloc((size_t)place->n_out * row_bytes);
    if (stored && rows)
        order_rows(rows, stored, place, row_bytes);
    free(stored);
    return rows;
}

/* ---- low-rank updates ---- */

static enum tutti_status check_pair(const struct adapter_reader *r, const struct adapter_place *place,
                                    const struct adapter_entry *e, struct tutti_error *err)
{
    const struct tensor *a = e->of[FACTOR_A], *b = e->of[FACTOR_B];
    double rank = adapter_number_for(r, "rank_pattern", e->path, r->rank);
    bool has_rank = rank >= 1 && rank <= LORA_MAX_RANK && rank == floor(rank);
    if (!has_rank)
        return error_set(err, TUTTI_E_FORMAT, "%s: rank_pattern: %g for %s, expected 1 to %d", r->config_path,
                         rank, e->path, LORA_MAX_RANK);
    enum tutti_status st = adapter_check_tensor(a, (int64_t)rank, place->n_in,
                                                "the configuration's rank, the model's input", err);
    if (st == TUTTI_OK)
        st = adapter_check_tensor(b, place->n_out, (int64_t)rank, "the model's output, the rank", err);
    if (st == TUTTI_OK && r->is_dora && !e->of[FACTOR_MAGNITUDE])
        return error_set(err, TUTTI_E_FORMAT, "%s: use_dora is set, but %s has no %s.lora_magnitude_vector",
                         r->config_path, r->tensors_path, e->path);
    if (st == TUTTI_OK && e->of[FACTOR_MAGNITUDE]) {
        const struct tensor *m = e->of[FACTOR_MAGNITUDE];
        if (!r->is_dora)
            return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: DoRA, but %s does not set use_dora",
                             m->file, m->name, r->config_path);
        st = adapter_check_tensor(m, place->n_out, 0, "the model's output", err);
    }
    if (st == TUTTI_OK && e->of[FACTOR_B_BIAS]) {
        if (r->is_dora)
            return error_set(err, TUTTI_E_UNSUPPORTED, "%s: lora_bias is set together with use_dora",
                             r->config_path);
        st = adapter_check_tensor(e->of[FACTOR_B_BIAS], place->n_out, 0, "the model's output", err);
    }
    return st;
}

static enum tutti_status find_place(const struct adapter_reader *r, struct adapter_place *place,
                                    const struct adapter_entry *e, enum place_kind kind,
                                    const struct tensor *t, struct tutti_error *err)
{
    char text[LIMIT_TENSOR_NAME_BYTES];
    if (!text_part_name(e->path, text, sizeof text))
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: tensor %s: updates of the vision part are not supported; train the adapter on "
                         "the language part only",
                         t->file, t->name);
    if (!adapter_find_place(place, e->path, kind, r->desc, r->family, r->is_gguf))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: a %s model has no %s %s that can be %s",
                         t->file, t->name, r->family->name, kind == PLACE_LINEAR ? "linear layer" : "weight",
                         e->path, kind == PLACE_LINEAR ? "adapted" : "replaced");
    if (place->layer >= r->desc->n_layers)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: layer %d, but the model has %d", t->file,
                         t->name, place->layer, r->desc->n_layers);
    return TUTTI_OK;
}

static float scale_of(const struct adapter_reader *r, const char *path, int rank)
{
    double alpha = adapter_number_for(r, "alpha_pattern", path, r->alpha);
    return (float)(alpha / (r->is_rslora ? sqrt(rank) : rank));
}

static enum tutti_status read_pair(struct adapter_reader *r, const struct adapter_entry *e,
                                   struct tutti_error *err)
{
    const struct tensor *a = e->of[FACTOR_A], *b = e->of[FACTOR_B];
    const struct tensor *magnitudes = e->of[FACTOR_MAGNITUDE], *bias = e->of[FACTOR_B_BIAS];
    struct adapter_place place;
    if (!a || !b) {
        const struct tensor *t = a ? a : b ? b : magnitudes ? magnitudes : bias;
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: it is not one of a pair of lora_A and lora_B",
                         t->file, t->name);
    }
    enum tutti_status st = find_place(r, &place, e, PLACE_LINEAR, a, err);
    if (st == TUTTI_OK)
        st = check_pair(r, &place, e, err);
    if (st != TUTTI_OK)
        return st;
    int rank = (int)a->shape[0];
    struct adapter_update *u = &r->out->updates[r->out->n++];
    *u = (struct adapter_update){ .slot = place.slot,
                                  .layer = place.layer,
                                  .out_begin = place.out_begin,
                                  .n_out = place.n_out,
                                  .n_in = place.n_in,
                                  .rank = rank,
                                  .scale = scale_of(r, e->path, rank),
                                  .a = weights_to_floats(a, rank),
                                  .b = ordered_floats(b, &place, rank),
                                  .magnitudes = magnitudes ? ordered_floats(magnitudes, &place, 1) : NULL };
    bool has_all = u->a && u->b && (u->magnitudes || !magnitudes);
    if (has_all && bias) {
        struct adapter_bias *to = &r->out->biases[r->out->n_biases++];
        *to = (struct adapter_bias){ .slot = place.slot,
                                     .layer = place.layer,
                                     .out_begin = place.out_begin,
                                     .n_out = place.n_out,
                                     .values = ordered_floats(bias, &place, 1),
                                     .is_added = true };
        for (int i = 0; to->values && i < to->n_out; i++)
            to->values[i] *= u->scale;
        has_all = to->values != NULL;
    }
    return has_all ? TUTTI_OK : error_out_of_memory(r->tensors_path, err);
}

/* ---- the embedding ---- */

static enum tutti_status read_embedding(struct adapter_reader *r, const struct adapter_entry *e,
                                        struct tutti_error *err)
{
    const struct tensor *a = e->of[FACTOR_EMBEDDING_A], *b = e->of[FACTOR_EMBEDDING_B];
    struct adapter_place place;
    if (!a || !b) {
        const struct tensor *t = a ? a : b;
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: it is not one of a pair of lora_embedding_A and lora_embedding_B",
                         t->file, t->name);
    }
    if (r->is_dora)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: tensor %s: DoRA of the embedding is not supported",
                         a->file, a->name);
    enum tutti_status st = find_place(r, &place, e, PLACE_MODULE, a, err);
    if (st == TUTTI_OK && place.slot != SLOT_EMBEDDING)
        st = error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %s is not the embedding", a->file, a->name,
                       e->path);
    double rank = adapter_number_for(r, "rank_pattern", e->path, r->rank);
    if (st == TUTTI_OK && !(rank >= 1 && rank <= LORA_MAX_RANK && rank == floor(rank)))
        st = error_set(err, TUTTI_E_FORMAT, "%s: rank_pattern: %g for %s, expected 1 to %d", r->config_path,
                       rank, e->path, LORA_MAX_RANK);
    if (st == TUTTI_OK)
        st = adapter_check_tensor(a, (int64_t)rank, place.n_out, "the configuration's rank, the vocabulary",
                                  err);
    if (st == TUTTI_OK)
        st = adapter_check_tensor(b, place.n_in, (int64_t)rank, "the model's width, the rank", err);
    if (st == TUTTI_OK && r->out->embedding.rank > 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the embedding is updated twice", a->file,
                       a->name);
    if (st != TUTTI_OK)
        return st;
    r->out->embedding.rank = (int)rank;
    r->out->embedding.n_vocab = place.n_out;
    r->out->embedding.scale = scale_of(r, e->path, (int)rank);
    r->out->embedding.a = weights_to_floats(a, (int)rank);
    r->out->embedding.b = weights_to_floats(b, place.n_in);
    return r->out->embedding.a && r->out->embedding.b ? TUTTI_OK : error_out_of_memory(r->tensors_path, err);
}

/* The ids that the configuration lists for a path: a list for the embedding, or an object of lists. Those of the embedding are also those
 * of an output that is tied to it, of which PEFT saves a copy. */
static const json_t *find_token_ids(const struct adapter_reader *r, const char *path, bool is_embedding)
{
    const char *key = r->kind == ADAPTER_TOKENS ? "token_indices" : "trainable_token_indices";
    json_t *all = json_object_get(r->config, key), *list = NULL;
    const char *name;
    bool is_copy = !is_embedding && r->desc->tied_output;
    if (json_is_array(all))
        return is_embedding || is_copy ? all : NULL;
    size_t n_path = strlen(path);
    json_object_foreach(all, name, list)
    {
        size_t n = strlen(name);
        if (n <= n_path && strcmp(path + n_path - n, name) == 0 &&
            (n == n_path || path[n_path - n - 1] == '.'))
            return list;
    }
    return is_copy && json_object_size(all) == 1 ? list : NULL;
}

struct token_order {
    int32_t id;
    size_t row;
};

static int compare_tokens(const void *a, const void *b)
{
    const struct token_order *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* Fills order [n] from the list; out of range, twice: an error. */
static enum tutti_status order_tokens(const struct adapter_reader *r, struct token_order *order,
                                      const json_t *list, size_t n, struct tutti_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= r->desc->n_vocab)
            return error_set(err, TUTTI_E_FORMAT, "%s: trained token %zu: expected an id of 0 to %d",
                             r->config_path, i, r->desc->n_vocab - 1);
        order[i] = (struct token_order){ (int32_t)json_integer_value(id), i };
    }
    qsort(order, n, sizeof *order, compare_tokens);
    for (size_t i = 1; i < n; i++)
        if (order[i].id == order[i - 1].id)
            return error_set(err, TUTTI_E_FORMAT, "%s: trained token %d is listed twice", r->config_path,
                             order[i].id);
    return TUTTI_OK;
}

static enum tutti_status copy_tokens(const struct adapter_reader *r, struct adapter_tokens *to,
                                     const struct tensor *t, const struct token_order *order, size_t n,
                                     struct tutti_error *err)
{
    size_t width = (size_t)r->desc->d_model;
    float *rows = weights_to_floats(t, (int64_t)n);
    to->ids = malloc((n + 1) * sizeof *to->ids);
    to->rows = malloc((n + 1) * width * sizeof *to->rows);
    for (size_t i = 0; rows && to->ids && to->rows && i < n; i++) {
        to->ids[i] = order[i].id;
        memcpy(to->rows + i * width, rows + order[i].row * width, width * sizeof *rows);
    }
    to->n = (int)n;
    bool has_all = rows && to->ids && to->rows;
    free(rows);
    return has_all ? TUTTI_OK : error_out_of_memory(r->tensors_path, err);
}

static enum tutti_status read_tokens(struct adapter_reader *r, const struct adapter_entry *e,
                                     struct tutti_error *err)
{
    const struct tensor *t = e->of[FACTOR_TOKENS];
    struct adapter_place place;
    enum tutti_status st = find_place(r, &place, e, PLACE_MODULE, t, err);
    if (st == TUTTI_OK && place.slot != SLOT_EMBEDDING && place.slot != SLOT_OUTPUT)
        st = error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %s is neither the embedding nor the output",
                       t->file, t->name, e->path);
    if (st != TUTTI_OK)
        return st;
    bool is_embedding = place.slot == SLOT_EMBEDDING;
    struct adapter_tokens *to = is_embedding ? &r->out->tokens : &r->out->output_tokens;
    const json_t *list = find_token_ids(r, e->path, is_embedding);
    size_t n = json_array_size(list);
    if (n == 0 || n > (size_t)r->desc->n_vocab || to->n > 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %s lists no ids for it, or too many", t->file,
                         t->name, r->config_path);
    st = adapter_check_tensor(t, (int64_t)n, r->desc->d_model, "the listed ids, the model's width", err);
    struct token_order *order = st == TUTTI_OK ? calloc(n, sizeof *order) : NULL;
    if (st == TUTTI_OK && !order)
        st = error_out_of_memory(r->tensors_path, err);
    if (st == TUTTI_OK)
        st = order_tokens(r, order, list, n, err);
    if (st == TUTTI_OK)
        st = copy_tokens(r, to, t, order, n, err);
    free(order);
    return st;
}

/* PEFT ties the trained tokens of a tied output to those of the embedding. */
static enum tutti_status tie_tokens(struct adapter_reader *r, struct tutti_error *err)
{
    const struct adapter_tokens *from = &r->out->tokens;
    struct adapter_tokens *to = &r->out->output_tokens;
    size_t n = (size_t)from->n, width = (size_t)r->desc->d_model;
    if (n == 0 || !r->desc->tied_output || to->n > 0)
        return TUTTI_OK;
    to->ids = malloc(n * sizeof *to->ids);
    to->rows = malloc(n * width * sizeof *to->rows);
    if (!to->ids || !to->rows)
        return error_out_of_memory(r->tensors_path, err);
    memcpy(to->ids, from->ids, n * sizeof *to->ids);
    memcpy(to->rows, from->rows, n * width * sizeof *to->rows);
    to->n = from->n;
    return TUTTI_OK;
}

/* ---- whole weights and biases ---- */

static enum tutti_status read_norm(struct adapter_reader *r, const struct adapter_entry *e,
                                   const struct adapter_place *place, struct tutti_error *err)
{
    const struct tensor *weight = e->of[FACTOR_WEIGHT], *bias = e->of[FACTOR_BIAS];
    enum tutti_status st = TUTTI_OK;
    if (bias && r->desc->norm != NORM_LAYER)
        st = error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the model's norm has no bias", bias->file,
                       bias->name);
    if (st == TUTTI_OK && weight)
        st = adapter_check_tensor(weight, place->n_in, 0, "the model's width", err);
    if (st == TUTTI_OK && bias)
        st = adapter_check_tensor(bias, place->n_in, 0, "the model's width", err);
    if (st != TUTTI_OK)
        return st;
    float *rows = weight ? weights_to_floats(weight, 1) : NULL;
    for (int i = 0; rows && place->is_less_one && i < place->n_in; i++)
        rows[i] += 1;
    struct adapter_module *to = &r->out->modules[r->out->n_modules++];
    *to = (struct adapter_module){ .slot = place->slot,
                                   .layer = place->layer,
                                   .n_out = 1,
                                   .n_in = place->n_in,
                                   .dtype = DTYPE_F32,
                                   .rows = (uint8_t *)rows,
                                   .bias = bias ? weights_to_floats(bias, 1) : NULL };
    return (to->rows || !weight) && (to->bias || !bias) ? TUTTI_OK
                                                        : error_out_of_memory(r->tensors_path, err);
}

static enum tutti_status read_matrix(struct adapter_reader *r, const struct tensor *t, const char *path,
                                     const struct adapter_place *place, struct tutti_error *err)
{
    int64_t n_rows = place->is_transposed ? place->n_in : place->n_out,
            n_columns = place->is_transposed ? place->n_out : place->n_in;
    const char *what = place->slot == SLOT_EMBEDDING || place->slot == SLOT_OUTPUT
                           ? "the model's vocabulary, its width: PEFT must be given a model of this size, too"
                           : "the model's weight";
    enum tutti_status st = adapter_check_tensor(t, n_rows, n_columns, what, err);
    size_t row_bytes = 0;
    if (st != TUTTI_OK)
        return st;
    void *made = NULL;
    const void *stored = place->is_transposed ? (made = weights_transposed(t)) : tensor_bytes(t, &made);
    struct adapter_module *to = &r->out->modules[r->out->n_modules++];
    *to = (struct adapter_module){ .slot = place->slot,
                                   .layer = place->layer,
                                   .out_begin = place->out_begin,
                                   .n_out = place->n_out,
                                   .n_in = place->n_in,
                                   .dtype = t->dtype,
                                   .is_shared = !adapter_is_saved(r, path) };
    if (dtype_bytes(t->dtype, place->n_in, &row_bytes))
        to->rows = malloc((size_t)place->n_out * row_bytes);
    if (stored && to->rows)
        order_rows(to->rows, stored, place, row_bytes);
    else
        st = error_out_of_memory(r->tensors_path, err);
    free(made);
    return st;
}

static enum tutti_status read_module(struct adapter_reader *r, const struct adapter_entry *e,
                                     struct tutti_error *err)
{
    const struct tensor *weight = e->of[FACTOR_WEIGHT], *bias = e->of[FACTOR_BIAS];
    struct adapter_place place;
    enum tutti_status st = find_place(r, &place, e, PLACE_MODULE, weight ? weight : bias, err);
    if (st != TUTTI_OK)
        return st;
    if (slot_info(place.slot)->kind == SLOT_NORM)
        return read_norm(r, e, &place, err);
    if (weight)
        st = read_matrix(r, weight, e->path, &place, err);
    if (st != TUTTI_OK || !bias)
        return st;
    st = adapter_check_tensor(bias, place.n_out, 0, "the model's output", err);
    if (st == TUTTI_OK && place.slot == SLOT_EMBEDDING)
        st = error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: an embedding has no bias", bias->file,
                       bias->name);
    if (st != TUTTI_OK)
        return st;
    struct adapter_bias *to = &r->out->biases[r->out->n_biases++];
    *to = (struct adapter_bias){ .slot = place.slot,
                                 .layer = place.layer,
                                 .out_begin = place.out_begin,
                                 .n_out = place.n_out,
                                 .values = ordered_floats(bias, &place, 1) };
    return to->values ? TUTTI_OK : error_out_of_memory(r->tensors_path, err);
}

static struct adapter_module *find_module(const struct adapter_file *file, enum weight_slot slot)
{
    for (int i = 0; i < file->n_modules; i++)
        if (file->modules[i].slot == slot)
            return &file->modules[i];
    return NULL;
}

/* A weight that modules_to_save does not name replaces that of PEFT's model, which a tied output and the
 * embedding have in common. The output's is the last that PEFT loads. */
static enum tutti_status tie_weights(struct adapter_reader *r, struct tutti_error *err)
{
    struct adapter_module *embedding = find_module(r->out, SLOT_EMBEDDING),
                          *output = find_module(r->out, SLOT_OUTPUT);
    struct adapter_module *from = output && output->is_shared ? output : embedding;
    struct adapter_module *to = from == output ? embedding : output;
    size_t n_bytes;
    if (!r->desc->tied_output || !from || !from->is_shared || (to && !to->is_shared) ||
        !dtype_bytes(from->dtype, (int64_t)from->n_out * from->n_in, &n_bytes))
        return TUTTI_OK;
    uint8_t *rows = malloc(n_bytes);
    if (!rows)
        return error_out_of_memory(r->tensors_path, err);
    memcpy(rows, from->rows, n_bytes);
    if (to)
        free(to->rows);
    else
        to = &r->out->modules[r->out->n_modules++];
    *to = *from;
    to->slot = from->slot == SLOT_OUTPUT ? SLOT_EMBEDDING : SLOT_OUTPUT;
    to->rows = rows;
    return TUTTI_OK;
}

/* PEFT computes an output with trained tokens without its bias. */
static enum tutti_status drop_output_bias(struct adapter_reader *r, struct tutti_error *err)
{
    struct adapter_file *f = r->out;
    struct slot_shape shape = slot_shape(r->desc, SLOT_OUTPUT, 0);
    int n = 0;
    if (f->output_tokens.n == 0 || !shape.has_bias)
        return TUTTI_OK;
    for (int i = 0; i < f->n_biases; i++) {
        if (f->biases[i].slot == SLOT_OUTPUT)
            free(f->biases[i].values);
        else
            f->biases[n++] = f->biases[i];
    }
    struct adapter_bias *to = &f->biases[n++];
    f->n_biases = n;
    *to = (struct adapter_bias){ .slot = SLOT_OUTPUT,
                                 .n_out = shape.n_out,
                                 .values = calloc((size_t)shape.n_out, sizeof *to->values) };
    return to->values ? TUTTI_OK : error_out_of_memory(r->tensors_path, err);
}

/* ---- the whole file ---- */

static enum tutti_status read_entry(struct adapter_reader *r, const struct adapter_entry *e,
                                    struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    if (e->of[FACTOR_A] || e->of[FACTOR_B] || e->of[FACTOR_B_BIAS] ||
        (e->of[FACTOR_MAGNITUDE] && !e->of[FACTOR_EMBEDDING_A]))
        st = read_pair(r, e, err);
    if (st == TUTTI_OK && (e->of[FACTOR_EMBEDDING_A] || e->of[FACTOR_EMBEDDING_B]))
        st = read_embedding(r, e, err);
    if (st == TUTTI_OK && e->of[FACTOR_TOKENS])
        st = read_tokens(r, e, err);
    if (st == TUTTI_OK && (e->of[FACTOR_WEIGHT] || e->of[FACTOR_BIAS]))
        st = read_module(r, e, err);
    return st;
}

/* Says which tensors are left out: the first few of n names. */
static void warn_of_unused(const struct adapter_reader *r, const char *const *names, size_t n)
{
    enum { SHOWN = 3 };
    char text[SHOWN * (LIMIT_TENSOR_NAME_BYTES + 2)] = "";
    for (size_t i = 0, at = 0; i < n && i < SHOWN; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%.500s", i > 0 ? ", " : "", names[i]);
    if (n > 0)
        log_warn("%s: %zu tensors are not used, as in PEFT, since %s leaves out their modules: %s%s",
                 r->tensors_path, n, r->config_path, text, n > SHOWN ? ", ..." : "");
}

/* Lists the modules by path, with their tensors. unused: [file->n], receives names of tensors that are left out. */
static enum tutti_status list_entries(struct adapter_reader *r, const struct tensor_set *file,
                                      struct adapter_entry *entries, size_t *n_entries, const char **unused,
                                      struct tutti_error *err)
{
    char path[LIMIT_TENSOR_NAME_BYTES];
    size_t n_unused = 0;
    for (size_t i = 0; i < file->n; i++) {
        const struct tensor *t = &file->tensors[i];
        enum factor factor = adapter_split_name(path, t->name);
        if (factor == FACTOR_COUNT)
            return error_set(err, TUTTI_E_UNSUPPORTED,
                             "%s: tensor %s: expected lora_A and lora_B, or another part of an adapter that "
                             "docs/adapters.md lists",
                             t->file, t->name);
        if (factor == FACTOR_ORIGINAL)
            continue;
        if (!adapter_is_applied(r, t->name, path, factor)) {
            unused[n_unused++] = t->name;
            continue;
        }
        entries[*n_entries] = (struct adapter_entry){ .path = strdup(path) };
        entries[*n_entries].of[factor] = t;
        if (!entries[*n_entries].path)
            return error_out_of_memory(r->tensors_path, err);
        ++*n_entries;
    }
    warn_of_unused(r, unused, n_unused);
    qsort(entries, *n_entries, sizeof *entries, compare_entries);
    return TUTTI_OK;
}

/* PEFT may save a module that modules_to_save names twice; then it loads the one without this part. */
static bool is_copy(const struct tensor *t)
{
    return strstr(t->name, ".modules_to_save.");
}

/* Joins the entries of one path. *n: their number. */
static enum tutti_status join_entries(struct adapter_entry *entries, size_t *n, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    size_t n_joined = 0;
    for (size_t i = 0; i < *n; i++) {
        struct adapter_entry *last = n_joined > 0 ? &entries[n_joined - 1] : NULL;
        if (!last || strcmp(last->path, entries[i].path) != 0) {
            entries[n_joined++] = entries[i];
            continue;
        }
        for (int k = 0; k < FACTOR_COUNT; k++) {
            const struct tensor *t = entries[i].of[k];
            if (t && last->of[k] && is_copy(t) && !is_copy(last->of[k]))
                continue;
            if (t && last->of[k] && is_copy(t) == is_copy(last->of[k]) && st == TUTTI_OK)
                st = error_set(err, TUTTI_E_FORMAT, "%s: tensors %s and %s are the same part of the adapter",
                               t->file, last->of[k]->name, t->name);
            last->of[k] = t ? t : last->of[k];
        }
        free(entries[i].path);
    }
    *n = n_joined;
    return st;
}

static int compare_places(int layer_a, enum weight_slot slot_a, int begin_a, int layer_b,
                          enum weight_slot slot_b, int begin_b)
{
    return layer_a != layer_b ? (layer_a > layer_b) - (layer_a < layer_b)
           : slot_a != slot_b ? (slot_a > slot_b) - (slot_a < slot_b)
                              : (begin_a > begin_b) - (begin_a < begin_b);
}

static int compare_updates(const void *a, const void *b)
{
    const struct adapter_update *x = a, *y = b;
    return compare_places(x->layer, x->slot, x->out_begin, y->layer, y->slot, y->out_begin);
}

static int compare_biases(const void *a, const void *b)
{
    const struct adapter_bias *x = a, *y = b;
    int order = compare_places(x->layer, x->slot, x->out_begin, y->layer, y->slot, y->out_begin);
    return order != 0 ? order : x->is_added - y->is_added;
}

static int compare_modules(const void *a, const void *b)
{
    const struct adapter_module *x = a, *y = b;
    return compare_places(x->layer, x->slot, x->out_begin, y->layer, y->slot, y->out_begin);
}

static enum tutti_status overlap(const struct adapter_reader *r, enum weight_slot slot, int layer,
                                 const char *what, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_FORMAT, "%s: layer %d: two %s change the same rows of %s", r->tensors_path,
                     layer, what, slot_info(slot)->name);
}

/* Sorts; names of several layouts could change a weight twice. */
static enum tutti_status check_overlaps(const struct adapter_reader *r, struct tutti_error *err)
{
    struct adapter_file *f = r->out;
    qsort(f->updates, (size_t)f->n, sizeof *f->updates, compare_updates);
    qsort(f->biases, (size_t)f->n_biases, sizeof *f->biases, compare_biases);
    qsort(f->modules, (size_t)f->n_modules, sizeof *f->modules, compare_modules);
    for (int i = 1; i < f->n; i++) {
        const struct adapter_update *u = &f->updates[i], *before = u - 1;
        if (u->layer == before->layer && u->slot == before->slot &&
            u->out_begin < before->out_begin + before->n_out)
            return overlap(r, u->slot, u->layer, "pairs of lora_A and lora_B", err);
    }
    for (int i = 1; i < f->n_biases; i++) {
        const struct adapter_bias *b = &f->biases[i], *before = b - 1;
        if (b->layer == before->layer && b->slot == before->slot && b->is_added == before->is_added &&
            b->out_begin < before->out_begin + before->n_out)
            return overlap(r, b->slot, b->layer, "biases", err);
    }
    for (int i = 1; i < f->n_modules; i++) {
        const struct adapter_module *m = &f->modules[i], *before = m - 1;
        if (m->layer == before->layer && m->slot == before->slot &&
            m->out_begin < before->out_begin + before->n_out)
            return overlap(r, m->slot, m->layer, "weights", err);
    }
    return TUTTI_OK;
}

static enum tutti_status read_entries(struct adapter_reader *r, struct adapter_entry *entries, size_t n,
                                      struct tutti_error *err)
{
    r->out->updates = calloc(n + 1, sizeof *r->out->updates);
    r->out->biases = calloc(2 * n + 1, sizeof *r->out->biases);
    r->out->modules = calloc(n + 1, sizeof *r->out->modules); /* and one that is tied */
    if (!r->out->updates || !r->out->biases || !r->out->modules)
        return error_out_of_memory(r->tensors_path, err);
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; i < n && st == TUTTI_OK; i++)
        st = read_entry(r, &entries[i], err);
    if (st == TUTTI_OK)
        st = tie_tokens(r, err);
    if (st == TUTTI_OK)
        st = drop_output_bias(r, err);
    if (st == TUTTI_OK)
        st = tie_weights(r, err);
    if (st == TUTTI_OK)
        st = check_overlaps(r, err);
    return st;
}

enum tutti_status adapter_read_tensors(struct adapter_reader *r, const struct tensor_set *file,
                                       struct tutti_error *err)
{
    size_t n = 0;
    struct adapter_entry *entries = calloc(file->n + 1, sizeof *entries);
    const char **unused = calloc(file->n + 1, sizeof *unused);
    enum tutti_status st = entries && unused ? list_entries(r, file, entries, &n, unused, err)
                                             : error_out_of_memory(r->tensors_path, err);
    if (st == TUTTI_OK && n == 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: no tensors%s, expected pairs of lora_A and lora_B",
                       r->tensors_path, file->n > 0 ? " of modules that target_modules names" : "");
    if (st == TUTTI_OK)
        st = join_entries(entries, &n, err);
    if (st == TUTTI_OK)
        st = read_entries(r, entries, n, err);
    if (st == TUTTI_OK && r->kind == ADAPTER_LORA)
        st = adapter_check_names(r, "target_modules", entries, n, err);
    if (st == TUTTI_OK)
        st = adapter_check_names(r, "modules_to_save", entries, n, err);
    for (size_t i = 0; entries && i < n; i++)
        free(entries[i].path);
    free(entries);
    free((void *)unused);
    return st;
}
