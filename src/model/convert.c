/* Conversion is a plan (which tensor goes where, as what, with its rows in which order), then a stream: chunks of rows
 * are read from the mapping, converted by all threads, and written. */
#include "model/convert.h"

#include "base/log.h"
#include "base/team.h"
#include "kernels/quantize.h"
#include "model/convert_meta.h"
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CHUNK_BYTES = 8 << 20 };

struct planned {
    char name[64];
    const struct tensor *tensor; /* NULL: rope factors */
    enum dtype type;
    struct change {           /* from what is stored */
        int n_permuted_heads; /* > 0: rows of each head go from half-split to interleaved order */
        int by_head_dim;      /* > 0: rows are stored as [heads][q, k, v][by_head_dim] */
        bool is_transposed;
        bool is_table; /* by position: few rows, kept as float32 as llama.cpp does */
    } change;
};

static const struct change NO_CHANGE = { 0 };

struct converter {
    struct checkpoint *ck;
    const struct family *family;
    const struct tensor_names *from, *to;
    struct model_desc desc;
    const struct convert_options *options;
    struct gguf_writer *writer;
    struct team *team;
    struct planned *plan;
    size_t n_plan, capacity;
    float *rope_factors; /* [rotary_dim / 2]; NULL: none */
    uint64_t done, total;
};

static enum tutti_status out_of_memory(const struct converter *c, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", checkpoint_path(c->ck));
}

static enum tutti_status plan_tensor(struct converter *c, const char *pattern, int layer,
                                     const struct tensor *t, struct change change, struct tutti_error *err)
{
    if (c->n_plan == c->capacity) {
        size_t capacity = c->capacity * 2 + 64;
        struct planned *more = realloc(c->plan, capacity * sizeof *more);
        if (!more)
            return out_of_memory(c, err);
        c->plan = more;
        c->capacity = capacity;
    }
    struct planned *p = &c->plan[c->n_plan++];
    *p = (struct planned){ .tensor = t, .change = change, .type = DTYPE_F32 };
    weights_layer_name(p->name, sizeof p->name, pattern, layer);
    int64_t n = 1;
    size_t n_bytes = 0;
    if (t && t->n_dims == 2 && !change.is_table)
        p->type = weights_fit_type(c->options->type, (int)t->shape[change.is_transposed ? 0 : 1]);
    for (int i = 0; t && i < t->n_dims; i++)
        n *= t->shape[i];
    if (!t)
        n = c->desc.rotary_dim / 2;
    if (dtype_bytes(p->type, n, &n_bytes))
        c->total += n_bytes;
    return TUTTI_OK;
}

static enum tutti_status plan_norm(struct converter *c, const char *pattern, int layer,
                                   const struct norm_tensors *norm, struct tutti_error *err)
{
    if (!norm->w)
        return TUTTI_OK;
    char bias[64];
    weights_bias_name(bias, sizeof bias, pattern);
    enum tutti_status st = plan_tensor(c, pattern, layer, norm->w, NO_CHANGE, err);
    return st == TUTTI_OK && norm->b ? plan_tensor(c, bias, layer, norm->b, NO_CHANGE, err) : st;
}

static enum tutti_status plan_weight(struct converter *c, const char *const *patterns, int layer,
                                     const struct weight *w, bool is_qkv, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    bool permutes = is_qkv && w->n_parts == 3 && c->family->is_permuted_in_gguf && c->desc.rope == ROPE_HALF;
    for (int i = 0; i < w->n_parts && st == TUTTI_OK; i++) {
        int n_heads = !permutes || i == 2 ? 0 : i == 0 ? c->desc.n_heads : c->desc.n_kv_heads;
        struct change change = { .n_permuted_heads = n_heads,
                                 .by_head_dim = w->by_head_dim,
                                 .is_transposed = w->is_transposed };
        st = plan_tensor(c, patterns[i], layer, w->parts[i], change, err);
        if (st == TUTTI_OK && w->biases[i]) {
            char bias[64];
            weights_bias_name(bias, sizeof bias, patterns[i]);
            change.is_transposed = false;
            st = plan_tensor(c, bias, layer, w->biases[i], change, err);
        }
    }
    return st;
}

