/* Conversion is a plan (which tensor goes where, as what, with its rows in which order), then a stream (convert_stream.c). */
#include "model/convert.h"

#include "base/log.h"
#include "model/convert_meta.h"
#include "model/convert_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct change NO_CHANGE = { 0 };

struct converter {
    struct convert_stream stream;
    struct checkpoint *ck;
    const struct family *family;
    const struct tensor_names *from, *to;
    struct model_desc desc;
    const struct convert_options *options;
    struct merge merge;
    struct planned *plan;
    size_t n_plan, capacity;
    float *rope_factors; /* [rotary_dim / 2]; NULL: none */
};

static enum tutti_status out_of_memory(const struct converter *c, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", checkpoint_path(c->ck));
}

/* place: of a matrix; NULL: the tensor stays f32. */
static enum tutti_status plan_tensor(struct converter *c, const char *pattern, int layer,
                                     const struct tensor *t, struct change change,
                                     const struct weight_place *place, struct tutti_error *err)
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
    *p = (struct planned){ .tensor = t, .change = change, .wanted = DTYPE_F32, .type = DTYPE_F32 };
    weights_layer_name(p->name, sizeof p->name, pattern, layer);
    int64_t n = 1;
    size_t n_bytes = 0;
    if (place) {
        const struct weight_type *type = c->options->type;
        p->wanted = c->options->is_pure ? type->dtype : weight_type_choose(type, place);
        p->type = weights_fit_type(p->wanted, (int)t->shape[change.is_transposed ? 0 : 1]);
    }
    for (int i = 0; t && i < t->n_dims; i++)
        n *= t->shape[i];
    if (!t)
        n = c->desc.rotary_dim / 2;
    if (dtype_bytes(p->type, n, &n_bytes))
        c->stream.total += n_bytes;
    return TUTTI_OK;
}

static enum tutti_status plan_norm(struct converter *c, const char *pattern, int layer,
                                   const struct norm_tensors *norm, struct tutti_error *err)
{
    if (!norm->w)
        return TUTTI_OK;
    char bias[64];
    weights_bias_name(bias, sizeof bias, pattern);
    enum tutti_status st = plan_tensor(c, pattern, layer, norm->w, NO_CHANGE, NULL, err);
    return st == TUTTI_OK && norm->b ? plan_tensor(c, bias, layer, norm->b, NO_CHANGE, NULL, err) : st;
}

