"""The client's half of Produce and Fetch: requests out, responses in. For tests and tools.

Written to be plain where :mod:`cordwood.protocol.produce` and :mod:`cordwood.protocol.fetch` are
written to be fast, and as strict about what it reads. Tagged fields of responses are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from cordwood.protocol import fetch, produce
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

T = TypeVar("T")


class Reader:
    """Reads a frame from a position on. Each method returns the next value and moves past it."""

    def __init__(self, frame: Buffer, position: int, flexible: bool) -> None:
        self.frame = frame
        self.position = position
        self.flexible = flexible

    def fixed(self, codes: str) -> tuple[int, ...]:
        """Return the values that *codes* stand for in :mod:`struct`."""
        values = struct.unpack_from(f">{codes}", self.frame, self.position)
        self.position += struct.calcsize(f">{codes}")
        return values

    def length(self, code: str) -> int:
        """Return a length or count that fits what is left, or -1 for null."""
        start = self.position
        if self.flexible:
            size, self.position = read_varint(self.frame, start)
            size -= 1
        else:
            (size,) = self.fixed(code)
        if not -1 <= size <= len(self.frame) - self.position:
            raise malformed(start, "a length that does not fit", size)
        return size

    def view(self, code: str) -> memoryview | None:
        """Return a slice of the frame that begins with its length."""
        size = self.length(code)
        if size < 0:
            return None
        start, self.position = self.position, self.position + size
        return memoryview(self.frame)[start : self.position]

    def nullable_string(self) -> str | None:
        """Return a string or None."""
        data = self.view("h")
        return None if data is None else str(data, "utf-8")

    def string(self) -> str:
        """Return a string; null is refused."""
        start, text = self.position, self.nullable_string()
        if text is None:
            raise malformed(start, "a string that must not be null", None)
        return text

    def topic(self, by_id: bool) -> tuple[str, bytes]:
        """Return name and id of a topic, one of which says nothing."""
        if not by_id:
            return self.string(), NULL_ID
        (topic_id,) = struct.unpack_from("16s", self.frame, self.position)
        self.position += 16
        return "", topic_id

    def nullable_array(self, element: Callable[[], T]) -> list[T] | None:
        """Return a list or None. An element is at least a byte, so no count outgrows the frame."""
        count = self.length("i")
        return None if count < 0 else [element() for _ in range(count)]

    def array(self, element: Callable[[], T]) -> list[T]:
        """Return a list; null is refused."""
        start, values = self.position, self.nullable_array(element)
        if values is None:
            raise malformed(start, "an array that must not be null", None)
        return values

    def tags(self) -> None:
        """Skip tagged fields, where the version has any."""
        if self.flexible:
            self.position = skip_tags(self.frame, self.position)


class Writer:
    """Collects the pieces of a message. Each method appends one value."""

    def __init__(self, flexible: bool) -> None:
        self.pieces: list[Buffer] = []
        self.flexible = flexible

    def fixed(self, codes: str, *values: int) -> None:
        """Append the values that *codes* stand for in :mod:`struct`."""
        self.pieces.append(struct.pack(f">{codes}", *values))

    def length(self, code: str, size: int) -> None:
        """Append a length or count, -1 for null."""
        self.pieces.append(varint(size + 1) if self.flexible else struct.pack(f">{code}", size))

    def sized(self, code: str, data: Buffer | None) -> None:
        """Append bytes after their length, or null."""
        self.length(code, -1 if data is None else len(data))
        self.pieces.append(data or b"")

    def string(self, text: str | None) -> None:
        """Append a string, or null."""
        self.sized("h", None if text is None else text.encode())

    def topic(self, by_id: bool, name: str, topic_id: bytes) -> None:
        """Append a topic's name or id."""
        if by_id:
            self.pieces.append(struct.pack("16s", topic_id))
        else:
            self.string(name)

    def tags(self, *tagged: tuple[int, bytes]) -> None:
        """Append tagged fields, where the version has any."""
        if self.flexible:
            self.pieces.append(varint(len(tagged)))
            for tag, data in tagged:
                self.pieces += (varint(tag), varint(len(data)), data)


def _reading(flexible: bool, body: Callable[[Reader], T]) -> Decode:
    """Return a decoder that reads a *body*."""

    def decode(frame: Buffer, position: int) -> T:
        reader = Reader(frame, position, flexible)
        try:
            return body(reader)
        except READ_ERRORS as error:
            raise unreadable(error, reader.position, "the response", len(frame)) from None

    return decode


def _writing(flexible: bool, body: Callable[[Writer, T], None]) -> Callable[[T], list[Buffer]]:
    """Return an encoder that writes a *body*."""

    def encode(message: T) -> list[Buffer]:
        writer = Writer(flexible)
        try:
            body(writer, message)
            return [b"".join(writer.pieces)]
        except WRITE_ERRORS as error:
            raise ValueError(f"{type(message).__name__} cannot be written: {error}") from None

    return encode


def produce_request_encoder(version: int) -> Encode:
    """Return the function that writes Produce requests of *version*."""
    by_id = version >= produce.BY_ID_FROM

    def write(w: Writer, request: produce.ProduceRequest) -> None:
        w.string(request.transactional_id)
        w.fixed("hi", request.acks, request.timeout_ms)
        w.length("i", len(request.topics))
        for topic in request.topics:
            w.topic(by_id, topic.name, topic.topic_id)
            w.length("i", len(topic.partitions))
            for partition in topic.partitions:
                w.fixed("i", partition.index)
                w.sized("i", partition.records)
                w.tags()
            w.tags()
        w.tags()

    return _writing(version >= produce.FLEXIBLE_FROM, write)


