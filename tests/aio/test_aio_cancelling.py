"""Cancellation at every await and at every disk call: nothing acknowledged is lost, nothing is half done.

A workload runs on a recording or a failing disk, and one of its steps is cancelled somewhere. Then the log
goes on, is closed, and what is on the disk is held to what was promised.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.awaiting import OffLoopFiles, refused_here
from support.cancelling import KINDS, Cancelling, Kind
from support.crashes import CrashCount, crash_images
from support.disks import CHANGES, FaultPlan, FaultyFiles, RecordingFiles
from support.logs import DATA, SMALL, TickingClock, open_log
from support.patience import SECONDS_MAX
from support.promises import (
    TOPIC,
    Created,
    Seen,
    Stored,
    Truncated,
    Truncating,
    Written,
    check_promises,
)
from support.sweeps import every
from support.worlds import Promises

import cordwood
import cordwood.aio
from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, DirectoryLocked, LogClosed, LogFailed

Step = Callable[[], Awaitable[None]]


class AwaitedWorkload:
    """Opens, appends in every way, reads, cuts, closes and opens again; each step may be cancelled.

    A step that fails with an error of ours is left, and the next one is tried all the same.
    """

    def __init__(self, files: Files, cancelling: Cancelling) -> None:
        self.files = OffLoopFiles(files, refused_here())
        refuse = self.files.before

        def before(kind: str, path: str) -> None:
            refuse(kind, path)
            cancelling.before_disk_call(kind, path)

        self.files.before = before
        self.cancelling = cancelling
        self.promises = Promises()
        self.log: cordwood.aio.Log | None = None
        self.topic: cordwood.aio.Topic | None = None
        self.failed = False
        self.errors: list[str] = []

    async def run(self) -> None:
        for name, step in self.steps():
            try:
                await step()
            except CordwoodError as error:
                self.errors.append(f"{name}: {type(error).__name__}: {error}")
        self.cancelling.drain()

    def steps(self) -> Iterator[tuple[str, Step]]:
        yield "open", self.open
        yield "append", partial(self.append, b"0")
        yield "append", partial(self.append, b"1", b"2")
        yield "append", partial(self.append_together, b"3", b"4", b"5")
        yield "stream", partial(self.stream, b"6" * 90)
        yield "roll", self.roll
        yield "read", self.read
        yield "append", partial(self.append, b"7" * 200, b"8")
        yield "truncate", partial(self.truncate, 4)
        yield "append", partial(self.append_together, b"9", b"10", b"11")
        yield "maintain", self.maintain
        yield "close", self.close
        yield "open", self.open
        yield "append", partial(self.append, b"12")
        yield "stream", partial(self.stream, b"13" * 30)
        yield "read", self.read
        yield "close", self.close

    # --- opening and closing ----------------------------------------------------------------------

    async def open(self) -> None:
        self.log = self.topic = None
        self.failed = False
        while self.log is None:
            try:
                self.log = await self.cancelling.step(self._opened())
            except asyncio.CancelledError:
                continue
            except DirectoryLocked:
                # The log whose opening was cancelled is being closed.
                await asyncio.sleep(0)
        self.cancelling.engine = self.log._engine
        while self.topic is None:
            try:
                self.topic = await self.cancelling.step(self.log.topic(TOPIC, 1, SMALL))
            except asyncio.CancelledError:
                continue

    async def _opened(self) -> cordwood.aio.Log:
        return await cordwood.aio.open(DATA, files=self.files, clock=TickingClock())

    async def close(self) -> None:
        log, self.log = self.log, None
        self.topic = self.cancelling.engine = None
        if log is not None:
            try:
                await self.cancelling.step(log.close())
            except asyncio.CancelledError:
                await log.close()

    def opened(self) -> cordwood.aio.Topic:
        if self.topic is None:
            raise LogClosed("not open")
        return self.topic

    # --- appending --------------------------------------------------------------------------------

    async def append(self, *values: bytes) -> None:
        topic = self.opened()
        with self._uncertain(values):
            placed = await self.cancelling.step(
                topic.append_many([(None, value) for value in values], partition=0)
            )
            self.promises.appended(placed[0].offset, values)

    async def append_together(self, *values: bytes) -> None:
        """Append by a task for each value. Cancelled, some of them are stored, in their order."""
        topic = self.opened()

        async def together() -> list[Any]:
            return await asyncio.gather(
                *(topic.append(value, partition=0) for value in values), return_exceptions=True
            )

        some = [chosen for size in range(4) for chosen in itertools.combinations(values, size)]
        with self._uncertain(*some):
            found = await self.cancelling.step(together())
            for value, each in zip(values, found, strict=True):
                if not isinstance(each, BaseException):
                    self.promises.appended(each.offset, (value,))
                elif isinstance(each, LogFailed) and not self.failed:
                    self.promises.maybe_appended((value,))
            for each in found:
                if isinstance(each, BaseException):
                    raise each

    async def stream(self, value: bytes) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(value), 40):
                await asyncio.sleep(0)
                yield value[start : start + 40]

        topic = self.opened()
        with self._uncertain((value,)):
            placed = await self.cancelling.step(topic.append_stream(chunks(), partition=0))
            self.promises.appended(placed.offset, (value,))

    def _uncertain(self, *outcomes: tuple[bytes, ...]) -> Uncertain:
        return Uncertain(self, outcomes)

    # --- the rest ---------------------------------------------------------------------------------

    async def roll(self) -> None:
        topic = self.opened()
        try:
            await self.cancelling.step(topic.roll())
        except asyncio.CancelledError:
            return

    async def maintain(self) -> None:
        self.opened()
        assert self.log is not None
        try:
            await self.cancelling.step(self.log.maintain())
        except asyncio.CancelledError:
            return

    async def truncate(self, end: int) -> None:
        topic = self.opened()
        if end > min(len(world) for world in self.promises.worlds):
            return
        try:
            await self.cancelling.step(topic.truncate(0, end))
        except asyncio.CancelledError:
            self.promises.maybe_truncated(end)
        except LogFailed:
            self.promises.maybe_truncated(end)
            self.failed = True
            raise
        else:
            self.promises.truncated(end)

    async def read(self) -> None:
        topic = self.opened()

        async def everything() -> dict[int, bytes]:
            return {record.offset: record.value or b"" async for record in topic.read(0)}

        try:
            found = await self.cancelling.step(everything())
        except asyncio.CancelledError:
            found = await everything()
        self.promises.broken += [f"reading on: {each}" for each in self.promises.check(found, 0)]
        offsets = list(reversed(found))
        try:
            got = await self.cancelling.step(topic.get_many(0, offsets))
        except asyncio.CancelledError:
            return
        if [record and record.value for record in got] != [found[offset] for offset in offsets]:
            self.promises.broken.append("records by offset are others")


class Uncertain:
    """An append of which only some outcomes are possible if it is cancelled or the log fails."""

    def __init__(self, workload: AwaitedWorkload, outcomes: tuple[tuple[bytes, ...], ...]) -> None:
        self._workload = workload
        self._outcomes = outcomes

    def __enter__(self) -> None:
        self._before = set(self._workload.promises.worlds)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        workload = self._workload
        if isinstance(error, asyncio.CancelledError) or (
            isinstance(error, LogFailed) and not workload.failed
        ):
            workload.promises.worlds |= {world + more for world in self._before for more in self._outcomes}
        workload.failed = workload.failed or isinstance(error, LogFailed)
        return isinstance(error, asyncio.CancelledError)


def run_cancelled(files: Files, kind: Kind, at: int) -> tuple[AwaitedWorkload, Cancelling]:
    """Run the workload with one step cancelled, to its end."""
    made: list[tuple[AwaitedWorkload, Cancelling]] = []

    async def main() -> None:
        cancelling = Cancelling(kind, at)
        workload = AwaitedWorkload(files, cancelling)
        made.append((workload, cancelling))
        await workload.run()

    asyncio.run(asyncio.wait_for(main(), SECONDS_MAX))
    return made[0]


def problems_after(workload: AwaitedWorkload, disk: Files) -> list[str]:
    """Open the disk with the synchronous library and hold it to what was promised."""
    found = list(workload.promises.broken)
    try:
        log = open_log(disk)
    except CordwoodError as error:
        return [*found, f"opening again: {error}"]
    with log:
        if TOPIC not in log.topics:
            return [*found, "the topic is gone"] if workload.promises.acknowledged else found
        topic = log.topic(TOPIC)
        read = {record.offset: record.value or b"" for record in topic.read(0, 0)}
        found += workload.promises.check(read, 0)
        if list(read) != list(range(topic.high_watermark(0))):
            found.append("offsets are not dense")
        if topic.append(b"last").offset != len(read):
            found.append("the next offset is not the end")
    return found


def spools_on(disk: Files) -> list[str]:
    return disk.list(f"{DATA}/tmp") if disk.exists(f"{DATA}/tmp") else []


@pytest.fixture(autouse=True)
def each_chunk_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordwood.aio.streaming.HAND_OVER_BYTES", 1)


def places_of(kind: Kind, step: int) -> range:
    """Return the places of the workload where it is to be cancelled, all of them with a full sweep."""
    _, untouched = run_cancelled(MemoryFiles(), kind, 0)
    assert untouched.cancelled == 0
    return range(1, untouched.places + 1, every(step))


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_a_step_is_cancelled_the_log_goes_on_whole(kind: Kind) -> None:
    """The steps after it succeed, every acknowledged record is there, and the cancelled one whole or not."""
    places, cancelled = places_of(kind, 4 if kind == "disk call" else 1), 0
    for at in places:
        disk = MemoryFiles()
        workload, cancelling = run_cancelled(disk, kind, at)
        cancelled += cancelling.cancelled
        assert workload.errors == [], f"{kind} {at}"
        assert spools_on(disk) == [], f"{kind} {at}"
        assert problems_after(workload, disk) == [], f"{kind} {at}"
    print(f"cancelled at {cancelled} of {len(places)} places: {kind}")
    # A disk call may be made by a thread whose step has ended by then.
    assert cancelled >= len(places) * 0.8
    assert cancelled > 30


FAULTS: dict[str, Callable[[int], FaultPlan]] = {
    "EIO once": FaultPlan,
    "EIO on changes for ever": lambda n: FaultPlan(n, kinds=CHANGES, forever=True),
    "ENOSPC once": lambda n: FaultPlan(n, kinds=CHANGES, error=errno.ENOSPC),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_cancelled_step_on_a_disk_that_fails_loses_nothing_acknowledged(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Call n fails and a step is cancelled, at places that go round: the log goes on, or says LogFailed."""
    caplog.set_level(logging.CRITICAL, "cordwood.aio")
    untouched = FaultyFiles(MemoryFiles())
    _, cancelling = run_cancelled(untouched, "await", 0)
    suspensions, cases = cancelling.places, 0
    kinds = FAULTS[fault](1).kinds
    calls = sum(call in kinds for call in untouched.calls)
    for n in range(1, calls + 1, every(6)):
        disk = MemoryFiles()
        kind: Kind = ("await", "late await")[n % 2]
        at = 1 + n * 7 % suspensions
        workload, _ = run_cancelled(FaultyFiles(disk, FAULTS[fault](n)), kind, at)
        assert problems_after(workload, disk) == [], f"call {n} fails, {kind} {at} is cancelled"
        cases += 1
    print(f"{fault}: {cases} cases")
    assert cases > 20


