/* API keys and what each may do. Only salted digests of them are kept, so that a search takes the same time however many
 * keys there are, and does not reveal how much of a wrong key was right. */
#ifndef TUTTI_SERVER_ACCESS_KEYS_H
#define TUTTI_SERVER_ACCESS_KEYS_H

#include "server/http/clients.h"

struct keys;

/* Reads one key a line and behind it, where there is one, the name by which logs call it; without a name that is "line-N".
 * Behind that limits, in any order, "weight=2 tokens-per-minute=50000 concurrency=4 priority=1"; those that are not there are
 * as in defaults, and 0 of tokens or answers is no limit. Keys of one name are one client, whose limits stand in one
 * line at most. Blanks around all of it, blank lines and lines that begin with # are ignored.
 * TUTTI_E_IO: cannot be read. TUTTI_E_FORMAT: no key in it, a key twice, or a line that is not understood. */
MUST_CHECK enum tutti_status keys_open(struct keys **out, const char *path,
                                       const struct client_limits *defaults, struct tutti_error *err);
void keys_close(struct keys *keys); /* NULL is allowed */

/* How many names there are. */
size_t keys_count(const struct keys *keys);

/* The name of the key in authorization, the value of that header, "Bearer KEY", which may be NULL. NULL: no such key. */
const char *keys_find(const struct keys *keys, const char *authorization);

/* The tenant of this name: it owns the chats and cached pages of requests with its keys. The number is the same after a restart, and
 * never 0. The tenant of a key without a name follows from the key, not from "line-N", which may name another key after a
 * change of the file. */
uint64_t keys_tenant(const struct keys *keys, const char *name);

/* What keys of this name may do; of one that is in no line: the defaults. */
const struct client_limits *keys_limits(const struct keys *keys, const char *name);

/* The names, each once, in the order of the file. NULL: index is beyond the last one. */
const char *keys_name(const struct keys *keys, size_t index);

#endif