def produce_response_decoder(version: int) -> Decode:
    """Return the function that reads Produce responses of *version*."""
    by_id = version >= produce.BY_ID_FROM

    def record_error(r: Reader) -> produce.RecordError:
        (batch_index,) = r.fixed("i")
        message = r.nullable_string()
        r.tags()
        return produce.RecordError(batch_index, message)

    def partition(r: Reader) -> produce.ProducePartitionResponse:
        index, error_code, base_offset, append_time = r.fixed("ihqq")
        answer = produce.ProducePartitionResponse(index, error_code, base_offset, append_time)
        if version >= 5:
            (answer.log_start_offset,) = r.fixed("q")
        if version >= 8:
            answer.record_errors = r.array(lambda: record_error(r))
            answer.error_message = r.nullable_string()
        r.tags()
        return answer

    def topic(r: Reader) -> produce.ProduceTopicResponse:
        name, topic_id = r.topic(by_id)
        partitions = r.array(lambda: partition(r))
        r.tags()
        return produce.ProduceTopicResponse(name, topic_id, partitions)

    def response(r: Reader) -> produce.ProduceResponse:
        topics = r.array(lambda: topic(r))
        (throttle_time_ms,) = r.fixed("i")
        r.tags()
        return produce.ProduceResponse(topics, throttle_time_ms)

    return _reading(version >= produce.FLEXIBLE_FROM, response)


def fetch_request_encoder(version: int) -> Encode:
    """Return the function that writes Fetch requests of *version*."""
    by_id = version >= fetch.BY_ID_FROM

    def partition(w: Writer, p: fetch.FetchPartition) -> None:
        w.fixed("i", p.index)
        if version >= 9:
            w.fixed("i", p.current_leader_epoch)
        w.fixed("q", p.fetch_offset)
        if version >= 12:
            w.fixed("i", p.last_fetched_epoch)
        if version >= 5:
            w.fixed("q", p.log_start_offset)
        w.fixed("i", p.max_bytes)
        w.tags()

    def tagged(request: fetch.FetchRequest) -> list[tuple[int, bytes]]:
        found = []
        if request.cluster_id is not None:
            name = request.cluster_id.encode()
            found.append((0, varint(len(name) + 1) + name))
        if version >= fetch.REPLICA_TAGGED_FROM and (request.replica_id, request.replica_epoch) != (-1, -1):
            found.append((1, struct.pack(">iqx", request.replica_id, request.replica_epoch)))
        return found

    def write(w: Writer, request: fetch.FetchRequest) -> None:
        if version < fetch.REPLICA_TAGGED_FROM:
            w.fixed("i", request.replica_id)
        w.fixed("iii", request.max_wait_ms, request.min_bytes, request.max_bytes)
        w.fixed("b", request.isolation_level)
        if version >= 7:
            w.fixed("ii", request.session_id, request.session_epoch)
        w.length("i", len(request.topics))
        for topic in request.topics:
            w.topic(by_id, topic.name, topic.topic_id)
            w.length("i", len(topic.partitions))
            for each in topic.partitions:
                partition(w, each)
            w.tags()
        if version >= 7:
            w.length("i", len(request.forgotten))
            for gone in request.forgotten:
                w.topic(by_id, gone.name, gone.topic_id)
                w.length("i", len(gone.partitions))
                w.fixed(f"{len(gone.partitions)}i", *gone.partitions)
                w.tags()
        if version >= 11:
            w.string(request.rack_id)
        w.tags(*tagged(request))

    return _writing(version >= fetch.FLEXIBLE_FROM, write)


def fetch_response_decoder(version: int) -> Decode:
    """Return the function that reads Fetch responses of *version*; records are slices of the frame."""
    by_id = version >= fetch.BY_ID_FROM

    def aborted(r: Reader) -> fetch.AbortedTransaction:
        producer_id, first_offset = r.fixed("qq")
        r.tags()
        return fetch.AbortedTransaction(producer_id, first_offset)

    def partition(r: Reader) -> fetch.FetchPartitionResponse:
        index, error_code, high_watermark, last_stable_offset = r.fixed("ihqq")
        answer = fetch.FetchPartitionResponse(index, error_code, high_watermark, last_stable_offset)
        if version >= 5:
            (answer.log_start_offset,) = r.fixed("q")
        answer.aborted_transactions = r.nullable_array(lambda: aborted(r))
        if version >= 11:
            (answer.preferred_read_replica,) = r.fixed("i")
        records = r.view("i")
        answer.records = () if records is None else (records,)
        r.tags()
        return answer

    def topic(r: Reader) -> fetch.FetchTopicResponse:
        name, topic_id = r.topic(by_id)
        partitions = r.array(lambda: partition(r))
        r.tags()
        return fetch.FetchTopicResponse(name, topic_id, partitions)

    def response(r: Reader) -> fetch.FetchResponse:
        (throttle_time_ms,) = r.fixed("i")
        error_code, session_id = r.fixed("hi") if version >= 7 else (0, 0)
        topics = r.array(lambda: topic(r))
        r.tags()
        return fetch.FetchResponse(throttle_time_ms, error_code, session_id, topics)

    return _reading(version >= fetch.FLEXIBLE_FROM, response)
