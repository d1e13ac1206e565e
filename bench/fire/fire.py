#!/usr/bin/env python3
"""A server under fire: every API at once, clients that vanish, malformed and slow HTTP, thousands of connections that rest,
and kill -9 again and again. What is answered must be what a lone run answered; what was held must be given back.

  fire.py [--minutes 60] [--period 300] [--idle 5000] [--clients 16] [--json FILE] [--work DIR] [--seed N] [--flags FLAGS]
          [--sanitized]

Two servers share the load: one is killed (and now and then drained) every --period seconds and started again. The other one runs
as long as the fire, so that its leaks add up, and is attacked meanwhile: the attacks of bench/attack one after the other, in random
order, from clients with keys of their own. $TUTTI_BIN: the program (build/tutti). Exits with 1 where something was wrong."""
import argparse
import asyncio
import collections
import json
import os
import random
import resource
import shlex
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "attack"))
import hostile
from asks import STEP_QUESTIONS, all_asks
from attack import ATTACKS, attack_from_outside
from kit import HOSTILE_KEYS
from servers import METRICS_KEY, Idlers, Server
from wire import Busy, Cut, Wire, post

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
KEYS = {"sk-fire-1": "ann weight=3", "sk-fire-2": "ben priority=1", "sk-fire-3": "cleo concurrency=8",
        "sk-fire-4": "dan tokens-per-minute=60000"}
HEADER_TIMEOUT, STEP_TIMEOUT = 5, 4
MAX_SHOWN = 30  # failures that are kept in words
# How often each client does what.
HABITS = [("ask", 60), ("leave", 14), ("read slowly", 3), ("step", 5), ("leave a step", 1), ("send a wrong head", 4),
          ("send a wrong body", 4), ("damage", 12), ("trickle", 1), ("tear", 4), ("misname the length", 1), ("send ahead", 3),
          ("send chunks", 3)]


def command(*more):
    return [BIN, "serve", os.path.join(ROOT, "models", "demo"), "--api", "llm-serving,step,tgi", *more]


