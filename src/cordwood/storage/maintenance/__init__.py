"""Retention and compaction of a partition: the decisions, the rewriting, one run."""

from cordwood.storage.maintenance.checkpoint import checkpoint_path, read_checkpoint, write_checkpoint
from cordwood.storage.maintenance.compaction_plan import CompactionPlan, group_segments, plan_compaction
from cordwood.storage.maintenance.compactor import (
    CompactionReport,
    as_storage_errors,
    rewrite_input,
    settled_view,
    swap_prepared,
)
from cordwood.storage.maintenance.retention import Expiry, by_age_only, lapse_reason
from cordwood.storage.maintenance.rewriting import (
    OffsetRanges,
    RewriteInput,
    Rewritten,
    Superseding,
    rewrite,
    rewrite_whole,
    write_synced,
)
from cordwood.storage.maintenance.run import (
    NOTHING_RECLAIMED,
    Expired,
    MaintenanceReport,
    NeededFrom,
    Planned,
    Reclaimed,
    expire_evidence,
    expire_partition,
    follow,
    maintain_partition,
    merged,
    note_unknown_ages,
    plan_partition,
    unknown_groups,
)
from cordwood.storage.maintenance.transactions import compactable

__all__ = [
    "NOTHING_RECLAIMED",
    "CompactionPlan",
    "CompactionReport",
    "Expired",
    "Expiry",
    "MaintenanceReport",
    "NeededFrom",
    "OffsetRanges",
    "Planned",
    "Reclaimed",
    "RewriteInput",
    "Rewritten",
    "Superseding",
    "as_storage_errors",
    "by_age_only",
    "checkpoint_path",
    "compactable",
    "expire_evidence",
    "expire_partition",
    "follow",
    "group_segments",
    "lapse_reason",
    "maintain_partition",
    "merged",
    "note_unknown_ages",
    "plan_compaction",
    "plan_partition",
    "read_checkpoint",
    "rewrite",
    "rewrite_input",
    "rewrite_whole",
    "settled_view",
    "swap_prepared",
    "unknown_groups",
    "write_checkpoint",
    "write_synced",
]
