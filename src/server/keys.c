#include "server/keys.h"

#include "base/utf8.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { KEY_BYTES = 256, NAME_BYTES = 64 };

static const char BLANKS[] = " \t\r\n";

/* All keys of one name. */
struct key_owner {
    char name[NAME_BYTES];
    uint64_t tenant;
    struct client_limits limits;
    int line; /* that has limits; 0: none has */
};

struct keys {
    size_t n, n_owners;
    char (*text)[KEY_BYTES]; /* [n] padded with zeros */
    size_t *owner_of;        /* [n] */
    struct key_owner *owners;
    struct client_limits defaults;
};

/* What a line is about, for errors. */
struct place {
    const char *path;
    int line;
};

/* ---- limits ---- */

static const struct {
    const char *name;
    double min, max;
    bool is_whole;
} LIMITS[] = { { "weight", 0.001, 1000, false },
               { "tokens-per-minute", 0, 1e12, true },
               { "concurrency", 0, 1000000, true },
               { "priority", TUTTI_PRIORITY_FIRST, TUTTI_PRIORITY_LAST, true } };

enum { WEIGHT, TOKENS_PER_MINUTE, CONCURRENCY, PRIORITY, N_LIMITS };

_Static_assert(sizeof LIMITS / sizeof *LIMITS == N_LIMITS, "in that order");

/* N_LIMITS: the word is none. */
static int limit_of(const char *word, size_t n)
{
    int i = 0;
    while (i < N_LIMITS && !(strlen(LIMITS[i].name) < n && word[strlen(LIMITS[i].name)] == '=' &&
                             !strncmp(LIMITS[i].name, word, strlen(LIMITS[i].name))))
        i++;
    return i;
}

static enum tutti_status read_limit(struct client_limits *limits, int limit, const char *word, size_t n,
                                    const struct place *at, struct tutti_error *err)
{
    char text[32] = "", *end = text;
    const char *value = word + strlen(LIMITS[limit].name) + 1;
    size_t n_value = n - (size_t)(value - word);
    double number = NAN;
    if (n_value > 0 && n_value < sizeof text && strspn(value, "0123456789.+-eE") >= n_value) {
        memcpy(text, value, n_value);
        number = strtod(text, &end);
    }
    if (*end || !(number >= LIMITS[limit].min && number <= LIMITS[limit].max) ||
        (LIMITS[limit].is_whole && number != floor(number)))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: line %d: %s is \"%.*s\", expected a %snumber from %.15g to %.15g", at->path,
                         at->line, LIMITS[limit].name, (int)(n_value < 32 ? n_value : 32), value,
                         LIMITS[limit].is_whole ? "whole " : "", LIMITS[limit].min, LIMITS[limit].max);
    switch (limit) {
    case WEIGHT:
        limits->weight = number;
        break;
    case TOKENS_PER_MINUTE:
        limits->tokens_per_minute = number;
        break;
    case CONCURRENCY:
        limits->concurrency = (int)number;
        break;
    default:
        limits->priority = (int)number;
        break;
    }
    return TUTTI_OK;
}

/* The words behind key and name. */
static enum tutti_status read_limits(struct key_owner *owner, const char *text, const struct place *at,
                                     struct tutti_error *err)
{
    unsigned seen = 0;
    for (const char *word = text + strspn(text, BLANKS); *word;) {
        size_t n = strcspn(word, BLANKS);
        int limit = limit_of(word, n);
        if (limit == N_LIMITS)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: line %d: found \"%.*s\" behind key and name, expected weight=, "
                             "tokens-per-minute=, concurrency= or priority=",
                             at->path, at->line, (int)(n < 64 ? n : 64), word);
        if (seen & 1u << limit)
            return error_set(err, TUTTI_E_FORMAT, "%s: line %d: %s is there twice", at->path, at->line,
                             LIMITS[limit].name);
        seen |= 1u << limit;
        enum tutti_status st = read_limit(&owner->limits, limit, word, n, at, err);
        if (st != TUTTI_OK)
            return st;
        word += n + strspn(word + n, BLANKS);
    }
    if (seen && owner->line)
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: limits of %s are in line %d already", at->path,
                         at->line, owner->name, owner->line);
    if (seen)
        owner->line = at->line;
    return TUTTI_OK;
}

/* ---- lines ---- */

static size_t find_owner(const struct keys *keys, const char *name)
{
    size_t i = 0;
    while (i < keys->n_owners && strcmp(keys->owners[i].name, name))
        i++;
    return i;
}

