#!/usr/bin/env python3
"""Writes a GGUF file of a known shape with made-up weights, for comparing engines: speed does not depend on the values.

  make_shape.py OUT.gguf [--type q4_0|q8_0]

The shape is ChatGLM3-6B (28 layers, 4096 wide, 32 heads, 2 KV heads, feed-forward 13696, vocabulary 65024).
Needs the Python packages gguf and numpy.
"""
import argparse

import gguf
import numpy as np

LAYERS, WIDTH, FEED, VOCAB, QKV = 28, 4096, 13696, 65024, 4608


def blocks(rng, rows, cols, kind):
    """Random quantized rows: a scale of 0.01 in each block, any quants."""
    n_bytes = {"q4_0": 18, "q8_0": 34}[kind]
    one = rng.integers(0, 256, size=(64, cols // 32, n_bytes), dtype=np.uint8)
    one[:, :, 0:2] = np.array([0.01 if kind == "q4_0" else 0.0008], dtype=np.float16).view(np.uint8)
    return np.tile(one, ((rows + 63) // 64, 1, 1))[:rows].reshape(rows, -1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--type", default="q4_0", choices=["q4_0", "q8_0"])
    args = parser.parse_args()
    kind = {"q4_0": gguf.GGMLQuantizationType.Q4_0, "q8_0": gguf.GGMLQuantizationType.Q8_0}[args.type]
    rng = np.random.default_rng(1)
    w = gguf.GGUFWriter(args.out, "chatglm")
    w.add_name("chatglm3-6b shape")
    w.add_context_length(8192)
    w.add_embedding_length(WIDTH)
    w.add_feed_forward_length(FEED)
    w.add_block_count(LAYERS)
    w.add_head_count(32)
    w.add_head_count_kv(2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(64)
    w.add_rope_freq_base(10000.0)
    w.add_add_bos_token(False)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{i:02X}>".encode() for i in range(256)]
    tokens += [f"t{i}".encode() for i in range(VOCAB - len(tokens))]
    w.add_token_list(tokens)
    w.add_token_scores([-float(i) for i in range(VOCAB)])
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * (VOCAB - 259))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)

    def matrix(name, rows, cols):
        w.add_tensor(name, blocks(rng, rows, cols, args.type), raw_dtype=kind)

    def vector(name, n, value):
        w.add_tensor(name, np.full(n, value, dtype=np.float32))

    matrix("token_embd.weight", VOCAB, WIDTH)
    for i in range(LAYERS):
        vector(f"blk.{i}.attn_norm.weight", WIDTH, 1)
        matrix(f"blk.{i}.attn_qkv.weight", QKV, WIDTH)
        vector(f"blk.{i}.attn_qkv.bias", QKV, 0)
        matrix(f"blk.{i}.attn_output.weight", WIDTH, WIDTH)
        vector(f"blk.{i}.ffn_norm.weight", WIDTH, 1)
        matrix(f"blk.{i}.ffn_up.weight", 2 * FEED, WIDTH)
        matrix(f"blk.{i}.ffn_down.weight", WIDTH, FEED)
    vector("output_norm.weight", WIDTH, 1)
    matrix("output.weight", VOCAB, WIDTH)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
