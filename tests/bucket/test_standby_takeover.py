"""A standby takes over when the owner gives no sign, and loses nothing that was shipped. Rules 4, 7 and 8."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.clocks import ManualClock
from support.disks import image
from support.shared import DATA, SMALL, contents, create, open_data, put, virtual
from support.shipped import new_nonce
from support.standbys import SteppedStandby, copy_of

from cordwood.bucket import BucketOptions, ObjectStore, Standing
from cordwood.bucket.attaching import read_record
from cordwood.bucket.session import BucketSession
from cordwood.bucket.stores import MemoryStore
from cordwood.config import load_broker_config
from cordwood.disk import MemoryFiles, join
from cordwood.errors import BucketRefused, DirectoryLocked, OwnerFenced
from cordwood.host import Host
from cordwood.storage.directory import DataDirectory, Opening

LEASE_MS = 3_000


class HookedStore:
    """Passes everything on to *inner*. ``before`` and ``after`` are called around the first replacement."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def replace(self, key: str, data: bytes, version: str) -> str:
        """Replace an object, and do what was planned before and after it."""
        before, self.before = self.before, lambda: None
        before()
        version = self._inner.replace(key, data, version)
        after, self.after = self.after, lambda: None
        after()
        return version


class Machine:
    """A machine with a disk, that owns the log in *store* from `open` on."""

    def __init__(self, store: ObjectStore, disk: MemoryFiles | None = None) -> None:
        self.store = store
        self.disk = disk or MemoryFiles()
        self.warnings: list[str] = []

    def open(self, standing: Standing | None = None, lease_ms: int | None = LEASE_MS) -> None:
        """Open the directory with its bucket."""
        nonce = new_nonce() if standing is None else standing.owner.nonce
        options = BucketOptions(lease_ms=lease_ms)
        session = BucketSession(self.disk, DATA, self.store, Host(), nonce, options)
        config, _ = load_broker_config(environment={}, overrides=dict(SMALL))
        opening = Opening(
            session.files,
            DATA,
            config,
            prepare=lambda: session.attach(standing),
            clock=ManualClock(),
            mapped=False,
            holder="the owner",
            uuid="u-1",
            node_name="here",
        )
        self.directory = DataDirectory(opening)
        session.begin(self.directory.identity)
        self.session = session

    def put(self, *values: bytes) -> None:
        """Append records to `orders`, durable on return, and ship nothing."""
        put(virtual(self.directory, "orders"), *values)

    def ship(self) -> None:
        """Ship what is durable."""
        self.session.shipper.ship(keep_alive=True)
        self.session.shipper.condense_if_due()

    def values(self) -> list[bytes]:
        """The values in `orders`."""
        return contents(self.directory)["orders", 0].values

    def killed(self) -> Machine:
        """Return the machine after kill -9 and a start."""
        return Machine(self.store, copy_of(self.disk))


def owner(store: ObjectStore, lease_ms: int | None = LEASE_MS) -> Machine:
    machine = Machine(store)
    machine.open(lease_ms=lease_ms)
    create(machine.directory, "orders")
    machine.put(b"first")
    machine.ship()
    return machine


def standing_by(
    machine: Machine, steps: Callable[[SteppedStandby], Iterator[None]]
) -> tuple[SteppedStandby, Standing | None]:
    """Follow on *machine* while *steps* go on; nothing else happens for a minute after them."""
    follower: SteppedStandby

    def all_steps() -> Iterator[None]:
        yield from steps(follower)
        for _ in range(600):
            if follower.clock.ns > 300_000_000_000:
                return
            yield

    follower = SteppedStandby(machine.store, machine.disk, all_steps())
    return follower, follower.run()


def nothing(follower: SteppedStandby) -> Iterator[None]:
    return iter(())


