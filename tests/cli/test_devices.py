"""What tutti tells of cards: tutti devices, and inspect and plan with --device, on the stand-in for NVIDIA's driver (tests/cuda) and without any."""
import json
import os
import re

import pytest

from test_cli import DEMO, ROOT, tutti

STANDIN = os.path.join(os.environ.get("TUTTI_BUILD", os.path.join(ROOT, "build")), "tests", "cuda")
GIB = 1 << 30


@pytest.fixture
def cards(monkeypatch):
    def set_up(n=1, **settings):
        monkeypatch.setenv("LD_LIBRARY_PATH", STANDIN)
        monkeypatch.setenv("TUTTI_STANDIN_CARDS", str(n))
        for name, value in settings.items():
            monkeypatch.setenv(f"TUTTI_STANDIN_{name}", str(value))
    return set_up


@pytest.fixture
def no_driver(monkeypatch, tmp_path):
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


def test_every_card_is_listed(cards):
    cards(3, LEVEL=90, MEMORY=4 * GIB)
    said = json.loads(tutti("devices", "--json").stdout)
    assert [card["device"] for card in said["devices"]] == ["cuda:0", "cuda:1", "cuda:2"] and said["missing"] is None
    assert said["devices"][2] == {"device": "cuda:2", "name": "Emulator 2", "compute_capability": "9.0", "kernels": 90, "cuda": "12.4",
                                  "multiprocessors": 8, "clock_mhz": 1500, "memory_gbps": 256.0, "memory_bytes": 4 * GIB + 2,
                                  "free_bytes": 4 * GIB}
    table = tutti("devices").stdout
    assert re.search(r"^cuda:1 +Emulator 1 +4\.0 GiB +4\.0 GiB +9\.0 +12\.4 +level 90$", table, re.M)
    assert re.search(r"^cpu .* [\d.]+ [MG]iB$", table, re.M)
    assert tutti("--list-devices").stdout.splitlines()[:4] == table.splitlines()[:4]


@pytest.mark.parametrize("level, version, kernels", [(70, 12040, None), (75, 12040, 75), (86, 12040, 80), (90, 11080, 80), (120, 12040, 80)])
def test_the_level_of_kernels_is_that_which_would_run(cards, level, version, kernels):
    cards(LEVEL=level, VERSION=version)
    assert json.loads(tutti("devices", "--json").stdout)["devices"][0]["kernels"] == kernels
    assert ("level" in tutti("devices").stdout.splitlines()[1]) == (kernels is not None)


def test_without_a_card_it_says_why(no_driver):
    del no_driver
    assert re.search(r"^No cards: device cuda: .*libcuda\.so\.1.*NVIDIA_DRIVER_CAPABILITIES", tutti("devices").stdout, re.M)
    said = json.loads(tutti("devices", "--json").stdout)
    assert said["devices"] == [] and "libcuda.so.1" in said["missing"]


@pytest.mark.parametrize("call, known", [("cuDevicePrimaryCtxRetain", True), ("cuMemGetInfo_v2", True), ("cuDeviceGetName", False),
                                         ("cuDeviceGetCount", False)])
def test_a_card_that_fails_is_told(cards, call, known):
    cards(FAIL=f"{call}:1:999")
    done = tutti("devices", check=0 if known else 1)
    assert ("not known" in done.stdout) == known and ("CUDA_ERROR_999" in done.stderr) != known


def test_plans_need_no_card(no_driver):
    del no_driver
    args = ["llama-7b", "--memory", "24G", "--context", "2048", "--json"]
    card, cpu = (json.loads(tutti("plan", *args, "--device", device).stdout) for device in ("cuda", "cpu"))
    assert (card["device"], cpu["device"]) == ("cuda", "cpu")
    # A scale for each output of a matrix, which the processor does not have.
    outputs = 32 * (3 * 4096 + 4096 + 2 * 11008 + 4096) + 2 * 32000
    for kind in ("q4_0", "q4_k", "f16"):
        card, cpu = (json.loads(tutti("plan", *args, "--type", kind, "--device", device).stdout)["layouts"][0] for device in ("cuda", "cpu"))
        assert card["user_bytes"] == cpu["user_bytes"] and card["weight_bytes"] - cpu["weight_bytes"] == pytest.approx(4 * outputs, rel=1e-4)
    text = tutti("plan", "llama-7b", "--memory", "24G", "--device", "cuda", "--hosts", "2").stdout
    assert "2 cards, each with 24.0 GiB" in text and "fewest cards" in text
    for command in ("plan", "inspect"):
        error = tutti(command, DEMO, "--device", "cuda", check=1).stderr
        assert "--device cuda: " in error and "libcuda.so.1" in error and "give the memory of a card with --memory" in error


