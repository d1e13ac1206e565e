/* Any bytes as a tokenizer.json, a file of tiktoken, or vocab.json and merges.txt with a zero byte between: an error, or a
 * tokenizer that encodes and decodes. The last bytes serve as text too. */
#include "tokenizer/json/byte_files.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static enum tutti_status load(struct tokenizer **out, const uint8_t *bytes, size_t n_bytes,
                              struct tutti_error *err)
{
    struct byte_file file = { bytes, n_bytes, "fuzz" };
    const uint8_t *zero = n_bytes > 0 ? memchr(bytes, 0, n_bytes) : NULL;
    if (tokenizer_is_tiktoken(bytes, n_bytes))
        return tokenizer_from_tiktoken(out, &file, "glm4", NULL, 0, NULL, err);
    if (!zero)
        return tokenizer_from_json(out, &file, NULL, err);
    struct byte_file vocab = { bytes, (size_t)(zero - bytes), "fuzz" },
                     merges = { zero + 1, n_bytes - vocab.n_bytes - 1, "fuzz" };
    return tokenizer_from_vocab_merges(out, &vocab, &merges, "qwen2", NULL, err);
}

static void check_ids(const struct tokenizer *tok, const struct ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        assert(ids->ids[i] >= 0 && ids->ids[i] < tokenizer_n_pieces(tok));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    if (load(&tok, bytes, n_bytes, &err) != TUTTI_OK) {
        assert(err.text[0] != '\0' && !tok);
        return 0;
    }
    size_t n_text = n_bytes < 200 ? n_bytes : 200;
    struct ids ids = { 0 };
    struct buf text = { 0 };
    /* False is allowed: the file's patterns may take more steps than they are granted. */
    if (tokenizer_encode(tok, (const char *)bytes + n_bytes - n_text, n_text, &ids))
        check_ids(tok, &ids);
    if (tokenizer_encode_trusted(tok, "Hello, wo\xCC\x81rld <x> \xE4\xBD\xA0\xFF\n", 21, &ids))
        check_ids(tok, &ids);
    assert(tokenizer_decode(tok, ids.ids, ids.n, &text));
    ids_clear(&ids);
    buf_clear(&text);
    tokenizer_free(tok);
    return 0;
}
