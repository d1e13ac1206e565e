"""tutti chat, typed into a terminal of its own (a pty), and with standard input that is no terminal."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest
from thinking_model import thinking_model

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
DEMO = os.path.join(ROOT, "models", "demo")
PATIENCE = 60 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
GREEDY = ["--temperature", "0", "--type", "f32", "--kv-type", "f32"]
FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|[\r\x07\x08]")


class Terminal:
    """A chat in a pty; its screen is the text that came, without control sequences."""

    def __init__(self, *args, home, term="xterm", model=(DEMO,)):
        try:
            self.master, slave = pty.openpty()
        except OSError as fault:  # a chroot without /dev/pts
            pytest.skip(f"no terminal to be had here: {fault}")
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
        env = {**os.environ, "TERM": term, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "LC_ALL": "C"}
        self.process = subprocess.Popen([BIN, "chat", *model, *args], stdin=slave, stdout=slave, stderr=slave, env=env,
                                        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.raw = b""
        self.seen = 0

    def screen(self):
        text = re.sub(r"\x1b[\[0-9;?]*$", "", self.raw.decode("utf-8", "ignore"))  # the rest of it is to come
        return CONTROLS.sub("", text)

    def wait_for(self, text):
        """Waits until text comes after what was last waited for; returns what came, text included."""
        end = time.monotonic() + PATIENCE
        while True:
            screen = self.screen()
            at = screen.find(text, self.seen)
            if at >= 0:
                found = screen[self.seen:at + len(text)]
                self.seen = at + len(text)
                return found
            left = end - time.monotonic()
            assert left > 0, f"{text!r} did not come; after the last: {screen[self.seen:]!r}"
            if select.select([self.master], [], [], min(left, 1))[0]:
                try:
                    self.raw += os.read(self.master, 65536)
                except OSError:  # the other end is closed
                    time.sleep(0.05)

    def type(self, keys):
        os.write(self.master, keys.encode())

    def say(self, line):
        """Types a line and waits until the answer's figures are there; returns what was shown between."""
        self.type(line + "\n")
        return self.wait_for(" tokens")

    def end(self, again=""):
        """Waits for the end of the program; returns its exit status. again: typed once more each two seconds, since a
        key pressed between the prompt and the line editor's start belongs to the terminal, not to the editor."""
        deadline = time.monotonic() + PATIENCE
        next_key = time.monotonic() + 2
        while self.process.poll() is None and time.monotonic() < deadline:
            if again and time.monotonic() > next_key:
                self.type(again)
                next_key = time.monotonic() + 2
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.raw += os.read(self.master, 65536)
                except OSError:
                    pass
        if self.process.poll() is None:
            self.process.kill()
        return self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def chat(tmp_path):
    terminals = []

    def start(*args, **more):
        terminal = Terminal(*args, *GREEDY, home=tmp_path, **more)
        terminals.append(terminal)
        terminal.wait_for("> ")
        return terminal

    yield start
    for terminal in terminals:
        terminal.close()


def test_answers_and_shows_tokens_per_second(chat):
    terminal = chat()
    assert PARIS in terminal.say(FRANCE)
    assert "tokens/s" in terminal.wait_for("]")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.end(again="\x04") == 0


def test_reads_chinese_as_typed(chat):
    terminal = chat()
    assert "中国的首都是北京。" in terminal.say("中国的首都是哪个城市?")


