/* What the readers of an adapter's folder share. */
#ifndef TUTTI_MODEL_ADAPTERS_ADAPTER_READER_H
#define TUTTI_MODEL_ADAPTERS_ADAPTER_READER_H

#include "checkpoint/tensor_set.h"
#include "model/adapters/adapter_names.h"

#include <jansson.h>
#include <limits.h>

enum adapter_kind {
    ADAPTER_LORA,
    ADAPTER_TOKENS, /* trained tokens only */
    ADAPTER_PROMPT, /* soft prompt */
    ADAPTER_PREFIX, /* PEFT's keys and values */
    ADAPTER_CHATGLM /* the same of ChatGLM's P-Tuning */
};

struct adapter_reader {
    const struct model_desc *desc;
    const struct family *family;
    bool is_gguf;
    char config_path[PATH_MAX], tensors_path[PATH_MAX];
    json_t *config;
    double rank, alpha;
    bool is_rslora, is_dora;
    enum adapter_kind kind;
    bool has_projection; /* ADAPTER_CHATGLM: the prefix is computed by a network of two layers */
    int n_virtual;       /* by the configuration */
    struct adapter_file *out;
};

/* The tensors that belong to one module. */
struct adapter_entry {
    char *path;
    const struct tensor *of[FACTOR_COUNT];
};

/* As in PEFT: the expression must match the whole path, or its end after a dot. */
bool adapter_pattern_matches(const char *pattern, const char *path);

/* Whether PEFT adapts the module; whether modules_to_save names it, or one that it is in. */
bool adapter_is_target(const struct adapter_reader *r, const char *path);
bool adapter_is_saved(const struct adapter_reader *r, const char *path);

/* Whether PEFT applies a tensor of that name, which adapter_split_name() has split. */
bool adapter_is_applied(const struct adapter_reader *r, const char *name, const char *path,
                        enum factor factor);

/* Checks that the lists of modules are lists of names or, but modules_to_save, expressions. */
MUST_CHECK enum tutti_status adapter_check_lists(const struct adapter_reader *r, struct tutti_error *err);
/* Each name of target_modules or modules_to_save must have tensors: otherwise the file is incomplete. */
MUST_CHECK enum tutti_status adapter_check_names(const struct adapter_reader *r, const char *key,
                                                 const struct adapter_entry *entries, size_t n,
                                                 struct tutti_error *err);

/* rank_pattern or alpha_pattern of the configuration, for a path. */
double adapter_number_for(const struct adapter_reader *r, const char *key, const char *path, double fallback);

/* Reads the tensors of LoRA adapters and of trained tokens into r->out. */
MUST_CHECK enum tutti_status adapter_read_tensors(struct adapter_reader *r, const struct tensor_set *file,
                                                  struct tutti_error *err);

/* Reads virtual tokens into r->out. */
MUST_CHECK enum tutti_status adapter_read_virtual(struct adapter_reader *r, const struct tensor_set *file,
                                                  struct tutti_error *err);

/* Checks type, shape and that all numbers are finite; n_columns 0: a vector of n_rows. */
MUST_CHECK enum tutti_status adapter_check_tensor(const struct tensor *t, int64_t n_rows, int64_t n_columns,
                                                  const char *what, struct tutti_error *err);

#endif
