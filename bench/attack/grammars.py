"""Attacks with grammars and schemas: work that is done before a request can begin, and structures that nest without an end."""
import json

from kit import Attack

CHAT = "/v1/chat/completions"


def asked_with(**fields):
    return json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, **fields}).encode()


async def stacked_repeats(attacker):
    await attacker.post(CHAT, asked_with(grammar='root ::= "a"' + "*" * 500000))


ATTACKS = [
    Attack("half a million repeats of a repeat", "B1", stacked_repeats, 6),
]
