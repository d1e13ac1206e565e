"""One model on several ranks, under mpirun: what it answers, and what happens when a rank is lost."""
import http.client
import json
import math
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hosts  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.abspath(os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti")))
DEMO = os.path.join(ROOT, "models", "demo")
FIXTURES = os.path.join(ROOT, "tests", "fixtures")
PATIENCE = 60 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
BROKE = "its process ended, or its connection broke"  # noticed by an event
SILENT = r"no sign of life for [3-9]\.\d s"  # noticed by the heartbeats that were missing

has_module = os.path.exists(os.path.join(os.path.dirname(BIN), "tutti-mpi.so"))
pytestmark = [pytest.mark.skipif(not has_module or not shutil.which("mpirun"), reason="built without MPI, or no mpirun"),
              pytest.mark.skipif("TSAN_OPTIONS" in os.environ, reason="the thread sanitizer does not see into Open MPI")]

# More ranks than cores, as root, on one machine. Leaks within the library are not ours.
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]


def run(*args, n_ranks=1, status=0):
    words = [*MPIRUN, "-n", str(n_ranks)] if n_ranks > 1 else []
    more = ["--tp", str(n_ranks)] if n_ranks > 1 else []
    done = subprocess.run([*words, BIN, *map(str, args), *more], capture_output=True, text=True, timeout=PATIENCE, check=False,
                          env=ENVIRONMENT)
    assert done.returncode == status, (args, done.stdout, done.stderr)
    return done


def logits(path, folder, n_ranks):
    out = os.path.join(folder, f"{n_ranks}.safetensors")
    ids = [(i * 2654435761 >> 9) % 97 for i in range(40)]
    if "chatglm-6b" in path:
        ids[20:22] = [101, 104]  # what its prompts end in
    as_stored = [] if "fp8" in path else ["--type", "f32"]
    run("logits", path, "--ids", ",".join(map(str, ids)), "--out", out, *as_stored, "--kv-type", "f32", "--threads", 1,
        n_ranks=n_ranks)
    with open(out, "rb") as file:
        header_bytes = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(header_bytes))
        begin, end = header["logits"]["data_offsets"]
        n_rows, n_vocab = header["logits"]["shape"]
        file.seek(8 + header_bytes + begin)
        data = file.read(end - begin)
    return data, [struct.unpack_from(f"<{n_vocab}f", data, 4 * n_vocab * i) for i in range(n_rows)]


@pytest.mark.parametrize("name, n_ranks", [
    ("llama-tiny", 2), ("llama-tiny", 4), ("chatglm3-tiny", 4), ("chatglm-6b-tiny", 2), ("glm4-tiny", 2), ("qwen3-tiny", 2),
    ("gguf/llama-tiny-q4_0.gguf", 2), ("gpt2-tiny", 2), ("bloom-tiny", 2), ("pangu-tiny", 2),
    ("experts/qwen3-moe-tiny.gguf", 2), ("experts/glm4-moe-tiny-air.gguf", 2), ("gguf/deepseek-v3-tiny-fused.gguf", 2),
    ("quantized/deepseek-v3-fp8", 2)])
def test_logits_are_those_of_one_rank(name, n_ranks, tmp_path):
    path = os.path.join(FIXTURES, name)
    _, alone = logits(path, tmp_path, 1)
    data, several = logits(path, tmp_path, n_ranks)
    for a, b in zip(alone, several):
        assert max(abs(x - y) for x, y in zip(a, b)) <= 1e-5 * max(map(abs, a))
    assert logits(path, tmp_path, n_ranks)[0] == data, "another run, other bits"


PROMPTS = ["What is the capital of France?", "Count to five.", "Tell me a story about a fox named Mia."]


def ask(*prompts):
    return [word for prompt in prompts for word in ("-p", prompt)]


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_answers_are_the_same_alone_together_and_again(n_ranks):
    base = ["generate", DEMO, "--chat", "-n", 24, "--temperature", 0, "--threads", 1, "--type", "f32"]
    alone = run(*base, *ask(*PROMPTS)).stdout
    together = run(*base, *ask(*PROMPTS), n_ranks=n_ranks).stdout
    assert together == alone
    assert "".join(run(*base, *ask(prompt), n_ranks=n_ranks).stdout for prompt in PROMPTS) == together
    assert run(*base, *ask(*PROMPTS), "--max-batch-tokens", 8, n_ranks=n_ranks).stdout == together


