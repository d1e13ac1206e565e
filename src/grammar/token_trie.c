#include "grammar/token_trie.h"

#include "base/system/os.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_TOKEN_BYTES = 4096, /* longer ones are skipped: it is the maximum depth of a walk */
    MAX_CODES = 1 << 7 * (TOKEN_CODE_BYTES - 1) /* ids from here on have none */
};

static bool is_marker(const char *bytes, size_t n)
{
    return n > 2 && ((bytes[0] == '<' && bytes[n - 1] == '>') || (bytes[0] == '[' && bytes[n - 1] == ']'));
}

bool token_trie_has_code(struct piece piece)
{
    return piece.n_bytes > 0 && (piece.type == PIECE_CONTROL ||
                                 (piece.type == PIECE_USER_DEFINED && is_marker(piece.bytes, piece.n_bytes)));
}

/* Text has no code's first byte. */
static bool is_text_piece(struct piece piece, const char *bytes, size_t n)
{
    if (n == 0 || n > MAX_TOKEN_BYTES || memchr(bytes, 0xFF, n))
        return false;
    return piece.type == PIECE_NORMAL || piece.type == PIECE_BYTE ||
           (piece.type == PIECE_USER_DEFINED && !is_marker(bytes, n));
}

/* Appends the bytes of a token that is in the trie. False: out of memory. */
static bool add_token_bytes(const struct token_trie *trie, const struct tokenizer *tok, int32_t id,
                            struct buf *all)
{
    size_t begin = all->n_bytes;
    struct piece piece = tokenizer_piece(tok, id);
    char code[TOKEN_CODE_BYTES];
    if (token_trie_has_code(piece)) {
        token_trie_code(id, code);
        return trie->n_vocab > MAX_CODES || buf_add(all, code, sizeof code);
    }
    if (!tokenizer_token_bytes(tok, id, all))
        return false;
    if (!is_text_piece(piece, all->bytes ? all->bytes + begin : "", all->n_bytes - begin) && all->bytes)
        buf_truncate(all, begin);
    return true;
}

/* Collects the bytes of all tokens. */
static bool read_vocab_bytes(struct token_trie *trie, const struct tokenizer *tok)
{
    struct buf all = { 0 };
    int32_t n_pieces = tokenizer_n_pieces(tok);
    for (int32_t id = 0; id < trie->n_vocab; id++) {
        size_t begin = all.n_bytes;
        trie->offsets[id] = (uint32_t)begin;
        if (id >= n_pieces)
            continue;
        if (!add_token_bytes(trie, tok, id, &all) || all.n_bytes > UINT32_MAX / 2) {
            buf_clear(&all);
            return false;
        }
        trie->n_tokens += all.n_bytes > begin;
    }
    trie->offsets[trie->n_vocab] = (uint32_t)all.n_bytes;
    trie->bytes = all.bytes;
    return true;
}

static int compare_tokens(const void *a, const void *b, void *user)
{
    const struct token_trie *trie = user;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    size_t n_x, n_y;
    const char *bytes_x = token_trie_bytes(trie, x, &n_x), *bytes_y = token_trie_bytes(trie, y, &n_y);
    int order = memcmp(bytes_x, bytes_y, n_x < n_y ? n_x : n_y);
    if (order == 0)
        order = n_x < n_y ? -1 : n_x > n_y;
    return order ? order : x < y ? -1 : x > y;
}

static size_t shared_bytes(const struct token_trie *trie, int32_t left, int32_t right)
{
    size_t n_left, n_right, n = 0;
    const char *a = token_trie_bytes(trie, left, &n_left), *b = token_trie_bytes(trie, right, &n_right);
    while (n < n_left && n < n_right && a[n] == b[n])
        n++;
    return n;
}

static size_t length(const struct token_trie *trie, int32_t id)
{
    return trie->offsets[id + 1] - trie->offsets[id];
}

static bool sort_tokens(struct token_trie *trie, size_t *n_nodes)
{
    int32_t n = 0;
    trie->sorted = malloc(((size_t)trie->n_tokens + 1) * sizeof *trie->sorted);
    if (!trie->sorted)
        return false;
    for (int32_t id = 0; id < trie->n_vocab; id++)
        if (length(trie, id) > 0)
            trie->sorted[n++] = id;
    os_sort(trie->sorted, (size_t)n, sizeof *trie->sorted, compare_tokens, trie);
    *n_nodes = 1;
    for (int32_t i = 0; i < n; i++)
        *n_nodes += length(trie, trie->sorted[i]) -
                    (i > 0 ? shared_bytes(trie, trie->sorted[i - 1], trie->sorted[i]) : 0);
    return *n_nodes < INT32_MAX;
}

/* One pass over the sorted tokens; open[d]: the node of depth d on the path to the last one. */
static void build_nodes(struct token_trie *trie, int32_t *open)
{
    int32_t n = 1;
    size_t n_open = 0;
    open[0] = 0;
    trie->first_token[0] = 0;
    for (int32_t i = 0; i < trie->n_tokens; i++) {
        int32_t id = trie->sorted[i];
        size_t n_bytes, n_shared = i > 0 ? shared_bytes(trie, trie->sorted[i - 1], id) : 0;
        const char *bytes = token_trie_bytes(trie, id, &n_bytes);
        for (; n_open > n_shared; n_open--)
            trie->end[open[n_open]] = n;
        for (size_t d = n_shared; d < n_bytes; d++) {
            trie->byte[n] = (uint8_t)bytes[d];
            trie->depth[n] = (uint16_t)(d + 1);
            trie->first_token[n] = i;
            open[++n_open] = n++;
        }
        if ((int)n_bytes > trie->max_depth)
            trie->max_depth = (int)n_bytes;
    }
    for (;; n_open--) {
        trie->end[open[n_open]] = n;
        if (n_open == 0)
            break;
    }
    trie->first_token[n] = trie->n_tokens;
}

enum tutti_status token_trie_new(struct token_trie **out, const struct tokenizer *tok, int32_t n_vocab,
                                 struct tutti_error *err)
{
    struct token_trie *trie = calloc(1, sizeof *trie);
    int32_t *open = malloc((MAX_TOKEN_BYTES + 1) * sizeof *open);
    size_t n_nodes = 0;
    bool ok = trie && open;
    if (ok) {
        trie->n_vocab = n_vocab;
        trie->offsets = calloc((size_t)n_vocab + 1, sizeof *trie->offsets);
        ok = trie->offsets && read_vocab_bytes(trie, tok) && sort_tokens(trie, &n_nodes);
    }
    if (ok) {
        trie->n_nodes = (int32_t)n_nodes;
        trie->byte = calloc(n_nodes, sizeof *trie->byte);
        trie->depth = calloc(n_nodes, sizeof *trie->depth);
        trie->end = calloc(n_nodes, sizeof *trie->end);
        trie->first_token = calloc(n_nodes + 1, sizeof *trie->first_token);
        ok = trie->byte && trie->depth && trie->end && trie->first_token;
    }
    if (ok) {
        build_nodes(trie, open);
        *out = trie;
        trie = NULL;
    }
    free(open);
    token_trie_free(trie);
    return ok ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "vocabulary of %d tokens: out of memory", n_vocab);
}

void token_trie_free(struct token_trie *trie)
{
    if (!trie)
        return;
    free(trie->byte);
    free(trie->depth);
    free(trie->end);
    free(trie->first_token);
    free(trie->sorted);
    free(trie->offsets);
    free(trie->bytes);
    free(trie);
}
