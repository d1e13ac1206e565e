"""Settings of GGUF files that few publishers write: each is honoured as llama.cpp does, or refused with its name."""
import json
import math
import os
import shutil
import struct

import pytest
from test_cli import DEMO, FIXTURES, tutti
from test_converted import read_gguf

BOOL, FLOAT, STRING, LIST, UINT32, INT32 = 7, 6, 8, 9, 4, 5
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, UINT32: 4, INT32: 4, FLOAT: 4, BOOL: 1, 10: 8, 11: 8, 12: 8}
CODES = {UINT32: "<I", INT32: "<i", FLOAT: "<f", BOOL: "?"}
ALIGNMENT = 32
# Of EXAONE 4, models of 64 layers have windows.
LARGE, PATTERN = {"exaone4.block_count": (UINT32, 64)}, "exaone4.attention.sliding_window_pattern"


def packed(kind, value):
    if kind == LIST:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(packed(inner, one) for one in values)
    if kind == STRING:
        return struct.pack("<Q", len(value)) + value.encode()
    return struct.pack(CODES[kind], value)


def end_of_value(data, at, kind):
    if kind == STRING:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind == LIST:
        inner, n = struct.unpack_from("<IQ", data, at)
        at += 12
        if inner != STRING:
            return at + n * SIZES[inner]
        for _ in range(n):
            at = end_of_value(data, at, STRING)
        return at
    return at + SIZES[kind]


def change(path, settings, without=()):
    """Adds {key: (type, value)} to the metadata, after removing these keys and those in without."""
    with open(path, "rb") as file:
        data = file.read()
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)
    at, kept = 24, []
    for _ in range(n_keys):
        begin, key_end = at, end_of_value(data, at, STRING)
        at = end_of_value(data, key_end + 4, struct.unpack_from("<I", data, key_end)[0])
        if data[begin + 8:key_end].decode() not in {*settings, *without}:
            kept.append(data[begin:at])
    tensors = at
    for _ in range(n_tensors):
        at = end_of_value(data, at, STRING)
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
    kept += [packed(STRING, key) + struct.pack("<I", kind) + packed(kind, value) for key, (kind, value) in settings.items()]
    head = data[:8] + struct.pack("<QQ", n_tensors, len(kept)) + b"".join(kept) + data[tensors:at]
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT) + data[at + -at % ALIGNMENT:])


@pytest.fixture(name="demo")
def demo_file(tmp_path):
    path = tmp_path / "demo.gguf"
    tutti("convert", DEMO, path)
    return path


def converted(tmp_path, name):
    path = tmp_path / (name + ".gguf")
    tutti("convert", os.path.join(FIXTURES, name), path)
    return path


def answer(path, *flags):
    return tutti("generate", path, "-p", "Once upon a time", "-n", "24", *flags).stdout


def refusal(path):
    return tutti("logits", path, "--ids", "5,6,7", "--out", os.path.join(os.path.dirname(path), "out"), check=1).stderr


