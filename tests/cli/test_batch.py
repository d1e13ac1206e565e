"""tutti generate --batch: files of requests in the form of OpenAI's Batch API; and --embedding."""
import json
import math
import os
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
DEMO = os.path.join(ROOT, "models", "demo")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def line(custom_id, body, url="/v1/chat/completions", **more):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "demo", **body}, **more}


def run(lines, *flags, status=0):
    text = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)
    done = subprocess.run([BIN, "generate", DEMO, "--batch", "-", *map(str, flags)], input=text.encode(), capture_output=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    answers = [json.loads(one) for one in done.stdout.splitlines()]
    assert all(a.keys() == {"id", "custom_id", "response", "error"} and a["error"] is None for a in answers)
    assert len({a["id"] for a in answers}) == len(answers)
    return {a["custom_id"]: a["response"] for a in answers}, done.stderr.decode()


def test_every_api(tmp_path):
    del tmp_path
    answers, _ = run([
        "\ufeff" + json.dumps(line("chat", {"messages": QUESTION, "temperature": 0})),
        line("text", {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 4, "logprobs": 1, "echo": True}, "/v1/completions"),
        line("vector", {"input": ["Hello", "you"]}, "/v1/embeddings"),
        line("response", {"input": "What is the capital of France?", "temperature": 0}, "/v1/responses"),
        line("schema", {"messages": QUESTION, "max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}}}}),
    ])
    assert all(a["status_code"] == 200 and a["request_id"].startswith("req_") for a in answers.values())
    assert answers["chat"]["body"]["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert answers["chat"]["body"]["object"] == "chat.completion" and answers["chat"]["body"]["usage"]["completion_tokens"] > 0
    assert answers["text"]["body"]["choices"][0]["text"].startswith("Once upon a time")
    assert len(answers["text"]["body"]["choices"][0]["logprobs"]["tokens"]) == answers["text"]["body"]["usage"]["total_tokens"]
    assert [abs(math.fsum(x * x for x in v["embedding"]) - 1) < 1e-5 for v in answers["vector"]["body"]["data"]] == [True, True]
    assert answers["response"]["body"]["output"][0]["content"][0]["text"] == "The capital of France is Paris."
    assert json.loads(answers["schema"]["body"]["choices"][0]["message"]["content"])["a"] in (1, 2)


def test_many_with_little_room():
    lines = [line(f"r{i}", {"messages": QUESTION, "temperature": 1, "seed": i, "max_tokens": 6, "n": 1 + i % 3}) for i in range(60)]
    few, _ = run(lines, "--max-seqs", 3, "--max-queue", 4)
    many, _ = run(lines)
    assert len(few) == 60
    texts = [{k: [c["message"]["content"] for c in a["body"]["choices"]] for k, a in answers.items()} for answers in (few, many)]
    assert texts[0] == texts[1] and [len(texts[0][f"r{i}"]) for i in range(60)] == [1 + i % 3 for i in range(60)]


@pytest.mark.parametrize("flags", [
    ("--temperature", "0"), ("--max-tokens", "5"), ("--top-k", "1"), ("--top-p", "0.5"), ("--min-p", "0.1"), ("--seed", "1"),
    ("--repetition-penalty", "1.1"), ("--presence-penalty", "1"), ("--frequency-penalty", "1"), ("--stop", "x"), ("--ignore-eos",),
    ("--grammar", "x.gbnf"), ("--json-schema", "x.json"), ("--beams", "4"), ("--thinking", "show"), ("--thinking-budget", "2"),
    ("--reasoning-effort", "low"), ("--chat",), ("--chat", "--system", "x"), ("--chat", "--attach", "x"), ("--parse-special",), ("--no-kv-cache",), ("--json",),
    ("--adapter", "none"), ("--dp", "2"), ("--prompt", "x"), ("--file", "x")])
def test_options_of_an_answer_are_refused_and_not_ignored(flags):
    done = subprocess.run([BIN, "generate", DEMO, "--batch", "-", *flags], input=b"", capture_output=True, timeout=60, check=False)
    assert done.returncode == 2 and not done.stdout, done.stderr
    assert f"{flags[0]} has no effect with --batch" in done.stderr.decode()


def test_a_draft_model_is_used_for_requests_of_a_file():
    lines = [line("a", {"messages": QUESTION, "temperature": 0})]
    plain, _ = run(lines)
    drafted, _ = run(lines, "--draft", DEMO, "--draft-tokens", 4)
    assert plain["a"]["body"]["choices"] == drafted["a"]["body"]["choices"]
    other = os.path.join(ROOT, "tests", "fixtures", "llama-tiny")
    _, said = run(lines[:0], "--draft", other, status=2)
    assert "draft model llama-tiny has" in said


@pytest.mark.parametrize("bad, code, param", [
    ("no JSON", 400, None), ("[1]", 400, None), ({"custom_id": 5}, 400, "custom_id"), (line("a", {}, method="GET"), 400, "method"),
    (line("a", {"messages": QUESTION}, "/v1/files"), 400, "url"), ({**line("a", {}), "body": None}, 400, "body"),
    (line("a", {"messages": []}), 400, "messages"), (line("a", {"messages": QUESTION, "temperature": 9}), 400, "temperature"),
    (line("a", {"messages": QUESTION, "model": "other"}), 404, "model"), (line("a", {"messages": QUESTION, "stream": True}), 400, "stream"),
    (line("a", {"messages": [{"role": "user", "content": "word " * 8000}]}), 400, "messages"), (line("a", {"input": ""}, "/v1/embeddings"), 400, "input"),
])
def test_a_request_that_fails_fails_alone(bad, code, param):
    answers, complaint = run([line("before", {"messages": QUESTION, "max_tokens": 2}), bad, "", line("behind", {"messages": QUESTION, "max_tokens": 2})],
                             status=1)
    assert answers.pop("before")["status_code"] == answers.pop("behind")["status_code"] == 200
    (answer,) = answers.values()
    assert answer["status_code"] == code and answer["body"]["error"]["param"] == param and answer["body"]["error"]["message"]
    assert "1 of 3 requests failed" in complaint


def test_a_reader_that_goes_away_ends_it():
    lines = "\n".join(json.dumps(line(str(i), {"messages": QUESTION})) for i in range(400))
    with subprocess.Popen([BIN, "generate", DEMO, "--batch", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(lines.encode())
        process.stdin.close()
        assert process.stdout.readline()  # the answers of 400 requests are more than a pipe holds
        process.stdout.close()
        assert process.wait(60) == 1 and process.stderr.read() == b""


def test_embeddings_of_prompts(tmp_path):
    plain = subprocess.run([BIN, "generate", DEMO, "-p", "Hello", "-p", "Tell me", "--embedding", "mean"], capture_output=True, timeout=60, check=True)
    vectors = [json.loads(one) for one in plain.stdout.splitlines()]
    assert len(vectors) == 2 and all(abs(math.fsum(x * x for x in v) - 1) < 1e-5 for v in vectors)
    (tmp_path / "prompts").write_text("Hello\nTell me\n")
    told = subprocess.run([BIN, "generate", DEMO, "-f", tmp_path / "prompts", "--embedding", "last", "--json"], capture_output=True, timeout=60, check=True)
    objects = sorted(map(json.loads, told.stdout.splitlines()), key=lambda o: o["index"])
    assert [o.keys() for o in objects] == [{"index", "embedding", "usage"}] * 2 and objects[0]["embedding"] != vectors[0]
    batch, _ = run([line("a", {"input": "Hello"}, "/v1/embeddings"), line("b", {"input": "Tell me", "pooling": "last"}, "/v1/embeddings")])
    assert batch["a"]["body"]["data"][0]["embedding"] == pytest.approx(vectors[0], abs=1e-6)
    assert batch["b"]["body"]["data"][0]["embedding"] == pytest.approx(objects[1]["embedding"], abs=1e-6)
