"""Cordwood: a durable, tamper-evident, segmented commit log for Python."""

from cordwood import errors
from cordwood.records import Header, OffsetRange, Record

__all__ = ["Header", "OffsetRange", "Record", "errors"]
