"""A server that is sent checkpoints, or asked for something, and tells what it got."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from support.authority import Authority


class Anchored:
    """What a server was sent: the ``Authorization`` and the note of each request."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str | None, str]] = []
        self.subjects: list[object] = []


@contextmanager
def anchor(context: ssl.SSLContext | None = None, status: int = 201, to: str = "") -> Iterator[Anchored]:
    """Run a server that answers *status*, with TLS if there is a *context*; *to* is the Location."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            note = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            found.requests.append((self.headers["Authorization"], note))
            if context is not None:
                found.subjects.append(self.connection.getpeercert())
            self.send_response(status)
            if to:
                self.send_header("Location", to)
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - as in the library

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the library
            pass

    class Server(HTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing of a handshake that the client broke off."""

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    found = Anchored(f"http{'s' if context else ''}://localhost:{server.server_port}/notes")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def serving(authority: Authority, *hosts: str, clients: bool = False) -> ssl.SSLContext:
    """Return the context of a server with a certificate for *hosts*, which *clients* must have too."""
    issued = authority.issue("anchor", hosts=hosts or ("localhost",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.certificate)
    return context
