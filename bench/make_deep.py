#!/usr/bin/env python3
"""Writes a copy of a model that says the same, or nearly, and takes longer: a target for a draft model, whose drafts are then as often
right as they would be beside a model that has learned more.

  make_deep.py MODEL OUT --layers N [--share X]

MODEL is a folder with config.json and model.safetensors of the ChatGLM2/3 or LLaMA family. OUT gets the same files, with N layers: those
there are, then copies of them in turn whose two output projections are multiplied by X. With 0, the default, the copies add
nothing, and OUT computes MODEL's function; with more it differs from it by more.
X other than 0 needs the Python package numpy.
"""
import argparse
import json
import os
import re
import shutil
import struct
import sys

LAYER = re.compile(r"^(.*\blayers\.)(\d+)(\..*)$")
OUTPUTS = ("self_attention.dense.weight", "mlp.dense_4h_to_h.weight",  # ChatGLM
           "self_attn.o_proj.weight", "mlp.down_proj.weight")  # LLaMA


def read_tensors(path):
    """{name: (dtype, shape, bytes)}"""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for name, t in header.items()}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def scaled(dtype, data, share):
    if share == 0:
        return bytes(len(data))
    import numpy as np
    if dtype == "BF16":
        floats = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32) * np.float32(share)
        return (floats.view(np.uint32) >> 16).astype("<u2").tobytes()
    kind = {"F16": "<f2", "F32": "<f4"}[dtype]
    return (np.frombuffer(data, kind).astype(np.float32) * np.float32(share)).astype(kind).tobytes()


def deepen(tensors, n_old, n_new, share):
    """Adds layers n_old to n_new - 1. Returns the number of output projections among them."""
    n_outputs = 0
    for layer in range(n_old, n_new):
        for name in [name for name in tensors if LAYER.match(name)]:
            before, number, behind = LAYER.match(name).groups()
            if int(number) != layer % n_old:
                continue
            dtype, shape, data = tensors[name]
            if name.endswith(OUTPUTS):
                n_outputs += 1
                data = scaled(dtype, data, share)
            tensors[f"{before}{layer}{behind}"] = (dtype, shape, data)
    return n_outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--share", type=float, default=0)
    args = parser.parse_args()
    with open(os.path.join(args.model, "config.json")) as f:
        config = json.load(f)
    key = next((key for key in ("num_layers", "num_hidden_layers") if key in config), None)
    if key is None or args.layers < config[key]:
        sys.exit(f"{args.model}: {config.get(key)} layers, expected up to {args.layers}")
    tensors = read_tensors(os.path.join(args.model, "model.safetensors"))
    n_outputs = deepen(tensors, config[key], args.layers, args.share)
    if n_outputs != 2 * (args.layers - config[key]):
        sys.exit(f"{args.model}: {n_outputs} output projections in the new layers, expected two in each")
    config[key] = args.layers
    os.makedirs(args.out, exist_ok=True)
    for name in os.listdir(args.model):
        if name not in ("config.json", "model.safetensors"):
            shutil.copy(os.path.join(args.model, name), args.out)
    with open(os.path.join(args.out, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
    write_tensors(os.path.join(args.out, "model.safetensors"), tensors)


if __name__ == "__main__":
    main()
