"""Answers that must be JSON, or fit a grammar."""
import json
import re
import threading

import pytest

jsonschema = pytest.importorskip("jsonschema")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "born": {"type": "string", "format": "date"},
        "children": {"type": "array", "items": {"enum": ["Ann", "Ben", 3]}, "maxItems": 2},
        "height": {"type": "number", "minimum": 0.5, "maximum": 2.5},
        "home": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
    },
    "required": ["name", "born", "height", "home"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"}},
                        "required": ["city"], "additionalProperties": False}},
}


def person_format():
    return {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}


@pytest.mark.parametrize("seed", range(6))
def test_a_schema_holds(server, seed):
    body = server.chat("Describe a person.", temperature=1.9, seed=seed, max_tokens=400, response_format=person_format()).json()
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)


def test_numbers_are_written_in_their_shortest_form(server):
    schema = {"type": "object", "properties": {"x": {"const": 0.1}}, "required": ["x"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "set", "parameters": schema}}
    answer = server.chat("Set it.", max_tokens=30, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}).json()
    assert "0.1" in answer["choices"][0]["message"]["content"] and "0.10" not in answer["choices"][0]["message"]["content"], answer
    call = server.chat("Set it.", max_tokens=300, temperature=0, tools=[tool],
                       tool_choice={"type": "function", "function": {"name": "set"}}).json()["choices"][0]["message"]["tool_calls"][0]
    assert re.fullmatch(r'\{\s*"x":\s*0\.1\s*\}', call["function"]["arguments"]), call


def test_a_stream_holds_it_too(server):
    events = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Describe a person."}], "stream": True, "temperature": 1.5, "seed": 3,
        "max_tokens": 400, "n": 3, "response_format": person_format()}).text
    texts = {}
    for line in events.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    assert sorted(texts) == [0, 1, 2]
    for text in texts.values():
        jsonschema.validate(json.loads(text), PERSON)


def test_any_object(server):
    for seed in range(4):
        choice = server.chat("Describe a person.", temperature=1.9, seed=seed, max_tokens=300,
                             response_format={"type": "json_object"}).json()["choices"][0]
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
        else:
            assert choice["message"]["content"].startswith("{")


@pytest.mark.parametrize("member", ["schema", "value"])  # as llama-server has it, and Text Generation Inference
def test_an_object_may_have_its_schema_beside_it(server, member):
    choice = server.chat("Describe a person.", temperature=1.9, seed=1, max_tokens=400,
                         response_format={"type": "json_object", member: PERSON}).json()["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)


def test_a_grammar(server):
    grammar = 'root ::= "The answer is " [0-9]{2} (" or " [0-9]{2})? "."   # two digits'
    for path, prompt in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "?"}]}), ("/v1/completions", {"prompt": "?"})):
        choice = server.post(path, {**prompt, "temperature": 1.5, "seed": 5, "max_tokens": 60, "grammar": grammar}).json()["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert re.fullmatch(r"The answer is \d\d( or \d\d)?\.", text), choice
        assert choice["finish_reason"] == "stop"


def test_the_answer_is_the_same_among_others(server):
    def ask(seed):
        return server.chat("Describe a person.", temperature=1.5, seed=seed, max_tokens=300,
                           response_format=person_format()).json()["choices"][0]["message"]["content"]

    alone = [ask(seed) for seed in range(6)]
    together = [None] * 6

    def worker(seed):
        together[seed] = ask(seed)

    threads = [threading.Thread(target=worker, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_what_looks_like_a_call_is_the_answer(server):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    schema = {"type": "object", "properties": {"name": {"const": "add"}, "arguments": {"const": {}}},
              "required": ["name", "arguments"], "additionalProperties": False}
    choice = server.chat("Add.", tools=tools, max_tokens=100, temperature=0, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema}}).json()["choices"][0]
    assert json.loads(choice["message"]["content"]) == {"name": "add", "arguments": {}}
    assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]
