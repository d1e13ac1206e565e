"""Servers for the tests: build/tutti (or $TUTTI_BIN) serving the demo model on a free port.

With TUTTI_TEST_DEVICE=cuda their models run on a card: on the stand-in for NVIDIA's driver (tests/cuda).
"""
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import requests

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
DEMO = os.path.join(ROOT, "models", "demo")
PATIENCE_FACTOR = int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
PATIENCE = 120 * PATIENCE_FACTOR
STANDIN = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build")), "tests", "cuda")
DEVICE = os.environ.get("TUTTI_TEST_DEVICE", "cpu")
ON_CARD = DEVICE != "cpu"
if ON_CARD:
    os.environ["LD_LIBRARY_PATH"] = STANDIN


@functools.cache
def why_no_card():
    """Why nothing of this build can run on the stand-in for a card. None: it can."""
    if not os.path.exists(os.path.join(STANDIN, "libcuda.so.1")):
        return "the thread sanitizer does not see the emulated card"
    listed = subprocess.run([BIN, "devices", "--json"], env={**os.environ, "LD_LIBRARY_PATH": STANDIN}, capture_output=True, check=True)
    has_kernels = any(card["kernels"] for card in json.loads(listed.stdout)["devices"])
    return None if has_kernels else "this build has no kernels for cards: they need clang 19"


@pytest.fixture
def standin():
    """Skips a test that needs the stand-in where there is none."""
    if why_no_card():
        pytest.skip(why_no_card())


def on_device(args):
    """The flags, with that of the device if it is another one than the CPU."""
    return (*args, "--device", DEVICE) if ON_CARD and "--device" not in args else args


class Server:
    """A running server. args: models, if not the demo model, then flags. url: its address; metrics(): its figures by name."""

    def __init__(self, *args, log):
        n_models = next((i for i, arg in enumerate(args) if str(arg).startswith("-")), len(args))
        models, args = args[:n_models] or (DEMO,), args[n_models:]
        args = on_device(args)
        self.log_path, self.metrics_headers = log, {}
        if "--api-key-file" in args and "--metrics-key" not in args and "--metrics-listen" not in args:
            key_file = f"{log}.metrics-key"
            with open(key_file, "w", encoding="ascii") as file:
                file.write("sk-for-metrics\n")
            args = (*args, "--metrics-key", key_file)
            self.metrics_headers = {"Authorization": "Bearer sk-for-metrics"}
        if PATIENCE_FACTOR > 1 and "--max-queue-time" not in args:  # under a sanitizer the queue moves slowly
            args = (*args, "--max-queue-time", 30 * PATIENCE_FACTOR)
        with open(log, "wb") as err:
            where = [] if "--unix" in args else ["--port", "0"]
            self.process = subprocess.Popen([BIN, "serve", *map(str, models), *where, *map(str, args)], stdout=subprocess.PIPE,
                                            stderr=err, stdin=subprocess.DEVNULL)
        line = self.process.stdout.readline().decode()
        if not line.startswith("listening on "):
            self.process.wait(PATIENCE)
            raise RuntimeError(f"no server: {line!r} {self.log()}")
        self.url = line[len("listening on "):].strip()
        self.port = int(self.url.rsplit(":", 1)[1]) if self.url.startswith("http") else None

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait_for_log(self, text, n=1):
        """The log, once it has the text n times: a line may come after the answer that it is about."""
        end = time.monotonic() + PATIENCE
        while self.log().count(text) < n:
            assert time.monotonic() < end, self.log()[-2000:]
            time.sleep(0.02)
        return self.log()

    def post(self, path, body, **more):
        return requests.post(self.url + path, json=body, timeout=PATIENCE, **more)

    def get(self, path, **more):
        return requests.get(self.url + path, timeout=PATIENCE, **more)

    def chat(self, text, **more):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})

    def metrics(self):
        figures = {}
        for line in self.get("/metrics", headers=self.metrics_headers).text.splitlines():
            found = re.match(r"^(\w+(?:\{[^}]*\})?) (\S+)$", line)
            if found:
                figures[found.group(1)] = float(found.group(2))
        return figures

    def wait_until(self, condition, seconds=PATIENCE):
        """Asks for the figures until condition(figures) holds; returns them."""
        end = time.monotonic() + seconds
        while True:
            figures = self.metrics()
            if condition(figures):
                return figures
            assert time.monotonic() < end, {k: v for k, v in figures.items() if "bucket" not in k}
            time.sleep(0.02)

    def wait_idle(self):
        return self.wait_until(lambda m: m["tutti_kv_pages_used"] == 0 and m["tutti_sequences_running"] == 0
                               and m["tutti_requests_waiting"] == 0)

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1))

    def stop(self):
        """Ends it as an administrator would; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.stdout.close()


@pytest.fixture
def start(tmp_path):
    """start(*flags): a server of one's own; each must end well by itself."""
    servers = []

    def begin(*args):
        servers.append(Server(*args, log=tmp_path / f"server{len(servers)}.log"))
        return servers[-1]

    yield begin
    for server in servers:
        status = server.stop()
        assert status == 0, (status, server.log()[-4000:])


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server for all tests that only ask."""
    one = Server(log=tmp_path_factory.mktemp("server") / "log")
    yield one
    one.wait_idle()
    status = one.stop()
    assert status == 0, (status, one.log()[-4000:])


@pytest.fixture(scope="session")
def compat(tmp_path_factory):
    """The same with every further API."""
    one = Server("--api", "llm-serving,step", "--api", "tgi", "--step-timeout", 2, log=tmp_path_factory.mktemp("compat") / "log")
    yield one
    one.wait_idle()
    status = one.stop()
    assert status == 0, (status, one.log()[-4000:])


@pytest.fixture(scope="session")
def golden():
    with open(os.path.join(ROOT, "tests", "fixtures", "demo", "golden.json"), encoding="utf-8") as file:
        return json.load(file)
