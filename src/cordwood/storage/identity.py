"""Whose directory this is: `broker.id`, made once, and the marker of a clean close."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import msgspec

from cordwood.clock import Clock
from cordwood.errors import DirectoryRefused, MetadataDamaged
from cordwood.storage.catalogue import has_entries
from cordwood.storage.files import Files, join, write_atomically
from cordwood.storage.metadata import read_metadata, write_metadata

LAYOUT_VERSION = 1


class Identity(msgspec.Struct, frozen=True):
    """The content of `broker.id`. Never changed once it is there."""

    format: int
    uuid: str
    created_at: str
    node_name: str


_DECODER = msgspec.json.Decoder(Identity)


def identity_path(data: str) -> str:
    """Return the path of `broker.id`."""
    return join(data, "meta", "broker.id")


def is_first_boot(files: Files, data: str) -> bool:
    """Return whether nobody ever finished making a data directory of *data*.

    Raises:
        MetadataDamaged: If `broker.id` is gone though there are topics.
        DirectoryRefused: If something else is in it.
    """
    if files.exists(identity_path(data)):
        return False
    if not files.exists(data):
        return True
    # broker.id is made last, so without it there can be nothing but the beginnings of meta/.
    names = set(files.list(data))
    if files.exists(identity_path(data)):
        # Another process has just made it.
        return False
    if "topics" in names or has_entries(files, data):
        raise MetadataDamaged(identity_path(data), "is missing, but there are topics")
    if names - {"meta"}:
        found = ", ".join(sorted(names - {"meta"})[:3])
        raise DirectoryRefused(
            f"{data} is neither empty nor a data directory: it holds {found}; name another directory"
        )
    return True


def create_identity(files: Files, data: str, clock: Clock, uuid: str, node_name: str) -> Identity:
    """Write `broker.id`: from here on there is a data directory. Durable on return."""
    created = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat()
    identity = Identity(LAYOUT_VERSION, uuid, created, node_name)
    write_metadata(files, identity_path(data), identity)
    return identity


def read_identity(files: Files, data: str) -> Identity:
    """Return who writes here.

    Raises:
        MetadataDamaged: If `broker.id` cannot be read.
        DirectoryRefused: If a newer version of Cordwood made the directory.
    """
    identity = read_metadata(files, identity_path(data), _DECODER)
    if identity.format > LAYOUT_VERSION:
        raise DirectoryRefused(
            f"{data} has format {identity.format}; this version of Cordwood reads up to {LAYOUT_VERSION}"
        )
    return identity


def was_closed_cleanly(files: Files, data: str) -> bool:
    """Return whether the last writer said that it left nothing to recover."""
    return files.exists(join(data, "meta", "clean"))


def mark_clean(files: Files, data: str) -> None:
    """Say that there is nothing to recover. Durable on return."""
    write_atomically(files, join(data, "meta", "clean"), b"closed cleanly\n")


def mark_unclean(files: Files, data: str) -> None:
    """Take that back, before anything changes. Durable on return."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(join(data, "meta", "clean"))
    # Even if it was gone: an earlier try may have failed here.
    files.sync_directory(join(data, "meta"))
