"""Who is let in, who waits for whom, and who is told to come again: keys, limits, priorities, deadlines."""
import http.client
import json
import select
import signal
import socket
import threading
import time

import conftest
import pytest
import requests
from conftest import PATIENCE

STORY = "Tell me a story about a fox named Mia."
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
LONG = {"messages": [{"role": "user", "content": STORY}], "ignore_eos": True, "max_tokens": 480}


def as_key(key):
    return {"Authorization": f"Bearer {key}"}


def ask(server, body, key=None, path="/v1/chat/completions"):
    return server.post(path, body, headers=as_key(key) if key else {})


@pytest.fixture
def write_keys(tmp_path):
    def write(text):
        path = tmp_path / "keys"
        path.write_text(text, encoding="utf-8")
        return path
    return write


SLOW = ("--cpu", "ref", "--threads", "1")  # so that an answer takes seconds, and nobody comes in between two of them


class Holding:
    """Keeps the one sequence of a server busy until the block ends. Where others may come in between two of its many answers,
    its key must have the best priority."""

    def __init__(self, server, key=None, **more):
        body = {**LONG, "stream": True, "n": 128, **more}
        self.answer = requests.post(server.url + "/v1/chat/completions", json=body, headers=as_key(key) if key else {},
                                    stream=True, timeout=60)

    def __enter__(self):
        assert self.answer.status_code == 200, self.answer.text
        return self

    def __exit__(self, *_):
        self.answer.close()


# ---- the file of keys ----

@pytest.mark.parametrize("text, words", [
    ("sk-a alice weight=0", "line 1: weight is \"0\", expected a number from 0.001 to 1000"),
    ("# x\nsk-a alice weight=", "line 2: weight is \"\""),
    ("sk-a alice weight=1e9", "weight"),
    ("sk-a alice weight=nan", "weight is \"nan\""),
    ("sk-a alice weight=0x10", "weight is \"0x10\""),
    ("sk-a alice concurrency=1.5", "concurrency is \"1.5\", expected a whole number"),
    ("sk-a alice concurrency=-1", "concurrency"),
    ("sk-a alice tokens-per-minute=many", "tokens-per-minute is \"many\""),
    ("sk-a alice tokens-per-minute=" + "9" * 400, "tokens-per-minute"),
    ("sk-a alice priority=11", "priority is \"11\", expected a whole number from -10 to 10"),
    ("sk-a alice speed=3", "found \"speed=3\" after key and name, expected weight="),
    ("sk-a alice bob", "found \"bob\""),
    ("sk-a alice weight=1 weight=2", "duplicate weight"),
    ("sk-a alice weight=2\nsk-b alice weight=3", "line 2: limits of alice are in line 1 already"),
    ("sk-a\0junk alice", "line 1: a zero byte, expected text in UTF-8"),
    ("\ufffds\0k\0-\0a\0", "line 1: a zero byte, expected text in UTF-8"),
    ("sk-a\nsk\x01b", "line 2: expected a key of printable characters in UTF-8"),
])
def test_a_line_that_is_not_understood_is_named(start, write_keys, text, words):
    with pytest.raises(RuntimeError) as error:
        start("--api-key-file", write_keys(text))
    assert words in str(error.value)


def test_names_and_limits_may_be_left_out(start, write_keys):
    keys = write_keys("sk-a\nsk-b bob\nsk-c weight=2.5 priority=-3\n  sk-d\td\"\\  tokens-per-minute=1e5 concurrency=0 \nsk-e d\"\\\n")
    server = start("--api-key-file", keys)
    for key in ("sk-a", "sk-b", "sk-c", "sk-d", "sk-e"):
        assert ask(server, {**QUESTION, "max_tokens": 2}, key).status_code == 200
    figures = server.metrics()
    assert figures['tutti_key_tokens_total{key="line-1",kind="generated"}'] == 2
    assert figures['tutti_key_tokens_total{key="line-3",kind="generated"}'] == 2
    text = server.get("/metrics", headers=server.metrics_headers).text
    assert 'tutti_key_tokens_total{key="d\\"\\\\",kind="generated"} 4\n' in text  # two keys, one client
    assert text.count('tutti_key_requests_total{') == 4


def test_a_byte_order_mark_is_no_part_of_the_first_line(start, write_keys):
    server = start("--api-key-file", write_keys("\ufeff# keys\r\nsk-a alice\r\n"))
    assert ask(server, {**QUESTION, "max_tokens": 1}, "sk-a").status_code == 200
    for key in ("#", "\xef\xbb\xbf#"):  # a header has bytes
        assert ask(server, {**QUESTION, "max_tokens": 1}, key).status_code == 401
    server = start("--api-key-file", write_keys("\ufeffsk-b bob\n"))
    assert ask(server, {**QUESTION, "max_tokens": 1}, "sk-b").status_code == 200


