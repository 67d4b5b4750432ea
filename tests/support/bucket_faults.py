"""A store with faults: requests that fail having happened or not, happen later, or happen twice.

Deterministic: requests are numbered from 1 in the order in which they begin, and a plan says what becomes of
each. Where several threads make requests, their order is that of the threads.
"""

from __future__ import annotations

import builtins
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import Any, TypeAlias

from cordwood.bucket.ownership import (
    Create,
    Delete,
    Get,
    GetRange,
    List,
    ObjectStore,
    Replace,
    Request,
    Stored,
    answer,
)
from cordwood.errors import BucketError, StoreUnavailable


class StoreFault(Enum):
    """What becomes of a request."""

    #: It did not happen, and the caller is told that the outcome is not known.
    BEFORE = "before"
    #: It happened, and the answer is lost.
    AFTER = "after"
    #: The caller is told so at once; it happens when enough other requests have passed, or on `release`.
    LATER = "later"
    #: It is applied twice, and the second answer is given, as when a network repeats it.
    TWICE = "twice"


@dataclass(frozen=True)
class PlannedFault:
    """A fault; ``passing`` requests pass before one that happens later does, None until `release`."""

    fault: StoreFault
    passing: int | None = None


@dataclass
class JournalEntry:
    """A request, and what it was answered: the result, or the name of the exception."""

    number: int
    request: Request
    fault: StoreFault | None
    outcome: Any = None


@dataclass
class _DelayedRequest:
    entry: JournalEntry
    left: int | None


FaultPlan: TypeAlias = Mapping[int, PlannedFault] | Callable[[int, Request], PlannedFault | None]
RequestHook: TypeAlias = Callable[[int, Request], None]


class FaultyStore:
    """An `ObjectStore` over another one, with the faults of *plan*.

    *before* and *after* are called around each request, without a lock: they may make requests of the store
    below, wait, which is a latency, or raise.
    """

    def __init__(
        self,
        store: ObjectStore,
        plan: FaultPlan | None = None,
        *,
        before: RequestHook | None = None,
        after: RequestHook | None = None,
    ) -> None:
        self.store = store
        self.plan: FaultPlan = plan if plan is not None else {}
        self.before = before
        self.after = after
        #: Every request in order; those that happened later have a second entry, at that time.
        self.journal: list[JournalEntry] = []
        self._lock = Lock()
        self._requests = 0
        self._delayed: deque[_DelayedRequest] = deque()

    def get(self, key: str) -> Stored:
        return self._ask(Get(key))  # type: ignore[no-any-return]

    def get_range(self, key: str, start: int, size: int) -> bytes:
        return self._ask(GetRange(key, start, size))  # type: ignore[no-any-return]

    def create(self, key: str, data: bytes) -> str:
        return self._ask(Create(key, data))  # type: ignore[no-any-return]

    def replace(self, key: str, data: bytes, version: str) -> str:
        return self._ask(Replace(key, data, version))  # type: ignore[no-any-return]

    def delete(self, key: str) -> None:
        self._ask(Delete(key))

    def list(self, prefix: str, after: str = "") -> builtins.list[str]:
        return self._ask(List(prefix, after))  # type: ignore[no-any-return]

    def release(self) -> int:
        """Let everything happen now that was to happen later; return how much that was."""
        with self._lock:
            due, self._delayed = builtins.list(self._delayed), deque()
        for each in due:
            self._happen(each)
        return len(due)

    def requests(self, kind: type[Request] | None = None) -> builtins.list[Request]:
        """Return the requests that were made, or those of one kind."""
        return [each.request for each in self.journal if kind is None or isinstance(each.request, kind)]

    def _ask(self, request: Request) -> Any:
        with self._lock:
            self._requests += 1
            number = self._requests
            planned = self._planned(number, request)
            entry = JournalEntry(number, request, planned.fault if planned else None)
            self.journal.append(entry)
        if self.before is not None:
            self.before(number, request)
        try:
            return self._answer(entry, planned)
        finally:
            if self.after is not None:
                self.after(number, request)
            self._count_down(number)

    def _planned(self, number: int, request: Request) -> PlannedFault | None:
        return self.plan(number, request) if callable(self.plan) else self.plan.get(number)

    def _answer(self, entry: JournalEntry, planned: PlannedFault | None) -> Any:
        lost = StoreUnavailable(f"request {entry.number} was not answered")
        if planned is None:
            return self._apply(entry)
        match planned.fault:
            case StoreFault.BEFORE:
                entry.outcome = "did not happen"
            case StoreFault.LATER:
                entry.outcome = "happens later"
                with self._lock:
                    # The request itself counts when it ends.
                    left = None if planned.passing is None else planned.passing + 1
                    self._delayed.append(_DelayedRequest(entry, left))
            case StoreFault.AFTER:
                try:
                    self._apply(entry)
                except BucketError:
                    raise lost from None
            case StoreFault.TWICE:
                with contextlib.suppress(BucketError):
                    self._apply(entry)
                return self._apply(entry)
        raise lost

    def _apply(self, entry: JournalEntry) -> Any:
        try:
            entry.outcome = answer(self.store, entry.request)
        except BucketError as error:
            entry.outcome = type(error).__name__
            raise
        return entry.outcome

    def _count_down(self, number: int) -> None:
        """Let happen what was to happen after as many requests as have ended now."""
        with self._lock:
            for each in self._delayed:
                if each.left is not None:
                    each.left -= 1
            due = [each for each in self._delayed if each.left == 0]
            self._delayed = deque(each for each in self._delayed if each.left != 0)
        for each in due:
            self._happen(each)

    def _happen(self, delayed: _DelayedRequest) -> None:
        again = JournalEntry(delayed.entry.number, delayed.entry.request, delayed.entry.fault)
        with self._lock:
            self.journal.append(again)
        try:
            self._apply(again)
        except BucketError:
            # Nobody waits for the answer; the journal has it.
            return
