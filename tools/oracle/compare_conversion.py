#!/usr/bin/env python3
"""Compares `tutti convert` with llama.cpp and its converter, both ways, on model folders.

  compare_conversion.py FOLDER... --llama DIR [--source DIR] [--tutti build/tutti] [--types f32,q8_0] [--keep DIR]

For each folder:

* `tutti convert` writes a GGUF file in each type, and llama.cpp computes logits from it. With f32 they are compared with
  those of the folder (golden.safetensors if the folder has it, else tutti's), with other types with tutti's of the same
  file, whose arithmetic is f32 there.
* With --source (llama.cpp's source folder), convert_hf_to_gguf.py writes an f32 file, and tutti computes logits from it.
  Then the metadata and the tensors (name, shape, values) of both files are compared.
* If the folder has a tokenizer, llama.cpp must open it and tokenize TEXTS with each file. Where ids differ, transformers
  decides: the other converter drops whether a blank precedes a text, and which tokens are special.

Errors are the largest difference of a row's logits, divided by the root mean square of all of them. Exits with 1 if one
exceeds its bound, or if llama.cpp refuses a file of tutti's whose like of its own converter it opens.

Needs llama-cpp-python without a library of its own, torch, transformers, gguf (README.md). DIR of --llama holds
libllama.so.
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile

import llama_converter
import numpy as np
from llama_converter import has_tokenizer
from safetensors.numpy import load_file
from tutti_side import tutti_logits

F32_BOUND = 1e-3
# llama.cpp looks GELU up in a table of f16.
GELU_BOUND = 5e-3
# For the median of the rows: rounding activations to 8 bits changes which experts of random weights are chosen.
QUANTIZED_BOUND = 0.35
TEXTS = [
    "Hello, world!", " leading blank", "two  blanks   three", "\n\n  \n\ttabs\tand lines\r\n", "I'm you're WE'LL don't it's",
    "1234567 12.5e-3 0x1F 1,000,000", "中文测试:你好,世界!", "日本語のテキスト、カタカナ", "한국어 문장입니다", "Привет, мир! Ёлка",
    "العربية हिन्दी ไทย", "😀👨‍👩‍👧 é", "def f(x):\n    return x**2  # ok\n\n\nclass A:\n\tpass", "x",
]
SPECIAL_TEXTS = ["<s>hello</s>", "a</s> b</s> c", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "x<|endoftext|>y <|endoftext|> z",
                 "<start_of_turn>user\nhi<end_of_turn>\n", "[gMASK]<sop><|user|>\nhi<|assistant|>\n<think></think>"]


# ---- llama.cpp ----


class LlamaCpp:
    """A GGUF file in llama.cpp: logits with an f32 KV cache, or its tokenizer only."""

    def __init__(self, path, vocab_only=False, n_ctx=512):
        import llama_cpp
        self.api = llama_cpp
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = 0
        self.context = None
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise ValueError("llama.cpp refuses the file")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        if vocab_only:
            return
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type = 0
        params.n_threads = params.n_threads_batch = 1
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise ValueError("llama.cpp makes no context")

    def logits(self, ids):
        api, n = self.api, len(ids)
        api.llama_memory_clear(api.llama_get_memory(self.context), True)
        batch = api.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = int(token), i, 1, 0, 1
        status = api.llama_decode(self.context, batch)
        api.llama_batch_free(batch)
        if status != 0:
            raise ValueError(f"llama_decode: {status}")
        n_vocab = api.llama_vocab_n_tokens(self.vocab)
        return np.stack([np.ctypeslib.as_array(api.llama_get_logits_ith(self.context, i), (n_vocab,)).copy() for i in range(n)])

    def ids_of(self, text, add_special, parse_special):
        raw = text.encode()
        out = (self.api.llama_token * (len(raw) + 16))()
        n = self.api.llama_tokenize(self.vocab, raw, len(raw), out, len(out), add_special, parse_special)
        return list(out[:n])

    def ends(self):
        return [i for i in range(self.api.llama_vocab_n_tokens(self.vocab)) if self.api.llama_vocab_is_eog(self.vocab, i)]

    def close(self):
        if self.context:
            self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)


# In a process of its own: a file that llama.cpp cannot take may end it.
def llama_process(args, path, request):
    done = subprocess.run([sys.executable, __file__, "--llama", args.llama, "--answer", path], input=json.dumps(request), text=True,
                          capture_output=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if any(w in line for w in ("error", "refuse", "ASSERT", "failed", "Error"))]
        raise ValueError("; ".join(lines[:2])[:300] or f"exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def answer(path):
    request = json.load(sys.stdin)
    keep, reply = os.dup(1), {}
    os.dup2(2, 1)
    llama = LlamaCpp(path, vocab_only="texts" in request, n_ctx=request.get("n_ctx", 512))
    if "texts" in request:
        reply["ids"] = [[llama.ids_of(t, a, s) for a, s in ((False, False), (True, True))] for t in request["texts"]]
        reply["ends"] = llama.ends()
    else:
        np.savez(request["out"], *[llama.logits(ids) for ids in request["prompts"]])
    llama.close()
    os.dup2(keep, 1)
    print(json.dumps(reply), flush=True)


def llama_logits(args, path, prompts, n_ctx):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "logits.npz")
        llama_process(args, path, {"prompts": [[int(i) for i in ids] for ids in prompts], "out": out, "n_ctx": n_ctx})
        with np.load(out) as found:
            return [found[f"arr_{i}"] for i in range(len(prompts))]


# ---- comparing ----


def row_errors(got, want):
    if got.shape != want.shape:
        return np.full(1, np.inf)
    scale = np.sqrt(np.mean(want.astype(np.float64) ** 2))
    return np.abs(got.astype(np.float64) - want).max(axis=-1) / scale


def errors(got, want):
    return np.concatenate([row_errors(g, w) for g, w in zip(got, want, strict=True)])


def f32_bound(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        text = file.read()
    return GELU_BOUND if "gelu" in text or '"bloom"' in text or '"falcon"' in text else F32_BOUND


def read_gguf(path):
    """Metadata and tensors of a file: {key: value}, {name: (shape, values)}"""
    from gguf import GGUFReader
    from gguf.quants import dequantize
    reader = GGUFReader(path)
    fields = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    return fields, {t.name: dequantize(t.data, t.tensor_type) for t in reader.tensors}


def short(value):
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) < 70 else f"{text[:60]}... ({len(value) if hasattr(value, '__len__') else ''})"


# What a file says of its origin: not compared.
ORIGIN = ("general.name", "general.file_type", "general.quantization_version", "general.size_label", "general.basename", "general.tags",
          "general.languages", "general.license", "general.finetune", "general.organization", "general.sampling", "general.base_model",
          "general.dataset", "general.version", "general.description", "general.repo_url", "general.source", "general.alignment",
          "tutti.", "tokenizer.tutti", "split.", "general.url", "general.quantized_by")


def is_same(a, b):
    if isinstance(a, float) or isinstance(b, float):
        return isinstance(a, (int, float)) and isinstance(b, (int, float)) and abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(is_same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def differences(ours, theirs):
    """Lines that say where two files differ."""
    (our_fields, our_tensors), (their_fields, their_tensors) = read_gguf(ours), read_gguf(theirs)
    for key in sorted({**our_fields, **their_fields}):
        if key.startswith(ORIGIN):
            continue
        if key not in our_fields:
            yield f"{key}: only theirs: {short(their_fields[key])}"
        elif key not in their_fields:
            yield f"{key}: only ours: {short(our_fields[key])}"
        elif not is_same(our_fields[key], their_fields[key]):
            yield f"{key}: ours {short(our_fields[key])}, theirs {short(their_fields[key])}"
    for name in sorted({**our_tensors, **their_tensors}):
        a, b = our_tensors.get(name), their_tensors.get(name)
        if a is None or b is None:
            yield f"tensor {name}: only {'theirs' if a is None else 'ours'}, {list((b if a is None else a).shape)}"
        elif a.shape != b.shape:
            yield f"tensor {name}: ours {list(a.shape)}, theirs {list(b.shape)}"
        elif not np.array_equal(a, b):
            yield f"tensor {name}: {np.count_nonzero(a != b)} of {a.size} values differ, by {np.abs(a - b).max():.2e} at most"


class Report:
    def __init__(self, folder):
        self.name, self.cells, self.failed, self.notes = os.path.basename(os.path.normpath(folder)), [], False, []

    def add(self, what, error, bound):
        bad = not error <= bound
        self.failed |= bad
        self.cells.append(f"{what} {error:.1e}{' FAILED' if bad else ''}")

    def fail(self, what, why):
        self.failed = True
        self.cells.append(f"{what} FAILED: {why}")

    def note(self, what, why):
        self.cells.append(f"{what}: {why}")


def golden(folder):
    path = os.path.join(folder, "golden.safetensors")
    if not os.path.exists(path):
        return None
    tensors = load_file(path)
    n = sum(name.endswith(".ids") for name in tensors)
    return [tensors[f"{i}.ids"] for i in range(n)], [tensors[f"{i}.logits"] for i in range(n)]


def exact(args, path, prompts):
    return [tutti_logits(args.tutti, path, ids, ("--type", "f32", "--kv-type", "f32")) for ids in prompts]


def is_long(folder, ids):
    """Whether llama.cpp and tutti use the same factors of LongRoPE: llama.cpp decides by its context, tutti by the ids."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    is_longrope = (config.get("rope_scaling") or {}).get("type") == "longrope"
    return not is_longrope or len(ids) > config["original_max_position_embeddings"]


