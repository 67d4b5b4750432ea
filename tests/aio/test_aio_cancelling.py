"""Cancellation at every await and at every disk call: nothing acknowledged is lost, nothing is half done.

A workload runs on a recording or a failing disk, and one of its steps is cancelled somewhere. Then the log
goes on, is closed, and what is on the disk is held to what was promised. The event loop and the threads of
the log run one at a time, in an order that a seed decides, so each run can be run again.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pytest
from support.awaiting import OffLoopFiles, refused_here
from support.cancelling import KINDS, Cancelling, Kind
from support.crashes import MISFITS, SEED, CrashImage, crash_images
from support.disks import CHANGES, FaultPlan, FaultyFiles, RecordingFiles
from support.logs import DATA, SMALL, TickingClock, open_log
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
from support.scheduling import Scheduler, run_scheduled
from support.sweeps import every
from support.worlds import Promises

import cordwood
import cordwood.aio
from cordwood.aio import calls
from cordwood.aio.appending import AppendQueue
from cordwood.aio.engine import AsyncEngine
from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, DirectoryLocked, LogClosed, LogFailed

Step = Callable[[], Awaitable[None]]
Workload = TypeVar("Workload", bound="AwaitedWorkload")
#: The topic of transactions, whose two partitions get a record each.
PAIRS = "pairs"
SNAPSHOT_AT = 2
OPENED_WITHIN_TURNS = 1_000
STATE = b"state after two records"

VARIANTS: Mapping[str, Mapping[str, str]] = {
    "own": SMALL,
    "chain": {**SMALL, "cordwood.chain": "true"},
    "shared": {"cordwood.storage": "shared"},
}


@dataclass(frozen=True)
class Committed:
    """A transaction with one of these values in each partition was committed."""

    values: tuple[bytes, bytes]


@dataclass(frozen=True)
class Saved:
    """The snapshot was saved."""


class Pairs:
    """The transactions that are there, by what their caller was told."""

    def __init__(self) -> None:
        self.certain: list[tuple[bytes, bytes]] = []
        self.possible: list[tuple[bytes, bytes]] = []

    def check(self, log: cordwood.Log) -> list[str]:
        """Return how the committed records of *log* break a promise."""
        found: list[list[bytes]] = [[], []]
        if PAIRS in log.topics:
            topic = log.topic(PAIRS)
            found = [[each.value or b"" for each in topic.read(partition, 0)] for partition in range(2)]
        broken = []
        for pair in [*self.certain, *self.possible]:
            counts = [values.count(value) for values, value in zip(found, pair, strict=True)]
            if counts not in ([[1, 1]] if pair in self.certain else [[0, 0], [1, 1]]):
                broken.append(f"of transaction {pair} the partitions have {counts}")
        if unknown := [value for values in found for value in values if not self._knows(value)]:
            broken.append(f"records of no transaction: {unknown}")
        return broken

    def _knows(self, value: bytes) -> bool:
        return any(value in pair for pair in [*self.certain, *self.possible])


def snapshot_problems(log: cordwood.Log, *, saved: bool) -> list[str]:
    """Return what is wrong with the snapshot, which must be there if it was *saved*."""
    nearest = log.topic(TOPIC).snapshots().nearest(SNAPSHOT_AT)
    found = nearest.snapshot and nearest.snapshot.state
    if nearest.skipped or (found is None and saved) or found not in (None, STATE):
        return [f"the snapshot is {found!r}, passed over: {nearest.skipped}"]
    return []


class AwaitedWorkload:
    """Opens, appends in every way, reads, cuts, closes and opens again; each step may be cancelled.

    A step that fails with an error of ours is left, and the next one is tried all the same.
    """

    def __init__(self, files: Files, cancelling: Cancelling, variant: str = "own") -> None:
        self.variant = variant
        self.files = OffLoopFiles(files, refused_here())
        refuse = self.files.before

        def before(kind: str, path: str) -> None:
            refuse(kind, path)
            cancelling.before_disk_call(kind, path)

        self.files.before = before
        self.cancelling = cancelling
        self.promises = Promises()
        self.pairs = Pairs()
        self.saved = False
        self.log: cordwood.aio.Log | None = None
        self.topic: cordwood.aio.Topic | None = None
        self.pairs_topic: cordwood.aio.Topic | None = None
        self.failed = False
        self.errors: list[str] = []

    async def run(self) -> None:
        for name, step in self.steps():
            if self.variant == "shared" and name in ("roll", "truncate"):
                # What a topic of the shared log does not do.
                continue
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
        yield "commit", partial(self.commit, b"a", b"b")
        yield "snapshot", self.save_snapshot
        yield "roll", self.roll
        yield "read", self.read
        yield "append", partial(self.append, b"7" * 200, b"8")
        yield "truncate", partial(self.truncate, 4)
        yield "append", partial(self.append_together, b"9", b"10", b"11")
        yield "maintain", self.maintain
        yield "commit", partial(self.commit, b"c", b"d")
        yield "close", self.close
        yield "open", self.open
        yield "append", partial(self.append, b"12")
        yield "commit", partial(self.commit, b"e", b"f")
        yield "stream", partial(self.stream, b"13" * 30)
        yield "read", self.read
        yield "close", self.close

    # --- opening and closing ----------------------------------------------------------------------

    async def open(self) -> None:
        self.log = self.topic = self.pairs_topic = None
        self.failed = False
        turns = itertools.count()
        while self.log is None:
            assert next(turns) < OPENED_WITHIN_TURNS, "the log of a cancelled open is not closed"
            try:
                self.log = await self.cancelling.step(self._opened())
            except asyncio.CancelledError:
                continue
            except DirectoryLocked:
                # The log whose opening was cancelled is being closed.
                await asyncio.sleep(0)
        config = VARIANTS[self.variant]
        while self.topic is None or self.pairs_topic is None:
            try:
                self.topic = await self.cancelling.step(self.log.topic(TOPIC, 1, config))
                self.pairs_topic = await self.cancelling.step(self.log.topic(PAIRS, 2, config))
            except asyncio.CancelledError:
                continue

    async def _opened(self) -> cordwood.aio.Log:
        return await cordwood.aio.open(DATA, files=self.files, clock=TickingClock())

    async def close(self) -> None:
        log, self.log = self.log, None
        self.topic = self.pairs_topic = None
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

    async def commit(self, first: bytes, second: bytes) -> None:
        """Commit a transaction with a record in each partition, always under the same id."""
        self.opened()
        log, topic = self.log, self.pairs_topic
        assert log is not None
        if topic is None:
            raise LogClosed("not open")

        async def committed() -> None:
            async with log.transaction("id") as transaction:
                transaction.append(topic, first, partition=0)
                transaction.append(topic, second, partition=1)

        try:
            await self.cancelling.step(committed())
        except asyncio.CancelledError:
            self.pairs.possible.append((first, second))
        except CordwoodError:
            self.pairs.possible.append((first, second))
            raise
        else:
            self.pairs.certain.append((first, second))

    def _uncertain(self, *outcomes: tuple[bytes, ...]) -> Uncertain:
        return Uncertain(self, outcomes)

    # --- the rest ---------------------------------------------------------------------------------

    async def save_snapshot(self) -> None:
        topic = self.opened()
        if min(len(world) for world in self.promises.worlds) < SNAPSHOT_AT:
            return
        try:
            await self.cancelling.step(topic.snapshots().save(SNAPSHOT_AT, STATE))
        except (asyncio.CancelledError, OSError):
            # Snapshots raise the errors of the disk as they are.
            return
        self.saved = True

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


def run_cancelled(
    files: Files, kind: Kind, at: int, variant: str = "own", seed: int = SEED
) -> tuple[AwaitedWorkload, Cancelling]:
    """Run the workload with one step cancelled, to its end."""
    return run_workload(lambda cancelling: AwaitedWorkload(files, cancelling, variant), kind, at, seed)


def run_workload(
    make: Callable[[Cancelling], Workload], kind: Kind, at: int, seed: int
) -> tuple[Workload, Cancelling]:
    made: list[tuple[Workload, Cancelling]] = []

    async def main(scheduler: Scheduler) -> None:
        cancelling = Cancelling(scheduler, kind, at)
        made.append((make(cancelling), cancelling))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cordwood.aio.opening.Host", lambda: scheduler.host)
            await made[0][0].run()

    run_scheduled(main, seed + at)
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
        found += workload.pairs.check(log)
        found += snapshot_problems(log, saved=workload.saved)
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


def places_of(kind: Kind, variant: str) -> range:
    """Return places, evenly over the workload, where it is cancelled; all with a full sweep.

    In the first variant every await is one of them.
    """
    _, untouched = run_cancelled(MemoryFiles(), kind, 0, variant)
    assert untouched.cancelled == 0
    step = 1 if variant == "own" and kind != "disk call" else max(1, untouched.places // 12)
    return range(1, untouched.places + 1, every(step))


def problems_where_cancelled(kind: Kind, at: int, variant: str) -> tuple[list[str], int]:
    """Cancel the workload at one place; return what is wrong afterwards, and whether it was cancelled."""
    disk = MemoryFiles()
    workload, cancelling = run_cancelled(disk, kind, at, variant)
    found = [*workload.errors, *(f"left behind: {name}" for name in spools_on(disk))]
    return [*found, *problems_after(workload, disk)], cancelling.cancelled


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_wherever_a_step_is_cancelled_the_log_goes_on_whole(kind: Kind, variant: str) -> None:
    """The steps after it succeed, every acknowledged record is there, and the cancelled one whole or not."""
    places, cancelled = places_of(kind, variant), 0
    for at in places:
        problems, was = problems_where_cancelled(kind, at, variant)
        cancelled += was
        assert problems == [], f"seed {SEED}: {kind} {at}, {variant}"
    print(f"seed {SEED}: cancelled at {cancelled} of {len(places)} places: {kind}, {variant}")
    # A disk call may be made by a thread whose step has ended by then.
    assert cancelled >= len(places) * 0.8
    assert cancelled > 9


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
    for n in range(1, calls + 1, every(18)):
        disk = MemoryFiles()
        kind: Kind = ("await", "late await")[n % 2]
        at = 1 + n * 7 % suspensions
        workload, _ = run_cancelled(FaultyFiles(disk, FAULTS[fault](n)), kind, at)
        assert problems_after(workload, disk) == [], f"call {n} fails, {kind} {at} is cancelled"
        cases += 1
    print(f"seed {SEED}: {fault}: {cases} cases")
    assert cases > 15


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
        yield "commit", partial(self.commit, b"a", b"b")
        yield "snapshot", self.save_snapshot
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

    async def commit(self, first: bytes, second: bytes) -> None:
        await super().commit(first, second)
        if self.pairs.certain:
            self.recording.acknowledge(Committed((first, second)))

    async def save_snapshot(self) -> None:
        await super().save_snapshot()
        if self.saved:
            self.recording.acknowledge(Saved())

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


def recorded(kind: Kind, at: int, seed: int = SEED) -> tuple[RecordingFiles, Cancelling]:
    """Run the workload on a recording disk, cancelled at one place."""
    recording = RecordingFiles(MemoryFiles())
    _, cancelling = run_workload(lambda made: RecordedWorkload(recording, made), kind, at, seed)
    return recording, cancelling


def check_cut(cut: CrashImage) -> None:
    """Open a disk after a power cut and hold it to what was promised before."""
    check_promises(cut)
    pairs = Pairs()
    pairs.certain = [each.values for each in cut.acknowledged if isinstance(each, Committed)]
    pairs.possible = [] if pairs.certain else [(b"a", b"b")]
    with open_log(cut.files) as log:
        problems = pairs.check(log)
        if TOPIC in log.topics:
            problems += snapshot_problems(log, saved=Saved() in cut.acknowledged)
    assert problems == []


def first_cut_problem(checked: Counter[str]) -> str | None:
    """Cut the power, with a step cancelled at several places; say what first broke. Counts in *checked*.

    A disk has several partitions with files of their own, so of the disks of each run every twelfth is looked
    at, in each run others.
    """
    for kind in KINDS:
        there = recorded(kind, 0)[1].places
        for at in range(2, there + 1, every(max(1, there // 3))):
            cuts = crash_images(recorded(kind, at)[0], limit_per_prefix=1)
            for cut in itertools.islice(cuts, at % every(12), None, every(12)):
                checked[cut.kind] += 1
                try:
                    check_cut(cut)
                except MISFITS:
                    raise
                except Exception as error:
                    place = f"{kind} {at} cancelled, cut after {cut.prefix} operations, {cut.kind}"
                    return f"seed {SEED}, {place}: {error}"
    return None


def test_no_power_cut_after_a_cancelled_step_loses_an_acknowledged_record() -> None:
    """Every record that was acknowledged or could be read is there after a cut at any later operation."""
    checked = Counter[str]()
    assert first_cut_problem(checked) is None
    print(f"seed {SEED}: images checked {checked.total()}, {dict(checked)}")
    assert checked.total() > 300
    assert {"all", "none"} <= checked.keys()


def test_a_cancelled_workload_is_the_same_whenever_it_gets_the_same_seed() -> None:
    """The order of the threads too, so that a printed seed is enough to run a failure again."""

    def shape(kind: Kind, seed: int) -> list[tuple[str, int]]:
        history = recorded(kind, 9, seed)[0].history
        return [(type(each).__name__, len(getattr(each, "data", b""))) for each in history]

    for kind in KINDS:
        assert shape(kind, 5) == shape(kind, 5)
    assert len({tuple(shape("await", seed)) for seed in range(6)}) > 1


# --- Planted bugs --------------------------------------------------------------------------------


def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AppendQueue, "_settle", lambda self, every: {})


def keep_the_id_of_a_cancelled_transaction(patch: pytest.MonkeyPatch) -> None:
    honest = calls._AwaitedCall.drop

    def drop(self: Any) -> None:
        if not isinstance(self.outcome, cordwood.Transaction):
            honest(self)

    patch.setattr(calls._AwaitedCall, "drop", drop)


def write_a_cancelled_append_twice(patch: pytest.MonkeyPatch) -> None:
    honest = AppendQueue._write

    def write(self: AppendQueue, append: Any) -> bool:
        written = honest(self, append)
        if written and append.future.cancelled():
            append.write(append.frames)
        return written

    patch.setattr(AppendQueue, "_write", write)


def keep_the_file_of_a_cancelled_stream(patch: pytest.MonkeyPatch) -> None:
    def release(self: Any, free: Callable[[], None]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        done.set_result(None)
        with self._guard:
            self._held.discard(free)
        return done

    patch.setattr(AsyncEngine, "release", release)


CANCELLED_BUGS = (
    keep_the_id_of_a_cancelled_transaction,
    write_a_cancelled_append_twice,
    keep_the_file_of_a_cancelled_stream,
)
CUT_BUGS = (acknowledge_before_the_sync,)


@pytest.mark.parametrize("bug", [*CANCELLED_BUGS, *CUT_BUGS], ids=lambda bug: bug.__name__)
def test_a_planted_bug_of_the_library_for_asyncio_is_caught(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeps above, at the places that they try, find each of these bugs."""
    places = {kind: places_of(kind, "own") for kind in KINDS}
    bug(monkeypatch)
    found: str | None = None
    if bug in CUT_BUGS:
        found = first_cut_problem(Counter())
    else:
        cases = ((kind, at) for kind in KINDS for at in places[kind])
        problems = (problems_where_cancelled(kind, at, "own")[0] for kind, at in cases)
        found = next((each[0] for each in problems if each), None)
    assert found is not None, "not caught"
    print(f"caught {bug.__name__.replace('_', ' ')}: {found}")
