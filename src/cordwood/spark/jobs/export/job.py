"""``export``: topics as Parquet files, in which every reader sees each record once, extended by each run.

How this stays correct if a run is killed at any step. Everything below ``_cordwood/`` is for the export
itself; readers ignore it, like all names that begin with ``_`` or ``.``:

1. ``_cordwood/lock`` is locked, so that one export works on a directory at a time.
2. An existing ``plan.json`` is the work of a killed run. It is completed first, as below; if the manifest
says that it is done, it is only removed.
3. The records since the manifest are split into slices, and ``plan.json`` fixes them before anything is
written: however often they are written and whatever is appended in the meantime, files have the same names
and no two share a record.
4. Each task writes a slice (`export_files`): every file under a temporary name, synced, then renamed. A
second attempt replaces the files of the first by equal ones.
5. Files left by failed attempts at these slices are removed.
6. ``manifest.json`` gets the next offset of each partition, and then the plan is removed.

So readers see a record at most once at any time, and once when a run is complete. Both files are checksummed
and replaced atomically; an unreadable one is never treated as empty.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from cordwood.disk import BY_UMASK, Files, PosixFiles, as_storage_error, join, read_metadata, write_metadata
from cordwood.errors import CordwoodError, DirectoryRefused, RecordsLost
from cordwood.host import process
from cordwood.spark.access import Access, Piece, TopicState, cut_pieces, open_access
from cordwood.spark.jobs.export.files import Written, parquet_schema, remove_leftovers, write_slice
from cordwood.spark.jobs.export.plan import FORMAT, ExportPlan, ExportSlice, Manifest, loss_refused, plan_next
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.tasks import spread
from cordwood.spark.jobs.topic_choice import chosen_topics, standing_of
from cordwood.spark.options import LogLocation, check_read_options
from cordwood.spark.source import with_null_headers
from cordwood.storage.meta import (
    check_stored_number,
    check_stored_partition,
    check_stored_topic,
    identity_path,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cordwood.spark.access import Gathered

#: The number of offsets in a file if record sizes are unknown, as by address.
OFFSETS_MAX_BY_ADDRESS = 1_000_000
_OWN = "_cordwood"

Do: TypeAlias = Callable[["ExportTask"], list[Written]]
RunTasks: TypeAlias = Callable[[Sequence["ExportTask"], Do], list[list[Written]]]
"""Executes the work of each task and returns the results in order."""

_MANIFESTS = msgspec.json.Decoder(Manifest)
_PLANS = msgspec.json.Decoder(ExportPlan)


class ExportTask(NamedTuple):
    """The work of a task: a slice, and its range with the aborted transactions in it."""

    slice: ExportSlice
    piece: Piece | Gathered


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export: *topics*, or all except internal ones if empty, and the directory *to*.

    *to* must be the same directory on the driver and on all executors. With *skip_lost*, records that were
    removed before they were exported are not an error.
    """

    place: LogPlace
    to: str
    topics: tuple[str, ...] = ()
    skip_lost: bool = False


@dataclass
class ExportedTopic:
    """The output of a run for a topic, and the next offset of each partition for the next run."""

    topic: str
    records: int = 0
    bytes: int = 0
    files: int = 0
    next_offsets: dict[int, int] = field(default_factory=dict)


@dataclass
class ExportJobReport:
    """The result of a run. ``completed``: it first completed a killed run; ``lost``: the skipped records."""

    to: str
    completed: bool
    topics: list[ExportedTopic]
    lost: list[str]


def export(spark: SparkSession, options: ExportOptions) -> ExportJobReport:
    """Write the records since the last export. Durable on return; a killed run can be repeated.

    Raises:
        UnknownTopic: If a named topic does not exist.
        CordwoodError: If records are lost, without *skip_lost*.
        DirectoryLocked: If another export works on the directory.
        MetadataDamaged: If plan or manifest are damaged.
        DirectoryRefused: If the directory cannot be exported to.
        JobFailed: If a task fails.
    """
    return run_export(options, lambda tasks, do: spread(spark, tasks, do), PosixFiles(BY_UMASK))


def run_export(options: ExportOptions, run_tasks: RunTasks, files: Files) -> ExportJobReport:
    """Export with any way to run tasks and any file system; see `export`."""
    to = _checked(files, options.to)
    with options.place.access() as access:
        names = chosen_topics(access, options.topics)
        with _locked(files, to):
            done: list[tuple[ExportPlan, list[Written]]] = []
            do = functools.partial(_export_slice, files, to, _place(options.place), options.skip_lost)

            def complete(plan: ExportPlan, *, resumed: bool) -> None:
                pieces = access.with_aborted([each.piece for each in plan.slices])
                tasks = list(map(ExportTask, plan.slices, pieces))
                done.append((plan, _complete(files, to, plan, run_tasks(tasks, do), resumed=resumed)))

            manifest, unfinished = _read(files, to)
            if unfinished is not None:
                complete(unfinished, resumed=True)
                manifest = unfinished.after
            standing = standing_of(access, names)
            cut = functools.partial(_cut, access, by_address=options.place.path is None)
            plan, lost = plan_next(manifest, standing, cut, skip_lost=options.skip_lost)
            if plan.after.topics != manifest.topics:
                write_metadata(files, join(to, _OWN, "plan.json"), plan)
                complete(plan, resumed=False)
    return _report(to, done, plan.after, standing, lost, completed=unfinished is not None)


