"""Faults planted in random histories: a mutation changes a few answers, and names its anomaly."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from support.history.operations import (
    INVOKE,
    OK,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Bounds,
    Event,
    Fetching,
    Read,
    Scanned,
    Sending,
)

Found = tuple[int, Event]


class Mutation(Protocol):
    """A change of a history, in place."""

    anomaly: str
    __name__: str

    def __call__(self, events: list[Event], rng: random.Random) -> bool:
        """Change *events* and return True; or return False if there is nothing to change in them."""


MUTATIONS: list[Mutation] = []


def _mutation(anomaly: str) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        function.anomaly = anomaly
        MUTATIONS.append(function)
        return function

    return add


def mutated(history: Sequence[Event], mutation: Mutation, seed: int) -> list[Event] | None:
    """Return *history* with a fault, None if it gives no opportunity for this one."""
    events = list(history)
    return events if mutation(events, random.Random(seed)) else None


class _View:
    """What a mutation looks up."""

    def __init__(self, events: list[Event]) -> None:
        self.invoked = {(e.client, e.number): e for e in events if e.phase == INVOKE}
        self.acknowledged: dict[str, Found] = {}
        self.committed: set[tuple[str, int]] = set()
        self.aborted: set[tuple[str, int]] = set()
        self.final: dict[tuple[str, str, int], int] = {}
        for index, event in enumerate(events):
            if event.phase != OK:
                continue
            asked = self.invoked.get((event.client, event.number))
            if event.what == "send" and asked is not None:
                self.acknowledged[asked.data.value] = (index, event)
            elif event.what == "commit" and asked is not None:
                self.committed.add((event.client, asked.data))
            elif event.what == "abort" and asked is not None:
                self.aborted.add((event.client, asked.data))
            elif event.what == "scan" and asked is not None and asked.data.final:
                self.final[asked.data.isolation, asked.data.topic, asked.data.partition] = index

    def plain(self) -> list[str]:
        """Return the acknowledged values that belong to no transaction and are stored once."""
        return [
            value
            for value, (_, event) in self.acknowledged.items()
            if self.invoked[event.client, event.number].data.transaction is None and event.client != "plain"
        ]

    def of(self, transactions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[str]]:
        """Return the acknowledged values of transactions."""
        found: dict[tuple[str, int], list[str]] = {each: [] for each in transactions}
        for value, (_, event) in self.acknowledged.items():
            key = (event.client, self.invoked[event.client, event.number].data.transaction)
            if key in found:
                found[key].append(value)
        return found

    def place(self, value: str) -> tuple[str, int, int]:
        _, event = self.acknowledged[value]
        sent = self.invoked[event.client, event.number].data
        return sent.topic, sent.partition, event.data


def _change(events: list[Event], index: int, data: Any) -> None:
    events[index] = events[index]._replace(data=data)


def _without(events: list[Event], values: set[str], isolation: str | None = None) -> None:
    """Hide *values* from all readers, or from those of one isolation."""
    invoked = {(e.client, e.number): e for e in events if e.phase == INVOKE}
    for index, event in enumerate(events):
        if event.phase != OK or event.what not in ("poll", "scan"):
            continue
        asked = invoked[event.client, event.number].data
        if isolation not in (None, asked if event.what == "poll" else asked.isolation):
            continue
        if event.what == "poll":
            _change(events, index, tuple(one for one in event.data if one.value not in values))
        else:
            kept = tuple(one for one in event.data.records if one.value not in values)
            _change(events, index, event.data._replace(records=kept))


def _last_scan(events: list[Event], view: _View, place: tuple[str, int, int]) -> int:
    return view.final[READ_UNCOMMITTED, place[0], place[1]]


@_mutation("lost-write")
def nobody_sees_an_acknowledged_record(events: list[Event], rng: random.Random) -> bool:
    values = _View(events).plain()
    if values:
        _without(events, {rng.choice(values)})
    return bool(values)


@_mutation("lost-write")
def an_acknowledged_tail_is_cut_off(events: list[Event], rng: random.Random) -> bool:
    view = _View(events)
    values = view.plain()
    if not values:
        return False
    place = view.place(rng.choice(values))
    index = _last_scan(events, view, place)
    kept = tuple(one for one in events[index].data.records if one.offset < place[2])
    _change(events, index, Scanned(0, place[2], kept))
    return True


@_mutation("lost-write")
def a_committed_transaction_is_invisible(events: list[Event], rng: random.Random) -> bool:
    view = _View(events)
    # If its offsets counted, one half of it would be visible.
    with_offsets = {
        (e.client, e.data.transaction) for e in view.invoked.values() if e.what == "commit_offsets"
    }
    found = [values for values in view.of(view.committed - with_offsets).values() if values]
    if found:
        _without(events, set(rng.choice(found)), READ_COMMITTED)
    return bool(found)


@_mutation("half-visible")
def one_record_of_a_transaction_is_invisible(events: list[Event], rng: random.Random) -> bool:
    view = _View(events)
    found = [values for values in view.of(view.committed).values() if len(values) > 1]
    if found:
        _without(events, {rng.choice(rng.choice(found))}, READ_COMMITTED)
    return bool(found)


@_mutation("half-visible")
def one_record_of_an_unknown_commit_is_invisible(events: list[Event], rng: random.Random) -> bool:
    view = _View(events)
    found = {key: values for key, values in view.of(view.committed).items() if len(values) > 1}
    if not found:
        return False
    key = rng.choice(list(found))
    for index, event in enumerate(events):
        asked = view.invoked.get((event.client, event.number))
        committed = event.what == "commit" and event.phase == OK and asked is not None
        if committed and asked is not None and (event.client, asked.data) == key:
            events[index] = event._replace(phase="unknown")
    _without(events, {rng.choice(found[key])}, READ_COMMITTED)
    return True


@_mutation("G1a")
def an_aborted_record_is_read(events: list[Event], rng: random.Random) -> bool:
    view = _View(events)
    values = [value for values in view.of(view.aborted).values() for value in values]
    if not values:
        return False
    value = rng.choice(values)
    topic, partition, offset = view.place(value)
    index = view.final[READ_COMMITTED, topic, partition]
    found = events[index].data
    records = sorted([*found.records, Read(topic, partition, offset, value)], key=lambda one: one.offset)
    _change(events, index, found._replace(records=tuple(records)))
    return True


@_mutation("precommitted-read")
def a_record_is_read_before_its_commit(events: list[Event], rng: random.Random) -> bool:
    view = _View(events)
    values = [value for values in view.of(view.committed).values() for value in values]
    if not values:
        return False
    value = rng.choice(values)
    place = view.place(value)
    after = view.acknowledged[value][0] + 1
    events[after:after] = [
        Event(0, "early", 0, INVOKE, "poll", READ_COMMITTED),
        Event(0, "early", 0, OK, "poll", (Read(*place, value),)),
    ]
    return True


@_mutation("duplicate")
def a_record_is_stored_again(events: list[Event], rng: random.Random) -> bool:
    view = _View(events)
    values = view.plain()
    if not values:
        return False
    value = rng.choice(values)
    topic, partition, offset = view.place(value)
    index = _last_scan(events, view, (topic, partition, offset))
    found = events[index].data
    _change(
        events,
        index,
        Scanned(0, found.end + 1, (*found.records, Read(topic, partition, found.end, value))),
    )
    return True


@_mutation("inconsistent-offsets")
def two_records_change_places(events: list[Event], rng: random.Random) -> bool:
    polls = [i for i, e in enumerate(events) if e.what == "poll" and e.phase == OK and len(e.data) > 1]
    rng.shuffle(polls)
    for index in polls:
        first, second, *rest = events[index].data
        if first.value != second.value:
            swapped = first._replace(value=second.value), second._replace(value=first.value)
            _change(events, index, (*swapped, *rest))
            return True
    return False


@_mutation("inconsistent-offsets")
def the_content_of_a_record_changes(events: list[Event], rng: random.Random) -> bool:
    polls = [i for i, e in enumerate(events) if e.what == "poll" and e.phase == OK and e.data]
    if not polls:
        return False
    index = rng.choice(polls)
    first, *rest = events[index].data
    _change(events, index, (first._replace(content=first.content + 1), *rest))
    return True


@_mutation("never-sent")
def a_record_appears_that_nobody_sent(events: list[Event], rng: random.Random) -> bool:
    index = rng.choice(list(_View(events).final.values()))
    found = events[index].data
    topic, partition = events[index - 1].data.topic, events[index - 1].data.partition
    made_up = Read(topic, partition, found.end, "made up")
    _change(events, index, Scanned(0, found.end + 1, (*found.records, made_up)))
    return True


def _polls_with_two(events: list[Event], isolation: str) -> list[int]:
    """Return polls that were given three records in a row of one partition."""
    invoked = {(e.client, e.number): e.data for e in events if e.phase == INVOKE and e.what == "poll"}
    return [
        index
        for index, event in enumerate(events)
        if event.what == "poll" and event.phase == OK and len(event.data) > 2
        if invoked[event.client, event.number] == isolation
        if event.data[0].partition == event.data[1].partition == event.data[2].partition
    ]


@_mutation("int-poll-skip")
def a_poll_skips_a_record(events: list[Event], rng: random.Random) -> bool:
    polls = _polls_with_two(events, rng.choice((READ_COMMITTED, READ_UNCOMMITTED)))
    if polls:
        index = rng.choice(polls)
        first, _, *rest = events[index].data
        _change(events, index, (first, *rest))
    return bool(polls)


@_mutation("int-nonmonotonic-poll")
def a_poll_goes_back(events: list[Event], rng: random.Random) -> bool:
    polls = _polls_with_two(events, rng.choice((READ_COMMITTED, READ_UNCOMMITTED)))
    if polls:
        index = rng.choice(polls)
        first, second, *rest = events[index].data
        _change(events, index, (second, first, *rest))
    return bool(polls)


@_mutation("poll-skip")
def a_poll_is_swallowed(events: list[Event], rng: random.Random) -> bool:
    """A reader misses all that one of its polls was given, and goes on."""
    polls = [i for i, e in enumerate(events) if e.what == "poll" and e.phase == OK]
    rng.shuffle(polls)
    for index in polls:
        event = events[index]
        lost = {record.partition for record in event.data}
        for later in events[index + 1 :]:
            if later.client != event.client or later.what not in ("poll", "assign"):
                continue
            if later.what == "assign":
                break
            if later.phase == OK and any(record.partition in lost for record in later.data):
                _change(events, index, ())
                return True
    return False


@_mutation("nonmonotonic-poll")
def a_poll_is_repeated(events: list[Event], rng: random.Random) -> bool:
    polls = [i for i, e in enumerate(events) if e.what == "poll" and e.phase == OK and e.data]
    if not polls:
        return False
    index = rng.choice(polls)
    event = events[index]
    number = 1_000_000
    events[index + 1 : index + 1] = [
        Event(0, event.client, number, INVOKE, "poll", READ_UNCOMMITTED),
        Event(0, event.client, number, OK, "poll", event.data),
    ]
    return True


@_mutation("resurrected")
def a_scan_lacks_a_record_that_is_there_later(events: list[Event], rng: random.Random) -> bool:
    scans = [
        (index, event)
        for index, event in enumerate(events)
        if event.what == "scan" and event.phase == OK and event.client != "auditor" and event.data.records
    ]
    if not scans:
        return False
    index, event = rng.choice(scans)
    gone = rng.choice(event.data.records)
    kept = tuple(one for one in event.data.records if one != gone)
    _change(events, index, event.data._replace(records=kept))
    return True


@_mutation("nonmonotonic-send")
def two_acknowledgements_of_a_client_are_exchanged(events: list[Event], rng: random.Random) -> bool:
    view = _View(events)
    last: dict[tuple[str, str, int], int] = {}
    pairs = []
    for value in view.plain():
        index, event = view.acknowledged[value]
        topic, partition, _ = view.place(value)
        key = (event.client, topic, partition)
        if key in last:
            pairs.append((last[key], index))
        last[key] = index
    if not pairs:
        return False
    one, other = rng.choice(pairs)
    first, second = events[one].data, events[other].data
    _change(events, one, second)
    _change(events, other, first)
    return True


@_mutation("reordered")
def a_send_is_stored_below_what_was_known(events: list[Event], rng: random.Random) -> bool:
    ends: dict[tuple[str, int], int] = {}
    for event in events:
        if event.what == "scan" and event.phase == INVOKE:
            ends[event.data.topic, event.data.partition] = 0
    if not ends:
        return False
    topic, partition = rng.choice(list(ends))
    events += [
        Event(0, "late", 0, INVOKE, "send", Sending(topic, partition, "late:0")),
        Event(0, "late", 0, OK, "send", 0),
    ]
    return True


@_mutation("nonmonotonic-watermark")
def an_end_goes_back(events: list[Event], rng: random.Random) -> bool:
    shown = [i for i, e in enumerate(events) if e.what == "watermark" and e.phase == OK and e.data.end > 0]
    if not shown:
        return False
    index = rng.choice(shown)
    event = events[index]
    (asked,) = (
        e for e in events if e.phase == INVOKE and (e.client, e.number) == (event.client, event.number)
    )
    events[index + 1 : index + 1] = [
        Event(0, "watcher", 0, INVOKE, "watermark", asked.data),
        Event(0, "watcher", 0, OK, "watermark", Bounds(0, event.data.end - 1)),
    ]
    return True


@_mutation("two-outcomes")
def a_committed_transaction_is_also_aborted(events: list[Event], rng: random.Random) -> bool:
    committed = sorted(_View(events).committed)
    if committed:
        client, number = rng.choice(committed)
        events += [
            Event(0, client, 1_000_000, INVOKE, "abort", number),
            Event(0, client, 1_000_000, OK, "abort", None),
        ]
    return bool(committed)


@_mutation("group-offset-back")
def a_group_forgets(events: list[Event], rng: random.Random) -> bool:
    fetched = [i for i, e in enumerate(events) if e.what == "fetch_offsets" and e.phase == OK]
    last = fetched[-1]
    known = [row for row in events[last].data if row[1] < 3]
    if not known:
        return False
    topic, partition, _ = rng.choice(known)
    _change(events, last, ((topic, partition, -1),))
    return True


@_mutation("aborted-offset")
def a_group_gets_an_offset_of_an_aborted_transaction(events: list[Event], rng: random.Random) -> bool:
    view = _View(events)
    sent = [
        e
        for e in events
        if e.what == "commit_offsets" and e.phase == INVOKE
        if (e.client, e.data.transaction) in view.aborted
    ]
    if sent:
        offsets = rng.choice(sent).data.offsets
        events += [
            Event(0, "looker", 0, INVOKE, "fetch_offsets", Fetching("group", READ_COMMITTED)),
            Event(0, "looker", 0, OK, "fetch_offsets", offsets),
        ]
    return bool(sent)
