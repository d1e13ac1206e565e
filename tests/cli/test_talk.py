"""Conversations of tutti chat without a terminal: files, system messages, settings, adapters, saving and loading, thinking."""
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys

import pytest
from thinking_model import thinking_model

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
DEMO = os.path.join(ROOT, "models", "demo")
PATIENCE = 60 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))

from test_adapters import write_adapter  # noqa: E402

FRANCE, PARIS = "What is the capital of France?", "The capital of France is Paris."
SPAIN = "What is the capital of Spain?"
NO_SYSTEM = ("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
             "{{ m.content }}\n{% endfor %}")
LEAVES_OUT = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}\n{% endif %}{% endfor %}"


def chat(*lines, args=(), model=(DEMO,), check=0):
    """Runs the lines; greedy unless args say otherwise."""
    words = [BIN, "chat", *model, *map(str, args)]
    if "--temperature" not in words:
        words += ["--temperature", "0"]
    done = subprocess.run(words, input="".join(line + "\n" for line in lines), capture_output=True, encoding="utf-8",
                          timeout=PATIENCE, check=False)
    assert done.returncode == check, (done.stdout, done.stderr)
    return done


def saved(tmp_path, *lines, name="talk.json", **more):
    path = tmp_path / name
    chat(*lines, f"/save! {path}", **more)
    return json.loads(path.read_text())


# ---- files ----

def test_files_come_before_the_message_in_a_fence_of_their_own(tmp_path):
    (tmp_path / "a.md").write_text("x\n````\ny\n")
    (tmp_path / "b.txt").write_text("中国")
    talk = saved(tmp_path, f"/file {tmp_path}/b.txt", "What is this?", "And now?", args=["--file", tmp_path / "a.md", "-n", 4])
    first, second = (m["content"] for m in talk["messages"] if m["role"] == "user")
    assert first == f"{tmp_path}/a.md:\n`````\nx\n````\ny\n`````\n\n{tmp_path}/b.txt:\n```\n中国\n```\n\nWhat is this?"
    assert second == "And now?"


