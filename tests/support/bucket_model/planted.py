"""Bugs for the checker to find: the protocol as it must not be, each in place of one function of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from cordwood.bucket.ownership import following, founding, lease, owning
from cordwood.bucket.ownership import manifest as manifest_module
from cordwood.bucket.ownership.following import LogPiece, Reading
from cordwood.bucket.ownership.manifest import (
    MANIFEST_KEY,
    LogManifest,
    LogOwner,
    PageRef,
    Verdict,
    decode_manifest,
)
from cordwood.bucket.ownership.objects import (
    Create,
    Delete,
    Get,
    List,
    Pause,
    Replace,
    Steps,
    until_answered,
)
from cordwood.bucket.ownership.owning import Ownership, VersionedManifest
from cordwood.bucket.ownership.piece import (
    PREFIX,
    PieceHeader,
    decode_piece,
    encode_piece,
    hash_of,
    piece_key,
    seq_of,
)
from cordwood.errors import (
    ObjectExists,
    ObjectMissing,
    OwnerFenced,
    StoreUnavailable,
    VersionChanged,
)
from support.bucket_model import processes
from support.bucket_model.processes import SEPARATOR, Part, Plan, State
from support.bucket_model.world import ModelSteps, Process

real_add_piece = owning.add_piece
real_take_over = owning.take_over
real_barrier = owning._create_barrier
real_verdict = manifest_module.verdict
real_poll = Reading.poll
real_taken = Reading._taken
real_write_page = processes.write_page
real_add = processes.add
real_process_poll = processes.poll


class Planted(NamedTuple):
    """A bug, where it is found, and the properties that may find it."""

    name: str
    where: Callable[[], Any]
    scenarios: Sequence[str]
    claims: Sequence[str]


def in_place_of(place: object, name: str, bug: object) -> Callable[[], Any]:
    return lambda: patch.object(place, name, bug)


class _Both:
    def __init__(self, *patches: Any) -> None:
        self.patches = patches

    def __enter__(self) -> None:
        for each in self.patches:
            each.__enter__()

    def __exit__(self, *error: Any) -> None:
        for each in reversed(self.patches):
            each.__exit__(*error)


def _both(*wheres: Callable[[], Any]) -> _Both:
    return _Both(*[where() for where in wheres])


# --- pieces ----------------------------------------------------------------------------------------


def add_with_newer_bytes(process: Process, plan: Plan, owner: Ownership, content: bytes) -> Part[int]:
    """A retry sends newer bytes too; "exists" is compared by the nonce, and all is acknowledged."""
    body, extra = content, content + b"+"
    while True:
        seq = owner.next_seq
        data = encode_piece(PieceHeader(seq, owner.epoch, owner.nonce, owner.previous), body)
        try:
            yield Create(piece_key(seq), data)
        except StoreUnavailable:
            body = content + SEPARATOR + extra
            continue
        except ObjectExists:
            there = yield from owning._content_of(piece_key(seq))
            if there is None:
                continue
            if decode_piece(piece_key(seq), there)[0].nonce != owner.nonce:
                raise OwnerFenced(owner.epoch, 0) from None
            owner.next_seq, owner.previous = seq + 1, hash_of(there)
        else:
            owner.next_seq, owner.previous = seq + 1, hash_of(data)
        if body != content:
            contents = process.disk["fold"].contents
            yield from owning.confirm(owner)
            process.world.acknowledge(process, owner.epoch, seq, len(contents), content)
            process.world.acknowledge(process, owner.epoch, seq, len(contents) + 1, extra)
        return seq


def add_piece_by_nonce(owner: Ownership, body: bytes) -> Steps[int]:
    """The caller gives up after a failure and calls again with more; the nonce says that it is there."""
    header = PieceHeader(owner.next_seq, owner.epoch, owner.nonce, owner.previous)
    with suppress(StoreUnavailable, ObjectExists):
        yield Create(piece_key(owner.next_seq), encode_piece(header, b"x" + body))
    seq = owner.next_seq
    data = encode_piece(PieceHeader(seq, owner.epoch, owner.nonce, owner.previous), body)
    while True:
        try:
            yield Create(piece_key(seq), data)
        except StoreUnavailable:
            continue
        except ObjectExists:
            there = yield from owning._content_of(piece_key(seq))
            if there is None:
                continue
            if decode_piece(piece_key(seq), there)[0].nonce != owner.nonce:
                raise OwnerFenced(owner.epoch, 0) from None
            owner.next_seq, owner.previous = seq + 1, hash_of(there)
        else:
            owner.next_seq, owner.previous = seq + 1, hash_of(data)
        return seq


def add_piece_without_asking(owner: Ownership, body: bytes) -> Steps[int]:
    """A foreign piece is taken for void, and the manifest is not read."""
    while True:
        seq = owner.next_seq
        data = encode_piece(PieceHeader(seq, owner.epoch, owner.nonce, owner.previous), body)
        try:
            yield Create(piece_key(seq), data)
        except StoreUnavailable:
            continue
        except ObjectExists:
            there = yield from owning._content_of(piece_key(seq))
            if there != data:
                owner.next_seq += there is not None
                continue
        owner.next_seq, owner.previous = seq + 1, hash_of(data)
        return seq


def exists_is_success(owner: Ownership, body: bytes) -> Steps[int]:
    """ "Exists" is success, whoever's it is."""
    seq = owner.next_seq
    data = encode_piece(PieceHeader(seq, owner.epoch, owner.nonce, owner.previous), body)
    while True:
        try:
            yield Create(piece_key(seq), data)
        except StoreUnavailable:
            continue
        except ObjectExists:
            pass
        owner.next_seq, owner.previous = seq + 1, hash_of(data)
        return seq


