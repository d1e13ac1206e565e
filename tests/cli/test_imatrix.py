"""tutti convert --imatrix does what it is for: each matrix of each type that uses importances has a smaller error, weighted by the
mean squared inputs that llama.cpp's llama-imatrix measured. What files hold is read here, by code compared with the gguf package."""
import os
import struct

import pytest
from test_cli import DEMO, FIXTURES, read_safetensors, tutti
from test_converted import FORMATS, LIST, STRING

KINDS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
         8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
         14: ("Q6_K", 256, 210), 39: ("MXFP4", 32, 17)}
# Each layer of the demo model has another type, and attn_output yet another.
TYPES = {0: ("q4_0", "q3_k"), 1: ("q4_1", "q4_k"), 2: ("q5_0", "q5_k"), 3: ("q5_1", "q6_k"), 4: ("q2_k", "mxfp4"), 5: ("q4_k", "q4_1")}
MATRICES = ("attn_qkv", "attn_output", "ffn_up")
N_ROWS = 48


class Gguf:
    """{name: (type, shape, offset)} and the bytes."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.at = 8
        n_tensors, n_keys = self.take(10), self.take(10)
        for _ in range(n_keys):
            self.take(STRING)
            self.take(self.take(4))
        self.infos, self.tensors = self.at, {}
        for _ in range(n_tensors):
            name = self.take(STRING)
            shape = [self.take(10) for _ in range(self.take(4))][::-1]
            self.tensors[name] = (self.take(4), shape, self.take(10))
        self.begin = -(-self.at // 32) * 32

    def take(self, code):
        if code == STRING:
            n = self.take(10)
            self.at += n
            return self.data[self.at - n:self.at].decode(errors="replace")
        if code == LIST:
            inner = self.take(4)
            return [self.take(inner) for _ in range(self.take(10))]
        value = struct.unpack_from(FORMATS[code], self.data, self.at)
        self.at += struct.calcsize(FORMATS[code])
        return value[0]

    def kind(self, name):
        return KINDS[self.tensors[name][0]][0]

    def rows(self, name, numbers):
        """Some rows in float."""
        code, shape, offset = self.tensors[name]
        kind, n_elements, n_bytes = KINDS[code]
        n = shape[-1] // n_elements
        for i in numbers:
            at = self.begin + offset + i * n * n_bytes
            blocks = self.data[at:at + n * n_bytes]
            if kind in ("F32", "F16"):
                yield struct.unpack(f"<{n}{'f' if kind == 'F32' else 'e'}", blocks)
            else:
                yield [value for k in range(n) for value in VALUES[kind](blocks[k * n_bytes:(k + 1) * n_bytes])]


def half(block, at):
    return struct.unpack_from("<e", block, at)[0]


def nibbles(data):
    return [b & 15 for b in data] + [b >> 4 for b in data]


def small(block, n_bits, has_min):
    """Q4_0, Q4_1, Q5_0, Q5_1"""
    scale, at = half(block, 0), 4 if has_min else 2
    high = struct.unpack_from("<I", block, at)[0] if n_bits == 5 else 0
    at += 4 if n_bits == 5 else 0
    numbers = [q | (high >> i & 1) << 4 for i, q in enumerate(nibbles(block[at:at + 16]))]
    return [scale * q + half(block, 2) for q in numbers] if has_min else [scale * (q - (1 << (n_bits - 1))) for q in numbers]


def q8_0(block):
    return [half(block, 0) * q for q in struct.unpack_from("<32b", block, 2)]


def mxfp4(block):
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    scale = 2.0 ** (block[0] - 127)
    return [scale * (values[q & 7] if q < 8 else -values[q & 7]) for q in nibbles(block[1:])]


def twos(data):
    """Numbers of two bits: 32 bytes hold four runs of 32."""
    return [b >> shift & 3 for half_block in (data[:32], data[32:64]) for shift in (0, 2, 4, 6) for b in half_block]


def q2_k(block):
    scales, scale, least = block[:16], half(block, 80), half(block, 82)
    return [scale * (scales[i // 16] & 15) * q - least * (scales[i // 16] >> 4) for i, q in enumerate(twos(block[16:80]))]


def q3_k(block):
    high, low, packed = block[:32], twos(block[32:96]), block[96:108]
    scales = [(packed[i % 8] >> (4 if i >= 8 else 0) & 15 | (packed[8 + i % 4] >> 2 * (i // 4) & 3) << 4) - 32 for i in range(16)]
    return [half(block, 108) * scales[i // 16] * (q - (0 if high[i % 32] >> (i // 32) & 1 else 4)) for i, q in enumerate(low)]


def k_scales(packed):
    """(scale, min) of 8 runs, 6 bits each."""
    for i in range(8):
        if i < 4:
            yield packed[i] & 63, packed[i + 4] & 63
        else:
            yield packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4


def q45_k(block, n_bits):
    scale, least, scales = half(block, 0), half(block, 2), list(k_scales(block[4:16]))
    high, data = (block[16:48], block[48:]) if n_bits == 5 else (None, block[16:])
    numbers = [q for k in range(4) for q in nibbles(data[32 * k:32 * k + 32])]
    return [scale * scales[i // 32][0] * (q | ((high[i % 32] >> (i // 32) & 1) << 4 if high else 0)) - least * scales[i // 32][1]
            for i, q in enumerate(numbers)]


def q6_k(block):
    scales = struct.unpack_from("<16b", block, 192)
    low = [q for k in range(2) for q in nibbles(block[64 * k:64 * k + 64])]
    return [half(block, 208) * scales[i // 16] * ((q | h << 4) - 32) for i, (q, h) in enumerate(zip(low, twos(block[128:192]), strict=True))]


VALUES = {"Q4_0": lambda b: small(b, 4, False), "Q4_1": lambda b: small(b, 4, True), "Q5_0": lambda b: small(b, 5, False),
          "Q5_1": lambda b: small(b, 5, True), "Q8_0": q8_0, "Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": lambda b: q45_k(b, 4),
          "Q5_K": lambda b: q45_k(b, 5), "Q6_K": q6_k, "MXFP4": mxfp4}


def test_what_reads_blocks_here_is_right():
    seen = set()
    for name in ("tiny-quants", "tiny-types", "tiny-tables"):
        file, want = Gguf(os.path.join(FIXTURES, "gguf", f"{name}.gguf")), None
        want = read_expected(os.path.join(FIXTURES, "gguf", f"{name}.expected.safetensors"))
        for tensor, (code, shape, _) in file.tensors.items():
            if KINDS.get(code, ("F32",))[0] in VALUES and len(shape) == 2:
                values = [value for row in file.rows(tensor, range(shape[0])) for value in row]
                assert values == pytest.approx(want[tensor], rel=1e-6, abs=0), tensor
                seen.add(file.kind(tensor))
    assert seen == set(VALUES)


def read_expected(path):
    return {name: values for name, (dtype, _, values) in read_safetensors(path, only=("F32",)).items()}


def importances(path):
    file = Gguf(path)
    for name in file.tensors:
        if name.endswith(".in_sum2"):
            name = name.removesuffix(".in_sum2")
            (sums,), (count,) = file.rows(f"{name}.in_sum2", [0]), file.rows(f"{name}.counts", [0])
            yield name, [value / count[0] for value in sums]


def test_weighted_errors_become_smaller(tmp_path):
    imatrix = os.path.join(FIXTURES, "imatrix", "demo-text.gguf")
    files, more = {}, []
    for layer, (most, output) in TYPES.items():
        more += ["--tensor-type", rf"blk\.{layer}\.attn_output={output}", "--tensor-type", rf"blk\.{layer}\.={most}"]
    for name, options in (("f32", ["--type", "f32"]), ("plain", ["--type", "q8_0", *more]),
                          ("with", ["--type", "q8_0", *more, "--imatrix", imatrix])):
        tutti("convert", DEMO, tmp_path / f"{name}.gguf", *options)
        files[name] = Gguf(tmp_path / f"{name}.gguf")
    weights = dict(importances(imatrix))
    seen = set()
    for layer, types in TYPES.items():
        for matrix in MATRICES:
            name = f"blk.{layer}.{matrix}.weight"
            kind = types[matrix == "attn_output"].upper()
            assert files["plain"].kind(name) == files["with"].kind(name) == kind
            numbers = range(0, files["f32"].tensors[name][1][0], files["f32"].tensors[name][1][0] // N_ROWS)
            rows = {key: list(file.rows(name, numbers)) for key, file in files.items()}
            errors = {key: sum(w * (a - b) ** 2 for row, exact in zip(rows[key], rows["f32"], strict=True)
                               for w, a, b in zip(weights[name], row, exact, strict=True)) for key in ("plain", "with")}
            print(f"{name} {kind}: {errors['with'] / errors['plain']:.3f}")
            assert errors["with"] < errors["plain"], name
            seen.add(kind)
    assert seen == set(VALUES) - {"Q8_0"}  # which uses none
