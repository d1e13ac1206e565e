/* API keys and their limits. Only salted digests are kept, so a lookup takes the same time for any
 * number of keys, and does not reveal how much of a wrong key was right. */
#ifndef TUTTI_SERVER_ACCESS_KEYS_H
#define TUTTI_SERVER_ACCESS_KEYS_H

#include "server/http/clients.h"

struct keys;

/* Reads a key file. Each line has a key, optionally followed by its name for logs; the default name
 * is "line-N". Then limits may follow in any order: "weight=2 tokens-per-minute=50000 concurrency=4
 * priority=1". Missing limits are taken from defaults; tokens-per-minute=0 and concurrency=0 mean
 * no limit. Keys with the same name are one client, whose limits are given in one line only.
 * Surrounding blanks, blank lines and lines that begin with # are ignored. TUTTI_E_IO: cannot be
 * read. TUTTI_E_FORMAT: no key, a duplicate key, or an invalid line. */
MUST_CHECK enum tutti_status keys_open(struct keys **out, const char *path,
                                       const struct client_limits *defaults, struct tutti_error *err);
void keys_close(struct keys *keys); /* NULL is allowed */

/* The number of different names. */
size_t keys_count(const struct keys *keys);

/* Looks up authorization, the value of that header, "Bearer KEY" (may be NULL). Returns the key's
 * name; NULL: no such key. */
const char *keys_find(const struct keys *keys, const char *authorization);
/* The same for the key itself. */
const char *keys_find_key(const struct keys *keys, const char *key);

/* The tenant of a name: it owns the chats and cached pages of requests with its keys. The number is
 * the same after a restart, and never 0. The tenant of a key without a name is derived from the
 * key, not from "line-N", which may be another key after the file changes. */
uint64_t keys_tenant(const struct keys *keys, const char *name);

/* Divides a tenant further: *tenant becomes that of its requests with this salt, of at most API_MAX_SALT_BYTES. It
 * cannot be chosen to collide with another tenant. False: OpenSSL is out of memory. */
MUST_CHECK bool keys_salt_tenant(uint64_t *tenant, const struct tutti_string *salt);

/* The limits of a name; the defaults if no line has that name. */
const struct client_limits *keys_limits(const struct keys *keys, const char *name);

/* The names, each once, in the order of the file. NULL: index is out of range. */
const char *keys_name(const struct keys *keys, size_t index);

#endif
