"""Attacks with connections and heads, and from web pages: what is decided before a body is read."""
import asyncio

from kit import Attack


async def health_flood(attacker):
    """Keyless routes as fast as they are answered."""
    async def one(path):
        while True:
            await attacker.send(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.gather(*(one(path) for path in (b"/health", b"/", b"/metrics", b"/v1/models") for _ in range(8)))


ATTACKS = [
    Attack("keyless routes without a pause", "B4", health_flood, 6),
]
