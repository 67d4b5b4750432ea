"""The files beside stores without checksums: their bytes, as other programs would make them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import cordwood
from cordwood.disk.files import join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.formats.sidecar import ENTRY_SIZE, DenseIndexFile, SidecarEntry, SumFile

PAGE = Path(__file__).parents[2] / "docs/formats/directory.md"
NOON = 1_700_000_000_000


def files_of(format_: str) -> dict[str, bytes]:
    """Return the files of a segment with two records, by suffix."""
    files = MemoryFiles()
    with cordwood.open("/data", files=files) as log:
        topic = log.topic("t", config={"cordwood.format": format_})
        topic.append(b"first", partition=0, timestamp=NOON)
        topic.append(b"2", partition=0, timestamp=NOON)
    segments = "/data/topics/t/0/segments"
    return {name[21:]: read_file(files, join(segments, name)) for name in files.list(segments)}


def test_a_sum_file_is_what_the_page_shows() -> None:
    golden = bytes.fromhex(
        "0000000000000000"  # position of the first record
        "00000019"  # its length: a header of 20 bytes, and 5
        "244bf25e"  # its CRC-32C, as the next test makes it without ours
        "0000000000000019"
        "00000015"
        "97b7f771"
    )
    assert files_of("rustlog")["sum"] == golden
    shown = PAGE.read_text().replace(" ", "").replace("\n", "")
    assert golden.hex() in shown


def test_a_sum_file_has_the_checksums_of_a_plain_crc() -> None:
    """CRC-32C by its polynomial, bit by bit."""
    files = files_of("rustlog")
    assert len(files["sum"]) == 32
    for position, length, checksum in struct.iter_unpack(">QII", files["sum"]):
        crc = 0xFFFFFFFF
        for byte in files["log"][position : position + length]:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        assert crc ^ 0xFFFFFFFF == checksum


def test_a_dense_index_begins_with_its_base_and_has_an_entry_for_every_record() -> None:
    files = files_of("laminarmq")
    assert "idx" not in files
    base, zero = struct.unpack("<QQ", files["index"][:16])
    assert (base, zero) == (0, 0)
    position = 0
    for checksum, length, at in struct.iter_unpack("<QII", files["index"][16:]):
        assert at == position
        assert checksum == zlib.crc32(files["log"][at : at + length])
        position += length
    assert position == len(files["log"])


def test_entries_are_packed_and_unpacked_and_a_piece_of_one_is_left_out() -> None:
    for sidecar in (SumFile(20), DenseIndexFile(21)):
        packed = sidecar.pack(100, [30, 0, 50], [7, 0, (1 << 32) - 1])
        expected = [SidecarEntry(100, 30, 7), SidecarEntry(130, 0, 0), SidecarEntry(130, 50, (1 << 32) - 1)]
        for cut in range(len(packed) + 1):
            assert list(sidecar.unpack(packed[:cut])) == expected[: cut // ENTRY_SIZE]
        assert len(sidecar.head(9)) == sidecar.head_size


def test_a_checksum_grows_chunk_by_chunk() -> None:
    data = bytes(range(256)) * 3
    for sidecar in (SumFile(20), DenseIndexFile(21)):
        whole = sidecar.checksum(b"xx" + data + b"yy", 2, 2 + len(data))
        growing = 0
        for start in range(0, len(data), 100):
            growing = sidecar.extend(growing, data[start : start + 100])
        assert growing == whole
