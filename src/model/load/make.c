/* Makes models of known shapes with random weights, for benchmarks without a download. */
#include "base/rng.h"
#include "kernels/quantize/quantize.h"
#include "model/description/family.h"
#include "model/forward.h"
#include "model/load/device/start.h"
#include "model/ranks/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTN .kinds[0].attn
#define FFN  .kinds[0].ffn
/* Settings that families share; each shape adds its dimensions. */
#define SWIGLU FFN.has_gate = true, FFN.activation = ACT_SILU, .norm_eps = 1e-5f, ATTN.rope_theta = 10000
#define GELU                                                                                                 \
    .norm = NORM_LAYER, FFN.activation = ACT_GELU_TANH, .norm_eps = 1e-5f, ATTN.rope_theta = 10000,          \
    ATTN.has_qkv_bias = true, ATTN.has_out_bias = true, FFN.has_bias = true, .tied_output = true
#define SIZES(...) .n_kinds = 1, SIZES_OF(__VA_ARGS__)
#define SIZES_OF(layers, model, heads, kv_heads, head, ff, vocab, ctx)                                       \
    .n_layers = (layers), .d_model = (model), ATTN.n_heads = (heads), ATTN.n_kv_heads = (kv_heads),          \
    ATTN.head_dim = (head), FFN.d_ff = (ff), .n_vocab = (vocab), .n_ctx = (ctx)
#define ROPE(kind, dim) ATTN.rope = (kind), ATTN.rotary_dim = (dim)

#define EXPERTS(n, chosen, ff)                                                                               \
    FFN.experts.routing.n_experts = (n), FFN.experts.routing.n_chosen = (chosen), FFN.experts.d_ff = (ff)

#define LATENT_ATTN(heads, rank, q, unrotated, rotary, values)                                               \
    {                                                                                                        \
        .n_heads = (heads), .n_kv_heads = 1, .head_dim = (unrotated) + (rotary), .n_latent = (rank),         \
        .q_rank = (q), .value_dim = (values), .latent_norm_eps = 1e-6f, .rope = ROPE_INTERLEAVED,            \
        .rotary_dim = (rotary), .rope_theta = 10000                                                          \
    }
#define DENSE_FFN(width)                                                                                     \
    {                                                                                                        \
        .d_ff = (width), .has_gate = true, .activation = ACT_SILU                                            \
    }

#define GEMMA_ATTN(n_window, theta)                                                                          \
    {                                                                                                        \
        .n_heads = 8, .n_kv_heads = 4, .head_dim = 256, .window = (n_window), .rope = ROPE_HALF,             \
        .rotary_dim = 256, .rope_theta = (theta), .has_qk_norm = true                                        \
    }
#define GEMMA_FFN                                                                                            \
    {                                                                                                        \
        .d_ff = 10240, .has_gate = true, .activation = ACT_GELU_TANH                                         \
    }

/* The router's logits are divided by the root of d_model. */
#define GEMMA4_LAYER(...)                                                                                    \
    {                                                                                                        \
        .attn = { .n_heads = 16,                                                                             \
                  .rope = ROPE_HALF,                                                                         \
                  .scale = 1,                                                                                \
                  .has_qk_norm = true,                                                                       \
                  .norms_values = true,                                                                      \
                  __VA_ARGS__ },                                                                             \
        .ffn = {                                                                                             \
            .has_gate = true,                                                                                \
            .activation = ACT_GELU_TANH,                                                                     \
            .experts = { .routing = { .n_experts = 128, .n_chosen = 8, .is_normed = true },                  \
                         .d_ff = 704,                                                                        \
                         .d_shared = 2112,                                                                   \
                         .has_factors = true,                                                                \
                         .has_norms = true,                                                                  \
                         .router_scale = 0.018844459f }                                                      \
        }                                                                                                    \
    }

