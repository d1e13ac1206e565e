/* Growable arrays: an array of any type, the number of its items, and its capacity. */
#ifndef TUTTI_BASE_ARRAY_H
#define TUTTI_BASE_ARRAY_H

#include "base/error.h"

/* Makes room for one more item. array: points to the array, which may move; NULL with capacity 0 is
 * an empty one. n: its items, at most *capacity. False: out of memory, and nothing has changed. */
MUST_CHECK bool array_grow(void *array, size_t n, size_t *capacity, size_t item_bytes);

/* Changes the capacity to n items. The same array and result. */
MUST_CHECK bool array_resize(void *array, size_t n, size_t item_bytes);

#endif
