"""The dense index of the shared log: exact bytes, and what of a file is believed.

The checksums below were made by Java, as in `test_envelope`.
"""

from __future__ import annotations

import pytest
from formats.readers import read_shared
from formats.test_envelope import BATCH, FRAMES, LOG_START_FRAME, OWNER, RECORDS_FRAME
from hypothesis import given
from hypothesis import strategies as st

from cordwood.formats import Marker, batch
from cordwood.formats.shared.envelope import Envelope, EnvelopeKind, Owner
from cordwood.formats.shared.owners import (
    ENTRY_SIZE,
    Expected,
    OwnerEntry,
    find_entry,
    find_read_entry,
    pack_entry,
    sound_entries,
    unpack_entry,
)

SEGMENT = 990
RECORDS_ENTRY = bytes.fromhex(
    "e803000000000000"  # first id 1000
    "2800000000000000"  # first offset 40
    "0700000000000000"  # org 7
    "fe3bd977193282a3a3e9cd6a42964952"  # topic hash
    "02000000"  # partition 2
    "02000000"  # two ids
    "de03000000000000"  # segment 990
    "0002000000000000"  # position 512
    "a7000000"  # 167 bytes
    "00"  # kind 0: records
    "00"  # role 0: no transaction
    "0100"  # producer epoch 1
    "0900000000000000"  # producer id 9
    "7b68e5cf8b010000"  # largest timestamp 1700000000123
    "05000000"  # base sequence 5
    "494df3fe"  # CRC-32C 0xfef34d49 of the 92 bytes before it
)
LOG_START_ENTRY = bytes.fromhex(
    "ea03000000000000"  # first id 1002
    "2900000000000000"  # first offset 41
    "0700000000000000"  # org 7
    "fe3bd977193282a3a3e9cd6a42964952"  # topic hash
    "02000000"  # partition 2
    "01000000"  # one id
    "de03000000000000"  # segment 990
    "a702000000000000"  # position 679
    "50000000"  # 80 bytes
    "01"  # kind 1: a start
    "00"  # role 0
    "ffff"  # no producer epoch
    "ffffffffffffffff"  # no producer id
    "c868e5cf8b010000"  # timestamp 1700000000200
    "ffffffff"  # no sequence
    "f3e7af8c"  # CRC-32C 0x8cafe7f3
)


def entries(count: int, *, first_id: int = SEGMENT, gap: int = 0, position: int = 0) -> bytes:
    """Return entries of *count* frames of three ids each, with *gap* ids missing between them."""
    packed = b""
    for number in range(count):
        owner = Owner(number % 3, OWNER.topic_hash, 0)
        said = Envelope(EnvelopeKind.RECORDS, owner, first_id, 3 * number, 3, 1_000 + number, 0, 200 + number)
        packed += pack_entry(said, BATCH, SEGMENT, position)
        first_id, position = said.next_id + gap, position + said.size
    return packed


def sound(data: bytes, *, dense: bool = True, end: int = 1 << 40, next_id: int = 1 << 40) -> int:
    return len(list(sound_entries(chunks(data), Expected(SEGMENT, SEGMENT, 0, dense, next_id, end))))


