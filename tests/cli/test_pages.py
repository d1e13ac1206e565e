"""The pages: what a command of them prints here is what the page shows."""
import os
import re
import shlex
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
PATIENCE = 120 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
PAGES = [("sharding.md", 6), ("gpu.md", 2), ("tokenizers.md", 1), ("checkpoints.md", 1), ("adapters.md", 1)]
COMMANDS = "plan|tokenize|shard|inspect|generate"  # whose output depends on the command line only


def shown(page):
    """(command, lines below it) of each command that the page shows with a prompt."""
    with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as file:
        blocks = re.findall(r"^```\n(\$ .*?)^```$", file.read(), re.M | re.S)
    for block in blocks:
        for command, lines in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
            if re.match(rf"tutti ({COMMANDS}) ", command):
                yield command, lines.splitlines()


def matches(lines, printed):
    """A line … of the page matches any number of lines."""
    parts = [re.escape(line) if line != "…" else None for line in lines]
    text = "".join("(?:.*\n)*?" if part is None else part + "\n" for part in parts)
    return re.fullmatch(text, printed) is not None


@pytest.mark.parametrize("page, n", PAGES)
def test_commands_print_what_the_page_shows(page, n, tmp_path):
    examples = list(shown(page))
    assert len(examples) == n
    os.symlink(os.path.join(ROOT, "models"), tmp_path / "models")
    for command, lines in examples:
        words = shlex.split(command, comments=True)
        done = subprocess.run([BIN, *words[1:]], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=True)
        assert not lines or matches(lines, done.stdout), (command, done.stdout)
