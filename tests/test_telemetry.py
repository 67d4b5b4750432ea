"""What telemetry promises: declared once, counted exactly, refused early."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood import telemetry
from cordwood.telemetry import (
    FETCH_READ,
    LOOKED_UP,
    LOOKED_UP_EACH,
    LOOKED_UP_OF_BUCKET,
    METRICS,
    PRODUCE_STORE,
    SPANS,
    AttributeValue,
    Counter,
    Distribution,
    Gauge,
    Histogram,
    OpenSpan,
    Span,
    Telemetry,
    Tracer,
    no_tracing,
)

REQUESTS = Counter("requests_total", "Requests.", ("api", "outcome"))
CONNECTIONS = Gauge("connections", "Connections.", ("listener",))
WAITED = Histogram("waited_seconds", "Time waited.", (0.1, 1.0), ("api",))
ERRORS = Counter("errors_total", "Errors.")
LEVEL = Gauge("level", "Level.")
SIZES = Histogram("sizes", "Sizes.", (1.0, 10.0, 100.0))
TEST_METRICS = (REQUESTS, CONNECTIONS, WAITED, ERRORS, LEVEL, SIZES)


def collected(numbers: Telemetry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float | Distribution]:
    return {(s.metric.name, tuple(s.labels.items())): s.value for s in numbers.collect()}


# Declarations


ALL = (*METRICS, *LOOKED_UP, *LOOKED_UP_OF_BUCKET, *LOOKED_UP_EACH)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_every_metric_has_a_sentence_and_a_name_that_says_its_kind_and_unit(metric: telemetry.Metric) -> None:
    assert re.fullmatch(r"(cordwood|kafka)_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.sentence.endswith(".")
    assert metric.name.endswith("_total") == isinstance(metric, Counter)
    if isinstance(metric, Histogram):
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.name.endswith(("_seconds", "_records", "_bytes"))


def test_every_declared_metric_and_span_is_listed_once() -> None:
    constants = vars(telemetry).values()
    assert {id(m) for m in constants if isinstance(m, Counter | Gauge | Histogram)} == {id(m) for m in ALL}
    assert {id(s) for s in constants if isinstance(s, Span)} == {id(s) for s in SPANS}
    assert len({m.name for m in ALL}) == len(ALL) == 79
    assert len(METRICS) == 37
    assert len({s.name for s in SPANS}) == len(SPANS) == 2


def test_an_alert_on_writes_slower_than_100_ms_can_be_evaluated_exactly() -> None:
    assert 0.1 in telemetry.APPEND_SECONDS.buckets
    assert 0.1 in telemetry.SYNC_SECONDS.buckets
    assert 0.1 in telemetry.PRODUCE_SECONDS.buckets


# Numbers


def test_metrics_without_labels_start_at_zero_and_those_with_labels_when_first_seen() -> None:
    empty = Distribution(((1.0, 0), (10.0, 0), (100.0, 0), (float("inf"), 0)), 0.0)
    assert collected(Telemetry(TEST_METRICS)) == {
        ("errors_total", ()): 0,
        ("level", ()): 0,
        ("sizes", ()): empty,
    }


def test_counters_add_up_per_combination_of_labels() -> None:
    numbers = Telemetry(TEST_METRICS)
    numbers.add(ERRORS)
    numbers.add(ERRORS, 41)
    numbers.add(REQUESTS, api="fetch", outcome="ok")
    numbers.add(REQUESTS, 2, outcome="ok", api="fetch")
    numbers.add(REQUESTS, api="fetch", outcome="failed")
    found = collected(numbers)
    assert found["errors_total", ()] == 42
    assert found["requests_total", (("api", "fetch"), ("outcome", "ok"))] == 3
    assert found["requests_total", (("api", "fetch"), ("outcome", "failed"))] == 1


def test_gauges_are_set_and_moved_both_ways() -> None:
    numbers = Telemetry(TEST_METRICS)
    numbers.set(LEVEL, 10)
    numbers.add(LEVEL, -3)
    numbers.set(CONNECTIONS, 5, listener="plain")
    found = collected(numbers)
    assert (found["level", ()], found["connections", (("listener", "plain"),)]) == (7, 5)


def test_histogram_bounds_are_inclusive_and_counts_cumulative() -> None:
    numbers = Telemetry(TEST_METRICS)
    for size in (0, 1, 1.5, 10, 100, 101):
        numbers.observe(SIZES, size)
    distribution = collected(numbers)["sizes", ()]
    assert distribution == Distribution(((1.0, 2), (10.0, 4), (100.0, 5), (float("inf"), 6)), 213.5)
    assert isinstance(distribution, Distribution)
    assert distribution.total == 6


@given(st.lists(st.integers(min_value=-5, max_value=200)))
def test_histogram_counts_what_a_plain_count_would(values: list[int]) -> None:
    numbers = Telemetry(TEST_METRICS)
    for value in values:
        numbers.observe(WAITED, value, api="fetch")
        numbers.observe(SIZES, value)
    distribution = collected(numbers)["sizes", ()]
    assert isinstance(distribution, Distribution)
    assert distribution.sum == sum(values)
    for bound, count in distribution.buckets:
        assert count == sum(value <= bound for value in values)


def test_a_collected_sample_does_not_change_afterwards() -> None:
    numbers = Telemetry(TEST_METRICS)
    before = collected(numbers)
    numbers.add(ERRORS)
    numbers.observe(SIZES, 1)
    assert before == collected(Telemetry(TEST_METRICS))


def test_the_librarys_metrics_are_what_is_collected_by_default() -> None:
    assert {sample.metric.name for sample in Telemetry().collect()} == {metric.name for metric in METRICS}


def test_undeclared_metric_is_refused() -> None:
    numbers = Telemetry()
    with pytest.raises(KeyError):
        numbers.add(ERRORS)
    with pytest.raises(KeyError):
        numbers.set(LEVEL, 1)
    with pytest.raises(KeyError):
        numbers.observe(SIZES, 1)


def test_metric_of_another_kind_is_refused() -> None:
    numbers = Telemetry(TEST_METRICS)
    with pytest.raises(KeyError):
        numbers.add(SIZES)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        numbers.set(ERRORS, 0)  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        numbers.observe(ERRORS, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "labels", [{}, {"api": "fetch"}, {"api": "f", "outcome": "o", "topic": "t"}, {"topic": "t"}]
)
def test_labels_other_than_the_declared_ones_are_refused(labels: dict[str, str]) -> None:
    numbers = Telemetry(TEST_METRICS)
    with pytest.raises(TypeError, match="requests_total"):
        numbers.add(REQUESTS, 1, **labels)
    assert ("requests_total", ()) not in collected(numbers)


def test_labels_on_a_metric_that_declares_none_are_refused() -> None:
    numbers = Telemetry(TEST_METRICS)
    with pytest.raises(TypeError):
        numbers.add(ERRORS, 1, topic="t")
    with pytest.raises(TypeError):
        numbers.set(LEVEL, 1, topic="t")
    with pytest.raises(TypeError):
        numbers.observe(SIZES, 1, topic="t")


def test_a_counter_never_shrinks() -> None:
    numbers = Telemetry(TEST_METRICS)
    with pytest.raises(ValueError):
        numbers.add(ERRORS, -1)


class InterruptedOne(float):
    """One, whose addition runs bytecode: a thread may lose its turn between reading a sum and storing it."""

    def __new__(cls) -> InterruptedOne:
        return super().__new__(cls, 1.0)

    def __radd__(self, other: float) -> float:
        for _ in range(200):  # Each turn of a loop is a chance for another thread.
            pass
        return other + 1.0


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("impatient_threads")
def test_no_count_is_lost_between_threads() -> None:
    numbers = Telemetry(TEST_METRICS)
    threads, rounds = 8, 1_000
    together = threading.Barrier(threads)

    def count() -> None:
        together.wait()
        for _ in range(rounds):
            numbers.add(ERRORS, InterruptedOne())
            numbers.add(REQUESTS, InterruptedOne(), api="fetch", outcome="ok")
            numbers.observe(SIZES, InterruptedOne())

    workers = [threading.Thread(target=count) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = collected(numbers)
    sizes = found["sizes", ()]
    assert isinstance(sizes, Distribution)
    assert found["errors_total", ()] == sizes.total == sizes.sum == threads * rounds
    assert found["requests_total", (("api", "fetch"), ("outcome", "ok"))] == threads * rounds


# Spans


class RecordingTracer:
    """The smallest tracer that keeps what it is given."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, dict[str, AttributeValue], bool]] = []

    @contextmanager
    def start(self, span: Span) -> Iterator[OpenSpan]:
        open_span = RecordingSpan(span)
        failed = True
        try:
            yield open_span
            failed = False
        finally:
            self.ended.append((span.name, open_span.attributes, failed))


