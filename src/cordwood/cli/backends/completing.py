"""Names of topics and groups for the completion of a shell.

A shell waits for these while a person types. So they are read without a lock, a broker gets a short time to
answer, and whatever goes wrong means only that there is no suggestion.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import click

from cordwood.cli.backends.backend import Backend
from cordwood.cli.backends.place import CommandTarget
from cordwood.errors import CordwoodError

#: The longest time to wait for a broker.
_ANSWER_SECONDS = 1.0
#: A shell asks before it prints more than about this many names.
_NAMES_MAX = 1000


def complete_topic(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return the topics whose names begin with *begun*; internal ones only after two underscores."""
    names = _asked(context, lambda backend: backend.topic_names())
    return _matching((name for name in names if begun.startswith("__") or not name.startswith("__")), begun)


def complete_group(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return the consumer groups whose names begin with *begun*."""
    return _matching(_asked(context, lambda backend: [each.name for each in backend.groups()]), begun)


def _asked(context: click.Context, question: Callable[[Backend], list[str]]) -> list[str]:
    """Return the names at the target that the words before the cursor name, none if it cannot be read."""
    given = context.params
    place = CommandTarget(
        given.get("data"),
        given.get("bootstrap"),
        _ANSWER_SECONDS,
        given.get("client") or {},
        given.get("client_config"),
    )
    with contextlib.suppress(CordwoodError, OSError), place.reading() as backend:
        return question(backend)
    return []


def _matching(names: Iterable[str], begun: str) -> list[str]:
    return [name for name in names if name.startswith(begun)][:_NAMES_MAX]
