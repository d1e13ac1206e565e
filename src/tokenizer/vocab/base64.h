/* Decodes base64 (RFC 4648, with padding), as used in tokenizer files. */
#ifndef TUTTI_TOKENIZER_VOCAB_BASE64_H
#define TUTTI_TOKENIZER_VOCAB_BASE64_H

#include "base/buf.h"

/* Appends the decoded bytes. False: not base64, or out of memory. */
MUST_CHECK bool base64_read(const char *text, size_t n_bytes, struct buf *out);

#endif
