"""The limits of connections whose clients have not authenticated yet, all of them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cordwood.config import SecurityProtocol
from cordwood.protocol import ApiKey
from cordwood.security import ANONYMOUS, Principal

#: The largest request before authentication, and the most bytes that are read at once. PLAIN and SCRAM have
#: messages of at most 2 KiB.
EARLY_BYTES_MAX = 2560
#: The same at a listener with OAUTHBEARER, whose tokens are larger.
EARLY_TOKEN_BYTES_MAX = 16 << 10
#: The unanswered requests of a client that has not authenticated: each takes far more memory than its bytes.
EARLY_REQUESTS_MAX = 4
#: The requests that are read before the client has authenticated.
_EARLY = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
#: How many of the connections may have begun to authenticate: OpenSSL takes 44 KiB for a handshake that
#: waits for its client, against 17 KiB for one that is done.
_BEGUN_PERCENT = 40
#: A client that has begun to authenticate is closed for the sake of others after this time only.
_GRACE_NS = 1_000_000_000


def early_fault(frame: bytearray | memoryview, unanswered: int, takes_token: bool) -> str | None:
    """Return why the request in *frame* of a client that has not authenticated ends the connection, or None.

    *unanswered* requests are before it. With *takes_token* the frame is a token and no request.
    """
    if unanswered >= EARLY_REQUESTS_MAX:
        return "requests sent ahead by a client that has not authenticated"
    if not takes_token and int.from_bytes(frame[:2], "big", signed=True) not in _EARLY:
        return "a request of a client that has not authenticated"
    return None


class Newcomer(Protocol):
    """A connection whose client has not authenticated yet."""

    @property
    def began_ns(self) -> int:
        """When the connection was accepted."""

    def refuse(self, reason: str) -> None:
        """Close the connection at once."""


class Entrance:
    """The connections that are not authenticated yet. Used on the event loop only.

    There are at most *most* of them. Beyond that, the one that has been silent for longest makes room, so
    that clients that say nothing cannot keep others out. At most 40 % may have begun to authenticate,
    which takes memory and time: beyond that, the oldest of those makes room once it had a second for it.
    """

    def __init__(self, most: int, timeout_ms: int) -> None:
        self.most = most
        self.timeout_ns = timeout_ms * 1_000_000
        self._silent: dict[Newcomer, None] = {}
        self._begun: dict[Newcomer, None] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._begun)

    def reconfigure(self, most: int, timeout_ms: int) -> None:
        """Change the limits."""
        self.most, self.timeout_ns = most, timeout_ms * 1_000_000

    def has_room(self, now_ns: int) -> bool:
        """Return whether another connection may come in. One that waits longer may be closed for it."""
        return len(self) < self.most or self.make_room(now_ns)

    def make_room(self, now_ns: int) -> bool:
        """Return whether a connection that waits longer was closed for another one."""
        oldest = next(iter(self._silent), None) or self._overdue(now_ns)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.refuse("too many clients have not authenticated, and it has been silent for longest")
        return True

    def enter(self, newcomer: Newcomer) -> None:
        """Count a new connection."""
        self._silent[newcomer] = None

    def begin(self, newcomer: Newcomer, now_ns: int) -> bool:
        """Return whether the client may begin to authenticate; one that takes longer may be closed for it."""
        if newcomer not in self._silent:
            return newcomer in self._begun
        if len(self._begun) >= max(self.most * _BEGUN_PERCENT // 100, 1):
            oldest = self._overdue(now_ns)
            if oldest is None:
                return False
            self.leave(oldest)
            oldest.refuse("too many clients are authenticating, and it takes longest")
        del self._silent[newcomer]
        self._begun[newcomer] = None
        return True

    def _overdue(self, now_ns: int) -> Newcomer | None:
        """Return the oldest client that has begun, if it had its time."""
        oldest = next(iter(self._begun), None)
        return oldest if oldest is not None and now_ns - oldest.began_ns >= _GRACE_NS else None

    def leave(self, newcomer: Newcomer) -> None:
        """Count a connection no longer: it is authenticated or closed. Idempotent."""
        self._silent.pop(newcomer, None)
        self._begun.pop(newcomer, None)


@dataclass(frozen=True, slots=True)
class Door:
    """What the clients of a listener must do before they are served.

    ``entrance`` limits a connection until its client has authenticated; None serves clients at once.
    ``early_bytes_max`` is the size of the largest request until then.
    ``identify`` returns the owner of a client certificate, and `ANONYMOUS` without one. It raises
    `CertificateRefused` for a certificate whose owner may not come in. ``note_login`` is told whom TLS
    let in: the address of the client and its principal; or None and why it did not.
    """

    security: SecurityProtocol = SecurityProtocol.PLAINTEXT
    entrance: Entrance | None = None
    early_bytes_max: int = EARLY_BYTES_MAX
    identify: Callable[[bytes | None], Principal] = lambda certificate: ANONYMOUS
    note_login: Callable[[str, Principal | None, str], None] = lambda peer, principal, reason: None


#: The door of a listener without TLS and SASL.
OPEN_DOOR = Door()
