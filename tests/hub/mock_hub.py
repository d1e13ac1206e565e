"""A hub for `tutti pull`: Hugging Face's and ModelScope's interfaces, with large files on another host, over TLS if wanted.

MockHub runs in threads of its own on free ports. Files of more than 1,000 bytes are LFS files: requests for them are redirected
to the content server, whose URL has another host name. What it saw: requests (dicts of where ("hub" or "content"), path, file,
headers, begin: where the wanted range begins, and n_sent: bytes of the body; of a redirect, they are no content).
"""
import hashlib
import json
import re
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LFS_BYTES = 1000


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_blob(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Authority:
    """A certificate authority of the test, and the server's certificate for 127.0.0.1 and localhost."""

    def __init__(self, folder):
        self.pem, key, self.cert, self.key = (folder / n for n in ("ca.pem", "ca.key", "server.crt", "server.key"))
        ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        self.openssl("req", "-x509", *ec, "-days", 30, "-subj", "/CN=test", "-keyout", key, "-out", self.pem)
        self.openssl("req", "-x509", *ec, "-days", 30, "-subj", "/CN=hub", "-keyout", self.key, "-out", self.cert, "-CA", self.pem,
                     "-CAkey", key, "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext",
                     "basicConstraints=critical,CA:FALSE")

    @staticmethod
    def openssl(*args):
        subprocess.run(["openssl", *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, check=True)

    def context(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


class Reply(Exception):
    """Raised by a fault: the status, headers and body to send instead."""

    def __init__(self, status, body=b"", **headers):
        super().__init__(status)
        self.status, self.body, self.headers = status, body, {k.replace("_", "-"): str(v) for k, v in headers.items()}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        hub, where = self.server.hub, self.server.where
        found = re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range", ""))
        self.seen = {"where": where, "path": self.path, "headers": dict(self.headers), "file": None, "n_sent": 0, "is_content": False,
                     "begin": int(found[1]) if found else 0, "end": int(found[2]) + 1 if found and found[2] else None,
                     "is_range": bool(found)}
        with hub.lock:
            hub.requests.append(self.seen)
        try:
            try:
                getattr(self, f"get_{where}")(hub)
            except Reply as reply:
                self.send(reply.status, reply.body, reply.headers)
        except (ConnectionError, ssl.SSLError):
            self.close_connection = True

    def send(self, status, body, headers):
        hub = self.server.hub
        is_chunked = hub.end and self.seen["is_content"] and status in (200, 206)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if is_chunked:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(body), body))
            self.seen["n_sent"] += len(body)
            hub.end(self.seen)
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_body(body)

    def send_body(self, body):
        """In pieces; the hub's cut(seen, n_sent) ends the connection in the middle of the body."""
        for at in range(0, len(body), 65536):
            if self.server.hub.cut and self.server.hub.cut(self.seen, self.seen["n_sent"]):
                self.wfile.flush()
                self.close_connection = True
                return
            self.wfile.write(body[at:at + 65536])
            self.seen["n_sent"] += len(body[at:at + 65536])

    def send_content(self, data, headers):
        seen, hub = self.seen, self.server.hub
        seen["is_content"] = True
        if hub.fault:
            hub.fault(seen, data)
        data = hub.change(seen, data) if hub.change else data
        if seen["is_range"] and not hub.ignores_ranges:
            end = min(seen["end"] or len(data), len(data))
            if seen["begin"] >= end:
                raise Reply(416)
            self.send(206, data[seen["begin"]:end], {**headers, "Content-Range": f"bytes {seen['begin']}-{end - 1}/{len(data)}"})
        else:
            self.send(200, data, headers)

    def find(self, hub, model, revision, file):
        self.seen["file"] = file
        files = hub.models.get(model, {}).get(hub.branch_of(model, revision))
        if files is None or file not in files:
            raise Reply(404, b"Entry not found", X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
        return files[file]

    def get_hub(self, hub):
        url = urlsplit(self.path)
        parts = [unquote(p) for p in url.path.strip("/").split("/")]
        self.seen["listing"] = parts[0] == "api" and "FilePath" not in url.query
        if hub.hub_fault:
            hub.hub_fault(self.seen)
        if parts[:2] == ["api", "models"] and parts[4:5] == ["revision"]:
            self.send(200, *hub.listing("/".join(parts[2:4]), parts[5], url.query))
        elif parts[:3] == ["api", "v1", "models"]:
            query = {k: v[0] for k, v in parse_qs(url.query).items()}
            model = "/".join(parts[3:5])
            if parts[5:] == ["repo", "files"]:
                self.send(200, *hub.modelscope_listing(model, query))
            else:
                self.send_content(self.find(hub, model, query["Revision"], query["FilePath"]), {})
        elif parts[2:3] == ["resolve"]:
            model, file = "/".join(parts[:2]), "/".join(parts[4:])
            if model in hub.renamed:
                raise Reply(307, Location=self.path.replace(model, hub.renamed[model], 1))
            data = self.find(hub, model, parts[3], file)
            if len(data) <= LFS_BYTES:
                self.send_content(data, {"ETag": f'"{git_blob(data)}"'})
                return
            hub.blobs[sha256(data)] = (file, data)
            self.send(302, b"Found", {"Location": f"{hub.content_url}/blobs/{sha256(data)}?signature=a%2Fb", "X-Linked-Size": len(data),
                                      "X-Linked-ETag": f'"{sha256(data)}"', "X-Repo-Commit": parts[3], **hub.linked})
        else:
            raise Reply(404, b"no such page")

    def get_content(self, hub):
        file, data = hub.blobs[urlsplit(self.path).path.split("/")[-1]]
        self.seen["file"] = file
        self.send_content(data, {"ETag": '"of-the-store"'})


class MockHub:
    """models: {"ORG/NAME": {revision: {path: bytes}}}. fault(seen, data) and hub_fault(seen) may raise Reply; change(seen, data)
    returns other content; linked: headers that replace the redirect's. end(seen): content is sent without its length, and ends when
    end() returns."""

    def __init__(self, authority=None, models=(), address="127.0.0.1"):
        self.models, self.blobs, self.requests, self.lock = dict(models), {}, [], threading.Lock()
        self.fault = self.hub_fault = self.change = self.cut = self.end = None
        self.linked, self.renamed, self.ignores_ranges, self.edit = {}, {}, False, lambda listing: listing
        scheme = "https" if authority else "http"
        self.servers = []
        for where in ("hub", "content"):
            server = ThreadingHTTPServer((address, 0), Handler)
            server.daemon_threads, server.hub, server.where = True, self, where
            if authority:
                server.socket = authority.context().wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            self.servers.append(server)
        self.url = f"{scheme}://{address}:{self.servers[0].server_port}"
        self.content_url = f"{scheme}://localhost:{self.servers[1].server_port}"

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def commit(self, model, revision):
        """As long as Git's, and other for other content."""
        files = self.models[model][revision]
        return sha256(b"".join(k.encode() + git_blob(files[k]).encode() for k in sorted(files)))[:40]

    def branch_of(self, model, revision):
        branches = self.models.get(model, {})
        return next((b for b in branches if revision in (b, self.commit(model, b))), None)

    def listing(self, model, revision, query):
        assert query == "blobs=true"
        branch = self.branch_of(model, revision)
        if model not in self.models:
            raise Reply(401, b'{"error":"Invalid username or password."}', X_Error_Message="Invalid username or password.")
        if branch is None:
            raise Reply(404, b'{"error":"Invalid rev id"}', X_Error_Code="RevisionNotFound", X_Error_Message=f"Invalid rev id: {revision}")
        siblings = []
        for path, data in self.models[model][branch].items():
            one = {"rfilename": path, "size": len(data), "blobId": git_blob(data)}
            if len(data) > LFS_BYTES:
                one["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
                one["blobId"] = git_blob(b"version https://git-lfs.github.com/spec/v1\n")
            siblings.append(one)
        answer = {"_id": "6", "id": model, "modelId": model, "sha": self.commit(model, branch), "private": False, "gated": False,
                  "tags": [], "siblings": siblings}
        return json.dumps(self.edit(answer)).encode(), {"Content-Type": "application/json; charset=utf-8"}

    def modelscope_listing(self, model, query):
        assert query["Recursive"] == "true"
        files = self.models.get(model, {}).get(query["Revision"])
        if files is None:
            return json.dumps({"Code": 10010205001, "Data": None, "Message": "获取模型信息失败,信息不存在", "RequestId": "1",
                               "Success": False}).encode(), {}
        folders = sorted({path.rsplit("/", 1)[0] for path in files if "/" in path})
        listed = [{"CommitMessage": "", "Name": f.split("/")[-1], "Path": f, "Type": "tree", "Size": 0, "Sha256": "", "Revision": "a" * 40}
                  for f in folders]
        listed += [{"CommitMessage": "", "CommittedDate": 1700000000, "IsLFS": len(data) > LFS_BYTES, "Mode": "33188", "Revision": "a" * 40,
                    "Name": path.split("/")[-1], "Path": path, "Type": "blob", "Size": len(data), "Sha256": sha256(data)}
                   for path, data in files.items()]
        answer = {"Code": 200, "Data": {"Files": listed, "IsVisual": 0}, "Message": "success", "RequestId": "1", "Success": True}
        return json.dumps(self.edit(answer)).encode(), {"Content-Type": "application/json; charset=utf-8"}

    def of(self, file):
        """The requests for a file that had content."""
        return [r for r in self.requests if r["file"] == file and r["is_content"] and r["n_sent"] > 0]

    def downloaded(self):
        return sorted({r["file"] for r in self.requests if r["is_content"] and r["n_sent"] > 0})
