"""Every flag of every command: it is used, as a run or a named test shows, or refused by name. Nothing is ignored."""
import functools
import glob
import json
import os
import re
import subprocess
import sys

import pytest
from thinking_model import thinking_model

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
DEMO = os.path.join(ROOT, "models", "demo")
ENCODERS = os.path.join(ROOT, "tests", "fixtures", "encoder")
PATIENCE = 60 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))

from test_adapters import write_adapter  # noqa: E402

OPERANDS = {"list": [], "devices": [], "bench": [], "convert": ["m", "out.gguf"], "load": ["http://127.0.0.1:9"]}
STORY = ["--chat", "-p", "Tell me a story."]


def tutti(*args, stdin="", env=None):
    done = subprocess.run([BIN, *map(str, args)], input=stdin, capture_output=True, encoding="utf-8", errors="replace", timeout=PATIENCE,
                          check=False, env=env)
    return done.returncode, done.stdout, done.stderr


@functools.cache
def flags():
    """{command: {flag: name of its value, or None}}, as help lists them."""
    table = {}
    for part in tutti("help", "--markdown")[1].split("\n## tutti ")[1:]:
        rows = re.findall(r"^\| `(?:-\w, )?--([a-z0-9-]+)(?: ([^`]+))?` \|", part, re.M)
        table[part.split("\n")[0]] = {name: value or None for name, value in rows}
    return table


COMMANDS = ["serve", "chat", "generate", "bench", "load", "convert", "perplexity", "inspect", "tokenize", "logits", "shard", "ranks",
            "plan", "devices", "pull", "list", "rm"]


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_of_other_commands_are_refused_by_name(command):
    assert set(flags()) == set(COMMANDS)
    others = {name for options in flags().values() for name in options} - set(flags()[command])
    assert len(others) > 50
    for name in sorted(others):
        status, out, err = tutti(command, *OPERANDS.get(command, ["m"]), f"--{name}")
        having = [other for other in COMMANDS if name in flags()[other]]
        assert (status, out) == (2, "") and f"--{name}: tutti {command} has no such option; commands that have it:" in err, err
        assert set(having) == set(re.search(r"have it: (.*)", err)[1].split(", "))


# ---- accepted flags: what a run shows ----

def differs(*args, base=STORY):
    """The output with the flag is another one than without."""
    return lambda run, _: run(*base, *args)[1] != run(*base)[1]


def says(text, *args, base=STORY, status=None):
    """The flag's value is read: the error names what is wrong with it."""
    def check(run, _):
        done = run(*base, *args)
        return text in done[2] and done[0] == (status or 1)
    return check


def with_file(content, text, *args):
    """The file that the flag names is read."""
    def check(run, tmp_path):
        (tmp_path / "file").write_text(content)
        return run(*STORY, *(tmp_path / "file" if word == "FILE" else word for word in args))[1] == text
    return check


def with_adapter(run, tmp_path):
    write_adapter(tmp_path / "red", seed=1)
    plain, red = run(*STORY)[1], run(*STORY, "--lora", f"red={tmp_path}/red")[1]
    return plain != red and run(*STORY, "--lora", f"red={tmp_path}/red", "--adapter", "none")[1] == plain


def with_thinker(*args):
    def check(_, tmp_path):
        base = ["generate", *thinking_model(tmp_path), *STORY, "--temperature", 0, "-n", 30]
        outputs = [tutti(*base, *more)[1] for more in (args, ["--thinking", "show"])]
        return outputs[0] and outputs[0] != outputs[1]
    return check


def spills(run, tmp_path):
    run(*STORY, "--kv-spill", tmp_path, "--kv-spill-size", "1M")
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(tmp_path) for name in names) > 0


