"""What a key computed and began is its own: no other key finds it in the prefix cache, in the spill file, or by its id."""
import http.client
import json
import os
import signal
import subprocess

import pytest

from conftest import PATIENCE, ROOT

SECRET = "The merger of Alder and Birch will be announced on the ninth of March, and nobody outside the board knows it yet."
KEYS = "sk-a alice\nsk-a2 alice\nsk-b bob\nsk-n1\nsk-n2\n"


@pytest.fixture
def write_keys(tmp_path):
    def write(text):
        path = tmp_path / "keys"
        path.write_text(text, encoding="utf-8")
        return path
    return write


def as_key(key):
    return {"headers": {"Authorization": f"Bearer {key}"} if key else {}}


def cached(server, key=None, text=SECRET):
    """Tokens of a prompt that came from the cache."""
    usage = server.post("/v1/completions", {"prompt": text, "max_tokens": 1, "temperature": 0}, **as_key(key)).json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_cached_pages_are_found_by_their_own_key_alone(start, write_keys):
    server = start("--api-key-file", write_keys(KEYS))
    assert cached(server, "sk-a") == 0
    n = cached(server, "sk-a")
    assert n >= 16
    assert cached(server, "sk-a2") == n  # of the same name: the same client, while a key is exchanged
    for key in ("sk-b", "sk-n1", "sk-n2"):
        assert cached(server, key) == 0
        assert cached(server, key) == n
    assert cached(server, "sk-a") == n


@pytest.mark.parametrize("flags", [(), ("--share-cache",)])
def test_a_salt_divides_what_a_key_has_cached(start, write_keys, flags):
    server = start("--api-key-file", write_keys(KEYS), *flags)

    def salted(salt, key="sk-a", path="/v1/completions"):
        body = {"/v1/responses": {"input": SECRET, "max_output_tokens": 1}, "/v1/completions": {"prompt": SECRET, "max_tokens": 1},
                "/v1/messages": {"model": "demo", "messages": [{"role": "user", "content": "Listen. " + SECRET}], "max_tokens": 1}}[path]
        usage = server.post(path, {**body, "cache_salt": salt}, **as_key(key)).json()["usage"]
        if "cache_read_input_tokens" in usage:
            return usage["cache_read_input_tokens"]
        return (usage.get("prompt_tokens_details") or usage["input_tokens_details"])["cached_tokens"]

    n = 0
    for path in ("/v1/responses", "/v1/messages", "/v1/completions"):
        for salt in (None, "alice", "bob", "bob\0", "\u00e9"):
            assert salted(salt, path=path) == 0
            n = salted(salt, path=path)
            assert n >= 16
    assert [salted(salt, "sk-b") for salt in (None, "alice")] == ([n, n] if flags else [0, 0])
    for salt, words in (("", "0 bytes"), ("a" * 1025, "1025 bytes"), (5, "a string")):
        refused = server.post("/v1/completions", {"prompt": "a", "cache_salt": salt}, **as_key("sk-a"))
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "cache_salt" and words in refused.text


def test_share_cache_lets_all_keys_find_all_pages(start, write_keys):
    server = start("--api-key-file", write_keys(KEYS), "--share-cache")
    assert cached(server, "sk-a") == 0
    n = cached(server, "sk-a")
    assert n >= 16 and [cached(server, key) for key in ("sk-a2", "sk-b", "sk-n1")] == [n, n, n]


def test_without_keys_everybody_is_one_tenant(start):
    server = start()
    assert cached(server) == 0 and cached(server) >= 16


def test_the_spill_file_is_divided_too(start, write_keys, tmp_path):
    flags = ("--api-key-file", write_keys(KEYS), "--kv-spill", tmp_path / "spill", "--kv-spill-size", "64M")
    first = start(*flags)
    assert cached(first, "sk-a") == 0
    assert first.stop() == 0
    server = start(*flags)
    assert cached(server, "sk-b") == 0
    assert cached(server, "sk-a") >= 16


def test_a_key_without_a_name_takes_its_pages_to_another_line(start, write_keys):
    """line-2 is somebody else after the change; nobody may inherit what line-2 said."""
    path = write_keys("sk-x\nsk-y\n")
    server = start("--api-key-file", path)
    assert cached(server, "sk-y") == 0
    n = cached(server, "sk-y")
    assert n >= 16
    write_keys("sk-z\nsk-x\nsk-y\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("were read again")
    assert cached(server, "sk-x") == 0
    assert cached(server, "sk-y") == n


# ---- chats in steps ----

STORY = {"query": "Tell me a story about a fox named Mia.", "do_sample": False}


def step(server, key, cache_id, **more):
    return server.post("/llm/generate", {"cache_id": cache_id, **more}, **as_key(key))


def read_on(server, key, cache_id, text=""):
    while True:
        body = step(server, key, cache_id).json()
        text += body["delta_text"]
        if body["flag"] == "end":
            return text


def test_a_chat_in_steps_belongs_to_the_key_that_began_it(start, write_keys):
    server = start("--api-key-file", write_keys(KEYS), "--api", "step")
    whole = read_on(server, "sk-b", "free", step(server, "sk-b", "free", **STORY).json()["delta_text"])
    text = step(server, "sk-a", "7", **STORY).json()["delta_text"]
    for key in ("sk-b", "sk-n1"):
        refused = step(server, key, "7")
        unknown = step(server, key, "no such chat")
        assert refused.status_code == unknown.status_code == 404
        assert refused.json()["error"]["message"].replace("7:", "no such chat:") == unknown.json()["error"]["message"]
    # The same id of another key is another chat, and neither takes a word of the other.
    other = step(server, "sk-b", "7", query="What is the capital of France?", do_sample=False).json()["delta_text"]
    assert read_on(server, "sk-b", "7", other) == "The capital of France is Paris."
    assert read_on(server, "sk-a2", "7", text) == whole


def begin_chat(port, address, cache_id):
    """From this address, which is the client where there are no keys. The status and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE, source_address=(address, 0))
    connection.request("POST", "/llm/generate", json.dumps({"cache_id": cache_id, "query": "a b c"}),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def test_one_client_does_not_take_the_places_of_all_chats():
    mock = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build")), "tests", "server", "mock_server")
    with subprocess.Popen([mock, "--apis", "2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            port = int(process.stdout.readline().decode().rsplit(":", 1)[1])
            for i in range(512):
                assert begin_chat(port, "127.0.0.1", f"a{i}")[0] == 200, i
            status, body = begin_chat(port, "127.0.0.1", "one more")
            assert status == 429 and b"512 of your chats are open" in body
            assert begin_chat(port, "127.0.0.2", "mine")[0] == 200
        finally:
            process.terminate()


def test_a_finished_chat_that_nobody_asks_for_does_not_hold_the_end(start):
    server = start("--api", "step", "--drain-timeout", 10 * PATIENCE, "--step-timeout", 20 * PATIENCE)
    assert step(server, None, "left", query="What is the capital of France?", do_sample=False).status_code == 200
    server.wait_idle()
    assert server.stop() == 0
    assert "still run after" not in server.log()


def test_a_chat_that_is_asked_for_is_told_to_its_end_first(start):
    server = start("--api", "step", "--drain-timeout", 10 * PATIENCE, "--step-timeout", 20 * PATIENCE)
    text = step(server, None, "read", query="What is the capital of France?", do_sample=False).json()["delta_text"]
    server.process.send_signal(signal.SIGTERM)
    server.wait_for_log("draining")
    assert read_on(server, None, "read", text) == "The capital of France is Paris."
    assert server.process.wait(PATIENCE) == 0