def test_the_memory_is_what_the_card_has_free(cards):
    cards(2, MEMORY=3 * GIB)
    assert json.loads(tutti("plan", "tiny", "--device", "cuda", "--json").stdout)["memory_bytes"] == 3 * GIB
    said = json.loads(tutti("inspect", DEMO, "--device", "cuda:1", "--json").stdout)
    assert (said["memory_bytes"], said["device"]) == (3 * GIB, "cuda:1")
    assert "on cuda:1" in tutti("inspect", DEMO, "--device", "cuda:1").stdout
    assert json.loads(tutti("inspect", DEMO, "--device", "cuda:0", "--memory", "1G", "--json").stdout)["memory_bytes"] == GIB
    assert "there is no such card" in tutti("inspect", DEMO, "--device", "cuda:2", check=1).stderr
    assert "expected cpu or cuda" in tutti("inspect", DEMO, "--device", "gpu", check=2).stderr


def plan(*args, command="plan"):
    said = json.loads(tutti(command, *args, "--device", "cuda", "--json").stdout)
    return said["division"], said


def test_a_division_gives_each_side_its_layers(no_driver):
    del no_driver
    args = ("tiny", "--memory", "8M", "--host-memory", "9M", "--context", "160")
    kv = 2 * 2 * 32 * 2 * 160  # of a user's context in a layer
    sums = []
    for n in range(5):
        parts, said = plan(*args, "--gpu-layers", str(n))
        card, cpu = parts["card"], parts["cpu"]
        assert (parts["layers"], parts["gpu_layers"], parts["cpu_experts"]) == (4, n, 0) and said["layouts"] == said["fewest_hosts"] == []
        assert (card["user_bytes"], cpu["user_bytes"]) == (n * kv, (4 - n) * kv)
        assert (card["memory_bytes"], cpu["memory_bytes"]) == (8 << 20, 9 << 20)
        assert parts["users_fit"] == min((side["memory_bytes"] - side["weight_bytes"]) // side["user_bytes"]
                                         for side in (card, cpu) if side["user_bytes"] > 0)
        assert parts["refusal"] is None and parts["advice"] is None
        sums.append((card["weight_bytes"], cpu["weight_bytes"]))
    assert sums[0][0] == sums[4][1] == 0  # without layers the output is not on the card either; with all, the embedding is too
    whole = plan("tiny", "--memory", "8M", "--context", "160")[1]
    assert sums[4][0] == whole["layouts"][0]["weight_bytes"] == whole["division"]["card"]["weight_bytes"]
    layer = sums[2][0] - sums[1][0]
    assert layer == sums[3][0] - sums[2][0] and sums[4][0] > sums[3][0] + layer > sums[3][0]
    assert sums[1][0] > layer
    assert sums[1][1] - sums[2][1] == sums[2][1] - sums[3][1] == layer - 4 * (384 + 256 + 2 * 704 + 256)  # scales


def test_the_experts_of_some_layers_are_the_cpus(no_driver):
    del no_driver
    args = ("qwen3-30b-a3b", "--memory", "20G", "--host-memory", "64G", "--context", "1024")
    cards = [plan(*args, "--cpu-experts", n)[0]["card"] for n in ("0", "12", "24", "all")]
    weights = [card["weight_bytes"] for card in cards]
    assert weights[0] - weights[1] == weights[1] - weights[2] == (weights[2] - weights[3]) // 2 > 0
    assert len({card["user_bytes"] for card in cards}) == 1  # keys and values stay
    assert "The CPU has the experts of the first 12 layers too.\n" in tutti("plan", *args, "--device", "cuda", "--cpu-experts", "12").stdout


