"""What no client should send. Each attack returns the statuses it saw, and says which ones are right."""
import asyncio
import copy
import json

from wire import Busy, Cut, post

ODD = [None, True, False, 0, -1, 1.5, 1e308, -1e308, 2**63 - 1, -2**63, "", "x", "\u0000", "😀", "9" * 400, [], {}, [[]], [None], {"a": {}},
       "True", "nan", "1e999", ["a", 5], [["a"]], [{"role": "user"}], list(range(40))]
REFUSED = {400, 404, 409, 413, 422, 429, 503}


def damaged(rng, value):
    """The value with one place of it become something odd."""
    value = copy.deepcopy(value)
    at, steps = value, rng.randrange(4)
    while isinstance(at, (dict, list)) and at:
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        if steps <= 0 or not isinstance(at[key], (dict, list)) or not at[key]:
            at[key] = rng.choice(ODD)
            break
        at, steps = at[key], steps - 1
    return value


def spoiled(rng, data):
    """Bytes are lost, doubled or changed."""
    data = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at, kind = rng.randrange(len(data)), rng.randrange(3)
        if kind == 0 and len(data) > 20:
            del data[at:at + rng.randrange(1, 9)]
        elif kind == 1:
            data.insert(at, rng.randrange(256))
        else:
            data[at] = rng.randrange(256)
    return bytes(data)


# ---- wrong from its first byte: what is sent, and how it must be refused (0: the connection is closed) ----------------

