"""Cordwood: a durable, tamper-evident, segmented commit log for Python."""

from cordwood import errors
from cordwood.embedded import Log, Placement, Topic, open  # noqa: A004 - used as cordwood.open
from cordwood.records import Header, OffsetRange, Record

__all__ = ["Header", "Log", "OffsetRange", "Placement", "Record", "Topic", "errors", "open"]
