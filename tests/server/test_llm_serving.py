"""MindSpore's llm-serving: shapes, its clients' spelling of settings, its configuration file."""
import json

import pytest
import requests

from conftest import PATIENCE

PROMPT = "Once upon a time"


def ask(server, path, stream=None, **parameters):
    body = {"inputs": PROMPT, "parameters": parameters}
    if stream is not None:
        body["stream"] = stream
    return server.post(path, body)


def text_of(server, n):
    body = server.post("/v1/completions", {"prompt": PROMPT, "temperature": 0, "max_tokens": n, "repetition_penalty": 1}).json()
    return body["choices"][0]["text"]


def lines_of(response):
    assert response.headers["content-type"].startswith("text/event-stream") and response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_whole_answer_is_one_line(compat):
    response = ask(compat, "/models/llama2/generate", do_sample="False", max_new_tokens=5, return_full_text="True", stream="True")
    assert response.text.count("\n") == 1 and response.text.endswith("\n")
    body = response.json()
    assert list(body) == ["generated_text", "finish_reason", "generated_tokens", "prefill", "seed", "tokens", "top_tokens", "details"]
    assert body["generated_text"] == text_of(compat, 5) == "".join(t["text"] for t in body["tokens"])
    assert body["generated_tokens"] == 5 == len(body["tokens"]) and body["finish_reason"] == "length"
    assert body["prefill"] == [body["tokens"][0]] and body["top_tokens"] == [[body["tokens"][0]]]
    assert body["tokens"][0].keys() == {"id", "logprob", "special", "text"} and body["seed"] == 0 and body["details"] is None


@pytest.mark.parametrize("path, stream", [("/models/llama2/generate_stream", None), ("/models/demo", True), ("/models/demo", "True")])
def test_a_stream_is_bare_lines(compat, path, stream):
    lines = lines_of(ask(compat, path, stream=stream, do_sample="False", max_new_tokens=5, return_full_text="True"))
    assert len(lines) == 6 and all(line["event"] == "message" and line["retry"] == 30000 for line in lines)
    pieces = [line["data"][0] for line in lines[:-1]]
    assert all(p.keys() == {"details", "generated_text", "tokens", "top_tokens"} for p in pieces)
    assert all(p["tokens"]["text"] == p["generated_text"] and p["top_tokens"] == [p["tokens"]] for p in pieces)
    last = lines[-1]["data"][0]
    assert last["generated_text"] == text_of(compat, 5) == "".join(p["generated_text"] for p in pieces)
    assert last["tokens"] == [p["tokens"] for p in pieces] and last["prefill"] == [last["tokens"][0]]
    assert last["generated_tokens"] == 5 and last["finish_reason"] == "length" and "seed" in last and "top_tokens" in last


def test_without_return_full_text_there_is_no_last_line(compat):
    lines = lines_of(ask(compat, "/models/x/generate_stream", max_new_tokens=3))
    assert len(lines) == 3 and "".join(line["data"][0]["generated_text"] for line in lines) == text_of(compat, 3)


def test_another_protocol_has_prefixes(compat):
    response = ask(compat, "/models/x/generate_stream", max_new_tokens=2, return_protocol="http")
    lines = response.text.splitlines()
    assert len(lines) == 2 and all(line.startswith("data:{") for line in lines)
    assert json.loads(lines[0][5:]).keys() == {"details", "generated_text", "tokens", "top_tokens"}


def test_its_own_client_reads_lines_with_prefixes(compat):
    body = {"inputs": PROMPT, "stream": True, "parameters": {"do_sample": False, "max_new_tokens": 4, "return_full_text": True, "return_protocol": "sse",
                                                              "top_p": 1, "top_k": 1, "typical_p": 0, "seed": 0, "stop": []}}
    response = compat.post("/models/llama2", body, headers={"user-agent": "mindspoer_serving/1.0"})
    texts = [json.loads(line[len("data:"):])["generated_text"] for line in response.text.splitlines() if line.startswith("data:")]
    assert texts[-1] == "".join(texts[:-1]) == text_of(compat, 4)


