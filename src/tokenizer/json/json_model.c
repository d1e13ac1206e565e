/* Reads "model" of tokenizer.json: BPE, Unigram, WordPiece, WordLevel. */
#include "tokenizer/json/byte_config.h"
#include "tokenizer/json/json_reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *json_model_type(const json_t *model)
{
    const char *type = json_string_value(json_object_get(model, "type"));
    if (type || !json_is_object(model))
        return type ? type : "";
    return json_is_array(json_object_get(model, "vocab"))       ? "Unigram"
           : json_object_get(model, "merges")                   ? "BPE"
           : json_object_get(model, "max_input_chars_per_word") ? "WordPiece"
           : json_object_get(model, "unk_token")                ? "WordLevel"
                                                                : "BPE";
}

static bool is_off(const json_t *part, const char *key)
{
    const json_t *value = json_object_get(part, key);
    return !value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0);
}

/* ---- BPE ---- */

static enum tutti_status read_model_merges(struct json_reader *r, const json_t *list)
{
    enum tutti_status st = TUTTI_OK;
    if (!json_is_array(list))
        return error_set(r->err, TUTTI_E_FORMAT, "%s: model.merges is no list", r->name);
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++) {
        const json_t *merge = json_array_get(list, i), *left = json_array_get(merge, 0),
                     *right = json_array_get(merge, 1);
        if (json_is_string(merge))
            st = byte_level_add_merge_line(r->tok, json_string_value(merge), json_string_length(merge),
                                           r->name, r->err);
        else if (json_array_size(merge) == 2 && json_is_string(left) && json_is_string(right))
            st = byte_level_add_merge(r->tok, json_string_value(left), json_string_length(left),
                                      json_string_value(right), json_string_length(right), r->name, r->err);
        else
            st = error_set(r->err, TUTTI_E_FORMAT,
                           "%s: model.merges[%zu] is neither text nor a list of two texts", r->name, i);
    }
    return st;
}

/* A mark of tokens that continue or end a word; null is none. */
static enum tutti_status read_mark(const struct json_reader *r, const json_t *model, const char *key,
                                   struct buf *out)
{
    if (is_off(model, key))
        return TUTTI_OK;
    enum tutti_status st = json_reader_text(r, "model", model, key, out);
    if (st == TUTTI_OK && out->n_bytes > MAX_WORD_MARK_BYTES)
        return error_set(r->err, TUTTI_E_FORMAT, "%s: model.%s has %zu bytes, expected at most %d", r->name,
                         key, out->n_bytes, MAX_WORD_MARK_BYTES);
    return st;
}

static enum tutti_status read_unknown(struct json_reader *r, const json_t *model)
{
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    r->tok->unk_id = unknown ? byte_config_find(r->tok, unknown) : -1;
    return r->tok->unk_id >= 0
               ? TUTTI_OK
               : error_set(r->err, TUTTI_E_FORMAT, "%s: model.unk_token is no token", r->name);
}

static enum tutti_status read_bpe(struct json_reader *r, const json_t *model)
{
    struct byte_level *level = r->tok->level;
    if (!is_off(model, "dropout"))
        return error_set(r->err, TUTTI_E_UNSUPPORTED,
                         "%s: model.dropout is set, so that the library cuts a text differently each time",
                         r->name);
    r->tok->byte_fallback = json_is_on(model, "byte_fallback");
    level->ignores_merges = json_is_on(model, "ignore_merges");
    level->fuses_unknown = json_is_on(model, "fuse_unk");
    enum tutti_status st = read_mark(r, model, "continuing_subword_prefix", &level->inner_mark);
    if (st == TUTTI_OK)
        st = read_mark(r, model, "end_of_word_suffix", &level->end_mark);
    if (st == TUTTI_OK)
        st = byte_config_vocab(r->tok, json_object_get(model, "vocab"), r->name, r->err);
    if (st == TUTTI_OK)
        st = read_model_merges(r, json_object_get(model, "merges"));
    return st == TUTTI_OK && !is_off(model, "unk_token") ? read_unknown(r, model) : st;
}

/* ---- the others ---- */

/* The library's JSON parser reads the digits as an integer and divides by a power of ten: two
 * roundings. Ties between segmentations depend on these. Files have the shortest digits of each
 * number. */
static double library_score(double score)
{
    char text[40];
    for (int n_digits = 15; n_digits <= 17; n_digits++) {
        snprintf(text, sizeof text, "%.*e", n_digits - 1, fabs(score));
        if (strtod(text, NULL) == fabs(score))
            break;
    }
    char *exponent = strchr(text, 'e');
    int power = (int)strtol(exponent + 1, NULL, 10);
    uint64_t digits = 0;
    for (const char *at = text; at < exponent; at++) {
        if (*at == '.')
            continue;
        digits = 10 * digits + (uint64_t)(*at - '0');
        power -= at > text;
    }
    for (; digits > 0 && digits % 10 == 0; power++)
        digits /= 10;
    if (power >= 0 || power < -300)
        return score;
    snprintf(text, sizeof text, "1e%d", -power);
    double value = (double)digits / strtod(text, NULL);
    return score < 0 ? -value : value;
}

