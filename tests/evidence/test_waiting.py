"""Checkpoints beside a writer: waiting for the leaves that it is about to write, and no longer than told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.clocks import ManualClock

import cordwood
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import EvidenceMissing, UnknownTopic
from cordwood.evidence import sign_checkpoints, wait_for_leaves

PATH = "/memory"


class Beside:
    """A writer that adds no leaves by itself, and a wait beside it on a clock of the test."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.clock = ManualClock()
        self.log = cordwood.open(":memory:", files=self.files, clock=self.clock)
        self.pauses: list[float] = []

    def append(self, topic: str, count: int, **settings: str) -> None:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        opened = self.log.topic(topic, config=config)
        for number in range(count):
            opened.append(b"value %d" % number)

    def commit(self, topic: str) -> None:
        """Do what the writer does in the background: add the leaves of a topic, and make them durable."""
        directory = self.log.data_directory
        (log,) = (each for each in directory.partitions.opened_logs() if each.state.topic == topic)
        directory.chains.commit(log)

    def wait(
        self, seconds: float, then: Callable[[], None] | None = None, after: int = 1, topic: str | None = None
    ) -> None:
        """Wait; *then* happens during pause number *after*."""

        def pause(pause_seconds: float) -> None:
            self.pauses.append(pause_seconds)
            self.clock.advance(round(pause_seconds * 1000))
            if then is not None and len(self.pauses) == after:
                then()

        wait_for_leaves(PATH, topic, seconds=seconds, files=self.files, clock=self.clock, pause=pause)

    def signed(self) -> dict[str, int]:
        return {each.topic: each.size for each in sign_checkpoints(PATH, files=self.files)}


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside()
    with made.log:
        yield made


def test_a_wait_ends_when_every_offset_that_was_synced_has_its_leaf_on_disk(beside: Beside) -> None:
    beside.append("orders", 5)
    beside.wait(15, lambda: beside.commit("orders"), after=3)
    assert beside.pauses == [0.2] * 3
    assert beside.signed() == {"orders": 5}
    beside.wait(15)
    assert len(beside.pauses) == 3


def test_leaves_that_do_not_come_in_time_are_counted_in_one_sentence(beside: Beside) -> None:
    beside.append("orders", 5)
    with pytest.raises(EvidenceMissing) as refusal:
        beside.wait(1.5)
    assert str(refusal.value) == (
        "nothing was signed: 5 offsets of partition 0 of topic orders have no leaves on disk yet, "
        "after 1.5 seconds"
    )
    assert len(beside.pauses) == 8
    assert beside.clock.ns == 1_500_000_000
    beside.commit("orders")
    beside.append("orders", 1)
    beside.append("payments", 2)
    with pytest.raises(EvidenceMissing) as refusal:
        beside.wait(0)
    assert str(refusal.value) == (
        "nothing was signed: 3 offsets of 2 partitions, partition 0 of topic orders among them, "
        "have no leaves on disk yet, after 0 seconds"
    )
    beside.commit("payments")
    beside.wait(0, topic="payments")


def test_records_that_come_during_the_wait_do_not_make_it_longer(beside: Beside) -> None:
    """Otherwise a busy topic would never be signed for."""

    def more() -> None:
        beside.commit("orders")
        beside.append("orders", 3)

    beside.append("orders", 2)
    beside.wait(15, more)
    assert len(beside.pauses) == 1
    assert beside.signed() == {"orders": 2}


def test_empty_partitions_and_topics_without_a_chain_are_not_waited_for(beside: Beside) -> None:
    beside.log.topic("empty", partitions=3)
    beside.append("plain", 4, cordwood_chain="false")
    beside.wait(0)
    assert beside.signed() == {}
    beside.append("orders", 1)
    beside.commit("orders")
    # Retention took every record. There is nothing left that a leaf could be missing for.
    beside.append("gone", 3)
    beside.log.data_directory.partitions.writable("gone", 0).advance_log_start(3)
    beside.wait(0)
    with pytest.raises(EvidenceMissing, match="topic plain keeps no chain"):
        beside.wait(0, topic="plain")
    with pytest.raises(UnknownTopic):
        beside.wait(0, topic="other")


def test_records_from_before_a_topic_kept_a_chain_get_their_leaves_without_another_append(
    beside: Beside,
) -> None:
    beside.append("plain", 4, cordwood_chain="false")
    beside.log.alter_topic("plain", config={"cordwood.chain": "true"})

    def follow() -> None:
        # The writer adds leaves, and makes them durable when it looks again after some seconds.
        for _ in range(2):
            assert beside.log.data_directory.chains.follow_changed() == {}
            beside.clock.advance(5_000)

    beside.wait(15, follow)
    assert beside.signed() == {"plain": 4}


def test_a_truncation_that_the_chain_does_not_state_yet_is_waited_for(beside: Beside) -> None:
    """A checkpoint of the leaves before it would sign for records that are gone already."""
    beside.append("orders", 5)
    beside.commit("orders")
    beside.log.topic("orders").truncate(0, 3)
    with pytest.raises(
        EvidenceMissing, match="a truncation of partition 0 of topic orders is not in the chain"
    ):
        beside.wait(1)
    beside.append("orders", 2)
    with pytest.raises(EvidenceMissing, match="2 offsets of partition 0 of topic orders have no leaves"):
        beside.wait(1)
    beside.wait(15, lambda: beside.commit("orders"), after=len(beside.pauses) + 1)
    assert beside.signed() == {"orders": 8}


def test_a_truncation_or_a_deletion_during_the_wait_ends_it_for_what_is_gone(beside: Beside) -> None:
    beside.append("orders", 5)
    beside.append("payments", 2)

    def change() -> None:
        beside.log.topic("orders").truncate(0, 3)
        beside.commit("orders")
        beside.log.delete_topic("payments")

    beside.wait(15, change)
    assert len(beside.pauses) == 1
    assert set(beside.signed()) == {"orders"}


def test_records_of_the_shared_log_are_waited_for_in_its_one_chain(beside: Beside) -> None:
    beside.append("small", 2, cordwood_storage="shared")
    with pytest.raises(EvidenceMissing, match="2 offsets of partition 0 of topic __shared have no leaves"):
        beside.wait(0, topic="small")
    beside.wait(15, lambda: beside.commit("__shared"), topic="small")


def test_a_log_that_is_open_to_read_waits_as_long_as_it_is_told(beside: Beside) -> None:
    """Without that it signs for what is on disk, which may be nothing."""
    beside.append("orders", 5)
    with cordwood.open(":memory:", files=beside.files, read_only=True) as reader:
        assert reader.checkpoint() == []
        with pytest.raises(EvidenceMissing, match="5 offsets of partition 0"):
            reader.checkpoint("orders", wait_seconds=0)
        beside.commit("orders")
        (found,) = reader.checkpoint("orders", wait_seconds=0)
    assert found.size == 5
