/* The NUMA nodes of this machine: groups of cores with memory of their own, one or more for each processor
 * socket. Reading another node's memory takes longer and has less bandwidth. Linux tells them in
 * /sys/devices/system/node; elsewhere all cores are one node. */
#ifndef TUTTI_BASE_SYSTEM_NODES_H
#define TUTTI_BASE_SYSTEM_NODES_H

#include "base/system/os.h"

#include <stdbool.h>
#include <stddef.h>

enum { NODES_MAX = 16 };

struct node {
    int id, n_cores;
    cpu_set_t cores; /* that this process may run on */
};

struct nodes {
    int n;                        /* at least 1 */
    struct node nodes[NODES_MAX]; /* in the order of their ids; nodes without such cores are left out */
};

/* folder: as /sys/devices/system/node; NULL: that, or the one that the environment variable TUTTI_NODES names
 * (for tests). All cores are node 0 if it cannot be read, or if there are more than NODES_MAX nodes. */
void nodes_find(struct nodes *out, const char *folder);

/* The calling thread runs only on these cores from now on. A refusal changes nothing. */
void nodes_bind(const cpu_set_t *cores);
/* Only on the core at place i, modulo their number. */
void nodes_bind_one(const cpu_set_t *cores, int i);
void nodes_bound(cpu_set_t *cores); /* where the calling thread may run; none: unknown */

/* Puts whole pages of memory on a node: pages that are in use are moved, the others come from there when they
 * are first written. If the node has no memory left, they come from another one. The page with the first
 * byte belongs to the range, the page with the last one only if it ends there. False: the system refuses, as
 * containers without CAP_SYS_NICE do; then a page is where the thread runs that first writes to it. */
bool node_place(const struct node *node, void *memory, size_t n_bytes);
/* Puts pages on all nodes in turn. */
bool nodes_interleave(const struct nodes *nodes, void *memory, size_t n_bytes);

#endif
