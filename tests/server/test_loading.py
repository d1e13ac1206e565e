"""What probes hear of a server that comes up, or goes: /health and /ready while the model is loaded, and before the server drains."""
import os
import signal
import socket
import subprocess
import time

import pytest
import requests
from conftest import BIN, PATIENCE, ROOT, Server

MOCK = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build")), "tests", "server", "mock_server")


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Loading:
    """A server whose model takes as long as the test wants."""

    def __init__(self, folder, *flags):
        if not os.path.exists(MOCK):
            pytest.skip("mock_server is not built")
        self.lock = folder / "loading"
        self.lock.touch()
        self.hold = folder / "hold"  # as long as it is there, answers stop after a word
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([MOCK, "--port", str(port), "--loads-while", self.lock, *map(str, flags)],
                                            stdout=subprocess.PIPE, stderr=log, env={**os.environ, "MOCK_HOLD": str(self.hold)})
        self.session = requests.Session()
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.get("/health")
                return
            except requests.ConnectionError:
                assert time.monotonic() < end and self.process.poll() is None
                time.sleep(0.01)

    def get(self, path):
        return self.session.get(self.url + path, timeout=PATIENCE)

    def ask(self, prompt="one two", **more):
        return self.session.post(self.url + "/v1/completions", json={"prompt": prompt}, timeout=PATIENCE, **more)

    def load(self):
        self.lock.unlink()
        assert self.process.stdout.readline().decode().strip() == f"listening on {self.url}"

    def close(self):
        self.session.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


@pytest.fixture
def loading(tmp_path):
    servers = []

    def make(*flags):
        servers.append(Loading(tmp_path, *flags))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def test_a_server_that_loads_says_so(loading):
    server = loading()
    for path in ("/health", "/ready", "/ready?queue=ignore"):
        state = server.get(path)
        assert state.status_code == 503 and state.json() == {"status": "loading"} and state.headers["retry-after"] == "1"
    for path in ("/v1/models", "/metrics", "/"):
        refused = server.get(path)
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json()["error"]["message"] == "the model is still being loaded"
    assert server.ask().status_code == 503
    assert server.get("/nothing").status_code == 404
    server.load()
    # Over the same connection.
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/ready").json() == {"status": "ready"}
    assert server.ask().json()["choices"][0]["text"].split() == ["one", "two"]


def test_connections_live_on_when_the_model_is_there(loading):
    server = loading()
    with socket.create_connection(server.url.removeprefix("http://").split(":"), PATIENCE) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")  # half a head
        assert server.get("/health").status_code == 503
        server.load()
        sock.sendall(b'Content-Type: application/json\r\nContent-Length: 15\r\n\r\n{"prompt":"hi"}')
        assert sock.recv(12) == b"HTTP/1.1 200"


def test_a_signal_ends_a_server_that_loads_at_once(loading):
    server = loading()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == -signal.SIGTERM


def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path):
    done = subprocess.run([BIN, "serve", str(tmp_path), "--port", "0"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode not in (0, -signal.SIGSEGV) and not done.stdout and str(tmp_path) in done.stderr


def test_what_cannot_be_listened_on_is_known_before_the_model_is_read(tmp_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        done = subprocess.run([BIN, "serve", str(tmp_path / "no-model"), "--port", str(port)], capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
    assert done.returncode != 0 and f"port {port}" in done.stderr and "no-model" not in done.stderr


def test_requests_are_taken_until_the_balancer_has_noticed(tmp_path):
    server = Server("--drain-delay", 600, log=tmp_path / "log")
    server.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + PATIENCE
    while (leaving := server.get("/ready")).status_code == 200:
        assert time.monotonic() < end
    assert leaving.status_code == 503 and leaving.json() == {"status": "draining"}
    assert server.get("/health").json() == {"status": "ok"}  # alive: whoever kills what does not live leaves it alone
    assert leaving.headers["connection"] == "close"
    assert server.chat("Who are you?", max_tokens=3).status_code == 200
    server.process.send_signal(signal.SIGTERM)  # does not wait for the delay
    assert server.process.wait(PATIENCE) == 0
    server.stop()


def test_a_server_that_drains_is_alive_and_not_ready(loading):
    """Also after the delay, while new requests are refused and the running one streams."""
    server = loading("--drain-timeout", 600)
    server.load()
    server.hold.touch()
    body = {"prompt": "one two three", "stream": True}
    with requests.post(server.url + "/v1/completions", json=body, stream=True, timeout=PATIENCE) as answer:
        lines = answer.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        while (leaving := server.get("/ready")).status_code == 200:
            assert time.monotonic() < end
        states = [leaving, *(server.get(path) for path in ("/ready?queue=ignore", "/health"))]
        assert [(s.status_code, s.json()["status"]) for s in states] == [(503, "draining"), (503, "draining"), (200, "ok")]
        assert server.ask().status_code == 503
        server.hold.unlink()
        assert [line for line in lines if line][-1] == b"data: [DONE]"
    assert server.process.wait(PATIENCE) == 0


def test_a_server_whose_queue_is_full_is_not_ready(loading):
    server = loading("--max-queue", 2)
    server.load()
    slow = [requests.post(server.url + "/v1/completions", json={"prompt": "slow=10000 one two", "stream": True}, stream=True, timeout=PATIENCE)
            for _ in range(2)]
    try:
        full = server.get("/ready")
        assert full.status_code == 503 and full.json() == {"status": "full"} and full.headers["retry-after"] == "1"
        assert server.get("/ready?queue=ignore").json() == {"status": "ready"}
        assert server.get("/health").json() == {"status": "ok"} and server.ask().status_code == 429
    finally:
        for answer in slow:
            answer.close()
    end = time.monotonic() + PATIENCE
    while server.get("/ready").status_code != 200:
        assert time.monotonic() < end


def test_ready_takes_no_other_question(server):
    for query in ("queue", "queue=", "model=demo", "queue=ignore&x"):
        refused = server.get(f"/ready?{query}")
        assert refused.status_code == 400 and "?queue=ignore" in refused.json()["error"]["message"]


def test_the_delay_ends(tmp_path):
    server = Server("--drain-delay", 1, log=tmp_path / "log")
    before = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - before > 0.9


STRAY = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR, signal.SIGXFSZ,
         signal.SIGPIPE]


@pytest.mark.parametrize("when", ["loads", "serves"])
def test_stray_signals_end_no_server(loading, when):
    server = loading()
    if when == "serves":
        server.load()
    for number in STRAY:
        server.process.send_signal(number)
        assert server.get("/health").status_code == (200 if when == "serves" else 503)
    assert server.process.poll() is None


def test_keys_are_read_again_while_the_model_is_loaded(loading, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-old\n")
    server = loading("--api-key-file", keys)
    keys.write_text("sk-new\n")
    server.process.send_signal(signal.SIGHUP)
    assert server.get("/health").status_code == 503
    server.load()
    end = time.monotonic() + PATIENCE
    while "were read again" not in server.log.read_text():  # another thread reads them
        assert time.monotonic() < end
        time.sleep(0.01)
    for key, want in (("sk-old", 401), ("sk-new", 200)):
        assert server.ask(headers={"Authorization": f"Bearer {key}"}).status_code == want
