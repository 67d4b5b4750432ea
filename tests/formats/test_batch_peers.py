"""Our bytes beside those of two other implementations: aiokafka's and kafka-python's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_records
import pytest

from cordwood.formats import batch
from cordwood.formats.batch import BatchHeader, BatchOptions
from cordwood.formats.compression import Compression, decompress
from cordwood.kernels import HEADER_SIZE

PEERS = {"aiokafka": aiokafka_records, "kafka-python": kafka_records}
ROW_SETS: dict[str, list[tuple[Any, Any, list[Any], int]]] = {
    "plain": [(b"key", b"value", [], 1_700_000_000_000)],
    "nulls": [(None, None, [], 0), (None, b"", [], 1), (b"", None, [], 2)],
    "headers": [(b"k", b"v", [("a", b"1"), ("a", b"2"), ("ünïcødé", None), ("", b"")], 5)],
    "times": [(b"k", b"v", [], t) for t in (10_000, 9_000, 20_000, 10_000)],
    "large": [(b"k" * 200, b"v" * 70_000, [("h" * 300, b"x" * 300)], i) for i in range(3)],
    "many": [(b"%d" % i, b"value %d" % i, [], 1_000 + i) for i in range(500)],
}
PRODUCERS = [(-1, -1, -1), (4711, 3, 12)]


def build(peer: Any, rows: list[Any], compression: Compression, producer: tuple[int, int, int]) -> bytes:
    builder = peer.DefaultRecordBatchBuilder(2, int(compression), producer[0] >= 0, *producer, 1 << 26)
    for i, (key, value, headers, timestamp) in enumerate(rows):
        assert builder.append(i, timestamp, key, value, headers) is not None
    return bytes(builder.build())


def encode(rows: list[Any], compression: Compression, producer: tuple[int, int, int]) -> bytes:
    attributes = batch.TRANSACTIONAL if producer[0] >= 0 else 0
    options = BatchOptions(0, -1, compression, None, attributes, *producer)
    return bytes(batch.encode_records(rows, 0, options))


def read_by(peer: Any, data: bytes) -> Iterator[tuple[Any, ...]]:
    reader = peer.DefaultRecordBatch(data)
    assert reader.validate_crc()
    for record in reader:
        key, value = (None if b is None else bytes(b) for b in (record.key, record.value))
        headers = [(name, None if content is None else bytes(content)) for name, content in record.headers]
        yield record.offset, record.timestamp, key, value, headers


def read_by_us(data: bytes) -> Iterator[tuple[Any, ...]]:
    header = batch.read_header(data)
    batch.validate(data, header)
    for record in batch.decode_records(data, header):
        yield record.offset, record.timestamp, record.key, record.value, list(record.headers)


def records_section(data: bytes, header: BatchHeader) -> bytes:
    return bytes(decompress(header.compression, data[HEADER_SIZE : header.end], 1 << 27))


CASES = list(itertools.product(PEERS, ROW_SETS, PRODUCERS))


@pytest.mark.parametrize(("peer", "rows", "producer"), CASES)
def test_uncompressed_batches_are_theirs_byte_for_byte_but_for_the_leader_epoch(
    peer: str, rows: str, producer: tuple[int, int, int]
) -> None:
    """The leader epoch is the broker's to set, and the two peers disagree on what to put there."""
    ours = encode(ROW_SETS[rows], Compression.NONE, producer)
    theirs = build(PEERS[peer], ROW_SETS[rows], Compression.NONE, producer)
    assert ours[:12] == theirs[:12]
    assert ours[16:] == theirs[16:]


@pytest.mark.parametrize("compression", [c for c in Compression if c is not Compression.NONE])
@pytest.mark.parametrize(("peer", "rows", "producer"), CASES)
def test_compressed_batches_say_the_same_and_hold_the_same(
    peer: str, rows: str, producer: tuple[int, int, int], compression: Compression
) -> None:
    ours = encode(ROW_SETS[rows], compression, producer)
    theirs = build(PEERS[peer], ROW_SETS[rows], compression, producer)
    our_header, their_header = batch.read_header(ours), batch.read_header(theirs)
    if their_header.compression is Compression.NONE:
        # Both peers keep a batch as it is where compressing would make it larger.
        assert our_header.size >= their_header.size
        their_header = their_header._replace(attributes=our_header.attributes)
        payload = theirs[HEADER_SIZE:]
    else:
        payload = records_section(theirs, their_header)
    ignored = {"size": 0, "crc": 0, "leader_epoch": 0}
    assert our_header._replace(**ignored) == their_header._replace(**ignored)
    assert records_section(ours, our_header) == payload


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize(("peer", "rows", "producer"), CASES)
def test_each_side_reads_what_the_other_wrote(
    peer: str, rows: str, producer: tuple[int, int, int], compression: Compression
) -> None:
    ours = encode(ROW_SETS[rows], compression, producer)
    theirs = build(PEERS[peer], ROW_SETS[rows], compression, producer)
    expected = [
        (i, timestamp, key, value, headers)
        for i, (key, value, headers, timestamp) in enumerate(ROW_SETS[rows])
    ]
    assert list(read_by(PEERS[peer], ours)) == expected
    assert list(read_by_us(theirs)) == expected
    assert list(read_by_us(ours)) == expected
