"""The history of a partition: what a snapshot of state is tied to, and checked against.

The files of the log and of its chain are read as they are published, so that a snapshot can be taken and used
beside the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from threading import Event
from typing import NamedTuple, Protocol

import msgspec

from cordwood.config import TopicConfig
from cordwood.disk import Files, read_published
from cordwood.errors import MetadataDamaged
from cordwood.formats.per_record import NO_HASH
from cordwood.integrity import merkle
from cordwood.storage.chain import KeptChain, frames_of, kept_chain
from cordwood.storage.directory.snapshot_file import NO_ANCHOR, Anchor, AnchorKind, StateSnapshot
from cordwood.storage.log import (
    OpenFiles,
    PartitionState,
    View,
    mark_path,
    newest_mark,
    read_state,
    synced_bound,
)
from cordwood.storage.meta import TopicEntry
from cordwood.storage.readonly import ReadOnlyPartition

#: The format whose records contain the hash of the record before.
_CHAINED = "kimberlite"


class SharedIds(Protocol):
    """A partition of the shared log; its records have ids there."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def high_watermark(self) -> int:
        """The first offset that consumers may not read."""

    def id_of(self, offset: int) -> int:
        """Return the id of the record at *offset*, which can be read."""


class Contradiction(NamedTuple):
    """Why a snapshot cannot be used. ``refuted``: its hash is not that of the log, which was not cut."""

    sentence: str
    refuted: bool = False


_CUT = Contradiction("is of records that were cut from the log since")


