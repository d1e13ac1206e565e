#!/usr/bin/env python3
"""Compares tutti convert with llama-quantize, on one GGUF file in f32, f16 or bf16.

  compare_quantize.py MODEL.gguf --llama DIR [--imatrix FILE] [--tutti build/tutti] [--types q4_k_m,q8_0] [--text FILE]

Both convert the file to each type; then for each type

* every tensor must have the same type in both results;
* what tutti wrote, read by ggml's own C, must be at most 1.01 times as far from the original as what llama-quantize
  wrote: sum of squared differences, tensor by tensor;
* the error that tutti reports for a tensor must be the one that ggml's reading finds.

With --imatrix both use it, and each squared error is multiplied by the mean squared input of its column, for matrices that
the file names. Then what tutti wrote must also be nearer than what it writes without the file ("gain" is the ratio of the two
sums; for matrices whose type uses importances), and q8_0, f16 and bf16, which do not, are left out.

With --text, tutti perplexity --kl says how far each result is from the original: the two columns may be compared, but
no bound is put on them.

Exit status 0 if all that holds. Needs the Python packages gguf and numpy."""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np

TYPES = ("q8_0 q6_k q5_k_m q5_k_s q5_1 q5_0 q4_k_m q4_k_s q4_1 q4_0 q3_k_l q3_k_m q3_k_s q2_k f16 bf16").split()
NO_IMPORTANCE = ("Q8_0", "F16", "BF16", "F32")
# q2_k_s is not among them: llama-quantize makes it with an importance matrix alone


class Ggml:
    def __init__(self, folder):
        self.lib = ctypes.CDLL(os.path.join(folder, "libggml-base.so"))

    def floats(self, tensor):
        kind = tensor.tensor_type.name
        if kind == "F32":
            return np.array(tensor.data, np.float32).ravel()
        plain = {"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}
        name = plain.get(kind, f"dequantize_row_{kind.lower()}")
        if kind.endswith("_K"):
            name = name[:-1] + "K"
        function = getattr(self.lib, name)
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        function.restype = None
        data = np.ascontiguousarray(tensor.data)
        out = np.zeros(int(tensor.n_elements), np.float32)
        function(data.ctypes.data, out.ctypes.data, out.size)
        return out


def tensors(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def importances(path):
    """{name: mean squared input of each column} of llama-imatrix' GGUF files."""
    found = tensors(path)
    return {name[:-len(".in_sum2")]: np.array(t.data, np.float64).ravel() / float(np.ravel(found[name[:-len("in_sum2")] + "counts"].data)[0])
            for name, t in found.items() if name.endswith(".in_sum2")}


def weighted(differences, weights):
    squares = np.square(differences.astype(np.float64))
    return float(squares.sum() if weights is None else (squares.reshape(-1, weights.size) * weights).sum())


def kl(tutti, path, base):
    done = subprocess.run([tutti, "perplexity", path, "--kl", base, "--json"], check=True, capture_output=True,
                          text=True)
    found = json.loads(done.stdout)
    return f"{found['kl']:.6f} ± {found['kl_error']:.6f}"


def compare(args, ggml, kind, folder, base, original, weights):
    ours, theirs, plain, report = (os.path.join(folder, name) for name in ("tutti.gguf", "llama.gguf", "plain.gguf", "report.json"))
    more = ["--imatrix", args.imatrix] if args.imatrix else []
    subprocess.run([args.tutti, "convert", args.model, ours, "--type", kind, "--report-file", report, *more], check=True,
                   stderr=subprocess.DEVNULL)
    subprocess.run([os.path.join(args.llama, "llama-quantize"), *more, "--allow-requantize", args.model, theirs, kind],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if args.imatrix:
        subprocess.run([args.tutti, "convert", args.model, plain, "--type", kind], check=True, stderr=subprocess.DEVNULL)
    mine, other, without = tensors(ours), tensors(theirs), tensors(plain) if args.imatrix else {}
    reported = {t["name"]: t["relative_rms_error"] for t in json.load(open(report, encoding="utf-8"))["tensors"]}
    bad, sums, worst, gain = [], [0.0, 0.0, 0.0], 0.0, [0.0, 0.0]
    if mine.keys() != other.keys():
        bad.append(f"tensors {sorted(mine.keys() ^ other.keys())} are in one file only")
    for name in mine.keys() & other.keys():
        x, w = original[name], weights.get(name)
        if mine[name].tensor_type != other[name].tensor_type:
            bad.append(f"{name}: {mine[name].tensor_type.name}, of llama-quantize {other[name].tensor_type.name}")
            continue
        values = ggml.floats(mine[name])
        error, square = weighted(values - x, w), weighted(x, w)
        if w is not None and mine[name].tensor_type.name not in NO_IMPORTANCE:
            before = weighted(ggml.floats(without[name]) - x, w)
            gain = [gain[0] + error, gain[1] + before]
            if not error < before:
                bad.append(f"{name}: weighted squared error {error:.6g}, without importances {before:.6g}")
        of_llama = weighted(ggml.floats(other[name]) - x, w)
        sums = [a + b for a, b in zip(sums, (error, of_llama, square))]
        worst = max(worst, error / of_llama if of_llama > 0 else 0)
        if error > 1.01 * of_llama:
            bad.append(f"{name}: squared error {error:.6g}, of llama-quantize {of_llama:.6g}")
        square = weighted(x, None)
        found = (weighted(values - x, None) / square) ** 0.5 if square else 0.0
        if abs(found - reported[name]) > 1e-5 * found + 1e-9:
            bad.append(f"{name}: reports an error of {reported[name]:.6g}, ggml finds {found:.6g}")
    ratio = sums[0] / sums[1] if sums[1] else 1.0
    line = (f"{kind:8} {os.path.getsize(ours):12} {os.path.getsize(theirs):12} {(sums[0] / sums[2]) ** 0.5:10.6f} "
            f"{(sums[1] / sums[2]) ** 0.5:10.6f} {ratio:8.3f} {worst:8.3f}")
    if gain[1]:
        line += f"  gain {gain[0] / gain[1]:.3f}"
    if base:
        line += f"  {kl(args.tutti, ours, base)}  {kl(args.tutti, theirs, base)}"
    print(line, flush=True)
    for text in bad:
        print(f"  {text}")
    return not bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--llama", metavar="DIR", required=True, help="folder of llama-quantize and libggml-base.so")
    parser.add_argument("--imatrix", metavar="FILE", help="a GGUF file of llama-imatrix, for both")
    parser.add_argument("--tutti", default="build/tutti")
    parser.add_argument("--types", help="by default all")
    parser.add_argument("--text", metavar="FILE", help="a text to compare what the models think of")
    parser.add_argument("--context", default="512", help="of its windows")
    args = parser.parse_args()
    ggml = Ggml(args.llama)
    original = {name: ggml.floats(t) for name, t in tensors(args.model).items()}
    weights = importances(args.imatrix) if args.imatrix else {}
    types = args.types.split(",") if args.types else [t for t in TYPES if not args.imatrix or t.upper() not in NO_IMPORTANCE]
    ok = True
    with tempfile.TemporaryDirectory() as folder:
        base = os.path.join(folder, "base") if args.text else None
        if base:
            subprocess.run([args.tutti, "perplexity", args.model, args.text, "--save-logits", base, "--context",
                            args.context], check=True)
        print("type            bytes     of llama  relative RMS, of llama   ratio²   worst  KL, of llama's file")
        for kind in types:
            ok = compare(args, ggml, kind, folder, base, original, weights) and ok
    print("ok" if ok else "FAILED")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
