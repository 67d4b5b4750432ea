"""Machines that ship their data directories to one bucket. The test makes each step, without a thread."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Event

import cordwood
from cordwood.bucket import BucketOptions, ObjectStore, ShippingLimits
from cordwood.bucket.ownership import list_all, perform, read_manifest
from cordwood.bucket.session import BucketSession
from cordwood.config.loading import load_broker_config
from cordwood.disk import Files, MemoryFiles
from cordwood.formats import batch
from cordwood.host import Host
from cordwood.kernels import INT32_MAX
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.log import WritablePartition
from support.clocks import ManualClock
from support.shipped import never, new_nonce, read_bucket

DATA = "/data"
CONFIG = load_broker_config(environment={})[0]
#: Nothing is written into pages unless the test says so, and what leaves is deleted at once.
LIMITS = ShippingLimits(bytes_max=1 << 40, pieces_max=1 << 40, age_ms=1 << 40, keep_ms=0)


class HurriedEvent(Event):
    """An event that nobody waits for: the time between two tries of a request passes at once."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


class Machine:
    """A machine with a disk of its own, whose data directory is shipped to *store*."""

    def __init__(self, store: ObjectStore, files: Files | None = None, uuid: str = "broker") -> None:
        self.store = store
        self.files: Files = MemoryFiles() if files is None else files
        self.uuid = uuid
        self.clock = ManualClock()
        self.session: BucketSession | None = None
        self.directory: DataDirectory | None = None

    def start(self, *, bucket: bool = True, patient: bool = True) -> DataDirectory:
        """Open the directory, with the bucket unless the test says otherwise; kills what was open before.

        Unless it is *patient*, the first request that is not answered makes it fail.
        """
        self.kill()
        opening = Opening(
            self.files, DATA, CONFIG, clock=self.clock, uuid=self.uuid, node_name="host", secret=b"s" * 32
        )
        if not bucket:
            self.directory = DataDirectory(opening)
            return self.directory
        options = BucketOptions(limits=LIMITS)
        session = BucketSession(
            self.files, DATA, self.store, Host(self.clock, new_event=HurriedEvent), new_nonce(), options
        )
        if not patient:
            session.shipper.give_up_after(-1)
        opening = Opening(
            session.files,
            DATA,
            CONFIG,
            clock=self.clock,
            uuid=self.uuid,
            node_name="host",
            secret=b"s" * 32,
            prepare=session.attach,
        )
        self.directory = DataDirectory(opening)
        self.session = session
        session.begin(self.directory.identity)
        return self.directory

    def ship(self) -> None:
        """Ship what is durable."""
        assert self.session is not None
        self.clock.ms += 1_000
        self.session.shipper.ship()

    def condense(self) -> None:
        """Write the state of the bucket into pages."""
        assert self.session is not None
        self.session.shipper.condense()

    def log(self, topic: str = "t", partition: int = 0) -> WritablePartition:
        """Return a partition of the open directory."""
        assert self.directory is not None
        return self.directory.partitions.writable(topic, partition)

    def append(self, *values: bytes, topic: str = "t", partition: int = 0) -> int:
        """Append records durably, each as a frame; return the offset of the first one."""
        log = self.log(topic, partition)
        first = log.log_end_offset
        for value in values:
            log.append([(None, value)])
        log.commit()
        return first

    def kill(self) -> None:
        """End the process without closing anything."""
        if self.directory is not None:
            self.directory.abandon()
        self.directory = self.session = None


def values(files: Files, topic: str = "t", partition: int = 0, data: str = DATA) -> list[bytes | None]:
    """Return the records of a partition, as somebody reads them who opens the directory beside its owner."""
    with cordwood.open(data, files=files, read_only=True) as log:
        return [record.value for record in log.topic(topic).read(partition)]


def check_objects(store: ObjectStore) -> int:
    """Check that the bucket has just the objects that its state needs; return how many those are."""
    manifest = perform(store, read_manifest(), never).manifest
    tree = read_bucket(store)
    needed = {page.key for page in manifest.pages} | {each.key for each in manifest.departed}
    needed |= {extent.key for _, file in tree.files() for extent in file.extents if extent.key}
    there = [key for kind in ("b/", "m/") for key in perform(store, list_all(kind), never)]
    assert set(there) == {key for key in needed if not key.startswith("w/")}
    pieces = [int(key[2:]) for key in perform(store, list_all("w/"), never)]
    assert all(seq >= manifest.floor for seq in pieces)
    return len(there) + len(pieces)


def frames(log: WritablePartition) -> list[tuple[int, int, bytes]]:
    """Return (offset, leader epoch, content) of every frame of a log of batches."""
    found, offset = [], log.log_start_offset
    while offset < log.high_watermark:
        for run in log.read(offset, 1 << 20).runs:
            data = memoryview(run.data)
            while data:
                header = batch.read_header(data, size_max=INT32_MAX)
                # The content begins after the epoch and its CRC.
                content = bytes(data[21 : header.size])
                found.append((header.base_offset, header.leader_epoch, content))
                data = data[header.size :]
            offset = run.next_offset
    return found


def contents_agree(*logs: Iterable[tuple[int, int, bytes]]) -> None:
    """Check that no (offset, leader epoch) has two contents."""
    known: dict[tuple[int, int], bytes] = {}
    for offset, epoch, content in (each for log in logs for each in log):
        assert known.setdefault((offset, epoch), content) == content, f"two contents at {offset}, {epoch}"
