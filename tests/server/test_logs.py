"""The access log for machines: each line an object, one for each request, with the trace that it belongs to."""
import json
import re
import socket
import time

import requests
from conftest import PATIENCE

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def objects(server):
    """Every line of the log, whatever it is about."""
    return [json.loads(line) for line in server.log().splitlines()]


def requests_of(server, n):
    """The lines of the first n requests, which may still be on their way."""
    end = time.monotonic() + PATIENCE
    while True:
        found = [o for o in objects(server) if o["message"] == "request"]
        if len(found) >= n:
            assert len(found) == n
            return found
        assert time.monotonic() < end, server.log()
        time.sleep(0.02)


def test_each_request_is_one_object(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-first-secret  alice\nsk-second-secret\n")
    server = start("--log-format", "json", "--api-key-file", keys)
    replies = [server.post("/v1/chat/completions", CHAT, headers={"Authorization": f"Bearer sk-{key}-secret"})
               for key in ("first", "second", "third")]
    replies.append(server.post("/v1/chat/completions", CHAT, headers={"Authorization": "Bearer sk-first-secret"}))
    replies.append(server.get('/no"th\\ing?query=secret', headers={"traceparent": "wrong"}))
    assert [r.status_code for r in replies] == [200, 200, 401, 200, 404]
    lines = requests_of(server, 5)
    for line, reply in zip(lines, replies):
        assert re.fullmatch(TIME, line["time"]) and line["level"] == "info"
        assert line["request_id"] == reply.headers["x-request-id"] and line["status"] == reply.status_code
        assert line["client"].startswith("127.0.0.1:") and line["duration_ms"] >= 0
        assert "trace_id" not in line
    for line, reply in zip(lines, replies):
        if reply.status_code != 200:
            assert "completion_id" not in line and "prompt_tokens" not in line
            continue
        usage = reply.json()["usage"]
        assert line["completion_id"] == reply.json()["id"]
        assert line["prompt_tokens"] == usage["prompt_tokens"] and line["completion_tokens"] == usage["completion_tokens"]
        assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert 0 < line["ttft_ms"] <= line["engine_ms"] <= line["duration_ms"] + 1
    assert [line.get("key") for line in lines] == ["alice", "line-2", None, "alice", None]
    assert (lines[4]["method"], lines[4]["path"]) == ("GET", "/no%22th%5Cing")
    assert "secret" not in server.log()
    assert all(re.fullmatch(TIME, o["time"]) and o["level"] in ("info", "warn") for o in objects(server))


def test_a_trace_is_carried_to_the_reply_and_the_log(start):
    server = start("--log-format", "json")
    plain = server.get("/health")
    assert "traceparent" not in plain.headers
    for version, flags, want in (("00", "01", "01"), ("00", "00", "00"), ("cc", "03-more", "01")):
        reply = server.get("/health", headers={"traceparent": f"{version}-{TRACE}-{PARENT}-{flags}"})
        span = reply.headers["x-request-id"].removeprefix("req_")[:16]
        assert reply.headers["traceparent"] == f"00-{TRACE}-{span}-{want}"
    streamed = server.post("/v1/chat/completions", {**CHAT, "stream": True}, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert streamed.headers["traceparent"].startswith(f"00-{TRACE}-")
    lines = requests_of(server, 5)
    assert "trace_id" not in lines[0]
    for line in lines[1:]:
        assert (line["trace_id"], line["parent_id"]) == (TRACE, PARENT)
        assert line["span_id"] == line["request_id"].removeprefix("req_")[:16]


def test_two_traces_are_none(start):
    server = start("--log-format", "json")
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
        one = f"traceparent: 00-{TRACE}-{PARENT}-01\r\n"
        sock.sendall(f"GET /health HTTP/1.0\r\n{one}{one}\r\n".encode())
        assert b"traceparent" not in sock.makefile("rb").read()
    assert "trace_id" not in requests_of(server, 1)[0]


def test_bytes_that_break_lines_do_not_break_the_log(start):
    server = start("--log-format", "json")
    for head in (b"GET /\x1b[31m HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\xff\xfe\r\n\r\n", b"GET /\xc3\xa9\xff HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
            sock.sendall(head)
            assert sock.makefile("rb").readline().startswith(b"HTTP/1.1 4")
    assert {line["status"] for line in requests_of(server, 3)} <= {400, 404}


def test_people_see_key_and_trace_too(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-1 alice\n")
    server = start("--api-key-file", keys)
    server.get("/v1/models", headers={"Authorization": "Bearer sk-1", "traceparent": f"00-{TRACE}-{PARENT}-01"})
    server.wait_for_log(f"key=alice trace={TRACE}\n")


def test_what_stands_behind_a_name_is_refused(start, tmp_path):
    keys = tmp_path / "keys"
    for text, words in (("k a b\n", "line 1: found \"b\" after key and name"), ("k " + 64 * "n", "a name must have at most 63 bytes"),
                        ("k a\x1bb\n", "all printable")):
        keys.write_text(text)
        try:
            start("--api-key-file", keys)
            raise AssertionError("started")
        except RuntimeError as error:
            assert words in str(error)
