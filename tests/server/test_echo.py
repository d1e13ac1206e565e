"""Log-probabilities of prompts: echo with logprobs, as evaluation harnesses ask for them, and TGI's prefill."""
import json
import math
import os
import shutil

import pytest

import conftest

PROMPT = "What is the capital of France? The capital of France is Paris."


def complete(server, prompt, **more):
    response = server.post("/v1/completions", {"model": "demo", "prompt": prompt, "temperature": 0, **more})
    assert response.status_code == 200, response.text
    return response.json()


def tokens(server, text):
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def chunks(response):
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[len("data: "):]) for line in lines[:-1]]


def step_by_step(server, ids, n_top):
    """What must come: each token as the answer to those before it."""
    values, tops = [None], [None]
    for i in range(1, len(ids)):
        told = complete(server, ids[:i], max_tokens=1, logprobs=n_top, logit_bias={str(ids[i]): 100}, ignore_eos=True)["choices"][0]["logprobs"]
        values.append(told["token_logprobs"][0])
        tops.append(told["top_logprobs"][0])
    return values, tops


def check_offsets(text, told):
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["top_logprobs"]) == len(told["text_offset"])
    for token, offset in zip(told["tokens"], told["text_offset"]):
        assert text[offset:offset + len(token)] == token
    assert "".join(told["tokens"]) == text


def test_the_prompts_tokens_come_first(server):
    body = complete(server, PROMPT, max_tokens=5, logprobs=2, echo=True, ignore_eos=True)
    told, text = body["choices"][0]["logprobs"], body["choices"][0]["text"]
    ids = tokens(server, PROMPT)
    assert text.startswith(PROMPT) and len(told["tokens"]) == len(ids) + 5 == body["usage"]["total_tokens"]
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    assert all(x <= 0 for x in told["token_logprobs"][1:]) and all(1 <= len(t) <= 3 for t in told["top_logprobs"][1:])
    check_offsets(text, told)
    values, tops = step_by_step(server, ids, 2)
    assert told["token_logprobs"][:len(ids)] == values
    assert [t and max(t.values()) for t in told["top_logprobs"][:len(ids)]] == [t and max(t.values()) for t in tops]
    answer = complete(server, PROMPT, max_tokens=5, logprobs=2, ignore_eos=True)["choices"][0]["logprobs"]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert told[name][len(ids):] == answer[name]


def test_the_prompt_alone(server):
    body = complete(server, PROMPT, max_tokens=0, logprobs=1, echo=True)
    choice = body["choices"][0]
    assert choice["text"] == PROMPT and choice["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == body["usage"]["prompt_tokens"]
    check_offsets(PROMPT, choice["logprobs"])
    assert complete(server, PROMPT, max_tokens=0, echo=True, n=2)["choices"][1] == {"index": 1, "text": PROMPT, "logprobs": None,
                                                                                   "finish_reason": "length"}


def test_several_prompts_and_choices(server):
    ids = tokens(server, PROMPT)
    body = complete(server, [ids, ids[:4]], max_tokens=3, n=2, temperature=1, seed=1, logprobs=0, echo=True, ignore_eos=True)
    told = [c["logprobs"] for c in body["choices"]]
    assert [len(t["tokens"]) for t in told] == [len(ids) + 3] * 2 + [7] * 2
    alone = complete(server, ids, max_tokens=0, logprobs=0, echo=True)["choices"][0]["logprobs"]
    for i, t in enumerate(told):
        n = len(ids) if i < 2 else 4
        assert t["token_logprobs"][:n] == alone["token_logprobs"][:n]
        assert all(len(top) == 1 for top in t["top_logprobs"][1:])


def test_a_stream_says_the_same(server):
    settings = {"max_tokens": 6, "logprobs": 2, "echo": True, "ignore_eos": True}
    whole = complete(server, PROMPT, **settings)["choices"][0]
    got = chunks(server.post("/v1/completions", {"prompt": PROMPT, "temperature": 0, "stream": True, **settings}))
    assert "".join(c["choices"][0]["text"] for c in got) == whole["text"]
    for name, values in whole["logprobs"].items():
        assert [x for c in got if c["choices"][0]["logprobs"] for x in c["choices"][0]["logprobs"][name]] == values


def test_other_alphabets(server):
    text = "早上好，Zürich 🙂 ok"
    told = complete(server, text, max_tokens=0, logprobs=1, echo=True)["choices"][0]["logprobs"]
    offsets = told["text_offset"]
    assert offsets == sorted(offsets) and offsets[-1] <= len(text)
    whole = [(t, o) for t, o in zip(told["tokens"], offsets) if t and not t.startswith("bytes:")]
    assert all(text[o:o + len(t)] == t for t, o in whole if t in text)


def test_a_prefix_that_was_cached_is_no_difference(server):
    first = complete(server, PROMPT * 6, max_tokens=0, logprobs=3, echo=True)
    again = complete(server, PROMPT * 6, max_tokens=0, logprobs=3, echo=True)
    assert first["choices"] == again["choices"] and again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert complete(server, PROMPT * 6, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_an_answer_that_ends_has_an_entry_for_its_end(server, golden):
    ids = golden[0]["prompt_ids"] + golden[0]["answer_ids"]
    body = complete(server, ids, max_tokens=1, logprobs=1, echo=True)
    told = body["choices"][0]["logprobs"]
    assert body["choices"][0]["finish_reason"] == "stop" and len(told["token_logprobs"]) == len(ids) + 1
    assert told["token_logprobs"][-1] > -1 and told["tokens"][-1]


def harness(server, requests):
    """What lm-evaluation-harness does with local-completions: pairs of ids of context and continuation, scored together."""
    body = {"prompt": [context + continuation for context, continuation in requests], "model": "demo", "temperature": 0, "max_tokens": 1,
            "logprobs": 1, "seed": 1234, "echo": True}
    out = server.post("/v1/completions", body).json()
    scores = []
    for choice, (context, _) in zip(sorted(out["choices"], key=lambda c: c["index"]), requests):
        values = choice["logprobs"]["token_logprobs"][len(context):-1]
        tops = choice["logprobs"]["top_logprobs"][len(context):-1]
        scores.append((sum(values), all(value == max(top.values()) for value, top in zip(values, tops))))
    return scores


def test_a_harness_scores_continuations(server, golden):
    asked = [(g["prompt_ids"], g["answer_ids"]) for g in golden[:6]]
    right = harness(server, asked)
    assert all(is_greedy for _, is_greedy in right)
    backwards = [(context, answer[::-1]) for context, answer in asked]
    wrong = harness(server, backwards)
    assert all(not is_greedy for _, is_greedy in wrong) and all(w[0] < r[0] - 5 for w, r in zip(wrong, right))


@pytest.mark.parametrize("change, param", [
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 0, "logprobs": 1}, "max_tokens"), ({"max_tokens": -1, "echo": True}, "max_tokens"),
    ({"echo": "yes"}, "echo"), ({"echo": True, "logprobs": 1, "num_beams": 2}, "echo"), ({"echo": True, "logprobs": 21}, "logprobs"),
])
def test_wrong_fields_are_named(server, change, param):
    response = server.post("/v1/completions", {"prompt": "Hello", **change})
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_the_prefill_of_tgi(compat):
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 2, "decoder_input_details": True}}
    prefill = compat.post("/generate", body).json()["details"]["prefill"]
    told = complete(compat, PROMPT, max_tokens=0, logprobs=0, echo=True)["choices"][0]["logprobs"]
    assert [t["id"] for t in prefill] == tokens(compat, PROMPT)
    assert [t["logprob"] for t in prefill] == told["token_logprobs"]
    assert prefill[0]["logprob"] is None and all(math.isfinite(t["logprob"]) for t in prefill[1:])


