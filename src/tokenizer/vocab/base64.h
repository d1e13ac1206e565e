/* Base64 as tokenizer files hold it (RFC 4648, with padding). */
#ifndef TUTTI_TOKENIZER_VOCAB_BASE64_H
#define TUTTI_TOKENIZER_VOCAB_BASE64_H

#include "base/buf.h"

/* Adds the bytes. False: it is not base64, or out of memory. */
MUST_CHECK bool base64_read(const char *text, size_t n_bytes, struct buf *out);

#endif
