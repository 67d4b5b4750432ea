"""Timing that survives a noisy machine: sides take turns, the best round of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One line of the result: a measured number and, if it has one, the goal it must reach."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = False

    @property
    def missed(self) -> bool:
        """Whether there is a goal and the figure is on the wrong side of it."""
        if self.goal is None:
            return False
        return self.value > self.goal if self.at_most else self.value < self.goal


def best_seconds(
    sides: dict[str, Callable[[], object]],
    rounds: int = 7,
    before_each: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Run the sides in turn, *rounds* times, and return the shortest time of each by *clock*.

    The shortest, because on a shared machine noise only ever adds. *before_each* is not timed.
    """
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, side in sides.items():
            before_each()
            started = clock()
            side()
            best[name] = min(best[name], clock() - started)
    return best


def calls_per_second(action: Callable[[], object], *, seconds: float, calls_max: int) -> float:
    """Repeat *action* for about *seconds*, at most *calls_max* times, and return its mean rate.

    The mean rather than the best, where now and then a call does work for those before it, as a sync does.
    """
    calls, burst = 0, 1
    started = now = time.perf_counter()
    while now - started < seconds and calls < calls_max:
        before = now
        for _ in range(burst):
            action()
        calls += burst
        now = time.perf_counter()
        if now - before < 0.001:
            # Looking at the clock after every call would be a good part of a fast one.
            burst *= 2
    return calls / (now - started)


def print_figures(figures: list[Figure]) -> None:
    """Print the figures as a table, each beside its goal."""
    table = Table("figure", "measured", "goal", "")
    for figure in figures:
        goal = verdict = ""
        if figure.goal is not None:
            goal = f"{'at most' if figure.at_most else 'at least'} {figure.goal:g} {figure.unit}"
            verdict = "missed" if figure.missed else "ok"
        table.add_row(figure.name, f"{figure.value:,.2f} {figure.unit}", goal, verdict)
    Console().print(table)
