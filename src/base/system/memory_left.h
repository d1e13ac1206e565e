/* Memory that this process may still allocate, and its resident memory. */
#ifndef TUTTI_BASE_SYSTEM_MEMORY_LEFT_H
#define TUTTI_BASE_SYSTEM_MEMORY_LEFT_H

#include <stdint.h>

/* Bytes available on the machine, or in the control group if that is less. root: as in cgroup.h. */
uint64_t memory_left(const char *root);

/* Resident bytes of this process (proportional set size: of a page that several processes map,
 * its part). 0: unknown. */
uint64_t memory_resident(void);

#endif
