/* Strict parsing of numbers: the whole text must be a number that fits. Otherwise the functions
 * return false and leave *out untouched. */
#ifndef TUTTI_CLI_TERMINAL_NUMBERS_H
#define TUTTI_CLI_TERMINAL_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decimal digits with an optional minus sign. */
bool number_read_int(const char *text, int64_t *out);

/* A finite decimal number, exponents included; the point is '.' whatever the locale. */
bool number_read_float(const char *text, double *out);

/* Bytes: a number that may have a fraction, and a binary suffix: "4096", "512M", "1.5G", "2GiB". */
bool number_read_size(const char *text, int64_t *out);

/* A size for people, "1.5 GiB"; text: at least 32 bytes. Returns text. */
enum { NUMBER_SIZE_BYTES = 32 };
const char *number_write_size(char *text, uint64_t bytes);

#endif
