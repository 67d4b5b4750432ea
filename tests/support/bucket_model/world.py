"""The world of the checker: one small store, the processes that use it, faults, time, and what must hold.

A process is a generator that yields requests. At every step the chooser picks who is answered and how, so
that a schedule is a list of choices and the same list is the same schedule. Each property is checked at the
step that could break it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from cordwood.bucket.ownership.lease import OwnerLease
from cordwood.bucket.ownership.manifest import MANIFEST_KEY, LogManifest, decode_manifest
from cordwood.bucket.ownership.objects import Create, Delete, Get, GetRange, List, Pause, Replace, Request
from cordwood.bucket.ownership.piece import PREFIX, decode_piece, hash_of, seq_of
from cordwood.errors import (
    BucketRefused,
    ObjectExists,
    ObjectMissing,
    OwnerFenced,
    StoreUnavailable,
    VersionChanged,
)

#: More steps than any schedule needs that makes progress.
STEPS_MAX = 400


class Violation(AssertionError):
    """A property does not hold. ``claim`` is its short name."""

    def __init__(self, claim: str, finding: str) -> None:
        super().__init__(f"{claim}: {finding}")
        self.claim = claim


class Pruned(Exception):
    """The rest of the schedule was looked at before."""


class Wait(NamedTuple):
    """Do nothing until the process's own clock has this time."""

    until_ms: int


ModelSteps: TypeAlias = Generator[Request | Wait, Any, None]
Script: TypeAlias = Callable[["Process"], ModelSteps]


class Chooser(Protocol):
    """Who decides what happens next."""

    def known(self) -> Option | None:
        """Return what happens next if that is settled, so that the options need not be found."""

    def choose(self, options: list[Option], state: Callable[[], int]) -> Option:
        """Return one of *options*. Raises Pruned."""


