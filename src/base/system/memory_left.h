/* Memory that this process may still take, and what it has. */
#ifndef TUTTI_BASE_SYSTEM_MEMORY_LEFT_H
#define TUTTI_BASE_SYSTEM_MEMORY_LEFT_H

#include <stdint.h>

/* Bytes: what the machine has, or the control group leaves of it if that is less. root: where the file system of this machine
 * begins, "" but in tests. */
uint64_t memory_left(const char *root);

/* Bytes of this process that are in memory; of a page that several processes have, its share. 0: the system does not say. */
uint64_t memory_resident(void);

#endif
