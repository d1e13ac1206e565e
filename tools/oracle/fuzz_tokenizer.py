#!/usr/bin/env python3
"""Compares tutti's tokenizer with the sentencepiece library on random models: few characters, many kinds of pieces,
equal scores, every option, normalization maps.

  fuzz_tokenizer.py [--models 200] [--seed 1] [--driver build/tests/tokenizer/tokenizer_lines]

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
import spm_writer as spm

CHARACTERS = ["a", "b", "c", "\u2581", "\u2581", "é", "世", "👋", "\ufffd", "\n", "\t", "@", "ﬁ", "か\u3099"]
TEXTS = [c.encode() for c in CHARACTERS] + [b" ", b" ", b"  ", b"a", b"b", b"\0", b"\xff", b"\xe4\xb8", b"\xc0\x80",
                                            b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\xe3\x80\x80"]
TARGETS = [b"", b" ", b"  a", b"b ", b"ab", "世".encode(), " é ".encode(), b"\xe2\x96\x81", b"@"]


def random_pieces(rng):
    kinds = [spm.NORMAL] * 12 + [spm.USER_DEFINED] * rng.choice([0, 0, 1, 4]) + [spm.UNUSED] * rng.choice([0, 0, 3])
    kinds += [spm.CONTROL] * rng.choice([0, 1])
    alphabet = rng.sample(CHARACTERS, rng.randrange(3, len(CHARACTERS)))
    pieces = {}
    for _ in range(rng.choice([5, 30, 200])):
        if pieces and rng.random() < 0.6:       # of two others, so that merges get there
            text = (rng.choice(list(pieces)) + rng.choice(list(pieces)))[:24]
        else:
            text = "".join(rng.choice(alphabet) for _ in range(rng.choice([1, 1, 2, 2, 3, 4, 6])))
        if rng.random() < 0.05:
            text = text + " " + rng.choice(alphabet)
        pieces[text] = (text, rng.choice([-1, -2, -3, 0, 0.5, -rng.random() * 9]), rng.choice(kinds))
    if rng.random() < 0.1:
        for n in range(1, 80):
            pieces["a" * n] = ("a" * n, -n, spm.USER_DEFINED if rng.random() < 0.95 else spm.NORMAL)
    return list(pieces.values())


def random_model(rng, maps):
    byte_fallback = rng.random() < 0.5
    pieces = spm.SPECIALS + (spm.BYTES if byte_fallback else []) + random_pieces(rng)
    if rng.random() < 0.3:
        rng.shuffle(pieces)
    rules = {}
    if rng.random() < 0.4:
        for _ in range(rng.randrange(1, 12)):
            key = b"".join(rng.choice(TEXTS) for _ in range(rng.choice([1, 1, 2, 3]))).replace(b"\0", b"")
            rules[key or b"c"] = rng.choice(TARGETS)
        if rng.random() < 0.1:
            rules.update({b"b" * n: TARGETS[n % len(TARGETS)] for n in range(1, 40)})
    return spm.model(pieces, byte_fallback=byte_fallback, blank_is_suffix=rng.random() < 0.2,
                     unk_surface=rng.choice([None, "", "?", "\u2581u"]),
                     charsmap=rng.choice(maps) if rng.random() < 0.2 else spm.charsmap(rules),
                     dummy_prefix=rng.random() < 0.5, extra_blanks=rng.random() < 0.5, escape=rng.random() < 0.85)


def random_lines(rng, sp, n):
    spellings = [sp.id_to_piece(i).encode() for i in range(sp.get_piece_size())]
    yield b""
    yield b" "
    yield b"   "
    for _ in range(n):
        parts = []
        for _ in range(rng.choice([1, 2, 5, 20, 80])):
            source = rng.random()
            if source < 0.6:
                parts.append(rng.choice(TEXTS))
            elif source < 0.9:
                parts.append(rng.choice(spellings))
            elif source < 0.97:
                parts.append(rng.choice(TEXTS) * rng.randrange(1, 90))
            else:
                parts.append(bytes(rng.randrange(256) for _ in range(rng.randrange(4))))
        yield b"".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--driver", default="build/tests/tokenizer/tokenizer_lines")
    parser.add_argument("--keep", default=os.path.join(tempfile.gettempdir(), "tokenizer-fuzz.model"))
    args = parser.parse_args()

    maps = [spm.get_field(spm.get_field(spm.train(["a b c"] * 9, vocab_size=20, normalization_rule_name=rule), 3), 2)
            for rule in ("nmt_nfkc", "nfkc_cf")]
    n_lines = 0
    for number in range(args.models):
        rng = random.Random(args.seed * 1000003 + number)
        data = random_model(rng, maps)
        with open(args.keep, "wb") as file:
            file.write(data)
        sp = sentencepiece.SentencePieceProcessor(model_proto=data)
        lines = list(random_lines(rng, sp, 300))
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