DRAWN = [*STORY, "--temperature", 1, "--seed", 5]
GENERATE = {
    "prompt": differs("-p", "Hello"), "file": with_file("", "", "-f", "FILE"), "batch": says("/none: No such file", "--batch", "/none", base=[]),
    "embedding": differs("--embedding", "last"), "parse-special": says("--parse-special: with --chat", "--parse-special", status=2),
    "chat": differs("--chat", base=["-p", "Tell me a story."]), "system": differs("--system", "Be brief.", base=[*STORY, "--json"]),
    "system-file": says("/none: No such file", "--system-file", "/none"), "attach": says("/none: No such file", "--attach", "/none"),
    "grammar": with_file('root ::= "yes"', "yes\n", "--grammar", "FILE"), "json-schema": with_file('{"const": 7}', "7\n", "--json-schema", "FILE"),
    "beams": differs("--beams", 8), "best": differs("--best", 2, base=[*STORY, "--beams", 2]),
    "length-penalty": differs("--length-penalty", -3, base=[*STORY, "--beams", 4, "--json"]),
    "early-stopping": says("found 'x', expected false, true or never", "--early-stopping", "x", "--beams", 2, status=2),
    "no-kv-cache": says("found '1'", "--no-kv-cache=1", status=2), "json": differs("--json"),
    "dp": says("not started by a launcher", "--dp", 2, status=2), "adapter": with_adapter, "lora": with_adapter,
    "thinking": with_thinker("--thinking", "off"), "reasoning-effort": with_thinker("--reasoning-effort", "none"),
    "thinking-budget": with_thinker("--thinking", "show", "--thinking-budget", 7), "max-tokens": differs("-n", 3),
    "temperature": differs("--temperature", 2, base=[*STORY, "--seed", 5]), "top-k": differs("--top-k", 1, base=DRAWN),
    "top-p": differs("--top-p", 0.01, base=DRAWN), "min-p": differs("--min-p", 1, base=DRAWN), "seed": differs("--seed", 6, base=DRAWN),
    "repetition-penalty": differs("--repetition-penalty", 3), "presence-penalty": differs("--presence-penalty", 2),
    "frequency-penalty": differs("--frequency-penalty", 2), "stop": differs("--stop", "a"), "ignore-eos": differs("--ignore-eos", base=[
        "--chat", "-p", "What is the capital of France?", "-n", 40, "--json"]),
    "type": differs("--type", "q2_k"), "kv-type": differs("--kv-type", "int8", base=["-p", "a", "--embedding", "last"]),
    "chat-format": says('no chat template is named "zork"', "--chat-format", "template:zork", status=2), "tp": says("not started by a launcher", "--tp", 2, status=2),
    "rank-table": says("/none: No such file", "--rank-table", "/none"), "memory": says("1K of memory are given", "--memory", "1K"),
    "kv-memory": says("--kv-memory of 1K holds 0 tokens", "--kv-memory", "1K"), "context": says("context", "--context", 4),
    "kv-spill": spills, "kv-spill-size": spills,
    "kv-spill-host": says("its KV pages are in host memory already", "--device", "cpu", "--kv-spill-host", "1G"), "draft": says("/none", "--draft", "/none"),
    "draft-type": says("expected f32", "--draft", DEMO, "--draft-type", "x", status=2),
    "max-queue": says("expected a whole number", "--max-queue", 0, status=2),
}
@pytest.mark.parametrize("flag", sorted(GENERATE))
def test_generate_uses_what_it_accepts(flag, tmp_path):
    def run(*args):
        words = list(map(str, args))
        more = [] if "--temperature" in words or "--seed" in words or "--embedding" in words or "--batch" in words else ["--temperature", "0"]
        more += [] if {"-n", "--embedding", "--batch"} & set(words) else ["-n", "24"]
        return tutti("generate", DEMO, *words, *more)
    assert flag in flags()["generate"] and GENERATE[flag](run, tmp_path)


