#include "base/ids.h"

#include <stdlib.h>
#include <string.h>

bool ids_add_all(struct ids *list, const int32_t *ids, size_t n)
{
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
