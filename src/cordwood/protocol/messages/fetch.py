"""Fetch: which records of partitions to read, and what was read.

Tagged fields that only followers send, or that name other brokers, are not declared: there are none here.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.protocol.schema import (
    array,
    buffers,
    int8,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
    uuid,
)
from cordwood.protocol.wire import WireBytes


@message
class FetchPartition:
    """What to read of one partition, and from where."""

    index: int = int32("0+")
    current_leader_epoch: int = int32("9+", default=-1)
    fetch_offset: int = int64("0+")
    last_fetched_epoch: int = int32("12+", default=-1)
    log_start_offset: int = int64("5+", default=-1)
    max_bytes: int = int32("0+")


@message
class FetchTopic:
    """A topic by ``name`` up to version 12; from 13 on by ``topic_id``, and the name is empty."""

    name: str = string("0-12")
    topic_id: bytes = uuid("13+")
    partitions: list[FetchPartition] = array(FetchPartition, "0+")


@message
class ForgottenTopic:
    """Partitions to drop from the fetch session; the topic is named as in :class:`FetchTopic`."""

    name: str = string("7-12")
    topic_id: bytes = uuid("13+")
    partitions: list[int] = array(int32, "7+")


@message
class FetchReplica:
    """The follower that asks; -1 for a consumer."""

    replica_id: int = int32("15+", default=-1)
    replica_epoch: int = int64("15+", default=-1)


@message
class FetchRequest:
    """Read from these partitions; wait for at least ``min_bytes``, but no longer than ``max_wait_ms``.

    ``replica_id`` is -1 for a consumer; from version 15 on a follower says so in ``replica``.
    """

    replica_id: int = int32("0-14", default=-1)
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("3+", default=0x7FFFFFFF)
    isolation_level: int = int8("4+")
    session_id: int = int32("7+")
    session_epoch: int = int32("7+", default=-1)
    topics: list[FetchTopic] = array(FetchTopic, "0+")
    forgotten: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+")
    cluster_id: str | None = string("12+", nullable="12+", default=None, tag=0)
    replica: FetchReplica = struct(FetchReplica, "15+", tag=1)


@message
class AbortedTransaction:
    """A transaction to leave out: the records of this producer from this offset up to its abort marker."""

    producer_id: int = int64("4+")
    first_offset: int = int64("4+")


@message
class FetchPartitionResponse:
    """What was read of one partition: whole batches, in any number of buffers of bytes.

    ``aborted_transactions`` is None where the reader did not ask for committed records only.
    """

    index: int = int32("0+")
    error_code: int = int16("0+")
    high_watermark: int = int64("0+", default=-1)
    last_stable_offset: int = int64("4+", default=-1)
    log_start_offset: int = int64("5+", default=-1)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, "4+", nullable="4+", default=None
    )
    preferred_read_replica: int = int32("11+", default=-1)
    records: Sequence[WireBytes] = buffers("0+")


@message
class FetchTopicResponse:
    """A topic by ``name`` up to version 12, by ``topic_id`` from 13 on."""

    name: str = string("0-12")
    topic_id: bytes = uuid("13+")
    partitions: list[FetchPartitionResponse] = array(FetchPartitionResponse, "0+")


@message
class FetchResponse:
    """What was read. ``error_code`` is about the session, each partition has its own."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("7+")
    session_id: int = int32("7+")
    topics: list[FetchTopicResponse] = array(FetchTopicResponse, "0+")
