"""Check what is derived from the transactions of a partition against its frames.

The index of aborted transactions of each segment, the last stable offset in the mark, and the open
transactions in ``producers.json``. All of them follow from the frames, as long as all frames are there:
retention and compaction remove some, and what was derived before may then say more than the frames do. It
must never say less: a reader of committed records would be shown records of an open or aborted transaction.

Written against docs/formats/directory.md, independent of the code that writes the files.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import google_crc32c

from cordwood.disk import ReadableFiles, join, read_file
from cordwood.verify.metadata import PartitionBody, ProducersBody, Slot
from cordwood.verify.report import Tally
from cordwood.verify.segments.transactions import TransactionEvent

_ENTRY = struct.Struct(
    ">"
    "h"  # version
    "q"  # producer id
    "q"  # first offset
    "q"  # offset of the marker
    "q"  # last stable offset
)
ENTRY_BYTES = _ENTRY.size
assert ENTRY_BYTES == 34
_SWAP = "swap"
_WHAT = "index of aborted transactions"


class AbortedBody(NamedTuple):
    """An entry of a ``.txnindex``."""

    version: int
    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int

    @property
    def packed(self) -> str:
        """The bytes of the entry, in hex."""
        return _ENTRY.pack(*self).hex()


class Outcomes:
    """How the transactions of a log ended, by its markers."""

    def __init__(self, events: Sequence[TransactionEvent]) -> None:
        self._markers: dict[int, list[TransactionEvent]] = defaultdict(list)
        for event in events:
            if event.committed is not None:
                self._markers[event.producer_id].append(event)

    def committed(self, producer_id: int, offset: int) -> bool | None:
        """Return what the next marker of a producer after *offset* says, None if there is none."""
        found = self._markers.get(producer_id, ())
        at = bisect_right(found, offset, key=lambda event: event.offset)
        return found[at].committed if at < len(found) else None


class _AbortedClaim(NamedTuple):
    """What metadata say about the index of a segment."""

    source: str
    base: int
    next_offset: int
    entries: int
    crc32c: int
    sealed: bool


class TransactionsCheck:
    """The check of one partition, after its frames were read in their order."""

    def __init__(
        self,
        files: ReadableFiles,
        path: str,
        state: PartitionBody,
        slots: Sequence[Slot],
        events: Sequence[TransactionEvent],
    ) -> None:
        self.tally = Tally()
        self._files = files
        self._path = path
        self._state = state
        self._slots = [slot for slot in slots if slot.base == state.active_base]
        self._events = events
        # Frames may be missing: those below the log start, and those that compaction dropped.
        compacted = any(each.generation for each in state.sealed) or state.active_generation > 0
        self._complete = not state.log_start_offset and not compacted

    def run(self, producers: ProducersBody | None) -> Tally:
        """Check everything and return the findings. The log must be intact."""
        state = self._state
        if self._events and not state.transactional:
            self._corruption("partition.json", True, state.transactional, "transactional")
        if not state.transactional:
            return self.tally
        aborted = self._replay(None)[1]
        for claim in self._claims():
            self._check_index(claim, [each for each in aborted if _within(each.marker_offset, claim)])
        for slot in self._slots:
            self._check_slot(slot)
        if producers is not None:
            self._check_open(producers)
        return self.tally

    def _corruption(self, name: str, expected: object, found: object, what: str) -> None:
        path = join(self._path, name)
        self.tally.add("corruption", path, None, expected=expected, found=found, what=what)

    def _index(self, path: str, position: int | None, expected: object, found: object) -> None:
        self.tally.add("index", path, position, expected=expected, found=found, what=_WHAT)

    # --- the frames -------------------------------------------------------------------------------

    def _replay(self, stop: int | None) -> tuple[dict[int, int], list[AbortedBody]]:
        """Return the open transactions, by producer, and the aborted ones; of frames below *stop* only."""
        begun: dict[int, int] = {}
        aborted: list[AbortedBody] = []
        for producer, offset, committed in self._events:
            if stop is not None and offset >= stop:
                break
            if committed is None:
                begun.setdefault(producer, offset)
                continue
            first = begun.pop(producer, None)
            if first is not None and not committed:
                # They are in the order of their first offsets, because each begins at the end of the log.
                stable = min(next(iter(begun.values()), offset + 1), offset + 1)
                aborted.append(AbortedBody(0, producer, first, offset, stable))
        return begun, aborted

    # --- indexes ----------------------------------------------------------------------------------

    def _claims(self) -> Iterable[_AbortedClaim]:
        for each in self._state.sealed:
            said = each.aborted_count, each.aborted_crc32c
            yield _AbortedClaim("partition.json", each.base, each.next_offset, *said, sealed=True)
        if self._slots and self._state.truncating is None:
            slot = self._slots[0]
            said = slot.aborted_entries, slot.aborted_crc32c
            yield _AbortedClaim("mark", slot.base, slot.next_offset, *said, sealed=False)

    def _index_path(self, base: int) -> str:
        path = join(self._path, "segments", f"{base:020d}.txnindex")
        prepared = f"{path}.{_SWAP}"
        swapping = self._state.swapping == base and self._files.exists(prepared)
        return prepared if swapping else path

    def _read(self, base: int, count: int) -> tuple[bytes, int] | None:
        """Return the first *count* entries of an index and its size, None after reporting why not."""
        path = self._index_path(base)
        try:
            data = read_file(self._files, path) if count or self._files.exists(path) else b""
        except OSError as error:
            self.tally.add_unreadable(path, error, "index")
            return None
        self.tally.bytes += min(len(data), count * ENTRY_BYTES)
        return data[: count * ENTRY_BYTES], len(data)

    def _check_index(self, claim: _AbortedClaim, computed: list[AbortedBody]) -> None:
        """Compare an index with its checksum in metadata and with the frames."""
        path, found = self._index_path(claim.base), self._read(claim.base, claim.entries)
        if found is None:
            return
        data, size = found
        whole = claim.entries * ENTRY_BYTES
        if google_crc32c.value(data) != claim.crc32c or len(data) < whole:
            expected = b"".join(_ENTRY.pack(*each) for each in computed)
            position = _first_difference(expected, data) if len(expected) == whole else 0
            crc = f"{claim.entries} entries with CRC-32C {claim.crc32c:#010x}, as in {claim.source}"
            self._index(path, position, crc, f"{google_crc32c.value(data):#010x}")
            return
        if claim.sealed and size > whole:
            end = f"the end of the file after {claim.entries} entries"
            self._index(path, whole, end, f"{size - whole} bytes more")
        stored = [AbortedBody._make(each) for each in _ENTRY.iter_unpack(data)]
        self._compare(path, stored, {each.marker_offset: each for each in computed})

    def _compare(self, path: str, stored: list[AbortedBody], computed: dict[int, AbortedBody]) -> None:
        before = -1
        for number, entry in enumerate(stored):
            position = number * ENTRY_BYTES
            known = computed.pop(entry.marker_offset, None)
            if entry.marker_offset <= before or entry.version:
                self._index(path, position, "version 0 and ascending markers", entry.packed)
            elif known is None:
                if self._complete or not self._is_aborted(entry):
                    self._index(path, position, "no entry: the log has no such marker", entry.packed)
            elif not self._agrees(entry, known):
                self._index(path, position, known.packed, entry.packed)
            before = entry.marker_offset
        for missing in computed.values():
            self._index(path, None, missing.packed, "no entry")

    def _is_aborted(self, entry: AbortedBody) -> bool:
        """Return whether the marker of an entry is in the log."""
        return TransactionEvent(entry.producer_id, entry.marker_offset, False) in self._markers

    @cached_property
    def _markers(self) -> set[TransactionEvent]:
        return {each for each in self._events if each.committed is False}

    def _agrees(self, entry: AbortedBody, known: AbortedBody) -> bool:
        if self._complete or entry == known:
            return entry == known
        start = self._state.log_start_offset
        # Frames that are gone may have been the first of a transaction: the entry then begins earlier.
        covers = entry.first_offset <= known.first_offset or known.first_offset < start
        safe = entry.last_stable_offset <= known.last_stable_offset or known.last_stable_offset <= start
        return entry.producer_id == known.producer_id and covers and safe

    # --- what is open -----------------------------------------------------------------------------

    def _check_slot(self, slot: Slot) -> None:
        """Compare the last stable offset of a slot with the transactions open at its next offset."""
        begun = self._replay(slot.next_offset)[0]
        start = self._state.log_start_offset
        expected = max(min([slot.next_offset, *begun.values()]), start)
        found = max(min(slot.last_stable_offset, slot.next_offset), start)
        # The first frames of an open transaction may be below the log start, where nothing is shown anyway.
        if found > expected or (found < expected and (found > start or not start)):
            self._corruption("mark", expected, slot.last_stable_offset, "last stable offset")

    def _check_open(self, body: ProducersBody) -> None:
        """Compare the open transactions of the snapshot with those at its next offset."""
        path, start = join(self._path, "producers.json"), self._state.log_start_offset
        said = {each.id: each.open_offset for each in body.producers if each.open_offset is not None}
        begun = self._replay(body.next_offset)[0]
        for producer in sorted(said.keys() | begun.keys()):
            expected, found = begun.get(producer), said.get(producer)
            gone = found is not None and found < start
            if expected != found and not gone and (expected is None or expected >= start):
                what = f"open transaction of producer {producer}"
                self.tally.add("index", path, None, expected=expected, found=found, what=what)
        place = self._index_path(body.aborted_base)
        reported = any(finding.path == place for finding in self.tally.findings)
        if body.aborted_count and body.aborted_base == self._state.active_base and not reported:
            found_entries = self._read(body.aborted_base, body.aborted_count)
            if found_entries is not None:
                crc = google_crc32c.value(found_entries[0])
                if crc != body.aborted_crc32c:
                    expected_crc, shown = f"{body.aborted_crc32c:#010x}", f"{crc:#010x}"
                    what = "CRC-32C of its first entries"
                    self.tally.add("index", place, None, expected=expected_crc, found=shown, what=what)


def _within(offset: int, claim: _AbortedClaim) -> bool:
    return claim.base <= offset < claim.next_offset


def _first_difference(expected: bytes, found: bytes) -> int:
    """Return the position of the first entry that differs."""
    for at in range(0, len(expected), ENTRY_BYTES):
        if expected[at : at + ENTRY_BYTES] != found[at : at + ENTRY_BYTES]:
            return at
    return 0
