"""What each alert is about, caused for real: a server before and after, as Prometheus would see it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from broker.nodes import BreakableFiles
from confluent_kafka import Consumer, Producer, TopicPartition

import cordwood
from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import LogFailed
from cordwood.host.clock import Clock
from cordwood.storage.log.append_meter import REPORT_EVERY
from support.clocks import HookedFiles, ManualClock
from support.patience import SECONDS_MAX, until
from support.roads import Road
from support.scraping import Scrape, scrape

Sight = tuple[Scrape, Scrape]
"""Two scrapes of one server, before and after."""
Cause = Callable[[Path], Sight]

LISTENING = {"cordwood.metrics.listen": "127.0.0.1:0"}
SEGMENT = "topics/orders/0/segments/00000000000000000000"


def _broker(
    path: Path | str,
    config: Mapping[str, str] | None = None,
    files: Files | None = None,
    clock: Clock | None = None,
) -> cordwood.Broker:
    return cordwood.Broker(path, config={**LISTENING, **(config or {})}, files=files, clock=clock)


def _send(broker: cordwood.Broker, *values: str, topic: str = "orders") -> None:
    """Send records one by one, each until it is answered for, whatever the answer."""
    settings = {"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "message.timeout.ms": 2000}
    producer = Producer({**settings, "retries": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
        assert producer.flush(SECONDS_MAX) == 0


def _read(broker: cordwood.Broker, topic: str = "orders") -> None:
    """Ask for the first record of a topic until there is an answer, be it an error."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "any", "auto.offset.reset": "error"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(SECONDS_MAX)
    consumer.close()


def _until(broker: cordwood.Broker, done: Callable[[Scrape], bool]) -> Scrape:
    """Scrape until that is so."""
    found: list[Scrape] = []

    def scraped() -> bool:
        found.append(scrape(broker.metrics_url))
        return done(found[-1])

    until(scraped, "what is scraped")
    return found[-1]


def _fill(path: Path) -> None:
    """Make a topic of a few sealed segments."""
    with cordwood.open(path) as log:
        topic = log.topic("orders")
        for number in range(5):
            topic.append(b"value %d" % number)
            topic.roll()


def _rot(path: Path) -> None:
    _fill(path)
    store = path / f"{SEGMENT}.log"
    data = bytearray(store.read_bytes())
    data[data.index(b"value 0")] ^= 1
    store.write_bytes(data)


def failed_log(path: Path) -> Sight:
    """Let a sync fail."""
    files = BreakableFiles()
    broker = _broker("/data", files=files)
    try:
        _send(broker, "a")
        before = scrape(broker.metrics_url)
        files.fail("sync", code=errno.EIO, within="/orders/0/segments/")
        _send(broker, "b")
        return before, scrape(broker.metrics_url)
    finally:
        files.heal()
        with suppress(LogFailed):
            broker.close()


def refused_batches(path: Path) -> Sight:
    """Let the disk be full."""
    files = BreakableFiles()
    with _broker("/data", files=files) as broker:
        _send(broker, "a")
        before = scrape(broker.metrics_url)
        files.fail("write", code=errno.ENOSPC)
        _send(broker, "b", "c")
        files.heal()
        return before, scrape(broker.metrics_url)


def corrupt_range(path: Path) -> Sight:
    """Change a bit of a sealed segment, and read it."""
    _rot(path)
    with _broker(path) as broker:
        before = scrape(broker.metrics_url)
        _read(broker)
        return before, scrape(broker.metrics_url)


def scrub_findings(path: Path) -> Sight:
    """Change a bit of a sealed segment, and let the server find it by itself."""
    _rot(path)
    with _broker(path, {"cordwood.scrub.bytes.per.second": "0"}) as broker:
        before = scrape(broker.metrics_url)
    with _broker(path, {"cordwood.scrub.interval.ms": "20"}) as broker:
        return before, _until(broker, lambda found: found.value("cordwood_scrub_findings_total") > 0)


def unreadable_partition(path: Path) -> Sight:
    """Damage what says which segments a partition has."""
    _fill(path)
    with _broker(path) as broker:
        before = scrape(broker.metrics_url)
    (path / "topics/orders/0/partition.json").write_bytes(b"{}")
    with _broker(path) as broker:
        _send(broker, "refused")
        return before, scrape(broker.metrics_url)


def index_rebuilds(path: Path) -> Sight:
    """Lose the indexes of all segments, and read from each."""
    _fill(path)
    with _broker(path, {"cordwood.metrics.partitions": "false"}) as broker:
        before = scrape(broker.metrics_url)
        for index in path.joinpath("topics/orders/0/segments").glob("*.idx"):
            index.unlink()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "any"})
        consumer.assign([TopicPartition("orders", 0, 0)])
        for _ in range(5):
            assert consumer.poll(SECONDS_MAX) is not None
        consumer.close()
        return before, scrape(broker.metrics_url)


def _slow(kind: str) -> Sight:
    # Records are stamped by the client: a server whose clock is far behind would refuse them.
    clock, files = ManualClock(int(time.time() * 1000)), HookedFiles(MemoryFiles())
    with _broker("/data", files=files, clock=clock) as broker:
        _send(broker, "a")
        before = scrape(broker.metrics_url)
        files.before = lambda found, path: clock.advance(200) if found == kind else None
        _send(broker, *map(str, range(REPORT_EVERY)))
        files.before = lambda found, path: None
        return before, scrape(broker.metrics_url)


