"""Metrics that are looked up at every scrape instead of counted.

By default there is no series per topic or partition, of which there may be very many: only sums over all, and
one series per consumer group and topic. ``cordwood.metrics.partitions`` adds the others, under the names of
kafka_exporter.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from cordwood import telemetry
from cordwood.broker import FetchSessions, Node, PartitionStanding
from cordwood.broker.groups import Coordinator
from cordwood.config import Endpoint
from cordwood.errors import StorageError, UnknownTopic
from cordwood.records import TopicPartition
from cordwood.telemetry import Sample, distribution_of
from cordwood.tenancy import show_id


class SessionCounts(NamedTuple):
    """The numbers of fetch sessions of all orgs, of partitions in them, and of evicted sessions."""

    open: int
    partitions: int
    evictions: int


class Seen(NamedTuple):
    """A snapshot of the state that only the loop may read."""

    address: Endpoint
    connections: int
    sessions: SessionCounts
    members: Mapping[str, int]
    offsets: Mapping[str, Mapping[TopicPartition, int]]
    #: For how many milliseconds each transaction that has not ended is open.
    transaction_ages: Sequence[int] = ()
    #: The number of clients that have not authenticated, and when the certificate of each listener expires.
    unauthenticated: int = 0
    expiries: Mapping[str, int] = MappingProxyType({})


def see(
    coordinator: Coordinator,
    address: Endpoint,
    connections: int,
    sessions: Iterable[FetchSessions],
    transaction_ages: Sequence[int] = (),
) -> Seen:
    """Return a snapshot of the state that only the loop may read. On the loop."""
    members, offsets = {}, {}
    for key in coordinator.groups():
        group = coordinator.find(key)
        name = show_id(key)
        members[name] = 0 if group is None else len(group.members)
        offsets[name] = {place: each.offset for place, each in coordinator.offsets(key).items()}
    counts = [(len(each), each.partitions, each.evictions) for each in sessions]
    summed = SessionCounts(*map(sum, zip(*counts, strict=True)))
    return Seen(address, connections, summed, members, offsets, transaction_ages)


def look_up(node: Node, seen: Seen, *, partitions: bool) -> Iterator[Sample]:
    """Yield all metrics that are looked up, with series per partition if *partitions*. In a thread."""
    stands = _Standings(node)
    if partitions:
        # First: it opens logs, which the sums must include.
        yield from _topics(node, stands)
    yield from _sums(node)
    yield from _broker(node, seen)
    yield from _groups(seen, stands, partitions)
    yield from _bucket(node)
    yield Sample(telemetry.OPEN_TRANSACTIONS, {}, len(seen.transaction_ages))
    yield Sample(telemetry.OLDEST_TRANSACTION_SECONDS, {}, max(seen.transaction_ages, default=0) / 1000)
    # Last: partitions that failed to open during this scrape count too.
    yield Sample(
        telemetry.UNREADABLE_PARTITIONS, {}, len(stands.unreadable | node.directory.partitions.refused())
    )


class _Standings:
    """The offsets of partitions, each looked up once."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: dict[TopicPartition, PartitionStanding | None] = {}
        self.unreadable: set[TopicPartition] = set()

    def find(self, place: TopicPartition) -> PartitionStanding | None:
        """Return the offsets of a partition, or None if it does not exist or cannot be opened."""
        if place not in self._known:
            self._known[place] = None
            try:
                self._known[place] = self._node.standing(*place)
            except UnknownTopic:
                pass
            except StorageError:
                self.unreadable.add(place)
        return self._known[place]


def _broker(node: Node, seen: Seen) -> Iterator[Sample]:
    yield Sample(telemetry.CONNECTIONS, {}, seen.connections)
    yield Sample(telemetry.UNAUTHENTICATED_CONNECTIONS, {}, seen.unauthenticated)
    for listener, expiry in seen.expiries.items():
        yield Sample(telemetry.TLS_CERTIFICATE_EXPIRY, {"listener": listener}, expiry)
    yield Sample(telemetry.FETCH_SESSIONS, {}, seen.sessions.open)
    yield Sample(telemetry.FETCH_SESSION_PARTITIONS, {}, seen.sessions.partitions)
    yield Sample(telemetry.FETCH_SESSION_EVICTIONS, {}, seen.sessions.evictions)
    with contextlib.suppress(OSError):
        yield Sample(telemetry.DISK_FREE_BYTES, {}, node.directory.free_bytes())
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield Sample(telemetry.PAGE_FAULTS, {"kind": "major"}, used.ru_majflt)
    yield Sample(telemetry.PAGE_FAULTS, {"kind": "minor"}, used.ru_minflt)
    yield Sample(telemetry.KAFKA_BROKERS, {}, 1)
    labels = {"id": str(node.directory.settings.config.node_id), "address": str(seen.address)}
    yield Sample(telemetry.KAFKA_BROKER_INFO, labels, 1)


