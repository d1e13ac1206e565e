#include "tokenizer/vocab/added.h"

#include "tokenizer/unicode/unicode.h"

#include <stdlib.h>

bool added_tokens_put(struct added_tokens *added, struct added_token token)
{
    for (size_t i = 0; token.id <= added->max_id && i < added->n; i++) {
        if (added->list[i].id == token.id) {
            added->list[i] = token;
            return true;
        }
    }
    struct added_token *list = realloc(added->list, (added->n + 1) * sizeof *list);
    if (!list)
        return false;
    added->list = list;
    added->list[added->n++] = token;
    added->max_id = token.id > added->max_id ? token.id : added->max_id;
    return true;
}

/* Tokens that are matched in normalized text are normalized too. */
static bool build_trie(struct added_tokens *added, bool of_normalized, added_spelling_fn *spelling,
                       added_normalize_fn *normalize, const void *from)
{
    struct spelling *list = calloc(added->n + 1, sizeof *list);
    struct buf *normal = calloc(added->n + 1, sizeof *normal);
    size_t n = 0;
    bool ok = list && normal;
    for (size_t i = 0; ok && i < added->n; i++) {
        if (added->list[i].is_normalized != of_normalized)
            continue;
        list[n] = spelling(from, &added->list[i]);
        list[n].id = (int32_t)i;
        if (of_normalized && normalize) {
            ok = normalize(from, list[n].bytes, list[n].n_bytes, &normal[i]);
            list[n].bytes = normal[i].bytes;
            list[n].n_bytes = normal[i].n_bytes;
        }
        n += list[n].n_bytes > 0;
    }
    struct trie *trie = of_normalized ? &added->normalized : &added->raw;
    trie_clear(trie);
    ok = ok && trie_build(trie, list, n);
    for (size_t i = 0; normal && i < added->n; i++)
        buf_clear(&normal[i]);
    free(normal);
    free(list);
    return ok;
}

static int by_id(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static bool index_specials(struct added_tokens *added, added_spelling_fn *spelling, const void *from)
{
    struct spelling *list = calloc(added->n + 1, sizeof *list);
    free(added->special_ids);
    added->special_ids = malloc((added->n + 1) * sizeof *added->special_ids);
    added->has_normalized_specials = false;
    size_t n = 0;
    bool ok = list && added->special_ids;
    for (size_t i = 0; ok && i < added->n; i++) {
        if (!added->list[i].is_special)
            continue;
        list[n] = spelling(from, &added->list[i]);
        list[n].id = (int32_t)i;
        added->special_ids[n++] = added->list[i].id;
        added->has_normalized_specials |= added->list[i].is_normalized;
    }
    if (ok && n > 0)
        qsort(added->special_ids, n, sizeof *added->special_ids, by_id);
    added->n_special_ids = n;
    trie_clear(&added->specials);
    ok = ok && trie_build(&added->specials, list, n);
    free(list);
    return ok;
}

bool added_tokens_index(struct added_tokens *added, added_spelling_fn *spelling,
                        added_normalize_fn *normalize, const void *from)
{
    return build_trie(added, false, spelling, normalize, from) &&
           build_trie(added, true, spelling, normalize, from) && index_specials(added, spelling, from);
}

bool added_tokens_is_special(const struct added_tokens *added, int32_t id)
{
    return added->n_special_ids > 0 &&
           bsearch(&id, added->special_ids, added->n_special_ids, sizeof id, by_id) != NULL;
}

/* Whether one range contains all of [begin, end). */
static bool is_trusted(const struct added_cuts *cuts, size_t begin, size_t end)
{
    size_t lo = 0, hi = cuts->n_ranges;
    if (!cuts->ranges)
        return true;
    while (lo < hi) { /* the last range that begins at or before begin */
        size_t mid = lo + (hi - lo) / 2;
        if (cuts->ranges[mid].begin <= begin)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo > 0 && end <= cuts->ranges[lo - 1].end;
}

/* The next added token in text from `from` on: leftmost, of these the longest. NULL: none. */
static const struct added_token *find_added(const struct added_tokens *added, const struct trie *trie,
                                            const struct added_cuts *cuts, const char *text, size_t n_bytes,
                                            size_t from, size_t *begin, size_t *end)
{
    for (size_t at = from; at < n_bytes; at++) {
        size_t n = 0;
        int32_t i = trie->roots[(uint8_t)text[at]] ? trie_match(trie, text + at, n_bytes - at, &n) : -1;
        if (i < 0)
            continue;
        const struct added_token *token = &added->list[i];
        *begin = at;
        *end = at + n;
        /* A token that is not accepted still hides those that begin within it. */
        if ((!token->is_special || (cuts->takes_special && is_trusted(cuts, at, *end))) &&
            !(token->is_single_word &&
              (unicode_ends_with_word(text, at) || unicode_starts_with_word(text + *end, n_bytes - *end))))
            return token;
        at = *end - 1;
    }
    return NULL;
}

bool added_tokens_cut(const struct added_tokens *added, const struct trie *trie,
                      const struct added_cuts *cuts, const char *text, size_t n_bytes)
{
    size_t done = 0, from = 0, begin, end;
    const struct added_token *token;
    while ((token = find_added(added, trie, cuts, text, n_bytes, from, &begin, &end))) {
        from = end;
        if (token->takes_left_blanks) {
            begin -= unicode_blanks_at_end(text, begin);
            begin = begin > done ? begin : done;
        }
        if (token->takes_right_blanks)
            end += unicode_blanks_at_start(text + end, n_bytes - end);
        if ((begin > done && !cuts->between(cuts->to, text + done, begin - done)) ||
            !cuts->token(cuts->to, token))
            return false;
        done = end;
    }
    return done >= n_bytes || cuts->between(cuts->to, text + done, n_bytes - done);
}

void added_tokens_clear(struct added_tokens *added)
{
    trie_clear(&added->raw);
    trie_clear(&added->normalized);
    trie_clear(&added->specials);
    free(added->special_ids);
    free(added->list);
    *added = (struct added_tokens){ .n = 0 };
}
