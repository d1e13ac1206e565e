"""A server with speculative decoding: the same texts in fewer steps, and figures of both kinds."""
import pytest

from conftest import DEMO, Server

COPY = "one two three four five six seven eight nine ten. " * 4


@pytest.fixture(scope="module")
def speculating(tmp_path_factory):
    server = Server("--speculate", 8, log=tmp_path_factory.mktemp("speculating") / "log")
    yield server
    assert server.stop() == 0, server.log()


def repeat(server, **more):
    """An answer that repeats a token, whatever the model thinks."""
    token = server.post("/tokenize", {"prompt": "one", "add_special_tokens": False}).json()["tokens"][-1]
    return server.post("/v1/completions", {"prompt": COPY, "temperature": 0, "max_tokens": 60, "ignore_eos": True,
                                           "logit_bias": {str(token): 100}, **more}).json()


def test_accepted_tokens_are_counted(speculating):
    """How many drafts there are depends on the clock (tests/engine counts them with a virtual one); each accepted one saves a step."""
    before = speculating.wait_idle()
    body = repeat(speculating)
    after = speculating.wait_idle()
    details = body["usage"]["completion_tokens_details"]
    assert body["usage"]["completion_tokens"] == 60
    for word in "accepted", "rejected":
        name = f"tutti_speculation_{word}_tokens_total"
        assert after[name] - before[name] == details[f"{word}_prediction_tokens"]
    assert after["tutti_steps_total"] - before["tutti_steps_total"] + details["accepted_prediction_tokens"] == 60


def test_a_request_can_do_without(speculating):
    without, few = repeat(speculating, speculate=0), repeat(speculating, speculate=2)
    details = without["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == details["rejected_prediction_tokens"] == 0
    assert few["choices"][0]["text"] == without["choices"][0]["text"] == repeat(speculating)["choices"][0]["text"]


def test_texts_are_those_without_drafts(speculating, server):
    for i in range(12):
        ask = {"prompt": COPY + "one two", "max_tokens": 40, "ignore_eos": True, "seed": i,
               "temperature": 0 if i % 2 else 0.8, "stop": ["."] if i % 3 == 0 else None,
               "frequency_penalty": 0.2 if i % 4 == 0 else 0}
        texts = [s.post("/v1/completions", ask).json()["choices"][0] for s in (speculating, server)]
        assert texts[0] == texts[1]


def test_a_wrong_value_is_named(speculating):
    for value in -1, 33, 1.5, "many":
        reply = speculating.post("/v1/completions", {"prompt": "x", "speculate": value})
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "speculate"


@pytest.fixture(scope="module")
def drafting(tmp_path_factory):
    server = Server("--draft", DEMO, "--draft-type", "q8_0", "--draft-tokens", 4, "--speculate", 4,
                    log=tmp_path_factory.mktemp("drafting") / "log")
    yield server
    assert server.stop() == 0, server.log()


def test_texts_are_those_without_a_draft_model(drafting, server):
    for i in range(12):
        ask = {"messages": [{"role": "user", "content": f"Tell me a story about {i} foxes."}], "max_tokens": 40,
               "seed": i, "temperature": 0 if i % 2 else 0.8, "logprobs": True,
               "response_format": {"type": "json_object"} if i % 4 == 3 else {"type": "text"}}
        texts = [s.post("/v1/chat/completions", ask).json()["choices"][0] for s in (drafting, server)]
        assert texts[0] == texts[1]


def test_drafts_of_a_draft_model_are_counted(drafting):
    before = drafting.wait_idle()
    usage = drafting.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 60, "ignore_eos": True}).json()["usage"]
    after = drafting.wait_idle()
    gain = {name: after[name] - before[name] for name in after if name.startswith(("tutti_draft_", "tutti_speculation_"))}
    for word in "accepted", "rejected":
        assert gain[f"tutti_speculation_{word}_tokens_total"] == usage["completion_tokens_details"][f"{word}_prediction_tokens"]
        assert 0 <= gain[f"tutti_draft_{word}_tokens_total"] <= gain[f"tutti_speculation_{word}_tokens_total"]
    assert after["tutti_draft_rows_total"] >= after["tutti_draft_passes_total"] >= 0
    assert after["tutti_draft_kv_pages_used"] == 0
    assert "draft model demo: chatglm, " in drafting.log()