def test_other_commands_run_on_ranks(tmp_path):
    text = tmp_path / "text"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 20)
    args = ["perplexity", DEMO, text, "--context", 64, "--json", "--threads", 1, "--type", "f32", "--kv-type", "f32"]
    one, two = json.loads(run(*args).stdout), json.loads(run(*args, n_ranks=2).stdout)
    assert math.log(two["perplexity"]) == pytest.approx(math.log(one["perplexity"]), rel=1e-5)
    bench = json.loads(run("bench", "--shape", "tiny", "--users", "1,4", "--prefill", 32, "-r", 2, "--json", "--threads", 1,
                           n_ranks=2).stdout)
    assert bench["ranks"] == 2 and bench["results"][0]["reduce_bytes"] == 9 * 256 * 4


@pytest.mark.parametrize("words, n_ranks, args", [
    ("this process was not started by a launcher: use mpirun -n RANKS", 0, ["generate", DEMO, "-p", "x", "--tp", "2"]),
    ("3 ranks were started, but tensor parallelism over 2 needs 2", 3, ["generate", DEMO, "-p", "x", "--tp", "2"]),
    ("8 heads with 2 KV heads cannot be dealt out over 3 ranks, expected tp 1, 2, 4, 8", 3,
     ["generate", DEMO, "-p", "x", "--tp", "3"]),
    ("/nowhere: no such file or folder", 2, ["generate", "/nowhere", "-p", "x", "--tp", "2"]),
    ("expected either --prompt TEXT, --file FILE or --batch FILE", 2, ["generate", DEMO, "--tp", "2"]),
    ("several ranks cannot spill KV pages", 2, ["serve", DEMO, "--port", "0", "--tp", "2", "--kv-spill", "/tmp"]),
])
def test_what_cannot_be_is_said(words, n_ranks, args):
    launch = [*MPIRUN, "-n", str(n_ranks)] if n_ranks > 0 else []
    environment = {k: v for k, v in ENVIRONMENT.items() if not k.startswith(("OMPI_COMM", "PMI"))}
    done = subprocess.run([*launch, BIN, *args], capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize("own, words", [
    (["--type", "q4_0"], "--type is q4_0, but as stored on rank 0"),
    (["--kv-type", "int8"], "--kv-type is int8, but f16 on rank 0"),
    (["--lora", "x=/nowhere"], "--lora is x, but not given on rank 0"),
    (["--draft", "mtp"], "--draft is mtp, but not mtp on rank 0"),
    (["--tp", "3"], "2 ranks were started, but tensor parallelism over 3 needs 3"),
])
def test_ranks_with_other_options_fail_by_name(own, words):
    """Each rank has a command line of its own where a launcher is told so, or a script of a cluster differs on one machine."""
    first = ["generate", DEMO, "-p", "x", "-n", "4", "--temperature", "0", "--tp", "2"]
    second = [*first, *own]
    done = subprocess.run([*MPIRUN, "-n", "1", BIN, *first, ":", "-n", "1", BIN, *second], capture_output=True, text=True,
                          timeout=PATIENCE, check=False, env=ENVIRONMENT)
    assert done.returncode != 0 and words in done.stderr, done.stderr
    assert not done.stdout
    # What rank 0 alone decides may differ: it tells the others.
    if own == ["--type", "q4_0"]:
        second[-2:] = ["--max-seqs", "2", "--context", "64", "--max-tokens", "9"]
        done = subprocess.run([*MPIRUN, "-n", "1", BIN, *first, ":", "-n", "1", BIN, *second], capture_output=True, text=True,
                              timeout=PATIENCE, check=False, env=ENVIRONMENT)
        assert done.returncode == 0 and done.stdout == run(*first[:-2], n_ranks=2).stdout, done.stderr


# The stand-ins for NVIDIA's driver and for NCCL.
STANDIN = os.path.join(os.environ.get("TUTTI_BUILD", os.path.dirname(BIN)), "tests", "cuda")


def on_cards(n, library="nccl"):
    """The environment of ranks on n cards, which find this library of NCCL's name."""
    return {**ENVIRONMENT, "LD_LIBRARY_PATH": f"{STANDIN}/{library}:{STANDIN}", "TUTTI_STANDIN_CARDS": str(n)}


# ---- a server, and a rank that is lost ----


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self.path)


