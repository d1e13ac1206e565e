"""tutti convert --tensor-type and --imatrix: which matrices they change, and what they refuse."""
import json
import math
import os
import struct

import pytest
from test_cli import DEMO, tutti, wrong

FIXTURES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fixtures")
with open(os.path.join(FIXTURES, "llama-quantize", "types.json"), encoding="utf-8") as types_file:
    MIXED = json.load(types_file)  # by tools/fixtures/llama_quantize_fixtures.py
DAT, GGUF = (os.path.join(FIXTURES, "imatrix", name) for name in ("demo.dat", "demo.gguf"))


def convert(tmp_path, *more):
    """The report of each tensor, and the bytes of the file."""
    out, report = tmp_path / "x.gguf", tmp_path / "report.json"
    tutti("convert", DEMO, out, "--report-file", report, *more)
    return {t["name"]: t for t in json.loads(report.read_text())["tensors"]}, out.read_bytes()


def test_types_by_pattern(tmp_path):
    found, _ = convert(tmp_path, "--type", "q4_0", "--pure", "--tensor-type", r"blk\.[0-2]\.attn_output=q6_k",
                       "--tensor-type", "ATTN=q8_0", "--tensor-type", "ffn_(up|down)=q4_k")
    types = {name: t["type"] for name, t in found.items()}
    assert types["blk.2.attn_output.weight"] == "q6_k"  # the first match counts
    assert types["blk.3.attn_output.weight"] == types["blk.0.attn_qkv.weight"] == "q8_0"
    assert types["blk.5.ffn_up.weight"] == "q4_k"
    assert (found["blk.5.ffn_down.weight"]["wanted"], types["blk.5.ffn_down.weight"]) == ("q4_k", "f16")
    assert types["output.weight"] == types["token_embd.weight"] == "q4_0"
    assert types["blk.0.attn_norm.weight"] == types["blk.0.attn_qkv.bias"] == "f32"  # no matrices


def by_layer(values, n_layers):
    """Those of every layer, of names with "{}" for its number."""
    return {name.replace("{}", str(i)): value[i] if isinstance(value, list) else value
            for name, value in values.items() for i in range(n_layers if "{}" in name else 1)}


def write_zeros(folder, model):
    """Types depend on the shapes only."""
    (folder / "config.json").write_text(json.dumps(model["config"]))
    shapes = {name.replace("{}", str(i)): shape for name, shape in model["shapes"].items()
              for i in range(model["config"]["num_hidden_layers"] if "{}" in name else 1)}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def write_importance(path):
    """Of one matrix; the types of all depend on whether there is any."""
    name = b"blk.0.ffn_down.weight"
    path.write_bytes(struct.pack(f"<2i{len(name)}s2i32f", 1, len(name), name, 1, 32, *[1.0] * 32))


@pytest.mark.parametrize("name", MIXED)
def test_types_are_those_of_llama_quantize(tmp_path, name):
    model, out, report = MIXED[name], tmp_path / "x.gguf", tmp_path / "report.json"
    write_zeros(tmp_path, model)
    write_importance(tmp_path / "importance.dat")
    more = ["--imatrix", tmp_path / "importance.dat"] if model["imatrix"] else []
    for kind, types in model["types"].items():
        tutti("convert", tmp_path, out, "--type", kind, "--report-file", report, *more)
        found = {t["name"]: t["type"] for t in json.loads(report.read_text())["tensors"] if t["type"] != "f32"}
        assert found == by_layer(types, model["config"]["num_hidden_layers"]), kind


def test_up_projections_in_one_matrix_are_values(tmp_path):
    """The types are those that llama-quantize gives the same file."""
    report = tmp_path / "report.json"
    tutti("convert", os.path.join(FIXTURES, "minicpm3-tiny"), tmp_path / "x.gguf", "--type", "q4_k_m", "--report-file", report)
    types = {t["name"]: t["type"] for t in json.loads(report.read_text())["tensors"]}
    assert [types[f"blk.{i}.attn_kv_b.weight"] for i in range(2)] == ["q5_0", "q8_0"]


