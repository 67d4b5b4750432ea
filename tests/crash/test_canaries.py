"""Planted bugs, one at a time: each must be caught by the crash enumeration, or that proves nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import google_crc32c
import msgspec
import pytest
from crash.test_crash_engine import (
    LIMIT,
    a_topic_replaced_by_another,
    appends_and_rolls,
    check_of,
    edges,
    idempotent_producers,
    killed_writers,
    log_start_moves,
    preallocated_segments,
    producers_of_a_truncated_log,
    small_steps,
    truncations,
    unsynced_appends,
)
from support.crashes import MISFITS, Violation, survives, violation_of
from support.disks import RecordingFile, RecordingFiles
from support.promises import Run

from cordwood.disk import checked_json as metadata
from cordwood.disk import files as files_module
from cordwood.disk import mark, store
from cordwood.disk.files import Files, join, parent
from cordwood.errors import CordwoodError
from cordwood.formats import batch
from cordwood.formats.batch import header
from cordwood.index.sparse import SparseIndex
from cordwood.index.time import TimeIndex
from cordwood.storage.directory import data_directory, deletion, topics
from cordwood.storage.log import producers, segment
from cordwood.storage.log import state as partition_state
from cordwood.storage.log.active_segment import ActiveSegment, Flushed
from cordwood.storage.log.changes import advancing, truncation
from cordwood.storage.log.opening import recovery
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.storage.log.producers import ProducerKeeper, Replay
from cordwood.storage.log.producers import keeper as producer_keeper
from cordwood.storage.log.state import Bound
from cordwood.storage.meta import catalogue

__all__ = ["small_steps"]

Planted = Callable[[], Any]


@contextmanager
def no_sync_before_the_acknowledgement() -> Iterator[None]:
    with patch.object(PartitionLog, "commit", lambda self, offset=None: self.show(self.end)):
        yield


@contextmanager
def no_directory_sync_after_a_new_segment() -> Iterator[None]:
    with skipped_directory_syncs(lambda path: path.endswith("segments")):
        yield


@contextmanager
def no_directory_sync_after_a_new_partition() -> Iterator[None]:
    with skipped_directory_syncs(lambda path: path.endswith(("topics", "/t")) or path == "/data"):
        yield


@contextmanager
def skipped_directory_syncs(skipped: Callable[[str], bool]) -> Iterator[None]:
    real = RecordingFiles.sync_directory

    def sync_directory(self: RecordingFiles, path: str) -> None:
        if not skipped(path):
            real(self, path)

    with patch.object(RecordingFiles, "sync_directory", sync_directory):
        yield


@contextmanager
def the_previous_segment_not_synced_at_a_roll() -> Iterator[None]:
    real = PartitionLog._roll

    def roll(self: PartitionLog) -> None:
        with patch.object(store.Store, "sync", lambda self: None):
            real(self)

    with patch.object(PartitionLog, "_roll", roll):
        yield


@contextmanager
def no_checksum_compared() -> Iterator[None]:
    with patch.object(batch, "count_sound", lambda buffer, found, checked_before=0: len(found)):
        yield


@contextmanager
def the_checksum_covers_a_prefix() -> Iterator[None]:
    class Prefix:
        @staticmethod
        def value(data: Any) -> int:
            return int(google_crc32c.value(bytes(data)[:42]))

    with patch.object(header, "google_crc32c", Prefix):
        yield


@contextmanager
def zeros_taken_for_records() -> Iterator[None]:
    real = recovery._Recovery._scan_tail

    def scan_tail(self: Any, file: Any, bound: Bound, size: int, *known: Any) -> tuple[Bound, bytes | None]:
        end, left = real(self, file, bound, size, *known)
        rest = file.read_at(end.position, size - end.position)
        return (end if any(rest) else Bound(end.base, size, end.next_offset)), left

    with patch.object(recovery._Recovery, "_scan_tail", scan_tail):
        yield


@contextmanager
def the_mark_moves_before_the_sync() -> Iterator[None]:
    real = PartitionLog._sync

    def sync(self: PartitionLog) -> int:
        self.move_mark(self.end)
        return real(self)

    with patch.object(PartitionLog, "_sync", sync):
        yield


@contextmanager
def a_torn_slot_of_the_mark_accepted() -> Iterator[None]:
    def decode_slots(data: bytes) -> list[mark.Mark]:
        found = []
        for start in (0, mark.SLOT_SPACING):
            slot = data[start : start + mark.SLOT_SIZE].ljust(mark.SLOT_SIZE, b"\0")
            if slot[:4] == mark.MAGIC:
                found.append(mark.Mark(*mark._SLOT.unpack_from(slot)[1:]))
        return sorted(found, key=lambda one: one.sequence, reverse=True)

    with patch.object(mark, "decode_slots", decode_slots):
        yield


@contextmanager
def metadata_renamed_before_it_is_synced() -> Iterator[None]:
    def write_atomically(files: Files, path: str, data: bytes) -> None:
        if files.exists(f"{path}.tmp"):
            files.unlink(f"{path}.tmp")
        file = files.open(f"{path}.tmp", "create")
        file.write_at(0, [data])
        files.rename(f"{path}.tmp", path)
        files.sync_directory(parent(path))

    with patch.object(metadata, "write_atomically", write_atomically):
        yield


@contextmanager
def trimmed_after_the_sync_of_the_seal() -> Iterator[None]:
    real_roll, real_sync, real_trim = PartitionLog._roll, store.Store.sync, store.Store.trim

    def trim(self: store.Store) -> None:
        real_sync(self)
        real_trim(self)

    def roll(self: PartitionLog) -> None:
        with (
            patch.object(store.Store, "trim", trim),
            patch.object(store.Store, "sync", lambda self: None),
        ):
            real_roll(self)

    with patch.object(PartitionLog, "_roll", roll):
        yield


@contextmanager
def an_index_trusted_past_the_end() -> Iterator[None]:
    def load_indexes(self: Any, opened: segment.Segment, bound: Bound) -> Any:
        files = self.context.files
        paths = [segment.segment_path(self.directory, bound.base, suffix) for suffix in ("idx", "timeidx")]
        if not all(map(files.exists, paths)):
            return real(self, opened, bound)
        entries, times = (files_module.read_file(files, path) for path in paths)
        index = SparseIndex(self.state.index_interval_bytes, entries)
        return index, TimeIndex(times), Flushed(len(index), len(times) // 16, 0, 0)

    def reopen_without_rewriting(self: ActiveSegment) -> None:
        self.flushed = Flushed(len(self.index), len(self.times), 0, 0)

    real = recovery._Recovery._load_indexes
    with (
        patch.object(recovery._Recovery, "_load_indexes", load_indexes),
        patch.object(ActiveSegment, "rewrite_indexes", reopen_without_rewriting),
    ):
        yield


@contextmanager
def the_high_watermark_before_the_sync() -> Iterator[None]:
    real = PartitionLog.append

    def append(self: PartitionLog, rows: Any, expected_offset: int | None = None) -> Any:
        appended = real(self, rows, expected_offset)
        self.show(self.end)
        return appended

    with patch.object(PartitionLog, "append", append):
        yield


@contextmanager
def a_truncation_without_its_commit_point() -> Iterator[None]:
    def commit_cut(files: Files, directory: str, state: Any, cut: Any, takeover: int = 0) -> Any:
        return partition_state.truncated_state(state, cut, takeover)

    with patch.object(truncation, "commit_cut", commit_cut):
        yield


@contextmanager
def a_truncation_that_keeps_its_epoch() -> Iterator[None]:
    def newest_mark(state: Any, marks: list[mark.Mark], directory: str) -> mark.Mark | None:
        return marks[0] if marks else None

    with patch.object(recovery, "newest_mark", newest_mark):
        yield


@contextmanager
def segments_removed_before_the_log_start_moves() -> Iterator[None]:
    real = partition_state.write_state

    def write_state(files: Files, directory: str, state: Any) -> None:
        known = {info.base for info in state.sealed} | {state.active_base}
        names = files.list(join(directory, "segments"))
        bases = {int(name[:20]) for name in names if name.endswith(".log")}
        truncation.remove_segments(files, directory, sorted(b for b in bases - known if b < min(known)))
        real(files, directory, state)

    with patch.object(advancing, "write_state", write_state):
        yield


@contextmanager
def a_topic_acknowledged_before_its_sync() -> Iterator[None]:
    def add(self: catalogue.Catalogue, entries: Any) -> None:
        with patch.object(self, "_file", Unsynced(self._file)):
            real(self, entries)

    real = catalogue.Catalogue.add
    with patch.object(catalogue.Catalogue, "add", add):
        yield


class Unsynced:
    """A file whose sync does nothing."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def sync(self) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def a_torn_tail_left_in_place() -> Iterator[None]:
    def keep(self: Any, file: Any, position: int, size: int, suffix: str) -> None:
        pass

    def open_at_the_end(real: Any) -> Any:
        def make(file: Any, end: int, *, preallocate: bool = False) -> Any:
            return real(file, file.size(), preallocate=preallocate)

        return make

    with (
        patch.object(recovery._Recovery, "_cut", keep),
        patch.object(recovery, "Store", open_at_the_end(store.Store)),
    ):
        yield


