"""Everything a partition may hold, given what its caller was told."""

from __future__ import annotations

from support.producing import Sent

World = tuple[bytes, ...]


class Promises:
    """Everything one partition may hold by what its caller was told: values from offset 0 on, in order.

    An acknowledgement leaves the worlds in which it is true. A failure that says that nothing is known
    (`LogFailed`) adds those in which the change happened all the same.
    """

    def __init__(self) -> None:
        self.worlds: set[World] = {()}
        self.starts = {0}
        self.broken: list[str] = []
        self.acknowledged = 0
        self.places: dict[Sent, int] = {}

    @property
    def sure(self) -> World:
        """What is there in every world."""
        return min(self.worlds, key=len)

    def appended(self, offset: int, values: World) -> None:
        self.acknowledged += 1
        worlds = {world + values for world in self.worlds if len(world) == offset}
        if not worlds:
            ends_at = sorted({len(world) for world in self.worlds})
            lost = offset < ends_at[0]
            self.broken.append("an acknowledged offset was given again" if lost else "an append left a gap")
            worlds = {(*self.sure[:offset], *[b"?"] * (offset - len(self.sure)), *values)}
        self.worlds = worlds

    def sent(self, base: int, sent: Sent) -> None:
        """A producer was told that its batch is at *base*, for the first time or again."""
        self.acknowledged += 1
        if self.places.setdefault(sent, base) != base:
            self.broken.append("a batch that was sent again got another offset")
        end = base + len(sent.values)
        there = {world for world in self.worlds if world[base:end] == sent.values}
        worlds = there | {world + sent.values for world in self.worlds if len(world) == base}
        if not worlds:
            self.broken.append("a batch was answered with offsets that it cannot have")
        self.worlds = worlds or self.worlds

    def maybe_appended(self, values: World) -> None:
        self.worlds |= {world + values for world in self.worlds}

    def truncated(self, end: int) -> None:
        self.worlds = {world[:end] for world in self.worlds}

    def maybe_truncated(self, end: int) -> None:
        self.worlds |= {world[:end] for world in self.worlds}

    def check(self, found: dict[int, bytes], start: int) -> list[str]:
        """Return what *found*, all that can be read from *start* on, has that breaks a promise."""
        if start not in self.starts:
            return [f"the log start is {start}, not one of {sorted(self.starts)}"]
        for world in self.worlds:
            if found == dict(list(enumerate(world))[start:]):
                return []
        sure = dict(list(enumerate(self.sure))[start:])
        if any(found.get(offset) != value for offset, value in sure.items()):
            return ["acknowledged records are lost or changed"]
        return ["there are records that nobody appended, or not whole"]
