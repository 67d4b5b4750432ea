"""Time, and who acts when, in the hands of a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cordwood.disk.files import Files
from support.disks import FaultPlan, FaultyFiles, Result


class ManualClock:
    """A clock that moves when told to. The wall clock may be set back; the monotonic one never goes back."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.ms = now_ms
        self.ns = 0
        #: The part of the wall clock below a millisecond, in microseconds.
        self.us = 0

    def now_ms(self) -> int:
        return self.ms

    def now_us(self) -> int:
        return self.ms * 1000 + self.us

    def monotonic_ns(self) -> int:
        return self.ns

    def advance(self, milliseconds: int) -> None:
        """Let time go by."""
        self.ms += milliseconds
        self.ns += milliseconds * 1_000_000

    def set_back(self, milliseconds: int) -> None:
        """Set the wall clock back, as an administrator or NTP does."""
        self.ms -= milliseconds


class HookedFiles(FaultyFiles):
    """Passes everything on to *inner* and lets the test act at any call: that is another thread's turn.

    ``before(kind, path)`` and ``after(kind, path, result)`` are called around each call; kinds are those of
    `FaultyFiles`; a write comes without its path. What ``before`` raises, the call raises.
    """

    def __init__(self, inner: Files) -> None:
        super().__init__(inner)
        self.before: Callable[[str, str], None] = lambda kind, path: None
        self.after: Callable[[str, str, Any], None] = lambda kind, path, result: None

    def call(self, kind: str, path: str, perform: Callable[[], Result]) -> Result:
        self.before(kind, path)
        result = super().call(kind, path, perform)
        self.after(kind, path, result)
        return result

    def fault(self, kind: str) -> FaultPlan | None:
        # Writes do not come through `call`, and which file they are for is not told.
        if kind == "write":
            self.before("write", "")
        return super().fault(kind)
