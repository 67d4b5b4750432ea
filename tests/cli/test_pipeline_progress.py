"""The progress of pipelines: tasks of Spark, finished and known, on a terminal only. Spark is a fake here."""

from __future__ import annotations

import io
import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.patience import SECONDS_MAX

from cordwood.cli.pipeline import line
from cordwood.cli.pipeline import run as run_command


class Tracker:
    """Two stages at first, one of which is done and forgotten later; says when it was asked twice."""

    def __init__(self) -> None:
        self.asked = 0
        self.twice = threading.Event()

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - as in Spark
        self.asked += 1
        if self.asked > 2:
            self.twice.set()
        return [1, 2] if self.asked == 1 else [2]

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802 - as in Spark
        done = {1: 3, 2: 2 * min(self.asked, 2)}[stage]
        return SimpleNamespace(numCompletedTasks=done, numTasks={1: 3, 2: 5}[stage])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, *, wanted: bool) -> tuple[str, int]:
    """Return what is shown while a fake session works, and how often its tasks were asked for."""
    tracker = Tracker()
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(line, "_REFRESH_SECONDS", 0.001)
    with line._tasks_shown(spark, "exporting", shown=wanted):
        if wanted and screen.isatty():
            assert tracker.twice.wait(SECONDS_MAX)
    assert "cordwood-progress" not in {thread.name for thread in threading.enumerate()}
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()), tracker.asked


def test_finished_and_known_tasks_of_all_stages_are_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text, _ = shown(monkeypatch, Terminal(), wanted=True)
    assert re.search(r"exporting .* 7/8 ", text), text


@pytest.mark.parametrize(("screen", "wanted"), [(io.StringIO(), True), (Terminal(), False)])
def test_without_a_terminal_or_with_json_nothing_is_shown_and_spark_is_not_asked(
    screen: io.StringIO, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(monkeypatch, screen, wanted=wanted) == ("", 0)


EVENTS = (
    "Flow spark_catalog.default.orders is QUEUED.",
    "Flow spark_catalog.default.revenue is QUEUED.",
    "Flow spark_catalog.default.orders is STARTING.",
    "Run is RUNNING.",
    "Flow spark_catalog.default.orders has COMPLETED.",
)


def flows_shown(monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, *, wanted: bool) -> str:
    """Return what a terminal shows of a run of two flows, one of which has ended."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stderr", screen)
    with run_command._flows_shown(shown=wanted) as tell:
        for event in EVENTS:
            tell(event)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())


def test_a_declarative_pipeline_shows_how_many_of_its_flows_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = flows_shown(monkeypatch, Terminal(), wanted=True)
    assert re.search(r"running .* 1/2 ", text), text
    assert all(event in text for event in EVENTS)


def test_a_declarative_pipeline_shows_messages_beside_json_and_nothing_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert flows_shown(monkeypatch, Terminal(), wanted=False).splitlines() == list(EVENTS)
    assert flows_shown(monkeypatch, io.StringIO(), wanted=True) == ""
