#include "base/ids.h"

#include <stdlib.h>
#include <string.h>

bool ids_has_room(struct ids *list, size_t n_least)
{
    if (list->max == 0 || n_least <= list->max - list->n)
        return true;
    list->is_full = true;
    return false;
}

bool ids_add_all(struct ids *list, const int32_t *ids, size_t n)
{
    if (!ids_has_room(list, n))
        return false;
    if (n > list->capacity - list->n) {
        size_t capacity = list->capacity + list->capacity / 2 + n + 16;
        int32_t *more = capacity > SIZE_MAX / sizeof *more ? NULL
                                                           : realloc(list->ids, capacity * sizeof *more);
        if (!more)
            return false;
        list->ids = more;
        list->capacity = capacity;
    }
    if (n > 0)
        memcpy(list->ids + list->n, ids, n * sizeof *ids);
    list->n += n;
    return true;
}

bool ids_add(struct ids *list, int32_t id)
{
    return ids_add_all(list, &id, 1);
}

void ids_clear(struct ids *list)
{
    free(list->ids);
    *list = (struct ids){ 0 };
}
