#include "checkpoint/mindspore/mindformers.h"

#include "base/files/mapping.h"
#include "base/json/json_field.h"
#include "base/json/json_type.h"
#include "base/limits.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum {
    MAX_YAML_BYTES = 1024 * 1024,
    MAX_DEPTH = 4,
    MAX_NODES = 10000 /* aliases may repeat large values */
};

/* ---- YAML as JSON ---- */

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++) {
        if (strcmp(text, *words) == 0)
            return true;
    }
    return false;
}

/* YAML 1.1's core types; MindFormers also spells null as Python does. */
static json_t *json_of_scalar(const yaml_node_t *node)
{
    static const char *const NULLS[] = { "", "~", "null", "Null", "NULL", "None", NULL };
    static const char *const TRUES[] = { "true", "True", "TRUE", NULL };
    static const char *const FALSES[] = { "false", "False", "FALSE", NULL };
    const char *text = (const char *)node->data.scalar.value;
    if (strlen(text) != node->data.scalar.length)
        return NULL; /* a zero byte */
    if (node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return json_string(text);
    if (is_one_of(text, NULLS))
        return json_null();
    if (is_one_of(text, TRUES))
        return json_true();
    if (is_one_of(text, FALSES))
        return json_false();
    char *end;
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    if (*end == '\0' && errno == 0)
        return json_integer(whole);
    double real = strtod(text, &end);
    if (*end == '\0' && isfinite(real))
        return json_real(real);
    return json_string(text);
}

/* NULL: too deep (an alias may refer to its parent), too large, invalid UTF-8, or out of memory. */
static json_t *json_of_node(yaml_document_t *document, const yaml_node_t *node, int depth, int *n_nodes)
{
    if (!node || depth > MAX_DEPTH || ++*n_nodes > MAX_NODES)
        return NULL;
    if (node->type == YAML_SCALAR_NODE)
        return json_of_scalar(node);
    bool is_right;
    json_t *out;
    if (node->type == YAML_MAPPING_NODE) {
        is_right = (out = json_object());
        for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
             is_right && pair < node->data.mapping.pairs.top; pair++) {
            const yaml_node_t *key = yaml_document_get_node(document, pair->key);
            const yaml_node_t *value = yaml_document_get_node(document, pair->value);
            is_right = key && key->type == YAML_SCALAR_NODE &&
                       json_object_set_new(out, (const char *)key->data.scalar.value,
                                           json_of_node(document, value, depth + 1, n_nodes)) == 0;
        }
    } else {
        is_right = (out = json_array());
        for (const yaml_node_item_t *item = node->data.sequence.items.start;
             is_right && item < node->data.sequence.items.top; item++) {
            const yaml_node_t *value = yaml_document_get_node(document, *item);
            is_right = json_array_append_new(out, json_of_node(document, value, depth + 1, n_nodes)) == 0;
        }
    }
    if (!is_right)
        json_decref(out);
    return is_right ? out : NULL;
}

/* The value of a mapping's key; NULL: none. */
static const yaml_node_t *value_of(yaml_document_t *document, const yaml_node_t *node, const char *name)
{
    if (!node || node->type != YAML_MAPPING_NODE)
        return NULL;
    for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
         pair++) {
        const yaml_node_t *key = yaml_document_get_node(document, pair->key);
        if (key && key->type == YAML_SCALAR_NODE && strcmp((const char *)key->data.scalar.value, name) == 0)
            return yaml_document_get_node(document, pair->value);
    }
    return NULL;
}

/* ---- names of settings in config.json ---- */

struct translation {
    json_t *config; /* MindFormers' settings, which become Hugging Face's */
    const char *path;
    enum tutti_status status; /* the first error stays */
    struct tutti_error *err;
};

static void refuse_setting(struct translation *t, const char *key, const char *what)
{
    if (t->status == TUTTI_OK)
        t->status = error_set(t->err, TUTTI_E_UNSUPPORTED, "%s: model_config.%s: %s is not supported",
                              t->path, key, what);
}

