"""What happens between a request's last byte and the engine: bodies are parsed on workers, within bounds, and on the client's account."""
import glob
import json
import os
import socket
import threading
import time

import pytest
import requests

PATIENCE = 60
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
MB = 1 << 20


def send(server, path, body, **headers):
    return requests.post(server.url + path, data=body, timeout=PATIENCE, headers={"Content-Type": "application/json", **headers})


def filled(n_bytes, piece, before='{"messages":[', after="]}"):
    return before + ",".join([piece] * (n_bytes // (len(piece) + 1))) + after


@pytest.mark.parametrize("piece", ["[]", "{}", '{"a":1}', '""', "[[[1]]]"])
def test_bodies_of_too_many_values_are_not_parsed(server, piece):
    """Bounded before the tree is made: each of these would take 100 MB to 400 MB."""
    for path, field in ("/v1/chat/completions", "messages"), ("/v1/completions", "prompt"), ("/tokenize", "messages"), \
            ("/detokenize", "tokens"), ("/v1/embeddings", "input"), ("/v1/responses", "input"):
        response = send(server, path, filled(4 * MB, piece, f'{{"{field}":['))
        assert response.status_code == 400, path
        assert "too many values" in response.json()["error"]["message"], path


def test_as_many_ids_as_a_large_context_has_are_parsed(server):
    """A million short numbers are within the bound: the error is the context's."""
    response = send(server, "/v1/completions", filled(2 * MB, "5", '{"prompt":['))
    assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded"


def test_a_request_that_never_fits_is_not_told_to_try_again(server):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call] * 40_000}]
    response = send(server, "/v1/chat/completions", json.dumps({"messages": messages, "max_tokens": 1}))
    assert response.status_code == 400 and "Retry-After" not in response.headers
    assert "those of one client may take" in response.json()["error"]["message"]


def test_ids_to_text_are_bounded(server):
    response = send(server, "/detokenize", filled(int(2.2 * MB), "5", '{"tokens":['))
    assert response.status_code == 400 and "at most 1048576 are allowed" in response.json()["error"]["message"]
    response = send(server, "/detokenize", filled(2 * MB, "2542", '{"tokens":['))  # 48 bytes of text each
    assert response.status_code == 400 and "at most 16777216 are allowed" in response.json()["error"]["message"]
    response = send(server, "/detokenize", json.dumps({"tokens": [5] * 1000}))
    assert response.status_code == 200


def test_the_limit_of_a_body_follows_the_context(server):
    """4 MiB and 32 bytes for each of the context's 2,048 tokens; the refusal names the flag."""
    limit = 4 * MB + 32 * 2048
    text = '{"prompt":"%s"}'
    assert send(server, "/tokenize", text % ("x" * (limit - len(text) + 2))).status_code == 400  # read, and too long for this route
    response = send(server, "/tokenize", text % ("x" * (limit - len(text) + 3)))
    assert response.status_code == 413 and str(limit) in response.json()["error"]["message"]
    assert "--max-body" in response.json()["error"]["message"]


def test_reading_is_counted(server):
    """Requests, bytes, and what was refused; nothing waits at rest."""
    before = server.metrics()
    body = json.dumps(CHAT)
    assert send(server, "/v1/chat/completions", body).status_code == 200
    assert send(server, "/v1/chat/completions", '{"messages":5}').status_code == 400
    after = server.metrics()
    grown = {name: after[name] - before[name] for name in after if name.startswith("tutti_intake_")}
    assert grown["tutti_intake_requests_total"] == 2 and grown["tutti_intake_refused_total"] == 1
    assert grown["tutti_intake_bytes_total"] == len(body) + len('{"messages":5}')
    assert after["tutti_intake_waiting"] == 0


# ---- accounts ----