class RecordingSpan:
    def __init__(self, span: Span) -> None:
        self.span = span
        self.attributes: dict[str, AttributeValue] = {}

    def set(self, **attributes: AttributeValue) -> None:
        self.span.check(attributes)
        self.attributes |= attributes


def store_a_batch(tracer: Tracer) -> None:
    with tracer.start(PRODUCE_STORE) as span:
        span.set(virtual_topic="0-1-0", record_count=3)
        span.set(base_offset=42)


def test_spans_carry_the_promised_attributes() -> None:
    assert PRODUCE_STORE.name == "cordwood.broker.produce.store"
    assert PRODUCE_STORE.attributes[:3] == ("virtual_topic", "record_count", "base_offset")
    assert FETCH_READ.name == "cordwood.broker.fetch.read"
    assert FETCH_READ.attributes[:4] == ("virtual_topic", "fetch_offset", "returned_count", "high_watermark")
    assert all(span.sentence.endswith(".") for span in SPANS)


def test_a_tracer_gets_the_span_with_attributes_known_only_at_its_end() -> None:
    tracer = RecordingTracer()
    store_a_batch(tracer)
    attributes = {"virtual_topic": "0-1-0", "record_count": 3, "base_offset": 42}
    assert tracer.ended == [("cordwood.broker.produce.store", attributes, False)]


@pytest.mark.parametrize("tracer", [no_tracing, RecordingTracer()], ids=["no_tracing", "recording"])
def test_undeclared_attribute_is_refused_whether_anybody_traces_or_not(tracer: Tracer) -> None:
    store_a_batch(tracer)
    with tracer.start(FETCH_READ) as span, pytest.raises(TypeError, match="base_offset"):
        span.set(fetch_offset=1, base_offset=2)


@pytest.mark.parametrize("tracer", [no_tracing, RecordingTracer()], ids=["no_tracing", "recording"])
def test_an_exception_passes_through_a_span(tracer: Tracer) -> None:
    with pytest.raises(OSError, match="disk full"), tracer.start(PRODUCE_STORE):
        raise OSError("disk full")
    if isinstance(tracer, RecordingTracer):
        assert tracer.ended == [("cordwood.broker.produce.store", {}, True)]
