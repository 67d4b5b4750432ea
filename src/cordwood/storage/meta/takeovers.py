"""The takeovers of a data directory from another machine, which may have appended more than it shipped."""

from __future__ import annotations

import contextlib

import msgspec

from cordwood.disk import Files, join, read_metadata
from cordwood.errors import DirectoryRefused, MetadataDamaged

#: Where a directory says which bucket it is shipped to. `bucket.attaching` writes it.
BUCKET_RECORD = "meta/bucket.json"


class _TakeoverRecord(msgspec.Struct, frozen=True):
    takeover: int = 0
    attached: bool = True


_DECODER = msgspec.json.Decoder(_TakeoverRecord)


def read_takeover(files: Files, data: str) -> int:
    """Return the number of the newest takeover of the directory *data* from another machine, 0 without one.

    It only grows. The first append of a partition after a takeover begins a new leader epoch.

    Raises:
        MetadataDamaged: If the record of the bucket cannot be read.
        DirectoryRefused: If only some files of the bucket were fetched. Opening it with the bucket goes on.
    """
    record = _read(files, join(data, BUCKET_RECORD))
    if not record.attached:
        raise DirectoryRefused(
            f"{data} has only some files of the log in its bucket, because fetching them was interrupted: "
            "open it with the bucket"
        )
    return record.takeover


def largest_takeover(files: Files, data: str) -> int:
    """Return the largest number of a takeover that *data* or a partition in it has. It skips what is damaged.

    A directory may have it from another one, that was shipped to another bucket: the numbers of takeovers go
    on from there.
    """
    paths, topics = [join(data, BUCKET_RECORD)], join(data, "topics")
    for topic in files.list(topics) if files.exists(topics) else ():
        if files.is_directory(join(topics, topic)):
            paths += (join(topics, topic, name, "partition.json") for name in files.list(join(topics, topic)))
    largest = 0
    for path in paths:
        with contextlib.suppress(MetadataDamaged):
            largest = max(largest, _read(files, path).takeover)
    return largest


def _read(files: Files, path: str) -> _TakeoverRecord:
    return read_metadata(files, path, _DECODER) if files.exists(path) else _TakeoverRecord()
