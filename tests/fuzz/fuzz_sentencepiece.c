/* Any bytes as a tokenizer.model: an error, or a tokenizer that encodes and decodes. The last bytes serve as text too. */
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    if (tokenizer_from_sentencepiece(&tok, bytes, n_bytes, "fuzz", &err) != TUTTI_OK) {
        assert(err.text[0] != '\0' && !tok);
        return 0;
    }
    size_t n_text = n_bytes < 200 ? n_bytes : 200;
    struct ids ids = { 0 };
    struct buf text = { 0 };
    assert(tokenizer_encode(tok, (const char *)bytes + n_bytes - n_text, n_text, &ids));
    assert(tokenizer_encode(tok, "Hello, world \xE4\xBD\xA0", 16, &ids));
    for (size_t i = 0; i < ids.n; i++)
        assert(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_n_pieces(tok));
    assert(tokenizer_decode(tok, ids.ids, ids.n, &text));
    ids_clear(&ids);
    buf_clear(&text);
    tokenizer_free(tok);
    return 0;
}
