"""HTTPS: who may speak, what wrong files say, and that SIGHUP changes keys and certificates under load."""
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest
import requests
from conftest import BIN, DEMO, PATIENCE

STORY = {"messages": [{"role": "user", "content": "Tell me a story about a fox named Mia."}], "temperature": 0}


def openssl(*args):
    done = subprocess.run(["openssl", *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


class Authority:
    """A certificate authority in a folder, and what it has signed. pem: its certificate."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.pem = folder / f"{name}.pem"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 30, "-subj",
                f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", self.pem)

    def sign(self, name, days=30):
        """Returns (certificate, key)."""
        base = self.folder / name
        request, cert, key, extension = (base.with_suffix(s) for s in (".csr", ".crt", ".key", ".ext"))
        extension.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                "-keyout", key, "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.pem, "-CAkey", self.folder / f"{self.name}.key", "-CAcreateserial",
                "-days", days, "-extfile", extension, "-out", cert)
        return cert, key


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"), "root")


@pytest.fixture
def pair(authority, tmp_path):
    """The server's own files, free to be changed."""
    cert, key = authority.sign("server")
    mine = tmp_path / "cert.pem", tmp_path / "key.pem"
    mine[0].write_bytes(cert.read_bytes())
    mine[1].write_bytes(key.read_bytes())
    return mine


@pytest.fixture
def start_tls(start, pair, authority, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.pem))
    return lambda *flags: start("--tls-cert", pair[0], "--tls-key", pair[1], *flags)


def connect(server, authority, **options):
    """A TLS connection; options: attributes of the context."""
    context = ssl.create_default_context(cafile=authority.pem)
    chain = options.pop("chain", None)
    if chain:
        context.load_cert_chain(*chain)
    alpn = options.pop("alpn", None)
    if alpn:
        context.set_alpn_protocols(alpn)
    for name, value in options.items():
        setattr(context, name, value)
    return context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), PATIENCE), server_hostname="localhost")


def serial(sock):
    return sock.getpeercert()["serialNumber"]


