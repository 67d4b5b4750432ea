"""A partition in the shared log does what one with files of its own does: the same tests on both.

Beside it another tenant's topic of the same name takes appends all the time, which nobody may notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Thread

import pytest
from support.clocks import ManualClock
from support.disks import RecordingFiles, Sync, image
from support.logs import disk_of
from support.patience import SECONDS_MAX
from support.producing import Sent, receive, send, stored_batches
from support.publishing import QUERY, adopting, frame_of, stage
from support.seeds import seed_or, seeds_from
from support.shared import (
    DATA,
    SMALL,
    contents,
    create,
    held,
    left_by,
    open_data,
    physical,
    put,
    records_of,
    sizes,
    virtual,
)
from support.sweeps import FULL

from cordwood.disk.files import Files, join, write_all
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import (
    FrameTooLarge,
    InvalidSetting,
    LogClosed,
    LogFailed,
    OffsetOutOfRange,
    OutOfSequence,
    ProducerFenced,
    RecordRefused,
    UnexpectedOffset,
    UnknownTopic,
)
from cordwood.formats import batch
from cordwood.formats.native import BatchFormat
from cordwood.formats.receiving import BatchTerms
from cordwood.records import Record
from cordwood.storage.directory.data_directory import DataDirectory
from cordwood.storage.log import WritablePartition
from cordwood.storage.shared.virtual_log import VirtualLog

NOW = 1_700_000_000_000
RESTARTS = ("closed", "killed", "killed, without indexes", "closed, without indexes")
INDEXES = (".idx", ".timeidx", ".oidx")


@dataclass
class Bench:
    """A topic ``orders`` of one partition, and a neighbour of the same kind and name of org 7."""

    storage: str
    settings: dict[str, str] = field(default_factory=dict)
    broker: dict[str, str] = field(default_factory=lambda: dict(SMALL))
    files: Files = field(default_factory=MemoryFiles)
    clock: ManualClock = field(default_factory=ManualClock)
    number: int = 0

    def open(self) -> WritablePartition:
        self.data = open_data(self.files, self.clock, self.broker)
        self.create()
        self.neighbour = self.data.partitions.writable("orders@7", 0)
        return self.log

    def create(self) -> WritablePartition:
        for name, settings in (("orders", self.settings), ("orders@7", {})):
            if name not in self.data.topics:
                self.number += 1
                config = {"cordwood.storage": self.storage, **settings}
                self.data.topics.create(name, f"id-{self.number}", 1, config)
        self.log = self.data.partitions.writable("orders", 0)
        return self.log

    def restart(self, how: str) -> WritablePartition:
        """Open again after the log was closed, or its process killed; maybe all indexes were lost too."""
        if how.startswith("closed"):
            self.data.close()
        left = image(self.files, DATA)
        gone = [path for path in left if path.endswith(INDEXES)] if how.endswith("indexes") else []
        self.files = disk_of(left, gone=gone)
        return self.open()

    def put(self, *values: bytes, timestamp: int | None = None) -> int:
        """Append a batch, and another one for the neighbour before it and after it."""
        put(self.neighbour, b"another's", b"and more")
        offset = put(self.log, *values, timestamp=timestamp)
        put(self.neighbour, b"another's")
        return offset


@pytest.fixture(params=["own", "shared"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    yield made
    if hasattr(made, "data"):
        made.data.close()


def values_of(log: WritablePartition) -> list[bytes]:
    return list(held(log).values)


# --- appending ----------------------------------------------------------------------------------------


def test_offsets_are_dense_whatever_others_append(bench: Bench) -> None:
    """O1."""
    bench.open()
    assert [bench.put(b"a"), bench.put(b"b", b"c"), bench.put(b"d")] == [0, 1, 3]
    assert values_of(bench.log) == [b"a", b"b", b"c", b"d"]
    assert (bench.log.log_start_offset, bench.log.log_end_offset, bench.log.high_watermark) == (0, 4, 4)


def test_records_come_back_as_they_went_in(bench: Bench) -> None:
    log = bench.open()
    rows = [(b"k", b"v", [("h", b"1"), ("none", None)], 5), (None, None, (), 4), (b"", b"", (), 3)]
    log.commit(log.append(rows).next_offset)
    found = [(r.key, r.value, list(r.headers), r.timestamp) for r in records_of(log)]
    assert found == [(key, value, list(headers), at) for key, value, headers, at in rows]


def test_a_record_without_a_time_gets_that_of_the_append_which_never_runs_backwards(bench: Bench) -> None:
    log = bench.open()
    bench.put(b"first")
    bench.clock.set_back(5_000)
    bench.put(b"second")
    assert [record.timestamp for record in records_of(log)] == [NOW, NOW]


def test_an_append_elsewhere_than_expected_is_refused(bench: Bench) -> None:
    log = bench.open()
    bench.put(b"a", b"b")
    for expected in (0, 1, 3):
        with pytest.raises(UnexpectedOffset):
            log.append([(None, b"never")], expected)
    assert log.append([(None, b"c")], 2).base_offset == 2


def test_what_is_too_large_or_refused_leaves_nothing(bench: Bench) -> None:
    bench.settings["max.message.bytes"] = "200"
    log = bench.open()
    for rows, error in (([(None, b"x" * 300)], FrameTooLarge), ([(None, "text")], RecordRefused)):
        with pytest.raises((error, TypeError)):
            log.append(rows)
    with pytest.raises(ZeroDivisionError):
        log.append((None, b"%d" % (1 // (1 - i))) for i in range(3))
    assert (log.log_end_offset, bench.put(b"after")) == (0, 0)


def test_a_received_batch_is_stored_as_it_came_but_for_its_place(bench: Bench) -> None:
    log = bench.open()
    bench.put(b"first")
    sent = frame_of(b"a", b"b", timestamp=77)
    appended = log.append_received(BatchFormat().receive(memoryview(bytearray(sent)), BatchTerms(1 << 20)))
    assert appended == (1, 3, -1)
    log.commit(3)
    (run,) = log.read(1, 1 << 20).runs
    assert bytes(run.data)[16:] == bytes(sent)[16:]
    header = batch.read_header(run.data)
    assert (header.base_offset, header.leader_epoch) == (1, log.leader_epoch)


def test_a_topic_that_wants_append_time_gets_it_on_every_way_in(bench: Bench) -> None:
    bench.settings["message.timestamp.type"] = "LogAppendTime"
    log = bench.open()
    bench.put(b"a", timestamp=5)
    bench.clock.advance(10)
    appended = log.append_received(
        BatchFormat().receive(memoryview(frame_of(b"b", timestamp=6)), BatchTerms(1 << 20))
    )
    log.commit()
    assert appended == (1, 2, NOW + 10)
    assert [record.timestamp for record in records_of(log)] == [NOW, NOW + 10]


def test_the_first_offset_is_the_one_that_was_asked_for_also_after_a_restart(bench: Bench) -> None:
    bench.settings["cordwood.initial.offset"] = "1000"
    log = bench.open()
    assert held(log) == (1000, 1000, 1000, ())
    log = bench.restart("killed")
    assert held(log) == (1000, 1000, 1000, ())
    assert bench.put(b"a") == 1000
    assert values_of(bench.restart("closed")) == [b"a"]
    with pytest.raises(OffsetOutOfRange):
        bench.log.read(999, 1)


def test_a_stream_becomes_one_record(bench: Bench) -> None:
    log = bench.open()
    bench.put(b"first")
    spooled = bench.data.partitions.spool("s", [b"x" * 300, b"y" * 200], 1 << 20)
    assert log.append_stream(b"k", [("h", b"1")], 9, spooled)[:2] == (1, 2)
    log.commit()
    (record,) = records_of(log, 1)
    assert record == Record(1, 9, b"k", b"x" * 300 + b"y" * 200, (("h", b"1"),))
    with pytest.raises(UnexpectedOffset):
        log.append_stream(None, (), None, bench.data.partitions.spool("t", [b"z"], 9), expected_offset=1)
    assert log.stream_bytes_max() > 0


def test_offsets_can_be_told_in_advance_by_who_keeps_others_out(bench: Bench) -> None:
    log = bench.open()
    with log.held():
        at = log.log_end_offset
        other = Thread(target=lambda: put(log, b"another"))
        other.start()
        assert log.append([(None, b"a")]).base_offset == at
        assert log.append([(None, b"b")]).base_offset == at + 1
    other.join()
    assert values_of(log) == [b"a", b"b", b"another"]


def test_batches_in_a_file_are_taken_over_with_offsets_of_their_own(bench: Bench) -> None:
    """What an import and a large share of the sink do."""
    log = bench.open()
    bench.put(b"first")
    path = join(DATA, "tmp", "foreign")
    frames = [bytes(frame_of(b"%d" % i, b"%d." % i)) for i in range(4)]
    bench.files.make_directories(join(DATA, "tmp"))
    file = bench.files.open(path, "create")
    write_all(file, 0, b"".join(frames))
    file.sync()
    file.close()
    assert log.adopt(path, len(b"".join(frames)))[:2] == (1, 9)
    assert not bench.files.exists(path)
    expected = [b"first", *(b"%d" % i + dot for i in range(4) for dot in (b"", b"."))]
    assert values_of(log) == expected
    bench.put(b"after")
    assert values_of(bench.restart("killed")) == [*expected, b"after"]


# --- idempotent producers -----------------------------------------------------------------------------


SENT = [Sent(7, 0, 2 * i, (b"sent %d" % i, b"and more")) for i in range(7)]


def test_a_batch_that_is_sent_again_is_answered_with_its_first_offsets(bench: Bench) -> None:
    """O6."""
    log = bench.open()
    bench.put(b"plain")
    first = [send(log, sent) for sent in SENT]
    bench.put(b"plain")
    assert [send(log, sent) for sent in SENT[-5:]] == first[-5:]
    with pytest.raises(OutOfSequence):
        send(log, SENT[0])
    with pytest.raises(OutOfSequence):
        send(log, Sent(7, 0, 99, (b"x",)))
    assert send(log, Sent(7, 1, 0, (b"new epoch",)))[0] == 16
    with pytest.raises(ProducerFenced):
        send(log, SENT[-1])
    log.commit()
    assert log.log_end_offset == 17


def test_the_producers_of_another_topic_are_others(bench: Bench) -> None:
    """T1: the same id in two tenants' topics is two producers."""
    log = bench.open()
    assert send(log, SENT[0]) == (0, 2)
    assert send(bench.neighbour, SENT[0]) == (0, 2)
    assert send(bench.neighbour, SENT[1]) == (2, 4)
    with pytest.raises(OutOfSequence):
        send(log, SENT[2])
    assert (log.log_end_offset, bench.neighbour.log_end_offset) == (2, 4)


