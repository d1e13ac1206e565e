#include "model/load/device/parts.h"

#include "model/load/fit.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- sizes ---- */

struct weight_parts *weight_parts_new(const struct model_desc *desc, enum dtype kv_type, int n_ctx)
{
    struct weight_parts *parts = calloc(1, sizeof *parts);
    int n_tokens = n_ctx > 0 ? n_ctx : desc->n_ctx;
    n_tokens = n_tokens < DEVICE_CONTEXT ? n_tokens : DEVICE_CONTEXT;
    if (!parts)
        return NULL;
    parts->n_layers = model_n_loaded(desc);
    for (int i = 0; i < parts->n_layers; i++) {
        const struct attn_desc *a = &model_layer(desc, i)->attn;
        bool is_shorter = a->window > 0 && a->window + MODEL_STEP_TOKENS < n_tokens;
        uint64_t n = (uint64_t)(is_shorter ? a->window + MODEL_STEP_TOKENS : n_tokens);
        parts->layers[i].kv_bytes = n * model_layer_kv_bytes(a, kv_type);
        parts->has_experts = parts->has_experts || ffn_has_experts(&model_layer(desc, i)->ffn);
    }
    return parts;
}

static void add(struct packed_bytes *to, struct packed_bytes n_bytes)
{
    to->card += n_bytes.card;
    to->cpu += n_bytes.cpu;
}

static void add_part(struct weight_parts *parts, const struct model_desc *desc, const struct slot_at *at,
                     struct packed_bytes n_bytes)
{
    enum weight_part part = weight_part_of(desc, at->slot);
    add(part == PART_INPUT     ? &parts->input
        : part == PART_OUTPUT  ? &parts->output
        : part == PART_EXPERTS ? &parts->layers[at->layer].experts
                               : &parts->layers[at->layer].rest,
        n_bytes);
}

void weight_parts_add(struct weight_parts *parts, const struct model_desc *desc, const struct slot_at *at,
                      const struct weight *w, const struct weight_type *type)
{
    add_part(parts, desc, at,
             (struct packed_bytes){ weights_bytes(w, type, backend_caps_of("cuda")),
                                    weights_bytes(w, type, backend_caps_of("cpu")) });
}

void weight_parts_add_shape(struct weight_parts *parts, const struct model_desc *desc,
                            const struct slot_at *at, enum dtype type)
{
    const struct slot_shape shape = slot_shape(desc, at->slot, at->layer);
    add_part(parts, desc, at,
             (struct packed_bytes){ fit_shape_bytes(&shape, at->slot, type, backend_caps_of("cuda")),
                                    fit_shape_bytes(&shape, at->slot, type, backend_caps_of("cpu")) });
}

/* ---- placements ---- */

struct placement device_placement(const struct model_desc *desc, int n_layers, int n_cpu_experts)
{
    int n = model_n_loaded(desc);
    return (struct placement){ .n_layers = n,
                               .first_on_card = n_layers > 0 ? desc->n_layers - n_layers : n,
                               .n_cpu_experts = n_cpu_experts };
}

static void add_to_side(struct packed_bytes *sum, const struct placement *p, enum weight_part part, int layer,
                        struct packed_bytes n_bytes)
{
    if (placement_is_on_card(p, part, layer))
        sum->card += n_bytes.card;
    else
        sum->cpu += n_bytes.cpu;
}

struct packed_bytes weight_parts_sum(const struct weight_parts *parts, const struct placement *p)
{
    struct packed_bytes sum = { 0, 0 };
    add_to_side(&sum, p, PART_INPUT, 0, parts->input);
    add_to_side(&sum, p, PART_OUTPUT, 0, parts->output);
    for (int i = 0; i < parts->n_layers; i++) {
        add_to_side(&sum, p, PART_LAYER, i, parts->layers[i].rest);
        add_to_side(&sum, p, PART_EXPERTS, i, parts->layers[i].experts);
    }
    return sum;
}

int device_most_layers(const struct weight_parts *parts, const struct model_desc *desc, int n_cpu_experts,
                       uint64_t free_bytes)
{
    for (int n = desc->n_layers; n > 0; n--) {
        struct placement p = device_placement(desc, n, n_cpu_experts);
        uint64_t n_bytes = weight_parts_sum(parts, &p).card;
        for (int i = p.first_on_card; i < parts->n_layers; i++)
            n_bytes += parts->layers[i].kv_bytes;
        if (n_bytes <= free_bytes - free_bytes / 8)
            return n;
    }
    return 0;
}

const char *device_advice(char text[DEVICE_TEXT_BYTES], const struct weight_parts *parts,
                          const struct model_desc *desc, int n_cpu_experts, uint64_t free_bytes)
{
    int n_all = desc->n_layers, n = device_most_layers(parts, desc, n_cpu_experts, free_bytes);
    int n_without = parts->has_experts ? device_most_layers(parts, desc, parts->n_layers, free_bytes) : 0;
    char layers[64] = "", experts[80] = "";
    if (n > 0)
        snprintf(layers, sizeof layers, "--gpu-layers %d of %d", n, n_all);
    if (n_without == n_all)
        snprintf(experts, sizeof experts, "--cpu-experts all");
    else if (n_without > n)
        snprintf(experts, sizeof experts, "--cpu-experts all with --gpu-layers %d", n_without);
    snprintf(text, DEVICE_TEXT_BYTES, "%s%s%s%s", layers, *layers && *experts ? ", or " : "", experts,
             *layers || *experts ? " would fit, with the rest on the CPU" : "");
    return text;
}
