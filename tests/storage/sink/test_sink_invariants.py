"""Invariants of the sink: each planted fault is seen by the next ordinary call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.publishing import QUERY, frame_of, open_log, stage, target_of, writer

from cordwood.disk.memory import MemoryFiles
from cordwood.storage.sink.journal import Intent, Journal, PlannedAppend
from cordwood.storage.sink.publishing import Publisher
from cordwood.storage.sink.staging import Share, ShareWriter, StagedTarget

TARGET = StagedTarget("t", "id", 0)


def bytes_without_frames(staged: ShareWriter) -> None:
    staged._held_bytes = -len(frame_of(b"second"))


def a_share_without_a_name(staged: ShareWriter) -> None:
    staged._shares.append(Share("no name", ()))


def more_in_memory_than_allowed(staged: ShareWriter) -> None:
    staged._held_bytes = 1 << 40
    staged._spill = lambda section: None  # type: ignore[method-assign]


@pytest.mark.parametrize("plant", [bytes_without_frames, a_share_without_a_name, more_in_memory_than_allowed])
def test_a_share_writer_whose_counts_disagree_is_caught(plant: Callable[[ShareWriter], None]) -> None:
    staged = writer(MemoryFiles())
    plant(staged)
    with pytest.raises(AssertionError):
        staged.append(TARGET, frame_of(b"second"))


def test_frames_left_in_memory_are_caught_when_a_task_ends() -> None:
    staged = writer(MemoryFiles())
    staged.append(TARGET, frame_of(b"first"))
    staged._write_held = lambda: None  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="left in memory"):
        staged.finish()


@pytest.mark.parametrize(
    ("journal", "reason"),
    [
        (Journal(query="q", published=3, intent=Intent(3, (), ())), "twice"),
        (Journal(query="q", published=-2), "cannot be"),
        (Journal(query="q", intent=Intent(0, (), (PlannedAppend("t", "id", 0, -1),))), "negative"),
        (
            Journal(
                query="q",
                intent=Intent(0, (), (PlannedAppend("t", "id", 0, 1), PlannedAppend("t", "id", 0, 2))),
            ),
            "two places",
        ),
    ],
)
def test_a_journal_that_cannot_be_is_caught_before_it_is_written(journal: Journal, reason: str) -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        log.topic("t", partitions=1)
        data = log.data_directory
        publisher: Publisher = data.publisher
        with pytest.raises(AssertionError, match=reason):
            publisher._write(journal)
        assert not files.exists("/data/meta/sink")
        # And one that can be is written.
        shares = stage(files, data, {("t", 0): [[b"value"]]})
        assert target_of(data, "t", 0) == shares[0].sections[0].target
        assert publisher.publish(QUERY, 0, shares)
