"""Attacks with connections and heads, and from web pages: what is decided before a body is read."""
import asyncio

import sockets
from kit import MB, Attack


async def health_flood(attacker):
    """Keyless routes as fast as they are answered."""
    async def one(path):
        while True:
            await attacker.send(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.gather(*(one(path) for path in (b"/health", b"/", b"/metrics", b"/v1/models") for _ in range(8)))


async def hold(attacker, attack, *args, **more):
    """Opens connections as sockets.py has it, again when they have ended, and counts what was said on them."""
    loop, address = asyncio.get_running_loop(), ("127.0.0.1", attacker.port)
    end = loop.time() + attacker.seconds
    while loop.time() < end:
        held = await asyncio.to_thread(attack, address, *args, **more)
        try:
            await asyncio.sleep(min(1, max(0, end - loop.time())))
            attacker.counts.update(str(status) for status in held.replies())
        finally:
            held.close()


async def bodies_without_a_key(attacker):
    await hold(attacker, sockets.unfinished_bodies, "/v1/completions", "POST", 17)


async def bodies_in_chunks(attacker):
    await hold(attacker, sockets.unfinished_chunks, "/v1/completions", 40, 3 * MB, attacker.key)


async def heads(attacker):
    await hold(attacker, sockets.unfinished_heads, 1000)


async def rests(attacker):
    await hold(attacker, sockets.resting, 4000)


async def sent_ahead(attacker):
    await hold(attacker, sockets.pipeline, 20000)


async def drips(attacker):
    """Bodies of which a byte comes five times a second."""
    address = "127.0.0.1", attacker.port
    ends = await asyncio.gather(*(asyncio.to_thread(sockets.slow_body, address, n_bytes=MB, seconds=attacker.seconds - 1, key=attacker.key)
                                  for _ in range(16)))
    attacker.counts.update(str(status) for _, status in ends)


async def extensions(attacker):
    status = await asyncio.to_thread(sockets.chunk_extensions, ("127.0.0.1", attacker.port), key=attacker.key)
    attacker.counts[str(status)] += 1
    if status != 400:
        attacker.fault(f"5000 chunks of a byte with extensions of 200: status {status}, expected 400")


async def pages(attacker):
    """What a page of another site can send: each must be refused, unread."""
    body = b'{"prompt": "x", "max_tokens": 400, "ignore_eos": true}'
    json_type = b"Content-Type: application/json\r\n"
    attempts = [(b"Host: evil.example\r\n" + json_type, 403), (b"Host: localhost\r\nOrigin: https://evil.example\r\n" + json_type, 403),
                (b"Host: localhost\r\nOrigin: null\r\n" + json_type, 403), (b"Host: localhost\r\nSec-Fetch-Site: cross-site\r\n" + json_type, 403),
                (b"Host: localhost\r\n", 415), (b"Host: localhost\r\nContent-Type: text/plain\r\n", 415),
                (b"Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n", 415)]

    async def one(headers, want):
        while True:
            status, _ = await attacker.send(b"POST /v1/completions HTTP/1.1\r\n" + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            if status not in (0, want):
                attacker.fault(f"{headers!r}: status {status}, expected {want}")
                return
            await asyncio.sleep(0.01)
    await asyncio.gather(*(one(headers, want) for headers, want in attempts))


ATTACKS = [
    Attack("keyless routes without a pause", "B4", health_flood, 6),
    Attack("17 unfinished bodies without a key", "B4", bodies_without_a_key, 6),
    Attack("unfinished bodies in chunks", "B4", bodies_in_chunks, 6),
    Attack("1,000 heads without an end", "B4", heads, 6),
    Attack("4,000 connections that rest", "B4", rests, 6),
    Attack("bodies that drip", "B4", drips, 8, flags=("--header-timeout", "2")),
    Attack("20,000 requests ahead, no reply read", "B4", sent_ahead, 6),
    Attack("pages of other sites", "B6", pages, 5, open=True),
    Attack("chunks made of extensions", "B8", extensions, 3),
]
