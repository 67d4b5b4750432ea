"""Generate the tables of docs/configuration.md and docs/metrics.md from the declarations in the code.

``PYTHONPATH=tests .venv/bin/python -m support.reference_pages`` regenerates them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cordwood.config.loading import (
    BROKER_SETTINGS,
    FAMILIES,
    LISTENER_SETTINGS,
    TOPIC_SETTINGS,
    family_table,
    reference_table,
)
from cordwood.telemetry import LOOKED_UP, LOOKED_UP_EACH, LOOKED_UP_OF_BUCKET, METRICS, SPANS, Metric

DOCS = Path(__file__).parents[2] / "docs"
#: Pages with generated tables.
PAGES = (DOCS / "configuration.md", DOCS / "metrics.md")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def metrics_table(metrics: Sequence[Metric]) -> str:
    """Return the table that documents *metrics*."""
    rows = []
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append((f"`{metric.name}`", type(metric).__name__.lower(), labels, metric.sentence))
    return _table(("Name", "Kind", "Labels", "Meaning"), rows)


def spans_table() -> str:
    """Return the table that documents the spans."""
    rows = [
        (f"`{span.name}`", ", ".join(f"`{name}`" for name in span.attributes), span.sentence)
        for span in SPANS
    ]
    return _table(("Span", "Attributes", "Meaning"), rows)


MADE: Mapping[str, Callable[[], str]] = {
    "topic settings": lambda: reference_table(TOPIC_SETTINGS.values()),
    "broker settings": lambda: reference_table(BROKER_SETTINGS.values()),
    "settings of listeners": lambda: reference_table(LISTENER_SETTINGS.values()),
    "settings of listeners and orgs": lambda: family_table(FAMILIES),
    "counted": lambda: metrics_table(METRICS),
    "looked up": lambda: metrics_table(LOOKED_UP),
    "looked up of bucket": lambda: metrics_table(LOOKED_UP_OF_BUCKET),
    "looked up each": lambda: metrics_table(LOOKED_UP_EACH),
    "spans": spans_table,
}


def made(text: str) -> str:
    """Return a page with its tables regenerated."""

    def section(match: re.Match[str]) -> str:
        return f"<!-- made: {match[1]} -->\n{MADE[match[1]]()}<!-- end -->"

    return re.sub(r"<!-- made: (.+?) -->\n.*?<!-- end -->", section, text, flags=re.DOTALL)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(made(page.read_text()))
