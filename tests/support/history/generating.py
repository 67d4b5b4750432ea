"""Random histories without a fault, and the mutations that plant one in them.

A small model of a broker serves the clients: partitions are lists, and a transaction is one decision. Each
operation is invoked, takes effect and completes in three steps of its client, between which others do theirs,
and a client may never be told. The model shares nothing with the checker but the events.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from support.history.operations import READ_COMMITTED, READ_UNCOMMITTED, Bounds, Event, Read, Scanned
from support.history.recorder import ClientRecord, Operation, Recorder

TOPIC, PARTITIONS, GROUP = "topic", 3, "group"
#: Clients that may store a record twice.
REPEATING = frozenset({"plain"})
_UNTOLD = 0.08


@dataclass
class Decision:
    """A transaction as the broker knows it: open, committed or aborted."""

    state: str = "open"
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    #: Its first offset in each partition.
    first: dict[int, int] = field(default_factory=dict)


@dataclass
class Entry:
    """A record or, without a value, a marker."""

    value: str | None
    decision: Decision | None = None


class Broker:
    """The model: what is stored, and what each reader may see of it."""

    def __init__(self) -> None:
        self.logs: list[list[Entry]] = [[] for _ in range(PARTITIONS)]
        self._open: list[dict[int, Decision]] = [{} for _ in range(PARTITIONS)]
        self.offsets: dict[tuple[str, int], int] = {}

    def end(self, index: int, isolation: str) -> int:
        """Return where a partition ends: at the first open transaction for read_committed readers."""
        opened = self._open[index] if isolation == READ_COMMITTED else {}
        return min(opened, default=len(self.logs[index]))

    def append(self, index: int, value: str, decision: Decision | None = None) -> int:
        """Store a record and return its offset."""
        offset = len(self.logs[index])
        self.logs[index].append(Entry(value, decision))
        if decision is not None and index not in decision.first:
            decision.first[index] = offset
            self._open[index][offset] = decision
        return offset

    def read(self, index: int, start: int, end: int, isolation: str) -> Iterator[Read]:
        """Yield what a reader is given of offsets from *start* up to *end*."""
        for offset in range(start, end):
            entry = self.logs[index][offset]
            aborted = entry.decision is not None and entry.decision.state == "aborted"
            if entry.value is not None and not (aborted and isolation == READ_COMMITTED):
                yield Read(TOPIC, index, offset, entry.value, offset * 7)

    def decide(self, decision: Decision, state: str) -> None:
        """End a transaction everywhere."""
        decision.state = state
        for index, offset in decision.first.items():
            del self._open[index][offset]
            self.logs[index].append(Entry(None))
        if state == "committed":
            self.offsets.update(decision.offsets)


class Clients:
    """Clients that take turns at random and end what they began; then one that scans everything."""

    def __init__(self, rng: random.Random) -> None:
        self.recorder = Recorder()
        self._rng = rng
        self._broker = Broker()
        self._sent = 0
        names = ["plain", "once-0", "once-1"]
        self._turns = [self._produce(self.recorder.client(name), name == "plain") for name in names]
        self._turns += [self._transact(self.recorder.client(f"tx-{number}"), number) for number in range(3)]
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
            self._turns.append(self._follow(self.recorder.client(f"reader-{isolation}"), isolation))
            self._turns.append(self._scan(self.recorder.client(f"scanner-{isolation}"), isolation))
        self._turns.append(self._keep_offsets(self.recorder.client("member")))
        self._ending = False

    def play(self, turns: int) -> list[Event]:
        """Let the clients take *turns*, end them, and return the history."""
        for _ in range(turns):
            next(self._rng.choice(self._turns))
        self._ending = True
        for turn in self._turns:
            for _ in turn:
                pass
        auditor = self.recorder.client("auditor")
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
            for index in range(PARTITIONS):
                scanning = auditor.scan(TOPIC, index, isolation, final=True)
                end = self._broker.end(index, isolation)
                found = tuple(self._broker.read(index, 0, end, isolation))
                scanning.ok(Scanned(0, end, found))
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
            auditor.fetch_offsets(GROUP, isolation).ok(dict(self._broker.offsets))
        return self.recorder.history()

    def _value(self, client: ClientRecord) -> str:
        self._sent += 1
        return f"{client.name}:{self._sent}"

    def _told(self) -> bool:
        return self._rng.random() >= _UNTOLD

    def _produce(self, client: ClientRecord, repeating: bool) -> Iterator[None]:
        rng = self._rng
        while not self._ending:
            index, value = rng.randrange(PARTITIONS), self._value(client)
            sending = client.send(TOPIC, index, value)
            yield
            if rng.random() < 0.05:
                sending.failed("refused")
                continue
            for _ in range(2 if repeating and rng.random() < 0.2 else 1):
                offset = self._broker.append(index, value)
            yield
            if self._told():
                sending.ok(offset)
            elif rng.random() < 0.5:
                sending.unknown("timed out")

    def _transact(self, client: ClientRecord, number: int) -> Iterator[None]:
        rng, broker = self._rng, self._broker
        taking = client.init(f"id-{number}")
        yield
        taking.ok()
        while not self._ending:
            decision, transaction = Decision(), client.begin(f"id-{number}")
            untold = False
            for _ in range(rng.randrange(1, 5)):
                index, value = rng.randrange(PARTITIONS), self._value(client)
                sending = client.send(TOPIC, index, value, transaction)
                yield
                offset = broker.append(index, value, decision)
                yield
                if self._told():
                    sending.ok(offset)
                else:
                    untold = True
            if rng.random() < 0.3:
                at = {(TOPIC, PARTITIONS + number): self._sent}
                committing = client.commit_offsets(GROUP, at, transaction)
                decision.offsets.update(at)
                committing.ok()
            committed = not untold and rng.random() < 0.7
            ending = client.commit(transaction) if committed else client.abort(transaction)
            yield
            broker.decide(decision, "committed" if committed else "aborted")
            yield
            if self._told():
                ending.ok()
            else:
                ending.unknown("timed out")

    def _follow(self, client: ClientRecord, isolation: str) -> Iterator[None]:
        rng = self._rng
        positions = dict.fromkeys(range(PARTITIONS), 0)
        client.assign((TOPIC, index, 0) for index in positions)
        while not self._ending:
            if rng.random() < 0.02:
                positions = {index: rng.randrange(at + 1) for index, at in positions.items()}
                client.assign((TOPIC, index, at) for index, at in positions.items())
            polling = client.poll(isolation)
            watching = client.watermark(TOPIC, index := rng.randrange(PARTITIONS), isolation)
            yield
            shown = Bounds(0, self._broker.end(index, isolation))
            given: list[Read] = []
            for partition, at in positions.items():
                end = min(self._broker.end(partition, isolation), at + rng.randrange(20))
                given += self._broker.read(partition, at, end, isolation)
                positions[partition] = max(at, end)
            yield
            _complete(polling, tuple(given))
            _complete(watching, shown)

    def _scan(self, client: ClientRecord, isolation: str) -> Iterator[None]:
        rng = self._rng
        for _ in range(6):
            for _ in range(rng.randrange(30)):
                yield
            index = rng.randrange(PARTITIONS)
            scanning = client.scan(TOPIC, index, isolation)
            yield
            end = self._broker.end(index, isolation)
            found = tuple(self._broker.read(index, 0, end, isolation))
            yield
            scanning.ok(Scanned(0, end, found))
        while not self._ending:
            yield

    def _keep_offsets(self, client: ClientRecord) -> Iterator[None]:
        rng, broker = self._rng, self._broker
        while not self._ending:
            if rng.random() < 0.6:
                at = {(TOPIC, rng.randrange(PARTITIONS)): rng.randrange(50)}
                committing = client.commit_offsets(GROUP, at)
                yield
                broker.offsets.update(at)
                yield
                if self._told():
                    committing.ok()
            else:
                fetching = client.fetch_offsets(GROUP, rng.choice((READ_COMMITTED, READ_UNCOMMITTED)))
                yield
                found = dict(broker.offsets)
                yield
                fetching.ok(found)


def _complete(operation: Operation, data: object) -> None:
    operation.ok(data)


def random_history(seed: int, turns: int) -> list[Event]:
    """Return a history without a fault."""
    return Clients(random.Random(seed)).play(turns)
