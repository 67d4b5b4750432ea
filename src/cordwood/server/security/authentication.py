"""What authenticates the clients of a server: users, keys, mechanisms; and what it counts and logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from cordwood.config import BrokerConfig, ListenerConfig
from cordwood.errors import InvalidSetting
from cordwood.host import Clock, process
from cordwood.protocol import ApiKey, ErrorCode
from cordwood.security import (
    OAuthExchange,
    PlainExchange,
    SaslMechanism,
    SaslSession,
    ScramExchange,
    ScramMechanism,
    ScramUsers,
    TokenSubject,
    TokenTerms,
    check_token,
)
from cordwood.server.security.limited_log import LimitedLog
from cordwood.server.security.token_keys import KeysUnreadable, TokenKeys, check_joserfc
from cordwood.telemetry import (
    AUTHENTICATION_FAILURES,
    AUTHENTICATIONS,
    EXPIRED_SESSIONS,
    REAUTHENTICATIONS,
    Telemetry,
)

_NAME_MAX = 100
#: The most lines about failed attempts within a second.
_FAILURES_A_SECOND = 10
_LOGGER = logging.getLogger("cordwood.server")


class AuthenticationResult(NamedTuple):
    """An attempt to authenticate. ``name`` is the claimed one if it failed, None if it was not said.

    ``code`` was answered to the request ``api_key``. ``reason`` says why it failed, but never whether the
    user exists.
    """

    peer: str
    listener: str
    mechanism: str
    name: str | None
    code: ErrorCode
    reason: str = ""
    again: bool = False
    client_id: str | None = None
    api_key: ApiKey = ApiKey.SASL_AUTHENTICATE


class ReloadWorkers(Protocol):
    """Threads that may block."""

    def run_for(self, call: Callable[[], None], then: Callable[[Exception | None], None]) -> None:
        """Run *call* in a thread, then *then* with its result or exception on the loop."""


class Authentication:
    """Authenticates the clients of all listeners. On the loop, except for what it reads."""

    def __init__(self, config: BrokerConfig, users: ScramUsers, clock: Clock, telemetry: Telemetry) -> None:
        """Prepare the mechanisms of all SASL listeners. Key sets in files are read.

        Raises:
            InvalidSetting: If OAUTHBEARER is enabled without keys that can be read.
        """
        self.users = users
        self.clock = clock
        self.delay_ms = config.failed_authentication_delay_ms
        #: Called with each attempt.
        self.observers: list[Callable[[AuthenticationResult], None]] = []
        self._telemetry = telemetry
        self._failures = LimitedLog(_LOGGER, clock, _FAILURES_A_SECOND)
        self._keys: dict[str, TokenKeys] = {}
        self._listeners: dict[str, ListenerConfig] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        for endpoint in config.listeners.each:
            if config.security_of(endpoint.name).sasl:
                self._add(endpoint.name, config.listener(endpoint.name))

    def _add(self, listener: str, config: ListenerConfig) -> None:
        self._listeners[listener] = config
        address = config.jwks_address
        if not config.enables("OAUTHBEARER"):
            return
        check_joserfc()
        if not address:
            raise InvalidSetting(
                "sasl.oauthbearer.jwks.endpoint.url", "", "the address of a JWK set, for OAUTHBEARER"
            )
        if address not in self._keys:
            keys = self._keys[address] = TokenKeys(address, self.clock)
            if address.startswith("file:"):
                try:
                    keys.reload()
                except KeysUnreadable as error:
                    name = "sasl.oauthbearer.jwks.endpoint.url"
                    raise InvalidSetting(name, address, f"a JWK set: {error}") from error

    def refreshing(self) -> list[tuple[TokenKeys, int]]:
        """Return each set of keys and the interval in milliseconds at which it is read again."""
        intervals: dict[str, int] = {}
        for config in self._listeners.values():
            if config.jwks_address in self._keys:
                known = intervals.get(config.jwks_address, config.jwks_refresh_ms)
                intervals[config.jwks_address] = min(known, config.jwks_refresh_ms)
        return [(self._keys[address], interval_ms) for address, interval_ms in intervals.items()]

    def start(self, workers: ReloadWorkers) -> None:
        """Read the keys of tokens again from time to time, those of addresses at once."""
        for keys, interval_ms in self.refreshing():
            if keys.address.startswith("file:"):
                self._reload_later(workers, keys, interval_ms)
            else:
                self._reload(workers, keys, interval_ms)

    def close(self) -> None:
        """Read no more keys."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()

    def _reload(self, workers: ReloadWorkers, keys: TokenKeys, interval_ms: int) -> None:
        workers.run_for(keys.reload_quietly, lambda result: self._reload_later(workers, keys, interval_ms))

    def _reload_later(self, workers: ReloadWorkers, keys: TokenKeys, interval_ms: int) -> None:
        if not self._closed:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(interval_ms / 1000, self._reload, workers, keys, interval_ms)
            self._timers[keys.address] = timer

    def mechanisms_of(self, listener: str) -> list[str]:
        """Return the mechanisms that clients of *listener* may use."""
        return self._listeners[listener].sasl_mechanisms.split(",")

    def new_session(self, listener: str) -> SaslSession:
        """Return the exchange of a new connection to *listener*, a SASL listener."""
        config = self._listeners[listener]
        makers = {name: partial(self._exchange, name, config) for name in self.mechanisms_of(listener)}
        return SaslSession(makers, config.max_reauth_ms)

    def _exchange(self, mechanism: str, config: ListenerConfig) -> SaslMechanism:
        match mechanism:
            case "PLAIN":
                return PlainExchange(self.users.find)
            case "OAUTHBEARER":
                return self._oauth(config)
        return ScramExchange(ScramMechanism.titled(mechanism), self.users.find, process.new_nonce())

    def _oauth(self, config: ListenerConfig) -> OAuthExchange:
        keys = self._keys[config.jwks_address]
        terms = TokenTerms(
            tuple(config.oauth_audiences),
            config.oauth_issuer or None,
            config.oauth_clock_skew_s,
            config.oauth_subject_claim,
            config.oauth_scope_claim,
        )

        def check(token: str) -> TokenSubject:
            return check_token(token, keys.keys, terms, self.clock.now_ms())

        return OAuthExchange(check, partial(keys.reload_quietly, unless_recent=True))

    def note(self, result: AuthenticationResult) -> None:
        """Count and log an attempt."""
        name = "nobody" if result.name is None else ascii(result.name[:_NAME_MAX])
        if result.code is not ErrorCode.NONE:
            self._telemetry.add(AUTHENTICATION_FAILURES)
            self._failures.warn(
                f"{result.peer} failed to authenticate as {name} by {result.mechanism} "
                f"at listener {result.listener}: {result.reason}"
            )
        else:
            self._telemetry.add(REAUTHENTICATIONS if result.again else AUTHENTICATIONS)
            _LOGGER.debug("%s authenticated as %s by %s", result.peer, name, result.mechanism)
        for observe in self.observers:
            observe(result)

    def note_expired(self) -> None:
        """Count a connection that is closed because its session is over."""
        self._telemetry.add(EXPIRED_SESSIONS)
