"""Random producers, timeouts, failures and power cuts, in virtual time, against what was promised.

The partitions are real logs on a disk that forgets. After every few steps, what readers of committed records
and readers of all records see in them is compared with a list.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.modelled_logs import ModelledLog, ModelledLogs
from support.seeds import seeds_from

from cordwood.broker.transactions import (
    Admission,
    ProducerIdentity,
    ProducerIdNeeded,
    StoreTransaction,
    TransactionCoordinator,
    TransactionEffect,
    TransactionLimits,
    TransactionReply,
    WriteMarkers,
)
from cordwood.errors import ConcurrentTransactions, CordwoodError, DiskFull
from cordwood.formats import Marker
from cordwood.records import TopicPartition
from cordwood.storage.log.producers import Replay
from cordwood.storage.log.producers import committed as committed_module
from cordwood.storage.log.reading import View

RUNS = int(os.environ.get("CORDWOOD_TRANSACTION_RUNS", "1000"))
STEPS = 150
TOPICS = {"orders": 1, "ledger": 1}
PARTITIONS: list[TopicPartition] = [("orders", 0), ("ledger", 0)]
TIMEOUT_MS = 1_000


@dataclass
class File:
    """The records of states: what is beyond ``synced`` may be lost in a power cut."""

    entries: list[object] = field(default_factory=list)
    synced: int = 0

    def sync(self) -> None:
        self.synced = len(self.entries)

    def cut(self, chance: random.Random) -> None:
        del self.entries[chance.randint(self.synced, len(self.entries)) :]
        self.sync()


@dataclass
class Producer:
    transactional_id: str
    identity: ProducerIdentity | None = None
    #: The attempt of a transaction that it makes now.
    label: int = 0
    is_waiting: bool = False
    is_stopped: bool = False


class World:
    """A coordinator, its disk and its producers."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = 1_000_000
        self.states = File()
        self.modelled = ModelledLogs(TOPICS)
        self.logs = self.modelled.logs
        self.waiting: list[tuple[list[File | ModelledLog], Callable[[], None]]] = []
        self.producers: list[Producer] = []
        self.labels = self.producer_ids = self.cuts = self.compared = 0
        self.answers: dict[int, bool] = {}
        #: The newest identity that a producer was told, by transactional id.
        self.newest: dict[str, ProducerIdentity] = {}
        self.coordinator = self.new_coordinator()

    def new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(TransactionLimits(TIMEOUT_MS, 50 * TIMEOUT_MS), Admission())

    # --- the disk ---------------------------------------------------------------------------------

    def perform(self, effects: list[TransactionEffect]) -> None:
        for effect in effects:
            if isinstance(effect, TransactionReply):
                answer: Callable[[object], None] = effect.token  # type: ignore[assignment]
                answer(effect.result)
            elif isinstance(effect, StoreTransaction):
                self.store(effect)
            else:
                self.mark(effect, list(effect.partitions))

    def store(self, effect: StoreTransaction) -> None:
        failure = DiskFull("full") if self.chance.random() < 0.02 else None
        if failure is None:
            self.states.entries.append(effect.row)
        if effect.waits:
            files: list[File | ModelledLog] = [] if failure else [self.states]
            who = self.coordinator
            self.waiting.append((files, lambda: self.perform(who.stored(effect.transactional_id, failure))))

    def mark(self, effect: WriteMarkers, places: list[TopicPartition]) -> None:
        done = [place for place in places if self.chance.random() < 0.9]
        for place in done:
            self.logs[place].mark(Marker(*effect.identity, effect.committed))
        again = [place for place in places if place not in done]

        def written() -> None:
            if again:
                self.mark(effect, again)
            else:
                self.perform(self.coordinator.markers_written(effect.transactional_id, self.now_ms))

        self.waiting.append(([self.logs[place] for place in done], written))

    def complete_one(self) -> None:
        """Sync what one of the waiting waits for, and let it go on. In the order of a shared sync."""
        if self.waiting:
            files, then = self.waiting.pop(0 if self.chance.random() < 0.7 else -1)
            for file in files:
                file.sync()
            then()

    def cut_power(self) -> None:
        self.cuts += 1
        self.waiting.clear()
        self.compared += self.modelled.check()
        self.states.cut(self.chance)
        self.modelled.cut_power(self.chance)
        self.compared += self.modelled.check()
        for producer in self.producers:
            # The answer is lost, and with it what the producer knows.
            producer.is_stopped = producer.is_stopped or producer.is_waiting
        self.coordinator = self.new_coordinator()
        assert self.coordinator.load(self.states.entries, self.now_ms) == 0  # type: ignore[arg-type]
        known = self.coordinator.open_partitions()
        for place, log in self.logs.items():
            found = log.log.open_transactions()
            assert {each.producer_id for each in found} == set(log.open_at(len(log.entries)))
            for each in found:
                is_known = known.includes(each.producer_id, each.epoch, place)
                assert is_known, "a transaction has no coordinator after a power cut"
        self.perform(list(self.coordinator.unfinished()))

    # --- producers --------------------------------------------------------------------------------

    def act(self) -> None:
        live = [each for each in self.producers if not each.is_stopped and not each.is_waiting]
        if len(live) < 2 or self.chance.random() < 0.01:
            self.producers.append(Producer(f"id-{self.chance.randrange(2)}"))
            return
        producer = self.chance.choice(live)
        if producer.identity is None:
            self.begin(producer)
            return
        action = self.chance.choices([self.add, self.send, self.end], [3, 4, 3])[0]
        action(producer)

    def begin(self, producer: Producer, fresh: int | None = None) -> None:
        def answer(result: object) -> None:
            producer.is_waiting = False
            if isinstance(result, ProducerIdNeeded):
                self.producer_ids += 1
                self.begin(producer, self.producer_ids)
            elif isinstance(result, ProducerIdentity):
                producer.identity = self.newest[producer.transactional_id] = result
                self.new_label(producer)

        producer.is_waiting = True
        tid = producer.transactional_id
        self.perform(self.coordinator.init(tid, TIMEOUT_MS, None, fresh, answer, self.now_ms))

    def new_label(self, producer: Producer) -> None:
        self.labels += 1
        producer.label = self.labels

    def answering(self, producer: Producer, then: Callable[[], None]) -> Callable[[object], None]:
        def answer(result: object) -> None:
            producer.is_waiting = False
            if result is None:
                newest = self.newest[producer.transactional_id]
                assert producer.identity == newest, f"{producer.identity} was fenced by {newest}"
                then()
            elif not isinstance(result, ConcurrentTransactions):
                producer.is_stopped = True

        producer.is_waiting = True
        return answer

    def add(self, producer: Producer) -> None:
        places = self.chance.sample(PARTITIONS, self.chance.randint(1, 2))
        token = self.answering(producer, lambda: None)
        assert producer.identity is not None
        tid, identity = producer.transactional_id, producer.identity
        self.perform(self.coordinator.add_partitions(tid, identity, places, token, self.now_ms))

    def send(self, producer: Producer) -> None:
        place = self.chance.choice(PARTITIONS)
        assert producer.identity is not None
        producer_id, epoch = producer.identity
        try:
            self.logs[place].send(
                producer_id, epoch, producer.label, self.coordinator.admission.guard(*place)
            )
        except CordwoodError:
            return
        if self.chance.random() < 0.5:
            self.logs[place].sync()

    def end(self, producer: Producer) -> None:
        committed, label = self.chance.random() < 0.6, producer.label

        def ended() -> None:
            assert self.answers.setdefault(label, committed) == committed, "one transaction, two outcomes"
            self.new_label(producer)

        # A producer waits for its batches before it commits.
        if committed:
            for log in self.logs.values():
                log.sync()
        token = self.answering(producer, ended)
        assert producer.identity is not None
        tid, identity = producer.transactional_id, producer.identity
        self.perform(self.coordinator.end(tid, identity, committed, token, self.now_ms))

    # --- a run ------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(STEPS):
            dice = self.chance.random()
            if dice < 0.55:
                self.act()
            elif dice < 0.6:
                self.chance.choice(list(self.logs.values())).plain()
            elif dice < 0.9:
                self.complete_one()
            elif dice < 0.99:
                self.now_ms += self.chance.randrange(600)
                self.perform(self.coordinator.time_out(self.now_ms))
                self.perform(self.coordinator.expire(self.now_ms))
            else:
                self.cut_power()
        self.settle()
        self.check()

    def settle(self) -> None:
        """Let all producers go silent: nothing may stay open for longer than its timeout."""
        self.now_ms += TIMEOUT_MS
        for _ in range(20):
            self.perform(self.coordinator.time_out(self.now_ms))
            while self.waiting:
                self.complete_one()
        self.cut_power()
        while self.waiting:
            self.complete_one()

    def check(self) -> None:
        self.compared += self.modelled.check()
        outcomes: dict[int, set[bool | None]] = {}
        for place, log in self.logs.items():
            assert not log.open_at(len(log.entries)), f"a transaction is open for ever in {place}"
            for entry, counts in log.outcomes():
                if entry.label is not None:
                    outcomes.setdefault(entry.label, set()).add(counts)
        for label, found in outcomes.items():
            assert len(found) == 1, f"attempt {label} is half committed"
            if label in self.answers:
                assert found == {self.answers[label]}, f"attempt {label} was answered otherwise"


