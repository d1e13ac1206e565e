#include "model/load/tokenizer_settings.h"

#include <stdio.h>
#include <string.h>

/* The special tokens by name, in the order in which transformers gives them ids. */
static const char *const NAMES[] = { "bos_token", "eos_token", "unk_token",  "sep_token",
                                     "pad_token", "cls_token", "mask_token", "additional_special_tokens" };
enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

const char *tokenizer_settings_text(const json_t *token)
{
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

static bool is_named_special(const json_t *settings, const char *text)
{
    for (int i = 0; i < N_NAMES; i++) {
        const json_t *value = json_object_get(settings, NAMES[i]);
        const char *own = tokenizer_settings_text(value);
        if (own && strcmp(own, text) == 0)
            return true;
        for (size_t k = 0; k < json_array_size(value); k++) {
            own = tokenizer_settings_text(json_array_get(value, k));
            if (own && strcmp(own, text) == 0)
                return true;
        }
    }
    return false;
}

static bool override_specials(json_t *settings, const json_t *map)
{
    bool ok = true;
    for (int i = 0; ok && i < N_NAMES; i++) {
        json_t *value = json_object_get(map, NAMES[i]);
        if (value)
            ok = json_object_set(settings, NAMES[i], value) == 0;
    }
    return ok;
}

static bool has_text(const json_t *decoder, const char *text)
{
    const char *id;
    json_t *token;
    json_object_foreach((json_t *)(uintptr_t)decoder, id, token)
    {
        const char *own = tokenizer_settings_text(token);
        if (own && strcmp(own, text) == 0)
            return true;
    }
    return false;
}

/* Adds tokens from {"text": id}, which were added in training. The file has no flags. */
static enum tutti_status add_tokens(json_t *settings, json_t *decoder, const json_t *tokens,
                                    const char *folder, struct tutti_error *err)
{
    const char *text;
    json_t *id;
    char key[32];
    bool ok = true;
    json_object_foreach((json_t *)(uintptr_t)tokens, text, id)
    {
        if (!json_is_integer(id))
            return error_set(err, TUTTI_E_FORMAT, "%s/added_tokens.json: the id of \"%.64s\" is no number",
                             folder, text);
        snprintf(key, sizeof key, "%lld", (long long)json_integer_value(id));
        if (json_object_get(decoder, key) || has_text(decoder, text))
            continue;
        bool is_special = is_named_special(settings, text);
        ok = ok &&
             json_object_set_new(decoder, key,
                                 json_pack("{s:s, s:b, s:b, s:b}", "content", text, "special", is_special,
                                           "normalized", !is_special, TOKENIZER_WITHOUT_FLAGS, 1)) == 0;
    }
    return ok ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", folder);
}

static enum tutti_status put_together(json_t *settings, const json_t *map, const json_t *tokens,
                                      const char *folder, struct tutti_error *err)
{
    json_t *decoder = json_object_get(settings, "added_tokens_decoder");
    bool ok = json_is_object(decoder) || override_specials(settings, map);
    if (ok && tokens && !json_is_object(decoder)) {
        decoder = json_object();
        ok = json_object_set_new(settings, "added_tokens_decoder", decoder) == 0;
    }
    if (!ok)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", folder);
    return tokens ? add_tokens(settings, decoder, tokens, folder, err) : TUTTI_OK;
}

enum tutti_status tokenizer_settings_read(json_t **out, const struct checkpoint *ck, struct tutti_error *err)
{
    json_t *settings = NULL, *map = NULL, *tokens = NULL;
    *out = NULL;
    enum tutti_status st = checkpoint_json(ck, "tokenizer_config.json", &settings, err);
    if (st == TUTTI_OK)
        st = checkpoint_json(ck, "special_tokens_map.json", &map, err);
    if (st == TUTTI_OK)
        st = checkpoint_json(ck, "added_tokens.json", &tokens, err);
    if (st == TUTTI_OK && !settings && (map || tokens)) {
        settings = json_object();
        if (!settings)
            st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", checkpoint_folder(ck));
    }
    if (st == TUTTI_OK && settings)
        st = put_together(settings, map, tokens, checkpoint_folder(ck), err);
    json_decref(map);
    json_decref(tokens);
    if (st == TUTTI_OK)
        *out = settings;
    else
        json_decref(settings);
    return st;
}

int32_t tokenizer_settings_pad(const json_t *settings, const struct checkpoint *ck,
                               const struct tokenizer *tok)
{
    const char *key = checkpoint_gguf(ck) ? "tokenizer.ggml.padding_token_id" : "pad_token_id";
    const char *text = tokenizer_settings_text(json_object_get(settings, "pad_token"));
    if (text) {
        int32_t id = tokenizer_find_control(tok, text);
        return id >= 0 ? id : tokenizer_find(tok, text, strlen(text));
    }
    const json_t *id = json_object_get(checkpoint_config(ck), key);
    json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    return value >= 0 && value < tokenizer_n_pieces(tok) ? (int32_t)value : -1;
}