def test_most_probable_tokens(compat):
    body = ask(compat, "/models/x/generate", max_new_tokens=3, top_n_tokens=2).json()
    assert [len(top) for top in body["top_tokens"]] == [2, 2, 2]
    assert [top[0]["id"] for top in body["top_tokens"]] == [t["id"] for t in body["tokens"]]


def test_settings_as_its_clients_spell_them(compat):
    plain = text_of(compat, 4)
    for parameters in ({"do_sample": "False", "top_p": "0.8", "top_k": "1"}, {"do_sample": False, "topk_k": 3, "made_up": {}},
                       {"do_sample": "false", "temperature": 0}, {"do_sample": True, "temperature": 0}, {"do_sample": "True", "top_k": 0},
                       {"truncate": False, "typical_p": 0, "top_n_tokens": 0, "seed": 0, "stop": [], "watermark": "False"},
                       {"do_sample": "True", "top_k": 1, "top_p": 7, "repetition_penalty": 1.0}):
        body = ask(compat, "/models/x/generate", max_new_tokens=4, **parameters).json()
        assert body["generated_text"] == plain, parameters
    assert compat.post("/models/x/generate", {"inputs": PROMPT}).json()["generated_tokens"] > 4
    assert compat.post("/models/x/generate", {"inputs": PROMPT, "parameters": None, "stream": None}).status_code == 200


def test_new_tokens_default_to_300(compat):
    body = compat.post("/models/x/generate", {"inputs": "one two", "parameters": {"stop": "impossible"}}).json()
    assert body["generated_tokens"] <= 300


def test_a_seed_repeats(compat):
    def text(seed):
        body = ask(compat, "/models/x/generate", do_sample="True", temperature=2.5, top_k=100, seed=seed, max_new_tokens=12).json()
        assert body["seed"] == seed
        return body["generated_text"]

    assert text(9) == text(9) and len({text(seed) for seed in range(1, 6)}) > 1


def test_figures(compat):
    for path in ("/serving/get_bs", "/serving/get_request_numbers"):
        assert compat.get(path).json() == {"event": "message", "retry": 30000, "data": 0}
        for headers in ({"Accept": "text/event-stream"}, {"Accept": "*/*", "Cache-Control": "no-cache"}):
            event = compat.get(path, headers=headers)
            assert event.text == "data: {\"event\":\"message\",\"retry\":30000,\"data\":0}\r\n\r\n"
            assert event.headers["content-type"].startswith("text/event-stream")
    info = compat.get("/serving/get_serverd_model_info").json()
    assert set(info) == {"docker_label", "max_batch_total_tokens", "max_concurrent_requests", "max_input_length", "max_total_tokens",
                         "model_device_type", "model_dtype", "model_id", "model_pipeline_tag", "version"}
    assert info["model_pipeline_tag"] == "text-generation" and info["model_id"] == "demo" and info["max_total_tokens"] == 2048


def test_running_requests_are_counted(compat):
    stream = requests.post(compat.url + "/models/x/generate_stream", stream=True, timeout=PATIENCE, json={
        "inputs": PROMPT, "parameters": {"max_new_tokens": 300, "do_sample": True, "temperature": 5, "top_k": 1000}})
    compat.wait_until(lambda m: m["tutti_sequences_running"] == 1)
    stream.close()
    compat.wait_idle()


@pytest.mark.parametrize("body, words", [
    (b"", "empty"), (b"[]", "object"), (b"{\"inputs\": 5}", "inputs"), (b"{\"inputs\": \"\"}", "inputs"),
    (b"{\"inputs\": \"a\", \"parameters\": 5}", "parameters"), (b"{\"inputs\": \"a\", \"parameters\": {\"max_new_tokens\": \"x\"}}", "max_new"),
    (b"{\"inputs\": \"a\", \"parameters\": {\"do_sample\": \"maybe\"}}", "do_sample"), (b"{\"inputs\": \"a\", \"stream\": []}", "stream"),
    (b"{\"inputs\": \"a\", \"parameters\": {\"temperature\": \"nan\"}}", "temperature"),
])
def test_what_is_wrong_is_named(compat, body, words):
    for path in ("/models/x", "/models/x/generate", "/models/x/generate_stream"):
        response = requests.post(compat.url + path, data=body, headers={"Content-Type": "application/json"}, timeout=PATIENCE)
        assert response.status_code == 422 and words in response.json()["error"], response.text