def run_worlds(seeds: range) -> list[World]:
    """Run a world for each seed; the seed of one that fails is printed."""
    worlds = []
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except BaseException:
            print(f"seed {seed}")
            raise
        worlds.append(world)
    return worlds


def test_every_answer_holds_whatever_fails_and_nothing_stays_open() -> None:
    """No transaction is half committed, an answered outcome survives, a fenced producer is never answered.

    Readers of committed records and readers of all records see what the list of entries has for them.
    """
    seeds = seeds_from(26_000, RUNS)
    worlds = run_worlds(seeds)
    ended, cuts = sum(len(world.answers) for world in worlds), sum(world.cuts for world in worlds)
    compared = sum(world.compared for world in worlds)
    print(f"seeds {seeds[0]} to {seeds[-1]}: {RUNS} runs")
    print(f"{ended} transactions that ended, {cuts} power cuts, {compared} entries compared in two views")
    assert ended > RUNS
    assert cuts > RUNS
    assert compared > 30 * RUNS


# --- planted bugs -------------------------------------------------------------------------------------


def the_last_stable_offset_past_an_open_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(View, "last_stable_offset", property(lambda self: self.high_watermark))


def aborted_records_returned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(committed_module, "aborted_within", lambda view, start, stop: [])


def an_abort_replayed_as_a_commit(patch: pytest.MonkeyPatch) -> None:
    real = Replay.over

    def over(self: Replay, *arguments: Any) -> Replay:
        real(self, *arguments)
        self.aborted.clear()
        return self

    patch.setattr(Replay, "over", over)


