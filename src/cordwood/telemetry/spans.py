"""Every span, declared once with its description, and the interface of tracers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

AttributeValue = str | int | float | bool


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A traced operation and its allowed attributes."""

    name: str
    sentence: str
    attributes: tuple[str, ...]

    def check(self, attributes: Iterable[str]) -> None:
        """Refuse attributes that are not declared.

        Raises:
            TypeError: For the first undeclared attribute.
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
    """An open span. Only the thread or task that opened it may use it."""

    def set(self, **attributes: AttributeValue) -> None:
        """Set attributes of the span. Raises TypeError for an undeclared one (``Span.check``)."""
        ...


class Tracer(Protocol):
    """The receiver of spans. May be called from any thread."""

    def start(self, span: Span) -> AbstractContextManager[OpenSpan]:
        """Return a context manager that opens *span* on entry and ends it on exit.

        An exception propagates and ends the span as failed.
        """
        ...


class _Untraced:
    """A span that is not recorded but still refuses undeclared attributes."""

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


#: The tracer that records nothing. A span costs well under a microsecond.
no_tracing: Tracer = _NoTracing()
