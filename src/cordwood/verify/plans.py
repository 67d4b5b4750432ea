"""Plans for checking segments, from ``partition.json``, the mark and the chain."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace

from cordwood.disk import ReadableFiles, join
from cordwood.verify.chain import Chain, LeafPlanner, read_chain
from cordwood.verify.frame import Epochs
from cordwood.verify.metadata import (
    PartitionBody,
    SealedBody,
    Slot,
    check_json,
    check_mark,
    check_partition_fields,
    read_bytes,
)
from cordwood.verify.report import Tally, VerifyProgress
from cordwood.verify.segments import IndexClaim, SegmentPlan

PARTITION_NAME = re.compile(r"(0|[1-9][0-9]{0,9})\Z")
_ATTEMPTS_MAX = 5
_CUT = "cut"
_SWAP = "swap"
#: The known record formats, and the files of a segment of each.
SUFFIXES = {
    "batch": ("log", "idx", "timeidx", "txnindex"),
    "frame": ("log", "idx", "timeidx"),
    "kimberlite": ("log", "idx", "timeidx"),
    "laminarmq": ("log", "timeidx", "index"),
    "rustlog": ("log", "idx", "timeidx", "sum"),
    "shared": ("log", "idx", "timeidx", "oidx"),
}
_SIDECARS = {"laminarmq": "index", "rustlog": "sum"}


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """The content of ``partition.json``, the mark and the chain at one moment.

    ``state`` is None if ``partition.json`` is unusable or ``gone``; ``chain`` is None if it is missing or
    unusable.
    """

    tally: Tally
    gone: bool
    state: PartitionBody | None
    plans: dict[int, SegmentPlan]
    chain: Chain | None = None
    slots: tuple[Slot, ...] = ()


def take_snapshot(
    files: ReadableFiles,
    path: str,
    topic: str,
    partition: int,
    progress: VerifyProgress | None = None,
    *,
    planned: bool = True,
) -> PartitionSnapshot:
    """Read the metadata files of a partition as they were at one moment, also while a writer replaces them.

    The chain is read after ``partition.json``, because a compaction is in the chain first, and before the
    mark, which is never behind the leaves. Without *planned*, no plans are made.
    """
    state_path, mark_path = join(path, "partition.json"), join(path, "mark")
    for _ in range(_ATTEMPTS_MAX):
        tally = Tally(progress)
        if not files.exists(state_path):
            return PartitionSnapshot(tally, True, None, {})
        data = read_bytes(tally, files, state_path)
        chain = read_chain(files, path, tally)
        mark = read_bytes(tally, files, mark_path)
        if data is None or read_bytes(tally, files, state_path) in (None, data):
            break
    state = None if data is None else check_json(tally, state_path, data, PartitionBody)
    if state is None:
        return PartitionSnapshot(tally, False, None, {})
    check_partition_fields(tally, state_path, state, topic, partition)
    slots = [] if mark is None else check_mark(tally, mark_path, mark)
    current = [slot for slot in slots if belongs(tally, mark_path, slot, state)]
    plans = plan_segments(files, path, state, current) if planned else {}
    if plans and chain is not None and chain.understood:
        plans = _with_leaves(files, plans, chain, state, tally)
    return PartitionSnapshot(tally, False, state, plans, chain, tuple(current))


def _with_leaves(
    files: ReadableFiles, plans: dict[int, SegmentPlan], chain: Chain, state: PartitionBody, tally: Tally
) -> dict[int, SegmentPlan]:
    """Return the plans with the leaves of each segment."""
    if not chain.head.size:
        return plans
    path = join(chain.path, "frames")
    with tally.reading(path), contextlib.closing(files.open(path, "read")) as file:
        planner = LeafPlanner(chain, state, file)
        plans = {
            base: replace(
                plan, leaves=planner.of(base, plan.next_offset, plan.generation, sealed=plan.sealed)
            )
            for base, plan in plans.items()
        }
    return plans  # noqa: RET504 - `reading` takes errors in, so these may be those from before


def plan_segments(
    files: ReadableFiles, path: str, state: PartitionBody, slots: list[Slot]
) -> dict[int, SegmentPlan]:
    """Return the plans of the segments of the partition at *path*, by base offset, oldest first."""
    epochs = tuple((epoch.epoch, epoch.start_offset) for epoch in state.epochs)
    sealed = [_sealed_plan(path, segment, epochs) for segment in state.sealed]
    plans = {plan.base: plan for plan in (*sealed, _active_plan(path, state, slots, epochs))}
    # The state that the last frame leaves is known from the beginning of the next segment.
    lefts = [plan.before for plan in plans.values()][1:]
    for plan, left in zip(list(plans.values()), (*lefts, None), strict=True):
        plans[plan.base] = replace(
            plan,
            record_format=state.record_format,
            partition=state.partition,
            tenant=state.tenant,
            left=left,
            sidecar_suffix=_SIDECARS.get(state.record_format, ""),
        )
    if state.swapping is not None and state.swapping != state.active_base and state.swapping in plans:
        plans[state.swapping] = _prepared(files, plans[state.swapping], _SWAP)
    # From the commit on, the copy that a truncation made is the log, even before its rename.
    if state.truncating is not None and state.truncating.copied:
        plans[state.active_base] = _prepared(files, plans[state.active_base], _CUT)
    return plans


def belongs(tally: Tally, path: str, slot: Slot, state: PartitionBody) -> bool:
    """Return whether a slot is of the partition's current epoch; older slots are obsolete."""
    place, newest = (slot.leader_epoch, slot.base), (state.leader_epoch, state.active_base)
    ahead = slot.leader_epoch > state.leader_epoch or (
        slot.leader_epoch == state.leader_epoch and slot.base > state.active_base
    )
    if ahead:
        what = "epoch and segment of the mark"
        tally.add("corruption", path, None, expected=f"at most {newest}", found=place, what=what)
    elif slot.leader_epoch == state.leader_epoch and slot.log_start_offset > state.log_start_offset:
        expected, what = f"at most {state.log_start_offset}", "log start offset of the mark"
        tally.add("corruption", path, None, expected=expected, found=slot.log_start_offset, what=what)
    return slot.leader_epoch == state.leader_epoch and not ahead


