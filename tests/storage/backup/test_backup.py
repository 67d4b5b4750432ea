"""Backup beside a live writer: what it holds, what it never copies twice, and what a crash leaves of it."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from support.clocks import HookedFiles, ManualClock
from support.crashes import SEED, crash_images
from support.data_directory import flipped, put
from support.disks import FaultPlan, FaultyFiles, RecordingFiles, image
from support.logs import DATA, disk_of, segment_file
from support.sweeps import every

import cordwood
from cordwood.broker import staging as sink
from cordwood.config.loading import load_broker_config
from cordwood.disk.checked_json import write_metadata
from cordwood.disk.files import Files, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, DirectoryLocked, DirectoryRefused, StorageError
from cordwood.storage.backup.create import back_up
from cordwood.storage.backup.record import read_record
from cordwood.storage.backup.transfer import STAGING_PREFIX, BackupReport, Transfer
from cordwood.storage.log.state import read_state
from cordwood.storage.sink.journal import Intent, Journal, journal_path, read_journal
from cordwood.verify import verify_directory

BACKUP = "/backup"
SMALL = {"segment.bytes": "330", "index.interval.bytes": "100", "cordwood.chain": "false"}
#: The one with a chain.
COMPACTED = {
    **SMALL,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "cordwood.chain": "true",
}
CONFIG = load_broker_config()[0]

Contents = Mapping[tuple[str, int], tuple[int, int, tuple[tuple[int, bytes | None], ...]]]
Action = Callable[[cordwood.Log], object]


def run(files: Files, **options: Any) -> BackupReport:
    return back_up(Transfer(files, DATA, BACKUP, CONFIG, clock=ManualClock(), uuid="backup", **options))


def opened(files: Files, path: str = DATA, *, read_only: bool = False) -> cordwood.Log:
    return cordwood.open(path, files=files, clock=ManualClock(), read_only=read_only)


def contents(files: Files, path: str = BACKUP) -> Contents:
    """Return the bounds and records of every partition, as a reader beside the writer sees them."""
    found = {}
    with opened(files, path, read_only=True) as log:
        for name in log.topics:
            topic = log.topic(name)
            for partition in range(log.entry(name).partitions):
                start, end = topic.log_start_offset(partition), topic.high_watermark(partition)
                records = topic.read(partition, start=start)
                found[name, partition] = start, end, tuple((r.offset, r.value) for r in records)
    return found


def assert_sound(files: Files, path: str = BACKUP) -> None:
    report = verify_directory(files, path)
    assert report.sound, [each for each in report.findings if each.severity != "note"]


def fill(log: cordwood.Log, start: int = 0, count: int = 9) -> None:
    """Append to a topic that keeps all and to one that keeps the last of each key."""
    orders, keys = log.topic("orders", 2, SMALL), log.topic("keys", 1, COMPACTED)
    for i in range(start, start + count):
        orders.append(b"order %d" % i, partition=0)
        keys.append(b"value %d" % i, key=b"k%d" % (i % 3))


@cache
def first_image() -> Mapping[str, bytes | None]:
    files = MemoryFiles()
    with opened(files) as log:
        fill(log)
        log.topic("unused")
    return image(files, "/")


@cache
def second_image(change: Action) -> Mapping[str, bytes | None]:
    """A source that changed since its backup."""
    files = disk_of(first_image())
    run(files)
    with opened(files) as log:
        change(log)
    return image(files, "/")


def grow(log: cordwood.Log) -> None:
    fill(log, 9, 7)
    log.topic("later", 1, SMALL).append(b"new")


def compact(log: cordwood.Log) -> None:
    fill(log, 9, 7)
    assert log.maintain(force=True).compacted


def cut_sealed(log: cordwood.Log) -> None:
    log.topic("orders").truncate(0, 5)
    fill(log, 20, 6)


def cut_active(log: cordwood.Log) -> None:
    topic = log.topic("orders")
    topic.truncate(0, 8)
    topic.append(b"instead", partition=0)


def expire(log: cordwood.Log) -> None:
    fill(log, 9, 7)
    log.topic("orders").advance_log_start(0, 14)


def cut_and_compact(log: cordwood.Log) -> None:
    log.maintain(force=True)
    log.topic("keys").truncate(0, 7)
    log.topic("keys").append(b"instead", key=b"k1")


def recreate(log: cordwood.Log) -> None:
    log.delete_topic("orders")
    log.topic("orders", 2, SMALL).append(b"another", partition=1)


CHANGES: dict[str, Action] = {
    "grow": grow,
    "compact": compact,
    "cut sealed": cut_sealed,
    "cut active": cut_active,
    "expire": expire,
    "cut and compact": cut_and_compact,
    "recreate": recreate,
    "nothing": lambda log: None,
}


# --- What a backup is ---------------------------------------------------------------------------------


def test_a_backup_is_a_data_directory_with_everything_that_was_acknowledged() -> None:
    files = disk_of(first_image())
    before = image(files, DATA)
    report = run(files)
    assert report.sound
    assert image(files, DATA) == before
    assert contents(files) == contents(files, DATA)
    assert_sound(files)
    with opened(files, BACKUP) as log:
        log.topic("orders").append(b"it goes on", partition=0)
    assert image(files, DATA) == before
    assert_sound(files)


def test_sealed_segments_are_linked_and_the_active_one_is_copied() -> None:
    files = disk_of(first_image())
    report = run(files)
    assert (report.linked, report.copied, report.kept) == (4, 0, 0)
    state = read_state(files, f"{BACKUP}/topics/orders/0")
    assert all(info.sha256 for info in state.sealed)
    record = read_record(files, BACKUP)
    assert record is not None
    assert record.complete
    hows = {file.how for partition in record.partitions for file in partition.files}
    assert hows == {"linked"}


def test_where_files_cannot_be_linked_they_are_copied() -> None:
    class Apart(HookedFiles):
        def link(self, source: str, target: str) -> None:
            raise OSError(errno.EXDEV, "another file system", source)

    files = disk_of(first_image())
    report = run(Apart(files))
    assert (report.linked, report.copied) == (0, 4)
    assert contents(files) == contents(files, DATA)
    assert_sound(files)


@pytest.mark.parametrize("options", [{"link": False}, {"verify": False}, {"link": False, "verify": False}])
@pytest.mark.parametrize("change", CHANGES)
def test_every_way_to_bring_it_brings_the_same(change: str, options: dict[str, bool]) -> None:
    files = disk_of(second_image(CHANGES[change]))
    run(files, **options)
    assert contents(files) == contents(files, DATA)
    assert_sound(files)
    fresh = disk_of(image(files, DATA))
    run(fresh, **options)
    assert contents(fresh) == contents(files, DATA)
    assert_sound(fresh)


def test_staging_topics_and_what_is_in_tmp_are_left_out() -> None:
    assert STAGING_PREFIX == sink.STAGING_PREFIX
    files = disk_of(first_image())
    with opened(files) as log:
        log.topic(f"{sink.STAGING_PREFIX}x").append(b"not published")
    put(files, f"{DATA}/tmp/sink/key/1/1-1-1.share", b"staged")
    run(files)
    assert {topic for topic, _ in contents(files)} == {"orders", "keys", "unused"}
    assert not files.list(f"{BACKUP}/tmp")
    assert_sound(files)


@pytest.mark.parametrize("change", CHANGES)
def test_neither_directory_changes_a_file_of_the_other(change: str) -> None:
    """Their sealed segments are the same files."""
    files = disk_of(first_image())
    run(files)
    before = image(files, BACKUP)
    with opened(files) as log:
        CHANGES[change](log)
    assert image(files, BACKUP) == before
    run(files)
    assert_own(files)


def test_a_lost_segment_of_a_backup_is_never_replaced_through_a_link() -> None:
    """Recovery begins a new segment where the lost one ended, in place: no link may have that name."""
    files = disk_of(first_image())
    with opened(files) as log:
        log.topic("orders").roll()
        log.topic("orders").append(b"just one", partition=0)
    run(files)
    with opened(files) as log:
        log.topic("orders").roll()
        fill(log, 20, 5)
    before = image(files, DATA)
    hooked = HookedFiles(files)

    def fail(kind: str, path: str) -> None:
        if kind == "rename" and path == f"{BACKUP}/topics/orders/0/partition.json.tmp":
            raise OSError(errno.EIO, "killed", path)

    hooked.before = fail
    with pytest.raises(CordwoodError):
        run(hooked)
    files.unlink(f"{BACKUP}/topics/orders/0/segments/{9:020d}.log")
    with opened(files, BACKUP) as log:
        log.topic("orders").append(b"its own", partition=0)
    assert image(files, DATA) == before


def test_a_segment_is_not_linked_before_it_is_certain_to_stay_sealed() -> None:
    """If a power cut takes back that it was, its writer goes on in it, and cuts it, in place."""
    disk = disk_of(first_image())
    recording = RecordingFiles(disk, existing="/")
    writing = HookedFiles(recording)
    log = opened(writing)
    renamed = False

    def at_commit(kind: str, path: str, result: object) -> None:
        nonlocal renamed
        renamed = renamed or (kind == "rename" and path.endswith("orders/0/partition.json.tmp"))

    def before_sync(kind: str, path: str) -> None:
        if renamed and kind == "sync_directory":
            run(recording)
            recording.acknowledge("backed up")
            raise OSError(errno.EIO, "the power goes", path)

    writing.after, writing.before = at_commit, before_sync
    with pytest.raises(CordwoodError):
        log.topic("orders").roll()
    looked = 0
    for crashed in crash_images(recording, limit_per_prefix=3):
        if not crashed.acknowledged:
            continue
        files, looked = crashed.files, looked + 1
        before = image(files, BACKUP)
        with opened(files) as again:
            again.topic("orders").append(b"goes on", partition=0)
            again.topic("orders").truncate(0, 8)
        assert image(files, BACKUP) == before
        assert_sound(files)
    print(f"{looked} disks after the power cut")
    assert looked


# --- Again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_backup_is_what_a_first_one_would_be(change: str) -> None:
    files = disk_of(second_image(CHANGES[change]))
    before = image(files, DATA)
    run(files)
    assert image(files, DATA) == before
    assert contents(files) == contents(files, DATA)
    assert_sound(files)
    for name in ("orders/1" if change == "recreate" else "orders/0", "keys/0"):
        ours, theirs = (read_state(files, f"{path}/topics/{name}") for path in (BACKUP, DATA))
        assert (ours.epochs, ours.log_start_offset) == (theirs.epochs, theirs.log_start_offset)
        names = {name.partition(".")[0] for name in files.list(f"{BACKUP}/topics/{name}/segments")}
        assert names == {f"{base:020d}" for base in (*(i.base for i in ours.sealed), ours.active_base)}


class Counting(HookedFiles):
    """Counts the bytes that are written to logs of the backup, and the links."""

    def __init__(self, inner: Files) -> None:
        super().__init__(inner)
        self.links = 0
        self.log_bytes = 0

    def open(self, path: str, mode: Any) -> Any:
        file = super().open(path, mode)
        if "/segments/" in path and ".log" in path:
            write_at = file.write_at

            def counted(position: int, buffers: Any) -> int:
                written: int = write_at(position, buffers)
                self.log_bytes += written
                return written

            file.write_at = counted  # type: ignore[method-assign]
        return file

    def link(self, source: str, target: str) -> None:
        self.links += 1
        super().link(source, target)


@pytest.mark.parametrize("link", [True, False])
def test_nothing_is_copied_twice(link: bool) -> None:
    """Over a first backup and two more, each byte of a log is written once: also the active segment's."""
    files = disk_of(first_image())
    counting = Counting(files)
    run(counting, link=link)
    links = counting.links
    assert run(counting, link=link).copied_bytes == 0
    assert counting.links == links
    with opened(files) as log:
        fill(log, 9, 7)
    report = run(counting, link=link)
    with opened(files) as log:
        size = sum(log.topic(name).size(partition) for name, partition in contents(files, DATA))
    written = counting.log_bytes
    print(f"{written} of {size} bytes were written to logs, {counting.links} links")
    assert report.kept == 4
    assert written == size if not link else written < size
    assert (counting.links == 0) is not link
    assert contents(files) == contents(files, DATA)


