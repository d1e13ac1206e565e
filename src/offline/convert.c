/* Converts in two phases: a plan (name, type and row order of each tensor), then the data stream
 * (convert_stream.c). */
#include "offline/convert.h"

#include "base/containers/array.h"
#include "base/files/path_name.h"
#include "base/log.h"
#include "model/load/pooling.h"
#include "model/weights/mtp.h"
#include "offline/convert_meta.h"
#include "offline/convert_stream.h"
#include "offline/imatrix.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATTERN_STEPS = 100000 }; /* of a match, at most */

struct type_pattern {
    pcre2_code *code;
    bool has_matched;
};

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
    /* [n_heads], [n_slices]: tensors of the plan that are not the checkpoint's */
    struct head_tensor **heads;
    struct tensor_slice **slices;
    size_t n_heads, heads_capacity, n_slices, slices_capacity;
    bool is_mix;                   /* --pure gives a matrix another type than it had without it */
    struct type_pattern *patterns; /* [n_patterns] of options->tensor_types */
    int n_patterns;
    pcre2_match_data *match;
    pcre2_match_context *limits;
};

/* ---- types by pattern, importance ---- */

static enum tutti_status open_patterns(struct converter *c, struct tutti_error *err)
{
    int n = c->options->n_tensor_types;
    c->patterns = calloc((size_t)n + 1, sizeof *c->patterns);
    c->match = pcre2_match_data_create(1, NULL);
    c->limits = pcre2_match_context_create(NULL);
    if (!c->patterns || !c->match || !c->limits)
        return error_out_of_memory(checkpoint_path(c->ck), err);
    pcre2_set_match_limit(c->limits, PATTERN_STEPS);
    pcre2_set_depth_limit(c->limits, PATTERN_STEPS);
    for (int i = 0; i < n; i++) {
        const char *pattern = c->options->tensor_types[i].pattern;
        char why[128] = "";
        int code;
        PCRE2_SIZE at;
        c->patterns[i].code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_CASELESS, &code,
                                            &at, NULL);
        if (!c->patterns[i].code) {
            pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
            return error_set_param(err, TUTTI_E_ARGUMENT, "tensor-type",
                                   "--tensor-type %s: no regular expression: %s at character %zu", pattern,
                                   why, at + 1);
        }
        c->n_patterns++;
    }
    return TUTTI_OK;
}

static void close_patterns(struct converter *c)
{
    for (int i = 0; i < c->n_patterns; i++)
        pcre2_code_free(c->patterns[i].code);
    free(c->patterns);
    pcre2_match_data_free(c->match);
    pcre2_match_context_free(c->limits);
}

/* The type that a pattern gives to the matrix; type: none does. A pattern that exceeds the limits
 * does not match. */
static enum dtype type_by_pattern(const struct converter *c, const char *name, enum dtype type)
{
    for (int i = 0; i < c->n_patterns; i++) {
        if (pcre2_match(c->patterns[i].code, (PCRE2_SPTR)name, strlen(name), 0, 0, c->match, c->limits) < 0)
            continue;
        c->patterns[i].has_matched = true;
        return c->options->tensor_types[i].type;
    }
    return type;
}

/* A pattern without a match is likely misspelt. */
static enum tutti_status check_patterns(const struct converter *c, struct tutti_error *err)
{
    for (int i = 0; i < c->n_patterns; i++) {
        if (!c->patterns[i].has_matched)
            return error_set_param(err, TUTTI_E_ARGUMENT, "tensor-type",
                                   "--tensor-type %s: it is the first match of no matrix; names are those of "
                                   "the new file, such as %s",
                                   c->options->tensor_types[i].pattern, c->n_plan > 0 ? c->plan[0].name : "");
    }
    return TUTTI_OK;
}

