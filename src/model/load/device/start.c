#include "model/load/device/start.h"

#include "backend/kv_type.h"
#include "base/log.h"
#include "model/load/device/division.h"
#include "model/ranks/group.h"

#include <stdlib.h>
#include <string.h>

static enum tutti_status open_backend(struct model *model, const struct tutti_model_options *options,
                                      const char *device, const struct placement *placement,
                                      struct tutti_error *err)
{
    const struct model_desc *d = &model->desc, *local = &model->local;
    struct group *group = model->group;
    model->kv_type = DTYPE_F16;
    if (options->kv_type && !kv_type_find(options->kv_type, &model->kv_type))
        return error_set_param(err, TUTTI_E_ARGUMENT, "kv_type",
                               "kv_type \"%.32s\", expected f16, bf16, f32 or int8", options->kv_type);
    struct attention_shape kinds[MAX_LAYER_KINDS];
    float *slopes = NULL; /* of all kinds, one after the other */
    int n_slopes = 0;
    for (int i = 0; i < d->n_kinds; i++)
        n_slopes += d->kinds[i].attn.has_alibi ? d->kinds[i].attn.n_heads : 0;
    if (n_slopes > 0 && !(slopes = calloc((size_t)n_slopes, sizeof *slopes)))
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", model->name);
    float *next = slopes;
    for (int i = 0; i < d->n_kinds; i++) {
        const struct attn_desc *a = &d->kinds[i].attn, *own = &local->kinds[i].attn;
        kinds[i] = (struct attention_shape){
            .n_heads = own->n_heads,
            .n_kv_heads = own->n_kv_heads,
            .head_dim = a->n_latent > 0 ? attn_latent_row(a) : a->head_dim,
            .n_latent = a->n_latent,
            .rotary_dim = a->rope == ROPE_NONE ? 0 : a->rotary_dim,
            .rope = a->rope,
            .rope_freqs = model->rope_freqs[i],
            .rope_scale = model_rope_scale(a),
            .scale = a->scale > 0 ? a->scale : 1.0f / __builtin_sqrtf((float)a->head_dim),
            .softcap = a->softcap,
            .window = a->window,
            .first = a->first,
            .norms_all_heads = a->norms_all_heads,
            .keys_are_values = a->keys_are_values,
            .norms_values = a->norms_values,
            .qk_norm_eps = a->n_latent > 0 ? a->latent_norm_eps : d->norm_eps,
        };
        if (!a->has_alibi)
            continue;
        model_alibi_slopes(a, next);
        kinds[i].alibi_slopes = group ? next + group->split.kinds[i].heads.begin : next;
        next += a->n_heads;
    }
    struct backend_options backend = {
        .n_threads = options->n_threads > 0 || !options->ranks
                         ? options->n_threads
                         : cluster_n_threads(cluster_of(options->ranks)),
        .pin_threads = options->pin_threads,
        .numa = options->numa,
        .cpu = options->cpu,
        .n_layers = model_n_loaded(d),
        .n_kinds = d->n_kinds,
        .attention = kinds,
        .kinds = d->kind_of,
        .page_floats = d->uses_mtp ? d->d_model : 0,
        .cluster = group ? group->cluster : NULL,
        .placement = placement,
    };
    enum tutti_status st = backend_open(&model->backend, device, &backend, err);
    free(slopes);
    if (st == TUTTI_OK && !(model->backend->caps->kv_types >> model->kv_type & 1))
        st = error_set_param(err, TUTTI_E_UNSUPPORTED, "kv_type", "kv_type %s: device %s cannot store it",
                             kv_type_name(model->kv_type), model->backend->ops->name);
    return st;
}

/* ---- the options ---- */

/* Whether the user leaves the choice between card and CPU to tutti. */
static bool prefers_card(const struct tutti_model_options *options)
{
    return options->device && strcmp(options->device, "auto") == 0;
}

static enum tutti_status read_division(struct division *out, const struct model *model,
                                       const struct tutti_model_options *options, struct tutti_error *err)
{
    const struct division_options division = { .model = model->name,
                                               .device = options->device,
                                               .gpu_layers = options->gpu_layers,
                                               .cpu_experts = options->cpu_experts,
                                               .has_ranks = model->group != NULL };
    return division_read(out, &model->desc, &division, err);
}

/* ---- whether it fits ---- */

static uint64_t card_memory_left(const struct model *model)
{
    return model->backend->ops->memory_left(model->backend);
}

static enum tutti_status check_division(const struct model *model, const struct weights_to_fit *w,
                                        struct tutti_error *err)
{
    const struct division_memory memory = { card_memory_left(model), w->host_bytes };
    return division_check(w->parts, &model->desc, &model->placement, &memory, w->name, w->type, err);
}

