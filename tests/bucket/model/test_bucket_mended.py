"""What the checker found, as one schedule each, and what a schedule cannot show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.bucket_model.search import _Given
from support.bucket_model.world import Limits, World

from cordwood.bucket import (
    BucketIdentity,
    FellBehind,
    Reading,
    Steps,
    add_piece,
    collect,
    found,
    move_floor,
    take_over,
)
from cordwood.bucket.ownership.founding import IDENTITY_KEY
from cordwood.bucket.ownership.lease import OwnerLease, StandbyLease
from cordwood.bucket.ownership.manifest import MANIFEST_KEY
from cordwood.bucket.ownership.objects import Create, Pause, Request, Result
from cordwood.bucket.ownership.owning import Ownership, read_manifest
from cordwood.bucket.ownership.piece import piece_key
from cordwood.errors import (
    BucketDamaged,
    ObjectExists,
    ObjectMissing,
    OwnerFenced,
    StoreUnavailable,
    VersionChanged,
)

A, B, C = ("a" * 32, "b" * 32, "c" * 32)


class Store:
    """The store of the checker, and steps that run on it until a request that is to wait."""

    def __init__(self) -> None:
        self.world = World(_Given([]), Limits())
        self.run(found(BucketIdentity("broker", "now"), A))

    def until(self, steps: Steps[Result], is_there: Callable[[Request], bool]) -> Request:
        """Run *steps* up to a request that *is_there* accepts, and return it."""
        request = steps.send(None)
        while not is_there(request):
            request = self._step(steps, request)
        return request

    def run(
        self,
        steps: Steps[Result],
        first: Request | None = None,
        lost: Callable[[Request], bool] | None = None,
    ) -> Result:
        """Run *steps*, whose pending request is *first*. The answer to one that *lost* accepts is lost."""
        is_lost = lost is None
        try:
            request = steps.send(None) if first is None else first
            for _ in range(100):
                lose = not is_lost and lost is not None and lost(request)
                is_lost |= lose
                request = self._step(steps, request, lose)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        raise AssertionError("100 requests and no end")

    def _step(self, steps: Steps[Result], request: Request, lose: bool = False) -> Request:
        if isinstance(request, Pause):
            return steps.send(None)
        try:
            answer = self.world._apply(request)
        except (ObjectExists, ObjectMissing, VersionChanged) as error:
            return steps.throw(error)
        return steps.throw(StoreUnavailable()) if lose else steps.send(answer)

    def owner(self, nonce: str) -> Ownership:
        return self.run(take_over(nonce))

    def reading(self) -> Reading:
        return Reading.from_floor(self.run(read_manifest()).manifest)


def test_a_barrier_whose_answer_was_lost_is_not_read_for_ever() -> None:
    """It is undecided until the claim is complete, so that reading on cannot pass it."""
    store = Store()
    owner = store.run(take_over(A), lost=lambda request: isinstance(request, Create))
    assert owner.next_seq == 2


def test_a_standby_below_the_floor_does_not_create_a_barrier_under_a_freed_key() -> None:
    """And it does not fence the owner by a claim."""
    store = Store()
    standby = store.reading()
    owner = store.owner(A)
    store.run(add_piece(owner, b"a1"))
    store.run(move_floor(owner, [], owner.next_seq, owner.previous, [], 0))
    store.run(collect(owner, 0, 0))
    before = store.run(read_manifest())
    with pytest.raises(FellBehind):
        store.run(take_over(B, reading=standby))
    assert store.run(read_manifest()) == before


def test_a_claim_that_does_not_stand_delivers_no_piece_that_is_void() -> None:
    """A first owner wakes up and creates a piece under a freed key; a slow claimant finds it there."""
    store = Store()
    sleeper = store.owner(A)
    late = add_piece(sleeper, b"void")
    creation = late.send(None)
    seen: list[bytes] = []
    slow = take_over(B, on_piece=lambda piece: seen.append(bytes(piece.body)))
    request = store.until(slow, lambda request: request[0] == piece_key(2))
    owner = store.owner(C)
    store.run(add_piece(owner, b"c1"))
    store.run(move_floor(owner, [], owner.next_seq, owner.previous, [], 0))
    store.run(collect(owner, 0, 0))
    store.world._apply(creation)
    with pytest.raises((OwnerFenced, FellBehind)):
        store.run(slow, request)
    assert b"void" not in seen


def test_a_standby_that_lost_the_race_follows_on() -> None:
    """Its barrier is void, so that its reading must not have passed it."""
    store = Store()
    store.owner(A)
    mine = store.reading()
    slow = take_over(B, reading=mine)
    barrier = store.until(slow, lambda request: isinstance(request, Create))
    swap = slow.send(store.world._apply(barrier))
    winner = store.owner(C)
    store.run(add_piece(winner, b"c1"))
    with pytest.raises(OwnerFenced):
        store.run(slow, swap)
    pieces, _ = store.run(mine.poll())
    assert [bytes(piece.body) for piece in pieces] == [b"", b"c1"]


def test_another_body_after_giving_up_is_refused() -> None:
    """It would be created after a piece that counts, in whose place it says that it stands."""
    store = Store()
    owner = store.owner(A)
    given_up = add_piece(owner, b"one")
    store.world._apply(given_up.send(None))
    with pytest.raises(BucketDamaged, match="of this owner"):
        store.run(add_piece(owner, b"another"))
    assert store.run(add_piece(owner, b"one")) == 2


def test_a_damaged_piece_passes_nothing() -> None:
    """A reader may try again: what came before in the same round was not delivered."""
    store = Store()
    owner = store.owner(A)
    store.run(add_piece(owner, b"a1"))
    store.run(add_piece(owner, b"a2"))
    reader = store.reading()
    good = store.world.objects[piece_key(3)]
    store.world.objects[piece_key(3)] = (good[0][:-1] + b"?", good[1])
    with pytest.raises(BucketDamaged):
        store.run(reader.poll())
    store.world.objects[piece_key(3)] = good
    pieces, _ = store.run(reader.poll())
    assert [bytes(piece.body) for piece in pieces] == [b"", b"a1", b"a2"]


def test_a_conflict_of_two_founders_leaves_no_log_without_a_manifest() -> None:
    """A store may answer "exists" to both of two creations at the same time, before either has happened."""
    store = Store()
    store.world.objects.clear()
    store.world.manifest = None
    steps = found(BucketIdentity("broker", "now"), B)
    store.until(steps, lambda request: isinstance(request, Create))
    store.run(steps, steps.throw(ObjectExists(MANIFEST_KEY)))
    assert set(store.world.objects) == {MANIFEST_KEY, IDENTITY_KEY}


def test_a_log_whose_manifest_is_gone_is_not_founded_again() -> None:
    """An identity without a manifest is damage. It never means an empty log."""
    store = Store()
    del store.world.objects[MANIFEST_KEY]
    store.run(found(BucketIdentity("broker", "now"), B))
    assert MANIFEST_KEY not in store.world.objects


def test_a_lease_that_ran_out_is_not_renewed_by_a_piece() -> None:
    lease = OwnerLease(lease_ms=300, sent_ms=0)
    assert lease.is_due(100)
    assert not lease.is_due(99)
    assert lease.renew(sent_ms=200, now_ms=299)
    assert lease.may_acknowledge(499)
    assert not lease.may_acknowledge(500)
    assert not lease.renew(sent_ms=450, now_ms=500)
    assert not lease.may_acknowledge(501)
    lease.restart(600)
    assert lease.may_acknowledge(899)


def test_without_a_standby_a_lease_never_ends() -> None:
    lease = OwnerLease(lease_ms=0, sent_ms=0)
    assert lease.may_acknowledge(1 << 60)
    assert not lease.is_due(1 << 60)
    assert not StandbyLease((1, 1), 0, 1 << 60).has_run_out(0)


def test_a_standby_waits_from_the_end_of_one_look_to_the_beginning_of_another() -> None:
    standby = StandbyLease((1, 1), since_ms=0, asked_ms=0)
    standby.look((2, 1), asked_ms=10, answered_ms=50)
    standby.look((2, 1), asked_ms=499, answered_ms=900)
    assert not standby.has_run_out(300)
    standby.look((2, 1), asked_ms=500, answered_ms=900)
    assert standby.has_run_out(300)
    standby.look((2, 2), asked_ms=900, answered_ms=901)
    assert not standby.has_run_out(300)
