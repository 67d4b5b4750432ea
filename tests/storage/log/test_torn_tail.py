"""Torn tails: whatever a crash leaves of writes that were never synced, only those writes are lost.

All of it is checked for every number of bytes that reached the disk, with what follows them absent,
zeros or garbage. The garbage comes from a fixed seed, which a failing test names.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
from support.disks import image
from support.logs import (
    DATA,
    SMALL,
    Damage,
    Image,
    contents_of,
    disk_of,
    frames_of,
    look,
    open_log,
    partition_path,
    segment_file,
)
from support.seeds import seed_or

from cordwood.disk.files import join
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CorruptRange
from cordwood.records import Record
from cordwood.storage.log.opening import RecoveryReport

SEED = seed_or(20_240_607)
QUARANTINE = join(DATA, "quarantine")
NOTHING = Damage((), derived=True)

Tail = Callable[[bytes], bytes]


def _garbage(written: bytes) -> bytes:
    return random.Random(SEED + len(written)).randbytes(90)


TAILS: dict[str, Tail] = {
    "absent": lambda written: b"",
    "zeros": lambda written: bytes(300),
    "garbage": _garbage,
    "garbage then zeros": lambda written: _garbage(written) + bytes(200),
}


@dataclass(frozen=True)
class Torn:
    """A disk on which everything but one frame at the end of a segment is synced."""

    image: Image
    path: str
    synced: bytes
    frame: bytes
    records: tuple[Record, ...]
    lost: tuple[Record, ...]

    def disk(self, tail: bytes) -> MemoryFiles:
        """Return the disk with *tail* where the frame was."""
        return disk_of(self.image, {self.path: self.synced + tail})


@cache
def torn(where: str) -> Torn:
    """A frame of three records that was written and never synced: behind others, first of a new segment,
    or after a truncation."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("orders", 1, SMALL)
        for i in range(10 if where == "new segment" else 8):
            topic.append(b"synced-%02d" % i)
        if where == "truncated":
            topic.truncate(0, 7)
        if where == "new segment":
            topic.roll()
    log = open_log(files, sync="never")
    topic = log.topic("orders")
    base = topic.append_many([(b"k", b"torn"), (None, b""), (b"k", None, (), 5)])[0].offset
    left = image(files, DATA)
    records = tuple(topic.read(0))
    assert not files.exists(join(DATA, "meta", "clean"))
    log.close()
    path = max(path for path in left if path.endswith(".log") and "/segments/" in path)
    data = left[path]
    assert data is not None
    start = frames_of(data)[-1][0]
    return Torn(left, path, data[:start], data[start:], records[:base], records[base:])


def recovered(files: MemoryFiles) -> tuple[RecoveryReport, list[Record], Image]:
    """Open after a crash and crash again; return the report, what can be read, and what is on disk then."""
    log = open_log(files)
    (report,) = log.reports
    records = list(log.topic("orders").read(0))
    left = image(files, DATA)
    log.close()
    return report, records, left


def quarantined(left: Image) -> list[bytes]:
    return [data for path, data in left.items() if path.startswith(f"{QUARANTINE}/") and data is not None]


