"""Produce, tuned by hand: requests in, responses out, batches untouched.

This and Fetch carry all the data, so they are read and written by code made for them instead of the
compiled codec. Batches are never looked into: a request holds slices of its own frame.

:mod:`cordwood.protocol.peer` has the client's half: requests out, responses in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from cordwood.protocol.wire import (
    NULL_ID,
    READ_ERRORS,
    WRITE_ERRORS,
    Buffer,
    Decode,
    Encode,
    malformed,
    read_varint,
    skip_tags,
    unreadable,
    varint,
)

#: The first version with compact lengths and tagged fields, and the first that names topics by id.
FLEXIBLE_FROM = 9
BY_ID_FROM = 13


class ProducePartition(msgspec.Struct, gc=False):
    """The batches for one partition: a slice of the frame, writable if the frame is a ``bytearray``.

    While such a slice lives the frame cannot be resized, and is kept in memory as a whole.
    """

    index: int
    records: memoryview | None


class ProduceTopic(msgspec.Struct, gc=False):
    """A topic by ``name`` up to version 12; from 13 on by ``topic_id``, and the name is empty."""

    name: str
    topic_id: bytes
    partitions: list[ProducePartition]


class ProduceRequest(msgspec.Struct, gc=False):
    """Append these batches. ``acks`` is -1 for all, 1 for the leader, 0 for no response at all."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class RecordError(msgspec.Struct, gc=False):
    """What is wrong with one record; ``batch_index`` counts records from the first of the batch."""

    batch_index: int
    message: str | None = None


class ProducePartitionResponse(msgspec.Struct, gc=False):
    """Where the batches of one partition went, or why they did not."""

    index: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: list[RecordError] = []
    error_message: str | None = None


class ProduceTopicResponse(msgspec.Struct, gc=False):
    """A topic by ``name`` up to version 12, by ``topic_id`` from 13 on."""

    name: str
    topic_id: bytes
    partitions: list[ProducePartitionResponse]


class ProduceResponse(msgspec.Struct, gc=False):
    """What became of the batches."""

    topics: list[ProduceTopicResponse]
    throttle_time_ms: int = 0


_SHORT = struct.Struct(">h").unpack_from
_INT = struct.Struct(">i").unpack_from
_ACKS_TIMEOUT = struct.Struct(">hi").unpack_from
_ACKS_TIMEOUT_COUNT = struct.Struct(">hii").unpack_from
_INDEX_LENGTH = struct.Struct(">ii").unpack_from
_INDEX_SHORT_LENGTH = struct.Struct(">iB").unpack_from


def request_decoder(version: int) -> Decode:
    """Return the function that reads requests of *version*."""
    if version < FLEXIBLE_FROM:
        return _decode_legacy
    by_id = version >= BY_ID_FROM
    return lambda frame, position: _decode_flexible(frame, position, by_id)


def _decode_legacy(frame: Buffer, i: int) -> ProduceRequest:
    end = len(frame)
    view = memoryview(frame)
    try:
        (size,) = _SHORT(frame, i)
        i += 2
        transactional_id = None
        if size >= 0:
            if size > end - i:
                raise malformed(i, "Produce, transactional_id goes on past the end", size)
            transactional_id = str(frame[i : i + size], "utf-8")
            i += size
        elif size != -1:
            raise malformed(i, "Produce, transactional_id has a negative length", size)
        acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT(frame, i)
        i += 10
        # An empty name and no partitions: six bytes at least.
        if topic_count < 0 or topic_count * 6 > end - i:
            raise malformed(i, "Produce, topics are null or more than fit", topic_count)
        topics = []
        for _ in range(topic_count):
            (size,) = _SHORT(frame, i)
            i += 2
            if size < 0 or size > end - i:
                raise malformed(i, "Produce, topics.name is null or goes on past the end", size)
            name = str(frame[i : i + size], "utf-8")
            i += size
            (count,) = _INT(frame, i)
            i += 4
            if count < 0 or count * 8 > end - i:
                raise malformed(i, "Produce, topics.partitions are null or more than fit", count)
            partitions = []
            for _ in range(count):
                index, size = _INDEX_LENGTH(frame, i)
                i += 8
                if size >= 0:
                    stop = i + size
                    if stop > end:
                        raise malformed(i, "Produce, records go on past the end", size)
                    partitions.append(ProducePartition(index, view[i:stop]))
                    i = stop
                elif size == -1:
                    partitions.append(ProducePartition(index, None))
                else:
                    raise malformed(i, "Produce, records have a negative length", size)
            topics.append(ProduceTopic(name, NULL_ID, partitions))
    except READ_ERRORS as error:
        raise unreadable(error, i, "Produce", end) from None
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_flexible(frame: Buffer, i: int, by_id: bool) -> ProduceRequest:
    end = len(frame)
    view = memoryview(frame)
    try:
        size, i = read_varint(frame, i)
        transactional_id = None
        if size:
            stop = i + size - 1
            if stop > end:
                raise malformed(i, "Produce, transactional_id goes on past the end", size - 1)
            transactional_id = str(frame[i:stop], "utf-8")
            i = stop
        acks, timeout_ms = _ACKS_TIMEOUT(frame, i)
        topic_count, i = read_varint(frame, i + 6)
        # An id or an empty name, no partitions, no tags.
        if not topic_count or (topic_count - 1) * (18 if by_id else 3) > end - i:
            raise malformed(i, "Produce, topics are null or more than fit", topic_count - 1)
        topics = []
        name, topic_id = "", NULL_ID
        for _ in range(topic_count - 1):
            if by_id:
                topic_id = bytes(frame[i : i + 16])
                i += 16
            else:
                size, i = read_varint(frame, i)
                stop = i + size - 1
                if not size or stop > end:
                    raise malformed(i, "Produce, topics.name is null or goes on past the end", size - 1)
                name = str(frame[i:stop], "utf-8")
                i = stop
            count, i = read_varint(frame, i)
            if not count or (count - 1) * 6 > end - i:
                raise malformed(i, "Produce, topics.partitions are null or more than fit", count - 1)
            partitions = []
            for _ in range(count - 1):
                index, size = _INDEX_SHORT_LENGTH(frame, i)
                i += 5
                if size > 127:
                    size, i = read_varint(frame, i - 1)
                if size:
                    stop = i + size - 1
                    if stop > end:
                        raise malformed(i, "Produce, records go on past the end", size - 1)
                    partitions.append(ProducePartition(index, view[i:stop]))
                    i = stop
                else:
                    partitions.append(ProducePartition(index, None))
                i = skip_tags(frame, i) if frame[i] else i + 1
            i = skip_tags(frame, i) if frame[i] else i + 1
            topics.append(ProduceTopic(name, topic_id, partitions))
        i = skip_tags(frame, i) if frame[i] else i + 1
    except READ_ERRORS as error:
        raise unreadable(error, i, "Produce", end) from None
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


