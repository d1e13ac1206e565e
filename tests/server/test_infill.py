"""Filling a gap in a text: /infill as llama-server has it, and suffix of /v1/completions. The prompts are those that the authors of
models publish (tools/fixtures/infill_fixtures.py)."""
import json
import os
import shutil
import subprocess
import sys

import openai
import pytest

from conftest import BIN, PATIENCE, ROOT, Server

sys.path.insert(0, os.path.join(ROOT, "tests", "cli"))
from widened import N_VOCAB, widen  # noqa: E402

FIXTURES = os.path.join(ROOT, "tests", "fixtures")
with open(os.path.join(FIXTURES, "infill", "cases.json"), encoding="utf-8") as cases:
    FAMILIES = json.load(cases)["families"]


def make_model(folder, name, special=True):
    """A tiny model whose vocabulary has the family's tokens."""
    folder.mkdir()
    family = FAMILIES[name]
    widen(os.path.join(FIXTURES, "llama-tiny-tied"), folder, never=range(256))
    tokens = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
              for text, i in family["tokens"].items()]
    assert max(family["tokens"].values()) < N_VOCAB
    if family["tokenizer"] == "bytes.json":
        with open(os.path.join(FIXTURES, "infill", "bytes.json"), encoding="utf-8") as file:
            tokenizer = json.load(file)
        tokenizer["added_tokens"] += tokens
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8")
    else:
        shutil.copyfile(os.path.join(FIXTURES, "tokenizer", "folders", "llama.model"), folder / "tokenizer.model")
        added = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in tokens}
        (folder / "tokenizer_config.json").write_text(json.dumps({
            "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>",
            "unk_token": "<unk>", "legacy": True, "added_tokens_decoder": added}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: make_model(folder / name, name) for name in FAMILIES}


@pytest.fixture(scope="module")
def coder(models, tmp_path_factory):
    server = Server(models["qwen2.5-coder"], "--type", "f32", log=tmp_path_factory.mktemp("coder") / "log")
    yield server
    server.wait_idle()
    assert server.stop() == 0, server.log()[-4000:]


def scores(server, **body):
    """The log-probabilities of an answer, which tell prompts apart that differ in one token."""
    reply = server.post("/v1/completions", {"max_tokens": 3, "temperature": 0, "logprobs": 5, "ignore_eos": True, **body})
    assert reply.status_code == 200, reply.text
    told = reply.json()
    return [c["logprobs"] for c in told["choices"]], told["usage"]["prompt_tokens"]


def check_family(server, family, cases=None):
    for case in cases or family["cases"]:
        n = len(case["ids"])
        want, n_prompt = scores(server, prompt=case["ids"])
        assert n_prompt == n
        body = {"input_prefix": case["prefix"], "input_suffix": case["suffix"], "temperature": 0, "n_predict": 6, "return_tokens": True,
                "ignore_eos": True}
        if "files" in case:
            body["input_extra"] = [{"filename": name, "text": text} for name, text in case["files"]]
            body.update({"repo_name": case["project"], "filename": case["name"]} if "name" in case else {})
        elif case["suffix"]:
            assert scores(server, prompt=case["prefix"], suffix=case["suffix"]) == (want, n), case
        told = server.post("/infill", body).json()
        assert told["tokens_evaluated"] == n and not told["truncated"], (case, told)
        plain = server.post("/v1/completions", {"prompt": case["ids"], "temperature": 0, "max_tokens": 6, "ignore_eos": True}).json()
        assert told["content"] == plain["choices"][0]["text"] and len(told["tokens"]) == 6
        # The pages of this prompt are in the cache as far as the ids are the same: all but the part of a page.
        again = server.post("/v1/completions", {"prompt": case["ids"] + told["tokens"], "max_tokens": 1}).json()["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] >= n // 16 * 16


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_are_those_of_the_models_authors(name, models, tmp_path):
    server = Server(models[name], "--type", "f32", log=tmp_path / "log")
    assert "infill" in server.get("/v1/models").json()["data"][0]["capabilities"]
    check_family(server, FAMILIES[name])
    assert server.stop() == 0, server.log()[-2000:]


@pytest.mark.parametrize("name", ["qwen2.5-coder", "codestral"])
def test_a_gguf_file_gives_the_same_prompts(name, models, tmp_path):
    subprocess.run([BIN, "convert", models[name], tmp_path / "model.gguf", "--type", "f32"], check=True, capture_output=True,
                   timeout=PATIENCE)
    server = Server(tmp_path / "model.gguf", "--type", "f32", log=tmp_path / "log")
    check_family(server, FAMILIES[name])
    assert server.stop() == 0, server.log()[-2000:]


@pytest.mark.parametrize("name", ["qwen2.5-coder", "deepseek-coder"])
def test_tokens_that_the_uploads_do_not_declare_special_are_found(name, tmp_path):
    server = Server(make_model(tmp_path / "model", name, special=False), "--type", "f32", log=tmp_path / "log")
    family = FAMILIES[name]
    cases = [case for case in family["cases"] if not any(mark in json.dumps(case, ensure_ascii=False) for mark in family["tokens"])]
    assert len(cases) >= 3
    check_family(server, family, cases)
    assert server.stop() == 0, server.log()[-2000:]


def test_the_text_before_the_cursor_continues_the_prefix(coder):
    whole = coder.post("/infill", {"input_prefix": "def add(a, b):\n    ret", "input_suffix": "\n", "temperature": 0, "n_predict": 4}).json()
    parts = coder.post("/infill", {"input_prefix": "def add(a, b):\n", "prompt": "    ret", "input_suffix": "\n", "temperature": 0,
                                   "n_predict": 4}).json()
    assert parts["content"] == whole["content"] and parts["tokens_evaluated"] == whole["tokens_evaluated"]


def test_the_reply_has_llama_servers_fields(coder):
    body = {"input_prefix": "def f():\n", "input_suffix": "\n", "n_predict": 5, "temperature": 0, "ignore_eos": True, "stop": ["\x01"]}
    told = coder.post("/infill", body).json()
    assert set(told) == {"index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated", "generation_settings",
                         "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached", "timings"}
    assert told["stop"] is True and told["stop_type"] == "limit" and told["tokens_predicted"] == 5 and told["tokens"] == []
    assert told["generation_settings"]["n_predict"] == 5 and told["generation_settings"]["stop"] == ["\x01"]
    timings = told["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == told["tokens_evaluated"] and timings["predicted_n"] == 5
    assert timings["prompt_ms"] > 0 and timings["predicted_ms"] > 0 and timings["predicted_per_second"] > 0
    chosen = coder.post("/infill", {**body, "response_fields": ["content", "timings/predicted_n", "generation_settings/top_k", "nothing/at/all"]})
    assert chosen.json() == {"content": told["content"], "timings/predicted_n": 5, "generation_settings/top_k": 0}


def events(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks[-1] == "" and all(block.startswith("data: ") for block in blocks[:-1])
    return [json.loads(block[len("data: "):]) for block in blocks[:-1]]


def test_a_stream_says_the_same(coder):
    body = {"input_prefix": "for i in ", "input_suffix": ":\n    pass\n", "n_predict": 24, "temperature": 0, "ignore_eos": True}
    whole = coder.post("/infill", {**body, "return_tokens": True}).json()
    parts = events(coder.post("/infill", {**body, "stream": True, "timings_per_token": True}))
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part["content"] for part in parts) == whole["content"]
    tokens = sum((part["tokens"] for part in parts), [])
    assert tokens == whole["tokens"][:len(tokens)] and len(tokens) >= 1
    assert all(part["timings"]["predicted_n"] == part["tokens_predicted"] for part in parts)
    assert parts[-1]["tokens_predicted"] == 24 and parts[-1]["stop_type"] == "limit" and parts[-1]["tokens_evaluated"] == whole["tokens_evaluated"]
    last = events(coder.post("/infill", {**body, "stream": True, "response_fields": ["timings/predicted_n"]}))[-1]
    assert last == {"timings/predicted_n": 24}


def test_an_answer_ends_at_the_marks_of_the_family(coder):
    tokens = FAMILIES["qwen2.5-coder"]["tokens"]
    body = {"input_prefix": "a", "input_suffix": "b", "n_predict": 4, "temperature": 0}
    for text, i in tokens.items():
        told = coder.post("/infill", {**body, "logit_bias": [[i, 100]]}).json()
        assert (told["stop_type"], told["content"], told["tokens_predicted"]) == ("eos", "", told["tokens_predicted"]), text
        plain = coder.post("/v1/completions", {"prompt": "a", "suffix": "b", "max_tokens": 4, "logit_bias": {str(i): 100}}).json()
        assert plain["choices"][0]["finish_reason"] == "stop" and plain["choices"][0]["text"] == ""
        going = coder.post("/infill", {**body, "logit_bias": [[i, 100]], "ignore_eos": True}).json()
        assert going["stop_type"] == "limit" and going["tokens_predicted"] == 4


def forced(server, text, **more):
    """/infill whose answer is this text."""
    grammar = "root ::= " + json.dumps(text)
    reply = server.post("/infill", {"input_prefix": "x", "input_suffix": "y", "temperature": 0, "grammar": grammar, "n_predict": 200, **more})
    assert reply.status_code == 200, reply.text
    return events(reply) if more.get("stream") else reply.json()


@pytest.mark.parametrize("text, n_indent, want", [
    ("    a = 1\n    b = 2\nreturn\n", 4, "    a = 1\n    b = 2\n"), ("a\n    b\n  c\n", 4, "a\n    b\n"),
    ("a\n\n    b\n\nc", 4, "a\n\n    b\n\n"), ("a\n\tb\n\t\tc\nd", 1, "a\n\tb\n\t\tc\n"), ("a\nb\nc", 0, "a\nb\nc"),
    ("a\n  b\n   ", 2, "a\n  b\n   "), ("  a b  c", 8, "  a b  c"), ("a\n        b\n        c", 8, "a\n        b\n        c"),
])
def test_a_line_that_is_indented_less_ends_the_answer(coder, text, n_indent, want):
    told = forced(coder, text, n_indent=n_indent)
    assert told["content"] == want and told["has_new_line"] == ("\n" in want)
    assert told["stop_type"] == ("limit" if want != text else told["stop_type"])
    parts = forced(coder, text, n_indent=n_indent, stream=True)
    assert "".join(part["content"] for part in parts) == want
    coder.wait_idle()


def test_after_its_time_an_answer_ends_at_a_line(coder):
    text = "a\n" * 40
    told = forced(coder, text, t_max_predict_ms=1)
    n = len(told["content"])
    assert text.startswith(told["content"]) and 0 < n < len(text) and told["content"].endswith("\n") and told["stop_type"] == "limit"
    assert forced(coder, text, t_max_predict_ms=10 ** 9)["content"] == text
    coder.wait_idle()


def test_files_that_do_not_fit_are_left_out_from_the_first_on(coder):
    limit = coder.get("/v1/models").json()["data"][0]["max_model_len"]
    files = [{"filename": f"{i}.py", "text": f"value_{i} = {i}\n" * 3} for i in range(200)]
    body = {"input_prefix": "a", "input_suffix": "b", "temperature": 0, "n_predict": 4}
    told = coder.post("/infill", {**body, "input_extra": files}).json()
    assert told["truncated"] is True and limit - 60 < told["tokens_evaluated"] <= limit - 4
    n = next(n for n in range(1, 200) if coder.post("/infill", {**body, "n_predict": 0, "input_extra": files[-n:]}).json()["tokens_evaluated"]
             == told["tokens_evaluated"])
    last = coder.post("/infill", {**body, "input_extra": files[-n:]}).json()
    assert last["content"] == told["content"] and last["truncated"] is False
    huge = coder.post("/infill", {**body, "input_extra": [{"text": "x" * 100_000}, files[0]]}).json()
    assert huge["truncated"] is True and huge["tokens_evaluated"] < 60
    none = coder.post("/infill", {**body, "input_extra": [{"text": "x" * 100_000}]}).json()
    assert none["tokens_evaluated"] == coder.post("/infill", body).json()["tokens_evaluated"]


def test_a_prompt_is_computed_without_an_answer(coder):
    files = [{"filename": "a.py", "text": "import os\n" * 12}]
    warm = coder.post("/infill", {"input_prefix": "q", "input_suffix": "r", "input_extra": files, "n_predict": 0, "samplers": [],
                                  "t_max_prompt_ms": 1, "cache_prompt": True, "response_fields": [""]})
    assert warm.status_code == 200 and warm.json() == {}
    told = coder.post("/infill", {"input_prefix": "q", "input_suffix": "r", "input_extra": files, "n_predict": 1}).json()
    assert told["tokens_cached"] >= (told["tokens_evaluated"] - 1) // 16 * 16 > 0 and told["timings"]["cache_n"] == told["tokens_cached"]


def test_the_request_of_llama_vim_is_answered(coder):
    """As version of November 2026 sends it."""
    told = coder.post("/infill", {
        "id_slot": 0, "input_prefix": "import os\n\n", "input_suffix": "\nmain()\n", "input_extra": [{"text": "x = 1\n", "time": 1, "filename": "b.py"}],
        "prompt": "def ma", "n_predict": 16, "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.9, "stream": False,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms", "timings/prompt_per_second",
                            "timings/predicted_n", "timings/predicted_ms", "timings/predicted_per_token_ms", "timings/predicted_per_second",
                            "truncated", "tokens_cached", "generation_settings/temperature"]})
    assert told.status_code == 200, told.text
    assert told.json()["timings/predicted_n"] <= 16 and told.json()["truncated"] is False
    assert told.json()["generation_settings/temperature"] == 1  # a list of samplers without it


def test_samplers_that_are_not_named_are_off(coder):
    body = {"input_prefix": "a", "input_suffix": "b", "n_predict": 2, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.3, "temperature": 0.4,
            "presence_penalty": 0.5}
    for listed, want in (([], (7, 0.5, 0.1, 0.3, 0.4, 0.5)), (["top_k", "temperature"], (7, 1, 0, 0, 0.4, 0)),
                         (["penalties", "typ_p", "min_p", "top_p"], (0, 0.5, 0.1, 0.3, 1, 0.5))):
        s = coder.post("/infill", {**body, "samplers": listed}).json()["generation_settings"]
        got = (s["top_k"], s["top_p"], s["min_p"], s["typical_p"], s["temperature"], s["presence_penalty"])
        assert got == pytest.approx(want), listed


@pytest.mark.parametrize("change, param", [
    ({"input_prefix": 7}, "input_prefix"), ({"input_suffix": ["x"]}, "input_suffix"), ({"prompt": [1, 2]}, "prompt"),
    ({"input_extra": {}}, "input_extra"), ({"input_extra": ["x"]}, "input_extra[0]"), ({"input_extra": [{"text": 5}]}, "input_extra[0]"),
    ({"input_extra": [{"filename": "a"}]}, "input_extra[0]"), ({"input_extra": [{"text": "x"}] * 1025}, "input_extra"),
    ({"n_indent": "4"}, "n_indent"), ({"t_max_predict_ms": 0.5}, "t_max_predict_ms"), ({"samplers": ["top_k", "nothing"]}, "samplers"),
    ({"samplers": "kp"}, "samplers"), ({"response_fields": "content"}, "response_fields"), ({"response_fields": [1]}, "response_fields"),
    ({"response_fields": ["a"] * 65}, "response_fields"), ({"logit_bias": [[1]]}, "logit_bias[0]"), ({"logit_bias": [["x", 1]]}, "logit_bias[0]"),
    ({"logit_bias": [[10 ** 9, 1]]}, "logit_bias"), ({"n_predict": -3}, "n_predict"), ({"n_probs": 3}, "n_probs"), ({"mirostat": 2}, "mirostat"),
    ({"repeat_penalty": 1.1}, "repeat_penalty"), ({"n_cmpl": 2}, "n_cmpl"), ({"echo": True}, "echo"), ({"best_of": 3}, "best_of"), ({"n": 2}, "n"),
    ({"messages": [{}]}, "messages"), ({"input_prefx": "x"}, "input_prefx"), ({"temperature": 3}, "temperature"),
    ({"return_tokens": 1}, "return_tokens"), ({"lora": [{"id": 0}]}, "lora"), ({"repo_name": 1}, "repo_name"),
])
def test_wrong_fields_are_named(coder, change, param):
    refused = coder.post("/infill", {"input_prefix": "a", "input_suffix": "b", **change})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param, refused.text


def test_other_bodies_are_refused(coder):
    for body in ([], "x", 7, True):
        assert coder.post("/infill", body).status_code == 400
    limit = coder.get("/v1/models").json()["data"][0]["max_model_len"]
    long = coder.post("/infill", {"input_prefix": "x " * 3 * limit, "input_suffix": "b"})
    assert long.status_code == 400 and long.json()["error"]["code"] == "context_length_exceeded"
    assert f"maximum context length is {limit} tokens" in long.json()["error"]["message"]
    exact = coder.post("/infill", {"input_prefix": "x", "input_suffix": "b", "n_predict": limit})
    assert exact.status_code == 200


def test_a_model_without_the_tokens_says_so(server):
    for path, body, param in (("/infill", {"input_prefix": "a", "input_suffix": "b"}, None), ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix")):
        refused = server.post(path, body)
        error = refused.json()["error"]
        assert refused.status_code == 400 and "model demo cannot fill a gap" in error["message"] and "fim_prefix" in error["message"]
        assert error["param"] == param
    assert "infill" not in server.get("/v1/models").json()["data"][0]["capabilities"]
    assert server.post("/v1/completions", {"prompt": "a", "suffix": "", "max_tokens": 1}).status_code == 200


def test_suffix_with_the_published_client(coder):
    client = openai.OpenAI(base_url=coder.url + "/v1", api_key="unused")
    settings = {"model": coder.get("/v1/models").json()["data"][0]["id"], "prompt": "def add(a, b):\n", "suffix": "\n\nprint(1)\n",
                "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**settings).choices[0]
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**settings, stream=True)) == whole.text
    several = client.completions.create(**{**settings, "prompt": [settings["prompt"], "x = "], "n": 2, "logprobs": 1, "temperature": 1, "seed": 3})
    assert [c.index for c in several.choices] == [0, 1, 2, 3] and all(c.logprobs.tokens for c in several.choices if c.text)
    best = client.completions.create(**settings, best_of=3, n=2)
    assert len(best.choices) == 2
    for change, param in (({"echo": True}, "suffix"), ({"prompt": [5, 6]}, "suffix"), ({"prompt": ["a"] * 17}, "suffix"), ({"suffix": 4}, "suffix"),
                          ({"extra_body": {"parse_special": True}}, "suffix")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(**{**settings, **change})
        assert refused.value.param == param


def test_who_asks_pays_for_the_tokens(models, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-a alice tokens-per-minute=400\n")
    server = Server(models["starcoder2"], "--api-key-file", keys, log=tmp_path / "log")
    headers = {"Authorization": "Bearer sk-a"}
    body = {"input_prefix": "value = 1\n" * 10, "input_suffix": "b", "n_predict": 1}
    assert server.post("/infill", body).status_code == 401
    first = server.post("/infill", body, headers=headers)
    assert first.status_code == 200
    left = int(first.headers["x-ratelimit-remaining-tokens"])
    answers = [server.post("/infill", body, headers=headers) for _ in range(12)]
    assert answers[-1].status_code == 429 and answers[-1].headers["retry-after"] and left < 400
    assert server.stop() == 0