@pytest.fixture(name="metered")
def metered_server(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-a ann tokens-per-minute=600000\nsk-b ben tokens-per-minute=600000\nsk-c cleo tokens-per-minute=3000\n", encoding="ascii")
    return start("--api-key-file", keys)


def test_refused_work_is_charged(metered):
    """A token for each 256 bytes that were read in vain: also for what only the engine refuses."""
    n_bytes = 3 * MB
    for path, body in ("/v1/chat/completions", '{"messages":"%s"}' % ("x" * n_bytes)), ("/v1/completions", '{"prompt":"%s"}' % ("x" * n_bytes)), \
            ("/tokenize", '{"prompt":"%s"}' % ("x" * n_bytes)), ("/detokenize", filled(n_bytes, "[]", '{"tokens":[')):
        assert send(metered, path, body, Authorization="Bearer sk-c").status_code in (400, 429), path
    # 12288 tokens for the first of them alone: nothing is left of 3000 a minute.
    response = send(metered, "/v1/chat/completions", json.dumps(CHAT), Authorization="Bearer sk-c")
    assert response.status_code == 429 and "tokens per minute" in response.json()["error"]["message"]
    # The others have theirs.
    for key in "sk-a", "sk-b":
        assert send(metered, "/v1/chat/completions", json.dumps(CHAT), Authorization=f"Bearer {key}").status_code == 200


ROUTES = {
    "chat": ("/v1/chat/completions", '{"messages":"%s"}' % ("x" * 2 * MB)),
    "completion": ("/v1/completions", '{"prompt":"%s"}' % ("x" * 2 * MB)),
    "long text": ("/tokenize", '{"prompt":"%s"}' % ("x" * 2 * MB)),
    "text": ("/tokenize", '{"prompt":"%s"}' % ("x" * 900000)),
    "ids": ("/detokenize", filled(2 * MB, "5", '{"tokens":[')),
    "embedding": ("/v1/embeddings", '{"input":7,"x":"%s"}' % ("x" * 2 * MB)),
}


@pytest.mark.parametrize("name", ROUTES)
def test_each_route_charges_for_what_it_reads(start, tmp_path, name):
    """3,500 tokens for 900,000 bytes, 8,192 for 2 MiB, of 8,000 a minute: at most one more such request is read."""
    path, body = ROUTES[name]
    keys = tmp_path / "keys"
    keys.write_text("sk-a ann tokens-per-minute=8000\n", encoding="ascii")
    server = start("--api-key-file", keys)
    before = json.dumps({"prompt": "x", "max_tokens": 1})
    response = send(server, "/v1/completions", before, Authorization="Bearer sk-a")
    first = int(response.headers["x-ratelimit-remaining-tokens"])
    response = send(server, path, body, Authorization="Bearer sk-a")
    assert response.status_code in (200, 400, 429)
    response = send(server, "/v1/completions", before, Authorization="Bearer sk-a")
    remaining = int(response.headers["x-ratelimit-remaining-tokens"])
    assert first - remaining >= min(first, len(body) // 256) - 1500, (first, remaining)  # the bucket fills meanwhile


def test_many_clients_at_once_are_all_answered(metered):
    """Bodies arrive at the same time and end in any order; each client gets its own answer."""
    answers = {}

    def ask(i):
        key = ("sk-a", "sk-b")[i % 2]
        text = f"number {i} " * 50
        tokens = send(metered, "/tokenize", json.dumps({"prompt": text}), Authorization=f"Bearer {key}").json()["tokens"]
        answers[i] = send(metered, "/detokenize", json.dumps({"tokens": tokens}), Authorization=f"Bearer {key}").json()["content"].strip() == text.strip()
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: True for i in range(24)}


def test_clients_that_leave_while_their_body_is_read(server):
    """Nothing is replied to them, nothing is held."""
    body = json.dumps({"prompt": "word " * 100000})
    for _ in range(20):
        with pytest.raises(requests.exceptions.RequestException):
            requests.post(server.url + "/tokenize", data=body, timeout=0.002, headers={"Content-Type": "application/json"})
    assert server.chat("Hello", max_tokens=2).status_code == 200
    for _ in range(600):
        figures = server.metrics()
        if figures["tutti_intake_waiting"] + figures["tutti_intake_running"] == 0:
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"a body is still being read: {figures}")


def test_a_body_of_too_many_fields_is_refused(server):
    """Unknown names are compared with all known ones: some hundred thousand of them took two seconds."""
    response = send(server, "/v1/completions", '{"prompt":"x",' + ",".join(f'"k{i}":0' for i in range(1024)) + "}")
    assert response.status_code == 400 and response.json()["error"]["message"] == "the body has 1025 fields, at most 1024 are allowed"
    body = '{"prompt":"x","max_tokens":1,' + ",".join(f'"k{i}":0' for i in range(1022)) + "}"
    assert send(server, "/v1/completions", body).status_code == 200


