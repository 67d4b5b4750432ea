"""The Kafka server: asyncio sockets <-> protocol <-> broker; limits and back-pressure."""

from cordwood.server.broker import Broker
from cordwood.server.connections import Exchange, Prepared
from cordwood.server.context import Context
from cordwood.server.log_lines import LineFormatter
from cordwood.server.running import Listening, run_server
from cordwood.server.server import Server
from cordwood.server.service import Handler, Service

__all__ = [
    "Broker",
    "Context",
    "Exchange",
    "Handler",
    "LineFormatter",
    "Listening",
    "Prepared",
    "Server",
    "Service",
    "run_server",
]
