"""Fetch, tuned by hand: the messages, and requests in.

:mod:`cordwood.protocol.produce` says why. :mod:`cordwood.protocol.fetch_response` has responses out, and
:mod:`cordwood.protocol.peer` the client's half.

Of a request's tagged fields the replica's id is read, since it says who asks. Those of a partition
come from followers only, of which there are none here, and are skipped as unknown ones are.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from cordwood.protocol.wire import (
    NULL_ID,
    READ_ERRORS,
    Buffer,
    Decode,
    malformed,
    read_tag,
    read_tag_count,
    read_varint,
    skip_tags,
    unreadable,
)

#: The first version with compact lengths and tagged fields, and the first that names topics by id.
FLEXIBLE_FROM = 12
BY_ID_FROM = 13
#: The first version whose replica id travels as a tagged field, which consumers leave out.
REPLICA_TAGGED_FROM = 15


class FetchPartition(msgspec.Struct, gc=False):
    """What to read of one partition, and from where."""

    index: int
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    max_bytes: int = 0


class FetchTopic(msgspec.Struct, gc=False):
    """A topic by ``name`` up to version 12; from 13 on by ``topic_id``, and the name is empty."""

    name: str
    topic_id: bytes
    partitions: list[FetchPartition]


class ForgottenTopic(msgspec.Struct, gc=False):
    """Partitions to drop from the fetch session; the topic is named as in :class:`FetchTopic`."""

    name: str
    topic_id: bytes
    partitions: list[int]


class FetchRequest(msgspec.Struct, gc=False):
    """Read from these partitions; wait for at least ``min_bytes``, but no longer than ``max_wait_ms``.

    ``replica_id`` is -1 for a consumer.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack_id: str
    replica_id: int = -1
    replica_epoch: int = -1
    cluster_id: str | None = None


class AbortedTransaction(msgspec.Struct, gc=False):
    """A transaction to leave out: the records of this producer from this offset up to its abort marker."""

    producer_id: int
    first_offset: int


