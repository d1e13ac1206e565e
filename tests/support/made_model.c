#include "support/made_model.h"

#include "checkpoint/gguf/gguf.h"
#include "support/made_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WIDTH = 64, D_FF = 32, GROUP = 16, N_VOCAB = 96 };

const char *const MADE_NAMES[MADE_KINDS] = { "bf16", "mxfp4",          "fp8 blocks", "fp8 rows",
                                             "gptq", "gptq act-order", "awq",        "packed" };

#define COMPRESSED(format, weights)                                                                          \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"" format                                       \
    "\", \"config_groups\": {\"group_0\": {\"weights\": {" weights "}}}}"

static const char *const METHODS[MADE_KINDS] = {
    [MADE_BF16] = "null",
    [MADE_MXFP4] = "{\"quant_method\": \"mxfp4\"}",
    [MADE_FP8_BLOCKS] = "{\"quant_method\": \"fp8\", \"weight_block_size\": [32, 32]}",
    [MADE_FP8_ROWS] = COMPRESSED("float-quantized", "\"type\": \"float\", \"num_bits\": 8"),
    [MADE_GPTQ] = "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 16, \"desc_act\": false}",
    [MADE_GPTQ_ORDER] = "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 16, \"desc_act\": true}",
    [MADE_AWQ] = "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 16, \"version\": \"gemm\"}",
    [MADE_PACKED] = COMPRESSED("pack-quantized", "\"type\": \"int\", \"num_bits\": 4, \"group_size\": 16"),
};

/* A matrix of an expert, or of all: its name without the last word. */
struct matrix {
    char name[96];
    int64_t rows, columns;
};

static void matrix_add(struct made_file *f, const struct matrix *m, const char *end, enum dtype dtype,
                       int64_t rows, int64_t columns)
{
    char name[128];
    snprintf(name, sizeof name, "%.95s%s", m->name, end);
    made_add(f, name, dtype, columns > 0 ? 2 : 1, MADE_SHAPE(rows, columns));
}

static void add_groups(struct made_file *f, const struct matrix *m)
{
    char name[128];
    int32_t groups[WIDTH];
    snprintf(name, sizeof name, "%s.g_idx", m->name);
    for (int c = 0; c < m->columns; c++)
        groups[c] = (int32_t)(c * 7 % m->columns / GROUP);
    made_add_values(f, name, DTYPE_I32, 1, &m->columns, groups);
}

static void add_shape(struct made_file *f, const struct matrix *m)
{
    char name[128];
    const int64_t shape[2] = { m->rows, m->columns };
    snprintf(name, sizeof name, "%s.weight_shape", m->name);
    made_add_values(f, name, DTYPE_I64, 1, MADE_SHAPE(2), shape);
}

static void add_expert(struct made_file *f, enum made_kind kind, const struct matrix *m)
{
    int64_t rows = m->rows, columns = m->columns, n_groups = columns / GROUP;
    switch (kind) {
    case MADE_FP8_BLOCKS:
        matrix_add(f, m, ".weight", DTYPE_F8_E4M3, rows, columns);
        matrix_add(f, m, ".weight_scale_inv", DTYPE_BF16, rows / 32, columns / 32);
        break;
    case MADE_FP8_ROWS:
        matrix_add(f, m, ".weight", DTYPE_F8_E4M3, rows, columns);
        matrix_add(f, m, ".weight_scale", DTYPE_BF16, rows, 1);
        break;
    case MADE_GPTQ:
    case MADE_GPTQ_ORDER:
        matrix_add(f, m, ".qweight", DTYPE_I32, columns / 8, rows);
        matrix_add(f, m, ".qzeros", DTYPE_I32, n_groups, rows / 8);
        matrix_add(f, m, ".scales", DTYPE_BF16, n_groups, rows);
        if (kind == MADE_GPTQ_ORDER)
            add_groups(f, m);
        break;
    case MADE_AWQ:
        matrix_add(f, m, ".qweight", DTYPE_I32, columns, rows / 8);
        matrix_add(f, m, ".qzeros", DTYPE_I32, n_groups, rows / 8);
        matrix_add(f, m, ".scales", DTYPE_BF16, n_groups, rows);
        break;
    default:
        matrix_add(f, m, ".weight_packed", DTYPE_I32, rows, columns / 8);
        matrix_add(f, m, ".weight_scale", DTYPE_BF16, rows, n_groups);
        add_shape(f, m);
    }
}

