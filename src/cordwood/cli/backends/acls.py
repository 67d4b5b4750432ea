"""ACLs in the catalogue of a data directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from cordwood.embedded import Log
from cordwood.security import AclBinding, AclFilter, denials_first
from cordwood.storage.meta import AclDeletedEntry, AclEntry, Contents, read_catalogue


def stored_acls(log: Log, wanted: Sequence[AclFilter], org: int) -> list[AclBinding]:
    """Return the ACLs of *org* that any of *wanted* selects, as they are in the catalogue."""
    directory = log.directory
    contents = Contents(read_catalogue(directory.files, directory.path)[0].entries)
    acls = [
        AclBinding.of_fields(*msgspec.structs.astuple(each)[1:])
        for each in contents.security.acls.get(org, ())
    ]
    return [acl for acl in acls if any(each.matches(acl) for each in wanted)]


def store_acls(log: Log, acls: Iterable[AclBinding], org: int) -> None:
    """Add valid ACLs of *org* to the catalogue. Durable on return."""
    log.data_directory.security.change([AclEntry(org, *acl.fields()) for acl in denials_first(acls)])


def remove_stored_acls(log: Log, acls: Iterable[AclBinding], org: int) -> None:
    """Remove ACLs of *org* from the catalogue. Durable on return."""
    log.data_directory.security.change(
        [AclDeletedEntry(org, *acl.fields()) for acl in denials_first(acls)[::-1]]
    )
