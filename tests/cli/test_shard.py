"""tutti shard: every family cut over ranks and put together again, what a rank holds, and what is refused."""
import hashlib
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

import pytest

from test_cli import BIN, DEMO, FIXTURES, PATIENCE, SANITIZED, tutti, wrong
from test_convert import PEAK, write_llama

TYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def read_safetensors(path):
    """name -> (type, shape, bytes)"""
    data = pathlib.Path(path).read_bytes()
    n, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for name, t in header.items()}


def fields(data):
    """Of a message of protocol buffers: (number, value)."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            n = varint()
            yield key >> 3, data[at:at + n]
            at += n


def read_mindspore(path):
    tensors = {}
    data = pathlib.Path(path).read_bytes()
    if data[-17:-10] == b"crc_num":
        data = data[:-17]
    for _, value in fields(data):
        value = dict(fields(value))
        tensor = list(fields(value[2]))
        if dict(tensor)[2] != b"str":
            tensors[value[1].decode()] = (dict(tensor)[2].decode(), [v for k, v in tensor if k == 1], dict(tensor)[3])
    return tensors


def read_folder(folder):
    """All tensors of a folder, in whatever files they are."""
    tensors = {}
    for path in sorted(pathlib.Path(folder).iterdir()):
        if path.name.endswith(".ckpt"):
            tensors.update(read_mindspore(path))
        elif path.name.startswith("model") and path.suffix == ".safetensors":
            tensors.update(read_safetensors(path))
    assert tensors
    return tensors


# Source, where its tensors can be read from, and the numbers of ranks of 1, 2, 3, 4 and 8 that its heads allow.
SOURCES = [
    ("llama-tiny", None, (1, 2, 4, 8)), ("llama-tiny-tied", None, (1, 2, 4, 8)), ("chatglm3-tiny", None, (1, 2, 4)),
    ("qwen2-tiny", None, (1, 2, 4)), ("qwen2-tiny-yarn", None, (1, 2, 4)), ("qwen3-tiny", None, (1, 2, 4)),
    ("qwen3-tiny-windows", None, (1, 2, 4)),
    ("mistral-tiny", None, (1, 2, 4)), ("glm-4-9b-tiny", None, (1, 2, 4)), ("glm-tiny", None, (1, 2, 4)),
    ("glm4-tiny", None, (1, 2, 4)), ("gpt2-tiny", None, (1, 2, 4)), ("bloom-tiny", None, (1, 2, 3)),
    ("bloom-tiny-post", None, (1, 2, 4)), ("pangu-tiny", None, (1, 2, 4)), ("chatglm-6b-tiny", None, (1, 2, 4)),
    ("pytorch/sharded", "glm-4-9b-tiny", (1, 2, 4)), ("pytorch/old", "gpt2-tiny", (1, 2, 4)),
    ("mindspore/glm", None, (1, 2, 4)), ("mindspore/pangu", None, (1, 2, 4)),
    ("mindspore/ranks", "mindspore/glm", (1, 2, 4)),
    ("deepseek-v2-lite-tiny", None, (1, 3)), ("deepseek-v3-tiny", None, (1, 2, 4)),
    ("experts/mixtral-tiny-merged", None, (1, 3)), ("gpt-oss-tiny", None, (1, 2, 4)), ("experts/qwen2-moe-tiny-merged", None, (1, 2, 4)),
    ("experts/qwen3-moe-tiny-merged", None, (1, 2, 4)), ("experts/glm4-moe-tiny-air-merged", None, (1, 2, 4)),
]


@pytest.mark.parametrize("source,same,allowed", SOURCES, ids=[s[0] for s in SOURCES])
def test_every_family_comes_back_bit_for_bit(source, same, allowed, tmp_path):
    source, want = f"{FIXTURES}/{source}", read_folder(f"{FIXTURES}/{same or source}")
    before, fingerprints = None, set()
    for n in (1, 2, 3, 4, 8):
        cut = tmp_path / f"cut-{n}"
        if n not in allowed:
            said = wrong("shard", source, cut, "--tp", n)
            assert f"tp {n}:" in said and "heads" in said and f"expected tp {allowed[0]}, {allowed[1]}" in said
            assert not cut.exists()
            continue
        fingerprints.add(tutti("shard", source, cut, "--tp", n).stdout.splitlines()[1])
        tutti("shard", cut, "--check")
        tutti("shard", cut, tmp_path / f"whole-{n}", "--tp", 1)
        assert read_folder(tmp_path / f"whole-{n}") == want
        if before:  # from one cut to another is the same as from the whole
            tutti("shard", before, tmp_path / f"again-{n}", "--tp", n)
            assert ("rank_1" in os.listdir(cut)) == (n > 1)
            assert not subprocess.run(["diff", "-r", cut, tmp_path / f"again-{n}"], check=False,
                                      stdout=subprocess.PIPE).stdout
        before = cut
    assert len(fingerprints) == 1
    assert sorted(os.listdir(tmp_path)) == sorted({f"{k}-{n}" for n in allowed for k in ("cut", "whole", "again")} -
                                                  {f"again-{allowed[0]}"})


@pytest.mark.parametrize("source,_,allowed", SOURCES, ids=[s[0] for s in SOURCES])
def test_a_cut_model_computes_what_the_whole_one_does(source, _, allowed, tmp_path):
    tutti("shard", f"{FIXTURES}/{source}", tmp_path / "cut", "--tp", allowed[-1])
    ids = ["--ids", "5,17,3,42,8,77,90,21"] if "6b" not in source else ["--ids", "5,17,3,106,108,77,90,21"]
    for model, out in ((f"{FIXTURES}/{source}", "want"), (tmp_path / "cut", "found")):
        tutti("logits", model, *ids, "-o", tmp_path / out)
    assert (tmp_path / "want").read_bytes() == (tmp_path / "found").read_bytes()


def test_the_demo_model_speaks_from_its_parts(tmp_path):
    tutti("shard", DEMO, tmp_path / "cut", "--tp", 2)
    call = ["--chat", "-p", "What is the capital of France?", "--temperature", "0", "-n", "24"]
    want = tutti("generate", DEMO, *call).stdout
    assert want and tutti("generate", tmp_path / "cut", *call).stdout == want
    info = [json.loads(tutti("inspect", model, "--json", "--memory", "1G").stdout) for model in (DEMO, tmp_path / "cut")]
    for each in info:
        del each["path"]
        each["tensors"].sort(key=lambda t: t["name"])
    assert info[0] == info[1]


# ---- what a rank holds ------------------------------------------------------------------------------------------

def rows(tensor, *runs):
    kind, shape, data = tensor
    size = len(data) // shape[0]
    return kind, [sum(b - a for a, b in runs), *shape[1:]], b"".join(data[a * size:b * size] for a, b in runs)


def columns(tensor, *runs):
    kind, (n, width), data = tensor
    size = TYPE_BYTES[kind]
    lines = [data[r * width * size:(r + 1) * width * size] for r in range(n)]
    return kind, [n, sum(b - a for a, b in runs)], b"".join(line[a * size:b * size] for line in lines for a, b in runs)


def cut(source, n, tmp_path):
    tutti("shard", f"{FIXTURES}/{source}", tmp_path / "cut", "--tp", n)
    return read_folder(f"{FIXTURES}/{source}"), [read_folder(tmp_path / "cut" / f"rank_{r}") for r in range(n)]


def test_ranks_of_llama(tmp_path):
    """8 heads of 16, 2 KV heads, feed-forward 160, 317 ids, over 4 ranks: KV heads are on two ranks each."""
    whole, ranks = cut("llama-tiny", 4, tmp_path)
    at = "model.layers.1."
    for r, rank in enumerate(ranks):
        assert rank.keys() == whole.keys()

        def same(name, want, rank=rank):
            assert rank[name] == want

        same(at + "self_attn.q_proj.weight", rows(whole[at + "self_attn.q_proj.weight"], (32 * r, 32 * r + 32)))
        for kv in "kv":
            name = f"{at}self_attn.{kv}_proj.weight"
            same(name, rows(whole[name], (r // 2 * 16, r // 2 * 16 + 16)))
        same(at + "self_attn.o_proj.weight", columns(whole[at + "self_attn.o_proj.weight"], (32 * r, 32 * r + 32)))
        for name in (at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"):
            same(name, rows(whole[name], (40 * r, 40 * r + 40)))
        same(at + "mlp.down_proj.weight", columns(whole[at + "mlp.down_proj.weight"], (40 * r, 40 * r + 40)))
        for name in ("model.norm.weight", at + "input_layernorm.weight"):
            same(name, whole[name])
        # 20 units of 16 rows, the last one of 13
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            same(name, rows(whole[name], (80 * r, min(80 * r + 80, 317))))


def test_ranks_of_fused_matrices(tmp_path):
    """GLM-4: q, k, v in one (4 heads of 16, 2 KV heads), gate and up in one (96 each)."""
    whole, ranks = cut("glm-4-9b-tiny", 2, tmp_path)
    at = "transformer.encoder.layers.1."
    for r, rank in enumerate(ranks):
        runs = ((32 * r, 32 * r + 32), (64 + 16 * r, 80 + 16 * r), (96 + 16 * r, 112 + 16 * r))
        for name in ("self_attention.query_key_value.weight", "self_attention.query_key_value.bias"):
            assert rank[at + name] == rows(whole[at + name], *runs)
        name = at + "mlp.dense_h_to_4h.weight"
        assert rank[name] == rows(whole[name], (48 * r, 48 * r + 48), (96 + 48 * r, 144 + 48 * r))
        name = at + "mlp.dense_4h_to_h.weight"
        assert rank[name] == columns(whole[name], (48 * r, 48 * r + 48))


def test_ranks_of_turned_matrices(tmp_path):
    """GPT-2: [in, out]; 4 heads of 16, feed-forward 256. Biases that are added after the all-reduce are whole on every rank."""
    whole, ranks = cut("gpt2-tiny", 4, tmp_path)
    for r, rank in enumerate(ranks):
        runs = [(64 * k + 16 * r, 64 * k + 16 * r + 16) for k in range(3)]
        assert rank["h.0.attn.c_attn.weight"] == columns(whole["h.0.attn.c_attn.weight"], *runs)
        assert rank["h.0.attn.c_attn.bias"] == rows(whole["h.0.attn.c_attn.bias"], *runs)
        assert rank["h.0.attn.c_proj.weight"] == rows(whole["h.0.attn.c_proj.weight"], (16 * r, 16 * r + 16))
        n = whole["h.0.mlp.c_fc.bias"][1][0] // 4
        assert rank["h.0.mlp.c_fc.weight"] == columns(whole["h.0.mlp.c_fc.weight"], (n * r, n * r + n))
        assert rank["h.0.mlp.c_proj.weight"] == rows(whole["h.0.mlp.c_proj.weight"], (n * r, n * r + n))
        for name in ("h.0.attn.c_proj.bias", "h.0.mlp.c_proj.bias", "wpe.weight", "ln_f.bias"):
            assert rank[name] == whole[name]


def test_ranks_of_heads_that_lie_together(tmp_path):
    """BLOOM: [heads][q, k, v][8]; 6 heads over 3 ranks."""
    whole, ranks = cut("bloom-tiny", 3, tmp_path)
    for r, rank in enumerate(ranks):
        for end in ("weight", "bias"):
            name = f"h.1.self_attention.query_key_value.{end}"
            assert rank[name] == rows(whole[name], (48 * r, 48 * r + 48))


def test_ranks_of_a_query_layer(tmp_path):
    """PanGu-Alpha: 4 heads of 16; the top layer's names have no number. Its table by position is whole."""
    whole, ranks = cut("pangu-tiny", 2, tmp_path)
    at = "backbone.top_query_layer."
    for r, rank in enumerate(ranks):
        for k in (1, 2, 3):
            name = f"{at}attention.dense{k}.weight"
            assert rank[name] == rows(whole[name], (32 * r, 32 * r + 32))
        name = at + "attention.projection.weight"  # [in, out]
        assert rank[name] == rows(whole[name], (32 * r, 32 * r + 32))
        n = whole[at + "output.mapping.bias"][1][0] // 2
        assert rank[at + "output.mapping.bias"] == rows(whole[at + "output.mapping.bias"], (n * r, n * r + n))
        assert [name for name in whole if "top_query_embedding" in name or "query_embedding" in name]
        assert all(rank[name] == whole[name] for name in whole if "query_embedding" in name)


