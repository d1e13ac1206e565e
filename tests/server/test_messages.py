"""Anthropic's Messages API without its client: what is refused and by which words, and attacks."""
import json

import pytest
import requests

from conftest import PATIENCE
from test_tools import mock_model

VERSION = {"anthropic-version": "2023-06-01"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "r"}


@pytest.fixture(scope="module")
def mock():
    with mock_model("--max-body", str(64 << 20)) as url:
        yield url.removesuffix("/v1/chat/completions")


def user(*content):
    return {"role": "user", "content": list(content)}


def assistant(*content):
    return {"role": "assistant", "content": list(content)}


def ask(url, path="/v1/messages", **change):
    body = {"model": "mock", "max_tokens": 20, "messages": [{"role": "user", "content": "one two"}], **change}
    body = {key: value for key, value in body.items() if value is not ...}
    return requests.post(url + path, json=body, timeout=PATIENCE)


def refused(reply, status, kind, words):
    body = reply.json()
    assert reply.status_code == status and body.keys() == {"type", "error", "request_id"} and body["type"] == "error", reply.text
    assert body["error"]["type"] == kind and words in body["error"]["message"], reply.text
    assert body["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}}
WRONG = [
    ({"max_tokens": ...}, "max_tokens must be an integer"), ({"max_tokens": -1}, "max_tokens must be between 0"), ({"max_tokens": 1.5}, "max_tokens"),
    ({"model": ...}, "model must be a string"), ({"model": 5}, "model must be a string"), ({"messages": []}, "messages must be a list of at least one"),
    ({"messages": ...}, "messages must be"), ({"messages": [5]}, "messages[0] must be an object"), ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, 'messages[0].role must be "user"'), ({"messages": [{"role": "user"}]}, "messages[0].content must be"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be a string or a list of blocks"),
    ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0].name is no known field"),
    ({"messages": [user(5)]}, "messages[0].content[0] must be an object with a type"), ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
    ({"messages": [user({"type": "text", "text": "x", "txet": 1})]}, "messages[0].content[0].txet is no known field"),
    ({"messages": [user(IMAGE)]}, 'messages[0].content[0]: blocks of type "image" are not supported here'), ({"messages": [user(PDF)]}, "documents must be plain text"),
    ({"messages": [user({"type": "document", "source": {"type": "url", "url": "http://x"}})]}, "messages[0].content[0].source: documents must be plain text"),
    ({"messages": [user({"type": "document", "source": {"type": "text", "media_type": "text/plain"}})]}, "messages[0].content[0].source.data"),
    ({"messages": [user({"type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": True}})]}, "citations are not supported"),
    ({"messages": [user({"type": "document", "source": {"type": "content", "content": [IMAGE]}})]}, "messages[0].content[0].source.content[0]: blocks of type"),
    ({"messages": [user({"type": "container_upload", "file_id": "x"})]}, "container_upload"), ({"messages": [user(CALL)]}, "expected one of: text, document"),
    ({"messages": [user(RESULT)]}, 'messages[0].content[0]: unexpected tool_use_id "t1"'),
    ({"messages": [user(RESULT, RESULT)]}, "unexpected tool_use_id"), ({"messages": [{"role": "system", "content": [IMAGE]}]}, "expected one of: text"),
    ({"messages": [assistant(CALL)]}, 'tool_use "t1" has no tool_result'), ({"messages": [assistant(CALL), user({"type": "text", "text": "x"})]}, "has no tool_result"),
    ({"messages": [assistant(CALL), user(RESULT, RESULT)]}, "messages[1].content[1]: tool_use_id"),
    ({"messages": [assistant(CALL), user({"type": "text", "text": "x"}, RESULT)]}, "must come first in their message"),
    ({"messages": [assistant(CALL), user(RESULT), assistant(CALL), user(RESULT)]}, 'messages[2].content[0]: duplicate id "t1"'),
    ({"messages": [assistant(CALL), user(RESULT), user(RESULT)]}, "messages[2].content[0]"), ({"messages": [assistant(CALL, {**CALL, "id": "t2"}), user(RESULT)]}, '"t2" has no tool_result'),
    ({"messages": [assistant({**CALL, "input": "x"}), user(RESULT)]}, "messages[0].content[0].input must be an object"),
    ({"messages": [assistant({**CALL, "caller": {"type": "code_execution_20250825"}}), user(RESULT)]}, "caller.type"),
    ({"messages": [assistant(CALL), user({**RESULT, "content": [IMAGE]})]}, "messages[1].content[0].content[0]: blocks of type"),
    ({"messages": [assistant(CALL), user({**RESULT, "content": 5})]}, "messages[1].content[0].content must be"),
    ({"messages": [assistant({"type": "thinking"})]}, "messages[0].content[0].thinking"), ({"messages": [assistant({"type": "server_tool_use"})]}, "server_tool_use"),
    ({"system": 5}, "system must be a string or a list of blocks"), ({"system": [IMAGE]}, "system[0]: blocks of type"),
    ({"tools": 5}, "tools must be a list"), ({"tools": [5]}, "tools[0] must be an object"), ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 'tools[0]: type "bash_20250124"'),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema must be an object"), ({"tools": [{**TOOL, "input_schema": {}}]}, 'tools[0].input_schema.type must be "object"'),
    ({"tools": [{**TOOL, "parameters": {}}]}, "tools[0].parameters is no known field"), ({"tools": [TOOL, TOOL]}, 'tools[1]: duplicate name "f"'),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"), ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
    ({"tool_choice": "auto"}, "tool_choice must be an object"), ({"tool_choice": {"type": "required"}}, "tool_choice.type must be"), ({"tool_choice": {"type": "tool"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice is only allowed with tools"), ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [TOOL]}, "tool_choice names g"),
    ({"tool_choice": {"type": "auto", "parallel": True}}, "tool_choice.parallel is no known field"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type must be"), ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens must be an integer"),
    ({"thinking": {"type": "enabled", "budget_tokens": 20}}, "max_tokens must be greater than thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens must be between 1"), ({"thinking": {"type": "adaptive", "display": "x"}}, "thinking.display"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 5}}, "thinking.budget_tokens is only allowed"), ({"thinking": {"type": "disabled", "x": 1}}, "thinking.x is no known field"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format.schema must be"), ({"output_config": {"effort": "huge"}}, "output_config.effort must be"),
    ({"output_config": {"format": {"type": "x", "schema": {}}}}, "output_config.format.type"), ({"output_config": {"x": 1}}, "output_config.x is no known field"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}, "output_format": {"type": "json_schema", "schema": {}}}, "cannot be combined"),
    ({"stop_sequences": "x"}, "stop_sequences must be a list"), ({"stop_sequences": ["x", ""]}, "stop_sequences[1]"), ({"stop_sequences": ["x"] * 17}, "at most 16"),
    ({"temperature": 3}, "temperature must be between 0 and 2"), ({"top_k": "x"}, "top_k must be an integer"), ({"metadata": 5}, "metadata must be an object"),
    ({"stop": ["x"]}, "argument supplied: stop"), ({"n": 2}, "argument supplied: n"), ({"logprobs": True}, "logprobs"), ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"container": "x"}, "container is not supported"), ({"mcp_servers": [{"name": "x"}]}, "mcp_servers is not supported"), ({"speed": "fast"}, "speed is not supported"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management is not supported"), ({"inference_geo": "us"}, "inference_geo"),
    ({"cache_salt": ""}, "cache_salt has 0 bytes"), ({"cache_salt": 5}, "cache_salt must be a string"),
]


