"""Tiny checkpoints with as many rows of embedding and output as a tokenizer has tokens. Their vocabularies are for ids only, so their
rows are repeated, each time rotated by other elements: no two rows are equal."""
import json
import os
import re
import struct

N_VOCAB = 640
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
HEAD = re.compile(r"lm_head|embed_out|^output\.|output_layer")
ROTATION = 7  # elements, of each repetition


def vocabulary_of(config):
    """The object and the key that hold the number of rows."""
    holder = config.get("text_config", config)
    return holder, "padded_vocab_size" if "padded_vocab_size" in holder else "vocab_size"


def repeat_rows(data, old, n_rows, element, zeroed):
    size = len(data) // old
    rows = []
    for i in range(n_rows):
        row = data[i % old * size:i % old * size + size]
        at = i // old * ROTATION * element % size
        rows.append(bytes(size) if i in zeroed else row[at:] + row[:at])
    return b"".join(rows)


def widen(source, target, n_vocab=N_VOCAB, settings=None, never=()):
    """Writes config.json and model.safetensors of a folder with n_vocab rows. settings: of the new config.json. never: ids whose
    logits are 0, so that no greedy answer has them."""
    with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    holder, key = vocabulary_of(config)
    old = holder[key]
    holder[key] = n_vocab
    config.update({"bos_token_id": None, "eos_token_id": None, **(settings or {})})
    with open(os.path.join(target, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(os.path.join(source, "model.safetensors"), "rb") as file:
        n, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(n))
        data = file.read()
    header.pop("__metadata__", None)
    of_vocabulary = {name for name, info in header.items() if info["shape"][0] == old}
    zeroed = {name for name in of_vocabulary if HEAD.search(name)} or of_vocabulary
    parts, at = [], 0
    for name, info in header.items():
        begin, end = info["data_offsets"]
        part = data[begin:end]
        if name in of_vocabulary:
            part = repeat_rows(part, old, n_vocab, ELEMENT_BYTES[info["dtype"]], set(never) if name in zeroed else ())
            info["shape"][0] = n_vocab
        info["data_offsets"] = [at, at + len(part)]
        at += len(part)
        parts.append(part)
    text = json.dumps(header).encode()
    with open(os.path.join(target, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
