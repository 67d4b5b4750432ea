"""The scenarios of the checker: who is there at the beginning, and how much may go wrong."""

from __future__ import annotations

from typing import Any

from cordwood.bucket.ownership.manifest import MANIFEST_KEY
from cordwood.bucket.ownership.objects import Create, Get, Replace
from cordwood.bucket.ownership.piece import PREFIX
from support.bucket_model.processes import (
    Plan,
    founder_script,
    leased_owner_script,
    leased_standby_script,
    owner_script,
    reader_script,
    standby_script,
)
from support.bucket_model.search import Scenario
from support.bucket_model.world import Limits, World

LEASE_MS = 200


def creates_piece(request: Any) -> bool:
    return isinstance(request, Create) and request.key.startswith(PREFIX)


def creates_content(request: Any) -> bool:
    """Whether *request* creates a piece that is no barrier."""
    return creates_piece(request) and len(request.data) > 84


def replaces_manifest(request: Any) -> bool:
    return isinstance(request, Replace)


def nothing(request: Any) -> bool:
    return False


def begin_log(world: World) -> None:
    """Found the log, without faults."""
    world.lead(world.add("founder", founder_script("broker")), nothing)
    world.processes.clear()


def founders(world: World) -> None:
    world.add("first", founder_script("broker"), may_crash=True)
    world.add("again", founder_script("broker"))
    world.add("other", founder_script("another"))


def takeover(world: World) -> None:
    """An owner is about to add its first piece, and a standby follows and takes over."""
    begin_log(world)
    world.lead(world.add("owner", owner_script(Plan([b"a1", b"a2"]))), creates_content)
    world.add("standby", standby_script(1, Plan([b"b1"])))


def start(world: World) -> None:
    """Two processes start at the same time, and one of them may crash and start again."""
    begin_log(world)
    world.add("one", owner_script(Plan([b"a1"])), may_crash=True)
    world.add("two", owner_script(Plan([b"b1"])))


def rivals(world: World) -> None:
    """Two standbys take over from an owner that goes on, and the one that is slower follows the other."""
    begin_log(world)
    world.lead(world.add("owner", owner_script(Plan([b"a1"]))), creates_content)
    world.add("standby", standby_script(1, Plan([b"b1"])))
    world.add("rival", standby_script(1, Plan([b"c1"])))


def batches(world: World) -> None:
    """An owner confirms two pieces at a time."""
    begin_log(world)
    world.lead(world.add("owner", owner_script(Plan([b"a1", b"a2"], together=2))), creates_content)
    world.add("standby", standby_script(0, Plan([b"b1"])))
    world.add("reader", reader_script(2))


def garbage(world: World) -> None:
    """An owner moves the floor after each piece and frees keys at once; a reader falls behind."""
    begin_log(world)
    plan = Plan([b"a1", b"a2"], floor_after=1)
    world.lead(world.add("owner", owner_script(plan), may_crash=True), creates_content)
    world.add("reader", reader_script(2))


def sleeper(world: World) -> None:
    """An owner is paused before it sends a piece; another takes over and frees just that key."""
    begin_log(world)
    world.lead(world.add("sleeper", owner_script(Plan([b"a1", b"a2"]))), creates_content)
    world.lead(world.add("reader", reader_script(3)), lambda request: request == Get(MANIFEST_KEY))
    plan = Plan([b"b1"], floor_after=1)
    world.lead(world.add("owner", owner_script(plan)), creates_piece)


def slow_claim(world: World) -> None:
    """A claimant is paused while it reads; another takes over, frees keys, and the first owner wakes up."""
    begin_log(world)
    world.lead(world.add("sleeper", owner_script(Plan([b"a1", b"a2"]))), creates_content)
    claimant = world.add("claimant", standby_script(1, Plan([b"c1"])))
    world.lead(claimant, replaces_manifest)
    plan = Plan([b"b1"], floor_after=1)
    world.add("owner", owner_script(plan))


def freed(world: World) -> None:
    """The floor passes a standby that is about to take over, and all pieces below it are deleted."""
    begin_log(world)
    plan = Plan([b"a1", b"a2"], floor_after=1)
    world.lead(world.add("owner", owner_script(plan)), creates_content)
    world.lead(
        world.add("standby", standby_script(1, Plan([b"b1"]))), lambda request: request == Get(MANIFEST_KEY)
    )


def emptied(world: World) -> None:
    """All pieces are below the floor and deleted, and two processes start."""
    begin_log(world)
    plan = Plan([b"a1"], floor_after=1)
    world.lead(world.add("owner", owner_script(plan)), nothing)
    world.add("one", owner_script(Plan([b"b1"])))
    world.add("two", standby_script(1, Plan([b"c1"])))


def restarts(world: World) -> None:
    """An owner that crashes at any step starts again, tidies up and goes on."""
    begin_log(world)
    plan = Plan([b"a1", b"a2", b"a3"], floor_after=2, is_tidying=True)
    world.add("owner", owner_script(plan), may_crash=True)
    world.lead(world.add("reader", reader_script(1)), lambda request: True)


def tidying(world: World) -> None:
    """An owner is fenced while it replaces the manifest; the next one deletes pages that nothing names."""
    begin_log(world)
    plan = Plan([b"a1"], floor_after=1)
    world.lead(
        world.add("owner", owner_script(plan)),
        lambda request: isinstance(request, Create) and request.key[0] == "m",
    )
    world.add("next", owner_script(Plan([b"b1"], floor_after=1, is_tidying=True)))


