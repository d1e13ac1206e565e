"""tutti generate as in MindFormers: several prompts, beam search, full recomputation, adapters; tutti convert --merge-lora."""
import json
import os
import shutil
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
DEMO = os.path.join(ROOT, "models", "demo")
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))

from test_adapters import write_adapter  # noqa: E402
from thinking_model import thinking_model  # noqa: E402

PROMPTS = ["What is the capital of France?", "Count to five.", "Tell me a story about a fox named Mia. " * 4]
PATIENCE = 60 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))


def tutti(*args, status=0, **more):
    done = subprocess.run([BIN, *map(str, args)], capture_output=True, text=True, timeout=PATIENCE, check=False, **more)
    assert done.returncode == status, (args, done.stdout, done.stderr)
    return done


def generate(*args, prompts=PROMPTS, **more):
    ask = [word for prompt in prompts for word in ("-p", prompt)]
    return tutti("generate", DEMO, "--chat", *ask, "-n", 24, "--temperature", 0, *args, **more)


def test_beams_of_the_whole_context_fit_by_default():
    """As docs/adapters.md shows it, without a limit on the answer's length."""
    assert len(tutti("generate", DEMO, "--beams", 4, "--best", 2, "--chat", "-p", "Hello").stdout.strip()) > 0


def test_unequal_prompts_are_answered_together_as_alone():
    alone = "".join(generate(prompts=[prompt]).stdout for prompt in PROMPTS)
    assert generate().stdout == alone
    assert generate("--max-batch-tokens", 8).stdout == alone


@pytest.mark.parametrize("more", [(), ("--beams", 4), ("--temperature", 1, "--seed", 5)], ids=["greedy", "beams", "drawn"])
def test_full_recomputation_gives_the_same_answers(more):
    assert generate(*more, "--no-kv-cache").stdout == generate(*more).stdout


def test_the_best_answers_of_a_beam_search():
    best = generate("--beams", 4).stdout
    lines = generate("--beams", 4, "--best", 3, "--json").stdout.splitlines()
    answers = {(a["index"], a["choice"]): a for a in map(json.loads, lines)}
    assert sorted(answers) == [(i, k) for i in range(3) for k in range(3)]
    assert "".join(answers[i, 0]["text"] + "\n" for i in range(3)) == best
    for i in range(3):
        scores = [answers[i, k]["score"] for k in range(3)]
        assert scores == sorted(scores, reverse=True)
    plain = generate("--beams", 4, "--best", 3).stdout
    assert plain == "".join(answers[i, k]["text"] + "\n" for i in range(3) for k in range(3))


@pytest.mark.parametrize("args, prompts, said", [
    (["--max-seqs", 2], ["x", "y"], "n_beams is 3, but the engine runs 2 sequences"),
    ([], ["word " * 3000] * 2, "This model's maximum context length is"),
], ids=["by the engine", "by its prompt"])
def test_the_refusal_of_a_prompt_is_printed_once(args, prompts, said):
    for more, n_lines in ((), 2), (("--json",), 6):
        done = generate("--beams", 3, "--best", 3, *args, *more, prompts=prompts, status=1)
        errors = sorted(done.stderr.splitlines())
        assert [error.startswith(f"tutti: prompt {i}: {said}") for i, error in enumerate(errors)] == [True, True]
        assert done.stdout.count("\n") == n_lines


def test_length_penalty_and_early_stopping_reach_the_search():
    def lengths(*more):
        lines = generate("--beams", 4, "--json", "-n", 60, *more).stdout.splitlines()
        return sum(json.loads(line)["usage"]["completion_tokens"] for line in lines)

    assert lengths("--length-penalty", 4) > lengths("--length-penalty", -4)
    for early in ("true", "false", "never"):
        assert lengths("--early-stopping", early) > 0


