"""The checker of histories finds each anomaly by its name, and none where there is none.

For each name there is a smallest history that has the fault and one close by that has not. Then random
histories without a fault (`CORDWOOD_SEED`, `CORDWOOD_HISTORY_RUNS`), and faults planted in them.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.history import checker as checker_module
from support.history.checker import check
from support.history.generating import REPEATING, random_history
from support.history.mutating import MUTATIONS, mutated
from support.history.operations import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BadLine,
    Bounds,
    Event,
    Read,
    Scanned,
    merge,
    read_lines,
    write_lines,
)
from support.history.recorder import ClientRecord, Recorder
from support.history.verdict import JEPSEN, NAMES, OURS, Verdict
from support.seeds import seeds_from

RUNS = int(os.environ.get("CORDWOOD_HISTORY_RUNS", "20"))
TURNS = 800
SEEDS = seeds_from(20_261_126, RUNS)
T = "topic"
RC, RU = READ_COMMITTED, READ_UNCOMMITTED


class Small:
    """A few clients, and the shortest way to say what they did."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.a = self.recorder.client("a")
        self.b = self.recorder.client("b")
        self.reader = self.recorder.client("reader")

    def sent(self, value: str, offset: int | None, tx: int | None = None, partition: int = 0) -> None:
        self.a.send(T, partition, value, tx).ok(offset)

    def poll(self, *records: tuple[int, str], isolation: str = RU, partition: int = 0) -> None:
        given = tuple(Read(T, partition, offset, value) for offset, value in records)
        self.reader.poll(isolation).ok(given)

    def scan(
        self, end: int, *records: tuple[int, str], isolation: str = RU, partition: int = 0, start: int = 0
    ) -> None:
        given = tuple(Read(T, partition, offset, value) for offset, value in records)
        self.reader.scan(T, partition, isolation, final=True).ok(Scanned(start, end, given))

    def transaction(self, *values: str, client: ClientRecord | None = None) -> int:
        """Send values, each to a partition of its own, in a transaction."""
        client = client or self.a
        number = client.begin()
        for partition, value in enumerate(values):
            client.send(T, partition, value, number).ok(0)
        return number

    def offset(self, at: int, group: str = "g") -> None:
        self.a.commit_offsets(group, {(T, 0): at}).ok()

    def fetched(self, at: int, isolation: str = RU) -> None:
        self.reader.fetch_offsets("g", isolation).ok({(T, 0): at})


History = Callable[[Small], None]
Case = tuple[str, History, History]
CASES: list[Case] = []


def case(name: str, sound: History) -> Callable[[History], History]:
    """Add a history that has the fault *name*, and one close to it that has none."""

    def add(faulty: History) -> History:
        CASES.append((name, faulty, sound))
        return faulty

    return add


def _two(s: Small) -> None:
    s.sent("x", 0)
    s.sent("y", 1)


# --- records ------------------------------------------------------------------------------------------


def all_there(s: Small) -> None:
    _two(s)
    s.scan(2, (0, "x"), (1, "y"))


@case("lost-write", all_there)
def a_scan_lacks_an_acknowledged_record(s: Small) -> None:
    _two(s)
    s.scan(2, (0, "x"))


@case("lost-write", all_there)
def a_scan_ends_before_an_acknowledged_record(s: Small) -> None:
    _two(s)
    s.scan(1, (0, "x"))


def a_scan_lacks_what_nobody_was_told(s: Small) -> None:
    s.sent("x", 0)
    s.a.send(T, 0, "y").unknown("timed out")
    s.scan(1, (0, "x"))


@case("lost-write", a_scan_lacks_what_nobody_was_told)
def a_record_acknowledged_without_an_offset_is_nowhere(s: Small) -> None:
    s.sent("x", 0)
    s.sent("y", None)
    s.scan(1, (0, "x"))


def a_reader_stops_before(s: Small) -> None:
    _two(s)
    s.sent("z", 2)
    s.reader.assign([(T, 0, 0)])
    s.poll((0, "x"))


