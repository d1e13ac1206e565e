"""tutti plan: from a file of rates to figures, and what is wrong with such a file."""
import json
import os
import statistics

import pytest

from test_cli import DEMO, FIXTURES, SANITIZED, tutti, wrong

# The shape "tiny" in Q4_0, by hand: bytes of its matrices, and operations of a row with logits.
MATRIX_BYTES = (4 * (256 * 384 + 256 * 256 + 3 * 256 * 704) + 256 * 4096) * 18 // 32
ROW_OPS = 2 * (4 * 256 * (384 + 256 + 3 * 704) + 256 * 4096)
KV_BYTES = 2 * 4 * 2 * 32 * 2  # of a token, in f16
# Rates: 2 GB/s and 10 Gop/s; attention reads 0.5 GB/s, half of what it could, and its arithmetic costs nothing.
GBPS, GOPS, ATTENTION_GBPS = 2.0, 10.0, 0.5


def overlap(a, b):
    return (a**4 + b**4)**0.25


def seconds(rows, context, tp=1):
    return (overlap(MATRIX_BYTES / tp / GBPS / 1e9, rows * ROW_OPS / tp / GOPS / 1e9) +
            rows * (context + 1) * KV_BYTES / tp / ATTENTION_GBPS / 1e9)


def rates():
    def step(rows, context):
        return {"phase": "decode", "users": rows, "context": context, "tokens": rows, "tok_s": rows / seconds(rows, context),
                "matrix_bytes": MATRIX_BYTES, "kv_bytes": rows * (context + 1) * KV_BYTES, "linear_ops": rows * ROW_OPS,
                "attention_ops": 1}

    return {"model": "tiny", "type": "q4_0", "kv_type": "f16", "threads": 2, "read_gbps": 1.0, "peak_f32_gflops": 1e9,
            "results": [step(1, 64), step(8, 64), step(32, 64)],
            "attention": [{"kv_type": kv, "context": context, "rows": rows, "row_ms": 1e3 * context * KV_BYTES / gbps / 1e9,
                           "read_bytes": context * KV_BYTES, "read_gbps": 1.0, "gflops": 1.0, "of_f32": 1e-9}
                          for kv, context, rows, gbps in (("f16", 128, 1, 7), ("f16", 1024, 1, ATTENTION_GBPS),
                                                          ("f16", 1024, 64, 9), ("int8", 4096, 1, 9))]}


def write(path, content):
    path.write_text(json.dumps(content))
    return path


def near(found, expected):
    return abs(found - expected) <= 1e-4 * abs(expected)


def test_figures_follow_from_the_rates(tmp_path):
    path = write(tmp_path / "rates.json", rates())
    plan = json.loads(tutti("plan", "tiny", "--rates", path, "--hosts", 2, "--link", 8, "--latency", 10, "--memory", "1G",
                            "--context", 200, "--users", "1,40,100000", "--json").stdout)
    assert near(plan["rates"]["linear_gbps"], GBPS) and near(plan["rates"]["linear_gops"], GOPS)
    assert near(plan["rates"]["attention_gbps"], ATTENTION_GBPS)
    one, two = plan["layouts"]
    assert (one["tp"], one["dp"], two["tp"], two["dp"]) == (1, 2, 2, 1)
    points = one["points"]
    assert near(points[0]["tok_s"], 1 / seconds(1, 200))
    assert near(points[1]["tok_s"], 40 / seconds(20, 200))  # two replicas of 20
    assert near(points[1]["user_tok_s"], 1 / seconds(20, 200)) and points[1]["network_ms"] == 0
    assert points[1]["fits"] and not points[2]["fits"]
    # 9 sums of 40 KiB take two exchanges, of half of them each; the step's plan, and half of 40 rows of logits
    network = 9 * 2 * (10e-6 + 40 * 256 * 4 / 2 / 1e9) + 10e-6 + 10e-6 + 40 * 4096 * 4 / 2 / 1e9
    assert near(two["points"][1]["network_ms"], network * 1e3)
    assert near(two["points"][1]["tok_s"], 40 / (seconds(40, 200, tp=2) + network))
    assert plan["best_throughput"]["users"] == 40
    assert plan["best_one_user"]["users"] == 1
    table = tutti("plan", "tiny", "--rates", path, "--hosts", 2, "--memory", "1G", "--context", 200,
                  "--users", "40,100000").stdout
    assert "no memory" in table and "best for throughput: tp " in table


