"""Write the `broker.id` of a directory again, from what its catalogue knows."""

from __future__ import annotations

import contextlib

from cordwood.disk import Files, join
from cordwood.errors import DirectoryRefused
from cordwood.host import process
from cordwood.storage.meta import Contents, DirectoryEntry, identity, read_catalogue


def repair_identity(files: Files, data: str) -> DirectoryEntry:
    """Write `broker.id` as the catalogue of *data* has it, and return that. Durable on return.

    Raises:
        DirectoryLocked: If another process writes the directory.
        DirectoryRefused: If the catalogue does not have it: nothing was changed.
        MetadataDamaged: If the catalogue cannot be read.
    """
    with contextlib.ExitStack() as stack:
        lock = files.lock(join(data, "meta", "lock"), process.holder())
        stack.callback(lock.release)
        owner = Contents(read_catalogue(files, data)[0].entries).directory
        if owner is None:
            raise DirectoryRefused(
                f"the catalogue of {data} does not know its identity: it was made by an earlier version and "
                "nothing was added since, or it was restored; put its own broker.id back"
            )
        identity.write_identity(files, data, owner)
    return owner
