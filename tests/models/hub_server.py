"""Serve a small hub on the loopback interface, with faults of servers and connections on request.

It answers as huggingface.co does (docs/hub/api, observed headers): a listing of a repository with
sizes and hashes, a redirect from a file's URL to a store, and ranges of the content there.
"""

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee" * 6 + "c0ff"
TOKEN = "hf_the_token_of_the_tests"
REPO = "Org/Tiny-GGUF"
NAMES = ("Tiny-Q2_K.gguf", "Tiny-Q4_K_M.gguf", "Tiny-Q8_0.gguf")
CONTENT = b"GGUF" + bytes(range(256)) * 4000  # a megabyte, so that it arrives in pieces


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Fault:
    """A fault of the next *times* answers to paths that *path* matches.

    Attributes:
        status: HTTP status of the answer, instead of the right one.
        cut: Number of content bytes after which the server closes the connection.
        content: Bytes sent instead of the content; the announced length stays that of the content.
        gate: Event for which the server waits before it sends the content.
    """

    path: str
    times: int = 1
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    content: bytes | None = None
    location: str | None = None
    gate: threading.Event | None = None
    body: bytes = b"{}"


class HubServer(ThreadingHTTPServer):
    """Serves *repos*, repository -> file -> content, and *pages*, path -> content."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        # a client takes this for another host
        self.store = f"http://localhost:{self.server_address[1]}"
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()  # repositories that need TOKEN
        self.gated: set[str] = set()
        self.pages: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.siblings: list[dict[str, object]] | None = None  # sent instead of the true list

    def downloads(self) -> list[str]:
        """Return the ranges requested from the store, "" for a whole file."""
        return [
            r.headers.get("range", "")
            for r in self.requests
            if r.path.startswith(("/store/", "/pages/"))
        ]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append(Request(self.command, self.path, headers))
        path, query = unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query)
        fault = self._fault(path)
        if fault and fault.status:
            self._answer(fault.status, fault.body, fault.headers)
        elif fault and fault.location:
            self._answer(302, b"", {"Location": fault.location})
        elif path == "/api/models":
            if fault and fault.gate:
                fault.gate.wait(5)
            self._models(query)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._listing(*match.groups())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._resolve(*match.groups())
        elif match := re.fullmatch(r"/store/([0-9a-f]{64})", path):
            contents = [c for repo in self.server.repos.values() for c in repo.values()]
            self._content(next(c for c in contents if sha256(c) == match[1]), fault)
        elif path in self.server.pages:
            self._content(self.server.pages[path], fault)
        else:
            self._answer(404, b"")

    def _fault(self, path: str) -> Fault | None:
        for fault in self.server.faults:
            if fault.times and re.search(fault.path, path):
                fault.times -= 1
                return fault
        return None

    def _may(self, repo: str) -> bool:
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repo not in self.server.repos or (repo in self.server.private and not allowed):
            self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif repo in self.server.gated and not allowed:
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        else:
            return True
        return False

    def _models(self, query: dict[str, list[str]]) -> None:
        author, search = (query.get(name, [""])[0].lower() for name in ("author", "search"))
        found = [
            {"id": repo, "_id": "0"}
            for repo in self.server.repos
            if repo.lower().startswith(f"{author}/" if author else "") and search in repo.lower()
        ]
        self._answer(200, json.dumps(found).encode())

    def _listing(self, repo: str, revision: str) -> None:
        if not self._may(repo):
            return
        if revision not in ("main", COMMIT):
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = self.server.siblings or [
            {
                "rfilename": name,
                "size": len(content),
                "blobId": "0" * 40,
                "lfs": {"sha256": sha256(content), "size": len(content), "pointerSize": 130},
            }
            for name, content in self.server.repos[repo].items()
        ]
        about = {"_id": "0", "id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings}
        self._answer(200, json.dumps(about).encode())

    def _resolve(self, repo: str, name: str) -> None:
        if not self._may(repo):
            return
        content = self.server.repos[repo].get(name)
        if content is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        self._answer(302, b"", {
            "Location": f"{self.server.store}/store/{sha256(content)}",
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": f'"{sha256(content)}"',
        })  # fmt: skip

    def _content(self, content: bytes, fault: Fault | None) -> None:
        etag = f'"{sha256(content)[:16]}"'
        start, status = 0, 200
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match and self.headers.get("If-Range", etag) == etag:
            start, status = int(match[1]), 206
        if start >= len(content) and status == 206:
            self._answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        stop = min(int(match[2]) + 1, len(content)) if match and match[2] else len(content)
        part = content[start:stop]
        self.send_response(status)
        self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(part)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.end_headers()
        if fault and fault.gate:
            fault.gate.wait(5)
        if fault and fault.content is not None:
            part = fault.content[start:stop]
        if fault and fault.cut is not None:
            part = part[: fault.cut]
            self.close_connection = True
        if self.command == "GET":
            self.wfile.write(part)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def serving() -> Iterator[HubServer]:
    """Yield a server without repositories, and stop it at the end."""
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """Yield the URL of a server that gives each connection the next answer and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    while b"\r\n\r\n" not in connection.recv(65536):
                        pass  # large enough for every request of these tests
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
