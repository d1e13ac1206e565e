/* SentencePiece's normalizer: user-defined pieces and the precompiled map first, then spaces.
 * Kudo and Richardson, 2018; the map is a double array after Aoe, 1989, in the layout of the
 * Darts-clone library. */
#include "base/utf8.h"
#include "tokenizer/vocab/vocab.h"

#include <inttypes.h>
#include <string.h>

static uint32_t unit_at(const struct charsmap *map, size_t index)
{
    const uint8_t *p = map->units + 4 * index;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static size_t unit_base(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 512) >> 6);
}

enum tutti_status charsmap_read(struct charsmap *map, const uint8_t *bytes, size_t n_bytes, const char *name,
                                struct tutti_error *err)
{
    enum { BLOCK_BYTES = 1024 };
    uint64_t trie_bytes = 0;
    for (int i = 0; i < 4 && n_bytes > 4; i++)
        trie_bytes |= (uint64_t)bytes[i] << (8 * i);
    if (n_bytes <= 4 || trie_bytes >= n_bytes - 4 || trie_bytes % BLOCK_BYTES != 0 || trie_bytes == 0)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s of %zu bytes says that its trie has %" PRIu64
                         ", expected a multiple of %d, then strings",
                         name, n_bytes, trie_bytes, BLOCK_BYTES);
    if (bytes[n_bytes - 1] != 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: its last string does not end with a zero byte", name);
    *map = (struct charsmap){ .units = bytes + 4,
                              .n_units = (size_t)trie_bytes / 4,
                              .strings = (const char *)bytes + 4 + trie_bytes,
                              .n_string_bytes = n_bytes - 4 - (size_t)trie_bytes };
    return TUTTI_OK;
}

bool charsmap_has_lead(const struct charsmap *map, uint8_t byte)
{
    size_t node = map->n_units > 0 ? unit_base(unit_at(map, 0)) ^ byte : 0;
    return node < map->n_units && (unit_at(map, node) & 0x800000FF) == byte;
}

/* Longest key that text begins with, of the max_matches shortest ones; its replacement in *to. 0: none. */
static size_t map_match(const struct charsmap *map, const char *text, size_t n_bytes, int max_matches,
                        const char **to, size_t *n_to)
{
    size_t best = 0;
    int n_matches = 0;
    if (map->n_units == 0)
        return 0;
    size_t node = unit_base(unit_at(map, 0));
    for (size_t i = 0; i < n_bytes && n_matches < max_matches; i++) {
        uint8_t byte = (uint8_t)text[i];
        node ^= byte;
        if (node >= map->n_units)
            break;
        uint32_t unit = unit_at(map, node);
        if ((unit & 0x800000FF) != byte) /* the label, and no leaf */
            break;
        node ^= unit_base(unit);
        if (!(unit >> 8 & 1))
            continue;
        if (node >= map->n_units)
            break;
        size_t offset = unit_at(map, node) & 0x7FFFFFFF;
        if (offset >= map->n_string_bytes)
            break;
        best = i + 1;
        n_matches++;
        *to = map->strings + offset;
        *n_to = strnlen(*to, map->n_string_bytes - offset);
    }
    return best;
}

enum { LIBRARY_MATCHES = 32 };

bool charsmap_first(const struct charsmap *map, const char *text, size_t n_bytes, const char **to,
                    size_t *n_to)
{
    return map_match(map, text, n_bytes, 1, to, n_to) > 0;
}

/* The number of bytes that the normalizer copies unchanged: whole characters that no rule begins
 * with. */
static size_t plain_run(const struct tokenizer *tok, const char *text, size_t n_bytes)
{
    size_t at = 0;
    while (at < n_bytes && tok->is_plain[(uint8_t)text[at]]) {
        int n = (uint8_t)text[at] < 0x80 ? 1 : utf8_char(text + at, n_bytes - at);
        if (n == 0)
            break;
        at += (size_t)n;
    }
    return at;
}

/* One step at text: *to is the replacement; returns the number of bytes consumed. n_bytes >= 1. */
static size_t normalize_step(const struct tokenizer *tok, const char *text, size_t n_bytes, bool takes_marks,
                             const char **to, size_t *n_to)
{
    size_t n = vocab_match_user_defined(tok, text, n_bytes, takes_marks);
    if (n == 0) {
        n = map_match(&tok->map, text, n_bytes, LIBRARY_MATCHES, to, n_to);
        if (n > 0)
            return n;
        n = (size_t)utf8_char(text, n_bytes);
    }
    if (n == 0) {
        *to = "\xEF\xBF\xBD"; /* U+FFFD for an invalid byte */
        *n_to = 3;
        return 1;
    }
    *to = text;
    *n_to = n;
    return n;
}

static bool add_escaped(const struct tokenizer *tok, const char *text, size_t n_bytes, struct buf *out)
{
    while (n_bytes > 0) {
        const char *space = tok->escape_whitespaces ? memchr(text, ' ', n_bytes) : NULL;
        size_t n = space ? (size_t)(space - text) : n_bytes;
        if (!buf_add(out, text, n) || (space && !buf_add(out, BLANK_MARK, 3)))
            return false;
        text += n + (space != NULL);
        n_bytes -= n + (space != NULL);
    }
    return true;
}

bool tokenizer_normalize(const struct tokenizer *tok, const char *text, size_t n_bytes,
                         struct part_rules rules, struct buf *out)
{
    bool trims = tok->remove_extra_whitespaces;
    const char *blank = tok->escape_whitespaces ? BLANK_MARK : " ";
    size_t n_blank = strlen(blank), start = out->n_bytes;
    const char *to = NULL;
    size_t n_to = 0, n;
    if (!buf_reserve(out, n_bytes + n_bytes / 2 + 8))
        return false;
    while (trims && !rules.continues && n_bytes > 0) {
        n = normalize_step(tok, text, n_bytes, rules.takes_marks, &to, &n_to);
        if (n_to != 1 || to[0] != ' ')
            break;
        text += n;
        n_bytes -= n;
    }
    if (n_bytes == 0)
        return true;
    if (!tok->blank_is_suffix && tok->add_dummy_prefix && !rules.continues && !buf_add(out, blank, n_blank))
        return false;
    bool after_space = trims && !rules.continues;
    while (n_bytes > 0) {
        n = plain_run(tok, text, n_bytes);
        if (n > 0) {
            if (!buf_add(out, text, n))
                return false;
            after_space = false;
            text += n;
            n_bytes -= n;
            continue;
        }
        n = normalize_step(tok, text, n_bytes, rules.takes_marks, &to, &n_to);
        while (after_space && n_to > 0 && to[0] == ' ') {
            to++;
            n_to--;
        }
        if (n_to > 0) {
            if (!add_escaped(tok, to, n_to, out))
                return false;
            after_space = to[n_to - 1] == ' ';
        }
        after_space &= trims;
        text += n;
        n_bytes -= n;
    }
    while (trims && out->n_bytes - start >= n_blank &&
           memcmp(out->bytes + out->n_bytes - n_blank, blank, n_blank) == 0)
        buf_truncate(out, out->n_bytes - n_blank);
    return !tok->blank_is_suffix || !tok->add_dummy_prefix || buf_add(out, blank, n_blank);
}
