/* Reads the files of the jieba package: a dictionary of lines "word count kind", and tables in
 * Python syntax. */
#include "tokenizer/legacy/jieba_tables.h"

#include "base/containers/array.h"
#include "base/files/mapping.h"
#include "base/text.h"
#include "base/utf8.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The package's logarithm of probability zero. */
static const double NEVER = -3.14e100;

const char *const WORD_FILES[N_WORD_FILES] = { "dict.txt", "finalseg/prob_start.py", "finalseg/prob_trans.py",
                                               "finalseg/prob_emit.py" };
enum { START_FILE = 1, NEXT_FILE, EMIT_FILE };

enum { LIMIT_WORDS = 1 << 24, LIMIT_COUNT = 1 << 30 };

/* ---- the dictionary ---- */

struct dictionary {
    const char *path;
    struct spelling *words; /* ids descend, so that the last of equal words has the lowest id */
    int32_t *counts;        /* [n], in the file's order */
    size_t n, capacity, count_capacity;
    double total;
};

static bool table_add_word(struct dictionary *d, const char *word, size_t n_bytes, int32_t count)
{
    if (!array_grow(&d->words, d->n, &d->capacity, sizeof *d->words) ||
        !array_grow(&d->counts, d->n, &d->count_capacity, sizeof *d->counts))
        return false;
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

static int tag_of(const char *key)
{
    const char *place = key[0] && !key[1] ? strchr("BEMS", key[0]) : NULL;
    return place ? (int)(place - "BEMS") : -1;
}

/* {"B": number, ...} into row, by tag. */
static bool read_tags(const json_t *table, double *row)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)table, key, value)
    {
        if (tag_of(key) < 0 || !json_is_number(value))
            return false;
        row[tag_of(key)] = json_number_value(value);
    }
    return json_object_size(table) > 0;
}

/* {"\u4e00": number, ...} into a column. Characters that are never looked up are skipped. */
static bool read_characters(const json_t *table, double (*emit)[N_TAGS], int tag)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)table, key, value)
    {
        size_t n_bytes;
        int32_t code = key[0] ? utf8_code_at(key, strlen(key), &n_bytes) : -1;
        if (code < 0 || key[n_bytes] || !json_is_number(value))
            return false;
        if (code >= HAN_FIRST && code <= HAN_LAST)
            emit[code - HAN_FIRST][tag] = json_number_value(value);
    }
    return json_object_size(table) > 0;
}

static bool fill_table(struct jieba *j, int file, const json_t *table)
{
    const char *key;
    json_t *value;
    if (file == START_FILE)
        return read_tags(table, j->start);
    json_object_foreach((json_t *)(uintptr_t)table, key, value)
    {
        int tag = tag_of(key);
        if (tag < 0 ||
            !(file == NEXT_FILE ? read_tags(value, j->next[tag]) : read_characters(value, j->emit, tag)))
            return false;
    }
    return json_object_size(table) > 0;
}

/* A table follows "P=": a Python dictionary of strings and numbers, or of such dictionaries. With
 * other quotes it is JSON. */
static enum tutti_status read_table(struct jieba *j, int which, const struct word_file *file,
                                    const char *path, struct tutti_error *err)
{
    const char *bytes = file->bytes,
               *start = file->n_bytes > 0 ? memmem(bytes, file->n_bytes, "P=", 2) : NULL;
    size_t begin = start ? (size_t)(start - bytes) + 2 : 0, n_bytes = start ? file->n_bytes - begin : 0;
    char *text = malloc(n_bytes + 1);
    if (!text)
        return error_out_of_memory(path, err);
    for (size_t i = 0; i < n_bytes; i++)
        text[i] = bytes[begin + i] == '\'' ? '"' : bytes[begin + i];
    json_error_t at = { .position = 0 };
    json_t *table = json_loadb(text, n_bytes, JSON_DISABLE_EOF_CHECK, &at);
    free(text);
    enum tutti_status st = TUTTI_OK;
    if (!table || !fill_table(j, which, table))
        st = error_set(err, TUTTI_E_FORMAT, "%s: byte %zu: expected a table of numbers by B, E, M and S",
                       path, table ? begin : begin + (size_t)at.position);
    json_decref(table);
    return st;
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
        st = read_table(j, i, &files->file[i], path, err);
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