def loop_and_intake_ns(server):
    """CPU time of the event loop's thread, which is the main one, and of the workers that read bodies."""
    loop = intake = 0
    for folder in glob.glob(f"/proc/{server.process.pid}/task/*"):
        with open(folder + "/comm", encoding="ascii") as file:
            name = file.read().strip()
        with open(folder + "/schedstat", encoding="ascii") as file:
            spent = int(file.read().split()[0])
        loop += spent if os.path.basename(folder) == str(server.process.pid) else 0
        intake += spent if name == "tutti-intake" else 0
    return loop, intake


@pytest.mark.parametrize("n_values, status", [(20000, 200), (200000, 400)])
def test_a_large_request_is_measured_and_freed_by_a_worker(server, n_values, status):
    """Whether it is answered or refused: the event loop moves its bytes, nothing more. In CPU time, whatever else the machine does."""
    body = json.dumps({"prompt": "x", "max_tokens": 1, "metadata": {f"k{i}": "" for i in range(n_values)}})
    assert send(server, "/v1/completions", body).status_code == status
    loop, intake = loop_and_intake_ns(server)
    for _ in range(5):
        assert send(server, "/v1/completions", body).status_code == status
    loop_after, intake_after = loop_and_intake_ns(server)
    assert loop_after - loop < (intake_after - intake) / 8, (loop_after - loop, intake_after - intake)


def test_names_of_allowed_tools_are_looked_up_once(server):
    """2,000 tools and as many names: to compare each with each took a worker 0.8 s."""
    tools = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(2000)]
    names = [{"type": "function", "function": {"name": "f1999"}}] * 2000
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "tools": tools, "tool_choice": "none"}
    before = loop_and_intake_ns(server)[1]
    assert send(server, "/v1/chat/completions", json.dumps(body)).status_code == 200
    plain = loop_and_intake_ns(server)[1] - before
    body["tool_choice"] = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names}}
    assert send(server, "/v1/chat/completions", json.dumps(body)).status_code == 200
    assert loop_and_intake_ns(server)[1] - before - plain < 10 * plain


def test_large_replies_are_written_by_a_worker(server):
    """A prompt's tokens with 20 others for each of them: a worker makes their entries, and writes the reply."""
    body = json.dumps({"prompt": [5] * 500, "max_tokens": 1, "echo": True, "logprobs": 20, "n": 16, "temperature": 0})
    loop, intake = loop_and_intake_ns(server)
    for _ in range(3):
        response = send(server, "/v1/completions", body)
        choices = response.json()["choices"]
        assert len(choices) == 16 and all(len(choice["logprobs"]["tokens"]) == 501 for choice in choices)
    loop_after, intake_after = loop_and_intake_ns(server)
    assert loop_after - loop < (intake_after - intake) / 4, (loop_after - loop, intake_after - intake)


REPEATED = {"input": "x", "max_output_tokens": 1, "metadata": {"a": [1.5] * 100000}}


@pytest.mark.parametrize("path, body, part", [
    ("/v1/completions", {"prompt": [5] * 500, "max_tokens": 1, "echo": True, "logprobs": 20, "n": 16, "temperature": 0, "stream": True}, 4),
    ("/v1/responses", REPEATED, 8), ("/v1/responses", {**REPEATED, "stream": True}, 8)], ids=["echo", "repeated", "repeated in a stream"])
def test_what_replies_have_from_the_request_is_written_by_a_worker(server, path, body, part):
    """The tokens of a prompt at the start of each choice of a stream, and the fields that a response repeats: three times in a stream."""
    body = json.dumps(body)
    loop, intake = loop_and_intake_ns(server)
    for _ in range(3):
        assert send(server, path, body).status_code == 200
    loop_after, intake_after = loop_and_intake_ns(server)
    assert loop_after - loop < (intake_after - intake) / part, (loop_after - loop, intake_after - intake)


def peak_mb(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) / 1024


def test_a_grammar_is_not_copied_for_all_prompts_at_once(server):
    """256 prompts and a grammar of 1 MB, of which the engine has a copy for each open prompt: few prompts are open at a time."""
    body = {"prompt": "x", "max_tokens": 1, "grammar": 'root ::= "a"' + " " * 1000000}
    assert send(server, "/v1/completions", json.dumps(body)).status_code == 200
    before = peak_mb(server)
    response = send(server, "/v1/completions", json.dumps({**body, "prompt": ["x"] * 256}))
    assert response.status_code == 200 and [choice["text"] for choice in response.json()["choices"]] == ["a"] * 256
    assert peak_mb(server) - before < 128


