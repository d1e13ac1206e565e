/* The NUMA nodes of this machine: groups of cores with memory of their own, one or more for each processor
 * socket. Reading another node's memory takes longer and has less bandwidth. Linux lists the nodes in
 * /sys/devices/system/node; on other systems all cores are one node. */
#ifndef TUTTI_BASE_SYSTEM_NODES_H
#define TUTTI_BASE_SYSTEM_NODES_H

#include "base/system/os.h"

#include <stdbool.h>
#include <stddef.h>

enum { NODES_MAX = 16 };

struct node {
    int id, n_cores;
    cpu_set_t cores; /* those that this process may run on */
};

struct nodes {
    int n;                        /* at least 1 */
    struct node nodes[NODES_MAX]; /* in the order of their ids; nodes without such cores are left out */
};

/* folder: has the form of /sys/devices/system/node; NULL: the environment variable TUTTI_NODES (for tests), else
 * that folder. All cores are node 0 if it cannot be read, or if there are more than NODES_MAX nodes. */
void nodes_find(struct nodes *out, const char *folder);

/* Binds the calling thread to these cores. Errors are ignored. */
void nodes_bind(const cpu_set_t *cores);
/* Binds the calling thread to the i-th of these cores, modulo their number. */
void nodes_bind_one(const cpu_set_t *cores, int i);
void nodes_bound(cpu_set_t *cores); /* that the calling thread may run on; empty: unknown */

/* Places whole pages of memory on a node: pages in use are moved, the others are allocated there at the first write.
 * If the node has no free memory, another node's is used. The page of the first byte belongs to the range, the
 * page of the last byte only if the range ends with it. False: not permitted, as in containers without
 * CAP_SYS_NICE; then a page is allocated on the node of the thread that first writes to it. */
bool node_place(const struct node *node, void *memory, size_t n_bytes);
/* Interleaves the pages over all nodes. */
bool nodes_interleave(const struct nodes *nodes, void *memory, size_t n_bytes);

#endif