/* Finds the weights of the errors of each matrix whose quantizer uses them. */
static enum tutti_status plan_importance(struct converter *c, struct tutti_error *err)
{
    const struct imatrix *m = c->options->imatrix;
    const struct planned *missing = NULL;
    size_t n_found = 0, n_missing = 0;
    for (size_t i = 0; m && i < c->n_plan; i++) {
        struct planned *p = &c->plan[i];
        if (p->n_dims < 2 || dtype_block_elems(p->type) == 1 || p->type == DTYPE_Q8_0)
            continue;
        const struct imatrix_entry *e = imatrix_find(m, p->name);
        int64_t n_cols = p->shape[p->n_dims - 1], n_runs = p->n_dims == 3 ? p->shape[0] : 1;
        if (!e) {
            missing = missing ? missing : p;
            n_missing++;
            continue;
        }
        if (e->n != n_cols && e->n != n_cols * n_runs)
            return error_set(
                err, TUTTI_E_FORMAT,
                "%s: %s: %lld values, but the matrix has %lld columns: it belongs to another model",
                imatrix_name(m), e->name, (long long)e->n, (long long)n_cols);
        p->importance = e->values;
        p->n_importance = e->n;
        n_found++;
    }
    if (m && n_found + n_missing == 0)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "imatrix",
            "--imatrix has no effect: no matrix gets a type whose quantizer weighs errors");
    if (missing && n_found == 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: it has no entry for %s, nor for another quantized matrix",
                         imatrix_name(m), missing->name);
    if (missing)
        log_info("%s: it has no entry for %zu of %zu quantized matrices, such as %s", imatrix_name(m),
                 n_missing, n_found + n_missing, missing->name);
    return TUTTI_OK;
}

/* ---- the plan ---- */

/* The shape of a tensor of the converted file. */
struct plan_shape {
    int n_dims;
    int64_t dims[3]; /* the last one is that of the columns */
};

/* Adds a tensor to the plan, without its parts. place: of a matrix; NULL: f32. */
static struct planned *plan_next(struct converter *c, const char *pattern, int layer,
                                 const struct plan_shape *shape, const struct weight_place *place)
{
    if (!array_grow(&c->plan, c->n_plan, &c->capacity, sizeof *c->plan))
        return NULL;
    struct planned *p = &c->plan[c->n_plan++];
    int64_t n_cols = shape->dims[shape->n_dims - 1], n_elems = 1;
    *p = (struct planned){ .wanted = DTYPE_F32, .type = DTYPE_F32, .n_dims = shape->n_dims };
    for (int i = 0; i < shape->n_dims; i++)
        n_elems *= p->shape[i] = shape->dims[i];
    weights_layer_name(p->name, sizeof p->name, pattern, layer);
    if (place) {
        const struct weight_type *type = c->options->type;
        enum dtype mixed = weight_type_choose(type, place);
        bool is_pure = c->options->is_pure && place->role != WEIGHT_ROUTER;
        p->wanted = is_pure ? type->dtype : mixed;
        c->is_mix |= is_pure && mixed != type->dtype;
        if (place->role != WEIGHT_ROUTER && shape->n_dims > 1)
            p->wanted = type_by_pattern(c, p->name, p->wanted);
        p->type = weights_fit_type(p->wanted, (int)n_cols);
    }
    size_t n_bytes;
    if (dtype_bytes(p->type, n_elems, &n_bytes))
        c->stream.total += n_bytes;
    return p;
}

static struct plan_shape vector_shape(int64_t n)
{
    return (struct plan_shape){ .n_dims = 1, .dims = { n } };
}

/* NULL: out of memory. */
static struct planned_part *add_part(struct planned *p)
{
    if (!array_grow(&p->parts, p->n_parts, &p->capacity, sizeof *p->parts))
        return NULL;
    return &p->parts[p->n_parts++];
}

/* Plans a tensor that is only converted to float32. is_less_one: and to which 1 is added. */
static enum tutti_status plan_tensor(struct converter *c, const char *pattern, int layer,
                                     const struct tensor *t, bool is_less_one, struct tutti_error *err)
{
    struct plan_shape shape = { .n_dims = t->n_dims, .dims = { t->shape[0], t->shape[1] } };
    struct planned *p = plan_next(c, pattern, layer, &shape, NULL);
    struct planned_part *part = p ? add_part(p) : NULL;
    if (!part)
        return error_out_of_memory(checkpoint_path(c->ck), err);
    *part = (struct planned_part){ .tensor = t, .n_rows = t->shape[0], .change.is_less_one = is_less_one };
    return TUTTI_OK;
}

