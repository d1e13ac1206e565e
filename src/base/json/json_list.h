/* Makes JSON arrays. */
#ifndef TUTTI_BASE_JSON_JSON_LIST_H
#define TUTTI_BASE_JSON_JSON_LIST_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* A new value; NULL: out of memory. */
typedef json_t *json_item_fn(const void *user, size_t index);

/* An array of n items. NULL: out of memory, here or in item(). */
json_t *json_list(size_t n, json_item_fn *item, const void *user);

/* An array of n whole numbers. NULL: out of memory. */
json_t *json_integers(const int64_t *values, size_t n);

#endif
