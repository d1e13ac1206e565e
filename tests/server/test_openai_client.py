"""The official openai client, unmodified."""
import json
from typing import Literal

import pytest

openai = pytest.importorskip("openai", reason="the openai client is not installed")

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STORY = [{"role": "user", "content": "Tell me a story about a fox named Mia."}]
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_chat(client):
    answer = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0)
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream(client):
    stream = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert chunks[-1].usage.completion_tokens > 0


def test_closing_a_stream_early_is_no_harm(client, server):
    stream = client.chat.completions.create(model="demo", messages=STORY, stream=True)
    next(iter(stream))
    stream.close()
    server.wait_idle()


def test_logprobs(client):
    answer = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert "".join(t.token for t in content).strip() == ANSWER
    assert all(len(t.top_logprobs) == 2 for t in content)


def test_three_choices(client):
    answer = client.chat.completions.create(model="demo", messages=STORY, temperature=1.2, seed=3, n=3)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len({c.message.content for c in answer.choices}) > 1


def test_stop(client):
    answer = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0, stop=[" is"])
    assert answer.choices[0].message.content == "The capital of France" and answer.choices[0].finish_reason == "stop"


def test_completions(client):
    answer = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=4, temperature=0, logprobs=1)
    assert answer.choices[0].text and answer.usage.completion_tokens == 4


def test_models(client):
    assert [m.id for m in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


def test_errors(client):
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="other", messages=QUESTION)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="demo", messages=QUESTION, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "word " * 8000}])
    assert too_long.value.code == "context_length_exceeded"


def test_a_wrong_key_is_an_authentication_error(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# comment\nright-key\n")
    server = start("--api-key-file", keys)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=server.url + "/v1", api_key="wrong-key", max_retries=0).models.list()
    assert openai.OpenAI(base_url=server.url + "/v1", api_key="right-key", max_retries=0).models.list()


def test_best_of(client):
    settings = {"model": "demo", "prompt": "One day", "max_tokens": 8, "temperature": 2.0, "seed": 3, "logprobs": 0}

    def mean(choice):
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    every = client.completions.create(n=6, **settings)
    best = client.completions.create(n=2, best_of=6, **settings)
    assert [c.index for c in best.choices] == [0, 1]
    assert sorted(map(mean, best.choices)) == sorted(map(mean, every.choices))[-2:]
    assert best.usage.completion_tokens == every.usage.completion_tokens
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(n=3, best_of=2, **settings)
    assert wrong.value.param == "best_of"


def test_a_response(client):
    response = client.responses.create(model="demo", input="What is the capital of France?", temperature=0)
    assert response.output_text == ANSWER and response.status == "completed" and response.id.startswith("resp")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    listed = client.responses.create(model="demo", temperature=0, metadata={"a": "b"}, input=[
        {"role": "user", "content": [{"type": "input_text", "text": "What is the capital "}, {"type": "input_text", "text": "of France?"}]}])
    assert listed.output_text == ANSWER and listed.metadata == {"a": "b"}
    cut = client.responses.create(model="demo", input="What is the capital of France?", temperature=0, max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens" and ANSWER.startswith(cut.output_text)


def test_instructions_are_a_system_message(client):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    chat = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=20)
    response = client.responses.create(model="demo", instructions="Be brief.", input="Hello", temperature=0, max_output_tokens=20)
    assert response.output_text == chat.choices[0].message.content and response.instructions == "Be brief."


def test_a_response_in_events(client):
    events = list(client.responses.create(model="demo", input="What is the capital of France?", temperature=0, stream=True))
    kinds = [e.type for e in events]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    assert kinds[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == ANSWER == events[-1].response.output_text
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert len({e.item_id for e in events if hasattr(e, "item_id")}) == 1
    with client.responses.stream(model="demo", input="What is the capital of France?", temperature=0) as stream:
        assert stream.get_final_response().output_text == ANSWER


@pytest.mark.parametrize("change, param", [
    ({"input": []}, "input"), ({"input": 5}, "input"), ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
    ({"input": [{"type": "function_call"}]}, "input[0]"), ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"tools": [{"name": "f"}]}, "tools[0]"), ({"max_output_tokens": 0}, "max_output_tokens"), ({"temperature": 9}, "temperature"),
    ({"instructions": 5}, "instructions"), ({"background": True}, "background"),
])
def test_wrong_responses_are_named(client, change, param):
    with pytest.raises(openai.BadRequestError) as wrong:
        client.responses.create(**{"model": "demo", "input": "Hello", **change})
    assert wrong.value.param == param


def test_parsed_answers(client):
    pydantic = pytest.importorskip("pydantic")  # a part of the client
    model = pydantic.create_model("Answer", city=(Literal["Paris", "Rome"], ...), sure=(bool, ...))
    answer = client.chat.completions.parse(model="demo", messages=QUESTION, response_format=model, temperature=0, max_tokens=200)
    assert answer.choices[0].message.parsed.city in ("Paris", "Rome")
    response = client.responses.parse(model="demo", input="What is the capital of France?", text_format=model, temperature=0, max_output_tokens=200)
    assert response.output_parsed.city in ("Paris", "Rome")
    with client.chat.completions.stream(model="demo", messages=QUESTION, response_format=model, temperature=0, max_tokens=200) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed


def test_tools(client):
    tool = {"type": "function", "function": {"name": "w", "parameters": {
        "type": "object", "properties": {"c": {"enum": ["P"]}}, "required": ["c"], "additionalProperties": False}}}
    settings = {"model": "demo", "messages": QUESTION, "tools": [tool], "temperature": 0, "max_tokens": 80}
    choice = {"type": "function", "function": {"name": "w"}}
    call, = client.chat.completions.create(tool_choice=choice, **settings).choices[0].message.tool_calls
    assert call.function.name == "w" and call.function.arguments.replace(" ", "").replace("\n", "") == '{"c":"P"}'
    chunks = [c for c in client.chat.completions.create(tool_choice=choice, stream=True, **settings) if c.choices]
    pieces = [t for c in chunks for t in c.choices[0].delta.tool_calls or []]
    assert "".join(t.function.arguments for t in pieces) == call.function.arguments
    assert client.chat.completions.create(tool_choice="none", **settings).choices[0].message.content == ANSWER
    answered = QUESTION + [{"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
                           {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert client.chat.completions.create(model="demo", messages=answered, max_tokens=4).choices[0].finish_reason in ("stop", "length")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(tool_choice={"type": "function", "function": {"name": "x"}}, **settings)
    assert wrong.value.param == "tool_choice"


def test_tools_of_a_response(client):
    tool = {"type": "function", "name": "w", "strict": True, "parameters": {
        "type": "object", "properties": {"c": {"enum": ["P"]}}, "required": ["c"], "additionalProperties": False}}
    settings = {"model": "demo", "input": "What is the capital of France?", "tools": [tool], "temperature": 1, "max_output_tokens": 400,
                "extra_body": {"seed": 1}}
    for choice in ({"type": "function", "name": "w"}, "required"):
        response = client.responses.create(tool_choice=choice, parallel_tool_calls=False, **settings)
        call, = response.output
        assert call.type == "function_call" and call.name == "w" and json.loads(call.arguments) == {"c": "P"}
        with client.responses.stream(tool_choice=choice, parallel_tool_calls=False, **settings) as stream:
            events = list(stream)
            final = stream.get_final_response()
        streamed, = final.output
        assert json.loads(streamed.arguments) == {"c": "P"} and streamed.name == "w"
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert "".join(deltas) == streamed.arguments and len(deltas) == 1  # the demo model's form is Python, with one argument
    assert client.responses.create(tool_choice="none", **{**settings, "temperature": 0}).output_text == ANSWER
    # The next turn has the call and what came of it.
    turn = [{"role": "user", "content": "What is the capital of France?"}, call.model_dump(exclude_none=True),
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    chat = QUESTION + [{"role": "assistant", "content": "", "tool_calls": [
        {"id": call.call_id, "type": "function", "function": {"name": "w", "arguments": call.arguments}}]},
        {"role": "tool", "tool_call_id": call.call_id, "content": "sunny"}]
    response = client.responses.create(model="demo", input=turn, temperature=0, max_output_tokens=12)
    same = client.chat.completions.create(model="demo", messages=chat, temperature=0, max_tokens=12)
    assert response.output_text == same.choices[0].message.content and response.usage.input_tokens == same.usage.prompt_tokens


def test_a_function_in_a_namespace(client):
    """The model knows it by both names; the client gets and sends them apart."""
    function = {"type": "function", "name": "w", "parameters": {"type": "object", "properties": {"c": {"enum": ["P"]}}, "required": ["c"]}}
    settings = {"model": "demo", "tools": [{"type": "namespace", "name": "mcp__a__", "description": "d", "tools": [function]}], "temperature": 0}
    response = client.responses.create(input="Hi", tool_choice="required", parallel_tool_calls=False, max_output_tokens=200, **settings)
    call, = response.output
    assert (call.type, call.namespace, call.name) == ("function_call", "mcp__a__", "w") and json.loads(call.arguments) == {"c": "P"}
    turn = [{"role": "user", "content": "Hi"}, call.model_dump(exclude_none=True),
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [
        {"id": call.call_id, "type": "function", "function": {"name": "mcp__a__w", "arguments": call.arguments}}]},
        {"role": "tool", "tool_call_id": call.call_id, "content": "sunny"}]
    tools = [{"type": "function", "function": {"name": "mcp__a__w", "parameters": function["parameters"]}}]
    response = client.responses.create(input=turn, max_output_tokens=12, **settings)
    same = client.chat.completions.create(model="demo", messages=chat, tools=tools, temperature=0, max_tokens=12)
    assert response.usage.input_tokens == same.usage.prompt_tokens and response.output_text == same.choices[0].message.content


def test_log_probabilities_of_a_response(client):
    settings = {"model": "demo", "input": "What is the capital of France?", "temperature": 0, "include": ["message.output_text.logprobs"]}
    text = client.responses.create(top_logprobs=2, **settings).output[0].content[0]
    chat = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0, logprobs=True, top_logprobs=2)
    want = chat.choices[0].logprobs.content
    assert "".join(entry.token for entry in text.logprobs).strip() == text.text == ANSWER
    assert [(e.token, e.logprob, [t.logprob for t in e.top_logprobs]) for e in text.logprobs] == [
        (e.token, e.logprob, [t.logprob for t in e.top_logprobs]) for e in want]
    events = list(client.responses.create(stream=True, **settings))
    streamed = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in want]
    assert len(events[-1].response.output[0].content[0].logprobs) == len(want)
    done = {event.type: event for event in events if event.type.endswith(".done")}  # which come at the same time as the last event
    assert done["response.output_text.done"].logprobs == done["response.content_part.done"].part.logprobs == []
    assert done["response.output_item.done"].item.content[0].logprobs == []
    assert client.responses.create(model="demo", input="x", max_output_tokens=2).output[0].content[0].logprobs == []
