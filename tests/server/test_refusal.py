"""What a refusal costs: where it is certain beforehand, the body is not read, and the connection is kept where it can be."""
import json
import socket
import time

import pytest
import requests

from conftest import PATIENCE

STORY = "Tell me a story about a fox named Mia."
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 1}
CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
QUEUED = {CHAT: "openai", "/v1/completions": "openai", "/v1/responses": "openai", "/v1/embeddings": "openai", "/generate": "tgi",
          "/generate_stream": "tgi", "/": "tgi", "/models/x": "llm-serving", "/models/x/generate": "llm-serving",
          "/models/x/generate_stream": "llm-serving"}


class Talk:
    """One connection, byte by byte."""

    def __init__(self, server):
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        self.file = self.sock.makefile("rb")

    def send_head(self, n_bytes, path=CHAT, extra=""):
        self.sock.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {n_bytes}\r\n{extra}\r\n".encode())

    def read(self):
        """(status, headers, body) of the next reply; None at the end."""
        line = self.file.readline()
        if not line:
            return None
        headers = {}
        while (text := self.file.readline().strip()):
            name, value = text.decode().split(":", 1)
            headers[name.lower()] = value.strip()
        return int(line.split()[1]), headers, self.file.read(int(headers.get("content-length", 0)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.sock.close()


@pytest.fixture
def full(start):
    """A server that holds two answers at most, and two that take seconds."""
    server = start("--cpu", "ref", "--threads", "1", "--max-seqs", "1", "--max-queue", "1", "--api", "tgi,llm-serving", "--header-timeout",
                   "3")
    body = {"messages": [{"role": "user", "content": STORY}], "ignore_eos": True, "max_tokens": 480, "n": 2, "stream": True}
    answer = requests.post(server.url + CHAT, json=body, stream=True, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    yield server
    answer.close()
    server.wait_idle()


@pytest.mark.parametrize("path", QUEUED)
def test_a_full_queue_refuses_whatever_stands_in_the_body(full, path):
    before = full.metrics()
    answer = requests.post(full.url + path, data=b"{this is no JSON", headers=JSON, timeout=PATIENCE)
    assert answer.status_code == 429 and int(answer.headers["Retry-After"]) >= 1
    error = answer.json()["error"]
    if QUEUED[path] == "openai":
        assert error["code"] == "rate_limit_exceeded" and "answers are running or waiting" in error["message"]
    else:
        assert "answers are running or waiting" in error
    if QUEUED[path] == "tgi":
        assert answer.json()["error_type"] == "overloaded"
    after, name = full.metrics(), 'tutti_requests_refused_total{reason="queue_full"}'
    assert after[name] == before[name] + 1


def test_a_room_that_is_free_lets_the_body_speak(server):
    answer = requests.post(server.url + CHAT, data=b"{this is no JSON", headers=JSON, timeout=PATIENCE)
    assert answer.status_code == 400 and "not valid JSON" in answer.json()["error"]["message"]


def test_what_needs_no_place_in_the_queue_is_answered(full):
    assert full.post("/tokenize", {"prompt": "abc"}).status_code == 200
    assert full.get("/v1/models").status_code == 200 and full.get("/health").status_code == 200
    assert requests.post(full.url + "/nowhere", data=b"x", timeout=PATIENCE).status_code == 404


def test_the_refusal_comes_before_a_small_body_and_the_connection_goes_on(full):
    body = json.dumps(QUESTION).encode()
    with Talk(full) as talk:
        for _ in range(3):
            talk.send_head(len(body))
            status, headers, _ = talk.read()  # nothing of the body was sent yet
            assert status == 429 and headers["connection"] == "keep-alive"
            talk.sock.sendall(body[:7])
            time.sleep(0.01)
            talk.sock.sendall(body[7:])
        talk.sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert talk.read()[0] == 200
        # All at once, followed by more requests.
        talk.send_head(len(body))
        talk.sock.sendall(body + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert [talk.read()[0], talk.read()[0]] == [429, 200]


@pytest.mark.parametrize("n_bytes, extra", [(4_000_000, ""), (200, "Expect: 100-continue\r\n")])
def test_a_body_that_need_not_come_is_not_waited_for(full, n_bytes, extra):
    with Talk(full) as talk:
        talk.send_head(n_bytes, extra=extra)
        status, headers, _ = talk.read()
        assert status == 429 and headers["connection"] == "close"
        assert talk.read() is None


def test_a_body_in_chunks_is_not_read(full):
    with Talk(full) as talk:
        talk.sock.sendall(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        status, headers, _ = talk.read()
        assert status == 429 and headers["connection"] == "close"


def test_a_body_that_never_comes_ends_the_connection(full):
    with Talk(full) as talk:
        talk.send_head(1000)
        assert talk.read()[0] == 429
        began = time.monotonic()
        assert talk.read() is None
        assert time.monotonic() - began > 1


def test_an_empty_bucket_and_too_many_answers_refuse_unread(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-a alice tokens-per-minute=20\nsk-b bob concurrency=1\n")
    server = start("--api-key-file", keys, "--cpu", "ref", "--threads", "1")
    body = {**QUESTION, "messages": [{"role": "user", "content": STORY}], "ignore_eos": True, "max_tokens": 100}

    def junk(key, path=CHAT):
        return requests.post(server.url + path, data=b"[" * 300, headers={**JSON, "Authorization": f"Bearer {key}"}, timeout=PATIENCE)

    assert junk("sk-a").status_code == 400
    assert server.post(CHAT, body, headers={"Authorization": "Bearer sk-a"}).status_code == 200  # ends in debt
    refused = junk("sk-a")
    assert refused.status_code == 429 and "20 tokens per minute" in refused.json()["error"]["message"]
    assert 30 < int(refused.headers["Retry-After"]) < 900 and refused.headers["x-ratelimit-remaining-tokens"] == "0"
    without_answer = ["/tokenize", "/detokenize", "/v1/messages/count_tokens"]
    for path in without_answer:
        refused = junk("sk-a", path)
        assert refused.status_code == 429 and "20 tokens per minute" in refused.json()["error"]["message"], path
        assert 0 < int(refused.headers["Retry-After"]) < 900, path
    with requests.post(server.url + CHAT, json={**body, "max_tokens": 480, "stream": True}, headers={"Authorization": "Bearer sk-b"},
                       stream=True, timeout=PATIENCE) as running:
        assert running.status_code == 200
        refused = junk("sk-b")
        assert refused.status_code == 429 and "at most 1 at the same time" in refused.json()["error"]["message"]
        assert [junk("sk-b", path).status_code for path in without_answer] == [400] * 3  # they are no answers
    figures = server.metrics()
    assert figures['tutti_key_refused_total{key="alice",reason="tokens_per_minute"}'] == 1 + len(without_answer)
    assert figures['tutti_requests_refused_total{reason="tokens_per_minute"}'] == 1 + len(without_answer)
    assert figures['tutti_key_refused_total{key="bob",reason="concurrency"}'] == 1
