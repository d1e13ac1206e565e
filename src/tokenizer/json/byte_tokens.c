/* Converts byte-level tokenizers from and to GGUF's arrays. */
#include "base/limits.h"
#include "tokenizer/bytes/byte_level.h"
#include "tokenizer/json/byte_config.h"
#include "tokenizer/json/byte_files.h"
#include "tokenizer/unicode/byte_map.h"

#include <stdlib.h>
#include <string.h>

/* Adds "<0xHH>": its byte if tokens are text, else the six characters. */
static enum tutti_status put_byte(struct tokenizer *tok, const struct byte_vocab *v, int32_t id,
                                  const char *name, struct tutti_error *err)
{
    const struct piece *t = &v->tokens[id];
    if (vocab_byte_value(t->bytes, t->n_bytes) < 0)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: token %d is of type 6 (byte), but spelled \"%.*s\", expected <0x00> to <0xFF>",
                         name, id, (int)(t->n_bytes < 64 ? t->n_bytes : 64), t->bytes);
    return byte_level_put_spelled(tok, id, t->bytes, t->n_bytes, v->n_tokens, name, err);
}

static enum tutti_status put_token(struct tokenizer *tok, const struct byte_vocab *v, int32_t id,
                                   const char *name, struct tutti_error *err)
{
    const struct piece *t = &v->tokens[id];
    if (t->type == PIECE_NORMAL)
        return byte_level_put_spelled(tok, id, t->bytes, t->n_bytes, v->n_tokens, name, err);
    if (t->type == PIECE_BYTE)
        return put_byte(tok, v, id, name, err);
    if ((int)t->type < PIECE_NORMAL || (int)t->type > PIECE_BYTE)
        return error_set(err, TUTTI_E_FORMAT, "%s: token %d is of type %d, expected 1 to 6", name, id,
                         (int)t->type);
    return byte_level_put(tok, id, t->bytes, t->n_bytes, t->type, v->n_tokens, name, err);
}

static bool is_added(enum piece_type type)
{
    return type == PIECE_CONTROL || type == PIECE_USER_DEFINED;
}

static enum tutti_status put_tokens(struct tokenizer *tok, const struct byte_vocab *v, const char *name,
                                    struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < v->n_tokens; i++)
        st = put_token(tok, v, (int32_t)i, name, err);
    if (st == TUTTI_OK)
        st = byte_level_index(tok, name, err);
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(v->added); i++) {
        const json_t *entry = json_array_get(v->added, i), *id = json_object_get(entry, "id");
        st = json_is_integer(id)
                 ? byte_config_add(tok, entry, json_integer_value(id), name, err)
                 : error_set(err, TUTTI_E_FORMAT, "%s: added token %zu: its id is no number", name, i);
    }
    for (size_t i = 0; st == TUTTI_OK && !v->added && i < v->n_tokens; i++) {
        const struct piece *t = &v->tokens[i];
        if (is_added(t->type))
            st = byte_level_add(
                tok, t->bytes, t->n_bytes,
                (struct added_token){ .id = (int32_t)i, .is_special = t->type == PIECE_CONTROL }, name, err);
    }
    return st;
}

static enum tutti_status check_id(const struct byte_vocab *v, const char *what, int32_t id, const char *name,
                                  struct tutti_error *err)
{
    return id >= -1 && (id < 0 || (size_t)id < v->n_tokens)
               ? TUTTI_OK
               : error_set(err, TUTTI_E_FORMAT, "%s: the id of the %s token is %d, expected 0 to %zu", name,
                           what, id, v->n_tokens - 1);
}

static enum tutti_status byte_tokens_fill(struct tokenizer *tok, const struct byte_vocab *v, const char *name,
                                          struct tutti_error *err)
{
    const struct pre_name *named = pre_name_find(v->pre);
    if (v->n_tokens == 0 || v->n_tokens > LIMIT_VOCAB)
        return error_set(err, TUTTI_E_FORMAT, "%s: %zu tokens, expected 1 to %d", name, v->n_tokens,
                         LIMIT_VOCAB);
    enum tutti_status st = byte_level_use(tok, named, v->pre, name, err);
    if (st == TUTTI_OK && v->lowers) /* in addition to the name's own steps */
        tok->level->normalizers.steps[tok->level->normalizers.n++] = (struct normalizer){
            .kind = NORMALIZE_LOWERCASE
        };
    if (st == TUTTI_OK)
        st = put_tokens(tok, v, name, err);
    for (size_t i = 0; st == TUTTI_OK && i < v->n_merges; i++)
        st = byte_level_add_merge_line(tok, v->merges[i].bytes, v->merges[i].n_bytes, name, err);
    if (st == TUTTI_OK)
        st = byte_level_finish(tok, false, name, err);
    if (st == TUTTI_OK)
        st = check_id(v, "unknown", v->unk_id, name, err);
    if (st == TUTTI_OK)
        st = check_id(v, "begin", v->bos_id, name, err);
    if (st == TUTTI_OK)
        st = check_id(v, "end", v->eos_id, name, err);
    if (st != TUTTI_OK)
        return st;
    tok->bos_id = v->bos_id;
    tok->eos_id = v->eos_id;
    bool adds_bos = v->adds_bos < 0 ? named->adds_bos : v->adds_bos > 0;
    tok->affixes.is_known = true;
    if (adds_bos && v->bos_id >= 0)
        tok->affixes.before[tok->affixes.n_before++] = v->bos_id;
    if (v->adds_eos && v->eos_id >= 0)
        tok->affixes.after[tok->affixes.n_after++] = v->eos_id;
    return TUTTI_OK;
}

