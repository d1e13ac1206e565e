"""What the server does where clients are slow, gone, greedy or many, and how it starts and ends."""
import http.client
import json
import os
import re
import resource
import signal
import socket
import struct
import threading
import time

import pytest
import requests

from conftest import DEMO, PATIENCE

STORY = "Tell me a story about a fox named Mia."
LONG = {"messages": [{"role": "user", "content": STORY}], "ignore_eos": True, "max_tokens": 480}
# About ten megabytes of stream: more than socket buffers hold.
HUGE = {**LONG, "n": 8, "stream": True, "logprobs": True, "top_logprobs": 20}


def raw_request(body, path="/v1/chat/completions", extra=""):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{extra}"
            "\r\n").encode() + data


def connect(server, receive_bytes=None):
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(PATIENCE)
    sock.connect(("127.0.0.1", server.port))
    return sock


def read_response(file):
    status = int(file.readline().split()[1])
    headers = {}
    while (line := file.readline().strip()):
        name, value = line.decode().split(":", 1)
        headers[name.lower()] = value.strip()
    return status, headers, file.read(int(headers.get("content-length", 0)))


def test_port_zero_takes_a_free_one(start):
    a, b = start(), start()
    assert a.port != b.port and a.get("/health").ok and b.get("/health").ok


@pytest.mark.parametrize("name", [b"mod\xe8le", b"a\nb", b"\xed\xa0\x80"])
def test_a_name_that_replies_cannot_have_is_refused_at_the_start(start, tmp_path, name):
    with pytest.raises(RuntimeError) as error:
        start("--name", os.fsdecode(name))
    assert "--name ID" in str(error.value)
    folder = os.fsencode(tmp_path) + b"/" + name
    os.symlink(os.fsencode(DEMO), folder)
    with pytest.raises(RuntimeError) as error:
        start(os.fsdecode(folder))
    assert "--name ID" in str(error.value)
    assert start(os.fsdecode(folder), "--name", "modèle").get("/v1/models").json()["data"][0]["id"] == "modèle"


def test_connections_are_kept_and_requests_may_be_sent_ahead(server):
    with connect(server) as sock:
        question = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
        sock.sendall(raw_request(question) + raw_request({"prompt": "x"}, "/tokenize") + raw_request(question))
        file = sock.makefile("rb")
        first, second, third = (read_response(file) for _ in range(3))
        assert first[0] == second[0] == third[0] == 200
        assert json.loads(first[2])["choices"] == json.loads(third[2])["choices"]
        assert "tokens" in json.loads(second[2])