@case("lost-write", a_reader_stops_before)
def a_reader_passes_by_what_nobody_ever_sees(s: Small) -> None:
    a_reader_stops_before(s)
    s.poll((2, "z"))


def a_record_that_was_seen_is_scanned(s: Small) -> None:
    s.a.send(T, 0, "x").unknown()
    s.poll((0, "x"))
    s.scan(1, (0, "x"))


@case("lost-write", a_record_that_was_seen_is_scanned)
def a_record_that_was_only_seen_is_gone(s: Small) -> None:
    s.a.send(T, 0, "x").unknown()
    s.poll((0, "x"))
    s.scan(1)


def an_unknown_send_happens_once(s: Small) -> None:
    s.a.send(T, 0, "x").unknown("the server was killed")
    s.scan(1, (0, "x"))


@case("duplicate", an_unknown_send_happens_once)
def an_unknown_send_happens_twice(s: Small) -> None:
    s.a.send(T, 0, "x").unknown("the server was killed")
    s.scan(2, (0, "x"), (1, "x"))


@case("duplicate", all_there)
def a_record_is_there_as_acknowledged_and_again(s: Small) -> None:
    _two(s)
    s.scan(3, (0, "x"), (1, "y"), (2, "x"))


def two_readers_agree(s: Small) -> None:
    _two(s)
    s.poll((0, "x"))
    s.recorder.client("other").poll().ok((Read(T, 0, 0, "x", 7),))
    s.recorder.client("third").poll().ok((Read(T, 0, 0, "x", 7),))


@case("inconsistent-offsets", two_readers_agree)
def an_offset_has_two_values(s: Small) -> None:
    _two(s)
    s.recorder.client("other").poll().ok((Read(T, 0, 1, "x"),))


@case("inconsistent-offsets", two_readers_agree)
def an_offset_has_two_timestamps(s: Small) -> None:
    s.sent("x", 0)
    s.recorder.client("other").poll().ok((Read(T, 0, 0, "x", 7),))
    s.recorder.client("third").poll().ok((Read(T, 0, 0, "x", 8),))


@case("inconsistent-offsets", all_there)
def one_offset_is_acknowledged_for_two_records(s: Small) -> None:
    first, second = s.a.send(T, 0, "x"), s.b.send(T, 0, "y")
    first.ok(0)
    second.ok(0)


@case("never-sent", all_there)
def a_record_is_there_that_nobody_sent(s: Small) -> None:
    _two(s)
    s.scan(3, (0, "x"), (1, "y"), (2, "z"))


@case("never-sent", all_there)
def a_record_is_in_another_partition(s: Small) -> None:
    s.a.send(T, 1, "x").unknown()
    s.poll((0, "x"))


@case("never-sent", an_unknown_send_happens_once)
def a_record_is_seen_before_it_is_sent(s: Small) -> None:
    s.poll((0, "x"))
    s.a.send(T, 0, "x").unknown()


def a_refused_send_stays_away(s: Small) -> None:
    s.a.send(T, 0, "x").failed("too large")
    s.scan(0)


@case("G1a", a_refused_send_stays_away)
def a_refused_send_is_seen(s: Small) -> None:
    s.a.send(T, 0, "x").failed("too large")
    s.scan(1, (0, "x"))


def sends_are_stored_in_order(s: Small) -> None:
    first, second = s.a.send(T, 0, "x"), s.a.send(T, 0, "y")
    second.ok(1)
    first.ok(0)


@case("nonmonotonic-send", sends_are_stored_in_order)
def sends_under_way_are_stored_in_the_other_order(s: Small) -> None:
    first, second = s.a.send(T, 0, "x"), s.a.send(T, 0, "y")
    second.ok(0)
    first.ok(1)


@case("nonmonotonic-send", sends_are_stored_in_order)
def a_send_is_stored_before_one_that_had_ended(s: Small) -> None:
    s.sent("x", 1)
    s.sent("y", 0)


