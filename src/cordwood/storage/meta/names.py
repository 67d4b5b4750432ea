"""Rules and checks for names and numbers that become parts of paths.

A data directory or a backup may come from an untrusted place. Every name in its metadata is checked here
before it is used in a path, so that no path leads out of the directory.
"""

from __future__ import annotations

import re

from cordwood import tenancy
from cordwood.disk import join
from cordwood.errors import MetadataDamaged, RecordRefused

TOPIC_NAME_MAX = 249
#: The largest number of partitions of a topic, for requests and for metadata on disk.
PARTITIONS_MAX = 1_000_000
OFFSET_MAX = (1 << 63) - 1
#: The longest file name that every file system accepts, minus the suffix of temporary files.
FILE_NAME_MAX = 255 - len(".tmp")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ID = re.compile(r"[a-zA-Z0-9._@-]{1,200}")
_NO_NAMES = {".", ".."}
_SHOWN_MAX = 80


def topic_name_fault(name: str) -> str | None:
    """Return why a topic cannot have this name, as a sentence; None if it can.

    A tenant's topic has its org after the name: ``orders@7``.
    """
    try:
        plain, _ = tenancy.split(name)
    except ValueError as error:
        return f"topic name {_shown(name)}: {error}"
    if not _TOPIC_NAME.fullmatch(plain) or plain in _NO_NAMES or len(name) > TOPIC_NAME_MAX:
        return f"topic name {_shown(name)} must be 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
    return None


def check_stored_topic(path: str, name: str) -> None:
    """Refuse an invalid topic name read from the file at *path*.

    Raises:
        MetadataDamaged: If a path with it could lead out of the directory.
    """
    fault = topic_name_fault(name)
    if fault is not None:
        raise MetadataDamaged(path, fault)


def check_stored_id(path: str, topic_id: str) -> None:
    """Refuse an invalid topic id read from the file at *path*; see `check_stored_topic`."""
    if not _ID.fullmatch(topic_id) or topic_id in _NO_NAMES:
        expected = "must be 1 to 200 of a-z, A-Z, 0-9, '.', '_', '@' and '-'"
        raise MetadataDamaged(path, f"topic id {_shown(topic_id)}: {expected}")


def check_stored_partition(path: str, partition: int) -> None:
    """Refuse an invalid partition number read from the file at *path*; see `check_stored_topic`."""
    if not 0 <= partition < PARTITIONS_MAX:
        raise MetadataDamaged(path, f"partition {partition}: must be 0 to {PARTITIONS_MAX - 1}")


def check_stored_place(path: str, topic: str, topic_id: str, partition: int) -> None:
    """Refuse an invalid partition read from the file at *path*; see `check_stored_topic`."""
    check_stored_topic(path, topic)
    check_stored_id(path, topic_id)
    check_stored_partition(path, partition)


def check_stored_number(path: str, what: str, number: int) -> None:
    """Refuse an invalid offset or other number in file names, read from the file at *path*."""
    if not 0 <= number <= OFFSET_MAX:
        raise MetadataDamaged(path, f"{what} {number}: must be 0 to {OFFSET_MAX}")


def named_by(name: str, otherwise: str, rest: str) -> str:
    """Return *name* and *rest* as a file name, with *otherwise* in place of *name* if it is too long."""
    return f"{name}{rest}" if len(name) + len(rest) <= FILE_NAME_MAX else f"{otherwise}{rest}"


def _shown(text: str) -> str:
    more = f"… of {len(text)} characters" if len(text) > _SHOWN_MAX else ""
    return f"{text[:_SHOWN_MAX]!a}{more}"


def check_topic_name(name: str) -> None:
    """Refuse a name that could lead out of the directory, or that Kafka would refuse.

    A tenant's topic has its org after the name, as ``orders@7``.

    Raises:
        RecordRefused: If *name* is not 1 to 249 of ``a-z A-Z 0-9 . _ -``, the org included, or is ``.`` or
            ``..``, or what comes after an ``@`` is not the number of an org.
    """
    fault = topic_name_fault(name)
    if fault is not None:
        raise RecordRefused(fault)


def partition_directory(data: str, topic: str, partition: int) -> str:
    """Return the directory of a partition."""
    return join(data, "topics", topic, str(partition))
