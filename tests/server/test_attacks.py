"""Clients that try to keep others out, below and around HTTP: bench/attack/sockets.py has the attacks, here are the bounds."""
import json
import os
import resource
import socket
import sys
import time

import pytest

from conftest import DEMO, PATIENCE, ROOT

sys.path.insert(0, os.path.join(ROOT, "bench", "attack"))
import sockets as attacks  # noqa: E402

MIB = 1024 * 1024
SANITIZED = "ASAN_OPTIONS" in os.environ or "TSAN_OPTIONS" in os.environ
SMALL = ["--kv-memory", "4M"]  # else the KV cache takes its memory little by little, and hides that of requests
TOKENIZE = {"prompt": "one two three"}


def address_of(server):
    return "127.0.0.1", server.port


def ask(server, key=None, source=None):
    return attacks.ask(address_of(server), "/tokenize", "POST", TOKENIZE, key=key, source=source)


def rss_in_use(server, key=None):
    """Memory of a server that has answered, so that what it sets up for its first answer is not counted."""
    assert ask(server, key) == 200
    return server.rss_bytes()


def assert_took_less(server, before, n_bytes):
    """The address sanitizer keeps what was freed in quarantine, so under a sanitizer the memory says nothing."""
    assert SANITIZED or server.rss_bytes() - before < n_bytes


def assert_loop_rests(server):
    """The event loop takes hardly any CPU time while nothing happens."""
    def used_ns():
        with open(f"/proc/{server.process.pid}/task/{server.process.pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0])
    before = used_ns()
    time.sleep(1)
    assert used_ns() - before < 100e6


LARGE_REPLY = {"content": "é~" * 340_000, "with_pieces": True, "return_token_strs": True}  # 36 MB to a body of a few


def unread(attack, extra="", receive_bytes=4096):
    """Sends a request for a large reply and reads only the start of its reply. Returns the socket and what it has read."""
    sock = socket.socket()
    attack.socks.append(sock)
    sock.settimeout(PATIENCE)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.connect(attack.address)
    data = json.dumps(LARGE_REPLY).encode()
    sock.sendall(attacks.head("POST", "/tokenize", len(data), extra=extra) + data)
    return sock, sock.recv(1000)


def read_rest(sock, reply, pause=0):
    """Reads the rest of a reply, and pauses after each megabyte."""
    n_body = int(reply.split(b"Content-Length: ")[1].split()[0])
    n_left = n_body - len(reply.split(b"\r\n\r\n", 1)[1])
    while n_left > 0:
        piece = sock.recv(min(n_left, MIB), socket.MSG_WAITALL)
        assert piece, f"{n_left} of {n_body} bytes are missing"
        n_left -= len(piece)
        time.sleep(pause)


@pytest.fixture
def keyed(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-a alice\nsk-b bob\n")
    metrics = tmp_path / "metrics"
    metrics.write_text("sk-metrics\n")
    return start("--api-key-file", keys, "--max-body", "16M", *SMALL)


# ---- bodies that never end ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path, method", [("/health", "GET"), ("/", "GET"), ("/v1/models", "GET"), ("/metrics", "GET"), ("/health", "HEAD"),
                                          ("/health", "OPTIONS"), ("/health", "POST"), ("/nothing", "GET")])
def test_a_route_without_a_body_takes_none_and_ends_the_connection(server, path, method):
    with attacks.Attack(address_of(server)) as attack:
        sock = attack.connect()
        sock.sendall(attacks.head(method, path, 10))
        reply = b""
        while (piece := sock.recv(65536)):  # to the end of the connection, though nothing of the body was sent
            reply += piece
        status = int(reply.split()[1])
        assert status == {"POST": 405}.get(method, 404 if path == "/nothing" else 400), reply
        if status == 400 and method != "HEAD":
            assert b"takes no body" in reply


def test_17_unfinished_bodies_on_a_route_without_a_key_keep_nobody_out(keyed):
    before = rss_in_use(keyed, "sk-a")
    with attacks.unfinished_bodies(address_of(keyed), "/health", "GET", 17) as attack:
        assert [ask(keyed, "sk-a"), ask(keyed, "sk-b")] == [200, 200]
        assert all(status in (0, 400) for status in attack.replies())
        assert_took_less(keyed, before, 16 * MIB)


def test_a_client_without_its_key_stores_nothing(keyed):
    before = rss_in_use(keyed, "sk-a")
    with attacks.unfinished_bodies(address_of(keyed), "/v1/completions", "POST", 17) as attack:
        assert ask(keyed, "sk-a") == 200
        assert all(status in (0, 401) for status in attack.replies())
        assert_took_less(keyed, before, 16 * MIB)


