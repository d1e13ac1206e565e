"""The parts of an attack: connections to the server, keys of hostile clients, and a record of the replies.

An attack is a coroutine function that takes an Attacker. It runs in its own process, so that its computing does not delay the
measurements. It may end early; after `seconds` it is cancelled. It calls fault() for a reply that is wrong in itself, such as 200
to a request that must be refused."""
import asyncio
import collections
import json
import os
import sys
from dataclasses import dataclass
from typing import Callable, Optional

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fire"))
from wire import Cut, Wire, post  # pylint: disable=wrong-import-position

N_HOSTILE = 8  # hostile clients, each with a key of its own
HOSTILE_KEYS = [f"sk-hostile-{i}" for i in range(N_HOSTILE)]
HONEST_KEYS = [f"sk-honest-{i}" for i in range(4)]  # of the streams
PROBE_KEY = "sk-probe"  # of the two-token requests
MB = 1 << 20


@dataclass(frozen=True)
class Attack:
    name: str
    item: str  # of the attack list: "B3"
    run: Callable
    seconds: float = 8
    open: bool = False  # the server has no keys: for what a web page may send to a local server
    flags: tuple = ()  # further flags of the server, for this attack only
    gap_ms: Optional[float] = None  # another bound than the program's for the streams' largest gap
    memory_mb: Optional[float] = None  # and for the growth of the server's memory
    answer_s: Optional[float] = None  # and for the slowest two-token request


class Attacker:
    def __init__(self, port, seconds):
        self.port, self.seconds = port, seconds
        self.patience = seconds + 60  # timeout of one read or write
        self.counts = collections.Counter()  # what came back: a status, or "cut"
        self.faults = []
        self.key, self.keys = HOSTILE_KEYS[0], HOSTILE_KEYS
        self.texts = {}  # status: the first body that came with it

    def fault(self, text):
        self.faults.append(text)

    async def wire(self):
        return await Wire.open(self.port, self.patience)

    async def send(self, data):
        """One request as bytes, on a connection of its own. Its status (0: cut off) and body."""
        wire = None
        try:
            wire = await self.wire()
            try:
                await wire.send(data)
            except Cut:
                pass  # refused before its end: the reply may be there
            status, _, body = await wire.reply()
        except (Cut, TimeoutError):
            status, body = 0, b""
        finally:
            if wire:
                wire.close()
        self.counts[status or "cut"] += 1
        self.texts.setdefault(status, body[:300].decode(errors="replace"))
        return status, body

    async def post(self, path, body, key=None, extra=b""):
        """body: bytes, or a value that becomes JSON. key None: the first hostile client's; "": none."""
        return await self.send(post(path, body, self.key if key is None else key, extra))

    async def repeat(self, path, body, at_once=1, keys=None):
        """Sends the same request again and again over at_once connections, which use the keys cyclically, until the attack's time is over."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        keys = keys or [self.key]

        async def one(i):
            while True:
                await self.post(path, data, keys[i % len(keys)])
                await asyncio.sleep(0.01)
        await asyncio.gather(*(one(i) for i in range(at_once)))

    async def drive(self, attack):
        """Runs an attack for its time. Returns the number of replies of each status, the faults, and the first body of each status."""
        try:
            async with asyncio.timeout(self.seconds):
                await attack.run(self)
        except TimeoutError:
            pass
        return {"counts": {str(k): n for k, n in sorted(self.counts.items(), key=repr)}, "faults": self.faults,
                "texts": {str(k): text for k, text in self.texts.items()}}
