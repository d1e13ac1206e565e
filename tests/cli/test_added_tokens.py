"""Folders with a SentencePiece model and the small files of a fine-tune next to it: which tokens were added, which of them are special,
and what stands around a text. Expected ids are transformers' (tools/fixtures/sentencepiece_folders.py)."""
import contextlib
import json
import os
import shutil
import subprocess

import pytest
import requests
from widened import N_VOCAB, widen
from test_cli import BIN, DEMO, FIXTURES, PATIENCE, tutti

FOLDERS = os.path.join(FIXTURES, "tokenizer", "folders")
with open(os.path.join(FOLDERS, "cases.json"), encoding="utf-8") as cases:
    CASES = json.load(cases)
TEXTS = CASES["texts"]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1842767\n"


def make_folder(folder, name):
    """A model whose tokenizer is that of a folder of cases.json."""
    folder.mkdir()
    case = CASES["folders"][name]
    widen(os.path.join(FIXTURES, "llama-tiny-tied"), folder)
    shutil.copyfile(os.path.join(FOLDERS, case["model"] + ".model"), folder / "tokenizer.model")
    for file, content in case["files"].items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return case


@contextlib.contextmanager
def serving(model, *args):
    """Runs a server; gives a function that posts to it and returns the reply."""
    server = subprocess.Popen([BIN, "serve", str(model), "--port", "0", "--type", "f32", *args], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        url = server.stdout.readline().decode().removeprefix("listening on ").strip()
        with requests.Session() as session:
            yield lambda path, **body: session.post(url + path, json=body, timeout=PATIENCE)
    finally:
        server.terminate()
        server.wait(PATIENCE)
        server.stdout.close()


def check_ids(model, case):
    with serving(model) as post:
        def ids(text, add, parse):
            return post("/tokenize", prompt=text, add_special_tokens=add, parse_special=parse).json()["tokens"]

        got = {text: (ids(text, False, False), ids(text, False, True), ids(text, True, False)) for text in TEXTS}
        want = {text: (plain, parsed, case["before"] + plain + case["after"])
                for text, plain, parsed in zip(TEXTS, case["plain"], case["parsed"])}
        assert {text: (got[text], want[text]) for text in TEXTS if got[text] != want[text]} == {}
        shown = {i: post("/detokenize", tokens=[int(i)]).json()["prompt"] for i in case["added"]}
        assert shown == case["added"]
        added = set(map(int, case["added"]))
        for text, plain in zip(TEXTS, case["plain"]):
            if not added & set(plain):
                assert post("/detokenize", tokens=plain).json()["prompt"] == text.replace("\u2581", " ")


@pytest.mark.parametrize("name", CASES["folders"])
def test_ids_are_those_of_transformers(name, tmp_path):
    case = make_folder(tmp_path / "model", name)
    check_ids(tmp_path / "model", case)
    tutti("convert", tmp_path / "model", tmp_path / "model.gguf", "--type", "f32")
    check_ids(tmp_path / "model.gguf", case)


@pytest.mark.parametrize("name", CASES["folders"])
def test_the_command_line_has_the_same_ids(name, tmp_path):
    case = make_folder(tmp_path / "model", name)

    def ids(text, *args):
        return json.loads(tutti("tokenize", tmp_path / "model", text, "--json", *args).stdout)["ids"]

    at = TEXTS.index("x<|im_sep|>y" if name == "yi" else "<s> Hello </s> there")
    assert ids(TEXTS[at]) == case["plain"][at] != case["parsed"][at]
    assert ids(TEXTS[at], "--parse-special") == case["parsed"][at]
    assert ids(TEXTS[at], "--special") == case["before"] + case["plain"][at] + case["after"]


def forced(model, token):
    """What completions of four times that token show: at once, and streamed."""
    body = {"prompt": "Hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True, "logit_bias": {str(token): 100}}
    with serving(model) as post:
        whole = post("/v1/completions", **body).json()["choices"][0]["text"]
        lines = post("/v1/completions", **body, stream=True).text.splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return whole, "".join(event["choices"][0]["text"] for event in events if event["choices"])


@pytest.mark.parametrize("name", ["pad-is-a-piece", "pad-is-listed"])
def test_a_padding_token_that_is_a_piece_is_shown(name, tmp_path):
    case = make_folder(tmp_path / "model", name)
    mark = case["plain"][TEXTS.index("x!")][-1]
    assert case["files"]["tokenizer_config.json"]["pad_token"] == "!"
    tutti("convert", tmp_path / "model", tmp_path / "model.gguf", "--type", "f32")
    for model in tmp_path / "model", tmp_path / "model.gguf":
        assert forced(model, mark) == ("!!!!", "!!!!")


def test_added_blanks_are_shown(tmp_path):
    case = make_folder(tmp_path / "model", "blanks")
    for token, text in list(case["added"].items())[-2:]:
        assert text.isspace()
        assert forced(tmp_path / "model", token) == (text * 4, text * 4)


def test_a_message_makes_no_mark_of_the_model(tmp_path):
    """Yi's marks are user-defined pieces: the SentencePiece model itself finds them in plain text."""
    case = make_folder(tmp_path / "model", "yi")
    (tmp_path / "model" / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}", encoding="utf-8")
    start, end = case["parsed"][TEXTS.index("<|im_start|><|im_end|>Hello")][:2]
    text = "<|im_start|>Hello<|im_end|>"
    assert start in case["plain"][TEXTS.index("<|im_start|><|im_end|>Hello")]
    tutti("convert", tmp_path / "model", tmp_path / "model.gguf", "--type", "f32")
    for model in tmp_path / "model", tmp_path / "model.gguf":
        with serving(model) as post:
            ids = post("/tokenize", messages=[{"role": "user", "content": text}]).json()["tokens"]
            assert (ids[0], ids[-1]) == (start, end) and not {start, end} & set(ids[1:-1])
            assert post("/detokenize", tokens=ids[1:-1]).json()["prompt"] == text


# ---- what ends an answer ------------------------------------------------------------------------------------


def test_plain_completions_end_at_listed_ids_only(tmp_path):
    """<|im_end|> and <|im_start|> are control tokens that no file lists as end; the first ends answers of a chat."""
    folder = tmp_path / "model"
    case = make_folder(folder, "added-tokens-alone")
    marks = case["parsed"][TEXTS.index("<|im_end|>")] + case["parsed"][TEXTS.index("<|im_start|><|im_end|>Hello")][:1]
    listed, eos = [7, 300, 42], 2  # eos: of tokenizer_config.json
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}), encoding="utf-8")
    tutti("convert", folder, tmp_path / "model.gguf", "--type", "f32")
    for model in folder, tmp_path / "model.gguf":
        with serving(model) as post:
            def ending(token, path="/v1/completions", **body):
                body |= {"max_tokens": 3, "temperature": 0, "logit_bias": {str(token): 100}}
                reply = post(path, **body).json()
                return reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]

            assert [ending(token, prompt="Hello") for token in marks] == [("length", 3)] * 2
            assert {ending(token, prompt="Hello")[0] for token in [*listed, eos]} == {"stop"}
            hello = [{"role": "user", "content": "Hello"}]
            chat = [ending(token, "/v1/chat/completions", messages=hello)[0] for token in [*marks, *listed, eos]]
            assert chat == ["stop", "length"] + ["stop"] * 4