/* Rows [begin, end) of a matrix of the forward pass, from the stored tensors (or their biases)
 * that contain them. */
struct convert_run {
    int begin, end;
    int n_permuted_heads;
    bool is_bias;
};

/* Keeps a tensor until it is written. NULL: out of memory. */
static const struct tensor *keep_heads(struct converter *c, const struct head_tensor *heads)
{
    struct head_tensor *kept = array_grow(&c->heads, c->n_heads, &c->heads_capacity, sizeof *c->heads)
                                   ? malloc(sizeof *kept)
                                   : NULL;
    if (!kept)
        return NULL;
    head_tensor_copy(kept, heads);
    c->heads[c->n_heads++] = kept;
    return &kept->tensor;
}

/* The same of a slice. */
static const struct tensor *keep_slice(struct converter *c, const struct tensor_slice *slice)
{
    struct tensor_slice *kept = array_grow(&c->slices, c->n_slices, &c->slices_capacity, sizeof *c->slices)
                                    ? malloc(sizeof *kept)
                                    : NULL;
    if (!kept)
        return NULL;
    tensor_slice_copy(kept, slice);
    c->slices[c->n_slices++] = kept;
    return &kept->tensor;
}

/* False: out of memory. */
static bool plan_run(struct converter *c, struct planned *p, const struct weight *w,
                     const struct convert_run *run)
{
    int part_begin = 0;
    for (int i = 0; i < w->n_parts; i++) {
        const struct tensor_slice *slice = run->is_bias ? &w->bias_slices[i] : &w->slices[i];
        const struct tensor *t = run->is_bias ? w->biases[i] : w->parts[i];
        int part_end = part_begin + (int)w->parts[i]->shape[w->is_transposed ? 1 : 0];
        int begin = run->begin > part_begin ? run->begin : part_begin;
        int end = run->end < part_end ? run->end : part_end;
        if (begin < end) {
            struct planned_part *part = add_part(p);
            if (!part)
                return false;
            *part = (struct planned_part){ .tensor = t,
                                           .first_row = begin - part_begin,
                                           .n_rows = end - begin,
                                           .change = { .n_permuted_heads = run->n_permuted_heads,
                                                       .order = w->order,
                                                       .has_unit_rows = w->has_unit_rows,
                                                       .is_transposed = w->is_transposed && !run->is_bias } };
            if (t == &slice->tensor && !run->is_bias && tensor_slice_is_run(slice)) {
                part->tensor = slice->whole;
                part->first_row += slice->rows.index * slice->tensor.shape[0];
                part->n_rows = slice->whole->n_dims == 1 ? slice->whole->shape[0] : part->n_rows;
            } else if (t == &slice->tensor && !(part->tensor = keep_slice(c, slice))) {
                return false;
            }
            if (w->parts[i] == &w->heads.tensor && !(part->tensor = keep_heads(c, &w->heads)))
                return false;
            part->merge = merge_find(&c->merge, w->slot, w->layer, begin, run->is_bias);
        }
        part_begin = part_end;
    }
    return true;
}

/* Plans the rows of a run in the matrices of all experts, or in a single one. */
static enum tutti_status plan_experts(struct converter *c, struct planned *p, const struct weight *w,
                                      int n_experts, const struct convert_run *run, struct tutti_error *err)
{
    struct slot_at at = { w->slot, w->layer, 0 };
    struct weight other;
    enum tutti_status st = TUTTI_OK;
    for (; at.expert < n_experts && st == TUTTI_OK; at.expert++) {
        if (at.expert > 0)
            st = weights_find(&other, &c->desc, c->from, c->ck, &at, err);
        if (st == TUTTI_OK && !plan_run(c, p, at.expert > 0 ? &other : w, run))
            st = error_out_of_memory(checkpoint_path(c->ck), err);
    }
    return st;
}

/* The heads of a part whose rows change from half-split to interleaved order; 0: none. */
static int n_permuted(const struct converter *c, int layer, enum dim rows)
{
    const struct attn_desc *a = &model_layer(&c->desc, layer)->attn;
    if (!c->family->is_permuted_in_gguf || a->rope != ROPE_HALF)
        return 0;
    return rows == DIM_QUERIES ? a->n_heads : rows == DIM_KV ? a->n_kv_heads : 0;
}