class FetchPartitionResponse(msgspec.Struct, gc=False):
    """What was read of one partition: whole batches, in any number of buffers of bytes.

    ``aborted_transactions`` is None where the reader did not ask for committed records only.
    """

    index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: list[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    records: Sequence[Buffer] = ()


class FetchTopicResponse(msgspec.Struct, gc=False):
    """A topic by ``name`` up to version 12, by ``topic_id`` from 13 on."""

    name: str
    topic_id: bytes
    partitions: list[FetchPartitionResponse]


class FetchResponse(msgspec.Struct, gc=False):
    """What was read. ``error_code`` is about the session, each partition has its own."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    topics: list[FetchTopicResponse]


_SHORT = struct.Struct(">h").unpack_from
_INT = struct.Struct(">i").unpack_from
# Wait, bytes, bytes and isolation level come first in all versions; the rest depends.
_HEAD_4 = struct.Struct(">iiiibi").unpack_from
_HEAD_7 = struct.Struct(">iiiibiii").unpack_from
_HEAD_12 = struct.Struct(">iiiibii").unpack_from
_HEAD_15 = struct.Struct(">iiibii").unpack_from
_PARTITION_4 = struct.Struct(">iqi")
_PARTITION_5 = struct.Struct(">iqqi")
_PARTITION_9 = struct.Struct(">iiqqi")
# The last byte is the number of tagged fields, as long as there are few.
_PARTITION_12 = struct.Struct(">iiqiqiB").unpack_from


def request_decoder(version: int) -> Decode:
    """Return the function that reads requests of *version*."""
    if version < FLEXIBLE_FROM:
        return lambda frame, position: _decode_legacy(frame, position, version)
    return lambda frame, position: _decode_flexible(frame, position, version)


def _decode_legacy(frame: Buffer, i: int, version: int) -> FetchRequest:
    end = len(frame)
    view = memoryview(frame)
    try:
        session_id, session_epoch, rack_id = 0, -1, ""
        forgotten: list[ForgottenTopic] = []
        if version < 7:
            replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, topic_count = _HEAD_4(frame, i)
            i += 21
        else:
            (
                replica_id,
                max_wait_ms,
                min_bytes,
                max_bytes,
                isolation_level,
                session_id,
                session_epoch,
                topic_count,
            ) = _HEAD_7(frame, i)
            i += 29
        # An empty name and no partitions: six bytes at least.
        if topic_count < 0 or topic_count * 6 > end - i:
            raise malformed(i, "Fetch, topics are null or more than fit", topic_count)
        layout = _PARTITION_4 if version < 5 else _PARTITION_5 if version < 9 else _PARTITION_9
        topics = []
        for _ in range(topic_count):
            name, i = _legacy_string(frame, i, end)
            (count,) = _INT(frame, i)
            i += 4
            if count < 0 or count * layout.size > end - i:
                raise malformed(i, "Fetch, topics.partitions are null or more than fit", count)
            stop = i + count * layout.size
            fields = layout.iter_unpack(view[i:stop])
            if version >= 9:
                partitions = [FetchPartition(p, epoch, at, -1, start, n) for p, epoch, at, start, n in fields]
            elif version >= 5:
                partitions = [FetchPartition(p, -1, at, -1, start, n) for p, at, start, n in fields]
            else:
                partitions = [FetchPartition(p, -1, at, -1, -1, n) for p, at, n in fields]
            i = stop
            topics.append(FetchTopic(name, NULL_ID, partitions))
        if version >= 7:
            forgotten, i = _legacy_forgotten(frame, i, end)
        if version >= 11:
            rack_id, i = _legacy_string(frame, i, end)
    except READ_ERRORS as error:
        raise unreadable(error, i, "Fetch", end) from None
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
        replica_id,
    )


def _legacy_string(frame: Buffer, i: int, end: int) -> tuple[str, int]:
    (size,) = _SHORT(frame, i)
    i += 2
    if size < 0 or size > end - i:
        raise malformed(i, "Fetch, a string is null or goes on past the end", size)
    return str(frame[i : i + size], "utf-8"), i + size


def _legacy_forgotten(frame: Buffer, i: int, end: int) -> tuple[list[ForgottenTopic], int]:
    (topic_count,) = _INT(frame, i)
    i += 4
    if topic_count < 0 or topic_count * 6 > end - i:
        raise malformed(i, "Fetch, forgotten topics are null or more than fit", topic_count)
    forgotten = []
    for _ in range(topic_count):
        name, i = _legacy_string(frame, i, end)
        (count,) = _INT(frame, i)
        i += 4
        if count < 0 or count * 4 > end - i:
            raise malformed(i, "Fetch, forgotten partitions are null or more than fit", count)
        forgotten.append(ForgottenTopic(name, NULL_ID, list(struct.unpack_from(f">{count}i", frame, i))))
        i += count * 4
    return forgotten, i


def _decode_flexible(frame: Buffer, i: int, version: int) -> FetchRequest:
    end = len(frame)
    by_id = version >= BY_ID_FROM
    try:
        replica_id = -1
        if version < REPLICA_TAGGED_FROM:
            (replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch) = (
                _HEAD_12(frame, i)
            )
            i += 25
        else:
            max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = _HEAD_15(frame, i)
            i += 21
        topic_count, i = read_varint(frame, i)
        # An id or an empty name, no partitions, no tags.
        if not topic_count or (topic_count - 1) * (18 if by_id else 3) > end - i:
            raise malformed(i, "Fetch, topics are null or more than fit", topic_count - 1)
        topics = []
        for _ in range(topic_count - 1):
            name, topic_id, i = _topic(frame, i, end, by_id)
            count, i = read_varint(frame, i)
            if not count or (count - 1) * 33 > end - i:
                raise malformed(i, "Fetch, topics.partitions are null or more than fit", count - 1)
            partitions = []
            for _ in range(count - 1):
                index, leader_epoch, offset, fetched_epoch, log_start, size, tags = _PARTITION_12(frame, i)
                i += 33
                if tags:
                    i = skip_tags(frame, i - 1)
                partitions.append(FetchPartition(index, leader_epoch, offset, fetched_epoch, log_start, size))
            i = skip_tags(frame, i) if frame[i] else i + 1
            topics.append(FetchTopic(name, topic_id, partitions))
        forgotten, i = _compact_forgotten(frame, i, end, by_id)
        rack_id, i = _compact_string(frame, i, end)
        request = FetchRequest(
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation_level,
            session_id,
            session_epoch,
            topics,
            forgotten,
            rack_id,
            replica_id,
        )
        i = _read_tags(frame, i, version, request) if frame[i] else i + 1
    except READ_ERRORS as error:
        raise unreadable(error, i, "Fetch", end) from None
    return request


def _compact_string(frame: Buffer, i: int, end: int) -> tuple[str, int]:
    size, i = read_varint(frame, i)
    stop = i + size - 1
    if not size or stop > end:
        raise malformed(i, "Fetch, a string is null or goes on past the end", size - 1)
    return str(frame[i:stop], "utf-8"), stop


def _topic(frame: Buffer, i: int, end: int, by_id: bool) -> tuple[str, bytes, int]:
    if by_id:
        return "", bytes(frame[i : i + 16]), i + 16
    name, i = _compact_string(frame, i, end)
    return name, NULL_ID, i


def _compact_forgotten(frame: Buffer, i: int, end: int, by_id: bool) -> tuple[list[ForgottenTopic], int]:
    topic_count, i = read_varint(frame, i)
    if not topic_count or (topic_count - 1) * (18 if by_id else 3) > end - i:
        raise malformed(i, "Fetch, forgotten topics are null or more than fit", topic_count - 1)
    forgotten = []
    for _ in range(topic_count - 1):
        name, topic_id, i = _topic(frame, i, end, by_id)
        count, i = read_varint(frame, i)
        if not count or (count - 1) * 4 > end - i:
            raise malformed(i, "Fetch, forgotten partitions are null or more than fit", count - 1)
        partitions = list(struct.unpack_from(f">{count - 1}i", frame, i))
        i = skip_tags(frame, i + 4 * (count - 1))
        forgotten.append(ForgottenTopic(name, topic_id, partitions))
    return forgotten, i


def _read_tags(frame: Buffer, i: int, version: int, request: FetchRequest) -> int:
    """Fill in the tagged fields of *request*, and return where they end."""
    count, i = read_tag_count(frame, i)
    tag = -1
    for _ in range(count):
        tag, i, stop = read_tag(frame, i, tag)
        if tag == 0:
            size, i = read_varint(frame, i)
            request.cluster_id = str(frame[i : i + size - 1], "utf-8") if size else None
            i += max(size - 1, 0)
        elif tag == 1 and version >= REPLICA_TAGGED_FROM:
            request.replica_id, request.replica_epoch = struct.unpack_from(">iq", frame, i)
            i = skip_tags(frame, i + 12)
        else:
            i = stop
        if i != stop:
            raise malformed(i, f"Fetch, tagged field {tag} does not end where its size says", i - stop)
    return i
