"""Calls of tools in answers, whole and streamed, in front of the mock engine: it answers with the question's words."""
import json
import os
import subprocess

import pytest
import requests

from conftest import PATIENCE, ROOT, Server

MOCK = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build")), "tests", "server", "mock_server")
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}]
CALL = "<tool_call> {\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}} </tool_call>"


@pytest.fixture(scope="module")
def mock():
    with subprocess.Popen([MOCK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        line = process.stdout.readline().decode()
        yield line[len("listening on "):].strip() + "/v1/chat/completions"
        process.terminate()


def ask(url, text, **more):
    body = {"messages": [{"role": "user", "content": text}], "tools": TOOLS, **more}
    answer = requests.post(url, json=body, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return answer


def chunks(url, text, **more):
    lines = ask(url, text, stream=True, **more).text.split("\n\n")
    return [json.loads(line[len("data: "):])["choices"][0] for line in lines if line.startswith("data: {")]


def whole(url, text, **more):
    return ask(url, text, **more).json()["choices"][0]


def joined(pieces):
    return "".join(piece["delta"].get("content") or "" for piece in pieces)


def test_a_call_is_no_text(mock):
    choice = whole(mock, CALL)
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    call, = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_")
    assert call["function"]["name"] == "weather" and json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def test_one_call_alone_where_no_more_are_wanted(mock):
    assert len(whole(mock, CALL + " " + CALL)["message"]["tool_calls"]) == 2
    assert len(whole(mock, CALL + " " + CALL, parallel_tool_calls=False)["message"]["tool_calls"]) == 1
    deltas = [c["delta"]["tool_calls"] for c in chunks(mock, CALL + " " + CALL, parallel_tool_calls=False) if "tool_calls" in c["delta"]]
    assert len(deltas) == 1 and len(deltas[0]) == 1


def test_text_before_a_call_stays(mock):
    choice = whole(mock, "Let me see. " + CALL)
    assert choice["message"]["content"] == "Let me see." and len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("text", ["plain words", "a <tool_call> without an end", "{\"name\": \"unknown\"}", "weather is fine"])
def test_what_is_no_call_is_text(mock, text):
    choice = whole(mock, text)
    assert choice["message"]["content"].strip() == text and "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    pieces = chunks(mock, text)
    assert joined(pieces).strip() == text and pieces[-1]["finish_reason"] == "stop"


def test_without_tools_a_call_is_text(mock):
    assert whole(mock, CALL, tools=None)["message"]["content"].strip() == CALL
    assert whole(mock, CALL, tool_choice="none")["message"]["content"].strip() == CALL
    assert joined(chunks(mock, CALL, tools=None)).strip() == CALL


def test_a_call_is_streamed_in_one_piece(mock):
    pieces = chunks(mock, "Let me see. " + CALL)
    assert joined(pieces) == "Let me see."
    call, = [call for piece in pieces for call in piece["delta"].get("tool_calls", [])]
    assert call["index"] == 0 and call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert pieces[-1]["finish_reason"] == "tool_calls"


def test_plain_text_is_streamed_as_it_comes(mock):
    pieces = chunks(mock, "one two three four five")
    assert sum(1 for piece in pieces if piece["delta"].get("content")) >= 4


def test_a_call_that_is_cut_off_is_text(mock):
    choice = whole(mock, CALL, max_tokens=3)
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]
    assert choice["message"]["content"].startswith("<tool_call>")


# ---- calls that must be made, by a model that knows nothing of tools ----

FORCED = [{"type": "function", "function": {"name": "weather", "parameters": {
              "type": "object", "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
              "required": ["city", "days"], "additionalProperties": False, "$defs": {"city": {"enum": ["Paris", "Rome"]}}}}},
          {"type": "function", "function": {"name": "time", "parameters": {}}}]


@pytest.fixture(scope="module")
def forcing(tmp_path_factory):
    """The tools' own format would take more tokens than the model has."""
    folder = tmp_path_factory.mktemp("forcing")
    (folder / "chat.jinja").write_text("{% for t in tools %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}")
    server = Server("--chat-format", folder / "chat.jinja", log=folder / "log")
    yield server
    assert server.stop() == 0


def force(server, choice, **more):
    body = {"messages": [{"role": "user", "content": "Tell me"}], "tools": FORCED, "tool_choice": choice, "temperature": 1, "max_tokens": 300, **more}
    return server.post("/v1/chat/completions", body)


def check_call(call):
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        assert arguments.keys() == {"city", "days"} and arguments["city"] in ("Paris", "Rome") and arguments["days"] in range(1, 10)
    else:
        assert call["function"]["name"] == "time" and isinstance(arguments, dict)


@pytest.mark.parametrize("seed", range(4))
def test_a_function_that_is_named_is_called(forcing, seed):
    choice = force(forcing, {"type": "function", "function": {"name": "weather"}}, seed=seed).json()["choices"][0]
    call, = choice["message"]["tool_calls"]
    check_call(call)
    assert call["function"]["name"] == "weather" and choice["finish_reason"] == "stop" and choice["message"]["content"] is None


def test_some_function_is_called(forcing):
    names = set()
    closed = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "additionalProperties": False}}}
    for seed in range(8):
        choice = force(forcing, "required", seed=seed, tools=[FORCED[0], closed], parallel_tool_calls=False, temperature=2, max_tokens=400).json()["choices"][0]
        call, = choice["message"]["tool_calls"]
        check_call(call)
        names.add(call["function"]["name"])
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert names == {"weather", "time"}


def test_a_forced_call_is_streamed(forcing):
    choice = {"type": "function", "function": {"name": "weather"}}
    want = force(forcing, choice, seed=3).json()["choices"][0]["message"]["tool_calls"][0]["function"]
    lines = force(forcing, choice, seed=3, stream=True).text.split("\n\n")
    pieces = [json.loads(line[len("data: "):])["choices"][0] for line in lines if line.startswith("data: {")]
    call, = [call for piece in pieces for call in piece["delta"].get("tool_calls", [])]
    assert call["function"] == want and call["index"] == 0 and joined(pieces) == "" and pieces[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("change", [
    {"tool_choice": "sometimes"}, {"tool_choice": 5}, {"tool_choice": {"type": "function", "function": {"name": "none_such"}}},
    {"tool_choice": {"type": "allowed_tools"}}, {"tool_choice": "required", "tools": None}, {"tool_choice": "required", "num_beams": 2},
    {"tool_choice": "required", "grammar": "root ::= [a-z]"},
])
def test_wrong_choices_are_named(forcing, change):
    answer = force(forcing, change.pop("tool_choice"), **change)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tool_choice"
