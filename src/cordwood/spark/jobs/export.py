"""``export``: topics as Parquet files that any reader sees each record of once, and a re-run adds to.

How it stays true when it is killed at any step. Everything below ``_cordwood/`` is for the export itself, and
readers leave it out, as they do all names that begin with ``_`` or ``.``:

1. ``_cordwood/lock`` is locked, so that one export works on a directory at a time.
2. A ``plan.json`` that is there is what a killed run was to write. It is completed first, as below; if the
   manifest says that this was done, it is only removed.
3. What came since the manifest is cut into slices, and ``plan.json`` fixes them before anything is written:
   however often they are written, and whatever is appended meanwhile, files have the same names and no two
   of them share a record.
4. Each task writes a slice (`export_files`): every file under a name that nobody reads, synced, then renamed.
   A second attempt replaces the files of the first by the same.
5. What dead attempts left of these slices is removed.
6. ``manifest.json`` says the next offset of each partition, and then the plan is removed.

So readers see a record at most once at any time, and once when a run is complete. Both files are checksummed
and replaced whole; neither is ever taken for empty when it cannot be read.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from cordwood import process
from cordwood.errors import CordwoodError, DirectoryRefused, RecordsLost
from cordwood.spark.access import Access, Piece, Standing, open_access
from cordwood.spark.jobs.choosing import chosen_topics, standing_of
from cordwood.spark.jobs.export_files import Written, parquet_schema, remove_leftovers, write_slice
from cordwood.spark.jobs.export_plan import FORMAT, Manifest, Plan, Slice, loss_refused, plan_next
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.spreading import spread
from cordwood.spark.options import Place, check_read_options
from cordwood.spark.planning import cut_pieces
from cordwood.storage.files import Files, join
from cordwood.storage.identity import identity_path
from cordwood.storage.metadata import read_metadata, write_metadata
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.store import as_storage_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: Offsets in a file where nobody says how large the records are: by address.
OFFSETS_MAX_BY_ADDRESS = 1_000_000
_OWN = "_cordwood"

Do: TypeAlias = Callable[[Slice], list[Written]]
RunTasks: TypeAlias = Callable[[Sequence[Slice], Do], list[list[Written]]]
"""Does the work of each slice somewhere, and returns what came of each, in order."""

_MANIFESTS = msgspec.json.Decoder(Manifest)
_PLANS = msgspec.json.Decoder(Plan)


@dataclass(frozen=True)
class ExportOptions:
    """What to export: *topics*, or without any all that are not internal, into the directory *to*.

    *to* must be the same directory on the driver and on all executors. With *skip_lost* records that are gone
    from the log before they were exported are no error.
    """

    place: LogPlace
    to: str
    topics: tuple[str, ...] = ()
    skip_lost: bool = False


@dataclass
class ExportedTopic:
    """What a run wrote of a topic, and the next offset of each partition for the run after it."""

    topic: str
    records: int = 0
    bytes: int = 0
    files: int = 0
    next_offsets: dict[int, int] = field(default_factory=dict)


@dataclass
class ExportReport:
    """What a run did. ``completed``: first it completed a killed one; ``lost``: what it skipped."""

    to: str
    completed: bool
    topics: list[ExportedTopic]
    lost: list[str]


def export(spark: SparkSession, options: ExportOptions) -> ExportReport:
    """Write what came since the last export. Durable on return; killed at any step, it is run again.

    Raises:
        UnknownTopic: If a topic that is named does not exist.
        CordwoodError: If records are lost and that is not to be skipped.
        DirectoryLocked: If another export works on the directory.
        MetadataDamaged: If plan or manifest are not as written.
        DirectoryRefused: If the directory is not one to export to.
        JobFailed: What a task raised.
    """
    return run_export(options, lambda slices, do: spread(spark, slices, do), PosixFiles())


def run_export(options: ExportOptions, run_tasks: RunTasks, files: Files) -> ExportReport:
    """Do the same with any way to run tasks and any file system to write to; see `export`."""
    to = _checked(files, options.to)
    with options.place.access() as access:
        names = chosen_topics(access, options.topics)
        with _locked(files, to):
            done: list[tuple[Plan, list[Written]]] = []
            do = functools.partial(_export_slice, files, to, _place(options.place), options.skip_lost)
            manifest, unfinished = _read(files, to)
            if unfinished is not None:
                done.append((unfinished, _complete(files, to, unfinished, do, run_tasks, resumed=True)))
                manifest = unfinished.after
            standing = standing_of(access, names)
            cut = functools.partial(_cut, access, by_address=options.place.path is None)
            plan, lost = plan_next(manifest, standing, cut, skip_lost=options.skip_lost)
            if plan.after.topics != manifest.topics:
                write_metadata(files, join(to, _OWN, "plan.json"), plan)
                done.append((plan, _complete(files, to, plan, do, run_tasks, resumed=False)))
    return _report(to, done, plan.after, standing, lost, completed=unfinished is not None)


def _checked(files: Files, to: str) -> str:
    """Return the directory to export to, for every process the same.

    Raises:
        DirectoryRefused: If it is on no file system, or a data directory.
    """
    if "://" in to:
        raise DirectoryRefused(f"{to} is no directory: exports go to a file system that all executors share")
    path = os.path.abspath(to)
    if files.exists(identity_path(path)):
        raise DirectoryRefused(f"{path} is a data directory: name another one to export to")
    return path


def _place(log: LogPlace) -> Place:
    """Return where tasks find the log."""
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


def _read(files: Files, to: str) -> tuple[Manifest, Plan | None]:
    """Return how far the export is, and the plan of a run that was not completed."""
    manifest_path, plan_path = join(to, _OWN, "manifest.json"), join(to, _OWN, "plan.json")
    has_manifest, has_plan = files.exists(manifest_path), files.exists(plan_path)
    manifest = read_metadata(files, manifest_path, _MANIFESTS) if has_manifest else Manifest()
    plan = read_metadata(files, plan_path, _PLANS) if has_plan else None
    if max(manifest.format, plan.format if plan is not None else FORMAT) > FORMAT:
        raise DirectoryRefused(f"{to} was exported to by a newer version of Cordwood")
    if not has_manifest and not has_plan and any(name.startswith("topic=") for name in files.list(to)):
        # Begun again, it would write what is there a second time, under other names.
        raise DirectoryRefused(
            f"{to} holds files of an export, but not its {_OWN}/manifest.json: name another directory"
        )
    if plan is not None and plan.run <= manifest.run:
        _remove_plan(files, to)
        plan = None
    return manifest, plan


def _cut(access: Access, piece: Piece, *, by_address: bool) -> list[Piece]:
    cuts = access.cuts(piece.topic, piece.partition, piece.start, piece.end)
    return cut_pieces([(piece, cuts)], None, OFFSETS_MAX_BY_ADDRESS if by_address else None)


def _complete(
    files: Files, to: str, plan: Plan, do: Do, run_tasks: RunTasks, *, resumed: bool
) -> list[Written]:
    """Do what a plan says, and say that it is done. Durable on return."""
    written = [file for of_slice in run_tasks(plan.slices, do) for file in of_slice]
    remove_leftovers(files, to, plan.slices, written, everywhere=resumed)
    write_metadata(files, join(to, _OWN, "manifest.json"), plan.after)
    _remove_plan(files, to)
    return written


def _remove_plan(files: Files, to: str) -> None:
    files.unlink(join(to, _OWN, "plan.json"))
    files.sync_directory(join(to, _OWN))


def _export_slice(files: Files, to: str, place: Place, skip_lost: bool, piece: Slice) -> list[Written]:
    """Write one slice, in a task."""
    if not files.exists(join(to, _OWN, "plan.json")):
        raise CordwoodError(
            f"host {process.host()} cannot see {to}, which the driver exports to: name a directory that "
            "every executor has"
        )

    def batches() -> Iterator[pa.RecordBatch]:
        with contextlib.closing(open_access(place, verify=True, task=True)) as access:
            yield from access.read(piece.piece, parquet_schema(), fail_on_data_loss=not skip_lost)

    try:
        return write_slice(files, to, piece, batches)
    except RecordsLost as error:
        raise loss_refused(error) from error
    except OSError as error:
        raise as_storage_error(error, "writing the export") from error


def _report(
    to: str,
    done: Sequence[tuple[Plan, Sequence[Written]]],
    after: Manifest,
    standing: Mapping[str, Standing],
    lost: list[str],
    *,
    completed: bool,
) -> ExportReport:
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
    return ExportReport(to, completed, list(topics.values()), lost)