def sends_of_two_clients_under_way(s: Small) -> None:
    first = s.b.send(T, 0, "y")
    s.sent("x", 1)
    first.ok(0)


@case("reordered", sends_of_two_clients_under_way)
def a_send_is_stored_before_one_that_another_had_ended(s: Small) -> None:
    s.sent("x", 1)
    s.b.send(T, 0, "y").ok(0)


@case("reordered", sends_of_two_clients_under_way)
def an_unknown_send_is_found_before_one_that_had_ended(s: Small) -> None:
    s.sent("x", 1)
    s.b.send(T, 0, "y").unknown()
    s.poll((0, "y"), (1, "x"))


# --- readers ------------------------------------------------------------------------------------------


def _three(s: Small) -> None:
    _two(s)
    s.sent("z", 2)
    s.recorder.client("other").poll().ok((Read(T, 0, 1, "y"),))


def two_polls_in_a_row(s: Small) -> None:
    _three(s)
    s.poll((0, "x"))
    s.poll((1, "y"), (2, "z"))


@case("poll-skip", two_polls_in_a_row)
def a_record_is_skipped_between_two_polls(s: Small) -> None:
    _three(s)
    s.poll((0, "x"))
    s.poll((2, "z"))


@case("int-poll-skip", two_polls_in_a_row)
def a_record_is_skipped_within_a_poll(s: Small) -> None:
    _three(s)
    s.poll((0, "x"), (2, "z"))


def a_reader_seeks_back(s: Small) -> None:
    _three(s)
    s.poll((0, "x"), (1, "y"))
    s.reader.assign([(T, 0, 0)])
    s.poll((0, "x"), (1, "y"))


@case("nonmonotonic-poll", a_reader_seeks_back)
def a_reader_is_given_a_record_again(s: Small) -> None:
    _three(s)
    s.poll((0, "x"), (1, "y"))
    s.poll((1, "y"))


@case("int-nonmonotonic-poll", two_polls_in_a_row)
def a_poll_goes_back(s: Small) -> None:
    _three(s)
    s.poll((1, "y"), (0, "x"))


def a_seek_is_no_skip(s: Small) -> None:
    _three(s)
    s.reader.assign([(T, 0, 0)])
    s.poll((0, "x"))
    s.reader.assign([(T, 0, 2)])
    s.poll((2, "z"))


@case("poll-skip", a_seek_is_no_skip)
def a_record_is_skipped_after_a_seek(s: Small) -> None:
    _three(s)
    s.reader.assign([(T, 0, 1)])
    s.poll((2, "z"))


def deleted_records_stay_deleted(s: Small) -> None:
    _three(s)
    s.scan(3, (2, "z"), start=2)
    s.poll((2, "z"))


@case("resurrected", deleted_records_stay_deleted)
def a_deleted_record_is_seen_again(s: Small) -> None:
    _three(s)
    s.scan(3, (2, "z"), start=2)
    s.poll((1, "y"))


@case("resurrected", deleted_records_stay_deleted)
def the_start_of_a_log_goes_back(s: Small) -> None:
    s.reader.watermark(T, 0).ok(Bounds(2, 3))
    s.reader.watermark(T, 0).ok(Bounds(1, 3))


def a_late_record_comes_after_the_end(s: Small) -> None:
    late = s.a.send(T, 0, "late")
    s.b.send(T, 0, "x").ok(0)
    s.scan(1, (0, "x"))
    late.unknown()
    s.poll((0, "x"), (1, "late"))


@case("resurrected", a_late_record_comes_after_the_end)
def a_record_appears_where_a_scan_had_nothing(s: Small) -> None:
    s.a.send(T, 0, "late").unknown()
    s.b.send(T, 0, "x").ok(1)
    s.scan(2, (1, "x"))
    s.poll((0, "late"), (1, "x"))


def markers_take_offsets(s: Small) -> None:
    s.sent("x", 0)
    s.b.send("other", 0, "z").ok(2)
    s.reader.scan("other", 0, RU).ok(Scanned(0, 4, (Read("other", 0, 2, "z"),)))
    s.scan(1, (0, "x"))


