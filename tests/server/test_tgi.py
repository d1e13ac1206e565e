"""Text Generation Inference: its published Python client, unmodified, and the shapes that it does not look at."""
import asyncio
import json
import re
import threading

import pytest
import requests

from conftest import PATIENCE

PROMPT = "Once upon a time"


def complete(server, prompt, **more):
    """What OpenAI's API makes of the same prompt: the text that must come."""
    body = server.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 6, "repetition_penalty": 1, **more}).json()
    return body["choices"][0]["text"]


def ask(server, path, inputs, **parameters):
    return server.post(path, {"inputs": inputs, "parameters": parameters})


def events(response):
    lines = response.text.split("\n\n")
    assert response.headers["content-type"].startswith("text/event-stream") and lines[-1] == ""
    assert all(line.startswith("data:") for line in lines[:-1])
    return [json.loads(line[len("data:"):]) for line in lines[:-1]]


# ---- the published client ----

@pytest.fixture(scope="module")
def tg():
    return pytest.importorskip("text_generation", reason="the text-generation client is not installed")


def test_the_client_generates(tg, compat):
    # It asks for "/", as the service at Hugging Face has it.
    answer = tg.Client(compat.url).generate(PROMPT, max_new_tokens=6, decoder_input_details=True, top_n_tokens=3)
    assert answer.generated_text == complete(compat, PROMPT)
    details = answer.details
    assert details.finish_reason == "length" and details.generated_tokens == 6 and details.seed is None
    assert "".join(t.text for t in details.tokens) == answer.generated_text
    assert [len(top) for top in details.top_tokens] == [3] * 6
    assert all(top[0].id == token.id and top[0].logprob == token.logprob for top, token in zip(details.top_tokens, details.tokens))
    assert "".join(t.text for t in details.prefill if not t.text.startswith("[") and t.text != "sop").strip() == PROMPT


def test_the_client_streams(tg, compat):
    pieces = list(tg.Client(compat.url).generate_stream(PROMPT, max_new_tokens=6))
    text = "".join(p.token.text for p in pieces if not p.token.special)
    assert text == complete(compat, PROMPT) == pieces[-1].generated_text
    assert [p.generated_text for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].details.finish_reason == "length" and pieces[-1].details.generated_tokens == 6


def test_the_asynchronous_client_does_too(tg, compat):
    async def run():
        client = tg.AsyncClient(compat.url)
        whole = await client.generate(PROMPT, max_new_tokens=6)
        return whole.generated_text, [p async for p in client.generate_stream(PROMPT, max_new_tokens=6)]

    whole, pieces = asyncio.run(run())
    assert whole == complete(compat, PROMPT) == "".join(p.token.text for p in pieces if not p.token.special)


def test_the_client_sets_every_parameter(tg, compat):
    answer = tg.Client(compat.url).generate(
        PROMPT, do_sample=True, max_new_tokens=4, best_of=3, repetition_penalty=1.1, frequency_penalty=0.2, return_full_text=True,
        stop_sequences=["zzz"], temperature=1.5, top_k=20, top_p=0.9, truncate=3, typical_p=0.8, decoder_input_details=True,
        top_n_tokens=2)
    assert answer.generated_text.startswith(PROMPT) and len(answer.details.best_of_sequences) == 2
    assert len(answer.details.prefill) == 3


def test_the_client_understands_errors(tg, compat):
    from text_generation.errors import ValidationError
    client = tg.Client(compat.url)
    with pytest.raises(ValidationError) as wrong:
        client.generate(PROMPT, max_new_tokens=6, watermark=True)
    assert "watermark" in str(wrong.value)
    with pytest.raises(ValidationError) as wrong:
        client.generate("word " * 8000, max_new_tokens=6)
    assert "2048" in str(wrong.value)
    with pytest.raises(ValidationError):
        list(client.generate_stream("word " * 8000, max_new_tokens=6))


def test_the_client_chats(tg, compat, golden):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answer = tg.Client(compat.url).chat(messages, max_tokens=40, temperature=1e-6).choices[0]  # it calls every model "tgi"
    assert answer.message.content == compat.chat(messages[0]["content"], temperature=0).json()["choices"][0]["message"]["content"]


