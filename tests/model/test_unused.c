/* Unused tensors, an output matrix although the configuration ties it, and settings of GGUF's metadata: each is honoured, refused by
 * name, or warned of. */
#include "util.h"

#include "../support/folder.h"
#include "base/log.h"
#include "checkpoint/gguf/gguf.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_IDS = 9 };
static const int32_t IDS[N_IDS] = { 5, 17, 3, 105, 9, 11, 42, 100, 7 };

static void path_of(char *path, size_t size, const char *name)
{
    snprintf(path, size, "%s/%s", folder, name);
}

static void write_bytes(FILE *out, const void *bytes, size_t n)
{
    assert_int_equal(fwrite(bytes, 1, n, out), n);
}

static char *read_file(const char *path, size_t *n)
{
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    fseek(in, 0, SEEK_END);
    *n = (size_t)ftell(in);
    rewind(in);
    char *bytes = malloc(*n);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n, in), *n);
    fclose(in);
    return bytes;
}

/* The fixture's safetensors with one tensor more, of n floats of value each. name NULL: none. copy: bytes of this tensor become
 * those of from; NULL: none. */
static void write_tensors(const char *fixture, const char *name, int n_values, float value, const char *copy,
                          const char *from)
{
    char path[512];
    size_t n;
    uint64_t n_header;
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/model.safetensors", fixture);
    char *bytes = read_file(path, &n);
    memcpy(&n_header, bytes, sizeof n_header);
    json_t *header = json_loadb(bytes + 8, n_header, 0, NULL);
    size_t n_data = n - 8 - n_header;
    char *data = bytes + 8 + n_header;
    if (copy) {
        const json_t *to = json_object_get(json_object_get(header, copy), "data_offsets");
        const json_t *source = json_object_get(json_object_get(header, from), "data_offsets");
        json_int_t begin = json_integer_value(json_array_get(source, 0));
        memcpy(data + json_integer_value(json_array_get(to, 0)), data + begin,
               (size_t)(json_integer_value(json_array_get(source, 1)) - begin));
    }
    if (name)
        json_object_set_new(header, name,
                            json_pack("{s:s, s:[i], s:[I, I]}", "dtype", "F32", "shape", n_values,
                                      "data_offsets", (json_int_t)n_data,
                                      (json_int_t)(n_data + (size_t)n_values * sizeof value)));
    char *text = json_dumps(header, JSON_COMPACT);
    path_of(path, sizeof path, "model.safetensors");
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    n_header = strlen(text);
    write_bytes(out, &n_header, sizeof n_header);
    write_bytes(out, text, n_header);
    write_bytes(out, data, n_data);
    for (int i = 0; name && i < n_values; i++)
        write_bytes(out, &value, sizeof value);
    assert_int_equal(fclose(out), 0);
    free(text);
    json_decref(header);
    free(bytes);
}