class Fire:
    def __init__(self, args, folder):
        self.args, self.folder, self.patience = args, folder, args.patience
        self.asks = all_asks(args.requests)
        self.alone, self.steps_alone = {}, {}
        self.counts = collections.Counter()  # (habit, what became of it)
        self.failures, self.n_failures = [], 0
        self.rests = []  # (seconds, server's name, life, bytes of RSS) at rest
        self.n_restored = 0  # pages of the mortal servers' spill file
        self.began, self.is_over = time.monotonic(), False
        self.n_lives = collections.Counter()  # by their end

    def fail(self, what):
        self.n_failures += 1
        if len(self.failures) < MAX_SHOWN:
            self.failures.append(what)
            print(f"{self.clock()} WRONG: {what[:2000]}", flush=True)

    def clock(self):
        seconds = int(time.monotonic() - self.began)
        return f"{seconds // 60:3d}:{seconds % 60:02d}"

    # ---- the lone run ----

    async def learn(self, server):
        """Asks everything once, one after the other, of a server that does nothing else without speculative decoding."""
        wire = await Wire.open(server.port, self.patience)
        for ask in self.asks:
            await wire.send(post(ask.path, ask.body))
            status, _, data = await wire.reply()
            if status != 200:
                raise RuntimeError(f"{ask.name}, asked alone: status {status}: {data[:500]!r}")
            self.alone[ask] = ask.read(data)
        for question in STEP_QUESTIONS:
            self.steps_alone[question] = await self.step(wire, question, f"alone {question}")
        wire.close()

    # ---- what clients do; each returns what became of it ----

    async def ask(self, wire, rng, key, slowly=0):
        ask = rng.choice(self.asks)
        try:
            await wire.send(post(ask.path, ask.body, key, extra=rng.choice([b"", b"Connection: close\r\n"])))
            status, headers, data = await wire.reply(slowly)
        except Cut as cut:
            if cut.status == 200 and not ask.read(cut.data, is_complete=False).begins_like(self.alone[ask]):
                raise AssertionError(f"{ask.name}, cut off: {cut.data[-1000:]!r}, expected {self.alone[ask]}") from None
            raise
        if status in (429, 503):
            raise Busy(status)
        assert status == 200, f"{ask.name}: status {status}: {data[:500]!r}"
        got = ask.read(data)
        assert got == self.alone[ask], f"{ask.name}, {json.dumps(ask.body)}: {got}, expected {self.alone[ask]}"
        return "right" if headers["connection"] == "close" else "right, kept"

    async def leave(self, wire, rng, key):
        """Goes at once, while it waits, or in the middle of the answer; orderly or by a reset."""
        ask = rng.choice(self.asks)
        body = {**ask.body, "max_tokens": 400} if "messages" in ask.body else ask.body
        await wire.send(post(ask.path, body, key, extra=b"Connection: close\r\n"))
        if rng.random() < 0.7:
            n_pieces = rng.randrange(1, 4)
            while n_pieces > 0 and await wire.receive(rng.choice([1, 500, 5000])):
                n_pieces -= 1
        elif rng.random() < 0.5:
            await asyncio.sleep(rng.random() * 0.05)
        wire.close(reset=rng.random() < 0.5)
        return "left"

    async def step(self, wire, question, cache_id, key=None, n_calls=1000):
        text = ""
        for _ in range(n_calls):
            await wire.send(post("/llm/generate", {"cache_id": cache_id, "query": question, "do_sample": False, "max_length": 100}, key))
            status, _, data = await wire.reply()
            if status in (429, 503):
                raise Busy(status)
            assert status == 200, f"step: status {status}: {data[:500]!r}"
            answer = json.loads(data)
            text += answer["delta_text"]
            if answer["flag"] == "end":
                return text
        return text

    async def step_to_its_end(self, wire, rng, key):
        question = rng.choice(STEP_QUESTIONS)
        text = await self.step(wire, question, f"{rng.random()}", key)
        assert text == self.steps_alone[question], f"steps: {text!r}, expected {self.steps_alone[question]!r}"
        return "right"

    async def act(self, habit, wire, rng, key, server):
        if habit == "ask":
            return await self.ask(wire, rng, key)
        if habit == "read slowly":
            return await self.ask(wire, rng, key, slowly=0.002)
        if habit == "leave":
            return await self.leave(wire, rng, key)
        if habit == "step":
            return await self.step_to_its_end(wire, rng, key)
        if habit == "leave a step":
            await self.step(wire, rng.choice(STEP_QUESTIONS), f"{rng.random()}", key, n_calls=2)
            return "left"
        ask = rng.choice([a for a in self.asks if not a.body["stream"]])
        if habit in ("send a wrong head", "send a wrong body"):
            name, data, allowed = rng.choice(self.wrong_heads if habit == "send a wrong head" else self.wrong_bodies)
            try:
                status = await hostile.refused(wire, data, allowed)
            except (AssertionError, TimeoutError) as fault:
                raise AssertionError(f"{name}: {fault}") from None
        elif habit == "damage":
            status = await hostile.broken(wire, rng, key, ask)
        elif habit == "trickle":
            status = await hostile.trickle(wire, rng, key, HEADER_TIMEOUT)
        elif habit == "tear":
            status = await hostile.torn(wire, rng, key, {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 400})
        elif habit == "misname the length":
            status = await hostile.wrong_length(wire, rng, key)
        elif habit == "send ahead":
            status = await hostile.ahead(wire, rng, key, ask, self.alone[ask])
        else:
            status = await hostile.in_chunks(wire, rng, key, ask, self.alone[ask])
        return "answered" if status == 200 else "cut" if status == 0 else "refused"

    async def client(self, server, seed):
        """One user after the other, until all is over. A connection is kept now and then."""
        rng = random.Random(seed)
        habits, weights = zip(*HABITS)
        kept = None
        while not self.is_over:
            if server.is_down or not server.go:
                if kept:
                    kept.close()
                    kept = None
                await asyncio.sleep(0.02)
                continue
            habit, life, was_draining = rng.choices(habits, weights)[0], server.life, server.is_draining
            was_ready = server.is_ready
            wire, kept = kept, None
            server.n_busy += 1
            try:
                if not wire or habit != "ask" or wire.life != life:
                    if wire:
                        wire.close()
                    wire = await Wire.open(server.port, self.patience, 4096 if habit == "read slowly" else None)
                    wire.life = life
                outcome = await self.act(habit, wire, rng, rng.choice(list(KEYS)), server)
                if outcome == "right, kept":
                    outcome, kept = "right", wire
            except Cut as cut:
                # A server that is killed cuts anything; one that drains only what it has not begun to answer.
                is_ours = cut.status is None if life == server.drained_life else server.is_down or server.life != life
                outcome = "cut by the server's end" if is_ours else "wrong"
                if outcome == "wrong":
                    self.fail(f"{server.name}: {habit}: {cut}")
                await asyncio.sleep(0.05)
            except Busy as busy:
                # 503 is for beginnings and ends, and for too many large bodies.
                is_usual = busy.args[0] == 429 or server.is_draining or was_draining or not was_ready or habit == "send a wrong body"
                outcome = "told to wait" if is_usual else "wrong"
                if outcome == "wrong":
                    self.fail(f"{server.name}: {habit}: status {busy}")
                await asyncio.sleep(0.05)
            except Exception as fault:  # pylint: disable=broad-except
                outcome = "wrong"
                self.fail(f"{server.name}: {habit}: {type(fault).__name__}: {fault}")
            finally:
                server.n_busy -= 1
                if wire and wire is not kept:
                    wire.close()
            self.counts[habit, outcome] += 1
        if kept:
            kept.close()

    # ---- the course of the fire ----

    async def rest(self, server, idlers):
        """All clients fall silent; then the server must hold nothing."""
        server.go = False
        end = time.monotonic() + self.patience
        while server.n_busy > 0:
            if time.monotonic() > end:
                raise TimeoutError(f"{server.name}: {server.n_busy} clients are not done after {self.patience} s")
            await asyncio.sleep(0.02)
        await idlers.check()
        idlers.close()
        figures = await server.check_rest()
        self.rests.append((time.monotonic() - self.began, server.name, server.life, server.rss_bytes()))
        self.n_restored += figures["tutti_kv_spill_restored_pages_total"] if server.name == "mortal" else 0

    async def guarded(self, work):
        """What goes wrong is kept; the fire goes on."""
        try:
            return await work
        except Exception as fault:  # pylint: disable=broad-except
            self.fail(f"{type(fault).__name__}: {fault}")
            return None

    async def mortal(self, server, seconds_of_life):
        """Lives, each: start, load, silence, load, end. They are killed while they work, every seconds_of_life; now and then one is
        drained in the middle of its time."""
        end = time.monotonic() + 60 * self.args.minutes
        while time.monotonic() < end:
            began = time.monotonic()
            await server.start()
            idlers = Idlers(server, self.args.idle)
            server.go = True
            await self.guarded(idlers.open())
            drains, is_half = server.life % 4 == 2, server.life % 4 in (2, 3)
            length = seconds_of_life / 2 if is_half else seconds_of_life
            await asyncio.sleep(max(0, min(began + length, end) - 2 - time.monotonic()))
            await self.guarded(self.rest(server, idlers))
            idlers.close()
            server.go = True
            await asyncio.sleep(2)
            self.n_lives["drained" if drains else "killed"] += 1
            if drains:
                await self.guarded(server.drain())
            else:
                server.kill()

    async def attack(self, server, rng, seconds):
        """One attack of bench/attack that a server with these keys and flags must withstand."""
        attack = rng.choice([attack for attack in ATTACKS if not attack.open and not attack.flags])
        found = await attack_from_outside(attack, server.port, min(seconds, attack.seconds))
        for fault in found["faults"]:
            self.fail(f"{server.name}: {attack.name}: {fault}")
        self.counts["attack", "wrong" if found["faults"] else "withstood"] += 1

    async def steady(self, server, seconds_of_life):
        server.go = True
        rng = random.Random(f"{self.args.seed} attacks")
        while not self.is_over:
            idlers = Idlers(server, self.args.idle // 10)
            await self.guarded(idlers.open())
            end = time.monotonic() + seconds_of_life / 2
            while time.monotonic() < end and not self.is_over:
                await self.guarded(self.attack(server, rng, end - time.monotonic()))
            await self.guarded(self.rest(server, idlers))
            idlers.close()
            server.go = True

    async def tell(self, servers):
        """A line each minute."""
        while not self.is_over:
            await asyncio.sleep(60)
            outcomes = collections.Counter()
            for (_, outcome), n in self.counts.items():
                outcomes[outcome] += n
            rss = ", ".join(f"{s.name} {s.rss_bytes() / 1e6:.1f} MB" for s in servers if not s.is_down)
            print(f"{self.clock()} life {servers[0].life}: {sum(outcomes.values())} done, {outcomes['right']} right, "
                  f"{outcomes['left']} left, {outcomes['refused']} refused, {outcomes['told to wait']} told to wait, "
                  f"{self.n_failures} wrong; {rss}", flush=True)

    async def run(self):
        limits = ["--header-timeout", str(HEADER_TIMEOUT), "--step-timeout", str(STEP_TIMEOUT), "--idle-timeout", "3600",
                  "--drain-timeout", str(int(self.patience)),
                  "--kv-memory", "4M", "--kv-spill-size", "16M", "--speculate", "4", "--max-seqs", "32", "--max-queue", "64",
                  "--no-access-log", "--log-level", "warn", "--api-key-file", os.path.join(self.folder, "keys"),
                  "--metrics-key", os.path.join(self.folder, "metrics-key")]
        with open(os.path.join(self.folder, "metrics-key"), "w", encoding="ascii") as file:
            file.write(METRICS_KEY + "\n")
        with open(os.path.join(self.folder, "keys"), "w", encoding="ascii") as file:
            file.writelines(f"{key} {client}\n" for key, client in [*KEYS.items(), *((key, key) for key in HOSTILE_KEYS)])
        self.wrong_heads, self.wrong_bodies = hostile.heads(next(iter(KEYS))), hostile.bodies(next(iter(KEYS)))
        alone = Server("alone", command("--threads", "1", "--kv-memory", "8M"), None, self.folder, self.patience)
        limits += shlex.split(self.args.flags)
        mortal, steady = (Server(name, command(*limits, "--kv-spill", os.path.join(self.folder, f"{name}.spill")), next(iter(KEYS)),
                                 self.folder, self.patience) for name in ("mortal", "steady"))
        try:
            await alone.start()
            await self.learn(alone)
            await alone.drain()
            print(f"{self.clock()} {len(self.asks)} requests were asked alone", flush=True)
            await steady.start()
            self.began = time.monotonic()
            clients = [asyncio.create_task(self.client(mortal if i % 4 else steady, f"{self.args.seed} {i}"))
                       for i in range(self.args.clients)]
            others = [asyncio.create_task(self.steady(steady, self.args.period)), asyncio.create_task(self.tell([mortal, steady]))]
            await self.mortal(mortal, self.args.period)
            self.is_over = True
            await asyncio.wait_for(asyncio.gather(others[0], *clients), 2 * self.patience)
            others[1].cancel()
            await steady.drain()
        finally:
            for server in alone, mortal, steady:
                if server.process and server.process.poll() is None:
                    server.kill()
        return self.verdict(mortal, steady)

    # ---- the verdict ----

    def verdict(self, mortal, steady):
        for line in mortal.complaints + steady.complaints:
            self.fail(f"in the log: {line}")
        first = sorted(mortal.first_tokens_ms)
        alive = [(t / 60, rss / 1e6) for t, name, _, rss in self.rests if name == "steady"]
        lives = [rss / 1e6 for _, name, _, rss in self.rests if name == "mortal"]
        result = {"minutes": self.args.minutes, "lives": dict(self.n_lives), "restored_pages": self.n_restored, "failures": self.failures,
                  "done": {f"{habit}: {outcome}": n for (habit, outcome), n in sorted(self.counts.items())},
                  "first_token_ms": first, "rss_mb_of_lives": lives, "rss_mb_of_the_steady": alive}
        # Shorter lives have not seen the largest requests; the cache of compiled grammars is full after about ten minutes of attacks.
        looks_at_memory = self.args.period >= 60 and self.args.minutes >= 30 and not self.args.sanitized
        if len(alive) >= 4:  # the first one is taken before the caches are full
            result["rss_slope_kb_per_minute"] = 1000 * statistics.linear_regression(*zip(*alive[1:])).slope
            third = max(1, len(alive[1:]) // 3)
            grown = statistics.median(r for _, r in alive[-third:]) - statistics.median(r for _, r in alive[1:1 + third])
            result["rss_grown_mb"] = grown
            if grown > 2 + 0.05 * alive[1][1] and looks_at_memory:
                self.fail(f"the steady server's memory at rest has grown by {grown:.1f} MB: {alive}")
        whole = lives[:-1]  # the last one ends with the fire, whatever it has seen
        if whole and max(whole) > 1.25 * min(whole) + 4 and looks_at_memory:
            self.fail(f"lives end with different memory: {lives}")
        for needed in ("ask", "right"), ("step", "right"), ("leave", "left"), ("ask", "cut by the server's end"):
            if not self.counts[needed]:
                self.fail(f"nothing has come to '{needed[0]}: {needed[1]}'")
        result["wrong"] = self.n_failures
        self.show(result)
        if self.args.json:
            with open(self.args.json, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1, ensure_ascii=False)
        return 1 if self.n_failures else 0

    def show(self, result):
        rows = collections.defaultdict(dict)
        for (habit, outcome), n in self.counts.items():
            rows[habit][outcome] = n
        for habit in [*(habit for habit, _ in HABITS), "attack"]:
            print(f"  {habit:20s} " + ", ".join(f"{n} {outcome}" for outcome, n in sorted(rows[habit].items())))
        first = result["first_token_ms"]
        print(f"  lives                {', '.join(f'{n} {how}' for how, n in self.n_lives.items())}")
        print(f"  start to first token {first[0]:.0f} ms at least, {statistics.median(first):.0f} in the middle, {first[-1]:.0f} at most")
        print(f"  pages from the file  {self.n_restored:.0f}")
        if result["rss_mb_of_lives"]:
            print(f"  memory at rest       of the lives {min(result['rss_mb_of_lives']):.1f} to {max(result['rss_mb_of_lives']):.1f} MB; "
                  f"of the steady server {result['rss_mb_of_the_steady'][0][1]:.1f} MB at first, "
                  f"{result['rss_mb_of_the_steady'][-1][1]:.1f} MB at last")
        if "rss_slope_kb_per_minute" in result:
            print(f"  its slope            {result['rss_slope_kb_per_minute']:+.1f} kB a minute")
        print(f"{self.n_failures} wrong" if self.n_failures else "nothing was wrong")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--period", type=float, default=300, help="seconds of a life")
    parser.add_argument("--idle", type=int, default=5000, help="connections that rest")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=180, help="different ones that are asked alone first")
    parser.add_argument("--patience", type=float, default=60, help="seconds that anything may take")
    parser.add_argument("--sanitized", action="store_true", help="memory is not looked at")
    parser.add_argument("--flags", default="", help="further ones of the two servers, such as --flags='--draft DIR'")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--work", help="where logs stay")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    with tempfile.TemporaryDirectory() as spare:
        if args.work:
            os.makedirs(args.work, exist_ok=True)
        sys.exit(asyncio.run(Fire(args, args.work or spare).run()))


if __name__ == "__main__":
    main()
