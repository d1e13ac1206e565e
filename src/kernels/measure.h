/* What this machine can do at most, measured: the limits that figures of speed are printed beside. */
#ifndef TUTTI_KERNELS_MEASURE_H
#define TUTTI_KERNELS_MEASURE_H

#include "base/team.h"

/* Each runs on all threads of the team for a few tenths of a second, several times, and gives the best.
 * 1 G = 1e9. A multiply-add is two operations. */

/* Streaming read of a buffer far larger than the caches. 0: no memory for the buffer. */
double measure_read_gbps(struct team *team);

/* Integer dot products from registers: vpdpbusd, or on AVX2 the exact vpmaddwd with its addition; 0 on other
 * processors, for which there is no integer kernel beyond plain C. cpu: see kernels.h. */
double measure_peak_int8_gops(struct team *team, unsigned cpu);

/* Fused multiply-adds in float32 from registers; 0 likewise. */
double measure_peak_f32_gflops(struct team *team, unsigned cpu);

#endif
