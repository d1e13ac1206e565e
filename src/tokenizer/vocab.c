/* The vocabulary: pieces by id and by spelling. */
#include "tokenizer/vocab.h"

#include "base/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t hash_bytes(const char *bytes, size_t n_bytes)
{
    uint64_t h = 0xcbf29ce484222325; /* FNV-1a, folded */
    for (size_t i = 0; i < n_bytes; i++)
        h = (h ^ (uint8_t)bytes[i]) * 0x100000001b3;
    return (uint32_t)(h ^ h >> 29);
}

bool vocab_add(struct tokenizer *tok, const char *bytes, size_t n_bytes, float score, enum piece_type type)
{
    if (tok->n_pieces == tok->capacity) {
        int32_t capacity = tok->capacity + tok->capacity / 2 + 256;
        struct piece_entry *more = realloc(tok->pieces, (size_t)capacity * sizeof *more);
        if (!more)
            return false;
        tok->pieces = more;
        tok->capacity = capacity;
    }
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

static uint32_t find_slot(const struct tokenizer *tok, const char *bytes, size_t n_bytes)
{
    uint32_t slot = hash_bytes(bytes, n_bytes) & (tok->n_slots - 1);
    while (tok->slots[slot] && !piece_is(tok, tok->slots[slot] - 1, bytes, n_bytes))
        slot = (slot + 1) & (tok->n_slots - 1);
    return slot;
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
    uint32_t slot = find_slot(tok, vocab_bytes(tok, id), p->n_bytes);
    if (tok->slots[slot])
        return error_set(err, TUTTI_E_FORMAT, "%s: pieces %d and %d are both spelled \"%.*s\"", name,
                         tok->slots[slot] - 1, id, (int)(p->n_bytes < 64 ? p->n_bytes : 64),
                         vocab_bytes(tok, id));
    tok->slots[slot] = id + 1;
    if (p->type == PIECE_BYTE) {
        int value = vocab_byte_value(vocab_bytes(tok, id), p->n_bytes);
        if (value < 0)
            return error_set(err, TUTTI_E_FORMAT, "%s: piece %d is of type BYTE, expected <0x00> to <0xFF>",
                             name, id);
        tok->byte_ids[value] = id;
    }
    tok->has_unused |= p->type == PIECE_UNUSED;
    return TUTTI_OK;
}

/* qsort has no argument for the tokenizer, so what is compared stands in the elements. */
struct user_defined {
    uint8_t first;
    uint32_t n_bytes;
    int32_t id;
};

static int by_first_then_longest(const void *a, const void *b)
{
    const struct user_defined *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    if (x->n_bytes != y->n_bytes)
        return x->n_bytes > y->n_bytes ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool collect_user_defined(struct tokenizer *tok)
{
    int32_t n = 0;
    for (int32_t id = 0; id < tok->n_pieces; id++)
        n += tok->pieces[id].type == PIECE_USER_DEFINED;
    if (n == 0)
        return true;
    struct user_defined *list = malloc((size_t)n * sizeof *list);
    tok->user_defined = malloc((size_t)n * sizeof *tok->user_defined);
    bool ok = list && tok->user_defined;
    for (int32_t id = 0; ok && id < tok->n_pieces; id++) {
        if (tok->pieces[id].type == PIECE_USER_DEFINED)
            list[tok->n_user_defined++] = (struct user_defined){ .first = (uint8_t)vocab_bytes(tok, id)[0],
                                                                 .n_bytes = tok->pieces[id].n_bytes,
                                                                 .id = id };
    }
    if (ok)
        qsort(list, (size_t)n, sizeof *list, by_first_then_longest);
    for (int32_t i = 0; ok && i < n; i++)
        tok->user_defined[i] = list[i].id;
    free(list);
    return ok;
}

size_t vocab_match_user_defined(const struct tokenizer *tok, const char *text, size_t n_bytes)
{
    if (tok->n_user_defined == 0 || n_bytes == 0)
        return 0;
    int32_t lo = 0, hi = tok->n_user_defined; /* the first whose first byte is not below text's */
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)vocab_bytes(tok, tok->user_defined[mid])[0] < (uint8_t)text[0])
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < tok->n_user_defined && vocab_bytes(tok, tok->user_defined[lo])[0] == text[0]; lo++) {
        const struct piece_entry *p = &tok->pieces[tok->user_defined[lo]];
        if (p->n_bytes <= n_bytes && memcmp(tok->bytes.bytes + p->offset, text, p->n_bytes) == 0)
            return p->n_bytes;
    }
    return 0;
}

enum tutti_status vocab_finish(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    for (int i = 0; i < 256; i++)
        tok->byte_ids[i] = -1;
    tok->n_slots = 16;
    while (tok->n_slots < 2 * (uint32_t)tok->n_pieces + 512) /* room for appended special tokens */
        tok->n_slots *= 2;
    tok->slots = calloc(tok->n_slots, sizeof *tok->slots);
    if (!tok->slots || !collect_user_defined(tok))
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    for (int32_t id = 0; id < tok->n_pieces; id++) {
        if (!isfinite(tok->pieces[id].score))
            return error_set(err, TUTTI_E_FORMAT, "%s: piece %d: its score is not finite", name, id);
        enum tutti_status st = index_piece(tok, id, name, err);
        if (st != TUTTI_OK)
            return st;
    }
    for (int i = 0; tok->byte_fallback && i < 256; i++) {
        if (tok->byte_ids[i] < 0)
            return error_set(err, TUTTI_E_FORMAT, "%s: byte_fallback is set, but there is no piece <0x%02X>",
                             name, i);
    }
    tok->n_library_pieces = tok->n_pieces;
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
    return TUTTI_OK;
}

void tokenizer_free(struct tokenizer *tok)
{
    if (!tok)
        return;
    buf_clear(&tok->bytes);
    buf_clear(&tok->unk_surface);
    free(tok->pieces);
    free(tok->slots);
    free(tok->user_defined);
    free(tok->map_storage);
    free(tok);
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
    return tok->slots[find_slot(tok, piece, n_bytes)] - 1;
}

int32_t tokenizer_find_control(const struct tokenizer *tok, const char *spelling)
{
    size_t n_bytes = strlen(spelling);
    for (int32_t id = tok->n_pieces - 1; id >= tok->n_library_pieces; id--) {
        if (piece_is(tok, id, spelling, n_bytes))
            return id;
    }
    int32_t id = tokenizer_find(tok, spelling, n_bytes);
    return id >= 0 && tok->pieces[id].type == PIECE_CONTROL ? id : -1;
}

bool tokenizer_adds_dummy_prefix(const struct tokenizer *tok)
{
    return tok->add_dummy_prefix;
}

bool tokenizer_removes_extra_whitespaces(const struct tokenizer *tok)
{
    return tok->remove_extra_whitespaces;
}

bool tokenizer_is_plain(const struct tokenizer *tok)
{
    return tok->byte_fallback && tok->escape_whitespaces && !tok->blank_is_suffix && tok->map.n_units == 0;
}
