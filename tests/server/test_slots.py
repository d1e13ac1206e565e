"""What runs and what waits: GET /slots."""
import contextlib
import json
import signal
import socket
import threading
import time

import pytest
import requests

from conftest import DEMO, PATIENCE

STORY = {"prompt": "Tell me a secret story about a fox named Xanthippe.", "max_tokens": 1900, "ignore_eos": True, "stream": True}
FIELDS = {"id", "model", "key", "state", "is_processing", "age_s", "prompt_tokens", "cached_tokens", "computed_prompt_tokens", "generated_tokens",
          "n", "stream"}
MONITOR = {"Authorization": "Bearer sk-for-metrics"}


def slots(server, **more):
    reply = requests.get(server.url + "/slots", timeout=PATIENCE, **more)
    assert reply.status_code == 200 and reply.headers["content-type"] == "application/json", reply.text
    return reply.json()


def wait_for(find):
    end = time.monotonic() + PATIENCE
    while not (found := find()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


class Asker:
    """A request whose answer is read up to its first event, and left open."""

    def __init__(self, server, body, path="/v1/completions", **more):
        self.reply = requests.post(server.url + path, json=body, stream=True, timeout=PATIENCE, **more)
        assert self.reply.status_code == 200, self.reply.text
        self.lines = self.reply.iter_lines()  # without it the connection would be closed
        next(self.lines)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.reply.close()


def test_nothing_runs(server):
    server.wait_idle()
    reply = server.get("/slots")
    assert reply.json() == [] and reply.headers["x-total-count"] == "0"


def test_running_and_waiting_requests_are_listed_in_order(start):
    server = start("--max-seqs", 1)
    with Asker(server, {**STORY, "n": 1}):
        # The second one waits for the only place.
        second = threading.Thread(target=lambda: server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Who is Xanthippe?"}], "max_tokens": 2}))
        second.start()
        first, waiting = wait_for(lambda: len(found := slots(server)) == 2 and found[1]["prompt_tokens"] and found)
        assert set(first) == set(waiting) == FIELDS
        assert first["state"] == "decode" and first["is_processing"] and first["stream"] and first["id"].startswith("cmpl-")
        n_prompt = len(server.post("/tokenize", {"prompt": STORY["prompt"]}).json()["tokens"])
        assert first["prompt_tokens"] == first["computed_prompt_tokens"] == n_prompt and first["generated_tokens"] >= 1
        assert waiting["state"] == "waiting" and not waiting["is_processing"] and waiting["id"].startswith("chatcmpl-")
        assert (waiting["generated_tokens"], waiting["computed_prompt_tokens"], waiting["stream"], waiting["n"]) == (0, 0, False, 1)
        assert first["age_s"] >= waiting["age_s"] > 0 and first["model"] == waiting["model"] == "demo" and first["key"] is None
        assert "anthippe" not in json.dumps([first, waiting])  # never a text of it
        later = slots(server)[0]
        assert later["id"] == first["id"] and later["generated_tokens"] >= first["generated_tokens"] and later["age_s"] > first["age_s"]
    second.join(PATIENCE)
    wait_for(lambda: slots(server) == [])


def test_cached_tokens_and_several_prompts_are_counted(start):
    server = start()
    prompt = STORY["prompt"] * 4
    whole = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    with Asker(server, {**STORY, "prompt": prompt, "max_tokens": 300}):
        entry, = slots(server)
        assert entry["cached_tokens"] == (whole - 1) // 16 * 16 > 0 and entry["prompt_tokens"] == whole
    wait_for(lambda: slots(server) == [])
    with Asker(server, {**STORY, "prompt": ["One fox", "Two"], "n": 2}):
        entry, = wait_for(lambda: (found := slots(server)) and found[0]["prompt_tokens"] and found)
        assert entry["n"] == 4
        assert entry["prompt_tokens"] == sum(len(server.post("/tokenize", {"prompt": p}).json()["tokens"]) for p in ("One fox", "Two"))
    wait_for(lambda: slots(server) == [])


def test_a_prompt_that_is_being_computed(start):
    """With one row a step, the prefill is seen."""
    server = start("--max-batch-tokens", 1, "--max-seqs", 1)
    text = "Once upon a time there was a fox. " * 40
    with requests.Session() as session:
        asker = threading.Thread(target=lambda: session.post(server.url + "/v1/completions", json={"prompt": text, "max_tokens": 1}, timeout=PATIENCE))
        asker.start()
        entry, = wait_for(lambda: (found := slots(server)) and 0 < found[0]["computed_prompt_tokens"] < (found[0]["prompt_tokens"] or 0) and found)
        assert entry["state"] == "prefill" and entry["is_processing"] and entry["generated_tokens"] == 0
        asker.join(PATIENCE)


def test_with_keys_only_monitors_see_the_names_of_others(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-a alice\nsk-b bob\n")
    server = start("--api-key-file", keys, "--cpu", "ref", "--threads", "1")  # so that an answer takes seconds
    with Asker(server, STORY, headers={"Authorization": "Bearer sk-a"}), Asker(server, STORY, headers={"Authorization": "Bearer sk-b"}):
        for headers in ({}, {"Authorization": "Bearer sk-a"}):
            refused = requests.get(server.url + "/slots", headers=headers, timeout=PATIENCE)
            assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer" and "alice" not in refused.text
        found = slots(server, headers=MONITOR)
        assert [entry["key"] for entry in found] == ["alice", "bob"] and "sk-a" not in json.dumps(found)
    wait_for(lambda: slots(server, headers=MONITOR) == [])


def test_slots_move_with_the_metrics(start):
    server = start("--metrics-listen", "127.0.0.1:0")
    own = next(word for word in server.log().split() if word.startswith("http://") and word != server.url)
    assert requests.get(server.url + "/slots", timeout=PATIENCE).status_code == 404
    assert requests.get(own + "/slots", timeout=PATIENCE).json() == []


def test_a_server_that_drains_still_tells(tmp_path, start):
    server = start("--drain-timeout", 600)
    with Asker(server, {**STORY, "n": 128}):  # far from over when it is looked at
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("draining")
        assert [entry["state"] for entry in slots(server)] == ["decode"]
    assert server.process.wait(PATIENCE) == 0  # nothing is left to drain


def test_no_more_than_a_thousand(start):
    server = start("--max-queue", 1200, "--max-seqs", 1, "--max-queue-time", 0)
    body = json.dumps({**STORY, "stream": False}).encode()
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)) + body
    socks = []
    try:
        for _ in range(1050):
            sock = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
            sock.sendall(head)
            socks.append(sock)
        reply = wait_for(lambda: (r := server.get("/slots")) and int(r.headers["x-total-count"]) >= 1040 and r.json()[0]["state"] == "decode" and r)
        found = reply.json()
        assert len(found) == 1000 and all(entry["state"] == "waiting" for entry in found[1:])
        assert [e["age_s"] for e in found] == sorted((e["age_s"] for e in found), reverse=True)
    finally:
        for sock in socks:
            sock.close()
    wait_for(lambda: slots(server) == [])


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_other_methods_are_refused(server, method):
    assert requests.request(method, server.url + "/slots", timeout=PATIENCE).status_code == 405


def test_several_models_tell_each_of_its_own(start):
    server = start(f"one={DEMO}", f"two={DEMO}", "--kv-memory", "32M")
    assert slots(server) == []
    for model in ("one", "two"):
        assert server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1, "model": model}).status_code == 200
    wait_for(lambda: slots(server) == [])
    with Asker(server, {**STORY, "n": 16, "model": "two"}), Asker(server, {**STORY, "n": 16, "model": "one"}):
        found = slots(server)
        assert [entry["model"] for entry in found] == ["two", "one"] and all(set(entry) == FIELDS for entry in found)
        assert found[0]["age_s"] >= found[1]["age_s"]
    wait_for(lambda: slots(server) == [])


