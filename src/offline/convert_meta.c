#include "offline/convert_meta.h"
#include "base/json/json_print.h"
#include "model/chat/chat.h"
#include "model/description/sampling.h"
#include "model/description/stops.h"
#include "model/load/tokenizer_bytes.h"
#include "model/load/tokenizer_settings.h"
#include "model/load/word_list.h"
#include "tokenizer/json/byte_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_u32(struct gguf_writer *w, const char *arch, const char *key, int value)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    gguf_writer_u32(w, full, (uint32_t)value);
}

static void put_f32(struct gguf_writer *w, const char *arch, const char *key, float value)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    gguf_writer_f32(w, full, value);
}

static void put_string(struct gguf_writer *w, const char *key, const char *text)
{
    gguf_writer_string(w, key, text, strlen(text));
}

static void describe_rope(struct gguf_writer *w, const char *arch, const struct attn_desc *a)
{
    const struct rope_scaling *s = &a->rope_scaling;
    char key[128];
    put_u32(w, arch, "rope.dimension_count", a->rotary_dim);
    put_f32(w, arch, "rope.freq_base", (float)a->rope_theta);
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    if (s->kind == ROPE_SCALING_LINEAR) {
        put_string(w, key, "linear");
        put_f32(w, arch, "rope.scaling.factor", (float)s->factor);
    } else if (s->kind == ROPE_SCALING_LONGROPE) { /* no type: the tensors of factors say it */
        put_u32(w, arch, "rope.scaling.original_context_length", s->original_n_ctx);
        put_f32(w, arch, "rope.scaling.attn_factor", (float)s->attention_factor);
    } else if (s->kind == ROPE_SCALING_YARN) {
        put_string(w, key, "yarn");
        put_f32(w, arch, "rope.scaling.factor", (float)s->factor);
        put_u32(w, arch, "rope.scaling.original_context_length", s->original_n_ctx);
        put_f32(w, arch, "rope.scaling.yarn_beta_fast", (float)s->beta_fast);
        put_f32(w, arch, "rope.scaling.yarn_beta_slow", (float)s->beta_slow);
        /* GGUF's factor multiplies the usual one; families with latent attention write their own. */
        if (s->attention_factor > 0 && a->n_latent == 0)
            put_f32(w, arch, "rope.scaling.attn_factor",
                    (float)(s->attention_factor / model_yarn_scale(s->factor)));
    }
}

/* The first kind of layers with or without a window; -1: none. */
static int find_kind(const struct model_desc *d, bool has_window)
{
    for (int i = 0; i < d->n_kinds; i++)
        if ((d->kinds[i].attn.window > 0) == has_window)
            return i;
    return -1;
}

/* A number, or one for each layer if they differ. a: of the layers that the file describes. */
static void put_kv_heads(struct gguf_writer *w, const struct family *family, const struct model_desc *d,
                         const struct attn_desc *a)
{
    static const char KEY[] = "attention.head_count_kv";
    int32_t heads[LIMIT_LAYERS];
    char full[128];
    bool is_mixed = false;
    for (int i = 0; i < d->n_layers; i++) {
        heads[i] = model_layer(d, i)->attn.n_kv_heads;
        is_mixed = is_mixed || heads[i] != a->n_kv_heads;
    }
    snprintf(full, sizeof full, "%s.%s", family->gguf_architecture, KEY);
    if (is_mixed)
        gguf_writer_i32s(w, full, heads, (size_t)d->n_layers);
    else
        put_u32(w, family->gguf_architecture, KEY, family->expands_latents ? a->n_heads : a->n_kv_heads);
}

