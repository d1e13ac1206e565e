#!/usr/bin/env python3
"""The golden logits of the two families that published.py writes down, beside the code of their authors, in float32.

  check_published.py chatglm-6b DIR     DIR: modeling_chatglm.py and configuration_chatglm.py of the ChatGLM-6B release; needs
                                        torch and transformers
  check_published.py pangu DIR          DIR: a clone of MindFormers that still has models/pangualpha (up to March 2025); needs
                                        mindspore and a numpy that suits it

Each runs in today's libraries, and in an environment of its own. The golden files come from published.py; a relative
difference above 1e-5 is an error.
"""
import argparse
import collections
import importlib
import json
import logging
import os
import sys
import types
import warnings

warnings.simplefilter("ignore")
import numpy as np

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "fixtures")


def read_config(name):
    with open(os.path.join(FIXTURES, name, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def compare(name, logits):
    """logits: what gives those of a list of ids. Returns whether all prompts agree."""
    from safetensors.numpy import load_file
    golden, agrees = load_file(os.path.join(FIXTURES, name, "golden.safetensors")), True
    for k in range(3):
        ids, want = golden[f"{k}.ids"], golden[f"{k}.logits"]
        error = np.abs(logits([int(i) for i in ids]) - want).max() / np.abs(want).max()
        agrees = agrees and error <= 1e-5
        print(f"{name}: {len(ids)} ids, relative difference {error:.1e}")
    return agrees


# ---- ChatGLM-6B ----

def chatglm_6b(folder):
    import torch
    from safetensors.torch import load_file
    package = types.ModuleType("release")
    package.__path__ = [os.path.abspath(folder)]
    sys.modules["release"] = package
    fields = {k: v for k, v in read_config("chatglm-6b-tiny").items() if k not in ("architectures", "model_type", "torch_dtype")}
    config = importlib.import_module("release.configuration_chatglm").ChatGLMConfig(**fields)
    config.max_length = config.max_sequence_length
    model = importlib.import_module("release.modeling_chatglm").ChatGLMForConditionalGeneration(config).float().eval()
    for layer in model.transformer.layers:
        layer.num_layers = config.num_layers  # the release counts 28, whatever its configuration says
    weights = {k: w.float() for k, w in load_file(os.path.join(FIXTURES, "chatglm-6b-tiny", "model.safetensors")).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or any("inv_freq" not in name for name in missing):
        sys.exit(f"missing {missing}, unexpected {unexpected}")

    def logits(ids):
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), use_cache=False, return_dict=True).logits[0].numpy()
    return compare("chatglm-6b-tiny", logits)


# ---- PanGu-Alpha ----

def stub(name, path=None, **members):
    module = types.ModuleType(name)
    if path:
        module.__path__ = [path]
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


def stub_mindformers(folder, nn):
    """MindFormers without what training and downloading need: its layers and models are taken as they are."""
    class Register:
        @staticmethod
        def register(*_args, **_more):
            return lambda cls: cls

    class Model(nn.Cell):
        def __init__(self, config):
            super().__init__()
            self.config = config

        def load_checkpoint(self, config):
            pass

    class Config:
        def __init__(self, **fields):
            self.__dict__.update(fields)
    for part in ("", ".models", ".models.pangualpha", ".modules", ".modules.transformer", ".core", ".tools"):
        stub("mindformers" + part, os.path.join(folder, "mindformers" + part.replace(".", "/")))
    lists = collections.defaultdict(list)
    stub("mindformers.core.loss", CrossEntropyLoss=lambda **_: None)
    stub("mindformers.tools.logger", logger=logging.getLogger("mindformers"), _LogActionOnce=lambda **_: lambda f: f)
    stub("mindformers.tools.register", MindFormerRegister=Register,
         MindFormerModuleType=types.SimpleNamespace(MODELS=0, CONFIG=0, LOSS=0))
    stub("mindformers.mindformer_book", MindFormerBook=types.SimpleNamespace(get_model_support_list=lambda: lists,
                                                                             get_config_support_list=lambda: lists))
    stub("mindformers.models.modeling_utils", PreTrainedModel=Model)
    stub("mindformers.models.configuration_utils", PretrainedConfig=Config)
    stub("mindformers.models.utils", convert_mstype=lambda x: x)
    transformer = importlib.import_module("mindformers.modules.transformer.transformer")
    moe = importlib.import_module("mindformers.modules.transformer.moe")
    sys.modules["mindformers.modules.transformer"].__dict__.update(
        {k: v for k, v in vars(transformer).items() if not k.startswith("__")}, MoEConfig=moe.MoEConfig)


def pangu(folder):
    import mindspore
    from mindspore import nn
    from safetensors.numpy import load_file
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE, device_target="CPU")
    stub_mindformers(folder, nn)
    config_class = importlib.import_module("mindformers.models.pangualpha.pangualpha_config").PanguAlphaConfig
    model_class = importlib.import_module("mindformers.models.pangualpha.pangualpha").PanguAlphaHeadModel
    given, f32 = read_config("pangu-tiny"), mindspore.float32
    fields = {k: given[k] for k in ("seq_length", "vocab_size", "hidden_size", "ffn_hidden_size", "num_layers", "num_heads",
                                    "hidden_act", "pad_token_id", "eos_token_id")}
    model = model_class(config_class(batch_size=1, param_init_type=f32, compute_dtype=f32, softmax_compute_type=f32,
                                     embedding_dropout_prob=0.0, hidden_dropout_rate=0.0, attention_dropout_rate=0.0, **fields))
    model.set_train(False)
    for _, cell in model.cells_and_names():  # some take half precision whatever the configuration says
        for key, value in list(vars(cell).items()):
            if value is mindspore.float16:
                setattr(cell, key, f32)
    weights = load_file(os.path.join(FIXTURES, "pangu-tiny", "model.safetensors"))
    parameters = dict(model.parameters_and_names())
    if set(parameters) != set(weights):
        sys.exit(f"other tensors than expected: {sorted(set(parameters) ^ set(weights))}")
    for name, parameter in parameters.items():
        parameter.set_data(mindspore.Tensor(weights[name].astype(np.float32)))
    n = given["seq_length"]
    causal = mindspore.Tensor(np.tril(np.ones((1, n, n), np.float32)))

    def logits(ids):
        padded = np.array([ids + [given["pad_token_id"]] * (n - len(ids))], np.int32)
        out = model(mindspore.Tensor(padded), attention_mask=causal)
        return (out[0] if isinstance(out, tuple) else out).asnumpy().reshape(n, -1)[:len(ids)]
    return compare("pangu-tiny", logits)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=["chatglm-6b", "pangu"])
    parser.add_argument("folder", metavar="DIR")
    args = parser.parse_args()
    sys.exit(0 if (chatglm_6b if args.family == "chatglm-6b" else pangu)(args.folder) else 1)


if __name__ == "__main__":
    main()
