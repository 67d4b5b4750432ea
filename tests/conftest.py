"""What the sweeps counted is shown at the end of a run: a check that says nothing of how much it checked
may have checked nothing."""

from __future__ import annotations

import pytest

#: Tests whose output is worth reading when they pass.
COUNTING = (
    "tests/broker/",
    "tests/crash/",
    "tests/protocol/",
    "tests/server/",
    "tests/test_architecture.py",
    "tests/storage/test_rot.py",
)

_counted: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what a passed test printed."""
    if report.when == "call" and report.passed and report.nodeid.startswith(COUNTING) and report.capstdout:
        _counted[report.nodeid] = report.capstdout.rstrip()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print it."""
    if _counted:
        terminalreporter.section("what was counted")
    for nodeid, printed in _counted.items():
        terminalreporter.write_line(nodeid.rpartition("::")[2])
        for line in printed.splitlines():
            terminalreporter.write_line(f"    {line}")