def _active_plan(path: str, state: PartitionBody, slots: list[Slot], epochs: Epochs) -> SegmentPlan:
    """Return the plan of the active segment.

    Every slot of this epoch and the start of the epoch are lower bounds of the synced end; the highest one is
    used.
    """
    slots = [slot for slot in slots if slot.base == state.active_base]
    ends = [(0, state.active_base), *((slot.position, slot.next_offset) for slot in slots)]
    if state.epoch_start.base == state.active_base:
        ends.append((state.epoch_start.position, state.epoch_start.next_offset))
    stop, next_offset = max(ends)
    index = time_index = IndexClaim(join(path, "mark"), 0)
    if slots:
        index = IndexClaim(index.source, slots[0].index_entries, slots[0].index_crc32c)
        time_index = IndexClaim(index.source, slots[0].time_index_entries, slots[0].time_index_crc32c)
    return SegmentPlan(
        path=_segment_path(path, state.active_base),
        base=state.active_base,
        stop=stop,
        next_offset=next_offset,
        epochs=epochs,
        index_interval_bytes=state.index_interval_bytes,
        index=index,
        time_index=time_index,
        sealed=False,
        generation=state.active_generation,
        index_interval_records=state.index_interval_records,
        before=state.before,
        time_index_sparse=state.time_index_sparse,
        leftovers=state.truncating is not None,
    )


def _sealed_plan(path: str, segment: SealedBody, epochs: Epochs) -> SegmentPlan:
    source = join(path, "partition.json")
    return SegmentPlan(
        path=_segment_path(path, segment.base),
        base=segment.base,
        stop=segment.size,
        next_offset=segment.next_offset,
        epochs=epochs,
        index_interval_bytes=segment.index_interval_bytes,
        index=IndexClaim(source, None, segment.index_crc32c),
        time_index=IndexClaim(source, None, segment.time_index_crc32c),
        sealed=True,
        max_timestamp=segment.max_timestamp,
        sha256=segment.sha256,
        generation=segment.generation,
        index_interval_records=segment.index_interval_records,
        before=segment.before,
        time_index_sparse=segment.time_index_sparse,
    )


def _prepared(files: ReadableFiles, plan: SegmentPlan, ending: str) -> SegmentPlan:
    """Return the plan with the files of a committed change that still have the suffix *ending*."""

    def named(suffix: str) -> str:
        prepared = f"{suffix}.{ending}"
        return prepared if suffix and files.exists(f"{plan.path}.{prepared}") else suffix

    return replace(
        plan,
        log_suffix=named(plan.log_suffix),
        index_suffix=named(plan.index_suffix),
        time_index_suffix=named(plan.time_index_suffix),
        sidecar_suffix=named(plan.sidecar_suffix),
        owner_index_suffix=named(plan.owner_index_suffix),
    )


def _segment_path(path: str, base: int) -> str:
    return join(path, "segments", f"{base:020d}")
