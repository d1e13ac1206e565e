"""tutti convert: its report, and that a failed conversion leaves no file."""
import array
import json
import math
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time

import pytest

from test_cli import BIN, DEMO, PATIENCE, SANITIZED, start_first, tutti, wrong


def write_llama(folder, n_layers, d_model=512, d_ff=1536, n_vocab=512):
    """A LLaMA of random float32 weights, large compared with what a conversion may hold. Returns its bytes."""
    rng = random.Random(3)
    normal = array.array("f", (rng.gauss(0, 0.02) for _ in range(99991)))
    shapes = {"model.embed_tokens.weight": (n_vocab, d_model), "lm_head.weight": (n_vocab, d_model),
              "model.norm.weight": (d_model,)}
    for i in range(n_layers):
        at = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}{name}.weight"] = (d_model,)
        for name in "qkvo":
            shapes[f"{at}self_attn.{name}_proj.weight"] = (d_model, d_model)
        for name in ("gate", "up"):
            shapes[f"{at}mlp.{name}_proj.weight"] = (d_ff, d_model)
        shapes[f"{at}mlp.down_proj.weight"] = (d_model, d_ff)
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            n = math.prod(shape)
            f.write((normal * (n // len(normal) + 1))[:n].tobytes())
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": d_model,
        "intermediate_size": d_ff, "num_hidden_layers": n_layers, "num_attention_heads": 8, "num_key_value_heads": 8,
        "vocab_size": n_vocab, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}))
    return end


def test_report(tmp_path):
    out, report = tmp_path / "demo.gguf", tmp_path / "report.json"
    done = tutti("convert", DEMO, out, "--type", "q4_k", "--report", "--report-file", report)
    lines = done.stdout.splitlines()
    found = json.loads(report.read_text())
    assert found["type"] == "q4_k_m"  # what q4_k stands for
    assert len(lines) == len(found["tensors"]) + 3
    by_name = {t["name"]: t for t in found["tensors"]}
    assert by_name["output.weight"]["type"] == "q6_k"
    assert by_name["token_embd.weight"]["type"] == "q4_k"
    assert by_name["blk.0.attn_norm.weight"]["type"] == "f32"
    assert by_name["blk.0.attn_norm.weight"]["relative_rms_error"] == 0
    assert 0.06 < by_name["blk.0.ffn_up.weight"]["relative_rms_error"] < 0.08
    assert by_name["blk.0.ffn_down.weight"]["wanted"] == "q4_k"
    assert by_name["blk.0.ffn_down.weight"]["type"] == "f16"
    assert any("ffn_down" in line and "does not fit q4_k" in line for line in lines)
    assert found["bytes"] == sum(t["bytes"] for t in found["tensors"]) < os.path.getsize(out)
    assert found["weights"] == sum(math.prod(t["shape"]) for t in found["tensors"])


def test_pure_is_smaller(tmp_path):
    for name, more in (("mixed", ()), ("pure", ("--pure",))):
        tutti("convert", DEMO, tmp_path / name, "--type", "q2_k", *more)
    assert os.path.getsize(tmp_path / "pure") < os.path.getsize(tmp_path / "mixed")


def test_every_type_is_named_when_none_fits():
    for command in (("convert", DEMO, "x.gguf"), ("generate", DEMO), ("serve", DEMO), ("inspect", DEMO),
                    ("bench", DEMO)):
        line = wrong(*command, "--type", "q4_k_x")
        for name in ("f32", "bf16", "q8_0", "q5_1", "q4_0", "q2_k", "q3_k_m", "q4_k_m", "q6_k"):
            assert name in line


def test_source_and_target_must_differ(tmp_path):
    out = tmp_path / "demo.gguf"
    tutti("convert", DEMO, out, "--type", "q8_0")
    before = out.read_bytes()
    assert "it is the checkpoint that is to be converted" in wrong("convert", out, out, "--type", "q4_0")
    os.symlink(out, tmp_path / "link.gguf")
    assert "it is the checkpoint" in wrong("convert", out, tmp_path / "link.gguf", "--type", "q4_0")
    assert "is the file to convert to" in wrong("convert", DEMO, out, "--report-file", tmp_path / "link.gguf")
    assert out.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["demo.gguf", "link.gguf"]