@pytest.mark.parametrize("how", RESTARTS)
def test_no_restart_makes_a_retry_a_new_batch(bench: Bench, how: str) -> None:
    """O6 across a clean end, a kill, and the loss of every index."""
    log = bench.open()
    for sent in SENT[:4]:
        send(log, sent)
        bench.put(b"plain")
    offsets = [send(log, sent) for sent in SENT[:4]]
    log.commit()
    log = bench.restart(how)
    assert [send(log, sent) for sent in SENT[:4]] == offsets
    with pytest.raises(OutOfSequence):
        send(log, SENT[5])
    assert send(log, SENT[4]) == (12, 14)
    log.commit()
    assert [sent for sent, _ in stored_batches(log)] == SENT[:5]


@pytest.mark.parametrize("how", RESTARTS)
def test_a_retry_of_records_that_retention_took_is_no_new_batch_either(bench: Bench, how: str) -> None:
    """O6: that the records of a producer went is no reason to store the last of them again."""
    log = bench.open()
    for sent in SENT[:4]:
        send(log, sent)
    log.commit()
    log.advance_log_start(8)
    log.roll()
    bench.put(b"x" * 500)
    log.roll()
    bench.data.maintenance.maintain_all()
    assert send(log, SENT[3]) == (6, 8)
    log = bench.restart(how)
    assert send(log, SENT[3]) == (6, 8)
    assert send(log, SENT[4]) == (9, 11)


