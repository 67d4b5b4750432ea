"""Sealing the active segment and opening the next one."""

from __future__ import annotations

from cordwood.storage.log.active_segment import Stores, create_stores, empty_active
from cordwood.storage.log.changes.change import SegmentChange
from cordwood.storage.log.log_core import LogCore
from cordwood.storage.log.segment import OwnedSegment, Segment
from cordwood.storage.log.state import PartitionState, SealedInfo, sealed_state, write_state
from cordwood.telemetry import SEGMENTS, SEGMENTS_ROLLED


class Roll(SegmentChange):
    """Seal the active segment, which has records, and open the next one."""

    doing = "rolling"
    _info: SealedInfo
    _stores: Stores

    def prepare(self) -> bool:
        """Sync the active segment and its indexes, and create the files of the next one."""
        log, active = self.log, self.log.active
        assert active.store.end, "an empty segment is not sealed"
        try:
            active.store.trim()
            active.sync()
        except OSError as error:
            raise log.passing_or_failed(error, "sealing") from error
        active.rewrite_indexes()
        self._info = active.info_now(log.context.clock.now_ms())
        assert self._info.next_offset > self._info.base, "a segment without records is not sealed"
        self._stores = create_stores(
            log.context.files, log.directory, self._info.next_offset, log.config, log.format
        )
        return True

    def commit(self) -> PartitionState:
        """Write the state in which the segment is sealed."""
        state = sealed_state(self.log.state, self._info, self.log.active.left)
        write_state(self.log.context.files, self.log.directory, state)
        return state

    def apply(self, state: PartitionState) -> None:
        """Append to the next segment from now on."""
        go_on_after(self.log, state, self.log.active, self._info, self._stores)


def go_on_after(
    log: LogCore, state: PartitionState, segment: Segment, info: SealedInfo, stores: Stores
) -> None:
    """Append to *stores*, which are empty, after *segment*, which *state* has sealed as *info*."""
    assert state.sealed[-1] is info, "the state seals another segment"
    assert stores.log.end == 0, "the next segment has records already"
    context = log.context
    sealed = OwnedSegment(context.open_files, log.directory, info, log.format)
    indexes = segment.indexes()
    assert indexes is not None, "a segment is sealed with its indexes in memory"
    sealed.use_indexes(*indexes)
    sealed.checked = segment.checked
    # The old store is not closed here: a reader may use it, and it is closed when the last one is done.
    log.switch_to(
        empty_active(context, log.directory, state, stores, log.format),
        state,
        (*log.view.segments[:-1], sealed),
    )
    log.known_producers.save_synced(info.next_offset)
    log.note_for_hashing()
    context.telemetry.add(SEGMENTS_ROLLED)
    context.telemetry.add(SEGMENTS)