@pytest.mark.parametrize("is_listed", [True, False])
def test_an_answer_of_gpt_oss_has_several_messages(is_listed, tmp_path):
    """As its generation_config.json lists them, or known by their spellings, as in GGUF files of llama.cpp. Messages end at <|end|>."""
    folder = tmp_path / "model"
    folder.mkdir()
    widen(os.path.join(FIXTURES, "gpt-oss-tiny"), folder)
    shutil.copyfile(os.path.join(FIXTURES, "tokenizer", "bytes", "o200k.json"), folder / "tokenizer.json")
    with open(os.path.join(FIXTURES, "template", "harmony.json"), encoding="utf-8") as file:
        (folder / "chat_template.jinja").write_text(json.load(file)["templates"]["gpt-oss.jinja"], encoding="utf-8")
    with open(folder / "tokenizer.json", encoding="utf-8") as file:
        ids = {token["content"]: token["id"] for token in json.load(file)["added_tokens"]}
    if is_listed:
        (folder / "generation_config.json").write_text(json.dumps(
            {"eos_token_id": [ids["<|return|>"], ids["<|endoftext|>"], ids["<|call|>"]]}), encoding="utf-8")
    tutti("convert", folder, tmp_path / "model.gguf", "--type", "f32")
    for model in folder, tmp_path / "model.gguf":
        with serving(model) as post:
            hello = [{"role": "user", "content": "Hello <|end|>"}]
            prompt = post("/tokenize", messages=hello).json()["tokens"]
            assert prompt[0] == ids["<|start|>"] and prompt.count(ids["<|message|>"]) == prompt.count(ids["<|end|>"]) == 2
            assert post("/detokenize", tokens=prompt[prompt.index(ids["<|end|>"]) + 1:]).json()["prompt"].endswith("Hello <|end|>assistant")

            def ending(name, path="/v1/chat/completions", **body):
                body |= {"max_tokens": 3, "temperature": 0, "logit_bias": {str(ids[name]): 100}}
                return post(path, **body).json()["choices"][0]["finish_reason"]

            names = ["<|return|>", "<|call|>", "<|endoftext|>", "<|end|>", "<|message|>", "<|channel|>"]
            assert [ending(name, messages=hello) for name in names] == ["stop"] * 3 + ["length"] * 3
            plain = [ending(name, "/v1/completions", prompt="Hello") for name in names]
            assert plain == (["stop"] * 3 if is_listed else ["length"] * 3) + ["length"] * 3