# --- durability ---------------------------------------------------------------------------------------


def test_nothing_is_shown_before_the_sync_that_covers_it(bench: Bench) -> None:
    """D2."""
    log = bench.open()
    bench.put(b"a")
    appended = log.append([(None, b"b"), (None, b"c")])
    put_offset = log.append([(None, b"d")]).base_offset
    assert (log.high_watermark, log.log_end_offset, log.unsynced_records) == (1, 4, 3)
    fetched = log.read(1, 1 << 20)
    assert (fetched.runs, fetched.high_watermark, fetched.log_end_offset) == ((), 1, 4)
    log.commit(appended.next_offset)
    assert log.high_watermark >= 3
    log.commit()
    assert (log.high_watermark, log.unsynced_records, put_offset) == (4, 0, 3)


@pytest.mark.parametrize(
    ("topic", "broker", "unsynced"),
    [
        ("each", "each", (0, 0, 0, 0)),
        ("each", "never", (0, 0, 0, 0)),
        ("every:3", "never", (1, 2, 0, 1)),
        ("never", "never", (1, 2, 3, 4)),
    ],
)
def test_no_more_is_left_unsynced_than_the_topic_allows(
    bench: Bench, topic: str, broker: str, unsynced: tuple[int, ...]
) -> None:
    """D3: a topic that asks for more than the broker's default gets more."""
    bench.settings["cordwood.sync"] = topic
    bench.broker["cordwood.sync"] = broker
    recording = RecordingFiles(bench.files)
    bench.files = recording
    log = bench.open()
    for number, allowed in enumerate(unsynced):
        before = len(recording.history)
        log.settle(log.append([(None, b"%d" % number)]))
        assert log.unsynced_records == allowed
        synced = {op.inode for op in recording.history[before:] if isinstance(op, Sync)}
        written = recording.inode(join(log.directory, "segments", f"{0:020d}.log"))
        assert (written in synced) == (not allowed)
    log.commit_quietly()
    assert (log.high_watermark, log.unsynced_records) == (4, 0)


