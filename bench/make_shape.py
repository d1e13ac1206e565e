#!/usr/bin/env python3
"""Writes a GGUF file of a published shape with made-up weights, for comparing engines: speed does not depend on the values.

  make_shape.py OUT.gguf [--type q4_0|q8_0] [--shape chatglm3-6b]

Shapes: chatglm3-6b, llama-3.2-3b, qwen2.5-1.5b, llama-3.2-1b, tinyllama-1.1b, qwen2.5-0.5b. The vocabulary has their size, but is
made up too: bytes, so that every text can be read, and words for the rest.
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
}
TYPES = {"q4_0": gguf.GGMLQuantizationType.Q4_0, "q8_0": gguf.GGMLQuantizationType.Q8_0}


def blocks(rng, rows, cols, kind):
    """Random quantized rows: a scale of 0.01 in each block, any quants."""
    n_bytes = {"q4_0": 18, "q8_0": 34}[kind]
    one = rng.integers(0, 256, size=(64, cols // 32, n_bytes), dtype=np.uint8)
    one[:, :, 0:2] = np.array([0.01 if kind == "q4_0" else 0.0008], dtype=np.float16).view(np.uint8)
    return np.tile(one, ((rows + 63) // 64, 1, 1))[:rows].reshape(rows, -1)


def describe(w, shape, arch, layers, width, feed, heads, kv_heads, head, vocab, context, base, eps):
    w.add_name(shape + " shape")
    w.add_context_length(context)
    w.add_embedding_length(width)
    w.add_feed_forward_length(feed)
    w.add_block_count(layers)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_layer_norm_rms_eps(eps)
    w.add_rope_dimension_count(head // 2 if arch == "chatglm" else head)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--type", default="q4_0", choices=list(TYPES))
    parser.add_argument("--shape", default="chatglm3-6b", choices=list(SHAPES))
    args = parser.parse_args()
    arch, layers, width, feed, heads, kv_heads, head, vocab, context, base, eps, tied = SHAPES[args.shape]
    rng = np.random.default_rng(1)
    w = gguf.GGUFWriter(args.out, arch, use_temp_file=True)
    describe(w, args.shape, arch, layers, width, feed, heads, kv_heads, head, vocab, context, base, eps)

    def matrix(name, rows, cols):
        w.add_tensor(name, blocks(rng, rows, cols, args.type), raw_dtype=TYPES[args.type])

    def vector(name, n, value):
        w.add_tensor(name, np.full(n, value, dtype=np.float32))

    n_q, n_kv = heads * head, kv_heads * head
    matrix("token_embd.weight", vocab, width)
    for i in range(layers):
        vector(f"blk.{i}.attn_norm.weight", width, 1)
        parts = {"qkv": n_q + 2 * n_kv} if arch == "chatglm" else {"q": n_q, "k": n_kv, "v": n_kv}
        for name, rows in parts.items():
            matrix(f"blk.{i}.attn_{name}.weight", rows, width)
            if arch != "llama":
                vector(f"blk.{i}.attn_{name}.bias", rows, 0)
        matrix(f"blk.{i}.attn_output.weight", width, n_q)
        vector(f"blk.{i}.ffn_norm.weight", width, 1)
        if arch == "chatglm":
            matrix(f"blk.{i}.ffn_up.weight", 2 * feed, width)
        else:
            matrix(f"blk.{i}.ffn_gate.weight", feed, width)
            matrix(f"blk.{i}.ffn_up.weight", feed, width)
        matrix(f"blk.{i}.ffn_down.weight", width, feed)
    vector("output_norm.weight", width, 1)
    if not tied:
        matrix("output.weight", vocab, width)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
