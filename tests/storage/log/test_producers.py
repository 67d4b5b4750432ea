"""Idempotent producers: no batch is stored twice, whatever is retried, killed or damaged (O6, D4, R5)."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.clocks import HookedFiles
from support.disks import FaultPlan, FaultyFiles, image
from support.logs import disk_of, frames_of
from support.patience import SECONDS_MAX
from support.producing import (
    DATA,
    DIRECTORY,
    ROLLING,
    SEQUENCES,
    SNAPSHOT,
    Bench,
    Sent,
    send,
    snapshot_in,
    snapshots_every,
    stored_batches,
)

from cordwood.disk.checked_json import write_metadata
from cordwood.disk.files import Files, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, LogFailed, OutOfSequence, ProducerFenced, StorageError
from cordwood.formats.format import ProducerStamp
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.storage.log.producers import (
    BATCHES_KEPT,
    KnownProducer,
    Producers,
    ProducersSnapshot,
    StoredBatch,
)
from cordwood.storage.log.producers import known as producers_known

LAST = SEQUENCES - 1


# --- What is known of producers, by itself ----------------------------------------------------------


def stamp(first: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> ProducerStamp:
    return ProducerStamp(producer, epoch, first, (first + count - 1) % SEQUENCES)


def noted(*stamps: ProducerStamp, now_ms: int = 0) -> Producers:
    """Return producers that appended these one after the other, a record a sequence number."""
    known, offset = Producers(), 0
    for each in stamps:
        count = (each.last_sequence - each.first_sequence) % SEQUENCES + 1
        assert known.find_original(each) is None
        known.note(each, offset, offset + count, now_ms)
        offset += count
    return known


def test_a_repeated_batch_is_found_among_the_last_five_and_refused_before_them() -> None:
    """What is too old to say is refused: it may be stored, so it must not be stored again."""
    stamps = [stamp(2 * i, 2) for i in range(9)]
    known = noted(*stamps)
    for i, each in enumerate(stamps[-BATCHES_KEPT:], start=9 - BATCHES_KEPT):
        assert known.find_original(each) == StoredBatch(2 * i, 2 * i + 1, 2 * i, 2 * i + 2)
    for each in stamps[:-BATCHES_KEPT]:
        with pytest.raises(OutOfSequence) as refused:
            known.find_original(each)
        assert (refused.value.sequence, refused.value.expected) == (each.first_sequence, 18)


@pytest.mark.parametrize(("first", "count"), [(3, 1), (4, 1), (2, 3), (3, 2), (4, 3), (6, 1), (0, 5)])
def test_a_batch_that_is_neither_a_repetition_nor_the_next_one_is_refused(first: int, count: int) -> None:
    """Half a repetition cannot be answered with the offsets of a whole one."""
    known = noted(stamp(0, 2), stamp(2, 1), stamp(3, 2))
    if (first, count) == (3, 2):
        assert known.find_original(stamp(3, 2)) is not None
    else:
        with pytest.raises(OutOfSequence, match="but 5 comes next"):
            known.find_original(stamp(first, count))
    assert known.find_original(stamp(5, 1)) is None


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("before", [1, 2, 4])
def test_sequences_go_on_at_0_after_the_largest(before: int, count: int) -> None:
    """At the edge of the numbers, and in batches that reach over it."""
    edge = stamp(SEQUENCES - before, count)
    known = noted(edge)
    assert known.find_original(edge) == StoredBatch(edge.first_sequence, edge.last_sequence, 0, count)
    following = (SEQUENCES - before + count) % SEQUENCES
    assert known.find_original(stamp(following)) is None
    with pytest.raises(OutOfSequence, match=f"but {following} comes next"):
        known.find_original(stamp((following + 1) % SEQUENCES))
    known.note(stamp(following), count, count + 1, 0)
    assert known.find_original(edge) is not None
    assert known.find_original(stamp((following + 1) % SEQUENCES)) is None


def test_a_later_epoch_begins_at_0_and_fences_the_one_before() -> None:
    known = noted(stamp(0), stamp(1))
    with pytest.raises(OutOfSequence, match="but 0 comes next"):
        known.find_original(stamp(2, epoch=1))
    # The same numbers as before are not a repetition: they are another's.
    assert known.find_original(stamp(0, epoch=1)) is None
    known.note(stamp(0, epoch=1), 2, 3, 0)
    for sequence in (0, 1, 2):
        with pytest.raises(ProducerFenced) as refused:
            known.find_original(stamp(sequence))
        assert (refused.value.epoch, refused.value.current) == (0, 1)
    assert known.find_original(stamp(0, epoch=1)) == StoredBatch(0, 0, 2, 3)
    assert known.find_original(stamp(1, epoch=1)) is None
    with pytest.raises(OutOfSequence, match="but 1 comes next"):
        known.find_original(stamp(2, epoch=1))


@pytest.mark.parametrize("first", [0, 1, 4711, LAST])
def test_a_producer_that_nobody_knows_may_begin_anywhere(first: int) -> None:
    known = noted(stamp(0, producer=1))
    assert known.find_original(stamp(first, producer=2, epoch=3)) is None


def test_producers_do_not_disturb_each_other() -> None:
    known = noted(*(stamp(i, producer=producer) for i in range(7) for producer in range(4)))
    assert len(known) == 4
    for producer in range(4):
        assert known.find_original(stamp(6, producer=producer)) == StoredBatch(
            6, 6, 24 + producer, 25 + producer
        )
        assert known.find_original(stamp(7, producer=producer)) is None


def test_producers_expire_by_a_sweep_and_never_by_the_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps must not make a retry pass for a new batch; a full house is swept."""
    monkeypatch.setattr(producers_known, "SWEEP_COUNT", 4)
    known = noted(stamp(0, producer=1), stamp(0, producer=2), stamp(0, producer=3), now_ms=100)
    known.expire(10**15)
    assert len(known) == 3
    assert known.find_original(stamp(0, producer=1)) is not None
    known.note(stamp(0, producer=4), 3, 4, 500)
    known.expire(101)
    assert len(known) == 1
    assert known.find_original(stamp(0, producer=4)) is not None
    assert known.find_original(stamp(9, producer=1)) is None


