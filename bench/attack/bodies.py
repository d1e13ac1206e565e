"""Attacks with bodies, prompts and ids: what is read, parsed and made into tokens before the scheduler sees a request."""
import asyncio
import json

from kit import MB, Attack

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def filled(n_bytes, piece, before=b'{"messages":[', after=b"]}"):
    """A body of about n_bytes that repeats the piece, separated by commas."""
    n = max(1, (n_bytes - len(before) - len(after)) // (len(piece) + 1))
    return before + b",".join([piece] * n) + after


def text_of(n_bytes, piece="a"):
    return piece * max(1, n_bytes // len(piece.encode()))


def sized(make, size):
    """Bodies of size MB and, for servers that take no more, of 3.5 MB, in turn."""
    async def run(attacker):
        for n_bytes in (int(size * MB), int(3.5 * MB)):
            body = make(n_bytes)
            for _ in range(2):
                await asyncio.gather(*(attacker.post(CHAT if b'"messages"' in body[:20] else COMPLETION, body) for _ in range(2)))
    return run


def prompt(n_bytes, piece="a"):
    return json.dumps({"prompt": text_of(n_bytes, piece), "max_tokens": 2}, ensure_ascii=False).encode()


async def twelve_prompts(attacker):
    """Twelve at once of one client, then of eight."""
    for keys in ([attacker.key], attacker.keys):
        for n_bytes in (15 * MB, int(3.5 * MB)):
            body = prompt(n_bytes)
            await asyncio.gather(*(attacker.post(COMPLETION, body, keys[i % len(keys)]) for i in range(12)))


async def fitting_prompts(attacker):
    """Texts that are refused or taken only after their tokens were counted: some times what a context of 512 holds."""
    texts = ["a" * 6000, "supercalifragilistic" * 300, " " * 20000, "\u4f60\u597d" * 1500, "a b " * 2000, "\U0001f600" * 1500, "e\u0301" * 3000]
    bodies = [json.dumps({"prompt": text, "max_tokens": 2}).encode() for text in texts]
    async def one(i):
        while True:
            await attacker.post(COMPLETION, bodies[i % len(bodies)], attacker.keys[i % len(attacker.keys)])
    await asyncio.gather(*(one(i) for i in range(14)))


async def many_prompts(attacker):
    await attacker.repeat(COMPLETION, {"prompt": ["one two three " * 100] * 2000, "max_tokens": 1}, 2)


async def embeddings(attacker):
    await asyncio.gather(attacker.repeat("/v1/embeddings", {"input": ["a" * 1500] * 2048}, 1),
                         attacker.repeat("/v1/embeddings", {"input": [[5] * 400] * 2048}, 1))


async def tokenize(attacker):
    text = filled(0, b"")[:0] + b'{"prompt":"' + b"a" * (1000 * 1000) + b'"}'
    pieces = b'{"content":"' + b"\xe4\xbd\xa0 " * 250000 + b'","with_pieces":true}'
    await asyncio.gather(attacker.repeat("/tokenize", text, 2, attacker.keys), attacker.repeat("/tokenize", pieces, 2, attacker.keys[2:]),
                         attacker.repeat("/tokenize", prompt(15 * MB), 1))


async def detokenize(attacker):
    for size in (15 * MB, int(3.5 * MB)):
        body = filled(size, b"5", b'{"tokens":[')
        await asyncio.gather(*(attacker.post("/detokenize", body, attacker.keys[i]) for i in range(4)))
    await attacker.repeat("/detokenize", filled(int(1.5 * MB), b"4000", b'{"tokens":['), 3, attacker.keys)


async def tgi_truncate(attacker):
    await attacker.repeat("/generate", {"inputs": "a" * MB, "parameters": {"truncate": 8, "max_new_tokens": 2}}, 4, attacker.keys)


async def chats(attacker):
    """Many messages, and a long conversation: templates are rendered before anything is counted."""
    small = {"messages": [{"role": ("user", "assistant")[i % 2], "content": "x"} for i in range(16000)], "max_tokens": 2}
    large = {"messages": [{"role": "user", "content": "hello " * 100000}] * 5, "max_tokens": 2}
    await asyncio.gather(attacker.repeat(CHAT, small, 2), attacker.repeat(CHAT, large, 2, attacker.keys[1:]))


async def other_routes(attacker):
    """The same bodies through the other interfaces."""
    lists = filled(int(3.5 * MB), b"[]", b'{"inputs":[')
    await asyncio.gather(attacker.repeat("/generate", lists, 1), attacker.repeat("/models/any/generate", lists, 1, attacker.keys[1:]),
                         attacker.repeat("/llm/generate", lists, 1, attacker.keys[2:]), attacker.repeat("/v1/responses", lists, 1, attacker.keys[3:]),
                         attacker.repeat("/tokenize", lists, 1, attacker.keys[4:]))


async def unfinished(attacker):
    """Bodies of 16 MB that never end, on a route that takes none."""
    wires = []
    for _ in range(17):
        wire = await attacker.wire()
        wires.append(wire)
        try:
            await wire.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16777216\r\n\r\n" + b"x" * (16 * MB - 1))
        except OSError:
            attacker.counts["cut"] += 1
        except Exception as cut:  # pylint: disable=broad-except
            attacker.counts[type(cut).__name__.lower()] += 1
    await asyncio.sleep(attacker.seconds)


async def unfinished_with_key(attacker):
    """The same with a key, where bodies belong: 40 connections, each without its last byte."""
    wires = []
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer "
    for i in range(40):
        wire = await attacker.wire()
        wires.append(wire)
        try:
            await wire.send(head + attacker.key.encode() + b"\r\nContent-Length: 3500001\r\n\r\n" + b"x" * 3500000)
        except Exception as cut:  # pylint: disable=broad-except
            attacker.counts[type(cut).__name__.lower()] += 1
        await asyncio.sleep(attacker.seconds / 80)
    await asyncio.sleep(attacker.seconds)


async def overload(attacker):
    """300 chats a second of one client that never slows down: all of it must be answered or refused while the client looks."""
    body = json.dumps({"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 64}).encode()
    tasks, loop = [], asyncio.get_running_loop()
    begin, n = loop.time(), 0
    while loop.time() - begin < attacker.seconds - 3:
        while n < 300 * (loop.time() - begin):
            tasks.append(asyncio.create_task(attacker.post(CHAT, body)))
            n += 1
        await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)


ATTACKS = [
    Attack("15 MB of [[],[],...]", "B3", sized(lambda n: filled(n, b"[]"), 15), 12),
    Attack("15 MB of {}", "B3", sized(lambda n: filled(n, b"{}"), 15), 12),
    Attack("15 MB of ids", "B3", sized(lambda n: filled(n, b"1", b'{"prompt":['), 15), 12),
    Attack("15 MB of keys", "B3", sized(lambda n: b'{"prompt":"x",' + b",".join(b'"k%d":0' % i for i in range(n // 12)) + b"}", 15), 12),
    Attack("15 MB of escapes", "B3", sized(lambda n: b'{"prompt":"' + b"\\u00e9" * (n // 6) + b'"}', 15), 12),
    Attack("one prompt of 15 million letters", "B3", sized(prompt, 15), 12),
    Attack("12 prompts of 15 million letters", "B3", twelve_prompts, 45),
    Attack("prompts around the context's length", "B3", fitting_prompts),
    Attack("2,000 prompts in a request", "B3", many_prompts),
    Attack("2,048 inputs for embeddings", "B3", embeddings),
    Attack("/tokenize", "B3", tokenize),
    Attack("/detokenize of 7.5 million ids", "B3", detokenize, 12),
    Attack("TGI's truncate", "B3", tgi_truncate),
    Attack("chats of 16,000 messages", "B3", chats),
    Attack("lists through every interface", "B3", other_routes),
    Attack("17 unfinished bodies on GET /health", "B4", unfinished, 10),
    Attack("40 unfinished bodies with a key", "B4", unfinished_with_key, 10),
    Attack("300 requests a second", "B7", overload, 25),
]
