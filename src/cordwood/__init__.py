"""Cordwood: a durable, tamper-evident, segmented commit log for Python."""

import importlib
from typing import TYPE_CHECKING, Any

from cordwood.lazily import lazily

if TYPE_CHECKING:
    from cordwood import aio, errors, spark, testing
    from cordwood.broker.audit import AuditRecord, UnreadableAuditRecord, read_audit
    from cordwood.embedded import (
        Log,
        Placement,
        Replayed,
        Scan,
        Topic,
        Transaction,
        open,  # noqa: A004 - used as cordwood.open
        replay,
    )
    from cordwood.evidence import (
        CheckpointList,
        CheckpointReport,
        ConsistencyProof,
        ConsistentCheckpoints,
        ListedCheckpoint,
        Proof,
        ProvenRecord,
        RecordProof,
        SignedCheckpoint,
        VerifiedRead,
        list_checkpoints,
        prove,
        prove_consistency,
        verify_checkpoint,
        verify_checkpoints,
        verify_consistency,
        verify_proof,
    )
    from cordwood.inspection import (
        CheckedItem,
        InspectedFrame,
        InspectedIndex,
        SegmentFrames,
        inspect_directory,
        inspect_index,
        inspect_installation,
        inspect_segment,
    )
    from cordwood.records import EventType, Header, OffsetRange, Record
    from cordwood.server import Broker
    from cordwood.storage.backup import BackupReport, RestoreReport, backup, restore

#: The version of this package; every other place that needs it reads it here.
__version__ = "0.1.0"

__all__ = [
    "AuditRecord",
    "BackupReport",
    "Broker",
    "CheckedItem",
    "CheckpointList",
    "CheckpointReport",
    "ConsistencyProof",
    "ConsistentCheckpoints",
    "EventType",
    "Header",
    "InspectedFrame",
    "InspectedIndex",
    "ListedCheckpoint",
    "Log",
    "OffsetRange",
    "Placement",
    "Proof",
    "ProvenRecord",
    "Record",
    "RecordProof",
    "Replayed",
    "RestoreReport",
    "Scan",
    "SegmentFrames",
    "SignedCheckpoint",
    "Topic",
    "Transaction",
    "UnreadableAuditRecord",
    "VerifiedRead",
    "__version__",
    "aio",
    "backup",
    "errors",
    "inspect_directory",
    "inspect_index",
    "inspect_installation",
    "inspect_segment",
    "list_checkpoints",
    "open",
    "prove",
    "prove_consistency",
    "read_audit",
    "replay",
    "restore",
    "spark",
    "testing",
    "verify_checkpoint",
    "verify_checkpoints",
    "verify_consistency",
    "verify_proof",
]

# The room of each name. A room is loaded when one of its names is first used: ``cordwood --help`` needs no
# storage, and a program that embeds the log does not load the server.
_WHERE = {
    "AuditRecord": "cordwood.broker.audit",
    "BackupReport": "cordwood.storage.backup",
    "Broker": "cordwood.server",
    "CheckedItem": "cordwood.inspection",
    "CheckpointList": "cordwood.evidence",
    "CheckpointReport": "cordwood.evidence",
    "ConsistencyProof": "cordwood.evidence",
    "ConsistentCheckpoints": "cordwood.evidence",
    "Header": "cordwood.records",
    "InspectedFrame": "cordwood.inspection",
    "InspectedIndex": "cordwood.inspection",
    "ListedCheckpoint": "cordwood.evidence",
    "EventType": "cordwood.records",
    "Log": "cordwood.embedded",
    "OffsetRange": "cordwood.records",
    "Placement": "cordwood.embedded",
    "Proof": "cordwood.evidence",
    "RecordProof": "cordwood.evidence",
    "ProvenRecord": "cordwood.evidence",
    "Record": "cordwood.records",
    "Replayed": "cordwood.embedded",
    "RestoreReport": "cordwood.storage.backup",
    "Scan": "cordwood.embedded",
    "SegmentFrames": "cordwood.inspection",
    "SignedCheckpoint": "cordwood.evidence",
    "Topic": "cordwood.embedded",
    "Transaction": "cordwood.embedded",
    "UnreadableAuditRecord": "cordwood.broker.audit",
    "VerifiedRead": "cordwood.evidence",
    "backup": "cordwood.storage.backup",
    "inspect_directory": "cordwood.inspection",
    "inspect_index": "cordwood.inspection",
    "inspect_installation": "cordwood.inspection",
    "inspect_segment": "cordwood.inspection",
    "list_checkpoints": "cordwood.evidence",
    "open": "cordwood.embedded",
    "prove": "cordwood.evidence",
    "prove_consistency": "cordwood.evidence",
    "read_audit": "cordwood.broker.audit",
    "replay": "cordwood.embedded",
    "restore": "cordwood.storage.backup",
    "verify_checkpoint": "cordwood.evidence",
    "verify_checkpoints": "cordwood.evidence",
    "verify_consistency": "cordwood.evidence",
    "verify_proof": "cordwood.evidence",
}


_find = lazily(__name__, _WHERE)


# Hidden from type checkers, which would accept any name of this module.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in ("aio", "errors", "spark", "testing"):
            return importlib.import_module(f"cordwood.{name}")
        return _find(name)
