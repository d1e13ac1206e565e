"""The published anthropic client, unmodified: whole answers, streams, tools, thinking, errors, and an agent's loop."""
import json
import typing

import pytest

from conftest import Server
from test_reasoning import FORMS as REASONING
from test_tools import FORMS as CALLS, mock_model

anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed")

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STORY = [{"role": "user", "content": "Tell me a story about a fox named Mia."}]
ANSWER = "The capital of France is Paris."
WEATHER = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
GREEDY = {"extra_body": {"temperature": 0}}


def client_of(url, key="none"):
    return anthropic.Anthropic(base_url=url.removesuffix("/v1/chat/completions"), api_key=key, max_retries=0)


def ask(client, text, model="mock", **more):
    return client.messages.create(**{"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more})


def content_of(message):
    """Blocks as dictionaries, without what differs from request to request."""
    blocks = [block.to_dict() for block in message.content]
    return [{key: value for key, value in block.items() if key != "id"} for block in blocks]


def streamed(client, text, model="mock", **more):
    """The events, and the message that the client puts together from them."""
    arguments = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}
    with client.messages.stream(**arguments) as stream:
        events = list(stream)
        return events, stream.get_final_message()


def check_order(events):
    """The raw events: each block begins, grows and stops before the next one begins."""
    kinds = [event.type for event in events if event.type.startswith(("message_", "content_block_"))]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    open_index, n_blocks = None, 0
    for event in events:
        if event.type == "content_block_start":
            assert open_index is None and event.index == n_blocks
            open_index, n_blocks = event.index, n_blocks + 1
        elif event.type == "content_block_delta":
            assert event.index == open_index
        elif event.type == "content_block_stop":
            assert event.index == open_index
            open_index = None
    assert open_index is None


def both(client, text, **more):
    """The whole message, after checking that the client puts together the same one from a stream."""
    message = ask(client, text, **more)
    events, final = streamed(client, text, **more)
    check_order(events)
    assert content_of(final) == content_of(message)
    assert (final.stop_reason, final.stop_sequence) == (message.stop_reason, message.stop_sequence)
    assert final.usage.output_tokens == message.usage.output_tokens and final.role == "assistant"
    return message


@pytest.fixture(scope="module")
def client(server):
    return client_of(server.url)


def demo(client, function, text, **more):
    return function(client, text, model="demo", extra_body={"temperature": 0, **more.pop("extra_body", {})}, **more)


def test_a_message(client):
    message = demo(client, both, QUESTION[0]["content"])
    assert message.id.startswith("msg_") and message.type == "message" and message.model == "demo"
    assert content_of(message) == [{"type": "text", "text": ANSWER}]
    assert message.stop_reason == "end_turn" and message.stop_sequence is None
    assert message._request_id.startswith("req_")
    cut = demo(client, both, QUESTION[0]["content"], max_tokens=4)
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 4
    full = client.messages.create(model="demo", max_tokens=20000, messages=QUESTION, extra_body={"temperature": 0, "seed": 1})
    assert full.content[0].text == ANSWER  # more than the context holds is no error


def test_sampled_streams_and_whole_answers_are_the_same(client):
    for seed in range(3):
        both(client, STORY[0]["content"], model="demo", max_tokens=200, extra_body={"temperature": 1.5, "top_k": 40, "top_p": 0.9, "seed": seed})


def test_the_context_may_end_before_the_answer(start):
    client = client_of(start("--context", "64").url)
    message = both(client, STORY[0]["content"], model="demo", max_tokens=1000, extra_body={"temperature": 0})
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens + message.usage.output_tokens <= 64


def test_stop_sequences(client):
    message = demo(client, both, QUESTION[0]["content"], stop_sequences=["zz", " is", "Paris"])
    assert (message.content[0].text, message.stop_reason, message.stop_sequence) == ("The capital of France", "stop_sequence", " is")
    message = demo(client, both, QUESTION[0]["content"], stop_sequences=["zz"])
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)


def test_the_raw_events(client):
    events = list(client.messages.create(model="demo", max_tokens=100, messages=QUESTION, stream=True, **GREEDY))
    check_order(events)
    start = events[0].message
    assert start.content == [] and start.stop_reason is None and start.usage.input_tokens > 0
    assert "".join(e.delta.text for e in events if e.type == "content_block_delta") == ANSWER
    assert events[-2].delta.stop_reason == "end_turn" and events[-2].usage.output_tokens > 4


