"""Check the journals of the exactly-once sink, and the shares that an open intent needs.

Written against docs/formats/directory.md, independent of the code that writes them.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

import google_crc32c
import msgspec

from cordwood.disk import ReadableFiles, join, read_file
from cordwood.verify.metadata import JSON_ERRORS, Count, PartitionNumber, TopicId, TopicName, shown
from cordwood.verify.report import Tally, VerifyProgress

_SUFFIX = ".json"
_START, _MIDDLE, _END = b'{"crc32c":"', b'","body":', b"}"
_BODY_AT = len(_START) + 8 + len(_MIDDLE)
_SHARE = r"^[0-9]{1,19}-[A-Za-z0-9-]{1,120}\.share\Z"


class _SectionBody(msgspec.Struct, frozen=True):
    topic: TopicName
    topic_id: TopicId
    partition: PartitionNumber
    position: Count
    size: Count
    records: Count

    @property
    def target(self) -> tuple[str, str, int]:
        return self.topic, self.topic_id, self.partition


class _ShareBody(msgspec.Struct, frozen=True):
    name: Annotated[str, msgspec.Meta(pattern=_SHARE)]
    sections: list[_SectionBody]


class _PlaceBody(msgspec.Struct, frozen=True):
    topic: TopicName
    topic_id: TopicId
    partition: PartitionNumber
    base_offset: Count

    @property
    def target(self) -> tuple[str, str, int]:
        return self.topic, self.topic_id, self.partition


class _IntentBody(msgspec.Struct, frozen=True):
    batch: Count
    shares: list[_ShareBody]
    places: list[_PlaceBody]


class _JournalBody(msgspec.Struct, frozen=True):
    format: Annotated[int, msgspec.Meta(ge=1, le=1)]
    query: str
    published: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
    intent: _IntentBody | None
    number: Count = 0


class PartitionEnd(NamedTuple):
    """The end of a partition's log, and the id of its topic."""

    topic_id: str
    end_offset: int


class SinkCheck:
    """The journals at one moment, to be compared with logs that are read later.

    A log only grows while an intent is open, so no planned offset is above the end of its log, even beside a
    live writer.
    """

    def __init__(self, files: ReadableFiles, data: str, progress: VerifyProgress | None) -> None:
        """Read all journals."""
        self._files = files
        self._data = data
        self._tally = Tally(progress)
        self._journals: dict[str, bytes] = {}
        directory = join(data, "meta", "sink")
        with self._tally.reading(directory):
            for name in files.list(directory) if files.exists(directory) else []:
                path = join(directory, name)
                if name.endswith(_SUFFIX):
                    content = _read(files, path, self._tally)
                    if content is not None:
                        self._journals[path] = content
                elif not name.endswith(f"{_SUFFIX}.tmp"):
                    # A temporary file is an unfinished journal from a crash; the next write replaces it.
                    found, what = "something else", "unexpected name"
                    self._tally.add("note", path, None, expected="a journal", found=found, what=what)

    def finish(self, ends: Mapping[tuple[str, int], PartitionEnd]) -> Tally:
        """Return the findings; *ends* has the sound partitions that were read."""
        for path, content in self._journals.items():
            own = Tally()
            _check_journal(self._files, self._data, path, content, own, ends)
            if not own.sound and _read(self._files, path, Tally()) != content:
                own = Tally()
                found = "another one now"
                own.add("note", path, None, expected="a journal", found=found, what="not judged")
            self._tally.absorb(own)
        return self._tally


def _read(files: ReadableFiles, path: str, tally: Tally) -> bytes | None:
    """Return the content of the file, None if it is gone or unreadable."""
    tally.show_progress(path, 0)
    content = None
    # The journal of a query that is never retried is removed.
    with tally.reading(path), contextlib.suppress(FileNotFoundError):
        content = read_file(files, path)
    return content