def test_a_backup_that_changed_nothing_changes_nothing_but_its_record() -> None:
    files = disk_of(first_image())
    run(files)
    before = image(files, BACKUP)
    report = run(files)
    assert (report.linked, report.copied, report.kept, report.copied_bytes) == (0, 0, 4, 0)
    after = image(files, BACKUP)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed <= {f"{BACKUP}/meta/backup.json"}


def test_a_compaction_is_followed_by_swaps_and_its_old_files_go() -> None:
    files = disk_of(second_image(compact))
    report = run(files)
    assert report.linked
    state = read_state(files, f"{BACKUP}/topics/keys/0")
    assert any(info.generation for info in state.sealed)
    names = {name.partition(".")[0] for name in files.list(f"{BACKUP}/topics/keys/0/segments")}
    assert names == {f"{base:020d}" for base in (*(i.base for i in state.sealed), state.active_base)}


# --- What is refused ----------------------------------------------------------------------------------


def test_the_backup_of_another_directory_is_refused_and_stays_as_it_is() -> None:
    files = disk_of(first_image())
    with opened(files, "/other") as log:
        fill(log)
    back_up(Transfer(files, "/other", BACKUP, CONFIG))
    before = image(files, BACKUP)
    with pytest.raises(DirectoryRefused, match="is a backup of another data directory"):
        run(files)
    assert image(files, BACKUP) == before


