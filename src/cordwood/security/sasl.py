"""The SASL exchange of one connection: handshake, tokens, re-authentication and the session's lifetime.

Without I/O: the server passes what it received, with the time, and applies what it is told. The order of
requests and the texts for clients are Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import NamedTuple

from cordwood.security.principal import Principal
from cordwood.security.steps import Challenge, Completed, Refused, SaslMechanism, Step

#: A client may authenticate again at most once in this time.
REAUTHENTICATION_INTERVAL_NS = 1_000_000_000


class HandshakeAnswer(Enum):
    """The answer to a handshake."""

    ACCEPTED = auto()
    #: The mechanism is not enabled. The connection ends.
    UNSUPPORTED_MECHANISM = auto()
    #: The client has authenticated a moment ago. Nothing changes.
    TOO_SOON = auto()
    #: The handshake is out of order. The connection ends.
    OUT_OF_ORDER = auto()


class NotAuthenticated(NamedTuple):
    """Answer with *message* and end the connection.

    *reason* is for the log; *name* is the user that the client claimed to be, if it came so far.
    """

    message: str
    reason: str
    name: str | None
    mechanism: str
    again: bool


class Reply(NamedTuple):
    """Answer with *token*; the exchange goes on, with *failed* only until the client acknowledges it."""

    token: bytes
    failed: NotAuthenticated | None = None


class Authenticated(NamedTuple):
    """Answer with *token*; the client is *principal* until its session ends.

    ``lifetime_ms`` is 0 for a session without end. ``again`` tells that the client had authenticated before.
    """

    token: bytes
    principal: Principal
    mechanism: str
    lifetime_ms: int
    again: bool


class OutOfOrder(NamedTuple):
    """End the connection without an answer: the client broke the order of requests."""

    reason: str


Outcome = Reply | Authenticated | NotAuthenticated | OutOfOrder


class _Phase(Enum):
    VERSIONS_OR_HANDSHAKE = auto()
    HANDSHAKE = auto()
    TOKENS = auto()
    AUTHENTICATED = auto()
    ENDED = auto()


class SaslSession:
    """The state of one connection. One call at a time, in the order of the requests."""

    def __init__(
        self, mechanisms: Mapping[str, Callable[[], SaslMechanism]], max_reauthentication_ms: int = 0
    ) -> None:
        """Start a session. *mechanisms* has the enabled mechanisms by name, each a factory of exchanges.

        With *max_reauthentication_ms*, a session ends after that time unless the client authenticates again.
        """
        self._mechanisms = mechanisms
        self._max_ms = max_reauthentication_ms
        self._phase = _Phase.VERSIONS_OR_HANDSHAKE
        self._mechanism = ""
        self._exchange: SaslMechanism | None = None
        self._wrong_mechanism: str | None = None
        self._principal: Principal | None = None
        self._started_again_ns: int | None = None
        self._ends_ns: int | None = None

    @property
    def is_authenticated(self) -> bool:
        """Whether requests of the client are served now: False while it authenticates again."""
        return self._phase is _Phase.AUTHENTICATED

    @property
    def ends_ns(self) -> int | None:
        """The monotonic time from which on only a handshake may follow, None for a session without end."""
        return self._ends_ns

    def ask_versions(self) -> bool:
        """Return whether the client may ask for API versions, which it does once and first of all."""
        if self._phase is not _Phase.VERSIONS_OR_HANDSHAKE:
            return False
        self._phase = _Phase.HANDSHAKE
        return True

    def handshake(self, mechanism: str, now_ns: int) -> HandshakeAnswer:
        """Begin an exchange with *mechanism*; again, if the client has authenticated before."""
        again = self._phase is _Phase.AUTHENTICATED
        if again:
            began = self._started_again_ns
            if began is not None and now_ns - began < REAUTHENTICATION_INTERVAL_NS:
                return HandshakeAnswer.TOO_SOON
            self._started_again_ns = now_ns
        elif self._phase not in (_Phase.VERSIONS_OR_HANDSHAKE, _Phase.HANDSHAKE):
            self._phase = _Phase.ENDED
            return HandshakeAnswer.OUT_OF_ORDER
        make = self._mechanisms.get(mechanism)
        if make is None:
            self._phase = _Phase.ENDED
            return HandshakeAnswer.UNSUPPORTED_MECHANISM
        if again and mechanism != self._mechanism:
            # As Kafka does: the handshake is accepted, and the next request gets the failure.
            self._wrong_mechanism = (
                f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication "
                f"of mechanism '{self._mechanism}'"
            )
        else:
            self._mechanism = mechanism
        self._exchange = make()
        self._phase = _Phase.TOKENS
        return HandshakeAnswer.ACCEPTED

    def receive(self, token: bytes) -> Step | OutOfOrder:
        """Return the step that follows the client's *token*; `conclude` takes its result."""
        if self._phase is not _Phase.TOKENS or self._exchange is None:
            self._phase = _Phase.ENDED
            return OutOfOrder("a SASL token came out of order")
        if self._wrong_mechanism is not None:
            return Refused("the client changed its mechanism", None)
        return self._exchange.respond(token)

    def conclude(self, step: Challenge | Completed | Refused, now_ms: int, now_ns: int) -> Outcome:
        """Return what to do after *step*, at the wall-clock time *now_ms* and the monotonic time *now_ns*."""
        match step:
            case Challenge(token, refused):
                if refused is None:
                    return Reply(token)
                again = self._principal is not None
                return Reply(token, NotAuthenticated(self._refusal(), *refused, self._mechanism, again))
            case Completed(name, token, expires_ms):
                principal = Principal("User", name)
                if self._principal not in (None, principal):
                    message = f"Cannot change principals during re-authentication from {self._principal}"
                    return self._fail(f"{message}: {principal}", "the client changed its principal", name)
                lifetime_ms = self._lifetime_ms(expires_ms, now_ms)
                again = self._principal is not None
                self._principal = principal
                self._phase, self._exchange = _Phase.AUTHENTICATED, None
                self._ends_ns = None if lifetime_ms is None else now_ns + lifetime_ms * 1_000_000
                return Authenticated(token, principal, self._mechanism, lifetime_ms or 0, again)
            case Refused(reason, name):
                return self._fail(self._wrong_mechanism or self._refusal(), reason, name)

    def _lifetime_ms(self, expires_ms: int | None, now_ms: int) -> int | None:
        """Return how long a session lasts that begins now, None for one without end."""
        limits = [] if expires_ms is None else [max(expires_ms - now_ms, 0)]
        limits += [self._max_ms] if self._max_ms > 0 else []
        return min(limits, default=None)

    def _refusal(self) -> str:
        """Return the text for the client, which is the same for every reason."""
        if self._mechanism == "PLAIN":
            return "Authentication failed: Invalid username or password"
        doing = "authentication" if self._principal is None else "re-authentication"
        return (
            f"Authentication failed during {doing} due to invalid credentials "
            f"with SASL mechanism {self._mechanism}"
        )

    def _fail(self, message: str, reason: str, name: str | None) -> NotAuthenticated:
        self._phase, self._exchange = _Phase.ENDED, None
        return NotAuthenticated(message, reason, name, self._mechanism, self._principal is not None)
