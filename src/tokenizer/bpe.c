/* Byte-pair encoding in SentencePiece's order: of all pairs of neighbours whose union is a piece, the one with the highest
 * score merges next, of equal ones the leftmost. Sennrich, Haddow and Birch, 2016; Kudo and Richardson, 2018. */
#include "tokenizer/vocab.h"

#include <stdlib.h>
#include <string.h>

struct symbol {
    uint32_t offset, n_bytes; /* in the normalized text; n_bytes 0: merged into its left neighbour */
    int32_t prev, next;       /* -1: none */
    bool is_frozen;           /* a user-defined piece: never merges */
};

struct pair {
    float score;
    int32_t left, right;
    uint32_t n_bytes; /* of both together, to see whether either has changed since */
};

struct encoder {
    const struct tokenizer *tok;
    const char *text;
    struct symbol *symbols;
    int32_t n_symbols;
    struct pair *heap;
    size_t n_heap, heap_capacity;
    uint32_t *
        split_at; /* [n_pieces], only where the vocabulary has UNUSED pieces: bytes of the left part that such a
                           piece was last made from */
    bool has_memory;
};

/* Length of a character by its lead byte alone, as the library cuts its normalized text. */
static size_t char_length(const char *text, size_t n_bytes)
{
    static const uint8_t LENGTHS[16] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4 };
    size_t n = LENGTHS[(uint8_t)*text >> 4];
    return n < n_bytes ? n : n_bytes;
}