def test_a_prompt_beyond_the_context_is_refused(compat):
    response = compat.post("/models/x/generate_stream", {"inputs": "word " * 8000})
    assert response.status_code == 422 and "2048" in response.json()["error"]


def test_it_is_off_unless_asked_for(server):
    assert ask(server, "/models/x/generate").status_code == 404 and server.get("/serving/get_bs").status_code == 404


# ---- the configuration file ----

CONFIG = """
model_config:
    model_name: 'llama_7b'
    max_generate_length: 4096
    end_token: 2
    seq_length: [1024, 256]
    vocab_size: 32000
    decode_batch_size: [7]
    batching_strategy: 'continuous'
    page_attention: True
    backend: 'kbk'
serving_config:
    agent_ports: [16002]
    server_ip: '127.0.0.1'
    server_port: PORT
pa_config:
    num_blocks: 40
    block_size: 16
    decode_seq_length: 4096
tokenizer:
    type: LlamaTokenizer
    vocab_file: '/path/tokenizer.model'
"""


def test_its_configuration_is_taken_over(start, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("PORT", "45679"))
    server = start("--config", path)  # --port 0 comes first
    assert server.port != 45679
    info = server.get("/serving/get_serverd_model_info").json()
    assert info["model_id"] == "llama_7b" and info["max_total_tokens"] == 256 and info["max_batch_total_tokens"] == 640
    assert info["max_concurrent_requests"] == 7 + 1024
    warnings = [line for line in server.log().splitlines() if " warn " in line]
    assert len(warnings) == 1
    for name in ("model_config.end_token", "model_config.vocab_size", "model_config.backend", "serving_config.agent_ports",
                 "tokenizer.type", "tokenizer.vocab_file"):
        assert name in warnings[0]
    for name in ("batching_strategy", "page_attention", "num_blocks", "server_ip"):
        assert name not in warnings[0]


def test_flags_go_before_its_configuration(start, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("PORT", "45679"))
    server = start("--config", path, "--max-seqs", 256, "--context", 128)  # 256 is also what it is without flag and file
    info = server.get("/serving/get_serverd_model_info").json()
    assert info["max_concurrent_requests"] == 256 + 1024 and info["max_total_tokens"] == 128


@pytest.mark.parametrize("text, words", [
    ("serving_config: 3", "line 1: serving_config must be a mapping"), ("pa_config: [1]", "pa_config must be a mapping"),
    ("serving_config:\n  server_port: 1\n  server_port: 2", "line 3: duplicate key serving_config.server_port"),
    ("model_config: {}\nmodel_config: {}", "line 2: duplicate key model_config"),
    ("a: [", "line"), ("- 1\n- 2\n", "mapping"), ("", "nothing"), ("serving_config: {server_port: x}", "server_port"),
    ("serving_config: {server_port: 70000}", "65535"), ("pa_config: {num_blocks: 5}", "both"), ("serving_config: {server_ip: []}", "server_ip"),
    ("pa_config: {num_blocks: 99999999999}", "num_blocks"), ("model_config: {seq_length: [a]}", "seq_length"), ("[a]: 5", "name of a setting"),
])
def test_a_wrong_configuration_is_refused(tmp_path, text, words):
    import subprocess

    from conftest import BIN, DEMO
    path = tmp_path / "config.yaml"
    path.write_text(text)
    done = subprocess.run([BIN, "serve", DEMO, "--port", "0", "--config", path], capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode != 0 and words in done.stderr.decode() and "config.yaml" in done.stderr.decode(), done.stderr