void convert_describe(struct gguf_writer *w, const struct family *family, const struct model_desc *d,
                      const char *name, uint32_t file_type)
{
    const char *arch = family->gguf_architecture;
    /* The keys are those of the layers without a window; the others' have names of their own. */
    int whole = find_kind(d, false), local = find_kind(d, true);
    const struct attn_desc *a = &d->kinds[whole >= 0 ? whole : 0].attn;
    put_string(w, "general.architecture", arch);
    put_string(w, "general.type", "model");
    put_string(w, "general.name", name);
    gguf_writer_u32(w, "general.file_type", file_type);
    gguf_writer_u32(w, "general.quantization_version", 2);
    const struct rope_scaling *s = &d->kinds[0].attn.rope_scaling;
    /* tutti does not use all of a context in which queries grow. */
    bool is_cut = s->query_growth != 0 && s->kind == ROPE_SCALING_YARN;
    put_u32(w, arch, "context_length", is_cut ? (int)(s->factor * s->original_n_ctx) : d->n_ctx);
    put_u32(w, arch, "embedding_length", d->d_model);
    put_u32(w, arch, "block_count", model_n_loaded(d));
    if (d->uses_mtp)
        put_u32(w, arch, "nextn_predict_layers", 1);
    const struct ffn_desc *f = &d->kinds[0].ffn;
    int d_ff = f->d_ff > 0 ? f->d_ff : f->experts.has_norms ? f->experts.d_shared : f->experts.d_ff;
    put_u32(w, arch, "feed_forward_length", family->has_joint_width ? 2 * d_ff : d_ff);
    put_u32(w, arch, "vocab_size", d->n_vocab);
    put_u32(w, arch, "attention.head_count", a->n_heads);
    put_kv_heads(w, family, d, a);
    put_f32(w, arch,
            d->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
            d->norm_eps);
    if (a->n_latent == 0) {
        put_u32(w, arch, "attention.key_length", a->head_dim);
        put_u32(w, arch, "attention.value_length", a->head_dim);
    }
    if (local >= 0)
        put_u32(w, arch, "attention.sliding_window", d->kinds[local].attn.window);
    if (local >= 0 && a->rope != ROPE_NONE && d->kinds[local].attn.rope_theta != a->rope_theta)
        put_f32(w, arch, "rope.freq_base_swa", (float)d->kinds[local].attn.rope_theta);
    const struct attn_desc *rotated = a->rope == ROPE_NONE && local >= 0 ? &d->kinds[local].attn : a;
    if (rotated->rope != ROPE_NONE)
        describe_rope(w, arch, rotated);
    if (family->put_metadata)
        family->put_metadata(w, d);
}

/* Whether a special token has the text of an ordinary piece. In a GGUF vocabulary all texts must
 * be unique. */
static bool is_respelled(const struct tokenizer *tok, int32_t id, struct piece p)
{
    return p.type == PIECE_CONTROL && p.n_bytes < 40 && tokenizer_find(tok, p.bytes, p.n_bytes) >= 0 &&
           tokenizer_find(tok, p.bytes, p.n_bytes) != id;
}

/* The vocabulary for GGUF: n_vocab tokens with unique spellings. */
struct vocabulary {
    int n;
    const char **texts;
    size_t *n_bytes;
    float *scores;
    int32_t *types;
    char (*made)[48]; /* generated spellings */
};

static void vocabulary_clear(struct vocabulary *v)
{
    free((void *)v->texts);
    free(v->n_bytes);
    free(v->scores);
    free(v->types);
    free(v->made);
}

static bool vocabulary_fill(struct vocabulary *v, const struct tokenizer *tok, int n_vocab)
{
    size_t n = (size_t)n_vocab;
    *v = (struct vocabulary){ .n = n_vocab,
                              .texts = calloc(n, sizeof *v->texts),
                              .n_bytes = calloc(n, sizeof *v->n_bytes),
                              .scores = calloc(n, sizeof *v->scores),
                              .types = calloc(n, sizeof *v->types),
                              .made = calloc(n, sizeof *v->made) };
    if (!v->texts || !v->n_bytes || !v->scores || !v->types || !v->made)
        return false;
    for (int32_t id = 0; id < n_vocab; id++) {
        if (id >= tokenizer_n_pieces(tok)) { /* a padding row of the embedding */
            snprintf(v->made[id], sizeof v->made[id], "[PAD%d]", id);
            v->texts[id] = v->made[id];
            v->n_bytes[id] = strlen(v->made[id]);
            v->types[id] = PIECE_UNUSED;
            continue;
        }
        struct piece p = tokenizer_piece(tok, id);
        v->texts[id] = p.bytes;
        v->n_bytes[id] = p.n_bytes;
        v->scores[id] = p.score;
        v->types[id] = (int32_t)p.type;
        if (is_respelled(tok, id, p)) {
            snprintf(v->made[id], sizeof v->made[id], "<%.*s>", (int)p.n_bytes, p.bytes);
            v->texts[id] = v->made[id];
            v->n_bytes[id] = strlen(v->made[id]);
        }
    }
    return true;
}

/* For other programs. ChatGLM3's authors render ids; this is the nearest template. */
static const char CHATGLM3_TEMPLATE[] =
    "{% for m in messages %}{% if loop.first %}[gMASK]sop{% endif %}<|{{ m['role'] }}|>\n {{ m['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

