#!/usr/bin/env python3
"""Attacks on a server, one after the other, while honest clients stream: what one client sends must not delay the others, and
the server's memory stays below a bound.

  attack.py [--tutti BINARY] [--only WORD] [--gap-ms 200] [--memory-mb 256] [--answer-s 2] [--flags FLAGS] [--json FILE] [--list]

For each attack it prints the largest gap between two events of an honest stream, the time of the slowest two-token request, how many
of those requests were answered, how much the server's memory grew at its peak, and the statuses that the attacker got. Exits with 1
if a bound is broken or the server has ended. The first row has no attacker. --tutti names another build to compare with. "late" is
the largest delay of a timer in the measuring process: where it is not far below the bound, the machine is too busy to measure."""
import argparse
import asyncio
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from kit import HONEST_KEYS, HOSTILE_KEYS, PROBE_KEY, Attack, Attacker
from wire import Cut, Wire, post

import bodies
import grammars
import web

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROBE_EVERY_S = 0.25
QUIET = Attack("nothing", "-", None, 3)
ATTACKS = [*grammars.ATTACKS, *bodies.ATTACKS, *web.ATTACKS]


# ---- the server ------------------------------------------------------------------------------------------------------

class Target:
    def __init__(self, args, folder, attack):
        self.args, self.log_path = args, os.path.join(folder, "server.log")
        with open(os.path.join(folder, "keys"), "w", encoding="ascii") as file:
            file.writelines(f"{key} client-{key}\n" for key in (*HOSTILE_KEYS, *HONEST_KEYS, PROBE_KEY))
        keys = [] if attack.open else ["--api-key-file", os.path.join(folder, "keys")]
        command = [args.tutti, "serve", os.path.join(ROOT, "models", "demo"), "--port", "0", "--api", "llm-serving,step,tgi",
                   "--threads", "1", "--max-seqs", "16", "--no-access-log", *keys, *attack.flags, *shlex.split(args.flags)]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        line = self.process.stdout.readline().decode()
        found = re.search(r"listening on http://[^:]*:(\d+)", line)
        if not found:
            raise RuntimeError(f"{' '.join(command)}: {line or self.log()}")
        self.port = int(found.group(1))

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()[-2000:]

    def memory_mb(self, name):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return int(re.search(name + r":\s+(\d+) kB", file.read()).group(1)) / 1024

    def forget_peak(self):
        with open(f"/proc/{self.process.pid}/clear_refs", "w", encoding="ascii") as file:
            file.write("5")

    def is_alive(self):
        return self.process.poll() is None

    def end(self):
        if self.is_alive():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process.stdout.close()


# ---- honest clients --------------------------------------------------------------------------------------------------

class Honest:
    """Streams that want to be read without a pause, and requests of two tokens."""

    def __init__(self, target):
        self.target = target
        self.largest_gap = self.slowest = self.late = 0.0
        self.n_asked = self.n_answered = self.n_events = self.n_streams = 0
        self.faults = []
        self.is_over = False

    async def stream(self, i):
        """One answer after the other. A gap is the time between two events of one answer."""
        body = {"prompt": f"Once upon a time, number {i}, there was", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}
        while not self.is_over:
            wire = None
            try:
                wire = await Wire.open(self.target.port, 120)
                await wire.send(post("/v1/completions", body, HONEST_KEYS[i]))
                data, last = b"", None
                while True:
                    piece = await wire.receive()
                    now = time.monotonic()
                    if not piece:
                        raise Cut("closed", None, data)
                    if data == b"" and b" 200 " not in piece[:20]:
                        raise Cut(f"status {piece[:100]!r}")
                    data = (data + piece)[-200:]
                    if b"data:" in piece:
                        self.n_events += piece.count(b"data:")
                        if last is not None:
                            self.largest_gap = max(self.largest_gap, now - last)
                        last = now
                    if b"data: [DONE]" in data:
                        break
                self.n_streams += 1
            except (Cut, TimeoutError) as cut:
                if not self.is_over:
                    self.faults.append(f"a stream: {cut}")
                    await asyncio.sleep(0.2)
            finally:
                if wire:
                    wire.close()

    async def probe(self):
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0}
        self.n_asked += 1
        began = time.monotonic()
        try:
            wire = await Wire.open(self.target.port, 60)
            try:
                await wire.send(post("/v1/chat/completions", body, PROBE_KEY))
                status, _, data = await wire.reply()
            finally:
                wire.close()
            if status == 200:
                self.n_answered += 1
            else:
                self.faults.append(f"a two-token request: status {status}: {data[:200].decode(errors='replace')}")
        except (Cut, TimeoutError) as cut:
            self.faults.append(f"a two-token request: {cut}")
        self.slowest = max(self.slowest, time.monotonic() - began)

    async def watch(self):
        """How late this process's own timers are: the machine, not the server, adds that to every figure."""
        while not self.is_over:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            self.late = max(self.late, time.monotonic() - began - 0.005)

    async def run(self, until):
        """until: awaited; then all that was begun is read to its end."""
        tasks = [asyncio.create_task(self.stream(i)) for i in range(len(HONEST_KEYS))] + [asyncio.create_task(self.watch())]
        probes, done = [], asyncio.ensure_future(until)
        while not done.done():
            probes.append(asyncio.create_task(self.probe()))
            await asyncio.wait([done], timeout=PROBE_EVERY_S)
        await asyncio.gather(*probes)
        self.is_over = True
        await asyncio.gather(*tasks)
        return done.result()


# ---- one attack ------------------------------------------------------------------------------------------------------

