"""The users of a data directory: found in memory, changed in the catalogue."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import NamedTuple

from cordwood.host import process
from cordwood.security import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    ScramUsers,
    derive,
    is_password,
    salt_from,
)
from cordwood.storage.meta import DecoySeedEntry, ScramUserDeletedEntry, ScramUserEntry, SecurityStore


class UserKey(NamedTuple):
    """One credential of a user."""

    name: str
    mechanism: ScramMechanism


def entry_of(key: UserKey, credential: ScramCredential) -> ScramUserEntry:
    """Return the entry of the catalogue for a credential."""
    return ScramUserEntry(key.name, key.mechanism.title, *credential.fields())


def credential_of(entry: ScramUserEntry) -> tuple[UserKey, ScramCredential]:
    """Return the credential in an entry of the catalogue, which has been checked."""
    key = UserKey(entry.name, ScramMechanism.titled(entry.mechanism))
    fields = (entry.iterations, entry.salt, entry.stored_key, entry.server_key)
    return key, ScramCredential.of_fields(*fields)


class StoredUsers:
    """The users of a directory. ``found`` is what authentication looks up; on any thread."""

    def __init__(self, store: SecurityStore) -> None:
        """Read all users."""
        self._store = store
        # Another secret after each start would tell who does not exist: only their salts would change.
        self.found = ScramUsers(store.decoy_seed() or process.new_seed())
        for entry in store.scram_users():
            key, credential = credential_of(entry)
            self.found.set(key.name, key.mechanism, credential)

    def alter(self, changes: Mapping[UserKey, ScramCredential | None]) -> None:
        """Set credentials, and delete those that are None, all or none. One caller at a time; may block.

        Durable on return.

        Raises:
            ValueError: If a name or a credential is impossible. Nothing was changed.
            QuotaExceeded: If there would be too many users. Nothing was changed.
            StorageError: If the catalogue cannot be written.
        """
        self._store.change(
            [
                ScramUserDeletedEntry(key.name, key.mechanism.title)
                if credential is None
                else entry_of(key, credential)
                for key, credential in changes.items()
            ]
        )
        for key, credential in changes.items():
            if credential is None:
                self.found.remove(key.name, key.mechanism)
            else:
                self.found.set(key.name, key.mechanism, credential)


def new_credential(mechanism: ScramMechanism, password: str, iterations: int) -> ScramCredential:
    """Return a credential for *password* with a new salt. Takes milliseconds."""
    return derive(mechanism, password, salt_from(process.new_seed()), iterations)


def ensure_decoys(store: SecurityStore) -> None:
    """Create the secret of users that do not exist, which stays the same as long as the directory.

    Durable on return.

    Raises:
        StorageError: If the catalogue cannot be written.
    """
    if store.decoy_seed() is None:
        store.change([DecoySeedEntry(base64.b64encode(process.new_seed()).decode())])


def ensure_users(store: SecurityStore, passwords: Mapping[str, str]) -> None:
    """Create users for all SCRAM mechanisms; a user with another password gets this one. Durable on return.

    Raises:
        ValueError: If a name is impossible. Nothing was changed.
        StorageError: If the catalogue cannot be written.
    """
    known = dict(map(credential_of, store.scram_users()))
    entries = []
    for name, password in passwords.items():
        for mechanism in ScramMechanism:
            key = UserKey(name, mechanism)
            if key not in known or not is_password(mechanism, known[key], password):
                entries.append(entry_of(key, new_credential(mechanism, password, ITERATIONS_MIN)))
    store.change(entries)
