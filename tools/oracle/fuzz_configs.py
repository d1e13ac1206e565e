#!/usr/bin/env python3
"""Compares tutti with transformers on tiny random models, with one setting of their configuration changed at a time.

  fuzz_configs.py [--tutti build/tutti] [--families qwen3,gemma2] [--pairs N] [--seed N] [--convert]

For each family the settings of its class in transformers are changed, left out or set to null: booleans, activations,
sizes, rotary settings in their old and new form, windows, routers. The model is built for each configuration, gets
random weights in all tensors, and is saved. tutti then computes the logits of 40 ids twice: with the configuration as
written, and as transformers saved it. Prints each case in which tutti's logits differ by more than the bound ("DIFF"),
or in which it refuses the model by name ("refused"). Cases in which transformers fails are skipped. Exits with 1 if
logits differ.
"""
import argparse
import contextlib
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings

import numpy as np

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="critical", OMP_NUM_THREADS="1")
warnings.filterwarnings("ignore")

N_IDS, N_CTX, ORIGINAL, MAX_PARAMETERS = 40, 64, 16, 3_000_000
GONE = object()  # a change: the key is not in the file

ACTIVATIONS = ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "gelu_python", "relu", "relu2", "tanh", None]
LLAMA = dict(hidden_size=72, intermediate_size=100, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1,
             vocab_size=131, max_position_embeddings=N_CTX, rms_norm_eps=1e-5)
WITH_HEAD = LLAMA | dict(num_attention_heads=4, num_key_value_heads=2, head_dim=24)
MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=44)
LATENT = LLAMA | dict(num_attention_heads=3, num_key_value_heads=3, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=24,
                      qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=44,
                      n_group=4, topk_group=2, n_shared_experts=1, first_k_dense_replace=1)
DEEPSEEK_EXPERTS = ("v_head_dim", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group", "n_shared_experts",
                    "first_k_dense_replace")
