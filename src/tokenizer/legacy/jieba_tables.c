/* Reads the files of the jieba package: a dictionary of lines "word count kind", and tables in
 * Python syntax. */
#include "tokenizer/legacy/jieba_tables.h"

#include "base/files/mapping.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The package's logarithm of probability zero. */
static const double NEVER = -3.14e100;

const char *const WORD_FILES[N_WORD_FILES] = { "dict.txt", "finalseg/prob_start.py", "finalseg/prob_trans.py",
                                               "finalseg/prob_emit.py" };

enum { LIMIT_WORDS = 1 << 24, LIMIT_COUNT = 1 << 30 };

/* ---- the dictionary ---- */

struct dictionary {
    const char *path;
    struct spelling *words; /* ids descend, so that the last of equal words has the lowest id */
    int32_t *counts;        /* [n], in the file's order */
    size_t n, capacity;
    double total;
};

static bool table_add_word(struct dictionary *d, const char *word, size_t n_bytes, int32_t count)
{
    if (d->n == d->capacity) {
        size_t capacity = 2 * d->capacity + 4096;
        struct spelling *words = realloc(d->words, capacity * sizeof *words);
        if (!words)
            return false;
        d->words = words;
        int32_t *counts = realloc(d->counts, capacity * sizeof *counts);
        if (!counts)
            return false;
        d->counts = counts;
        d->capacity = capacity;
    }
    d->words[d->n] = (struct spelling){ .bytes = word,
                                        .n_bytes = n_bytes,
                                        .id = LIMIT_WORDS - (int32_t)d->n };
    d->counts[d->n++] = count;
    d->total += count;
    return true;
}

/* Reads "word count"; anything after another space is ignored. */
static enum tutti_status read_word(struct dictionary *d, const char *line, size_t n_bytes,
                                   struct tutti_error *err)
{
    const char *space = memchr(line, ' ', n_bytes), *end = line + n_bytes;
    const char *at = space ? space + 1 : end;
    int64_t count = 0;
    while (at < end && text_is_digit(*at) && count < LIMIT_COUNT)
        count = 10 * count + (*at++ - '0');
    if (!space || space == line || at == space + 1 || (at < end && *at != ' ' && *at != '\r') ||
        count >= LIMIT_COUNT)
        return error_set(err, TUTTI_E_FORMAT, "%s: line %zu: expected a word, a space and a count below %d",
                         d->path, d->n + 1, LIMIT_COUNT);
    if (d->n >= LIMIT_WORDS)
        return error_set(err, TUTTI_E_FORMAT, "%s: more than %d words", d->path, LIMIT_WORDS);
    return table_add_word(d, line, (size_t)(space - line), (int32_t)count)
               ? TUTTI_OK
               : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", d->path);
}

/* Sets each word's id to its index in the file, and its count to a logarithm. */
static bool build_words(struct jieba *j, struct dictionary *d)
{
    j->log_counts = malloc((d->n + 1) * sizeof *j->log_counts);
    if (!j->log_counts || !trie_build(&j->words, d->words, d->n))
        return false;
    for (size_t i = 0; i < d->n; i++)
        j->log_counts[i] = d->counts[i] > 0 ? log(d->counts[i]) : -1;
    for (uint32_t node = 0; node < j->words.n_nodes; node++) {
        if (j->words.nodes[node].id >= 0)
            j->words.nodes[node].id = LIMIT_WORDS - j->words.nodes[node].id;
    }
    j->log_total = log(d->total);
    return true;
}