def a_fenced_producer_admitted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "guard", lambda self, topic, partition: lambda stamp: None)


def markers_before_the_decision_is_synced(patch: pytest.MonkeyPatch) -> None:
    real = World.store

    def store(self: World, effect: StoreTransaction) -> None:
        if effect.waits:
            self.states.entries.append(effect.row)
            self.perform(self.coordinator.stored(effect.transactional_id, None))
        else:
            real(self, effect)

    patch.setattr(World, "store", store)


def nothing_finished_at_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionCoordinator, "unfinished", lambda self: [])


def no_timeouts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionCoordinator, "time_out", lambda self, now_ms: [])


@pytest.mark.parametrize(
    "planted",
    [
        the_last_stable_offset_past_an_open_transaction,
        aborted_records_returned,
        an_abort_replayed_as_a_commit,
        a_fenced_producer_admitted,
        markers_before_the_decision_is_synced,
        nothing_finished_at_start,
        no_timeouts,
    ],
)
def test_a_planted_bug_of_transactions_is_caught(
    planted: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch)
    seeds = seeds_from(26_000, 200)
    with pytest.raises((AssertionError, CordwoodError)) as found:
        run_worlds(seeds)
    print(f"caught: {planted.__name__.replace('_', ' ')}: {str(found.value).splitlines()[0]}")
