"""The items of an inspection's result."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How urgent a finding is."""

    OK = "ok"
    NOTE = "note"
    ATTENTION = "attention"


class CheckedItem(msgspec.Struct, frozen=True):
    """One finding: the thing that was checked, its state, and the next step if there is one."""

    about: str
    level: Level
    text: str
    next_step: str = ""
