#include "server/access/keys.h"

#include "base/containers/array.h"
#include "base/containers/tree.h"
#include "base/system/os.h"
#include "base/utf8.h"
#include "server/http/by_name.h"
#include "server/requests/openai_request.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
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
    char name[NAME_BYTES]; /* the first member: by_name.h */
    uint64_t tenant;
    struct client_limits limits;
    int line; /* the line with its limits; 0: none */
};

/* A key; only its digest is stored. */
struct key {
    unsigned char digest[DIGEST_BYTES]; /* of the salt and the key; the first member: compare_digests() */
    const struct key_owner *owner;
    int line;
};

struct keys {
    size_t n, n_owners, owner_capacity;
    void *by_digest, *by_name; /* search trees of struct key and struct key_owner, which they own */
    struct key_owner **owners; /* [n_owners]: in the order of the file */
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

/* ---- digests ---- */

/* Digest of the salt, a prefix and bytes. False: OpenSSL is out of memory. */
static bool digest(const struct keys *keys, unsigned char *out, const void *first, size_t n_first,
                   const void *bytes, size_t n_bytes)
{
    return EVP_DigestInit_ex2(keys->context, keys->md, NULL) == 1 &&
           EVP_DigestUpdate(keys->context, first, n_first) == 1 &&
           EVP_DigestUpdate(keys->context, bytes, n_bytes) == 1 &&
           EVP_DigestFinal_ex(keys->context, out, NULL) == 1;
}

static int compare_digests(const void *a, const void *b)
{
    return memcmp(a, b, DIGEST_BYTES);
}

/* NULL: there is none. */
static const struct key *find_key(const struct keys *keys, const unsigned char *bytes)
{
    struct key *const *node = tfind(bytes, &keys->by_digest, compare_digests);
    return node ? *node : NULL;
}

/* Adds a copy of an item to a tree. NULL: out of memory. */
static void *add_to(void **tree, const void *item, size_t n_bytes,
                    int (*compare)(const void *a, const void *b))
{
    void *copy = malloc(n_bytes);
    if (!copy)
        return NULL;
    memcpy(copy, item, n_bytes);
    if (tsearch(copy, tree, compare))
        return copy;
    free(copy);
    return NULL;
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
static enum tutti_status read_owner(struct keys *keys, const struct key_owner **out, const char *text,
                                    size_t n_key, const struct key_line *at, struct tutti_error *err)
{
    struct key_owner one = { .limits = keys->defaults };
    const char *word = text + n_key + strspn(text + n_key, BLANKS);
    size_t n = strcspn(word, BLANKS);
    if (limit_of(word, n) < N_LIMITS)
        n = 0;
    if (n >= NAME_BYTES || !utf8_is_printable(word, n))
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: a name must have at most %d bytes, all printable",
                         at->path, at->line, NAME_BYTES - 1);
    if (n > 0)
        snprintf(one.name, sizeof one.name, "%.*s", (int)n, word);
    else
        snprintf(one.name, sizeof one.name, "line-%d", at->line);
    struct key_owner *owner = by_name_find(&keys->by_name, one.name);
    if (!owner) {
        enum tutti_status st = n > 0 ? make_tenant(keys, &one.tenant, "name", word, n, err)
                                     : make_tenant(keys, &one.tenant, "key", text, n_key, err);
        if (st != TUTTI_OK)
            return st;
        if (!array_grow(&keys->owners, keys->n_owners, &keys->owner_capacity, sizeof *keys->owners) ||
            !(owner = add_to(&keys->by_name, &one, sizeof one, by_name)))
            return error_out_of_memory(at->path, err);
        keys->owners[keys->n_owners++] = owner;
    }
    *out = owner;
    return read_limits(owner, word + n, at, err);
}

static enum tutti_status keys_add_line(struct keys *keys, const char *key, size_t n,
                                       const struct key_line *at, struct tutti_error *err)
{
    struct key one = { .line = at->line };
    if (!utf8_is_printable(key, n))
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: expected a key of printable characters in UTF-8",
                         at->path, at->line);
    if (n >= KEY_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: the key is longer than %d bytes", at->path,
                         at->line, KEY_BYTES - 1);
    if (keys->n >= MAX_KEYS)
        return error_set(err, TUTTI_E_LIMIT, "%s: line %d: there are more than %d keys", at->path, at->line,
                         MAX_KEYS);
    if (!digest(keys, one.digest, keys->salt, sizeof keys->salt, key, n))
        return error_set(err, TUTTI_E_MEMORY, "%s: computing the digest of a key failed", at->path);
    const struct key *found = find_key(keys, one.digest);
    if (found)
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: duplicate key, the same as in line %d", at->path,
                         at->line, found->line);
    enum tutti_status st = read_owner(keys, &one.owner, key, n, at, err);
    if (st == TUTTI_OK && !add_to(&keys->by_digest, &one, sizeof one, compare_digests))
        st = error_out_of_memory(at->path, err);
    keys->n += st == TUTTI_OK;
    return st;
}

