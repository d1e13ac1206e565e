/* The vocabulary: pieces by id and by spelling. */
#include "tokenizer/vocab/vocab.h"

#include "base/containers/array.h"
#include "base/hash.h"
#include "base/limits.h"
#include "tokenizer/bytes/byte_level.h"
#include "tokenizer/legacy/jieba.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool vocab_add(struct tokenizer *tok, const char *bytes, size_t n_bytes, float score, enum piece_type type)
{
    if (!array_grow(&tok->pieces, (size_t)tok->n_pieces, &tok->capacity, sizeof *tok->pieces))
        return false;
    size_t offset = tok->bytes.n_bytes;
    if (offset > UINT32_MAX - n_bytes || !buf_add(&tok->bytes, bytes, n_bytes))
        return false;
    tok->pieces[tok->n_pieces++] = (struct piece_entry){
        .offset = (uint32_t)offset, .n_bytes = (uint32_t)n_bytes, .score = score, .type = (uint8_t)type
    };
    return true;
}

static bool piece_is(const struct tokenizer *tok, int32_t id, const char *bytes, size_t n_bytes)
{
    return tok->pieces[id].n_bytes == n_bytes && memcmp(vocab_bytes(tok, id), bytes, n_bytes) == 0;
}

/* The slot of a spelling, or the free slot for it. */
static struct piece_slot *find_piece_slot(const struct tokenizer *tok, uint32_t hash, const char *bytes,
                                          size_t n_bytes)
{
    uint32_t i = hash & tok->slot_mask;
    while (tok->slots[i].id >= 0 &&
           (tok->slots[i].hash != hash || !piece_is(tok, tok->slots[i].id, bytes, n_bytes)))
        i = (i + 1) & tok->slot_mask;
    return &tok->slots[i];
}

bool vocab_new_index(struct tokenizer *tok)
{
    uint32_t n_slots = 16;
    while (n_slots < 2 * (uint32_t)tok->n_pieces)
        n_slots *= 2;
    tok->slot_mask = n_slots - 1;
    tok->slots = malloc(n_slots * sizeof *tok->slots);
    if (tok->slots)
        memset(tok->slots, -1, n_slots * sizeof *tok->slots);
    return tok->slots != NULL;
}

int32_t vocab_add_to_index(struct tokenizer *tok, int32_t id)
{
    const char *bytes = vocab_bytes(tok, id);
    uint32_t n_bytes = tok->pieces[id].n_bytes, hash = (uint32_t)hash64(0, bytes, n_bytes);
    struct piece_slot *slot = find_piece_slot(tok, hash, bytes, n_bytes);
    if (slot->id >= 0)
        return slot->id;
    *slot = (struct piece_slot){ .hash = hash, .id = id };
    return -1;
}

int vocab_byte_value(const char *bytes, size_t n_bytes)
{
    static const char HEX[] = "0123456789ABCDEF";
    if (n_bytes != 6 || memcmp(bytes, "<0x", 3) != 0 || bytes[5] != '>')
        return -1;
    const char *hi = memchr(HEX, bytes[3], 16), *lo = memchr(HEX, bytes[4], 16);
    return hi && lo ? (int)(hi - HEX) * 16 + (int)(lo - HEX) : -1;
}

static enum tutti_status index_piece(struct tokenizer *tok, int32_t id, const char *name,
                                     struct tutti_error *err)
{
    const struct piece_entry *p = &tok->pieces[id];
    const char *bytes = vocab_bytes(tok, id);
    int32_t other = vocab_add_to_index(tok, id);
    if (other >= 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: pieces %d and %d are both spelled \"%.*s\"", name, other,
                         id, (int)(p->n_bytes < 64 ? p->n_bytes : 64), bytes);
    if (!isfinite(p->score))
        return error_set(err, TUTTI_E_FORMAT, "%s: piece %d: its score is not finite", name, id);
    if (p->type == PIECE_BYTE) {
        int value = vocab_byte_value(bytes, p->n_bytes);
        if (value < 0)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: piece %d is of type BYTE, but spelled \"%.*s\", expected <0x00> to <0xFF>",
                             name, id, (int)(p->n_bytes < 64 ? p->n_bytes : 64), bytes);
        tok->byte_ids[value] = id;
    }
    if (vocab_is_mergeable(tok, id) && p->n_bytes == 1 && !(bytes[0] & 0x80))
        tok->ascii_ids[(int)bytes[0]] = id;
    /* Merges never produce a single character, so the library does not have to remember how. */
    tok->has_unused |= p->type == PIECE_UNUSED && p->n_bytes > vocab_char_length(bytes, p->n_bytes);
    return TUTTI_OK;
}

