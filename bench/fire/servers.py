"""A server that is watched, killed and started again; and connections that only rest."""
import asyncio
import os
import re
import signal
import socket
import subprocess
import time

from wire import Cut, Wire, post


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


METRICS_KEY = "sk-fire-metrics"


class Server:
    """One port, and behind it one process after the other. life: which one, from 1 on."""

    def __init__(self, name, command, key, folder, patience):
        self.name, self.command, self.key, self.folder, self.patience = name, command, key, folder, patience
        self.port, self.life, self.process, self.is_down, self.is_ready, self.is_draining = free_port(), 0, None, True, False, False
        self.drained_life = 0
        self.first_tokens_ms, self.n_fds, self.complaints = [], 0, []
        self.go = False  # clients may ask
        self.n_busy = 0  # clients that do

    def log_path(self):
        return os.path.join(self.folder, f"{self.name}-{self.life}.log")

    async def start(self):
        """Starts a process and asks, beside whoever asks already, until it answers; keeps the time to its first token."""
        self.life += 1
        began = time.monotonic()
        with open(self.log_path(), "wb") as err:
            self.process = subprocess.Popen([*self.command, "--port", str(self.port)], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=err)
        body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 8, "stream": True}
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode} at its start: {self.log()[-2000:]}")
            if time.monotonic() - began > self.patience:
                raise RuntimeError(f"{self.name} does not answer after {self.patience} s: {self.log()[-2000:]}")
            try:
                wire = await Wire.open(self.port, self.patience)
            except Cut:
                await asyncio.sleep(0.005)
                continue
            self.is_down = self.is_draining = False
            try:
                await wire.send(post("/v1/chat/completions", body, self.key))
                if b" 200 " in await wire.until(b"\r\n"):  # else the model is still being loaded
                    await wire.until(b'"content":"')  # the head of the answer, with the role
                    await wire.until(b'"content":"')
                    break
            except Cut:
                pass  # it listens first, and then it may still fail
            finally:
                wire.close()
            await asyncio.sleep(0.005)
        self.first_tokens_ms.append(1000 * (time.monotonic() - began))
        self.is_ready = True
        if self.life == 1:  # nobody else is there yet
            await self.wait_for(lambda m: m["tutti_kv_pages_used"] == 0 and m["tutti_http_connections"] == 1, "rest after the start")
            await asyncio.sleep(0.5)
            self.n_fds = self.count_fds()

    # ---- figures ----

    async def metrics(self):
        wire = await Wire.open(self.port, self.patience)
        try:
            await wire.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + METRICS_KEY.encode() +
                            b"\r\nConnection: close\r\n\r\n")
            text = (await wire.reply())[2].decode()
        finally:
            wire.close()
        return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.M)}

    async def wait_for(self, condition, what):
        """Until condition(figures) holds. Says what, and the figures, when it does not come."""
        end = time.monotonic() + self.patience
        while True:
            figures = await self.metrics()
            if condition(figures):
                return figures
            if time.monotonic() > end:
                shown = {k: v for k, v in figures.items() if re.search("_pages|running|waiting|connections$", k)}
                raise TimeoutError(f"{self.name}, life {self.life}: no {what} within {self.patience} s: {shown}")
            await asyncio.sleep(0.05)

    def count_fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1))

    def log(self):
        with open(self.log_path(), encoding="utf-8", errors="replace") as file:
            return file.read()

    # ---- ends ----

    async def check_rest(self):
        """With all clients silent: nothing is held but the prefix cache, no descriptor is left open. Returns the figures."""
        figures = await self.wait_for(
            lambda m: m["tutti_kv_pages_used"] == m["tutti_sequences_running"] == m["tutti_requests_waiting"] == 0 and
            m["tutti_kv_pages_free"] + m["tutti_kv_pages_cached"] == m["tutti_kv_pages"] and m["tutti_http_connections"] == 1, "rest")
        end = time.monotonic() + self.patience
        while self.count_fds() != self.n_fds:
            if time.monotonic() > end:
                raise AssertionError(f"{self.name}, life {self.life}: {self.count_fds()} descriptors, {self.n_fds} at its start")
            await asyncio.sleep(0.05)
        if figures["tutti_kv_spill_write_errors_total"] + figures["tutti_kv_spill_read_errors_total"]:
            raise AssertionError(f"{self.name}, life {self.life}: pages could not be written to the spill file, or read back")
        return figures

    def kill(self):
        self.is_down, self.is_ready = True, False
        self.process.kill()
        self.process.wait()
        self.read_log()

    async def drain(self):
        """As an administrator ends it: who is answered is answered to the end."""
        self.is_draining, self.drained_life = True, self.life
        self.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + self.patience + 10  # the server itself gives up first
        while self.process.poll() is None and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self.is_down, self.is_ready = True, False
        if self.process.poll() is None:
            self.kill()
            raise TimeoutError(f"{self.name}, life {self.life}: alive long after SIGTERM")
        self.read_log()
        if self.process.returncode:
            raise AssertionError(f"{self.name}, life {self.life}: ended with {self.process.returncode}: {self.log()[-2000:]}")

    def read_log(self):
        """Keeps the lines that are no ordinary ones."""
        lines = self.log().splitlines()
        self.complaints += [f"{self.name}, life {self.life}: {line}" for line in lines
                            if not re.match(r"^\S+Z (debug|info|warn) ", line)][:20]


class Idlers:
    """Connections that are opened, some of them asked once, and then rest."""

    def __init__(self, server, n):
        self.server, self.n, self.wires = server, n, []

    async def open(self):
        for i in range(self.n):
            wire = await Wire.open(self.server.port, self.server.patience)
            self.wires.append(wire)
            if i % 10 == 0:
                await wire.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await wire.reply())[0] == 200

    async def check(self):
        """All are still there."""
        if self.n == 0:
            return
        found = (await self.server.metrics())["tutti_http_connections"]
        assert found >= self.n, f"{self.server.name}, life {self.server.life}: {found} connections, {self.n} rest"
        await self.wires[0].send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await self.wires[0].reply())[0] == 200

    def close(self):
        for wire in self.wires:
            wire.close()
        self.wires = []
