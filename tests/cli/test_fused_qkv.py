"""GGUF files with q, k and v in one tensor, as llama.cpp's converter writes them with --fuse-qkv: of every table of tensor names that has
them, the same bits as of three tensors. (Files by that converter itself: tests/model/test_families.c.)"""
import os
import struct

import pytest
from test_cli import FIXTURES, tutti
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


def fuse(path, out):
    """Rows of q, k and v one after the other; returns the number of tensors that became one."""
    file, entries, n_fused = Gguf(path), [], 0

    def data_of(name):
        kind, shape, offset = file.tensors[name]
        return file.data[file.begin + offset:file.begin + offset + size_of(kind, shape)]

    for name, (kind, shape, _) in file.tensors.items():
        if ".attn_q." in name:
            parts = [name.replace(".attn_q.", f".attn_{part}.") for part in "qkv"]
            rows = sum(file.tensors[part][1][0] for part in parts)
            assert all(file.tensors[part][0] == kind for part in parts)
            entries.append((name.replace(".attn_q.", ".attn_qkv."), kind, [rows, *shape[1:]], b"".join(map(data_of, parts))))
            n_fused += 1
        elif ".attn_k." not in name and ".attn_v." not in name:
            entries.append((name, kind, shape, data_of(name)))
    infos, blobs, offset = b"", [], 0
    for name, kind, shape, data in entries:
        infos += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        infos += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, offset)
        blobs.append(data + bytes(-len(data) % ALIGNMENT))
        offset += len(blobs[-1])
    head = file.data[:8] + struct.pack("<Q", len(entries)) + file.data[16:file.infos] + infos
    out.write_bytes(head + bytes(-len(head) % ALIGNMENT) + b"".join(blobs))
    return n_fused


@pytest.mark.parametrize("name", FAMILIES)
def test_one_tensor_of_q_k_v_gives_the_same_bits(name, tmp_path):
    split, fused = tmp_path / "split.gguf", tmp_path / "fused.gguf"
    tutti("convert", os.path.join(FIXTURES, name), split, "--type", "f32")
    assert fuse(split, fused) >= 2
    assert logits_of(fused, tmp_path) == logits_of(split, tmp_path)


@pytest.mark.parametrize("name", ["mistral-tiny", "gpt-oss-tiny"])
def test_conversion_writes_three_tensors(name, tmp_path):
    split, fused, again = (tmp_path / f"{n}.gguf" for n in ("split", "fused", "again"))
    tutti("convert", os.path.join(FIXTURES, name), split, "--type", "f32")
    fuse(split, fused)
    tutti("convert", fused, again, "--type", "f32")
    a, b = Gguf(split), Gguf(again)
    assert {k: v[:2] for k, v in a.tensors.items()} == {k: v[:2] for k, v in b.tensors.items()}
    assert a.data[a.begin:] == b.data[b.begin:]
