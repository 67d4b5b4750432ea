"""What is known of each send, place and transaction of a history, and what of it contradicts the order."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection

from support.history.operations import Committing, Partition, Read, Sending
from support.history.verdict import Verdict

_NEVER = -1


class Send:
    """A send: who sent what, how it ended, and where it was found."""

    __slots__ = (
        "client",
        "committed_seen",
        "completed",
        "floor",
        "offset",
        "outcome",
        "own_floor",
        "seen",
        "sent",
        "transaction",
    )

    def __init__(self, client: str, sent: Sending, transaction: Transaction | None) -> None:
        self.client = client
        self.sent = sent
        self.transaction = transaction
        self.outcome: str | None = None
        self.completed = _NEVER
        #: Where it is, by its acknowledgement or by the first reader that saw it.
        self.offset: int | None = None
        self.seen = False
        self.committed_seen = False
        #: The highest offset of its partition known to anybody, and to its client, before it began.
        self.floor = self.own_floor = _NEVER

    def __str__(self) -> str:
        return f"{self.sent.value!r} of {self.client}"


class Transaction:
    """A transaction: what belongs to it, and how it ended."""

    __slots__ = (
        "abort_invoked",
        "aborted",
        "applied",
        "client",
        "commit_invoked",
        "committed",
        "number",
        "offsets",
        "reported",
        "sends",
        "visible",
    )

    def __init__(self, client: str, number: int) -> None:
        self.client = client
        self.number = number
        self.sends: list[Send] = []
        #: The offsets of groups that belong to it.
        self.offsets: list[Committing] = []
        #: When it was first asked to commit.
        self.commit_invoked: int | None = None
        self.abort_invoked = False
        self.committed = self.aborted = False
        #: Whether a read_committed reader saw a record of it, and whether a group has an offset of it.
        self.visible = self.applied = False
        self.reported = False

    @property
    def counts(self) -> bool:
        """Whether it is known to be committed."""
        return self.committed or self.visible or self.applied

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.client}"


class Slot:
    """What is at one offset."""

    __slots__ = ("content", "first_committed", "first_seen", "last_committed", "last_seen", "value")

    def __init__(self, value: str) -> None:
        self.value = value
        self.content = -1
        #: When readers saw it first and last, and when read_committed readers did.
        self.first_seen = self.last_seen = _NEVER
        self.first_committed = self.last_committed = _NEVER


class Ends:
    """Where a partition was shown to start and to end, each with the time from which on it counts."""

    __slots__ = ("ends", "start_times", "starts", "top")

    def __init__(self) -> None:
        #: The highest offset that is known, and the highest end shown for each isolation.
        self.top = _NEVER
        self.ends: dict[str, int] = {}
        self.start_times: list[int] = []
        self.starts: list[int] = []

    def show_start(self, now: int, start: int) -> None:
        """Note that everything below *start* is deleted."""
        if start > (self.starts[-1] if self.starts else 0):
            self.start_times.append(now)
            self.starts.append(start)

    def start_before(self, when: int) -> int:
        """Return the highest start shown before *when*."""
        index = bisect_left(self.start_times, when)
        return self.starts[index - 1] if index else 0

    @property
    def start(self) -> int:
        """The highest start shown."""
        return self.starts[-1] if self.starts else 0


class Ledger:
    """All sends and places. Each method costs the same however long the history is."""

    def __init__(self, verdict: Verdict, repeating: Collection[str]) -> None:
        self._verdict = verdict
        self.repeating = repeating
        self.sends: dict[str, Send] = {}
        self.slots: defaultdict[Partition, dict[int, Slot]] = defaultdict(dict)
        self.ends: defaultdict[Partition, Ends] = defaultdict(Ends)
        #: Transactions of which a read_committed reader saw something for the first time.
        self.became_visible: list[Transaction] = []
        self._own_tops: dict[tuple[str, str, int], int] = {}

    def sending(self, client: str, sent: Sending, transaction: Transaction | None) -> Send:
        """Note that a send began."""
        if sent.value in self.sends:
            raise ValueError(f"{sent.value!r} was sent twice: values of a history must be unique")
        send = self.sends[sent.value] = Send(client, sent, transaction)
        partition = (sent.topic, sent.partition)
        send.floor = self.ends[partition].top
        send.own_floor = self._own_tops.get((client, *partition), _NEVER)
        if transaction is not None:
            transaction.sends.append(send)
        return send

    def acknowledged(self, send: Send, offset: int) -> None:
        """Note the offset that a client was told."""
        sent = send.sent
        partition = (sent.topic, sent.partition)
        slot = self.slots[partition].setdefault(offset, Slot(sent.value))
        if slot.value != sent.value:
            self._two_contents(partition, offset, slot, f"{sent.value!r}, acknowledged there")
        self._locate(send, offset)
        own = (send.client, *partition)
        if offset > self._own_tops.get(own, _NEVER):
            self._own_tops[own] = offset

    def saw(self, now: int, invoked: int, record: Read, committed: bool) -> None:
        """Note that a reader saw a record."""
        partition = (record.topic, record.partition)
        offset, value = record.offset, record.value
        if offset < self.ends[partition].start_before(invoked):
            self._verdict.add("resurrected", f"{_at(partition, offset)} was deleted and shows {value!r}")
        slots = self.slots[partition]
        slot = slots.get(offset)
        if slot is None:
            slot = slots[offset] = Slot(value)
        if slot.value != value:
            self._two_contents(partition, offset, slot, repr(value))
        elif record.content != -1:
            if slot.content == -1:
                slot.content = record.content
            elif slot.content != record.content:
                self._two_contents(partition, offset, slot, f"content {record.content}")
        slot.last_seen = now
        if slot.first_seen == _NEVER:
            slot.first_seen = now
        if committed:
            slot.last_committed = now
            if slot.first_committed == _NEVER:
                slot.first_committed = now
        send = self.sends.get(value)
        if send is None or (send.sent.topic, send.sent.partition) != partition:
            self._verdict.add("never-sent", f"{_at(partition, offset)} shows {value!r}")
            return
        send.seen = True
        self._locate(send, offset)
        if committed:
            send.committed_seen = True
            if send.transaction is not None:
                self._saw_committed(send, send.transaction, partition)

    def _saw_committed(self, send: Send, transaction: Transaction, partition: Partition) -> None:
        if not transaction.visible:
            transaction.visible = True
            self.became_visible.append(transaction)
        if transaction.commit_invoked is None and not transaction.reported:
            transaction.reported = True
            name = "G1a" if transaction.abort_invoked else "precommitted-read"
            self._verdict.add(name, f"{send} of {transaction} was seen in {_in(partition)}")

    def _locate(self, send: Send, offset: int) -> None:
        """Note where a send is, which must be one place, above all that was known before it began."""
        partition = (send.sent.topic, send.sent.partition)
        if send.offset is None:
            send.offset = offset
            if offset <= send.own_floor:
                after = f"sent after its client was told {send.own_floor}"
                self._verdict.add("nonmonotonic-send", f"{send}, {after}, is at {_at(partition, offset)}")
            elif offset <= send.floor:
                after = f"sent after {send.floor} was known"
                self._verdict.add("reordered", f"{send}, {after}, is at {_at(partition, offset)}")
        elif offset != send.offset and send.client not in self.repeating:
            where = f"{send.offset} and {offset} of {_in(partition)}"
            self._verdict.add("duplicate", f"{send} is at {where}")
        if offset > self.ends[partition].top:
            self.ends[partition].top = offset

    def _two_contents(self, partition: Partition, offset: int, slot: Slot, other: str) -> None:
        self._verdict.add("inconsistent-offsets", f"{_at(partition, offset)}: {slot.value!r} and {other}")


def _in(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _at(partition: Partition, offset: int) -> str:
    return f"{_in(partition)} @ {offset}"
