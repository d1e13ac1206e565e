/* Builds a tokenizer from tokenizer.json of the Hugging Face tokenizers library. */
#include "tokenizer/json/byte_config.h"
#include "tokenizer/json/byte_files.h"
#include "tokenizer/json/json_reader.h"

#include <stdio.h>
#include <string.h>

enum tutti_status json_reader_out_of_memory(const struct json_reader *r)
{
    return error_set(r->err, TUTTI_E_MEMORY, "%s: out of memory", r->name);
}

const char *json_reader_type(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "";
}

enum tutti_status json_reader_unsupported(const struct json_reader *r, const char *field, const json_t *part,
                                          const char *expected)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return error_set(r->err, TUTTI_E_UNSUPPORTED, "%s: %s is of type %.64s, expected %s", r->name, field,
                     type ? type : "(none)", expected);
}

enum tutti_status json_reader_text(const struct json_reader *r, const char *field, const json_t *part,
                                   const char *key, struct buf *out)
{
    const json_t *text = json_object_get(part, key);
    const char *type = json_reader_type(part);
    if (!json_is_string(text))
        return error_set(r->err, TUTTI_E_FORMAT, "%s: %s: %s%s%s is no text", r->name, field, type,
                         *type ? ": " : "", key);
    return buf_reserve(out, json_string_length(text) + 1) &&
                   buf_add(out, json_string_value(text), json_string_length(text))
               ? TUTTI_OK
               : json_reader_out_of_memory(r);
}

static enum tutti_status step_unsupported(const struct json_reader *r, const struct json_steps *kinds,
                                          const json_t *part)
{
    char expected[256];
    size_t n = 0;
    for (const struct json_step *s = kinds->steps; s->type && n < sizeof expected; s++)
        n += (size_t)snprintf(expected + n, sizeof expected - n, "%s%s", n > 0 ? ", " : "", s->type);
    if (n < sizeof expected)
        snprintf(expected + n, sizeof expected - n, " or Sequence");
    return json_reader_unsupported(r, kinds->field, part, expected);
}

static enum tutti_status read_steps(struct json_reader *r, const struct json_steps *kinds, const json_t *part,
                                    int depth)
{
    const char *type = json_reader_type(part);
    for (const struct json_step *s = kinds->steps; s->type; s++) {
        if (strcmp(type, s->type) == 0)
            return s->read(r, part);
    }
    if (strcmp(type, "Sequence") != 0 || depth > MAX_JSON_STEP_DEPTH)
        return step_unsupported(r, kinds, part);
    const json_t *list = json_object_get(part, kinds->list);
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++)
        st = read_steps(r, kinds, json_array_get(list, i), depth + 1);
    return st;
}

enum tutti_status json_read_steps(struct json_reader *r, const struct json_steps *kinds, const json_t *part)
{
    return !part || json_is_null(part) ? TUTTI_OK : read_steps(r, kinds, part, 0);
}

static enum tutti_status read_added(struct json_reader *r, const json_t *list)
{
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *id = json_object_get(entry, "id");
        st = json_is_integer(id)
                 ? byte_config_add(r->tok, entry, json_integer_value(id), r->name, r->err)
                 : error_set(r->err, TUTTI_E_FORMAT, "%s: added_tokens[%zu].id is no number", r->name, i);
    }
    return st;
}

static bool is_set(const json_t *model, const char *key)
{
    const json_t *value = json_object_get(model, key);
    return json_is_true(value) || (json_is_string(value) && json_string_length(value) > 0);
}

/* If pre-tokenizer, merges and decoder all use the alphabet of byte_map.h (as in most models),
 * tokens are stored as bytes, which is faster. The last step of the pre-tokenizer is then
 * omitted. */
static void choose_bytes(struct json_reader *r, const json_t *root)
{
    struct byte_level *level = r->tok->level;
    const json_t *model = json_object_get(root, "model");
    bool writes_bytes = false;
    for (int i = 0; i < level->pre.n_steps; i++)
        writes_bytes |= level->pre.steps[i].kind == PRE_BYTES;
    level->has_characters = !writes_bytes || strcmp(json_model_type(model), "BPE") != 0 ||
                            is_set(model, "byte_fallback") || is_set(model, "continuing_subword_prefix") ||
                            is_set(model, "end_of_word_suffix") ||
                            !json_decoder_is_of_bytes(json_object_get(root, "decoder"));
    for (int i = 0; i < level->normalizers.n; i++)
        level->has_characters |= level->normalizers.steps[i].kind == NORMALIZE_BYTES;
    if (level->has_characters)
        return;
    level->spells_words = level->pre.steps[level->pre.n_steps - 1].kind != PRE_BYTES;
    level->pre.n_steps -= !level->spells_words;
}

static enum tutti_status read_all_parts(struct json_reader *r, const json_t *root, const json_t *config)
{
    enum tutti_status st = json_read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"));
    if (st == TUTTI_OK)
        st = json_read_normalizer(r, json_object_get(root, "normalizer"));
    choose_bytes(r, root);
    if (st == TUTTI_OK && r->tok->level->has_characters)
        st = json_read_decoder(r, json_object_get(root, "decoder"));
    if (st == TUTTI_OK)
        st = json_read_model(r, json_object_get(root, "model"));
    if (st == TUTTI_OK)
        st = read_added(r, json_object_get(root, "added_tokens"));
    if (st == TUTTI_OK)
        st = byte_config_add_all(r->tok, config, r->name, r->err);
    if (st == TUTTI_OK)
        st = byte_config_add_named(r->tok, config, r->name, r->err);
    if (st == TUTTI_OK)
        st = byte_level_finish(r->tok, false, r->name, r->err);
    if (st == TUTTI_OK)
        st = json_read_post_processor(r, json_object_get(root, "post_processor"));
    /* Without a post-processor, a class that has no own adds nothing either. */
    r->tok->affixes.is_known |= json_object_get(config, "tokenizer_class") != NULL;
    if (st == TUTTI_OK)
        st = byte_config_specials(r->tok, config, r->name, r->err);
    r->tok->affixes.is_known = true;
    return st;
}

enum tutti_status tokenizer_from_json_root(struct tokenizer **out, const json_t *root, const char *name,
                                           const json_t *config, struct tutti_error *err)
{
    struct json_reader r = { .tok = byte_level_new(), .name = name, .err = err };
    r.adds_prefix = byte_config_prefix(config);
    if (!r.tok)
        return error_out_of_memory(name, err);
    return tokenizer_give(out, r.tok, read_all_parts(&r, root, config));
}

enum tutti_status tokenizer_from_json(struct tokenizer **out, const struct byte_file *file,
                                      const json_t *config, struct tutti_error *err)
{
    json_t *root = NULL;
    enum tutti_status st = byte_config_parse(&root, file->bytes, file->n_bytes, file->name, err);
    if (st == TUTTI_OK)
        st = tokenizer_from_json_root(out, root, file->name, config, err);
    json_decref(root);
    return st;
}
