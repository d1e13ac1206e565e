/* Reads OpenAI's tiktoken format: one line per token, with its bytes in base64 and its rank,
 * which is its id. */
#include "base/limits.h"
#include "tokenizer/json/byte_config.h"
#include "tokenizer/json/byte_files.h"
#include "tokenizer/vocab/base64.h"

#include <inttypes.h>
#include <string.h>

/* -1: not a number. */
static int64_t read_rank(const char *text, size_t n_bytes)
{
    int64_t rank = 0;
    if (n_bytes == 0 || n_bytes > 9)
        return -1;
    for (size_t i = 0; i < n_bytes; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        rank = 10 * rank + (text[i] - '0');
    }
    return rank;
}

struct tiktoken_line {
    const char *text;
    size_t n_text; /* base64 */
    int64_t rank;
};

/* False: not two words. */
static bool split_line(const char *line, size_t n_bytes, struct tiktoken_line *out)
{
    if (n_bytes > 0 && line[n_bytes - 1] == '\r')
        n_bytes--;
    const char *blank = memchr(line, ' ', n_bytes);
    if (!blank)
        return false;
    out->text = line;
    out->n_text = (size_t)(blank - line);
    out->rank = read_rank(blank + 1, n_bytes - out->n_text - 1);
    return out->rank >= 0;
}

bool tokenizer_is_tiktoken(const void *bytes, size_t n_bytes)
{
    const char *feed = n_bytes > 0 ? memchr(bytes, '\n', n_bytes) : NULL;
    size_t n_line = feed ? (size_t)(feed - (const char *)bytes) : n_bytes;
    struct tiktoken_line line;
    struct buf scratch = { 0 };
    bool is = n_line > 0 && n_line < 4096 && split_line(bytes, n_line, &line) &&
              base64_read(line.text, line.n_text, &scratch);
    buf_clear(&scratch);
    return is;
}

static size_t count_lines(const struct byte_file *file)
{
    size_t n = 1;
    const char *bytes = file->bytes;
    for (size_t i = 0; i < file->n_bytes; i++)
        n += bytes[i] == '\n';
    return n;
}

static enum tutti_status read_lines(struct tokenizer *tok, const struct byte_file *file,
                                    struct tutti_error *err)
{
    const char *at = file->bytes, *end = at + file->n_bytes;
    size_t n_lines = count_lines(file), number = 1;
    struct buf bytes = { 0 };
    enum tutti_status st = TUTTI_OK;
    for (; st == TUTTI_OK && at && at < end; number++) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((feed ? feed : end) - at);
        struct tiktoken_line line;
        buf_truncate(&bytes, 0);
        if (n > 0 && (!split_line(at, n, &line) || !base64_read(line.text, line.n_text, &bytes)))
            st = error_set(
                err, TUTTI_E_FORMAT,
                "%s: line %zu: expected base64, a blank and a rank below 1000000000, found \"%.*s\"",
                file->name, number, (int)(n < 64 ? n : 64), at);
        else if (n > 0)
            st = byte_level_put(tok, line.rank, bytes.bytes, bytes.n_bytes, PIECE_NORMAL, n_lines, file->name,
                                err);
        at += n + 1;
    }
    buf_clear(&bytes);
    return st == TUTTI_OK ? byte_level_index(tok, file->name, err) : st;
}

enum tutti_status tokenizer_from_tiktoken(struct tokenizer **out, const struct byte_file *file,
                                          const char *pre, const char *const *specials, size_t n_specials,
                                          const json_t *config, struct tutti_error *err)
{
    struct tokenizer *tok = byte_level_new();
    if (!tok)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", file->name);
    enum tutti_status st = byte_level_use(tok, pre_name_find(pre), pre, file->name, err);
    if (st == TUTTI_OK)
        st = read_lines(tok, file, err);
    tok->level->ignores_merges = true; /* regardless of the name, as in tiktoken */
    int32_t n_ranks = tok->n_pieces;
    if (st == TUTTI_OK)
        st = byte_config_add_all(tok, config, file->name, err);
    bool needs_specials = tok->added.n == 0;
    for (size_t i = 0; st == TUTTI_OK && needs_specials && i < n_specials; i++)
        st = byte_level_add(tok, specials[i], strlen(specials[i]),
                            (struct added_token){ .id = n_ranks + (int32_t)i, .is_special = true },
                            file->name, err);
    if (st == TUTTI_OK)
        st = byte_level_finish(tok, true, file->name, err);
    if (st == TUTTI_OK)
        st = byte_config_specials(tok, config, file->name, err);
    return tokenizer_give(out, tok, st);
}
