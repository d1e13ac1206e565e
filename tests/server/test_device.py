"""A server whose model runs on a card: on the stand-in for NVIDIA's driver (tests/cuda), with the kernels in emulation."""
import concurrent.futures
import json
import os
import re
import subprocess
import time

import pytest

import conftest
from chat_page import Page, chromium  # noqa: F401  # pylint: disable=unused-import

pytestmark = pytest.mark.usefixtures("standin")

TEXTS = ["What is the capital of France?", "Hello", "Tell me a story about a fox named Mia.", "What is 12 + 30?", "Name a colour.", "Who are you?"]


@pytest.fixture
def serve_on_card(tmp_path, monkeypatch):
    servers = []

    def start(*args, device="cuda", **environment):
        monkeypatch.setenv("LD_LIBRARY_PATH", conftest.STANDIN)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        servers.append(conftest.Server(*args, "--device", device, log=str(tmp_path / f"log{len(servers)}")))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()


def answer(server, text, **more):
    response = server.chat(text, max_tokens=12, temperature=0, logprobs=True, **more)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice["message"]["content"], [token["logprob"] for token in choice["logprobs"]["content"]]


def test_users_get_the_same_answers_together_and_one_by_one(serve_on_card):
    server = serve_on_card("--no-prefix-cache")
    one_by_one = [answer(server, text) for text in TEXTS]
    with concurrent.futures.ThreadPoolExecutor(len(TEXTS)) as pool:
        together = list(pool.map(lambda text: answer(server, text), TEXTS))
    assert together == one_by_one
    assert "Paris" in one_by_one[0][0]


@pytest.mark.parametrize("layers, on_card, device", [("1", 1, "cuda+cpu"), ("4", 4, "cuda+cpu"), ("0", 0, "cuda+cpu"), ("auto", None, "cuda")])
def test_a_card_and_the_cpu_divide_the_layers(serve_on_card, layers, on_card, device):
    server = serve_on_card("--gpu-layers", layers, "--api", "tgi,openai", "--no-prefix-cache")
    assert server.get("/info").json()["model_device_type"] == device
    assert (f"device cuda: {on_card} of 6 layers on the card" in server.log()) == (on_card is not None)
    one_by_one = [answer(server, text) for text in TEXTS[:3]]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda text: answer(server, text), TEXTS[:3])) == one_by_one
    assert "Paris" in one_by_one[0][0]


def run_on_card(monkeypatch, *args, **environment):
    for name, value in {"LD_LIBRARY_PATH": conftest.STANDIN, **environment}.items():
        monkeypatch.setenv(name, value)
    return subprocess.run([conftest.BIN, "generate", conftest.DEMO, "-p", "Hello", "-n", "2", *args], capture_output=True, text=True,
                          timeout=conftest.PATIENCE, check=False)


def test_a_model_that_does_not_fit_is_refused_with_flags_that_fit(monkeypatch):
    refused = run_on_card(monkeypatch, "--device", "cuda", TUTTI_STANDIN_MEMORY="12000000")
    assert refused.returncode == 1 and "--gpu-layers " in refused.stderr and " would fit, with the rest on the CPU" in refused.stderr
    n_layers = refused.stderr.split("--gpu-layers ")[1].split()[0]
    assert 0 < int(n_layers) < 6
    too_many = run_on_card(monkeypatch, "--device", "cuda", "--gpu-layers", "5", TUTTI_STANDIN_MEMORY="8000000")
    assert too_many.returncode == 1 and "the weights that the card is to have need" in too_many.stderr and "--gpu-layers " in too_many.stderr
    automatic = run_on_card(monkeypatch, "--device", "auto", TUTTI_STANDIN_MEMORY="12000000")
    assert automatic.returncode == 0 and "device auto: the CPU computes (on the card: " in automatic.stderr and "--gpu-layers " in automatic.stderr


@pytest.mark.parametrize("args, said", [
    (["--gpu-layers", "3"], "--gpu-layers: only with --device cuda, where a card and the CPU compute together; the device is cpu"),
    (["--gpu-layers", "3", "--device", "auto"], "the device is auto"),
    (["--cpu-experts", "all"], "--cpu-experts: only with --device cuda"),
    (["--device", "cuda", "--gpu-layers", "7"], "--gpu-layers 7: expected 0 to 6, the layers of "),
    (["--device", "cuda", "--gpu-layers", "some"], "--gpu-layers some: expected 0 to 6, "),
    (["--device", "cuda", "--cpu-experts", "all"], "has no experts; --gpu-layers leaves whole layers to the CPU"),
])
def test_divisions_that_cannot_be_are_refused_by_name(monkeypatch, args, said):
    done = run_on_card(monkeypatch, *args)
    assert done.returncode == 2 and said in done.stderr and not done.stdout


