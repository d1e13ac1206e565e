/* BERT and RoBERTa (XLM-RoBERTa, CamemBERT): encoders. Attention in both directions, LayerNorm after each
 * block, learned positions, segments, GELU without a gate, biases everywhere. Their files hold embedding
 * models (MiniLM, BGE, E5), or with a classification head of one label cross-encoders. */
#include "model/description/describe.h"
#include "model/families/names.h"

#include <string.h>

/* norm: the end of the names of norms' weights, which the first releases call gamma. */
#define LAYER(prefix) prefix "encoder.layer.%d."
#define BERT_NAMES(prefix, norm)                                                                             \
    .of[SLOT_EMBEDDING] = { prefix "embeddings.word_embeddings.weight" },                                    \
    .of[SLOT_POSITIONS] = { prefix "embeddings.position_embeddings.weight" },                                \
    .of[SLOT_SEGMENTS] = { prefix "embeddings.token_type_embeddings.weight" },                               \
    .of[SLOT_EMBEDDING_NORM] = { prefix "embeddings.LayerNorm." norm },                                      \
    .of[SLOT_QKV] = { LAYER(prefix) "attention.self.query.weight",                                           \
                      LAYER(prefix) "attention.self.key.weight",                                             \
                      LAYER(prefix) "attention.self.value.weight" },                                         \
    .of[SLOT_ATTN_OUT] = { LAYER(prefix) "attention.output.dense.weight" },                                  \
    .of[SLOT_ATTN_POST_NORM] = { LAYER(prefix) "attention.output.LayerNorm." norm },                         \
    .of[SLOT_GATE_UP] = { LAYER(prefix) "intermediate.dense.weight" },                                       \
    .of[SLOT_DOWN] = { LAYER(prefix) "output.dense.weight" },                                                \
    .of[SLOT_FFN_POST_NORM] = { LAYER(prefix) "output.LayerNorm." norm }
#define BERT_HEAD(prefix)                                                                                    \
    .of[SLOT_POOLER] = { prefix "pooler.dense.weight" }, .of[SLOT_SCORE] = { "classifier.weight" }
#define ROBERTA_HEAD                                                                                         \
    .of[SLOT_POOLER] = { "classifier.dense.weight" }, .of[SLOT_SCORE] = { "classifier.out_proj.weight" }

/* As llama.cpp writes them, for all families here. */
#define GGUF_NAMES                                                                                           \
    .of[SLOT_EMBEDDING] = { "token_embd.weight" }, .of[SLOT_POSITIONS] = { "position_embd.weight" },         \
    .of[SLOT_SEGMENTS] = { "token_types.weight" }, .of[SLOT_EMBEDDING_NORM] = { "token_embd_norm.weight" },  \
    NAMES_GGUF_SPLIT_QKV, .of[SLOT_ATTN_OUT] = { "blk.%d.attn_output.weight" },                              \
    .of[SLOT_ATTN_POST_NORM] = { "blk.%d.attn_output_norm.weight" }, NAMES_GGUF_UP,                          \
    .of[SLOT_DOWN] = { "blk.%d.ffn_down.weight" },                                                           \
    .of[SLOT_FFN_POST_NORM] = { "blk.%d.layer_output_norm.weight" }, .of[SLOT_POOLER] = { "cls.weight" },    \
    .of[SLOT_SCORE] = { "cls.output.weight" }, .is_gguf = true

static const struct tensor_names BERT_LAYOUTS[] = {
    { BERT_NAMES("", "weight"), BERT_HEAD("") },
    { BERT_NAMES("bert.", "weight"), BERT_HEAD("bert.") },
    { BERT_NAMES("", "gamma"), BERT_HEAD("") },
    { BERT_NAMES("bert.", "gamma"), BERT_HEAD("bert.") },
    { GGUF_NAMES },
};
static const struct tensor_names ROBERTA_LAYOUTS[] = {
    { BERT_NAMES("", "weight"), ROBERTA_HEAD },
    { BERT_NAMES("roberta.", "weight"), ROBERTA_HEAD },
    { GGUF_NAMES },
};

