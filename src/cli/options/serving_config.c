/* https://gitee.com/mindspore/llm-serving, configs/: one mapping of sections, each a mapping of
 * settings; of a list the last entry is used. */
#include "cli/options/serving_config.h"

#include "base/limits.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MAX_FILE_BYTES = 1024 * 1024, MAX_SETTINGS = 1024 };

struct config_reader {
    struct serving_config *out;
    yaml_document_t document;
    const char *path;
    int64_t port, n_blocks, block_size, max_context, max_seqs; /* port: -1, others: 0: not set */
    int n_settings;
    struct tutti_error *err;
};

static const char *scalar_text(const yaml_node_t *node)
{
    return node && node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
}

/* A scalar, or the last scalar of a list. */
static const char *last_text(struct config_reader *r, const yaml_node_t *node)
{
    if (!node || node->type != YAML_SEQUENCE_NODE)
        return scalar_text(node);
    const yaml_node_item_t *begin = node->data.sequence.items.start, *top = node->data.sequence.items.top;
    return top > begin ? scalar_text(yaml_document_get_node(&r->document, top[-1])) : NULL;
}

static enum tutti_status wrong_value(struct config_reader *r, const char *name, const char *expected,
                                     const char *found)
{
    return error_set(r->err, TUTTI_E_FORMAT, "%s: %s must be %s, found %.64s", r->path, name, expected,
                     found ? found : "none");
}

static enum tutti_status read_yaml_number(struct config_reader *r, const char *name, const char *text,
                                          int64_t max, int64_t *out)
{
    char *end = NULL, expected[64];
    errno = 0;
    long long number = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || errno || number < 1 || number > max) {
        snprintf(expected, sizeof expected, "a whole number from 1 to %lld", (long long)max);
        return wrong_value(r, name, expected, text);
    }
    *out = number;
    return TUTTI_OK;
}

static enum tutti_status read_text(struct config_reader *r, const char *name, const char *text, char *out,
                                   size_t n_bytes)
{
    if (!text || !*text || strlen(text) >= n_bytes)
        return wrong_value(r, name, "a text of 1 to 255 bytes", text);
    memcpy(out, text, strlen(text) + 1);
    return TUTTI_OK;
}

static enum tutti_status add_unused(struct config_reader *r, const char *name)
{
    if (!buf_printf(&r->out->unused, "%s%.128s", r->out->unused.n_bytes ? ", " : "", name))
        return error_out_of_memory(r->path, r->err);
    return TUTTI_OK;
}

/* name: "section.setting". */
static enum tutti_status read_setting(struct config_reader *r, const char *name, const yaml_node_t *node)
{
    static const struct {
        const char *name;
        size_t offset; /* in struct config_reader; an int64_t */
        int64_t max;
        bool is_least; /* of several settings, the smallest counts */
    } NUMBERS[] = {
        { "serving_config.server_port", offsetof(struct config_reader, port), 65535, false },
        { "pa_config.num_blocks", offsetof(struct config_reader, n_blocks), INT_MAX, false },
        { "pa_config.block_size", offsetof(struct config_reader, block_size), INT_MAX, false },
        { "pa_config.decode_seq_length", offsetof(struct config_reader, max_context), INT_MAX, true },
        { "model_config.seq_length", offsetof(struct config_reader, max_context), INT_MAX, true },
        { "model_config.max_generate_length", offsetof(struct config_reader, max_context), INT_MAX, true },
        { "model_config.decode_batch_size", offsetof(struct config_reader, max_seqs), LIMIT_SEQS, false },
    };
    const char *text = last_text(r, node);
    if (!strcmp(name, "serving_config.server_ip"))
        return read_text(r, name, text, r->out->host, sizeof r->out->host);
    if (!strcmp(name, "model_config.model_name"))
        return read_text(r, name, text, r->out->model_name, sizeof r->out->model_name);
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
        int64_t *out = (int64_t *)(void *)((char *)r + NUMBERS[i].offset), number = 0;
        if (strcmp(name, NUMBERS[i].name) != 0)
            continue;
        enum tutti_status st = read_yaml_number(r, name, text, NUMBERS[i].max, &number);
        if (st == TUTTI_OK && (!NUMBERS[i].is_least || *out == 0 || number < *out))
            *out = number;
        return st;
    }
    /* Both values describe what tutti always does. */
    bool is_continuous = text && !strcmp(text, "continuous");
    bool is_paged = text && (!strcmp(text, "True") || !strcmp(text, "true"));
    if ((is_continuous && strstr(name, "batching_strategy")) ||
        (is_paged && !strcmp(name, "model_config.page_attention")))
        return TUTTI_OK;
    return add_unused(r, name);
}

