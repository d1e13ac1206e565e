"""Encoders (BERT, XLM-RoBERTa): embeddings, and documents ranked by cross-encoders and by cosine, against transformers
(tests/fixtures/encoder, tools/fixtures/encoder_fixtures.py)."""
import base64
import concurrent.futures
import json
import math
import os
import shutil
import struct
import subprocess

import pytest
import requests

from conftest import BIN, DEMO, ROOT, Server

FIXTURES = os.path.join(ROOT, "tests", "fixtures", "encoder")
EXACT = ("--kv-type", "f32", "--type", "f32")


def load(name):
    with open(os.path.join(FIXTURES, name), encoding="utf-8") as file:
        return json.load(file)


TEXTS, GOLDEN = load("texts.json"), load("golden.json")
BERT = GOLDEN["bert-tiny"]


def served(name):
    @pytest.fixture(scope="module")
    def fixture(tmp_path_factory):
        one = Server(os.path.join(FIXTURES, name), *EXACT, log=tmp_path_factory.mktemp(name) / "log")
        yield one
        one.wait_idle()
        assert one.stop() == 0, one.log()[-4000:]
    return fixture


bert, roberta = served("bert-tiny"), served("xlm-roberta-tiny")
bert_ranker, roberta_ranker = served("bert-ranker-tiny"), served("roberta-ranker-tiny")


def vectors(server, given, **more):
    answer = server.post("/v1/embeddings", {"input": given, **more})
    assert answer.status_code == 200, answer.text
    return [entry["embedding"] for entry in answer.json()["data"]]


def rank(server, query, documents, **more):
    answer = server.post("/v1/rerank", {"query": query, "documents": documents, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def unit(vector):
    length = math.sqrt(math.fsum(x * x for x in vector))
    return [x / length for x in vector]


def worst(got, want):
    return max(abs(x - y) for x, y in zip(got, want, strict=True)) / max(abs(x) for x in want)


def changed(tmp_path, name, **files):
    """A copy of a fixture's folder with other files; the value None: without it."""
    folder = tmp_path / name
    shutil.copytree(os.path.join(FIXTURES, name), folder)
    for file, value in files.items():
        path = folder / file.replace("__", "/").replace("_json", ".json")
        if value is None:
            path.unlink()
        else:
            path.write_text(json.dumps(value), encoding="utf-8")
    return folder


# ---- embeddings ----

@pytest.mark.parametrize("name", ["bert-tiny", "xlm-roberta-tiny"])
def test_vectors_are_those_of_transformers_for_every_pooling(bert, roberta, name):
    case = GOLDEN[name]
    assert len(case["of"]) >= 5
    for kind in ("mean", "cls", "last"):
        got = vectors(bert if name == "bert-tiny" else roberta, case["of"], pooling=kind, normalize=False)
        assert max(worst(g, want[kind]) for g, want in zip(got, case["vectors"], strict=True)) <= 1e-4


def test_the_folder_says_how_vectors_are_pooled_and_normalized(bert, roberta):
    case = GOLDEN["xlm-roberta-tiny"]
    assert worst(vectors(bert, BERT["of"])[0], unit(BERT["vectors"][0]["mean"])) <= 1e-4
    assert worst(vectors(roberta, case["of"])[0], case["vectors"][0]["cls"]) <= 1e-4  # its modules.json has no Normalize
    assert worst(vectors(roberta, case["of"], normalize=True)[0], unit(case["vectors"][0]["cls"])) <= 1e-4


def test_the_flag_takes_precedence_over_the_folder(start):
    server = start(os.path.join(FIXTURES, "bert-tiny"), *EXACT, "--embedding-pooling", "last")
    assert worst(vectors(server, BERT["of"])[0], unit(BERT["vectors"][0]["last"])) <= 1e-4


def test_other_poolings_of_folders_and_what_is_refused(start, tmp_path):
    def pooling(**modes):
        return {f"pooling_mode_{mode}": value for mode, value in modes.items()}
    server = start(changed(tmp_path / "a", "bert-tiny", **{"1_Pooling__config_json": pooling(lasttoken=True)}), *EXACT)
    assert worst(vectors(server, BERT["of"])[0], unit(BERT["vectors"][0]["last"])) <= 1e-4
    bad = [({"1_Pooling__config_json": pooling(max_tokens=True)}, "pooling_mode_max_tokens"),
           ({"1_Pooling__config_json": pooling(mean_tokens=True, cls_token=True)}, "several are true"),
           ({"1_Pooling__config_json": None}, "1_Pooling/config.json: not found"),
           ({"modules_json": {"a": 1}}, "modules.json: found"),
           ({"modules_json": [{"type": "sentence_transformers.models.Transformer"}, {"type": "sentence_transformers.models.Dense"}]}, "Dense")]
    for i, (files, words) in enumerate(bad):
        with pytest.raises(RuntimeError, match=words):
            start(changed(tmp_path / f"bad{i}", "bert-tiny", **files))


def test_settings_of_sentence_transformers_limit_texts_or_are_refused(start, tmp_path):
    server = start(changed(tmp_path / "a", "bert-tiny", sentence_bert_config_json={"max_seq_length": 24, "do_lower_case": False},
                           config_sentence_transformers_json={"prompts": {"query": "query: "}, "default_prompt_name": None}), *EXACT)
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 24
    assert server.post("/v1/embeddings", {"input": [list(range(5, 29))]}).status_code == 200
    reply = server.post("/v1/embeddings", {"input": [list(range(5, 30))]})
    assert reply.status_code == 400 and "24" in reply.json()["error"]["message"]
    bad = [({"sentence_bert_config_json": {"do_lower_case": True}}, "do_lower_case"),
           ({"sentence_xlm-roberta_config_json": {"max_seq_length": -1}}, "max_seq_length"),
           ({"config_sentence_transformers_json": {"prompts": {"query": "query: "}, "default_prompt_name": "query"}}, "default_prompt_name")]
    for i, (files, words) in enumerate(bad):
        with pytest.raises(RuntimeError, match=words):
            start(changed(tmp_path / f"bad{i}", "bert-tiny", **files))


def test_configurations_that_would_compute_something_else_are_refused(start, tmp_path):
    config = load("bert-tiny/config.json")
    labels = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "A", "1": "B"}}
    for i, (change, words) in enumerate([({"position_embedding_type": "relative_key"}, "position_embedding_type"), ({"is_decoder": True}, "is_decoder"),
                                         (labels, "several labels"), ({"hidden_act": "swish"}, "hidden_act")]):
        with pytest.raises(RuntimeError, match=words):
            start(changed(tmp_path / str(i), "bert-tiny", config_json={**config, **change}))


