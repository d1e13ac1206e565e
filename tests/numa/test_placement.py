"""tutti on machines with several NUMA nodes, which boot.py emulates."""
import os
import subprocess
import sys

import pytest

import boot

SANITIZED = "ASAN_OPTIONS" in os.environ or "TSAN_OPTIONS" in os.environ
GENERATE = ["generate", "models/demo", "--chat", "-p", "What is the capital of France?", "-n", "24", "--temperature", "0"]
NODES = "/sys/devices/system/node"

pytestmark = [
    pytest.mark.skipif(SANITIZED, reason="a sanitizer's kernels compute so slowly that an emulated machine runs out of time"),
    pytest.mark.skipif(boot.why_not() is not None, reason=str(boot.why_not())),
]


# Two cores each; the machines differ only in the number of nodes.
@pytest.fixture(scope="module", params=[1, 2], ids=["one-node", "two-nodes"])
def machine(request, tmp_path_factory):
    """A machine for all tests of this file, since a boot takes seconds."""
    folder = tmp_path_factory.mktemp("copied")
    (folder / "inner").mkdir()
    (folder / "inner" / "text").write_text("copied\n")
    with boot.Machine(nodes=request.param, cpus_per_node=2 // request.param, copy=[folder, "/usr/bin/env"]) as booted:
        booted.copied = folder
        yield booted


def test_the_kernel_has_the_nodes_with_their_cpus_and_memory(machine):
    one = machine.nodes == 1
    assert machine.output(f"cat {NODES}/online").strip() == ("0" if one else "0-1")
    assert machine.output(f"cat {NODES}/node*/cpulist").split() == (["0-1"] if one else ["0", "1"])
    assert machine.output(f"cat {NODES}/node*/distance").split() == (["10"] if one else ["10", "20", "20", "10"])
    n_kib = [int(line.split()[3]) for line in machine.output(f"grep -h MemTotal: {NODES}/node*/meminfo").splitlines()]
    # The kernel keeps some memory for itself, most of it on the first node.
    assert len(n_kib) == machine.nodes and all(0.85 * machine.node_mib < n / 1024 <= machine.node_mib for n in n_kib)


def test_tutti_answers_as_on_this_machine(machine):
    for args in (["version"], GENERATE):
        here = subprocess.run([boot.BIN, *args], cwd=boot.ROOT, capture_output=True, text=True, check=True)
        quoted = " ".join(f"'{word}'" for word in args)
        assert machine.output(f"tutti {quoted} 2>/dev/null") == here.stdout != ""


def test_output_and_status_of_a_command_come_back(machine):
    assert machine.run("echo out; echo err >&2; printf end; exit 7") == (7, "out\nerr\nend")
    assert machine.run("false | true") == (0, "")
    assert machine.run("no-such-program").status == 127
    assert machine.output("test -t 1 || echo no terminal\npwd") == f"no terminal\n{boot.ROOT}\n"
    with pytest.raises(AssertionError, match="exit status 1\nwhy"):
        machine.output("echo why; false")


def test_files_and_programs_with_their_libraries_are_copied(machine):
    assert machine.output(f"cat {machine.copied}/inner/text") == "copied\n"
    assert "OF_THE_MACHINE=1" in machine.output("OF_THE_MACHINE=1 /usr/bin/env").splitlines()


def test_a_machine_of_four_nodes_ends_at_its_time_limit():
    done = subprocess.run([sys.executable, boot.__file__, "--nodes", "4", "--time", "5", "--", f"cat {NODES}/online; sleep 600"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 125 and done.stdout == ""
    assert "nothing ended within 5.0 seconds\n0-3" in done.stderr


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(boot, "QEMU", "qemu-that-is-not-here")
    monkeypatch.setattr(boot, "KERNEL", boot.ROOT / "build-clients" / "none" / "vmlinuz")
    assert boot.why_not() == "needs qemu-system-x86 and a kernel in build-clients/none/vmlinuz, which ./run deps test installs"
    with pytest.raises(boot.MachineError, match="needs qemu-system-x86 and"):
        boot.Machine()


def test_more_files_than_fit_are_refused(tmp_path):
    (tmp_path / "large").write_bytes(b"\0" * (64 << 20))
    with pytest.raises(boot.MachineError, match=r"MiB of files are more than a third of 256 MiB of memory"):
        boot.Machine(memory_mib=256, copy=[tmp_path])


PLACEMENT = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(boot.ROOT, "build-test")), "tests", "kernels", "test_kernels_placement")
SERVE = """tutti serve models/demo {flags} --port 8123 2>/tmp/said & pid=$!
fail() {{ echo "$1"; cat /tmp/said; grep -s -E "Name|State" /proc/$pid/task/*/status; kill -9 $pid; exit 1; }}
tries=0
until timeout 5 wget -qO- http://127.0.0.1:8123/ready >/dev/null; do
    tries=$((tries + 1))
    kill -0 $pid && [ $tries -lt 200 ] || fail "the server is not ready"
    sleep 0.2
done
timeout 60 wget -qO- --header 'Content-Type: application/json' --post-data '{{"messages":[{{"role":"user","content":"What is the capital of France?"}}],"temperature":0,"max_tokens":8}}' http://127.0.0.1:8123/v1/chat/completions >/tmp/answer || fail "no answer"
cat /proc/$pid/numa_maps
for task in /proc/$pid/task/*; do echo thread $(cat $task/comm) $(grep Cpus_allowed_list $task/status); done
kill -9 $pid
grep -o '"content":"[^"]*"' /tmp/answer"""


@pytest.mark.parametrize("nodes", [2, 4])
def test_pages_lie_where_the_threads_run_that_read_them(nodes):
    with boot.Machine(nodes=nodes, cpus_per_node=1, copy=[PLACEMENT]) as booted:
        booted.output("echo 0 > /proc/sys/kernel/numa_balancing")
        said = booted.output(f"CMOCKA_MESSAGE_OUTPUT=TAP {PLACEMENT}")
        n_pages = int(said.split("# ")[1].split()[0])
        assert n_pages > 500 and "pages checked on real nodes" in said
        if nodes == 2:
            off, by_node = booted.output(SERVE.format(flags="--numa off")), booted.output(SERVE.format(flags=""))
            assert "prefer" not in off and off.splitlines()[-1] == by_node.splitlines()[-1]
            check_maps(by_node)


def check_maps(said):
    """The pages of each range that prefers a node are there, both nodes have their part, and each has a compute thread."""
    pages = {0: 0, 1: 0}
    for line in said.splitlines():
        words = line.split()
        if len(words) > 1 and words[1].startswith("prefer"):
            node = int(words[1].rpartition(":")[2])
            on = {int(word[1:].partition("=")[0]): int(word.partition("=")[2]) for word in words if word[0] == "N" and word[1].isdigit()}
            assert set(on) <= {node}, line
            pages[node] += sum(on.values())
    assert min(pages.values()) > 0.4 * sum(pages.values()) > 400, pages
    bound = {line.split()[1]: line.split()[-1] for line in said.splitlines() if line.startswith("thread")}
    assert bound["tutti-engine"] == "0" and bound["tutti"] == "1"
    assert bound["tutti-text"] == "0-1"  # nothing but compute threads is bound