@pytest.mark.parametrize("attack", [attacks.unfinished_bodies, attacks.unfinished_chunks])
def test_who_fills_the_memory_for_bodies_loses_bodies_and_the_other_key_none(keyed, attack):
    more = {"method": "POST"} if attack is attacks.unfinished_bodies else {}
    before = rss_in_use(keyed, "sk-a")
    with attack(address_of(keyed), "/v1/completions", count=17, key="sk-a", **more) as held:
        assert ask(keyed, "sk-b") == 200
        large = {"prompt": "x" * (4 * MIB)}  # too long a prompt, but a body that has to be read
        assert attacks.ask(address_of(keyed), "/tokenize", "POST", large, key="sk-b") == 400
        lost = [status for status in held.replies() if status is not None]
        assert 12 <= len(lost) <= 17 and set(lost) <= {0, 408, 503}
        assert ask(keyed, "sk-a") == 200  # a small one of the same client
        assert_took_less(keyed, before, 150 * MIB)


def test_many_addresses_together_do_not_keep_out_another(start):
    server = start("--max-body", "16M")
    sources = [f"127.0.0.{i}" for i in range(2, 12)]
    with attacks.unfinished_bodies(address_of(server), "/v1/completions", "POST", 30, sources=sources) as held:
        assert ask(server, source="127.0.0.99") == 200
        lost = [status for status in held.replies() if status is not None]
        assert 10 <= len(lost) <= 30
        figures = server.metrics()
        assert figures["tutti_http_request_bytes"] <= 256 * MIB
        assert figures["tutti_http_evicted_requests_total"] >= 10
    server.wait_until(lambda m: m["tutti_http_request_bytes"] == 0)


def test_a_body_is_freed_when_its_request_is_over(start):
    server = start("--max-body", "16M")
    for _ in range(3):
        assert attacks.ask(address_of(server), "/tokenize", "POST", {"prompt": "x" * (2 * MIB)}) == 400
    assert server.metrics()["tutti_http_request_bytes"] == 0


def test_a_body_that_drips_is_given_up_after_the_time_for_a_head(start):
    server = start("--header-timeout", "1", "--max-body", "16M")
    seconds, status = attacks.slow_body(address_of(server), n_bytes=16 * MIB, seconds=PATIENCE)
    assert status == 408 and seconds < 30  # not the 30 s of the default


def test_a_body_that_goes_on_arriving_may_take_longer_than_that(start):
    server = start("--header-timeout", "1", "--max-body", "16M")
    parts, part = 12, b" " * 100000
    with socket.create_connection(address_of(server), PATIENCE) as sock:
        sock.sendall(attacks.head("POST", "/tokenize", parts * len(part) + 15, extra="Connection: close\r\n"))
        for _ in range(parts):  # three seconds in all
            sock.sendall(part)
            time.sleep(0.25)
        sock.sendall(b'{"prompt": "x"}')
        assert sock.recv(12) == b"HTTP/1.1 200"


def test_heads_without_an_end_take_bounded_memory_and_time(start):
    server = start("--header-timeout", "2", *SMALL)
    before = rss_in_use(server)
    with attacks.unfinished_heads(address_of(server), 1000) as held:
        assert ask(server) == 200
        assert_took_less(server, before, 100 * MIB)
        server.wait_until(lambda m: m["tutti_http_connections"] == 1)
        assert set(held.replies()) <= {0, 408, 503}


# ---- connections -----------------------------------------------------------------------------------------------------

def test_an_address_has_so_many_connections_and_the_new_one_displaces_the_one_that_rests_longest(start):
    server = start("--max-connections-per-address", "20")
    with attacks.resting(address_of(server), 60) as held:
        assert ask(server) == 200
        replies = held.replies()
        assert replies[:40] == [0] * 40 and replies.count(None) == 19
        assert ask(server, source="127.0.0.5") == 200
        assert server.metrics()["tutti_http_connections_closed_for_room_total"] >= 41


def test_connections_with_work_are_not_displaced(start):
    server = start("--max-connections-per-address", "3")
    body = {"prompt": "Tell me", "max_tokens": 480, "ignore_eos": True, "n": 16}
    data = json.dumps(body).encode()
    with attacks.Attack(address_of(server)) as attack:
        for _ in range(3):
            attack.connect().sendall(attacks.head("POST", "/v1/completions", len(data)) + data)
        deadline = time.monotonic() + PATIENCE
        while b"\ntutti_engine_requests_total 3\n" not in attacks.fetch(address_of(server), "/metrics", source="127.0.0.7")[1]:
            assert time.monotonic() < deadline
        assert attacks.ask(address_of(server), "/health") == 429
        assert attack.replies() == [None] * 3
        assert attacks.ask(address_of(server), "/health", source="127.0.0.7") == 200


