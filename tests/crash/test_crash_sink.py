"""Crash enumeration of the exactly-once sink: stage, intent, append or adopt, close.

`CORDWOOD_CRASH_LIMIT` sets how many images are looked at per power cut (0 is all of them). By default one is,
of every other cut, and after a second cut or a kill of fewer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from support.clocks import HookedFiles
from support.crashes import CrashCount, CrashImage, Violation, again, crash_images, violation_of
from support.disks import RecordingFile, RecordingFiles
from support.publishing import (
    ALWAYS,
    DATA,
    MIXED,
    NEVER,
    QUERY,
    Begun,
    Certain,
    Plan,
    Promise,
    Run,
    Workload,
    adopting,
    check_files,
    check_sink,
    contents_of,
    open_log,
    staged_files,
)

from cordwood.disk import files as files_module
from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError
from cordwood.formats.receiving import BatchTerms
from cordwood.storage.log import mark_writer as mark_keeper
from cordwood.storage.log.changes import adoption
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.storage.sink import intents, publishing, staging
from cordwood.storage.sink.journal import Intent, Journal, journal_path, read_journal
from cordwood.storage.sink.publishing import Publisher

LIMIT = int(os.environ.get("CORDWOOD_CRASH_LIMIT", "1")) or None
STRIDE = 1 if "CORDWOOD_CRASH_LIMIT" in os.environ else 14
#: Five small frames a segment: every batch is rolled over.
SMALL = {"segment.bytes": "400", "index.interval.bytes": "100"}
ROOMY = {"index.interval.bytes": "100"}
P0, P1, OTHER = ("orders", 0), ("orders", 1), ("other", 0)
WAYS_IN = {"appended": NEVER, "adopted": ALWAYS, "both": MIXED}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync the mark in steps that a small workload reaches."""
    monkeypatch.setattr(mark_keeper, "MARK_SYNC_BYTES", 200)


def plan(task: str, **frames: int) -> Plan:
    """What a task has: so many frames for each of p0, p1 and other, the second of each with two records."""
    names = {"p0": P0, "p1": P1, "other": OTHER}
    return {
        names[where]: [
            [f"{task}-{where}-{n}{part}".encode() for part in ("ab" if n == 1 else "a")] for n in range(count)
        ]
        for where, count in frames.items()
    }


def batches_between_appends(files: RecordingFiles, config: Mapping[str, str] = ROOMY) -> None:
    """Two tasks, three partitions, records before, between and after."""
    work = Workload(files, config)
    work.append(P0, b"before")
    work.batch(0, plan("0t0", p0=2, p1=1), plan("0t1", p0=1, p1=2, other=1))
    work.append(P1, b"between")
    work.batch(1, plan("1t0", p1=1), plan("1t1", p0=2))
    work.append(P0, b"after")
    work.log.close()


def batches_over_rolls(files: RecordingFiles) -> None:
    """Shares that span segments, with a reopening and a second query."""
    work = Workload(files, SMALL)
    work.append(P0, b"before" * 20)
    work.batch(0, plan("0t0", p0=6, p1=2), plan("0t1", p0=3))
    work.reopen()
    work.batch(0, plan("q2", p0=1, other=5), query="another")
    work.append(P0, b"after")


def the_first_batch_of_all(files: RecordingFiles) -> None:
    """Into partitions that do not exist yet, and an empty batch after it."""
    work = Workload(files, ROOMY)
    work.batch(3, plan("3t0", p0=1, p1=1))
    work.publish(4, ())
    work.kill()
    work.batch(7, plan("7t0", p1=1, other=1), plan("7t1", p1=1))


def some_images(recording: RecordingFiles, stride: int, count: CrashCount) -> Iterator[CrashImage]:
    """Yield every so many of the disks a power cut could leave, one of each kind, and count those."""
    for number, image in enumerate(crash_images(recording, limit_per_prefix=LIMIT)):
        if number % stride == 0 or not count.counts[image.kind]:
            count.note(image.kind, image.digest, new=True)
            yield image


WORKLOADS: list[Run] = [batches_between_appends, batches_over_rolls, the_first_batch_of_all]