async def attack_from_outside(attack, port, seconds):
    """The attack in a process of its own, at a lower priority: real ones come from other machines."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, os.path.abspath(__file__), "--attacker", attack.name, "--port", str(port), "--seconds", str(seconds),
        stdout=subprocess.PIPE, preexec_fn=lambda: os.nice(10))
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the attacker of '{attack.name}' failed with {process.returncode}")
    return json.loads(out)


def judge(args, attack, target, honest, row):
    bound = {"gap_ms": attack.gap_ms or args.gap_ms, "memory_mb": attack.memory_mb or args.memory_mb, "answer_s": attack.answer_s or args.answer_s}
    broken = list(row["attacker"]["faults"])
    if not target.is_alive():
        broken.append(f"the server has ended with {target.process.returncode}: {target.log()}")
    if row["gap_ms"] > bound["gap_ms"]:
        broken.append(f"a stream paused for {row['gap_ms']:.0f} ms, bound {bound['gap_ms']:.0f}")
    if row["memory_mb"] > bound["memory_mb"]:
        broken.append(f"memory grew by {row['memory_mb']:.0f} MB, bound {bound['memory_mb']:.0f}")
    if row["answer_s"] > bound["answer_s"]:
        broken.append(f"a two-token request took {row['answer_s']:.2f} s, bound {bound['answer_s']:.1f}")
    if honest.n_answered < honest.n_asked or not honest.n_events:
        broken.append(f"{honest.n_answered} of {honest.n_asked} two-token requests were answered, {honest.n_events} events came")
    row.update(bound=bound, broken=broken, honest_faults=honest.faults[:5])
    return row


async def run_attack(args, attack):
    with tempfile.TemporaryDirectory() as folder:
        target = Target(args, folder, attack)
        try:
            warm = Honest(target)
            await warm.run(asyncio.sleep(1.5))  # caches are full before memory is measured
            before = target.memory_mb("VmRSS")
            target.forget_peak()
            honest, seconds = Honest(target), attack.seconds * args.patience
            told = {"counts": {}, "faults": [], "texts": {}}
            found = await honest.run(attack_from_outside(attack, target.port, seconds) if attack.run else asyncio.sleep(seconds))
            peak = target.memory_mb("VmHWM") if target.is_alive() else 0
            row = {"name": attack.name, "item": attack.item, "gap_ms": 1000 * honest.largest_gap, "answer_s": honest.slowest,
                   "answered": honest.n_answered, "asked": honest.n_asked, "memory_mb": max(0, peak - before), "rss_mb": peak,
                   "late_ms": 1000 * honest.late, "events": honest.n_events, "attacker": found or told}
            return judge(args, attack, target, honest, row)
        finally:
            target.end()


HEAD = f"{'':4s} {'attack':38s} {'gap ms':>8s} {'late':>5s} {'2-token s':>9s} {'answered':>9s} {'memory MB':>12s}  replies to the attacker"


def show(row):
    counts = ", ".join(f"{n} x {status}" for status, n in row["attacker"]["counts"].items())
    print(f"{row['item']:4s} {row['name'][:38]:38s} {row['gap_ms']:8.0f} {row['late_ms']:5.0f} {row['answer_s']:9.2f} "
          f"{row['answered']:4d}/{row['asked']:<4d} {row['rss_mb']:6.0f} {'+%.0f' % row['memory_mb']:>5s}  {counts}", flush=True)
    for text in row["broken"]:
        print(f"     BROKEN: {text}", flush=True)
    if row["broken"]:
        for text in row["honest_faults"]:
            print(f"       {text}", flush=True)


async def run_all(args):
    chosen = [QUIET] + [attack for attack in ATTACKS if not args.only or args.only.lower() in f"{attack.item} {attack.name}".lower()]
    print(f"bounds: a stream's gap {args.gap_ms:.0f} ms, a two-token request {args.answer_s:.1f} s, memory +{args.memory_mb:.0f} MB\n{HEAD}", flush=True)
    rows = []
    for attack in chosen:
        row = await run_attack(args, attack)
        rows.append(row)
        show(row)
    n_broken = sum(bool(row["broken"]) for row in rows)
    print(f"{len(rows) - 1} attacks, {n_broken} with a broken bound" if n_broken else f"{len(rows) - 1} attacks, every bound was kept")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return 1 if n_broken else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--tutti", default=os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti")), help="the program (build/tutti)")
    parser.add_argument("--only", default="", help="attacks whose name or item contains the word")
    parser.add_argument("--gap-ms", type=float, default=200, help="bound of a stream's gap (200)")
    parser.add_argument("--memory-mb", type=float, default=256, help="bound of the growth of the server's memory (256)")
    parser.add_argument("--answer-s", type=float, default=2, help="bound of a two-token request (2)")
    parser.add_argument("--patience", type=float, default=1, help="factor for the length of the attacks")
    parser.add_argument("--flags", default="", help="further flags of the server, such as --flags='--max-body 16M'")
    parser.add_argument("--json")
    parser.add_argument("--list", action="store_true", help="print the attacks and end")
    parser.add_argument("--attacker", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if args.list:
        for attack in ATTACKS:
            print(f"{attack.item:4s} {attack.name}")
        return
    if args.attacker:
        attack = next(attack for attack in ATTACKS if attack.name == args.attacker)
        print(json.dumps(asyncio.run(Attacker(args.port, args.seconds).drive(attack))))
        return
    sys.exit(asyncio.run(run_all(args)))


if __name__ == "__main__":
    main()