@pytest.mark.parametrize("extra", ["", "Connection: close\r\n"], ids=["kept", "closed"])
def test_a_connection_whose_reply_is_being_read_is_not_displaced(start, extra):
    server = start("--max-connections-per-address", "1", *SMALL)
    with attacks.Attack(address_of(server)) as attack:
        sock, reply = unread(attack, extra=extra)
        assert attacks.ask(address_of(server), "/health") == 429
        read_rest(sock, reply)
        if not extra:  # it rests now, though not before the server has noticed that all was read
            sock.sendall(attacks.head("GET", "/health"))
            assert sock.recv(12) == b"HTTP/1.1 200"
            assert attacks.ask(address_of(server), "/health") == 200


def test_a_reply_may_be_read_for_longer_than_the_time_to_rest(start):
    server = start("--idle-timeout", "3", *SMALL)
    with attacks.Attack(address_of(server)) as attack:
        sock, reply = unread(attack, receive_bytes=65536)
        read_rest(sock, reply, pause=0.15)  # five seconds and more


def test_the_address_with_most_connections_makes_room_for_others(start):
    server = start("--max-connections", "100")
    with attacks.resting(address_of(server), 90), attacks.resting(address_of(server), 30, sources=["127.0.0.2"]) as few:
        assert ask(server, source="127.0.0.3") == 200
        assert few.replies() == [None] * 30


def test_without_descriptors_the_longest_rest_makes_room(start):
    server = start()
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (60, 60))
    with attacks.resting(address_of(server), 150):
        assert ask(server) == 200
    server.wait_for_log("cannot accept a connection: Too many open files")


def test_requests_sent_ahead_whose_replies_nobody_reads_take_bounded_memory(start):
    server = start(*SMALL)
    before = rss_in_use(server)
    with attacks.pipeline(address_of(server), 100000):
        assert ask(server) == 200
        assert_took_less(server, before, 16 * MIB)
        assert_loop_rests(server)


def test_requests_sent_ahead_of_a_long_answer_take_no_time(start):
    server = start(*SMALL)
    data = json.dumps({"prompt": "Tell me", "max_tokens": 2000, "ignore_eos": True, "n": 64}).encode()
    with attacks.Attack(address_of(server)) as attack:
        sock = attack.connect()
        sock.sendall(attacks.head("POST", "/v1/completions", len(data)) + data)
        sock.sendall(attacks.head("GET", "/health", extra="X: " + "x" * 300_000 + "\r\n"))
        server.wait_until(lambda m: m["tutti_sequences_running"] >= 1)
        assert_loop_rests(server)


@pytest.mark.parametrize("models", [(), (f"a={DEMO}", f"b={DEMO}")], ids=["one model", "several"])
def test_replies_that_nobody_reads_take_no_more_than_one_clients_memory(start, models):
    """64 MiB for each client: there is no room for a second reply."""
    server = start(*models, "--max-body", "4M", *SMALL)
    with attacks.Attack(address_of(server)) as attack:
        replies = [unread(attack)[1] for _ in range(3)]
        assert [reply.split()[1] for reply in replies] == [b"200", b"429", b"429"]
        for reply in replies[1:]:
            assert b"take more memory than the 64 MiB" in reply and b"\r\nRetry-After: 1\r\n" in reply
        assert 30e6 < server.metrics()["tutti_http_reply_bytes"] < 64 * MIB
        status, reply, _ = attacks.fetch(address_of(server), "/tokenize", "POST", LARGE_REPLY, source="127.0.0.9", patience=PATIENCE)
        assert status == 200 and len(json.loads(reply)["token_strs"]) > 340_000
    server.wait_until(lambda m: m["tutti_http_reply_bytes"] == 0)
    assert ask(server) == 200


# ---- framing ---------------------------------------------------------------------------------------------------------

def exchange(server, *parts, half_close=False):
    """Sends the parts one by one and returns all that comes back until the server closes, or the status of a kept connection."""
    with socket.create_connection(address_of(server), PATIENCE) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i, part in enumerate(parts):
            if i:
                time.sleep(0.002)  # so that the server reads what has come
            sock.sendall(part)
        if half_close:
            sock.shutdown(socket.SHUT_WR)
        reply = b""
        while (piece := sock.recv(65536)):
            reply += piece
    return reply


REQUEST = (b"\r\n\r\nPOST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
           b"Connection: close\r\n\r\n4;a=b\r\n{\"pr\r\n0b\r\nompt\":\"hi\"}\r\n0\r\nX: y\r\n\r\n")


def test_a_request_may_be_cut_anywhere(server):
    whole = exchange(server, REQUEST)
    body = whole.split(b"\r\n\r\n", 1)[1]
    assert whole.startswith(b"HTTP/1.1 200") and json.loads(body)["count"] > 0
    for at in range(1, len(REQUEST)):
        reply = exchange(server, REQUEST[:at], REQUEST[at:])
        assert reply.startswith(b"HTTP/1.1 200") and reply.endswith(body), (at, REQUEST[:at], reply)


