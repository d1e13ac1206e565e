"""Reasoning apart from the answer, in front of the mock engine, which answers with the question's words, and budgets of
reasoning with the demo model, whose template says that it reasons."""
import concurrent.futures
import json

import pytest
import requests

from conftest import PATIENCE, Server
from test_tools import CALL, TOOLS, chunks, deltas, events_of, joined, mock_model, respond, whole

FORMS = {  # form: an answer that reasons "two words" and answers "three four"
    "think": "<think> two words </think> three four",
    "mistral": "[THINK]two words[/THINK]three four",
    "harmony": "<|channel|>analysis<|message|>two words<|end|><|start|>assistant<|channel|>final<|message|>three four",
    "granite-3.2": "Here is my thought process: two words Here is my response: three four",
    "granite-3.3": "<think>two words</think> <response>three four</response>",
    "seed": "<seed:think>two words</seed:think>three four",
}


def reasoning_of(pieces):
    assert all(piece["delta"].get("reasoning") == piece["delta"].get("reasoning_content") for piece in pieces)
    return "".join(piece["delta"].get("reasoning_content") or "" for piece in pieces)


@pytest.mark.parametrize("form", FORMS)
def test_reasoning_is_apart_from_the_answer(form):
    text = FORMS[form]
    with mock_model(MOCK_REASONING_FORM=form) as url:
        message = whole(url, text)["message"]
        assert message["content"] == "three four" and message["reasoning_content"] == message["reasoning"] == "two words"
        pieces = chunks(url, text)
        assert joined(pieces) == "three four" and reasoning_of(pieces) == "two words"
        first = [bool(piece["delta"].get("reasoning")) for piece in pieces]
        assert first.index(True) < [bool(piece["delta"].get("content")) for piece in pieces].index(True)
        assert sum(first) >= (1 if form in ("mistral", "granite-3.3", "seed", "harmony") else 2)  # as it is written
        plain = whole(url, "five six")["message"]
        assert plain["content"] == "five six" and "reasoning_content" not in plain and "reasoning" not in plain


def test_a_prompt_may_open_the_reasoning():
    with mock_model(MOCK_REASONING_FORM="think", MOCK_REASONING_OPEN="1") as url:
        message = whole(url, "two words </think> three four")["message"]
        assert message["content"] == "three four" and message["reasoning"] == "two words"
        cut = whole(url, "two words </think> three four", max_tokens=2)
        assert cut["message"]["reasoning"] == "two words" and cut["message"]["content"] == "" and cut["finish_reason"] == "length"


def test_a_client_chooses_what_it_gets():
    text = FORMS["think"]
    with mock_model(MOCK_REASONING_FORM="think") as url:
        for change, content in (({"include_reasoning": False}, "three four"), ({"separate_reasoning": False}, text),
                                ({"reasoning_format": "none"}, text)):
            message = whole(url, text, **change)["message"]
            assert message["content"] == content and "reasoning" not in message
            pieces = chunks(url, text, **change)
            assert joined(pieces) == content and reasoning_of(pieces) == ""
        assert whole(url, text, reasoning_format="deepseek")["message"]["reasoning"] == "two words"
        assert whole(url, text, logprobs=True)["logprobs"]["content"]


@pytest.mark.parametrize("log_probabilities", [False, True])
def test_tokens_of_reasoning_are_counted(log_probabilities):
    """Four words: the marks count, too."""
    question = [{"role": "user", "content": FORMS["think"]}]
    with mock_model(MOCK_REASONING_FORM="think") as url:
        def post(path, **body):
            return requests.post(url.replace("chat/completions", path), json={"model": "mock", **body}, timeout=PATIENCE)
        chat = {"messages": question, "logprobs": log_probabilities}
        usage = [post("chat/completions", **chat).json()["usage"]]
        stream = post("chat/completions", **chat, stream=True, stream_options={"include_usage": True}).text
        usage.append(json.loads(stream.split("data: ")[-2])["usage"])
        assert [count["completion_tokens_details"]["reasoning_tokens"] for count in usage] == [4, 4]
        assert post("responses", input=FORMS["think"]).json()["usage"]["output_tokens_details"]["reasoning_tokens"] == 4
        message = post("messages", messages=question, max_tokens=1100, thinking={"type": "enabled", "budget_tokens": 1024}).json()
        assert message["usage"]["output_tokens_details"]["thinking_tokens"] == 4, message