def heads(key):
    start = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer " + key.encode() + b"\r\n"
    get = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + key.encode() + b"\r\n"
    chunked = start + b"Transfer-Encoding: chunked\r\n"
    return [
        ("junk lines", b"\r\n\r\n\x00\x01\x02\r\n\r\n", {400}),
        ("no version", b"GET /health\r\n\r\n", {400}),
        ("a version to come", b"GET / HTTP/9.9\r\n\r\n", {505}),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {505}),
        ("bare line feeds", b"GET / HTTP/1.1\nHost: localhost\n\n", {400}),
        ("a folded header", get + b"A: b\r\n c\r\n\r\n", {400}),
        ("a blank before the colon", get + b"A : b\r\n\r\n", {400}),
        ("a header without name", get + b": b\r\n\r\n", {400}),
        ("a zero byte", get + b"A: \x00b\r\n\r\n", {400}),
        ("a long path", b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\n\r\n", {431}),
        ("a long header", get + b"A: " + b"x" * 40000 + b"\r\n\r\n", {431}),
        ("many headers", get + b"".join(b"H%d: x\r\n" % i for i in range(200)) + b"\r\n", {400, 431}),
        ("endless headers", get + b"".join(b"H%d: x\r\n" % i for i in range(20000)), {431}),
        ("a negative length", start + b"Content-Length: -5\r\n\r\n", {400}),
        ("a length beyond all", start + b"Content-Length: 99999999999999999999\r\n\r\n", {400, 413}),
        ("a length too large", start + b"Content-Length: 1000000000\r\n\r\n", {413}),
        ("two lengths", start + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", {400}),
        ("length and chunks", chunked + b"Content-Length: 3\r\n\r\nabc", {400}),
        ("an unknown coding", start + b"Transfer-Encoding: gzip\r\n\r\n", {400, 501}),
        ("a chunk of no size", chunked + b"\r\nzz\r\n", {400}),
        ("a chunk that is too large", chunked + b"\r\nfffffffffffffffff\r\n", {400, 413}),
        ("a chunk without its end", chunked + b"\r\n3\r\nabcXX\r\n", {400}),
        ("a long trailer", chunked + b"\r\n0\r\n" + b"".join(b"T%d: x\r\n" % i for i in range(2000)), {400, 431}),
        ("an unknown expectation", start + b"Content-Length: 2\r\nExpect: tea\r\n\r\n{}", {417}),
        ("no such path", b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
        ("a path of any bytes", b"GET /\xff\xfe\x80 HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
        ("the wrong method", b"DELETE /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", {405}),
        ("no host", b"GET /health HTTP/1.1\r\n\r\n", {400}),
        ("no method", b"\x00 / HTTP/1.1\r\n\r\n", {400}),
        ("no key", post("/tokenize", {"prompt": "x"}), {401}),
        ("a wrong key", post("/tokenize", {"prompt": "x"}, "sk-wrong" * 30), {401}),
    ]


def bodies(key):
    """Bodies that are wrong, in requests that are right."""
    ask = b'{"messages":[{"role":"user","content":"%s"}]}'
    def at(path, body):
        return post(path, body, key)
    return [
        ("an empty body", at("/v1/chat/completions", b""), {400}),
        ("a tiny body", at("/v1/completions", b"0"), {400}),
        ("half a body", at("/v1/chat/completions", b'{"messages":['), {400}),
        ("no JSON", at("/tokenize", b"\xde\xad\xbe\xef" * 64), {400}),
        ("invalid UTF-8", at("/v1/chat/completions", ask % b"\xff\xc0\x80\xed\xa0\x80"), {400}),
        ("half a surrogate", at("/v1/chat/completions", ask % b"\\ud800"), {400}),
        ("deep lists", at("/v1/completions", b"[" * 100000), {400}),
        ("deep objects", at("/generate", b'{"inputs":' * 50000), {422}),
        ("a deep schema", at("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": deep(40)}}, "max_tokens": 1}), {200, 400}),
        ("a long number", at("/v1/completions", b'{"prompt":"x","max_tokens":' + b"9" * 5000 + b"}"), {400}),
        ("a prompt of two megabytes", at("/v1/completions", {"prompt": "one two three " * 150000}), {400}),
        ("a body of 17 megabytes", at("/tokenize", b'{"prompt":"' + b"x" * 17000000 + b'"}'), {413}),
        ("100,000 ids", at("/v1/completions", {"prompt": list(range(100000))}), {400}),
        ("1,000 messages", at("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * 1000}), {400}),
        ("a huge grammar", at("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "grammar":
                              "root ::= " + " | ".join(f'"{i}"' for i in range(20000))}), {200, 400}),
        ("an endless grammar", at("/v1/completions", {"prompt": "x", "max_tokens": 2, "grammar": "root ::= root root | root"}), {400}),
        ("an ambiguous grammar", at("/v1/completions", {"prompt": "x", "max_tokens": 20, "grammar": 'root ::= ("a"? "a"? "a"?)*'}), {200, 400}),
    ]


def deep(n):
    return {"type": "object", "properties": {"a": deep(n - 1)}, "required": ["a"]} if n else {"type": "integer"}


async def expect(wire, allowed):
    """The status that comes. A connection that is reset under what is still being sent shows none."""
    try:
        status, _, body = await wire.reply()
    except Cut:
        return 0
    if status in (429, 503) and status not in allowed:
        raise Busy(status)
    assert status in allowed, f"status {status}, expected one of {sorted(allowed)}: {body[:300]!r}"
    assert status < 400 or b"error" in body, f"status {status} without a reason: {body[:300]!r}"
    return status


async def refused(wire, data, allowed):
    """All at once; who is refused early may find the connection closed under it."""
    try:
        await wire.send(data)
    except Cut:
        return 0
    return await expect(wire, allowed)


# ---- slow, torn and doubled ----------------------------------------------------------------------------------------

async def trickle(wire, rng, key, seconds):
    """A head, or a body, a few bytes at a time and never to its end: 408, not before its time."""
    if rng.random() < 0.5:
        await wire.send(b"GET /health HTTP/1.1\r\n")
        piece = b"X-%d: 1\r\n"
    else:
        await wire.send(post("/v1/completions", b"{", key).replace(b"Content-Length: 1\r\n", b"Content-Length: 900\r\n"))
        piece = b' "f%d":1,'
    loop = asyncio.get_running_loop()
    began, answer = loop.time(), asyncio.ensure_future(wire.reply())
    for i in range(100):
        await asyncio.wait([answer], timeout=seconds / 20)
        if answer.done():
            break
        try:
            await wire.send(piece % i)
        except Cut:
            break
    status, _, _ = await answer
    if status in (429, 503):
        raise Busy(status)
    assert status == 408, f"a request that trickles in: status {status}, expected 408"
    assert loop.time() - began > 0.7 * seconds, "a request was given up too early"
    return status


async def torn(wire, rng, key, body):
    """The client goes in the middle of its request: of its head, its body, or a chunk."""
    data = post("/v1/chat/completions", body, key)
    if rng.random() < 0.5:
        text = json.dumps(body).encode()
        half = len(text) // 2
        data = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer " + key.encode() +
                b"\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n%x\r\n%b" % (half, text[:half], len(text) - half, text[half:]))
    await wire.send(data[:rng.randrange(1, len(data) - 1)])
    if rng.random() < 0.5:
        wire.end_of_requests()
        try:
            status = (await wire.reply())[0]
            assert status >= 400, f"half a request: status {status}"
        except Cut:
            pass
    return 0


