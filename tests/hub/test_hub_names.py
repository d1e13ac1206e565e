"""Names of models on a hub where a MODEL is expected, and models of ModelScope."""
import json
import os
import subprocess

import pytest
import requests
from test_pull import BIN, FOLDER, GGUF, PATIENCE, ROOT, WANTED, authority, files_of, make_hub, pulled, tutti  # noqa: F401

DEMO = os.path.join(ROOT, "models", "demo")


def demo_files():
    return {name: open(os.path.join(DEMO, name), "rb").read() for name in os.listdir(DEMO) if os.path.isfile(os.path.join(DEMO, name))}


@pytest.fixture
def demo_hub(make_hub):  # noqa: F811
    return make_hub({"tutti/demo": demo_files()})


def test_commands_download_a_model_once_and_then_need_no_hub(demo_hub, tutti, tmp_path):  # noqa: F811
    first = tutti(demo_hub, "generate", "hf:tutti/demo", "-p", "Mia is a", "-n", 8, "--temperature", 0)
    assert first.stdout == tutti(None, "generate", DEMO, "-p", "Mia is a", "-n", 8, "--temperature", 0).stdout
    assert "hf:" in first.stderr and "model.safetensors" in first.stderr
    n_requests = len(demo_hub.requests)
    name = f"hf:{demo_hub.url}/tutti/demo"
    for args in (["tokenize", name, "Mia"], ["inspect", name, "--no-tensors"], ["plan", name], ["convert", name, tmp_path / "x.gguf"],
                 ["generate", name, "-p", "Mia", "-n", 2, "--temperature", 0, "--draft", name], ["logits", name, "--ids", "1,2", "-o", tmp_path / "x.f32"]):
        own = [DEMO if a == name else a for a in args]
        done = tutti(demo_hub, *args)
        if args[0] in ("tokenize", "generate"):
            assert done.stdout == tutti(None, *own).stdout
    assert len(demo_hub.requests) == n_requests
    assert "there is none of this name" in tutti(demo_hub, "inspect", "hf:tutti/other", check=1).stderr
    assert "gave up after 1 attempt. What" in tutti(None, "pull", "http://127.0.0.1:9/tutti/demo", "--retries", 0, check=1).stderr


@pytest.mark.parametrize("operands, ids", [(["hf:tutti/demo"], ["demo"]), (["a=hf:tutti/demo", f"b={DEMO}"], ["a", "b"])])
def test_servers_take_models_of_a_hub(operands, ids, demo_hub, tutti):  # noqa: F811
    process = tutti.start(demo_hub, "serve", *operands, "--port", 0)
    try:
        url = process.stdout.readline().split()[-1]
        assert [m["id"] for m in requests.get(url + "/v1/models", timeout=PATIENCE).json()["data"]] == ids
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def test_a_model_of_modelscope(make_hub, tutti):  # noqa: F811
    hub = make_hub({})
    hub.models = {"org/tiny": {"master": FOLDER, "v1": {**FOLDER, "config.json": b"{}"}}, "org/tiny-GGUF": {"master": GGUF}}
    done = tutti(hub, "pull", "ms:org/tiny", env={"MODELSCOPE_API_TOKEN": "ms-secret", "HF_TOKEN": "hf_secret"})
    assert files_of(pulled(done)) == {name: FOLDER[name] for name in WANTED} and hub.downloaded() == WANTED
    assert all(r["headers"]["Authorization"] == "Bearer ms-secret" and r["headers"]["Cookie"] == "m_session_id=ms-secret"
               for r in hub.requests)
    assert files_of(pulled(tutti(hub, "pull", "ms:org/tiny@v1")))["config.json"] == b"{}"
    assert pulled(tutti(hub, "pull", "ms:org/tiny-GGUF:bf16")).endswith("/BF16/Tiny-1.5B-BF16-00001-of-00002.gguf")
    assert [one["name"] for one in json.loads(tutti(hub, "list", "--json").stdout)] == [
        f"ms:{hub.url}/org/tiny", f"ms:{hub.url}/org/tiny@v1", f"ms:{hub.url}/org/tiny-GGUF:bf16"]
    assert "the hub says: 获取模型信息失败,信息不存在 (code 10010205001)" in tutti(hub, "pull", "ms:org/none", check=1).stderr
    hub.edit = lambda a: {**a, "Data": {"Files": [{**f, "Path": "../" + f["Path"]} for f in a["Data"]["Files"]]}}
    assert "Data.Files[4].Path: '../.gitattributes' would leave" in tutti(hub, "pull", "ms:org/tiny", check=1).stderr


def test_a_modelscope_file_with_a_wrong_checksum(make_hub, tutti):  # noqa: F811
    hub = make_hub({})
    hub.models = {"org/tiny": {"master": FOLDER}}
    hub.change = lambda seen, data: data[::-1] if seen["file"] == "config.json" else data
    assert "it was downloaded twice and removed" in tutti(hub, "pull", "ms:org/tiny", check=1).stderr


def test_the_cache_is_where_the_environment_says(make_hub, tutti, tmp_path):  # noqa: F811
    hub = make_hub({"org/tiny": {"config.json": b"{}", "model.safetensors": b"w"}})
    xdg, home = tmp_path / "xdg", tmp_path / "home"
    for env, root in (({"XDG_CACHE_HOME": str(xdg)}, xdg / "tutti"), ({"XDG_CACHE_HOME": "relative", "HOME": str(home)}, home / ".cache" / "tutti")):
        path = pulled(tutti(hub, "pull", "org/tiny", env={"TUTTI_CACHE": "", **env}))
        assert path.startswith(f"{root}/models/hf/") and path.endswith("/org/tiny")
    assert "set TUTTI_CACHE" in tutti(hub, "pull", "org/tiny", check=2, env={"TUTTI_CACHE": "", "XDG_CACHE_HOME": "", "HOME": ""}).stderr
    assert subprocess.run([BIN, "list"], env={}, capture_output=True, check=False, timeout=PATIENCE).returncode == 2
