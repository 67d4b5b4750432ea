"""Spans to OpenTelemetry: off unless ``cordwood.traces`` asks for them.

Only its interface is used. Where spans go is for whoever runs the process to say, as with
``opentelemetry-instrument cordwood serve``; if nobody does, they go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cordwood.errors import ConfigError
from cordwood.telemetry import FETCH_READ, PRODUCE_STORE, AttributeValue, OpenSpan, Span, Tracer

if TYPE_CHECKING:
    from opentelemetry import trace

# OpenTelemetry's names for the same facts, beside our own; of a batch the offset is that of its first record.
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


#: What has a name of OpenTelemetry's only.
_ONLY_MESSAGING = frozenset({"topic", "partition"})


def open_tracer() -> Tracer:
    """Return a tracer that opens OpenTelemetry's spans, with the provider that this process has.

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
        """Open *span*, which ends with the context; an exception passes through and ends it as failed."""
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
        """Give the span these attributes, under our names and OpenTelemetry's."""
        self._span.check(attributes)
        for name, value in attributes.items():
            if name not in _ONLY_MESSAGING:
                self._opened.set_attribute(name, value)
            translate = _MESSAGING.get(name)
            if translate is not None:
                self._opened.set_attributes(translate(value))
