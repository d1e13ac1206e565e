"""Man pages and completion, as man(1), bash and zsh understand them: made from the tables of options, so they must name each."""
import os
import re
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
COMMANDS = ["serve", "chat", "generate", "bench", "load", "convert", "perplexity", "inspect", "tokenize", "logits",
            "shard", "ranks", "plan", "devices", "pull", "list", "rm"]
PATIENCE = 60 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))


def tutti(*args, check=0):
    done = subprocess.run([BIN, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == check, done.stderr
    return done.stdout if check == 0 else done.stderr


def options_of(command):
    """Every --name that help shows at the beginning of a line."""
    return set(re.findall(r"^ {2,6}(?:-\w, )?(--[\w-]+)", tutti("help", command), re.M))


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_pages_are_understood_and_name_every_option(command, tmp_path):
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    page = tmp_path / "page.1"
    page.write_text(tutti("help", "--man", *([command] if command else [])))
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-rLL=200n", "-P-c", page], capture_output=True, text=True,
                          timeout=PATIENCE, check=False)
    assert done.returncode == 0 and not done.stderr
    text = re.sub(r"[\u2010\u2212]", "?", re.sub(".\b", "", done.stdout))  # a typographic hyphen is no hyphen
    name = f"tutti-{command}" if command else "tutti"
    assert text.startswith(f"{name.upper()}(1)") and f"{name} - " in text
    for option in options_of(command) if command else COMMANDS:
        assert re.search(rf"(?<![\w-]){option}(?![\w])|tutti-{option}\(1\)", text), option


def complete(words, tmp_path):
    """What bash would offer for the last word."""
    script = tmp_path / "tutti.bash"
    script.write_text(tutti("help", "--completion", "bash"))
    quoted = " ".join(f"'{w}'" for w in words)
    # Without a terminal there is no completion under way, which compopt would need.
    code = f"""set -u; compopt() {{ :; }}; source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
               _tutti; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True, cwd=tmp_path)
    assert not done.stderr
    return done.stdout.split()


def test_bash_completes_commands_options_choices_and_files(tmp_path):
    (tmp_path / "model.gguf").touch()
    assert complete(["tutti", ""], tmp_path) == [*COMMANDS, "help", "version"]
    assert complete(["tutti", "ser"], tmp_path) == ["serve"]
    assert complete(["tutti", "help", "ch"], tmp_path) == ["chat"]
    for command in COMMANDS:
        assert options_of(command) == set(complete(["tutti", command, "--"], tmp_path)), command
    assert complete(["tutti", "serve", "--log-format", ""], tmp_path) == ["text", "json"]
    assert complete(["tutti", "serve", "--log-format", "=", "j"], tmp_path) == ["json"]
    assert complete(["tutti", "serve", "--log-format", "="], tmp_path) == ["text", "json"]
    assert complete(["tutti", "serve", "mod"], tmp_path) == ["model.gguf"]
    assert complete(["tutti", "serve", "--tls-cert", "mod"], tmp_path) == ["model.gguf"]
    assert complete(["tutti", "serve", "--port", "mod"], tmp_path) == []
    assert complete(["tutti", "xyzzy", ""], tmp_path) == []


def test_zsh_completes(tmp_path):
    if not shutil.which("zsh"):
        pytest.skip("zsh is not installed")
    (tmp_path / "_tutti").write_text(tutti("help", "--completion", "zsh"))
    subprocess.run(["zsh", "-n", tmp_path / "_tutti"], check=True, timeout=PATIENCE)
    code = f"""compdef() {{ :; }}; _describe() {{ print -l ${{(P)4}}; }}; _arguments() {{ print -rl -- "$@"; }}
               words=(tutti); CURRENT=2; source {tmp_path}/_tutti; words=(tutti $1 --); CURRENT=3; _tutti"""
    for command in COMMANDS:
        done = subprocess.run(["zsh", "-fc", code, "zsh", command], capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert not done.stderr
        specs = done.stdout.splitlines()
        assert all(any(line.startswith(f"{c}:") for line in specs) for c in [*COMMANDS, "help", "version"])
        named = set(re.findall(r"^(?:\([^)]*\)|\*)?(--[\w-]+)=?\[", done.stdout, re.M))
        assert named == options_of(command), command
        for line in specs:  # [help] is closed, and the word after it has two signs
            found = re.match(r"^(?:\([^)]*\)|\*)?-[\w-]+[=+]?\[((?:[^\\\]]|\\.)*)\](.*)$", line)
            assert not line.startswith("--") or found, line
            if found and found.group(2):
                assert len(re.findall(r"(?<!\\):", found.group(2))) == 2, line


def test_wrong_words_are_told():
    assert "unknown command 'sevre'; did you mean 'serve'?" in tutti("help", "--man", "sevre", check=2)
    for words in (["fish"], []):
        assert "expected bash or zsh" in tutti("help", "--completion", *words, check=2)
    assert "one command at most" in tutti("help", "--man", "serve", "chat", check=2)
