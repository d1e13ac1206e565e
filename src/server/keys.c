#include "server/keys.h"

#include "base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { KEY_BYTES = 256, NAME_BYTES = 64 };

static const char BLANKS[] = " \t\r\n";

struct keys {
    size_t n;
    char (*text)[KEY_BYTES]; /* padded with zeros */
    char (*names)[NAME_BYTES];
};

/* text: behind the key. */
static enum tutti_status read_name(char *out, const char *text, const char *path, int line,
                                   struct tutti_error *err)
{
    const char *name = text + strspn(text, BLANKS);
    size_t n = strcspn(name, BLANKS);
    if (name[n + strspn(name + n, BLANKS)])
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: expected a key and at most its name", path, line);
    if (n >= NAME_BYTES || !utf8_is_printable(name, n))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: line %d: a name has %d bytes at most, which can be printed", path, line,
                         NAME_BYTES - 1);
    if (n > 0)
        snprintf(out, NAME_BYTES, "%.*s", (int)n, name);
    else
        snprintf(out, NAME_BYTES, "line-%d", line);
    return TUTTI_OK;
}

static enum tutti_status add_key(struct keys *keys, const char *key, size_t n, const char *path, int line,
                                 struct tutti_error *err)
{
    if (n >= KEY_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: the key is longer than %d bytes", path, line,
                         KEY_BYTES - 1);
    char(*names)[NAME_BYTES] = reallocarray(keys->names, keys->n + 1, NAME_BYTES);
    if (names)
        keys->names = names;
    char(*text)[KEY_BYTES] = names ? calloc(keys->n + 1, KEY_BYTES) : NULL;
    if (!text)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    enum tutti_status st = read_name(names[keys->n], key + n, path, line, err);
    if (st != TUTTI_OK) {
        free(text);
        return st;
    }
    if (keys->n)
        memcpy(text, keys->text, keys->n * KEY_BYTES);
    memcpy(text[keys->n], key, n);
    if (keys->text)
        explicit_bzero(keys->text, keys->n * KEY_BYTES);
    free(keys->text);
    keys->text = text;
    keys->n++;
    return TUTTI_OK;
}

enum tutti_status keys_open(struct keys **out, const char *path, struct tutti_error *err)
{
    struct keys *keys = calloc(1, sizeof *keys);
    FILE *file = keys ? fopen(path, "re") : NULL;
    char *line = NULL;
    size_t capacity = 0;
    enum tutti_status st = TUTTI_OK;
    if (!keys)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    if (!file) {
        st = error_set(err, TUTTI_E_IO, "%s: %s", path, strerror(errno));
        goto done;
    }
    for (int number = 1; st == TUTTI_OK && getline(&line, &capacity, file) >= 0; number++) {
        const char *key = line + strspn(line, BLANKS);
        size_t length = strcspn(key, BLANKS);
        if (length > 0 && *key != '#')
            st = add_key(keys, key, length, path, number, err);
    }
    if (st == TUTTI_OK && ferror(file))
        st = error_set(err, TUTTI_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    if (st == TUTTI_OK && keys->n == 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: holds no key, expected one a line", path);
    if (st != TUTTI_OK)
        goto done;
    *out = keys;
    keys = NULL;
done:
    if (file)
        fclose(file);
    if (line)
        explicit_bzero(line, capacity);
    free(line);
    keys_close(keys);
    return st;
}

void keys_close(struct keys *keys)
{
    if (!keys)
        return;
    if (keys->text)
        explicit_bzero(keys->text, keys->n * KEY_BYTES);
    free(keys->text);
    free(keys->names);
    free(keys);
}

const char *keys_find(const struct keys *keys, const char *authorization)
{
    if (!authorization || strncasecmp(authorization, "Bearer ", 7))
        return NULL;
    const char *given = authorization + 7 + strspn(authorization + 7, " ");
    char padded[KEY_BYTES] = { 0 };
    size_t n = strlen(given);
    if (n == 0 || n >= KEY_BYTES)
        return NULL;
    memcpy(padded, given, n);
    /* Every byte of every key, whatever was found so far. */
    size_t found = keys->n;
    for (size_t k = 0; k < keys->n; k++) {
        volatile unsigned char difference = 0;
        for (size_t i = 0; i < KEY_BYTES; i++)
            difference |= (unsigned char)(padded[i] ^ keys->text[k][i]);
        found = difference == 0 ? k : found;
    }
    return found < keys->n ? keys->names[found] : NULL;
}