def test_base64_dimensions_and_the_official_client(bert):
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    client = openai.OpenAI(base_url=bert.url + "/v1", api_key="none", max_retries=0)
    texts = TEXTS[:4]
    answer = client.embeddings.create(model="bert-tiny", input=texts)  # it asks for base64 by itself
    want = vectors(bert, texts)
    assert all(entry.embedding == pytest.approx(w, abs=1e-7) for entry, w in zip(answer.data, want, strict=True))
    assert answer.usage.prompt_tokens == sum(len(ids) for ids in BERT["ids"][:4])
    by_ids = client.embeddings.create(model="bert-tiny", input=BERT["ids"][:4], encoding_format="float")
    assert [entry.embedding for entry in by_ids.data] == want
    cut = client.embeddings.create(model="bert-tiny", input=texts[0], dimensions=7, encoding_format="float").data[0].embedding
    assert cut == pytest.approx(unit(want[0][:7]), abs=1e-6)
    packed = vectors(bert, texts[0], encoding_format="base64")[0]
    assert list(struct.unpack("<72f", base64.b64decode(packed, validate=True))) == pytest.approx(want[0], abs=1e-7)


def test_64_clients_at_once_get_the_bits_of_each_alone(bert):
    texts = [text for text, ids in zip(TEXTS, BERT["ids"]) if 2 < len(ids) <= 170]
    alone = {text: vectors(bert, text, encoding_format="base64")[0] for text in texts}
    asked = [texts[i % len(texts)] for i in range(128)]
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        got = list(pool.map(lambda text: vectors(bert, text, encoding_format="base64")[0], asked))
    assert got == [alone[text] for text in asked]
    assert vectors(bert, texts * 3, encoding_format="base64") == [alone[text] for text in texts] * 3


