"""A server for `tutti load` to be measured with: it answers well, or misbehaves as the prompt's first word asks.

MockServer runs in a thread of its own, on a free port of 127.0.0.1. What it saw: requests (dicts of path, body, key, and the
time of arrival), n_connections, most_open (requests at the same time).
"""
import asyncio
import json
import socket
import struct
import threading
import time


def sse(value):
    return f"data: {json.dumps(value)}\n\n".encode()


def chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


STREAM = (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")


def refusal(status, body, *headers):
    return (f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\n" + "".join(h + "\r\n" for h in headers) + "\r\n"
            ).encode() + body


class MockServer:
    """closes: True, connections after their first answer; "asked", after the first answer, the head of the next request."""

    def __init__(self, first_s=0.0, gap_s=0.0, usage=True, models=("mock",), closes=False, serial=False,
                 tls=None):
        self.first_s, self.gap_s, self.usage, self.models, self.closes = first_s, gap_s, usage, models, closes
        self.serial = asyncio.Lock() if serial else None
        self.requests, self.n_connections, self.n_open, self.most_open = [], 0, 0, 0
        self.loop = asyncio.new_event_loop()
        started = threading.Event()

        def work():
            asyncio.set_event_loop(self.loop)
            self.server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", 0, limit=1 << 24,
                                                                            backlog=4096, ssl=tls))
            started.set()
            self.loop.run_forever()

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()
        started.wait(10)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"

    def stop(self):
        async def end():
            self.server.close()
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            await asyncio.sleep(0)
        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    # ---- HTTP ----

    async def serve(self, reader, writer):
        self.n_connections += 1
        n_answered = 0
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                if self.closes == "asked" and n_answered:
                    break
                lines = head.split("\r\n")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:] if ": " in line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.n_open += 1
                self.most_open = max(self.most_open, self.n_open)
                try:
                    if not await self.answer(writer, lines[0].split()[1], headers, body):
                        break
                    await writer.drain()
                finally:
                    self.n_open -= 1
                n_answered += 1
                if self.closes is True:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def answer(self, writer, path, headers, body):
        """Writes one answer; False: the connection ends."""
        if path == "/v1/models":
            writer.write(refusal(200, json.dumps({"data": [{"id": name} for name in self.models]}).encode()))
            return True
        asked = json.loads(body)
        self.requests.append({"path": path, "body": asked, "key": headers.get("authorization"), "at": time.monotonic()})
        if path.endswith("/generate_stream"):
            text, n = asked["inputs"], asked["parameters"]["max_new_tokens"]
        else:
            text = asked["prompt"] if "prompt" in asked else asked["messages"][-1]["content"]
            n = asked["max_tokens"]
        act = getattr(self, "do_" + text.split()[0], None) if text else None
        if act:
            return await act(writer)
        if self.serial:
            async with self.serial:
                await self.stream(writer, path, n)
        else:
            await self.stream(writer, path, n)
        return True

    async def stream(self, writer, path, n):
        if self.first_s:
            await asyncio.sleep(self.first_s)
        writer.write(STREAM)
        for i in range(n):
            if i and self.gap_s:
                await asyncio.sleep(self.gap_s)
            writer.write(chunk(self.piece(path, i, i == n - 1, n)))
            if i % 64 == 63:
                await writer.drain()
        if path.startswith("/v1/"):
            end = sse({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": n}}) if self.usage else b""
            writer.write(chunk(end + b"data: [DONE]\n\n"))
        elif path != "/generate_stream":
            writer.write(chunk(json.dumps({"event": "message", "retry": 30000, "data": [{
                "generated_text": "w" * n, "finish_reason": "length", "generated_tokens": n, "prefill": [], "seed": 1,
                "tokens": [], "top_tokens": []}]}).encode() + b"\n"))
        writer.write(b"0\r\n\r\n")

    def piece(self, path, i, is_last, n):
        token = {"id": i, "text": " w", "logprob": -1.0, "special": False}
        finish = "length" if is_last else None
        if path.endswith("/chat/completions"):
            return sse({"choices": [{"index": 0, "delta": {"content": " w"}, "finish_reason": finish}]})
        if path.startswith("/v1/"):
            return sse({"choices": [{"index": 0, "text": " w", "finish_reason": finish}]})
        if path == "/generate_stream":
            return sse({"index": i + 1, "token": token, "generated_text": " w" * n if is_last else None,
                        "details": {"finish_reason": "length", "generated_tokens": n, "input_length": 10} if is_last else None})
        return json.dumps({"event": "message", "retry": 30000, "data": [
            {"details": None, "generated_text": " w", "tokens": token, "top_tokens": [token]}]}).encode() + b"\n"

    # ---- misbehaviour ----

    BEGIN = STREAM + chunk(sse({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}))

    async def do_cut(self, writer):
        writer.write(self.BEGIN + b"20\r\ndata: {\"cho")
        return False

    async def do_unended(self, writer):
        writer.write(self.BEGIN + b"0\r\n\r\n")
        return True

    async def do_reset(self, writer):
        writer.write(self.BEGIN)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        return False

    async def do_silence(self, writer):
        return False

    async def do_garbage(self, writer):
        writer.write(STREAM + chunk(b"data: \xff\xfe{{{\n\n") + b"0\r\n\r\n")
        return True

    async def do_html(self, writer):
        writer.write(refusal(200, b"<html><body>Welcome!</body></html>"))
        return True

    async def do_nohttp(self, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n" * 20)
        return False

    async def do_huge(self, writer):
        writer.write(STREAM)
        for _ in range(64):
            writer.write(chunk(b"x" * 65536))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        return True

    async def do_busy(self, writer):
        writer.write(refusal(429, b'{"error": {"message": "slow down, please"}}', "Retry-After: 3"))
        return True

    async def do_later(self, writer):
        writer.write(refusal(503, b"later", "Retry-After: Fri, 01 Jan 2100 00:00:00 GMT"))
        return True

    async def do_wrong(self, writer):
        writer.write(refusal(400, b'{"error": "no such\x1b[31m \\u001b[31m field"}'))
        return True

    async def do_broken(self, writer):
        writer.write(refusal(500, b"\xff\x00\x1b" * 30))
        return True

    async def do_endless(self, writer):
        writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 9999999999\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    async def do_moved(self, writer):
        writer.write(refusal(302, b"", "Location: http://127.0.0.1:9/"))
        return True

    async def do_error(self, writer):
        writer.write(self.BEGIN + chunk(sse({"error": {"message": "lost my mind"}})) + b"0\r\n\r\n")
        return True

    async def do_stall(self, writer):
        await asyncio.sleep(60)
        return False

    async def do_hang(self, writer):
        writer.write(self.BEGIN)
        await writer.drain()
        await asyncio.sleep(60)
        return False

    async def do_empty(self, writer):
        writer.write(STREAM + chunk(sse({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}) + b"data: [DONE]\n\n")
                     + b"0\r\n\r\n")
        return True

    async def do_bytewise(self, writer):
        data = STREAM + chunk(sse({"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}) + b"data: [DONE]\n\n")
        for i in range(len(data)):
            writer.write(data[i:i + 1])
            await writer.drain()
            await asyncio.sleep(0.0005)
        writer.write(b"0\r\n\r\n")
        return True
