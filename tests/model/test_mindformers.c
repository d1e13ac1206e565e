/* The names and layouts of MindFormers, made of the tiny checkpoints of each family: the same logits must come out. */
#include "base/buf.h"
#include "offline/convert.h"
#include "util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* What becomes of a tensor. Elements are two bytes. */
enum change {
    AS_IT_IS,
    TRANSPOSED,
    ROWS,           /* begin..end-1 */
    COLUMNS_TURNED, /* begin..end-1 of [in][out], as [out][in] */
    BY_HEAD,        /* part begin (0: q, 1: k, 2: v) of rows [heads][q, k, v][end] */
};

struct rename {
    const char *from, *to; /* "%d": each layer; tensors of the same name are joined in this order */
    enum change change;
    int begin, end;
};

static const struct rename LLAMA[] = {
    { .from = "model.embed_tokens.weight", .to = "model.tok_embeddings.embedding_weight" },
    { .from = "model.norm.weight", .to = "model.norm_out.weight" },
    { .from = "lm_head.weight", .to = "lm_head.weight" },
    { .from = "model.layers.%d.input_layernorm.weight", .to = "model.layers.%d.attention_norm.weight" },
    { .from = "model.layers.%d.post_attention_layernorm.weight", .to = "model.layers.%d.ffn_norm.weight" },
    { .from = "model.layers.%d.self_attn.q_proj.weight", .to = "model.layers.%d.attention.wq.weight" },
    { .from = "model.layers.%d.self_attn.k_proj.weight", .to = "model.layers.%d.attention.wk.weight" },
    { .from = "model.layers.%d.self_attn.v_proj.weight", .to = "model.layers.%d.attention.wv.weight" },
    { .from = "model.layers.%d.self_attn.q_proj.bias", .to = "model.layers.%d.attention.wq.bias" },
    { .from = "model.layers.%d.self_attn.k_proj.bias", .to = "model.layers.%d.attention.wk.bias" },
    { .from = "model.layers.%d.self_attn.v_proj.bias", .to = "model.layers.%d.attention.wv.bias" },
    { .from = "model.layers.%d.self_attn.o_proj.weight", .to = "model.layers.%d.attention.wo.weight" },
    { .from = "model.layers.%d.mlp.gate_proj.weight", .to = "model.layers.%d.feed_forward.w1.weight" },
    { .from = "model.layers.%d.mlp.up_proj.weight", .to = "model.layers.%d.feed_forward.w3.weight" },
    { .from = "model.layers.%d.mlp.down_proj.weight", .to = "model.layers.%d.feed_forward.w2.weight" },
};

#define LLAMA_LAYER "model.layers.%d."
static const struct rename LLAMA_FUSED[] = {
    { .from = "model.embed_tokens.weight", .to = "model.tok_embeddings.embedding_weight" },
    { .from = "model.norm.weight", .to = "model.norm_out.weight" },
    { .from = "lm_head.weight", .to = "lm_head.weight" },
    { .from = LLAMA_LAYER "input_layernorm.weight", .to = LLAMA_LAYER "attention_norm.weight" },
    { .from = LLAMA_LAYER "post_attention_layernorm.weight", .to = LLAMA_LAYER "ffn_norm.weight" },
    { .from = LLAMA_LAYER "self_attn.q_proj.weight", .to = LLAMA_LAYER "attention.w_qkv.weight" },
    { .from = LLAMA_LAYER "self_attn.k_proj.weight", .to = LLAMA_LAYER "attention.w_qkv.weight" },
    { .from = LLAMA_LAYER "self_attn.v_proj.weight", .to = LLAMA_LAYER "attention.w_qkv.weight" },
    { .from = LLAMA_LAYER "self_attn.q_proj.bias", .to = LLAMA_LAYER "attention.w_qkv.bias" },
    { .from = LLAMA_LAYER "self_attn.k_proj.bias", .to = LLAMA_LAYER "attention.w_qkv.bias" },
    { .from = LLAMA_LAYER "self_attn.v_proj.bias", .to = LLAMA_LAYER "attention.w_qkv.bias" },
    { .from = LLAMA_LAYER "self_attn.o_proj.weight", .to = LLAMA_LAYER "attention.wo.weight" },
    { .from = LLAMA_LAYER "mlp.gate_proj.weight", .to = LLAMA_LAYER "feed_forward.w_gate_hidden.weight" },
    { .from = LLAMA_LAYER "mlp.up_proj.weight", .to = LLAMA_LAYER "feed_forward.w_gate_hidden.weight" },
    { .from = LLAMA_LAYER "mlp.down_proj.weight", .to = LLAMA_LAYER "feed_forward.w2.weight" },
};

