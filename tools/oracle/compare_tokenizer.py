#!/usr/bin/env python3
"""Compares tutti's tokenizer with its reference library, both directions: sentencepiece, tokenizers or tiktoken.

  compare_tokenizer.py MODEL LINES.bin [--lines N] [--images N | --jieba DIR] [--driver build/tests/tokenizer/tokenizer_lines] [--seed 1] [--show 5]

--images N: MODEL is ChatGLM-6B's ice_text.model with N tokens of images in front (0; of its first release 20000); the
library is wrapped into the rules that its authors put around it (icetext.py).
--jieba DIR: MODEL is PanGu-Alpha's vocab.model, and text is cut into words first (pangu_text.py). Lines that are not
UTF-8 are left out.

MODEL: a SentencePiece file; or, for byte-level tokenizers, json:FILE, vocab:PRE:FOLDER or tiktoken:PRE:FILE
(byte_level.py; PRE: gpt-2, qwen2, llama-bpe, glm4). Those are compared with spellings of special tokens read as such, too.

LINES.bin: "characters" makes lines in which every character stands in several places (of the planes without letters every
97th), also decomposed; or, for each line a u32 (little endian) with its length, then its bytes (tools/fixtures/make_corpus_lines.py).

1. ids of every line;
2. text of every line's ids, and of as many random id sequences (many byte pieces, every kind of piece), decoded at
   once and id by id;
3. seconds of both, each alone in one thread.

Exits with 1 where anything differs.
"""
import argparse
import random
import struct
import subprocess
import sys
import time
import unicodedata

import byte_level
import icetext
import sentencepiece


def read_records(data, element_bytes=1):
    at = 0
    while at < len(data):
        (n,) = struct.unpack_from("<I", data, at)
        at += 4
        yield data[at:at + n * element_bytes]
        at += n * element_bytes


def character_lines():
    """Every character beside letters, digits, blanks, marks and itself; and what each decomposes into."""
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and (c < 0x40000 or c >> 12 == 0xE0 or c % 97 == 0)]
    for i in range(0, len(points), 16):
        yield "".join(f"a{c}b {c} 1{c}2 {c}{c}\n{c}'{c}e\u0323{c}\u0301.{c}, " for c in map(chr, points[i:i + 16])).encode()
    for i in range(0, 0x30000, 64):
        parts = (unicodedata.normalize("NFD", chr(c)) for c in range(i, i + 64) if not 0xD800 <= c < 0xE000)
        yield "".join(part for part in parts if len(part) > 1).encode()
    for start in ("'", "'l", "'r", "'v"):   # contractions, with every letter that case may make equal
        for i in range(0, 0x20000, 64):
            yield "".join(f"x{start}{chr(c)} " for c in range(i, i + 64) if not 0xD800 <= c < 0xE000).encode()


def is_utf8(line):
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def pack_lines(lines):
    return b"".join(struct.pack("<I", len(line)) + line for line in lines)


def pack_ids(sequences):
    return b"".join(struct.pack(f"<I{len(ids)}i", len(ids), *ids) for ids in sequences)


def unpack_ids(record):
    return list(struct.unpack(f"<{len(record) // 4}i", record))


def random_ids(sp, n, seed):
    """Sequences in which every kind of piece is likely, also beside each other."""
    rng = random.Random(seed)
    n_pieces = sp.get_piece_size()
    if not hasattr(sp, "id_to_piece"):   # every token may hold parts of characters
        special = [i for i in range(n_pieces) if sp.is_control(i)]
        kinds = [range(n_pieces), range(256)] + ([special] if special else [])
        for _ in range(n):
            yield [rng.choice(rng.choice(kinds)) for _ in range(rng.randrange(12))]
        return
    kinds = {
        "any": list(range(n_pieces)),
        "byte": [i for i in range(n_pieces) if sp.is_byte(i)],
        "odd": [i for i in range(n_pieces) if sp.is_control(i) or sp.is_unknown(i) or sp.is_unused(i)],
        "blank": [i for i in range(n_pieces) if sp.id_to_piece(i).startswith("\u2581")],
    }
    kinds = [kind for kind in kinds.values() if kind]
    characters = "é世界👋\ufffdß𠮷\u2581".encode()
    byte_of = {sp.id_to_piece(i): i for i in range(n_pieces) if sp.is_byte(i)}
    for _ in range(n):
        ids = []
        for _ in range(rng.randrange(12)):
            if byte_of and rng.random() < 0.2:   # pieces of real characters, so that many are valid
                start = rng.randrange(len(characters))
                for byte in characters[start:start + rng.randrange(1, 7)]:
                    ids.append(byte_of[f"<0x{byte:02X}>"])
            else:
                ids.append(rng.choice(rng.choice(kinds)))
        yield ids