def test_a_data_directory_and_any_other_one_that_is_not_empty_are_refused() -> None:
    files = disk_of(first_image())
    with opened(files, BACKUP) as log:
        fill(log)
        with pytest.raises(DirectoryRefused, match="is a data directory and no backup"):
            run(files)
    other = disk_of({**first_image(), f"{BACKUP}/photo": b"dear"})
    with pytest.raises(DirectoryRefused, match="is not empty and no backup"):
        run(other)
    with pytest.raises(DirectoryRefused, match="is not a data directory"):
        back_up(Transfer(other, "/nowhere", "/elsewhere", CONFIG))
    assert not other.exists("/elsewhere")
    with pytest.raises(DirectoryRefused, match="lie within each other"):
        back_up(Transfer(other, DATA, f"{DATA}/backup", CONFIG))


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_backup_that_was_appended_to_is_a_log_of_its_own(closed: bool) -> None:
    files = disk_of(first_image())
    run(files)
    log = opened(files, BACKUP)
    log.topic("orders").append(b"written here", partition=0)
    if closed:
        log.close()
    else:
        files = disk_of(image(files, "/"))
    with pytest.raises(DirectoryRefused, match="was written to since the last backup"):
        run(files)
    assert (9, b"written here") in contents(files)["orders", 0][2]


