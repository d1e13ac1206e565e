"""Published packages over the clients, unmodified, whole and streamed: clients/ has a program for each."""
import concurrent.futures
import importlib.util
import json
import os
import subprocess
import sys

import pytest

from conftest import DEMO, PATIENCE, ROOT, Server

PROGRAMS = os.path.join(ROOT, "tests", "server", "clients")
ENCODERS = os.path.join(ROOT, "tests", "fixtures", "encoder")
OWN = os.path.join(ROOT, "build-clients")  # packages with a folder of their own: ./run test says why
MODULES = {"huggingface_hub": "huggingface_hub", "instructor": "instructor", "langchain": "langchain_anthropic", "litellm": "litellm",
           "llama_index": "llama_index", "llm": "llm", "pydantic_ai": "pydantic_ai"}
CLAUDE = "claude-sonnet-4-5"  # llama-index and litellm know Anthropic's API by the model's name
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."


def own_folder(name):
    """The folder of a package that is not in the tests' environment, or None."""
    folder = os.path.join(OWN, name)
    return folder if os.path.isdir(os.path.join(folder, MODULES[name])) else None


def run(name, url):
    environment = {**os.environ, "PYTHONPATH": own_folder(name) or "", "NO_PROXY": "127.0.0.1"}
    return subprocess.run([sys.executable, "-W", "ignore", os.path.join(PROGRAMS, f"use_{name}.py"), url, QUESTION], env=environment,
                          capture_output=True, text=True, timeout=3 * PATIENCE, check=False)  # importing them alone takes seconds


def is_installed(name):
    return own_folder(name) is not None or importlib.util.find_spec(MODULES[name]) is not None


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A chat model under two names, an embedding model and a cross-encoder: what one program may want of a server."""
    one = Server(f"demo={DEMO}", f"{CLAUDE}={DEMO}", f"vectors={ENCODERS}/bert-tiny", f"ranker={ENCODERS}/bert-ranker-tiny", "--kv-memory",
                 "64M", "--api", "tgi", log=tmp_path_factory.mktemp("frameworks") / "log")
    yield one
    status = one.stop()
    assert status == 0, (status, one.log()[-4000:])


@pytest.fixture(scope="module")
def runs(several):
    """Importing them takes seconds, so they run side by side."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {name: pool.submit(run, name, several.url) for name in filter(is_installed, MODULES)}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_published_package_works(runs, name):
    if name not in runs:
        pytest.skip(f"the client {name} is not installed")
    done = runs[name].result()
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert len(answers) in (2, 4, 6) and set(answers) == {ANSWER}, answers
