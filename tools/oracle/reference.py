"""The reference side of every comparison: a checkpoint folder run by code that tutti's authors did not write.

LLaMA and its relatives run in transformers. Checkpoints of the ChatGLM2/3 and GLM-4 layout (model_type "chatglm")
run in the modelling files that their publisher ships beside the weights; those are not part of this repository, so
their folder is an argument everywhere. All arithmetic is float32 on the CPU.
"""
import importlib
import json
import os
import sys
import types

import numpy as np
import torch

import rearranged
from published import published_class

os.environ.setdefault("HF_HUB_OFFLINE", "1")


class Reference:
    """A model in evaluation mode that answers with logits. Use open_reference() to get one."""

    def __init__(self, model):
        self.model = model.eval()

    def logits(self, ids):
        """Logits after each of ids, from one pass over all of them: float32 [n, n_vocab]."""
        with torch.no_grad():
            out = self.model(input_ids=torch.tensor([list(map(int, ids))]), use_cache=False, return_dict=True)
        return out.logits[0].float().numpy()

    def greedy(self, ids, n):
        """n more ids, each the largest logit's, one step at a time; and the logits that decided: [n, n_vocab]."""
        answer, rows = [], []
        past, step = None, list(map(int, ids))
        with torch.no_grad():
            for _ in range(n):
                out = self._step(step, past, len(ids) + len(answer))
                past = out.past_key_values
                rows.append(out.logits[0, -1].float().numpy())
                step = [int(rows[-1].argmax())]
                answer += step
        return answer, np.stack(rows)

    def _step(self, ids, past, n_total):
        return self.model(input_ids=torch.tensor([ids]), past_key_values=past, use_cache=True, return_dict=True)


class ChatGLMReference(Reference):
    def _step(self, ids, past, n_total):
        # This code counts positions from 0 in every call unless it is told otherwise.
        positions = torch.arange(n_total - len(ids), n_total)[None]
        return self.model(input_ids=torch.tensor([ids]), position_ids=positions, past_key_values=past,
                          use_cache=True, return_dict=True)


class AlibiReference(Reference):
    """transformers' LLaMA that does not rotate, with ALiBi."""

    def logits(self, ids):
        with torch.no_grad():
            out = self.model(input_ids=torch.tensor([list(map(int, ids))]), use_cache=False, return_dict=True,
                             attention_mask=self._mask(len(ids), len(ids)))
        return out.logits[0].float().numpy()

    def _step(self, ids, past, n_total):
        return self.model(input_ids=torch.tensor([ids]), past_key_values=past, use_cache=True, return_dict=True,
                          attention_mask=self._mask(len(ids), n_total))

    def _mask(self, n_rows, n_total):
        return rearranged.alibi_mask(self.model.config.num_attention_heads, n_rows, n_total)


def chatglm_classes(modeling_dir):
    """Configuration and model class from the publisher's configuration_chatglm.py and modeling_chatglm.py, as they
    are. They import each other relatively, so they become a package, whatever the folder is called."""
    package = types.ModuleType("chatglm_modeling")
    package.__path__ = [os.path.abspath(modeling_dir)]
    sys.modules["chatglm_modeling"] = package
    configuration = importlib.import_module("chatglm_modeling.configuration_chatglm")
    modeling = importlib.import_module("chatglm_modeling.modeling_chatglm")
    return configuration.ChatGLMConfig, modeling.ChatGLMForConditionalGeneration


def make_chatglm(config_json, modeling_dir):
    """An uninitialised float32 model of the publisher's class."""
    config_class, model_class = chatglm_classes(modeling_dir)
    fields = {k: v for k, v in config_json.items()
              if k not in ("architectures", "auto_map", "dtype", "model_type", "torch_dtype", "transformers_version")}
    config = config_class(**fields, torch_dtype=torch.float32)
    # The files were written for transformers 4, where each configuration had these.
    config.use_cache = True
    config.max_length = config_json.get("seq_length", 8192)
    model = model_class(config, device="cpu")
    # GLM-4's files differ from ChatGLM3's in one line that matters here: the rotary base takes a factor.
    rope = model.transformer.rotary_pos_emb
    plain, base = rope.forward_impl, 10000 * config_json.get("rope_ratio", 1)
    rope.forward_impl = lambda *args, **more: plain(*args, **{"base": base, **more})
    return model


def make_empty(config_json, modeling_dir=None):
    """An uninitialised float32 model for a configuration."""
    if published_class(config_json):
        return published_class(config_json)(config_json)
    if config_json["model_type"] == "chatglm":
        return make_chatglm(config_json, modeling_dir)
    if rearranged.is_rearranged(config_json):
        return rearranged.Empty(config_json)
    from transformers import AutoConfig
    fields = {k: v for k, v in config_json.items() if k not in ("architectures", "model_type", "torch_dtype")}
    config = AutoConfig.for_model(config_json["model_type"], **fields)
    return auto_class(config_json).from_config(config, dtype=torch.float32, attn_implementation="eager")


def auto_class(config_json):
    """The class of transformers that opens a model with or without a vision part."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    return AutoModelForImageTextToText if "vision_config" in config_json else AutoModelForCausalLM


def read_weights(model_dir):
    """All tensors of a folder's safetensors or PyTorch files, in float32."""
    files = sorted(f for f in os.listdir(model_dir) if f.endswith(".safetensors") and not f.startswith("golden"))
    weights = {}
    if files:
        from safetensors.torch import load_file
        for file in files:
            weights.update(load_file(os.path.join(model_dir, file)))
    else:
        for file in sorted(f for f in os.listdir(model_dir) if f.startswith("pytorch_model") and f.endswith(".bin")):
            weights.update(torch.load(os.path.join(model_dir, file), map_location="cpu", weights_only=True))
    if not weights:
        raise FileNotFoundError(f"{model_dir}: no *.safetensors and no pytorch_model*.bin")
    return {name: w.float() for name, w in weights.items()}


def open_reference(model_dir, modeling_dir=None):
    """The model of a folder. modeling_dir: where modeling_chatglm.py lies; by default in the folder itself."""
    with open(os.path.join(model_dir, "config.json"), encoding="utf-8") as f:
        config_json = json.load(f)
    if published_class(config_json):
        model = published_class(config_json)(config_json)
        model.load(read_weights(model_dir))
        return model
    if config_json["model_type"] == "chatglm":
        model = make_chatglm(config_json, modeling_dir or model_dir)
        missing, unexpected = model.load_state_dict(read_weights(model_dir), strict=False)
        missing = [m for m in missing if not m.endswith("rotary_pos_emb.inv_freq")]
        if missing or unexpected:
            raise ValueError(f"{model_dir}: missing {missing}, unexpected {unexpected}")
        return ChatGLMReference(model)
    if rearranged.is_rearranged(config_json):
        kind = AlibiReference if rearranged.has_alibi(config_json) else Reference
        return kind(rearranged.load(config_json, read_weights(model_dir)))
    return Reference(auto_class(config_json).from_pretrained(model_dir, dtype=torch.float32,
                                                          attn_implementation="eager", local_files_only=True))


def margins(logits):
    """How far the largest logit of each row stands above the second."""
    top = np.partition(logits, -2)[..., -2:]
    return top[..., 1] - top[..., 0]


def random_ids(seed, n, n_vocab):
    """n ids, the same for the same arguments."""
    return np.random.default_rng(seed).integers(0, n_vocab, n).astype(np.int32)
