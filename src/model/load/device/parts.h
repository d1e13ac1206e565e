/* Bytes of a model's weights by what they belong to, and which of them a card should have. */
#ifndef TUTTI_MODEL_LOAD_DEVICE_PARTS_H
#define TUTTI_MODEL_LOAD_DEVICE_PARTS_H

#include "model/weights/weight_part.h"
#include "model/weights/weights.h"

/* Bytes as the card packs them, and as the CPU does. */
struct packed_bytes {
    uint64_t card, cpu;
};

struct weight_parts {
    int n_layers; /* model_n_loaded() */
    bool has_experts;
    struct packed_bytes input, output;
    struct layer_parts {
        struct packed_bytes rest, experts;
        uint64_t kv_bytes; /* keys and values of DEVICE_CONTEXT tokens, or of the context if it is shorter */
    } layers[LIMIT_LAYERS + 1];
};
enum { DEVICE_CONTEXT = 8192 };

/* NULL: out of memory. For free(). n_ctx: of a user; 0: the model's. */
struct weight_parts *weight_parts_new(const struct model_desc *desc, enum dtype kv_type, int n_ctx);
/* Adds a weight of a checkpoint. type: the requested one, NULL: as stored. */
void weight_parts_add(struct weight_parts *parts, const struct model_desc *desc, const struct slot_at *at,
                      const struct weight *w, const struct weight_type *type);
/* The same of all n_experts matrices of a slot of a known shape. */
void weight_parts_add_shape(struct weight_parts *parts, const struct model_desc *desc,
                            const struct slot_at *at, enum dtype type);

/* The placement of the last n_layers layers of a model on the card, without the experts of the model's first n_cpu_experts
 * layers. */
struct placement device_placement(const struct model_desc *desc, int n_layers, int n_cpu_experts);

/* Bytes of weights that the placement gives to the card, and to the CPU. */
struct packed_bytes weight_parts_sum(const struct weight_parts *parts, const struct placement *p);

/* The most layers that fit on a card with so many free bytes, with keys and values: the last eighth of the memory is for what
 * is computed. */
int device_most_layers(const struct weight_parts *parts, const struct model_desc *desc, int n_cpu_experts,
                       uint64_t free_bytes);

/* Advice for a model whose weights do not fit on the card: flags that do. "": there are none. Returns text. */
enum { DEVICE_TEXT_BYTES = 160 };
const char *device_advice(char text[DEVICE_TEXT_BYTES], const struct weight_parts *parts,
                          const struct model_desc *desc, int n_cpu_experts, uint64_t free_bytes);

#endif
