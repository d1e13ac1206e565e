/* Builds WordPiece tokenizers from GGUF's arrays, with llama.cpp's semantics. */
#include "base/limits.h"
#include "tokenizer/bytes/byte_level.h"
#include "tokenizer/json/byte_files.h"

#include <string.h>

static enum tutti_status put_tokens(struct tokenizer *tok, const struct bert_vocab *v, const char *name,
                                    struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < v->n_tokens; i++)
        st = byte_level_put(tok, (int64_t)i, v->tokens[i].bytes, v->tokens[i].n_bytes, PIECE_NORMAL,
                            v->n_tokens, name, err);
    if (st == TUTTI_OK)
        st = byte_level_index(tok, name, err);
    for (size_t i = 0; st == TUTTI_OK && i < v->n_tokens; i++) {
        const struct piece *t = &v->tokens[i];
        bool is_special = t->type == PIECE_CONTROL || t->type == PIECE_UNKNOWN;
        if (is_special || t->type == PIECE_USER_DEFINED)
            st = byte_level_add(tok, t->bytes, t->n_bytes,
                                (struct added_token){ .id = (int32_t)i, .is_special = is_special }, name,
                                err);
    }
    return st;
}

/* The first token of a word is looked up with the mark before it, the following ones without. */
static enum tutti_status add_steps(struct tokenizer *tok, const struct bert_vocab *v, const char *name,
                                   struct tutti_error *err)
{
    struct byte_level *level = tok->level;
    const struct bert_options options = {
        .cleans = true, .parts_chinese = true, .strips_accents = v->strips_accents, .lowers = v->lowers
    };
    const struct pre_step mark = {
        .kind = PRE_METASPACE,
        .metaspace = { .prepends = METASPACE_ALWAYS, .mark = BLANK_MARK, .n_mark = strlen(BLANK_MARK) }
    };
    struct decode_step *blanks = &level->decoder.steps[0];
    *blanks = (struct decode_step){ .kind = DECODE_METASPACE, .drops_first = true };
    level->decoder.n_steps = 1;
    level->has_characters = true;
    level->words.kind = WORDS_WORDPIECE;
    level->words.max_chars = SIZE_MAX;
    level->words.n_words = v->n_tokens;
    if (!normalizers_add_bert(&level->normalizers, &options) ||
        !buf_add(&blanks->mark, BLANK_MARK, strlen(BLANK_MARK)))
        return error_out_of_memory(name, err);
    enum tutti_status st = pretokenizer_add(&level->pre, (struct pre_step){ .behavior = SPLIT_REMOVED },
                                            PATTERN_BLANK, strlen(PATTERN_BLANK), name, err);
    if (st == TUTTI_OK)
        st = pretokenizer_add(&level->pre, (struct pre_step){ .behavior = SPLIT_ISOLATED },
                              PATTERN_PUNCTUATION, strlen(PATTERN_PUNCTUATION), name, err);
    return st == TUTTI_OK ? pretokenizer_add(&level->pre, mark, NULL, 0, name, err) : st;
}

static bool is_id(const struct bert_vocab *v, int32_t id)
{
    return id >= 0 && (size_t)id < v->n_tokens;
}

static enum tutti_status bert_fill(struct tokenizer *tok, const struct bert_vocab *v, const char *name,
                                   struct tutti_error *err)
{
    if (v->n_tokens == 0 || v->n_tokens > LIMIT_VOCAB || !is_id(v, v->unk_id))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: %zu tokens and the unknown one %d, expected 1 to %d and one of them", name,
                         v->n_tokens, v->unk_id, LIMIT_VOCAB);
    enum tutti_status st = add_steps(tok, v, name, err);
    if (st == TUTTI_OK)
        st = put_tokens(tok, v, name, err);
    if (st == TUTTI_OK)
        st = byte_level_finish(tok, false, name, err);
    if (st != TUTTI_OK)
        return st;
    tok->unk_id = v->unk_id;
    tok->affixes.is_known = true;
    if (is_id(v, v->bos_id))
        tok->affixes.before[tok->affixes.n_before++] = tok->bos_id = v->bos_id;
    if (is_id(v, v->sep_id))
        tok->affixes.after[tok->affixes.n_after++] = tok->affixes.between[tok->affixes.n_between++] =
            tok->eos_id = v->sep_id;
    return TUTTI_OK;
}

enum tutti_status tokenizer_from_bert_vocab(struct tokenizer **out, const struct bert_vocab *vocab,
                                            const char *name, struct tutti_error *err)
{
    struct tokenizer *tok = byte_level_new();
    return tok ? tokenizer_give(out, tok, bert_fill(tok, vocab, name, err)) : error_out_of_memory(name, err);
}
