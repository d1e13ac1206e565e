"""tutti load against servers that answer well, badly, slowly, or not at all; and against tutti itself."""
import json
import os
import pty
import re
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mock_http import MockServer  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build", "tutti"))
DEMO = os.path.join(ROOT, "models", "demo")
PATIENCE = 60 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
# A busy machine delays both sides; what is checked against a clock gets this much.
SLACK_MS = 400 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))


@pytest.fixture
def mock():
    """mock(**how): a server that ends with the test."""
    servers = []

    def begin(**how):
        servers.append(MockServer(**how))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def load(*args, check=0, env=None, stdin=None):
    done = subprocess.run([BIN, "load", *map(str, args)], capture_output=True, encoding="utf-8", timeout=PATIENCE,
                          input=stdin, env={**os.environ, "TUTTI_API_KEY": "", **(env or {})})
    assert done.returncode == check, (args, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return done


def figures(*args, **more):
    return json.loads(load(*args, "--json", "-", "--details", **more).stdout)


def lines(tmp_path, *prompts):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(p if isinstance(p, dict) else {"prompt": p}) + "\n" for p in prompts))
    return path


# ---- the two loops ----------------------------------------------------------------------------------------------


def test_a_closed_loop_keeps_as_many_open_as_there_are_users(mock):
    server = mock(gap_s=0.01)
    d = figures(server.url, "-c", 5, "-N", 23, "-n", 4)
    assert d["requests"] == d["complete"] == len(server.requests) == 23
    assert server.most_open == 5
    assert server.n_connections == 1 + 5  # one asked for the model's name
    assert d["settings"]["model"] == "mock" and server.requests[0]["body"]["model"] == "mock"
    assert d["tokens"] == {"prompt": 230, "prompt_per_s": pytest.approx(230 / d["total_s"]), "prompt_cached": 0,
                           "output": 92, "output_per_s": pytest.approx(92 / d["total_s"]), "counted_by": "server"}
    assert d["ttft_ms"]["count"] == d["latency_ms"]["count"] == d["time_per_token_ms"]["count"] == 23
    assert d["itl_ms"]["count"] == 23 * 3


