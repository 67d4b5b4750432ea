"""A quick look at a data directory: takes no lock, changes nothing, reads little of the logs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from enum import StrEnum

import msgspec

import cordwood
from cordwood.cli.output import bytes_text, counted
from cordwood.cli.place import refusing
from cordwood.embedded import Log
from cordwood.errors import CordwoodError, DirectoryRefused, MetadataDamaged, OffsetOutOfRange, UnknownTopic
from cordwood.storage.data_directory import ABANDONED_MS, partition_directory
from cordwood.storage.identity import read_identity, was_closed_cleanly
from cordwood.storage.mark import read_marks
from cordwood.storage.partition_state import PartitionState, mark_path, read_state, state_path
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.publishing import decode_journal, journal_paths
from cordwood.storage.recovery import newest_mark, synced_bound
from cordwood.storage.segment import segment_path

#: With less space than this, appends will soon be refused.
FREE_BYTES_MIN = 1 << 30
#: This much of what lies past a mark is looked at.
_TAIL_BYTES = 1 << 20
_NAMES_SHOWN = 5
_FILES = PosixFiles()


class Level(StrEnum):
    """What a finding asks for."""

    OK = "ok"
    NOTE = "note"
    ATTENTION = "attention"


class Finding(msgspec.Struct, frozen=True):
    """One line: what was looked at, what it is like, and what to do next if anything."""

    about: str
    level: Level
    text: str
    next_step: str = ""


def examine(path: str) -> Iterator[Finding]:
    """Yield what there is to say of the data directory at *path*.

    Raises:
        DirectoryRefused: If it is none of ours.
    """
    try:
        with refusing(path), cordwood.open(path, read_only=True) as log:
            made = read_identity(_FILES, os.path.abspath(path))
            topics = log.topics
            text = (
                f"{path}, made {made.created_at[:19]}Z by {made.node_name}, {counted(len(topics), 'topic')}"
            )
            yield Finding("data directory", Level.OK, text)
            held = is_held(path)
            yield _holder(path, held)
            yield _space(path)
            yield from _partitions(log, path, held)
            yield from _sync_policies(log)
    except MetadataDamaged as error:
        yield Finding("data directory", Level.ATTENTION, str(error), _VERIFY)
        held = is_held(path)
    yield from _quarantine(path)
    yield from _publications(path, held)
    yield from _leftovers(path)


_VERIFY = "restore it from a backup; cordwood verify says what else is wrong"


# --- who writes here --------------------------------------------------------------------------------


def is_held(path: str) -> bool:
    """Return whether a process writes the directory now."""
    try:
        number = os.open(os.path.join(path, "meta", "lock"), os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared and let go at once: the only way to ask that leaves the file as it is.
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False


def _holder(path: str, held: bool) -> Finding:
    try:
        with open(os.path.join(path, "meta", "lock"), encoding="utf-8", errors="replace") as file:
            text = file.read().strip()
    except OSError:
        text = ""
    if held:
        return Finding("lock", Level.OK, f"held by {text or 'a writer that has not said who it is'}")
    if was_closed_cleanly(_FILES, path):
        return Finding("lock", Level.OK, "free; the last writer closed cleanly")
    who = f" ({text})" if text else ""
    step = "nothing acknowledged is lost; the next open, as by cordwood serve, recovers what there is"
    return Finding("lock", Level.NOTE, f"free; the last writer{who} did not close cleanly", step)


def _space(path: str) -> Finding:
    free = _FILES.free_bytes(path)
    if free >= FREE_BYTES_MIN:
        return Finding("disk", Level.OK, f"{bytes_text(free)} free")
    step = "make room: appends are refused when it is full, and work again once there is space"
    return Finding("disk", Level.ATTENTION, f"only {bytes_text(free)} free", step)


# --- partitions -------------------------------------------------------------------------------------


def _partitions(log: Log, path: str, held: bool) -> Iterator[Finding]:
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
        yield Finding("logs", Level.OK, text, "cordwood verify checks every byte")


def _partition(log: Log, path: str, topic: str, number: int, held: bool) -> Iterator[Finding]:
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
        yield Finding(about, Level.ATTENTION, str(error), step)


def _sizes(about: str, directory: str, state: PartitionState, held: bool) -> Iterator[Finding]:
    for info in state.sealed:
        path = segment_path(directory, info.base, "log")
        size = os.path.getsize(path) if os.path.exists(path) else None
        # The writer may have removed it since the state was read.
        if size != info.size and info in read_state(_FILES, directory).sealed:
            text = f"{path} has {size or 0} of the {info.size} bytes that were sealed"
            yield Finding(about, Level.ATTENTION, text, "cordwood verify says all that is wrong, and where")
    if held:
        # What lies past the mark is the writer's work under way.
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
        yield Finding(about, Level.NOTE, text, step)


def _sync_policies(log: Log) -> Iterator[Finding]:
    for topic in log.topics:
        sync = log.config_of(topic).sync
        if sync.mode != "each":
            yield Finding(
                topic,
                Level.NOTE,
                f"cordwood.sync={sync}: a power cut can take acknowledged records",
                f"if that is not meant: cordwood topic alter {topic} --config cordwood.sync=each",
            )


# --- what lies beside the logs ----------------------------------------------------------------------


def _quarantine(path: str) -> Iterator[Finding]:
    """Tell torn tails, which recovery cut, from files that nothing explains."""
    directory = os.path.join(path, "quarantine")
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    torn = [name for name in names if name.endswith(".torn")]
    if torn:
        text = f"{_amount(directory, torn)} of torn tails that recovery cut: {_shown(torn)}"
        step = "these were never acknowledged; look with cordwood segment dump, then remove them"
        yield Finding("quarantine", Level.NOTE, text, step)
    others = [name for name in names if not name.endswith(".torn")]
    if others:
        text = f"{_amount(directory, others)} that no log accounts for: {_shown(others)}"
        step = "look with cordwood segment dump before you remove them"
        yield Finding("quarantine", Level.ATTENTION, text, step)


def _publications(path: str, held: bool) -> Iterator[Finding]:
    for journal_path in journal_paths(_FILES, path):
        try:
            journal = decode_journal(_FILES, journal_path)
        except (MetadataDamaged, DirectoryRefused) as error:
            yield Finding("publication", Level.ATTENTION, str(error), _VERIFY)
            continue
        if journal.intent is not None:
            text = f"batch {journal.intent.batch} of query {journal.query} is promised and not finished"
            if held:
                yield Finding("publication", Level.NOTE, text, "the writer is at it")
            else:
                step = "the next open, as by cordwood serve, finishes it before anything else"
                yield Finding("publication", Level.ATTENTION, text, step)


def _leftovers(path: str) -> Iterator[Finding]:
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
            yield Finding("tmp", Level.NOTE, text, f"they {fate}")


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
