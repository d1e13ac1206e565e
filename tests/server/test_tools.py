"""Calls of tools in answers, whole and streamed, in front of the mock engine: it answers with the question's words."""
import contextlib
import json
import os
import re
import subprocess

import pytest
import requests

from conftest import PATIENCE, ROOT, Server

MOCK = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build")), "tests", "server", "mock_server")
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}]
CALL = "<tool_call> {\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}} </tool_call>"


@contextlib.contextmanager
def mock_process(*flags, **variables):
    with subprocess.Popen([MOCK, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **variables}) as process:
        line = process.stdout.readline().decode()
        try:
            yield process, line[len("listening on "):].strip() + "/v1/chat/completions"
        finally:
            process.terminate()


@contextlib.contextmanager
def mock_model(*flags, **variables):
    with mock_process(*flags, **variables) as (_, url):
        yield url


@pytest.fixture(scope="module")
def mock():
    with mock_model() as url:
        yield url


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
    assert {call["index"] for call in deltas(chunks(mock, CALL + " " + CALL, parallel_tool_calls=False))} == {0}


def peak_mb(process):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) / 1024


def test_answers_share_their_tools():
    """As parsed these take 12 MB, of which each of 32 streamed answers had a copy."""
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "parameters": {"x-junk": [[]] * 30000}}}]
    with mock_process() as (process, url):
        ask(url, CALL, tools=tools)
        before = peak_mb(process)
        answer = ask(url, CALL, tools=tools, n=32, stream=True)
        assert answer.text.count('"name":"weather"') == 32
        assert peak_mb(process) - before < 100


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


ARGUMENTS = {"city": "Paris", "note": "one two three", "days": [1, 2]}
WAYS = {
    "Qwen": "Let me see. <tool_call>\n{\"name\": \"weather\", \"arguments\": %s}\n</tool_call>",
    "LLaMA-3": "{\"name\": \"weather\", \"parameters\": %s}",
    "Mistral": "[{\"name\": \"weather\", \"arguments\": %s}]",
    "GLM-4": "weather\n%s",
    "ChatGLM3": "weather\n ```python\ntool_call(city='Paris', note='one two three', days=[1, 2])\n```",
}


def deltas(pieces):
    return [call for piece in pieces for call in piece["delta"].get("tool_calls", [])]