def test_a_topic_is_never_less_durable_than_the_shared_log() -> None:
    """Where the log syncs before it shows, so does every topic in it: or nobody would see its records."""
    bench = Bench("shared", {"cordwood.sync": "never"})
    log = bench.open()
    log.settle(log.append([(None, b"a")]))
    assert (log.high_watermark, log.unsynced_records) == (1, 0)


@pytest.mark.parametrize("how", RESTARTS)
def test_every_restart_leaves_what_was_there(bench: Bench, how: str) -> None:
    log = bench.open()
    for number in range(40):
        bench.put(*(b"%d.%d" % (number, i) for i in range(1 + number % 3)))
    log.advance_log_start(11)
    before, beside = held(log), held(bench.neighbour)
    for _ in range(2):
        log = bench.restart(how)
        assert (held(log), held(bench.neighbour)) == (before, beside)
    assert bench.put(b"next") == before.end


# --- reading ------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(bench: Bench) -> Bench:
    """Batches of one to four records in several segments, times going up and down."""
    log = bench.open()
    seed = seed_or(5)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(30):
        values = [b"%d.%d" % (number, i) for i in range(1 + number % 4)]
        bench.put(*values, timestamp=NOW + rng.randrange(-500, 500))
    assert len(held(log).records) == 73
    return bench


def test_a_read_gives_whole_batches_from_the_one_that_holds_the_offset(mixed: Bench) -> None:
    """O5. Of any size, from any offset, in any number of pieces: the same records."""
    log = mixed.log
    everything = held(log).records
    for start in range(len(everything)):
        fetched = log.read(start, 1)
        found = [record.offset for run in fetched.runs for record in run.records()]
        assert found[0] <= start < fetched.next_offset == found[-1] + 1
        assert found == list(range(found[0], found[-1] + 1))
        assert len({batch.read_header(run.data).base_offset for run in fetched.runs}) == 1
    for size in (1, 200, 1000, 1 << 20):
        assert tuple(records_of(log, max_bytes=size)) == everything


def test_a_read_is_no_larger_than_asked_for_but_for_its_first_batch(mixed: Bench) -> None:
    for size in (1, 150, 400, 3000):
        fetched = mixed.log.read(0, size)
        first = len(fetched.runs[0].table.batches(0, 1)[0])
        assert sum(len(run.data) for run in fetched.runs) <= max(size, first)


