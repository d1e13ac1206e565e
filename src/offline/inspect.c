#include "offline/inspect.h"

#include "backend/backend.h"
#include "backend/kv_type.h"
#include "base/json/json_list.h"
#include "base/system/memory_left.h"
#include "model/chat/calls/call_forms.h"
#include "model/chat/chat.h"
#include "model/chat/reasoning.h"
#include "model/load/device/division.h"
#include "model/load/pooling.h"
#include "model/weights/mtp.h"
#include "model/weights/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The content of the report as one JSON object, from which the text is written. */
struct inspect_report {
    struct checkpoint *ck;
    const struct family *family;
    const struct tensor_names *names;
    struct model_desc desc;
    const struct inspect_options *options;
    enum dtype type;
    uint64_t n_params, n_active; /* n_active: without the experts that a token does not use */
    uint64_t stored_bytes, weight_bytes, kv_token_bytes, memory_bytes, users;
    int context;
    const char *tool_form, *reasoning_form; /* by the chat template; NULL: it does not tell */
    bool has_template;
    struct weight_parts *parts;
    struct division division; /* between a card and the CPU */
    struct division_report sides;
};

static enum tutti_status sum_weights(struct inspect_report *r, struct tutti_error *err)
{
    const struct backend_caps *caps = backend_caps_of(r->options->device);
    enum tutti_status st = TUTTI_OK;
    for (struct slot_at at = SLOT_BEGIN; st == TUTTI_OK && slot_next_expert(&r->desc, &at);) {
        struct weight w;
        st = weights_find(&w, &r->desc, r->names, r->ck, &at, err);
        if (st != TUTTI_OK)
            break;
        if (!r->options->type)
            weights_use_compact(&w, 1, false);
        r->weight_bytes += weights_bytes(&w, r->options->type, caps);
        weight_parts_add(r->parts, &r->desc, &at, &w, r->options->type);
        r->n_params += weights_n_params(&w);
        if (!slot_info(at.slot)->is_of_experts ||
            at.expert < model_layer(&r->desc, at.layer)->ffn.experts.routing.n_chosen)
            r->n_active += weights_n_params(&w);
    }
    if (r->options->type)
        r->type = r->options->type->dtype;
    else if (st == TUTTI_OK)
        st = weights_stored_type(&r->type, &r->desc, r->names, r->ck, err);
    return st;
}

static void count_users(struct inspect_report *r)
{
    const struct model_desc *d = &r->desc;
    r->kv_token_bytes = model_kv_bytes(d, r->options->kv_type);
    r->memory_bytes = r->options->memory_bytes ? r->options->memory_bytes
                                               : memory_left(r->options->root ? r->options->root : "");
    r->context = r->options->context > 0 ? r->options->context : d->n_ctx;
    uint64_t user_bytes = model_context_kv_bytes(
        d, r->options->kv_type, backend_caps_of(r->options->device)->page_tokens, r->context);
    r->users = r->memory_bytes > r->weight_bytes && user_bytes
                   ? (r->memory_bytes - r->weight_bytes) / user_bytes
                   : 0;
}

static const char *device_of(const struct inspect_report *r)
{
    return r->options->device ? r->options->device : "cpu";
}

static enum tutti_status read_division(struct inspect_report *r, struct tutti_error *err)
{
    const struct division_options options = { .model = checkpoint_path(r->ck),
                                              .device = r->options->device,
                                              .gpu_layers = r->options->gpu_layers,
                                              .cpu_experts = r->options->cpu_experts };
    return division_read(&r->division, &r->desc, &options, err);
}

/* What a card and the CPU have; without flags, the card has all. */
static void divide(struct inspect_report *r)
{
    const struct division_request request = { .model = checkpoint_path(r->ck),
                                              .type = dtype_name(r->type),
                                              .desc = &r->desc,
                                              .parts = r->parts,
                                              .memory = { r->memory_bytes, r->options->host_bytes },
                                              .kv_type = r->options->kv_type,
                                              .n_ctx = r->context };
    if (backend_is_card(device_of(r)))
        division_calculate(&r->sides, &r->division, &request);
    if (r->division.is_given)
        r->users = (uint64_t)r->sides.n_users;
}

static const char *scaling_name(const struct attn_desc *a)
{
    static const char *const NAMES[] = { "none", "linear", "llama3", "yarn", "dynamic", "longrope" };
    const struct rope_scaling *s = &a->rope_scaling;
    return s->has_divisors && s->kind == ROPE_SCALING_NONE ? "rope_freqs" : NAMES[s->kind];
}

