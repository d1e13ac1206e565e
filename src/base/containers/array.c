#include "base/containers/array.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ITEMS = 16 };

bool array_grow(void *array, size_t n, size_t *capacity, size_t item_bytes)
{
    void *items;
    size_t more;
    if (n < *capacity)
        return true;
    if (__builtin_mul_overflow(*capacity, 2, &more))
        return false;
    more = more ? more : FIRST_ITEMS;
    memcpy(&items, array, sizeof items); /* the pointer may have any type */
    items = reallocarray(items, more, item_bytes);
    if (!items)
        return false;
    memcpy(array, &items, sizeof items);
    *capacity = more;
    return true;
}