def test_a_backup_that_somebody_made_a_topic_in_is_a_log_of_its_own() -> None:
    files = disk_of(first_image())
    run(files)
    opened(files, BACKUP).topic("another").append(b"written here")
    files = disk_of(image(files, "/"))
    with pytest.raises(DirectoryRefused, match="was written to since the last backup"):
        run(files)
    assert contents(files)["another", 0][1] == 1


def test_two_backups_at_once_are_refused() -> None:
    files = HookedFiles(disk_of(first_image()))
    refused = []

    def second(kind: str, path: str) -> None:
        files.before = lambda kind, path: None
        with pytest.raises(DirectoryLocked) as caught:
            run(files)
        refused.append(caught.value)

    files.before = lambda kind, path: second(kind, path) if kind == "link" else None
    run(files)
    assert refused


# --- Damage in the source -----------------------------------------------------------------------------


def test_damage_is_named_and_everything_else_is_backed_up() -> None:
    files = disk_of(first_image())
    path = segment_file("orders", 0, 0)
    put(files, path, flipped(read_file(files, path), 8 * 70))
    report = run(files)
    assert [(each.path, each.position) for each in report.damaged] == [(path, 0)]
    assert contents_of(files, "keys") == contents_of(files, "keys", DATA)
    assert read_file(files, path.replace(DATA, BACKUP)) == read_file(files, path)
    # A copy: whoever repairs it in one place does not touch the other.
    put(files, path, flipped(read_file(files, path), 8 * 70))
    assert run(files).sound
    assert contents(files) == contents(files, DATA)
    assert_sound(files)