# ---- limits of a key ----

def test_tokens_per_minute_are_kept_and_told(start, write_keys):
    server = start("--api-key-file", write_keys("sk-a alice tokens-per-minute=100\nsk-b bob\n"))
    first = ask(server, QUESTION, "sk-a")
    used = first.json()["usage"]["total_tokens"]
    assert first.headers["x-ratelimit-limit-tokens"] == "100"
    assert int(first.headers["x-ratelimit-remaining-tokens"]) - (100 - used) in (0, 1, 2)
    assert first.headers["x-ratelimit-reset-tokens"].endswith("s")
    assert ask(server, {**LONG, "max_tokens": 150}, "sk-a").status_code == 200  # an answer may end in debt
    refused = ask(server, QUESTION, "sk-a")
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert "100 tokens per minute" in refused.json()["error"]["message"]
    debt = used + 150 + 13 - 100  # the prompts are of about 13 tokens
    assert debt * 0.6 - 25 < int(refused.headers["Retry-After"]) < debt * 0.6 + 25
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    other = ask(server, QUESTION, "sk-b")
    assert other.status_code == 200 and "x-ratelimit-limit-tokens" not in other.headers
    assert ask(server, {**LONG, "n": 0}, "sk-b").status_code == 400
    figures = server.metrics()
    assert figures['tutti_key_refused_total{key="alice",reason="tokens_per_minute"}'] == 1
    assert figures['tutti_requests_refused_total{reason="tokens_per_minute"}'] == 1
    assert figures['tutti_key_tokens_total{key="alice",kind="generated"}'] == first.json()["usage"]["completion_tokens"] + 150


