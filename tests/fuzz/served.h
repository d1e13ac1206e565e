/* The whole server in one process and one thread, with the demo model's tokenizer and chat format but an engine that echoes: an
 * answer is the prompt's own text, so that what a request holds comes back through everything that writes replies. */
#ifndef TUTTI_FUZZ_SERVED_H
#define TUTTI_FUZZ_SERVED_H

#include <stddef.h>
#include <stdint.h>

/* Sends the bytes over one connection, n_part at a time, closes this side, and holds whatever comes back against HTTP: each reply
 * is whole, and JSON where it says so. Returns the last reply's status; 0: none came. Nothing is left running afterwards. */
int served_send(const uint8_t *bytes, size_t n_bytes, size_t n_part);

#endif
