"""The command line, driven as people and scripts drive it: build/tutti (or $TUTTI_BIN) against the demo model."""
import array
import errno
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time
import urllib.error
import urllib.request

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
DEMO = os.path.join(ROOT, "models", "demo")
FIXTURES = os.path.join(ROOT, "tests", "fixtures")
COMMANDS = ["serve", "chat", "generate", "bench", "load", "convert", "perplexity", "inspect", "tokenize", "logits",
            "shard", "ranks", "plan", "devices"]
SANITIZED = "ASAN_OPTIONS" in os.environ or "TSAN_OPTIONS" in os.environ
PATIENCE = 120 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
# A shell starts programs in the background with SIGINT ignored, which theirs inherit; they must end by it here.
signal.signal(signal.SIGINT, signal.default_int_handler)
EXACT = ["--type", "f32", "--kv-type", "f32"]
GREEDY = ["--temperature", "0"] + EXACT

with open(os.path.join(FIXTURES, "demo", "golden.json"), encoding="utf-8") as f:
    GOLDEN = json.load(f)
SINGLE = [case for case in GOLDEN if len(case["messages"]) == 1]


def tutti(*args, stdin=None, env=None, check=0, **more):
    """Runs tutti; check: the expected exit status. Returns the finished process, with text decoded."""
    done = subprocess.run([BIN, *map(str, args)], input=stdin if stdin is not None else "", capture_output=True,
                          encoding="utf-8", timeout=PATIENCE, env={**os.environ, **(env or {})}, **more)
    assert done.returncode == check, (args, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done


def wrong(*args, stdin=None):
    """A call that must be refused as wrong usage; returns the first line of what it says."""
    done = tutti(*args, stdin=stdin, check=2)
    assert done.stdout == ""
    line = done.stderr.splitlines()[0]
    assert line.startswith("tutti: ")
    return line[len("tutti: "):]


def start_first(*args):
    """Starts tutti as process 1, as a container does. Returns the process that waits for it, and the number of tutti's own."""
    inside = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("process namespaces are not permitted")
    process = subprocess.Popen([*inside, BIN, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))  # under nohup it is ignored
    end = time.monotonic() + PATIENCE
    while True:
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            children = file.read().split()
        if children:
            return process, int(children[0])
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.001)


def read_safetensors(path, only=None):
    with open(path, "rb") as file:
        n, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(n))
        data = file.read()
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__" or (only and info["dtype"] not in only):
            continue
        begin, end = info["data_offsets"]
        values = array.array({"F32": "f", "I32": "i", "I64": "q"}[info["dtype"]])
        values.frombytes(data[begin:end])
        tensors[name] = (info["dtype"], info["shape"], values)
    return tensors


# ---- help, version, wrong calls ---------------------------------------------------------------------------------


def test_no_arguments_explain_the_commands():
    done = tutti(check=2)
    assert done.stdout == ""
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", done.stderr, re.M)


def test_help_for_each_command():
    overview = tutti("help").stdout
    assert tutti("--help").stdout == overview
    for command in COMMANDS:
        assert command in overview
        text = tutti(command, "--help").stdout
        assert tutti("help", command).stdout == text
        assert tutti(command, "--whatever", "-h").stdout == text
        assert text.startswith(f"usage: tutti {command}")
        assert "--help" in text
        assert max(map(len, text.splitlines())) <= 100
        options = text[text.index("Options:" if "Options:" in text else "Server:"):]
        assert max(map(len, options.splitlines())) <= 80


@pytest.mark.parametrize("word", ["help", "version", "--help", "-h", "--version"])
def test_help_of_help_and_version_is_the_overview(word):
    assert tutti("help", word).stdout == tutti("help").stdout
    assert tutti("help", "--man", word).stdout == tutti("help", "--man").stdout


def test_the_overview_tells_what_help_can_print():
    for text in (tutti("help").stdout, tutti("help", "--markdown").stdout, tutti("help", "--man").stdout.replace("\\-", "-")):
        for flag in ("--man [COMMAND]", "--completion bash or zsh", "--markdown", "tutti --version"):
            assert flag in " ".join(text.split()), flag


def test_version():
    assert re.fullmatch(r"tutti \d+\.\d+\.\d+\n", tutti("version").stdout)
    assert tutti("--version").stdout == tutti("version").stdout
    wrong("version", "please")


def test_the_reference_page_is_what_help_prints():
    with open(os.path.join(ROOT, "docs", "cli.md"), encoding="utf-8") as file:
        assert file.read() == tutti("help", "--markdown").stdout


