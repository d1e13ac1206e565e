"""Fields of other servers' requests: they work, or are refused by name. Clients know a prompt that is too long."""
import json
import re

import pytest
import requests

from conftest import ON_CARD, Server

HI = {"messages": [{"role": "user", "content": "Hello"}]}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
PERSON = r'\{\s*"a":\s*"[xy]"\s*\}'


def content(server, **more):
    reply = server.chat("Hello", temperature=1.5, seed=3, max_tokens=60, **more)
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    return choice["message"]["content"]


# field, value, a pattern of the whole answer
FORMS = [
    ("guided_json", SCHEMA, PERSON), ("guided_json", json.dumps(SCHEMA), PERSON), ("json_schema", SCHEMA, PERSON),
    ("guided_regex", "[ab]{3}-\\d", "[ab]{3}-[0-9]"), ("guided_choice", ["red", "blue \"sky\"\n\\"], "red|blue \"sky\"\n\\\\"),
    ("guided_grammar", 'root ::= "yes" | "no"', "yes|no"), ("grammar", 'root ::= "yes" | "no"', "yes|no"),
    ("structured_outputs", {"json": SCHEMA, "disable_any_whitespace": False}, PERSON),
    ("structured_outputs", {"regex": "[ab]{3}", "choice": None}, "[ab]{3}"),
    ("structured_outputs", {"choice": ["one", "two"]}, "one|two"),
    ("structured_outputs", {"grammar": 'root ::= [0-9]{4}'}, "[0-9]{4}"),
    ("structured_outputs", {}, ".*"), ("guided_json_object", False, ".*"), ("grammar", "", ".*"),
]


@pytest.mark.parametrize("name, value, pattern", FORMS)
def test_an_answer_has_the_form_that_other_servers_fields_ask_for(server, name, value, pattern):
    if pattern == ".*":
        reply = server.chat("Hello", temperature=0, max_tokens=4, **{name: value})
        assert reply.status_code == 200 and reply.json() | {"id": 0, "created": 0} == \
            server.chat("Hello", temperature=0, max_tokens=4).json() | {"id": 0, "created": 0}
        return
    assert re.fullmatch(pattern, content(server, **{name: value}), re.S)
    text = server.post("/v1/completions", {"prompt": "Hello", "temperature": 1.5, "seed": 4, "max_tokens": 60, name: value}).json()
    assert re.fullmatch(pattern, text["choices"][0]["text"], re.S)


@pytest.fixture(scope="module")
def built_in(tmp_path_factory):
    server = Server("--chat-format", "chatglm3", log=tmp_path_factory.mktemp("built-in") / "log")
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("body, param, words", [
    ({"guided_json": 5}, "guided_json", "JSON schema"), ({"guided_json": {"type": "zork"}}, "guided_json", "type must be"),
    ({"guided_regex": "("}, "guided_regex", ""), ({"guided_regex": 5}, "guided_regex", "a string"),
    ({"guided_choice": []}, "guided_choice", "at least one"), ({"guided_choice": ["a", ""]}, "guided_choice", "[1]"),
    ({"guided_grammar": "root ::= [a"}, "guided_grammar", "line 1"),
    ({"structured_outputs": []}, "structured_outputs", "an object"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "structural_tag"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "combined"),
    ({"structured_outputs": {"choice": "b"}}, "structured_outputs.choice", "structured_outputs.choice must be a list"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "has no closing )"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "combined with response_format"),
    ({"n_predict": 0, "max_tokens": None}, "n_predict", "between"), ({"n_predict": 4, "max_tokens": 4}, "n_predict", "combined"),
    ({"n_predict": "x"}, "n_predict", "an integer"),
    ({"continue_final_message": True, "messages": HI["messages"] + [{"role": "assistant", "content": ""}]}, "continue_final_message", "no content"),
    ({"continue_final_message": True, "add_generation_prompt": True, "messages": HI["messages"] + [{"role": "assistant", "content": "a"}]},
     "continue_final_message", "cannot go together"),
    ({"continue_final_message": 1}, "continue_final_message", "true or"),
    ({"documents": [{"text": "a"}]}, "documents", "knows no documents"),
    ({"reasoning_effort": 5}, "reasoning_effort", "a string"),
])
def test_a_form_that_cannot_be_is_refused(server, body, param, words):
    reply = server.post("/v1/chat/completions", {**HI, "max_tokens": 4, **body})
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == param and words in error["message"], error
    assert error["code"] is None