def test_files_can_be_detached(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    talk = saved(tmp_path, f"/file {tmp_path}/a.txt", "/file none", FRANCE)
    assert talk["messages"] == [{"role": "user", "content": FRANCE}, {"role": "assistant", "content": PARIS}]


@pytest.mark.parametrize("content, told", [(b"\xff\xfe", "bytes that are not UTF-8 text"), (b"a\0b", "bytes that are not UTF-8 text"),
                                           (b"word " * 2500, "with this file the conversation has"),
                                           (b"x" * 100000, "more than the context can hold"), (None, "Is a directory")])
def test_a_file_that_cannot_be_attached_is_named(tmp_path, content, told):
    path = tmp_path / "file"
    path.mkdir() if content is None else path.write_bytes(content)
    for args, lines in ((["--file", path], []), ([], [f"/file {path}"])):
        error = chat(*lines, args=args, check=1).stderr
        assert str(path) in error and told in error


def test_standard_input_has_the_messages():
    for flag in "--file", "--system-file":
        assert f"{flag} -: standard input has the messages" in chat(args=[flag, "-"], check=2).stderr


@pytest.mark.parametrize("args, line, told", [
    ([], b"Hello\xff", b"tutti: the message is not sent: it has bytes that are not UTF-8"),
    ([], b"/system Be\xff", b"tutti: the system message has bytes that are not UTF-8"),
    (["--system", b"Be\xff"], b"", b"tutti: the system message has bytes that are not UTF-8"),
])
def test_text_that_is_not_utf_8_is_not_sent(args, line, told):
    done = subprocess.run([BIN, "chat", DEMO, *args], input=line + b"\n", capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode in (1, 2) and done.stdout == b"" and done.stderr.startswith(told)


# ---- the system message ----

def test_a_system_message_from_a_file_and_by_command(tmp_path):
    (tmp_path / "s.txt").write_text("Be kind.\nAlways.\n")
    talk = saved(tmp_path, FRANCE, args=["--system-file", tmp_path / "s.txt"])
    assert talk["messages"][0] == {"role": "system", "content": "Be kind.\nAlways."}
    talk = saved(tmp_path, FRANCE, "/system Be brief.", SPAIN, args=["--system-file", tmp_path / "s.txt"])
    assert [m["role"] for m in talk["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert talk["messages"][0]["content"] == "Be brief." and talk["messages"][1]["content"] == FRANCE
    talk = saved(tmp_path, FRANCE, "/system", args=["--system", "Be kind."])
    assert [m["role"] for m in talk["messages"]] == ["user", "assistant"]
    talk = saved(tmp_path, FRANCE, "/clear", args=["--system", "Be kind."])
    assert talk["messages"] == [{"role": "system", "content": "Be kind."}]


@pytest.mark.parametrize("template, told", [(NO_SYSTEM, "System role not supported); put the text"),
                                             (LEAVES_OUT, "demo leaves out system messages")], ids=["refused", "left out"])
def test_a_template_without_system_messages_is_named(tmp_path, template, told):
    (tmp_path / "t.jinja").write_text(template)
    model = [DEMO, "--chat-format", str(tmp_path / "t.jinja")]
    assert told in chat(args=["--system", "x"], model=model, check=1).stderr
    assert told in chat("/system x", model=model, check=1).stderr
    assert told in subprocess.run([BIN, "generate", *model, "--chat", "--system", "x", "-p", "y"], capture_output=True, text=True,
                                  timeout=PATIENCE, check=False).stderr


def test_an_empty_system_file_is_an_error(tmp_path):
    (tmp_path / "s.txt").write_text("\n")
    assert "s.txt: the file is empty" in chat(args=["--system-file", tmp_path / "s.txt"], check=1).stderr
    assert "found both" in chat(args=["--system-file", tmp_path / "s.txt", "--system", "x"], check=2).stderr


# ---- the conversation ----

def test_undo_and_regenerate(tmp_path):
    talk = saved(tmp_path, FRANCE, SPAIN, "/undo", "/regenerate")
    assert talk["messages"] == [{"role": "user", "content": FRANCE}, {"role": "assistant", "content": PARIS}]
    assert chat(FRANCE, "/regenerate").stdout == PARIS + "\n" + PARIS + "\n"
    for line in "/undo", "/regenerate":
        assert f"{line}: there is no question" in chat(line, check=1).stderr


def test_regenerate_draws_again():
    answers = chat("Tell me a story.", *["/regenerate"] * 3, args=["--temperature", 1.5, "-n", 24]).stdout.splitlines()
    assert len(set(answers)) > 1


def test_settings_change_the_next_answer(tmp_path):
    story = "Tell me a story."
    wanted = chat(story, args=["--temperature", 1, "--seed", 5, "-n", 12]).stdout
    assert chat("/set temperature 1", "/set seed 5", "/set max_tokens 12", story).stdout == wanted
    talk = saved(tmp_path, "/set top_p 0.5", "/set temperature 0.7", "/set top_p default", "/set min_p 0.1")
    assert talk == {"model": "demo", "messages": [], "temperature": 0.7, "min_p": 0.1}


def test_settings_are_listed():
    listed = chat("/set", "/set temperature 0.7", "/set max_tokens 12", "/set", "/set temperature default", "/set max_tokens default", "/set",
                  "/adapter").stderr
    assert listed.splitlines() == ["[temperature 0]", "[max_tokens 12, temperature 0.7]", "[no settings; the model's files say all of them]",
                                   "[no adapters; --lora NAME=PATH loads one at the start]"], listed


def test_quoted_text_is_a_message(tmp_path):
    talk = saved(tmp_path, '"""/clear', "", 'two"""', '"""one"""', args=["-n", 12])
    assert [m["content"] for m in talk["messages"] if m["role"] == "user"] == ["/clear\n\ntwo", "one"]


# ---- saving and loading ----

def test_a_conversation_goes_on_where_it_was(tmp_path):
    first = saved(tmp_path, FRANCE, args=["--system", "Be kind.", "--seed", 3, "--temperature", 0.5, "--top-p", 0.9, "--stop", "xyz", "-n", 30])
    second = saved(tmp_path, name="again.json", args=["--load", tmp_path / "talk.json", "--temperature", 0.5])
    assert first == second and first["stop"] == ["xyz"] and first["top_p"] == 0.9 and first["seed"] == 3
    (tmp_path / "whole").mkdir()
    whole = saved(tmp_path / "whole", FRANCE, SPAIN, args=["--system", "Be kind.", "--seed", 3, "--temperature", 0.5, "--top-p", 0.9,
                                                           "--stop", "xyz", "-n", 30])
    rest = saved(tmp_path, f"/load {tmp_path}/talk.json", SPAIN, name="rest.json")
    assert rest == whole


def test_a_saved_conversation_is_a_request(tmp_path):
    """Its messages and settings have the names of OpenAI's API: tutti generate --batch answers it."""
    body = saved(tmp_path, FRANCE, "/undo", SPAIN, "/undo", args=["-n", 40])
    body["messages"] = [{"role": "user", "content": FRANCE}]
    line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body})
    done = subprocess.run([BIN, "generate", DEMO, "--batch", "-"], input=line, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert json.loads(done.stdout)["response"]["body"]["choices"][0]["message"]["content"] == PARIS


def test_saving_replaces_a_file_only_when_told(tmp_path):
    path = tmp_path / "talk.json"
    path.write_text("mine")
    assert "exists already; /save! " in chat(FRANCE, f"/save {path}", check=1).stderr
    assert path.read_text() == "mine"
    chat(FRANCE, f"/save! {path}")
    assert json.loads(path.read_text())["messages"]
    assert "No such file or directory" in chat(f"/save {tmp_path}/none/talk.json", check=1).stderr
    assert os.listdir(tmp_path) == ["talk.json"]


def test_markdown_has_the_marks_of_the_page(tmp_path):
    chat('"""<!-- tutti: user -->', '<!-- \\tutti: x"""', f"/save {tmp_path}/talk.md", args=["--system", "Be kind.", "-n", 3])
    text = (tmp_path / "talk.md").read_text()
    assert re.findall(r"^<!-- tutti: (\w+) -->$", text, re.M) == ["system", "user", "assistant"]
    assert "\n<!-- \\tutti: user -->\n<!-- \\\\tutti: x\n" in text and text.startswith("# demo\n\n<!-- tutti: system -->\n## System prompt\n\nBe kind.\n")


PAGE = {"format": "tutti-conversations", "version": 1, "conversations": [{
    "title": "x", "named": False, "changed": 1, "picks": {"": "b", "b": "c"},
    "options": {"model": "demo", "system": "Be kind.", "temperature": 0.5, "max_tokens": 30, "top_k": None},
    "messages": [
        {"id": "a", "parent": None, "role": "user", "text": "not shown"},
        {"id": "b", "parent": None, "role": "user", "text": "And this?", "files": [{"name": "f.txt", "text": "one\n"}]},
        {"id": "c", "parent": "b", "role": "assistant", "text": "shown", "reasoning": "I see", "stats": {"tokens": 1}},
        {"id": "d", "parent": "b", "role": "assistant", "text": "newer, not picked"},
        {"id": "e", "parent": "c", "role": "user", "text": FRANCE},
        {"id": "f", "parent": "e", "role": "assistant", "text": "older"},
        {"id": "g", "parent": "e", "role": "assistant", "text": "the latest"}]}]}


def test_an_export_of_the_page_loads(tmp_path):
    (tmp_path / "page.json").write_text(json.dumps(PAGE))
    talk = saved(tmp_path, args=["--load", tmp_path / "page.json", "--temperature", 0.5])
    assert talk == {"model": "demo", "temperature": 0.5, "max_tokens": 30, "messages": [
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "f.txt:\n```\none\n```\n\nAnd this?"},
        {"role": "assistant", "content": "shown", "reasoning_content": "I see"}, {"role": "user", "content": FRANCE},
        {"role": "assistant", "content": "the latest"}]}


@pytest.mark.parametrize("change, told", [
    ({"model": "demo:none"}, "talk.json: model: found 'demo:none', but no --lora has the name none"),
    ({"messages": [{"role": "user", "content": "word " * 2500}]}, "talk.json: messages: found"),
    ({"reasoning_effort": "high"}, "talk.json: --reasoning-effort: demo does not think"),
    ({"temperature": 900}, "talk.json: temperature: found '900', expected a number from 0 to 100")])
def test_what_the_model_cannot_honour_is_not_loaded(tmp_path, change, told):
    (tmp_path / "talk.json").write_text(json.dumps({"messages": [], **change}))
    done = chat(FRANCE, f"/load {tmp_path}/talk.json", args=["--chat-format", "chatglm3"], check=1)
    assert done.stdout == PARIS + "\n" and told in done.stderr


# ---- adapters ----

def write_prefix(folder, n_tokens=4):
    """A folder as PEFT saves prefix tuning: random keys and values of each layer."""
    config = json.loads(open(os.path.join(DEMO, "config.json"), encoding="utf-8").read())
    width = config["num_layers"] * 2 * config["multi_query_group_num"] * config["kv_channels"]
    rng = random.Random(1)
    header = {"prompt_embeddings": {"dtype": "F32", "shape": [n_tokens, width], "data_offsets": [0, 4 * n_tokens * width]}}
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + struct.pack(f"<{n_tokens * width}f", *(rng.gauss(0, 6) for _ in range(n_tokens * width))))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "PREFIX_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": n_tokens,
                                                            "prefix_projection": False}))