WHERE = ["behind others", "new segment", "truncated"]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("where", WHERE)
def test_reopen_after_a_torn_tail_keeps_every_synced_record(where: str, tail: str) -> None:
    """However many bytes of the last, unsynced frame reached the disk, only that frame is lost.

    It is kept when it is whole. What is cut and not zero lies in the quarantine, byte for byte.
    """
    case = torn(where)
    for kept in range(len(case.frame) + 1):
        written = case.frame[:kept] + TAILS[tail](case.frame[:kept])
        whole = written.startswith(case.frame)
        report, records, left = recovered(case.disk(written))
        about = f"{kept} bytes, seed {SEED}"
        assert records == [*case.records, *(case.lost if whole else ())], about
        rest = written[len(case.frame) :] if whole else written
        assert left[case.path] == case.synced + (case.frame if whole else b""), about
        assert quarantined(left) == ([rest] if any(rest) else []), about
        assert report.truncated_bytes == len(rest.rstrip(b"\0")), about
        assert report.kept_bytes == (len(case.frame) if whole else 0), about
        assert report.scanned_bytes == len(written), about
        assert (report.quarantined is not None) == any(rest), about
        assert not report.whole_frame_cut, about
        assert report.damage is None, about
        if report.quarantined is not None:
            assert left[report.quarantined] == rest, about
    print(f"{where}, {tail}: {len(case.frame) + 1} tails")


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("where", WHERE)
def test_after_a_torn_tail_appends_go_on_and_nothing_is_lost(where: str, tail: str) -> None:
    """Recover, append, close, recover: offsets are dense, and what was cut never comes back."""
    case = torn(where)
    for kept in range(len(case.frame) + 1):
        written = case.frame[:kept] + TAILS[tail](case.frame[:kept])
        files = case.disk(written)
        with open_log(files) as log:
            topic = log.topic("orders")
            before = list(topic.read(0))
            placed = [topic.append(b"later-%d" % i).offset for i in range(4)]
            assert placed == list(range(len(before), len(before) + 4)), f"{kept} bytes, seed {SEED}"
        kept_bytes = quarantined(image(files, DATA))
        with open_log(files) as log:
            after = list(log.topic("orders").read(0))
            assert all(report.clean for report in log.reports), f"{kept} bytes, seed {SEED}"
        assert [record.offset for record in after] == list(range(len(after))), f"{kept} bytes, seed {SEED}"
        assert after[: len(before)] == before, f"{kept} bytes, seed {SEED}"
        assert [record.value for record in after[len(before) :]] == [b"later-%d" % i for i in range(4)]
        assert quarantined(image(files, DATA)) == kept_bytes


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("where", WHERE)
def test_recovering_twice_gives_the_same_bytes(where: str, tail: str) -> None:
    """Recovery is deterministic, and after a crash right behind it has nothing left to do (R3)."""
    case = torn(where)
    for kept in range(0, len(case.frame) + 1, 3):
        written = case.frame[:kept] + TAILS[tail](case.frame[:kept])
        report, records, once = recovered(case.disk(written))
        same_report, same_records, same = recovered(case.disk(written))
        assert (same_report, same_records, same) == (report, records, once), f"{kept} bytes, seed {SEED}"
        again_report, again_records, again = recovered(disk_of(once))
        assert again_records == records, f"{kept} bytes, seed {SEED}"
        assert again_report.clean, f"{kept} bytes, seed {SEED}: {again_report}"
        assert _records_on(again) == _records_on(once), f"{kept} bytes, seed {SEED}"


def _records_on(left: Image) -> Image:
    """Everything but `meta/`, where opening counts its own marks up and says who holds the lock."""
    return {path: data for path, data in left.items() if not path.startswith(join(DATA, "meta"))}


@pytest.mark.parametrize("where", WHERE)
def test_a_whole_frame_behind_garbage_is_cut_and_reported(where: str) -> None:
    """A good frame in a torn tail means that more than the last write was lost: someone should look."""
    case = torn(where)
    for gap in (1, 16, 17, 61, 100, 300):
        garbage = random.Random(SEED + gap).randbytes(gap)
        for tail in (garbage + case.frame, garbage + case.frame + garbage, garbage + bytes(50) + case.frame):
            report, records, left = recovered(case.disk(tail))
            assert records == list(case.records), f"gap {gap}, seed {SEED}"
            assert report.whole_frame_cut, f"gap {gap}, seed {SEED}"
            assert quarantined(left) == [tail], f"gap {gap}, seed {SEED}"


@pytest.mark.parametrize("where", WHERE)
def test_a_frame_behind_zeros_is_cut_and_reported(where: str) -> None:
    """Zeros end the log, whatever comes after them; what comes after them is kept aside."""
    case = torn(where)
    for gap in (1, 4, 8, 60, 61, 62, 500):
        tail = bytes(gap) + case.frame
        report, records, left = recovered(case.disk(tail))
        assert records == list(case.records), f"gap {gap}"
        assert report.whole_frame_cut, f"gap {gap}"
        assert quarantined(left) == [tail], f"gap {gap}"


@pytest.mark.parametrize("where", WHERE)
def test_zeros_are_never_records(where: str) -> None:
    """Preallocated space is the normal end of a segment: cut without a word, and nothing to keep aside."""
    case = torn(where)
    for length in [*range(140), 512, 4096, 1 << 20]:
        report, records, left = recovered(case.disk(bytes(length)))
        assert records == list(case.records), f"{length} zeros"
        assert left[case.path] == case.synced, f"{length} zeros"
        assert QUARANTINE not in left, f"{length} zeros"
        assert report.truncated_bytes == 0, f"{length} zeros"


def test_zeros_below_the_mark_are_corruption_not_an_end() -> None:
    """Where records were synced, zeros are refused by name; the log does not end there."""
    case = torn("behind others")
    first, *_ = frames_of(case.synced)
    for start in (0, first[1]):
        zeroed = case.synced[:start] + bytes(len(case.synced) - start)
        log = open_log(disk_of(case.image, {case.path: zeroed}))
        topic = log.topic("orders")
        assert topic.high_watermark(0) >= len(case.records)
        base = int(case.path[-24:-4])
        with pytest.raises(CorruptRange) as caught:
            list(topic.read(0, base + (1 if start else 0)))
        assert caught.value.path == case.path
        assert caught.value.position == start
        log.close()