static enum tutti_status put_template(struct gguf_writer *w, const char *name, const json_t *text,
                                      struct tutti_error *err)
{
    char key[160] = "tokenizer.chat_template";
    if (strcmp(name, "default") != 0 &&
        snprintf(key, sizeof key, "tokenizer.chat_template.%s", name) >= (int)sizeof key)
        return error_set(err, TUTTI_E_LIMIT, "the chat template \"%.40s...\" has too long a name for GGUF",
                         name);
    gguf_writer_string(w, key, json_string_value(text), json_string_length(text));
    return TUTTI_OK;
}

/* All templates, as llama.cpp's converter names them. */
static enum tutti_status put_templates(struct gguf_writer *w, const json_t *by_name, struct tutti_error *err)
{
    size_t n = 0, n_bytes[CHAT_MAX_TEMPLATES];
    const char *names[CHAT_MAX_TEMPLATES], *name;
    json_t *text;
    enum tutti_status st = TUTTI_OK;
    json_object_foreach((json_t *)(uintptr_t)by_name, name, text)
    {
        if (st == TUTTI_OK)
            st = put_template(w, name, text, err);
        if (strcmp(name, "default") != 0) {
            names[n] = name;
            n_bytes[n++] = strlen(name);
        }
    }
    if (n > 0)
        gguf_writer_strings(w, "tokenizer.chat_templates", names, n_bytes, n);
    return st;
}

static enum tutti_status put_json_text(struct gguf_writer *w, const char *key, const json_t *value,
                                       const char *path, struct tutti_error *err)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text)
        return error_out_of_memory(path, err);
    put_string(w, key, text);
    free(text);
    return TUTTI_OK;
}

/* Writes what renders the checkpoint's prompts, so that the file gives the same prompts. */
static enum tutti_status put_chat(struct gguf_writer *w, const struct chat_found *found,
                                  const struct checkpoint *ck, struct tutti_error *err)
{
    enum tutti_status st = put_templates(w, found->texts.by_name, err);
    if (st == TUTTI_OK && found->has_template)
        st = put_json_text(w, CHAT_GGUF_TOKENS, found->texts.tokens, checkpoint_path(ck), err);
    if (found->builtin && !found->has_template) {
        put_string(w, CHAT_GGUF_FORMAT, found->builtin->name);
        if (strcmp(found->builtin->name, "chatglm3") == 0 && !found->texts.by_name)
            put_string(w, "tokenizer.chat_template", CHATGLM3_TEMPLATE);
    }
    return st;
}

static void put_special(struct gguf_writer *w, const char *key, int32_t id)
{
    if (id >= 0)
        gguf_writer_u32(w, key, (uint32_t)id);
}

/* Writes every id that ends an answer: GGUF's keys have the end of a text, of a turn and of a
 * message; tutti's own array has all of them. A GLM model's turn ends where the next one begins,
 * whether or not its files list that. */
static enum tutti_status put_stops(struct gguf_writer *w, const struct model_desc *d,
                                   const struct tokenizer *tok, const struct checkpoint *ck, bool is_glm,
                                   struct tutti_error *err)
{
    static const char *const END_OF_TURN_TOKENS[] = { "<|eot_id|>", "<|im_end|>", "<|end|>",
                                                      "<end_of_turn>" };
    struct model_desc found = *d;
    json_t *generation = NULL;
    enum tutti_status st = checkpoint_json(ck, "generation_config.json", &generation, err);
    if (st == TUTTI_OK)
        st = model_find_stops(&found, ck, generation, tok, false, err);
    json_decref(generation);
    if (st != TUTTI_OK)
        return st;
    int32_t eos = tokenizer_eos(tok), eot = is_glm ? tokenizer_find_control(tok, "<|user|>") : -1, eom = -1;
    if (eos < 0 && found.n_stop_ids > 0)
        eos = found.stop_ids[0];
    for (int i = 0; i < found.n_stop_ids; i++) {
        int32_t id = found.stop_ids[i];
        if (id == tokenizer_find_control(tok, "<|eom_id|>"))
            eom = id;
        for (size_t k = 0; eot < 0 && id != eos && k < sizeof END_OF_TURN_TOKENS / sizeof *END_OF_TURN_TOKENS;
             k++)
            eot = id == tokenizer_find_control(tok, END_OF_TURN_TOKENS[k]) ? id : -1;
    }
    put_special(w, "tokenizer.ggml.eos_token_id", eos);
    put_special(w, "tokenizer.ggml.eot_token_id", eot);
    put_special(w, "tokenizer.ggml.eom_token_id", eom);
    if (found.n_stop_ids > 0)
        gguf_writer_i32s(w, STOPS_GGUF_KEY, found.stop_ids, (size_t)found.n_stop_ids);
    return TUTTI_OK;
}

