/* Finds the checkpoint's tensors of each matrix of the model and checks names, shapes and types. */
#ifndef TUTTI_MODEL_WEIGHTS_WEIGHTS_H
#define TUTTI_MODEL_WEIGHTS_WEIGHTS_H

#include "model/description/family.h"
#include "model/weights/head_tensor.h"
#include "model/weights/weight_type.h"

/* The stored order of the rows of a fused tensor of q, k, v. head_dim 0: that of the model, q's heads
 * first, then k's, then v's; else [KV heads][n_queries queries, k, v][head_dim]. */
struct head_order {
    int head_dim, n_queries;
};

/* One weight of the model, as a checkpoint stores it: one tensor, or several whose rows are
 * concatenated. Of experts one of their matrices. It may point into itself, so it is not copied. */
struct weight {
    enum weight_slot slot;
    int layer, expert;
    char name[LIMIT_TENSOR_NAME_BYTES]; /* of the first tensor */
    const struct tensor *parts[MAX_PARTS];
    const struct tensor *biases[MAX_PARTS];     /* NULL: none */
    struct tensor_slice slices[MAX_PARTS];      /* what parts point to where one tensor has all experts */
    struct tensor_slice bias_slices[MAX_PARTS]; /* the same of biases */
    struct head_tensor heads;                   /* what part 0 points to where a slot is_by_head */
    int n_parts;
    int n_in, n_out; /* n_out: rows that the model uses */
    struct weight_place place;
    bool is_gate_up;
    bool is_less_one;   /* a norm that is stored minus 1 */
    bool has_zero_bias; /* slot_has_zero_bias() */
    bool has_unit_rows; /* each row is divided by its length when it is loaded */
    bool is_transposed; /* stored as [n_in][n_out]; only plain (not quantized) types; slices never are */
    bool alternates;    /* gate and up: one tensor has a row of each in turn */
    struct head_order order;
};

/* Finds the weight of a slot that the model has (slot_is_in()). Errors name the tensor, what was
 * found and what was expected. */
MUST_CHECK enum tutti_status weights_find(struct weight *out, const struct model_desc *desc,
                                          const struct tensor_names *names, const struct checkpoint *ck,
                                          const struct slot_at *at, struct tutti_error *err);

/* What the type of such a weight depends on. desc: of the whole model, so that the number of ranks makes
 * no difference. */
struct weight_place weights_place(const struct model_desc *desc, enum weight_slot slot, int layer);

/* Replaces the parts of n matrices (of experts, all of theirs) by their compact tensors (tensor.h), if all
 * have one and these have one type, and those of a matrix one order of columns. For a device; is_cut: it
 * gets only a part of the columns, which no order allows. */
void weights_use_compact(struct weight *weights, int n, bool is_cut);

/* Finds every tensor of the description, then checks the unused ones (unused.c):
 * TUTTI_E_UNSUPPORTED if one of them would change what the model computes. A warning names the
 * others, unless they are known to hold no weights. */
MUST_CHECK enum tutti_status weights_check_all(const struct model_desc *desc, const struct family *family,
                                               const struct tensor_names *names, const struct checkpoint *ck,
                                               struct tutti_error *err);

/* Whether a tensor of this name never holds weights to run. */
bool weights_is_ignored(const struct family *family, const char *name);

/* *out: whether two tensors are equal, bit for bit. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status weights_are_equal(bool *out, const struct tensor *a, const struct tensor *b,
                                               struct tutti_error *err);

/* The name of a layer's tensor: pattern with "%d" replaced by layer, and a second one by expert. */
void weights_expert_name(char *out, size_t size, const char *pattern, int layer, int expert);
void weights_layer_name(char *out, size_t size, const char *pattern, int layer); /* expert 0 */

/* Whether pattern names one tensor for each expert; else one has the matrices of all. */
bool weights_is_by_expert(const char *pattern);

/* The name of the bias that belongs to a weight. */
void weights_bias_name(char *out, size_t size, const char *weight_name);

/* Where a row of the model is stored in a tensor of n_rows rows in that order, whose head_dim is not 0. */
int64_t weights_stored_row(const struct head_order *order, int64_t n_rows, int64_t row);

/* Transposes part of a transposed weight back to [out][in], of the same type. Freed by the
 * caller. NULL: out of memory. */
void *weights_transposed(const struct tensor *part);
/* The rows [begin, end) of it, into the whole; stored: the bytes of part. */
void weights_transpose_rows(void *out, const struct tensor *part, const void *stored, int64_t begin,
                            int64_t end);

/* The type of a matrix of n_in columns when want was requested: want itself; if n_in is no
 * multiple of 256, the type with blocks of 32 that has at least as many bits, as in llama.cpp; if
 * n_in is no multiple of 32, F16. */
enum dtype weights_fit_type(enum dtype want, int n_in);

/* The type in which a matrix runs: that of its parts. If they differ, the most precise one: Q8_0
 * if all are quantized (K-quant files give values more bits than queries and keys), BF16 if these are
 * 8-bit floats, F32 if F16 meets BF16. */
enum dtype weights_common_type(const struct weight *w);

/* The more precise type of the two, by the same rule. */
enum dtype weights_finer_type(enum dtype a, enum dtype b);

/* The type in which a matrix is to run, not yet fitted to its columns. type NULL: as stored. */
enum dtype weights_run_type(const struct weight *w, const struct weight_type *type);

/* Memory that a weight takes on a device: a matrix packed as type (NULL: as stored), all others as
 * float32. */
uint64_t weights_bytes(const struct weight *w, const struct weight_type *type,
                       const struct backend_caps *caps);

/* Elements of a weight and its biases; of a matrix without the biases. */
uint64_t weights_n_params(const struct weight *w);

/* Memory of a matrix that a device packs as type, or as the type that fits its rows. */
uint64_t weights_packed_bytes(const struct slot_shape *shape, enum dtype type,
                              const struct backend_caps *caps);

/* *out: the most frequent type, by elements, of the matrices of layer 0, of compact tensors where there are
 * such: shown as the checkpoint's type. */
MUST_CHECK enum tutti_status weights_stored_type(enum dtype *out, const struct model_desc *desc,
                                                 const struct tensor_names *names,
                                                 const struct checkpoint *ck, struct tutti_error *err);

/* Divides rows of n elements by their lengths. */
void weights_make_unit_rows(float *rows, int64_t n_rows, int64_t n);

/* The elements of a tensor's first n_rows rows (of a vector: n_rows 1) as float32, freed by the
 * caller. NULL: out of memory. */
float *weights_to_floats(const struct tensor *tensor, int64_t n_rows);

#endif
