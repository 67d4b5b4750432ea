"""SCRAM users in the catalogue of a data directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cordwood.cli.backends.backend import UserRow, unknown_user
from cordwood.embedded import Log
from cordwood.errors import CordwoodError
from cordwood.host import process
from cordwood.security import ScramMechanism, derive, salt_from
from cordwood.storage.meta import Contents, ScramUserDeletedEntry, ScramUserEntry, read_catalogue


def stored_users(log: Log) -> list[UserRow]:
    """Return the users in the catalogue, by name."""
    directory = log.directory
    users = Contents(read_catalogue(directory.files, directory.path)[0].entries).security.scram_users
    entries = [entry for name in sorted(users) for _, entry in sorted(users[name].items())]
    return [UserRow(each.name, ScramMechanism.titled(each.mechanism), each.iterations) for each in entries]


def store_user(
    log: Log, name: str, password: str, mechanisms: Iterable[ScramMechanism], iterations: int
) -> None:
    """Set the credentials of a user in the catalogue. Durable on return.

    Raises:
        CordwoodError: If the name is impossible.
    """
    entries = []
    for mechanism in mechanisms:
        credential = derive(mechanism, password, salt_from(process.new_seed()), iterations)
        entries.append(ScramUserEntry(name, mechanism.title, *credential.fields()))
    try:
        log.data_directory.security.change(entries)
    except ValueError as error:
        raise CordwoodError(f"user {name!r}: {error}") from None


def remove_stored_user(log: Log, name: str, mechanisms: Sequence[ScramMechanism]) -> list[ScramMechanism]:
    """Remove credentials of a user from the catalogue; return their mechanisms. Durable on return.

    Raises:
        CordwoodError: If the user has none of them.
    """
    known = [each.mechanism for each in stored_users(log) if each.name == name]
    removed = [each for each in mechanisms if each in known]
    if not removed:
        raise unknown_user(name)
    log.data_directory.security.change([ScramUserDeletedEntry(name, each.title) for each in removed])
    return removed
