#!/usr/bin/env python3
"""Compares tutti with llama.cpp on one GGUF file.

  compare_llama_cpp.py MODEL.gguf --llama DIR [--tutti build/tutti] [--predict 64] [--text FILE]

llama.cpp continues each prompt greedily; then tutti gets prompt and continuation in one call. Both now have a
next-token distribution at every position of the same path, so

* tutti's own greedy continuation is llama.cpp's exactly if the largest logit agrees at each position of it (by
  induction; no second continuation has to be computed), and
* KL(llama.cpp || tutti) at each position says how far they are apart, whether or not the choice agrees.

With --truth both are also compared with tutti's float32 arithmetic on the same weights (--type f32 --kv-type f32, whose own
oracle is transformers). With quantized weights each engine rounds its activations to 8 bits in its own way: how far
either is from the truth says more than how far they are apart.

Exit status: 0 if the mean KL of all positions stays below one bound and the largest below another, and with --truth
tutti's mean KL from it stays below a multiple of llama.cpp's, else 1. A different choice alone is no failure: where
the two best logits nearly tie, rounding decides.

Why so wide bounds: a last digit of difference before the rounding to 8 bits becomes a whole step after it. llama.cpp
itself, run on the demo model in Q8_0 with an f32 and then with an f16 KV cache, differs by up to 8e-4 in the mean of a
path and by 1.4e-2 at the worst position (bf16: 7e-5 and 1e-3). Small models show it most: few dimensions average
little; and random ids more than text, so give --text where there is a tokenizer. A wrong model is far beyond: on the
demo model one layer without its q, k, v bias gives a mean of 2e-2, a rotary dimension of 14 instead of 16 one of 9e-2.
But a norm epsilon of 1e-6 instead of 1e-5 stays below 1e-4: for that there are the float32 fixtures.

Needs the Python package llama-cpp-python of the same version as the libllama.so in DIR (it may be installed without a
library of its own: CMAKE_ARGS=-DLLAMA_BUILD=OFF).
"""
import argparse
import os
import sys

import numpy as np

from reference import margins, random_ids
from tutti_side import tutti_logits


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def kl_divergence(p_logits, q_logits):
    """KL(p || q) of each row, in nats."""
    p, q = log_softmax(p_logits), log_softmax(q_logits)
    return (np.exp(p) * (p - q)).sum(axis=-1)


class LlamaCpp:
    def __init__(self, llama_dir, model, n_ctx, kv):
        os.environ["LLAMA_CPP_LIB_PATH"] = os.path.abspath(llama_dir)
        try:
            import llama_cpp
        except ImportError as e:
            raise SystemExit(f"llama-cpp-python: {e}") from None
        kv_type = {"f32": llama_cpp.GGML_TYPE_F32, "f16": llama_cpp.GGML_TYPE_F16}[kv]
        self.llama = llama_cpp.Llama(model, n_ctx=n_ctx, logits_all=True, type_k=kv_type, type_v=kv_type,
                                     flash_attn=False, use_mmap=True, verbose=False)

    def n_vocab(self):
        return self.llama.n_vocab()

    def ids_of(self, text):
        return self.llama.tokenize(text.encode(), add_bos=False, special=True)

    def continue_greedily(self, prompt, n):
        """prompt and n more ids, and the logits after each of them but the last: [len(prompt) + n - 1, n_vocab]."""
        self.llama.reset()
        path = [int(i) for i in prompt]
        self.llama.eval(path)
        for _ in range(n):
            path.append(int(self.llama.scores[len(path) - 1].argmax()))
            if len(path) < len(prompt) + n:
                self.llama.eval(path[-1:])
        return path, self.llama.scores[:len(path) - 1].copy()


