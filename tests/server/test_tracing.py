"""Spans as OpenTelemetry gets them: its own SDK, its exporter in memory, and real clients."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.asking import Asking
from support.patience import SECONDS_MAX

import cordwood
from cordwood.broker.fetching import _count_from
from cordwood.errors import ConfigError
from cordwood.formats import batch
from cordwood.formats.batch import encode_records
from cordwood.formats.shared.topic_hashing import topic_hash
from cordwood.server.tracing import open_tracer
from cordwood.telemetry import FETCH_READ, PRODUCE_STORE, SPANS

TRACED = {"cordwood.traces": "true"}
PRODUCED, FETCHED = PRODUCE_STORE.name, FETCH_READ.name


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Have this process send its spans into memory. A provider can be set once only, so it is asked for."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def named(exporter: InMemorySpanExporter, name: str, topic: str = "to-morrow") -> list[ReadableSpan]:
    """Return the spans of a name that are about a topic: groups and the like have some too."""
    return [
        span
        for span in exporter.get_finished_spans()
        if span.name == name and str((span.attributes or {})["virtual_topic"]).startswith(f"{topic}-")
    ]


def send(broker: cordwood.Broker, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(SECONDS_MAX) == 0


def read(broker: cordwood.Broker, topic: str, offset: int) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, offset)])
    assert consumer.poll(SECONDS_MAX) is not None
    consumer.close()


def test_a_topic_in_the_shared_log_is_named_by_its_owner(exporter: InMemorySpanExporter) -> None:
    config = {**TRACED, "cordwood.storage": "shared"}
    with cordwood.Broker(config=config) as broker:
        send(broker, "to-morrow", "a", "b", "c")
        read(broker, "to-morrow", 0)
    key = f"0-{topic_hash(0, 'to-morrow')}-0"
    spans = [
        span for span in exporter.get_finished_spans() if (span.attributes or {})["virtual_topic"] == key
    ]
    assert {span.name for span in spans} == {PRODUCED, FETCHED}
    assert {(span.attributes or {})["messaging.destination.name"] for span in spans} == {"to-morrow"}


def test_a_batch_that_is_stored_and_read_has_both_spans_with_all_attributes(
    exporter: InMemorySpanExporter,
) -> None:
    with cordwood.Broker(config=TRACED) as broker:
        send(broker, "to-morrow", "a", "b", "c")
        read(broker, "to-morrow", 0)
    stored = named(exporter, PRODUCED)
    assert sum(int(str((span.attributes or {})["record_count"])) for span in stored) == 3
    first = dict(stored[0].attributes or {})
    assert first == {
        "virtual_topic": "to-morrow-0",
        "record_count": first["record_count"],
        "base_offset": 0,
        "messaging.system": "kafka",
        "messaging.operation.name": "store",
        "messaging.operation.type": "send",
        "messaging.destination.name": "to-morrow",
        "messaging.destination.partition.id": "0",
        "messaging.batch.message_count": first["record_count"],
        "messaging.kafka.offset": 0,
    }
    got = dict(named(exporter, FETCHED)[0].attributes or {})
    assert got == {
        "virtual_topic": "to-morrow-0",
        "fetch_offset": 0,
        "returned_count": 3,
        "high_watermark": 3,
        "messaging.system": "kafka",
        "messaging.operation.name": "read",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "to-morrow",
        "messaging.destination.partition.id": "0",
        "messaging.batch.message_count": 3,
        "messaging.kafka.offset": 0,
    }
    assert all(span.status.is_unset for span in (*stored, *named(exporter, FETCHED)))
    assert all((span.end_time or 0) >= (span.start_time or 0) > 0 for span in stored)


@pytest.mark.parametrize("offset", range(5))
def test_a_span_counts_the_records_from_the_offset_that_was_asked_for(
    exporter: InMemorySpanExporter, offset: int
) -> None:
    """A fetch returns whole batches; what comes before the offset was not asked for."""
    with cordwood.Broker(config=TRACED) as broker, Asking(broker.bootstrap) as client:
        client.create("to-morrow")
        for first in (0, 3):
            rows = [(None, b"%d" % number) for number in range(first, first + 3)]
            assert client.produce("to-morrow", encode_records(rows, 1_000)).error_code == 0
        client.fetch("to-morrow", offset)
    (span,) = named(exporter, FETCHED)
    assert dict(span.attributes or {})["returned_count"] == 6 - offset


def test_a_span_does_not_count_what_compaction_removed() -> None:
    rows = [(b"k%d" % number, b"value") for number in range(6)]
    whole = encode_records(rows, 1_000)
    (header,) = batch.scan(whole).headers()
    kept = batch.without(whole, header, bytes([0, 1, 0, 1, 1, 0]), 0, batch.NO_OPTIONS)
    counts = [_count_from(offset, memoryview(kept)) for offset in range(7)]
    assert counts == [3, 2, 2, 1, 1, 1, 0]


def test_what_failed_ends_its_span_as_failed_with_the_kind_of_error(exporter: InMemorySpanExporter) -> None:
    with cordwood.Broker(config={**TRACED, "message.max.bytes": "1000"}) as broker:
        send(broker, "to-morrow", "a")
        send(broker, "to-morrow", "x" * 5_000)
        read(broker, "to-morrow", 10)
    failed = [span for span in named(exporter, PRODUCED) if not span.status.is_ok and span.events]
    assert failed
    assert {str((span.attributes or {})["error.type"]) for span in failed} == {"FrameTooLarge"}
    out_of_range = [span for span in named(exporter, FETCHED) if span.events]
    assert {str((span.attributes or {})["error.type"]) for span in out_of_range} == {"OffsetOutOfRange"}


def test_nothing_is_traced_unless_asked_for(exporter: InMemorySpanExporter) -> None:
    with cordwood.Broker() as broker:
        send(broker, "to-morrow", "a")
        read(broker, "to-morrow", 0)
    assert exporter.get_finished_spans() == ()


def test_opentelemetry_is_not_even_imported_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    cordwood.Broker().close()


def test_without_the_package_the_setting_is_refused_with_what_to_install_and_nothing_is_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "opentelemetry", None)
        with pytest.raises(ConfigError, match=r"pip install 'cordwood\[traces\]'"):
            cordwood.Broker(tmp_path, config=TRACED)
    cordwood.Broker(tmp_path).close()


@pytest.mark.parametrize("span", SPANS, ids=lambda span: span.name)
def test_every_declared_span_can_be_opened_and_refuses_what_is_not_declared(
    exporter: InMemorySpanExporter, span: cordwood.telemetry.Span
) -> None:
    with open_tracer().start(span) as opened, pytest.raises(TypeError):
        opened.set(colour="blue")
    (ended,) = exporter.get_finished_spans()
    assert ended.name == span.name
    assert (ended.attributes or {})["messaging.operation.type"] in ("send", "receive")