async def wrong_length(wire, rng, key):
    """A length that is too small: what is behind it is read as the next request, and is none."""
    body = b'{"prompt": "x"}'
    n = rng.randrange(1, len(body))
    await wire.send(post("/tokenize", body, key).replace(b"Content-Length: %d" % len(body), b"Content-Length: %d" % n))
    await expect(wire, {400})
    wire.end_of_requests()
    return await expect(wire, {400})


async def ahead(wire, rng, key, ask, want):
    """Many requests in one go, cut anywhere: each is answered, in its turn, the last one (which is no request) too."""
    parts = [(post("/tokenize", {"prompt": f"word {i}"}, key), None) for i in range(rng.randrange(1, 8))]
    parts.insert(rng.randrange(len(parts)), (post(ask.path, ask.body, key), want))
    data = b"".join(part for part, _ in parts) + b"no request\r\n\r\n"
    while data:
        n = rng.randrange(1, len(data) + 1)
        await wire.send(data[:n])
        data = data[n:]
    for _, answer in parts:
        status, _, body = await wire.reply()
        if status in (429, 503):
            raise Busy(status)
        assert status == 200, f"sent ahead: status {status}: {body[:300]!r}"
        if answer:
            assert ask.read(body) == answer, f"sent ahead, {ask.name}: {ask.read(body)}, expected {answer}"
    return await expect(wire, {400})


async def in_chunks(wire, rng, key, ask, want):
    """A right request in many chunks with extensions and a trailer, behind an expectation."""
    text = json.dumps(ask.body).encode()
    await wire.send(b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer %b\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n" %
                    (ask.path.encode(), key.encode()))
    data = b""
    while text:
        n = rng.randrange(1, len(text) + 1)
        data += b"%x;a=\"b\"\r\n%b\r\n" % (n, text[:n])
        text = text[n:]
    await wire.send(data + b"0\r\nTrailer: x\r\n\r\n")
    status, _, body = await wire.reply()
    if status in (429, 503):
        raise Busy(status)
    assert status == 200, f"in chunks, {ask.name}: status {status}: {body[:300]!r}"
    assert ask.read(body) == want, f"in chunks, {ask.name}: {ask.read(body)}, expected {want}"
    return status


async def broken(wire, rng, key, ask):
    """A right request's body with something odd in it, or damaged bytes."""
    body = json.dumps(damaged(rng, ask.body)).encode()
    if rng.random() < 0.4:
        body = spoiled(rng, body)
    await wire.send(post(ask.path, body, key))
    status, _, data = await wire.reply()
    assert status == 200 or status in REFUSED, f"a damaged body {body!r}: status {status}: {data[:300]!r}"
    return status