def test_full_disk_leaves_nothing(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = tutti("convert", DEMO, tmp_path / "x.gguf", "--type", "q8_0", preexec_fn=limit, check=1)
    assert "x.gguf: File too large" in done.stderr
    assert os.listdir(tmp_path) == []
    done = tutti("convert", DEMO, "/dev/full", "--type", "q8_0", check=1)
    assert "/dev/full exists already and is not a regular file" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_no_space_leaves_nothing(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], capture_output=True,
                      check=False).returncode != 0:
        pytest.skip("mount is not allowed here")
    try:
        done = tutti("convert", DEMO, tmp_path / "x.gguf", "--type", "q8_0", check=1)
        assert "x.gguf: No space left on device" in done.stderr
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("is_first", [False, True], ids=["", "process 1"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGXCPU])
def test_interrupt_leaves_nothing(number, is_first, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    write_llama(source, n_layers=8)
    args = ["convert", source, target / "x.gguf", "--type", "q2_k", "--threads", "1"]
    if is_first:
        process, pid = start_first(*args)
    else:
        process = subprocess.Popen([BIN, *args], stderr=subprocess.PIPE)
        pid = process.pid
    with process:
        deadline = time.monotonic() + PATIENCE
        while not any(f.stat().st_size > 1 << 20 for f in target.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(pid, number)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == (128 + number if is_first else -number)
    assert os.listdir(target) == []


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    write_llama(source, n_layers=8)
    args = [BIN, "convert", source, target / "x.gguf", "--type", "q2_k", "--threads", "1"]

    def start():
        before = set(os.listdir(target))
        process = subprocess.Popen(args, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while set(os.listdir(target)) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        name, = set(os.listdir(target)) - before
        assert name.startswith("x.gguf.unfinished-")
        return process, name

    running, written = start()
    with start()[0] as killed:
        killed.kill()
    others = ["x.gguf.unfinished-folder", "x.gguf.unfinished-longer1", "x.gguf.backup", "y.gguf.unfinished-abcdef"]
    (target / others[0]).mkdir()
    for name in others[1:]:
        (target / name).write_text("")
    tutti("convert", DEMO, target / "x.gguf")
    assert sorted(os.listdir(target)) == sorted(["x.gguf", written, *others])
    with running:
        running.send_signal(signal.SIGCONT)
    assert running.returncode == 0
    assert sorted(os.listdir(target)) == sorted(["x.gguf", *others])


def test_broken_weights_are_refused(tmp_path):
    write_llama(tmp_path, n_layers=1)
    path = tmp_path / "model.safetensors"
    whole = bytearray(path.read_bytes())
    n, = struct.unpack("<Q", whole[:8])
    begin = json.loads(whole[8:8 + n])["model.layers.0.self_attn.k_proj.weight"]["data_offsets"][0]
    for value, words, dtype in ((float("nan"), "infinite or NaN weights", "q4_0"), (float("-inf"), "infinite or NaN weights", "bf16"),
                                (1e6, "beyond the range of f16", "f16"), (1e7, "beyond the range of q8_0", "q8_0"), (3.4e38, "beyond the range of bf16", "bf16")):
        struct.pack_into("<f", whole, 8 + n + begin + 4 * (512 * 7 + 5), value)
        path.write_bytes(whole)
        done = tutti("convert", tmp_path, tmp_path / "x.gguf", "--type", dtype, check=1)
        assert "model.layers.0.self_attn.k_proj.weight: row 7 holds" in done.stderr and words in done.stderr
        assert not (tmp_path / "x.gguf").exists()
    tutti("convert", tmp_path, tmp_path / "x.gguf", "--type", "f32")


# Prints the peak memory of what it runs. A process of its own: a child's peak begins at what forked it.
PEAK = """import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(status)"""


def test_the_model_streams_through(tmp_path):
    """32 times the layers, or 200 times the vocabulary in one matrix, and hardly more memory. Mapped pages of the source count too
    while they are there."""
    peaks, sizes = [], []
    for n_layers, n_vocab in ((1, 512), (32, 512), (1, 102400)):
        folder = tmp_path / f"{n_layers}-{n_vocab}"
        folder.mkdir()
        sizes.append(write_llama(folder, n_layers, n_vocab=n_vocab))
        done = subprocess.run([sys.executable, "-c", PEAK, BIN, "convert", folder, folder / "x.gguf", "--type", "q8_0",
                               "--threads", "2"], stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
        peaks.append(int(done.stdout.split()[-1]))
    assert min(sizes[1:]) > 400e6
    if SANITIZED:  # what the sanitizers note of each mapped byte counts too, and what was freed is kept
        return
    assert peaks[1] < peaks[0] + 16e6 and peaks[1] < sizes[1] / 4
    assert peaks[2] < peaks[0] + 64e6
