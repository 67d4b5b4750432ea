"""Checks of segments: frames, records, envelopes, indexes."""

from cordwood.verify.segments.envelopes import (
    ENDED,
    LOG_START,
    RECORDS,
    EnvelopeFrame,
    EnvelopeFrames,
    EnvelopeOwner,
)
from cordwood.verify.segments.index import IndexClaim
from cordwood.verify.segments.owners import Owners, SegmentOwners
from cordwood.verify.segments.reader import AnyFrame, FrameReader
from cordwood.verify.segments.records import NULL, FramedRecords, KimberliteRecords, RecordFrame
from cordwood.verify.segments.segment import SHARED, SegmentPlan, check_segment, open_reader
from cordwood.verify.segments.sidecars import (
    BareRustlogRecords,
    LaminarmqRecords,
    RustlogRecords,
    open_entries,
)
from cordwood.verify.segments.transactions import (
    CONTROL,
    TRANSACTIONAL,
    SegmentTransactions,
    TransactionEvent,
    marker_type,
)
from cordwood.verify.segments.transactions_check import Outcomes, TransactionsCheck

__all__ = [
    "CONTROL",
    "ENDED",
    "LOG_START",
    "NULL",
    "RECORDS",
    "SHARED",
    "TRANSACTIONAL",
    "AnyFrame",
    "BareRustlogRecords",
    "EnvelopeFrame",
    "EnvelopeFrames",
    "EnvelopeOwner",
    "FrameReader",
    "FramedRecords",
    "IndexClaim",
    "KimberliteRecords",
    "LaminarmqRecords",
    "Outcomes",
    "Owners",
    "RecordFrame",
    "RustlogRecords",
    "SegmentOwners",
    "SegmentPlan",
    "SegmentTransactions",
    "TransactionEvent",
    "TransactionsCheck",
    "check_segment",
    "marker_type",
    "open_entries",
    "open_reader",
]
