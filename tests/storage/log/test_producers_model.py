"""Idempotent producers beside a dictionary: whatever happens, each batch is stored once (O6, D1)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from support.producing import ROLLING, SEQUENCES, SNAPSHOT, Bench, Sent, send, snapshots_every, stored_batches
from support.seeds import seeds_from

from cordwood.disk.files import read_file
from cordwood.errors import OutOfSequence, ProducerFenced
from cordwood.storage.log.producers import BATCHES_KEPT

RUNS, STEPS = 60, 150


@dataclass
class Client:
    """A producer as it sees itself: its batches in order, and which of them were acknowledged.

    ``known`` are those of its epoch that the log must know, at most five; all, if there were fewer.
    """

    id: int
    epoch: int = 0
    sequence: int = 0
    sent: list[Sent] = field(default_factory=list)
    known: list[Sent] = field(default_factory=list)
    acknowledged: set[Sent] = field(default_factory=set)

    def next_batch(self, values: tuple[bytes, ...]) -> Sent:
        sent = Sent(self.id, self.epoch, self.sequence, values)
        self.sequence = sent.next_sequence
        self.sent.append(sent)
        self.known = [*self.known, sent][-BATCHES_KEPT:]
        return sent

    def older(self) -> list[Sent]:
        """Batches of its epoch that the log may have forgotten, but not if it knows of later ones."""
        return [each for each in self.sent if each.epoch == self.epoch and each not in self.known]

    def rewind(self, gone: set[Sent]) -> None:
        """Send again, in order, from the first batch that is gone on."""
        lost = [each for each in self.sent if each in gone]
        if lost:
            self.sent = self.sent[: self.sent.index(lost[0])]
            self.known = [each for each in self.known if each not in gone]
            self.epoch, self.sequence = lost[0].epoch, lost[0].sequence
            self.acknowledged -= gone


class Run:
    """Producers that send, retry and lose acknowledgements, and a log that is closed, killed and cut.

    The model is what must be stored: each batch and its offset, in order.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = Bench(settings=self.random.choice([{}, ROLLING]))
        self.log = self.bench.open()
        # One begins at the end of the numbers, so that it soon goes on at 0.
        self.clients = [Client(1), Client(2), Client(3, sequence=SEQUENCES - 6)]
        self.model: dict[Sent, int] = {}
        self.end = self.written = 0
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (10, self.send),
            (6, self.retry),
            (2, self.retry_what_may_be_too_old),
            (2, self.skip_ahead),
            (2, self.append_plain),
            (1, self.begin_an_epoch),
            (1, self.roll),
            (1, self.close),
            (2, self.kill),
            (1, self.truncate),
            (1, self.advance),
        ]
        action = self.random.choices([a for _, a in actions], [weight for weight, _ in actions])[0]
        self.done[action.__name__] += 1
        action()

    def send(self) -> None:
        client = self.random.choice(self.clients)
        count = self.random.choice([1, 1, 2, 5])
        self.written += 1
        values = tuple(b"%d.%d" % (self.written, i) for i in range(count))
        self.place(client, client.next_batch(values))

    def place(self, client: Client, sent: Sent) -> None:
        assert send(self.log, sent) == (self.end, self.end + len(sent.values)), sent
        self.model[sent] = self.end
        self.end += len(sent.values)
        # The acknowledgement may get lost on the way back, or never be asked for.
        if self.random.random() < 0.7:
            self.log.commit(self.end)
            client.acknowledged.add(sent)

    def retry(self) -> None:
        client = self.random.choice(self.clients)
        for each in client.known[-self.random.randint(1, BATCHES_KEPT) :]:
            base = self.model[each]
            assert send(self.log, each) == (base, base + len(each.values)), each

    def retry_what_may_be_too_old(self) -> None:
        """Refused, or answered with what it is: a truncation leaves fewer known than the log has."""
        client = self.random.choice(self.clients)
        older = client.older()
        if client.known and older:
            each = self.random.choice(older)
            try:
                assert send(self.log, each)[0] == self.model[each]
                self.done["older and known"] += 1
            except OutOfSequence:
                self.done["too old"] += 1

    def skip_ahead(self) -> None:
        client = self.random.choice(self.clients)
        if client.known:
            with pytest.raises(OutOfSequence):
                send(self.log, Sent(client.id, client.epoch, (client.sequence + 1) % SEQUENCES, (b"gap",)))
            if client.epoch:
                with pytest.raises(ProducerFenced):
                    send(self.log, Sent(client.id, client.epoch - 1, 0, (b"of the past",)))

    def append_plain(self) -> None:
        self.end = self.log.append([(None, b"nobody's")] * self.random.randint(1, 3)).next_offset

    def begin_an_epoch(self) -> None:
        client = self.random.choice(self.clients)
        if client.known:
            client.epoch, client.sequence, client.known = client.epoch + 1, 0, []
            self.place(client, client.next_batch((b"a new epoch",)))

    def roll(self) -> None:
        self.log.roll()

    def close(self) -> None:
        self.bench.close()
        self.reopen()

    def kill(self) -> None:
        """What the operating system has taken outlives the process; the snapshot may be damaged or older."""
        data = None
        if self.bench.files.exists(SNAPSHOT):
            data = read_file(self.bench.files, SNAPSHOT)
        damage = self.random.choice(["none", "none", "gone", "flipped", "torn"]) if data else "none"
        changed: dict[str, bytes] = {}
        if data and damage == "flipped":
            at = self.random.randrange(len(data))
            changed[SNAPSHOT] = data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :]
        elif data and damage == "torn":
            changed[SNAPSHOT] = data[: self.random.randrange(len(data))]
        self.done[f"snapshot {damage}"] += data is not None
        self.bench = self.bench.left(changed, (SNAPSHOT,) if damage == "gone" else ())
        if damage != "none" or data is None:
            # Only the snapshot knew of what retention has removed.
            for client in self.clients:
                client.known = [each for each in client.known if self.readable(each)]
        self.reopen()

    def readable(self, sent: Sent) -> bool:
        return self.model[sent] + len(sent.values) > self.log.log_start_offset

    def reopen(self) -> None:
        self.log = self.bench.open()
        assert self.log.log_end_offset == self.end
        if self.random.random() < 0.5:
            self.check()

    def truncate(self) -> None:
        """Between batches, and not so far back that a producer with more batches becomes nobody."""
        start = self.log.log_start_offset
        bases = sorted(base for base in self.model.values() if base >= start)
        if not bases:
            return
        cut = bases[-min(self.random.randint(1, 4), len(bases))]
        gone = {sent for sent, base in self.model.items() if base >= cut}
        for client in self.clients:
            if gone & set(client.sent) and not set(client.known) - gone:
                return
        self.done["truncated"] += 1
        self.log.truncate(cut)
        self.end = cut
        for client in self.clients:
            client.rewind(gone)
        self.model = {sent: base for sent, base in self.model.items() if base < cut}

    def advance(self) -> None:
        if self.end:
            self.log.commit()
            self.log.advance_log_start(self.random.randint(self.log.log_start_offset, self.end))

    def check(self) -> None:
        """Everything readable is stored once, in order, at the offset that its producer was told."""
        self.log.commit()
        start = self.log.log_start_offset
        expected = sorted((base, sent) for sent, base in self.model.items())
        found = [(base, sent) for sent, base in stored_batches(self.log)]
        assert found == [(base, sent) for base, sent in expected if base + len(sent.values) > start]
        keys = Counter(key for _, sent in found for key in sent.records())
        assert not [key for key, count in keys.items() if count > 1]
        acknowledged = {sent for client in self.clients for sent in client.acknowledged}
        assert acknowledged <= set(self.model)


def test_no_sequence_is_stored_twice_and_nothing_acknowledged_is_lost() -> None:
    """Whatever is sent, sent again, killed, closed, cut or damaged, in whatever order."""
    done: Counter[str] = Counter()
    seeds = seeds_from(0, RUNS)
    for seed in seeds:
        with snapshots_every(random.Random(seed).choice([1, 150, 600, 1 << 30])):
            run = Run(seed)
            try:
                for _ in range(STEPS):
                    run.step()
                run.check()
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error}") from error
        done.update(run.done)
    print(f"seeds {seeds[0]} to {seeds[-1]}: {dict(done)}")
    wanted = [
        "snapshot gone",
        "snapshot flipped",
        "snapshot torn",
        "truncated",
        "too old",
        "advance",
        "close",
    ]
    assert [name for name in wanted if done[name] < 50] == []
    assert done["older and known"]
    assert done["send"] >= 2_000