@pytest.mark.parametrize("written", ["once", "with a stale epoch", "with a gap", "twice"])
def test_a_whole_frame_that_does_not_follow_is_not_kept(written: str) -> None:
    """After the mark a frame must be of this epoch and at the next offset, or it is no continuation."""
    case = torn("truncated")
    stale = case.frame[:12] + bytes(4) + case.frame[16:]
    gap = (int.from_bytes(case.frame[:8], "big") + 1).to_bytes(8, "big") + case.frame[8:]
    tails = {
        "once": case.frame,
        "with a stale epoch": stale,
        "with a gap": gap,
        "twice": case.frame + case.frame,
    }
    report, records, left = recovered(case.disk(tails[written]))
    kept = written in ("once", "twice")
    assert records == [*case.records, *(case.lost if kept else ())]
    cut = {"once": b"", "twice": case.frame}.get(written, tails[written])
    assert quarantined(left) == ([cut] if cut else [])
    assert report.whole_frame_cut == bool(cut)


def test_many_unsynced_frames_leave_the_longest_sound_prefix() -> None:
    """Of several unsynced frames, those before the tear are whole and stay; nothing behind it does."""
    files = MemoryFiles()
    with open_log(files) as log:
        log.topic("orders").append(b"synced")
    log = open_log(files, sync="never")
    for i in range(6):
        log.topic("orders").append(b"unsynced-%d" % i)
    left, records = image(files, DATA), list(log.topic("orders").read(0))
    log.close()
    path = segment_file("orders", 0, 0)
    data = left[path]
    assert data is not None
    spans = frames_of(data)
    for torn_at, (start, end) in enumerate(spans[1:], start=1):
        for byte in range(start, end, 7):
            changed = bytearray(data)
            changed[byte] ^= 0xFF
            report, found, now = recovered(disk_of(left, {path: bytes(changed)}))
            assert found == records[:torn_at], f"byte {byte}"
            assert quarantined(now) == [bytes(changed[start:])], f"byte {byte}"
            # Offset and epoch are not under the checksum: with those wrong it is still a whole frame.
            whole = torn_at < len(spans) - 1 or byte - start < 16
            assert whole or not report.whole_frame_cut, f"byte {byte}"
            assert report.whole_frame_cut or torn_at == len(spans) - 1, f"byte {byte}"


@pytest.mark.parametrize("tail", TAILS)
def test_a_torn_entry_of_the_catalogue_costs_only_that_topic(tail: str) -> None:
    """A topic whose creation was never synced is there whole or not at all; the others stay, always."""
    files = MemoryFiles()
    with open_log(files) as log:
        log.topic("orders").append(b"1")
    path = join(DATA, "meta", "catalogue.log")
    before = image(files, DATA)
    with open_log(files) as log:
        log.topic("second", 3)
    synced, data = before[path], image(files, DATA)[path]
    assert synced is not None
    assert data is not None
    entry = data[len(synced) :]
    for kept in range(len(entry) + 1):
        written = entry[:kept] + TAILS[tail](entry[:kept])
        whole = written.startswith(entry)
        files = disk_of(before, {path: synced + written}, gone=[join(DATA, "meta", "clean")])
        about = f"{kept} bytes, seed {SEED}"
        with open_log(files) as log:
            assert log.topics == (["orders", "second"] if whole else ["orders"]), about
            assert log.topic("second", 3).partitions == 3, about
            assert log.topic("second").append(b"2", partition=2).offset == 0, about
        rest = written[len(entry) :] if whole else written
        assert quarantined(image(files, DATA)) == ([rest] if any(rest) else []), about
        assert not look(files, contents_of(files), NOTHING), about
        with open_log(files) as log:
            assert log.topics == ["orders", "second"], about


def test_the_mark_of_a_partition_does_not_move_for_bytes_that_are_not_synced() -> None:
    """The premise of all the above: an unsynced frame lies behind the mark."""
    for where in WHERE:
        case = torn(where)
        mark = case.image[partition_path("orders", 0, "mark")]
        assert mark is not None
        slots = [mark[start : start + 68] for start in (0, 512)]
        newest = max((slot for slot in slots if slot[:4] == b"CWMK"), key=lambda slot: slot[8:16])
        assert int.from_bytes(newest[24:32], "big") == len(case.synced), where
