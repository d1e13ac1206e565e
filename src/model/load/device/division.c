#include "model/load/device/division.h"

#include "backend/backend.h"
#include "model/load/fit.h"

#include <stdlib.h>
#include <string.h>

/* A number from 0 to most, or the word. False: it is neither. */
static bool read_count(int *out, const char *text, const char *word, int word_means, int most)
{
    size_t n_digits = strspn(text, "0123456789");
    bool is_number = n_digits > 0 && n_digits < 6 && text[n_digits] == '\0';
    *out = is_number ? atoi(text) : word_means;
    return is_number ? *out <= most : strcmp(text, word) == 0;
}

enum tutti_status division_read(struct division *out, const struct model_desc *d,
                                const struct division_options *options, struct tutti_error *err)
{
    const char *layers = options->gpu_layers, *experts = options->cpu_experts, *device = options->device;
    const char *param = layers ? "gpu_layers" : "cpu_experts",
               *flag = layers ? "--gpu-layers" : "--cpu-experts";
    *out = (struct division){ .is_given = layers || experts, .n_layers = d->n_layers };
    if (!out->is_given)
        return TUTTI_OK;
    if (!backend_is_card(device))
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "%s: only with --device cuda, where a card and the CPU compute together; the "
                               "device is %.32s",
                               flag, device ? device : "cpu");
    if (options->has_ranks)
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, param,
            "%s: not with several ranks (--tp, or --hosts of a plan), each of which needs room for all of "
            "its part on its card",
            flag);
    if (layers && !read_count(&out->n_layers, layers, "auto", d->n_layers, d->n_layers))
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "--gpu-layers %.32s: expected 0 to %d, the layers of %s, or auto", layers,
                               d->n_layers, options->model);
    out->is_auto = layers && strcmp(layers, "auto") == 0;
    if (experts && !model_has_experts(d))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "cpu_experts",
            "--cpu-experts: %s has no experts; --gpu-layers leaves whole layers to the CPU", options->model);
    if (experts && !read_count(&out->n_cpu_experts, experts, "all", model_n_loaded(d), d->n_layers))
        return error_set_param(err, TUTTI_E_ARGUMENT, "cpu_experts",
                               "--cpu-experts %.32s: expected 0 to %d, the layers of %s, or all", experts,
                               d->n_layers, options->model);
    return TUTTI_OK;
}

bool division_settle(struct division *division, const struct weight_parts *parts,
                     const struct model_desc *desc, uint64_t card_bytes)
{
    int n_before = division->n_layers;
    if (division->is_auto)
        division->n_layers = device_most_layers(parts, desc, division->n_cpu_experts, card_bytes);
    return division->n_layers != n_before;
}

enum tutti_status division_check(const struct weight_parts *parts, const struct model_desc *desc,
                                 const struct placement *p, const struct division_memory *memory,
                                 const char *model, const char *type, struct tutti_error *err)
{
    char need[FIT_SIZE_BYTES], left[FIT_SIZE_BYTES], advice[DEVICE_TEXT_BYTES];
    struct packed_bytes sum = weight_parts_sum(parts, p);
    if (sum.card > memory->card) {
        (void)device_advice(advice, parts, desc, p->n_cpu_experts, memory->card);
        return error_set_param(
            err, TUTTI_E_MEMORY, "gpu_layers",
            "%s: the weights that the card is to have need %s as %s, but %s of its memory are "
            "available%s%s",
            model, fit_size_text(need, sum.card), type, fit_size_text(left, memory->card),
            *advice ? ": " : "", advice);
    }
    if (sum.cpu > memory->cpu)
        return error_set_param(err, TUTTI_E_MEMORY, "memory_bytes",
                               "%s: the weights that the CPU is to have need %s as %s, but %s of memory are "
                               "available: leave more to the card (--gpu-layers, --cpu-experts), or take a "
                               "smaller --type",
                               model, fit_size_text(need, sum.cpu), type, fit_size_text(left, memory->cpu));
    return TUTTI_OK;
}

/* Users whose keys and values fit into the memory that the weights leave. */
static int64_t users_of(uint64_t memory, uint64_t weights, uint64_t user)
{
    if (weights > memory)
        return 0;
    return user > 0 ? (int64_t)((memory - weights) / user) : INT64_MAX;
}

void division_calculate(struct division_report *out, struct division *division,
                        const struct division_request *request)
{
    const struct model_desc *d = request->desc;
    const struct division_memory *memory = &request->memory;
    (void)division_settle(division, request->parts, d, memory->card);
    struct division_report r = {
        .placement = device_placement(d, division->n_layers, division->n_cpu_experts), .memory = *memory
    };
    int page_tokens = backend_caps_of("cuda")->page_tokens, first = r.placement.first_on_card;
    r.weights = weight_parts_sum(request->parts, &r.placement);
    r.user.cpu = model_layers_kv_bytes(d, request->kv_type, page_tokens, request->n_ctx, 0, first);
    r.user.card = model_layers_kv_bytes(d, request->kv_type, page_tokens, request->n_ctx, first,
                                        r.placement.n_layers);
    /* Hidden states are where the output is. */
    *(first < r.placement.n_layers ? &r.user.card : &r.user.cpu) += model_context_hidden_bytes(
        d, page_tokens, request->n_ctx);
    int64_t on_card = users_of(memory->card, r.weights.card, r.user.card),
            on_cpu = users_of(memory->cpu, r.weights.cpu, r.user.cpu);
    r.n_users = on_card < on_cpu ? on_card : on_cpu;
    if (division_check(request->parts, d, &r.placement, memory, request->model, request->type, &r.refusal) !=
            TUTTI_OK &&
        r.weights.card > memory->card)
        (void)device_advice(r.advice, request->parts, d, division->n_cpu_experts, memory->card);
    *out = r;
}

static json_t *side_json(uint64_t memory, uint64_t weights, uint64_t user)
{
    return json_pack("{s:I, s:I, s:I}", "memory_bytes", (json_int_t)memory, "weight_bytes",
                     (json_int_t)weights, "user_bytes", (json_int_t)user);
}

json_t *division_json(const struct division_report *r)
{
    const struct placement *p = &r->placement;
    return json_pack("{s:i, s:i, s:i, s:o, s:o, s:I, s:s?, s:s?}", "layers", p->n_layers, "gpu_layers",
                     p->n_layers - p->first_on_card, "cpu_experts", p->n_cpu_experts, "card",
                     side_json(r->memory.card, r->weights.card, r->user.card), "cpu",
                     side_json(r->memory.cpu, r->weights.cpu, r->user.cpu), "users_fit",
                     (json_int_t)r->n_users, "refusal", *r->refusal.text ? r->refusal.text : NULL, "advice",
                     *r->advice ? r->advice : NULL);
}
