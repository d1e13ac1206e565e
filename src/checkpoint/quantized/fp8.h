/* Reads weights of 8-bit floats (e4m3: 4 bits of exponent, 3 of mantissa; no infinities) that
 * share scales: Micikevicius et al., "FP8 formats for deep learning", 2022.
 *
 * A weight is value * scale in float32. A matrix becomes a type that keeps the 8 bits and the scales:
 * F8_ROW if a row has one scale and is a multiple of 32 wide, F8_BLOCK if scales are those of multiples
 * of 128 columns, as in DeepSeek's checkpoints, and a row is a multiple of 128 wide. Others become BF16
 * (F16 if scales are float16), each weight rounded once: the bits that transformers computes for a model
 * of that type. */
#ifndef TUTTI_CHECKPOINT_QUANTIZED_FP8_H
#define TUTTI_CHECKPOINT_QUANTIZED_FP8_H

#include "checkpoint/quantized/wrapping.h"

/* t: a matrix of f8_e4m3 whose name ends in "weight". The scales are in "weight" followed by
 * scale_end: one of all, one of each row, or one of each block of q->block rows and columns, the
 * last of which may be smaller. */
MUST_CHECK enum tutti_status fp8_wrap(struct quantized *q, const struct checkpoint *ck,
                                      const struct tensor *t, const char *scale_end,
                                      const struct tensor **made, struct tutti_error *err);

#endif