def test_an_open_loop_asks_at_the_times_that_were_drawn(mock):
    server = mock(first_s=0.3)
    d = figures(server.url, "--rate", 40, "-d", 1.5, "-n", 2)
    arrivals = [r["arrival"] for r in d["records"]]
    assert arrivals == sorted(arrivals) and arrivals[-1] <= 1.5
    assert 30 <= len(arrivals) <= 90  # 60 on average, with a standard deviation of 7.7
    assert server.most_open > 5  # nobody waited for the 0.3 s of the others
    first = server.requests[0]["at"] - arrivals[0]
    late = sorted(r["at"] - first - at for r, at in zip(server.requests, arrivals))
    assert late[len(late) // 2] < SLACK_MS / 1e3


def test_the_seed_alone_makes_the_load(mock, tmp_path):
    server = mock()
    path = lines(tmp_path, *(f"prompt {i}" for i in range(17)))

    def run(*args):
        server.requests.clear()
        d = figures(server.url, "-m", "m", "--rate", 300, "-N", 40, "-n", 1, "-f", path, *args)
        return [r["arrival"] for r in d["records"]], [r["prompt"] for r in d["records"]]

    first = run("--seed", 7)
    assert run("--seed", 7) == first
    other = run("--seed", 8)
    assert other[0] != first[0] and other[1] != first[1]
    assert sorted(first[1][:17]) == sorted(first[1][17:34]) == list(range(17))
    assert run("--in-order")[1] == [i % 17 for i in range(40)]
    even = run("--arrivals", "even")[0]
    assert even == pytest.approx([(i + 1) / 300 for i in range(40)], abs=2e-6)


def test_waiting_for_a_free_connection_counts(mock):
    """The server answers one request after another in 50 ms; twice as many arrive as it can do."""
    server = mock(first_s=0.05, serial=True)
    d = figures(server.url, "--rate", 40, "-N", 30, "-c", 1, "-n", 1, "--arrivals", "even")
    assert server.most_open == 1
    assert d["complete"] == 30
    # The last one arrives at 0.75 s and is served at 1.5 s at best: 0.7 s late, and all of that is in its time.
    assert d["tool"]["late_ms"]["max"] > 600
    assert d["ttft_ms"]["max"] > 650
    assert d["records"][-1]["ttft_ms"] >= d["records"][-1]["late_ms"] + 49


def test_times_are_those_of_the_stream(mock):
    server = mock(first_s=0.2, gap_s=0.03)
    d = figures(server.url, "-N", 3, "-n", 6, "--ttft-target", 200 + SLACK_MS, "--itl-target", 30 + SLACK_MS)
    assert 195 <= d["ttft_ms"]["min"] <= 200 + SLACK_MS
    assert 28 <= d["itl_ms"]["p50"] <= 30 + SLACK_MS
    assert 28 <= d["time_per_token_ms"]["min"] <= 30 + SLACK_MS
    assert min(r["longest_gap_ms"] for r in d["records"]) >= 28
    assert max(r["longest_gap_ms"] for r in d["records"]) == pytest.approx(d["itl_ms"]["max"])
    assert 345 <= d["latency_ms"]["min"] <= 350 + 2 * SLACK_MS
    assert d["goodput"]["requests"] == 3 and d["goodput"]["part"] == 1 and d["goodput"]["gaps_within_part"] == 1
    missed = figures(server.url, "-N", 2, "-n", 3, "--itl-target", 10)["goodput"]
    assert missed["requests"] == 0 and missed["gaps_within_part"] == 0 and missed["ttft_target_ms"] is None


def test_tokens_are_counted_where_the_server_does_not_report_them(mock):
    server = mock(usage=False)
    d = figures(server.url, "-N", 4, "-n", 7)
    assert d["tokens"]["output"] == 28 and d["tokens"]["counted_by"] == "deltas" and d["tokens"]["prompt"] is None
    text = load(server.url, "-N", 4, "-n", 7).stdout
    assert "counted as streamed pieces" in text and "not reported by the server" in text


# ---- interfaces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api, args, path", [
    ("openai", [], "/v1/completions"),
    ("openai", ["--chat"], "/v1/chat/completions"),
    ("tgi", [], "/generate_stream"),
    ("llm-serving", [], "/models/llama2/generate_stream"),
    ("llm-serving", ["--model", "a b/c"], "/models/a%20b%2Fc/generate_stream"),
])
def test_speaks_each_interface(mock, api, args, path):
    server = mock()
    d = figures(server.url, "--api", api, "-N", 3, "-n", 5, "--prompt-tokens", 8, *args)
    assert {r["path"].replace("%2f", "%2F") for r in server.requests} == {path}  # either case is right
    assert d["complete"] == 3 and d["tokens"]["output"] == 15 and d["tokens"]["counted_by"] == "server"
    assert d["itl_ms"]["count"] == 12
    texts = [json.dumps(r["body"]) for r in server.requests]
    assert len(set(texts)) == 3  # no prompt twice


def test_prompts_and_their_lengths_come_from_the_file(mock, tmp_path):
    server = mock()
    path = lines(tmp_path, {"prompt": "one", "max_tokens": 3}, {"messages": [{"role": "user", "content": "two"}], "output_len": 4},
                 {"prompt": "three"})
    d = figures(server.url, "-f", path, "--in-order", "-n", 9, "--temperature", 0, "--ignore-eos", "--body", '{"top_k": 4}')
    assert [r["output_tokens"] for r in d["records"]] == [3, 4, 9]
    assert [r["path"] for r in server.requests] == ["/v1/completions", "/v1/chat/completions", "/v1/completions"]
    assert server.requests[0]["body"] == {
        "prompt": "one", "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}, "model": "mock",
        "temperature": 0.0, "ignore_eos": True, "top_k": 4}
    again = figures(server.url, "-f", "-", "-n", 2, stdin="plain text\nmore of it\n")
    assert again["requests"] == 2


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_url_may_end_as_people_write_it(mock, suffix):
    server = mock()
    assert figures(server.url + suffix, "-N", 1, "-n", 1)["complete"] == 1
    assert server.requests[0]["path"] == "/v1/completions"


