/* Reads the configuration keys that most families share; each family's describe() adds its own. */
#ifndef TUTTI_MODEL_DESCRIPTION_DESCRIBE_H
#define TUTTI_MODEL_DESCRIPTION_DESCRIBE_H

#include "model/description/family.h"

/* The defaults of a family's class in transformers, for keys that config.json lacks. */
struct transformers_defaults {
    int n_kv_heads; /* 0: as many as heads */
    int head_dim;   /* 0: d_model / n_heads */
    int n_ctx;
    double norm_eps;
    double rotary_part; /* rotated part of each head; 0: the class always rotates whole heads */
    /* 0: the file must say it. */
    int n_heads, n_vocab;
    const char *layers_key;     /* NULL: "num_hidden_layers" */
    bool is_tied;               /* where the file does not say it */
    const char *activation_key; /* NULL: "hidden_act" */
    enum activation activation; /* where the file does not say it; the only one with a gate */
    const char *norm_key;       /* NULL: "rms_norm_eps" */
    double rope_theta;          /* 0: 10000 */
    bool has_older_longrope;    /* the class takes "su" and "yarn" for "longrope" */
    int original_n_ctx;         /* original_max_position_embeddings; 0: the file's max_position_embeddings */
    bool has_image_sections;    /* the rotary settings have mrope_section; "mrope" is "default" */
};

/* The keys of transformers' decoder classes since LLaMA: RMSNorm, grouped attention, rotary positions over
 * half-split heads, SwiGLU. Biases and windows are left to the family. */
void describe_transformers(struct model_desc *desc, struct config *c,
                           const struct transformers_defaults *defaults);

/* Reads layer_types: layers with and without a window become two kinds. Everything else must
 * already be set in kinds[0]. window: positions that a "sliding_attention" layer sees; 0: the file
 * sets none. first: the first sliding layer if layer_types is absent. */
void describe_layer_types(struct model_desc *desc, struct config *c, int window, int first);

/* The same for classes that have a window in all layers or in none and do not read layer_types, which must not
 * say otherwise. */
void describe_window_of_all(struct model_desc *desc, struct config *c, int window);

/* The defaults of a class with latent attention. value_dim 0: d_model / n_heads. */
struct latent_defaults {
    int q_rank, n_latent, n_unrotated, rotary_dim, value_dim;
};

/* Reads the keys of describe_transformers() and of latent attention into kinds[0], whose kind of rotary embedding the
 * family sets. */
void describe_latent(struct model_desc *desc, struct config *c, const struct transformers_defaults *decoder,
                     const struct latent_defaults *defaults);

/* Reads GGUF's keys of latent attention, after describe_gguf() with n_latent set. value_dim: where the file does not
 * say it. */
void describe_gguf_latent(struct model_desc *desc, struct config *c, int value_dim);

/* Writes the epsilon of the latents' norms if it is not that of the other norms. */
void describe_put_latent_epsilon(struct gguf_writer *w, const char *architecture,
                                 const struct model_desc *desc);

/* Gives experts to all layers but those of is_dense [n_layers] (NULL: to all), which keep the width d_ff of kinds[0].
 * Everything else must already be set, also the kinds of layers with and without a window. */
void describe_expert_layers(struct model_desc *desc, const struct expert_desc *experts,
                            const uint8_t *is_dense);

/* The same where the first n_dense layers have none. */
void describe_first_dense(struct model_desc *desc, const struct expert_desc *experts, int n_dense);

/* How many layers without experts come first. */
int describe_count_dense(const struct model_desc *desc);

/* The width of n shared experts of width d_expert together, at most LIMIT_DIMENSION. */
int describe_shared_width(int n, int d_expert);

/* Finds whether layers with experts have a bias of the choice, for which GGUF has no key, by the tensors. */
void describe_find_choice_bias(struct model_desc *desc, const struct checkpoint *ck);

