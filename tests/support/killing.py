"""kill -9 at planted points of the sink, without a hook in it: a disk that kills.

What is due is a file, named after a point and a batch, in a directory of its own. Whoever reaches the point
takes the file away and ends every process of its session: the driver with its Java and its Python workers,
or the broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from cordwood.disk.files import File, Mode
from cordwood.disk.posix import PosixFiles

#: The topic that is written.
OUTPUT = "out"
STAGED, ALL_STAGED, PUBLISHED = "staged", "all-staged", "published"
INTENDED, FIRST, APPENDED, CLOSED, ROLLED = "intended", "first", "appended", "closed", "rolled"
STAGING, COMMANDED, TAKEN = "staging", "commanded", "taken"
_SHARE = re.compile(r"/tmp/sink/\w+/(\d+)/[^/]+\.share$")
_STAGING = re.compile(r"/topics/__cordwood_staging-\w+/(\d+)/.+\.log$")


def living(session: int) -> list[int]:
    """Return the processes of a session that are not dead yet, the one that began it first."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, IndexError):
            # After the name, which may hold anything: state, parent, group, session.
            state, _, _, its = Path("/proc", name, "stat").read_text().rpartition(") ")[2].split()[:4]
            if name.isdecimal() and int(its) == session and state not in "ZX":
                found.append(int(name))
    return sorted(found, key=lambda pid: pid != session)


def kill_session(session: int, spare: int = 0) -> int:
    """End all processes of a session but *spare*, as kill -9 does; return how many there were."""
    found = [pid for pid in living(session) if pid != spare]
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


class Kills:
    """The kills that are due, each a file that one process takes."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = str(directory)

    def plant(self, point: str, batch: int) -> None:
        """Let whoever reaches *point* of *batch* be killed, once."""
        os.makedirs(self.directory, exist_ok=True)
        Path(self.directory, f"{point}.{batch}").touch()

    def left(self) -> list[str]:
        """Return what is still due."""
        return [name for name in sorted(os.listdir(self.directory)) if not name.startswith("done.")]

    def done(self) -> list[str]:
        """Return the points at which someone was killed."""
        names = sorted(os.listdir(self.directory))
        return [name.split(".")[1] for name in names if name.startswith("done.")]

    def reach(self, point: str, batch: int) -> None:
        """Die here if that is due."""
        name = f"{point}.{batch}"
        try:
            os.rename(os.path.join(self.directory, name), os.path.join(self.directory, f"done.{name}"))
        except FileNotFoundError:
            return
        # A worker is hung up on when its Java dies, and must not go before the others.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        kill_session(os.getsid(0), spare=os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)


class KillingFiles(PosixFiles):
    """The file system of the operating system, for a process that dies at its planted points."""

    def __init__(self, kills: Kills) -> None:
        super().__init__()
        self._kills = kills
        self._batch: int | None = None
        self._commands = self._frames = 0

    def open(self, path: str, mode: Mode) -> File:
        file: Any = _WatchedFile(super().open(path, mode), self)
        return file  # type: ignore[no-any-return]

    def rename(self, source: str, target: str) -> None:
        if "/meta/sink/" not in target:
            super().rename(source, target)
            return
        journal = json.loads(Path(source).read_bytes())["body"]
        if journal["intent"] is not None:
            super().rename(source, target)
            self._batch = journal["intent"]["batch"]
            self._kills.reach(INTENDED, journal["intent"]["batch"])
            return
        # Whoever did not write the intent itself is rolling forward what a crash left.
        self._kills.reach(ROLLED if self._batch is None else APPENDED, journal["published"])
        self._batch = None
        super().rename(source, target)
        self._kills.reach(CLOSED, journal["published"])

    def synced(self, path: str) -> None:
        """Be told that a file was synced."""
        if self._batch is not None and f"/topics/{OUTPUT}/" in path and path.endswith(".log"):
            self._kills.reach(FIRST, self._batch)
        if (share := _SHARE.search(path)) is not None:
            self._kills.reach(TAKEN, int(share[1]))
        if (staging := _STAGING.search(path)) is not None:
            if staging[1] == "0":
                self._kills.reach(COMMANDED, self._commands)
                self._commands += 1
            else:
                self._kills.reach(STAGING, self._frames)
                self._frames += 1


class _WatchedFile:
    """A file that tells when it was synced."""

    def __init__(self, inner: File, disk: KillingFiles) -> None:
        self._inner = inner
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sync(self) -> None:
        self._inner.sync()
        self._disk.synced(self._inner.path)
