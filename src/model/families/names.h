/* Tensor names that several families share, as initializers of struct tensor_names. */
#ifndef TUTTI_MODEL_FAMILIES_NAMES_H
#define TUTTI_MODEL_FAMILIES_NAMES_H

/* transformers' decoders since LLaMA; and without q, k, v, or without the feed-forward block. */
#define NAMES_TRANSFORMERS         NAMES_TRANSFORMERS_BUT_MLP, NAMES_TRANSFORMERS_DOWN
#define NAMES_TRANSFORMERS_BUT_QKV NAMES_TRANSFORMERS_COMMON, NAMES_TRANSFORMERS_DOWN
#define NAMES_TRANSFORMERS_BUT_MLP                                                                           \
    NAMES_TRANSFORMERS_COMMON, .of[SLOT_QKV] = { "model.layers.%d.self_attn.q_proj.weight",                  \
                                                 "model.layers.%d.self_attn.k_proj.weight",                  \
                                                 "model.layers.%d.self_attn.v_proj.weight" }
#define NAMES_TRANSFORMERS_COMMON                                                                            \
    .of[SLOT_EMBEDDING] = { "model.embed_tokens.weight" }, .of[SLOT_OUTPUT] = { "lm_head.weight" },          \
    .of[SLOT_OUTPUT_NORM] = { "model.norm.weight" },                                                         \
    .of[SLOT_ATTN_NORM] = { "model.layers.%d.input_layernorm.weight" },                                      \
    .of[SLOT_FFN_NORM] = { "model.layers.%d.post_attention_layernorm.weight" },                              \
    .of[SLOT_ATTN_OUT] = { "model.layers.%d.self_attn.o_proj.weight" }
#define NAMES_TRANSFORMERS_DOWN .of[SLOT_DOWN] = { "model.layers.%d.mlp.down_proj.weight" }

/* Gemma since 2: norms before and after both blocks; without the matrices of the feed-forward block. */
#define NAMES_GEMMA_BUT_MLP                                                                                  \
    .of[SLOT_EMBEDDING] = { "model.embed_tokens.weight" }, .of[SLOT_OUTPUT] = { "lm_head.weight" },          \
    .of[SLOT_OUTPUT_NORM] = { "model.norm.weight" },                                                         \
    .of[SLOT_ATTN_NORM] = { "model.layers.%d.input_layernorm.weight" },                                      \
    .of[SLOT_ATTN_POST_NORM] = { "model.layers.%d.post_attention_layernorm.weight" },                        \
    .of[SLOT_FFN_NORM] = { "model.layers.%d.pre_feedforward_layernorm.weight" },                             \
    .of[SLOT_FFN_POST_NORM] = { "model.layers.%d.post_feedforward_layernorm.weight" },                       \
    .of[SLOT_QKV] = { "model.layers.%d.self_attn.q_proj.weight", "model.layers.%d.self_attn.k_proj.weight",  \
                      "model.layers.%d.self_attn.v_proj.weight" },                                           \
    .of[SLOT_ATTN_OUT] = { "model.layers.%d.self_attn.o_proj.weight" }
#define NAMES_GGUF_POST_NORMS                                                                                \
    .of[SLOT_ATTN_POST_NORM] = { "blk.%d.post_attention_norm.weight" },                                      \
    .of[SLOT_FFN_POST_NORM] = { "blk.%d.post_ffw_norm.weight" }

#define NAMES_TRANSFORMERS_GATE_UP                                                                           \
    .of[SLOT_GATE_UP] = { "model.layers.%d.mlp.gate_proj.weight", "model.layers.%d.mlp.up_proj.weight" }

/* MindFormers: LLaMA and the families with the same layout. Fused tensors hold q, k, v (gate, up)
 * one after the other. */
