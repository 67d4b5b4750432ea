"""The seam to an object store, and the requests that the protocol of the bucket makes.

The protocol is written as generators that yield requests and are sent the answers. So the same code runs over
a real store (`perform`), and step by step over a store in memory that loses answers, delays and fails.

What may have happened after `StoreUnavailable`:

- `Get`, `GetRange`, `List`: nothing.
- `Create`: the object is there with these bytes, or not, or will be later. Creating it again with the same
  bytes is safe: it never replaces an object.
- `Replace`: as for `Create`. It applies to one version, so at most one of several takes effect.
- `Delete`: the object is gone, or not, or will be later. Deleting again is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from cordwood.errors import StoreUnavailable

Result = TypeVar("Result")


class Stored(NamedTuple):
    """The bytes of an object, and what `ObjectStore.replace` needs to replace just this version."""

    data: bytes
    version: str


class Get(NamedTuple):
    """Answered with `Stored`, or ObjectMissing."""

    key: str


class GetRange(NamedTuple):
    """Answered with the bytes from *start* on, at most *size* of them, or ObjectMissing."""

    key: str
    start: int
    size: int


class Create(NamedTuple):
    """Answered with the version, or ObjectExists."""

    key: str
    data: bytes


class Replace(NamedTuple):
    """Answered with the new version, or VersionChanged."""

    key: str
    data: bytes
    version: str


class Delete(NamedTuple):
    """Answered with None, also where there is no such object."""

    key: str


class List(NamedTuple):
    """Answered with the keys that begin with *prefix*, from after *after* on, in order: all or the first."""

    prefix: str
    after: str = ""


class Pause(NamedTuple):
    """Wait before the next try of a request that failed *attempt* times in a row."""

    attempt: int


Request: TypeAlias = Get | GetRange | Create | Replace | Delete | List | Pause
Steps: TypeAlias = Generator[Request, Any, Result]
"""Requests of one part of the protocol, which ends with a result."""


class ObjectStore(Protocol):
    """A store of objects under keys. Every method may be called from any thread.

    Each raises `StoreUnavailable` if the outcome is not known, within the time that the store was given.
    """

    def get(self, key: str) -> Stored:
        """Return an object. Raises ObjectMissing."""

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return *size* bytes from *start*, fewer where the object ends. Raises ObjectMissing."""

    def create(self, key: str, data: bytes) -> str:
        """Create an object and return its version. Raises ObjectExists, and nothing has changed."""

    def replace(self, key: str, data: bytes, version: str) -> str:
        """Replace *version* of an object; return the new one. Raises VersionChanged: nothing has changed."""

    def delete(self, key: str) -> None:
        """Delete an object; none there is no error."""

    def list(self, prefix: str, after: str = "") -> list[str]:
        """Return the keys with *prefix* that are greater than *after*, in order: all of them, or the first.

        An empty result says that there are no more.
        """


def until_answered(request: Get | GetRange | List | Delete) -> Steps[Any]:
    """Make *request*, which may be made any number of times, until the store answers; return the answer."""
    attempt = 0
    while True:
        try:
            return (yield request)
        except StoreUnavailable:
            attempt += 1
            yield Pause(attempt)


def answer(store: ObjectStore, request: Request) -> object:
    """Return what *store* answers to *request*, which is not a `Pause`; raises what the store raises."""
    match request:
        case Get(key):
            return store.get(key)
        case GetRange(key, start, size):
            return store.get_range(key, start, size)
        case Create(key, data):
            return store.create(key, data)
        case Replace(key, data, version):
            return store.replace(key, data, version)
        case Delete(key):
            store.delete(key)
            return None
        case List(prefix, after):
            return store.list(prefix, after)
        case Pause():
            raise AssertionError("a pause is no request to the store")


def perform(store: ObjectStore, steps: Steps[Result], pause: Callable[[int], None]) -> Result:
    """Make the requests of *steps* and return their result. Raises what they raise.

    *pause* waits between tries; what it raises ends the steps.
    """
    sent: object = None
    failure: Exception | None = None
    while True:
        try:
            request = steps.send(sent) if failure is None else steps.throw(failure)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        sent, failure = None, None
        try:
            if isinstance(request, Pause):
                pause(request.attempt)
            else:
                sent = answer(store, request)
        except Exception as error:
            failure = error
