"""GGUF files of llama.cpp's converter that tutti's own differ from. Files with q, k and v in one tensor, as llama.cpp's converter writes them with --fuse-qkv: of every table of tensor names that has
them, the same bits as of three tensors. (Files by that converter itself: tests/model/test_families.c.)"""
import os
import struct

import pytest
from test_cli import FIXTURES, read_safetensors, tutti
from test_every_format import logits_of
from test_imatrix import Gguf

FAMILIES = ["mistral-tiny", "internlm2-tiny", "baichuan-7b-tiny", "granite-tiny", "gemma2-tiny", "gemma3-tiny", "olmo2-tiny", "smollm3-tiny",
            "starcoder2-tiny", "qwen2-tiny", "qwen3-tiny", "glm-tiny", "glm4-tiny", "gptj-tiny", "phi2-tiny", "pangu-embedded-tiny", "mixtral-tiny",
            "gpt-oss-tiny", "qwen2-moe-tiny", "qwen3-moe-tiny", "qwen3-vl-moe-tiny", "glm4-moe-tiny"]
ALIGNMENT = 32


def size_of(kind, shape):
    n = {0: 4, 1: 2, 30: 2}[kind]
    for size in shape:
        n *= size
    return n


def data_of(file, name):
    kind, shape, offset = file.tensors[name]
    return file.data[file.begin + offset:file.begin + offset + size_of(kind, shape)]


def write(out, head, entries):
    """head: the file's first bytes and metadata. entries: (name, type, shape, bytes)"""
    infos, blobs, offset = b"", [], 0
    for name, kind, shape, data in entries:
        infos += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        infos += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, offset)
        blobs.append(data + bytes(-len(data) % ALIGNMENT))
        offset += len(blobs[-1])
    head = head[:8] + struct.pack("<Q", len(entries)) + head[16:] + infos
    out.write_bytes(head + bytes(-len(head) % ALIGNMENT) + b"".join(blobs))


def fuse(path, out):
    """Rows of q, k and v one after the other; returns the number of tensors that became one."""
    file, entries, n_fused = Gguf(path), [], 0
    for name, (kind, shape, _) in file.tensors.items():
        if ".attn_q." in name:
            parts = [name.replace(".attn_q.", f".attn_{part}.") for part in "qkv"]
            rows = sum(file.tensors[part][1][0] for part in parts)
            assert all(file.tensors[part][0] == kind for part in parts)
            entries.append((name.replace(".attn_q.", ".attn_qkv."), kind, [rows, *shape[1:]], b"".join(data_of(file, part) for part in parts)))
            n_fused += 1
        elif ".attn_k." not in name and ".attn_v." not in name:
            entries.append((name, kind, shape, data_of(file, name)))
    write(out, file.data[:file.infos], entries)
    return n_fused


@pytest.mark.parametrize("name", FAMILIES)
def test_one_tensor_of_q_k_v_gives_the_same_bits(name, tmp_path):
    split, fused = tmp_path / "split.gguf", tmp_path / "fused.gguf"
    tutti("convert", os.path.join(FIXTURES, name), split, "--type", "f32")
    assert fuse(split, fused) >= 2
    assert logits_of(fused, tmp_path) == logits_of(split, tmp_path)


def fuse_experts(path, out):
    """Of each expert the rows of gate, then of up."""
    file, entries, n_fused = Gguf(path), [], 0
    for name, (kind, shape, _) in file.tensors.items():
        if ".ffn_gate_exps." in name:
            parts = [data_of(file, name), data_of(file, name.replace("gate", "up"))]
            n = len(parts[0]) // shape[0]
            both = b"".join(part[i * n:(i + 1) * n] for i in range(shape[0]) for part in parts)
            entries.append((name.replace("gate", "gate_up"), kind, [shape[0], 2 * shape[1], shape[2]], both))
            n_fused += 1
        elif ".ffn_up_exps." not in name:
            entries.append((name, kind, shape, data_of(file, name)))
    write(out, file.data[:file.infos], entries)
    return n_fused


@pytest.mark.parametrize("name", ["deepseek-v2-lite-tiny", "deepseek-v3-tiny", "glm4-moe-lite-tiny"])
def test_one_tensor_of_gate_and_up_of_experts_gives_the_same_bits(name, tmp_path):
    split, fused, again = (tmp_path / f"{n}.gguf" for n in ("split", "fused", "again"))
    tutti("convert", os.path.join(FIXTURES, name), split, "--type", "f32")
    assert fuse_experts(split, fused) >= 1
    assert logits_of(fused, tmp_path) == logits_of(split, tmp_path)
    tutti("convert", fused, again, "--type", "f32")
    a, b = Gguf(split), Gguf(again)
    assert {k: v[:2] for k, v in a.tensors.items()} == {k: v[:2] for k, v in b.tensors.items()}
    assert a.data[a.begin:] == b.data[b.begin:]


@pytest.mark.parametrize("name", ["mistral-tiny", "gpt-oss-tiny"])
def test_conversion_writes_three_tensors(name, tmp_path):
    split, fused, again = (tmp_path / f"{n}.gguf" for n in ("split", "fused", "again"))
    tutti("convert", os.path.join(FIXTURES, name), split, "--type", "f32")
    fuse(split, fused)
    tutti("convert", fused, again, "--type", "f32")
    a, b = Gguf(split), Gguf(again)
    assert {k: v[:2] for k, v in a.tensors.items()} == {k: v[:2] for k, v in b.tensors.items()}
    assert a.data[a.begin:] == b.data[b.begin:]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_rows_of_baichuan2s_output_are_divided_once(dtype, tmp_path):
    """Its converter writes them as stored; those that are divided already stay so."""
    n_vocab, plain = 125696, tmp_path / "plain.gguf"
    tutti("convert", os.path.join(FIXTURES, "baichuan-7b-tiny"), plain, "--type", dtype)
    file = Gguf(plain)
    key = b"baichuan.vocab_size" + struct.pack("<I", 4)
    head, width = file.data[:file.infos], file.tensors["output.weight"][1][1]
    assert head.count(key) == 1
    head = head.replace(key + struct.pack("<I", 109), key + struct.pack("<I", n_vocab))
    found = {}
    for name in ("unit", "scaled"):
        rows = []
        for r, row in enumerate(list(file.rows("output.weight", range(109))) * 7):
            length = sum(x * x for x in row) ** 0.5 / (1 if name == "unit" else 1.5 + r % 7)
            rows.append(struct.pack(f"<{width}{'f' if dtype == 'f32' else 'e'}", *(x / length for x in row)))
        entries = []
        for tensor, (kind, shape, _) in file.tensors.items():
            data = data_of(file, tensor)
            if tensor == "output.weight":
                data = b"".join((rows * (n_vocab // len(rows) + 1))[:n_vocab])
            elif tensor == "token_embd.weight":
                data = (data * (n_vocab // 109 + 1))[:n_vocab * len(data) // 109]
            entries.append((tensor, kind, [n_vocab, *shape[1:]] if shape[0] == 109 else shape, data))
        out = tmp_path / f"{name}.gguf"
        write(out, head, entries)
        tutti("logits", out, "--ids", "5,17", "--out", tmp_path / "logits", "--type", "f32", "--kv-type", "f32")
        found[name] = read_safetensors(tmp_path / "logits")["logits"][2]
    assert max(abs(x) for x in found["unit"]) > 1
    worst = max(abs(a - b) for a, b in zip(found["unit"], found["scaled"], strict=True))
    assert worst < (1e-5 if dtype == "f32" else 2e-2)
