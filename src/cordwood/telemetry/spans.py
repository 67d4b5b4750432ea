"""Every span, declared once with its sentence, and the tracer that opens them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

AttributeValue = str | int | float | bool


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A piece of work worth timing, and the attributes it may carry."""

    name: str
    sentence: str
    attributes: tuple[str, ...]

    def check(self, attributes: Iterable[str]) -> None:
        """Refuse attributes that are not declared.

        Raises:
            TypeError: With the first one that is not.
        """
        for attribute in attributes:
            if attribute not in self.attributes:
                raise TypeError(f"{self.name} has the attributes {self.attributes}, not {attribute}")


PRODUCE_STORE = Span(
    "cordwood.broker.produce.store",
    "The broker stores one batch of a produce request.",
    ("virtual_topic", "record_count", "base_offset", "topic", "partition"),
)
FETCH_READ = Span(
    "cordwood.broker.fetch.read",
    "The broker reads one partition of a fetch request.",
    ("virtual_topic", "fetch_offset", "returned_count", "high_watermark", "topic", "partition"),
)

#: Every span of the library.
SPANS: tuple[Span, ...] = (PRODUCE_STORE, FETCH_READ)


class OpenSpan(Protocol):
    """A span under way. For the thread or task that opened it."""

    def set(self, **attributes: AttributeValue) -> None:
        """Give the span these attributes; TypeError for one that is not declared (``Span.check``)."""
        ...


class Tracer(Protocol):
    """Where spans go. May be called from any thread."""

    def start(self, span: Span) -> AbstractContextManager[OpenSpan]:
        """Return a context manager that opens *span* on entry and ends it on exit.

        An exception passes through it and ends the span as failed.
        """
        ...


class _Untraced:
    """A span that goes nowhere but still refuses what its declaration does not have."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> _Untraced:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def set(self, **attributes: AttributeValue) -> None:
        self._span.check(attributes)


class _NoTracing:
    def start(self, span: Span) -> _Untraced:
        return _Untraced(span)


#: The tracer that is used when nothing is traced. A span costs well under a microsecond.
no_tracing: Tracer = _NoTracing()