def test_a_call_follows_reasoning():
    text = "<think>I call " + CALL + "</think>" + CALL
    with mock_model(MOCK_REASONING_FORM="think") as url:
        message = whole(url, text)["message"]
        assert message["reasoning"] == "I call " + CALL and len(message["tool_calls"]) == 1 and message["content"] is None
        pieces = chunks(url, text)
        assert reasoning_of(pieces) == "I call " + CALL and {call["index"] for call in deltas(pieces)} == {0}
        harmony = ("<|channel|>analysis<|message|>I see.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
                   '<|constrain|>json<|message|>{"city": "Paris"}')
    with mock_model(MOCK_REASONING_FORM="harmony", MOCK_TOOL_FORM="harmony") as url:
        message = whole(url, harmony)["message"]
        assert message["reasoning"] == "I see." and json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}


def test_a_call_ends_reasoning_that_is_not_closed():
    text = "<think> I should look. " + CALL
    with mock_model(MOCK_REASONING_FORM="think", MOCK_TOOL_FORM="hermes") as url:
        choice = whole(url, text)
        assert choice["message"]["reasoning"].strip() == "I should look." and choice["finish_reason"] == "tool_calls"
        assert len(choice["message"]["tool_calls"]) == 1 and choice["message"]["content"] is None
        pieces = chunks(url, text)
        assert len({delta["index"] for delta in deltas(pieces)}) == 1 and pieces[-1]["finish_reason"] == "tool_calls" and joined(pieces) == ""
        assert [item["type"] for item in respond(url, text).json()["output"]] == ["reasoning", "function_call"]
        assert [event["item"]["type"] for event in events_of(respond(url, text, stream=True)) if event["type"] == "response.output_item.done"] == [
            "reasoning", "function_call"]
        for no_call in (text.replace("weather", "zork"), text.replace("}}", "}")):
            message = whole(url, no_call)["message"]
            assert "tool_calls" not in message and message["reasoning"].endswith("</tool_call>")


@pytest.mark.parametrize("form, begin", [("functionary-v3.2", "all\n"), ("functionary-v2", "all\n<|content|> ")])
def test_the_recipient_of_a_text_is_no_part_of_it(form, begin):
    call = {"functionary-v3.2": ">>>weather\n{}", "functionary-v2": "\n<|from|>assistant\n<|recipient|>weather\n<|content|>{}"}[form]
    with mock_model(MOCK_REASONING_FORM=form, MOCK_TOOL_FORM=form) as url:
        for tools in (None, TOOLS):
            message = whole(url, begin + "Hello all of you", tools=tools)["message"]
            assert message["content"] == "Hello all of you" and "reasoning" not in message
            assert joined(chunks(url, begin + "Hello all of you", tools=tools)) == "Hello all of you"
        message = whole(url, begin + "Let me see." + call)["message"]
        assert message["content"] == "Let me see." and len(message["tool_calls"]) == 1
        pieces = chunks(url, begin + "Let me see." + call)
        assert joined(pieces) == "Let me see." and len({delta["index"] for delta in deltas(pieces)}) == 1
        assert whole(url, "Hello all")["message"]["content"] == "Hello all"


def test_reasoning_is_an_item_of_a_response():
    text = "<think> two words </think> " + CALL
    with mock_model(MOCK_REASONING_FORM="think") as url:
        reasoning, call = respond(url, text).json()["output"]
        assert reasoning["type"] == "reasoning" and reasoning["content"] == [{"type": "reasoning_text", "text": "two words"}]
        assert call["type"] == "function_call" and reasoning["summary"] == []
        for words, kinds in ((text, ["reasoning", "function_call"]), (FORMS["think"], ["reasoning", "message"]),
                             ("<think> two words </think> a " + CALL, ["reasoning", "message", "function_call"])):
            events = events_of(respond(url, words, stream=True))
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            assert [item["type"] for item in done] == kinds and done == events[-1]["response"]["output"]
            assert "".join(event["delta"] for event in events if event["type"] == "response.reasoning_text.delta") == "two words"
            assert [event["output_index"] for event in events if event["type"] == "response.output_item.added"] == list(range(len(kinds)))


