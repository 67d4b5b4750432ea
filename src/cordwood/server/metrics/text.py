"""Encoder of Prometheus's text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cordwood.telemetry import Counter, Distribution, Gauge, Histogram, Metric, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_KINDS: Mapping[type[Metric], str] = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}


def exposition(samples: Iterable[Sample]) -> str:
    """Return *samples* as one document: each metric with its help, type and samples."""
    families: dict[Metric, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.metric, []).append(sample)
    lines = []
    for metric, found in families.items():
        lines.append(f"# HELP {metric.name} {_escaped(metric.sentence)}")
        lines.append(f"# TYPE {metric.name} {_KINDS[type(metric)]}")
        for sample in found:
            lines += _lines(sample)
    return "".join(f"{line}\n" for line in lines)


def _lines(sample: Sample) -> Iterator[str]:
    name, value = sample.metric.name, sample.value
    if not isinstance(value, Distribution):
        yield f"{name}{_labels(sample.labels)} {_number(value)}"
        return
    for bound, count in value.buckets:
        yield f"{name}_bucket{_labels({**sample.labels, 'le': _number(bound)})} {count}"
    yield f"{name}_sum{_labels(sample.labels)} {_number(value.sum)}"
    yield f"{name}_count{_labels(sample.labels)} {value.total}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    quoted = (f'{name}="{_escaped(text, quoted=True)}"' for name, text in labels.items())
    return f"{{{','.join(quoted)}}}"


def _escaped(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text


def _number(value: float) -> str:
    """Return *value* as text, without a zero fraction: 1 for 1.0, +Inf for infinity."""
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)
