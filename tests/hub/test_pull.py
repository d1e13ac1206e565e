"""tutti pull from a hub that answers well, badly, or is cut off: what is downloaded, what is kept, and what is said."""
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mock_hub import Authority, MockHub, Reply  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
PATIENCE = 60 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
SEGMENT = 8 << 20  # PART_MIN_SEGMENT_BYTES of src/hub/part.h
LARGE = random.Random(1).randbytes(2 * SEGMENT + 12345)
WEIGHTS = random.Random(2).randbytes(70000)

FOLDER = {
    ".gitattributes": b"*.safetensors filter=lfs\n", "README.md": b"# A model\n", "LICENSE": b"Apache\n",
    "config.json": b'{"model_type": "llama"}', "generation_config.json": b"{}", "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}", "chat_template.jinja": b"{{ messages }}", "additional_chat_templates/rag.jinja": b"{{ x }}",
    "model.safetensors": WEIGHTS, "pytorch_model.bin": WEIGHTS[::-1], "onnx/model.onnx": WEIGHTS, "model.msgpack": WEIGHTS,
    "original/consolidated.00.pth": WEIGHTS, "figures/loss curve.png": b"PNG",
}
WANTED = ["additional_chat_templates/rag.jinja", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
          "tokenizer.json", "tokenizer_config.json"]