@pytest.mark.parametrize("body, param, words", [
    ({"continue_final_message": True}, "continue_final_message", "must come from the assistant"),
    ({"add_generation_prompt": False}, "add_generation_prompt", "chatglm3"), ({"documents": [{"text": "a"}]}, "documents", "chatglm3"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "wizard"),
])
def test_a_form_that_a_built_in_format_does_not_have_is_refused(built_in, body, param, words):
    reply = built_in.post("/v1/chat/completions", {**HI, "max_tokens": 4, **body})
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == param and words in error["message"], error


# field, a value without effect (None: there is none), one that would change the answer
REFUSED = [
    ("min_tokens", 0, 5), ("allowed_token_ids", [], [1]), ("bad_words", [], ["a"]), ("logits_processors", [], ["x"]),
    ("skip_special_tokens", True, False), ("use_beam_search", False, True), ("truncate_prompt_tokens", None, 5), ("prompt_logprobs", None, 0),
    ("repeat_penalty", 1.0, 1.1), ("tfs_z", 1, 0.5), ("top_n_sigma", -1, 1.5), ("xtc_probability", 0, 0.1), ("dry_multiplier", 0.0, 0.8),
    ("mirostat", 0, 2), ("dynatemp_range", 0, 0.5), ("samplers", [], ["top_k"]), ("options", {}, {"num_ctx": 4}), ("format", "", "json"),
    ("chat_template", None, "{{ 1 }}"), ("return_token_ids", False, True), ("best_of", 1, 2),
    ("mm_processor_kwargs", {}, {"a": 1}), ("echo", False, True), ("add_special_tokens", False, True), ("structural_tag", None, {}),
    ("do_sample", True, False), ("max_new_tokens", None, 5), ("regex", None, "a"), ("watermark", False, True), ("n_probs", 0, 3),
    ("lora", [], [{"id": 0}]), ("grammar_lazy", False, True), ("no_repeat_ngram_size", 0, 3), ("bad_words_ids", [], [[5]]),
    ("guidance_scale", 0, 1.5), ("custom_logit_processor", None, "x"), ("num_return_sequences", 1, 2), ("ban_eos_token", False, True),
    ("adaptive_target", -1, 0.5), ("max_repetition_pattern_size", 0, 8), ("watermarking", False, True), ("return_prompt_text", False, True),
    ("reasoning_budget_tokens", -1, 5), ("reasoning_budget_message", "", "enough"), ("ec_transfer_params", {}, {"a": 1}),
]
HARMLESS = {"guided_decoding_backend": "xgrammar", "cache_prompt": True, "id_slot": 3, "spaces_between_special_tokens": False, "keep_alive": "5m",
            "cache_salt": "x", "request_id": "7", "repeat_last_n": 64, "penalize_nl": False, "xtc_threshold": 0.1, "mirostat_tau": 5.0,
            "dry_base": 1.75, "prediction": {"type": "content", "content": "a"}, "reasoning_effort": "low", "enable_thinking": False, "include_reasoning": False, "made_up_by_a_client": [5]}


@pytest.mark.parametrize("name, nothing, something", REFUSED)
def test_a_field_that_would_change_the_answer_is_refused_by_name(server, name, nothing, something):
    for value in nothing, None:
        assert server.post("/v1/chat/completions", {**HI, "max_tokens": 1, name: value}).status_code == 200, value
    reply = server.post("/v1/chat/completions", {**HI, "max_tokens": 1, name: something})
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == name and name in error["message"], error
    assert "not supported" in error["message"]