@pytest.mark.parametrize("args, said", [
    (["sevre"], "unknown command 'sevre'; did you mean 'serve'?"),
    (["xyzzy"], "unknown command 'xyzzy'; 'tutti help' lists the commands"),
    (["--serve"], "unknown option '--serve'; did you mean 'serve'?"),
    (["help", "genrate"], "unknown command 'genrate'; did you mean 'generate'?"),
    (["help", "--man", "verson"], "unknown command 'verson'; did you mean 'version'?"),
    (["generate", "m", "-p", "x", "--temprature", "1"], "unknown option --temprature; did you mean --temperature?"),
    (["generate", "m", "-p", "x", "--device", "abacus"], "--device: found 'abacus', expected cpu, cuda or auto"),
    (["generate", "m", "-p", "x", "--device", "cuda:x"], "--device: found 'cuda:x', expected cpu, cuda or auto; did you mean cuda?"),
    (["generate", "m", "-p", "x", "--temperature", "hot"],
     "--temperature: found 'hot', expected a number from 0 to 100"),
    (["generate", "m", "-p", "x", "--temperature=101"], "--temperature: found '101', expected a number from 0 to 100"),
    (["generate", "m", "-p", "x", "--top-p", "0"], "--top-p: found '0', expected a number above 0, up to 1"),
    (["generate", "m", "-p", "x", "-n", "0"], "-n: found '0', expected a whole number from 1 to 16777216"),
    (["generate", "m", "-p", "x", "-n", "99999999999999999999"],
     "-n: found '99999999999999999999', expected a whole number from 1 to 16777216"),
    (["generate", "m", "-p"], "-p: needs a value TEXT"),
    (["generate", "m"], "expected either --prompt TEXT, --file FILE or --batch FILE"),
    (["generate", "m", "-p", "x", "-f", "y"], "expected either --prompt TEXT, --file FILE or --batch FILE"),
    (["generate", "m", "-p", "x", "--system", "s"], "--system has no effect without --chat"),
    (["generate", "-p", "x"], "expected MODEL, a Hugging Face folder or a GGUF file"),
    (["generate", "m", "more", "-p", "x"], "unexpected 'more'; expected MODEL"),
    (["generate", "m", "-p", "x", "--type", "q4"],
     "--type: found 'q4', expected f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, "
     "q4_0, mxfp4, q3_k_l, q3_k_m, q3_k_s, q2_k or q2_k_s; did you mean q4_k_m?"),
    (["generate", "m", "-p", "x", "--kv-memory", "4Q"],
     "--kv-memory: found '4Q', expected a size such as 512M or 4G of at least 1 B"),
    (["serve"], "expected MODEL, a Hugging Face folder or a GGUF file; './run serve' takes models/demo"),
    (["serve", "m", "--port", "65536"], "--port: found '65536', expected a whole number from 0 to 65535"),
    (["serve", "m", "--log-level", "inf"],
     "--log-level: found 'inf', expected debug, info, warn or error; did you mean info?"),
    (["bench"], "expected either MODEL or --shape NAME"),
    (["bench", "m", "--shape", "tiny"], "expected either MODEL or --shape NAME"),
    (["bench", "--shape", "tiny", "--users", "1,0"],
     "--users: found '1,0', expected whole numbers with commas between them, each from 1 to 4096"),
    (["logits", "m", "--ids", "1"], "expected --out FILE"),
    (["logits", "m", "--out", "f"], "expected --ids LIST"),
    (["logits", "m", "--ids", "1,x", "--out", "f"], "--ids: found 'x' at id 1, expected a token id"),
    (["logits", "m", "--ids", ",", "--out", "f"], "--ids: expected at least one token id"),
    (["tokenize", "m", "x", "--ids", "--json"], "--ids and --json exclude each other"),
    (["tokenize"], "expected MODEL, a Hugging Face folder or a GGUF file"),
    (["inspect", ""], "found an empty text; expected MODEL"),
    (["serve", "m", "--unix", "s", "--port", "1"], "--unix: takes the place of --port, found both"),
    (["serve", "m", "--unix", "s", "--host", "::1"], "--unix: takes the place of --host, found both"),
    (["serve", "m", "--tls-cert", "c"], "--tls-cert: expected --tls-key too"),
    (["serve", "m", "--tls-key", "k"], "--tls-key: expected --tls-cert too"),
    (["serve", "m", "--tls-client-ca", "a"], "--tls-client-ca: expected --tls-cert and --tls-key too"),
    (["serve", "m", "--cors-origin", "x.org"],
     "--cors-origin: found 'x.org', expected * or an origin such as https://example.org, in lower case and without a path"),
    (["serve", "m", "--cors-origin", "https://x.org/"],
     "--cors-origin: found 'https://x.org/', expected * or an origin such as https://example.org, in lower case and without a path"),
    (["serve", "m", "--cors-origin", "https://X.org"],
     "--cors-origin: found 'https://X.org', expected * or an origin such as https://example.org, in lower case and without a path"),
    (["serve", "m", "--allow-host", "https://x.org"],
     "--allow-host: found 'https://x.org', expected a name such as chat.example, *.chat.example or *, without scheme and port"),
    (["serve", "m", "--allow-host", "x.org:8080"],
     "--allow-host: found 'x.org:8080', expected a name such as chat.example, *.chat.example or *, without scheme and port"),
    (["serve", "m", "--allow-host", ""], "--allow-host: found an empty text, expected NAME"),
    (["generate", "m", "-p", "x", "--stop", ""], "--stop: found an empty text, expected TEXT"),
    (["generate", DEMO, "-p", "x", "--chat-format", "chatml"], "--chat-format has no effect without --chat"),
    (["generate", "m", "-p", "x", "--beams", "1", "--length-penalty", "2"],
     "--length-penalty and --early-stopping have no effect with --beams 1: expected more than one beam"),
    (["generate", "m", "--batch", "f", "--json"],
     "--json has no effect with --batch: the requests of its file have all settings in their \"body\" (docs/http-api.md)"),
    (["load", "http://127.0.0.1:1", "--shared-tokens", "65"],
     "--shared-tokens: found 65, expected at most the 64 words of a prompt (--prompt-tokens)"),
    (["serve", "m", "--max-seqs", "16385"], "--max-seqs: found '16385', expected a whole number from 1 to 16384"),
    (["plan", "m", "-c", "1"], "-c: found '1', expected a whole number from 2 to 16777216"),
    (["generate", "m", "-p", "x", "-c", "1"], "-c: found '1', expected a whole number from 2 to 16777216"),
    (["generate", "m", "-p", "x", "--repetition-penalty", "0.009"],
     "--repetition-penalty: found '0.009', expected a number from 0.01 to 100"),
    (["chat", "m", "--repetition-penalty", "101"], "--repetition-penalty: found '101', expected a number from 0.01 to 100"),
    (["inspect", DEMO, "--context", "2049"], "--context: found 2049, expected at most 2048 for this model"),
    (["generate", DEMO, "-p", "x", "--context", "2049"],
     "--context: max_context is 2049, but model demo was made for 2 to 2048 tokens"),
])
def test_wrong_calls_say_what_was_expected(args, said):
    assert wrong(*args) == said