/* Plans the up-projections of latent attention as one tensor, as the source has them. */
static enum tutti_status plan_fused_up(struct converter *c, const struct weight *w, struct tutti_error *err)
{
    const struct tensor *both = w->heads.whole;
    struct plan_shape shape = { .n_dims = 2, .dims = { both->shape[0], both->shape[1] } };
    struct weight_place place = w->place;
    if (w->slot == SLOT_V_UP) /* comes with the keys */
        return TUTTI_OK;
    place.role = WEIGHT_VALUES; /* as in llama.cpp, which counts values of their own among most matrices */
    struct planned *p = plan_next(c, c->to->of[w->slot][0], w->layer, &shape, &place);
    struct planned_part *part = p ? add_part(p) : NULL;
    if (!part)
        return error_out_of_memory(checkpoint_path(c->ck), err);
    *part = (struct planned_part){ .tensor = both, .n_rows = both->shape[0] };
    return TUTTI_OK;
}

/* Plans a matrix, in the parts of the target's layout. */
static enum tutti_status plan_matrix(struct converter *c, const struct weight *w, struct tutti_error *err)
{
    const char *const *patterns = tensor_names_of(c->to, w->slot);
    const struct slot_info *info = slot_info(w->slot);
    struct slot_shape shape = slot_shape(&c->desc, w->slot, w->layer);
    bool is_fused = shape.n_parts > 1 && !patterns[1];
    int n_parts = is_fused ? 1 : shape.n_parts;
    struct convert_run run = { 0 };
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < n_parts && st == TUTTI_OK; i++, run.begin = run.end) {
        struct weight_place place = w->place;
        place.has_imatrix = c->options->imatrix;
        if (info->rows[i] == DIM_KV && !is_fused)
            place.role = WEIGHT_KEYS;
        else if (i < n_parts - 1 && place.role != WEIGHT_ROUTER)
            place.role = WEIGHT_OTHER;
        run.end = is_fused ? shape.n_out : run.begin + shape.rows[i];
        run.n_permuted_heads = is_fused ? 0 : n_permuted(c, w->layer, info->rows[i]);
        run.is_bias = false;
        struct plan_shape wanted = { .n_dims = 2, .dims = { run.end - run.begin, w->n_in } };
        if (info->is_of_experts)
            wanted = (struct plan_shape){ 3, { shape.n_experts, run.end - run.begin, w->n_in } };
        else if (info->rows[i] == DIM_SHARED_GATE)
            wanted = vector_shape(w->n_in);
        else if (info->is_by_head)
            wanted = (struct plan_shape){ 3, { w->heads.n_heads, shape.n_out / w->heads.n_heads, w->n_in } };
        struct planned *p = plan_next(c, patterns[i], w->layer, &wanted, &place);
        if (!p)
            return error_out_of_memory(checkpoint_path(c->ck), err);
        st = plan_experts(c, p, w, shape.n_experts, &run, err);
        if (st != TUTTI_OK || !w->biases[0])
            continue;
        char bias[64];
        weights_bias_name(bias, sizeof bias, patterns[i]);
        run.is_bias = true;
        wanted = vector_shape(run.end - run.begin);
        if (info->is_of_experts)
            wanted = (struct plan_shape){ 2, { shape.n_experts, run.end - run.begin } };
        p = plan_next(c, bias, w->layer, &wanted, NULL);
        if (!p)
            return error_out_of_memory(checkpoint_path(c->ck), err);
        st = plan_experts(c, p, w, shape.n_experts, &run, err);
    }
    return st;
}

static enum tutti_status plan_weight(struct converter *c, const struct weight *w, struct tutti_error *err)
{
    const char *pattern = c->to->of[w->slot][0];
    if (slot_info(w->slot)->is_by_head && c->to->has_fused_up)
        return plan_fused_up(c, w, err);
    if (slot_info(w->slot)->kind == SLOT_MATRIX)
        return plan_matrix(c, w, err);
    enum tutti_status st = plan_tensor(c, pattern, w->layer, w->parts[0], w->is_less_one, err);
    if (st == TUTTI_OK)
        c->plan[c->n_plan - 1].parts->merge = merge_find(&c->merge, w->slot, w->layer, 0, false);
    if (st != TUTTI_OK || !w->biases[0])
        return st;
    char bias[64];
    weights_bias_name(bias, sizeof bias, pattern);
    st = plan_tensor(c, bias, w->layer, w->biases[0], false, err);
    if (st == TUTTI_OK)
        c->plan[c->n_plan - 1].parts->merge = merge_find(&c->merge, w->slot, w->layer, 0, true);
    return st;
}

