"""tutti perplexity: figures, windows, the file for comparisons, and what it refuses."""
import json
import math
import os

import pytest

from test_cli import COMMANDS, DEMO, FIXTURES, read_safetensors, tutti, wrong

STORY = ("Once upon a time there was a small fox named Mia. She lived in a green forest. One morning Mia could not "
         "find her red ball. She looked under the bed, but it was not there. Then she met an old owl named Tom. ")
EXACT = ["--type", "f32", "--kv-type", "f32"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text("".join(STORY.replace("Mia", name) for name in ("Mia", "Lily", "Ava", "Zoe", "Ella", "Ruby")))
    return path


def figures(*args, **more):
    return json.loads(tutti("perplexity", *args, "--json", **more).stdout)


def by_hand(ids, context, tmp_path):
    """Perplexity and its error from the logits of each window, in Python's doubles."""
    nll = []
    for begin in range(0, len(ids) - context + 1, context):
        window = ids[begin:begin + context]
        tutti("logits", DEMO, "--ids", ",".join(map(str, window)), "--out", tmp_path / "l", *EXACT)
        _, (_, n_vocab), logits = read_safetensors(tmp_path / "l")["logits"]
        for p in range(context // 2, context - 1):
            row = logits[p * n_vocab:(p + 1) * n_vocab]
            nll.append(math.log(sum(map(math.exp, row))) - row[window[p + 1]])
    mean = sum(nll) / len(nll)
    variance = sum(x * x for x in nll) / len(nll) - mean * mean
    return math.exp(mean), math.exp(mean) * math.sqrt(variance / (len(nll) - 1)), len(nll)


def test_figures_are_those_of_the_logits(text, tmp_path):
    ids = [int(i) for i in tutti("tokenize", DEMO, text.read_text(), "--ids").stdout.split(",")]
    found = figures(DEMO, text, "--context", "48", *EXACT)
    value, error, n = by_hand(ids, 48, tmp_path)
    assert found["scored"] == n and found["windows"] == len(ids) // 48
    assert found["perplexity"] == pytest.approx(value, rel=1e-5)
    assert found["perplexity_error"] == pytest.approx(error, rel=1e-3)
    again = figures(DEMO, "--ids", ",".join(map(str, ids)), "--context", "48", *EXACT)
    assert {**again, "ids_per_second": 0} == {**found, "ids_per_second": 0}
    (tmp_path / "ids").write_text(" ".join(map(str, ids)))
    again = figures(DEMO, "--ids", f"@{tmp_path / 'ids'}", "--context", "48", *EXACT)
    assert again["perplexity"] == found["perplexity"]
    assert figures(DEMO, "-", "--context", "48", *EXACT, stdin=text.read_text())["perplexity"] == found["perplexity"]


def test_chunks_stride_and_threads(text):
    one = figures(DEMO, text, "--context", "64", "--chunks", "1")
    assert one["windows"] == 1 and one["scored"] == 31 and one["read"] == 64
    for threads in ("1", "2"):
        strided = figures(DEMO, text, "--context", "64", "--stride", "16", "--threads", threads)
        assert strided["scored"] == 16 * strided["windows"] and strided["step"] == 16
        assert strided["perplexity"] == pytest.approx(figures(DEMO, text, "--context", "64", "--stride",
                                                              "16")["perplexity"], rel=0)
    prefixed = figures(DEMO, text, "--context", "64", "--text-prefix")
    assert prefixed["perplexity"] != figures(DEMO, text, "--context", "64")["perplexity"]


def test_a_base_tells_models_apart(text, tmp_path):
    base, converted = tmp_path / "demo.base", tmp_path / "demo.gguf"
    plain = figures(DEMO, text, "--context", "64", "--save-logits", base, *EXACT)
    same = figures(DEMO, "--kl", base, *EXACT)
    assert same["perplexity"] == plain["perplexity"]
    assert same["base_perplexity"] == pytest.approx(plain["perplexity"], rel=1e-6)
    assert same["kl"] < 1e-6 and same["same_top"] == 1 and abs(same["log_ratio"]) < 1e-6
    previous = same["kl"]
    for dtype in ("q8_0", "q5_k_m", "q4_k_m", "q2_k"):
        tutti("convert", DEMO, converted, "--type", dtype)
        found = figures(converted, "--kl", base)
        assert found["scored"] == plain["scored"]
        assert previous < found["kl"] < 1
        assert found["kl_median"] < found["kl_99"] < found["kl_max"]
        assert found["log_ratio"] == pytest.approx(math.log(found["perplexity"] / found["base_perplexity"]), abs=1e-6)
        previous = found["kl"]
    assert found["same_top"] < 1
    lines = tutti("perplexity", converted, text, "--kl", base).stdout
    assert "KL divergence, mean" in lines and "same most probable token" in lines
    assert figures(converted, "--kl", base, "--chunks", "2")["windows"] == 2


def test_a_model_is_a_base_as_its_saved_opinions_are(text, tmp_path):
    base, converted = tmp_path / "demo.base", tmp_path / "demo.gguf"
    tutti("convert", DEMO, converted, "--type", "q4_0")
    for context in ("64", "300"):
        tutti("perplexity", DEMO, text, "--context", context, "--save-logits", base)
        saved = {**figures(converted, "--kl", base), "ids_per_second": 0}
        with_kl = {**figures(converted, text, "--context", context, "--kl", DEMO), "ids_per_second": 0}
        assert with_kl == saved
        assert {**figures(DEMO, text, "--context", context, "--type", "q4_0", "--kl", DEMO), "ids_per_second": 0} == saved
    strided = figures(converted, text, "--context", "64", "--stride", "16", "--text-prefix", "--kl", DEMO)
    assert strided["scored"] == 16 * strided["windows"] and 0 < strided["kl"] < 1
    same = figures(converted, text, "--context", "64", "--kl", converted)
    assert same["kl"] < 1e-6 and same["same_top"] == 1
    kv = figures(converted, text, "--context", "64", "--kv-type", "int8", "--kl", converted)
    assert 0 < kv["kl"] < with_kl["kl"]


def test_bases_of_others_are_refused(text, tmp_path):
    base = tmp_path / "demo.base"
    tutti("perplexity", DEMO, text, "--context", "64", "--save-logits", base)
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("forest", "garden"))
    assert "was made from another text than" in wrong("perplexity", DEMO, other, "--kl", base)
    done = tutti("perplexity", os.path.join(FIXTURES, "llama-tiny"), "--kl", base, check=2)
    assert "demo.base: has a vocabulary of 4160, but the model one of 317" in done.stderr
    whole = base.read_bytes()
    for broken, words in ((whole[:-1], "it is cut off"), (b"", "no file of log-probabilities"),
                          (b"x" * 200, "does not begin with")):
        base.write_bytes(broken)
        done = tutti("perplexity", DEMO, "--kl", base, check=1)
        assert words in done.stderr and str(base) in done.stderr
    assert "No such file" in tutti("perplexity", DEMO, "--kl", tmp_path / "none", check=1).stderr
    llama = os.path.join(FIXTURES, "llama-tiny")
    assert f"--kl: {llama} is a model, expected FILE or --ids LIST for both to read" in wrong("perplexity", DEMO, "--kl", llama)
    done = tutti("perplexity", DEMO, text, "--context", "64", "--kl", llama, check=2)
    assert "llama-tiny: has a vocabulary of 317, but the model one of 4160" in done.stderr
    assert "config.json" in tutti("perplexity", DEMO, text, "--context", "64", "--kl", tmp_path, check=1).stderr


def test_wrong_calls(text, tmp_path):
    assert "expected FILE, --ids LIST or --kl BASE" in wrong("perplexity", DEMO)
    assert "expected either FILE or --ids" in wrong("perplexity", DEMO, text, "--ids", "1,2")
    assert "exclude each other" in wrong("perplexity", DEMO, text, "--kl", "x", "--save-logits", "y")
    assert "expected no --context" in wrong("perplexity", DEMO, "--kl", "x", "--context", "64")
    assert "expected less than the 64 ids" in wrong("perplexity", DEMO, text, "--context", "64", "--stride", "64")
    short = tmp_path / "short.txt"
    short.write_text("Hello.")
    assert "expected at least the 512 of a window" in wrong("perplexity", DEMO, short)
    assert "token id 4160 at" in wrong("perplexity", DEMO, "--ids", "5,17,4160,9", "--context", "4")
    done = tutti("perplexity", DEMO, text, "--context", "64", "--save-logits", tmp_path / "no" / "base", check=1)
    assert "No such file" in done.stderr
    assert "perplexity" in COMMANDS
