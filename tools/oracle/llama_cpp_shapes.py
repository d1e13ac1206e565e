#!/usr/bin/env python3
"""Writes tiny random models of the sizes that llama.cpp's loaders expect, with golden logits of transformers.

  llama_cpp_shapes.py OUT [--only NAME,...]

The models of tests/fixtures have unusual sizes. llama.cpp refuses some of them by assumptions of its own (a number of
layers, heads as wide as the model), which every published model of these families meets. These do, for
compare_conversion.py.
"""
import argparse
import os
import sys

import torch
from safetensors.torch import save_file

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "fixtures"))
import family_fixtures as families
import reference

# name: (fixture, changes)
SHAPES = {
    # Only models of 26 and 27 layers may have no rank of queries.
    "deepseek-v2-lite": ("deepseek-v2-lite-tiny", {"num_hidden_layers": 27}),
    # Groups of experts are always chosen by the sum of their two best scores, not as DeepSeek-V2 does.
    "deepseek-v2": ("deepseek-v2-tiny", {"n_group": 1, "topk_group": 1, "topk_method": "greedy"}),
    # The output of attention is as wide as the model.
    "exaone4": ("exaone4-tiny", {"head_dim": 16}),
    "exaone4-32b": ("exaone4-tiny-hybrid", {"head_dim": 16, "num_hidden_layers": 64,
                                            "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16}),
    "glm": ("glm-tiny", {"head_dim": 16, "rope_theta": 10000.0, "rms_norm_eps": 1e-05}),
    "smollm3": ("smollm3-tiny", {}),
    # The window is that of Gemma's first sizes unless the file says otherwise; the pattern is fixed.
    "gemma3-6": ("gemma3-tiny", {"num_hidden_layers": 7, "sliding_window_pattern": 6}),
    # Baichuan rotates if it has 32 layers, and has ALiBi if it has 40.
    "baichuan-7b": ("baichuan-7b-tiny", {"num_hidden_layers": 32}),
    "baichuan2-7b": ("baichuan2-tiny", {"num_hidden_layers": 32}),
    # The epsilon of Qwen2-VL's norms is not read, and is 0.
    "qwen2-vl-small-epsilon": ("qwen2-vl-tiny", {"rms_norm_eps": 1e-12}),
    # YaRN's ramp always begins and ends at whole dimensions, gpt-oss' does not (truncate).
    "gpt-oss-truncated": ("gpt-oss-tiny", {"rope_scaling": {**families.GPT_OSS["rope_scaling"], "truncate": True}}),
    "gpt-oss-no-yarn": ("gpt-oss-tiny", {"rope_scaling": {"rope_type": "default"}}),
    "falcon-one-kv": ("falcon-tiny", {"num_kv_heads": 1}),
    "gpt2": ("gpt2-tiny", {"n_inner": None}),
    "mistral-no-window": ("mistral-tiny", {"sliding_window": None}),
    "mistral-nemo": ("mistral-tiny", {"sliding_window": None, "head_dim": 24}),
    "qwen3-no-window": ("qwen3-tiny", {}),
    "phi3-no-window": ("phi3-tiny", {"sliding_window": None}),
    "phi3-window": ("phi3-tiny", {}),
    "starcoder2-no-window": ("starcoder2-tiny", {"sliding_window": None}),
    "qwen3-moe": ("qwen3-moe-tiny", {}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--only")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.only.split(",") if args.only else SHAPES:
        base, changes = SHAPES[name]
        config, out_scale = families.FAMILIES[base]
        config = {**config, **changes}
        folder = os.path.join(args.out, name)
        families.write_checkpoint(folder, config, families.make_weights(base, config, out_scale, 1))
        model, golden = reference.open_reference(folder), {}
        for k, ids in enumerate(families.golden_prompts(config)):
            golden[f"{k}.ids"] = torch.tensor(ids, dtype=torch.int32)
            golden[f"{k}.logits"] = torch.tensor(model.logits(ids))
        save_file(golden, os.path.join(folder, "golden.safetensors"))
        print(name, flush=True)


if __name__ == "__main__":
    main()
