#include "server/access/keys.h"

#include "base/array.h"
#include "base/hash.h"
#include "base/utf8.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

enum { KEY_BYTES = 256, NAME_BYTES = 64, DIGEST_BYTES = 32 /* SHA-256 */, MAX_KEYS = 1 << 24 };

static const char BLANKS[] = " \t\r\n";

/* All keys with the same name. */
struct key_owner {
    char name[NAME_BYTES];
    uint64_t tenant;
    struct client_limits limits;
    int line; /* the line with its limits; 0: none */
};

/* A key; only its digest is stored. */
struct key {
    unsigned char digest[DIGEST_BYTES]; /* of the salt and the key */
    uint32_t owner;                     /* index of its name */
    int line;
};

/* Hash table over a list: open addressing, slots have indices. */
struct key_index {
    uint32_t *slots; /* [n_slots]: index + 1; 0: empty */
    size_t n_slots;  /* a power of two, at least twice the number of elements; 0: none */
};

struct keys {
    size_t n, capacity, n_owners, owner_capacity;
    struct key *list;         /* [n] */
    struct key_owner *owners; /* [n_owners] */
    struct key_index by_digest, by_name;
    struct client_limits defaults;
    /* Random, so that neither the duration of a lookup nor the contents of memory reveal a key. */
    unsigned char salt[DIGEST_BYTES];
    EVP_MD *md;
    EVP_MD_CTX *context;
};