def prompts(args, llama):
    if args.ids:
        return [[int(i) for i in ids.split(",")] for ids in args.ids]
    if args.text:
        with open(args.text, encoding="utf-8") as f:
            return [llama.ids_of(line.rstrip("\n")) for line in f if line.strip()]
    return [random_ids(args.seed + k, n, llama.n_vocab()) for k, n in enumerate((1, 17, 17, 17, 100, 200))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--llama", metavar="DIR", required=True, help="folder of llama.cpp's libllama.so")
    parser.add_argument("--tutti", default="build/tutti")
    parser.add_argument("--tutti-args", default="", help="more arguments for tutti logits, in one string")
    parser.add_argument("--predict", type=int, default=64, metavar="N", help="length of the continuations")
    parser.add_argument("--ids", action="append", help="a prompt as 5,17,3; may be repeated")
    parser.add_argument("--text", metavar="FILE", help="a prompt a line, tokenized by llama.cpp")
    parser.add_argument("--seed", type=int, default=1, help="of random prompts, where none are given")
    parser.add_argument("--ctx", type=int, default=512, help="context for llama.cpp")
    parser.add_argument("--kv", choices=("f32", "f16"), default="f16", help="KV cache of llama.cpp")
    parser.add_argument("--kl-bound", type=float, default=3e-3, help="for the mean of all positions, in nats")
    parser.add_argument("--kl-max-bound", type=float, default=2e-1, help="for every position, in nats")
    parser.add_argument("--truth", action="store_true", help="compare both with tutti in float32 as well")
    parser.add_argument("--truth-ratio", type=float, default=1.25,
                        help="tutti's mean KL from the truth may be so many times llama.cpp's")
    args = parser.parse_args()

    llama = LlamaCpp(args.llama, args.model, args.ctx, args.kv)
    print("prompt   ids  path  same   KL mean   KL max    at  logits max abs  first other choice")
    every_kl, from_truth = [], {"tutti": [], "llama.cpp": []}
    for number, prompt in enumerate(prompts(args, llama)):
        path, want = llama.continue_greedily(prompt, args.predict)
        got = tutti_logits(args.tutti, args.model, path[:-1], args.tutti_args.split())
        if got.shape != want.shape:
            raise SystemExit(f"tutti gives {got.shape} logits, llama.cpp {want.shape}")
        kl = kl_divergence(want, got)
        if args.truth:
            more = args.tutti_args.split() + ["--type", "f32", "--kv-type", "f32"]
            truth = tutti_logits(args.tutti, args.model, path[:-1], more)
            from_truth["tutti"].append(kl_divergence(truth, got))
            from_truth["llama.cpp"].append(kl_divergence(truth, want))
        first = len(prompt) - 1  # the position that decides the first generated id
        other = first + np.flatnonzero(want[first:].argmax(-1) != got[first:].argmax(-1))
        note = "-"
        if len(other):
            at = other[0]
            note = (f"at {at}: llama.cpp {want[at].argmax()}, tutti {got[at].argmax()}; "
                    f"margin {margins(want[at]):.1e}, KL {kl[at]:.1e}")
        every_kl.append(kl)
        print(f"{number:6d} {len(prompt):5d} {len(path):5d} {args.predict - len(other):5d} {kl.mean():9.2e} "
              f"{kl.max():8.2e} {kl.argmax():5d} {np.abs(want - got).max():15.2e}  {note}")
    mean, largest = np.concatenate(every_kl).mean(), np.concatenate(every_kl).max()
    ok = mean < args.kl_bound and largest < args.kl_max_bound  # no NaN passes this
    print(f"KL mean {mean:.2e}, bound {args.kl_bound:.0e}; largest {largest:.2e}, bound {args.kl_max_bound:.0e}: "
          f"{'ok' if ok else 'FAILED'}")
    if args.truth:
        ours, theirs = (np.concatenate(from_truth[name]).mean() for name in ("tutti", "llama.cpp"))
        is_near = ours <= args.truth_ratio * theirs
        ok = ok and is_near
        print(f"KL mean from float32: tutti {ours:.2e}, llama.cpp {theirs:.2e}; at most {args.truth_ratio} times: "
              f"{'ok' if is_near else 'FAILED'}")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