static const char *rope_name(const struct attn_desc *a)
{
    static const char *const NAMES[] = { "none", "interleaved", "half-split", "two-dimensional" };
    return NAMES[a->rope];
}

static const char *activation_name(const struct ffn_desc *f)
{
    static const char *const NAMES[] = {
        "silu", "gelu-tanh", "gelu-sigmoid", "gelu", "relu", "silu-clamped"
    };
    return NAMES[f->activation];
}

/* Where positions come from. */
static const char *positions_name(const struct attn_desc *a)
{
    return a->rope != ROPE_NONE ? "rotary" : a->has_alibi ? "alibi" : "learned";
}

static json_t *experts_json(const struct expert_desc *e)
{
    const struct routing *r = &e->routing;
    return json_pack(
        "{s:i, s:i, s:i, s:i, s:s, s:i, s:i}", "count", r->n_experts, "used", r->n_chosen, "d_ff", e->d_ff,
        "shared_d_ff", e->d_shared, "router", r->kind == ROUTE_SOFTMAX ? "softmax" : "sigmoid", "groups",
        r->n_groups > 1 ? r->n_groups : 1, "groups_used", r->n_groups > 1 ? r->n_chosen_groups : 1);
}

static json_t *latent_json(const struct attn_desc *a)
{
    return json_pack("{s:i, s:i, s:i, s:i}", "rank", a->n_latent, "rotary", a->rotary_dim, "q_rank",
                     a->q_rank, "value_dim", a->value_dim);
}

static json_t *layer_json(const struct layer_desc *l)
{
    const struct attn_desc *a = &l->attn;
    json_t *layer = json_pack(
        "{s:i, s:i, s:i, s:i, s:s, s:i, s:f, s:s, s:b, s:s, s:s, s:b, s:i, s:b, s:b}", "heads", a->n_heads,
        "kv_heads", a->n_kv_heads, "head_dim", a->head_dim, "d_ff", l->ffn.d_ff, "rope", rope_name(a),
        "rotary_dim", a->rotary_dim, "rope_theta", a->rope_theta, "rope_scaling", scaling_name(a), "qkv_bias",
        a->has_qkv_bias, "positions", positions_name(a), "activation", activation_name(&l->ffn), "gate",
        l->ffn.has_gate, "window", a->window, "qk_norm", a->has_qk_norm, "sinks", a->has_sinks);
    if (layer && a->n_latent > 0 && json_object_set_new(layer, "latent", latent_json(a)) != 0) {
        json_decref(layer);
        return NULL;
    }
    if (!layer || !ffn_has_experts(&l->ffn) ||
        json_object_set_new(layer, "experts", experts_json(&l->ffn.experts)) == 0)
        return layer;
    json_decref(layer);
    return NULL;
}

static json_t *kind_json(const void *user, size_t index)
{
    const struct model_desc *d = user;
    json_t *kind = layer_json(&d->kinds[index]), *layers = json_array();
    for (int i = 0; i < model_n_loaded(d); i++)
        if (d->kind_of[i] == index && json_array_append_new(layers, json_integer(i)) != 0)
            break;
    if (kind && json_object_set_new(kind, "layers", layers) == 0)
        return kind;
    json_decref(kind);
    return NULL;
}

static json_t *tensor_json(const void *user, size_t index)
{
    const struct tensor *t = checkpoint_tensor(user, index);
    return json_pack("{s:s, s:s, s:o, s:I}", "name", t->name, "type", dtype_name(t->dtype), "shape",
                     json_integers(t->shape, (size_t)t->n_dims), "bytes", (json_int_t)t->n_bytes);
}

