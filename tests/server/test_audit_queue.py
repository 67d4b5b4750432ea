"""The queue of the audit log: bounded, in order, and what is lost is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.clocks import ManualClock

from cordwood.broker.audit import DETAILS_MAX, TEXT_MAX, AuditEvent, AuditKind, AuditOutcome
from cordwood.errors import DiskFull, FrameTooLarge, StorageError
from cordwood.server.audit import Audit
from cordwood.server.audit.audit import WAITING_MAX
from cordwood.server.audit.collecting import COLLECTED_MAX
from cordwood.telemetry import AUDIT_EVENTS, AUDIT_LOST, Telemetry

Then = Callable[[Exception | None], None]


class Later:
    """A loop whose timers are called by the test."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        timer = (seconds, call)
        self.timers.append(timer)
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def go(self) -> None:
        """Call what is due next."""
        self.timers.pop(0)[1]()


class Kept:
    """A topic whose appends end when the test says so."""

    def __init__(self) -> None:
        self.under_way: list[tuple[list[dict[str, Any]], Then]] = []
        self.stored: list[dict[str, Any]] = []

    def store(self, rows: Sequence[tuple[bytes | None, bytes | None]], then: Then) -> None:
        self.under_way.append(([json.loads(value or b"") for _, value in rows], then))

    def end(self, error: Exception | None = None) -> None:
        """End the append that is under way."""
        rows, then = self.under_way.pop(0)
        if error is None:
            self.stored += rows
        then(error)


