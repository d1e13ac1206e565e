"""The script ./run: what it does with paths, and what it shows of a build. Its tools are stand-ins: nothing is compiled."""
import os
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATIENCE = 60 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))


@pytest.fixture
def project(tmp_path):
    """A checkout that is built at once: its program prints where it runs and what it is given."""
    tools, build = tmp_path / "tools", tmp_path / "checkout" / "build"
    tools.mkdir()
    build.mkdir(parents=True)
    (build / "build.ninja").touch()
    shutil.copy(os.path.join(ROOT, "run"), tmp_path / "checkout" / "run")
    scripts = {tools / "dpkg-query": "echo installed", tools / "meson": 'echo "meson $*"', tools / "ninja": "echo '[3/9] cc x.c'; ${SLOW:-true}",
               build / "tutti": 'pwd; printf "%s\\n" "$@"'}
    for path, text in scripts.items():
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return tmp_path


def run(project, *args, cwd=None, status=0, **env):
    done = subprocess.run([str(project / "checkout" / "run"), *args], cwd=cwd or project, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE, check=False, env={**os.environ, "PATH": f"{project / 'tools'}:{os.environ['PATH']}", **env})
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("command, args, expected", [
    ("serve", ["models/mine", "--keys", "k"], ["serve", "models/mine", "--keys", "k"]),
    ("serve", [], ["serve", "{root}/models/demo"]),
    ("serve", ["--port", "1"], ["serve", "{root}/models/demo", "--port", "1"]),
    ("serve", ["--port", "1", "mine.gguf"], ["serve", "--port", "1", "mine.gguf"]),
    ("serve", ["--port", "1", "x=folder"], ["serve", "--port", "1", "x=folder"]),
    ("serve", ["--draft", "small.gguf"], ["serve", "{root}/models/demo", "--draft", "small.gguf"]),
    ("bench", ["m.gguf"], ["bench", "m.gguf"]),
])
def test_paths_count_from_where_the_user_is(project, command, args, expected):
    elsewhere = project / "a folder"
    (elsewhere / "folder").mkdir(parents=True)
    (elsewhere / "folder" / "config.json").touch()
    said = run(project, command, *args, cwd=elsewhere).stdout.splitlines()
    assert said[-len(expected) - 1:] == [str(elsewhere)] + [word.format(root=project / "checkout") for word in expected]


def test_a_build_of_some_seconds_shows_how_far_it_is(project):
    assert "run: compiling 3/9" in run(project, "build", SLOW="sleep 4").stderr


def test_a_build_that_fails_shows_why_and_ends(project):
    (project / "tools" / "ninja").write_text("#!/bin/sh\necho 'x.c: error: no'\nexit 1\n")
    said = run(project, "build", status=1).stderr
    assert "x.c: error: no" in said and "run: the build in build failed" in said


def test_an_installation_below_a_folder_leaves_the_linkers_cache_alone(project):
    (project / "tools" / "ldconfig").write_text("#!/bin/sh\necho ldconfig\n")
    (project / "tools" / "ldconfig").chmod(0o755)
    assert "ldconfig" not in run(project, "install", DESTDIR=str(project / "d")).stdout
    if os.geteuid() == 0:
        assert "ldconfig" in run(project, "install", DESTDIR="").stdout