def _bucket(node: Node) -> Iterator[Sample]:
    if node.shipped is None:
        return
    status, lag = node.shipped.status, node.shipped.lag()
    yield Sample(telemetry.BUCKET_LAG_SECONDS, {}, lag.seconds)
    yield Sample(telemetry.BUCKET_LAG_BYTES, {}, lag.bytes)
    yield Sample(telemetry.BUCKET_PIECES, {}, status.pieces)
    yield Sample(telemetry.BUCKET_SHIPPED_BYTES, {}, status.bytes)
    yield Sample(telemetry.BUCKET_RETRIES, {}, status.retries)
    yield Sample(telemetry.BUCKET_FENCED, {}, status.fenced)


def _sums(node: Node) -> Iterator[Sample]:
    logs = node.directory.partitions.opened_logs()
    entries = [node.topics.find(name) for name in list(node.directory.topics)]
    yield Sample(telemetry.TOPICS, {}, len(entries))
    yield Sample(telemetry.PARTITIONS, {}, sum(entry.partitions for entry in entries if entry is not None))
    yield Sample(telemetry.OPEN_LOGS, {}, len(logs))
    sizes = sorted(size for log in logs for size in log.segment_sizes())
    yield Sample(telemetry.LOG_BYTES, {}, sum(sizes))
    yield Sample(telemetry.SEGMENT_BYTES, {}, distribution_of(telemetry.SEGMENT_BYTES, sizes))
    yield Sample(telemetry.MAPPED_BYTES, {}, node.directory.mapped_bytes)
    yield Sample(telemetry.FAILED_LOGS, {}, sum(log.failure is not None for log in logs))


def _topics(node: Node, stands: _Standings) -> Iterator[Sample]:
    for name in list(node.directory.topics):
        entry = node.topics.find(name)
        if entry is None:
            continue
        yield Sample(telemetry.KAFKA_TOPIC_PARTITIONS, {"topic": name}, entry.partitions)
        size = 0
        for number in range(entry.partitions):
            standing = stands.find((name, number))
            if standing is not None:
                size += standing.size
                yield from _partition(node, {"topic": name, "partition": str(number)}, standing)
        yield Sample(telemetry.TOPIC_BYTES, {"topic": name}, size)


def _partition(node: Node, place: Mapping[str, str], standing: PartitionStanding) -> Iterator[Sample]:
    yield Sample(telemetry.KAFKA_CURRENT_OFFSET, place, standing.high_watermark)
    yield Sample(telemetry.KAFKA_OLDEST_OFFSET, place, standing.log_start_offset)
    yield Sample(telemetry.KAFKA_LEADER, place, node.directory.settings.config.node_id)
    yield Sample(telemetry.KAFKA_REPLICAS, place, 1)
    yield Sample(telemetry.KAFKA_IN_SYNC, place, 1)
    yield Sample(telemetry.KAFKA_PREFERRED, place, 1)
    yield Sample(telemetry.KAFKA_UNDER_REPLICATED, place, 0)


def _groups(seen: Seen, stands: _Standings, partitions: bool) -> Iterator[Sample]:
    yield Sample(telemetry.CONSUMER_GROUPS, {}, len(seen.members))
    furthest = 0
    for name, offsets in seen.offsets.items():
        group = {"consumergroup": name}
        yield Sample(telemetry.KAFKA_GROUP_MEMBERS, group, seen.members[name])
        committed: dict[str, int] = {}
        lags: dict[str, int] = {}
        for (topic, number), offset in offsets.items():
            standing = stands.find((topic, number))
            if standing is None:
                continue
            # A group that committed before a restore may be beyond the end: its lag is 0.
            lag = max(standing.high_watermark - offset, 0)
            committed[topic] = committed.get(topic, 0) + offset
            lags[topic] = lags.get(topic, 0) + lag
            if partitions:
                place = {**group, "topic": topic, "partition": str(number)}
                yield Sample(telemetry.KAFKA_GROUP_OFFSET, place, offset)
                yield Sample(telemetry.KAFKA_GROUP_LAG, place, lag)
        for topic, lag in lags.items():
            yield Sample(telemetry.KAFKA_GROUP_OFFSET_SUM, {**group, "topic": topic}, committed[topic])
            yield Sample(telemetry.KAFKA_GROUP_LAG_SUM, {**group, "topic": topic}, lag)
            furthest = max(furthest, lag)
    yield Sample(telemetry.CONSUMER_LAG, {}, furthest)