# --- Power cuts ----------------------------------------------------------------------------------


class RecordedWorkload(AwaitedWorkload):
    """The same on a recording disk, each promise noted when it is made."""

    def __init__(self, recording: RecordingFiles, cancelling: Cancelling) -> None:
        super().__init__(recording, cancelling)
        self.recording = recording

    def steps(self) -> Iterator[tuple[str, Step]]:
        yield "open", self.open
        yield "append", partial(self.append, b"0" * 50)
        yield "append", partial(self.append_together, b"1", b"2", b"3")
        yield "stream", partial(self.stream, b"4" * 90)
        yield "append", partial(self.append, b"5" * 200, b"6")
        yield "truncate", partial(self.truncate, 2)
        yield "append", partial(self.append, b"7")
        yield "close", self.close

    async def open(self) -> None:
        await super().open()
        self.recording.acknowledge(Created())

    def _end(self) -> int:
        assert self.log is not None
        opened = self.log.data_directory.partitions.opened_own(TOPIC, 0)
        return 0 if opened is None else opened.log_end_offset

    async def append(self, *values: bytes) -> None:
        await self._noted(values, super().append(*values))

    async def append_together(self, *values: bytes) -> None:
        await self._noted(values, super().append_together(*values))

    async def stream(self, value: bytes) -> None:
        await self._noted((value,), super().stream(value))

    async def _noted(self, values: tuple[bytes, ...], appending: Awaitable[None]) -> None:
        base, cancelled = self._end(), self.cancelling.cancelled
        # From here on a cut may leave them; cancelled, the first of them.
        self.recording.acknowledge(Written(Stored(base, values)))
        await appending
        stored = self._end() - base
        assert self.cancelling.cancelled > cancelled or stored == len(values)
        # Synced, whether the task was told or not.
        self.recording.acknowledge(Stored(base, values[:stored]))
        self.recording.acknowledge(Seen(base + stored))

    async def truncate(self, end: int) -> None:
        if end > self._end():
            return
        before = self._end()
        self.recording.acknowledge(Truncating(end))
        await super().truncate(end)
        if self._end() == end < before:
            self.recording.acknowledge(Truncated(end))
        else:
            self.recording.acknowledge(Seen(before))


def test_no_power_cut_after_a_cancelled_step_loses_an_acknowledged_record() -> None:
    """Every record that was acknowledged or could be read is there after a cut at any later operation."""
    count, cases = CrashCount(), 0

    def record(kind: Kind, at: int) -> tuple[RecordingFiles, Cancelling]:
        recording, made = RecordingFiles(MemoryFiles()), list[Cancelling]()

        async def main() -> None:
            made.append(Cancelling(kind, at))
            await RecordedWorkload(recording, made[0]).run()

        asyncio.run(asyncio.wait_for(main(), SECONDS_MAX))
        return recording, made[0]

    for kind in KINDS:
        places = record(kind, 0)[1].places
        for at in range(2, places + 1, every(places // 2)):
            recording, _ = record(kind, at)
            cases += 1
            for cut in crash_images(recording, seed=at, limit_per_prefix=1, count=count):
                try:
                    check_promises(cut)
                except Exception as error:
                    place = f"{kind} {at} cancelled, cut after {cut.prefix} operations, {cut.kind}"
                    raise AssertionError(f"{place}: {error}") from error
    print(f"{cases} cancelled workloads")
    print("\n".join(count.report()))
    count.require(300, kinds=["all", "none"])
