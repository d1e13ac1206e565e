#!/usr/bin/env python3
"""Compares tutti's logits for a checkpoint folder with those of transformers, or of ChatGLM's own modelling code.

  compare_transformers.py MODEL_DIR [--tutti build/tutti] [--modeling DIR]

Random ids of several lengths go through both. Two relative errors are printed, since each alone misleads: relative to
the largest |logit| of the position (small logits may be anything), and element by element, with values below a
hundredth of that largest one counted as a hundredth of it (else one logit near zero would decide).

The reference runs in float32, whatever the files hold: 4 bytes of memory for each parameter. tutti rounds activations
where its kernels do, so a real half-precision checkpoint is not expected to come nearer than about 1e-2.
"""
import argparse
import sys

import numpy as np

from reference import margins, open_reference, random_ids
from tutti_side import tutti_logits

FLOOR = 0.01


def errors(want, got):
    """Largest absolute error, largest relative to the position's largest |logit|, largest relative by element."""
    difference = np.abs(want.astype(np.float64) - got)
    peak = np.abs(want).max(axis=-1, keepdims=True)
    by_element = difference / np.maximum(np.abs(want), FLOOR * peak)
    return difference.max(), (difference / peak).max(), by_element.max()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model_dir")
    parser.add_argument("--tutti", default="build/tutti")
    parser.add_argument("--tutti-args", default="", help="more arguments for tutti logits, in one string")
    parser.add_argument("--modeling", metavar="DIR", help="folder of modeling_chatglm.py; default: MODEL_DIR")
    parser.add_argument("--lengths", default="1,17,200")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bound", type=float, default=2e-2,
                        help="exit status 1 if an error relative to the position's largest |logit| reaches this")
    args = parser.parse_args()

    model = open_reference(args.model_dir, args.modeling)
    print("   ids   max abs  rel. to peak  by element  other choices (widest margin)")
    worst = 0.0
    for k, n in enumerate(int(n) for n in args.lengths.split(",")):
        config = model.model.config
        ids = random_ids(args.seed + k, n, config.vocab_size)
        if hasattr(model, "prompt"):
            ids = model.prompt(ids)
        want = model.logits(ids)
        got = tutti_logits(args.tutti, args.model_dir, ids, args.tutti_args.split())
        if got.shape != want.shape:
            raise SystemExit(f"tutti gives {got.shape} logits, the reference {want.shape}")
        absolute, to_peak, by_element = errors(want, got)
        other = np.flatnonzero(want.argmax(-1) != got.argmax(-1))
        note = f"{len(other)} ({margins(want[other]).max():.1e})" if len(other) else "0"
        worst = max(worst, to_peak) if np.isfinite(got).all() else np.inf
        print(f"{n:6d}  {absolute:8.2e}  {to_peak:12.2e}  {by_element:10.2e}  {note}")
    print(f"largest error {worst:.2e} of the peak, bound {args.bound:.0e}: {'ok' if worst < args.bound else 'FAILED'}")
    sys.exit(0 if worst < args.bound else 1)


if __name__ == "__main__":
    main()
