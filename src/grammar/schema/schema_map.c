#include "grammar/schema/schema_map.h"

#include "base/rng.h"

#include <stdlib.h>

static struct schema_map_slot *key_slot(const struct schema_map *map, const json_t *key)
{
    size_t k = (size_t)mix64((uintptr_t)key) & (map->n_slots - 1);
    while (map->slots[k].key && map->slots[k].key != key)
        k = (k + 1) & (map->n_slots - 1);
    return &map->slots[k];
}

int32_t schema_map_find(const struct schema_map *map, const json_t *key)
{
    const struct schema_map_slot *slot = map->n_slots > 0 ? key_slot(map, key) : NULL;
    return slot && slot->key ? slot->value : -1;
}

static bool map_grow(struct schema_map *map)
{
    struct schema_map larger = { .n_slots = map->n_slots ? 2 * map->n_slots : 16, .n = map->n };
    larger.slots = calloc(larger.n_slots, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (size_t i = 0; i < map->n_slots; i++)
        if (map->slots[i].key)
            *key_slot(&larger, map->slots[i].key) = map->slots[i];
    free(map->slots);
    *map = larger;
    return true;
}

bool schema_map_add(struct schema_map *map, const json_t *key, int32_t value)
{
    if (2 * map->n >= map->n_slots && !map_grow(map))
        return false;
    *key_slot(map, key) = (struct schema_map_slot){ key, value };
    map->n++;
    return true;
}

void schema_map_clear(struct schema_map *map)
{
    free(map->slots);
    *map = (struct schema_map){ 0 };
}