class Option(NamedTuple):
    """What may happen next: *kind* to the process, the delayed request or the clock."""

    kind: str
    #: Of the process, or of the delayed request.
    whose: int


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may go wrong in one schedule. *kinds* has a letter for each kind of fault, see `FAULTS`."""

    faults: int = 0
    kinds: str = "FLDA"
    crashes: int = 0
    #: Switches to another process while one could go on.
    switches: int = 99
    #: How often time goes on by `tick_ms`.
    ticks: int = 0
    tick_ms: int = 100
    delayed: int = 2


#: F: fails, not having happened. L: happened, and the answer is lost. D: happens later.
#: A: answered, and happens again later. T: happens twice, the second outcome is answered.
#: C: refused as a conflict, not having happened.
#: S: happens, and the answer comes later. M: happens, and that the answer is lost shows later.
FAULTS = {
    Get: "FS",
    GetRange: "FS",
    List: "FS",
    Create: "FLDATCSM",
    Replace: "FLDATCSM",
    Delete: "FLDASM",
}


@dataclass(slots=True, eq=False)
class Process:
    """A process, through all of its lives."""

    world: World
    index: int
    name: str
    script: Script
    #: How fast its clock goes.
    rate: float = 1.0
    may_crash: bool = False
    life: int = 0
    pending: Request | Wait | None = None
    history: int = 0
    #: The outcome of the pending request, if that has happened already.
    outcome: tuple[Any, Exception | None] | None = None
    lease: OwnerLease | None = None
    claim: str = ""
    #: What is on its own disk, which a crash leaves.
    disk: dict[str, Any] = field(default_factory=dict)
    steps: ModelSteps | None = None

    @property
    def nonce(self) -> str:
        """Return the nonce of the present life."""
        return f"{self.index + 1:016x}{self.life:016x}"

    def now_ms(self) -> int:
        """Return the time by the clock of this process."""
        now = int(self.world.now_ms * self.rate)
        self.history = hash((self.history, now))
        return now

    def begin(self) -> None:
        """Start, or start again after a crash."""
        self.life += 1
        self.lease = None
        self.steps = self.script(self)
        self.send(None)

    def send(self, value: Any, failure: Exception | None = None) -> None:
        """Answer the pending request and go on to the next one."""
        assert self.steps is not None
        steps = self.steps
        try:
            request = steps.send(value) if failure is None else steps.throw(failure)
            while type(request) is Pause:
                # Between two tries a process only waits.
                self.world.count_step()
                request = steps.send(None)
        except StopIteration:
            self.pending, self.steps, self.lease = None, None, None
            return
        except (OwnerFenced, BucketRefused) as end:
            # It says so and exits.
            self.disk["ended"] = type(end).__name__
            self.pending, self.steps, self.lease = None, None, None
            return
        except Violation:
            raise
        except Exception as error:
            raise Violation("no false alarm", f"{self.name} failed: {error!r}") from error
        self.pending = request

    def crash(self) -> None:
        """Die: the pending request was not sent."""
        assert self.steps is not None
        self.steps.close()
        self.history = hash((self.history, "crash"))
        self.pending, self.steps, self.lease, self.outcome = None, None, None, None


class World:
    """The store, the processes, and what was promised to whom."""

    def __init__(self, chooser: Chooser, limits: Limits) -> None:
        self.chooser = chooser
        self.limits = limits
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.state = 0
        self.manifest: LogManifest | None = None
        self.now_ms = 0
        self.processes: list[Process] = []
        self.delayed: list[Request] = []
        self.faults = limits.faults
        self.crashes = limits.crashes
        self.switches = limits.switches
        self.ticks = limits.ticks
        self.current = -1
        self.steps = 0
        self.log: list[str] = []
        self.is_logging = False
        #: What was shown at each position of the log, by whoever showed it first.
        self.shown: list[bytes] = []
        #: Position and piece of every content that was acknowledged by the bucket.
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.confirmed: dict[int, str] = {}
        #: Epoch and barrier of every complete takeover.
        self.barriers: list[tuple[int, int]] = []
        self.newest_barrier = (0, 0)

    def add(self, name: str, script: Script, rate: float = 1.0, may_crash: bool = False) -> Process:
        """Add a process."""
        process = Process(self, len(self.processes), name, script, rate, may_crash)
        self.processes.append(process)
        return process

    def count_step(self) -> None:
        """Count a step. Raises Violation after too many."""
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Violation("progress", f"{STEPS_MAX} steps and no end")

    # --- a schedule ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all processes to their end, as the chooser says, and then apply what is still delayed."""
        for process in self.processes:
            if process.life == 0:
                process.begin()
        known, choose = self.chooser.known, self.chooser.choose
        while True:
            option = known()
            if option is None:
                options = self._options()
                if not options:
                    break
                option = choose(options, self._fingerprint)
            self._do(option)
        for request in self.delayed:
            self._apply_quietly(request)
        self.delayed = []
        # What follows is by an operator, who has ended them.
        for process in self.processes:
            process.lease = None

    def lead(self, process: Process, is_there: Callable[[Any], bool]) -> None:
        """Begin *process* alone, without faults; stop before the first request that *is_there* accepts."""
        process.begin()
        while process.pending is not None and not is_there(process.pending):
            self._answer(process, "")

    def run_alone(self, name: str, script: Script) -> Process:
        """Run one more process to its end, without faults. Raises Violation if it cannot."""
        self.steps = 0
        process = self.add(name, script)
        process.begin()
        while process.pending is not None:
            self.count_step()
            if isinstance(process.pending, Wait):
                self.now_ms = max(self.now_ms, process.pending.until_ms)
                process.send(None)
            else:
                self._answer(process, "")
        if process.disk.get("ended"):
            raise Violation("progress", f"{name} is alone and ends by {process.disk['ended']}")
        return process

    def _options(self) -> list[Option]:
        ready = [each for each in self.processes if each.pending is not None and self._is_ready(each)]
        current = self.current
        going_on = [each for each in ready if each.index == current and not each.outcome]
        if going_on and self.switches == 0:
            ready = going_on
        elif going_on:
            ready.remove(going_on[0])
            ready.insert(0, going_on[0])
        options = [Option("", each.index) for each in ready]
        if self.ticks and any(each.pending is not None for each in self.processes):
            options.append(Option("tick", 0))
        options += [Option("late", index) for index in range(len(self.delayed))]
        if self.faults:
            for each in ready:
                kinds = "" if each.outcome else FAULTS.get(type(each.pending), "")
                for kind in kinds:
                    if kind in self.limits.kinds and (
                        kind not in "DA" or len(self.delayed) < self.limits.delayed
                    ):
                        options.append(Option(kind, each.index))
        if self.crashes:
            options += [Option("crash", each.index) for each in ready if each.may_crash]
        if len(options) == len(self.delayed):
            # Nobody goes on; what is delayed may as well happen at the end.
            return []
        return options

    def _is_ready(self, process: Process) -> bool:
        pending = process.pending
        return not isinstance(pending, Wait) or int(self.now_ms * process.rate) >= pending.until_ms

    def _is_going_on(self, process: Process) -> bool:
        """Return whether *process* could go on at once. Who waits for an answer may be left for nothing."""
        return process.pending is not None and process.outcome is None and self._is_ready(process)

    def _fingerprint(self) -> int:
        return hash(
            (
                self.state,
                tuple([each.history for each in self.processes]),
                tuple(sorted([hash(each) for each in self.delayed])),
                self.now_ms,
                self.faults,
                self.crashes,
                self.switches,
                self.ticks,
                self.current,
            )
        )

    def _do(self, option: Option) -> None:
        self.count_step()
        kind, index = option
        if kind == "tick":
            self.ticks -= 1
            self.now_ms += self.limits.tick_ms
            self.note("time", f"{self.now_ms} ms")
            return
        if kind == "late":
            request = self.delayed.pop(index)
            self.note("late", _said(request))
            self._apply_quietly(request)
            return
        process = self.processes[index]
        if index != self.current:
            before = self.processes[self.current] if self.current >= 0 else None
            if before is not None and self._is_going_on(before):
                self.switches -= 1
            self.current = index
        if kind == "crash":
            self.crashes -= 1
            self.note(process.name, "crashes")
            process.crash()
            process.begin()
            return
        if isinstance(process.pending, Wait):
            process.history = hash((process.history, "waited"))
            process.send(None)
            return
        if kind:
            self.faults -= 1
        self._answer(process, kind)

    def _answer(self, process: Process, fault: str) -> None:
        request = process.pending
        assert request is not None
        assert not isinstance(request, Wait)
        if process.outcome is not None:
            happened = process.outcome
            process.outcome = None
            self.note(process.name, "is answered")
            process.history = hash((process.history, "answered"))
            process.send(*happened)
            return
        answer: Any = None
        failure: Exception | None = None
        try:
            match fault:
                case "" | "S":
                    answer = self._apply(request)
                case "F":
                    raise StoreUnavailable
                case "L" | "M":
                    self._apply_quietly(request)
                    raise StoreUnavailable
                case "D":
                    self.delayed.append(request)
                    raise StoreUnavailable
                case "A":
                    self.delayed.append(request)
                    answer = self._apply(request)
                case "T":
                    self._apply_quietly(request)
                    answer = self._apply(request)
                case "C":
                    raise (ObjectExists if type(request) is Create else VersionChanged)(str(request[0]))
        except (StoreUnavailable, ObjectExists, ObjectMissing, VersionChanged) as error:
            failure = error
            outcome: Any = type(error).__name__
        else:
            outcome = tuple(answer) if type(answer) is list else answer
        if self.is_logging:
            said = outcome if isinstance(outcome, str) and failure is not None else "ok"
            self.note(process.name, f"{_said(request)} {fault} -> {said}")
        if fault in ("S", "M"):
            process.history = hash((process.history, outcome, "later"))
            process.outcome = (answer, failure)
            return
        process.history = hash((process.history, outcome))
        process.send(answer, failure)

    def note(self, who: str, what: str) -> None:
        """Write a line into the log of this schedule."""
        if self.is_logging:
            self.log.append(f"{who:<9} {what}")

    def end_state(self) -> int:
        """Return a number that stands for all that the checks at the end depend on."""
        return hash(
            (
                self.state,
                tuple(self.shown),
                tuple(self.acknowledged.items()),
                tuple([each.history for each in self.processes if "state" in each.disk]),
            )
        )

    # --- the store ----------------------------------------------------------------------------------

    def _apply_quietly(self, request: Request) -> None:
        with suppress(ObjectExists, ObjectMissing, VersionChanged):
            self._apply(request)

    def _apply(self, request: Request) -> Any:
        kind = type(request)
        key: str = request[0]  # type: ignore[assignment]
        there = self.objects.get(key)
        if kind is Get:
            if there is None:
                raise ObjectMissing(key)
            return _Stored(*there)
        if isinstance(request, Create):
            if there is not None:
                raise ObjectExists(key)
            self._check_created(key, request.data)
            return self._put(key, request.data)
        if isinstance(request, Replace):
            if there is None or there[1] != request.version:
                raise VersionChanged(key)
            self.state ^= hash((key, there[0]))
            return self._put(key, request.data)
        if kind is Delete:
            if there is not None:
                self._check_deleted(key)
                self.state ^= hash((key, there[0]))
                del self.objects[key]
            return None
        assert isinstance(request, List)
        return sorted(each for each in self.objects if each.startswith(key) and each > request.after)

    def _put(self, key: str, data: bytes) -> str:
        if key == MANIFEST_KEY:
            self._check_manifest(decode_manifest(data))
        # The version depends on the content alone, as an ETag does, so that it may come back.
        version = hash_of(data)
        self.objects[key] = (data, version)
        self.state ^= hash((key, data))
        return version

    # --- what must hold -----------------------------------------------------------------------------

    def _check_created(self, key: str, data: bytes) -> None:
        seq = seq_of(key) if key.startswith(PREFIX) else None
        if seq is None or self.manifest is None or seq < self.manifest.floor:
            return
        epoch = decode_piece(key, data)[0].epoch
        highest, barrier = self.newest_barrier
        if epoch < highest and seq > barrier:
            raise Violation(
                "epochs ascend", f"piece {seq} of epoch {epoch} above the piece {barrier} of epoch {highest}"
            )
        if epoch > highest:
            self.newest_barrier = (epoch, seq)

    def _check_deleted(self, key: str) -> None:
        manifest = self.manifest
        if manifest is None:
            return
        seq = seq_of(key)
        if (seq is not None and seq >= manifest.floor) or any(each.key == key for each in manifest.pages):
            raise Violation("K5", f"{key} is deleted and the manifest {manifest.revision} names it")

    def _check_manifest(self, new: LogManifest) -> None:
        old, self.manifest = self.manifest, new
        for page in new.pages:
            there = self.objects.get(page.key)
            if there is None or hash_of(there[0]) != page.sha256:
                raise Violation("K5", f"the manifest {new.revision} names {page.key}, which is not there")
        if old is None:
            return
        if (
            new.revision != old.revision + 1
            or not old.epoch <= new.epoch <= old.epoch + 1
            or new.floor < old.floor
        ):
            raise Violation("manifest", f"revision {new.revision} is no successor of {old.revision}")
        if (new.epoch, new.nonce) != (old.epoch, old.nonce):
            self._check_leases(new)
        if new.owners and new.owners[-1] not in old.owners:
            barrier = new.owners[-1].first_seq
            self.barriers.append((new.epoch, barrier))
            for content, (_, seq) in self.acknowledged.items():
                if seq >= barrier:
                    raise Violation(
                        "K4", f"{content!r} was acknowledged in piece {seq}, the barrier is {barrier}"
                    )

    def _check_leases(self, manifest: LogManifest) -> None:
        for process in self.processes:
            lease = process.lease
            now_ms = int(self.now_ms * process.rate)
            if lease is not None and process.claim != manifest.nonce and lease.may_acknowledge(now_ms):
                raise Violation("lease", f"the log is claimed while {process.name} may acknowledge")

    def check_own_lease(self, process: Process) -> None:
        """Check, after a renewal, that nobody claimed the log of *process*."""
        if self.manifest is not None and process.lease is not None and process.claim != self.manifest.nonce:
            now_ms = int(self.now_ms * process.rate)
            if process.lease.may_acknowledge(now_ms):
                raise Violation("lease", f"{process.name} may acknowledge after the log was claimed")

    def show(self, who: Process, position: int, content: bytes) -> None:
        """Check that *content* is what everybody saw at *position*."""
        shown = self.shown
        if position < len(shown):
            if shown[position] != content:
                raise Violation(
                    "K2", f"{who.name} sees {content!r} at {position}, another saw {shown[position]!r}"
                )
            return
        assert position == len(shown), "contents are shown in order"
        if content in shown:
            raise Violation("K1", f"{who.name} sees {content!r} at {position} and {shown.index(content)}")
        shown.append(content)

    def confirm(self, who: Process, seq: int, sha256: str) -> None:
        """Note that *who* believes that its piece counts."""
        if self.confirmed.setdefault(seq, sha256) != sha256:
            raise Violation("one piece", f"{who.name} and another both believe in their piece {seq}")

    def acknowledge(self, who: Process, epoch: int, seq: int, position: int, content: bytes) -> None:
        """Note the acknowledgement of *content* by the bucket."""
        self.show(who, position, content)
        self.acknowledged[content] = (position, seq)
        for later, barrier in self.barriers:
            if later > epoch and seq >= barrier:
                raise Violation(
                    "K4", f"{who.name} acknowledges {content!r} in piece {seq}, the barrier is {barrier}"
                )

    def check_end(self, who: Process, contents: list[bytes]) -> None:
        """Check that *contents*, all that there is in the end, have what was acknowledged and shown."""
        for content, (position, _) in self.acknowledged.items():
            if position >= len(contents) or contents[position] != content:
                raise Violation(
                    "K1", f"{content!r} was acknowledged at {position}; {who.name} has {contents}"
                )
        if contents[: len(self.shown)] != self.shown:
            raise Violation("K2", f"{who.name} has {contents}, and {self.shown} were shown")


class _Stored(NamedTuple):
    data: bytes
    version: str


def _said(request: Request) -> str:
    name = type(request).__name__
    if isinstance(request, (Create, Replace)):
        data = request.data
        if request.key.startswith(PREFIX):
            header, body = decode_piece(request.key, data)
            return f"{name} {request.key[-3:]} epoch {header.epoch} of {header.nonce[12:16]} {bytes(body)!r}"
        if request.key == MANIFEST_KEY:
            new = decode_manifest(data)
            owners = [(each.epoch, each.first_seq) for each in new.owners]
            return f"{name} manifest {new.revision} epoch {new.epoch} owners {owners} floor {new.floor}"
    return f"{name} {request[0]}"
