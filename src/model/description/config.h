/* Reads a checkpoint's configuration with range checks. The first error sticks: read all keys,
 * then check the status once.
 *
 * Every key that is read counts as understood. config_end() checks the others, so none is skipped
 * silently: a key must be listed as having no effect, or be null, false or empty. Any other key
 * is an error that names it, or a warning if its value is a string. */
#ifndef TUTTI_MODEL_DESCRIPTION_CONFIG_H
#define TUTTI_MODEL_DESCRIPTION_CONFIG_H

#include "base/error.h"

#include <jansson.h>

struct gguf;

struct config {
    const json_t *root;
    const struct gguf *gguf; /* whose arrays are settings too; NULL: another format */
    const char *file;        /* for messages */
    const char *prefix;      /* prepended to every key: "" or "llama." */
    bool is_flat;            /* keys with dots are plain keys (GGUF); else a dot descends into an object */
    bool is_quiet;           /* config_end() logs no warnings */
    enum tutti_status status;
    struct tutti_error *err;
    /* Objects that config_end() frees: the keys that were read, and of GGUF's arrays the numbers that all layers have. */
    json_t *read, *uniform;
};

/* A key that is not read. A star at either end of key matches any text. */
struct config_key {
    const char *key; /* without the prefix; NULL ends a list */
    const char
        *only; /* JSON: the only supported value; NULL: the key does not change what the model computes */
};

/* The value of key, or NULL where it is absent or null. */
const json_t *config_find(struct config *c, const char *key);

/* Whether key is present, even as null. */
bool config_has(struct config *c, const char *key);

/* Whether key is an object that is not empty; each key in it must be understood on its own. A
 * value of another type is an error. */
bool config_has_object(struct config *c, const char *key);

/* Marks key and all keys in it as read: they have no effect, or other code reads them. */
void config_skip(struct config *c, const char *key);

/* Each returns the value. An absent key is an error in the plain form and gives fallback in the
 * _or form. So does null, but where a bool's fallback is true it is an error. A value of another type
 * or outside lo..hi is an error. After an error they return lo, fallback or false. */
int config_int(struct config *c, const char *key, int lo, int hi);
int config_int_or(struct config *c, const char *key, int lo, int hi, int fallback);
double config_float(struct config *c, const char *key, double lo, double hi);
double config_float_or(struct config *c, const char *key, double lo, double hi, double fallback);
bool config_bool_or(struct config *c, const char *key, bool fallback);
const char *config_string_or(struct config *c, const char *key, const char *fallback);

/* Sets TUTTI_E_UNSUPPORTED: the checkpoint is well-formed, but tutti cannot run it. */
void config_unsupported(struct config *c, const char *key, const char *what)
    __attribute__((nonnull(1, 2, 3)));

/* Refuses keys that are neither understood nor in one of the lists (NULL ends them). Then frees
 * what c holds and returns its status. what: what these are settings of, for messages. */
MUST_CHECK enum tutti_status config_end(struct config *c, const struct config_key *const *lists,
                                        const char *what);

#endif