@case("gap", markers_take_offsets)
def an_offset_has_no_record(s: Small) -> None:
    s.sent("x", 0)
    s.sent("z", 2)
    s.scan(3, (0, "x"), (2, "z"))


def two_ends_asked_for_at_once(s: Small) -> None:
    one, other = s.reader.watermark(T, 0), s.b.watermark(T, 0)
    one.ok(Bounds(0, 5))
    other.ok(Bounds(0, 4))


@case("nonmonotonic-watermark", two_ends_asked_for_at_once)
def an_end_goes_back(s: Small) -> None:
    s.reader.watermark(T, 0).ok(Bounds(0, 5))
    s.b.watermark(T, 0).ok(Bounds(0, 4))


@case("nonmonotonic-watermark", two_ends_asked_for_at_once)
def an_end_is_below_an_acknowledged_record(s: Small) -> None:
    s.sent("x", 4)
    s.b.watermark(T, 0).ok(Bounds(0, 4))


# --- transactions -------------------------------------------------------------------------------------


def a_committed_transaction_is_seen(s: Small) -> None:
    s.a.commit(s.transaction("x", "y")).ok()
    s.scan(2, (0, "x"), isolation=RC)
    s.scan(2, (0, "y"), isolation=RC, partition=1)


@case("lost-write", a_committed_transaction_is_seen)
def a_committed_transaction_is_not_there(s: Small) -> None:
    s.a.commit(s.transaction("x", "y")).ok()
    s.scan(2, isolation=RC)
    s.scan(2, isolation=RC, partition=1)


@case("half-visible", a_committed_transaction_is_seen)
def half_of_a_committed_transaction_is_there(s: Small) -> None:
    s.a.commit(s.transaction("x", "y")).ok()
    s.scan(2, (0, "x"), isolation=RC)
    s.scan(2, isolation=RC, partition=1)


def an_unknown_commit_is_there(s: Small) -> None:
    s.a.commit(s.transaction("x", "y")).unknown()
    s.scan(2, (0, "x"), isolation=RC)
    s.scan(2, (0, "y"), isolation=RC, partition=1)


def an_unknown_commit_is_not_there(s: Small) -> None:
    s.a.commit(s.transaction("x", "y")).unknown()
    s.scan(2, isolation=RC)
    s.scan(2, isolation=RC, partition=1)


@case("half-visible", an_unknown_commit_is_there)
@case("half-visible", an_unknown_commit_is_not_there)
def half_of_an_unknown_commit_is_there(s: Small) -> None:
    s.a.commit(s.transaction("x", "y")).unknown()
    s.scan(2, (0, "x"), isolation=RC)
    s.scan(2, isolation=RC, partition=1)


def a_part_that_no_reader_has_reached(s: Small) -> None:
    s.a.commit(s.transaction("x", "y")).unknown()
    s.scan(2, (0, "x"), isolation=RC)
    s.scan(0, isolation=RC, partition=1)


@case("half-visible", a_part_that_no_reader_has_reached)
def a_reader_passes_by_a_part(s: Small) -> None:
    s.a.commit(s.transaction("x", "y")).unknown()
    s.b.send(T, 1, "later").ok(2)
    s.reader.assign([(T, 0, 0), (T, 1, 0)])
    s.poll((0, "x"), isolation=RC)
    s.poll((2, "later"), isolation=RC, partition=1)


def an_unknown_send_of_an_unknown_commit_is_there(s: Small) -> None:
    number = s.transaction("x")
    s.a.send(T, 1, "y", number).unknown()
    s.a.commit(number).unknown()
    s.scan(2, (0, "x"), isolation=RC)
    s.scan(2, (0, "y"), isolation=RC, partition=1)