CHANNELS = ("<|channel|>analysis<|message|>first thought<|end|><|start|>assistant<|channel|>commentary<|message|>let me see<|end|>"
            "<|start|>assistant<|channel|>analysis<|message|>second thought<|end|><|start|>assistant<|channel|>")
HARMONY_CALL = 'commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
RESUMED = {  # the end of an answer: what follows the first reasoning, text and reasoning
    "final<|message|>the answer": [("message", "the answer")],
    HARMONY_CALL: [("function_call", '{"city": "Paris"}')],
    HARMONY_CALL + "<|start|>assistant<|channel|>analysis<|message|>third thought": [
        ("function_call", '{"city": "Paris"}'), ("reasoning", "third thought")],
    "commentary<|message|>I go on <|end|><|start|>assistant<|channel|>analysis<|message|>third thought<|end|>"
    "<|start|>assistant<|channel|>" + HARMONY_CALL: [("message", "I go on"), ("reasoning", "third thought"), ("function_call", '{"city": "Paris"}')],
}
DELTAS = {"reasoning": "response.reasoning_text.delta", "message": "response.output_text.delta", "function_call": "response.function_call_arguments.delta"}


def text_of(item):
    return item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]


@pytest.mark.parametrize("end", RESUMED)
def test_reasoning_that_is_resumed_is_a_further_item(end):
    with mock_model(MOCK_REASONING_FORM="harmony", MOCK_TOOL_FORM="harmony") as url:
        expected = [("reasoning", "first thought"), ("message", "let me see"), ("reasoning", "second thought"), *RESUMED[end]]
        output = respond(url, CHANNELS + end).json()["output"]
        assert [(item["type"], text_of(item).strip()) for item in output] == expected
        assert len({item["id"] for item in output}) == len(output) and all(item["status"] == "completed" for item in output)
        events = events_of(respond(url, CHANNELS + end, stream=True))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        streamed = events[-1]["response"]["output"]
        assert [(item["type"], text_of(item).strip()) for item in streamed] == expected
        for index, item in enumerate(streamed):
            own = [event for event in events if event.get("output_index") == index]
            assert own[0]["type"] == "response.output_item.added" and own[0]["item"]["id"] == item["id"]
            assert own[-1]["type"] == "response.output_item.done" and own[-1]["item"] == item
            assert {event["item_id"] for event in own[1:-1]} == {item["id"]}
            assert "".join(event["delta"] for event in own if event["type"] == DELTAS[item["type"]]) == text_of(item)
        indices = [event["output_index"] for event in events if "output_index" in event]
        assert indices == sorted(indices) and set(indices) == set(range(len(expected)))
        # The other APIs: one text of each kind, or blocks.
        message = whole(url, CHANNELS + end)["message"]
        assert message["reasoning"].startswith("first thoughtsecond thought") and (message["content"] or "").startswith("let me see")
        body = {"model": "mock", "max_tokens": 1100, "messages": [{"role": "user", "content": CHANNELS + end}], "thinking": {"type": "enabled", "budget_tokens": 1024},
                "tools": [{"name": "weather", "input_schema": {"type": "object"}}]}
        reply = requests.post(url.replace("chat/completions", "messages"), json=body, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        blocks = reply.json()["content"]
        kinds = {"reasoning": "thinking", "message": "text", "function_call": "tool_use"}
        assert [block["type"] for block in blocks] == [kinds[kind] for kind, _ in expected]
        assert blocks[0]["thinking"].strip() == "first thought" and blocks[1]["text"].strip() == "let me see"


def test_the_published_client_reads_reasoning():
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    with mock_model(MOCK_REASONING_FORM="think") as url:
        client = openai.OpenAI(base_url=url.removesuffix("/chat/completions"), api_key="none", max_retries=0)
        question = [{"role": "user", "content": FORMS["think"]}]
        message = client.chat.completions.create(model="mock", messages=question).choices[0].message
        assert message.content == "three four" and message.reasoning_content == "two words"
        stream = list(client.chat.completions.create(model="mock", messages=question, stream=True))
        assert "".join(getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in stream) == "two words"
        response = client.responses.create(model="mock", input=FORMS["think"])
        assert response.output[0].content[0].text == "two words" and response.output_text == "three four"
        with client.responses.stream(model="mock", input=FORMS["think"]) as events:
            kinds = [event.type for event in events]
        assert "response.reasoning_text.delta" in kinds and kinds[-1] == "response.completed"


@pytest.mark.parametrize("change, param", [({"thinking_budget": -2}, "thinking_budget"), ({"thinking_budget": "x"}, "thinking_budget"),
                                           ({"thinking_token_budget": 1.5}, "thinking_token_budget"), ({"reasoning_format": "x"}, "reasoning_format"),
                                           ({"include_reasoning": 1}, "include_reasoning"), ({"separate_reasoning": 1}, "separate_reasoning"),
                                           ({"enable_thinking": 1}, "enable_thinking"), ({"thinking_budget": 4, "num_beams": 2}, "thinking_budget")])
def test_wrong_fields_of_reasoning_are_named(change, param):
    with mock_model() as url:
        answer = requests.post(url, json={"messages": [{"role": "user", "content": "x"}], **change}, timeout=PATIENCE)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


# ---- the demo model, with a template that lets it think ----

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": True}}


@pytest.fixture(scope="module")
def unmet_stop(server):
    """A string that holds back all of the answer's end, from the mark on, and does not end it."""
    raw = server.post("/v1/chat/completions", {**QUESTION, "reasoning_format": "none"}).json()["choices"][0]["message"]["content"]
    return raw[raw.index("</think>"):-len("Paris.")] + "Rome"


def test_tokens_that_wait_for_a_stop_string_are_counted_by_their_own_text(server, unmet_stop):
    def counts(path, **body):
        usage = server.post(path, body).json()["usage"]
        details = usage.get("completion_tokens_details") or usage["output_tokens_details"]
        return usage.get("completion_tokens") or usage["output_tokens"], details.get("reasoning_tokens") or details["thinking_tokens"]

    total, n = counts("/v1/chat/completions", **QUESTION)
    assert 0 < n < total
    assert counts("/v1/chat/completions", **QUESTION, stop=[unmet_stop]) == (total, n)
    assert counts("/v1/messages", **QUESTION, model="demo", max_tokens=200, stop_sequences=[unmet_stop]) == (total, n)
    stream = server.post("/v1/chat/completions", {**QUESTION, "stop": [unmet_stop], "stream": True, "stream_options": {"include_usage": True}}).text
    assert json.loads(stream.split("data: ")[-2])["usage"]["completion_tokens_details"]["reasoning_tokens"] == n


@pytest.mark.parametrize("is_held", [False, True])
def test_the_log_probabilities_of_a_response_are_those_of_its_text(server, unmet_stop, is_held):
    body = {"input": QUESTION["messages"][0]["content"], **QUESTION, "include": ["message.output_text.logprobs"], "stop": [unmet_stop] if is_held else None}
    del body["messages"]
    kinds = ["reasoning", "message"]
    output = server.post("/v1/responses", body).json()["output"]
    assert [item["type"] for item in output] == kinds

    def text(logprobs):
        return "".join(entry["token"] for entry in logprobs).strip()

    part = output[1]["content"][0]
    assert text(part["logprobs"]) == part["text"] == "The capital of France is Paris."
    events = events_of(server.post("/v1/responses", {**body, "stream": True}))
    streamed = [entry for event in events if event["type"] == "response.output_text.delta" for entry in event["logprobs"]]
    done = next(event for event in events if event["type"] == "response.output_text.done")
    assert streamed == part["logprobs"] == events[-1]["response"]["output"][1]["content"][0]["logprobs"]
    assert done["logprobs"] == []  # those of the last event are enough


# ---- a model whose template has channels: it never ends its reasoning by itself ----

TEMPLATE = ("{% for m in messages %}{% if m.thinking is defined %}({{ m.thinking }}){% endif %}{{ m.content or '' }}{% endfor %}"
            "{% if enable_thinking is defined and not enable_thinking %} off{% endif %}{% if false %}<|channel|><|message|>{% endif %}")
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["Paris", "Rome"]}}}


