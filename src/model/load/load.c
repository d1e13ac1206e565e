/* Loads a model from a checkpoint: description, packed weights, tokenizer, chat format, defaults. */
#include "model/load/load.h"

#include "base/files/path_name.h"
#include "base/json/json_type.h"
#include "base/log.h"
#include "model/adapters/adapter.h"
#include "model/chat/chat.h"
#include "model/description/sampling.h"
#include "model/description/stops.h"
#include "model/forward.h"
#include "model/load/device/start.h"
#include "model/load/pooling.h"
#include "model/load/tokenizer_settings.h"
#include "model/ranks/group.h"
#include "model/weights/mtp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void name_model(struct model *model, const char *path)
{
    path_name(model->name, sizeof model->name, path);
    static const char *const ENDS[] = { ".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ckpt" };
    char *dot = strrchr(model->name, '.');
    for (size_t i = 0; dot && dot != model->name && i < sizeof ENDS / sizeof *ENDS; i++) {
        if (strcmp(dot, ENDS[i]) == 0) {
            *dot = '\0';
            break;
        }
    }
}

enum tutti_status load_out_of_memory(const struct loader *l, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", checkpoint_path(l->ck));
}

/* Divides the frequencies by those of a GGUF file, whose shape model_desc_read() has checked. */
static enum tutti_status apply_rope_factors(struct loader *l, struct tutti_error *err)
{
    const struct model_desc *d = &l->model->desc;
    bool has_any = false;
    for (int i = 0; i < d->n_kinds; i++)
        has_any = has_any || d->kinds[i].attn.rope_scaling.has_divisors;
    const struct tensor *t = has_any ? checkpoint_find(l->ck, GGUF_ROPE_DIVISORS) : NULL;
    if (!t)
        return TUTTI_OK;
    float *factors = weights_to_floats(t, 1);
    if (!factors)
        return load_out_of_memory(l, err);
    enum tutti_status st = TUTTI_OK;
    for (int64_t j = 0; j < t->shape[0] && st == TUTTI_OK; j++) {
        if (!(factors[j] > 0))
            st = error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: element %lld is not positive", t->file,
                           t->name, (long long)j);
        for (int i = 0; i < d->n_kinds && st == TUTTI_OK; i++)
            if (d->kinds[i].attn.rope_scaling.has_divisors)
                l->model->rope_freqs[i][j] /= factors[j];
    }
    free(factors);
    return st;
}

/* ---- tokenizer, stops, defaults ---- */

/* Rows of the vocabulary after the last usable piece are padding: never sampled. */
static int usable_vocab(const struct model *model)
{
    if (!model->tokenizer)
        return model->desc.n_vocab;
    int n = tokenizer_n_pieces(model->tokenizer);
    while (n > 1 && tokenizer_piece(model->tokenizer, n - 1).type == PIECE_UNUSED)
        n--;
    return n < model->desc.n_vocab ? n : model->desc.n_vocab;
}

/* These are only defaults: invalid entries are logged and skipped. */
static float default_or(const struct loader *l, const char *file, const char *key, const json_t *value,
                        double lo, double hi, float fallback)
{
    double x = json_number_value(value);
    if (!value || json_is_null(value))
        return fallback;
    if (json_is_number(value) && x >= lo && x <= hi)
        return (float)x;
    char found[32];
    if (json_is_number(value))
        snprintf(found, sizeof found, "%g", x);
    else
        snprintf(found, sizeof found, "%s", json_type_name(value));
    if (model_rank(l->model) == 0) /* says it for all */
        log_warn("%s: %s: %s, expected a number from %.10g to %.10g; it is left out", file, key, found, lo,
                 hi);
    return fallback;
}

#define OTHER_DEFAULTS "%s: left out, since no setting of an answer has them as its default: %s"