static const struct rename QWEN3[] = {
    { .from = "model.embed_tokens.weight", .to = "embedding.word_embeddings.weight" },
    { .from = "model.norm.weight", .to = "decoder.final_layernorm.weight" },
    { .from = "model.layers.%d.input_layernorm.weight", .to = "decoder.layers.%d.input_layernorm.weight" },
    { .from = "model.layers.%d.post_attention_layernorm.weight",
      .to = "decoder.layers.%d.pre_mlp_layernorm.weight" },
    { .from = "model.layers.%d.self_attn.q_proj.weight",
      .to = "decoder.layers.%d.self_attention.linear_q.weight" },
    { .from = "model.layers.%d.self_attn.k_proj.weight",
      .to = "decoder.layers.%d.self_attention.linear_k.weight" },
    { .from = "model.layers.%d.self_attn.v_proj.weight",
      .to = "decoder.layers.%d.self_attention.linear_v.weight" },
    { .from = "model.layers.%d.self_attn.q_norm.weight",
      .to = "decoder.layers.%d.self_attention.q_layernorm.weight" },
    { .from = "model.layers.%d.self_attn.k_norm.weight",
      .to = "decoder.layers.%d.self_attention.k_layernorm.weight" },
    { .from = "model.layers.%d.self_attn.o_proj.weight",
      .to = "decoder.layers.%d.self_attention.linear_proj.weight" },
    { .from = "model.layers.%d.mlp.gate_proj.weight", .to = "decoder.layers.%d.mlp.gating.weight" },
    { .from = "model.layers.%d.mlp.up_proj.weight", .to = "decoder.layers.%d.mlp.linear_fc1.weight" },
    { .from = "model.layers.%d.mlp.down_proj.weight", .to = "decoder.layers.%d.mlp.linear_fc2.weight" },
};

#define GLM "transformer.encoder.layers.%d."
#define KEPT(name)                                                                                           \
    {                                                                                                        \
        .from = name, .to = name                                                                             \
    }
/* 4 heads of 16 and 2 KV heads; a feed-forward width of 96. */
static const struct rename CHATGLM[] = {
    { .from = "transformer.embedding.word_embeddings.weight",
      .to = "transformer.embedding.embedding_weight" },
    KEPT("transformer.output_layer.weight"),
    KEPT("transformer.encoder.final_layernorm.weight"),
    KEPT(GLM "input_layernorm.weight"),
    KEPT(GLM "post_attention_layernorm.weight"),
    KEPT(GLM "self_attention.dense.weight"),
    KEPT(GLM "mlp.dense_4h_to_h.weight"),
    { GLM "self_attention.query_key_value.weight", GLM "self_attention.wq.weight", ROWS, 0, 64 },
    { GLM "self_attention.query_key_value.weight", GLM "self_attention.wk.weight", ROWS, 64, 96 },
    { GLM "self_attention.query_key_value.weight", GLM "self_attention.wv.weight", ROWS, 96, 128 },
    { GLM "self_attention.query_key_value.bias", GLM "self_attention.wq.bias", ROWS, 0, 64 },
    { GLM "self_attention.query_key_value.bias", GLM "self_attention.wk.bias", ROWS, 64, 96 },
    { GLM "self_attention.query_key_value.bias", GLM "self_attention.wv.bias", ROWS, 96, 128 },
    { GLM "mlp.dense_h_to_4h.weight", GLM "mlp.dense_left.weight", ROWS, 0, 96 },
    { GLM "mlp.dense_h_to_4h.weight", GLM "mlp.dense_right.weight", ROWS, 96, 192 },
};

