"""tutti plan: what a machine holds, how many users fit, and how many machines a number of users needs."""
import json
import os
import re

import pytest

from test_cli import DEMO, FIXTURES, tutti, wrong

# The shape "tiny" in Q4_0, calculated by hand: 4 layers, the embedding and the output; norms in f32.
LAYER_BYTES = 4 * (256 * 384 + 256 * 256 + 3 * 256 * 704) * 18 // 32
VOCAB_BYTES = 256 * 4096 * 18 // 32
NORM_BYTES = 9 * 256 * 4
KV_BYTES = 2 * 4 * 2 * 32 * 2  # of a token, in f16


def plan(*args):
    done = tutti("plan", *args, "--json")
    assert done.stderr == ""  # nothing is measured
    return json.loads(done.stdout)


def test_figures_of_a_known_shape():
    weights = LAYER_BYTES + 2 * VOCAB_BYTES + NORM_BYTES
    user = 208 * KV_BYTES  # 200 tokens take 13 pages
    memory = weights + 10 * user + user // 2
    said = plan("tiny", "--hosts", 2, "--memory", memory, "--context", 200, "--users", "1,10,11,1048576")
    assert (said["model"], said["type"], said["kv_type"]) == ("tiny", "q4_0", "f16")
    assert (said["context"], said["memory_bytes"], said["hosts"]) == (200, memory, 2)
    one, two = said["layouts"]
    assert one == {"tp": 1, "dp": 2, "heads": 8, "kv_heads": 2, "weight_bytes": weights, "user_bytes": user, "users_fit": 20}
    half = (LAYER_BYTES + 2 * VOCAB_BYTES) / 2 + NORM_BYTES
    assert two == {"tp": 2, "dp": 1, "heads": 4, "kv_heads": 1, "weight_bytes": half, "user_bytes": user / 2,
                   "users_fit": (memory - half) // (user / 2)}
    assert said["fewest_hosts"] == [{"users": 1, "hosts": 1, "tp": 1, "dp": 1}, {"users": 10, "hosts": 1, "tp": 1, "dp": 1},
                                    {"users": 11, "hosts": 2, "tp": 1, "dp": 2}, {"users": 1048576, "hosts": None}]


def test_the_table_shows_the_same_figures():
    said = plan("llama-7b", "--hosts", 4, "--memory", "16G", "--context", 2048, "--users", "1,64,1000000")
    table = tutti("plan", "llama-7b", "--hosts", 4, "--memory", "16G", "--context", 2048, "--users", "1,64,1000000").stdout
    assert "llama-7b: q4_0 weights, f16 keys and values; 2048 tokens of context per user" in table
    assert "4 machines, each with 16.0 GiB for weights, keys and values" in table
    rows = [line.split() for line in table.splitlines()]
    for layout in said["layouts"]:
        assert any(r[:4] == [str(layout[k]) for k in ("tp", "dp", "heads", "kv_heads")] and r[-1] == str(layout["users_fit"])
                   for r in rows), (layout, table)
    few = said["fewest_hosts"][1]
    assert f"      64  {few['hosts']} (tp {few['tp']}, dp {few['dp']})" in table
    assert " 1000000  more than 64" in table


@pytest.mark.parametrize("model", ["llama-tiny", "qwen3-tiny", "glm4-tiny", "pangu-tiny", "gguf/llama-tiny-q4_0.gguf", "glm4-moe-tiny"])
def test_checkpoints_are_planned_from_their_headers(model, tmp_path):
    """The memory is the same as that of inspect, and that of a sharded checkpoint the same as of the whole."""
    path = os.path.join(FIXTURES, model)
    want = json.loads(tutti("inspect", path, "--json", "--memory", "1G").stdout)
    said = plan(path, "--memory", "1G")
    assert said["type"] == want["weight_type"] and said["context"] == want["context"]
    assert said["layouts"][0]["weight_bytes"] == want["weight_bytes"]
    assert said["layouts"][0]["users_fit"] == want["users"]
    assert plan(path, "--context", 10)["layouts"][0]["user_bytes"] == 16 * want["kv_bytes_per_token"]
    if not model.endswith("gguf"):
        tutti("shard", path, tmp_path / "cut", "--tp", 2)
        assert plan(tmp_path / "cut", "--memory", "1G")["layouts"] == said["layouts"]


@pytest.mark.parametrize("weight_type", ["q8_0", "f16", "q4_k_m"])
def test_the_type_of_the_weights_decides_their_size(weight_type):
    """As inspect says, which adds them up tensor by tensor."""
    want = json.loads(tutti("inspect", DEMO, "--json", "--type", weight_type, "--kv-type", "int8").stdout)
    said = plan(DEMO, "--type", weight_type, "--kv-type", "int8", "--context", 16)
    assert said["layouts"][0]["weight_bytes"] == want["weight_bytes"] and said["type"] == want["weight_type"]
    assert said["layouts"][0]["user_bytes"] == 16 * want["kv_bytes_per_token"] and said["kv_type"] == "int8"


def test_parameters_that_a_token_uses_are_told_from_all():
    """The figures that the publishers give; those of GLM are without embedding and output matrix, 1.2 billion."""
    for name, everything, active in (("qwen3-30b-a3b", 30.5, 3.3), ("glm-4.5-air", 105.7 + 1.2, 12.1 + 1.2),
                                     ("deepseek-v2-lite", 15.7, 2.4), ("phi-4-mini", 3.84, 3.84), ("gemma-3-4b", 3.88, 3.88),
                                     ("gemma-4-26b-a4b", 25.2, 3.8), ("gpt-oss-20b", 20.9, 3.6 + 0.6)):  # without the embedding
        said = plan(name)
        assert abs(said["params"] / 1e9 - everything) < 0.1 and abs(said["active_params"] / 1e9 - active) < 0.3
        active = f", {said['active_params'] / 1e9:.2f} billion active for each" if said["active_params"] < said["params"] else ""
        assert f"{said['params'] / 1e9:.2f} billion parameters{active}" in tutti("plan", name).stdout
    said = plan("tiny")
    assert said["params"] == said["active_params"] == 4 * (256 * 384 + 256 * 256 + 3 * 256 * 704) + 2 * 256 * 4096 + 9 * 256
    assert "active" not in tutti("plan", "tiny").stdout


@pytest.mark.parametrize("name,layers", [("deepseek-v2-lite", 27), ("glm-4.7-flash", 47)])
def test_latent_attention_stores_latents_and_rotary_parts_only(name, layers):
    """512 and 64 elements of a position in each layer, whatever the number of heads; int8 has a scale for each of the two."""
    for kv_type, row in (("f16", 2 * (512 + 64)), ("bf16", 2 * (512 + 64)), ("f32", 4 * (512 + 64)), ("int8", 512 + 4 + 64 + 4)):
        assert plan(name, "--context", 16, "--kv-type", kv_type)["layouts"][0]["user_bytes"] == 16 * layers * row


@pytest.mark.parametrize("name", ["mixtral-tiny", "qwen2-moe-tiny", "qwen3-moe-tiny-mixed", "glm4-moe-tiny",
                                  "experts/mixtral-tiny.gguf", "experts/qwen2-moe-tiny-merged"])
def test_experts_are_planned_and_reported_from_their_headers(name):
    path = os.path.join(FIXTURES, name)
    said, info = plan(path, "--type", "q8_0"), json.loads(tutti("inspect", path, "--type", "q8_0", "--json").stdout)
    assert said["layouts"][0]["weight_bytes"] == info["weight_bytes"]
    assert said["active_params"] < said["params"]
    assert info["params"] - info["active_params"] == said["params"] - said["active_params"]
    assert " experts of " in tutti("inspect", path, "--no-tensors").stdout


def test_heads_decide_which_layouts_there_are():
    said = plan("gpt2", "--type", "f16", "--hosts", 8, "--context", 100)
    assert [(layout["tp"], layout["dp"]) for layout in said["layouts"]] == [(1, 8), (2, 4), (3, 2), (4, 2), (6, 1)]


def test_where_no_user_fits_the_plan_says_what_would():
    """The type that it names fits as it says, and the next larger one does not."""
    said = plan("qwen3-30b-a3b", "--memory", "16G")
    assert [layout["users_fit"] for layout in said["layouts"]] == [0]
    part, whole = said["fits"]
    assert part["context"] < whole["context"] == said["context"] and part["weight_bytes"] > whole["weight_bytes"]
    for fits in (part, whole):
        fit = plan("qwen3-30b-a3b", "--memory", "16G", "--type", fits["type"], "--context", fits["context"])["layouts"][0]
        assert fit["weight_bytes"] == pytest.approx(fits["weight_bytes"], rel=1e-8) and fit["users_fit"] == fits["users"] >= 1
    more = plan("qwen3-30b-a3b", "--memory", "16G", "--type", part["type"], "--context", part["context"] + 16)
    assert more["layouts"][0]["users_fit"] == 0
    table = tutti("plan", "qwen3-30b-a3b", "--memory", "16G").stdout
    assert f"Not one user fits. On one machine, --type {part['type']} needs " in table
    assert f"{part['users']} user of {part['context']} tokens (--context {part['context']}); --type {whole['type']} needs " in table
    assert plan("qwen3-30b-a3b", "--memory", "64G")["fits"] == []
    assert "even --type q2_k needs 9600M, without keys and values" in tutti("plan", "qwen3-30b-a3b", "--memory", "8G").stdout


def test_a_model_that_does_not_fit_is_refused_as_the_plan_says():
    sizes = json.loads(tutti("inspect", DEMO, "--json").stdout)
    memory = sizes["weight_bytes"] * 2 // 3
    said = tutti("generate", DEMO, "-p", "x", "--memory", memory, check=1).stderr
    fits = plan(DEMO, "--memory", memory)["fits"]
    assert re.search(rf"the weights need \d+[KM] as {sizes['weight_type']}, but \d+[KM] of memory are given: "
                     rf"--type {fits[0]['type']} needs ", said) and "tutti convert --type writes a file of that type" in said
    assert "--kv-memory of 1024T, but " in tutti("generate", DEMO, "-p", "x", "--kv-memory", "1024T", check=1).stderr
    assert tutti("generate", DEMO, "-p", "x", "-n", 1, "--memory", memory, "--type", fits[0]["type"]).returncode == 0


def test_without_memory_it_is_what_is_left():
    with open("/proc/meminfo", encoding="ascii") as file:
        total = int(file.readline().split()[1]) * 1024
    assert 0 < plan("tiny")["memory_bytes"] <= total


def test_wrong_calls_are_told():
    assert "expected MODEL" in wrong("plan")
    assert "--context: found 5000, expected at most 2048 for this model" in wrong("plan", "tiny", "--context", 5000)
    assert "/nowhere: no such file or folder" in tutti("plan", "/nowhere", check=1).stderr
    assert "--hosts: found '65', expected a whole number from 1 to 64" in wrong("plan", "tiny", "--hosts", 65)
    for gone in ("--link", "--rates", "--check"):
        assert gone in wrong("plan", "tiny", gone, 1)


def test_a_model_of_a_wrong_kind_is_refused(tmp_path):
    other = tmp_path / "t5"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"model_type": "t5"}))
    (other / "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")
    for model, said in ((other, "config.json: model_type \"t5\" is not supported; docs/models.md has"),
                        (os.path.join(FIXTURES, "gguf", "tiny-types.gguf"), "general.architecture \"tiny\" is not supported"),
                        (os.path.join(FIXTURES, "gguf", "quality.json"), "it is neither GGUF nor safetensors"),
                        (tmp_path, "there is neither config.json nor"),
                        ("org/name", "hf:org/name")):
        done = tutti("plan", model, check=1)
        assert said in done.stderr and done.stdout == ""


