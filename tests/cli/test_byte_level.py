"""Models with byte-level tokenizers, as text: tokenize, generate, chat and convert. The tiny models of tests/fixtures have
vocabularies for ids only, so their rows are repeated until the small tokenizers of tests/fixtures/tokenizer/bytes fit."""
import json
import os
import shutil
import subprocess

import pytest
import requests
from test_cli import BIN, FIXTURES, PATIENCE, tutti
from widened import N_VOCAB, widen

BYTES = os.path.join(FIXTURES, "tokenizer", "bytes")
TEXTS = ["Hello, world", "don't  stop\n\n\tnow 12345", "中国的首都是北京。", "emoji 🦊 and é, ½ Ⅻ", "a\u00a0b\u3000c \n d"]

# model, files of its tokenizer, what stands before a text
MODELS = {
    "gpt2": ("gpt2-tiny", ["gpt2/vocab.json", "gpt2/merges.txt"], []),
    "bloom": ("bloom-tiny", ["bloom.json"], []),
    "qwen2": ("qwen2-tiny", ["qwen2.json"], []),
    "qwen3": ("qwen3-tiny", ["qwen2.json"], []),
    "llama": ("llama-tiny-tied", ["llama3.json"], ["<|endoftext|>"]),
    "gpt-oss": ("gpt-oss-tiny", ["o200k.json"], []),
    "glm4": ("glm4-tiny", ["glm4/tokenizer.model", "glm4/tokenizer_config.json"], ["[gMASK]", "<sop>"]),
    "mistral": ("mistral-tiny", ["llama2.json"], ["<s>"]),
    "tinyllama": ("llama-tiny-tied", ["metaspace.json"], ["<s>"]),
    "chatglm": ("glm-4-9b-tiny", ["glm4/tokenizer.model", "glm4/tokenizer_config.json"], ["[gMASK]", "<sop>"]),
}


@pytest.fixture(params=MODELS)
def model(request, tmp_path):
    source, files, prefix = MODELS[request.param]
    folder = tmp_path / request.param
    folder.mkdir()
    widen(os.path.join(FIXTURES, source), folder)
    for name in files:
        own = os.path.basename(name) if "/" in name else "tokenizer.json"
        shutil.copyfile(os.path.join(BYTES, name), folder / own)
    return request.param, str(folder), prefix


def ids_of(folder, text, *args):
    found = tutti("tokenize", folder, text, "--ids", *args).stdout.strip()
    return list(map(int, found.split(","))) if found else []


def test_text_becomes_ids_and_text_again(model, record_property):
    name, folder, prefix = model
    for text in TEXTS:
        ids = ids_of(folder, text)
        assert ids and max(ids) < N_VOCAB
        assert tutti("tokenize", folder, "--decode", ",".join(map(str, ids))).stdout == text + "\n"
        found = json.loads(tutti("tokenize", folder, text, "--json").stdout)
        assert found["ids"] == ids and len(found["pieces"]) == len(ids)
    assert len(ids_of(folder, "a", "--special")) == 1 + len(prefix)
    record_property("checked", MODELS[name][0])


def test_text_spells_no_special_token(model):
    _, folder, _ = model
    for text in "<|endoftext|>", "<|im_start|>", "[gMASK]<sop>", "<s>", "</s>":
        assert len(ids_of(folder, text)) > 1


def test_generates_text_alone_and_in_a_batch(model, tmp_path):
    _, folder, _ = model
    args = ["--temperature", "0", "-n", "12", "--type", "f32"]
    alone = [tutti("generate", folder, "-p", text, *args).stdout for text in TEXTS[:3]]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS[:3]), encoding="utf-8")
    answers = [json.loads(line) for line in tutti("generate", folder, "-f", prompts, "--json", *args).stdout.splitlines()]
    answers.sort(key=lambda answer: answer["index"])
    shown = [answer["text"].replace("\r\n", "\n").replace("\r", "\n") for answer in answers]  # as subprocess reads lines
    assert [text + "\n" for text in shown] == alone
    assert any(text.strip() for text in alone)


