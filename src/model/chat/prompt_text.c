/* Converts a plain-text prompt to ids: adds the model's prefix and suffix, and parses special
 * tokens if the caller trusts the text. */
#include "model/chat/chat.h"

#include <string.h>

/* Drops the prefix if the text itself begins with it. */
static void drop_second_prefix(struct ids *list, size_t n_prefix)
{
    size_t n_text = list->n - n_prefix;
    if (n_prefix == 0 || n_text < n_prefix ||
        memcmp(list->ids, list->ids + n_prefix, n_prefix * sizeof *list->ids) != 0)
        return;
    memmove(list->ids, list->ids + n_prefix, n_text * sizeof *list->ids);
    list->n = n_text;
}

/* Adds the suffix, unless the text already ends with it. */
static enum tutti_status add_suffix(const struct model *model, bool parses_special, struct ids *out,
                                    struct tutti_error *err)
{
    size_t n_text = out->n;
    enum tutti_status st = model_text_suffix(model, out, err);
    size_t n_suffix = out->n - n_text;
    if (st == TUTTI_OK && parses_special && n_suffix > 0 && n_text >= n_suffix &&
        memcmp(out->ids + n_text - n_suffix, out->ids + n_text, n_suffix * sizeof *out->ids) == 0)
        out->n = n_text;
    return st;
}

enum tutti_status model_check_rows(const struct model *model, const struct ids *ids, const char *param,
                                   struct tutti_error *err)
{
    const struct tokenizer *tok = model->tokenizer;
    if (!tok || tokenizer_n_pieces(tok) <= model->desc.n_vocab)
        return TUTTI_OK;
    for (size_t i = 0; i < ids->n; i++) {
        int32_t id = ids->ids[i];
        if (id < model->desc.n_vocab || id >= tokenizer_n_pieces(tok))
            continue;
        struct piece piece = tokenizer_piece(tok, id);
        return error_set_param(
            err, TUTTI_E_ARGUMENT, param,
            "the prompt contains the token \"%.*s\" (id %d), but the model's embedding has %d rows",
            (int)(piece.n_bytes < 64 ? piece.n_bytes : 64), piece.bytes, id, model->desc.n_vocab);
    }
    return TUTTI_OK;
}

enum tutti_status model_encode_text(const struct model *model, const struct model_text *text, struct ids *out,
                                    struct tutti_error *err)
{
    enum tutti_status st = text->add_special ? model_text_prefix(model, out, err) : TUTTI_OK;
    size_t n_prefix = out->n;
    if (st == TUTTI_OK && text->parse_special)
        st = chat_encode_trusted(model->tokenizer, text->bytes, text->n_bytes, out, err);
    else if (st == TUTTI_OK && !tokenizer_encode(model->tokenizer, text->bytes, text->n_bytes, out))
        st = tokenizer_encode_error(out, err);
    if (st != TUTTI_OK || !text->add_special)
        return st;
    if (text->parse_special) {
        drop_second_prefix(out, n_prefix);
        struct prefix prefix = model_find_prefix(&model->desc, out->ids, (int)out->n);
        if (model->desc.has_prefix && !model->desc.is_encoder && !prefix.has_no_end)
            return TUTTI_OK; /* the text marks the end of its prefix itself */
    }
    return add_suffix(model, text->parse_special, out, err);
}

enum tutti_status model_encode_pair(const struct model *model, const struct model_text *text,
                                    const char *pair, size_t n_pair_bytes, struct ids *out, int *second,
                                    struct tutti_error *err)
{
    const struct token_affixes *affixes = tokenizer_affixes(model->tokenizer);
    struct ids rest = { .max = out->max };
    if (affixes->n_between == 0)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "model %s: its tokenizer's files do not say how the two texts of a pair are joined",
                         model->name);
    enum tutti_status st = model_text_prefix(model, out, err);
    if (st == TUTTI_OK && !tokenizer_encode(model->tokenizer, text->bytes, text->n_bytes, out))
        st = tokenizer_encode_error(out, err);
    if (st == TUTTI_OK && !ids_add_all(out, affixes->between, (size_t)affixes->n_between))
        st = chat_out_of_memory(err);
    *second = (int)out->n;
    if (st == TUTTI_OK && !tokenizer_encode(model->tokenizer, pair, n_pair_bytes, &rest)) {
        st = tokenizer_encode_error(&rest, err);
        out->is_full = rest.is_full;
    }
    if (st == TUTTI_OK && !ids_add_all(out, rest.ids, rest.n))
        st = chat_out_of_memory(err);
    ids_clear(&rest);
    return st == TUTTI_OK ? model_text_suffix(model, out, err) : st;
}