/* Names the settings of generate() that are no defaults here, if they say anything. */
static void name_other_defaults(const struct loader *l, const char *file, const json_t *values)
{
    static const char *const KEYS[] = { "no_repeat_ngram_size",
                                        "encoder_repetition_penalty",
                                        "bad_words_ids",
                                        "sequence_bias",
                                        "min_length",
                                        "min_new_tokens",
                                        "forced_bos_token_id",
                                        "forced_eos_token_id",
                                        "num_beams",
                                        "penalty_alpha",
                                        "guidance_scale",
                                        "stop_strings",
                                        "epsilon_cutoff",
                                        "eta_cutoff" };
    char names[512] = "";
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const json_t *value = json_object_get(values, KEYS[i]);
        double x = json_number_value(value);
        size_t n = strlen(names);
        if (json_array_size(value) > 0 || json_string_length(value) > 0 || (x != 0 && (x != 1 || i == 0)))
            snprintf(names + n, sizeof names - n, "%s%s", n > 0 ? ", " : "", KEYS[i]);
    }
    if (names[0] && model_rank(l->model) == 0) /* says it for all */
        log_warn(OTHER_DEFAULTS, file, names);
}

/* The same for the settings of a GGUF file, each with the value that says nothing. */
static void name_other_gguf_defaults(const struct loader *l)
{
    static const struct {
        const char *key;
        double nothing;
    } KEYS[] = { { "general.sampling.mirostat", 0 },
                 { "general.sampling.xtc_probability", 0 },
                 { "general.sampling.penalty_last_n",
                   -1 } }; /* the repetition penalty is over the whole text */
    const json_t *config = checkpoint_config(l->ck);
    char names[256] = "";
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const json_t *value = json_object_get(config, KEYS[i].key);
        size_t n = strlen(names);
        if (value && json_number_value(value) != KEYS[i].nothing)
            snprintf(names + n, sizeof names - n, "%s%s", n > 0 ? ", " : "", KEYS[i].key);
    }
    size_t n = strlen(names);
    if (json_string_length(json_object_get(config, "general.sampling.sequence")) > 0)
        snprintf(names + n, sizeof names - n, "%sgeneral.sampling.sequence", n > 0 ? ", " : "");
    if (names[0] && model_rank(l->model) == 0)
        log_warn(OTHER_DEFAULTS, checkpoint_path(l->ck), names);
}

static void read_defaults(struct loader *l, const json_t *generation)
{
    struct tutti_sampling *s = &l->model->sampling;
    tutti_sampling_init(s, NULL);
    const struct chat_format *chat = l->model->chat, *builtin = NULL;
    if (l->model->chat_template)
        builtin = chat_template_builtin(l->model->chat_template);
    if (chat && l->family->defaults)
        l->family->defaults(s, builtin ? builtin->name : chat->name);
    bool is_gguf = checkpoint_gguf(l->ck) != NULL;
    const json_t *values = generation ? generation : checkpoint_config(l->ck);
    char file[4300];
    if (is_gguf)
        snprintf(file, sizeof file, "%s", checkpoint_path(l->ck));
    else
        snprintf(file, sizeof file, "%s/%s", checkpoint_folder(l->ck),
                 generation ? "generation_config.json" : "config.json");
    float top_k = (float)s->top_k;
    const struct {
        float *to;
        double lo, hi;
    } DEFAULTS[N_SAMPLING_KEYS] = {
        [SAMPLING_TEMPERATURE] = { &s->temperature, 0, 100 },
        [SAMPLING_TOP_P] = { &s->top_p, 1e-6, 1 },
        [SAMPLING_TOP_K] = { &top_k, 0, LIMIT_VOCAB },
        [SAMPLING_MIN_P] = { &s->min_p, 0, 1 },
        [SAMPLING_REPETITION] = { &s->repetition_penalty, LIMIT_LEAST_PENALTY, LIMIT_PENALTY },
    };
    for (int i = 0; i < N_SAMPLING_KEYS; i++)
        *DEFAULTS[i].to = default_or(l, file,
                                     is_gguf ? SAMPLING_NAMES[i].of_gguf : SAMPLING_NAMES[i].of_folder,
                                     sampling_default(l->ck, generation, (enum sampling_key)i),
                                     DEFAULTS[i].lo, DEFAULTS[i].hi, *DEFAULTS[i].to);
    s->top_k = (int)top_k;
    if (is_gguf) {
        name_other_gguf_defaults(l);
        return;
    }
    s->typical_p = default_or(l, file, "typical_p", json_object_get(values, "typical_p"), 0, 1, s->typical_p);
    if (json_is_false(json_object_get(generation, "do_sample")))
        s->temperature = 0;
    name_other_defaults(l, file, values);
}

