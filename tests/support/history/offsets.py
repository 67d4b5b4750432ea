"""The offsets of groups: each partition of a group is a register that commits write and fetches read.

Offsets may be set back on purpose. What a fetch must not give is an offset whose commit had ended before
another one began that is known: because it was acknowledged, or because an earlier fetch had shown it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from math import inf

from support.history.ledger import Transaction
from support.history.operations import READ_COMMITTED, Committing, Fetching
from support.history.verdict import Verdict

Cell = tuple[str, str, int]
NONE_COMMITTED = -1


class _Commits:
    """The commits of one offset to one partition of a group."""

    __slots__ = ("completed", "first_invoked", "owner", "pending")

    def __init__(self, first_invoked: int, owner: Transaction | None) -> None:
        self.first_invoked = first_invoked
        #: When the last of them ended; infinite as soon as one ended unknown.
        self.completed: float = -1
        self.pending = 0
        #: The transaction of the only one there is.
        self.owner = owner


class _Floors:
    """From each time on, when the latest commit began that is known to count, and its transaction."""

    __slots__ = ("began", "owners", "times")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.began: list[int] = []
        self.owners: list[Transaction | None] = []

    def rise(self, now: int, began: int, owner: Transaction | None) -> None:
        """Note a commit that counts from now on."""
        if not self.began or began > self.began[-1]:
            self.times.append(now)
            self.began.append(began)
            self.owners.append(owner)

    def before(self, when: int) -> tuple[int, Transaction | None]:
        """Return what was known before *when*."""
        index = bisect_left(self.times, when)
        return (self.began[index - 1], self.owners[index - 1]) if index else (-1, None)


class _Register:
    """One partition of a group."""

    __slots__ = ("commits", "last", "never", "plain", "stable")

    def __init__(self) -> None:
        none = _Commits(-1, None)
        self.commits: dict[int, _Commits] = {NONE_COMMITTED: none}
        #: Offsets in transactions that were not asked to commit.
        self.never: set[int] = set()
        #: What any fetch must know of, and what one must that waits for pending offsets.
        self.plain = _Floors()
        self.stable = _Floors()
        self.last = NONE_COMMITTED


class GroupOffsets:
    """What groups committed and fetched."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._registers: defaultdict[Cell, _Register] = defaultdict(_Register)

    def committing(self, now: int, asked: Committing, owner: Transaction | None = None) -> None:
        """Note that offsets are being committed: from now on a fetch may find them."""
        for topic, partition, offset in asked.offsets:
            register = self._registers[asked.group, topic, partition]
            commits = register.commits.get(offset)
            if commits is None:
                commits = register.commits[offset] = _Commits(now, owner)
            else:
                commits.owner = None
            commits.pending += 1

    def waiting(self, asked: Committing) -> None:
        """Note offsets in a transaction that was not asked to commit yet."""
        for topic, partition, offset in asked.offsets:
            self._registers[asked.group, topic, partition].never.add(offset)

    def committed(
        self, now: int, asked: Committing, invoked: int, outcome: str, owner: Transaction | None = None
    ) -> None:
        """Note how a commit ended. One in a transaction counts from now on for stable fetches only."""
        if outcome == "unknown":
            return
        for topic, partition, offset in asked.offsets:
            register = self._registers[asked.group, topic, partition]
            commits = register.commits[offset]
            commits.pending -= 1
            if outcome == "ok":
                commits.completed = max(commits.completed, now)
                register.stable.rise(now, invoked, owner)
                if owner is None:
                    register.plain.rise(now, invoked, None)

    def became_visible(self, now: int, transaction: Transaction) -> None:
        """Note that a reader saw records of a transaction: its offsets count as well."""
        if transaction.commit_invoked is None:
            return
        for asked in transaction.offsets:
            for topic, partition, _ in asked.offsets:
                register = self._registers[asked.group, topic, partition]
                register.stable.rise(now, transaction.commit_invoked, transaction)

    def fetched(
        self, now: int, asked: Fetching, invoked: int, offsets: tuple[tuple[str, int, int], ...]
    ) -> None:
        """Note what a group was found to have."""
        stable = asked.isolation == READ_COMMITTED
        for topic, partition, offset in offsets:
            register = self._registers[asked.group, topic, partition]
            what = f"{asked.group} has {offset} for {topic}-{partition}"
            commits = register.commits.get(offset)
            # All commits of an offset may have failed.
            possible = commits is not None and (commits.pending or commits.completed >= 0 or offset == -1)
            if commits is None or not possible:
                name = "aborted-offset" if offset in register.never else "never-committed"
                self._verdict.add(name, what)
                continue
            register.last = offset
            began, owner = (register.stable if stable else register.plain).before(invoked)
            ended = inf if commits.pending else commits.completed
            if ended < began:
                torn = owner is not None and owner.visible and not owner.committed
                name = "half-visible" if torn else "group-offset-back"
                self._verdict.add(name, f"{what}, which a later commit had replaced")
            if commits.owner is not None:
                commits.owner.applied = True
            if commits.first_invoked >= 0:
                register.plain.rise(now, commits.first_invoked, commits.owner)
                register.stable.rise(now, commits.first_invoked, commits.owner)

    def last_fetched(self) -> dict[Cell, int]:
        """Return what each group was found to have last."""
        return {cell: register.last for cell, register in self._registers.items()}
