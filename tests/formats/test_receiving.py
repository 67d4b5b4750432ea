"""What a topic asks of a batch: keys, timestamps, compression; a refusal names the records that it is for."""

from __future__ import annotations

import itertools
import random

import pytest
from support.seeds import seed_or

from cordwood.errors import FrameTooLarge, InvalidBatch, RecordsRejected, TimestampsRejected
from cordwood.formats import batch
from cordwood.formats.batch import BatchHeader, BatchOptions
from cordwood.formats.compression import Compression
from cordwood.formats.format import FrameSlot
from cordwood.formats.native import BatchFormat
from cordwood.formats.receiving import NO_TIMESTAMP, BatchTerms, CompressionChoice, check_keys, check_times
from cordwood.formats.registry import EVERY_FORMAT
from cordwood.records import Record

NOW = 1_760_000_000_000
SIZE_MAX = 1 << 20
FORMAT = BatchFormat()
EVERY_CODEC = list(Compression)


def sent(rows: list[tuple[object, ...]], **options: object) -> memoryview:
    return memoryview(batch.encode_records(rows, NOW, BatchOptions(**options)))  # type: ignore[arg-type]


def decoded(data: memoryview) -> tuple[BatchHeader, list[Record]]:
    header = batch.read_header(data)
    batch.validate(data, header)
    return header, batch.decode_records(data, header)


# --- which records ----------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", EVERY_CODEC)
def test_every_record_without_a_key_is_named_and_no_other(compression: Compression) -> None:
    keys = [b"a", None, b"", None, b"c"]
    data = sent([(key, b"v") for key in keys], compression=compression)
    with pytest.raises(RecordsRejected) as caught:
        FORMAT.receive(data, BatchTerms(SIZE_MAX, keyed=True))
    assert list(caught.value.reasons) == [1, 3]
    assert not isinstance(caught.value, TimestampsRejected)
    assert set(caught.value.reasons.values()) == {"a record without a key in a topic that is compacted"}
    assert FORMAT.receive(data, BatchTerms(SIZE_MAX)).record_count == 5


@pytest.mark.parametrize("compression", EVERY_CODEC)
def test_every_record_out_of_time_is_named_and_no_other(compression: Compression) -> None:
    """The first record of a batch sets its base, and later ones may lie on either side of it."""
    times = [NOW, NOW - 11, NOW + 21, NOW - 10, NOW + 20, NO_TIMESTAMP]
    data = sent([(None, b"v", (), time) for time in times], compression=compression)
    terms = BatchTerms(SIZE_MAX, earliest=NOW - 10, latest=NOW + 20)
    with pytest.raises(TimestampsRejected) as caught:
        FORMAT.receive(data, terms)
    assert caught.value.reasons == {
        1: f"timestamp {NOW - 11} is not within [{NOW - 10}, {NOW + 20}]",
        2: f"timestamp {NOW + 21} is not within [{NOW - 10}, {NOW + 20}]",
    }
    with pytest.raises(TimestampsRejected, match=f"timestamp {NOW + 21} is not at most {NOW + 20}") as late:
        FORMAT.receive(data, BatchTerms(SIZE_MAX, latest=NOW + 20))
    assert list(late.value.reasons) == [2]


def test_a_batch_with_both_faults_is_refused_for_its_timestamps_and_names_each_record_once() -> None:
    """As Kafka has it: the key is looked at first, and any timestamp decides the code."""
    data = sent([(None, b"v", (), NOW + 5), (b"k", b"v", (), NOW + 5), (None, b"v", (), NOW)])
    with pytest.raises(TimestampsRejected) as caught:
        FORMAT.receive(data, BatchTerms(SIZE_MAX, keyed=True, latest=NOW))
    assert [reason.split()[0] for reason in caught.value.reasons.values()] == ["a", "timestamp", "a"]
    with pytest.raises(RecordsRejected) as keys_only:
        FORMAT.receive(sent([(None, b"v", (), NOW + 5)]), BatchTerms(SIZE_MAX, keyed=True, latest=NOW))
    assert not isinstance(keys_only.value, TimestampsRejected)


def test_however_many_records_are_wrong_what_is_said_of_them_stays_small() -> None:
    count = RecordsRejected.REASONS_MAX + 5
    data = sent([(None, b"")] * count)
    with pytest.raises(RecordsRejected) as caught:
        FORMAT.receive(data, BatchTerms(SIZE_MAX, keyed=True))
    assert len(caught.value.reasons) == RecordsRejected.REASONS_MAX
    assert caught.value.count == count
    assert str(caught.value).endswith(f"; and {count - 3} more")


def test_records_that_a_format_cannot_hold_are_named() -> None:
    data = sent([(None, b"v"), (b"key", b"v"), (None, b"v")])
    with pytest.raises(RecordsRejected) as caught:
        EVERY_FORMAT["rustlog"].receive(data, BatchTerms(SIZE_MAX))
    assert caught.value.reasons == {1: "it has a key, which the format rustlog cannot hold"}