def test_a_body_in_chunks_is_read(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("POST", "/tokenize", body=iter([b'{"pro', b'mpt": "abc"}']), encode_chunked=True,
                       headers={"Transfer-Encoding": "chunked", "Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()


def test_a_large_body_is_refused(start):
    server = start("--max-body", "10K")
    with connect(server) as sock:  # by its announced length alone
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n")
        assert b" 413 " in sock.makefile("rb").readline()
    assert server.chat("short", max_tokens=1).status_code == 200


@pytest.mark.parametrize("junk", [
    b"\r\n\r\n\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /tokenize HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
    b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 200000 + b"\r\n\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % i for i in range(5000)) + b"\r\n",
])
def test_junk_is_refused_and_the_server_lives(server, junk):
    with connect(server) as sock:
        try:
            sock.sendall(junk)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.makefile("rb").readline()
            assert answer == b"" or re.match(rb"HTTP/1\.[01] [45]\d\d ", answer), answer
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert server.get("/health").ok


def test_headers_that_never_end_time_out(start):
    server = start("--header-timeout", "1")
    with connect(server) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
        began = time.monotonic()
        answer = b""
        while (piece := sock.recv(4096)):
            answer += piece
        assert answer == b"" or b" 408 " in answer.splitlines()[0]
        assert 0.5 < time.monotonic() - began < 30  # not the 30 s of the default


def test_idle_connections_are_closed_and_thousands_may_rest(start):
    server = start("--idle-timeout", "2")
    socks = [connect(server) for _ in range(800)]
    assert server.chat("What is the capital of France?", temperature=0).status_code == 200
    socks[0].settimeout(PATIENCE)
    assert socks[0].recv(10) == b""
    for sock in socks:
        sock.close()


def test_connections_beyond_the_descriptors_wait_their_turn(start):
    server = start("--idle-timeout", "1")
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (60, 60))
    socks = [connect(server) for _ in range(150)]
    with connect(server) as last:  # after all of them; the earlier ones are closed since they are idle
        last.settimeout(PATIENCE)
        last.sendall(raw_request({"prompt": "x"}, "/tokenize"))
        assert read_response(last.makefile("rb"))[0] == 200
    server.wait_for_log("cannot accept a connection: Too many open files")
    for sock in socks:
        sock.close()


def test_a_full_queue_says_when_to_come_again(start):
    server = start("--max-seqs", "1", "--max-queue", "2", "--max-queue-time", "1000")  # a busy machine may take longer than the default
    statuses = []

    def ask():
        response = server.post("/v1/chat/completions", LONG)
        statuses.append((response.status_code, response.headers.get("retry-after"), response.json()))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [s for s in statuses if s[0] == 429]
    assert refused and len(refused) < 12
    assert all(s[0] in (200, 429) for s in statuses)
    assert all(int(s[1]) >= 1 and s[2]["error"]["message"] for s in refused)


@pytest.mark.parametrize("body", [{**LONG, "stream": True}, LONG], ids=["streaming", "whole"])
def test_a_client_that_leaves_while_it_is_answered_frees_its_pages(start, body):
    server = start()
    with connect(server) as sock:
        sock.sendall(raw_request({**body, "n": 64}))
        server.wait_until(lambda m: m["tutti_sequences_running"] >= 1)
    server.wait_idle()
    server.wait_until(lambda m: m["tutti_engine_requests_cancelled_total"] == 1)  # told when the pages are free already


def test_a_client_that_leaves_the_queue_is_forgotten(start):
    server = start("--max-seqs", "1")
    with connect(server) as busy, connect(server) as waiting:
        busy.sendall(raw_request({**LONG, "n": 128, "max_tokens": 1900}))
        server.wait_until(lambda m: m["tutti_sequences_running"] == 1)
        waiting.sendall(raw_request(LONG))
        server.wait_until(lambda m: m["tutti_engine_requests_total"] == 2)
        waiting.close()
        server.wait_until(lambda m: m["tutti_engine_requests_cancelled_total"] == 1)
        busy.close()
        server.wait_until(lambda m: m["tutti_engine_requests_cancelled_total"] == 2)  # so it went on until now
    assert server.wait_idle()["tutti_engine_requests_finished_total"] == 0


def test_a_client_that_leaves_during_prefill_frees_its_pages(start):
    server = start("--max-batch-tokens", "1")
    for _ in range(5):
        with connect(server) as sock:
            sock.sendall(raw_request({"messages": [{"role": "user", "content": "one two three " * 40}], "max_tokens": 200}))
            server.wait_until(lambda m: m["tutti_kv_pages_used"] > 0 or m["tutti_engine_requests_finished_total"] > 0)
    server.wait_idle()


def test_a_reader_that_does_not_read_is_dropped_without_holding_pages(start):
    server = start("--max-output", "256K")
    with connect(server, receive_bytes=4096) as sock:
        sock.sendall(raw_request(HUGE))
        # Where the engine is much faster than the thread of connections, the answer is over before it is cancelled.
        server.wait_until(lambda m: m["tutti_engine_requests_cancelled_total"] + m["tutti_engine_requests_finished_total"] == 1)
        server.wait_idle()
        server.wait_until(lambda m: m["tutti_http_connections"] == 1)  # this request's: the other one is open on this side alone
    assert server.chat("What is the capital of France?", temperature=0).json()["choices"][0]["finish_reason"] == "stop"


def test_a_slow_reader_gets_everything(server):
    with connect(server, receive_bytes=4096) as sock:
        sock.sendall(raw_request({**LONG, "stream": True, "max_tokens": 100}, extra="Connection: close\r\n"))
        data = b""
        while (piece := sock.recv(2000)):
            data += piece
            time.sleep(0.002)
    assert data.count(b"data: ") > 50 and b"data: [DONE]" in data


def test_a_unix_socket_is_served_and_removed(start, tmp_path):
    path = str(tmp_path / "socket")
    server = start("--unix", path)
    assert server.url == "unix:" + path
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b"200" in sock.makefile("rb").readline()
    assert server.stop() == 0
    assert not os.path.exists(path)


def test_api_keys_guard_what_computes(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# keys\n\nfirst\n  second  \n")
    server = start("--api-key-file", keys)
    bad = server.get("/v1/models")
    assert bad.status_code == 401 and bad.json()["error"]["code"] == "invalid_api_key"
    assert server.get("/v1/models", headers={"Authorization": "Bearer firs"}).status_code == 401
    assert server.get("/v1/models", headers={"Authorization": "Bearer first"}).status_code == 200
    assert server.get("/v1/models", headers={"Authorization": "Bearer second"}).status_code == 200
    assert server.get("/health").status_code == 200 and server.get("/").status_code == 200


def test_cors_is_for_the_named_origin(start):
    plain = start()
    assert "access-control-allow-origin" not in plain.get("/v1/models").headers
    server = start("--cors-origin", "https://chat.example")
    assert server.get("/v1/models").headers["access-control-allow-origin"] == "https://chat.example"
    preflight = requests.options(server.url + "/v1/chat/completions", timeout=PATIENCE, headers={
        "Origin": "https://chat.example", "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, authorization"})
    assert preflight.status_code == 204 and "POST" in preflight.headers["access-control-allow-methods"]
    assert "authorization" in preflight.headers["access-control-allow-headers"]


def test_sigterm_lets_running_answers_end(start):
    server = start("--drain-timeout", "600")
    with connect(server) as sock:
        sock.sendall(raw_request({**LONG, "n": 32, "stream": True}, extra="Connection: close\r\n"))
        server.wait_until(lambda m: m["tutti_sequences_running"] > 0)
        server.process.send_signal(signal.SIGTERM)
        data = b""
        while (piece := sock.recv(65536)):
            data += piece
    assert b"data: [DONE]" in data and data.count(b'"finish_reason":"length"') == 32
    assert server.process.wait(PATIENCE) == 0


def test_a_second_signal_stops_at_once(start):
    server = start("--drain-timeout", "100000")
    with connect(server) as sock:
        sock.sendall(raw_request({**HUGE, "n": 128}))
        server.wait_until(lambda m: m["tutti_sequences_running"] > 0)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("draining")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0


def test_the_log_has_a_line_for_each_request(start):
    server = start()
    answer = server.chat("What is the capital of France?", temperature=0)
    server.get("/health")
    server.stop()
    line, = [line for line in server.log().splitlines() if answer.headers["x-request-id"] in line]
    for word in ("POST /v1/chat/completions", " 200 ", "prompt=13", "generated=9", "ttft_ms=", "tok_s="):
        assert word in line, line


def test_two_servers_cannot_have_one_port(start):
    server = start()
    with pytest.raises(RuntimeError) as error:
        start("--port", server.port)
    assert "in use" in str(error.value)


def test_a_reset_in_the_middle_of_a_body_is_no_harm(server):
    for cut in (1, 30, 200):
        with connect(server) as sock:
            sock.sendall(raw_request({**LONG, "x": "y" * 300})[:-cut])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.wait_idle()


def test_a_job_of_many_prompts_waits_for_room_that_others_took(start):
    """It ended with 429 where another client came in when its only open prompt had ended."""
    server = start("--max-seqs", 1, "--max-queue", 1, "--max-queue-time", 0)
    is_over = threading.Event()

    def flood():
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        while not is_over.is_set():
            connection.request("POST", "/v1/completions", '{"prompt":"Once","max_tokens":1}', {"Content-Type": "application/json"})
            connection.getresponse().read()
        connection.close()
    others = [threading.Thread(target=flood) for _ in range(6)]
    for other in others:
        other.start()
    try:
        n_done = 0
        while n_done < 3:
            body = {"prompt": [f"Once upon {i}" for i in range(200)], "max_tokens": 1, "ignore_eos": True, "stream": True}
            reply = server.post("/v1/completions", body)
            if reply.status_code == 429:
                continue  # the first prompt found no room
            assert reply.text.count('"finish_reason":"length"') == 200 and reply.text.endswith("data: [DONE]\n\n"), reply.text[-300:]
            n_done += 1
    finally:
        is_over.set()
        for other in others:
            other.join()