def test_a_sound_file_that_is_not_the_one_that_was_sealed_is_damage() -> None:
    files = MemoryFiles()
    with opened(files) as log:
        fill(log)
        log.maintain()
    path = segment_file("orders", 0, 4)
    other = MemoryFiles()
    with opened(other) as log:
        topic = log.topic("orders", 2, SMALL)
        for i in range(9):
            topic.append(b"Order %d" % i, partition=0)
    put(files, path, read_file(other, path))
    (damage,) = run(files).damaged
    assert damage.path == path
    assert "SHA-256" in damage.reason


def test_what_a_query_was_about_to_publish_is_not_taken_for_published() -> None:
    files = disk_of(first_image())
    files.make_directories(f"{DATA}/meta/sink")
    for query, intent in (("done", None), ("open", Intent(8, (), ()))):
        journal = Journal(query=query, published=7, intent=intent)
        write_metadata(files, journal_path(DATA, query), journal)
    put(files, f"{DATA}/meta/sink/{'0' * 32}.json", b"rubbish")
    report = run(files)
    assert [each.path for each in report.damaged] == [f"{DATA}/meta/sink/{'0' * 32}.json"]
    for query in ("done", "open"):
        assert read_journal(files, BACKUP, query) == Journal(query=query, published=7)
    for name in files.list(f"{DATA}/meta/sink"):
        files.unlink(f"{DATA}/meta/sink/{name}")
    run(files)
    assert files.list(f"{BACKUP}/meta/sink") == []


def contents_of(
    files: Files, topic: str, path: str = BACKUP
) -> tuple[int, int, tuple[tuple[int, bytes | None], ...]]:
    with opened(files, path, read_only=True) as log:
        found = log.topic(topic)
        records = tuple((r.offset, r.value) for r in found.read())
        return found.log_start_offset(), found.high_watermark(), records


def test_what_the_backup_has_from_before_is_not_replaced_by_damage() -> None:
    files = disk_of(first_image())
    run(files, link=False)
    path = segment_file("orders", 0, 0)
    put(files, path, flipped(read_file(files, path), 8 * 70))
    assert run(files, link=False).sound
    assert_sound(files)


@pytest.mark.parametrize("what", ["partition.json", "mark", "segment"])
def test_a_partition_that_cannot_be_read_is_named_and_the_backup_keeps_what_it_has(what: str) -> None:
    files = disk_of(second_image(grow))
    before = contents(files)
    path = f"{DATA}/topics/orders/0/{what}"
    if what == "segment":
        path = segment_file("orders", 0, 12)
        files.unlink(path)
    else:
        put(files, path, b"rubbish")
    report = run(files)
    assert not report.sound
    assert report.damaged[0].path == path
    assert contents_of(files, "keys")[1] == 16
    if what != "segment":
        assert contents(files)["orders", 0] == before["orders", 0]
        assert_sound(files)


# --- The writer's turn at every step ------------------------------------------------------------------