/* The location in the file, for errors. */
struct key_line {
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

/* N_LIMITS: unknown word. */
static int limit_of(const char *word, size_t n)
{
    int i = 0;
    while (i < N_LIMITS && !(strlen(LIMITS[i].name) < n && word[strlen(LIMITS[i].name)] == '=' &&
                             !strncmp(LIMITS[i].name, word, strlen(LIMITS[i].name))))
        i++;
    return i;
}

static enum tutti_status read_limit(struct client_limits *limits, int limit, const char *word, size_t n,
                                    const struct key_line *at, struct tutti_error *err)
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

/* Reads the words after key and name. */
static enum tutti_status read_limits(struct key_owner *owner, const char *text, const struct key_line *at,
                                     struct tutti_error *err)
{
    unsigned seen = 0;
    for (const char *word = text + strspn(text, BLANKS); *word;) {
        size_t n = strcspn(word, BLANKS);
        int limit = limit_of(word, n);
        if (limit == N_LIMITS)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: line %d: found \"%.*s\" after key and name, expected weight=, "
                             "tokens-per-minute=, concurrency= or priority=",
                             at->path, at->line, (int)(n < 64 ? n : 64), word);
        if (seen & 1u << limit)
            return error_set(err, TUTTI_E_FORMAT, "%s: line %d: duplicate %s", at->path, at->line,
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

/* ---- digests and indices ---- */

/* Digest of the salt, a prefix and bytes. False: OpenSSL is out of memory. */
static bool digest(const struct keys *keys, unsigned char *out, const void *first, size_t n_first,
                   const void *bytes, size_t n_bytes)
{
    return EVP_DigestInit_ex2(keys->context, keys->md, NULL) == 1 &&
           EVP_DigestUpdate(keys->context, first, n_first) == 1 &&
           EVP_DigestUpdate(keys->context, bytes, n_bytes) == 1 &&
           EVP_DigestFinal_ex(keys->context, out, NULL) == 1;
}

static size_t hash_digest(const unsigned char *bytes)
{
    uint64_t hash;
    memcpy(&hash, bytes, sizeof hash);
    return (size_t)hash;
}

static size_t hash_key_at(const struct keys *keys, size_t i)
{
    return hash_digest(keys->list[i].digest);
}

static size_t hash_owner_at(const struct keys *keys, size_t i)
{
    return hash64_string(0, keys->owners[i].name);
}

static void index_put(struct key_index *index, size_t hash, size_t i)
{
    size_t at = hash & (index->n_slots - 1);
    while (index->slots[at])
        at = (at + 1) & (index->n_slots - 1);
    index->slots[at] = (uint32_t)i + 1;
}

/* Adds element n, the last of the list, to the index. False: out of memory. */
static bool index_add(struct key_index *index, const struct keys *keys, size_t n,
                      size_t (*hash_at)(const struct keys *keys, size_t i))
{
    if (2 * (n + 1) > index->n_slots) {
        struct key_index larger = { .n_slots = index->n_slots ? 2 * index->n_slots : 16 };
        larger.slots = calloc(larger.n_slots, sizeof *larger.slots);
        if (!larger.slots)
            return false;
        for (size_t i = 0; i < n; i++)
            index_put(&larger, hash_at(keys, i), i);
        free(index->slots);
        *index = larger;
    }
    index_put(index, hash_at(keys, n), n);
    return true;
}

/* Returns n_owners if the name is not found. */
static size_t find_owner(const struct keys *keys, const char *name)
{
    const struct key_index *index = &keys->by_name;
    if (!index->n_slots)
        return keys->n_owners;
    size_t at = hash64_string(0, name) & (index->n_slots - 1);
    while (index->slots[at] && strcmp(keys->owners[index->slots[at] - 1].name, name))
        at = (at + 1) & (index->n_slots - 1);
    return index->slots[at] ? index->slots[at] - 1 : keys->n_owners;
}

/* Returns n if the digest is not found. */
static size_t find_key(const struct keys *keys, const unsigned char *bytes)
{
    const struct key_index *index = &keys->by_digest;
    if (!index->n_slots)
        return keys->n;
    size_t at = hash_digest(bytes) & (index->n_slots - 1);
    while (index->slots[at] && CRYPTO_memcmp(keys->list[index->slots[at] - 1].digest, bytes, DIGEST_BYTES))
        at = (at + 1) & (index->n_slots - 1);
    return index->slots[at] ? index->slots[at] - 1 : keys->n;
}

/* ---- lines ---- */

/* Derives a tenant by a salted digest: the number reveals nothing about a key, and a name cannot be
 * chosen to collide with another. */
static enum tutti_status make_tenant(const struct keys *keys, uint64_t *out, const char *kind,
                                     const char *text, size_t n, struct tutti_error *err)
{
    unsigned char bytes[DIGEST_BYTES];
    if (!digest(keys, bytes, kind, strlen(kind) + 1, text, n))
        return error_set(err, TUTTI_E_MEMORY, "computing the digest of a key's name failed");
    memcpy(out, bytes, sizeof *out);
    *out |= *out == 0; /* 0 is the tenant of requests without a key */
    return TUTTI_OK;
}

/* text: key [n_key] and the rest of its line. */
static enum tutti_status read_owner(struct keys *keys, size_t *out, const char *text, size_t n_key,
                                    const struct key_line *at, struct tutti_error *err)
{
    char name[NAME_BYTES];
    const char *key = text;
    text += n_key;
    const char *word = text + strspn(text, BLANKS);
    size_t n = strcspn(word, BLANKS);
    if (limit_of(word, n) < N_LIMITS)
        n = 0;
    if (n >= NAME_BYTES || !utf8_is_printable(word, n))
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: a name must have at most %d bytes, all printable",
                         at->path, at->line, NAME_BYTES - 1);
    if (n > 0)
        snprintf(name, sizeof name, "%.*s", (int)n, word);
    else
        snprintf(name, sizeof name, "line-%d", at->line);
    size_t i = find_owner(keys, name);
    if (i == keys->n_owners) {
        if (!array_grow(&keys->owners, i, &keys->owner_capacity, sizeof *keys->owners))
            return error_out_of_memory(at->path, err);
        struct key_owner *owners = keys->owners;
        owners[i] = (struct key_owner){ .limits = keys->defaults };
        memcpy(owners[i].name, name, sizeof name);
        enum tutti_status st = n > 0 ? make_tenant(keys, &owners[i].tenant, "name", name, strlen(name), err)
                                     : make_tenant(keys, &owners[i].tenant, "key", key, n_key, err);
        if (st == TUTTI_OK && !index_add(&keys->by_name, keys, i, hash_owner_at))
            st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", at->path);
        if (st != TUTTI_OK)
            return st;
        keys->n_owners++;
    }
    *out = i;
    return read_limits(&keys->owners[i], word + n, at, err);
}

static enum tutti_status add_key(struct keys *keys, const char *key, size_t n, const struct key_line *at,
                                 struct tutti_error *err)
{
    struct key one = { .line = at->line };
    if (n >= KEY_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: the key is longer than %d bytes", at->path,
                         at->line, KEY_BYTES - 1);
    if (keys->n >= MAX_KEYS)
        return error_set(err, TUTTI_E_LIMIT, "%s: line %d: there are more than %d keys", at->path, at->line,
                         MAX_KEYS);
    if (!digest(keys, one.digest, keys->salt, sizeof keys->salt, key, n))
        return error_set(err, TUTTI_E_MEMORY, "%s: computing the digest of a key failed", at->path);
    size_t found = find_key(keys, one.digest), owner = 0;
    if (found < keys->n)
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: duplicate key, the same as in line %d", at->path,
                         at->line, keys->list[found].line);
    enum tutti_status st = read_owner(keys, &owner, key, n, at, err);
    if (st != TUTTI_OK)
        return st;
    one.owner = (uint32_t)owner;
    if (!array_grow(&keys->list, keys->n, &keys->capacity, sizeof *keys->list))
        return error_out_of_memory(at->path, err);
    keys->list[keys->n] = one;
    if (!index_add(&keys->by_digest, keys, keys->n, hash_key_at))
        return error_out_of_memory(at->path, err);
    keys->n++;
    return TUTTI_OK;
}

static enum tutti_status open_digest(struct keys *keys, struct tutti_error *err)
{
    keys->md = EVP_MD_fetch(NULL, "SHA256", NULL);
    keys->context = EVP_MD_CTX_new();
    if (!keys->md || !keys->context)
        return error_set(err, TUTTI_E_MEMORY, "OpenSSL has no SHA-256");
    if (getrandom(keys->salt, sizeof keys->salt, 0) != sizeof keys->salt)
        return error_set(err, TUTTI_E_IO, "the system provides no random numbers");
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
    st = open_digest(keys, err);
    struct key_line at = { path, 1 };
    for (; st == TUTTI_OK && getline(&line, &capacity, file) >= 0; at.line++) {
        const char *key = line + strspn(line, BLANKS);
        size_t length = strcspn(key, BLANKS);
        if (length > 0 && *key != '#')
            st = add_key(keys, key, length, &at, err);
    }
    if (st == TUTTI_OK && ferror(file))
        st = error_set(err, TUTTI_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    if (st == TUTTI_OK && keys->n == 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: holds no key, expected one per line", path);
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
    free(keys->list);
    free(keys->owners);
    free(keys->by_digest.slots);
    free(keys->by_name.slots);
    EVP_MD_CTX_free(keys->context);
    EVP_MD_free(keys->md);
    free(keys);
}

const char *keys_find(const struct keys *keys, const char *authorization)
{
    unsigned char bytes[DIGEST_BYTES];
    if (!authorization || strncasecmp(authorization, "Bearer ", 7))
        return NULL;
    const char *given = authorization + 7 + strspn(authorization + 7, " ");
    size_t n = strlen(given);
    if (n == 0 || n >= KEY_BYTES || !digest(keys, bytes, keys->salt, sizeof keys->salt, given, n))
        return NULL;
    size_t found = find_key(keys, bytes);
    return found < keys->n ? keys->owners[keys->list[found].owner].name : NULL;
}

uint64_t keys_tenant(const struct keys *keys, const char *name)
{
    size_t i = find_owner(keys, name);
    assert(i < keys->n_owners); /* the name is from keys_find() */
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

size_t keys_count(const struct keys *keys)
{
    return keys->n_owners;
}
