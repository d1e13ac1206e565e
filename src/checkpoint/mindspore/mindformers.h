/* MindFormers says what a model is in names of its own: in a YAML file beside the weights, under model: and model_config:,
 * or in a config.json that it saved. Here such a configuration becomes the config.json that Hugging Face's library would
 * have for the model. https://github.com/mindspore-lab/mindformers, configs/ and mindformers/models/<family>_config.py. */
#ifndef TUTTI_CHECKPOINT_MINDSPORE_MINDFORMERS_H
#define TUTTI_CHECKPOINT_MINDSPORE_MINDFORMERS_H

#include "base/error.h"

#include <jansson.h>

/* Reads the YAML file at path. *out: the caller's reference; NULL with TUTTI_OK where it describes no model.
 * TUTTI_E_FORMAT: it is no YAML, or a setting is of another kind; TUTTI_E_UNSUPPORTED: a model or setting that is not run;
 * TUTTI_E_IO; TUTTI_E_MEMORY. The file and the setting are named. */
MUST_CHECK enum tutti_status mindformers_read(json_t **out, const char *path, struct tutti_error *err);

/* Adds Hugging Face's names to a config.json that MindFormers saved; any other stays as it is. path is for messages. */
MUST_CHECK enum tutti_status mindformers_translate(json_t *config, const char *path, struct tutti_error *err);

#endif
