/* GPT-2's byte-to-unicode mapping: files spell each byte of a token as one printable character,
 * so that JSON and text lines can contain any token. Radford et al., 2019. */
#ifndef TUTTI_TOKENIZER_UNICODE_BYTE_MAP_H
#define TUTTI_TOKENIZER_UNICODE_BYTE_MAP_H

#include "base/buf.h"

/* Appends the bytes of a spelling. False, and nothing is added: it has a character outside the
 * alphabet, or is not UTF-8. Room for n_bytes must have been reserved. */
bool byte_map_read(const char *spelling, size_t n_bytes, struct buf *out);

/* Adds the spelling of bytes. False: out of memory. */
MUST_CHECK bool byte_map_write(const char *bytes, size_t n_bytes, struct buf *out);

#endif