@pytest.mark.parametrize("name, more, status, words", [
    ("refused by the engine", {"n": 4, "stop_token_ids": [0] * 257}, 400, "257 stop ids"),
    ("too many answers", {"n": 128}, 400, "2048 prompts with 128 answers each are 262144 answers, at most 8192 are allowed"),
    ("the best of too many answers", {"n": 1, "best_of": 5}, 400, "10240 answers"),
])
def test_a_small_body_of_many_answers_is_refused_at_once(server, name, more, status, words):
    """The loop makes and frees nothing for answers that do not start: 262,144 places for them took it 77 ms."""
    body = json.dumps({"prompt": ["a"] * 2048, "max_tokens": 1, **more})
    before = loop_and_intake_ns(server)[0]
    for _ in range(5):
        response = send(server, "/v1/completions", body)
        assert response.status_code == status and words in response.json()["error"]["message"], name
    assert (loop_and_intake_ns(server)[0] - before) / 5 < 20e6


def test_stop_strings_are_prepared_by_a_prompt_thread(server):
    """16 strings of 4 KiB for each of 256 prompts: to prepare the search for them took the loop 80 ms."""
    body = json.dumps({"prompt": ["a"] * 256, "max_tokens": 1, "stop": [chr(97 + i) * 4096 for i in range(16)]})
    before = loop_and_intake_ns(server)[0]
    for _ in range(3):
        assert send(server, "/v1/completions", body).status_code == 200
    assert (loop_and_intake_ns(server)[0] - before) / 3 < 25e6


def test_replies_of_many_choices_are_built_by_a_worker(server):
    """Their values are made where they are written. Quotes must be escaped, so that the text costs more to write than to send."""
    body = json.dumps({"prompt": '"""" ' * 200, "max_tokens": 1, "echo": True, "n": 128, "temperature": 0})
    loop, intake = loop_and_intake_ns(server)
    for _ in range(5):
        assert len(send(server, "/v1/completions", body).json()["choices"]) == 128
    loop_after, intake_after = loop_and_intake_ns(server)
    assert loop_after - loop < (intake_after - intake) / 2, (loop_after - loop, intake_after - intake)


def test_replies_count_against_their_clients_memory(server):
    """A small body whose reply would take far more than the 65 MiB of a client: it ends when that is reached."""
    before = peak_mb(server)
    body = json.dumps({"prompt": [[5] * 1500] * 64, "max_tokens": 1, "echo": True, "logprobs": 20})
    response = send(server, "/v1/completions", body)
    assert response.status_code == 429
    assert "replies to your requests take more memory than the 65 MiB" in response.json()["error"]["message"]
    assert peak_mb(server) - before < 256
    server.wait_until(lambda figures: figures["tutti_http_reply_bytes"] == 0)
    assert send(server, "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1, "logprobs": 20})).status_code == 200


def test_log_probabilities_take_about_the_bytes_of_the_reply(server):
    """As text, not as values: those took ten times as much."""
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "n": 16, "max_tokens": 200, "ignore_eos": True,
                       "logprobs": True, "top_logprobs": 20, "seed": 1})
    send(server, "/v1/chat/completions", body)
    before = peak_mb(server)
    response = send(server, "/v1/chat/completions", body)
    assert [len(choice["logprobs"]["content"]) for choice in response.json()["choices"]] == [200] * 16
    assert peak_mb(server) - before < 5 * len(response.content) / MB


def test_a_reply_counts_until_its_client_has_read_it(start):
    server = start()
    body = json.dumps({"prompt": [5] * 1000, "max_tokens": 1, "echo": True, "logprobs": 20, "n": 16, "temperature": 0}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(body) + body)
        server.wait_until(lambda figures: figures["tutti_engine_requests_finished_total"] > 0 and figures["tutti_http_reply_bytes"] > 4e6)
        n_bytes = 0
        while part := client.recv(1 << 20):
            n_bytes += len(part)
        assert n_bytes > 4e6
    server.wait_until(lambda figures: figures["tutti_http_reply_bytes"] == 0)