@pytest.mark.parametrize("way", WAYS)
def test_a_call_is_streamed_as_it_is_written(mock, way):
    text = WAYS[way].replace("%s", json.dumps(ARGUMENTS))
    pieces = chunks(mock, text)
    first, *others = deltas(pieces)
    assert first["index"] == 0 and first["id"].startswith("call_") and first["type"] == "function"
    assert first["function"] == {"name": "weather", "arguments": ""}
    assert all(other.keys() == {"index", "function"} and other["function"].keys() == {"arguments"} for other in others)
    assert len(others) >= 3 and "Paris" not in others[-1]["function"]["arguments"]
    assert json.loads("".join(other["function"]["arguments"] for other in others)) == ARGUMENTS
    assert joined(pieces) == ("Let me see." if way == "Qwen" else "") and pieces[-1]["finish_reason"] == "tool_calls"
    call, = whole(mock, text)["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS


# A model's form, and an answer with one call of weather(city="Paris", days=2) in it.
FORMS = {
    "hermes": '<tool_call> {"name": "weather", "arguments": {"city": "Paris", "days": 2}} </tool_call>',
    "qwen3-coder": "<tool_call> <function=weather> <parameter=city> Paris </parameter> <parameter=days> 2 </parameter> </function> </tool_call>",
    "glm-4.5": "<tool_call>weather <arg_key>city</arg_key> <arg_value>Paris</arg_value> <arg_key>days</arg_key> <arg_value>2</arg_value> </tool_call>",
    "glm-4": 'weather\n{"city": "Paris", "days": 2}',
    "chatglm3": "weather\n ```python\ntool_call(city='Paris', days=2)\n```",
    "llama-3": '{"name": "weather", "parameters": {"city": "Paris", "days": 2}}',
    "pythonic": "[weather(city='Paris', days=2)]",
    "lfm2": "<|tool_call_start|>[weather(city='Paris', days=2)]<|tool_call_end|>",
    "mistral": '[TOOL_CALLS]weather[ARGS]{"city": "Paris", "days": 2}',
    "deepseek": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Paris", "days": 2}\n'
                "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi-k2": '<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Paris", "days": 2}'
               "<|tool_call_end|><|tool_calls_section_end|>",
    "harmony": '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris", "days": 2}<|call|>',
    "phi-4-mini": '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris", "days": 2}}]<|/tool_call|>',
    "seed-oss": "<seed:tool_call> <function=weather> <parameter=city>Paris</parameter> <parameter=days>2</parameter> </function> </seed:tool_call>",
    "deepseek-v3.2": '<｜DSML｜function_calls> <｜DSML｜invoke name="weather"> <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter> '
                     '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter> </｜DSML｜invoke> </｜DSML｜function_calls>',
    "minimax-m2": '<minimax:tool_call> <invoke name="weather"> <parameter name="city">Paris</parameter> <parameter name="days">2</parameter> </invoke> '
                  "</minimax:tool_call>",
    "internlm2": '<|action_start|><|plugin|>{"name": "weather", "parameters": {"city": "Paris", "days": 2}}<|action_end|>',
    "granite-20b": '<function_call> {"name": "weather", "arguments": {"city": "Paris", "days": 2}}',
    "command-r": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Paris", "days": 2}}]<|END_ACTION|>',
    "apertus": '<|tools_prefix|>[{"weather": {"city": "Paris", "days": 2}}]<|tools_suffix|>',
    "olmo-3": "<function_calls> weather(city='Paris', days=2) </function_calls>",
    "functionary-v2": 'weather\n<|content|>{"city": "Paris", "days": 2}',
    "functionary-v2.5": '<|reserved_special_token_249|>weather\n{"city": "Paris", "days": 2}',
    "functionary-v3.1": '<function=weather>{"city": "Paris", "days": 2}</function>',
    "functionary-v3.2": 'weather\n{"city": "Paris", "days": 2}',
    "gemma": "```tool_code\nweather(city='Paris', days=2)\n```",
    "firefunction": 'functools[{"name": "weather", "arguments": {"city": "Paris", "days": 2}}]',
    "nemotron": '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris", "days": 2}}]</TOOLCALL>',
    "apriel": '<tool_calls>[{"name": "weather", "arguments": {"city": "Paris", "days": 2}}]</tool_calls>',
}
IDS = {"mistral": "[0-9A-Za-z]{9}", "kimi-k2": r"functions\.weather:0", "command-r": "0"}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_in_the_model_s_form(form):
    """Whole, streamed, in a response, and as the published client reads it; without the tool it is text."""
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    text = FORMS[form]
    with mock_model(MOCK_TOOL_FORM=form) as url:
        call, = whole(url, text)["message"]["tool_calls"]
        assert {key: str(value).strip() for key, value in json.loads(call["function"]["arguments"]).items()} == {"city": "Paris", "days": "2"}
        assert call["function"]["name"] == "weather" and re.fullmatch(IDS.get(form, "call_.*"), call["id"])
        pieces = chunks(url, text)
        first, *others = deltas(pieces)
        assert first["function"]["name"] == "weather" and re.fullmatch(IDS.get(form, "call_.*"), first["id"]) and joined(pieces) == ""
        streamed = first["function"]["arguments"] + "".join(other["function"]["arguments"] for other in others)
        assert streamed == call["function"]["arguments"] and pieces[-1]["finish_reason"] == "tool_calls"
        item, = respond(url, text).json()["output"]
        assert item["type"] == "function_call" and json.loads(item["arguments"]) == json.loads(streamed)
        assert re.fullmatch(IDS.get(form, "call_.*"), item["call_id"])
        assert [event["item"]["type"] for event in events_of(respond(url, text, stream=True)) if event["type"] == "response.output_item.done"] == ["function_call"]
        client = openai.OpenAI(base_url=url.removesuffix("/chat/completions"), api_key="none", max_retries=0)
        with client.chat.completions.stream(model="mock", messages=[{"role": "user", "content": text}], tools=TOOLS) as stream:
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == "tool_calls" and json.loads(final.message.tool_calls[0].function.arguments) == json.loads(streamed)
        other = [{**TOOLS[0], "function": {"name": "zork"}}]
        plain = whole(url, text, tools=other)
        assert plain["message"]["content"].strip() == text.strip() and "tool_calls" not in plain["message"]
        assert joined(chunks(url, text, tools=other)).strip() == text.strip()


def test_calls_are_numbered(mock):
    two = deltas(chunks(mock, CALL + " " + CALL.replace("Paris", "Rome")))
    assert [call["index"] for call in two if "id" in call] == [0, 1] and len({call["id"] for call in two if "id" in call}) == 2
    for index, city in enumerate(("Paris", "Rome")):
        assert json.loads("".join(call["function"]["arguments"] for call in two if call["index"] == index)) == {"city": city}
    # A call of another form comes in one piece after the others.
    odd = CALL.replace("{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}", "{\"arguments\": {\"x\": 1}, \"name\": \"weather\"}")
    *_, last = deltas(chunks(mock, CALL + " " + odd))
    assert last["index"] == 1 and last["function"] == {"name": "weather", "arguments": "{\"x\":1}"}


def test_a_call_that_was_begun_is_not_taken_back(mock):
    pieces = chunks(mock, WAYS["Qwen"].replace("%s", json.dumps(ARGUMENTS)), max_tokens=8)
    assert joined(pieces) == "Let me see." and pieces[-1]["finish_reason"] == "length"
    text = "".join(call["function"]["arguments"] for call in deltas(pieces))
    assert text and json.dumps(ARGUMENTS).startswith(text.strip())


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


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "weather"}}, "required"])
def test_a_forced_call_is_streamed(forcing, choice):
    more = {"seed": 3, "tools": FORCED[:1], "parallel_tool_calls": False}
    want = force(forcing, choice, **more).json()["choices"][0]
    lines = force(forcing, choice, stream=True, **more).text.split("\n\n")
    pieces = [json.loads(line[len("data: "):])["choices"][0] for line in lines if line.startswith("data: {")]
    first, *others = deltas(pieces)
    want_call, = want["message"]["tool_calls"]
    assert first["function"] == {"name": "weather", "arguments": ""} and first["index"] == 0
    assert len(others) == 2  # the demo model's form is Python: each argument comes when it is complete
    text = "".join(call["function"]["arguments"] for call in others)
    assert json.loads(text) == json.loads(want_call["function"]["arguments"])
    assert joined(pieces) == "" and pieces[-1]["finish_reason"] == want["finish_reason"]