/* Plans a vector that is not a tensor of the source. values: borrowed until it is written. */
static enum tutti_status plan_values(struct converter *c, const char *name, const float *values, int n,
                                     struct tutti_error *err)
{
    struct plan_shape shape = vector_shape(n);
    struct planned *p = plan_next(c, name, 0, &shape, NULL);
    if (!p)
        return error_out_of_memory(checkpoint_path(c->ck), err);
    p->values = values;
    return TUTTI_OK;
}

/* Divisors of pairs of layers without a window that do not rotate: llama.cpp has no kind of rotation that leaves some in
 * place. */
static enum tutti_status plan_unrotated_pairs(struct converter *c, struct tutti_error *err)
{
    const struct attn_desc *a = NULL;
    for (int i = 0; i < c->desc.n_kinds; i++)
        a = c->desc.kinds[i].attn.window == 0 ? &c->desc.kinds[i].attn : a;
    int n = a ? a->rotary_dim / 2 : 0;
    c->rope_factors = malloc((size_t)(n + 1) * sizeof *c->rope_factors);
    if (!c->rope_factors)
        return error_out_of_memory(checkpoint_path(c->ck), err);
    for (int j = 0; j < n; j++)
        c->rope_factors[j] = a->n_rotating == 0 || j < a->n_rotating ? 1 : 1e30f;
    return plan_values(c, GGUF_ROPE_DIVISORS, c->rope_factors, n, err);
}

/* GGUF has no key for llama3's rotary scaling or for LongRoPE, but tensors of divisors. */
static enum tutti_status plan_rope_factors(struct converter *c, struct tutti_error *err)
{
    const struct tensor *stored = checkpoint_find(c->ck, GGUF_ROPE_DIVISORS);
    if (stored)
        return plan_tensor(c, GGUF_ROPE_DIVISORS, 0, stored, false, err);
    if (c->family->has_global_divisors)
        return plan_unrotated_pairs(c, err);
    const struct attn_desc *a = &c->desc.kinds[0].attn;
    const struct rope_scaling *s = &a->rope_scaling;
    if (s->kind == ROPE_SCALING_LONGROPE) {
        enum tutti_status st = plan_values(c, "rope_factors_long.weight", s->long_factors, s->n_factors, err);
        return st == TUTTI_OK
                   ? plan_values(c, "rope_factors_short.weight", s->short_factors, s->n_factors, err)
                   : st;
    }
    if (s->kind != ROPE_SCALING_LLAMA3)
        return TUTTI_OK;
    int n = a->rotary_dim / 2;
    float *scaled = malloc((size_t)n * sizeof *scaled);
    c->rope_factors = malloc((size_t)n * sizeof *c->rope_factors);
    if (!scaled || !c->rope_factors) {
        free(scaled);
        return error_out_of_memory(checkpoint_path(c->ck), err);
    }
    struct attn_desc plain = *a;
    plain.rope_scaling.kind = ROPE_SCALING_NONE;
    model_rope_freqs(a, scaled);
    model_rope_freqs(&plain, c->rope_factors);
    for (int j = 0; j < n; j++)
        c->rope_factors[j] /= scaled[j];
    free(scaled);
    return plan_values(c, GGUF_ROPE_DIVISORS, c->rope_factors, n, err);
}

/* Logs once which matrices do not get the requested type. */
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
                 (long long)first->shape[first->n_dims - 1], dtype_name(first->wanted),
                 dtype_name(first->type), n > 1 ? "; others like it too" : "");
}

