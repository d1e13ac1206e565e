"""Embedding models that decode text: folders of sentence-transformers as Qwen3-Embedding is published, and the files made of them."""
import json
import math
import os
import shutil
import struct
import subprocess
import sys

import pytest

from conftest import BIN, PATIENCE, ROOT, Server

sys.path.insert(0, os.path.join(ROOT, "tests", "cli"))
from widened import widen  # noqa: E402

FIXTURES = os.path.join(ROOT, "tests", "fixtures")
EXACT = ("--type", "f32", "--kv-type", "f32")
TEXTS = ["The fox is quick.", "A longer text, of two sentences. The last token is the end of the text."]


def make_folder(folder, normalizes=True):
    """Tied weights, the last token's state, an end token after each text."""
    folder.mkdir()
    widen(os.path.join(FIXTURES, "llama-tiny-tied"), folder)
    shutil.copyfile(os.path.join(FIXTURES, "tokenizer", "folders", "llama.model"), folder / "tokenizer.model")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True, "bos_token": "<s>", "eos_token": "</s>",
        "unk_token": "<unk>", "legacy": True}), encoding="utf-8")
    names = ["Transformer", "Pooling"] + ["Normalize"] * normalizes
    modules = [{"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"sentence_transformers.models.{name}"}
               for i, name in enumerate(names)]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}),
                                                      encoding="utf-8")
    return folder


def make_bare(folder):
    """Without "model." in front of the names, as the class that does not generate saves them."""
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    n, = struct.unpack("<Q", whole[:8])
    header = {name.removeprefix("model."): info for name, info in json.loads(whole[8:8 + n]).items()}
    assert "embed_tokens.weight" in header
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + n:])
    return folder


def vectors(path, log):
    server = Server(path, *EXACT, log=log)
    reply = server.post("/v1/embeddings", {"input": TEXTS})
    assert reply.status_code == 200, reply.text
    server.wait_idle()
    assert server.stop() == 0, server.log()[-2000:]
    return [entry["embedding"] for entry in reply.json()["data"]]


@pytest.mark.parametrize("normalizes", [True, False])
def test_a_converted_folder_gives_the_same_vectors(normalizes, tmp_path):
    folder = make_folder(tmp_path / "model", normalizes)
    want = vectors(folder, tmp_path / "log")
    lengths = [math.sqrt(math.fsum(x * x for x in vector)) for vector in want]
    assert all((abs(length - 1) < 1e-4) == normalizes for length in lengths)
    for source, target in (folder, "first.gguf"), ("first.gguf", "second.gguf"):
        subprocess.run([BIN, "convert", tmp_path / source, tmp_path / target, "--type", "f32"], check=True, capture_output=True,
                       timeout=PATIENCE)
        got = vectors(tmp_path / target, tmp_path / "log")
        # GGUF has the rows of q and k in another order, which rounds their products otherwise.
        assert max(abs(a - b) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True)) <= 1e-5 * max(lengths)


def test_tensors_without_the_name_of_the_model_are_found(tmp_path):
    want = vectors(make_folder(tmp_path / "model"), tmp_path / "log")
    assert vectors(make_bare(make_folder(tmp_path / "bare")), tmp_path / "log") == want


def test_a_model_saved_without_its_head_makes_embeddings_only(tmp_path):
    """As Qwen3-Embedding-8B and e5-mistral are published: not tied, and without an output matrix."""
    want = vectors(make_folder(tmp_path / "model"), tmp_path / "log")
    folder = make_bare(make_folder(tmp_path / "headless"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["tie_word_embeddings"] is True
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}), encoding="utf-8")
    assert vectors(folder, tmp_path / "log") == want
    server = Server(folder, *EXACT, log=tmp_path / "log")
    reply = server.post("/v1/completions", {"prompt": "The fox", "max_tokens": 1})
    assert reply.status_code == 400 and "only makes embeddings" in reply.json()["error"]["message"]
    assert server.get("/v1/models").json()["data"][0]["capabilities"] == ["embeddings", "rerank"]
    server.wait_idle()
    assert server.stop() == 0, server.log()[-2000:]
    done = subprocess.run([BIN, "generate", folder, "-p", "The fox"], capture_output=True, timeout=PATIENCE)
    assert done.returncode in (1, 2) and b"has no output matrix" in done.stderr