def test_a_sweep_that_finds_nothing_to_forget_waits_until_their_number_has_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A house full of producers that are alive is not searched at every append."""
    monkeypatch.setattr(producers_known, "SWEEP_COUNT", 4)
    known = Producers()
    sizes = []
    for i in range(40):
        known.note(stamp(0, producer=i), i, i + 1, i)
        known.expire(0 if i < 20 else i - 1)
        sizes.append(len(known))
    assert sizes[:20] == list(range(1, 21))
    # Swept at 4, 8 and 16 in vain; at 32 all but the last two are older than the limit.
    assert sizes[30:32] == [31, 2]


def test_a_cut_forgets_what_was_cut_and_keeps_the_rest() -> None:
    known = noted(*(stamp(i, producer=1) for i in range(4)), stamp(0, producer=2))
    known.cut(3)
    assert known.find_original(stamp(2, producer=1)) == StoredBatch(2, 2, 2, 3)
    assert known.find_original(stamp(3, producer=1)) is None
    assert known.find_original(stamp(5, producer=2)) is None
    with pytest.raises(OutOfSequence, match="but 3 comes next"):
        known.find_original(stamp(4, producer=1))


def test_a_cut_inside_a_batch_keeps_what_the_log_keeps_of_it() -> None:
    """The log keeps its first records; sent again whole, they would be there twice."""
    known = noted(stamp(0, 3), stamp(LAST - 1, 4, producer=8))
    known.cut(5)
    assert known.known() == (
        KnownProducer(7, 0, (StoredBatch(0, 2, 0, 3),), 0),
        KnownProducer(8, 0, (StoredBatch(LAST - 1, LAST, 3, 5),), 0),
    )
    with pytest.raises(OutOfSequence, match="but 0 comes next"):
        known.find_original(stamp(LAST - 1, 4, producer=8))
    known.cut(1)
    assert known.known() == (KnownProducer(7, 0, (StoredBatch(0, 0, 0, 1),), 0),)


# --- A partition that idempotent producers write to ---------------------------------------------------


def known(log: PartitionLog) -> dict[int, tuple[int, tuple[StoredBatch, ...]]]:
    """What the log knows of its producers, but for when it last heard of them."""
    known = log.known_producers.learn(0).known()
    return {producer.id: (producer.epoch, producer.batches) for producer in known}


def in_turn(count: int, *, ids: int = 3, epoch: int = 0, first: int = 0, size: int = 6) -> list[Sent]:
    """Batches of one, two and three records by producers that take turns."""
    sequences = [0] * ids
    sent = []
    for i in range(count):
        values = tuple(b"%d-%d-%d" % (epoch, first + i, j) + b"." * size for j in range(1 + i % 3))
        sent.append(Sent(10 + i % ids, epoch, sequences[i % ids], values))
        sequences[i % ids] += len(values)
    return sent


def send_all(log: PartitionLog, batches: list[Sent]) -> list[tuple[Sent, int]]:
    """Send each batch, have it acknowledged, and return where it is."""
    placed = []
    for each in batches:
        base, next_offset = send(log, each)
        log.commit(next_offset)
        placed.append((each, base))
    return placed


def newest(placed: list[tuple[Sent, int]]) -> list[tuple[Sent, int]]:
    """The last five batches of each producer."""
    seen: Counter[int] = Counter()
    found = []
    for sent, base in reversed(placed):
        seen[sent.producer] += 1
        if seen[sent.producer] <= BATCHES_KEPT:
            found.append((sent, base))
    return found[::-1]


def check_repeated(log: PartitionLog, placed: list[tuple[Sent, int]]) -> None:
    """Every batch that may be sent again gets the offsets of the original, and nothing is appended."""
    end = log.log_end_offset
    for sent, base in newest(placed):
        assert send(log, sent) == (base, base + len(sent.values)), sent
    assert log.log_end_offset == end
    last = {sent.producer: sent for sent, _ in placed}
    for sent in last.values():
        with pytest.raises(OutOfSequence):
            send(log, sent._replace(sequence=sent.next_sequence + 1))
    assert log.log_end_offset == end


@pytest.mark.parametrize("timestamps", ["CreateTime", "LogAppendTime"])
def test_a_repeated_batch_gets_the_offsets_of_the_original_and_appends_nothing(timestamps: str) -> None:
    bench = Bench(settings={"message.timestamp.type": timestamps})
    log = bench.open()
    placed = send_all(log, in_turn(30))
    size = log.size()
    check_repeated(log, placed)
    assert log.size() == size
    assert stored_batches(log) == placed
    bench.close()


@pytest.mark.parametrize("settings", [{}, ROLLING], ids=["one segment", "many segments"])
@pytest.mark.parametrize("snapshots", [1, 700, 1 << 30], ids=["always", "sometimes", "never"])
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_what_is_known_of_producers_outlives_the_process(
    how: str, snapshots: int, settings: dict[str, str]
) -> None:
    """Saved, replayed, or both: it is what it was, and so is every answer (O6)."""
    bench = Bench(settings=settings)
    with snapshots_every(snapshots):
        log = bench.open()
        placed = send_all(log, in_turn(31))
        placed += send_all(log, in_turn(8, epoch=1))
        before = known(log)
        assert {epoch for epoch, _ in before.values()} == {1}
        if how == "closed":
            bench.close()
        again = bench.left()
        assert again.files.exists(SNAPSHOT) == (how == "closed" or snapshots < 1 << 30)
        if how == "killed" and snapshots == 700:
            assert again.saved().next_offset < log.log_end_offset, "nothing is left to replay"
        log = again.open()
        assert known(log) == before
        check_repeated(log, placed[-8:])
        with pytest.raises(ProducerFenced):
            send(log, placed[0][0])
        assert stored_batches(log) == placed
        again.close()


def versions_of(data: bytes) -> dict[str, bytes]:
    """A snapshot as rot, a torn write or a later version of Cordwood could leave it."""
    body = msgspec.json.decode(data)["body"]
    files = MemoryFiles()

    def written(**changes: object) -> bytes:
        fields: list[Any] = [(name, type(value)) for name, value in {**body, **changes}.items()]
        write_metadata(files, "/s", msgspec.defstruct("Later", fields)(**{**body, **changes}))
        return read_file(files, "/s")

    return {
        "as it was": data,
        "empty": b"",
        "zeros": bytes(len(data)),
        "torn": data[: len(data) // 2],
        "doubled": data + data,
        "a flipped bit of a number": data.replace(b'"epoch":0', b'"epoch":1', 1),
        "without its checksum": msgspec.json.encode(body),
        # These would be believed if only their checksum were asked, and they know nobody.
        "of a later format": written(format=3, producers=[]),
        "of another topic": written(topic_id="id-2", producers=[]),
        "of another partition": written(partition=1, producers=[]),
        "of an earlier format": written(format=0, producers=[]),
        "with a field that we do not know": written(transactions=[1]),
        "not JSON": b"\xff\xfe" * 40,
        "of another kind": b'{"crc32c":"00000000","body":{}}',
    }


def test_a_snapshot_that_is_damaged_or_gone_costs_time_and_no_answer() -> None:
    """R5: what the log says is what was saved, so the snapshot may be lost in any way."""
    bench = Bench(settings=ROLLING)
    with snapshots_every(700):
        log = bench.open()
        placed = send_all(log, in_turn(25))
        before = known(log)
        versions = versions_of(read_file(bench.files, SNAPSHOT))
        for name, data in versions.items():
            again = bench.left({SNAPSHOT: data})
            log = again.open()
            assert known(log) == before, name
            check_repeated(log, placed)
            again.close()
        again = bench.left(gone=(SNAPSHOT,))
        assert known(again.open()) == before
    assert len(versions) == 14


def test_a_snapshot_that_reaches_beyond_the_log_is_not_believed() -> None:
    """It is of a longer log, as a restore of one file leaves it: what it knows of is not here."""
    bench = Bench()
    log = bench.open()
    batches = [Sent(7, 0, i, (b"%d" % i,)) for i in range(6)]
    placed = send_all(log, batches[:4])
    short = bench.left()
    send_all(log, batches[4:])
    bench.close()
    log = short.left({SNAPSHOT: read_file(bench.files, SNAPSHOT)}).open()
    check_repeated(log, placed)
    assert send(log, batches[4]) == (4, 5)
    assert send(log, batches[5]) == (5, 6)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_snapshot_that_cannot_be_read_is_not_needed(code: int) -> None:
    bench = Bench()
    placed = send_all(bench.open(), in_turn(5))
    bench.close()
    hooked = HookedFiles(disk_of(image(bench.files, DATA)))
    refused = []

    def refuse(kind: str, path: str) -> None:
        if path == SNAPSHOT and kind == "open":
            refused.append(path)
            raise OSError(code, "refused", path)

    hooked.before = refuse
    check_repeated(Bench(hooked).open(), placed)
    assert refused


def test_a_snapshot_from_before_is_as_good_as_the_last_one() -> None:
    """Whichever of them a restore brings back, the rest is replayed."""
    bench = Bench(settings=ROLLING)
    with snapshots_every(200):
        log = bench.open()
        placed, snapshots = [], set()
        for each in in_turn(40):
            placed += send_all(log, [each])
            if bench.files.exists(SNAPSHOT):
                snapshots.add(read_file(bench.files, SNAPSHOT))
        before = known(log)
        for data in snapshots:
            assert known(bench.left({SNAPSHOT: data}).open()) == before
    assert len(snapshots) >= 10


@pytest.mark.parametrize("snapshots", [1, 1 << 30])
def test_records_that_retention_removed_are_still_known_from_the_snapshot(snapshots: int) -> None:
    """The log start may be beyond all that the snapshot covers: then the two do not even touch."""
    bench = Bench(settings=ROLLING)
    with snapshots_every(snapshots):
        log = bench.open()
        placed = send_all(log, in_turn(12))
        bench.close()
        log = bench.open()
        for i in range(20):
            log.append([(None, b"plain %d" % i)])
        log.commit()
        log.roll()
        log.advance_log_start(log.high_watermark)
        placed += send_all(log, [Sent(99, 0, 5, (b"x", b"y"))])
        before = known(log)
        assert len(log.state.sealed) == 0
        again = bench.left()
        assert known(again.open()) == before
        check_repeated(again.data.partitions.own("orders", 0), placed)


def test_a_log_that_starts_within_a_batch_knows_that_batch() -> None:
    """Its last records are still there; sent again, they would be there twice."""
    bench = Bench()
    log = bench.open()
    sent = Sent(7, 0, 0, (b"a", b"b", b"c"))
    send_all(log, [sent])
    log.advance_log_start(2)
    again = bench.left(gone=(SNAPSHOT,))
    assert send(again.open(), sent) == (0, 3)


@pytest.mark.parametrize("learnt", [True, False], ids=["by this process", "by the one before"])
def test_a_producer_goes_on_though_its_newest_records_were_removed(learnt: bool) -> None:
    """They are newer than the snapshot: unless it is renewed, the producer is taken for one that skips."""
    bench = Bench(settings=ROLLING)
    log = bench.open()
    first = send_all(log, [Sent(7, 0, 0, (b"a",))])
    bench.close()
    log = bench.open()
    later = send_all(log, [Sent(7, 0, 1 + i, (b"%d" % i,)) for i in range(4)])
    if not learnt:
        bench = bench.left()
        log = bench.open()
    log.roll()
    log.advance_log_start(5)
    assert log.state.sealed == ()
    log = bench.left().open()
    check_repeated(log, first + later)
    assert send(log, Sent(7, 0, 5, (b"next",))) == (5, 6)


def test_the_worked_example_of_a_snapshot_is_its_bytes() -> None:
    page = Path(__file__).parents[3] / "docs/formats/directory.md"
    (example,) = (line for line in page.read_text().splitlines() if line.startswith('{"crc32c"'))
    bench = Bench()
    log = bench.open()
    log.append([(None, b"nobody's")] * 3)
    send_all(log, [Sent(1000, 0, 0, (b"a", b"b")), Sent(1000, 0, 2, (b"c",))])
    bench.close()
    assert read_file(bench.files, SNAPSHOT).decode() == example
    log = bench.open()
    assert send(log, Sent(1000, 0, 0, (b"a", b"b"))) == (3, 5)
    with pytest.raises(OutOfSequence, match="but 3 comes next"):
        send(log, Sent(1000, 0, 4, (b"e",)))


# --- Truncated and grown again ------------------------------------------------------------------------


def regrow(log: PartitionLog, end: int) -> None:
    """Append what no producer signed until the log reaches *end* again."""
    while log.log_end_offset < end:
        log.append([(None, b"another %d" % log.log_end_offset)])
    log.commit()


@pytest.mark.parametrize("regrown", [False, True], ids=["short", "grown again"])
@pytest.mark.parametrize("snapshot", ["of the truncation", "from before", "none"])
@pytest.mark.parametrize("cut", range(13))
def test_no_truncated_batch_passes_for_a_duplicate(cut: int, snapshot: str, regrown: bool) -> None:
    """A snapshot of what was cut is not believed, even where other records have its offsets now.

    The crash is right after the truncation was committed where the snapshot is the one from before it.
    """
    bench = Bench(settings=ROLLING)
    batches = [Sent(10 + i % 2, 0, i // 2, (b"%d" % i,)) for i in range(12)]
    log = bench.open()
    placed = send_all(log, batches[:9])
    bench.close()
    saved = bench.saved()
    before = read_file(bench.files, SNAPSHOT)
    assert saved.next_offset == 9
    log = bench.open()
    placed += send_all(log, batches[9:])
    log.truncate(cut)
    if regrown:
        regrow(log, 12)
    again = bench.left(
        {SNAPSHOT: before} if snapshot == "from before" else None,
        (SNAPSHOT,) if snapshot == "none" else (),
    )
    log = again.open()
    kept, gone = placed[:cut], placed[cut:]
    end = log.log_end_offset
    # The first batch of each producer was not among its last five when the log was cut.
    sure = kept if snapshot != "of the truncation" or cut == 12 else kept[2:]
    for sent, base in newest(kept):
        if (sent, base) in sure:
            assert send(log, sent) == (base, base + 1)
    assert log.log_end_offset == end
    for i, (sent, _) in enumerate(gone):
        assert send(log, sent) == (end + i, end + i + 1), "a batch that is not stored was called a duplicate"
    log.commit()
    assert stored_batches(log) == kept + [(sent, end + i) for i, (sent, _) in enumerate(gone)]


@pytest.mark.parametrize("cut", range(1, 12))
def test_what_is_known_after_a_truncation_is_what_the_log_says(cut: int) -> None:
    """R5, also where the cut goes through a batch: what is left of it is not stored a second time."""
    bench = Bench(settings=ROLLING)
    log = bench.open()
    send_all(log, [Sent(10 + i % 2, 0, 3 * (i // 2), (b"a", b"b", b"c")) for i in range(4)])
    log.truncate(cut)
    after = known(log)
    assert known(bench.left().open()) == after
    again = bench.left(gone=(SNAPSHOT,))
    log = again.open()
    assert known(log) == after
    if cut % 3:
        with pytest.raises(OutOfSequence):
            send(log, Sent(10 + cut // 3 % 2, 0, cut // 3 // 2 * 3, (b"a", b"b", b"c")))
    assert log.log_end_offset == cut


# --- When what is known is saved, and when it is read again -------------------------------------------


class SyncedLogs(HookedFiles):
    """Notes how much of every log is synced, and what each new snapshot covers beyond that."""

    def __init__(self, inner: Files) -> None:
        super().__init__(inner)
        self.snapshots: list[ProducersSnapshot] = []
        self.ahead: list[ProducersSnapshot] = []
        self._synced: dict[str, bytes] = {}

    def call(self, kind: str, path: str, perform: Callable[[], Any]) -> Any:
        if kind == "rename" and path == f"{SNAPSHOT}.tmp":
            snapshot = snapshot_in(read_file(self.inner, path))
            self.snapshots.append(snapshot)
            ends = [last_offset(data) for data in self._synced.values()]
            if snapshot.next_offset > max(ends, default=0):
                self.ahead.append(snapshot)
        result = super().call(kind, path, perform)
        if kind == "sync" and path.endswith(".log") and "/segments/" in path:
            self._synced[path] = read_file(self.inner, path)
        return result


def last_offset(data: bytes) -> int:
    """Return the offset after the last frame in the bytes of a segment, 0 without any."""
    ends = [
        int.from_bytes(data[start : start + 8], "big")
        + int.from_bytes(data[start + 23 : start + 27], "big")
        + 1
        for start, _ in frames_of(data.rstrip(b"\0"))
    ]
    return max(ends, default=0)


@pytest.mark.parametrize("policy", ["each", "every:3", "never"])
@pytest.mark.parametrize("snapshots", [1, 300, 900])
def test_a_snapshot_covers_only_what_is_synced(policy: str, snapshots: int) -> None:
    """A snapshot of records that a power cut then takes would make their retry pass for a duplicate."""
    files = SyncedLogs(MemoryFiles())
    bench = Bench(files, {**ROLLING, "cordwood.sync": policy})
    with snapshots_every(snapshots):
        log = bench.open()
        for i, each in enumerate(in_turn(40)):
            send(log, each)
            if i % 7 == 6:
                log.commit()
        log.truncate(log.log_end_offset - 4)
        send_all(log, [Sent(50, 0, 0, (b"x",))])
        bench.close()
    assert len(files.snapshots) >= 5
    assert files.ahead == []


def test_a_snapshot_that_is_due_while_a_sync_is_under_way_waits_for_the_next_one() -> None:
    """Another thread appends while the device works: that sync does not cover its batch."""
    files = SyncedLogs(MemoryFiles())
    bench = Bench(files)
    log = bench.open()
    send_all(log, [Sent(7, 0, 0, (b"a",))])
    send(log, Sent(7, 0, 1, (b"b",)))

    def append_meanwhile(kind: str, path: str, result: object) -> None:
        if kind == "sync" and path.endswith(f"{0:020d}.log"):
            files.after = lambda kind, path, result: None
            with snapshots_every(1):
                assert send(log, Sent(8, 0, 0, (b"meanwhile",))) == (2, 3)

    files.after = append_meanwhile
    log.commit(2)
    assert log.high_watermark == 2
    assert not bench.files.exists(SNAPSHOT)
    log.commit(3)
    assert bench.saved().next_offset == 3
    assert files.ahead == []


@pytest.mark.parametrize("settings", [{}, ROLLING], ids=["one segment", "many segments"])
def test_the_batch_that_a_snapshot_is_due_with_is_in_it(settings: dict[str, str]) -> None:
    """It covers that batch's offsets, so without it nobody would ever look for it there."""
    bench = Bench(settings=settings)
    with snapshots_every(1):
        log = bench.open()
        for each in in_turn(20):
            _, next_offset = send(log, each)
            log.commit(next_offset)
            saved = bench.saved()
            assert saved.next_offset == next_offset
            (producer,) = (p for p in saved.producers if p.id == each.producer)
            assert producer.batches[-1].next_offset == next_offset
    assert known(bench.left().open()) == known(log)


