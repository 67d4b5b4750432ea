"""Names of a room that are imported when they are first used, for doors that would be slow otherwise."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(room: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for *room*: each name of *modules* is found in its module, and kept.

    ``dir(room)`` has the names of its ``__all__``, loaded or not, unless it defines a ``__dir__`` itself.
    A type checker reads the names where the room imports them under ``TYPE_CHECKING``. Hide the
    ``__getattr__`` from it, or it accepts any name.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[room], name, found)
        return found

    door = vars(sys.modules[room])
    door["__dir__"] = lambda: sorted(door["__all__"])
    return find
