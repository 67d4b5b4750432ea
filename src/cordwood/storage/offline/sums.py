"""Make a lost sidecar of checksums again, from a log whose frames are whole.

Only where the store itself says where its frames begin and end: in ``rustlog``. The store of ``laminarmq``
does not, so its dense index cannot be made again.

The new checksums are those of the bytes as they are now. Whether these are the bytes that were written cannot
be known from them. Two other facts may show it: the SHA-256 in ``partition.json``, which is compared here,
and the chain, which ``verify`` compares. Nothing is made for bytes past the mark, which were never
acknowledged: without their checksums a torn tail cannot be told from a whole one, so the next open cuts them.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from cordwood.disk import File, Files, as_storage_error, join, read_file, read_marks, write_atomically
from cordwood.errors import FrameError, MetadataDamaged, UnknownTopic
from cordwood.formats import ENTRY_SIZE, EVERY_FORMAT, Sidecar
from cordwood.formats.per_record import rustlog
from cordwood.host import process
from cordwood.storage.log import (
    PartitionState,
    SealedInfo,
    active_info,
    mark_path,
    newest_mark,
    read_state,
    segment_path,
    state_path,
    synced_bound,
)
from cordwood.storage.meta import Contents, is_shared, partition_directory, read_catalogue
from cordwood.tenancy import suggest

#: The one format whose store can be walked without its sidecar.
_FORMAT = "rustlog"
_WINDOW_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class RemadeSum:
    """A sidecar that was missing or too short, and is there again.

    ``proven`` says that the log has the SHA-256 that it was sealed with; if not, a record may have been
    changed before, and its new checksum says nothing about that.
    """

    path: str
    records: int
    proven: bool


@dataclass(frozen=True, slots=True)
class UnmadeSum:
    """A sidecar that could not be made again, and why. Its log was left alone."""

    path: str
    reason: str


def remake_sums(
    files: Files, data: str, topic: str | None = None
) -> tuple[tuple[RemadeSum, ...], tuple[UnmadeSum, ...]]:
    """Make lost ``.sum`` files of a data directory, or of one topic, again. Durable on return.

    Takes the lock of the directory and changes no other file.

    Raises:
        DirectoryLocked: If another process writes the directory.
        MetadataDamaged: If the catalogue cannot be read.
        UnknownTopic: If there is no such topic.
        StorageError: If a file could not be written. Earlier ones are there.
    """
    lock = files.lock(join(data, "meta", "lock"), process.holder())
    made: list[RemadeSum] = []
    unmade: list[UnmadeSum] = []
    try:
        for directory in _directories(files, data, topic):
            for result in _remake_partition(files, directory):
                if isinstance(result, RemadeSum):
                    made.append(result)
                else:
                    unmade.append(result)
    except OSError as error:
        raise as_storage_error(error, "making a sidecar again") from error
    finally:
        lock.release()
    return tuple(made), tuple(unmade)


def _directories(files: Files, data: str, topic: str | None) -> Iterator[str]:
    """Yield the partitions that have files, of all topics that may need it."""
    topics = Contents(read_catalogue(files, data)[0].entries).topics
    if topic is not None and topic not in topics:
        raise UnknownTopic.named(topic, suggestion=suggest(topic, topics))
    for name in sorted(topics) if topic is None else [topic]:
        entry = topics[name]
        if not is_shared(entry):
            for partition in range(entry.partitions):
                directory = partition_directory(data, name, partition)
                if files.exists(state_path(directory)):
                    yield directory


def _remake_partition(files: Files, directory: str) -> Iterator[RemadeSum | UnmadeSum]:
    try:
        state = read_state(files, directory)
        sidecar = EVERY_FORMAT[state.record_format].sidecar if state.record_format in EVERY_FORMAT else None
        if sidecar is None:
            return
        mark = newest_mark(state, read_marks(files, mark_path(directory)), directory)
    except MetadataDamaged:
        # Opening the directory reports it.
        return
    for info in (*state.sealed, active_info(state, synced_bound(state, mark))):
        path = segment_path(directory, info.base, sidecar.suffix)
        if _is_lost(files, path, sidecar, info):
            yield _remake(files, directory, state, info, sidecar, path)


def _is_lost(files: Files, path: str, sidecar: Sidecar, info: SealedInfo) -> bool:
    """Return whether the sidecar is missing, or has fewer entries than the segment has offsets."""
    if not files.exists(path):
        return info.next_offset > info.base
    with contextlib.closing(files.open(path, "read")) as file:
        return file.size() < sidecar.head_size + (info.next_offset - info.base) * ENTRY_SIZE


def _remake(
    files: Files, directory: str, state: PartitionState, info: SealedInfo, sidecar: Sidecar, path: str
) -> RemadeSum | UnmadeSum:
    if state.record_format != _FORMAT:
        reason = f"a store of {state.record_format} does not say where its records begin and end"
        return UnmadeSum(path, reason)
    log = segment_path(directory, info.base, "log")
    try:
        with contextlib.closing(files.open(log, "read")) as file:
            entries, sha256 = _entries(file, info, sidecar)
    except FrameError as error:
        return UnmadeSum(path, f"{log} at byte {error.position}: {error}")
    except FileNotFoundError:
        return UnmadeSum(path, f"{log} is missing")
    if info.sha256 is not None and info.sha256 != sha256:
        return UnmadeSum(path, f"{log} has SHA-256 {sha256}, but was sealed with {info.sha256}")
    left = read_file(files, path) if files.exists(path) else b""
    whole = len(left) // ENTRY_SIZE * ENTRY_SIZE
    if left[:whole] != entries[:whole]:
        return UnmadeSum(path, f"the entries that are left contradict {log}: one of them was changed")
    write_atomically(files, path, entries)
    return RemadeSum(path, info.next_offset - info.base, proven=info.sha256 is not None)


def _entries(file: File, info: SealedInfo, sidecar: Sidecar) -> tuple[bytes, str]:
    """Return the sidecar of the log up to the end of *info*, and the SHA-256 of these bytes.

    Raises:
        FrameError: Where a record does not fit: its offset, or its end.
    """
    entries, digest = bytearray(sidecar.head(info.base)), hashlib.sha256()
    position, offset, window = 0, info.base, _WINDOW_BYTES
    while position < info.size:
        data = file.read_at(position, min(window, info.size - position))
        at = 0
        while at + rustlog.HEADER_SIZE <= len(data):
            length, found, _ = rustlog.HEADER.unpack_from(data, at)
            end = at + rustlog.HEADER_SIZE + length
            if found != offset:
                raise FrameError(position=position + at, expected=offset, found=found, what="offset")
            if end > len(data):
                break
            entries += sidecar.pack(position + at, [end - at], [sidecar.checksum(data, at, end)])
            at, offset = end, offset + 1
        digest.update(memoryview(data)[:at])
        if not at:
            if len(data) == info.size - position or len(data) < window:
                expected = f"a whole record before byte {info.size}"
                raise FrameError(
                    position=position, expected=expected, found=f"{len(data)} bytes", what="record"
                )
            window *= 2
        position += at
    if offset != info.next_offset:
        raise FrameError(position=position, expected=info.next_offset, found=offset, what="next offset")
    return bytes(entries), digest.hexdigest()
