#!/usr/bin/env python3
"""Trains a unigram model in T5's manner on the lines of make_corpus_lines.py, for compare_tokenizer.py: nmt_nfkc, no begin,
no byte fallback, sentinel pieces.

  train_unigram.py LINES.bin OUT.model [--pieces 16000]
"""
import argparse
import os
import tempfile

import sentencepiece
from compare_tokenizer import read_records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines")
    parser.add_argument("out")
    parser.add_argument("--pieces", type=int, default=16000)
    args = parser.parse_args()
    with open(args.lines, "rb") as file:
        lines = list(read_records(file.read()))
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "lines.txt")
        with open(text, "w", encoding="utf-8") as file:
            for line in lines[::4]:
                file.write(line.decode(errors="ignore").replace("\n", " ").replace("\0", "") + "\n")
        sentencepiece.SentencePieceTrainer.train(
            input=text, model_prefix=os.path.join(folder, "m"), model_type="unigram", vocab_size=args.pieces,
            character_coverage=0.98, hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
            user_defined_symbols=["<extra_id_0>", "<extra_id_1>"], minloglevel=2)
        os.replace(os.path.join(folder, "m.model"), args.out)


if __name__ == "__main__":
    main()