def test_little_is_read_beyond_the_offset_that_is_enough(mixed: Bench) -> None:
    whole = mixed.log.read(0, 1 << 20).next_offset
    fetched = mixed.log.read(0, 1 << 20, stop=5)
    assert 5 <= fetched.next_offset < whole
    assert mixed.log.read(3, 1 << 20, stop=3).runs == ()


def test_an_offset_below_the_start_or_above_the_end_is_out_of_range(mixed: Bench) -> None:
    log = mixed.log
    log.advance_log_start(4)
    for outside in (-1, 0, 3, log.high_watermark + 1, 1 << 60):
        with pytest.raises(OffsetOutOfRange):
            log.read(outside, 1)
    assert log.read(log.high_watermark, 1).runs == ()
    assert log.read(4, 1)[2:] == (73, 73, 4, ())


def test_times_are_found_exactly(mixed: Bench) -> None:
    log = mixed.log
    for start in (0, 0, 10, 37, 73):
        log.advance_log_start(start)
        records = held(log).records
        for timestamp in (0, *{record.timestamp for record in held(log).records}, NOW, NOW + 600, 1 << 60):
            found = ((r.offset, r.timestamp) for r in records if r.timestamp >= timestamp)
            assert log.offset_at(timestamp) == next(found, None)
        newest = max(records, key=lambda r: (r.timestamp, -r.offset), default=None)
        assert log.newest() == (None if newest is None else (newest.offset, newest.timestamp))


def test_nothing_unsynced_is_found_by_its_time(bench: Bench) -> None:
    log = bench.open()
    bench.put(b"a", timestamp=5)
    log.append([(None, b"b", (), 10)])
    assert (log.offset_at(6), log.newest()) == (None, (0, 5))
    log.commit()
    assert (log.offset_at(6), log.newest()) == ((1, 10), (1, 10))


def waiting(log: WritablePartition, offset: int) -> tuple[Thread, list[object]]:
    """Start a thread that waits for a record at *offset*; it notes what it is told."""
    told: list[object] = []

    def wait() -> None:
        try:
            told.append(log.wait_beyond(offset))
        except Exception as error:
            told.append(type(error))

    thread = Thread(target=wait, daemon=True)
    thread.start()
    return thread, told


def test_who_waits_is_woken_by_a_record_of_its_own_topic(bench: Bench) -> None:
    log = bench.open()
    bench.put(b"a")
    assert log.wait_beyond(0) == 1
    with pytest.raises(OffsetOutOfRange):
        log.wait_beyond(2)
    thread, told = waiting(log, 1)
    put(bench.neighbour, b"another's")
    log.append([(None, b"not synced")])
    assert not told
    log.commit()
    thread.join(SECONDS_MAX)
    assert told == [2]


@pytest.mark.parametrize("ending", ["close", "delete"])
def test_who_waits_is_told_when_the_log_ends(bench: Bench, ending: str) -> None:
    log = bench.open()
    bench.put(b"a")
    thread, told = waiting(log, 1)
    if ending == "close":
        bench.data.close()
    else:
        bench.data.topics.delete("orders")
    thread.join(SECONDS_MAX)
    assert told == [LogClosed]


# --- the start ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", RESTARTS)
@pytest.mark.parametrize("start", [1, 2, 3, 5, 9, 10])
def test_the_start_moves_also_into_a_batch_and_stays(bench: Bench, start: int, how: str) -> None:
    """O4."""
    log = bench.open()
    for number in range(5):
        bench.put(b"%d" % number, b"%d." % number)
    log.advance_log_start(start)
    before = held(log)
    assert (before.start, before.end, len(before.records)) == (start, 10, 10 - start)
    with pytest.raises(OffsetOutOfRange):
        log.read(start - 1, 1)
    log.advance_log_start(start - 1)
    assert held(log) == before
    log = bench.restart(how)
    assert held(log) == before
    assert bench.put(b"next") == 10


def test_the_start_never_passes_what_is_durable(bench: Bench) -> None:
    log = bench.open()
    bench.put(b"a")
    log.append([(None, b"b")])
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start(2)
    log.advance_log_start(1)
    assert held(log)[:3] in [(1, 1, 2), (1, 2, 2)]