@pytest.mark.parametrize("name, settings, said", [
    ("granite-tiny", {"granite.rope.scaling.finetuned": (BOOL, False)}, "granite.rope.scaling.finetuned: false"),
    ("exaone4-tiny", {**LARGE, PATTERN: (UINT32, 2)}, PATTERN + ": windows"),
    ("exaone4-tiny", {**LARGE, PATTERN: (LIST, (BOOL, [False, True] * 32))}, PATTERN + ": windows"),
    ("exaone4-tiny", {**LARGE, PATTERN: (LIST, (BOOL, [True, True, True, False] * 15))}, PATTERN + ": windows"),
    # The layers that the model has: refused for what is missing in the file only.
    ("exaone4-tiny", {**LARGE, PATTERN: (UINT32, 4)}, "tensor blk.2.attn_q.weight is missing"),
    ("exaone4-tiny", {**LARGE, PATTERN: (LIST, (BOOL, [True, True, True, False] * 16))}, "tensor blk.2.attn_q.weight is missing"),
    ("minimax-m2-tiny", {"minimax-m2.expert_gating_func": (UINT32, 1)}, "expert_gating_func: another function"),
    ("olmo3-tiny", {"olmo2.attention.sliding_window_pattern": (UINT32, 2)}, "sliding_window_pattern: windows"),
    ("olmo3-tiny", {"olmo2.attention.sliding_window_pattern": (LIST, (BOOL, [True, False] * 2 + [True]))}, "sliding_window_pattern: windows"),
    ("olmo3-tiny", {"olmo2.rope.freq_base_swa": (FLOAT, 1e4)}, "rope.freq_base_swa"),
    ("gemma3-tiny", {"gemma3.rope.scaling.attn_factor": (FLOAT, 1.5)}, "rope.scaling.attn_factor"),
    ("gemma3-tiny", {"gemma3.rope.scaling.type": (STRING, "yarn"), "gemma3.rope.scaling.factor": (FLOAT, 4.0),
                     "gemma3.rope.scaling.original_context_length": (UINT32, 32), "gemma3.rope.scaling.attn_factor": (FLOAT, 1.5)},
     "rope.scaling.attn_factor"),
    ("gemma4-tiny", {"gemma4.embedding_length_per_layer_input": (UINT32, 8)}, "embedding_length_per_layer_input: an embedding for each layer"),
    ("gemma4-tiny", {"gemma4.attention.shared_kv_layers": (UINT32, 1)}, "attention.shared_kv_layers: keys and values"),
    ("gemma4-tiny", {"gemma4.rope.scaling.type": (STRING, "linear"), "gemma4.rope.scaling.factor": (FLOAT, 4.0)}, "rope.scaling.type: a scaling"),
    ("gemma4-tiny", {"gemma4.attention.sliding_window_pattern": (UINT32, 2)}, "sliding_window_pattern: what is no array"),
    ("gemma4-tiny", {"gemma4.attention.head_count_kv": (LIST, (UINT32, [2, 1, 1, 1]))}, "head_count_kv: different numbers"),
    ("gemma4-tiny", {"gemma4.attention.value_length_swa": (UINT32, 16)}, "value_length_swa"),
    ("gemma4-moe-tiny", {"gemma4.expert_weights_scale": (FLOAT, 2.0)}, "expert_weights_scale"),
    ("phi4-mini-tiny", {"phi3.rope.scaling.type": (STRING, "longrope"), "phi3.rope.scaling.factor": (FLOAT, 4.0)},
     "phi3.rope.scaling.factor: a factor in addition"),
    ("llama-tiny", {"llama.attention.head_count": (LIST, (UINT32, [8, 8, 4]))}, "llama.attention.head_count: an array of different values"),
    ("llama-tiny", {"llama.attention.head_count_kv": (LIST, (UINT32, [2, 2, 1]))}, "llama.attention.head_count_kv: an array of 3 values"),
    ("llama-tiny", {"llama.block_count": (UINT32, 2)}, "it belongs to a layer beyond block_count"),
    ("llama-tiny", {"llama.rope.freq_base": (LIST, (FLOAT, [1e4]))}, "llama.rope.freq_base: an array of 1 values"),
    ("llama-tiny", {"llama.rope.freq_base": (LIST, (FLOAT, [math.inf] * 3))}, "llama.rope.freq_base: expected finite numbers"),
])
def test_what_changes_the_computation_is_refused_by_name(tmp_path, name, settings, said):
    path = converted(tmp_path, name)
    change(path, settings)
    assert said in refusal(path)


def test_yarns_factor_of_attention_is_ignored_with_a_warning(tmp_path):
    path, out = converted(tmp_path, "olmo3-tiny"), [tmp_path / name for name in ("usual", "own")]
    tutti("logits", path, "--ids", "5,6,7", "--out", out[0])
    change(path, {"olmo2.rope.scaling.yarn_attn_factor": (FLOAT, 0.875)})
    said = tutti("logits", path, "--ids", "5,6,7", "--out", out[1]).stderr
    assert "olmo2.rope.scaling.yarn_attn_factor: 0.875 is ignored, as in llama.cpp" in said and "set rope.scaling.attn_factor" in said
    assert out[0].read_bytes() == out[1].read_bytes()