@pytest.mark.parametrize("change, words", [pytest.param(*case, id=str(i)) for i, case in enumerate(WRONG)])
def test_what_is_wrong_is_named(mock, change, words):
    refused(ask(mock, **change), 400, "invalid_request_error", words)


@pytest.mark.parametrize("name", ["thinking_budget", "response_format", "reasoning_effort", "stop", "continue_final_message"])
def test_a_field_of_another_api_is_named_as_it_was_sent(mock, name):
    """Not by the field of this API that is translated to it."""
    assert ask(mock, **{name: 5}).json()["error"]["message"].startswith(f"Unrecognized request argument supplied: {name}")


@pytest.mark.parametrize("change", [
    {"speed": "standard"}, {"mcp_servers": []}, {"container": None}, {"thread": None}, {"stream": None}, {"tools": []}, {"metadata": {"user_id": "u"}},
    {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, {"service_tier": "auto"}, {"system": ""}, {"system": []},
    {"tools": [{**TOOL, "type": "custom", "strict": False, "eager_input_streaming": True, "defer_loading": False, "allowed_callers": ["direct"]}]},
    {"cache_control": {"type": "ephemeral", "ttl": "1h"}}, {"thinking": {"type": "enabled", "budget_tokens": 5}}, {"output_config": {"effort": "max"}},
    {"messages": [{"role": "user", "content": []}]}, {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": []}, {"role": "user", "content": "b"}]},
    {"messages": [assistant({**CALL, "caller": {"type": "direct"}}), user({"type": "tool_result", "tool_use_id": "t1"}, {"type": "text", "text": "x"})]},
    {"messages": [assistant(CALL, {**CALL, "id": "t2"}), user({**RESULT, "tool_use_id": "t2"}), user(RESULT)]},
    {"messages": [user({"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "x"}], "citations": {"enabled": False}})]},
])
def test_what_has_no_effect_is_accepted(mock, change):
    reply = ask(mock, **change)
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert body["type"] == "message" and body["stop_reason"] in ("end_turn", "max_tokens")


def test_a_thread_is_refused_as_the_client_expects(mock):
    error = ask(mock, thread={"type": "create"}).json()["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": []} and "thread" in error["message"]


def test_the_prompt_is_what_the_blocks_say(mock):
    """The mock answers with the words of the last message."""
    def answer(*messages):
        return "".join(block["text"] for block in ask(mock, messages=list(messages), max_tokens=100).json()["content"]).strip()
    document = {"type": "document", "title": "Title", "context": "context", "source": {"type": "text", "media_type": "text/plain", "data": "data"}}
    parts = {**document, "source": {"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}
    found = {"type": "search_result", "source": "http://x", "title": "T", "content": [{"type": "text", "text": "c"}]}
    assert answer(user(document, {"type": "text", "text": "Why?"})) == "Title\ncontext\ndata\nWhy?"
    assert answer(user(parts, found)) == "Title\ncontext\na\nb\nT\nhttp://x\nc"
    for content, is_error, want in (("r", False, "r"), ("r", True, "Error: r"), ("error: r", True, "error: r"), ([], True, "Error"),
                                    ([document, {"type": "text", "text": "x"}], False, "Title\ncontext\ndata\nx")):
        assert answer(assistant(CALL), user({**RESULT, "content": content, "is_error": is_error})) == want
    assert answer({"role": "user", "content": "a"}, {"role": "user", "content": "b"}) == "a\nb"


def test_errors_of_every_kind_have_the_api_s_form(mock):
    post, get = requests.post, requests.get
    refused(get(mock + "/v1/messages", timeout=PATIENCE), 405, "invalid_request_error", "takes POST")
    refused(post(mock + "/v1/messages/batches", json={}, timeout=PATIENCE), 404, "not_found_error", "nothing at")
    refused(post(mock + "/v1/messages", data="{", headers={"Content-Type": "application/json"}, timeout=PATIENCE), 400, "invalid_request_error", "not valid JSON")
    refused(post(mock + "/v1/messages", data="{}", headers={"Content-Type": "text/plain"}, timeout=PATIENCE), 415, "invalid_request_error", "Content-Type")
    with mock_model("--max-body", "1000") as small:
        refused(ask(small.removesuffix("/v1/chat/completions"), system="x" * 2000), 413, "request_too_large", "1000")
    refused(post(mock + "/v1/messages", json=[], timeout=PATIENCE), 400, "invalid_request_error", "the body must be a JSON object")
    refused(get(mock + "/v1/models/other", headers=VERSION, timeout=PATIENCE), 404, "not_found_error", "does not exist")
    assert "param" in get(mock + "/v1/models/other", timeout=PATIENCE).json()["error"]  # OpenAI's form
    refused(ask(mock, "/v1/messages/count_tokens", max_tokens=..., model="other"), 404, "not_found_error", "does not exist")
    refused(ask(mock, "/v1/messages/count_tokens"), 400, "invalid_request_error", "max_tokens")
    refused(ask(mock, "/v1/messages/count_tokens", max_tokens=..., messages=[user(IMAGE)]), 400, "invalid_request_error", "image")


def test_tokens_are_counted(mock):
    """A token of the mock is a byte of a message."""
    count = ask(mock, "/v1/messages/count_tokens", max_tokens=..., system="abc", messages=[user({"type": "text", "text": "x" * 5000})])
    assert count.json() == {"input_tokens": 5003}


def test_a_key_may_come_in_either_header(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("right alice\n")
    with mock_model("--api-key-file", str(keys)) as url:
        url = url.removesuffix("chat/completions") + "models"
        for headers, status in (({"x-api-key": "right"}, 200), ({"Authorization": "Bearer right"}, 200), ({"x-api-key": "right", "Authorization": "Bearer x"}, 200),
                                ({"x-api-key": "x"}, 401), ({"x-api-key": ""}, 401), ({"x-api-key": "Bearer right"}, 401), ({}, 401)):
            assert requests.get(url, headers=headers, timeout=PATIENCE).status_code == status, headers
        refused(requests.get(url, headers=VERSION, timeout=PATIENCE), 401, "authentication_error", "x-api-key")


# ---- attacks: time and memory are bounded by the body, not by its shape ----

def deep(levels):
    return json.loads("[" * levels + "]" * levels)


def test_large_and_odd_requests_are_answered(mock):
    many = 6000
    calls = [{**CALL, "id": f"t{i}"} for i in range(many)]
    results = [{**RESULT, "tool_use_id": f"t{i}"} for i in reversed(range(many))]
    text = {"type": "text", "text": "x "}
    huge = "y" * (8 << 20)
    for messages, status in (
            ([assistant(*calls), user(*results)], 200), ([assistant(*calls), user(*results[1:])], 400), ([user(*[text] * 50000)], 200),
            ([user({"type": "text", "text": huge})], 200), ([{"role": "user", "content": "x"}] * 16000, 200), ([{"role": "user", "content": "x"}] * 17000, 400),
            ([user(*[RESULT] * 20000)], 400), ([user({**text, "cache_control": deep(50)})], 400), ([user({**text, "citations": deep(50)})], 200),
            ([user({**text, "text": deep(58)})], 400), ([assistant({**CALL, "input": {"a": deep(55)}}), user(RESULT)], 200)):
        reply = ask(mock, messages=messages, max_tokens=1)
        assert reply.status_code == status, (str(messages)[:80], reply.text[:300])
    assert ask(mock, tools=[{**TOOL, "name": f"f{i}"} for i in range(5000)]).status_code == 200
    reply = requests.post(mock + "/v1/messages", data='{"messages":' + "[" * 100000, headers={"Content-Type": "application/json"}, timeout=PATIENCE)
    refused(reply, 400, "invalid_request_error", "nests deeper")
    assert ask(mock, **{f"field{i}": None for i in range(2000)}).status_code == 400
    assert ask(mock).status_code == 200


@pytest.mark.parametrize("form,call", [
    ("hermes", '<tool_call>{"name": "f", "arguments": {"wei": 10000000000000000000000}}</tool_call>'),
    ("qwen3-coder", "<tool_call><function=f><parameter=wei>\n10000000000000000000000\n</parameter></function></tool_call>")])
def test_a_call_with_an_integer_beyond_64_bits_keeps_its_arguments(form, call):
    with mock_model(MOCK_TOOL_FORM=form) as url:
        tool = {**TOOL, "input_schema": {"type": "object", "properties": {"wei": {"type": "integer", "maximum": 2**256}}}}
        first = {"messages": [user({"type": "text", "text": call})], "max_tokens": 99, "tools": [tool]}
        reply = ask(url.removesuffix("/v1/chat/completions"), **first).json()
        assert reply["stop_reason"] == "tool_use" and reply["content"][-1]["input"] == {"wei": 10**22}, reply
        made = {**reply["content"][-1], "input": {"wei": 10**22}}  # as JavaScript prints it, up to 1e21
        result = user({"type": "tool_result", "tool_use_id": made["id"], "content": "paid"})
        again = ask(url.removesuffix("/v1/chat/completions"), **{**first, "messages": [*first["messages"], assistant(made), result]})
        assert again.status_code == 200, again.text
        body = {"model": "mock", "messages": [{"role": "user", "content": call}], "tools": [{"type": "function", "function": {"name": "f"}}]}
        choice = requests.post(url, json=body, timeout=PATIENCE).json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"wei": 10**22}
