#!/usr/bin/env python3
"""Holds answers by random schemas against python3-jsonschema.

  check_schemas.py [--schemas 2000] [--first 0] [--answers 3] [--max-tokens 1500] [--probe build/tests/grammar/grammar_probe]
                   [--tokenizer models/demo/tokenizer.model] [--url http://127.0.0.1:8080]

Without --url the probe writes the answers: every token that fits has the same chance, as with a model that knows nothing. With
--url a server's model does, at temperature 2. Every answer that ends must be valid; prints how many were."""
import argparse
import collections
import concurrent.futures
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "grammar"))
import schemas  # noqa: E402


def ask_probe(probe, schema, seeds, max_tokens):
    question = {"kind": "schema", "text": json.dumps(schema), "seeds": seeds, "max_tokens": max_tokens}
    probe.stdin.write((json.dumps(question) + "\n").encode())
    probe.stdin.flush()
    return json.loads(probe.stdout.readline())


def ask_server(url, schema, seeds, max_tokens):
    outputs = []
    for seed in seeds:
        body = {"messages": [{"role": "user", "content": "Anything."}], "temperature": 2, "seed": seed, "max_tokens": max_tokens,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as reply:
                choice = json.load(reply)["choices"][0]
        except urllib.error.HTTPError as error:
            return {"error": json.load(error)["error"]["message"]}
        outputs.append({"text": choice["message"]["content"], "finished": choice["finish_reason"] == "stop"})
    return {"outputs": outputs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--answers", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=1500)
    parser.add_argument("--probe", default=os.path.join(ROOT, "build", "tests", "grammar", "grammar_probe"))
    parser.add_argument("--tokenizer", default=os.path.join(ROOT, "models", "demo", "tokenizer.model"))
    parser.add_argument("--url")
    args = parser.parse_args()
    counts, refused, times = collections.Counter(), collections.Counter(), []
    numbers = range(args.first, args.first + args.schemas)
    seeds = {n: [n * 100 + k for k in range(args.answers)] for n in numbers}
    if args.url:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(lambda n: ask_server(args.url, schemas.schema(n), seeds[n], args.max_tokens), numbers))
    else:
        probe = subprocess.Popen([args.probe, args.tokenizer], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        replies = (ask_probe(probe, schemas.schema(n), seeds[n], args.max_tokens) for n in numbers)
    for number, reply in zip(numbers, replies):
        schema = schemas.schema(number)
        if "error" in reply:
            counts["schemas refused"] += 1
            refused[reply["error"].split(": ", 1)[-1][:70]] += 1
            continue
        counts["schemas"] += 1
        if "mask_us" in reply:
            times.append(reply["mask_us"])
        for output in reply["outputs"]:
            if not output["finished"]:
                counts["answers cut off"] += 1
                continue
            try:
                schemas.check(schema, output["text"])
                counts["answers valid"] += 1
            except Exception as error:  # whatever a validator says
                counts["ANSWERS NOT VALID"] += 1
                print(f"schema {number}: {type(error).__name__}: {str(error)[:300]}\n  {json.dumps(schema)[:600]}\n  {output['text'][:300]!r}")
    for name, n in sorted(counts.items()):
        print(f"{n:7} {name}")
    for text, n in refused.most_common(20):
        print(f"{n:7} refused: {text}")
    if times:
        times.sort(key=lambda t: t[0])
        print(f"mask: median {times[len(times) // 2][0]:.0f} us; of each schema's 99th percentiles the median "
              f"{sorted(t[1] for t in times)[len(times) // 2]:.0f} us; longest {max(t[2] for t in times):.0f} us")
    sys.exit(1 if counts["ANSWERS NOT VALID"] or not counts["answers valid"] else 0)


if __name__ == "__main__":
    main()
