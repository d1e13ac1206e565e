"""Families whose checkpoints come with a tokenizer of a common kind: the ids of text, and greedy answers as text, are those of
transformers (tools/fixtures/family_text_fixtures.py), from the folder and from its GGUF file."""
import json
import os
import shutil

import pytest

from test_cli import FIXTURES, GREEDY, tutti
from widened import widen

TEXTS = os.path.join(FIXTURES, "text")
N_ANSWER = "24"
FAMILIES = ["granite-tiny", "phi3-tiny", "phi4-mini-tiny", "cohere-tiny", "cohere2-tiny", "gemma-tiny", "seed-oss-tiny", "gemma2-tiny", "gemma3-tiny", "gemma4-tiny", "gemma4-moe-tiny", "smollm3-tiny",
            "starcoder2-tiny", "olmo2-tiny", "olmo3-tiny", "exaone-tiny", "qwen1-tiny", "minicpm3-tiny", "stablelm-tiny", "granite4-tiny", "granite-moe-tiny", "exaone4-tiny", "phi2-tiny", "gpt-neox-tiny", "gpt-bigcode-tiny", "gptj-tiny",
            "falcon-tiny", "falcon-40b-tiny", "opt-tiny", "internlm2-tiny", "baichuan2-tiny", "pangu-embedded-tiny",
            "mistral3-tiny", "ministral3-tiny", "qwen2-vl-tiny", "qwen3-vl-tiny", "qwen3-vl-moe-tiny", "glm4v-tiny", "glm4v-moe-tiny",
            "mixtral-tiny", "qwen2-moe-tiny", "qwen3-moe-tiny", "glm4-moe-tiny", "minimax-m2-tiny", "olmoe-tiny", "deepseek-v2-lite-tiny",
            "deepseek-v3-tiny", "glm4-moe-lite-tiny", "gpt-oss-tiny"]

with open(os.path.join(TEXTS, "cases.json"), encoding="utf-8") as file:
    CASES = json.load(file)
assert CASES.keys() == set(FAMILIES)


@pytest.fixture(params=FAMILIES)
def model(request, tmp_path, record_property):
    case, folder = CASES[request.param], tmp_path / "model"
    folder.mkdir()
    record_property("checked", request.param)
    widen(os.path.join(FIXTURES, request.param), folder, case["n_vocab"], case["settings"], case["never"])
    for name in os.listdir(os.path.join(TEXTS, case["kind"])):
        shutil.copyfile(os.path.join(TEXTS, case["kind"], name), folder / name)
    return folder, case


def check_ids(path, case):
    for key, text, flags in (("special", "text", ["--special"]), ("as_text", "spelled", []), ("parsed", "spelled", ["--parse-special"])):
        found = tutti("tokenize", path, "-", "--ids", *flags, stdin=case[text]).stdout.strip()
        assert list(map(int, found.split(","))) == case[key], key


def check_answers(path, case, tmp_path):
    batch = tmp_path / "batch.jsonl"
    batch.write_text("".join(json.dumps({"prompt": answer["prompt"]}) + "\n" for answer in case["answers"]), encoding="utf-8")
    lines = tutti("generate", path, "-f", batch, "--json", "-n", N_ANSWER, "--ignore-eos", *GREEDY).stdout.splitlines()
    found = sorted(map(json.loads, lines), key=lambda answer: answer["index"])
    for got, want in zip(found, case["answers"], strict=True):
        assert got["text"] == want["text"]
        assert got["usage"]["prompt_tokens"] == want["n_prompt"]


def test_ids_and_greedy_text_are_those_of_transformers(model, tmp_path):
    folder, case = model
    assert case["special"][-len(case["ids"]):] == case["ids"]
    check_ids(folder, case)
    shown = tutti("tokenize", folder, "--decode", ",".join(map(str, case["ids"]))).stdout
    assert shown == case["text"] + "\n"
    check_answers(folder, case, tmp_path)


def test_a_gguf_file_gives_the_same_text(model, tmp_path):
    folder, case = model
    out = tmp_path / "model.gguf"
    tutti("convert", folder, out, "--type", "f32")
    check_ids(out, case)
    check_answers(out, case, tmp_path)