static enum tutti_status plan_layer(struct converter *c, int layer, struct tutti_error *err)
{
    struct layer_weights w;
    enum tutti_status st = weights_find_layer(&w, &c->desc, c->from, c->ck, layer, err);
    if (st == TUTTI_OK)
        st = plan_norm(c, c->to->attn_norm, layer, &w.attn_norm, err);
    if (st == TUTTI_OK)
        st = plan_weight(c, c->to->qkv, layer, &w.qkv, true, err);
    if (st == TUTTI_OK && w.q_norm)
        st = plan_tensor(c, c->to->q_norm, layer, w.q_norm, NO_CHANGE, err);
    if (st == TUTTI_OK && w.k_norm)
        st = plan_tensor(c, c->to->k_norm, layer, w.k_norm, NO_CHANGE, err);
    if (st == TUTTI_OK)
        st = plan_weight(c, &c->to->attn_out, layer, &w.attn_out, false, err);
    if (st == TUTTI_OK)
        st = plan_norm(c, c->to->attn_post_norm, layer, &w.attn_post_norm, err);
    if (st == TUTTI_OK)
        st = plan_norm(c, c->to->ffn_norm, layer, &w.ffn_norm, err);
    if (st == TUTTI_OK)
        st = plan_weight(c, c->to->gate_up, layer, &w.gate_up, false, err);
    if (st == TUTTI_OK)
        st = plan_weight(c, &c->to->down, layer, &w.down, false, err);
    if (st == TUTTI_OK)
        st = plan_norm(c, c->to->ffn_post_norm, layer, &w.ffn_post_norm, err);
    return st;
}

/* llama3's scaling has no key of its own: a tensor of divisors says it. */
static enum tutti_status plan_rope_factors(struct converter *c, struct tutti_error *err)
{
    const struct tensor *stored = checkpoint_find(c->ck, "rope_freqs.weight");
    if (stored)
        return plan_tensor(c, "rope_freqs.weight", 0, stored, NO_CHANGE, err);
    if (c->desc.rope_scaling.kind != ROPE_SCALING_LLAMA3)
        return TUTTI_OK;
    int n = c->desc.rotary_dim / 2;
    float *scaled = malloc((size_t)n * sizeof *scaled);
    c->rope_factors = malloc((size_t)n * sizeof *c->rope_factors);
    if (!scaled || !c->rope_factors) {
        free(scaled);
        return out_of_memory(c, err);
    }
    struct model_desc plain = c->desc;
    plain.rope_scaling.kind = ROPE_SCALING_NONE;
    model_rope_freqs(&c->desc, scaled);
    model_rope_freqs(&plain, c->rope_factors);
    for (int j = 0; j < n; j++)
        c->rope_factors[j] /= scaled[j];
    free(scaled);
    return plan_tensor(c, "rope_freqs.weight", 0, NULL, NO_CHANGE, err);
}

static enum tutti_status make_plan(struct converter *c, struct tutti_error *err)
{
    struct outer_weights outer;
    enum tutti_status st = weights_find_outer(&outer, &c->desc, c->from, c->ck, err);
    if (st == TUTTI_OK)
        st = plan_weight(c, &c->to->embedding, 0, &outer.embedding, false, err);
    if (st == TUTTI_OK)
        st = plan_norm(c, c->to->embedding_norm, 0, &outer.embedding_norm, err);
    if (st == TUTTI_OK && outer.positions)
        st = plan_tensor(c, c->to->positions, 0, outer.positions, (struct change){ .is_table = true }, err);
    if (st == TUTTI_OK)
        st = plan_rope_factors(c, err);
    for (int i = 0; i < c->desc.n_layers && st == TUTTI_OK; i++)
        st = plan_layer(c, i, err);
    if (st == TUTTI_OK)
        st = plan_norm(c, c->to->output_norm, 0, &outer.output_norm, err);
    if (st == TUTTI_OK && !c->desc.tied_output)
        st = plan_weight(c, &c->to->output, 0, &outer.output, false, err);
    return st;
}

/* ---- the stream ---- */

/* A chunk of rows that all threads convert together. */
struct chunk {
    const struct planned *plan;
    int64_t first_row, n_rows, n_cols, n_total_rows;
    size_t in_bytes, out_bytes; /* of a row */
    const uint8_t *in;          /* the stored rows, or a copy put in order */
    uint8_t *out;
    float *floats; /* [n_threads][n_cols] */
};

/* Which stored row stands at a place of the converted tensor. */
static int64_t source_row(const struct chunk *k, int64_t row)
{
    const struct change *change = &k->plan->change;
    if (change->by_head_dim > 0)
        return weights_by_head_row(k->n_total_rows, change->by_head_dim, row);
    if (change->n_permuted_heads == 0)
        return row;
    int64_t head_dim = k->n_total_rows / change->n_permuted_heads;
    int64_t head = row / head_dim, j = row % head_dim;
    return head * head_dim + j / 2 + (j % 2) * (head_dim / 2);
}