def test_a_request_may_come_byte_by_byte_and_another_one_behind_it(server):
    first = REQUEST.replace(b"Connection: close\r\n", b"")
    reply = exchange(server, *[bytes([byte]) for byte in first + REQUEST])
    assert reply.count(b"HTTP/1.1 200") == 2


CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("size", [b"+2", b"-2", b"0x2", b" 2", b"2 ", b"2\t", b"2 ;a", b"2; a", b"", b";a", b"2;", b"2;a=", b"2;=b", b"2;a=\"b",
                                  b"2;a b", b"2;a\x01", b"2g", b"2,2", b"\xb2", b"10000000000000002", b"ffffffffffffffff", b"fffffffffffffffff",
                                  b"0000000000000000000000002", b"2\n", b"2\r", b"2;a=\"\n\""])
def test_a_chunk_size_is_hexadecimal_digits_and_nothing_else(server, size):
    reply = exchange(server, CHUNKED + size + b"\r\n{}\r\n0\r\n\r\n", half_close=True)
    assert reply.split()[1] in (b"400", b"413"), reply
    assert b"chunk" in reply or b"too large" in reply


@pytest.mark.parametrize("chunks", [b"2;a\r\n{}\r\n0\r\n\r\n", b"2;a=b;c=\"d e\\\"\"\r\n{}\r\n0;z\r\n\r\n", b"002\r\n{}\r\n000\r\n\r\n",
                                    b"1\r\n{\r\n1\r\n}\r\n0\r\nA: b\r\nC:\r\n\r\n"])
def test_chunks_as_the_standard_has_them_are_read(server, chunks):
    reply = exchange(server, CHUNKED + chunks)
    assert reply.startswith(b"HTTP/1.1 400") and b"prompt must be a string" in reply  # {} was read, and is no request


@pytest.mark.parametrize("trailer", [b"no colon", b" folded: x", b"a b: c", b"A: \x01", b": x"])
def test_a_trailer_is_made_of_header_lines(server, trailer):
    reply = exchange(server, CHUNKED + b"2\r\n{}\r\n0\r\n" + trailer + b"\r\n\r\n", half_close=True)
    assert reply.startswith(b"HTTP/1.1 400") and b"trailer" in reply


def test_the_extensions_of_all_chunks_together_are_bounded(server):
    assert attacks.chunk_extensions(address_of(server)) == 400


# ---- clients that have closed their side -----------------------------------------------------------------------------

STORY = {"prompt": "Tell me a story", "max_tokens": 200, "ignore_eos": True, "temperature": 0}


def half_closed(server, body, extra=b"", version=b"1.1"):
    data = json.dumps(body).encode()
    return exchange(server, b"POST /v1/completions HTTP/" + version + b"\r\nHost: localhost\r\nContent-Type: application/json\r\n" + extra +
                    b"Content-Length: %d\r\n\r\n" % len(data) + data, half_close=True)


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_client_that_closes_its_side_gets_its_answer(server, version):
    want = server.post("/v1/completions", STORY).json()["choices"]
    reply = half_closed(server, STORY, version=version)
    while reply.startswith(b"HTTP/1.1 100"):
        assert version == b"1.1"
        reply = reply.split(b"\r\n\r\n", 1)[1]
    assert reply.startswith(b"HTTP/1.1 200") and json.loads(reply.split(b"\r\n\r\n", 1)[1])["choices"] == want


def test_a_client_that_closes_its_side_gets_its_stream(server):
    reply = half_closed(server, {**STORY, "stream": True})
    assert reply.count(b"data: ") > 50 and b"data: [DONE]" in reply


def test_requests_sent_ahead_of_a_closed_side_are_all_answered(server):
    get = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    data = json.dumps(STORY).encode()
    reply = exchange(server, get + attacks.head("POST", "/v1/completions", len(data)) + data + get * 3 + get[:-4], half_close=True)
    assert reply.count(b"HTTP/1.1 200") == 5


@pytest.mark.parametrize("first", ["closes its side", "only waits", "sends more than is read"])
def test_a_client_that_is_gone_altogether_is_found_out(start, first):
    server = start()
    data = json.dumps({**STORY, "max_tokens": 480, "n": 64}).encode()
    with socket.create_connection(address_of(server), PATIENCE) as sock:
        sock.sendall(attacks.head("POST", "/v1/completions", len(data)) + data)
        if first == "closes its side":
            sock.shutdown(socket.SHUT_WR)
        if first == "sends more than is read":
            sock.sendall(attacks.head("GET", "/health", extra="X: " + "x" * 300_000 + "\r\n"))
        server.wait_until(lambda m: m["tutti_sequences_running"] >= 1)
    server.wait_until(lambda m: m["tutti_engine_requests_cancelled_total"] == 1)
    server.wait_idle()