static void config_put(struct translation *t, const char *key, json_t *value)
{
    if (json_object_set_new(t->config, key, value) != 0 && t->status == TUTTI_OK)
        t->status = error_set(t->err, TUTTI_E_MEMORY, "%s: out of memory", t->path);
}

/* A number in lo..hi; fallback if it is absent or null. */
static double setting_number(struct translation *t, const char *key, double lo, double hi, double fallback)
{
    const json_t *value = json_object_get(t->config, key);
    if (!value || json_is_null(value))
        return fallback;
    double x = json_number_value(value);
    if (json_is_number(value) && x >= lo && x <= hi)
        return x;
    if (t->status == TUTTI_OK)
        t->status = error_set(t->err, TUTTI_E_FORMAT,
                              "%s: model_config.%s: %s, expected a number from %g to %g", t->path, key,
                              json_is_number(value) ? "out of range" : json_type_name(value), lo, hi);
    return lo;
}

static bool setting_is(const struct translation *t, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(t->config, key));
    return value && strcmp(value, text) == 0;
}

/* seq_length is the context of a run; the model's own maximum may be another key. */
static void put_context(struct translation *t, const char *key, int fallback)
{
    static const char *const NAMES[] = { "seq_length", "max_position_embedding", "max_position_embeddings" };
    double most = 0;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        double n = setting_number(t, NAMES[i], 1, LIMIT_CONTEXT, 0);
        most = n > most ? n : most;
    }
    config_put(t, key, json_integer(most > 0 ? (json_int_t)most : fallback));
}

/* The feed-forward width of LLaMA, computed by the rule in LLaMA's model.py, FeedForward. */
static void put_llama_width(struct translation *t)
{
    if (json_is_number(json_object_get(t->config, "intermediate_size")))
        return;
    double width = 4 * setting_number(t, "hidden_size", 1, LIMIT_DIMENSION, 4096);
    double multiple = floor(setting_number(t, "multiple_of", 1, LIMIT_DIMENSION, 256));
    double factor = setting_number(t, "ffn_dim_multiplier", 0, 1000, -1);
    if (factor >= 0)
        width = floor((factor + 0.01) * width);
    width = floor(2 * width / 3);
    config_put(t, "intermediate_size", json_integer((json_int_t)(multiple * ceil(width / multiple))));
}

static double yarn_scale(double factor, double weight)
{
    return factor <= 1 ? 1 : 0.1 * weight * log(factor) + 1;
}

/* scaling_factor is a number, or a mapping whose keys are those of Hugging Face's rope_scaling. */
static void put_llama_rope(struct translation *t)
{
    json_t *scaling = json_object_get(t->config, "scaling_factor"), *rope = NULL;
    double theta = setting_number(t, "theta", 1e-6, 1e12, 10000);
    const char *method = json_string_value(json_object_get(t->config, "extend_method"));
    if (!method || strcmp(method, "None") == 0) {
        config_put(t, "rope_theta", json_real(theta));
        return;
    }
    if (strcmp(method, "NTK") == 0) {
        theta *= setting_number(t, "scaling_factor", 1e-3, 1e6, 1);
    } else if (strcmp(method, "PI") == 0) {
        rope = json_pack("{s:s, s:f}", "type", "linear", "factor",
                         setting_number(t, "scaling_factor", 1e-3, 1e6, 1));
    } else if (json_is_object(scaling) && strcmp(method, "LLAMA3") == 0) {
        rope = json_deep_copy(scaling);
        json_object_set_new(rope, "type", json_string("llama3"));
    } else if (json_is_object(scaling) && strcmp(method, "YARN") == 0) {
        struct translation inner = { scaling, t->path, t->status, t->err };
        double factor = setting_number(&inner, "factor", 1, 1e6, 1);
        double scale = yarn_scale(factor, setting_number(&inner, "mscale", 0, 1e3, 1)) /
                       yarn_scale(factor, setting_number(&inner, "mscale_all_dim", 0, 1e3, 0));
        t->status = inner.status;
        rope = json_deep_copy(scaling);
        json_object_set_new(rope, "type", json_string("yarn"));
        json_object_set_new(rope, "attention_factor", json_real(scale));
        json_object_del(rope, "mscale");
        json_object_del(rope, "mscale_all_dim");
    } else {
        refuse_setting(t, "extend_method", method);
    }
    config_put(t, "rope_theta", json_real(theta));
    if (rope)
        config_put(t, "rope_scaling", rope);
}