#define NAMES_MINDFORMERS                                                                                    \
    .of[SLOT_EMBEDDING] = { "model.tok_embeddings.embedding_weight" },                                       \
    .of[SLOT_OUTPUT] = { "lm_head.weight" }, .of[SLOT_OUTPUT_NORM] = { "model.norm_out.weight" },            \
    .of[SLOT_ATTN_NORM] = { "model.layers.%d.attention_norm.weight" },                                       \
    .of[SLOT_FFN_NORM] = { "model.layers.%d.ffn_norm.weight" },                                              \
    .of[SLOT_ATTN_OUT] = { "model.layers.%d.attention.wo.weight" },                                          \
    .of[SLOT_DOWN] = { "model.layers.%d.feed_forward.w2.weight" }

#define NAMES_MINDFORMERS_SPLIT                                                                              \
    .of[SLOT_QKV] = { "model.layers.%d.attention.wq.weight", "model.layers.%d.attention.wk.weight",          \
                      "model.layers.%d.attention.wv.weight" },                                               \
    .of[SLOT_GATE_UP] = { "model.layers.%d.feed_forward.w1.weight",                                          \
                          "model.layers.%d.feed_forward.w3.weight" }
#define NAMES_MINDFORMERS_FUSED                                                                              \
    .of[SLOT_QKV] = { "model.layers.%d.attention.w_qkv.weight" },                                            \
    .of[SLOT_GATE_UP] = { "model.layers.%d.feed_forward.w_gate_hidden.weight" }

/* GPT-2 and GPTBigCode. prefix: "transformer.", or none. */
#define NAMES_GPT2(prefix)                                                                                   \
    .of[SLOT_EMBEDDING] = { prefix "wte.weight" }, .of[SLOT_POSITIONS] = { prefix "wpe.weight" },            \
    .of[SLOT_OUTPUT] = { "lm_head.weight" }, .of[SLOT_OUTPUT_NORM] = { prefix "ln_f.weight" },               \
    .of[SLOT_ATTN_NORM] = { prefix "h.%d.ln_1.weight" }, .of[SLOT_FFN_NORM] = { prefix "h.%d.ln_2.weight" }, \
    .of[SLOT_QKV] = { prefix "h.%d.attn.c_attn.weight" },                                                    \
    .of[SLOT_ATTN_OUT] = { prefix "h.%d.attn.c_proj.weight" },                                               \
    .of[SLOT_GATE_UP] = { prefix "h.%d.mlp.c_fc.weight" },                                                   \
    .of[SLOT_DOWN] = { prefix "h.%d.mlp.c_proj.weight" }

/* MindFormers: GPT-2 and BLOOM. Its projections are stored as [in][out]; q, k and v are not. */
#define NAMES_MINDFORMERS_BLOCK(prefix)                                                                      \
    .of[SLOT_ATTN_NORM] = { prefix "layernorm1.gamma" }, .of[SLOT_FFN_NORM] = { prefix "layernorm2.gamma" }, \
    .of[SLOT_QKV] = { prefix "attention.dense1.weight", prefix "attention.dense2.weight",                    \
                      prefix "attention.dense3.weight" },                                                    \
    .of[SLOT_ATTN_OUT] = { prefix "attention.projection.weight" },                                           \
    .of[SLOT_GATE_UP] = { prefix "output.mapping.weight" },                                                  \
    .of[SLOT_DOWN] = { prefix "output.projection.weight" },                                                  \
    .transposed = TRANSPOSED_ATTN_OUT | TRANSPOSED_MLP

/* Norms of q and k: of each head, or of all heads together. */
#define NAMES_QK_NORMS                                                                                       \
    .of[SLOT_Q_NORM] = { "model.layers.%d.self_attn.q_norm.weight" },                                        \
    .of[SLOT_K_NORM] = { "model.layers.%d.self_attn.k_norm.weight" }
#define NAMES_GGUF_QK_NORMS                                                                                  \
    .of[SLOT_Q_NORM] = { "blk.%d.attn_q_norm.weight" }, .of[SLOT_K_NORM] = { "blk.%d.attn_k_norm.weight" }

