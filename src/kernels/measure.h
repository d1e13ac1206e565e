/* Measures the machine's limits (memory bandwidth, peak operations per second) for comparison
 * with measured speeds.
 *
 * Clock rate and the load of other processes vary over time, so each call takes one short sample.
 * Take one sample before each repetition of a measurement, and compare medians. */
#ifndef TUTTI_KERNELS_MEASURE_H
#define TUTTI_KERNELS_MEASURE_H

#include "base/system/team.h"

struct measure;

/* team: borrowed. cpu: see kernels.h. NULL: out of memory for the buffer of 512 MiB. */
struct measure *measure_new(struct team *team, unsigned cpu);
void measure_free(struct measure *m); /* NULL is allowed */
uint64_t measure_bytes(void);         /* the buffer */

/* Each runs on all threads of the team for some milliseconds. 1 G = 1e9. A multiply-add is two operations. */

/* Streaming read of a buffer far larger than the caches. Each NUMA node has a part of the buffer, which the threads
 * of that node read. */
double measure_read_gbps(struct measure *m);
/* Of one node (base/system/team.h), while all nodes read their own memory: the median of some samples. */
double measure_node_gbps(struct measure *m, int node);
/* Microseconds of a fork and join of all threads, without the time of their work: the median. With more threads than
 * cores, it includes the time that threads wait for a core. */
double measure_fork_us(struct measure *m);

/* Integer dot products on registers: vpdpbusd, or on AVX2 vpmaddubsw with its 16-bit additions; SMMLA, SDOT,
 * or without them long multiplications. 0 on other processors, which have only the plain C kernels. */
double measure_int8_gops(struct measure *m);

/* Float32 fused multiply-adds on registers; 0 as above. */
double measure_f32_gflops(struct measure *m);

/* Sorts n samples, at least 1. */
double measure_median(double *samples, int n);

#endif