@pytest.fixture(scope="module")
def reasoning(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reasoning")
    (folder / "chat.jinja").write_text(TEMPLATE)
    server = Server("--chat-format", folder / "chat.jinja", log=folder / "log")
    yield server
    assert server.stop() == 0


def ask(server, text="Tell me a story", **more):
    reply = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 90, "temperature": 1, "seed": 4,
                                                 "reasoning_format": "none", **more})
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


def test_reasoning_has_a_budget(reasoning):
    free = ask(reasoning, ignore_eos=True)
    assert FINAL not in free
    lengths = []
    for budget in 0, 1, 7, 20:
        text = ask(reasoning, thinking_budget=budget, ignore_eos=True)
        before, after = text.split(FINAL)
        assert free.startswith(before.rstrip("\ufffd ")) and after
        lengths.append(len(before.strip()))
    assert lengths[0] == 0 and lengths == sorted(set(lengths))
    assert ask(reasoning, thinking_budget=-1, ignore_eos=True) == free


@pytest.mark.parametrize("field", ["thinking_budget", "thinking_token_budget", "reasoning_budget", "thinking_budget_tokens"])
def test_a_budget_that_cannot_be_is_named_as_it_was_sent(reasoning, field):
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}
    reply = reasoning.chat("Hello", max_tokens=5, tools=[tool], **{field: 5})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == field, reply.text


