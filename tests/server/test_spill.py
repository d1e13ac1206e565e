"""Conversations that left the server's memory, or outlived the server: the same texts, without being read again."""
import datetime
import os
import random
import shutil
import signal
import stat
import subprocess
import threading
import time

import pytest
import requests

from conftest import BIN, DEMO, PATIENCE, Server

USERS, TURNS = 8, 3
# Pages for two conversations of the eight.
SMALL = ("--kv-memory", "1M", "--context", 512, "--max-seqs", 4)


def question(user, turn):
    return f"User {user} asks for the {turn}. time: " + "tell me a long story about the number %d. " % user * 4


def completion(server, text, **more):
    return server.post("/v1/completions", {"prompt": text, "max_tokens": 16, "temperature": 0, "ignore_eos": True, **more})


def talk(server, users=range(USERS), texts=None):
    """A turn of each user: returns the conversations so far, and prompt and cached tokens."""
    texts = dict(texts or {})
    n_prompt = n_cached = 0
    for user in users:
        text = texts.get(user, "") + question(user, 1)
        body = completion(server, text).json()
        texts[user] = text + body["choices"][0]["text"]
        n_prompt += body["usage"]["prompt_tokens"]
        n_cached += body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return texts, n_prompt, n_cached


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """What a server answers that keeps nothing."""
    server = Server("--no-prefix-cache", "--context", 512, log=tmp_path_factory.mktemp("plain") / "log")
    turns, texts = [], {}
    for _ in range(TURNS):
        texts, _, n_cached = talk(server, texts=texts)
        assert n_cached == 0
        turns.append(texts)
    assert server.stop() == 0
    return turns


def test_conversations_leave_and_come_back(start, tmp_path, wanted):
    server = start(*SMALL, "--kv-spill", tmp_path / "pages", "--kv-spill-size", "1G")
    texts = {}
    for turn in range(TURNS):
        texts, n_prompt, n_cached = talk(server, texts=texts)
        assert texts == wanted[turn]
    assert n_cached > 0.3 * n_prompt
    m = server.wait_idle()
    assert m["tutti_kv_spill_restored_pages_total"] > 0
    assert m["tutti_kv_spill_pages"] > m["tutti_kv_pages"]
    assert m["tutti_kv_spill_found_pages_total"] == m["tutti_kv_spill_restored_pages_total"]
    assert m["tutti_kv_spill_write_errors_total"] == m["tutti_kv_spill_read_errors_total"] == 0
    assert m["tutti_kv_spill_written_bytes_total"] > m["tutti_kv_spill_written_pages_total"] > 0
    path = tmp_path / "pages" / "kv-pages"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_they_outlive_the_server(start, tmp_path, wanted, how):
    flags = (*SMALL, "--kv-spill", tmp_path / "pages")
    first = Server(*flags, log=tmp_path / "first.log")
    texts, _, _ = talk(first)
    assert texts == wanted[0]
    if how == signal.SIGKILL:  # what was about to leave has left
        first.wait_until(lambda m: m["tutti_kv_spill_written_pages_total"] > USERS)
    first.process.send_signal(how)
    assert first.process.wait(PATIENCE) == (0 if how == signal.SIGTERM else -how)
    second = start(*flags)
    assert "KV spill: the file has" in second.log()
    texts, n_prompt, n_cached = talk(second, texts=texts)
    assert texts == wanted[1]
    assert n_cached > (0.2 if how == signal.SIGTERM else 0) * n_prompt


def test_killed_at_any_moment_nobody_reads_a_wrong_text(tmp_path, wanted):
    """Ask in parallel, kill -9, start again, and again: each answer that comes is the right one."""
    generator, wrong, right = random.Random(5), [], []

    def ask(server):
        mine = random.Random(generator.random())
        while True:
            turn, user = mine.randrange(1, TURNS), mine.randrange(USERS)
            before = wanted[turn - 1][user] + question(user, 1)
            try:
                reply = completion(server, before)
            except requests.RequestException:
                return
            if reply.status_code != 200:
                continue
            text = before + reply.json()["choices"][0]["text"]
            (right if text == wanted[turn][user] else wrong).append(text)

    n_there = 0
    for round_ in range(5):
        server = Server(*SMALL, "--kv-spill", tmp_path / "pages", "--kv-spill-size", "12M", log=tmp_path / f"{round_}.log")
        n_there = server.metrics()["tutti_kv_spill_pages"]
        threads = [threading.Thread(target=ask, args=(server,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        n = len(right)
        end = time.monotonic() + PATIENCE
        while len(right) < n + 8 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.2 * generator.random())
        server.process.kill()
        for thread in threads:
            thread.join()
        server.process.wait(PATIENCE)
        server.process.stdout.close()
        assert "damaged" not in server.log() and "starting with an empty file" not in server.log()
    assert not wrong
    assert len(right) >= 40 and n_there > 0


@pytest.mark.parametrize("change, why", [(("--kv-type", "int8"), "have another KV type"), (("--kv-type", "bf16"), "have another KV type"),
                                          (("--type", "q4_0"), "with other weights")])
def test_another_model_or_type_starts_anew(start, tmp_path, change, why):
    spill = ("--kv-spill", tmp_path / "pages")
    first = start(*SMALL, *spill)
    text = talk(first, [1])[0][1]
    assert first.stop() == 0
    second = start(*SMALL, *spill, *change)
    assert why in second.log() and "starting with an empty file" in second.log()
    assert completion(second, text).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second.stop() == 0
    third = start(*SMALL, *spill, *change)
    assert "starting with an empty file" not in third.log()
    assert completion(third, text).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def fails(*flags):
    done = subprocess.run([BIN, "serve", DEMO, "--port", "0", *map(str, flags)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode != 0
    return done.stderr


def test_what_cannot_be_is_told(start, tmp_path):
    pages, link = tmp_path / "pages", tmp_path / "link"
    start("--kv-spill", pages)
    assert "another process has it open" in fails("--kv-spill", pages)
    link.symlink_to(pages)
    assert "not a link" in fails("--kv-spill", link)
    assert "needs" in fails("--kv-spill", tmp_path / "other", "--kv-spill-size", "1K")
    assert "prefix cache is switched off" in fails("--kv-spill", tmp_path / "other", "--no-prefix-cache")
    assert "has no effect without --kv-spill" in fails("--kv-spill-size", "1G")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 600 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", folder], capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_costs_only_what_does_not_fit(start, small_disk, wanted):
    server = start(*SMALL, "--kv-spill", small_disk)
    texts = {}
    for turn in range(2):
        texts, _, _ = talk(server, texts=texts)
        assert texts == wanted[turn]
    m = server.wait_idle()
    assert m["tutti_kv_spill_write_errors_total"] > 0
    assert m["tutti_kv_spill_pages"] > 0
    said = [datetime.datetime.fromisoformat(line.split()[0]) for line in server.log().splitlines() if "No space left on device" in line]
    assert said and all((b - a).total_seconds() >= 9 for a, b in zip(said, said[1:]))  # the log is not flooded
