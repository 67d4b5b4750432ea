"""Fetch: read records of partitions.

Tagged fields of followers and of other brokers are not declared: Cordwood has neither.
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
    """One partition to read, its start offset and limit."""

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
    """The follower that sends the request; -1 for a consumer."""

    replica_id: int = int32("15+", default=-1)
    replica_epoch: int = int64("15+", default=-1)


@message
class FetchRequest:
    """Read from these partitions; wait for at least ``min_bytes``, but no longer than ``max_wait_ms``.

    ``replica_id`` is -1 for a consumer; from version 15 on a follower uses ``replica`` instead.
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
    """An aborted transaction: the records of this producer from this offset up to its abort marker."""

    producer_id: int = int64("4+")
    first_offset: int = int64("4+")


@message
class FetchPartitionResponse:
    """The records of one partition: whole batches, in any number of buffers.

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
    """The records read. ``error_code`` is that of the session; each partition has its own."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("7+")
    session_id: int = int32("7+")
    topics: list[FetchTopicResponse] = array(FetchTopicResponse, "0+")
