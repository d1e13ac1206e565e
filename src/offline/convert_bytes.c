/* Writes a byte-level vocabulary for GGUF: spelled in the alphabet of byte_map.h, with its
 * merges. */
#include "base/containers/array.h"
#include "offline/convert_meta.h"
#include "tokenizer/json/byte_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Concatenated strings. */
struct strings {
    struct buf bytes;
    size_t *ends;
    size_t n, capacity;
};

static bool end_string(struct strings *s)
{
    if (!array_grow(&s->ends, s->n, &s->capacity, sizeof *s->ends))
        return false;
    s->ends[s->n++] = s->bytes.n_bytes;
    return true;
}

static bool add_merge_line(void *to, const char *line, size_t n_bytes)
{
    struct strings *s = to;
    return buf_add(&s->bytes, line, n_bytes) && end_string(s);
}

static bool put_strings(struct gguf_writer *w, const char *key, const struct strings *s)
{
    const char **texts = calloc(s->n + 1, sizeof *texts);
    size_t *n_bytes = calloc(s->n + 1, sizeof *n_bytes), begin = 0;
    bool ok = texts && n_bytes;
    for (size_t i = 0; ok && i < s->n; i++) {
        texts[i] = s->bytes.bytes + begin;
        n_bytes[i] = s->ends[i] - begin;
        begin = s->ends[i];
    }
    if (ok)
        gguf_writer_strings(w, key, texts, n_bytes, s->n);
    free((void *)texts);
    free(n_bytes);
    return ok;
}

static void strings_clear(struct strings *s)
{
    buf_clear(&s->bytes);
    free(s->ends);
}

/* Embedding rows without a token get a generated name. */
static bool add_row_token(struct strings *s, int32_t *type, const struct tokenizer *tok, int32_t id)
{
    bool is_token = id < tokenizer_n_pieces(tok) && tokenizer_piece(tok, id).n_bytes > 0;
    *type = is_token ? (int32_t)tokenizer_piece(tok, id).type : PIECE_UNUSED;
    return (is_token ? tokenizer_spelling(tok, id, &s->bytes) : buf_printf(&s->bytes, "[PAD%d]", id)) &&
           end_string(s);
}

enum tutti_status convert_byte_vocab(struct gguf_writer *w, const struct tokenizer *tok, const char *pre,
                                     int n_vocab, const char *name, struct tutti_error *err)
{
    struct strings tokens = { .n = 0 }, merges = { .n = 0 };
    int32_t *types = calloc((size_t)n_vocab, sizeof *types);
    bool ok = types;
    for (int32_t id = 0; ok && id < n_vocab; id++)
        ok = add_row_token(&tokens, &types[id], tok, id);
    ok = ok && tokenizer_each_merge(tok, add_merge_line, &merges);
    if (ok) {
        gguf_writer_string(w, "tokenizer.ggml.model", "gpt2", 4);
        gguf_writer_string(w, "tokenizer.ggml.pre", pre, strlen(pre));
        ok = put_strings(w, "tokenizer.ggml.tokens", &tokens) &&
             put_strings(w, "tokenizer.ggml.merges", &merges);
        gguf_writer_i32s(w, "tokenizer.ggml.token_type", types, (size_t)n_vocab);
    }
    strings_clear(&tokens);
    strings_clear(&merges);
    free(types);
    return ok ? TUTTI_OK : error_out_of_memory(name, err);
}

/* Whether a blank is put in front of a text: then the first token of "a" begins with its mark. */
static bool adds_blank(bool *out, const struct tokenizer *tok)
{
    static const char MARK[] = "\u2581";
    struct ids ids = { 0 };
    bool ok = tokenizer_encode(tok, "a", 1, &ids);
    if (ok && ids.n > 0) {
        struct piece p = tokenizer_piece(tok, ids.ids[0]);
        *out = p.n_bytes >= sizeof MARK - 1 && memcmp(p.bytes, MARK, sizeof MARK - 1) == 0;
    }
    ids_clear(&ids);
    return ok;
}

enum tutti_status convert_text_vocab(struct gguf_writer *w, const struct tokenizer *tok, int n_vocab,
                                     const char *name, struct tutti_error *err)
{
    struct strings tokens = { .n = 0 };
    int n_pieces = tokenizer_n_pieces(tok), n = n_pieces > n_vocab ? n_pieces : n_vocab;
    int32_t *types = calloc((size_t)n, sizeof *types);
    float *scores = calloc((size_t)n, sizeof *scores);
    bool has_blank = false, ok = types && scores && adds_blank(&has_blank, tok);
    for (int32_t id = 0; ok && id < n_vocab; id++)
        ok = add_row_token(&tokens, &types[id], tok, id);
    if (ok) {
        tokenizer_score_merges(tok, scores);
        gguf_writer_string(w, "tokenizer.ggml.model", "llama", 5);
        gguf_writer_string(w, "tokenizer.ggml.pre", "default", 7);
        ok = put_strings(w, "tokenizer.ggml.tokens", &tokens);
        gguf_writer_f32s(w, "tokenizer.ggml.scores", scores, (size_t)n_vocab);
        gguf_writer_i32s(w, "tokenizer.ggml.token_type", types, (size_t)n_vocab);
        gguf_writer_bool(w, "tokenizer.ggml.add_space_prefix", has_blank);
    }
    strings_clear(&tokens);
    free(types);
    free(scores);
    return ok ? TUTTI_OK : error_out_of_memory(name, err);
}
