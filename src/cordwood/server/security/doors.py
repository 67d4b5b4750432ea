"""How clients come in at the listeners of a server: within which limits, and with which certificates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from cordwood.config import METRICS, BrokerConfig
from cordwood.host import Clock
from cordwood.security import ANONYMOUS, Principal
from cordwood.server.connections import (
    EARLY_BYTES_MAX,
    EARLY_TOKEN_BYTES_MAX,
    OPEN_DOOR,
    PIECE_BYTES,
    Budget,
    Connection,
    Door,
    Entrance,
    HandshakeQueue,
    LinkedConnection,
    TlsLink,
    TlsTerms,
)
from cordwood.server.security.certificates import ListenerCertificates
from cordwood.server.security.limited_log import LimitedLog
from cordwood.telemetry import TLS_HANDSHAKES_FAILED, Telemetry

#: The most lines about failed handshakes within a second.
_LINES_A_SECOND = 1
#: The metrics among the listeners, none of which can have this name.
_OF_METRICS = "cordwood.metrics"
_LOGGER = logging.getLogger("cordwood.server")


class CertificateLogin(NamedTuple):
    """An attempt to come in over TLS.

    ``principal`` is the owner of the client's certificate. If it failed it is None, and ``reason`` says why.
    """

    peer: str
    listener: str
    principal: Principal | None
    reason: str


class Doors:
    """The doors of all listeners. On the loop only, except `refresh`."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        budget: Budget,
        telemetry: Telemetry,
    ) -> None:
        """Load the certificates of every listener with TLS.

        Raises:
            InvalidSetting: If they cannot be used.
        """
        self.entrance = Entrance(config.unauthenticated_max, config.authentication_timeout_ms)
        #: Called with each attempt at a listener with TLS, except by a client without certificate.
        self.observers: list[Callable[[CertificateLogin], None]] = []
        self._clock = clock
        self._telemetry = telemetry
        self._doors: dict[str, Door] = {}
        self._certificates: dict[str, ListenerCertificates] = {}
        self._terms: dict[str, TlsTerms] = {}
        self._log = LimitedLog(_LOGGER, clock, _LINES_A_SECOND)
        self._refusals = LimitedLog(_LOGGER, clock, _LINES_A_SECOND)
        queue, received = HandshakeQueue(loop), bytearray(PIECE_BYTES)
        for name in sorted({endpoint.name for endpoint in config.listeners.each}):
            security = config.security_of(name)
            tokens = security.sasl and config.listener(name).enables("OAUTHBEARER")
            early_bytes_max = EARLY_TOKEN_BYTES_MAX if tokens else EARLY_BYTES_MAX
            if not security.tls:
                door = Door(security, self.entrance, early_bytes_max)
                self._doors[name] = door if security.sasl else OPEN_DOOR
                continue
            loaded = self._certificates[name] = ListenerCertificates(name, config.listener(name), clock)
            if loaded.expired:
                _LOGGER.warning("the certificate of listener %s has expired; clients refuse it", name)
            note = partial(self._note, name)
            self._doors[name] = Door(security, self.entrance, early_bytes_max, loaded.identify, note)
            failed = partial(self._failed_at, name)
            self._terms[name] = TlsTerms(loaded, queue, budget, received, failed)
        if any(endpoint.name == "SSL" for endpoint in config.metrics_listen.each):
            keys = ListenerCertificates(METRICS, config.listener(METRICS), clock)
            self._certificates[_OF_METRICS] = keys
            self._terms[_OF_METRICS] = TlsTerms(keys, queue, budget, received, self._failed)

    @property
    def expiries(self) -> Mapping[str, int]:
        """When the certificate of each listener with TLS expires, in seconds since 1970."""
        return {name: each.not_after for name, each in self._certificates.items()}

    def has_room(self, listener: str) -> bool:
        """Return whether another client may come in at *listener*."""
        if self._doors[listener].entrance is None or self.entrance.has_room(self._clock.monotonic_ns()):
            return True
        self.warn("cordwood.unauthenticated.connections.max is reached; a new connection is closed")
        return False

    def warn(self, sentence: str) -> None:
        """Log that a new connection is closed, if not too much was logged already: anybody can connect."""
        self._refusals.warn(sentence)

    def make_room(self) -> bool:
        """Return whether a client that has not authenticated was closed to make room for another one."""
        return self.entrance.make_room(self._clock.monotonic_ns())

    def door(self, listener: str) -> Door:
        """Return the door of *listener*."""
        return self._doors[listener]

    def protocol_of(self, listener: str, connection: Connection) -> asyncio.BaseProtocol:
        """Return the protocol for the socket of a new *connection*."""
        terms = self._terms.get(listener)
        return connection if terms is None else TlsLink(connection, terms)

    def protocol_of_metrics(self, client: LinkedConnection) -> asyncio.BaseProtocol:
        """Return the protocol for the socket of a *client* of the metrics with TLS."""
        return TlsLink(client, self._terms[_OF_METRICS])

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply *config*."""
        self.entrance.reconfigure(config.unauthenticated_max, config.authentication_timeout_ms)

    def refresh(self, *, force: bool = False) -> None:
        """Load certificates again whose files have changed, or all if *force*. In a thread, one at a time."""
        for each in self._certificates.values():
            refreshed = each.refresh(force=force)
            if refreshed is not None:
                _LOGGER.log(logging.INFO if refreshed.used else logging.WARNING, "%s", refreshed.sentence)

    def _note(self, listener: str, peer: str, principal: Principal | None, reason: str) -> None:
        if principal == ANONYMOUS:
            # It needs no certificate and has none: this is no login.
            return
        for observe in self.observers:
            observe(CertificateLogin(peer, listener, principal, reason))

    def _failed_at(self, listener: str, peer: str, reason: str) -> None:
        self._failed(peer, reason)
        self._note(listener, peer, None, reason)

    def _failed(self, peer: str, reason: str) -> None:
        self._telemetry.add(TLS_HANDSHAKES_FAILED)
        self._log.warn(f"a client at {peer} could not connect: {reason}")