def tasks(*args, env=None):
    """The processors that each thread of a chat may use, while it waits for a message that follows the first answer."""
    with subprocess.Popen([BIN, "chat", DEMO, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        process.stdin.write(b"Hello\n")
        process.stdin.flush()
        assert process.stdout.readline()
        found = []
        for path in glob.glob(f"/proc/{process.pid}/task/*/status"):
            with open(path, encoding="utf-8") as file:
                found.append(re.search(r"Cpus_allowed_list:\s*(\S+)", file.read())[1])
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
        return found


def test_threads_are_counted_and_bound():
    one, three = tasks("--threads", 1), tasks("--threads", 3)
    assert len(three) == len(one) + 2
    if len(os.sched_getaffinity(0)) > 1:
        n = len(os.sched_getaffinity(0))
        assert any(cpus.isdigit() for cpus in tasks("--threads", n, "--pin")) and not any(cpus.isdigit() for cpus in three)


def test_threads_are_bound_by_node(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        cores *= 2
    (tmp_path / "online").write_text("0-1\n")
    for node in (0, 1):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cores[node]}\n")
    env = dict(os.environ, TUTTI_NODES=str(tmp_path))
    both = tasks("--threads", 4, env=env)
    assert both.count(str(cores[0])) >= 2 and both.count(str(cores[1])) >= 2
    assert cores[0] == cores[1] or not any(cpus.isdigit() for cpus in tasks("--threads", 4, "--numa", "off", env=env))
    status, out, err = tutti("bench", DEMO, "--users", 1, "--prefill", 0, "--context", 16, "--repetitions", 1, "--json", env=env)
    assert status == 0, err
    report = json.loads(out)
    assert len(report["node_gbps"]) == 2 and all(gbps > 0 for gbps in report["node_gbps"]) and report["fork_us"] > 0 and report["load_s"] > 0


def test_bench_measures_answers_with_a_schema(tmp_path):
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    status, out, err = tutti("bench", DEMO, "--engine", "--users", 1, "--prefill", 0, "--context", 16, "--repetitions",
                             1, "--json", "--json-schema", tmp_path / "schema.json")
    assert status == 0, err
    status, plain, _ = tutti("bench", DEMO, "--engine", "--users", 1, "--prefill", 0, "--context", 16,
                             "--repetitions", 1, "--json")
    assert status == 0 and re.sub(r"[0-9.]+", "", out) != re.sub(r"[0-9.]+", "", plain)


# ---- accepted flags: which test uses them ----

# Tests in C of what these flags set; and letters, under which tests give them.
IN_C = {"max-slowdown": "tests/engine/test_pace.c", "random-lora": "tests/model/test_adapters.c", "attention": "tests/kernels",
        "shared-tokens": "tests/load/test_work.c", "spread": "tests/load/test_work.c"}
LETTERS = {"concurrency": "-c", "duration": "-d", "requests": "-N", "prompts": "-f", "max-tokens": "-n", "model": "-m", "users": "-u", "out": "-o",
           "file": "-f", "prompt": "-p", "rate": "-r"}
# Options of the library or of all commands with a model: one test for all of them.
SHARED = {"type", "kv-type", "chat-format", "threads", "tp", "rank-table", "memory", "pin", "numa", "device", "cpu", "lora", "kv-memory", "context",
          "max-batch-tokens", "speculate", "no-prefix-cache", "kv-spill", "kv-spill-size", "kv-spill-host", "max-seqs", "max-queue", "max-slowdown", "draft",
          "draft-tokens", "draft-type", "gpu-layers", "cpu-experts"}


@functools.cache
def sources():
    found = {}
    for path in glob.glob(os.path.join(ROOT, "tests", "**", "*.py"), recursive=True):
        with open(path, encoding="utf-8") as file:
            found[os.path.relpath(path, ROOT)] = file.read()
    return found


def runs(command, text, path):
    return f'"{command}"' in text or (command == "serve" and path.startswith(("tests/server", "tests/cluster")))


def is_proven(command, flag):
    words = [f'"--{flag}"', f'"--{flag}='] + ([f'"{LETTERS[flag]}"'] if flag in LETTERS else [])
    for path, text in sources().items():
        if path != "tests/cli/test_flags.py" and any(word in text for word in words) and (flag in SHARED or runs(command, text, path)):
            return True
    return os.path.exists(os.path.join(ROOT, IN_C.get(flag, "none")))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_accepted_flag_has_a_test_that_uses_it(command):
    shown = set(GENERATE) | {"threads", "pin", "numa"} if command in ("generate", "chat") else {"pin", "numa", "json-schema"}
    assert [flag for flag in flags()[command] if flag not in shown and not is_proven(command, flag)] == []


# ---- modes: flags that one of them does not use ----

P = ["generate", DEMO, "-p", "x"]
CHAT = ["chat", DEMO]
SERVE = ["serve", DEMO, "--port", "0"]
SEVERAL = ["serve", f"a={DEMO}", f"b={DEMO}", "--port", "0"]
EMBED = [*P, "--embedding", "mean"]
BERT = os.path.join(ENCODERS, "bert-tiny")
AT_0 = "has no effect at temperature 0"
REFUSED = [
    *[([*P, "--temperature", "0", *flag.split()], AT_0) for flag in ("--top-k 5", "--top-p 0.5", "--min-p 0.1", "--seed 1")],
    *[([*CHAT, "--temperature", "0", *flag.split()], AT_0) for flag in ("--top-k 5", "--top-p 0.5", "--min-p 0.1", "--seed 1")],
    *[([*P, "--beams", "2", *flag.split()], "has no effect with --beams") for flag in ("--temperature 1", "--top-k 5", "--seed 1", "--min-p 0.1")],
    *[([*P, *flag.split()], "has no effect without --beams") for flag in ("--best 2", "--length-penalty 2", "--early-stopping true")],
    *[([*P, *flag.split()], "has no effect without --chat") for flag in ("--system x", "--system-file x", "--attach x", "--thinking show",
                                                                        "--thinking-budget 1", "--reasoning-effort low")],
    *[([*EMBED, *flag.split()], "has no effect with --embedding") for flag in (
        "--temperature 1", "--max-tokens 4", "--stop x", "--ignore-eos", "--grammar x", "--json-schema x", "--beams 2", "--no-kv-cache",
        "--thinking hide", "--speculate 4", f"--draft {DEMO}")],
    *[([*command, *flag.split()], "has no effect without --draft") for command in (P, CHAT, SERVE, ["bench", DEMO])
      for flag in ("--draft-tokens 4", "--draft-type q8_0")],
    *[([*command, "--kv-spill-size", "1G"], "--kv-spill-size has no effect without --kv-spill") for command in (P, CHAT, SERVE)],
    *[([*CHAT, f"--{flag}", "4"], f"--{flag}: tutti chat has no such option; commands that have it: serve, generate")
      for flag in ("max-seqs", "max-queue", "max-slowdown")],
    *[([*CHAT, "--chat-format", "chatglm3", *flag.split()], "does not think") for flag in ("--thinking show", "--thinking off", "--thinking-budget 3", "--reasoning-effort low")],
    ([*CHAT, "--system", "x", "--system-file", "y"], "--system-file: takes the place of --system"),
    ([*P, "--chat", "--system", "x", "--system-file", "y"], "--system-file: takes the place of --system"),
    ([*P, "--chat", "--parse-special"], "--parse-special: with --chat"),
    (["generate", DEMO, "--batch", "x", "--seed", "1"], "--seed has no effect with --batch"),
    *[([*SEVERAL, *flag.split()], "is for one model") for flag in (
        f"--lora a={DEMO}", f"--draft {DEMO}", "--name x", "--config x", "--tp 2", "--rank-table x", "--kv-spill x", "--kv-spill-host 1G",
        "--api step")],
    *[([*SERVE, *flag.split()], "is for several models") for flag in ("--models-memory 1G", "--idle-unload 5")],
    ([*SERVE, "--step-timeout", "5"], "--step-timeout has no effect without --api"),
    ([*SERVE, "--api", "tgi", "--step-timeout", "5"], "--step-timeout has no effect without --api step"),
    ([*SERVE, "--share-cache"], "--share-cache has no effect without --api-key-file"),
    (["serve", DEMO, "--unix", "/tmp/x.sock", "--max-connections-per-address", "3"], "has no effect with --unix"),
    (["serve", DEMO, "--unix", "/tmp/x.sock", "--port", "1"], "--unix: takes the place of --port"),
    ([*SERVE, "--tls-key", "x"], "--tls-key: expected --tls-cert too"), ([*SERVE, "--tls-client-ca", "x"], "--tls-client-ca: expected --tls-cert"),
    *[(["serve", BERT, "--port", "0", *flag.split()], "which only makes embeddings") for flag in (
        "--speculate 4", "--no-prefix-cache", "--kv-spill x", "--kv-spill-host 1G", "--chat-format llama2", f"--draft {DEMO}")],
    (["chat", BERT], "the model has no chat format"),
    (["generate", BERT, "-p", "x"], "it gives embeddings, and generates no text"),
    (["serve", os.path.join(ENCODERS, "bert-ranker-tiny"), "--port", "0", "--embedding-pooling", "cls"], "--embedding-pooling"),
    *[(["bench", DEMO, *flag.split()], "has no effect without --engine") for flag in ("--speculate 4", "--json-schema x", f"--draft {DEMO}")],
    (["bench", DEMO, "--layers", "2"], "--layers has no effect without --shape"),
    *[(["load", "http://127.0.0.1:9", "-f", "x", *flag.split()], "has no effect with --prompts") for flag in (
        "--prompt-tokens 4", "--shared-tokens 4", "--spread 0.5")],
    (["load", "http://127.0.0.1:9", "--arrivals", "uniform"], "--arrivals"), (["load", "http://127.0.0.1:9", "--details"], "without --json"),
    (["load", "http://127.0.0.1:9", "--in-order"], "without --prompts"), (["load", "http://127.0.0.1:9", "--ca-file", "x"], "--ca-file has no effect on"),
    (["load", "http://127.0.0.1:9", "--api", "tgi", "--model", "x"], "--model has no effect with --api tgi"),
    *[(["tokenize", DEMO, "--decode", "5", flag], f"{flag} has no effect with --decode") for flag in ("--ids", "--special", "--parse-special")],
    (["convert", DEMO, "OUT", "--pure"], "--pure has no effect with --type f16"),
    *[([command, DEMO, *more, "--chat-format", "llama2"], f"--chat-format: tutti {command} has no such option; commands that have it: serve, chat, generate")
      for command, more in (("perplexity", ["x"]), ("logits", []), ("bench", []))],
    (["perplexity", DEMO, "x", "--ids", "1,2"], "expected either FILE or --ids"), (["shard", DEMO, "--check", "--tp", "2"], "--check takes only SRC"),
]


@pytest.mark.parametrize("args, told", REFUSED, ids=[" ".join(os.path.basename(word) for word in args) for args, _ in REFUSED])
def test_a_flag_that_a_mode_does_not_use_is_refused(args, told, tmp_path):
    status, out, err = tutti(*(tmp_path / "out.gguf" if word == "OUT" else word for word in args))
    assert status in (1, 2) and not out.strip() and told in err, err
    assert not os.listdir(tmp_path)


def test_prompts_that_have_messages_leave_nothing_to_chat_flags(tmp_path):
    (tmp_path / "p.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "x"}]}) + "\n")
    for flag in ("--chat", "--parse-special"):
        status, _, err = tutti("generate", DEMO, "-f", tmp_path / "p.jsonl", flag)
        assert status == 2 and f"{flag} has no effect: every prompt of" in err