/* A section that is no mapping would lose its settings. An empty one has none. */
static enum tutti_status check_section(struct config_reader *r, const char *name, const yaml_node_t *value)
{
    static const char *const SECTIONS[] = { "serving_config", "model_config", "pa_config" };
    const char *text = scalar_text(value);
    bool is_empty = text && (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
    for (size_t i = 0; i < sizeof SECTIONS / sizeof *SECTIONS; i++)
        if (strcmp(name, SECTIONS[i]) == 0 && !is_empty && (!value || value->type != YAML_MAPPING_NODE))
            return error_set(r->err, TUTTI_E_FORMAT, "%s: line %zu: %s must be a mapping of settings",
                             r->path, value ? value->start_mark.line + 1 : 1, name);
    return TUTTI_OK;
}

/* Whether an earlier pair of the mapping has the same key. */
static bool is_duplicate(struct config_reader *r, const yaml_node_pair_t *first, const yaml_node_pair_t *pair,
                         const char *key)
{
    for (; first < pair; first++) {
        const char *other = scalar_text(yaml_document_get_node(&r->document, first->key));
        if (other && strcmp(other, key) == 0)
            return true;
    }
    return false;
}

static enum tutti_status read_mapping(struct config_reader *r, const yaml_node_t *node, const char *section)
{
    enum tutti_status st = TUTTI_OK;
    const yaml_node_pair_t *pair = node->data.mapping.pairs.start, *top = node->data.mapping.pairs.top;
    for (; st == TUTTI_OK && pair < top; pair++) {
        const char *key = scalar_text(yaml_document_get_node(&r->document, pair->key));
        const yaml_node_t *value = yaml_document_get_node(&r->document, pair->value);
        char name[256];
        if (!key || ++r->n_settings > MAX_SETTINGS)
            return error_set(r->err, TUTTI_E_FORMAT, "%s: line %zu: %s", r->path, node->start_mark.line + 1,
                             key ? "more than 1024 settings" : "the name of a setting must be a text");
        snprintf(name, sizeof name, "%s%s%.100s", section ? section : "", section ? "." : "", key);
        if (is_duplicate(r, node->data.mapping.pairs.start, pair, key))
            return error_set(r->err, TUTTI_E_FORMAT, "%s: line %zu: duplicate key %s", r->path,
                             yaml_document_get_node(&r->document, pair->key)->start_mark.line + 1, name);
        if (!section)
            st = check_section(r, name, value);
        if (st != TUTTI_OK)
            return st;
        if (!section && value && value->type == YAML_MAPPING_NODE)
            st = read_mapping(r, value, name);
        else
            st = read_setting(r, name, value);
    }
    return st;
}

static enum tutti_status load_yaml(struct config_reader *r, FILE *file)
{
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser))
        return error_out_of_memory(r->path, r->err);
    yaml_parser_set_input_file(&parser, file);
    enum tutti_status st = TUTTI_OK;
    if (!yaml_parser_load(&parser, &r->document)) {
        st = error_set(r->err, parser.error == YAML_MEMORY_ERROR ? TUTTI_E_MEMORY : TUTTI_E_FORMAT,
                       "%s: line %zu, column %zu: %s", r->path, parser.problem_mark.line + 1,
                       parser.problem_mark.column + 1, parser.problem ? parser.problem : "no YAML");
        yaml_parser_delete(&parser);
        return st;
    }
    yaml_parser_delete(&parser);
    const yaml_node_t *root = yaml_document_get_root_node(&r->document);
    if (root && root->type == YAML_MAPPING_NODE)
        st = read_mapping(r, root, NULL);
    else
        st = error_set(r->err, TUTTI_E_FORMAT, "%s: expected a mapping of sections, found %s", r->path,
                       root ? "something else" : "nothing");
    yaml_document_delete(&r->document);
    return st;
}

enum tutti_status serving_config_read(struct serving_config *out, const char *path, struct tutti_error *err)
{
    *out = (struct serving_config){ 0 };
    struct config_reader r = { .out = out, .path = path, .port = -1, .err = err };
    FILE *file = fopen(path, "rb");
    if (!file)
        return error_from_errno(path, err);
    enum tutti_status st = TUTTI_OK;
    if (fseek(file, 0, SEEK_END) != 0 || ftell(file) > MAX_FILE_BYTES || fseek(file, 0, SEEK_SET) != 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: no file of at most %d bytes", path, MAX_FILE_BYTES);
    if (st == TUTTI_OK)
        st = load_yaml(&r, file);
    fclose(file);
    out->port = (int)r.port;
    out->max_context = (int)r.max_context;
    out->max_seqs = (int)r.max_seqs;
    if (st == TUTTI_OK && (r.n_blocks > 0) != (r.block_size > 0))
        st = error_set(err, TUTTI_E_FORMAT, "%s: pa_config must have both num_blocks and block_size", path);
    if (st == TUTTI_OK && r.n_blocks > 0 &&
        __builtin_mul_overflow(r.n_blocks, r.block_size, &out->n_kv_tokens))
        st = error_set(err, TUTTI_E_FORMAT, "%s: pa_config holds too many blocks", path);
    return st;
}

void serving_config_clear(struct serving_config *config)
{
    buf_clear(&config->unused);
}
