"""Crash enumeration for every record format: the disks a power cut could leave, each opened with the engine.

`CORDWOOD_CRASH_LIMIT` sets how many images are looked at per power cut (default 2, 0 is all of them).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from crash import test_crash_maintenance
from crash.test_crash_engine import small_steps
from support import publishing
from support.crashes import ALL_KINDS, CrashCount, CrashImage, again, crash_images, survives, violation_of
from support.disks import RecordingFiles
from support.promises import Promise, Run, Seen, Workload, check_promises, open_and_read

import cordwood
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, DirectoryRefused, MetadataDamaged
from cordwood.formats.per_record.record_per_frame import RecordPerFrame
from cordwood.formats.registry import FORMATS
from cordwood.storage.log import active_segment
from cordwood.storage.log import state as partition_state
from cordwood.storage.log.changes import rolling
from cordwood.storage.log.opening import recovery

__all__ = ["small_steps"]

LIMIT = int(os.environ.get("CORDWOOD_CRASH_LIMIT", "2")) or None
OTHERS = [name for name, format_ in FORMATS.items() if format_.record_per_frame]
WITH_SIDECAR = [name for name in OTHERS if FORMATS[name].sidecar is not None]


def settings(name: str, **more: str) -> dict[str, str]:
    """Return small segments of this format, an index entry for every other record."""
    return {
        "segment.bytes": "400",
        "cordwood.index.interval.records": "2",
        "cordwood.format": name,
        **{key.replace("_", "."): text for key, text in more.items()},
    }


def edges(data: bytes) -> list[int]:
    """Tear writes at the edges of headers and of entries too."""
    return [4, 8, 12, 16, 20, 32, 40, len(data) - 1]


def a_life_of(name: str) -> Run:
    """Return a workload of that format: appends of one and of several, rolls, cuts, moves, restarts."""

    def life(files: RecordingFiles) -> None:
        work = Workload(files, settings(name, preallocate="true"))
        work.append(20)
        work.write(5)
        work.write(6, 7)
        work.commit()
        for size in (60, 90, 120):
            work.append(size, 10)
            work.clock.ms += 900
        work.truncate(work.partition.log_end_offset - 1)
        work.append(30)
        # Into a sealed segment, whose files are copied.
        work.truncate(3)
        work.append(31, 32)
        # Over several sectors, more than once.
        work.write(1_200)
        work.write(700, 600)
        work.commit()
        work.partition.roll()
        work.append(8)
        work.advance(4)
        work.write(40)
        work.reopen()
        work.append(9)
        work.write(10)
        work.kill()
        work.write(11)
        work.commit()
        work.close()

    life.__name__ = f"a life of {name}"
    return life


def cut_everywhere(workloads: list[Run]) -> CrashCount:
    """Look at the images of every workload; return how many there were."""
    count = CrashCount()
    for workload in workloads:
        before = count.total
        recording = RecordingFiles(MemoryFiles())
        workload(recording)
        for image in crash_images(recording, limit_per_prefix=LIMIT, edges=edges, count=count):
            try:
                check_promises(image)
            except Exception as error:
                place = f"{workload.__name__}: cut after {image.prefix} operations, {image.kind}"
                raise AssertionError(f"{place}: {error}") from error
        print(f"{workload.__name__}: {count.total - before} distinct images")
    print("\n".join(count.report()))
    return count


def test_no_power_cut_loses_what_was_acknowledged_in_any_format() -> None:
    """Frames and what is kept beside them are both synced before an acknowledgement, and both recovered."""
    count = cut_everywhere([a_life_of(name) for name in OTHERS])
    # Whatever names a cut takes here, another fault has given the same disk before.
    count.require(2_000, [kind for kind in ALL_KINDS if not kind.startswith("names")])


def recover_on(image: CrashImage) -> RecordingFiles:
    """Open the image with the engine, on a recording disk, and note what a reader saw."""
    recording = again(image)
    log, _ = open_and_read(recording, Promise())
    if "t" in log.topics:
        recording.acknowledge(Seen(log.topic("t").high_watermark(0)))
    return recording


def test_no_power_cut_during_the_recovery_of_any_format_loses_anything_either() -> None:
    count, recovered = CrashCount(), 0
    for name in OTHERS:
        recording = RecordingFiles(MemoryFiles())
        a_life_of(name)(recording)
        for n, image in enumerate(crash_images(recording, limit_per_prefix=4, edges=edges)):
            if n % 101:
                continue
            recovered += 1
            for second in crash_images(recover_on(image), limit_per_prefix=4, count=count):
                check_promises(second)
    print(f"{recovered} recoveries cut")
    print("\n".join(count.report()))
    assert recovered >= 40
    assert count.total >= 200


def test_no_power_cut_publishes_a_part_of_a_sinks_batch_or_one_twice_in_another_format() -> None:
    """A batch of the sink is many frames there, of which a crash may leave the first ones."""
    count = CrashCount()
    for name in ("frame", "laminarmq"):
        recording = RecordingFiles(MemoryFiles())
        work = publishing.Workload(recording, settings(name))
        work.batch(0, {("orders", 0): [[b"a", b"b", b"c"], [b"d"]], ("orders", 1): [[b"e", b"f"]]})
        work.append(("orders", 0), b"after")
        images = crash_images(recording, limit_per_prefix=LIMIT, edges=edges, count=count)
        for image in images:
            try:
                publishing.check_sink(image)
            except Exception as error:
                place = f"{name}: cut after {image.prefix} operations, {image.kind}"
                raise AssertionError(f"{place}: {error}") from error
    print("\n".join(count.report()))
    assert count.total >= 200


def test_no_power_cut_during_compaction_leaves_a_mix_in_formats_with_keys() -> None:
    """Log, sidecar and indexes of a segment take their new names one after the other, and fit all the same.

    Also for a reader beside it, before anybody has finished the swap.
    """
    count, checked = CrashCount(), 0
    for name in ("frame", "laminarmq"):
        config = patch.dict(test_crash_maintenance.CONFIG, {"cordwood.format": name})
        with config:
            for workload in (test_crash_maintenance.compacting, test_crash_maintenance.cutting):
                recording = RecordingFiles(MemoryFiles())
                workload(recording)
                images = crash_images(recording, limit_per_prefix=2, edges=edges, count=count)
                for number, image in enumerate(images):
                    if number % 9:
                        continue
                    checked += 1
                    try:
                        read_beside(image)
                        test_crash_maintenance.check(image)
                    except Exception as error:
                        place = f"{name}, {workload.__name__}: {image.prefix} operations, {image.kind}"
                        raise AssertionError(f"{place}: {error}") from error
    print(f"{checked} disks of {count.total} checked")
    assert checked >= 200


def read_beside(image: CrashImage) -> None:
    """Read everything without changing anything, as far as a directory is there and its mark is not torn."""
    with (
        contextlib.suppress(DirectoryRefused, MetadataDamaged),
        cordwood.open(test_crash_maintenance.DATA, files=image.files, read_only=True) as log,
    ):
        for topic in map(log.topic, log.topics):
            list(topic.read(0, topic.log_start_offset(0)))


# --- Planted bugs --------------------------------------------------------------------------------


@contextmanager
def a_sidecar_that_is_not_synced_before_the_acknowledgement() -> Iterator[None]:
    with patch.object(active_segment.ActiveSegment, "sync", lambda self: self.store.sync()):
        yield


@contextmanager
def frames_that_are_not_synced_before_the_acknowledgement() -> Iterator[None]:
    with patch.object(
        active_segment.ActiveSegment, "sync", lambda self: self.sidecar and self.sidecar.sync()
    ):
        yield


@contextmanager
def checksums_of_the_sidecar_not_compared() -> Iterator[None]:
    def find(self: Any, buffer: Any, position: int, entry: Any, start: int, *limits: int) -> Any:
        with patch.object(type(self.sidecar), "checksum", lambda *arguments: entry.checksum):
            return real(self, buffer, position, entry, start, *limits)

    real = RecordPerFrame._find
    with patch.object(RecordPerFrame, "_find", find):
        yield


class SkippingOneSync:
    """A file whose first sync does nothing."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._skipped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        if self._skipped:
            self._file.sync()
        self._skipped = True