static enum tutti_status read_dictionary(struct jieba *j, const struct word_file *file, const char *path,
                                         struct tutti_error *err)
{
    struct dictionary d = { .path = path };
    enum tutti_status st = TUTTI_OK;
    const char *text = file->n_bytes > 0 ? (const char *)file->bytes : "", *end = text + file->n_bytes;
    while (st == TUTTI_OK && text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((newline ? newline : end) - text);
        st = read_word(&d, text, n, err);
        text += n + (newline != NULL);
    }
    if (st == TUTTI_OK && d.total == 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: there is no word with a count", path);
    if (st == TUTTI_OK && !build_words(j, &d))
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    free(d.words);
    free(d.counts);
    return st;
}

/* ---- tables ---- */

/* Parses a Python dictionary of strings and numbers, or of such dictionaries. */
struct scanner {
    const char *path, *at, *end;
    const char *start;
};

static void scanner_skip_blanks(struct scanner *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
        s->at++;
}

static bool scanner_take(struct scanner *s, char c)
{
    scanner_skip_blanks(s);
    if (s->at == s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

/* A string of one letter, or of one character as \uXXXX; -1: anything else. */
static int take_key(struct scanner *s)
{
    uint32_t code = 0;
    if (!scanner_take(s, '\'') || s->end - s->at < 2)
        return -1;
    if (*s->at != '\\') {
        code = (unsigned char)*s->at++;
    } else {
        if (s->end - s->at < 7 || s->at[1] != 'u' || !hex_read(s->at + 2, 4, 4, &code))
            return -1;
        s->at += 6;
    }
    return scanner_take(s, '\'') && scanner_take(s, ':') ? (int)code : -1;
}

static bool take_number(struct scanner *s, double *value)
{
    char digits[64];
    size_t n = 0;
    scanner_skip_blanks(s);
    while (s->at + n < s->end && n + 1 < sizeof digits && s->at[n] && strchr("0123456789+-.eE", s->at[n]))
        n++;
    memcpy(digits, s->at, n);
    digits[n] = '\0';
    char *end = digits;
    *value = strtod(digits, &end);
    s->at += n;
    return n > 0 && *end == '\0' && isfinite(*value);
}

static int tag_of(int letter)
{
    const char *place = letter > 0 ? strchr("BEMS", letter) : NULL;
    return place ? (int)(place - "BEMS") : -1;
}

static enum tutti_status bad_table(const struct scanner *s, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_FORMAT, "%s: byte %zu: expected a table of numbers by B, E, M and S",
                     s->path, (size_t)(s->at - s->start));
}

/* {'B': number, ...} into row, by tag. */
static bool take_tags(struct scanner *s, double *row)
{
    if (!scanner_take(s, '{'))
        return false;
    do {
        int tag = tag_of(take_key(s));
        if (tag < 0 || !take_number(s, &row[tag]))
            return false;
    } while (scanner_take(s, ','));
    return scanner_take(s, '}');
}

/* {'\u4e00': number, ...} into a column. Characters that are never looked up are skipped. */
static bool take_characters(struct scanner *s, double (*emit)[N_TAGS], int tag)
{
    double value;
    if (!scanner_take(s, '{'))
        return false;
    do {
        int code = take_key(s);
        if (code < 0 || !take_number(s, &value))
            return false;
        if (code >= HAN_FIRST && code <= HAN_LAST)
            emit[code - HAN_FIRST][tag] = value;
    } while (scanner_take(s, ','));
    return scanner_take(s, '}');
}

static bool take_start(struct scanner *s, struct jieba *j)
{
    return take_tags(s, j->start);
}

static bool take_next(struct scanner *s, struct jieba *j)
{
    if (!scanner_take(s, '{'))
        return false;
    do {
        int tag = tag_of(take_key(s));
        if (tag < 0 || !take_tags(s, j->next[tag]))
            return false;
    } while (scanner_take(s, ','));
    return scanner_take(s, '}');
}

static bool take_emit(struct scanner *s, struct jieba *j)
{
    if (!scanner_take(s, '{'))
        return false;
    do {
        int tag = tag_of(take_key(s));
        if (tag < 0 || !take_characters(s, j->emit, tag))
            return false;
    } while (scanner_take(s, ','));
    return scanner_take(s, '}');
}

/* The table follows "P=". */
static enum tutti_status read_table(struct jieba *j, const struct word_file *file, const char *path,
                                    bool (*take_all)(struct scanner *, struct jieba *),
                                    struct tutti_error *err)
{
    const char *text = file->n_bytes > 0 ? (const char *)file->bytes : "";
    const char *table = memmem(text, file->n_bytes, "P=", 2);
    struct scanner s = { .path = path, .start = text, .at = text, .end = text + file->n_bytes };
    if (table)
        s.at = table + 2;
    return table && take_all(&s, j) ? TUTTI_OK : bad_table(&s, err);
}

static void forget_all(struct jieba *j)
{
    for (int from = 0; from < N_TAGS; from++) {
        j->start[from] = NEVER;
        for (int to = 0; to < N_TAGS; to++)
            j->next[from][to] = NEVER;
    }
    for (int code = HAN_FIRST; code <= HAN_LAST; code++) {
        for (int tag = 0; tag < N_TAGS; tag++)
            j->emit[code - HAN_FIRST][tag] = NEVER;
    }
}

enum tutti_status jieba_read(struct jieba **out, const struct word_files *files, const char *name,
                             struct tutti_error *err)
{
    static bool (*const TABLES[])(struct scanner * s, struct jieba * j) = { take_start, take_next,
                                                                            take_emit };
    char path[4096];
    struct jieba *j = calloc(1, sizeof *j);
    if (j)
        j->emit = malloc((HAN_LAST - HAN_FIRST + 1) * sizeof *j->emit);
    if (!j || !j->emit) {
        jieba_free(j);
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    }
    forget_all(j);
    snprintf(path, sizeof path, "%s/%s", name, WORD_FILES[0]);
    enum tutti_status st = read_dictionary(j, &files->file[0], path, err);
    for (int i = 1; st == TUTTI_OK && i < N_WORD_FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", name, WORD_FILES[i]);
        st = read_table(j, &files->file[i], path, TABLES[i - 1], err);
    }
    if (st != TUTTI_OK) {
        jieba_free(j);
        return st;
    }
    *out = j;
    return TUTTI_OK;
}

enum tutti_status jieba_open(struct jieba **out, const char *folder, struct tutti_error *err)
{
    struct mapping maps[N_WORD_FILES] = { { 0 } };
    struct word_files files = { 0 };
    char path[4096];
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; st == TUTTI_OK && i < N_WORD_FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, WORD_FILES[i]);
        st = mapping_open(&maps[i], path, err);
        files.file[i] = (struct word_file){ .bytes = maps[i].bytes, .n_bytes = maps[i].n_bytes };
    }
    if (st == TUTTI_OK)
        st = jieba_read(out, &files, folder, err);
    for (int i = 0; i < N_WORD_FILES; i++)
        mapping_close(&maps[i]);
    return st;
}

void jieba_free(struct jieba *j)
{
    if (!j)
        return;
    trie_clear(&j->words);
    free(j->log_counts);
    free(j->emit);
    free(j);
}
