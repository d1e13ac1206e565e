/* A MODEL of the command line: a path, or the name of a model on a hub, which is downloaded if it is not in
 * the cache. */
#ifndef TUTTI_CLI_OPTIONS_MODEL_PATH_H
#define TUTTI_CLI_OPTIONS_MODEL_PATH_H

#include "hub/pull.h"

enum { PULL_CONNECTIONS = 8, PULL_RETRIES = 8 };

/* hub_pull() with a progress bar; what is downloaded is listed on standard error. */
MUST_CHECK enum tutti_status model_path_pull(const struct hub_name *name, int n_connections, int n_retries,
                                             struct buf *path, bool *is_new, struct tutti_error *err);

/* *out: the path, for free(), if model is hf:... or ms:..., or a text "NAME=" and one of them; NULL: model is a
 * path already. */
MUST_CHECK enum tutti_status model_path_find(const char *model, char **out, struct tutti_error *err);

#endif
