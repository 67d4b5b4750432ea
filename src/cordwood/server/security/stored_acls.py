"""The ACLs of the orgs of a server, which are in the catalogue of its data directory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock

import msgspec

from cordwood.config import BrokerConfig
from cordwood.errors import MetadataDamaged
from cordwood.security import AclBinding, AclFilter, Acls, Principal, denials_first
from cordwood.server.security.shared_acls import SharedAcls
from cordwood.storage.directory import DataDirectory
from cordwood.storage.meta import AclDeletedEntry, AclEntry, SecurityStore, catalogue_path

_LOGGER = logging.getLogger("cordwood.server")


class StoredAcls(SharedAcls):
    """The ACLs of *org*: decisions by them, and durable changes, which count from their end on."""

    def __init__(self, acls: Acls, org: int, store: SecurityStore) -> None:
        super().__init__(acls)
        self._org = org
        self._store = store
        # Held during a change, so that changes count in the order in which they are stored.
        self._changing = Lock()

    def create(self, acls: Sequence[AclBinding]) -> None:
        """Add valid ACLs; those that are there stay. Durable on return; may block.

        Raises:
            QuotaExceeded: If there would be too many. Nothing was changed.
            StorageError: If they cannot be stored.
        """
        with self._changing:
            self._store.change([AclEntry(self._org, *acl.fields()) for acl in denials_first(acls)])
            self.change(added=acls)

    def delete(self, wanted: Sequence[AclFilter]) -> list[list[AclBinding]]:
        """Remove the ACLs that any of *wanted* selects; return those of each. Durable on return; may block.

        Raises:
            StorageError: If that cannot be stored.
        """
        with self._changing:
            found = [self.matching(each) for each in wanted]
            gone = list(dict.fromkeys(acl for acls in found for acl in acls))
            self._store.change(
                [AclDeletedEntry(self._org, *acl.fields()) for acl in denials_first(gone)[::-1]]
            )
            self.change(removed=gone)
            return found


def load_acls(config: BrokerConfig, directory: DataDirectory) -> Callable[[int], StoredAcls | None]:
    """Return a function that returns the ACLs of an org, or None if no authorizer is configured.

    ACLs of all orgs are read here: the function itself neither blocks nor fails. Call it on the loop.

    Raises:
        MetadataDamaged: If a stored ACL cannot be applied. Without it, a DENY might be missing.
    """
    if not config.authorizer:
        if config.super_users:
            _LOGGER.warning(
                "super.users has no effect without authorizer.class.name: every client may do everything"
            )
        return lambda org: None
    super_users = [Principal.parse(each) for each in config.super_users.split(";") if each]

    def having(org: int, entries: Sequence[AclEntry]) -> StoredAcls:
        try:
            stored = [AclBinding.of_fields(*msgspec.structs.astuple(entry)[1:]) for entry in entries]
            acls = Acls(stored, super_users, allow_if_none=config.allow_without_acl)
        except ValueError as error:
            raise MetadataDamaged(catalogue_path(directory.path), f"an ACL of org {org}: {error}") from error
        return StoredAcls(acls, org, directory.security)

    kept = {org: having(org, directory.security.acls(org)) for org in directory.security.orgs_with_acls()}

    def of(org: int) -> StoredAcls:
        if org not in kept:
            # There was none at start, and every change since then has come through this function.
            kept[org] = having(org, ())
        return kept[org]

    return of
