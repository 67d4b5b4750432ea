"""One client: its requests are read, handed on, and answered in the order in which they came.

Produce requests of one client run beside each other, so that they share syncs. Anything else runs alone:
what a client can make the server hold in memory for it is one response, what the socket has not taken of
the one before, and its produce requests up to a limit.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from cordwood.config import Endpoint
from cordwood.errors import MalformedMessage, UnsupportedVersion
from cordwood.host import Clock
from cordwood.protocol import SMALL, ApiKey, Inbox, Request, WireBytes, decode_request, encode_response
from cordwood.server.connections.budget import WINDOW, Budget, MemoryClaim
from cordwood.server.connections.memory import map_buffer
from cordwood.server.connections.sockets import discard_unsent, has_hung_up, is_readable

#: A client may have this many requests, and this many bytes of them, unanswered before reading pauses.
REQUESTS_MAX = 256
BYTES_MAX = 64 << 20
#: A request other than Produce may be this large: once decoded it takes up to 64 times as much memory.
OTHER_BYTES_MAX = 4 << 20
_PRODUCE = ApiKey.PRODUCE.to_bytes(2, "big")
#: More than this not taken by the socket, and nothing further is made for it.
UNSENT_MAX = 64 << 10
#: A client that sends or takes fewer bytes a second than this is slow enough to be cut off.
BYTES_A_SECOND_MIN = 4096
#: Where others wait for its memory, a request of which less than this came since the last look, and that for
#: this long, is given up.
_BYTES_A_LOOK_MIN = 64 << 10
_LINGER_NS = 3_000_000_000
#: What is read at once of a request for whose rest there is no room, before reading pauses.
_BYTES_WITHOUT_ROOM = 4096
_LOGGER = logging.getLogger("cordwood.server")


class Prepared(NamedTuple):
    """An answer that was encoded already, for a request with the correlation id 0."""

    frame: bytes

    def buffers(self, correlation_id: int) -> list[WireBytes]:
        """Return the answer to a request with this correlation id; what is large is not copied."""
        return [self.frame[:4] + struct.pack(">i", correlation_id), memoryview(self.frame)[8:]]


class Exchange:
    """A request and its answer. `answer` is called once, on the loop."""

    __slots__ = ("_connection", "buffers", "on_lost", "request", "size")

    def __init__(self, connection: Connection, request: Request, size: int) -> None:
        self._connection = connection
        self.request = request
        self.size = size
        self.buffers: list[Any] | None = None
        # Called if the client goes away before the answer is there.
        self.on_lost: Callable[[], None] | None = None

    @property
    def local(self) -> Endpoint:
        """The address that the client reached, under the name of the listener that took it."""
        return self._connection.local

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self._connection.peer

    def answer(self, body: Any) -> None:
        """Send *body* when everything before it was sent; None ends the exchange without a word."""
        self._connection.answered(self, body)

    def throttle(self, milliseconds: int) -> None:
        """Take no more from the client for a while: it has used more than it may. Its answers are sent."""
        self._connection.mute(milliseconds)

    def fail(self, reason: str) -> None:
        """Close the connection: no answer would be true."""
        self._connection.refuse(reason)

    def attempt(self, call: Callable[[], None]) -> None:
        """Run *call*, a step towards the answer: a bug of ours in it costs this client its connection.

        Without that it would wait for an answer that never comes, and whoever else is served by the same
        callback of the loop would not be.
        """
        try:
            call()
        except Exception:
            _LOGGER.exception("a %s request failed", self.request.api_key.name)
            self.fail("the request could not be handled")


class RequestService(Protocol):
    """Who answers requests."""

    def handle(self, exchange: Exchange) -> None:
        """Answer the request, now or later."""


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
        owed_ms: Callable[[ApiKey], int] = lambda api_key: 0,
    ) -> None:
        """Begin with nothing.

        *owed_ms* says how long a client has to wait with its first request of a kind, for what was used
        before it came: whoever hangs up and connects again gains nothing.
        """
        self._service = service
        self._budget = budget
        self._clock = clock
        self._inbox = Inbox(shared, request_bytes_max, map_buffer)
        self._claim = MemoryClaim(self._go_on_reading)
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self.local = Endpoint("", 0, listener)
        self.peer = ""
        # Requests in the order they came: those whose turn has not come, then those being answered.
        self._waiting: deque[Exchange] = deque()
        self._running: deque[Exchange] = deque()
        self._starting = False
        # What the budget has counted for us beside an incomplete request: those that are complete, and
        # responses the socket did not take.
        self._request_bytes = 0
        self._response_bytes = 0
        self._reading_paused = False
        self._writing_paused = False
        self._in_line = False
        self._draining = False
        self._owed_ms = owed_ms
        self._waited_for: set[ApiKey] = set()
        self._muted_until_ns: int | None = None
        self._unmuting: asyncio.TimerHandle | None = None
        # Since when the client is idle, its request incomplete, its response not taken; and how much of that.
        self._idle_ns = self._frame_ns = self._unsent_ns = clock.monotonic_ns()
        self._unsent = 0
        # What came since the last look, and since when that is next to nothing while memory is short.
        self._came = 0
        self._lingers_ns: int | None = None

    # --- the socket -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        host, port, *_ = transport.get_extra_info("sockname")
        self.local = Endpoint(host, port, self.local.name)
        # A client that is gone already has no address any more; its end is told next.
        peer = transport.get_extra_info("peername")
        self.peer = f"/{peer[0]}" if peer else ""
        self._transport.set_write_buffer_limits(high=UNSENT_MAX, low=0)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Give back everything; answers that come later go nowhere."""
        self._transport = None
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._connections.discard(self)
        self._waiting.clear()
        for exchange in self._running:
            lost, exchange.on_lost = exchange.on_lost, None
            if lost is not None and exchange.buffers is None:
                lost()
        self._running.clear()
        self._budget.give_unsent(self._response_bytes)
        # Now, not when Python finds the rings that lead from here to the transport and back.
        self._inbox.clear()
        self._budget.give(self._request_bytes)
        self._budget.update(self._claim, 0, 0)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go.

        Where memory is short, no more than completes the request that has begun: a client that sends one
        after the other would otherwise never be between two of them, where reading can pause.
        """
        missing = self._inbox.missing
        if not missing:
            return self._inbox.space()
        if not self._budget.may_go_on(self._claim):
            # Others took the room since reading was last looked at. It pauses after this.
            return self._inbox.space(min(missing, _BYTES_WITHOUT_ROOM))
        space = self._inbox.space()
        return space[: min(missing, WINDOW)] if self._inbox.is_large or self._budget.exhausted else space

    def buffer_updated(self, count: int) -> None:
        """Take in what came."""
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
        """Let the transport close: who closed its half does not read answers either."""

    def pause_writing(self) -> None:
        """Make nothing more for a client that does not read."""
        self._writing_paused = True
        self._unsent_ns = self._clock.monotonic_ns()
        self._unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """Go on: everything was taken."""
        self._writing_paused = False
        taken, self._response_bytes = self._response_bytes, 0
        self._budget.give_unsent(taken)
        self._send_ready()
        self._start_next()
        self._pause_or_resume()

    # --- requests ---------------------------------------------------------------------------------

    def _receive(self, frame: bytearray | memoryview) -> None:
        """Put the request in *frame* in line."""
        if self._transport is None or self._transport.is_closing() or self._draining:
            return
        if len(frame) > OTHER_BYTES_MAX and bytes(frame[:2]) != _PRODUCE:
            self.refuse(f"a request of {len(frame)} bytes that is not Produce")
            return
        try:
            request = decode_request(frame)
        except UnsupportedVersion as error:
            if error.api_key != ApiKey.API_VERSIONS:
                self.refuse(str(error))
                return
            # A client that asks for versions in one we do not know is told which we do, in the oldest.
            request = Request(ApiKey.API_VERSIONS, 0, error.correlation_id, error.client_id, error)
        except MalformedMessage as error:
            self.refuse(str(error))
            return
        self._waiting.append(Exchange(self, request, len(frame)))
        self._request_bytes += len(frame)
        self._budget.take(len(frame))

    def _start_next(self) -> None:
        """Start the requests whose turn has come: produce beside produce, anything else alone."""
        if self._starting:
            # A request that is answered while it is started gets here again; the loop below goes on.
            return
        self._starting = True
        try:
            while self._waiting and self._transport is not None:
                if self._muted_until_ns is not None or self._must_wait(self._waiting[0].request.api_key):
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
        """Send the answer of *exchange* when it is its turn."""
        # What it calls leads back to the exchange, and such a ring would keep the whole request in memory
        # until Python looks for rings.
        exchange.on_lost = None
        if self._transport is None:
            return
        request = exchange.request
        try:
            if body is None:
                exchange.buffers = []
            elif isinstance(body, Prepared):
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
        """Send the answers that are there, up to the first that is not."""
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
        """Count a response that the socket did not take at once."""
        if self._writing_paused:
            size = sum(map(len, buffers))
            self._response_bytes += size
            self._budget.take_unsent(size)

    def _count_inbox(self) -> None:
        """Count the memory of a request that is not complete."""
        if self._transport is None:
            return
        held = self._inbox.held
        grown = held > self._claim.held
        self._budget.update(self._claim, held, self._inbox.missing)
        if grown and self._budget.overdrawn:
            self.refuse("requests that are not complete take too much memory")

    def _pause_or_resume(self) -> None:
        """Stop reading while too much is unanswered, here or altogether; go on when it is not.

        A request that has begun is read on in its turn where memory is short: what it holds already is only
        given back once it is complete, or its client is found to be too slow.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        unanswered = len(self._waiting) + len(self._running)
        pause = (
            unanswered >= REQUESTS_MAX
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

    def _go_on_reading(self) -> None:
        self._pause_or_resume()

    def mute(self, milliseconds: int) -> None:
        """Read nothing and start nothing for so long; what is under way goes on."""
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
        # It was us who did not let it ask.
        self._idle_ns = self._clock.monotonic_ns()
        self._start_next()
        self._pause_or_resume()

    def _must_wait(self, api_key: ApiKey) -> bool:
        """Return whether the first request of its kind has to wait, once, and see to it."""
        if api_key in self._waited_for:
            return False
        self._waited_for.add(api_key)
        self.mute(self._owed_ms(api_key))
        return self._muted_until_ns is not None

    def check_time(self, now_ns: int, idle_ns: int, stall_ns: int) -> None:
        """Close the connection if the client is idle or slow. Called every second or so."""
        transport = self._transport
        if transport is None:
            return
        if self._reading_paused and has_hung_up(transport):
            self.refuse("the client hung up")
        elif self._muted_until_ns is not None and self._budget.exhausted and self._waiting:
            # What it sent ahead of its turn is in nobody's way but where memory is short.
            self.refuse("the client waits for its quota, and memory is short")
        elif self._writing_paused:
            if now_ns - self._unsent_ns >= stall_ns:
                unsent = transport.get_write_buffer_size()
                if self._unsent - unsent < (now_ns - self._unsent_ns) / 1e9 * BYTES_A_SECOND_MIN:
                    discard_unsent(transport)
                    self.refuse("the client does not take its responses")
                self._unsent, self._unsent_ns = unsent, now_ns
        elif self._lingers(transport, now_ns):
            self.refuse("memory is short, and the client does not go on with its request")
        elif self._inbox.pending and not self._reading_paused:
            seconds = (now_ns - self._frame_ns) / 1e9
            if seconds * 1e9 >= stall_ns and self._inbox.pending < seconds * BYTES_A_SECOND_MIN:
                self.refuse("the client does not finish its request")
        elif not self._running and self._muted_until_ns is None and now_ns - self._idle_ns >= idle_ns:
            self.refuse("the client was idle")

    def _lingers(self, transport: asyncio.Transport, now_ns: int) -> bool:
        """Return whether others wait for the memory of a request whose client sends next to nothing of it."""
        came, self._came = self._came, 0
        waited_for = self._budget.short and self._claim.held > SMALL
        # Where it is us who do not read, what it sent shows in the socket.
        going = is_readable(transport) if self._reading_paused else came >= _BYTES_A_LOOK_MIN
        if not waited_for or going:
            self._lingers_ns = None
        elif self._lingers_ns is None:
            self._lingers_ns = now_ns
        return self._lingers_ns is not None and now_ns - self._lingers_ns >= _LINGER_NS

    # --- ending -----------------------------------------------------------------------------------

    def refuse(self, reason: str) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            peer = self._transport.get_extra_info("peername")
            _LOGGER.info("closing the connection of %s: %s", peer, reason)
            self._transport.abort()

    def drain(self) -> None:
        """Take no more requests; those that were taken wait for nothing any more."""
        self._draining = True
        self._muted_until_ns = None
        self._start_next()
        self._pause_or_resume()

    def close(self) -> None:
        """Close the connection once what was answered is sent."""
        if self._transport is not None:
            self._transport.close()

    @property
    def busy(self) -> bool:
        """Whether an answer is owed."""
        return bool(self._running or self._waiting)
