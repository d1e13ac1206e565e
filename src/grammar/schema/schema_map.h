/* A hash map from JSON values, identified by address, to numbers. */
#ifndef TUTTI_GRAMMAR_SCHEMA_SCHEMA_MAP_H
#define TUTTI_GRAMMAR_SCHEMA_SCHEMA_MAP_H

#include "base/error.h"

#include <jansson.h>

/* Zero-initialised is empty and valid. Open addressing. */
struct schema_map {
    struct schema_map_slot {
        const json_t *key; /* NULL: free */
        int32_t value;
    } * slots;
    size_t n, n_slots;
};

/* -1: not found. */
int32_t schema_map_find(const struct schema_map *map, const json_t *key);
/* key must be new; value: 0 or more. False: out of memory. */
MUST_CHECK bool schema_map_add(struct schema_map *map, const json_t *key, int32_t value);
void schema_map_clear(struct schema_map *map);

#endif
