"""Models that are LLaMA's arithmetic under another layout, whose authors' code transformers does not have: InternLM2, Baichuan,
openPangu-Embedded, the first Qwen. Their tensors are rearranged, exactly, and run by transformers' LLaMA.

* InternLM2: wqkv has for each KV head its queries, its key and its value. The rest has other names.
* Baichuan: W_pack has q, k and v, one after the other. Baichuan2 divides the rows of lm_head by their lengths. The models of 13B
  do not rotate: their scores get ALiBi, here as the additive mask of transformers' eager attention, by its own BLOOM's slopes.
* openPangu-Embedded: LLaMA's tensors; `bias` is LLaMA's attention_bias.
* Qwen: c_attn has q, k and v with biases, one after the other; the output of attention has none. mlp.w2 is the gate. intermediate_size
  counts the rows of w1 and w2.
"""
import math

import torch
import torch.nn.functional as F

ALIBI_KEY, ROTARY_KEY = "model_max_length", "max_position_embeddings"  # of Baichuan's two classes


def is_rearranged(config):
    return config["model_type"] in ("internlm2", "baichuan", "PanguEmbedded", "qwen")


def has_alibi(config):
    return config["model_type"] == "baichuan" and ALIBI_KEY in config and ROTARY_KEY not in config


def llama_fields(config):
    """The settings of transformers' LlamaConfig."""
    if config["model_type"] == "qwen":
        same = ("hidden_size", "num_attention_heads", "num_hidden_layers", "tie_word_embeddings", "vocab_size")
        return dict({key: config[key] for key in same}, attention_bias=True, intermediate_size=config["intermediate_size"] // 2,
                    max_position_embeddings=config["seq_length"], rms_norm_eps=config["layer_norm_epsilon"],
                    rope_parameters={"rope_type": "default", "rope_theta": config["rotary_emb_base"]})
    dropped = ("architectures", "auto_map", "bias", "model_type", "torch_dtype", "z_loss_weight", ALIBI_KEY)
    fields = {key: value for key, value in config.items() if key not in dropped}
    fields.setdefault("max_position_embeddings", config.get(ALIBI_KEY, 512))
    return dict(fields, attention_bias=config.get("bias", False))


# Of each other layout, by LLaMA's names.
INTERNLM2_NAMES = {
    "model.embed_tokens": "model.tok_embeddings", "lm_head": "output", "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
}


QWEN_NAMES = {
    "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h", "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.c_proj", "mlp.gate_proj": "mlp.w2", "mlp.up_proj": "mlp.w1",
    "mlp.down_proj": "mlp.c_proj",
}
OTHER_NAMES = {"internlm2": INTERNLM2_NAMES, "qwen": QWEN_NAMES}
FUSED = {"internlm2": "attention.wqkv", "baichuan": "self_attn.W_pack", "qwen": "attn.c_attn"}


def published_name(config, name):
    """The published name of one of LLaMA's tensors; of q, k and v that of the one tensor of all."""
    model_type = config["model_type"]
    fused = FUSED.get(model_type)
    for part in ("q", "k", "v"):
        if fused:
            name = name.replace(f"self_attn.{part}_proj", fused)
    for old, new in OTHER_NAMES.get(model_type, {}).items():
        name = name.replace(old, new)
    return name


def published_shapes(config, shapes):
    """{name: shape} of LLaMA's tensors as published."""
    published = {}
    for name, shape in shapes.items():
        other = published_name(config, name)
        if config["model_type"] == "qwen" and name.endswith("o_proj.bias"):
            continue
        rows = published[other][0] if other in published else 0
        published[other] = (rows + shape[0], *shape[1:])
    return published


def to_llama(config, weights):
    """The published tensors as LLaMA's."""
    n_heads = config["num_attention_heads"]
    n_kv_heads = config.get("num_key_value_heads", n_heads)
    head_dim, n_queries = config["hidden_size"] // n_heads, n_heads // n_kv_heads
    names = {new: old for old, new in OTHER_NAMES.get(config["model_type"], {}).items()}
    llama = {}
    for name, w in weights.items():
        if "attention.wqkv" in name:
            groups = w.reshape(n_kv_heads, n_queries + 2, head_dim, -1)
            parts = {"q": groups[:, :n_queries], "k": groups[:, n_queries], "v": groups[:, n_queries + 1]}
            for part, rows in parts.items():
                shape = (-1, w.shape[1]) if w.dim() == 2 else (-1,)
                llama[name.replace("attention.wqkv", f"self_attn.{part}_proj")] = rows.reshape(shape)
            continue
        for new, old in names.items():
            name = name.replace(new, old)
        fused = next((part for part in ("self_attn.W_pack", "attn.c_attn") if part in name), None)
        for part, rows in zip("qkv", w.chunk(3), strict=True) if fused else ():
            llama[name.replace(fused, f"self_attn.{part}_proj")] = rows
        if not fused:
            llama[name] = w
    if config["model_type"] == "qwen":
        llama.update({f"model.layers.{i}.self_attn.o_proj.bias": torch.zeros(config["hidden_size"]) for i in range(config["num_hidden_layers"])})
    if "z_loss_weight" in config:
        llama["lm_head.weight"] = F.normalize(llama["lm_head.weight"])
    return llama


def make_llama(config):
    """An uninitialised float32 LLaMA."""
    from transformers import LlamaConfig, LlamaForCausalLM
    model = LlamaForCausalLM._from_config(LlamaConfig(**llama_fields(config)), dtype=torch.float32, attn_implementation="eager")
    if has_alibi(config):
        model.model.rotary_emb.inv_freq.zero_()  # an angle of 0 at every position
    return model


class Empty:
    """The tensors of a configuration, by their published names."""

    def __init__(self, config):
        self.config = config

    def named_parameters(self):
        shapes = {name: tuple(p.shape) for name, p in make_llama(self.config).named_parameters()}
        return [(name, torch.empty(shape)) for name, shape in published_shapes(self.config, shapes).items()]

    def named_buffers(self):
        return []


def load(config, weights):
    """transformers' LLaMA with the rearranged tensors of a checkpoint."""
    model = make_llama(config)
    model.load_state_dict(to_llama(config, weights), strict=True)
    return model


def alibi_mask(n_heads, n_rows, n_total):
    """Additive scores [1, n_heads, n_rows, n_total] of the last n_rows positions."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    by_key = build_alibi_tensor(torch.ones(1, n_total), n_heads, torch.float32).reshape(n_heads, 1, n_total)
    rows, keys = torch.arange(n_total - n_rows, n_total)[:, None], torch.arange(n_total)[None]
    slopes = by_key[:, :, 1:2] if n_total > 1 else torch.zeros(n_heads, 1, 1)
    bias = slopes * (keys - rows)  # a row's scores may all be shifted alike
    return bias.masked_fill(keys > rows, -math.inf)[None]