# --- topics come, change and go -------------------------------------------------------------------------


@pytest.mark.parametrize("how", RESTARTS)
def test_a_topic_that_is_created_again_has_nothing_of_the_one_before(bench: Bench, how: str) -> None:
    log = bench.open()
    bench.put(b"old", b"older")
    send(log, SENT[0])
    log.commit()
    beside = held(bench.neighbour)
    bench.data.topics.delete("orders")
    with pytest.raises(LogClosed):
        log.append([(None, b"never")])
    with pytest.raises(LogClosed):
        log.read(0, 1)
    with pytest.raises(UnknownTopic):
        bench.data.partitions.writable("orders", 0)
    log = bench.create()
    assert held(log) == (0, 0, 0, ())
    assert send(log, SENT[1]) == (0, 2)  # Nobody knows its producer any more.
    log.commit()
    log = bench.restart(how)
    assert values_of(log) == list(SENT[1].values)
    assert held(bench.neighbour) == beside
    bench.data.topics.delete("orders")
    log = bench.restart(how)
    assert held(log) == (0, 0, 0, ())


def test_a_topic_deleted_before_its_first_record_leaves_nothing(bench: Bench) -> None:
    bench.open()
    bench.data.topics.delete("orders")
    assert held(bench.create()) == (0, 0, 0, ())
    bench.put(b"a")
    assert values_of(bench.restart("killed")) == [b"a"]


def test_more_partitions_are_more_logs(bench: Bench) -> None:
    log = bench.open()
    bench.put(b"first")
    bench.data.topics.alter("orders", partitions=3)
    for partition in (2, 1):
        put(bench.data.partitions.writable("orders", partition), b"of %d" % partition)
    log = bench.restart("killed")
    assert [values_of(bench.data.partitions.writable("orders", at)) for at in range(3)] == [
        [b"first"],
        [b"of 1"],
        [b"of 2"],
    ]
    assert values_of(log) == [b"first"]


def test_settings_change_at_once(bench: Bench) -> None:
    log = bench.open()
    entry = bench.data.topics["orders"]
    bench.data.topics.alter(
        "orders",
        config={**entry.config, "message.timestamp.type": "LogAppendTime", "max.message.bytes": "17000000"},
    )
    put(log, b"a", timestamp=5)
    assert records_of(log)[0].timestamp == NOW
    other = {"own": "shared", "shared": "own"}[bench.storage]
    with pytest.raises(InvalidSetting, match=r"cordwood\.storage"):
        bench.data.topics.alter("orders", config={"cordwood.storage": other})


def test_a_partition_that_failed_takes_no_more_and_others_go_on(bench: Bench) -> None:
    log = bench.open()
    bench.put(b"a")
    log.fail("for a test")
    for call in (
        lambda: log.append([(None, b"b")]),
        log.commit,
        lambda: log.append_received(receive(SENT[0])),
    ):
        with pytest.raises(LogFailed, match="for a test"):
            call()
    assert isinstance(log.failure, LogFailed)
    assert put(bench.neighbour, b"goes on") == 3
    files, bench.files = bench.files, left_by(bench.files)
    assert values_of(bench.open()) == [b"a"]
    del files


# --- the sink -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [1, 1 << 40], ids=["adopted", "appended"])
def test_a_staged_batch_is_published_once_and_goes_on_from_a_crash(bench: Bench, threshold: int) -> None:
    """E1, E2: the path of the Spark sink."""
    with adopting(threshold):
        log = bench.open()
        bench.put(b"before")
        plan = {("orders", 0): [[b"a", b"b"], [b"c"]], ("orders@7", 0): [[b"x"]]}
        beside = values_of(bench.neighbour)
        shares = stage(bench.files, bench.data, plan)
        assert bench.data.publisher.publish(QUERY, 0, shares) is True
        assert bench.data.publisher.publish(QUERY, 0, shares) is False
        assert values_of(log) == [b"before", b"a", b"b", b"c"]
        assert values_of(bench.neighbour) == [*beside, b"x"]
        bench.put(b"after")
        log = bench.restart("killed")
        assert bench.data.publisher.publish(QUERY, 0, shares) is False
        assert values_of(log) == [b"before", b"a", b"b", b"c", b"after"]


