"""Frames of the shared log: exact bytes, read back by a reader of its own, and no bit of them can turn.

The checksums below were made by Java. Of the bytes that they cover, in hex::

    class Crc {
        public static void main(String[] a) throws Exception {
            var crc = new java.util.zip.CRC32C();
            crc.update(System.in.readAllBytes());
            System.out.printf("%08x%n", crc.getValue());
        }
    }
    $ xxd -r -p covered.hex | java Crc.java
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from formats.readers import read_shared
from hypothesis import given
from hypothesis import strategies as st
from support.flips import undetected
from support.shared import SEGMENTS, TENANTS, create, fill, open_data, physical, shared_log, virtual

from cordwood.disk.files import read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import (
    ChecksumMismatch,
    FrameError,
    FrameTooLarge,
    InvalidBatch,
    InvalidSetting,
    RecordRefused,
    TruncatedFrame,
)
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.formats.format import Ending, FrameSlot
from cordwood.formats.receiving import BatchTerms
from cordwood.formats.registry import EVERY_FORMAT, FORMATS
from cordwood.formats.shared.envelope import (
    ENVELOPE_SIZE,
    Envelope,
    EnvelopeFormat,
    EnvelopeKind,
    EnvelopeTable,
    Owner,
    content_of,
    read_envelope,
    seal,
)
from cordwood.formats.shared.topic_hashing import topic_hash_bytes
from cordwood.kernels import Want
from cordwood.records import Record

OWNER = Owner(7, topic_hash_bytes(7, "orders"), 2)
LAST_MS = 1_700_000_000_123
BATCH = bytes.fromhex(
    "0000000000000028"  # base offset 40: the one in its topic
    "0000004b"  # length of the rest
    "00000003"  # leader epoch 3
    "02"  # magic 2
    "7c936c35"  # CRC-32C of the rest
    "0000"  # attributes: no compression, create time
    "00000001"  # last offset delta: two records
    "0000018bcfe5687b"  # base timestamp 1700000000123
    "0000018bcfe5687b"  # largest timestamp
    "0000000000000009"  # producer id 9
    "0001"  # producer epoch 1
    "00000005"  # base sequence 5
    "00000002"  # two records
    "18000000026b0a666972737400"  # key "k", value "first"
    "18002d02010c7365636f6e6400"  # no key, value "second", 23 ms earlier
)
RECORDS_FRAME = (
    bytes.fromhex(
        "ed79539b"  # CRC-32C 0x9b5379ed of everything after it, the batch included
        "57454e56"  # "WENV"
        "a7000000"  # 167 bytes: 80 and the batch
        "01"  # version 1
        "00"  # kind 0: records
        "0000"  # reserved
        "03000000"  # leader epoch 3
        "02000000"  # partition 2
        "e803000000000000"  # first id 1000
        "0700000000000000"  # org 7
        "fe3bd977193282a3a3e9cd6a42964952"  # BLAKE3 of org 7 and "orders", 16 bytes
        "2800000000000000"  # first offset 40
        "7b68e5cf8b010000"  # largest timestamp 1700000000123
        "02000000"  # two ids
        "00000000"  # reserved
    )
    + BATCH
)
LOG_START_FRAME = bytes.fromhex(
    "cf562c86"  # CRC-32C 0x862c56cf
    "57454e56"  # "WENV"
    "50000000"  # 80 bytes: no batch
    "01"  # version 1
    "01"  # kind 1: the partition starts at its first offset from here on
    "0000"  # reserved
    "03000000"  # leader epoch 3
    "02000000"  # partition 2
    "ea03000000000000"  # first id 1002
    "0700000000000000"  # org 7
    "fe3bd977193282a3a3e9cd6a42964952"  # topic hash
    "2900000000000000"  # first offset 41: within the batch above
    "c868e5cf8b010000"  # when it was said: 1700000000200
    "01000000"  # one id
    "00000000"  # reserved
)
ENDED_FRAME = bytes.fromhex(
    "8f218c89"  # CRC-32C 0x898c218f
    "57454e56"  # "WENV"
    "50000000"  # 80 bytes
    "01"  # version 1
    "02"  # kind 2: the topic was deleted
    "0000"  # reserved
    "03000000"  # leader epoch 3
    "02000000"  # partition 2
    "eb03000000000000"  # first id 1003
    "0700000000000000"  # org 7
    "fe3bd977193282a3a3e9cd6a42964952"  # topic hash
    "0000000000000000"  # first offset: none
    "2c69e5cf8b010000"  # when it was said: 1700000000300
    "01000000"  # one id
    "00000000"  # reserved
)
FRAMES = {
    RECORDS_FRAME: Envelope(EnvelopeKind.RECORDS, OWNER, 1000, 40, 2, LAST_MS, 3, 167),
    LOG_START_FRAME: Envelope(EnvelopeKind.LOG_START, OWNER, 1002, 41, 1, 1_700_000_000_200, 3, 80),
    ENDED_FRAME: Envelope(EnvelopeKind.ENDED, OWNER, 1003, 0, 1, 1_700_000_000_300, 3, 80),
}
LOG = b"".join(FRAMES)
FORMAT = EnvelopeFormat()


def scan(data: bytes, next_id: int = 1000, *, dense: bool = True) -> EnvelopeTable:
    return FORMAT.scan(data, next_offset=next_id, dense=dense, epochs=((0, 3),), size_max=1 << 20)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: FRAMES[frame].kind.name)
def test_a_frame_has_exactly_these_bytes(frame: bytes) -> None:
    said = FRAMES[frame]
    content = BATCH if said.kind is EnvelopeKind.RECORDS else b""
    made = seal(*said[:-1], content)
    assert bytes(made) == frame
    assert read_envelope(frame) == said
    assert bytes(content_of(frame, 0, said)) == content
    assert FORMAT.frame_size(frame[:ENVELOPE_SIZE]) == len(frame)


def test_the_batch_inside_is_one_of_its_topic_as_clients_take_it() -> None:
    rows = [(b"k", b"first", (), LAST_MS), (None, b"second", (), LAST_MS - 23)]
    options = BatchOptions(base_offset=40, leader_epoch=3, producer_id=9, producer_epoch=1, base_sequence=5)
    assert bytes(batch.encode_records(rows, LAST_MS, options)) == BATCH


def test_frames_follow_each_other_and_offsets_of_the_log_are_ids() -> None:
    table = scan(LOG)
    assert (len(table), table.end, table.ending) == (3, len(LOG), Ending.END)
    assert [table.base_offset(i) for i in range(3)] == [1000, 1002, 1003]
    assert [table.record_count(i) for i in range(3)] == [2, 0, 0]
    assert [table.envelope(i) for i in range(3)] == list(FRAMES.values())
    assert table.records(0) == [
        Record(1000, LAST_MS, b"k", b"first", ()),
        Record(1001, LAST_MS - 23, None, b"second", ()),
    ]
    assert table.records(1) == table.records(2) == []
    assert [table.find(id_) for id_ in (1000, 1001, 1002, 1003, 1004)] == [0, 0, 1, 2, 3]
    assert table.columns(0, 3, Want.VALUE).rows == 2


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: FRAMES[frame].kind.name)
def test_no_turned_bit_of_a_frame_goes_unnoticed(frame: bytes) -> None:
    """I2: offset and tenant included, and every byte of the batch."""
    assert undetected(frame, lambda data: read_envelope(data)) == []


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: FRAMES[frame].kind.name)
def test_a_frame_that_is_cut_anywhere_is_short_and_no_frame(frame: bytes) -> None:
    for size in range(len(frame)):
        with pytest.raises(TruncatedFrame):
            read_envelope(frame[:size])
        table = scan(frame[:size], FRAMES[frame].first_id)
        assert len(table) == 0
        assert table.ending is (Ending.SHORT if size else Ending.END)
    assert len(scan(frame + b"\1", FRAMES[frame].first_id)) == 1


def test_zeros_are_the_end_of_the_log_and_never_a_frame() -> None:
    for padding in (80, 81, 4096):
        table = scan(LOG + bytes(padding))
        assert (len(table), table.ending) == (3, Ending.ZEROS)


def refused(change: tuple[int, bytes], error: type[FrameError]) -> None:
    """Change the frame, give it the checksum that it has now, and see it refused all the same."""
    at, data = change
    frame = bytearray(LOG_START_FRAME)
    frame[at : at + len(data)] = data
    frame[:4] = read_shared.crc32c(bytes(frame[4:])).to_bytes(4, "little")
    with pytest.raises(error):
        read_envelope(frame, size_max=1 << 20)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ((4, b"X"), InvalidBatch),  # magic
        ((12, b"\2"), InvalidBatch),  # version
        ((13, b"\3"), InvalidBatch),  # kind
        ((14, b"\1"), InvalidBatch),  # reserved
        ((16, b"\xff\xff\xff\xff"), InvalidBatch),  # leader epoch -1
        ((72, b"\0"), InvalidBatch),  # no ids
        ((76, b"\1"), InvalidBatch),  # reserved
        ((8, b"\x4f"), InvalidBatch),  # smaller than an envelope
        ((8, b"\x51"), TruncatedFrame),
        ((8, b"\xff\xff\xff\x7f"), FrameTooLarge),
    ],
)
def test_a_field_that_cannot_be_is_refused_though_the_checksum_is_right(
    change: tuple[int, bytes], error: type[FrameError]
) -> None:
    refused(change, error)


def test_what_is_no_checksum_says_which_one_was_expected() -> None:
    with pytest.raises(ChecksumMismatch, match="0x862c56cf"):
        read_envelope(LOG_START_FRAME[:64] + b"\0" + LOG_START_FRAME[65:])


@pytest.mark.parametrize(("next_id", "dense", "found"), [(999, True, 0), (999, False, 3), (1001, False, 0)])
def test_ids_rise_and_have_no_gaps_where_nothing_was_removed(next_id: int, dense: bool, found: int) -> None:
    assert len(scan(LOG, next_id, dense=dense)) == found


def test_a_frame_of_another_leader_epoch_ends_the_run() -> None:
    table = FORMAT.scan(LOG, next_offset=1000, dense=True, epochs=((0, 3), (1002, 4)), size_max=1 << 20)
    assert (len(table), table.ending) == (1, Ending.INVALID)
    assert "leader epoch" in str(table.error())


def test_a_frame_cut_at_an_id_keeps_what_lies_before_it_under_a_checksum_of_its_own() -> None:
    table = scan(LOG)
    kept = table.keep_before(0, 1001)
    assert kept is not None
    envelope = read_envelope(kept)
    assert (envelope.first_id, envelope.id_count, envelope.first_offset) == (1000, 1, 40)
    (record,) = batch.decode_records(kept[80:], batch.read_header(kept[80:]))
    assert (record.offset, record.value) == (40, b"first")
    assert table.keep_before(0, 1000) is None
    assert table.keep_before(1, 1002) is None


@given(
    st.integers(0, 2**64 - 1),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**32 - 1),
    st.sampled_from(EnvelopeKind),
)
def test_whatever_an_envelope_says_comes_back(
    org: int, hashed: bytes, partition: int, first_id: int, offset: int, count: int, kind: EnvelopeKind
) -> None:
    owner = Owner(org, hashed, partition)
    frame = bytes(seal(kind, owner, first_id, offset, count, -1, 0, b"x" * (count % 7)))
    assert read_envelope(frame) == (kind, owner, first_id, offset, count, -1, 0, len(frame))


@given(st.binary(max_size=400))
def test_no_bytes_make_a_scan_fail_or_read_on_without_end(data: bytes) -> None:
    for start in (b"", LOG_START_FRAME, RECORDS_FRAME[:100]):
        table = FORMAT.scan(start + data, next_offset=0, dense=False, epochs=None, size_max=1 << 20)
        assert table.end <= len(start + data)
        assert all(0 <= at <= len(start + data) - ENVELOPE_SIZE for at in FORMAT.candidates(start + data))


def test_nobody_writes_the_shared_log_but_through_a_topic() -> None:
    """A topic cannot have the format, and the format takes nothing."""
    assert "shared" not in FORMATS
    data = open_data(MemoryFiles())
    with pytest.raises(InvalidSetting, match=r"cordwood\.storage=shared"):
        data.topics.create("orders", "id", 1, {"cordwood.format": "shared"})
    assert list(data.topics) == []
    data.close()
    with pytest.raises(RecordRefused):
        EVERY_FORMAT["shared"].receive(memoryview(bytearray(BATCH)), BatchTerms(1 << 20))
    with pytest.raises(RecordRefused):
        EVERY_FORMAT["shared"].encode([(None, b"v")], FrameSlot(0, 0), now_ms=0)


# --- the second reader --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, int]]]:
    """The segments of a shared log in which everything happened, and what the engine says of its topics."""
    files = MemoryFiles()
    data = open_data(files)
    create(data, *TENANTS)
    create(data, "late", cordwood_initial_offset="500")
    fill(data, names=(*TENANTS, "late"))
    virtual(data, "orders").advance_log_start(5)
    virtual(data, "orders@8").advance_log_start(20)
    data.topics.delete("orders@7")
    create(data, "orders@7", partitions=2)
    fill(data, 3)
    physical(data).roll()
    assert data.maintenance.maintain_all().reclaimed.segments
    fill(data, 2)
    virtual(data, "orders@8").advance_log_start(virtual(data, "orders@8").high_watermark)
    said = {
        str(part.owner): {"start": part.offsets.start, "end": part.offsets.end, "bytes": part.size}
        for part in shared_log(data).topics
        if part.offsets.end
    }
    data.close()
    directory = tmp_path_factory.mktemp("shared")
    for name in files.list(SEGMENTS):
        (directory / name).write_bytes(read_file(files, f"{SEGMENTS}/{name}"))
    return directory, said


@pytest.mark.parametrize("suffix", ["log", "oidx"])
def test_another_reader_finds_the_same_topics_in_the_log_alone_and_in_the_index_alone(
    filled: tuple[Path, dict[str, dict[str, int]]], suffix: str
) -> None:
    directory, said = filled
    found = read_shared.topics(read_shared.frames(directory, suffix))
    assert {key: total for key, total in found.items() if total["end"]} == said
    assert len(said) == 4


def test_log_and_index_say_the_same_of_every_frame(filled: tuple[Path, dict[str, dict[str, int]]]) -> None:
    directory, _ = filled
    in_log = list(read_shared.frames(directory, "log"))
    assert list(read_shared.frames(directory, "oidx")) == in_log
    assert {frame["kind"] for frame in in_log} == {0, 1, 2}
    print(f"{len(in_log)} frames compared")
    assert len(in_log) >= 30


@pytest.mark.parametrize("suffix", ["log", "oidx"])
def test_the_reader_runs_as_a_program_of_its_own(
    filled: tuple[Path, dict[str, dict[str, int]]], suffix: str
) -> None:
    directory, said = filled
    program = [sys.executable, "-I", read_shared.__file__, suffix, str(directory)]
    lines = subprocess.run(program, capture_output=True, check=True).stdout.splitlines()
    found = {total.pop("topic"): total for total in map(json.loads, lines)}
    assert {key: total for key, total in found.items() if total["end"]} == said


def test_the_reader_and_the_engine_have_the_same_checksum() -> None:
    assert read_shared.crc32c(b"123456789") == 0xE3069283
    assert [frame["first_offset"] for frame in read_shared.frames_of_log(LOG, 1000)] == [40, 41, 0]
