/* Where a model's defaults of sampling are. */
#ifndef TUTTI_MODEL_DESCRIPTION_SAMPLING_H
#define TUTTI_MODEL_DESCRIPTION_SAMPLING_H

#include "checkpoint/checkpoint.h"

enum sampling_key {
    SAMPLING_TEMPERATURE,
    SAMPLING_TOP_P,
    SAMPLING_TOP_K,
    SAMPLING_MIN_P,
    SAMPLING_REPETITION,
    N_SAMPLING_KEYS
};

/* The names of a key in generation_config.json, and in GGUF, where llama.cpp's converter writes it. */
struct sampling_names {
    const char *of_folder, *of_gguf;
};
extern const struct sampling_names SAMPLING_NAMES[N_SAMPLING_KEYS];

/* The value in generation_config.json (generation; NULL: there is none, then in config.json), or in GGUF's metadata. NULL: none. */
const json_t *sampling_default(const struct checkpoint *ck, const json_t *generation, enum sampling_key key);

#endif
