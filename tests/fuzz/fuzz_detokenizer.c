/* Any sequence of ids: what comes piece by piece is what decoding gives at once, in whole characters. */
#include "base/files/mapping.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static struct tokenizer *demo(void)
{
    static struct tokenizer *tok;
    struct mapping map;
    const char *path = getenv("FUZZ_TOKENIZER");
    if (tok)
        return tok;
    if (mapping_open(&map, path ? path : "models/demo/tokenizer.model", NULL) != TUTTI_OK ||
        tokenizer_from_sentencepiece(&tok, map.bytes, map.n_bytes, "demo", NULL) != TUTTI_OK)
        abort();
    mapping_close(&map);
    return tok;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    const struct tokenizer *tok = demo();
    size_t n = n_bytes / 2;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    struct buf whole = { 0 }, pieces = { 0 };
    struct detokenizer d;
    assert(ids);
    for (size_t i = 0; i < n; i++) {
        int32_t id = bytes[2 * i] | bytes[2 * i + 1] << 8;
        ids[i] = id & 0x8000 ? id % 270
                             : id % tokenizer_n_pieces(tok); /* half of them byte and control pieces */
    }
    assert(tokenizer_decode(tok, ids, n, &whole));
    detokenizer_init(&d, tok, false);
    for (size_t i = 0; i < n; i++) {
        size_t before = pieces.n_bytes;
        assert(detokenizer_push(&d, ids[i], &pieces));
        assert(d.n_held < 4 &&
               (pieces.n_bytes == before || utf8_is_valid(pieces.bytes + before, pieces.n_bytes - before)));
        assert(d.n_held == 0 || utf8_is_start((const char *)d.held, (size_t)d.n_held));
    }
    assert(detokenizer_finish(&d, &pieces));
    assert(whole.n_bytes == pieces.n_bytes &&
           (whole.n_bytes == 0 || memcmp(whole.bytes, pieces.bytes, whole.n_bytes) == 0));
    buf_clear(&whole);
    buf_clear(&pieces);
    free(ids);
    return 0;
}