def weight_bytes(*args):
    """What inspect and plan say; they must agree."""
    inspected, planned = (json.loads(tutti(command, *args, "--json").stdout) for command in ("inspect", "plan"))
    assert inspected["weight_bytes"] == planned["layouts"][0]["weight_bytes"]
    return inspected["weight_bytes"]


@pytest.mark.parametrize("name", ["mixtral-8x7b", "falcon"])  # queries, keys and values have one type in memory either way
def test_a_model_takes_the_memory_of_its_converted_file(tmp_path, name):
    write_zeros(tmp_path, MIXED[name])
    for kind in MIXED[name]["types"]:
        tutti("convert", tmp_path, tmp_path / "x.gguf", "--type", kind)
        assert weight_bytes(tmp_path / "x.gguf") == weight_bytes(tmp_path, "--type", kind), kind


def test_patterns_that_are_wrong(tmp_path):
    out = tmp_path / "x.gguf"
    for text, words in (("ffn_dwon=q4_k", "--tensor-type ffn_dwon: it is the first match of no matrix"),
                        ("attn_norm=q8_0", "of no matrix"), ("(=q8_0", "no regular expression"), ("ffn", "expected PATTERN=TYPE"),
                        ("=q8_0", "expected PATTERN=TYPE"), ("ffn=q9", "where TYPE is f32"), ("ffn=iq4_nl", "where TYPE is f32")):
        assert words in wrong("convert", DEMO, out, "--type", "q4_0", "--tensor-type", text)
        assert not out.exists()


def test_importance(tmp_path):
    plain, _ = convert(tmp_path, "--type", "q4_k_s")
    old, old_bytes = convert(tmp_path, "--type", "q4_k_s", "--imatrix", DAT)
    _, new_bytes = convert(tmp_path, "--type", "q4_k_s", "--imatrix", GGUF, "--threads", "1")
    assert old_bytes == new_bytes  # both forms, any number of threads
    for name, before in plain.items():
        after = old[name]
        has_entry = any(part in name for part in ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight"))
        assert after["type"] == before["type"]
        # All errors together become larger where some of them count more.
        assert (after["relative_rms_error"] > 1.01 * before["relative_rms_error"]) == has_entry, name
        assert has_entry or after["relative_rms_error"] == before["relative_rms_error"]
    told = tutti("convert", DEMO, tmp_path / "q8_0.gguf", "--type", "q8_0", "--imatrix", DAT, check=2).stderr
    assert "--imatrix has no effect: no matrix gets a type whose quantizer weighs errors" in told


def refused(*args):
    """What the conversion prints when it fails on a file."""
    return tutti("convert", DEMO, *args, check=1).stderr


def entry(name, n_calls, values):
    return struct.pack("<i", len(name)) + name + struct.pack("<ii", n_calls, len(values)) + struct.pack(f"<{len(values)}f", *values)


def test_importance_that_is_wrong(tmp_path):
    path, out = tmp_path / "x.dat", tmp_path / "x.gguf"
    name = b"blk.0.attn_output.weight"
    good = open(DAT, "rb").read()
    for data, words in (
            (b"", "begins with no number of entries"), (good[:1000], "not all there"), (b"\xff" * 64, "no number of entries"),
            (struct.pack("<i", 1) + entry(name, 1, [1.0] * 255), "255 values, but the matrix has 256 columns: it belongs to another"),
            (struct.pack("<i", 1) + entry(name, 1, [-1.0] * 256), "blk.0.attn_output.weight: value 0 is -1"),
            (struct.pack("<i", 1) + entry(name, 1, [float("nan")] * 256), "value 0 is"),
            (struct.pack("<i", 1) + entry(b"other", 1, [1.0] * 256), "it has no entry for"),
            (struct.pack("<i", 2) + 2 * entry(name, 1, [1.0] * 256), "duplicate entry blk.0.attn_output.weight")):
        path.write_bytes(data)
        assert words in refused(out, "--type", "q4_k_s", "--imatrix", path)
        assert not out.exists()
    tutti("convert", DEMO, tmp_path / "model.gguf", "--type", "q8_0")
    assert "no tensor that ends in .in_sum2" in refused(out, "--type", "q4_k_s", "--imatrix", tmp_path / "model.gguf")