static void convert_rows(void *arg, int thread, int n_threads)
{
    const struct chunk *k = arg;
    const struct tensor *t = k->plan->tensor;
    int64_t begin, end;
    team_share(k->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const uint8_t *in = k->in + (size_t)source_row(k, k->first_row + i) * k->in_bytes;
        uint8_t *out = k->out + (size_t)i * k->out_bytes;
        if (t->dtype == k->plan->type) {
            memcpy(out, in, k->in_bytes);
            continue;
        }
        float *floats = k->floats + (int64_t)thread * k->n_cols;
        dequantize(floats, in, t->dtype, k->n_cols);
        quantize(out, floats, k->plan->type, k->n_cols);
    }
}

/* How the tensor is cut into rows. A vector is a column of rows of one element where its rows change their order, else one
 * row. */
static enum tutti_status measure_rows(struct chunk *k, struct tutti_error *err)
{
    const struct planned *p = k->plan;
    const struct tensor *t = p->tensor;
    bool is_column = p->change.n_permuted_heads > 0 || p->change.by_head_dim > 0;
    if (t->n_dims == 2) {
        k->n_total_rows = t->shape[p->change.is_transposed ? 1 : 0];
        k->n_cols = t->shape[p->change.is_transposed ? 0 : 1];
    } else {
        k->n_total_rows = is_column ? t->shape[0] : 1;
        k->n_cols = is_column ? 1 : t->shape[0];
    }
    if (!dtype_bytes(t->dtype, k->n_cols, &k->in_bytes) || !dtype_bytes(p->type, k->n_cols, &k->out_bytes))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: rows of %lld do not fit its type", t->file,
                         t->name, (long long)k->n_cols);
    return TUTTI_OK;
}

static enum tutti_status write_tensor(struct converter *c, const struct planned *p, struct tutti_error *err)
{
    const struct tensor *t = p->tensor;
    struct chunk k = { .plan = p };
    enum tutti_status st = measure_rows(&k, err);
    if (st != TUTTI_OK)
        return st;
    int64_t rows_at_once = CHUNK_BYTES / (int64_t)k.out_bytes;
    if (rows_at_once < 1)
        rows_at_once = 1;
    if (rows_at_once > k.n_total_rows)
        rows_at_once = k.n_total_rows;
    void *made = NULL;
    k.in = p->change.is_transposed ? (made = weights_transposed(t)) : tensor_bytes(t, &made);
    k.out = malloc((size_t)rows_at_once * k.out_bytes);
    k.floats = malloc((size_t)team_n_threads(c->team) * (size_t)k.n_cols * sizeof *k.floats);
    if (!k.in || !k.out || !k.floats)
        st = out_of_memory(c, err);
    for (; st == TUTTI_OK && k.first_row < k.n_total_rows; k.first_row += k.n_rows) {
        int64_t left = k.n_total_rows - k.first_row;
        k.n_rows = left < rows_at_once ? left : rows_at_once;
        team_run(c->team, convert_rows, &k);
        st = gguf_writer_data(c->writer, k.out, (size_t)k.n_rows * k.out_bytes, err);
        c->done += (uint64_t)k.n_rows * k.out_bytes;
        if (c->options->progress)
            c->options->progress(c->options->user, c->done, c->total);
    }
    free(made);
    free(k.out);
    free(k.floats);
    tensor_forget(t);
    return st;
}

static enum tutti_status write_all(struct converter *c, struct tutti_error *err)
{
    for (size_t i = 0; i < c->n_plan; i++) {
        const struct planned *p = &c->plan[i];
        int64_t n_factors = c->desc.rotary_dim / 2, turned[2] = { 0 };
        const int64_t *shape = p->tensor ? p->tensor->shape : NULL;
        if (p->change.is_transposed) {
            turned[0] = shape[1];
            turned[1] = shape[0];
            shape = turned;
        }
        if (p->tensor)
            gguf_writer_tensor(c->writer, p->name, p->type, p->tensor->n_dims, shape);
        else
            gguf_writer_tensor(c->writer, p->name, p->type, 1, &n_factors);
    }
    enum tutti_status st = gguf_writer_begin_data(c->writer, err);
    for (size_t i = 0; i < c->n_plan && st == TUTTI_OK; i++) {
        const struct planned *p = &c->plan[i];
        if (p->tensor)
            st = write_tensor(c, p, err);
        else /* as this machine stores floats; tutti runs on little-endian machines alone */
            st = gguf_writer_data(c->writer, c->rope_factors,
                                  (size_t)(c->desc.rotary_dim / 2) * sizeof *c->rope_factors, err);
    }
    return st == TUTTI_OK ? gguf_writer_finish(c->writer, err) : st;
}

