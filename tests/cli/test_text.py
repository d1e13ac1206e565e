"""Families whose tokenizers have rules of their own, text in and text out: tests/fixtures/*-text, whose answers come from
their authors' rules and PyTorch (tools/fixtures/text_fixtures.py)."""
import json
import os
import pty
import re
import select
import shutil
import subprocess

import pytest

from test_cli import BIN, DEMO, FIXTURES, GREEDY, PATIENCE, SINGLE, tutti, wrong

FOLDERS = ["chatglm-6b-text", "pangu-text"]


def read_cases(name):
    with open(os.path.join(FIXTURES, name, "text.json"), encoding="utf-8") as file:
        return json.load(file)


def generate(model, requests, tmp_path, *args):
    """Answers to JSON requests, in their order."""
    batch = tmp_path / "batch.jsonl"
    batch.write_text("".join(json.dumps(request) + "\n" for request in requests), encoding="utf-8")
    lines = tutti("generate", model, "-f", batch, "--json", *GREEDY, *args).stdout.rstrip("\n").split("\n")
    return sorted(map(json.loads, lines), key=lambda answer: answer["index"])


@pytest.mark.parametrize("name", FOLDERS)
def test_text_comes_back_as_its_authors_would_show_it(name, tmp_path):
    cases = read_cases(name)
    requests = [{key: case[key] for key in (["messages"] if "messages" in case else ["prompt"])} for case in cases]
    answers = generate(os.path.join(FIXTURES, name), requests, tmp_path, "-n", len(cases[0]["answer_ids"]))
    for case, answer in zip(cases, answers, strict=True):
        assert answer["text"] == case["text"]
        assert answer["usage"]["prompt_tokens"] == len(case["prompt_ids"])
        assert answer["usage"]["completion_tokens"] == len(case["answer_ids"])


@pytest.mark.parametrize("name", FOLDERS)
def test_one_gguf_file_holds_all_of_it(name, tmp_path):
    """Weights, tokenizer with its rules and words, chat format: also when it was converted twice."""
    (tmp_path / "alone").mkdir()
    model, again = tmp_path / "alone" / "model.gguf", tmp_path / "alone" / "again.gguf"
    tutti("convert", os.path.join(FIXTURES, name), model, "--type", "f32")
    tutti("convert", model, again, "--type", "f32")
    cases = read_cases(name)
    requests = [{key: case[key] for key in (["messages"] if "messages" in case else ["prompt"])} for case in cases]
    for path in model, again:
        answers = generate(path, requests, tmp_path, "-n", len(cases[0]["answer_ids"]))
        for case, answer in zip(cases, answers, strict=True):
            assert answer["text"] == case["text"]
            assert answer["usage"]["prompt_tokens"] == len(case["prompt_ids"])
            done = tutti("tokenize", path, "-", "--ids", "--special", stdin=case["prompt"])
            assert done.stdout == ",".join(map(str, case["prompt_ids"])) + "\n"


def test_chat_talks_to_a_chatglm_6b(record_property):
    case = read_cases("chatglm-6b-text")[0]
    question = case["messages"][0]["content"]
    done = tutti("chat", os.path.join(FIXTURES, "chatglm-6b-text"), "-n", len(case["answer_ids"]), *GREEDY, stdin=question + "\n")
    assert case["text"] in done.stdout
    record_property("checked", "chatglm-6b-text")


@pytest.mark.parametrize("name", FOLDERS)
def test_tokenize_gives_the_ids_of_a_prompt(name):
    n_behind = 2 if name.startswith("chatglm") else 0  # the mask and <sop>
    for case in read_cases(name):
        args = ["tokenize", os.path.join(FIXTURES, name), "-", "--ids"]
        want = case["prompt_ids"]
        assert tutti(*args, "--special", stdin=case["prompt"]).stdout == ",".join(map(str, want)) + "\n"
        assert tutti(*args, stdin=case["prompt"]).stdout == ",".join(map(str, want[:len(want) - n_behind])) + "\n"


def test_a_pangu_without_a_word_list_says_so_and_answers(tmp_path):
    model = tmp_path / "pangu"
    shutil.copytree(os.path.join(FIXTURES, "pangu-text"), model, ignore=shutil.ignore_patterns("jieba"))
    if os.path.exists("/usr/lib/python3/dist-packages/jieba/dict.txt"):
        pytest.skip("this machine has the word list of python3-jieba")
    done = tutti("generate", model, "-p", "hello world", "-n", "3", *GREEDY)
    assert "no word list" in done.stderr and "python3-jieba" in done.stderr
    assert done.stdout.strip()