def test_what_was_refused_costs_its_parsing_and_what_was_wrong_nothing(start, write_keys):
    server = start("--api-key-file", write_keys("sk-a alice tokens-per-minute=1000000\n"))
    too_long = ask(server, {**QUESTION, "messages": [{"role": "user", "content": "word " * 5000}]}, "sk-a")
    assert too_long.status_code == 400
    assert ask(server, {**QUESTION, "temperature": "x"}, "sk-a").status_code == 400
    parsing = (5000 * len("word ") // 4 + 1) // 64  # of about as many tokens, 64 of them for one that is computed
    assert int(ask(server, {**QUESTION, "max_tokens": 1}, "sk-a").headers["x-ratelimit-remaining-tokens"]) > 1000000 - parsing - 20


def test_a_prompt_is_charged_if_not_all_of_its_choices_have_begun(start, write_keys):
    """Another request gets the one sequence between the two choices of a prompt, and then the client goes."""
    server = start("--api-key-file", write_keys("sk-a alice priority=5\nsk-b bob\n"), "--max-seqs", "1")
    prompt = server.post("/tokenize", {"messages": LONG["messages"]}, headers=as_key("sk-a")).json()["count"]
    with Holding(server, "sk-a", n=2):
        between = Holding(server, "sk-b", n=1)  # its answer has begun
    with between:
        server.wait_until(lambda m: m['tutti_key_answers_running{key="alice"}'] == 0)
    assert server.metrics()['tutti_key_tokens_total{key="alice",kind="prompt"}'] == prompt


@pytest.mark.parametrize("n", [1, 4])
def test_a_beam_search_is_charged_for_all_its_beams(start, write_keys, n):
    """32 beams compute 32 tokens in each step, however many answers are returned."""
    server = start("--api-key-file", write_keys("sk-a alice tokens-per-minute=6000\n"))
    first = ask(server, {**QUESTION, "max_tokens": 1}, "sk-a")
    reply = ask(server, {**QUESTION, "num_beams": 32, "n": n, "max_tokens": 40, "ignore_eos": True, "temperature": 0}, "sk-a")
    assert reply.json()["usage"]["completion_tokens"] == 40 * n
    last = ask(server, {**QUESTION, "max_tokens": 1}, "sk-a")
    left = [int(response.headers["x-ratelimit-remaining-tokens"]) for response in (first, last)]
    seconds = last.elapsed.total_seconds() + reply.elapsed.total_seconds() + 1
    assert 32 * 40 - seconds * 100 <= left[0] - left[1] <= 32 * 40 + 100
    assert server.metrics()['tutti_key_tokens_total{key="alice",kind="generated"}'] == 40 * n + 2


def test_a_beam_search_that_is_abandoned_is_charged_for_what_it_computed(start, write_keys):
    """The client goes when the tokens of some steps, of eight beams each, were computed."""
    server = start("--api-key-file", write_keys("sk-a alice tokens-per-minute=6000\n"), *SLOW)
    before = time.monotonic()
    first = ask(server, {**QUESTION, "max_tokens": 1}, "sk-a")
    steps = server.metrics()["tutti_steps_total"]
    connection = http.client.HTTPConnection(*server.url.removeprefix("http://").split(":"))
    connection.request("POST", "/v1/chat/completions", json.dumps({**LONG, "num_beams": 8, "temperature": 0}),
                       {"Content-Type": "application/json", **as_key("sk-a")})
    server.wait_until(lambda m: m["tutti_steps_total"] >= steps + 20)
    connection.close()
    server.wait_idle()
    last = ask(server, {**QUESTION, "max_tokens": 1}, "sk-a")
    left = [int(response.headers["x-ratelimit-remaining-tokens"]) for response in (first, last)]
    seconds = time.monotonic() - before
    assert left[0] - left[1] >= 8 * 15 - 100 * seconds, (left, seconds)


def test_concurrency_counts_answers_and_ends_with_them(start, write_keys):
    server = start("--api-key-file", write_keys("sk-a alice concurrency=2\nsk-b bob\n"), "--max-seqs", "2", *SLOW)
    too_many = ask(server, {**QUESTION, "n": 3}, "sk-a")
    assert too_many.status_code == 400 and too_many.json()["error"]["param"] == "n"
    for path, body, param in [("/v1/completions", {"prompt": ["x"] * 3}, "prompt"), ("/v1/embeddings", {"input": ["x"] * 3}, "input")]:
        too_many = ask(server, body, "sk-a", path)
        assert too_many.status_code == 400 and too_many.json()["error"]["param"] == param
    for _ in range(3):  # a client that goes gives its places back
        with Holding(server, "sk-a", n=2, max_tokens=60):
            refused = ask(server, QUESTION, "sk-a")
            assert refused.status_code == 429 and "at most 2 at the same time" in refused.json()["error"]["message"]
            assert int(refused.headers["Retry-After"]) >= 1
        server.wait_until(lambda m: m['tutti_key_answers_running{key="alice"}'] == 0)
    with Holding(server, "sk-b"):  # those that wait count too
        with pytest.raises(requests.exceptions.ReadTimeout):
            requests.post(server.url + "/v1/chat/completions", json={**QUESTION, "n": 2}, headers=as_key("sk-a"), timeout=0.5)
    server.wait_idle()
    assert ask(server, {**QUESTION, "n": 2}, "sk-a").status_code == 200
    assert server.metrics()['tutti_key_refused_total{key="alice",reason="concurrency"}'] == 3


def test_a_reload_changes_limits_and_keeps_debts(start, write_keys):
    path = write_keys("sk-a alice tokens-per-minute=60\n")
    server = start("--api-key-file", path)
    assert ask(server, {**LONG, "max_tokens": 100}, "sk-a").status_code == 200
    assert ask(server, QUESTION, "sk-a").status_code == 429
    write_keys("sk-x alice tokens-per-minute=90\n")  # another key of the same client
    server.process.send_signal(signal.SIGHUP)
    server.wait_until(lambda m: m["tutti_reloads_total"] == 1)
    refused = ask(server, QUESTION, "sk-x")
    assert refused.status_code == 429 and refused.headers["x-ratelimit-limit-tokens"] == "90"
    write_keys("sk-x alice\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_until(lambda m: m["tutti_reloads_total"] == 2)
    assert ask(server, QUESTION, "sk-x").status_code == 200


def from_address(server, address, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE, source_address=(address, 0))
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_without_keys_addresses_are_clients(start):
    server = start("--tokens-per-minute", "100")
    assert from_address(server, "127.0.0.2", {**LONG, "max_tokens": 120}).status == 200
    refused = from_address(server, "127.0.0.2", QUESTION)
    assert refused.status == 429 and int(refused.headers["Retry-After"]) > 1
    assert from_address(server, "127.0.0.3", QUESTION).status == 200
    assert "tutti_key_" not in server.get("/metrics").text  # as many as clients like: no series of their own


def test_defaults_are_for_keys_without_limits(start, write_keys):
    server = start("--api-key-file", write_keys("sk-a alice\nsk-b bob concurrency=0\n"), "--max-concurrent", "1")
    assert ask(server, {**QUESTION, "n": 2}, "sk-a").status_code == 400
    assert ask(server, {**QUESTION, "n": 2}, "sk-b").status_code == 200


# ---- the fields ----

@pytest.mark.parametrize("path, prompt", [("/v1/chat/completions", QUESTION), ("/v1/completions", {"prompt": "x"})])
@pytest.mark.parametrize("name, value", [
    ("priority", 11), ("priority", -11), ("priority", "high"), ("priority", 1.5), ("priority", True), ("priority", [1]),
    ("priority", 10**30), ("max_queue_time", 0), ("max_queue_time", -1), ("max_queue_time", "1"), ("max_queue_time", 1e300),
    ("max_queue_time", {}),
])
def test_wrong_fields_are_named(server, path, prompt, name, value):
    answer = server.post(path, {**prompt, name: value})
    assert answer.status_code == 400
    if value != 10**30:  # that is no number of JSON's reader
        assert answer.json()["error"]["param"] == name


def test_null_means_absent(server):
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "priority": None, "max_queue_time": None}).ok