/* Heads for training: of masked tokens, of the next sentence; and the pooler, which embeddings do not use. */
static const char *const IGNORED[] = { "cls.predictions.bias",
                                       "cls.predictions.decoder.weight",
                                       "cls.predictions.decoder.bias",
                                       "cls.predictions.transform.dense.weight",
                                       "cls.predictions.transform.dense.bias",
                                       "cls.predictions.transform.LayerNorm.weight",
                                       "cls.predictions.transform.LayerNorm.bias",
                                       "cls.predictions.transform.LayerNorm.gamma",
                                       "cls.predictions.transform.LayerNorm.beta",
                                       "cls.seq_relationship.weight",
                                       "cls.seq_relationship.bias",
                                       "lm_head.bias",
                                       "lm_head.decoder.weight",
                                       "lm_head.decoder.bias",
                                       "lm_head.dense.weight",
                                       "lm_head.dense.bias",
                                       "lm_head.layer_norm.weight",
                                       "lm_head.layer_norm.bias",
                                       "pooler.dense.weight",
                                       "pooler.dense.bias",
                                       "embeddings.position_ids",
                                       "embeddings.token_type_ids" };

static bool bert_is_mine(const json_t *config)
{
    return describe_has_type(config, "bert");
}

static bool roberta_is_mine(const json_t *config)
{
    return describe_has_type(config, "xlm-roberta") || describe_has_type(config, "roberta") ||
           describe_has_type(config, "camembert");
}

static const struct config_key KEYS[] = {
    { "is_decoder", "false" },
    { "is_causal", "false" },
    { "position_embedding_type", "\"absolute\"" },
    { "pooler_*", NULL }, /* of other heads */
    { "directionality", NULL },
    { "max_seq_length", NULL },
    { "gradient_checkpointing", NULL },
    { "sentence_transformers.version", NULL },
    { NULL, NULL },
};

/* Names of labels: how many a head has follows from its matrix, of which a cross-encoder's has one row. */
static const struct config_key GGUF_KEYS[] = {
    { "classifier.output_labels", NULL },
    { NULL, NULL },
};

/* The labels of a classification head: transformers' default is two. */
static int count_labels(struct config *c)
{
    const json_t *names = config_find(c, "id2label");
    enum { MOST_LABELS = 100000, DEFAULT_LABELS = 2 };
    return json_is_object(names) ? (int)json_object_size(names)
                                 : config_int_or(c, "num_labels", 1, MOST_LABELS, DEFAULT_LABELS);
}

/* sentence-transformers applies the sigmoid to the head's number, unless the file names another function. */
static void read_score_function(struct model_desc *d, struct config *c)
{
    const char *key = config_find(c, "sentence_transformers.activation_fn")
                          ? "sentence_transformers.activation_fn"
                          : "sbert_ce_default_activation_function";
    const char *name = config_string_or(c, key, "Sigmoid");
    const char *last = strrchr(name, '.') ? strrchr(name, '.') + 1 : name;
    d->has_raw_score = strcmp(last, "Identity") == 0;
    if (!d->has_raw_score && strcmp(last, "Sigmoid") != 0)
        config_unsupported(c, key, name);
}

/* A cross-encoder is a model for classification with one label; other heads are left out, as
 * sentence-transformers does. */
static void read_head(struct model_desc *d, struct config *c)
{
    static const char KIND[] = "ForSequenceClassification";
    const json_t *classes = config_find(c, "architectures");
    const char *name = json_string_value(json_array_get(classes, 0));
    const char *end = name ? strstr(name, KIND) : NULL;
    read_score_function(d, c);
    d->has_score = end && strcmp(end, KIND) == 0;
    if (d->has_score && count_labels(c) != 1)
        config_unsupported(
            c, "id2label",
            "a classifier with several labels; cross-encoders, which score pairs of texts, have "
            "one");
}