@pytest.mark.parametrize("args, words", [
    (["--beams", "65"], "--beams: found '65', expected a whole number from 1 to 64"),
    (["--best", "2"], "--best has no effect without --beams"),
    (["--beams", "2", "--best", "3"], "--best 3: --beams 2 has no more answers"),
    (["--beams", "2", "--early-stopping", "nevr"], "did you mean never?"),
    (["--adapter", "red"], "--adapter red: no --lora has this name"),
    (["--lora", "red=/nowhere"], "--lora red=/nowhere: "),
    (["--lora", "a:b=/nowhere"], "adapter name"),
])
def test_what_cannot_be_is_said(args, words):
    done = subprocess.run([BIN, "generate", DEMO, "-p", "x", *args], capture_output=True, text=True, timeout=PATIENCE,
                          check=False)
    assert done.returncode != 0
    assert words in done.stderr


def test_adapters_are_chosen_merged_and_searched(tmp_path):
    red, blue = (write_adapter(tmp_path / name, seed) for seed, name in enumerate(("red", "blue")))
    both = ["--lora", "red=" + red, "--lora", blue]
    plain = generate().stdout
    answers = {name: generate(*both, "--adapter", name).stdout for name in ("red", "blue", "none")}
    assert answers["none"] == plain
    assert len(set(answers.values())) == 3
    assert generate(*both).stdout == answers["red"]
    assert generate(*both, "--no-kv-cache").stdout == answers["red"]
    assert generate(*both, "--beams", 3, "--no-kv-cache").stdout == generate(*both, "--beams", 3).stdout
    merged = tmp_path / "merged.gguf"
    tutti("convert", DEMO, merged, "--type", "f32", "--merge-lora", red)
    ask = ["--chat", "-p", PROMPTS[0], "-n", 24, "--temperature", 0, "--type", "f32"]
    assert tutti("generate", merged, *ask).stdout == tutti("generate", DEMO, *ask, "--lora", red).stdout
    tutti("convert", DEMO, merged, "--type", "f32", "--merge-lora", red + ":0")
    assert tutti("generate", merged, *ask).stdout == tutti("generate", DEMO, *ask).stdout
    # A path that exists is not divided.
    shutil.copytree(red, tmp_path / "r=0")
    shutil.copytree(red, tmp_path / "red:0")
    assert generate("--lora", tmp_path / "r=0", "--adapter", "r=0").stdout == answers["red"]
    assert generate("--lora", f"a={tmp_path}/r=0", "--adapter", "a").stdout == answers["red"]
    tutti("convert", DEMO, merged, "--type", "f32", "--merge-lora", tmp_path / "red:0")
    assert tutti("generate", merged, *ask).stdout == tutti("generate", DEMO, *ask, "--lora", red).stdout


def test_a_draft_model_changes_no_answer():
    ask = ["generate", DEMO, "--chat", "-p", PROMPTS[0], "-p", PROMPTS[2], "-n", "30", "--seed", "3", "--temperature", "0.7"]
    assert tutti(*ask).stdout == tutti(*ask, "--draft", DEMO, "--draft-type", "q4_0", "--speculate", "4").stdout


def test_a_deeper_copy_says_the_same(tmp_path):
    deep = tmp_path / "deep"
    subprocess.run([os.path.join(ROOT, "bench", "make_deep.py"), DEMO, deep, "--layers", "8"], check=True, timeout=PATIENCE)
    with open(deep / "config.json") as f:
        assert json.load(f)["num_layers"] == 8
    ask = ["--chat", "-p", PROMPTS[0], "-n", 30, "--temperature", 0, "--ignore-eos"]
    said = tutti("generate", DEMO, *ask).stdout
    assert tutti("generate", deep, *ask).stdout == said
    assert tutti("generate", deep, *ask, "--draft", DEMO).stdout == said


def test_a_draft_model_that_does_not_fit_is_refused():
    other = os.path.join(ROOT, "tests", "fixtures", "glm-tiny")
    said = tutti("generate", DEMO, "-p", "x", "--draft", other, status=2).stderr
    assert "draft model glm-tiny" in said and "expected the same" in said


@pytest.mark.parametrize("more", [("--temperature", 0), ("--temperature", 0.9, "--seed", 7)], ids=["greedy", "drawn"])
def test_multi_token_prediction_changes_no_answer(more):
    model = os.path.join(ROOT, "tests", "fixtures", "mtp", "deepseek-v3")
    ask = ["generate", model, *[word for prompt in PROMPTS for word in ("-p", prompt)], "-n", 40, "--ignore-eos", *more]
    assert tutti(*ask, "--draft", "mtp", "--draft-tokens", 3).stdout == tutti(*ask).stdout


