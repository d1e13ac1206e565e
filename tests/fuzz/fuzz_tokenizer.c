/* A model file of any SentencePiece kind and a text for it: an error, or ids within the vocabulary whose text comes back
 * alike at once and piece by piece; and the same vocabulary given as arrays encodes the same.
 * Input: which reader (a byte, modulo 3), bytes of the text (a byte), the text, the file. */
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { N_IMAGES = 5 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static struct tokenizer *load(int kind, const uint8_t *bytes, size_t n_bytes)
{
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    enum tutti_status st;
    if (kind == 0)
        st = tokenizer_from_sentencepiece(&tok, bytes, n_bytes, "fuzz", &err);
    else if (kind == 1)
        st = tokenizer_from_icetext(&tok, bytes, n_bytes, N_IMAGES, "fuzz", &err);
    else
        st = tokenizer_from_pangu(&tok, bytes, n_bytes, NULL, "fuzz", &err);
    assert((st == TUTTI_OK) == (tok != NULL));
    assert(tok || err.text[0] != '\0');
    return tok;
}

static void check_detokenizer(const struct tokenizer *tok, const struct ids *ids)
{
    struct buf whole = { 0 }, parts = { 0 };
    struct detokenizer d;
    assert(tokenizer_decode(tok, ids->ids, ids->n, &whole));
    detokenizer_init(&d, tok, false);
    for (size_t i = 0; i < ids->n; i++)
        assert(detokenizer_push(&d, ids->ids[i], &parts));
    assert(detokenizer_finish(&d, &parts));
    assert(whole.n_bytes == parts.n_bytes &&
           (whole.n_bytes == 0 || memcmp(whole.bytes, parts.bytes, whole.n_bytes) == 0));
    buf_clear(&whole);
    buf_clear(&parts);
}

/* Where GGUF can say the tokenizer, what it says makes the same. */
static void check_arrays(const struct tokenizer *tok, const char *text, size_t n_text, const struct ids *want)
{
    const char *kind = tokenizer_gguf_kind(tok);
    if (!kind)
        return;
    size_t n = (size_t)tokenizer_n_pieces(tok);
    struct piece *pieces = malloc(n * sizeof *pieces);
    assert(pieces);
    struct piece_vocab own;
    tokenizer_describe(tok, &own);
    struct piece_vocab vocab = { .pieces = pieces,
                                 .n_pieces = n,
                                 .add_dummy_prefix = own.add_dummy_prefix,
                                 .remove_extra_whitespaces = own.remove_extra_whitespaces,
                                 .map = own.map,
                                 .n_map_bytes = own.n_map_bytes,
                                 .is_unigram = strcmp(kind, "t5") == 0,
                                 .unk_id = tokenizer_unk(tok),
                                 .bos_id = tokenizer_bos(tok),
                                 .eos_id = tokenizer_eos(tok) };
    for (size_t i = 0; i < n; i++) {
        pieces[i] = tokenizer_piece(tok, (int32_t)i);
        vocab.byte_fallback |= pieces[i].type == PIECE_BYTE;
    }
    struct tokenizer *again = NULL;
    struct ids ids = { 0 };
    assert(tokenizer_from_pieces(&again, &vocab, "arrays", NULL) == TUTTI_OK);
    assert(tokenizer_encode(again, text, n_text, &ids));
    assert(ids.n == want->n && (ids.n == 0 || memcmp(ids.ids, want->ids, ids.n * sizeof *ids.ids) == 0));
    ids_clear(&ids);
    tokenizer_free(again);
    free(pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes < 2)
        return 0;
    size_t n_text = bytes[1] < n_bytes - 2 ? bytes[1] : n_bytes - 2;
    const char *text = (const char *)bytes + 2;
    struct tokenizer *tok = load(bytes[0] % 3, bytes + 2 + n_text, n_bytes - 2 - n_text);
    if (!tok)
        return 0;
    struct ids ids = { 0 };
    assert(tokenizer_encode(tok, text, n_text, &ids));
    for (size_t i = 0; i < ids.n; i++)
        assert(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_n_pieces(tok));
    check_detokenizer(tok, &ids);
    check_arrays(tok, text, n_text, &ids);
    ids_clear(&ids);
    for (size_t i = 0; i < n_text; i++) /* any ids, images and control pieces too */
        assert(ids_add(&ids, (int32_t)(bytes[2 + i] * 7u) % tokenizer_n_pieces(tok)));
    check_detokenizer(tok, &ids);
    ids_clear(&ids);
    tokenizer_free(tok);
    return 0;
}
