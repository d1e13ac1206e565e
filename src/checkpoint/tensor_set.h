/* Opens the tensors of a file or folder of any format: the table of formats, and the struct that
 * the reader of each format fills. */
#ifndef TUTTI_CHECKPOINT_TENSOR_SET_H
#define TUTTI_CHECKPOINT_TENSOR_SET_H

#include "checkpoint/tensor.h"

/* Named tensors. A format's reader embeds this as the first member of its own struct. */
struct tensor_set {
    struct tensor *tensors; /* [n], in the file's order; not changed once the set is open */
    size_t n;
    void (*close)(struct tensor_set *set);
};

/* A format: how it is recognized, and how it is opened. */
struct checkpoint_format {
    const char *name; /* for messages */
    /* Of a format of files. */
    const char *const *endings; /* of names, NULL after the last one */
    bool (*is)(const void *bytes, size_t n_bytes);
    bool is_vague; /* first bytes like these are not rare, so the file's name goes first */
    /* Reads and checks a whole file, which may name others next to it. Takes map over, on failure
     * too. On success *out is the caller's. */
    enum tutti_status (*read)(struct tensor_set **out, struct mapping map, struct tutti_error *err);
    /* Weights in a model's folder: one file, or an index of several, as transformers names them; or
     * the only file with one of the endings. */
    const char *file, *index;
    bool is_only_file;
    /* Of a format of folders. */
    bool (*is_folder)(const char *path);
    enum tutti_status (*open)(struct tensor_set **out, const char *path, struct tutti_error *err);
};

/* All formats, by priority within a model's folder; NULL after the last one. */
extern const struct checkpoint_format *const CHECKPOINT_FORMATS[];

/* Opens and checks a whole file or folder. The format is detected by the first bytes, or else by
 * the name. On success *out is the caller's, for tensor_set_close(). Errors are those of the
 * format's reader: they name file and tensor. */
MUST_CHECK enum tutti_status tensor_set_open(struct tensor_set **out, const char *path,
                                             struct tutti_error *err);

/* The same for a file that must have the format. */
MUST_CHECK enum tutti_status tensor_set_open_as(struct tensor_set **out,
                                                const struct checkpoint_format *format, const char *path,
                                                struct tutti_error *err);

/* The same from memory, which is borrowed until tensor_set_close(); name is for messages. */
MUST_CHECK enum tutti_status tensor_set_open_memory(struct tensor_set **out,
                                                    const struct checkpoint_format *format, const void *bytes,
                                                    size_t n_bytes, const char *name,
                                                    struct tutti_error *err);

void tensor_set_close(struct tensor_set *set); /* NULL is allowed */

/* Whether a file's name ends as the format's. */
bool checkpoint_format_has_ending(const struct checkpoint_format *format, const char *path);

#endif
