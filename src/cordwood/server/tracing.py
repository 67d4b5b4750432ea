"""Spans for OpenTelemetry, disabled unless ``cordwood.traces`` is true.

Only the API is used. The operator configures the exporter, as with ``opentelemetry-instrument cordwood
serve``; without an exporter, spans are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cordwood.errors import ConfigError
from cordwood.telemetry import FETCH_READ, PRODUCE_STORE, AttributeValue, OpenSpan, Span, Tracer

if TYPE_CHECKING:
    from opentelemetry import trace

# OpenTelemetry's names for our attributes; the offset of a batch is that of its first record.
_SYSTEM = {"messaging.system": "kafka"}
_OPERATIONS: Mapping[Span, Mapping[str, AttributeValue]] = {
    PRODUCE_STORE: {"messaging.operation.name": "store", "messaging.operation.type": "send"},
    FETCH_READ: {"messaging.operation.name": "read", "messaging.operation.type": "receive"},
}


_MESSAGING: Mapping[str, Callable[[AttributeValue], Mapping[str, AttributeValue]]] = {
    "topic": lambda value: {"messaging.destination.name": value},
    "partition": lambda value: {"messaging.destination.partition.id": str(value)},
    "record_count": lambda value: {"messaging.batch.message_count": value},
    "returned_count": lambda value: {"messaging.batch.message_count": value},
    "base_offset": lambda value: {"messaging.kafka.offset": value},
    "fetch_offset": lambda value: {"messaging.kafka.offset": value},
}


#: Attributes that get OpenTelemetry's name only.
_ONLY_MESSAGING = frozenset({"topic", "partition"})


def open_tracer() -> Tracer:
    """Return a tracer that opens OpenTelemetry spans with the provider of this process.

    Raises:
        ConfigError: If opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import trace
    except ImportError:
        step = "pip install 'cordwood[traces]'"
        raise ConfigError(
            "cordwood.traces", f"cordwood.traces=true needs opentelemetry-api: {step}"
        ) from None
    return _SpanTracer(trace.get_tracer("cordwood"))


class _SpanTracer:
    """See `Tracer`."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def start(self, span: Span) -> Iterator[OpenSpan]:
        """Open *span*, which ends with the context; an exception propagates and ends it as failed."""
        attributes = {**_SYSTEM, **_OPERATIONS.get(span, {})}
        with self._tracer.start_as_current_span(span.name, attributes=attributes) as opened:
            try:
                yield _Open(span, opened)
            except BaseException as error:
                opened.set_attribute("error.type", type(error).__name__)
                raise


class _Open:
    """See `OpenSpan`."""

    def __init__(self, span: Span, opened: trace.Span) -> None:
        self._span = span
        self._opened = opened

    def set(self, **attributes: AttributeValue) -> None:
        """Set attributes of the span, under our names and OpenTelemetry's."""
        self._span.check(attributes)
        for name, value in attributes.items():
            if name not in _ONLY_MESSAGING:
                self._opened.set_attribute(name, value)
            translate = _MESSAGING.get(name)
            if translate is not None:
                self._opened.set_attributes(translate(value))
