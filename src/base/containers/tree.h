/* Empties a tree of tsearch(): only glibc has tdestroy(). */
#ifndef TUTTI_BASE_CONTAINERS_TREE_H
#define TUTTI_BASE_CONTAINERS_TREE_H

#include <search.h>
#include <stddef.h>

/* compare: the tree's order. drop: called with each item after its removal; NULL: items are not freed. */
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
