"""What `tutti convert` writes into GGUF compared with llama.cpp's own converter (tools/fixtures/converter_fixtures.py): every key
that its files have, with the same value, and the same tensors in the same shapes."""
import json
import math
import os
import struct

import pytest
from test_chat_sources import folder_of, put
from test_cli import FIXTURES, tutti
from widened import widen

with open(os.path.join(FIXTURES, "converted", "metadata.json"), encoding="utf-8") as metadata:
    THEIRS = json.load(metadata)
FORMATS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, LIST = 8, 9


def read_gguf(path):
    """{key: value}, {tensor: shape}"""
    with open(path, "rb") as file:
        def take(code):
            if code == STRING:
                return file.read(take(10)).decode()
            if code == LIST:
                inner = take(4)
                return [take(inner) for _ in range(take(10))]
            size = struct.calcsize(FORMATS[code])
            return struct.unpack(FORMATS[code], file.read(size))[0]

        assert file.read(8) == b"GGUF\3\0\0\0"
        n_tensors, n_keys = take(10), take(10)
        keys = {take(STRING): take(take(4)) for _ in range(n_keys)}
        tensors = {}
        for _ in range(n_tensors):
            name = take(STRING)
            tensors[name] = [take(10) for _ in range(take(4))][::-1]
            file.read(12)
    return keys, tensors


def is_same(a, b):
    if isinstance(b, float):
        return a == pytest.approx(b, rel=1e-6)
    return a == b


def is_different_by_design(key, ours, theirs):
    if key.startswith("tokenizer."):     # these models have none
        return True
    # Layers for multi-token prediction, which these folders lack, are counted.
    n_more = theirs.get("nextn_predict_layers", 0)
    if key == "nextn_predict_layers" or (key == "block_count" and ours == theirs[key] - n_more):
        return True
    if key == "rope.scaling.yarn_attn_factor":  # the usual factor, which llama.cpp uses without this key, too
        return theirs[key] == pytest.approx(1 + 0.1 * math.log(theirs["rope.scaling.factor"]))
    if key == "rope.scaling.yarn_log_multiplier":  # tutti writes what follows from it, rope.scaling.attn_factor
        return True
    if key == "attention.layer_norm_epsilon":  # EXAONE 3 and Qwen have RMSNorm, whose epsilon is this one
        return theirs.get("attention.layer_norm_rms_epsilon", theirs[key]) == theirs[key]
    if key == "rope.scaling.original_context_length" and theirs[key] == theirs["context_length"]:
        return True                      # what it is without this key
    if theirs.get("expert_count") == 0:  # Granite 4 without experts and Mamba's layers: llama.cpp reads none of these
        if key.startswith(("ssm.", "expert_")) or (key == "rope.scaling.finetuned" and theirs[key] is True) or (key == "attention.head_count_kv" and set(theirs[key]) == {ours}):
            return True
    # Of a model without a dense layer this width means nothing; tutti has that of the experts.
    return key == "feed_forward_length" and ours == theirs.get("expert_feed_forward_length")


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_metadata_is_that_of_llama_cpps_converter(name, tmp_path):
    out = tmp_path / "model.gguf"
    tutti("convert", os.path.join(FIXTURES, name), out, "--type", "f16")
    ours, tensors = read_gguf(out)
    prefix = THEIRS[name]["architecture"] + "."
    assert ours["general.architecture"] + "." == prefix
    theirs = {key.removeprefix(prefix): value for key, value in THEIRS[name]["keys"].items()}
    assert len(theirs) > 6
    wrong = {key: (ours.get(prefix + key), value) for key, value in theirs.items()
             if not is_same(ours.get(prefix + key), value) and not is_different_by_design(key, ours.get(prefix + key), theirs)}
    assert not wrong
    is_fused = any("gate_up_exps" in tensor for tensor in THEIRS[name]["tensors"])
    shapes = {tensor: [n for n in shape if n > 1] for tensor, shape in tensors.items()}
    if is_fused:
        shapes = {tensor: shape for tensor, shape in shapes.items() if "_exps" not in tensor}
    assert shapes == {tensor: [n for n in shape if n > 1] for tensor, shape in THEIRS[name]["tensors"].items()
                      if not is_fused or "_exps" not in tensor}


def test_a_file_in_which_queries_grow_ends_at_its_context(tmp_path):
    """Ministral 3 has the same architecture as Mistral Small 3.1, whose file of llama.cpp's converter lacks the growth."""
    path = os.path.join(FIXTURES, "converted", "mistral3-tiny-fused.gguf")
    with open(path, "rb") as file:
        data = file.read()
    key, other = b"mistral3.attention.temperature_scale", b"general.something".ljust(31, b"_")
    more = struct.pack("<Q", len(key)) + key + struct.pack("<If", 6, 0.1) + struct.pack("<Q", len(other)) + other + struct.pack("<I?", 7, True)
    assert len(more) % 32 == 0  # tensors stay aligned
    n_keys, = struct.unpack_from("<Q", data, 16)
    changed = tmp_path / "ministral3.gguf"
    changed.write_bytes(data[:16] + struct.pack("<Q", n_keys + 2) + more + data[24:])
    longer = ",".join(["1"] * 513)
    assert "but the model has a context of 512" in tutti("logits", changed, "--ids", longer, "--out", tmp_path / "x", check=2).stderr
    tutti("logits", path, "--ids", longer, "--out", tmp_path / "x")
    tutti("convert", changed, tmp_path / "again.gguf", "--type", "f16")
    keys, _ = read_gguf(tmp_path / "again.gguf")
    assert keys["mistral3.context_length"] == 512 and keys["mistral3.attention.temperature_scale"] == pytest.approx(0.1)


