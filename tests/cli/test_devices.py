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
