#!/usr/bin/env python3
"""Compares tutti with llama.cpp on one model in every quantized type, as each of both programs writes it.

  compare_types.py MODEL.gguf --llama DIR [--imatrix FILE] [--tutti build/tutti] [--ours q4_k,...] [--theirs iq4_nl,...] [--text FILE]

MODEL.gguf is in f32, f16 or bf16. `tutti convert` writes the types of --ours, llama-quantize those of --theirs. Of each file:

* exact: logits of tutti with --type f32, compared with llama.cpp's on an f32 file of the values that the gguf package
  reads: largest difference of a row, relative to the root mean square of all. Bound 1e-3.
* as stored: the KL divergence between the two programs, mean and largest over all positions, each with its own arithmetic
  of 8 bits. Bounds 3e-3 and 0.2, as in compare_llama_cpp.py.

Prompts are the lines of --text, or random ids. Needs what compare_conversion.py needs."""
import argparse
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from compare_conversion import errors, llama_logits, llama_process
from compare_llama_cpp import kl_divergence
from reference import random_ids
from tutti_side import tutti_logits

OURS = "q8_0,q6_k,q5_k,q5_1,q5_0,q4_k,q4_1,q4_0,q3_k,q2_k"
THEIRS = "Q6_K,Q5_K_M,Q4_K_M,Q3_K_M,Q2_K,MXFP4_MOE,IQ4_NL,IQ4_XS,IQ3_S,IQ3_XXS,IQ2_S,IQ2_XS,IQ2_XXS,IQ1_M,IQ1_S"
EXACT, KL_MEAN, KL_MAX = 1e-3, 3e-3, 2e-1


def write_values(path, out):
    """The file with every tensor in f32."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        sub_type = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    for t in reader.tensors:
        writer.add_tensor(t.name, np.ascontiguousarray(gguf.quants.dequantize(t.data, t.tensor_type), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def prompts_of(args):
    if not args.text:
        return [random_ids(k, n, 100) for k, n in enumerate((1, 17, 60, 200))]
    with open(args.text, encoding="utf-8") as file:
        texts = [line.rstrip("\n") for line in file if line.strip()]
    return [ids[1] for ids in llama_process(args, args.model, {"texts": texts})["ids"]]


def compare(args, path, folder, prompts):
    values = os.path.join(folder, "values.gguf")
    write_values(path, values)
    exact = [tutti_logits(args.tutti, path, ids, ("--type", "f32", "--kv-type", "f32")) for ids in prompts]
    stored = [tutti_logits(args.tutti, path, ids, ("--kv-type", "f32")) for ids in prompts]
    error = errors(exact, llama_logits(args, values, prompts, 512)).max()
    theirs = llama_logits(args, path, prompts, 512)
    kl = np.concatenate([kl_divergence(a, b) for a, b in zip(theirs, stored, strict=True)])
    from_exact = [float(np.concatenate([kl_divergence(a, b) for a, b in zip(exact, x, strict=True)]).mean()) for x in (stored, theirs)]
    types = {}
    for t in gguf.GGUFReader(path).tensors:
        types[t.tensor_type.name] = types.get(t.tensor_type.name, 0) + 1
    ok = error <= EXACT and kl.mean() <= KL_MEAN and kl.max() <= KL_MAX
    print(f"exact {error:.1e}, as stored KL {kl.mean():.1e} ({kl.max():.1e} at most), from exact {from_exact[0]:.1e} of tutti, "
          f"{from_exact[1]:.1e} of llama.cpp  {'' if ok else 'FAILED '}{types}", flush=True)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama", required=True, metavar="DIR", help="folder of libllama.so and llama-quantize")
    parser.add_argument("--imatrix", metavar="FILE", help="for llama-quantize, which needs it for the smallest types")
    parser.add_argument("--tutti", default="build/tutti")
    parser.add_argument("--ours", default=OURS)
    parser.add_argument("--theirs", default=THEIRS)
    parser.add_argument("--text", metavar="FILE", help="a prompt a line, tokenized by llama.cpp")
    args = parser.parse_args()
    os.environ["LLAMA_CPP_LIB_PATH"] = os.path.abspath(args.llama)
    prompts, ok = prompts_of(args), True
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        for kind in filter(None, args.ours.split(",")):
            subprocess.run([args.tutti, "convert", args.model, path, "--type", kind], check=True, stderr=subprocess.DEVNULL)
            print(f"tutti convert {kind:10}", end=" ")
            ok = compare(args, path, folder, prompts) and ok
        for kind in filter(None, args.theirs.split(",")):
            more = ["--imatrix", args.imatrix] if args.imatrix else []
            subprocess.run([os.path.join(args.llama, "llama-quantize"), *more, args.model, path, kind, "1"], check=True, capture_output=True)
            print(f"llama-quantize {kind:9}", end=" ")
            ok = compare(args, path, folder, prompts) and ok
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
