"""Cordwood: a durable, tamper-evident, segmented commit log for Python."""

import importlib
from typing import TYPE_CHECKING, Any

from cordwood import errors
from cordwood.records import Header, OffsetRange, Record

if TYPE_CHECKING:
    from cordwood import spark
    from cordwood.embedded import Log, Placement, Topic, open  # noqa: A004 - used as cordwood.open
    from cordwood.server.broker import Broker
    from cordwood.storage.backup import backup
    from cordwood.storage.backup_moving import BackupReport
    from cordwood.storage.restore import RestoreReport, restore

__all__ = [
    "BackupReport",
    "Broker",
    "Header",
    "Log",
    "OffsetRange",
    "Placement",
    "Record",
    "RestoreReport",
    "Topic",
    "backup",
    "errors",
    "open",
    "restore",
    "spark",
]

# Where each of these is. Loaded when first used: ``cordwood --help`` needs no storage, and whoever embeds
# the log alone does not pay for the server.
_WHERE = {
    "BackupReport": "cordwood.storage.backup_moving",
    "Broker": "cordwood.server.broker",
    "Log": "cordwood.embedded",
    "Placement": "cordwood.embedded",
    "RestoreReport": "cordwood.storage.restore",
    "Topic": "cordwood.embedded",
    "backup": "cordwood.storage.backup",
    "open": "cordwood.embedded",
    "restore": "cordwood.storage.restore",
}


def __getattr__(name: str) -> Any:
    if name == "spark":
        return importlib.import_module("cordwood.spark")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return found
