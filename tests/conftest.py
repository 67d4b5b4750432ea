"""What the sweeps counted is shown at the end of a run: a check that says nothing of how much it checked
may have checked nothing."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings
from support import seeds

pytest_plugins = ["support.timeouts", "support.leftovers"]

# How long an example takes says nothing on a machine that others use as well.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

#: Tests whose output is worth reading when they pass.
COUNTING = (
    "tests/aio/",
    "tests/broker/",
    "tests/bucket/",
    "tests/crash/",
    "tests/formats/test_records_as_frames.py",
    "tests/interchange/",
    "tests/protocol/",
    "tests/server/",
    "tests/spark/test_export_",
    "tests/spark/test_sink_",
    "tests/test_architecture.py",
    "tests/storage/log/test_every_format.py",
    "tests/storage/log/test_rot.py",
    "tests/storage/shared/",
    "tests/storage/chain/test_tampering.py",
    "tests/verify/test_verify_formats.py",
)

#: Tests that share one Spark, and so run in one process; all others run where there is room.
SHARING_SPARK = (
    "tests/spark/jobs/",
    *(
        f"tests/spark/test_{name}.py::"
        for name in (
            "client_secrets",
            "formats_in_spark",
            "progress",
            "secured_spark",
            "session",
            "shared_topics",
            "sink",
            "source",
            "source_by_address",
            "source_chain",
            "stream_source",
            "transactions_in_spark",
        )
    ),
)

#: Its tests parse every module once.
READING_SOURCE = "tests/test_architecture.py"

#: The longest tests begin first, after what shares a Spark, so that nobody waits for one alone at the end.
LONGEST = (
    "tests/spark/test_declarative.py",
    "tests/spark/test_sink_crashes.py",
    "tests/spark/test_tutorial.py",
    "tests/spark/test_sink_cluster.py",
    "tests/server/test_hostile.py",
    "tests/crash/test_crash_engine.py",
)

# Each Spark that a test starts lives for seconds: compiling its code well, or code for a query at all, costs
# more than running it, and so does planning a query again when a part of it is done. Two hundred pieces of a
# few rows each, which is what it makes of a shuffle by itself, cost most of all. On a busy machine a worker
# needs longer to call back than Spark gives it, 15 s, and an executor that had no turn for two minutes is
# taken for dead.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.sql.shuffle.partitions=2 -Dspark.ui.enabled=false "
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN "
    "-Dspark.sql.adaptive.enabled=false "
    "-Dspark.python.authenticate.socketTimeout=600s -Dspark.network.timeout=1200s "
    "-Dspark.executor.heartbeatInterval=60s",
)

_counted: dict[str, str] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give Hypothesis the seed of this run, before its plugin looks for one."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seeds.seed_or(seeds.USUAL))


def pytest_report_header() -> str:
    """Name the seed that runs the same random tests again."""
    if seeds.GIVEN is None:
        return f"seeds: the usual ones ({seeds.VARIABLE}=N, or random, gives others)"
    return f"seeds: {seeds.VARIABLE}={seeds.GIVEN}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring what takes longest to the front; all else keeps its order."""

    def turn(item: pytest.Item) -> int:
        path = item.nodeid.partition("::")[0]
        return LONGEST.index(path) if path in LONGEST else len(LONGEST)

    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spread the tests over the processes, where pytest-xdist is there and asked to."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        """What shares a Spark is one piece of work, the largest, as is what reads all of the source. Each
        other test is one of its own."""

        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(SHARING_SPARK):
                return "spark"
            return READING_SOURCE if nodeid.startswith(READING_SOURCE) else nodeid

    return Scheduling(config, log)


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
