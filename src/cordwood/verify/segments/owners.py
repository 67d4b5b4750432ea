"""Check that the frames of the shared log are consistent for each partition in it.

The offset of a record is the start of its partition plus the number of earlier records of that partition, so
each frame begins where the partition's previous frame ended. Missing records in between must lie below a
later start of the partition, in rewritten segments.

Written against docs/formats/shared.md, independent of the code that writes it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import google_crc32c
from blake3 import blake3

from cordwood.disk import ReadableFiles
from cordwood.verify.catalogue import CatalogueContent, CreatedTopic
from cordwood.verify.derived import DerivedFile
from cordwood.verify.report import Severity, Tally
from cordwood.verify.segments.envelopes import ENDED, LOG_START, RECORDS, EnvelopeFrame, EnvelopeOwner

_ENTRY = struct.Struct(
    "<"
    "Q"  # first id
    "Q"  # first offset
    "Q"  # org
    "16s"  # topic hash
    "I"  # partition
    "I"  # how many ids
    "Q"  # segment
    "Q"  # position of the frame in it
    "I"  # size of the frame
    "B"  # kind
    "B"  # role in a transaction
    "h"  # producer epoch
    "q"  # producer id
    "q"  # largest timestamp
    "i"  # first sequence; of a marker the coordinator epoch
)
_CRC = struct.Struct("<I")
ENTRY_BYTES = _ENTRY.size + _CRC.size
assert ENTRY_BYTES == 96
_ZEROS = bytes(ENTRY_BYTES)
_INITIAL_OFFSET = "cordwood.initial.offset"


def entry_of(frame: EnvelopeFrame, base: int) -> bytes:
    """Return the expected entry of a frame of the segment at *base*."""
    producer_id, producer_epoch, first_sequence = frame.producer
    body = _ENTRY.pack(
        frame.base_offset,
        frame.first_offset,
        *frame.place,
        frame.id_count,
        base,
        frame.position,
        frame.size,
        frame.kind,
        frame.role,
        producer_epoch,
        producer_id,
        frame.max_timestamp,
        first_sequence,
    )
    return body + _CRC.pack(google_crc32c.value(body))


class OwnerIndexFile(DerivedFile):
    """Compares the computed entries of an ``.oidx`` with its file."""

    def __init__(self, files: ReadableFiles, path: str, base: int, *, sealed: bool) -> None:
        super().__init__(files, path, ENTRY_BYTES)
        self._base = base
        self._sealed = sealed
        self._entries = 0

    def add(self, frame: EnvelopeFrame) -> None:
        """Expect the entry of *frame* next."""
        self._entries += 1
        self.expect(entry_of(frame, self._base))

    def finish(self, tally: Tally) -> None:
        """Report differences after the last frame.

        The last entries of an active segment may not be written yet.
        """
        self.compare()
        whole = self._entries * ENTRY_BYTES
        try:
            size = self.size()
        except OSError as error:
            # The index of an active segment is built when the log is opened, and may not exist before.
            begun = self._sealed or not isinstance(error, FileNotFoundError)
            if self._entries:
                tally.add_unreadable(self.path, error, "index" if begun else "note")
            return
        tally.bytes += min(size, whole)
        if self.difference is not None:
            self._add_difference(tally, self.difference)
        elif self._sealed and size != whole:
            expected, found = (
                f"the end of the file after {self._entries} entries",
                f"{size - whole} bytes more",
            )
            tally.add("index", self.path, whole, expected=expected, found=found, what="owner index")

    def _add_difference(self, tally: Tally, difference: tuple[int, bytes, bytes]) -> None:
        position, expected, found = difference
        if not self._sealed and len(found) < ENTRY_BYTES:
            return  # Not written yet.
        # A power cut left zeros in place of unsynced entries; opening the log fills them.
        unsynced = not self._sealed and found == _ZEROS
        tally.add(
            "note" if unsynced else "index",
            self.path,
            position,
            expected=expected.hex(),
            found=found.hex() or "the end of the file",
            what="owner index, not synced" if unsynced else "owner index",
        )


class OwnerSpan(NamedTuple):
    """Adjacent frames of one partition in one segment, or one frame without records.

    Records have the offsets from ``first_offset`` up to ``next_offset``; a frame without records has its own
    offset in both. ``position`` is that of the first frame.
    """

    kind: int
    first_offset: int
    next_offset: int
    position: int


@dataclass(slots=True)
class SegmentOwners:
    """The owners of a segment's frames, in order for each partition; *damaged* if frames are lost."""

    base: int
    generation: int
    found: dict[EnvelopeOwner, list[OwnerSpan]] = field(default_factory=dict)
    damaged: bool = False

    def add(self, frame: EnvelopeFrame) -> None:
        """Add a sound frame."""
        spans = self.found.setdefault(frame.place, [])
        end = frame.first_offset + (frame.id_count if frame.kind == RECORDS else 0)
        last = spans[-1] if spans else None
        if frame.kind == RECORDS and last and last[:3:2] == (RECORDS, frame.first_offset):
            spans[-1] = last._replace(next_offset=end)
        else:
            spans.append(OwnerSpan(frame.kind, frame.first_offset, end, frame.position))