# ---- the queue ----

def test_priorities_are_capped_by_the_key(start, write_keys):
    server = start("--api-key-file", write_keys("sk-a alice priority=-4\nsk-b bob\nsk-c batch priority=6\nsk-h hold priority=-10\n"), "--max-seqs", "1")
    cases = [("sk-a", None, -4), ("sk-a", -9, -4), ("sk-a", 2, 2), ("sk-b", -9, 0), ("sk-b", 3, 3), ("sk-c", None, 6),
             ("sk-c", 0, 6), ("sk-c", 9, 9)]
    threads = []
    with Holding(server, "sk-h"):
        server.wait_until(lambda m: m['tutti_queue_requests{priority="0"}'] == 0 and m["tutti_sequences_running"] == 1)
        for key, asked, _ in cases:
            body = {**QUESTION, "max_tokens": 1, **({} if asked is None else {"priority": asked})}
            threads.append(threading.Thread(target=ask, args=(server, body, key)))
            threads[-1].start()
        want = {}
        for _, _, priority in cases:
            want[priority] = want.get(priority, 0) + 1
        want[-10] = 1  # the other answers of the one that runs
        figures = server.wait_until(lambda m: sum(v for k, v in m.items() if k.startswith("tutti_queue_requests")) == len(cases) + 1)
        found = {p: figures.get(f'tutti_queue_requests{{priority="{p}"}}', 0) for p in range(-10, 11)}
        assert {p: n for p, n in found.items() if n} == want
        assert figures['tutti_queue_oldest_seconds{priority="6"}'] > 0 and figures["tutti_queue_tokens"] > 0
    for thread in threads:
        thread.join(PATIENCE)
    server.wait_idle()


def test_better_priorities_are_answered_first(start):
    server = start("--max-seqs", "1", *SLOW)
    ended, threads = [], []

    def ask_with(priority):
        assert ask(server, {**QUESTION, "priority": priority}).status_code == 200
        ended.append(priority)

    with Holding(server):
        for n, priority in enumerate((5, 1, 9, 3)):
            threads.append(threading.Thread(target=ask_with, args=(priority,)))
            threads[-1].start()
            server.wait_until(lambda m, n=n: sum(v for k, v in m.items() if k.startswith("tutti_queue_requests")) == n + 2)
    for thread in threads:
        thread.join(PATIENCE)
    assert ended == [1, 3, 5, 9]


def test_a_flood_does_not_delay_another_key(start, write_keys):
    server = start("--api-key-file", write_keys("sk-a alice\nsk-b bob\nsk-h hold priority=-10\n"), "--max-seqs", "1",
                   "--max-queue", "100", "--max-queue-time", "0", *SLOW)
    ended, threads = [], []

    def ask_as(key):
        answer = ask(server, {**QUESTION, "max_tokens": 4}, key)
        ended.append((key, answer.status_code))

    def begin(key):
        threads.append(threading.Thread(target=ask_as, args=(key,)))
        threads[-1].start()

    with Holding(server, "sk-h", n=32):
        for _ in range(80):
            begin("sk-a")
        # It fills its part of the queue and is refused beyond; there is room for the other one.
        server.wait_until(lambda m: m["tutti_requests_waiting"] >= 50 and m['tutti_requests_refused_total{reason="queue_full"}'] > 0)
        begin("sk-b")
        held = server.wait_until(lambda m: m['tutti_key_answers_running{key="bob"}'] == 1)
        assert held['tutti_key_answers_running{key="hold"}'] >= 1  # else the flood was answered before bob came
    for thread in threads:
        thread.join(PATIENCE)
    served = [key for key, status in ended if status == 200]
    assert ("sk-b", 200) in ended and served.index("sk-b") <= 5
    assert served.count("sk-a") >= 50