def test_ctrl_c_stops_the_answer_and_the_talk_goes_on(chat):
    terminal = chat("--cpu", "ref", "--ignore-eos")
    terminal.type("Tell me a story about a fox named Mia.\n")
    terminal.wait_for(" there lived a tiny fox")
    terminal.type("\x03")
    terminal.wait_for(", stopped]")
    terminal.wait_for("> ")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_ctrl_c_at_the_prompt_drops_the_line(chat):
    terminal = chat()
    terminal.type("half a line")
    terminal.wait_for("half a line")
    terminal.type("\x03")
    terminal.wait_for("[Ctrl-D or /quit ends]")
    terminal.wait_for("> ")
    assert PARIS in terminal.say(FRANCE)
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_commands(chat):
    terminal = chat("--system", "You are a helpful assistant.")
    terminal.type("/help\n")
    assert "/reset" in terminal.wait_for("Ctrl-C stops an answer.")
    terminal.type("/rest\n")
    terminal.wait_for("unknown command /rest; did you mean /reset?")
    assert PARIS in terminal.say(FRANCE)
    terminal.wait_for("> ")
    terminal.type("/reset\n")
    terminal.wait_for("[forgotten]")
    assert PARIS in terminal.say(FRANCE)
    terminal.type("/system Be short.\n")
    terminal.wait_for("[system message set]")
    terminal.type("/system\n")
    terminal.wait_for("[no system message]")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_quotes_hold_any_number_of_lines(chat):
    terminal = chat()
    for line in ('"""', "/help is no command here;", "what is the capital\\\\"):
        terminal.type(line + "\n")
        terminal.wait_for(". ")
    terminal.say('of France?"""')
    terminal.wait_for("> ")
    assert "1 messages" not in terminal.screen()
    terminal.type("/stats\n")
    assert "conversation: 2 messages" in terminal.wait_for("all answers:  1")
    assert "/regenerate" not in terminal.screen()


def test_bad_commands_lose_nothing(chat, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "there.json").write_text("mine")
    terminal = chat("--chat-format", "chatglm3")
    assert PARIS in terminal.say(FRANCE)
    for line, told in (("/nothing", "unknown command /nothing"), ("/file /no/such/file", "/no/such/file: No such file"),
                       (f"/load {tmp_path}/bad.json", "bad.json:"), (f"/save {tmp_path}/there.json", "exists already; /save! "),
                       ("/set temperature hot", "/set temperature: found 'hot', expected a number from 0 to 100"),
                       ("/set color red", "expected one of: max_tokens temperature"), ("/adapter x", "no adapter has the name x"),
                       ("/undo now", "/undo takes no argument"), ("/load", "/load: expected a file"), ("/set thinking hide", "does not think")):
        terminal.wait_for("> ")
        terminal.type(line + "\n")
        terminal.wait_for(told)
    terminal.wait_for("> ")
    terminal.type("/stats\n")
    terminal.wait_for("conversation: 2 messages")
    assert (tmp_path / "there.json").read_text() == "mine"
    terminal.wait_for("> ")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_saving_leaves_ctrl_c_to_the_chat(chat, tmp_path):
    terminal = chat()
    terminal.type(f"/save {tmp_path}/none.json\n")
    terminal.wait_for("[saved 0 messages")
    terminal.wait_for("> ")
    terminal.type("\x03")
    terminal.wait_for("[Ctrl-D or /quit ends]")
    terminal.wait_for("> ")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_hints_count_messages_and_name_settings_as_set_does(chat):
    terminal = chat("--system", "Be kind.", "-n", "4")
    terminal.say(FRANCE)
    for line, told in (("/undo", "[took back the last question; 1 message left]"), ("/system", "[no system message]"),
                       ("/set top_p 0.5", "[top_p 0.5]"), ("/set temperature 0", "[top_p has no effect while the temperature is 0]")):
        terminal.wait_for("> ")
        terminal.type(line + "\n")
        terminal.wait_for(told)
    terminal.wait_for("> ")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_ctrl_c_keeps_the_text_of_the_answer(chat, tmp_path):
    terminal = chat("--cpu", "ref", "--ignore-eos")
    terminal.type("Tell me a story about a fox named Mia.\n")
    terminal.wait_for(" there lived a tiny fox")
    terminal.type("\x03")
    terminal.wait_for(", stopped]")
    terminal.wait_for("> ")
    terminal.type(f"/save {tmp_path}/cut.json\n")
    terminal.wait_for("[saved 2 messages")
    kept = json.loads((tmp_path / "cut.json").read_text())["messages"]
    assert [m["role"] for m in kept] == ["user", "assistant"] and " there lived a tiny fox" in kept[1]["content"]