def test_the_layer_for_multi_token_prediction_is_counted():
    model = os.path.join(FIXTURES, "mtp", "deepseek-v3")
    without, counted = (plan(model, "--hosts", 2, *more) for more in ((), ("--draft", "mtp")))
    for report in without, counted:
        assert [layout["tp"] for layout in report["layouts"]] == [1, 2]
    for one, other in zip(counted["layouts"], without["layouts"]):
        assert one["weight_bytes"] > other["weight_bytes"]
    row = 72 * 4 / 16  # of a page of 16 tokens
    token, more = (report["layouts"][0]["user_bytes"] / report["context"] for report in (without, counted))
    assert more == token * 3 / 2 + row
    said = [json.loads(tutti("inspect", model, "--no-tensors", "--json", *more).stdout) for more in ((), ("--draft", "mtp"))]
    assert [(report["mtp_layers"], report["uses_mtp"]) for report in said] == [(1, False), (1, True)]
    assert [report["weight_bytes"] for report in said] == [report["layouts"][0]["weight_bytes"] for report in (without, counted)]
    assert "1 for multi-token prediction: counted" in tutti("inspect", model, "--draft", "mtp").stdout
    for command in "plan", "inspect":
        said = tutti(command, os.path.join(FIXTURES, "llama-tiny"), "--draft", "mtp", check=1).stderr
        assert "has no layer for multi-token prediction" in said
