"""Recording more about a partition whose files stay as they are."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cordwood.storage.log.changes.change import SegmentChange
from cordwood.storage.log.log_core import LogCore
from cordwood.storage.log.state import (
    PartitionState,
    SealedInfo,
    transactional_state,
    write_state,
)


class NoteSealed(SegmentChange):
    """Replace the entries of sealed segments in `partition.json` by those in *changed*, by base offset.

    An entry whose segment was truncated or compacted since it was made is ignored: it is about other bytes.
    """

    doing = "noting what segments hold"

    def __init__(self, log: LogCore, changed: Mapping[int, SealedInfo]) -> None:
        super().__init__(log)
        self._changed = changed
        self._sealed: tuple[SealedInfo, ...] = ()

    def prepare(self) -> bool:
        """Take the entries that are about the segments as they are now; no file changes."""
        before = self.log.state.sealed
        self._sealed = tuple(_noted(info, self._changed.get(info.base, info)) for info in before)
        assert len(self._sealed) == len(before), "a segment would come or go"
        return self._sealed != before

    def commit(self) -> PartitionState:
        """Write the state with the new entries."""
        state = msgspec.structs.replace(self.log.state, sealed=self._sealed)
        write_state(self.log.context.files, self.log.directory, state)
        return state

    def apply(self, state: PartitionState) -> None:
        """Give each segment its new entry."""
        assert len(self.log.view.segments) == len(state.sealed) + 1, "a segment would come or go"
        self.log.publish(state)
        for segment, info in zip(self.log.view.segments, state.sealed, strict=False):
            segment.info = info


class NoteTransactional(SegmentChange):
    """Record that the partition is about to get its first record of a transaction."""

    doing = "noting the first transaction"

    def prepare(self) -> bool:
        """Do nothing: no file changes."""
        return True

    def commit(self) -> PartitionState:
        """Write the state that says so."""
        state = transactional_state(self.log.state)
        write_state(self.log.context.files, self.log.directory, state)
        return state

    def apply(self, state: PartitionState) -> None:
        """Let readers see the state."""
        self.log.publish(state)


def _noted(info: SealedInfo, noted: SealedInfo) -> SealedInfo:
    """Return *noted* if it is about the same file as *info*, which is in the state now; else *info*."""
    same = (info.size, info.next_offset, info.generation) == (noted.size, noted.next_offset, noted.generation)
    return noted if same else info