def allow(mode, *names):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": name}} for name in names]}}


@pytest.mark.parametrize("name", ["weather", "time"])
def test_only_tools_that_are_allowed_are_called(forcing, name):
    closed = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "additionalProperties": False}}}
    for seed in range(3):
        choice = force(forcing, allow("required", name), seed=seed, tools=[FORCED[0], closed], parallel_tool_calls=False).json()["choices"][0]
        call, = choice["message"]["tool_calls"]
        check_call(call)
        assert call["function"]["name"] == name
    body = {"input": "Tell me", "temperature": 1, "max_output_tokens": 300, "parallel_tool_calls": False,
            "tools": [{"type": "function", **tool["function"]} for tool in (FORCED[0], closed)],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name}]}}
    item, = forcing.post("/v1/responses", body).json()["output"]
    assert item["type"] == "function_call" and item["name"] == name


def test_a_forced_call_of_a_streamed_response_is_complete(forcing):
    body = {"input": "Tell me", "max_output_tokens": 300, "seed": 3, "tools": [{"type": "function", **FORCED[0]["function"]}], "stream": True,
            "tool_choice": {"type": "function", "name": "weather"}}
    events = events_of(forcing.post("/v1/responses", body))
    item, = events[-1]["response"]["output"]
    assert item["status"] == "completed" and json.loads(item["arguments"])["city"] in ("Paris", "Rome")
    cut, = events_of(forcing.post("/v1/responses", {**body, "max_output_tokens": 5}))[-1]["response"]["output"]
    assert cut["status"] == "incomplete"


def test_a_call_that_is_not_allowed_is_text(mock):
    other = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}
    assert "tool_calls" in whole(mock, CALL, tools=TOOLS + [other], tool_choice=allow("auto", "weather"))["message"]
    choice = whole(mock, CALL, tools=TOOLS + [other], tool_choice=allow("auto", "time"))
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"


