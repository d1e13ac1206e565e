"""Adapters through the API: model "ID:NAME" chooses one, many of them answer in one batch."""
import json
import os
import random
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import BIN, DEMO, PATIENCE

with open(os.path.join(DEMO, "config.json"), encoding="utf-8") as file:
    CONFIG = json.load(file)
QUESTIONS = ["What is the capital of France?", "Count to ten.", "Who wrote Hamlet?", "What is two plus two?"]


def write_adapter(folder, seed, rank=4):
    """A folder as PEFT saves it, with random updates of every query_key_value."""
    rng = random.Random(seed)
    n_in = CONFIG["hidden_size"]
    n_out = CONFIG["kv_channels"] * (CONFIG["num_attention_heads"] + 2 * CONFIG["multi_query_group_num"])
    header, data = {}, b""
    for layer in range(CONFIG["num_layers"]):
        path = f"base_model.model.transformer.encoder.layers.{layer}.self_attention.query_key_value"
        for name, shape, scale in (("lora_A", [rank, n_in], n_in ** -0.5), ("lora_B", [n_out, rank], 0.3)):
            values = [scale * rng.gauss(0, 1) for _ in range(shape[0] * shape[1])]
            header[f"{path}.{name}.weight"] = {"dtype": "F32", "shape": shape,
                                               "data_offsets": [len(data), len(data) + 4 * len(values)]}
            data += struct.pack(f"<{len(values)}f", *values)
    os.makedirs(folder)
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as out:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
                   "target_modules": ["query_key_value"]}, out)
    return str(folder)


@pytest.fixture
def adapted(start, tmp_path):
    folders = [write_adapter(tmp_path / name, seed) for seed, name in enumerate(("red", "blue"))]
    server = start("--name", "demo", "--lora", "red=" + folders[0], "--lora", folders[1])
    server.folders = folders
    return server


def ask(server, model, question, **more):
    reply = server.chat(question, model=model, temperature=0, max_tokens=24, **more)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    return reply.json()["choices"][0]["message"]["content"]


def test_the_list_of_models_holds_the_adapters(adapted):
    listed = adapted.get("/v1/models").json()["data"]
    assert [m["id"] for m in listed] == ["demo", "demo:red", "demo:blue"]
    assert [m.get("parent") for m in listed] == [None, "demo", "demo"]
    assert adapted.get("/v1/models/demo:blue").json()["id"] == "demo:blue"


@pytest.mark.parametrize("model", ["demo:green", "demo:", "demo:red:red", "other:red", "red"])
def test_an_unknown_adapter_is_not_found(adapted, model):
    reply = adapted.chat("Hello", model=model)
    assert reply.status_code == 404
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert model in error["message"]
    assert adapted.get("/v1/models/" + model).status_code == 404


def test_each_adapter_answers_alone_as_among_the_others(adapted):
    models = ["demo", "demo:red", "demo:blue"]
    jobs = [(m, q) for q in QUESTIONS for m in models]
    alone = {job: ask(adapted, *job) for job in jobs}
    assert len({alone[m, QUESTIONS[0]] for m in models}) == 3
    with ThreadPoolExecutor(len(jobs)) as pool:
        for _ in range(3):
            together = dict(zip(jobs, pool.map(lambda job: ask(adapted, *job), jobs)))
            assert together == alone


def test_prompts_of_another_adapter_are_not_taken_from_the_cache(adapted):
    question = "Tell me about the sea, the sky, the sun, the moon and the stars above. " * 4

    def cached(model):
        reply = adapted.chat(question, model=model, temperature=0, max_tokens=4)
        return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("demo") == 0
    assert cached("demo:red") == 0
    assert cached("demo:blue") == 0
    assert cached("demo:red") > 0
    assert cached("demo") > 0


def test_a_stream_names_the_adapter(adapted):
    reply = adapted.chat("Hello", model="demo:red", stream=True, max_tokens=4)
    chunks = [json.loads(line[6:]) for line in reply.text.splitlines()
              if line.startswith("data: ") and line != "data: [DONE]"]
    assert {chunk["model"] for chunk in chunks} == {"demo:red"}


def test_other_apis_name_an_adapter(start, tmp_path):
    folder = write_adapter(tmp_path / "red", 0)
    server = start("--name", "org/demo", "--lora", "red=" + folder, "--api", "tgi,llm-serving")
    prompt, more = "Once upon a time", {"max_tokens": 8, "temperature": 0, "repetition_penalty": 1}

    def text(model):
        return server.post("/v1/completions", {"model": model, "prompt": prompt, **more}).json()["choices"][0]["text"]

    def tgi(path, **parameters):
        return server.post(path, {"inputs": prompt, "parameters": {"max_new_tokens": 8, **parameters}})

    base, red = text("org/demo"), text("org/demo:red")
    assert base != red
    assert tgi("/generate").json()["generated_text"] == tgi("/generate", adapter_id=None).json()["generated_text"] == base
    assert tgi("/generate", adapter_id="red").json()["generated_text"] == red
    assert json.dumps(red) in tgi("/generate_stream", adapter_id="red").text
    for name in ("blue", "", "red:red"):
        refused = tgi("/generate", adapter_id=name)
        assert refused.status_code == 422 and "adapter_id" in refused.json()["error"]
    for name in ("org/demo:red", "org/demo%3Ared", "org%2Fdemo:red", "org%2fdemo%3a%72ed"):
        assert tgi(f"/models/{name}/generate", do_sample="False").json()["generated_text"] == red
        assert json.dumps(red) in tgi(f"/models/{name}/generate_stream", do_sample="False", return_full_text="True").text
        assert server.get("/v1/models/" + name).json()["id"] == "org/demo:red"
    for name in ("org/demo%3Ablue", "org/demo:%FF", "org/demo%3Ared%253A"):
        assert tgi(f"/models/{name}/generate").status_code == server.get("/v1/models/" + name).status_code == 404


def test_beam_search_answers_as_the_command_does(adapted):
    reply = adapted.chat(QUESTIONS[0], model="demo:red", num_beams=4, n=2, max_tokens=24, early_stopping="never")
    texts = [choice["message"]["content"] for choice in reply.json()["choices"]]
    assert len(texts) == 2
    stream = adapted.chat(QUESTIONS[0], model="demo:red", num_beams=4, n=2, max_tokens=24, early_stopping="never",
                          stream=True)
    streamed = ["", ""]
    for line in stream.text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            for choice in json.loads(line[6:])["choices"]:
                streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == texts
    done = subprocess.run([BIN, "generate", DEMO, "--lora", adapted.folders[0], "--chat", "-p", QUESTIONS[0], "-n", "24",
                           "--beams", "4", "--best", "2", "--early-stopping", "never"], capture_output=True, text=True,
                          timeout=PATIENCE, check=True)
    assert done.stdout == "".join(text + "\n" for text in texts)


@pytest.mark.parametrize("field, value", [("num_beams", 65), ("num_beams", 0), ("early_stopping", "sometimes"),
                                          ("length_penalty", "long"), ("n", 3), ("stop", "x")])
def test_wrong_beam_settings_are_refused(adapted, field, value):
    reply = adapted.chat("Hello", **{"num_beams": 2, field: value})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == field
