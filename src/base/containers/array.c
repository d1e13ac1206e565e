#include "base/containers/array.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ITEMS = 16 };

bool array_resize(void *array, size_t n, size_t item_bytes)
{
    void *items;
    size_t n_bytes;
    if (__builtin_mul_overflow(n, item_bytes, &n_bytes))
        return false;
    memcpy(&items, array, sizeof items); /* the pointer may have any type */
    items = realloc(items, n_bytes);
    if (!items)
        return false;
    memcpy(array, &items, sizeof items);
    return true;
}

bool array_grow(void *array, size_t n, size_t *capacity, size_t item_bytes)
{
    size_t more;
    if (n < *capacity)
        return true;
    if (__builtin_mul_overflow(*capacity, 2, &more))
        return false;
    more = more ? more : FIRST_ITEMS;
    if (!array_resize(array, more, item_bytes))
        return false;
    *capacity = more;
    return true;
}
