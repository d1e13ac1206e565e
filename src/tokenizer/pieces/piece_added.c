/* Added tokens of SentencePiece tokenizers, and the id limit of any tokenizer. As in the Hugging
 * Face library, the files next to tokenizer.model assign roles to pieces, and append tokens that
 * the model lacks. */
#include "base/limits.h"
#include "base/utf8.h"
#include "tokenizer/bytes/byte_level.h"

#include <stdlib.h>
#include <string.h>

/* Whether the model produces this piece from text: then it stays text, regardless of other files. */
static bool is_ordinary(const struct tokenizer *tok, int32_t id)
{
    uint8_t type = tok->pieces[id].type;
    return type == PIECE_NORMAL || type == PIECE_BYTE || type == PIECE_UNKNOWN;
}

static bool respell(struct tokenizer *tok, int32_t id, const char *text, size_t n_bytes)
{
    struct piece_entry *p = &tok->pieces[id];
    size_t offset = tok->bytes.n_bytes;
    if (p->n_bytes == n_bytes && memcmp(vocab_bytes(tok, id), text, n_bytes) == 0)
        return true;
    if (offset > UINT32_MAX - n_bytes || !buf_add(&tok->bytes, text, n_bytes))
        return false;
    p->offset = (uint32_t)offset;
    p->n_bytes = (uint32_t)n_bytes;
    p->type = PIECE_CONTROL;
    return true;
}

enum tutti_status tokenizer_add_token(struct tokenizer *tok, const char *text, size_t n_bytes,
                                      struct added_token token, const char *name, struct tutti_error *err)
{
    enum { MAX_GAP = 4096 }; /* padding between the model's pieces and added tokens */
    int64_t limit = (int64_t)tok->n_pieces + MAX_GAP < LIMIT_VOCAB ? tok->n_pieces + MAX_GAP : LIMIT_VOCAB;
    if (n_bytes == 0 || n_bytes > MAX_ADDED_BYTES || !utf8_is_valid(text, n_bytes))
        return error_set(err, TUTTI_E_FORMAT, "%s: added token %d: expected 1 to %d bytes of UTF-8", name,
                         token.id, MAX_ADDED_BYTES);
    if (token.id < 0 || token.id >= limit)
        return error_set(err, TUTTI_E_FORMAT, "%s: added token \"%.*s\" has id %d, expected 0 to %lld", name,
                         (int)(n_bytes < 64 ? n_bytes : 64), text, token.id, (long long)limit - 1);
    token.is_normalized = false; /* SentencePiece's normalizer runs between added tokens */
    bool is_new = token.id >= tok->n_pieces;
    while (tok->n_pieces <= token.id) {
        if (!vocab_add(tok, "", 0, 0, PIECE_UNUSED))
            return error_out_of_memory(name, err);
    }
    is_new |= tok->pieces[token.id].n_bytes == 0;
    if (!respell(tok, token.id, text, n_bytes) || !added_tokens_put(&tok->added, token))
        return error_out_of_memory(name, err);
    if (is_new || !is_ordinary(tok, token.id))
        tok->pieces[token.id].type = token.is_special ? PIECE_CONTROL : PIECE_USER_DEFINED;
    return TUTTI_OK;
}

/* After these tokens of Phi-3 blanks stay. */
static bool keeps_blanks_after(const struct tokenizer *tok, int32_t id)
{
    static const char *const KEEPING[] = { "<unk>", "<s>", "<|endoftext|>" };
    for (size_t i = 0; i < sizeof KEEPING / sizeof *KEEPING; i++)
        if (tok->pieces[id].n_bytes == strlen(KEEPING[i]) &&
            memcmp(vocab_bytes(tok, id), KEEPING[i], strlen(KEEPING[i])) == 0)
            return true;
    return false;
}

enum tutti_status tokenizer_add_own_tokens(struct tokenizer *tok, bool with_user_defined, bool stripping,
                                           const char *name, struct tutti_error *err)
{
    for (int32_t id = 0; id < tok->n_pieces; id++) {
        const struct piece_entry *p = &tok->pieces[id];
        bool is_special = p->type == PIECE_CONTROL || p->type == PIECE_UNKNOWN;
        if (p->n_bytes == 0 || p->n_bytes > MAX_ADDED_BYTES ||
            !utf8_is_valid(vocab_bytes(tok, id), p->n_bytes) ||
            !(is_special || (with_user_defined && p->type == PIECE_USER_DEFINED)))
            continue;
        if (!added_tokens_put(
                &tok->added,
                (struct added_token){ .id = id,
                                      .is_special = is_special,
                                      .takes_right_blanks = stripping && !keeps_blanks_after(tok, id) }))
            return error_out_of_memory(name, err);
    }
    return TUTTI_OK;
}

void tokenizer_clear_added(struct tokenizer *tok)
{
    added_tokens_clear(&tok->added);
}

static struct spelling spelling_of(const void *from, const struct added_token *token)
{
    const struct tokenizer *tok = from;
    return (struct spelling){ .bytes = vocab_bytes(tok, token->id),
                              .n_bytes = tok->pieces[token->id].n_bytes };
}

enum tutti_status tokenizer_finish_added(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    return added_tokens_index(&tok->added, spelling_of, NULL, tok) ? TUTTI_OK
                                                                   : error_out_of_memory(name, err);
}

size_t tokenizer_n_added(const struct tokenizer *tok)
{
    return tok->added.n;
}

