#include "base/containers/key_map.h"

#include <stdlib.h>

static void put(struct key_map *map, struct key_slot slot)
{
    uint64_t at = slot.key;
    while (map->slots[at & (map->n_slots - 1)].value)
        at++;
    map->slots[at & (map->n_slots - 1)] = slot;
}

bool key_map_add(struct key_map *map, uint64_t key, int32_t value)
{
    if (2 * map->n >= map->n_slots) {
        struct key_map larger = { .n_slots = map->n_slots ? 2 * map->n_slots : 16, .n = map->n };
        larger.slots = calloc(larger.n_slots, sizeof *larger.slots);
        if (!larger.slots)
            return false;
        for (size_t i = 0; i < map->n_slots; i++) {
            if (map->slots[i].value)
                put(&larger, map->slots[i]);
        }
        free(map->slots);
        *map = larger;
    }
    put(map, (struct key_slot){ .key = key, .value = value + 1 });
    map->n++;
    return true;
}

void key_map_clear(struct key_map *map)
{
    free(map->slots);
    *map = (struct key_map){ 0 };
}