@pytest.mark.parametrize("way_in", WAYS_IN)
def test_no_power_cut_publishes_a_part_of_a_batch_or_one_twice_or_loses_a_promised_one(way_in: str) -> None:
    """E1, E2, E3 on every disk; and the query goes on from there."""
    count = CrashCount()
    with adopting(WAYS_IN[way_in]):
        for workload in WORKLOADS:
            before = count.total
            recording = RecordingFiles(MemoryFiles())
            workload(recording)
            for image in some_images(recording, 2 if STRIDE > 1 else 1, count):
                try:
                    check_sink(image)
                except Exception as error:
                    place = f"{workload.__name__}: cut after {image.prefix} operations, {image.kind}"
                    raise AssertionError(f"{place}: {error}") from error
            print(f"{way_in}, {workload.__name__}: {count.total - before} distinct images")
    print("\n".join(count.report()))
    count.require(250)


def recover_on(image: CrashImage) -> RecordingFiles:
    """Open the image on a recording disk; what a reader is shown then is certain."""
    recording = again(image)
    promise = Promise.of(image.acknowledged)
    data = open_log(recording).data_directory
    if promise.begun is not None and contents_of(data) == promise.after():
        recording.acknowledge(Certain())
    return recording


@pytest.mark.parametrize("way_in", WAYS_IN)
def test_no_power_cut_while_a_batch_is_rolled_forward_does_either(way_in: str) -> None:
    """The recovery that publishes what has an intent can be cut anywhere too."""
    count, recovered = CrashCount(), 0
    with adopting(WAYS_IN[way_in]):
        for workload in WORKLOADS:
            recording = RecordingFiles(MemoryFiles())
            workload(recording)
            seen: set[int] = set()
            for image in crash_images(recording, limit_per_prefix=3):
                if image.prefix in seen or image.prefix % 5 or not has_open_intent(image.files):
                    continue
                seen.add(image.prefix)
                recovered += 1
                for second in some_images(recover_on(image), STRIDE, count):
                    check_sink(second)
    print(f"{way_in}: {recovered} recoveries cut")
    print("\n".join(count.report()))
    assert recovered >= 20
    assert count.total >= 80


def has_open_intent(files: Files) -> bool:
    """Whether a batch is to be rolled forward."""
    return any(
        files.exists(journal_path(DATA, query)) and read_journal(files, DATA, query).intent is not None
        for query in (QUERY, "another")
    )


class Killed(BaseException):
    """kill -9, as far as the engine can tell: no further call is made."""


def publish_and_be_killed_at(call: int, files: RecordingFiles) -> bool:
    """Die before a call of a publication, go on with the same cache as another process.

    The query asks for its batch again, as Spark would. Returns whether there was such a call.
    """
    hooked = HookedFiles(files)
    work = Workload(files, SMALL, hooked)
    for name in (P0, P1, OTHER):
        work.append(name, f"before in {name}".encode())
    plans = plan("0t0", p0=3, p1=1), plan("0t1", p0=1, other=1)
    shares = work.stage(0, *plans)
    calls = 0

    def die(kind: str, path: str) -> None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise Killed

    hooked.before = die
    files.acknowledge(Begun(begun_values(plans), QUERY, 0, shares))
    killed = False
    try:
        work.data.publisher.publish(QUERY, 0, shares)
    except Killed:
        killed = True
    hooked.before = lambda kind, path: None
    files.began = len(files.history)
    work.kill()
    work.data.publisher.publish(QUERY, 0, shares)
    files.acknowledge(Certain())
    work.append(P1, b"after")
    return killed


def begun_values(plans: tuple[Plan, ...]) -> Any:
    """Return what the plans come to, as a promise has it."""
    found: dict[tuple[str, int], tuple[bytes, ...]] = {}
    for each in plans:
        for name, frames in each.items():
            found[name] = found.get(name, ()) + tuple(value for frame in frames for value in frame)
    return tuple(found.items())


@pytest.mark.parametrize("way_in", ["appended", "adopted"])
def test_no_power_cut_after_a_killed_publisher_was_replaced_takes_anything_back(way_in: str) -> None:
    """What the first one left in the cache, the second one must not take for synced (E1, E2, R7)."""
    count, kills, broken = CrashCount(), 0, list[str]()
    with adopting(WAYS_IN[way_in]):
        call = 1
        while True:
            recording = RecordingFiles(MemoryFiles())
            if not publish_and_be_killed_at(call, recording):
                break
            kills += 1
            # Where names are missing, what the first one did not sync shows.
            names = ("names dropped", "names and data dropped")
            images = crash_images(recording, limit_per_prefix=LIMIT, kinds=names)
            for number, image in enumerate(images):
                if number % STRIDE == call % STRIDE:
                    count.note(image.kind, image.digest, new=True)
                    try:
                        check_sink(image)
                    except Exception as error:
                        place = f"killed at call {call}, cut after {image.prefix} operations, {image.kind}"
                        broken.append(f"{place}: {error}")
            call += 3 if STRIDE > 1 else 1
    print(f"{way_in}: {kills} kills, {count.images} images")
    assert kills >= 20
    assert count.total >= 50
    assert not broken, f"{len(broken)}: {broken[0]}"


