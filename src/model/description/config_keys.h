/* Configuration keys, for every family, that have no effect or of which only one value is
 * supported. A NULL key ends each list. */
#ifndef TUTTI_MODEL_DESCRIPTION_CONFIG_KEYS_H
#define TUTTI_MODEL_DESCRIPTION_CONFIG_KEYS_H

#include "model/description/config.h"

/* Entries, within a list, of families that rotate whole heads. */
#define CONFIG_WHOLE_HEADS                                                                                   \
    { "partial_rotary_factor", "1.0" }, { "rope_parameters.partial_rotary_factor", "1.0" },                  \
    {                                                                                                        \
        "rope_scaling.partial_rotary_factor", "1.0"                                                          \
    }

extern const struct config_key CONFIG_KEYS_COMMON[]; /* of config.json */
extern const struct config_key CONFIG_KEYS_ROTARY[]; /* of families that rotate whole heads */
extern const struct config_key
    CONFIG_KEYS_MINDFORMERS[];                     /* of MindFormers, after mindformers.c translated them */
extern const struct config_key CONFIG_KEYS_GGUF[]; /* of GGUF's metadata, under any architecture's prefix */

#endif
