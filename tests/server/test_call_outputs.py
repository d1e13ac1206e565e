"""The answers of tests/fixtures/calls over HTTP, in front of the mock engine, which answers with the question's words: Chat Completions,
Responses and Messages, whole and streamed, give the same calls, text and reasoning."""
import collections
import json
import os
import re

import pytest
import requests

from conftest import PATIENCE, ROOT
from test_tools import mock_model

CALLS = os.path.join(ROOT, "tests", "fixtures", "calls")
with open(os.path.join(CALLS, "tools.json"), encoding="utf-8") as file:
    TOOLS = json.load(file)


def read_outputs():
    """{(form, form of reasoning, whether the prompt opens it): [(name, answer, reasoning, content, calls)]}; a call: (name, id, arguments)."""
    groups = collections.defaultdict(list)
    with open(os.path.join(CALLS, "outputs.txt"), encoding="utf-8") as file:
        parts = re.split(r"^=== (.*)\n", file.read(), flags=re.MULTILINE)[1:]
    for name, body in zip(parts[::2], parts[1::2]):
        head, *rest = re.split(r"^--- (.*)\n", body, flags=re.MULTILINE)
        form = re.search(r"^form: (\S+)", head, re.MULTILINE)[1]
        reasoning = re.search(r"^reasoning: (\S+)(.*)", head, re.MULTILINE)
        blocks = [(kind.split(), text) for kind, text in zip(rest[::2], rest[1::2])]
        blocks[-1] = (blocks[-1][0], re.sub(r"\n\Z", "", blocks[-1][1]) if blocks[-1][1].endswith("\n\n") else blocks[-1][1])
        found = {kind[0]: text[:-1] for kind, text in blocks}
        calls = [(kind[1], kind[2] if len(kind) > 2 else None, json.loads(text)) for kind, text in blocks if kind[0] == "call"]
        answer = found["answer"]
        if answer == answer.strip(" "):  # the mock has words, and the blanks between them
            content = answer if "text" in found else found.get("content", "")
            key = (form, reasoning[1] if reasoning else None, bool(reasoning) and "open" in reasoning[2])
            groups[key].append((name, answer, found.get("reasoning", ""), content, calls))
    return groups


OUTPUTS = read_outputs()


def post(url, path, body, **more):
    answer = requests.post(url.replace("/v1/chat/completions", path), json={**body, **more}, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return answer


def events(text):
    return [json.loads(line[len("data: "):]) for line in text.split("\n") if line.startswith("data: {")]


def joined_calls(pieces):
    calls = []
    for piece in pieces:
        for call in piece["delta"].get("tool_calls") or []:
            if call["index"] == len(calls):
                calls.append([call["function"]["name"], call["id"], ""])
            calls[call["index"]][2] += call["function"]["arguments"]
    return calls


def chat(url, text):
    body = {"messages": [{"role": "user", "content": text}], "tools": TOOLS}
    choice = post(url, "/v1/chat/completions", body).json()["choices"][0]
    message = choice["message"]
    calls = [[call["function"]["name"], call["id"], call["function"]["arguments"]] for call in message.get("tool_calls", [])]
    pieces = [event["choices"][0] for event in events(post(url, "/v1/chat/completions", body, stream=True).text) if event["choices"]]
    yield message.get("reasoning_content") or "", message["content"] or "", calls
    streamed = tuple("".join(piece["delta"].get(field) or "" for piece in pieces) for field in ("reasoning_content", "content"))
    assert pieces[-1]["finish_reason"] == choice["finish_reason"]
    yield from streamed_part(*streamed, joined_calls(pieces), message["content"], message.get("tool_calls"))


def streamed_part(thought, text, calls, whole_text, whole_calls):
    """What was streamed stays, also of a call that turns out to be none in the end."""
    if calls and not whole_calls:
        assert whole_text.strip().startswith(text.strip())
    else:
        yield thought, text, [[name, None, arguments] for name, _, arguments in calls]  # an id after the arguments comes too late


def of_items(items):
    texts = {kind: "".join(part["text"] for item in items if item["type"] == kind for part in item["content"]) for kind in ("reasoning", "message")}
    return texts["reasoning"], texts["message"], [[item["name"], item["call_id"], item["arguments"]] for item in items if item["type"] == "function_call"]


def responses(url, text):
    body = {"input": text, "tools": [{"type": "function", **tool["function"]} for tool in TOOLS]}
    whole = of_items(post(url, "/v1/responses", body).json()["output"])
    yield whole
    yield from streamed_part(*of_items(events(post(url, "/v1/responses", body, stream=True).text)[-1]["response"]["output"]), *whole[1:])


def messages(url, text):
    tools = [{"name": tool["function"]["name"], "input_schema": tool["function"].get("parameters", {"type": "object"})} for tool in TOOLS]
    body = {"model": "mock", "messages": [{"role": "user", "content": text}], "tools": tools, "max_tokens": 1000}
    blocks = post(url, "/v1/messages", body, thinking={"type": "enabled", "budget_tokens": 100}).json()["content"]
    yield ("".join(block["thinking"] for block in blocks if block["type"] == "thinking"), "".join(block["text"] for block in blocks if block["type"] == "text"),
           [[block["name"], block["id"], json.dumps(block["input"])] for block in blocks if block["type"] == "tool_use"])


@pytest.mark.parametrize("key", sorted(OUTPUTS, key=str), ids=lambda key: "-".join(str(part) for part in key if part))
def test_every_interface_gives_the_same(key):
    form, reasoning, is_open = key
    variables = {"MOCK_TOOL_FORM": form, **({"MOCK_REASONING_FORM": reasoning} if reasoning else {}), **({"MOCK_REASONING_OPEN": "1"} if is_open else {})}
    with mock_model(**variables) as url:
        for name, answer, wanted_reasoning, wanted, wanted_calls in OUTPUTS[key]:
            for interface in (chat, responses, messages):
                for thought, text, calls in interface(url, answer):
                    where = f"{name}, {interface.__name__}"
                    assert (thought.strip(), text.strip()) == (wanted_reasoning, wanted.strip()), where
                    assert [(call[0], json.loads(call[2])) for call in calls] == [(call[0], call[2]) for call in wanted_calls], where
                    if interface is not messages:
                        assert all(own is None or call[1] in (None, own) for call, (_, own, _) in zip(calls, wanted_calls)), where


def test_most_answers_are_fed():
    assert sum(map(len, OUTPUTS.values())) >= 175