def keeping(world: World) -> None:
    """Objects stay for a while after they are not named, so that a reader finds what it read of."""
    begin_log(world)
    plan = Plan([b"a1", b"a2"], floor_after=1, keep_ms=200)
    world.lead(world.add("owner", owner_script(plan)), replaces_manifest)
    world.add("reader", reader_script(1, keep_ms=200))


def leases(world: World) -> None:
    """An owner with a slow clock renews its lease; a standby with a fast one takes over when it ran out."""
    begin_log(world)
    owner = world.add(
        "owner", leased_owner_script(Plan([b"a1", b"a2"], lease_ms=LEASE_MS)), 0.9, may_crash=True
    )
    world.lead(owner, creates_content)
    standby = world.add("standby", leased_standby_script(Plan(lease_ms=LEASE_MS)), 1.15)
    world.lead(standby, lambda request: request == Get(MANIFEST_KEY))


def leased_rivals(world: World) -> None:
    """Two standbys wait for the same lease to run out, and one of them has taken over before."""
    begin_log(world)
    owner = world.add("owner", leased_owner_script(Plan([b"a1"], lease_ms=LEASE_MS)), 0.9)
    world.lead(owner, creates_content)
    for name, content, rate in (("standby", b"b1", 1.15), ("rival", b"c1", 1.0)):
        world.add(name, leased_standby_script(Plan([content], lease_ms=LEASE_MS)), rate)


def everything(world: World) -> None:
    """All kinds of processes at once."""
    begin_log(world)
    world.add(
        "owner", owner_script(Plan([b"a1", b"a2", b"a3"], floor_after=2, is_tidying=True)), may_crash=True
    )
    world.add("standby", standby_script(2, Plan([b"b1", b"b2"], floor_after=1)), may_crash=True)
    world.add("rival", standby_script(3, Plan([b"c1", b"c2"], together=2)), may_crash=True)
    world.add("reader", reader_script(4))
    world.add("other", reader_script(2))


def leased_everything(world: World) -> None:
    """All processes that have leases, with clocks of different rates."""
    begin_log(world)
    plans = [
        Plan([name + b"1", name + b"2", name + b"3"], floor_after=2, lease_ms=LEASE_MS)
        for name in (b"a", b"b", b"c")
    ]
    world.add("owner", leased_owner_script(plans[0]), 0.85, may_crash=True)
    world.add("standby", leased_standby_script(plans[1]), 1.15, may_crash=True)
    world.add("rival", leased_standby_script(plans[2]), 1.0, may_crash=True)
    world.add("reader", reader_script(3))


ALL = "FLDATC"
#: Small enough to be searched to the end.
EXHAUSTIVE = [
    (Scenario("takeover", takeover, Limits(faults=1, kinds=ALL, switches=4)), 20_000),
    (Scenario("three rivals", rivals, Limits(switches=3)), 14_000),
    (Scenario("garbage and a reader", garbage, Limits(switches=4)), 1_900),
]
#: Searched as far as the limit of a run goes, and then at random.
LARGER = [
    Scenario("founders", founders, Limits(faults=1, kinds=ALL, crashes=1, switches=3)),
    Scenario("founders and a conflict", founders, Limits(faults=1, kinds="C", switches=3)),
    Scenario("takeover with two faults", takeover, Limits(faults=2, kinds="LD", switches=2)),
    Scenario("start", start, Limits(faults=1, kinds=ALL, crashes=1, switches=2)),
    Scenario("rivals", rivals, Limits(faults=1, kinds="LD", switches=2)),
    Scenario("batches", batches, Limits(faults=1, kinds="LD", switches=2)),
    Scenario("garbage", garbage, Limits(faults=1, kinds=ALL, crashes=1, switches=1)),
    Scenario("sleeper", sleeper, Limits(faults=1, kinds="D", switches=2)),
    Scenario("sleeper without faults", sleeper, Limits(switches=3)),
    Scenario("slow claim", slow_claim, Limits(faults=1, kinds="D", switches=2)),
    Scenario("slow claim without faults", slow_claim, Limits(switches=3)),
    Scenario("freed", freed, Limits(faults=1, kinds=ALL, switches=2)),
    Scenario("emptied", emptied, Limits(faults=1, kinds=ALL, switches=2)),
    Scenario("restarts", restarts, Limits(faults=1, kinds="LD", crashes=2, switches=0)),
    Scenario("tidying", tidying, Limits(faults=1, kinds="LDT", switches=2)),
    Scenario("keeping", keeping, Limits(switches=3, ticks=4)),
    Scenario("leases", leases, Limits(faults=1, kinds="SM", switches=1, ticks=4)),
    Scenario("leases and a crash", leases, Limits(crashes=1, switches=2, ticks=4)),
    Scenario("leased rivals", leased_rivals, Limits(switches=1, ticks=5)),
]
#: Far too large: random schedules only.
RANDOM = [
    Scenario("everything", everything, Limits(faults=3, kinds=ALL, crashes=2, delayed=3)),
    Scenario(
        "leased everything",
        leased_everything,
        Limits(faults=3, kinds=ALL + "SM", crashes=2, ticks=14, tick_ms=50, delayed=3),
    ),
]
BY_NAME = {each.name: each for each in (*(scenario for scenario, _ in EXHAUSTIVE), *LARGER, *RANDOM)}
