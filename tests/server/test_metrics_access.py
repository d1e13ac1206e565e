"""Who may read the figures; and that keys are loaded and found in a time that does not grow with their number squared."""
import os
import re
import resource
import signal
import subprocess

import pytest
import requests

from conftest import BIN, DEMO, PATIENCE

OPEN = {"Authorization": "Bearer sk-m"}


@pytest.fixture
def files(tmp_path):
    """--api-key-file with sk-a and --metrics-key with sk-m."""
    (tmp_path / "keys").write_text("sk-a alice\n")
    (tmp_path / "metrics").write_text("sk-m prometheus\n")
    return tmp_path / "keys", tmp_path / "metrics"


def status(server, headers=None, url=None):
    return requests.get((url or server.url) + "/metrics", headers=headers or {}, timeout=PATIENCE).status_code


def test_without_keys_the_figures_are_open_to_those_who_reach_the_server(server):
    assert status(server) == 200


def test_with_keys_nobody_reads_the_figures_unless_that_is_arranged(start, files, tmp_path):
    # "--metrics-listen" is not given: conftest would add --metrics-key to --api-key-file.
    server = start(f"--api-key-file={files[0]}")
    for headers in ({}, {"Authorization": "Bearer sk-a"}, {"Authorization": "Bearer sk-m"}):
        answer = requests.get(server.url + "/metrics", headers=headers, timeout=PATIENCE)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert "--metrics-key" in answer.json()["error"]["message"] and "tutti_" not in answer.text
    assert server.get("/health").status_code == 200


