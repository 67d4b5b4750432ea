"""Formats with one record in a frame: frame, rustlog, kimberlite, laminarmq."""

from cordwood.formats.per_record import frame, kimberlite, laminarmq, rustlog
from cordwood.formats.per_record.frame import FrameFormat
from cordwood.formats.per_record.kimberlite import (
    NO_HASH,
    OVERHEAD,
    SIZE_MAX,
    KimberliteFormat,
    KimberliteRecord,
)
from cordwood.formats.per_record.laminarmq import IndexRecord, LaminarmqFormat
from cordwood.formats.per_record.record_per_frame import RecordPerFrame
from cordwood.formats.per_record.rustlog import RustlogFormat

__all__ = [
    "NO_HASH",
    "OVERHEAD",
    "SIZE_MAX",
    "FrameFormat",
    "IndexRecord",
    "KimberliteFormat",
    "KimberliteRecord",
    "LaminarmqFormat",
    "RecordPerFrame",
    "RustlogFormat",
    "frame",
    "kimberlite",
    "laminarmq",
    "rustlog",
]