static void log_division(const struct model *model, const struct weight_parts *parts)
{
    char card[FIT_SIZE_BYTES], cpu[FIT_SIZE_BYTES];
    const struct placement *p = &model->placement;
    struct packed_bytes sum = weight_parts_sum(parts, p);
    log_info("device cuda: %d of %d layers on the card, with weights of %s; the CPU has those of %s%s",
             p->n_layers - p->first_on_card, p->n_layers, fit_size_text(card, sum.card),
             fit_size_text(cpu, sum.cpu), p->n_cpu_experts > 0 ? ", experts among them" : "");
}

enum tutti_status device_check_fits(const struct model *model, const struct tutti_model_options *options,
                                    const struct weights_to_fit *w, struct tutti_error *err)
{
    char advice[DEVICE_TEXT_BYTES] = "";
    bool is_on_card = model->backend->ops->memory_left;
    if (model->is_divided)
        return check_division(model, w, err);
    uint64_t left = is_on_card ? model_own_memory_left(model) : w->host_bytes;
    if (is_on_card && prefers_card(options))
        left -= left / 8; /* the rest is for keys and values, and for what is computed */
    if (is_on_card && !model->group)
        (void)device_advice(advice, w->parts, &model->desc, 0, card_memory_left(model));
    const struct fit_request request = { .desc = &model->local,
                                         .kv_type = model->kv_type,
                                         .page_tokens = model_page_tokens(model),
                                         .n_ctx = options->max_context > 0 ? options->max_context
                                                                           : model->desc.n_ctx,
                                         .memory_bytes = left,
                                         .has_headroom = true,
                                         .divisions = advice };
    return fit_check(w->name, w->type, w->sizes, &request, model->memory_bytes > 0, err);
}

/* ---- opening ---- */

static void close_backend(struct model *model)
{
    if (model->backend)
        model->backend->ops->free(model->backend);
    model->backend = NULL;
}

/* Opens the backend for a division, which may be all on the card. */
static enum tutti_status open_divided(struct model *model, const struct tutti_model_options *options,
                                      const struct division *division, struct tutti_error *err)
{
    bool is_whole = division->n_layers == model->desc.n_layers && division->n_cpu_experts == 0;
    model->placement = device_placement(&model->desc, division->n_layers, division->n_cpu_experts);
    model->is_divided = !is_whole;
    return open_backend(model, options, options->device, is_whole ? NULL : &model->placement, err);
}

/* Opens the CPU's backend in place of the card's, whose memory is too small. */
static enum tutti_status open_cpu(struct model *model, const struct tutti_model_options *options,
                                  const struct tutti_error *why, struct tutti_error *err)
{
    log_info("device auto: the CPU computes (on the card: %s)", why->text);
    close_backend(model);
    return open_backend(model, options, "cpu", NULL, err);
}

/* Opens the backend again with the division as it was settled. */
static enum tutti_status open_settled(struct model *model, const struct tutti_model_options *options,
                                      const struct division *division, struct tutti_error *err)
{
    close_backend(model);
    return open_divided(model, options, division, err);
}

/* Settles an automatic division. True: the CPU, or the card with fewer layers, must be opened instead. st: of the check whether
 * the weights fit. */
static bool must_open_again(const struct model *model, const struct tutti_model_options *options,
                            struct division *division, const struct weight_parts *parts, enum tutti_status st)
{
    if (!parts || !model->backend->ops->memory_left || (st != TUTTI_OK && st != TUTTI_E_MEMORY))
        return false;
    return prefers_card(options) ? st == TUTTI_E_MEMORY
                                 : division_settle(division, parts, &model->desc, card_memory_left(model));
}

/* Collects the weights' sizes for the backend that is open, and has the caller check that they fit. *parts is for free(), and
 * the earlier one, if any, is freed; NULL: out of memory. */
static enum tutti_status check_parts(struct weight_parts **parts, const struct model *model,
                                     const struct tutti_model_options *options, model_fits_fn *fits,
                                     void *user, struct tutti_error *err)
{
    free(*parts);
    *parts = weight_parts_new(&model->desc, model->kv_type, options->max_context);
    if (!*parts)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", model->name);
    return fits(user, *parts, err);
}

enum tutti_status model_start_backend(struct model *model, const struct tutti_model_options *options,
                                      model_fits_fn *fits, void *user, struct tutti_error *err)
{
    struct tutti_error why = { 0 };
    struct division division;
    struct weight_parts *parts = NULL;
    enum tutti_status st = read_division(&division, model, options, &why);
    if (st == TUTTI_OK)
        st = division.is_given ? open_divided(model, options, &division, &why)
                               : open_backend(model, options, options->device, NULL, &why);
    if (st == TUTTI_OK)
        st = check_parts(&parts, model, options, fits, user, &why);
    if (must_open_again(model, options, &division, parts, st)) {
        st = prefers_card(options) ? open_cpu(model, options, &why, &why)
                                   : open_settled(model, options, &division, &why);
        if (st == TUTTI_OK)
            st = check_parts(&parts, model, options, fits, user, &why);
    }
    if (st == TUTTI_OK && model->is_divided)
        log_division(model, parts);
    free(parts);
    if (st != TUTTI_OK && err)
        *err = why;
    return st;
}