def test_a_snapshot_is_saved_when_enough_was_appended_by_whomever() -> None:
    bench = Bench()
    with snapshots_every(2_000):
        log = bench.open()
        send_all(log, in_turn(3))
        assert not bench.files.exists(SNAPSHOT)
        for _ in range(30):
            log.append([(None, b"v" * 100)])
        assert not bench.files.exists(SNAPSHOT), "saved before it was synced"
        log.commit()
        assert bench.saved().next_offset > log.log_end_offset // 2


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_directory"])
def test_a_snapshot_that_cannot_be_written_costs_no_append(kind: str) -> None:
    """It is derived: the log is read instead, and the next snapshot is written when it is due."""
    hooked = HookedFiles(MemoryFiles())
    bench = Bench(hooked)
    failing, failed = [False], [0]

    def refuse(what: str, path: str) -> None:
        # Which file a write or a directory's sync is for is known from what came before.
        if what == "create":
            failing[0] = path == f"{SNAPSHOT}.tmp"
        if what == kind and failing[0]:
            failed[0] += 1
            failing[0] = False
            raise OSError(errno.EIO, "refused", path)

    with snapshots_every(300):
        log = bench.open()
        hooked.before = refuse
        placed = send_all(log, in_turn(20))
        assert failed[0] >= 2
        check_repeated(log, placed)
        check_repeated(bench.left().open(), placed)
        bench.close()
    check_repeated(bench.left().open(), placed)