@pytest.mark.parametrize("change", [
    {"tool_choice": allow("auto")}, {"tool_choice": allow("sometimes", "time")}, {"tool_choice": allow("auto", "none_such")},
    {"tool_choice": allow("auto", "time"), "tools": None}, {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [5]}}},
    {"tool_choice": "sometimes"}, {"tool_choice": 5}, {"tool_choice": {"type": "function", "function": {"name": "none_such"}}},
    {"tool_choice": {"type": "allowed_tools"}}, {"tool_choice": "required", "tools": None}, {"tool_choice": "required", "num_beams": 2},
    {"tool_choice": "required", "grammar": "root ::= [a-z]"},
])
def test_wrong_choices_are_named(forcing, change):
    answer = force(forcing, change.pop("tool_choice"), **change)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tool_choice"


# ---- the same through /v1/responses ----

RESPONSE_TOOLS = [{"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": False}]


def in_namespace(name, *tools):
    return {"type": "namespace", "name": name, "description": "d", "tools": tools}


def respond(url, text, **more):
    body = {"input": text, "tools": RESPONSE_TOOLS, **more}
    answer = requests.post(url.replace("chat/completions", "responses"), json=body, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return answer


def events_of(answer):
    return [json.loads(block.split("data: ", 1)[1]) for block in answer.text.split("\n\n") if block.startswith("event: ")]


def test_a_response_lists_text_and_calls(mock):
    response = respond(mock, "Let me see. " + CALL + " " + CALL).json()
    message, *calls = response["output"]
    assert message["type"] == "message" and message["content"][0]["text"] == "Let me see." and response["tools"] == RESPONSE_TOOLS
    assert [call["type"] for call in calls] == ["function_call"] * 2 and len({call["call_id"] for call in calls}) == 2
    assert all(call["name"] == "weather" and json.loads(call["arguments"]) == {"city": "Paris"} and call["status"] == "completed" for call in calls)
    assert [item["type"] for item in respond(mock, CALL).json()["output"]] == ["function_call"]
    assert [item["type"] for item in respond(mock, "plain").json()["output"]] == ["message"]
    assert respond(mock, CALL, tool_choice="none").json()["output"][0]["content"][0]["text"].strip() == CALL


@pytest.mark.parametrize("text, kinds", [
    ("Let me see. " + CALL + " " + CALL, ["message", "function_call", "function_call"]), (CALL, ["function_call"]), ("plain words", ["message"]),
    (WAYS["ChatGLM3"], ["function_call"]), ("weather is fine", ["message"])])
def test_items_of_a_response_are_streamed(mock, text, kinds):
    events = events_of(respond(mock, text, stream=True))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"] == kinds
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"] and events[-1]["type"] == "response.completed"
    for index, item in enumerate(done):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added" and own[-1]["type"] == "response.output_item.done"
        assert own[0]["item"]["id"] == item["id"] and all(event["item_id"] == item["id"] for event in own if "item_id" in event)
        pieces = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        if item["type"] == "message":
            assert pieces == item["content"][0]["text"]
        else:
            closing, = [event for event in own if event["type"] == "response.function_call_arguments.done"]
            assert pieces == item["arguments"] == closing["arguments"] and own[0]["item"]["arguments"] == ""
            assert sum(event["type"] == "response.function_call_arguments.delta" for event in own) > 1


OTHER_TOOLS = [{"type": "web_search", "external_web_access": False}, {"type": "image_generation"}, {"type": "local_shell"},
               {"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}}]


def test_tools_other_than_functions_are_left_out(mock):
    """Agents send them in each request. The reply has them as they were sent."""
    tools = OTHER_TOOLS + RESPONSE_TOOLS
    response = respond(mock, CALL, tools=tools).json()
    assert [item["type"] for item in response["output"]] == ["function_call"] and response["tools"] == tools
    assert respond(mock, "plain", tools=OTHER_TOOLS).json()["output"][0]["content"][0]["text"].strip() == "plain"


@pytest.mark.parametrize("tool_choice, words", [
    ({"type": "web_search"}, 'names a tool of type "web_search"'), ({"type": "custom", "name": "apply_patch"}, 'names apply_patch, a tool of type "custom"'),
    ({"type": "function", "name": "apply_patch"}, "names apply_patch, which is not in tools"),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "image_generation"}]}, 'a tool of type "image_generation"')], ids=str)