# --- Canaries -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def unsynced_files(matches: Callable[[str], bool]) -> Iterator[None]:
    """Files whose path matches are never synced."""
    real = RecordingFile.sync

    def sync(self: RecordingFile) -> None:
        if not matches(self.path):
            real(self)

    with patch.object(RecordingFile, "sync", sync):
        yield


@contextlib.contextmanager
def unsynced_directories(matches: Callable[[str], bool]) -> Iterator[None]:
    """Directories whose path matches are never synced."""
    real = RecordingFiles.sync_directory

    def sync_directory(self: RecordingFiles, path: str) -> None:
        if not matches(path):
            real(self, path)

    with patch.object(RecordingFiles, "sync_directory", sync_directory):
        yield


@contextlib.contextmanager
def the_intent_is_not_synced_before_the_append() -> Iterator[None]:
    with unsynced_files(lambda path: "meta/sink" in path):
        yield


@contextlib.contextmanager
def the_name_of_the_intent_is_not_synced_before_the_append() -> Iterator[None]:
    with unsynced_directories(lambda path: path.endswith("meta/sink")):
        yield


@contextlib.contextmanager
def the_directory_of_the_journals_is_not_synced() -> Iterator[None]:
    real = Publisher._write

    def write(self: Publisher, journal: Journal) -> None:
        with unsynced_directories(lambda path: path.endswith("meta")):
            real(self, journal)

    with patch.object(Publisher, "_write", write):
        yield


@contextlib.contextmanager
def adopted_without_a_sync_of_the_directory_it_came_from() -> Iterator[None]:
    real = PartitionLog.adopt

    def adopt(self: PartitionLog, path: str, size: int) -> Any:
        with unsynced_directories(lambda directory: "tmp/sink" in directory):
            return real(self, path, size)

    with patch.object(PartitionLog, "adopt", adopt):
        yield


@contextlib.contextmanager
def the_append_comes_before_the_intent() -> Iterator[None]:
    real = Publisher._write

    def write(self: Publisher, journal: Journal) -> None:
        if journal.intent is not None:
            logs = {
                staging.StagedTarget(p.topic, p.topic_id, p.partition): self._partitions.writable(
                    p.topic, p.partition
                )
                for p in journal.intent.places
            }
            self._append(journal.query, journal.intent, logs)
        real(self, journal)

    with patch.object(Publisher, "_write", write):
        yield


@contextlib.contextmanager
def closed_before_the_appends_are_synced() -> Iterator[None]:
    real = Publisher._append

    def append(self: Publisher, query: str, intent: Intent, logs: Any) -> None:
        with patch.object(PartitionLog, "commit", lambda self, offset=None: self.show(self.end)):
            real(self, query, intent, logs)

    with patch.object(Publisher, "_append", append):
        yield


@contextlib.contextmanager
def a_share_that_is_not_synced() -> Iterator[None]:
    with patch.object(staging.ShareWriter, "_sync", lambda self, file: None):
        yield


@contextlib.contextmanager
def the_directory_of_a_share_is_not_synced() -> Iterator[None]:
    with patch.object(staging.ShareWriter, "_sync_names", lambda self: None):
        yield


@contextlib.contextmanager
def rolled_forward_from_the_first_frame_again() -> Iterator[None]:
    def append_section(
        self: Publisher, log: PartitionLog, path: str, share: Any, section: Any, offset: int
    ) -> None:
        format_ = log.format
        for frame in staging.read_frames(self._files, path, section, format_, log.config.stored_bytes_max):
            log.append_received(format_.receive(memoryview(frame), BatchTerms(log.config.stored_bytes_max)))

    with patch.object(Publisher, "_append_section", append_section):
        yield


@contextlib.contextmanager
def adopted_before_its_offsets_are_synced() -> Iterator[None]:
    real = adoption._number

    def number(*arguments: Any) -> int:
        with patch.object(RecordingFile, "sync", lambda self: None):
            return real(*arguments)

    with patch.object(adoption, "_number", number):
        yield


@contextlib.contextmanager
def the_published_batch_is_ignored() -> Iterator[None]:
    real = read_journal

    def read(files: Files, data: str, query: str) -> Journal:
        return msgspec.structs.replace(real(files, data, query), published=-1)

    with patch.object(publishing, "read_journal", read):
        yield