# --- what the shared log does not do --------------------------------------------------------------------


def test_truncation_is_refused_by_name() -> None:
    bench = Bench("shared")
    log = bench.open()
    bench.put(b"a", b"b")
    with pytest.raises(RecordRefused, match="orders is in the shared log, which cannot be truncated"):
        log.truncate(1)
    assert values_of(log) == [b"a", b"b"]


def test_compaction_and_other_formats_are_refused_by_name() -> None:
    bench = Bench("shared")
    bench.open()
    shared = {"cordwood.storage": "shared"}
    for setting, value in (("cleanup.policy", "compact"), ("cordwood.format", "rustlog")):
        with pytest.raises(InvalidSetting, match=r"cordwood\.storage=shared"):
            bench.data.topics.create("x", "id-x", 1, {**shared, setting: value})
        with pytest.raises(InvalidSetting):
            bench.data.topics.alter("orders", config={**shared, setting: value})
    assert "x" not in bench.data.topics


def test_a_topic_in_the_shared_log_has_no_files_of_its_own() -> None:
    bench = Bench("shared")
    bench.open()
    bench.put(b"a")
    assert bench.files.list(join(DATA, "topics")) == ["__shared"]
    assert isinstance(bench.log, VirtualLog)
    assert bench.log.directory == join(DATA, "topics", "__shared", "0")


def test_the_size_of_a_partition_is_that_of_its_frames_that_can_be_read() -> None:
    bench = Bench("shared")
    log = bench.open()
    frame = 80 + len(frame_of(b"123", key=None))
    for _ in range(4):
        bench.put(b"123")
    bench.put(b"123", b"4")
    two = log.size() - 4 * frame
    log.advance_log_start(2)
    assert log.size() == 2 * frame + two
    log.advance_log_start(5)  # within the last one
    assert log.size() == two
    for how in RESTARTS:
        log = bench.restart(how)
        assert log.size() == two
    log.advance_log_start(6)
    assert log.size() == 0


# --- three tenants beside three lists -------------------------------------------------------------------

SEEDS = seeds_from(0, 40 if FULL else 4)
STEPS = 150
NAMES = ("orders", "orders@7", "orders@8", "clicks@7")
HOUR = 3_600_000