#define GPT_OSS_LAYER(positions)                                                                             \
    {                                                                                                        \
        .attn = { .n_heads = 64,                                                                             \
                  .n_kv_heads = 8,                                                                           \
                  .head_dim = 64,                                                                            \
                  .window = (positions),                                                                     \
                  .rope = ROPE_HALF,                                                                         \
                  .rotary_dim = 64,                                                                          \
                  .rope_theta = 150000,                                                                      \
                  .rope_scaling = { .kind = ROPE_SCALING_YARN,                                               \
                                    .factor = 32,                                                            \
                                    .beta_fast = 32,                                                         \
                                    .beta_slow = 1,                                                          \
                                    .original_n_ctx = 4096,                                                  \
                                    .is_exact = true },                                                      \
                  .has_qkv_bias = true,                                                                      \
                  .has_out_bias = true,                                                                      \
                  .has_sinks = true },                                                                       \
        .ffn = {                                                                                             \
            .has_gate = true,                                                                                \
            .activation = ACT_SILU_CLAMPED,                                                                  \
            .experts = { .routing = { .n_experts = 32, .n_chosen = 4, .is_normed = true },                   \
                         .d_ff = 2880,                                                                       \
                         .has_router_bias = true,                                                            \
                         .has_bias = true }                                                                  \
        }                                                                                                    \
    }

