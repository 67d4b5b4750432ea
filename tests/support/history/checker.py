"""The checker: which anomalies does a history have? It knows Kafka's promises and nothing of the product.

It makes two passes over the events. The first learns where everything is and compares each answer with what
was known when its operation began; the second (`support.history.coverage`) looks for what readers passed by.
Work is linear in the number of events and records, apart from sorting the offsets of each partition.

An operation of unknown outcome may have happened or not. Once a reader saw a part of it, all of it happened.

Not looked at: cycles between transactions (Jepsen's G0 and G1c, which Kafka allows), and compacted topics.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from support.history.coverage import Coverage
from support.history.ledger import Ledger, Send, Transaction
from support.history.offsets import GroupOffsets
from support.history.operations import (
    FAILED,
    INVOKE,
    OK,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Committing,
    Event,
    Partition,
    Read,
    Scanning,
    Watching,
)
from support.history.verdict import Verdict


def check(
    history: Sequence[Event], *, repeating: Collection[str] = (), dense: Collection[str] = ()
) -> Verdict:
    """Return what is wrong with *history*.

    *repeating* are the clients whose sends may be stored more than once, and in another order: producers
    that are neither idempotent nor transactional. In the topics of *dense* each offset must have a record.

    Raises:
        ValueError: If two sends have one value, or an event belongs to no operation.
    """
    collecting = gc.isenabled()
    # Nothing here is cyclic, and looking for cycles among millions of tuples takes a third of the time.
    gc.disable()
    try:
        return _Checker(history, frozenset(repeating), frozenset(dense)).check()
    finally:
        if collecting:
            gc.enable()


class _Open(NamedTuple):
    """An operation that was invoked: when, what it asked for, and what was known at that time."""

    invoked: int
    data: Any
    known: Any


class _Owner(NamedTuple):
    """The client that took over a transactional id, and when."""

    client: str
    invoked: int
    completed: int


class _Checker:
    def __init__(self, history: Sequence[Event], repeating: frozenset[str], dense: frozenset[str]) -> None:
        self._history = history
        self._dense = dense
        self._verdict = Verdict()
        self._ledger = Ledger(self._verdict, repeating)
        self._offsets = GroupOffsets(self._verdict)
        self._open: dict[tuple[str, int], _Open] = {}
        self._done: set[tuple[str, int]] = set()
        self._transactions: dict[tuple[str, int], Transaction] = {}
        self._ids: dict[str, tuple[str, int]] = {}
        self._owners: dict[str, _Owner] = {}
        self._now = 0

    def check(self) -> Verdict:
        for now, event in enumerate(self._history):
            self._now = now
            if event.phase == INVOKE:
                self._invoked(event)
            elif event.what == "begin":
                self._transactions[event.client, event.number] = Transaction(event.client, event.number)
            elif event.what == "problem":
                self._verdict.add("problem", f"{event.client}: {event.data}")
            else:
                self._completed(event)
        coverage = self._look_again()
        self._check_sends(coverage)
        self._check_transactions(coverage)
        self._check_processing(coverage)
        return self._verdict

    # --- first pass -----------------------------------------------------------------------------------

    def _transaction(self, client: str, number: int) -> Transaction:
        found = self._transactions.get((client, number))
        if found is None:
            raise ValueError(f"{client} has no transaction {number}")
        return found

    def _invoked(self, event: Event) -> None:
        data, client = event.data, event.client
        known: Any = None
        if event.what == "send":
            inside = None if data.transaction is None else self._transaction(client, data.transaction)
            fenced = self._is_fenced(client) if inside is not None else False
            known = (self._ledger.sending(client, data, inside), fenced)
        elif event.what in ("watermark", "scan"):
            known = self._known_ends(data)
        elif event.what == "commit_offsets":
            self._committing(client, data)
        elif event.what == "commit":
            known = self._is_fenced(client)
            transaction = self._transaction(client, data)
            if transaction.commit_invoked is None:
                transaction.commit_invoked = self._now
                for asked in transaction.offsets:
                    self._offsets.committing(self._now, asked, transaction)
        elif event.what == "abort":
            self._transaction(client, data).abort_invoked = True
        self._open[client, event.number] = _Open(self._now, data, known)

    def _committing(self, client: str, asked: Committing) -> None:
        if asked.transaction is None:
            self._offsets.committing(self._now, asked)
        else:
            transaction = self._transaction(client, asked.transaction)
            transaction.offsets.append(asked)
            self._offsets.waiting(asked)

    def _known_ends(self, asked: Scanning | Watching) -> tuple[int, int, int]:
        ends = self._ledger.ends[asked.topic, asked.partition]
        return ends.start, ends.ends.get(asked.isolation, 0), ends.top

    def _is_fenced(self, client: str) -> bool:
        """Return whether another client took over the transactional id of this one after this one had it."""
        if client not in self._ids:
            return False
        transactional_id, taken = self._ids[client]
        owner = self._owners[transactional_id]
        return owner.client != client and owner.invoked > taken

    def _completed(self, event: Event) -> None:
        key = (event.client, event.number)
        operation = self._open.get(key)
        if operation is None:
            raise ValueError(f"{event} completes what was never invoked")
        if key in self._done:
            self._verdict.add("answered-twice", f"{event.what} {event.number} of {event.client}")
            return
        self._done.add(key)
        self._verdict.counts[f"{event.what} {event.phase}"] += 1
        getattr(self, f"_{event.what}_completed")(event, operation)

    def _send_completed(self, event: Event, operation: _Open) -> None:
        send, fenced = operation.known
        send.outcome, send.completed = event.phase, self._now
        if event.phase == OK:
            if event.data is not None:
                self._ledger.acknowledged(send, event.data)
            if fenced:
                self._verdict.add("fenced-write", f"{send} was acknowledged")

    def _init_completed(self, event: Event, operation: _Open) -> None:
        if event.phase == OK:
            self._ids[event.client] = (operation.data, self._now)
            self._owners[operation.data] = _Owner(event.client, operation.invoked, self._now)

    def _commit_completed(self, event: Event, operation: _Open) -> None:
        transaction = self._transaction(event.client, operation.data)
        if event.phase == OK:
            transaction.committed = True
            if operation.known:
                self._verdict.add("fenced-write", f"{transaction} was committed")
        if event.phase == FAILED:
            transaction.aborted = True
        for asked in transaction.offsets:
            self._offsets.committed(self._now, asked, operation.invoked, event.phase, transaction)

    def _abort_completed(self, event: Event, operation: _Open) -> None:
        if event.phase == OK:
            self._transaction(event.client, operation.data).aborted = True

    def _commit_offsets_completed(self, event: Event, operation: _Open) -> None:
        if operation.data.transaction is None:
            self._offsets.committed(self._now, operation.data, operation.invoked, event.phase)

    def _fetch_offsets_completed(self, event: Event, operation: _Open) -> None:
        if event.phase == OK:
            self._offsets.fetched(self._now, operation.data, operation.invoked, event.data)

    def _poll_completed(self, event: Event, operation: _Open) -> None:
        if event.phase == OK:
            self._saw(event.data, operation.invoked, operation.data == READ_COMMITTED)
            self._verdict.counts["records polled"] += len(event.data)

    def _saw(self, records: Sequence[Read], invoked: int, committed: bool) -> None:
        for record in records:
            self._ledger.saw(self._now, invoked, record, committed)
        for transaction in self._ledger.became_visible:
            self._offsets.became_visible(self._now, transaction)
        self._ledger.became_visible.clear()

    def _scan_completed(self, event: Event, operation: _Open) -> None:
        if event.phase != OK:
            return
        committed = operation.data.isolation == READ_COMMITTED
        self._saw(event.data.records, operation.invoked, committed)
        self._verdict.counts["records scanned"] += len(event.data.records)
        if operation.known[2] >= event.data.end and not committed:
            where = f"{operation.data.topic}-{operation.data.partition} ends at {event.data.end}"
            self._verdict.add("lost-write", f"{where}, and {operation.known[2]} was known to be there")
        self._check_ends(operation.data, operation.known, event.data.start, event.data.end)

    def _watermark_completed(self, event: Event, operation: _Open) -> None:
        if event.phase == OK:
            asked: Watching = operation.data
            start, end = event.data
            if asked.isolation == READ_UNCOMMITTED and end <= operation.known[2]:
                where = f"{asked.topic}-{asked.partition} ends at {end}"
                what = f"{where}, and {operation.known[2]} was known to be there"
                self._verdict.add("nonmonotonic-watermark", what)
            self._check_ends(asked, operation.known, start, end)

    def _check_ends(
        self, asked: Scanning | Watching, known: tuple[int, int, int], start: int, end: int
    ) -> None:
        where = f"{asked.topic}-{asked.partition}"
        ends = self._ledger.ends[asked.topic, asked.partition]
        if end < known[1]:
            self._verdict.add("nonmonotonic-watermark", f"{where} ends at {end} after {known[1]} was shown")
        ends.ends[asked.isolation] = max(end, ends.ends.get(asked.isolation, 0))
        if 0 <= start < known[0]:
            self._verdict.add("resurrected", f"{where} starts at {start} after {known[0]} was shown")
        ends.show_start(self._now, start)

    # --- second pass ----------------------------------------------------------------------------------

    def _look_again(self) -> Coverage:
        coverage = Coverage(self._ledger, self._verdict, self._dense)
        seen: set[tuple[str, int]] = set()
        for now, event in enumerate(self._history):
            if event.what == "assign":
                coverage.assigned(event.client, event.data)
            if event.phase != OK or event.what not in ("poll", "scan"):
                continue
            key = (event.client, event.number)
            if key in seen:
                continue
            seen.add(key)
            operation = self._open[key]
            if event.what == "poll":
                coverage.polled(event, now, operation.invoked, operation.data)
            else:
                coverage.scanned_whole(operation.data, event.data, now, operation.invoked)
        return coverage

    def _check_sends(self, coverage: Coverage) -> None:
        """Check the order of the sends of each client, and those whose place nobody was told."""
        last: dict[tuple[str, str, int], Send] = {}
        counts = self._verdict.counts
        for send in self._ledger.sends.values():
            sent, transaction = send.sent, send.transaction
            counted = transaction is None or transaction.counts
            if send.outcome == FAILED and send.seen:
                self._verdict.add("G1a", f"{send} was refused, and a reader saw it")
            if send.outcome == OK and counted and not send.seen:
                counts["unseen"] += 1
            scanned = coverage.scanned.get((sent.topic, sent.partition), -1)
            nowhere = send.outcome == OK and send.offset is None and transaction is None
            if nowhere and scanned > send.completed:
                self._verdict.add("lost-write", f"{send} is nowhere in {sent.topic}-{sent.partition}")
            if send.offset is None or send.client in self._ledger.repeating:
                continue
            key = (send.client, sent.topic, sent.partition)
            before = last.get(key)
            if before is not None and before.offset is not None:
                self._check_order(before, send, coverage)
            last[key] = send

    def _check_order(self, before: Send, send: Send, coverage: Coverage) -> None:
        assert before.offset is not None
        assert send.offset is not None
        together = send.transaction is not None and send.transaction is before.transaction
        if send.offset <= before.offset:
            # Reported already if the one before had ended.
            if send.offset > send.own_floor:
                name = "int-nonmonotonic-send" if together else "nonmonotonic-send"
                what = f"{send} at {send.offset} was sent after {before} at {before.offset}"
                self._verdict.add(name, what)
        elif together:
            partition: Partition = (send.sent.topic, send.sent.partition)
            skipped = coverage.rank(partition, send.offset) - coverage.rank(partition, before.offset) - 1
            self._verdict.counts["int-send-skip"] += skipped

    def _check_transactions(self, coverage: Coverage) -> None:
        for transaction in self._transactions.values():
            if transaction.committed and transaction.aborted:
                self._verdict.add("two-outcomes", str(transaction))
            elif transaction.aborted and transaction.visible and not transaction.reported:
                self._verdict.add("G1a", f"{transaction} was aborted, and a reader saw a part of it")
            if transaction.applied and (transaction.aborted or transaction.commit_invoked is None):
                self._verdict.add("aborted-offset", f"a group has an offset of {transaction}")
            known = "committed" if transaction.committed else "aborted" if transaction.aborted else "unknown"
            self._verdict.counts[f"transactions {known}"] += 1
            if transaction.counts:
                self._check_all_there(transaction, coverage)

    def _check_all_there(self, transaction: Transaction, coverage: Coverage) -> None:
        """Report sends of a committed transaction whose place nobody knows and no final scan shows."""
        for send in transaction.sends:
            partition = (send.sent.topic, send.sent.partition)
            if send.offset is None and send.outcome != FAILED and partition in coverage.final:
                name = "half-visible" if transaction.visible or transaction.applied else "lost-write"
                self._verdict.add(name, f"{send} of {transaction} is nowhere")

    def _check_processing(self, coverage: Coverage) -> None:
        """Check that each record that a group is past was made into exactly one."""
        made: Counter[str] = Counter()
        groups: set[tuple[str, str]] = set()
        outputs: set[Partition] = set()
        for transaction in self._transactions.values():
            if not any(send.sent.source is not None for send in transaction.sends):
                continue
            outputs.update((send.sent.topic, send.sent.partition) for send in transaction.sends)
            for asked in transaction.offsets:
                groups.update((asked.group, topic) for topic, _, _ in asked.offsets)
        for send in self._ledger.sends.values():
            source = send.sent.source
            if source is not None and (send.committed_seen or (send.transaction is None and send.seen)):
                made[source] += 1
                if made[source] == 2:
                    self._verdict.add("processed-twice", f"{source!r} was made into {send} and into another")
        if not outputs <= coverage.final:
            return
        for (group, topic, index), offset in self._offsets.last_fetched().items():
            if (group, topic) in groups:
                for at, slot in self._ledger.slots[topic, index].items():
                    if at < offset and coverage.must_be_seen(slot) and not made[slot.value]:
                        what = f"{group} is at {offset} of {topic}-{index}, past {slot.value!r} at {at}"
                        self._verdict.add("processed-never", what)
