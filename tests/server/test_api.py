"""The HTTP API: shapes, streams, settings, and what is said to a wrong request."""
import json
import socket

import pytest
from conftest import DEVICE, PATIENCE


def visible(answer):
    """What a chat shows of a golden answer: without its empty first line and the blanks around."""
    return answer.strip()


def events(response):
    """The JSON objects of a stream; its end must be [DONE]."""
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    lines = [line for line in response.content.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[len("data: "):]) for line in lines[:-1]]


def test_a_chat_answers_as_the_model_was_measured(server, golden):
    for case in golden:
        response = server.post("/v1/chat/completions", {"model": "demo", "messages": case["messages"], "temperature": 0})
        body = response.json()
        assert response.status_code == 200
        assert response.headers["x-request-id"]
        assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-") and body["model"] == "demo"
        choice = body["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": visible(case["answer"]), "refusal": None}
        assert choice["finish_reason"] == "stop" and choice["index"] == 0
        assert body["usage"]["prompt_tokens"] == len(case["prompt_ids"])
        assert body["usage"]["completion_tokens"] == len(case["answer_ids"])
        assert body["usage"]["total_tokens"] == len(case["prompt_ids"]) + len(case["answer_ids"])


def test_a_stream_is_the_same_answer_in_pieces(server, golden):
    for case in golden:
        chunks = events(server.post("/v1/chat/completions", {
            "messages": case["messages"], "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}))
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
        assert text == visible(case["answer"])
        assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "stop"
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == len(case["answer_ids"])
        assert all(c.get("usage") is None for c in chunks[:-1])
        assert len({c["id"] for c in chunks}) == 1


def test_no_piece_of_a_stream_is_half_a_character(server):
    chunks = events(server.chat("讲一个关于小熊的故事。", temperature=0, stream=True))
    pieces = [c["choices"][0]["delta"].get("content", "") for c in chunks]
    assert len(pieces) > 10 and not any("\ufffd" in piece for piece in pieces)


def test_a_completion_continues_text_and_ids(server, golden):
    ids = golden[1]["prompt_ids"]
    by_ids = server.post("/v1/completions", {"prompt": ids, "temperature": 0, "max_tokens": 400}).json()
    assert by_ids["object"] == "text_completion" and by_ids["id"].startswith("cmpl-")
    # The answer continues the prompt, so that its first blank is text.
    assert by_ids["choices"][0]["text"] == " " + golden[1]["answer"]
    text = server.post("/v1/completions", {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 5}).json()
    assert text["choices"][0]["finish_reason"] == "length" and text["usage"]["completion_tokens"] == 5
    echo = server.post("/v1/completions", {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 5, "echo": True}).json()
    assert echo["choices"][0]["text"] == "Once upon a time" + text["choices"][0]["text"]


def test_several_prompts_and_choices_have_their_own_index(server):
    body = server.post("/v1/completions", {"prompt": ["One", "Two", "Three"], "n": 2, "temperature": 0,
                                           "max_tokens": 4}).json()
    assert [c["index"] for c in body["choices"]] == list(range(6))
    texts = [c["text"] for c in body["choices"]]
    assert texts[0] == texts[1] and texts[2] == texts[3] and texts[4] == texts[5]
    lists = server.post("/v1/completions", {"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 2}).json()
    assert len(lists["choices"]) == 2


def test_a_seed_gives_the_same_text_again(server):
    def story(seed):
        return server.chat("Tell me a story about a fox named Mia.", temperature=1.2, seed=seed).json()["choices"][0]

    first = story(7)
    assert first == story(7)
    assert len({story(seed)["message"]["content"] for seed in range(4)}) > 1


@pytest.mark.parametrize("path, body", [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "A story"}], "max_tokens": 30}),
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 30}),
    ("/v1/responses", {"input": "A story", "max_output_tokens": 30}),
    ("/v1/messages", {"model": "demo", "messages": [{"role": "user", "content": "A story"}], "max_tokens": 30})])
def test_the_seed_minus_1_is_a_random_one(server, path, body):
    replies = [server.post(path, {**body, "temperature": 1.5, "seed": -1}).json() for _ in range(3)]
    contents = [json.dumps(reply.get("choices") or [item["content"] for item in reply.get("output", [])] or reply["content"]) for reply in replies]
    assert len(set(contents)) > 1