static enum tutti_status make_plan(struct converter *c, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    bool has_factors = false;
    for (struct slot_at at = SLOT_BEGIN; st == TUTTI_OK && slot_next(&c->desc, &at);) {
        struct weight w;
        if (!has_factors && slot_info(at.slot)->is_of_layer) { /* before the layers */
            st = plan_rope_factors(c, err);
            has_factors = true;
        }
        if (st == TUTTI_OK)
            st = weights_find(&w, &c->desc, c->from, c->ck, &at, err);
        if (st == TUTTI_OK)
            st = plan_weight(c, &w, err);
    }
    return st;
}

static enum tutti_status write_all(struct converter *c, struct tutti_error *err)
{
    for (size_t i = 0; i < c->n_plan; i++) {
        const struct planned *p = &c->plan[i];
        gguf_writer_tensor(c->stream.writer, p->name, p->type, p->n_dims, p->shape);
    }
    enum tutti_status st = gguf_writer_begin_data(c->stream.writer, err);
    for (size_t i = 0; i < c->n_plan && st == TUTTI_OK; i++) {
        const struct planned *p = &c->plan[i];
        if (p->n_parts > 0)
            st = convert_stream_tensor(&c->stream, p, err);
        else /* tutti runs only on little-endian machines */
            st = gguf_writer_data(c->stream.writer, p->values, (size_t)p->shape[0] * sizeof *p->values, err);
    }
    return st == TUTTI_OK ? gguf_writer_finish(c->stream.writer, err) : st;
}

/* ---- conversion ---- */

/* The family's GGUF layout that names the model's norms, and splits q, k, v and gate, up like the source. The
 * first one of those that fit best. */
static const struct tensor_names *choose_layout(const struct converter *c)
{
    const struct tensor_names *best = NULL;
    bool has_ffn_norm = slot_is_in(&c->desc, SLOT_FFN_NORM, 0);
    int best_fit = -1;
    for (int i = 0; i < c->family->n_layouts; i++) {
        const struct tensor_names *to = &c->family->layouts[i], *from = c->from;
        bool is_split_alike = !to->of[SLOT_QKV][1] == !from->of[SLOT_QKV][1] &&
                              !to->of[SLOT_GATE_UP][1] == !from->of[SLOT_GATE_UP][1];
        int fit = 2 * ((to->of[SLOT_FFN_NORM][0] != NULL) == has_ffn_norm) + is_split_alike;
        if (to->is_gguf && !to->is_only_read && fit > best_fit) {
            best = to;
            best_fit = fit;
        }
    }
    return best;
}

/* The layer for multi-token prediction becomes a layer of the file, with copies of the embedding and output
 * matrix, as in llama.cpp's files; where llama.cpp has no names for it, it is left out. */
