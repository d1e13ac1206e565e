"""Every family in every format that checkpoints come in: the tensors of its tiny checkpoint, written by hand as PyTorch, MindSpore
and GGUF have them, give the logits of its safetensors, bit for bit. (Files by the formats' own libraries: tests/checkpoint.)"""
import array
import collections
import io
import json
import os
import pickle
import shutil
import struct
import sys
import types
import zipfile

import pytest

from test_cli import FIXTURES, read_safetensors, tutti

FAMILIES = ["bloom-tiny", "bloom-tiny-post", "chatglm-6b-tiny", "chatglm3-tiny", "exaone-tiny", "qwen1-tiny", "minicpm3-tiny", "stablelm-tiny", "ernie-tiny", "ernie-moe-tiny", "granite4-tiny", "granite-moe-tiny", "exaone4-tiny", "cohere-tiny", "cohere2-tiny", "gemma-tiny", "seed-oss-tiny", "gemma2-tiny", "gemma3-tiny", "gemma4-tiny", "gemma4-moe-tiny", "falcon-tiny", "gpt-neox-tiny", "gpt-bigcode-tiny", "gptj-tiny", "opt-tiny", "gpt-neox-tiny-serial", "olmo2-tiny", "olmo3-tiny", "phi2-tiny", "smollm3-tiny", "starcoder2-tiny",
             "glm-4-9b-tiny", "glm-tiny", "glm4-tiny", "gpt2-tiny", "granite-tiny",
            "llama-linear-tiny", "llama-tiny-tied", "mistral-tiny", "pangu-tiny", "phi3-tiny", "phi4-mini-tiny", "qwen2-tiny", "qwen2-tiny-yarn", "qwen3-tiny",
            "falcon-40b-tiny", "falcon-11b-tiny", "mistral3-tiny", "ministral3-tiny", "internlm3-tiny", "internlm2-tiny", "baichuan-7b-tiny", "baichuan2-tiny", "baichuan2-13b-tiny",
            "pangu-embedded-tiny", "qwen2-vl-tiny", "qwen2.5-vl-tiny", "qwen3-vl-tiny", "qwen3-vl-moe-tiny", "glm4v-tiny", "glm4v-moe-tiny",
            "mixtral-tiny", "gpt-oss-tiny", "gpt-oss-tiny-mxfp4", "qwen2-moe-tiny", "qwen3-moe-tiny", "glm4-moe-tiny", "glm4-moe-tiny-air", "minimax-m2-tiny", "olmoe-tiny",
            "deepseek-v2-lite-tiny", "deepseek-v2-tiny", "deepseek-v3-tiny", "glm4-moe-lite-tiny", "glm4-moe-lite-tiny-dense"]
PERMUTED = ["mistral3-tiny", "ministral3-tiny", "internlm3-tiny", "internlm2-tiny", "baichuan-7b-tiny", "baichuan2-tiny",
            "granite-tiny", "granite4-tiny", "granite-moe-tiny", "llama-linear-tiny", "llama-tiny-tied", "mistral-tiny", "mixtral-tiny", "smollm3-tiny"]   # GGUF's rows of q and k: scores are summed in another order
IDS = "5,17,3,105,9,11,42,100,7,8,1,2,3,4,5,6,7,60"


def read_tensors(name):
    """{name: (dtype, shape, bytes)}"""
    with open(os.path.join(FIXTURES, name, "model.safetensors"), "rb") as file:
        n, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(n))
        data = file.read()
    return {key: (info["dtype"], info["shape"], data[info["data_offsets"][0]:info["data_offsets"][1]])
            for key, info in header.items() if key != "__metadata__"}


def write_safetensors(path, tensors):
    header, n = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [n, n + len(data)]}
        n += len(data)
    head = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _, _, data in tensors.values():
            file.write(data)


class Tensor:
    """Pickled as torch.save() does."""
    def __init__(self, torch, key, dtype, shape, n_bytes):
        self.torch = torch
        self.storage = (key, dtype, n_bytes)
        self.shape = tuple(shape)

    def __reduce__(self):
        strides, n = [], 1
        for size in reversed(self.shape):
            strides.insert(0, n)
            n *= size
        return (self.torch._utils._rebuild_tensor_v2,
                (Storage(*self.storage), 0, self.shape, tuple(strides), False, collections.OrderedDict()))