class _OwnedPartition:
    """One partition derived from its frames, after any deleted topic of the same name."""

    __slots__ = ("began", "gaps", "next_offset", "seen_at", "segment", "start")

    def __init__(self, seen_at: tuple[str, int], segment: int, began: int) -> None:
        self.seen_at = seen_at
        #: The number of the segment with its last frame.
        self.segment = segment
        self.began = self.next_offset = began
        #: Its start offset; -1 if no frame states it.
        self.start = -1
        #: (path, position, offset expected, offset found) of frames with missing frames before them.
        self.gaps: list[tuple[str, int, int, int]] = []


class Owners:
    """All partitions in the shared log, derived from its segments in order."""

    def __init__(self, *, cut: bool = False) -> None:
        """Begin. *cut*: the log was truncated once, which may have removed frames that state a start."""
        self._live: dict[EnvelopeOwner, _OwnedPartition] = {}
        self._tally = Tally()
        self._segments = 0
        self._cut = cut
        # Whether frames were removed so far: missing frames may belong to any partition.
        self._sparse = False
        # The last damaged segment so far; -1 for none.
        self._damaged = -1

    def add(self, path: str, segment: SegmentOwners) -> None:
        """Take the next segment, whose log is at *path*."""
        number = self._segments
        self._segments += 1
        if segment.generation or (number == 0 and segment.base):
            self._sparse = True
        if segment.damaged:
            self._damaged = number
        for place, spans in segment.found.items():
            for span in spans:
                self._take(place, span, path, number)

    def _take(self, place: EnvelopeOwner, span: OwnerSpan, path: str, number: int) -> None:
        if span.kind == ENDED:
            self._live.pop(place, None)
            return
        part = self._live.get(place)
        if part is None:
            part = self._live[place] = _OwnedPartition((path, span.position), number, span.first_offset)
        expected, found = part.next_offset, span.first_offset
        # Damage is reported once, not again for each frame it destroyed.
        if self._damaged < part.segment:
            if found > expected and not self._sparse:
                self._contradict(place, path, span.position, expected, found)
            elif found > expected:
                part.gaps.append((path, span.position, expected, found))
            elif found < expected and span.kind == RECORDS:
                self._contradict(place, path, span.position, expected, found)
        part.segment = number
        if span.kind == LOG_START:
            part.start = max(part.start, found)
            part.next_offset = max(expected, found)
        else:
            part.next_offset = span.next_offset

    def _contradict(
        self, place: EnvelopeOwner, path: str, position: int, expected: object, found: int
    ) -> None:
        what = f"first offset of a frame of {place}"
        self._tally.add("corruption", path, position, expected=expected, found=found, what=what)

    def finish(self) -> Tally:
        """Return inconsistencies after all segments, and the numbers of topics and partitions."""
        tally = self._tally
        tally.virtual_partitions = len(self._live)
        tally.virtual_topics = len({place[:2] for place in self._live})
        for place, part in self._live.items() if self._damaged < 0 else ():
            for path, position, expected, found in part.gaps:
                if found > part.start:
                    severity: Severity = "note" if self._cut else "corruption"
                    said, what = (
                        f"{expected}: no start beyond it is said",
                        f"first offset of a frame of {place}",
                    )
                    tally.add(severity, path, position, expected=said, found=found, what=what)
        return tally

    def check_known(self, catalogue: CatalogueContent, tally: Tally) -> None:
        """Compare the partitions with existing and deleted topics."""
        live = {_hashed(topic): topic for topic in catalogue.live.values() if topic.is_shared}
        gone = {_hashed(topic) for topic in catalogue.gone.values() if topic.is_shared}
        unended: list[_OwnedPartition] = []
        untold: list[_OwnedPartition] = []
        for place, part in self._live.items():
            topic = live.get(place[:2])
            if topic is not None and place.partition < topic.partitions:
                if not self._check_began(place, part, topic, tally):
                    untold.append(part)
            elif topic is None and place[:2] in gone:
                unended.append(part)
            else:
                path, position = part.seen_at
                expected = (
                    "that of a topic in the catalogue" if topic is None else f"one of {topic.partitions}"
                )
                tally.add(
                    "corruption", path, position, expected=expected, found=place, what="partition of a frame"
                )
        found = "their records, until the directory is opened"
        _note(tally, unended, "nothing", found, "of deleted topics")
        expected = "a first offset of 0, or a frame or setting that says another"
        _note(tally, untold, expected, "neither", "begin with a later record")

    def _check_began(
        self, place: EnvelopeOwner, part: _OwnedPartition, topic: CreatedTopic, tally: Tally
    ) -> bool:
        """Check that nothing is missing before the first frame of a partition. Return whether that is known.

        Its first offset is a setting of the topic, or else of the broker.
        """
        if self._damaged >= 0 or part.began <= part.start:
            return True
        path, position = part.seen_at
        said = topic.config.get(_INITIAL_OFFSET)
        if said is not None and said != str(part.began):
            what = f"first offset of {place}"
            tally.add("corruption", path, position, expected=said, found=part.began, what=what)
        return said is not None or not part.began


def _note(tally: Tally, parts: list[_OwnedPartition], expected: str, found: str, what: str) -> None:
    """Add one finding for several partitions."""
    if parts:
        path, position = parts[0].seen_at
        what = f"{len(parts)} partitions in the shared log {what}"
        tally.add("note", path, position, expected=expected, found=found, what=what)


def _hashed(topic: CreatedTopic) -> tuple[int, bytes]:
    """Return the org of a topic and the hash of its name."""
    name, _, number = topic.name.partition("@")
    org = int(number or 0)
    return org, blake3(struct.pack("<Q", org) + name.encode()).digest(16)
