#include "model/description/stops.h"

#include "base/json/json_type.h"
#include "base/log.h"
#include "checkpoint/gguf/gguf.h"
#include "tokenizer/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct stop_list {
    struct model_desc *desc;
    bool warns;
    struct tutti_error *err;
};

static enum tutti_status add_stop(const struct stop_list *l, int64_t id, const char *source)
{
    struct model_desc *d = l->desc;
    for (int i = 0; i < d->n_stop_ids; i++) {
        if (d->stop_ids[i] == id)
            return TUTTI_OK;
    }
    if (id < 0 || id >= d->n_vocab) {
        if (l->warns)
            log_warn("%s: id %" PRId64 " lies outside the vocabulary of %d, so it ends no answer", source, id,
                     d->n_vocab);
        return TUTTI_OK;
    }
    if (d->n_stop_ids >= MAX_STOP_IDS)
        return error_set(l->err, TUTTI_E_LIMIT, "%s: more than %d ids end an answer", source, MAX_STOP_IDS);
    d->stop_ids[d->n_stop_ids++] = (int32_t)id;
    return TUTTI_OK;
}

/* value: a number, a list of numbers, or null. */
static enum tutti_status add_stops(const struct stop_list *l, const json_t *value, const char *source)
{
    enum tutti_status st = TUTTI_OK;
    bool is_right = !value || json_is_null(value) || json_is_integer(value) || json_is_array(value);
    if (json_is_integer(value))
        return add_stop(l, json_integer_value(value), source);
    for (size_t i = 0; st == TUTTI_OK && is_right && i < json_array_size(value); i++) {
        const json_t *id = json_array_get(value, i);
        is_right = json_is_integer(id);
        if (is_right)
            st = add_stop(l, json_integer_value(id), source);
    }
    return is_right ? st
                    : error_set(l->err, TUTTI_E_FORMAT, "%s: expected an id or a list of ids, got %s", source,
                                json_type_name(value));
}

static enum tutti_status add_of_folder(const struct stop_list *l, const struct checkpoint *ck,
                                       const json_t *generation)
{
    static const char KEY[] = "eos_token_id";
    char source[4300];
    snprintf(source, sizeof source, "%s/generation_config.json: %s", checkpoint_folder(ck), KEY);
    enum tutti_status st = add_stops(l, json_object_get(generation, KEY), source);
    snprintf(source, sizeof source, "%s: %s", checkpoint_config_path(ck), KEY);
    return st == TUTTI_OK ? add_stops(l, json_object_get(checkpoint_config(ck), KEY), source) : st;
}

static enum tutti_status add_of_gguf(const struct stop_list *l, const struct checkpoint *ck)
{
    static const char *const KEYS[] = {
        "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"
    };
    const struct gguf_array *own = gguf_find_array(checkpoint_gguf(ck), STOPS_GGUF_KEY);
    char source[4300];
    enum tutti_status st = TUTTI_OK;
    snprintf(source, sizeof source, "%s: %s", checkpoint_path(ck), STOPS_GGUF_KEY);
    if (own && gguf_array_type(own) == GGUF_STRING)
        return error_set(l->err, TUTTI_E_FORMAT, "%s: expected an array of ids, got strings", source);
    for (size_t i = 0; own && st == TUTTI_OK && i < gguf_array_n(own); i++)
        st = add_stop(l, gguf_array_int(own, i), source);
    for (size_t i = 0; !own && st == TUTTI_OK && i < sizeof KEYS / sizeof *KEYS; i++) {
        snprintf(source, sizeof source, "%s: %s", checkpoint_path(ck), KEYS[i]);
        st = add_stops(l, json_object_get(checkpoint_config(ck), KEYS[i]), source);
    }
    return st;
}

/* The tokens that end a turn in the known formats. docs/http-api.md lists them. */
static const char *const END_OF_TURN_TOKENS[] = { "<|eot_id|>",     "<|im_end|>",    "<|end|>",
                                                  "<end_of_turn>",  "<|endoftext|>", "<|eom_id|>",
                                                  "<EOT>",          "<|user|>",      "<|observation|>",
                                                  "<|return|>",     "<|call|>",      "<turn|>",
                                                  "<|end_of_text|>" };

/* Files give these tokens any type, so that an id counts by its spelling. -1: none. */
static int32_t find_end_of_turn(const struct tokenizer *tok, const char *token)
{
    int32_t id = tokenizer_find_control(tok, token);
    if (id < 0)
        id = tokenizer_find_added(tok, token);
    return id >= 0 ? id : tokenizer_find(tok, token, strlen(token));
}

/* In gpt-oss' format <|end|> ends a message of several that an answer has: its reasoning, then the
 * text. */
static bool ends_messages_only(const struct tokenizer *tok, const char *token)
{
    return strcmp(token, "<|end|>") == 0 && find_end_of_turn(tok, "<|return|>") >= 0 &&
           find_end_of_turn(tok, "<|call|>") >= 0;
}

static enum tutti_status add_of_chats(const struct stop_list *l, const struct tokenizer *tok)
{
    int n_listed = l->desc->n_stop_ids;
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < sizeof END_OF_TURN_TOKENS / sizeof *END_OF_TURN_TOKENS; i++) {
        int32_t id = find_end_of_turn(tok, END_OF_TURN_TOKENS[i]);
        if (id >= 0 && id < l->desc->n_vocab && !ends_messages_only(tok, END_OF_TURN_TOKENS[i]))
            st = add_stop(l, id, END_OF_TURN_TOKENS[i]);
    }
    l->desc->n_chat_stop_ids = l->desc->n_stop_ids - n_listed;
    l->desc->n_stop_ids = n_listed;
    return st;
}

enum tutti_status model_find_stops(struct model_desc *desc, const struct checkpoint *ck,
                                   const json_t *generation, const struct tokenizer *tok, bool warns,
                                   struct tutti_error *err)
{
    struct stop_list l = { desc, warns, err };
    desc->n_stop_ids = desc->n_chat_stop_ids = 0;
    enum tutti_status st = checkpoint_gguf(ck) ? add_of_gguf(&l, ck) : add_of_folder(&l, ck, generation);
    if (st == TUTTI_OK && tok && tokenizer_eos(tok) >= 0)
        st = add_stop(&l, tokenizer_eos(tok), "the tokenizer's eos token");
    return st == TUTTI_OK && tok ? add_of_chats(&l, tok) : st;
}
