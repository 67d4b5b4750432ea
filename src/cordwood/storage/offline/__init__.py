"""Work on a directory without a running writer: reindex, staged compaction, repair of its identity."""

from cordwood.storage.offline.identity import repair_identity
from cordwood.storage.offline.reindex import (
    Damaged,
    ReindexReport,
    SegmentBuilt,
    SegmentWork,
    build_indexes,
    reindex_directory,
)
from cordwood.storage.offline.staged_compaction import GroupDone, GroupWork, compact_staged, write_group
from cordwood.storage.offline.sums import RemadeSum, UnmadeSum, remake_sums

__all__ = [
    "Damaged",
    "GroupDone",
    "GroupWork",
    "ReindexReport",
    "RemadeSum",
    "SegmentBuilt",
    "SegmentWork",
    "UnmadeSum",
    "build_indexes",
    "compact_staged",
    "reindex_directory",
    "remake_sums",
    "repair_identity",
    "write_group",
]
