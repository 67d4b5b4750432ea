"""Sockets: listening, connections, and the memory budget of requests."""

from cordwood.server.connections.budget import Budget
from cordwood.server.connections.connection import Connection
from cordwood.server.connections.entrance import (
    EARLY_BYTES_MAX,
    EARLY_TOKEN_BYTES_MAX,
    OPEN_DOOR,
    Door,
    Entrance,
)
from cordwood.server.connections.exchange import (
    RAW_VERSION,
    Exchange,
    OwedMs,
    Prepared,
    RawToken,
    RequestService,
)
from cordwood.server.connections.listening import Acceptor, check_free, listen
from cordwood.server.connections.memory import TRIM_SECONDS, find_trim
from cordwood.server.connections.tls import PIECE_BYTES, HandshakeQueue, LinkedConnection, TlsLink, TlsTerms

__all__ = [
    "EARLY_BYTES_MAX",
    "EARLY_TOKEN_BYTES_MAX",
    "OPEN_DOOR",
    "PIECE_BYTES",
    "RAW_VERSION",
    "TRIM_SECONDS",
    "Acceptor",
    "Budget",
    "Connection",
    "Door",
    "Entrance",
    "Exchange",
    "HandshakeQueue",
    "LinkedConnection",
    "OwedMs",
    "Prepared",
    "RawToken",
    "RequestService",
    "TlsLink",
    "TlsTerms",
    "check_free",
    "find_trim",
    "listen",
]