static bool goes_first(const struct pair *a, const struct pair *b)
{
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static void heap_push(struct encoder *e, struct pair pair)
{
    if (e->n_heap == e->heap_capacity) {
        size_t capacity = e->heap_capacity + e->heap_capacity / 2 + 64;
        struct pair *more = realloc(e->heap, capacity * sizeof *more);
        if (!more) {
            e->has_memory = false;
            return;
        }
        e->heap = more;
        e->heap_capacity = capacity;
    }
    size_t i = e->n_heap++;
    while (i > 0 && goes_first(&pair, &e->heap[(i - 1) / 2])) {
        e->heap[i] = e->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    e->heap[i] = pair;
}

static struct pair heap_pop(struct encoder *e)
{
    struct pair top = e->heap[0], last = e->heap[--e->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= e->n_heap)
            break;
        if (child + 1 < e->n_heap && goes_first(&e->heap[child + 1], &e->heap[child]))
            child++;
        if (!goes_first(&e->heap[child], &last))
            break;
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return top;
}

static bool can_merge_into(enum piece_type type)
{
    return type == PIECE_NORMAL || type == PIECE_USER_DEFINED || type == PIECE_UNUSED;
}

static void consider(struct encoder *e, int32_t left, int32_t right)
{
    if (left < 0 || right < 0 || e->symbols[left].is_frozen || e->symbols[right].is_frozen)
        return;
    const struct symbol *l = &e->symbols[left];
    uint32_t n_bytes = l->n_bytes + e->symbols[right].n_bytes;
    int32_t id = tokenizer_find(e->tok, e->text + l->offset, n_bytes);
    if (id < 0 || !can_merge_into((enum piece_type)e->tok->pieces[id].type))
        return;
    heap_push(e, (struct pair){
                     .score = e->tok->pieces[id].score, .left = left, .right = right, .n_bytes = n_bytes });
    if (e->split_at)
        e->split_at[id] = l->n_bytes;
}

static void merge_all(struct encoder *e)
{
    while (e->n_heap > 0 && e->has_memory) {
        struct pair p = heap_pop(e);
        struct symbol *left = &e->symbols[p.left], *right = &e->symbols[p.right];
        if (left->n_bytes == 0 || right->n_bytes == 0 || left->n_bytes + right->n_bytes != p.n_bytes)
            continue; /* one of them has merged with another meanwhile */
        left->n_bytes = p.n_bytes;
        left->next = right->next;
        if (right->next >= 0)
            e->symbols[right->next].prev = p.left;
        right->n_bytes = 0;
        consider(e, left->prev, p.left);
        consider(e, p.left, left->next);
    }
}

static bool add_unknown(const struct encoder *e, const char *text, uint32_t n_bytes, bool *after_unknown,
                        struct ids *out)
{
    if (e->tok->byte_fallback) {
        for (uint32_t i = 0; i < n_bytes; i++) {
            if (!ids_add(out, e->tok->byte_ids[(uint8_t)text[i]]))
                return false;
        }
        return true;
    }
    bool fuses = *after_unknown; /* a run of unknown characters is one unknown piece */
    *after_unknown = true;
    return fuses || ids_add(out, e->tok->unk_id);
}

/* A symbol's id. An UNUSED piece falls apart into what it was merged from, until its parts are usable. */
static bool add_symbol(const struct encoder *e, const struct symbol *symbol, struct buf *stack,
                       bool *after_unknown, struct ids *out)
{
    struct part {
        uint32_t offset, n_bytes;
    } part = { symbol->offset, symbol->n_bytes };
    buf_truncate(stack, 0);
    for (;;) {
        const char *text = e->text + part.offset;
        int32_t id = tokenizer_find(e->tok, text, part.n_bytes);
        enum piece_type type = id < 0 ? PIECE_UNKNOWN : (enum piece_type)e->tok->pieces[id].type;
        uint32_t left = type == PIECE_UNUSED && e->split_at ? e->split_at[id] : 0;
        if (left > 0 && left < part.n_bytes) {
            struct part right = { part.offset + left, part.n_bytes - left };
            if (!buf_add(stack, &right, sizeof right))
                return false;
            part.n_bytes = left;
            continue;
        }
        if (type == PIECE_UNKNOWN) {
            if (!add_unknown(e, text, part.n_bytes, after_unknown, out))
                return false;
        } else {
            *after_unknown = false;
            if (!ids_add(out, id))
                return false;
        }
        if (stack->n_bytes == 0)
            return true;
        memcpy(&part, stack->bytes + stack->n_bytes - sizeof part, sizeof part);
        buf_truncate(stack, stack->n_bytes - sizeof part);
    }
}

static bool split(struct encoder *e, size_t n_bytes)
{
    size_t at = 0;
    while (at < n_bytes) {
        const char *text = e->text + at;
        size_t frozen = vocab_match_user_defined(e->tok, text, n_bytes - at);
        size_t n = frozen ? frozen : char_length(text, n_bytes - at);
        int32_t i = e->n_symbols++;
        e->symbols[i] = (struct symbol){ .offset = (uint32_t)at,
                                         .n_bytes = (uint32_t)n,
                                         .prev = i - 1,
                                         .next = at + n < n_bytes ? i + 1 : -1,
                                         .is_frozen = frozen > 0 };
        at += n;
    }
    return e->n_symbols > 0;
}

static bool encode_normalized(struct encoder *e, size_t n_bytes, struct ids *out)
{
    bool after_unknown = false, ok = true;
    struct buf stack = { 0 };
    if (split(e, n_bytes)) {
        for (int32_t i = 1; i < e->n_symbols; i++)
            consider(e, i - 1, i);
        merge_all(e);
    }
    ok = e->has_memory;
    for (int32_t i = e->n_symbols > 0 ? 0 : -1; ok && i >= 0; i = e->symbols[i].next)
        ok = add_symbol(e, &e->symbols[i], &stack, &after_unknown, out);
    buf_clear(&stack);
    return ok;
}

bool tokenizer_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, struct ids *out)
{
    struct buf normalized = { 0 };
    struct encoder e = { .tok = tok, .has_memory = true };
    size_t n_before = out->n;
    bool ok = n_bytes < INT32_MAX / 4 && tokenizer_normalize(tok, text, n_bytes, &normalized) &&
              normalized.n_bytes < INT32_MAX;
    if (ok && normalized.n_bytes > 0) {
        e.text = normalized.bytes;
        e.symbols = malloc(normalized.n_bytes * sizeof *e.symbols);
        e.split_at = tok->has_unused ? calloc((size_t)tok->n_pieces, sizeof *e.split_at) : NULL;
        ok = e.symbols && (e.split_at || !tok->has_unused) && encode_normalized(&e, normalized.n_bytes, out);
    }
    if (!ok)
        out->n = n_before;
    free(e.symbols);
    free(e.split_at);
    free(e.heap);
    buf_clear(&normalized);
    return ok;
}
