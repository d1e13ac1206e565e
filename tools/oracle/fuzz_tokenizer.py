#!/usr/bin/env python3
"""Compares tutti's tokenizer with the sentencepiece library on random models: few characters, many kinds of pieces,
equal scores, every option, normalization maps.

  fuzz_tokenizer.py [--type bpe|unigram] [--models 200] [--seed 1] [--driver build/tests/tokenizer/tokenizer_lines]

Exits with 1 where anything differs; the model at fault stays in --keep.
"""
import argparse
import os
import random
import sys
import tempfile

import sentencepiece
from compare_tokenizer import count_differences, pack_ids, pack_lines, random_ids, read_records, run, unpack_ids

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures"))
import spm_random
import spm_writer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--type", choices=["bpe", "unigram"], default="bpe")
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--driver", default="build/tests/tokenizer/tokenizer_lines")
    parser.add_argument("--keep", default=os.path.join(tempfile.gettempdir(), "tokenizer-fuzz.model"))
    args = parser.parse_args()

    model_type = spm_writer.UNIGRAM if args.type == "unigram" else spm_writer.BPE
    maps = list(spm_random.library_maps())
    n_lines = 0
    for number in range(args.models):
        rng = random.Random(args.seed * 1000003 + number)
        data = spm_random.random_model(rng, maps, model_type)
        with open(args.keep, "wb") as file:
            file.write(data)
        sp = sentencepiece.SentencePieceProcessor(model_proto=data)
        lines = list(spm_random.random_lines(rng, sp, 300))
        expected = [sp.EncodeAsIds(line) for line in lines]
        got = [unpack_ids(r) for r in read_records(run(args.driver, args.keep, "encode", pack_lines(lines)), 4)]
        n = 0
        if got != expected:
            n = count_differences(f"model {number}: encode", lines, expected, got, 3)
        sequences = expected + list(random_ids(sp, 300, number))
        texts = [sp.DecodeIds(ids, return_type=bytes) for ids in sequences]
        for mode in "decode", "stream":
            got = list(read_records(run(args.driver, args.keep, mode, pack_ids(sequences))))
            if got != texts:
                n += count_differences(f"model {number}: {mode}", sequences, texts, got, 3)
        n_lines += len(lines)
        if n:
            print(f"the model is {args.keep}")
            return 1
    os.remove(args.keep)
    print(f"0 differences: {args.models} models, {n_lines} lines, {2 * n_lines} id sequences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