@contextmanager
def a_recovered_tail_that_is_not_synced() -> Iterator[None]:
    real = recovery._Recovery.recover_active

    def recover_active(self: Any) -> Any:
        with patch.object(RecordingFile, "sync", lambda self: None):
            return real(self)

    with patch.object(recovery._Recovery, "recover_active", recover_active):
        yield


@contextmanager
def a_duplicate_acknowledged_before_the_sync_of_its_original() -> Iterator[None]:
    real = PartitionLog.append_received

    def append_received(self: PartitionLog, frame: Any) -> Any:
        end = self.log_end_offset
        appended = real(self, frame)
        # Nothing below offset 0 is waited for.
        return appended if self.log_end_offset > end else appended._replace(next_offset=0)

    with patch.object(PartitionLog, "append_received", append_received):
        yield


@contextmanager
def producers_saved_before_the_sync_of_their_records() -> Iterator[None]:
    real = ProducerKeeper.count

    def count(self: ProducerKeeper, size: int, leader_epoch: int, next_offset: int, now_ms: int) -> None:
        real(self, size, leader_epoch, next_offset, now_ms)
        self.save_synced(next_offset)

    with patch.object(ProducerKeeper, "count", count):
        yield


@contextmanager
def producers_saved_without_the_batch_that_they_were_saved_at() -> Iterator[None]:
    real_note, real_count = ProducerKeeper.note, ProducerKeeper.count
    late: list[Any] = []

    def note(self: ProducerKeeper, *arguments: Any) -> None:
        late.append(arguments)

    def count(self: ProducerKeeper, *arguments: Any) -> None:
        real_count(self, *arguments)
        while late:
            real_note(self, *late.pop())

    with patch.object(ProducerKeeper, "note", note), patch.object(ProducerKeeper, "count", count):
        yield