BY_LAYER_NORM = {k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}
GPT2 = dict(n_embd=72, n_head=3, n_layer=3, n_positions=N_CTX, vocab_size=131)
FAMILIES = {
    "llama": LLAMA, "mistral": WITH_HEAD, "ministral": WITH_HEAD, "mixtral": LLAMA | dict(num_local_experts=5),
    "qwen2": LLAMA, "qwen3": WITH_HEAD,
    "qwen2_moe": LLAMA | MOE | dict(shared_expert_intermediate_size=52), "qwen3_moe": WITH_HEAD | MOE | dict(norm_topk_prob=True),
    "glm": WITH_HEAD | dict(pad_token_id=0), "glm4": WITH_HEAD | dict(pad_token_id=0),
    "glm4_moe": WITH_HEAD | dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=44, n_group=4, topk_group=2,
                                 first_k_dense_replace=1),
    "glm4_moe_lite": LATENT, "deepseek_v2": LATENT | dict(topk_method="group_limited_greedy"), "deepseek_v3": LATENT,
    "gpt_oss": WITH_HEAD | dict(num_local_experts=6, num_experts_per_tok=2, sliding_window=5),
    "olmoe": LLAMA | dict(num_experts=6, num_experts_per_tok=2, num_key_value_heads=3), "minimax_m2": WITH_HEAD | dict(num_local_experts=6, num_experts_per_tok=2),
    "cohere": BY_LAYER_NORM | dict(layer_norm_eps=1e-5),
    "cohere2": BY_LAYER_NORM | dict(layer_norm_eps=1e-5, sliding_window=5),
    "gemma": WITH_HEAD, "seed_oss": WITH_HEAD, "gemma2": WITH_HEAD | dict(sliding_window=5, query_pre_attn_scalar=24),
    "gemma3_text": WITH_HEAD | dict(sliding_window=5, query_pre_attn_scalar=24, num_hidden_layers=7),
    "gemma4_text": WITH_HEAD | dict(sliding_window=5, num_hidden_layers=6, hidden_size_per_layer_input=0, global_head_dim=40, enable_moe_block=True,
                                    num_experts=3, top_k_experts=2, moe_intermediate_size=44, intermediate_size=60),
    "phi": BY_LAYER_NORM | dict(num_key_value_heads=3, layer_norm_eps=1e-5), "phi3": LLAMA | dict(pad_token_id=0),
    "granite": LLAMA, "granitemoehybrid": LLAMA | dict(num_local_experts=0, shared_intermediate_size=88, layer_types=["attention"] * 4, position_embedding_type="rope", mamba_n_heads=2), "granitemoe": LLAMA | dict(num_local_experts=6, num_experts_per_tok=2), "olmo2": LLAMA, "olmo3": LLAMA | dict(sliding_window=5), "smollm3": LLAMA | dict(pad_token_id=0),
    "starcoder2": BY_LAYER_NORM | dict(norm_epsilon=1e-5),
    "gpt_neox": {k: v for k, v in BY_LAYER_NORM.items() if k != "num_key_value_heads"} | dict(layer_norm_eps=1e-5),
    "gptj": GPT2 | dict(rotary_dim=8),
    "falcon": dict(hidden_size=72, num_hidden_layers=3, num_attention_heads=3, vocab_size=131),
    "opt": dict(hidden_size=72, ffn_dim=100, num_hidden_layers=3, num_attention_heads=3, vocab_size=131,
                max_position_embeddings=N_CTX, word_embed_proj_dim=72),
    "exaone": {k: v for k, v in BY_LAYER_NORM.items() if k != "num_hidden_layers"} | dict(num_layers=4, layer_norm_epsilon=1e-5),
    "stablelm": BY_LAYER_NORM | dict(layer_norm_eps=1e-5),
    "minicpm3": {k: v for k, v in LATENT.items() if k not in DEEPSEEK_EXPERTS} | dict(rms_norm_eps=1e-5),
    "ernie4_5": WITH_HEAD, "ernie4_5_moe": LLAMA | dict(moe_num_experts=6, moe_k=2, moe_intermediate_size=44),
    "exaone4": LLAMA | dict(sliding_window=5), "gpt2": GPT2, "gpt_bigcode": GPT2,
    "bloom": dict(hidden_size=72, n_layer=3, n_head=3, vocab_size=131),
    "qwen2_vl_text": LLAMA, "qwen2_5_vl_text": LLAMA, "qwen3_vl_text": WITH_HEAD, "qwen3_vl_moe_text": WITH_HEAD | MOE,
    "glm4v_text": LLAMA, "glm4v_moe_text": LLAMA | dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=44),
}
# Language parts of models with a vision part: the type of the whole, its vision part, the pairs of rotary dimensions by axis.
SMALL = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=4, out_hidden_size=72)
VISION = {"qwen2_vl_text": ("qwen2_vl", dict(depth=1, embed_dim=16, hidden_size=72, num_heads=2, patch_size=4), [4, 4, 4]),
          "qwen2_5_vl_text": ("qwen2_5_vl", SMALL | dict(fullatt_block_indexes=[0]), [4, 4, 4]),
          "qwen3_vl_text": ("qwen3_vl", SMALL | dict(deepstack_visual_indexes=[0], num_position_embeddings=16), [4, 4, 4]),
          "qwen3_vl_moe_text": ("qwen3_vl_moe", SMALL | dict(deepstack_visual_indexes=[0], num_position_embeddings=16), [4, 4, 4]),
          "glm4v_text": ("glm4v", SMALL | dict(image_size=8), [4, 4, 4]), "glm4v_moe_text": ("glm4v_moe", SMALL | dict(image_size=8), [2, 2, 2])}

# Settings that have no effect on the logits of a text, or that only loading is affected by.
SKIPPED = {"model_type", "transformers_version", "architectures", "_name_or_path", "dtype", "torch_dtype", "id2label", "label2id",
           "problem_type", "return_dict", "output_hidden_states", "output_attentions", "chunk_size_feed_forward", "use_cache",
           "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "initializer_range", "is_encoder_decoder", "rope_parameters",
           "vision_config", "text_config", "layer_types"}
