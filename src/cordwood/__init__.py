"""Cordwood: a durable, tamper-evident, segmented commit log for Python."""

import importlib
from typing import TYPE_CHECKING, Any

from cordwood import errors
from cordwood.embedded import Log, Placement, Topic, open  # noqa: A004 - used as cordwood.open
from cordwood.records import Header, OffsetRange, Record

if TYPE_CHECKING:
    from cordwood import spark
    from cordwood.server.broker import Broker

__all__ = [
    "Broker",
    "Header",
    "Log",
    "OffsetRange",
    "Placement",
    "Record",
    "Topic",
    "errors",
    "open",
    "spark",
]


def __getattr__(name: str) -> Any:
    # Whoever embeds the log alone does not pay for loading the rest.
    if name == "Broker":
        from cordwood.server.broker import Broker

        return Broker
    if name == "spark":
        return importlib.import_module("cordwood.spark")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