class Group:
    """A server on ranks, listening on a Unix socket, which is the same one in every network namespace."""

    def __init__(self, folder, n_ranks, launch=(), wrap=lambda words: words, device="cpu", model=DEMO, options=()):
        self.socket = os.path.join(folder, "socket")
        self.log_path = os.path.join(folder, "log")
        words = [*MPIRUN, *launch, "-n", str(n_ranks), BIN, "serve", model, "--unix", self.socket, "--tp", str(n_ranks), "--threads",
                 "1", "--kv-memory", "16M", "--device", device, *options]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(wrap(words), stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
                                            env=on_cards(n_ranks) if device == "cuda" else ENVIRONMENT)
        line = self.process.stdout.readline().decode()
        assert line.startswith("listening on "), (line, self.log())

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def ranks(self):
        """{rank: pid} of those that serve on our socket."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environment = dict(e.split(b"=", 1) for e in file.read().split(b"\0") if b"=" in e)
            except OSError:
                continue
            if words[0] == BIN.encode() and self.socket.encode() in words:
                found[int(environment[b"OMPI_COMM_WORLD_RANK"])] = int(pid)
        return found

    def request(self, method, path, body=None):
        connection = Connection(self.socket)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse()

    def post(self, **more):
        return self.request("POST", "/v1/chat/completions",
                            {"messages": [{"role": "user", "content": "Tell me a story about a fox named Mia."}], **more})

    def end(self):
        """The exit status, once everything has ended."""
        status = self.process.wait(PATIENCE)
        self.process.stdout.close()
        return status

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        for pid in self.ranks().values():
            os.kill(pid, signal.SIGKILL)


class Stream(threading.Thread):
    """A client that reads answers for ever, one after the other, until one breaks off; events: of the last one."""

    def __init__(self, group):
        super().__init__()
        self.group, self.events, self.began = group, [], threading.Event()
        self.start()
        assert self.began.wait(PATIENCE)

    def run(self):
        try:
            while not self.events or b"error" not in self.events[-1]:
                answer = self.group.post(stream=True, ignore_eos=True, temperature=1)
                self.status = answer.status
                self.events = []
                for line in answer:
                    if line.strip() and line.strip() != b"data: [DONE]":
                        self.events.append(line)
                        self.began.set()
        except (OSError, http.client.HTTPException) as fault:
            self.events.append(repr(fault).encode())


def check_loss(group, stream, words, how):
    """how: what the error must say about how the loss was noticed."""
    stream.join(PATIENCE)
    assert not stream.is_alive()
    assert b'"error"' in stream.events[-1], stream.events[-3:]
    assert words in stream.events[-1].decode(), stream.events[-1]
    assert re.search(f"was lost: {how}", stream.events[-1].decode()), stream.events[-1]
    assert group.end() != 0
    # mpirun may end before it has passed on what the ranks say. Then it names the lost rank itself, or one that ended because of the loss.
    assert words in group.log() or re.search(rf"process rank {words.split()[1]} with PID|Process name: \[\[\d+,1\],\d+\]\s+Exit code: +1\n",
                                             group.log()), group.log()
    end = time.monotonic() + PATIENCE
    while group.ranks() and time.monotonic() < end:
        time.sleep(0.05)
    assert not group.ranks()


@pytest.mark.parametrize("number, victim, n_ranks, device", [
    (signal.SIGKILL, 1, 2, "cpu"), (signal.SIGSTOP, 1, 2, "cpu"), (signal.SIGKILL, 2, 3 + 1, "cpu"),
    (signal.SIGKILL, 1, 2, "cuda"), (signal.SIGSTOP, 1, 2, "cuda")], ids=["killed", "stopped", "killed-of-four", "killed-card", "stopped-card"])
def test_a_lost_rank_ends_the_group_with_an_error_for_clients(number, victim, n_ranks, device, tmp_path):
    group = Group(tmp_path, n_ranks, device=device)
    try:
        assert ("exchange data through NCCL" in group.log()) == (device == "cuda")
        pid = group.ranks()[victim]
        stream = Stream(group)
        os.kill(pid, number)
        check_loss(group, stream, f"rank {victim} of {n_ranks} (host ", BROKE if number == signal.SIGKILL else SILENT)
    finally:
        group.stop()


def test_when_rank_0_is_lost_the_others_end(tmp_path):
    group = Group(tmp_path, 2)
    try:
        os.kill(group.ranks()[0], signal.SIGKILL)
        assert group.end() != 0
        assert not group.ranks()
    finally:
        group.stop()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_group_drains(device, tmp_path):
    group = Group(tmp_path, 2, device=device)
    try:
        answer = group.post(stream=True, max_tokens=60, ignore_eos=True)
        os.kill(group.ranks()[0], signal.SIGTERM)
        assert b"[DONE]" in answer.read()
        assert group.end() == 0
    finally:
        group.stop()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_multi_token_prediction_drafts_on_ranks(device, tmp_path):
    texts = []
    for options in (), ("--draft", "mtp", "--draft-tokens", "3"):
        group = Group(tmp_path, 2, device=device, model=os.path.join(FIXTURES, "mtp", "deepseek-v3"), options=options)
        try:
            asked = {"prompt": ["abc", "b"], "max_tokens": 60, "ignore_eos": True, "temperature": 0}
            texts.append([choice["text"] for choice in json.load(group.request("POST", "/v1/completions", asked))["choices"]])
            metrics = group.request("GET", "/metrics").read().decode()
            assert bool(options) == (int(re.search(r"draft_passes_total (\d+)", metrics + "draft_passes_total 0").group(1)) > 0)
        finally:
            group.stop()
    assert texts[0] == texts[1] and len(texts[0]) == 2


# ---- hosts of their own ----

# With these mpirun itself notices a host that it cannot reach any more. The unit has them.
with open(os.path.join(ROOT, "deploy", "systemd", "tutti-group.service.in"), encoding="utf-8") as unit:
    KEEPALIVE = re.findall(r"--mca \S+ \S+", unit.read())
assert len(KEEPALIVE) == 3
KEEPALIVE = [word for words in KEEPALIVE for word in words.split()]

needs_hosts = pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))


def on_hosts(two, options=()):
    """How mpirun, on the first one, reaches both."""
    return ["--mca", "plm_rsh_agent", two.agent, "-H", ",".join(f"{address}:2" for address in hosts.ADDRESSES), "--map-by", "node",
            *options]


@needs_hosts
def test_a_slow_link_with_losses_changes_no_bit(tmp_path):
    two = hosts.Hosts(tmp_path, delay=0.001, loss=0.005)
    try:
        words = [BIN, "generate", DEMO, "--chat", "-n", "12", "--temperature", "0", "--threads", "1", "--tp", "2", *ask(*PROMPTS)]
        done = subprocess.run(two.command(0, [*MPIRUN, *on_hosts(two), "-n", "2", *words]), capture_output=True, text=True,
                              timeout=PATIENCE, check=False, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        assert done.stdout == run(*words[1:-6 - 2], *ask(*PROMPTS), n_ranks=2).stdout
    finally:
        two.close()


@needs_hosts
@pytest.mark.parametrize("options", [KEEPALIVE, []], ids=["keepalives", "no-keepalives"])
def test_a_cut_link_ends_an_answer_with_an_error(options, tmp_path):
    """Without keepalives mpirun never notices the cut. With them it does unless it sends something after the cut."""
    two = hosts.Hosts(tmp_path)
    group = None
    try:
        group = Group(tmp_path, 2, on_hosts(two, options), lambda words: two.command(0, words))
        stream = Stream(group)
        two.cut()
        check_loss(group, stream, f"rank 1 of 2 (host {two.names[1]}, ", SILENT)
    finally:
        two.close()
        if group:
            group.stop()


# ---- cards ----


@pytest.mark.parametrize("n_cards, library, way", [
    (2, "nccl", "device cuda: 2 ranks exchange data through NCCL"),
    (2, "without_nccl", "exchange data through the host, and steps wait for each other: libnccl.so.2 was not found"),
    (1, "nccl", "exchange data through the host: 2 of them share 1 card, and NCCL needs a card for each")])
def test_answers_on_cards_are_the_same_by_any_way(n_cards, library, way):
    words = [BIN, "generate", DEMO, "--chat", "-n", "6", "--temperature", "0", "--tp", "2", "--device", "cuda", *ask(*PROMPTS[:2])]

    def answers(*where):
        done = subprocess.run([*MPIRUN, "-n", "2", *words], capture_output=True, text=True, timeout=PATIENCE, check=False,
                              env=on_cards(*where))
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    got, log = answers(n_cards, library)
    assert way in log
    assert got == answers(2, "without_nccl")[0]


def test_a_rank_whose_card_fails_ends_the_group():
    """The other rank waits for it in a step, and gets no sum that it took no part in."""
    environment = on_cards(1, "without_nccl")
    words = [BIN, "generate", DEMO, "--chat", "-p", "Hello", "-n", "8", "--tp", "2", "--device", "cuda"]
    for failure, status in (("cuMemcpyDtoHAsync_v2:100000:719", 0), ("cuMemcpyDtoHAsync_v2:20:719", 1)):
        done = subprocess.run([*MPIRUN, "-n", "1", *words, ":", "-n", "1", "-x", f"TUTTI_STANDIN_FAIL={failure}", *words],
                              capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
        assert (done.returncode != 0) == (status != 0), (done.stdout, done.stderr)
        assert ("device cuda: copying from the card" in done.stderr) == (status != 0)