@pytest.mark.parametrize("name", ["top_p", "typical_p"])
def test_of_no_probability_one_token_is_left(server, name):
    body = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 2, name: 0}
    assert len({server.post("/v1/completions", {**body, "seed": seed}).json()["choices"][0]["text"] for seed in range(4)}) == 1


def test_choices_of_one_request_differ_and_repeat(server):
    def choices():
        body = server.chat("Tell me a story about a bear named Tom.", temperature=1.3, seed=5, n=3).json()
        assert [c["index"] for c in body["choices"]] == [0, 1, 2]
        return [c["message"]["content"] for c in body["choices"]]

    first = choices()
    assert len(set(first)) > 1 and first == choices()


def test_stop_strings_end_the_answer_before_them(server, golden):
    whole = visible(golden[1]["answer"])
    for stop in (["berry cake"], "berry cake", ["zzz", "y cak", "flower"]):
        body = server.post("/v1/chat/completions", {"messages": golden[1]["messages"], "temperature": 0,
                                                    "stop": stop}).json()
        first = min(whole.find(s) for s in ([stop] if isinstance(stop, str) else stop) if s in whole)
        assert body["choices"][0]["message"]["content"] == whole[:first].rstrip()
        assert body["choices"][0]["finish_reason"] == "stop"


def test_logprobs_of_a_chat(server):
    body = server.chat("What is the capital of France?", temperature=0, logprobs=True, top_logprobs=3).json()
    tokens = body["choices"][0]["logprobs"]["content"]
    assert "".join(t["token"] for t in tokens).strip() == "The capital of France is Paris."
    for token in tokens:
        assert -20 < token["logprob"] <= 0
        assert bytes(token["bytes"]).decode() == token["token"]
        assert len(token["top_logprobs"]) == 3
        assert token["top_logprobs"][0]["token"] == token["token"]
        values = [t["logprob"] for t in token["top_logprobs"]]
        assert values == sorted(values, reverse=True) and values[0] == token["logprob"]


def test_logprobs_of_a_completion(server, golden):
    body = server.post("/v1/completions", {"prompt": golden[5]["prompt_ids"], "temperature": 0, "logprobs": 2,
                                           "max_tokens": 6}).json()
    report = body["choices"][0]["logprobs"]
    assert len(report["tokens"]) == len(report["token_logprobs"]) == len(report["top_logprobs"]) == 6
    assert "".join(report["tokens"]) == body["choices"][0]["text"]
    assert all(len(top) <= 3 for top in report["top_logprobs"])
    assert report["text_offset"][0] == 0


def test_a_bias_bans_and_forces(server):
    word = server.post("/tokenize", {"prompt": "Paris", "add_special_tokens": False}).json()["tokens"]
    plain = server.chat("What is the capital of France?", temperature=0).json()["choices"][0]["message"]["content"]
    banned = server.chat("What is the capital of France?", temperature=0,
                         logit_bias={str(t): -100 for t in word}).json()["choices"][0]["message"]["content"]
    assert "Paris" in plain and "Paris" not in banned


def test_ignore_eos_goes_on_to_the_limit(server):
    body = server.chat("What is the capital of France?", temperature=0, ignore_eos=True, max_tokens=50).json()
    assert body["usage"]["completion_tokens"] == 50 and body["choices"][0]["finish_reason"] == "length"


def test_a_repeated_prompt_comes_from_the_cache(server):
    text = "Tell me a story about a cat named Lina. " * 6
    server.chat(text, max_tokens=1)
    body = server.chat(text, max_tokens=1).json()
    cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 32 and cached % 16 == 0 and cached < body["usage"]["prompt_tokens"]


def test_models_are_listed(server):
    body = server.get("/v1/models").json()
    assert body["object"] == "list" and [m["id"] for m in body["data"]] == ["demo"]
    assert server.get("/v1/models/demo").json()["id"] == "demo"
    assert body["data"][0]["capabilities"] == ["completion", "chat", "tools", "reasoning", "embeddings"]
    assert body["data"][0]["device"]["type"] == DEVICE
    assert server.get("/v1/models/other").status_code == 404


def test_tokenize_and_detokenize_are_inverse(server, golden):
    text = "Hello, 世界 😀"
    ids = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()
    assert ids["count"] == len(ids["tokens"])
    assert server.post("/detokenize", {"tokens": ids["tokens"]}).json()["prompt"] == text
    chat = server.post("/tokenize", {"messages": golden[0]["messages"]}).json()
    assert chat["tokens"] == golden[0]["prompt_ids"]