# Settings that are read without being declared, or that other programs write, and their values.
HIDDEN = {"head_dim": [8, 16, 40], "partial_rotary_factor": [0.5, 1.0], "rotary_pct": [0.5], "rotary_emb_base": [500], "rope_theta": [500.0],
          "attention_bias": [True], "mlp_bias": [True], "qkv_bias": [False], "use_bias": [False], "sliding_window": [5, 1, 0],
          "use_sliding_window": [True], "query_pre_attn_scalar": [64], "attn_logit_softcapping": [3.0],
          "final_logit_softcapping": [3.0], "use_qk_norm": [True], "qk_layernorm": [True], "clip_qkv": [0.5], "is_causal": [False],
          "tie_word_embeddings": [True], "num_key_value_heads": [1], "original_max_position_embeddings": [ORIGINAL],
          "max_position_embeddings": [N_CTX], "rope_interleave": [False], "attention_chunk_size": [4], "norm_topk_prob": [True, False],
          "routed_scaling_factor": [1.5], "scoring_func": ["softmax", "sigmoid"], "topk_method": ["greedy", "noaux_tc"],
          "moe_layer_freq": [2], "num_nextn_predict_layers": [1], "pretraining_tp": [2], "use_bidirectional_attention": [True],
          "use_parallel_residual": [False], "n_inner": [60], "ffn_hidden_size": [60], "num_kv_heads": [1, 3], "multi_query": [False],
          "alibi": [True], "global_head_dim": [16, 24], "num_global_key_value_heads": [1], "attention_k_eq_v": [True], "rms_norm_eps": [0.5], "layer_norm_eps": [0.5], "layer_norm_epsilon": [0.5]}