/* Experts: a tensor for each, as published; or one for all of a layer, as transformers 5 has them in
 * memory. path: of the block within the layer. */
#define NAMES_EXPERTS(path, gate, up, down)                                                                  \
    .of[SLOT_EXPERT_GATE_UP] = { "model.layers.%d." path ".experts.%d." gate ".weight",                      \
                                 "model.layers.%d." path ".experts.%d." up ".weight" },                      \
    .of[SLOT_EXPERT_DOWN] = { "model.layers.%d." path ".experts.%d." down ".weight" }
#define NAMES_EXPERTS_MERGED                                                                                 \
    .of[SLOT_EXPERT_GATE_UP] = { "model.layers.%d.mlp.experts.gate_up_proj" },                               \
    .of[SLOT_EXPERT_DOWN] = { "model.layers.%d.mlp.experts.down_proj" }
#define NAMES_SHARED(name)                                                                                   \
    .of[SLOT_SHARED_GATE_UP] = { "model.layers.%d.mlp." name ".gate_proj.weight",                            \
                                 "model.layers.%d.mlp." name ".up_proj.weight" },                            \
    .of[SLOT_SHARED_DOWN] = { "model.layers.%d.mlp." name ".down_proj.weight" }

/* Latent attention. Keys and values of a head are one after the other in kv_b_proj. */
#define NAMES_LATENT_OF(name) "model.layers.%d.self_attn." name ".weight"
#define NAMES_LATENT                                                                                         \
    .of[SLOT_LATENT_Q] = { NAMES_LATENT_OF("q_proj") }, .of[SLOT_Q_A] = { NAMES_LATENT_OF("q_a_proj") },     \
    .of[SLOT_Q_A_NORM] = { NAMES_LATENT_OF("q_a_layernorm") },                                               \
    .of[SLOT_Q_B] = { NAMES_LATENT_OF("q_b_proj") },                                                         \
    .of[SLOT_KV_A] = { NAMES_LATENT_OF("kv_a_proj_with_mqa") },                                              \
    .of[SLOT_KV_A_NORM] = { NAMES_LATENT_OF("kv_a_layernorm") },                                             \
    .of[SLOT_K_UP] = { NAMES_LATENT_OF("kv_b_proj") }, .of[SLOT_V_UP] = { NAMES_LATENT_OF("kv_b_proj") },    \
    .has_fused_up = true
#define NAMES_GGUF_LATENT                                                                                    \
    .of[SLOT_LATENT_Q] = { "blk.%d.attn_q.weight" }, .of[SLOT_Q_A] = { "blk.%d.attn_q_a.weight" },           \
    .of[SLOT_Q_A_NORM] = { "blk.%d.attn_q_a_norm.weight" }, .of[SLOT_Q_B] = { "blk.%d.attn_q_b.weight" },    \
    .of[SLOT_KV_A] = { "blk.%d.attn_kv_a_mqa.weight" },                                                      \
    .of[SLOT_KV_A_NORM] = { "blk.%d.attn_kv_a_norm.weight" }

/* The layer for multi-token prediction, in addition to the tensors of a layer. */
#define NAMES_MTP                                                                                            \
    .of[SLOT_MTP_EMBEDDING] = { "model.layers.%d.embed_tokens.weight" },                                     \
    .of[SLOT_MTP_EMBEDDING_NORM] = { "model.layers.%d.enorm.weight" },                                       \
    .of[SLOT_MTP_HIDDEN_NORM] = { "model.layers.%d.hnorm.weight" },                                          \
    .of[SLOT_MTP_JOIN] = { "model.layers.%d.eh_proj.weight" },                                               \
    .of[SLOT_MTP_OUTPUT_NORM] = { "model.layers.%d.shared_head.norm.weight" },                               \
    .of[SLOT_MTP_OUTPUT] = { "model.layers.%d.shared_head.head.weight" }
