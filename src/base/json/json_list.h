/* Makes JSON arrays and objects. */
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

struct json_member {
    const char *name;
    json_t *value;
};

/* An object of n members. Takes over every value, also on failure. NULL: out of memory, here or when
 * a value was created. */
json_t *json_members(const struct json_member *members, size_t n);
#define JSON_MEMBERS(members) json_members((members), sizeof(members) / sizeof *(members))

/* Moves the members of more to object; takes over both, also on failure. NULL: out of memory, here
 * or when one of them was created. */
json_t *json_merge(json_t *object, json_t *more);

#endif
