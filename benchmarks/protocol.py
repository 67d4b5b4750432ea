"""Reading Produce and Fetch requests of 1 and 16 partitions: the compiled decoders against a loop by hand.

These two requests carry all the data. A decoder that was written for one of them must be no faster than the
one that is compiled from its declaration: else somebody will write it again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from benchmarks.measure import Figure, best_seconds
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.messages import fetch, produce
from cordwood.protocol.wire import WireBytes, read_varint, skip_tags

PARTITIONS = (1, 16)
RECORD_BYTES = 200
ROUNDS, CALLS = 15, 2000
PRODUCE_VERSION, FETCH_VERSION = 13, 16
#: By how much the compiled decoder may be slower.
RATIO_MAX = 1.05
TOPIC_ID = bytes(range(16))


class Message(msgspec.Struct, gc=False):
    """A message, or a part of one, as a decoder by hand makes it."""

    head: tuple[object, ...]
    parts: list[Message] | None = None


_ACKS_TIMEOUT = struct.Struct(">hi").unpack_from
_INDEX_LENGTH = struct.Struct(">iB").unpack_from
_FETCH_HEAD = struct.Struct(">iiibii").unpack_from
_FETCH_PARTITION = struct.Struct(">iiqiqiB").unpack_from


def produce_by_hand(frame: WireBytes, i: int) -> Message:
    """Read a Produce request of version 13 without a transaction, and check every length."""
    end, view = len(frame), memoryview(frame)
    size, i = read_varint(frame, i)
    assert not size
    head = _ACKS_TIMEOUT(frame, i)
    count, i = read_varint(frame, i + 6)
    assert (count - 1) * 18 <= end - i
    topics = []
    for _ in range(count - 1):
        topic_id = bytes(frame[i : i + 16])
        count, i = read_varint(frame, i + 16)
        assert (count - 1) * 6 <= end - i
        partitions = []
        for _ in range(count - 1):
            index, size = _INDEX_LENGTH(frame, i)
            i += 5
            if size > 127:
                size, i = read_varint(frame, i - 1)
            stop = i + size - 1
            assert size
            assert stop <= end
            partitions.append(Message((index, view[i:stop])))
            i = skip_tags(frame, stop) if frame[stop] else stop + 1
        i = skip_tags(frame, i) if frame[i] else i + 1
        topics.append(Message((topic_id,), partitions))
    if frame[i]:
        skip_tags(frame, i)
    return Message(head, topics)


def fetch_by_hand(frame: WireBytes, i: int) -> Message:
    """Read a Fetch request of version 16 that forgets no topic, and check every length."""
    end = len(frame)
    head = _FETCH_HEAD(frame, i)
    count, i = read_varint(frame, i + 21)
    assert (count - 1) * 18 <= end - i
    topics = []
    for _ in range(count - 1):
        topic_id = bytes(frame[i : i + 16])
        count, i = read_varint(frame, i + 16)
        assert (count - 1) * 33 <= end - i
        partitions = []
        for _ in range(count - 1):
            *wanted, tags = _FETCH_PARTITION(frame, i)
            i += 33
            if tags:
                i = skip_tags(frame, i - 1)
            partitions.append(Message(tuple(wanted)))
        i = skip_tags(frame, i) if frame[i] else i + 1
        topics.append(Message((topic_id,), partitions))
    forgotten, i = read_varint(frame, i)
    assert forgotten == 1
    size, i = read_varint(frame, i)
    stop = i + size - 1
    assert stop <= end
    rack = str(frame[i:stop], "utf-8")
    if frame[stop]:
        skip_tags(frame, stop)
    return Message((*head, [], rack), topics)


def produce_frame(partitions: int) -> bytearray:
    """Return the body of a Produce request."""
    records = memoryview(bytes(RECORD_BYTES))
    parts = [produce.ProducePartition(index, records) for index in range(partitions)]
    body = produce.ProduceRequest(None, -1, 30_000, [produce.ProduceTopic("", TOPIC_ID, parts)])
    return bytearray().join(APIS[ApiKey.PRODUCE].request.encoder(PRODUCE_VERSION)(body))


def fetch_frame(partitions: int) -> bytearray:
    """Return the body of a Fetch request."""
    parts = [fetch.FetchPartition(index, 3, 1000, -1, 0, 1 << 20) for index in range(partitions)]
    body = fetch.FetchRequest(-1, 500, 1, 1 << 24, 0, 7, 3, [fetch.FetchTopic("", TOPIC_ID, parts)])
    return bytearray().join(APIS[ApiKey.FETCH].request.encoder(FETCH_VERSION)(body))


def run() -> list[Figure]:
    """Measure both decoders of both requests in turn, and compare them."""
    figures = []
    for partitions in PARTITIONS:
        for name, by_hand, key, version, frame in (
            ("Produce", produce_by_hand, ApiKey.PRODUCE, PRODUCE_VERSION, produce_frame(partitions)),
            ("Fetch", fetch_by_hand, ApiKey.FETCH, FETCH_VERSION, fetch_frame(partitions)),
        ):
            sides = {"hand": by_hand, "compiled": APIS[key].request.decoder(version)}
            best = best_seconds({side: _repeated(read, frame) for side, read in sides.items()}, ROUNDS)
            request = f"{name} request of {partitions} partitions"
            figures += [
                Figure(f"{request}, read by hand", best["hand"] / CALLS * 1e6, "µs"),
                Figure(f"{request}, compiled", best["compiled"] / CALLS * 1e6, "µs"),
                Figure(
                    f"{request}, ratio", best["compiled"] / best["hand"], "times", RATIO_MAX, at_most=True
                ),
            ]
    return figures


def _repeated(read: Callable[[WireBytes, int], object], frame: WireBytes) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(CALLS):
            read(frame, 0)

    return repeat
