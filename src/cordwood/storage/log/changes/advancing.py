"""Moving the log start, and removing the segments that lie wholly below it."""

from __future__ import annotations

import contextlib

from cordwood.errors import OffsetOutOfRange
from cordwood.storage.log.changes.change import SegmentChange
from cordwood.storage.log.changes.truncation import remove_segments
from cordwood.storage.log.log_core import LogCore
from cordwood.storage.log.segment import segment_path
from cordwood.storage.log.state import PartitionState, advanced_state, write_state
from cordwood.telemetry import SEGMENTS


class AdvanceLogStart(SegmentChange):
    """Make *offset* the first one that can be read; nothing happens if it is not above the log start."""

    doing = "moving the log start"

    def __init__(self, log: LogCore, offset: int) -> None:
        super().__init__(log)
        self._offset = offset

    def prepare(self) -> bool:
        """Sync what lies below the new start, and save what its records say about producers."""
        log, view = self.log, self.log.view
        if self._offset <= view.state.log_start_offset:
            return False
        if self._offset > view.high_watermark:
            raise OffsetOutOfRange(self._offset, view.state.log_start_offset, view.high_watermark)
        # Under a weak sync policy the records below it may not be on the device yet. Without this a
        # power cut could leave a log that ends before it starts.
        log.sync_now()
        log.known_producers.save_before_removal(
            self._offset, view.state.leader_epoch, log.end.next_offset, log.context.clock.now_ms()
        )
        return True

    def commit(self) -> PartitionState:
        """Write the state that no longer names the segments below the new start."""
        files, directory, before = self.log.context.files, self.log.directory, self.log.state
        # Their removal failed: the next open must still know that they were to go.
        left = [base for base in before.removing if files.exists(segment_path(directory, base, "log"))]
        state = advanced_state(before, self._offset, left)
        write_state(files, directory, state)
        return state

    def apply(self, state: PartitionState) -> None:
        """Hide the segments that *state* does not name from readers, then remove their files."""
        log, segments = self.log, self.log.view.segments
        kept = {info.base for info in state.sealed} | {state.active_base}
        gone = [segment for segment in segments if segment.base not in kept]
        assert state.log_start_offset <= log.view.high_watermark, (
            "the log would start above its high watermark"
        )
        assert all(segment.next_offset_now <= self._offset for segment in gone), "a readable segment goes"
        log.publish(state, tuple(segment for segment in segments if segment.base in kept))
        log.note_for_chain()
        for segment in gone:
            log.context.open_files.forget(segment.number)
        log.context.telemetry.add(SEGMENTS, -len(gone))
        # The state does not name them any more: files that cannot be removed now go at the next open.
        with contextlib.suppress(OSError):
            remove_segments(log.context.files, log.directory, [segment.base for segment in gone])
