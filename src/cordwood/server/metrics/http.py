"""``/metrics``, ``/healthz`` and ``/readyz``: a small HTTP listener on the server's own loop.

Each connection gets one request, limited in size and time, and is then closed. Without a token every client
that can connect can read the metrics, so the listener is disabled by default. With one, ``/healthz`` and
``/readyz`` say nothing more than their status to clients that do not have it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple, cast

from cordwood.config import Endpoint
from cordwood.server.connections import Acceptor, LinkedConnection, listen
from cordwood.server.metrics.answers import ServerAnswers
from cordwood.server.metrics.text import CONTENT_TYPE
from cordwood.server.metrics.token import BearerToken
from cordwood.server.threads import Workers

#: The name of an endpoint with TLS.
SECURE = "SSL"
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


class HttpAsked(NamedTuple):
    """A request: its path, and the value of its header Authorization."""

    path: str
    authorization: bytes


class MetricsEndpoint:
    """The listener. Created, used and closed on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoints: tuple[Endpoint, ...],
        answers: ServerAnswers,
        workers: Workers,
        secure: Callable[[LinkedConnection], asyncio.BaseProtocol],
        warn: Callable[[str], None],
        token: BearerToken | None = None,
    ) -> None:
        """Listen on all *endpoints*, or on none.

        *secure* returns the protocol for the socket of a client of an endpoint with TLS. *warn* logs that a
        client is closed. With a *token*, clients must have it.

        Raises:
            ListenFailed: If an address is in use or not local.
        """
        self.endpoints: list[Endpoint] = []
        self._loop = loop
        self._answers = answers
        self._workers = workers
        self._secure = secure
        self._token = token
        self._clients: dict[_Client, None] = {}
        sockets = []
        try:
            for endpoint in endpoints:
                sockets += [(made, endpoint.name) for made in listen(endpoint)]
                self.endpoints.append(endpoint._replace(port=sockets[-1][0].getsockname()[1]))
        except BaseException:
            for made, _ in sockets:
                made.close()
            raise
        self._acceptor = Acceptor(loop, sockets, self._connect, warn)

    def _connect(self, listener: str) -> asyncio.BaseProtocol | None:
        if len(self._clients) >= CONNECTIONS_MAX:
            # Otherwise clients that ask for nothing could keep everybody else from the metrics.
            silent = next((each for each in self._clients if not each.asked), None)
            if silent is None:
                return None
            del self._clients[silent]
            silent.abort()
        client = _Client(self._loop, self._admit, self._clients)
        self._clients[client] = None
        return self._secure(client) if listener == SECURE else client

    def _admit(self, asked: HttpAsked, then: Callable[[HttpReply], None]) -> None:
        """Answer *asked*, now or later, as far as its client may know."""
        token = self._token
        if token is None or asked.path == "/healthz":
            self._answer(asked.path, then)
            return

        def answer(accepted: bool | Exception) -> None:
            if accepted is True:
                self._answer(asked.path, then)
            elif asked.path == "/readyz":
                self._answer(asked.path, lambda reply: then(reply._replace(text=f"{reply.status.phrase}\n")))
            else:
                then(HttpReply(HTTPStatus.UNAUTHORIZED, "a bearer token is needed\n"))

        self._workers.run_for(lambda: token.accepts(asked.authorization), answer)

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


class _Client(asyncio.BufferedProtocol):
    """One connection: one request, one answer. On the loop."""

    #: Its buffer is all that it takes.
    early_room: int | None = None

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        answer: Callable[[HttpAsked, Callable[[HttpReply], None]], None],
        clients: dict[_Client, None],
    ) -> None:
        self._answer = answer
        self._clients = clients
        self._received = bytearray()
        self._buffer = memoryview(bytearray(REQUEST_BYTES_MAX))
        self.asked = False
        self._aborted = False
        self._transport: asyncio.Transport | None = None
        self._timer = loop.call_later(SECONDS_MAX, self.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        if self._aborted:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Remove the client."""
        self._timer.cancel()
        self._clients.pop(self, None)
        self._transport = None

    def abort(self) -> None:
        """Close the connection at once, or as soon as it is set up."""
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    def begin(self) -> bool:
        """Return whether the TLS handshake may begin: there are few clients at a time."""
        return True

    def secured(self, certificate: bytes | None) -> None:
        """Wait for the request: the TLS handshake is done."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        """Collect received bytes up to the end of a request's header; no request has a body."""
        if self.asked:
            return
        self._received += self._buffer[:count]
        end = self._received.find(b"\r\n\r\n")
        if end < 0 and len(self._received) <= REQUEST_BYTES_MAX:
            return
        self.asked = True
        if not 0 <= end <= REQUEST_BYTES_MAX:
            self._send(HttpReply(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large\n"))
            return
        self._ask(bytes(self._received[:end]).split(b"\r\n"))

    def _ask(self, lines: list[bytes]) -> None:
        words = lines[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self._send(HttpReply(HTTPStatus.BAD_REQUEST, "not an HTTP/1 request\n"))
            return
        method, target = words[0], words[1].partition(b"?")[0].decode("latin-1")
        if method not in (b"GET", b"HEAD"):
            self._send(HttpReply(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n"))
            return
        headers = [line.partition(b":") for line in lines[1:]]
        given = [value for name, _, value in headers if name.lower() == b"authorization"]
        asked = HttpAsked(target, given[0] if len(given) == 1 else b"")
        self._answer(asked, lambda reply: self._send(reply, head=method == b"HEAD"))

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
        if reply.status is HTTPStatus.UNAUTHORIZED:
            lines.append("WWW-Authenticate: Bearer")
        opening = "".join(f"{line}\r\n" for line in lines) + "\r\n"
        self._transport.write(opening.encode() + (b"" if head else body))
        self._transport.close()
