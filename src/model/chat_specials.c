/* Text with special tokens to ids. A token counts where the format's own text spells all of it; what lies between two of
 * them is tokenized as one text, so that words which a message shares with the format are cut as its authors cut them. */
#include "model/chat.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct chat_specials {
    struct special {
        const char *text; /* the tokenizer's, or its own */
        size_t n_bytes;
        int32_t id;
        bool owns_text;
    } * items; /* by first byte, longest first */
    size_t n;
    uint32_t first[257]; /* items of byte b: [first[b], first[b + 1]) */
};

static int by_first_and_length(const void *a, const void *b)
{
    const struct special *x = a, *y = b;
    uint8_t p = (uint8_t)x->text[0], q = (uint8_t)y->text[0];
    if (p != q)
        return p < q ? -1 : 1;
    if (x->n_bytes != y->n_bytes)
        return x->n_bytes > y->n_bytes ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool is_special(struct piece piece)
{
    return piece.type == PIECE_CONTROL && piece.n_bytes > 0;
}

enum tutti_status chat_specials_new(struct chat_specials **out, const struct tokenizer *tok,
                                    const json_t *spellings, struct tutti_error *err)
{
    size_t n = json_object_size(spellings);
    int32_t n_pieces = tokenizer_n_pieces(tok);
    const char *spelling;
    json_t *value;
    for (int32_t id = 0; id < n_pieces; id++)
        n += is_special(tokenizer_piece(tok, id));
    struct chat_specials *specials = calloc(1, sizeof *specials);
    if (specials)
        specials->items = calloc(n + 1, sizeof *specials->items);
    if (!specials || !specials->items) {
        chat_specials_free(specials);
        return chat_out_of_memory(err);
    }
    for (int32_t id = 0; id < n_pieces; id++) {
        struct piece piece = tokenizer_piece(tok, id);
        if (is_special(piece))
            specials->items[specials->n++] = (struct special){ piece.bytes, piece.n_bytes, id, false };
    }
    json_object_foreach((json_t *)(uintptr_t)spellings, spelling, value)
    {
        json_int_t id = json_integer_value(value);
        size_t n_bytes = strlen(spelling);
        char *own = n_bytes > 0 && json_is_integer(value) && id >= 0 && id < n_pieces ? strdup(spelling)
                                                                                      : NULL;
        if (own)
            specials->items[specials->n++] = (struct special){ own, n_bytes, (int32_t)id, true };
    }
    qsort(specials->items, specials->n, sizeof *specials->items, by_first_and_length);
    for (size_t b = 0, i = 0; b <= 256; b++) {
        while (i < specials->n && (uint8_t)specials->items[i].text[0] < b)
            i++;
        specials->first[b] = (uint32_t)i;
    }
    *out = specials;
    return TUTTI_OK;
}

void chat_specials_free(struct chat_specials *specials)
{
    for (size_t i = 0; specials && i < specials->n; i++) {
        if (specials->items[i].owns_text)
            free((char *)(uintptr_t)specials->items[i].text);
    }
    if (specials)
        free(specials->items);
    free(specials);
}

/* The longest special token that the text begins with; NULL: none. */
static const struct special *find_at(const struct chat_specials *specials, const char *text, size_t n_bytes)
{
    uint8_t byte = (uint8_t)text[0];
    for (uint32_t i = specials->first[byte]; i < specials->first[byte + 1]; i++) {
        const struct special *s = &specials->items[i];
        if (s->n_bytes <= n_bytes && memcmp(s->text, text, s->n_bytes) == 0)
            return s;
    }
    return NULL;
}

/* Where the tokenizer puts a blank before a text, one that stands behind a special token already is that blank. */
static bool encode_between(const struct tokenizer *tok, const char *text, size_t begin, size_t end,
                           struct ids *out)
{
    if (begin > 0 && begin < end && text[begin] == ' ' && tokenizer_adds_dummy_prefix(tok))
        begin++;
    return begin == end || tokenizer_encode(tok, text + begin, end - begin, out);
}

/* A tokenizer that knows its special tokens cuts the text itself, as its library does. */
static bool encode_ranges(const struct tokenizer *tok, const struct template_output *text, struct ids *out)
{
    struct trusted_range *ranges = calloc(text->n_segments + 1, sizeof *ranges);
    size_t n = 0, begin = 0;
    for (size_t i = 0; ranges && i < text->n_segments; begin = text->segments[i++].end) {
        if (!text->segments[i].is_user)
            ranges[n++] = (struct trusted_range){ begin, text->segments[i].end };
    }
    bool ok = ranges && tokenizer_encode_ranges(tok, text->text, text->n_bytes, ranges, n, out);
    free(ranges);
    return ok;
}

bool chat_encode(const struct chat_specials *specials, const struct tokenizer *tok,
                 const struct template_output *text, struct ids *out)
{
    size_t done = 0, begin = 0;
    if (tokenizer_knows_specials(tok))
        return encode_ranges(tok, text, out);
    for (size_t i = 0; i < text->n_segments; begin = text->segments[i++].end) {
        size_t end = text->segments[i].end;
        for (size_t at = begin; !text->segments[i].is_user && at < end;) {
            const struct special *s = find_at(specials, text->text + at, end - at);
            if (!s) {
                at++;
                continue;
            }
            if (!encode_between(tok, text->text, done, at, out) || !ids_add(out, s->id))
                return false;
            at += s->n_bytes;
            done = at;
        }
    }
    return encode_between(tok, text->text, done, text->n_bytes, out);
}

enum tutti_status chat_encode_trusted(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                      struct ids *out, struct tutti_error *err)
{
    struct template_segment all = { .end = n_bytes };
    struct template_output whole = {
        .text = (char *)(uintptr_t)text, .n_bytes = n_bytes, .segments = &all, .n_segments = 1
    };
    struct chat_specials *specials = NULL;
    enum tutti_status st = chat_specials_new(&specials, tok, NULL, err);
    assert(st != TUTTI_OK || specials);
    if (st == TUTTI_OK && !chat_encode(specials, tok, &whole, out))
        st = error_set(err, TUTTI_E_MEMORY, "tokenizing the prompt: out of memory");
    chat_specials_free(specials);
    return st;
}
