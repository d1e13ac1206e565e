/* Quantized weights as files hold them (base/dtype.h), one row at a time. */
#ifndef TUTTI_KERNELS_STORED_H
#define TUTTI_KERNELS_STORED_H

#include "kernels/formats.h"

enum { WORDS = BLOCK / 4, MOST_BLOCKS = 8, MOST_SUBS = 16 };

/* A block of 32 or 256 elements: what any stored form holds, in the terms of formats.h. What a form lacks is not set. */
struct stored_unit {
    uint16_t scale, min;    /* halves */
    int8_t subs[MOST_SUBS]; /* sub-scales, or scale and min joined */
    int8_t sub_mins[MOST_SUBS];
    uint32_t words[MOST_BLOCKS][WORDS]; /* unsigned numbers of columns 4g..4g+3, the first in the low byte */
};

/* src: one block of a quantized type; needs no alignment. */
void stored_read(struct stored_unit *unit, const uint8_t *src, enum dtype dtype);

/* The scale of run sub of a unit, and what is taken off. */
float stored_scale(const struct stored_unit *unit, struct quant_format f, int sub);
float stored_min(const struct stored_unit *unit, struct quant_format f, int sub); /* only where has_min */

#endif
