"""The library without a server: `open`, `Log`, `Topic`, `Scan`, `replay`, transactions."""

from cordwood.embedded.committing import TransactionCommit
from cordwood.embedded.log import Log
from cordwood.embedded.opening import open, open_when_free  # noqa: A004 - cordwood.open
from cordwood.embedded.reading import READ_BYTES_MAX, READ_BYTES_MIN, records_window, start_and_end
from cordwood.embedded.replaying import Replayed, replay
from cordwood.embedded.scan import BATCH_ROWS, Scan, decoded_rows, in_batches, place_columns
from cordwood.embedded.topic import Topic
from cordwood.embedded.transaction import CommittedPosition, LogTransaction
from cordwood.embedded.transaction import LogTransaction as Transaction
from cordwood.embedded.transactions import LogTransactions
from cordwood.embedded.writing import Placement, TopicWriter, UnsettledAppend, with_event_type

__all__ = [
    "BATCH_ROWS",
    "READ_BYTES_MAX",
    "READ_BYTES_MIN",
    "CommittedPosition",
    "Log",
    "LogTransaction",
    "LogTransactions",
    "Placement",
    "Replayed",
    "Scan",
    "Topic",
    "TopicWriter",
    "Transaction",
    "TransactionCommit",
    "UnsettledAppend",
    "decoded_rows",
    "in_batches",
    "open",
    "open_when_free",
    "place_columns",
    "records_window",
    "replay",
    "start_and_end",
    "with_event_type",
]
