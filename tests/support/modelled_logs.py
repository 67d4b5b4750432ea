"""Partitions with transactions on a disk that forgets, each beside the list of what is in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cordwood.config.loading import load_broker_config
from cordwood.disk.memory import MemoryFiles, MemoryInode
from cordwood.formats import Marker, ProducerStamp
from cordwood.records import TopicPartition
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.log import PartitionLog
from cordwood.telemetry import Telemetry
from support.clocks import ManualClock
from support.producing import DATA, Sent
from support.transactions import committed_values, every_value, frame_of_rows

CONFIG = load_broker_config(environment={})[0]
SETTINGS = {"cordwood.chain": "false", "segment.bytes": "2000", "index.interval.bytes": "200"}
Admit = Callable[[ProducerStamp], None]


class ForgetfulInode(MemoryInode):
    """A file that knows how much of it was synced."""

    __slots__ = ("synced",)

    def __init__(self) -> None:
        super().__init__()
        self.synced = 0

    def sync(self) -> None:
        self.synced = len(self.data)


class ForgetfulFiles(MemoryFiles):
    """A disk that may lose what was appended to a file since its last sync. Names are kept."""

    def __init__(self) -> None:
        self._inodes: list[ForgetfulInode] = []
        super().__init__()

    def _new_inode(self) -> ForgetfulInode:
        made = ForgetfulInode()
        self._inodes.append(made)
        return made

    def cut(self, chance: random.Random) -> None:
        """Cut the power: of every file, a part of what was not synced is gone."""
        for inode in self._inodes:
            if inode.names and len(inode.data) > inode.synced:
                inode.data = inode.data[: chance.randint(inode.synced, len(inode.data))]
            inode.sync()
        self._inodes = [inode for inode in self._inodes if inode.names]


@dataclass
class Entry:
    """What one offset has: a record of an attempt of a transaction, a plain record, or a marker."""

    producer_id: int = -1
    epoch: int = -1
    label: int | None = None
    value: bytes | None = None
    committed: bool = False


@dataclass
class ModelledLog:
    """A partition and the list of its entries: what a reader sees is held to the list."""

    place: TopicPartition
    log: PartitionLog
    entries: list[Entry] = field(default_factory=list)
    synced: int = 0

    def send(self, producer_id: int, epoch: int, label: int, admit: Admit) -> None:
        """Append a record of a transaction, unless *admit* raises."""
        before = [each for each in self.entries if (each.producer_id, each.epoch) == (producer_id, epoch)]
        sequence = sum(each.value is not None for each in before)
        value = b"%d-%d" % (label, len(self.entries))
        frame = frame_of_rows(Sent(producer_id, epoch, sequence, (value,)), [(None, value)])
        placed = self.log.append_received(frame, admit=admit)
        self._append(placed.base_offset, Entry(producer_id, epoch, label, value))

    def plain(self) -> None:
        """Append a record that is in no transaction."""
        value = b"plain-%d" % len(self.entries)
        self._append(self.log.append([(None, value)]).base_offset, Entry(value=value))

    def mark(self, marker: Marker) -> None:
        """Append the end of a transaction."""
        placed = self.log.append_marker(marker)
        self._append(placed.base_offset, Entry(marker.producer_id, marker.epoch, committed=marker.committed))

    def _append(self, offset: int, entry: Entry) -> None:
        assert offset == len(self.entries), f"{self.place}: appended at {offset}, not {len(self.entries)}"
        self.entries.append(entry)

    def sync(self) -> None:
        """Sync everything."""
        self.log.commit()
        self.synced = len(self.entries)

    def recovered(self, log: PartitionLog) -> None:
        """Take the log that a power cut has left: all that was synced, and some of the rest."""
        end = log.log_end_offset
        assert self.synced <= end <= len(self.entries), f"{self.place}: {end} is left of {self.synced}"
        del self.entries[end:]
        self.log, self.synced = log, end

    def open_at(self, end: int) -> dict[int, int]:
        """Return the first offset of each transaction without a marker below *end*, by producer id."""
        found: dict[int, int] = {}
        for offset, entry in enumerate(self.entries[:end]):
            if entry.label is not None:
                found.setdefault(entry.producer_id, offset)
            elif entry.value is None:
                found.pop(entry.producer_id, None)
        return found

    def outcomes(self) -> Iterator[tuple[Entry, bool | None]]:
        """Yield each entry with a value, and whether it counts; None if its transaction is open."""
        waiting: dict[int, list[int]] = {}
        outcome: dict[int, bool] = {}
        for offset, entry in enumerate(self.entries):
            if entry.label is not None:
                waiting.setdefault(entry.producer_id, []).append(offset)
            elif entry.value is not None:
                outcome[offset] = True
            else:
                ended = waiting.pop(entry.producer_id, ())
                outcome |= dict.fromkeys(ended, entry.committed)
        for offset, entry in enumerate(self.entries):
            if entry.value is not None:
                yield entry, outcome.get(offset)

    def check(self) -> int:
        """Hold both views of the log to the list; return how many entries were compared."""
        where, end = f"{self.place}", self.log.high_watermark
        assert self.synced <= end <= len(self.entries), f"{where}: the high watermark is {end}"
        # A marker counts when it is appended: its decision was synced before.
        opened = self.open_at(len(self.entries))
        stable = min([end, *opened.values()])
        assert self.log.last_stable_offset == stable, (
            f"{where}: {self.log.last_stable_offset} is stable, not {stable}"
        )
        ended = list(self.outcomes())
        values = [entry.value for entry in self.entries[:end] if entry.value is not None]
        assert every_value(self.log) == values, f"{where}: read_uncommitted sees something else"
        below = sum(entry.value is not None for entry in self.entries[:stable])
        counting = [entry.value for entry, counts in ended[:below] if counts]
        assert committed_values(self.log) == counting, f"{where}: read_committed sees something else"
        known = {each.producer_id: each.first_offset for each in self.log.open_transactions()}
        assert known == opened, f"{where}: {known} are open, not {opened}"
        return end


class ModelledLogs:
    """The partitions of one data directory, and its power cuts."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.files = ForgetfulFiles()
        self._data = self._open()
        for name, partitions in topics.items():
            self._data.topics.create(name, f"id-{name}", partitions, SETTINGS)
        places = [(name, number) for name, partitions in topics.items() for number in range(partitions)]
        self.logs = {place: ModelledLog(place, self._data.partitions.own(*place)) for place in places}

    def _open(self) -> DataDirectory:
        return DataDirectory(
            Opening(
                files=self.files,
                path=DATA,
                clock=ManualClock(),
                telemetry=Telemetry(),
                holder="a test",
                uuid="u-1",
                node_name="here",
                config=CONFIG,
                mapped=False,
            )
        )

    def cut_power(self, chance: random.Random) -> None:
        """Lose a part of what was not synced, and open what is left."""
        self._data.abandon()
        self.files.cut(chance)
        self._data = self._open()
        for place, log in self.logs.items():
            log.recovered(self._data.partitions.own(*place))

    def check(self) -> int:
        """Hold every view to its list; return how many entries were compared."""
        return sum(log.check() for log in self.logs.values())