static enum tutti_status describe_mtp_layer(struct converter *c, struct tutti_error *err)
{
    if (!mtp_is_stored(&c->desc, c->from, c->ck))
        return TUTTI_OK;
    if (c->to->of[SLOT_MTP_JOIN][0] && c->desc.n_mtp_layers == 1)
        return mtp_describe(&c->desc, c->from, c->ck, true, err);
    log_warn("%s: the layer for multi-token prediction is left out, because %s of GGUF has %s",
             checkpoint_path(c->ck), c->family->gguf_architecture,
             c->to->of[SLOT_MTP_JOIN][0] ? "only one such layer" : "no such layer");
    return TUTTI_OK;
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
    path_name(out, size, path);
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

/* For a file with a single K type, the nearest label: that of the mix with the fewest exceptions. */
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

/* The same of the rotary scaling. The factors of llama3 and LongRoPE are tensors for all layers. */
static const char *find_scaling_fault(const struct model_desc *d, bool has_exact_yarn)
{
    for (int i = 0; i < d->n_kinds; i++) {
        const struct rope_scaling *s = &d->kinds[i].attn.rope_scaling;
        if (s->kind == ROPE_SCALING_YARN && s->is_exact != has_exact_yarn)
            return s->is_exact ? "truncate: false of YaRN" : "truncate: true of YaRN";
        if (s->kind == ROPE_SCALING_LONGROPE && d->n_kinds > 1)
            return "rope_type: longrope with several kinds of layers";
        for (int j = 0; s->kind == ROPE_SCALING_LLAMA3 && j < d->n_kinds; j++)
            if (d->kinds[j].attn.rope != ROPE_NONE && d->kinds[j].attn.rope_scaling.kind != s->kind)
                return "rope_type: llama3 in some layers only";
    }
    return NULL;
}

/* A setting that GGUF's architecture cannot express; NULL: it can express all. */
static const char *convert_find_gguf_fault(const struct converter *c)
{
    const struct model_desc *d = &c->desc;
    bool is_mixed = false;
    for (int i = 1; i < d->n_kinds; i++) {
        if (d->kinds[i].attn.window != d->kinds[0].attn.window && !c->family->has_window_layers)
            return "layer_types: some layers have a window of attention";
        is_mixed = is_mixed || ffn_has_experts(&d->kinds[i].ffn) != ffn_has_experts(&d->kinds[0].ffn);
    }
    const char *fault = find_scaling_fault(d, c->family->has_exact_yarn);
    if (fault)
        return fault;
    if (c->family->has_experts && !model_has_experts(d))
        return "no layer has experts";
    if (is_mixed && !c->family->has_first_dense)
        return "some layers have no experts";
    return c->family->find_gguf_fault ? c->family->find_gguf_fault(d) : NULL;
}

static enum tutti_status convert(struct converter *c, const char *dst, struct tutti_error *err)
{
    enum tutti_status st = model_desc_read(&c->desc, &c->family, c->ck, err);
    const char *fault = st == TUTTI_OK ? convert_find_gguf_fault(c) : NULL;
    if (fault)
        st = error_set(err, TUTTI_E_UNSUPPORTED,
                       "%s: %s, which GGUF's architecture %s cannot express; the folder runs as it is, "
                       "quantized by --type while it loads",
                       checkpoint_config_path(c->ck), fault, c->family->gguf_architecture);
    if (st == TUTTI_OK)
        st = check_target(c->ck, dst, err);
    if (st != TUTTI_OK)
        return st;
    c->from = family_layout(c->family, c->ck);
    if (!c->from)
        return family_no_layout(c->family, c->ck, err);
    c->to = choose_layout(c);
    st = describe_mtp_layer(c, err);
    if (st == TUTTI_OK)
        st = weights_check_all(&c->desc, c->family, c->from, c->ck, err);
    if (st != TUTTI_OK)
        return st;
    c->stream.ck = c->ck;
    st = merge_open(&c->merge, c->options->merges, c->options->n_merges, &c->desc, c->family,
                    c->from->is_gguf, err);
    struct model_pooling pooling = { 0 };
    if (st == TUTTI_OK)
        st = pooling_read(&pooling, &c->desc, c->ck, err);
    if (st == TUTTI_OK)
        st = open_patterns(c, err);
    if (st == TUTTI_OK)
        st = make_plan(c, err);
    if (st == TUTTI_OK)
        st = check_patterns(c, err);
    if (st == TUTTI_OK && c->options->is_pure && !c->is_mix)
        st = error_set_param(
            err, TUTTI_E_ARGUMENT, "pure",
            "--pure has no effect with --type %s, which gives every matrix of this model the "
            "same type anyway",
            c->options->type->name);
    if (st == TUTTI_OK)
        st = plan_importance(c, err);
    if (st == TUTTI_OK)
        note_fallbacks(c);
    if (st == TUTTI_OK)
        st = team_new(&c->stream.team, &(struct team_options){ .n_threads = c->options->n_threads }, err);
    if (st == TUTTI_OK)
        st = gguf_writer_open(&c->stream.writer, dst, err);
    if (st != TUTTI_OK)
        return st;
    char name[128];
    model_name(name, sizeof name, checkpoint_path(c->ck));
    convert_describe(c->stream.writer, c->family, &c->desc, name, file_type(c->options));
    pooling_put(c->stream.writer, c->family->gguf_architecture, &pooling);
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
    for (size_t i = 0; i < c.n_plan; i++)
        free(c.plan[i].parts);
    free(c.plan);
    for (size_t i = 0; i < c.n_heads; i++)
        free(c.heads[i]);
    free(c.heads);
    for (size_t i = 0; i < c.n_slices; i++)
        free(c.slices[i]);
    free(c.slices);
    merge_clear(&c.merge);
    free(c.rope_factors);
    close_patterns(&c);
    checkpoint_close(c.ck);
    return st;
}
