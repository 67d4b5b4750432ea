"""Read one partition beside its writer: its segments as they were at one moment, and derived files.

The writer may truncate, compact or delete at the same time. A file that was read then may be the wrong one or
look damaged, so the source's state is read again before the file is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import google_crc32c
import msgspec

from cordwood.disk import File, Files, read_file, write_all, write_atomically
from cordwood.errors import MetadataDamaged, StorageError
from cordwood.formats import Format
from cordwood.index import ABORTED_ENTRY_SIZE
from cordwood.storage.backup.record import FileRecord, How
from cordwood.storage.backup.segment import (
    COPY_BYTES,
    SegmentCopier,
    SegmentCopy,
    contradiction,
    put_file,
    remove,
    stored_indexes,
)
from cordwood.storage.log import (
    ABORTED_SUFFIX,
    OpenFiles,
    SealedInfo,
    Segment,
    View,
    aborted_of,
    read_snapshot,
    replay_aborted,
    segment_path,
    sidecar_beside,
    sidecar_end,
    snapshot_path,
    state_path,
    write_snapshot,
)
from cordwood.storage.log.changes import SWAP_SUFFIX, swap_path
from cordwood.storage.maintenance import checkpoint_path
from cordwood.storage.offline import Damaged
from cordwood.storage.readonly import ReadOnlyPartition
from cordwood.storage.shared import SUFFIX as OWNERS

#: How many times a partition is started over because it changed while it was read.
TRIES = 8
_INDEX_SUFFIXES = ("idx", "timeidx")


class NeverUsed(Exception):
    """The partition has no directory yet."""


class SourceChanged(Exception):
    """The source changed, so the files read from it are inconsistent."""


class SourcePartition(ReadOnlyPartition):
    """A partition read beside its writer."""

    def look(self) -> View:
        """Return the published view.

        Raises:
            NeverUsed: If nothing was ever appended.
            UnknownTopic: If its topic was deleted in the meantime.
            MetadataDamaged: If the partition's state cannot be read.
        """
        view, open_files = self.view(), OpenFiles(self._open_files.files, mapped=False)
        # Separate segment objects: those of a reader follow later changes and keep files open.
        segments = []
        for seen in view.segments:
            segment = Segment(open_files, self._directory, seen.info, seen.format)
            segment.path = seen.path
            segments.append(segment)
        if view.state.transactional:
            segments[-1].use_aborted(aborted_of(view, len(segments) - 1))
        return view._replace(segments=tuple(segments))

    @property
    def format(self) -> Format:
        """The format of its records."""
        return self._format

    @property
    def frame_size_max(self) -> int:
        """The largest allowed frame in bytes."""
        return self._frame_size_max

    def _nothing_yet(self, first: int) -> View:
        raise NeverUsed


def unsettled(directory: str) -> StorageError:
    """Return the error for a partition that changed during every attempt."""
    return StorageError(
        f"{directory} changed during every attempt to copy it; try again when it changes less"
    )


class PartitionTransfer:
    """Transfers the segments of *source* from *directory* with *copier*. One user.

    ``hows`` has how each sealed segment was transferred, ``damaged`` the damage in the source, ``copied`` the
    number of copied bytes.
    """

    view: View

    def __init__(self, copier: SegmentCopier, source: SourcePartition, directory: str) -> None:
        self.copier = copier
        self.copied = 0
        self.active_damaged = False
        #: The index of aborted transactions of the active segment.
        self.active_aborted = b""
        self.hows: dict[int, FileRecord] = {}
        self.damaged: list[Damaged] = []
        self._files: Files = copier.files
        self._source = source
        self.directory = directory
        self._durable_names = False

    def begin(self) -> View:
        """Start with the published view and return it. Raises as `SourcePartition.look` does."""
        self.view = self._settled_look()
        self.hows, self.damaged, self.active_damaged = {}, [], False
        self._sync_names()
        return self.view

    def _settled_look(self) -> View:
        """Return the published view. Apparent damage may be a concurrent change, so try again."""
        for _ in range(TRIES):
            before = self._state_bytes()
            try:
                return self._source.look()
            except MetadataDamaged as error:
                damage, same = error, self._state_bytes() == before
        # Real damage stays the same; a state that differs at every attempt is a writer at work.
        raise damage if same else unsettled(self.directory)

    def _state_bytes(self) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return read_file(self._files, state_path(self.directory))
        return None

    def _sync_names(self) -> None:
        """Sync the name of the source's `partition.json`, if permitted.

        Its rename may not be synced yet. If a power cut undid the rename, a segment that we saw as sealed
        would take appends again, and a link to it would grow. Without this sync, nothing is linked.
        """
        self._durable_names = False
        with contextlib.suppress(OSError):
            self._files.sync_directory(self.directory)
            self._durable_names = True

    def copy_sealed(self, at: int, directory: str, path: str, *, link: bool) -> SealedInfo:
        """Transfer a sealed segment and its indexes to *path*; return its description."""
        segment = self.view.segments[at]
        self._copy_sidecar(at, path)
        brought = self.copier.copy(segment, self.view.bounds(at), path, link=link and self._durable_names)
        return self._sealed(at, brought, directory, path)

    def _sealed(self, at: int, brought: SegmentCopy, directory: str, path: str) -> SealedInfo:
        segment, info = self.view.segments[at], self.view.segments[at].info
        damage = brought.damage or contradiction(info, segment.path, brought)
        sha256, how = brought.sha256, brought.how
        if damage is not None:
            self._check_unmoved()
            self.damaged.append(damage)
            self.copied += self.copier.copy_damaged(segment, info.size, path)
            # A hash of the present bytes would confirm the damage.
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
        find = swap_path if prepared else segment_path
        self._copy_owners(segment, find(directory, info.base, OWNERS))
        self._put_aborted(self._sealed_aborted(at), find(directory, info.base, ABORTED_SUFFIX))
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

    def copy_newly_sealed(self, at: int, directory: str, start: int) -> SealedInfo:
        """Continue the copy of a segment that was active at the last backup and is sealed now."""
        segment = self.view.segments[at]
        path = segment_path(directory, segment.base, "log")
        sha256, indexes, damage = self._continue_copy(at, start, path)
        brought = SegmentCopy("copied", 0, sha256, indexes, damage)
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
        self._copy_owners(segment, segment_path(directory, info.base, OWNERS))
        path = segment_path(directory, info.base, ABORTED_SUFFIX)
        self._put_aborted(self._sealed_aborted(at), path)
        self.note(info, how, sha256)
        return msgspec.structs.replace(info, sha256=sha256)

    def copy_active(self, directory: str, start: int) -> tuple[bytes, bytes]:
        """Copy the active segment from *start* up to the mark, and write its indexes; return them."""
        segment, at = self.view.segments[-1], len(self.view.segments) - 1
        path = segment_path(directory, segment.base, "log")
        if not start:
            remove(self._files, path)
        _, indexes, damage = self._continue_copy(at, start, path)
        if damage is not None:
            self._check_unmoved()
            self.damaged.append(damage)
            self.active_damaged = True
        entries = indexes or (b"", b"")
        for suffix, data in _kept_indexes(segment, entries):
            write_atomically(self._files, segment_path(directory, segment.base, suffix), data)
        self.active_aborted = self._active_aborted()
        self._put_aborted(self.active_aborted, segment_path(directory, segment.base, ABORTED_SUFFIX))
        return entries

    # --- aborted transactions ---------------------------------------------------------------------

    def _active_aborted(self) -> bytes:
        """Return the index of aborted transactions of the active segment, up to the mark."""
        if not self.view.state.transactional:
            return b""
        index = self.view.segments[-1].aborted_index()
        assert index is not None, "it was learnt with the view"
        return bytes(index.entries[: index.count_below(self.view.high_watermark) * ABORTED_ENTRY_SIZE])

    def _sealed_aborted(self, at: int) -> bytes:
        """Return the index of aborted transactions of a sealed segment; nothing if it cannot be had.

        It is derived: a reader builds it from the log.
        """
        info = self.view.segments[at].info
        if not info.aborted_count:
            return b""
        swapping = self.view.state.swapping == info.base
        for find in (swap_path, segment_path) if swapping else (segment_path,):
            with contextlib.suppress(OSError):
                path = find(self.directory, info.base, ABORTED_SUFFIX)
                entries = read_file(self._files, path)[: info.aborted_count * ABORTED_ENTRY_SIZE]
                if google_crc32c.value(entries) == info.aborted_crc32c:
                    return entries
        with contextlib.suppress(StorageError):
            entries = bytes(replay_aborted(self.view, at).entries)
            if google_crc32c.value(entries) == info.aborted_crc32c:
                return entries
        return b""

    def _put_aborted(self, entries: bytes, path: str) -> None:
        if entries:
            write_atomically(self._files, path, entries)
        else:
            remove(self._files, path)

    def _continue_copy(
        self, at: int, start: int, path: str
    ) -> tuple[str | None, tuple[bytes, bytes] | None, Damaged | None]:
        """Append the bytes from *start* of a segment to its copy at *path*, and check the whole copy.

        If the old part is damaged, the whole segment is copied. If the new part is damaged, it is kept
        unchanged.
        """
        files, copier = self._files, self.copier
        segment, bounds = self.view.segments[at], self.view.bounds(at)
        self._copy_sidecar(at, path)
        for begin in (start, 0) if start else (0,):
            file = files.open(path, "write" if files.exists(path) else "create")
            with contextlib.closing(file):
                copied = copier.copy_bytes(segment, file, begin, bounds.end)
                file.truncate(copied)
                file.sync()
            self.copied += copied - begin
            if not copier.verify and copied == bounds.end:
                return None, None, None
            checked = copier.check(segment, bounds, path)
            if checked.damage is None:
                return checked.sha256, checked.indexes, None
            self._check_unmoved()
            if (checked.damage.position or 0) >= begin:
                break
        return None, None, checked.damage

    def _copy_sidecar(self, at: int, path: str) -> None:
        """Copy the sidecar of a store to the new store's path *path*. Synced.

        Unreadable bytes are missing in the copy, which the check of the segment reports.
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
                    self.copier.advance(len(data))
            file.sync()

    def _copy_owners(self, segment: Segment, target: str) -> None:
        """Copy the dense index of a sealed segment of the shared log to *target*. The file is synced.

        It is derived: an incomplete copy is completed when the log is opened.
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

    def copy_derived(self, directory: str) -> None:
        """Copy derived files that save time: producers up to the log's end, the compaction checkpoint."""
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
            if msgspec.json.decode(note, type=_CompactionNote).leader_epoch <= state.leader_epoch:
                path = checkpoint_path(directory)
                if not files.exists(path) or read_file(files, path) != note:
                    write_atomically(files, path, note)

    def note(self, info: SealedInfo, how: How, sha256: str | None) -> None:
        """Record how a sealed segment was transferred."""
        self.hows[info.base] = FileRecord(
            info.base, info.next_offset, info.generation, info.size, sha256, how
        )

    def confirm(self) -> None:
        """Raise SourceChanged if a truncation or compaction may have replaced a transferred file."""
        now = self._settled_look().state
        state = self.view.state
        generations = {**{i.base: i.generation for i in now.sealed}, now.active_base: now.active_generation}
        seen = {**{i.base: i.generation for i in state.sealed}, state.active_base: state.active_generation}
        same = all(generations.get(base, seen[base]) == seen[base] for base in seen)
        if now.leader_epoch != state.leader_epoch or not same:
            raise SourceChanged

    def _check_unmoved(self) -> None:
        """Raise SourceChanged if apparent damage may come from a concurrent change."""
        now = self._settled_look()
        paths = [segment.path for segment in now.segments]
        if now.state != self.view.state or paths != [segment.path for segment in self.view.segments]:
            raise SourceChanged


def _copy_all(files: Files, path: str, target: File) -> None:
    """Copy the file at *path* to *target*."""
    with contextlib.closing(files.open(path, "read")) as file:
        for position in range(0, file.size(), COPY_BYTES):
            write_all(target, position, file.read_at(position, COPY_BYTES))


def _kept_indexes(segment: Segment, indexes: tuple[bytes, bytes] | None) -> Iterator[tuple[str, bytes]]:
    """Yield the suffix and the entries of each index that has its own file."""
    for suffix, entries in zip(_INDEX_SUFFIXES, indexes or (), strict=False):
        if suffix != "idx" or segment.has_sparse_index:
            yield suffix, entries


class _CompactionNote(msgspec.Struct):
    """The fields needed from a compaction checkpoint."""

    leader_epoch: int = 0
