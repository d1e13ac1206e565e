/* Memory and CPU limits of this process's control groups: its own group and all parent groups.
 * Versions 1 and 2, as cgroups(7) and the kernel's Documentation/admin-guide/cgroup-v2.rst
 * describe them. */
#ifndef TUTTI_BASE_SYSTEM_CGROUP_H
#define TUTTI_BASE_SYSTEM_CGROUP_H

#include <stdint.h>

/* root: prefix of /proc and /sys; "" except in tests. */

/* Bytes that may still be used. File pages count as free, since the kernel can reclaim them.
 * UINT64_MAX: no limit. */
uint64_t cgroup_memory_left(const char *root);

/* The CPU quota in cores, rounded up. 0: no limit. */
int cgroup_cores(const char *root);

#endif
