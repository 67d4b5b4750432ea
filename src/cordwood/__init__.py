"""Cordwood: a durable, tamper-evident, segmented commit log for Python."""

from typing import TYPE_CHECKING, Any

from cordwood import errors
from cordwood.embedded import Log, Placement, Topic, open  # noqa: A004 - used as cordwood.open
from cordwood.records import Header, OffsetRange, Record

if TYPE_CHECKING:
    from cordwood.server.broker import Broker

__all__ = ["Broker", "Header", "Log", "OffsetRange", "Placement", "Record", "Topic", "errors", "open"]


def __getattr__(name: str) -> Any:
    # Whoever embeds the log alone does not pay for loading a server.
    if name == "Broker":
        from cordwood.server.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