/* The digest of kind and text, so that a tenant's number tells nothing of a key, and none can be made to be another's. */
static enum tutti_status make_tenant(uint64_t *out, const char *kind, const char *text, size_t n,
                                     struct tutti_error *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1 &&
              EVP_DigestUpdate(md, kind, strlen(kind) + 1) == 1 && EVP_DigestUpdate(md, text, n) == 1 &&
              EVP_DigestFinal_ex(md, digest, NULL) == 1;
    EVP_MD_CTX_free(md);
    if (!ok)
        return error_set(err, TUTTI_E_MEMORY, "the digest of a key's name failed");
    memcpy(out, digest, sizeof *out);
    *out |= *out == 0; /* 0 are those without a key */
    return TUTTI_OK;
}

/* text: key [n_key] and what is behind it. */
static enum tutti_status read_owner(struct keys *keys, size_t *out, const char *text, size_t n_key,
                                    const struct place *at, struct tutti_error *err)
{
    char name[NAME_BYTES];
    const char *key = text;
    text += n_key;
    const char *word = text + strspn(text, BLANKS);
    size_t n = strcspn(word, BLANKS);
    if (limit_of(word, n) < N_LIMITS)
        n = 0;
    if (n >= NAME_BYTES || !utf8_is_printable(word, n))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: line %d: a name has %d bytes at most, which can be printed", at->path, at->line,
                         NAME_BYTES - 1);
    if (n > 0)
        snprintf(name, sizeof name, "%.*s", (int)n, word);
    else
        snprintf(name, sizeof name, "line-%d", at->line);
    size_t i = find_owner(keys, name);
    if (i == keys->n_owners) {
        struct key_owner *owners = reallocarray(keys->owners, keys->n_owners + 1, sizeof *owners);
        if (!owners)
            return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", at->path);
        keys->owners = owners;
        owners[i] = (struct key_owner){ .limits = keys->defaults };
        memcpy(owners[i].name, name, sizeof name);
        enum tutti_status st = n > 0 ? make_tenant(&owners[i].tenant, "name", name, strlen(name), err)
                                     : make_tenant(&owners[i].tenant, "key", key, n_key, err);
        if (st != TUTTI_OK)
            return st;
        keys->n_owners++;
    }
    *out = i;
    return read_limits(&keys->owners[i], word + n, at, err);
}

static enum tutti_status add_key(struct keys *keys, const char *key, size_t n, const struct place *at,
                                 struct tutti_error *err)
{
    if (n >= KEY_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: the key is longer than %d bytes", at->path,
                         at->line, KEY_BYTES - 1);
    size_t owner = 0;
    enum tutti_status st = read_owner(keys, &owner, key, n, at, err);
    if (st != TUTTI_OK)
        return st;
    size_t *owner_of = reallocarray(keys->owner_of, keys->n + 1, sizeof *owner_of);
    if (owner_of)
        keys->owner_of = owner_of;
    char(*text)[KEY_BYTES] = owner_of ? calloc(keys->n + 1, KEY_BYTES) : NULL;
    if (!text)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", at->path);
    if (keys->n)
        memcpy(text, keys->text, keys->n * KEY_BYTES);
    memcpy(text[keys->n], key, n);
    if (keys->text)
        explicit_bzero(keys->text, keys->n * KEY_BYTES);
    free(keys->text);
    keys->text = text;
    keys->owner_of[keys->n++] = owner;
    return TUTTI_OK;
}

enum tutti_status keys_open(struct keys **out, const char *path, const struct client_limits *defaults,
                            struct tutti_error *err)
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
    keys->defaults = *defaults;
    struct place at = { path, 1 };
    for (; st == TUTTI_OK && getline(&line, &capacity, file) >= 0; at.line++) {
        const char *key = line + strspn(line, BLANKS);
        size_t length = strcspn(key, BLANKS);
        if (length > 0 && *key != '#')
            st = add_key(keys, key, length, &at, err);
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
    free(keys->owner_of);
    free(keys->owners);
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
    return found < keys->n ? keys->owners[keys->owner_of[found]].name : NULL;
}

uint64_t keys_tenant(const struct keys *keys, const char *name)
{
    size_t i = find_owner(keys, name);
    assert(i < keys->n_owners); /* keys_find() has told the name */
    return keys->owners[i].tenant;
}

const struct client_limits *keys_limits(const struct keys *keys, const char *name)
{
    size_t i = find_owner(keys, name);
    return i < keys->n_owners ? &keys->owners[i].limits : &keys->defaults;
}

const char *keys_name(const struct keys *keys, size_t index)
{
    return index < keys->n_owners ? keys->owners[index].name : NULL;
}