@contextlib.contextmanager
def an_open_intent_is_left_for_later() -> Iterator[None]:
    """Not finished at the opening, when nobody else can append."""
    with patch.object(Publisher, "finish_all", lambda self: {}):
        yield


@contextlib.contextmanager
def shares_are_collected_before_the_batch_is_closed() -> Iterator[None]:
    real = Publisher._append

    def append(self: Publisher, query: str, intent: Intent, logs: Any) -> None:
        shares = {path: files_module.read_file(self._files, path) for path in staged_files(self._files)}
        for path in shares:
            self._files.unlink(path)
        with patch.object(publishing, "read_frames", read_from(shares)):
            real(self, query, intent, logs)

    with patch.object(Publisher, "_append", append):
        yield


def read_from(shares: Mapping[str, bytes]) -> Callable[..., Iterator[bytearray]]:
    """Return what reads frames of files that are gone."""

    def read_frames(
        files: Files, path: str, section: Any, format_: Any, size_max: int
    ) -> Iterator[bytearray]:
        if path not in shares:
            yield from staging.read_frames(files, path, section, format_, size_max)
            return
        position, end = section.position, section.position + section.size
        while position < end:
            size = format_.frame_size(shares[path][position : position + format_.header_size])
            yield bytearray(shares[path][position : position + size])
            position += size

    return read_frames


@contextlib.contextmanager
def plans_are_made_without_a_look_at_open_intents() -> Iterator[None]:
    with patch.object(intents, "_open_in", lambda *looks: intents.NO_INTENTS):
        yield


CANARIES: list[tuple[Callable[[], Any], int]] = [
    (the_intent_is_not_synced_before_the_append, NEVER),
    (the_name_of_the_intent_is_not_synced_before_the_append, NEVER),
    (the_directory_of_the_journals_is_not_synced, NEVER),
    (adopted_without_a_sync_of_the_directory_it_came_from, ALWAYS),
    (the_append_comes_before_the_intent, NEVER),
    (closed_before_the_appends_are_synced, NEVER),
    (a_share_that_is_not_synced, NEVER),
    (a_share_that_is_not_synced, ALWAYS),
    (the_directory_of_a_share_is_not_synced, NEVER),
    (the_directory_of_a_share_is_not_synced, ALWAYS),
    (rolled_forward_from_the_first_frame_again, NEVER),
    (adopted_before_its_offsets_are_synced, ALWAYS),
    (the_published_batch_is_ignored, NEVER),
    (an_open_intent_is_left_for_later, NEVER),
    (shares_are_collected_before_the_batch_is_closed, NEVER),
    (plans_are_made_without_a_look_at_open_intents, NEVER),
    (plans_are_made_without_a_look_at_open_intents, ALWAYS),
]


def first_violation(workload: Run) -> Violation | None:
    """Return what the first image that breaks a promise breaks."""
    recording = RecordingFiles(MemoryFiles())
    workload(recording)
    for image in crash_images(recording, seed=0, limit_per_prefix=LIMIT):
        try:
            check_sink(image)
        except Exception as error:
            return violation_of(error, image.kind, image.prefix)
    return None


def caught(planted: Callable[[], Any], threshold: int) -> Violation | None:
    """Run the workloads under a planted bug and return the first broken promise."""
    with adopting(threshold), planted():
        for workload in (batches_between_appends, batches_over_rolls):
            try:
                violation = first_violation(workload)
            except CordwoodError as error:
                violation = violation_of(error)
            if violation is not None:
                return violation
    return None


@pytest.mark.parametrize(
    ("planted", "threshold"),
    CANARIES,
    ids=[f"{c[0].__name__}-{'adopted' if c[1] == ALWAYS else 'appended'}" for c in CANARIES],
)
def test_a_planted_bug_of_the_sink_is_caught(planted: Callable[[], Any], threshold: int) -> None:
    violation = caught(planted, threshold)
    assert violation is not None, f"{planted.__name__} survived"
    print(f"caught: {planted.__name__.replace('_', ' ')}: {violation}")


def test_the_check_of_the_sink_accepts_a_directory_without_a_crash() -> None:
    """A check that refuses everything would catch every canary."""
    recording = RecordingFiles(MemoryFiles())
    batches_between_appends(recording)
    acknowledged = tuple(op.what for op in recording.history if hasattr(op, "what"))
    check_files(recording.inner, Promise.of(acknowledged))
