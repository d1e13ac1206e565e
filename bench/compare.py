#!/usr/bin/env python3
"""Runs the same GGUF file through tutti and through its peers, in turn in one run, and prints the ratios.

  compare.py MODEL.gguf --tutti build/tutti [--peer NAME=BIN_DIR[:FLAGS]]... [--users 1,8,17,32] [--prefill 256]
             [--rounds 2] [--json OUT.json]

BIN_DIR holds a peer's llama-bench and llama-batched-bench; FLAGS, separated by commas, are given to both, for example
ik=~/ik_llama.cpp/build/bin:-rtr,1 (llama-batched-bench knows -rtr without a value). Figures are the best of the rounds:
on a machine that is shared, the slower ones measure the neighbours.
"""
import argparse
import json
import os
import re
import subprocess
import sys


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def tutti(args):
    report = json.loads(run([args.tutti, "bench", args.model, "--users", args.users, "--prefill", str(args.prefill), "--threads",
                             str(args.threads), "--json"]))
    figures = {(r["phase"], r["users"]): r["tok_s"] for r in report["results"]}
    limits = {(r["phase"], r["users"]): r["limit_tok_s"] for r in report["results"]}
    return figures, limits, report


def peer(args, folder, flags):
    """Tokens a second of all users together: decode at a context of 64, prefill of one prompt."""
    figures = {}
    plain = [f for f in flags if f not in ("0", "1")]
    out = run([os.path.join(folder, "llama-batched-bench"), "-m", args.model, "-c", "8192", "-b", "2048", "-ub", "512", "-npp", "64",
               "-ntg", "32", "-npl", args.users, "-t", str(args.threads), *plain])
    for line in out.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) >= 8 and cells[0] == "64":
            figures["decode", int(cells[2])] = float(cells[7])
    out = run([os.path.join(folder, "llama-bench"), "-m", args.model, "-p", str(args.prefill), "-n", "0", "-r", "2", "-t",
               str(args.threads), "-o", "json", *flags])
    start = out.index("[")
    for test in json.loads(out[start:out.rindex("]") + 1]):
        figures["prefill", 1] = test["avg_ts"]
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tutti", default="build/tutti")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--users", default="1,8,17,32")
    parser.add_argument("--prefill", type=int, default=256)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json")
    args = parser.parse_args()
    peers = {}
    for text in args.peer:
        name, rest = text.split("=", 1)
        folder, _, flags = rest.partition(":")
        peers[name] = (os.path.expanduser(folder), re.split(",", flags) if flags else [])
    best, share = {}, {}
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        figures, limits, report = tutti(args)
        for key, value in figures.items():
            best[key, "tutti"] = max(best.get((key, "tutti"), 0), value)
            share[key] = max(share.get(key, 0), value / limits[key])
        for name, (folder, flags) in peers.items():
            for key, value in peer(args, folder, flags).items():
                best[key, name] = max(best.get((key, name), 0), value)
    print(f"{report['model']}: {report['cpu']}, {report['threads']} threads; reads {report['read_gbps']:.1f} GB/s, "
          f"{report['peak_int8_gops']:.0f} Gop/s int8")
    names = list(peers)
    print(f"{'':18}{'tutti':>9}{'of limit':>10}" + "".join(f"{n:>14}{'ratio':>8}" for n in names))
    for key in share:
        row = f"{key[0] + ', ' + str(key[1]):18}{best[key, 'tutti']:9.1f}{100 * share[key]:9.1f} %"
        for name in names:
            other = best.get((key, name))
            row += f"{other:14.1f}{best[key, 'tutti'] / other:8.2f}" if other else f"{'-':>14}{'-':>8}"
        print(row)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([{"phase": k[0][0], "users": k[0][1], "engine": k[1], "tok_s": v} for k, v in best.items()], file,
                      indent=1)


if __name__ == "__main__":
    main()
