"""Appending frames that are too many for one segment: over several, committed at once."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from cordwood.disk import DISK_FULL, PASSING
from cordwood.formats import Encoded, Format
from cordwood.storage.log.active_segment import ActiveSegment, create_stores, empty_active
from cordwood.storage.log.changes.change import SegmentChange
from cordwood.storage.log.log_core import LogCore
from cordwood.storage.log.segment import OwnedSegment, segment_path
from cordwood.storage.log.state import PartitionState, sealed_state, write_state
from cordwood.telemetry import SEGMENTS, SEGMENTS_ROLLED


class Spread(SegmentChange):
    """Append *pieces* to segments of their own, one after the other. Readers see all of them, or none.

    The active segment must be empty: the first piece goes to its place, and the last piece is in the new
    active segment. All of it is durable when the change is made. A crash before the commit leaves the records
    of the first piece or some of them, as it does of any append to a format with a frame for each record; the
    files of the others go to the quarantine.
    """

    doing = "appending to several segments"

    def __init__(self, log: LogCore, pieces: Sequence[Encoded], now_ms: int) -> None:
        super().__init__(log)
        self._pieces = pieces
        self._now_ms = now_ms
        self._state = log.state
        self._made: list[ActiveSegment] = []

    def prepare(self) -> bool:
        """Write and sync every piece with its indexes. The log itself is not changed."""
        log = self.log
        assert log.active.store.end == 0, "the active segment has records"
        try:
            for piece in self._pieces:
                if self._made:
                    last = self._made[-1]
                    self._state = sealed_state(self._state, last.info_now(self._now_ms), last.left)
                self._write(piece)
        except BaseException:
            self._undo()
            raise
        return True

    def _write(self, piece: Encoded) -> None:
        log, state = self.log, self._state
        context = log.context
        stores = create_stores(context.files, log.directory, state.active_base, log.config, log.format)
        made = empty_active(context, log.directory, state, stores, log.format)
        self._made.append(made)
        made.append(piece)
        made.opened_ms = made.appended_ms = self._now_ms
        made.store.trim()
        made.sync()
        made.rewrite_indexes()

    def _undo(self) -> None:
        """Remove everything that was written, and leave the empty files of the active segment. Durable."""
        log = self.log
        files, sidecar = log.context.files, log.format.sidecar
        beside = () if sidecar is None else (sidecar.suffix,)
        try:
            for made in reversed(self._made):
                made.close()
                # The log last, as in every deletion.
                of_records = (*beside, "log") if made.base != log.active.base else ()
                for suffix in ("idx", "timeidx", *of_records):
                    with contextlib.suppress(FileNotFoundError):
                        files.unlink(segment_path(log.directory, made.base, suffix))
            if self._made:
                emptied = create_stores(files, log.directory, log.active.base, log.config, log.format)
                for store in emptied:
                    if store is not None:
                        store.close()
        except OSError as error:
            log.fail(f"{self.doing}: what was written could not be removed: {error}")

    def commit(self) -> PartitionState:
        """Write the state in which all pieces but the last are sealed segments."""
        try:
            write_state(self.log.context.files, self.log.directory, self._state)
        except OSError as error:
            # Without space or handles it was not written. After any other error it may be there.
            if error.errno in DISK_FULL or error.errno in PASSING:
                self._undo()
            raise
        return self._state

    def apply(self, state: PartitionState) -> None:
        """Append after the last piece from now on, and show all pieces to readers."""
        log = self.log
        context, sealed = log.context, list[OwnedSegment]()
        for made, info in zip(self._made[:-1], state.sealed[-(len(self._made) - 1) :], strict=True):
            assert info.base == made.base, "the state seals another segment"
            segment = OwnedSegment(context.open_files, log.directory, info, log.format)
            segment.use_indexes(made.index, made.times)
            sealed.append(segment)
            made.close()
        log.switch_to(self._made[-1], state, (*log.view.segments[:-1], *sealed))
        log.known_producers.save_synced(self._made[-1].next_offset)
        context.telemetry.add(SEGMENTS_ROLLED, len(sealed))
        context.telemetry.add(SEGMENTS, len(sealed))


def cut_frames(format_: Format, frames: Encoded, bytes_max: int, frames_max: int) -> list[Encoded]:
    """Cut frames of a record each into pieces of at most *bytes_max* bytes and *frames_max* frames.

    A frame that is larger is a piece of its own.
    """
    pieces: list[Encoded] = []
    data, base = memoryview(frames.data), frames.next_offset - len(frames.sizes)
    first = start = end = 0
    for number, size in enumerate(frames.sizes):
        if number > first and (end + size - start > bytes_max or number - first >= frames_max):
            left = format_.left_by(data[end - frames.sizes[number - 1] : end])
            pieces.append(_piece(frames, data[start:end], base, first, number, left))
            first, start = number, end
        end += size
    pieces.append(_piece(frames, data[start:end], base, first, len(frames.sizes), frames.left))
    return pieces


def _piece(frames: Encoded, data: memoryview, base: int, first: int, stop: int, left: bytes) -> Encoded:
    timestamps = frames.timestamps[first:stop]
    return Encoded(
        data,
        base + stop,
        max(timestamps),
        frames.sizes[first:stop],
        timestamps,
        frames.checksums[first:stop],
        left,
    )