@case("half-visible", an_unknown_send_of_an_unknown_commit_is_there)
def a_part_whose_offset_nobody_knows_is_not_there(s: Small) -> None:
    number = s.transaction("x")
    s.a.send(T, 1, "y", number).unknown()
    s.a.commit(number).unknown()
    s.scan(2, (0, "x"), isolation=RC)
    s.scan(0, isolation=RC, partition=1)


def an_aborted_transaction_is_read_uncommitted(s: Small) -> None:
    s.a.abort(s.transaction("x")).ok()
    s.scan(2, (0, "x"), isolation=RU)
    s.scan(2, isolation=RC)


@case("G1a", an_aborted_transaction_is_read_uncommitted)
def an_aborted_transaction_is_read(s: Small) -> None:
    s.a.abort(s.transaction("x")).ok()
    s.poll((0, "x"), isolation=RC)


@case("G1a", an_unknown_commit_is_there)
def a_transaction_aborted_after_an_unknown_commit_is_read(s: Small) -> None:
    number = s.transaction("x")
    s.a.commit(number).unknown()
    s.a.abort(number).ok()
    s.poll((0, "x"), isolation=RC)


@case("G1a", an_unknown_commit_is_there)
def a_refused_commit_is_read(s: Small) -> None:
    s.a.commit(s.transaction("x")).failed("fenced")
    s.poll((0, "x"), isolation=RC)


def a_commit_under_way_is_read(s: Small) -> None:
    committing = s.a.commit(s.transaction("x"))
    s.poll((0, "x"), isolation=RC)
    committing.ok()


@case("precommitted-read", a_commit_under_way_is_read)
def a_transaction_is_read_before_its_commit(s: Small) -> None:
    number = s.transaction("x")
    s.poll((0, "x"), isolation=RC)
    s.a.commit(number).ok()


@case("two-outcomes", an_unknown_commit_is_there)
def a_transaction_is_committed_and_aborted(s: Small) -> None:
    number = s.transaction("x")
    s.a.commit(number).ok()
    s.a.abort(number).ok()


def sends_of_a_transaction_with_others_between(s: Small) -> None:
    number = s.a.begin()
    one = s.a.send(T, 0, "x", number)
    other = s.a.send(T, 0, "y", number)
    s.b.send(T, 0, "between").ok(1)
    one.ok(0)
    other.ok(2)


@case("int-nonmonotonic-send", sends_of_a_transaction_with_others_between)
def sends_of_a_transaction_are_stored_in_the_other_order(s: Small) -> None:
    number = s.a.begin()
    one = s.a.send(T, 0, "x", number)
    other = s.a.send(T, 0, "y", number)
    one.ok(1)
    other.ok(0)


def a_fenced_producer_is_refused(s: Small) -> None:
    s.a.init("id").ok()
    number = s.transaction("x")
    s.b.init("id").ok()
    s.a.commit(number).failed("fenced")


@case("fenced-write", a_fenced_producer_is_refused)
def a_fenced_producer_commits(s: Small) -> None:
    s.a.init("id").ok()
    number = s.transaction("x")
    s.b.init("id").ok()
    s.a.commit(number).ok()


@case("fenced-write", a_fenced_producer_is_refused)
def a_fenced_producer_sends(s: Small) -> None:
    s.a.init("id").ok()
    number = s.a.begin()
    s.b.init("id").ok()
    s.sent("x", 0, number)


# --- groups -------------------------------------------------------------------------------------------


def offsets_go_on(s: Small) -> None:
    s.fetched(-1)
    s.offset(5)
    s.fetched(5)
    s.offset(3)
    s.fetched(3)


@case("group-offset-back", offsets_go_on)
def an_older_offset_is_fetched(s: Small) -> None:
    s.offset(5)
    s.offset(7)
    s.fetched(5)


@case("group-offset-back", offsets_go_on)
def an_offset_is_gone(s: Small) -> None:
    s.offset(5)
    s.fetched(-1)


def an_unknown_offset_is_there_or_not(s: Small) -> None:
    s.offset(5)
    s.a.commit_offsets("g", {(T, 0): 7}).unknown()
    s.fetched(5)
    s.fetched(7)


