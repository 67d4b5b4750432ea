"""Storage of the values of metrics."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from cordwood.telemetry.metrics import METRICS, Counter, Gauge, Histogram, Metric


class Distribution(NamedTuple):
    """The values of a histogram: (upper bound, values at or below it) up to infinity, and their sum."""

    buckets: tuple[tuple[float, int], ...]
    sum: float

    @property
    def total(self) -> int:
        """The number of observed values."""
        return self.buckets[-1][1]


class Sample(NamedTuple):
    """One value of one metric at the time of collection."""

    metric: Metric
    labels: Mapping[str, str]
    value: float | Distribution


def distribution_of(metric: Histogram, values: Sequence[float]) -> Distribution:
    """Return the distribution of *values*, which are sorted, over the buckets of *metric*."""
    bounds = (*metric.buckets, float("inf"))
    return Distribution(tuple((bound, bisect_right(values, bound)) for bound in bounds), sum(values))


class _Observed:
    """The state of one histogram: values per bucket, not yet cumulative, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self, metric: Histogram) -> None:
        self.counts = [0] * (len(metric.buckets) + 1)
        self.sum = 0.0


class Telemetry:
    """The values of the metrics. Every method may be called from any thread.

    One lock guards all values and is held for one addition: without it, ``x += 1`` on shared state would lose
    updates. A metric without labels starts at zero, so that a rate over it exists before its first event. A
    metric with labels gets a value per combination of labels when that is first used.
    """

    def __init__(self, metrics: Iterable[Metric] = METRICS) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[Metric, dict[tuple[str, ...], float]] = {}
        self._observed: dict[Metric, dict[tuple[str, ...], _Observed]] = {}
        for metric in metrics:
            if isinstance(metric, Histogram):
                self._observed[metric] = {} if metric.labels else {(): _Observed(metric)}
            else:
                self._numbers[metric] = {} if metric.labels else {(): 0}

    def add(self, metric: Counter | Gauge, amount: float = 1, /, **labels: str) -> None:
        """Add *amount* to a counter or a gauge.

        Raises:
            KeyError: If the metric is not declared here as a counter or a gauge.
            TypeError: If the labels are not exactly the declared ones.
            ValueError: If *amount* is negative for a counter.
        """
        if amount < 0 and isinstance(metric, Counter):
            raise ValueError(f"{metric.name} is a counter: cannot add {amount}")
        numbers = self._numbers[metric]
        key = _key(metric, labels)
        with self._lock:
            numbers[key] = numbers.get(key, 0) + amount

    def set(self, metric: Gauge, value: float, /, **labels: str) -> None:
        """Set a gauge to *value*. Raises like :meth:`add`, and TypeError if *metric* is not a gauge."""
        if not isinstance(metric, Gauge):
            raise TypeError(f"{metric.name} is not a gauge")
        numbers = self._numbers[metric]
        key = _key(metric, labels)
        with self._lock:
            numbers[key] = value

    def observe(self, metric: Histogram, value: float, /, **labels: str) -> None:
        """Count *value* into a histogram. Raises like :meth:`add`."""
        observed = self._observed[metric]
        key = _key(metric, labels)
        bucket = bisect_left(metric.buckets, value)
        with self._lock:
            state = observed.get(key)
            if state is None:
                state = observed[key] = _Observed(metric)
            state.counts[bucket] += 1
            state.sum += value

    def observe_all(self, metric: Histogram, values: Sequence[float]) -> None:
        """Count many values into a histogram without labels in one call, for hot paths."""
        state = self._observed[metric][()]
        with self._lock:
            for value in values:
                state.counts[bisect_left(metric.buckets, value)] += 1
            state.sum += sum(values)

    def collect(self) -> Iterator[Sample]:
        """Yield every value. All values are from one moment: the first step of the iterator."""
        with self._lock:
            samples = [
                Sample(metric, dict(zip(metric.labels, key, strict=True)), value)
                for metric, numbers in self._numbers.items()
                for key, value in numbers.items()
            ]
            samples += [
                Sample(metric, dict(zip(metric.labels, key, strict=True)), _distribution(metric, state))
                for metric, observed in self._observed.items()
                for key, state in observed.items()
            ]
        yield from samples


def _key(metric: Metric, labels: Mapping[str, str]) -> tuple[str, ...]:
    if not labels and not metric.labels:
        return ()
    if labels.keys() != set(metric.labels):
        raise TypeError(f"{metric.name} has the labels {metric.labels}, not {tuple(labels)}")
    return tuple(labels[name] for name in metric.labels)


def _distribution(metric: Metric, state: _Observed) -> Distribution:
    assert isinstance(metric, Histogram)
    bounds = (*metric.buckets, float("inf"))
    return Distribution(tuple(zip(bounds, accumulate(state.counts), strict=True)), state.sum)
