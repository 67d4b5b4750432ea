"""``/metrics``, ``/healthz`` and ``/readyz``: a small HTTP listener on the server's own loop.

Each connection gets one request, limited in size and time, and is then closed. Every client that can connect
can read the metrics, so the listener is disabled by default.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple, cast

from cordwood.config import Endpoint
from cordwood.server.connections import Acceptor, listen
from cordwood.server.metrics.answers import ServerAnswers
from cordwood.server.metrics.text import CONTENT_TYPE
from cordwood.server.threads import Workers

REQUEST_BYTES_MAX = 8 << 10
#: The time limit of a connection, from the request to the end of the response.
SECONDS_MAX = 10.0
CONNECTIONS_MAX = 32
_LOGGER = logging.getLogger("cordwood.metrics")


class HttpReply(NamedTuple):
    """A response: status and body."""

    status: HTTPStatus
    text: str
    content_type: str = "text/plain; charset=utf-8"


class MetricsEndpoint:
    """The listener. Created, used and closed on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoints: tuple[Endpoint, ...],
        answers: ServerAnswers,
        workers: Workers,
    ) -> None:
        """Listen on all *endpoints*, or on none.

        Raises:
            ListenFailed: If an address is in use or not local.
        """
        self.endpoints: list[Endpoint] = []
        self._loop = loop
        self._answers = answers
        self._workers = workers
        self._clients: set[_Client] = set()
        sockets = []
        try:
            for endpoint in endpoints:
                sockets += [(made, endpoint.name) for made in listen(endpoint)]
                self.endpoints.append(endpoint._replace(port=sockets[-1][0].getsockname()[1]))
        except BaseException:
            for made, _ in sockets:
                made.close()
            raise
        self._acceptor = Acceptor(loop, sockets, self._connect)

    def _connect(self, listener: str) -> _Client | None:
        if len(self._clients) >= CONNECTIONS_MAX:
            return None
        client = _Client(self._loop, self._answer, self._clients)
        self._clients.add(client)
        return client

    def _answer(self, path: str, then: Callable[[HttpReply], None]) -> None:
        """Answer for *path*, now or later."""
        if path == "/healthz":
            # An answer shows that the loop runs.
            then(HttpReply(HTTPStatus.OK, "ok\n"))
        elif path == "/readyz":
            self._workers.run_for(self._answers.unready, lambda result: then(_readiness(result)))
        elif path == "/metrics":
            before = self._answers.before()
            self._workers.run_for(
                lambda: self._answers.metrics(before), lambda result: then(_document(result))
            )
        else:
            then(HttpReply(HTTPStatus.NOT_FOUND, "not found: only /metrics, /healthz and /readyz exist\n"))

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._acceptor.close()
        for client in list(self._clients):
            client.abort()

    def join(self) -> None:
        """Wait until all lookups have ended. Not on the loop."""
        self._workers.close()


def _readiness(result: str | Exception | None) -> HttpReply:
    if result is None:
        return HttpReply(HTTPStatus.OK, "ready\n")
    return HttpReply(HTTPStatus.SERVICE_UNAVAILABLE, f"{result}\n")


def _document(result: str | Exception) -> HttpReply:
    if isinstance(result, Exception):
        _LOGGER.warning("metrics could not be collected: %s", result)
        return HttpReply(HTTPStatus.SERVICE_UNAVAILABLE, f"metrics could not be collected: {result}\n")
    return HttpReply(HTTPStatus.OK, result, CONTENT_TYPE)


class _Client(asyncio.Protocol):
    """One connection: one request, one answer. On the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        answer: Callable[[str, Callable[[HttpReply], None]], None],
        clients: set[_Client],
    ) -> None:
        self._answer = answer
        self._clients = clients
        self._received = bytearray()
        self._asked = False
        self._transport: asyncio.Transport | None = None
        self._timer = loop.call_later(SECONDS_MAX, self.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Remove the client."""
        self._timer.cancel()
        self._clients.discard(self)
        self._transport = None

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Collect received bytes up to the end of a request's header; no request has a body."""
        if self._asked:
            return
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 and len(self._received) <= REQUEST_BYTES_MAX:
            return
        self._asked = True
        if not 0 <= end <= REQUEST_BYTES_MAX:
            self._send(HttpReply(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large\n"))
            return
        self._ask(bytes(self._received).split(b"\r\n", 1)[0])

    def _ask(self, line: bytes) -> None:
        words = line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self._send(HttpReply(HTTPStatus.BAD_REQUEST, "not an HTTP/1 request\n"))
            return
        method, target = words[0], words[1].partition(b"?")[0].decode("latin-1")
        if method not in (b"GET", b"HEAD"):
            self._send(HttpReply(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n"))
            return
        self._answer(target, lambda reply: self._send(reply, head=method == b"HEAD"))

    def _send(self, reply: HttpReply, *, head: bool = False) -> None:
        """Send the response, then close the connection."""
        if self._transport is None:
            return
        body = reply.text.encode()
        lines = [
            f"HTTP/1.1 {reply.status.value} {reply.status.phrase}",
            f"Content-Type: {reply.content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if reply.status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        opening = "".join(f"{line}\r\n" for line in lines) + "\r\n"
        self._transport.write(opening.encode() + (b"" if head else body))
        self._transport.close()