def no_confirm(owner: Ownership) -> Steps[None]:
    """Whoever created a piece believes that it counts."""
    yield Pause(0)


def add_after_confirm(process: Process, plan: Plan, owner: Ownership, content: bytes) -> Part[int]:
    """The manifest is read before the piece, and not after it."""
    newest = yield from owning.read_manifest()
    owner.check(newest.manifest)
    owner.current = newest
    return (yield from real_add(process, plan, owner, content))


# --- the manifest and the floor --------------------------------------------------------------------


def write_page_ahead(process: Process, owner: Ownership, state: State) -> Part[PageRef]:
    """The page has what comes next, before there is a piece of it."""
    contents = [*state.contents, *process.disk["next"]]
    return (yield from real_write_page(process, owner, State(contents, state.reading, state.manifest)))


def no_page(process: Process, owner: Ownership, state: State) -> Part[PageRef]:
    """The page is created later."""
    data = SEPARATOR.join(state.contents)
    yield Pause(0)
    return PageRef(f"m/{owner.epoch}-{owner.nonce}-{owner.next_seq}", hash_of(data), len(data))


def swap_without_reading_back(before: VersionedManifest, after: LogManifest) -> Steps[VersionedManifest]:
    """A refusal is a failure, though an earlier try may have taken effect."""
    data = manifest_module.encode_manifest(after)
    while True:
        try:
            version = yield Replace(MANIFEST_KEY, data, before.version)
        except StoreUnavailable:
            continue
        except VersionChanged:
            raise OwnerFenced(after.epoch, 0) from None
        return VersionedManifest(after, version)


def advance_and_tidy(process: Process, plan: Plan, owner: Ownership, state: State) -> ModelSteps:
    """A page is deleted after a swap that seems to have failed."""
    page = yield from real_write_page(process, owner, state)
    try:
        yield from owning.move_floor(owner, [page], owner.next_seq, owner.previous, [], process.now_ms())
    except OwnerFenced:
        yield Delete(page.key)
        raise


def swap_always_succeeds(before: VersionedManifest, after: LogManifest) -> Steps[VersionedManifest]:
    """A refusal is a success of an earlier try, whatever is there."""
    data = manifest_module.encode_manifest(after)
    while True:
        try:
            version = yield Replace(MANIFEST_KEY, data, before.version)
        except StoreUnavailable:
            continue
        except VersionChanged:
            stored = yield Get(MANIFEST_KEY)
            return VersionedManifest(after, stored.version)
        return VersionedManifest(after, version)