static enum tutti_status write_json(const struct inspect_report *r, FILE *out, struct tutti_error *err)
{
    const struct model_desc *d = &r->desc;
    json_t *root = json_pack(
        "{s:s?, s:s?, s:s, s:s, s:i, s:i, s:i, s:i, s:f, s:b, s:s, s:b, s:b, s:b, s:b, s:f, s:i, s:b}",
        "tool_form", r->tool_form, "reasoning_form", r->reasoning_form, "path", checkpoint_path(r->ck),
        "family", d->family, "layers", d->n_layers, "d_model", d->d_model, "vocab", d->n_vocab, "context",
        d->n_ctx, "norm_eps", (double)d->norm_eps, "tied_output", d->tied_output, "norm",
        d->norm == NORM_RMS ? "rms" : "layer", "post_norms", d->has_post_norms, "embedding_norm",
        d->has_embedding_norm, "bidirectional_prefix", d->has_prefix, "top_query", d->has_top_query,
        "residual_scale", (double)d->residual_scale, "mtp_layers", d->n_mtp_layers, "uses_mtp", d->uses_mtp);
    json_t *kind = layer_json(&d->kinds[0]);
    json_t *cost = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:i, s:I}", "device", device_of(r), "weight_type",
        dtype_name(r->type), "params", (json_int_t)r->n_params, "active_params", (json_int_t)r->n_active,
        "stored_bytes", (json_int_t)r->stored_bytes, "weight_bytes", (json_int_t)r->weight_bytes, "kv_type",
        kv_type_name(r->options->kv_type), "kv_bytes_per_token", (json_int_t)r->kv_token_bytes,
        "memory_bytes", (json_int_t)r->memory_bytes, "user_context", r->context, "users",
        (json_int_t)r->users);
    bool ok = root && kind && cost && json_object_update(root, kind) == 0 &&
              json_object_update(root, cost) == 0 &&
              (d->n_kinds == 1 ||
               json_object_set_new(root, "layer_kinds", json_list((size_t)d->n_kinds, kind_json, d)) == 0) &&
              (!backend_is_card(device_of(r)) ||
               json_object_set_new(root, "division", division_json(&r->sides)) == 0) &&
              (!r->options->lists_tensors ||
               json_object_set_new(root, "tensors",
                                   json_list(checkpoint_n_tensors(r->ck), tensor_json, r->ck)) == 0) &&
              json_dumpf(root, out, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0 && fputc('\n', out) != EOF;
    json_decref(root);
    json_decref(kind);
    json_decref(cost);
    return ok ? TUTTI_OK
              : error_set(err, TUTTI_E_IO, "%s: the report could not be written", checkpoint_path(r->ck));
}