class History:
    """The history of a partition with files of its own, in *directory*. Any thread may call any method.

    *commit* adds the leaves of all records to the chain, if this process may do that.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        entry: TopicEntry,
        partition: int,
        config: TopicConfig,
        commit: Callable[[], object],
    ) -> None:
        self._files = files
        self._directory = directory
        self._entry = entry
        self._partition = partition
        self._config = config
        self._commit = commit

    def offsets(self) -> tuple[int, int]:
        """Return the first offset that can be read, and the one after the last synced record.

        Raises:
            MetadataDamaged: If the state of the partition cannot be read.
        """
        state = read_state(self._files, self._directory)
        return state.log_start_offset, self._synced(state)

    def _synced(self, state: PartitionState) -> int:
        marks, _ = read_published(self._files, mark_path(self._directory))
        return synced_bound(state, newest_mark(state, marks, self._directory)).next_offset

    def tied(self, snapshot: StateSnapshot) -> StateSnapshot:
        """Return *snapshot* with its place in the log and the hash of the chain there."""
        last = self._last(snapshot.offset)
        epoch = _epoch_of(read_state(self._files, self._directory), last)
        return snapshot._replace(last=last, epoch=epoch, anchor=self._anchor(snapshot.offset, last))

    def _last(self, offset: int) -> int:
        """Return the number of the record before *offset* in the log that has the chain, -1 without one."""
        return offset - 1

    def _anchor(self, offset: int, last: int) -> Anchor:
        if last < 0:
            return NO_ANCHOR
        if self._is_chained:
            found = self.record_hash_before(offset)
            return NO_ANCHOR if found is None else Anchor(AnchorKind.RECORD, found)
        self._commit()
        with kept_chain(self._files, self._directory) as chain:
            leaf = None if chain is None else chain.find(last)
            if chain is None or leaf is None:
                return NO_ANCHOR
            return Anchor(AnchorKind.TREE, chain.root(leaf + 1), leaf + 1)

    @property
    def _is_chained(self) -> bool:
        return read_state(self._files, self._directory).record_format == _CHAINED

    def contradiction(self, snapshot: StateSnapshot) -> Contradiction | None:
        """Return why *snapshot* is not of this history, None if it is.

        Raises:
            MetadataDamaged: If the state of the partition cannot be read.
        """
        if snapshot.epoch != _epoch_of(read_state(self._files, self._directory), snapshot.last):
            return _CUT
        match snapshot.anchor.kind:
            case AnchorKind.RECORD if self._is_chained:
                return self._wrong_record(snapshot)
            case AnchorKind.TREE:
                try:
                    return self._wrong_tree(snapshot)
                except MetadataDamaged as error:
                    return Contradiction(f"cannot be compared with the chain: {error}")
        return None

    def _wrong_record(self, snapshot: StateSnapshot) -> Contradiction | None:
        found, said = self.record_hash_before(snapshot.offset), snapshot.anchor.hash
        if found is None:
            return Contradiction("cannot be compared with the record before its offset, which is gone")
        if found == said:
            return None
        return _another_history(
            f"the record before its offset had the hash {said.hex()}, in the log it has {found.hex()}"
        )

    def _wrong_tree(self, snapshot: StateSnapshot) -> Contradiction | None:
        _, said, leaves = snapshot.anchor
        with kept_chain(self._files, self._directory) as chain:
            if chain is None:
                return Contradiction("cannot be compared with the chain, which is gone")
            if not 0 < leaves <= chain.head.size:
                return _another_history(f"it is of {leaves} leaves, but there are {chain.head.size}")
            first, end = chain.entry(leaves - 1)
            if not first <= snapshot.last < end:
                return _another_history(f"leaf {leaves - 1} is not that of the record before its offset")
            found = _root(chain, leaves, said)
            if found != said:
                return _another_history(
                    f"{leaves} leaves had the root {said.hex()}, in the chain they have {found.hex()}"
                )
            cuts = [each for each in chain.statements() if each.leaf >= leaves and each.is_cut]
            if any(each.start <= snapshot.last for each in cuts):
                return _CUT
        return None

    def record_hash_before(self, offset: int) -> bytes | None:
        """Return the hash of the record before *offset*, None if that can no longer be read.

        Only in the format kimberlite. The record may be below the log start, as long as its segment is there,
        and the first record of the segments has its hash.
        """
        log = ReadOnlyPartition(
            OpenFiles(self._files, mapped=False),
            self._directory,
            self._entry,
            self._partition,
            self._config.stored_bytes_max,
            Event(),
        )
        view = log.view()
        first = view.segments[0].base
        if offset == first:
            return bytes.fromhex(view.segments[0].info.before) or NO_HASH
        if not first < offset <= view.high_watermark:
            return None

        def frame(view: View) -> bytes:
            lowered = msgspec.structs.replace(view.state, log_start_offset=first)
            read = view._replace(state=lowered).read(offset - 1, 1, view.high_watermark)
            return next(bytes(data) for at, _, data in frames_of(read.runs[0]) if at == offset - 1)

        return sha256(log.with_view(frame)).digest()


class SharedHistory(History):
    """The history of a partition in the shared log, whose files are in *directory*."""

    def __init__(self, files: Files, directory: str, ids: SharedIds, commit: Callable[[], object]) -> None:
        self._files = files
        self._directory = directory
        self._ids = ids
        self._commit = commit

    def offsets(self) -> tuple[int, int]:
        """Return the first offset that can be read, and the one after the last synced record."""
        start, end = self._ids.log_start_offset, self._ids.high_watermark
        # Under a weak sync policy records may be read that are not synced.
        synced = self._synced(read_state(self._files, self._directory))
        while end > start and self._ids.id_of(end - 1) >= synced:
            end -= 1
        return start, end

    def _last(self, offset: int) -> int:
        # Of a record that retention removed the id is not known any more.
        return self._ids.id_of(offset - 1) if offset > self._ids.log_start_offset else -1


def _another_history(why: str) -> Contradiction:
    return Contradiction(f"is of another history: {why}", refuted=True)


def _epoch_of(state: PartitionState, number: int) -> int:
    """Return the leader epoch under which the record with that number was appended.

    A truncation raises it, so records appended in place of the cut ones have another epoch.
    """
    return state.epochs_within(max(number, 0), number + 1)[0][1]


def _root(chain: KeptChain, leaves: int, expected: bytes) -> bytes:
    """Return the root over the first *leaves* leaves: from the leaves alone if the tree has another one."""
    found = chain.root(leaves)
    return found if found == expected else merkle.root(chain.recomputed, leaves)