@pytest.mark.parametrize("kind", ["lora", "prefix"])
def test_adapters_can_be_changed(tmp_path, kind):
    if kind == "lora":
        write_adapter(tmp_path / "loud", seed=1)
    else:
        write_prefix(tmp_path / "loud")
    args = ["--lora", f"loud={tmp_path}/loud", "-n", 12]
    answers = {name: chat("Tell me a story.", args=[*args, "--adapter", name]).stdout for name in ("loud", "none")}
    assert answers["loud"] != answers["none"]
    both = chat("/adapter none", "Tell me a story.", "/clear", "/adapter loud", "Tell me a story.", "/adapter", args=args)
    assert both.stdout == answers["none"] + answers["loud"] and "[adapter loud; loaded: loud]" in both.stderr
    talk = saved(tmp_path, "Tell me a story.", args=args)
    assert talk["model"] == "demo:loud"
    (tmp_path / "empty.json").write_text(json.dumps({"model": "demo", "messages": [], "temperature": 0, "max_tokens": 12}))
    assert chat(f"/load {tmp_path}/empty.json", "Tell me a story.", args=args).stdout == answers["none"]
    (tmp_path / "empty.json").write_text(json.dumps({"model": "demo:loud", "messages": [], "temperature": 0, "max_tokens": 12}))
    assert chat(f"/load {tmp_path}/empty.json", "Tell me a story.", args=["--adapter", "none", *args][2:]).stdout == answers["loud"]


