"""Alerts and dashboard speak of what a server exposes, and what each alert is about meets its condition."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from support.alarms import CAUSES, LISTENING, NOT_CAUSED, consumer_lag
from support.scraping import Scrape, scrape

import cordwood
from cordwood.telemetry import LOOKED_UP_OF_BUCKET

OPS = Path(__file__).parents[1] / "ops"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((OPS / "prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in RULES}
DASHBOARD = json.loads((OPS / "grafana/cordwood.json").read_text())
_METRIC = re.compile(r"\b(?:cordwood|kafka)_[a-z_]+")


# --- Names ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names of a server with a topic and a group, and a series for each partition."""
    each = {"cordwood.metrics.partitions": "true"}
    before, _ = consumer_lag(tmp_path_factory.mktemp("exposed"), each)
    return before.names


def test_every_alert_is_about_a_metric_that_is_exposed_by_default(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    before, _ = consumer_lag(tmp_path_factory.mktemp("default"))
    # A broker has those of the bucket if it has one: tests/bucket/test_bucket_metrics.py.
    exposed = before.names | {metric.name for metric in LOOKED_UP_OF_BUCKET}
    for alert, expression in EXPRESSIONS.items():
        named = set(_METRIC.findall(expression))
        assert named <= exposed, alert
        assert named or alert == "CordwoodDown"
    print(f"{len(EXPRESSIONS)} alerts")


def test_every_panel_shows_a_metric_that_is_exposed(exposed: set[str]) -> None:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    for panel in panels:
        for target in panel["targets"]:
            named = set(_METRIC.findall(target["expr"]))
            assert named, panel["title"]
            assert named <= exposed, panel["title"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    print(f"{len(panels)} panels")
    assert len(panels) >= 25


def test_every_alert_says_how_bad_it_is_and_where_to_read_what_to_do() -> None:
    page = (OPS.parent / "docs/operations.md").read_text()
    headings = {line.lstrip("# ").lower() for line in page.splitlines() if line.startswith("#")}
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (path, anchor) == ("docs/operations.md", rule["alert"].lower())
        assert anchor in headings, f"{path} has no section {rule['alert']}"


def test_the_thresholds_are_the_promised_ones() -> None:
    assert EXPRESSIONS["CordwoodIndexRebuilds"] == "increase(cordwood_index_rebuilds_total[1h]) > 1"
    assert EXPRESSIONS["CordwoodSlowAppends"].endswith("> 0.1")
    assert EXPRESSIONS["CordwoodSlowSyncs"].endswith("> 0.1")
    assert EXPRESSIONS["CordwoodPageFaults"].endswith("[5m]) > 10000")


# --- Conditions -------------------------------------------------------------------------------------


def largest(found: Scrape, name: str) -> float:
    return max(found.each(name).values(), default=0.0)


def slower(before: Scrape, after: Scrape, bucket: str, bound: str) -> float:
    """Return which part of what came between two scrapes took longer than *bound*."""
    name = bucket.removesuffix("_bucket")
    count = after.value(f"{name}_count") - before.value(f"{name}_count")
    within = after.value(bucket, le=bound) - before.value(bucket, le=bound)
    return (count - within) / count if count else 0.0


def holds(expression: str, before: Scrape, after: Scrape) -> bool:
    """Return whether the condition is met if the server went from *before* to *after* a moment ago.

    Prometheus evaluates expressions, and does so in the tests that have it; here each shape that is used is
    compared with the numbers themselves.
    """
    if match := re.fullmatch(r"(\w+) > (\d+)", expression):
        return largest(after, match[1]) > float(match[2])
    if match := re.fullmatch(r"(\w+) == 1", expression):
        return largest(after, match[1]) == 1
    if match := re.fullmatch(r"(\w+) < (\d+)", expression):
        return after.value(match[1]) < float(match[2])
    if match := re.fullmatch(r"increase\((\w+)\[\w+\]\) > (\d+)", expression):
        return after.value(match[1]) - before.value(match[1]) > float(match[2])
    if match := re.fullmatch(r"histogram_quantile\(0\.99, rate\((\w+)\[5m\]\)\) > ([\d.]+)", expression):
        return slower(before, after, match[1], match[2]) > 0.01
    if match := re.fullmatch(r"predict_linear\((\w+)\[6h\], 86400\) < 0", expression):
        # Within six hours, and again and again for a day.
        return after.value(match[1]) + 4 * (after.value(match[1]) - before.value(match[1])) < 0
    if match := re.fullmatch(r"min_over_time\((\w+)\[15m\]\) > 10 \* rate\((\w+)\[15m\]\)", expression):
        return after.value(match[1]) > 0
    raise AssertionError(f"no shape for {expression}")


@pytest.mark.parametrize("alert", CAUSES)
def test_each_alert_is_silent_before_and_met_after_what_it_is_about(alert: str, tmp_path: Path) -> None:
    before, after = CAUSES[alert](tmp_path)
    expression = EXPRESSIONS[alert]
    assert not holds(expression, before, before)
    assert holds(expression, before, after)


def test_every_alert_is_caused_but_those_that_are_about_what_is_not_ours() -> None:
    assert EXPRESSIONS.keys() == CAUSES.keys() | NOT_CAUSED


def test_page_faults_are_those_of_the_process() -> None:
    """Those that wait for the disk, which the alert is on, no test can cause; both are counted alike."""
    with cordwood.Broker(config=LISTENING) as broker:
        before = scrape(broker.metrics_url)
        size = 64 << 20
        touched = bytearray(size)
        touched[::4096] = b"x" * (size // 4096)
        after = scrape(broker.metrics_url)
    # Huge pages make few faults of many pages.
    name = "cordwood_page_faults_total"
    assert after.value(name, kind="minor") >= before.value(name, kind="minor") + size // (2 << 20)
    assert after.value(name, kind="major") >= before.value(name, kind="major")