def test_the_context_is_the_limit(bert):  # the folder says max_seq_length: 128, of 170 positions
    assert len(vectors(bert, [[7] * 128])[0]) == 72
    answer = bert.post("/v1/embeddings", {"input": [[7] * 129]})
    assert answer.status_code == 400 and "128 tokens" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path, body", [
    ("/v1/completions", {"prompt": "Hello"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
    ("/v1/responses", {"input": "Hello"}), ("/v1/completions", {"prompt": "Hello", "max_tokens": 0, "echo": True, "logprobs": 1})])
def test_a_request_for_text_is_refused_by_name(bert, path, body):
    answer = bert.post(path, body)
    assert answer.status_code == 400
    assert "bert-tiny only makes embeddings" in answer.json()["error"]["message"]


def test_an_encoder_is_served_beside_a_chat_model(start, bert):
    both = start(f"chat={DEMO}", f"vectors={os.path.join(FIXTURES, 'bert-tiny')}", *EXACT)
    assert vectors(both, TEXTS[:3], model="vectors") == vectors(bert, TEXTS[:3])
    assert both.chat("Hello", model="chat", max_tokens=4).status_code == 200
    assert both.chat("Hello", model="vectors").status_code == 400
    assert rank(both, TEXTS[0], TEXTS[:3], model="vectors")["results"] == rank(bert, TEXTS[0], TEXTS[:3])["results"]


@pytest.mark.parametrize("name", ["bert-tiny"])
def test_a_gguf_file_gives_the_vectors_of_the_folder(start, bert, name):
    server = start(os.path.join(FIXTURES, name + ".gguf"), *EXACT)
    case = GOLDEN[name]
    assert vectors(server, case["of"]) == vectors(bert, case["of"])  # also pooled as the file says
    some = [i for i, text in enumerate(TEXTS) if i != case["spelled"] and len(max(text.split() or [""], key=len)) <= 100]  # llama.cpp has no longest word
    assert ids_of(server, [TEXTS[i] for i in some]) == [case["ids"][i] for i in some]


