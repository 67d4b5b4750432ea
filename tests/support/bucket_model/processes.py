"""The processes of the checker: owners, standbys and readers, around the protocol as it is.

They call the protocol through the modules, so that a test can plant a bug there.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from cordwood.bucket.ownership import founding, owning
from cordwood.bucket.ownership.following import FellBehind, LogPiece, Reading
from cordwood.bucket.ownership.founding import BucketIdentity
from cordwood.bucket.ownership.lease import OwnerLease, StandbyLease
from cordwood.bucket.ownership.manifest import LogManifest, PageRef
from cordwood.bucket.ownership.objects import Create, Delete, Get, List, Request
from cordwood.bucket.ownership.owning import Ownership, VersionedManifest
from cordwood.bucket.ownership.piece import hash_of
from cordwood.errors import ObjectExists, ObjectMissing, OwnerFenced, StoreUnavailable
from support.bucket_model.world import ModelSteps, Process, Script, Violation, Wait

Result = TypeVar("Result")
Part: TypeAlias = Generator[Request | Wait, Any, Result]

SEPARATOR = b","


@dataclass(slots=True)
class State:
    """The fold: the contents so far, and how far the pieces are in it."""

    contents: list[bytes]
    reading: Reading
    manifest: LogManifest

    def take(self, process: Process, piece: LogPiece) -> None:
        """Take a piece that counts."""
        for content in split(bytes(piece.body)):
            process.world.show(process, len(self.contents), content)
            self.contents.append(content)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an owner does once it owns the log."""

    contents: Sequence[bytes] = ()
    #: How many pieces are added before each `confirm`.
    together: int = 1
    #: After how many contents the floor is moved, None for never.
    floor_after: int | None = None
    keep_ms: int = 0
    #: The owner collects what departed, and forgets that.
    is_collecting: bool = True
    lease_ms: int = 0
    #: Pages that an owner before left, and no manifest names, are deleted.
    is_tidying: bool = False


def split(data: bytes) -> list[bytes]:
    """Return the contents in a piece or in a page."""
    return data.split(SEPARATOR) if data else []


def get(key: str) -> Part[bytes]:
    """Return an object. Raises ObjectMissing."""
    while True:
        try:
            stored = yield Get(key)
        except StoreUnavailable:
            continue
        data: bytes = stored.data
        return data


def load(process: Process) -> Part[tuple[State, VersionedManifest]]:
    """Return the state as the pages of the manifest have it."""
    while True:
        begun_ms = process.world.now_ms
        versioned = yield from owning.read_manifest()
        manifest = versioned.manifest
        contents: list[bytes] = []
        try:
            for page in manifest.pages:
                data = yield from get(page.key)
                contents = split(data)
        except ObjectMissing as missing:
            again = yield from owning.read_manifest()
            if again.manifest.revision == manifest.revision:
                raise Violation("K5", f"{process.name} misses {missing.key}, which is named") from None
            keep_ms: int = process.disk.get("keep_ms", 0)
            if process.world.now_ms - begun_ms < keep_ms:
                raise Violation("keep", f"{process.name} misses {missing.key}, named just before") from None
            continue
        for position, content in enumerate(contents):
            process.world.show(process, position, content)
        return State(contents, Reading.from_floor(manifest), manifest), versioned


def poll(process: Process, state: State) -> Part[int]:
    """Take the pieces that follow, or begin again with newer pages; return how many pieces there were."""
    try:
        pieces, manifest = yield from state.reading.poll()
    except FellBehind:
        newer, _ = yield from load(process)
        if newer.reading.next_seq <= state.reading.next_seq:
            raise Violation("progress", f"{process.name} fell behind what is not newer") from None
        state.contents, state.reading, state.manifest = newer.contents, newer.reading, newer.manifest
        return 1
    before = state.manifest
    if manifest.revision < before.revision:
        raise Violation(
            "manifest", f"{process.name} sees revision {manifest.revision} after {before.revision}"
        )
    state.manifest = manifest
    for piece in pieces:
        state.take(process, piece)
    return len(pieces)