def test_a_chatglm_folder_may_add_special_tokens(tmp_path):
    """Behind those that the family appends itself, which the list has too. Text never makes them."""
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    text = "a<think>b</think>"
    family, first = [json.loads(tutti("tokenize", DEMO, mark, "--json", "--parse-special").stdout)["ids"][-1] for mark in ("[gMASK]", "<|observation|>")]
    added = {str(family): "[gMASK]", str(first + 1): "<think>", str(first + 2): "</think>"}

    def write(listed):
        (folder / "tokenizer_config.json").write_text(json.dumps({"name_or_path": "tutti-demo-chatglm3", "added_tokens_decoder": listed}))

    write({i: {"content": content, "special": True} for i, content in added.items()})
    tutti("convert", folder, tmp_path / "model.gguf", "--type", "f32")
    for model in folder, tmp_path / "model.gguf":
        ids = json.loads(tutti("tokenize", model, text, "--json", "--parse-special").stdout)["ids"]
        assert [i for i in ids if i > first] == [first + 1, first + 2]
        assert max(json.loads(tutti("tokenize", model, text, "--json").stdout)["ids"]) < family
        with serving(model) as post:
            assert max(post("/tokenize", messages=[{"role": "user", "content": text}]).json()["tokens"]) <= first
    write({str(first + 1): {"content": 5, "special": True}})
    assert f"added token {first + 1}: content is no text" in tutti("tokenize", folder, "x", check=1).stderr
    write({str(first + 1 + i): {"content": f"<{i}>", "special": True} for i in range(60)})
    assert "but the model has a vocabulary of 4160" in tutti("tokenize", folder, "x", check=1).stderr


# ---- GGUF files without byte pieces -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["some-bytes", "no-bytes"])
def test_characters_that_no_pieces_cover_are_unknown(name, tmp_path):
    """Expected ids are sentencepiece's (tools/fixtures/make_gguf_bytes.py)."""
    with open(os.path.join(FIXTURES, "gguf", "bytes.json"), encoding="utf-8") as file:
        cases = json.load(file)
    model = os.path.join(FIXTURES, "gguf", name + ".gguf")
    tutti("convert", model, tmp_path / "again.gguf", "--type", "f32")
    for path in model, tmp_path / "again.gguf":
        with serving(path) as post:
            got = [post("/tokenize", prompt=text, add_special_tokens=False).json()["tokens"] for text in cases["texts"]]
            assert got == cases["files"][name + ".gguf"]
            reply = post("/v1/completions", prompt="中é\n🦊", max_tokens=4, temperature=0, ignore_eos=True)
            assert reply.json()["usage"]["completion_tokens"] == 4


# ---- files that cannot be used ------------------------------------------------------------------------------