/* The fixture's configuration; key NULL: as it is. */
static void write_config(const char *fixture, const char *key, const char *value)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/config.json", fixture);
    json_t *config = util_load_json(path);
    if (key)
        assert_int_equal(json_object_set_new(config, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    path_of(path, sizeof path, "config.json");
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
}

/* What standard error gets while a model is opened. model NULL where that fails; error: its text. */
static struct model *open_model(const char *path, char *said, size_t size, struct tutti_error *err)
{
    struct model *model = NULL;
    struct tutti_model_options options = { .weight_type = "f32", .kv_type = "f32", .n_threads = 1 };
    char log_path[512];
    path_of(log_path, sizeof log_path, "log");
    fflush(stderr);
    int old = dup(STDERR_FILENO), log = open(log_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(old >= 0 && log >= 0 && dup2(log, STDERR_FILENO) >= 0);
    *err = (struct tutti_error){ 0 };
    if (model_load(&model, path, &options, err) != TUTTI_OK)
        model = NULL;
    dup2(old, STDERR_FILENO);
    ssize_t n = pread(log, said, size - 1, 0);
    said[n > 0 ? n : 0] = '\0';
    close(old);
    close(log);
    return model;
}

/* A tensor that the model does not use. */
struct unused {
    const char *fixture, *name;
    float value;
    const char *error, *warning; /* both NULL: nothing is said */
};

/* The folder has the file already. */
static void check_unused(const struct unused *c, const char *fixture)
{
    char said[4096];
    struct tutti_error err;
    write_config(fixture, NULL, NULL);
    struct model *model = open_model(folder, said, sizeof said, &err);
    bool is_right = c->error
                        ? !model && strstr(err.text, c->error)
                        : model && (c->warning ? strstr(said, c->warning) != NULL : !strstr(said, "unused"));
    if (!is_right)
        fail_msg("%s: \"%s\", said \"%s\"", c->name, err.text, said);
    model_free(model);
}

static void unused_tensors_are_refused_or_listed(void **state)
{
    (void)state;
    static const struct unused CASES[] = {
        { "llama-tiny-tied", "model.layers.1.self_attn.q_proj.bias", 1,
          "tensor model.layers.1.self_attn.q_proj.bias: no llama model of this configuration uses it, but it "
          "belongs to a layer that runs",
          NULL },
        { "llama-tiny-tied", "model.layers.1.self_attn.q_proj.bias", 0, NULL, NULL }, /* adds nothing */
        { "llama-tiny-tied", "model.layers.0.self_attn.q_norm.weight", 1, "q_norm.weight", NULL },
        { "llama-tiny-tied", "model.layers.0.input_layernorm.bias", 0.5f, "input_layernorm.bias", NULL },
        { "llama-tiny-tied", "model.layers.2.block_sparse_moe.gate.weight", 1, "moe.gate.weight", NULL },
        { "llama-tiny-tied", "model.layers.0.mlp.down_proj.lora_A.weight", 1, "lora_A", NULL },
        { "llama-tiny-tied", "model.norm.bias", 1, "belongs to a tensor that is used", NULL },
        { "llama-tiny-tied", "model.embed_tokens.weight.absmax", 1, "absmax", NULL },
        { "llama-tiny-tied", "model.embed_norm.weight", 1, "it is a norm outside of the layers", NULL },
        { "llama-tiny-tied", "model.layers.0.self_attn.rotary_emb.inv_freq", 1, NULL, NULL },
        { "llama-tiny-tied", "model.layers.0.rope_freqs.weight", 2, "layers.0.rope_freqs.weight: no llama",
          NULL },
        { "llama-tiny-tied", "model.layers.3.mlp.up_proj.weight", 1, NULL,
          "1 tensor is unused: model.layers.3.mlp.up_proj.weight" }, /* a layer that the configuration lacks */
        { "llama-tiny-tied", "score.weight", 1, NULL, "1 tensor is unused: score.weight" },
        { "llama-tiny-tied", "vision_tower.layers.0.layer_norm1.weight", 1, NULL, "unused: vision_tower" },
        { "mistral-tiny", "lm_head.bias", 1, "tensor lm_head.bias", NULL },
        { "qwen2-tiny", "model.layers.1.self_attn.o_proj.bias", 1, "o_proj.bias", NULL },
        { "qwen2-tiny", "model.layers.0.mlp.experts.0.up_proj.weight", 1, "experts.0", NULL },
        { "glm4-tiny", "model.layers.1.self_attn.q_proj.bias", 1, "q_proj.bias", NULL },
        { "gpt2-tiny", "h.0.attn.bias", 1, NULL, NULL }, /* a causal mask */
        { "ernie-moe-tiny", "model.mtp_block.0.mlp.up_proj.weight", 1, NULL,
          NULL }, /* a layer for multi-token prediction */
        { "ernie-moe-tiny", "model.mtp_emb_norm.0.weight", 1, NULL, NULL },
        { "gpt2-tiny", "h.0.attn.masked_bias", 1, NULL, NULL },
        { "gpt2-tiny", "h.1.attn.c_attn.weight.absmax", 1, "absmax", NULL },
        { "gpt2-tiny", "ln_emb.weight", 1, "ln_emb.weight: no gpt2 model", NULL },
        { "gpt2-tiny", "v_head.summary.weight", 1, NULL, "v_head.summary.weight" },
        { "bloom-tiny", "h.0.self_attention.masked_bias", 1, "masked_bias", NULL },
        { "pangu-tiny", "backbone.top_query_layer.attention.gate.weight", 1, "attention.gate.weight", NULL },
        { "chatglm3-tiny", "transformer.rotary_pos_emb.inv_freq", 1, NULL, NULL },
        { "chatglm3-tiny", "transformer.encoder.layers.1.mlp.dense_4h_to_h.bias", 1, "dense_4h_to_h.bias",
          NULL },
        { "chatglm3-tiny", "transformer.prefix_encoder.embedding.weight", 1, NULL, "prefix_encoder" },
        { "chatglm-6b-tiny", "transformer.layers.0.attention.rotary_emb.inv_freq", 1, NULL, NULL },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        write_tensors(CASES[i].fixture, CASES[i].name, 64, CASES[i].value, NULL, NULL);
        check_unused(&CASES[i], CASES[i].fixture);
    }
}

/* A field of a protocol buffer with n bytes, or their number where bytes is NULL. Returns the message's new size. */
static size_t put_field(uint8_t *out, size_t at, int number, const void *bytes, size_t n)
{
    out[at++] = (uint8_t)(number << 3 | (bytes ? 2 : 0));
    assert_true(n < 128 * 128);
    if (n >= 128)
        out[at++] = (uint8_t)(n & 0x7F) | 0x80;
    out[at++] = (uint8_t)(n >= 128 ? n >> 7 : n);
    if (bytes)
        memcpy(out + at, bytes, n);
    return at + (bytes ? n : 0);
}

/* The fixture's .ckpt with one tensor more at its beginning, of 32 floats of value each. */
static void write_mindspore(const char *fixture, const char *name, float value)
{
    enum { N_VALUES = 32 };
    uint8_t tensor[256], entry[512], message[600];
    float values[N_VALUES];
    char path[512];
    size_t n_file;
    for (int i = 0; i < N_VALUES; i++)
        values[i] = value;
    size_t n = put_field(tensor, 0, 1, NULL, N_VALUES);
    n = put_field(tensor, n, 2, "Float32", 7);
    n = put_field(tensor, n, 3, values, sizeof values);
    size_t n_entry = put_field(entry, 0, 1, name, strlen(name));
    n_entry = put_field(entry, n_entry, 2, tensor, n);
    n = put_field(message, 0, 1, entry, n_entry);
    snprintf(path, sizeof path, TEST_FIXTURES "/mindspore/%s/%s.ckpt", fixture, fixture);
    char *bytes = read_file(path, &n_file);
    path_of(path, sizeof path, "model.ckpt");
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    write_bytes(out, message, n);
    write_bytes(out, bytes, n_file);
    assert_int_equal(fclose(out), 0);
    free(bytes);
}

static void unused_tensors_of_mindspore_are_refused_or_listed(void **state)
{
    (void)state;
    static const struct unused CASES[] = {
        { "glm", "transformer.encoder.layers.0.mlp.dense_4h_to_h.bias", 1,
          "model.ckpt: tensor transformer.encoder.layers.0.mlp.dense_4h_to_h.bias: no chatglm model of this "
          "configuration uses it, but it belongs to a layer that runs",
          NULL },
        { "glm", "transformer.encoder.layers.0.mlp.dense_4h_to_h.bias", 0, NULL, NULL }, /* adds nothing */
        { "glm", "transformer.encoder.layers.1.self_attention.q_norm.weight", 1, "q_norm.weight", NULL },
        { "glm", "transformer.encoder.final_layernorm.bias", 1, "belongs to a tensor that is used", NULL },
        { "glm", "transformer.encoder.embed_norm.weight", 1, "it is a norm outside of the layers", NULL },
        { "glm", "score.weight", 1, NULL, "1 tensor is unused: score.weight" },
        { "glm", "transformer.encoder.layers.2.mlp.dense_4h_to_h.weight", 1, NULL,
          "1 tensor is unused: transformer.encoder.layers.2.mlp.dense_4h_to_h.weight" },
        { "glm", "adam_m.transformer.output_layer.weight", 1, NULL, NULL }, /* an optimizer's */
        { "pangu", "backbone.blocks.1.layernorm3.beta", 1, "it belongs to a layer that runs", NULL },
        { "pangu", "backbone.blocks.1.layernorm3.beta", 0, NULL, NULL },
        { "pangu", "backbone.blocks.1.layernorm3.gamma", 1, "it belongs to a layer that runs", NULL },
        { "pangu", "backbone.top_query_layer.attention.gate.bias", 1, "attention.gate.bias", NULL },
        { "pangu", "reward_head.weight", 1, NULL, "1 tensor is unused: reward_head.weight" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char fixture[64];
        snprintf(fixture, sizeof fixture, "mindspore/%s", CASES[i].fixture);
        write_mindspore(CASES[i].fixture, CASES[i].name, CASES[i].value);
        check_unused(&CASES[i], fixture);
    }
}

/* tie_word_embeddings is true and the file has an output matrix: one equal to the embedding is ignored, another one is used. */
static void a_tied_output_that_differs_is_run(void **state)
{
    (void)state;
    char said[4096];
    struct tutti_error err;
    float *logits[3];
    static const char *const TIES[] = { "false", "true", "true" };
    for (int i = 0; i < 3; i++) {
        write_config("mistral-tiny", "tie_word_embeddings", TIES[i]);
        write_tensors("mistral-tiny", NULL, 0, 0, i == 2 ? "lm_head.weight" : NULL,
                      "model.embed_tokens.weight");
        struct model *model = open_model(folder, said, sizeof said, &err);
        assert_non_null(model);
        assert_int_equal(model->desc.tied_output, i == 2);
        assert_int_equal(strstr(said, "lm_head.weight differs from model.embed_tokens.weight") != NULL,
                         i == 1);
        logits[i] = util_logits(model, IDS, N_IDS, N_IDS);
        if (i > 0)
            assert_int_equal(
                memcmp(logits[0], logits[i], sizeof *logits[0] * N_IDS * (size_t)model->desc.n_vocab) == 0,
                i == 1);
        model_free(model);
    }
    for (int i = 0; i < 3; i++)
        free(logits[i]);
    write_config("chatglm3-tiny", "tie_word_embeddings", "true");
    write_tensors("chatglm3-tiny", NULL, 0, 0, NULL, NULL);
    assert_null(open_model(folder, said, sizeof said, &err));
    assert_non_null(strstr(err.text, "transformer.output_layer.weight: it differs from"));
}

static void an_upload_without_a_configuration_of_its_quantization_is_named(void **state)
{
    (void)state;
    char path[512], said[4096];
    struct tutti_error err;
    size_t n;
    write_config("llama-tiny-tied", NULL, NULL);
    write_tensors("llama-tiny-tied", NULL, 0, 0, NULL, NULL);
    path_of(path, sizeof path, "model.safetensors");
    char *bytes = read_file(path, &n);
    static const char OLD[] = "\"model.layers.0.self_attn.q_proj.weight\"";
    static const char NEW[] = "\"model.layers.0.self_attn.q_proj.qweight"; /* one blank fewer after it */
    char *at = memmem(bytes, n, OLD, sizeof OLD - 1);
    assert_non_null(at);
    uint64_t n_header;
    memcpy(&n_header, bytes, sizeof n_header);
    n_header++;
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    write_bytes(out, &n_header, sizeof n_header);
    write_bytes(out, bytes + 8, (size_t)(at - bytes) - 8);
    write_bytes(out, NEW, sizeof NEW - 1);
    write_bytes(out, at + sizeof OLD - 2, n - (size_t)(at + sizeof OLD - 2 - bytes));
    assert_int_equal(fclose(out), 0);
    free(bytes);
    assert_null(open_model(folder, said, sizeof said, &err));
    assert_non_null(
        strstr(err.text, "q_proj.weight is missing, but its quantized form (GPTQ or AWQ) is there"));
}

/* ---- GGUF ---- */

struct setting {
    const char *key;
    char
        type; /* u, f, b, s: of 32 bits, bool, text; a: an array of two numbers, e: the number for each layer; 0: none */
    double number;
    const char *text;
};

static void put_setting(struct gguf_writer *w, const struct setting *s)
{
    static const int32_t TWO[] = { 1, 2 };
    if (s->type == 'u')
        gguf_writer_u32(w, s->key, (uint32_t)s->number);
    else if (s->type == 'f')
        gguf_writer_f32(w, s->key, (float)s->number);
    else if (s->type == 'b')
        gguf_writer_bool(w, s->key, s->number != 0);
    else if (s->type == 's')
        gguf_writer_string(w, s->key, s->text, strlen(s->text));
    else if (s->type == 'a')
        gguf_writer_i32s(w, s->key, TWO, 2);
    else if (s->type == 'e')
        gguf_writer_i32s(w, s->key, (const int32_t[]){ (int)s->number, (int)s->number, (int)s->number }, 3);
}

static bool has_setting(const struct setting *settings, int n, const char *key)
{
    for (int i = 0; i < n; i++)
        if (strcmp(settings[i].key, key) == 0)
            return true;
    return false;
}

/* The fixture without its tokenizer, with settings [n] and a tensor more (NULL: none). */
static void write_gguf(const struct setting *settings, int n, const char *extra)
{
    char path[512];
    struct tensor_set *from;
    struct gguf_writer *w;
    path_of(path, sizeof path, "m.gguf");
    assert_int_equal(
        tensor_set_open_as(&from, &GGUF_FORMAT, TEST_FIXTURES "/gguf/llama-tiny-q8_0.gguf", NULL), TUTTI_OK);
    assert_int_equal(gguf_writer_open(&w, path, NULL), TUTTI_OK);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)gguf_scalars(gguf_of(from)), key, value)
    {
        if ((strncmp(key, "llama.", 6) != 0 && strcmp(key, "general.architecture") != 0) ||
            has_setting(settings, n, key))
            continue;
        const struct setting s = { key,
                                   json_is_integer(value)  ? 'u'
                                   : json_is_number(value) ? 'f'
                                   : json_is_string(value) ? 's'
                                                           : 'b',
                                   json_is_boolean(value) ? json_is_true(value) : json_number_value(value),
                                   json_string_value(value) };
        put_setting(w, &s);
    }
    for (int i = 0; i < n; i++)
        put_setting(w, &settings[i]);
    bool is_tied = extra && strcmp(extra, "output.bias") == 0; /* then without an output matrix */
    for (size_t i = 0; i < from->n; i++) {
        const struct tensor *t = &from->tensors[i];
        if (is_tied && strcmp(t->name, "output.weight") == 0)
            continue;
        gguf_writer_tensor(w, t->name, t->dtype, t->n_dims, t->shape);
    }
    static const int64_t SHAPE[] = { 128 };
    static const float ONES[128] = { 1, 1 };
    if (extra)
        gguf_writer_tensor(w, extra, DTYPE_F32, 1, SHAPE);
    assert_int_equal(gguf_writer_begin_data(w, NULL), TUTTI_OK);
    for (size_t i = 0; i < from->n; i++)
        if (!is_tied || strcmp(from->tensors[i].name, "output.weight") != 0)
            assert_int_equal(gguf_writer_data(w, from->tensors[i].data, from->tensors[i].n_bytes, NULL),
                             TUTTI_OK);
    if (extra)
        assert_int_equal(gguf_writer_data(w, ONES, sizeof ONES, NULL), TUTTI_OK);
    assert_int_equal(gguf_writer_finish(w, NULL), TUTTI_OK);
    gguf_writer_free(w);
    tensor_set_close(from);
}

/* Logits of a file with these settings, or NULL. */
static float *gguf_logits(const struct setting *settings, int n, const char *extra, char *said, size_t size,
                          struct tutti_error *err)
{
    char path[512];
    path_of(path, sizeof path, "m.gguf");
    write_gguf(settings, n, extra);
    struct model *model = open_model(path, said, size, err);
    float *logits = model ? util_logits(model, IDS, N_IDS, N_IDS) : NULL;
    model_free(model);
    return logits;
}

enum { N_LOGIT_BYTES = N_IDS * 317 * 4 };

static void settings_of_gguf_are_honoured_or_refused(void **state)
{
    (void)state;
    static const struct {
        struct setting setting;
        const char *error; /* NULL: the model is the same */
    } CASES[] = {
        { { "llama.rope.scaling.factor", 'f', 1, NULL }, NULL },
        { { "llama.rope.scaling.type", 's', 0, "none" }, NULL },
        { { "llama.rope.scaling.type", 's', 0, "longrope" },
          "rope.scaling.type: longrope without a tensor rope_factors_short.weight" },
        { { "llama.rope.scaling.yarn_ext_factor", 'f', 1, NULL }, "yarn_ext_factor" },
        { { "llama.rope.scaling.yarn_ext_factor", 'f', -1, NULL }, NULL },
        { { "llama.rope.scaling.yarn_attn_factor", 'f', 2, NULL }, NULL },
        { { "llama.rope.scaling.yarn_attn_factor", 's', 0, "2" }, "yarn_attn_factor: a string" },
        { { "llama.rope.scaling.yarn_log_multiplier", 'f', 0.1, NULL }, "yarn_log_multiplier: 0.1" },
        { { "llama.rope.scaling.attn_factor", 'f', 2, NULL }, "attn_factor" },
        { { "llama.rope.scaling.original_context_length", 'u', 64, NULL }, NULL },
        { { "llama.rope.scaling.finetuned", 'b', 1, NULL }, NULL },
        { { "llama.rope.scaling.alpha", 'f', 1000, NULL }, "rope.scaling.alpha" },
        { { "llama.rope.freq_base_swa", 'f', 10000, NULL }, "rope.freq_base_swa" },
        { { "llama.attention.causal", 'b', 0, NULL }, "attention.causal: false" },
        { { "llama.attention.causal", 'b', 1, NULL }, NULL },
        { { "llama.attention.scale", 'f', 0.5, NULL }, "attention.scale" },
        { { "llama.attention.clamp_kqv", 'f', 8, NULL }, "attention.clamp_kqv" },
        { { "llama.attention.max_alibi_bias", 'f', 8, NULL }, "max_alibi_bias" },
        { { "llama.attention.sliding_window_pattern", 'a', 0, NULL },
          "sliding_window_pattern: an array of 2" },
        { { "llama.rope.dimension_sections", 'a', 0, NULL }, "dimension_sections: an array of 2" },
        { { "llama.attention.head_count", 'e', 8, NULL }, NULL },
        { { "llama.attention.head_count_kv", 'e', 2, NULL }, NULL },
        { { "llama.feed_forward_length", 'e', 160, NULL }, NULL },
        { { "llama.attention.head_count_kv", 'e', 3, NULL }, "KV heads 3" },
        { { "llama.attention.sliding_window_pattern", 'e', 1, NULL },
          "sliding_window_pattern: an array of 3" },
        { { "llama.logit_scale", 'f', 0.25, NULL }, "llama.logit_scale: 0.25" },
        { { "llama.residual_scale", 'f', 0.5, NULL }, "residual_scale" },
        { { "llama.embedding_scale", 'f', 12, NULL }, "embedding_scale" },
        { { "llama.final_logit_softcapping", 'f', 30, NULL }, "final_logit_softcapping" },
        { { "llama.expert_count", 'u', 8, NULL }, "expert_used_count: missing" },
        { { "llama.expert_count", 'u', 0, NULL }, NULL },
        { { "llama.expert_used_count", 'u', 0, NULL }, NULL },
        { { "llama.expert_used_count", 'u', 2, NULL }, "expert_used_count" },
        { { "llama.interleave_moe_layer_step", 'u', 1, NULL }, "interleave_moe_layer_step" },
        { { "llama.tensor_data_layout", 's', 0, "Meta AI original pth" }, NULL },
        { { "llama.use_parallel_residual", 'b', 1, NULL }, "use_parallel_residual" },
        { { "llama.pooling_type", 'u', 3, NULL }, NULL },
        { { "llama.pooling_type", 'u', 4, NULL },
          "llama.pooling_type is 4: ranking pairs of texts by a llama model is not supported" },
        { { "llama.something_new", 'u', 3, NULL }, "something_new: 3: tutti does not know this setting" },
        { { "general.something_new", 'u', 3, NULL }, NULL }, /* not of the architecture */
        { { "quantize.imatrix.entries_count", 'u', 3, NULL }, NULL },
        { { "general.type", 's', 0, "model" }, NULL },
        { { "general.type", 's', 0, "adapter" }, "this is an adapter" },
    };
    char said[4096];
    struct tutti_error err;
    float *base = gguf_logits(NULL, 0, NULL, said, sizeof said, &err);
    assert_non_null(base);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        float *got = gguf_logits(&CASES[i].setting, 1, NULL, said, sizeof said, &err);
        bool is_right = CASES[i].error
                            ? !got && strstr(err.text, CASES[i].error) && strstr(err.text, "m.gguf")
                            : got && memcmp(base, got, N_LOGIT_BYTES) == 0;
        if (!is_right)
            fail_msg("%s: %s, \"%s\"", CASES[i].setting.key, got ? "opened" : "refused", err.text);
        free(got);
    }
    /* Three ways to say the same. */
    static const struct setting LINEAR[][2] = {
        { { "llama.rope.scaling.type", 's', 0, "linear" }, { "llama.rope.scaling.factor", 'f', 4, NULL } },
        { { "llama.rope.scaling.factor", 'f', 4, NULL }, { "llama.rope.scaling.finetuned", 'b', 0, NULL } },
        { { "llama.rope.scale_linear", 'f', 4, NULL }, { "llama.rope.scaling.finetuned", 'b', 0, NULL } },
    };
    float *linear = NULL;
    for (int i = 0; i < 3; i++) {
        float *got = gguf_logits(LINEAR[i], 2, NULL, said, sizeof said, &err);
        assert_non_null(got);
        assert_memory_not_equal(base, got, N_LOGIT_BYTES);
        if (linear)
            assert_memory_equal(linear, got, N_LOGIT_BYTES);
        free(linear);
        linear = got;
    }
    free(linear);
    /* Unused tensors. */
    assert_null(gguf_logits(NULL, 0, "blk.1.attn_q.bias", said, sizeof said, &err));
    assert_non_null(strstr(err.text, "tensor blk.1.attn_q.bias: no llama model"));
    assert_null(gguf_logits(NULL, 0, "rope_factors_long.weight", said, sizeof said, &err));
    assert_non_null(strstr(err.text, "rope_factors_long.weight"));
    assert_null(gguf_logits(NULL, 0, "output.bias", said, sizeof said, &err));
    assert_non_null(
        strstr(err.text, "tensor output.bias: a bias of the output where its matrix is the embedding"));
    assert_null(gguf_logits(NULL, 0, "token_embd_norm.weight", said, sizeof said, &err));
    assert_non_null(strstr(err.text, "token_embd_norm.weight"));
    float *other = gguf_logits(NULL, 0, "cls.weight", said, sizeof said, &err);
    assert_non_null(other);
    assert_non_null(strstr(said, "1 tensor is unused: cls.weight"));
    free(other);
    free(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(unused_tensors_are_refused_or_listed, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(unused_tensors_of_mindspore_are_refused_or_listed, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_tied_output_that_differs_is_run, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(an_upload_without_a_configuration_of_its_quantization_is_named,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(settings_of_gguf_are_honoured_or_refused, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