def collect_first(process: Process, plan: Plan, owner: Ownership, state: State) -> ModelSteps:
    """Pieces are deleted before the floor has passed them."""
    page = yield from real_write_page(process, owner, state)
    yield from owning._delete_pieces_below(owner.next_seq)
    yield from owning.move_floor(owner, [page], owner.next_seq, owner.previous, [], process.now_ms())


# --- takeovers -------------------------------------------------------------------------------------


def barrier_after_the_listed(
    claimed: LogManifest, reading: Reading, on_piece: Callable[[LogPiece], None]
) -> Steps[tuple[int, str]]:
    """The next free number is found by a listing, in which freed numbers are not."""
    yield from reading.read_on(claimed, on_piece)
    keys: list[str] = yield List(PREFIX)
    seq = max((seq_of(key) or 0 for key in keys), default=0) + 1
    data = encode_piece(PieceHeader(seq, claimed.epoch, claimed.nonce, reading.previous), b"")
    yield Create(piece_key(seq), data)
    reading.next_seq = seq
    return seq, hash_of(data)


def barrier_over_unread(
    claimed: LogManifest, reading: Reading, on_piece: Callable[[LogPiece], None]
) -> Steps[tuple[int, str]]:
    """Who finds the number used takes the next one, and does not read what is there."""
    yield from reading.read_on(claimed, on_piece)
    while True:
        seq = reading.next_seq
        data = encode_piece(PieceHeader(seq, claimed.epoch, claimed.nonce, reading.previous), b"")
        try:
            yield Create(piece_key(seq), data)
        except StoreUnavailable:
            continue
        except ObjectExists:
            if (yield from owning._content_of(piece_key(seq))) != data:
                reading.next_seq += 1
                continue
        return seq, hash_of(data)


def read_on_by_the_claim(
    self: Reading, claimed: LogManifest, on_piece: Callable[[LogPiece], None]
) -> Steps[None]:
    """The claim says what counts, although it may not stand any more."""
    while found := (yield from self._present(following.PIECES_PER_READ)):
        before = self.next_seq
        for piece in self._taken(found, claimed):
            on_piece(piece)
        if before == self.next_seq:
            return


def read_on_for_ever(
    self: Reading, claimed: LogManifest, on_piece: Callable[[LogPiece], None]
) -> Steps[None]:
    """The own barrier, whose answer was lost, is undecided and read again."""
    while found := (yield from self._present(following.PIECES_PER_READ)):
        for piece in self._taken(found, claimed):
            on_piece(piece)


def _take_over(order: str) -> Callable[..., Steps[Ownership]]:
    """Return a takeover in another *order*: a is the claim, b the barrier, c the owner, p passing it."""

    def take_over(
        nonce: str,
        lease_ms: int | None = None,
        reading: Reading | None = None,
        on_piece: Callable[[LogPiece], None] = lambda piece: None,
        before: VersionedManifest | None = None,
    ) -> Steps[Ownership]:
        current = before or (yield from owning.read_manifest())
        epoch = current.manifest.epoch + 1
        if reading is None:
            reading = Reading.from_floor(current.manifest)
        if current.manifest.floor > reading.next_seq and "f" not in order:
            raise following.FellBehind
        barrier, sha256 = 0, ""
        for step in order:
            manifest = msgspec.structs.replace(
                current.manifest,
                revision=current.manifest.revision + 1,
                epoch=epoch,
                nonce=nonce,
                lease_ms=lease_ms or 0,
            )
            if step == "a":
                current = yield from owning._swap(current, manifest)
            elif step == "b":
                claimed = manifest if "a" in order else current.manifest
                if "a" in order:
                    barrier, sha256 = yield from real_barrier(claimed, reading, on_piece)
                else:
                    barrier, sha256 = yield from _barrier_without_claim(epoch, nonce, reading, on_piece)
            elif step == "n":
                # What will be the barrier, if nobody is faster.
                while True:
                    at = reading.next_seq
                    pieces, _ = yield from real_poll(reading)
                    for piece in pieces:
                        on_piece(piece)
                    if reading.next_seq == at:
                        break
                barrier = reading.next_seq
            elif step == "p":
                reading.pass_own(barrier, sha256)
            elif step == "c":
                owners = (*manifest.owners, LogOwner(epoch, nonce, barrier))
                current = yield from owning._swap(current, msgspec.structs.replace(manifest, owners=owners))
        if "p" not in order:
            reading.next_seq, reading.previous = barrier + 1, sha256
        return Ownership(epoch, nonce, barrier + 1, reading.previous, current)

    return take_over


