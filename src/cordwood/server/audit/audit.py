"""The queue of the audit log: bounded, appended in the background, never waited for by a request."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from cordwood.broker.audit import AuditEvent, AuditKind, AuditOutcome, AuditRow
from cordwood.errors import LogFailed, StorageError, UnknownTopic
from cordwood.host import Clock
from cordwood.server.audit.collecting import CollectedEvents
from cordwood.server.internal_topic import InternalRow, WhenStored
from cordwood.telemetry import AUDIT_EVENTS, AUDIT_LOST, Telemetry

#: The number of events that may wait for their append; further ones are lost and counted.
WAITING_MAX = 10_000
#: The number of records of one append.
APPEND_MAX = 500
#: What changed nothing (refused and failed requests, failed logins) is collected for this long, so that equal
#: events become one record.
COLLECT_SECONDS = 1.0
#: The delay before an append that failed is tried again.
RETRY_SECONDS = 1.0
_LOGGER = logging.getLogger("cordwood.server")


class AuditTopic(Protocol):
    """The topic that takes the records; `InternalTopic` is one."""

    def store(self, rows: list[InternalRow], then: WhenStored) -> None:
        """Append *rows*, then call *then* once they are durable, or with the error."""


class Audit:
    """The audit log of a broker. On the loop only.

    `note` never blocks and never raises. Events are appended in the order of their calls, one append at a
    time, except those that changed nothing, which are collected for a second.

    *required* says that no change may go unrecorded: see `refuses_changes` and `stored`.
    """

    def __init__(
        self,
        topic: AuditTopic,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        telemetry: Telemetry,
        *,
        required: bool = False,
    ) -> None:
        self.required = required
        self._topic = topic
        self._loop = loop
        self._clock = clock
        self._telemetry = telemetry
        self._waiting: deque[AuditRow] = deque()
        # Failed logins are apart, so that strangers cannot keep what known clients try off the record.
        self._refusals, self._failed_logins = CollectedEvents(), CollectedEvents()
        self._collecting: asyncio.TimerHandle | None = None
        # The rows of the append that is under way or is tried again, and the losses that its first row tells.
        self._under_way: list[AuditRow] = []
        self._told = 0
        self._lost = 0
        self._append_max = APPEND_MAX
        self._failing = False
        self._retrying: asyncio.TimerHandle | None = None
        self._closing = False
        # How many rows were noted and how many are settled: stored or given up.
        self._noted = self._settled = 0
        self._watchers: deque[tuple[int, asyncio.Future[bool]]] = deque()

    # --- for everyone who has something to say ------------------------------------------------------

    def note(self, event: AuditEvent) -> None:
        """Record *event*, soon. If too many wait already it is lost; the next record tells how many were.

        Where records are required no change is lost: while too many wait, no further one is made.
        """
        row = AuditRow(happened=event.bounded(), time_ms=self._clock.now_ms())
        if event.may_repeat and not self._closing:
            self._collect(row)
        elif len(self._waiting) >= WAITING_MAX and event.event is not AuditKind.BROKER and not self.required:
            self._lose(1)
        else:
            self._waiting.append(row)
            self._noted += 1
            self._begin_append()

    def note_authentication(
        self,
        *,
        org: int,
        principal: str,
        host: str,
        listener: str,
        api: str,
        mechanism: str,
        client_id: str | None = None,
        error: str | None = None,
    ) -> None:
        """Record a login as *principal*; *error* is the name of Kafka's error code if it failed.

        After a failure the principal is the one that the client claimed to be. *api* is the request that was
        answered, or ``TLS`` for a client certificate.
        """
        self.note(
            AuditEvent(
                event=AuditKind.AUTHENTICATION,
                outcome=AuditOutcome.OK if error is None else AuditOutcome.DENIED,
                api=api,
                org=org,
                principal=principal,
                host=host.removeprefix("/"),
                listener=listener,
                client_id=client_id,
                error=error,
                details={"mechanism": mechanism},
            )
        )

    def note_broker(self, what: str) -> None:
        """Record a step of the broker itself, such as its start."""
        self.note(AuditEvent(event=AuditKind.BROKER, outcome=AuditOutcome.OK, api=what))

    # --- what requests may depend on ----------------------------------------------------------------

    @property
    def refuses_changes(self) -> bool:
        """Whether changes must be refused now: their records are required and cannot be written."""
        return self.required and (self._failing or len(self._waiting) >= WAITING_MAX)

    async def stored(self) -> bool:
        """Return whether everything that was noted before is stored, as soon as that is known.

        What is collected counts as stored: it changed nothing.
        """
        if self._failing:
            return False
        if self._settled == self._noted:
            return True
        watcher: asyncio.Future[bool] = self._loop.create_future()
        self._watchers.append((self._noted, watcher))
        return await watcher

    # --- collecting ---------------------------------------------------------------------------------

    def _collect(self, row: AuditRow) -> None:
        of_stranger = row.happened.event is AuditKind.AUTHENTICATION
        left_out = (self._failed_logins if of_stranger else self._refusals).add(row)
        if left_out:
            self._lose(left_out)
        if self._collecting is None:
            self._collecting = self._loop.call_later(COLLECT_SECONDS, self._end_collecting)

    def _end_collecting(self) -> None:
        self._collecting = None
        for row in sorted(self._refusals.take() + self._failed_logins.take(), key=lambda row: row.time_ms):
            if len(self._waiting) >= WAITING_MAX:
                self._lose(row.count)
            else:
                self._waiting.append(row)
                self._noted += 1
        self._begin_append()

    def _lose(self, count: int) -> None:
        self._lost += count
        self._telemetry.add(AUDIT_LOST, count)

    # --- appending ----------------------------------------------------------------------------------

    def _begin_append(self) -> None:
        if self._under_way or not self._waiting:
            return
        count = min(self._append_max, len(self._waiting))
        self._under_way = [self._waiting.popleft() for _ in range(count)]
        self._append()

    def _append(self) -> None:
        self._retrying = None
        self._told = self._lost
        rows = [row.encode(0 if number else self._told) for number, row in enumerate(self._under_way)]
        self._topic.store([(None, value) for value in rows], self._appended)

    def _appended(self, error: Exception | None) -> None:
        if error is None:
            self._lost -= self._told
            self._telemetry.add(AUDIT_EVENTS, len(self._under_way))
            self._failing = False
            self._append_max = APPEND_MAX
            self._settle(stored=True)
        elif not isinstance(error, (StorageError, UnknownTopic)):
            self._refused(error)
        else:
            self._failed(error)
            return
        self._begin_append()

    def _refused(self, error: Exception) -> None:
        """Give up a record that the topic does not take; of several, find out which."""
        if len(self._under_way) > 1:
            self._waiting.extendleft(reversed(self._under_way))
            self._under_way = []
            self._append_max = 1
            return
        _LOGGER.error("a record of the audit log was refused by its topic: %s", error)
        self._lose(sum(row.count for row in self._under_way))
        self._settle(stored=False)

    def _failed(self, error: Exception) -> None:
        """Keep the records, and try again unless nothing can be stored any more."""
        if not self._failing:
            _LOGGER.error("the audit log could not be written: %s", error)
        self._failing = True
        self._release(self._noted, stored=False)
        if not isinstance(error, LogFailed) and not self._closing:
            self._retrying = self._loop.call_later(RETRY_SECONDS, self._append)

    def _settle(self, *, stored: bool) -> None:
        self._settled += len(self._under_way)
        self._under_way = []
        self._release(self._settled, stored=stored)

    def _release(self, settled: int, *, stored: bool) -> None:
        """Answer everyone who waits for one of the first *settled* rows."""
        while self._watchers and self._watchers[0][0] <= settled:
            _, watcher = self._watchers.popleft()
            if not watcher.done():
                watcher.set_result(stored)

    # --- ending -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Pass everything that waits to the pipeline, which appends it before it ends. Idempotent."""
        if self._closing:
            return
        if self._collecting is not None:
            self._collecting.cancel()
        self._end_collecting()
        self.note_broker("BrokerStop")
        self._closing = True
        if self._retrying is not None:
            # One more try: the disk may have room by now.
            self._retrying.cancel()
            self._append()
        lost = self._lost - self._told if self._under_way else self._lost
        while self._waiting and not self._failing:
            # Behind the append that is under way: the pipeline keeps the order.
            rows = [self._waiting.popleft() for _ in range(min(APPEND_MAX, len(self._waiting)))]
            values = [row.encode(0 if number else lost) for number, row in enumerate(rows)]
            lost = 0
            self._topic.store([(None, value) for value in values], _note_end(len(rows)))


def _note_end(count: int) -> Callable[[Exception | None], None]:
    def then(error: Exception | None) -> None:
        if error is not None:
            _LOGGER.error("the last %d records of the audit log could not be written: %s", count, error)

    return then