def _checked(files: Files, to: str) -> str:
    """Return the directory to export to, the same for every process.

    Raises:
        DirectoryRefused: If it is not on a file system, or is a data directory.
    """
    if "://" in to:
        raise DirectoryRefused(
            f"{to} is not a directory: exports go to a file system that all executors share"
        )
    path = os.path.abspath(to)
    if files.exists(identity_path(path)):
        raise DirectoryRefused(f"{path} is a data directory: name another one to export to")
    return path


def _place(log: LogPlace) -> LogLocation:
    """Return the log's place for tasks."""
    return check_read_options({**log.options(), "subscribePattern": ""}).place


@contextlib.contextmanager
def _locked(files: Files, to: str) -> Iterator[None]:
    own = join(to, _OWN)
    try:
        for directory in files.make_directories(own):
            files.sync_directory(directory)
    except OSError as error:
        raise as_storage_error(error, "making the directory of the export") from error
    lock = files.lock(join(own, "lock"), process.holder())
    try:
        yield
    finally:
        lock.release()


def _read(files: Files, to: str) -> tuple[Manifest, ExportPlan | None]:
    """Return the manifest, and the plan of an incomplete run."""
    manifest_path, plan_path = join(to, _OWN, "manifest.json"), join(to, _OWN, "plan.json")
    has_manifest, has_plan = files.exists(manifest_path), files.exists(plan_path)
    manifest = read_metadata(files, manifest_path, _MANIFESTS) if has_manifest else Manifest()
    plan = read_metadata(files, plan_path, _PLANS) if has_plan else None
    if max(manifest.format, plan.format if plan is not None else FORMAT) > FORMAT:
        raise DirectoryRefused(f"{to} was exported to by a newer version of Cordwood")
    _check_names(manifest_path, manifest)
    if plan is not None:
        _check_names(plan_path, plan.after)
        for piece in plan.slices:
            check_stored_topic(plan_path, piece.topic)
            check_stored_partition(plan_path, piece.partition)
            for what in ("start", "end", "made_again"):
                check_stored_number(plan_path, what, getattr(piece, what))
    if not has_manifest and not has_plan and any(name.startswith("topic=") for name in files.list(to)):
        # Starting over would write existing records a second time, under other names.
        raise DirectoryRefused(
            f"{to} holds files of an export, but not its {_OWN}/manifest.json: name another directory"
        )
    if plan is not None and plan.run <= manifest.run:
        _remove_plan(files, to)
        plan = None
    return manifest, plan


def _check_names(path: str, manifest: Manifest) -> None:
    """Refuse topics in the file at *path* with names that are unsafe in paths."""
    for topic, progress in manifest.topics.items():
        check_stored_topic(path, topic)
        for partition in progress.partitions:
            check_stored_partition(path, partition)


def _cut(access: Access, piece: Piece, *, by_address: bool) -> list[Piece]:
    # By address, only offsets limit a slice: sizes can be requested only for all ranges together.
    cuts = [] if by_address else access.measure([piece])[0].cuts
    return cut_pieces([(piece, cuts)], None, OFFSETS_MAX_BY_ADDRESS if by_address else None)


def _complete(
    files: Files, to: str, plan: ExportPlan, of_slices: Sequence[Sequence[Written]], *, resumed: bool
) -> list[Written]:
    """Record that the files of a plan are written. Durable on return."""
    written = [file for of_slice in of_slices for file in of_slice]
    remove_leftovers(files, to, plan.slices, written, everywhere=resumed)
    write_metadata(files, join(to, _OWN, "manifest.json"), plan.after)
    _remove_plan(files, to)
    return written


def _remove_plan(files: Files, to: str) -> None:
    files.unlink(join(to, _OWN, "plan.json"))
    files.sync_directory(join(to, _OWN))


def _export_slice(
    files: Files, to: str, place: LogLocation, skip_lost: bool, work: ExportTask
) -> list[Written]:
    """Write one slice, in a task."""
    if not files.exists(join(to, _OWN, "plan.json")):
        raise CordwoodError(
            f"host {process.host()} cannot see {to}, which the driver exports to: name a directory that "
            "every executor has"
        )

    def batches() -> Iterator[pa.RecordBatch]:
        with contextlib.closing(open_access(place, verify=True, task=True)) as access:
            found = access.read([work.piece], parquet_schema(), fail_on_data_loss=not skip_lost)
            yield from map(with_null_headers, found)

    try:
        return write_slice(files, to, work.slice, batches)
    except RecordsLost as error:
        raise loss_refused(error) from error
    except OSError as error:
        raise as_storage_error(error, "writing the export") from error


def _report(
    to: str,
    done: Sequence[tuple[ExportPlan, Sequence[Written]]],
    after: Manifest,
    standing: Mapping[str, TopicState],
    lost: list[str],
    *,
    completed: bool,
) -> ExportJobReport:
    names = {*standing, *(piece.topic for plan, _ in done for piece in plan.slices)}
    topics = {name: ExportedTopic(name) for name in sorted(names)}
    for name, found in topics.items():
        partitions = after.topics[name].partitions
        found.next_offsets = {number: reached.next for number, reached in sorted(partitions.items())}
    for _, written in done:
        for file in written:
            found = topics[file.path.partition("/")[0].removeprefix("topic=")]
            found.records += file.records
            found.bytes += file.bytes
            found.files += 1
    return ExportJobReport(to, completed, list(topics.values()), lost)