def _barrier_without_claim(
    epoch: int, nonce: str, reading: Reading, on_piece: Callable[[LogPiece], None]
) -> Steps[tuple[int, str]]:
    while True:
        pieces, _ = yield from real_poll(reading)
        for piece in pieces:
            on_piece(piece)
        data = encode_piece(PieceHeader(reading.next_seq, epoch, nonce, reading.previous), b"")
        try:
            yield Create(piece_key(reading.next_seq), data)
        except StoreUnavailable:
            continue
        except ObjectExists:
            if (yield from owning._content_of(piece_key(reading.next_seq))) != data:
                continue
        return reading.next_seq, hash_of(data)


# --- readers ---------------------------------------------------------------------------------------


def verdict_with(verdicts: dict[Verdict, Verdict]) -> Callable[..., Verdict]:
    def verdict(manifest: LogManifest, header: PieceHeader) -> Verdict:
        said = real_verdict(manifest, header)
        return verdicts.get(said, said)

    return verdict


class VoidReading(Reading):
    """A reading that passes void pieces on."""

    def _taken(self, found: list[tuple[str, bytes]], manifest: LogManifest) -> list[LogPiece]:
        with patch.object(following, "verdict", verdict_with({Verdict.VOID: Verdict.COUNTS})):
            return real_taken(self, found, manifest)


def poll_void_pieces(process: Process, state: State) -> Part[int]:
    """A reader passes void pieces on."""
    if process.name == "reader":
        state.reading = VoidReading(state.reading.next_seq, state.reading.previous)
    return (yield from real_process_poll(process, state))


def manifest_before_the_pieces(self: Reading, limit: int = 8) -> Steps[tuple[list[LogPiece], LogManifest]]:
    """What counts is judged by a manifest that is older than the pieces."""
    stored = yield from until_answered(Get(MANIFEST_KEY))
    manifest = decode_manifest(stored.data)
    found = yield from self._present(limit)
    return self._taken(found, manifest), manifest


def taken_below_the_floor(
    self: Reading, found: list[tuple[str, bytes]], manifest: LogManifest
) -> list[LogPiece]:
    """The floor is not compared with the next piece."""
    return real_taken(
        self, found, msgspec.structs.replace(manifest, floor=min(manifest.floor, self.next_seq))
    )


# --- leases ----------------------------------------------------------------------------------------


def add_with_lease_from(moment: str) -> Callable[..., Part[int]]:
    def add(process: Process, plan: Plan, owner: Ownership, content: bytes) -> Part[int]:
        sent = {"answer": process.now_ms(), "retry": process.now_ms()}
        steps = real_add_piece(owner, content)
        answer: Any = None
        failure: Exception | None = None
        while True:
            try:
                request = steps.send(answer) if failure is None else steps.throw(failure)
            except StopIteration as stop:
                seq: int = stop.value
                break
            answer, failure = None, None
            if isinstance(request, Create):
                sent["retry"] = process.now_ms()
            try:
                answer = yield request
            except (StoreUnavailable, ObjectExists, ObjectMissing) as error:
                failure = error
        sent["answer"] = process.now_ms()
        held = process.lease
        if held is not None and not held.renew(sent[moment], process.now_ms()):
            restarted_ms = process.now_ms()
            yield from owning.renew_claim(owner)
            held.restart(restarted_ms)
        process.world.check_own_lease(process)
        return seq

    return add


