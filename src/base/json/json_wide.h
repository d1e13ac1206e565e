/* Parses JSON that contains integers of any length, as other libraries write them. */
#ifndef TUTTI_BASE_JSON_JSON_WIDE_H
#define TUTTI_BASE_JSON_JSON_WIDE_H

#include <jansson.h>

/* As json_loadb(), but integers beyond 64 bits become reals. Files use such numbers for "no
 * limit" ("model_max_length": 1000000000000000019884624838656). */
json_t *json_load_wide(const char *text, size_t n_bytes, size_t flags, json_error_t *why);

#endif
