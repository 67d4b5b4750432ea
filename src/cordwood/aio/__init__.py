"""The library for asyncio: `open`, `Log`, `Topic`, `replay` and `Broker`, awaited."""

from cordwood.aio.broker import AsyncBroker as Broker
from cordwood.aio.log import AsyncLog as Log
from cordwood.aio.opening import LogOpening
from cordwood.aio.opening import open as open  # noqa: A004 - cordwood.aio.open
from cordwood.aio.reading import AsyncReading as Reading
from cordwood.aio.reading import AsyncScan as Scan
from cordwood.aio.replaying import AsyncSnapshots as Snapshots
from cordwood.aio.replaying import replay
from cordwood.aio.topic import AsyncTopic as Topic
from cordwood.aio.transaction import AsyncTransaction as Transaction

__all__ = [
    "Broker",
    "Log",
    "LogOpening",
    "Reading",
    "Scan",
    "Snapshots",
    "Topic",
    "Transaction",
    "open",
    "replay",
]
