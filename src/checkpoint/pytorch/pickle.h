/* Parses Python pickles of protocols 2 to 5 without executing them: a call becomes a PICKLE_CALL
 * value with its arguments. Only globals in the caller's list are allowed. Format:
 * Lib/pickletools.py of CPython.
 *
 * Time is linear in the pickle's size; memory is bounded, whatever the pickle contains. */
#ifndef TUTTI_CHECKPOINT_PYTORCH_PICKLE_H
#define TUTTI_CHECKPOINT_PYTORCH_PICKLE_H

#include "base/error.h"

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_FLOAT,
    PICKLE_STRING,
    PICKLE_TUPLE,
    PICKLE_LIST,
    PICKLE_DICT, /* items: key, value, ...; of duplicate keys the last one counts */
    PICKLE_GLOBAL,
    PICKLE_CALL,       /* items: the arguments */
    PICKLE_PERSISTENT, /* items: of the tuple that identifies an object outside of the pickle */
    PICKLE_MARK,       /* never in a result */
};

struct pickle_items {
    struct pickle_value *at; /* [n] */
    size_t n, capacity;
};

struct pickle_value {
    enum pickle_kind kind;
    uint32_t n; /* STRING: bytes; GLOBAL, CALL: the global's index in the list */
    union {
        int64_t integer; /* INT, BOOL */
        double number;
        const char *text;           /* STRING: in the pickle, not terminated, any bytes */
        struct pickle_items *items; /* TUPLE, LIST, DICT, CALL, PERSISTENT */
    };
};

struct pickle_global {
    const char *module, *name;
    bool is_dict; /* a call without arguments gives an empty dict */
};

struct pickle;

/* Reads one pickle, up to its STOP; bytes after it are ignored. bytes and globals are borrowed
 * until pickle_close(). On success *out is the caller's. TUTTI_E_UNSUPPORTED: an unknown opcode
 * or global; the error names it. TUTTI_E_FORMAT: anything else, with the offset. file is for
 * messages. */
MUST_CHECK enum tutti_status pickle_open(struct pickle **out, const void *bytes, size_t n_bytes,
                                         const struct pickle_global *globals, size_t n_globals,
                                         const char *file, struct tutti_error *err);
void pickle_close(struct pickle *p); /* NULL is allowed */

/* Borrowed, until pickle_close(). */
const struct pickle_value *pickle_result(const struct pickle *p);
/* Every persistent id in the pickle, in order. */
const struct pickle_value *pickle_persistents(const struct pickle *p, size_t *n);

/* Bytes of the pickle, including its STOP. */
size_t pickle_n_bytes(const struct pickle *p);

#endif
