#include "tokenizer/stages/word_models.h"

#include "base/utf8.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

/* ---- building ---- */

/* The score of an unknown character, relative to that of the worst piece. */
static const double UNKNOWN_PENALTY = 10;

/* Text never yields a special token, so it is not in the tries. */
static bool is_word_part(const struct tokenizer *tok, int32_t id)
{
    return tok->pieces[id].n_bytes > 0 &&
           (tok->pieces[id].type == PIECE_NORMAL || tok->pieces[id].type == PIECE_USER_DEFINED ||
            tok->pieces[id].type == PIECE_BYTE);
}

static void find_unknown_score(struct word_model *model, const struct tokenizer *tok)
{
    double lowest = DBL_MAX;
    if (model->kind != WORDS_UNIGRAM)
        return;
    for (size_t id = 0; id < model->n_words && id < (size_t)tok->n_pieces; id++) {
        if (model->scores[id] < lowest)
            lowest = model->scores[id];
    }
    model->unknown_score = lowest - UNKNOWN_PENALTY;
}

enum tutti_status word_model_finish(struct word_model *model, const struct tokenizer *tok, const char *name,
                                    struct tutti_error *err)
{
    size_t n_starts = 0, n_inner = 0, n_mark = model->mark.n_bytes;
    if (model->kind != WORDS_WORDPIECE && model->kind != WORDS_UNIGRAM)
        return TUTTI_OK;
    struct spelling *starts = malloc(((size_t)tok->n_pieces + 1) * sizeof *starts);
    struct spelling *inner = malloc(((size_t)tok->n_pieces + 1) * sizeof *inner);
    bool ok = starts && inner;
    for (int32_t id = 0; ok && id < tok->n_pieces && (size_t)id < model->n_words; id++) {
        const char *bytes = vocab_bytes(tok, id);
        size_t n_bytes = tok->pieces[id].n_bytes;
        if (!is_word_part(tok, id))
            continue;
        starts[n_starts++] = (struct spelling){ .bytes = bytes, .n_bytes = n_bytes, .id = id };
        if (model->kind == WORDS_WORDPIECE && n_bytes > n_mark &&
            (n_mark == 0 || memcmp(bytes, model->mark.bytes, n_mark) == 0))
            inner[n_inner++] = (struct spelling){ .bytes = bytes + n_mark,
                                                  .n_bytes = n_bytes - n_mark,
                                                  .id = id };
    }
    ok = ok && trie_build(&model->starts, starts, n_starts) && trie_build(&model->inner, inner, n_inner);
    free(starts);
    free(inner);
    find_unknown_score(model, tok);
    return ok ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
}

void word_model_clear(struct word_model *model)
{
    trie_clear(&model->starts);
    trie_clear(&model->inner);
    buf_clear(&model->mark);
    free(model->scores);
    *model = (struct word_model){ .kind = WORDS_BY_MERGES };
}

/* ---- WordPiece ---- */

static bool is_longer_than(const char *word, size_t n_bytes, size_t max_chars)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        n += !utf8_is_continuation(word[i]);
        if (n > max_chars)
            return true;
    }
    return false;
}

/* Takes the longest token at each position. If a part of a word has no token, the whole word is
 * unknown. */
static bool encode_wordpiece(const struct word_model *model, const struct tokenizer *tok, const char *word,
                             size_t n_bytes, struct ids *out)
{
    size_t n_before = out->n, at = 0;
    bool is_unknown = is_longer_than(word, n_bytes, model->max_chars);
    while (!is_unknown && at < n_bytes) {
        size_t n = 0;
        int32_t id = trie_match(at > 0 ? &model->inner : &model->starts, word + at, n_bytes - at, &n);
        if (id >= 0 && !ids_add(out, id))
            return false;
        is_unknown = id < 0;
        at += n;
    }
    if (!is_unknown)
        return true;
    out->n = n_before;
    return ids_add(out, tok->unk_id);
}

/* ---- unigram ---- */

