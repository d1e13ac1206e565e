#!/usr/bin/env python3
"""Makes long seeds for the fuzz targets out of the short ones: long_seeds.py TARGET CORPUS OUT.

What takes too long or nests too deep does so in long inputs, and a fuzzer that begins with short ones rarely gets there. Each of the first
seeds becomes some of up to 64 KiB: one part of it repeated, or nested into itself between its beginning and its end. For readers of
text there are further ones with what they recurse over or search. The same seeds each time."""
import json
import os
import random
import re
import sys

LIMIT = 65536
N_SEEDS = 12


def repeated(rng, seed):
    """A part of the seed again and again, where it stands."""
    begin = rng.randrange(len(seed))
    end = min(len(seed), begin + 1 + rng.randrange(64))
    n = (LIMIT - len(seed)) // (end - begin)
    return seed[:begin] + seed[begin:end] * n + seed[end:]


def nested(rng, seed):
    """The beginning of the seed n times, then what is between, then its end n times."""
    first = 1 + rng.randrange(min(len(seed), 24))
    last = max(first, len(seed) - 1 - rng.randrange(24))
    n = (LIMIT - (last - first)) // max(1, first + len(seed) - last)
    return seed[:first] * n + seed[first:last] + seed[last:] * n


def of_grammars():
    """The first byte chooses GBNF, a schema or a pattern (fuzz_grammar.c); what follows the last empty line is fed as text."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "grammar"))
    import attacks
    for _, field, text, _ in attacks.ATTACKS:
        kind = "\0" if field == "grammar" else "\1"
        if len(text) < LIMIT - 100:
            yield (kind + text + "\n\n{\"a\": ((((xx").encode()
    for n in (60, 255, 256, 300):
        yield ('\0root ::= "(" root ")" | "x"\n\n' + "(" * n).encode()
        yield ('\1{"items": {"$ref": "#"}, "type": "array"}\n\n' + "[" * n).encode()
    yield ('\0root ::= ' + '"a"' + "*" * 60000).encode()
    yield ("\0root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1} | "b"\n' for i in range(2400)) + 'r2400 ::= "x"\n\naaaa').encode()
    yield ("\2" + "(a|b)?" * 10000 + "\n\nabab").encode()
    yield ("\2" + "[a-z]{0,9}" * 6000 + "\n\nabab").encode()


def of_json():
    for text in ("[" * 65000, "[" * 32000 + "]" * 32000, '{"a":' * 13000, "[" + "[]," * 21000 + "[]]", "{" + ",".join(f'"{i}":0' for i in range(7000)) + "}",
                 '"' + "\\u00e9" * 10000 + '"', "[" + "1e308," * 10000 + "0]"):
        yield text.encode()


def of_bodies():
    for value in ({"messages": [{"role": "user", "content": "x"}] * 1500}, {"messages": [{"role": "user", "content": "x" * 60000}]},
                  {"prompt": "x", "stop": ["a"] * 10000}, {"prompt": list(range(12000))}, {"prompt": "x", "logit_bias": {str(i): 1 for i in range(6000)}}):
        body = json.dumps(value).encode()
        yield b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    for data in of_json():
        yield b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    yield b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 10000 + b"0\r\n\r\n"


def of_calls():
    """The answers of tests/fixtures/calls, short ones and long ones. The first byte chooses a form (fuzz_chat_calls.c)."""
    rng = random.Random(1)
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fixtures", "calls", "outputs.txt")
    with open(path, encoding="utf-8") as file:
        outputs = re.split(r"^=== .*\n", file.read(), flags=re.MULTILINE)[1:]
    for i, output in enumerate(outputs):
        answer = re.search(r"^--- answer\n(.*?)^---", output, re.DOTALL | re.MULTILINE)[1].rstrip("\n").encode()
        for form in range(i % 16, 64, 16):  # each answer in some forms that are not its own
            yield bytes([form]) + answer
        yield bytes([i % 64]) + repeated(rng, answer)
        yield bytes([i % 64]) + nested(rng, answer)
    yield from of_json()


FURTHER = {"grammar": of_grammars, "http": of_bodies, "api": of_bodies, "server": of_bodies, "config": of_json, "tokenizer": of_json, "chat_calls": of_calls,
           "load": of_json, "hub": of_json}


def main(target, corpus, out):
    rng = random.Random(target)
    names = sorted(os.listdir(corpus)) if os.path.isdir(corpus) else []
    seeds = []
    for name in rng.sample(names, min(N_SEEDS, len(names))):
        with open(os.path.join(corpus, name), "rb") as file:
            seed = file.read(LIMIT // 2)
        if seed:
            seeds += [repeated(rng, seed), nested(rng, seed)]
    seeds += FURTHER.get(target, list)()
    os.makedirs(out, exist_ok=True)
    for i, seed in enumerate(seeds):
        with open(os.path.join(out, f"long-{i:03}"), "wb") as file:
            file.write(seed[:LIMIT])


if __name__ == "__main__":
    main(*sys.argv[1:])
