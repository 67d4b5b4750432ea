"""Listeners: addresses, and the security protocol of each, under Kafka's names."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class SecurityProtocol(Enum):
    """How the clients of a listener connect: encrypted or not, authenticated by SASL or not."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Endpoint(NamedTuple):
    """A host and a port to listen on or to connect to; an empty host means every interface."""

    host: str
    port: int
    name: str = "PLAINTEXT"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse ``HOST:PORT`` or ``[IPV6]:PORT`` with an optional ``NAME://`` before it.

        Kafka's names of security protocols are taken in any case, as Kafka does, and kept in capitals.

        Raises:
            ValueError: If *text* is none of these.
        """
        name, _, address = text.rpartition("://")
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([a-zA-Z0-9._-]*)):([0-9]+)", address)
        if match is None or int(match[3]) > 65535 or not re.fullmatch(r"[A-Za-z0-9_-]*", name):
            raise ValueError(f"neither HOST:PORT nor NAME://HOST:PORT: {text!r}")
        if name.upper() in SecurityProtocol.__members__:
            name = name.upper()
        return cls(match[1] or match[2] or "", int(match[3]), name or "PLAINTEXT")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """A list of endpoints, such as the value of ``listeners``."""

    each: tuple[Endpoint, ...]

    @classmethod
    def parse(cls, text: str) -> Endpoints:
        """Parse a comma-separated list of endpoints; an empty text is an empty list.

        Kafka's CONTROLLER endpoint is left out: Cordwood has no controllers.
        """
        endpoints = [Endpoint.parse(part.strip()) for part in text.split(",")] if text else []
        return cls(tuple(endpoint for endpoint in endpoints if endpoint.name != "CONTROLLER"))

    @classmethod
    def parse_http(cls, text: str) -> Endpoints:
        """Parse endpoints that serve HTTP, as ``http://`` or ``https://``, which are PLAINTEXT and SSL here.

        Raises:
            ValueError: If *text* is not a list of endpoints, or one has another name.
        """
        names = {"PLAINTEXT": "PLAINTEXT", "http": "PLAINTEXT", "SSL": "SSL", "https": "SSL"}
        endpoints = cls.parse(text)
        for endpoint in endpoints.each:
            if endpoint.name not in names:
                raise ValueError(f"neither http nor https: {endpoint.name}")
        return cls(tuple(each._replace(name=names[each.name]) for each in endpoints.each))

    def __str__(self) -> str:
        return ",".join(f"{endpoint.name}://{endpoint}" for endpoint in self.each)


@dataclass(frozen=True, slots=True)
class ProtocolMap:
    """The security protocols of listeners by name: the value of ``listener.security.protocol.map``."""

    each: tuple[tuple[str, SecurityProtocol], ...]

    @classmethod
    def parse(cls, text: str) -> ProtocolMap:
        """Parse a comma-separated list of ``NAME:PROTOCOL``.

        Raises:
            ValueError: If a part has another form, names no security protocol, or repeats a name.
        """
        found: dict[str, SecurityProtocol] = {}
        for part in text.split(",") if text else ():
            name, colon, protocol = (word.strip() for word in part.rpartition(":"))
            key = name.upper()
            if not colon or not re.fullmatch(r"[A-Z0-9_-]+", key) or key in found:
                raise ValueError(f"not NAME:PROTOCOL, or not the only one for its name: {part!r}")
            try:
                found[key] = SecurityProtocol[protocol.upper()]
            except KeyError:
                raise ValueError(f"not a security protocol: {protocol!r}") from None
        return cls(tuple(found.items()))

    def __str__(self) -> str:
        return ",".join(f"{name}:{protocol.value}" for name, protocol in self.each)

    def find(self, listener: str) -> SecurityProtocol | None:
        """Return the protocol of *listener*, whose name is compared in any case, or None."""
        return dict(self.each).get(listener.upper())

    def without(self, listeners: Collection[str]) -> ProtocolMap:
        """Return the map without *listeners*, which are in capitals.

        Kafka's default says nothing of any listener and stays whole.
        """
        if self == SAME_NAMES:
            return self
        return ProtocolMap(tuple(entry for entry in self.each if entry[0] not in listeners))


#: Kafka's default: each security protocol is a listener of its own name.
SAME_NAMES = ProtocolMap(tuple((each.name, each) for each in SecurityProtocol))


def promises_security(listener: str) -> bool:
    """Return whether the name of a listener contains the name of a protocol that secures it."""
    return any(word in listener.upper() for word in ("SSL", "TLS", "SASL"))


def protocol_of(listener: str, protocols: ProtocolMap) -> SecurityProtocol | None:
    """Return the security protocol of *listener*, or None if it must not be served.

    Without a map of its own, a broker may call its plain listeners anything, unless the name promises more.
    """
    found = protocols.find(listener)
    if found is None and protocols == SAME_NAMES and not promises_security(listener):
        return SecurityProtocol.PLAINTEXT
    return found