static enum tutti_status open_digest(struct keys *keys, struct tutti_error *err)
{
    keys->md = EVP_MD_fetch(NULL, "SHA256", NULL);
    keys->context = EVP_MD_CTX_new();
    if (!keys->md || !keys->context)
        return error_set(err, TUTTI_E_MEMORY, "OpenSSL has no SHA-256");
    if (getentropy(keys->salt, sizeof keys->salt) != 0)
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
    ssize_t n_bytes;
    for (; st == TUTTI_OK && (n_bytes = getline(&line, &capacity, file)) >= 0; at.line++) {
        const char *key = line + (at.line == 1 ? utf8_mark_bytes(line, (size_t)n_bytes) : 0);
        key += strspn(key, BLANKS);
        size_t length = strcspn(key, BLANKS);
        if (strlen(line) !=
            (size_t)n_bytes) /* a file in UTF-16 has keys of one letter before its first zero */
            st = error_set(err, TUTTI_E_FORMAT, "%s: line %d: a zero byte, expected text in UTF-8", path,
                           at.line);
        else if (length > 0 && *key != '#')
            st = keys_add_line(keys, key, length, &at, err);
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
        os_forget(line, capacity);
    free(line);
    keys_close(keys);
    return st;
}

void keys_close(struct keys *keys)
{
    if (!keys)
        return;
    tree_clear(&keys->by_digest, compare_digests, free);
    tree_clear(&keys->by_name, by_name, free);
    free(keys->owners);
    EVP_MD_CTX_free(keys->context);
    EVP_MD_free(keys->md);
    free(keys);
}

const char *keys_find(const struct keys *keys, const char *authorization)
{
    if (!authorization || strncasecmp(authorization, "Bearer ", 7))
        return NULL;
    return keys_find_key(keys, authorization + 7 + strspn(authorization + 7, " "));
}

const char *keys_find_key(const struct keys *keys, const char *key)
{
    unsigned char bytes[DIGEST_BYTES];
    size_t n = key ? strlen(key) : 0;
    if (n == 0 || n >= KEY_BYTES || !digest(keys, bytes, keys->salt, sizeof keys->salt, key, n))
        return NULL;
    const struct key *found = find_key(keys, bytes);
    return found ? found->owner->name : NULL;
}

bool keys_salt_tenant(uint64_t *tenant, const struct tutti_string *salt)
{
    unsigned char text[sizeof *tenant + API_MAX_SALT_BYTES], bytes[DIGEST_BYTES];
    assert(salt->n_bytes <= API_MAX_SALT_BYTES);
    memcpy(text, tenant, sizeof *tenant);
    memcpy(text + sizeof *tenant, salt->text, salt->n_bytes);
    if (EVP_Digest(text, sizeof *tenant + salt->n_bytes, bytes, NULL, EVP_sha256(), NULL) != 1)
        return false;
    memcpy(tenant, bytes, sizeof *tenant);
    *tenant |= *tenant == 0;
    return true;
}

uint64_t keys_tenant(const struct keys *keys, const char *name)
{
    const struct key_owner *owner = by_name_find(&keys->by_name, name);
    assert(owner); /* the name is from keys_find() */
    return owner->tenant;
}

const struct client_limits *keys_limits(const struct keys *keys, const char *name)
{
    const struct key_owner *owner = by_name_find(&keys->by_name, name);
    return owner ? &owner->limits : &keys->defaults;
}

const char *keys_name(const struct keys *keys, size_t index)
{
    return index < keys->n_owners ? keys->owners[index]->name : NULL;
}

size_t keys_count(const struct keys *keys)
{
    return keys->n_owners;
}
