"""Learning the producers of a partition, and its aborted transactions, from the frames of its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c

from cordwood.disk import as_storage_error
from cordwood.errors import CorruptRange
from cordwood.formats import FrameTable, Marker
from cordwood.index import AbortedEntry, AbortedIndex
from cordwood.storage.log.producers.known import Producers
from cordwood.storage.log.producers.transactions import OpenTransactions
from cordwood.storage.log.reading import REINDEX_WINDOW_BYTES, View, indexes_of, walk


class Doubt(NamedTuple):
    """A transaction that was open where damage begins, and may have ended in it: its outcome is unknown.

    Its records are those of the producer from *first_offset* to the damage.
    """

    producer_id: int
    first_offset: int
    damage: CorruptRange


class DoubtfulIndex(AbortedIndex):
    """An index of aborted transactions that was learnt from a damaged log, and may lack some."""

    def __init__(self, found: AbortedIndex, doubts: Sequence[Doubt]) -> None:
        super().__init__(found.entries)
        before = found.doubts if isinstance(found, DoubtfulIndex) else ()
        self.doubts: tuple[Doubt, ...] = (*before, *doubts)

    has_doubts = True

    def within(self, start: int, stop: int) -> tuple[list[AbortedEntry], bool]:
        """See `AbortedIndex.within`.

        Raises:
            CorruptRange: If one of the records may be of a transaction whose outcome is unknown.
        """
        for doubt in self.doubts:
            damage = doubt.damage
            if doubt.first_offset < stop and start < damage.offset:
                raise CorruptRange(
                    damage.path,
                    damage.position,
                    max(start, doubt.first_offset),
                    damage.resume_offset,
                    f"a transaction of producer {doubt.producer_id} that began at offset "
                    f"{doubt.first_offset} may have ended here, and nothing else says how",
                )
        return super().within(start, stop)


class Replay:
    """Notes the stamped frames and markers of a log in their order.

    ``open`` are the transactions that have not ended, ``aborted`` the aborted ones whose markers were met;
    ``doubts`` are those that damage may have ended. ``bytes_read`` is the size of the frames.
    """

    def __init__(self, producers: Producers, now_ms: int) -> None:
        self.producers = producers
        self.open = OpenTransactions(producers.open_transactions())
        self.aborted: list[AbortedEntry] = []
        self.doubts: list[Doubt] = []
        self.bytes_read = 0
        self._now_ms = now_ms

    def over(self, view: View, start: int, stop: int) -> Replay:
        """Note the frames of offsets [start, stop) and return this object.

        Corrupt frames are skipped: they were acknowledged long before, so no producer retries them. Any of
        them may be a marker, so the transactions that are open there become doubtful, and stay open.

        Raises:
            StorageError: If a file cannot be read. A producer may still retry the batches in it.
        """
        if start >= stop:
            return self
        for at in range(view.find_segment(start), len(view.segments)):
            segment, bounds = view.segments[at], view.bounds(at)
            if segment.base >= stop:
                break
            index = indexes_of(segment, bounds)[0]
            begin = index.floor_entry(start) or (segment.base, 0)
            for found in walk(segment, bounds, begin, REINDEX_WINDOW_BYTES, index):
                if isinstance(found, CorruptRange):
                    cause = found.__cause__
                    if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                        raise as_storage_error(cause, "learning its producers") from cause
                    if start <= found.offset < stop:
                        opened = self.producers.open_transactions()
                        self.doubts += [Doubt(each.producer_id, each.first_offset, found) for each in opened]
                    continue
                self.bytes_read += found.table.end
                self._note(found.table, start, stop)
        return self

    def _note(self, table: FrameTable, start: int, stop: int) -> None:
        """Note the frames of *table* with an offset in [start, stop)."""
        producers, now_ms = self.producers, self._now_ms
        for frame in range(len(table)):
            base, next_offset = table.base_offset(frame), table.next_offset(frame)
            # The log may start within a frame, whose remaining records are still readable.
            if next_offset <= start or base >= stop:
                continue
            stamp = table.stamp(frame)
            if stamp is not None:
                producers.note(stamp, base, next_offset, now_ms)
                if stamp.transactional:
                    self.open.begin(stamp.producer_id, base)
                continue
            marker = table.marker(frame)
            if marker is not None:
                first = producers.end(marker, base, now_ms)
                self.open.end(marker.producer_id, base)
                if first is not None and not marker.committed:
                    self.aborted.append(aborted_by(marker, first, base, self.open))

    def end_doubtful_before(self, offset: int) -> None:
        """End the doubtful transactions that begin below *offset*, a last stable offset that was known."""
        ended = {(each.producer_id, each.first_offset) for each in self.doubts if each.first_offset < offset}
        self.producers.close_transactions(ended)
        self.open = OpenTransactions(self.producers.open_transactions())


def aborted_by(
    marker: Marker, first_offset: int, marker_offset: int, still_open: OpenTransactions
) -> AbortedEntry:
    """Return the transaction that began at *first_offset* and that *marker* aborted.

    It may be among those that are *still_open*.
    """
    stable = min(still_open.open_from_without(marker.producer_id), marker_offset + 1)
    return AbortedEntry(marker.producer_id, first_offset, marker_offset, stable)


def replay_transactions(view: View, start: int, stop: int) -> OpenTransactions:
    """Return the transactions that begin in [start, stop) and do not end there, from the log itself.

    Raises:
        StorageError: If a file cannot be read.
    """
    return Replay(Producers(), 0).over(view, start, stop).open


def aborted_of(view: View, at: int) -> AbortedIndex:
    """Return the aborted transactions whose markers are in segment *at*, from the log if need be.

    The first offset of a transaction may be in an earlier segment, so the whole log before it is read then.

    Raises:
        StorageError: If a file cannot be read.
    """
    segment = view.segments[at]
    found = segment.aborted_index()
    if found is None:
        found = replay_aborted(view, at)
        segment.use_aborted(found)
    return found


def replay_aborted(view: View, at: int) -> AbortedIndex:
    """Return the aborted transactions whose markers are in segment *at*, from the log itself.

    If damage may hide such a marker, reading what it may have ended raises `CorruptRange`: see
    `DoubtfulIndex`. An index that is byte for byte what was sealed has no doubts.

    Raises:
        StorageError: If a file cannot be read.
    """
    segment, stop = view.segments[at], view.bounds(at).next_offset
    replay = Replay(Producers(), 0).over(view, view.state.log_start_offset, stop)
    found = AbortedIndex()
    for aborted in replay.aborted:
        if aborted.last_offset >= segment.base:
            found.add(aborted)
    sealed = segment.info.aborted_count, segment.info.aborted_crc32c
    if sealed[0] and sealed == (len(found), google_crc32c.value(bytes(found.entries))):
        return found
    doubts = doubts_of(replay, segment.base)
    return DoubtfulIndex(found, doubts) if doubts else found


def doubts_of(replay: Replay, base_offset: int) -> list[Doubt]:
    """Return the doubts about the index of the last segment of *replay*, which begins at *base_offset*.

    A marker may be hidden in its damage. Or a marker that is there, or comes later, ends two transactions of
    its producer in one, because that in between is hidden. Other damage is that of other indexes.
    """
    ends_here = {
        (each.producer_id, each.first_offset) for each in replay.aborted if each.last_offset >= base_offset
    } | {(each.producer_id, each.first_offset) for each in replay.producers.open_transactions()}
    return [
        doubt
        for doubt in replay.doubts
        if doubt.damage.offset >= base_offset or (doubt.producer_id, doubt.first_offset) in ends_here
    ]