def test_steps_that_were_measured_are_predicted(tmp_path):
    """The model that the rates come from, on the same machine: what was measured comes out again."""
    content = rates()
    path = write(tmp_path / "rates.json", content)
    plan = json.loads(tutti("plan", "tiny", "--rates", path, "--context", 64, "--users", "1,8,32", "--json").stdout)
    for point, step in zip(plan["layouts"][0]["points"], content["results"]):
        assert near(point["tok_s"], step["tok_s"])


def test_more_cores_and_bandwidth_scale_the_rates(tmp_path):
    path = write(tmp_path / "rates.json", rates())
    call = ["plan", "tiny", "--rates", path, "--users", "1", "--json"]
    before, after = (json.loads(tutti(*call, *more).stdout)["layouts"][0]["points"][0]
                     for more in ((), ("--cores", 8, "--bandwidth", 3)))
    assert near(after["memory_ms"], before["memory_ms"] / 3) and near(after["arithmetic_ms"], before["arithmetic_ms"] / 4)


@pytest.mark.parametrize("model", ["llama-tiny", "qwen3-tiny", "glm4-tiny", "pangu-tiny", "gguf/llama-tiny-q4_0.gguf"])
def test_checkpoints_are_planned_from_their_headers(model, tmp_path):
    """Memory is what inspect says the weights take; a cut model's is the same."""
    path = os.path.join(FIXTURES, model)
    want = json.loads(tutti("inspect", path, "--json").stdout)
    content = rates()
    content["type"] = want["weight_type"]
    rates_path = write(tmp_path / "rates.json", content)
    plan = json.loads(tutti("plan", path, "--rates", rates_path, "--context", 10, "--json").stdout)
    assert plan["type"] == want["weight_type"]
    assert plan["layouts"][0]["weight_bytes"] == want["weight_bytes"]
    assert plan["layouts"][0]["user_bytes"] == 16 * want["kv_bytes_per_token"]
    if not model.endswith("gguf"):
        tutti("shard", path, tmp_path / "cut", "--tp", 2)
        cut = json.loads(tutti("plan", tmp_path / "cut", "--rates", rates_path, "--context", 10, "--json").stdout)
        assert cut["layouts"] == plan["layouts"]


def test_heads_decide_which_layouts_there_are(tmp_path):
    content = rates()
    content["type"] = "f16"
    plan = json.loads(tutti("plan", "gpt2", "--type", "f16", "--rates", write(tmp_path / "r.json", content), "--hosts", 8,
                            "--context", 100, "--json").stdout)
    assert [(layout["tp"], layout["dp"]) for layout in plan["layouts"]] == [(1, 8), (2, 4), (3, 2), (4, 2), (6, 1)]


def faults():
    def put(*path, value):
        def change(content):
            *parents, last = path
            for key in parents:
                content = content[key]
            if value is None:
                del content[last]
            else:
                content[last] = value
        return change

    return [
        (put("type", value="f16"), "type: f16 weights were measured, but the model runs as q4_0"),
        (put("type", value=None), "type: no weights were measured"),
        (put("threads", value="2"), "threads: a string, expected a number"),
        (put("read_gbps", value=0), "read_gbps: 0, expected a positive number"),
        (put("results", value={}), "results: an object, expected a list"),
        (put("results", 1, value=7), "results[1].tokens: nothing, expected a number"),
        (put("results", 2, "tok_s", value=-1), "results[2].tok_s: -1, expected a positive number"),
        (put("results", 0, "matrix_bytes", value=None), "results[0].matrix_bytes: nothing, expected a number, as tutti bench"),
        (put("results", value=[]), "steps of 0 to 0 rows were measured, expected one of at most 4"),
        (put("results", 2, "tok_s", value=1e12), "do not tell reading from computing"),
        (put("attention", 1, "of_f32", value=0), "attention[1].of_f32: 0, expected a positive number"),
        (put("attention", 0, value=[]), "attention[0].rows: nothing, expected a number"),
    ]