@pytest.mark.parametrize("command, model, more, words", [
    ("generate", "llama-tiny", (), "has no layer for multi-token prediction"),
    ("generate", "glm4-moe-tiny", (), "no tensors of layer 3"),
    ("generate", "mtp/deepseek-v3", ("--draft-type", "q8_0"), "converted with its model, by --type"),
    ("bench", "mtp/deepseek-v3", (), "tutti bench measures draft models"),
])
def test_multi_token_prediction_is_refused_by_name(command, model, more, words):
    ask = () if command == "bench" else ("-p", "x", "-n", 2)
    done = tutti(command, os.path.join(ROOT, "tests", "fixtures", model), "--draft", "mtp", *ask, *more,
                 status=2 if more else 1)
    assert words in done.stderr


# ---- messages: system, files, thinking ----

def test_files_and_a_system_message_come_before_each_prompt(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "s.txt").write_text("Be kind.\n")
    args = ["-p", "What is this?", "-p", "And this?", "-n", 24, "--temperature", 0, "--json"]
    done = tutti("generate", DEMO, "--chat", *args, "--attach", tmp_path / "a.txt", "--system-file", tmp_path / "s.txt")
    messages = [[{"role": "system", "content": "Be kind."}, {"role": "user", "content": f"{tmp_path}/a.txt:\n```\none\n```\n\n{prompt}"}]
                for prompt in ("What is this?", "And this?")]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"messages": m}) + "\n" for m in messages))
    wanted = tutti("generate", DEMO, "-f", tmp_path / "prompts.jsonl", "-n", 24, "--temperature", 0, "--json")
    read = [sorted(map(json.loads, d.stdout.splitlines()), key=lambda a: a["index"]) for d in (done, wanted)]
    assert [[(a["text"], a["usage"]["prompt_tokens"]) for a in answers] for answers in read][0] == \
        [(a["text"], a["usage"]["prompt_tokens"]) for a in read[1]]
    piped = tutti("generate", DEMO, "--chat", *args, "--attach", "-", input="one\n").stdout
    assert len(piped.splitlines()) == 2


@pytest.mark.parametrize("args, words", [
    (["--chat", "--attach", "/nowhere"], "/nowhere: No such file"), (["--chat", "--system-file", "/nowhere"], "/nowhere: No such file"),
    (["--attach", "x"], "--attach has no effect without --chat"), (["--chat", "--attach", "-", "--system-file", "-"], "standard input can be read once"),
    (["--thinking", "show"], "--thinking has no effect without --chat"), (["--chat", "--chat-format", "chatglm3", "--thinking", "show"], "demo does not think")])
def test_messages_that_cannot_be_are_said(args, words):
    assert words in subprocess.run([BIN, "generate", DEMO, "-p", "x", *args], input="", capture_output=True, text=True, timeout=PATIENCE,
                                   check=False).stderr


def test_a_file_that_is_too_long_is_named(tmp_path):
    (tmp_path / "long.txt").write_text("word " * 2500)
    done = tutti("generate", DEMO, "--chat", "-p", "x", "--attach", tmp_path / "long.txt", status=1)
    assert f"{tmp_path}/long.txt: with this file the prompt has" in done.stderr and not done.stdout


def test_only_the_answer_is_printed_unless_thinking_is_asked_for(tmp_path):
    base = ["generate", *thinking_model(tmp_path), "--chat", "-p", "Tell me a story", "--temperature", 0, "-n", 30, "--thinking-budget", 7]
    answer = tutti(*base).stdout
    assert tutti(*base, "--thinking", "hide").stdout == answer and "think" not in answer
    shown = tutti(*base, "--thinking", "show").stdout
    head, thinking, figure, blank, rest = shown.split("\n", 4)
    assert (head, blank, rest) == ("[thinking]", "", answer) and thinking and figure.startswith("[thought for ")
    line, plain = (json.loads(tutti(*base, "--json", *more).stdout) for more in (("--thinking", "show"), ()))
    assert line["reasoning_content"] == thinking and line["text"] + "\n" == answer
    assert "reasoning_content" not in plain and plain["text"] == line["text"]
