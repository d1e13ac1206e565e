"""Published packages over the clients, unmodified, whole and streamed: clients/ has a program for each."""
import concurrent.futures
import importlib.util
import json
import os
import subprocess
import sys

import pytest

from conftest import PATIENCE, ROOT

PROGRAMS = os.path.join(ROOT, "tests", "server", "clients")
# It has a folder of its own: ./run test says why.
INSTRUCTOR = os.path.join(ROOT, "build-clients", "instructor")
MODULES = {"huggingface_hub": "huggingface_hub", "instructor": "instructor", "langchain": "langchain_anthropic", "llm": "llm",
           "pydantic_ai": "pydantic_ai"}
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."


def run(name, url):
    environment = {**os.environ, "PYTHONPATH": INSTRUCTOR if name == "instructor" else "", "NO_PROXY": "127.0.0.1"}
    return subprocess.run([sys.executable, "-W", "ignore", os.path.join(PROGRAMS, f"use_{name}.py"), url, QUESTION], env=environment,
                          capture_output=True, text=True, timeout=PATIENCE, check=False)


def is_installed(name):
    return os.path.isdir(os.path.join(INSTRUCTOR, "instructor")) if name == "instructor" else importlib.util.find_spec(MODULES[name]) is not None


@pytest.fixture(scope="module")
def runs(compat):
    """Importing them takes seconds, so they run side by side."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {name: pool.submit(run, name, compat.url) for name in filter(is_installed, MODULES)}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_published_package_works(runs, name):
    if name not in runs:
        pytest.skip(f"the client {name} is not installed")
    done = runs[name].result()
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers in ([ANSWER] * 2, [ANSWER] * 4), answers
