"""Idempotent producers: batches as a client sends them, and a partition that takes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import pytest

from cordwood.config.loading import load_broker_config
from cordwood.disk.files import Files, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.formats.format import ReceivedFrame
from cordwood.formats.native import BatchFormat
from cordwood.formats.receiving import BatchTerms
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.log import WritablePartition
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.storage.log.producers import ProducersSnapshot
from cordwood.storage.log.producers import keeper as producer_keeper
from cordwood.telemetry import Telemetry
from support.clocks import ManualClock
from support.disks import image
from support.logs import disk_of

DATA = "/data"
DIRECTORY = f"{DATA}/topics/orders/0"
SNAPSHOT = f"{DIRECTORY}/producers.json"
#: A segment for every few batches.
ROLLING = {"segment.bytes": "500", "index.interval.bytes": "100"}
SEQUENCES = 1 << 31


class Sent(NamedTuple):
    """One batch of a producer: what it calls itself, and a record of each value."""

    producer: int
    epoch: int
    sequence: int
    values: tuple[bytes, ...]

    @property
    def next_sequence(self) -> int:
        """The sequence that comes after its last record."""
        return (self.sequence + len(self.values)) % SEQUENCES

    def records(self) -> Iterator[tuple[int, int, int]]:
        """Yield what must be stored at most once: producer, epoch and sequence of each record."""
        for i in range(len(self.values)):
            yield self.producer, self.epoch, (self.sequence + i) % SEQUENCES


def encode(sent: Sent, timestamp: int = 1_000) -> bytearray:
    """Return the batch in the bytes that a client would send."""
    options = BatchOptions(producer_id=sent.producer, producer_epoch=sent.epoch, base_sequence=sent.sequence)
    return batch.encode_records([(None, value) for value in sent.values], timestamp, options)


def receive(sent: Sent) -> ReceivedFrame:
    """Return the batch as the log takes it, in a buffer of its own: every try of a client is a new one."""
    return BatchFormat().receive(memoryview(encode(sent)), BatchTerms(1 << 20))


def send(log: WritablePartition, sent: Sent) -> tuple[int, int]:
    """Append the batch, not durable yet; return the offsets [base, next) that the client is told."""
    appended = log.append_received(receive(sent))
    return appended.base_offset, appended.next_offset


def stored_batches(log: WritablePartition) -> list[tuple[Sent, int]]:
    """Return every batch of a producer that can be read, in order, each with its base offset."""
    found = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        fetched = log.read(offset, 1 << 20)
        for run in fetched.runs:
            data = bytes(run.data)
            for header in batch.scan(data).headers():
                if header.producer_id >= 0:
                    values = tuple(record.value or b"" for record in batch.decode_records(data, header))
                    sent = Sent(header.producer_id, header.producer_epoch, header.base_sequence, values)
                    found.append((sent, header.base_offset))
        offset = fetched.next_offset
    return found


@dataclass
class Bench:
    """One partition, opened, closed and killed at will."""

    files: Files = field(default_factory=MemoryFiles)
    settings: dict[str, str] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    overrides: dict[str, str] = field(default_factory=dict)

    def open(self) -> PartitionLog:
        self.data = DataDirectory(
            Opening(
                files=self.files,
                path=DATA,
                clock=self.clock,
                telemetry=Telemetry(),
                holder="a test",
                uuid="u-1",
                node_name="here",
                config=load_broker_config(environment={}, overrides=self.overrides)[0],
                mapped=False,
            )
        )
        self.data.topics.create("orders", "id-1", 1, self.settings)
        return self.data.partitions.own("orders", 0)

    def close(self) -> None:
        self.data.close()

    def left(self, changed: dict[str, bytes] | None = None, gone: tuple[str, ...] = ()) -> Bench:
        """What a killed process would leave now, with some files changed or gone, to be opened again."""
        return Bench(
            disk_of(image(self.files, DATA), changed, gone), self.settings, self.clock, self.overrides
        )

    def saved(self) -> ProducersSnapshot:
        """What the snapshot on disk says."""
        return snapshot_in(read_file(self.files, SNAPSHOT))


def snapshot_in(data: bytes) -> ProducersSnapshot:
    """Return what the bytes of a snapshot say."""
    return msgspec.convert(msgspec.json.decode(data)["body"], ProducersSnapshot)


@contextlib.contextmanager
def snapshots_every(size: int) -> Iterator[None]:
    """Save what is known of producers after so many bytes of appends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer_keeper, "SNAPSHOT_BYTES", size)
        yield