static void add_merged(struct made_file *f, enum made_kind kind, const struct matrix *m, int64_t n_experts)
{
    char name[128];
    if (kind == MADE_BF16) {
        made_add(f, m->name, DTYPE_BF16, 3, MADE_SHAPE(n_experts, m->rows, m->columns));
        return;
    }
    snprintf(name, sizeof name, "%s_blocks", m->name);
    made_add(f, name, DTYPE_U8, 4, MADE_SHAPE(n_experts, m->rows, m->columns / 32, 16));
    snprintf(name, sizeof name, "%s_scales", m->name);
    made_add(f, name, DTYPE_U8, 3, MADE_SHAPE(n_experts, m->rows, m->columns / 32));
}

#define LAYER   "model.layers.0."
#define EXPERTS LAYER "mlp.experts."

static void add_all_experts(struct made_file *f, enum made_kind kind, int n_experts)
{
    if (kind <= MADE_MXFP4) {
        add_merged(f, kind, &(struct matrix){ EXPERTS "gate_up_proj", 2 * D_FF, WIDTH }, n_experts);
        add_merged(f, kind, &(struct matrix){ EXPERTS "down_proj", WIDTH, D_FF }, n_experts);
        return;
    }
    for (int e = 0; e < n_experts; e++) {
        static const char *const NAMES[] = { "gate_proj", "up_proj", "down_proj" };
        for (int i = 0; i < 3; i++) {
            struct matrix m = { .rows = i < 2 ? D_FF : WIDTH, .columns = i < 2 ? WIDTH : D_FF };
            snprintf(m.name, sizeof m.name, EXPERTS "%d.%s", e, NAMES[i]);
            add_expert(f, kind, &m);
        }
    }
}

void made_experts(const char *folder, enum made_kind kind, int n_experts)
{
    static const struct matrix OTHERS[] = {
        { "model.embed_tokens", N_VOCAB, WIDTH }, { "model.norm", WIDTH },
        { LAYER "input_layernorm", WIDTH },       { LAYER "post_attention_layernorm", WIDTH },
        { LAYER "self_attn.q_proj", 64, WIDTH },  { LAYER "self_attn.k_proj", 32, WIDTH },
        { LAYER "self_attn.v_proj", 32, WIDTH },  { LAYER "self_attn.o_proj", WIDTH, 64 },
        { LAYER "self_attn.q_norm", 32 },         { LAYER "self_attn.k_norm", 32 },
    };
    struct made_file f = { 0 };
    char config[1024];
    snprintf(
        config, sizeof config,
        "{\"model_type\": \"qwen3_moe\", \"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": %d, "
        "\"hidden_size\": %d, \"moe_intermediate_size\": %d, \"num_hidden_layers\": 1, "
        "\"intermediate_size\": 64, "
        "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 32, \"num_experts\": %d, "
        "\"num_experts_per_tok\": 2, \"norm_topk_prob\": true, \"tie_word_embeddings\": true, "
        "\"max_position_embeddings\": 64, \"quantization_config\": %s}",
        N_VOCAB, WIDTH, D_FF, n_experts, METHODS[kind]);
    made_text(folder, "config.json", config);
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        matrix_add(&f, &OTHERS[i], ".weight", DTYPE_BF16, OTHERS[i].rows, OTHERS[i].columns);
    matrix_add(&f, &(struct matrix){ LAYER "mlp.gate" }, ".weight", DTYPE_BF16, n_experts, WIDTH);
    add_all_experts(&f, kind, n_experts);
    made_write(&f, folder, "model.safetensors", false);
}

/* ---- types that are only read ---- */

enum { TABLE_WIDTH = 256, TABLE_LAYERS = 2, TABLE_VOCAB = 32 };

/* Scales are small: f16 of the first two bytes of a block, of IQ1_M of the upper nibbles of its last eight; of MXFP4 an exponent. */
static void fill_block(uint8_t *block, enum dtype dtype, uint32_t seed)
{
    size_t n = (size_t)dtype_block_bytes(dtype);
    for (size_t i = 0; i < n; i++)
        block[i] = (uint8_t)((seed * 31 + (uint32_t)i) * 2654435761u >> 24);
    if (dtype == DTYPE_MXFP4)
        block[0] = 120;
    else if (dtype == DTYPE_IQ1_M)
        for (int i = 0; i < 4; i++)
            block[n - 7 + 2 * (size_t)i] = (uint8_t)((block[n - 7 + 2 * (size_t)i] & 0x0F) |
                                                     (i == 3 ? 0x20 : 0));
    else
        memcpy(block, "\x00\x20", 2);
}

