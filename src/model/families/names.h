/* Tensor names that several families share, as initializers of struct tensor_names. */
#ifndef TUTTI_MODEL_FAMILIES_NAMES_H
#define TUTTI_MODEL_FAMILIES_NAMES_H

/* transformers' decoders since LLaMA. */
#define NAMES_TRANSFORMERS                                                                                   \
    .embedding = "model.embed_tokens.weight", .output = "lm_head.weight",                                    \
    .output_norm = "model.norm.weight", .attn_norm = "model.layers.%d.input_layernorm.weight",               \
    .ffn_norm = "model.layers.%d.post_attention_layernorm.weight",                                           \
    .qkv = { "model.layers.%d.self_attn.q_proj.weight", "model.layers.%d.self_attn.k_proj.weight",           \
             "model.layers.%d.self_attn.v_proj.weight" },                                                    \
    .attn_out = "model.layers.%d.self_attn.o_proj.weight", .down = "model.layers.%d.mlp.down_proj.weight"

#define NAMES_TRANSFORMERS_GATE_UP                                                                           \
    .gate_up = { "model.layers.%d.mlp.gate_proj.weight", "model.layers.%d.mlp.up_proj.weight" }

/* MindFormers: LLaMA and the families with the same layout. Fused tensors hold q, k, v (gate, up)
 * one after the other. */
#define NAMES_MINDFORMERS                                                                                    \
    .embedding = "model.tok_embeddings.embedding_weight", .output = "lm_head.weight",                        \
    .output_norm = "model.norm_out.weight", .attn_norm = "model.layers.%d.attention_norm.weight",            \
    .ffn_norm = "model.layers.%d.ffn_norm.weight", .attn_out = "model.layers.%d.attention.wo.weight",        \
    .down = "model.layers.%d.feed_forward.w2.weight"

#define NAMES_MINDFORMERS_SPLIT                                                                              \
    .qkv = { "model.layers.%d.attention.wq.weight", "model.layers.%d.attention.wk.weight",                   \
             "model.layers.%d.attention.wv.weight" },                                                        \
    .gate_up = { "model.layers.%d.feed_forward.w1.weight", "model.layers.%d.feed_forward.w3.weight" }
#define NAMES_MINDFORMERS_FUSED                                                                              \
    .qkv = { "model.layers.%d.attention.w_qkv.weight" },                                                     \
    .gate_up = { "model.layers.%d.feed_forward.w_gate_hidden.weight" }

/* MindFormers: GPT-2 and BLOOM. Its projections are stored as [in][out]; q, k and v are not. */
#define NAMES_MINDFORMERS_BLOCK(prefix)                                                                      \
    .attn_norm = prefix "layernorm1.gamma", .ffn_norm = prefix "layernorm2.gamma",                           \
    .qkv = { prefix "attention.dense1.weight", prefix "attention.dense2.weight",                             \
             prefix "attention.dense3.weight" },                                                             \
    .attn_out = prefix "attention.projection.weight", .gate_up = { prefix "output.mapping.weight" },         \
    .down = prefix "output.projection.weight", .transposed = TRANSPOSED_ATTN_OUT | TRANSPOSED_MLP

/* GGUF: names of all architectures, then the split and fused variants of q, k, v, and of gate and
 * up. */
#define NAMES_GGUF                                                                                           \
    .embedding = "token_embd.weight", .output = "output.weight", .output_norm = "output_norm.weight",        \
    .attn_norm = "blk.%d.attn_norm.weight", .ffn_norm = "blk.%d.ffn_norm.weight",                            \
    .attn_out = "blk.%d.attn_output.weight", .down = "blk.%d.ffn_down.weight", .is_gguf = true

#define NAMES_GGUF_SPLIT_QKV .qkv = { "blk.%d.attn_q.weight", "blk.%d.attn_k.weight", "blk.%d.attn_v.weight" }
#define NAMES_GGUF_FUSED_QKV .qkv = { "blk.%d.attn_qkv.weight" }
#define NAMES_GGUF_GATE_UP   .gate_up = { "blk.%d.ffn_gate.weight", "blk.%d.ffn_up.weight" }
#define NAMES_GGUF_UP        .gate_up = { "blk.%d.ffn_up.weight" }

#endif