static void put_size(FILE *out, const char *label, uint64_t bytes)
{
    static const char *const UNITS[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double x = (double)bytes;
    int unit = 0;
    while (x >= 1024 && unit < 4) {
        x /= 1024;
        unit++;
    }
    fprintf(out, "%-16s %.*f %s\n", label, unit ? 2 : 0, x, UNITS[unit]);
}

static void write_tensors(const struct inspect_report *r, FILE *out)
{
    fprintf(out, "\n%-64s %-6s %-22s %s\n", "tensor", "type", "shape", "bytes");
    for (size_t i = 0; i < checkpoint_n_tensors(r->ck); i++) {
        const struct tensor *t = checkpoint_tensor(r->ck, i);
        char shape[96] = "";
        for (int k = 0; k < t->n_dims; k++) {
            size_t n = strlen(shape);
            snprintf(shape + n, sizeof shape - n, "%s%" PRId64, k ? " x " : "", t->shape[k]);
        }
        fprintf(out, "%-64s %-6s %-22s %zu\n", t->name, dtype_name(t->dtype), shape, t->n_bytes);
    }
}

/* Which layers are of a kind: "0-3, 8". */
static void write_numbers(const struct model_desc *d, int kind, FILE *out)
{
    const char *comma = ":";
    for (int i = 0; i < model_n_loaded(d); i++) {
        if (d->kind_of[i] != kind)
            continue;
        int begin = i;
        while (i + 1 < model_n_loaded(d) && d->kind_of[i + 1] == kind)
            i++;
        fprintf(out, i > begin ? "%s %d-%d" : "%s %d", comma, begin, i);
        comma = ",";
    }
}

static void write_experts(const struct expert_desc *e, FILE *out)
{
    const struct routing *r = &e->routing;
    fprintf(out, "%d of %d experts of %d", r->n_chosen, r->n_experts, e->d_ff);
    if (r->n_groups > 1)
        fprintf(out, " in %d of %d groups", r->n_chosen_groups, r->n_groups);
    if (e->d_shared > 0)
        fprintf(out, ", a shared one of %d", e->d_shared);
}

static void write_kind(const struct model_desc *d, int kind, FILE *out)
{
    const struct attn_desc *a = &d->kinds[kind].attn;
    const struct ffn_desc *f = &d->kinds[kind].ffn;
    int n_layers = 0;
    for (int i = 0; i < model_n_loaded(d); i++)
        n_layers += d->kind_of[i] == kind;
    fprintf(out, "%-16s %d x (%d wide, ", "layers", n_layers, d->d_model);
    if (ffn_has_experts(f))
        write_experts(&f->experts, out);
    else
        fprintf(out, "feed-forward %d", f->d_ff);
    fprintf(out, ", %s%s)", activation_name(f), f->has_gate ? " with a gate" : "");
    if (d->n_kinds > 1)
        write_numbers(d, kind, out);
    fprintf(out, "\n%-16s %d heads of %d, %d KV heads%s%s%s%s%s%s\n", "attention", a->n_heads, a->head_dim,
            a->n_kv_heads, a->keys_are_values ? ", keys are values" : "",
            a->has_qkv_bias ? ", biases on q, k, v" : "", a->has_sinks ? ", sinks" : "",
            a->has_qk_norm ? ", norms of the heads of q and k" : "",
            d->has_prefix ? ", the prompt in both directions" : "",
            d->has_top_query ? ", queries by position in the last layer" : "");
    if (a->n_latent > 0)
        fprintf(out, "%-16s %d elements and %d rotary ones of each position, values of %d\n", "latents",
                a->n_latent, a->rotary_dim, a->value_dim);
    if (a->window > 0)
        fprintf(out, "%-16s %d positions\n", "window", a->window);
    if (a->rope != ROPE_NONE)
        fprintf(out, "%-16s rotary, %s, %d dimensions, theta %g, scaling %s\n", "positions", rope_name(a),
                a->rotary_dim, a->rope_theta, scaling_name(a));
    else
        fprintf(out, "%-16s %s\n", "positions", positions_name(a));
}

static void write_layers(const struct model_desc *d, FILE *out)
{
    for (int i = 0; i < d->n_kinds; i++)
        write_kind(d, i, out);
    fprintf(out, "%-16s %s%s%s\n", "norms", d->norm == NORM_RMS ? "RMSNorm" : "LayerNorm",
            d->has_post_norms ? ", also after each block" : "",
            d->has_embedding_norm ? ", also on the embedding" : "");
    if (d->residual_scale != 0)
        fprintf(out, "%-16s the normed input times %g\n", "residual", (double)d->residual_scale);
}

static void write_division(const struct inspect_report *r, FILE *out)
{
    const struct division_report *s = &r->sides;
    const struct placement *p = &s->placement;
    if (r->division.is_given) {
        fprintf(out, "%-16s %d of %d layers", "on the card", p->n_layers - p->first_on_card, p->n_layers);
        if (p->n_cpu_experts > p->first_on_card)
            fprintf(out, ", without the experts of the first %d layers", p->n_cpu_experts);
        fputc('\n', out);
        put_size(out, "  weights", s->weights.card);
        put_size(out, "  KV per user", s->user.card);
        put_size(out, "on the CPU", s->weights.cpu);
        put_size(out, "  KV per user", s->user.cpu);
        put_size(out, "  memory", s->memory.cpu);
    }
    if (*s->refusal.text)
        fprintf(out, "%-16s %s\n", "does not fit",
                *s->advice && !r->division.is_given ? s->advice : s->refusal.text);
}

static void write_text(const struct inspect_report *r, FILE *out)
{
    const struct model_desc *d = &r->desc;
    fprintf(out, "%-16s %s\n", "checkpoint", checkpoint_path(r->ck));
    fprintf(out, "%-16s %s\n", "family", d->family);
    fprintf(out, "%-16s %.2f million", "parameters", (double)r->n_params / 1e6);
    if (r->n_active < r->n_params)
        fprintf(out, ", %.2f million active for each token", (double)r->n_active / 1e6);
    fputc('\n', out);
    write_layers(d, out);
    fprintf(out, "%-16s %d%s\n", "vocabulary", d->n_vocab,
            d->tied_output ? " (output tied to the embedding)" : "");
    fprintf(out, "%-16s %d tokens\n", "context", d->n_ctx);
    if (d->n_mtp_layers > 0)
        fprintf(out, "%-16s %d for multi-token prediction%s\n", "further layers", d->n_mtp_layers,
                d->uses_mtp ? ": counted" : "; count with --draft mtp");
    fprintf(out, "%-16s %s\n", "tool calls",
            r->tool_form      ? r->tool_form
            : r->has_template ? "in any form that is known"
                              : "as its built-in chat format");
    fprintf(out, "%-16s %s\n", "reasoning", r->reasoning_form ? r->reasoning_form : "without marks");
    put_size(out, "stored", r->stored_bytes);
    fprintf(out, "%-16s %s on %s\n", "runs as", dtype_name(r->type), device_of(r));
    put_size(out, "weights", r->weight_bytes);
    fprintf(out, "%-16s %s, %" PRIu64 " bytes for each token\n", "KV cache",
            kv_type_name(r->options->kv_type), r->kv_token_bytes);
    put_size(out, "memory", r->memory_bytes);
    if (backend_is_card(device_of(r)))
        write_division(r, out);
    fprintf(out, "%-16s %" PRIu64 " of %d tokens each\n", "users that fit", r->users, r->context);
    if (r->options->lists_tensors)
        write_tensors(r, out);
}

/* The chat template decides, as when the model is loaded. A template that cannot be read decides
 * nothing: loading says why. */
static enum tutti_status find_answer_forms(struct inspect_report *r, struct tutti_error *err)
{
    json_t *tokenizer_config = NULL;
    struct chat_texts texts = { 0 };
    enum tutti_status st = checkpoint_json(r->ck, "tokenizer_config.json", &tokenizer_config, err);
    struct chat_source source = { .family = r->family,
                                  .desc = &r->desc,
                                  .folder = checkpoint_folder(r->ck),
                                  .config = checkpoint_config(r->ck),
                                  .tokenizer_config = tokenizer_config };
    if (st == TUTTI_OK && chat_read_templates(&texts, &source, NULL) == TUTTI_OK) {
        const struct reasoning_form *reasoning;
        const struct call_form *calls;
        r->has_template = texts.by_name;
        chat_forms_of(
            &(struct chat_template_source){
                .text = json_string_value(json_object_get(texts.by_name, "default")),
                .n_bytes = json_string_length(json_object_get(texts.by_name, "default")),
                .tool_text = json_object_get(texts.by_name, "tool_use") },
            &calls, &reasoning);
        r->tool_form = calls ? calls->name : NULL;
        r->reasoning_form = reasoning && reasoning->close ? reasoning->name : NULL;
    }
    chat_texts_clear(&texts);
    json_decref(tokenizer_config);
    return st;
}

static enum tutti_status inspect(struct inspect_report *r, FILE *out, struct tutti_error *err)
{
    enum tutti_status st = model_desc_read(&r->desc, &r->family, r->ck, err);
    if (st != TUTTI_OK)
        return st;
    if (r->options->context > r->desc.n_ctx)
        return error_set(err, TUTTI_E_ARGUMENT, "--context: found %d, expected at most %d for this model",
                         r->options->context, r->desc.n_ctx);
    r->names = family_layout(r->family, r->ck);
    if (!r->names)
        return family_no_layout(r->family, r->ck, err);
    if (r->options->mtp)
        st = mtp_describe(&r->desc, r->names, r->ck, false, err);
    if (st == TUTTI_OK)
        st = read_division(r, err);
    r->parts = weight_parts_new(&r->desc, r->options->kv_type, r->options->context);
    if (st == TUTTI_OK && !r->parts)
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", checkpoint_path(r->ck));
    if (st == TUTTI_OK)
        st = sum_weights(r, err);
    if (st == TUTTI_OK)
        st = find_answer_forms(r, err);
    if (st == TUTTI_OK)
        st = weights_check_all(&r->desc, r->family, r->names, r->ck, err);
    if (st != TUTTI_OK)
        return st;
    for (size_t i = 0; i < checkpoint_n_tensors(r->ck); i++)
        r->stored_bytes += checkpoint_tensor(r->ck, i)->n_bytes;
    count_users(r);
    divide(r);
    if (r->options->as_json)
        return write_json(r, out, err);
    write_text(r, out);
    return ferror(out) ? error_set(err, TUTTI_E_IO, "the report could not be written") : TUTTI_OK;
}

enum tutti_status model_inspect(const char *path, const struct inspect_options *options, FILE *out,
                                struct tutti_error *err)
{
    struct inspect_report r = { .options = options };
    enum tutti_status st = checkpoint_open(&r.ck, path, err);
    if (st == TUTTI_OK)
        st = inspect(&r, out, err);
    free(r.parts);
    checkpoint_close(r.ck);
    return st;
}

enum tutti_status model_inspect_info(const char *path, struct tutti_model_info *out, struct tutti_error *err)
{
    struct inspect_report r = { 0 };
    struct model_pooling pooling = { 0 };
    enum tutti_status st = checkpoint_open(&r.ck, path, err);
    if (st == TUTTI_OK)
        st = model_desc_read(&r.desc, &r.family, r.ck, err);
    if (st == TUTTI_OK)
        st = find_answer_forms(&r, err);
    if (st == TUTTI_OK)
        st = pooling_read(&pooling, &r.desc, r.ck, err);
    if (st == TUTTI_OK)
        *out = (struct tutti_model_info){ .n_ctx = r.desc.n_ctx,
                                          .only_embeds = r.desc.is_headless,
                                          .has_score = r.desc.has_score,
                                          .embedding = pooling.kind,
                                          .has_chat = r.has_template || r.family->choose_chat,
                                          .tool_form = r.tool_form,
                                          .reasoning_form = r.reasoning_form };
    checkpoint_close(r.ck);
    return st;
}