def renew_at_any_time(self: lease.OwnerLease, sent_ms: int, now_ms: int) -> bool:
    """A lease that has run out is renewed by a piece alone."""
    self.sent_ms = sent_ms
    return True


def take_over_from_the_newest(
    *arguments: Any, before: VersionedManifest | None = None, **named: Any
) -> Steps[Ownership]:
    """The claim replaces a manifest that was read after the last look."""
    return (yield from real_take_over(*arguments, **named))


def look_by_the_answer(
    self: lease.StandbyLease, position: tuple[int, int], asked_ms: int, answered_ms: int
) -> None:
    """The age of the newest piece is taken after the look."""
    if position != self.position:
        self.position, self.since_ms = position, answered_ms
    self.asked_ms = answered_ms


def one_lease(self: lease.StandbyLease, lease_ms: int) -> bool:
    """The standby waits no longer than the lease, and clocks differ."""
    return self.asked_ms - self.since_ms >= lease_ms


def create_or_believe(key: str, data: bytes) -> Steps[None]:
    """The first objects are there if a creation is refused, even by a conflict."""
    while True:
        try:
            yield Create(key, data)
        except ObjectExists:
            return
        except StoreUnavailable:
            continue
        return


PLANTED = [
    Planted(
        "a conflict of two founders is taken for an object",
        in_place_of(founding, "_create", create_or_believe),
        ["founders and a conflict"],
        ["no false alarm"],
    ),
    Planted(
        "a retry sends newer bytes, compared by the nonce",
        in_place_of(processes, "add", add_with_newer_bytes),
        ["takeover"],
        ["K1", "K2"],
    ),
    Planted(
        "after giving up, other bytes, and the nonce says that they are there",
        in_place_of(owning, "add_piece", add_piece_by_nonce),
        ["takeover"],
        ["K1", "K2"],
    ),
    Planted(
        "a foreign piece is passed without reading the manifest",
        in_place_of(owning, "add_piece", add_piece_without_asking),
        ["takeover", "three rivals"],
        ["epochs ascend"],
    ),
    Planted(
        "'exists' is success whatever is there",
        in_place_of(owning, "add_piece", exists_is_success),
        ["takeover"],
        ["K1", "K2", "K4", "no false alarm"],
    ),
    Planted(
        "no owner read before the acknowledgement",
        in_place_of(owning, "confirm", no_confirm),
        ["sleeper without faults"],
        ["K1", "K2", "K4"],
    ),
    Planted(
        "the owner is read before the piece only",
        lambda: _both(
            in_place_of(processes, "add", add_after_confirm), in_place_of(owning, "confirm", no_confirm)
        ),
        ["sleeper without faults", "sleeper"],
        ["K1", "K2", "K4"],
    ),
    Planted(
        "metadata in the manifest before its piece",
        in_place_of(processes, "write_page", write_page_ahead),
        ["garbage and a reader"],
        ["K1", "K2"],
    ),
    Planted(
        "the floor moves before its page exists",
        in_place_of(processes, "write_page", no_page),
        ["garbage and a reader"],
        ["K5"],
    ),
    Planted(
        "keys are freed before the floor has passed them",
        in_place_of(processes, "advance_floor", collect_first),
        ["garbage and a reader"],
        ["K5"],
    ),
    Planted(
        "objects are deleted when they depart",
        in_place_of(owning, "is_due", lambda at_ms, now_ms, keep_ms: True),
        ["keeping"],
        ["keep"],
    ),
    Planted(
        "a refused swap is a failure, and its page an orphan",
        lambda: _both(
            in_place_of(owning, "_swap", swap_without_reading_back),
            in_place_of(processes, "advance_floor", advance_and_tidy),
        ),
        ["garbage", "tidying"],
        ["K5"],
    ),
    Planted(
        "a refused swap is a success",
        in_place_of(owning, "_swap", swap_always_succeeds),
        ["start", "three rivals"],
        ["manifest", "K1", "K2", "one piece", "no false alarm", "epochs ascend"],
    ),
    Planted(
        "a barrier after the listed pieces, not the floor",
        in_place_of(owning, "_create_barrier", barrier_after_the_listed),
        ["emptied"],
        ["K1", "K2", "K4"],
    ),
    Planted(
        "a barrier passes a piece that was not read",
        in_place_of(owning, "_create_barrier", barrier_over_unread),
        ["takeover"],
        ["K1", "K2", "K4", "no false alarm"],
    ),
    Planted(
        "no claim before the barrier",
        in_place_of(owning, "take_over", _take_over("bpc")),
        ["takeover"],
        ["K1", "K2", "K4", "epochs ascend"],
    ),
    Planted(
        "the owner is named before the barrier exists",
        in_place_of(owning, "take_over", _take_over("ncb")),
        ["takeover"],
        ["K1", "K2", "K4", "no false alarm"],
    ),
    Planted(
        "the barrier is passed before the claim is complete",
        in_place_of(owning, "take_over", _take_over("abpc")),
        ["three rivals", "rivals"],
        ["no false alarm"],
    ),
    Planted(
        "a standby takes over from below the floor",
        lambda: _both(
            in_place_of(owning, "take_over", _take_over("afbpc")),
            in_place_of(Reading, "read_on", read_on_by_the_claim),
        ),
        ["freed"],
        ["K1", "K2", "K4"],
    ),
    Planted(
        "a claim that does not stand says what counts",
        in_place_of(Reading, "read_on", read_on_by_the_claim),
        ["slow claim without faults"],
        ["K2", "epochs ascend"],
    ),
    Planted(
        "an own barrier is read for ever",
        in_place_of(Reading, "read_on", read_on_for_ever),
        ["start"],
        ["progress"],
    ),
    Planted(
        "void pieces are delivered",
        in_place_of(processes, "poll", poll_void_pieces),
        ["three rivals", "rivals"],
        ["no false alarm"],
    ),
    Planted(
        "undecided pieces are delivered",
        in_place_of(following, "verdict", verdict_with({Verdict.UNDECIDED: Verdict.COUNTS})),
        ["three rivals"],
        ["no false alarm"],
    ),
    Planted(
        "undecided pieces are skipped",
        in_place_of(following, "verdict", verdict_with({Verdict.UNDECIDED: Verdict.VOID})),
        ["three rivals", "takeover"],
        ["no false alarm"],
    ),
    Planted(
        "a reader reads the manifest before the pieces",
        in_place_of(Reading, "poll", manifest_before_the_pieces),
        ["sleeper without faults", "sleeper"],
        ["K2", "no false alarm"],
    ),
    Planted(
        "a reader does not compare the floor",
        in_place_of(Reading, "_taken", taken_below_the_floor),
        ["sleeper without faults"],
        ["K1", "K2", "no false alarm", "progress"],
    ),
    Planted(
        "the lease counts from the answer",
        in_place_of(processes, "add", add_with_lease_from("answer")),
        ["leases", "leases and a crash"],
        ["lease"],
    ),
    Planted(
        "the lease counts from a later try",
        in_place_of(processes, "add", add_with_lease_from("retry")),
        ["leases"],
        ["lease"],
    ),
    Planted(
        "a lease that ran out is renewed by a piece",
        in_place_of(lease.OwnerLease, "renew", renew_at_any_time),
        ["leases", "leases and a crash"],
        ["lease"],
    ),
    Planted(
        "a claim on a manifest read after the last look",
        in_place_of(owning, "take_over", take_over_from_the_newest),
        ["leases", "leases and a crash"],
        ["lease"],
    ),
    Planted(
        "the age of a piece is judged after the look",
        in_place_of(lease.StandbyLease, "look", look_by_the_answer),
        ["leases", "leases and a crash"],
        ["lease"],
    ),
    Planted(
        "a standby waits one lease only",
        in_place_of(lease.StandbyLease, "has_run_out", one_lease),
        ["leases", "leases and a crash"],
        ["lease"],
    ),
]