def test_text_becomes_special_tokens_where_the_caller_asks_for_it(server, golden):
    def ask(path, **body):
        return server.post(path, body).json()
    case = next(c for c in golden if len(c["messages"]) == 1)
    text = f"<|user|>\n {case['messages'][0]['content']}<|assistant|>"
    plain = ask("/tokenize", prompt=text)["tokens"]
    special = ask("/tokenize", prompt=text, parse_special=True)["tokens"]
    assert special == case["prompt_ids"] != plain
    assert ask("/tokenize", prompt="[gMASK]sop" + text, parse_special=True)["tokens"] == special
    assert ask("/tokenize", content="<|user|>", parse_special=True)["tokens"] == special[2:3]
    bad = server.post("/tokenize", {"prompt": text, "parse_special": 1})
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "parse_special"
    messages = [{"role": "user", "content": "<|user|>"}]
    assert special[2] not in ask("/tokenize", messages=messages, parse_special=True)["tokens"][3:]
    body = {"prompt": text, "temperature": 0, "max_tokens": 8}
    answer = ask("/v1/completions", **body, parse_special=True)
    assert answer["usage"]["prompt_tokens"] == len(special)
    ids = ask("/v1/completions", **{**body, "prompt": special})
    assert answer["choices"][0]["text"] == ids["choices"][0]["text"]
    assert ask("/v1/completions", **body)["usage"]["prompt_tokens"] == len(plain)


def test_tokenize_as_clients_of_other_servers_ask(server):
    text = "Hello, 世界 😀"
    plain = server.post("/tokenize", {"prompt": text, "add_special_tokens": False, "return_token_strs": True}).json()
    assert len(plain["token_strs"]) == plain["count"] and all(isinstance(t, str) for t in plain["token_strs"])
    special = server.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()["token_strs"]
    assert special[:2] == ["[gMASK]", "sop"] and special[2:] == plain["token_strs"]
    llama = server.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    assert [t["id"] for t in llama] == plain["tokens"]
    raw = b"".join(t["piece"].encode() if isinstance(t["piece"], str) else bytes(t["piece"]) for t in llama)
    assert raw.decode().strip() == text
    assert server.post("/tokenize", {"content": text}).json()["tokens"] == plain["tokens"]
    assert server.post("/tokenize", {"content": text, "add_special": True}).json()["tokens"] == server.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": plain["tokens"]}).json() == {"prompt": text, "content": text}
    info = server.get("/tokenizer_info").json()
    assert info["eos_token"] == "</s>" and info["pad_token"] == "<unk>" and info["vocab_size"] > 4000 and info["model_max_length"] > 0
    for change, param in (({"content": 5}, "content"), ({"content": "a", "add_special": 1}, "add_special"),
                          ({"prompt": "a", "return_token_strs": "yes"}, "return_token_strs"), ({"content": "a", "with_pieces": 2}, "with_pieces")):
        answer = server.post("/tokenize", change)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_metrics_are_prometheus_text(server):
    response = server.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    helped = {line.split()[2] for line in lines if line.startswith("# HELP")}
    typed = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    assert helped == set(typed)
    for line in lines:
        if not line.startswith("#"):
            name = line.split("{")[0].split()[0]
            base = name
            for end in ("_bucket", "_sum", "_count"):
                if name.endswith(end) and typed.get(name[:-len(end)]) == "histogram":
                    base = name[:-len(end)]
            assert base in typed, line
    histograms = [name for name, kind in typed.items() if kind == "histogram"]
    assert len(histograms) >= 3
    for word in ("waiting", "running", "pages_used", "preempt", "prompt_tokens", "generated", "cache", "first_token", "inter_token",
                 "step"):
        assert any(word in name for name in typed), word


def test_health_is_open(server):
    response = server.get("/health")
    assert response.status_code == 200 and response.json()["status"] == "ok"