/* ---- putting it together ---- */

/* The GGUF layout with the same cut of q, k, v and of gate, up as the source's. */
static const struct tensor_names *choose_layout(const struct family *family, const struct tensor_names *from)
{
    for (int i = 0; i < family->n_layouts; i++) {
        const struct tensor_names *to = &family->layouts[i];
        if (to->is_gguf && !to->qkv[1] == !from->qkv[1] && !to->gate_up[1] == !from->gate_up[1])
            return to;
    }
    return NULL;
}

static enum tutti_status check_target(const struct checkpoint *ck, const char *dst, struct tutti_error *err)
{
    struct stat a, b;
    if (stat(dst, &a) != 0)
        return TUTTI_OK;
    if (S_ISDIR(a.st_mode))
        return error_set(err, TUTTI_E_ARGUMENT, "%s: a folder, expected the name of a file", dst);
    for (size_t i = 0; i < checkpoint_n_tensors(ck); i++) {
        const char *file = checkpoint_tensor(ck, i)->file;
        if ((i == 0 || file != checkpoint_tensor(ck, i - 1)->file) && stat(file, &b) == 0 &&
            a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return error_set(err, TUTTI_E_ARGUMENT, "%s: it is the checkpoint that is to be converted", dst);
    }
    return TUTTI_OK;
}

static void model_name(char *out, size_t size, const char *path)
{
    const char *slash = strrchr(path, '/');
    snprintf(out, size, "%s", slash ? slash + 1 : path);
    char *dot = strrchr(out, '.');
    if (dot && dot != out && strcmp(dot, ".gguf") == 0)
        *dot = '\0';
}

static enum tutti_status write_tokenizer(struct converter *c, struct tutti_error *err)
{
    struct tokenizer *tok;
    char why[512] = "";
    enum tutti_status st = model_tokenizer_load(&tok, c->family, &c->desc, c->ck, why, sizeof why, err);
    if (st != TUTTI_OK)
        return st;
    if (tok)
        st = convert_tokenizer(c->writer, c->family, &c->desc, tok, c->ck, err);
    else {
        log_warn("the converted file has no tokenizer: %s", why);
        gguf_writer_string(c->writer, "tokenizer.ggml.model", "no_vocab", strlen("no_vocab"));
    }
    tokenizer_free(tok);
    return st;
}

static enum tutti_status convert(struct converter *c, const char *dst, struct tutti_error *err)
{
    enum tutti_status st = model_desc_read(&c->desc, &c->family, c->ck, err);
    if (st == TUTTI_OK)
        st = check_target(c->ck, dst, err);
    if (st != TUTTI_OK)
        return st;
    if (!c->family->gguf_architecture)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: GGUF has no architecture for %s models",
                         checkpoint_path(c->ck), c->family->name);
    if (c->desc.residual_scale != 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: GGUF cannot say where its residuals are taken",
                         checkpoint_path(c->ck));
    c->from = family_layout(c->family, c->ck);
    if (!c->from)
        return error_set(err, TUTTI_E_FORMAT, "%s: no tensor is named as in a %s model",
                         checkpoint_path(c->ck), c->family->name);
    c->to = choose_layout(c->family, c->from);
    if (!c->to)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: GGUF keeps what is behind %s in one tensor, this checkpoint in several",
                         checkpoint_path(c->ck), c->from->qkv[0]);
    st = make_plan(c, err);
    if (st == TUTTI_OK)
        st = team_new(&c->team, c->options->n_threads, false, err);
    if (st == TUTTI_OK)
        st = gguf_writer_open(&c->writer, dst, err);
    if (st != TUTTI_OK)
        return st;
    char name[128];
    model_name(name, sizeof name, checkpoint_path(c->ck));
    convert_describe(c->writer, c->family, &c->desc, name, c->options->type);
    st = write_tokenizer(c, err);
    return st == TUTTI_OK ? write_all(c, err) : st;
}

enum tutti_status convert_to_gguf(const char *src, const char *dst, const struct convert_options *options,
                                  struct tutti_error *err)
{
    if (!dtype_is_weight(options->type))
        return error_set_param(err, TUTTI_E_ARGUMENT, "type", "type %s cannot be written",
                               dtype_name(options->type));
    struct converter c = { .options = options };
    enum tutti_status st = checkpoint_open(&c.ck, src, err);
    if (st == TUTTI_OK)
        st = convert(&c, dst, err);
    gguf_writer_free(c.writer);
    team_free(c.team);
    free(c.plan);
    free(c.rope_factors);
    checkpoint_close(c.ck);
    return st;
}