static const struct rename CHATGLM_FUSED[] = {
    { .from = "transformer.embedding.word_embeddings.weight",
      .to = "transformer.embedding.embedding_weight" },
    KEPT("transformer.output_layer.weight"),
    KEPT("transformer.encoder.final_layernorm.weight"),
    KEPT(GLM "input_layernorm.weight"),
    KEPT(GLM "post_attention_layernorm.weight"),
    KEPT(GLM "self_attention.dense.weight"),
    KEPT(GLM "self_attention.query_key_value.weight"),
    KEPT(GLM "self_attention.query_key_value.bias"),
    KEPT(GLM "mlp.dense_h_to_4h.weight"),
    KEPT(GLM "mlp.dense_4h_to_h.weight"),
};

#define BLOCK "backbone.blocks.%d."
#define NORM(theirs, ours)                                                                                   \
    { .from = theirs ".weight", .to = ours ".gamma" },                                                       \
    {                                                                                                        \
        .from = theirs ".bias", .to = ours ".beta"                                                           \
    }
static const struct rename GPT2[] = {
    { .from = "wte.weight", .to = "backbone.embedding.word_embedding.embedding_table" },
    { .from = "wpe.weight", .to = "backbone.embedding.position_embedding.embedding_table" },
    NORM("ln_f", "backbone.layernorm"),
    NORM("h.%d.ln_1", BLOCK "layernorm1"),
    NORM("h.%d.ln_2", BLOCK "layernorm2"),
    { "h.%d.attn.c_attn.weight", BLOCK "attention.dense1.weight", COLUMNS_TURNED, 0, 64 },
    { "h.%d.attn.c_attn.weight", BLOCK "attention.dense2.weight", COLUMNS_TURNED, 64, 128 },
    { "h.%d.attn.c_attn.weight", BLOCK "attention.dense3.weight", COLUMNS_TURNED, 128, 192 },
    { "h.%d.attn.c_attn.bias", BLOCK "attention.dense1.bias", ROWS, 0, 64 },
    { "h.%d.attn.c_attn.bias", BLOCK "attention.dense2.bias", ROWS, 64, 128 },
    { "h.%d.attn.c_attn.bias", BLOCK "attention.dense3.bias", ROWS, 128, 192 },
    { .from = "h.%d.attn.c_proj.weight", .to = BLOCK "attention.projection.weight" },
    { .from = "h.%d.attn.c_proj.bias", .to = BLOCK "attention.projection.bias" },
    { .from = "h.%d.mlp.c_fc.weight", .to = BLOCK "output.mapping.weight" },
    { .from = "h.%d.mlp.c_fc.bias", .to = BLOCK "output.mapping.bias" },
    { .from = "h.%d.mlp.c_proj.weight", .to = BLOCK "output.projection.weight" },
    { .from = "h.%d.mlp.c_proj.bias", .to = BLOCK "output.projection.bias" },
};

#define BLOOM_QKV "h.%d.self_attention.query_key_value."
static const struct rename BLOOM[] = {
    /* heads of 8 */
    { .from = "word_embeddings.weight", .to = "embedding.word_embedding.embedding_table" },
    NORM("word_embeddings_layernorm", "embedding.norm"),
    NORM("ln_f", "ln_f"),
    NORM("h.%d.input_layernorm", "blocks.%d.layernorm1"),
    NORM("h.%d.post_attention_layernorm", "blocks.%d.layernorm2"),
    { BLOOM_QKV "weight", "blocks.%d.attention.dense1.weight", BY_HEAD, 0, 8 },
    { BLOOM_QKV "weight", "blocks.%d.attention.dense2.weight", BY_HEAD, 1, 8 },
    { BLOOM_QKV "weight", "blocks.%d.attention.dense3.weight", BY_HEAD, 2, 8 },
    { BLOOM_QKV "bias", "blocks.%d.attention.dense1.bias", BY_HEAD, 0, 8 },
    { BLOOM_QKV "bias", "blocks.%d.attention.dense2.bias", BY_HEAD, 1, 8 },
    { BLOOM_QKV "bias", "blocks.%d.attention.dense3.bias", BY_HEAD, 2, 8 },
    { "h.%d.self_attention.dense.weight", "blocks.%d.attention.projection.weight", TRANSPOSED, 0, 0 },
    { .from = "h.%d.self_attention.dense.bias", .to = "blocks.%d.attention.projection.bias" },
    { "h.%d.mlp.dense_h_to_4h.weight", "blocks.%d.output.mapping.weight", TRANSPOSED, 0, 0 },
    { .from = "h.%d.mlp.dense_h_to_4h.bias", .to = "blocks.%d.output.mapping.bias" },
    { "h.%d.mlp.dense_4h_to_h.weight", "blocks.%d.output.projection.weight", TRANSPOSED, 0, 0 },
    { .from = "h.%d.mlp.dense_4h_to_h.bias", .to = "blocks.%d.output.projection.bias" },
};