# ---- ids without text ----------------------------------------------------------------------------------------------------

PADDING = 4159  # the last row of the demo model's vocabulary; its tokenizer ends before it


def test_an_id_that_only_pads_the_vocabulary_has_no_text(server):
    ids = tokens(server, "What is")
    text = server.post("/detokenize", {"tokens": ids}).json()["prompt"]
    for padded in ([PADDING] + ids, ids + [PADDING], ids[:1] + [PADDING] * 3 + ids[1:]):
        assert server.post("/detokenize", {"tokens": padded}).json() == {"prompt": text, "content": text}
    assert server.post("/detokenize", {"tokens": [PADDING]}).json() == {"prompt": "", "content": ""}
    refused = server.post("/detokenize", {"tokens": [PADDING + 1]})
    assert refused.status_code == 400 and "tokens[0] is 4160" in refused.json()["error"]["message"]


@pytest.mark.parametrize("more", [{}, {"logprobs": 2}, {"max_tokens": 0}, {"max_tokens": 0, "logprobs": 0}, {"stream": True}])
def test_a_prompt_of_ids_without_text_is_echoed(server, more):
    body = {"prompt": [PADDING], "echo": True, "temperature": 0, "max_tokens": 2, **more}
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    whole = complete(server, [PADDING], max_tokens=max(1, body["max_tokens"]))["choices"][0]["text"]
    if body["max_tokens"] == 0:
        whole = ""
    if more.get("stream"):
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks(response)) == whole
        return
    choice = response.json()["choices"][0]
    assert choice["text"] == whole
    if "logprobs" in more:
        assert choice["logprobs"]["tokens"][0] == "" and choice["logprobs"]["text_offset"][0] == 0
        check_offsets(whole, choice["logprobs"])


def test_a_model_without_a_tokenizer_takes_ids_and_refuses_to_echo_them(start, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in os.listdir(conftest.DEMO):
        if not name.startswith(("tokenizer", "tokenization", "vocab", "special")):
            (folder / name).symlink_to(os.path.join(os.path.realpath(conftest.DEMO), name))
    monkeypatch.setattr(conftest, "DEMO", str(folder))
    server = start()
    assert server.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 2}).status_code == 200
    for path, body, param in (("/v1/completions", {"prompt": [5, 6], "echo": True, "max_tokens": 2}, "echo"),
                              ("/v1/completions", {"prompt": "x", "max_tokens": 2}, "prompt"), ("/detokenize", {"tokens": [5]}, None),
                              ("/tokenize", {"prompt": "x"}, None)):
        refused = server.post(path, body)
        assert refused.status_code == 400 and "no tokenizer" in refused.json()["error"]["message"], refused.text
        assert refused.json()["error"]["param"] == param


def test_a_long_prompt_has_a_bounded_number_of_log_probabilities(start, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(conftest.DEMO, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "seq_length": 16384}), encoding="utf-8")
    server = start(folder)
    body = {"prompt": [100 + i % 90 for i in range(13000)], "echo": True, "max_tokens": 0}
    refused = server.post("/v1/completions", {**body, "logprobs": 20})
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["param"] == "logprobs" and "are 273000 values, at most 262144 are possible" in error["message"]
