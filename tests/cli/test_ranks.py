"""tutti ranks: a table in, files for mpirun out, which it understands."""
import json
import os
import shutil
import subprocess

import pytest

from test_cli import PATIENCE, tutti, wrong


def write_table(path, servers):
    """servers: name -> ranks."""
    path.write_text(json.dumps({
        "version": "1.0", "status": "completed", "server_count": str(len(servers)), "server_list": [
            {"server_id": name, "device": [{"device_id": str(i), "device_ip": f"192.168.{s}.{i}", "rank_id": str(rank)}
                                           for i, rank in enumerate(ranks)]}
            for s, (name, ranks) in enumerate(servers.items())]}))
    return path


def test_both_files_are_printed_or_written(tmp_path):
    table = write_table(tmp_path / "t.json", {"10.0.0.1": [0, 1], "10.0.0.2": [3, 2]})
    hosts = "10.0.0.1 slots=2\n10.0.0.2 slots=2\n"
    ranks = ("rank 0=10.0.0.1 slot=0-3\nrank 1=10.0.0.1 slot=4-7\n"
             "rank 2=10.0.0.2 slot=4-7\nrank 3=10.0.0.2 slot=0-3\n")
    head = f"# {table}: 4 ranks on 2 servers\n"
    assert tutti("ranks", table, "--cores", 8).stdout == f"{head}# hostfile\n{hosts}# rankfile\n{ranks}"
    done = tutti("ranks", table, "--cores", 8, "--hostfile", tmp_path / "hosts", "--rankfile", tmp_path / "ranks")
    assert done.stdout == head
    assert (tmp_path / "hosts").read_text() == hosts and (tmp_path / "ranks").read_text() == ranks


def test_a_wrong_table_is_told_and_nothing_is_written(tmp_path):
    table = write_table(tmp_path / "t.json", {"10.0.0.1": [0, 2]})
    said = tutti("ranks", table, "--hostfile", tmp_path / "hosts", check=1).stderr
    assert f"{table}: server_list[0].device[1].rank_id: 2, but there are 2 devices" in said
    assert not (tmp_path / "hosts").exists()
    write_table(table, {"10.0.0.1": [0, 1]})
    assert "2 ranks on 10.0.0.1, but 1 cores" in wrong("ranks", table, "--cores", 1)
    assert "/nowhere: No such file" in tutti("ranks", "/nowhere", check=1).stderr


@pytest.mark.skipif(not shutil.which("mpirun") or os.cpu_count() < 2, reason="no mpirun, or one core")
def test_mpirun_understands_them(tmp_path):
    table = write_table(tmp_path / "t.json", {"localhost": [1, 0]})
    tutti("ranks", table, "--cores", 2, "--hostfile", tmp_path / "hosts", "--rankfile", tmp_path / "ranks")
    done = subprocess.run(["mpirun", "--allow-run-as-root", "--hostfile", tmp_path / "hosts", "--rankfile",
                           tmp_path / "ranks", "-n", "2", "--report-bindings", "true"], capture_output=True, text=True,
                          timeout=PATIENCE, check=True)
    assert "rank 0 bound to socket 0[core 1" in done.stderr and "rank 1 bound to socket 0[core 0" in done.stderr