static const struct shape {
    const char *name;
    struct model_desc desc;
    enum dtype type; /* of the matrices where none is given; DTYPE_F32: Q4_0 */
} SHAPES[] = {
    { "chatglm-6b",
      { GELU, SIZES(28, 4096, 32, 32, 128, 16384, 130528, 2048), ROPE(ROPE_2D, 128),
        .residual_scale = 7.4833148f, ATTN.has_half_freqs = true } },
    { "chatglm2-6b",
      { SWIGLU, SIZES(28, 4096, 32, 2, 128, 13696, 65024, 32768), ROPE(ROPE_INTERLEAVED, 64),
        ATTN.has_qkv_bias = true } },
    { "chatglm3-6b",
      { SWIGLU, SIZES(28, 4096, 32, 2, 128, 13696, 65024, 8192), ROPE(ROPE_INTERLEAVED, 64),
        ATTN.has_qkv_bias = true } },
    { "glm-4-9b",
      { SWIGLU, SIZES(40, 4096, 32, 2, 128, 13696, 151552, 131072), ROPE(ROPE_INTERLEAVED, 64),
        ATTN.has_qkv_bias = true } },
    { "llama-7b", { SWIGLU, SIZES(32, 4096, 32, 32, 128, 11008, 32000, 4096), ROPE(ROPE_HALF, 128) } },
    { "llama-3-8b", { SWIGLU, SIZES(32, 4096, 32, 8, 128, 14336, 128256, 8192), ROPE(ROPE_HALF, 128) } },
    { "mistral-7b",
      { SWIGLU, SIZES(32, 4096, 32, 8, 128, 14336, 32000, 32768), ROPE(ROPE_HALF, 128),
        ATTN.window = 4096 } },
    { "qwen2.5-7b",
      { SWIGLU, SIZES(28, 3584, 28, 4, 128, 18944, 152064, 32768), ROPE(ROPE_HALF, 128),
        ATTN.has_qkv_bias = true } },
    { "qwen3-8b",
      { SWIGLU, SIZES(36, 4096, 32, 8, 128, 12288, 151936, 40960), ROPE(ROPE_HALF, 128),
        ATTN.has_qk_norm = true } },
    { "gpt2", { GELU, SIZES(12, 768, 12, 12, 64, 3072, 50257, 1024), .has_learned_positions = true } },
    { "bloom-7b1",
      { GELU, SIZES(30, 4096, 32, 32, 128, 16384, 250880, 2048), ATTN.has_alibi = true,
        .has_embedding_norm = true } },
    { "pangu-2.6b",
      { GELU, SIZES(32, 2560, 32, 32, 80, 10240, 40000, 1024), .has_learned_positions = true,
        .has_top_query = true } },
    /* Qwen3-30B-A3B */
    { "qwen3-30b-a3b",
      { SWIGLU, SIZES(48, 2048, 32, 4, 128, 0, 151936, 40960), ROPE(ROPE_HALF, 128), ATTN.has_qk_norm = true,
        EXPERTS(128, 8, 768), .kinds[0].ffn.experts.routing.is_normed = true } },
    /* GLM-4.5-Air: the first layer has one feed-forward block. */
    { "glm-4.5-air",
      { SWIGLU, SIZES_OF(46, 4096, 96, 8, 128, 10944, 151552, 131072), ROPE(ROPE_HALF, 64),
        ATTN.has_qkv_bias = true, .n_kinds = 2,
        .kinds[1] = { .attn = { .n_heads = 96,
                                .n_kv_heads = 8,
                                .head_dim = 128,
                                .rope = ROPE_HALF,
                                .rotary_dim = 64,
                                .rope_theta = 10000,
                                .has_qkv_bias = true },
                      .ffn = { .has_gate = true,
                               .activation = ACT_SILU,
                               .experts = { .routing = { .n_experts = 128,
                                                         .n_chosen = 8,
                                                         .kind = ROUTE_SIGMOID,
                                                         .is_normed = true },
                                            .d_ff = 1408,
                                            .d_shared = 1408,
                                            .has_choice_bias = true } } },
        .kind_of = { [1 ... 45] = 1 } } },
    /* DeepSeek-V2-Lite and GLM-4.7-Flash: latent attention, and one dense layer before the experts. */
    { "deepseek-v2-lite",
      { .n_layers = 27,
        .d_model = 2048,
        .n_vocab = 102400,
        .n_ctx = 163840,
        .norm_eps = 1e-6f,
        .n_kinds = 2,
        .kinds = { { LATENT_ATTN(16, 512, 0, 128, 64, 128), DENSE_FFN(10944) },
                   { LATENT_ATTN(16, 512, 0, 128, 64, 128),
                     { .has_gate = true,
                       .activation = ACT_SILU,
                       .experts = { .routing = { .n_experts = 64,
                                                 .n_chosen = 6,
                                                 .kind = ROUTE_SOFTMAX,
                                                 .scale = 1 },
                                    .d_ff = 1408,
                                    .d_shared = 2816 } } } },
        .kind_of = { [1 ... 26] = 1 } } },
    { "glm-4.7-flash",
      { .n_layers = 47,
        .d_model = 2048,
        .n_vocab = 154880,
        .n_ctx = 202752,
        .norm_eps = 1e-5f,
        .n_kinds = 2,
        .kinds = { { LATENT_ATTN(20, 512, 768, 192, 64, 256), DENSE_FFN(10240) },
                   { LATENT_ATTN(20, 512, 768, 192, 64, 256),
                     { .has_gate = true,
                       .activation = ACT_SILU,
                       .experts = { .routing = { .n_experts = 64,
                                                 .n_chosen = 4,
                                                 .kind = ROUTE_SIGMOID,
                                                 .scale = 1.8f,
                                                 .is_normed = true },
                                    .d_ff = 1536,
                                    .d_shared = 1536,
                                    .has_choice_bias = true } } } },
        .kind_of = { [1 ... 46] = 1 } } },
    { "phi-4-mini",
      { SWIGLU, SIZES(32, 3072, 24, 8, 128, 8192, 200064, 131072), ROPE(ROPE_HALF, 96),
        .tied_output = true } },
    /* Gemma 3 4B: five layers with a window before each one without. */
    { "gemma-3-4b",
      { .n_layers = 34,
        .d_model = 2560,
        .n_vocab = 262208,
        .n_ctx = 131072,
        .norm_eps = 1e-6f,
        .has_post_norms = true,
        .embedding_scale = 50.596443f,
        .tied_output = true,
        .n_kinds = 2,
        .kinds = { { GEMMA_ATTN(1024, 10000), GEMMA_FFN }, { GEMMA_ATTN(0, 1000000), GEMMA_FFN } },
        .kind_of = { [5] = 1, [11] = 1, [17] = 1, [23] = 1, [29] = 1 } } },
    /* Gemma 4 26B-A4B: without a window, a quarter of the pairs of a head rotate, and keys are values. */
    { "gemma-4-26b-a4b",
      { .n_layers = 30,
        .d_model = 2816,
        .n_vocab = 262144,
        .n_ctx = 262144,
        .norm_eps = 1e-6f,
        .has_post_norms = true,
        .has_layer_scale = true,
        .embedding_scale = 53.065998f,
        .logit_softcap = 30,
        .tied_output = true,
        .n_kinds = 2,
        .kinds = { GEMMA4_LAYER(.n_kv_heads = 8, .head_dim = 256, .window = 1024, .rotary_dim = 256,
                                .rope_theta = 10000),
                   GEMMA4_LAYER(.n_kv_heads = 2, .head_dim = 512, .rotary_dim = 512, .n_rotating = 64,
                                .rope_theta = 1000000, .keys_are_values = true) },
        .kind_of = { [5] = 1, [11] = 1, [17] = 1, [23] = 1, [29] = 1 } } },
    /* gpt-oss-20b, with the types of its GGUF file. */
    { "gpt-oss-20b",
      { .n_layers = 24,
        .d_model = 2880,
        .n_vocab = 201088,
        .n_ctx = 131072,
        .norm_eps = 1e-5f,
        .n_kinds = 2,
        .kinds = { GPT_OSS_LAYER(128), GPT_OSS_LAYER(0) },
        .kind_of = { [1] = 1,
                     [3] = 1,
                     [5] = 1,
                     [7] = 1,
                     [9] = 1,
                     [11] = 1,
                     [13] = 1,
                     [15] = 1,
                     [17] = 1,
                     [19] = 1,
                     [21] = 1,
                     [23] = 1 } },
      DTYPE_MXFP4 },
    { "tiny-experts",
      { SWIGLU, SIZES(4, 256, 8, 2, 32, 0, 4096, 2048), ROPE(ROPE_HALF, 32), EXPERTS(16, 3, 64),
        .kinds[0].ffn.experts.routing.is_normed = true } },
    { "tiny-windows",
      { SWIGLU, SIZES_OF(4, 256, 8, 2, 32, 704, 4096, 2048), ROPE(ROPE_HALF, 32), ATTN.window = 16,
        .n_kinds = 2,
        .kinds[1] = { .attn = { .n_heads = 8,
                                .n_kv_heads = 2,
                                .head_dim = 32,
                                .rope = ROPE_HALF,
                                .rotary_dim = 32,
                                .rope_theta = 10000 },
                      .ffn = DENSE_FFN(704) },
        .kind_of = { [3] = 1 } } },
    { "tiny", { SWIGLU, SIZES(4, 256, 8, 2, 32, 704, 4096, 2048), ROPE(ROPE_HALF, 32) } },
};
enum { N_SHAPES = sizeof SHAPES / sizeof *SHAPES };