@case("group-offset-back", an_unknown_offset_is_there_or_not)
def an_unknown_offset_is_there_and_gone(s: Small) -> None:
    s.offset(5)
    s.a.commit_offsets("g", {(T, 0): 7}).unknown()
    s.fetched(7)
    s.fetched(5)


@case("never-committed", offsets_go_on)
def an_offset_is_fetched_that_nobody_committed(s: Small) -> None:
    s.offset(5)
    s.fetched(6)


@case("never-committed", an_unknown_offset_is_there_or_not)
def a_refused_offset_is_fetched(s: Small) -> None:
    s.a.commit_offsets("g", {(T, 0): 7}).failed("fenced")
    s.fetched(7)


def _consume(s: Small) -> int:
    number = s.transaction("x")
    s.a.commit_offsets("g", {(T, 0): 7}, number).ok()
    return number


def offsets_count_with_their_transaction(s: Small) -> None:
    number = _consume(s)
    s.fetched(-1, RC)
    s.a.commit(number).ok()
    s.fetched(-1)
    s.fetched(7, RC)


@case("aborted-offset", offsets_count_with_their_transaction)
def an_offset_counts_before_its_commit(s: Small) -> None:
    _consume(s)
    s.fetched(7, RC)


@case("aborted-offset", offsets_count_with_their_transaction)
def an_offset_of_an_aborted_transaction_counts(s: Small) -> None:
    number = _consume(s)
    s.a.commit(number).unknown()
    s.a.abort(number).ok()
    s.fetched(7, RC)


@case("group-offset-back", offsets_count_with_their_transaction)
def an_offset_of_a_committed_transaction_is_lost(s: Small) -> None:
    s.a.commit(_consume(s)).ok()
    s.fetched(-1, RC)


def records_and_offsets_of_an_unknown_commit_count(s: Small) -> None:
    s.a.commit(_consume(s)).unknown()
    s.scan(2, (0, "x"), isolation=RC)
    s.fetched(7, RC)


@case("half-visible", records_and_offsets_of_an_unknown_commit_count)
def records_count_and_offsets_do_not(s: Small) -> None:
    s.a.commit(_consume(s)).unknown()
    s.scan(2, (0, "x"), isolation=RC)
    s.fetched(-1, RC)


@case("half-visible", records_and_offsets_of_an_unknown_commit_count)
def offsets_count_and_records_do_not(s: Small) -> None:
    s.a.commit(_consume(s)).unknown()
    s.fetched(7, RC)
    s.scan(2, isolation=RC)


def _processed(s: Small, value: str, source: str, offset: int, at: int) -> None:
    number = s.b.begin()
    s.b.send("out", 0, value, number, source).ok(offset)
    s.b.commit_offsets("g", {(T, 0): at}, number).ok()
    s.b.commit(number).ok()


def _all_outputs(s: Small, *records: tuple[int, str]) -> None:
    given = tuple(Read("out", 0, offset, value) for offset, value in records)
    s.reader.scan("out", 0, RC, final=True).ok(Scanned(0, records[-1][0] + 2, given))


def each_record_is_processed_once(s: Small) -> None:
    _two(s)
    _processed(s, "X", "x", 0, 1)
    _processed(s, "Y", "y", 2, 2)
    _all_outputs(s, (0, "X"), (2, "Y"))
    s.fetched(2, RC)


@case("processed-twice", each_record_is_processed_once)
def a_record_is_processed_twice(s: Small) -> None:
    _two(s)
    _processed(s, "X", "x", 0, 1)
    _processed(s, "X2", "x", 2, 1)
    _all_outputs(s, (0, "X"), (2, "X2"))


@case("processed-never", each_record_is_processed_once)
def a_record_is_passed_over(s: Small) -> None:
    _two(s)
    _processed(s, "Y", "y", 0, 2)
    _all_outputs(s, (0, "Y"))
    s.fetched(2, RC)


# --- clients ------------------------------------------------------------------------------------------


