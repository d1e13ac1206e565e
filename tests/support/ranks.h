/* Ranks of one process: threads, and a transport through its memory. */
#ifndef TUTTI_TESTS_RANKS_H
#define TUTTI_TESTS_RANKS_H

#include "cluster/cluster.h"

/* Runs fn(arg, cluster) on a thread for each rank, the caller's for the first one, n_ranks in each of n_groups groups; fn closes its
 * cluster. has_monitor: all ranks watch each other. */
void ranks_run(int n_ranks, int n_groups, bool has_monitor, void (*fn)(void *arg, struct cluster *cluster),
               void *arg);

/* The same in other settings. is_apart: each rank is on a machine of its own, so that what they have for each other is sent.
 * direct_bytes: as in struct cluster_options. */
struct ranks_setting {
    int n_ranks, n_groups;
    bool has_monitor, is_apart;
    size_t direct_bytes;
};
void ranks_run_in(const struct ranks_setting *setting, void (*fn)(void *arg, struct cluster *cluster),
                  void *arg);

/* One rank of them, for tests that make their own threads. world: of ranks_world(). */
struct ranks_world;
struct ranks_world *ranks_world(int n_ranks);
void ranks_world_free(struct ranks_world *world);
struct transport *ranks_transport(struct ranks_world *world, int rank);

#endif
