#include "server/keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { KEY_BYTES = 256 };

struct keys {
    size_t n;
    char (*text)[KEY_BYTES]; /* padded with zeros */
};

static enum tutti_status add_key(struct keys *keys, const char *key, size_t n, const char *path, int line,
                                 struct tutti_error *err)
{
    if (n >= KEY_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: the key is longer than %d bytes", path, line,
                         KEY_BYTES - 1);
    char(*text)[KEY_BYTES] = calloc(keys->n + 1, KEY_BYTES);
    if (!text)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
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
        const char *key = line + strspn(line, " \t\r\n");
        size_t length = strcspn(key, " \t\r\n");
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
    free(keys);
}

bool keys_match(const struct keys *keys, const char *authorization)
{
    if (!authorization || strncasecmp(authorization, "Bearer ", 7))
        return false;
    const char *given = authorization + 7 + strspn(authorization + 7, " ");
    char padded[KEY_BYTES] = { 0 };
    size_t n = strlen(given);
    if (n == 0 || n >= KEY_BYTES)
        return false;
    memcpy(padded, given, n);
    /* Every byte of every key, whatever was found so far. */
    unsigned found = 0;
    for (size_t k = 0; k < keys->n; k++) {
        volatile unsigned char difference = 0;
        for (size_t i = 0; i < KEY_BYTES; i++)
            difference |= (unsigned char)(padded[i] ^ keys->text[k][i]);
        found |= difference == 0;
    }
    return found;
}
