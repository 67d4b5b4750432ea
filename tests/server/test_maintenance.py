"""Retention and compaction beside requests, as a client of the server sees them."""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path
from threading import Event
from threading import enumerate as all_threads

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from support.clocks import ManualClock
from support.patience import SECONDS_MAX, in_time, until

import cordwood
from cordwood.disk.posix import PosixFiles
from cordwood.host import SystemClock
from cordwood.server.maintenance.periodic import ClockWatch, Pacer
from cordwood.server.maintenance.scrubbing import Paced
from cordwood.storage.chain import follower as chain_following
from cordwood.storage.chain.chains import kept_chain
from cordwood.storage.log import read_state
from cordwood.verify import verify_directory

#: Look for work all the time.
EAGER = {"log.retention.check.interval.ms": "20", "log.cleaner.backoff.ms": "20"}


def make_topic(broker: cordwood.Broker, name: str, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(SECONDS_MAX)


def send(broker: cordwood.Broker, topic: str, rows: list[tuple[str | None, str | None]]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for key, value in rows:
        producer.produce(topic, key=key, value=value)
        producer.flush(SECONDS_MAX)


def read_all(broker: cordwood.Broker, topic: str) -> list[tuple[int | None, bytes | None, bytes | None]]:
    """Read what there is from the beginning, to the end that the broker tells."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "any", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while True:
        message = consumer.poll(SECONDS_MAX)
        assert message is not None, "the consumer does not come to the end"
        if message.error() is not None:
            break
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def start_offset(broker: cordwood.Broker, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "any"})
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS_MAX)
    consumer.close()
    return int(low)


def test_a_served_topic_is_compacted_and_clients_read_it_through_its_gaps(tmp_path: Path) -> None:
    config = {"cleanup.policy": "compact", "segment.bytes": "300", "min.cleanable.dirty.ratio": "0.01"}
    with cordwood.Broker(tmp_path / "data", config=EAGER) as broker:
        make_topic(broker, "t", config)
        rows: list[tuple[str | None, str | None]] = [(f"k{n % 3}", f"value {n}") for n in range(30)]
        send(broker, "t", rows)
        until(lambda: len(read_all(broker, "t")) <= 8, "nothing is compacted")
        found = read_all(broker, "t")
        assert {key: value for _, key, value in found} == {
            b"k%d" % (n % 3): b"value %d" % n for n in (27, 28, 29)
        }
        offsets = [offset or 0 for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        assert offsets[-1] == 29


def test_a_consumer_that_reads_through_a_compaction_sees_each_survivor_once_in_order(tmp_path: Path) -> None:
    """It begins before, is in the middle of the log when segments are swapped, and goes on to the end."""
    config = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}
    idle = {"log.cleaner.backoff.ms": "20", "log.cleaner.enable": "false"}
    data, offsets = tmp_path / "data", []
    with cordwood.Broker(data, config=idle) as broker:
        make_topic(broker, "t", config)
        send(broker, "t", [(f"k{n % 40}", f"value {n}") for n in range(200)])
    with cordwood.Broker(data, config=EAGER) as broker:
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "slow", "enable.auto.commit": False}
        # A batch or two at a time, so that most is fetched after the swap.
        small = {"fetch.message.max.bytes": 100, "queued.min.messages": 1, "fetch.queue.backoff.ms": 1}
        consumer = Consumer({**settings, **small, "enable.partition.eof": True})
        consumer.assign([TopicPartition("t", 0, 0)])
        while True:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None
            if message.error() is not None:
                break
            offsets.append(message.offset() or 0)
            if len(offsets) == 5:
                until(lambda: len(read_all(broker, "t")) < 120, "nothing is compacted")
        consumer.close()
        survivors = [offset for offset, _, _ in read_all(broker, "t")]
    assert offsets == sorted(set(offsets))
    assert set(survivors) - set(offsets) == set()
    assert len(offsets) < 200


def test_retention_moves_the_start_of_a_served_topic(tmp_path: Path) -> None:
    with cordwood.Broker(tmp_path / "data", config=EAGER) as broker:
        make_topic(broker, "t", {"segment.bytes": "300", "retention.bytes": "400"})
        send(broker, "t", [(None, f"value {n}") for n in range(20)])
        until(lambda: start_offset(broker, "t") > 5, "nothing is deleted")
        found = read_all(broker, "t")
        assert [offset for offset, _, _ in found] == list(range(found[0][0] or 0, 20))


def test_topics_in_the_shared_log_have_their_own_retention_and_their_space_comes_back(tmp_path: Path) -> None:
    small = {**EAGER, "cordwood.storage": "shared", "log.segment.bytes": "4000"}
    with cordwood.Broker(tmp_path / "data", config=small) as broker:
        make_topic(broker, "short", {"retention.bytes": "1000"})
        make_topic(broker, "long", {})
        for first in range(0, 60, 10):
            send(broker, "long", [(None, f"value {first}")])
            send(broker, "short", [(None, f"value {number}") for number in range(first, first + 10)])
        until(lambda: start_offset(broker, "short") > 20, "nothing is deleted")
        segments = tmp_path / "data" / "topics" / "__shared" / "0" / "segments"

        def size() -> int:
            return sum(path.stat().st_size for path in segments.glob("*.log"))

        assert start_offset(broker, "long") == 0
        assert [value for _, _, value in read_all(broker, "long")] == [
            b"value %d" % n for n in range(0, 60, 10)
        ]
        kept = read_all(broker, "short")
        assert [value for _, _, value in kept] == [b"value %d" % (offset or 0) for offset, _, _ in kept]
        assert kept[-1][0] == 59
        until(lambda: size() < 60 * 100, "no space comes back")
        assert [value for _, _, value in read_all(broker, "long")] == [
            b"value %d" % n for n in range(0, 60, 10)
        ]


def test_retention_waits_for_a_group_where_it_is_told_to(tmp_path: Path) -> None:
    config = {"segment.bytes": "300", "retention.bytes": "0", "cordwood.retention.wait.for.groups": "true"}
    with cordwood.Broker(tmp_path / "data", config=EAGER) as broker:
        make_topic(broker, "t", config)
        make_topic(broker, "plain", {"segment.bytes": "300", "retention.bytes": "0"})
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})

        def commit(offset: int) -> None:
            offsets = [TopicPartition("t", 0, offset), TopicPartition("plain", 0, offset)]
            request = [ConsumerGroupTopicPartitions("slow", offsets)]
            admin.alter_consumer_group_offsets(request)["slow"].result(SECONDS_MAX)

        commit(0)
        for topic in ("t", "plain"):
            send(broker, topic, [(None, f"value {n}") for n in range(20)])
        # The topic beside it, which waits for nobody, shows that retention was there.
        until(lambda: start_offset(broker, "plain") > 10, "nothing is deleted")
        assert start_offset(broker, "t") == 0
        commit(11)
        until(lambda: start_offset(broker, "t") > 5, "nothing is deleted")
        assert start_offset(broker, "t") <= 11


def offsets_of(admin: AdminClient, group: str) -> list[int]:
    """Return what a group has committed, once the broker has read it after its start."""
    found: list[int] = []

    def known() -> bool:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        try:
            found.extend(each.offset for each in asked.result(SECONDS_MAX).topic_partitions)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                return False
            raise
        return True

    until(known, "the group is not loaded")
    return found


def test_groups_survive_the_compaction_of_their_topic(tmp_path: Path) -> None:
    """Every commit is a record; only the last of each partition is needed."""
    config = {**EAGER, "log.cleaner.min.cleanable.ratio": "0.01", "log.segment.bytes": "2000"}
    with cordwood.Broker(tmp_path / "data", config=config) as broker:
        make_topic(broker, "t", {})
        send(broker, "t", [(None, "x")] * 10)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for number in range(60):
            offsets = [TopicPartition("t", 0, number % 10)]
            request = [ConsumerGroupTopicPartitions(f"g{number % 2}", offsets)]
            admin.alter_consumer_group_offsets(request)[f"g{number % 2}"].result(SECONDS_MAX)
        segments = tmp_path / "data/topics/__consumer_offsets/0/segments"
        until(lambda: sum(path.stat().st_size for path in segments.glob("*.log")) < 4000, "not compacted")
    with cordwood.Broker(tmp_path / "data", config=config) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for group, expected in (("g0", 8), ("g1", 9)):
            assert offsets_of(admin, group) == [expected]


def test_a_clock_that_jumps_freezes_deletes_until_it_was_steady_for_a_while() -> None:
    clock = ManualClock()
    watch = ClockWatch(clock, jump_ms=60_000, freeze_ms=3_600_000)
    clock.advance(10**9)
    assert not watch.is_frozen(), "time that goes by is no jump"
    clock.ms += 60_001
    assert watch.is_frozen()
    clock.advance(3_599_999)
    assert watch.is_frozen()
    clock.advance(1)
    assert not watch.is_frozen()
    clock.set_back(60_001)
    assert watch.is_frozen()
    clock.advance(3_600_000)
    clock.ms += 60_000
    assert not watch.is_frozen(), "as much as clocks are set by now and then"


def leaves(tmp_path: Path, topic: str) -> int:
    """Return how many leaves the chain of a topic has, durably."""
    with kept_chain(PosixFiles(), str(tmp_path / "data/topics" / topic / "0")) as chain:
        return 0 if chain is None else chain.head.size


def test_the_chain_of_a_served_topic_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_following, "COMMIT_NS", 0)
    with cordwood.Broker(tmp_path / "data", config=EAGER) as broker:
        make_topic(broker, "t", {"cordwood.chain": "true"})
        send(broker, "t", [(None, f"value {n}") for n in range(10)])

        until(lambda: leaves(tmp_path, "t") == 10, "the chain stays behind")
        send(broker, "t", [(None, "one more")])
        until(lambda: leaves(tmp_path, "t") == 11, "the chain stays behind")


def test_a_chain_that_cannot_be_followed_is_named_once_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(chain_following, "COMMIT_NS", 0)
    with cordwood.Broker(tmp_path / "data", config=EAGER) as broker:
        for name in ("broken", "sound"):
            make_topic(broker, name, {"cordwood.chain": "true"})
        send(broker, "broken", [(None, "value")])
        until(lambda: leaves(tmp_path, "broken") == 1, "the chain stays behind")
    (tmp_path / "data/topics/broken/0/chain/leaves").write_bytes(b"")
    with cordwood.Broker(tmp_path / "data", config=EAGER) as broker:
        for count in (1, 2, 3):
            for name in ("broken", "sound"):
                send(broker, name, [(None, "value")])
            until(lambda: leaves(tmp_path, "sound") == count, "the chain stays behind")  # noqa: B023 - at once
    said = [record.getMessage() for record in caplog.records if "could not be brought" in record.getMessage()]
    assert len(said) == 1
    assert "the chain of partition 0 of topic broken" in said[0]
    assert "chain/leaves" in said[0]


def test_the_scrubber_finds_what_rots_and_says_so_and_leaves_the_rest_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cordwood.open(tmp_path / "data") as log:
        for name in ("rotten", "sound"):
            topic = log.topic(name, config={"cordwood.chain": "true"})
            for number in range(20):
                topic.append(b"value %d" % number)
            topic.roll()
    path = tmp_path / "data/topics/rotten/0/segments/00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"value 7")] ^= 1
    path.write_bytes(data)
    config = {"cordwood.scrub.interval.ms": "20"}
    with cordwood.Broker(tmp_path / "data", config=config) as broker:
        until(lambda: "scrubbing topic rotten" in caplog.text, "nothing was found")
        send(broker, "sound", [(None, "still served")])
    said = {record.getMessage() for record in caplog.records if record.name == "cordwood.scrubbing"}
    (sentence,) = (each for each in said if "CRC-32C" in each)
    assert f"{path} at byte" in sentence
    assert all(each.startswith("scrubbing topic rotten: ") for each in said)


def test_scrubbing_keeps_to_its_rate() -> None:
    class Rests(Event):
        total = 0.0

        def wait(self, timeout: float | None = None) -> bool:
            self.total += timeout or 0
            return False

    rests = Rests()
    paced = Paced(Pacer(1_000_000, rests, SystemClock()))
    for path in ("a.log", "b.log"):
        for position in range(0, 10_000_001, 500_000):
            paced(path, position)
    assert 19 < rests.total < 23, "twenty megabytes at one a second"


def test_scrubbing_is_broken_off_when_the_server_ends(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("t", config={"segment.bytes": "1000000"})
        for _ in range(40):
            topic.append(bytes(500_000))
    config = {"cordwood.scrub.interval.ms": "1", "cordwood.scrub.bytes.per.second": "1000"}
    with cordwood.Broker(tmp_path / "data", config=config):
        until(lambda: any("scrubbing" in thread.name for thread in all_threads()), "nothing is read")
        started = time.monotonic()
    assert in_time(time.monotonic() - started, 10), "a read of hours is broken off"


@pytest.mark.parametrize("storage", ["own", "shared"])
def test_what_outgrows_retention_by_size_does_not_wait_until_that_is_due(
    tmp_path: Path, storage: str
) -> None:
    """Between two times that it is due, many times what is to be kept may come."""
    config = {"log.retention.check.interval.ms": "3600000", "log.cleaner.backoff.ms": "20"}
    with cordwood.Broker(tmp_path / "data", config=config) as broker:
        make_topic(broker, "t", {"retention.bytes": str(1 << 20), "cordwood.storage": storage})
        value = "v" * 100_000
        # The first look is due at once, whatever there is; what comes from here on is not.
        send(broker, "t", [(None, value)])
        for _ in range(8):
            send(broker, "t", [(None, value)] * 10)
        until(lambda: start_offset(broker, "t") > 20, "nothing is deleted")

        def size() -> int:
            total = 0
            for path in (tmp_path / "data" / "topics").rglob("*.log"):
                with contextlib.suppress(FileNotFoundError):
                    total += path.stat().st_size
            return total

        until(lambda: size() < 7 << 20, "it only grows")


def sealed_segments(data: Path, topic: str) -> list[tuple[Path, str | None]]:
    """The files of the sealed segments of a partition, and the SHA-256 that `partition.json` has of each."""
    directory = data / "topics" / topic / "0"
    state = read_state(PosixFiles(), str(directory))
    return [(directory / "segments" / f"{info.base:020d}.log", info.sha256) for info in state.sealed]


def all_hashed(data: Path, topic: str, count: int) -> bool:
    found = sealed_segments(data, topic)
    return len(found) >= count and all(digest is not None for _, digest in found)


def test_a_server_records_the_sha256_of_each_segment_soon_after_it_is_sealed(tmp_path: Path) -> None:
    """Nobody asks for it, no policy is set, and `verify` compares it."""
    data = tmp_path / "data"
    with cordwood.Broker(data) as broker:
        make_topic(broker, "t", {"segment.bytes": "300"})
        send(broker, "t", [(None, f"value {n}") for n in range(20)])
        until(lambda: all_hashed(data, "t", 3), "sealed segments get no hash")
    for path, digest in sealed_segments(data, "t"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    report = verify_directory(PosixFiles(), str(data))
    assert report.sound


def test_a_server_hashes_segments_that_were_sealed_without_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        topic = log.topic("t")
        for number in range(3):
            topic.append(b"%d" % number)
            topic.roll()
    assert [digest for _, digest in sealed_segments(data, "t")] == [None] * 3
    with cordwood.Broker(data) as broker:
        assert len(read_all(broker, "t")) == 3
        until(lambda: all_hashed(data, "t", 3), "segments from before get no hash")


def test_a_damaged_segment_gets_no_hash_and_the_others_do(tmp_path: Path) -> None:
    """A hash would vouch for the damage."""
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        topic = log.topic("t")
        for number in range(2):
            topic.append(b"value %d" % number)
            topic.roll()
    (damaged, _), _ = sealed_segments(data, "t")
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with cordwood.Broker(data) as broker:
        start_offset(broker, "t")
        until(lambda: sealed_segments(data, "t")[1][1] is not None, "the sound segment gets no hash")
        assert sealed_segments(data, "t")[0][1] is None
