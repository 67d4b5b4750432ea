"""Second look at a history, once all places are known: what did each reader pass by without seeing it?

Whatever lies below a record that a reader was given, and above its position, must have been given to it
before: offsets below the end of a partition never change what they hold. For a read_committed reader that
holds for plain records and those of committed transactions. Counting records up to each offset once makes
the question whether something was skipped a subtraction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from support.history.ledger import Ledger, Slot
from support.history.operations import READ_COMMITTED, Event, Partition, Read, Scanned, Scanning
from support.history.verdict import Verdict

#: Skipped records that are looked at, of one reader in one place.
_LOOKED_AT_MAX = 100


class _Order:
    """The offsets of a partition that a reader must be given, in order."""

    __slots__ = ("offsets", "ranks")

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = offsets
        self.ranks = {offset: rank for rank, offset in enumerate(offsets)}

    def below(self, offset: int) -> int:
        rank = self.ranks.get(offset)
        return bisect_left(self.offsets, offset) if rank is None else rank

    def between(self, start: int, end: int) -> list[int]:
        """Return offsets from *start* up to *end*; most often there are none, which costs no search."""
        first, last = self.below(start), self.below(end)
        return self.offsets[first : min(last, first + _LOOKED_AT_MAX)]


class Coverage:
    """What readers passed by. `look` is given all events again, in order."""

    def __init__(self, ledger: Ledger, verdict: Verdict, dense: frozenset[str]) -> None:
        self._ledger = ledger
        self._verdict = verdict
        self._dense = dense
        self._positions: dict[str, dict[Partition, tuple[int, int]]] = {}
        self._everything: dict[Partition, _Order] = {}
        self._committed: dict[Partition, _Order] = {}
        #: When the last read_uncommitted scan of a whole partition began; and those with a final
        #: read_committed one.
        self.scanned: dict[Partition, int] = {}
        self.final: set[Partition] = set()
        for partition, slots in ledger.slots.items():
            offsets = sorted(slots)
            self._everything[partition] = _Order(offsets)
            committed = [offset for offset in offsets if self.must_be_seen(slots[offset])]
            self._committed[partition] = _Order(committed)

    def must_be_seen(self, slot: Slot) -> bool:
        """Return whether a read_committed reader must be given this record."""
        send = self._ledger.sends.get(slot.value)
        return send is None or send.transaction is None or send.transaction.counts

    def rank(self, partition: Partition, offset: int) -> int:
        """Return how many known records of a partition are below *offset*."""
        return self._everything[partition].below(offset)

    def assigned(self, client: str, positions: tuple[tuple[str, int, int], ...]) -> None:
        """Note where a reader goes on; a position of -1 is not known."""
        self._positions[client] = {
            (topic, index): (offset, -1) for topic, index, offset in positions if offset >= 0
        }

    def polled(self, event: Event, now: int, invoked: int, isolation: str) -> None:
        """Look at what one poll was given."""
        positions = self._positions.setdefault(event.client, {})
        for record in event.data:
            partition = (record.topic, record.partition)
            position, poll = positions.get(partition, (record.offset, -1))
            inside = "int-" if poll == event.number else ""
            if record.offset < position:
                what = f"{event.client} was given {_shown(record)} when it was at {position}"
                self._verdict.add(f"{inside}nonmonotonic-poll", what)
            elif record.offset > position:
                start = max(position, self._ledger.ends[partition].start)
                for slot, offset in self._missing(partition, start, record.offset, isolation):
                    self._skipped(slot, partition, offset, isolation, event.client, inside)
            positions[partition] = (record.offset + 1, event.number)

    def _missing(
        self, partition: Partition, start: int, end: int, isolation: str
    ) -> Iterator[tuple[Slot, int]]:
        orders = self._committed if isolation == READ_COMMITTED else self._everything
        order = orders.get(partition)
        for offset in () if order is None else order.between(start, end):
            yield self._ledger.slots[partition][offset], offset

    def _skipped(
        self, slot: Slot, partition: Partition, offset: int, isolation: str, client: str, inside: str
    ) -> None:
        what = f"{client} passed {slot.value!r} at {partition[0]}-{partition[1]} @ {offset}"
        seen = slot.first_committed if self._is_torn_off(slot, isolation) else slot.first_seen
        if seen >= 0:
            self._verdict.add(f"{inside}poll-skip", what)
        else:
            self._lost(slot, what, isolation)

    def scanned_whole(self, asked: Scanning, found: Scanned, now: int, invoked: int) -> None:
        """Look at what a scan of a whole partition has, and has not."""
        partition = (asked.topic, asked.partition)
        position = found.start
        ends = (*found.records, Read(asked.topic, asked.partition, found.end, ""))
        for record in ends:
            if record.offset < position:
                what = f"a scan gave {_shown(record)} when it was at {position}"
                self._verdict.add("int-nonmonotonic-poll", what)
            elif record.offset > position:
                for slot, offset in self._missing(partition, position, record.offset, asked.isolation):
                    self._absent(slot, partition, offset, asked, now, invoked)
                if asked.topic in self._dense:
                    what = f"{asked.topic}-{asked.partition} has nothing from {position} to {record.offset}"
                    self._verdict.add("gap", what)
            position = record.offset + 1
        if found.start == 0:
            if asked.isolation != READ_COMMITTED:
                self.scanned[partition] = invoked
            elif asked.final:
                self.final.add(partition)

    def _absent(
        self, slot: Slot, partition: Partition, offset: int, asked: Scanning, now: int, invoked: int
    ) -> None:
        """Report a record that a scan does not have: it is lost, unless it came back."""
        what = f"a scan has no {slot.value!r} at {partition[0]}-{partition[1]} @ {offset}"
        torn = self._is_torn_off(slot, asked.isolation)
        seen = slot.last_committed if torn else slot.last_seen
        if seen > now:
            self._verdict.add("resurrected", what)
        elif seen >= 0:
            self._verdict.add("lost-write", what)
        else:
            self._lost(slot, what, asked.isolation)

    def _is_torn_off(self, slot: Slot, isolation: str) -> bool:
        """Return whether only what read_committed readers saw counts."""
        send = self._ledger.sends.get(slot.value)
        return isolation == READ_COMMITTED and send is not None and send.transaction is not None

    def _lost(self, slot: Slot, what: str, isolation: str) -> None:
        """Report a record that nobody saw."""
        send = self._ledger.sends.get(slot.value)
        transaction = None if send is None else send.transaction
        torn = transaction is not None and (transaction.visible or transaction.applied)
        if torn and isolation == READ_COMMITTED:
            self._verdict.add("half-visible", f"{what}, and another part of {transaction} counts")
        else:
            self._verdict.add("lost-write", what)


def _shown(record: Read) -> str:
    return f"{record.value!r} at {record.topic}-{record.partition} @ {record.offset}"