def test_harmless_fields_change_nothing(server):
    plain = server.chat("Hello", temperature=0, max_tokens=8).json()
    with_all = server.chat("Hello", temperature=0, max_tokens=8, **HARMLESS).json()
    assert with_all["choices"] == plain["choices"]
    assert server.wait_for_log('the unknown field "made_up_by_a_client"')
    server.chat("Hello", temperature=0, max_tokens=1, made_up_by_a_client=1)
    assert server.log().count("made_up_by_a_client") == 1


def test_tools_that_are_left_out_are_logged_once(server):
    for _ in range(2):
        assert server.post("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}], "max_output_tokens": 1}).status_code == 200
    told = 'a request has a tool of type "web_search", which was ignored: models call functions only'
    assert server.wait_for_log(told).count(told) == 1


@pytest.mark.parametrize("path, body, param, words", [
    ("/v1/chat/completions", {**HI, "maxTokens": 4}, "maxTokens", "did you mean max_tokens?"),
    ("/v1/chat/completions", {**HI, "temprature": 0}, "temprature", "did you mean temperature?"),
    ("/v1/chat/completions", {**HI, "top-p": 0.5}, "top-p", "did you mean top_p?"),
    ("/v1/chat/completions", {**HI, "sotp": ["a"]}, "sotp", "did you mean stop?"),
    ("/v1/completions", {"prompt": "a", "messages": HI["messages"]}, "messages", "not a field of this endpoint"),
    ("/v1/completions", {"prompt": "a", "max_completion_tokens": 5}, "max_completion_tokens", "not a field of this endpoint"),
    ("/v1/embeddings", {"input": "a", "temperature": 1}, "temperature", "not a field of this endpoint"),
    ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not supported"),
    ("/v1/embeddings", {"input": "a", "embed_dtype": "float16"}, "embed_dtype", "not supported"),
    ("/v1/responses", {"input": "a", "guided_json": SCHEMA}, "guided_json", "not a field of this endpoint"),
    ("/v1/responses", {"input": "a", "max_tokens": 5}, "max_tokens", "not a field of this endpoint"),
    ("/v1/responses", {"input": "a", "response_format": {"type": "text"}}, "response_format", "response_format is not a field"),
    ("/v1/responses", {"input": "a", "messages": HI["messages"]}, "messages", "messages is not a field"),
    ("/v1/responses", {"input": "a", "reasoning": "low"}, "reasoning", "an object"),
    ("/v1/completions", {"prompt": "a", "repeat_last_n": 64, "presence_penalty": 1}, "repeat_last_n", "whole answer"),
    ("/v1/completions", {"prompt": "a", "num_beams": 2, "temperature": 0.7}, "temperature", "draws no tokens"),
    ("/v1/completions", {"prompt": "a", "num_beams": 2, "top_k": 5}, "top_k", "draws no tokens"),
    ("/v1/completions", {"prompt": "a", "num_beams": 2, "typical_p": 0}, "typical_p", "draws no tokens"),
    ("/v1/chat/completions", {**HI, "tools": [{"type": "function", "function": {"name": "f", "paramters": {}}}]}, "tools[0].function.paramters", "did you mean parameters?"),
    ("/v1/chat/completions", {"messages": [{**HI["messages"][0], "tool_call": []}]}, "messages[0].tool_call", "did you mean tool_calls?"),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call", "use tool_calls"),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "a", "prefix": True}, *HI["messages"]]}, "messages[0].prefix", "last message"),
    ("/v1/chat/completions", {"messages": [{**HI["messages"][0], "partial": 1}]}, "messages[0].partial", "true or false"),
    ("/v1/responses", {"input": "a", "tools": [{"type": "function", "name": "f", "paramters": {}}]}, "tools[0].paramters", "did you mean parameters?"),
    ("/v1/responses", {"input": "a", "text": {"formt": {"type": "text"}}}, "text", "text.formt is not supported"),
    ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema", "name": "a", "schem": {}}}}, "text.format", "text.format.schem is not"),
    ("/v1/responses", {"input": "a", "reasoning": {"efort": "low"}}, "reasoning", "reasoning.efort is not supported"),
    ("/v1/responses", {"input": "a", "include": ["message.output_text.logprob"]}, "include", "unknown name \"message.output_text.logprob\""),
    ("/v1/responses", {"input": [{"type": 5, "role": "user", "content": "a"}]}, "input[0]", "input[0].type must be a string, found an integer"),
    ("/v1/responses", {"input": [{"type": "reasoning", "content": [{"text": 5}]}]}, "input[0]", "input[0].content[0] must be an object whose text is"),
    ("/v1/responses", {"input": [{"type": "reasoning", "content": [{"text": ""}], "summary": 5}]}, "input[0]", "input[0].summary must be a list"),
    ("/v1/responses", {"input": [{"type": "reasoning", "summary": [{"text": "a\0b"}]}]}, "input[0]", "without the character U+0000"),
    ("/v1/responses", {"input": [{"role": "user", "contnt": "a"}]}, "input[0].contnt", "did you mean content?"),
    ("/v1/responses", {"input": [{"type": "function_call", "call_id": "a", "name": "f", "argument": "{}"}]}, "input[0].argument", "did you mean arguments?"),
    ("/v1/chat/completions", {**HI, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "chat_template_kwargs.messages is not supported: it is a field"),
    ("/v1/messages", {"model": "demo", "max_tokens": 1, **HI, "chat_template_kwargs": {"tools": [{}]}}, None, "chat_template_kwargs.tools is not supported"),
    ("/tokenize", {**HI, "chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", "--chat-format"),
    ("/tokenize", {"prompt": "a", "add_specials": True}, "add_specials", "did you mean add_special?"),
    ("/tokenize", {**HI, "chat_template": "x"}, "chat_template", "--chat-format"),
    ("/tokenize", {**HI, "temperature": 1}, "temperature", "not a field of this endpoint"),
    ("/tokenize", {"prompt": "a", "model": 5}, "model", "a string"),
    ("/tokenize", {"prompt": "a", "content": "b"}, "content", "cannot be combined with prompt"),
    ("/tokenize", {"prompt": "a", "add_special": False}, "add_special", "cannot be combined with prompt"),
    ("/tokenize", {"content": "a", "add_special_tokens": True}, "add_special_tokens", "cannot be combined with content"),
    ("/tokenize", {**HI, "prompt": "a"}, "prompt", "cannot be combined with messages"),
    ("/tokenize", {**HI, "add_special_tokens": True}, "add_special_tokens", "must be false with messages"),
    ("/v1/completions", {"prompt": "a", "prompt_embeds": "AAAA"}, "prompt_embeds", "not supported"),
    ("/v1/responses", {"input": "a", "context_management": [{"type": "compaction"}]}, "context_management", "not supported"),
    ("/v1/responses", {"input": "a", "previous_input_messages": [{}]}, "previous_input_messages", "not supported"),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{"id": 5, "type": "function",
        "function": {"name": "f", "arguments": "{}"}}]}]}, "messages[0].tool_calls[0]", "tool_calls[0].id must be a string"),
    ("/detokenize", {"token": [1]}, "token", "did you mean tokens?"),
    ("/detokenize", {"tokens": [1], "model": 5}, "model", "a string"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 3, "min_tokens": 4, "ignore_eos": True}, "min_tokens", "at least min_tokens"),
    ("/v1/completions", {"prompt": "a", "min_tokens": 17, "ignore_eos": True}, "min_tokens", "at least min_tokens"),
    ("/v1/chat/completions", {**HI, "min_tokens": 4, "ignore_eos": True}, "min_tokens", "at least min_tokens"),
    ("/v1/chat/completions", {**HI, "max_tokens": 9, "min_tokens": 4, "ignore_eos": True, "stop": "x"}, "min_tokens", "stop string"),
    ("/v1/chat/completions", {**HI, "max_tokens": 9, "min_tokens": 4, "ignore_eos": True, "stop_token_ids": [5]}, "min_tokens", "stop string"),
    ("/v1/chat/completions", {**HI, "max_tokens": 9, "min_tokens": 4, "ignore_eos": True, "guided_choice": ["a"]}, "min_tokens", "grammar"),
    ("/v1/chat/completions", {**HI, "max_tokens": 9, "min_tokens": -1, "ignore_eos": True}, "min_tokens", "only the value 0"),
    ("/v1/chat/completions", {**HI, "min_tokens": "4"}, "min_tokens", "an integer"),
    ("/v1/chat/completions", {**HI, "response_format": {"type": "json_object", "schema": json.dumps(SCHEMA)}}, "response_format", "response_format.schema must be an object"),
    ("/v1/chat/completions", {**HI, "response_format": {"type": "json_object", "value": True}}, "response_format", "response_format.value must be an object"),
    ("/v1/chat/completions", {**HI, "response_format": {"type": "json_object", "schema": {}, "value": {}}}, "response_format", "both schema and value"),
])
def test_fields_of_elsewhere_and_misspelled_ones_are_refused(server, path, body, param, words):
    reply = server.post(path, body)
    error = reply.json()["error"]
    assert reply.status_code == 400 and error.get("param") == param and words in error["message"], error


