"""The probe of a store at start: whether exactly one of several writers wins, as the protocol needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from cordwood.bucket.ownership import ObjectStore, Stored
from cordwood.errors import (
    BucketRefused,
    ObjectExists,
    ObjectMissing,
    StoreUnavailable,
    VersionChanged,
)

PREFIX = "probe/"
#: How many writers race; as many threads let all of them write at the same time.
RACERS = 24
#: How often each request is made until the store answers it.
TRIES = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


class ProbeThreads(Protocol):
    """Threads that run calls at the same time: `cordwood.host.Crew`."""

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the results of *function* for *items*, computed concurrently. It must not raise."""


class RaceOutcome(NamedTuple):
    """What a racer was told: that it won or lost, or why it ended."""

    won: bool
    #: A try before went unanswered, so that "lost" may be to itself.
    unsure: bool
    failure: Exception | None = None


def probe(store: ObjectStore, nonce: str, threads: ProbeThreads, pause: Callable[[int], None]) -> None:
    """Race creations and replacements of one object, and remove it again.

    *nonce* makes the key one that nobody used. *threads* are `RACERS` threads. *pause* waits before the next
    try of a request that failed that many times in a row; it is called from these threads too,
    and what it raises ends the probe.

    Raises:
        BucketRefused: If not exactly one writer wins, or the store has not what it said. It loses records.
        StoreUnavailable: If the store left a request unanswered `TRIES` times.
    """
    key = PREFIX + nonce
    try:
        _race_creations(store, key, threads, pause)
        _race_replacements(store, key, threads, pause)
    except BaseException:
        # What is left under this key is in nobody's way.
        with contextlib.suppress(Exception):
            store.delete(key)
        raise
    _until_answered(lambda: store.delete(key), pause)


def _race_creations(
    store: ObjectStore, key: str, threads: ProbeThreads, pause: Callable[[int], None]
) -> None:
    def create(data: bytes) -> None:
        store.create(key, data)

    contents = [_content_of("created", number) for number in range(RACERS)]
    outcomes = threads.map(lambda data: _run(create, data, ObjectExists, pause), contents)
    _check(store, key, "create", outcomes, contents, pause)
    if key not in _until_answered(lambda: store.list(key), pause):
        raise BucketRefused("the store does not list an object that was created; it cannot hold a log")


def _race_replacements(
    store: ObjectStore, key: str, threads: ProbeThreads, pause: Callable[[int], None]
) -> None:
    version = _read(store, key, pause).version

    def replace(data: bytes) -> None:
        store.replace(key, data, version)

    contents = [_content_of("replaced", number) for number in range(RACERS)]
    outcomes = threads.map(lambda data: _run(replace, data, VersionChanged, pause), contents)
    _check(store, key, "replace", outcomes, contents, pause)


def _content_of(what: str, number: int) -> bytes:
    """Return bytes of no other racer: the ETag of equal bytes may be equal."""
    return f"{what} by racer {number}".encode()


def _run(
    request: Callable[[bytes], None], data: bytes, lost: type[Exception], pause: Callable[[int], None]
) -> RaceOutcome:
    """Make a request until it is answered, at most `TRIES` times."""
    failure: Exception | None = None
    for attempt in range(1, TRIES + 1):
        try:
            request(data)
        except StoreUnavailable as error:
            failure = error
            try:
                pause(attempt)
            except Exception as ended:
                return RaceOutcome(won=False, unsure=True, failure=ended)
        except lost:
            return RaceOutcome(won=False, unsure=failure is not None)
        except Exception as error:
            return RaceOutcome(won=False, unsure=True, failure=error)
        else:
            return RaceOutcome(won=True, unsure=False)
    return RaceOutcome(won=False, unsure=True, failure=failure)


def _check(
    store: ObjectStore,
    key: str,
    verb: str,
    outcomes: Sequence[RaceOutcome],
    contents: Sequence[bytes],
    pause: Callable[[int], None],
) -> None:
    """Raise BucketRefused unless just the racer whose bytes are stored won; raise what ended a racer."""
    for outcome in outcomes:
        if outcome.failure is not None:
            raise outcome.failure
    winners = [number for number, outcome in enumerate(outcomes) if outcome.won]
    if len(winners) > 1:
        raise BucketRefused(
            f"the store let {len(winners)} of {len(outcomes)} writers {verb} the same object, where only "
            "one may; it has no conditional writes and would lose records"
        )
    stored = _read(store, key, pause)
    if stored.data not in contents:
        raise BucketRefused(f"the store returned bytes that no writer sent which was to {verb} the object")
    holder = contents.index(stored.data)
    if winners and winners != [holder]:
        raise BucketRefused(
            f"the store told one writer that it could {verb} an object, and holds the bytes of another"
        )
    # A racer whose answer was lost may have won and then been told that another did: itself.
    if not winners and not outcomes[holder].unsure:
        raise BucketRefused(
            f"the store told all {len(outcomes)} writers that another one did {verb} the object, and "
            "holds the bytes of one of them"
        )


def _read(store: ObjectStore, key: str, pause: Callable[[int], None]) -> Stored:
    try:
        return _until_answered(lambda: store.get(key), pause)
    except ObjectMissing:
        raise BucketRefused(
            "the store does not return an object right after it was written; it cannot hold a log"
        ) from None


def _until_answered(request: Callable[[], Result], pause: Callable[[int], None]) -> Result:
    """Make a request that may be made any number of times, at most `TRIES` times."""
    for attempt in range(1, TRIES):
        try:
            return request()
        except StoreUnavailable:
            pause(attempt)
    return request()
