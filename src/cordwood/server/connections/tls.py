"""TLS between a socket and its connection.

A `TlsLink` is the protocol of the socket's transport and the transport of the `Connection`. It is used in
place of the event loop's own TLS, whose memory for each connection cannot be bounded: here all links of a
server share one buffer for received bytes, a handshake begins only when the client's whole first message is
there, and a response is encrypted piece by piece as the socket takes it. Until the client has authenticated,
OpenSSL gets whole records only.

Handshakes are the most expensive thing that a stranger can ask for, so one is computed for each round of the
loop: other clients wait for one at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, cast

from cordwood.protocol import WireBytes
from cordwood.security import CertificateRefused
from cordwood.server.connections.budget import Budget
from cordwood.server.connections.client_hello import HelloRefused, whole_hello
from cordwood.server.connections.early import EARLY_PIECE_BYTES, RECORD_BYTES, SEALED_BYTES, EarlyRecords

#: The received bytes that are decrypted, and the bytes of a response that are encrypted, at once.
PIECE_BYTES = 64 << 10
#: The most bytes of a handshake, with the client's certificates.
HANDSHAKE_BYTES_MAX = 64 << 10
#: The most bytes that TLS itself answers while the client sends no data. A new key takes 27 of them, and no
#: client needs many; each one is work, and a client that reads nothing would have the answers kept.
_UNASKED_BYTES_MAX = 1 << 10


class LinkedConnection(Protocol):
    """The connection above a link."""

    @property
    def early_room(self) -> int | None:
        """The bytes that the client may send until it has authenticated; None if there is no such limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; see `asyncio.BufferedProtocol`, as for the others."""

    def connection_lost(self, error: Exception | None) -> None:
        """End."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""

    def buffer_updated(self, count: int) -> None:
        """Process *count* received bytes."""

    def pause_writing(self) -> None:
        """Write nothing for now."""

    def resume_writing(self) -> None:
        """Write again."""

    def begin(self) -> bool:
        """Return whether the client may begin to authenticate; if not, the connection is closed."""

    def secured(self, certificate: bytes | None) -> None:
        """Continue after the handshake."""


class HandshakeQueue:
    """Computes one handshake for each round of the loop, in the order of arrival. On the loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[TlsLink] = deque()

    def add(self, link: TlsLink) -> None:
        """Compute the handshake of *link* soon."""
        self._waiting.append(link)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        link = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._next)
        link.shake_hands()


class TlsKeys(Protocol):
    """The keys and certificates of a listener."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context of new connections."""

    def check(self, certificate: bytes, resumed: bool) -> None:
        """Check a client certificate beyond what TLS does.

        Raises:
            CertificateRefused: If the client must not come in with it.
        """


class TlsTerms(NamedTuple):
    """What the links of one listener share. On the loop only.

    ``received`` is a buffer of `PIECE_BYTES` for received bytes. ``on_failure`` gets the address of a client
    whose handshake failed, and why.
    """

    keys: TlsKeys
    queue: HandshakeQueue
    budget: Budget
    received: bytearray
    on_failure: Callable[[str, str], None]