def test_exact_gelu_of_gpt2_is_a_key_of_its_own(tmp_path):
    folder, path, out = tmp_path / "gpt2", tmp_path / "gpt2.gguf", [tmp_path / name for name in ("folder", "file", "tanh")]
    shutil.copytree(os.path.join(FIXTURES, "gpt2-tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"activation_function": "gelu"}))
    tutti("convert", folder, path)
    assert read_gguf(path)[0]["gpt2.hidden_act"] == "gelu"
    tutti("logits", folder, "--ids", "5,6,7", "--out", out[0])
    tutti("logits", path, "--ids", "5,6,7", "--out", out[1])
    change(path, {}, without=["gpt2.hidden_act"])
    tutti("logits", path, "--ids", "5,6,7", "--out", out[2])
    assert out[0].read_bytes() == out[1].read_bytes() != out[2].read_bytes()


def test_suppressed_tokens_are_refused_by_name(demo):
    change(demo, {"tokenizer.ggml.suppress_tokens": (LIST, (INT32, [5, 6]))})
    assert "tokenizer.ggml.suppress_tokens: tokens that may never be sampled" in refusal(demo)


def test_sampling_of_the_file_is_the_default(demo):
    greedy, drawn = answer(demo, "--temperature", "0"), answer(demo, "--seed", "1")
    assert greedy != drawn
    change(demo, {"general.sampling.temp": (FLOAT, 0.0)})
    assert answer(demo) == greedy
    change(demo, {"general.sampling.temp": (FLOAT, 1.0), "general.sampling.top_k": (INT32, 1)})
    assert answer(demo, "--seed", "1") == greedy
    assert answer(demo, "--seed", "1", "--top-k", "0", "--temperature", "1") != greedy


def test_samplers_of_the_file_that_tutti_lacks_are_named(demo):
    change(demo, {"general.sampling.mirostat": (INT32, 2), "general.sampling.xtc_probability": (FLOAT, 0.5),
                  "general.sampling.penalty_last_n": (INT32, 64), "general.sampling.sequence": (STRING, "kt")})
    said = tutti("generate", demo, "-p", "Hello", "-n", "1").stderr
    assert said.count("general.sampling.") == 4 and "left out" in said
    change(demo, {"general.sampling.mirostat": (INT32, 0), "general.sampling.xtc_probability": (FLOAT, 0.0),
                  "general.sampling.penalty_last_n": (INT32, -1), "general.sampling.sequence": (STRING, "")})
    assert "left out" not in tutti("generate", demo, "-p", "Hello", "-n", "1").stderr


def test_tokens_that_fill_gaps_are_kept_by_a_conversion(demo, tmp_path):
    keys = {f"tokenizer.ggml.{name}_token_id": (UINT32, 300 + i) for i, name in enumerate(
        ["fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep", "prefix", "suffix", "middle"])}
    change(demo, keys)
    tutti("convert", demo, tmp_path / "copy.gguf")
    copied = read_gguf(tmp_path / "copy.gguf")[0]
    assert {key: copied.get(key) for key in keys} == {key: value for key, (_, value) in keys.items()}


def test_divisors_of_rotary_frequencies_are_used_by_every_command(tmp_path):
    path, copy = os.path.join(FIXTURES, "gguf", "llama-tiny-tied-bf16.gguf"), tmp_path / "copy.gguf"
    for done in tutti("inspect", path), tutti("plan", path), tutti("convert", path, copy), tutti("inspect", copy):
        assert "unused" not in done.stderr
    assert "scaling rope_freqs" in tutti("inspect", copy).stdout


def test_granite_without_a_scale_of_scores_has_the_usual_one(tmp_path):
    path, out = converted(tmp_path, "granite-tiny"), tmp_path / "logits"
    logits, usual = [], read_gguf(path)[0]["granite.attention.key_length"] ** -0.5
    for settings, without in (({}, []), ({"granite.attention.scale": (FLOAT, usual)}, []), ({}, ["granite.attention.scale"])):
        change(path, settings, without)
        tutti("logits", path, "--ids", "5,6,7,8", "--out", out)
        logits.append(out.read_bytes())
    assert logits[0] != logits[1] == logits[2]


def test_a_converted_model_samples_as_its_folder(tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(DEMO, folder)
    with open(folder / "generation_config.json", encoding="utf-8") as file:
        settings = json.load(file)
    settings.update(do_sample=True, temperature=0.5, top_k=3, top_p=0.875, min_p=0.25, repetition_penalty=1.5)
    (folder / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tutti("convert", folder, tmp_path / "once.gguf")
    tutti("convert", tmp_path / "once.gguf", tmp_path / "twice.gguf")
    for name in ("once.gguf", "twice.gguf"):
        keys = read_gguf(tmp_path / name)[0]
        assert {key.removeprefix("general.sampling."): value for key, value in keys.items() if "sampling" in key} == {
            "temp": 0.5, "top_k": 3, "top_p": 0.875, "min_p": 0.25, "penalty_repeat": 1.5}
    settings["do_sample"] = False
    (folder / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tutti("convert", folder, tmp_path / "greedy.gguf")
    assert read_gguf(tmp_path / "greedy.gguf")[0]["general.sampling.temp"] == 0


@pytest.mark.parametrize("key", ["eot", "fim_pad", "fim_rep", "fim_sep"])
def test_each_end_of_generation_ends_an_answer(demo, key):
    change(demo, {}, without=["tokenizer.tutti.stop_token_ids"])
    whole = answer(demo, "--temperature", "0")
    ids = tutti("tokenize", demo, " " + whole.split()[3], "--ids").stdout.split(",")
    change(demo, {f"tokenizer.ggml.{key}_token_id": (UINT32, int(ids[-1]))})
    assert len(answer(demo, "--temperature", "0")) < len(whole)