@contextmanager
def a_recovered_sidecar_that_is_not_synced() -> Iterator[None]:
    def open_sidecar(self: Any, bound: Any) -> Any:
        file, lost = real(self, bound)
        return file and SkippingOneSync(file), lost

    real = recovery._Recovery._open_sidecar
    with patch.object(recovery._Recovery, "_open_sidecar", open_sidecar):
        yield


@contextmanager
def a_link_to_the_record_before_that_is_forgotten_at_a_roll() -> Iterator[None]:
    real = partition_state.sealed_state
    with patch.object(rolling, "sealed_state", lambda state, info, left=b"": real(state, info)):
        yield


def unsynced_and_killed(name: str) -> Run:
    """Return a workload whose frames are shown by the next writer after a kill."""

    def workload(files: RecordingFiles) -> None:
        work = Workload(files, settings(name))
        for size in (20, 70):
            work.append(size)
            work.write(size)
            work.write(size + 1)
            work.kill()
            work.write(5)
        work.commit()

    return workload


CANARIES: list[tuple[Callable[[], Any], Callable[[str], Run], list[str]]] = [
    (a_sidecar_that_is_not_synced_before_the_acknowledgement, a_life_of, WITH_SIDECAR),
    (frames_that_are_not_synced_before_the_acknowledgement, a_life_of, WITH_SIDECAR),
    (checksums_of_the_sidecar_not_compared, a_life_of, WITH_SIDECAR),
    (a_recovered_sidecar_that_is_not_synced, unsynced_and_killed, WITH_SIDECAR),
    (a_link_to_the_record_before_that_is_forgotten_at_a_roll, a_life_of, ["kimberlite"]),
]


@pytest.mark.parametrize(("planted", "workload", "names"), CANARIES, ids=[c[0].__name__ for c in CANARIES])
def test_a_bug_planted_in_what_formats_need_is_caught(
    planted: Callable[[], Any], workload: Callable[[str], Run], names: list[str]
) -> None:
    for name in names:
        with planted():
            try:
                violation = survives(
                    workload(name),
                    check_promises,
                    images_max=60_000,
                    seed=0,
                    limit_per_prefix=LIMIT,
                    edges=edges,
                )
            except CordwoodError as error:
                # It took no power cut: the engine refuses to go on.
                violation = violation_of(error)
        assert violation is not None, f"{planted.__name__} survived in {name}"
        print(f"caught in {name}: {planted.__name__.replace('_', ' ')}: {violation}")