def test_a_seed_repeats(tg, compat):
    def text(seed):
        return tg.Client(compat.url).generate("One day", do_sample=True, temperature=2.5, seed=seed, max_new_tokens=12).generated_text

    assert text(5) == text(5) and len({text(seed) for seed in range(5)}) > 1


def test_the_client_constrains_by_a_schema(tg, compat):
    from text_generation.types import Grammar
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"],
              "additionalProperties": False}
    answer = tg.Client(compat.url).generate(PROMPT, max_new_tokens=300, grammar=Grammar(type="json", value=schema))
    assert json.loads(answer.generated_text)["n"] in (1, 2, 3) and len(json.loads(answer.generated_text)) == 1
    streamed = ask(compat, "/generate_stream", PROMPT, max_new_tokens=300, grammar={"type": "json", "value": json.dumps(schema)})
    assert json.loads(events(streamed)[-1]["generated_text"]) == json.loads(answer.generated_text)
    number = Grammar(type="regex", value="\\(0[1-9]\\) [a-c]{3}|\"[^a-z]{2}\"")
    answer = tg.Client(compat.url).generate(PROMPT, max_new_tokens=50, do_sample=True, temperature=3.0, seed=3, grammar=number)
    assert re.fullmatch(number.value, answer.generated_text), answer.generated_text
    for grammar in ({"type": "regex", "value": "(a"}, {"type": "regex"}, {"type": "regex", "value": ""}, {"type": "lark", "value": "a"},
                    {"type": "json"}, 5, {"type": "json", "value": "{"}):
        refused = ask(compat, "/generate", PROMPT, grammar=grammar)
        assert refused.status_code == 422 and refused.json()["error_type"] == "validation", refused.text


def test_a_grammar_may_have_a_zero_byte(compat):
    answer = ask(compat, "/generate", PROMPT, max_new_tokens=20, grammar={"type": "regex", "value": "yes\0no"})
    assert answer.json()["generated_text"] == "yes\0no"


# ---- shapes ----

def test_details_are_shown_on_demand(compat):
    assert ask(compat, "/generate", PROMPT, max_new_tokens=2).json().keys() == {"generated_text"}
    details = ask(compat, "/generate", PROMPT, max_new_tokens=2, details=True).json()["details"]
    assert details.keys() == {"finish_reason", "generated_tokens", "seed", "prefill", "tokens"} and details["prefill"] == []
    assert details["tokens"][0].keys() == {"id", "text", "logprob", "special"}


def test_an_answer_that_ends_by_itself_ends_with_its_token(compat, golden):
    prompt = "The capital of France is"
    answer = ask(compat, "/generate", prompt, max_new_tokens=200, details=True).json()
    tokens = answer["details"]["tokens"]
    assert answer["details"]["finish_reason"] == "eos_token" and tokens[-1]["special"] and tokens[-1]["text"]
    assert answer["details"]["generated_tokens"] == len(tokens)
    assert "".join(t["text"] for t in tokens[:-1]) == answer["generated_text"]
    streamed = events(ask(compat, "/generate_stream", prompt, max_new_tokens=200, details=True))
    assert [e["token"] for e in streamed] == tokens and [e["index"] for e in streamed] == list(range(1, len(tokens) + 1))
    assert streamed[-1]["generated_text"] == answer["generated_text"]
    assert streamed[-1]["details"].keys() == {"finish_reason", "generated_tokens", "seed", "input_length"}


def test_the_stop_sequence_is_a_part_of_the_answer(compat):
    whole = complete(compat, PROMPT)
    stop = whole.split()[1]
    answer = ask(compat, "/generate", PROMPT, max_new_tokens=6, stop=[stop], details=True).json()
    assert answer["generated_text"] == whole[:whole.index(stop) + len(stop)]
    assert answer["details"]["finish_reason"] == "stop_sequence"


def test_characters_of_several_tokens_are_whole(compat):
    answer = ask(compat, "/generate", "Repeat: 小熊😀🐻", max_new_tokens=60, details=True).json()
    pieces = events(ask(compat, "/generate_stream", "Repeat: 小熊😀🐻", max_new_tokens=60))
    assert "".join(p["token"]["text"] for p in pieces if not p["token"]["special"]) == answer["generated_text"]
    assert "\ufffd" not in "".join(p["token"]["text"] for p in pieces)


