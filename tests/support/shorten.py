#!/usr/bin/env python3
"""Writes the demo model with its first layers only, for tests that compare the bits of runs and do not need its answers.

  shorten.py MODEL LAYERS FOLDER STAMP
"""
import json
import os
import re
import shutil
import struct
import sys


def main():
    model, n_layers, folder, stamp = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    os.makedirs(folder, exist_ok=True)
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.model", "tokenizer_config.json"):
        shutil.copy(os.path.join(model, name), folder)
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config["num_layers"] = n_layers
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(os.path.join(model, "model.safetensors"), "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header, data, kept = json.loads(file.read(size)), file.read(), b""
    tensors = {}
    for name, tensor in header.items():
        layer = re.search(r"\.layers\.(\d+)\.", name)
        if name == "__metadata__" or (layer and int(layer.group(1)) >= n_layers):
            continue
        begin, end = tensor["data_offsets"]
        tensors[name] = {**tensor, "data_offsets": [len(kept), len(kept) + end - begin]}
        kept += data[begin:end]
    text = json.dumps(tensors).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + kept)
    with open(stamp, "w", encoding="utf-8"):
        pass


if __name__ == "__main__":
    main()