#define GLM_6B       "transformer.layers.%d."
#define LINEAR(name) KEPT(GLM_6B name ".weight"), KEPT(GLM_6B name ".bias")
static const struct rename CHATGLM_6B[] = {
    { .from = "transformer.word_embeddings.weight", .to = "transformer.word_embeddings.embedding_table" },
    KEPT("lm_head.weight"),
    NORM("transformer.final_layernorm", "transformer.final_layernorm"),
    NORM(GLM_6B "input_layernorm", GLM_6B "input_layernorm"),
    NORM(GLM_6B "post_attention_layernorm", GLM_6B "post_attention_layernorm"),
    LINEAR("attention.query_key_value"),
    LINEAR("attention.dense"),
    LINEAR("mlp.dense_h_to_4h"),
    LINEAR("mlp.dense_4h_to_h"),
};

/* ---- making the folder ---- */

static char folder[64];

static void path_of(char *path, size_t size, const char *name)
{
    snprintf(path, size, "%s/%s", folder, name);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tutti-mindformers-%d", (int)getpid());
    return mkdir(folder, 0700);
}

static int remove_folder(void **state)
{
    (void)state;
    char path[128];
    path_of(path, sizeof path, "config.json");
    unlink(path);
    path_of(path, sizeof path, "run.yaml");
    unlink(path);
    path_of(path, sizeof path, "model.safetensors");
    unlink(path);
    return rmdir(folder);
}

static const struct tensor *find(const struct tensor_set *file, const char *name)
{
    for (size_t i = 0; i < file->n; i++) {
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    }
    return NULL;
}

/* Where row of the result is in t; for BY_HEAD and ROWS. */
static int64_t row_of(const struct rename *r, int64_t row)
{
    return r->change == BY_HEAD ? (row / r->end * 3 + r->begin) * r->end + row % r->end : r->begin + row;
}

/* Adds the changed tensor to the data, and its entry to the header. */
static void add(json_t *header, struct buf *data, const struct tensor *t, const char *name,
                const struct rename *r)
{
    bool turns = r->change == TRANSPOSED || r->change == COLUMNS_TURNED;
    int64_t cols = t->n_dims == 2 ? t->shape[1] : 1, n_rows = t->shape[0], n_cols = cols;
    size_t begin = data->n_bytes, size = (size_t)dtype_block_bytes(t->dtype);
    const char *bytes = t->data;
    if (turns) {
        n_rows = r->change == TRANSPOSED ? cols : r->end - r->begin;
        n_cols = t->shape[0];
    } else if (r->change != AS_IT_IS) {
        n_rows = r->change == BY_HEAD ? t->shape[0] / 3 : r->end - r->begin;
    }
    for (int64_t i = 0; i < n_rows; i++) {
        for (int64_t j = 0; j < n_cols; j++) {
            int64_t at = turns ? j * cols + r->begin + i
                               : (r->change == AS_IT_IS ? i : row_of(r, i)) * cols + j;
            assert_true(buf_add(data, bytes + (size_t)at * size, size));
        }
    }
    json_t *before = json_object_get(header, name);
    if (before) {
        begin = (size_t)json_integer_value(json_array_get(json_object_get(before, "data_offsets"), 0));
        n_rows += json_integer_value(json_array_get(json_object_get(before, "shape"), 0));
    }
    const char *dtype = t->dtype == DTYPE_F32 ? "F32" : t->dtype == DTYPE_F16 ? "F16" : "BF16";
    json_t *shape = t->n_dims == 2 ? json_pack("[I, I]", (json_int_t)n_rows, (json_int_t)n_cols)
                                   : json_pack("[I]", (json_int_t)n_rows);
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets",
                              (json_int_t)begin, (json_int_t)data->n_bytes);
    assert_int_equal(json_object_set_new(header, name, entry), 0);
}

