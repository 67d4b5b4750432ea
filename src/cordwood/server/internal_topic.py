"""Records of the broker's own topics, stored through the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cordwood.broker import Node, Placed
from cordwood.errors import CordwoodError
from cordwood.formats import BatchOptions, encode_records
from cordwood.server.pipeline import Outcome, Pipeline
from cordwood.server.recompressing import Batch

InternalRow = tuple[bytes | None, bytes | None]
"""Key and value of a record."""
#: Records that are not part of a transaction.
PLAIN = BatchOptions()
WhenStored = Callable[[Exception | None], None]
"""Called once records are stored, with the error or None."""
RunInThread = Callable[[Callable[[], object], Callable[[object], None]], None]


class InternalTopic:
    """An internal topic of one partition, created when its first records are stored. On the loop only."""

    PARTITION = 0

    def __init__(
        self,
        name: str,
        node: Node,
        pipeline: Pipeline,
        run_in_thread: RunInThread,
        now_ms: Callable[[], int],
    ) -> None:
        self._name = name
        self._node = node
        self._pipeline = pipeline
        self._run_in_thread = run_in_thread
        self._now_ms = now_ms
        # Records to store once the topic is created, in order; None if no creation is in progress.
        self._held: list[tuple[Sequence[InternalRow], WhenStored, BatchOptions, bool]] | None = None

    def store(
        self,
        rows: Sequence[InternalRow],
        then: WhenStored,
        options: BatchOptions = PLAIN,
        *,
        durable: bool = True,
    ) -> None:
        """Append *rows* in the order of calls, then call *then*: after the sync if *durable*."""
        if self._held is not None:
            self._held.append((rows, then, options, durable))
        elif self._node.topics.find(self._name) is None:
            self._held = [(rows, then, options, durable)]
            self._run_in_thread(lambda: self._node.topics.ensure_internal(self._name), self._made)
        else:
            self._append(rows, then, options, durable)

    def _made(self, made: object) -> None:
        held, self._held = self._held or [], None
        for rows, then, options, durable in held:
            if isinstance(made, Exception):
                then(made)
            else:
                self._append(rows, then, options, durable)

    def _append(
        self, rows: Sequence[InternalRow], then: WhenStored, options: BatchOptions, durable: bool
    ) -> None:
        def done(outcomes: Sequence[Outcome]) -> None:
            (outcome,) = outcomes
            then(None if isinstance(outcome, Placed) else outcome)

        try:
            data = memoryview(encode_records(rows, self._now_ms(), options))
        except CordwoodError as error:
            then(error)
            return
        self._pipeline.submit([Batch(self._name, self.PARTITION, data)], -1 if durable else 0, done)
