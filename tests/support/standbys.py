"""A standby on one thread with a clock of its own: what happens meanwhile happens while it waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cordwood.bucket import ObjectStore, Standby, StandbyOptions, Standing
from cordwood.bucket.attaching import is_ignored
from cordwood.disk import Files, MemoryFiles, join
from cordwood.host import Host, WaitEvent
from support.clocks import ManualClock
from support.disks import image
from support.shipped import new_nonce

DATA = "/data"


class _StepEvent:
    """An event of which every wait is one step of the test."""

    def __init__(self, clock: ManualClock, step: Callable[[], bool]) -> None:
        self._clock = clock
        self._step = step
        self._happened = False

    def set(self) -> None:
        self._happened = True

    def is_set(self) -> bool:
        return self._happened

    def wait(self, timeout: float | None = None) -> bool:
        if timeout:
            self._clock.advance(int(timeout * 1000))
            if not self._happened and not self._step():
                self._happened = True
        return self._happened


class SteppedStandby:
    """A standby that follows while *steps* go on, one for every wait, and is stopped after the last one."""

    def __init__(self, store: ObjectStore, files: Files, steps: Iterator[None], data: str = DATA) -> None:
        self.warnings: list[str] = []
        self.caught_up: list[int] = []
        self.clock = ManualClock()

        def step() -> bool:
            return next(steps, self) is not self

        def new_event() -> WaitEvent:
            return _StepEvent(self.clock, step)

        self.standby = Standby(
            store,
            files,
            data,
            Host(self.clock, new_event=new_event),
            new_nonce,
            StandbyOptions(),
            self.warnings.append,
            self.caught_up.append,
        )

    def run(self) -> Standing | None:
        """Follow; see `Standby.run`."""
        return self.standby.run()


def follow(
    store: ObjectStore, files: Files, steps: Iterator[None] | None = None, data: str = DATA
) -> Standing | None:
    """Follow with *files* while *steps* go on."""
    return SteppedStandby(store, files, steps or iter(()), data).run()


def shipped_part(files: Files, root: str = DATA) -> dict[str, bytes | None]:
    """Return what of a directory is shipped, by paths relative to it; directories are None."""
    found = image(files, root)
    relative = {path[len(join(root, "")) :]: content for path, content in found.items()}
    # A lock needs its directory.
    return {path: content for path, content in relative.items() if not is_ignored(path) and path != "meta"}


def copy_of(files: Files, root: str = DATA) -> MemoryFiles:
    """Return a disk with what *files* has below *root*, synced, and locked by nobody."""
    disk = MemoryFiles()
    disk.make_directories(root)
    for path, content in image(files, root).items():
        if content is None:
            disk.make_directories(path)
            continue
        file = disk.open(path, "create")
        if content:
            file.write_at(0, [content])
        file.sync()
        file.close()
    return disk
