"""tutti generate --dp under a real mpirun: what comes out is what one replica alone gives, or a clear error."""
import glob
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.abspath(os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti")))
DEMO = os.path.join(ROOT, "models", "demo")
PATIENCE = 60 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
N = 12
# Leaks within Open MPI are not ours.
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}

pytestmark = [pytest.mark.skipif(not shutil.which("mpirun") or not glob.glob(os.path.join(os.path.dirname(BIN), "tutti-mpi*")),
                                 reason="built without MPI, or mpirun is not installed"),
              pytest.mark.skipif("TSAN_OPTIONS" in os.environ, reason="the thread sanitizer does not see into Open MPI")]


def run(*args, n_ranks=None, check=True, **more):
    """The finished process; without n_ranks it is not started by mpirun."""
    launcher = [*MPIRUN, "-n", str(n_ranks)] if n_ranks else []
    done = subprocess.run([*launcher, BIN, "generate", DEMO, *map(str, args)], capture_output=True, stdin=subprocess.DEVNULL,
                          timeout=PATIENCE, check=False, env=ENVIRONMENT, **more)
    assert not check or done.returncode == 0, done.stderr.decode()
    return done


@pytest.fixture(name="prompts", scope="module")
def prompts_fixture(tmp_path_factory):
    """Of very different lengths, so that the replicas are not done at the same time."""
    path = tmp_path_factory.mktemp("prompts") / "prompts"
    lines = [f"Tell me {'and again ' * (7 * i % 30)}about the number {i}." for i in range(N)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("how", [["--temperature", 0], ["--temperature", 1, "--seed", 5], ["--beams", 3, "--best", 2]],
                         ids=["greedy", "seeded", "beams"])
def test_the_bytes_are_those_of_one_replica(prompts, n, how):
    args = ["--chat", "-f", prompts, "--max-tokens", 12, *how]
    assert run(*args, "--dp", n, n_ranks=n).stdout == run(*args).stdout


def test_replicas_may_have_several_ranks_each(prompts):
    args = ["--chat", "-f", prompts, "--max-tokens", 12, "--temperature", 0, "--tp", 2]
    shared = run(*args, "--dp", 2, n_ranks=4).stdout
    assert shared == run(*args, n_ranks=2).stdout
    assert shared == run(*args[:-2]).stdout  # greedy: the texts of one rank


def test_json_comes_in_the_order_of_the_prompts(prompts):
    args = ["--chat", "-f", prompts, "--max-tokens", 12, "--json", "--temperature", 0, "--no-prefix-cache"]
    alone = sorted(map(json.loads, run(*args).stdout.splitlines()), key=lambda line: line["index"])
    shared = list(map(json.loads, run(*args, "--dp", 3, n_ranks=3).stdout.splitlines()))
    assert [line["index"] for line in shared] == list(range(N)) and shared == alone


@pytest.mark.parametrize("n_ranks, args, words", [
    (3, ["--dp", 2], "3 ranks were started, but 2 replicas of 1 rank each need 2"),
    (2, ["--dp", 2, "--tp", 2], "2 ranks were started, but 2 replicas of 2 ranks each need 4"),
    (2, ["--dp", 5], "2 ranks were started, but 5 replicas of 1 rank each need 5"),
    (None, ["--dp", 2], "this process was not started by a launcher: use mpirun"),
    (None, ["--dp", 0], "--dp"), (None, ["--dp", "x"], "--dp"), (None, ["--dp", 65], "--dp")])
def test_numbers_that_do_not_fit_are_refused(prompts, n_ranks, args, words):
    done = run("-f", prompts, *args, n_ranks=n_ranks, check=False)
    assert done.returncode == 2 and not done.stdout and words in done.stderr.decode()


def test_a_batch_that_cannot_be_shared_evenly_is_refused(tmp_path):
    path = tmp_path / "seven"
    path.write_text("".join(f"prompt {i}\n" for i in range(7)))
    done = run("-f", path, "--dp", 3, n_ranks=3, check=False)
    words = "7 prompts cannot be shared out evenly over 3 replicas (--dp): leave 1 out, or add 2"
    assert done.returncode == 2 and not done.stdout and done.stderr.decode().count(words) == 1


@pytest.mark.parametrize("args", [["-f", "-"], ["-p", "-", "-p", "x"], ["-p", "x", "-p", "y", "--grammar", "-"]],
                         ids=["file", "prompt", "grammar"])
def test_standard_input_is_refused(args):
    done = run(*args, "--dp", 2, n_ranks=2, check=False)
    assert done.returncode == 2 and b"standard input goes to only one of them" in done.stderr and not done.stdout


def test_a_prompt_that_fails_costs_no_other(tmp_path):
    path = tmp_path / "prompts"
    lines = [f"prompt {i}" for i in range(6)]
    lines[4] = "far too long " * 1000
    path.write_text("\n".join(lines) + "\n")
    args = ["-f", path, "--max-tokens", 5, "--temperature", 0]
    alone, shared = run(*args, check=False), run(*args, "--dp", 3, n_ranks=3, check=False)
    assert alone.returncode == shared.returncode == 1
    assert alone.stdout == shared.stdout and b"tutti: prompt 4: " in shared.stderr


def test_a_model_that_is_not_there_is_an_error_for_all(tmp_path, prompts):
    done = subprocess.run([*MPIRUN, "-n", "2", BIN, "generate", str(tmp_path / "nothing"), "--dp", "2", "-f", str(prompts)],
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False, env=ENVIRONMENT)
    assert done.returncode != 0 and b"nothing" in done.stderr


def children_of(pid):
    """The ranks that mpirun has started on this machine."""
    found = []
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with open(path, encoding="ascii") as file:
            found += [int(child) for child in file.read().split()]
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_replica_that_is_lost_ends_the_batch(tmp_path, how, rank):
    """Its prompts would be missing: nobody waits for them, and the status says so."""
    path = tmp_path / "prompts"
    path.write_text("".join(f"Tell me a story about {i}.\n" for i in range(4000)))
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        process = subprocess.Popen([*MPIRUN, "-n", "2", BIN, "generate", DEMO, "--dp", "2", "--chat", "-f", str(path),
                                    "--ignore-eos", "--max-tokens", "400"], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   env=ENVIRONMENT)
    end = time.monotonic() + PATIENCE
    ranks = {}
    while len(ranks) < 2 or not (tmp_path / "out").stat().st_size:  # both are there, and answers come
        assert process.poll() is None and time.monotonic() < end, (tmp_path / "err").read_text()
        for pid in children_of(process.pid):
            try:
                with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
                    variables = dict(v.partition("=")[::2] for v in file.read().split("\0"))
                ranks[int(variables["OMPI_COMM_WORLD_RANK"])] = pid
            except (OSError, KeyError):
                pass  # not yet what it will be
        time.sleep(0.02)
    os.kill(ranks[rank], how)
    try:
        status = process.wait(PATIENCE)
    finally:
        if how == signal.SIGSTOP:
            try:
                os.kill(ranks[rank], signal.SIGKILL)
            except ProcessLookupError:
                pass
    assert status != 0
    if how == signal.SIGSTOP:  # where it is killed, mpirun may be the first to notice
        assert f"rank {rank} of 2" in (tmp_path / "err").read_text()