def test_configuration_and_tokenizer_go_with_every_rank(tmp_path):
    tutti("shard", f"{FIXTURES}/pangu-text", tmp_path / "cut", "--tp", 2)
    for r in range(2):
        folder = tmp_path / "cut" / f"rank_{r}"
        assert sorted(os.listdir(folder)) == ["config.json", "jieba", "model.safetensors", "shard.json", "text.json",
                                              "vocab.model"]
        for name in ("config.json", "vocab.model", "jieba/dict.txt", "jieba/finalseg/prob_start.py"):
            assert (folder / name).read_bytes() == pathlib.Path(FIXTURES, "pangu-text", name).read_bytes()


# ---- checksums --------------------------------------------------------------------------------------------------

def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def lines_of(tensors):
    """The lines that tell the model's tensors apart, and their bytes: those of the fingerprint, as the format describes it."""
    for name, (kind, shape, data) in sorted(tensors.items()):
        yield f"{name} {kind.lower()} [{', '.join(map(str, shape))}]", data


def manifests(folder):
    return {path: json.loads(path.read_text()) for path in sorted(folder.glob("rank_*/shard.json"))}


def test_each_file_has_one_checksum_and_the_model_one_fingerprint(tmp_path):
    said = tutti("shard", f"{FIXTURES}/pangu-text", tmp_path / "cut", "--tp", 2).stdout
    fingerprint = hashlib.sha256()
    for line, data in lines_of(read_folder(f"{FIXTURES}/pangu-text")):
        fingerprint.update(f"{line}\n".encode() + data)
    assert said.splitlines()[1] == f"fingerprint {fingerprint.hexdigest()}"
    for path, manifest in manifests(tmp_path / "cut").items():
        assert manifest["version"] == 3 and manifest["fingerprint"] == fingerprint.hexdigest()
        files = {str(p.relative_to(path.parent)) for p in path.parent.rglob("*") if p.is_file() and p != path}
        assert {f["name"] for f in manifest["files"]} == files
        assert all(f["sha256"] == sha256(path.parent / f["name"]) for f in manifest["files"])
        assert json.dumps(manifest).count("sha256") == len(files)