def test_compat_generate_shows_the_prompt_unless_told(compat):
    whole, = compat.post("/", {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}).json()
    assert whole["generated_text"].startswith(PROMPT)
    streamed = events(compat.post("/", {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}, "stream": True}))
    assert streamed[-1]["generated_text"] == whole["generated_text"]


def test_truncate_keeps_the_end(compat):
    long = ask(compat, "/generate", "A B C D E " + PROMPT, max_new_tokens=2, truncate=4, details=True, decoder_input_details=True).json()
    assert [t["text"] for t in long["details"]["prefill"]][-2:] == [" a", " time"] and len(long["details"]["prefill"]) == 4


def test_info(compat):
    info = compat.get("/info").json()
    assert info["model_id"] == "demo" and info["max_total_tokens"] == 2048 and info["max_input_tokens"] == 2047
    for key in ("max_concurrent_requests", "max_best_of", "max_stop_sequences", "validation_workers", "max_client_batch_size"):
        assert isinstance(info[key], int) and info[key] > 0
    assert info["router"] and info["version"] and info["model_pipeline_tag"] == "text-generation"


def test_the_page_and_health_stay(compat):
    assert "<html" in compat.get("/").text.lower() and compat.get("/health").status_code == 200
    series = [line.rsplit(" ", 1)[0] for line in compat.get("/metrics").text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


@pytest.mark.parametrize("parameters, words", [
    ({"temperature": 0}, "temperature"), ({"temperature": "hot"}, "temperature"), ({"top_p": 0}, "top_p"), ({"top_p": 1.5}, "top_p"),
    ({"typical_p": 2}, "typical_p"), ({"top_k": 0}, "top_k"), ({"max_new_tokens": 0}, "max_new_tokens"),
    ({"max_new_tokens": 1.5}, "max_new_tokens"), ({"repetition_penalty": -1}, "repetition_penalty"), ({"seed": -1}, "seed"),
    ({"seed": 5, "best_of": 2, "do_sample": True}, "seed"), ({"best_of": 2}, "sampling"), ({"stop": "x"}, "stop"),
    ({"stop": ["x"] * 17}, "16"), ({"truncate": 0}, "truncate"), ({"top_n_tokens": 99}, "top_n_tokens"),
    ({"details": "yes"}, "details"), ({"adapter_id": "none"}, "none"), ({"watermark": True}, "watermark"),
])
def test_wrong_parameters_are_named(compat, parameters, words):
    for path in ("/generate", "/generate_stream"):
        response = ask(compat, path, PROMPT, **parameters)
        body = response.json()
        assert response.status_code == 422 and body["error_type"] == "validation" and words in body["error"], body


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"{}", b"{\"inputs\": 5}", b"{\"inputs\": \"\"}", b"{\"inputs\": \"\xff\"}",
                                  b"{\"inputs\": \"a\", \"parameters\": []}", b"{\"inputs\": \"a\", \"stream\": 5}", b"[" * 9999])
def test_broken_bodies_are_refused(compat, body):
    for path in ("/generate", "/generate_stream", "/"):
        response = requests.post(compat.url + path, data=body, headers={"Content-Type": "application/json"}, timeout=PATIENCE)
        assert response.status_code == 422 and response.json()["error_type"] == "validation", response.text


@pytest.mark.parametrize("name", ["tgi", "dummy"])  # text-generation's word, and that of huggingface_hub
def test_a_chat_needs_no_name_of_a_model(compat, server, name):
    body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    assert compat.post("/v1/chat/completions", body).json()["model"] == "demo"
    assert server.post("/v1/chat/completions", body).status_code == 404
    assert compat.post("/v1/chat/completions", {**body, "model": "other"}).status_code == 404


def test_it_is_off_unless_asked_for(server):
    assert ask(server, "/generate", PROMPT).status_code == 404 and server.get("/info").status_code == 404
    assert server.post("/", {"inputs": PROMPT}).status_code == 405


def test_a_full_queue_is_an_overload(start):
    server = start("--api", "tgi", "--max-seqs", 1, "--max-queue", 1)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(
        ask(server, "/generate", PROMPT, max_new_tokens=200, do_sample=True, temperature=8.0))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused and len(refused) < 12
    for answer in refused:
        assert answer.status_code == 429 and answer.json()["error_type"] == "overloaded" and answer.headers["retry-after"]