FAULTS = faults()


@pytest.mark.parametrize("change,said", FAULTS, ids=[said[:40] for _, said in FAULTS])
def test_a_wrong_file_of_rates_is_told_what_is_wrong(change, said, tmp_path):
    content = rates()
    change(content)
    path = write(tmp_path / "rates.json", content)
    done = tutti("plan", "tiny", "--rates", path, check=2 if "steps" in said or "tell" in said else 1)
    assert f"{path}: " in done.stderr and said in done.stderr


def test_wrong_calls_are_told(tmp_path):
    path = write(tmp_path / "rates.json", rates())
    assert "expected MODEL" in wrong("plan")
    assert "--context: found 5000, expected at most 2047" in wrong("plan", "tiny", "--rates", path, "--context", 5000)
    assert "/nowhere: no such file or folder" in tutti("plan", "/nowhere", check=1).stderr
    assert "/nowhere: No such file" in tutti("plan", DEMO, "--rates", "/nowhere", check=1).stderr
    assert "--link" in wrong("plan", "tiny", "--link", 0)


@pytest.mark.skipif(SANITIZED, reason="a sanitizer's kernels compute so slowly that reading does not show")
def test_without_a_file_the_machine_is_measured():
    plan = json.loads(tutti("plan", "tiny", "--users", "1", "--threads", "1", "--json").stdout)
    assert plan["rates"]["cores"] == 1
    assert all(plan["rates"][key] > 0 for key in ("read_gbps", "linear_gbps", "linear_gops", "attention_gbps"))
    assert plan["layouts"][0]["points"][0]["tok_s"] > 0


def test_predictions_are_held_against_the_whole_model():
    said = json.loads(tutti("plan", "tiny", "--check", "--users", "1,4", "--threads", "1", "--context", 40, "--json").stdout)
    assert [(c["phase"], c["users"], c["tokens"]) for c in said["check"]] == [("decode", 1, 1), ("decode", 4, 4), ("prefill", 1, 256)]
    assert 1 <= said["rounds"] <= 5 and said["context"] == 40
    for c in said["check"]:
        assert c["predicted_tok_s"] > 0 and c["measured_tok_s"] > 0
        assert len(c["rounds"]) == said["rounds"]
        ratios = sorted(r["predicted_tok_s"] / r["measured_tok_s"] - 1 for r in c["rounds"])
        assert c["deviation"] == pytest.approx(statistics.median(ratios), rel=1e-6, abs=1e-6)
    table = tutti("plan", "tiny", "--check", "--users", "2", "--threads", "1", "--context", 40).stdout
    assert "off by" in table and len(table.splitlines()) == 5
    for more in (["--hosts", "2"], ["--cores", "4"], ["--bandwidth", "9"], ["--rates", "x"]):
        assert "--check measures this machine" in wrong("plan", "tiny", "--check", *more)
    assert "--users: found 5000, at most 4096 are measured" in wrong("plan", "tiny", "--check", "--users", 5000)


def test_it_says_that_it_measures_and_for_how_long():
    assert "measuring this machine's kernels for about 10 s" in tutti("plan", "tiny", "--threads", 1).stderr


def test_a_model_of_a_wrong_kind_is_refused_before_anything_is_measured(tmp_path):
    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (bert / "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")
    for model, said in ((bert, "config.json: model_type \"bert\" is not supported, expected one of"),
                        (os.path.join(FIXTURES, "gguf", "tiny-types.gguf"), "general.architecture \"tiny\" is not supported"),
                        (os.path.join(FIXTURES, "gguf", "quality.json"), "it is neither GGUF nor safetensors"),
                        (tmp_path, "there is neither config.json nor"),
                        ("org/name", "hf download org/name")):
        done = tutti("plan", model, check=1)
        assert said in done.stderr and "measuring" not in done.stderr and done.stdout == ""


def test_with_rates_nothing_is_measured(tmp_path):
    assert tutti("plan", "tiny", "--rates", write(tmp_path / "rates.json", rates())).stderr == ""