# ---- thinking ----

def test_without_a_terminal_thinking_is_shown_only_when_asked(tmp_path):
    model = thinking_model(tmp_path)
    args = ["--thinking-budget", 7, "-n", 30]
    answer = chat("Tell me a story", args=args, model=model)
    assert answer.stdout.count("\n") == 1 and answer.stderr == ""
    assert chat("Tell me a story", args=[*args, "--thinking", "hide"], model=model).stdout == answer.stdout
    shown = chat("Tell me a story", args=[*args, "--thinking", "show"], model=model).stdout
    thinking = re.fullmatch(r"\[thinking\]\n(.+)\n\[thought for \d+ tokens\]\n\n(.*\n)", shown)
    assert thinking and thinking[2] == answer.stdout
    off = chat("Tell me a story", args=["-n", 30, "--thinking", "off"], model=model).stdout
    assert off != answer.stdout and chat("/set thinking off", "Tell me a story", args=["-n", 30], model=model).stdout == off
    talk = saved(tmp_path, "Tell me a story", args=args, model=model)
    assert talk["thinking_budget"] == 7 and talk["messages"][1]["reasoning_content"] == thinking[1]
    again = saved(tmp_path, name="again.json", args=["--load", tmp_path / "talk.json"], model=model)
    assert again == talk
    talk = saved(tmp_path, args=["--thinking", "off"], model=model)
    assert talk["enable_thinking"] is False
    assert chat("Tell me a story", args=["--load", tmp_path / "talk.json", "-n", 30], model=model).stdout == off


def test_thinking_is_turned_on_where_the_template_needs_it(tmp_path):
    question = "What is 3 plus 4?"
    assert "reasoning_content" not in saved(tmp_path, question)["messages"][1]
    for how in ("show", "on"):
        talk = saved(tmp_path, question, name=f"{how}.json", args=["--thinking", how])
        assert talk["enable_thinking"] is True and "3 + 4" in talk["messages"][1]["reasoning_content"]
        again = saved(tmp_path, f"/load {tmp_path}/{how}.json", "What is 2 plus 4?", name="again.json")
        assert again["enable_thinking"] is True and "2 + 4" in again["messages"][3]["reasoning_content"]
    assert "[thinking]" in chat(f"/load {tmp_path}/on.json", question, args=["--thinking", "show"]).stdout
    assert "--thinking on contradicts --reasoning-effort none" in chat(args=["--thinking", "on", "--reasoning-effort", "none"], check=2).stderr


def test_thinking_that_cannot_be_set_is_named(tmp_path):
    model = thinking_model(tmp_path)
    assert "--reasoning-effort has no effect with --thinking off" in chat(args=["--thinking", "off", "--reasoning-effort", "low"],
                                                                          model=model, check=2).stderr
    (tmp_path / "plain.jinja").write_text("{{ messages[-1].content }}<think>{% if false %}</think>{% endif %}")
    plain = [model[0], "--chat-format", str(tmp_path / "plain.jinja")]
    assert "--reasoning-effort: thinker has a chat template without such a setting" in chat(args=["--reasoning-effort", "low"], model=plain,
                                                                                            check=1).stderr
    assert chat("x", args=["--thinking", "off", "-n", 8], model=plain).stdout  # by a budget of no tokens
    shutil.copytree(DEMO, tmp_path / "demo")
    (tmp_path / "demo" / "tokenizer_config.json").write_text("{}")  # without its marks
    unmarked = [str(tmp_path / "demo"), "--chat-format", str(tmp_path / "plain.jinja")]
    for flag in (["--thinking", "off"], ["--thinking-budget", "4"]):
        assert f"{flag[0]}: demo has no single token that opens its thinking" in chat(args=flag, model=unmarked, check=1).stderr
