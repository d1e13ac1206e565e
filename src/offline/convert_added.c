/* Writes the added tokens of a tokenizer into a GGUF file. */
#include "model/load/tokenizer_bytes.h"
#include "offline/convert_meta.h"

#include <stdlib.h>
#include <string.h>

static bool set_flag(json_t *token, const char *key, bool is_on)
{
    return !is_on || json_object_set_new(token, key, json_true()) == 0;
}

static bool add_added_token(json_t *list, const struct tokenizer *tok, struct added_token added)
{
    struct piece piece = tokenizer_piece(tok, added.id);
    json_t *token = json_pack("{s:i, s:o*}", "id", (int)added.id, "content",
                              json_stringn(piece.bytes, piece.n_bytes));
    return token && json_object_get(token, "content") && set_flag(token, "special", added.is_special) &&
           set_flag(token, "lstrip", added.takes_left_blanks) &&
           set_flag(token, "rstrip", added.takes_right_blanks) &&
           set_flag(token, "single_word", added.is_single_word) &&
           json_object_set_new(token, "normalized", json_boolean(added.is_normalized)) == 0 &&
           set_flag(token, "in_model", tokenizer_is_mark_of_model(tok, added.id)) &&
           json_array_append_new(list, token) == 0;
}

enum tutti_status convert_added_tokens(struct gguf_writer *w, const struct tokenizer *tok, const char *name,
                                       struct tutti_error *err)
{
    json_t *list = json_array();
    bool ok = list;
    for (size_t i = 0; ok && i < tokenizer_n_added(tok); i++)
        ok = add_added_token(list, tok, tokenizer_added(tok, i));
    char *text = ok ? json_dumps(list, JSON_COMPACT) : NULL;
    json_decref(list);
    if (!text)
        return error_out_of_memory(name, err);
    gguf_writer_string(w, TOKENIZER_ADDED_KEY, text, strlen(text));
    free(text);
    if (tokenizer_prefixes_first_only(tok))
        gguf_writer_bool(w, TOKENIZER_PREFIX_KEY, true);
    return TUTTI_OK;
}
