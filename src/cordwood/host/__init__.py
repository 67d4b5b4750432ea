"""The machine as an argument: clocks, event loops and threads, and the identity and limits of the process."""

from typing import TYPE_CHECKING

from cordwood.host import process
from cordwood.host.clock import Clock, SystemClock, awake_and_asleep_ms
from cordwood.lazily import lazily

if TYPE_CHECKING:
    from cordwood.host.crew import Crew, closing_on_failure
    from cordwood.host.machine import Host, StartedThread, WaitCondition, WaitEvent, WaitQueue
else:
    # Only who uses asyncio needs event loops; importing them takes longer than all else that a log needs.
    _MACHINE = ("Host", "StartedThread", "WaitCondition", "WaitEvent", "WaitQueue")
    _CREW = ("Crew", "closing_on_failure")
    _WHERE = dict.fromkeys(_MACHINE, "cordwood.host.machine") | dict.fromkeys(_CREW, "cordwood.host.crew")
    __getattr__ = lazily(__name__, _WHERE)

__all__ = [
    "Clock",
    "Crew",
    "Host",
    "StartedThread",
    "SystemClock",
    "WaitCondition",
    "WaitEvent",
    "WaitQueue",
    "awake_and_asleep_ms",
    "closing_on_failure",
    "process",
]
