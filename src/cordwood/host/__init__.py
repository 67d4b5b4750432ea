"""The machine as an argument: clocks, event loops and threads, and the identity and limits of the process."""

from typing import TYPE_CHECKING

from cordwood.host import process
from cordwood.host.clock import Clock, SystemClock
from cordwood.lazily import lazily

if TYPE_CHECKING:
    from cordwood.host.machine import Host, StartedThread, WaitCondition, WaitEvent, WaitQueue
else:
    # Only a server needs event loops; importing them takes longer than everything else that a log needs.
    _NAMES = ("Host", "StartedThread", "WaitCondition", "WaitEvent", "WaitQueue")
    __getattr__ = lazily(__name__, dict.fromkeys(_NAMES, "cordwood.host.machine"))

__all__ = [
    "Clock",
    "Host",
    "StartedThread",
    "SystemClock",
    "WaitCondition",
    "WaitEvent",
    "WaitQueue",
    "process",
]