#: There are eight actions, each on two directories.
STRIDE = every(16)
ACTIONS: dict[str, Action] = {
    "append": lambda log: log.topic("orders").append(b"meanwhile", partition=0),
    "roll": lambda log: log.topic("orders").roll(),
    "truncate": lambda log: log.topic("orders").truncate(0, log.topic("orders").high_watermark() - 1),
    "truncate and go on": cut_sealed,
    "compact": lambda log: log.maintain(force=True),
    "advance": lambda log: log.topic("orders").advance_log_start(0, 7),
    "delete": lambda log: log.delete_topic("orders"),
    "recreate": recreate,
}


def with_action(start: Mapping[str, bytes | None], action: Action, turn: int, **options: bool) -> bool:
    """Back up while *action* happens before the call number *turn*; return whether it came to that."""
    files = disk_of(start)
    hooked, calls, done = HookedFiles(files), 0, False
    states: list[Contents] = []
    with opened(files) as log:
        states.append(contents(files, DATA))
        before: Mapping[str, bytes | None] = image(files, DATA)

        def act(kind: str, path: str) -> None:
            nonlocal calls, done, before
            calls += 1
            if calls == turn:
                done = True
                action(log)
                states.append(contents(files, DATA))
                before = image(files, DATA)

        hooked.before = act
        report = run(hooked, **options)
        assert image(files, DATA) == before
    assert report.sound, report.damaged
    found = contents(files)
    for place in states[0].keys() | found.keys():
        expected = [state.get(place) for state in states]
        if any("left out" in note for note in report.notes) and place[0] == "orders":
            # Another topic has the name by now, which was not there when the catalogue was read.
            expected.append(None)
        assert found.get(place) in expected, (place, found.get(place), expected)
    assert_sound(files)
    return done


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("since", ["first", "compact"])
def test_whatever_the_writer_does_between_two_calls_the_backup_is_the_log_before_or_after(
    action: str, since: str
) -> None:
    start = first_image() if since == "first" else second_image(compact)
    turns = 0
    # Each action at other calls than the ones before: together they meet every call.
    turn = 1 + (list(ACTIONS).index(action) + len(ACTIONS) * (since == "compact")) % STRIDE
    while with_action(start, ACTIONS[action], turn):
        turns += 1
        turn += STRIDE
    print(f"{turns} turns of the writer: {action}, {since}")
    assert turns > 15


@pytest.mark.parametrize("action", ["compact", "truncate and go on"])
def test_what_is_not_verified_still_fits_together(action: str) -> None:
    """Without reading what comes nobody sees that a file was replaced, so the source is looked at again."""
    start, turn = second_image(grow), 1
    while with_action(start, ACTIONS[action], turn, verify=False, link=action == "compact"):
        turn += every(9)
    assert turn > 90


def test_beside_a_writer_that_never_rests_a_backup_holds_all_that_was_acknowledged_before() -> None:
    files = disk_of(first_image())
    hooked, appended = HookedFiles(files), 0
    with opened(files) as log:
        topic = log.topic("busy", 1, {"segment.bytes": "4000"})

        def act(kind: str, path: str) -> None:
            nonlocal appended
            appended += 1
            topic.append(b"busy %d" % appended)

        for number in range(3):
            end = topic.high_watermark()
            hooked.before = act
            assert run(hooked).sound
            hooked.before = lambda kind, path: None
            assert_sound(files)
            start, stop, records = contents(files)["busy", 0]
            assert (start, stop >= end, len(records)) == (0, True, stop)
            assert records == contents(files, DATA)["busy", 0][2][:stop]
            print(f"backup {number}: {stop} of {topic.high_watermark()} records")
    assert appended > 200


def test_a_writer_that_changes_its_segments_at_every_call_is_told_from_damage() -> None:
    files = disk_of(first_image())
    hooked, rolls = HookedFiles(files), 0
    with opened(files) as log:
        topic = log.topic("orders")

        def act(kind: str, path: str) -> None:
            nonlocal rolls
            rolls += 1
            topic.append(b"restless", partition=0)
            topic.roll()
            if rolls % 25 == 0:
                # Thousands of segments would only take their time.
                topic.advance_log_start(0, topic.high_watermark() - 5)

        hooked.before = act
        with pytest.raises(StorageError, match="changed during every attempt to copy it; try again"):
            run(hooked)
    assert rolls > 60
    run(files)
    assert contents(files) == contents(files, DATA)


