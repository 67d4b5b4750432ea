"""Cordwood: a durable, tamper-evident, segmented commit log for Python."""

import importlib
from typing import TYPE_CHECKING, Any

from cordwood import errors
from cordwood.lazily import lazily
from cordwood.records import Header, OffsetRange, Record

if TYPE_CHECKING:
    from cordwood import spark
    from cordwood.embedded import (
        Log,
        Placement,
        Replayed,
        Topic,
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
    from cordwood.server import Broker
    from cordwood.storage.backup import BackupReport, RestoreReport, backup, restore

__all__ = [
    "BackupReport",
    "Broker",
    "CheckedItem",
    "CheckpointList",
    "CheckpointReport",
    "ConsistencyProof",
    "ConsistentCheckpoints",
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
    "SegmentFrames",
    "SignedCheckpoint",
    "Topic",
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
    "replay",
    "restore",
    "spark",
    "verify_checkpoint",
    "verify_checkpoints",
    "verify_consistency",
    "verify_proof",
]

# The room of each name. A room is loaded when one of its names is first used: ``cordwood --help`` needs no
# storage, and a program that embeds the log does not load the server.
_WHERE = {
    "BackupReport": "cordwood.storage.backup",
    "Broker": "cordwood.server",
    "CheckedItem": "cordwood.inspection",
    "CheckpointList": "cordwood.evidence",
    "CheckpointReport": "cordwood.evidence",
    "ConsistencyProof": "cordwood.evidence",
    "ConsistentCheckpoints": "cordwood.evidence",
    "InspectedFrame": "cordwood.inspection",
    "InspectedIndex": "cordwood.inspection",
    "ListedCheckpoint": "cordwood.evidence",
    "Log": "cordwood.embedded",
    "Placement": "cordwood.embedded",
    "Proof": "cordwood.evidence",
    "RecordProof": "cordwood.evidence",
    "ProvenRecord": "cordwood.evidence",
    "Replayed": "cordwood.embedded",
    "RestoreReport": "cordwood.storage.backup",
    "SegmentFrames": "cordwood.inspection",
    "SignedCheckpoint": "cordwood.evidence",
    "Topic": "cordwood.embedded",
    "backup": "cordwood.storage.backup",
    "inspect_directory": "cordwood.inspection",
    "inspect_index": "cordwood.inspection",
    "inspect_installation": "cordwood.inspection",
    "inspect_segment": "cordwood.inspection",
    "list_checkpoints": "cordwood.evidence",
    "open": "cordwood.embedded",
    "prove": "cordwood.evidence",
    "prove_consistency": "cordwood.evidence",
    "replay": "cordwood.embedded",
    "restore": "cordwood.storage.backup",
    "verify_checkpoint": "cordwood.evidence",
    "verify_checkpoints": "cordwood.evidence",
    "verify_consistency": "cordwood.evidence",
    "verify_proof": "cordwood.evidence",
}


_find = lazily(__name__, _WHERE)


def __getattr__(name: str) -> Any:
    if name == "spark":
        return importlib.import_module("cordwood.spark")
    return _find(name)
