"""Frameworks of Python that read a topic and write another, while they or the broker are killed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from interop.asking import answered, go_through, questions
from interop.brokers import Broker, reported
from interop.frameworks import SECTION, pinned_version, python_packages
from interop.report import Report
from interop.toolbox import HERE, program

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

KILLED = "application and broker killed"


def command(
    packages: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> list[str]:
    """Return the command that runs a program of python/ with the packages of a framework."""
    here = {"PYTHONPATH": str(python_packages(packages)), "PYTHONUNBUFFERED": "1", **(environment or {})}
    source, *more = arguments
    settings = [f"{name}={value}" for name, value in here.items()]
    return [program("env"), *settings, sys.executable, str(HERE / "python" / source), *more]


def test_quixstreams_counts_each_record_once(broker: Broker, report: Report, tmp_path: Path) -> None:
    """With exactly-once the counts of each key are 1, 2, 3, …, also those that come from the changelog."""
    how, name = f"state, exactly once; {KILLED}", "quixstreams"
    app = command(name, ["quixstreams_app.py", broker.bootstrap, str(tmp_path / "state")])
    with reported(report, broker, name, pinned_version(name), how, SECTION):
        assert go_through(broker, app, tmp_path) == {
            key: [b"%d %s" % (number, each) for number, each in enumerate(asked, 1)]
            for key, asked in questions().items()
        }


def test_faust_streaming_answers_each_record_with_its_table(
    broker: Broker, report: Report, tmp_path: Path
) -> None:
    """No record is left out, and its table has what the changelog has when it is started again.

    When it recovered its table, faust resumes reading before it seeks to what it committed, and drops what it
    read before the seek. It does not commit beyond that, so the next start reads it again, in another order.
    """
    how, name = f"table, changelog; {KILLED}", "faust-streaming"
    environment = {"BOOTSTRAP": broker.bootstrap, "STATE": str(tmp_path / "state")}
    app = command(name, ["faust_app.py", "worker", "--without-web", "-l", "info"], environment)
    with reported(report, broker, name, pinned_version(name), how, SECTION):
        answers = go_through(broker, app, tmp_path, stalled_seconds=30.0)
        for key, asked in questions().items():
            assert set(answered(answers)[key]) == set(asked)
            first = {each for each in answers[key] if each.startswith(b"nothing ")}
            assert first == {b"nothing " + asked[0]}


@pytest.mark.parametrize(("backend", "client"), [("confluent", "confluent-kafka"), ("kafka", "aiokafka")])
def test_faststream_answers_each_record(
    backend: str, client: str, broker: Broker, report: Report, tmp_path: Path
) -> None:
    """No record is left out, whichever client it is used with."""
    how, name = f"over {client}; {KILLED}", "faststream"
    app = command(name, ["faststream_app.py", backend, broker.bootstrap])
    with reported(report, broker, "FastStream", pinned_version(name), how, SECTION):
        assert answered(go_through(broker, app, tmp_path)) == questions()