# Endpoints where false would have no effect.
ON_BY_DEFAULT = [("/v1/responses", "include_reasoning"), ("/v1/responses", "separate_reasoning"), ("/v1/responses", "add_generation_prompt"),
                 ("/v1/responses", "skip_special_tokens"), ("/v1/completions", "parallel_tool_calls"), ("/v1/completions", "include_reasoning"),
                 ("/v1/completions", "enable_thinking"), ("/v1/embeddings", "parallel_tool_calls")]


@pytest.mark.parametrize("path, name", ON_BY_DEFAULT)
def test_a_field_that_is_on_by_default_is_refused_elsewhere_also_if_it_is_false(server, path, name):
    prompt = "prompt" if path == "/v1/completions" else "input"
    for value in False, True:
        reply = server.post(path, {prompt: "a", name: value})
        error = reply.json()["error"]
        assert reply.status_code == 400 and error["param"] == name and error["message"] == f"{name} is not a field of this endpoint", error
    assert server.post(path, {prompt: "a", name: None}).status_code == 200


def test_effort_is_refused_where_there_is_no_chat_template(server):
    for value in "none", "low":
        error = server.post("/v1/completions", {"prompt": "a", "reasoning_effort": value}).json()["error"]
        assert error["param"] == "reasoning_effort" and "not a field of this endpoint" in error["message"]


