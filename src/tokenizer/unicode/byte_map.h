/* The alphabet in which files spell tokens of bytes: each byte is one printable character, so that JSON and lines of text
 * can hold all of them. After the encoder of GPT-2: Radford et al., 2019. */
#ifndef TUTTI_TOKENIZER_UNICODE_BYTE_MAP_H
#define TUTTI_TOKENIZER_UNICODE_BYTE_MAP_H

#include "base/buf.h"

/* Adds what a spelling stands for. False, and nothing is added: it holds a character outside the alphabet, or is no UTF-8.
 * Room for n_bytes must have been reserved. */
bool byte_map_read(const char *spelling, size_t n_bytes, struct buf *out);

/* Adds the spelling of bytes. False: out of memory. */
MUST_CHECK bool byte_map_write(const char *bytes, size_t n_bytes, struct buf *out);

#endif
