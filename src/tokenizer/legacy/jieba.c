#include "tokenizer/legacy/jieba.h"

#include "base/utf8.h"
#include "tokenizer/legacy/jieba_tables.h"

#include <stdlib.h>
#include <string.h>

/* The state of one call. Arrays are by character of the current block. */
struct word_cutter {
    const struct jieba *jieba;
    jieba_word_fn *word;
    void *arg;
    const char *text;
    uint32_t *begins; /* where each character begins; one more for the end */
    double *scores;   /* of the best path from here to the end */
    uint32_t *ends;   /* of the word that this path begins with */
    uint8_t (*from)[N_TAGS];
};

static bool is_han(uint32_t code)
{
    return code >= HAN_FIRST && code <= HAN_LAST;
}

static bool is_alphanumeric(uint32_t code)
{
    return (code >= '0' && code <= '9') || (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
}

/* Characters that the package groups into blocks to split into words; every other character is a
 * word. */
static bool is_in_block(uint32_t code)
{
    return is_han(code) || is_alphanumeric(code) || (code > 0 && code < 128 && strchr("+#&._%-", (int)code));
}

static uint32_t char_at(const struct word_cutter *c, size_t i)
{
    uint32_t code = 0; /* the text is valid */
    utf8_decode(c->text + c->begins[i], c->begins[i + 1] - c->begins[i], &code);
    return code;
}

static bool add_characters(struct word_cutter *c, size_t begin, size_t end)
{
    return c->word(c->arg, c->text + c->begins[begin], c->begins[end] - c->begins[begin]);
}

/* ---- the model ---- */

/* Tags the Han characters [begin, end): each cell's best predecessor, of equal ones the tag with
 * the later letter. */
static int find_tags(struct word_cutter *c, size_t begin, size_t end)
{
    static const uint8_t BEFORE[N_TAGS][2] = { [TAG_B] = { TAG_E, TAG_S },
                                               [TAG_E] = { TAG_B, TAG_M },
                                               [TAG_M] = { TAG_B, TAG_M },
                                               [TAG_S] = { TAG_E, TAG_S } };
    const struct jieba *j = c->jieba;
    double here[N_TAGS], last[N_TAGS];
    const double *emit = j->emit[char_at(c, begin) - HAN_FIRST];
    for (int tag = 0; tag < N_TAGS; tag++)
        here[tag] = j->start[tag] + emit[tag];
    for (size_t i = begin + 1; i < end; i++) {
        memcpy(last, here, sizeof last);
        emit = j->emit[char_at(c, i) - HAN_FIRST];
        for (int tag = 0; tag < N_TAGS; tag++) {
            int a = BEFORE[tag][0], b = BEFORE[tag][1];
            double from_a = last[a] + j->next[a][tag] + emit[tag],
                   from_b = last[b] + j->next[b][tag] + emit[tag];
            here[tag] = from_b >= from_a ? from_b : from_a;
            c->from[i][tag] = (uint8_t)(from_b >= from_a ? b : a);
        }
    }
    return here[TAG_S] >= here[TAG_E] ? TAG_S : TAG_E;
}

static bool cut_by_model(struct word_cutter *c, size_t begin, size_t end)
{
    int tag = find_tags(c, begin, end);
    for (size_t i = end; i-- > begin;) { /* the path's tags overwrite the predecessors */
        int before = i > begin ? c->from[i][tag] : 0;
        c->from[i][0] = (uint8_t)tag;
        tag = before;
    }
    size_t word = begin;
    for (size_t i = begin; i < end; i++) {
        int t = c->from[i][0];
        if (t == TAG_B)
            word = i;
        else if (t != TAG_M && !add_characters(c, t == TAG_E ? word : i, i + 1))
            return false;
    }
    return true;
}

/* Other characters: letters and digits with a fraction and a percent sign, and the text between
 * those. */
static bool cut_latin(struct word_cutter *c, size_t begin, size_t end)
{
    for (size_t at = begin, to; at < end; at = to) {
        bool is_word = is_alphanumeric(char_at(c, at));
        for (to = at; to < end && is_alphanumeric(char_at(c, to)) == is_word;)
            to++;
        if (is_word && to + 1 < end && char_at(c, to) == '.' && char_at(c, to + 1) - '0' <= 9) {
            for (to++; to < end && char_at(c, to) - '0' <= 9;)
                to++;
        }
        if (is_word && to < end && char_at(c, to) == '%')
            to++;
        if (!add_characters(c, at, to))
            return false;
    }
    return true;
}

/* Splits characters that are single in the dictionary's path. */
static bool cut_rest(struct word_cutter *c, size_t begin, size_t end)
{
    for (size_t at = begin, to; at < end; at = to) {
        bool is_word = is_han(char_at(c, at));
        for (to = at; to < end && is_han(char_at(c, to)) == is_word;)
            to++;
        bool ok = !is_word   ? cut_latin(c, at, to)
                  : c->jieba ? cut_by_model(c, at, to)
                             : add_characters(c, at, to);
        if (!ok)
            return false;
    }
    return true;
}

/* ---- the dictionary ---- */

/* The node after one character; 0: none. */
static uint32_t node_after(const struct word_cutter *c, uint32_t node, size_t i)
{
    for (uint32_t at = c->begins[i]; at < c->begins[i + 1]; at++) {
        node = trie_child(&c->jieba->words, node, (uint8_t)c->text[at]);
        if (node == 0)
            return 0;
    }
    return node;
}

/* The logarithm of a node's count; below 0: no word ends there. */
static double log_count(const struct jieba *j, uint32_t node)
{
    int32_t id = j->words.nodes[node].id;
    return id >= 0 ? j->log_counts[id] : -1;
}

static void find_best_path(struct word_cutter *c, size_t n)
{
    const struct jieba *j = c->jieba;
    c->scores[n] = 0;
    for (size_t i = n; i-- > 0;) {
        bool has_word = false;
        uint32_t node = 0;
        for (size_t end = i; end < n; end++) {
            node = node_after(c, node, end);
            if (node == 0)
                break;
            double count = log_count(j, node), score = count - j->log_total + c->scores[end + 1];
            if (count < 0 || (has_word && score < c->scores[i])) /* of equal ones the longest */
                continue;
            has_word = true;
            c->scores[i] = score;
            c->ends[i] = (uint32_t)end + 1;
        }
        if (!has_word) {
            c->scores[i] = 0 - j->log_total + c->scores[i + 1];
            c->ends[i] = (uint32_t)i + 1;
        }
    }
}

static bool is_known_word(const struct word_cutter *c, size_t begin, size_t end)
{
    uint32_t node = 0;
    for (size_t i = begin; i < end; i++) {
        node = node_after(c, node, i);
        if (node == 0)
            return false;
    }
    return log_count(c->jieba, node) >= 0;
}

static bool cut_singles(struct word_cutter *c, size_t begin, size_t end)
{
    if (end - begin > 1 && !is_known_word(c, begin, end))
        return cut_rest(c, begin, end);
    for (size_t i = begin; i < end; i++) {
        if (!add_characters(c, i, i + 1))
            return false;
    }
    return true;
}

static bool cut_block(struct word_cutter *c, size_t n)
{
    size_t first_single = 0;
    if (!c->jieba)
        return cut_rest(c, 0, n);
    find_best_path(c, n);
    for (size_t i = 0; i < n; i = c->ends[i]) {
        if (c->ends[i] == i + 1)
            continue;
        if (!cut_singles(c, first_single, i) || !add_characters(c, i, c->ends[i]))
            return false;
        first_single = c->ends[i];
    }
    return cut_singles(c, first_single, n);
}

/* ---- blocks ---- */

/* The length and code of the first character; an invalid byte is a character of its own, in no
 * block. */
static size_t read_char(const char *text, size_t n_bytes, uint32_t *code)
{
    size_t n;
    int32_t read = utf8_code_at(text, n_bytes, &n);
    *code = read > 0 ? (uint32_t)read : 0;
    return n;
}

static bool cut_all(struct word_cutter *c, size_t n_bytes)
{
    for (size_t at = 0, n; at < n_bytes; at += n) {
        uint32_t code;
        size_t n_chars = 0;
        size_t end = at;
        while (end < n_bytes && (n = read_char(c->text + end, n_bytes - end, &code), is_in_block(code))) {
            c->begins[n_chars++] = (uint32_t)end;
            end += n;
        }
        c->begins[n_chars] = (uint32_t)end;
        if (n_chars > 0 && !cut_block(c, n_chars))
            return false;
        at = end;
        if (at == n_bytes)
            break;
        n = read_char(c->text + at, n_bytes - at, &code);
        if (code == '\r' && at + 1 < n_bytes && c->text[at + 1] == '\n')
            n = 2;
        if (!c->word(c->arg, c->text + at, n))
            return false;
    }
    return true;
}

bool jieba_cut(const struct jieba *jieba, const char *text, size_t n_bytes, jieba_word_fn *word, void *arg)
{
    struct word_cutter c = { .jieba = jieba, .word = word, .arg = arg, .text = text };
    if (n_bytes >= UINT32_MAX / 2)
        return false;
    c.begins = malloc((n_bytes + 1) * sizeof *c.begins);
    c.scores = malloc((n_bytes + 1) * sizeof *c.scores);
    c.ends = malloc((n_bytes + 1) * sizeof *c.ends);
    c.from = malloc((n_bytes + 1) * sizeof *c.from);
    bool ok = c.begins && c.scores && c.ends && c.from && cut_all(&c, n_bytes);
    free(c.begins);
    free(c.scores);
    free(c.ends);
    free(c.from);
    return ok;
}
