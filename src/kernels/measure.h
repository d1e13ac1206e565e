/* What this machine can do at most, measured: the limits that figures of speed are printed beside.
 *
 * A machine's clock and its neighbours change from one moment to the next, so each call takes one short sample: who
 * compares takes one before each repetition of his own, and the median of both. */
#ifndef TUTTI_KERNELS_MEASURE_H
#define TUTTI_KERNELS_MEASURE_H

#include "base/system/team.h"

struct measure;

/* team: borrowed. cpu: see kernels.h. NULL: no memory for the buffer of 512 MiB. */
struct measure *measure_new(struct team *team, unsigned cpu);
void measure_free(struct measure *m); /* NULL is allowed */
uint64_t measure_bytes(void);         /* the buffer */

/* Each runs on all threads of the team for some milliseconds. 1 G = 1e9. A multiply-add is two operations. */

/* Streaming read of a buffer far larger than the caches. */
double measure_read_gbps(struct measure *m);

/* Integer dot products from registers: vpdpbusd, or on AVX2 vpmaddubsw with its addition in 16 bits; 0 on other
 * processors, for which there is no integer kernel beyond plain C. */
double measure_int8_gops(struct measure *m);

/* Fused multiply-adds in float32 from registers; 0 likewise. */
double measure_f32_gflops(struct measure *m);

/* Sorts n samples, at least 1. */
double measure_median(double *samples, int n);

#endif