@pytest.mark.parametrize("change, param, words", [
    ({"temperature": "hot"}, "temperature", "must be a number"),
    ({"temperature": 3}, "temperature", "between 0 and 2"),
    ({"temperature": -1}, "temperature", "between"),
    ({"top_p": 2}, "top_p", "between"),
    ({"n": 0}, "n", "between"),
    ({"user": 5}, "user", "string"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
    ({"typical_p": 2}, "typical_p", "between"),
    ({"n": 1.5}, "n", "integer"),
    ({"n": 1000}, "n", "between"),
    ({"max_tokens": 0}, "max_tokens", "between"),
    ({"stream": "yes"}, "stream", "true or false"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "only"),
    ({"stop": 5}, "stop", "string"),
    ({"stop": ["a"] * 17}, "stop", "16"),
    ({"stop": ""}, "stop", "empty"),
    ({"seed": "x"}, "seed", "integer"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "token id"),
    ({"logit_bias": {"99999": 1}}, "logit_bias", "token id"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "100"),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between"),
    ({"presence_penalty": 3}, "presence_penalty", "between"),
    ({"tools": [{"type": "function"}]}, "tools[0]", "a name"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0]", "function"),
    ({"tools": {"type": "function"}}, "tools", "list"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools[0]", "parameters"),
    ({"tools": [{"type": "function", "function": {"name": "f", "description": 5}}]}, "tools[0]", "description"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools[0]", "strict"),
    ({"messages": [{"role": "user", "content": "a", "name": 5}]}, "messages[0].name", "string"),
    ({"messages": [{"role": "tool", "content": "a", "tool_call_id": 5}]}, "messages[0].tool_call_id", "string"),
    ({"messages": [{"role": "assistant", "content": "a", "reasoning_content": []}]}, "messages[0].reasoning_content", "string"),
    ({"metadata": 5}, "metadata", "object"), ({"store": "x"}, "store", "true or false"), ({"service_tier": 5}, "service_tier", "string"),
    ({"tool_choice": "required"}, "tool_choice", "only allowed with tools"),
    ({"modalities": ["text", "audio"]}, "modalities", "text only"),
    ({"modalities": "text"}, "modalities", "a list"),
    ({"functions": [{"name": "f"}]}, "functions", "tools"),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "object"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}]},
     "messages[0].tool_calls[0]", "arguments"),
    ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
    ({"response_format": "json_object"}, "response_format", "an object"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "an object"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "shema": {}}}}, "response_format", "json_schema.shema"),
    ({"response_format": {"type": "json_object", "shema": {}}}, "response_format", "response_format.shema"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format", "response_format.schema"),
    ({"stream": True, "stream_options": {"include_usag": True}}, "stream_options", "include_usag"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format", "name"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "unevaluatedProperties": False}}}},
     "response_format", "\"unevaluatedProperties\""),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#/x"}}}}, "response_format",
     "leads nowhere"),
    ({"grammar": 5}, "grammar", "a string"),
    ({"grammar": "root ::= [a"}, "grammar", "line 1, column 10"),
    ({"grammar": "root ::= \"a\"", "response_format": {"type": "json_object"}}, "grammar", "combined"),
    ({"messages": []}, "messages", "messages"),
    ({"messages": "hello"}, "messages", "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages", "wizard"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content", "type \"image_url\": models read text only"),
])
def test_a_wrong_field_is_named(server, change, param, words):
    response = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **change})
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["type"] == "invalid_request_error" and words in error["message"], error
    assert (error["param"] or "").startswith(param), error


def test_an_error_quotes_what_was_sent(server):
    for name in ('a"b\\c/d', "é小😀", "a\nb\x01\x7f", "x" * 300):
        answer = server.post("/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "a"}]})
        error = answer.json()["error"]
        shown = "".join(c if c.isprintable() else "?" for c in name)[:128]
        assert answer.status_code == 404 and error["message"].startswith(f'The model "{shown}"'), error
        assert error["param"] == "model" and error["code"] == "model_not_found" and error["type"] == "invalid_request_error"


def test_unknown_fields_and_nulls_are_ignored(server):
    response = server.chat("What is the capital of France?", temperature=0, made_up=5, stop=None, seed=None, user="me")
    assert response.json()["choices"][0]["message"]["content"] == "The capital of France is Paris."


def test_content_may_come_in_parts(server):
    body = server.post("/v1/chat/completions", {"temperature": 0, "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is the capital "}, {"type": "text", "text": "of France?"}]}]})
    assert body.json()["choices"][0]["message"]["content"] == "The capital of France is Paris."


