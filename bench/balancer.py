"""Replicas of tutti behind a real HAProxy, for bench/replicas and the tests: deploy/haproxy/haproxy.cfg as it is, but for the
addresses and a log that can be read."""
import csv
import http.client
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIG = os.path.join(ROOT, "deploy", "haproxy", "haproxy.cfg")
HOST = "127.0.0.1"


GIVEN = set()  # ports that may not be in use yet: HAProxy would share one between its clients and its statistics


def free_port():
    """Below those that the system gives to outgoing connections: a server that is gone must find its port again."""
    while True:
        port = random.randrange(15000, 30000)
        if port in GIVEN:
            continue
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((HOST, port))
            except OSError:
                continue
        GIVEN.add(port)
        return port


def get(port, path, timeout=10):
    """(status, body); (0, b""): nobody answers."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def wait_for(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


class Replica:
    """tutti serve on a port of its own, which it finds again after each start."""

    def __init__(self, name, command, folder):
        self.name, self.command, self.folder = name, list(map(str, command)), folder
        self.port = free_port()
        self.process = None
        self.n_starts = 0
        self.kills = []  # when it was killed, time.monotonic()

    def start(self):
        self.n_starts += 1
        with open(os.path.join(self.folder, f"{self.name}.log"), "ab") as log:
            self.process = subprocess.Popen([*self.command, "--host", HOST, "--port", str(self.port)], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=log)

    def is_ready(self):
        return get(self.port, "/ready")[0] == 200

    def wait_ready(self, seconds=60):
        def ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}: {self.log()[-2000:]}")
            return self.is_ready()
        wait_for(f"{self.name} on port {self.port}", ready, seconds)

    def kill(self):
        self.kills.append(time.monotonic())
        self.process.kill()
        self.process.wait()

    def stop(self, seconds=60):
        """As an administrator would; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def log(self):
        with open(os.path.join(self.folder, f"{self.name}.log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def figures(self):
        found = {}
        for line in get(self.port, "/metrics")[1].decode().splitlines():
            words = line.split()
            if len(words) == 2 and not line.startswith("#"):
                found[words[0]] = float(words[1])
        return found


def rewrite(text, addresses):
    """The configuration with the addresses that it names replaced, each of which must be there."""
    for old, new in addresses.items():
        text, n = re.subn(rf"\b{re.escape(old)}\b", new, text)
        if n == 0:
            raise ValueError(f"{CONFIG} does not name {old}")
    return text


class Balancer:
    """haproxy with the project's configuration in front of three ports."""

    def __init__(self, ports, folder):
        self.port, self.figures_port = free_port(), free_port()
        addresses = {f"{HOST}:8080": f"{HOST}:{self.port}", f"{HOST}:8404": f"{HOST}:{self.figures_port}"}
        addresses.update({f"{HOST}:{8081 + i}": f"{HOST}:{port}" for i, port in enumerate(ports)})
        self.config = os.path.join(folder, "haproxy.cfg")
        self.log_path = os.path.join(folder, "haproxy.log")
        with open(CONFIG, encoding="utf-8") as file:
            text = rewrite(file.read(), addresses)
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(text)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(["haproxy", "-db", "-f", self.config], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for("haproxy", lambda: self.process.poll() is not None or get(self.figures_port, "/metrics")[0] == 200)
        if self.process.poll() is not None:
            raise RuntimeError(f"haproxy ended with {self.process.returncode}: {self.log()}")

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def rows(self):
        """HAProxy's own figures: {(backend, server): {name: text}}."""
        body = get(self.figures_port, "/;csv")[1].decode().removeprefix("# ")
        return {(row["pxname"], row["svname"]): row for row in csv.DictReader(io.StringIO(body))}

    def n_up(self):
        """Replicas to which both backends send requests."""
        return min(sum(row["status"].startswith(("UP", "no check")) for (_, server), row in self.of(backend).items()
                       if server not in ("FRONTEND", "BACKEND")) for backend in ("any_replica", "home_replica"))

    def of(self, backend):
        return {key: row for key, row in self.rows().items() if key[0] == backend}

    def n_sent_again(self):
        """Requests that went to another replica than the first one."""
        return sum(int(row["wredis"] or 0) for (_, server), row in self.rows().items() if server == "BACKEND")

    def close(self):
        self.process.terminate()
        self.process.wait(30)


def error_message(body):
    """The text of an error in OpenAI's shape, or what there is instead."""
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