/* Reads how many layers for multi-token prediction follow the others. */
void describe_mtp(struct model_desc *desc, struct config *c);

/* Reads the keys of GGUF that name the number of experts and of those that a row uses. To be called
 * before describe_gguf(), which refuses experts otherwise. */
void describe_gguf_experts(struct model_desc *desc, struct config *c);

/* The kind of the first layer without experts, or else with them; NULL: there is none. */
const struct layer_desc *describe_find_kind(const struct model_desc *desc, bool has_experts);

/* The same where every period-th layer is the first without the window if layer_types is absent. */
void describe_layer_periods(struct model_desc *desc, struct config *c, int window, int period);

/* The indexes of two kinds of layers; -1: no layer is of it. */
struct layer_split {
    int plain, marked;
};

/* Makes two kinds, copies of kinds[0], of layers that are marked and others. marks: [n_layers] */
struct layer_split describe_split(struct model_desc *desc, const bool *marks);

/* Reads transformers' rotary settings into kinds[0]: rope_theta at top level, rope_scaling and
 * rope_parameters. Needs head_dim and n_ctx. */
void describe_rotation(struct model_desc *desc, struct config *c,
                       const struct transformers_defaults *defaults);

/* Reads rope_theta and the scaling from an object of rotary settings into kinds[0]. object: its path. */
void describe_rope(struct model_desc *desc, struct config *c, const char *object,
                   const struct transformers_defaults *defaults);

/* Reads what rope_parameters says for each kind of layers, if it does: that of layers without a window into
 * kinds[0]. To be called after describe_rotation(). local: rope_theta of layers with a window where that does not
 * say it. Returns what it is. */
double describe_kinds_rope(struct model_desc *desc, struct config *c,
                           const struct transformers_defaults *defaults, double local);

/* Layers with a window rotate with this rope_theta and without a scaling. To be called after the kinds are
 * split. */
void describe_window_rope(struct model_desc *desc, double theta);

enum {
    ACTIVATIONS_WITHOUT_GATE = 1 << ACT_GELU_TANH | 1 << ACT_GELU_SIGMOID | 1 << ACT_GELU_ERF | 1 << ACT_RELU
};

/* An activation by the names of transformers. Others than those of the bits 1 << activation are an
 * error. */
enum activation describe_activation(struct config *c, const char *key, const char *fallback,
                                    unsigned allowed);

/* The activation in GGUF of architectures whose GELU llama.cpp always computes by tanh: tutti's own key for any other. */
#define GGUF_ACTIVATION "hidden_act"
void describe_gguf_activation(struct model_desc *desc, struct config *c);
void describe_put_activation(struct gguf_writer *w, const char *architecture, const struct model_desc *desc);

/* Which of two names of one setting the file has. It may have both if their values are equal. */
const char *describe_either(struct config *c, const char *key, const char *alias);

/* Checks auto_map: code in the folder may implement another model under a known name. prefix: how
 * the class names of the authors' own code begin, several with "|" between them; NULL: they published none. */
void describe_code(struct config *c, const char *family, const char *prefix);

/* Reads the keys that GGUF's architectures share under their prefix. desc->norm must be set. The
 * family sets the kind of rotary embedding itself. */
void describe_gguf(struct model_desc *desc, struct config *c);

/* The key of GGUF for image_sections, to be listed in gguf_keys. */
#define GGUF_IMAGE_SECTIONS "rope.dimension_sections"

/* Reads and writes it. The pairs of rotary dimensions must be known. */
void describe_gguf_image_sections(struct model_desc *desc, struct config *c);
void describe_put_image_sections(struct gguf_writer *w, const char *architecture,
                                 const struct model_desc *desc);

/* Whether config.json's model_type is this one. */
bool describe_has_type(const json_t *config, const char *model_type);

/* The first class of config.json's architectures. NULL: it names none. */
const char *describe_class(const json_t *config);

#endif
