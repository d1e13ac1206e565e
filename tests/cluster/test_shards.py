"""Sharded checkpoints and tables of ranks under mpirun."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from test_tp import BIN, DEMO, ENVIRONMENT, FIXTURES, MPIRUN, PATIENCE, pytestmark, run  # noqa: F401

CALL = ["--chat", "-p", "Hello", "-n", "12", "--temperature", "0", "--threads", "1"]


def shard(source, target, n):
    subprocess.run([BIN, "shard", source, target, "--tp", str(n)], check=True, capture_output=True, timeout=PATIENCE)
    return target


def run_apart(folders, status=0):
    """Each rank is given another folder."""
    words = []
    for folder in folders:
        words += [":"] * bool(words) + ["-n", "1", BIN, "generate", str(folder), *CALL, "--tp", str(len(folders))]
    done = subprocess.run([*MPIRUN, *words], capture_output=True, text=True, timeout=PATIENCE, check=False, env=ENVIRONMENT)
    assert (done.returncode == 0) == (status == 0), (done.stdout, done.stderr)
    return done


def test_a_rank_needs_its_own_folder_alone(tmp_path):
    shard(DEMO, tmp_path / "cut", 2)
    want = run("generate", DEMO, *CALL, n_ranks=2).stdout
    assert want and run("generate", tmp_path / "cut", *CALL, n_ranks=2).stdout == want
    for r in (0, 1):
        shutil.move(tmp_path / "cut" / f"rank_{r}", tmp_path / f"host{r}" / f"rank_{r}")
    assert run_apart([tmp_path / "host0", tmp_path / "host1"]).stdout == want


def test_ranks_of_different_models_do_not_start(tmp_path):
    shutil.copytree(DEMO, tmp_path / "other")
    path = tmp_path / "other" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    shard(DEMO, tmp_path / "a", 2)
    shard(tmp_path / "other", tmp_path / "b", 2)
    done = run_apart([tmp_path / "a", tmp_path / "b"], status=1)
    assert "b/rank_1/shard.json: model " in done.stderr and ", but rank 0 has a part of " in done.stderr


def test_the_layer_for_multi_token_prediction_is_cut_too(tmp_path):
    source = os.path.join(FIXTURES, "mtp", "deepseek-v3")
    shard(source, tmp_path / "cut", 2)
    parts = {t["name"]: t for t in json.loads((tmp_path / "cut" / "rank_0" / "shard.json").read_text())["tensors"]}
    assert parts["model.layers.2.self_attn.o_proj.weight"]["dim"] == 1 and "dim" not in parts["model.layers.2.eh_proj.weight"]
    words = ["-p", "abc", "-n", 40, "--ignore-eos", "--temperature", 0, "--threads", 1]
    plain = run("generate", source, *words, n_ranks=2).stdout
    for more in (), ("--draft", "mtp"):
        assert run("generate", tmp_path / "cut", *words, *more, n_ranks=2).stdout == plain
    for folder, n in (("again", 2), ("whole", 1)):
        shard(tmp_path / "cut", tmp_path / folder, n)
    whole = json.loads((tmp_path / "whole" / "shard.json").read_text())
    assert whole["fingerprint"] == json.loads((tmp_path / "again" / "rank_1" / "shard.json").read_text())["fingerprint"]
    assert run("generate", tmp_path / "whole", *words, "--draft", "mtp", n_ranks=2).stdout == plain


@pytest.mark.parametrize("name", ["gpt2-tiny", "bloom-tiny", "pangu-tiny", "glm-4-9b-tiny", "llama-tiny", "mindspore/glm", "qwen2-moe-tiny", "glm4-moe-tiny",
                                  "experts/qwen3-moe-tiny-merged", "gpt-oss-tiny"])
def test_parts_compute_what_slices_of_the_whole_do(name, tmp_path):
    """Fused, transposed and interleaved matrices, biases after all-reduces; two ranks of two folders, bit for bit."""
    source, out = os.path.join(FIXTURES, name), [tmp_path / "whole", tmp_path / "parts"]
    shard(source, tmp_path / "cut", 2)
    for model, path in zip((source, tmp_path / "cut"), out):
        run("logits", model, "--ids", "5,17,3,42,77", "-o", path, "--threads", 1, n_ranks=2)
    assert out[0].read_bytes() == out[1].read_bytes()


def test_other_numbers_of_ranks_read_the_joined_view(tmp_path):
    cut = shard(os.path.join(FIXTURES, "llama-tiny"), tmp_path / "cut", 4)
    for model, path in ((os.path.join(FIXTURES, "llama-tiny"), tmp_path / "a"), (cut, tmp_path / "b")):
        run("logits", model, "--ids", "5,17,3", "-o", path, "--threads", 1, n_ranks=2)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_mindspores_ranks_run_on_ranks(tmp_path):
    for model, path in (("mindspore/glm", tmp_path / "a"), ("mindspore/ranks", tmp_path / "b")):
        run("logits", os.path.join(FIXTURES, model), "--ids", "5,17,3", "-o", path, "--threads", 1, n_ranks=2)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_table_of_ranks_is_held_against_what_was_started(tmp_path):
    table = tmp_path / "table.json"

    def write(*hosts):
        table.write_text(json.dumps({"version": "1.0", "status": "completed", "server_count": str(len(hosts)), "server_list": [
            {"server_id": host, "device": [{"device_id": "0", "device_ip": f"192.0.2.{rank}", "rank_id": str(rank)}]}
            for rank, host in enumerate(hosts)]}))

    call = ["generate", DEMO, *CALL, "--rank-table", table]
    write("127.0.0.1", "localhost")
    assert run(*call, n_ranks=2).stdout
    assert "it has 2 ranks, but 1 were started" in run(*call, status=2).stderr
    write("127.0.0.1", "192.0.2.77")
    done = subprocess.run([*MPIRUN, "-n", "2", BIN, *map(str, call), "--tp", "2"], capture_output=True, text=True,
                          timeout=PATIENCE, check=False, env=ENVIRONMENT)
    assert done.returncode != 0 and "rank 1 belongs on 192.0.2.77, but runs on " in done.stderr