BY_KIND = ("gemma3_text", "gemma4_text", "olmo3")  # have rotary settings for each kind of layers
SAVED_APART = ("rope", "rotary", "window", "layer", "dense", "expert")  # settings that transformers saves in another form
YARN = {"factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": ORIGINAL}
# "factors": as many as there are pairs of rotary dimensions.
ROPES = [{"type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 2.0}, {"type": "yarn", **YARN},
         {"type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 0.5}, {"type": "yarn", **YARN, "mscale": 0.7},
         {"type": "yarn", **YARN, "mscale_all_dim": 0.7}, {"type": "yarn", **YARN, "attention_factor": 1.5},
         {"type": "yarn", **YARN, "beta_fast": 8, "beta_slow": 2}, {"type": "yarn", **YARN, "truncate": False},
         {"type": "yarn", "factor": 2.0}, {"type": "yarn", **YARN, "factor": 8.0}, {"type": "yarn", **YARN, "factor": 1.0},
         {"type": "llama3", **LLAMA3}, {"type": "llama3", **LLAMA3, "low_freq_factor": 4.0},
         {"type": "longrope", "factors": 1, "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
         {"type": "longrope", "factors": 1, "original_max_position_embeddings": ORIGINAL},
         {"type": "longrope", "factors": 1, "attention_factor": 1.3, "original_max_position_embeddings": ORIGINAL},
         {"type": "longrope", "factors": 1, "factor": 4.0}, {"type": "su", "factors": 1, "factor": 4.0},
         {"type": "default"}, {"type": "mrope", "mrope_section": [6, 3, 3]}, {"type": "proportional", "factor": 2.0}]


def others(key, value):
    """Other values of a setting."""
    if "act" in key.split("_") or key in ("activation_function", "activation", "hidden_activation"):
        return ACTIVATIONS
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        is_size = key.endswith(("_size", "_dim", "_rank", "_scalar"))
        return [value + 1, 2 * value, None] + [1] * (not is_size) if value else [1, 2, None]
    if isinstance(value, float):
        return [2 * value, value / 2, 0.3, None] if value else [0.1, None]
    return [1, 8, 0.5, True] if value is None else [None]


def rope_changes(base, by_kind):
    for rope in ROPES:
        rope = dict(rope)
        if rope.pop("factors", 0):
            n = rotary_pairs(base)
            rope |= {"short_factor": [1.0 + 0.1 * i for i in range(n)], "long_factor": [2.0 + 0.2 * i for i in range(n)]}
        new = {("rope_type" if k == "type" else k): v for k, v in rope.items()}
        yield {"rope_scaling": new if by_kind else rope}
        if not by_kind:  # else a scaling of all kinds is what transformers' releases do not agree on
            yield {"rope_parameters": new | {"rope_theta": 300.0}}
        if "original_max_position_embeddings" in rope and not by_kind:
            without = {k: v for k, v in new.items() if k != "original_max_position_embeddings"}
            yield {"rope_scaling": without, "original_max_position_embeddings": ORIGINAL}
    if by_kind:
        yield from rope_changes_by_kind()
        return
    yield {"rope_theta": 300.0, "partial_rotary_factor": 0.5}
    yield {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 300.0}
    yield {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0}, "rope_theta": 300.0}
    yield {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}}
    yield {"rope_scaling": {"rope_type": "yarn", **YARN, "partial_rotary_factor": 0.5}}
    yield {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "rope_theta": 90.0}
    yield {"rope_parameters": {"rope_theta": 300.0}}
    yield {"rope_parameters": {"rope_type": "default"}, "rope_theta": 300.0}
    yield {"rope_scaling": None, "rope_theta": 300.0}


def rope_changes_by_kind():
    yield {"rope_local_base_freq": 50.0}
    for local in ({"rope_type": "default", "rope_theta": 50.0}, {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}):
        for whole in ({"rope_type": "default", "rope_theta": 300.0}, {"rope_type": "linear", "factor": 3.0, "rope_theta": 300.0},
                      {"rope_type": "yarn", **YARN, "rope_theta": 300.0}):
            yield {"rope_parameters": {"full_attention": whole, "sliding_attention": local}}


def rotary_pairs(base):
    head = base.get("head_dim") or base.get("hidden_size", 72) // base.get("num_attention_heads", 3)
    return base.get("qk_rope_head_dim", head) // 2


def window_changes(n, has_window):
    full, slide = "full_attention", "sliding_attention"
    for types in ([full] * n, [slide] * n, [slide, full] * n, [full, slide] * n, [slide] * (n - 1) + [full], [full] * (n - 1) + [slide],
                  ["chunked_attention"] * n, [full]):
        types = types[:n]
        yield {"layer_types": types}
        yield {"layer_types": types, "sliding_window": 5}
        yield {"layer_types": types, "sliding_window": None}
        yield {"layer_types": types, "use_sliding_window": True, "sliding_window": 5}
        if has_window:
            yield {"layer_types": types, "use_sliding_window": False, "sliding_window": 5}
    for window in (5, 1, 0, None, GONE, 100) if has_window else (5, None):
        yield {"sliding_window": window}
        yield {"sliding_window": window, "use_sliding_window": True}
        for first in (0, 1, 9, None, GONE) if has_window else ():
            yield {"sliding_window": window, "use_sliding_window": True, "max_window_layers": first}
    for period in (1, 2, 3, 6, None, "LLLG", "LG"):
        yield {"sliding_window_pattern": period}
    for rotates in ([1] * n, [0] * n, [1, 0] * (n // 2) + [1] * (n % 2), [0], None):
        yield {"no_rope_layers": rotates}
        yield {"no_rope_layers": rotates, "no_rope_layer_interval": 2}
    for interval in (1, 2, 3, None):
        yield {"no_rope_layer_interval": interval}


def expert_changes(n):
    for key, values in {"mlp_only_layers": [[0], [1, 2], list(range(n)), None], "decoder_sparse_step": [1, 2, 3, None],
                        "mlp_layer_types": [["dense"] * n, ["sparse"] * n, ["dense", "sparse"] * (n // 2)],
                        "first_k_dense_replace": [0, 1, 2, n, None], "n_shared_experts": [0, 1, 2, None],
                        "topk_method": ["greedy", "group_limited_greedy", "noaux_tc", None],
                        "scoring_func": ["softmax", "sigmoid", None], "norm_topk_prob": [True, False, None],
                        "num_experts_per_tok": [1, 3], "routed_scaling_factor": [0.7, 2, None], "q_lora_rank": [None, 8, GONE],
                        "n_group": [1, 2, None], "topk_group": [1, 4, None], "moe_layer_freq": [1, 2], "swiglu_limit": [1.0],
                        "num_local_experts": [4, None], "num_experts": [4, None], "n_routed_experts": [4, None]}.items():
        for value in values:
            yield {key: value}
    yield {"n_group": 1, "topk_group": 1}
    yield {"n_group": 2, "topk_group": 1}
    yield {"norm_topk_prob": False, "routed_scaling_factor": 2.0}
    yield {"mlp_only_layers": [0], "decoder_sparse_step": 2}


def falcon_changes():
    bits = (False, True)
    for new, parallel, query, bias in itertools.product(bits, bits, bits, bits):
        for norms in (GONE, None, 1, 2):
            for heads in (GONE, 1, 3):
                yield {"new_decoder_architecture": new, "parallel_attn": parallel, "multi_query": query, "bias": bias,
                       "num_ln_in_parallel_attn": norms, "num_kv_heads": heads}


def changes_of(name, base, declared, rng, n_pairs):
    """Dictionaries of settings, GONE for those that are left out."""
    n = base.get("num_hidden_layers") or base.get("n_layer") or base.get("num_layers")
    singles = [{}]
    for key in sorted(set(declared) - SKIPPED):
        values = others(key, base.get(key, declared[key]))
        singles += [{key: v} for v in values]
    for key in base:
        singles += [{key: GONE}, {key: None}] if key not in ("num_hidden_layers", "num_layers") else []  # many layers amplify rounding
    if "rope_parameters" in declared or name in ("falcon", "gptj"):
        singles += rope_changes(base, name in BY_KIND)
    if name not in ("gpt2", "gpt_bigcode", "bloom", "opt", "gptj", "falcon"):
        singles += window_changes(n, "sliding_window" in declared)
    if any("expert" in key for key in declared):
        singles += expert_changes(n)
    if name == "falcon":
        singles += falcon_changes()
    for _ in range(n_pairs):
        a, b = rng.sample(singles, 2)
        yield a | b
    if n_pairs > 0:
        return
    yield from singles
    for key, values in HIDDEN.items():
        if (name, key) != ("olmo3", "rope_theta"):  # transformers 5.24 gives it to the layers without a window only
            yield from ({key: v} for v in values)


@contextlib.contextmanager
def silence():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def written_config(name, base, change):
    """What config.json says."""
    if name not in VISION:
        return {k: v for k, v in (base | change).items() if v is not GONE} | {"model_type": name}
    kind, vision, sections = VISION[name]
    text = base | {"rope_parameters": {"rope_type": "default", "mrope_section": sections}} | change
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(change.get(key), dict):
            text = text | {"rope_parameters": GONE} | {key: {"mrope_section": sections} | change[key]}
    text = {k: v for k, v in text.items() if v is not GONE} | {"model_type": name}
    return {"model_type": kind, "text_config": text, "vision_config": vision, "tie_word_embeddings": text.get("tie_word_embeddings", False)}


class Oracle:
    """A model of transformers with random weights."""

    def __init__(self):
        import torch
        import transformers
        self.torch, self.transformers = torch, transformers
        torch.set_num_threads(1)
        transformers.logging.set_verbosity(60)

    def declared(self, name):
        return self.transformers.AutoConfig.for_model(name).to_dict()

    def build(self, folder, is_small):
        """The model of a folder's config.json; None: it is too large. is_small: it is known not to be."""
        torch = self.torch
        config = self.transformers.AutoConfig.from_pretrained(folder)
        has_vision = hasattr(config, "vision_config")
        kind = self.transformers.AutoModelForImageTextToText if has_vision else self.transformers.AutoModelForCausalLM
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        if not is_small:
            with torch.device("meta"):
                n = sum(p.numel() for p in kind.from_config(config, **options).parameters())
            if n > MAX_PARAMETERS:
                return None
        return kind.from_config(config, **options).eval()

    def randomize(self, model, seed):
        torch = self.torch
        g = torch.Generator().manual_seed(seed)
        tensors = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if n.endswith("correction_bias")]
        with torch.no_grad():
            for name, w in tensors:
                noise = torch.randn(w.shape, generator=g)
                if w.ndim == 1 and name.endswith("weight"):
                    w.copy_(1 + 0.3 * noise)  # of norms
                elif w.ndim < 2 or name.endswith("bias"):
                    w.copy_(0.3 * noise)
                elif "emb" in name or "wte" in name or "wpe" in name:
                    w.copy_(0.01 * noise)  # so small that the epsilon of the first norm counts
                else:
                    w.copy_(noise * (1.5 if any(s in name for s in ("q_proj", "k_proj", "qkv", "query", "c_attn")) else 1.0)
                            / w.shape[-1] ** 0.5)

    def logits(self, model, ids):
        with self.torch.no_grad():
            return model(input_ids=self.torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def run_tutti(arguments, folder):
    """0 if the command succeeds; or the message with which tutti refuses the model; None: it ended by a signal."""
    done = subprocess.run(arguments, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode > 0 and lines:
        return lines[-1].replace(folder + "/", "")
    return 0 if done.returncode == 0 else None


def tutti_logits(tutti, model, ids, folder):
    """Logits, or what run_tutti() returns. folder: for files."""
    from safetensors.numpy import load_file
    out = os.path.join(folder, "out")
    result = run_tutti([tutti, "logits", model, "--ids", ",".join(map(str, ids)), "--out", out, "--type", "f32", "--kv-type", "f32",
                        "--threads", "1"], folder)
    if result != 0:
        return result
    logits = load_file(out)["logits"]
    os.unlink(out)
    return logits


class Fuzzer:
    def __init__(self, args):
        self.args, self.oracle = args, Oracle()
        self.counts = {}

    def report(self, name, result, change, note):
        self.counts.setdefault(name, {}).setdefault(result, 0)
        self.counts[name][result] += 1
        if result in ("DIFF", "refused") or self.args.verbose:
            shown = {k: "GONE" if v is GONE else v for k, v in change.items()}
            print(f"{name}\t{result}\t{json.dumps(shown)}\t{note}", flush=True)

    def case(self, name, base, change, seed):
        """Builds, saves and compares the model of one changed configuration."""
        work = tempfile.mkdtemp()
        try:
            written = written_config(name, base, change)
            path = os.path.join(work, "config.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(written, f)
            try:
                with silence():
                    model = self.oracle.build(work, GONE not in change.values())
                    if model is None:
                        return self.report(name, "large", change, "")
                    self.oracle.randomize(model, seed)
                    ids = [int(i) for i in np.random.default_rng(seed).integers(3, 100, N_IDS)]
                    want = self.oracle.logits(model, ids)
                    model.save_pretrained(work)
            except Exception as error:
                return self.report(name, "error", change, str(error).splitlines()[0][:100] if str(error) else type(error).__name__)
            if not np.isfinite(want).all():
                return self.report(name, "error", change, "not finite")
            if not change or any(s in key for key in change for s in SAVED_APART):
                self.compare(name, change, work, ids, want, "saved")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(written, f)
            self.compare(name, change, work, ids, want, "written")
        finally:
            shutil.rmtree(work)

    def compare(self, name, change, work, ids, want, form):
        """form: who wrote config.json."""
        result = self.judge(name, change, tutti_logits(self.args.tutti, work, ids, work), want, form)
        if not self.args.convert or result != "equal" or form == "saved":
            return
        gguf = os.path.join(work, "model.gguf")
        refusal = run_tutti([self.args.tutti, "convert", work, gguf, "--type", "f32"], work)
        got = tutti_logits(self.args.tutti, gguf, ids, work) if refusal == 0 else refusal
        if refusal == 0 and isinstance(got, str):
            return self.report(name, "DIFF", change, f"GGUF was written, but {got}")
        self.judge(name, change, got, want, "GGUF")

    def judge(self, name, change, got, want, form):
        result, note = "equal", ""
        if got is None:
            result, note = "DIFF", "tutti crashed, or said nothing"
        elif isinstance(got, str):
            result, note = "refused", got
        elif got.shape != want.shape:
            result, note = "DIFF", f"shape {got.shape}, expected {want.shape}"
        else:
            error = np.abs(got - want).max(-1) / np.abs(want).max(-1)
            note = f"{error.max():.1e}"
            if not error.max() <= self.args.bound:
                result, note = "DIFF", f"{note}, first at position {int(np.argmax(~(error <= self.args.bound)))}"
        self.report(name, result, change, f"{form}: {note}")
        return result

    def run(self, name):
        base, rng = FAMILIES[name], random.Random(self.args.seed)
        seen = set()
        for change in changes_of(name, base, self.oracle.declared(name), rng, self.args.pairs):
            key = json.dumps({k: repr(v) for k, v in change.items()}, sort_keys=True)
            if key not in seen:
                seen.add(key)
                self.case(name, base, change, self.args.seed)
        print(f"# {name}: {self.counts.get(name)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tutti", default="build/tutti")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--pairs", type=int, default=0, help="this many random pairs of changes for each family, instead of single changes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bound", type=float, default=5e-4, help="largest error relative to the position's largest |logit|")
    parser.add_argument("--convert", action="store_true", help="also compare what tutti convert makes of each model")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    args = parser.parse_args()
    fuzzer = Fuzzer(args)
    for name in args.families.split(","):
        fuzzer.run(name)
    sys.exit(1 if any("DIFF" in c for c in fuzzer.counts.values()) else 0)


if __name__ == "__main__":
    main()