# ---- deadlines ----

@pytest.mark.parametrize("flags, own", [(["--max-queue-time", "0.3"], None), (["--max-queue-time", "0.3"], 100), ([], 0.3),
                                        (["--max-queue-time", "1000"], 0.3)])
def test_a_request_that_has_not_begun_in_time_is_refused(start, flags, own):
    server = start("--max-seqs", "1", *flags)
    body = {**QUESTION, **({"max_queue_time": own} if own else {})}
    with Holding(server, stream=True):
        answer = ask(server, body)
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert error["code"] == "queue_timeout" and "within its limit of 0.3 s" in error["message"]
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.elapsed.total_seconds() >= 0.3
        streamed = ask(server, {**body, "stream": True})
        assert streamed.status_code == 503 and streamed.json()["error"]["code"] == "queue_timeout"
    figures = server.wait_idle()
    assert figures['tutti_requests_refused_total{reason="deadline"}'] == 2
    assert ask(server, body).status_code == 200


def test_the_time_in_the_queue_is_bounded_by_default(start, monkeypatch):
    """Prompts come until one is refused on arrival: the ones before it would take longer than the 30 s of the default."""
    monkeypatch.setattr(conftest, "PATIENCE_FACTOR", 1)  # also under a sanitizer
    server = start("--max-seqs", "1", *SLOW)
    waiting, refused = [], None

    def send(n_words):
        body = json.dumps({"prompt": "word " * n_words, "max_tokens": 2}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        connection.sendall(head.encode() + body)
        waiting.append(connection)

    while server.metrics()["tutti_queue_tokens_per_second"] == 0:  # it is measured while others wait
        if len(waiting) < 30:
            send(5)
    while not refused and len(waiting) < 1020:
        send(230)
        if server.metrics()['tutti_requests_refused_total{reason="overload"}'] > 0:
            refused = next((c for c in waiting if select.select([c], [], [], 0)[0] and b" 429 " in c.recv(4096, socket.MSG_PEEK)), None)
    assert refused, len(waiting)
    reply = refused.recv(65536)
    assert b"its limit of 30.0 s" in reply and b"Retry-After: " in reply
    for connection in waiting:
        connection.close()
    server.wait_idle()


def test_a_list_of_prompts_waits_once(start):
    """The others cannot all begin in the time of the first; nothing is lost of them."""
    server = start("--max-seqs", "1", *SLOW)
    answer = ask(server, {"prompt": ["Count from three to twelve."] * 30, "max_tokens": 8, "ignore_eos": True, "max_queue_time": 0.3},
                 path="/v1/completions")
    assert answer.status_code == 200 and len(answer.json()["choices"]) == 30


def test_other_apis_say_it_in_their_words(start):
    server = start("--max-seqs", "1", "--max-queue-time", "0.1", "--api", "all", "--max-concurrent", "128", *SLOW)
    with Holding(server):
        for path, body, status in [("/generate", {"inputs": "x"}, 429), ("/models/m/generate", {"inputs": "x"}, 429),
                                   ("/v1/responses", {"input": "x"}, 429)]:
            answer = server.post(path, body)
            assert answer.status_code == status and "at most 128 at the same time" in answer.text, path
            assert int(answer.headers["Retry-After"]) >= 1
        for path, body, status in [("/generate", {"inputs": "x"}, 429), ("/models/m/generate", {"inputs": "x"}, 503),
                                   ("/v1/responses", {"input": "x"}, 503), ("/generate_stream", {"inputs": "x"}, 429)]:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE, source_address=("127.0.0.9", 0))
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == status and "within its limit of 0.1 s" in answer.read().decode(), path
            assert int(answer.headers["Retry-After"]) >= 1
            connection.close()


def test_good_answers_are_counted(start):
    server = start("--ttft-target", "60000", "--itl-target", "60000")
    strict = start("--ttft-target", "0.001")
    for one in (server, strict):
        assert one.chat("Who are you?", max_tokens=3).ok
        assert one.chat("Who are you?", max_tokens=0).status_code == 400
    assert (server.metrics()["tutti_answers_total"], server.metrics()["tutti_good_answers_total"]) == (1, 1)
    assert (strict.metrics()["tutti_answers_total"], strict.metrics()["tutti_good_answers_total"]) == (1, 0)