struct added_token tokenizer_added(const struct tokenizer *tok, size_t index)
{
    return tok->added.list[index];
}

void tokenizer_set_prefix_rule(struct tokenizer *tok, bool at_first_only)
{
    tok->prefixes_first_only = at_first_only;
}

bool tokenizer_prefixes_first_only(const struct tokenizer *tok)
{
    return tok->prefixes_first_only;
}

void tokenizer_drop_prefix(struct tokenizer *tok)
{
    tok->add_dummy_prefix = false;
}

void tokenizer_set_ends(struct tokenizer *tok, int32_t bos_id, int32_t eos_id)
{
    tok->bos_id = bos_id;
    tok->eos_id = eos_id;
}

bool tokenizer_is_mark_of_model(const struct tokenizer *tok, int32_t id)
{
    size_t n_match;
    return tok->pieces[id].type == PIECE_CONTROL &&
           trie_match(&tok->user_defined, vocab_bytes(tok, id), tok->pieces[id].n_bytes, &n_match) == id;
}

void tokenizer_set_affixes(struct tokenizer *tok, bool adds_bos, bool adds_eos)
{
    struct token_affixes *a = &tok->affixes;
    *a = (struct token_affixes){ .is_known = true };
    if (adds_bos && tok->bos_id >= 0)
        a->before[a->n_before++] = tok->bos_id;
    if (adds_eos && tok->eos_id >= 0)
        a->after[a->n_after++] = tok->eos_id;
}

/* ---- fewer rows than tokens ---- */

/* Rebuilds the index without the ids beyond the limit. */
static bool index_again(struct tokenizer *tok, const bool *is_indexed, int32_t n_rows)
{
    free(tok->slots);
    if (!vocab_new_index(tok))
        return false;
    for (int32_t id = 0; id < n_rows; id++) {
        if (is_indexed[id])
            (void)vocab_add_to_index(tok, id);
    }
    return true;
}

static int limit_ids(int32_t *ids, int n, int32_t n_rows)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if (ids[i] < n_rows)
            ids[kept++] = ids[i];
    }
    return kept;
}

/* False: some byte would have no token. */
static bool limit_pieces(struct tokenizer *tok, int32_t n_rows)
{
    size_t n_added = 0;
    for (int i = 0; i < 256; i++) {
        if (tok->byte_fallback && tok->byte_ids[i] >= n_rows)
            return false;
        if (byte_level_is_of_bytes(tok) && tok->level->byte_ids[i] >= n_rows && tok->unk_id < 0)
            return false;
        if (tok->level && tok->level->byte_ids[i] >= n_rows)
            tok->level->byte_ids[i] = -1;
        if (i < 128 && !tok->level && tok->ascii_ids[i] >= n_rows)
            tok->ascii_ids[i] = -1;
    }
    for (uint32_t node = 0; node < tok->user_defined.n_nodes; node++) {
        if (tok->user_defined.nodes[node].id >= n_rows)
            tok->user_defined.nodes[node].id = -1;
    }
    for (size_t i = 0; i < tok->added.n; i++) {
        if (tok->added.list[i].id < n_rows || tok->added.list[i].is_special)
            tok->added.list[n_added++] = tok->added.list[i];
    }
    tok->added.n = n_added;
    for (int32_t id = n_rows; id < tok->n_pieces; id++) {
        if (tok->pieces[id].type != PIECE_CONTROL)
            tok->pieces[id].type = PIECE_UNUSED;
    }
    return true;
}

enum tutti_status tokenizer_limit(struct tokenizer *tok, int32_t n_rows, const char *name,
                                  struct tutti_error *err)
{
    bool *is_indexed = calloc((size_t)tok->n_pieces, sizeof *is_indexed);
    if (!is_indexed)
        return error_out_of_memory(name, err);
    for (int32_t id = 0; id < tok->n_pieces; id++)
        is_indexed[id] = tokenizer_find(tok, vocab_bytes(tok, id), tok->pieces[id].n_bytes) == id;
    tok->n_rows = n_rows;
    tok->unk_id = tok->unk_id < n_rows ? tok->unk_id : -1;
    tok->bos_id = tok->bos_id < n_rows ? tok->bos_id : -1;
    tok->eos_id = tok->eos_id < n_rows ? tok->eos_id : -1;
    tok->affixes.n_before = limit_ids(tok->affixes.before, tok->affixes.n_before, n_rows);
    tok->affixes.n_after = limit_ids(tok->affixes.after, tok->affixes.n_after, n_rows);
    bool has_unknown = tok->unk_id >= 0 || (tok->byte_fallback && !tok->lacks_bytes) ||
                       byte_level_is_of_bytes(tok);
    enum tutti_status st = TUTTI_OK;
    if (!has_unknown || !limit_pieces(tok, n_rows))
        st = error_set(
            err, TUTTI_E_FORMAT,
            "%s: the model has %d rows for %d tokens, and the tokens of single bytes or the unknown "
            "token are beyond them; expected a tokenizer of this model",
            name, n_rows, tok->n_pieces);
    else if (!index_again(tok, is_indexed, n_rows))
        st = error_out_of_memory(name, err);
    free(is_indexed);
    if (st == TUTTI_OK && tok->level)
        return byte_level_limit(tok, name, err);
    return st == TUTTI_OK ? tokenizer_finish_added(tok, name, err) : st;
}