static void describe_hf(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->n_layers = config_int(c, "num_hidden_layers", 1, LIMIT_LAYERS);
    d->d_model = config_int(c, "hidden_size", 1, LIMIT_DIMENSION / 4);
    a->n_heads = a->n_kv_heads = config_int(c, "num_attention_heads", 1, LIMIT_DIMENSION);
    a->head_dim = d->d_model / a->n_heads;
    f->d_ff = config_int(c, "intermediate_size", 1, LIMIT_DIMENSION);
    d->n_vocab = config_int(c, "vocab_size", 1, LIMIT_VOCAB);
    d->n_ctx = config_int_or(c, "max_position_embeddings", 1, LIMIT_CONTEXT, 512) - d->first_position_row;
    d->n_segments = config_int_or(c, "type_vocab_size", 0, 16, 2);
    d->norm_eps = (float)config_float_or(c, "layer_norm_eps", 0, 1, 1e-12);
    f->activation = describe_activation(c, "hidden_act", "gelu", ACTIVATIONS_WITHOUT_GATE);
    config_bool_or(c, "tie_word_embeddings", true); /* of the head for masked tokens */
    read_head(d, c);
    if (d->n_ctx < 1)
        config_unsupported(c, "max_position_embeddings", "no position after those of padding");
    if (a->head_dim * a->n_heads != d->d_model)
        config_unsupported(c, "num_attention_heads", "a width that is no multiple of the heads");
}

static void describe_encoder(struct model_desc *d)
{
    d->norm = NORM_LAYER;
    d->has_embedding_norm = d->has_post_norms = d->norms_sums = d->has_no_pre_norms = true;
    d->has_learned_positions = d->has_prefix = d->is_encoder = true;
    d->prefix_end_id = d->mask_ids[0] = d->mask_ids[1] = -1;
    d->kinds[0].ffn.has_gate = false;
}

/* GGUF's architecture is that of both families; its file has the table of positions without the rows of
 * padding, and GELU is the one with erf. */
static void encoder_describe_gguf(struct model_desc *d, struct config *c)
{
    static const char CAUSAL[] = "attention.causal";
    describe_gguf(d, c);
    d->kinds[0].ffn.activation = ACT_GELU_ERF;
    if (config_bool_or(c, CAUSAL, false))
        config_unsupported(c, CAUSAL, "causal attention in an encoder");
}

static void finish_encoder(struct model_desc *d)
{
    struct attn_desc *a = &d->kinds[0].attn;
    d->tied_output = false;
    a->has_qkv_bias = a->has_out_bias = d->kinds[0].ffn.has_bias = true;
    a->rope = ROPE_NONE;
    a->rotary_dim = 0;
}

static void bert_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    describe_encoder(d);
    if (is_gguf)
        encoder_describe_gguf(d, c);
    else
        describe_hf(d, c);
    finish_encoder(d);
}

enum { N_PADDING_POSITIONS = 2 }; /* pad_token_id 1, and the rows up to it */

static void roberta_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    describe_encoder(d);
    if (is_gguf) {
        encoder_describe_gguf(d, c);
    } else {
        d->first_position_row = N_PADDING_POSITIONS;
        describe_hf(d, c);
        if (config_int_or(c, "pad_token_id", 0, LIMIT_VOCAB, 1) != N_PADDING_POSITIONS - 1)
            config_unsupported(c, "pad_token_id", "positions that begin at another row than 2");
    }
    finish_encoder(d);
}

/* No key of GGUF says these. */
static void find_parts(struct model_desc *d, const struct checkpoint *ck)
{
    const struct tensor *types = checkpoint_find(ck, "token_types.weight");
    d->n_segments = types && types->n_dims == 2 && types->shape[0] <= 16 ? (int)types->shape[0] : 0;
    d->has_score = checkpoint_find(ck, "cls.output.weight") != NULL;
}

static const char *find_gguf_fault(const struct model_desc *d)
{
    (void)d;
    return "model_type: an encoder";
}

const struct family FAMILY_BERT = {
    .name = "bert",
    .gguf_architecture = "bert",
    .is_mine = bert_is_mine,
    .keys = KEYS,
    .gguf_keys = GGUF_KEYS,
    .describe = bert_describe,
    .find_parts = find_parts,
    .find_gguf_fault = find_gguf_fault,
    .layouts = BERT_LAYOUTS,
    .n_layouts = sizeof BERT_LAYOUTS / sizeof *BERT_LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};

/* Its GGUF files have the architecture of BERT, whose family reads them. */
const struct family FAMILY_ROBERTA = {
    .name = "roberta",
    .gguf_architecture = "bert",
    .is_mine = roberta_is_mine,
    .keys = KEYS,
    .gguf_keys = GGUF_KEYS,
    .describe = roberta_describe,
    .find_parts = find_parts,
    .find_gguf_fault = find_gguf_fault,
    .layouts = ROBERTA_LAYOUTS,
    .n_layouts = sizeof ROBERTA_LAYOUTS / sizeof *ROBERTA_LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