def test_a_drawn_answer_follows_its_seed(serve_on_card):
    server = serve_on_card()
    drawn = [server.chat("Tell me a story.", max_tokens=12, temperature=1, top_p=0.9, seed=seed).json()["choices"][0]["message"]["content"]
             for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]


def figures(server):
    """name -> value, of figures without labels."""
    return {name: float(value) for name, value in re.findall(r"^(tutti_\w+) (\S+)$", server.get("/metrics").text, re.M)}


def test_the_figures_tell_of_the_card(serve_on_card):
    server = serve_on_card(TUTTI_STANDIN_LEVEL="90", TUTTI_STANDIN_MEMORY=str(3 << 30))
    assert re.search(r"device cuda:0: Emulator 0, compute capability 9.0 with kernels of level 90, driver for CUDA 12.4; "
                     r"3.0 GiB of memory, \S+ [MG]iB free now; kernels loaded in \d+\.\d s\n", server.log())
    text = server.get("/metrics").text
    assert 'tutti_device_info{device="cuda:0",name="Emulator 0",compute_capability="9.0",kernels="90",cuda="12.4"} 1\n' in text
    before = figures(server)
    assert before["tutti_device_memory_bytes"] == 3 << 30
    assert 0 < before["tutti_device_memory_free_bytes"] < 3 << 30
    assert before["tutti_device_memory_used_bytes"] == (3 << 30) - before["tutti_device_memory_free_bytes"]
    assert 0 < before["tutti_device_load_seconds"] < 60
    begin = time.monotonic()
    answer(server, "Hello")
    after, passed = figures(server), time.monotonic() - begin
    # The last step's time is counted before its tokens are handed over. A card never worked longer than time has passed.
    assert 0 < after["tutti_device_busy_seconds_total"] - before["tutti_device_busy_seconds_total"] < passed


def test_the_models_name_the_card_and_its_memory(serve_on_card, tmp_path):
    (tmp_path / "keys").write_text("sk-a alice\n", encoding="utf-8")
    server = serve_on_card("--api-key-file", tmp_path / "keys", TUTTI_STANDIN_MEMORY=str(3 << 30))
    assert server.get("/v1/models").status_code == 401
    own = {"Authorization": "Bearer sk-a"}  # which may not read the metrics
    assert server.get("/metrics", headers=own).status_code == 401
    listed = server.get("/v1/models", headers=own).json()["data"][0]["device"]
    used = listed.pop("memory_used_bytes")
    assert listed == {"type": "cuda", "id": "cuda:0", "name": "Emulator 0", "memory_bytes": 3 << 30}
    assert 0 < used == server.metrics()["tutti_device_memory_used_bytes"] < 3 << 30
    assert server.get("/v1/models/demo", headers=own).json()["device"]["name"] == "Emulator 0"


def test_each_of_several_models_names_its_device_once_it_is_loaded(serve_on_card):
    server = serve_on_card(f"a={conftest.DEMO}", f"b={conftest.DEMO}", "--kv-memory", "32M")
    assert answer(server, "Hello", model="a")
    listed = {model["id"]: model.get("device") for model in server.get("/v1/models").json()["data"]}
    assert listed == {"a": {"type": "cuda", "id": "cuda:0", "name": "Emulator 0", "memory_bytes": 2 << 30}, "b": None}


@pytest.mark.parametrize("args, device, memory", [
    (("--device", "cpu"), "processor", None),
    (("--device", "cuda"), "Emulator 0 (cuda:0)", r"0\.\d of 3\.0 GiB used"),
    (("--device", "cuda", "--gpu-layers", "1"), "Emulator 0 (cuda:0) + processor", r"0\.\d of 3\.0 GiB used"),
])
def test_the_settings_of_the_page_name_the_device(chromium, start, monkeypatch, args, device, memory):
    monkeypatch.setenv("LD_LIBRARY_PATH", conftest.STANDIN)
    monkeypatch.setenv("TUTTI_STANDIN_MEMORY", str(3 << 30))
    page = Page(chromium, start(*args).url)
    page.click("#open-settings")
    names, values = page.texts("#facts dt"), page.texts("#facts dd")
    assert names == ["Model", "Context", "Device"] + (["Device memory"] if memory else [])
    assert values[:3] == ["demo", "2,048 tokens", device] and (not memory or re.fullmatch(memory, values[3]))
    assert page.complaints() == []


