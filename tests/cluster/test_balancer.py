"""deploy/haproxy/haproxy.cfg under a real HAProxy, in front of replicas that do what each test wants."""
import collections
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from balancer import CONFIG, HOST, Balancer, free_port, get, wait_for  # noqa: E402

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")
PATIENCE = 120 * int(os.environ.get("TIMEOUT_MULTIPLIER", "1"))
NAMES = ["replica1", "replica2", "replica3"]


class Stub(ThreadingHTTPServer):
    """A replica whose answers a test chooses: behave(handler, body) writes them."""
    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__((HOST, free_port()), Handler)
        self.port = self.server_address[1]
        self.is_healthy = True
        self.behave = answer
        self.bodies = []
        self.connections = []
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def process_request(self, request, client_address):
        self.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request, client_address):
        pass  # who leaves, leaves

    def die(self):
        """As kill -9 does it: nobody listens, and every connection is cut."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.reply(200 if self.server.is_healthy else 503, {"status": "ok" if self.server.is_healthy else "draining"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(body)
        self.server.behave(self, body)

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def piece(self, text):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))


def answer(handler, body):
    handler.reply(200, {"size": len(body)})


def drop(handler, body):
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture(name="stubs")
def stubs_fixture():
    stubs = [Stub() for _ in NAMES]
    yield stubs
    for stub in stubs:
        stub.die()


@pytest.fixture(name="balancer")
def balancer_fixture(stubs, tmp_path):
    balancer = Balancer([stub.port for stub in stubs], tmp_path)
    wait_for("HAProxy to know its replicas", lambda: balancer.n_up() == len(NAMES))
    yield balancer
    balancer.close()
    assert balancer.process.returncode in (0, -15, 143), balancer.log()


def post(balancer, body, path="/v1/chat/completions", over=None, **headers):
    """(status, headers, body) of the reply. over: a connection for it; requests on one never overlap, also not to HAProxy."""
    connection = over or http.client.HTTPConnection(HOST, balancer.port, timeout=PATIENCE)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    try:
        return response.status, response.headers, response.read()
    finally:
        if not over:
            connection.close()


@pytest.fixture(name="line")
def line_fixture(balancer):
    connection = http.client.HTTPConnection(HOST, balancer.port, timeout=PATIENCE)
    yield connection
    connection.close()


def served_by(balancer, body, **headers):
    status, found, _ = post(balancer, body, **headers)
    assert status == 200
    return found["X-Served-By"]


def test_haproxy_accepts_the_configuration_without_a_warning():
    done = subprocess.run(["haproxy", "-c", "-f", CONFIG], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0 and (done.stdout + done.stderr).strip() == "Configuration file is valid"


def turns(first, *more, system=None, wrap=lambda text: text):
    """The requests of a conversation, one for each turn."""
    messages = [{"role": "system", "content": system}] if system else []
    for said, answered in zip((first, *more), ("It is.", "Why not?", "So be it.")):
        messages.append({"role": "user", "content": wrap(said)})
        yield {"model": "demo", "messages": list(messages), "stream": True}
        messages.append({"role": "assistant", "content": answered})


SAID = [f"Tell me about the number {i}, \"please\"\nnow \\ {{}}" for i in range(24)]
PARTS = {"wrap": lambda text: [{"type": "text", "text": text}]}


@pytest.mark.parametrize("more", [{}, {"system": "You are \"role\": \"user\", \"content\": \"kind\"."}, PARTS], ids=["plain", "system", "parts"])
@pytest.mark.parametrize("spell", [lambda v: json.dumps(v).encode(), lambda v: json.dumps(v, ensure_ascii=False).encode(),
                                   lambda v: json.dumps(v, separators=(",", ":")).encode(), lambda v: json.dumps(v, indent=2).encode()],
                         ids=["ascii", "utf8", "dense", "indented"])
def test_a_conversation_stays_with_its_replica(balancer, line, more, spell):
    homes = collections.Counter()
    for said in SAID:
        said = "\u4f60\u597d " + said
        found = {served_by(balancer, spell(body), over=line) for body in turns(said, "And then?", "Why?", **more)}
        assert len(found) == 1, said
        homes.update(found)
    assert set(homes) == set(NAMES), homes


def test_a_conversation_goes_by_what_the_client_calls_it(balancer, line):
    for name, place in (("header", lambda i: ({}, {"X-Conversation-Id": f"chat-{i}"})),
                        ("field", lambda i: ({"prompt_cache_key": f"chat-{i}"}, {}))):
        homes = collections.Counter()
        for i in range(24):
            found = set()
            for said in ("one", "two", "three"):  # no beginning in common
                extra, headers = place(i)
                body = {"messages": [{"role": "user", "content": said + name}], **extra}
                found.add(served_by(balancer, body, over=line, **headers))
            assert len(found) == 1
            homes.update(found)
        assert set(homes) == set(NAMES), (name, homes)
    # The header is what counts where both are there.
    header = {"X-Conversation-Id": "one"}
    found = {served_by(balancer, {"messages": [], "prompt_cache_key": str(i)}, over=line, **header) for i in range(8)}
    assert len(found) == 1


def test_other_conversations_stay_where_they_are_when_a_replica_goes(balancer, line, stubs):
    bodies = [next(turns(said)) for said in SAID]
    before = [served_by(balancer, body, over=line) for body in bodies]
    stubs[1].die()
    wait_for("HAProxy to notice", lambda: balancer.n_up() == 2)
    after = [served_by(balancer, body, over=line) for body in bodies]
    assert "replica2" not in after
    assert [b for b in before if b != "replica2"] == [a for a, b in zip(after, before) if b != "replica2"]


def hold(stubs):
    """Makes every answer wait for release.set()."""
    release, n = threading.Event(), threading.Semaphore(0)

    def wait(handler, body):
        n.release()
        assert release.wait(PATIENCE)
        answer(handler, body)

    for stub in stubs:
        stub.behave = wait
    return release, n


@pytest.mark.parametrize("body, most", [({"prompt": "one and the same"}, 4), (next(turns("one and the same")), 6)],
                         ids=["no conversation", "one conversation"])
def test_no_replica_gets_all(balancer, stubs, body, most):
    """Twelve at a time over three: even ones by their number, and no more than 1.5 times their share for the home of a
    conversation that is asked too much."""
    release, arrived = hold(stubs)
    found = []
    threads = [threading.Thread(target=lambda: found.append(served_by(balancer, body))) for _ in range(12)]
    for i, thread in enumerate(threads):
        thread.start()
        assert arrived.acquire(timeout=PATIENCE), i
    release.set()
    for thread in threads:
        thread.join(PATIENCE)
    counts = collections.Counter(found)
    assert len(found) == 12 and max(counts.values()) <= most, counts


@pytest.mark.parametrize("body", [{"prompt": "x"}, next(turns("x"))], ids=["no conversation", "conversation"])
def test_what_was_answered_by_nothing_is_sent_to_another(balancer, stubs, body):
    for name, stub in zip(NAMES, stubs):
        stub.behave = drop
        for _ in range(3):
            assert served_by(balancer, body) != name
        stub.behave = answer
    assert balancer.n_sent_again() >= 1


def test_what_was_refused_while_draining_is_sent_to_another(balancer, stubs):
    for name, stub in zip(NAMES, stubs):
        stub.behave = lambda handler, body: handler.reply(503, {"error": {"message": "draining"}})
        for said in SAID[:6]:
            assert served_by(balancer, next(turns(said))) != name
        stub.behave = answer


def test_the_last_refusal_reaches_the_client(balancer, stubs):
    for stub in stubs:
        stub.behave = lambda handler, body: handler.reply(503, {"error": {"message": "the model is still being loaded"}})
    status, _, body = post(balancer, next(turns("x")))
    assert status == 503 and json.loads(body)["error"]["message"] == "the model is still being loaded"
    assert sum(len(stub.bodies) for stub in stubs) == 3 and sum(bool(stub.bodies) for stub in stubs) >= 2


def test_a_request_that_kills_replicas_does_not_reach_all_of_them_twice(balancer, stubs):
    for stub in stubs:
        stub.behave = drop
    status, headers, body = post(balancer, next(turns("x")))
    assert status == 502 and headers["Retry-After"] and "has died" in json.loads(body)["error"]["message"]
    assert sum(len(stub.bodies) for stub in stubs) <= 3


def test_a_body_larger_than_a_buffer_passes(balancer):
    body = next(turns("long " * 200_000))
    status, _, reply = post(balancer, body)
    assert status == 200 and json.loads(reply)["size"] == len(json.dumps(body))


def test_a_body_that_nearly_fills_a_buffer_is_sent_again(balancer, stubs):
    body = next(turns("long " * 40_000))
    assert len(json.dumps(body)) > 200_000
    for name, stub in zip(NAMES, stubs):
        stub.behave = drop
        assert served_by(balancer, body) != name
        stub.behave = answer
    assert balancer.n_sent_again() >= 1


def stream(stubs):
    """Every answer is a token, and another one when go_on.set() is called."""
    go_on = threading.Event()

    def begin(handler, body):
        handler.begin_stream()
        handler.piece(b"data: first\n\n")
        if go_on.wait(PATIENCE):
            handler.piece(b"data: second\n\n")
            handler.piece(b"")

    for stub in stubs:
        stub.behave = begin
    return go_on


def ask(balancer, body):
    sock = socket.create_connection((HOST, balancer.port), PATIENCE)
    data = json.dumps(body).encode()
    sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return sock


def read_until(sock, word):
    data = b""
    while word not in data:
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    return data


def test_a_token_passes_when_it_comes(balancer, stubs):
    go_on = stream(stubs)
    with ask(balancer, next(turns("x"))) as sock:
        read_until(sock, b"data: first\n\n")  # the second is not sent before
        go_on.set()
        read_until(sock, b"data: second\n\n")


def test_an_answer_that_has_begun_is_cut_and_not_repeated(balancer, stubs):
    stream(stubs)
    with ask(balancer, next(turns("x"))) as sock:
        head = read_until(sock, b"data: first\n\n").decode()
        stubs[NAMES.index(head.split("x-served-by: ")[1].split("\r\n")[0])].die()
        rest = b""
        try:
            while piece := sock.recv(65536):
                rest += piece
        except ConnectionResetError:
            pass
    assert b"0\r\n\r\n" not in rest and b"data: " not in rest  # no end: clients see that something is missing
    assert sum(len(stub.bodies) for stub in stubs) == 1


def test_answers_of_a_replica_that_drains_go_on(balancer, stubs):
    go_on = stream(stubs)
    with ask(balancer, next(turns("x"))) as sock:
        head = read_until(sock, b"data: first\n\n").decode()
        stubs[NAMES.index(head.split("x-served-by: ")[1].split("\r\n")[0])].is_healthy = False
        wait_for("HAProxy to notice", lambda: balancer.n_up() == 2)
        go_on.set()
        read_until(sock, b"data: second\n\n")


def test_who_leaves_before_the_first_token_leaves_the_replica_too(balancer, stubs):
    has_left, has_come = threading.Event(), threading.Event()

    def wait_for_end(handler, body):
        has_come.set()
        handler.connection.settimeout(PATIENCE)
        try:
            left = handler.connection.recv(1) == b""
        except ConnectionResetError:
            left = True
        if left:
            has_left.set()

    for stub in stubs:
        stub.behave = wait_for_end
    with ask(balancer, next(turns("x"))):
        assert has_come.wait(PATIENCE)
    assert has_left.wait(PATIENCE)


def test_health_is_that_of_the_whole_and_figures_are_not_mixed(balancer, stubs):
    assert get(balancer.port, "/health")[0] == 200
    assert get(balancer.port, "/metrics")[0] == 404
    assert b"haproxy_backend_status" in get(balancer.figures_port, "/metrics")[1]
    for stub in stubs[:2]:
        stub.is_healthy = False
    wait_for("HAProxy to notice", lambda: balancer.n_up() == 1)
    assert get(balancer.port, "/health")[0] == 200
    stubs[2].is_healthy = False
    wait_for("HAProxy to notice", lambda: balancer.n_up() == 0)
    assert get(balancer.port, "/health")[0] == 503
    status, headers, body = post(balancer, next(turns("x")))
    assert status == 503 and headers["Retry-After"] == "1"
    assert json.loads(body)["error"]["message"] == "no replica can take the request"
