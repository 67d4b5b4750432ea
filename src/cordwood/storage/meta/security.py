"""ACLs, SCRAM users and client quotas of a data directory, in its catalogue."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from threading import RLock

from cordwood.disk import as_storage_error
from cordwood.errors import MetadataDamaged
from cordwood.storage.meta.catalogue import Catalogue
from cordwood.storage.meta.lifecycle import Lifecycle
from cordwood.storage.meta.security_entries import (
    AclEntry,
    ClientQuotaEntry,
    ScramUserEntry,
    SecurityEntry,
    check_security_entry,
)
from cordwood.storage.meta.shares import check_shares


class SecurityStore:
    """What the catalogue has about security. Every method may be called from any thread, and may block."""

    def __init__(self, catalogue: Catalogue, lifecycle: Lifecycle, guard: RLock) -> None:
        self._catalogue = catalogue
        self._lifecycle = lifecycle
        self._guard = guard

    def acls(self, org: int) -> list[AclEntry]:
        """Return the ACLs of *org*, in the order in which they were created."""
        with self._guard:
            self._lifecycle.check_open()
            return list(self._catalogue.contents.security.acls.get(org, ()))

    def orgs_with_acls(self) -> list[int]:
        """Return the orgs that have ACLs."""
        with self._guard:
            self._lifecycle.check_open()
            return list(self._catalogue.contents.security.acls)

    def scram_users(self) -> list[ScramUserEntry]:
        """Return the credentials of all users."""
        with self._guard:
            self._lifecycle.check_open()
            users = self._catalogue.contents.security.scram_users
            return [entry for credentials in users.values() for entry in credentials.values()]

    def decoy_seed(self) -> bytes | None:
        """Return the seed of the credentials of users that do not exist, if there is one yet."""
        with self._guard:
            self._lifecycle.check_open()
            entry = self._catalogue.contents.security.decoy_seed
            return None if entry is None else base64.b64decode(entry.seed)

    def client_quotas(self, org: int) -> list[ClientQuotaEntry]:
        """Return the client quotas of *org*."""
        with self._guard:
            self._lifecycle.check_open()
            return list(self._catalogue.contents.security.client_quotas.get(org, {}).values())

    def orgs_with_client_quotas(self) -> list[int]:
        """Return the orgs that have client quotas."""
        with self._guard:
            self._lifecycle.check_open()
            return list(self._catalogue.contents.security.client_quotas)

    def change(self, entries: Sequence[SecurityEntry]) -> list[bool]:
        """Apply *entries* in order, all or none; return for each whether it changed anything.

        Durable on return, with one sync; entries that change nothing are not written.

        Raises:
            ValueError: If an entry is impossible. Nothing was changed.
            QuotaExceeded: If an org would have too many. Nothing was changed.
            DiskFull: Nothing was changed.
        """
        for entry in entries:
            try:
                check_security_entry("", entry)
            except MetadataDamaged as error:
                raise ValueError(error.reason) from None
        with self._guard:
            self._lifecycle.check_open()
            before = self._catalogue.contents.security
            after = before.copy()
            changed = [after.apply(entry) for entry in entries]
            counted = before.counts()
            for what, counts in after.counts().items():
                check_shares(what, counted[what], counts)
            if any(changed):
                self._lifecycle.before_change()
                effective = [entry for entry, is_new in zip(entries, changed, strict=True) if is_new]
                try:
                    self._catalogue.add(effective)
                except OSError as error:
                    raise as_storage_error(error, "changing users, ACLs or quotas") from error
            return changed
