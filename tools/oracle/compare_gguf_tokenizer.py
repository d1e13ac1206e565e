#!/usr/bin/env python3
"""Compares the tokenizer of a converted GGUF file with the reference library, and llama.cpp's reading of it with tutti's.

  compare_gguf_tokenizer.py SPEC FILE.gguf LINES.bin [--lines N] [--driver build/tests/tokenizer/tokenizer_lines]

SPEC: what the file was converted from, as compare_tokenizer.py takes it, or a SentencePiece file. llama-cpp-python must find its library
(LLAMA_CPP_LIB_PATH). Lines that are not UTF-8, hold a zero byte, or change in NFC are left out for llama.cpp, which neither
cleans nor normalizes text. Exits with 1 where tutti differs from the library.
"""
import argparse
import sys
import unicodedata

import byte_level
import sentencepiece
from compare_tokenizer import count_differences, pack_lines, read_records, run, unpack_ids


def is_plain(line):
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return False
    return line and b"\0" not in line and unicodedata.normalize("NFC", text) == text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("gguf")
    parser.add_argument("lines")
    parser.add_argument("--lines", type=int, dest="n_lines")
    parser.add_argument("--driver", default="build/tests/tokenizer/tokenizer_lines")
    parser.add_argument("--show", type=int, default=3)
    args = parser.parse_args()
    with open(args.lines, "rb") as file:
        lines = list(read_records(file.read()))[:args.n_lines]
    if ":" in args.spec:
        library = byte_level.load(args.spec)
        modes = {"encode": library.EncodeAsIds, "trusted": library.EncodeTrusted}
    else:
        modes = {"encode": sentencepiece.SentencePieceProcessor(model_file=args.spec).EncodeAsIds}
    n = 0
    for mode, encode in modes.items():
        got = [unpack_ids(r) for r in read_records(run(args.driver, "checkpoint:" + args.gguf, mode, pack_lines(lines)), 4)]
        n += count_differences(mode, lines, [encode(line) for line in lines], got, args.show)
        if mode == "encode":
            own = dict(zip(lines, got))

    import llama_cpp
    model = llama_cpp.Llama(args.gguf, vocab_only=True, verbose=False)
    plain = [line for line in lines if is_plain(line)]
    peer = [model.tokenize(line, add_bos=False, special=False) for line in plain]
    count_differences("llama.cpp (for information)", plain, peer, [own[line] for line in plain], args.show)
    return 1 if n else 0


if __name__ == "__main__":
    sys.exit(main())
