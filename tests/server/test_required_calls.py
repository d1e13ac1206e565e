"""Calls that tool_choice requires, in front of the demo model with templates of several forms: the published clients get them
through all three interfaces, whole and streamed, as the model's form writes them."""
import json

import anthropic
import jsonschema
import openai
import pytest

from conftest import Server

# What a template of the form has in its text.
TRAITS = {
    "hermes": "<tool_call>", "qwen3-coder": "<tool_call> <function= <parameter=", "glm-4.5": "<tool_call> <arg_key>",
    "llama-3": '{"name": function name, "parameters": dictionary}', "pythonic": "[func_name1(params)]", "mistral": "[TOOL_CALLS] [ARGS]",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜> <｜tool▁sep｜>", "harmony": "<|channel|> <|message|> <|channel|>final<|message|>",
    "functionary-v3.1": "<function=name>", "kimi-k2": "<|tool_call_begin|> <|tool_call_argument_begin|>",
}
SCHEMA = {"type": "object", "properties": {
    "city": {"type": "string", "enum": ["Paris", "New \"York\"", "北京"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
    "where": {"type": "object", "properties": {"x": {"type": "number", "minimum": 0, "maximum": 1}}, "required": ["x"], "additionalProperties": False},
    "sure": {"type": "boolean"}}, "required": ["city", "days", "where", "sure"], "additionalProperties": False}
OTHER = {"type": "object", "properties": {"n": {"enum": [1, None]}}, "required": ["n"], "additionalProperties": False}
SCHEMAS = {"weather": SCHEMA, "other": OTHER}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module", params=TRAITS)
def form(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "chat.jinja").write_text("{# " + TRAITS[request.param].replace("#}", "") + " #}{% for t in tools %}{{ t.function.name }} {% endfor %}"
                                       "{% for m in messages %}{{ m.content }}{% endfor %}")
    server = Server("--chat-format", folder / "chat.jinja", log=folder / "log")
    yield request.param, server
    assert server.stop() == 0


def without_reasoning(form):
    """This model would never end a message in the channel of reasoning."""
    return {"thinking_budget": 0} if form[0] == "harmony" else {}


def check(name, arguments):
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    jsonschema.validate(value, SCHEMAS[name])
    return value


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_chat_completions(form, choice):
    client = openai.OpenAI(base_url=form[1].url + "/v1", api_key="none", max_retries=0)
    settings = {"model": "demo", "messages": [{"role": "user", "content": "Tell me"}], "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False,
                "max_tokens": 400, "temperature": 1.3, "extra_body": without_reasoning(form)}
    for seed in range(2):
        answer = client.chat.completions.create(seed=seed, **settings).choices[0]
        call, = answer.message.tool_calls
        value = check(call.function.name, call.function.arguments)
        assert answer.message.content is None and answer.finish_reason == ("stop" if choice is NAMED else "tool_calls")
        assert call.function.name == "weather" or choice is not NAMED
        chunks = [c.choices[0] for c in client.chat.completions.create(seed=seed, stream=True, **settings) if c.choices]
        deltas = [delta for chunk in chunks for delta in chunk.delta.tool_calls or []]
        assert deltas[0].function.name == call.function.name and {delta.index for delta in deltas} == {0}
        assert "".join(delta.function.arguments for delta in deltas) == call.function.arguments and value is not None
        assert not "".join(chunk.delta.content or "" for chunk in chunks) and chunks[-1].finish_reason == answer.finish_reason


def test_responses(form):
    client = openai.OpenAI(base_url=form[1].url + "/v1", api_key="none", max_retries=0)
    settings = {"model": "demo", "input": "Tell me", "max_output_tokens": 400, "tools": [{"type": "function", "strict": True, **tool["function"]} for tool in TOOLS],
                "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1.3}
    item, = [item for item in client.responses.create(**settings, extra_body={"seed": 1, **without_reasoning(form)}).output if item.type != "reasoning"]
    assert item.type == "function_call" and item.status == "completed"
    check(item.name, item.arguments)
    with client.responses.stream(**settings, extra_body={"seed": 1, **without_reasoning(form)}) as stream:
        events = list(stream)
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == [item.arguments]


@pytest.mark.parametrize("form", [name for name in TRAITS if name != "harmony"], indirect=True)  # no field of it leaves reasoning out
def test_messages(form):
    client = anthropic.Anthropic(base_url=form[1].url, api_key="none", max_retries=0)
    tools = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "other"}):
        settings = {"model": "demo", "max_tokens": 400, "messages": [{"role": "user", "content": "Tell me"}], "tools": tools, "tool_choice": choice,
                    "extra_body": {"seed": 5, "temperature": 1.0}}
        message = client.messages.create(**settings)
        block, = [block for block in message.content if block.type != "thinking"]
        assert block.type == "tool_use" and message.stop_reason == "tool_use"
        check(block.name, block.input)
        with client.messages.stream(**settings) as stream:
            final = stream.get_final_message()
        assert [b.input for b in final.content if b.type == "tool_use"] == [block.input]


def test_what_a_form_cannot_write_is_refused_by_name(form):
    name, server = form
    body = {"messages": [{"role": "user", "content": "Tell me"}], "tool_choice": "required", "max_tokens": 20}
    unsupported = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "unevaluatedProperties": False}}}
    error = server.post("/v1/chat/completions", {**body, "tools": [unsupported]})
    assert error.status_code == 400 and error.json()["error"]["param"] == "tools"
    assert "tool f" in error.json()["error"]["message"] and "unevaluatedProperties" in error.json()["error"]["message"]
    counted = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "minProperties": 1}}}
    error = server.post("/v1/chat/completions", {**body, "tools": [counted]})
    if name in ("qwen3-coder", "glm-4.5", "pythonic"):
        assert error.status_code == 400 and "minProperties" in error.json()["error"]["message"]
    else:
        assert error.status_code == 200
