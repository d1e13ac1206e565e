/* Tables of the types whose stored numbers are places in a list: grids.c, written by
 * tools/fixtures/make_grids.py. */
#ifndef TUTTI_KERNELS_GRIDS_H
#define TUTTI_KERNELS_GRIDS_H

#include <stdint.h>

/* Runs of eight numbers of two bits each (the first in the lowest), or of four of four bits. */
extern const uint16_t grid_iq2_xxs[256], grid_iq2_xs[512], grid_iq2_s[1024], grid_iq1[2048];
extern const uint16_t grid_iq3_xxs[256], grid_iq3_s[512];

#endif