static enum tutti_status read_piece(struct json_reader *r, const json_t *entry, size_t id, size_t n)
{
    const json_t *text = json_array_get(entry, 0), *score = json_array_get(entry, 1);
    double value = json_is_number(score) ? json_number_value(score) : NAN;
    if (json_array_size(entry) != 2 || !json_is_string(text) || !isfinite(value))
        return error_set(r->err, TUTTI_E_FORMAT,
                         "%s: model.vocab[%zu]: expected a list of a text and its score", r->name, id);
    r->tok->level->words.scores[id] = library_score(value);
    return byte_level_put_spelled(r->tok, (int64_t)id, json_string_value(text), json_string_length(text), n,
                                  r->name, r->err);
}

static enum tutti_status read_unigram(struct json_reader *r, const json_t *model)
{
    struct word_model *words = &r->tok->level->words;
    const json_t *vocab = json_object_get(model, "vocab"), *unk = json_object_get(model, "unk_id");
    size_t n = json_array_size(vocab);
    enum tutti_status st = TUTTI_OK;
    if (n == 0)
        return error_set(r->err, TUTTI_E_FORMAT, "%s: model.vocab is no list, or empty", r->name);
    words->kind = WORDS_UNIGRAM;
    words->scores = calloc(n, sizeof *words->scores);
    words->n_words = n;
    r->tok->byte_fallback = json_is_on(model, "byte_fallback");
    if (!words->scores)
        return json_reader_out_of_memory(r);
    for (size_t i = 0; st == TUTTI_OK && i < n; i++)
        st = read_piece(r, json_array_get(vocab, i), i, n);
    if (st == TUTTI_OK && unk && !json_is_null(unk)) {
        json_int_t id = json_is_integer(unk) ? json_integer_value(unk) : -1;
        if (id < 0 || id >= (json_int_t)n)
            return error_set(r->err, TUTTI_E_FORMAT, "%s: model.unk_id: expected 0 to %zu", r->name, n - 1);
        r->tok->unk_id = (int32_t)id;
    }
    return st == TUTTI_OK ? byte_level_index(r->tok, r->name, r->err) : st;
}

static enum tutti_status read_wordpiece(struct json_reader *r, const json_t *model)
{
    struct word_model *words = &r->tok->level->words;
    const json_t *max = json_object_get(model, "max_input_chars_per_word"),
                 *mark = json_object_get(model, "continuing_subword_prefix");
    words->kind = WORDS_WORDPIECE;
    words->max_chars = 100; /* the library's default */
    if (max && !(json_is_integer(max) && json_integer_value(max) >= 0))
        return error_set(r->err, TUTTI_E_FORMAT, "%s: model.max_input_chars_per_word: expected a number",
                         r->name);
    if (max)
        words->max_chars = (size_t)json_integer_value(max);
    enum tutti_status st = !mark ? (buf_add(&words->mark, "##", 2) ? TUTTI_OK : json_reader_out_of_memory(r))
                                 : json_reader_text(r, "model", model, "continuing_subword_prefix",
                                                    &words->mark);
    if (st == TUTTI_OK)
        st = byte_config_vocab(r->tok, json_object_get(model, "vocab"), r->name, r->err);
    words->n_words = (size_t)r->tok->n_pieces; /* before tokens are added */
    return st == TUTTI_OK ? read_unknown(r, model) : st;
}

static enum tutti_status read_wordlevel(struct json_reader *r, const json_t *model)
{
    r->tok->level->words.kind = WORDS_WHOLE;
    enum tutti_status st = byte_config_vocab(r->tok, json_object_get(model, "vocab"), r->name, r->err);
    return st == TUTTI_OK ? read_unknown(r, model) : st;
}

enum tutti_status json_read_model(struct json_reader *r, const json_t *model)
{
    static const struct {
        const char *type;
        enum tutti_status (*read)(struct json_reader *r, const json_t *model);
    } READERS[] = { { "BPE", read_bpe },
                    { "Unigram", read_unigram },
                    { "WordPiece", read_wordpiece },
                    { "WordLevel", read_wordlevel } };
    const char *type = json_model_type(model);
    for (size_t i = 0; i < sizeof READERS / sizeof *READERS; i++) {
        if (strcmp(type, READERS[i].type) == 0)
            return READERS[i].read(r, model);
    }
    return json_reader_unsupported(r, "model", model, "BPE, Unigram, WordPiece or WordLevel");
}
