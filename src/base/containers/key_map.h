/* A hash table from 64-bit keys to numbers.
 *
 * A key is the hash of an item. If two items may have the same hash, the caller iterates with
 * key_map_next() and compares the item of each number. If the hash is a bijection (mix64() of
 * base/rng.h), the first number is the right one. */
#ifndef TUTTI_BASE_KEY_MAP_H
#define TUTTI_BASE_KEY_MAP_H

#include "base/error.h"

/* Zero-initialised is empty and valid. Open addressing. */
struct key_map {
    struct key_slot {
        uint64_t key;
        int32_t value; /* the number + 1; 0: free */
    } * slots;
    size_t n, n_slots; /* n_slots: a power of two, or 0 */
};

/* The next number of the key; -1: no more. *at: set it to the key before the first call. */
static inline int32_t key_map_next(const struct key_map *map, uint64_t key, uint64_t *at)
{
    while (map->n_slots > 0) {
        const struct key_slot *slot = &map->slots[(*at)++ & (map->n_slots - 1)];
        if (slot->value == 0)
            break;
        if (slot->key == key)
            return slot->value - 1;
    }
    return -1;
}

/* The first number of the key; -1: none. */
static inline int32_t key_map_find(const struct key_map *map, uint64_t key)
{
    uint64_t at = key;
    return key_map_next(map, key, &at);
}

/* Adds a number of 0 or more to those of the key. False: out of memory. */
MUST_CHECK bool key_map_add(struct key_map *map, uint64_t key, int32_t value);
void key_map_clear(struct key_map *map);

#endif
