"""Beginning the leader epoch of a takeover."""

from __future__ import annotations

from cordwood.storage.log.changes.change import SegmentChange
from cordwood.storage.log.state import Bound, PartitionState, begun_state, write_state


class BeginEpoch(SegmentChange):
    """Begin the leader epoch of the directory's newest takeover at the log end, before the first append."""

    doing = "beginning a leader epoch"

    def prepare(self) -> bool:
        """Sync the log: the new epoch begins where it is synced."""
        log = self.log
        if log.state.takeover >= log.context.takeover:
            return False
        log.sync_now()
        return True

    def commit(self) -> PartitionState:
        """Write the state in which the epoch has begun."""
        log = self.log
        end = Bound(log.active.base, log.end.position, log.end.next_offset)
        state = begun_state(log.state, end, log.context.takeover)
        write_state(log.context.files, log.directory, state)
        return state

    def apply(self, state: PartitionState) -> None:
        """Let readers see the state, and replace the mark, which counts only under its own epoch."""
        log = self.log
        log.publish(state)
        log.move_mark(log.end, sync=True)
        log.note_for_chain()