def run(driver, model, mode, data):
    """model: a path, or KIND:...:PATH as the driver takes it."""
    spec = model if ":" in model else "sentencepiece:" + model
    return subprocess.run([driver, spec, mode], input=data, stdout=subprocess.PIPE, check=True).stdout


def count_differences(what, inputs, expected, got, n_shown):
    if len(expected) != len(got):
        print(f"{what}: {len(got)} answers for {len(expected)} inputs")
        return 1
    n = 0
    for question, e, g in zip(inputs, expected, got):
        if e != g:
            n += 1
            if n <= n_shown:
                print(f"{what}: {question!r}\n  library {e!r}\n  tutti   {g!r}")
    print(f"{what}: {n} differences in {len(expected)}")
    return n


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("lines")
    parser.add_argument("--images", type=int)
    parser.add_argument("--jieba")
    parser.add_argument("--lines", type=int, dest="n_lines", help="compare the first N lines alone")
    parser.add_argument("--driver", default="build/tests/tokenizer/tokenizer_lines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5)
    args = parser.parse_args()

    if args.lines == "characters":
        data = pack_lines(list(character_lines()))
    else:
        with open(args.lines, "rb") as file:
            data = file.read()
    library = byte_level.load(args.model)
    if library:
        sp, model = library, args.model
    elif args.jieba:
        import pangu_text
        sp, model = pangu_text.Pangu(args.model, args.jieba), f"pangu:{args.jieba}:{args.model}"
        data = pack_lines([line for line in read_records(data) if is_utf8(line)])
    elif args.images is None:
        sp, model = sentencepiece.SentencePieceProcessor(model_file=args.model), args.model
    else:
        sp, model = icetext.Icetext(args.model, args.images), f"icetext:{args.images}:{args.model}"
    lines = list(read_records(data))[:args.n_lines]
    data = pack_lines(lines)
    name = library.name if library else f"sentencepiece {sentencepiece.__version__}"

    start = time.process_time()
    expected = [sp.EncodeAsIds(line) for line in lines]
    library_s = time.process_time() - start
    got = [unpack_ids(r) for r in read_records(run(args.driver, model, "encode", data), 4)]
    n = count_differences("encode", lines, expected, got, args.show)

    if library:
        trusted = [sp.EncodeTrusted(line) for line in lines]
        got = [unpack_ids(r) for r in read_records(run(args.driver, model, "trusted", data), 4)]
        n += count_differences("encode with special tokens", lines, trusted, got, args.show)

    sequences = expected + list(random_ids(sp, len(lines), args.seed))
    texts = [sp.DecodeIds(ids, return_type=bytes) for ids in sequences]
    packed = pack_ids(sequences)
    for mode in "decode", "stream":
        got = list(read_records(run(args.driver, model, mode, packed)))
        n += count_differences(mode, sequences, texts, got, args.show)

    n_bytes, own_s = run(args.driver, model, "time", data).split()
    mb = int(n_bytes) / 1e6
    print(f"speed: {name} {mb / library_s:.1f} MB/s (through Python), "
          f"tutti {mb / float(own_s):.1f} MB/s")
    long_line = b" ".join(lines)
    start = time.process_time()
    expected = sp.EncodeAsIds(long_line)
    library_s = time.process_time() - start
    n_bytes, own_s = run(args.driver, model, "time", pack_lines([long_line])).split()
    got = unpack_ids(next(read_records(run(args.driver, model, "encode", pack_lines([long_line])), 4)))
    print(f"speed, all as one line: {name} {mb / library_s:.1f} MB/s, tutti {mb / float(own_s):.1f} MB/s")
    n += count_differences("encode, all as one line", ["…"], [len(expected)] if expected != got else [0],
                           [len(got) + 0.5] if expected != got else [0], args.show)
    return 1 if n else 0


if __name__ == "__main__":
    sys.exit(main())