@case("answered-twice", all_there)
def a_send_is_answered_twice(s: Small) -> None:
    sending = s.a.send(T, 0, "x")
    sending.ok(0)
    sending.ok(0)


@case("problem", all_there)
def a_client_notes_a_problem(s: Small) -> None:
    s.a.problem("a fatal error")


def verdict_of(history: History) -> Verdict:
    small = Small()
    history(small)
    return check(small.recorder.history(), dense=[T] if history in _DENSE else [])


_DENSE = (markers_take_offsets, an_offset_has_no_record)


@pytest.mark.parametrize(
    ("name", "faulty", "sound"), CASES, ids=[f"{name}: {faulty.__name__}" for name, faulty, _ in CASES]
)
def test_a_planted_fault_is_found_by_its_name_and_the_history_beside_it_is_sound(
    name: str, faulty: History, sound: History
) -> None:
    assert verdict_of(sound).problems() == []
    assert name in verdict_of(faulty).names, str(verdict_of(faulty))


def test_every_anomaly_has_a_planted_fault() -> None:
    assert {name for name, _, _ in CASES} == set(NAMES)
    assert not set(JEPSEN) & set(OURS)


def test_a_repeating_client_may_store_a_record_twice_and_in_another_order() -> None:
    small = Small()
    one, other = small.a.send(T, 0, "x"), small.a.send(T, 0, "y")
    one.ok(2)
    other.ok(1)
    small.scan(3, (0, "x"), (1, "y"), (2, "x"))
    assert check(small.recorder.history(), repeating=["a"]).names == set()
    assert check(small.recorder.history()).names == {"duplicate", "nonmonotonic-send"}


def test_records_that_no_reader_came_by_are_counted_and_are_no_fault() -> None:
    small = Small()
    _two(small)
    small.a.commit(small.transaction("p", "q")).unknown()
    verdict = check(small.recorder.history())
    assert verdict.counts["unseen"] == 2
    sends = Small()
    sends_of_a_transaction_with_others_between(sends)
    assert check(sends.recorder.history()).counts["int-send-skip"] == 1


def test_two_sends_of_one_value_are_no_history() -> None:
    small = Small()
    small.sent("x", 0)
    small.sent("x", 1)
    with pytest.raises(ValueError, match="values of a history must be unique"):
        check(small.recorder.history())


# --- random histories ---------------------------------------------------------------------------------


def test_random_histories_without_a_fault_are_sound() -> None:
    events = records = 0
    for seed in SEEDS:
        history = random_history(seed, TURNS)
        verdict = check(history, repeating=REPEATING)
        assert verdict.problems() == [], f"seed {seed}"
        events += len(history)
        records += verdict.counts["records polled"] + verdict.counts["records scanned"]
    print(f"seeds {SEEDS[0]} to {SEEDS[-1]}: {len(SEEDS)} histories, {events} events, {records} records read")
    assert records > 1000 * RUNS


