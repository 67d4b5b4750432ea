"""Whether the addresses that a server listens at are safe for other machines to reach."""

from __future__ import annotations

import ipaddress
import socket

from cordwood.config import BrokerConfig, Endpoint, Endpoints
from cordwood.errors import InvalidSetting

_UNLESS = "(cordwood.allow.plaintext=true listens there without)"


def check_exposure(config: BrokerConfig) -> None:
    """Check that nothing is served without encryption to other machines, unless that is asked for.

    Raises:
        InvalidSetting: If a listener without TLS, or metrics without TLS and a token, can be reached from
            another machine.
    """
    if config.allow_plaintext:
        return
    for endpoint in config.listeners.each:
        if not config.security_of(endpoint.name).tls and not is_loopback(endpoint.host):
            expected = f"SSL or SASL_SSL for an address that other machines can reach {_UNLESS}"
            raise InvalidSetting("listeners", _text(endpoint), expected)
    for endpoint in config.metrics_listen.each:
        if is_loopback(endpoint.host):
            continue
        if endpoint.name != "SSL":
            expected = f"https:// for an address that other machines can reach {_UNLESS}"
            raise InvalidSetting("cordwood.metrics.listen", str(endpoint), expected)
        if not config.metrics_token_file:
            expected = f"a file, for metrics at an address that other machines can reach {_UNLESS}"
            raise InvalidSetting("cordwood.metrics.token.file", "", expected)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach *host*. An unknown name counts as one that others can."""
    if host == "localhost":
        return True
    if not host:
        return False
    try:
        found = {address[0] for _, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return all(ipaddress.ip_address(str(each).partition("%")[0]).is_loopback for each in found)


def _text(endpoint: Endpoint) -> str:
    return str(Endpoints((endpoint,)))