/* Writes the word list of PanGu-Alpha's tokenizer. */
static enum tutti_status put_words(struct gguf_writer *w, const struct checkpoint *ck,
                                   struct tutti_error *err)
{
    const struct gguf *gguf = checkpoint_gguf(ck);
    struct word_list words = { 0 };
    enum tutti_status st = gguf ? word_list_read(&words, gguf, checkpoint_path(ck), err)
                                : word_list_open(&words, checkpoint_folder(ck), err);
    if (st == TUTTI_OK && words.is_there) {
        const char *bytes[N_WORD_FILES];
        size_t n_bytes[N_WORD_FILES];
        for (int i = 0; i < N_WORD_FILES; i++) {
            bytes[i] = words.files.file[i].n_bytes > 0 ? words.files.file[i].bytes : "";
            n_bytes[i] = words.files.file[i].n_bytes;
        }
        gguf_writer_strings(w, WORD_LIST_KEY, bytes, n_bytes, N_WORD_FILES);
    }
    word_list_close(&words);
    return st;
}

/* Writes tutti's own keys, for settings that llama.cpp's kinds lack. */
static enum tutti_status put_own_settings(struct gguf_writer *w, const struct piece_vocab *v,
                                          const struct checkpoint *ck, struct tutti_error *err)
{
    static const char *const RULES[] = {
        [PIECES_PLAIN] = "none", [PIECES_ICETEXT] = "icetext", [PIECES_PANGU] = "pangu"
    };
    put_string(w, TOKENIZER_OWN_KEY("model"), v->is_unigram ? "unigram" : "bpe");
    put_string(w, TOKENIZER_OWN_KEY("rules"), RULES[v->rules]);
    gguf_writer_bool(w, TOKENIZER_OWN_KEY("byte_fallback"), v->byte_fallback);
    gguf_writer_bool(w, TOKENIZER_OWN_KEY("escape_whitespaces"), !v->keeps_blanks);
    gguf_writer_bool(w, TOKENIZER_OWN_KEY("treat_whitespace_as_suffix"), v->blank_is_suffix);
    gguf_writer_string(w, TOKENIZER_OWN_KEY("unk_surface"), v->n_unk_surface > 0 ? v->unk_surface : "",
                       v->n_unk_surface);
    if (v->rules == PIECES_ICETEXT)
        gguf_writer_u32(w, TOKENIZER_OWN_KEY("image_tokens"), (uint32_t)v->n_images);
    return v->rules == PIECES_PANGU ? put_words(w, ck, err) : TUTTI_OK;
}

/* Writes the pieces of a SentencePiece tokenizer. */
static enum tutti_status put_pieces(struct gguf_writer *w, const struct model_desc *d,
                                    const struct tokenizer *tok, const char *chat,
                                    const struct checkpoint *ck, struct tutti_error *err)
{
    struct vocabulary v = { 0 };
    struct piece_vocab settings;
    const char *kind = tokenizer_gguf_kind(tok);
    tokenizer_describe(tok, &settings);
    if (!vocabulary_fill(&v, tok, kind ? d->n_vocab : tokenizer_n_pieces(tok))) {
        vocabulary_clear(&v);
        return error_out_of_memory(checkpoint_path(ck), err);
    }
    put_string(w, "tokenizer.ggml.model", kind ? kind : TOKENIZER_KIND_OWN);
    if (settings.map)
        gguf_writer_u8s(w, "tokenizer.ggml.precompiled_charsmap", settings.map, settings.n_map_bytes);
    put_string(w, "tokenizer.ggml.pre", strcmp(chat, "chatglm3") == 0 ? "chatglm-spm" : "default");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", v.texts, v.n_bytes, (size_t)v.n);
    gguf_writer_f32s(w, "tokenizer.ggml.scores", v.scores, (size_t)v.n);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", v.types, (size_t)v.n);
    gguf_writer_bool(w, "tokenizer.ggml.add_space_prefix", settings.add_dummy_prefix);
    gguf_writer_bool(w, "tokenizer.ggml.remove_extra_whitespaces", settings.remove_extra_whitespaces);
    vocabulary_clear(&v);
    return kind ? TUTTI_OK : put_own_settings(w, &settings, ck, err);
}