/* Tokens that may never be sampled, or not at first. */
static enum tutti_status refuse_suppressed(const struct loader *l, const json_t *generation,
                                           struct tutti_error *err)
{
    static const char *const KEYS[] = { "suppress_tokens", "begin_suppress_tokens" };
    static const char GGUF_KEY[] = "tokenizer.ggml.suppress_tokens";
    static const char WHAT[] =
        "tokens that may never be sampled are not supported; remove the key, and ban the "
        "tokens by logit_bias";
    const struct gguf *gguf = checkpoint_gguf(l->ck);
    const json_t *values = generation ? generation : checkpoint_config(l->ck);
    for (size_t i = 0; !gguf && i < sizeof KEYS / sizeof *KEYS; i++)
        if (json_array_size(json_object_get(values, KEYS[i])) > 0)
            return error_set(err, TUTTI_E_UNSUPPORTED, "%s/%s: %s: %s", checkpoint_folder(l->ck),
                             generation ? "generation_config.json" : "config.json", KEYS[i], WHAT);
    const struct gguf_array *array = gguf ? gguf_find_array(gguf, GGUF_KEY) : NULL;
    if (array && gguf_array_n(array) > 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: %s: %s", checkpoint_path(l->ck), GGUF_KEY, WHAT);
    return TUTTI_OK;
}

static enum tutti_status model_choose_chat(struct loader *l, const json_t *tokenizer_config,
                                           const json_t *generation, struct tutti_error *err)
{
    struct model *model = l->model;
    const json_t *config = checkpoint_config(l->ck);
    if (!model->tokenizer)
        return TUTTI_OK;
    struct chat_source source = {
        .option = l->options->chat_format,
        .family = l->family,
        .desc = &model->desc,
        .folder = checkpoint_folder(l->ck),
        .config = config,
        .tokenizer_config = tokenizer_config,
        .generation = generation,
    };
    enum tutti_status st = chat_choose(&model->chat, &model->chat_template, &source, model->tokenizer, err);
    if (st == TUTTI_OK && model->chat)
        snprintf(model->desc.chat_format, sizeof model->desc.chat_format, "%s", model->chat->name);
    if (st == TUTTI_OK)
        st = chat_marks_init(&model->marks, model->chat, model->chat_template, model->tokenizer, err);
    return st;
}

static enum tutti_status load_text(struct loader *l, struct tutti_error *err)
{
    struct model *model = l->model;
    json_t *generation = NULL, *tokenizer_config = NULL;
    char why[512] = "";
    enum tutti_status st = model_tokenizer_load(&model->tokenizer, l->family, &model->desc, l->ck, why,
                                                sizeof why, err);
    if (st != TUTTI_OK)
        goto done;
    if (model->tokenizer)
        model->desc.bos_id = tokenizer_bos(model->tokenizer);
    else if (model_rank(model) == 0) /* says it for all */
        log_warn("no tokenizer, so only token ids can be used: %s", why);
    st = checkpoint_json(l->ck, "generation_config.json", &generation, err);
    if (st == TUTTI_OK)
        st = refuse_suppressed(l, generation, err);
    if (st == TUTTI_OK)
        st = tokenizer_settings_read(&tokenizer_config, l->ck, err);
    if (st != TUTTI_OK)
        goto done;
    model->desc.n_usable_vocab = usable_vocab(model);
    if (model->tokenizer)
        model->desc.pad_id = tokenizer_settings_pad(tokenizer_config, l->ck, model->tokenizer);
    st = model_find_stops(&model->desc, l->ck, generation, model->tokenizer, model_rank(model) == 0, err);
    if (st == TUTTI_OK)
        st = model_choose_chat(l, tokenizer_config, generation, err);
    if (st == TUTTI_OK &&
        !infill_find(&model->infill, model->desc.is_headless ? NULL : model->tokenizer,
                     checkpoint_gguf(l->ck) ? checkpoint_config(l->ck) : NULL, model->desc.n_vocab))
        st = load_out_of_memory(l, err);
    if (st == TUTTI_OK)
        read_defaults(l, generation);
    if (st == TUTTI_OK)
        st = pooling_read(&model->pooling, &model->desc, l->ck, err);
done:
    json_decref(generation);
    json_decref(tokenizer_config);
    return st;
}

/* ---- loading ---- */

static enum tutti_status read_weight_type(const struct weight_type **out, const char *name,
                                          struct tutti_error *err)
{
    char known[256];
    *out = weight_type_find(name);
    if (*out)
        return TUTTI_OK;
    weight_type_list(known, sizeof known);
    return error_set_param(err, TUTTI_E_ARGUMENT, "weight_type", "weight_type \"%.32s\", expected %s", name,
                           known);
}

bool model_alloc_rope_freqs(struct model *model)
{
    for (int i = 0; i < model->desc.n_kinds; i++) {
        const struct attn_desc *a = &model->desc.kinds[i].attn;
        model->rope_freqs[i] = calloc((size_t)a->rotary_dim / 2 + 1, sizeof *model->rope_freqs[i]);
        if (!model->rope_freqs[i])
            return false;
        model_rope_freqs(a, model->rope_freqs[i]);
    }
    return true;
}

static enum tutti_status loader_fits(void *user, struct weight_parts *parts, struct tutti_error *err)
{
    return load_check_memory(user, parts, err);
}

static enum tutti_status load_checkpoint(struct loader *l, struct tutti_error *err)
{
    struct model *model = l->model;
    enum tutti_status st = model_desc_read(&model->desc, &l->family, l->ck, err);
    if (st != TUTTI_OK)
        return st;
    model->family = l->family;
    model_limit_context(&model->desc, l->options->max_context);
    l->names = family_layout(l->family, l->ck);
    if (!l->names)
        return family_no_layout(l->family, l->ck, err);
    if (l->options->mtp) {
        st = mtp_describe(&model->desc, l->names, l->ck, false, err);
        if (st != TUTTI_OK)
            return st;
    }
    model->is_gguf = l->names->is_gguf;
    if (l->options->weight_type) {
        st = read_weight_type(&l->type, l->options->weight_type, err);
        if (st != TUTTI_OK)
            return st;
    }
    for (size_t i = 0; i < checkpoint_n_tensors(l->ck); i++) {
        const struct tensor *t = checkpoint_tensor(l->ck, i);
        bool is_left_out = !model->desc.uses_mtp && mtp_has_tensor(&model->desc, l->names, t->name, false);
        if (!is_left_out && !weights_is_ignored(l->family, t->name))
            l->total += t->n_bytes;
    }
    if (!model_alloc_rope_freqs(model))
        return load_out_of_memory(l, err);
    st = apply_rope_factors(l, err);
    if (st == TUTTI_OK)
        st = load_text(l, err); /* before the weights: it is quick, and fails more often */
    model->local = model->desc;
    if (st == TUTTI_OK && model->group)
        st = load_cut(l, err);
    if (st == TUTTI_OK)
        st = weights_check_all(l->is_cut ? &model->local : &model->desc, l->family, l->names, l->ck, err);
    if (st == TUTTI_OK)
        st = model_start_backend(model, l->options, loader_fits, l, err);
    if (st == TUTTI_OK)
        st = load_weights(l, err);
    return st;
}

/* Opens what this rank needs of a checkpoint: only its own part, if it is sharded for as many
 * ranks. */
static enum tutti_status open_part(struct loader *l, const char *path, int *max_context,
                                   struct tutti_error *err)
{
    enum tutti_status st = checkpoint_open_rank(&l->ck, path, model_rank(l->model),
                                                cluster_n_ranks(l->model->group->cluster), err);
    const struct shard_manifest *shard = st == TUTTI_OK ? checkpoint_shard(l->ck) : NULL;
    l->is_cut = shard;
    return group_check_shard(l->model, st, shard, max_context, err);
}

enum tutti_status model_load(struct model **out, const char *path, const struct tutti_model_options *options,
                             struct tutti_error *err)
{
    struct tutti_model_options given = { 0 };
    struct loader l = { .options = &given };
    if (options)
        given = *options;
    l.model = calloc(1, sizeof *l.model);
    if (!l.model)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    name_model(l.model, path);
    enum tutti_status st = group_open(l.model, &given, err);
    if (st != TUTTI_OK) {
        model_free(l.model);
        return st;
    }
    if (model_rank(l.model) > 0)
        given.progress = NULL; /* only rank 0 shows progress */
    l.model->memory_bytes = given.memory_bytes;
    l.memory_bytes = model_own_memory_left(l.model);
    if (l.model->group)
        st = cluster_agree(l.model->group->cluster, st, err); /* all have measured */
    if (st == TUTTI_OK)
        st = l.model->group ? open_part(&l, path, &given.max_context, err)
                            : checkpoint_open(&l.ck, path, err);
    if (st == TUTTI_OK)
        st = load_checkpoint(&l, err);
    checkpoint_close(l.ck);
    st = group_join(l.model, st, err);
    if (st == TUTTI_OK)
        *out = l.model;
    else
        model_free(l.model);
    return st;
}

enum tutti_status model_text_prefix(const struct model *model, struct ids *out, struct tutti_error *err)
{
    if (!model->family || !model->tokenizer)
        return TUTTI_OK;
    const struct token_affixes *affixes = tokenizer_affixes(model->tokenizer);
    if (affixes->n_before == 0) /* the files of a GLM model may lack the prefix that the authors' code adds */
        return model->family->text_prefix(model->tokenizer, out, err);
    return ids_add_all(out, affixes->before, (size_t)affixes->n_before) ? TUTTI_OK : chat_out_of_memory(err);
}

enum tutti_status model_text_suffix(const struct model *model, struct ids *out, struct tutti_error *err)
{
    if (model->family && model->family->text_suffix)
        return model->family->text_suffix(&model->desc, out, err);
    const struct token_affixes *affixes = model->tokenizer ? tokenizer_affixes(model->tokenizer) : NULL;
    return !affixes || ids_add_all(out, affixes->after, (size_t)affixes->n_after) ? TUTTI_OK
                                                                                  : chat_out_of_memory(err);
}

static void free_weight(struct backend *be, const struct model_weight *w)
{
    be->ops->matrix_free(be, w->matrix);
    be->ops->dealloc(be, w->values);
    be->ops->dealloc(be, w->bias);
}

void model_free(struct model *model)
{
    if (!model)
        return;
    struct backend *be = model->backend;
    /* The ranks end together, unless one's device failed: the others may wait for it in a step. They notice that it leaves. */
    if (model->group && !(be && be->ops->check && be->ops->check(be, NULL) != TUTTI_OK))
        group_end(model->group);
    if (be) {
        workspace_free(model->workspace, be);
        adapters_free(model->adapters, be);
        for (size_t i = 0; model->weights && i < (size_t)model_n_loaded(&model->desc) * SLOT_COUNT; i++)
            free_weight(be, &model->weights[i]);
        be->ops->free(be);
    }
    group_free(model->group);
    free(model->weights);
    for (int i = 0; i < MAX_LAYER_KINDS; i++)
        free(model->rope_freqs[i]);
    chat_template_free(model->chat_template);
    chat_marks_clear(&model->marks);
    tokenizer_free(model->tokenizer);
    free(model);
}
