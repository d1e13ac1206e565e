/* Values of a checkpoint's configuration, read with their ranges. The first error sticks: read all, then look once. */
#ifndef TUTTI_MODEL_CONFIG_H
#define TUTTI_MODEL_CONFIG_H

#include "base/error.h"

#include <jansson.h>

struct config {
    const json_t *root;
    const char *file;   /* for messages */
    const char *prefix; /* put before every key: "" or "llama." */
    bool is_flat;       /* keys with dots are plain keys (GGUF); else a dot goes into an object */
    enum tutti_status status;
    struct tutti_error *err;
};

/* The value of key, or NULL where it is absent or null. */
const json_t *config_find(const struct config *c, const char *key);

/* Each returns the value; an absent key is an error for the plain form, gives fallback for the other. A value of another
 * kind or outside lo..hi is an error. After an error they return lo, fallback or false. */
int config_int(struct config *c, const char *key, int lo, int hi);
int config_int_or(struct config *c, const char *key, int lo, int hi, int fallback);
double config_float(struct config *c, const char *key, double lo, double hi);
double config_float_or(struct config *c, const char *key, double lo, double hi, double fallback);
bool config_bool_or(struct config *c, const char *key, bool fallback);
const char *config_string_or(struct config *c, const char *key, const char *fallback);

/* Says that the checkpoint is well-formed, but of a kind that is not run. */
void config_unsupported(struct config *c, const char *key, const char *what)
    __attribute__((nonnull(1, 2, 3)));

#endif