def test_tools_and_their_calls_are_rendered(server):
    """ChatGLM3: a system turn that lists the tools, the call's name as metadata, the result as an observation."""
    tools = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}]
    user = {"role": "user", "content": "hi"}
    call = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Paris\"}"}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "22"}

    def text(**body):
        tokens = server.post("/tokenize", body).json()["tokens"]
        return server.post("/detokenize", {"tokens": tokens}).json()["prompt"]

    plain = text(messages=[user])
    listed = text(messages=[user], tools=tools)
    assert "weather" not in plain and '"name": "weather"' in listed and "following tools" in listed
    assert text(messages=[user], tools=tools, tool_choice="none") == plain
    called = text(messages=[user, call, result], tools=tools)
    assert "tool_call(city='Paris')" in called and "22" in called
    answer = server.post("/v1/chat/completions", {"messages": [user, call, result], "tools": tools, "max_tokens": 4})
    assert answer.status_code == 200, answer.text


def test_an_unknown_model_is_not_found(server):
    response = server.post("/v1/chat/completions", {"model": "gpt-9", "messages": [{"role": "user", "content": "x"}]})
    assert response.status_code == 404 and response.json()["error"]["code"] == "model_not_found"


def test_an_error_of_the_template_names_no_folder(server):
    error = server.post("/v1/chat/completions", {"messages": [{"role": "wizard", "content": "x"}]}).json()["error"]
    assert error["message"].startswith("chat_template.jinja: line ") and "/" not in error["message"]


def test_a_prompt_beyond_the_context_is_told_both_figures(server):
    """One that is a little longer is counted to its end; counting stops soon after the context, whatever follows."""
    def refused(text):
        response = server.post("/v1/completions", {"prompt": text, "max_tokens": 1})
        error = response.json()["error"]
        assert response.status_code == 400 and error["code"] == "context_length_exceeded" and "2048" in error["message"]
        return error["message"]
    n_words = next(n for n in range(1, 3000) if len(server.post("/tokenize", {"prompt": "word " * n}).json()["tokens"]) > 2060)
    n_tokens = server.post("/tokenize", {"prompt": "word " * n_words}).json()["count"]
    assert f"({n_tokens} in the prompt" in refused("word " * n_words)
    for text in "word " * 8000, "a" * 1000000, "\u6f22\u5b57" * 100000, " " * 3000000:
        assert "more than 2048" in refused(text), text[:10]
    assert "more than 2048" in server.chat("word " * 100000).json()["error"]["message"]
    streamed = server.chat("word " * 8000, stream=True)
    assert streamed.status_code == 400  # the status still tells, since nothing was sent


@pytest.mark.parametrize("body, words", [
    (b"{\"messages\": [}", "line 1"),
    (b"{\n\"a\": tru}", "line 2"),
    (b"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"seed\": 18446744073709551615}", "seed must be an integer, found a number beyond 64 bits"),
    (b"{\"temperature\": 1e999}", "numbers from -1.8e308"),
    (b"", ""),
    (b"[]", "object"),
    (b"{\"a\": \"\xff\"}", ""),
    (b"[" * 100000, ""),
    (b"{\"a\":" * 5000, ""),
])
def test_a_broken_body_is_an_error(server, body, words):
    import requests
    response = requests.post(server.url + "/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}, timeout=PATIENCE)
    assert response.status_code == 400 and words in response.json()["error"]["message"]


def reply_to(server, head):
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(head + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("path, status", [
    (b"/he%61lth", 200), (b"/%68ealth?a=%zz", 200), (b"/v1%2Fmodels%2fdemo", 200), (b"/v1/models/%64emo", 200), (b"/he%2561lth", 404), (b"/health%FF", 404),
    (b"/health%00", 400), (b"/health%0a", 400), (b"/health%0D%0AX:", 400), (b"/health%7f", 400), (b"/health%", 400), (b"/health%4", 400), (b"/health%g1", 400),
])
def test_a_path_is_decoded_once(server, path, status):
    reply = reply_to(server, b"GET " + path + b" HTTP/1.1")
    assert reply.startswith(b"HTTP/1.1 %d " % status), reply


def test_each_status_has_a_figure(server):
    figure = 'tutti_http_requests_total{path="other",status="505"}'
    before = server.metrics().get(figure, 0)
    assert reply_to(server, b"GET / HTTP/3.0").startswith(b"HTTP/1.1 505 ")
    server.wait_until(lambda figures: figures.get(figure, 0) == before + 1)


def test_wrong_paths_and_methods(server):
    import requests
    assert server.get("/v1/nothing").status_code == 404
    response = server.get("/v1/chat/completions")
    assert response.status_code == 405 and "POST" in response.headers["allow"]
    assert requests.delete(server.url + "/v1/models", timeout=PATIENCE).status_code == 405