class CountedReads(HookedFiles):
    """Counts the bytes read of logs."""

    def __init__(self, inner: Files) -> None:
        super().__init__(inner)
        self.read_bytes = 0

    def call(self, kind: str, path: str, perform: Callable[[], Any]) -> Any:
        result = super().call(kind, path, perform)
        if kind == "read" and path.endswith(".log") and "/segments/" in path:
            self.read_bytes += len(result)
        return result


@pytest.mark.parametrize("settings", [{"index.interval.bytes": "100"}, ROLLING])
def test_only_what_lies_past_the_snapshot_is_read_again(settings: dict[str, str]) -> None:
    """However long the log: R1 is about time too."""
    bench = Bench(settings=settings)
    with snapshots_every(3_000):
        log = bench.open()
        placed: list[tuple[Sent, int]] = []
        while not bench.files.exists(SNAPSHOT) or log.size() < 20_000:
            placed += send_all(log, in_turn(60, first=len(placed), epoch=len(placed) // 60))
        saved = bench.saved()
        late = sum(1 for _, base in placed if base >= saved.next_offset)
        past = sum(120 for _, base in placed if base >= saved.next_offset)
        files = CountedReads(disk_of(image(bench.files, DATA)))
        again = Bench(files, settings).open()
        files.read_bytes = 0
        assert known(again) == known(log)
        assert 0 < files.read_bytes <= past + 700, "an interval of the index, or a segment, more at most"
        print(f"{files.read_bytes} of {log.size()} bytes read for {late} batches")


def test_what_is_read_again_stays_bounded_over_many_kills() -> None:
    """A process that never lives long enough to append so much saves it all the same."""
    bench = Bench()
    with snapshots_every(3_000):
        sequence, read = 0, []
        for _ in range(12):
            files = CountedReads(
                disk_of(image(bench.files, DATA)) if bench.files.exists(DATA) else MemoryFiles()
            )
            bench = Bench(files)
            log = bench.open()
            files.read_bytes = 0
            for _ in range(12):
                _, next_offset = send(log, Sent(7, 0, sequence, (b"v" * 20,)))
                log.commit(next_offset)
                sequence += 1
            read.append(files.read_bytes)
        assert log.size() > 10_000
        assert max(read) < 3_000 + 2_000, read


def test_a_log_without_producers_is_not_read_for_them() -> None:
    """Nobody pays for what nobody asked: opening, reading and plain appends look at no old record."""
    bench = Bench()
    log = bench.open()
    for _ in range(50):
        log.append([(None, b"v" * 100)])
    bench.close()
    files = CountedReads(disk_of(image(bench.files, DATA)))
    log = Bench(files).open()
    files.read_bytes = 0
    log.append([(None, b"more")])
    log.commit()
    assert files.read_bytes == 0


def test_damaged_batches_are_passed_over_and_those_around_them_known() -> None:
    """They were acknowledged before, and nobody sends them again; a gap is not taken for the next batch."""
    bench = Bench(settings={"index.interval.bytes": "100"})
    log = bench.open()
    placed = send_all(log, [Sent(7, 0, i, (b"value %d" % i,)) for i in range(5)])
    bench.close()
    path = f"{DIRECTORY}/segments/{0:020d}.log"
    data = read_file(bench.files, path)
    for damaged, (_, end) in enumerate(frames_of(data)):
        flipped = data[: end - 1] + bytes([data[end - 1] ^ 1]) + data[end:]
        log = bench.left({path: flipped}, (SNAPSHOT,)).open()
        assert log.log_end_offset == 5
        for i, (sent, base) in enumerate(placed):
            if i != damaged:
                assert send(log, sent) == (base, base + 1), (damaged, i)
            elif i < 4:
                with pytest.raises(OutOfSequence):
                    send(log, sent)
        assert log.log_end_offset == 5


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
def test_a_log_that_cannot_be_read_now_makes_no_duplicate_a_new_batch(code: int, forever: bool) -> None:
    """P4, O6: too many open files, or a device that fails a read, refuse the batch; then it works again."""
    bench = Bench(settings=ROLLING)
    log = bench.open()
    placed = send_all(log, in_turn(20))
    left = image(bench.files, DATA)
    refused = n = 0
    while True:
        n += 1
        files = FaultyFiles(disk_of(left, gone=[SNAPSHOT] if n % 2 else []))
        log = Bench(files, ROLLING).open()
        end = log.log_end_offset
        plan = FaultPlan(n, frozenset({"open", "read", "size", "stat", "list"}), code, forever)
        files.plan(plan)
        for sent, base in newest(placed):
            try:
                assert send(log, sent) == (base, base + len(sent.values)), n
            except StorageError:
                refused += 1
        assert log.log_end_offset == end
        if not files.failures:
            break
        files.heal()
        check_repeated(log, placed)
        # Plain records need nothing of this.
        assert log.append([(None, b"plain")]).base_offset == end
    print(f"{n - 1} failing calls, {refused} refused")
    assert n > 5
    assert refused


def test_a_log_that_cannot_be_read_can_be_truncated_and_knows_what_is_left() -> None:
    """What was cut is forgotten though it was never learnt; the rest is learnt once that works again."""
    bench = Bench(settings=ROLLING)
    placed = send_all(bench.open(), [Sent(7, 0, i, (b"%d" % i,)) for i in range(12)])
    bench.close()
    files = HookedFiles(disk_of(image(bench.files, DATA), gone=[SNAPSHOT]))
    log = Bench(files, ROLLING).open()

    def refuse(kind: str, path: str) -> None:
        if kind == "open" and path.endswith(f"{0:020d}.log"):
            raise OSError(errno.EIO, "refused", path)

    files.before = refuse
    with pytest.raises(StorageError):
        send(log, placed[-1][0])
    log.truncate(9)
    files.before = lambda kind, path: None
    regrow(log, 12)
    check_repeated(log, placed[:9])
    assert send(log, placed[9][0]) == (12, 13)


def test_being_interrupted_while_the_log_is_read_forgets_nothing() -> None:
    """Ctrl-C in the middle of it: the next batch is answered as if nothing had been."""
    bench = Bench(settings=ROLLING)
    placed = send_all(bench.open(), in_turn(20))
    left = image(bench.files, DATA)
    interrupted = n = 0
    while True:
        n += 1
        files = HookedFiles(disk_of(left, gone=[SNAPSHOT]))
        log = Bench(files, ROLLING).open()
        reads = [0]

        def interrupt(kind: str, path: str, reads: list[int] = reads, n: int = n) -> None:
            if kind in ("read", "open") and path.endswith(".log"):
                reads[0] += 1
                if reads[0] == n:
                    raise KeyboardInterrupt

        files.before = interrupt
        try:
            send(log, placed[-1][0])
        except KeyboardInterrupt:
            interrupted += 1
        else:
            break
        check_repeated(log, placed)
    assert interrupted >= 3


# --- What is acknowledged, and what is not ------------------------------------------------------------


def test_a_duplicate_is_durable_when_its_original_is() -> None:
    """D4: sent again before the first was synced, both wait for the same sync."""
    files = SyncedLogs(MemoryFiles())
    bench = Bench(files)
    log = bench.open()
    sent = Sent(7, 0, 0, (b"a", b"b"))
    assert send(log, sent) == (0, 2)
    _, next_offset = send(log, sent)
    assert (next_offset, log.high_watermark) == (2, 0)
    before = files.calls.count("sync")
    log.commit(next_offset)
    assert log.high_watermark == 2
    assert files.calls.count("sync") > before
    assert max(last_offset(data) for data in files._synced.values()) == 2


def test_if_the_sync_of_the_original_fails_so_does_the_duplicate() -> None:
    """D4: from then on nothing is acknowledged, neither what waits nor what comes."""
    files = FaultyFiles(MemoryFiles())
    log = Bench(files).open()
    sent = Sent(7, 0, 0, (b"a",))
    send(log, sent)
    _, next_offset = send(log, sent)
    files.plan(FaultPlan(1, frozenset({"sync"})))
    with pytest.raises(LogFailed):
        log.commit(next_offset)
    with pytest.raises(LogFailed):
        log.commit(next_offset)
    with pytest.raises(LogFailed):
        send(log, sent)


@pytest.mark.parametrize("short", [None, 0, 30])
def test_a_batch_that_found_no_space_is_not_known(short: int | None) -> None:
    """Nothing of it was stored, so its retry is not a duplicate."""
    files = FaultyFiles(MemoryFiles())
    bench = Bench(files)
    log = bench.open()
    placed = send_all(log, in_turn(4, ids=1))
    following = Sent(10, 0, placed[-1][0].next_sequence, (b"x", b"y"))
    plan = FaultPlan(1, frozenset({"write"}), errno.ENOSPC, short=short)
    files.plan(plan)
    end = log.log_end_offset
    with pytest.raises(CordwoodError, match="no space"):
        send(log, following)
    assert send(log, following) == (end, end + 2)
    assert send(log, following) == (end, end + 2)
    log.commit()
    assert stored_batches(log) == [*placed, (following, end)]


def test_a_refused_batch_leaves_everything_as_it_was() -> None:
    bench = Bench()
    log = bench.open()
    placed = send_all(log, in_turn(6, ids=1, epoch=1))
    before = known(log), log.size()
    with pytest.raises(OutOfSequence):
        send(log, Sent(10, 1, 500, (b"gap",)))
    with pytest.raises(ProducerFenced):
        send(log, Sent(10, 0, placed[-1][0].next_sequence, (b"fenced",)))
    with pytest.raises(OutOfSequence):
        send(log, Sent(10, 2, 1, (b"does not begin",)))
    assert (known(log), log.size()) == before


def test_many_threads_that_send_the_same_batches_store_each_once() -> None:
    """A client that timed out sends again on another connection while the first request is still here."""
    log = Bench().open()
    batches = [Sent(7, 0, i, (b"%d" % i,)) for i in range(60)]
    answers: list[list[tuple[int, int]]] = [[] for _ in range(4)]
    barrier = threading.Barrier(4, timeout=SECONDS_MAX)

    def run(mine: list[tuple[int, int]]) -> None:
        for each in batches:
            barrier.wait()
            mine.append(send(log, each))
            log.commit(mine[-1][1])

    threads = [threading.Thread(target=run, args=[mine]) for mine in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert all(mine == [(i, i + 1) for i in range(60)] for mine in answers)
    assert [base for _, base in stored_batches(log)] == list(range(60))


# --- Forgetting ---------------------------------------------------------------------------------------


def test_a_producer_that_sends_nothing_for_long_is_forgotten_when_the_next_snapshot_is_due() -> None:
    bench = Bench(overrides={"producer.id.expiration.ms": "60000"})
    with snapshots_every(2_000):
        log = bench.open()
        send_all(log, [Sent(7, 0, 0, (b"a",)), Sent(8, 0, 0, (b"b",))])
        bench.clock.advance(60_001)
        # Long ago, but nothing was swept yet: a jump of the clock looks the same.
        assert send(log, Sent(7, 0, 0, (b"a",))) == (0, 1)
        send_all(log, [Sent(8, 0, 1, (b"c" * 2_000,))])
        assert set(known(log)) == {8}
        assert [producer.id for producer in bench.saved().producers] == [8]
        assert send(log, Sent(7, 0, 9, (b"begins anywhere",))) == (3, 4)


@pytest.mark.parametrize("jump", [10**12, -(10**9)], ids=["ahead", "back"])
def test_a_clock_that_jumps_forgets_no_producer_and_no_kill_makes_it(jump: int) -> None:
    """What is replayed counts as heard of now, whatever time it is."""
    bench = Bench(overrides={"producer.id.expiration.ms": "60000"})
    log = bench.open()
    placed = send_all(log, in_turn(12))
    bench.clock.ms += jump
    check_repeated(log, placed)
    log = bench.left().open()
    check_repeated(log, placed)
    send_all(log, [Sent(99, 0, 0, (b"someone else",))])
    check_repeated(log, placed)
