"""Every I/O call fails, once or for ever: what was acknowledged is there, the rest is whole or absent.

A workload runs over a disk on which call n fails, for every third call of each kind (all of them with
`CORDWOOD_SWEEP_FULL=1`), and once untouched. The log is then opened on the healed disk and compared with
what was promised.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest
from support.disks import (
    CHANGES,
    KINDS,
    OPENINGS,
    Create,
    FaultPlan,
    FaultyFiles,
    RecordingFiles,
    Sync,
    image,
)
from support.logs import DATA, SMALL, Damage, Hung, Problems, contents_of, disk_of, ends, look, open_log
from support.producing import Sent, send, snapshots_every
from support.sweeps import calls_to_fail
from support.worlds import Promises

import cordwood
from cordwood.disk.files import join
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, CorruptRange, DirectoryLocked, DiskFull, LogFailed, MetadataDamaged

CLEAN = join(DATA, "meta", "clean")
NOTHING = Damage((), derived=True)
STEPS = 40
WRITES = frozenset({"write"})
#: What a producer sends, some of it twice: before and after the log was closed.
SENT = [Sent(7, 0, 2 * i, (b"sent %d" % i, b"and more")) for i in range(4)]


class Workload:
    """Open, create, append with rolls, truncate, move the log start, hash, close, reopen, read.

    A step that fails is left; the next one is tried all the same, as a caller would.
    """

    def __init__(self, files: FaultyFiles) -> None:
        self.files = files
        self.promises = {"orders": Promises(), "payments": Promises()}
        self.log: cordwood.Log | None = None
        self.failed: set[str] = set()
        self.leaks: Counter[str] = Counter()
        self.completed = 0

    def run(self) -> None:
        for name, step in self.steps():
            before = len(self.files.calls)
            try:
                step()
                self.completed += 1
            except CordwoodError:
                pass
            except Exception as error:
                calls = self.files.calls[before:]
                self.leaks[
                    f"{name} raised {type(error).__name__}, the last call was {(calls or ['none'])[-1]}"
                ] += 1
        self.files.heal()

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "open", self.open
        yield "create", self.create
        for i in range(7):
            yield "append", partial(self.append, "orders", b"order-%d" % i)
        yield "append", partial(self.append, "payments", b"paid")
        for sent in (SENT[0], SENT[0], SENT[1]):
            yield "send", partial(self.send, "payments", sent)
        # A frame that makes the segment roll, then one that would have fitted into the old one.
        yield "append", partial(self.append, "orders", b"x" * 150, b"y" * 100)
        yield "append", partial(self.append, "orders", b"s")
        yield "truncate", partial(self.truncate, "orders", 8)
        yield "append", partial(self.append, "orders", b"after the cut")
        yield "truncate", partial(self.truncate, "orders", 3)
        yield "append", partial(self.append, "orders", b"after another")
        for i in range(6):
            yield "append", partial(self.append, "orders", b"more-%d" % i)
        yield "advance", partial(self.advance, "orders", 6)
        yield "append", partial(self.append, "orders", b"after the start moved")
        yield "maintain", self.maintain
        yield "close", self.close
        yield "open", self.open
        yield "open", self.open_again
        yield "append", partial(self.append, "orders", b"x" * 250)
        yield "append", partial(self.append, "orders", b"t")
        for sent in (SENT[1], SENT[2], SENT[2], SENT[3]):
            yield "send", partial(self.send, "payments", sent)
        yield "append", partial(self.append, "payments", b"paid again")
        yield "read", self.read
        yield "close", self.close

    def open(self) -> None:
        self.log = None
        self.failed.clear()
        self.log = open_log(self.files)

    def open_again(self) -> None:
        if self.log is None:
            self.open()

    def opened(self) -> cordwood.Log:
        if self.log is None:
            raise CordwoodError("not open")
        return self.log

    def topic(self, name: str) -> cordwood.Topic:
        return self.opened().topic(name, 1, SMALL)

    def create(self) -> None:
        for name in self.promises:
            self.topic(name)

    def append(self, name: str, *values: bytes) -> None:
        topic, promises = self.topic(name), self.promises[name]
        try:
            placed = topic.append_many([(None, value) for value in values], partition=0)
        except LogFailed:
            if name not in self.failed:
                promises.maybe_appended(values)
            self.failed.add(name)
            raise
        promises.appended(placed[0].offset, values)

    def send(self, name: str, sent: Sent) -> None:
        """Have a producer send a batch, for the first time or again; what it knows is saved each time."""
        self.topic(name)
        promises = self.promises[name]
        with snapshots_every(1):
            log = self.opened().data_directory.partitions.own(name, 0)
            try:
                base, next_offset = send(log, sent)
                log.commit(next_offset)
            except LogFailed:
                if name not in self.failed and sent not in promises.places:
                    promises.maybe_appended(sent.values)
                self.failed.add(name)
                raise
        promises.sent(base, sent)

    def truncate(self, name: str, end: int) -> None:
        topic, promises = self.topic(name), self.promises[name]
        if end > topic.log_end_offset(0):
            return
        try:
            topic.truncate(0, end)
        except LogFailed:
            if name not in self.failed:
                promises.maybe_truncated(end)
            self.failed.add(name)
            raise
        promises.truncated(end)

    def advance(self, name: str, offset: int) -> None:
        topic, promises = self.topic(name), self.promises[name]
        if offset > topic.high_watermark(0):
            return
        try:
            topic.advance_log_start(0, offset)
        except LogFailed:
            promises.starts.add(offset)
            self.failed.add(name)
            raise
        promises.starts = {offset}

    def maintain(self) -> None:
        self.opened().maintain()

    def read(self) -> None:
        for name, promises in self.promises.items():
            topic = self.topic(name)
            start = topic.log_start_offset(0)
            try:
                found = {record.offset: record.value or b"" for record in topic.read(0, start)}
            except CorruptRange:
                continue
            promises.broken += [f"reading on: {each}" for each in promises.check(found, start)]

    def close(self) -> None:
        log, self.log = self.log, None
        if log is not None:
            log.close()


def check(workload: Workload, disk: MemoryFiles, *, lags: bool) -> list[str]:
    """Reopen on the healed disk: every promise is kept, and the log can be used."""
    found = [problem for promises in workload.promises.values() for problem in promises.broken]
    left = image(disk, DATA) if disk.exists(DATA) else {}
    try:
        log = open_log(disk)
    except DirectoryLocked:
        return [*found, "the lock was not released"]
    except Exception as error:
        return [*found, f"reopening raised {type(error).__name__}: {str(error)[:120]}"]
    try:
        for name, promises in workload.promises.items():
            if name not in log.topics:
                if promises.acknowledged:
                    found.append("an acknowledged topic is gone")
                continue
            topic = log.topic(name)
            start = topic.log_start_offset(0)
            read = {record.offset: record.value or b"" for record in topic.read(0, start)}
            found += promises.check(read, start)
            if list(read) != list(range(start, topic.high_watermark(0))):
                found.append("offsets are not dense")
            if topic.append(b"last").offset != start + len(read):
                found.append("the next offset is not the end")
        log.close()
        found += look(disk, contents_of(disk), NOTHING)
    except Exception as error:
        found.append(f"after reopening: {type(error).__name__}: {str(error)[:120]}")
    if left:
        found += check_published(workload, disk_of(left), lags=lags)
    return found


def check_published(workload: Workload, disk: MemoryFiles, *, lags: bool) -> list[str]:
    """What was acknowledged before the failure is published: a reader beside needs no recovery to see it.

    On a full disk, or without handles, the mark cannot always be moved; then the reader *lags*: it sees a
    beginning of it.
    """
    found: list[str] = []
    try:
        log = open_log(disk, read_only=True)
    except CordwoodError:
        promised = any(promises.acknowledged for promises in workload.promises.values())
        return ["a reader beside cannot open it"] if promised else []
    for name, promises in workload.promises.items():
        if not promises.acknowledged:
            continue
        try:
            topic = log.topic(name)
            start, end = topic.log_start_offset(0), topic.high_watermark(0)
            read = {record.offset: record.value or b"" for record in topic.read(0, start)}
        except MetadataDamaged as error:
            # A slot of the mark that met a full disk stays half written until there is space: refused by
            # name, because the other slot may be behind.
            if not error.path.endswith("mark"):
                found.append(f"a reader beside is told {error}")
            continue
        except Exception as error:
            found.append(f"a reader beside gets {type(error).__name__}")
            continue
        beginnings = Promises()
        beginnings.starts = promises.starts
        beginnings.worlds = {world[:end] for world in promises.worlds} if lags else promises.worlds
        found += [f"a reader beside: {problem}" for problem in beginnings.check(read, start)]
    return found


# --- The sweep ----------------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[int], tuple[FaultPlan, ...]]] = {
    "EIO once": lambda n: (FaultPlan(n),),
    "EIO for ever": lambda n: (FaultPlan(n, forever=True),),
    "EIO on changes for ever": lambda n: (FaultPlan(n, kinds=CHANGES, forever=True),),
    "ENOSPC once": lambda n: (FaultPlan(n, kinds=CHANGES, error=errno.ENOSPC),),
    "ENOSPC for ever": lambda n: (FaultPlan(n, kinds=CHANGES, error=errno.ENOSPC, forever=True),),
    "EMFILE once": lambda n: (FaultPlan(n, kinds=OPENINGS, error=errno.EMFILE),),
    "EMFILE for ever": lambda n: (FaultPlan(n, kinds=OPENINGS, error=errno.EMFILE, forever=True),),
    "short write": lambda n: (FaultPlan(n, kinds=WRITES, error=None, short=5),),
    "short writes for ever": lambda n: (FaultPlan(n, kinds=WRITES, error=None, short=5, forever=True),),
    "short write, then full": lambda n: (
        FaultPlan(n, kinds=WRITES, error=None, short=5),
        FaultPlan(n + 1, kinds=WRITES, error=errno.ENOSPC, forever=True),
    ),
    "EIO half-way": lambda n: (FaultPlan(n, kinds=WRITES, short=5),),
    # From the failing write on, nothing can be cut back either.
    "ENOSPC, then no undoing": lambda n: (
        FaultPlan(n, kinds=WRITES, error=errno.ENOSPC, short=5),
        FaultPlan(truncates_before(n), kinds=frozenset({"truncate"}), forever=True),
    ),
}


@cache
def calls_untouched() -> list[str]:
    """Return the calls of the workload when none fails."""
    files = FaultyFiles(MemoryFiles())
    Workload(files).run()
    return files.calls


def truncates_before(write: int) -> int:
    """Return which cut is the first one after the given write."""
    calls = calls_untouched()
    writes = [at for at, kind in enumerate(calls) if kind == "write"]
    return calls[: writes[write - 1] if write <= len(writes) else len(calls)].count("truncate") + 1


def swept(fault: str) -> tuple[Problems, Problems, int]:
    """Run the workload with calls failing in turn, every third of each kind, and once with none.

    Returns the promises that were broken, the errors that are not ours, and the steps of the last run.
    """
    problems, leaks, completed = Problems(), Problems(), 0
    for n in calls_to_fail(calls_untouched(), FAULTS[fault](1)[0].kinds):
        disk, plans = MemoryFiles(), FAULTS[fault](n)
        files = FaultyFiles(disk, *plans)
        workload = Workload(files)
        try:
            with ends():
                workload.run()
            with ends():
                lags = any(plan.error in (errno.ENOSPC, errno.EMFILE) for plan in plans)
                found = check(workload, disk, lags=lags)
        except Hung:
            found = ["it hangs"]
        matching = [kind for kind in files.calls if kind in plans[0].kinds]
        case = f"call {n}, a {matching[n - 1]}" if n <= len(matching) else f"call {n}"
        problems.add(case, found)
        leaks.add(case, list(workload.leaks))
        completed = workload.completed
    assert not files.failures, "the last run was not untouched"
    return problems, leaks, completed


@pytest.mark.parametrize("fault", FAULTS)
def test_whichever_call_fails_every_acknowledged_record_stays_and_the_error_is_ours(fault: str) -> None:
    """D1, O1, O5, R1: what was acknowledged is there, nothing is torn, and the log opens again.

    An OSError from inside says nothing about what was stored; the library's own errors do.
    """
    problems, leaks, completed = swept(fault)
    print(f"{fault}: {problems.cases} cases")
    assert problems.cases > 35
    assert completed == STEPS
    assert not problems.counts, f"\n{problems}"
    assert not leaks.counts, f"\n{leaks}"


# --- A sync that fails ----------------------------------------------------------------------------------


def after_failed_sync(topic: cordwood.Topic, log: cordwood.Log) -> dict[str, Callable[[], object]]:
    return {
        "append": lambda: topic.append(b"more"),
        "append_many": lambda: topic.append_many([(None, b"more")]),
        "read": lambda: list(topic.read(0, topic.log_start_offset(0))),
        "offset_at": lambda: topic.offset_at(0),
        "truncate": lambda: topic.truncate(0, 1),
        "advance_log_start": lambda: topic.advance_log_start(0, 2),
        "roll": lambda: topic.roll(0),
        "maintain": log.maintain,
    }


@pytest.mark.parametrize("policy", ["each", "never"])
def test_after_a_failed_sync_every_call_fails_and_no_sync_is_tried_again(policy: str) -> None:
    """The kernel may have dropped what it could not write: a second sync would lie (D2).

    No later call succeeds, the file is never synced again, and no clean marker is left behind.
    """
    cases, n = 0, 0
    while True:
        n += 1
        recording = RecordingFiles(MemoryFiles())
        with open_log(recording) as log:
            log.topic("orders", 1, SMALL).append(b"before")
        files = FaultyFiles(recording, FaultPlan(n, kinds=frozenset({"sync"})))
        if _fails_to_open(recording, n, policy):
            continue
        log = open_log(files, sync=policy)
        topic = log.topic("orders")
        failure: LogFailed | None = None
        acknowledged = 1
        for i in range(12):
            try:
                topic.append(b"order-%d" % i)
                acknowledged += policy == "each"
            except LogFailed as error:
                failure = error
                break
        if failure is None:
            try:
                log.close()
            except CordwoodError:
                # Which of them is the claim of another test; here it is about what was left behind.
                cases += 1
                assert not recording.exists(CLEAN)
                continue
            if files.failures:
                continue
            break
        cases += 1
        assert files.failures == 1
        since = len(recording.history)
        syncs = files.calls.count("sync")
        for name, call in after_failed_sync(topic, log).items():
            with pytest.raises(LogFailed):
                call()
            assert files.calls.count("sync") == syncs, f"{name} synced again after sync {n} failed"
        with pytest.raises(LogFailed):
            log.close()
        assert not recording.exists(CLEAN)
        again = recording.history[since:]
        cause = failure.__cause__
        assert isinstance(cause, OSError)
        if recording.exists(cause.filename):
            assert Sync(recording.inode(cause.filename)) not in again, f"sync {n} was tried again by close"
        assert not any(isinstance(each, Create) and each.path.startswith(CLEAN) for each in again)
        files.heal()
        with open_log(files) as log:
            values = [record.value for record in log.topic("orders").read(0)]
            assert values[:acknowledged] == [b"before", *(b"order-%d" % i for i in range(12))][:acknowledged]
    print(f"{policy}: {cases} failed syncs")
    assert cases >= 5


def _fails_to_open(files: RecordingFiles, n: int, policy: str) -> bool:
    """Opening syncs too, and this is about what comes after it. Found out on a copy."""
    trial = FaultyFiles(disk_of(image(files, DATA)), FaultPlan(n, kinds=frozenset({"sync"})))
    try:
        open_log(trial, sync=policy).topic("orders").high_watermark(0)
    except (CordwoodError, OSError):
        return True
    return trial.failures > 0


def test_a_failed_sync_of_one_partition_leaves_the_others_alone() -> None:
    """T2: what fails is the partition; the others go on, but nobody calls the directory clean."""
    disk = MemoryFiles()
    with open_log(disk) as log:
        log.topic("orders").append(b"1")
        log.topic("payments").append(b"2")
    files = FaultyFiles(disk)
    log = open_log(files)
    orders, payments = log.topic("orders"), log.topic("payments")
    assert (orders.high_watermark(), payments.high_watermark()) == (1, 1)
    files.plan(FaultPlan(1, kinds=frozenset({"sync"})))
    with pytest.raises(LogFailed):
        orders.append(b"lost")
    assert payments.append(b"3").offset == 1
    assert [record.value for record in payments.read()] == [b"2", b"3"]
    with pytest.raises(LogFailed):
        log.close()
    assert not disk.exists(CLEAN)
    with open_log(disk) as log:
        assert [record.value for record in log.topic("payments").read()] == [b"2", b"3"]
        assert next(iter(log.topic("orders").read())).value == b"1"


# --- A disk that is full ----------------------------------------------------------------------------------


@pytest.mark.parametrize("short", [None, 0, 1, 30, 61, 70])
def test_a_full_disk_stores_nothing_and_appends_go_on_once_it_has_space(short: int | None) -> None:
    """P4: DiskFull, file and reads as before; when there is space again, it goes on without reopening."""
    disk = MemoryFiles()
    with open_log(disk) as log:
        for i in range(3):
            log.topic("orders", 1, SMALL).append(b"before-%d" % i)
    plan = FaultPlan(1, kinds=frozenset({"write", "create"}), error=errno.ENOSPC, short=short, forever=True)
    files = FaultyFiles(disk)
    log = open_log(files)
    topic = log.topic("orders")
    before = list(topic.read(0))
    sizes = image(disk, join(DATA, "topics"))
    files.plan(plan)
    for i in range(9):
        # Every other frame would need a new segment.
        with pytest.raises(DiskFull):
            topic.append(b"no space" if i % 2 else b"no space" * 40)
        assert list(topic.read(0)) == before
        now = image(disk, join(DATA, "topics"))
        assert {path: now.get(path) for path in sizes if path.endswith(".log")} == {
            path: data for path, data in sizes.items() if path.endswith(".log")
        }
    files.heal()
    for i in range(9):
        assert topic.append(b"after-%d" % i).offset == 3 + i
    values = [b"before-%d" % i for i in range(3)] + [b"after-%d" % i for i in range(9)]
    assert [record.value for record in topic.read(0)] == values
    log.close()
    assert disk.exists(CLEAN)
    with open_log(disk) as log:
        assert [record.value for record in log.topic("orders").read(0)] == values
        assert all(report.truncated_bytes == 0 for report in log.reports)


@pytest.mark.parametrize("kind", sorted(CHANGES - {"sync"}))
@pytest.mark.parametrize(
    "doing", ["roll", "truncate in place", "truncate a copy", "advance", "create", "hash"]
)
def test_a_change_that_finds_no_space_has_not_happened(kind: str, doing: str) -> None:
    """DiskFull means nothing has changed, in memory and on disk: the log goes on, and so after reopening.

    Every call of the kind fails in turn, the last ones after the commit point included.
    """
    cases = 0
    for n in range(1, 40):
        disk = MemoryFiles()
        with open_log(disk) as log:
            topic = log.topic("orders", 1, SMALL)
            for i in range(8):
                topic.append(b"order-%d" % i)
        files = FaultyFiles(disk)
        log = open_log(files)
        topic = log.topic("orders")
        topic.append(b"order-8")
        changes: dict[str, Callable[[], object]] = {
            "roll": partial(topic.roll, 0),
            "truncate in place": partial(topic.truncate, 0, 7),
            "truncate a copy": partial(topic.truncate, 0, 2),
            "advance": partial(topic.advance_log_start, 0, 6),
            "create": partial(log.topic, "another", 2),
            "hash": log.maintain,
        }
        before = [record.value for record in topic.read(0)]
        plan = FaultPlan(n, kinds=frozenset({kind}), error=errno.ENOSPC)
        files.plan(plan)
        try:
            changes[doing]()
        except DiskFull:
            cases += 1
        except CordwoodError:
            # Committed and not finished, or not known: the log says that it failed, and stops.
            files.heal()
            continue
        if not files.failures:
            break
        files.heal()
        if topic.high_watermark(0) != len(before):
            # It was done all the same; what failed was tidying up.
            continue
        # One that fits into the segment there is, one that does not. Each time the process dies then:
        # what was acknowledged is on disk, whatever memory believed.
        for end, value in enumerate((b"s", b"t" * 200), start=len(before)):
            assert topic.append(value).offset == end, f"{kind} {n}"
            start = topic.log_start_offset(0)
            expected = [(record.offset, record.value) for record in topic.read(0, start)]
            with open_log(disk_of(image(disk, DATA))) as again:
                reopened = again.topic("orders")
                assert reopened.log_start_offset(0) == start, f"{kind} {n}"
                found = [(record.offset, record.value) for record in reopened.read(0, start)]
            assert found == expected, f"{kind} {n}"
        log.close()
    else:
        pytest.fail("the change never completes")
    print(f"{doing}, {kind}: {cases} times no space")


def test_every_kind_of_call_is_made_by_the_workload() -> None:
    """A sweep over calls that are never made would prove nothing."""
    files = FaultyFiles(MemoryFiles())
    workload = Workload(files)
    workload.run()
    made = set(files.calls)
    print(f"{len(files.calls)} calls: {dict(Counter(files.calls))}")
    assert workload.completed == STEPS
    assert made >= KINDS - {"link", "map", "free_bytes", "preallocate", "remove_directory"}