def flatten(manifest):
    """The strategy before version 3: without a list of kinds."""
    strategy = manifest["strategy"]
    strategy.update(strategy.pop("kinds")[0])


def test_folders_of_the_second_version_are_read(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        tutti("shard", f"{FIXTURES}/llama-tiny", folder, "--tp", 2)
    for path, manifest in manifests(old).items():
        flatten(manifest)
        manifest.update(version=2)
        path.write_text(json.dumps(manifest, indent=1))
    assert tutti("shard", old, "--check").stdout == tutti("shard", new, "--check").stdout.replace(str(new), str(old))
    tutti("shard", old, tmp_path / "again", "--tp", 2)
    assert not subprocess.run(["diff", "-r", new, tmp_path / "again"], check=False, stdout=subprocess.PIPE).stdout


def test_folders_of_the_first_version_are_read(tmp_path):
    """Version 1 had checksums of tensors, whole and part, and a fingerprint made of those."""
    source, old, new = f"{FIXTURES}/llama-tiny", tmp_path / "old", tmp_path / "new"
    tutti("shard", source, new, "--tp", 2)
    tutti("shard", source, old, "--tp", 2)
    sums = {line: hashlib.sha256(data).hexdigest() for line, data in lines_of(read_folder(source))}
    fingerprint = hashlib.sha256("".join(f"{line} {s}\n" for line, s in sums.items()).encode()).hexdigest()
    for path, manifest in manifests(old).items():
        weights = path.parent / "model.safetensors"
        weights.write_bytes(weights.read_bytes().replace(manifest["fingerprint"].encode(), fingerprint.encode()))
        manifest.update(version=1, fingerprint=fingerprint)
        flatten(manifest)
        manifest["files"][0]["sha256"] = sha256(weights)
        parts = read_safetensors(weights)
        for t in manifest["tensors"]:
            t["sha256"] = sums[f"{t['name']} {t['dtype']} [{', '.join(map(str, t['shape']))}]"]
            t["part_sha256"] = hashlib.sha256(parts[t["name"]][2]).hexdigest()
        path.write_text(json.dumps(manifest, indent=1))
    assert f"fingerprint {fingerprint}" in tutti("shard", old, "--check").stdout
    tutti("shard", old, tmp_path / "again", "--tp", 2)
    assert not subprocess.run(["diff", "-r", new, tmp_path / "again"], check=False, stdout=subprocess.PIPE).stdout
    shutil.rmtree(old / "rank_1")
    shutil.copytree(new / "rank_1", old / "rank_1")
    assert f"{old}/rank_1: it belongs to another model (fingerprint " in refused(old)


# ---- what is refused --------------------------------------------------------------------------------------------

@pytest.fixture(name="cut4")
def cut4_fixture(tmp_path):
    tutti("shard", f"{FIXTURES}/llama-tiny", tmp_path / "cut", "--tp", 4)
    return tmp_path / "cut"


def refused(folder, *more):
    said = tutti("inspect", folder, *more, check=1).stderr
    assert tutti("shard", folder, folder.parent / "x", "--tp", 2, check=1).stderr == said
    assert not (folder.parent / "x").exists()
    return said


def test_a_missing_rank_is_named(cut4):
    shutil.rmtree(cut4 / "rank_2")
    assert f"{cut4}: rank_2 is missing" in refused(cut4)


def test_a_rank_without_manifest_is_named(cut4):
    os.remove(cut4 / "rank_3" / "shard.json")
    assert f"{cut4}/rank_3: there is no shard.json" in refused(cut4)


def test_swapped_ranks_are_named(cut4):
    os.rename(cut4 / "rank_1", cut4 / "x")
    os.rename(cut4 / "rank_2", cut4 / "rank_1")
    os.rename(cut4 / "x", cut4 / "rank_2")
    assert f"{cut4}/rank_1: it holds rank 2 of 4" in refused(cut4)


def test_swapped_files_are_named(cut4):
    shutil.copy(cut4 / "rank_2" / "model.safetensors", cut4 / "rank_1" / "model.safetensors")
    assert f"{cut4}/rank_1/model.safetensors: the tensors of rank 2, but the folder is rank 1" in refused(cut4)


def test_a_foreign_rank_is_named(cut4, tmp_path):
    shutil.copytree(f"{FIXTURES}/llama-tiny", tmp_path / "other")
    for path in (tmp_path / "other").glob("model-*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    tutti("shard", tmp_path / "other", tmp_path / "other-cut", "--tp", 4)
    shutil.rmtree(cut4 / "rank_1")
    shutil.copytree(tmp_path / "other-cut" / "rank_1", cut4 / "rank_1")
    assert f"{cut4}/rank_1: it belongs to another model (fingerprint " in refused(cut4)


def test_another_number_of_ranks_is_named(cut4, tmp_path):
    tutti("shard", cut4, tmp_path / "two", "--tp", 2)
    shutil.copytree(tmp_path / "two" / "rank_1", tmp_path / "mixed" / "rank_1")
    for r in (0, 2, 3):
        shutil.copytree(cut4 / f"rank_{r}", tmp_path / "mixed" / f"rank_{r}")
    assert "/mixed/rank_1: one of 2 ranks, but rank_0 is one of 4" in refused(tmp_path / "mixed")
    shutil.copytree(cut4 / "rank_3", tmp_path / "two" / "rank_3")
    assert "/two: rank_3 is here, but rank_0 is one of 2 ranks" in refused(tmp_path / "two")


def test_changed_bytes_are_named(cut4, tmp_path):
    path = cut4 / "rank_2" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[data.index(read_safetensors(path)["model.layers.1.mlp.down_proj.weight"][2]) + 77] ^= 16
    path.write_bytes(data)
    for call in ((cut4, "--check"), (cut4, tmp_path / "x", "--tp", 1)):
        said = tutti("shard", *call, check=1).stderr
        assert f"{path}: its SHA-256 is {sha256(path)[:16]}, but {cut4}/rank_2/shard.json says " in said
        assert "it is damaged or was replaced; copy it again, or write the shards again" in said
    assert not (tmp_path / "x").exists()
    path.write_bytes(data[:-1])
    assert f"{path}: {len(data) - 1} bytes, but {cut4}/rank_2/shard.json says {len(data)}" in refused(cut4)


def test_a_changed_copy_is_found_by_the_check(cut4):
    """KV heads that two ranks hold are read from the first, and a configuration from rank_0."""
    path = cut4 / "rank_1" / "config.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b" ", 1))
    said = tutti("shard", cut4, "--check", check=1).stderr
    assert f"{path}: its SHA-256 is {sha256(path)[:16]}, but {cut4}/rank_1/shard.json says " in said


def test_a_whole_checkpoint_with_a_manifest_is_held_against_it(cut4, tmp_path):
    tutti("shard", cut4, tmp_path / "whole", "--tp", 1)
    path = tmp_path / "whole" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 16
    path.write_bytes(data)
    assert f"but {tmp_path}/whole/shard.json says" in tutti("shard", tmp_path / "whole", "--check", check=1).stderr
    os.remove(path)
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"):
        shutil.copy(f"{FIXTURES}/llama-tiny/{name}", tmp_path / "whole")
    assert f"{path}: No such file" in tutti("shard", tmp_path / "whole", "--check", check=1).stderr


def test_a_ranks_folder_is_no_model(cut4):
    assert f"{cut4}/rank_1: it holds rank 1 of 4; give its parent folder" in wrong("inspect", cut4 / "rank_1")


def manifest_faults():
    def put(path, value):
        def change(m):
            *parents, last = path
            for key in parents:
                m = m[key]
            if value is None:
                del m[last]
            else:
                m[last] = value
        return change

    run = ["tensors", 0, "runs"]
    return [
        (put(["format"], "other"), "format: expected \"tutti shard\""),
        (put(["version"], 4), "version 4, expected at most 3; a newer tutti wrote it"),
        (put(["version"], 0), "version: 0, expected an integer from 1 to"),
        (put(["version"], "1"), "version: a string, expected an integer from 1 to"),
        (put(["fingerprint"], "12"), "fingerprint: expected 64 hexadecimal digits"),
        (put(["n_ranks"], 0), "n_ranks: 0, expected an integer from 1 to 64"),
        (put(["n_ranks"], 65), "n_ranks: 65, expected an integer from 1 to 64"),
        (put(["rank"], 4), "rank: 4, expected an integer from 0 to 3"),
        (put(["strategy"], []), "strategy: an empty list, expected an object"),
        (put(["files"], []), "files: an empty list, expected a list of files"),
        (put(["files", 0, "name"], "../rank_1/model.safetensors"), "files[0].name: expected the name of a file"),
        (put(["files", 0, "name"], "/etc/passwd"), "files[0].name: expected the name of a file"),
        (put(["files", 0, "bytes"], -1), "files[0].bytes: -1, expected an integer from 0 to"),
        (put(["files", 0, "sha256"], None), "files[0].sha256: nothing, expected a string"),
        (put(["tensors"], {}), "tensors: an object, expected a list of tensors"),
        (put(["tensors", 3], 7), "tensors[3].name: nothing, expected a string"),
        (put(["tensors", 0, "name"], "x"), "tensor x is not in model.safetensors"),
        (put(["tensors", 0, "dtype"], "q4_0"), "tensors[0].dtype: expected a plain type"),
        (put(["tensors", 0, "dtype"], "f16"), "says f16 [80, 128]"),
        (put(["tensors", 0, "shape"], [1, 2, 3, 4, 5, 6]), "tensors[0].shape: a list of 6, expected a list of at most 5"),
        (put(["tensors", 0, "shape"], [317, -128]), "tensors[0].shape: -128, expected numbers of elements"),
        (put(["tensors", 0, "dim"], 2), "tensors[0].dim: 2, expected an integer from 0 to 1"),
        (put(["tensors", 0, "dim"], 1), "says f32 [317, 80]"),
        (put(run, [[0, 80, 90]]), "tensors[0].runs: a list of 3, expected pairs of whole numbers"),
        (put(run, [[0, 40], [30, 70]]), "tensors[0].runs: expected rising runs"),
        (put(run, [[80, 80]]), "tensors[0].runs: expected rising runs"),
        (put(run, [[300, 380]]), "tensors[0].runs: expected rising runs"),
        (put(run, [[1, 81]]), "the ranks' parts do not follow each other at 0 of 317"),
        (put(["files", 0, "sha256"], "0" * 63 + "g"), "files[0].sha256: expected 64 hexadecimal digits"),
        (put(["tensors", 0, "shape"], [2**62, 128]), "differs from the one in"),
    ]


FAULTS = manifest_faults()


@pytest.mark.parametrize("change,said", FAULTS, ids=[said[:40] for _, said in FAULTS])
def test_a_wrong_manifest_is_told_what_is_wrong(change, said, cut4):
    path = cut4 / "rank_0" / "shard.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    assert said in refused(cut4)


def test_a_broken_manifest_is_an_error_wherever_it_is_cut(cut4):
    path = cut4 / "rank_1" / "shard.json"
    text = path.read_bytes()
    for n in range(0, len(text), len(text) // 40):
        path.write_bytes(text[:n])
        assert "rank_1/shard.json: " in tutti("inspect", cut4, check=1).stderr


def test_wrong_calls_are_told(tmp_path, cut4):
    assert "expected SRC, DST and --tp N" in wrong("shard", DEMO, tmp_path / "x")
    assert "--check takes only SRC" in wrong("shard", DEMO, "--check", "--tp", 2)
    assert "--tp" in wrong("shard", DEMO, tmp_path / "x", "--tp", 0)
    assert f"{cut4} exists already; expected another name or an empty folder" in wrong("shard", DEMO, cut4, "--tp", 2)
    said = tutti("shard", f"{FIXTURES}/gguf/llama-tiny-q4_0.gguf", tmp_path / "x", "--tp", 2, check=1).stderr
    assert "a GGUF file is not cut into shards; it runs on several ranks as it is, by --tp" in said
    said = tutti("shard", f"{FIXTURES}/chatglm-ints/chatglm-6b-tiny-int4", tmp_path / "x", "--tp", 2, check=1).stderr
    assert "quantized weights" in said
    assert "there is no shard.json" in tutti("shard", DEMO, "--check", check=1).stderr
    (tmp_path / "empty").mkdir()
    tutti("shard", f"{FIXTURES}/llama-tiny", tmp_path / "empty", "--tp", 2)
    assert sorted(os.listdir(tmp_path)) == ["cut", "empty"]


# ---- half-way ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_end_half_way_leaves_nothing_that_looks_whole(number, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    write_llama(source, n_layers=8)
    with subprocess.Popen([BIN, "shard", source, target / "cut", "--tp", "2"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + PATIENCE
        while not list(target.glob("*/rank_1/model.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(number)
        process.wait(timeout=PATIENCE)
    assert process.returncode == -number
    left = os.listdir(target)
    if number != signal.SIGKILL:
        assert left == []
        return
    assert len(left) == 1 and left[0].startswith("cut.unfinished-")
    tutti("inspect", target / left[0], check=1)
    # The next run removes it, and nothing else: not what is being written now, not what has a similar name, not what a link leads to.
    others = ["cut.unfinished-abcdefg", "cut.unfinished-ab", "cut.backup", "cut.unfinished-file01"]
    for name in others[:-1]:
        (target / name).mkdir()
    (target / others[-1]).write_text("")
    (target / left[0] / "elsewhere").symlink_to(source)
    with subprocess.Popen([BIN, "shard", source, target / "cut", "--tp", "2"], stdout=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + PATIENCE
        while not set(os.listdir(target)) - {*left, *others} and time.monotonic() < deadline:
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)
        writing = set(os.listdir(target)) - {*left, *others}
        done = subprocess.run([BIN, "shard", source, target / "cut", "--tp", "4"], capture_output=True, text=True, timeout=PATIENCE,
                              check=False)
        first.send_signal(signal.SIGCONT)
        first.wait(timeout=PATIENCE)
    if writing != {"cut"}:  # it was stopped while it wrote: the other one was faster, and it has no place left
        assert done.returncode == 0 and first.returncode == 1, done.stderr
    assert sorted(os.listdir(target)) == sorted(["cut", *others])
    assert (source / "config.json").exists()
    tutti("shard", target / "cut", "--check")


def test_a_full_disk_leaves_nothing(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))

    done = tutti("shard", DEMO, tmp_path / "cut", "--tp", 2, preexec_fn=limit, check=1)
    assert "cut: File too large" in done.stderr
    assert os.listdir(tmp_path) == []


def test_the_model_streams_through(tmp_path):
    """16 times the layers, and hardly more memory: from the whole to 4 ranks, to 2, and back."""
    peaks = {}
    for n_layers in (1, 16):
        folder = tmp_path / str(n_layers)
        folder.mkdir()
        size = write_llama(folder, n_layers)
        before = folder
        for n in (4, 2, 1):
            after = tmp_path / f"{n_layers}-{n}"
            done = subprocess.run([sys.executable, "-c", PEAK, BIN, "shard", before, after, "--tp", str(n)],
                                  stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
            peaks[n_layers, n] = int(done.stdout.split()[-1])
            if n > 1 and before != folder:
                shutil.rmtree(before)
            before = after
        shutil.rmtree(before)
    for n in () if SANITIZED else (4, 2, 1):  # what the sanitizers note of each mapped byte counts too
        assert peaks[16, n] < peaks[1, n] + 16e6 and peaks[16, n] < size / 4