/* Pseudo-random rows repeat after this many rows: the packed matrix is larger than any cache, and
 * the values do not affect speed. What joins the stream does: if it has few different elements, all
 * tokens choose similar experts. */
enum { SOURCE_ROWS = 64, STREAM_SOURCE_ROWS = 512, EMBEDDING_SOURCE_ROWS = 4096 };

static int source_rows(const struct model_desc *d, enum weight_slot slot, int n_out)
{
    if (slot_info(slot)->role == WEIGHT_ROUTER) /* equal rows would choose experts in pairs */
        return n_out;
    return slot == SLOT_EMBEDDING ? EMBEDDING_SOURCE_ROWS
           : n_out == d->d_model  ? STREAM_SOURCE_ROWS
                                  : SOURCE_ROWS;
}

struct maker {
    struct model *model;
    const struct tutti_model_options *options;
    enum dtype type;
    uint64_t state;
    uint64_t memory_bytes; /* free before any rank of this machine makes its weights */
};

static float *random_floats(struct maker *m, int64_t n, float spread)
{
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; values && i < n; i++)
        values[i] = ((float)(mix64(m->state++) >> 40) * 0x1p-23f - 1.0f) * spread;
    return values;
}

static enum tutti_status out_of_memory(struct tutti_error *err)
{
    return error_set(err, TUTTI_E_MEMORY, "random weights: out of memory");
}

