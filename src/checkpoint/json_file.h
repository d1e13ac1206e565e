/* Loads a JSON file that contains one object, or one list. */
#ifndef TUTTI_CHECKPOINT_JSON_FILE_H
#define TUTTI_CHECKPOINT_JSON_FILE_H

#include "base/error.h"

#include <jansson.h>

/* *out: the caller's reference; NULL with TUTTI_OK if there is no such file. TUTTI_E_FORMAT: not
 * JSON, not an object, or larger than LIMIT_JSON_FILE_BYTES. */
MUST_CHECK enum tutti_status json_file_load(const char *path, json_t **out, struct tutti_error *err);
/* The same for a list. */
MUST_CHECK enum tutti_status json_file_load_list(const char *path, json_t **out, struct tutti_error *err);

#endif