def test_closing_a_stream_early_is_no_harm(client, server):
    stream = client.messages.create(model="demo", max_tokens=400, messages=STORY, stream=True)
    next(iter(stream))
    stream.close()
    server.wait_idle()


def test_system_and_blocks_are_the_chat_s_messages(client, server):
    chat = [{"role": "system", "content": "Be brief.\nBe kind."}, {"role": "user", "content": "Hello\nthere"},
            {"role": "assistant", "content": "Hi!"}, {"role": "user", "content": "Who is\nMia?"}]
    want = server.post("/v1/chat/completions", {"messages": chat, "temperature": 0, "max_tokens": 12}).json()
    text = {"type": "text", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": "Hello"}, {"role": "user", "content": [{**text, "text": "there"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]},
                {"role": "user", "content": [{"type": "text", "text": "Who is"}, {"type": "document", "source": {
                    "type": "text", "media_type": "text/plain", "data": "Mia?"}}]}]
    system = [{**text, "text": "x-anthropic-billing-header: cc_version=2.1; cch=00000;"}, {**text, "text": "Be brief."},
              {**text, "text": "Be kind."}]
    got = client.messages.create(model="demo", max_tokens=12, system=system, messages=messages, **GREEDY)
    usage = got.usage
    assert got.content[0].text == want["choices"][0]["message"]["content"]
    assert usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens == want["usage"]["prompt_tokens"]
    count = client.messages.count_tokens(model="demo", system=system, messages=messages)
    assert count.input_tokens == want["usage"]["prompt_tokens"]


