"""Attacks with grammars and schemas: work that is done before a request can begin, and structures that nest without an end. The texts are
those of tests/grammar/attacks.py, where steps and bytes of each are counted."""
import asyncio
import itertools
import json
import os
import sys
import time

from kit import HOSTILE_KEYS, Attack

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests", "grammar"))
import attacks  # pylint: disable=wrong-import-position

CHAT = "/v1/chat/completions"
ANSWER_S = 2  # for the small schema of another client
# Masks that cost many slices: a thousand optional letters are a thousand places at once.
WIDE = ['root ::= "x" ([a-z]? [a-z]?){%d} "."' % n for n in range(400, 440)]


def asked_with(**fields):
    return json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, **fields}).encode()


def asked_in(field, text, **more):
    if field == "grammar":
        return asked_with(grammar=text, **more)
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return asked_with(grammar=text, **more)  # no value that a body could hold: refused as a grammar
    return asked_with(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, **more)


async def ask_small(attacker):
    """Another client's small schema, again and again: it must be answered while the attack is under way."""
    for i in itertools.count():
        schema = {"type": "object", "properties": {f"n{i}": {"type": "integer"}}, "required": [f"n{i}"], "additionalProperties": False}
        begin = time.monotonic()
        status, body = await attacker.post(CHAT, asked_in("schema", json.dumps(schema)), key=HOSTILE_KEYS[-1])
        if status != 200 or time.monotonic() - begin > ANSWER_S:
            attacker.fault(f"a small schema: status {status} after {time.monotonic() - begin:.1f} s: {body[:200]!r}")
            return
        await asyncio.sleep(0.1)


async def beside_small_ones(attacker, work):
    small = asyncio.ensure_future(ask_small(attacker))
    try:
        await work
    finally:
        small.cancel()
        await asyncio.gather(small, return_exceptions=True)


async def stacked_repeats(attacker):
    await attacker.post(CHAT, asked_with(grammar='root ::= "a"' + "*" * 500000))


async def all_texts(attacker):
    async def work():
        for name, field, text, ending in attacks.ATTACKS:
            status, body = await attacker.post(CHAT, asked_in(field, text))
            if status not in ((200, 400, 413, 429) if ending == "fits" else (400, 413, 429)):
                attacker.fault(f"{name}: status {status}: {body[:200]!r}")
    await beside_small_ones(attacker, work())


async def texts_of_ten_at_once(attacker):
    """One client's grammars that take the whole budget, ten at once, each one new."""
    async def client(number):
        for i in itertools.count():
            schema = {"title": f"{number} {i}", "allOf": [{"properties": {f"p{k}": {"minimum": k}}, "additionalProperties": {"maximum": k}}
                                                          for k in range(1500)]}
            await attacker.post(CHAT, asked_in("schema", json.dumps(schema)))
    await beside_small_ones(attacker, asyncio.gather(*(client(i) for i in range(10))))


async def texts_that_nobody_waits_for(attacker):
    """The same, but the client leaves at once."""
    async def work():
        for i in itertools.count():
            schema = {"title": str(i), "allOf": [{"properties": {f"p{k}": {"minimum": k}}, "additionalProperties": {"maximum": k}}
                                                 for k in range(1500)]}
            try:
                async with asyncio.timeout(0.05):
                    await attacker.post(CHAT, asked_in("schema", json.dumps(schema)))
            except TimeoutError:
                pass
    await beside_small_ones(attacker, work())


async def wide_masks(attacker):
    """Streams whose masks take many slices, from one client."""
    async def client(number):
        for grammar in itertools.cycle(WIDE[number::8]):
            await attacker.post(CHAT, asked_with(grammar=grammar, max_tokens=60, temperature=1.5))
    await beside_small_ones(attacker, asyncio.gather(*(client(i) for i in range(8))))


ATTACKS = [
    Attack("half a million repeats of a repeat", "B1", stacked_repeats, 6),
    Attack("each text of tests/grammar/attacks.py", "B2", all_texts, 60),
    Attack("ten grammars at once that take the whole budget", "B2", texts_of_ten_at_once, 10),
    Attack("grammars of a client that does not wait", "B2", texts_that_nobody_waits_for, 10),
    Attack("masks of a thousand places", "B2", wide_masks, 10),
]