def test_rows_are_named_as_records_of_a_batch_are() -> None:
    check_keys([b"", b"k"])
    with pytest.raises(RecordsRejected) as keys:
        check_keys([b"", None])
    assert list(keys.value.reasons) == [1]
    terms = BatchTerms(SIZE_MAX, earliest=NOW, latest=NOW)
    check_times([NOW, NO_TIMESTAMP], terms)
    with pytest.raises(TimestampsRejected) as times:
        check_times([NOW, NOW + 1, NOW - 1], terms)
    assert list(times.value.reasons) == [1, 2]


# --- compression ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pair",
    list(itertools.product(EVERY_CODEC, EVERY_CODEC)),
    ids=lambda pair: "-".join(each.name for each in pair),
)
def test_a_batch_is_stored_in_the_codec_of_its_topic_and_nothing_else_of_it_changes(
    pair: tuple[Compression, Compression],
) -> None:
    """Offsets, timestamps, keys, values, headers and the producer's stamp are those that were sent."""
    came, asked = pair
    rows: list[tuple[object, ...]] = [
        (b"key", b"value" * 50, (("h", b"1"), ("", None)), NOW + 3),
        (None, None, (), NOW - 7),
        (b"", b"", (), NO_TIMESTAMP),
    ]
    data = sent(rows, compression=came, producer_id=77, producer_epoch=3, base_sequence=41, base_offset=5)
    before = bytes(data)
    header, records = decoded(data)
    frame = FORMAT.receive(data, BatchTerms(SIZE_MAX, codec=CompressionChoice(asked)))
    if came is asked:
        assert frame.data is data
        assert bytes(frame.data) == before, "a batch that fits is passed on as it came"
    after, stored = decoded(frame.data)
    assert (after.compression, stored) == (asked, records)
    changed = {"size", "crc", "attributes"}
    for field in BatchHeader._fields:
        assert field in changed or getattr(after, field) == getattr(header, field), field
    assert after.attributes & ~batch.COMPRESSION_MASK == header.attributes & ~batch.COMPRESSION_MASK
    assert frame.stamp is not None
    assert (frame.stamp.producer_id, frame.stamp.first_sequence, frame.stamp.last_sequence) == (77, 41, 43)
    assert (frame.record_count, frame.max_timestamp) == (3, NOW + 3)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_higher_level_compresses_further(compression: Compression) -> None:
    seed = seed_or(7)
    print(f"seed {seed}")
    words = random.Random(seed).choices(
        [b"alpha", b"beta", b"gamma", b"delta", b"epsilon", b"zeta"], k=60_000
    )
    data = sent([(None, b" ".join(words))])
    low, high = {
        Compression.GZIP: (1, 9),
        Compression.LZ4: (1, 17),
        Compression.ZSTD: (-50, 19),
    }[compression]
    sizes = [
        len(FORMAT.receive(data[:], BatchTerms(SIZE_MAX, codec=CompressionChoice(compression, level))).data)
        for level in (low, high)
    ]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_batch_that_would_be_too_large_as_its_topic_stores_it_is_refused(compression: Compression) -> None:
    """Decompressing must not let in what the limit keeps out."""
    data = sent([(None, bytes(900_000))] * 2, compression=compression)
    assert len(data) < SIZE_MAX
    with pytest.raises(FrameTooLarge):
        FORMAT.receive(data, BatchTerms(SIZE_MAX, codec=CompressionChoice(Compression.NONE)))


@pytest.mark.parametrize(
    "compression", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
)
def test_a_batch_that_decompresses_to_more_than_memory_is_for_is_refused(compression: Compression) -> None:
    rows = [(None, bytes(1 << 20))] * 140
    data = memoryview(
        batch.encode_records(rows, NOW, BatchOptions(compression=compression), size_max=1 << 30)
    )
    with pytest.raises(FrameTooLarge):
        FORMAT.receive(data, BatchTerms(1 << 30, codec=CompressionChoice(Compression.NONE)))


def test_a_batch_that_is_damaged_is_refused_before_it_is_compressed_again() -> None:
    data = sent([(None, b"value")], compression=Compression.GZIP)
    header = batch.read_header(data)
    data[71:] = bytes(len(data) - 71)
    batch.set_max_timestamp(data, header, NOW)  # with a checksum that is right again
    with pytest.raises(InvalidBatch):
        FORMAT.receive(data, BatchTerms(SIZE_MAX, codec=CompressionChoice(Compression.ZSTD)))


def test_rows_are_encoded_in_the_codec_of_the_topic() -> None:
    for compression in EVERY_CODEC:
        encoded = FORMAT.encode(
            [(b"k", b"v" * 1000, (), NOW)],
            FrameSlot(9, 2, size_max=SIZE_MAX),
            now_ms=NOW,
            codec=CompressionChoice(compression),
        )
        header, records = decoded(memoryview(encoded.data))
        assert (header.compression, header.base_offset, header.leader_epoch) == (compression, 9, 2)
        assert [(record.key, record.value, record.offset) for record in records] == [(b"k", b"v" * 1000, 9)]