bool vocab_new_joints(struct tokenizer *tok)
{
    int log2_bits = 10;
    while (log2_bits < 22 && 1 << log2_bits < 8 * tok->n_pieces)
        log2_bits++;
    tok->joint_shift = 64 - log2_bits;
    tok->joints = calloc((size_t)1 << (log2_bits - 6), sizeof *tok->joints);
    return tok->joints != NULL;
}

static bool index_joints(struct tokenizer *tok)
{
    bool ok = vocab_new_joints(tok);
    for (int32_t id = 0; ok && id < tok->n_pieces; id++) {
        if (!vocab_is_mergeable(tok, id))
            continue;
        const char *bytes = vocab_bytes(tok, id);
        size_t n_bytes = tok->pieces[id].n_bytes, n = vocab_char_length(bytes, n_bytes);
        uint32_t left = vocab_char_code(bytes, n);
        for (size_t at = n; at < n_bytes; at += n) {
            n = vocab_char_length(bytes + at, n_bytes - at);
            uint32_t right = vocab_char_code(bytes + at, n);
            vocab_add_joint(tok, left, right);
            left = right;
        }
        if (n_bytes > tok->n_merge_bytes)
            tok->n_merge_bytes = (uint32_t)n_bytes;
    }
    return ok;
}

static bool collect_user_defined(struct tokenizer *tok)
{
    size_t n = 0;
    for (int32_t id = 0; id < tok->n_pieces; id++)
        n += tok->pieces[id].type == PIECE_USER_DEFINED;
    if (n == 0)
        return true;
    struct spelling *list = malloc(n * sizeof *list);
    if (!list)
        return false;
    n = 0;
    for (int32_t id = 0; id < tok->n_pieces; id++) {
        if (tok->pieces[id].type == PIECE_USER_DEFINED)
            list[n++] = (struct spelling){ vocab_bytes(tok, id), tok->pieces[id].n_bytes, id };
    }
    bool ok = trie_build(&tok->user_defined, list, n);
    free(list);
    return ok;
}

size_t vocab_match_user_defined(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                bool takes_marks)
{
    enum { LIBRARY_MATCHES = 64 };
    const struct trie *trie = &tok->user_defined;
    size_t longest = 0;
    int n_matches = 0;
    uint32_t node = 0;
    for (size_t at = 0; at < n_bytes && n_matches < LIBRARY_MATCHES; at++) {
        node = trie_child(trie, node, (uint8_t)text[at]);
        if (node == 0)
            break;
        int32_t id = trie->nodes[node].id;
        n_matches += id >= 0;
        if (id >= 0 && (takes_marks || tok->pieces[id].type == PIECE_USER_DEFINED))
            longest = at + 1;
    }
    return longest;
}

static void find_plain_bytes(struct tokenizer *tok)
{
    for (int byte = 0; byte < 256; byte++)
        tok->is_plain[byte] = byte != ' ' && !charsmap_has_lead(&tok->map, (uint8_t)byte) &&
                              tok->user_defined.roots[byte] == 0;
}

enum tutti_status vocab_finish(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    memset(tok->byte_ids, -1, sizeof tok->byte_ids);
    memset(tok->ascii_ids, -1, sizeof tok->ascii_ids);
    if (!vocab_new_index(tok) || !index_joints(tok) || !collect_user_defined(tok))
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    for (int32_t id = 0; id < tok->n_pieces; id++) {
        enum tutti_status st = index_piece(tok, id, name, err);
        if (st != TUTTI_OK)
            return st;
    }
    find_plain_bytes(tok);
    tok->n_library_pieces = tok->n_pieces;
    return TUTTI_OK;
}

enum tutti_status vocab_check_bytes(struct tokenizer *tok, bool may_lack_some, const char *name,
                                    struct tutti_error *err)
{
    int n_bytes = 0, missing = -1;
    for (int i = 255; tok->byte_fallback && i >= 0; i--) {
        n_bytes += tok->byte_ids[i] >= 0;
        missing = tok->byte_ids[i] < 0 ? i : missing;
    }
    if (missing >= 0 && (n_bytes == 0 || !may_lack_some))
        return error_set(err, TUTTI_E_FORMAT, "%s: byte_fallback is set, but there is no piece <0x%02X>",
                         name, missing);
    tok->lacks_bytes = missing >= 0;
    return TUTTI_OK;
}

enum tutti_status tokenizer_add_control(struct tokenizer *tok, const char *text, int32_t *id,
                                        struct tutti_error *err)
{
    if (tok->n_pieces >= LIMIT_VOCAB || tok->n_pieces - tok->n_library_pieces >= 256)
        return error_set(err, TUTTI_E_LIMIT, "special token %s: no more than 256 can be added", text);
    if (!vocab_add(tok, text, strlen(text), 0, PIECE_CONTROL))
        return error_set(err, TUTTI_E_MEMORY, "special token %s: out of memory", text);
    *id = tok->n_pieces - 1;
    if (!added_tokens_put(&tok->added, (struct added_token){ .id = *id, .is_special = true }))
        return error_set(err, TUTTI_E_MEMORY, "special token %s: out of memory", text);
    return tokenizer_finish_added(tok, text, err);
}