def test_what_does_not_fit_is_refused_with_flags_that_fit(no_driver):
    """And those do, by the same calculation; one layer more would not."""
    del no_driver
    args = ("qwen3-30b-a3b", "--memory", "3G", "--host-memory", "64G")
    for flags in (args[:3], (*args, "--gpu-layers", "40")):
        parts, _ = plan(*flags)
        assert " of its memory are available: --gpu-layers " in parts["refusal"] and parts["refusal"].endswith(parts["advice"])
        n = re.match(r"--gpu-layers (\d+) of 48, or --cpu-experts all would fit, with the rest on the CPU$", parts["advice"]).group(1)
        assert plan(*args, "--gpu-layers", n)[0]["refusal"] is None and plan(*args, "--cpu-experts", "all")[0]["refusal"] is None
        assert plan(*args, "--gpu-layers", "auto")[0] == plan(*args, "--gpu-layers", n)[0]
        text = tutti("plan", *flags, "--device", "cuda").stdout
        assert "Not one user fits." in text and parts["advice"] in text
    assert "the weights that the CPU is to have need" in plan("llama-7b", "--memory", "3G", "--host-memory", "1G", "--gpu-layers", "1")[0]["refusal"]


def test_an_automatic_division_leaves_room_for_keys_and_values(no_driver):
    """Of 8,192 tokens, or of a shorter context, in seven eighths of the card's memory; one layer more would not fit."""
    del no_driver
    for gib in (3, 4, 5, 6):  # the weights need 3.5, without keys and values
        args = ("llama-7b", "--memory", f"{gib}G", "--host-memory", "32G")
        parts, _ = plan(*args, "--gpu-layers", "auto")
        n = parts["gpu_layers"]
        assert 0 < n < 32 and parts["users_fit"] == 1
        for layers, fits in ((n, True), (n + 1, False)):
            card = plan(*args, "--gpu-layers", str(layers))[0]["card"]
            assert (card["weight_bytes"] + card["user_bytes"] <= gib * GIB * 7 // 8) == fits, (gib, layers)
    args = ("llama-7b", "--memory", "5G", "--host-memory", "32G", "--context", "512", "--gpu-layers", "auto")
    assert plan(*args)[0]["gpu_layers"] == 32


def test_a_division_is_that_of_a_model_that_is_loaded(cards):
    cards(MEMORY=2 * GIB)
    for n in ("0", "4", "auto"):
        parts, _ = plan(DEMO, "--gpu-layers", n)
        assert plan(DEMO, "--gpu-layers", n, command="inspect")[0] | {"users_fit": 0, "cpu": 0} == parts | {"users_fit": 0, "cpu": 0}
    log = tutti("generate", DEMO, "-p", "x", "-n", "1", "--device", "cuda", "--gpu-layers", "4").stderr
    n, layers, card, cpu = re.search(r"(\d+) of (\d+) layers on the card, with weights of (\d+)K; the CPU has those of (\d+)K", log).groups()
    parts, _ = plan(DEMO, "--gpu-layers", "4")
    assert (parts["gpu_layers"], parts["layers"]) == (int(n), int(layers))
    assert [-(-parts[side]["weight_bytes"] // 1024) for side in ("card", "cpu")] == [int(card), int(cpu)]
    # What loading refuses, a plan refuses in the same words.
    cards(MEMORY=8000000)
    refused = tutti("generate", DEMO, "-p", "x", "--device", "cuda", "--gpu-layers", "5", check=1).stderr
    assert plan(DEMO, "--gpu-layers", "5")[0]["refusal"] in refused
    text = tutti("inspect", DEMO, "--device", "cuda", "--gpu-layers", "5", "--no-tensors").stdout
    assert re.search(r"^on the card      5 of 6 layers$", text, re.M) and "does not fit " in text and "users that fit   0 of" in text
    assert re.search(r"^does not fit     --gpu-layers \d of 6 would fit", tutti("inspect", DEMO, "--device", "cuda").stdout, re.M)


@pytest.mark.parametrize("args, said", [
    (["--gpu-layers", "3"], "--gpu-layers: only with --device cuda"),
    (["--device", "cuda", "--memory", "1G", "--gpu-layers", "7"], "--gpu-layers 7: expected 0 to 6, the layers of "),
    (["--device", "cuda", "--memory", "1G", "--cpu-experts", "all"], "has no experts; --gpu-layers leaves whole layers to the CPU"),
    (["--device", "cuda", "--memory", "1G", "--host-memory", "1G"], "--host-memory: only with --gpu-layers or --cpu-experts"),
])
def test_divisions_that_cannot_be_are_refused_as_by_serve(args, said):
    for command in ("plan", "inspect"):
        assert said in tutti(command, DEMO, *args, check=2).stderr
    assert "not with several ranks" in tutti("plan", DEMO, "--device", "cuda", "--memory", "1G", "--hosts", "2", "--gpu-layers", "3", check=1).stderr