def test_a_standby_takes_over_one_and_a_half_leases_after_the_last_piece() -> None:
    store = MemoryStore()
    first, second = owner(store), Machine(store)
    seen: list[int] = []

    def appending(follower: SteppedStandby) -> Iterator[None]:
        for number in range(20):
            first.put(b"%d" % number)
            first.ship()
            seen.append(follower.clock.ns // 1_000_000)
            yield

    follower, standing = standing_by(second, appending)
    assert standing is not None
    waited_ms = follower.clock.ns // 1_000_000 - seen[-1]
    assert 1.5 * LEASE_MS <= waited_ms <= 1.5 * LEASE_MS + LEASE_MS / 2
    second.open(standing)
    assert second.values() == [b"first", *(b"%d" % number for number in range(20))]
    assert second.session.report.fetched == []
    second.put(b"more")
    second.ship()
    with pytest.raises(OwnerFenced):
        first.ship()
    assert second.killed().disk.exists(join(DATA, "meta", "broker.id"))


def test_an_owner_that_ships_nothing_new_keeps_its_log() -> None:
    store = MemoryStore()
    first, second = owner(store), Machine(store)

    def resting(follower: SteppedStandby) -> Iterator[None]:
        while follower.clock.ns < 60_000_000_000:
            first.ship()
            yield
        follower.standby.stop()

    _, standing = standing_by(second, resting)
    assert standing is None
    first.put(b"still the owner")
    first.ship()


@pytest.mark.parametrize("way", ["owner", "standby"])
@pytest.mark.parametrize("unshipped", [0, 1, 30])
def test_the_old_owner_rejoins_with_what_it_had_not_shipped_in_quarantine(unshipped: int, way: str) -> None:
    store = MemoryStore()
    first, second = owner(store), Machine(store)
    suffix = [b"never shipped %d" % number for number in range(unshipped)]

    def dying(follower: SteppedStandby) -> Iterator[None]:
        first.put(b"second")
        first.ship()
        yield
        for value in suffix:
            first.put(value)

    _, standing = standing_by(second, dying)
    second.open(standing)
    assert second.values() == [b"first", b"second"]
    for number in range(10):
        second.put(b"after %d" % number)
    second.ship()

    rejoined = first.killed()
    if way == "owner":
        rejoined.open()
    else:
        _, standing = standing_by(rejoined, nothing)
        rejoined.open(standing)
    assert rejoined.values() == second.values()
    kept = b"".join(
        content or b""
        for path, content in image(rejoined.disk, DATA).items()
        if path.startswith(join(DATA, "quarantine/"))
    )
    assert all(value in kept for value in suffix)
    if not suffix:
        assert not kept


def test_a_standby_that_owned_the_log_last_keeps_what_it_had_not_shipped() -> None:
    """Nobody has anything newer, so a restart of both as standbys loses nothing."""
    store = MemoryStore()
    first = owner(store)
    first.put(b"not shipped")
    again = first.killed()
    _, standing = standing_by(again, nothing)
    assert standing is not None
    assert not standing.is_copy
    again.open(standing)
    assert again.values() == [b"first", b"not shipped"]
    other = Machine(store)
    _, standing = standing_by(other, nothing)
    other.open(standing)
    assert other.values() == [b"first", b"not shipped"]


def test_it_becomes_a_copy_once_another_process_changed_the_log() -> None:
    store = MemoryStore()
    first = owner(store)
    first.put(b"not shipped")
    again, other = first.killed(), Machine(store)

    def taken_over(follower: SteppedStandby) -> Iterator[None]:
        yield
        other.open()
        yield
        assert b"not shipped" in b"".join(each or b"" for each in image(again.disk, DATA).values())
        other.put(b"instead")
        other.ship()
        yield
        yield

    _, standing = standing_by(again, taken_over)
    assert standing is not None
    assert standing.is_copy
    again.open(standing)
    assert again.values() == [b"first", b"instead"]


def test_without_a_lease_it_follows_says_what_to_set_and_never_takes_over() -> None:
    store = MemoryStore()
    first, second = owner(store, lease_ms=0), Machine(store)

    def waiting(follower: SteppedStandby) -> Iterator[None]:
        while follower.clock.ns < 3_600_000_000_000:
            yield
        first.put(b"hours later")
        first.ship()
        yield

    follower, standing = standing_by(second, waiting)
    assert standing is None
    (said,) = follower.warnings
    assert "cordwood.bucket.lease.ms" in said
    data = open_data(copy_of(second.disk))
    assert contents(data)["orders", 0].values == [b"first", b"hours later"]


def test_one_of_two_standbys_takes_over_and_the_other_goes_on_following() -> None:
    """Both see the lease run out, and the claim of the second is refused."""
    store = MemoryStore()
    owner(store)
    second, third = Machine(store), Machine(store)
    inside: list[Standing | None] = []

    def race() -> None:
        inside.append(standing_by(third, nothing)[1])
        third.open(inside[0])
        third.put(b"by the third")
        third.ship()

    hooked = HookedStore(store)
    hooked.before, second.store = race, hooked
    follower, standing = standing_by(second, nothing)
    assert inside[0] is not None
    assert any("not the first" in warning for warning in follower.warnings)
    # The third says nothing more, so it is taken over in its turn.
    assert standing is not None
    second.open(standing)
    assert second.values() == [b"first", b"by the third"]


def test_what_the_owner_ships_while_it_is_taken_over_is_not_lost() -> None:
    """It is in the pieces below the barrier, which the claim finds."""
    store = MemoryStore()
    first, second = owner(store), Machine(store)

    def ship_late() -> None:
        first.put(b"at the last moment")
        with pytest.raises(OwnerFenced):
            # The piece is created before it looks at the manifest, and below the barrier.
            first.ship()

    hooked = HookedStore(store)
    hooked.after, second.store = ship_late, hooked
    _, standing = standing_by(second, nothing)
    assert standing is not None
    second.open(standing)
    assert second.values() == [b"first", b"at the last moment"]
    assert read_record(second.disk, DATA).attached  # type: ignore[union-attr]


def test_a_standby_whose_claim_is_overtaken_goes_on_following_the_winner() -> None:
    """The third process claims the log between the claim and the barrier of the standby."""
    store = MemoryStore()
    first, second, third = owner(store), Machine(store), Machine(store)

    def overtake() -> None:
        third.open()
        third.put(b"by the third")
        third.ship()
        first.put(b"too late")
        with pytest.raises(OwnerFenced):
            first.ship()

    hooked = HookedStore(store)
    hooked.after, second.store = overtake, hooked
    follower, standing = standing_by(second, nothing)
    assert any("not the first" in warning for warning in follower.warnings)
    assert standing is not None
    second.open(standing)
    assert second.values() == third.values() == [b"first", b"by the third"]


def test_a_standby_refuses_the_directory_of_another_log_and_changes_nothing() -> None:
    store = MemoryStore()
    owner(store)
    other = MemoryFiles()
    other.make_directories(DATA)
    file = other.open(join(DATA, "notes.txt"), "create")
    file.close()
    before = image(other, "/")
    with pytest.raises(Exception, match=r"notes\.txt"):
        standing_by(Machine(store, other), nothing)
    assert image(other, "/") == before
    elsewhere = MemoryFiles()
    config, _ = load_broker_config(environment={}, overrides=dict(SMALL))
    DataDirectory(Opening(elsewhere, DATA, config, uuid="u-2", clock=ManualClock(), mapped=False)).close()
    with pytest.raises(BucketRefused, match="u-2"):
        standing_by(Machine(store, elsewhere), nothing)


def test_the_lock_says_that_a_standby_has_the_directory() -> None:
    store = MemoryStore()
    owner(store)
    second = Machine(store)

    def looking(follower: SteppedStandby) -> Iterator[None]:
        with pytest.raises(DirectoryLocked, match="a standby"):
            open_data(second.disk)
        yield

    standing_by(second, looking)


def test_where_there_is_no_log_yet_it_waits_for_one() -> None:
    store = MemoryStore()
    second = Machine(store)

    def beginning(follower: SteppedStandby) -> Iterator[None]:
        yield
        owner(store)
        yield

    follower, standing = standing_by(second, beginning)
    assert "no log" in follower.warnings[0]
    second.open(standing)
    assert second.values() == [b"first"]


def test_what_was_appended_to_a_copy_without_its_bucket_is_kept_in_quarantine() -> None:
    store = MemoryStore()
    first = owner(store, lease_ms=0)
    second = Machine(store)
    assert standing_by(second, nothing)[1] is None
    data = open_data(second.disk)
    put(virtual(data, "orders"), b"by mistake")
    data.close()
    first.put(b"second")
    first.ship()
    assert standing_by(second, nothing)[1] is None
    kept = [path for path in image(second.disk, DATA) if path.startswith(join(DATA, "quarantine/"))]
    assert any(b"by mistake" in (image(second.disk, DATA)[path] or b"") for path in kept)
    assert contents(open_data(copy_of(second.disk)))["orders", 0].values == [b"first", b"second"]