def _check_journal(
    files: ReadableFiles,
    data: str,
    path: str,
    content: bytes,
    tally: Tally,
    ends: Mapping[tuple[str, int], PartitionEnd],
) -> None:
    journal = _decode(path, content, tally)
    if journal is None:
        return
    key = hashlib.sha256(journal.query.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if not path.endswith(f"/{key}{_SUFFIX}"):
        expected, found = f"{key}{_SUFFIX}", f"the journal of {journal.query!a}"
        tally.add("corruption", path, None, expected=expected, found=found, what="name of the journal")
        return
    intent = journal.intent
    if intent is None:
        return
    if intent.batch <= journal.published:
        expected = f"more than {journal.published}, which is published"
        tally.add("corruption", path, None, expected=expected, found=intent.batch, what="batch of the intent")
    found = f"batch {intent.batch} of {journal.query!a}, which will be published at the next open"
    tally.add("note", path, None, expected="no intent", found=found, what="unfinished publication")
    _check_places(path, intent, tally, ends)
    staged = join(data, "tmp", "sink", key, str(intent.batch))
    for share, section in _needed(intent, ends):
        _check_share(files, path, join(staged, share.name), section, tally)


def _decode(path: str, content: bytes, tally: Tally) -> _JournalBody | None:
    """Return the journal, or None after reporting why it is unusable."""
    tally.bytes += len(content)
    # Compared byte for byte, because a lenient parser would miss some flipped bits of the envelope.
    digits, body = content[len(_START) : len(_START) + 8], content[_BODY_AT : -len(_END)]
    if content != _START + digits + _MIDDLE + body + _END:
        expected = '{"crc32c":"<8 hex digits>","body":{…}}'
        tally.add("corruption", path, 0, expected=expected, found=f"{content[:40]!r}…", what="envelope")
        return None
    crc = f"{google_crc32c.value(body):08x}"
    if digits != crc.encode():
        found = ascii(digits.decode("latin-1"))
        tally.add("corruption", path, len(_START), expected=crc, found=found, what="CRC-32C of the body")
        return None
    try:
        return msgspec.json.decode(body, type=_JournalBody)
    except JSON_ERRORS as error:
        expected = "the fields of docs/formats/directory.md"
        found = f"{error}, in {shown(body)}"
        tally.add("corruption", path, _BODY_AT, expected=expected, found=found, what="body")
        return None


def _check_places(
    path: str, intent: _IntentBody, tally: Tally, ends: Mapping[tuple[str, int], PartitionEnd]
) -> None:
    """Compare the planned offsets with the sections and with the ends of the logs."""
    wanted = {section.target for share in intent.shares for section in share.sections if section.records}
    places = [place.target for place in intent.places]
    if sorted(wanted) != sorted(places):
        expected, what = f"one for each of {sorted(wanted)}", "places of the intent"
        tally.add("corruption", path, None, expected=expected, found=sorted(places), what=what)
    for place in intent.places:
        end = ends.get((place.topic, place.partition))
        # A deleted or unreadable topic cannot be compared with the intent.
        if end is None or end.topic_id != place.topic_id:
            continue
        if place.base_offset > end.end_offset:
            what = f"place in partition {place.partition} of topic {place.topic}"
            expected = f"at most {end.end_offset}, the end of its log"
            tally.add("corruption", path, None, expected=expected, found=place.base_offset, what=what)


def _needed(
    intent: _IntentBody, ends: Mapping[tuple[str, int], PartitionEnd]
) -> Iterator[tuple[_ShareBody, _SectionBody]]:
    """Yield the sections that the log does not have yet: their shares must exist."""
    offsets = {place.target: place.base_offset for place in intent.places}
    for share in intent.shares:
        for section in share.sections:
            start = offsets.get(section.target)
            if start is None:
                continue
            offsets[section.target] = start + section.records
            end = ends.get((section.topic, section.partition))
            if (
                end is not None
                and end.topic_id == section.topic_id
                and end.end_offset < start + section.records
            ):
                yield share, section


def _check_share(files: ReadableFiles, path: str, share: str, section: _SectionBody, tally: Tally) -> None:
    """Check that a share is long enough for one of its sections."""
    least, what = section.position + section.size, "share of an open intent"
    with tally.reading(share):
        if not files.exists(share):
            tally.add(
                "corruption", share, None, expected=f"a share that {path} needs", found="none", what=what
            )
            return
        with contextlib.closing(files.open(share, "read")) as file:
            size = file.size()
        if size < least:
            expected = f"{least} bytes or more"
            tally.add("corruption", share, size, expected=expected, found=f"{size} bytes", what=what)
