/* JSON as other libraries write it, with whole numbers of any length. */
#ifndef TUTTI_BASE_JSON_JSON_WIDE_H
#define TUTTI_BASE_JSON_JSON_WIDE_H

#include <jansson.h>

/* json_loadb(), but whole numbers beyond 64 bits become real ones: files say so that there is no limit
 * ("model_max_length": 1000000000000000019884624838656). */
json_t *json_load_wide(const char *text, size_t n_bytes, size_t flags, json_error_t *why);

#endif