class TlsLink(asyncio.BufferedProtocol, asyncio.Transport):
    """TLS of one connection, on the server's side. On the loop only."""

    def __init__(self, above: LinkedConnection, terms: TlsTerms) -> None:
        super().__init__()
        self._above: LinkedConnection = above
        self._terms = terms
        self._received = memoryview(terms.received)
        self._below: asyncio.Transport | None = None
        self._early = EarlyRecords()
        self._handshake_bytes = 0
        self._secured = False
        self._queued = False
        self._tls: ssl.SSLObject | None = None
        self._incoming = self._outgoing = cast("ssl.MemoryBIO", None)
        # The bytes of responses that are not encrypted yet.
        self._unsent: deque[WireBytes] = deque()
        self._unsent_bytes = 0
        self._high = PIECE_BYTES
        self._sending = False
        self._reading_paused = False
        self._below_paused = False
        self._above_paused = False
        self._closing = False
        # What TLS itself answered since the client sent data.
        self._unasked_bytes = 0
        # Received bytes that are not decrypted yet, as the memory budget counts them.
        self._counted = 0

    # --- the protocol of the socket ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._below = cast("asyncio.Transport", transport)
        self._above.connection_made(self)

    def connection_lost(self, error: Exception | None) -> None:
        """End, and release all memory."""
        self._below = self._tls = None
        self._incoming = self._outgoing = cast("ssl.MemoryBIO", None)
        self._early.take_all()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._count_received()
        self._above.connection_lost(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes: small before authentication, and if memory is short."""
        if not self._secured or self._above.early_room is not None:
            return self._received[:EARLY_PIECE_BYTES]
        return self._received[:SEALED_BYTES] if self._terms.budget.exhausted else self._received

    def buffer_updated(self, count: int) -> None:
        """Process *count* received bytes."""
        received = self._received[:count]
        if self._secured and self._above.early_room is None:
            self._incoming.write(received)
            self._decrypt()
            return
        self._early.add(received)
        if self._secured:
            self._decrypt_early()
            return
        self._handshake_bytes += count
        if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
            self._fail("its handshake is too long")
        elif self._tls is None:
            self._greet()
        elif self._early.first_bytes:
            self._queue()
        elif self._terms.keys.context.verify_mode is ssl.CERT_NONE:
            # Only certificates make a handshake long.
            self._check_early()

    def eof_received(self) -> None:
        """Close the transport: a client that closed its half does not read answers either."""

    def pause_writing(self) -> None:
        """Encrypt nothing more for now: the socket takes no more."""
        self._below_paused = True

    def resume_writing(self) -> None:
        """Go on: the socket has taken everything."""
        self._below_paused = False
        self._send()

    # --- the handshake ----------------------------------------------------------------------------

    def _greet(self) -> None:
        """Queue when all of the client's first message is there."""
        try:
            if whole_hello(self._early.waiting):
                self._queue()
        except HelloRefused as error:
            self._fail(str(error))

    def _queue(self) -> None:
        """Compute the next step soon, and receive nothing before."""
        if not self._queued and self._below is not None:
            self._queued = True
            self._below.pause_reading()
            self._terms.queue.add(self)

    def shake_hands(self) -> None:
        """Compute the next step of the handshake."""
        self._queued = False
        if self.is_closing() or (self._tls is None and not self._above.begin()):
            return
        if self._tls is None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = self._terms.keys.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        try:
            self._secured = self._is_agreed(self._tls)
        except ssl.SSLError as error:
            # The client gets an alert that says why.
            self._send_outgoing()
            self._fail(_reason(error))
            return
        if not self._secured:
            self._send_outgoing()
            self._receive_again()
            return
        certificate = self._tls.getpeercert(binary_form=True)
        try:
            if certificate is not None:
                self._terms.keys.check(certificate, bool(self._tls.session_reused))
        except CertificateRefused as error:
            self._secured = False
            self._fail(str(error))
            return
        self._send_outgoing()
        self._above.secured(certificate)
        self._receive_again()
        self._decrypt_early()

    def _is_agreed(self, tls: ssl.SSLObject) -> bool:
        """Give OpenSSL the whole records of the handshake; return whether it is done."""
        while self._early.first_bytes:
            for piece in self._early.take_first():
                self._incoming.write(piece)
                try:
                    tls.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                return True
        return False

    def _receive_again(self) -> None:
        if self._below is not None and not self._reading_paused and not self._below.is_closing():
            self._below.resume_reading()

    def _fail(self, reason: str) -> None:
        """Report a failed handshake, and close."""
        below = self._below
        if below is not None and not below.is_closing():
            peer = below.get_extra_info("peername")
            self._terms.on_failure(str(peer[0]) if peer else "a client", reason)
            self._closing = True
            below.close()

    # --- received bytes ---------------------------------------------------------------------------

    def _decrypt_early(self) -> None:
        """Pass on the whole records of a client that has not authenticated, one after the other."""
        while not self._reading_paused and not self.is_closing():
            if self._above.early_room is None:
                self._incoming.write(self._early.take_all())
                self._decrypt()
                return
            if not self._early.first_bytes:
                break
            for piece in self._early.take_first():
                if not self.is_closing():
                    self._incoming.write(piece)
                    self._decrypt()
        self._check_early()

    def _check_early(self) -> None:
        if self._early.exceeds(self._above.early_room):
            # No client sends so much before it has an answer.
            self.abort()

    def _decrypt(self) -> None:
        """Pass on received bytes until the connection pauses, or there are no more."""
        above, going, ended = self._above, True, False
        while going and not self._reading_paused and self._tls is not None and not self.is_closing():
            read = cast("Callable[[int, memoryview], int]", self._tls.read)
            space, filled = above.get_buffer(-1), 0
            try:
                while filled < len(space):
                    count = read(len(space) - filled, space[filled:])
                    if not count:
                        # The client sends nothing more, and does not read answers either.
                        going, ended = False, True
                        break
                    filled += count
            except ssl.SSLWantReadError:
                going = False
            except ssl.SSLError:
                # Bytes that are not what the client encrypted: nothing after them counts either.
                self.abort()
                return
            if filled:
                self._unasked_bytes = 0
                above.buffer_updated(filled)
        self._count_received()
        self._answer_unasked()
        if ended:
            self.close()

    def _answer_unasked(self) -> None:
        """Send what TLS itself answers to received bytes: a new key to a client that has renewed its own."""
        if self._tls is None or self._is_lost() or not self._outgoing.pending:
            return
        self._unasked_bytes += self._outgoing.pending
        if self._unasked_bytes > _UNASKED_BYTES_MAX:
            self.abort()
            return
        self._send_outgoing()
        self._tell_above()

    def _count_received(self) -> None:
        """Count the memory of received bytes that wait until the connection reads again."""
        waiting = 0 if self._tls is None else self._incoming.pending
        grown, self._counted = waiting - self._counted, waiting
        if grown > 0:
            self._terms.budget.take(grown)
        elif grown < 0:
            self._terms.budget.give(-grown)

    def pause_reading(self) -> None:
        """Decrypt and receive nothing more for now."""
        self._reading_paused = True
        if self._below is not None:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        """Receive again, after the bytes that are here already."""
        self._reading_paused = False
        if self._below is not None and not self._queued:
            self._below.resume_reading()
            if self._secured:
                asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Process what was received before reading paused."""
        self._decrypt()
        if self._early.waiting:
            self._decrypt_early()

    # --- responses --------------------------------------------------------------------------------

    def write(self, data: WireBytes) -> None:
        """Send *data*."""
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[WireBytes]) -> None:
        """Send all of *list_of_data*; large ones are not copied, and encrypted when the socket takes them."""
        for data in list_of_data:
            self._unsent.append(data)
            self._unsent_bytes += len(data)
        self._send()

    def _send(self) -> None:
        if self._sending or self._tls is None:
            return
        self._sending = True
        try:
            while self._unsent and not self._below_paused and not self._is_lost():
                while self._unsent and self._outgoing.pending < PIECE_BYTES:
                    piece = self._next_piece()
                    self._unsent_bytes -= len(piece)
                    self._tls.write(piece)
                self._send_outgoing()
        except ssl.SSLError:
            self.abort()
        finally:
            self._sending = False
        self._tell_above()
        if self._closing and not self._unsent:
            self._finish()

    def _next_piece(self) -> WireBytes:
        """Return the next bytes to encrypt: a part of a large buffer, or small ones joined to a record."""
        first = self._unsent.popleft()
        if len(first) > PIECE_BYTES:
            view = memoryview(first)
            self._unsent.appendleft(view[PIECE_BYTES:])
            return view[:PIECE_BYTES]
        if len(first) >= RECORD_BYTES or not self._unsent:
            return first
        parts: list[WireBytes] = [first]
        room = RECORD_BYTES - len(first)
        while room and self._unsent:
            part = self._unsent.popleft()
            if len(part) > room:
                view = memoryview(part)
                self._unsent.appendleft(view[room:])
                part = view[:room]
            parts.append(part)
            room -= len(part)
        return b"".join(parts)

    def _send_outgoing(self) -> None:
        """Pass on what was encrypted."""
        if self._below is not None and not self._below.is_closing() and self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def _tell_above(self) -> None:
        """Tell the connection if it must wait with further responses, or must no longer."""
        if self._is_lost():
            return
        if not self._above_paused and self.get_write_buffer_size() > self._high:
            self._above_paused = True
            self._above.pause_writing()
        elif self._above_paused and not self._below_paused and not self._unsent:
            self._above_paused = False
            self._above.resume_writing()

    # --- the rest of a transport ------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the socket's transport knows; ``received`` is the number of bytes not decrypted yet."""
        if name == "received":
            return 0 if self._tls is None else self._incoming.pending
        return default if self._below is None else self._below.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set how many unsent bytes pause the connection."""
        assert high is not None
        assert self._below is not None
        self._high = high
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes, encrypted or not."""
        return self._unsent_bytes + (0 if self._below is None else self._below.get_write_buffer_size())

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or about to be."""
        return self._closing or self._is_lost()

    def _is_lost(self) -> bool:
        return self._below is None or self._below.is_closing()

    def close(self) -> None:
        """Close once everything is sent."""
        if not self._closing:
            self._closing = True
            if not self._unsent:
                self._finish()

    def _finish(self) -> None:
        """Say that nothing follows, so that the end cannot be mistaken for one that an attacker made."""
        if self._below is None:
            return
        if self._secured and self._tls is not None:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._send_outgoing()
        self._below.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._below is not None:
            self._below.abort()


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    return f"the TLS handshake failed: {str(error.reason or error).replace('_', ' ').lower()}"