def slow_appends(path: Path) -> Sight:
    """Let each write take 200 ms, by the clock that the server is told."""
    return _slow("write")


def slow_syncs(path: Path) -> Sight:
    """Let each sync take 200 ms, by the clock that the server is told."""
    return _slow("sync")


class _SmallDisk(MemoryFiles):
    """A disk that has as much space as it is told."""

    space = 20 << 30

    def free_bytes(self, path: str) -> int:
        return self.space


def disk_nearly_full(path: Path) -> Sight:
    """Take nearly all space."""
    files = _SmallDisk()
    with _broker("/data", files=files) as broker:
        before = scrape(broker.metrics_url)
        files.space = 900 << 20
        return before, scrape(broker.metrics_url)


def consumer_lag(path: Path, config: Mapping[str, str] | None = None) -> Sight:
    """Leave a group behind by more than a hundred thousand records."""
    with cordwood.open(path) as log:
        topic = log.topic("orders")
        for _ in range(3):
            topic.append_many([(None, b"")] * 40_000)
    with _broker(path, config) as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "slow"})
        for offset in (119_000, 10_000):
            consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
            if offset == 119_000:
                before = scrape(broker.metrics_url)
        consumer.close()
        return before, scrape(broker.metrics_url)


def chain_lag(path: Path) -> Sight:
    """Take the leaves of a chain away, and append."""
    with _broker(path) as broker:
        _send(broker, "a")
        before = _until(broker, lambda found: found.value("cordwood_chain_lag_records") == 0)
    path.joinpath("topics/orders/0/chain/leaves").write_bytes(b"")
    with _broker(path) as broker:
        _send(broker, "b")
        return before, _until(broker, lambda found: found.value("cordwood_chain_lag_records") > 0)


def deletes_frozen(path: Path) -> Sight:
    """Set the wall clock an hour ahead."""
    clock = ManualClock()
    config = {"log.retention.check.interval.ms": "20", "log.cleaner.backoff.ms": "20"}
    with _broker("/data", config, MemoryFiles(), clock=clock) as broker:
        before = scrape(broker.metrics_url)
        clock.ms += 3_600_000
        return before, _until(broker, lambda found: found.value("cordwood_deletes_frozen") == 1)


def old_transaction(path: Path) -> Sight:
    """Let six minutes pass in a transaction whose producer asked for a quarter of an hour."""
    clock = ManualClock()
    with _broker("/data", {}, MemoryFiles(), clock=clock) as broker:
        before = scrape(broker.metrics_url)
        named = {"transactional.id": "slow", "transaction.timeout.ms": 900_000}
        producer = Producer({"bootstrap.servers": broker.bootstrap, **named})
        producer.init_transactions(SECONDS_MAX)
        producer.begin_transaction()
        producer.produce("orders", b"value")
        assert producer.flush(SECONDS_MAX) == 0
        clock.advance(360_000)
        after = _until(broker, lambda found: found.value("cordwood_oldest_transaction_seconds") > 300)
        assert after.value("cordwood_open_transactions") == 1
        return before, after


def _with_road(road: Road, path: Path, clock: Clock | None = None) -> cordwood.Broker:
    """Return a broker whose bucket is behind *road*."""
    config = {"cordwood.bucket": "s3://bucket/log", "cordwood.bucket.interval.ms": "20"}
    with pytest.MonkeyPatch.context() as patch:
        road.lead(patch)
        return _broker(path, config, clock=clock)


def bucket_lag(path: Path) -> Sight:
    """Let two minutes pass in which the store of the bucket does not answer."""
    road, clock = Road(), ManualClock()
    with _with_road(road, path, clock) as broker:
        try:
            before = _until(broker, lambda found: found.value("cordwood_bucket_lag_bytes") == 0)
            road.open.clear()
            _send(broker, "a")
            clock.advance(120_000)
            return before, _until(broker, lambda found: found.value("cordwood_bucket_lag_bytes") > 0)
        finally:
            road.open.set()


def bucket_fenced(path: Path) -> Sight:
    """Let another broker take the log over, and append to the first."""
    road = Road()
    broker = _with_road(road, path / "first")
    with suppress(LogFailed), broker:
        before = scrape(broker.metrics_url)
        with _with_road(road, path / "second"):
            with suppress(Exception):
                _send(broker, "a")
            after = _until(broker, lambda found: found.value("cordwood_bucket_fenced") == 1)
    return before, after


#: How each alert is caused. The two that are not here are about Prometheus itself and about the machine.
CAUSES: Mapping[str, Cause] = {
    "CordwoodLogFailed": failed_log,
    "CordwoodCorruptRange": corrupt_range,
    "CordwoodUnreadablePartition": unreadable_partition,
    "CordwoodScrubFindings": scrub_findings,
    "CordwoodIndexRebuilds": index_rebuilds,
    "CordwoodSlowAppends": slow_appends,
    "CordwoodSlowSyncs": slow_syncs,
    "CordwoodBatchesRefused": refused_batches,
    "CordwoodDiskNearlyFull": disk_nearly_full,
    "CordwoodDiskFillsUp": disk_nearly_full,
    "CordwoodConsumerLag": consumer_lag,
    "CordwoodOldTransaction": old_transaction,
    "CordwoodChainLag": chain_lag,
    "CordwoodDeletesFrozen": deletes_frozen,
    "CordwoodBucketLag": bucket_lag,
    "CordwoodBucketFenced": bucket_fenced,
}
NOT_CAUSED = {"CordwoodDown", "CordwoodPageFaults"}
