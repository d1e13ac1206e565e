/* Incremental SHA-256 and SHA-1 (libcrypto). */
#ifndef TUTTI_BASE_FILES_DIGEST_H
#define TUTTI_BASE_FILES_DIGEST_H

#include "base/error.h"

enum digest_kind { DIGEST_SHA256, DIGEST_SHA1 };
/* At most 64 hexadecimal digits and the final zero; SHA-1 has 40. */
enum { DIGEST_TEXT_BYTES = 65 };

struct digest;

struct digest *digest_new(enum digest_kind kind); /* NULL: out of memory */
void digest_free(struct digest *digest);          /* NULL is allowed */
void digest_begin(struct digest *digest);         /* starts a new digest of the same kind */
void digest_add(struct digest *digest, const void *bytes, size_t n_bytes);

/* False: the library failed, in this or an earlier call. */
MUST_CHECK bool digest_end(struct digest *digest, char text[DIGEST_TEXT_BYTES]);

#endif