GGUF = {
    "README.md": b"# GGUF\n", "mmproj-model-f16.gguf": WEIGHTS[5:], "imatrix_q4_k_m.gguf": WEIGHTS[6:],
    "Tiny-1.5B-Q4_K_M.gguf": WEIGHTS, "Tiny-1.5B-Q8_0.gguf": WEIGHTS[1:], "Tiny-1.5B-IQ4_XS.gguf": WEIGHTS[2:],
    "BF16/Tiny-1.5B-BF16-00001-of-00002.gguf": WEIGHTS[3:], "BF16/Tiny-1.5B-BF16-00002-of-00002.gguf": WEIGHTS[4:],
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def make_hub(authority):
    hubs = []

    def begin(models, tls=True, **more):
        hubs.append(MockHub(authority if tls else None, {m: {"main": dict(f)} for m, f in models.items()}, **more))
        return hubs[-1]

    yield begin
    for hub in hubs:
        hub.stop()


@pytest.fixture
def tutti(tmp_path, authority):
    """tutti(*args, check=0, env={}): runs it with a cache of the test."""
    def environment(hub, env):
        kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and k not in ("HF_TOKEN", "MODELSCOPE_API_TOKEN")}
        return {**kept, "TUTTI_CACHE": str(tmp_path / "cache"), "SSL_CERT_FILE": str(authority.pem),
                "HF_ENDPOINT": hub.url if hub else "", "MODELSCOPE_DOMAIN": hub.url if hub else "", **env}

    def run(hub, *args, check=0, env=None):
        done = subprocess.run([BIN, *map(str, args)], capture_output=True, encoding="utf-8", timeout=PATIENCE,
                              stdin=subprocess.DEVNULL, env=environment(hub, env or {}))
        assert done.returncode == check, (args, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return done

    run.start = lambda hub, *args, **more: subprocess.Popen([BIN, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                                            stderr=subprocess.PIPE, encoding="utf-8", env=environment(hub, {}), **more)
    run.cache = tmp_path / "cache"
    return run


def files_of(folder):
    return {os.path.relpath(os.path.join(at, name), folder): open(os.path.join(at, name), "rb").read()
            for at, _, names in os.walk(folder) for name in names if name != ".tutti.json"}


def pulled(done):
    return done.stdout.strip()


# ---- what is chosen ---------------------------------------------------------------------------------------------


def test_a_folder_is_pulled_with_what_it_needs_and_nothing_else(make_hub, tutti):
    hub = make_hub({"org/tiny": FOLDER})
    done = tutti(hub, "pull", "org/tiny", env={"HF_TOKEN": "hf_secret"})
    assert files_of(pulled(done)) == {name: FOLDER[name] for name in WANTED}
    assert hub.downloaded() == WANTED
    assert f"7 files, {len(b''.join(FOLDER[n] for n in WANTED)) / 1024:.1f} KiB" in done.stderr
    assert "68.4 KiB  model.safetensors" in done.stderr
    # The listing's commit is what is downloaded, and the token is for the hub only.
    commit = hub.commit("org/tiny", "main")
    assert all(f"/resolve/{commit}/" in r["path"] for r in hub.requests if r["file"] and r["where"] == "hub")
    assert {r["headers"].get("Authorization") for r in hub.requests if r["where"] == "hub"} == {"Bearer hf_secret"}
    assert {r["where"] for r in hub.of("model.safetensors")} == {"content"}
    assert not [r for r in hub.requests if r["where"] == "content" and "hf_secret" in str(r)]
    # Nothing has changed: only the listing is read.
    hub.requests.clear()
    again = tutti(hub, "pull", "hf:org/tiny")
    assert pulled(again) == pulled(done) and "up to date" in again.stderr
    assert len(hub.requests) == 1 and not (tutti.cache / "partial").exists()


def test_sharded_weights_are_those_that_the_index_names(make_hub, tutti):
    names = ["model-00001-of-00002.safetensors", "part-b.safetensors"]
    index = {"metadata": {}, "weight_map": {"a": names[0], "b": names[1], "c": names[0]}}
    files = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(), names[0]: WEIGHTS, names[1]: WEIGHTS[9:],
             "consolidated.safetensors": WEIGHTS, "pytorch_model.bin": WEIGHTS}
    hub = make_hub({"org/sharded": files, "org/missing": {k: v for k, v in files.items() if k != names[1]},
                    "org/bin": {"config.json": b"{}", "pytorch_model.bin": WEIGHTS}})
    assert sorted(files_of(pulled(tutti(hub, "pull", "org/sharded")))) == sorted(["config.json", "model.safetensors.index.json", *names])
    assert "tensor b: the hub has no file \"part-b.safetensors\"" in tutti(hub, "pull", "org/missing", check=1).stderr
    assert sorted(files_of(pulled(tutti(hub, "pull", "org/bin")))) == ["config.json", "pytorch_model.bin"]


def test_an_embedding_model_comes_with_its_pooling_and_prompts(make_hub, tutti):
    wanted = ["1_Pooling/config.json", "config.json", "config_sentence_transformers.json", "model.safetensors", "modules.json",
              "sentence_bert_config.json"]
    files = {**dict.fromkeys(wanted, b"{}"), "2_Dense/README.md": b"# Dense\n", "eval/similarity.csv": b"0.8\n"}
    hub = make_hub({"org/embedding": files})
    assert sorted(files_of(pulled(tutti(hub, "pull", "org/embedding")))) == wanted


@pytest.mark.parametrize("selection, opened, wanted", [
    ("q4_k_m", "Tiny-1.5B-Q4_K_M.gguf", None), ("Q8_0", "Tiny-1.5B-Q8_0.gguf", None), ("iq4_xs", "Tiny-1.5B-IQ4_XS.gguf", None),
    ("bf16", "BF16/Tiny-1.5B-BF16-00001-of-00002.gguf", sorted(n for n in GGUF if n.startswith("BF16"))),
    ("BF16/Tiny-1.5B-BF16-00002-of-00002.gguf", "BF16/Tiny-1.5B-BF16-00001-of-00002.gguf", sorted(n for n in GGUF if n.startswith("BF16"))),
    ("Tiny-1.5B-Q8_0.gguf", "Tiny-1.5B-Q8_0.gguf", None), ("README.md", "README.md", None)])
def test_a_type_or_a_file_is_pulled_alone(selection, opened, wanted, make_hub, tutti):
    hub = make_hub({"org/tiny-GGUF": GGUF})
    path = pulled(tutti(hub, "pull", f"org/tiny-GGUF:{selection}"))
    assert path.endswith("/" + opened) and open(path, "rb").read() == GGUF[opened]
    assert hub.downloaded() == (wanted or [opened])


def test_a_model_may_name_the_matrix_it_was_quantized_with(make_hub, tutti):
    files = {"Tiny-imatrix-Q5_K_M.gguf": WEIGHTS, "imatrix-Q8_0.gguf": WEIGHTS[1:], "Tiny.imatrix.gguf": WEIGHTS[2:],
             "Tiny-Q8_0.imatrix.gguf": WEIGHTS[3:]}
    hub = make_hub({"org/tiny-i1-GGUF": files})
    assert pulled(tutti(hub, "pull", "org/tiny-i1-GGUF")).endswith("/Tiny-imatrix-Q5_K_M.gguf")


@pytest.mark.parametrize("name, said", [
    ("org/tiny-GGUF", "has 4 GGUF files; append the type of one, as org/tiny-GGUF:TYPE: BF16, IQ4_XS, Q4_K_M, Q8_0"),
    ("org/tiny-GGUF:q2_k", "no GGUF file of type q2_k; it has: BF16, IQ4_XS, Q4_K_M, Q8_0"),
    ("org/tiny-GGUF:k_m", "has no file 'k_m', and that is no type such as q4_k_m"),
    ("org/two:q8_0", "has 2 GGUF files of type q8_0; append one, as org/two:FILE: A-Q8_0.gguf, B-Q8_0.gguf"),
    ("org/half:q8_0", "A-Q8_0-00001-of-00002.gguf is one of 2 parts, but the hub has no A-Q8_0-00002-of-00002.gguf"),
    ("org/text", "has no weights that tutti reads: expected model.safetensors")])
def test_what_cannot_be_chosen_is_explained(name, said, make_hub, tutti):
    hub = make_hub({"org/tiny-GGUF": GGUF, "org/two": {"A-Q8_0.gguf": b"GGUF", "B-Q8_0.gguf": b"GGUF"},
                    "org/half": {"A-Q8_0-00001-of-00002.gguf": b"GGUF"}, "org/text": {"README.md": b"text"}})
    done = tutti(hub, "pull", name, check=2 if "append" in said and "two" in name or name == "org/tiny-GGUF" else 1)
    assert said in done.stderr and hub.downloaded() == [] and not os.path.exists(tutti.cache / "models")


def test_a_revision_is_a_model_of_its_own(make_hub, tutti):
    hub = make_hub({"org/tiny": FOLDER})
    hub.models["org/tiny"]["refs/pr/1"] = {**FOLDER, "config.json": b'{"model_type": "other"}'}
    main, other = (pulled(tutti(hub, "pull", f"org/tiny{r}")) for r in ("@main", "@refs/pr/1"))
    assert main != other and pulled(tutti(hub, "pull", "org/tiny")) == main
    assert files_of(other)["config.json"] == b'{"model_type": "other"}' and files_of(main)["config.json"] == FOLDER["config.json"]
    assert "Invalid rev id: v9" in tutti(hub, "pull", "org/tiny@v9", check=1).stderr


@pytest.mark.parametrize("name", ["tiny", "org/", "/tiny", "a/b/c", "org/..", "org/tiny@", "org/tiny:", "org/tiny@../x", "org/tiny:../x",
                                  "org/tiny:.hidden", "org/ti ny", "ftp://host/org/tiny", "https://u:p@host/org/tiny", "https:///org/tiny"])
def test_what_is_no_name_is_refused(name, tutti):
    assert "expected" in tutti(None, "pull", name, check=2).stderr and not tutti.cache.exists()


# ---- failures that pass -----------------------------------------------------------------------------------------


def test_cut_connections_lose_nothing(make_hub, tutti):
    hub, cuts = make_hub({"org/large-GGUF": {"large-q8_0.gguf": LARGE}}), []

    def cut(seen, n_sent):
        if seen["file"] and n_sent >= 2 << 20 and len(cuts) < 3:
            cuts.append(n_sent)
            return True
        return False

    hub.cut = cut
    path = pulled(tutti(hub, "pull", "org/large-GGUF:q8_0", "--connections", 3))
    assert open(path, "rb").read() == LARGE and len(cuts) == 3
    requests = hub.of("large-q8_0.gguf")
    assert {r["begin"] % SEGMENT == 0 for r in requests} == {True, False}  # segments, and the rest of cut ones
    # A cut may lose what was on its way, and no more.
    assert len(LARGE) <= sum(r["n_sent"] for r in requests) < len(LARGE) + 3 * (2 << 20)


def test_segments_are_downloaded_at_the_same_time(make_hub, tutti):
    hub, together = make_hub({"org/large-GGUF": {"large-q8_0.gguf": LARGE}}), threading.Barrier(3)

    def fault(seen, _):
        together.wait(PATIENCE)

    hub.fault = fault
    assert open(pulled(tutti(hub, "pull", "org/large-GGUF:q8_0")), "rb").read() == LARGE
    assert sorted(r["begin"] for r in hub.of("large-q8_0.gguf")) == [0, SEGMENT, 2 * SEGMENT]


@pytest.mark.parametrize("status, where", [(429, "listing"), (503, "file"), (500, "file")])
def test_a_busy_hub_is_asked_again_when_it_says(status, where, make_hub, tutti):
    hub, refused = make_hub({"org/tiny": FOLDER}), []

    def hub_fault(seen):
        if (seen["listing"] or where == "file") and not refused:
            refused.append(1)
            raise Reply(status, b"busy", **({"Retry_After": 1} if status == 429 else {}))

    hub.hub_fault = hub_fault
    done = tutti(hub, "pull", "org/tiny")
    assert f": {status} " in done.stderr and f"trying again in {1.0 if status == 429 else 0.2} s (1 of 8)" in done.stderr
    assert sorted(files_of(pulled(done))) == WANTED


def test_giving_up_keeps_what_is_there(make_hub, tutti):
    hub = make_hub({"org/large-GGUF": {"large-q8_0.gguf": LARGE}})

    def fault(seen, _):
        if seen["begin"] >= SEGMENT:
            raise Reply(503, b"down")

    hub.fault = fault
    done = tutti(hub, "pull", "org/large-GGUF:q8_0", "--retries", 1, "--connections", 1, check=1)
    assert "503 Service Unavailable; gave up after 2 attempts. What was downloaded is kept" in done.stderr
    assert "incomplete" in tutti(None, "list").stdout and not os.path.exists(tutti.cache / "models" / "hf")
    hub.fault = None
    hub.requests.clear()
    done = tutti(hub, "pull", "org/large-GGUF:q8_0")
    assert "8.0 MiB are here already" in done.stderr and open(pulled(done), "rb").read() == LARGE
    assert sum(r["n_sent"] for r in hub.of("large-q8_0.gguf")) == len(LARGE) - SEGMENT
    hub.fault = lambda seen, data: (_ for _ in ()).throw(Reply(429, Retry_After=86400))
    tutti(hub, "rm", "org/large-GGUF:q8_0")
    assert "it asks to wait for 86400 s" in tutti(hub, "pull", "org/large-GGUF:q8_0", check=1).stderr


def test_kill_in_the_middle_loses_nothing(make_hub, tutti):
    hub, reached, release = make_hub({"org/large-GGUF": {"large-q8_0.gguf": LARGE}}), threading.Event(), threading.Event()

    def cut(seen, n_sent):
        if seen["file"] and seen["begin"] == SEGMENT and n_sent >= 4 << 20 and not release.is_set():
            reached.set()
            release.wait(PATIENCE)
        return False

    hub.cut = cut
    process = tutti.start(hub, "pull", "org/large-GGUF:q8_0", "--connections", 1)
    assert reached.wait(PATIENCE)
    state = next((tutti.cache / "partial").rglob(".tutti-state/*"))
    while int.from_bytes(state.read_bytes()[96 + 8:96 + 16], "little") < 3 << 20:  # n_done[1] of struct part_state
        assert process.poll() is None
    process.kill()
    assert process.wait(PATIENCE) == -signal.SIGKILL
    process.communicate()
    release.set()
    hub.requests.clear()
    assert open(pulled(tutti(hub, "pull", "org/large-GGUF:q8_0")), "rb").read() == LARGE
    assert sum(r["n_sent"] for r in hub.of("large-q8_0.gguf")) <= len(LARGE) - SEGMENT - (3 << 20)


def test_two_pulls_at_once_download_once(make_hub, tutti):
    hub, reached, release = make_hub({"org/tiny": FOLDER}), threading.Event(), threading.Event()

    def fault(*_):
        reached.set()
        assert release.wait(PATIENCE)

    hub.fault = fault
    first = tutti.start(hub, "pull", "org/tiny")
    assert reached.wait(PATIENCE)
    assert "is downloading it" in tutti(hub, "rm", "org/tiny", check=1).stderr
    second = tutti.start(hub, "pull", "org/tiny")
    assert "another process is downloading this model" in second.stderr.readline()
    release.set()
    ends = [process.communicate(timeout=PATIENCE) for process in (first, second)]
    assert first.returncode == second.returncode == 0, ends
    assert ends[0][0] == ends[1][0] and "up to date" in ends[1][1]
    assert sorted(files_of(ends[0][0].strip())) == WANTED
    assert len(hub.of("model.safetensors")) == 1


def test_a_server_without_ranges_is_read_from_the_start(make_hub, tutti):
    hub = make_hub({"org/large-GGUF": {"large-q8_0.gguf": LARGE}})
    hub.ignores_ranges = True
    assert open(pulled(tutti(hub, "pull", "org/large-GGUF:q8_0")), "rb").read() == LARGE


@pytest.mark.parametrize("n_wrong", [0, 1])
def test_a_file_is_complete_when_all_its_bytes_are_there(n_wrong, make_hub, tutti):
    """A file is complete when its bytes are there, even if its response has not ended; a file that starts over ends its transfers."""
    hub, is_over, wrong = make_hub({"org/tiny": FOLDER}), threading.Event(), []

    def change(seen, data):
        if seen["file"] != "model.safetensors" or len(wrong) == n_wrong:
            return data
        wrong.append(1)
        return data[::-1]

    hub.change, hub.end = change, lambda seen: is_over.wait(PATIENCE)
    try:
        done = tutti(hub, "pull", "org/tiny")
    finally:
        is_over.set()
    assert files_of(pulled(done)) == {name: FOLDER[name] for name in WANTED}
    assert done.stderr.count("downloading it again") == n_wrong and len(hub.of("model.safetensors")) == 1 + n_wrong


def test_a_break_after_the_last_byte_is_no_failure(make_hub, tutti):
    hub = make_hub({"org/large-GGUF": {"large-q8_0.gguf": LARGE}})

    def end(_):
        raise ConnectionError

    hub.end = end
    done = tutti(hub, "pull", "org/large-GGUF:q8_0", "--retries", 0)
    assert open(pulled(done), "rb").read() == LARGE and "again" not in done.stderr


@pytest.mark.parametrize("n_cuts", [2, 16])
def test_breaks_of_a_server_without_ranges_are_limited(n_cuts, make_hub, tutti):
    """Each break loses all of the file, also if a little more of it arrives each time."""
    piece, file = 65536, "medium-q8_0.gguf"  # pieces of mock_hub.py
    hub = make_hub({"org/medium-GGUF": {file: LARGE[:16 * piece]}})

    def cut(seen, n_sent):
        n = len([r for r in hub.requests if r["is_content"] and not r["is_range"]])
        return seen["is_content"] and n <= n_cuts and n_sent == n * piece

    hub.ignores_ranges, hub.cut = True, cut
    done = tutti(hub, "pull", "org/medium-GGUF:q8_0", "--retries", 2, check=int(n_cuts > 2))
    if n_cuts == 2:
        assert open(pulled(done), "rb").read() == LARGE[:16 * piece]
    else:
        assert f"/{file}: the server ignores ranges, so that each break starts the file over: at most {4 * piece} of {16 * piece} " \
            "bytes arrived, gave up after 4 attempts" in done.stderr


# ---- failures that stay -----------------------------------------------------------------------------------------


def test_a_wrong_checksum_is_downloaded_once_more_and_never_used(make_hub, tutti):
    hub, broken = make_hub({"org/tiny": FOLDER}), []

    def change(seen, data):
        if seen["file"] != "model.safetensors" or len(broken) == how_often:
            return data
        broken.append(1)
        return data[:-1] + bytes([data[-1] ^ 1])

    hub.change, how_often = change, 2
    done = tutti(hub, "pull", "org/tiny", check=1)
    assert f"expected {hashlib.sha256(WEIGHTS).hexdigest()[:16]}...; it was downloaded twice" in done.stderr
    assert not os.path.exists(tutti.cache / "models" / "hf")
    broken.clear()
    how_often = 1
    done = tutti(hub, "pull", "org/tiny")
    assert "downloading it again" in done.stderr and files_of(pulled(done))["model.safetensors"] == WEIGHTS


def test_a_small_file_has_the_checksum_of_its_git_blob(make_hub, tutti):
    hub = make_hub({"org/tiny": FOLDER})
    hub.change = lambda seen, data: data[::-1] if seen["file"] == "config.json" else data
    done = tutti(hub, "pull", "org/tiny", check=1)
    assert "config.json: the checksum is" in done.stderr


def test_an_answer_that_is_always_too_short_is_no_progress(make_hub, tutti):
    """As that of a proxy with a page of its own: of no length, whatever range was requested."""
    hub = make_hub({"org/tiny-GGUF": GGUF})
    hub.change, hub.ignores_ranges, hub.end = lambda seen, data: b"<html>blocked</html>", True, lambda seen: None
    done = tutti(hub, "pull", "org/tiny-GGUF:q4_k_m", "--retries", 2, check=1)
    assert "/Tiny-1.5B-Q4_K_M.gguf: the answer ended at byte 20 of 70000; trying again" in done.stderr
    assert "from 20 on has status 200 and no length" in done.stderr and "gave up after 3 attempts" in done.stderr


def test_a_page_instead_of_the_rest_discards_nothing(make_hub, tutti):
    """A proxy that answers with a page of its own for a while: status 200, of no length."""
    file, half = "medium-q8_0.gguf", 8 * 65536
    hub = make_hub({"org/medium-GGUF": {file: LARGE[:2 * half]}})
    hub.cut = lambda seen, n_sent: seen["is_content"] and n_sent == half
    tutti(hub, "pull", "org/medium-GGUF:q8_0", "--retries", 0, check=1)
    hub.cut, hub.change, hub.ignores_ranges, hub.end = None, lambda seen, data: b"<html>log in</html>", True, lambda seen: None
    done = tutti(hub, "pull", "org/medium-GGUF:q8_0", "--retries", 1, check=1)
    assert f"/{file}: the answer to a request for the bytes from {half} on has status 200 and no length; if the server sends nothing else, " \
        "'tutti rm' removes what was downloaded, and the model can be downloaded from its start; gave up after 2 attempts" in done.stderr
    hub.change, hub.ignores_ranges, hub.end = None, False, None
    done = tutti(hub, "pull", "org/medium-GGUF:q8_0")
    assert open(pulled(done), "rb").read() == LARGE[:2 * half]
    assert [r["begin"] for r in hub.of(file)] == [0, half, half, half]


@pytest.mark.parametrize("status, said", [
    (401, "401 Unauthorized: Access is restricted; the model is private or gated, or there is none of this name: check the name, accept "
          "its terms on {url}/org/tiny, and set HF_TOKEN"), (403, "403 Forbidden: Access is restricted; the model is private or gated"),
    (404, "404 Not Found: Access is restricted; the hub has no such model, revision or file"),
    (400, "400 Bad Request: Access is restricted, expected the content")])
def test_a_refusal_is_explained(status, said, make_hub, tutti):
    hub = make_hub({"org/tiny": FOLDER})
    hub.hub_fault = lambda seen: (_ for _ in ()).throw(Reply(status, b"{}", X_Error_Message="Access is restricted"))
    done = tutti(hub, "pull", "org/tiny", check=1)
    assert said.format(url=hub.url) in done.stderr and len(hub.requests) == 1
    assert f"{hub.url}/api/models/org/tiny/revision/main" in done.stderr


@pytest.mark.parametrize("path", ["../evil.gguf", "a/../../evil-q8_0.gguf", "/etc/evil-q8_0.gguf", "a//b.gguf", "a\\b.gguf", "x\x1b.gguf", "..",
                                  "a/./b", "n" * 300])
def test_names_that_leave_the_folder_are_refused(path, make_hub, tutti):
    hub = make_hub({"org/evil": {"config.json": b"{}", path: WEIGHTS}})
    done = tutti(hub, "pull", "org/evil:q8_0", check=1)
    assert "siblings[1].rfilename" in done.stderr and "nothing of this model was downloaded" in done.stderr
    assert hub.downloaded() == [] and "\x1b" not in done.stderr


@pytest.mark.parametrize("edit, said", [
    (lambda a: {**a, "siblings": a["siblings"] * 2}, "siblings: duplicate file"),
    (lambda a: {**a, "sha": "main"}, "sha: "), (lambda a: {**a, "siblings": {}}, "siblings: an object, expected a list"),
    (lambda a: [a], "expected an object"), (lambda a: {**a, "siblings": [{"rfilename": "config.json", "size": 1}]}, "siblings[0].blobId"),
    (lambda a: {**a, "siblings": [{"rfilename": "a", "size": -1, "blobId": "0" * 40}]}, "siblings[0].size: -1"),
    (lambda a: {**a, "siblings": [{"rfilename": "a", "size": 1 << 60, "blobId": "0" * 40}]}, "siblings[0].size: 1152921504606846976"),
    (lambda a: {**a, "siblings": [{"rfilename": "a", "size": 1, "lfs": {"sha256": "0" * 40}}]}, "siblings[0].lfs.sha256")])
def test_a_listing_of_another_form_is_refused(edit, said, make_hub, tutti):
    hub = make_hub({"org/tiny": FOLDER})
    hub.edit = edit
    assert said in tutti(hub, "pull", "org/tiny", check=1).stderr


def resized(n):
    def edit(answer):
        for one in answer["siblings"]:
            if one["rfilename"] == "model.safetensors":
                one["size"] += n
        return answer
    return edit


@pytest.mark.parametrize("n, linked, said", [
    (1000, None, "X-Linked-Size is 70000, expected 71000"), (-1000, None, "X-Linked-Size is 70000, expected 69000"),
    (1000, {"X-Linked-Size": "71000"}, "70000 bytes, expected 71000 as listed"),
    (-1000, {"X-Linked-Size": "69000"}, "70000 bytes, expected 69000 as listed"),
    (0, {"X-Linked-ETag": '"' + "0" * 64 + '"'}, "X-Linked-ETag is 0000"),
    (1 << 47, None, "but the disk has only")])
def test_sizes_that_lie_are_refused(n, linked, said, make_hub, tutti):
    hub = make_hub({"org/tiny": FOLDER})
    hub.edit, hub.linked = resized(n), linked or {}
    assert said in tutti(hub, "pull", "org/tiny", check=1).stderr


def test_redirects_stay_encrypted_and_are_followed(make_hub, tutti):
    hub, plain = make_hub({"org/tiny": FOLDER, "new/tiny": FOLDER}), make_hub({}, tls=False)
    hub.renamed["org/tiny"] = "new/tiny"
    assert sorted(files_of(pulled(tutti(hub, "pull", "org/tiny")))) == WANTED
    hub.content_url = plain.content_url
    assert "redirects to a URL that is not HTTPS" in tutti(hub, "pull", "new/tiny", check=1).stderr
    assert plain.requests == []


def test_certificates_are_checked(make_hub, tutti):
    hub = make_hub({"org/tiny": FOLDER})
    done = tutti(hub, "pull", "org/tiny", check=1, env={"SSL_CERT_FILE": ""})
    assert "set SSL_CERT_FILE to the certificates of the authority" in done.stderr and hub.requests == []


def test_a_token_is_not_sent_unencrypted(make_hub, tutti):
    hub = make_hub({"org/tiny": FOLDER}, tls=False, address="127.0.0.2")
    hub.hub_fault = lambda seen: (_ for _ in ()).throw(Reply(401))
    assert "HF_TOKEN is not sent over plain HTTP" in tutti(hub, "pull", "org/tiny", check=1, env={"HF_TOKEN": "hf_secret"}).stderr
    assert "hf_secret" not in str(hub.requests)


@pytest.mark.parametrize("token", ["hf secret", "hf_secret\n", "hf_s\u00e9cret"])
def test_a_token_that_is_no_header_value_is_refused(make_hub, tutti, token):
    hub = make_hub({"org/tiny": FOLDER})
    assert "HF_TOKEN: expected a token without" in tutti(hub, "pull", "org/tiny", check=2, env={"HF_TOKEN": token}).stderr
    assert hub.requests == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_is_found_before_and_during_the_download(make_hub, tutti):
    tutti.cache.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", tutti.cache], capture_output=True, check=False).returncode != 0:
        pytest.skip("mount is not allowed here")
    try:
        hub = make_hub({"org/tiny": FOLDER})
        filler = tutti.cache / "filler"
        filler.write_bytes(bytes(100000))
        done = tutti(hub, "pull", "org/tiny", check=1)
        assert "MB are needed, but the disk has only" in done.stderr and hub.downloaded() == []
        filler.unlink()

        def fault(seen, _):  # other programs fill the disk: the space of the model is reserved
            if seen["file"] == "config.json":
                with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
                    while file.write(bytes(4096)):
                        pass

        hub.fault = fault
        assert sorted(files_of(pulled(tutti(hub, "pull", "org/tiny", "--connections", 1)))) == WANTED
        filler.unlink()
        tutti(hub, "rm", "org/tiny")
        subprocess.run(["mount", "-o", "remount,size=200k,nr_inodes=15", tutti.cache], check=True)
        done = tutti(hub, "pull", "org/tiny", check=1)
        assert "No space left on device" in done.stderr and "what was downloaded is kept: free some space" in done.stderr
        subprocess.run(["mount", "-o", "remount,size=200k,nr_inodes=100", tutti.cache], check=True)
        hub.fault = None
        assert sorted(files_of(pulled(tutti(hub, "pull", "org/tiny")))) == WANTED
    finally:
        subprocess.run(["umount", "-l", tutti.cache], check=True)


# ---- the cache --------------------------------------------------------------------------------------------------


def test_an_update_downloads_what_has_changed(make_hub, tutti):
    hub = make_hub({"org/tiny": FOLDER})
    path = pulled(tutti(hub, "pull", "org/tiny"))
    with open(f"{path}/model.safetensors", "rb") as old, open(f"{path}/config.json", "rb") as old_config:
        files = hub.models["org/tiny"]["main"]
        files["config.json"] = b'{"model_type": "llama", "new": 1}'
        del files["chat_template.jinja"]
        hub.requests.clear()
        assert pulled(tutti(hub, "pull", "org/tiny")) == path
        assert hub.downloaded() == ["config.json"]
        assert files_of(path) == {name: files[name] for name in WANTED if name in files}
        assert old_config.read() == FOLDER["config.json"] and old.read() == WEIGHTS  # whoever has them open keeps them
    assert not (tutti.cache / "partial").exists()


def test_a_model_that_cannot_get_its_place_is_not_downloaded_again(make_hub, tutti, tmp_path):
    hub = make_hub({"org/tiny": FOLDER})
    tutti.cache.mkdir()
    (tutti.cache / "models").symlink_to(tmp_path / "disk")  # which is not mounted
    assert f"{tutti.cache}/models/hf: No such file or directory" in tutti(hub, "pull", "org/tiny", check=1).stderr
    assert hub.downloaded() == WANTED
    (tmp_path / "disk").mkdir()
    hub.requests.clear()
    path = pulled(tutti(hub, "pull", "org/tiny"))
    assert hub.downloaded() == [] and files_of(path) == {name: FOLDER[name] for name in WANTED}
    assert sorted(os.listdir(path)) == sorted([".tutti.json", *{name.split("/")[0] for name in WANTED}])
    # The state of a download that was killed after the rename.
    os.mkdir(f"{path}/.tutti-state")
    assert "up to date" in tutti(hub, "pull", "org/tiny").stderr and not os.path.exists(f"{path}/.tutti-state")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_cache_on_two_file_systems_is_explained_and_loses_no_model(make_hub, tutti):
    hub = make_hub({"org/tiny": FOLDER})
    path = pulled(tutti(hub, "pull", "org/tiny"))
    old, partial = files_of(path), tutti.cache / "partial"
    hub.models["org/tiny"]["main"]["config.json"] = b'{"model_type": "llama", "new": 1}'
    partial.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", partial], capture_output=True, check=False).returncode != 0:
        pytest.skip("mount is not allowed here")
    try:
        for wanted in (WANTED, []):  # files of the model cannot be linked either; what is there is not downloaded again
            hub.requests.clear()
            done = tutti(hub, "pull", "org/tiny", check=1)
            said = f"{path.replace('/models/', '/partial/')}: it cannot be renamed to {path}: Invalid cross-device link"
            assert said in done.stderr and "put the whole cache (TUTTI_CACHE) on one file system" in done.stderr
            assert hub.downloaded() == wanted and files_of(path) == old
    finally:
        subprocess.run(["umount", "-l", partial], check=True)
    assert files_of(pulled(tutti(hub, "pull", "org/tiny")))["config.json"] == hub.models["org/tiny"]["main"]["config.json"]


def test_list_and_rm_show_and_remove_models(make_hub, tutti):
    hub = make_hub({"org/tiny": FOLDER, "org/tiny-GGUF": GGUF})
    assert tutti(hub, "list").stdout == "" and tutti(hub, "list", "--json").stdout.strip() == "[]"
    names = ["org/tiny", "org/tiny@refs/pr/1", "org/tiny-GGUF:q8_0", "org/tiny-GGUF:BF16/Tiny-1.5B-BF16-00001-of-00002.gguf"]
    hub.models["org/tiny"]["refs/pr/1"] = FOLDER
    paths = {f"hf:{hub.url}/{name}": pulled(tutti(hub, "pull", name)) for name in names}
    listed = json.loads(tutti(None, "list", "--json").stdout)
    assert {one["name"]: one["path"] for one in listed} == paths and {one["state"] for one in listed} == {"complete"}
    assert all(0 < one["bytes"] < 1000000 and one["pulled_at"] > 1.7e9 for one in listed)
    lines = tutti(None, "list").stdout.splitlines()
    assert [line.split()[-1] for line in lines] == [one["name"] for one in listed]
    # Names as they are listed, or with the same --hub.
    tutti(None, "rm", listed[0]["name"], listed[1]["name"])
    assert "is not in" in tutti(None, "rm", listed[0]["name"], check=1).stderr
    tutti(None, "rm", "--hub", hub.url, *[one["name"].replace(f"{hub.url}/", "") for one in listed[2:]])
    assert tutti(None, "list").stdout == "" and list(files_of(tutti.cache)) == []
    (tutti.cache / "models").mkdir(exist_ok=True)
    assert "expected" in tutti(None, "rm", "../..", check=2).stderr


def test_an_adapter_of_a_hub_is_downloaded_and_used(make_hub, tutti, tmp_path):
    sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
    from test_adapters import write_adapter
    write_adapter(tmp_path / "red", seed=1)
    hub = make_hub({"ORG/red": files_of(tmp_path / "red")})
    ask = ["generate", os.path.join(ROOT, "models", "demo"), "--chat", "-p", "Tell me a story.", "-n", 12, "--temperature", 0]
    local = tutti(hub, *ask, "--lora", f"red={tmp_path}/red").stdout
    assert tutti(hub, *ask, "--lora", "red=hf:ORG/red").stdout == local != tutti(hub, *ask).stdout
    assert "/ORG/red\n" in tutti(hub, "list").stdout
    assert "--lora red=hf:ORG/none: " in tutti(hub, *ask, "--lora", "red=hf:ORG/none", check=1).stderr