void tokenizer_free(struct tokenizer *tok)
{
    if (!tok)
        return;
    buf_clear(&tok->bytes);
    buf_clear(&tok->unk_surface);
    free(tok->pieces);
    free(tok->slots);
    free(tok->joints);
    trie_clear(&tok->user_defined);
    free(tok->map_storage);
    trie_clear(&tok->trie);
    added_tokens_clear(&tok->added);
    jieba_free(tok->jieba);
    byte_level_free(tok->level);
    free(tok);
}

enum tutti_status tokenizer_give(struct tokenizer **out, struct tokenizer *tok, enum tutti_status st)
{
    if (st == TUTTI_OK)
        *out = tok;
    else
        tokenizer_free(tok);
    return st;
}

int32_t tokenizer_n_pieces(const struct tokenizer *tok)
{
    return tok->n_pieces;
}

int32_t tokenizer_bos(const struct tokenizer *tok)
{
    return tok->bos_id;
}

int32_t tokenizer_eos(const struct tokenizer *tok)
{
    return tok->eos_id;
}

int32_t tokenizer_unk(const struct tokenizer *tok)
{
    return tok->unk_id;
}

struct piece tokenizer_piece(const struct tokenizer *tok, int32_t id)
{
    const struct piece_entry *p = &tok->pieces[id];
    return (struct piece){ .bytes = vocab_bytes(tok, id),
                           .n_bytes = p->n_bytes,
                           .score = p->score,
                           .type = (enum piece_type)p->type };
}

int32_t tokenizer_find(const struct tokenizer *tok, const char *piece, size_t n_bytes)
{
    return find_piece_slot(tok, (uint32_t)hash64(0, piece, n_bytes), piece, n_bytes)->id;
}

int32_t tokenizer_find_control(const struct tokenizer *tok, const char *spelling)
{
    size_t n_bytes = strlen(spelling);
    for (int32_t id = tok->n_pieces - 1; id >= tok->n_library_pieces; id--) {
        if (piece_is(tok, id, spelling, n_bytes))
            return id;
    }
    if (tok->level)
        return byte_level_find_control(tok, spelling, n_bytes);
    for (size_t i = 0; i < tok->added.n; i++) { /* its spelling may differ from the model's */
        int32_t added = tok->added.list[i].id;
        if (tok->pieces[added].type == PIECE_CONTROL && piece_is(tok, added, spelling, n_bytes))
            return added;
    }
    int32_t id = tokenizer_find(tok, spelling, n_bytes);
    return id >= 0 && tok->pieces[id].type == PIECE_CONTROL ? id : -1;
}

int32_t tokenizer_find_added(const struct tokenizer *tok, const char *spelling)
{
    for (size_t i = 0; i < tok->added.n; i++)
        if (piece_is(tok, tok->added.list[i].id, spelling, strlen(spelling)))
            return tok->added.list[i].id;
    return -1;
}

const struct token_affixes *tokenizer_affixes(const struct tokenizer *tok)
{
    return &tok->affixes;
}

void tokenizer_describe(const struct tokenizer *tok, struct piece_vocab *out)
{
    *out = (struct piece_vocab){
        .n_pieces = (size_t)tok->n_pieces,
        .add_dummy_prefix = tok->add_dummy_prefix,
        .remove_extra_whitespaces = tok->remove_extra_whitespaces,
        .byte_fallback = tok->byte_fallback,
        .unk_id = tok->unk_id,
        .bos_id = tok->bos_id,
        .eos_id = tok->eos_id,
        .is_unigram = tok->kind == TOKENIZER_UNIGRAM,
        .map = tok->map_storage,
        .n_map_bytes = tok->n_map_bytes,
        .keeps_blanks = !tok->escape_whitespaces,
        .blank_is_suffix = tok->blank_is_suffix,
        .unk_surface = tok->unk_surface.bytes,
        .n_unk_surface = tok->unk_surface.n_bytes,
        .rules = tok->is_icetext ? PIECES_ICETEXT
                 : tok->is_pangu ? PIECES_PANGU
                                 : PIECES_PLAIN,
        .n_images = tok->n_images,
    };
}

const char *tokenizer_gguf_kind(const struct tokenizer *tok)
{
    if (!tok->escape_whitespaces || tok->blank_is_suffix || tok->is_icetext || tok->is_pangu)
        return NULL;
    if (tok->kind == TOKENIZER_UNIGRAM)
        return "t5";
    return tok->byte_fallback && tok->n_map_bytes == 0 ? "llama" : NULL;
}