@contextmanager
def a_snapshot_of_producers_believed_after_a_truncation() -> Iterator[None]:
    def read_snapshot(files: Files, directory: str, state: Any, end_offset: int) -> Any:
        return producers.read_snapshot(
            files, directory, msgspec.structs.replace(state, epochs=()), end_offset
        )

    with patch.object(producer_keeper, "read_snapshot", read_snapshot):
        yield


@contextmanager
def the_log_after_a_snapshot_of_producers_not_read() -> Iterator[None]:
    with patch.object(Replay, "over", lambda self, *arguments: self):
        yield


@contextmanager
def a_deletion_acknowledged_before_its_sync() -> Iterator[None]:
    def add(self: catalogue.Catalogue, entries: Any) -> None:
        if entries and isinstance(entries[0], catalogue.DeletedEntry):
            with patch.object(self, "_file", Unsynced(self._file)):
                real(self, entries)
        else:
            real(self, entries)

    real = catalogue.Catalogue.add
    with patch.object(catalogue.Catalogue, "add", add):
        yield


@contextmanager
def a_deleted_topic_moved_before_it_is_deleted() -> Iterator[None]:
    def delete(self: topics.DirectoryTopics, name: str) -> None:
        deletion.discard_topic(self._context.files, self._path, self[name])
        real(self, name)

    real = topics.DirectoryTopics.delete
    with patch.object(topics.DirectoryTopics, "delete", delete):
        yield


@contextmanager
def a_deleted_topic_left_where_it_was() -> Iterator[None]:
    with patch.object(topics, "discard_topic", lambda files, data, entry: None):
        yield


@contextmanager
def a_deletion_not_finished_after_a_crash() -> Iterator[None]:
    with patch.object(topics, "finish_deletions", lambda *arguments: None):
        yield


@contextmanager
def moved_topics_not_removed_after_a_crash() -> Iterator[None]:
    with patch.object(data_directory, "remove_moved", lambda *arguments: None):
        yield


@contextmanager
def whatever_has_the_name_of_a_deleted_topic_removed_after_a_crash() -> Iterator[None]:
    with patch.object(deletion, "_is_of", lambda *arguments: True):
        yield