class Model:
    """Topics of three tenants beside Python lists, under random steps."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.files: Files = MemoryFiles()
        #: Value and timestamp of every record, from offset 0 on.
        self.lists: dict[str, list[tuple[bytes, int]]] = {}
        self.starts: dict[str, int] = {}
        self.sequences: dict[tuple[str, int], int] = {}
        self.last: dict[str, tuple[Sent, int]] = {}
        self.counts: dict[str, int] = {}
        self.made = 0
        self.data = open_data(self.files, self.clock)

    def log(self, name: str) -> VirtualLog:
        return virtual(self.data, name)

    def name(self) -> str:
        """Return a topic, created if it is not there."""
        name = self.rng.choice(NAMES)
        if name not in self.lists:
            self.made += 1
            initial = self.rng.choice([0, 0, 50])
            settings = {"cordwood.initial.offset": str(initial), "retention.ms": str(HOUR)}
            self.data.topics.create(name, f"id-{self.made}", 1, {"cordwood.storage": "shared", **settings})
            # What is below the first offset is there for the numbers only.
            self.lists[name], self.starts[name] = [(b"", 0)] * initial, initial
        return name

    def step(self) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.append, 12),
            (self.produce, 6),
            (self.retry, 3),
            (self.advance, 3),
            (self.delete, 1),
            (self.roll, 2),
            (self.expire, 1),
            (self.reclaim, 3),
            (self.restart, 2),
            (self.kill, 2),
        ]
        weights = [weight for _, weight in steps]
        ((do, _),) = self.rng.choices(steps, weights)
        self.note(do.__name__)
        do()

    def note(self, what: str, count: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + count

    def values(self) -> tuple[bytes, ...]:
        size = self.rng.choice([1, 10, 300])
        return tuple(self.rng.randbytes(size) for _ in range(self.rng.randint(1, 4)))

    def append(self) -> None:
        name, values = self.name(), self.values()
        # Some are as old as retention allows, or older.
        timestamp = self.clock.ms - self.rng.choice([0, 0, HOUR // 2, HOUR, 2 * HOUR])
        assert put(self.log(name), *values, timestamp=timestamp) == len(self.lists[name])
        self.lists[name] += ((value, timestamp) for value in values)

    def produce(self) -> None:
        name, producer = self.name(), self.rng.randint(1, 2)
        sent = Sent(producer, 0, self.sequences.get((name, producer), 0), self.values())
        base, next_offset = send(self.log(name), sent)
        assert base == len(self.lists[name])
        self.log(name).commit(next_offset)
        self.lists[name] += ((value, 1_000) for value in sent.values)
        self.sequences[name, producer] = sent.next_sequence
        self.last[name] = sent, base

    def retry(self) -> None:
        for name, (sent, base) in self.last.items():
            assert send(self.log(name), sent)[0] == base, "O6: a retry was stored again"

    def advance(self) -> None:
        name = self.name()
        start = self.rng.randint(self.starts[name], len(self.lists[name]))
        self.log(name).advance_log_start(start)
        self.starts[name] = start

    def delete(self) -> None:
        name = self.name()
        self.data.topics.delete(name)
        del self.lists[name], self.starts[name]
        self.last.pop(name, None)
        self.sequences = {key: at for key, at in self.sequences.items() if key[0] != name}

    def roll(self) -> None:
        if self.lists:
            physical(self.data).roll()

    def expire(self) -> None:
        """Let some time pass: what is in sealed segments and old by then goes."""
        self.clock.advance(self.rng.choice([HOUR // 2, HOUR, 2 * HOUR]))
        self.reclaim()

    def reclaim(self) -> None:
        report = self.data.maintenance.maintain_all()
        assert report.failures == ()
        self.note("segments reclaimed", report.reclaimed.segments)
        for expired in report.expired:
            start, moved = expired.log_start_offset, self.starts[expired.topic]
            assert moved < start <= len(self.lists[expired.topic])
            for _, timestamp in self.lists[expired.topic][moved:start]:
                assert self.clock.ms - timestamp > HOUR, "C1: a record went that is younger than the policy"
            self.note("records expired", start - moved)
            self.starts[expired.topic] = start

    def restart(self) -> None:
        before = contents(self.data), sizes(self.data)
        self.data.close()
        self.data = open_data(self.files, self.clock)
        assert (contents(self.data), sizes(self.data)) == before

    def kill(self) -> None:
        before = contents(self.data), sizes(self.data)
        gone = [
            path for path in image(self.files, DATA) if path.endswith(INDEXES) and self.rng.random() < 0.3
        ]
        self.files = left_by(self.files, gone=gone)
        self.data = open_data(self.files, self.clock)
        assert (contents(self.data), sizes(self.data)) == before

    def check(self) -> None:
        for name, expected in self.lists.items():
            found = held(self.log(name))
            assert found[:3] == (self.starts[name], len(expected), len(expected))
            records = [(record.value or b"", record.timestamp) for record in found.records]
            assert records == expected[self.starts[name] :]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_tenant_has_a_list_of_its_own_whatever_happens(seed: int) -> None:
    model = Model(seed)
    for number in range(STEPS):
        try:
            model.step()
            model.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}, step {number}, {model.counts}: {error}") from error
    print(f"seed {seed}: {model.counts}")
    assert model.counts["segments reclaimed"]
    model.data.close()


def opened(files: Files) -> DataDirectory:
    return open_data(files)


def test_a_directory_without_topics_in_the_shared_log_has_none() -> None:
    files = MemoryFiles()
    data = opened(files)
    data.topics.create("plain", "id", 1, {})
    put(data.partitions.writable("plain", 0), b"a")
    assert data.maintenance.maintain_all().failures == ()
    data.close()
    assert files.list(join(DATA, "topics")) == ["plain"]
    data = opened(files)
    create(data, "orders@7")
    assert list(data.topics) == ["plain", "__shared", "orders@7"]
    data.close()