#define NAMES_GGUF_MTP                                                                                       \
    .of[SLOT_MTP_EMBEDDING] = { "blk.%d.nextn.embed_tokens.weight" },                                        \
    .of[SLOT_MTP_EMBEDDING_NORM] = { "blk.%d.nextn.enorm.weight" },                                          \
    .of[SLOT_MTP_HIDDEN_NORM] = { "blk.%d.nextn.hnorm.weight" },                                             \
    .of[SLOT_MTP_JOIN] = { "blk.%d.nextn.eh_proj.weight" },                                                  \
    .of[SLOT_MTP_OUTPUT_NORM] = { "blk.%d.nextn.shared_head_norm.weight" },                                  \
    .of[SLOT_MTP_OUTPUT] = { "blk.%d.nextn.shared_head_head.weight" }

/* GGUF: names of all architectures, then the split and fused variants of q, k, v, and of gate and
 * up. */
#define NAMES_GGUF              NAMES_GGUF_BUT_FFN_NORM, .of[SLOT_FFN_NORM] = { "blk.%d.ffn_norm.weight" }
#define NAMES_GGUF_BUT_FFN_NORM NAMES_GGUF_BUT_NORMS, .of[SLOT_ATTN_NORM] = { "blk.%d.attn_norm.weight" }
#define NAMES_GGUF_BUT_NORMS                                                                                 \
    .of[SLOT_EMBEDDING] = { "token_embd.weight" }, .of[SLOT_OUTPUT] = { "output.weight" },                   \
    .of[SLOT_OUTPUT_NORM] = { "output_norm.weight" }, .of[SLOT_ATTN_OUT] = { "blk.%d.attn_output.weight" },  \
    .of[SLOT_DOWN] = { "blk.%d.ffn_down.weight" }, .is_gguf = true

#define NAMES_GGUF_SPLIT_QKV                                                                                 \
    .of[SLOT_QKV] = { "blk.%d.attn_q.weight", "blk.%d.attn_k.weight", "blk.%d.attn_v.weight" }
#define NAMES_GGUF_FUSED_QKV .of[SLOT_QKV] = { "blk.%d.attn_qkv.weight" }
/* A file's layouts with these names: q, k and v apart, as tutti writes them, or in one tensor, as llama.cpp's
 * converter does on request (--fuse-qkv). */
#define LAYOUTS_GGUF(...)                                                                                    \
    { __VA_ARGS__, NAMES_GGUF_SPLIT_QKV },                                                                   \
    {                                                                                                        \
        __VA_ARGS__, NAMES_GGUF_FUSED_QKV, .is_only_read = true                                              \
    }
#define NAMES_GGUF_GATE_UP .of[SLOT_GATE_UP] = { "blk.%d.ffn_gate.weight", "blk.%d.ffn_up.weight" }
#define NAMES_GGUF_EXPERTS                                                                                   \
    .of[SLOT_EXPERT_GATE_UP] = { "blk.%d.ffn_gate_exps.weight", "blk.%d.ffn_up_exps.weight" },               \
    .of[SLOT_EXPERT_DOWN] = { "blk.%d.ffn_down_exps.weight" }
/* The same with the rows of gate and up in one tensor (llama.cpp's converter: --fuse-gate-up-exps). */
#define NAMES_GGUF_EXPERTS_FUSED                                                                             \
    .of[SLOT_EXPERT_GATE_UP] = { "blk.%d.ffn_gate_up_exps.weight" },                                         \
    .of[SLOT_EXPERT_DOWN] = { "blk.%d.ffn_down_exps.weight" }
#define NAMES_GGUF_SHARED                                                                                    \
    .of[SLOT_SHARED_GATE_UP] = { "blk.%d.ffn_gate_shexp.weight", "blk.%d.ffn_up_shexp.weight" },             \
    .of[SLOT_SHARED_DOWN] = { "blk.%d.ffn_down_shexp.weight" }
#define NAMES_GGUF_UP .of[SLOT_GATE_UP] = { "blk.%d.ffn_up.weight" }

#endif
