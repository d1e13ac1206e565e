"""Two hosts on one machine: network namespaces with addresses and names of their own, and a link between them that can be slow, lose
frames, and be cut.

Where the kernel has netem (tc-netem(8)) the link is a veth pair with it; else frames go through this process, from one tap device to
the other, which does the same.
"""
import fcntl
import heapq
import os
import random
import shutil
import struct
import subprocess
import threading
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(*words, check=True):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.returncode == 0


def why_not():
    """Why there can be no hosts here; None: there can."""
    if not shutil.which("ip"):
        return "iproute2 is not installed"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    name = f"tutti-try-{os.getpid()}"
    if not ip("netns", "add", name, check=False):
        return "network namespaces are not permitted here"
    ip("netns", "del", name, check=False)
    return None


class Relay(threading.Thread):
    """Carries frames between two tap devices, late and with losses."""

    def __init__(self, names, delay, loss):
        super().__init__(daemon=True)
        self.delay, self.loss, self.is_cut, self.is_over = delay, loss, False, False
        self.fds = []
        self.random = random.Random(1)
        for name in names:
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
            self.fds.append(fd)

    def run(self):
        import select
        late, number = [], 0
        while not self.is_over:
            wait = max(0.0, min(0.05, late[0][0] - time.monotonic())) if late else 0.05
            ready, _, _ = select.select(self.fds, [], [], wait)
            for fd in ready:
                try:
                    frame = os.read(fd, 65536)
                except OSError:
                    continue
                other = self.fds[1 - self.fds.index(fd)]
                if not self.is_cut and self.random.random() >= self.loss:
                    number += 1
                    heapq.heappush(late, (time.monotonic() + self.delay, number, other, frame))
            while late and late[0][0] <= time.monotonic():
                _, _, fd, frame = heapq.heappop(late)
                try:
                    os.write(fd, frame)
                except OSError:
                    pass


class Hosts:
    """names: the namespaces, which are the hosts' names too. delay in seconds, loss a share."""

    def __init__(self, folder, delay=0.0, loss=0.0):
        self.folder = str(folder)
        self.names = [f"tutti{os.getpid()}h{i}" for i in range(2)]
        self.devices = [f"tt{os.getpid()}d{i}"[-15:] for i in range(2)]
        self.relay = None
        try:
            for name in self.names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            self.connect(delay, loss)
            for name, device, address in zip(self.names, self.devices, ADDRESSES):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
                ip("-n", name, "link", "set", device, "up")
        except BaseException:
            self.close()
            raise
        self.write_agent()

    def connect(self, delay, loss):
        ip("link", "add", self.devices[0], "netns", self.names[0], "type", "veth", "peer", "name", self.devices[1], "netns",
           self.names[1])
        if delay == 0 and loss == 0:
            return
        if all(self.netem(i, delay, loss) for i in range(2)):
            return
        ip("-n", self.names[0], "link", "del", self.devices[0])
        self.relay = Relay(self.devices, delay, loss)
        for name, device in zip(self.names, self.devices):
            ip("link", "set", device, "netns", name)
        self.relay.start()

    def netem(self, host, delay, loss):
        done = subprocess.run(["ip", "netns", "exec", self.names[host], "tc", "qdisc", "add", "dev", self.devices[host], "root", "netem",
                               "delay", f"{delay * 1000}ms", "loss", f"{loss * 100}%"], capture_output=True, check=False)
        return done.returncode == 0

    def write_agent(self):
        """What mpirun starts in place of ssh."""
        self.agent = os.path.join(self.folder, "agent")
        with open(self.agent, "w", encoding="ascii") as file:
            file.write(f"""#!/bin/sh
host=$1
shift
case $host in
{ADDRESSES[0]}) name={self.names[0]} ;;
*) name={self.names[1]} ;;
esac
exec ip netns exec $name unshare -u sh -c "hostname $name; $*"
""")
        os.chmod(self.agent, 0o755)

    def command(self, host, words):
        """The words of a command that runs on a host."""
        return ["ip", "netns", "exec", self.names[host], "unshare", "-u", "sh", "-c", 'hostname "$0"; exec "$@"',
                self.names[host], *words]

    def cut(self):
        if self.relay:
            self.relay.is_cut = True
        else:
            ip("-n", self.names[0], "link", "set", self.devices[0], "down")

    def close(self):
        for name in self.names:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout.split()
            for pid in pids:
                subprocess.run(["kill", "-KILL", pid], check=False)
        if self.relay:
            self.relay.is_over = True
            if self.relay.is_alive():
                self.relay.join()
            for fd in self.relay.fds:
                os.close(fd)
        for name in self.names:
            ip("netns", "del", name, check=False)