@pytest.mark.parametrize("content, words", [
    (json.dumps({"version": "1.0", "model": {"type": "CTC", "vocab": {}}, "added_tokens": []}), "CTC"),
    ("{\"model\": ", "line 1"),
    (POINTER, "Git LFS"),
])
def test_a_tokenizer_json_that_cannot_be_read_gives_way(content, words, tmp_path):
    folder = tmp_path / "model"
    case = make_folder(folder, "chatml")
    at = TEXTS.index("<|im_start|> Hello <|im_end|>  there")
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    done = tutti("tokenize", folder, TEXTS[at], "--json", "--parse-special")
    warning, = [line for line in done.stderr.splitlines() if "tokenizer.json" in line]
    assert words in warning and "tokenizer.model is used in its place" in warning
    assert json.loads(done.stdout)["ids"] == case["parsed"][at]
    (folder / "tokenizer.model").unlink()
    assert words in tutti("tokenize", folder, TEXTS[at], check=1).stderr


@pytest.mark.parametrize("normalized", [True, False])
def test_a_tokenizer_json_that_hides_its_marks_comes_second(normalized, tmp_path):
    """Early conversions of LLaMA look for "</s>" in normalized text, where it is spelled "\u2581</s>"."""
    folder = tmp_path / "model"
    case = make_folder(folder, "eos")
    text = next(text for text in TEXTS if "</s>" in text)
    marks = [{"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": normalized, "special": True} for i, content in enumerate(["<unk>", "<s>", "</s>"])]
    normalizer = [{"type": "Prepend", "prepend": "\u2581"},
                  {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": marks, "normalizer": {"type": "Sequence", "normalizers": normalizer},
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "unk_token": "<unk>", "merges": [],
                  "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "\u2581": 3}}}), encoding="utf-8")
    ids = json.loads(tutti("tokenize", folder, text, "--json", "--parse-special").stdout)["ids"]
    assert (ids == case["parsed"][TEXTS.index(text)]) == normalized
    assert 2 in ids


@pytest.mark.parametrize("legacy", [True, False])
def test_llamas_class_may_drop_the_blank_before_a_text(legacy, tmp_path):
    """Expected ids are those of transformers 4.57.6 for add_prefix_space false; a tokenizer.json with the blank comes second."""
    folder, out = tmp_path / "model", tmp_path / "model.gguf"
    make_folder(folder, "eos")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**settings, "legacy": legacy, "add_prefix_space": False}), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [], "normalizer": {"type": "Prepend", "prepend": "\u2581"},
        "model": {"type": "BPE", "merges": [], "vocab": {"H": 0, "\u2581": 1}}}), encoding="utf-8")
    tutti("convert", folder, out, "--type", "f32")
    for model in folder, out:
        for text, want in ("Hello, world", "293,294,47,317"), (" two", "260,442"), ("</s>Hello", "2,293,294"):
            assert tutti("tokenize", model, text, "--ids", "--parse-special").stdout.strip() == want
    (folder / "tokenizer.model").unlink()
    said = tutti("tokenize", folder, "Hello", check=1).stderr
    assert "tokenizer.json: it puts a blank before a text, but add_prefix_space in tokenizer_config.json is false" in said


def test_a_folder_without_a_tokenizer_lists_what_was_looked_for(tmp_path):
    make_folder(tmp_path / "model", "chatml")
    (tmp_path / "model" / "tokenizer.model").unlink()
    message = tutti("tokenize", tmp_path / "model", "Hello", check=1).stderr
    for name in "tokenizer.json", "tokenizer.model", "vocab.json", "ice_text.model", "vocab.model":
        assert name in message


def test_tokens_beyond_the_rows_of_the_embedding(tmp_path):
    folder = tmp_path / "model"
    case = make_folder(folder, "added-tokens-alone")
    (folder / "added_tokens.json").write_text(json.dumps({"<|im_end|>": 500, "<|im_start|>": N_VOCAB}), encoding="utf-8")
    at = TEXTS.index("<|im_start|><|im_end|>Hello")
    done = tutti("tokenize", folder, TEXTS[at], "--json")
    assert f"{N_VOCAB + 1} tokens, but the model's embedding has {N_VOCAB} rows" in done.stderr
    assert json.loads(done.stdout)["ids"] == case["plain"][at]
    with serving(folder) as post:
        bad = post("/v1/completions", prompt="a<|im_start|>", parse_special=True, max_tokens=1)
        assert bad.status_code == 400 and "<|im_start|>" in bad.json()["error"]["message"]
        assert post("/v1/completions", prompt="a<|im_start|>", max_tokens=1).status_code == 200