static void finish_llama(struct translation *t)
{
    if (!json_is_number(json_object_get(
            t->config, "num_key_value_heads"))) /* differs from the default of Hugging Face's class */
        config_put(t, "num_key_value_heads", json_incref(json_object_get(t->config, "num_attention_heads")));
    put_llama_width(t);
    put_llama_rope(t);
    put_context(t, "max_position_embeddings", 2048);
    if (json_is_on(t->config, "attn_proj_has_bias"))
        refuse_setting(t, "attn_proj_has_bias", "a bias after attention");
    const json_t *experts = json_object_get(json_object_get(t->config, "moe_config"), "expert_num");
    if (json_number_value(experts) > 1)
        refuse_setting(t, "moe_config", "a mixture of experts");
    if (json_is_on(t->config, "qkv_has_bias"))
        config_put(t, "model_type", json_string("qwen2"));
}

static void finish_chatglm(struct translation *t)
{
    put_context(t, "seq_length", 2048);
    if (json_is_on(t->config, "use_rearrange_rope"))
        refuse_setting(t, "use_rearrange_rope", "rows of q and k in another order");
}

static void finish_chatglm_6b(struct translation *t)
{
    put_context(t, "max_sequence_length", 512);
    if (!setting_is(t, "layernorm_order", "post"))
        refuse_setting(t, "layernorm_order", "anything but \"post\"");
    if (!setting_is(t, "activation_func", "GELU"))
        refuse_setting(t, "activation_func", "anything but \"GELU\"");
}

/* MindSpore's "gelu" is the approximation by tanh. */
static void finish_gpt2(struct translation *t)
{
    double width = setting_number(t, "hidden_size", 1, LIMIT_DIMENSION / 4.0, 768);
    put_context(t, "n_positions", 1024);
    config_put(t, "n_embd", json_integer((json_int_t)width));
    config_put(t, "n_inner", json_integer((json_int_t)(width * setting_number(t, "expand_ratio", 1, 64, 4))));
    if (setting_is(t, "hidden_act", "gelu"))
        config_put(t, "activation_function", json_string("gelu_new"));
    else
        refuse_setting(t, "hidden_act", "anything but \"gelu\"");
    if (json_is_on(t->config, "post_layernorm_residual"))
        refuse_setting(t, "post_layernorm_residual", "a residual taken after the norm");
}

static void finish_bloom(struct translation *t)
{
    put_context(t, "seq_length", 1024);
    if (setting_number(t, "expand_ratio", 1, 64, 4) != 4)
        refuse_setting(t, "expand_ratio", "anything but 4");
    if (!setting_is(t, "hidden_act", "gelu"))
        refuse_setting(t, "hidden_act", "anything but \"gelu\"");
}

static void finish_pangu(struct translation *t)
{
    put_context(t, "seq_length", 1024);
    if (json_is_on(t->config, "use_moe") || setting_number(t, "expert_num", 0, 1e6, 1) > 1)
        refuse_setting(t, "expert_num", "a mixture of experts");
}

enum { MAX_RENAMES = 5 };

struct kind {
    const char *class; /* type of a YAML file's model_config */
    const char *saved; /* model_type of a config.json that MindFormers saved */
    const char *model_type;
    struct {
        const char *from, *to;
    } renames[MAX_RENAMES];
    /* JSON: defaults that differ from those of Hugging Face's class, or that it lacks. */
    const char *defaults;
    void (*finish)(struct translation *t);
};