static enum tutti_status make_matrix(struct maker *m, struct matrix **out, const struct slot_at *at,
                                     struct tutti_error *err)
{
    struct backend *be = m->model->backend;
    struct slot_shape shape = slot_shape(&m->model->local, at->slot, at->layer);
    int n_in = shape.n_in, n_out = shape.n_out;
    bool has_bias = shape.has_bias;
    enum dtype type = model_shape_weight_type(at->slot, m->type);
    type = n_in % dtype_block_elems(type) == 0 ? type : DTYPE_F16;
    int n_rows = source_rows(&m->model->desc, at->slot, n_out), n_each = (n_out + n_rows - 1) / n_rows;
    int n_parts = shape.n_experts * n_each;
    float *values = random_floats(m, (int64_t)n_rows * n_in, 1.7f / __builtin_sqrtf((float)n_in));
    float *bias = has_bias ? random_floats(m, n_rows, 0.1f) : NULL;
    struct matrix_part *parts = calloc((size_t)n_parts, sizeof *parts);
    const float **biases = calloc((size_t)n_parts, sizeof *biases);
    size_t n_bytes = 0;
    enum tutti_status st = TUTTI_OK;
    bool fits = dtype_bytes(type, (int64_t)n_rows * n_in, &n_bytes);
    uint8_t *source = fits ? malloc(n_bytes) : NULL;
    if (!values || (has_bias && !bias) || !parts || !biases || !source) {
        st = out_of_memory(err);
        goto done;
    }
    quantize(source, values, type, (int64_t)n_rows * n_in);
    for (int i = 0; i < n_parts; i++) {
        int left = n_out - i % n_each * n_rows;
        parts[i] = (struct matrix_part){ .data = source,
                                         .dtype = type,
                                         .n_rows = left < n_rows ? left : n_rows };
        biases[i] = bias;
    }
    struct matrix_source description = { .name = slot_info(at->slot)->name,
                                         .parts = parts,
                                         .n_parts = n_parts,
                                         .n_in = n_in,
                                         .type = type,
                                         .is_gate_up = shape.is_gate_up,
                                         .biases = has_bias ? biases : NULL };
    if (slot_info(at->slot)->is_of_experts) {
        description.n_experts = shape.n_experts;
        description.n_chosen = model_layer(&m->model->desc, at->layer)->ffn.experts.routing.n_chosen;
    }
    st = be->ops->matrix_new(be, out, &description, err);
    if (st == TUTTI_OK)
        m->model->weight_bytes += be->ops->matrix_bytes(*out);
done:
    free(source);
    free(values);
    free(bias);
    free(parts);
    free((void *)biases);
    return st;
}

static enum tutti_status make_vector(struct maker *m, struct floats *out, size_t n, float value,
                                     struct tutti_error *err)
{
    struct backend *be = m->model->backend;
    float *values = malloc(n * sizeof *values);
    for (size_t i = 0; values && i < n; i++)
        values[i] = value;
    if (values)
        *out = be->ops->alloc_constant(be, values, n);
    bool ok = out->buffer != NULL;
    free(values);
    m->model->n_params += n;
    m->model->weight_bytes += n * sizeof(float);
    return ok ? TUTTI_OK : out_of_memory(err);
}

/* Norms leave their input as it is; tables add a little. */
static enum tutti_status make_weight(struct maker *m, const struct slot_at *at, struct tutti_error *err)
{
    enum weight_slot slot = at->slot;
    struct model_weight *out = model_weight(m->model, at->slot, at->layer);
    struct slot_shape shape = slot_shape(&m->model->local, slot, at->layer);
    size_t n = (size_t)shape.n_out * (size_t)shape.n_in;
    weight_part_begin(m->model, slot, at->layer);
    out->number = 1;
    if (slot_info(slot)->kind == SLOT_NUMBER)
        return TUTTI_OK;
    if (slot_info(slot)->kind == SLOT_MATRIX)
        return make_matrix(m, &out->matrix, at, err);
    enum tutti_status st = make_vector(m, &out->values, n, slot_info(slot)->kind == SLOT_NORM ? 1 : 0.01f,
                                       err);
    bool has_bias = shape.has_bias || slot_has_zero_bias(&m->model->desc, slot);
    return st == TUTTI_OK && has_bias ? make_vector(m, &out->bias, n, 0, err) : st;
}

/* Number of weights in all matrices of the whole model. */
static uint64_t count_matrices(const struct model_desc *d)
{
    uint64_t n = 0;
    for (struct slot_at at = SLOT_BEGIN; slot_next(d, &at);) {
        struct slot_shape shape = slot_shape(d, at.slot, at.layer);
        if (slot_info(at.slot)->kind == SLOT_MATRIX)
            n += (uint64_t)shape.n_in * (uint64_t)shape.n_out * (uint64_t)shape.n_experts;
    }
    return n;
}

/* Splits them over the ranks, by the block size of their type. */
static enum tutti_status cut(const struct maker *m, struct tutti_error *err)
{
    struct split_blocks blocks = split_blocks_of(&m->model->desc, dtype_block_elems(m->type));
    return group_cut(m->model, &blocks, err);
}

/* TUTTI_E_MEMORY: the weights do not fit in free memory. */
static enum tutti_status make_check_memory(void *user, struct weight_parts *parts, struct tutti_error *err)
{
    const struct maker *m = user;
    struct model *model = m->model;
    struct fit_sizes sizes = { 0 };
    for (struct slot_at at = SLOT_BEGIN; slot_next(&model->local, &at);) {
        const struct slot_shape shape = slot_shape(&model->local, at.slot, at.layer);
        fit_add_shape(&sizes, &shape, at.slot, m->type, model->backend->caps);
        weight_parts_add_shape(parts, &model->local, &at, m->type);
    }
    const struct weights_to_fit weights = { .name = model->name,
                                            .type = dtype_name(m->type),
                                            .sizes = &sizes,
                                            .parts = parts,
                                            .host_bytes = m->memory_bytes };
    return device_check_fits(model, m->options, &weights, err);
}

