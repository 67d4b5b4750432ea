"""Searching schedules: all of them within limits, or random ones from seeds.

The search runs every schedule from its beginning, because a generator cannot be copied. A schedule ends early
where everything is as it was in an earlier one: the objects, all answers that each process got, the time, and
what may still go wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from support.bucket_model.processes import last_reader_script, successor_script
from support.bucket_model.world import Limits, Option, Pruned, Violation, World

#: Adds the processes, and makes what is there at the beginning.
Setting = Callable[[World], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Processes in a world, and how much may go wrong."""

    name: str
    setting: Setting
    limits: Limits


@dataclass(slots=True)
class Tally:
    """What a search looked at."""

    schedules: int = 0
    #: Those that ran to their end; the others reached a state that was seen before.
    ended: int = 0
    states: int = 0
    #: Whether there are no more schedules within the limits.
    is_complete: bool = True
    kinds: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: Tally) -> Tally:
        kinds = dict(self.kinds)
        for kind, count in other.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
        return Tally(
            self.schedules + other.schedules,
            self.ended + other.ended,
            self.states + other.states,
            self.is_complete and other.is_complete,
            kinds,
        )

    def __str__(self) -> str:
        return f"{self.schedules:,} schedules ({self.ended:,} to their end), {self.states:,} states"


class _Systematic:
    """Follows a path and then takes the first option, until everything is as it was before."""

    def __init__(self, path: list[int], seen: set[int]) -> None:
        self.path = path
        self.sizes: list[int] = []
        self.seen = seen
        self.kinds: list[str] = []

    def choose(self, options: list[Option], state: Callable[[], int]) -> int:
        depth = len(self.sizes)
        if depth == len(self.path):
            now = state()
            if now in self.seen:
                raise Pruned
            self.seen.add(now)
            self.path.append(0)
        self.sizes.append(len(options))
        chosen = self.path[depth]
        self.kinds.append(options[chosen].kind)
        return chosen


class _Random:
    """Chooses at random, and mostly lets a process go on."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stay = self.random.choice((0.3, 0.6, 0.85))
        self.path: list[int] = []
        self.kinds: list[str] = []

    def choose(self, options: list[Option], state: Callable[[], int]) -> int:
        chosen = 0
        if self.random.random() > self.stay:
            plain = sum(not each.kind for each in options)
            if plain < len(options) and self.random.random() < 0.25:
                chosen = self.random.randrange(plain, len(options))
            elif plain:
                chosen = self.random.randrange(plain)
        self.path.append(chosen)
        self.kinds.append(options[chosen].kind)
        return chosen


class _Given:
    """Follows a schedule that was found before."""

    def __init__(self, path: list[int]) -> None:
        self.path = path
        self.depth = 0

    def choose(self, options: list[Option], state: Callable[[], int]) -> int:
        chosen = self.path[self.depth] if self.depth < len(self.path) else 0
        self.depth += 1
        return chosen


def check(world: World) -> None:
    """Run the processes, and then check what must hold in the end."""
    world.run()
    readers = [each.disk["state"] for each in world.processes if "state" in each.disk]
    successor = world.run_alone("successor", successor_script)
    contents = successor.disk["contents"]
    world.check_end(successor, contents)
    for state in (None, *readers):
        reader = world.run_alone("reader", last_reader_script(state))
        world.check_end(reader, reader.disk["contents"])
        if reader.disk["contents"] != contents:
            raise Violation("K2", f"a reader has {reader.disk['contents']}, the owner {contents}")


def _world(scenario: Scenario, chooser: _Systematic | _Random | _Given) -> World:
    world = World(chooser, scenario.limits)
    scenario.setting(world)
    return world


def explore(scenario: Scenario, at_most: int) -> Tally:
    """Run all schedules within the limits of *scenario*, or *at_most* of them. Raises Violation."""
    seen: set[int] = set()
    tally = Tally()
    path: list[int] = []
    while True:
        chooser = _Systematic(path, seen)
        try:
            check(_world(scenario, chooser))
        except Pruned:
            pass
        except Violation as found:
            raise _explained(scenario, path, found) from found
        else:
            tally.ended += 1
        tally.schedules += 1
        for kind in set(chooser.kinds):
            tally.kinds[kind] = tally.kinds.get(kind, 0) + 1
        while path and path[-1] + 1 >= chooser.sizes[len(path) - 1]:
            path.pop()
        if not path:
            break
        path[-1] += 1
        if tally.schedules >= at_most:
            tally.is_complete = False
            break
    tally.states = len(seen)
    return tally


def sample(scenario: Scenario, seeds: range) -> Tally:
    """Run one random schedule for each of *seeds*; the same schedule counts once. Raises Violation."""
    tally = Tally(is_complete=False)
    distinct: set[int] = set()
    for seed in seeds:
        chooser = _Random(seed)
        try:
            check(_world(scenario, chooser))
        except Violation as found:
            found.add_note(f"seed {seed}")
            raise _explained(scenario, chooser.path, found) from found
        distinct.add(hash(tuple(chooser.path)))
        for kind in set(chooser.kinds):
            tally.kinds[kind] = tally.kinds.get(kind, 0) + 1
    tally.schedules = tally.ended = len(distinct)
    return tally


def replay(scenario: Scenario, path: list[int]) -> list[str]:
    """Return what happens in the schedule *path*, ending with the violation if there is one."""
    world = _world(scenario, _Given(path))
    world.is_logging = True
    try:
        check(world)
    except Violation as found:
        world.log.append(str(found))
    return world.log


def _explained(scenario: Scenario, path: list[int], found: Violation) -> Violation:
    steps = "\n".join(replay(scenario, list(path)))
    said = Violation(found.claim, f"in {scenario.name}, schedule {path}:\n{steps}")
    for note in getattr(found, "__notes__", ()):
        said.add_note(note)
    return said