def become_owner(
    process: Process, plan: Plan, state: State | None = None, before: VersionedManifest | None = None
) -> Part[tuple[Ownership, State]]:
    """Take the log over, with the state that the pages or *state* have and all pieces after that."""
    while True:
        if state is None:
            state, _ = yield from load(process)
        sent_ms = process.now_ms()
        # On its own disk: so a process knows which claims were of its earlier lives.
        process.disk.setdefault("nonces", []).append(process.nonce)
        try:
            owner = yield from owning.take_over(
                process.nonce,
                lease_ms=plan.lease_ms,
                reading=state.reading,
                on_piece=partial(state.take, process),
                before=before,
            )
        except FellBehind:
            state, before = None, None
            continue
        process.claim = process.nonce
        if plan.lease_ms:
            process.lease = OwnerLease(plan.lease_ms, sent_ms)
            process.world.check_own_lease(process)
        return owner, state


def own(process: Process, plan: Plan, owner: Ownership, state: State) -> ModelSteps:
    """Do what *plan* says, as the owner."""
    process.disk["fold"] = state
    waiting: list[tuple[int, int, bytes]] = []
    todo = [each for each in plan.contents if each not in state.contents]
    for number, content in enumerate(todo, 1):
        process.disk["next"] = todo[number : number + 1]
        seq = yield from add(process, plan, owner, content)
        waiting.append((seq, len(state.contents), content))
        state.contents.append(content)
        if len(waiting) >= plan.together or number == len(todo):
            yield from owning.confirm(owner)
            for seq, position, each in waiting:
                process.world.confirm(process, seq, f"{owner.nonce}")
                process.world.acknowledge(process, owner.epoch, seq, position, each)
            waiting = []
        if plan.floor_after is not None and number % plan.floor_after == 0:
            yield from advance_floor(process, plan, owner, state)
        if plan.lease_ms:
            yield Wait(process.now_ms() + plan.lease_ms // 3)


def add(process: Process, plan: Plan, owner: Ownership, content: bytes) -> Part[int]:
    """Add a piece, and renew the lease with it."""
    sent_ms = process.now_ms()
    seq = yield from owning.add_piece(owner, content)
    lease = process.lease
    if lease is not None and not lease.renew(sent_ms, process.now_ms()):
        sent_ms = process.now_ms()
        yield from owning.renew_claim(owner)
        lease.restart(sent_ms)
    process.world.check_own_lease(process)
    return seq


def advance_floor(process: Process, plan: Plan, owner: Ownership, state: State) -> ModelSteps:
    """Write the state as a page, let the log begin there, and collect what is not needed any more."""
    page = yield from write_page(process, owner, state)
    now_ms = process.now_ms()
    yield from owning.move_floor(owner, [page], owner.next_seq, owner.previous, [], now_ms)
    if plan.is_collecting:
        now_ms = process.now_ms()
        yield from owning.collect(owner, now_ms, plan.keep_ms)
        yield from owning.forget_collected(owner, now_ms, plan.keep_ms)


def write_page(process: Process, owner: Ownership, state: State) -> Part[PageRef]:
    """Create the page of all contents so far, under a key that nobody else can make."""
    data = SEPARATOR.join(state.contents)
    key = f"m/{owner.epoch}-{owner.nonce}-{owner.next_seq}"
    while True:
        try:
            yield Create(key, data)
        except ObjectExists:
            # An earlier try.
            there = yield from peek(key)
            if there is None:
                continue
        except StoreUnavailable:
            continue
        return PageRef(key, hash_of(data), len(data))


def peek(key: str) -> Part[bytes | None]:
    """Return an object, or None."""
    try:
        data = yield from get(key)
    except ObjectMissing:
        return None
    return data


def collect_orphans(owner: Ownership) -> ModelSteps:
    """Delete the pages that a lower epoch created and the manifest does not name (rule 10)."""
    keys: list[str] = yield from until_answered(List("m/"))
    yield from owning.confirm(owner)
    named = {page.key for page in owner.current.manifest.pages}
    named |= {each.key for each in owner.current.manifest.departed}
    for key in keys:
        if key not in named and int(key[2:].partition("-")[0]) < owner.epoch:
            yield from until_answered(Delete(key))


def until_answered(request: Request) -> Part[Any]:
    """Make a request until the store answers."""
    while True:
        try:
            return (yield request)
        except StoreUnavailable:
            continue


# --- scripts ---------------------------------------------------------------------------------------


def founder_script(broker_id: str) -> Script:
    """A process that begins the log."""

    def script(process: Process) -> ModelSteps:
        yield from founding.found(BucketIdentity(broker_id, "now"), process.nonce)
        found = yield from founding.read_identity()
        if found is None or found.broker_id != broker_id:
            raise Violation("identity", f"{process.name} founded {broker_id}, there is {found}")

    return script


def owner_script(plan: Plan) -> Script:
    """A process that takes the log over at once, whenever it starts."""

    def script(process: Process) -> ModelSteps:
        process.disk["keep_ms"] = plan.keep_ms
        owner, state = yield from become_owner(process, plan)
        if plan.is_tidying:
            yield from collect_orphans(owner)
        yield from own(process, plan, owner, state)

    return script


def standby_script(polls: int, plan: Plan) -> Script:
    """A process that follows, and then takes the log over with what it read."""

    def script(process: Process) -> ModelSteps:
        process.disk["keep_ms"] = plan.keep_ms
        state, _ = yield from load(process)
        for _ in range(polls):
            yield from poll(process, state)
        try:
            owner, newer = yield from become_owner(process, plan, state)
        except OwnerFenced:
            # Another one was faster: follow on, with the same reading.
            for _ in range(polls):
                yield from poll(process, state)
            process.disk["state"] = state
            return
        yield from own(process, plan, owner, newer)

    return script


def reader_script(polls: int, keep_ms: int = 0) -> Script:
    """A process that reads, and goes on in `check_end`."""

    def script(process: Process) -> ModelSteps:
        process.disk["keep_ms"] = keep_ms
        state, _ = yield from load(process)
        process.disk["state"] = state
        for _ in range(polls):
            yield from poll(process, state)

    return script


def leased_owner_script(plan: Plan) -> Script:
    """A process that renews a lease. Started again, it claims at once what it owned itself, else it waits."""

    def script(process: Process) -> ModelSteps:
        state, before = yield from load(process)
        if before.manifest.epoch == 0 or before.manifest.nonce in process.disk.get("nonces", ()):
            owner, state = yield from become_owner(process, plan, state, before)
            yield from own(process, plan, owner, state)
        else:
            yield from stand_by(process, plan, state)

    return script


def leased_standby_script(plan: Plan) -> Script:
    """A process that takes over when the lease has run out."""

    def script(process: Process) -> ModelSteps:
        state, _ = yield from load(process)
        yield from stand_by(process, plan, state)

    return script


def stand_by(process: Process, plan: Plan, state: State) -> ModelSteps:
    """Follow until the lease of the owner has run out; then take over."""
    now_ms = process.now_ms()
    lease = StandbyLease((0, 0), now_ms, now_ms)
    for _ in range(6):
        before = yield from owning.read_manifest()
        asked_ms = process.now_ms()
        yield from poll(process, state)
        position = (state.reading.next_seq, state.manifest.revision)
        lease.look(position, asked_ms, process.now_ms())
        if before.manifest.owners and lease.has_run_out(before.manifest.lease_ms):
            owner, state = yield from become_owner(process, plan, state, before)
            yield from own(process, plan, owner, state)
            return
        yield Wait(process.now_ms() + plan.lease_ms)


# --- the end ---------------------------------------------------------------------------------------


def successor_script(process: Process) -> ModelSteps:
    """Take over when all is quiet, and add a piece."""
    owner, state = yield from become_owner(process, Plan())
    yield from own(process, Plan([b"end"]), owner, state)
    process.disk["contents"] = state.contents


def last_reader_script(state: State | None) -> Script:
    """Read everything that there is."""

    def script(process: Process) -> ModelSteps:
        mine = state
        if mine is None:
            mine, _ = yield from load(process)
        while (yield from poll(process, mine)):
            pass
        process.disk["contents"] = mine.contents

    return script
