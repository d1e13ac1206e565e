/* What the readers of all methods of quantization share. */
#ifndef TUTTI_CHECKPOINT_QUANTIZED_WRAPPING_H
#define TUTTI_CHECKPOINT_QUANTIZED_WRAPPING_H

#include "checkpoint/quantized/quantized.h"

enum { QUANTIZED_MAX_FROM = 4 };

/* The tensor that replaces those of a quantized weight. A method embeds this as the first member
 * of its own struct. */
struct quantized_tensor {
    struct tensor_source source; /* of tensor */
    struct tensor tensor;
    const struct tensor *from[QUANTIZED_MAX_FROM];
    char name[LIMIT_TENSOR_NAME_BYTES + 8];
    struct quantized_tensor *before; /* in its owner's list */
};

struct quantized {
    const struct quantized_method *method;
    const char *path;     /* of the file with the settings, for messages; borrowed */
    const char *key;      /* of config.json: quantization_config or compression_config */
    const json_t *config; /* its object; borrowed */
    struct quantized_tensor *last;
    /* What the method read from the configuration. */
    int64_t n_bits, group; /* group: columns that share a scale; -1: a row */
    int64_t block[2];      /* rows and columns that share a scale of fp8 */
    bool adds_one;         /* GPTQ stores zero points less 1 */
    bool has_zeros;        /* compressed-tensors: all integers have zero points */
    bool has_order;        /* columns are in groups that a tensor names */
};

struct quantized_method {
    const char *name; /* quant_method */
    /* Checks the configuration. */
    enum tutti_status (*configure)(struct quantized *q, struct tutti_error *err);
    /* As quantized_wrap(). */
    enum tutti_status (*wrap)(struct quantized *q, const struct checkpoint *ck, const struct tensor *t,
                              const struct tensor **made, struct tutti_error *err);
    /* Ends of names of tensors that change nothing in tutti; NULL after the last one. */
    const char *const *ignored;
};

/* Scales and zero points of activations, keys and values: tutti rounds those in ways of its own. */
extern const char *const QUANTIZED_ACTIVATION_SCALES[];

/* Makes a struct of n_bytes for the weight whose principal tensor t ends in the word end; the new
 * tensor's name ends in "weight" instead. NULL: out of memory, err is set. */
void *quantized_add(struct quantized *q, size_t n_bytes, const struct tensor *t, const char *end,
                    struct tutti_error *err);

/* Adds a tensor that the new one is computed from. */
void quantized_add_from(struct quantized_tensor *q, const struct tensor *from);

/* The tensor that is named as t with the last word end replaced by other, marked as used. NULL:
 * there is none. */
const struct tensor *quantized_sibling(const struct checkpoint *ck, const struct tensor *t, const char *end,
                                       const char *other);

/* The same for a tensor that must be there: TUTTI_E_FORMAT. */
MUST_CHECK enum tutti_status quantized_require(const struct tensor **out, const struct checkpoint *ck,
                                               const struct tensor *t, const char *end, const char *other,
                                               struct tutti_error *err);

/* TUTTI_E_FORMAT: t does not have the type and shape. n_dims 1 or 2; rows: of the last but one
 * dimension. */
MUST_CHECK enum tutti_status quantized_check(const struct tensor *t, enum dtype dtype, int n_dims,
                                             int64_t rows, int64_t columns, struct tutti_error *err);

/* TUTTI_E_FORMAT: t has neither f16, bf16 nor f32. */
MUST_CHECK enum tutti_status quantized_check_float(const struct tensor *t, struct tutti_error *err);

/* Element i of a tensor of f16, bf16 or f32. */
float quantized_float(const void *bytes, enum dtype dtype, int64_t i);

/* TUTTI_E_UNSUPPORTED: "PATH: quantization_config (METHOD): KEY: FOUND, expected EXPECTED: ADVICE" */
enum tutti_status quantized_refuse(const struct quantized *q, const char *key, const json_t *found,
                                   const char *expected, struct tutti_error *err);

extern const struct quantized_method FP8_METHOD, FBGEMM_FP8_METHOD; /* fp8.c */
extern const struct quantized_method GPTQ_METHOD, AWQ_METHOD;       /* packed_ints.c */
extern const struct quantized_method COMPRESSED_TENSORS_METHOD;     /* compressed_tensors.c */
extern const struct quantized_method MXFP4_METHOD;                  /* mxfp4.c */
extern const struct quantized_method BITSANDBYTES_METHOD;           /* bitsandbytes.c */

#endif
