/* LoRA adapters: low-rank updates of a model's linear layers. One loaded model can have several.
 * Hu et al., 2021 (LoRA). On disk: a folder as PEFT writes it, adapter_config.json and
 * adapter_model.safetensors. Tensor names follow PEFT or MindFormers. */
#ifndef TUTTI_MODEL_ADAPTERS_ADAPTER_H
#define TUTTI_MODEL_ADAPTERS_ADAPTER_H

#include "model/description/family.h"

/* One pair of factors: scale * B . A is added to rows out_begin.. of a matrix of the forward
 * pass. Rows are in the order of the loaded model (q's heads, then k's, then v's; gate, then up)
 * and in its rotary order. */
struct adapter_update {
    enum weight_slot slot; /* of a slot that can_adapt */
    int layer;             /* of SLOT_OUTPUT: 0 */
    int out_begin, n_out, n_in, rank;
    float scale;
    float *a; /* [rank][n_in] */
    float *b; /* [n_out][rank] */
};

/* The content of an adapter's folder, checked against a model. */
struct adapter_file {
    struct adapter_update *updates; /* [n], by slot and layer */
    int n;
};

/* Reads and checks the whole folder. is_gguf: the model's weights have GGUF's order of rows.
 * Errors name file and tensor. TUTTI_E_UNSUPPORTED: anything but a plain low-rank update (DoRA,
 * biases, whole modules). */
MUST_CHECK enum tutti_status adapter_file_open(struct adapter_file *out, const char *path,
                                               const struct model_desc *desc, const struct family *family,
                                               bool is_gguf, struct tutti_error *err);
void adapter_file_clear(struct adapter_file *file); /* a zeroed one is allowed */

enum { LIMIT_ADAPTERS = 256, LIMIT_ADAPTER_NAME = 128 };

/* The adapters of a loaded model. */
struct adapters;

/* Loads the folder at path as an adapter called name: 1 to 127 bytes, no ':' and no control
 * characters, not in use yet. model_reserve() must be called before the next step, to grow the
 * scratch memory. */
MUST_CHECK enum tutti_status model_add_adapter(struct model *model, const char *name, const char *path,
                                               struct tutti_error *err);
/* Adds an adapter with random weights for every linear layer, for benchmarks. */
MUST_CHECK enum tutti_status model_make_adapter(struct model *model, const char *name, int rank,
                                                struct tutti_error *err);
void adapters_free(struct adapters *adapters, struct backend *be); /* NULL is allowed */

int model_n_adapters(const struct model *model);
const char *model_adapter_name(const struct model *model, int adapter);
int model_find_adapter(const struct model *model, const char *name); /* -1: there is none */

/* The updates of a matrix, indexed by adapter. NULL: no adapter changes this matrix. */
const struct lora *const *model_loras(const struct model *model, enum weight_slot slot, int layer);

#endif
