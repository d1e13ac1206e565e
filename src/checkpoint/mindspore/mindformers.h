/* Translates a MindFormers configuration into the config.json that Hugging Face's library would
 * have. MindFormers uses its own key names, in a YAML file next to the weights (under model: and
 * model_config:) or in a config.json that it saved. https://github.com/mindspore-lab/mindformers,
 * configs/ and mindformers/models/<family>_config.py. */
#ifndef TUTTI_CHECKPOINT_MINDSPORE_MINDFORMERS_H
#define TUTTI_CHECKPOINT_MINDSPORE_MINDFORMERS_H

#include "base/error.h"

#include <jansson.h>

/* Reads the YAML file at path. *out: the caller's reference; NULL with TUTTI_OK if it does not
 * describe a model. TUTTI_E_FORMAT: not YAML, or a setting of the wrong type;
 * TUTTI_E_UNSUPPORTED: an unsupported model or setting; TUTTI_E_IO; TUTTI_E_MEMORY. Errors name
 * the file and the setting. */
MUST_CHECK enum tutti_status mindformers_read(json_t **out, const char *path, struct tutti_error *err);

/* Adds Hugging Face's keys to a config.json that MindFormers saved; any other config is
 * unchanged. path is for messages. */
MUST_CHECK enum tutti_status mindformers_translate(json_t *config, const char *path, struct tutti_error *err);

#endif
