"""The findings of a verification and the amount it checked."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from cordwood.errors import FrameError

Severity: TypeAlias = Literal["corruption", "invalid", "index", "note"]
VerifyProgress: TypeAlias = Callable[[str, int], None]
"""Called with a path and a position before each window of a file is read."""

# The file may be intact; this process lacks the permission or the resources to read it.
_OURS = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True, slots=True)
class Only:
    """The part of a directory to check: all of it, one topic, or one partition."""

    topic: str | None = None
    partition: int | None = None

    def has_topic(self, topic: str | None) -> bool:
        """Return whether anything of *topic* is checked."""
        return self.topic in (None, topic)

    def has(self, topic: str | None, partition: int) -> bool:
        """Return whether that partition is checked."""
        return self.has_topic(topic) and self.partition in (None, partition)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, or a note for the operator.

    ``corruption``: bytes that were once synced are missing or wrong, or authoritative files contradict each
    other. ``invalid``: the bytes are as written but not acceptable (records that contradict their batch's
    header under a correct checksum, a newer format), or may not be read. ``index``: a derived file differs
    from the log and can be rebuilt. ``note``: expected after a crash or beside a live writer, such as a torn
    tail.

    ``position`` is in bytes from the start of the file, None if the finding concerns the whole file.
    """

    severity: Severity
    path: str
    position: int | None
    expected: str
    found: str
    what: str

    def __str__(self) -> str:
        place = self.path if self.position is None else f"{self.path} at byte {self.position}"
        return f"{self.severity}: {place}: {self.what}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The amount checked, and every finding in the order of the walk.

    ``topics`` and ``partitions`` count those of the catalogue, with or without records; ``internal_topics``,
    those whose names begin with two underscores, are among them.

    ``bytes`` counts the checked bytes: logs up to their mark, indexes, metadata. Bytes past a mark are not
    checked; ``frames_unmarked`` counts the complete frames there.

    ``leaves`` are those of all chains, ``frames_compared`` the frames that were compared with theirs,
    ``checkpoints`` the signed ones that were compared with chains. ``removed`` and ``compacted`` count the
    statements of retention and compaction. ``virtual_topics`` and ``virtual_partitions`` count those that
    have frames in the shared log and were not deleted. ``unchecked`` counts the frames that compaction
    changed and that cannot be compared with what was first appended.
    """

    topics: int
    internal_topics: int
    partitions: int
    segments: int
    frames: int
    records: int
    bytes: int
    frames_unmarked: int
    leaves: int
    frames_compared: int
    checkpoints: int
    removed: int
    compacted: int
    virtual_topics: int
    virtual_partitions: int
    unchecked: int
    findings: tuple[Finding, ...]

    def count(self, severity: Severity) -> int:
        """Return the number of findings of this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def corrupt(self) -> bool:
        """Whether any finding is corruption."""
        return self.count("corruption") > 0

    @property
    def sound(self) -> bool:
        """Whether there are only notes."""
        return self.count("note") == len(self.findings)


class UnlistedFrames(NamedTuple):
    """Frames of the log at *path* that compaction changed, and of which there is no evidence.

    *leaf* is their lowest one, *stated_at* the leaf of the statement about what compaction left. There was
    evidence if it *expired*.
    """

    path: str
    leaf: int
    stated_at: int
    frames: int
    expired: bool = False


class Tally:
    """Findings and counts of a walk so far. Not for concurrent use."""

    def __init__(self, progress: VerifyProgress | None = None) -> None:
        self.progress = progress
        self.findings: list[Finding] = []
        self.topics = 0
        self.internal_topics = 0
        self.partitions = 0
        self.segments = 0
        self.frames = 0
        self.records = 0
        self.bytes = 0
        self.frames_unmarked = 0
        self.leaves = 0
        self.frames_compared = 0
        self.checkpoints = 0
        self.removed = 0
        self.compacted = 0
        self.virtual_topics = 0
        self.virtual_partitions = 0
        self.unlisted: list[UnlistedFrames] = []

    @property
    def sound(self) -> bool:
        """Whether only notes were found."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def corrupt(self) -> bool:
        """Whether any finding is corruption."""
        return any(finding.severity == "corruption" for finding in self.findings)

    def add(
        self,
        severity: Severity,
        path: str,
        position: int | None,
        *,
        expected: object,
        found: object,
        what: str,
    ) -> None:
        """Add one finding."""
        self.findings.append(Finding(severity, path, position, str(expected), str(found), what))

    def add_error(
        self, severity: Severity, path: str, error: FrameError, frame_position: int | None = None
    ) -> None:
        """Add *error* as a finding about the file it names, or else about *path*.

        With *frame_position* a finding about *path* names the beginning of the frame, as reading it and
        ``cordwood segment dump`` do; ``what`` says which field it is about.
        """
        about_frame = frame_position is not None and error.path in (None, path)
        position = frame_position if about_frame else error.position
        place = error.path or path
        self.add(severity, place, position, expected=error.expected, found=error.found, what=error.what)

    def add_unreadable(self, path: str, error: OSError, severity: Severity = "corruption") -> None:
        """Add a finding that the operating system refused to read the file or a part of it."""
        kind: Severity = "invalid" if error.errno in _OURS and severity == "corruption" else severity
        found = error.strerror or str(error)
        self.add(kind, path, None, expected="a file that can be read", found=found, what="unreadable")

    @contextlib.contextmanager
    def reading(self, path: str, severity: Severity = "corruption") -> Iterator[None]:
        """Turn an OSError of the block into a finding about *path*."""
        try:
            yield
        except OSError as error:
            self.add_unreadable(path, error, severity)

    def show_progress(self, path: str, position: int) -> None:
        """Report the progress of the walk."""
        if self.progress is not None:
            self.progress(path, position)

    def absorb(self, other: Tally) -> None:
        """Add the findings and counts of *other*."""
        self.findings += other.findings
        self.topics += other.topics
        self.internal_topics += other.internal_topics
        self.partitions += other.partitions
        self.segments += other.segments
        self.frames += other.frames
        self.records += other.records
        self.bytes += other.bytes
        self.frames_unmarked += other.frames_unmarked
        self.leaves += other.leaves
        self.frames_compared += other.frames_compared
        self.checkpoints += other.checkpoints
        self.removed += other.removed
        self.compacted += other.compacted
        self.virtual_topics += other.virtual_topics
        self.virtual_partitions += other.virtual_partitions
        self.unlisted += other.unlisted

    def report(self) -> VerifyReport:
        """Return everything so far as a report."""
        return VerifyReport(
            topics=self.topics,
            internal_topics=self.internal_topics,
            partitions=self.partitions,
            segments=self.segments,
            frames=self.frames,
            records=self.records,
            bytes=self.bytes,
            frames_unmarked=self.frames_unmarked,
            leaves=self.leaves,
            frames_compared=self.frames_compared,
            checkpoints=self.checkpoints,
            removed=self.removed,
            compacted=self.compacted,
            virtual_topics=self.virtual_topics,
            virtual_partitions=self.virtual_partitions,
            unchecked=sum(each.frames for each in self.unlisted),
            findings=tuple(self.findings),
        )
