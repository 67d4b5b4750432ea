"""A quick inspection of a data directory: who writes it, its space, the ends of its logs, and leftovers."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cordwood.disk import PosixFiles, is_locked, read_marks
from cordwood.embedded import Log
from cordwood.embedded import open as open_log
from cordwood.errors import CordwoodError, DirectoryRefused, MetadataDamaged, OffsetOutOfRange, UnknownTopic
from cordwood.inspection.findings import CheckedItem, Level
from cordwood.inspection.permissions import examine_permissions
from cordwood.storage.log import (
    PartitionState,
    mark_path,
    newest_mark,
    read_state,
    segment_path,
    state_path,
    synced_bound,
)
from cordwood.storage.meta import (
    Contents,
    identity,
    partition_directory,
    read_catalogue,
    read_identity,
    was_closed_cleanly,
)
from cordwood.storage.sink import ABANDONED_MS, decode_journal, journal_paths
from cordwood.wording import bytes_text, counted, counted_topics

#: With less space than this, appends will soon be refused.
FREE_BYTES_MIN = 1 << 30
#: This much of what lies past a mark is looked at.
_TAIL_BYTES = 1 << 20
_NAMES_SHOWN = 5
_FILES = PosixFiles()


def inspect_directory(path: str | os.PathLike[str]) -> list[CheckedItem]:
    """Inspect the data directory at *path*: a quick look, since `verify_directory` checks every byte.

    Reads the first and the last frame of each partition, the sizes of its files and all metadata. Damage is a
    finding of level ``attention``. Takes no lock, changes nothing, and may run beside a writer.

    Raises:
        DirectoryRefused: If there is no data directory at *path*.
    """
    place = os.fspath(path)
    return [*_examine(place), *examine_permissions(place)]


def _examine(path: str) -> Iterator[CheckedItem]:
    try:
        with open_log(path, read_only=True) as log:
            made = read_identity(_FILES, os.path.abspath(path))
            topics = log.topics
            internal = sum(name.startswith("__") for name in topics)
            text = (
                f"{path}, made {made.created_at[:19]}Z by {made.node_name}, "
                f"{counted_topics(len(topics), internal)}, "
                f"{counted(sum(log.entry(name).partitions for name in topics), 'partition')}"
            )
            yield CheckedItem("data directory", Level.OK, text)
            yield from _identity(os.path.abspath(path), made)
            held = is_written(path)
            yield _holder(path, held)
            yield _space(path)
            yield from _partitions(log, path, held)
            yield from _sync_policies(log)
    except MetadataDamaged as error:
        yield CheckedItem("data directory", Level.ATTENTION, str(error), _VERIFY)
        held = is_written(path)
    yield from _quarantine(path)
    yield from _publications(path, held)
    yield from _leftovers(path)


def _identity(place: str, made: identity.Identity) -> Iterator[CheckedItem]:
    """Yield what is wrong with whose the directory is, if anything."""
    known = Contents(read_catalogue(_FILES, place)[0].entries).directory
    try:
        identity.checked_owner(place, made, known, None)
    except DirectoryRefused as error:
        yield CheckedItem(
            "identity", Level.ATTENTION, str(error), f"cordwood identity --data {place} --repair"
        )


_VERIFY = "restore it from a backup; cordwood verify says what else is wrong"


# --- who writes here --------------------------------------------------------------------------------


def is_written(path: str) -> bool:
    """Return whether a process writes the directory now. Takes no lock."""
    return is_locked(os.path.join(path, "meta", "lock"))


def _holder(path: str, held: bool) -> CheckedItem:
    try:
        with open(os.path.join(path, "meta", "lock"), encoding="utf-8", errors="replace") as file:
            text = file.read().strip()
    except OSError:
        text = ""
    if held:
        return CheckedItem("lock", Level.OK, f"held by {text or 'a writer that has not said who it is'}")
    if was_closed_cleanly(_FILES, path):
        return CheckedItem("lock", Level.OK, "free; the last writer closed cleanly")
    who = f" ({text})" if text else ""
    step = "nothing acknowledged is lost; the next open, as by cordwood serve, recovers what there is"
    return CheckedItem("lock", Level.NOTE, f"free; the last writer{who} did not close cleanly", step)


def _space(path: str) -> CheckedItem:
    free = _FILES.free_bytes(path)
    if free >= FREE_BYTES_MIN:
        return CheckedItem("disk", Level.OK, f"{bytes_text(free)} free")
    step = "make room: appends are refused when it is full, and work again once there is space"
    return CheckedItem("disk", Level.ATTENTION, f"only {bytes_text(free)} free", step)


# --- partitions -------------------------------------------------------------------------------------


def _partitions(log: Log, path: str, held: bool) -> Iterator[CheckedItem]:
    """Look at the ends of every partition, the sizes of its files, and what lies past its mark."""
    looked_at, well = 0, True
    for topic in log.topics:
        for number in range(log.entry(topic).partitions):
            looked_at += 1
            for finding in _partition(log, path, topic, number, held):
                well = well and finding.level is not Level.ATTENTION
                yield finding
    if well:
        text = f"first and last frame of {counted(looked_at, 'partition')} are as written"
        yield CheckedItem("logs", Level.OK, text, "cordwood verify checks every byte")


def _partition(log: Log, path: str, topic: str, number: int, held: bool) -> Iterator[CheckedItem]:
    about = f"{topic}/{number}"
    step = "what is sound can still be read; cordwood verify says all that is wrong, and where"
    try:
        found = log.topic(topic)
        offsets = found.offsets(number)
        for offset in {offsets.start, offsets.end - 1} if len(offsets) else ():
            next(iter(found.read(number, offset)), None)
        directory = partition_directory(path, topic, number)
        if _FILES.exists(state_path(directory)):
            yield from _sizes(about, directory, read_state(_FILES, directory), held)
    except (OffsetOutOfRange, UnknownTopic):
        # A writer moved an end or deleted the topic since: it is at work, and that is all there is to say.
        return
    except (CordwoodError, OSError) as error:
        yield CheckedItem(about, Level.ATTENTION, str(error), step)


def _sizes(about: str, directory: str, state: PartitionState, held: bool) -> Iterator[CheckedItem]:
    for info in state.sealed:
        path = segment_path(directory, info.base, "log")
        size = os.path.getsize(path) if os.path.exists(path) else None
        # The writer may have removed it since the state was read.
        if size != info.size and info in read_state(_FILES, directory).sealed:
            text = f"{path} has {size or 0} of the {info.size} bytes that were sealed"
            yield CheckedItem(
                about, Level.ATTENTION, text, "cordwood verify says all that is wrong, and where"
            )
    if held:
        # Bytes past the mark belong to the running writer.
        return
    mark = newest_mark(state, read_marks(_FILES, mark_path(directory)), directory)
    bound = synced_bound(state, mark)
    path = segment_path(directory, bound.base, "log")
    with open(path, "rb") as file:
        file.seek(bound.position)
        tail = file.read(_TAIL_BYTES)
    if tail.strip(b"\0"):
        beyond = os.path.getsize(path) - bound.position
        text = f"{bytes_text(beyond)} past the mark in {path}, never acknowledged as synced"
        step = "the next open keeps whole frames, and cuts a torn tail into quarantine/"
        yield CheckedItem(about, Level.NOTE, text, step)


def _sync_policies(log: Log) -> Iterator[CheckedItem]:
    for topic in log.topics:
        sync = log.config_of(topic).sync
        if sync.mode != "each":
            yield CheckedItem(
                topic,
                Level.NOTE,
                f"cordwood.sync={sync}: a power cut can take acknowledged records",
                f"if that is not meant: cordwood topic alter {topic} --config cordwood.sync=each",
            )


# --- what lies beside the logs ----------------------------------------------------------------------


def _quarantine(path: str) -> Iterator[CheckedItem]:
    """Tell torn tails, which recovery cut, from files that nothing explains."""
    directory = os.path.join(path, "quarantine")
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    torn = [name for name in names if name.endswith(".torn")]
    if torn:
        text = f"{_amount(directory, torn)} of torn tails that recovery cut: {_shown(torn)}"
        step = "these were never acknowledged; look with cordwood segment dump, then remove them"
        yield CheckedItem("quarantine", Level.NOTE, text, step)
    others = [name for name in names if not name.endswith(".torn")]
    if others:
        text = f"{_amount(directory, others)} that no log accounts for: {_shown(others)}"
        step = "look with cordwood segment dump before you remove them"
        yield CheckedItem("quarantine", Level.ATTENTION, text, step)


def _publications(path: str, held: bool) -> Iterator[CheckedItem]:
    for journal_path in journal_paths(_FILES, path):
        try:
            journal = decode_journal(_FILES, journal_path)
        except (MetadataDamaged, DirectoryRefused) as error:
            yield CheckedItem("publication", Level.ATTENTION, str(error), _VERIFY)
            continue
        if journal.intent is not None:
            text = f"batch {journal.intent.batch} of query {journal.query} is promised and not finished"
            if held:
                yield CheckedItem("publication", Level.NOTE, text, "the writer is at it")
            else:
                step = "the next open, as by cordwood serve, finishes it before anything else"
                yield CheckedItem("publication", Level.ATTENTION, text, step)


def _leftovers(path: str) -> Iterator[CheckedItem]:
    """Tell what is in ``tmp/``, by kind."""
    kinds = {
        ".share": f"go when they are published, or {ABANDONED_MS // 86_400_000} days after they were staged",
        ".spool": "are streams on their way in, or go with the next open",
        ".deleted": "are topics that were deleted, and go with the next open",
    }
    found: dict[str, list[str]] = {}
    for directory, directories, names in os.walk(os.path.join(path, "tmp")):
        for name in [*directories, *names]:
            found.setdefault(os.path.splitext(name)[1], []).append(os.path.join(directory, name))
    for suffix, fate in kinds.items():
        if suffix in found:
            text = f"{_amount('', found[suffix])} named *{suffix}"
            yield CheckedItem("tmp", Level.NOTE, text, f"they {fate}")


def _amount(directory: str, names: list[str]) -> str:
    sizes = []
    for name in names:
        try:
            sizes.append(os.path.getsize(os.path.join(directory, name)))
        except OSError:
            # Gone meanwhile.
            continue
    return f"{counted(len(names), 'file')} ({bytes_text(sum(sizes))})"


def _shown(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