Storage = collections.namedtuple("Storage", "key dtype n_bytes")


def named(module, name):
    """Something that pickles as module.name."""
    value = type(name, (), {"__module__": module.__name__, "__qualname__": name})
    setattr(module, name, value)
    return value


def write_pytorch(folder, tensors, monkeypatch):
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch._utils = utils
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    named(utils, "_rebuild_tensor_v2")
    storages = {"F32": (named(torch, "FloatStorage"), 4), "F16": (named(torch, "HalfStorage"), 2),
                "BF16": (named(torch, "BFloat16Storage"), 2), "U8": (named(torch, "ByteStorage"), 1)}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if not isinstance(obj, Storage):
                return None
            kind, size = storages[obj.dtype]
            return ("storage", kind, obj.key, "cpu", obj.n_bytes // size)

    state = collections.OrderedDict((name, Tensor(torch, str(i), dtype, shape, len(data)))
                                    for i, (name, (dtype, shape, data)) in enumerate(tensors.items()))
    out = io.BytesIO()
    Pickler(out, 2).dump(state)
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as file:
        file.writestr("archive/data.pkl", out.getvalue())
        file.writestr("archive/version", "3\n")
        for i, (_, _, data) in enumerate(tensors.values()):
            file.writestr(f"archive/data/{i}", data)


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def write_mindspore(folder, tensors, _):
    names = {"F32": b"Float32", "F16": b"Float16", "BF16": b"BFloat16", "U8": b"UInt8"}
    with open(folder / "model.ckpt", "wb") as file:
        for name, (dtype, shape, data) in tensors.items():
            dims = b"".join(b"\x08" + varint(size) for size in shape)
            tensor = dims + field(2, names[dtype]) + field(3, data)
            file.write(field(1, field(1, name.encode()) + field(2, tensor)))


def logits_of(model, tmp_path):
    out = tmp_path / "logits.safetensors"
    tutti("logits", model, "--ids", IDS, "--out", out, "--type", "f32", "--kv-type", "f32")
    return read_safetensors(out)["logits"][2]


@pytest.mark.parametrize("write", [write_pytorch, write_mindspore])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_tensors_in_another_format_give_the_same_bits(name, write, tmp_path, monkeypatch):
    folder = tmp_path / name
    folder.mkdir()
    with open(os.path.join(FIXTURES, name, "config.json"), encoding="utf-8") as file:
        (folder / "config.json").write_text(file.read(), encoding="utf-8")
    write(folder, read_tensors(name), monkeypatch)
    assert logits_of(folder, tmp_path) == logits_of(os.path.join(FIXTURES, name), tmp_path)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_model_as_gguf_gives_the_same_bits(name, tmp_path):
    path = tmp_path / "model.gguf"
    tutti("convert", os.path.join(FIXTURES, name), path, "--type", "f32")
    got, want = logits_of(path, tmp_path), logits_of(os.path.join(FIXTURES, name), tmp_path)
    if name in PERMUTED:
        assert max(abs(a - b) for a, b in zip(got, want, strict=True)) < 2e-3
    else:
        assert got == want


def transposed(data, shape):
    """Of each matrix of two-byte elements [matrices][rows][columns]."""
    n, rows, columns = shape
    elements = memoryview(data).cast("H")
    result = array.array("H", bytes(len(data)))
    for k in range(n):
        at = k * rows * columns
        for row in range(rows):
            result[at + row:at + rows * columns:rows] = array.array("H", elements[at + row * columns:at + (row + 1) * columns])
    return result.tobytes()


def test_experts_that_transformers_saved_again_give_the_same_bits(tmp_path):
    """Qwen3-VL's are published as [in][out]; transformers 5 saves them as [out][in]."""
    folder, source = tmp_path / "again", os.path.join(FIXTURES, "qwen3-vl-moe-tiny")
    folder.mkdir()
    shutil.copyfile(os.path.join(source, "config.json"), folder / "config.json")
    tensors, n_changed = read_tensors("qwen3-vl-moe-tiny"), 0
    for name, (dtype, shape, data) in tensors.items():
        if ".experts." in name:
            tensors[name] = (dtype, [shape[0], shape[2], shape[1]], transposed(data, shape))
            n_changed += 1
    assert n_changed > 2
    write_safetensors(folder / "model.safetensors", tensors)
    assert logits_of(folder, tmp_path) == logits_of(source, tmp_path)