static enum tutti_status make(struct maker *m, struct tutti_error *err)
{
    struct model *model = m->model;
    const struct model_desc *d = &model->desc;
    enum tutti_status st = model_desc_check(d, model->name, err);
    model->local = model->desc;
    model->n_params = count_matrices(d);
    if (st == TUTTI_OK && model->group)
        st = cut(m, err);
    if (st != TUTTI_OK)
        return st;
    model->weights = calloc((size_t)d->n_layers * SLOT_COUNT, sizeof *model->weights);
    if (!model->weights || !model_alloc_rope_freqs(model))
        return out_of_memory(err);
    st = model_start_backend(model, m->options, make_check_memory, m, err);
    for (struct slot_at at = SLOT_BEGIN; st == TUTTI_OK && slot_next(d, &at);)
        st = make_weight(m, &at, err);
    return st == TUTTI_OK ? model_check(model, err) : st;
}

static const struct shape *find_shape(const char *name)
{
    for (int i = 0; i < N_SHAPES; i++) {
        if (strcmp(SHAPES[i].name, name) == 0)
            return &SHAPES[i];
    }
    return NULL;
}

const char *model_shape_name(int i)
{
    return i < N_SHAPES ? SHAPES[i].name : NULL;
}

const struct model_desc *model_shape(const char *name)
{
    const struct shape *s = find_shape(name);
    return s ? &s->desc : NULL;
}

enum dtype model_shape_type(const char *name)
{
    const struct shape *s = find_shape(name);
    return s && s->type != DTYPE_F32 ? s->type : DTYPE_Q4_0;
}

enum dtype model_shape_weight_type(enum weight_slot slot, enum dtype type)
{
    const struct slot_info *info = slot_info(slot);
    if (info->role == WEIGHT_ROUTER)
        return DTYPE_F32;
    return type == DTYPE_MXFP4 && !info->is_of_experts ? DTYPE_Q8_0 : type;
}

enum tutti_status model_make(struct model **out, const char *name, int n_layers, enum dtype type,
                             const struct tutti_model_options *options, struct tutti_error *err)
{
    static const struct tutti_model_options DEFAULTS = { 0 };
    const struct model_desc *desc = model_shape(name);
    if (!desc) {
        char known[512] = "";
        for (int i = 0; i < N_SHAPES; i++)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                     SHAPES[i].name);
        return error_set_param(err, TUTTI_E_ARGUMENT, "shape", "shape \"%.32s\", expected one of %s", name,
                               known);
    }
    if (n_layers > desc->n_layers)
        return error_set_param(err, TUTTI_E_ARGUMENT, "layers", "%d layers, expected at most %d of %s",
                               n_layers, desc->n_layers, name);
    if (!dtype_is_weight(type))
        return error_set_param(err, TUTTI_E_ARGUMENT, "type", "type %s holds no weights", dtype_name(type));
    struct maker m = { .options = options ? options : &DEFAULTS, .type = type, .state = 1 };
    struct model *model = m.model = calloc(1, sizeof *model);
    if (!model)
        return out_of_memory(err);
    snprintf(model->name, sizeof model->name, "%s", name);
    model->weight_type = type;
    model->desc = *desc;
    model->desc.n_layers = n_layers > 0 ? n_layers : desc->n_layers;
    snprintf(model->desc.family, sizeof model->desc.family, "shape");
    model->desc.bos_id = model->desc.pad_id = -1;
    model->desc.n_usable_vocab = desc->n_vocab;
    tutti_sampling_init(&model->sampling, NULL);
    enum tutti_status st = group_open(model, m.options, err);
    model->memory_bytes = m.options->memory_bytes;
    m.memory_bytes = st == TUTTI_OK ? model_own_memory_left(model) : 0;
    if (st == TUTTI_OK && model->group)
        st = cluster_agree(model->group->cluster, st, err); /* all have measured */
    if (st == TUTTI_OK)
        st = group_join(model, make(&m, err), err);
    if (st == TUTTI_OK)
        *out = model;
    else
        model_free(model);
    return st;
}
