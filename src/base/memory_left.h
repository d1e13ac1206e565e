/* Memory that this process may still take. */
#ifndef TUTTI_BASE_MEMORY_LEFT_H
#define TUTTI_BASE_MEMORY_LEFT_H

#include <stdint.h>

/* Bytes: what the machine has, or the control group leaves of it if that is less. */
uint64_t memory_left(void);

#endif
