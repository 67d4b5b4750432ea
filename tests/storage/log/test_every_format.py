"""One contract for every record format on every storage backend: what one does, all of them do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import msgspec
import pyarrow as pa
import pytest
from formats.readers import read_kimberlite
from support.disks import FaultPlan, FaultyFiles
from support.formats import BEGAN_MS, TOPIC, Case, over_every_case
from support.logs import Damage, Problems, TickingClock, contents_of, look
from support.producing import Sent, encode
from support.publishing import QUERY, frame_of, target_of, writer
from support.sweeps import every

import cordwood
from cordwood.config.loading import load_broker_config
from cordwood.disk.files import join
from cordwood.errors import (
    CorruptRange,
    DiskFull,
    FrameTooLarge,
    InvalidSetting,
    MetadataDamaged,
    OffsetOutOfRange,
    OutOfSequence,
    RecordRefused,
    StorageError,
    StreamTooLong,
    TopicMismatch,
)
from cordwood.formats.per_record.laminarmq import LaminarmqFormat
from cordwood.formats.receiving import BatchTerms
from cordwood.formats.registry import FORMATS
from cordwood.kernels import BinaryBuffers, Buffer
from cordwood.records import Record
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.log.state import read_state, write_state
from cordwood.storage.maintenance.rewriting import numbers_in
from cordwood.storage.offline.reindex import reindex_directory
from cordwood.storage.offline.staged_compaction import compact_staged, write_group

COUNT = 40


# --- Appending and reading -----------------------------------------------------------------------


@over_every_case()
def test_what_is_appended_is_read_by_offset_range_and_column(case: Case) -> None:
    with case.open() as log:
        topic = case.topic(log)
        case.fill(topic, 0, COUNT)
        expected = case.expected(COUNT)
        assert list(topic.read(0)) == expected
        for offset in (0, 1, 7, COUNT - 1):
            assert list(topic.read(0, offset, offset + 1)) == [expected[offset]]
            assert list(topic.read(0, offset)) == expected[offset:]
        assert list(topic.read(0, 3, 17)) == expected[3:17]
        assert list(topic.read(0, COUNT)) == []
        with pytest.raises(OffsetOutOfRange):
            list(topic.read(0, COUNT + 1))
        assert (topic.high_watermark(0), topic.log_end_offset(0)) == (COUNT, COUNT)
        columns = ["offset", "key", "value", "headers", "timestamp"]
        table = pa.table(log.scan(TOPIC, columns=columns)).to_pylist()
        for row, record in zip(table, expected, strict=True):
            assert (row["offset"], row["key"], row["value"]) == (record.offset, record.key, record.value)
            assert round(row["timestamp"].timestamp() * 1000) == record.timestamp
            assert len(row["headers"]) == len(record.headers)


@over_every_case()
def test_a_log_that_is_closed_and_opened_goes_on_where_it_was(case: Case) -> None:
    for start in range(0, COUNT, 10):
        with case.open() as log:
            topic = case.topic(log)
            assert all(report.clean for report in log.reports)
            assert list(topic.read(0)) == case.expected(start)
            case.fill(topic, start, start + 10)
    with case.open(read_only=True) as log:
        assert list(log.topic(TOPIC).read(0)) == case.expected(COUNT)


@over_every_case()
def test_segments_roll_by_size_and_on_request_and_have_the_files_of_their_format(case: Case) -> None:
    with case.open() as log:
        topic = case.topic(log)
        case.fill(topic, 0, COUNT)
        topic.roll(0)
        case.appended_alike(topic)
    bases = sorted({int(name[:20]) for name in case.names()})
    assert len(bases) > 3
    assert bases[-1] == COUNT
    suffixes = sorted((*case.authoritative, *case.derived))
    assert case.names() == [f"{base:020d}.{suffix}" for base in bases for suffix in suffixes]
    for base in bases[:-2]:
        assert len(case.read(f"{base:020d}.log")) <= 400


@over_every_case()
def test_an_empty_value_is_a_value(case: Case) -> None:
    with case.open() as log:
        topic = case.topic(log)
        topic.append(b"", partition=0, timestamp=5)
        topic.append(b"1", partition=0, timestamp=5)
    with case.open() as log:
        assert list(case.topic(log).read(0)) == [Record(0, 5, None, b""), Record(1, 5, None, b"1")]


@over_every_case()
def test_with_log_append_time_records_get_the_time_of_the_append(case: Case) -> None:
    with case.open() as log:
        topic = case.topic(log, message_timestamp_type="LogAppendTime")
        topic.append(b"1", partition=0, timestamp=5)
        topic.append_stream([b"2"], partition=0, timestamp=5)
        times = [record.timestamp for record in topic.read(0)]
        assert times == sorted(times)
        assert times[0] > BEGAN_MS


# --- What cannot be appended ---------------------------------------------------------------------


@over_every_case()
def test_a_record_that_is_too_large_is_refused_and_changes_nothing(case: Case) -> None:
    with case.open() as log:
        topic = case.topic(log, max_message_bytes="200")
        case.fill(topic, 0, 3)
        before = case.image()
        with pytest.raises(FrameTooLarge):
            topic.append_many([(None, b"fits"), (None, b"x" * 200)], partition=0)
        assert case.image() == before
        assert topic.log_end_offset(0) == 3
        case.appended_alike(topic)


@over_every_case("memory")
def test_what_a_format_cannot_hold_is_refused_by_name(case: Case) -> None:
    holds, refused = case.format.holds, 0
    with case.open() as log:
        topic = case.topic(log)
        case.fill(topic, 0, 3)
        for held, row, name in (
            (holds.keys, (b"k", b"v"), "a key"),
            (holds.headers, (None, b"v", (("h", b"1"),)), "headers"),
            (holds.null_values, (None, None), "no value"),
        ):
            if held:
                topic.append_many([row], partition=0)
                continue
            refused += 1
            before = case.image()
            with pytest.raises(
                RecordRefused, match=f"has {name}, which the format {case.format.name} cannot hold"
            ):
                topic.append_many([(None, b"fine"), row], partition=0)
            assert case.image() == before
        if not holds.keys:
            with pytest.raises(RecordRefused, match="a key"):
                topic.append_stream([b"v"], key=b"k", partition=0)
        case.appended_alike(topic)
    assert refused == 3 - sum((holds.keys, holds.headers, holds.null_values))


@over_every_case("memory", where=lambda format_: format_.name == "rustlog")
def test_a_time_that_cannot_be_held_and_a_header_of_zeros_are_refused(case: Case) -> None:
    with case.open() as log:
        topic = case.topic(log)
        with pytest.raises(RecordRefused, match="zeros"):
            topic.append(b"", partition=0, timestamp=0)
        with pytest.raises(RecordRefused, match="1970"):
            topic.append(b"", partition=0, timestamp=-1)
        case.appended_alike(topic)


@over_every_case("memory")
def test_the_format_of_a_topic_never_changes(case: Case) -> None:
    other = "frame" if case.format.name == "batch" else "batch"
    with case.open() as log:
        case.topic(log)
        with pytest.raises(TopicMismatch):
            log.topic(TOPIC, config={"cordwood.format": other})
        with pytest.raises(InvalidSetting, match="cannot be changed"):
            log.data_directory.topics.alter(TOPIC, config={"cordwood.format": other})


@over_every_case("memory")
def test_compaction_is_refused_where_records_have_no_keys(case: Case) -> None:
    settings = {"cordwood.format": case.format.name, "cleanup.policy": "compact"}
    with case.open() as log:
        if case.format.holds.keys:
            log.topic(TOPIC, config=settings)
            return
        with pytest.raises(InvalidSetting, match=f"records of format {case.format.name} have no keys"):
            log.topic(TOPIC, config=settings)
        assert log.topics == []


# --- Idempotent producers ------------------------------------------------------------------------


def sent(case: Case, log: cordwood.Log, sequence: int) -> int:
    """Have producer 7 send a record with this sequence number; return the offset it is told."""
    data = encode(Sent(7, 0, sequence, (b"%d" % sequence,)))
    partition = log.data_directory.partitions.own(TOPIC, 0)
    appended = partition.append_received(case.format.receive(memoryview(data), BatchTerms(1 << 20)))
    partition.commit()
    return appended.base_offset


@over_every_case("memory")
def test_a_batch_that_is_sent_again_is_stored_once_while_its_producer_is_known(case: Case) -> None:
    """By this process, and by the next one after a clean close, whether records say who sent them or not."""
    with case.open() as log:
        case.topic(log)
        assert [sent(case, log, number) for number in (0, 1, 1, 0, 2)] == [0, 1, 1, 0, 2]
        log.topic(TOPIC).append(b"another's", partition=0)
    with case.open() as log:
        assert [sent(case, log, number) for number in (2, 1, 3)] == [2, 1, 4]
        with pytest.raises(OutOfSequence):
            sent(case, log, 9)
        assert log.topic(TOPIC).high_watermark(0) == 5


@over_every_case("memory")
def test_a_producer_goes_on_after_a_crash(case: Case) -> None:
    """Where records say who sent them it is known; where not, it is a new one, and never refused."""
    with case.open() as log:
        case.topic(log)
        sent(case, log, 0)
    with case.open() as log:
        assert [sent(case, log, number) for number in (1, 2)] == [1, 2]
        killed = case.copy()
    with killed.open() as log:
        assert sent(case, log, 3) == 3
        assert sent(case, log, 3) == 3
        known = case.format.holds.stamps
        assert sent(case, log, 2) == 2 if known else True
        assert log.topic(TOPIC).high_watermark(0) == 4


# --- The sink ------------------------------------------------------------------------------------


@over_every_case("memory")
def test_a_batch_of_the_sink_is_refused_before_anything_of_it_is_promised(case: Case) -> None:
    """What a format cannot hold is found while it can still be refused, or the partition would be stuck."""
    held = {
        "a time before 1970": (frame_of(b"v", key=None, timestamp=-1), case.format.name != "rustlog"),
        "a header of zeros": (frame_of(b"", key=None, timestamp=0), case.format.name != "rustlog"),
        "a key": (frame_of(b"v"), case.format.holds.keys),
    }
    with case.open() as log:
        case.fill(case.topic(log), 0, 3)
        data, end = log.data_directory, 3
        for number, (what, (frame, holds)) in enumerate(held.items()):
            staged = writer(case.files, number)
            staged.append(target_of(data, TOPIC, 0), frame_of(b"fine", key=None))
            staged.append(target_of(data, TOPIC, 0), frame)
            shares = staged.finish()
            if holds:
                assert data.publisher.publish(QUERY, number, shares), what
                end += 2
            else:
                with pytest.raises(RecordRefused):
                    data.publisher.publish(QUERY, number, shares)
            assert log.topic(TOPIC).log_end_offset(0) == end
        case.appended_alike(log.topic(TOPIC))


# --- Streams -------------------------------------------------------------------------------------


@over_every_case()
def test_a_stream_is_one_record_and_one_that_fails_leaves_nothing(case: Case) -> None:
    """Rows 55 to 58: length and checksum on the fly, a threshold, and a rollback of everything."""

    def failing() -> Iterator[bytes]:
        yield b"some"
        raise ZeroDivisionError

    with case.open() as log:
        topic = case.topic(log)
        case.fill(topic, 0, 5)
        chunks = [b"a" * 100, b"", b"b" * 50, b"c"]
        placed = topic.append_stream(iter(chunks), partition=0, timestamp=BEGAN_MS)
        assert placed.offset == 5
        assert list(topic.read(0, 5)) == [Record(5, BEGAN_MS, None, b"".join(chunks))]
        room = log.data_directory.partitions.own(TOPIC, 0).stream_bytes_max()
        before = case.image()
        with pytest.raises(StreamTooLong):
            topic.append_stream([b"x" * (room + 1)], partition=0)
        with pytest.raises(StreamTooLong):
            topic.append_stream([b"abc", b"d"], partition=0, max_bytes=3)
        with pytest.raises(ZeroDivisionError):
            topic.append_stream(failing(), partition=0)
        assert case.image() == {**before, join(case.root, "tmp"): None}
        topic.append_stream([], partition=0, timestamp=BEGAN_MS)
        case.appended_alike(topic)
    with case.open() as log:
        values = [record.value for record in case.topic(log).read(0, 5)]
        assert values == [b"".join(chunks), b"", b"one more"]


@over_every_case()
def test_a_large_stream_reads_back_whole(case: Case) -> None:
    chunks = [bytes([number]) * 300_000 for number in range(9)]
    with case.open() as log:
        topic = case.topic(log, segment_bytes=str(8 << 20))
        topic.append_stream(iter(chunks), partition=0)
        case.appended_alike(topic)
    with case.open() as log:
        assert [record.value for record in log.topic(TOPIC).read(0)] == [b"".join(chunks), b"one more"]


# --- Truncating ----------------------------------------------------------------------------------


@over_every_case()
def test_truncation_cuts_anywhere_and_the_log_goes_on(case: Case) -> None:
    """Within a segment, between segments, all of it; in the active one and in sealed ones."""
    with case.open() as log:
        topic = case.topic(log)
        case.fill(topic, 0, COUNT)
        bases = sorted({int(name[:20]) for name in case.names()})
        cuts = [COUNT, COUNT - 1, bases[-1] + 1, bases[-1], bases[2] + 1, bases[1], bases[1] - 1, 1, 0]
        for cut in cuts:
            case.fill(topic, topic.log_end_offset(0), cut)
            topic.truncate(0, cut)
            assert list(topic.read(0)) == case.expected(cut)
            assert topic.log_end_offset(0) == cut
            case.fill(topic, cut, cut + 2)
            assert list(topic.read(0)) == case.expected(cut + 2)
            assert not [name for name in case.names() if name.endswith(".cut")]
            topic.truncate(0, cut)
    with case.open() as log:
        topic = case.topic(log)
        assert list(topic.read(0)) == []
        case.fill(topic, 0, 5)
    with case.open() as log:
        assert list(case.topic(log).read(0)) == case.expected(5)


@over_every_case()
def test_the_log_start_moves_and_files_below_it_go(case: Case) -> None:
    with case.open() as log:
        topic = case.topic(log)
        case.fill(topic, 0, COUNT)
        bases = sorted({int(name[:20]) for name in case.names()})
        topic.advance_log_start(0, bases[2] + 1)
        assert list(topic.read(0, bases[2] + 1)) == case.expected(COUNT, bases[2] + 1)
        assert min(case.names()) >= f"{bases[2]:020d}"
        assert log.reports == []
    with case.open() as log:
        assert case.topic(log).log_start_offset(0) == bases[2] + 1
        case.appended_alike(case.topic(log))


# --- Indexes and times ---------------------------------------------------------------------------


@over_every_case()
def test_an_index_that_was_deleted_comes_back_byte_for_byte(case: Case) -> None:
    with case.open() as log:
        case.fill(case.topic(log), 0, COUNT)
    written = {name: case.read(name) for name in case.names()}
    gone = [name for name in written if name.partition(".")[2] in case.derived]
    assert gone
    for name in gone:
        case.files.unlink(case.path(name))
    with case.open() as log:
        topic = case.topic(log)
        for record in case.expected(COUNT):
            assert list(topic.read(0, record.offset, record.offset + 1)) == [record]
    assert {name: case.read(name) for name in case.names()} == written


@over_every_case("memory", where=lambda format_: format_.record_per_frame)
def test_every_hundredth_record_has_an_index_entry_unless_told_otherwise(case: Case) -> None:
    """D3: the first one, then every hundredth; and what the interval was is kept with the segment."""
    with case.open() as log:
        topic = log.topic(TOPIC, config={"cordwood.format": case.format.name})
        topic.append_many([(None, b"%d" % number) for number in range(250)], partition=0)
        topic.append_many([(None, b"%d" % number) for number in range(250, 301)], partition=0)
        assert [record.value for record in topic.read(0, 237, 239)] == [b"237", b"238"]
    name = f"{0:020d}.idx"
    if "idx" not in case.derived:
        assert name not in case.names()
        assert len(case.read(f"{0:020d}.index")) == 16 + 301 * 16
        return
    entries = case.read(name)
    offsets = [int.from_bytes(entries[at : at + 8], "big") for at in range(0, len(entries), 16)]
    assert offsets == [0, 100, 200, 300]


@over_every_case()
def test_the_first_record_at_or_after_a_time_is_found_exactly(case: Case) -> None:
    with case.open(sync="never") as log:
        topic = case.topic(log)
        case.fill(topic, 0, COUNT)
        records = case.expected(COUNT)
        asked = 0
        for time in range(BEGAN_MS - 5, BEGAN_MS + COUNT * 10 + 5, 3):
            expected = next((record.offset for record in records if record.timestamp >= time), None)
            assert topic.offset_at(time) == expected, time
            asked += 1
        assert asked > 100


@over_every_case("memory")
def test_indexes_of_all_of_some_or_of_no_segments_are_in_memory(case: Case) -> None:
    """Row 50: whatever is kept, what is read is the same; those used last are kept."""
    with case.open() as log:
        case.fill(case.topic(log), 0, COUNT)
        sealed = len(log.data_directory.partitions.own(TOPIC, 0).state.sealed)
    assert sealed > 2
    for kept in (-1, 0, 1, 2):
        config = load_broker_config({"cordwood.index.cache.segments": str(kept)}, environment={})[0]
        with contextlib.closing(DataDirectory(Opening(case.files, case.root, config))) as data:
            partition, loaded = data.partitions.own(TOPIC, 0), data.context.open_files.indexes
            for offset in (*range(COUNT), *range(COUNT - 1, 0, -1)):
                (run, *_) = partition.read(offset, 1).runs
                assert next(run.records()) == case.record(offset) or not case.format.record_per_frame
                assert len(loaded) <= max(kept, 0)
            assert len(loaded) == max(kept, 0)
            in_memory = [segment._index is not None for segment in partition.view.segments[:-1]]
            assert sum(in_memory) == (sealed if kept < 0 else kept)
            assert in_memory[:kept] == [True] * kept if kept > 0 else True


# --- After a crash -------------------------------------------------------------------------------


def torn(case: Case) -> tuple[Case, dict[str, tuple[int, int]]]:
    """Return a killed log whose last record was never synced, and what of each file it took, [start, end)."""
    with case.open() as log:
        topic = case.topic(log, segment_bytes="100000")
        case.fill(topic, 0, 7)
    before = {suffix: len(case.read(f"{0:020d}.{suffix}")) for suffix in case.authoritative}
    log = case.open(sync="never")
    topic = log.topic(TOPIC)
    topic.append(b"torn", partition=0, timestamp=BEGAN_MS)
    killed = case.copy()
    log.close()
    spans = {suffix: (size, len(killed.read(f"{0:020d}.{suffix}"))) for suffix, size in before.items()}
    return killed, spans


@over_every_case("memory")
def test_a_record_torn_at_any_byte_is_lost_alone(case: Case) -> None:
    """However much of its bytes, and of its entry beside them, reached the disk (row 71)."""
    killed, spans = torn(case)
    whole = {suffix: killed.read(f"{0:020d}.{suffix}") for suffix in spans}
    cases = 0
    for suffix, (start, end) in spans.items():
        for kept in range(start, end):
            for filler in (b"", bytes(end - kept), b"\xa5" * (end - kept)):
                path, data = killed.path(f"{0:020d}.{suffix}"), whole[suffix][:kept] + filler
                if data == whole[suffix]:
                    continue
                found = killed.copy({path: data})
                with found.open() as log:
                    topic = log.topic(TOPIC)
                    assert list(topic.read(0)) == case.expected(7), (suffix, kept, filler[:1])
                    case.appended_alike(topic)
                with found.open() as log:
                    assert log.topic(TOPIC).high_watermark(0) == 8
                cases += 1
    kept_whole = killed.copy()
    with kept_whole.open() as log:
        assert [record.value for record in log.topic(TOPIC).read(0, 7)] == [b"torn"]
    print(f"{case}: {cases} torn tails")


@over_every_case("posix", "direct")
def test_a_torn_record_is_cut_off_on_a_real_disk(case: Case) -> None:
    _, spans = torn(case)
    for suffix in spans:
        with case.open() as log:
            topic = log.topic(TOPIC)
            end = topic.log_end_offset(0)
            case.appended_alike(topic)
        file = case.files.open(case.path(f"{0:020d}.{suffix}"), "write")
        file.truncate(file.size() - 3)
        file.close()
        # The mark says that it was synced; without one, nobody can tell it from a torn tail.
        case.files.unlink(join(case.root, "topics", TOPIC, "0", "mark"))
        case.files.unlink(join(case.root, "meta", "clean"))
        with case.open() as log:
            assert log.topic(TOPIC).high_watermark(0) == end
            case.appended_alike(log.topic(TOPIC))
            log.topic(TOPIC).truncate(0, 5)


@over_every_case("memory")
def test_a_cut_tail_is_kept_in_quarantine(case: Case) -> None:
    killed, spans = torn(case)
    start, end = spans["log"]
    data = killed.read(f"{0:020d}.log")
    torn_tail = data[start : end - 1]
    found = killed.copy({killed.path(f"{0:020d}.log"): data[: end - 1]})
    with found.open() as log:
        (report,) = log.reports
        assert report.truncated_bytes >= len(torn_tail.rstrip(b"\0"))
    kept = [found.files.list(join(found.root, "quarantine"))]
    contents = {data for path, data in found.image().items() if "/quarantine/" in path and data is not None}
    assert torn_tail in contents
    assert len(kept[0]) == len(spans)


@over_every_case("memory")
def test_every_flipped_bit_is_found_or_harmless(case: Case) -> None:
    """Bytes all over every segment file, sealed and active, one bit of it wrong: original, or a refusal."""
    with case.open() as log:
        topic = log.topic(
            TOPIC,
            config={
                "segment.bytes": "260",
                "index.interval.bytes": "100",
                "cordwood.index.interval.records": "2",
                "cordwood.format": case.format.name,
            },
        )
        case.fill(topic, 0, 9)
    problems, original = Problems(), contents_of(case.files)
    for name in case.names():
        data, path = case.read(name), case.path(name)
        base, _, suffix = name.partition(".")
        paths = tuple(case.path(f"{base}.{each}") for each in case.authoritative)
        damage = Damage(paths, derived=suffix in case.derived)
        for at in range(0, len(data), every(3)):
            changed = bytearray(data)
            changed[at] ^= 1 << at % 8
            found = case.copy({path: bytes(changed)})
            problems.add(f"{name} byte {at}", look(found.files, original, damage))
    print(f"{case}: {problems.cases} flipped bytes, all found or harmless")
    assert not problems.counts, str(problems)
    assert problems.cases > 130


@over_every_case("memory")
def test_a_lost_file_is_named_and_costs_only_its_segment(case: Case) -> None:
    with case.open() as log:
        case.fill(case.topic(log), 0, COUNT)
    original, problems = contents_of(case.files), Problems()
    for name in case.names():
        base, _, suffix = name.partition(".")
        paths = tuple(case.path(f"{base}.{each}") for each in case.authoritative)
        found = case.copy()
        found.files.unlink(case.path(name))
        problems.add(name, look(found.files, original, Damage(paths, derived=suffix in case.derived)))
    assert not problems.counts, str(problems)
    assert problems.cases > 10


@over_every_case("memory")
def test_a_partition_of_another_format_is_refused_and_not_cut(case: Case) -> None:
    """Its frames would all pass for a torn tail: the metadata are looked at first."""
    with case.open() as log:
        case.fill(case.topic(log), 0, 5)
    directory = join(case.root, "topics", TOPIC, "0")
    for other in set(FORMATS) - {case.format.name}:
        found = case.copy()
        state = read_state(found.files, directory)
        write_state(found.files, directory, msgspec.structs.replace(state, record_format=other))
        # As after a crash: every partition is opened, and looked through past its mark.
        found.files.unlink(join(case.root, "meta", "clean"))
        before = found.image()
        for read_only in (True, False):
            with found.open(read_only=read_only) as log, pytest.raises(MetadataDamaged, match=other):
                list(log.topic(TOPIC).read(0))
        partition = {path: data for path, data in before.items() if path.startswith(directory)}
        assert {path: found.image().get(path) for path in partition} == partition


# --- When the disk refuses -----------------------------------------------------------------------


@over_every_case("memory")
def test_a_full_disk_refuses_an_append_whole_and_takes_it_later(case: Case) -> None:
    """Whichever write it is that finds no space, that of the frames or that of their entries (row 57)."""
    refused = 0
    for fail_at in range(1, 25):
        for short in (None, 5):
            one = Case(case.format, "memory", type(case.files)(), case.root)
            with one.open() as log:
                case.fill(case.topic(log), 0, 5)
            faulty = FaultyFiles(one.files)
            with replace(one, files=faulty).open() as log:
                topic = log.topic(TOPIC)
                topic.append_many([case.row(5)], partition=0)
                plan = FaultPlan(fail_at, frozenset({"write"}), errno.ENOSPC, short=short)
                faulty.plan(plan)
                for number in range(6, 9):
                    while True:
                        try:
                            topic.append_many([case.row(number)], partition=0)
                            break
                        except DiskFull:
                            refused += 1
                            assert topic.log_end_offset(0) == number
                faulty.heal()
                assert list(topic.read(0)) == case.expected(9)
            with one.open() as log:
                assert list(log.topic(TOPIC).read(0)) == case.expected(9)
    print(f"{case}: {refused} appends refused")
    assert refused >= 2 * len(case.authoritative)


def acknowledged_until_it_fails(case: Case, faulty: FaultyFiles) -> tuple[dict[int, bytes | None], int]:
    """Append, stream, roll and cut until a call fails; return what was acknowledged, and the lowest cut."""
    kept: dict[int, bytes | None] = {}
    lowest = 1 << 62
    with contextlib.suppress(StorageError), replace(case, files=faulty).open() as log:
        topic = log.topic(TOPIC)
        partition = log.data_directory.partitions.own(TOPIC, 0)
        for turn in range(3):
            for number in range(4):
                value = b"%d of turn %d" % (number, turn) + b"." * 40
                kept[topic.append(value, partition=0).offset] = value
            kept[topic.append_stream([b"streamed", b"%d" % turn], partition=0).offset] = b"streamed%d" % turn
            cut = partition.log_end_offset - 2
            lowest = min(lowest, cut)
            partition.truncate(cut)
            kept = {offset: value for offset, value in kept.items() if offset < cut}
            partition.roll()
    return kept, lowest


@over_every_case("memory", where=lambda format_: format_.record_per_frame)
def test_whichever_call_fails_nothing_acknowledged_is_lost(case: Case) -> None:
    """Calls to the disk fail once, in turn, with EIO; then the log is opened on a disk that works.

    `CORDWOOD_SWEEP_FULL=1` lets every one of them fail, and not only some.
    """
    failed = 0
    for call in count(1, every(7)):
        one = Case(case.format, "memory", type(case.files)(), case.root)
        with one.open() as log:
            case.fill(case.topic(log), 0, 3)
        faulty = FaultyFiles(one.files, FaultPlan(call, error=errno.EIO))
        kept, lowest = acknowledged_until_it_fails(one, faulty)
        failed += faulty.failures
        with one.open() as log:
            topic = log.topic(TOPIC)
            found = {record.offset: record.value for record in topic.read(0)}
            assert sorted(found) == list(range(len(found))), f"call {call}"
            for offset, value in kept.items():
                assert found.get(offset) == value or offset >= lowest, f"call {call}, offset {offset}"
            for record in case.expected(3):
                assert found[record.offset] == record.value
            case.appended_alike(topic)
        with one.open() as log:
            assert log.topic(TOPIC).high_watermark(0) == len(found) + 1
        if not faulty.failures:
            break
    print(f"{case}: {failed} calls failed in turn")
    assert failed > 50


# --- What goes -----------------------------------------------------------------------------------


@over_every_case()
def test_retention_removes_whole_segments_with_all_their_files(case: Case) -> None:
    with case.open(sync="never") as log:
        topic = case.topic(log, retention_bytes="500")
        case.fill(topic, 0, COUNT)
        removed = topic.remove_expired()
        start = topic.log_start_offset(0)
        assert removed == start > 0
        assert list(topic.read(0, start)) == case.expected(COUNT, start)
        assert min(int(name[:20]) for name in case.names()) == start
    with case.open() as log:
        case.appended_alike(case.topic(log))


@over_every_case(where=lambda format_: format_.holds.keys)
def test_compaction_keeps_the_last_record_of_each_key_at_its_offset(case: Case) -> None:
    """Where a frame is one record, the last one of a segment stays too: nothing else can lead on from it."""
    with case.open(sync="never") as log:
        topic = case.topic(log, cleanup_policy="compact", segment_bytes="300")
        rows = [(b"k%d" % (number % 4), b"v%d" % number, (), BEGAN_MS + number) for number in range(COUNT)]
        for row in rows:
            topic.append_many([row], partition=0)
        topic.roll(0)
        log.maintain(force=True)
        found = list(topic.read(0))
        assert [record.offset for record in found][-4:] == list(range(COUNT - 4, COUNT))
        for record in found:
            assert (record.key, record.value) == rows[record.offset][:2]
        last = {info.next_offset - 1 for info in log.data_directory.partitions.own(TOPIC, 0).state.sealed}
        extra = {record.offset for record in found} - set(range(COUNT - 4, COUNT))
        assert extra <= last
        for offset in range(COUNT):
            at_or_after = next(record for record in found if record.offset >= offset)
            assert next(iter(topic.read(0, offset))) == at_or_after
        for time in range(BEGAN_MS, BEGAN_MS + COUNT):
            assert topic.offset_at(time) == next(r.offset for r in found if r.timestamp >= time)
        topic.append(b"one more", key=b"k9", partition=0)
    written = {name: case.read(name) for name in case.names()}
    for name in written:
        if name.partition(".")[2] in case.derived:
            case.files.unlink(case.path(name))
    with case.open() as log:
        topic = log.topic(TOPIC)
        assert list(topic.read(0))[:-1] == found
        for record in found:
            assert next(iter(topic.read(0, record.offset))) == record
    assert {name: case.read(name) for name in case.names()} == written
    with case.open() as log:
        topic = log.topic(TOPIC)
        for cut in (COUNT - 2, COUNT - 9, 3):
            topic.truncate(0, cut)
            kept = [record for record in found if record.offset < cut]
            assert list(topic.read(0)) == kept
            topic.append(b"after", key=b"a", partition=0)
            assert [record.offset for record in topic.read(0)] == [*(r.offset for r in kept), cut]
            topic.truncate(0, cut)


class LastOfEach:
    """Knows by heart which records have a later one with their key."""

    def __init__(self, last: dict[bytes, int]) -> None:
        self._last = last

    def superseded(self, column: BinaryBuffers, offsets: Buffer, rows: int) -> bytearray:
        ends, numbers = memoryview(column.offsets).cast("B").cast("i"), numbers_in(offsets)
        keys = [bytes(memoryview(column.data)[ends[row] : ends[row + 1]]) for row in range(rows)]
        return bytearray(numbers[row] < self._last[keys[row]] for row in range(rows))


@over_every_case("memory", where=lambda format_: format_.holds.keys)
def test_compaction_elsewhere_gives_the_same_files(case: Case) -> None:
    """Written by tasks to ``tmp/`` and swapped in, as Spark does it, or here: byte for byte the same."""
    rows = [(b"k%d" % (number % 4), b"v%d" % number, (), BEGAN_MS + number) for number in range(COUNT)]
    with case.open() as log:
        topic = case.topic(log, cleanup_policy="compact", segment_bytes="300")
        for row in rows:
            topic.append_many([row], partition=0)
        topic.roll(0)
    elsewhere = case.copy()
    with case.open() as log:
        log.maintain(force=True)
    keys = LastOfEach({row[0]: offset for offset, row in enumerate(rows)})
    config = load_broker_config(environment={})[0]
    compact_staged(
        Opening(elsewhere.files, elsewhere.root, config, clock=TickingClock()),
        TOPIC,
        lambda works: [write_group(elsewhere.files, work, keys) for work in works],
        force=True,
    )
    assert elsewhere.names() == case.names()
    for name in case.names():
        assert elsewhere.read(name) == case.read(name), name
    assert len(case.names()) < COUNT


# --- Beside a writer -----------------------------------------------------------------------------


@over_every_case()
def test_a_reader_beside_the_writer_follows_appends_rolls_and_cuts(case: Case) -> None:
    with case.open(sync="each") as log:
        topic = case.topic(log)
        case.fill(topic, 0, 5)
        with case.open(read_only=True) as beside:
            reading = beside.topic(TOPIC)
            assert list(reading.read(0)) == case.expected(5)
            case.fill(topic, 5, COUNT)
            assert list(reading.read(0)) == case.expected(COUNT)
            topic.truncate(0, COUNT - 3)
            assert list(reading.read(0)) == case.expected(COUNT - 3)
            topic.truncate(0, 4)
            assert list(reading.read(0)) == case.expected(4)
            case.fill(topic, 4, COUNT)
            assert list(reading.read(0, 2)) == case.expected(COUNT, 2)
            for time in range(BEGAN_MS, BEGAN_MS + COUNT * 10, 35):
                assert reading.offset_at(time) == topic.offset_at(time)


# --- Elsewhere -----------------------------------------------------------------------------------


@over_every_case("memory", "posix")
def test_a_backup_brings_all_files_and_is_restored_up_to_any_offset(case: Case) -> None:
    target, restored = f"{case.root}-backup", f"{case.root}-restored"
    with case.open(sync="never") as log:
        topic = case.topic(log)
        case.fill(topic, 0, 20)
        log.close()
    with case.open(sync="each") as log:
        topic = case.topic(log)
        cordwood.backup(case.root, target, files=case.files)
        case.fill(topic, 20, COUNT)
        # Again: sealed segments are there already, the one that took appends goes on.
        report = cordwood.backup(case.root, target, files=case.files)
        assert not report.damaged
    for end in (COUNT, 23, 7):
        place = f"{restored}-{end}"
        cordwood.restore(target, place, to_offsets={(TOPIC, 0): end}, files=case.files)
        again = replace(case, root=place)
        with again.open() as log:
            assert all(report.damage is None for report in log.reports)
            assert list(log.topic(TOPIC).read(0)) == case.expected(end)
            case.appended_alike(log.topic(TOPIC))
        suffixes = {name.partition(".")[2] for name in again.names()}
        assert suffixes == {*case.authoritative, *case.derived}


@over_every_case("memory")
def test_a_chain_follows_frames_of_any_format_and_what_becomes_of_them(case: Case) -> None:
    with case.open() as log:
        settings = {"cleanup_policy": "compact"} if case.format.holds.keys else {"retention_bytes": "300"}
        topic = case.topic(log, cordwood_chain="true", **settings)
        for number in range(COUNT):
            key = b"k%d" % (number % 5) if case.format.holds.keys else None
            topic.append(b"%d" % number, key=key, partition=0)
        topic.roll(0)
        for _ in range(2):
            report = log.maintain(force=True)
            assert report.failures == ()
        assert topic.high_watermark(0) == COUNT
        assert len(list(topic.read(0, topic.log_start_offset(0)))) < COUNT


@over_every_case("posix")
def test_indexes_are_built_anew_by_command_as_they_were(case: Case) -> None:
    with case.open(sync="never") as log:
        case.fill(case.topic(log), 0, COUNT)
    written = {name: case.read(name) for name in case.names()}
    wrong = [name for name in written if name.partition(".")[2] in case.derived and written[name]]
    for name in wrong:
        file = case.files.open(case.path(name), "write")
        file.write_at(0, [b"\xff" * 9])
        file.close()
    opening = Opening(files=case.files, path=case.root, config=load_broker_config(environment={})[0])
    report = reindex_directory(opening)
    assert sorted(rebuilt.path for rebuilt in report.rebuilt) == [case.path(name) for name in wrong]
    assert not report.damaged
    assert {name: case.read(name) for name in case.names()} == written


# --- Of single formats ---------------------------------------------------------------------------


@over_every_case(where=lambda format_: format_.chained)
def test_the_chain_goes_on_over_segments_restarts_cuts_and_removals(case: Case) -> None:
    """Rows 13 and 15: a reader that knows nothing of us follows every link."""

    for start in range(0, COUNT, 8):
        with case.open() as log:
            topic = case.topic(log)
            case.fill(topic, start, start + 8)
            topic.append_stream([b"streamed ", b"%d" % start], partition=0)
            topic.truncate(0, start + 8)
            if start == 16:
                topic.truncate(0, 9)
                case.fill(topic, 9, start + 8)
    stores = [case.read(name) for name in case.names() if name.endswith(".log")]
    assert [record["position"] for record in read_kimberlite.records(stores)] == list(range(COUNT))
    with case.open() as log:
        topic = case.topic(log)
        topic.roll(0)
        topic.advance_log_start(0, COUNT)
        assert [name for name in case.names() if name.endswith(".log")] == [f"{COUNT:020d}.log"]
    with case.open() as log:
        case.fill(case.topic(log), COUNT, COUNT + 4)
    followed = [*stores, case.read(f"{COUNT:020d}.log")]
    assert [r["position"] for r in read_kimberlite.records(followed)] == list(range(COUNT + 4))


@over_every_case("memory", where=lambda format_: format_.chained)
def test_a_record_that_does_not_follow_the_one_before_is_refused(case: Case) -> None:
    """A stale record that is sound by itself, put back in its place, breaks the chain after it."""
    with case.open() as log:
        topic = case.topic(log, segment_bytes="100000")
        topic.append(b"stale 1", partition=0, timestamp=BEGAN_MS)
        stale = case.read(f"{0:020d}.log")
        topic.truncate(0, 0)
        topic.append(b"fresh 1", partition=0, timestamp=BEGAN_MS)
        topic.append(b"fresh 2", partition=0, timestamp=BEGAN_MS)
    data = case.read(f"{0:020d}.log")
    found = case.copy({case.path(f"{0:020d}.log"): stale + data[len(stale) :]})
    with found.open() as log, pytest.raises(CorruptRange, match="hash of the record before"):
        list(log.topic(TOPIC).read(0))


def test_positions_of_32_bits_end_a_segment_before_they_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 39: the limit is the format's, whatever the topic allows."""
    assert LaminarmqFormat.store_bytes_max == 1 << 32
    monkeypatch.setattr(LaminarmqFormat, "store_bytes_max", 300)
    with cordwood.open(":memory:") as log:
        topic = log.topic(TOPIC, config={"cordwood.format": "laminarmq"})
        for number in range(20):
            topic.append(b"%d" % number + b"." * 30, partition=0)
        sizes = [info.size for info in log.data_directory.partitions.own(TOPIC, 0).state.sealed]
        assert len(sizes) > 2
        assert max(sizes) <= 300
        assert [record.offset for record in topic.read(0)] == list(range(20))
        with pytest.raises(RecordRefused, match="300"):
            topic.append(b"." * 400, partition=0)
        assert topic.append(b"fits", partition=0).offset == 20