def test_a_number_of_image_tokens_that_is_none_is_named(tmp_path):
    model = tmp_path / "chatglm"
    shutil.copytree(os.path.join(FIXTURES, "chatglm-6b-text"), model)
    for value in "-1", "\"7\"", "20000":
        (model / "tokenizer_config.json").write_text('{"num_image_tokens": %s}' % value)
        said = tutti("generate", model, "-p", "hello", check=1).stderr
        assert "num_image_tokens: expected a number of 0 to 1152" in said


def test_a_terminal_is_shown_no_control_characters_and_a_pipe_every_byte():
    model = os.path.join(FIXTURES, "chatglm-6b-text")
    case = read_cases("chatglm-6b-text")[0]
    args = ["generate", model, "--chat", "-p", case["messages"][0]["content"], "-n", str(len(case["answer_ids"])), *GREEDY]
    assert "\x01" in case["text"]
    assert tutti(*args).stdout == case["text"] + "\n"
    terminal, their_end = pty.openpty()
    process = subprocess.Popen([BIN, *args], stdin=subprocess.DEVNULL, stdout=their_end, stderr=subprocess.DEVNULL)
    os.close(their_end)
    shown = b""
    while select.select([terminal], [], [], PATIENCE)[0]:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # how the end looks on Linux
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    assert process.wait(PATIENCE) == 0
    assert shown.decode().replace("\r\n", "\n") == re.sub("[\x00-\x08\x0b-\x1f]", "\ufffd", case["text"]) + "\n"


def test_text_becomes_special_tokens_where_the_caller_asks_for_it(tmp_path):
    case = SINGLE[0]
    text = f"<|user|>\n {case['messages'][0]['content']}<|assistant|>"
    want = ",".join(map(str, case["prompt_ids"])) + "\n"
    for spelled in text, "[gMASK]sop" + text:  # what the model puts in front does not come twice
        assert tutti("tokenize", DEMO, "-", "--ids", "--special", "--parse-special", stdin=spelled).stdout == want
        assert tutti("tokenize", DEMO, "-", "--ids", "--special", stdin=spelled).stdout != want
    raw, chat = (json.loads(tutti("generate", DEMO, "-p", prompt, flag, "--json", *GREEDY).stdout)
                 for prompt, flag in ((text, "--parse-special"), (case["messages"][0]["content"], "--chat")))
    assert raw["text"].strip() == chat["text"].strip() and raw["usage"] == chat["usage"]
    assert "a message, which stays text" in wrong("generate", DEMO, "-p", "x", "--chat", "--parse-special")
    # ChatGLM-6B's mask and <sop> follow a text, or are where the text has [gMASK].
    model = os.path.join(FIXTURES, "chatglm-6b-text")
    plain, spelled, going_on = (tutti("tokenize", model, words, "--ids", "--special", "--parse-special").stdout.split(",")
                                for words in ("你好", "你好[gMASK]<sop>", "你好[gMASK]<sop>你"))
    assert plain == spelled and going_on[:len(plain) - 1] == plain[:-1] and len(going_on) > len(plain)


def test_a_configuration_may_hold_whole_numbers_beyond_64_bits(tmp_path):
    """What transformers writes where a text may have any length; in published LLaMA and Mistral folders among others."""
    for name in os.listdir(DEMO):
        os.symlink(os.path.join(DEMO, name), tmp_path / name)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    path.write_text(json.dumps({"model_max_length": 1000000000000000019884624838656, "small": -10 ** 30, "text": "1" * 40 + '\\"' + "2" * 40,
                                "list": [10 ** 25, 9223372036854775807, 1.5e3, 1e-20], **config}))
    case = SINGLE[0]
    ask = "generate", "-p", case["messages"][0]["content"], "--chat", *GREEDY
    assert tutti(ask[0], tmp_path, *ask[1:]).stdout == tutti(ask[0], DEMO, *ask[1:]).stdout
    path.write_text('{"model_max_length": 1e999}')
    assert "real number overflow" in tutti(ask[0], tmp_path, *ask[1:], check=1).stderr
