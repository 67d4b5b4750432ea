"""What is taken of one partition beside its writer: its segments as they were at one moment, and the rest.

The writer may truncate, compact or delete meanwhile. A file that was taken then may be another one than was
meant, or look damaged; so before anything is built on it, the source is looked at again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from cordwood.errors import MetadataDamaged, StorageError
from cordwood.formats.format import Format
from cordwood.storage.backup_record import FileRecord, How
from cordwood.storage.backup_segment import (
    COPY_BYTES,
    Brought,
    Carrier,
    contradiction,
    put_file,
    remove,
    stored_indexes,
)
from cordwood.storage.cleaner_checkpoint import checkpoint_path
from cordwood.storage.files import File, Files, read_file, write_all, write_atomically
from cordwood.storage.open_files import OpenFiles
from cordwood.storage.owner_index import SUFFIX as OWNERS
from cordwood.storage.partition_state import SealedInfo, state_path
from cordwood.storage.producers import read_snapshot, snapshot_path, write_snapshot
from cordwood.storage.read_only import ReadOnlyPartition
from cordwood.storage.reindex import Damaged
from cordwood.storage.segment import Segment, segment_path, sidecar_beside, sidecar_end
from cordwood.storage.swapping import SWAP_SUFFIX, swap_path
from cordwood.storage.view import View

#: How often a partition that changes while it is read is begun again.
TRIES = 8
_INDEX_SUFFIXES = ("idx", "timeidx")


class NeverUsed(Exception):
    """The partition has no directory yet."""


class Moved(Exception):
    """The source changed so that what was read of it does not fit together."""


class SourcePartition(ReadOnlyPartition):
    """A partition beside its writer, as a whole."""

    def look(self) -> View:
        """Return what is published now.

        Raises:
            NeverUsed: If nothing was ever appended.
            UnknownTopic: If it was there before and its topic was deleted.
            MetadataDamaged: If what says which segments there are cannot be read.
        """
        view, open_files = self.view(), OpenFiles(self._open_files.files, mapped=False)
        # Segments of our own: those of a reader are told of later changes, and keep files open.
        segments = []
        for seen in view.segments:
            segment = Segment(open_files, self._directory, seen.info, seen.format)
            segment.path = seen.path
            segments.append(segment)
        return view._replace(segments=tuple(segments))

    @property
    def format(self) -> Format:
        """How records are stored here."""
        return self._format

    @property
    def frame_size_max(self) -> int:
        """The largest frame that may be stored here, in bytes."""
        return self._frame_size_max

    def _nothing_yet(self, first: int) -> View:
        raise NeverUsed


def restless(directory: str) -> StorageError:
    """Return the error for a partition that never stood still for long enough."""
    return StorageError(f"{directory} changed whenever it was copied; try again when less goes on")


class Taking:
    """Takes the segments of *source*, whose directory is *directory*, with *carrier*. One user.

    ``hows`` says how sealed segments came, ``damaged`` what is wrong in the source, ``copied`` how many bytes
    were copied so far.
    """

    view: View

    def __init__(self, carrier: Carrier, source: SourcePartition, directory: str) -> None:
        self.carrier = carrier
        self.copied = 0
        self.active_damaged = False
        self.hows: dict[int, FileRecord] = {}
        self.damaged: list[Damaged] = []
        self._files: Files = carrier.files
        self._source = source
        self.directory = directory
        self._durable_names = False

    def begin(self) -> View:
        """Begin with what is published now, and return it. Raises as `SourcePartition.look` does."""
        self.view = self._settled_look()
        self.hows, self.damaged, self.active_damaged = {}, [], False
        self._sync_names()
        return self.view

    def _settled_look(self) -> View:
        """Return what is published now. What looks damaged may be a change under way: look again."""
        for _ in range(TRIES):
            before = self._state_bytes()
            try:
                return self._source.look()
            except MetadataDamaged as error:
                damage, same = error, self._state_bytes() == before
        # Damage stands still; a writer that changes its segments under every look has none.
        raise damage if same else restless(self.directory)

    def _state_bytes(self) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return read_file(self._files, state_path(self.directory))
        return None

    def _sync_names(self) -> None:
        """Make what the source's `partition.json` says durable, where that is allowed.

        It may have been renamed and not synced yet. If a power cut took that back, a segment that we saw
        sealed would take appends again, and a link to it would grow. Without this nothing is linked.
        """
        self._durable_names = False
        with contextlib.suppress(OSError):
            self._files.sync_directory(self.directory)
            self._durable_names = True

    def bring_sealed(self, at: int, directory: str, path: str, *, link: bool) -> SealedInfo:
        """Bring a sealed segment to *path*, with its indexes; return what is to be said of it."""
        segment = self.view.segments[at]
        self._bring_sidecar(at, path)
        brought = self.carrier.bring(segment, self.view.bounds(at), path, link=link and self._durable_names)
        return self._sealed(at, brought, directory, path)

    def _sealed(self, at: int, brought: Brought, directory: str, path: str) -> SealedInfo:
        segment, info = self.view.segments[at], self.view.segments[at].info
        damage = brought.damage or contradiction(info, segment.path, brought)
        sha256, how = brought.sha256, brought.how
        if damage is not None:
            self._check_unmoved()
            self.damaged.append(damage)
            self.copied += self.carrier.copy_as_it_is(segment, info.size, path)
            # A hash of what is there would vouch for the damage.
            sha256, how = info.sha256, "damaged"
        else:
            self.copied += brought.copied_bytes
        indexes = None if damage is not None else brought.indexes
        prepared = path.endswith(f".{SWAP_SUFFIX}")
        if indexes is None:
            indexes = self._source_indexes(info)
        for suffix, entries in _kept_indexes(segment, indexes):
            name = swap_path(directory, info.base, suffix) if prepared else None
            put_file(self._files, name or segment_path(directory, info.base, suffix), entries)
        self._bring_owners(segment, (swap_path if prepared else segment_path)(directory, info.base, OWNERS))
        self.note(info, how, sha256)
        return msgspec.structs.replace(info, sha256=sha256)

    def _source_indexes(self, info: SealedInfo) -> tuple[bytes, bytes] | None:
        prepared = self.view.state.swapping == info.base
        for path in (swap_path, segment_path) if prepared else (segment_path,):
            paths = path(self.directory, info.base, "idx"), path(self.directory, info.base, "timeidx")
            found = stored_indexes(self._files, info, paths)
            if found is not None:
                return found
        return None

    def seal_active(self, at: int, directory: str, start: int) -> SealedInfo:
        """Carry on the segment that took appends at the last backup and is sealed now."""
        segment = self.view.segments[at]
        path = segment_path(directory, segment.base, "log")
        sha256, indexes, damage = self._carry_on(at, start, path)
        brought = Brought("copied", 0, sha256, indexes, damage)
        info, how = segment.info, brought.how
        wrong = damage or contradiction(info, segment.path, brought)
        if wrong is not None:
            self._check_unmoved()
            self.damaged.append(wrong)
            sha256, how, indexes = info.sha256, "damaged", None
        if indexes is None:
            indexes = self._source_indexes(info)
        for suffix, entries in _kept_indexes(segment, indexes):
            write_atomically(self._files, segment_path(directory, info.base, suffix), entries)
        self._bring_owners(segment, segment_path(directory, info.base, OWNERS))
        self.note(info, how, sha256)
        return msgspec.structs.replace(info, sha256=sha256)

    def bring_active(self, directory: str, start: int) -> tuple[bytes, bytes]:
        """Copy the active segment from *start* up to the mark, and write its indexes; return them."""
        segment, at = self.view.segments[-1], len(self.view.segments) - 1
        path = segment_path(directory, segment.base, "log")
        if not start:
            remove(self._files, path)
        _, indexes, damage = self._carry_on(at, start, path)
        if damage is not None:
            self._check_unmoved()
            self.damaged.append(damage)
            self.active_damaged = True
        entries = indexes or (b"", b"")
        for suffix, data in _kept_indexes(segment, entries):
            write_atomically(self._files, segment_path(directory, segment.base, suffix), data)
        return entries

    def _carry_on(
        self, at: int, start: int, path: str
    ) -> tuple[str | None, tuple[bytes, bytes] | None, Damaged | None]:
        """Copy a segment from *start* on to *path*, which holds what comes before, and check it all.

        If what came before is damaged, all of it is copied. If what comes now is, that stays as it is.
        """
        files, carrier = self._files, self.carrier
        segment, bounds = self.view.segments[at], self.view.bounds(at)
        self._bring_sidecar(at, path)
        for begin in (start, 0) if start else (0,):
            file = files.open(path, "write" if files.exists(path) else "create")
            with contextlib.closing(file):
                copied = carrier.copy_bytes(segment, file, begin, bounds.end)
                file.truncate(copied)
                file.sync()
            self.copied += copied - begin
            if not carrier.verify and copied == bounds.end:
                return None, None, None
            checked = carrier.check(segment, bounds, path)
            if checked.damage is None:
                return checked.sha256, checked.indexes, None
            self._check_unmoved()
            if (checked.damage.position or 0) >= begin:
                break
        return None, None, checked.damage

    def _bring_sidecar(self, at: int, path: str) -> None:
        """Copy what the source has beside a store to beside *path*, where the store is to be. Synced.

        What cannot be read there is missing here too, and is found when the segment is checked.
        """
        segment, bounds = self.view.segments[at], self.view.bounds(at)
        sidecar = segment.format.sidecar
        if sidecar is None:
            return
        target = sidecar_beside(path, sidecar)
        remove(self._files, target)
        end = sidecar_end(sidecar, segment.base, bounds.next_offset)
        with contextlib.closing(self._files.open(target, "create")) as file:
            position = 0
            with contextlib.suppress(FileNotFoundError):
                while position < end:
                    data = segment.read_sidecar(position, min(COPY_BYTES, end - position))
                    if not len(data):
                        break
                    write_all(file, position, data)
                    position += len(data)
                    self.carrier.advance(len(data))
            file.sync()

    def _bring_owners(self, segment: Segment, target: str) -> None:
        """Copy the dense index of a sealed segment of the shared log to *target*. Synced, its name aside.

        Derived: of what cannot be read there, the rest is built when the log is opened.
        """
        if segment.format.name != "shared":
            return
        remove(self._files, target)
        swapping = self.view.state.swapping == segment.base
        for find in (swap_path, segment_path) if swapping else (segment_path,):
            path = find(self.directory, segment.base, OWNERS)
            if self._files.exists(path):
                break
        with contextlib.closing(self._files.open(target, "create")) as file:
            with contextlib.suppress(FileNotFoundError):
                _copy_all(self._files, path, file)
            file.sync()

    def bring_beside(self, directory: str) -> None:
        """Bring what is derived and saves time: producers the log covers, the cleaner's note."""
        files, state = self._files, self.view.state
        snapshot = read_snapshot(files, self.directory, state, self.view.high_watermark)
        there = read_snapshot(files, directory, state, self.view.high_watermark)
        if snapshot is not None and snapshot.leader_epoch <= state.leader_epoch:
            if there != snapshot:
                write_snapshot(files, directory, snapshot)
        elif there is None:
            remove(files, snapshot_path(directory))
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            note = read_file(files, checkpoint_path(self.directory))
            if msgspec.json.decode(note, type=_Note).leader_epoch <= state.leader_epoch:
                path = checkpoint_path(directory)
                if not files.exists(path) or read_file(files, path) != note:
                    write_atomically(files, path, note)

    def note(self, info: SealedInfo, how: How, sha256: str | None) -> None:
        """Write down how a sealed segment came."""
        self.hows[info.base] = FileRecord(
            info.base, info.next_offset, info.generation, info.size, sha256, how
        )

    def confirm(self) -> None:
        """Begin again if a file we took may be another one's: after a truncation, or a compaction of it."""
        now = self._settled_look().state
        state = self.view.state
        generations = {**{i.base: i.generation for i in now.sealed}, now.active_base: now.active_generation}
        seen = {**{i.base: i.generation for i in state.sealed}, state.active_base: state.active_generation}
        same = all(generations.get(base, seen[base]) == seen[base] for base in seen)
        if now.leader_epoch != state.leader_epoch or not same:
            raise Moved

    def _check_unmoved(self) -> None:
        """Begin again if what looks damaged may be the work of a change meanwhile."""
        now = self._settled_look()
        paths = [segment.path for segment in now.segments]
        if now.state != self.view.state or paths != [segment.path for segment in self.view.segments]:
            raise Moved


def _copy_all(files: Files, path: str, target: File) -> None:
    """Copy what is at *path* to *target*."""
    with contextlib.closing(files.open(path, "read")) as file:
        for position in range(0, file.size(), COPY_BYTES):
            write_all(target, position, file.read_at(position, COPY_BYTES))


def _kept_indexes(segment: Segment, indexes: tuple[bytes, bytes] | None) -> Iterator[tuple[str, bytes]]:
    """Yield the suffix and the entries of each index that has a file of its own."""
    for suffix, entries in zip(_INDEX_SUFFIXES, indexes or (), strict=False):
        if suffix != "idx" or segment.has_sparse_index:
            yield suffix, entries


class _Note(msgspec.Struct):
    """What is asked of a cleaner's checkpoint."""

    leader_epoch: int = 0
