"""Sockets: listening, connections, and the memory budget of requests."""

from cordwood.server.connections.budget import Budget
from cordwood.server.connections.connection import Connection, Exchange, Prepared
from cordwood.server.connections.listening import Acceptor, listen
from cordwood.server.connections.memory import TRIM_SECONDS, find_trim

__all__ = [
    "TRIM_SECONDS",
    "Acceptor",
    "Budget",
    "Connection",
    "Exchange",
    "Prepared",
    "find_trim",
    "listen",
]
