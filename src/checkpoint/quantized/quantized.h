/* Opens checkpoints that another program quantized (fp8, GPTQ, AWQ, compressed-tensors, bitsandbytes).
 *
 * quantization_config in config.json names the method. For a weight NAME.weight the method stores
 * several tensors (NAME.qweight, NAME.scales, ...). quantized_wrap() replaces them by one tensor
 * NAME.weight, whose bytes are computed on demand: the rest of the program sees plain tensors.
 * Which weights are quantized follows from the tensors, as lists of excepted modules differ
 * between methods. Types and exactness: fp8.h, packed_ints.h. */
#ifndef TUTTI_CHECKPOINT_QUANTIZED_QUANTIZED_H
#define TUTTI_CHECKPOINT_QUANTIZED_QUANTIZED_H

#include "checkpoint/checkpoint.h"

struct quantized;

/* Reads the description in config, the content of config.json at path. own_path: of the file that the
 * description is from, if config.json has none; else NULL. *out NULL with TUTTI_OK: the weights are not
 * quantized. Otherwise *out is the caller's, for quantized_close(), and borrows the arguments.
 * TUTTI_E_UNSUPPORTED: a method that tutti does not know; the error names it. A method of a file of its
 * own, which other programs ignore, is refused by quantized_wrap() instead, if tensors have its types. */
MUST_CHECK enum tutti_status quantized_open(struct quantized **out, const json_t *config,
                                            const char *own_path, const char *path, struct tutti_error *err);
void quantized_close(struct quantized *q); /* NULL is allowed */

/* *made: the tensor that replaces t, the principal tensor of a quantized weight; it lives as long
 * as q. NULL: t is no such tensor. Marks t and the tensors that belong to it as used
 * (checkpoint_take()); also those of the method that change nothing in tutti, such as scales of
 * activations. TUTTI_E_FORMAT: a tensor is missing, or its type, shape or content does not fit. */
MUST_CHECK enum tutti_status quantized_wrap(struct quantized *q, const struct checkpoint *ck,
                                            const struct tensor *t, const struct tensor **made,
                                            struct tutti_error *err);

/* The quantization method whose tensors replace the missing weight called name. NULL: no known
 * one. */
const char *quantized_find(const struct checkpoint *ck, const char *name);

/* The advice in such messages. */
#define QUANTIZED_ADVICE                                                                                     \
    "take the upload that is not quantized (tutti quantizes it with --type, or once with tutti convert), "   \
    "or a "                                                                                                  \
    "GGUF file of it"

#endif
