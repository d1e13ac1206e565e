/* Uploads whose weights another program quantized (GPTQ, AWQ, bitsandbytes, ...): tutti reads none of their formats and says which
 * one it met. */
#ifndef TUTTI_CHECKPOINT_QUANTIZED_H
#define TUTTI_CHECKPOINT_QUANTIZED_H

#include "checkpoint/checkpoint.h"

/* TUTTI_E_UNSUPPORTED: config.json describes quantized weights; the method is named. path is for messages. */
MUST_CHECK enum tutti_status quantized_check_config(const json_t *config, const char *path,
                                                    struct tutti_error *err);

/* The quantization method whose tensors replace the missing weight called name. NULL: none that is known. */
const char *quantized_find(const struct checkpoint *ck, const char *name);

/* What to do about it, for messages. */
#define QUANTIZED_ADVICE                                                                                     \
    "take the upload that is not quantized (tutti quantizes it with --type, or once with tutti convert), "   \
    "or a "                                                                                                  \
    "GGUF file of it"

#endif