_PackPartition = Callable[[ProducePartitionResponse], bytes]
_COUNT = struct.Struct(">i").pack
_LENGTH = struct.Struct(">h").pack
_THROTTLE = struct.Struct(">i").pack
_PARTITION_3 = struct.Struct(">ihqq").pack
_PARTITION_5 = struct.Struct(">ihqqq").pack
# From version 8 on: no record errors, no message; from 9 on in compact form, and no tags.
_PARTITION_8 = struct.Struct(">ihqqqih").pack
_PARTITION_9 = struct.Struct(">ihqqqBBx").pack


def response_encoder(version: int) -> Encode:
    """Return the function that writes responses of *version*.

    It raises ValueError for a value that its field cannot hold. Tagged fields are left out: a client
    that is told of no other leader asks for metadata.
    """
    pack = _partition_packer(version)
    flexible = version >= FLEXIBLE_FROM
    by_id = version >= BY_ID_FROM

    def encode(response: ProduceResponse) -> list[Buffer]:
        out: list[bytes] = []
        try:
            if flexible:
                out.append(varint(len(response.topics) + 1))
                for topic in response.topics:
                    if by_id:
                        assert len(topic.topic_id) == 16
                        out.append(topic.topic_id)
                    else:
                        name = topic.name.encode()
                        out += (varint(len(name) + 1), name)
                    out.append(varint(len(topic.partitions) + 1))
                    out += map(pack, topic.partitions)
                    out.append(b"\0")
                out.append(_THROTTLE(response.throttle_time_ms) + b"\0")
            else:
                out.append(_COUNT(len(response.topics)))
                for topic in response.topics:
                    name = topic.name.encode()
                    out += (_LENGTH(len(name)), name, _COUNT(len(topic.partitions)))
                    out += map(pack, topic.partitions)
                out.append(_THROTTLE(response.throttle_time_ms))
            return [b"".join(out)]
        except WRITE_ERRORS as error:
            raise ValueError(f"ProduceResponse v{version} cannot be written: {error}") from None

    return encode


def _partition_packer(version: int) -> _PackPartition:
    if version < 5:
        return lambda p: _PARTITION_3(p.index, p.error_code, p.base_offset, p.log_append_time_ms)
    if version < 8:
        return lambda p: _PARTITION_5(
            p.index, p.error_code, p.base_offset, p.log_append_time_ms, p.log_start_offset
        )
    return _pack_legacy_errors if version < FLEXIBLE_FROM else _pack_compact_errors


def _pack_legacy_errors(p: ProducePartitionResponse) -> bytes:
    fields = (p.index, p.error_code, p.base_offset, p.log_append_time_ms, p.log_start_offset)
    if not p.record_errors and p.error_message is None:
        return _PARTITION_8(*fields, 0, -1)
    out = [_PARTITION_5(*fields), _COUNT(len(p.record_errors))]
    for each in p.record_errors:
        out += (_COUNT(each.batch_index), _nullable(each.message))
    out.append(_nullable(p.error_message))
    return b"".join(out)


def _pack_compact_errors(p: ProducePartitionResponse) -> bytes:
    fields = (p.index, p.error_code, p.base_offset, p.log_append_time_ms, p.log_start_offset)
    if not p.record_errors and p.error_message is None:
        return _PARTITION_9(*fields, 1, 0)
    out = [_PARTITION_5(*fields), varint(len(p.record_errors) + 1)]
    for each in p.record_errors:
        out += (_COUNT(each.batch_index), _compact_nullable(each.message), b"\0")
    out += (_compact_nullable(p.error_message), b"\0")
    return b"".join(out)


def _nullable(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return _LENGTH(len(data)) + data


def _compact_nullable(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    return varint(len(data) + 1) + data
