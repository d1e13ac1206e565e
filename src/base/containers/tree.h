/* Emptying a tree of tsearch(), for which only GNU's library has a function. */
#ifndef TUTTI_BASE_CONTAINERS_TREE_H
#define TUTTI_BASE_CONTAINERS_TREE_H

#include <search.h>
#include <stddef.h>

/* compare: the tree's order. drop: is given each item, which is no longer in the tree; NULL: they stay. */
static inline void tree_clear(void **tree, int (*compare)(const void *a, const void *b),
                              void (*drop)(void *item))
{
    while (*tree) {
        void *item = **(void ***)tree; /* a node begins with its item */
        tdelete(item, tree, compare);
        if (drop)
            drop(item);
    }
}

#endif
