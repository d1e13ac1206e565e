/* Search trees (tsearch(3)) of structs whose first member is their name, an array of characters. The
 * trees are balanced, so no names that clients choose make them slow. */
#ifndef TUTTI_SERVER_HTTP_BY_NAME_H
#define TUTTI_SERVER_HTTP_BY_NAME_H

#include <search.h>
#include <string.h>

static inline int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* NULL: there is none of this name. */
static inline void *by_name_find(void *const *tree, const char *name)
{
    void *const *node = tfind(name, tree, by_name);
    return node ? *node : NULL;
}

#endif