/* Writes the text of a tokenizer.json whose rules have no standard name. tutti prefers it to the
 * vocabulary, which other programs use. */
static enum tutti_status put_json(struct gguf_writer *w, const struct checkpoint *ck,
                                  const json_t *tokenizer_config, struct tutti_error *err)
{
    const json_t *scalars = checkpoint_config(ck);
    const json_t *text = json_object_get(scalars, TOKENIZER_JSON_KEY),
                 *settings = json_object_get(scalars, TOKENIZER_JSON_CONFIG_KEY);
    if (checkpoint_gguf(ck)) {
        if (!json_is_string(text))
            return error_set(
                err, TUTTI_E_UNSUPPORTED,
                "%s: a tokenizer of the kind %s cannot be written; convert the model's folder instead",
                checkpoint_path(ck), json_string_value(json_object_get(scalars, "tokenizer.ggml.model")));
        gguf_writer_string(w, TOKENIZER_JSON_KEY, json_string_value(text), json_string_length(text));
        if (settings)
            gguf_writer_string(w, TOKENIZER_JSON_CONFIG_KEY, json_string_value(settings),
                               json_string_length(settings));
        else
            put_string(w, TOKENIZER_JSON_CONFIG_KEY, "{}");
        return TUTTI_OK;
    }
    struct mapping map;
    char path[4200];
    snprintf(path, sizeof path, "%s/tokenizer.json", checkpoint_folder(ck));
    enum tutti_status st = mapping_open(&map, path, err);
    if (st != TUTTI_OK)
        return st;
    gguf_writer_string(w, TOKENIZER_JSON_KEY, (const char *)map.bytes, map.n_bytes);
    mapping_close(&map);
    char *config = tokenizer_config ? json_print(tokenizer_config, JSON_COMPACT) : NULL;
    if (tokenizer_config && !config)
        return error_out_of_memory(path, err);
    put_string(w, TOKENIZER_JSON_CONFIG_KEY, config ? config : "{}");
    free(config);
    return TUTTI_OK;
}

/* Writes a tokenizer.json, and what other programs can make of it: its vocabulary as the nearest
 * kind of tokenizer that GGUF knows. */
static enum tutti_status put_json_and_vocab(struct gguf_writer *w, const struct tokenizer *tok, int n_vocab,
                                            const struct checkpoint *ck, const json_t *tokenizer_config,
                                            struct tutti_error *err)
{
    const char *pre = tokenizer_nearest_pre(tok);
    enum tutti_status st = put_json(w, ck, tokenizer_config, err);
    if (st != TUTTI_OK)
        return st;
    if (pre)
        return convert_byte_vocab(w, tok, pre, n_vocab, checkpoint_path(ck), err);
    if (tokenizer_merges_text(tok))
        return convert_text_vocab(w, tok, n_vocab, checkpoint_path(ck), err);
    put_string(w, "tokenizer.ggml.model", TOKENIZER_KIND_JSON);
    return TUTTI_OK;
}

/* If the tokenizer's files do not define it, the family does. */
static bool adds_bos(const struct family *family, const struct tokenizer *tok)
{
    struct ids prefix = { 0 };
    int adds = tokenizer_adds_bos(tok);
    if (adds < 0)
        adds = family->text_prefix(tok, &prefix, NULL) == TUTTI_OK && prefix.n == 1 &&
               prefix.ids[0] == tokenizer_bos(tok);
    ids_clear(&prefix);
    return adds > 0;
}

/* GGUF has one flag for bos before a text and one for eos after it; the family adds its own
 * prefix when the file is loaded. */
static bool has_usual_affixes(const struct family *family, const struct tokenizer *tok)
{
    const struct token_affixes *a = tokenizer_affixes(tok);
    struct ids own = { 0 };
    size_t n = (size_t)a->n_before;
    bool is_familys = n > 0 && family->text_prefix(tok, &own, NULL) == TUTTI_OK && own.n == n &&
                      memcmp(own.ids, a->before, n * sizeof *own.ids) == 0;
    bool is_bos = n == 0 || (n == 1 && a->before[0] == tokenizer_bos(tok));
    ids_clear(&own);
    return (is_familys || is_bos) && a->n_after <= 1 &&
           (a->n_after == 0 || a->after[0] == tokenizer_eos(tok));
}

