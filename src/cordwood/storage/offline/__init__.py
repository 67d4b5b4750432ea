"""Work on a directory without a running writer: reindex, staged compaction."""

from cordwood.storage.offline.reindex import (
    Damaged,
    ReindexReport,
    SegmentBuilt,
    SegmentWork,
    build_indexes,
    reindex_directory,
)
from cordwood.storage.offline.staged_compaction import GroupDone, GroupWork, compact_staged, write_group

__all__ = [
    "Damaged",
    "GroupDone",
    "GroupWork",
    "ReindexReport",
    "SegmentBuilt",
    "SegmentWork",
    "build_indexes",
    "compact_staged",
    "reindex_directory",
    "write_group",
]
