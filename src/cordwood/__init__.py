"""Cordwood: a durable, tamper-evident, segmented commit log for Python."""

import importlib
from typing import TYPE_CHECKING, Any

from cordwood import errors
from cordwood.records import Header, OffsetRange, Record

if TYPE_CHECKING:
    from cordwood import spark
    from cordwood.embedded import Log, Placement, Topic, open  # noqa: A004 - used as cordwood.open
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

# Where each of these is. Loaded when first used: ``cordwood --help`` needs no storage, and whoever embeds
# the log alone does not pay for the server.
_WHERE = {
    "Broker": "cordwood.server.broker",
    "Log": "cordwood.embedded",
    "Placement": "cordwood.embedded",
    "Topic": "cordwood.embedded",
    "open": "cordwood.embedded",
}


def __getattr__(name: str) -> Any:
    if name == "spark":
        return importlib.import_module("cordwood.spark")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return found