static void put_values(struct gguf_writer *w, enum dtype dtype, int64_t n)
{
    int64_t n_blocks = n / dtype_block_elems(dtype);
    size_t n_bytes = (size_t)dtype_block_bytes(dtype);
    uint8_t block[512];
    float one = 1;
    for (int64_t i = 0; i < n_blocks; i++) {
        if (dtype == DTYPE_F32)
            memcpy(block, &one, sizeof one);
        else
            fill_block(block, dtype, (uint32_t)i);
        assert_int_equal(gguf_writer_data(w, block, n_bytes, NULL), TUTTI_OK);
    }
}

struct stored {
    char name[64];
    enum dtype dtype;
    int64_t rows, columns; /* rows 0: a vector */
};

void made_tables(const char *path)
{
    static const enum dtype TYPES[] = {
        DTYPE_IQ2_XXS, DTYPE_IQ2_XS, DTYPE_IQ2_S,  DTYPE_IQ3_XXS, DTYPE_IQ3_S,
        DTYPE_IQ1_S,   DTYPE_IQ1_M,  DTYPE_IQ4_NL, DTYPE_IQ4_XS,  DTYPE_MXFP4
    };
    static const char *const NAMES[] = { "attn_norm", "attn_q",   "attn_k", "attn_v",  "attn_output",
                                         "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down" };
    struct stored all[3 + 9 * TABLE_LAYERS];
    int n = 0;
    all[n++] = (struct stored){ "token_embd.weight", DTYPE_IQ4_NL, TABLE_VOCAB, TABLE_WIDTH };
    all[n++] = (struct stored){ "output_norm.weight", DTYPE_F32, 0, TABLE_WIDTH };
    all[n++] = (struct stored){ "output.weight", DTYPE_IQ4_XS, TABLE_VOCAB, TABLE_WIDTH };
    for (int layer = 0, k = 0; layer < TABLE_LAYERS; layer++) {
        for (int i = 0; i < 9; i++) {
            struct stored *t = &all[n++];
            bool is_norm = strstr(NAMES[i], "norm");
            snprintf(t->name, sizeof t->name, "blk.%d.%s.weight", layer, NAMES[i]);
            t->rows = is_norm ? 0 : TABLE_WIDTH;
            t->columns = TABLE_WIDTH;
            t->dtype = is_norm ? DTYPE_F32 : TYPES[k++ % (int)(sizeof TYPES / sizeof *TYPES)];
        }
    }
    struct gguf_writer *w = NULL;
    assert_int_equal(gguf_writer_open(&w, path, NULL), TUTTI_OK);
    gguf_writer_string(w, "general.architecture", "llama", 5);
    gguf_writer_u32(w, "llama.block_count", TABLE_LAYERS);
    gguf_writer_u32(w, "llama.context_length", 64);
    gguf_writer_u32(w, "llama.embedding_length", TABLE_WIDTH);
    gguf_writer_u32(w, "llama.feed_forward_length", TABLE_WIDTH);
    gguf_writer_u32(w, "llama.attention.head_count", 8);
    gguf_writer_u32(w, "llama.attention.head_count_kv", 8);
    gguf_writer_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_writer_string(w, "tokenizer.ggml.model", "no_vocab", 8);
    for (int i = 0; i < n; i++) {
        const int64_t shape[] = { all[i].rows, all[i].columns };
        bool is_vector = all[i].rows == 0;
        gguf_writer_tensor(w, all[i].name, all[i].dtype, is_vector ? 1 : 2, shape + is_vector);
    }
    assert_int_equal(gguf_writer_begin_data(w, NULL), TUTTI_OK);
    for (int i = 0; i < n; i++)
        put_values(w, all[i].dtype, (all[i].rows > 0 ? all[i].rows : 1) * all[i].columns);
    assert_int_equal(gguf_writer_finish(w, NULL), TUTTI_OK);
    gguf_writer_free(w);
}
