"""The server under systemd: inherited sockets, what it is told and when, the watchdog."""
import os
import signal
import socket
import subprocess
import time

import pytest
import requests
from conftest import BIN, DEMO, PATIENCE, ROOT, on_device

MOCK = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build")), "tests", "server", "mock_server")


class Started:
    """A server in an environment like that which systemd makes. sockets: become the descriptors from 3 on."""

    def __init__(self, *flags, command=(BIN, "serve", DEMO, *on_device(())), sockets=(), notify=None, log, **variables):
        env = {**os.environ, **variables}
        if notify:
            env["NOTIFY_SOCKET"] = notify
        # Moves the descriptors and names the process that they are for, as systemd does between fork and exec.
        words = " ".join(f"{3 + i}<&{s.fileno()}" for i, s in enumerate(sockets))
        listen = f"LISTEN_PID=$$ LISTEN_FDS={len(sockets)} " if sockets else ""
        self.log_path = log
        with open(log, "wb") as err:
            self.process = subprocess.Popen(
                ["bash", "-c", f'{listen}WATCHDOG_PID=$$ exec "$@" {words}', "bash", *command, "--port", "0", *flags],
                stdout=subprocess.PIPE, stderr=err, stdin=subprocess.DEVNULL, env=env,
                pass_fds=[s.fileno() for s in sockets])
        self.line = self.process.stdout.readline().decode().strip()

    def log(self):
        with open(self.log_path, encoding="utf-8") as file:
            return file.read()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE)
        self.process.stdout.close()
        return status


@pytest.fixture
def begin(tmp_path):
    servers = []

    def make(*flags, **more):
        servers.append(Started(*flags, log=tmp_path / f"log{len(servers)}", **more))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


def far_socket(family=socket.AF_INET, address=("127.0.0.1", 0), fd=50):
    """A listening socket with a descriptor that the test's server does not need for itself."""
    sock = socket.socket(family)
    sock.bind(address)
    sock.listen()
    far = socket.socket(fileno=os.dup2(sock.fileno(), fd))
    sock.close()
    return far


@pytest.fixture
def manager(tmp_path):
    """The socket on which a service manager hears; messages(): what has come until the condition holds."""
    path = str(tmp_path / "notify")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(path)
    sock.settimeout(PATIENCE)
    heard = []

    def until(word):
        while True:
            heard.append(sock.recv(4096).decode())
            if word in heard[-1].split("\n"):
                return heard[-1]

    until.path, until.heard, until.socket = path, heard, sock
    yield until
    sock.close()


def test_inherited_sockets_are_served(begin, tmp_path):
    path = str(tmp_path / "unix.sock")
    with far_socket() as tcp, far_socket(socket.AF_UNIX, path, 51) as unix:
        port = tcp.getsockname()[1]
        server = begin("--host", "192.0.2.1", sockets=[tcp, unix])
        assert server.line == f"listening on http://127.0.0.1:{port}"
        assert requests.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE).ok
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        assert server.stop() == 0
        assert os.path.exists(path)  # it belongs to systemd
        with socket.create_connection(("127.0.0.1", port)):  # waits for the next server: none is refused between two
            server = begin(sockets=[tcp, unix])
            assert requests.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE).ok


def test_requests_wait_in_the_socket_while_the_model_is_loaded(begin):
    with far_socket() as tcp, socket.create_connection(tcp.getsockname()) as early:
        early.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        begin(sockets=[tcp])
        early.settimeout(PATIENCE)
        assert early.recv(15) == b"HTTP/1.1 200 OK"


def test_what_is_no_listening_socket_is_refused(begin):
    with far_socket() as tcp, socket.create_connection(tcp.getsockname()) as connected:
        server = begin(sockets=[connected])
        assert server.process.wait(PATIENCE) == 2 and not server.line
        assert "descriptor 3 of LISTEN_FDS is not a listening stream socket" in server.log()


def test_variables_for_another_process_are_ignored(begin):
    server = begin(LISTEN_PID="1", LISTEN_FDS="1", WATCHDOG_USEC="1000")
    assert requests.get(server.line.removeprefix("listening on ") + "/health", timeout=PATIENCE).ok


def test_systemd_is_told_of_each_change(begin, manager):
    server = begin(notify=manager.path)
    ready = manager("READY=1")
    assert f"STATUS=serving demo on {server.line.removeprefix('listening on ')}" in ready
    before_us = time.monotonic_ns() // 1000
    server.process.send_signal(signal.SIGHUP)
    reloading = manager("RELOADING=1")
    at_us = int(reloading.split("MONOTONIC_USEC=")[1])
    assert before_us <= at_us <= time.monotonic_ns() // 1000
    manager("READY=1")
    server.process.send_signal(signal.SIGTERM)
    manager("STOPPING=1")
    assert server.process.wait(PATIENCE) == 0
    assert not any("WATCHDOG" in text for text in manager.heard)


def test_the_watchdog_hears_from_a_server_that_rests_and_one_that_works(begin, manager):
    server = begin(notify=manager.path, WATCHDOG_USEC="400000")
    for _ in range(3):
        manager("WATCHDOG=1")
    url = server.line.removeprefix("listening on ") + "/v1/completions"
    with requests.post(url, json={"prompt": "Mia", "ignore_eos": True, "max_tokens": 400, "stream": True}, stream=True,
                       timeout=PATIENCE) as reply:
        next(reply.iter_lines())
        manager("WATCHDOG=1")


def test_the_watchdog_hears_nothing_while_the_engine_makes_no_step(begin, manager):
    """The mock engine counts no steps: to the server a slow answer of it is one that hangs."""
    if not os.path.exists(MOCK):
        pytest.skip("mock_server is not built")
    server = begin(command=[MOCK], notify=manager.path, WATCHDOG_USEC="400000")
    manager("WATCHDOG=1")
    url = server.line.removeprefix("listening on ") + "/v1/completions"
    before = time.monotonic()
    reply = requests.post(url, json={"prompt": "slow=1500 one"}, timeout=PATIENCE)
    took = time.monotonic() - before
    assert reply.ok and took > 1.4
    manager.socket.setblocking(False)
    heard = 0
    try:
        while True:
            heard += "WATCHDOG" in manager.socket.recv(4096).decode()
    except BlockingIOError:
        manager.socket.settimeout(PATIENCE)
    assert heard <= 4, heard  # of about 14: one before it was submitted, one after, and what a loaded machine adds
    manager("WATCHDOG=1")
