"""Servers of S3 in the process of a test: moto's, one that answers what it is told, one that never does."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import pytest

#: What no sentence may have: the id and the secret of a key, and a token.
KEY_ID, SECRET, TOKEN = "AKIASECRETKEYID00001", "SecretKeyOfATest/0123456789abcdefghijklm", "TokenOfATest0123"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": KEY_ID,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_SESSION_TOKEN": TOKEN,
    "AWS_REGION": "us-east-1",
}


class HttpAnswer(NamedTuple):
    """An answer; ``cut`` promises more bytes than it sends."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = MappingProxyType({})
    cut: bool = False


class SeenRequest(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedServer:
    """Answers every request with ``answer``, and keeps the requests."""

    url: str
    answer: HttpAnswer = field(default_factory=lambda: HttpAnswer(200))
    seen: list[SeenRequest] = field(default_factory=list)


@contextlib.contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            server.seen.append(SeenRequest(self.command, self.path, dict(self.headers), body))
            answer, content = server.answer, server.answer.body.encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content) + (1000 if answer.cut else 0)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = respond  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server = ScriptedServer(f"http://127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Accept connections, and never answer: the system accepts as many as may wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """Run moto's server; skips where moto is not installed."""
    reason = "moto is not installed: pip install 'moto[server,s3]'"
    serving = pytest.importorskip("werkzeug.serving", reason=reason)
    moto = pytest.importorskip("moto.moto_server.werkzeug_app", reason=reason)
    application = moto.DomainDispatcherApplication(moto.create_backend_app)
    # moto looks for an object and creates it in two steps: of 24 creations at the same time, two succeeded in
    # 2 of 40 races. What these tests are about is a store that has conditional writes, so one goes at a time.
    one_at_a_time = threading.Lock()

    def serialised(environ: Any, start_response: Any) -> list[bytes]:
        with one_at_a_time:
            return list(application(environ, start_response))

    class Quiet(moto.MotoRequestHandler):  # type: ignore[misc, name-defined]
        def log(self, *arguments: Any, **words: Any) -> None:
            return

    server = serving.make_server("127.0.0.1", 0, serialised, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_bucket(url: str, name: str) -> None:
    """Create a bucket on moto's server."""
    with urlopen(Request(f"{url}/{name}", method="PUT")):
        return
