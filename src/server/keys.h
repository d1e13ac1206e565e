/* API keys, compared in a time that does not tell how much of a guess was right. */
#ifndef TUTTI_SERVER_KEYS_H
#define TUTTI_SERVER_KEYS_H

#include "base/error.h"

struct keys;

/* Reads one key a line; blanks around it, blank lines and lines that begin with # are ignored.
 * TUTTI_E_IO: cannot be read. TUTTI_E_FORMAT: no key in it, or one longer than 256 bytes. */
MUST_CHECK enum tutti_status keys_open(struct keys **out, const char *path, struct tutti_error *err);
void keys_close(struct keys *keys); /* overwrites the keys; NULL is allowed */

/* authorization: the value of that header, "Bearer KEY"; may be NULL. */
bool keys_match(const struct keys *keys, const char *authorization);

#endif