static const struct kind KINDS[] = {
    { .class = "LlamaConfig",
      .saved = "llama",
      .model_type = "llama",
      .renames = { { "num_layers", "num_hidden_layers" },
                   { "num_heads", "num_attention_heads" },
                   { "n_kv_heads", "num_key_value_heads" } },
      .defaults = "{\"num_layers\": 32, \"num_heads\": 32, \"hidden_size\": 4096, \"vocab_size\": 32000,"
                  " \"rms_norm_eps\": 1e-5, \"bos_token_id\": 1, \"eos_token_id\": 2}",
      .finish = finish_llama },
    { .class = "ChatGLM2Config",
      .saved = "glm2",
      .model_type = "chatglm",
      .defaults = "{\"num_layers\": 28, \"padded_vocab_size\": 65024, \"hidden_size\": 4096, "
                  "\"ffn_hidden_size\": 13696,"
                  " \"kv_channels\": 128, \"num_attention_heads\": 32, \"layernorm_epsilon\": 1e-5, "
                  "\"add_qkv_bias\": true,"
                  " \"multi_query_group_num\": 2, \"eos_token_id\": 2}",
      .finish = finish_chatglm },
    { .class = "GLMConfig",
      .saved = "glm",
      .model_type = "chatglm",
      .renames = { { "num_heads", "num_attention_heads" } },
      .defaults =
          "{\"num_layers\": 28, \"vocab_size\": 130528, \"hidden_size\": 4096, \"inner_hidden_size\": 16384,"
          " \"num_heads\": 32, \"layernorm_epsilon\": 1e-5, \"position_encoding_2d\": true,"
          " \"layernorm_order\": \"post\", \"activation_func\": \"GELU\", \"bos_token_id\": 130004,"
          " \"eos_token_id\": 130005, \"mask_token_id\": 130000, \"gmask_token_id\": 130001}",
      .finish = finish_chatglm_6b },
    { .class = "GPT2Config",
      .saved = "gpt2",
      .model_type = "gpt2",
      .renames = { { "num_layers", "n_layer" }, { "num_heads", "n_head" } },
      .defaults = "{\"num_layers\": 12, \"num_heads\": 12, \"hidden_size\": 768, \"vocab_size\": 50257,"
                  " \"hidden_act\": \"gelu\", \"eos_token_id\": 50256}",
      .finish = finish_gpt2 },
    { .class = "BloomConfig",
      .saved = "bloom",
      .model_type = "bloom",
      .renames = { { "num_layers", "n_layer" }, { "num_heads", "n_head" } },
      .defaults = "{\"num_layers\": 2, \"num_heads\": 8, \"hidden_size\": 64, \"vocab_size\": 250880,"
                  " \"hidden_act\": \"gelu\", \"bos_token_id\": 1, \"eos_token_id\": 2}",
      .finish = finish_bloom },
    { .class = "PanguAlphaConfig",
      .saved = "pangualpha",
      .model_type = "pangualpha",
      .defaults = "{\"num_layers\": 32, \"num_heads\": 32, \"hidden_size\": 2560, \"vocab_size\": 40000,"
                  " \"eos_token_id\": 8}",
      .finish = finish_pangu },
};

static const struct kind *find_kind(const char *name, bool is_class)
{
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        if (strcmp(name, is_class ? KINDS[i].class : KINDS[i].saved) == 0)
            return &KINDS[i];
    }
    return NULL;
}

static enum tutti_status translate(struct translation *t, const struct kind *kind)
{
    json_t *defaults = json_loads(kind->defaults ? kind->defaults : "{}", 0, NULL);
    if (!defaults || json_object_update_missing(t->config, defaults) != 0)
        t->status = error_set(t->err, TUTTI_E_MEMORY, "%s: out of memory", t->path);
    json_decref(defaults);
    config_put(t, "model_type", json_string(kind->model_type));
    for (int i = 0; i < MAX_RENAMES && kind->renames[i].from; i++) {
        json_t *value = json_object_get(t->config, kind->renames[i].from);
        if (value)
            config_put(t, kind->renames[i].to, json_incref(value));
    }
    if (t->status == TUTTI_OK)
        kind->finish(t);
    return t->status;
}