def test_keys_are_sent_in_turns_and_shown_nowhere(mock, tmp_path):
    server = mock()
    keys = tmp_path / "keys"
    keys.write_text("\ufeff  sk-one  \n# comment\n\nsk-two\n", encoding="utf-8")
    said = load(server.url, "-N", 4, "-n", 1, "--api-key-file", keys, "--json", tmp_path / "out.json", "--details")
    assert sorted(r["key"] for r in server.requests) == ["Bearer sk-one"] * 2 + ["Bearer sk-two"] * 2
    assert "sk-" not in said.stdout + said.stderr + (tmp_path / "out.json").read_text()
    records = json.loads((tmp_path / "out.json").read_text())["records"]
    assert [r["key"] for r in records] == [0, 1, 0, 1]
    server.requests.clear()
    load(server.url, "-N", 1, "-n", 1, env={"TUTTI_API_KEY": "sk-env"})
    assert server.requests[0]["key"] == "Bearer sk-env"
    server.requests.clear()
    load(server.url, "-N", 1, "-n", 1)
    assert server.requests[0]["key"] is None


def test_trusts_the_certificates_that_it_is_told(mock, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                    "2", "-subj", "/CN=mock", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server = mock(tls=tls)
    assert figures(server.url, "-N", 6, "-c", 2, "-n", 3, "--ca-file", certificate)["complete"] == 6
    assert "certificate" in load(server.url, check=1).stderr
    d = json.loads(load(server.url, "-m", "m", "-N", 1, "--json", "-", check=1).stdout)
    assert d["failures"]["no connection"]["count"] == 1


def test_proxies_of_the_environment_are_left_out(mock):
    env = {name: "http://127.0.0.1:9" for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy")}
    assert figures(mock().url, "-N", 1, "-n", 1, env=env)["complete"] == 1


# ---- servers that fail ------------------------------------------------------------------------------------------

KINDS = {
    "cut": "cut", "unended": "cut", "reset": "cut", "silence": "cut",
    "garbage": "bad answer", "html": "bad answer", "nohttp": "bad answer", "huge": "bad answer", "moved": "bad answer",
    "busy": "HTTP 429", "later": "HTTP 503", "wrong": "rejected",
    "broken": "server error", "endless": "server error", "error": "server error",
    "stall": "timeout", "hang": "timeout",
    "fine": None, "empty": None, "bytewise": None,
}


@pytest.mark.parametrize("loop", [["--rate", "200"], ["-c", "4"]])
def test_failures_are_told_apart(mock, tmp_path, loop):
    server = mock()
    path = lines(tmp_path, *(f"{word} please" for word in KINDS))
    d = figures(server.url, "-m", "m", "-f", path, "-n", 3, "--timeout", 4, "--in-order", *loop)
    found = {word: r["outcome"] for word, r in zip(KINDS, d["records"])}
    assert found == {word: kind or "complete" for word, kind in KINDS.items()}
    for kind, failure in d["failures"].items():
        n = sum(kind == k for k in KINDS.values())
        assert failure["count"] == n
        assert (failure["first"] is not None) == (n > 0)
        assert "\x1b" not in (failure["first"] or "")
    assert d["failures"]["HTTP 429"]["first"] == "HTTP 429: slow down, please"
    assert d["failures"]["rejected"]["first"].startswith("HTTP 400: {")
    assert d["silent"] == 1 and d["retry_after"] == {"count": 1, "mean_s": 3}
    assert d["tokens"]["output"] == 3 + 0 + 1  # of the complete ones


def test_each_kind_of_failure_says_what_was_seen(mock, tmp_path):
    server = mock()
    said = {"garbage": "no JSON object", "html": "no event in the whole answer", "huge": "a line of more than 1048576 bytes",
            "moved": "HTTP 302", "error": "lost my mind", "unended": "the stream ended before the answer did"}
    for word, text in said.items():
        done = load(server.url, "-m", "m", "-f", "-", "-n", 1, stdin=word + "\n", check=1)
        assert text in done.stdout, word
        assert "none of the 1 requests had a complete answer" in done.stderr


def test_refusals_with_retry_after_are_averaged_and_obeyed(mock, tmp_path):
    server = mock()
    path = lines(tmp_path, "busy", "fine")
    begin = time.monotonic()
    text = load(server.url, "-m", "m", "-f", path, "--in-order", "-N", 2, "-n", 1).stdout
    assert time.monotonic() - begin >= 2.9
    assert re.search(r"with Retry-After +1 +3\.0 s on average", text)


def test_a_dead_server_is_no_busy_loop(mock):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = load(url, check=1)
        assert done.stdout == "" and "/v1/models: " in done.stderr
        done = load(url, "-m", "m", "-d", 0.5, "-c", 2, "--json", "-", check=1)
        d = json.loads(done.stdout)
        assert 2 <= d["failures"]["no connection"]["count"] == d["requests"] <= 12
        d = json.loads(load(url, "-m", "m", "--rate", 100, "-N", 20, "--json", "-", check=1).stdout)
        assert d["failures"]["no connection"]["count"] == 20
    done = load("http://no.such.host.invalid", "-m", "m", "-N", 1, check=1)
    assert "no connection" in done.stdout


def test_a_kept_connection_that_the_server_closed_is_no_failure(mock):
    server = mock(closes=True)
    d = figures(server.url, "-m", "m", "-N", 10, "-n", 1)
    assert d["complete"] == 10 and server.n_connections >= 10


@pytest.mark.parametrize("n_words", [3, 500000])  # more than the system takes before the server reads
def test_a_kept_connection_that_breaks_under_a_request_is_no_failure(mock, tmp_path, n_words):
    server = mock(closes="asked")
    path = lines(tmp_path, " ".join(["fine"] * n_words))
    d = figures(server.url, "-m", "m", "-f", path, "-N", 10, "-n", 1)
    assert d["complete"] == 10 and d["tool"]["sent_again"] == 9 and len(server.requests) == 10 == server.n_connections


def test_a_new_connection_that_breaks_under_a_request_is_a_failure(mock, tmp_path):
    server = mock()
    d = figures(server.url, "-m", "m", "-f", lines(tmp_path, "silence"), "-N", 2, "-n", 1, check=1)
    assert d["complete"] == 0 and d["tool"]["sent_again"] == 0 and d["failures"]["cut"]["count"] == 2


def test_a_connection_for_each_request(mock):
    server = mock()
    assert figures(server.url, "-m", "m", "-N", 10, "-n", 1, "--no-reuse")["complete"] == 10
    assert server.n_connections == 10


# ---- the end of a run -------------------------------------------------------------------------------------------


def test_what_does_not_end_in_time_is_unfinished(mock, tmp_path):
    server = mock()
    begin = time.monotonic()
    d = figures(server.url, "-m", "m", "-f", lines(tmp_path, "fine", "hang", "stall"), "--in-order", "--rate", 50, "-N", 9,
                "-c", 4, "-n", 1, "--drain", 0.5)
    assert time.monotonic() - begin < 30
    assert d["complete"] == 1 + 1 or d["complete"] == 1 + 2  # the slots fill up with those that hang
    assert d["complete"] + d["failures"]["unfinished"]["count"] == 9
    never = [r for r in d["records"] if r["late_ms"] is None]
    assert never and all(r["outcome"] == "unfinished" and r["latency_ms"] is None for r in never)


def test_a_duration_ends_the_arrivals(mock):
    server = mock(first_s=0.1)
    d = figures(server.url, "-m", "m", "-c", 3, "-d", 1, "-n", 1)
    assert 6 <= d["complete"] == d["requests"] <= 33
    assert max(r["arrival"] for r in d["records"]) <= 1
    nobody = load(server.url, "-m", "m", "--rate", 0.001, "-d", 0.2)
    assert re.search(r"complete +0 ", nobody.stdout)


def test_progress_is_drawn_at_a_terminal_and_wiped(mock):
    server = mock(gap_s=0.1)
    ours, theirs = pty.openpty()
    process = subprocess.Popen([BIN, "load", server.url, "-N", "2", "-n", "9"], stdout=subprocess.PIPE, stderr=theirs,
                               env={**os.environ, "TERM": "xterm"})
    out = process.communicate(timeout=PATIENCE)[0]
    os.close(theirs)
    drawn = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # all of it was read
            break
        drawn += more
    os.close(ours)
    assert process.returncode == 0 and b"\x1b" not in out
    assert re.search(rb"\r\x1b\[K\d\.\d s: 1 arrived, 1 running, 0 complete, 0 failed, \d+ pieces/s", drawn)
    assert drawn.endswith(b"\r\x1b[K")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_reported(mock, tmp_path, number):
    server = mock()
    path = lines(tmp_path, "fine", "hang")
    process = subprocess.Popen([BIN, "load", server.url, "-m", "m", "-f", path, "--in-order", "--rate", "100", "-d", "60",
                                "-n", "1", "--json", tmp_path / "out.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + PATIENCE
    while len(server.requests) < 6 and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and err == b""
    d = json.loads((tmp_path / "out.json").read_text())
    assert d["interrupted"] and d["complete"] >= 2 and d["failures"]["unfinished"]["count"] >= 2
    assert b"unfinished" in out


def test_details_have_what_a_page_of_plots_needs(mock, tmp_path):
    """Percentiles as NumPy defines them, and every piece of text in its tenth of a second; bench/load-page draws them."""
    server = mock(gap_s=0.002)
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    load(server.url, "-f", lines(tmp_path, "fine", "fine", "wrong"), "--rate", 100, "-N", 60, "-n", 4, "--json", out, "--details")
    d = json.loads(out.read_text())
    assert sum(d["pieces"]["counts"]) == sum(r["pieces"] for r in d["records"]) == 160 and d["pieces"]["tick_s"] == 0.1
    latency = sorted(r["latency_ms"] for r in d["records"] if r["outcome"] == "complete")
    assert d["percentiles_ms"]["latency"] == pytest.approx([latency[0], *statistics.quantiles(latency, n=100, method="inclusive"),
                                                            latency[-1]])
    for name, key in (("ttft", "ttft_ms"), ("itl", "itl_ms"), ("time_per_token", "time_per_token_ms")):
        assert [d["percentiles_ms"][name][i] for i in (0, 50, 90, 99, 100)] == pytest.approx(
            [d[key][k] for k in ("min", "p50", "p90", "p99", "max")])
    done = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "load-page"), out, page], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0 and done.stderr == ""
    assert page.read_text(encoding="utf-8").count("<svg") == 5
    assert not {"percentiles_ms", "pieces", "records"} & set(json.loads(load(server.url, "-N", 1, "--json", "-").stdout))


@pytest.mark.parametrize("args, said", [
    ([], "expected URL, such as http://127.0.0.1:8080"),
    (["127.0.0.1:8080"], "expected a URL such as http://127.0.0.1:8080"),
    (["ftp://127.0.0.1"], "expected a URL of http or https"),
    (["file:///etc/passwd"], "expected a URL of http or https"),
    (["http://"], "expected a URL such as http://127.0.0.1:8080"),
    (["http://127.0.0.1:1/?x=1"], "expected a URL without a query"),
    (["http://me@127.0.0.1:1/"], "expected a URL without a user name"),
    (["http://127.0.0.1:1\n"], "expected a URL such as http://127.0.0.1:8080"),
    (["http://h", "--rate", "0"], "--rate: found '0', expected a number above 0, up to 100000"),
    (["http://h", "--rate", "nan"], "--rate: found 'nan'"),
    (["http://h", "-c", "20001"], "-c: found '20001', expected a whole number from 1 to 20000"),
    (["http://h", "-N", "10000001"], "-N: found '10000001', expected a whole number from 1 to 10000000"),
    (["http://h", "--api", "grpc"], "--api: found 'grpc', expected openai, llm-serving or tgi"),
    (["http://h", "--api", "tgi", "--chat"], "messages can only be sent with --api openai"),
    (["http://h", "--api", "tgi", "--ignore-eos"], "--ignore-eos: only --api openai has a field for it"),
    (["http://h", "--body", "[1]"], "--body: expected a JSON object"),
    (["http://h", "--body", "{"], "--body: column"),
    (["http://h", "--details"], "--details has no effect without --json"),
    (["http://h", "--html", "x"], "unknown option --html"),
    (["http://h", "--in-order"], "--in-order has no effect without --prompts"),
    (["http://h", "--model", "a\x1bb"], "--model: expected a name of printable characters"),
])
def test_wrong_calls_say_what_is_expected(args, said):
    done = load(*args, check=2)
    assert done.stdout == "" and said in done.stderr


def test_files_that_cannot_be_used_end_it_before_it_begins(mock, tmp_path):
    server = mock()
    empty = tmp_path / "empty"
    empty.write_text("# none\n")
    for args, said in ((["--json", tmp_path / "no" / "such"], "No such file"),
                       (["-f", tmp_path / "none"], "No such file"),
                       (["--api-key-file", empty], "no key found"),
                       (["-f", lines(tmp_path, {"prompt": "x", "max_tokens": -1})], "max_tokens: -1")):
        done = load(server.url, *args, check=1)
        assert done.stdout == "" and said in done.stderr
    assert server.requests == []


def test_many_streams_at_once(mock):
    server = mock(first_s=0.2, gap_s=0.2)
    d = figures(server.url, "-m", "m", "-c", 1000, "-N", 2000, "-n", 3, "--timeout", 60)
    assert d["complete"] == 2000 and d["tokens"]["output"] == 6000
    assert server.most_open == 1000


# ---- tutti itself -----------------------------------------------------------------------------------------------


def test_measures_tutti(tmp_path):
    server = subprocess.Popen([BIN, "serve", DEMO, "--port", "0", "--no-access-log", "--api", "tgi,llm-serving"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        url = server.stdout.readline().decode().split()[-1]
        assert url.startswith("http://")
        path = lines(tmp_path, {"prompt": "The fox", "max_tokens": 5},
                     {"messages": [{"role": "user", "content": "Tell me a story about a fox named Mia."}], "max_tokens": 12})
        d = figures(url, "-f", path, "-N", 12, "-c", 4, "--ignore-eos", "--temperature", 0)
        assert d["complete"] == 12 and d["tokens"]["counted_by"] == "server"
        assert d["tokens"]["output"] == 6 * 5 + 6 * 12
        assert d["settings"]["model"] == "demo"
        text = load(url, "--rate", 20, "-N", 10, "-n", 4, "--chat").stdout
        assert re.search(r"complete +10 ", text) and "as reported by the server" in text
        for api in (["--api", "tgi"], ["--api", "llm-serving", "-m", "demo"]):
            d = figures(url, "-N", 6, "-c", 3, "-n", 5, *api)
            assert d["complete"] == 6 and d["tokens"]["counted_by"] == "server" and 6 <= d["tokens"]["output"] <= 30
        refused = load(url, "-N", 1, "-n", 1, "--body", '{"temperature": "hot"}', check=1)
        assert "HTTP 400" in refused.stdout
    finally:
        server.terminate()
        assert server.wait(PATIENCE) == 0
        server.stdout.close()