def test_a_choice_of_a_tool_that_is_left_out_is_refused(mock, tool_choice, words):
    body = {"input": "x", "tools": OTHER_TOOLS + RESPONSE_TOOLS, "tool_choice": tool_choice}
    answer = requests.post(mock.replace("chat/completions", "responses"), json=body, timeout=PATIENCE)
    assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize("namespace, flat", [("crm", "crm__weather"), ("mcp__a__", "mcp__a__weather")])
def test_a_function_in_a_namespace_is_called_by_both_names(mock, namespace, flat):
    tools = [in_namespace("other", *RESPONSE_TOOLS, *OTHER_TOOLS), *RESPONSE_TOOLS, in_namespace(namespace, *RESPONSE_TOOLS)]
    call, = respond(mock, CALL.replace("weather", flat), tools=tools).json()["output"]
    assert (call["namespace"], call["name"]) == (namespace, "weather")
    events = events_of(respond(mock, CALL.replace("weather", flat), tools=tools, stream=True))
    items = [event["item"] for event in events if "item" in event] + events[-1]["response"]["output"]
    assert [(item["namespace"], item["name"]) for item in items] == [(namespace, "weather")] * 3
    done, = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert done["name"] == "weather"
    call, = respond(mock, CALL, tools=tools).json()["output"]
    assert call["name"] == "weather" and "namespace" not in call
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "namespace": namespace, "name": "weather"}]}
    assert respond(mock, CALL, tools=tools, tool_choice=choice).json()["output"][0]["type"] == "message"


def test_a_call_of_a_response_may_be_cut_off(mock):
    events = events_of(respond(mock, "x " + WAYS["Qwen"].replace("%s", json.dumps(ARGUMENTS)), stream=True, max_output_tokens=9))
    assert events[-1]["type"] == "response.incomplete"
    message, call = events[-1]["response"]["output"]
    assert message["status"] == "completed" and call["status"] == "incomplete" and json.dumps(ARGUMENTS).startswith(call["arguments"].strip())


@pytest.mark.parametrize("change, param", [
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "tools": [5]}}, "tool_choice"), ({"store": "x"}, "store"),
    ({"tools": {}}, "tools"), ({"tools": [{"name": "x"}]}, "tools[0]"), ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [{"type": "namespace", "name": "a"}]}, "tools[0]"), ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0]"),
    ({"tools": [in_namespace("a" * 129, *RESPONSE_TOOLS)]}, "tools[0]"),
    ({"tools": [in_namespace("a", {"type": "function"})]}, "tools[0].tools[0]"), ({"tools": [in_namespace("a", 5)]}, "tools[0].tools[0]"),
    ({"tools": [in_namespace("a", *RESPONSE_TOOLS), in_namespace("a__", *RESPONSE_TOOLS)]}, "tools[1].tools[0]"),
    ({"tools": [in_namespace("a", *RESPONSE_TOOLS), {"type": "function", "name": "a__weather"}]}, "tools[1]"),
    ({"input": [{"type": "function_call", "call_id": "x", "name": "x", "arguments": "{}", "namespace": 5}]}, "input[0]"),
    ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}, {"type": "web_search"}]}}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"), ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice"), ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"include": "x"}, "include"), ({"include": [5]}, "include"), ({"top_logprobs": 21}, "top_logprobs"), ({"top_logprobs": "x"}, "top_logprobs"),
    ({"text": 5}, "text"), ({"text": {"format": {"type": "x"}}}, "text.format"), ({"truncation": "auto"}, "truncation"),
    ({"metadata": []}, "metadata"), ({"stream": "yes"}, "stream"), ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"), ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0]"),
    ({"input": [{"type": "function_call_output", "call_id": "x", "output": 5}]}, "input[0].output"), ({"input": [{"type": "item_reference"}]}, "input[0]"),
    ({"background": "x"}, "background"), ({"input": [{"role": "user"}]}, "input[0].content"),
])
def test_wrong_fields_of_a_response_are_named(mock, change, param):
    body = {"input": "x", "tools": RESPONSE_TOOLS, **change}
    answer = requests.post(mock.replace("chat/completions", "responses"), json=body, timeout=PATIENCE)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
