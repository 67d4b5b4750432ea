"""The Kafka server: asyncio sockets <-> protocol <-> broker; limits and back-pressure."""

from cordwood.server.broker import Broker
from cordwood.server.running import Listening, run_server

__all__ = [
    "Broker",
    "Listening",
    "run_server",
]
