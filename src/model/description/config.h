/* Values of a checkpoint's configuration, read with their ranges. The first error sticks: read all, then look once.
 *
 * Every key that is read counts as understood. config_end() checks the others, so that none is skipped silently: a key must be listed
 * as one that changes nothing, or be null, false or empty; any other is refused by name, or warned of if its value is a text. */
#ifndef TUTTI_MODEL_DESCRIPTION_CONFIG_H
#define TUTTI_MODEL_DESCRIPTION_CONFIG_H

#include "base/error.h"

#include <jansson.h>

struct gguf;

struct config {
    const json_t *root;
    const struct gguf *gguf; /* whose arrays are settings too; NULL: another format */
    const char *file;        /* for messages */
    const char *prefix;      /* put before every key: "" or "llama." */
    bool is_flat;            /* keys with dots are plain keys (GGUF); else a dot goes into an object */
    bool is_quiet;           /* config_end() warns of nothing */
    enum tutti_status status;
    struct tutti_error *err;
    json_t *read; /* an object with the keys that were read; config_end() frees it */
};

/* A key that is not read. A star at either end of key matches any text. */
struct config_key {
    const char *key; /* without the prefix; NULL ends a list */
    const char
        *only; /* JSON: the only supported value; NULL: the key does not change what the model computes */
};

/* The value of key, or NULL where it is absent or null. */
const json_t *config_find(struct config *c, const char *key);

/* Whether key is there, also as null. */
bool config_has(struct config *c, const char *key);

/* Whether key is an object that is not empty; each key in it must be understood on its own. Another kind of value is an error. */
bool config_has_object(struct config *c, const char *key);

/* Marks key and all keys in it as read: they have no effect, or other code reads them. */
void config_skip(struct config *c, const char *key);

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

/* Refuses what is neither understood nor in one of the lists, which a NULL ends; then frees what c holds and returns its status.
 * what: whose settings these are, for messages. */
MUST_CHECK enum tutti_status config_end(struct config *c, const struct config_key *const *lists,
                                        const char *what);

#endif