def test_thinking_is_dimmed_and_apart_on_a_terminal(chat, tmp_path):
    terminal = chat("--thinking-budget", "7", "-n", "30", model=thinking_model(tmp_path))
    terminal.type("Tell me a story\n")
    terminal.wait_for("tokens/s")
    raw = terminal.raw.decode()
    thinking, answer = raw.split("\x1b[2m", 1)[1].split("\x1b[22m", 1)
    assert "[thinking]" in thinking and re.search(r"\[thought for \d+ tokens\]", thinking) and answer.strip()
    terminal.wait_for("> ")
    terminal.type("/set thinking hide\n")
    terminal.wait_for("[thinking hide]")
    before = len(terminal.raw)
    terminal.type("Tell me a story\n")
    terminal.wait_for("tokens/s")
    shown = terminal.raw[before:].decode()
    assert re.search(r"\[thought for \d+ tokens\]", shown) and "\x1b[2m" not in shown
    terminal.wait_for("> ")
    terminal.type("/set thinking_budget default\n")
    terminal.wait_for("[thinking_budget default]")
    terminal.wait_for("> ")
    terminal.type("/set thinking off\n")
    terminal.wait_for("[thinking off]")
    before = len(terminal.raw)
    terminal.say("Tell me a story")
    assert "thought for" not in terminal.raw[before:].decode()


def test_no_escapes_of_thinking_in_a_dumb_terminal(chat, tmp_path):
    terminal = chat("--thinking-budget", "7", "-n", "30", term="dumb", model=thinking_model(tmp_path))
    assert "[thinking]" in terminal.say("Tell me a story")
    assert "\x1b" not in terminal.raw.decode()


def test_a_pasted_text_of_several_lines_is_one_message(chat):
    terminal = chat()
    terminal.type("What is the capital\nof\nFrance?\n")
    terminal.wait_for(" tokens")
    terminal.wait_for("> ")
    terminal.type("/quit\n")
    assert terminal.end() == 0
    assert terminal.screen().count(" tokens,") == 1


def test_a_backslash_continues_the_message(chat):
    terminal = chat()
    terminal.type("What is the capital \\\n")
    terminal.wait_for(". ")
    assert terminal.say("of France?")
    terminal.wait_for("> ")
    terminal.type("/quit\n")
    assert terminal.end() == 0
    assert terminal.screen().count(" tokens,") == 1


def test_history_comes_back_in_the_next_talk(chat, tmp_path):
    first = chat()
    first.say(FRANCE)
    first.wait_for("> ")
    first.type("/quit\n")
    assert first.end() == 0
    path = tmp_path / "state" / "tutti" / "history"
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    second = chat()
    second.type("\x1b[A\x1b[A")  # /quit, then the question
    second.wait_for(FRANCE)
    assert PARIS in second.say("")


def test_works_in_a_dumb_terminal(chat):
    terminal = chat(term="dumb")
    assert PARIS in terminal.say(FRANCE)
    assert "\x1b" not in terminal.raw.decode()


def test_sigterm_ends_it_and_leaves_the_terminal_as_it_was(chat):
    terminal = chat()
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 130
    assert termios.tcgetattr(terminal.master)[3] & termios.ECHO


def pipe(text, *args, check=0):
    done = subprocess.run([BIN, "chat", DEMO, *GREEDY, *args], input=text, capture_output=True, encoding="utf-8",
                          timeout=PATIENCE, check=False)
    assert done.returncode == check, done.stderr
    return done


def test_without_a_terminal_the_answers_alone_are_printed():
    done = pipe(FRANCE + "\n\n/reset\n" + FRANCE)  # the last line has no end
    assert done.stdout == PARIS + "\n" + PARIS + "\n"
    assert done.stderr == ""


def test_a_conversation_that_no_longer_fits_is_an_error():
    done = pipe("word " * 8000 + "\n", check=1)
    assert re.fullmatch(r"tutti: with this message the conversation has \d{4,} tokens, which leaves no room for an answer in the context "
                        r"of 2048; /undo takes back the last question and its answer, /clear forgets the conversation\n", done.stderr)
    assert done.stdout == ""


def test_ctrl_c_without_a_terminal_ends_it():
    process = subprocess.Popen([BIN, "chat", DEMO, *GREEDY, "--ignore-eos", "--cpu", "ref"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"Tell me a story.\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
