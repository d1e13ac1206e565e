#!/usr/bin/env python3
"""Runs commands in an emulated machine with several NUMA nodes: qemu with Debian's kernel and an initial RAM disk.

  boot.py [--nodes N] [--cpus-per-node N] [--memory SIZE] [--copy PATH]... [--time SECONDS] [--cpu CPU]
          -- COMMAND

The machine has no disk and no network. It has a shell (busybox), tutti, models/demo and the paths of --copy, with the libraries of
each program, all under the same paths as on the host; commands run in the root of the checkout. tutti is the one of TUTTI_BIN
(build/tutti). One word as COMMAND is a line for the shell. What the command prints is printed, and its exit status is returned;
125: the machine did not start, stopped, or ran out of time.

Files are in the memory of the node that unpacked them, which may be any, and pages that a process maps from a file stay there. With
several nodes the kernel migrates other pages between nodes, until a command writes 0 to /proc/sys/kernel/numa_balancing.
The processor is emulated, with AVX2 and without AVX-512. Masked loads of qemu 7.2 also read the elements that the mask excludes: next to
an unmapped page they fault, as in checkkernels. With --cpu max,-avx2 tutti uses the kernels in plain C instead.
"""
import argparse
import base64
import os
import re
import select
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.path.abspath(os.environ.get("TUTTI_BIN", ROOT / "build" / "tutti")))
QEMU, BUSYBOX, KERNEL = "qemu-system-x86_64", "/bin/busybox", ROOT / "build-clients" / "numa" / "vmlinuz"
PATIENCE = 120  # seconds for a boot or a command; an emulated boot takes 5 to 10 of them
MAX_COMMAND = 3000  # bytes; a line of a terminal is at most 4,095, and base64 has 4 for 3

# Each line read from the second serial port is a mark and a command in base64. The reply is the output of the command, then a line
# with the mark and the exit status.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
ip link set lo up
export HOME=/tmp PATH={path}
cd {root}
exec </dev/ttyS1 >/dev/ttyS1
stty raw -echo
set -o pipefail
echo {ready}
while read -r mark command; do
    echo "$command" | base64 -d >/tmp/command
    sh /tmp/command </dev/null 2>&1 | cat  # a program's output is not to a terminal
    status=$?
    echo; echo "$mark $status"
done
"""

Done = namedtuple("Done", "status output")


class MachineError(Exception):
    """The machine did not start, stopped, or ran out of time."""


def why_not():
    """Why no machine can be emulated on this host; None: it can."""
    if os.uname().machine != "x86_64":
        return "needs an x86-64 processor"
    needs = {"qemu-system-x86": shutil.which(QEMU), "busybox-static": os.path.exists(BUSYBOX),
             f"a kernel in {KERNEL.relative_to(ROOT)}": KERNEL.exists()}
    missing = [name for name, found in needs.items() if not found]
    return f"needs {' and '.join(missing)}, which ./run deps test installs" if missing else None


def libraries(program):
    """The files that the dynamic linker loads for a program or a library, the linker included."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if "not found" in done.stdout:
        raise FileNotFoundError(f"{program}: {re.search('.*not found.*', done.stdout)[0].strip()}")
    return [Path(path) for path in re.findall(r"^\s(?:\S+ => )?(/\S+) \(0x", done.stdout, re.M)]


def files_of(paths):
    """All files of these files and folders, and the libraries of the programs among them: {path in the machine: path on the host}."""
    found = {Path("/bin/busybox"): Path(BUSYBOX)}
    for path in (Path(os.path.abspath(path)) for path in paths):
        inside = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
        for file in inside:
            found[file] = file
            with open(file, "rb") as opened:
                is_elf = opened.read(4) == b"\x7fELF"
            for library in libraries(file) if is_elf and os.access(file, os.X_OK) else []:
                found[library] = library
    return found


def write_archive(out, files, init):
    """A cpio archive in the kernel's "newc" format (its documentation: driver-api/early-userspace/buffer-format)."""
    folders = set()

    def add(name, mode, data=b""):
        n_names = len(name) + 1
        fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, n_names, 0)
        out.write(b"070701" + b"".join(b"%08x" % field for field in fields) + name + b"\0" * (1 + -(110 + n_names) % 4))
        out.write(data + b"\0" * (-len(data) % 4))

    def add_file(path, mode, data):
        for folder in reversed(path.parents):
            if folder not in folders and folder != Path("/"):
                folders.add(folder)
                add(bytes(folder)[1:], stat.S_IFDIR | 0o755)
        add(bytes(path)[1:], stat.S_IFREG | mode, data)

    add_file(Path("/init"), 0o755, init.encode())
    for path, source in files.items():
        add_file(path, source.stat().st_mode & 0o777, source.read_bytes())
    add(b"TRAILER!!!", 0)