def caught(planted: Planted, workloads: list[Run]) -> Violation | None:
    """Run the workloads under a planted bug and return the first broken promise."""
    # First a sample of the disks, which finds most; then all of them.
    for limit, workload in itertools.product((LIMIT, None), workloads):
        check = check_of(workload)
        with planted():
            try:
                violation = survives(
                    workload, check, images_max=60_000, seed=0, limit_per_prefix=limit, edges=edges
                )
            except CordwoodError as error:
                # It took no power cut: the engine refuses to go on.
                violation = violation_of(error)
        if violation is not None:
            return violation
    return None


CANARIES: list[tuple[Planted, list[Run]]] = [
    (no_sync_before_the_acknowledgement, [appends_and_rolls]),
    (no_directory_sync_after_a_new_segment, [appends_and_rolls]),
    (no_directory_sync_after_a_new_partition, [appends_and_rolls]),
    (the_previous_segment_not_synced_at_a_roll, [unsynced_appends, appends_and_rolls]),
    (no_checksum_compared, [unsynced_appends]),
    (the_checksum_covers_a_prefix, [unsynced_appends]),
    (zeros_taken_for_records, [preallocated_segments]),
    (the_mark_moves_before_the_sync, [unsynced_appends]),
    (a_torn_slot_of_the_mark_accepted, [unsynced_appends]),
    (metadata_renamed_before_it_is_synced, [appends_and_rolls]),
    (trimmed_after_the_sync_of_the_seal, [preallocated_segments]),
    (an_index_trusted_past_the_end, [truncations]),
    (the_high_watermark_before_the_sync, [unsynced_appends]),
    (a_truncation_without_its_commit_point, [truncations]),
    (a_truncation_that_keeps_its_epoch, [truncations]),
    (segments_removed_before_the_log_start_moves, [log_start_moves]),
    (a_topic_acknowledged_before_its_sync, [appends_and_rolls]),
    (a_torn_tail_left_in_place, [unsynced_appends]),
    (a_recovered_tail_that_is_not_synced, [killed_writers]),
    (a_duplicate_acknowledged_before_the_sync_of_its_original, [idempotent_producers]),
    (producers_saved_before_the_sync_of_their_records, [idempotent_producers]),
    (producers_saved_without_the_batch_that_they_were_saved_at, [idempotent_producers]),
    (the_log_after_a_snapshot_of_producers_not_read, [idempotent_producers]),
    (a_snapshot_of_producers_believed_after_a_truncation, [producers_of_a_truncated_log]),
    (a_deletion_acknowledged_before_its_sync, [a_topic_replaced_by_another]),
    (a_deleted_topic_moved_before_it_is_deleted, [a_topic_replaced_by_another]),
    (a_deleted_topic_left_where_it_was, [a_topic_replaced_by_another]),
    (a_deletion_not_finished_after_a_crash, [a_topic_replaced_by_another]),
    (moved_topics_not_removed_after_a_crash, [a_topic_replaced_by_another]),
    (whatever_has_the_name_of_a_deleted_topic_removed_after_a_crash, [a_topic_replaced_by_another]),
]


@pytest.mark.parametrize(("planted", "workloads"), CANARIES, ids=[c[0].__name__ for c in CANARIES])
def test_a_planted_bug_is_caught(planted: Planted, workloads: list[Run]) -> None:
    violation = caught(planted, workloads)
    assert violation is not None, f"{planted.__name__} survived"
    print(f"caught: {planted.__name__.replace('_', ' ')}: {violation}")


@contextmanager
def a_bug_that_fits_an_engine_of_the_past() -> Iterator[None]:
    with patch.object(recovery._Recovery, "_cut", lambda self, file: None):
        yield


def test_a_planted_bug_that_does_not_fit_the_engine_is_not_taken_for_a_caught_one() -> None:
    """A mistake in the code shows on any disk, whether the harness can find anything or not."""
    with pytest.raises(RuntimeError, match="no fault of a disk: R1: TypeError"):
        caught(a_bug_that_fits_an_engine_of_the_past, [unsynced_appends])


@pytest.mark.parametrize("misfit", MISFITS)
def test_nor_is_one_whose_mistake_is_hidden_in_another_error(misfit: type[Exception]) -> None:
    hidden = CordwoodError("the log failed")
    hidden.__cause__ = misfit("no such thing")
    for error in (hidden, AssertionError(f"R3: upkeep failed with {misfit.__name__}")):
        with pytest.raises(RuntimeError, match="no fault of a disk"):
            violation_of(error)
    assert violation_of(AssertionError("D1: gone"), "none", 7) == Violation("none", 7, "D1: gone")