class Logged:
    """An audit log with everything around it in the test's hands."""

    def __init__(self, *, required: bool = False) -> None:
        self.loop, self.topic, self.clock, self.telemetry = Later(), Kept(), ManualClock(), Telemetry()
        loop: Any = self.loop
        self.audit = Audit(self.topic, loop, self.clock, self.telemetry, required=required)

    def change(self, name: str) -> None:
        self.audit.note(
            AuditEvent(
                event=AuditKind.CHANGE, outcome=AuditOutcome.OK, api="X", resource_type="topic", resource=name
            )
        )

    def deny(self, name: str, principal: str = "", org: int = 0) -> None:
        self.audit.note(
            AuditEvent(
                event=AuditKind.DENIED,
                outcome=AuditOutcome.DENIED,
                api="X",
                org=org,
                principal=principal,
                resource=name,
            )
        )

    def fail_login(self, name: str, host: str) -> None:
        self.audit.note_authentication(
            org=0,
            principal=f"User:{name}",
            host=host,
            listener="USERS",
            api="SaslAuthenticate",
            mechanism="PLAIN",
            error="SASL_AUTHENTICATION_FAILED",
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return what was collected in a second."""
        self.loop.go()
        while self.topic.under_way:
            self.topic.end()
        return self.topic.stored

    def names(self) -> list[str]:
        return [row["resource"] for row in self.topic.stored]

    def count(self, metric: Any) -> float:
        return next(float(each.value) for each in self.telemetry.collect() if each.metric is metric)  # type: ignore[arg-type]


def test_events_are_appended_in_order_one_append_at_a_time() -> None:
    log = Logged()
    for name in "abcd":
        log.change(name)
    assert [len(rows) for rows, _ in log.topic.under_way] == [1]
    log.topic.end()
    assert [len(rows) for rows, _ in log.topic.under_way] == [3]
    log.topic.end()
    assert log.names() == list("abcd")
    assert log.count(AUDIT_EVENTS) == 4


def test_an_event_that_does_not_fit_is_lost_counted_and_said_in_the_next_record() -> None:
    log = Logged()
    log.change("first")
    for number in range(WAITING_MAX + 7):
        log.change(str(number))
    assert log.count(AUDIT_LOST) == 7
    log.topic.end()
    log.topic.end()
    assert [row["lost"] for row in log.topic.stored[:3]] == [0, 7, 0]
    while log.topic.under_way:
        log.topic.end()
    assert sum(row["lost"] for row in log.topic.stored) == 7
    assert len(log.topic.stored) == WAITING_MAX + 1


def test_an_append_that_fails_is_tried_again_and_loses_nothing() -> None:
    log = Logged()
    log.change("a")
    log.change("b")
    log.topic.end(DiskFull("no space"))
    log.change("c")
    assert not log.topic.under_way
    log.loop.go()
    log.topic.end()
    log.topic.end()
    assert log.names() == ["a", "b", "c"]
    assert log.count(AUDIT_LOST) == 0


def test_one_record_that_the_topic_refuses_costs_only_itself() -> None:
    log = Logged()
    log.change("a")
    for name in ("b", "large", "c"):
        log.change(name)
    log.topic.end()
    refused = FrameTooLarge(position=0, expected=1, found=2, what="batch")
    log.topic.end(refused)
    while log.topic.under_way:
        rows, _ = log.topic.under_way[0]
        log.topic.end(refused if "large" in [row["resource"] for row in rows] else None)
    assert log.names() == ["a", "b", "c"]
    assert [row["lost"] for row in log.topic.stored] == [0, 0, 1]
    assert log.count(AUDIT_LOST) == 1


def test_equal_refusals_within_a_second_are_one_record_with_their_number() -> None:
    log = Logged()
    for name in ("x", "y", "x", "x"):
        log.deny(name)
    assert not log.topic.under_way
    log.loop.go()
    log.topic.end()
    assert [(row["resource"], row["count"]) for row in log.topic.stored] == [("x", 3), ("y", 1)]


def test_clients_without_rights_cannot_fill_the_disk_nor_push_changes_out() -> None:
    log = Logged()
    for number in range(50_000):
        log.deny(f"topic-{number}")
    log.change("kept")
    log.topic.end()
    log.loop.go()
    log.topic.end()
    assert log.names()[0] == "kept"
    assert len(log.topic.stored) == COLLECTED_MAX + 1
    assert sum(row["lost"] for row in log.topic.stored) == 50_000 - COLLECTED_MAX


def test_strangers_cannot_keep_what_known_clients_try_off_the_record() -> None:
    log = Logged()
    for number in range(50_000):
        log.fail_login(str(number), "10.0.0.1")
    log.deny("payments")
    log.loop.go()
    log.topic.end()
    assert "payments" in log.names()
    assert len(log.topic.stored) == COLLECTED_MAX + 1
    assert sum(row["lost"] for row in log.topic.stored) == 50_000 - COLLECTED_MAX


@pytest.mark.parametrize("before", [0, 1, 99, 100, 5000])
def test_no_client_keeps_what_another_one_tries_off_the_record(before: int) -> None:
    """Whoever comes first; and what is missing is said with the last record of who caused it."""
    log = Logged()
    for number in range(before):
        log.deny(f"noise-{number}", "User:mallory")
    log.deny("payroll", "User:alice")
    for number in range(before, 5000):
        log.deny(f"noise-{number}", "User:mallory")
    rows = log.rows()
    assert [row["resource"] for row in rows if row["principal"] == "User:alice"] == ["payroll"]
    assert len(rows) == COLLECTED_MAX
    assert sum(row["lost"] for row in rows) == 5001 - COLLECTED_MAX
    omitted = [(row["principal"], row["omitted"]) for row in rows if row["omitted"]]
    assert omitted == [("User:mallory", 5001 - COLLECTED_MAX)]


def test_no_org_keeps_what_another_one_tries_off_the_record() -> None:
    """Not even with a thousand principals."""
    log = Logged()
    for number in range(1000):
        log.deny("noise", f"User:{number}", org=7)
    for number in range(40):
        log.deny(f"payroll-{number}", "User:alice", org=8)
    rows = log.rows()
    assert len([row for row in rows if row["org"] == 8]) == 40
    assert len(rows) == COLLECTED_MAX
    assert sum(row["lost"] for row in rows) == 1040 - COLLECTED_MAX


def test_principals_share_the_record_equally_and_each_is_told_what_is_missing_of_it() -> None:
    log = Logged()
    for number in range(1000):
        for name in "abcde":
            log.deny(str(number), name)
    rows = log.rows()
    for name in "abcde":
        of_it = [row for row in rows if row["principal"] == name]
        assert abs(len(of_it) - COLLECTED_MAX // 5) <= 1
        assert [row["omitted"] for row in of_it] == [0] * (len(of_it) - 1) + [1000 - len(of_it)]


def test_failed_logins_are_shared_by_addresses_because_anybody_can_claim_any_name() -> None:
    log = Logged()
    for number in range(5000):
        log.fail_login(str(number), "10.0.0.1")
    log.fail_login("admin", "10.0.0.2")
    assert [row["principal"] for row in log.rows() if row["host"] == "10.0.0.2"] == ["User:admin"]


def test_a_long_text_of_a_client_is_shortened_and_large_details_are_left_out() -> None:
    log = Logged()
    log.audit.note(
        AuditEvent(
            event=AuditKind.CHANGE,
            outcome=AuditOutcome.OK,
            api="X",
            client_id="c" * 30_000,
            resource="n" * 30_000,
            details={"settings": {str(number): "v" * TEXT_MAX for number in range(DETAILS_MAX // TEXT_MAX)}},
        )
    )
    log.topic.end()
    (row,) = log.topic.stored
    assert len(row["client_id"]) == len(row["resource"]) == TEXT_MAX
    assert row["details"] == {"left_out": True}


def test_padding_hides_nothing_that_was_changed() -> None:
    log = Logged()
    log.audit.note(
        AuditEvent(
            event=AuditKind.CHANGE,
            outcome=AuditOutcome.OK,
            api="X",
            details={"set": {"retention.ms": f"{'0' * DETAILS_MAX}17", "a": [" " * DETAILS_MAX, 1]}},
        )
    )
    log.topic.end()
    details = log.topic.stored[0]["details"]
    assert details["set"]["retention.ms"].endswith("0017")
    assert len(details["set"]["retention.ms"]) == len(details["set"]["a"][0]) == TEXT_MAX


def test_closing_passes_on_what_waits_with_the_losses_and_a_last_record() -> None:
    log = Logged()
    log.change("a")
    for number in range(WAITING_MAX + 1):
        log.change(str(number))
    log.deny("late")
    log.audit.close()
    while log.topic.under_way:
        log.topic.end()
    assert log.topic.stored[-1]["api"] == "BrokerStop"
    lost = sum(row["lost"] for row in log.topic.stored)
    assert len(log.topic.stored) + lost == WAITING_MAX + 4


async def _answers_after(log: Logged, *ends: Exception | None) -> bool:
    """Note a change, and return whether its answer waits until the append ended as told."""
    log.change("a")
    waiting = asyncio.ensure_future(log.audit.stored())
    await asyncio.sleep(0)
    waited = not waiting.done()
    for error in ends:
        log.topic.end(error)
    await waiting
    return waited


def test_the_answer_to_a_change_waits_for_its_record() -> None:
    log = Logged(required=True)
    assert asyncio.run(_answers_after(log, None))
    assert not log.audit.refuses_changes


def test_while_the_log_cannot_be_written_changes_are_refused_if_records_are_required() -> None:
    for required in (False, True):
        log = Logged(required=required)
        assert asyncio.run(_answers_after(log, StorageError("broken")))
        assert log.audit.refuses_changes is required
        log.loop.go()
        log.topic.end()
        assert not log.audit.refuses_changes
        assert log.names() == ["a"]