@pytest.fixture(scope="module")
def eight_sequences(tmp_path_factory):
    server = Server("--max-seqs", 8, "--api", "tgi", log=tmp_path_factory.mktemp("eight") / "log")
    yield server
    assert server.stop() == 0


# path, body, the field of the request, words of the message
ENGINE_ERRORS = [
    ("/v1/completions", {"prompt": "a", "num_beams": 16}, "num_beams", "num_beams is 16"),
    ("/v1/completions", {"prompt": "a", "num_beams": 4, "logprobs": 2}, "logprobs", "logprobs cannot be combined with beam search"),
    ("/v1/chat/completions", {**HI, "num_beams": 4, "logprobs": True, "top_logprobs": 2}, "top_logprobs", "top_logprobs cannot be combined with beam search"),
    ("/v1/chat/completions", {**HI, "stop_token_ids": [1] * 300}, "stop_token_ids", "300 stop ids"),
    ("/v1/chat/completions", {**HI, "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "logit_bias has 1025 entries, at most 1024"),
    ("/v1/responses", {"input": "a" * 9000}, "input", "maximum context length"),
    ("/generate", {"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "a{1"}}}, None, "pattern: {m,n}"),
]


@pytest.mark.parametrize("path, body, param, words", ENGINE_ERRORS)
def test_errors_of_the_engine_name_the_field_that_was_sent(eight_sequences, path, body, param, words):
    reply = eight_sequences.post(path, body)
    error = reply.json()["error"] if param else reply.json()
    assert reply.status_code == (400 if param else 422) and error.get("param") == param, error
    assert words in (error["message"] if param else error["error"]), error


def test_null_is_as_good_as_no_field(server):
    for path, body, nulls in (("/tokenize", {"prompt": "Hi"}, {"messages": None, "content": None, "model": None, "add_special_tokens": None}),
                              ("/tokenize", {"content": "Hi"}, {"prompt": None, "messages": None}), ("/tokenize", HI, {"prompt": None, "chat_template": None}),
                              ("/detokenize", {"tokens": [5, 6]}, {"model": None})):
        want, reply = server.post(path, body), server.post(path, {**body, **nulls})
        assert want.status_code == reply.status_code == 200 and reply.json() == want.json()


def test_items_of_an_answer_go_back_as_they_came(server):
    """With the names that clients add to them; unknown names are logged."""
    first = server.post("/v1/responses", {"input": "Hello", "max_output_tokens": 8}).json()["output"]
    more = [{**first[0], "phase": "final", "made_up_in_an_item": 5}, {"role": "user", "content": "Hi"}]
    assert server.post("/v1/responses", {"input": [{"role": "user", "content": "Hello"}, *more], "max_output_tokens": 8}).status_code == 200
    assert server.wait_for_log('the unknown field "input[].made_up_in_an_item"')


@pytest.mark.parametrize("mark", ["prefix", "partial"])
def test_a_marked_last_message_is_continued(server, mark):
    begun = [*HI["messages"], {"role": "assistant", "content": "Once upon"}]
    body = {"temperature": 0, "max_tokens": 8, "messages": begun}
    kept = server.post("/v1/chat/completions", {**body, "continue_final_message": True})
    marked = server.post("/v1/chat/completions", {**body, "messages": [begun[0], {**begun[1], mark: True}]})
    unmarked = server.post("/v1/chat/completions", {**body, "messages": [begun[0], {**begun[1], mark: False}]})
    assert marked.status_code == kept.status_code and marked.json().get("choices") == kept.json().get("choices")
    assert unmarked.json()["usage"]["prompt_tokens"] > marked.json()["usage"]["prompt_tokens"]


def test_names_within_messages(server):
    """What clients send back of answers changes nothing; unknown names are logged."""
    plain = server.chat("Hello", temperature=0, max_tokens=8).json()
    message = {**HI["messages"][0], "id": "1", "refusal": None, "annotations": [], "made_up_in_a_message": 5}
    assert server.post("/v1/chat/completions", {"messages": [message], "temperature": 0, "max_tokens": 8}).json()["choices"] == plain["choices"]
    assert server.wait_for_log('the unknown field "messages[].made_up_in_a_message"')


def test_a_key_that_is_there_twice_is_refused(server):
    reply = requests.post(server.url + "/v1/chat/completions", headers={"Content-Type": "application/json"},
                          data='{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "max_tokens": 2}')
    assert reply.status_code == 400 and "duplicate" in reply.json()["error"]["message"], reply.text


def test_llama_servers_n_predict_and_vllms_stop(server):
    usage = server.chat("Hello", temperature=0, ignore_eos=True, n_predict=7, min_tokens=7).json()["usage"]
    assert usage["completion_tokens"] == 7
    body = {"prompt": "The capital of France is", "temperature": 0, "n_predict": -1, "stop": ["Paris"]}
    plain = server.post("/v1/completions", body).json()["choices"][0]
    kept = server.post("/v1/completions", {**body, "include_stop_str_in_output": True}).json()["choices"][0]
    assert plain["finish_reason"] == kept["finish_reason"]
    assert kept["text"] == plain["text"] + ("Paris" if plain["finish_reason"] == "stop" and kept["text"].endswith("Paris") else "")


OVERFLOW = [("/v1/chat/completions", lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 9}),
            ("/v1/completions", lambda text: {"prompt": text, "max_tokens": 9}), ("/v1/responses", lambda text: {"input": text}),
            ("/v1/embeddings", lambda text: {"input": text})]


@pytest.mark.parametrize("path, body", OVERFLOW)
def test_a_prompt_that_is_too_long_is_known_by_its_words(server, path, body):
    """litellm looks for "this model's maximum context length is", openai gives code and param."""
    reply = server.post(path, body("word " * 8000))
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["code"] == "context_length_exceeded" and error["type"] == "invalid_request_error"
    assert re.match(r"This model's maximum context length is \d+ tokens\. However, you requested ", error["message"]), error


def test_other_limits_are_no_context_overflow(server):
    reply = server.post("/v1/completions", {"prompt": "a", "max_tokens": 20 if ON_CARD else 400, "num_beams": 64})
    if reply.status_code != 200:
        assert reply.json()["error"]["code"] is None
    deep = {"type": "string"}
    for _ in range(50):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    reply = server.chat("Hello", max_tokens=1, tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}])
    assert reply.status_code in (200, 400) and (reply.status_code == 200 or reply.json()["error"]["code"] is None)


ZEROS = [
    ("/v1/chat/completions", {**HI, "model": "demo\0x"}, "model"),
    ("/v1/chat/completions", {"messages": [{"role": "user\0x", "content": "a"}]}, "messages[0].role"),
    ("/v1/chat/completions", {"messages": [HI["messages"][0], {"role": "assistant", "content": "a", "reasoning_content": "b\0c"},
                                           HI["messages"][0]]}, "messages[1].reasoning_content"),
    ("/v1/chat/completions", {**HI, "tools": [{"type": "function", "function": {"name": "f\0g"}}]}, "tools[0].function.name"),
    ("/v1/chat/completions", {**HI, "tool_choice": "none\0x"}, "tool_choice"),
    ("/v1/chat/completions", {**HI, "guided_json": {"const": "a\0b"}}, "guided_json.const"),
    ("/v1/responses", {"input": "a", "truncation": "disabled\0x"}, "truncation"),
    ("/v1/responses", {"input": [{"type": "message\0", "role": "user", "content": "a"}]}, "input[0].type"),
    ("/v1/embeddings", {"input": "a", "pooling": "mean\0x"}, "pooling"),
    ("/v1/messages", {"model": "demo", "max_tokens": 1, "messages": [{"role": "user\0x", "content": "a"}]}, None),
    ("/tokenize", {"prompt": "a", "model": "demo\0x"}, "model"),
    ("/tokenize", {"prompt": "a", "é" * 100: "\0"}, "é" * 31 + "?"),  # an error has room for 63 bytes
]


@pytest.mark.parametrize("path, body, param", ZEROS)
def test_a_zero_byte_in_a_name_is_refused(server, path, body, param):
    """A name is a C string: what follows the zero byte would be lost."""
    reply = server.post(path, body)
    error = reply.json()["error"]
    assert reply.status_code == 400 and "has the character U+0000" in error["message"], reply.text
    assert error.get("param") == param


def test_a_zero_byte_in_a_text_is_a_part_of_it(server):
    """Also in the arguments of a call, and in what a tool returned."""
    body = {"messages": [{"role": "user", "content": "a\0b"}], "temperature": 0, "max_tokens": 2, "stop": ["\0"], "user": "a\0b"}
    plain = server.post("/v1/chat/completions", body)
    shorter = server.post("/v1/chat/completions", {**body, "messages": [{"role": "user", "content": "a"}]})
    assert plain.json()["usage"]["prompt_tokens"] > shorter.json()["usage"]["prompt_tokens"]
    called = server.post("/v1/messages", {"model": "demo", "max_tokens": 2, "messages": [
        {"role": "user", "content": "a\0b"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"x": "a\0b"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "a\0b"}]}]})
    assert called.status_code == 200, called.text
    assert server.post("/tokenize", {"prompt": "a\0b"}).json()["count"] > server.post("/tokenize", {"prompt": "a"}).json()["count"]
