"""A client's end of one HTTP/1.1 connection, for clients that must be able to do what no library lets them do."""
import asyncio
import json
import socket
import struct


class Cut(Exception):
    """The connection ended before the answer was complete. status: None where not even a head came; data: the body so far."""

    def __init__(self, why, status=None, data=b""):
        super().__init__(f"{why}, status {status}, after {len(data)} bytes of body")
        self.status, self.data = status, data


class Busy(Exception):
    """The server is full (429) or about to end (503)."""


class Wire:
    """Sockets without a stream above them: small windows, resets and half-closes are as wanted."""

    def __init__(self, sock, patience):
        self.sock, self.patience, self.rest = sock, patience, b""
        self.status, self.body = None, b""

    @classmethod
    async def open(cls, port, patience, receive_bytes=None):
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        wire = cls(sock, patience)
        try:
            await wire.within(asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port)), "connect")
        except BaseException:
            sock.close()
            raise
        return wire

    async def within(self, work, what):
        try:
            async with asyncio.timeout(self.patience):  # asyncio.wait_for can lose a cancellation (Python 3.11)
                return await work
        except TimeoutError:  # which is an OSError
            raise TimeoutError(f"{what}: nothing for {self.patience} s, status {self.status}, {len(self.body)} bytes of body") from None
        except OSError as fault:
            raise Cut(f"{what}: {fault.strerror}", self.status, self.body) from None

    async def send(self, data):
        await self.within(asyncio.get_running_loop().sock_sendall(self.sock, data), "send")

    async def receive(self, n_bytes=65536):
        """Up to n_bytes; b"" at the end."""
        return await self.within(asyncio.get_running_loop().sock_recv(self.sock, n_bytes), "receive")

    def end_of_requests(self):
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as fault:
            raise Cut(f"shutdown: {fault.strerror}") from None

    def close(self, reset=False):
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    async def more(self):
        data = await self.receive()
        if not data:
            raise Cut("closed", self.status, self.body)
        self.rest += data

    async def until(self, mark):
        while mark not in self.rest:
            await self.more()
        part, self.rest = self.rest.split(mark, 1)
        return part

    async def exactly(self, n_bytes):
        while len(self.rest) < n_bytes:
            await self.more()
        part, self.rest = self.rest[:n_bytes], self.rest[n_bytes:]
        return part

    async def reply(self, slowly=0):
        """The next answer: its status, its headers, its body. slowly: pause after each piece of it, in seconds."""
        self.status, self.body = None, b""
        while True:
            first, *lines = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            version, status = first.split(" ")[:2]
            assert version == "HTTP/1.1", first
            if status != "100":
                break
        self.status = int(status)
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            while (size := int(await self.until(b"\r\n"), 16)):
                self.body += await self.exactly(size)
                assert await self.exactly(2) == b"\r\n", "a chunk does not end in CR LF"
                if slowly:
                    await asyncio.sleep(slowly)
            assert await self.exactly(2) == b"\r\n", "the chunks do not end in CR LF"
        elif "content-length" in headers:
            left = int(headers["content-length"])
            while left > 0:
                piece = await self.exactly(min(left, 4096)) if slowly else await self.exactly(left)
                self.body += piece
                left -= len(piece)
                await asyncio.sleep(slowly)
        return self.status, headers, self.body


def post(path, body, key=None, extra=b"", method=b"POST"):
    """The bytes of a request. body: bytes, or a value that becomes JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = method + b" " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if key:
        head += b"Authorization: Bearer " + key.encode() + b"\r\n"
    return head + b"Content-Length: %d\r\n" % len(data) + extra + b"\r\n" + data