def test_the_page_of_several_models_names_the_device_once_it_is_known(chromium, start, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", conftest.STANDIN)
    server = start(f"a={conftest.DEMO}", f"b={conftest.DEMO}", "--kv-memory", "32M", "--device", "cuda")
    page = Page(chromium, server.url)
    page.click("#open-settings")
    assert page.texts("#facts dt") == ["Model", "Context"]
    page.click("#close-settings")
    answer(server, "Hello", model="a")
    page.click("#open-settings")
    page.wait(lambda: page.texts("#facts dd")[2:] == ["Emulator 0 (cuda:0)", "2.0 GiB"])


def test_the_processor_has_no_figures_of_a_device(serve_on_card):
    assert "tutti_device" not in serve_on_card(device="cpu").get("/metrics").text


def test_a_grammar_masks_tokens_on_the_card(serve_on_card):
    server = serve_on_card()
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
    text = server.chat("Is water wet?", max_tokens=10, temperature=0, response_format=schema).json()["choices"][0]["message"]["content"]
    assert text in ('"yes"', '"no"')


def test_host_memory_takes_spilled_pages_of_a_card_only(serve_on_card):
    server = serve_on_card("--kv-spill-host", "8M")
    assert "Paris" in answer(server, TEXTS[0])[0]
    assert server.metrics()["tutti_kv_spill_host_slots"] > 8
    refused = subprocess.run([conftest.BIN, "serve", conftest.DEMO, "--kv-spill-host", "8M", "--port", "0"], capture_output=True, text=True,
                             timeout=conftest.PATIENCE, check=False)
    assert refused.returncode != 0 and "kv-spill-host" in refused.stderr


def test_a_failure_of_the_driver_is_an_error_and_no_text(serve_on_card):
    server = serve_on_card(TUTTI_STANDIN_FAIL="cuEventSynchronize:60:700")
    seen = []
    while len(seen) < 400 and (not seen or seen[-1] == 200):
        seen.append(server.chat("Hello", max_tokens=4, temperature=0).status_code)
    assert seen[0] == 200 and seen[-1] in (500, 503)
    # Then the process ends with an error, for its supervisor to start another.
    assert server.process.wait(conftest.PATIENCE) > 0
    assert "device cuda" in server.log()


@pytest.mark.parametrize("environment, device, said", [
    ({}, "cuda", None),
    ({"TUTTI_STANDIN_MEMORY": "8000000"}, "cpu", "device auto: the CPU computes (on the card: "),
    ({"TUTTI_STANDIN_CARDS": "0"}, "cpu", "device auto: the CPU computes ("),
])
def test_auto_takes_the_card_if_the_weights_fit(serve_on_card, environment, device, said):
    server = serve_on_card("--api", "tgi", device="auto", **environment)
    assert server.get("/info").json()["model_device_type"] == device
    assert (said is None) == ("device auto: the CPU computes" not in server.log()) and (said or "") in server.log()


def test_bench_names_the_card_and_how_long_it_worked(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", conftest.STANDIN)
    command = [conftest.BIN, "bench", conftest.DEMO, "--device", "cuda", "--users", "1", "--prefill", "0", "--repetitions", "2"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=conftest.PATIENCE, check=True)
    said = json.loads(done.stdout)
    card, result = said["card"], said["results"][0]
    assert (card["device"], card["name"], card["capability"], card["kernels"], card["cuda"]) == ("cuda:0", "Emulator 0", 80, 80, 12040)
    assert (card["multiprocessors"], card["clock_mhz"], card["memory_gbps"]) == (8, 1500, 256)
    assert said["weight_bytes"] < card["memory_bytes"] - card["free_bytes"] and card["load_s"] > 0
    assert said["read_gbps"] > 0 and said["peak_f16_gflops"] > 0 and result["of_limit"] > 0
    assert 0 < result["device_busy"] < 1 and 0 <= result["limit_read"] <= 1
    table = subprocess.run(command, capture_output=True, text=True, timeout=conftest.PATIENCE, check=True).stdout
    assert "cuda:0: Emulator 0, compute capability 8.0 with kernels of level 80, CUDA 12.4; 8 multiprocessors at up to 1500 MHz\n" in table
    assert re.search(r"^2\.0 GiB of memory, \d+ MiB used; kernels loaded in [\d.]+ s$", table, re.M)
    assert re.search(r"^this card: reads [\d.]+ GB/s \(\d+ % of its memory's 256\), computes ", table, re.M)
    assert re.search(r"^decode .* %  +\d+\.\d %  (memory|matrix instructions)$", table, re.M)


def test_without_a_driver_the_message_says_what_to_do(tmp_path):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    done = subprocess.run([conftest.BIN, "serve", conftest.DEMO, "--device", "cuda", "--port", "0"], env=environment, capture_output=True, text=True,
                          timeout=conftest.PATIENCE, check=False)
    assert done.returncode != 0 and not done.stdout
    assert "device cuda" in done.stderr and "NVIDIA" in done.stderr
