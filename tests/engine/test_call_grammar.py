"""Calls that are written at random by the grammar of each form: the parser reads them, whole and streamed, as calls of the tools,
with arguments that jsonschema finds valid."""
import json
import os
import random
import subprocess

import jsonschema
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROBE = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build")), "tests", "engine", "call_probe")
ROWS = [json.loads(line) for line in subprocess.run([PROBE, "forms"], check=True, capture_output=True, text=True).stdout.splitlines()]
# Rows by which answers are written: those that a template tells, and the first of each name. The others only parse variants.
WRITTEN = [i for i, row in enumerate(ROWS) if not row["is_part"] and row["can_be_written"] and (row["has_traits"] or row["name"] not in [r["name"] for r in ROWS[:i]])]
# Forms whose answers are split into reasoning and the rest before calls are parsed.
REASONING = {"harmony": "harmony", "command-r": "cohere", "muse": "muse", "inkling": "inkling"}
# Forms that write one call at most.
SINGLE = {"glm-4", "chatglm3"}


class Probe:
    def __init__(self):
        self.process = subprocess.Popen([PROBE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **question):
        self.process.stdin.write((json.dumps(question) + "\n").encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the probe ended with {self.process.wait()} at {question}"
        return json.loads(line)


@pytest.fixture(scope="module")
def probe():
    probe = Probe()
    yield probe
    probe.process.stdin.close()
    assert probe.process.wait() == 0


def leaf(rng):
    return rng.choice([
        {"type": "string"}, {"type": "string", "enum": ["a", "b c", "quote\"s", "it's", "line\nbreak", "ü 你好 😀", "</tag>", "<parameter=y>", "a\n</function>", "<|x|>", ""]},
        {"type": "string", "minLength": 2, "maxLength": 5}, {"type": "string", "pattern": "^[a-z<>/|]{1,4}$"}, {"type": "string", "format": "date"},
        {"const": "only"}, {"enum": ["null", "true", "1", "{}"]}, {"type": ["string", "null"]}, {"type": ["string", "null"], "pattern": "^nul"},
        {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}, {"type": ["string", "integer"]}, {"enum": [1, "x", None, True, [1, "<a>"]]},
        {"type": "integer"}, {"type": "integer", "minimum": -3, "maximum": 12}, {"type": "number"}, {"type": "number", "exclusiveMinimum": 0.5, "maximum": 2},
        {"type": "boolean"}, {"type": "null"}, {"const": 0.1}, {"type": "integer", "multipleOf": 5}, {"$ref": "#/$defs/point"},
        {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "string", "maxLength": 4}]}])


def schema(rng, depth=0):
    kind = rng.random()
    if depth > 1 or kind < 0.6:
        return leaf(rng)
    if kind < 0.75:
        return {"type": "array", "items": schema(rng, depth + 1), "maxItems": rng.randrange(3)}
    return parameters(rng, depth + 1)


def parameters(rng, depth=0):
    names = rng.sample(["city", "days", "unit", "note", "from", "value_2", "class", "x"], rng.randrange(5))
    object_ = {"type": "object", "properties": {name: schema(rng, depth) for name in names},
               "required": [name for name in names if rng.random() < 0.5], "additionalProperties": rng.choice([False, False, False, {"type": "boolean"}])}
    if depth == 0:
        object_["$defs"] = {"point": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x", "y"],
                                      "additionalProperties": False}}
    return object_


def tools_of(rng):
    tools = []
    for name in rng.sample(["get_weather", "get", "get_weather_now", "add", "Search-Web", "f"], rng.randrange(1, 4)):
        function = {"name": name, "parameters": parameters(rng)}
        kind = rng.random()
        if kind < 0.08:
            del function["parameters"]
        elif kind < 0.16:
            function["parameters"] = {"type": "object", "anyOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
                                                                  {"properties": {"b": {"type": "string"}}, "required": ["b"], "additionalProperties": False}]}
        tools.append({"type": "function", "function": function})
    return tools


def check(calls, tools, only=None):
    by_name = {tool["function"]["name"]: tool["function"].get("parameters", {"type": "object"}) for tool in tools}
    for name, text, _ in calls:
        assert name in by_name and name == (only or name)
        arguments = json.loads(text)
        assert isinstance(arguments, dict)
        jsonschema.Draft202012Validator(by_name[name], format_checker=jsonschema.FormatChecker()).validate(arguments)


def ask(probe, row, tools, seeds, tokens=True, max_tokens=600, **spec):
    return probe.ask(row=row, reasoning=REASONING.get(ROWS[row]["name"]), tokens=tokens, spec={"tools": tools, **spec}, seeds=seeds, max_tokens=max_tokens)


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("row", WRITTEN, ids=lambda i: f"{i}-{ROWS[i]['name']}")
def test_every_call_is_parsed_and_valid(probe, row, tokens):
    rng = random.Random(row)
    n_finished, n_several, n_asked = 0, 0, 0
    for _ in range(25):
        tools, only = tools_of(rng), None
        if rng.random() < 0.3:
            only = rng.choice(tools)["function"]["name"]
        parallel = rng.random() < 0.7
        spec = {"parallel": parallel, **({"name": only} if only else {})}
        answer = ask(probe, row, tools, [rng.randrange(1 << 40) for _ in range(4)], tokens, **spec)
        assert "error" not in answer, (answer, tools)
        for output in answer["outputs"]:
            n_asked += 1
            if not output["finished"]:
                continue
            n_finished += 1
            assert output["calls"], (output["text"], tools)
            *calls, n_content = output["calls"]
            assert n_content == 0 and output["streamed"] == output["calls"], output["text"]
            assert parallel or len(calls) == 1
            n_several += len(calls) > 1
            try:
                check(calls, tools, only)
            except Exception as error:
                raise AssertionError(f"{output['text']!r}: {calls} of {json.dumps(tools)}") from error
    assert n_finished > n_asked / 2
    assert (n_several > 0) == (ROWS[row]["name"] not in SINGLE) or not tokens


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("row", WRITTEN, ids=lambda i: f"{i}-{ROWS[i]['name']}")
def test_calls_of_strict_tools_within_text_are_valid(probe, row, tokens):
    rng = random.Random(row)
    for _ in range(5):
        tools = tools_of(rng)
        for tool in tools:
            tool["function"]["strict"] = rng.random() < 0.7
        answer = probe.ask(row=row, reasoning=REASONING.get(ROWS[row]["name"]), tokens=tokens, has_text=True, max_tokens=500,
                           spec={"tools": tools, "parallel": rng.random() < 0.5}, seeds=[rng.randrange(1 << 40) for _ in range(6)])
        assert "error" not in answer, (answer, tools)
        strict = {tool["function"]["name"] for tool in tools if tool["function"]["strict"]}
        for output in answer["outputs"]:
            check([call for call in output["calls"][:-1] if call[0] in strict], tools)
