"""POST /v1/embeddings: the vectors' shape, and that their bits depend on nothing but their input."""
import base64
import concurrent.futures
import math
import os
import struct
import time

import pytest
import requests

from conftest import ON_CARD, PATIENCE, ROOT

# In emulation the longest text has fewer pages, and there is less company.
TEXTS = ["What is the capital of France?", "Tell me a story about a fox named Mia.", "Hello", "word " * (60 if ON_CARD else 300)]
N_CHATS, N_CHAT_TOKENS, N_ROUNDS, N_TOGETHER = (4, 10, 1, 3) if ON_CARD else (12, 30, 4, 10)
SMALL_MODEL = os.path.join(ROOT, "tests", "fixtures", "qwen2-tiny")


def ask(server, given, **more):
    response = server.post("/v1/embeddings", {"model": "demo", "input": given, **more})
    assert response.status_code == 200, response.text
    return response.json()


def vectors(server, given, **more):
    return [entry["embedding"] for entry in ask(server, given, **more)["data"]]


def tokens(server, text):
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def test_the_shape(server):
    answer = ask(server, TEXTS, user="somebody")
    assert answer["object"] == "list" and answer["model"] == "demo" and len(answer["data"]) == len(TEXTS)
    for i, entry in enumerate(answer["data"]):
        assert entry["object"] == "embedding" and entry["index"] == i
        assert abs(math.fsum(x * x for x in entry["embedding"]) - 1) < 1e-5
    n_tokens = sum(len(tokens(server, text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


def test_texts_and_ids_are_the_same(server):
    text, ids = TEXTS[0], tokens(server, TEXTS[0])
    assert vectors(server, text) == vectors(server, [text]) == vectors(server, ids) == vectors(server, [ids])
    assert vectors(server, [ids, ids[:3]])[0] == vectors(server, text)[0]


def test_base64_holds_the_same_floats(server):
    packed = vectors(server, TEXTS, encoding_format="base64")
    plain = vectors(server, TEXTS, encoding_format="float")
    for text, numbers in zip(packed, plain):
        raw = base64.b64decode(text, validate=True)
        assert struct.unpack(f"<{len(numbers)}f", raw) == struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}f", *numbers))
    for n in (1, 2, 3, 4):
        assert len(base64.b64decode(vectors(server, "Hello", encoding_format="base64", dimensions=n)[0], validate=True)) == 4 * n


def test_dimensions_cut_and_stretch(server):
    whole = vectors(server, TEXTS[0])[0]
    cut = vectors(server, TEXTS[0], dimensions=10)[0]
    length = math.sqrt(sum(x * x for x in whole[:10]))
    assert cut == pytest.approx([x / length for x in whole[:10]], rel=1e-5)
    assert vectors(server, TEXTS[0], dimensions=len(whole))[0] == whole


def test_poolings_differ_but_for_one_token(server):
    for text in TEXTS:
        mean, last = vectors(server, text, pooling="mean"), vectors(server, text, pooling="last")
        assert mean != last and mean == vectors(server, text)
    assert vectors(server, [7], pooling="mean")[0] == pytest.approx(vectors(server, [7], pooling="last")[0], abs=1e-6)


def test_the_usual_pooling_is_a_flag(start, server):
    other = start("--embedding-pooling", "last")
    assert vectors(other, TEXTS[0]) == vectors(server, TEXTS[0], pooling="last")
    assert vectors(other, TEXTS[0], pooling="mean") == vectors(server, TEXTS[0])


def test_no_bit_depends_on_company(server):
    want = [vectors(server, text, encoding_format="base64", pooling=kind)[0] for text in TEXTS for kind in ("mean", "last")]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        chats = [pool.submit(server.chat, "Tell me a story about a fox named Mia.", temperature=1, max_tokens=N_CHAT_TOKENS) for _ in range(N_CHATS)]
        got = [pool.submit(vectors, server, text, encoding_format="base64", pooling=kind)
               for _ in range(N_ROUNDS) for text in TEXTS for kind in ("mean", "last")]
        together = [pool.submit(vectors, server, TEXTS * N_TOGETHER, encoding_format="base64") for _ in range(2)]
        assert [g.result()[0] for g in got] == want * N_ROUNDS
        for many in together:
            assert many.result() == want[::2] * N_TOGETHER
        assert all(chat.result().status_code == 200 for chat in chats)


def test_more_inputs_than_the_queue_holds(start):
    server = start("--max-seqs", 2, "--max-queue", 3, "--context", 64)
    texts = [f"Text number {i}" for i in range(40)]
    many = vectors(server, texts)
    assert len(many) == 40 and many[17] == vectors(server, texts[17])[0]


def test_as_many_inputs_as_the_api_allows(start):
    server = start(SMALL_MODEL, "--name", "demo")
    assert len(vectors(server, [[5, i % 50] for i in range(2048)], dimensions=1)) == 2048


def test_a_client_that_leaves_is_no_harm(start):
    server = start("--max-seqs", 2, "--max-queue", 3)
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.post(server.url + "/v1/embeddings", json={"input": ["word " * 400] * 500}, timeout=0.3)
    end = time.monotonic() + PATIENCE
    while server.post("/v1/embeddings", {"model": "demo", "input": "Hello"}).status_code == 429 and time.monotonic() < end:
        time.sleep(0.05)  # its request may still have been read when the client left
    assert vectors(server, "Hello")


@pytest.mark.parametrize("change, param", [
    ({"input": None}, "input"), ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": 5}, "input"), ({"input": [""]}, "input"),
    ({"input": ["a", 5]}, "input"), ({"input": [5, "a"]}, "input"), ({"input": [[]]}, "input"), ({"input": [10**7]}, "input"),
    ({"input": [-1]}, "input"), ({"input": [1.5]}, "input"), ({"input": ["a"] * 2049}, "input"), ({"input": {"a": 1}}, "input"),
    ({"encoding_format": "hex"}, "encoding_format"), ({"encoding_format": 1}, "encoding_format"), ({"pooling": "max"}, "pooling"),
    ({"dimensions": 0}, "dimensions"), ({"dimensions": 10**6}, "dimensions"), ({"dimensions": "3"}, "dimensions"), ({"user": 5}, "user"),
    ({"model": 5}, "model"),
])
def test_wrong_fields_are_named(server, change, param):
    response = server.post("/v1/embeddings", {"model": "demo", "input": "Hello", **change})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param and error["type"] == "invalid_request_error" and error["message"]


def test_what_is_too_long_or_elsewhere(server):
    error = server.post("/v1/embeddings", {"input": ["Hello", "word " * 3000]}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert server.post("/v1/embeddings", {"model": "other", "input": "Hello"}).status_code == 404
    assert requests.get(server.url + "/v1/embeddings", timeout=PATIENCE).status_code == 405


def test_the_official_client(server):
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    answer = client.embeddings.create(model="demo", input=TEXTS)  # it asks for base64 by itself
    for entry, want in zip(answer.data, vectors(server, TEXTS)):
        assert entry.embedding == pytest.approx(want, abs=1e-7)
    assert client.embeddings.create(model="demo", input="Hello", dimensions=5, encoding_format="float").data[0].embedding == \
        vectors(server, "Hello", dimensions=5)[0]
    with pytest.raises(openai.BadRequestError) as wrong:
        client.embeddings.create(model="demo", input="")
    assert wrong.value.param == "input"