def folder_logits(args, folder):
    found = golden(folder)
    if found:
        pairs = [(ids, logits) for ids, logits in zip(*found, strict=True) if is_long(folder, ids)]
        found = [ids for ids, _ in pairs], [logits for _, logits in pairs]
    if found and not args.own_golden:
        return found
    prompts = [np.random.default_rng(k).integers(0, 100, n) for k, n in enumerate((1, 17, 60))]
    return prompts, exact(args, folder, prompts)


def check_folder(args, folder, work):
    report = Report(folder)
    prompts, want = folder_logits(args, folder)
    theirs, ours, refused = None, os.path.join(work, "f32.gguf"), None
    if args.source:
        theirs = os.path.join(work, "theirs.gguf")
        try:
            llama_converter.convert_apart(args.converter, folder, theirs, ["--outtype", "f32"])
        except ValueError as e:
            report.note("its converter", f"refuses the folder: {e}")
            theirs = None
    for dtype in args.types.split(","):
        path = os.path.join(work, f"{dtype}.gguf")
        done = subprocess.run([args.tutti, "convert", folder, path, "--type", dtype], text=True, capture_output=True, check=False)
        if done.returncode != 0:
            report.note(dtype, f"tutti convert: {done.stderr.strip()[-250:]}")
            refused = "tutti"
            continue
        try:
            got = llama_logits(args, path, prompts, args.ctx)
        except ValueError as e:
            refused = str(e)
            report.note(dtype, f"llama.cpp refuses ours: {e}") if not theirs else report.fail(dtype, f"llama.cpp refuses ours: {e}")
            continue
        if dtype == "f32":
            report.add("f32", errors(got, want).max(), f32_bound(folder))
        else:
            report.add(dtype, float(np.median(errors(got, exact(args, path, prompts)))), QUANTIZED_BOUND)
    if theirs:
        try:
            report.add("theirs in tutti", errors(exact(args, theirs, prompts), want).max(), F32_BOUND)
        except SystemExit as e:
            report.fail("theirs in tutti", str(e).strip()[-300:])
        try:
            report.note("theirs in llama.cpp", f"{errors(llama_logits(args, theirs, prompts, args.ctx), want).max():.1e}")
        except ValueError as e:
            report.note("theirs in llama.cpp", f"refused: {e}")
            if refused and refused != "tutti":
                report.note("both files", "refused")
                report.failed = False
        if os.path.exists(ours):
            report.notes += differences(ours, theirs)
    if has_tokenizer(folder) and os.path.exists(ours):
        files = [ours, *([theirs] if theirs else [])]
        found = []
        for path in files:
            try:
                found.append(llama_process(args, path, {"texts": TEXTS + SPECIAL_TEXTS}))
            except ValueError as e:
                report.fail("tokenizer", f"{os.path.basename(path)}: {e}")
        if len(found) == 2 and found[0] != found[1]:
            n = sum(a != b for a, b in zip(found[0]["ids"], found[1]["ids"], strict=True))
            report.note("tokenizer", f"{n} texts differ; ends {found[0]['ends']}, {found[1]['ends']}")
        elif found:
            report.note("tokenizer", "same ids" if len(found) == 2 else "opens")
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--llama", required=True, metavar="DIR", help="folder of llama.cpp's libllama.so")
    parser.add_argument("--source", metavar="DIR", help="llama.cpp's source, for its converter")
    parser.add_argument("--tutti", default="build/tutti")
    parser.add_argument("--types", default="f32,q8_0")
    parser.add_argument("--ctx", type=int, default=512, help="context of llama.cpp")
    parser.add_argument("--keep", metavar="DIR", help="keep the files there")
    parser.add_argument("--own-golden", action="store_true", help="compare with tutti on the folder, whatever golden file it has")
    parser.add_argument("--quiet", action="store_true", help="without the differences of metadata and tensors")
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ["LLAMA_CPP_LIB_PATH"] = os.path.abspath(args.llama)
    if args.answer:
        return answer(args.answer)
    failed = False
    args.converter = llama_converter.load(args.source) if args.source else None
    for folder in args.folders:
        with contextlib.ExitStack() as stack:
            work = os.path.join(args.keep, os.path.basename(os.path.normpath(folder))) if args.keep else stack.enter_context(tempfile.TemporaryDirectory())
            os.makedirs(work, exist_ok=True)
            try:
                report = check_folder(args, folder, work)
            except SystemExit as e:
                report = Report(folder)
                report.fail("folder", str(e).strip()[-300:])
        failed |= report.failed
        print(f"{report.name:28} {', '.join(report.cells)}", flush=True)
        for note in report.notes if not args.quiet else ():
            print(f"    {note}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