static const uint32_t NO_PATH = UINT32_MAX;

/* The best segmentation of a word up to some position. */
struct word_path {
    double score;
    int32_t id;     /* of its last token; -1: unknown */
    uint32_t begin; /* of that token; NO_PATH: not reachable. After reversal: its end */
};

static void offer(struct word_path *to, size_t begin, double score, int32_t id)
{
    if (to->begin == NO_PATH || score > to->score)
        *to = (struct word_path){ .score = score, .id = id, .begin = (uint32_t)begin };
}

/* Kudo, "Subword Regularization", 2018: Viterbi's search, in the library's order and precision. */
static void search(const struct word_model *model, const char *word, size_t n_bytes, struct word_path *paths)
{
    for (size_t i = 0; i <= n_bytes; i++)
        paths[i] = (struct word_path){ .begin = NO_PATH };
    for (size_t at = 0; at < n_bytes;) {
        size_t n_char = vocab_char_length(word + at, n_bytes - at);
        double here = paths[at].score;
        bool has_character = false;
        uint32_t node = 0;
        for (size_t end = at; end < n_bytes;) {
            node = trie_child(&model->starts, node, (uint8_t)word[end++]);
            if (node == 0)
                break;
            int32_t id = model->starts.nodes[node].id;
            if (id < 0)
                continue;
            offer(&paths[end], at, model->scores[id] + here, id);
            has_character |= end - at == n_char;
        }
        if (!has_character)
            offer(&paths[at + n_char], at, model->unknown_score + here, -1);
        at += n_char;
    }
}

/* Reverses the path: stores each token's end at its begin. */
static void reverse_paths(struct word_path *paths, size_t n_bytes)
{
    struct word_path token = paths[n_bytes];
    for (size_t end = n_bytes; end > 0;) {
        struct word_path before = paths[token.begin];
        paths[token.begin] = (struct word_path){ .id = token.id, .begin = (uint32_t)end };
        end = token.begin;
        token = before;
    }
}

/* Adds characters without a token: as bytes, if all of these have tokens, else as the unknown token. */
static bool add_unknown(const struct tokenizer *tok, const char *text, size_t n_bytes, struct ids *out)
{
    if (!vocab_has_bytes(tok, text, n_bytes))
        return tok->unk_id < 0 || ids_add(out, tok->unk_id);
    for (size_t i = 0; i < n_bytes; i++) {
        if (!ids_add(out, tok->byte_ids[(uint8_t)text[i]]))
            return false;
    }
    return true;
}

static bool encode_unigram(const struct word_model *model, const struct tokenizer *tok, const char *word,
                           size_t n_bytes, struct ids *out)
{
    struct word_path *paths = malloc((n_bytes + 1) * sizeof *paths);
    if (!paths)
        return false;
    search(model, word, n_bytes, paths);
    reverse_paths(paths, n_bytes);
    bool ok = true;
    for (size_t at = 0; ok && at < n_bytes;) {
        size_t end = paths[at].begin;
        if (paths[at].id >= 0) {
            ok = ids_add(out, paths[at].id);
        } else {
            while (end < n_bytes && paths[end].id < 0) /* adjacent unknown characters form one token */
                end = paths[end].begin;
            ok = add_unknown(tok, word + at, end - at, out);
        }
        at = end;
    }
    free(paths);
    return ok;
}

bool word_model_encode(const struct word_model *model, const struct tokenizer *tok, const char *word,
                       size_t n_bytes, struct ids *out)
{
    if (n_bytes == 0)
        return true;
    if (model->kind == WORDS_WORDPIECE)
        return encode_wordpiece(model, tok, word, n_bytes, out);
    if (model->kind == WORDS_UNIGRAM)
        return encode_unigram(model, tok, word, n_bytes, out);
    int32_t id = tokenizer_find(tok, word, n_bytes);
    if (id >= 0 && !vocab_is_mergeable(tok, id))
        id = -1;
    return ids_add(out, id >= 0 ? id : tok->unk_id);
}