/* The model's defaults of sampling, under the names that llama.cpp's converter writes. generation: of a folder; NULL: none. */
static void put_sampling(struct gguf_writer *w, const struct checkpoint *ck, const json_t *generation)
{
    bool is_greedy = json_is_false(json_object_get(generation, "do_sample"));
    for (int i = 0; i < N_SAMPLING_KEYS; i++) {
        const json_t *value = sampling_default(ck, generation, (enum sampling_key)i);
        double x = json_number_value(value);
        if (i == SAMPLING_TEMPERATURE && is_greedy)
            gguf_writer_f32(w, SAMPLING_NAMES[i].of_gguf, 0);
        else if (json_is_number(value) && i != SAMPLING_TOP_K)
            gguf_writer_f32(w, SAMPLING_NAMES[i].of_gguf, (float)x);
        else if (json_is_number(value) && x >= 0 && x <= INT32_MAX)
            gguf_writer_u32(w, SAMPLING_NAMES[i].of_gguf, (uint32_t)x);
    }
}

/* Copies the ids of a GGUF file's tokens for filling gaps: infill_find() need not know their names. */
static void put_infill(struct gguf_writer *w, const struct checkpoint *ck, int n_vocab)
{
    static const char *const KEYS[] = { "tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id",
                                        "tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.fim_pad_token_id",
                                        "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
                                        "tokenizer.ggml.prefix_token_id",  "tokenizer.ggml.suffix_token_id",
                                        "tokenizer.ggml.middle_token_id" };
    for (size_t i = 0; checkpoint_gguf(ck) && i < sizeof KEYS / sizeof *KEYS; i++) {
        const json_t *value = json_object_get(checkpoint_config(ck), KEYS[i]);
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id >= 0 && id < n_vocab)
            put_special(w, KEYS[i], (int32_t)id);
    }
}

enum tutti_status convert_tokenizer(struct gguf_writer *w, const struct family *family,
                                    const struct model_desc *d, const struct tokenizer *tok,
                                    const struct checkpoint *ck, struct tutti_error *err)
{
    json_t *tokenizer_config = NULL, *generation = NULL;
    struct chat_found found = { .builtin = NULL };
    enum tutti_status st = tokenizer_settings_read(&tokenizer_config, ck, err);
    if (st == TUTTI_OK)
        st = checkpoint_json(ck, "generation_config.json", &generation, err);
    if (st != TUTTI_OK)
        goto done;
    struct chat_source source = { .family = family,
                                  .desc = d,
                                  .folder = checkpoint_folder(ck),
                                  .config = checkpoint_config(ck),
                                  .tokenizer_config = tokenizer_config,
                                  .generation = generation };
    st = chat_find(&found, &source, tok, err);
    if (st != TUTTI_OK)
        goto done;
    const char *chat = found.builtin ? found.builtin->name : "";
    bool is_byte_level = tokenizer_is_byte_level(tok), is_chatglm = strncmp(chat, "chatglm", 7) == 0;
    if (!is_byte_level)
        st = put_pieces(w, d, tok, chat, ck, err);
    else if (tokenizer_pre(tok) && has_usual_affixes(family, tok))
        st = convert_byte_vocab(w, tok, tokenizer_pre(tok), d->n_vocab, checkpoint_path(ck), err);
    else
        st = put_json_and_vocab(w, tok, d->n_vocab, ck, tokenizer_config, err);
    if (st != TUTTI_OK)
        goto done;
    if (!is_byte_level || tokenizer_pre(tok))
        st = convert_added_tokens(w, tok, checkpoint_path(ck), err);
    if (st != TUTTI_OK)
        goto done;
    bool begins = tokenizer_adds_bos(tok) < 0 && is_chatglm ? false : adds_bos(family, tok);
    put_special(w, "tokenizer.ggml.bos_token_id", tokenizer_bos(tok));
    put_special(w, "tokenizer.ggml.unknown_token_id", tokenizer_unk(tok));
    put_special(w, "tokenizer.ggml.padding_token_id", tokenizer_settings_pad(tokenizer_config, ck, tok));
    st = put_stops(w, d, tok, ck, is_chatglm || strcmp(chat, "glm4") == 0, err);
    if (st != TUTTI_OK)
        goto done;
    put_infill(w, ck, d->n_vocab);
    put_sampling(w, ck, generation);
    gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", begins);
    gguf_writer_bool(w, "tokenizer.ggml.add_eos_token", tokenizer_adds_eos(tok));
    st = put_chat(w, &found, ck, err);
done:
    chat_found_clear(&found);
    json_decref(tokenizer_config);
    json_decref(generation);
    return st;
}