PADDED = {"config": ({"pad_token": "<|im_start|>"}, {}, 1), "object": ({"pad_token": {"content": "<|im_start|>"}}, {}, 1),
          "map": ({}, {"special_tokens_map.json": {"pad_token": "<|im_start|>"}}, 1), "id": ({}, {"config.json": 2}, 2),
          "token before id": ({"pad_token": "<|im_start|>"}, {"config.json": 2}, 1), "none": ({}, {}, None),
          "not a token": ({}, {"config.json": 10 ** 9}, None), "negative": ({}, {"config.json": -1}, None), "null": ({}, {"config.json": None}, None)}


@pytest.mark.parametrize("name", PADDED)
def test_the_token_that_pads_is_kept(name, tmp_path):
    """pad_token of the tokenizer, else pad_token_id of the model; and as the file has it, in a file made of that one."""
    tokenizer_config, files, want = PADDED[name]
    folder = folder_of(tmp_path)
    put(folder, "tokenizer_config.json", tokenizer_config)
    for file, value in files.items():
        if file == "config.json":
            value = {**json.loads((folder / file).read_text(encoding="utf-8")), "pad_token_id": value}
        put(folder, file, value)
    for source, out in ((folder, tmp_path / "a.gguf"), (tmp_path / "a.gguf", tmp_path / "b.gguf")):
        tutti("convert", source, out, "--type", "f16")
        assert read_gguf(out)[0].get("tokenizer.ggml.padding_token_id") == want


def sentencepiece_ids(keys, text):
    """What a program makes of a text that knows GGUF's kind "llama" only: the pair with the highest score merges first."""
    tokens, scores = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.scores"]
    ids = {token: i for i, token in reversed(list(enumerate(tokens)))}
    if keys["tokenizer.ggml.add_space_prefix"]:
        text = " " + text
    parts = list(text.replace(" ", "\u2581"))
    while True:
        pairs = [(-scores[ids[a + b]], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in ids]
        if not pairs:
            break
        i = min(pairs)[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return [i for part in parts for i in ([ids[part]] if part in ids else [ids[f"<0x{b:02X}>"] for b in part.encode()])]


def plain_cases(name):
    """(line, ids of it as plain text) of tests/fixtures/tokenizer/json (tools/fixtures/make_json_tokenizers.py)."""
    folder = os.path.join(FIXTURES, "tokenizer", "json")
    with open(os.path.join(folder, "lines.bin"), "rb") as lines, open(os.path.join(folder, name + ".cases"), "rb") as cases:
        def ids():
            n, = struct.unpack("<H", cases.read(2))
            return list(struct.unpack(f"<{n}H", cases.read(2 * n)))
        while size := lines.read(4):
            line = lines.read(struct.unpack("<I", size)[0])
            want = ids()
            ids(), ids(), cases.read(struct.unpack("<I", cases.read(4))[0])
            yield line, want


def test_other_programs_get_a_vocabulary_of_sentencepieces_kind(tmp_path):
    """A tokenizer.json that merges characters, as of LLaMA 2, Mistral and Gemma: its text is for tutti, GGUF's keys for others."""
    folder, out = tmp_path / "model", tmp_path / "model.gguf"
    folder.mkdir()
    widen(os.path.join(FIXTURES, "llama-tiny-tied"), folder, 704)
    with open(os.path.join(FIXTURES, "tokenizer", "json", "gemma.json"), encoding="utf-8") as file:
        text = file.read()
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    added = [token["content"] for token in json.loads(text)["added_tokens"]]
    tutti("convert", folder, out, "--type", "f16")
    keys, _ = read_gguf(out)
    assert keys["tokenizer.ggml.model"] == "llama" and keys["tokenizer.huggingface.json"] == text
    assert len(keys["tokenizer.ggml.tokens"]) == len(keys["tokenizer.ggml.scores"]) == 704
    n = 0
    for line, want in plain_cases("gemma"):
        try:
            line = line.decode()
        except UnicodeDecodeError:
            continue
        if len(line) < 200 and "\0" not in line and not any(token in line for token in added):
            assert sentencepiece_ids(keys, line) == want, line
            n += 1
    assert n > 50
    # and tutti reads the other form
    said = [tutti("tokenize", model, "Hello  world \u4f60").stdout for model in (folder, out)]
    assert said[0] == said[1] and said[0]
