/* API keys, compared in a time that does not tell how much of a guess was right. */
#ifndef TUTTI_SERVER_KEYS_H
#define TUTTI_SERVER_KEYS_H

#include "base/error.h"

struct keys;

/* Reads one key a line and behind it, where there is one, the name by which logs call it; without a name that is "line-N".
 * Blanks around both, blank lines and lines that begin with # are ignored.
 * TUTTI_E_IO: cannot be read. TUTTI_E_FORMAT: no key in it, or a line that is not understood. */
MUST_CHECK enum tutti_status keys_open(struct keys **out, const char *path, struct tutti_error *err);
void keys_close(struct keys *keys); /* overwrites the keys; NULL is allowed */

/* The name of the key in authorization, the value of that header, "Bearer KEY", which may be NULL. NULL: no such key. */
const char *keys_find(const struct keys *keys, const char *authorization);

#endif