def test_the_cache_is_counted(start):
    client = client_of(start().url)
    text = "A question of more than two pages of sixteen tokens: " + "who is Mia, and where does she live? " * 4
    marked = [{"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}]
    counted = client.messages.count_tokens(model="demo", messages=marked).input_tokens
    first, second = (client.messages.create(model="demo", max_tokens=2, messages=marked).usage for _ in range(2))
    assert first.cache_creation_input_tokens == counted // 16 * 16 and first.cache_read_input_tokens == 0
    assert first.input_tokens == counted % 16 and first.cache_creation.ephemeral_5m_input_tokens == counted // 16 * 16
    assert second.cache_read_input_tokens in (counted // 16 * 16, (counted - 1) // 16 * 16)
    assert second.input_tokens + second.cache_creation_input_tokens + second.cache_read_input_tokens == counted
    plain = client.messages.create(model="demo", max_tokens=2, messages=[{"role": "user", "content": "Other words. " + text}]).usage
    assert plain.input_tokens > counted and plain.cache_creation_input_tokens == 0 == plain.cache_read_input_tokens
    # No answer: the cache is filled.
    warm = [{"role": "user", "content": "Warm. " + text}]
    empty = client.messages.create(model="demo", max_tokens=0, messages=warm)
    assert empty.content == [] and empty.stop_reason == "max_tokens" and empty.usage.output_tokens == 0
    assert client.messages.create(model="demo", max_tokens=2, messages=warm).usage.cache_read_input_tokens >= 32
    off = client_of(start("--no-prefix-cache").url)
    assert off.messages.create(model="demo", max_tokens=2, messages=marked).usage.cache_creation_input_tokens == 0


def test_models(client):
    model, = client.models.list()
    assert model.id == "demo" == model.display_name and model.type == "model" and model.max_input_tokens > 0
    assert client.models.retrieve("demo").created_at == model.created_at and model.created_at.year > 2024


def test_a_schema(client):
    pydantic = pytest.importorskip("pydantic")  # a part of the client
    model = pydantic.create_model("Answer", city=(typing.Literal["Paris", "Rome"], ...), sure=(bool, ...))
    message = client.messages.parse(model="demo", max_tokens=200, messages=QUESTION, output_format=model, **GREEDY)
    assert message.parsed_output.city in ("Paris", "Rome")
    form = {"type": "json_schema", "schema": {"enum": ["Paris", "Rome"]}}
    for more in {"output_config": {"format": form, "effort": "high"}}, {"extra_body": {"output_format": form}}:
        assert json.loads(demo(client, ask, QUESTION[0]["content"], **more).content[0].text) in ("Paris", "Rome")


# ---- errors ----

def test_errors(client):
    with pytest.raises(anthropic.NotFoundError) as not_found:
        client.messages.create(model="other", max_tokens=5, messages=QUESTION)
    assert not_found.value.type == "not_found_error" and not_found.value.body["request_id"] == not_found.value.request_id
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(model="demo", max_tokens=5, messages=QUESTION, extra_body={"temperature": 9})
    assert bad.value.type == "invalid_request_error" and "temperature" in bad.value.api_message
    with pytest.raises(anthropic.BadRequestError) as too_long:
        client.messages.create(model="demo", max_tokens=5, messages=[{"role": "user", "content": "word " * 20000}])
    assert "maximum context length" in too_long.value.api_message
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.list()


def test_keys(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("right-key\n")
    url = start("--api-key-file", keys).url
    for wrong in ({"api_key": "wrong-key"}, {"auth_token": "wrong-key"}, {"api_key": "a", "default_headers": {"x-api-key": "b", "Authorization": ""}}):
        with pytest.raises(anthropic.AuthenticationError) as error:
            anthropic.Anthropic(base_url=url, max_retries=0, **wrong).models.list()
        assert error.value.type == "authentication_error"
    # The client of today sends Authorization, earlier ones x-api-key.
    for right in ({"api_key": "right-key"}, {"auth_token": "right-key"}, {"api_key": "a", "default_headers": {"x-api-key": "right-key"}}):
        assert anthropic.Anthropic(base_url=url, max_retries=0, **right).models.list().data


def test_a_full_queue_and_a_limit_are_told_apart():
    for flag, error, kind in (("--max-queue", anthropic.OverloadedError, "overloaded_error"), ("--max-concurrent", anthropic.RateLimitError, "rate_limit_error")):
        with mock_model(flag, "1") as url:
            stream = ask(client_of(url), "slow=20 words=100", stream=True)
            next(iter(stream))
            with pytest.raises(error) as refused:
                ask(client_of(url), "words=1")
            assert refused.value.type == kind and int(refused.value.response.headers["retry-after"]) >= 1
            stream.close()


def test_errors_of_streams():
    with mock_model() as url:
        client = client_of(url)
        with pytest.raises(anthropic.APIStatusError) as late:
            list(ask(client, "fail=2 a b c", stream=True))
        assert late.value.body["type"] == "error" and late.value.type == "api_error" and late.value.status_code == 200
        with pytest.raises(anthropic.BadRequestError):
            ask(client, "early", stream=True)
        with pytest.raises(anthropic.BadRequestError):
            ask(client, "long")


# ---- tools ----

def check_call(message, text=""):
    *before, call = message.content
    assert "".join(block.text for block in before) == text
    assert call.type == "tool_use" and call.name == "weather" and message.stop_reason == "tool_use"
    return call


@pytest.mark.parametrize("form", ["hermes", "qwen3-coder", "glm-4.5", "llama-3", "mistral", "deepseek", "kimi-k2", "harmony"])
def test_a_call_in_the_model_s_form(form):
    with mock_model(MOCK_TOOL_FORM=form) as url:
        call = check_call(both(client_of(url), CALLS[form], tools=[WEATHER]))
        assert {key: str(value).strip() for key, value in call.input.items()} == {"city": "Paris", "days": "2"}
        plain = both(client_of(url), CALLS[form], tools=[WEATHER], tool_choice={"type": "none"})
        assert plain.stop_reason == "end_turn" and {block.type for block in plain.content} == {"text"}


def test_calls_and_text():
    call = CALLS["hermes"]
    with mock_model(MOCK_TOOL_FORM="hermes") as url:
        client = client_of(url)
        assert check_call(both(client, "Let me see. " + call, tools=[WEATHER]), "Let me see.").id.startswith("toolu_")
        two = both(client, call + " " + call.replace("Paris", "Rome"), tools=[WEATHER])
        assert [block.input["city"] for block in two.content] == ["Paris", "Rome"] and len({block.id for block in two.content}) == 2
        one = both(client, call + " " + call, tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        assert len(one.content) == 1 and one.stop_reason == "tool_use"
        cut = ask(client, "Let me see. " + call, tools=[WEATHER], max_tokens=8)
        assert cut.stop_reason == "max_tokens" and [block.type for block in cut.content] == ["text", "tool_use"] and cut.content[1].input == {}
        events, final = streamed(client, "Let me see. " + call, tools=[WEATHER], max_tokens=8)
        check_order(events)
        assert [block.type for block in final.content] == ["text", "tool_use"] and final.stop_reason == "max_tokens"
        kinds = [event.delta.type for event in streamed(client, call, tools=[WEATHER])[0] if event.type == "content_block_delta"]
        assert len(kinds) >= 3 and set(kinds) == {"input_json_delta"}


@pytest.fixture(scope="module")
def forcing(tmp_path_factory):
    """The demo model behind a short template: its answers are calls because they must be."""
    folder = tmp_path_factory.mktemp("forcing")
    (folder / "chat.jinja").write_text("{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.role[0] }}{{ m.content or '' }}"
                                       "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}")
    server = Server("--chat-format", folder / "chat.jinja", log=folder / "log")
    yield client_of(server.url)
    assert server.stop() == 0


STEP = {"name": "step", "input_schema": {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"], "additionalProperties": False}}
OTHER = {**STEP, "name": "other", "type": "custom", "strict": True, "input_examples": [{"n": 1}], "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize("choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "step"}])
def test_a_call_that_must_be(forcing, choice):
    for seed in range(3):
        message = both(forcing, "Go", model="demo", tools=[STEP, OTHER], tool_choice=choice, extra_body={"seed": seed, "temperature": 1})
        call, = message.content
        assert call.name in (("step",) if "name" in choice else ("step", "other")) and call.input["n"] in (1, 2, 3)
        assert message.stop_reason == "tool_use"


def test_an_agent_s_loop_of_twenty_calls(forcing):
    """Each request has the whole history with the ids of the calls; its beginning is in the prefix cache."""
    messages, ids, cached = [{"role": "user", "content": "Go"}], set(), []
    for turn in range(20):
        reply = forcing.messages.create(model="demo", max_tokens=200, messages=messages, tools=[STEP], cache_control={"type": "ephemeral"},
                                        tool_choice={"type": "any", "disable_parallel_tool_use": True}, extra_body={"seed": turn})
        call, = reply.content
        assert reply.stop_reason == "tool_use" and call.id not in ids
        ids.add(call.id)
        usage = reply.usage
        cached.append(usage.cache_read_input_tokens)
        assert usage.input_tokens + usage.cache_creation_input_tokens <= 48  # only what is new, and the last page
        messages += [{"role": "assistant", "content": reply.content},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": f"ok {turn}", "is_error": turn == 7}]}]
    assert cached == sorted(cached) and cached[-1] >= 160 and len(ids) == 20


def test_the_client_s_tool_runner(forcing):
    """It asks for a thread on the server first, and then sends the history itself."""
    seen = []

    @anthropic.beta_tool
    def step(n: int) -> str:
        """One step."""
        seen.append(n)
        if len(seen) == 3:
            raise ValueError("no")
        return f"ok {n}"

    with mock_model(MOCK_TOOL_FORM="hermes") as url:
        script = "<tool_call> {\"name\": \"step\", \"arguments\": {\"n\": %d}} </tool_call>"

        @anthropic.beta_tool(name="step")
        def scripted(n: int) -> str:
            """The mock model answers with the words of the result."""
            seen.append(n)
            return script % (n + 1) if n < 20 else "All done."

        runner = client_of(url).beta.messages.tool_runner(model="mock", max_tokens=100, tools=[scripted],
                                                          messages=[{"role": "user", "content": script % 1}])
        replies = list(runner)
    assert seen == list(range(1, 21)) and len(replies) == 21
    assert replies[-1].content[0].text == "All done." and replies[-1].stop_reason == "end_turn"
    assert len({block.id for reply in replies[:-1] for block in reply.content}) == 20
    seen.clear()
    runner = forcing.beta.messages.tool_runner(model="demo", max_tokens=200, tools=[step], max_iterations=5, tool_choice={"type": "tool", "name": "step"},
                                               messages=[{"role": "user", "content": "Go"}], extra_body={"seed": 1})
    assert len(list(runner)) == 5 and len(seen) >= 4


# ---- thinking ----

def test_thinking():
    text = REASONING["think"]
    with mock_model(MOCK_REASONING_FORM="think") as url:
        client = client_of(url)
        for thinking in {"type": "enabled", "budget_tokens": 50}, {"type": "adaptive"}, {"type": "adaptive", "display": "summarized"}:
            thought, answer = both(client, text, thinking=thinking).content
            assert thought.type == "thinking" and thought.thinking == "two words" and thought.signature and answer.text == "three four"
        omitted = both(client, text, thinking={"type": "adaptive", "display": "omitted"})
        assert omitted.content[0].thinking == "" and omitted.content[0].signature == thought.signature
        kinds = [event.delta.type for event in streamed(client, text, thinking={"type": "adaptive"})[0] if event.type == "content_block_delta"]
        assert kinds[0] == "thinking_delta" and kinds.index("signature_delta") < kinds.index("text_delta")
        for more in {}, {"thinking": {"type": "disabled"}}:
            assert content_of(both(client, text, **more)) == [{"type": "text", "text": "three four"}]
        with_call = both(client, "<think> I call </think> " + CALLS["hermes"], thinking={"type": "adaptive"}, tools=[WEATHER])
        assert [block.type for block in with_call.content] == ["thinking", "tool_use"] and with_call.stop_reason == "tool_use"
        cut = both(client, text, thinking={"type": "adaptive"}, max_tokens=2)
        assert [block.type for block in cut.content] == ["thinking"] and cut.stop_reason == "max_tokens"


BEGUN = QUESTION + [{"role": "assistant", "content": "The capital of"}]


def test_an_answer_goes_on_with_the_beginning_that_the_request_gives(server):
    client = client_of(server.url)
    message = client.messages.create(model="demo", max_tokens=50, messages=BEGUN, **GREEDY)
    assert message.content[0].text == " France is Paris." and message.stop_reason == "end_turn"
    with client.messages.stream(model="demo", max_tokens=50, messages=BEGUN, **GREEDY) as stream:
        assert "".join(stream.text_stream) == " France is Paris."
    whole = server.post("/v1/chat/completions", {"messages": BEGUN, "continue_final_message": True, "temperature": 0}).json()
    assert whole["choices"][0]["message"]["content"] == " France is Paris."
    # The prompt is that of the question, the mark of the answer, and the beginning.
    count = client.messages.count_tokens(model="demo", messages=BEGUN).input_tokens
    n_begun = server.post("/tokenize", {"prompt": "The capital of", "add_special_tokens": False}).json()["count"]
    n_line = server.post("/tokenize", {"prompt": "\n", "add_special_tokens": False}).json()["count"]
    assert count == client.messages.count_tokens(model="demo", messages=QUESTION).input_tokens + n_line + n_begun


def test_a_history_with_thinking_goes_back(tmp_path, start):
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.role }}:{{ m.reasoning_content or '' }}|{{ m.content or '' }}{% endfor %}"
                                         "{% if enable_thinking %} think{% endif %}{% if false %}<think></think>{% endif %}")
    server = start("--chat-format", tmp_path / "chat.jinja")
    client = client_of(server.url)
    history = [QUESTION[0], {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "It is easy.", "signature": "x"}, {"type": "redacted_thinking", "data": "abc"}, {"type": "text", "text": ANSWER}]}]
    chat = [QUESTION[0], {"role": "assistant", "content": ANSWER, "reasoning_content": "It is easy."}]
    more = [{"role": "user", "content": "And of Italy?"}]
    for thinking, switch in ({"type": "adaptive"}, True), ({"type": "disabled"}, False):
        count = client.messages.count_tokens(model="demo", messages=history + more, thinking=thinking).input_tokens
        want = server.post("/tokenize", {"messages": chat + more, "enable_thinking": switch}).json()["count"]
        assert count == want
    # A template, too, can continue the beginning that the request gives.
    message = client.messages.create(model="demo", max_tokens=5, messages=BEGUN, **GREEDY)
    want = server.post("/v1/chat/completions", {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False,
                                                "max_tokens": 5, "temperature": 0, "enable_thinking": False}).json()
    assert message.content[0].text == want["choices"][0]["message"]["content"]


