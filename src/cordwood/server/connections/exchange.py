"""A request and its answer."""

from __future__ import annotations

import copy
import logging
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from cordwood.config import Endpoint
from cordwood.protocol import ApiKey, Request, WireBytes
from cordwood.security import ABSENT, Principal, QuotaClient

#: The version of a token of SASL that came without a request around it.
RAW_VERSION = -1
Result = TypeVar("Result")
OwedMs = Callable[[ApiKey, QuotaClient], int]
"""Returns how many milliseconds a client must wait with its first request of a kind: earlier usage counts."""
_LOGGER = logging.getLogger("cordwood.server")


class RequestSource(Protocol):
    """The connection that a request came from, as its exchange needs it."""

    local: Endpoint
    peer: str
    principal: Principal

    def answered(self, exchange: Exchange, body: Any) -> None:
        """Send the answer of *exchange* after all earlier answers."""

    def mute(self, milliseconds: int) -> None:
        """Read and start no requests for *milliseconds*."""

    def refuse(self, reason: str) -> None:
        """Close the connection at once."""

    def begin(self) -> bool:
        """Return whether the client may begin to authenticate."""

    def authenticate(self, principal: Principal, owed_ms: OwedMs) -> None:
        """Serve the client as *principal* from now on."""

    def take_token(self) -> None:
        """Take the next frame as a token of SASL that has no request around it."""

    def end_after(self, exchange: Exchange, body: Any) -> None:
        """Answer *exchange* and close the connection."""


class CountedTime(Protocol):
    """Counts the time for one request; see `RequestTime`."""

    def run(self, step: Callable[[], None]) -> None:
        """Run *step* on the loop and count its time."""

    def work(self, call: Callable[[], Result]) -> Result:
        """Run *call* in a thread and count its time."""

    def owed_ms(self) -> int:
        """Return the milliseconds that the client must wait, if it is answered now."""


class Prepared(NamedTuple):
    """An encoded answer, for a request with the correlation id 0."""

    frame: bytes

    def buffers(self, correlation_id: int) -> list[WireBytes]:
        """Return the answer to a request with this correlation id. Large parts are not copied."""
        return [self.frame[:4] + struct.pack(">i", correlation_id), memoryview(self.frame)[8:]]


class RawToken(NamedTuple):
    """A token of SASL as an answer without a response around it."""

    token: bytes

    def buffers(self, correlation_id: int) -> list[WireBytes]:
        """Return the answer, which has no correlation id."""
        return [struct.pack(">i", len(self.token)) + self.token]


#: Answers that have their bytes. A constant: Python would make a union of them for each answer.
ENCODED = (Prepared, RawToken)


class Exchange:
    """A request and its answer. `answer` is called once, on the loop."""

    __slots__ = ("_connection", "buffers", "on_answer", "on_lost", "request", "size", "time")

    def __init__(self, connection: RequestSource, request: Request, size: int) -> None:
        self._connection = connection
        self.request = request
        self.size = size
        self.buffers: list[Any] | None = None
        # Called if the client disconnects before the answer.
        self.on_lost: Callable[[], None] | None = None
        # Counts the time for the request, if its client has a quota for that.
        self.time: CountedTime | None = None
        # Called once with the answer, before it is sent.
        self.on_answer: Callable[[Any], None] | None = None

    @property
    def local(self) -> Endpoint:
        """The address that the client connected to, with the name of its listener."""
        return self._connection.local

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self._connection.peer

    @property
    def principal(self) -> Principal:
        """Who the client is."""
        return self._connection.principal

    @property
    def quota_client(self) -> QuotaClient:
        """Who the client is, as quotas know it."""
        return QuotaClient(self._connection.principal.name, self.request.client_id or ABSENT)

    def answer(self, body: Any) -> None:
        """Send *body* after all earlier answers; None ends the exchange without a response."""
        if self.on_answer is not None:
            self.show(body)
        if self.time is not None:
            body = self._throttled(self.time.owed_ms(), body)
        self._connection.answered(self, body)

    def _throttled(self, wait_ms: int, body: Any) -> Any:
        """Have the client wait, and tell it if the response can."""
        self.throttle(wait_ms)
        if getattr(body, "throttle_time_ms", wait_ms) >= wait_ms:
            return body
        # A copy: the body may be one that other clients get as well.
        told = copy.copy(body)
        told.throttle_time_ms = wait_ms
        return told

    def show(self, body: Any) -> None:
        """Pass *body*, the answer that will be sent, to whoever asked to see it. Idempotent."""
        seen, self.on_answer = self.on_answer, None
        if seen is not None:
            seen(body)

    def answer_last(self, body: Any) -> None:
        """Send *body* after all earlier answers and close the connection."""
        self.show(body)
        self._connection.end_after(self, body)

    def begin(self) -> bool:
        """Return whether the client may begin to authenticate; if not, the connection is closed."""
        return self._connection.begin()

    def authenticate(self, principal: Principal, owed_ms: OwedMs) -> None:
        """Note that the client is *principal*; see `Connection.authenticate`."""
        self._connection.authenticate(principal, owed_ms)

    def take_token(self) -> None:
        """Take the client's next frame as a token of SASL without a request around it."""
        self._connection.take_token()

    def throttle(self, milliseconds: int) -> None:
        """Stop reading from the client for a while: it has exceeded its quota. Its answers are sent."""
        self._connection.mute(milliseconds)

    def fail(self, reason: str) -> None:
        """Close the connection: there is no correct answer."""
        self._connection.refuse(reason)

    def attempt(self, call: Callable[[], None]) -> None:
        """Run *call*, a step towards the answer; on an unexpected exception close the connection.

        Otherwise the client would wait for an answer forever, and other clients that the same callback of the
        loop serves would get none.
        """
        try:
            if self.time is None:
                call()
            else:
                self.time.run(call)
        except Exception:
            _LOGGER.exception("a %s request failed", self.request.api_key.name)
            self.fail("the request could not be handled")


class RequestService(Protocol):
    """The interface that answers requests."""

    def handle(self, exchange: Exchange) -> None:
        """Answer the request, now or later."""
