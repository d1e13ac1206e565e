/* Opens the tensors of a file or folder of any format: the table of formats, and the struct that
 * the reader of each format fills. */
#ifndef TUTTI_CHECKPOINT_TENSOR_SET_H
#define TUTTI_CHECKPOINT_TENSOR_SET_H

#include "checkpoint/tensor.h"

/* Named tensors. A format's reader embeds this as the first member of its own struct. */
struct tensor_set {
    struct tensor *tensors; /* [n], in the file's order; not changed once the set is open. For free() */
    size_t n;
    const struct checkpoint_format *format;
    struct mapping map; /* the file; of a folder only its name */
    const char *name;   /* the mapping's: for messages, and every tensor's file */
};

/* A format: how it is recognized, and how it is opened. */
struct checkpoint_format {
    const char *name; /* for messages */
    /* Of a format of files. */
    const char *const *endings;                    /* of names, NULL after the last one */
    bool (*is)(const void *bytes, size_t n_bytes); /* whether a file that begins so has the format */
    bool is_vague; /* other files may begin so too: is() is tried after the endings of all formats */
    /* Weights in a model's folder: one file, or an index of several, as transformers names them; or
     * the only file with one of the endings. */
    const char *file, *index;
    bool is_only_file;
    /* Of a format of folders. */
    bool (*is_folder)(const char *path);
    /* Of both. */
    size_t set_bytes; /* of the reader's struct, which is zeroed */
    /* Reads and checks the whole file, which may name others next to it, or the folder. *set may become
     * another one that closes the given one. */
    enum tutti_status (*read)(struct tensor_set **set, struct tutti_error *err);
    void (*clear)(struct tensor_set *set); /* frees what read() has added, on failure too; NULL: nothing */
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

/* NULL is allowed. A set may own further sets: at most three levels, ranks of files of parts. */
void tensor_set_close(struct tensor_set *set);

/* ---- for readers ---- */

/* Creates a set of the format, for tensor_set_read(). It takes over map, on failure too. NULL: out of
 * memory. */
MUST_CHECK struct tensor_set *tensor_set_new(const struct checkpoint_format *format, struct mapping map,
                                             struct tutti_error *err);

/* Reads a set of tensor_set_new(), and takes it over: on failure it is closed. set NULL:
 * TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status tensor_set_read(struct tensor_set **out, struct tensor_set *set,
                                             struct tutti_error *err);

/* Whether a file's name has one of the format's endings. */
bool checkpoint_format_has_ending(const struct checkpoint_format *format, const char *path);
/* The same for an entry of a folder. False for hidden files, and for MindSpore's strategy files, which
 * have the same ending as its checkpoints. */
bool checkpoint_format_has_file(const struct checkpoint_format *format, const char *name);

/* *last: the largest N of the folder's entries rank_N; 0: there is none above 0. */
MUST_CHECK enum tutti_status rank_folders_last(const char *folder, long *last, struct tutti_error *err);

#endif
