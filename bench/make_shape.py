#!/usr/bin/env python3
"""Writes a GGUF file of a published shape with random weights, for comparing engines: speed does not depend on the values.

  make_shape.py OUT.gguf [--type q4_0|q8_0] [--shape chatglm3-6b] [--layers N]

Shapes: chatglm3-6b, llama-3.2-3b, qwen2.5-1.5b, llama-3.2-1b, tinyllama-1.1b, qwen2.5-0.5b, phi-4-mini, gemma-3-4b,
qwen3-30b-a3b, deepseek-v2-lite, glm-4.7-flash, gpt-oss-20b, whose experts are in MXFP4 whatever the type of its other weights.
The vocabulary has their size, but consists of bytes, so that every text can be read, and words for the rest. --layers: of
the first N layers only; llama.cpp takes DeepSeek-V2-Lite by its 27 layers, so that one needs all.
Needs the Python packages gguf and numpy.
"""
import argparse

import gguf
import numpy as np

#               architecture layers width  feed  heads kv  head  vocabulary context base     eps   tied
SHAPES = {
    "chatglm3-6b": ("chatglm", 28, 4096, 13696, 32, 2, 128, 65024, 8192, 10000, 1e-5, False),
    "llama-3.2-3b": ("llama", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 500000, 1e-5, True),
    "qwen2.5-1.5b": ("qwen2", 28, 1536, 8960, 12, 2, 128, 151936, 32768, 1000000, 1e-6, True),
    "llama-3.2-1b": ("llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 500000, 1e-5, True),
    "tinyllama-1.1b": ("llama", 22, 2048, 5632, 32, 4, 64, 32000, 2048, 10000, 1e-5, False),
    "qwen2.5-0.5b": ("qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, 1000000, 1e-6, True),
    "phi-4-mini": ("phi3", 32, 3072, 8192, 24, 8, 128, 200064, 131072, 10000, 1e-5, True),
    "gemma-3-4b": ("gemma3", 34, 2560, 10240, 8, 4, 256, 262208, 131072, 1000000, 1e-6, True),
    "qwen3-30b-a3b": ("qwen3moe", 48, 2048, 6144, 32, 4, 128, 151936, 40960, 1000000, 1e-6, False),
    "deepseek-v2-lite": ("deepseek2", 27, 2048, 10944, 16, 1, 192, 102400, 163840, 10000, 1e-6, False),
    "glm-4.7-flash": ("deepseek2", 47, 2048, 10240, 20, 1, 256, 154880, 202752, 1000000, 1e-5, False),
    "gpt-oss-20b": ("gpt-oss", 24, 2880, 2880, 64, 8, 64, 201088, 131072, 150000, 1e-5, False),
}
#          experts chosen feed shared dense sigmoid scale
EXPERTS = {
    "qwen3-30b-a3b": (128, 8, 768, 0, 0, False, 0),
    "deepseek-v2-lite": (64, 6, 1408, 2, 1, False, 1.0),
    "glm-4.7-flash": (64, 4, 1536, 1, 1, True, 1.8),
    "gpt-oss-20b": (32, 4, 2880, 0, 0, False, 0),
}
#          latent, rank of queries, unrotated, rotary, values of a head
LATENTS = {"deepseek-v2-lite": (512, 0, 128, 64, 128), "glm-4.7-flash": (512, 768, 192, 64, 256)}
WINDOWS = {"gpt-oss-20b": 128, "gemma-3-4b": 1024, "phi-4-mini": 262144}
GEMMA_PERIOD = 6
TYPES = {"q4_0": gguf.GGMLQuantizationType.Q4_0, "q8_0": gguf.GGMLQuantizationType.Q8_0,
         "mxfp4": gguf.GGMLQuantizationType.MXFP4}


def blocks(rng, rows, cols, kind, different, gain):
    """Random quantized rows, of which so many are different. Quants are symmetric about 0, and products are about gain times
    as large as inputs."""
    n_bytes, spread = {"q4_0": (18, 4.32), "q8_0": (34, 73.3), "mxfp4": (17, 5.6)}[kind]
    one = np.empty((different, cols // 32, n_bytes), dtype=np.uint8)
    scale = gain / (spread * cols ** 0.5)
    if kind == "mxfp4":  # a power of two, then numbers of four bits
        one[:, :, 0] = 127 + round(np.log2(scale))
        one[:, :, 1:] = rng.integers(0, 256, size=(different, cols // 32, 16), dtype=np.uint8)
        return np.tile(one, ((rows + different - 1) // different, 1, 1))[:rows].reshape(rows, -1)
    if kind == "q4_0":
        numbers = rng.integers(1, 16, size=(2, different, cols // 32, 16), dtype=np.uint8)
        one[:, :, 2:] = numbers[0] | numbers[1] << 4
    else:
        one[:, :, 2:] = rng.integers(-127, 128, size=(different, cols // 32, 32), dtype=np.int8).view(np.uint8)
    one[:, :, 0:2] = np.array([scale], dtype=np.float16).view(np.uint8)
    return np.tile(one, ((rows + different - 1) // different, 1, 1))[:rows].reshape(rows, -1)


def describe(w, shape, arch, layers, width, feed, heads, kv_heads, head, vocab, context, base, eps):
    w.add_name(shape + " shape")
    w.add_context_length(context)
    w.add_embedding_length(width)
    w.add_feed_forward_length(feed)
    w.add_block_count(layers)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_layer_norm_rms_eps(eps)
    rotary = {"chatglm": head // 2, "phi3": head * 3 // 4}.get(arch, head)
    w.add_rope_dimension_count(LATENTS[shape][3] if shape in LATENTS else rotary)
    if arch in ("qwen3moe", "gemma3", "gpt-oss"):
        w.add_key_length(head)
        w.add_value_length(head)
    if shape in WINDOWS:
        w.add_sliding_window(WINDOWS[shape])
    if arch == "gpt-oss":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(32.0)
        w.add_rope_scaling_orig_ctx_len(4096)
    if arch == "gemma3":
        w.add_sliding_window_pattern(GEMMA_PERIOD)
        w.add_rope_freq_base_swa(10000.0)
    if shape in EXPERTS:
        experts, chosen, expert_feed, shared, dense, sigmoid, scale = EXPERTS[shape]
        w.add_expert_count(experts)
        w.add_expert_used_count(chosen)
        w.add_expert_feed_forward_length(expert_feed)
        if arch == "deepseek2":
            w.add_expert_shared_count(shared)
            w.add_leading_dense_block_count(dense)
            w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
            w.add_expert_weights_scale(scale)
            w.add_expert_weights_norm(sigmoid)
    if shape in LATENTS:
        latent, rank, unrotated, rotary, value = LATENTS[shape]
        w.add_vocab_size(vocab)
        w.add_kv_lora_rank(latent)
        if rank:
            w.add_q_lora_rank(rank)
        w.add_key_length(latent + rotary)
        w.add_value_length(latent)
        w.add_key_length_mla(unrotated + rotary)
        w.add_value_length_mla(value)
    w.add_rope_freq_base(float(base))
    w.add_add_bos_token(False)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{i:02X}>".encode() for i in range(256)]
    tokens += [f"t{i}".encode() for i in range(vocab - len(tokens))]
    w.add_token_list(tokens)
    w.add_token_scores([-float(i) for i in range(vocab)])
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * (vocab - 259))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)


class Writer:
    """Adds the tensors of a file."""

    def __init__(self, file, kind):
        self.file, self.kind, self.rng = file, kind, np.random.default_rng(1)

    def matrix(self, name, rows, cols, count=0, different=1024, gain=1, kind=None):
        """count: of matrices in one tensor; 0: one of two dimensions. kind: None: that of the file"""
        kind = kind or self.kind
        data = blocks(self.rng, rows * max(count, 1), cols, kind, different, gain)
        self.file.add_tensor(name, data.reshape(count, rows, -1) if count else data, raw_dtype=TYPES[kind])

    def vector(self, name, n, value, count=0):
        self.file.add_tensor(name, np.full((count, n) if count else n, value, dtype=np.float32))

    def router(self, at, shape, width):
        experts, sigmoid = EXPERTS[shape][0], EXPERTS[shape][5]
        values = self.rng.standard_normal((experts, width), dtype=np.float32) / np.float32(width) ** 0.5
        self.file.add_tensor(f"{at}.ffn_gate_inp.weight", values)
        if sigmoid:
            self.vector(f"{at}.exp_probs_b.bias", experts, 0)
        if shape.startswith("gpt-oss"):
            self.vector(f"{at}.ffn_gate_inp.bias", experts, 0)


def add_latent_attention(w, at, shape, width, heads):
    latent, rank, unrotated, rotary, value = LATENTS[shape]
    queries = heads * (unrotated + rotary)
    if rank:
        w.matrix(f"{at}.attn_q_a.weight", rank, width)
        w.vector(f"{at}.attn_q_a_norm.weight", rank, 1)
        w.matrix(f"{at}.attn_q_b.weight", queries, rank)
    else:
        w.matrix(f"{at}.attn_q.weight", queries, width)
    w.matrix(f"{at}.attn_kv_a_mqa.weight", latent + rotary, width)
    w.vector(f"{at}.attn_kv_a_norm.weight", latent, 1)
    w.matrix(f"{at}.attn_k_b.weight", latent, unrotated, count=heads)
    w.matrix(f"{at}.attn_v_b.weight", value, latent, count=heads)
    w.matrix(f"{at}.attn_output.weight", width, heads * value)


def add_attention(w, at, arch, width, heads, kv_heads, head):
    n_q, n_kv = heads * head, kv_heads * head
    parts = {"qkv": n_q + 2 * n_kv} if arch in ("chatglm", "phi3") else {"q": n_q, "k": n_kv, "v": n_kv}
    for name, rows in parts.items():
        w.matrix(f"{at}.attn_{name}.weight", rows, width)
        if arch in ("chatglm", "qwen2", "gpt-oss"):
            w.vector(f"{at}.attn_{name}.bias", rows, 0)
    for name in ("q", "k") if arch in ("qwen3moe", "gemma3") else ():
        w.vector(f"{at}.attn_{name}_norm.weight", head, 1)
    w.matrix(f"{at}.attn_output.weight", width, n_q)
    if arch == "gpt-oss":
        w.vector(f"{at}.attn_output.bias", width, 0)
        w.vector(f"{at}.attn_sinks.weight", heads, 0)


def add_ffn(w, at, arch, width, feed, suffix=""):
    if arch in ("chatglm", "phi3"):
        w.matrix(f"{at}.ffn_up.weight", 2 * feed, width)
    else:
        w.matrix(f"{at}.ffn_gate{suffix}.weight", feed, width)
        w.matrix(f"{at}.ffn_up{suffix}.weight", feed, width)
    w.matrix(f"{at}.ffn_down{suffix}.weight", width, feed)


def add_experts(w, at, arch, shape, width):
    experts, _, feed, shared = EXPERTS[shape][:4]
    w.router(at, shape, width)
    for name, rows, cols in (("gate", feed, width), ("up", feed, width), ("down", width, feed)):
        w.matrix(f"{at}.ffn_{name}_exps.weight", rows, cols, count=experts, kind="mxfp4" if arch == "gpt-oss" else None)
        if arch == "gpt-oss":
            w.vector(f"{at}.ffn_{name}_exps.bias", rows, 0, count=experts)
    if shared:
        add_ffn(w, at, arch, width, shared * feed, "_shexp")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--type", default="q4_0", choices=["q4_0", "q8_0"])
    parser.add_argument("--shape", default="chatglm3-6b", choices=list(SHAPES))
    parser.add_argument("--layers", type=int)
    args = parser.parse_args()
    arch, layers, width, feed, heads, kv_heads, head, vocab, context, base, eps, tied = SHAPES[args.shape]
    layers = min(args.layers or layers, layers)
    file = gguf.GGUFWriter(args.out, arch, use_temp_file=True)
    describe(file, args.shape, arch, layers, width, feed, heads, kv_heads, head, vocab, context, base, eps)
    w = Writer(file, args.type)
    # Different and large rows: tokens then choose different experts, whatever the layers before added.
    w.matrix("token_embd.weight", vocab, width, different=4096, gain=2 * width ** 0.5)
    for i in range(layers):
        at = f"blk.{i}"
        w.vector(f"{at}.attn_norm.weight", width, 1)
        if args.shape in LATENTS:
            add_latent_attention(w, at, args.shape, width, heads)
        else:
            add_attention(w, at, arch, width, heads, kv_heads, head)
        if arch != "gpt-oss":
            w.vector(f"{at}.ffn_norm.weight", width, 1)
        for name in {"gemma3": ("post_attention", "post_ffw"), "gpt-oss": ("post_attention",)}.get(arch, ()):
            w.vector(f"{at}.{name}_norm.weight", width, 1)
        if args.shape in EXPERTS and i >= EXPERTS[args.shape][4]:
            add_experts(w, at, arch, args.shape, width)
        else:
            add_ffn(w, at, arch, width, feed)
    w.vector("output_norm.weight", width, 1)
    if not tied:
        w.matrix("output.weight", vocab, width)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


if __name__ == "__main__":
    main()
