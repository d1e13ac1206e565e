"""Several models behind one server: each in a process of its own that starts when it is named."""
import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import time

import openai
import pytest
import requests

from conftest import BIN, DEMO, PATIENCE, ROOT, Server

SMALL = ("--kv-memory", "32M")
STORY = "Tell me a story about a fox named Mia."
SUMS = [f"What is {a} plus {b}?" for a, b in ((2, 3), (4, 4), (7, 1), (5, 6))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two models that answer differently, and one that cannot be loaded."""
    path = tmp_path_factory.mktemp("models")
    shutil.copytree(DEMO, path / "plain")
    subprocess.run([BIN, "convert", DEMO, path / "small.gguf", "--type", "q4_0"], check=True, capture_output=True)
    shutil.copytree(DEMO, path / "torn")
    weights = next(name for name in os.listdir(path / "torn") if name.endswith(".safetensors"))
    os.truncate(path / "torn" / weights, 1000)
    (path / "notes.txt").write_text("no model")
    return path


@pytest.fixture(scope="module")
def both(folder, tmp_path_factory):
    server = Server(folder, *SMALL, log=tmp_path_factory.mktemp("several") / "log")
    yield server
    assert server.stop() == 0, server.log()[-4000:]


def ask(server, model, text, **more):
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24, **more}
    return server.post("/v1/chat/completions", {**body, "model": model} if model is not None else body)


def content(reply):
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


def pid_of(server, nth=0):
    """The process of a model: the grandchildren of the server, in the order of their starts."""
    def children(pid):
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    spawner, = children(server.process.pid)
    return children(spawner)[nth]


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_path_is_decoded_for_the_model_too(both):
    body = {"model": "plain", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 4}
    assert content(both.post("/v1%2Fchat%2Fcompletions", body)) == content(both.post("/v1/chat/completions", body))
    assert both.get("/v1%2Fmodels%2Fsmall").json()["id"] == "small"


def test_a_folder_of_models_is_listed_and_each_answers_as_alone(folder, both, tmp_path):
    assert [m["id"] for m in both.get("/v1/models").json()["data"]] == ["plain", "small", "torn"]
    assert both.get("/v1/models/small").json()["id"] == "small"
    assert both.get("/v1/models/large").status_code == 404
    texts = {}
    for name, path in (("plain", folder / "plain"), ("small", folder / "small.gguf")):
        alone = Server(path, *SMALL, log=tmp_path / f"{name}.log")
        texts[name] = [content(ask(alone, None, text)) for text in [*SUMS, STORY]]
        assert alone.stop() == 0
        assert [content(ask(both, name, text)) for text in [*SUMS, STORY]] == texts[name]
    assert texts["plain"] != texts["small"]
    assert [content(ask(both, model, STORY)) for model in (None, "")] == [texts["plain"][-1]] * 2
    assert ask(both, "plain", STORY).json()["model"] == "plain"
    status = {m["id"]: m["status"] for m in both.get("/v1/models").json()["data"]}
    assert status == {"plain": "loaded", "small": "loaded", "torn": "unloaded"}
    assert both.get("/ready").json() == {"status": "ready", "models": status} and both.get("/health").json() == {"status": "ok"}


def test_capabilities_are_listed_before_and_after_loading(start):
    encoders = os.path.join(ROOT, "tests", "fixtures", "encoder")
    server = start(f"chat={DEMO}", f"vectors={encoders}/bert-tiny", f"ranker={encoders}/bert-ranker-tiny", "--kv-memory", "32M")
    want = {"chat": ["completion", "chat", "tools", "reasoning", "embeddings"], "vectors": ["embeddings", "rerank"], "ranker": ["rerank"]}

    def found(field="capabilities"):
        return {m["id"]: m[field] for m in server.get("/v1/models").json()["data"]}

    before = found()
    assert {name: before[name] for name in ("vectors", "ranker")} == {name: want[name] for name in ("vectors", "ranker")}
    assert set(before["chat"]) >= {"completion", "chat", "embeddings"}  # which tools it calls follows from its vocabulary
    sizes = [server.get("/tokenizer_info?model=" + name).json()["vocab_size"] for name in want]
    assert sizes[0] == server.get("/tokenizer_info").json()["vocab_size"] != sizes[1]
    lengths = found("max_model_len")
    assert lengths == found("max_input_tokens") == found("max_tokens") and min(lengths.values()) > 0
    content(ask(server, "chat", "Hello"))
    assert server.post("/v1/embeddings", {"model": "vectors", "input": "x"}).status_code == 200
    assert server.post("/v1/rerank", {"model": "ranker", "query": "x", "documents": ["y"]}).status_code == 200
    assert found() == want and server.get("/v1/models/ranker").json()["capabilities"] == ["rerank"]
    assert found("max_model_len") == lengths


def test_the_context_is_listed_as_the_flags_and_the_memory_limit_it(start):
    """Before a model is loaded only the flag is known."""
    short = start(f"a={DEMO}", f"b={DEMO}", "--context", 100)
    small = start(f"a={DEMO}", f"b={DEMO}", "--kv-memory", "256K")

    def lengths(server):
        return [m["max_model_len"] for m in server.get("/v1/models").json()["data"]]

    whole = lengths(small)
    assert lengths(short) == [100, 100] and whole[0] == whole[1] > 100
    for server in (short, small):
        content(ask(server, "a", "Hello"))
    assert lengths(short) == [100, 100] and lengths(small)[0] < whole[0] == lengths(small)[1]
    assert ask(small, "a", "word " * lengths(small)[0]).json()["error"]["code"] == "context_length_exceeded"


def test_a_published_client_streams_from_both(both):
    client = openai.OpenAI(base_url=both.url + "/v1", api_key="unused")
    for model in ("plain", "small"):
        messages = [{"role": "user", "content": SUMS[0]}]
        whole = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=24)
        stream = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=24, stream=True)
        chunks = list(stream)
        assert {chunk.model for chunk in chunks} == {model}
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="large", messages=[{"role": "user", "content": "x"}])


def test_the_name_is_found_wherever_it_stands(both):
    body = {"messages": [{"role": "user", "content": 'the key "model" is {"model": "large"}'}], "temperature": 0, "max_tokens": 4,
            "metadata": {"model": "large"}, "stop": ["model", ":"]}
    names = [json.dumps({**body, "model": "small"}), json.dumps({"model": "small", **body}, indent=8),
             json.dumps(body)[:-1] + ', "model": "sm\\u0061ll"}']
    for text in names:
        reply = requests.post(both.url + "/v1/chat/completions", data=text, headers={"Content-Type": "application/json"},
                              timeout=PATIENCE)
        assert reply.status_code == 200 and reply.json()["model"] == "small", reply.text
    for text in ("{", "[]", '{"model": 7}', '{"model": "small"', '"model"'):
        reply = requests.post(both.url + "/v1/chat/completions", data=text, headers={"Content-Type": "application/json"},
                              timeout=PATIENCE)
        assert reply.status_code == 400, reply.text
    assert both.post("/tokenize", {"model": "small", "prompt": "fox"}).json()["count"] > 0
    assert both.get("/tokenizer_info").status_code == both.get("/tokenizer_info?x=1&model=sm%61ll").status_code == 200
    for name in ("large", "small%00", "%ff", "x" * 3000):
        unknown = both.get(f"/tokenizer_info?model={name}")
        assert unknown.status_code == 404 and "does not exist" in unknown.json()["error"]["message"], unknown.text
    message = both.post("/v1/messages", {**{k: body[k] for k in ("messages", "max_tokens")}, "model": "small"})
    assert message.status_code == 200 and message.json()["model"] == "small"


def test_a_large_body_is_scanned(both):
    body = json.dumps({"prompt": "x", "pad": "y" * 30_000_000, "model": "large"})
    reply = requests.post(both.url + "/v1/completions", data=body, headers={"Content-Type": "application/json"}, timeout=PATIENCE)
    assert reply.status_code == 404, reply.text[:500]


def test_a_model_that_cannot_be_loaded_says_why_and_harms_no_other(both):
    reply = ask(both, "torn", "x")
    assert reply.status_code == 503, reply.text
    assert re.search(r'"torn\\" is not available: .*safetensors', reply.text), reply.text
    assert int(reply.headers["Retry-After"]) >= 1
    again = ask(both, "torn", "x")
    assert again.status_code == 503 and "not available" in again.text
    content(ask(both, "plain", SUMS[0]))


def test_a_process_that_dies_is_started_again(start):
    server = start(f"a={DEMO}", *SMALL)
    text = content(ask(server, "a", STORY))
    with server.post("/v1/chat/completions", {"model": "a", "messages": [{"role": "user", "content": STORY}], "stream": True,
                                              "ignore_eos": True, "max_tokens": 400}, stream=True) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(pid_of(server), signal.SIGKILL)
        rest = b"".join(lines).decode()
    assert "the process of the model ended before the answer was complete" in rest
    assert content(ask(server, "a", STORY)) == text
    figures = server.metrics()
    assert figures['tutti_model_deaths_total{model="a"}'] == 1 and figures['tutti_model_loads_total{model="a"}'] == 2
    assert "ended by signal 9" in server.log()


def test_models_take_turns_where_memory_has_room_for_one(start):
    server = start(f"a={DEMO}", f"b={DEMO}", "--models-memory", "60M", *SMALL)
    texts = {text: content(ask(server, "a", text)) for text in SUMS}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        jobs = [(SUMS[i % 4], pool.submit(ask, server, "ab"[i % 2], SUMS[i % 4])) for i in range(48)]
        for text, job in jobs:
            assert content(job.result()) == texts[text]
    figures = server.metrics()
    loads, unloads = (sum(figures[f'tutti_model_{what}_total{{model="{m}"}}'] for m in "ab") for what in ("loads", "unloads"))
    assert loads == unloads + 1 >= 2
    assert sum(figures[f'tutti_model_loaded{{model="{m}"}}'] for m in "ab") == 1


def test_a_running_stream_ends_before_its_model_makes_room(start):
    server = start(f"a={DEMO}", f"b={DEMO}", "--models-memory", "60M", *SMALL)
    long = {"messages": [{"role": "user", "content": STORY}], "ignore_eos": True, "max_tokens": 300, "temperature": 0}
    whole = content(server.post("/v1/chat/completions", {**long, "model": "a"}))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with server.post("/v1/chat/completions", {**long, "model": "a", "stream": True}, stream=True) as stream:
            lines = stream.iter_lines()
            next(lines)
            other = pool.submit(ask, server, "b", SUMS[0])
            got = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                          for line in lines if line.startswith(b"data: {"))
        assert got == whole
        content(other.result())


def test_what_never_fits_is_refused_with_its_size(start):
    server = start(f"a={DEMO}", "--models-memory", "20M", *SMALL)
    reply = ask(server, "a", "x")
    assert reply.status_code == 503 and "--models-memory is 20971520" in reply.text


def test_an_idle_model_is_unloaded(start):
    server = start(f"a={DEMO}", "--idle-unload", 1, *SMALL)
    content(ask(server, "a", SUMS[0]))
    server.wait_until(lambda m: m['tutti_model_loaded{model="a"}'] == 0)
    assert server.metrics()['tutti_model_unloads_total{model="a"}'] == 1
    content(ask(server, "a", SUMS[0]))


def test_changed_weights_replace_a_process_without_interrupting_answers(folder, start, tmp_path):
    place = tmp_path / "current"
    place.symlink_to(folder / "plain")
    server = start(f"a={place}", *SMALL)
    old = {text: content(ask(server, "a", text)) for text in SUMS}
    new = Server(folder / "small.gguf", *SMALL, log=tmp_path / "alone.log")
    wanted = {text: content(ask(new, None, text)) for text in [*SUMS, STORY]}
    assert new.stop() == 0
    long = {"model": "a", "messages": [{"role": "user", "content": STORY}], "ignore_eos": True, "max_tokens": 300, "temperature": 0}
    whole = content(server.post("/v1/chat/completions", long))
    with server.post("/v1/chat/completions", {**long, "stream": True}, stream=True) as stream:
        lines = stream.iter_lines()
        next(lines)
        (tmp_path / "next").symlink_to(folder / "small.gguf")
        os.replace(tmp_path / "next", place)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("model a: ready", 2)
        assert {text: content(ask(server, "a", text)) for text in [*SUMS, STORY]} == wanted
        got = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                      for line in lines if line.startswith(b"data: {"))
    assert got == whole and set(old) < set(wanted)
    wait_for(lambda: server.log().count("info stopped") == 1)


def test_weights_that_cannot_be_loaded_change_nothing(folder, start, tmp_path):
    place = tmp_path / "current"
    place.symlink_to(folder / "plain")
    server = start(f"a={place}", *SMALL)
    text = content(ask(server, "a", STORY))
    (tmp_path / "next").symlink_to(folder / "torn")
    os.replace(tmp_path / "next", place)
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("model a: nothing was changed")
    assert content(ask(server, "a", STORY)) == text


def test_keys_are_checked_before_a_model_is_loaded(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one alice tokens-per-minute=60\nsk-two bob\n")
    server = start(f"a={DEMO}", "--api-key-file", keys, *SMALL)
    assert ask(server, "a", "x").status_code == 401
    assert server.metrics()['tutti_model_loads_total{model="a"}'] == 0
    body = {"model": "a", "messages": [{"role": "user", "content": STORY}], "max_tokens": 60, "ignore_eos": True}
    replies = [server.post("/v1/chat/completions", body, headers={"Authorization": "Bearer sk-one"}) for _ in range(3)]
    assert replies[0].status_code == 200 and replies[-1].status_code == 429
    assert replies[-1].headers["x-ratelimit-limit-tokens"] == "60" and int(replies[-1].headers["Retry-After"]) > 0
    assert server.post("/v1/chat/completions", body, headers={"Authorization": "Bearer sk-two"}).status_code == 200


def test_limits_hold_for_the_address_of_the_client(start):
    server = start(f"a={DEMO}", "--tokens-per-minute", 60, *SMALL)
    body = {"model": "a", "messages": [{"role": "user", "content": STORY}], "max_tokens": 60, "ignore_eos": True}
    replies = [server.post("/v1/chat/completions", body, headers={"X-Forwarded-For": f"192.0.2.{i}"}) for i in range(3)]
    assert replies[0].status_code == 200 and replies[-1].status_code == 429


def test_a_client_that_leaves_ends_its_answer(start):
    server = start(f"a={DEMO}", *SMALL)
    with server.post("/v1/chat/completions", {"model": "a", "messages": [{"role": "user", "content": STORY}], "stream": True,
                                              "ignore_eos": True, "max_tokens": 480, "n": 8}, stream=True) as stream:
        next(stream.iter_lines())
    server.wait_until(lambda m: m['tutti_engine_requests_cancelled_total{model="a"}'] == 1)


def test_the_end_of_the_server_ends_all_processes(start):
    server = start(f"a={DEMO}", f"b={DEMO}", *SMALL)
    for model in "ab":
        content(ask(server, model, SUMS[0]))
    pids = [pid_of(server, nth) for nth in range(2)]
    place = re.search(r"unix:(\S+)/\d+:", server.log()).group(1)
    assert server.stop() == 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids) and not os.path.exists(place)


def test_a_server_that_cannot_start_processes_ends_with_an_error(tmp_path):
    server = Server(f"a={DEMO}", *SMALL, log=tmp_path / "log")
    content(ask(server, "a", SUMS[0]))
    pid = pid_of(server)
    with open(f"/proc/{server.process.pid}/task/{server.process.pid}/children", encoding="ascii") as file:
        os.kill(int(file.read()), signal.SIGKILL)
    assert server.process.wait(PATIENCE) == 1
    server.process.stdout.close()
    assert "the process that starts models has ended" in server.log()
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"))


def test_a_server_that_is_killed_leaves_no_process(tmp_path):
    server = Server(f"a={DEMO}", *SMALL, log=tmp_path / "log")
    content(ask(server, "a", SUMS[0]))
    pid = pid_of(server)
    server.process.kill()
    server.process.wait()
    server.process.stdout.close()
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"))


@pytest.mark.parametrize("flags, named", [
    (("--name", "x"), "--name"), (("--lora", "x=/nowhere"), "--lora"), (("--draft", DEMO), "--draft"),
    (("--kv-spill", "/tmp"), "--kv-spill"), (("--api", "step"), "--api"), (("--tp", "2"), "--tp"), (("--config", "x"), "--config")])
def test_flags_about_one_model_are_refused(flags, named):
    done = subprocess.run([BIN, "serve", f"a={DEMO}", f"b={DEMO}", "--port", "0", *flags], capture_output=True, text=True, timeout=PATIENCE,
                          check=False)
    assert done.returncode == 2 and f"{named}: " in done.stderr, done.stderr


@pytest.mark.parametrize("operands, said", [
    ((f"a={DEMO}", f"a={DEMO}"), "another model of the name a"), (("a b=/x",), "expected a name of letters"),
    (("a=",), "expected NAME=MODEL"), ((DEMO, "--models-memory", "1G"), "--models-memory: is for several models"),
    ((DEMO, "--idle-unload", "5"), "--idle-unload: is for several models")])
def test_operands_that_name_no_model_are_refused(operands, said):
    done = subprocess.run([BIN, "serve", "--port", "0", *operands], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_model_that_cannot_be_read_is_named_at_the_start(tmp_path):
    server = Server(f"a={DEMO}", "typo=/nowhere/model", *SMALL, log=tmp_path / "log")
    assert server.stop() == 0
    assert "warn model typo: /nowhere/model: no such file or folder; requests for it get 503" in server.log()
    assert "warn model a" not in server.log()


def test_a_request_has_one_id(both):
    """In the headers, and in the body of an error of Anthropic's API, whichever process writes them."""
    for max_tokens in ({"max_tokens": 2}, {}):
        response = both.post("/v1/messages", {"model": "plain", "messages": [{"role": "user", "content": "Hi"}], **max_tokens},
                             headers={"X-Request-Id": "req_of_the_client"})
        head = [value for name, value in response.raw.headers.items() if name.lower() in ("request-id", "x-request-id")]
        assert len(head) == 2 and head[0] == head[1] != "req_of_the_client"
        assert response.json().get("request_id", head[0]) == head[0]


def test_a_model_with_an_adapter_that_it_lacks_is_not_listed(both):
    assert both.get("/v1/models/plain").status_code == 200
    assert both.get("/v1/models/plain:nope").status_code == 404


def test_memory_is_each_clients_own(start):
    """A client that fills its share of the memory for requests takes nothing of another one's: addresses are the client's."""
    server = start(f"a={DEMO}", "--kv-memory", "64M")
    small = {"model": "a", "prompt": "Once", "max_tokens": 2}

    def ask_from(source, **more):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, source_address=(source, 0), timeout=PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps({**small, **more}), {"Content-Type": "application/json"})
        return connection, connection.getresponse()
    held = [ask_from("127.0.0.2", max_tokens=500, n=32, ignore_eos=True, stream=True, user="x" * 4_200_000) for _ in range(2)]
    assert [response.status for _, response in held] == [200, 200]
    assert ask_from("127.0.0.2", user="y" * 200_000)[1].status == 429
    assert ask_from("127.0.0.3", user="y" * 200_000)[1].status == 200
    for connection, _ in held:
        connection.close()