@cache
def sound_history(seed: int) -> tuple[Event, ...]:
    return tuple(random_history(seed, TURNS // 2))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_fault_planted_in_a_random_history_is_found_by_its_name(mutation: Any) -> None:
    planted = 0
    for seed in SEEDS:
        changed = mutated(sound_history(seed), mutation, seed)
        if changed is None:
            continue
        planted += 1
        verdict = check(changed, repeating=REPEATING)
        assert mutation.anomaly in verdict.names, f"seed {seed}: {verdict}"
    print(f"seeds {SEEDS[0]} to {SEEDS[-1]}: {planted} histories with {mutation.anomaly}, all found")
    assert planted > RUNS // 2


# --- how much work it is ------------------------------------------------------------------------------


def steps_of(history: list[Event]) -> int:
    """Return how many lines of the checker run for *history*."""
    steps = 0
    package = str(Path(checker_module.__file__).parent)

    def count(frame: FrameType, kind: str, _: object) -> Any:
        nonlocal steps
        if not frame.f_code.co_filename.startswith(package):
            return None
        steps += kind == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        check(history, repeating=REPEATING)
    finally:
        sys.settrace(before)
    return steps


def size_of(history: list[Event]) -> int:
    """Return the length of a history: its events, and the records in them."""
    return sum(
        1 + (len(event.data) if event.what == "poll" else len(event.data.records))
        if event.phase == "ok" and event.what in ("poll", "scan")
        else 1
        for event in history
    )


def test_the_work_for_an_operation_does_not_grow_with_the_length_of_the_history() -> None:
    """Lines of code that run are counted, since times say little on a busy machine."""
    seed = SEEDS[0]
    works = []
    for turns in (500, 1_000, 2_000, 4_000, 8_000):
        history = random_history(seed, turns)
        works.append(steps_of(history) / size_of(history))
    shown = ", ".join(f"{work:.2f}" for work in works)
    print(f"seed {seed}: lines run for each event and record, the history doubled each time: {shown}")
    assert max(works) < 1.5 * min(works)


# --- as a file ----------------------------------------------------------------------------------------


def test_a_history_written_as_lines_is_the_same_and_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    history = random_history(SEEDS[0], TURNS)
    path = tmp_path / "history"
    write_lines(history, path)
    assert read_lines(path) == history
    with path.open("a") as file:
        file.write('[1, "a", 5, "inv')
    assert read_lines(path) == history
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(BadLine, match=f"history:{len(history) + 1}: expected an event"):
        read_lines(path)


def test_histories_of_processes_are_merged_by_time_and_simultaneous_operations_are_concurrent() -> None:
    sent = [Event(1, "a", 0, "invoke", "watermark", ()), Event(5, "a", 0, "ok", "watermark", ())]
    other = [Event(5, "b", 0, "invoke", "poll", RU), Event(9, "b", 0, "ok", "poll", ())]
    together = merge(sent, other)
    assert [(event.client, event.phase) for event in together] == [
        ("a", "invoke"),
        ("b", "invoke"),
        ("a", "ok"),
        ("b", "ok"),
    ]


def test_a_recorder_counts_in_what_another_process_wrote(tmp_path: Path) -> None:
    """A program in Java writes such lines: the time of its monotonic clock, and the fields of an event."""
    path = tmp_path / "lines"
    path.write_text(
        '[1, "java", 0, "invoke", "send", ["topic", 0, "x", null, null]]\n'
        '[2, "java", 0, "ok", "send", 0]\n'
        '[3, "java", 1, "ok", "begin", "id"]\n'
        '[4, "java", 2, "invoke", "send", ["topic", 0, "y", 1]]\n'
        '[5, "java", 2, "ok", "send", 1]\n'
        '[6, "java", 3, "invoke", "commit_offsets", ["group", 1, [["topic", 0, 1]]]]\n'
        '[7, "java", 3, "ok", "commit_offsets", null]\n'
        '[8, "java", 4, "invoke", "commit", 1]\n'
        '[9, "java", 4, "unknown", "commit", "timed out"]\n'
    )
    small = Small()
    small.recorder.add_file(path)
    small.poll((0, "x"), (1, "y"), isolation=RC)
    small.reader.fetch_offsets("group", RC).ok({(T, 0): 1})
    assert check(small.recorder.history()).problems() == []
    small.reader.fetch_offsets("group", RC).ok({(T, 0): -1})
    small.poll((1, "x"), isolation=RC)
    assert check(small.recorder.history()).names == {
        "inconsistent-offsets",
        "duplicate",
        "nonmonotonic-poll",
        "half-visible",
    }


def test_the_checker_shares_no_code_with_the_product() -> None:
    package = Path(checker_module.__file__).parent
    read = []
    for name in ("checker", "coverage", "ledger", "offsets", "operations", "verdict"):
        tree = ast.parse((package / f"{name}.py").read_text())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            read += names
    foreign = {name for name in read if name.startswith("support") and "support.history." not in name}
    assert len(read) > 20
    assert not foreign
    assert not [name for name in read if name.startswith("cordwood")]