static void write_file(json_t *header, const struct buf *data)
{
    char path[128];
    path_of(path, sizeof path, "model.safetensors");
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t n = strlen(text);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(&n, sizeof n, 1, out), 1);
    assert_int_equal(fwrite(text, 1, n, out), n);
    assert_int_equal(fwrite(data->bytes, 1, data->n_bytes, out), data->n_bytes);
    fclose(out);
    free(text);
}

static void layer_name(char *out, size_t size, const char *pattern, int layer)
{
    const char *mark = strstr(pattern, "%d");
    if (mark)
        snprintf(out, size, "%.*s%d%s", (int)(mark - pattern), pattern, layer, mark + 2);
    else
        snprintf(out, size, "%s", pattern);
}

/* The fixture's configuration as MindFormers keeps it, in the place of the other. */
static void write_yaml(const char *settings)
{
    char path[128];
    path_of(path, sizeof path, "config.json");
    unlink(path);
    path_of(path, sizeof path, "run.yaml");
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fprintf(out, "runner_config:\n  epochs: 1\nmodel:\n  model_config:\n%s", settings) > 0);
    fclose(out);
}

/* The fixture under other names. Every tensor of it must be used. */
static void make_checkpoint(const char *fixture, const struct rename *renames, size_t n_renames)
{
    char path[512];
    path_of(path, sizeof path, "run.yaml");
    unlink(path);
    struct tensor_set *file;
    struct buf data = { 0 };
    json_t *header = json_object(), *used = json_object();
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/config.json", fixture);
    json_t *config = util_load_json(path);
    path_of(path, sizeof path, "config.json");
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/model.safetensors", fixture);
    assert_int_equal(tensor_set_open_as(&file, &SAFETENSORS_FORMAT, path, NULL), TUTTI_OK);
    for (size_t i = 0; n_renames == 0 && i < file->n; i++) { /* they are its names */
        const struct tensor *t = &file->tensors[i];
        add(header, &data, t, t->name, &(struct rename){ .change = AS_IT_IS });
        json_object_set_new(used, t->name, json_true());
    }
    for (int layer = 0; layer < 8; layer++) {
        for (size_t i = 0; i < n_renames; i++) {
            char from[128], to[128];
            layer_name(from, sizeof from, renames[i].from, layer);
            layer_name(to, sizeof to, renames[i].to, layer);
            const struct tensor *t = find(file, from);
            if (!t || (layer > 0 && !strstr(renames[i].from, "%d")))
                continue;
            add(header, &data, t, to, &renames[i]);
            json_object_set_new(used, from, json_true());
        }
    }
    assert_int_equal(json_object_size(used), file->n);
    write_file(header, &data);
    tensor_set_close(file);
    buf_clear(&data);
    json_decref(used);
    json_decref(header);
}