@pytest.mark.parametrize("command", ["bench --users 1 --context 32 --prefill 32", "perplexity --context 64", "logits --ids 1,2 --out x", "generate -p Hello"])
def test_commands_that_need_logits_refuse_an_encoder(tmp_path, command):
    name, *flags = command.split()
    (tmp_path / "text").write_text("word " * 200, encoding="utf-8")
    operands = [os.path.join(FIXTURES, "bert-tiny"), *(["text"] if name == "perplexity" else [])]
    done = subprocess.run([BIN, name, *operands, *flags], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode in (1, 2) and b"bert-tiny is an encoder" in done.stderr


# ---- WordPiece ----

def ids_of(server, texts):
    return [server.post("/tokenize", {"prompt": text}).json()["tokens"] for text in texts]


@pytest.mark.parametrize("name", ["bert-tiny", "xlm-roberta-tiny"])
def test_ids_of_hard_texts_are_those_of_transformers(bert, roberta, name):
    case = GOLDEN[name]
    some = [i for i in range(len(TEXTS)) if i != case["spelled"]]
    assert ids_of(bert if name == "bert-tiny" else roberta, [TEXTS[i] for i in some]) == [case["ids"][i] for i in some]


def test_special_tokens_are_spelled_only_by_trusted_text(bert):
    text, want = TEXTS[BERT["spelled"]], BERT["ids"][BERT["spelled"]]
    assert vectors(bert, text, parse_special=True) == vectors(bert, [want])
    specials = {want[0], want[-1]}
    plain = ids_of(bert, [text])[0]
    assert plain[1:-1] and not specials & set(plain[1:-1])


@pytest.mark.parametrize("settings, want", [({"do_lower_case": False}, "cased"), ({"do_lower_case": True, "strip_accents": False}, "accents"),
                                            ({"tokenize_chinese_chars": False}, "together"), ({}, "ids")])
def test_settings_of_bert_tokenizer_with_and_without_tokenizer_json(start, tmp_path, settings, want):
    tokenizer_config = {"tokenizer_class": "BertTokenizer", **settings}
    texts = [i for i in range(len(TEXTS)) if i != BERT["spelled"]]
    for name, files in (("with", {}), ("without", {"tokenizer_json": None})):
        server = start(changed(tmp_path / name, "bert-tiny", tokenizer_config_json=tokenizer_config, **files))
        assert ids_of(server, [TEXTS[i] for i in texts]) == [BERT[want][i] for i in texts]


# ---- ranking ----

@pytest.mark.parametrize("name", ["bert-ranker-tiny", "roberta-ranker-tiny"])
def test_cross_encoders_score_pairs_as_transformers(request, name):
    server = request.getfixturevalue(name.replace("-", "_")[:-len("_tiny")])
    pairs, scores = GOLDEN[name]["pairs"], GOLDEN[name]["scores"]
    query, documents = pairs[0][0], [document for _, document in pairs]
    answer = rank(server, query, documents)
    got = {result["index"]: result["relevance_score"] for result in answer["results"]}
    assert max(scores) - min(scores) > 0.05
    assert max(abs(got[i] - score) for i, score in enumerate(scores)) <= 1e-4 * max(1, max(abs(score) for score in scores))
    assert [result["index"] for result in answer["results"]] == sorted(range(len(scores)), key=lambda i: -scores[i])
    assert answer["object"] == "list" and answer["model"] == name and set(answer["results"][0]) == {"index", "relevance_score"}
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0
    for document, score in zip(documents, scores):  # alone as together
        assert rank(server, query, [document])["results"][0]["relevance_score"] == got[documents.index(document)]


NAMES_IN_GGUF = {"embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
                 "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
                 "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
                 "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
                 "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm", "pooler.dense": "cls", "classifier": "cls.output"}


def text_of(text):
    return struct.pack("<Q", len(text)) + text.encode()


def write_ranker(path, labels):
    """bert-ranker-tiny as llama.cpp's converter writes it, which names the labels of a head. The vocabulary is that of bert-tiny.gguf."""
    with open(os.path.join(FIXTURES, "bert-tiny.gguf"), "rb") as file:
        metadata = file.read()
    with open(os.path.join(FIXTURES, "bert-ranker-tiny", "model.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    infos, body, n = b"", b"", 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        stem, end = name.removeprefix("bert.").rsplit(".", 1)
        layer = stem.removeprefix("encoder.layer.").split(".", 1) if stem.startswith("encoder.") else None
        new = f"blk.{layer[0]}.{NAMES_IN_GGUF[layer[1]]}" if layer else NAMES_IN_GGUF[stem]
        begin, stop = entry["data_offsets"]
        values = struct.unpack(f"<{(stop - begin) // 2}e", data[begin:stop])
        infos += text_of(f"{new}.{end}") + struct.pack(f"<I{len(entry['shape'])}QIQ", len(entry["shape"]), *reversed(entry["shape"]), 0, len(body))
        body += struct.pack(f"<{len(values)}f", *values)
        body += bytes(-len(body) % 32)
        n += 1
    end = metadata.index(text_of("token_embd_norm.bias"))  # the first tensor
    keys = metadata[24:end] + text_of("bert.classifier.output_labels") + struct.pack("<IIQ", 9, 8, len(labels)) + b"".join(map(text_of, labels))
    head = metadata[:8] + struct.pack("<QQ", n, struct.unpack_from("<Q", metadata, 16)[0] + 1) + keys + infos
    path.write_bytes(head + bytes(-len(head) % 32) + body)


def test_a_cross_encoder_of_gguf_scores_as_the_folder(start, bert_ranker, tmp_path):
    write_ranker(tmp_path / "ranker.gguf", ["LABEL_0"])
    server = start(tmp_path / "ranker.gguf", *EXACT)
    query, documents = TEXTS[0], TEXTS[1:6]
    assert rank(server, query, documents)["results"] == rank(bert_ranker, query, documents)["results"]


def test_the_shape_of_ranked_documents(bert_ranker):
    texts = ["Paris", {"text": "London"}, "Paris"]
    answer = rank(bert_ranker, "capital", texts, top_n=2, return_documents=True, model="bert-ranker-tiny")
    assert len(answer["results"]) == 2 and all(result["document"]["text"] in ("Paris", "London") for result in answer["results"])
    same = [result["index"] for result in rank(bert_ranker, "capital", texts)["results"]]
    assert same.index(0) < same.index(2)  # equal scores in the order of the request
    for path in ("/rerank", "/v2/rerank"):
        assert bert_ranker.post(path, {"query": "capital", "documents": texts}).json()["results"] == rank(bert_ranker, "capital", texts)["results"]
    assert len(rank(bert_ranker, "capital", ["a"], top_n=99)["results"]) == 1


def test_an_embedding_model_ranks_by_cosine(bert):
    documents = TEXTS[:5]
    query, *rest = vectors(bert, [TEXTS[5], *documents])
    want = {i: math.fsum(x * y for x, y in zip(query, v)) for i, v in enumerate(rest)}
    answer = rank(bert, TEXTS[5], documents)
    assert {result["index"]: result["relevance_score"] for result in answer["results"]} == pytest.approx(want, abs=1e-6)
    assert [result["index"] for result in answer["results"]] == sorted(want, key=lambda i: -want[i])


def test_models_say_what_they_are_for(bert, bert_ranker):
    assert bert.get("/v1/models").json()["data"][0]["capabilities"] == ["embeddings", "rerank"]
    assert bert_ranker.get("/v1/models").json()["data"][0]["capabilities"] == ["rerank"]


def test_a_cross_encoder_makes_no_embeddings_and_a_chat_model_ranks_nothing(bert_ranker, server):
    answer = bert_ranker.post("/v1/embeddings", {"input": "Hello"})
    assert answer.status_code == 400 and "cross-encoder" in answer.json()["error"]["message"]
    answer = server.post("/v1/rerank", {"query": "a", "documents": ["b"]})
    assert answer.status_code == 400 and "no cross-encoder" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "model"


@pytest.mark.parametrize("change, param", [
    ({"query": None}, "query"), ({"query": ""}, "query"), ({"query": 5}, "query"), ({"documents": []}, "documents"), ({"documents": "a"}, "documents"),
    ({"documents": ["a", 5]}, "documents[1]"), ({"documents": [{"title": "a"}]}, "documents[0]"), ({"documents": ["a"] * 2049}, "documents"),
    ({"top_n": 0}, "top_n"), ({"return_documents": 1}, "return_documents"), ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ({"rank_fields": ["title"]}, "rank_fields"), ({"topn": 3}, "topn")])
def test_wrong_fields_of_a_ranking_are_named(bert_ranker, change, param):
    answer = bert_ranker.post("/v1/rerank", {"query": "a", "documents": ["b"], **change})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_pair_longer_than_the_context_is_refused(bert_ranker):
    answer = bert_ranker.post("/v1/rerank", {"query": "capital", "documents": ["b", "word " * 300]})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.json()["error"]["param"] == "documents"


def test_64_clients_rank_at_once_as_alone(bert_ranker):
    cases = [("capital of France", TEXTS[i:i + 6]) for i in range(6)]
    alone = [rank(bert_ranker, *case)["results"] for case in cases]
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        got = list(pool.map(lambda i: rank(bert_ranker, *cases[i % 6])["results"], range(64)))
    assert got == [alone[i % 6] for i in range(64)]


def test_methods_and_metrics(bert_ranker):
    assert requests.get(bert_ranker.url + "/v1/rerank", timeout=60).status_code == 405
    rank(bert_ranker, "a", ["b"])
    assert any(name.startswith("tutti_http_requests_total") and "/v1/rerank" in name for name in bert_ranker.metrics())


def test_a_text_that_its_normalizer_makes_longer_has_its_tokens(roberta):
    """NFKC makes 18 letters of U+FDFA, whose UTF-8 has 3 bytes: more tokens than bytes."""
    one = roberta.post("/tokenize", {"prompt": "\ufdfa"}).json()["count"] - 2
    reply = roberta.post("/tokenize", {"prompt": " ".join(["\ufdfa"] * 50)})
    assert reply.status_code == 200 and reply.json()["count"] == 2 + 50 * one > 3 * 50, reply.status_code
    too_long = roberta.post("/v1/embeddings", {"input": " ".join(["\ufdfa"] * 50)})
    assert too_long.status_code == 400 and "maximum context length" in too_long.json()["error"]["message"]