# --- Crashes and disks that fail ----------------------------------------------------------------------


@pytest.mark.parametrize("change", ["first", *(name for name in CHANGES if name != "nothing")])
def test_a_power_cut_leaves_each_partition_as_it_was_as_it_is_now_or_between(change: str) -> None:
    start = first_image() if change == "first" else second_image(CHANGES[change])
    files = disk_of(start)
    old = {} if change == "first" else contents(files)
    recording = RecordingFiles(files, existing="/")
    run(recording, link=change != "grow")
    recording.acknowledge("backed up")
    new, looked, unfinished = contents(files), 0, 0
    for crashed in itertools.islice(crash_images(recording, limit_per_prefix=1), 0, None, every(2)):
        looked += 1
        disk = crashed.files
        record = read_record(disk, BACKUP)
        if record is not None and record == read_record(files, BACKUP):
            assert contents(disk) == new
            assert_sound(disk)
        if not disk.exists(f"{BACKUP}/meta/broker.id"):
            unfinished += 1
            with pytest.raises(CordwoodError):
                opened(disk, BACKUP, read_only=True)
        else:
            check_between(contents(disk), old, new)
            if looked % 2:
                assert_own(disk)
                continue
        run(disk)
        assert contents(disk) == new
        assert_sound(disk)
    # Once it is said to be done, all of it stays.
    recording.began = len(recording.history)
    for crashed in crash_images(recording):
        looked += 1
        assert contents(crashed.files) == new
        assert_sound(crashed.files)
    print(f"seed {SEED}: {change}, {looked} disks, {unfinished} before the first backup was there")
    assert looked > 20


def assert_own(disk: Files) -> None:
    """Whoever opens the backup and changes everything in it changes nothing in the source."""
    before = image(disk, DATA)
    with opened(disk, BACKUP) as log:
        for name in log.topics:
            topic = log.topic(name)
            for partition in range(log.entry(name).partitions):
                topic.append(b"its own", key=b"k1", partition=partition)
                start, end = topic.log_start_offset(partition), topic.high_watermark(partition)
                topic.truncate(partition, (start + end) // 2)
                topic.append(b"its own again", key=b"k1", partition=partition)
        log.maintain(force=True)
    assert_sound(disk)
    assert image(disk, DATA) == before


def check_between(found: Contents, old: Contents, new: Contents) -> None:
    """Each partition is the old one, the new one, or between: it has what both have, and nothing else."""
    for place, held in found.items():
        before, after = old.get(place, (0, 0, ())), new.get(place, (0, 0, ()))
        if held in (before, after):
            continue
        records = dict(held[2])
        both = set(before[2]) & set(after[2])
        assert both <= set(held[2]), (place, held, before, after)
        # The log start moves last: before that, records of the active segment that expired may be there.
        unexpired = {record for record in held[2] if record[0] >= after[0]}
        assert unexpired <= set(before[2]) | set(after[2]), (place, held, before, after)
        assert len(records) == len(held[2])


@pytest.mark.parametrize("change", ["first", "compact"])
def test_a_call_that_fails_anywhere_leaves_the_source_alone_and_the_next_backup_whole(change: str) -> None:
    start = first_image() if change == "first" else second_image(CHANGES[change])
    failed = reported = at = 0
    while True:
        at += every(3 if change == "first" else 5)
        files = disk_of(start)
        before = image(files, DATA)
        faulty = FaultyFiles(files, FaultPlan(at))
        try:
            report = run(faulty)
        except CordwoodError:
            failed += 1
        else:
            reported += not report.sound
            assert report.sound or faulty.failures
        assert image(files, DATA) == before
        if not faulty.failures:
            break
        run(files)
        assert contents(files) == contents(files, DATA)
        assert_sound(files)
    print(f"{change}: {at} calls, {failed} backups failed with them, {reported} named damage")
    assert failed > 20