/* GGUF cuts matrices its own way: rows are put together or taken apart. */
static void check_converted(const char *fixture, const char *golden)
{
    struct convert_options options = { .type = weight_type_find("f32"), .n_threads = 2 };
    struct tutti_error err = { 0 };
    char path[128];
    path_of(path, sizeof path, "model.gguf");
    if (convert_to_gguf(folder, path, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    struct model *model = util_load(path, NULL, "f32", 2, NULL);
    struct util_errors e = util_compare_file(model, golden, "logits", 3);
    print_message("# %s from MindFormers' names to GGUF: relative %.2e at most\n", fixture, e.max_relative);
    assert_true(e.max_relative <= 1e-4);
    model_free(model);
    unlink(path);
}

static void names_and_layouts_of_mindformers_are_known(void **state)
{
    (void)state;
#define RENAMES(table) table, sizeof table / sizeof *table
    static const struct {
        const char *fixture;
        const struct rename *renames;
        size_t n;
    } CASES[] = {
        { "mistral-tiny", RENAMES(LLAMA) },     { "qwen2-tiny", RENAMES(LLAMA) },
        { "qwen3-tiny", RENAMES(QWEN3) },       { "mistral-tiny", RENAMES(LLAMA_FUSED) },
        { "qwen2-tiny", RENAMES(LLAMA_FUSED) }, { "glm-4-9b-tiny", RENAMES(CHATGLM_FUSED) },
        { "glm-4-9b-tiny", RENAMES(CHATGLM) },  { "gpt2-tiny", RENAMES(GPT2) },
        { "bloom-tiny", RENAMES(BLOOM) },       { "chatglm-6b-tiny", RENAMES(CHATGLM_6B) },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char golden[512];
        make_checkpoint(CASES[i].fixture, CASES[i].renames, CASES[i].n);
        snprintf(golden, sizeof golden, TEST_FIXTURES "/%s/golden.safetensors", CASES[i].fixture);
        struct model *model = util_load(folder, "f32", "f32", 2, NULL);
        struct util_errors e = util_compare_file(model, golden, "logits", 3);
        print_message("# %s in MindFormers' names: relative %.2e at most\n", CASES[i].fixture,
                      e.max_relative);
        assert_true(e.max_relative <= 1e-4);
        model_free(model);
        check_converted(CASES[i].fixture, golden);
    }
}

#define LINE(text) "    " text "\n"
static const char LLAMA_YAML[] = LINE("type: LlamaConfig") LINE("batch_size: 1 # of a run")
    LINE("num_layers: 3") LINE("hidden_size: 64") LINE("num_heads: 8") LINE("n_kv_heads: 4")
        LINE("head_dim: 16") LINE("vocab_size: 300") LINE("intermediate_size: 96") LINE("seq_length: 512")
            LINE("rms_norm_eps: 1.0e-6") LINE("theta: 10000") LINE("extend_method: \"LLAMA3\"")
                LINE("scaling_factor:") LINE("  factor: 8.0") LINE("  low_freq_factor: 1.0")
                    LINE("  high_freq_factor: 4.0") LINE("  original_max_position_embeddings: 64")
                        LINE("tie_word_embeddings: True") LINE("checkpoint_name_or_path: \"\"");
static const char QWEN_YAML[] = LINE("type: LlamaConfig") LINE("num_layers: 2") LINE("hidden_size: 64")
    LINE("num_heads: 4") LINE("n_kv_heads: 2") LINE("vocab_size: 109") LINE("intermediate_size: 96")
        LINE("seq_length: 64") LINE("max_position_embedding: 512") LINE("qkv_has_bias: True")
            LINE("rms_norm_eps: 1e-6") LINE("tie_word_embeddings: True") LINE("eos_token_id: [2, 3]");
static const char GLM4_YAML[] = LINE("type: ChatGLM2Config") LINE("num_layers: 2")
    LINE("padded_vocab_size: 109") LINE("hidden_size: 64") LINE("ffn_hidden_size: 96") LINE("kv_channels: 16")
        LINE("num_attention_heads: 4") LINE("seq_length: 512") LINE("layernorm_epsilon: 1.5625e-07")
            LINE("rope_ratio: 50") LINE("rmsnorm: True") LINE("pre_seq_len: None") LINE("quantization_bit: 0")
                LINE("eos_token_id: [2, 3, 4]");
static const char GPT2_YAML[] = LINE("type: GPT2Config") LINE("seq_length: 256") LINE("vocab_size: 109")
    LINE("hidden_size: 64") LINE("num_layers: 2") LINE("num_heads: 4") LINE("expand_ratio: 2.5")
        LINE("hidden_act: 'gelu'");
static const char BLOOM_YAML[] = LINE("type: BloomConfig") LINE("seq_length: 512") LINE("vocab_size: 109")
    LINE("hidden_size: 48") LINE("num_layers: 2") LINE("num_heads: 6") LINE("expand_ratio: 4");
static const char CHATGLM_6B_YAML[] = LINE("type: GLMConfig") LINE("vocab_size: 109") LINE("hidden_size: 64")
    LINE("num_layers: 2") LINE("num_heads: 4") LINE("inner_hidden_size: 160") LINE("seq_length: 512")
        LINE("hidden_size_per_attention_head: # hidden_size / num_heads") LINE("bos_token_id: 104")
            LINE("eos_token_id: 105") LINE("mask_token_id: 100") LINE("gmask_token_id: 101");
static const char PANGU_YAML[] = LINE("type: PanguAlphaConfig") LINE("vocab_size: 109")
    LINE("hidden_size: 64") LINE("ffn_hidden_size: 96") LINE("num_layers: 2") LINE("num_heads: 4")
        LINE("seq_length: 224") LINE("eos_token_id: 9") LINE("hidden_act: 'fast_gelu'");

/* Settings of a run in its files, which are not the model's. */
static const char RUN_YAML[] = LINE("use_past: True") LINE("is_dynamic: True") LINE("block_size: 16")
    LINE("num_blocks: 512") LINE("offset: 0") LINE("use_flash_attention: True") LINE("qkv_concat: False")
        LINE("compute_dtype: \"float16\"") LINE("layernorm_compute_type: \"float32\"")
            LINE("softmax_compute_type: \"float16\"") LINE("rotary_dtype: \"float32\"")
                LINE("param_init_type: \"float16\"") LINE("fine_grain_interleave: 2")
                    LINE("pp_interleave_num: 1") LINE("use_attn_mask_compression: True")
                        LINE("parallel_optimizer: True") LINE("repetition_penalty: 1.0")
                            LINE("max_decode_length: 512") LINE("top_k: 3") LINE("top_p: 1")
                                LINE("do_sample: False") LINE("ignore_token_id: -100")
                                    LINE("hidden_dropout: 0.0") LINE("input_sliced_sig: True");

/* A folder of MindFormers has no config.json. */
static void its_configuration_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *fixture, *yaml;
        const struct rename *renames;
        size_t n;
    } CASES[] = {
        { "llama-tiny-tied", LLAMA_YAML, RENAMES(LLAMA) },
        { "qwen2-tiny", QWEN_YAML, RENAMES(LLAMA) },
        { "glm-4-9b-tiny", GLM4_YAML, RENAMES(CHATGLM) },
        { "gpt2-tiny", GPT2_YAML, RENAMES(GPT2) },
        { "bloom-tiny", BLOOM_YAML, RENAMES(BLOOM) },
        { "chatglm-6b-tiny", CHATGLM_6B_YAML, RENAMES(CHATGLM_6B) },
        { "pangu-tiny", PANGU_YAML, NULL, 0 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char golden[512];
        make_checkpoint(CASES[i].fixture, CASES[i].renames, CASES[i].n);
        char yaml[4096];
        struct tutti_error err;
        struct model *none = NULL;
        assert_true(snprintf(yaml, sizeof yaml, "%s%s%s", CASES[i].yaml, RUN_YAML, LINE("softcap: 30")) <
                    (int)sizeof yaml);
        write_yaml(yaml);
        assert_int_equal(model_load(&none, folder, NULL, &err), TUTTI_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "run.yaml: softcap: 30: tutti does not know this setting"));
        snprintf(yaml, sizeof yaml, "%s%s", CASES[i].yaml, RUN_YAML);
        write_yaml(yaml);
        snprintf(golden, sizeof golden, TEST_FIXTURES "/%s/golden.safetensors", CASES[i].fixture);
        struct model *model = util_load(folder, "f32", "f32", 2, NULL);
        struct util_errors e = util_compare_file(model, golden, "logits", 3);
        print_message("# %s by MindFormers' configuration: relative %.2e at most\n", CASES[i].fixture,
                      e.max_relative);
        assert_true(e.max_relative <= 1e-4);
        model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_and_layouts_of_mindformers_are_known, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(its_configuration_is_read, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