enum tutti_status tokenizer_from_byte_vocab(struct tokenizer **out, const struct byte_vocab *vocab,
                                            const char *name, struct tutti_error *err)
{
    struct tokenizer *tok = byte_level_new();
    return tok ? tokenizer_give(out, tok, byte_tokens_fill(tok, vocab, name, err))
               : error_out_of_memory(name, err);
}

/* ---- for GGUF ---- */

bool tokenizer_is_byte_level(const struct tokenizer *tok)
{
    return tok->level != NULL;
}

const char *tokenizer_pre(const struct tokenizer *tok)
{
    const struct byte_level *level = tok->level;
    const struct normalizers *n = &level->normalizers;
    bool is_composed = n->n == 1 && n->steps[0].kind == NORMALIZE_FORM && n->steps[0].form == UNICODE_NFC;
    bool is_named = level->named && level->named->ignores_merges == level->ignores_merges;
    if (is_named || (level->named && level->has_ranks && byte_level_has_whole_tokens(tok)))
        return level->named->name;
    if (level->has_characters || level->spells_words || (n->n > 0 && !is_composed))
        return NULL;
    const struct pre_name *named = pre_name_of(&level->pre, is_composed, level->ignores_merges);
    return named ? named->name : NULL;
}

const char *tokenizer_nearest_pre(const struct tokenizer *tok)
{
    const struct byte_level *level = tok->level;
    const struct pre_name *named = NULL;
    if (level->has_characters || level->spells_words)
        return NULL;
    for (int i = 0; !named && i < 4; i++)
        named = pre_name_of(&level->pre, i & 1, i & 2);
    return named ? named->name : NULL;
}

bool tokenizer_merges_text(const struct tokenizer *tok)
{
    const struct byte_level *level = tok->level;
    return level->has_characters && tok->byte_fallback && level->n_pairs > 0 &&
           level->inner_mark.n_bytes + level->end_mark.n_bytes == 0;
}

void tokenizer_score_merges(const struct tokenizer *tok, float *scores)
{
    const struct byte_level *level = tok->level;
    memset(scores, 0, (size_t)tokenizer_n_pieces(tok) * sizeof *scores);
    for (size_t i = level->n_pairs; i-- > 0;) {
        struct merge_pair pair = level->pairs[i];
        const struct merge_slot *merge = byte_level_find_merge(level, pair.left, pair.right);
        if (merge) /* the first of several counts */
            scores[merge->id] = -(float)(i + 1);
    }
}

int tokenizer_adds_bos(const struct tokenizer *tok)
{
    const struct token_affixes *affixes = &tok->affixes;
    if (!affixes->is_known)
        return -1;
    return affixes->n_before > 0 && affixes->before[0] == tok->bos_id;
}

bool tokenizer_adds_eos(const struct tokenizer *tok)
{
    return tok->affixes.n_after > 0 && tok->affixes.after[tok->affixes.n_after - 1] == tok->eos_id;
}

/* Writes a spelling as in files: text, or bytes in the alphabet of byte_map.h. */
static bool write_spelling(const struct tokenizer *tok, int32_t id, struct buf *out)
{
    const char *bytes = vocab_bytes(tok, id);
    size_t n_bytes = tok->pieces[id].n_bytes;
    return tok->level->has_characters ? buf_add(out, bytes, n_bytes) : byte_map_write(bytes, n_bytes, out);
}

bool tokenizer_spelling(const struct tokenizer *tok, int32_t id, struct buf *out)
{
    const struct piece_entry *p = &tok->pieces[id];
    const char *bytes = vocab_bytes(tok, id);
    bool is_spelled = p->type == PIECE_NORMAL && tokenizer_find(tok, bytes, p->n_bytes) == id;
    return is_spelled ? write_spelling(tok, id, out) : buf_add(out, bytes, p->n_bytes);
}

static bool give_pair(const struct tokenizer *tok, struct merge_pair pair, struct buf *line,
                      merge_line_fn *add, void *to)
{
    buf_truncate(line, 0);
    return write_spelling(tok, pair.left, line) && buf_add(line, " ", 1) &&
           write_spelling(tok, pair.right, line) && add(to, line->bytes, line->n_bytes);
}

/* With token ranks instead of merges, every two tokens whose concatenation is a token form a
 * pair. One pair per token is not enough: some vocabularies have tokens that different merges
 * produce. */
static bool give_by_rank(const struct tokenizer *tok, struct buf *line, merge_line_fn *add, void *to)
{
    bool ok = true;
    for (int32_t id = 0; ok && id < tok->n_library_pieces; id++) {
        const char *bytes = vocab_bytes(tok, id);
        uint32_t n_bytes = tok->pieces[id].type == PIECE_NORMAL ? tok->pieces[id].n_bytes : 0;
        for (uint32_t at = 1; ok && at < n_bytes; at++) {
            int32_t left = tokenizer_find(tok, bytes, at);
            int32_t right = left < 0 ? -1 : tokenizer_find(tok, bytes + at, n_bytes - at);
            if (right >= 0 && byte_level_find_merge(tok->level, left, right))
                ok = give_pair(tok, (struct merge_pair){ left, right }, line, add, to);
        }
    }
    return ok;
}

bool tokenizer_each_merge(const struct tokenizer *tok, merge_line_fn *add, void *to)
{
    const struct byte_level *level = tok->level;
    struct buf line = { 0 };
    bool ok = true;
    if (level->has_ranks)
        ok = give_by_rank(tok, &line, add, to);
    for (size_t i = 0; ok && i < level->n_pairs; i++)
        ok = give_pair(tok, level->pairs[i], &line, add, to);
    buf_clear(&line);
    return ok;
}
