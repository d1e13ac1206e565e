"""What web pages may send: by the name they address the server with, by where they come from, and by what they can send unasked."""
import json
import os
import re
import socket
import stat
import subprocess

import pytest
import requests

from conftest import BIN, DEMO, PATIENCE

JSON = {"Content-Type": "application/json"}
BODY = json.dumps({"prompt": "x"})


def status(server, headers, path="/tokenize", body=BODY, method="POST"):
    """By hand, since a library would add headers of its own."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "Connection: close"]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n" + (body or "")).encode())
        reply = b""
        while (piece := sock.recv(65536)):
            reply += piece
    return int(reply.split()[1]), reply


def ask(server, host="localhost", **headers):
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return status(server, {"Host": host, **JSON, **more})[0]


# ---- Host ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "localhost.", "a.localhost", "b.a.localhost:1", "127.0.0.1", "127.0.0.1:80",
                                  "10.1.2.3:8000", "[::1]", "[::1]:8080", "[fe80::1%25eth0]:1", ""])
def test_addresses_and_names_of_this_machine_are_allowed(server, host):
    assert ask(server, host) == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "evillocalhost",
                                  "x", "localhost:80:80", "[::1", "[localhost]", "0x7f.1", "127.1", "localhost:8080a", "."])
def test_any_other_name_is_refused_whatever_is_asked(server, host):
    for method, path, body in (("POST", "/tokenize", BODY), ("GET", "/v1/models", None), ("GET", "/", None), ("GET", "/metrics", None),
                               ("GET", "/health", None), ("GET", "/nothing", None), ("OPTIONS", "/tokenize", None)):
        code, reply = status(server, {"Host": host, **JSON}, path, body, method)
        assert code == 403 and b"--allow-host" in reply, (host, path, reply)


@pytest.mark.parametrize("host", ["user@localhost", "localhost/x", "a b", "localhost, localhost", "localhost?x", "localhost#x", "\\localhost"])
def test_a_host_that_is_none_is_refused(server, host):
    assert ask(server, host) == 400


def test_the_name_in_an_absolute_target_comes_before_the_header(server):
    assert status(server, {"Host": "localhost", **JSON}, "http://evil.example/tokenize")[0] == 403
    assert status(server, {"Host": "evil.example", **JSON}, "http://localhost/tokenize")[0] == 200
    assert status(server, {"Host": "localhost"}, "http://127.0.0.1:80/?x", None, "GET")[0] == 200


def test_a_client_that_sends_no_name_is_no_browser(server):
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:  # as haproxy checks
        sock.sendall(b"OPTIONS /health HTTP/1.0\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 204"


def test_further_names_are_allowed_by_a_flag(start):
    server = start("--allow-host", "chat.example", "--allow-host", "*.inner.example")
    for host, want in (("chat.example", 200), ("Chat.Example:443", 200), ("a.chat.example", 403), ("x.inner.example", 200),
                       ("y.x.inner.example", 200), ("inner.example", 403), ("xinner.example", 403), ("localhost", 200)):
        assert ask(server, host) == want, host
    assert ask(start("--allow-host", "*"), "evil.example") == 200


def test_the_name_that_is_listened_on_and_the_machines_own_are_allowed(start):
    own = socket.gethostname()
    assert ask(start(), own) == (200 if own == "localhost" else 403)
    server = start("--host", "0.0.0.0")
    assert ask(server, own) == 200 and ask(server, own.split(".")[0]) == 200 and ask(server, "evil.example") == 403


def test_where_keys_are_needed_any_name_is_allowed_until_some_are_listed(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-a alice\n")
    server = start("--api-key-file", keys)
    assert ask(server, "evil.example", Authorization="Bearer sk-a") == 200
    server = start("--api-key-file", keys, "--allow-host", "chat.example")
    assert ask(server, "evil.example", Authorization="Bearer sk-a") == 403
    assert ask(server, "chat.example", Authorization="Bearer sk-a") == 200


def test_no_page_reaches_a_unix_socket(start, tmp_path):
    path = str(tmp_path / "socket")
    start("--unix", path)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: any.example\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("flags, mode", [((), 0o660), (("--unix-mode", "0600"), 0o600), (("--unix-mode", "666"), 0o666)])
def test_who_may_connect_to_a_unix_socket_does_not_depend_on_the_umask(start, tmp_path, flags, mode):
    before = os.umask(0o077)
    try:
        start("--unix", tmp_path / "api", "--metrics-listen", f"unix:{tmp_path / 'metrics'}", *flags)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("api", "metrics")] == [mode, mode]


# ---- Origin ----------------------------------------------------------------------------------------------------------

def test_pages_of_others_are_refused_where_no_key_is_needed(server):
    own = f"localhost:{server.port}"
    for origin, want in ((f"http://{own}", 200), (f"http://127.0.0.1:{server.port}", 403), ("http://localhost:3000", 403), ("http://localhost", 403),
                         ("https://evil.example", 403), ("null", 403), (f"http://{own}.evil.example", 403), ("", 403), ("file://", 403)):
        assert ask(server, own, Origin=origin) == want, origin
    assert ask(server, "localhost", Origin="http://localhost") == ask(server, "localhost", Origin="https://localhost:443") == 200
    code, reply = status(server, {"Host": own, "Origin": "https://evil.example", **JSON})
    assert code == 403 and b"a page of https://evil.example must not use this server" in reply and b"--cors-origin" in reply
    assert b"Access-Control-Allow-Origin" not in reply


def test_what_a_browser_fetches_for_a_page_of_another_site_is_refused(server):
    for site, mode, want in (("cross-site", "no-cors", 403), ("same-site", "no-cors", 403), ("cross-site", "navigate", 200),
                             ("same-origin", "cors", 200), ("none", "navigate", 200), ("cross-site", None, 403)):
        headers = {"Host": "localhost", "Sec-Fetch-Site": site, **({"Sec-Fetch-Mode": mode} if mode else {})}
        assert status(server, headers, "/v1/models", None, "GET")[0] == want, (site, mode)
    assert ask(server, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 403  # a form


def test_a_page_whose_origin_is_allowed_may_ask(start):
    server = start("--cors-origin", "https://chat.example")
    assert ask(server, Origin="https://chat.example") == 200
    assert ask(server, Origin="https://evil.example") == 403
    preflight = {"Host": "localhost", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    assert status(server, {**preflight, "Origin": "https://chat.example"}, "/tokenize", None, "OPTIONS")[0] == 204
    assert status(server, {**preflight, "Origin": "https://evil.example"}, "/tokenize", None, "OPTIONS")[0] == 403
    assert ask(start("--cors-origin", "*"), Origin="https://any.example") == 200


def test_a_page_that_knows_a_key_is_a_client(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-a alice\n")
    server = start("--api-key-file", keys)
    assert ask(server, Origin="https://other.example", Authorization="Bearer sk-a") == 200
    assert ask(server, Origin="https://other.example") == 401


# ---- what a page can send without asking -------------------------------------------------------------------------------

POSTS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize", "/detokenize", "/generate", "/generate_stream",
         "/", "/models/x", "/models/x/generate", "/models/x/generate_stream", "/llm/generate"]


@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_is_not_called_json_is_refused(compat, path):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain; application/json",
                 "application/jsonx", "application/", "+json", None):
        headers = {"Host": "localhost", **({"Content-Type": kind} if kind else {})}
        code, reply = status(compat, headers, path)
        assert code == 415 and b"expected application/json" in reply, (kind, reply)


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;x", "application/vnd.api+json"])
def test_every_spelling_of_json_is_taken(server, kind):
    assert status(server, {"Host": "localhost", "Content-Type": kind})[0] == 200


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "gzip, identity"])
def test_a_compressed_body_is_refused_by_its_coding(server, coding):
    code, reply = status(server, {"Host": "localhost", **JSON, "Content-Encoding": coding})
    assert code == 415 and f'Content-Encoding is \\"{coding}\\"'.encode() in reply and b"Accept-Encoding: identity" in reply
    assert status(server, {"Host": "localhost", **JSON, "Content-Encoding": "identity"})[0] == 200


# ---- at the start ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("flags, warns", [(["--host", "0.0.0.0"], True), (["--host", "::"], True), (["--host", "127.0.0.1"], False),
                                          (["--host", "localhost"], False), (["--unix", "SOCKET"], False)])
def test_a_server_open_to_everybody_says_so_at_its_start(start, tmp_path, flags, warns):
    server = start(*[str(tmp_path / "s") if flag == "SOCKET" else flag for flag in flags])
    assert ("any client that can connect may use the model" in server.log()) == warns


def test_a_server_with_keys_is_not_open_to_everybody(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-a\n")
    assert "any client that can connect" not in start("--host", "0.0.0.0", "--api-key-file", keys).log()