def test_a_converted_model_cuts_text_alike(model, tmp_path):
    name, folder, _ = model
    if name == "bloom":   # its <unk> is a token of its own, which is not lost on the way
        assert ids_of(folder, "\u00fe")
    out = tmp_path / "model.gguf"
    tutti("convert", folder, out, "--type", "f32")
    for text in TEXTS + ["<|im_start|> <think>"]:
        assert ids_of(str(out), text) == ids_of(folder, text)
        assert ids_of(str(out), text, "--special") == ids_of(folder, text, "--special")
    args = ["-p", "Hello", "--temperature", "0", "-n", "12", "--type", "f32"]
    assert tutti("generate", out, *args).stdout == tutti("generate", folder, *args).stdout


def test_chats_in_the_format_of_its_special_tokens(tmp_path):
    folder = tmp_path / "chat"
    folder.mkdir()
    widen(os.path.join(FIXTURES, "qwen2-tiny"), folder)
    shutil.copyfile(os.path.join(BYTES, "qwen2.json"), folder / "tokenizer.json")
    args = ["--temperature", "0", "-n", "8", "--type", "f32"]
    asked = tutti("generate", folder, "--chat", "-p", "Hello", *args).stdout
    assert asked.endswith("\n")
    spelled = tutti("generate", folder, "-p", "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", *args).stdout
    assert asked != spelled   # a text that spells the format is no chat


@pytest.mark.parametrize("kind", ["file", "list"])
def test_a_converted_model_keeps_its_template(kind, tmp_path):
    folder, out = tmp_path / "chat", tmp_path / "model.gguf"
    folder.mkdir()
    widen(os.path.join(FIXTURES, "qwen2-tiny"), folder)
    shutil.copyfile(os.path.join(BYTES, "qwen2.json"), folder / "tokenizer.json")
    template = "one {{ messages[0].content }} two"
    if kind == "file":
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    else:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": [
            {"name": "default", "template": template}, {"name": "tool_use", "template": "tools"}]}), encoding="utf-8")
    tutti("convert", folder, out, "--type", "f32")
    args = ["-p", "Hello", "--temperature", "0", "-n", "12", "--type", "f32"]
    want = tutti("generate", folder, "--chat", *args).stdout
    assert tutti("generate", out, "--chat", *args).stdout == want
    args[1] = "one Hello two"
    assert tutti("generate", out, *args).stdout == want


