"""What to mirror, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from cordwood.mirror.report import MirrorFailure


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether one of *patterns*, as a shell has them, is *name* or matches it."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """The topics and groups to mirror, by patterns as a shell has them, and what else to do.

    Internal topics are mirrored only if they are named. ``config`` are settings of the topics that are
    created, over those of the source. Committed offsets that are further here than at the source stay, unless
    ``reset_groups`` is set. With ``skip_deleted`` a partition goes on where the source begins, if
    that deleted records which were not copied yet. With ``follow`` the mirror never ends by itself. With
    ``verify`` everything is read from the source again and compared. A broker that does not answer, or a
    partition that nobody leads, is waited for ``seconds``.
    """

    topics: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    reset_groups: bool = False
    skip_deleted: bool = False
    follow: bool = False
    verify: bool = False
    seconds: float = 30.0
    #: Called with the number of bytes that were copied or compared so far.
    progress: Callable[[int], None] = lambda size: None
    #: Called with how many offsets are here, and how many there are, of what the source had at first.
    reached: Callable[[int, int], None] = lambda offsets, total: None
    #: Called with each failure when it happens.
    failed: Callable[[MirrorFailure], None] = lambda failure: None
    #: Asked between two steps: whether to end as if Ctrl-C had been pressed, with everything synced.
    stopped: Callable[[], bool] = lambda: False

    def wants(self, topic: str, *, is_internal: bool) -> bool:
        """Return whether *topic* is to be mirrored."""
        if matches(topic, self.exclude):
            return False
        return topic in self.topics or (not is_internal and matches(topic, self.topics))
