/* Detects checkpoints quantized by other programs (GPTQ, AWQ, bitsandbytes, ...), which tutti
 * cannot read, so that the error can name the method. */
#ifndef TUTTI_CHECKPOINT_QUANTIZED_H
#define TUTTI_CHECKPOINT_QUANTIZED_H

#include "checkpoint/checkpoint.h"

/* TUTTI_E_UNSUPPORTED: config.json describes quantized weights; the error names the method. path
 * is for messages. */
MUST_CHECK enum tutti_status quantized_check_config(const json_t *config, const char *path,
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
