"""Brokers without sockets on any disk, batches as clients send them, and what a partition holds of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from support.clocks import HookedFiles

from cordwood.broker.fetching import PartitionFetch
from cordwood.broker.node import Node
from cordwood.config.loading import load_broker_config
from cordwood.disk.files import Files, os_error
from cordwood.disk.memory import MemoryFiles
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.host.clock import Clock
from cordwood.server.broker import open_node

DATA = "/data"
EVERYTHING = 1 << 30


class BreakableFiles(HookedFiles):
    """A disk whose calls of some kinds fail with an errno, from `fail` until `heal`."""

    def __init__(self, inner: Files | None = None) -> None:
        super().__init__(inner or MemoryFiles())
        self._kinds: tuple[str, ...] = ()
        self._code = 0
        self._within = ""
        self.before = self._fail

    def fail(self, *kinds: str, code: int, within: str = "") -> None:
        """Let calls of these kinds, about a path that contains *within*, fail from now on."""
        self._kinds, self._code, self._within = kinds, code, within

    def heal(self) -> None:
        self._kinds = ()

    def _fail(self, kind: str, path: str) -> None:
        if kind in self._kinds and self._within in path:
            raise os_error(self._code, path)


def node_on(files: Files, settings: Mapping[str, str] | None = None, clock: Clock | None = None) -> Node:
    """Open the data directory of *files* as the server does; whoever calls this closes it."""
    return open_node(DATA, load_broker_config(settings or {}, environment={})[0], files, clock)


@contextmanager
def open_on(
    files: Files, settings: Mapping[str, str] | None = None, clock: Clock | None = None
) -> Iterator[Node]:
    """Have a node for as long as the context lasts."""
    node = node_on(files, settings, clock)
    try:
        yield node
    finally:
        node.directory.close()


def batch_of(
    *values: bytes, producer: tuple[int, int, int] | None = None, timestamp: int = 1_000
) -> memoryview:
    """Return a batch of one record a value; *producer* is its id, epoch and first sequence."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    options = BatchOptions(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return memoryview(batch.encode_records([(None, value) for value in values], timestamp, options))


def values_in(frames: Sequence[memoryview]) -> list[bytes]:
    """Return the values of all records in *frames*."""
    return [
        record.value or b""
        for frame in frames
        for header in batch.scan(bytes(frame)).headers()
        for record in batch.decode_records(bytes(frame), header)
    ]


def values_of(node: Node, topic: str, partition: int = 0) -> list[bytes]:
    """Return the values of all records that can be read of a partition."""
    offset = node.find_offset(topic, partition, -2).offset
    (got,) = node.read([PartitionFetch(topic, partition, offset, EVERYTHING)], EVERYTHING).each
    assert got.error is None, got.error
    return values_in(got.frames)