def test_a_budget_is_the_same_for_one_request_and_for_many(reasoning):
    by_budget = {budget: ask(reasoning, thinking_budget=budget, n=1) for budget in (3, 8, 13)}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda budget: (budget, ask(reasoning, thinking_budget=budget)), [3, 8, 13] * 4))
    assert all(by_budget[budget] == text for budget, text in together)


def test_a_grammar_applies_after_the_reasoning(reasoning):
    text = ask(reasoning, thinking_budget=6, response_format=SCHEMA)
    before, after = text.split(FINAL)
    assert before and json.loads(after) in ("Paris", "Rome")
    assert ask(reasoning, thinking_budget=0, response_format=SCHEMA).strip().removeprefix(FINAL) in ('"Paris"', '"Rome"')
    call = reasoning.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 200, "thinking_budget": 0, "seed": 4, "tools": [{
            "type": "function", "function": {"name": "f", "parameters": {"enum": [{"a": 1}]}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}}, "reasoning_format": "auto"}).json()["choices"][0]["message"]
    assert call["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}


def test_history_and_switches_reach_the_template(reasoning):
    def prompt(messages, **more):
        reply = reasoning.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, **more}).json()
        return reply["usage"]["prompt_tokens"]
    plain = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for name in "reasoning_content", "reasoning":
        assert prompt([plain[0], {**plain[1], name: "one two three"}]) > prompt(plain)
    off = prompt(plain, enable_thinking=False)
    assert off > prompt(plain) == prompt(plain, enable_thinking=True) == prompt(plain, reasoning_effort="high")
    assert off == prompt(plain, reasoning_effort="none") == prompt(plain, reasoning_effort="minimal")
    assert off == prompt(plain, chat_template_kwargs={"enable_thinking": False}) == prompt(plain, chat_template_kwargs={"thinking": False})


def test_the_effort_has_another_name_in_some_templates(tmp_path):
    (tmp_path / "chat.jinja").write_text("{{ thinking_effort }} {{ messages[-1].content }}{% if thinking is false %} off{% endif %}")
    server = Server("--chat-format", tmp_path / "chat.jinja", log=tmp_path / "log")

    def prompt(**more):
        reply = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **more})
        return reply.json()["usage"]["prompt_tokens"]
    try:
        assert prompt(reasoning_effort="high") == prompt(chat_template_kwargs={"thinking_effort": "high"}) > prompt()
        given = {"reasoning_effort": "a long text", "chat_template_kwargs": {"thinking_effort": "high"}}
        assert prompt(**given) == prompt(reasoning_effort="high")
        assert prompt(reasoning_effort="none") == prompt(chat_template_kwargs={"thinking": False})
    finally:
        assert server.stop() == 0


def test_a_mark_of_several_tokens_is_found_in_the_prompt(start, tmp_path):
    """The prompt opens the reasoning with a mark that the vocabulary lacks: the answer begins in it, and it cannot have a budget."""
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}:<seed:think>\n{% endif %}"
                                         "{% if false %}</seed:think>{% endif %}")
    server = start("--chat-format", tmp_path / "chat.jinja")
    message = server.chat("Hello", max_tokens=5, ignore_eos=True).json()["choices"][0]["message"]
    assert message["reasoning"] and not message["content"]
    refused = server.chat("Hello", max_tokens=5, thinking_budget=5)
    assert refused.status_code == 400 and "<seed:think>" in refused.json()["error"]["message"]
