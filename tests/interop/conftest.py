"""One report for all that runs here. It is saved at the end, with the page that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from interop import page
from interop.brokers import NAMES, Broker, running_broker
from interop.report import Report
from interop.six_steps import PARTITIONS
from support.serving import ServerProcess, serving

_report = Report()


@pytest.fixture
def report() -> Report:
    """Where checks are reported."""
    return _report


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of ours on an empty directory; it has nothing to complain of."""
    with serving(tmp_path / "data", {"num.partitions": str(PARTITIONS)}) as running:
        yield running
        assert running.stop() == 0
        assert running.errors == ""


@pytest.fixture(params=NAMES)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A broker of one node on an empty directory: ours, and then Apache Kafka's."""
    with running_broker(request.param, tmp_path / "broker") as running:
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was reported and what was skipped, and save the former."""
    skipped = [one for one in terminalreporter.stats.get("skipped", []) if "tests/interop/" in one.nodeid]
    if _report.results or skipped:
        terminalreporter.section("what works with Cordwood")
    if _report.results:
        _report.save()
        page.write()
        terminalreporter.write_line(page.summary(_report.results))
    for one in skipped:
        _, _, reason = one.longrepr
        terminalreporter.write_line(f"{one.nodeid.rpartition('::')[2]}: {reason}")