def test_the_figures_have_a_key_of_their_own(start, files):
    server = start(f"--api-key-file={files[0]}", "--metrics-key", files[1])
    assert [status(server), status(server, {"Authorization": "Bearer sk-a"}), status(server, OPEN)] == [401, 401, 200]
    assert requests.get(server.url + "/v1/models", headers=OPEN, timeout=PATIENCE).status_code == 401
    assert 'key="alice"' in requests.get(server.url + "/metrics", headers=OPEN, timeout=PATIENCE).text
    files[1].write_text("sk-n\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("were read again")
    assert [status(server, OPEN), status(server, {"Authorization": "Bearer sk-n"})] == [401, 200]


def test_the_key_for_figures_holds_without_other_keys(start, files):
    server = start("--metrics-key", files[1])
    assert [status(server), status(server, OPEN)] == [401, 200]
    assert server.get("/v1/models").status_code == 200


@pytest.mark.parametrize("address", ["0", "127.0.0.1:0", ":0", "localhost:0", "[::1]:0"])
def test_the_figures_have_an_address_of_their_own(start, files, address):
    server = start(f"--api-key-file={files[0]}", "--metrics-listen", address)
    own, = re.findall(r"metrics: (http://\S+)", server.log())
    assert status(server, url=own) == 200
    assert requests.get(own + "/health", timeout=PATIENCE).json() == {"status": "ok"}
    assert requests.get(own + "/ready", timeout=PATIENCE).json() == {"status": "ready"}
    assert status(server) == status(server, {"Authorization": "Bearer sk-a"}) == 404
    for path in ("/v1/models", "/", "/app.js", "/nothing"):
        assert requests.get(own + path, headers={"Authorization": "Bearer sk-a"}, timeout=PATIENCE).status_code == 404
    assert requests.post(own + "/v1/completions", json={"prompt": "x"}, headers={"Authorization": "Bearer sk-a"},
                         timeout=PATIENCE).status_code == 404


def test_the_address_for_figures_may_be_a_unix_socket(start, tmp_path, files):
    path = tmp_path / "metrics.sock"
    start(f"--api-key-file={files[0]}", "--metrics-listen", f"unix:{path}")
    told = subprocess.run(["curl", "-s", "--unix-socket", path, "http://localhost/metrics"], capture_output=True, check=True, timeout=PATIENCE)
    assert b"\ntutti_http_connections 1\n" in told.stdout
    assert oct(os.stat(path).st_mode & 0o170000) == "0o140000"


def test_both_doors_of_the_figures_ask_for_their_key(start, files):
    server = start(f"--api-key-file={files[0]}", "--metrics-key", files[1], "--metrics-listen", "0")
    own, = re.findall(r"metrics: (http://\S+)", server.log())
    assert [status(server, url=own), status(server, OPEN, own), status(server, OPEN)] == [401, 200, 404]


@pytest.mark.parametrize("address", ["x", "localhost", "::1:80", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:8x", "a:b:1", ":"])
def test_an_address_that_is_none_is_refused(address):
    done = subprocess.run([BIN, "serve", DEMO, "--port", "0", "--metrics-listen", address], capture_output=True, text=True, timeout=PATIENCE,
                          check=False)
    assert done.returncode != 0 and f'"{address}", expected HOST:PORT' in done.stderr


def test_figures_open_to_other_machines_are_warned_of(start, files):
    warning = "any client that can connect may read the metrics"
    assert warning in start(f"--api-key-file={files[0]}", "--metrics-listen", "0.0.0.0:0").log()
    assert warning not in start(f"--api-key-file={files[0]}", "--metrics-listen", "0").log()
    assert warning not in start(f"--api-key-file={files[0]}", "--metrics-listen", "0.0.0.0:0", "--metrics-key", files[1]).log()


# ---- many keys -------------------------------------------------------------------------------------------------------

def test_a_key_that_is_there_twice_is_refused(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-a alice\n# b\nsk-b bob\nsk-a carol\n")
    done = subprocess.run([BIN, "serve", DEMO, "--port", "0", "--api-key-file", keys], capture_output=True, text=True, timeout=PATIENCE,
                          check=False)
    assert done.returncode != 0 and f"{keys}: line 4: duplicate key, the same as in line 1" in done.stderr
    assert "sk-a" not in done.stderr


def load_seconds(folder, n):
    """Processor time of a server that reads n keys and then fails: the last line is wrong."""
    keys = folder / f"keys{n}"
    keys.write_text("".join(f"sk-{i:032x} name-{i} weight=2\n" for i in range(n)) + "sk-x y z\n")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([BIN, "serve", folder / "none", "--port", "0", "--api-key-file", keys], capture_output=True, text=True, timeout=PATIENCE,
                          check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert f"line {n + 1}: found \"z\"" in done.stderr
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_a_hundred_times_as_many_keys_take_about_a_hundred_times_as_long(tmp_path):
    few, many = load_seconds(tmp_path, 10000), load_seconds(tmp_path, 1000000)
    assert many < 400 * few, (few, many)  # quadratic: 10,000 times


def test_a_hundred_thousand_keys_are_each_found_and_their_figures_bounded(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("".join(f"sk-{i} name-{i}\n" for i in range(100000)))
    server = start("--api-key-file", keys)
    for i in (0, 1, 31337, 99999):
        assert requests.get(server.url + "/v1/models", headers={"Authorization": f"Bearer sk-{i}"}, timeout=PATIENCE).status_code == 200
        answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"Authorization": f"Bearer sk-{i}"})
        assert answer.status_code == 200
    for wrong in ("sk-100000", "sk-", "sk-0 ", "SK-0"):
        expected = 200 if wrong == "sk-0 " else 401  # blanks around a header's value do not belong to it
        answer = requests.get(server.url + "/v1/models", headers={"Authorization": "Bearer " + wrong}, timeout=PATIENCE)
        assert answer.status_code == expected, wrong
    text = requests.get(server.url + "/metrics", headers=server.metrics_headers, timeout=PATIENCE).text
    assert len(re.findall(r"tutti_key_requests_total\{", text)) == 4 and 'tutti_key_requests_total{key="name-31337"} 1\n' in text


def test_answers_go_on_while_many_keys_are_read_again(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-a alice\n")
    server = start("--api-key-file", keys)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    os.rename(fifo, keys)  # is read as long as nobody has written to it
    server.process.send_signal(signal.SIGHUP)
    with open(keys, "w", encoding="ascii") as writer:  # the server has begun to read
        for _ in range(3):
            answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 2}, headers={"Authorization": "Bearer sk-a"})
            assert answer.status_code == 200
        assert "were read again" not in server.log()
        writer.write("sk-b bob\n")
    server.wait_for_log("were read again")
    for key, want in (("sk-a", 401), ("sk-b", 200)):
        assert requests.get(server.url + "/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE).status_code == want
    keys.unlink()