def test_answers_and_streams_as_over_plain_http(start_tls, server):
    secure = start_tls()
    assert secure.url.startswith("https://127.0.0.1:")
    plain = server.chat(STORY["messages"][0]["content"], temperature=0).json()
    assert secure.chat(STORY["messages"][0]["content"], temperature=0).json()["choices"] == plain["choices"]
    text = ""
    with requests.post(secure.url + "/v1/chat/completions", json={**STORY, "stream": True}, stream=True,
                       timeout=PATIENCE) as reply:
        for line in reply.iter_lines():
            if line.startswith(b"data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    assert text == plain["choices"][0]["message"]["content"]
    assert secure.get("/", headers={"Accept": "text/html"}).ok
    assert secure.metrics()["tutti_tls_certificate_end_seconds"] > time.time()


def test_a_connection_serves_many_requests_and_ends_with_a_word(start_tls, authority):
    server = start_tls("--idle-timeout", 5)
    with connect(server, authority, minimum_version=ssl.TLSVersion.TLSv1_3) as sock:
        for _ in range(3):
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            reply = http.client.HTTPResponse(sock)
            reply.begin()
            assert reply.status == 200 and json.load(reply) == {"status": "ok"}
        assert sock.recv(100) == b""  # without close_notify this would raise SSLEOFError
    with connect(server, authority, maximum_version=ssl.TLSVersion.TLSv1_2) as sock:
        sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        got = b""
        while (piece := sock.recv(4096)):
            got += piece
        assert got.startswith(b"HTTP/1.1 200 ") and got.endswith(b'{"status":"ok"}')


def test_a_body_larger_than_any_buffer_arrives(start_tls):
    server = start_tls()
    reply = server.post("/tokenize", {"prompt": "Mia", "unknown": "fox " * 900_000})
    assert reply.status_code == 200 and reply.json()["count"] > 0


def test_a_client_that_has_closed_its_side_gets_its_reply(start_tls, authority):
    server = start_tls()
    n_bytes = len(server.get("/katex/katex.min.js").content)
    with connect(server, authority, minimum_version=ssl.TLSVersion.TLSv1_3) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /katex/katex.min.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(0.1)
        sock.shutdown(socket.SHUT_WR)
        got = b""
        while (piece := socket.socket.recv(sock, 65536)):
            got += piece
    assert len(got) > n_bytes  # of TLS' records


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_protocols_and_strangers_are_refused(start_tls, authority):
    server = start_tls("--log-level", "debug")
    with pytest.raises(ssl.SSLError):
        with_old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with_old.check_hostname, with_old.verify_mode = False, ssl.CERT_NONE
        with_old.set_ciphers("ALL:@SECLEVEL=0")
        with_old.minimum_version, with_old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        with_old.wrap_socket(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
    with pytest.raises(ssl.SSLError):
        connect(server, authority, alpn=["h2"])
    with connect(server, authority, alpn=["h2", "http/1.1"]) as sock:
        assert sock.selected_alpn_protocol() == "http/1.1"
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            assert b"200" not in sock.recv(100)
        except ConnectionResetError:
            pass
    assert server.wait_until(lambda m: m["tutti_tls_handshake_failures_total"] >= 3)
    server.wait_for_log("TLS handshake: ")


def test_a_client_that_leaves_while_it_is_answered_is_found_out(start_tls, authority):
    server = start_tls()
    body = b'{"prompt": "Tell me a story", "max_tokens": 480, "ignore_eos": true, "n": 64}'
    with connect(server, authority) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        server.wait_until(lambda m: m["tutti_sequences_running"] >= 1)
    server.wait_until(lambda m: m["tutti_engine_requests_cancelled_total"] == 1)
    server.wait_idle()


def test_handshakes_that_do_not_go_on_are_ended_and_keep_nobody_out(start_tls, authority):
    server = start_tls("--header-timeout", 10)
    silent = [socket.create_connection(("127.0.0.1", server.port), PATIENCE) for _ in range(1100)]
    try:
        with connect(server, authority) as sock:  # the oldest ones make room
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert sock.recv(15) == b"HTTP/1.1 200 OK"
        assert server.metrics()["tutti_tls_handshake_failures_total"] >= 70
        server.wait_until(lambda m: m["tutti_tls_handshake_failures_total"] == 1100)
        for one in silent:
            one.settimeout(PATIENCE)
            assert one.recv(1) == b""
    finally:
        for one in silent:
            one.close()


def test_certificates_of_clients(start_tls, authority, tmp_path):
    people = Authority(tmp_path, "people")
    server = start_tls("--tls-client-ca", people.pem)
    mine, other = people.sign("alice"), authority.sign("mallory")

    def ask(chain):
        with connect(server, authority, chain=chain) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return sock.recv(15)

    assert ask(mine) == b"HTTP/1.1 200 OK"
    for chain in (None, other):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            assert ask(chain) == b""
            raise ConnectionError  # the alert may be lost in the reset


def wrong_files(folder, authority):
    cert, key = authority.sign("wrong")
    other = authority.sign("other")[1]
    locked, empty, text = folder / "locked.key", folder / "empty.pem", folder / "text.pem"
    openssl("pkcs8", "-topk8", "-in", key, "-passout", "pass:secret", "-out", locked)
    empty.write_text("")
    text.write_text("hello\n")
    return [
        ([folder / "none", key], "none: No such file or directory"),
        ([cert, folder / "none"], "none: No such file or directory"),
        ([folder, key], "Is a directory"),
        ([empty, key], "empty.pem: the file is empty"),
        ([text, key], "text.pem: holds no certificate in PEM"),
        ([key, key], "holds no certificate in PEM"),
        ([cert, text], "text.pem: holds no private key in PEM"),
        ([cert, cert], "holds no private key in PEM"),
        ([cert, other], "other.key: the key does not belong to the certificate"),
        ([cert, locked], "locked.key: the key needs a passphrase"),
        ([cert, key, folder / "none"], "none: No such file or directory"),
        ([cert, key, text], "text.pem: holds no certificate in PEM"),
    ]


def test_wrong_files_are_named(authority, tmp_path):
    for files, words in wrong_files(tmp_path, authority):
        flags = [x for pair in zip(["--tls-cert", "--tls-key", "--tls-client-ca"], files) for x in pair]
        done = subprocess.run([BIN, "serve", DEMO, "--port", "0", *flags], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 1 and words in done.stderr and not done.stdout, (words, done.stderr)
    for flags, words in ([["--tls-cert", "x"], "--tls-cert: expected --tls-key too"], [["--tls-key", "x"], "--tls-key: expected --tls-cert too"],
                         [["--tls-client-ca", "x"], "--tls-client-ca: expected --tls-cert and --tls-key too"]):
        done = subprocess.run([BIN, "serve", DEMO, "--port", "0", *flags], capture_output=True, text=True, timeout=PATIENCE,
                              check=False)
        assert done.returncode == 2 and words in done.stderr


def test_a_certificate_that_ends_soon_is_told(start, authority):
    cert, key = authority.sign("brief", days=2)
    server = start("--tls-cert", cert, "--tls-key", key)
    assert re.search(r"warn .*brief.crt: the certificate expires 20\d\d-", server.log())


def test_sighup_changes_keys_and_certificate_and_drops_nobody(start_tls, authority, pair, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    server = start_tls("--api-key-file", keys)
    body = {**STORY, "max_tokens": 30, "ignore_eos": True}
    want = server.post("/v1/chat/completions", body, headers={"Authorization": "Bearer old"}).json()["choices"]
    stop, wrong, done = threading.Event(), [], [0]

    def ask():
        with requests.Session() as session:
            while not stop.is_set():
                reply = session.post(server.url + "/v1/chat/completions", json=body, timeout=PATIENCE,
                                     headers={"Authorization": "Bearer both"})
                if reply.status_code != 200 or reply.json()["choices"] != want:
                    wrong.append(reply.text)
                done[0] += 1

    keys.write_text("old\nboth\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("were read again")
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    kept = connect(server, authority)
    before = serial(kept)
    for turn in range(5):
        cert, key = authority.sign(f"renewed{turn}")
        pair[0].write_bytes(cert.read_bytes())
        pair[1].write_bytes(key.read_bytes())
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("were read again", turn + 2)
        with connect(server, authority) as fresh:
            assert serial(fresh) == ssl._ssl._test_decode_cert(str(cert))["serialNumber"]
    keys.write_text("both\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("were read again", 7)
    kept.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer old\r\n\r\n")
    assert kept.recv(12) == b"HTTP/1.1 401" and serial(kept) == before
    kept.close()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and done[0] > 0
    assert server.metrics()["tutti_reloads_total"] == 7


def test_sighup_with_a_wrong_file_changes_nothing(start_tls, authority, pair, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    server = start_tls("--api-key-file", keys)
    with connect(server, authority) as sock:
        before = serial(sock)
    keys.write_text("new\n")
    good = pair[0].read_bytes()
    pair[0].write_bytes(authority.sign("another")[0].read_bytes())
    for _ in range(2):
        server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("nothing was changed")
    server.wait_for_log("the key does not belong to the certificate")
    with connect(server, authority) as sock:
        assert serial(sock) == before
    status = {key: server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code for key in ("old", "new")}
    assert status == {"old": 200, "new": 401}
    assert server.metrics()["tutti_reload_failures_total"] >= 1
    pair[0].write_bytes(good)
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("were read again")
    assert server.get("/v1/models", headers={"Authorization": "Bearer new"}).status_code == 200


def test_the_end_of_its_terminal_ends_the_server():
    primary, secondary = os.openpty()
    process = subprocess.Popen(["setsid", "--ctty", BIN, "serve", DEMO, "--port", "0"], stdin=secondary,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    os.close(secondary)
    assert process.stdout.readline().startswith(b"listening on ")
    os.close(primary)
    assert process.wait(PATIENCE) == 0
    process.stdout.close()