static enum tutti_status unknown_kind(const char *path, const char *key, const char *found,
                                      struct tutti_error *err)
{
    return error_set(
        err, TUTTI_E_UNSUPPORTED,
        "%s: %s \"%.64s\" is not supported, expected LlamaConfig, ChatGLM2Config, GLMConfig, GPT2Config, "
        "BloomConfig or PanguAlphaConfig",
        path, key, found);
}

enum tutti_status mindformers_translate(json_t *config, const char *path, struct tutti_error *err)
{
    struct translation t = { .config = config, .path = path, .err = err };
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (!json_object_get(config, "mindformers_version") || !type ||
        json_object_get(config, "num_hidden_layers")) /* Hugging Face's own names, saved again */
        return TUTTI_OK;
    const struct kind *kind = find_kind(type, false);
    return kind ? translate(&t, kind) : unknown_kind(path, "model_type", type, err);
}

/* ---- a file ---- */

/* The settings do not distinguish ChatGLM3 from ChatGLM2, but the tokenizer's class does. */
static void note_tokenizer(struct translation *t, yaml_document_t *document, const yaml_node_t *root)
{
    const yaml_node_t *tokenizer = value_of(document, value_of(document, root, "processor"), "tokenizer");
    const yaml_node_t *type = value_of(document, tokenizer, "type");
    if (type && type->type == YAML_SCALAR_NODE &&
        strcmp((const char *)type->data.scalar.value, "ChatGLM3Tokenizer") == 0)
        config_put(t, "_name_or_path", json_string("chatglm3-6b"));
}

static enum tutti_status read_document(json_t **out, yaml_document_t *document, const char *path,
                                       struct tutti_error *err)
{
    const yaml_node_t *root = yaml_document_get_root_node(document);
    const yaml_node_t *settings = value_of(document, value_of(document, root, "model"), "model_config");
    const yaml_node_t *type = value_of(document, settings, "type");
    if (!type || type->type != YAML_SCALAR_NODE)
        return TUTTI_OK;
    struct translation t = { .path = path, .err = err };
    const char *class = (const char *)type->data.scalar.value;
    const struct kind *kind = find_kind(class, true);
    if (!kind)
        return unknown_kind(path, "model_config.type", class, err);
    int n_nodes = 0;
    t.config = json_of_node(document, settings, 0, &n_nodes);
    if (!t.config)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: model_config: expected at most %d names and values, at most %d levels deep",
                         path, MAX_NODES, MAX_DEPTH);
    note_tokenizer(&t, document, root);
    enum tutti_status st = translate(&t, kind);
    if (st == TUTTI_OK)
        *out = t.config;
    else
        json_decref(t.config);
    return st;
}

enum tutti_status mindformers_read(json_t **out, const char *path, struct tutti_error *err)
{
    *out = NULL;
    struct mapping map;
    enum tutti_status st = mapping_open(&map, path, err);
    if (st != TUTTI_OK)
        return st;
    yaml_parser_t parser;
    if (map.n_bytes > MAX_YAML_BYTES) {
        st = error_set(err, TUTTI_E_FORMAT, "%s: %zu bytes, expected at most %d", path, map.n_bytes,
                       MAX_YAML_BYTES);
    } else if (!yaml_parser_initialize(&parser)) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    } else {
        yaml_document_t document;
        yaml_parser_set_input_string(&parser, map.bytes ? map.bytes : (const unsigned char *)"", map.n_bytes);
        if (yaml_parser_load(&parser, &document)) {
            st = read_document(out, &document, path, err);
            yaml_document_delete(&document);
        } else {
            st = error_set(err, parser.error == YAML_MEMORY_ERROR ? TUTTI_E_MEMORY : TUTTI_E_FORMAT,
                           "%s: %s (line %zu)", path, parser.problem ? parser.problem : "no YAML",
                           parser.problem_mark.line + 1);
        }
        yaml_parser_delete(&parser);
    }
    mapping_close(&map);
    return st;
}
