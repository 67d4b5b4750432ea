"""A mirror of our own server: what is kept, how it goes on after any end, and what stops it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.asking import Asking
from support.mirroring import (
    DATA,
    failed,
    memory,
    mirrored,
    mirrored_into,
    opened,
    stored,
    without_epoch,
)
from support.seeds import seed_or
from support.transactional import RawTransactional, visible

import cordwood
from cordwood.disk import Files, VolatileFiles
from cordwood.errors import CordwoodError
from cordwood.formats import batch
from cordwood.protocol import ApiKey
from cordwood.protocol.messages import DeleteRecordsRequest
from cordwood.protocol.messages.topics import DeleteRecordsPartition, DeleteRecordsTopic
from cordwood.server import Broker
from cordwood.verify import verify_directory

PAID = ("paid", 0)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def source() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def asking(source: Broker) -> Iterator[Asking]:
    with Asking(source.bootstrap) as client:
        yield client


def producer(broker: Broker, **settings: object) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, **named})


def send(broker: Broker, topic: str, values: range, partition: int = 0, **settings: object) -> None:
    """Send records in batches of a few."""
    client = producer(broker, batch_num_messages=5, **settings)
    for i in values:
        key, value = b"key %d" % (i % 5), b"value %d" % i * 9
        client.produce(topic, value, key, partition, headers=[("n", b"%d" % i)])
    assert client.flush(60) == 0


def raw(asking: Asking, topic: str, partition: int = 0, start: int = 0) -> list[bytes]:
    """Return the batches that the source sends, with no leader epoch."""
    found, offset = list[bytes](), start
    while True:
        answer = asking.fetch(topic, offset, partition)
        data = b"".join(map(bytes, answer.records))
        if not data:
            return found
        for header in batch.scan(data, epochs=batch_epochs()).headers():
            found.append(without_epoch(data[header.position : header.end]))
            offset = header.next_offset


def finish(transactional: RawTransactional, *, commits: bool) -> None:
    """Commit or abort."""
    if commits:
        transactional.commit()
    else:
        transactional.abort()


def batch_epochs() -> tuple[int, int]:
    return -1, (1 << 31) - 1


def delete_records(asking: Asking, topic: str, before: int, partition: int = 0) -> None:
    asked = DeleteRecordsTopic(topic, [DeleteRecordsPartition(partition, before)])
    answer = asking.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[asked], timeout_ms=60_000))
    assert not answer.topics[0].partitions[0].error_code


def check_sound(files: object, path: str = DATA) -> None:
    report = verify_directory(files, path, None, None, None)  # type: ignore[arg-type]
    assert report.sound, report.findings
    assert report.frames


def test_batches_keep_their_bytes_in_every_compression(source: Broker, asking: Asking) -> None:
    """Only the leader epoch may differ; the topic has the id, partitions and settings of the source."""
    files = memory()
    for codec in CODECS:
        asking.create(codec, 2, retention_ms="3600000", segment_bytes="20000")
        for partition in range(2):
            send(source, codec, range(120), partition, compression_type=codec, enable_idempotence=True)
    report = mirrored(files, source.bootstrap, verify=True)
    assert report.is_whole
    compared = 0
    for codec in CODECS:
        for partition in range(2):
            theirs = raw(asking, codec, partition)
            assert stored(files, codec, partition) == theirs
            compared += len(theirs)
    assert compared >= 200
    assert report.check is not None
    assert (report.check.identical, report.check.records) == (compared, 1200)
    with contextlib.closing(opened(files)) as directory:
        for codec in CODECS:
            entry = directory.topics[codec]
            assert entry.config == {"retention.ms": "3600000", "segment.bytes": "20000"}
            assert bytes.fromhex(entry.id.replace("-", "")) == asking.id_of(codec)
    check_sound(files)


def test_a_second_run_copies_only_what_is_new(source: Broker, asking: Asking) -> None:
    files = memory()
    asking.create("orders", 2)
    send(source, "orders", range(50))
    assert mirrored(files, source.bootstrap).records == 50
    send(source, "orders", range(50, 80))
    report = mirrored(files, source.bootstrap, verify=True)
    assert (report.records, report.is_whole, report.topics[0].created) == (30, True, False)
    assert mirrored(files, source.bootstrap).bytes == 0
    assert stored(files, "orders") == raw(asking, "orders")


def test_transactions_end_here_as_they_ended_there(source: Broker, asking: Asking) -> None:
    """Aborted ones are listed, open ones stay open until a later run brings their end; none is guessed."""
    files = memory()
    asking.create("paid")
    till = RawTransactional(asking, "till").init()
    for number, commits in enumerate((True, False, True)):
        till.write([PAID], b"%d" % number)
        finish(till, commits=commits)
    other = RawTransactional(asking, "other").init()
    other.write([PAID], b"open")
    till.write([PAID], b"after").commit()
    report = mirrored(files, source.bootstrap, verify=True)
    assert report.topics[0].partitions[0].open_transactions == 1
    assert stored(files, "paid") == raw(asking, "paid")
    with contextlib.closing(opened(files)) as directory:
        log = directory.partitions.find_own("paid", 0)
        assert log is not None
        log.learn_transactions()
        stable, end = log.last_stable_offset, log.high_watermark
        assert stable == log.open_transactions()[0].first_offset < end
        assert [each.first_offset for each in log.aborted(0, end)] == [2]
    other.commit()
    report = mirrored(files, source.bootstrap, verify=True)
    assert report.topics[0].partitions[0].open_transactions == 0
    check_sound(files)
    with Broker(DATA, files=files) as here:
        assert visible(here, "paid") == [b"0", b"2", b"open", b"after"]


def test_a_transaction_that_never_ended_is_aborted_when_the_directory_is_served(
    source: Broker, asking: Asking
) -> None:
    """Also after a clean end of the mirror: nobody else would end it, and readers would wait for ever."""
    files = memory()
    asking.create("paid")
    till = RawTransactional(asking, "till").init()
    till.write([PAID], b"lost")
    mirrored(files, source.bootstrap)
    with Broker(DATA, files=files) as here:
        send(here, "paid", range(1))
        assert len(visible(here, "paid")) == 1


def test_producers_of_the_mirror_never_get_an_id_of_the_source(source: Broker, asking: Asking) -> None:
    """Its first batch would be taken for a batch of the source, and be dropped as a duplicate."""
    files = memory()
    asking.create("orders")
    for _ in range(3):
        send(source, "orders", range(3), enable_idempotence=True)
    mirrored(files, source.bootstrap)
    ids = {batch.read_header(each).producer_id for each in stored(files, "orders")}
    assert len(ids) == 3
    with Broker(DATA, files=files) as here:
        for _ in range(3):
            send(here, "orders", range(3), enable_idempotence=True)
    headers = [batch.read_header(each) for each in stored(files, "orders")]
    assert len({each.producer_id for each in headers}) == 6
    assert headers[-1].next_offset == 18


def test_a_compacted_source_keeps_its_offsets(tmp_path: Path) -> None:
    """Where it has no batch any more, one without records stands for the offsets."""
    config = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0"}
    with cordwood.open(tmp_path / "source") as log:
        topic = log.topic("latest", config=config)
        for i in range(200):
            topic.append(b"value %d" % i, key=b"key %d" % (i % 3))
        log.maintain()
        kept = {each.offset: each.value for each in topic.read()}
    assert len(kept) < 100
    files = memory()
    with Broker(str(tmp_path / "source")) as source, Asking(source.bootstrap) as asking:
        report = mirrored(files, source.bootstrap, verify=True)
        theirs = raw(asking, "latest")
    (partition,) = report.topics[0].partitions
    assert report.is_whole
    assert partition.filled > 50
    assert partition.end == partition.source_end == 200
    ours = stored(files, "latest")
    assert [each for each in ours if each in theirs] == theirs
    assert all(not batch.read_header(each).record_count for each in ours if each not in theirs)
    check_sound(files)
    with contextlib.closing(cordwood.open(DATA, files=files)) as log:
        assert {each.offset: each.value for each in log.topic("latest").read()} == kept


def test_a_source_that_compacts_between_two_runs_is_continued_and_compared(tmp_path: Path) -> None:
    config = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0"}
    path, files = tmp_path / "source", memory()
    for first in (0, 100):
        with cordwood.open(path) as log:
            topic = log.topic("latest", config=config)
            for i in range(first, first + 100):
                topic.append_many(
                    [(b"key %d" % (i % 3), b"%d" % i), (b"only %d" % i, b"x" * 50)], partition=0
                )
            if first:
                log.maintain()
        with Broker(str(path)) as source:
            report = mirrored(files, source.bootstrap, verify=True)
            assert report.is_whole, report
    assert report.check is not None
    assert report.check.rewritten > 50


def test_a_log_that_starts_within_a_batch_starts_there_here(source: Broker, asking: Asking) -> None:
    files = memory()
    asking.create("orders", 2)
    client = producer(source, linger_ms=500)
    for i in range(20):
        client.produce("orders", b"%d" % i, partition=0)
    assert client.flush(60) == 0
    delete_records(asking, "orders", 7)
    send(source, "orders", range(4), 1)
    delete_records(asking, "orders", 4, partition=1)
    report = mirrored(files, source.bootstrap, verify=True)
    assert [(each.start, each.end) for each in report.topics[0].partitions] == [(7, 20), (4, 4)]
    assert stored(files, "orders") == raw(asking, "orders", start=7)
    send(source, "orders", range(1), 1)
    assert mirrored(files, source.bootstrap).records == 1
    with contextlib.closing(cordwood.open(DATA, files=files)) as log:
        assert [each.offset for each in log.topic("orders").read(0)] == list(range(7, 20))
        assert [each.offset for each in log.topic("orders").read(1)] == [4]
    check_sound(files)


@pytest.mark.parametrize("skips", [False, True])
def test_records_that_the_source_deleted_before_they_were_copied_are_named(
    source: Broker, asking: Asking, skips: bool
) -> None:
    """Retention has overtaken the mirror: with the option it goes on, and offsets in between stay empty."""
    files = memory()
    asking.create("orders")
    send(source, "orders", range(10))
    mirrored(files, source.bootstrap)
    send(source, "orders", range(10, 40))
    delete_records(asking, "orders", 25)
    report = mirrored(files, source.bootstrap, skip_deleted=skips)
    if not skips:
        expected = "orders-0: the source has deleted the offsets 10 to 24, which were not copied yet"
        assert failed(report).startswith(expected)
        return
    assert report.is_whole
    with contextlib.closing(cordwood.open(DATA, files=files)) as log:
        offsets = [each.offset for each in log.topic("orders").read()]
    assert offsets == [*range(10), *range(25, 40)]
    assert mirrored(files, source.bootstrap).bytes == 0
    check_sound(files)


@pytest.mark.parametrize("skips", [1, 2])
def test_a_source_that_begins_within_a_batch_is_gone_on_with(
    source: Broker, asking: Asking, skips: int
) -> None:
    """The batch is taken whole, with the records before the start of the source, which it still has."""
    files = memory()
    asking.create("orders")
    send(source, "orders", range(10))
    mirrored(files, source.bootstrap)
    first = 10
    for number in range(skips):
        client = producer(source, linger_ms=500)
        for i in range(30):
            client.produce("orders", b"%d" % i, partition=0)
        assert client.flush(60) == 0
        delete_records(asking, "orders", 25 + 30 * number)
        report = mirrored(files, source.bootstrap, skip_deleted=True, verify=True)
        assert report.is_whole, report
        first += 30
        assert report.topics[0].partitions[0].end == first
    send(source, "orders", range(5))
    assert mirrored(files, source.bootstrap, verify=True).records == 5
    with contextlib.closing(cordwood.open(DATA, files=files)) as log:
        assert [each.offset for each in log.topic("orders").read()] == [*range(first + 5)]
    check_sound(files)


def truncate(broker: Broker, topic: str, end_offset: int) -> None:
    """Truncate a partition of a running server, as ``cordwood topic truncate`` does."""
    kafka: Any = confluent_kafka.admin
    admin = kafka.AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    operation = json.dumps({"type": "truncate", "partition": 0, "end_offset": end_offset})
    entry = kafka.ConfigEntry(
        "cordwood.operation", operation, incremental_operation=kafka.AlterConfigOpType.SET
    )
    resource = kafka.ConfigResource(kafka.ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def test_a_source_that_is_truncated_and_grows_while_it_is_followed_is_not_continued(
    source: Broker, asking: Asking
) -> None:
    """Its leader stays the same, and its end is beyond the one of the mirror when that asks again."""
    files = memory()
    asking.create("orders")
    send(source, "orders", range(20))
    before = raw(asking, "orders")
    is_truncated = False
    with contextlib.closing(opened(files)) as directory:

        def stopped() -> bool:
            nonlocal is_truncated
            log = directory.partitions.find_own("orders", 0)
            if not is_truncated and log is not None and log.log_end_offset == 20:
                is_truncated = True
                truncate(source, "orders", 10)
                send(source, "orders", range(100, 130))
            return log is not None and log.log_end_offset > 20

        report = mirrored_into(directory, source.bootstrap, follow=True, stopped=stopped)
    assert is_truncated
    assert "orders-0: the source was truncated: it ends leader epoch 0 at offset 10" in failed(report)
    assert stored(files, "orders") == before


@pytest.mark.parametrize("size", [1, 5, 500])
def test_a_mirror_that_was_compacted_here_is_continued_and_compared(
    source: Broker, asking: Asking, size: int
) -> None:
    """What both sides still have is the same, also where batches of the source are gone here."""
    files = memory()
    asking.create("latest", 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    client = producer(source, batch_num_messages=size, linger_ms=300)
    for i in range(60):
        client.produce("latest", b"v%d" % i, b"k%d" % (i % 2), 0)
    assert client.flush(60) == 0
    assert mirrored(files, source.bootstrap, verify=True).is_whole
    with contextlib.closing(cordwood.open(DATA, files=files)) as log:
        log.topic("latest").roll()
        log.maintain()
        left = [each.offset for each in log.topic("latest").read()]
    assert len(left) < 10
    report = mirrored(files, source.bootstrap, verify=True)
    assert report.is_whole, report
    assert report.check is not None
    assert report.check.records == len(left)
    send(source, "latest", range(5))
    report = mirrored(files, source.bootstrap, verify=True)
    assert (report.is_whole, report.records) == (True, 5)
    check_sound(files)


def test_a_record_that_differs_is_found_in_a_mirror_that_was_compacted_here(
    source: Broker, asking: Asking
) -> None:
    files = memory()
    asking.create("latest", 1, cleanup_policy="compact")
    send(source, "latest", range(30), compression_type="none")
    mirrored(files, source.bootstrap)
    whole = stored(files, "latest")
    changed = bytearray(whole[-1])
    changed[-1] ^= 1
    batch.seal(changed)
    with contextlib.closing(opened(files)) as directory:
        log = directory.partitions.find_own("latest", 0)
        assert log is not None
        log.truncate(batch.read_header(whole[-1]).base_offset)
        log.append_kept(changed)
        log.commit()
    assert "is another one here" in failed(mirrored(files, source.bootstrap))


def commit(broker: Broker, group: str, offset: int, note: str = "") -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition("orders", 0, offset, note)], asynchronous=False)
    consumer.close()


def committed(files: Files, group: str) -> tuple[int, str]:
    with Broker(DATA, files=files) as here:
        consumer = Consumer({"bootstrap.servers": here.bootstrap, "group.id": group, "log_level": 0})
        (found,) = consumer.committed([TopicPartition("orders", 0)], timeout=60)
        consumer.close()
    return found.offset, found.metadata or ""


def test_an_offset_that_a_group_has_committed_here_never_goes_back(source: Broker, asking: Asking) -> None:
    """A later run names it, and takes the one of the source only if it is told to."""
    files = memory()
    asking.create("orders")
    send(source, "orders", range(20))
    commit(source, "billing", 4)
    mirrored(files, source.bootstrap, groups=("*",))
    assert committed(files, "billing") == (4, "")
    with Broker(DATA, files=files) as here:
        commit(here, "billing", 15)
    commit(source, "billing", 6)
    (report,) = mirrored(files, source.bootstrap, groups=("*",)).groups
    assert (report.offsets, report.left_out) == (0, ("orders-0 is at 15 here, beyond 6",))
    assert committed(files, "billing") == (15, "")
    commit(source, "billing", 18)
    mirrored(files, source.bootstrap, groups=("*",))
    assert committed(files, "billing") == (18, "")
    commit(source, "billing", 7)
    (report,) = mirrored(files, source.bootstrap, groups=("*",), reset_groups=True).groups
    assert (report.offsets, report.left_out) == (1, ())
    assert committed(files, "billing") == (7, "")


def test_a_changed_note_of_a_committed_offset_is_copied(source: Broker, asking: Asking) -> None:
    files = memory()
    asking.create("orders")
    send(source, "orders", range(5))
    for note in ("first", "second"):
        commit(source, "billing", 4, note)
        (report,) = mirrored(files, source.bootstrap, groups=("*",)).groups
        assert report.offsets == 1
        assert committed(files, "billing") == (4, note)


def test_a_topic_that_grows_and_new_topics_are_found_while_it_follows(
    source: Broker, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cordwood.mirror.run._LOOK_SECONDS", 0.0)
    asking.create("orders-a")
    asking.create("left-out")
    send(source, "orders-a", range(5))
    done = 0

    def grow(size: int) -> None:
        nonlocal done
        done += 1
        if done == 1:
            asking.create("orders-b", 2)
            send(source, "orders-b", range(7), 1)

    files = memory()
    with contextlib.closing(opened(files)) as directory:

        def stopped() -> bool:
            found = directory.partitions.find("orders-b", 1) if "orders-b" in directory.topics else None
            return found is not None and found.high_watermark == 7

        report = mirrored_into(
            directory, source.bootstrap, topics=("orders-*",), follow=True, progress=grow, stopped=stopped
        )
    assert [each.topic for each in report.topics] == ["orders-a", "orders-b"]
    assert report.is_whole
    assert stored(files, "orders-b", 1) == raw(asking, "orders-b", 1)


def test_committed_offsets_of_groups_are_kept_with_their_metadata(source: Broker, asking: Asking) -> None:
    """Those beyond the end, and of topics that are not mirrored, are named and left out."""
    files = memory()
    for topic in ("orders", "other"):
        asking.create(topic)
        send(source, topic, range(9))
    for group in ("billing", "search"):
        consumer = Consumer({"bootstrap.servers": source.bootstrap, "group.id": group, "log_level": 0})
        places = [TopicPartition("orders", 0, 4, f"of {group}"), TopicPartition("other", 0, 2)]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
    report = mirrored(files, source.bootstrap, topics=("orders",), groups=("bill*",))
    (kept,) = report.groups
    assert (kept.group, kept.offsets, kept.left_out) == ("billing", 1, ("other-0 is not mirrored",))
    with Broker(DATA, files=files) as here:
        consumer = Consumer({"bootstrap.servers": here.bootstrap, "group.id": "billing", "log_level": 0})
        (committed,) = consumer.committed([TopicPartition("orders", 0)], timeout=60)
        consumer.close()
        assert (committed.offset, committed.metadata) == (4, "of billing")
        consumer = Consumer({"bootstrap.servers": here.bootstrap, "group.id": "search", "log_level": 0})
        (none,) = consumer.committed([TopicPartition("orders", 0)], timeout=60)
        consumer.close()
        assert none.offset < 0


def test_a_batch_that_is_too_large_here_is_named_and_nothing_is_dropped() -> None:
    with Broker(config={"message.max.bytes": str(20 << 20)}) as source, Asking(source.bootstrap) as asking:
        asking.create("large", max_message_bytes=str(20 << 20))
        client = producer(source, message_max_bytes=20 << 20)
        client.produce("large", b"before")
        client.flush(60)
        client.produce("large", bytes(17 << 20))
        assert client.flush(60) == 0
        files = memory()
        small = {"max.message.bytes": "1000000"}
        sentence = failed(mirrored(files, source.bootstrap, config=small))
        assert sentence.startswith("large-0: the batch at offset 1 has 178")
        assert "--config max.message.bytes=178" in sentence
        assert len(stored(files, "large")) == 1
        with contextlib.closing(opened(files)) as directory:
            directory.topics.alter("large", config={"max.message.bytes": str(20 << 20)})
        assert mirrored(files, source.bootstrap, verify=True).is_whole


def test_what_was_written_here_is_not_continued(source: Broker, asking: Asking) -> None:
    """Whether the source has grown since or not; and a topic of the same name is not the same topic."""
    files = memory()
    asking.create("orders")
    send(source, "orders", range(5))
    mirrored(files, source.bootstrap)
    with contextlib.closing(cordwood.open(DATA, files=files)) as log:
        log.topic("orders").append(b"ours")
        log.topic("mine").append(b"x")
    assert "ends at offset 5, and the log here at 6" in failed(mirrored(files, source.bootstrap))
    send(source, "orders", range(9))
    assert "the record at offset 5 is another one here" in failed(mirrored(files, source.bootstrap))
    asking.create("mine")
    sentence = failed(mirrored(files, source.bootstrap, topics=("mine",)))
    assert sentence.startswith("mine: the topic of this name here is not a mirror of it")


def test_a_topic_that_was_deleted_here_is_mirrored_again_under_another_id(
    source: Broker, asking: Asking
) -> None:
    """What is known of the deleted one must not count for it, and the next run finds it again."""
    files = memory()
    asking.create("orders")
    send(source, "orders", range(5))
    first = mirrored(files, source.bootstrap).topics[0].topic_id
    with contextlib.closing(opened(files)) as directory:
        directory.topics.delete("orders")
    second = mirrored(files, source.bootstrap, verify=True)
    assert second.is_whole
    assert (second.records, second.topics[0].topic_id == first) == (5, False)
    third = mirrored(files, source.bootstrap)
    assert (third.records, third.is_whole) == (0, True)
    check_sound(files)


def test_verify_finds_a_record_that_is_another_one(source: Broker, asking: Asking) -> None:
    """The whole log is compared, not only its end."""
    files = memory()
    asking.create("orders")
    send(source, "orders", range(30), compression_type="none")
    mirrored(files, source.bootstrap)
    whole = stored(files, "orders")
    changed = bytearray(whole[0])
    changed[-1] ^= 1
    batch.seal(changed)
    with contextlib.closing(opened(files)) as directory:
        log = directory.partitions.find_own("orders", 0)
        assert log is not None
        log.truncate(0)
        for each in (bytes(changed), *whole[1:]):
            log.append_kept(bytearray(each))
        log.commit()
    report = mirrored(files, source.bootstrap, verify=True)
    assert report.check is not None
    (difference,) = report.check.differences
    assert difference.startswith("orders-0: the record at offset ")
    assert not report.is_whole


class _PowerCutError(Exception):
    """Raised where a planted power cut ends a run."""


def test_a_power_cut_at_any_step_loses_nothing_that_was_synced_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After each cut only what was synced is there, and the next run completes it."""
    seed = seed_or(11)
    print(f"seed {seed}")
    monkeypatch.setattr("cordwood.mirror.copying.PART_BYTES", 2000)
    monkeypatch.setattr("cordwood.mirror.run.PART_BYTES", 2000)
    monkeypatch.setattr("cordwood.mirror.run._COMMIT_BYTES", 5000)
    with Broker() as source, Asking(source.bootstrap) as asking:
        asking.create("orders", 2, segment_bytes="4000")
        for partition in range(2):
            send(source, "orders", range(100), partition, enable_idempotence=True)
        till = RawTransactional(asking, "till").init()
        for commits in (True, False):
            till.write([("orders", 0)], b"x" * 100)
            finish(till, commits=commits)
        theirs = [raw(asking, "orders", each) for each in range(2)]
        disk, cuts = VolatileFiles(), 0
        for allowed in range(40):
            left = 1 + (allowed * seed) % 4

            def cut(size: int) -> None:
                nonlocal left
                left -= 1
                if not left:
                    raise _PowerCutError

            directory = opened(disk)
            try:
                mirrored_into(directory, source.bootstrap, progress=cut)
                directory.close()
                break
            except _PowerCutError:
                cuts += 1
                directory.abandon()
                disk = disk.after_crash()
        else:
            pytest.fail("the mirror makes no progress")
        print(f"{cuts} power cuts")
        assert cuts >= 5
        report = mirrored(disk, source.bootstrap, verify=True)
        assert (report.is_whole, report.bytes) == (True, 0)
        assert [stored(disk, "orders", each) for each in range(2)] == theirs
    check_sound(disk)


def test_a_topic_that_the_source_does_not_have_is_named(source: Broker, asking: Asking) -> None:
    asking.create("orders")
    assert failed(mirrored(memory(), source.bootstrap, topics=("nope",))) == (
        "nope: there is no such topic at the source"
    )
    with pytest.raises(CordwoodError, match=r"has no topic that matches no\*"):
        mirrored(memory(), source.bootstrap, topics=("no*",))
