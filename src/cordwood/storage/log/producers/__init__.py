"""The producers of a partition: what they appended, their open transactions, and the snapshot of both."""

from cordwood.storage.log.producers.committed import (
    AbortedRanges,
    aborted_within,
    committed_runs,
    read_committed,
)
from cordwood.storage.log.producers.keeper import CLOSING_BYTES, ProducerKeeper
from cordwood.storage.log.producers.known import (
    BATCHES_KEPT,
    SWEEP_COUNT,
    KnownProducer,
    OpenTransaction,
    Producers,
    StoredBatch,
)
from cordwood.storage.log.producers.replaying import (
    Doubt,
    DoubtfulIndex,
    Replay,
    aborted_by,
    aborted_of,
    replay_aborted,
    replay_transactions,
)
from cordwood.storage.log.producers.snapshot import (
    SNAPSHOT_BYTES,
    SNAPSHOT_VERSION,
    ProducersSnapshot,
    read_snapshot,
    snapshot_path,
    write_snapshot,
)
from cordwood.storage.log.producers.transactions import NONE_OPEN, OpenTransactions

__all__ = [
    "BATCHES_KEPT",
    "CLOSING_BYTES",
    "NONE_OPEN",
    "SNAPSHOT_BYTES",
    "SNAPSHOT_VERSION",
    "SWEEP_COUNT",
    "AbortedRanges",
    "Doubt",
    "DoubtfulIndex",
    "KnownProducer",
    "OpenTransaction",
    "OpenTransactions",
    "ProducerKeeper",
    "Producers",
    "ProducersSnapshot",
    "Replay",
    "StoredBatch",
    "aborted_by",
    "aborted_of",
    "aborted_within",
    "committed_runs",
    "read_committed",
    "read_snapshot",
    "replay_aborted",
    "replay_transactions",
    "snapshot_path",
    "write_snapshot",
]
