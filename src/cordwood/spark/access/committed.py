"""Read a partition without the records of aborted transactions, which the driver found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cordwood.errors import CordwoodError
from cordwood.spark.access.access import Piece
from cordwood.spark.options import ISOLATION, UNCOMMITTED
from cordwood.storage.chain import ReadSource
from cordwood.storage.log import AbortedEntry, AbortedRanges, Fetched, FrameRun

if TYPE_CHECKING:
    import pyarrow as pa


class CommittedSource(ReadSource):
    """Reads *source* and notes which frames are of *aborted* transactions. One thread.

    Frames are returned as they are, and `without_aborted` drops the rows: many small transactions in a window
    still become one batch of rows.
    """

    def __init__(self, source: ReadSource, aborted: Sequence[AbortedEntry]) -> None:
        """Take a source, which the caller closes."""
        super().__init__(source)
        self._ranges = AbortedRanges(aborted) if aborted else None
        self._frames: list[tuple[int, int]] = []

    def read(
        self, offset: int, max_bytes: int, stop: int | None = None, *, committed: bool = False
    ) -> Fetched:
        """Return whole frames from the one that holds *offset* on; see `View.read`."""
        fetched = super().read(offset, max_bytes, stop)
        if self._ranges is not None:
            self._frames = [
                (run.table.base_offset(frame), run.table.next_offset(frame))
                for run in fetched.runs
                for frame in range(run.first, run.last + 1)
                if self._is_aborted(run, frame, self._ranges)
            ]
        return fetched

    @staticmethod
    def _is_aborted(run: FrameRun, frame: int, ranges: AbortedRanges) -> bool:
        stamp = run.table.stamp(frame)
        if stamp is None or not stamp.transactional:
            return False
        return (stamp.producer_id, run.table.base_offset(frame)) in ranges

    def without_aborted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return *rows*, which are from the last `read`, without those of aborted transactions."""
        if not self._frames:
            return rows
        import numpy as np
        import pyarrow as pa

        offsets = rows.column("offset").to_numpy()
        starts, ends = np.array(self._frames, np.int64).T
        # A row before the first of these frames compares with the last one, which is not before it either.
        frame = np.searchsorted(starts, offsets, "right") - 1
        return rows.filter(pa.array((offsets < starts[frame]) | (offsets >= ends[frame])))


def check_ended(piece: Piece, stable_offset: int) -> None:
    """Check that every transaction in *piece* has ended, in a partition with a last stable offset.

    The driver plans up to that offset. But a batch of a stream may have been planned with read_uncommitted
    before a restart, and the next batch begins after it.

    Raises:
        CordwoodError: If one is open: its records can be neither read nor skipped yet.
    """
    if stable_offset < piece.end:
        raise CordwoodError(
            f"partition {piece.partition} of topic {piece.topic} is to be read up to offset {piece.end}, but "
            f"a transaction is open from {stable_offset} on: run the query again when it has ended, or with "
            f"{ISOLATION}={UNCOMMITTED}"
        )