class Machine:
    """An emulated machine, from its start to close() or the end of a `with`. It runs one command after the other.

    memory_mib: of all nodes together; copy: files and folders in addition to tutti and models/demo;
    cpu: a name of qemu's."""

    def __init__(self, nodes=1, cpus_per_node=1, memory_mib=1024, copy=(), cpu="max"):
        missing = why_not()
        if missing:
            raise MachineError(missing)
        self.nodes, self.cpus_per_node, self.node_mib, self.cpu = nodes, cpus_per_node, memory_mib // nodes, cpu
        self.qemu, self.pending = None, b""
        self.folder = tempfile.TemporaryDirectory(prefix="tutti-numa-")
        self.console, archive = Path(self.folder.name, "console"), Path(self.folder.name, "files")
        self.ready = uuid.uuid4().hex
        try:
            with open(archive, "wb") as out:
                init = INIT.format(path=f"/bin:{shlex.quote(str(BIN.parent))}", root=shlex.quote(str(ROOT)), ready=self.ready)
                write_archive(out, files_of([BIN, ROOT / "models" / "demo", *copy]), init)
            # The kernel holds the archive and the unpacked files at once, and gives files at most half of the memory.
            n_mib = archive.stat().st_size >> 20
            if n_mib > memory_mib // 3:
                raise MachineError(f"{n_mib} MiB of files are more than a third of {memory_mib} MiB of memory")
            self.start(archive)
        except BaseException:
            self.close()
            raise

    def start(self, archive):
        with open(Path(self.folder.name, "qemu"), "wb") as said:
            # The machine ends when this process ends, even if it is killed.
            self.qemu = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *self.arguments(archive)], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=said, bufsize=0)
        self.read_to(self.ready, PATIENCE)

    def arguments(self, archive):
        n, per_node = self.nodes, self.cpus_per_node
        numa = []
        for node in range(n):
            numa += ["-object", f"memory-backend-ram,id=m{node},size={self.node_mib}M",
                     "-numa", f"node,nodeid={node},memdev=m{node},cpus={node * per_node}-{(node + 1) * per_node - 1}"]
        for node in range(n):
            for other in range(n):
                numa += ["-numa", f"dist,src={node},dst={other},val={10 if node == other else 20}"]
        return [QEMU, "-accel", "tcg", "-cpu", self.cpu, "-smp", f"cpus={n * per_node},sockets={n},cores={per_node},threads=1",
                "-m", f"{n * self.node_mib}M", *numa, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                "-kernel", str(KERNEL), "-initrd", str(archive), "-append", "console=ttyS0 panic=-1 quiet no_timer_check",
                "-serial", f"file:{self.console}", "-serial", "stdio"]

    def read_to(self, mark, patience):
        """The text from the second serial port before a line that begins with the mark, and the rest of that line."""
        until = time.monotonic() + patience
        while not (found := re.search(rb"(?:^|\n)" + mark.encode() + rb"(.*?)\r?\n", self.pending)):
            if not select.select([self.qemu.stdout], [], [], max(0, until - time.monotonic()))[0]:
                raise MachineError(f"nothing ended within {patience} seconds{self.last_words()}")
            got = os.read(self.qemu.stdout.fileno(), 1 << 16)
            if not got:
                self.qemu.wait()
                raise MachineError(f"the machine stopped{self.last_words()}")
            self.pending += got
        before, self.pending = self.pending[:found.start()], self.pending[found.end():]
        return before.decode(errors="replace"), found[1].decode()

    def last_words(self):
        """The last lines that the command, the kernel and qemu printed."""
        texts = [self.pending.decode(errors="replace")]
        texts += [path.read_text(errors="replace") for path in (self.console, Path(self.folder.name, "qemu")) if path.exists()]
        return "".join("\n" + "\n".join(text.strip().splitlines()[-15:]) for text in texts if text.strip())

    def run(self, command, patience=PATIENCE):
        """Runs one or more lines of shell commands. Returns the exit status, and the text of stdout and stderr."""
        mark, text = uuid.uuid4().hex, command.encode()
        if len(text) > MAX_COMMAND:
            raise ValueError(f"a command of {len(text)} bytes, at most {MAX_COMMAND}: copy a script instead")
        try:
            self.qemu.stdin.write(f"{mark} ".encode() + base64.b64encode(text) + b"\n")
            output, status = self.read_to(mark, patience)
        except (MachineError, BrokenPipeError) as error:
            self.stop()
            raise MachineError(f"{command}: {error}") from error
        return Done(int(status), output)

    def output(self, command, patience=PATIENCE):
        """As run(), for a command that must succeed. Returns its output."""
        done = self.run(command, patience)
        assert done.status == 0, f"{command}: exit status {done.status}\n{done.output}"
        return done.output

    def stop(self):
        if self.qemu:
            self.qemu.kill()
            self.qemu.wait()
            self.qemu.stdin.close()
            self.qemu.stdout.close()
            self.qemu = None

    def close(self):
        self.stop()
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def run(command, nodes, **more):
    """Runs a command that must succeed in a new machine, and returns its output. more: see Machine."""
    with Machine(nodes=nodes, **more) as machine:
        return machine.output(command)


def mib(text):
    found = re.fullmatch(r"(\d+)([MG])", text)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is no size such as 512M or 2G")
    return int(found[1]) * (1024 if found[2] == "G" else 1)


def main():
    _, usage, description = __doc__.split("\n\n", 2)
    parser = argparse.ArgumentParser(usage=usage.strip(), description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cpus-per-node", type=int, default=1)
    parser.add_argument("--memory", type=mib, default=1024)
    parser.add_argument("--copy", action="append", default=[])
    parser.add_argument("--time", type=float, default=PATIENCE)
    parser.add_argument("--cpu", default="max")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    command = given.command[0] if len(given.command) == 1 else shlex.join(given.command)
    try:
        with Machine(given.nodes, given.cpus_per_node, given.memory, given.copy, given.cpu) as machine:
            done = machine.run(command, given.time)
    except (MachineError, OSError) as error:
        print(f"boot.py: {error}", file=sys.stderr)
        return 125
    sys.stdout.write(done.output)
    return done.status


if __name__ == "__main__":
    sys.exit(main())