static enum tutti_status plan_weight(struct converter *c, const char *const *patterns, int layer,
                                     const struct weight *w, enum site site, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    bool is_qkv = site == SITE_QKV;
    int first_row = 0;
    bool permutes = is_qkv && w->n_parts == 3 && c->family->is_permuted_in_gguf && c->desc.rope == ROPE_HALF;
    for (int i = 0; i < w->n_parts && st == TUTTI_OK; i++) {
        int n_heads = !permutes || i == 2 ? 0 : i == 0 ? c->desc.n_heads : c->desc.n_kv_heads;
        struct change change = { .n_permuted_heads = n_heads,
                                 .by_head_dim = w->by_head_dim,
                                 .is_transposed = w->is_transposed };
        struct weight_place place = w->place;
        if (is_qkv && w->n_parts == 3 && i < 2)
            place.role = WEIGHT_OTHER;
        st = plan_tensor(c, patterns[i], layer, w->parts[i], change, &place, err);
        if (st == TUTTI_OK)
            c->plan[c->n_plan - 1].merge = merge_find(&c->merge, site, layer, first_row);
        first_row += (int)w->parts[i]->shape[w->is_transposed ? 1 : 0];
        if (st == TUTTI_OK && w->biases[i]) {
            char bias[64];
            weights_bias_name(bias, sizeof bias, patterns[i]);
            change.is_transposed = false;
            st = plan_tensor(c, bias, layer, w->biases[i], change, NULL, err);
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
        st = plan_weight(c, c->to->qkv, layer, &w.qkv, SITE_QKV, err);
    if (st == TUTTI_OK && w.q_norm)
        st = plan_tensor(c, c->to->q_norm, layer, w.q_norm, NO_CHANGE, NULL, err);
    if (st == TUTTI_OK && w.k_norm)
        st = plan_tensor(c, c->to->k_norm, layer, w.k_norm, NO_CHANGE, NULL, err);
    if (st == TUTTI_OK)
        st = plan_weight(c, &c->to->attn_out, layer, &w.attn_out, SITE_ATTN_OUT, err);
    if (st == TUTTI_OK)
        st = plan_norm(c, c->to->attn_post_norm, layer, &w.attn_post_norm, err);
    if (st == TUTTI_OK)
        st = plan_norm(c, c->to->ffn_norm, layer, &w.ffn_norm, err);
    if (st == TUTTI_OK)
        st = plan_weight(c, c->to->gate_up, layer, &w.gate_up, SITE_GATE_UP, err);
    if (st == TUTTI_OK)
        st = plan_weight(c, &c->to->down, layer, &w.down, SITE_DOWN, err);
    if (st == TUTTI_OK)
        st = plan_norm(c, c->to->ffn_post_norm, layer, &w.ffn_post_norm, err);
    return st;
}

/* llama3's scaling has no key of its own: a tensor of divisors says it. */
static enum tutti_status plan_rope_factors(struct converter *c, struct tutti_error *err)
{
    const struct tensor *stored = checkpoint_find(c->ck, "rope_freqs.weight");
    if (stored)
        return plan_tensor(c, "rope_freqs.weight", 0, stored, NO_CHANGE, NULL, err);
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
    return plan_tensor(c, "rope_freqs.weight", 0, NULL, NO_CHANGE, NULL, err);
}

/* Says once which matrices do not become what they should. */
static void note_fallbacks(const struct converter *c)
{
    const struct planned *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < c->n_plan; i++) {
        const struct planned *p = &c->plan[i];
        if (p->type == p->wanted)
            continue;
        first = first ? first : p;
        n++;
    }
    if (first)
        log_info("%s: its rows of %lld do not fit the blocks of %s, so it becomes %s%s", first->name,
                 (long long)first->tensor->shape[first->change.is_transposed ? 0 : 1],
                 dtype_name(first->wanted), dtype_name(first->type), n > 1 ? "; others like it too" : "");
}

static enum tutti_status make_plan(struct converter *c, struct tutti_error *err)
{
    struct outer_weights outer;
    enum tutti_status st = weights_find_outer(&outer, &c->desc, c->from, c->ck, err);
    if (st == TUTTI_OK)
        st = plan_weight(c, &c->to->embedding, 0, &outer.embedding, SITE_COUNT, err);
    if (st == TUTTI_OK)
        st = plan_norm(c, c->to->embedding_norm, 0, &outer.embedding_norm, err);
    if (st == TUTTI_OK && outer.positions)
        st = plan_tensor(c, c->to->positions, 0, outer.positions, NO_CHANGE, NULL, err);
    if (st == TUTTI_OK)
        st = plan_rope_factors(c, err);
    for (int i = 0; i < c->desc.n_layers && st == TUTTI_OK; i++)
        st = plan_layer(c, i, err);
    if (st == TUTTI_OK)
        st = plan_norm(c, c->to->output_norm, 0, &outer.output_norm, err);
    if (st == TUTTI_OK && !c->desc.tied_output)
        st = plan_weight(c, &c->to->output, 0, &outer.output, SITE_OUTPUT, err);
    return st;
}

static enum tutti_status write_all(struct converter *c, struct tutti_error *err)
{
    for (size_t i = 0; i < c->n_plan; i++) {
        const struct planned *p = &c->plan[i];
        int64_t n_factors = c->desc.rotary_dim / 2, turned[2] = { 0 };
        const int64_t *shape = p->tensor ? p->tensor->shape : NULL;
        if (shape && p->change.is_transposed) {
            turned[0] = shape[1];
            turned[1] = shape[0];
            shape = turned;
        }
        if (p->tensor)
            gguf_writer_tensor(c->stream.writer, p->name, p->type, p->tensor->n_dims, shape);
        else
            gguf_writer_tensor(c->stream.writer, p->name, p->type, 1, &n_factors);
    }
    enum tutti_status st = gguf_writer_begin_data(c->stream.writer, err);
    for (size_t i = 0; i < c->n_plan && st == TUTTI_OK; i++) {
        const struct planned *p = &c->plan[i];
        if (p->tensor)
            st = convert_stream_tensor(&c->stream, p, err);
        else /* as this machine stores floats; tutti runs on little-endian machines alone */
            st = gguf_writer_data(c->stream.writer, c->rope_factors,
                                  (size_t)(c->desc.rotary_dim / 2) * sizeof *c->rope_factors, err);
    }
    return st == TUTTI_OK ? gguf_writer_finish(c->stream.writer, err) : st;
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
        st = convert_tokenizer(c->stream.writer, c->family, &c->desc, tok, c->ck, err);
    else {
        log_warn("the converted file has no tokenizer: %s", why);
        gguf_writer_string(c->stream.writer, "tokenizer.ggml.model", "no_vocab", strlen("no_vocab"));
    }
    tokenizer_free(tok);
    return st;
}

/* Of a file whose matrices are all of one K type, the nearest label: that of the mix with the fewest exceptions. */
static uint32_t file_type(const struct convert_options *options)
{
    const struct weight_type *type = options->type;
    if (options->is_pure && type->dtype == DTYPE_Q5_K)
        type = weight_type_find("q5_k_s");
    else if (options->is_pure && type->dtype == DTYPE_Q4_K)
        type = weight_type_find("q4_k_s");
    else if (options->is_pure && type->dtype == DTYPE_Q3_K)
        type = weight_type_find("q3_k_s");
    return type->file_type;
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
    c->stream.ck = c->ck;
    st = merge_open(&c->merge, c->options->merges, c->options->n_merges, &c->desc, c->family,
                    c->from->is_gguf, err);
    if (st == TUTTI_OK)
        st = make_plan(c, err);
    note_fallbacks(c);
    if (st == TUTTI_OK)
        st = team_new(&c->stream.team, c->options->n_threads, false, err);
    if (st == TUTTI_OK)
        st = gguf_writer_open(&c->stream.writer, dst, err);
    if (st != TUTTI_OK)
        return st;
    char name[128];
    model_name(name, sizeof name, checkpoint_path(c->ck));
    convert_describe(c->stream.writer, c->family, &c->desc, name, file_type(c->options));
    st = write_tokenizer(c, err);
    return st == TUTTI_OK ? write_all(c, err) : st;
}

enum tutti_status convert_to_gguf(const char *src, const char *dst, const struct convert_options *options,
                                  struct tutti_error *err)
{
    struct converter c = { .options = options, .stream.options = options };
    enum tutti_status st = checkpoint_open(&c.ck, src, err);
    if (st == TUTTI_OK)
        st = convert(&c, dst, err);
    gguf_writer_free(c.stream.writer);
    team_free(c.stream.team);
    free(c.plan);
    merge_clear(&c.merge);
    free(c.rope_factors);
    checkpoint_close(c.ck);
    return st;
}
