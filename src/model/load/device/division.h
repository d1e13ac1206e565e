/* How a card and the CPU divide a model (--gpu-layers, --cpu-experts): what each of them has, and whether it has room for it. */
#ifndef TUTTI_MODEL_LOAD_DEVICE_DIVISION_H
#define TUTTI_MODEL_LOAD_DEVICE_DIVISION_H

#include "model/load/device/parts.h"

#include <jansson.h>

struct division {
    bool is_given, is_auto; /* is_auto: as many layers as fit */
    int n_layers;           /* on the card */
    int n_cpu_experts;
};

/* What the user says of it. */
struct division_options {
    const char *model;                             /* its name, for messages */
    const char *device, *gpu_layers, *cpu_experts; /* NULL: not given */
    bool has_ranks;
};

/* TUTTI_E_ARGUMENT, TUTTI_E_UNSUPPORTED with param gpu_layers or cpu_experts. */
MUST_CHECK enum tutti_status division_read(struct division *out, const struct model_desc *desc,
                                           const struct division_options *options, struct tutti_error *err);

/* Chooses the layers of an automatic division for a card with so many free bytes: device_most_layers(). True: their number
 * changed. */
bool division_settle(struct division *division, const struct weight_parts *parts,
                     const struct model_desc *desc, uint64_t card_bytes);

/* Memory of the two sides. */
struct division_memory {
    uint64_t card, cpu;
};

/* TUTTI_E_MEMORY: a side has not enough memory for its weights; the error says what would fit. type: a name for that of the
 * weights. */
MUST_CHECK enum tutti_status division_check(const struct weight_parts *parts, const struct model_desc *desc,
                                            const struct placement *placement,
                                            const struct division_memory *memory, const char *model,
                                            const char *type, struct tutti_error *err);

/* What the sides have of a model, and how many users fit, for tutti plan and tutti inspect. */
struct division_report {
    struct placement placement;
    struct division_memory memory;
    struct packed_bytes weights;
    struct packed_bytes user; /* keys and values of one user's context */
    int64_t n_users;
    struct tutti_error refusal; /* of division_check(); no text: the weights fit */
    char advice
        [DEVICE_TEXT_BYTES]; /* flags that would fit, if the card has not enough memory for its weights; else "" */
};

struct division_request {
    const char *model, *type; /* names, for messages */
    const struct model_desc *desc;
    const struct weight_parts *parts;
    struct division_memory memory;
    enum dtype kv_type;
    int n_ctx; /* of each user */
};

/* Settles the division, and calculates. */
void division_calculate(struct division_report *out, struct division *division,
                        const struct division_request *request);

/* The report as a JSON object. NULL: out of memory. */
json_t *division_json(const struct division_report *report);

#endif
