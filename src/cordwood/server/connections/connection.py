"""One connection: reads requests, passes them to the service, and answers them in order.

Produce requests of one client run concurrently, so that they share syncs. Every other request runs alone: the
server holds in memory, for each client, one response, the unsent part of the response before it, and produce
requests up to a limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from cordwood.config import Endpoint
from cordwood.errors import MalformedMessage, UnsupportedVersion
from cordwood.host import Clock
from cordwood.protocol import SMALL, ApiKey, Inbox, Request, WireBytes, decode_request, encode_response
from cordwood.security import ANONYMOUS, CertificateRefused, Principal
from cordwood.server.connections.budget import WINDOW, Budget, MemoryClaim
from cordwood.server.connections.entrance import OPEN_DOOR, Door, early_fault
from cordwood.server.connections.exchange import (
    ENCODED,
    RAW_VERSION,
    Exchange,
    OwedMs,
    RequestService,
)
from cordwood.server.connections.memory import map_buffer
from cordwood.server.connections.sockets import discard_unsent, has_hung_up, is_readable

#: Reading pauses while a client has this many unanswered requests, or this many bytes of them.
REQUESTS_MAX = 256
BYTES_MAX = 64 << 20
#: The largest request other than Produce, in bytes: decoded, it takes up to 64 times as much memory.
OTHER_BYTES_MAX = 4 << 20
_PRODUCE = ApiKey.PRODUCE.to_bytes(2, "big")
#: While the socket has more than this many unsent bytes, no further response is created for it.
UNSENT_MAX = 64 << 10
#: A client that sends or reads fewer bytes per second than this is disconnected.
BYTES_A_SECOND_MIN = 4096
#: While others wait for memory, an incomplete request that gets fewer bytes than this per check, for this
#: long, is given up.
_BYTES_A_LOOK_MIN = 64 << 10
_LINGER_NS = 3_000_000_000
#: The bytes that are read of a request without room for its rest, before reading pauses.
_BYTES_WITHOUT_ROOM = 4096
_LOGGER = logging.getLogger("cordwood.server")


class Connection(asyncio.BufferedProtocol):
    """The protocol of one socket. Everything here runs on the loop."""

    def __init__(
        self,
        service: RequestService,
        budget: Budget,
        clock: Clock,
        shared: bytearray,
        request_bytes_max: int,
        listener: str,
        connections: set[Connection],
        owed_ms: OwedMs = lambda api_key, client: 0,
        door: Door = OPEN_DOOR,
    ) -> None:
        """Create the connection before its socket is connected.

        *owed_ms* knows of earlier usage: reconnecting avoids no quota. *door* has what clients must do first.
        """
        self._service = service
        self._budget = budget
        self._clock = clock
        self.authenticated = door.entrance is None
        self._door = door
        self._request_bytes_max = request_bytes_max
        self._inbox = Inbox(shared, request_bytes_max, map_buffer)
        self._claim = MemoryClaim(self._pause_or_resume)
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._given_up: str | None = None
        self.local = Endpoint("", 0, listener)
        self.peer = ""
        self.principal: Principal = ANONYMOUS
        self._takes_token = False
        # Requests in the order of arrival: waiting ones and running ones.
        self._waiting: deque[Exchange] = deque()
        self._running: deque[Exchange] = deque()
        self._starting = False
        # Bytes that the budget counts for this connection besides an incomplete request: complete requests
        # and unsent responses.
        self._request_bytes = 0
        self._response_bytes = 0
        self._reading_paused = self._writing_paused = False
        self._in_line = self._draining = False
        self._owed_ms = owed_ms
        self._waited_for: set[ApiKey] = set()
        self._muted_until_ns: int | None = None
        self._unmuting: asyncio.TimerHandle | None = None
        # The times since when the client is idle, its request is incomplete and its response is unsent; and
        # the unsent bytes.
        self.began_ns = self._idle_ns = self._frame_ns = self._unsent_ns = clock.monotonic_ns()
        self._unsent = 0
        # Bytes received since the last check, and since when they are very few while memory is short.
        self._came = 0
        self._lingers_ns: int | None = None
        if door.entrance is not None:
            door.entrance.enter(self)
            self._inbox.size_max = min(door.early_bytes_max, request_bytes_max)

    # --- the socket -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        host, port, *_ = transport.get_extra_info("sockname")
        self.local = Endpoint(host, port, self.local.name)
        # One that was reset has none. What it sent could still be read, and no rule for its host would apply.
        peer = transport.get_extra_info("peername")
        self.peer = f"/{peer[0]}" if peer else ""
        given_up = self._given_up or (None if peer else "the client has already disconnected")
        self._transport.set_write_buffer_limits(high=UNSENT_MAX, low=0)
        self._connections.add(self)
        if given_up is not None:
            self.refuse(given_up)

    def connection_lost(self, error: Exception | None) -> None:
        """Release all memory; later answers are dropped."""
        self._transport = None
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._connections.discard(self)
        if self._door.entrance is not None:
            self._door.entrance.leave(self)
        self._waiting.clear()
        for exchange in self._running:
            lost, exchange.on_lost = exchange.on_lost, None
            if lost is not None and exchange.buffers is None:
                lost()
        self._running.clear()
        self._budget.give_unsent(self._response_bytes)
        # Released now, not when Python's garbage collector finds the cycle with the transport.
        self._inbox.clear()
        self._budget.give(self._request_bytes)
        self._budget.update(self._claim, 0, 0)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes.

        If memory is short, the buffer ends with the current request: a client that sends many requests would
        otherwise never be between two of them, where reading can pause.
        """
        missing = self._inbox.missing
        if not self.authenticated:
            return self._inbox.space()[: self._inbox.size_max]
        if not missing:
            return self._inbox.space()
        if not self._budget.may_go_on(self._claim):
            # Other connections took the room since the last check. Reading pauses after this.
            return self._inbox.space(min(missing, _BYTES_WITHOUT_ROOM))
        space = self._inbox.space()
        return space[: min(missing, WINDOW)] if self._inbox.is_large or self._budget.exhausted else space

    def buffer_updated(self, count: int) -> None:
        """Process *count* received bytes."""
        now_ns = self._idle_ns = self._clock.monotonic_ns()
        self._came += count
        fresh = not self._inbox.pending
        try:
            frames = self._inbox.take(count)
        except MalformedMessage as error:
            self.refuse(str(error))
            return
        if fresh or frames:
            self._frame_ns = now_ns
        for frame in frames:
            self._receive(frame)
        self._count_inbox()
        self._start_next()
        self._pause_or_resume()

    def eof_received(self) -> None:
        """Close the transport: a client that closed its half does not read answers either."""

    def pause_writing(self) -> None:
        """Create no further responses while the client does not read."""
        self._writing_paused = True
        self._unsent_ns = self._clock.monotonic_ns()
        self._unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """Continue: all responses were sent."""
        self._writing_paused = False
        taken, self._response_bytes = self._response_bytes, 0
        self._budget.give_unsent(taken)
        self._send_ready()
        self._start_next()
        self._pause_or_resume()

    # --- authentication ---------------------------------------------------------------------------

    def begin(self) -> bool:
        """Return whether the client may begin to authenticate; if not, the connection is closed."""
        entrance = self._door.entrance
        if entrance is None or self.authenticated or entrance.begin(self, self._clock.monotonic_ns()):
            return True
        self.refuse("too many clients are authenticating")
        return False

    def secured(self, certificate: bytes | None) -> None:
        """Continue after the TLS handshake, in which the client presented *certificate* or none."""
        try:
            principal = self._door.identify(certificate)
        except CertificateRefused as error:
            self._door.note_login(self.peer, None, str(error))
            self.refuse(str(error))
            return
        if not self._door.security.sasl:
            self._door.note_login(self.peer, principal, "")
            self.authenticate(principal, self._owed_ms)

    def authenticate(self, principal: Principal, owed_ms: OwedMs) -> None:
        """Serve the client as *principal* from now on, without the limits before authentication.

        *owed_ms* is as for the constructor.
        """
        self.principal = principal
        self.authenticated = True
        self._owed_ms = owed_ms
        self._waited_for.clear()
        self._inbox.size_max = self._request_bytes_max
        if self._door.entrance is not None:
            self._door.entrance.leave(self)

    @property
    def early_room(self) -> int | None:
        """The bytes that the client may send until it has authenticated; None once it has."""
        return None if self.authenticated else self._inbox.size_max - self._inbox.pending

    def take_token(self) -> None:
        """Take the next frame as a token of SASL that has no request around it."""
        self._takes_token = True

    def end_after(self, exchange: Exchange, body: Any) -> None:
        """Answer *exchange* and close the connection; requests that wait are dropped."""
        self._draining = True
        self._waiting.clear()
        self.answered(exchange, body)
        self.close()

    # --- requests ---------------------------------------------------------------------------------

    def _receive(self, frame: bytearray | memoryview) -> None:
        """Decode the request in *frame* and add it to the queue."""
        if self._transport is None or self._transport.is_closing() or self._draining:
            return
        unanswered = len(self._waiting) + len(self._running)
        if not self.authenticated and not self.begin():
            return
        fault = None if self.authenticated else early_fault(frame, unanswered, self._takes_token)
        if len(frame) > OTHER_BYTES_MAX and bytes(frame[:2]) != _PRODUCE:
            fault = f"a request of {len(frame)} bytes that is not Produce"
        if fault is not None:
            self.refuse(fault)
            return
        try:
            request = self._raw_token(frame) if self._takes_token else decode_request(frame)
        except UnsupportedVersion as error:
            if error.api_key != ApiKey.API_VERSIONS:
                self.refuse(str(error))
                return
            # ApiVersions in an unsupported version is answered in version 0 with the supported versions.
            request = Request(ApiKey.API_VERSIONS, 0, error.correlation_id, error.client_id, error)
        except MalformedMessage as error:
            self.refuse(str(error))
            return
        self._waiting.append(Exchange(self, request, len(frame)))
        self._request_bytes += len(frame)
        self._budget.take(len(frame))

    def _raw_token(self, frame: bytearray | memoryview) -> Request:
        self._takes_token = False
        return Request(ApiKey.SASL_AUTHENTICATE, RAW_VERSION, 0, None, bytes(frame))

    def _start_next(self) -> None:
        """Start the next requests: produce requests concurrently, any other request alone."""
        if self._starting:
            # A request that is answered while it is started calls this again; the loop below continues.
            return
        self._starting = True
        try:
            while self._waiting and self._transport is not None:
                if self._muted_until_ns is not None or self._must_wait(self._waiting[0]):
                    return
                produce = self._waiting[0].request.api_key is ApiKey.PRODUCE
                if self._running and not (produce and self._running[0].request.api_key is ApiKey.PRODUCE):
                    return
                if self._writing_paused and not produce:
                    return
                exchange = self._waiting.popleft()
                self._running.append(exchange)
                exchange.attempt(partial(self._service.handle, exchange))
        finally:
            self._starting = False

    def answered(self, exchange: Exchange, body: Any) -> None:
        """Send the answer of *exchange* after all earlier answers."""
        # The callback refers to the exchange; the cycle would keep the whole request in memory until the next
        # garbage collection.
        exchange.on_lost = None
        if self._transport is None:
            return
        request = exchange.request
        try:
            if body is None:
                exchange.buffers = []
            elif isinstance(body, ENCODED):
                exchange.buffers = body.buffers(request.correlation_id)
            else:
                exchange.buffers = encode_response(
                    request.api_key, request.api_version, request.correlation_id, body
                )
        except Exception:
            _LOGGER.exception("a %s response could not be encoded", request.api_key.name)
            self.refuse("the response could not be encoded")
            return
        self._idle_ns = self._clock.monotonic_ns()
        self._send_ready()
        self._start_next()
        self._pause_or_resume()

    def _send_ready(self) -> None:
        """Send the available answers up to the first missing one."""
        running = self._running
        while running and running[0].buffers is not None and self._transport is not None:
            if self._writing_paused:
                return
            exchange = running.popleft()
            self._request_bytes -= exchange.size
            self._budget.give(exchange.size)
            if exchange.buffers:
                self._transport.writelines(exchange.buffers)
                self._count_unsent(exchange.buffers)

    # --- limits -----------------------------------------------------------------------------------

    def _count_unsent(self, buffers: Sequence[WireBytes]) -> None:
        """Count the part of a response that the socket did not accept at once."""
        if self._writing_paused:
            size = sum(map(len, buffers))
            self._response_bytes += size
            self._budget.take_unsent(size)

    def _count_inbox(self) -> None:
        """Count the memory of an incomplete request."""
        if self._transport is None:
            return
        held = self._inbox.held
        grown = held > self._claim.held
        self._budget.update(self._claim, held, self._inbox.missing)
        if grown and self._budget.overdrawn:
            self.refuse("incomplete requests take too much memory")

    def _pause_or_resume(self) -> None:
        """Pause reading while this client or all clients have too much unanswered, else resume it.

        If memory is short, an incomplete request is still read when its turn comes: its memory is released
        only when it is complete or its client is disconnected as too slow.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        unanswered = len(self._waiting) + len(self._running)
        pause = (
            unanswered >= (REQUESTS_MAX if self.authenticated else 1)
            or self._request_bytes >= BYTES_MAX
            or self._writing_paused
            or self._draining
            or self._muted_until_ns is not None
        )
        if not pause and self._inbox.pending:
            pause = not self._budget.may_go_on(self._claim)
        elif not pause and self._budget.exhausted:
            pause = True
            if not self._in_line:
                self._in_line = True
                self._budget.when_room(self._go_on)
        if pause and not self._reading_paused:
            transport.pause_reading()
        elif self._reading_paused and not pause:
            self._frame_ns = self._clock.monotonic_ns()
            transport.resume_reading()
        self._reading_paused = pause

    def _go_on(self) -> None:
        self._in_line = False
        self._pause_or_resume()

    def mute(self, milliseconds: int) -> None:
        """Read and start no requests for *milliseconds*; running requests continue."""
        if milliseconds <= 0 or self._transport is None or self._draining:
            return
        until_ns = self._clock.monotonic_ns() + milliseconds * 1_000_000
        self._muted_until_ns = max(self._muted_until_ns or 0, until_ns)
        if self._unmuting is None:
            self._unmuting = asyncio.get_running_loop().call_later(milliseconds / 1000, self._unmute)
        self._pause_or_resume()

    def _unmute(self) -> None:
        self._unmuting = None
        if self._muted_until_ns is None:
            return
        left_ms = -((self._clock.monotonic_ns() - self._muted_until_ns) // 1_000_000)
        if left_ms > 0:
            self._unmuting = asyncio.get_running_loop().call_later(left_ms / 1000, self._unmute)
            return
        self._muted_until_ns = None
        # The client was muted, not idle.
        self._idle_ns = self._clock.monotonic_ns()
        self._start_next()
        self._pause_or_resume()

    def _must_wait(self, exchange: Exchange) -> bool:
        """Return whether *exchange*, if it is the first of its kind, must wait; mute the client if so."""
        api_key = exchange.request.api_key
        if api_key in self._waited_for or not self.authenticated:
            return False
        self._waited_for.add(api_key)
        self.mute(self._owed_ms(api_key, exchange.quota_client))
        return self._muted_until_ns is not None

    def check_time(self, now_ns: int, idle_ns: int, stall_ns: int) -> None:
        """Close the connection if the client is idle or slow. Called every second or so."""
        transport = self._transport
        if transport is None:
            return
        late = self._door.entrance is not None and now_ns - self.began_ns >= self._door.entrance.timeout_ns
        if late and not self.authenticated:
            self.refuse("the client did not authenticate in time")
        elif self._reading_paused and has_hung_up(transport):
            self.refuse("the client hung up")
        elif self._muted_until_ns is not None and self._budget.exhausted and self._waiting:
            # Requests that it sent ahead do no harm unless memory is short.
            self.refuse("the client waits for its quota, and memory is short")
        elif self._writing_paused:
            if now_ns - self._unsent_ns >= stall_ns:
                unsent = transport.get_write_buffer_size()
                if self._unsent - unsent < (now_ns - self._unsent_ns) / 1e9 * BYTES_A_SECOND_MIN:
                    discard_unsent(transport)
                    self.refuse("the client does not read its responses")
                self._unsent, self._unsent_ns = unsent, now_ns
        elif self._lingers(transport, now_ns):
            self.refuse("memory is short, and the client does not continue its request")
        elif self._inbox.pending and not self._reading_paused:
            seconds = (now_ns - self._frame_ns) / 1e9
            if seconds * 1e9 >= stall_ns and self._inbox.pending < seconds * BYTES_A_SECOND_MIN:
                self.refuse("the client does not finish its request")
        elif not self._running and self._muted_until_ns is None and now_ns - self._idle_ns >= idle_ns:
            self.refuse("the client was idle")

    def _lingers(self, transport: asyncio.Transport, now_ns: int) -> bool:
        """Return whether others wait for memory while the client sends almost nothing of its request."""
        came, self._came = self._came, 0
        waited_for = self._budget.short and self._claim.held > SMALL
        # If reading is paused here, sent bytes are waiting in the socket.
        going = is_readable(transport) if self._reading_paused else came >= _BYTES_A_LOOK_MIN
        if not waited_for or going:
            self._lingers_ns = None
        elif self._lingers_ns is None:
            self._lingers_ns = now_ns
        return self._lingers_ns is not None and now_ns - self._lingers_ns >= _LINGER_NS

    # --- ending -----------------------------------------------------------------------------------

    def refuse(self, reason: str) -> None:
        """Close the connection at once, or as soon as it is set up."""
        if self._transport is None:
            self._given_up = reason
        else:
            peer = self._transport.get_extra_info("peername")
            _LOGGER.info("closing the connection of %s: %s", peer, reason)
            self._transport.abort()

    def drain(self) -> None:
        """Accept no more requests; received ones no longer wait for a quota."""
        self._draining = True
        self._muted_until_ns = None
        self._start_next()
        self._pause_or_resume()

    def close(self) -> None:
        """Close the connection once all answers are sent."""
        if self._transport is not None:
            self._transport.close()

    @property
    def busy(self) -> bool:
        """Whether a request is unanswered."""
        return bool(self._running or self._waiting)
