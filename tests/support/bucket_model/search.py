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

    def count(self, path: list[Option]) -> None:
        """Count a schedule, and the kinds of what happens in it."""
        self.schedules += 1
        for kind in {each.kind for each in path}:
            self.kinds[kind] = self.kinds.get(kind, 0) + 1

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

    def __init__(self, path: list[list[Option]], seen: set[int]) -> None:
        #: The options at each step that were not tried yet, the present one last.
        self.path = path
        self.depth = 0
        self.seen = seen

    def known(self) -> Option | None:
        if self.depth == len(self.path):
            return None
        self.depth += 1
        return self.path[self.depth - 1][-1]

    def choose(self, options: list[Option], state: Callable[[], int]) -> Option:
        if len(options) > 1:
            now = state()
            if now in self.seen:
                raise Pruned
            self.seen.add(now)
            options.reverse()
        self.path.append(options)
        self.depth += 1
        return options[-1]

    def taken(self) -> list[Option]:
        return [each[-1] for each in self.path]


class _Random:
    """Chooses at random, and mostly lets a process go on."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stay = self.random.choice((0.3, 0.6, 0.85))
        self.path: list[Option] = []

    def known(self) -> Option | None:
        return None

    def choose(self, options: list[Option], state: Callable[[], int]) -> Option:
        chosen = 0
        if len(options) > 1 and self.random.random() > self.stay:
            plain = sum(not each.kind for each in options)
            if plain < len(options) and self.random.random() < 0.25:
                chosen = self.random.randrange(plain, len(options))
            elif plain:
                chosen = self.random.randrange(plain)
        self.path.append(options[chosen])
        return options[chosen]

    def taken(self) -> list[Option]:
        return self.path


class _Given:
    """Follows a schedule that was found before."""

    def __init__(self, path: list[Option]) -> None:
        self.rest = iter(path)

    def known(self) -> Option | None:
        return next(self.rest, None)

    def choose(self, options: list[Option], state: Callable[[], int]) -> Option:
        return options[0]


def check(world: World, ends: set[int]) -> None:
    """Run the processes, and then check what must hold in the end, unless that is in *ends* already."""
    world.run()
    end = world.end_state()
    if end in ends:
        return
    ends.add(end)
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
    ends: set[int] = set()
    tally = Tally()
    path: list[list[Option]] = []
    while True:
        chooser = _Systematic(path, seen)
        try:
            check(_world(scenario, chooser), ends)
        except Pruned:
            pass
        except Violation as found:
            raise _explained(scenario, chooser.taken(), found) from found
        else:
            tally.ended += 1
        tally.count(chooser.taken())
        while path and len(path[-1]) == 1:
            path.pop()
        if not path:
            break
        path[-1].pop()
        if tally.schedules >= at_most:
            tally.is_complete = False
            break
    tally.states = len(seen)
    return tally


def sample(scenario: Scenario, seeds: range) -> Tally:
    """Run one random schedule for each of *seeds*; the same schedule counts once. Raises Violation."""
    tally = Tally(is_complete=False)
    distinct: set[int] = set()
    ends: set[int] = set()
    for seed in seeds:
        chooser = _Random(seed)
        try:
            check(_world(scenario, chooser), ends)
        except Violation as found:
            found.add_note(f"seed {seed}")
            raise _explained(scenario, chooser.taken(), found) from found
        same = hash(tuple(chooser.path))
        if same not in distinct:
            distinct.add(same)
            tally.count(chooser.path)
            tally.ended += 1
    return tally


def replay(scenario: Scenario, path: list[Option]) -> list[str]:
    """Return what happens in the schedule *path*, ending with the violation if there is one."""
    world = _world(scenario, _Given(path))
    world.is_logging = True
    try:
        check(world, set())
    except Violation as found:
        world.log.append(str(found))
    return world.log


def _explained(scenario: Scenario, path: list[Option], found: Violation) -> Violation:
    steps = "\n".join(replay(scenario, path))
    schedule = [tuple(each) for each in path]
    said = Violation(found.claim, f"in {scenario.name}, schedule {schedule}:\n{steps}")
    for note in getattr(found, "__notes__", ()):
        said.add_note(note)
    return said