def chunks(data: bytes) -> list[bytes]:
    """Return whole entries, in pieces of two."""
    whole = data[: len(data) // ENTRY_SIZE * ENTRY_SIZE]
    return [whole[at : at + 2 * ENTRY_SIZE] for at in range(0, len(whole), 2 * ENTRY_SIZE)]


def test_an_entry_has_exactly_these_bytes() -> None:
    records, start = FRAMES[RECORDS_FRAME], FRAMES[LOG_START_FRAME]
    assert pack_entry(records, BATCH, SEGMENT, 512) == RECORDS_ENTRY
    assert pack_entry(start, b"", SEGMENT, 512 + 167) == LOG_START_ENTRY
    assert len(RECORDS_ENTRY) == len(LOG_START_ENTRY) == ENTRY_SIZE == 96


@pytest.mark.parametrize(("committed", "role"), [(True, 2), (False, 3)])
def test_the_entry_of_a_marker_has_its_role_and_the_epoch_of_the_coordinator(
    committed: bool, role: int
) -> None:
    marker = Marker(9, 1, committed, coordinator_epoch=77)
    content = batch.encode_marker(marker, 1_700_000_000_123, batch.BatchOptions(40, 3))
    said = Envelope(EnvelopeKind.RECORDS, OWNER, 1000, 40, 1, 1_700_000_000_123, 3, 80 + len(content))
    packed = pack_entry(said, content, SEGMENT, 512)
    assert packed[69:80] == bytes([role]) + RECORDS_ENTRY[70:80]
    assert packed[88:92] == (77).to_bytes(4, "little")
    entry = unpack_entry(packed, 0)
    assert (entry.marker, entry.stamp) == (marker, None)
    assert read_shared.role_of(bytes(content)) == role


def test_the_role_of_other_batches_is_in_their_attributes() -> None:
    """A control batch that is not about a transaction, or has no sound record, ends nothing."""
    said = FRAMES[RECORDS_FRAME]
    for attributes, role in ((0x00, 0), (0x10, 1), (0x20, 4), (0x30, 4), (0x14, 1)):
        changed = bytearray(BATCH)
        changed[22] = attributes
        entry = unpack_entry(pack_entry(said, changed, SEGMENT, 512), 0)
        assert (entry.role, entry.marker) == (role, None)
        stamp = None if role == 4 else (9, 1, 5, 6, role == 1)
        assert entry.stamp == stamp


def test_an_entry_says_all_that_its_envelope_says_and_where_that_is() -> None:
    both = RECORDS_ENTRY + LOG_START_ENTRY
    first, second = unpack_entry(both, 0), unpack_entry(both, 1)
    assert first == OwnerEntry(
        1000, 40, 7, OWNER.topic_hash, 2, 2, 990, 512, 167, 0, 0, 1, 9, 1_700_000_000_123, 5, 0xFEF34D49
    )
    assert (first.owner, first.next_id, first.next_offset, first.end) == (OWNER, 1002, 42, 679)
    # One that holds no records takes an id and no offset.
    assert (second.owner, second.next_id, second.next_offset, second.end) == (OWNER, 1003, 41, 759)


def test_another_reader_reads_the_same() -> None:
    first, second = read_shared.frames_of_index(RECORDS_ENTRY + LOG_START_ENTRY, SEGMENT)
    assert (first["first_id"], first["position"], first["count"]) == (1000, 512, 2)
    assert (second["kind"], second["first_offset"]) == (1, 41)


def test_every_turned_bit_ends_what_is_believed_there() -> None:
    """No entry after the damage is taken either: what follows is read from the log."""
    data = entries(4)
    assert sound(data) == 4
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert sound(bytes(changed)) == bit // 8 // ENTRY_SIZE
    print(f"{8 * len(data)} single-bit errors, each detected at its entry")


def test_a_file_that_is_cut_anywhere_has_its_whole_entries() -> None:
    data = entries(4)
    for size in range(len(data) + 1):
        assert sound(data[:size]) == size // ENTRY_SIZE
        # Garbage, or zeros, behind them.
        assert sound(data[:size] + bytes(200)) == size // ENTRY_SIZE


def test_entries_past_the_end_of_the_log_are_not_believed() -> None:
    """A power cut may leave the index longer than the log."""
    data = entries(4)
    positions = [unpack_entry(data, number).end for number in range(4)]
    for kept in range(4):
        end = positions[kept - 1] if kept else 0
        assert sound(data, end=end) == sound(data, end=end + 1) == kept
        assert sound(data, next_id=SEGMENT + 3 * kept) == sound(data, next_id=SEGMENT + 3 * kept + 2) == kept


def test_entries_of_another_segment_or_out_of_their_place_are_not_believed() -> None:
    data = entries(4)
    parts = [data[at : at + ENTRY_SIZE] for at in range(0, len(data), ENTRY_SIZE)]
    assert list(sound_entries([data], Expected(0, 0, 0, dense=False, end_id=1 << 40, end=1 << 40))) == []
    assert sound(parts[1] + parts[0]) == 0  # swapped
    assert sound(parts[0] + parts[0]) == 1  # repeated
    assert sound(parts[0] + parts[2]) == 1  # one is missing
    assert sound(entries(4, position=80)) == 0  # does not begin with the segment


def test_ids_may_have_gaps_only_where_frames_were_removed() -> None:
    data = entries(4, gap=2)
    assert sound(data, dense=True) == 1
    assert sound(data, dense=False) == 4
    assert sound(entries(4, first_id=SEGMENT - 1), dense=False) == 0


@given(st.integers(0, 40), st.integers(0, 3))
def test_whichever_id_is_asked_for_its_entry_is_found(count: int, gap: int) -> None:
    data = entries(count, gap=gap)
    for id_ in range(SEGMENT - 2, SEGMENT + (3 + gap) * count + 3):
        number, within = divmod(id_ - SEGMENT, 3 + gap)
        there = 0 <= number < count and within < 3
        expected = unpack_entry(data, number) if there else None
        assert find_entry(data, count, id_) == expected
        read = [data[at : at + ENTRY_SIZE] for at in range(0, len(data), ENTRY_SIZE)]
        assert find_read_entry(read.__getitem__, count, id_) == expected


def test_an_entry_with_a_turned_bit_is_not_found() -> None:
    """It may have turned since the log was opened. Others may be missed by it, and are found in the log."""
    data, turned = entries(5), 0
    for bit in range(0, 8 * len(data), 3):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        for id_ in range(SEGMENT, SEGMENT + 15):
            found = find_entry(bytes(changed), 5, id_)
            assert found in (None, unpack_entry(data, (id_ - SEGMENT) // 3))
        turned += 1
    print(f"{turned} bits turned")


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail(data: bytes) -> None:
    assert sound(data) == 0
    find_entry(data, len(data) // ENTRY_SIZE, 5)


@pytest.mark.parametrize("kind", [EnvelopeKind.LOG_START, EnvelopeKind.ENDED])
def test_a_frame_without_records_has_no_producer(kind: EnvelopeKind) -> None:
    entry = unpack_entry(pack_entry(Envelope(kind, OWNER, 5, 0, 1, 0, 0, 80), b"", 0, 0), 0)
    assert (entry.producer_id, entry.producer_epoch, entry.base_sequence) == (-1, -1, -1)