def test_a_request_that_waits_for_its_model_is_loading(start, tmp_path):
    server = start(f"one={DEMO}", f"two={DEMO}", "--kv-memory", "32M")
    seen = []
    asker = threading.Thread(target=lambda: server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1, "model": "two"}))
    asker.start()
    while asker.is_alive():
        seen += slots(server)
    asker.join()
    loading = [entry for entry in seen if entry["state"] == "loading"]
    assert all(entry["model"] == "two" and entry["key"] is None and entry["id"].startswith("req_") for entry in loading)
    assert loading, seen


def test_several_models_count_all_requests(start):
    """Each process lists at most a thousand."""
    server = start(f"one={DEMO}", "--kv-memory", "32M", "--max-seqs", 2, "--max-queue", 2000, "--max-queue-time", 0)
    assert server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1}).status_code == 200
    body = json.dumps({**STORY, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with contextlib.ExitStack() as stack:
        for _ in range(1050):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port))).sendall(head + body)
        end = time.monotonic() + PATIENCE
        while True:
            response = requests.get(server.url + "/slots", timeout=PATIENCE)
            if response.headers["X-Total-Count"] == "1050":
                break
            assert time.monotonic() < end, response.headers
        ages = [entry["age_s"] for entry in response.json()]
        assert len(ages) == 1000 and ages == sorted(ages, reverse=True)


def test_the_id_is_that_of_the_reply(start):
    server = start("--max-seqs", 1)
    body = {"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
    replies = []
    asker = threading.Thread(target=lambda: replies.append(server.post("/v1/messages", body).json()))
    with Asker(server, STORY):
        asker.start()
        found = wait_for(lambda: (found := slots(server)) and len(found) == 2 and found)
    asker.join()
    assert found[1]["id"] == replies[0]["id"]