# What a text gets around it; the files are in the shape of a model for embeddings, of BERT, T5 and XLM-R.
@pytest.mark.parametrize("kind, before, after", [("pad-is-text", [], [2]), ("bert", [2], [3]), ("t5", [], [1]), ("xlmr", [0], [2])])
def test_tokens_around_a_text_are_added_where_asked_for(kind, before, after, tmp_path):
    folder, out = tmp_path / "around", tmp_path / "model.gguf"
    folder.mkdir()
    widen(os.path.join(FIXTURES, "qwen2-tiny"), folder)
    shutil.copyfile(os.path.join(FIXTURES, "tokenizer", "json", kind + ".json"), folder / "tokenizer.json")
    tutti("convert", folder, out, "--type", "f32")
    for text in "Hello, world", "don't  stop! 12", "":
        ids = ids_of(str(folder), text)
        assert not set(ids) & set(before + after)
        assert ids_of(str(folder), text, "--special") == before + ids + after
        assert ids_of(str(out), text) == ids
        assert ids_of(str(out), text, "--special") == before + ids + after
    server = subprocess.Popen([BIN, "serve", str(folder), "--port", "0", "--type", "f32"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        url = server.stdout.readline().decode().removeprefix("listening on ").strip()

        def post(path, body):
            return requests.post(url + path, json=body, timeout=PATIENCE).json()

        ids = ids_of(str(folder), "Hello, world")
        assert post("/tokenize", {"prompt": "Hello, world"})["tokens"] == before + ids + after
        assert post("/tokenize", {"prompt": "Hello, world", "add_special_tokens": False})["tokens"] == ids
        n = len(before + ids + after)
        assert post("/v1/embeddings", {"input": "Hello, world"})["usage"]["prompt_tokens"] == n
        assert post("/v1/completions", {"prompt": "Hello, world", "max_tokens": 1})["usage"]["prompt_tokens"] == n
    finally:
        server.terminate()
        server.wait(PATIENCE)


with open(os.path.join(BYTES, "affixes.json"), encoding="utf-8") as affixes:
    AFFIXES = json.load(affixes)


@pytest.mark.parametrize("at", range(0, len(AFFIXES), 3))
def test_settings_say_what_stands_around_a_text(at, tmp_path):
    """add_bos_token and add_eos_token next to a tokenizer.json. Expected ids are transformers' (tools/fixtures/make_affix_cases.py)."""
    cases, folder = AFFIXES[at:at + 3], tmp_path / "model"
    folder.mkdir()
    widen(os.path.join(FIXTURES, "llama-tiny-tied"), folder)
    shutil.copyfile(os.path.join(BYTES, cases[0]["tokenizer"] + ".json"), folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(cases[0]["config"]), encoding="utf-8")
    tutti("convert", folder, tmp_path / "model.gguf", "--type", "f32")
    for path in folder, tmp_path / "model.gguf":
        assert [ids_of(str(path), case["text"], "--special") for case in cases] == [case["ids"] for case in cases]


@pytest.mark.parametrize("source", ["llama-tiny-tied", "gemma2-tiny"])
def test_a_file_without_bos_adds_none_whatever_the_family(source, tmp_path):
    """As in transformers 4 and 5 for GPT2Tokenizer: SmolLM is a LLaMA with such files."""
    folder, out = tmp_path / "model", tmp_path / "model.gguf"
    folder.mkdir()
    widen(os.path.join(FIXTURES, source), folder)
    shutil.copyfile(os.path.join(BYTES, "qwen2.json"), folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>"}),
                                                  encoding="utf-8")
    tutti("convert", folder, out, "--type", "f32")
    for model in folder, out:
        assert ids_of(str(model), "Hello", "--special") == ids_of(str(model), "Hello")


def test_serves_text_and_chat(tmp_path):
    folder = tmp_path / "serve"
    folder.mkdir()
    widen(os.path.join(FIXTURES, "qwen2-tiny"), folder)
    shutil.copyfile(os.path.join(BYTES, "qwen2.json"), folder / "tokenizer.json")
    server = subprocess.Popen([BIN, "serve", str(folder), "--port", "0", "--type", "f32"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        url = server.stdout.readline().decode().removeprefix("listening on ").strip()

        def post(path, body):
            return requests.post(url + path, json=body, timeout=PATIENCE).json()

        text = TEXTS[3]
        found = post("/tokenize", {"prompt": text, "add_special_tokens": False})
        assert found["tokens"] == ids_of(str(folder), text)
        assert post("/detokenize", {"tokens": found["tokens"]})["prompt"] == text
        prompt = {"prompt": text, "temperature": 0, "max_tokens": 8}
        alone = tutti("generate", folder, "-p", text, "--temperature", "0", "-n", "8", "--type", "f32").stdout
        assert post("/v1/completions", prompt)["choices"][0]["text"] + "\n" == alone
        chat = post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8})
        asked = tutti("generate", folder, "--chat", "-p", text, "--temperature", "0", "-n", "8", "--type", "f32").stdout
        assert chat["choices"][0]["message"]["content"] + "\n" == asked
        with requests.post(url + "/v1/completions", json={**prompt, "stream": True}, timeout=PATIENCE, stream=True) as answer:
            events = [line[6:] for line in answer.iter_lines() if line.startswith(b"data: ") and line != b"data: [DONE]"]
        pieces = [json.loads(event)["choices"] for event in events]
        assert "".join(choices[0]["text"] for choices in pieces if choices) + "\n" == alone
    finally:
        server.terminate()
        server.wait(PATIENCE)


def test_what_is_not_read_is_named(tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    widen(os.path.join(FIXTURES, "qwen2-tiny"), folder)
    with open(os.path.join(BYTES, "qwen2.json"), encoding="utf-8") as file:
        data = json.load(file)
    data["normalizer"] = {"type": "Uppercase"}
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    done = tutti("tokenize", folder, "a", check=1)
    assert "tokenizer.json: normalizer is of type Uppercase, expected NFC" in done.stderr
    (folder / "tokenizer.json").write_text("{\"model\": {\"type\": \"BPE\"", encoding="utf-8")
    assert "tokenizer.json: line 1" in tutti("tokenize", folder, "a", check=1).stderr
