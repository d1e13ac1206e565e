/* What the control groups that this process is in let it use: its own group's limits and those of every group above.
 * Versions 1 and 2, as cgroups(7) and the kernel's Documentation/admin-guide/cgroup-v2.rst describe them. */
#ifndef TUTTI_BASE_SYSTEM_CGROUP_H
#define TUTTI_BASE_SYSTEM_CGROUP_H

#include <stdint.h>

/* root: where the file system of this machine begins, "" but in tests. */

/* Bytes that may still be used; the kernel takes file pages back, so they count as free. UINT64_MAX: no limit. */
uint64_t cgroup_memory_left(const char *root);

/* Cores' worth of time, rounded up. 0: no limit. */
int cgroup_cores(const char *root);

#endif
