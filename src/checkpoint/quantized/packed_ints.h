/* Reads weights of 2, 4 or 8-bit integers packed in 32-bit words, of which groups share a scale
 * and a zero point: GPTQ (Frantar et al., 2022), AWQ (Lin et al., 2023), compressed-tensors.
 *
 * A weight is scale * (number - zero). A matrix becomes blocks of Q4_0 (4 bits, every zero point
 * 8), Q5_0 (4 bits, other zero points) or Q8_0 (8 bits, every zero point 128) with the group's
 * scale: exactly these weights, if scales are float16; scales of bfloat16 are exact from 2^-17
 * on, and smaller ones are rounded to multiples of 2^-24. Where groups are not runs of 32 columns
 * (act-order, other lengths), or the scale is float32, weights are rounded to float16 (scales of
 * float16) or bfloat16 instead.
 *
 * These are the types that files have. For loading, the tensor has a compact one (tensor.h) where that
 * takes fewer bytes: blocks of 64 or 128 columns for groups of that length, with a zero point of their own
 * (the types of groups: base/dtype.h); and with act-order the columns sorted by group, if each group has a
 * multiple of 32 columns. */
#ifndef TUTTI_CHECKPOINT_QUANTIZED_PACKED_INTS_H
#define TUTTI_CHECKPOINT_QUANTIZED_PACKED_INTS_H

#include "checkpoint/quantized/wrapping.h"

/* t: NAME.weight_packed, with NAME.weight_scale, NAME.weight_shape and, optionally,
 * NAME.weight_zero_point and NAME.weight_g_idx. */
MUST_CHECK enum tutti_status packed_ints_wrap_rows(struct quantized *q, const struct checkpoint *ck,
                                                   const struct tensor *t, const struct tensor **made,
                                                   struct tutti_error *err);

/* The same for integers of 8 bits that are not packed. t: NAME.weight, of i8, with
 * NAME.weight_scale. */
MUST_CHECK enum tutti_status packed_ints_wrap_int8(struct quantized *q, const struct checkpoint *ck,
                                                   const struct tensor *t, const struct tensor **made,
                                                   struct tutti_error *err);

#endif
