/* Incremental SHA-256. */
#ifndef TUTTI_FLEET_DIGEST_H
#define TUTTI_FLEET_DIGEST_H

#include "base/error.h"

enum { DIGEST_TEXT_BYTES = 65 }; /* 64 hexadecimal digits and the final zero */

struct digest;

struct digest *digest_new(void);          /* NULL: out of memory */
void digest_free(struct digest *digest);  /* NULL is allowed */
void digest_begin(struct digest *digest); /* starts a new digest */
void digest_add(struct digest *digest, const void *bytes, size_t n_bytes);

/* False: the library failed, in this or an earlier call. */
MUST_CHECK bool digest_end(struct digest *digest, char text[DIGEST_TEXT_BYTES]);

#endif
