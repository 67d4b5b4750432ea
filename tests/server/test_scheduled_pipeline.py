"""The pipeline under a scheduler: in whichever order its threads run, what is answered is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from broker.nodes import batch_of, node_on
from support.scheduling import Scheduler
from support.seeds import seeds_from

from cordwood.broker import Placed
from cordwood.disk import MemoryFiles
from cordwood.server.pipeline import Outcome, Pipeline
from cordwood.server.recompressing import Batch

REQUESTS = 12
PARTITIONS = 3


def played(seed: int) -> tuple[list[str], list[tuple[int, int, int]]]:
    """Append while the seed decides who runs; return who ran, and the answers in their order."""
    scheduler = Scheduler(seed)
    node = node_on(MemoryFiles(), clock=scheduler.clock)
    node.topics.create("orders", PARTITIONS)
    posted: list[Callable[[], None]] = []
    answered: list[tuple[int, int, int]] = []
    wrong: list[tuple[int, Outcome]] = []

    def done(request: int, outcomes: Sequence[Outcome]) -> None:
        (outcome,) = outcomes
        # What is raised here would be logged as one request's bug.
        if not isinstance(outcome, Placed) or outcome.log.high_watermark < outcome.next_offset:
            wrong.append((request, outcome))
        partition = outcome.log.state.partition if isinstance(outcome, Placed) else -1
        answered.append((request, partition, getattr(outcome, "base_offset", -1)))

    def deliver() -> None:
        while posted:
            posted.pop(0)()

    pipeline = Pipeline(node, scheduler.host, posted.append, lambda advance: None, lambda error: None)
    for request in range(REQUESTS):
        data = memoryview(bytearray(batch_of(b"%d" % request)))
        pipeline.submit(
            [Batch("orders", request % PARTITIONS, data)],
            -1,
            lambda outcomes, request=request: done(request, outcomes),  # type: ignore[misc]
        )
        deliver()
    while len(answered) < REQUESTS:
        scheduler.wait()
        deliver()
    pipeline.close()
    node.directory.close()
    assert wrong == [], "refused, or answered before it was durable"
    return scheduler.trace, answered


@pytest.mark.parametrize("seed", seeds_from(0, 20))
def test_an_answer_comes_after_the_sync_whoever_runs_first(seed: int) -> None:
    _, answered = played(seed)
    assert sorted(request for request, _, _ in answered) == list(range(REQUESTS))
    for partition in range(PARTITIONS):
        # Requests of one partition are appended and answered in the order in which they came.
        own = [(request, offset) for request, number, offset in answered if number == partition]
        assert own == [(partition + PARTITIONS * n, n) for n in range(REQUESTS // PARTITIONS)]


def test_the_seed_decides_who_runs() -> None:
    """The same seed is the same run; others are others, or the scheduler would schedule nothing."""
    assert played(7) == played(7)
    traces = {tuple(played(seed)[0]) for seed in seeds_from(0, 6)}
    assert len(traces) == 6
    assert {name for trace in traces for name in trace} >= {"test", "writer", "committer", "sync_0"}
