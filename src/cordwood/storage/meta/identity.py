"""The identity of a directory, `broker.id`, which is written once, and the marker of a clean close."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime

import msgspec

from cordwood.disk import Files, join, read_metadata, write_atomically, write_metadata
from cordwood.errors import DirectoryRefused, MetadataDamaged
from cordwood.host import Clock
from cordwood.storage.meta.catalogue import DirectoryEntry, has_entries

LAYOUT_VERSION = 1


class Identity(msgspec.Struct, frozen=True):
    """The content of `broker.id`. Never changed after creation."""

    format: int
    uuid: str
    created_at: str
    node_name: str


_DECODER = msgspec.json.Decoder(Identity)
#: ``s3a://bucket/data``, also if joining paths removed one of the slashes.
_SCHEME = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9+.-]+):/")


def local_path(path: str) -> str:
    """Return the path of a data directory without the prefix ``file:``.

    Raises:
        DirectoryRefused: If it is the address of an object store or of a file system that is not mounted.
    """
    scheme = _SCHEME.match(path)
    if scheme is None:
        return path
    if scheme["name"].lower() == "file":
        return re.sub(r"^file:(//(?=/))?", "", path, flags=re.IGNORECASE)
    raise DirectoryRefused(
        f"{path} is an address of {scheme['name']}, but a data directory is on a mounted file system: "
        "mount or copy it, or name the address of the server that has it"
    )


def identity_path(data: str) -> str:
    """Return the path of `broker.id`."""
    return join(data, "meta", "broker.id")


def is_first_boot(files: Files, data: str) -> bool:
    """Return whether *data* was never completely created as a data directory.

    Raises:
        MetadataDamaged: If `broker.id` is missing although there are topics or entries of the catalogue.
        DirectoryRefused: If it contains other files.
    """
    if files.exists(identity_path(data)):
        return False
    if not files.exists(data):
        return True
    # broker.id is written last, so without it there can only be an incomplete meta/.
    names, used = set(files.list(data)), has_entries(files, data)
    if files.exists(identity_path(data)):
        # Another process has just created it.
        return False
    if "topics" in names or used:
        raise MetadataDamaged(
            identity_path(data),
            "is missing, but the directory was used: put it back, or write it again with "
            f"cordwood identity --data {data} --repair",
        )
    if names - {"meta"}:
        found = ", ".join(sorted(names - {"meta"})[:3])
        raise DirectoryRefused(
            f"{data} is neither empty nor a data directory: it holds {found}; name another directory"
        )
    return True


def create_identity(files: Files, data: str, clock: Clock, uuid: str, node_name: str) -> Identity:
    """Write `broker.id`: from here on, the directory is a data directory. Durable on return."""
    created = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat()
    identity = Identity(LAYOUT_VERSION, uuid, created, node_name)
    write_metadata(files, identity_path(data), identity)
    return identity


def read_identity(files: Files, data: str) -> Identity:
    """Return the identity of the directory.

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


def checked_owner(
    data: str, identity: Identity, known: DirectoryEntry | None, node_id: int | None
) -> DirectoryEntry:
    """Return the entry that the catalogue of *data* should have; *known* is the one that it has.

    *node_id* is that of the broker that opens the directory, None if it is opened by no broker.

    Raises:
        DirectoryRefused: If `broker.id` is that of another directory, or if the directory belongs to a broker
            with another node id.
    """
    if known is not None and known.uuid != identity.uuid:
        raise DirectoryRefused(
            f"{identity_path(data)} has the uuid {identity.uuid}, but this directory is {known.uuid}: "
            "the file is that of another directory; put its own one back, or write it again with "
            f"cordwood identity --data {data} --repair"
        )
    recorded = None if known is None else known.node_id
    if node_id is not None and recorded is not None and node_id != recorded:
        raise DirectoryRefused(
            f"{data} belongs to the broker with node.id {recorded}, but node.id is {node_id}: set "
            f"node.id={recorded}, or change it with cordwood identity --data {data} --node-id {node_id}"
        )
    own = recorded if node_id is None else node_id
    return DirectoryEntry(identity.uuid, identity.created_at, identity.node_name, own)


def write_identity(files: Files, data: str, owner: DirectoryEntry) -> None:
    """Write `broker.id` again, as the catalogue has it. Durable on return."""
    identity = Identity(LAYOUT_VERSION, owner.uuid, owner.created_at, owner.node_name)
    write_metadata(files, identity_path(data), identity)


def was_closed_cleanly(files: Files, data: str) -> bool:
    """Return whether the last writer closed the directory cleanly."""
    return files.exists(join(data, "meta", "clean"))


def mark_clean(files: Files, data: str) -> None:
    """Record a clean close. Durable on return."""
    write_atomically(files, join(data, "meta", "clean"), b"closed cleanly\n")


def mark_unclean(files: Files, data: str) -> None:
    """Remove the record of a clean close, before any change. Durable on return."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(join(data, "meta", "clean"))
    # Even if the file was missing: an earlier attempt may have failed before this sync.
    files.sync_directory(join(data, "meta"))