def test_the_ends_of_a_range_are_in_it():
    for value in (0.01, 100):
        tutti("generate", DEMO, "-p", "x", "-n", 1, "--repetition-penalty", value)
    tutti("generate", DEMO, "-p", "x", "-n", 1, "--max-seqs", 16384)


@pytest.mark.parametrize("args, shown", [
    (["convert", DEMO, "-"], "FILE"),
    (["convert", DEMO, "a.gguf", "--report-file", "-"], "--report-file"),
    (["logits", DEMO, "--ids", "1", "--out", "-"], "--out"),
    (["perplexity", DEMO, "text", "--save-logits", "-"], "--save-logits"),
    (["shard", DEMO, "-", "--tp", "2"], "DST"),
    (["ranks", "table", "--hostfile", "-"], "--hostfile"),
])
def test_no_file_is_called_like_standard_output(args, shown, tmp_path):
    done = tutti(*args, check=2, cwd=tmp_path)
    assert done.stderr.startswith(f"tutti: {shown}: found -, but the result cannot go to standard output")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("args", [
    ["perplexity", DEMO, "mine", "--save-logits", "mine"],
    ["perplexity", DEMO, "--ids", "@mine", "--save-logits", "./mine"],
    ["logits", DEMO, "--ids", "@mine", "--out", "mine"],
    ["logits", "mine", "--ids", "1", "--out", "mine"],
    ["convert", DEMO, "mine", "--imatrix", "mine"],
    ["convert", "mine", "a.gguf", "--report-file", "mine"],
    ["ranks", "mine", "--rankfile", "mine"],
    ["load", "http://127.0.0.1:1", "-f", "mine", "--json", "mine"],
])
def test_no_file_that_is_read_is_overwritten(args, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("5 17 3\n")
    done = tutti(*args, check=2, cwd=tmp_path)
    assert "mine would be overwritten, but this command reads it" in done.stderr
    assert mine.read_text() == "5 17 3\n"


def test_a_report_that_cannot_be_written_is_found_before_the_conversion(tmp_path):
    done = tutti("convert", DEMO, tmp_path / "a.gguf", "--report-file", tmp_path / "none" / "report", check=1)
    assert str(tmp_path / "none" / "report") in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_misspelt_shape_is_explained():
    done = tutti("plan", "chatglm-3-6b", check=1)
    assert done.stderr.startswith("tutti: chatglm-3-6b: no such file or folder, and no known shape; 'tutti bench --shape list'")


@pytest.mark.parametrize("command", ["serve", "chat", "inspect", "tokenize", "generate"])
def test_a_missing_model_is_named(command):
    more = ["-p", "x"] if command == "generate" else []
    done = tutti(command, "/nowhere/model", *more, check=1)
    assert re.search("^tutti: /nowhere/model", done.stderr, re.M)
    assert done.stdout == ""


def test_the_longest_timeouts_are_taken():
    flags = [f"--{name}-timeout" for name in ("header", "idle", "drain")]
    args = [word for flag in flags for word in (flag, "604800")]
    assert "/nowhere/model" in tutti("serve", "/nowhere/model", "--port", "0", *args, check=1).stderr


# ---- tokenize ----------------------------------------------------------------------------------------------------

TEXTS = ["Hello, world", "中国的首都是北京。", "  two  blanks\tand\nlines \n", "emoji 🦊 and é", "1 + 2 = 3"]


def test_tokenize_round_trip():
    for text in TEXTS:
        ids = tutti("tokenize", DEMO, text, "--ids").stdout.strip()
        assert re.fullmatch(r"\d+(,\d+)*", ids)
        assert tutti("tokenize", DEMO, "--ids", stdin=text).stdout.strip() == ids
        assert tutti("tokenize", DEMO, "-", "--ids", stdin=text).stdout.strip() == ids
        assert tutti("tokenize", DEMO, "--decode", ids).stdout == text + "\n"
        assert tutti("tokenize", DEMO, "-d", "-", stdin=ids.replace(",", "\n")).stdout == text + "\n"


def test_tokenize_prints_pieces_and_json():
    lines = tutti("tokenize", DEMO, "A fox\n").stdout.splitlines()
    found = json.loads(tutti("tokenize", DEMO, "A fox\n", "--json").stdout)
    assert [int(line.split()[0]) for line in lines] == found["ids"]
    assert [line.split("  ", 1)[1].strip() for line in map(str.lstrip, lines)] == found["pieces"]
    assert "".join(found["pieces"]).replace("▁", " ").startswith(" A fox")
    assert "text" not in found
    back = json.loads(tutti("tokenize", DEMO, "--decode", "--json", ",".join(map(str, found["ids"]))).stdout)
    assert back["text"] == "A fox\n"


def test_tokenize_agrees_with_the_golden_prompt():
    # [gMASK] sop <|user|> then blank, line break and the message, then <|assistant|>
    case = SINGLE[0]
    ids = tutti("tokenize", DEMO, "\n " + case["messages"][0]["content"], "--ids").stdout.strip().split(",")
    assert list(map(int, ids)) == case["prompt_ids"][3:-1]


def test_tokenize_refuses_ids_outside_the_vocabulary():
    assert re.match(r"--decode: found id 99999, expected 0 to \d+", wrong("tokenize", DEMO, "--decode", "1,99999"))


def test_text_does_not_spell_special_tokens():
    ids = tutti("tokenize", DEMO, "<|user|>", "--ids").stdout.strip().split(",")
    assert not set(map(int, ids)) & set(range(4096, 4160))


# ---- logits ------------------------------------------------------------------------------------------------------


def check_logits(model, ids, expected, tmp_path, limit, *args):
    out = tmp_path / "logits.safetensors"
    tutti("logits", model, "--ids", ",".join(map(str, ids)), "--out", out, *args)
    found = read_safetensors(out)
    n_vocab = expected[1][-1]
    assert found["logits"][:2] == ("F32", [len(ids), n_vocab])
    assert found["ids"][:2] == ("I32", [len(ids)])
    assert list(found["ids"][2]) == list(ids)
    assert max(abs(a - b) for a, b in zip(found["logits"][2], expected[2])) <= limit
    assert os.listdir(tmp_path) == ["logits.safetensors"]


@pytest.mark.parametrize("index", range(len(GOLDEN)))
def test_logits_equal_the_golden_ones(index, tmp_path):
    golden = read_safetensors(os.path.join(FIXTURES, "demo", "golden.safetensors"))
    check_logits(DEMO, golden[f"{index}.ids"][2], golden[f"{index}.logits"], tmp_path, 2e-3, *EXACT)


def test_logits_need_no_tokenizer(tmp_path):
    model = os.path.join(FIXTURES, "chatglm3-tiny")
    assert not os.path.exists(os.path.join(model, "tokenizer.model"))
    ids = tmp_path / "ids.txt"
    ids.write_text("5 17\n3,8\n")
    out = tmp_path / "out.safetensors"
    tutti("logits", model, "--ids", f"@{ids}", "-o", out)
    assert list(read_safetensors(out)["ids"][2]) == [5, 17, 3, 8]
    again = tmp_path / "again.safetensors"
    tutti("logits", model, "--ids", "@-", "-o", again, stdin="5,17,3,8")
    assert again.read_bytes() == out.read_bytes()


def test_logits_replace_a_file_only_when_complete(tmp_path):
    out = tmp_path / "out.safetensors"
    out.write_text("old")
    said = tutti("logits", DEMO, "--ids", "5,999999", "--out", out, check=2).stderr
    assert "--ids: found 999999 at id 1, expected 0 to 4159" in said
    assert out.read_text() == "old"
    tutti("logits", DEMO, "--ids", "5", "--out", tmp_path / "no" / "folder", check=1)
    assert os.listdir(tmp_path) == ["out.safetensors"]
    assert oct(out.stat().st_mode & 0o777) == oct(0o666 & ~current_umask())


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


# ---- generate ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SINGLE, ids=range(len(SINGLE)))
def test_generate_chat_answers_the_golden_questions(case):
    question = case["messages"][0]["content"]
    done = tutti("generate", DEMO, "--chat", "-p", question, *GREEDY)
    assert done.stdout == case["answer"].strip() + "\n"
    assert done.stderr == ""
    assert tutti("generate", DEMO, "--chat", "-p", "-", *GREEDY, stdin=question).stdout == done.stdout


def test_generate_continues_plain_text():
    done = tutti("generate", DEMO, "-p", "One windy day", "-n", "8", *GREEDY)
    assert 0 < len(done.stdout.strip()) < 100
    assert done.stdout == tutti("generate", DEMO, "--prompt=One windy day", "-n8", *GREEDY).stdout


def test_generate_with_a_seed_repeats_itself():
    args = ["generate", DEMO, "--chat", "-p", "Tell me a story.", "-n", "40", "--temperature", "1.5"]
    first = tutti(*args, "--seed", "7").stdout
    assert tutti(*args, "--seed", "7").stdout == first
    assert any(tutti(*args, "--seed", seed).stdout != first for seed in (8, 9, 10))


def test_generate_stops_before_a_stop_string():
    text = tutti("generate", DEMO, "--chat", "-p", "What is the capital of France?", "--stop", "Paris", *GREEDY).stdout
    assert text.rstrip() == "The capital of France is"


def test_a_file_of_prompts_is_answered_in_order(tmp_path):
    questions = tmp_path / "questions.txt"
    questions.write_text("\n".join(case["messages"][0]["content"] for case in SINGLE) + "\n\n")
    done = tutti("generate", DEMO, "--chat", "-f", questions, *GREEDY)
    assert done.stdout == "".join(case["answer"].strip() + "\n" for case in SINGLE)
    again = tutti("generate", DEMO, "--chat", "-f", "-", *GREEDY, stdin=questions.read_text())
    assert again.stdout == done.stdout


def test_json_lines_in_and_out(tmp_path):
    batch = tmp_path / "batch.jsonl"
    batch.write_text("".join(json.dumps({"messages": case["messages"]}) + "\n" for case in GOLDEN))
    lines = tutti("generate", DEMO, "-f", batch, "--json", *GREEDY).stdout.splitlines()
    answers = {answer["index"]: answer for answer in map(json.loads, lines)}
    assert sorted(answers) == list(range(len(GOLDEN)))
    for index, case in enumerate(GOLDEN):
        answer = answers[index]
        assert answer["text"] == case["answer"].strip()
        assert answer["finish_reason"] == "stop"
        usage = answer["usage"]
        assert usage["prompt_tokens"] == len(case["prompt_ids"])
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    cut = json.loads(tutti("generate", DEMO, "--chat", "-p", "Tell me a story about a fox named Mia.", "--json", "-n",
                           "5", *GREEDY).stdout)
    assert cut["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == 5


def test_a_small_queue_holds_back_a_large_batch(tmp_path):
    batch = tmp_path / "batch.jsonl"
    batch.write_text("".join(json.dumps({"prompt": case["messages"][0]["content"]}) + "\n" for case in SINGLE * 4))
    lines = tutti("generate", DEMO, "--chat", "-f", batch, "--json", "--max-seqs", "2", "--max-queue", "1",
                  *GREEDY).stdout.splitlines()
    answers = {answer["index"]: answer["text"] for answer in map(json.loads, lines)}
    assert [answers[i] for i in range(len(SINGLE) * 4)] == [case["answer"].strip() for case in SINGLE * 4]


def test_a_line_of_a_batch_may_limit_its_answer(tmp_path):
    batch = tmp_path / "batch.jsonl"
    batch.write_text('{"prompt": "one", "max_tokens": 3}\n{"prompt": "one"}\n')
    lines = tutti("generate", DEMO, "-f", batch, "--json", "--ignore-eos", "-n", 7, *GREEDY).stdout.splitlines()
    assert {a["index"]: a["usage"]["completion_tokens"] for a in map(json.loads, lines)} == {0: 3, 1: 7}


@pytest.mark.parametrize("flags, text", [
    ("-f", '{"prompt": "one", "max_tokens": 2}'), ("-p x --json-schema", '{"const": "abc"}'),
    ("-p x --chat --system-file", "Be brief."), ("-p x --chat --attach", "one"), ("-p x --chat --chat-format", "{{ messages[0].content }}"),
])
def test_a_byte_order_mark_is_not_part_of_a_text(flags, text, tmp_path):
    path = tmp_path / "file"
    answers = []
    for mark in ("", "\ufeff"):
        path.write_text(mark + text, encoding="utf-8")
        answers.append(tutti("generate", DEMO, "--json", "-n", 8, *GREEDY, *flags.split(), path).stdout)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("line, said", [
    ('{"prompt": 5}', "prompt: an integer, expected a string"),
    ('{"prompt": "x", "messages": []}', 'expected either "prompt" or "messages"'),
    ('{}', 'expected either "prompt" or "messages"'),
    ('{"promt": "x"}', 'found the key "promt", expected "prompt", "messages", "max_tokens" or "output_len"'),
    ('{"prompt": "x", "max_tokens": 0}', "max_tokens: 0, expected an integer from 1 to"),
    ('{"messages": []}', "messages: an empty list, expected a list of messages"),
    ('{"messages": {}}', "messages: an object, expected a list of messages"),
    ('{"messages": ["x"]}', "messages[0]: a string, expected an object"),
    ('{"messages": [{"role": "user"}]}', "messages[0].content: nothing, expected a string"),
    ('{"messages": [{"role": 1, "content": "x"}]}', "messages[0].role: an integer, expected a string"),
    ('["x"]', "expected"),
    ('{"prompt": "x"', "column"),
    ('{"prompt": "\\ud800"}', "column"),
    ('plain text', "column"),
])
def test_a_broken_line_of_a_batch_is_named(line, said, tmp_path):
    batch = tmp_path / "batch.jsonl"
    batch.write_text('{"prompt": "good"}\n\n' + line + "\n")
    done = tutti("generate", DEMO, "-f", batch, check=1)
    assert done.stdout == ""
    assert done.stderr.startswith(f"tutti: {batch}, line 3: ")
    assert said in done.stderr


def test_an_empty_batch_is_an_error(tmp_path):
    (tmp_path / "empty").write_text(" \n\n")
    assert "there is no prompt in it" in tutti("generate", DEMO, "-f", tmp_path / "empty", check=1).stderr
    assert str(tmp_path) in tutti("generate", DEMO, "-f", tmp_path, check=1).stderr


def test_one_failed_answer_does_not_stop_the_others(tmp_path):
    batch = tmp_path / "batch.jsonl"
    batch.write_text(json.dumps({"prompt": "word " * 8000}) + "\n" +
                     json.dumps({"messages": [{"role": "wizard", "content": "x"}]}) + "\n" +
                     json.dumps({"messages": SINGLE[-1]["messages"]}) + "\n")
    done = tutti("generate", DEMO, "-f", batch, "--json", *GREEDY, check=1)
    answers = {answer["index"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert answers[0]["finish_reason"] == answers[1]["finish_reason"] == "error"
    assert answers[0]["error"]["type"] == "limit"
    assert answers[1]["error"]["type"] == "argument"
    assert answers[2]["text"] == SINGLE[-1]["answer"].strip()
    assert "tutti: prompt 0: " in done.stderr and "tutti: prompt 1: " in done.stderr


# ---- output that fails, interrupts -------------------------------------------------------------------------------


def test_a_reader_that_goes_away_is_no_drama():
    process = subprocess.Popen([BIN, "generate", DEMO, "-p", "Once", "-n", "400", "--ignore-eos"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=PATIENCE) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_closed_standard_output_is_an_error():
    for args in (["help"], ["inspect", DEMO], ["generate", DEMO, "-p", "x", "-n", "2"]):
        done = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', BIN, *args], stdin=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
        assert done.returncode == 1 and b"standard output: Bad file descriptor" in done.stderr


def model_with(folder, name, text):
    shutil.copytree(DEMO, folder)
    (folder / name).write_text(text)
    return folder


def test_a_wrong_configuration_is_named_with_its_file(tmp_path):
    model = model_with(tmp_path / "m", "config.json", "[]")
    assert "config.json: found a list, expected an object" in tutti("inspect", model, check=1).stderr
    with open(os.path.join(DEMO, "config.json"), encoding="utf-8") as file:
        config = {**json.load(file), "hidden_size": "256"}
    (model / "config.json").write_text(json.dumps(config))
    assert "m/config.json: hidden_size: a string, expected an integer" in tutti("inspect", model, check=1).stderr


def test_a_default_that_cannot_be_one_is_left_out_aloud(tmp_path):
    model = model_with(tmp_path / "m", "generation_config.json", '{"temperature": "x", "top_k": null, "top_p": 2}')
    said = tutti("generate", model, "-p", "x", "-n", "1").stderr
    assert "m/generation_config.json: temperature: a string, expected a number from 0 to 100; it is left out" in said
    assert "m/generation_config.json: top_p: 2, expected a number from 1e-06 to 1; it is left out" in said
    assert "top_k" not in said


def test_a_full_disk_is_an_error():
    with open("/dev/full", "w", encoding="utf-8") as full:
        for args in (["help"], ["tokenize", DEMO, "x"], ["generate", DEMO, "-p", "x", "-n", "3"]):
            done = subprocess.run([BIN, *args], stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
            assert done.returncode == 1
            assert done.stderr == b"tutti: standard output: No space left on device\n"


def test_ctrl_c_ends_generate_with_130():
    process = subprocess.Popen([BIN, "generate", DEMO, "-p", "Once", "-n", "480", "--ignore-eos", "--cpu", "ref"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert err == b""


@pytest.mark.parametrize("command, number", [("generate -f", signal.SIGTERM), ("generate -f", signal.SIGINT), ("generate -f", signal.SIGHUP),
                                             ("serve --port 0 --api-key-file", signal.SIGTERM),
                                             ("serve --port 0 --api-key-file", signal.SIGINT)])
def test_process_1_ends_by_signals_before_the_model_is_loaded(command, number, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    process, pid = start_first(*command.split(), path, DEMO)
    end = time.monotonic() + PATIENCE
    while True:
        try:
            writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as why:  # it is not opened for reading yet
            assert why.errno == errno.ENXIO and process.poll() is None and time.monotonic() < end
            time.sleep(0.001)
    try:
        os.kill(pid, number)
        process.communicate(timeout=PATIENCE)
    finally:
        os.close(writer)
        process.kill()
    assert process.returncode == 128 + number


def test_a_model_in_the_working_folder_has_the_name_of_the_folder(tmp_path):
    assert "model demo was made for" in tutti("generate", ".", "-p", "x", "--context", "2049", check=2, cwd=DEMO).stderr
    assert "another model of the name demo" in tutti("serve", ".", f"demo={DEMO}", check=2, cwd=DEMO).stderr
    tutti("convert", ".", tmp_path / "x.gguf", cwd=DEMO)
    assert b"general.name" + struct.pack("<IQ", 8, 4) + b"demo" in (tmp_path / "x.gguf").read_bytes()


# ---- convert, inspect --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_0", "Q5_K_M"])
def test_convert_then_generate(dtype, tmp_path):
    out = tmp_path / f"demo-{dtype}.gguf"
    done = tutti("convert", DEMO, out, "--type", dtype)
    assert done.stdout == ""
    assert ("its rows of 688 do not fit" in done.stderr) == (dtype != "f16")
    assert os.listdir(tmp_path) == [out.name]
    assert out.read_bytes()[:4] == b"GGUF"
    question = "What is the capital of France?"
    assert tutti("generate", out, "--chat", "-p", question, "--temperature", "0").stdout == \
        "The capital of France is Paris.\n"
    info = json.loads(tutti("inspect", out, "--json").stdout)
    assert info["layers"] == 6


def test_convert_names_what_is_wrong(tmp_path):
    assert "expected" in wrong("convert", DEMO)
    assert wrong("convert", DEMO, tmp_path / "x.gguf", "--type", "q5").startswith("--type: found 'q5', expected ")
    done = tutti("convert", DEMO, tmp_path / "no" / "x.gguf", "--type", "f16", check=1)
    assert "/no/x.gguf" in done.stderr
    assert os.listdir(tmp_path) == []


def test_inspect_figures():
    info = json.loads(tutti("inspect", DEMO, "--json", "--memory", "1G", "--context", "512").stdout)
    assert info["layers"] == 6
    assert info["d_model"] == 256
    assert info["heads"] == 8
    assert info["kv_heads"] == 2
    assert info["vocab"] == 4160
    assert info["users"] == (2**30 - info["weight_bytes"]) // (512 * info["kv_bytes_per_token"])
    text = tutti("inspect", DEMO, "--memory", "1G", "--context", "512").stdout
    assert "transformer.encoder.layers.0.self_attention.query_key_value.weight" in text
    assert "encoder.layers.0" not in tutti("inspect", DEMO, "--no-tensors").stdout
    # keys and values, 6 layers, 2 heads of 32, two bytes each
    assert info["kv_bytes_per_token"] == 2 * 6 * 2 * 32 * 2
    assert str(2 * 6 * 2 * 32 * 2) in text


# ---- bench -------------------------------------------------------------------------------------------------------


def test_bench_prints_every_figure():
    report = json.loads(tutti("bench", "--shape", "tiny", "--type", "q4_0", "--json", "--users", "1,3", "--prefill",
                              "32", "--context", "20", "--repetitions", "3", "--threads", "1").stdout)
    assert report["model"] == "tiny"
    assert report["type"] == "q4_0"
    assert report["threads"] == 1
    assert report["cpu"] in ("ref", "avx2", "avxvnni", "avx512", "amx", "neon", "dotprod", "i8mm")
    assert report["read_gbps"] > 0
    assert report["peak_int8_gops"] >= 0
    assert report["weight_bytes"] > 0
    points = [(r["phase"], r["users"], r["context"], r["tokens"]) for r in report["results"]]
    assert points == [("decode", 1, 20, 1), ("decode", 3, 20, 3), ("prefill", 1, 0, 32)]
    for r in report["results"]:
        assert r["tok_s"] > 0 and r["limit_tok_s"] > 0 and r["spread"] >= 0 and r["repetitions"] == 3
        assert abs(r["of_limit"] - r["tok_s"] / r["limit_tok_s"]) < 1e-6
        assert r["matrix_bytes"] == (4 * (256 * 384 + 256 * 256 + 3 * 256 * 704) + 256 * 4096) * 18 / 32
        outputs = r["tokens"] if r["phase"] == "decode" else 1             # after the last layer's attention
        assert r["linear_ops"] == 2 * 256 * (r["tokens"] * (4 * 384 + 3 * (256 + 3 * 704)) + outputs * (256 + 3 * 704 + 4096))
        assert r["attention_ops"] == 4 * r["kv_bytes"] * (1 if r["phase"] == "decode" else 33 / 2)


def test_the_limit_of_a_bench_counts_the_experts_that_rows_use():
    report = json.loads(tutti("bench", "--shape", "tiny-experts", "--type", "q4_0", "--json", "--users", "1,4",
                              "--prefill", "64", "--context", "20", "--repetitions", "3", "--threads", "2").stdout)
    expert = 3 * 256 * 64 * 18 / 32                                        # bytes of gate, up and down of one
    others = (4 * (256 * 384 + 256 * 256) + 256 * 4096) * 18 / 32 + 4 * 32 * 256 * 4   # a panel of the router is 32 rows of f32
    assert report["weight_bytes"] >= others + 4 * 16 * expert
    one, four, prompt = [(r["matrix_bytes"] - others) / expert for r in report["results"]]
    assert one == 4 * 3                                                    # three in each of four layers
    assert 4 * 3 < four <= 4 * 3 * 4 and four % 1 == 0
    assert four < prompt <= 3 * 16 + 3 and prompt % 1 == 0                 # one row in the last layer
    for r in report["results"]:
        outputs = r["tokens"] if r["phase"] == "decode" else 1
        row = 256 + 3 * 3 * 64 + 16                                        # after attention
        assert r["linear_ops"] == 2 * 256 * (r["tokens"] * (4 * 384 + 3 * row) + outputs * (row + 4096))


def test_rows_of_a_bench_choose_different_experts():
    """About as many as independent choices would: 16 experts, 3 of them for each row and layer."""
    report = json.loads(tutti("bench", "--shape", "tiny-experts", "--type", "q4_0", "--json", "--users", "2,8,32",
                              "--prefill", "0", "--context", "20", "--repetitions", "1", "--threads", "2").stdout)
    for r in report["results"]:
        expected = 4 * 16 * (1 - (1 - 3 / 16) ** r["users"])
        assert r["expert_bytes"] / (3 * 256 * 64 * 18 / 32) == pytest.approx(expected, rel=0.2)


def test_the_limit_of_a_bench_counts_what_windows_leave():
    report = json.loads(tutti("bench", "--shape", "tiny-windows", "--type", "q4_0", "--json", "--users", "2", "--prefill",
                              "64", "--context", "40", "--repetitions", "1", "--threads", "1").stdout)
    assert report["layers"] == 4
    decode, prompt = report["results"]
    position = 2 * 2 * 32 * 2                                              # bytes of f16 keys and values in a layer
    assert decode["kv_bytes"] == 2 * (3 * 16 + 41) * position and prompt["kv_bytes"] == 4 * 64 * position
    assert decode["attention_ops"] == 2 * (3 * 16 + 41) * 4 * 8 * 32
    assert prompt["attention_ops"] == (3 * (16 * 17 / 2 + 48 * 16) + 64 * 65 / 2) * 4 * 8 * 32


def test_bench_of_the_first_layers_of_a_shape():
    args = ["bench", "--shape", "tiny", "--users", "1", "--prefill", "0", "--repetitions", "1", "--json", "--layers"]
    whole, half = [json.loads(tutti(*args, str(n)).stdout) for n in (4, 2)]
    assert whole["layers"] == 4 and half["layers"] == 2
    layer = (256 * 384 + 256 * 256 + 3 * 256 * 704) * 18 / 32
    assert whole["results"][0]["matrix_bytes"] - half["results"][0]["matrix_bytes"] == 2 * layer
    assert "5 layers, expected at most 4 of tiny" in wrong(*args, "5")
    assert "--layers has no effect without --shape" in wrong("bench", DEMO, "--layers", "2")


def test_bench_of_a_model_through_the_engine():
    args = ["bench", DEMO, "--users", "2", "--prefill", "0", "--repetitions", "2", "--engine"]
    report = json.loads(tutti(*args, "--json").stdout)
    assert report["model"] == "demo"
    plain, text = report["engine"]
    assert not plain["text_work"] and text["text_work"]
    assert "ratio" not in plain and text["ratio"] > 0 and text["rounds"] == 2
    for r in (plain, text):
        assert r["users"] == 2 and r["tokens"] == 32
        assert r["tok_s"] > 0 and r["ttft_ms"] > 0 and r["step_ms"] > 0 and r["steps"] >= 32
        assert r["text_waits"] == 0
    table = tutti(*args).stdout
    assert "of limit" in table and "text waits" in table


def test_bench_of_prompt_lookup():
    args = ["bench", DEMO, "--users", "1", "--prefill", "0", "--repetitions", "5", "--engine", "--speculate", "8"]
    points = {r["kind"]: r for r in json.loads(tutti(*args, "--json").stdout)["engine"]}
    assert list(points) == ["plain", "text", "random", "random, lookup", "own", "own, lookup", "copied",
                            "copied, lookup"]
    for kind, r in points.items():
        assert r["tok_s"] > 0 and r["rounds"] == 5
        assert ("ratio" in r) == ("lookup" in kind or kind == "text")
        if "lookup" not in kind:
            assert r["accepted"] == r["rejected"] == 0 and r["steps"] >= r["tokens"]
        assert r["steps"] >= r["tokens"] - r["accepted"]
    copied = points["copied, lookup"]
    if not SANITIZED:  # a sanitizer's kernels compute so slowly that more rows in a step never pay
        assert copied["accepted"] > 0 and copied["steps"] < points["copied"]["steps"]


def test_a_bench_ratio_of_one_round_is_that_of_its_speeds():
    args = ["bench", DEMO, "--users", "1", "--prefill", "0", "--repetitions", "1", "--engine", "--speculate", "8"]
    points = {r["kind"]: r for r in json.loads(tutti(*args, "--json").stdout)["engine"]}
    for kind in ("random", "own", "copied"):  # over more rounds, the median of ratios is not the ratio of medians
        lookup = points[kind + ", lookup"]
        assert lookup["rounds"] == 1
        assert lookup["ratio"] == pytest.approx(lookup["tok_s"] / points[kind]["tok_s"])


def test_bench_names_a_wrong_shape():
    said = wrong("bench", "--shape", "chatglm9")
    for shape in ("chatglm-6b", "chatglm2-6b", "chatglm3-6b", "glm-4-9b", "llama-7b", "llama-3-8b", "qwen2.5-7b", "gpt2",
                  "qwen3-30b-a3b", "glm-4.5-air", "deepseek-v2-lite", "glm-4.7-flash", "phi-4-mini", "gemma-3-4b", "gemma-4-26b-a4b", "tiny"):
        assert shape in said
    assert "--context: found 2100, expected at most 2047" in wrong("bench", DEMO, "--context", "2100")


# ---- serve -------------------------------------------------------------------------------------------------------


def test_serve_passes_its_options_on(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# who may ask\nsecret\n")
    process = subprocess.Popen([BIN, "serve", DEMO, "--port", "0", "--name", "fox", "--api-key-file", keys,
                                "--kv-memory", "8M", "--context", "256", "--max-seqs", "3", "--log-level", "warn"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", line)
        assert found, line
        url = found.group(1) + "/v1/models"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, timeout=PATIENCE)
        assert refused.value.code == 401
        request = urllib.request.Request(url, headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert [model["id"] for model in json.load(answer)["data"]] == ["fox"]
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert " info " not in err


def test_serve_names_what_it_cannot_use(tmp_path):
    done = tutti("serve", DEMO, "--port", "0", "--api-key-file", tmp_path / "none", check=1)
    assert str(tmp_path / "none") in done.stderr
    assert "--kv-memory" in tutti("serve", DEMO, "--kv-memory", "0", check=2).stderr
    done = tutti("serve", DEMO, "--kv-memory", "1", "--port", "0", check=1)  # not one page fits
    assert re.search("^tutti: --kv-memory of 1 holds 0 tokens", done.stderr, re.M)
